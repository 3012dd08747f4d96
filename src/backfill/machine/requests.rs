//! What is asked of the machine: runs that begin, wait behind another, are withdrawn or begin again.

use std::sync::Arc;

use crate::backfill::{Command, Controls, RestartReason, RunSpec, Timestamp, Window, covers, run::Run};

use super::Machine;
#[cfg(test)]
use super::Sabotage;

impl<P> Machine<P> {
    /// Begins a run, or takes up a stored one, at this place of the stream: its targets receive every
    /// transaction from the next one on (but for [`RunSpec::skip_until`]).
    ///
    /// A run of a whole table takes the place of the table's present one, scoped or not: that one's progress
    /// is discarded, its mappings are joined, its pause is kept. It also takes the place of scoped runs that
    /// wait and whose mappings it has. A scoped run waits behind the table's present one. So of stored runs,
    /// those of whole tables are to be added first.
    pub fn add(&mut self, mut spec: RunSpec) -> Vec<Command<P>> {
        let mut out = Vec::new();
        #[cfg(test)]
        let mut kept = None;
        let waits = spec.scope.is_some() && self.runs.contains_key(&spec.table);
        #[cfg(test)]
        let waits = waits && self.sabotage != Some(Sabotage::ScopedAtOnce);
        if waits {
            self.waiting.entry(spec.table).or_default().push_back(spec);
            return self.proceed(out);
        }
        if let Some(old) = self.runs.remove(&spec.table) {
            #[cfg(test)]
            if self.sabotage == Some(Sabotage::KeepWindow) {
                kept = Some(old.window);
            }
            #[cfg(test)]
            if self.sabotage == Some(Sabotage::WholeKeepsScope) {
                spec.scope.clone_from(&old.spec.scope);
            }
            #[cfg(test)]
            let own = spec.mappings.clone();
            out.push(supersede(&mut spec, old.spec));
            #[cfg(test)]
            if self.sabotage == Some(Sabotage::MappingsNotJoined) {
                spec.mappings = own;
            }
        }
        self.cover(&spec, &mut out);
        self.begin(spec);
        #[cfg(test)]
        if let Some((window, run)) = kept.zip(self.runs.values_mut().max_by_key(|run| run.turn)) {
            run.window = window;
        }
        self.proceed(out)
    }

    /// Scoped runs that wait, and whose rows and mappings this run has: they are done with it.
    fn cover(&mut self, spec: &RunSpec, out: &mut Vec<Command<P>>) {
        let Some(waiting) = self.waiting.get_mut(&spec.table).filter(|_| spec.scope.is_none()) else {
            return;
        };
        waiting.retain(|scoped| {
            let covered = scoped.mappings.is_subset(&spec.mappings);
            if covered {
                let (old, new) = (Arc::clone(&scoped.run), Arc::clone(&spec.run));
                out.push(Command::Supersede { old, new, mappings: spec.mappings.clone() });
            }
            !covered
        });
    }

    fn begin(&mut self, spec: RunSpec) {
        let baselines = self.baseline.iter().chain(&spec.baseline).cloned().collect();
        let window = Window::new(self.limbo.unseen(), baselines, self.settings.window_bytes);
        #[cfg(test)]
        let window = match self.sabotage {
            Some(Sabotage::ForgetLimboAtTurn) if spec.scope.is_some() => {
                Window::new(std::iter::empty(), Vec::new(), self.settings.window_bytes)
            }
            _ => window,
        };
        let turn = self.next_turn();
        self.runs.insert(spec.table, Run::new(spec, window, &self.settings, turn));
    }

    /// The table's run is over: the next one of those that wait behind it begins.
    pub(super) fn end(&mut self, table: u32) -> Option<RunSpec> {
        let ended = self.runs.remove(&table)?.spec;
        let next = self.waiting.get_mut(&table).and_then(std::collections::VecDeque::pop_front);
        #[cfg(test)]
        let next = next.filter(|_| self.sabotage != Some(Sabotage::ForgetWaiting));
        match next {
            Some(next) => self.begin(next),
            None => drop(self.waiting.remove(&table)),
        }
        Some(ended)
    }

    /// The answer to [`Command::Begin`]: whether the run begins. Otherwise it was withdrawn, and is forgotten.
    /// That may also be told unasked, of any run that has not begun.
    ///
    /// Its targets are made ready for it where it begins, emptied or built in another place. What was streamed before is
    /// not in there, so that no row may be left out for its sake: it has to be visible to what is read.
    pub fn begun(&mut self, run: &str, granted: bool) -> Vec<Command<P>> {
        if let Some((&table, run)) = self.runs.iter_mut().find(|(_, known)| *known.spec.run == *run) {
            run.asked = false;
            if granted && !run.spec.started {
                run.spec.started = true;
                run.window.forget();
            }
            if !run.spec.started {
                self.end(table);
            }
        } else if !granted {
            let stays = |spec: &RunSpec| spec.started || *spec.run != *run;
            self.waiting.values_mut().for_each(|waiting| waiting.retain(stays));
        }
        self.proceed(Vec::new())
    }

    /// Begins the table's run again from the first row.
    pub fn restart(&mut self, table: u32) -> Vec<Command<P>> {
        let mut out = Vec::new();
        if let Some(run) = self.runs.get_mut(&table) {
            run.restart(RestartReason::Asked, &mut out);
        }
        self.proceed(out)
    }

    /// The table's key is another one: what its runs have read is numbered otherwise.
    pub(super) fn key_changed(&mut self, table: u32, out: &mut Vec<Command<P>>) {
        if let Some(run) = self.runs.get_mut(&table) {
            run.restart(RestartReason::KeyChanged, out);
        }
        let waiting = self.waiting.get_mut(&table).into_iter().flatten();
        for spec in waiting.filter(|spec| spec.cursor.is_some()) {
            (spec.cursor, spec.rows, spec.chunks) = (None, 0, 0);
            let reason = RestartReason::KeyChanged;
            out.push(Command::Restart { run: Arc::clone(&spec.run), reason });
        }
    }

    /// Ends a mapping's part in the table's runs; gives the runs that have no mapping left and are forgotten.
    pub fn remove_mapping(&mut self, table: u32, mapping: &str) -> Vec<Arc<str>> {
        let mut forgotten = Vec::new();
        if let Some(waiting) = self.waiting.get_mut(&table) {
            waiting.retain_mut(|spec| {
                let last = spec.mappings.remove(mapping) && spec.mappings.is_empty();
                if last {
                    forgotten.push(Arc::clone(&spec.run));
                }
                !last
            });
        }
        if let Some(run) = self.runs.get_mut(&table)
            && run.spec.mappings.remove(mapping)
            && run.spec.mappings.is_empty()
        {
            forgotten.extend(self.end(table).map(|spec| spec.run));
        }
        forgotten
    }

    /// Who is paused and how fast tables are read, from now on. What is in flight goes on.
    pub fn control(&mut self, controls: Controls, now: Timestamp) -> Vec<Command<P>> {
        self.now = self.now.max(now);
        self.pace.set(controls, self.now);
        self.proceed(Vec::new())
    }
}

/// The new run takes the old one's place, with what is owed to the mappings of both.
fn supersede<P>(spec: &mut RunSpec, old: RunSpec) -> Command<P> {
    spec.mappings.extend(old.mappings);
    (spec.attempts, spec.not_before) = (old.attempts, old.not_before);
    spec.skip_until = spec.skip_until.max(old.skip_until);
    spec.baseline = match (spec.baseline.take(), old.baseline) {
        (Some(one), Some(two)) => Some(if covers(&one, &two) { one } else { two }),
        (one, two) => one.or(two),
    };
    spec.started |= old.started;
    Command::Supersede { old: old.run, new: Arc::clone(&spec.run), mappings: spec.mappings.clone() }
}
