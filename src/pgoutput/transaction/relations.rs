//! The relations of one connection, by oid.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use super::{AssembleError, RawColumn, RawRelation};
use crate::{
    model::{EntityName, Relation, Xid},
    pgoutput::message::RelationMessage,
};

/// Oids come from the server, one a table: a multiplication spreads them well enough.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OidHasher(u64);

impl Hasher for OidHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, oid: u32) {
        self.0 = (self.0 ^ u64::from(oid)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }
}

/// What is known of one oid.
#[derive(Debug)]
pub(super) enum Known {
    /// Described, not yet defined.
    Pending(Described),
    /// Its rows are kept.
    Wanted {
        relation: Arc<Relation>,
        /// Its place in the batch that is being filled.
        index: Option<u32>,
    },
    /// Its rows are skipped.
    Ignored,
}

/// A relation whose rows are kept, and its place in the batch, to be filled in.
pub(super) type Found<'a> = (&'a Arc<Relation>, &'a mut Option<u32>);

/// A Relation message that waits for its definition.
#[derive(Debug)]
pub(super) struct Described {
    name: EntityName,
    columns: usize,
    /// What was valid before, to be kept when nothing changed.
    before: Option<(Arc<Relation>, Option<u32>)>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Relations {
    by_oid: HashMap<u32, Known, BuildHasherDefault<OidHasher>>,
}

impl Relations {
    /// Takes note of a Relation message; the definition before it is no longer valid.
    pub(super) fn describe(&mut self, message: &RelationMessage<'_>) -> RawRelation {
        let namespace = if message.namespace.is_empty() { "pg_catalog" } else { message.namespace };
        let name = EntityName::new(namespace, message.name);
        let columns = message.columns.iter().map(|column| RawColumn {
            name: column.name.to_owned(),
            type_oid: column.type_oid,
            type_modifier: column.type_modifier,
            identity: column.identity,
        });
        let columns: Vec<_> = columns.collect();
        let before = match self.by_oid.remove(&message.oid) {
            Some(Known::Wanted { relation, index }) => Some((relation, index)),
            Some(Known::Pending(described)) => described.before,
            Some(Known::Ignored) | None => None,
        };
        let described = Described { name: name.clone(), columns: columns.len(), before };
        self.by_oid.insert(message.oid, Known::Pending(described));
        RawRelation { oid: message.oid, name, replica_identity: message.replica_identity, columns }
    }

    /// Makes a definition valid for the rows that follow. One equal to the last changes nothing, so that a
    /// Relation message that is merely repeated does not make another version.
    pub(super) fn define(&mut self, relation: Arc<Relation>) -> Result<(), AssembleError> {
        let oid = relation.oid;
        let mut known = Known::Wanted { relation, index: None };
        if let (Some(Known::Pending(described)), Known::Wanted { relation, .. }) =
            (self.by_oid.remove(&oid), &known)
        {
            if described.columns != relation.columns.len() {
                let table = described.name.to_string();
                let defined = relation.columns.len();
                return Err(AssembleError::Definition { table, defined, described: described.columns });
            }
            if let Some((before, index)) = described.before.filter(|(before, _)| before == relation) {
                known = Known::Wanted { relation: before, index };
            }
        }
        self.by_oid.insert(oid, known);
        Ok(())
    }

    /// Makes rows of a table be skipped until its next Relation message.
    pub(super) fn ignore(&mut self, oid: u32) {
        self.by_oid.insert(oid, Known::Ignored);
    }

    /// What a row's table is; none when it is ignored.
    #[inline]
    pub(super) fn find(
        &mut self,
        oid: u32,
        message: &'static str,
        xid: Xid,
    ) -> Result<Option<Found<'_>>, AssembleError> {
        match self.by_oid.get_mut(&oid) {
            Some(Known::Wanted { relation, index }) => Ok(Some((relation, index))),
            Some(Known::Ignored) => Ok(None),
            Some(Known::Pending(described)) => {
                Err(AssembleError::Undefined { message, xid, table: described.name.to_string() })
            }
            None => Err(AssembleError::UnknownRelation { message, xid, oid }),
        }
    }

    /// Forgets the places in a batch that was taken.
    pub(super) fn forget_indexes(&mut self) {
        for known in self.by_oid.values_mut() {
            match known {
                Known::Wanted { index, .. } => *index = None,
                Known::Pending(Described { before: Some((_, index)), .. }) => *index = None,
                Known::Pending(_) | Known::Ignored => {}
            }
        }
    }
}
