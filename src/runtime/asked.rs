//! What becomes of what operators ask for: requested backfills begin, purges are handed out and noted, pauses
//! and rates reach the machine, a suspension ends the term. A table with another key begins anew in the same way.

use std::sync::Arc;

use tracing::{info, warn};

use crate::{
    backfill::{Controls, RunSpec, RunView, TableControl},
    model::EntityName,
    pgoutput::RawRelation,
    pipeline::{LaneId, WorkId},
    state::{StoredControl, StoredMapping, StoredRequest, StoredRun, Target},
};

use super::{
    branch::{scoped, stored_run},
    plan::Planned,
    pump::{Pump, Stopped},
    requests::Asked,
    scribe::Note,
    shutdown::now_micros,
    term::Lane,
    token::handed,
};

impl Pump {
    pub(super) fn on_asked(&mut self, asked: Asked) -> Option<Stopped> {
        match asked {
            Asked::Controls(controls) => self.control(&controls),
            Asked::Cancelled(entities) => entities.iter().for_each(|entity| self.cancelled(entity)),
            Asked::Backfills(requests) => requests.into_iter().for_each(|request| self.requested(request)),
            Asked::Quarantined(counts) => self.quarantined(&counts),
            Asked::Suspended => {
                info!("the installation is suspended: the term drains and ends");
                return Some(Stopped::Again);
            }
        }
        None
    }

    /// Pauses and rates hold from now on.
    pub(super) fn control(&mut self, stored: &[StoredControl]) {
        let mut controls = Controls::default();
        for control in stored {
            let StoredControl { entity, paused, rows_per_second } = control;
            info!(
                entity = entity.as_ref().map(tracing::field::display),
                paused, rows_per_second, "backfills are controlled"
            );
            let Some(entity) = entity else {
                (controls.paused, controls.rows_per_second) = (*paused, *rows_per_second);
                continue;
            };
            for lane in self.lanes.values().filter(|lane| lane.planned.stored.entity == *entity) {
                let control = TableControl { paused: *paused, rows_per_second: *rows_per_second };
                controls.tables.insert(lane.planned.table.oid, control);
            }
        }
        let commands = self.machine.control(controls, now_micros());
        self.carry_out(commands);
    }

    /// So many rows are stored as being in quarantine.
    fn quarantined(&mut self, counts: &[(String, u64)]) {
        for lane in self.lanes.values() {
            let count =
                counts.iter().find(|(mapping, _)| mapping == lane.name()).map_or(0, |(_, rows)| *rows);
            if let Some(handle) = &lane.handle {
                handle.quarantine_is(count);
            }
        }
        self.observer.news();
    }

    /// Forgets the run of a table that was withdrawn before it began, so that no later request joins it.
    fn cancelled(&mut self, entity: &EntityName) {
        let queued = |view: &RunView<'_>| view.entity == entity && view.scope.is_none() && !view.started;
        let run = self.machine.runs().find(|(_, view)| queued(view)).map(|(_, view)| Arc::clone(view.run));
        if let Some(run) = run {
            self.withdrawn(&run);
        }
    }

    /// Somebody has withdrawn a run before it began.
    pub(super) fn withdrawn(&mut self, run: &Arc<str>) {
        self.branch.withdrawn(run, &mut self.lanes);
        let commands = self.machine.begun(run, false);
        self.carry_out(commands);
    }

    fn requested(&mut self, request: StoredRequest) {
        let meant = |lane: &&Lane| match &request.target {
            Target::Mapping(name) => lane.name() == name,
            Target::Table(entity) => lane.planned.stored.entity == *entity,
        };
        let meant: Vec<LaneId> = self.lanes.values().filter(meant).map(|lane| lane.id).collect();
        if request.scope.is_some() {
            self.requested_part(request, &meant)
        } else {
            self.renew(&meant, request.purge, vec![request.id])
        }
    }

    /// The rows of a table are told apart by another key from here on: documents have other ids, and none that is
    /// there would ever be replaced or deleted. All of them are purged, where the sink can, and made again.
    pub(super) fn rekeyed(&mut self, table: u32) {
        self.rekeying.retain(|_, of| *of != table);
        let meant = self.built_from(table);
        for lane in meant.iter().filter_map(|id| self.lanes.get(id)) {
            warn!(
                mapping = lane.name(),
                entity = %lane.planned.stored.entity,
                "the key of its table is another one: its documents are purged where the sink can, and rebuilt",
            );
        }
        if !meant.is_empty() {
            self.renew(&meant, true, Vec::new());
        }
    }

    /// Rows of a table come under another name than the mapped one, and are nobody's. When the name is back, they
    /// were missed: it is built again, once there is a table of its name. Told again of what is not read yet, there is
    /// nothing more to do.
    pub(super) fn renamed_away(&mut self, raw: &RawRelation) {
        let meant = self.built_from(raw.oid);
        let waits = |lane: &Lane| {
            let read = self.machine.run(raw.oid).is_some_and(|view| view.rows > 0);
            lane.planned.needs_backfill() && !read
        };
        let wait = meant.iter().filter_map(|id| self.lanes.get(id)).all(waits);
        if !self.relations.goes_away(raw.oid) && wait {
            return;
        }
        for lane in meant.iter().filter_map(|id| self.lanes.get(id)) {
            warn!(
                mapping = lane.name(),
                entity = %lane.planned.stored.entity,
                now = %raw.name,
                "its table has got another name, and what is changed there is not its own: it is built again once \
                 there is a table of its name",
            );
        }
        if !meant.is_empty() {
            self.renew(&meant, self.context.config.source.purge_on_repair, Vec::new());
        }
    }

    /// The mappings that have documents of a table, and go on.
    fn built_from(&self, table: u32) -> Vec<LaneId> {
        let meant = |lane: &&Lane| {
            let Planned { table: of, cancelled, stored, .. } = &lane.planned;
            of.oid == table && !cancelled && stored.generation > 0
        };
        self.lanes.values().filter(meant).map(|lane| lane.id).collect()
    }

    /// Whether each mapping of a table is built again where the table has another key.
    pub(super) fn is_rebuilt_whole(&self, table: u32) -> bool {
        let of_table = self.lanes.values().filter(|lane| lane.planned.table.oid == table).count();
        self.built_from(table).len() == of_table
    }

    /// Each mapping that is meant gets a new generation, also one that cannot run now: it is backfilled when it
    /// can.
    fn renew(&mut self, meant: &[LaneId], purge: bool, requests: Vec<i64>) {
        let running: Vec<LaneId> = meant.iter().copied().filter(|id| self.follows(*id)).collect();
        for id in meant {
            let Some(lane) = self.lanes.get_mut(id) else { continue };
            lane.planned.cancelled = false;
            lane.planned.stored.generation += 1;
            lane.planned.stored.purge |= purge;
            lane.planned.stored.accepted = self.ledger.position(lane.id);
            if let Some(handle) = &lane.handle {
                handle.regenerate(lane.planned.stored.generation, &self.context.server);
            }
        }
        let spec = self.branch.run_for(&mut self.lanes, &running, &self.ledger);
        let run = spec.as_ref().map(|spec| self.as_stored(spec));
        let mappings: Vec<StoredMapping> = meant
            .iter()
            .filter_map(|id| self.lanes.get(id))
            .map(|lane| lane.planned.stored.clone())
            .collect();
        self.scribe.note(Note::Requested { mappings, run, requests });
        if let Some(spec) = spec {
            self.add_run(spec);
        }
    }

    /// How a whole table's run is stored that is about to begin. In place of one that has begun, it has, too.
    pub(super) fn as_stored(&self, spec: &RunSpec) -> Box<StoredRun> {
        let begun = self.machine.run(spec.table).is_some_and(|view| view.started);
        Box::new(stored_run(spec, begun))
    }

    /// Begins a run that is stored, with the purges that are due to its mappings.
    pub(super) fn add_run(&mut self, spec: RunSpec) {
        let commands = self.machine.add(spec);
        self.carry_out(commands);
        self.hand_out_purges();
    }

    /// A part of a table is read for mappings that follow the stream; for others, once they do.
    fn requested_part(&mut self, request: StoredRequest, meant: &[LaneId]) {
        if !meant.iter().any(|id| self.lanes.get(id).is_some_and(Lane::works) && self.follows(*id)) {
            self.parked.push(request);
            return;
        }
        let Some(scope) = request.scope else { return };
        let run = uuid::Uuid::new_v4().to_string();
        let Some(spec) = scoped(&run, scope, meant, &self.lanes, &self.ledger) else { return };
        let run = Some(Box::new(stored_run(&spec, false)));
        self.scribe.note(Note::Requested { mappings: Vec::new(), run, requests: vec![request.id] });
        self.add_run(spec);
    }

    /// Looks again at requests whose mappings did not work.
    pub(super) fn take_up_parked(&mut self) {
        let parked = std::mem::take(&mut self.parked);
        parked.into_iter().for_each(|request| self.requested(request));
    }

    pub(super) fn follows(&self, id: LaneId) -> bool {
        self.lanes.get(&id).is_some_and(|lane| lane.follows(&self.ledger))
    }

    /// Empties a mapping's destination, in its place in the order. It is noted when it is done.
    fn purge(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id)
            && let Some(handle) = &lane.handle
        {
            let work = self.ledger.dispatched(id);
            handle.purge(work, handed(&self.ledger, id));
            lane.purging = Some(work);
        }
    }

    /// Work was accepted: perhaps the purge that was due, before anything of the generation is.
    pub(super) fn purged(&mut self, id: LaneId, work: WorkId) {
        let Some(lane) = self.lanes.get_mut(&id).filter(|lane| lane.purging == Some(work)) else { return };
        (lane.purging, lane.planned.stored.purge) = (None, false);
        self.scribe.note(Note::Purged { mapping: lane.name().to_owned() });
    }

    /// Hands out the purges that are due to mappings whose run has begun: before its first chunk, and not while
    /// it can still be withdrawn, since nothing would fill the destination then. What is built in a place of its own begins
    /// there, and needs none.
    pub(super) fn hand_out_purges(&mut self) {
        self.begin_places();
        let due = |lane: &&Lane| {
            let begun = |run| {
                self.machine.run(lane.planned.table.oid).is_some_and(|view| view.run == run && view.started)
            };
            let due = lane.planned.stored.purge && lane.purging.is_none() && self.follows(lane.id);
            let due = due && lane.place().is_none();
            due && lane.run.as_ref().is_some_and(begun)
        };
        let due: Vec<LaneId> = self.lanes.values().filter(due).map(|lane| lane.id).collect();
        due.into_iter().for_each(|id| self.purge(id));
    }
}
