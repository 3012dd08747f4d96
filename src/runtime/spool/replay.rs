//! A streamed transaction, from its messages to the lanes: kept until its commit, then read back page by page as if it
//! had come whole.
//!
//! A page is the step: between two of them the pump sees to everything else, and it reads only as long as the lanes
//! have room.

use std::time::Instant;

use super::{SpoolFault, Spooling};
use crate::{
    pgoutput::{
        Decoder, Handled,
        spool::{Page, Replay, Source, Taken},
    },
    runtime::{error::TermError, intake::Connection, metrics::Streamed, pump::Pump},
};

/// A committed transaction, as far as it was read back.
#[derive(Debug)]
pub(super) struct Replaying {
    replay: Replay,
    begun: bool,
    page: Option<Page>,
    decoder: Decoder,
}

impl Replaying {
    pub(super) fn new(replay: Replay) -> Self {
        Self { replay, begun: false, page: None, decoder: Decoder::new() }
    }

    fn fault(&self, problem: &dyn std::fmt::Display) -> TermError {
        TermError::Spool(SpoolFault::Replayed { xid: self.replay.xid(), problem: problem.to_string() })
    }
}

impl Spooling {
    /// The next page; none after the last.
    async fn next_page(&self, replaying: &mut Replaying) -> Result<Option<Page>, SpoolFault> {
        let xid = replaying.replay.xid();
        match replaying.replay.next_page() {
            None => Ok(None),
            Some(Source::Memory(page)) => Ok(Some(page)),
            Some(Source::File(extent)) => {
                let bytes = self.disk.read(xid, extent).await?;
                Ok(Some(Page::read(xid, &extent, bytes)?))
            }
        }
    }
}

impl Pump {
    /// What the spool made of a message that it did not leave to the assembler.
    pub(in crate::runtime) async fn streamed(
        &mut self,
        spooling: &mut Spooling,
        taken: Taken,
    ) -> Result<(), TermError> {
        let metrics = &self.observer.metrics;
        match taken {
            Taken::Plain | Taken::Kept => {}
            Taken::RolledBack => metrics.rolled_back(),
            Taken::Aborted(xid) => {
                metrics.streamed(Streamed::Aborted);
                spooling.disk.forget(xid);
            }
            Taken::Committed(replay) => {
                metrics.streamed(Streamed::Committed);
                let expected = spooling.disk.expect(replay.xid(), replay.file_length());
                expected.await.map_err(SpoolFault::from)?;
                spooling.begin(*replay);
            }
        }
        while let Some(write) = spooling.spool.spill() {
            let (bytes, made) = spooling.write(write).await?;
            metrics.spooled(bytes, made);
        }
        Ok(())
    }

    /// Hands out a page of the transaction that is being read back, or its end.
    pub(in crate::runtime) async fn replay(&mut self, connection: &mut Connection) -> Result<(), TermError> {
        // What the server has sent meanwhile waits: it is not silent.
        connection.reading_since = Instant::now();
        let Some(spooling) = &mut connection.spooling else { return Ok(()) };
        let Some(mut replaying) = spooling.replaying.take() else { return Ok(()) };
        if replaying.page.is_none() {
            replaying.page = spooling.next_page(&mut replaying).await?;
        }
        if !std::mem::replace(&mut replaying.begun, true) {
            connection.assembler.handle(replaying.replay.begin())?;
        }
        if replaying.page.is_none() {
            spooling.disk.forget(replaying.replay.xid());
            let newer = spooling.spool.newer_descriptions(&replaying.replay);
            let newer: Vec<_> = newer.map(<[u8]>::to_vec).collect();
            if let Handled::Committed(committed) = connection.assembler.handle(replaying.replay.commit())? {
                self.on_commit(connection, &committed);
            }
            return self.describe_again(connection, &mut replaying, &newer).await;
        }
        self.replay_page(connection, &mut replaying).await?;
        if let Some(spooling) = &mut connection.spooling {
            spooling.replaying = Some(replaying);
        }
        // A page from memory waits for nothing.
        tokio::task::yield_now().await;
        Ok(())
    }

    /// What follows a replay follows these descriptions, which came while its transaction was open.
    async fn describe_again(
        &mut self,
        connection: &mut Connection,
        replaying: &mut Replaying,
        newer: &[Vec<u8>],
    ) -> Result<(), TermError> {
        for record in newer {
            let message = match replaying.decoder.decode(record) {
                Ok(message) => message,
                Err(error) => return Err(replaying.fault(&error)),
            };
            if let Handled::Relation(raw) = connection.assembler.handle(message)? {
                self.on_relation(connection, raw).await?;
            }
        }
        Ok(())
    }

    async fn replay_page(
        &mut self,
        connection: &mut Connection,
        replaying: &mut Replaying,
    ) -> Result<(), TermError> {
        while self.may_read() {
            let Some(page) = &mut replaying.page else { break };
            let Some(record) = page.next_record().map_err(SpoolFault::from)? else {
                replaying.page = None;
                break;
            };
            if replaying.replay.repeats(record) {
                continue;
            }
            let handled = match replaying.decoder.decode(record) {
                Ok(message) => connection.assembler.handle(message),
                Err(error) => return Err(replaying.fault(&error)),
            };
            match handled {
                Ok(Handled::Relation(raw)) => self.on_relation(connection, raw).await?,
                Ok(Handled::Nothing | Handled::Committed(_)) => {}
                Err(error) => return Err(replaying.fault(&error)),
            }
            self.flush_when_full(connection);
        }
        Ok(())
    }
}
