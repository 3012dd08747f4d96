//! The row of `anabranch.partitions`: the partitions of the mapped tables, as a term has taken them up.
//!
//! Only where the server is one whose connections do not learn of partitions by themselves. It is written after what
//! follows from another one is, so that none is forgotten by a crash.

use tokio_postgres::Client;

use super::{
    StateError, Store,
    store::{json, malformed},
};

/// A partition: its table, itself, and what tells how it came there.
pub type StoredPartition = (u32, u32, String);

impl Store {
    /// The partitions that were taken up; none before the first time.
    pub async fn partitions(&self, client: &Client) -> Result<Option<Vec<StoredPartition>>, StateError> {
        let query = "select known::text from anabranch.partitions where installation = $1";
        let row = client
            .query_opt(query, &[&self.installation])
            .await
            .map_err(StateError::query("read the partitions"))?;
        row.map(|row| {
            let text: &str = row.get(0);
            serde_json::from_str(text).map_err(|_| malformed("partitions.known", text))
        })
        .transpose()
    }

    /// Notes which partitions are taken up.
    pub async fn save_partitions(
        &self,
        client: &Client,
        known: &[StoredPartition],
    ) -> Result<(), StateError> {
        let query = "insert into anabranch.partitions (installation, known) values ($1, $2::text::jsonb) \
                     on conflict (installation) do update set known = excluded.known";
        client
            .execute(query, &[&self.installation, &json("write the partitions", &known)?])
            .await
            .map_err(StateError::query("save the partitions"))?;
        Ok(())
    }
}
