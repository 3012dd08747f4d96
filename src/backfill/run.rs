//! One run: its chunks in flight, in order, and its window.
//!
//! The chunks in flight are a contiguous range of the key's order, behind the saved cursor: those that were
//! emitted and are not yet durable, then those that were read and wait for their watermark, then at most
//! one that is being read. A chunk that must be read again takes all later ones with it: its second reading
//! may end at another row, and only so do the chunks stay contiguous.

use std::{collections::VecDeque, sync::Arc};

use crate::model::{Lsn, Snapshot};

use super::{
    Attempt, ChunkRead, Command, Cursor, Emission, KeyColumn, Keys, Page, ReadRequest, RereadReason,
    RestartReason, RunSpec, RunStats, Settings, Stage, Verdict, Window,
    schedule::{Standing, Timestamp},
};

#[derive(Debug)]
enum Place<P> {
    /// Nothing is known but that its snapshot is younger than this one.
    Reading { guard: Option<Arc<Snapshot>> },
    /// Waits for its high watermark, and for the chunks before it.
    Read { snapshot: Arc<Snapshot>, keys: Keys, rows: P },
    /// Waits for its targets.
    Emitted { durable: bool },
}

#[derive(Debug)]
struct Flight<P> {
    chunk: u64,
    attempt: Attempt,
    after: Option<Cursor>,
    last: Option<Cursor>,
    exhausted: bool,
    rows: u64,
    bytes: usize,
    began: Timestamp,
    high: bool,
    relation_changed: bool,
    place: Place<P>,
}

#[derive(Debug)]
pub(super) struct Run<P> {
    pub(super) spec: RunSpec,
    pub(super) window: Window,
    pub(super) stats: RunStats,
    pub(super) active: bool,
    pub(super) turn: u64,
    /// The pause is for a target, not for a reading: it ends when something gets through.
    pub(super) undelivered: bool,
    /// Its beginning was asked for, and not yet answered.
    pub(super) asked: bool,
    key: Option<Vec<KeyColumn>>,
    page: Page,
    flights: VecDeque<Flight<P>>,
    read_from: Option<Cursor>,
    next_chunk: u64,
    exhausted: bool,
}

impl<P> Run<P> {
    pub(super) fn new(spec: RunSpec, window: Window, settings: &Settings, turn: u64) -> Self {
        Self {
            key: spec.cursor.as_ref().map(|cursor| cursor.key.clone()),
            read_from: spec.cursor.clone(),
            next_chunk: spec.chunks,
            page: Page::new(settings.page),
            window,
            stats: RunStats::default(),
            active: false,
            turn,
            undelivered: false,
            asked: false,
            flights: VecDeque::new(),
            exhausted: false,
            spec,
        }
    }

    pub(super) fn standing(&self) -> Standing {
        Standing {
            active: self.active,
            attempts: self.spec.attempts,
            not_before: self.spec.not_before,
            turn: self.turn,
        }
    }

    /// A transaction that ends at `end_lsn` touched the table. Where a target's lane skips it, its keys say
    /// nothing about what that target has.
    pub(super) fn touch(&mut self, xid: u32, end_lsn: Lsn, touch: super::Touch<'_>) {
        if end_lsn <= self.spec.skip_until {
            self.window.distrust(xid);
        } else {
            self.window.record(xid, touch);
        }
    }

    pub(super) fn has(&self, attempt: Attempt) -> bool {
        self.position(attempt).is_some()
    }

    fn position(&self, attempt: Attempt) -> Option<usize> {
        self.flights.iter().position(|flight| flight.attempt == attempt)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Where its oldest chunk is.
    pub(super) fn oldest_stage(&self) -> Option<Stage> {
        let flight = self.flights.front()?;
        Some(match flight.place {
            Place::Reading { .. } => Stage::Reading,
            // Otherwise it would have been judged.
            Place::Read { .. } if flight.high => Stage::Yielding,
            Place::Read { .. } => Stage::Stream,
            Place::Emitted { .. } => Stage::Delivering,
        })
    }

    fn is_reading(&self) -> bool {
        matches!(self.flights.back(), Some(Flight { place: Place::Reading { .. }, .. }))
    }

    /// Whether there is a page to ask for, apart from visibility: `share` bounds the bytes that were read
    /// and are not durable.
    pub(super) fn wants_page(&self, share: usize) -> bool {
        if self.exhausted || self.is_reading() {
            return false;
        }
        let held: usize = self.flights.iter().map(|flight| flight.bytes).sum();
        self.flights.is_empty() || held.saturating_add(self.page.expected_bytes()) <= share
    }

    pub(super) fn begin_read(
        &mut self,
        attempt: Attempt,
        guard: Option<Arc<Snapshot>>,
        max_bytes: usize,
        most: u32,
        now: Timestamp,
    ) -> ReadRequest {
        let request = ReadRequest {
            run: Arc::clone(&self.spec.run),
            entity: self.spec.entity.clone(),
            table: self.spec.table,
            chunk: self.next_chunk,
            attempt,
            scope: self.spec.scope.clone(),
            after: self.read_from.clone(),
            limit: self.page.limit().min(most),
            max_bytes,
        };
        self.flights.push_back(Flight {
            chunk: self.next_chunk,
            attempt,
            after: self.read_from.clone(),
            last: None,
            exhausted: false,
            rows: 0,
            bytes: 0,
            began: now,
            high: false,
            relation_changed: false,
            place: Place::Reading { guard },
        });
        self.next_chunk += 1;
        request
    }

    /// The page that was being read has arrived. A key other than the run's restarts it. Gives how many rows
    /// it has, and when its reading began.
    pub(super) fn arrived(
        &mut self,
        read: ChunkRead<P>,
        out: &mut Vec<Command<P>>,
    ) -> Option<(u64, Timestamp)> {
        if self.key.as_ref().is_some_and(|key| *key != read.key) {
            self.restart(RestartReason::KeyChanged, out);
            return None;
        }
        let flight = self.flights.iter_mut().find(|flight| flight.attempt == read.attempt)?;
        if !matches!(flight.place, Place::Reading { .. }) {
            return None;
        }
        flight.rows = read.keys.len() as u64;
        flight.bytes = read.bytes.saturating_add(read.keys.size());
        flight.exhausted = read.exhausted;
        flight.last = match read.last {
            Some(values) => Some(Cursor { key: read.key.clone(), values }),
            None => flight.after.clone(),
        };
        self.read_from.clone_from(&flight.last);
        self.exhausted = read.exhausted;
        self.page.learn(flight.rows, read.bytes, read.elapsed);
        self.stats.rows += flight.rows;
        self.stats.bytes += read.bytes as u64;
        flight.place = Place::Read { snapshot: read.snapshot, keys: read.keys, rows: read.rows };
        self.key = Some(read.key);
        Some((flight.rows, flight.began))
    }

    /// The stream has shown the low watermark: changes of the relation before it are in the snapshot.
    pub(super) fn low(&mut self, attempt: Attempt) {
        if let Some(at) = self.position(attempt) {
            self.flights[at].relation_changed = false;
        }
    }

    pub(super) fn high(&mut self, attempt: Attempt) {
        if let Some(at) = self.position(attempt) {
            self.flights[at].high = true;
        }
    }

    pub(super) fn relation_changed(&mut self) {
        for flight in &mut self.flights {
            flight.relation_changed = true;
        }
    }

    /// Judges the chunks whose turn it is, at this place of the stream.
    pub(super) fn settle(&mut self, out: &mut Vec<Command<P>>) {
        while let Some(at) = self.undecided() {
            let flight = &self.flights[at];
            let Place::Read { snapshot, keys, .. } = &flight.place else { return };
            if !flight.high {
                return;
            }
            let verdict = match flight.relation_changed {
                true => Verdict::Reread(RereadReason::RelationChanged),
                false => self.window.verdict(snapshot, keys),
            };
            match verdict {
                Verdict::Emit(dropped) => self.emit(at, dropped, out),
                Verdict::Reread(reason) => {
                    self.stats.rereads += 1;
                    out.push(Command::Reread {
                        run: Arc::clone(&self.spec.run),
                        chunk: flight.chunk,
                        reason,
                    });
                    return self.drop_from(at);
                }
            }
        }
    }

    fn undecided(&self) -> Option<usize> {
        self.flights.iter().position(|flight| !matches!(flight.place, Place::Emitted { .. }))
    }

    fn emit(&mut self, at: usize, dropped: Vec<u32>, out: &mut Vec<Command<P>>) {
        let read = self.spec.rows + self.flights.iter().take(at + 1).map(|flight| flight.rows).sum::<u64>();
        let flight = &mut self.flights[at];
        let place = std::mem::replace(&mut flight.place, Place::Emitted { durable: false });
        let Place::Read { rows, .. } = place else { return };
        self.stats.chunks += 1;
        self.stats.dropped += dropped.len() as u64;
        out.push(Command::Emit(Emission {
            run: Arc::clone(&self.spec.run),
            table: self.spec.table,
            chunk: flight.chunk,
            attempt: flight.attempt,
            cursor: flight.last.clone(),
            read,
            rows,
            dropped,
        }));
    }

    /// Forgets what every undecided and every later reading sees; `latest` was taken before any later one.
    pub(super) fn advance(&mut self, latest: Option<&Arc<Snapshot>>) {
        let oldest = match self.undecided().map(|at| &self.flights[at].place) {
            Some(Place::Reading { guard }) => guard.as_ref(),
            Some(Place::Read { snapshot, .. }) => Some(snapshot),
            Some(Place::Emitted { .. }) | None => latest,
        };
        if let Some(oldest) = oldest {
            self.window.advance(oldest);
        }
    }

    /// Drops a chunk and all later ones, and reads on from where it began.
    fn drop_from(&mut self, at: usize) {
        if let Some(flight) = self.flights.get(at) {
            self.read_from.clone_from(&flight.after);
            self.next_chunk = flight.chunk;
            self.exhausted = false;
            self.flights.truncate(at);
        }
    }

    /// Drops all that is not durable, and reads on from the saved cursor.
    pub(super) fn rewind(&mut self) {
        self.drop_from(0);
    }

    pub(super) fn restart(&mut self, reason: RestartReason, out: &mut Vec<Command<P>>) {
        self.flights.clear();
        self.window.forget();
        (self.spec.cursor, self.spec.rows, self.spec.chunks) = (None, 0, 0);
        (self.key, self.read_from, self.next_chunk, self.exhausted) = (None, None, 0, false);
        out.push(Command::Restart { run: Arc::clone(&self.spec.run), reason });
    }

    /// A reading failed: it and what was read after it is dropped. False when the page got smaller
    /// instead, so that it may be tried again at once.
    pub(super) fn read_failed(&mut self, attempt: Attempt, timed_out: bool) -> bool {
        if let Some(at) = self.position(attempt) {
            self.drop_from(at);
        }
        self.stats.retries += 1;
        !(timed_out && self.page.shrink())
    }

    pub(super) fn fail(&mut self, now: Timestamp, turn: u64, error: String, out: &mut Vec<Command<P>>) {
        self.spec.attempts = self.spec.attempts.saturating_add(1);
        self.spec.not_before = super::schedule::after(now, super::pause(self.spec.attempts));
        (self.active, self.turn, self.undelivered) = (false, turn, false);
        out.push(Command::Fail {
            run: Arc::clone(&self.spec.run),
            attempts: self.spec.attempts,
            not_before: self.spec.not_before,
            error,
        });
    }

    /// A chunk is durable in every target. True when the run is complete.
    pub(super) fn durable(&mut self, attempt: Attempt, out: &mut Vec<Command<P>>) -> bool {
        if let Some(at) = self.position(attempt)
            && let Place::Emitted { durable } = &mut self.flights[at].place
        {
            *durable = true;
            if std::mem::take(&mut self.undelivered) {
                self.spec.not_before = Timestamp::MIN;
            }
        }
        let mut saved = None;
        let mut complete = false;
        while let Some(Flight { place: Place::Emitted { durable: true }, .. }) = self.flights.front() {
            let Some(flight) = self.flights.pop_front() else { break };
            self.spec.rows += flight.rows;
            self.spec.chunks = flight.chunk + 1;
            complete = flight.exhausted;
            if flight.last.is_some() {
                saved = flight.last;
            }
        }
        if let Some(cursor) = saved {
            self.spec.attempts = 0;
            self.spec.cursor = Some(cursor.clone());
            out.push(Command::SaveCursor {
                run: Arc::clone(&self.spec.run),
                cursor,
                rows: self.spec.rows,
                chunks: self.spec.chunks,
            });
        }
        if complete {
            out.push(Command::Complete {
                run: Arc::clone(&self.spec.run),
                rows: self.spec.rows,
                chunks: self.spec.chunks,
                stats: self.stats,
            });
        }
        complete
    }
}
