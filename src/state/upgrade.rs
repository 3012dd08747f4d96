//! The schema's versions: the only place that knows old formats.
//!
//! Each step is applied once, in order, inside one transaction under an advisory lock, so that several
//! processes may start at once. A step that was released is never changed; a new one is added.

use tokio_postgres::Client;

use super::StateError;

/// `anabranch` as a 64-bit advisory lock key for schema changes: the first eight bytes of the word.
const UPGRADE_LOCK: i64 = i64::from_be_bytes(*b"anabranc");

/// Step n takes the schema from version n to n + 1.
const STEPS: &[&str] = &[r"
    create table anabranch.installation (
        name text primary key,
        publication text not null,
        system_identifier text not null,
        timeline integer not null,
        confirmed pg_lsn not null,
        term bigint not null default 0,
        baseline bigint,
        updated_at timestamptz not null default now()
    );
    create table anabranch.mapping (
        installation text not null,
        name text not null,
        entity text not null,
        table_oid oid not null,
        identity jsonb not null,
        generation bigint not null,
        built bigint not null,
        accepted pg_lsn not null,
        status text not null check (status in ('running', 'failing', 'refused')),
        last_error text,
        attempts integer not null default 0,
        updated_at timestamptz not null default now(),
        primary key (installation, name)
    );
    create table anabranch.run (
        installation text not null,
        entity text not null,
        run text not null,
        mappings text[] not null,
        status text not null check (status in ('running', 'failing', 'complete')),
        cursor text,
        rows bigint not null default 0,
        chunks bigint not null default 0,
        estimate bigint,
        attempts integer not null default 0,
        last_error text,
        not_before timestamptz not null default 'epoch',
        started_at timestamptz not null default now(),
        finished_at timestamptz,
        primary key (installation, entity)
    );
"];

/// Makes the schema, or brings it up to this program's version, in one transaction.
pub(super) async fn upgrade(client: &Client) -> Result<(), StateError> {
    client.batch_execute("begin").await.map_err(StateError::query("begin an upgrade"))?;
    let applied = apply(client).await;
    let end = if applied.is_ok() { "commit" } else { "rollback" };
    let ended = client.batch_execute(end).await.map_err(StateError::query("end an upgrade"));
    applied.and(ended)
}

async fn apply(client: &Client) -> Result<(), StateError> {
    let failed = StateError::query;
    client
        .execute("select pg_advisory_xact_lock($1)", &[&UPGRADE_LOCK])
        .await
        .map_err(failed("lock it for an upgrade"))?;
    let exists = client
        .query_one("select to_regclass('anabranch.version') is not null", &[])
        .await
        .map_err(failed("look for it"))?;
    if !exists.get::<_, bool>(0) {
        let create = "create schema if not exists anabranch; \
                      create table anabranch.version (version integer not null); \
                      insert into anabranch.version values (0)";
        client.batch_execute(create).await.map_err(failed("create it"))?;
    }
    let row = client
        .query_one("select version from anabranch.version", &[])
        .await
        .map_err(failed("read its version"))?;
    let found: i32 = row.get(0);
    let known = i32::try_from(STEPS.len()).unwrap_or(i32::MAX);
    if found > known {
        return Err(StateError::Newer { found, known });
    }
    if found == known {
        return Ok(());
    }
    for step in &STEPS[usize::try_from(found).unwrap_or(0)..] {
        client.batch_execute(step).await.map_err(failed("upgrade it"))?;
    }
    client
        .execute("update anabranch.version set version = $1", &[&known])
        .await
        .map_err(failed("write its version"))?;
    Ok(())
}
