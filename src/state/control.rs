//! The rows of `anabranch.control`: which backfills are paused, and how fast they may read.

use tokio_postgres::{Client, Row};

use crate::model::EntityName;

use super::{
    StateError, Store,
    store::{atomically, malformed},
};

/// What holds for the backfills of a table, or of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredControl {
    /// The table; none: all of them together.
    pub entity: Option<EntityName>,
    /// Nothing more is read.
    pub paused: bool,
    /// Rows a second that are read at the most.
    pub rows_per_second: Option<u32>,
}

impl Store {
    /// What holds; nothing where nobody said anything.
    pub async fn controls(&self, client: &Client) -> Result<Vec<StoredControl>, StateError> {
        let query = "select entity, paused, rows_per_second from anabranch.control \
                     where installation = $1 order by entity";
        let rows = client
            .query(query, &[&self.installation])
            .await
            .map_err(StateError::query("read the controls"))?;
        rows.iter().map(control).collect()
    }

    /// Pauses the backfills of a table (none: all), or lets them go on; what another row says holds, too.
    pub async fn save_paused(
        &self,
        client: &Client,
        entity: Option<&EntityName>,
        paused: bool,
    ) -> Result<(), StateError> {
        let query = "insert into anabranch.control as old (installation, entity, paused) values ($1, $2, $3) \
                     on conflict (installation, entity) do update set paused = excluded.paused, updated_at = now()";
        let entity = name(entity);
        atomically(client, async {
            client
                .execute(query, &[&self.installation, &entity, &paused])
                .await
                .map_err(StateError::query("save a pause"))?;
            self.settle_controls(client).await
        })
        .await
    }

    /// Sets how many rows a second may be read of a table (none: of all together); without a rate, as many as
    /// can be.
    pub async fn save_rate(
        &self,
        client: &Client,
        entity: Option<&EntityName>,
        rows_per_second: Option<u32>,
    ) -> Result<(), StateError> {
        let query = "insert into anabranch.control as old (installation, entity, rows_per_second) \
                     values ($1, $2, $3) on conflict (installation, entity) do update \
                     set rows_per_second = excluded.rows_per_second, updated_at = now()";
        let rate = rows_per_second.map(|rate| i32::try_from(rate).unwrap_or(i32::MAX));
        let entity = name(entity);
        atomically(client, async {
            client
                .execute(query, &[&self.installation, &entity, &rate])
                .await
                .map_err(StateError::query("save a rate"))?;
            self.settle_controls(client).await
        })
        .await
    }

    async fn settle_controls(&self, client: &Client) -> Result<(), StateError> {
        let idle = "delete from anabranch.control \
                    where installation = $1 and not paused and rows_per_second is null";
        client.execute(idle, &[&self.installation]).await.map_err(StateError::query("tidy the controls"))?;
        self.notify(client).await
    }
}

/// All tables are the empty name, which no table has.
fn name(entity: Option<&EntityName>) -> String {
    entity.map(ToString::to_string).unwrap_or_default()
}

fn control(row: &Row) -> Result<StoredControl, StateError> {
    let entity: &str = row.get(0);
    let entity = (!entity.is_empty())
        .then(|| entity.parse().map_err(|_| malformed("control.entity", entity)))
        .transpose()?;
    Ok(StoredControl {
        entity,
        paused: row.get(1),
        rows_per_second: row.get::<_, Option<i32>>(2).and_then(|rate| u32::try_from(rate).ok()),
    })
}
