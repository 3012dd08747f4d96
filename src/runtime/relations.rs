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
    postgres::{Catalog, Client, ResolvedRelation, Sight, StreamRelation},
};

use super::{
    answer::{ANSWER_LIMIT, answered},
    error::TermError,
};

/// After how long it is told that a commit is waited for.
const TELL_AFTER: Duration = Duration::from_secs(1);

/// A Relation message with its meaning.
#[derive(Debug)]
pub(super) struct Described {
    pub(super) relation: Arc<Relation>,
    /// Whether it is known what its rows are told apart by. Not so where neither the message nor the catalogue, which is
    /// ahead of it, nor what was known before says that.
    pub(super) is_told: bool,
    /// What it changes, where it differs from the last one.
    pub(super) change: Option<RelationChange>,
}

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
    /// What the key's columns were called when documents were last numbered by them.
    names: HashMap<u32, Vec<KeyColumn>>,
    /// The tables that are built again since nothing told their key; their rows are in that.
    untold: HashSet<u32>,
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
            names: HashMap::new(),
            untold: HashSet::new(),
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

    /// The columns of a table's key had these names when it was last read: messages of that time have them.
    pub(super) fn was_named(&mut self, oid: u32, key: &[KeyColumn]) {
        self.names.insert(oid, key.to_vec());
    }

    /// A table has another key than was known.
    pub(super) fn forget(&mut self, oid: u32) {
        self.known.remove(&oid);
        self.keys.remove(&oid);
        self.names.remove(&oid);
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
        // A schema may have got another name, which takes no lock on its tables.
        self.until_seen(raw, xid, None).await?;
        self.is_found(raw).await
    }

    async fn is_found(&mut self, raw: &RawRelation) -> Result<bool, TermError> {
        let name = self.catalog.name_of(&self.client, raw.oid);
        Ok(answered("what a table is", ANSWER_LIMIT, name).await?.as_ref() == Some(&raw.name))
    }

    /// Waits until the catalogue shows what `xid` did, which the stream has shown committed; not where it has only changed
    /// rows of a table.
    async fn until_seen(
        &self,
        raw: &RawRelation,
        xid: Option<Xid>,
        table: Option<u32>,
    ) -> Result<(), TermError> {
        let Some(xid) = xid else { return Ok(()) };
        let sight = async |limit| {
            let sight = self.client.sight_of(xid, table, limit);
            answered("what is committed", limit + ANSWER_LIMIT, sight).await
        };
        if sight(TELL_AFTER).await? != Sight::Unseen {
            return Ok(());
        }
        warn!(
            entity = %raw.name,
            xid,
            "a transaction that may have altered the table (its locks are those of an alter, a truncate or a lock table) is in \
             the WAL and not visible yet, as while its commit waits for a synchronous standby: the stream waits for it, since \
             the catalogue tells only then what its rows mean"
        );
        if sight(ANSWER_LIMIT).await? != Sight::Unseen {
            return Ok(());
        }
        Err(TermError::Unseen { entity: raw.name.clone(), xid, limit: ANSWER_LIMIT })
    }

    async fn ask(&mut self, described: &StreamRelation) -> Result<ResolvedRelation, TermError> {
        let earlier = self.names.get(&described.oid).map_or(&[][..], Vec::as_slice);
        let resolved = self.catalog.resolve(&self.client, described, earlier);
        answered("what a table is", ANSWER_LIMIT, resolved).await
    }

    /// A table came under a name that is not the mapped one: whether it had not since it came under that.
    pub(super) fn goes_away(&mut self, oid: u32) -> bool {
        self.away.insert(oid)
    }

    /// Completes a Relation message that came in the transaction `xid`.
    pub(super) async fn resolve(
        &mut self,
        raw: &RawRelation,
        xid: Option<Xid>,
    ) -> Result<Described, TermError> {
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
            self.until_seen(raw, xid, Some(raw.oid)).await?;
            resolved = self.ask(&described).await?;
        }
        let relation = Arc::clone(&resolved.relation);
        if !resolved.is_told {
            let change = self.untold.insert(raw.oid).then_some(RelationChange { key_changed: true });
            return Ok(Described { relation, is_told: false, change });
        }
        self.untold.remove(&raw.oid);
        let change = match (self.known.get(&raw.oid), self.keys.remove(&raw.oid)) {
            (Some(before), _) => (before.relation != relation)
                .then(|| RelationChange { key_changed: resolved.key_differs(before) }),
            (None, Some(key)) => is_other(&resolved, &key).then_some(RelationChange { key_changed: true }),
            (None, None) => None,
        };
        if let Some(key) = resolved.key_columns() {
            self.names.insert(raw.oid, key);
        }
        self.known.insert(raw.oid, resolved);
        Ok(Described { relation, is_told: true, change })
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
