//! When a mapping's destination is built beside what its readers see, when they are switched, and what is given up.
//!
//! Pure bookkeeping of one mapping, for sinks that can do it. The pump asks where a piece of work goes and what is due,
//! hands that to the lane, in its place in the order, and tells what was accepted; the lane's order is the sink's.
//!
//! Guarantees: a place is begun before the first row that is read for it, and from there on every live change goes to
//! it and to what readers see; rows that a rebuild reads go to it alone. Readers are switched once the generation is
//! built, and that is saved. A place whose generation is over is abandoned, once that is saved. It must never go on with
//! a rebuild that has rows in another place.

use std::{collections::VecDeque, sync::Arc};

use crate::model::Place;

use super::WorkId;

/// What a sink can do for a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ability {
    /// Nothing: documents of a new generation take the place of the old ones one by one.
    #[default]
    InPlace,
    /// It could, but the destination is not the mapping's alone: what was begun is given up.
    Abandons,
    /// It builds beside.
    Builds,
}

/// Where a mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its generation.
    pub generation: i64,
    /// The last one whose backfill is complete.
    pub built: i64,
}

/// Something for the sink to do with a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placing {
    /// Make it, empty.
    Begin(Place),
    /// Readers see it from now on.
    Switch(Place),
    /// Remove it.
    Abandon(Place),
}

impl Placing {
    /// The place.
    #[must_use]
    pub fn place(&self) -> &Place {
        match self {
            Self::Begin(place) | Self::Switch(place) | Self::Abandon(place) => place,
        }
    }
}

/// The places of one mapping.
#[derive(Clone, Debug, Default)]
pub struct Places {
    ability: Ability,
    /// What the state schema says is being built.
    recorded: Option<Place>,
    /// What is being built once everything that was handed out is done.
    current: Option<Place>,
    /// Of no use any more.
    obsolete: Vec<Place>,
    under_way: VecDeque<(WorkId, Placing)>,
    /// The run for which it is decided where it is built.
    decided: Option<Arc<str>>,
    /// What is due once everything that was noted before this barrier is saved.
    barrier: Option<(u64, Placing)>,
}

impl Places {
    /// As a term begins, with what is stored.
    #[must_use]
    pub fn new(ability: Ability, recorded: Option<Place>) -> Self {
        Self { ability, current: recorded.clone(), recorded, ..Self::default() }
    }

    /// The sink is another one now.
    pub fn fit(&mut self, ability: Ability) {
        self.ability = ability;
    }

    /// Where nothing can be done any more with what was begun, all of it is forgotten, also what is in hand and may be
    /// begun all the same. Gives it.
    pub fn forget(&mut self) -> Vec<Place> {
        if self.ability != Ability::InPlace {
            return Vec::new();
        }
        let under_way =
            std::mem::take(&mut self.under_way).into_iter().map(|(_, placing)| placing.place().clone());
        let known = self.recorded.take().into_iter().chain(self.current.take());
        let mut forgotten: Vec<Place> =
            known.chain(std::mem::take(&mut self.obsolete)).chain(under_way).collect();
        forgotten.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        forgotten.dedup();
        forgotten
    }

    /// Where work that is handed out now goes, beside what readers see.
    #[must_use]
    pub fn place(&self, standing: Standing) -> Option<&Place> {
        self.current
            .as_ref()
            .filter(|place| self.ability != Ability::InPlace && place.generation() == standing.generation)
    }

    /// Whether it is still to be decided where a run is built: once it has begun that is decided, whatever it has read
    /// since.
    pub fn decides(&mut self, run: &Arc<str>, has_begun: bool) -> bool {
        let decides = self.decided.as_ref() != Some(run);
        if has_begun {
            self.decided = Some(Arc::clone(run));
        }
        decides
    }

    /// A backfill of the whole table begins, or goes on, before any of its rows is handed out. Gives what has to be
    /// handed out before them. Where it `has_rows` already, they are where they are, and the rest follows them. Where a
    /// `purge` is due, what was begun before has something in it, and another place is begun.
    pub fn begin(&mut self, standing: Standing, has_rows: bool, purge: bool, token: u32) -> Option<Placing> {
        let begins = self.ability == Ability::Builds && standing.built < standing.generation && !has_rows;
        let has_place = self.place(standing).is_some();
        if !begins || (has_place && (!purge || self.is_beginning())) {
            return None;
        }
        self.obsolete.extend(self.current.take());
        let place = Place::new(standing.generation, token);
        self.current = Some(place.clone());
        Some(Placing::Begin(place))
    }

    /// Whether what is built is begun by what is in hand.
    fn is_beginning(&self) -> bool {
        let begins = |placing: &Placing| matches!(placing, Placing::Begin(place) if self.current.as_ref() == Some(place));
        self.under_way.iter().any(|(_, placing)| begins(placing))
    }

    /// What is due as soon as everything that was noted up to now is saved.
    #[must_use]
    pub fn due(&self, standing: Standing) -> Option<Placing> {
        if self.ability == Ability::InPlace || !self.under_way.is_empty() {
            return None;
        }
        if let Some(place) = self.obsolete.first() {
            return Some(Placing::Abandon(place.clone()));
        }
        let current = self.current.as_ref()?;
        if current.generation() != standing.generation {
            return Some(Placing::Abandon(current.clone()));
        }
        let is_built = standing.built >= standing.generation;
        (is_built && self.recorded.as_ref() == Some(current)).then(|| Placing::Switch(current.clone()))
    }

    /// Looks at what is due. Where that is news and the mapping `follows` the stream, it waits for a barrier of this
    /// `number`, which is to be noted: gives whether.
    pub fn look(&mut self, standing: Standing, follows: bool, number: u64) -> bool {
        let due = self.due(standing);
        if self.barrier.as_ref().map(|(_, waits)| waits) == due.as_ref() {
            return false;
        }
        self.barrier = due.filter(|_| follows).map(|due| (number, due));
        self.barrier.is_some()
    }

    /// Everything that was noted before this barrier is saved. Gives what is to be handed out, unless something else is due
    /// by now.
    pub fn passed(&mut self, barrier: u64, standing: Standing) -> Option<Placing> {
        let (_, waits) = self.barrier.take_if(|(number, _)| *number == barrier)?;
        self.due(standing).filter(|due| *due == waits)
    }

    /// It was handed out.
    pub fn handed(&mut self, work: WorkId, placing: Placing) {
        if !matches!(placing, Placing::Begin(_)) {
            self.obsolete.retain(|place| place != placing.place());
            self.current.take_if(|place| place == placing.place());
        }
        self.under_way.push_back((work, placing));
    }

    /// Work was accepted. Where that changes what is being built, gives it, to be recorded.
    pub fn accepted(&mut self, work: WorkId) -> Option<Option<&Place>> {
        let (_, placing) = self.under_way.pop_front_if(|(id, _)| *id == work)?;
        match placing {
            Placing::Begin(place) => self.recorded = Some(place),
            Placing::Switch(place) | Placing::Abandon(place) => {
                self.recorded.take_if(|recorded| *recorded == place)?;
            }
        }
        Some(self.recorded.as_ref())
    }

    /// What was handed out and not accepted is dropped, or may be done all the same.
    pub fn let_go(&mut self) {
        for (_, placing) in std::mem::take(&mut self.under_way) {
            self.obsolete.push(placing.place().clone());
        }
        self.obsolete.retain(|place| self.recorded.as_ref() != Some(place));
        self.current.clone_from(&self.recorded);
        self.barrier = None;
    }
}

#[cfg(test)]
mod tests;
