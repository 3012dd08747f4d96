//! The rows of `anabranch.quarantine`: what a mapping could not process and went past, one entry a row.
//!
//! An entry is there before the position moves past its change, and goes once a later change of its row (or the same,
//! tried again) was accepted. Which of two is later is decided by generation, commit and place in it, so that nothing
//! that is streamed again closes or overwrites what came after it. Only the lane of a mapping writes entries, and only
//! while its term leads, so that one that was overtaken neither adds nor closes any; anybody may drop them.

use std::{borrow::Cow, collections::BTreeSet};

use serde::Serialize;
use tokio_postgres::{Client, Row};

use crate::{
    model::{EntityName, Scope},
    pipeline::LaneOrder,
};

use super::{
    KEYS_OF_A_REQUEST, StateError, Store, Target,
    store::{atomically, entity, json, lsn, malformed},
};

/// What of the way of a change failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum QuarantineStage {
    /// The transform, or what makes documents of its answers.
    Transform,
    /// The sink did not take a document.
    Delivery,
}

/// A document that a sink did not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedDocument {
    /// Where it was to go.
    pub destination: String,
    /// Its id.
    pub id: String,
    /// The beginning of its body; none for a delete.
    pub body: Option<String>,
}

/// A change to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEntry {
    /// The document id of its row; where it has none, a text that no other change has.
    pub row: String,
    /// The texts of its key's columns, in key order; none where the row has no whole key.
    pub key: Option<Vec<String>>,
    /// `insert`, `update`, `delete` or `read`.
    pub operation: &'static str,
    /// `stream` or `backfill`.
    pub origin: &'static str,
    /// Its place in the order of its mapping.
    pub order: LaneOrder,
    /// When it was committed: microseconds since 1970-01-01 UTC; none for a row of a backfill.
    pub committed: Option<i64>,
    /// What failed.
    pub stage: QuarantineStage,
    /// The transform's revision.
    pub plugin: String,
    /// The sink's name.
    pub sink: String,
    /// A short stable word.
    pub code: String,
    /// For people. Never has a secret.
    pub reason: String,
    /// The row's values: JSON.
    pub payload: String,
    /// Columns of which the payload has only the beginning.
    pub cut: Vec<String>,
    /// What the sink did not take.
    pub document: Option<RejectedDocument>,
}

/// An entry as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantineEntry {
    /// Its number.
    pub id: i64,
    /// Whose it is.
    pub mapping: String,
    /// The mapping's table.
    pub entity: EntityName,
    /// See [`NewEntry::row`].
    pub row: String,
    /// See [`NewEntry::key`].
    pub key: Option<Vec<String>>,
    /// See [`NewEntry::operation`].
    pub operation: String,
    /// See [`NewEntry::origin`].
    pub origin: String,
    /// Its place in the order of its mapping.
    pub order: LaneOrder,
    /// When it was committed: RFC 3339; none for a row of a backfill.
    pub committed: Option<String>,
    /// `transform` or `delivery`.
    pub stage: String,
    /// The transform's revision.
    pub plugin: String,
    /// The sink's name.
    pub sink: String,
    /// A short stable word.
    pub code: String,
    /// For people.
    pub reason: String,
    /// The row's values: JSON.
    pub payload: String,
    /// Columns of which the payload has only the beginning.
    pub cut: Vec<String>,
    /// What the sink did not take.
    pub document: Option<RejectedDocument>,
    /// How often changes of the row have failed since it is here.
    pub attempts: i32,
    /// Since when it is here: RFC 3339.
    pub first: String,
    /// When the last of them failed.
    pub last: String,
    /// Whether a replay of it is asked for, or under way.
    pub replaying: bool,
}

/// Which entries are meant; what is not said does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuarantineFilter {
    /// Only these numbers; empty: all.
    pub ids: Vec<i64>,
    /// Only of this mapping.
    pub mapping: Option<String>,
    /// Only of this table.
    pub entity: Option<EntityName>,
    /// Only of the row with this document id.
    pub row: Option<String>,
    /// Only with this code.
    pub code: Option<String>,
}

/// What became of entries that were to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// They are, and so many rows have an entry now.
    Rows(usize),
    /// None of them is, for lack of room.
    Full {
        /// How many other rows have an entry.
        others: usize,
    },
    /// None of them is: another term leads.
    Overtaken,
}

/// An entry on its way. Its texts have no U+0000, which a text of Postgres cannot have.
#[derive(Serialize)]
struct Written<'a> {
    row: Cow<'a, str>,
    key: Option<&'a [String]>,
    operation: &'a str,
    origin: &'a str,
    generation: i64,
    commit_lsn: String,
    sequence: i64,
    committed: Option<i64>,
    stage: QuarantineStage,
    plugin: Cow<'a, str>,
    sink: Cow<'a, str>,
    code: Cow<'a, str>,
    reason: Cow<'a, str>,
    payload: &'a str,
    cut: &'a [String],
    destination: Option<Cow<'a, str>>,
    document: Option<Cow<'a, str>>,
    body: Option<Cow<'a, str>>,
}

#[derive(Serialize)]
struct Passed<'a> {
    row: &'a str,
    generation: i64,
    commit_lsn: String,
    sequence: i64,
}

/// Which entries a filter means: `$2` to `$6`.
const MEANT: &str = "q.installation = $1 and (cardinality($2::bigint[]) = 0 or q.id = any ($2)) \
     and q.mapping = coalesce($3, q.mapping) and q.entity = coalesce($4, q.entity) \
     and q.row_id = coalesce($5, q.row_id) and q.code = coalesce($6, q.code)";

impl Store {
    /// Keeps changes of a mapping, durably, while `term` leads, unless more than `limit` of its rows would be kept then.
    /// A change that is kept already stays the same entry; a later one of its row takes its place.
    pub async fn quarantine(
        &self,
        client: &Client,
        term: i64,
        (mapping, entity): (&str, &EntityName),
        entries: &[NewEntry],
        limit: usize,
    ) -> Result<Kept, StateError> {
        let mut latest: Vec<&NewEntry> = Vec::new();
        for entry in entries {
            match latest.iter_mut().find(|other| other.row == entry.row) {
                Some(other) if other.order <= entry.order => *other = entry,
                Some(_) => {}
                None => latest.push(entry),
            }
        }
        let rows: Vec<&str> = latest.iter().map(|entry| entry.row.as_str()).collect();
        let count = "select count(*) from anabranch.quarantine \
                     where installation = $1 and mapping = $2 and not row_id = any ($3)";
        let query = "insert into anabranch.quarantine as old (installation, mapping, entity, row_id, key, operation, \
                     origin, generation, commit_lsn, sequence, committed_at, stage, plugin, sink, code, reason, \
                     payload, cut, destination, document_id, document) \
                     select $1, $2, $3, n.row, n.key, n.operation, n.origin, n.generation, n.commit_lsn::pg_lsn, \
                     n.sequence, 'epoch'::timestamptz + make_interval(secs => n.committed / 1000000.0), n.stage, \
                     n.plugin, n.sink, n.code, n.reason, n.payload::json, \
                     array(select jsonb_array_elements_text(n.cut)), n.destination, n.document, n.body \
                     from json_to_recordset($4::text::json) as n (row text, key jsonb, operation text, origin text, \
                     generation bigint, commit_lsn text, sequence bigint, committed bigint, stage text, plugin text, \
                     sink text, code text, reason text, payload text, cut jsonb, destination text, document text, \
                     body text) \
                     on conflict (installation, mapping, hashtextextended(row_id, 0), hashtextextended(row_id, 1)) \
                     do update set key = excluded.key, operation = excluded.operation, origin = excluded.origin, \
                     generation = excluded.generation, commit_lsn = excluded.commit_lsn, \
                     sequence = excluded.sequence, committed_at = excluded.committed_at, stage = excluded.stage, \
                     plugin = excluded.plugin, sink = excluded.sink, code = excluded.code, \
                     reason = excluded.reason, payload = excluded.payload, cut = excluded.cut, \
                     destination = excluded.destination, document_id = excluded.document_id, \
                     document = excluded.document, attempts = old.attempts + 1, last_at = now() \
                     where (old.generation, old.commit_lsn, old.sequence) \
                     <= (excluded.generation, excluded.commit_lsn, excluded.sequence)";
        let written: Vec<Written<'_>> = latest.iter().map(|entry| Written::of(entry)).collect();
        let written = json("write entries of the quarantine", &written)?;
        let kept = self.led(client, term, async {
            let row = client.query_one(count, &[&self.installation, &mapping, &rows]).await;
            let row = row.map_err(StateError::query("count the quarantine"))?;
            let others = usize::try_from(row.get::<_, i64>(0)).unwrap_or(usize::MAX);
            if others.saturating_add(rows.len()) > limit {
                return Ok(Kept::Full { others });
            }
            client
                .execute(query, &[&self.installation, &mapping, &entity.to_string(), &written])
                .await
                .map_err(StateError::query("keep what cannot be processed"))?;
            self.notify(client).await?;
            Ok(Kept::Rows(others + rows.len()))
        });
        Ok(kept.await?.unwrap_or(Kept::Overtaken))
    }

    /// Does something in one transaction, where `term` leads: until its end no other one begins. Nothing, where another
    /// leads.
    async fn led<T>(
        &self,
        client: &Client,
        term: i64,
        statements: impl Future<Output = Result<T, StateError>>,
    ) -> Result<Option<T>, StateError> {
        atomically(client, async {
            if !self.leads(client, term).await? {
                return Ok(None);
            }
            statements.await.map(Some)
        })
        .await
    }

    /// Lets go of entries whose rows have a later change now that was accepted, while `term` leads. Whether it does.
    pub async fn release(
        &self,
        client: &Client,
        term: i64,
        mapping: &str,
        passed: &[(String, LaneOrder)],
    ) -> Result<bool, StateError> {
        let query = "delete from anabranch.quarantine as q using json_to_recordset($3::text::json) \
                     as n (row text, generation bigint, commit_lsn text, sequence bigint) \
                     where q.installation = $1 and q.mapping = $2 and q.row_id = n.row \
                     and (q.generation, q.commit_lsn, q.sequence) <= (n.generation, n.commit_lsn::pg_lsn, n.sequence)";
        let passed: Vec<Passed<'_>> = passed
            .iter()
            .map(|(row, order)| Passed {
                row,
                generation: order.generation,
                commit_lsn: order.commit_lsn.to_string(),
                sequence: order.sequence,
            })
            .collect();
        let passed = json("write rows of the quarantine", &passed)?;
        let released = self.led(client, term, async {
            client
                .execute(query, &[&self.installation, &mapping, &passed])
                .await
                .map_err(StateError::query("release from the quarantine"))?;
            self.notify(client).await
        });
        Ok(released.await?.is_some())
    }

    /// Lets go of the entries of generations before this one, while `term` leads: the destination was emptied for it,
    /// and every row that there is will be read. Whether it does.
    pub async fn release_before(
        &self,
        client: &Client,
        term: i64,
        mapping: &str,
        generation: i64,
    ) -> Result<bool, StateError> {
        let query = "delete from anabranch.quarantine \
                     where installation = $1 and mapping = $2 and generation < $3";
        let released = self.led(client, term, async {
            client
                .execute(query, &[&self.installation, &mapping, &generation])
                .await
                .map_err(StateError::query("release an older generation from the quarantine"))?;
            self.notify(client).await
        });
        Ok(released.await?.is_some())
    }

    /// The rows that have an entry, by mapping.
    pub async fn quarantined_rows(
        &self,
        client: &Client,
        mapping: Option<&str>,
    ) -> Result<Vec<(String, String, LaneOrder)>, StateError> {
        let query = "select mapping, row_id, generation, commit_lsn::text, sequence from anabranch.quarantine \
                     where installation = $1 and mapping = coalesce($2, mapping)";
        let rows = client
            .query(query, &[&self.installation, &mapping])
            .await
            .map_err(StateError::query("read the rows in quarantine"))?;
        rows.iter().map(|row| Ok((row.get(0), row.get(1), order(row, 2)?))).collect()
    }

    /// How many rows have an entry, by mapping; those without any are left out.
    pub async fn quarantine_counts(&self, client: &Client) -> Result<Vec<(String, u64)>, StateError> {
        let query = "select mapping, count(*) from anabranch.quarantine where installation = $1 \
                     group by mapping order by mapping";
        let rows = client
            .query(query, &[&self.installation])
            .await
            .map_err(StateError::query("count the quarantine"))?;
        let count = |row: &Row| u64::try_from(row.get::<_, i64>(1)).unwrap_or(0);
        Ok(rows.iter().map(|row| (row.get(0), count(row))).collect())
    }

    /// The entries that a filter means, the oldest first, and how many more there are.
    pub async fn quarantine_entries(
        &self,
        client: &Client,
        filter: &QuarantineFilter,
        limit: Option<i64>,
    ) -> Result<(Vec<QuarantineEntry>, u64), StateError> {
        // What is asked for again, once for all entries.
        let query = format!(
            "with asked as (select r.kind, r.target, k.key from anabranch.request as r, \
             jsonb_array_elements(r.scope -> 'keys') as k (key) where r.installation = $1 and r.scope ? 'keys'), \
             reading as (select r.mappings, k.key from anabranch.run as r, \
             jsonb_array_elements(r.scope -> 'keys') as k (key) where r.installation = $1 and r.scope ? 'keys' \
             and r.status not in ('complete', 'cancelled')) \
             select q.id, q.mapping, q.entity, q.row_id, \
             case when q.key is null then null else array(select jsonb_array_elements_text(q.key)) end, \
             q.operation, q.origin, q.generation, q.commit_lsn::text, q.sequence, \
             to_char(q.committed_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), q.stage, q.plugin, \
             q.sink, q.code, q.reason, q.payload::text, q.cut, q.destination, q.document_id, q.document, q.attempts, \
             to_char(q.first_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), \
             to_char(q.last_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), \
             exists (select from asked as a where a.key = q.key \
             and ((a.kind = 'mapping' and a.target = q.mapping) or (a.kind = 'table' and a.target = q.entity))) \
             or exists (select from reading as r where r.key = q.key and q.mapping = any (r.mappings)), \
             count(*) over () \
             from anabranch.quarantine as q where {MEANT} order by q.id limit $7"
        );
        let entity = filter.entity.as_ref().map(ToString::to_string);
        let rows = client
            .query(
                query.as_str(),
                &[
                    &self.installation,
                    &filter.ids,
                    &filter.mapping,
                    &entity,
                    &filter.row,
                    &filter.code,
                    &limit,
                ],
            )
            .await
            .map_err(StateError::query("read the quarantine"))?;
        let all = rows.first().map_or(0, |row| row.get::<_, i64>(25));
        let entries: Vec<QuarantineEntry> = rows.iter().map(one).collect::<Result<_, _>>()?;
        let more = u64::try_from(all).unwrap_or(0).saturating_sub(entries.len() as u64);
        Ok((entries, more))
    }

    /// Has the rows of a mapping that are in quarantine read again, those that can be found by a key.
    pub async fn look_again(&self, client: &Client, mapping: &str) -> Result<(), StateError> {
        let filter = QuarantineFilter { mapping: Some(mapping.to_owned()), ..QuarantineFilter::default() };
        let (entries, _) = self.quarantine_entries(client, &filter, None).await?;
        let keys: BTreeSet<Vec<String>> = entries.into_iter().filter_map(|entry| entry.key).collect();
        self.read_again(client, mapping, keys).await
    }

    /// Asks for backfills of the rows of these keys, for one mapping.
    pub async fn read_again(
        &self,
        client: &Client,
        mapping: &str,
        keys: BTreeSet<Vec<String>>,
    ) -> Result<(), StateError> {
        if keys.is_empty() {
            return Ok(());
        }
        let keys: Vec<Vec<String>> = keys.into_iter().collect();
        let scopes: Vec<Option<Scope>> =
            keys.chunks(KEYS_OF_A_REQUEST).map(|keys| Some(Scope::Keys(keys.to_vec()))).collect();
        self.ask(client, &Target::Mapping(mapping.to_owned()), &scopes, false).await.map(drop)
    }

    /// Forgets the entries that a filter means; what their rows' documents are is not asked. Gives their numbers.
    pub async fn drop_quarantined(
        &self,
        client: &Client,
        filter: &QuarantineFilter,
    ) -> Result<Vec<i64>, StateError> {
        let query = format!("delete from anabranch.quarantine as q where {MEANT} returning q.id");
        let entity = filter.entity.as_ref().map(ToString::to_string);
        let rows = client
            .query(
                query.as_str(),
                &[&self.installation, &filter.ids, &filter.mapping, &entity, &filter.row, &filter.code],
            )
            .await
            .map_err(StateError::query("drop from the quarantine"))?;
        self.notify(client).await?;
        let mut ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        ids.sort_unstable();
        Ok(ids)
    }
}

impl<'a> Written<'a> {
    fn of(entry: &'a NewEntry) -> Self {
        let document = entry.document.as_ref();
        Self {
            row: storable(&entry.row),
            key: entry.key.as_deref(),
            operation: entry.operation,
            origin: entry.origin,
            generation: entry.order.generation,
            commit_lsn: entry.order.commit_lsn.to_string(),
            sequence: entry.order.sequence,
            committed: entry.committed,
            stage: entry.stage,
            plugin: storable(&entry.plugin),
            sink: storable(&entry.sink),
            code: storable(&entry.code),
            reason: storable(&entry.reason),
            payload: &entry.payload,
            cut: &entry.cut,
            destination: document.map(|document| storable(&document.destination)),
            document: document.map(|document| storable(&document.id)),
            body: document.and_then(|document| document.body.as_deref()).map(storable),
        }
    }
}

fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

fn order(row: &Row, first: usize) -> Result<LaneOrder, StateError> {
    Ok(LaneOrder {
        generation: row.get(first),
        commit_lsn: lsn("quarantine.commit_lsn", row, first + 1)?,
        sequence: row.get(first + 2),
    })
}

fn one(row: &Row) -> Result<QuarantineEntry, StateError> {
    let stage: String = row.get(11);
    if !["transform", "delivery"].contains(&stage.as_str()) {
        return Err(malformed("quarantine.stage", &stage));
    }
    let document = match (row.get(18), row.get(19)) {
        (Some(destination), Some(id)) => Some(RejectedDocument { destination, id, body: row.get(20) }),
        _ => None,
    };
    Ok(QuarantineEntry {
        id: row.get(0),
        mapping: row.get(1),
        entity: entity("quarantine.entity", row, 2)?,
        row: row.get(3),
        key: row.get(4),
        operation: row.get(5),
        origin: row.get(6),
        order: order(row, 7)?,
        committed: row.get(10),
        stage,
        plugin: row.get(12),
        sink: row.get(13),
        code: row.get(14),
        reason: row.get(15),
        payload: row.get(16),
        cut: row.get(17),
        document,
        attempts: row.get(21),
        first: row.get(22),
        last: row.get(23),
        replaying: row.get(24),
    })
}
