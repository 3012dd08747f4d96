//! The rows of `anabranch.guest_state`: what guests keep, by mapping and generation.

use tokio_postgres::Client;

use super::{StateError, Store};

/// A key, and what is under it from now on; none removes it.
pub type GuestWrite = (String, Option<Vec<u8>>);

impl Store {
    /// What the guests of a mapping's generation keep; none where another host leads. What those of earlier ones kept
    /// is forgotten; or, where `inherits` says that nothing was read again for this generation and it has kept nothing
    /// yet, it is its own from now on.
    ///
    /// # Errors
    /// The state schema.
    pub async fn guest_state(
        &self,
        client: &Client,
        term: i64,
        (mapping, generation): (&str, i64),
        inherits: bool,
    ) -> Result<Option<Vec<(String, Vec<u8>)>>, StateError> {
        let failed = StateError::query;
        self.while_leading(client, term, async {
            let inherit = "update anabranch.guest_state set generation = $3 \
                           where installation = $1 and mapping = $2 and generation = \
                           (select max(generation) from anabranch.guest_state \
                           where installation = $1 and mapping = $2 and generation <= $3) and generation < $3";
            if inherits {
                let inherited = client.execute(inherit, &[&self.installation, &mapping, &generation]).await;
                inherited.map_err(failed("take over the guests' state of the generation before"))?;
            }
            let retired = "delete from anabranch.guest_state \
                           where installation = $1 and mapping = $2 and generation < $3";
            let retired = client.execute(retired, &[&self.installation, &mapping, &generation]).await;
            retired.map_err(failed("forget the guests' state of earlier generations"))?;
            let query = "select key, value from anabranch.guest_state \
                         where installation = $1 and mapping = $2 and generation = $3";
            let rows = client.query(query, &[&self.installation, &mapping, &generation]).await;
            let rows = rows.map_err(failed("read a guest's state"))?;
            Ok(rows.into_iter().map(|row| (row.get(0), row.get(1))).collect())
        })
        .await
    }

    /// Does something in one transaction, unless another host leads by its end: then nothing was done.
    ///
    /// Who leads is asked last. What is done may wait for somebody, and meanwhile nothing of the installation may be
    /// locked, which every mapping's progress is written to.
    async fn while_leading<T>(
        &self,
        client: &Client,
        term: i64,
        statements: impl Future<Output = Result<T, StateError>>,
    ) -> Result<Option<T>, StateError> {
        let failed = StateError::query;
        client.batch_execute("begin").await.map_err(failed("begin a transaction"))?;
        let done = async {
            let done = statements.await?;
            // The next leader's term waits for this, or this finds it.
            Ok(self.leads(client, term).await?.then_some(done))
        };
        let done: Result<Option<T>, StateError> = done.await;
        let end = if matches!(done, Ok(Some(_))) { "commit" } else { "rollback" };
        let ended = client.batch_execute(end).await.map_err(failed("end a transaction"));
        // What went wrong first says more.
        let done = done?;
        ended.map(|()| done)
    }

    /// Writes what guests keep, all or nothing; whether this term still leads. Where another leads, nothing is written.
    ///
    /// # Errors
    /// The state schema. Then it is not known whether it was written.
    pub async fn write_guest_state(
        &self,
        client: &Client,
        term: i64,
        (mapping, generation): (&str, i64),
        writes: &[GuestWrite],
    ) -> Result<bool, StateError> {
        let kept = writes.iter().filter_map(|(key, value)| Some((key.as_str(), value.as_deref()?)));
        let (keys, values): (Vec<&str>, Vec<&[u8]>) = kept.unzip();
        let gone: Vec<&str> =
            writes.iter().filter(|(_, value)| value.is_none()).map(|(key, _)| key.as_str()).collect();
        let failed = StateError::query;
        let written = self.while_leading(client, term, async {
            let put = "insert into anabranch.guest_state (installation, mapping, generation, key, value) \
                       select $1, $2, $3, * from unnest($4::text[], $5::bytea[]) \
                       on conflict (installation, mapping, generation, key) do update set value = excluded.value";
            let put = client.execute(put, &[&self.installation, &mapping, &generation, &keys, &values]).await;
            put.map_err(failed("write a guest's state"))?;
            if !gone.is_empty() {
                let remove = "delete from anabranch.guest_state where installation = $1 and mapping = $2 \
                              and generation = $3 and key = any ($4)";
                let removed = client.execute(remove, &[&self.installation, &mapping, &generation, &gone]).await;
                removed.map_err(failed("remove from a guest's state"))?;
            }
            Ok(())
        });
        Ok(written.await?.is_some())
    }
}
