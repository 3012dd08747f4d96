//! Relation messages, completed from the catalogue, and what changed since the last one.
//!
//! The stream tells a commit before anybody sees it, so the catalogue may be behind what is streamed. Guarantees that it
//! is asked again, once it shows the transaction that a message came in, where its answer could be another one then.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tracing::warn;

use crate::{
    backfill::KeyColumn,
    model::{EntityName, Relation, Xid},
    pgoutput::RawRelation,
    postgres::{Catalog, Client, ResolvedRelation, StreamRelation},
};

use super::{
    answer::{ANSWER_LIMIT, answered},
    error::TermError,
};

/// After how long it is told that a commit is waited for.
const TELL_AFTER: Duration = Duration::from_secs(1);

/// What a new description of a table changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RelationChange {
    /// Document ids mean something else now.
    pub(super) key_changed: bool,
}

/// The tables as the stream last described them.
#[derive(Debug)]
pub(super) struct Relations {
    client: Client,
    catalog: Catalog,
    known: HashMap<u32, ResolvedRelation>,
    /// The keys of tables that the stream has not described yet.
    keys: HashMap<u32, Vec<KeyColumn>>,
    /// The mapped tables that come under other names.
    away: HashSet<u32>,
    /// The table that the stream described last.
    pub(super) last: Option<EntityName>,
}

impl Relations {
    pub(super) fn new(client: Client, publication: &str) -> Self {
        Self {
            client,
            catalog: Catalog::new(publication),
            known: HashMap::new(),
            keys: HashMap::new(),
            away: HashSet::new(),
            last: None,
        }
    }

    /// The documents of a table are numbered by this key, as far as the stream has not described it yet.
    pub(super) fn numbered_by(&mut self, oid: u32, key: &[KeyColumn]) {
        if !self.known.contains_key(&oid) {
            self.keys.entry(oid).or_insert_with(|| key.to_vec());
        }
    }

    /// A table has another key than was known.
    pub(super) fn forget(&mut self, oid: u32) {
        self.known.remove(&oid);
        self.keys.remove(&oid);
    }

    /// Whether the table of a Relation message is there today, under the same name. `xid` is the transaction that the
    /// message came in, and may have made the table.
    pub(super) async fn is_present(
        &mut self,
        raw: &RawRelation,
        xid: Option<Xid>,
    ) -> Result<bool, TermError> {
        if self.is_found(raw).await? {
            return Ok(true);
        }
        self.until_seen(raw, xid).await?;
        self.is_found(raw).await
    }

    async fn is_found(&mut self, raw: &RawRelation) -> Result<bool, TermError> {
        let name = self.catalog.name_of(&self.client, raw.oid);
        Ok(answered("what a table is", ANSWER_LIMIT, name).await?.as_ref() == Some(&raw.name))
    }

    /// Waits until the catalogue shows what `xid` did, which the stream has shown committed.
    async fn until_seen(&self, raw: &RawRelation, xid: Option<Xid>) -> Result<(), TermError> {
        let Some(xid) = xid else { return Ok(()) };
        let seen = async |limit| {
            let seen = self.client.comes_to_see(xid, limit);
            answered("what is committed", limit + ANSWER_LIMIT, seen).await
        };
        if seen(TELL_AFTER).await? {
            return Ok(());
        }
        warn!(
            entity = %raw.name,
            xid,
            "a transaction that changed the table is in the WAL and not visible yet, as while its commit waits for a \
             synchronous standby: the stream waits for it, since the catalogue tells only then what its rows mean"
        );
        if seen(ANSWER_LIMIT).await? {
            return Ok(());
        }
        Err(TermError::Unseen { entity: raw.name.clone(), xid, limit: ANSWER_LIMIT })
    }

    async fn ask(&mut self, described: &StreamRelation) -> Result<ResolvedRelation, TermError> {
        let resolved = self.catalog.resolve(&self.client, described);
        answered("what a table is", ANSWER_LIMIT, resolved).await
    }

    /// A table came under a name that is not the mapped one: whether it had not since it came under that.
    pub(super) fn goes_away(&mut self, oid: u32) -> bool {
        self.away.insert(oid)
    }

    /// Completes a Relation message that came in the transaction `xid`; also tells what it changes, where it differs
    /// from the last one.
    pub(super) async fn resolve(
        &mut self,
        raw: &RawRelation,
        xid: Option<Xid>,
    ) -> Result<(Arc<Relation>, Option<RelationChange>), TermError> {
        let columns = raw.columns.iter();
        let described = StreamRelation {
            oid: raw.oid,
            name: raw.name.clone(),
            replica_identity: raw.replica_identity,
            columns: columns.map(|column| (column.name.clone(), column.type_oid, column.identity)).collect(),
        };
        self.last = Some(raw.name.clone());
        self.away.remove(&raw.oid);
        let mut resolved = self.ask(&described).await?;
        if !resolved.settled {
            self.until_seen(raw, xid).await?;
            resolved = self.ask(&described).await?;
        }
        let relation = Arc::clone(&resolved.relation);
        let change = match (self.known.get(&raw.oid), self.keys.remove(&raw.oid)) {
            (Some(before), _) => (before.relation != relation)
                .then(|| RelationChange { key_changed: resolved.key_differs(before) }),
            (None, Some(key)) => is_other(&resolved, &key).then_some(RelationChange { key_changed: true }),
            (None, None) => None,
        };
        self.known.insert(raw.oid, resolved);
        Ok((relation, change))
    }
}

/// Whether a description has another key than this. Not so where the catalogue is ahead of the description: what
/// the present key is will be described after it.
fn is_other(resolved: &ResolvedRelation, key: &[KeyColumn]) -> bool {
    let types = resolved.relation.key.iter().map(|&at| resolved.relation.columns[at].type_oid);
    let described = resolved.key_numbers.iter().copied().zip(types);
    !resolved.key_numbers.is_empty()
        && !described.eq(key.iter().map(|column| (column.attribute, column.type_oid)))
}
