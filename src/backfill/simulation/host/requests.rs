//! What people and configurations ask of the host.

use super::*;

impl Host {
    fn spec(&mut self, table: usize, lanes: &[usize]) -> RunSpec {
        self.runs_made += 1;
        let mut spec = RunSpec::new(
            format!("run-{}", self.runs_made),
            EntityName::new("public", format!("t{table}")),
            self.disk.oids[table],
        );
        spec.mappings = lanes.iter().map(ToString::to_string).collect();
        spec.skip_until = lanes.iter().map(|lane| self.live.lanes[*lane].received).max().unwrap_or_default();
        spec.baseline = lanes.iter().find_map(|lane| self.disk.lanes[*lane].baseline.clone());
        spec.estimate = Some(10);
        spec
    }

    /// A request for some mappings of a table, whose generation becomes the next one.
    pub(super) fn request(&mut self, table: usize, lanes: &[usize], source: &mut Source, rng: &mut Prng) {
        let spec = self.spec(table, lanes);
        for lane in lanes {
            let lane = &mut self.disk.lanes[*lane];
            lane.generation += 1;
            lane.cancelled = false;
        }
        // What takes the place of a run that has begun can no longer be withdrawn.
        let started = self.live.machine.run(self.disk.oids[table]).is_some_and(|run| run.started);
        let status = if started { Status::Running } else { Status::Queued };
        self.disk.runs.push(StoredRun { spec: spec.clone(), status });
        if self.fault == Some(Fault::ForgetLimboAtBegin) {
            // A lie: everything that has begun is visible.
            let xid = source.snapshot().xmax.max(source.open().last().map_or(0, |xid| xid + 1));
            let xid = xid.max(source.limbo().last().map_or(0, |xid| xid + 1));
            let commands = self.live.machine.probe(&Arc::new(everything_before(xid)));
            self.carry_out(commands, source, rng).unwrap();
        }
        let commands = self.live.machine.add(spec);
        self.carry_out(commands, source, rng).unwrap();
    }

    /// A version bump of some mappings of one table, or a plain request for all of it.
    pub(in crate::backfill::simulation) fn bump(&mut self, source: &mut Source, rng: &mut Prng) {
        let table = rng.below(TABLES);
        let some = self.some_lanes(table, rng);
        if !some.is_empty() {
            self.request(table, &some, source, rng);
        }
    }

    fn some_lanes(&self, table: usize, rng: &mut Prng) -> Vec<usize> {
        let all = (0..self.disk.lanes.len()).filter(|lane| self.disk.lanes[*lane].table == table);
        all.filter(|_| rng.chance(70)).collect()
    }

    /// A request for some rows, which the sinks have lost, perhaps.
    pub(in crate::backfill::simulation) fn request_scope(&mut self, source: &mut Source, rng: &mut Prng) {
        let table = rng.below(TABLES);
        let lanes = self.some_lanes(table, rng);
        if lanes.is_empty() {
            return;
        }
        let scope = match rng.chance(50) {
            true => Scope::Where(rng.below(15).to_string()),
            false => Scope::Keys((0..1 + rng.below(4)).map(|_| vec![rng.below(20).to_string()]).collect()),
        };
        for lane in lanes.iter().filter(|_| rng.chance(60)) {
            self.disk.lanes[*lane].docs.retain(|key, _| !within(Some(&scope), *key));
        }
        let mut spec = self.spec(table, &lanes);
        spec.scope = Some(Arc::new(scope));
        self.scoped += 1;
        self.disk.runs.push(StoredRun { spec: spec.clone(), status: Status::Queued });
        let commands = self.live.machine.add(spec);
        self.carry_out(commands, source, rng).unwrap();
    }

    /// Somebody withdraws what has not begun of a table. The leader hears of it at once, or when it asks.
    pub(in crate::backfill::simulation) fn cancel(
        &mut self,
        source: &mut Source,
        rng: &mut Prng,
    ) -> Result<(), String> {
        let table = self.disk.oids[rng.below(TABLES)];
        let mut withdrawn = Vec::new();
        for stored in &mut self.disk.runs {
            if stored.spec.table != table || stored.status != Status::Queued {
                continue;
            }
            withdrawn.push(Arc::clone(&stored.spec.run));
            stored.status = if stored.spec.scope.is_some() { Status::Gone } else { Status::Cancelled };
            for lane in stored.spec.mappings.iter().map(|name| name.parse::<usize>().unwrap()) {
                let lane = &mut self.disk.lanes[lane];
                match stored.spec.scope.as_deref() {
                    None => lane.cancelled = true,
                    scope => {
                        let keys = (0..20).filter(|key| within(scope, *key));
                        lane.damaged.extend(keys.map(|key| (key, self.runs_made)));
                    }
                }
            }
        }
        self.cancelled += withdrawn.len() as u64;
        if rng.chance(50) {
            for run in withdrawn {
                let commands = self.live.machine.begun(&run, false);
                self.carry_out(commands, source, rng)?;
            }
        }
        Ok(())
    }

    /// Somebody pauses, resumes or slows down.
    pub(in crate::backfill::simulation) fn control(
        &mut self,
        resume: bool,
        source: &mut Source,
        rng: &mut Prng,
    ) -> Result<(), String> {
        let rate = |rng: &mut Prng| rng.chance(40).then(|| 1 + rng.below(20) as u32);
        let controls = &mut self.disk.controls;
        match resume {
            true => {
                controls.paused = false;
                controls.tables.values_mut().for_each(|table| table.paused = false);
            }
            false if rng.chance(50) => {
                (controls.paused, controls.rows_per_second) = (rng.chance(30), rate(rng));
            }
            false => {
                let control = TableControl { paused: rng.chance(30), rows_per_second: rate(rng) };
                controls.tables.insert(rng.below(TABLES) as u32, control);
            }
        }
        self.live.paced = (self.now, 0);
        let commands = self.live.machine.control(self.disk.controls_by_oid(), self.now);
        self.carry_out(commands, source, rng)
    }

    /// A reading may begin: nobody paused it, it is small enough, and there were not too many before.
    pub(super) fn may_read(&self, request: &ReadRequest) -> Result<(), String> {
        let controls = &self.disk.controls;
        let table = controls.tables.get(&(table_of(request) as u32)).copied().unwrap_or_default();
        let status = self.disk.runs.iter().find(|run| run.spec.run == request.run).map(|run| run.status);
        if status != Some(Status::Running) {
            return Err(format!("{} reads and is {status:?}", request.run));
        }
        if controls.paused || table.paused {
            return Err(format!("{} reads and is paused", request.run));
        }
        for rate in controls.rows_per_second.into_iter().chain(table.rows_per_second) {
            if request.limit > rate {
                return Err(format!("{} rows at once, at {rate} rows a second", request.limit));
            }
        }
        let (since, rows) = self.live.paced;
        if let Some(rate) = controls.rows_per_second {
            // As many tables as may read at once are a second ahead, and one that was read before.
            let most = (self.now - since) as u64 * u64::from(rate) / 1_000_000 + 3 * u64::from(rate);
            if rows > most {
                return Err(format!("{rows} rows since {since}, at {rate} rows a second"));
            }
        }
        Ok(())
    }

    /// Whether a run that is about to begin still may.
    pub(super) fn grant(&mut self, run: &str) -> bool {
        let stored = self.stored(run);
        let granted = stored.is_due();
        if granted {
            (stored.status, stored.spec.started) = (Status::Running, true);
        }
        granted
    }

    /// The state schema's answer to a run's beginning.
    pub(in crate::backfill::simulation) fn answer_beginning(
        &mut self,
        source: &mut Source,
        rng: &mut Prng,
    ) -> Result<bool, String> {
        let Some(run) = self.live.beginnings.pop_front() else { return Ok(false) };
        let granted = self.grant(&run) || self.fault == Some(Fault::AlwaysGrant);
        let commands = self.live.machine.begun(&run, granted);
        self.carry_out(commands, source, rng)?;
        Ok(true)
    }

    /// Table 1 gets its mapping: it joins the publication of the slot that exists, or is in it already. Or it
    /// leaves the publication first, unless `now`.
    pub(in crate::backfill::simulation) fn map_late_table(
        &mut self,
        now: bool,
        source: &mut Source,
        rng: &mut Prng,
    ) {
        if self.disk.lanes.len() > 2 {
            return;
        }
        if source.published[1] && !now && rng.chance(60) {
            return source.unpublish(1);
        }
        let streamed = source.wal.get(self.live.position.wrapping_sub(1)).map_or(Lsn::ZERO, |r| r.end);
        let (mut begin, mut baseline) = (streamed, None);
        self.disk.oids[1] = source.visible_oid(1);
        if !source.published[1] {
            source.published[1] = true;
            let xid = source.assign_xid();
            source.emit("alter publication".into(), rng);
            if self.fault != Some(Fault::NoPublicationBaseline) {
                baseline = Some(Arc::new(everything_before(xid)));
            }
            // What the stream has of this table from before is not all of it: the lane begins here.
            if self.fault != Some(Fault::LaneBeforePublication) {
                begin = source.wal_end();
            }
        }
        let disk = LaneDisk { table: 1, generation: 1, accepted: begin, baseline, ..LaneDisk::default() };
        self.disk.lanes.push(disk);
        self.live.lanes.push(Lane { received: begin, accepted: begin, ..Lane::default() });
        let commands = self.live.machine.control(self.disk.controls_by_oid(), self.now);
        self.carry_out(commands, source, rng).unwrap();
        self.request(1, &[2], source, rng);
    }
}

impl Disk {
    /// As the machine is told them.
    pub(super) fn controls_by_oid(&self) -> Controls {
        let tables = self.controls.tables.iter();
        let tables = tables.map(|(table, control)| (self.oids[*table as usize], *control)).collect();
        Controls { tables, ..self.controls }
    }
}
