//! Readings, step by step.

use super::*;

impl Host {
    pub(in crate::backfill::simulation) fn step_reader(
        &mut self,
        at: usize,
        failures: usize,
        source: &mut Source,
        rng: &mut Prng,
    ) -> Result<(), String> {
        if at >= self.live.readers.len() {
            return Ok(());
        }
        let mut reader = self.live.readers.swap_remove(at);
        let request = reader.request.clone();
        let table = table_of(&request);
        if rng.chance(failures) {
            if let Reading::Locked { locked: true, .. } = reader.stage {
                source.unlock(table);
            }
            if let Reading::Done { high: false, .. } = reader.stage
                && rng.chance(50)
            {
                // The answer to its commit got lost.
                source.emit(request.marker(INSTALLATION, MarkerKind::High).encode(), rng);
            }
            let failure = ReadFailure { timed_out: rng.chance(50), message: "injected".into() };
            let commands = self.live.machine.read_failed(request.attempt, failure, self.now);
            return self.carry_out(commands, source, rng);
        }
        reader.stage = match reader.stage {
            Reading::Start => {
                source.emit(request.marker(INSTALLATION, MarkerKind::Low).encode(), rng);
                Reading::Low
            }
            Reading::Low => {
                let locked = self.fault != Some(Fault::NoTableLock);
                if locked && !source.may_lock(table) {
                    Reading::Low
                } else {
                    if locked {
                        source.lock(table);
                    }
                    let shape = source.shape(table);
                    Reading::Locked { snapshot: Arc::new(source.snapshot()), shape, locked }
                }
            }
            Reading::Locked { snapshot, shape, locked } => {
                if !locked && !source.may_lock(table) {
                    Reading::Locked { snapshot, shape, locked }
                } else {
                    if locked {
                        source.unlock(table);
                    }
                    if shape.oid != request.table {
                        let failure = ReadFailure { timed_out: false, message: "recreated".into() };
                        let commands = self.live.machine.read_failed(request.attempt, failure, self.now);
                        return self.carry_out(commands, source, rng);
                    }
                    // A reader that does not look takes every key for the same one.
                    let blind = self.fault == Some(Fault::CursorOfAnyKey);
                    let shape = if blind { Shape { key: 0, ..shape } } else { shape };
                    let other = |cursor: &Cursor| !blind && cursor.key != key_columns(shape);
                    if request.after.as_ref().is_some_and(other) {
                        let commands = self.live.machine.restart(request.table);
                        return self.carry_out(commands, source, rng);
                    }
                    let read = read_page(&request, &snapshot, shape, source, rng);
                    Reading::Done { read: Some(read), high: false }
                }
            }
            Reading::Done { mut read, mut high } => {
                if !high && rng.chance(50) {
                    source.emit(request.marker(INSTALLATION, MarkerKind::High).encode(), rng);
                    high = true;
                } else if let Some(read) = read.take() {
                    let rows_read =
                        |host: &Self| host.live.machine.run(request.table).map_or(0, |run| run.stats.rows);
                    let before = rows_read(self);
                    let commands = self.live.machine.chunk_read(read);
                    // A page that was asked for before the rate was set counts as one of its size.
                    let rate = self.disk.controls.rows_per_second.map_or(u64::MAX, u64::from);
                    self.live.paced.1 += rate.min(rows_read(self).saturating_sub(before));
                    self.carry_out(commands, source, rng)?;
                }
                if high && read.is_none() {
                    return Ok(());
                }
                Reading::Done { read, high }
            }
        };
        self.live.readers.push(reader);
        Ok(())
    }

    pub(in crate::backfill::simulation) fn readers(&self) -> usize {
        self.live.readers.len()
    }
}

fn read_page(
    request: &ReadRequest,
    snapshot: &Arc<Snapshot>,
    shape: Shape,
    source: &Source,
    rng: &mut Prng,
) -> ChunkRead<Rows> {
    let after = request.after.as_ref().map(|cursor| cursor.values[0].parse().unwrap());
    let mut rows = source.rows(table_of(request), snapshot, after);
    rows.retain(|(key, _)| within(request.scope.as_deref(), *key));
    let fits = (request.max_bytes / 10).max(1);
    let exhausted = rows.len() < request.limit as usize && rows.len() <= fits;
    rows.truncate((request.limit as usize).min(fits));
    ChunkRead {
        attempt: request.attempt,
        snapshot: Arc::clone(snapshot),
        key: key_columns(shape),
        keys: rows.iter().map(|(key, _)| key.to_string()).collect::<Keys>(),
        bytes: rows.len() * 10,
        elapsed: Duration::from_millis(rng.below(20) as u64),
        last: rows.last().map(|(key, _)| vec![key.to_string()]),
        rows,
        exhausted,
    }
}
