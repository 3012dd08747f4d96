//! Sinks, and what goes wrong with them.

use super::*;

impl Host {
    pub(in crate::backfill::simulation) fn lanes(&self) -> usize {
        self.live.lanes.len()
    }

    /// The sink of a lane accepts what is first in its queue.
    pub(in crate::backfill::simulation) fn deliver(&mut self, lane: usize) -> Result<bool, String> {
        let live = &mut self.live.lanes[lane];
        let Some(item) = live.queue.pop_front() else { return Ok(false) };
        let disk = &mut self.disk.lanes[lane];
        match item {
            Item::Transaction { end, events, generation } => {
                for event in &events {
                    disk.apply(event, generation);
                }
                live.accepted = live.accepted.max(end);
            }
            Item::Purge => {
                disk.docs.clear();
                disk.purge = false;
            }
            Item::Chunk { attempt, rows, generation } => {
                for (key, value) in rows {
                    let newest = disk.newest.get(&key).copied().unwrap_or(0).max(disk.newest_truncate);
                    if value < newest && self.fault.is_none() {
                        return Err(format!(
                            "lane {lane}: row {key} = {value} replaces a newer one, {newest}"
                        ));
                    }
                    disk.docs.insert(key, (value, generation));
                }
                if let Some(waiting) = self.live.waiting.get_mut(&attempt) {
                    waiting.lanes.remove(&lane);
                    if waiting.lanes.is_empty() {
                        self.live.waiting.remove(&attempt);
                        self.live.durable.push(attempt);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Tells the machine of a chunk that is durable, in any order.
    pub(in crate::backfill::simulation) fn acknowledge(
        &mut self,
        source: &mut Source,
        rng: &mut Prng,
    ) -> Result<bool, String> {
        if self.live.durable.is_empty() {
            return Ok(false);
        }
        let attempt = self.live.durable.swap_remove(rng.below(self.live.durable.len()));
        let commands = self.live.machine.durable(attempt);
        self.carry_out(commands, source, rng)?;
        Ok(true)
    }

    /// A lane is torn down and built again: its queue is lost, the stream begins where it was.
    pub(in crate::backfill::simulation) fn lose_lane(
        &mut self,
        source: &mut Source,
        rng: &mut Prng,
    ) -> Result<(), String> {
        let lane = rng.below(self.live.lanes.len());
        let live = &mut self.live.lanes[lane];
        live.queue.clear();
        if self.disk.lanes[lane].purge {
            live.queue.push_back(Item::Purge);
        }
        live.received = live.accepted;
        let from = live.accepted.max(self.disk.confirmed);
        let position = source.wal.iter().position(|record| record.end > from && record.start >= from);
        self.live.position = self.live.position.min(position.unwrap_or(source.wal.len()));
        self.live.waiting.retain(|_, waiting| !waiting.lanes.contains(&lane));
        if self.fault != Some(Fault::NoRewind) {
            let table = self.disk.oids[self.disk.lanes[lane].table];
            let commands = self.live.machine.rewind(table);
            return self.carry_out(commands, source, rng);
        }
        Ok(())
    }

    pub(in crate::backfill::simulation) fn sink_failed(
        &mut self,
        source: &mut Source,
        rng: &mut Prng,
    ) -> Result<(), String> {
        let table = self.disk.oids[rng.below(TABLES)];
        let commands = self.live.machine.delivery_failed(table, "sink".into(), self.now);
        self.carry_out(commands, source, rng)
    }

    pub(in crate::backfill::simulation) fn relation_changed(
        &mut self,
        source: &mut Source,
        rng: &mut Prng,
    ) -> Result<(), String> {
        let (table, key) = (self.disk.oids[rng.below(TABLES)], rng.chance(20));
        let commands = self.live.machine.relation_changed(table, key);
        self.carry_out(commands, source, rng)
    }

    pub(in crate::backfill::simulation) fn yield_to_live(
        &mut self,
        on: bool,
        source: &mut Source,
        rng: &mut Prng,
    ) -> Result<(), String> {
        let commands = self.live.machine.yield_to_live(on);
        self.carry_out(commands, source, rng)
    }
}

impl LaneDisk {
    pub(super) fn apply(&mut self, event: &Event, generation: u32) {
        let (table, old, new, seq) = keys_of(event);
        if table != self.table {
            return;
        }
        if let Event::Truncate { .. } = event {
            self.docs.clear();
            self.newest_truncate = self.newest_truncate.max(seq);
        }
        for key in old.into_iter().chain(new) {
            self.docs.remove(&key);
            let newest = self.newest.entry(key).or_default();
            *newest = seq.max(*newest);
        }
        if let Some(key) = new {
            self.docs.insert(key, (seq, generation));
        }
    }
}
