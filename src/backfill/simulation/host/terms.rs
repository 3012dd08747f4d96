//! Hosts come and go: what a start takes up, and what ends one.

use super::*;

impl Host {
    pub(super) fn boot(
        disk: &mut Disk,
        source: &Source,
        fault: Option<Fault>,
        now: i64,
        rng: &mut Prng,
    ) -> Live {
        disk.incarnation += 1;
        let machine = Machine::new(settings(rng), disk.incarnation, disk.baseline.clone());
        let position = source.wal.iter().position(|record| record.start >= disk.confirmed);
        let lanes = disk.lanes.iter().map(|lane| Lane {
            received: lane.accepted,
            accepted: lane.accepted,
            queue: lane.purge.then_some(Item::Purge).into_iter().collect(),
        });
        let mut live = Live {
            shapes: [None; TABLES],
            paced: (now, 0),
            machine,
            position: position.unwrap_or(source.wal.len()),
            lanes: lanes.collect(),
            readers: Vec::new(),
            probes: VecDeque::new(),
            beginnings: VecDeque::new(),
            waiting: HashMap::new(),
            durable: Vec::new(),
            late: Vec::new(),
            since_low: HashMap::new(),
            truncated_since_low: BTreeSet::new(),
        };
        live.machine.sabotage = fault.and_then(Fault::inside);
        let commands = live.machine.control(disk.controls_by_oid(), now);
        debug_assert!(commands.is_empty());
        live
    }

    /// A crash of the host (or of the server, with it), and the next start.
    pub(in crate::backfill::simulation) fn crash(
        &mut self,
        server: bool,
        source: &mut Source,
        rng: &mut Prng,
    ) -> Result<(), String> {
        if server && self.fault == Some(Fault::MachineOutlivesServer) {
            return self.reconnect(source, rng);
        }
        for reader in self.live.readers.drain(..) {
            match server {
                true => reader.abandon(source),
                false => self.ghosts.push(reader),
            }
        }
        if server {
            self.ghosts.drain(..).for_each(|ghost| ghost.abandon(source));
        }
        // Of what the state schema was asked for, some was done.
        for run in std::mem::take(&mut self.live.beginnings) {
            if rng.chance(50) {
                self.grant(&run);
            }
        }
        let recreated = self.take_up_recreated(source);
        self.live = Self::boot(&mut self.disk, source, self.fault, self.now, rng);
        let due = |scoped: bool| move |run: &&StoredRun| run.is_due() && run.spec.scope.is_some() == scoped;
        let whole = self.disk.runs.iter().filter(due(false));
        let specs: Vec<RunSpec> =
            whole.chain(self.disk.runs.iter().filter(due(true))).map(|run| run.spec.clone()).collect();
        for mut spec in specs {
            let accepted = self.targets(&spec).into_iter().map(|lane| self.disk.lanes[lane].accepted);
            spec.skip_until = accepted.max().unwrap_or(Lsn::ZERO);
            if self.fault == Some(Fault::SkippedCountsAsReceived) {
                spec.skip_until = Lsn::ZERO;
            }
            let commands = self.live.machine.add(spec);
            self.carry_out(commands, source, rng)?;
        }
        for table in recreated {
            let lanes: Vec<usize> = self.lanes_of(table).collect();
            self.request(table, &lanes, source, rng);
        }
        Ok(())
    }

    pub(super) fn lanes_of(&self, table: usize) -> impl Iterator<Item = usize> {
        (0..self.disk.lanes.len()).filter(move |lane| self.disk.lanes[*lane].table == table)
    }

    /// Mapped tables that are other ones than before: what was built of them goes, and so do their runs.
    fn take_up_recreated(&mut self, source: &Source) -> Vec<usize> {
        let mut recreated = Vec::new();
        for table in 0..TABLES {
            let oid = source.visible_oid(table);
            if oid == self.disk.oids[table] || !self.is_mapped(table) {
                continue;
            }
            recreated.push(table);
            let former = std::mem::replace(&mut self.disk.oids[table], oid);
            for run in self.disk.runs.iter_mut().filter(|run| run.spec.table == former && run.is_due()) {
                run.status = Status::Gone;
            }
            for lane in self.disk.lanes.iter_mut().filter(|lane| lane.table == table) {
                lane.purge = self.fault != Some(Fault::NoPurge);
            }
        }
        recreated
    }

    /// Whether a mapped table is another one by now.
    pub(in crate::backfill::simulation) fn is_outdated(&self, source: &Source) -> bool {
        (0..TABLES).any(|table| self.is_mapped(table) && source.visible_oid(table) != self.disk.oids[table])
    }

    /// Another host takes over, once this one has lost its lock: until then it does of what it has in hand
    /// whatever it likes.
    pub(in crate::backfill::simulation) fn fail_over(
        &mut self,
        source: &mut Source,
        rng: &mut Prng,
    ) -> Result<(), String> {
        for _ in 0..rng.below(12) {
            match rng.below(4) {
                0 => drop(self.acknowledge(source, rng)?),
                1 => self.save_positions(),
                2 => drop(self.answer_beginning(source, rng)?),
                _ => {
                    let lane = rng.below(self.live.lanes.len());
                    self.deliver(lane)?;
                }
            }
        }
        self.crash(false, source, rng)
    }

    /// A session of a host that is gone takes a step.
    pub(in crate::backfill::simulation) fn haunt(&mut self, source: &mut Source, rng: &mut Prng) {
        if self.ghosts.is_empty() {
            return;
        }
        let mut ghost = self.ghosts.swap_remove(rng.below(self.ghosts.len()));
        let kind = match ghost.stage {
            Reading::Start => MarkerKind::Low,
            Reading::Low => return self.ghosts.push(ghost),
            Reading::Locked { .. } | Reading::Done { high: false, .. } => MarkerKind::High,
            Reading::Done { .. } => return,
        };
        ghost.unlock(source);
        if rng.chance(70) {
            source.emit(ghost.request.marker(INSTALLATION, kind).encode(), rng);
        }
        ghost.stage = Reading::Done { read: None, high: kind == MarkerKind::High };
        self.ghosts.push(ghost);
    }

    /// The sessions of hosts that are gone end.
    pub(in crate::backfill::simulation) fn exorcise(&mut self, source: &mut Source) {
        self.ghosts.drain(..).for_each(|ghost| ghost.abandon(source));
    }

    /// What must not be done when the server was restarted: only the readings fail.
    fn reconnect(&mut self, source: &mut Source, rng: &mut Prng) -> Result<(), String> {
        for reader in std::mem::take(&mut self.live.readers) {
            let failure = ReadFailure { timed_out: false, message: "server restarted".into() };
            let commands = self.live.machine.read_failed(reader.request.attempt, failure, self.now);
            self.carry_out(commands, source, rng)?;
        }
        Ok(())
    }
}

impl Reader {
    fn unlock(&self, source: &mut Source) {
        if let Reading::Locked { locked: true, .. } = self.stage {
            source.unlock(table_of(&self.request));
        }
    }

    fn abandon(self, source: &mut Source) {
        self.unlock(source);
    }
}
