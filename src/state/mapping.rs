//! The rows of `anabranch.mapping`.

use tokio_postgres::{Client, Row};

use crate::model::{EntityName, Lsn, Place};

use super::{
    StateError, Store,
    store::{atomically, entity, lsn, malformed},
};

/// What one mapping was last run with, and how far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMapping {
    /// Its name.
    pub name: String,
    /// Its table.
    pub entity: EntityName,
    /// The table's oid: another one under the same name is another table.
    pub table_oid: u32,
    /// What its documents come from: `pipeline::Identity` as JSON.
    pub identity: String,
    /// How often it was rebuilt, from 1.
    pub generation: i64,
    /// The last generation whose backfill completed; 0 before the first.
    pub built: i64,
    /// Everything that was committed before is accepted by its sink.
    pub accepted: Lsn,
    /// What was committed after this is transformed by the revision of [`identity`](Self::identity); none where an
    /// older release wrote it.
    pub since: Option<Lsn>,
    /// How it is.
    pub status: MappingStatus,
    /// Why it does not run, or what it last failed with.
    pub last_error: Option<String>,
    /// Failures in a row.
    pub attempts: i32,
    /// Its destination is to be emptied before its generation is built.
    pub purge: bool,
    /// A newer revision of its transform that is not taken up, and why.
    pub held: Option<String>,
    /// Where its sink builds a generation beside what readers see, which they are not switched to yet.
    pub building: Option<Place>,
}

impl StoredMapping {
    /// A mapping as it is first stored: running, its first generation not built.
    pub fn new(
        name: impl Into<String>,
        entity: EntityName,
        table_oid: u32,
        identity: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            entity,
            table_oid,
            identity: identity.into(),
            generation: 1,
            built: 0,
            accepted: Lsn::ZERO,
            since: None,
            status: MappingStatus::Running,
            last_error: None,
            attempts: 0,
            purge: false,
            held: None,
            building: None,
        }
    }

    /// What is built once a change has made the next generation: all of it where nothing is to be read again. An
    /// older generation whose reading has not come to its end still has to be read, and so has one that readers were not
    /// switched to: where it was built is given up with it.
    #[must_use]
    pub fn built_by_change(&self, backfill: bool) -> i64 {
        let whole = self.built >= self.generation && self.building.is_none();
        if whole && !backfill { self.generation + 1 } else { self.built }
    }

    /// Whether rows were read for a generation before this one, to where readers were not switched to.
    #[must_use]
    pub fn gives_up_a_place(&self) -> bool {
        self.building.as_ref().is_some_and(|place| place.generation() < self.generation)
    }
}

/// How a mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingStatus {
    /// It follows the stream.
    Running,
    /// It fails and is tried again; the slot waits for it.
    Failing,
    /// It cannot run as it is (a refused revision, a table that cannot be published); the slot waits for it.
    Refused,
}

impl MappingStatus {
    /// The word in the schema and in `status`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Failing => "failing",
            Self::Refused => "refused",
        }
    }
}

impl Store {
    /// These tables were not published for a while, and what was changed of them meanwhile is not in the stream:
    /// their mappings become another generation, and their runs begin anew. One that is not built stays what it is, but
    /// where it is built beside what readers see: the next one begins in an empty place, without what was deleted
    /// meanwhile. What the slot still has of the time before is passed over: it would bring back what was deleted
    /// meanwhile. A table of another oid is another table, and left alone. Gives the mappings' names.
    pub async fn miss_changes(
        &self,
        client: &Client,
        tables: &[(EntityName, u32)],
        purge: bool,
    ) -> Result<Vec<String>, StateError> {
        let rebuild = "update anabranch.mapping as m \
                       set generation = case when m.built < m.generation and m.building is null \
                       then m.generation else m.generation + 1 end, purge = m.purge or $4, \
                       accepted = greatest(m.accepted, pg_current_wal_insert_lsn()), updated_at = now() \
                       from unnest($2::text[], $3::oid[]) as t (entity, oid) where m.installation = $1 \
                       and m.entity = t.entity and m.table_oid = t.oid and m.generation > 0 \
                       returning m.name, m.entity";
        let forget = "delete from anabranch.run where installation = $1 and entity = any($2) \
                      and scope is null and status <> 'cancelled'";
        let names: Vec<String> = tables.iter().map(|(entity, _)| entity.to_string()).collect();
        let oids: Vec<u32> = tables.iter().map(|(_, oid)| *oid).collect();
        let failed = StateError::query;
        atomically(client, async {
            let rows = client
                .query(rebuild, &[&self.installation, &names, &oids, &purge])
                .await
                .map_err(failed("note that changes were missed"))?;
            let entities: Vec<String> = rows.iter().map(|row| row.get(1)).collect();
            client
                .execute(forget, &[&self.installation, &entities])
                .await
                .map_err(failed("forget the backfills that missed changes"))?;
            Ok(rows.iter().map(|row| row.get(0)).collect())
        })
        .await
    }

    /// All mappings, by name.
    pub async fn mappings(&self, client: &Client) -> Result<Vec<StoredMapping>, StateError> {
        let query = "select name, entity, table_oid, identity::text, generation, built, accepted::text, status, last_error, \
                     attempts, purge, since::text, held, building from anabranch.mapping where installation = $1 order by name";
        let rows = client
            .query(query, &[&self.installation])
            .await
            .map_err(StateError::query("read the mappings"))?;
        rows.iter().map(mapping).collect()
    }

    /// Writes a mapping as a whole: a new one, or a new generation or revision of it. With a new generation an
    /// unfinished run of its whole table goes on without it, or is forgotten where it was for nobody else, in the
    /// same statement: what that has read was made by the old one. A cancelled table stays cancelled. What guests of
    /// earlier generations kept goes where the new one still has to be built.
    pub async fn save_mapping(&self, client: &Client, wanted: &StoredMapping) -> Result<(), StateError> {
        let query = "with outdated as (delete from anabranch.run as r using anabranch.mapping as m \
                     where m.installation = $1 and m.name = $2 and m.generation <> $6 \
                     and r.installation = $1 and r.mappings = array[$2::text] and r.scope is null \
                     and r.status not in ('complete', 'cancelled')), \
                     left_by as (update anabranch.run as r set mappings = array_remove(r.mappings, $2::text) \
                     from anabranch.mapping as m \
                     where m.installation = $1 and m.name = $2 and m.generation <> $6 \
                     and r.installation = $1 and $2 = any (r.mappings) and cardinality(r.mappings) > 1 \
                     and r.scope is null and r.status not in ('complete', 'cancelled')), \
                     retired as (delete from anabranch.guest_state where installation = $1 and mapping = $2::text \
                     and generation < $6 and $7 < $6) \
                     insert into anabranch.mapping (installation, name, entity, table_oid, identity, generation, \
                     built, accepted, status, last_error, attempts, purge, since, held, building) \
                     values ($1, $2, $3, $4, $5::text::jsonb, $6, $7, $8::text::pg_lsn, $9, $10, $11, $12, $13::text::pg_lsn, $14, \
                     $15) \
                     on conflict (installation, name) do update set entity = excluded.entity, \
                     table_oid = excluded.table_oid, identity = excluded.identity, \
                     generation = excluded.generation, built = excluded.built, \
                     accepted = excluded.accepted, status = excluded.status, last_error = excluded.last_error, \
                     attempts = excluded.attempts, purge = excluded.purge, since = excluded.since, held = excluded.held, \
                     building = excluded.building, updated_at = now()";
        client
            .execute(
                query,
                &[
                    &self.installation,
                    &wanted.name,
                    &wanted.entity.to_string(),
                    &wanted.table_oid,
                    &wanted.identity,
                    &wanted.generation,
                    &wanted.built,
                    &wanted.accepted.to_string(),
                    &wanted.status.as_str(),
                    &wanted.last_error,
                    &wanted.attempts,
                    &wanted.purge,
                    &wanted.since.map(|since| since.to_string()),
                    &wanted.held,
                    &wanted.building.as_ref().map(Place::as_str),
                ],
            )
            .await
            .map_err(StateError::query("save a mapping"))?;
        Ok(())
    }

    /// Notes how a mapping is.
    pub async fn save_mapping_status(
        &self,
        client: &Client,
        name: &str,
        status: MappingStatus,
        last_error: Option<&str>,
        attempts: i32,
    ) -> Result<(), StateError> {
        let query = "update anabranch.mapping set status = $3, last_error = $4, attempts = $5, \
                     updated_at = now() where installation = $1 and name = $2";
        client
            .execute(query, &[&self.installation, &name, &status.as_str(), &last_error, &attempts])
            .await
            .map_err(StateError::query("save a mapping's status"))?;
        Ok(())
    }

    /// Notes that the purge that was due is done, or cannot be.
    pub async fn purged(&self, client: &Client, mapping: &str) -> Result<(), StateError> {
        let query = "update anabranch.mapping set purge = false, updated_at = now() \
                     where installation = $1 and name = $2";
        client
            .execute(query, &[&self.installation, &mapping])
            .await
            .map_err(StateError::query("note a purge"))?;
        Ok(())
    }

    /// Notes where a mapping is being built beside what readers see, or that it is not any more. A
    /// generation that has begun in an empty place needs no purge.
    pub async fn save_building(
        &self,
        client: &Client,
        mapping: &str,
        building: Option<&Place>,
    ) -> Result<(), StateError> {
        let query = "update anabranch.mapping set building = $3::text, purge = purge \
                     and generation::text is distinct from split_part($3::text, '-', 1), updated_at = now() \
                     where installation = $1 and name = $2";
        client
            .execute(query, &[&self.installation, &mapping, &building.map(Place::as_str)])
            .await
            .map_err(StateError::query("note where a mapping is built"))?;
        Ok(())
    }

    /// Forgets a mapping that is no longer in the config, with what it has in quarantine, in the runs of its table as well: one of this name that
    /// comes later has read nothing of what they have.
    pub async fn forget_mapping(&self, client: &Client, name: &str) -> Result<(), StateError> {
        let query = "with ended as (delete from anabranch.run where installation = $1 \
                     and mappings = array[$2::text] and status not in ('complete', 'cancelled')), \
                     left_by as (update anabranch.run set mappings = array_remove(mappings, $2::text) \
                     where installation = $1 and $2 = any (mappings) and cardinality(mappings) > 1), \
                     kept as (delete from anabranch.guest_state where installation = $1 and mapping = $2::text), \
                     retired as (delete from anabranch.quarantine where installation = $1 and mapping = $2::text) \
                     delete from anabranch.mapping where installation = $1 and name = $2";
        client
            .execute(query, &[&self.installation, &name])
            .await
            .map_err(StateError::query("forget a mapping"))?;
        Ok(())
    }
}

fn mapping(row: &Row) -> Result<StoredMapping, StateError> {
    let all = [MappingStatus::Running, MappingStatus::Failing, MappingStatus::Refused];
    let word: &str = row.get(7);
    let status = all.into_iter().find(|status| status.as_str() == word);
    Ok(StoredMapping {
        name: row.get(0),
        entity: entity("mapping.entity", row, 1)?,
        table_oid: row.get(2),
        identity: row.get(3),
        generation: row.get(4),
        built: row.get(5),
        accepted: lsn("mapping.accepted", row, 6)?,
        status: status.ok_or_else(|| malformed("mapping.status", word))?,
        last_error: row.get(8),
        attempts: row.get(9),
        purge: row.get(10),
        since: row.get::<_, Option<String>>(11).map(|_| lsn("mapping.since", row, 11)).transpose()?,
        held: row.get(12),
        building: row
            .get::<_, Option<&str>>(13)
            .map(|text| text.parse().map_err(|_| malformed("mapping.building", text)))
            .transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_readers_see_whole_needs_no_reading_for_the_next_generation() {
        let mapping = |built: i64, building: Option<Place>| StoredMapping {
            generation: 2,
            built,
            building,
            ..StoredMapping::new("m", EntityName::new("public", "t"), 7, "{}")
        };
        let place = || Some(Place::new(2, 1));
        assert_eq!(mapping(2, None).built_by_change(false), 3);
        assert_eq!(mapping(2, None).built_by_change(true), 2);
        assert_eq!(mapping(1, None).built_by_change(false), 1);
        assert_eq!(mapping(1, place()).built_by_change(false), 1);
        assert_eq!(mapping(2, place()).built_by_change(false), 2, "complete, and not switched to");
        assert!(!mapping(2, place()).gives_up_a_place());
        assert!(StoredMapping { generation: 3, ..mapping(2, place()) }.gives_up_a_place());
    }
}
