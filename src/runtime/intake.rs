//! What comes along the stream: messages are decoded, assembled to batches of committed transactions and handed to
//! the lanes, with the backfill's watermarks in their places. What is streamed before its commit goes to the spool.
//!
//! The half of the pump that faces the server. It reads only as long as the lanes have room, and never waits for one.

use std::{sync::Arc, time::Instant};

use crate::{
    backfill::{Marker, MarkerKind},
    model::{Lsn, TransactionInfo},
    pgoutput::{Assembler, Decoder, Frame, Handled, RawRelation, spool::Taken, transaction::Committed},
    pipeline::LaneId,
    postgres::{ReplicationStream, StatusHandle},
};

use super::{
    error::TermError,
    lane::Way,
    metrics::FlushReason,
    pump::Pump,
    relations::Described,
    spool::{SpoolFault, Spooling},
    term::Lane,
    token::{handed, handed_with},
};

/// One connection of the stream.
pub(super) struct Connection {
    pub(super) stream: ReplicationStream,
    pub(super) status: StatusHandle,
    decoder: Decoder,
    pub(super) assembler: Assembler,
    /// None where the server was not asked to stream what is not committed.
    pub(super) spooling: Option<Spooling>,
    pub(super) reading_since: Instant,
    /// Where the server's WAL ended when it last told.
    pub(super) wal_end: Lsn,
}

impl Connection {
    pub(super) fn new(stream: ReplicationStream, spooling: Option<Spooling>) -> Self {
        let status = stream.status();
        let (decoder, assembler) = (Decoder::new(), Assembler::new());
        let reading_since = Instant::now();
        Self { stream, status, decoder, assembler, spooling, reading_since, wal_end: Lsn::ZERO }
    }

    /// Whether a committed transaction is being read back from the spool: what comes after it has to wait.
    pub(super) fn replays(&self) -> bool {
        self.spooling.as_ref().is_some_and(Spooling::replays)
    }
}

impl Pump {
    /// Handles every message that has arrived, as long as the lanes have room.
    pub(super) async fn take_buffered(&mut self, connection: &mut Connection) -> Result<(), TermError> {
        let mut received = 0;
        while !connection.replays() && self.may_read() {
            let Some(payload) = connection.stream.next_buffered()? else { break };
            received += payload.len();
            let handled = match Frame::parse(payload)? {
                Frame::XLogData { data, .. } => {
                    let message = connection.decoder.decode(data)?;
                    let taken = match &mut connection.spooling {
                        Some(spooling) => spooling.spool.take(&message, data).map_err(SpoolFault::from)?,
                        None => Taken::Plain,
                    };
                    match (taken, &mut connection.spooling) {
                        (Taken::Plain, _) | (_, None) => connection.assembler.handle(message)?,
                        (taken, Some(spooling)) => {
                            self.streamed(spooling, taken).await?;
                            continue;
                        }
                    }
                }
                Frame::Keepalive { wal_end, .. } => {
                    connection.wal_end = connection.wal_end.max(wal_end);
                    self.on_keepalive(connection, wal_end);
                    continue;
                }
            };
            match handled {
                Handled::Nothing => {}
                Handled::Relation(raw) => {
                    self.on_relation(connection, raw).await?;
                    // What the server has sent while it was asked waits: it is not silent.
                    connection.reading_since = Instant::now();
                }
                Handled::Committed(committed) => self.on_commit(connection, &committed),
            }
            self.flush_when_full(connection);
        }
        self.observer.metrics.received(received);
        Ok(())
    }

    #[inline]
    pub(super) fn flush_when_full(&mut self, connection: &mut Connection) {
        if connection.assembler.size() >= self.settings.batch_bytes
            || connection.assembler.changes() >= self.settings.batch_rows
        {
            self.flush(connection, FlushReason::Full);
        }
    }

    /// A position with nothing before it in hand may be confirmed: so an idle source does not keep WAL.
    fn on_keepalive(&mut self, connection: &Connection, wal_end: Lsn) {
        let assembler = &connection.assembler;
        if !assembler.in_transaction() && assembler.is_empty() && self.machine.limbo().is_empty() {
            self.advance(wal_end);
        }
    }

    pub(super) async fn on_relation(
        &mut self,
        connection: &mut Connection,
        raw: RawRelation,
    ) -> Result<(), TermError> {
        if !self.subscriptions.contains(&raw.name) {
            connection.assembler.define_ignored(raw.oid);
            // A mapping that does not run follows nothing; its table may well have the name that it had.
            let renamed =
                |lane: &Lane| lane.planned.table.oid == raw.oid && lane.planned.stored.entity != raw.name;
            if self.lanes.values().any(renamed) {
                self.flush(connection, FlushReason::Relation);
                self.renamed_away(&raw);
            }
            return Ok(());
        }
        let another =
            |lane: &Lane| lane.planned.stored.entity == raw.name && lane.planned.table.oid != raw.oid;
        let xid = connection.assembler.open_xid();
        if self.lanes.values().any(another) {
            if self.relations.is_present(&raw, xid).await? {
                return Err(TermError::Recreated { entity: raw.name });
            }
            // From before the table was dropped, or gave its name away: its documents are purged.
            connection.assembler.define_ignored(raw.oid);
            return Ok(());
        }
        let Described { relation, is_told, change } = self.relations.resolve(&raw, xid).await?;
        if !is_told && self.is_rebuilt_whole(raw.oid) {
            // Whoever made another key of it has waited for these rows: the table has them.
            connection.assembler.define_ignored(raw.oid);
        } else {
            connection.assembler.define(relation)?;
        }
        if let Some(change) = change {
            self.flush(connection, FlushReason::Relation);
            let commands = self.machine.relation_changed(raw.oid, change.key_changed);
            self.carry_out(commands);
            if change.key_changed {
                self.rekeyed(raw.oid);
            }
        }
        Ok(())
    }

    pub(super) fn on_commit(&mut self, connection: &mut Connection, committed: &Committed) {
        if committed.changes > 0 {
            self.observer.metrics.transaction();
        } else if committed.ignored > 0 {
            // A mapping may take its table up while it is invisible still.
            let TransactionInfo { xid, commit_lsn, end_lsn, .. } = committed.info;
            self.machine.committed(xid, commit_lsn, end_lsn);
        }
        for content in &committed.markers {
            if let Some(marker) = Marker::parse(content, &self.settings.installation) {
                // The chunk belongs behind everything that was committed before its high watermark.
                self.flush(connection, FlushReason::Watermark);
                self.collect_reads();
                let commands = self.machine.marker(&marker);
                self.carry_out(commands);
                if marker.kind == MarkerKind::High
                    && let Some(table) = self.rekeying.remove(&marker.attempt)
                {
                    self.relations.forget(table);
                    self.rekeyed(table);
                }
            }
        }
        if connection.assembler.is_empty() {
            self.advance(committed.info.end_lsn);
        }
    }

    /// Hands out what was assembled.
    pub(super) fn flush(&mut self, connection: &mut Connection, reason: FlushReason) {
        if connection.assembler.is_empty() {
            return;
        }
        let batch = connection.assembler.take();
        self.machine.apply(&batch);
        let boundary =
            batch.ends_at_commit.then(|| batch.transactions.last().map(|last| last.end_lsn)).flatten();
        self.observer.handed_out(&batch, boundary);
        if !batch.changes.is_empty() {
            self.observer.metrics.batch(&batch, reason);
            let batch = Arc::new(batch);
            for (lane, selection) in self.subscriptions.route(&batch, &self.ledger) {
                let Some(state) = self.lanes.get(&lane) else { continue };
                if let Some(handle) = &state.handle {
                    let handed = (handed(&self.ledger, lane), handed_with(&self.ledger, lane, &batch));
                    let work = self.ledger.dispatched(lane);
                    let way = Way::of_all(state.place());
                    handle.send(work, Arc::clone(&batch), selection, (None, way), handed);
                }
            }
        }
        if let Some(end) = boundary {
            self.advance(end);
        }
    }

    /// The stream has shown everything before this boundary, and all of it was handed out.
    fn advance(&mut self, position: Lsn) {
        self.machine.passed(position);
        self.ledger.advance(position);
    }

    /// Small transactions share a batch while the lanes are busy or more is buffered, and never wait
    /// otherwise.
    pub(super) fn flush_when_idle(&mut self, connection: &mut Connection) {
        if connection.assembler.is_empty() || connection.assembler.in_transaction() {
            return;
        }
        let takes = |(&id, lane): (&LaneId, &Lane)| {
            lane.works() && self.ledger.follows(id) && self.ledger.outstanding(id) < lane.enough()
        };
        if self.lanes.iter().any(takes) || !self.lanes.values().any(Lane::works) {
            self.flush(connection, FlushReason::Idle);
        }
    }
}
