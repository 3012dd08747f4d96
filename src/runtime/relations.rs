//! Relation messages, completed from the catalogue, and what changed since the last one.

use std::{collections::HashMap, sync::Arc};

use crate::{
    model::Relation,
    pgoutput::RawRelation,
    postgres::{Catalog, Client, ResolvedRelation, StreamRelation},
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
    known: HashMap<u32, ResolvedRelation>,
}

impl Relations {
    pub(super) fn new(client: Client, publication: &str) -> Self {
        Self { client, catalog: Catalog::new(publication), known: HashMap::new() }
    }

    /// Whether the table of a Relation message is there today, under the same name.
    pub(super) async fn is_present(&mut self, raw: &RawRelation) -> Result<bool, TermError> {
        let tables = self.catalog.tables(&self.client, std::slice::from_ref(&raw.name)).await?;
        Ok(tables.iter().any(|table| table.oid == raw.oid))
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
        let resolved = self.catalog.resolve(&self.client, &described).await?;
        let relation = Arc::clone(&resolved.relation);
        let change = self
            .known
            .get(&raw.oid)
            .filter(|before| before.relation != relation)
            .map(|before| RelationChange { key_changed: resolved.key_differs(before) });
        self.known.insert(raw.oid, resolved);
        Ok((relation, change))
    }
}
