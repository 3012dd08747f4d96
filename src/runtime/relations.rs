//! Relation messages, completed from the catalogue, and what changed since the last one.

use std::{collections::HashMap, sync::Arc};

use crate::{
    model::Relation,
    pgoutput::RawRelation,
    postgres::{Catalog, Client, StreamRelation},
};

use super::error::TermError;

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
    known: HashMap<u32, Arc<Relation>>,
}

impl Relations {
    pub(super) fn new(client: Client, publication: &str) -> Self {
        Self { client, catalog: Catalog::new(publication), known: HashMap::new() }
    }

    /// Completes a Relation message; also tells what it changes, where it differs from the last one.
    pub(super) async fn resolve(
        &mut self,
        raw: &RawRelation,
    ) -> Result<(Arc<Relation>, Option<RelationChange>), TermError> {
        let columns = raw.columns.iter();
        let described = StreamRelation {
            oid: raw.oid,
            name: raw.name.clone(),
            replica_identity: raw.replica_identity,
            columns: columns.map(|column| (column.name.clone(), column.type_oid, column.identity)).collect(),
        };
        let relation = self.catalog.resolve(&self.client, &described).await?;
        let before = self.known.insert(raw.oid, Arc::clone(&relation));
        let change = before.filter(|before| *before != relation).map(|before| RelationChange {
            key_changed: !before.key_names().eq(relation.key_names())
                || !key_types(&before).eq(key_types(&relation)),
        });
        Ok((relation, change))
    }
}

fn key_types(relation: &Relation) -> impl Iterator<Item = u32> {
    relation.key.iter().map(|&at| relation.columns[at].type_oid)
}
