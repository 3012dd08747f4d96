//! Relation messages, completed from the catalogue, and what changed since the last one.

use std::{collections::HashMap, sync::Arc};

use crate::{
    model::{EntityName, Relation},
    pgoutput::RawRelation,
    postgres::{self, Catalog, Client, ResolvedRelation, StreamRelation},
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

    /// The oid of the table that has a name now.
    pub(super) async fn oid_of(&self, entity: &EntityName) -> Result<Option<u32>, TermError> {
        let query = "select c.oid from pg_class as c join pg_namespace as n on n.oid = c.relnamespace \
                     where n.nspname = $1 and c.relname = $2";
        let row = self.client.query_opt(query, &[&entity.schema, &entity.table]).await;
        Ok(row.map_err(postgres::Error::from)?.map(|row| row.get(0)))
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
