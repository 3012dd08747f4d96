//! The schema's versions: the only place that knows old formats.
//!
//! Each step is applied once, in order, inside one transaction under an advisory lock, so that several
//! processes may start at once. A step that was released is never changed; a new one is added.

use std::cmp::Ordering;

use tokio_postgres::Client;

use super::{StateError, store::atomically};

/// `anabranch` as a 64-bit advisory lock key for schema changes: the first eight bytes of the word.
const UPGRADE_LOCK: i64 = i64::from_be_bytes(*b"anabranc");

/// How long an upgrade waits for others.
const LOCK_LIMIT: &str = "set local lock_timeout = '10s'";

/// The first version with `anabranch.suspension`. Asked before anything is upgraded: a database of an older
/// release has no suspension.
pub(super) const SUSPENSIONS_SINCE: i32 = 3;

/// Step n takes the schema from version n to n + 1.
const STEPS: &[&str] = &[
    r"
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
",
    r"
    alter table anabranch.mapping add column purge boolean not null default false;
    alter table anabranch.run drop constraint run_pkey;
    alter table anabranch.run add primary key (installation, run);
    alter table anabranch.run drop constraint run_status_check;
    alter table anabranch.run add constraint run_status_check
        check (status in ('queued', 'running', 'failing', 'complete', 'cancelled'));
    alter table anabranch.run add column scope jsonb;
    alter table anabranch.run add column report jsonb;
    alter table anabranch.run add column updated_at timestamptz not null default now();
    create unique index run_of_table on anabranch.run (installation, entity) where scope is null;
    create table anabranch.request (
        installation text not null,
        id bigint generated always as identity,
        kind text not null check (kind in ('mapping', 'table')),
        target text not null,
        scope jsonb,
        purge boolean not null default false,
        taken boolean not null default false,
        requested_at timestamptz not null default now(),
        primary key (installation, id)
    );
    -- Hashed, since a scope may be longer than an entry of an index.
    create unique index request_once on anabranch.request
        (installation, kind, target, hashtextextended(coalesce(scope::text, ''), 0),
        hashtextextended(coalesce(scope::text, ''), 1)) where not taken;
    create table anabranch.control (
        installation text not null,
        entity text not null,
        paused boolean not null default false,
        rows_per_second integer check (rows_per_second > 0),
        updated_at timestamptz not null default now(),
        primary key (installation, entity)
    );
",
    r"
    alter table anabranch.installation add column publication_oid oid;
    create table anabranch.suspension (
        installation text primary key,
        keep_slot boolean not null,
        reason text,
        suspended_at timestamptz not null default now(),
        settled boolean not null default false,
        resumed_at timestamptz,
        purge boolean not null default false
    );
",
    r"
    create table anabranch.partitions (
        installation text primary key,
        known jsonb not null
    );
",
    r"
    alter table anabranch.mapping add column since pg_lsn;
",
    r#"
    create table anabranch.guest_state (
        installation text not null,
        mapping text not null,
        generation bigint not null,
        key text collate "C" not null,
        value bytea not null,
        primary key (installation, mapping, generation, key)
    );
    alter table anabranch.mapping add column held text;
"#,
    r"
    -- `json` and not `jsonb`: what is kept may have escapes that jsonb refuses.
    create table anabranch.quarantine (
        installation text not null,
        id bigint generated always as identity,
        mapping text not null,
        entity text not null,
        row_id text not null,
        key jsonb,
        operation text not null,
        origin text not null,
        generation bigint not null,
        commit_lsn pg_lsn not null,
        sequence bigint not null,
        committed_at timestamptz,
        stage text not null check (stage in ('transform', 'delivery')),
        plugin text not null,
        sink text not null,
        code text not null,
        reason text not null,
        payload json not null,
        cut text[] not null,
        destination text,
        document_id text,
        document text,
        attempts integer not null default 1,
        first_at timestamptz not null default now(),
        last_at timestamptz not null default now(),
        primary key (installation, id)
    );
    -- Hashed, since a key may be longer than an entry of an index.
    create unique index quarantine_row on anabranch.quarantine
        (installation, mapping, hashtextextended(row_id, 0), hashtextextended(row_id, 1));
",
    r"
    alter table anabranch.mapping add column building text;
",
    r"
    -- It has no key, and somebody's publication for all tables would forbid to update it.
    alter table anabranch.version replica identity full;
",
];

/// Makes the schema, or brings it up to this program's version, in one transaction.
pub(super) async fn upgrade(client: &Client) -> Result<(), StateError> {
    atomically(client, apply(client)).await
}

/// Whether the schema, which is there, has this program's version.
pub(super) async fn check(client: &Client) -> Result<(), StateError> {
    let found = version(client).await?;
    match found.cmp(&known()) {
        Ordering::Less => Err(StateError::Older { found, known: known() }),
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(StateError::Newer { found, known: known() }),
    }
}

/// Whether there is a schema. Asked of the catalogue's tables: `to_regclass` may answer from what a session
/// remembers, and miss what another has made while this one waited for its lock.
pub(super) async fn exists(client: &Client) -> Result<bool, StateError> {
    let query = "select exists (select from pg_catalog.pg_class as c \
                 join pg_catalog.pg_namespace as n on n.oid = c.relnamespace \
                 where n.nspname = 'anabranch' and c.relname = 'version')";
    let row = client.query_one(query, &[]).await.map_err(StateError::query("look for it"))?;
    Ok(row.get(0))
}

fn known() -> i32 {
    i32::try_from(STEPS.len()).unwrap_or(i32::MAX)
}

pub(super) async fn version(client: &Client) -> Result<i32, StateError> {
    let row = client
        .query_one("select version from anabranch.version", &[])
        .await
        .map_err(StateError::query("read its version"))?;
    Ok(row.get(0))
}

async fn apply(client: &Client) -> Result<(), StateError> {
    let failed = StateError::query;
    // Whoever has it may be cut off, and its session stay: an error is told and tried again, a wait is not.
    client.batch_execute(LOCK_LIMIT).await.map_err(failed("limit its locks"))?;
    client
        .execute("select pg_advisory_xact_lock($1)", &[&UPGRADE_LOCK])
        .await
        .map_err(failed("lock it for an upgrade"))?;
    if !exists(client).await? {
        let create = "create schema if not exists anabranch; \
                      create table anabranch.version (version integer not null); \
                      insert into anabranch.version values (0)";
        client.batch_execute(create).await.map_err(failed("create it"))?;
    }
    let found = version(client).await?;
    let known = known();
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
