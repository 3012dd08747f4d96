//! What the machine wants done.

use super::*;

impl Host {
    pub(super) fn carry_out(
        &mut self,
        commands: Vec<Command<Rows>>,
        source: &mut Source,
        rng: &mut Prng,
    ) -> Result<(), String> {
        for command in commands {
            match command {
                Command::Begin { run } => self.live.beginnings.push_back(run),
                Command::Read(request) => {
                    if self.fault.is_none_or(Fault::is_of_requests) {
                        self.may_read(&request)?;
                    }
                    self.live.readers.push(Reader { request, stage: Reading::Start });
                }
                Command::Emit(emission) => self.emit(emission, source, rng)?,
                Command::Reread { .. } => self.rereads += 1,
                Command::SaveCursor { run, cursor, rows, chunks } => {
                    let early = self.live.waiting.values().any(|w| w.run == run && w.chunk < chunks);
                    if early && self.fault.is_none() {
                        return Err(format!("cursor of {run} saved before chunk {chunks} was durable"));
                    }
                    let stored = self.stored(&run);
                    (stored.spec.cursor, stored.spec.rows, stored.spec.chunks) = (Some(cursor), rows, chunks);
                }
                Command::Complete { run, .. } => self.complete(&run),
                Command::Restart { run, .. } => {
                    let stored = self.stored(&run);
                    (stored.spec.cursor, stored.spec.rows, stored.spec.chunks) = (None, 0, 0);
                }
                Command::Supersede { old, new, mappings } => {
                    let baseline = self.stored(&old).spec.baseline.clone();
                    self.stored(&old).status = Status::Gone;
                    for lane in &mappings {
                        self.disk.lanes[lane.parse::<usize>().unwrap()].cancelled = false;
                    }
                    let new = self.stored(&new);
                    new.spec.mappings = mappings;
                    new.spec.baseline = new.spec.baseline.take().or(baseline);
                }
                Command::Fail { run, attempts, not_before, .. } => {
                    let stored = self.stored(&run);
                    (stored.spec.attempts, stored.spec.not_before) = (attempts, not_before);
                }
                Command::Probe => self.live.probes.push_back(Arc::new(source.snapshot())),
            }
        }
        Ok(())
    }

    fn complete(&mut self, run: &str) {
        let stored = self.stored(run);
        stored.status = Status::Complete;
        let number: u64 = stored.spec.run.trim_start_matches("run-").parse().unwrap();
        let (whole, lanes) = (stored.spec.scope.is_none(), stored.spec.mappings.clone());
        for lane in lanes.iter().filter(|_| whole) {
            let lane = &mut self.disk.lanes[lane.parse::<usize>().unwrap()];
            lane.baseline = None;
            lane.damaged.retain(|_, runs| *runs >= number);
        }
    }

    pub(super) fn stored(&mut self, run: &str) -> &mut StoredRun {
        self.disk.runs.iter_mut().find(|stored| *stored.spec.run == *run).unwrap()
    }

    pub(super) fn emit(
        &mut self,
        mut emission: Emission<Rows>,
        source: &mut Source,
        rng: &mut Prng,
    ) -> Result<(), String> {
        self.emitted += 1;
        self.dropped += emission.dropped.len() as u64;
        match self.fault {
            Some(Fault::EmitAll) => emission.dropped.clear(),
            Some(Fault::ClassicWindow) => {
                let all = self.live.truncated_since_low.contains(&emission.attempt);
                let touched = self.live.since_low.get(&emission.attempt).cloned().unwrap_or_default();
                let rows = (0_u32..).zip(&emission.rows);
                emission.dropped =
                    rows.filter(|(_, (key, _))| all || touched.contains(key)).map(|(at, _)| at).collect();
            }
            _ => {}
        }
        self.live.since_low.remove(&emission.attempt);
        let attempt = emission.attempt;
        if self.fault == Some(Fault::EmitLate) && rng.chance(50) {
            self.live.late.push(emission);
        } else {
            self.deliver_chunk(emission);
        }
        if self.fault == Some(Fault::SaveCursorEarly) {
            let commands = self.live.machine.durable(attempt);
            self.carry_out(commands, source, rng)?;
        }
        Ok(())
    }

    pub(super) fn deliver_chunk(&mut self, emission: Emission<Rows>) {
        let rows: Rows = (0_u32..)
            .zip(&emission.rows)
            .filter(|(at, _)| emission.dropped.binary_search(at).is_err())
            .map(|(_, row)| *row)
            .collect();
        let spec = self.stored(&emission.run).spec.clone();
        let lanes: BTreeSet<usize> = self.targets(&spec).into_iter().collect();
        for lane in &lanes {
            let generation = self.disk.lanes[*lane].generation;
            self.live.lanes[*lane].queue.push_back(Item::Chunk {
                attempt: emission.attempt,
                rows: rows.clone(),
                generation,
            });
        }
        let waiting = Waiting { run: emission.run, chunk: emission.chunk, lanes };
        self.live.waiting.insert(emission.attempt, waiting);
    }
}
