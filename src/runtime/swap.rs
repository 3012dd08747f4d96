//! The pump's mappings as they change: which backfills begin, and what becomes of a lane whose plugin changed.
//!
//! A swap happens at a batch boundary of a running term, and only where nothing else changes with the plugin;
//! everything else ends the term, and the next one takes it up.

use std::{collections::BTreeMap, sync::Arc};

use tracing::{error, info, warn};

use crate::{
    backfill::RunView,
    model::{Failure, FailureClass},
    pipeline::{Decision, Difference, LaneId, Step, compare},
    plugin::Plugin,
    state::StoredRun,
};

use super::{
    error::TermError,
    outlet, placing, plan,
    pump::{Pump, Stopped},
    reload::{PluginSet, Reloads},
    scribe::Note,
    shutdown::now_micros,
};

/// What a set of plugins asks for, and what that means for each mapping.
type Judged = (Vec<plan::WantedMapping>, Vec<Step>);

/// So many failures in a row are no hiccup.
const LASTING_ATTEMPTS: u32 = 3;

impl Pump {
    /// Begins the runs that stored progress and decisions ask for, `scoped` behind those of whole tables.
    pub(super) fn begin_backfills(&mut self, scoped: &[StoredRun]) {
        let mut specs = self.branch.first_runs(&mut self.lanes, &self.ledger, &self.scribe);
        specs.extend(self.branch.scoped_runs(scoped, &self.lanes, &self.ledger, &self.scribe));
        specs.into_iter().for_each(|spec| self.add_run(spec));
    }

    /// A target of a run fails. Once that looks lasting, the run goes on without it, for the targets that work;
    /// where none works, the run waits and lets other tables read.
    pub(super) fn target_failed(&mut self, id: LaneId, attempts: u32, failure: &Failure) {
        let Some(lane) = self.lanes.get(&id) else { return };
        let (table, name) = (lane.planned.table.oid, lane.name());
        let Some(view) = self.machine.run(table).filter(|view| view.mappings.contains(name)) else { return };
        if !self.run_works(&view) {
            let commands = self.machine.delivery_failed(table, failure.to_string(), now_micros());
            self.carry_out(commands);
        } else if failure.class != FailureClass::Retry || attempts >= LASTING_ATTEMPTS {
            warn!(
                mapping = lane.name(),
                entity = %lane.planned.stored.entity,
                "leaves its table's backfill, which goes on for the others; it gets one of its own once it works",
            );
            self.leave_run(id);
        }
    }

    /// The runs of its table go on without a mapping; chunks that only waited for it are done.
    fn leave_run(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.leave_run(&mut self.machine, &self.scribe);
        for attempt in self.branch.release(id) {
            let commands = self.machine.durable(attempt);
            self.carry_out(commands);
        }
    }

    /// Begins runs for mappings that wait for one and work: when their table's present run is done, so that its
    /// progress is not lost, or has had no target that works for a while.
    pub(super) fn take_up_backfills(&mut self) {
        let mut due: BTreeMap<u32, Vec<LaneId>> = BTreeMap::new();
        for (&id, lane) in &self.lanes {
            let table = lane.planned.table.oid;
            let waits = lane.run.is_none() && lane.planned.needs_backfill() && lane.works();
            if waits && self.ledger.follows(id) && !self.is_read_for_others(table) {
                due.entry(table).or_default().push(id);
            }
        }
        due.into_values().for_each(|ids| self.rebuild(&ids));
    }

    /// Whether a table's present run is worth waiting for.
    fn is_read_for_others(&self, table: u32) -> bool {
        let present = self.machine.run(table);
        present.is_some_and(|view| view.attempts < LASTING_ATTEMPTS || self.run_works(&view))
    }

    /// Whether a target of a run works.
    fn run_works(&self, run: &RunView<'_>) -> bool {
        self.lanes.values().any(|lane| run.mappings.contains(lane.name()) && lane.works())
    }

    /// Begins a run for mappings of one table.
    fn rebuild(&mut self, ids: &[LaneId]) {
        if let Some(spec) = self.branch.run_for(&mut self.lanes, ids, &self.ledger) {
            self.scribe.note(Note::Run(self.as_stored(&spec)));
            self.add_run(spec);
        }
    }

    /// Plugins changed: lanes whose transform or sink is another version now are swapped at this boundary, and
    /// rebuilt beside the stream. What cannot be done in a running term ends it. What is taken up is at work from then
    /// on, also for the terms that follow.
    pub(super) fn on_reload(
        &mut self,
        plugins: Arc<PluginSet>,
        reloads: &mut Reloads,
    ) -> Result<Option<Stopped>, TermError> {
        let Some((mut wanted, mut steps)) = self.judge(&plugins)? else { return Ok(None) };
        let mut plugins = plugins;
        let refused = self.refused(&wanted, &steps, &reloads.at_work);
        if !refused.is_empty() {
            // A plugin serves all of its mappings, so that one that must keep it keeps it for all.
            plugins = Arc::new(refused.iter().fold((*plugins).clone(), |set, plugin| set.with(plugin)));
            let Some(judged) = self.judge(&plugins)? else { return Ok(None) };
            (wanted, steps) = judged;
        }
        // Before anything is done with them: whatever ends the term from here on, the next one goes on with these.
        reloads.at_work = Arc::clone(&plugins);
        let stops = |step: &Step| {
            wanted.iter().any(|wanted| wanted.mapping.name == step.mapping && wanted.stopped.is_some())
        };
        let in_place =
            |step: &Step| if stops(step) { self.is_stopped(&step.mapping) } else { self.swappable(step) };
        if !steps.iter().all(in_place) {
            return Ok(Some(Stopped::Reconfigure(plugins)));
        }
        // First, so that what is built from now on is delivered by the sink that it is built for.
        outlet::fit(&self.context.sinks, &self.context.config, &plugins);
        for step in steps.iter().filter(|step| !stops(step)) {
            let wanted = wanted.iter().find(|wanted| wanted.mapping.name == step.mapping);
            let lane = self.lanes.values().find(|lane| lane.name() == step.mapping).map(|lane| lane.id);
            if let (Some(wanted), Some(id)) = (wanted, lane) {
                self.swap(id, wanted, &step.decision, &plugins)?;
            }
        }
        self.note_held(&wanted);
        Ok(None)
    }

    /// What a set of plugins asks for; none where it does not fit the config.
    fn judge(&self, plugins: &PluginSet) -> Result<Option<Judged>, TermError> {
        let wanted = match plan::wanted(&self.context.config, plugins) {
            Ok(wanted) => wanted,
            Err(error) => {
                warn!("the changed plugins do not fit the config, what ran before goes on: {error}");
                return Ok(None);
            }
        };
        let stored = plan::identities(self.lanes.values().map(|lane| &lane.planned.stored))?;
        let steps = compare(&plan::wanted_identities(&wanted), &stored, self.context.dev);
        Ok(Some((wanted, steps)))
    }

    /// The plugins at work of which a running mapping refuses another revision. What else is changed of a mapping, its
    /// sink where the transform is refused, is not meant by that.
    fn refused(&self, wanted: &[plan::WantedMapping], steps: &[Step], at_work: &PluginSet) -> Vec<Plugin> {
        let mut kept = BTreeMap::new();
        for step in steps {
            let Decision::Refused { conflicts } = &step.decision else { continue };
            let runs = self.lanes.values().any(|lane| lane.name() == step.mapping && lane.handle.is_some());
            let new = wanted.iter().find(|wanted| wanted.mapping.name == step.mapping).filter(|_| runs);
            let Some(new) = new.map(|new| &new.rollout.identity) else { continue };
            for conflict in conflicts {
                let name = conflict.plugin();
                let stamps = [Some(&new.transform), new.sink_plugin.as_ref()];
                let stamp = stamps.into_iter().flatten().find(|stamp| stamp.name == name);
                let Some((old, stamp)) = at_work.named(name).zip(stamp) else { continue };
                if old.revision().sha256 != stamp.sha256 {
                    let mapping = &step.mapping;
                    error!(
                        mapping,
                        "the changed plugin is refused and the revision that runs stays: {conflict}"
                    );
                    kept.insert(name.to_owned(), old.clone());
                }
            }
        }
        kept.into_values().collect()
    }

    /// Whether a mapping is known and does not run.
    fn is_stopped(&self, mapping: &str) -> bool {
        self.lanes.values().any(|lane| lane.name() == mapping && lane.handle.is_none())
    }

    /// Says of mappings that a newer revision of their transform waits for a grant, or does no more.
    fn note_held(&mut self, wanted: &[plan::WantedMapping]) {
        for lane in self.lanes.values_mut() {
            let wanted = wanted.iter().find(|wanted| wanted.mapping.name == lane.planned.stored.name);
            let held = wanted.and_then(|wanted| wanted.held.clone());
            if lane.planned.stored.held != held {
                lane.planned.stored.held = held;
                let mut stored = lane.planned.stored.clone();
                stored.accepted = self.ledger.position(lane.id);
                self.scribe.note(Note::Mapping(Box::new(stored)));
            }
        }
    }

    /// Whether a running lane can do what a decision asks for.
    fn swappable(&self, step: &Step) -> bool {
        let lane = self.lanes.values().find(|lane| lane.name() == step.mapping);
        let runs = lane.is_some_and(|lane| lane.handle.is_some());
        match &step.decision {
            Decision::Unchanged | Decision::Adopt { .. } => runs,
            Decision::Rebuild { differences, .. } => {
                let moves = |difference: &Difference| {
                    matches!(difference, Difference::Route { .. } | Difference::Inputs { .. })
                };
                runs && !differences.iter().any(moves)
            }
            Decision::Refused { .. } => lane.is_some(),
            Decision::New { .. } | Decision::Removed => false,
        }
    }

    fn swap(
        &mut self,
        id: LaneId,
        wanted: &plan::WantedMapping,
        decision: &Decision,
        plugins: &PluginSet,
    ) -> Result<(), TermError> {
        let (rebuild, purge) = match decision {
            Decision::Rebuild { backfill, purge, .. } => (Some(*backfill), *purge),
            Decision::Adopt { .. } => (None, false),
            Decision::Refused { conflicts } => {
                let conflicts: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
                error!(
                    mapping = wanted.mapping.name,
                    "the changed plugin is refused, and nothing changes for the mapping: {}",
                    conflicts.join("; ")
                );
                return Ok(());
            }
            _ => return Ok(()),
        };
        let (Some(lane), Some(plugin)) =
            (self.lanes.get_mut(&id), plugins.plugins.get(&wanted.mapping.transform))
        else {
            return Ok(());
        };
        let is_lost = placing::fit(lane, &self.context.sinks);
        // Whatever the change itself asks for.
        let rebuild = if is_lost { Some(true) } else { rebuild };
        let stored = &mut lane.planned.stored;
        stored.identity = plan::identity_text(&wanted.mapping.name, &wanted.rollout.identity)?;
        if let Some(backfill) = rebuild {
            stored.built = stored.built_by_change(backfill);
            stored.generation += 1;
        }
        stored.accepted = self.ledger.position(id);
        stored.since = Some(self.ledger.processed());
        stored.purge |= purge;
        let (stored, is_read) = (stored.clone(), rebuild.is_some() && lane.planned.needs_backfill());
        info!(
            mapping = stored.name,
            plugin = %plugin.revision(),
            version = wanted.rollout.identity.version_text(),
            generation = stored.generation,
            rebuild = is_read,
            lsn = %self.ledger.processed(),
            "swapped its transform or sink",
        );
        let active =
            plan::active(&self.context.config, &wanted.mapping, &stored, plugin, &self.context.server);
        if let Some(handle) = &lane.handle {
            handle.replace(active);
        }
        // What was read for the old version is of no use; what was read for others is.
        let waits = is_read && self.shares_a_run(id);
        if waits {
            self.leave_run(id);
        }
        self.scribe.note(Note::Mapping(Box::new(stored)));
        if is_read && !waits {
            self.rebuild(&[id]);
        }
        Ok(())
    }

    /// Whether its table is being read for other mappings: then it gets a run of its own behind that one.
    fn shares_a_run(&self, id: LaneId) -> bool {
        let Some(lane) = self.lanes.get(&id) else { return false };
        let table = lane.planned.table.oid;
        let others = |view: RunView<'_>| view.started && view.mappings.iter().any(|name| name != lane.name());
        self.machine.run(table).is_some_and(others) && self.is_read_for_others(table)
    }
}
