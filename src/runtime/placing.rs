//! Where mappings are built beside what readers see: hands out what the machine of `pipeline` asks for, in its place in
//! the order of each lane, and notes what becomes of it.

use std::time::Duration;

use tracing::warn;

use crate::{
    model::Place,
    pipeline::{Ability, LaneId, Places, Placing, WorkId},
    postgres::Lease,
};

use super::{
    outlet::{Outlet, Outlets},
    plan::{Left, Planned},
    pump::Pump,
    scribe::Note,
    term::{Context, Lane},
    token::handed,
};

/// How long a sink may take to remove what was left behind.
const REMOVE_LIMIT: Duration = Duration::from_secs(15);

/// The places of a mapping as a term begins.
pub(super) fn places(context: &Context, planned: &Planned) -> Places {
    Places::new(ability(&context.sinks[&planned.mapping.sink], planned), planned.stored.building.clone())
}

fn ability(outlet: &Outlet, planned: &Planned) -> Ability {
    match (outlet.capabilities().generations, planned.shares.is_empty()) {
        (false, _) => Ability::InPlace,
        (true, false) => Ability::Abandons,
        (true, true) => Ability::Builds,
    }
}

/// Its sink may be another one now. What only the one before could have removed is forgotten. Gives whether that had
/// rows of the present generation, or may have, which are in no place any more.
pub(super) fn fit(lane: &mut Lane, sinks: &Outlets) -> bool {
    let Some(outlet) = sinks.get(&lane.planned.mapping.sink) else { return false };
    lane.places.fit(ability(outlet, &lane.planned));
    let forgotten = lane.places.forget();
    forgotten.iter().for_each(|place| left_there(&lane.planned, place));
    if !forgotten.is_empty() {
        lane.planned.stored.building = None;
    }
    let generation = lane.planned.stored.generation;
    forgotten.iter().any(|place| place.generation() == generation)
}

/// The sink cannot build beside what readers see any more. Gives whether the present generation was begun there.
pub(super) fn forget(planned: &mut Planned) -> bool {
    let Some(place) = planned.stored.building.take() else { return false };
    left_there(planned, &place);
    place.generation() == planned.stored.generation
}

fn left_there(planned: &Planned, place: &Place) {
    warn!(
        mapping = planned.stored.name,
        destination = planned.mapping.destination,
        %place,
        "its sink builds in place now: what the one before had begun beside what readers see is left there; remove it by \
         hand",
    );
}

/// Removes what was begun for mappings that are gone, or lead somewhere else now. What cannot be removed is told.
pub(super) async fn remove_left(context: &Context, lease: &Lease, left: Vec<Left>) {
    for Left { sink, destination, place } in left {
        let outlet = context.sinks.get(&sink).filter(|outlet| outlet.capabilities().generations);
        let removing = async {
            let outlet = outlet.ok_or_else(|| "its sink is not there any more, or cannot".to_owned())?;
            lease.hold().await;
            outlet.abandon(&destination, &place).await.map_err(|failure| failure.to_string())
        };
        let removed = tokio::time::timeout(REMOVE_LIMIT, removing).await;
        if let Err(problem) = removed.unwrap_or_else(|_| Err("it takes too long".to_owned())) {
            warn!(
                sink,
                destination,
                %place,
                "what was begun beside what readers see is of no use any more, and could not be removed ({problem}): remove \
                 it by hand",
            );
        }
    }
}

impl Pump {
    /// Begins the places of mappings whose run has begun, before anything that it reads is handed out; where that is, is
    /// decided once for each run, as it begins. Before the first generation is built there is nothing to be kept up for
    /// readers: its place is begun as soon as the mapping follows the stream, so that nothing is delivered to where the
    /// sink would make something else of it.
    pub(super) fn begin_places(&mut self) {
        let mut due = Vec::new();
        for lane in self.lanes.values_mut() {
            if !lane.follows(&self.ledger) {
                continue;
            }
            let is_first = lane.standing().built == 0;
            let Some(run) = &lane.run else {
                if is_first {
                    due.push((lane.id, false));
                }
                continue;
            };
            let view = self.machine.run(lane.planned.table.oid).filter(|view| view.run == run);
            let Some(view) = view.filter(|view| view.started || is_first) else { continue };
            if lane.places.decides(run, view.started) {
                due.push((lane.id, view.rows > 0 || view.chunks > 0));
            }
        }
        for (id, has_rows) in due {
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            let (standing, purge) = (lane.standing(), lane.planned.stored.purge);
            if let Some(placing) = lane.places.begin(standing, has_rows, purge, rand::random()) {
                self.hand_out(id, placing);
            }
        }
    }

    fn hand_out(&mut self, id: LaneId, placing: Placing) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        let Some(handle) = &lane.handle else { return };
        let work = self.ledger.dispatched(id);
        handle.place(work, placing.clone(), handed(&self.ledger, id));
        lane.places.handed(work, placing);
    }

    /// Work was accepted: perhaps something that was done with a place.
    pub(super) fn placed(&mut self, id: LaneId, work: WorkId) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        let Some(recorded) = lane.places.accepted(work) else { return };
        let building = recorded.cloned();
        let stored = &mut lane.planned.stored;
        stored.building.clone_from(&building);
        // One that was handed out for a generation that is over was passed over.
        stored.purge &= building.as_ref().map(Place::generation) != Some(stored.generation);
        self.scribe.note(Note::Building { mapping: stored.name.clone(), building });
    }

    /// A lane has begun a place, and delivers nothing more before that is recorded; or what became of it, where nobody
    /// waits for it any more.
    pub(super) fn begun(&mut self, id: LaneId, work: WorkId) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        self.barriers += 1;
        lane.begun = Some((self.barriers, work));
        self.scribe.note(Note::Barrier(self.barriers));
    }

    /// Looks at what is due; it is handed out once everything that led to it is saved.
    pub(super) fn look_at_places(&mut self) {
        let Self { lanes, ledger, scribe, barriers, .. } = self;
        for lane in lanes.values_mut() {
            let (standing, follows) = (lane.standing(), lane.follows(ledger));
            if lane.places.look(standing, follows, *barriers + 1) {
                *barriers += 1;
                scribe.note(Note::Barrier(*barriers));
            }
        }
    }

    /// Everything that was noted before this barrier is saved.
    pub(super) fn passed(&mut self, barrier: u64) {
        let mut due = None;
        for lane in self.lanes.values_mut() {
            let begun = lane.begun.take_if(|(number, _)| *number == barrier);
            if let (Some((_, work)), Some(handle)) = (begun, &lane.handle) {
                handle.recorded(work);
            }
            let placing = lane.places.passed(barrier, lane.standing());
            due = due.or(placing.filter(|_| lane.follows(&self.ledger)).map(|placing| (lane.id, placing)));
        }
        if let Some((id, placing)) = due {
            self.hand_out(id, placing);
        }
    }
}
