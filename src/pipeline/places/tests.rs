//! The places of a mapping against a model of a host, its state schema and a sink, with crashes at every step.

use std::collections::{BTreeMap, VecDeque};

use super::*;

const G1: Standing = Standing { generation: 1, built: 1 };
const G2: Standing = Standing { generation: 2, built: 1 };
const BUILT: Standing = Standing { generation: 2, built: 2 };

fn builds(recorded: Option<Place>) -> Places {
    Places::new(Ability::Builds, recorded)
}

#[test]
fn a_rebuild_begins_is_recorded_and_is_switched_to() {
    let mut places = builds(None);
    assert_eq!((places.begin(G1, false, false, 7), places.place(G1)), (None, None));
    let place = Place::new(2, 7);
    assert_eq!(places.begin(G2, false, false, 7), Some(Placing::Begin(place.clone())));
    assert_eq!(places.due(BUILT), None, "it is nowhere");
    places.handed(WorkId(1), Placing::Begin(place.clone()));
    assert_eq!(places.place(G2), Some(&place), "what is handed out from now on goes there, too");
    assert_eq!(places.begin(G2, false, false, 8), None, "once");
    assert_eq!(places.due(BUILT), None, "it is not known to be there");
    assert_eq!(places.accepted(WorkId(0)), None);
    assert_eq!(places.accepted(WorkId(1)), Some(Some(&place)));
    assert_eq!(places.due(G2), None);
    assert_eq!(places.due(BUILT), Some(Placing::Switch(place.clone())));
    places.handed(WorkId(2), Placing::Switch(place.clone()));
    assert_eq!((places.place(BUILT), places.due(BUILT)), (None, None));
    assert_eq!(places.accepted(WorkId(2)), Some(None));
    assert_eq!(places.due(BUILT), None);
}

#[test]
fn another_generation_abandons_the_place_of_the_one_before() {
    let old = Place::new(2, 1);
    let mut places = builds(Some(old.clone()));
    let third = Standing { generation: 3, built: 1 };
    assert_eq!(places.place(third), None, "nothing of the new generation goes there");
    assert_eq!(places.due(third), Some(Placing::Abandon(old.clone())));
    let new = Place::new(3, 2);
    assert_eq!(places.begin(third, false, false, 2), Some(Placing::Begin(new.clone())));
    places.handed(WorkId(1), Placing::Begin(new.clone()));
    assert_eq!(places.accepted(WorkId(1)), Some(Some(&new)));
    assert_eq!(places.due(third), Some(Placing::Abandon(old.clone())), "though another one is recorded");
    places.handed(WorkId(2), Placing::Abandon(old));
    assert_eq!(places.accepted(WorkId(2)), None, "which stays recorded");
    assert_eq!((places.due(third), places.place(third)), (None, Some(&new)));
}

#[test]
fn a_rebuild_that_has_rows_goes_on_where_they_are() {
    assert_eq!(builds(None).begin(G2, true, false, 1), None);
    let place = Place::new(2, 1);
    let mut places = builds(Some(place.clone()));
    assert_eq!((places.begin(G2, true, false, 2), places.place(G2)), (None, Some(&place)));
}

#[test]
fn where_a_run_is_built_is_decided_once_as_it_begins() {
    let (first, second): (Arc<str>, Arc<str>) = ("first".into(), "second".into());
    let mut places = builds(None);
    assert!(places.decides(&first, false) && places.decides(&first, true), "until it has begun");
    assert!(!places.decides(&first, true), "what the sink learns since is of no use to it");
    assert!(places.decides(&second, true) && !places.decides(&second, true));
}

#[test]
fn what_is_due_waits_for_what_led_to_it() {
    let place = Place::new(2, 1);
    let mut places = builds(Some(place.clone()));
    assert!(!places.look(BUILT, false, 1), "nobody would be told");
    assert!(places.look(BUILT, true, 2));
    assert!(!places.look(BUILT, true, 3), "it waits already");
    assert_eq!(places.passed(1, BUILT), None);
    assert_eq!(places.passed(2, BUILT), Some(Placing::Switch(place.clone())));
    assert_eq!(places.passed(2, BUILT), None, "once");
    // Another generation comes meanwhile, before anybody looks again.
    assert!(places.look(BUILT, true, 4));
    let third = Standing { generation: 3, built: 2 };
    assert_eq!(places.passed(4, third), None);
    assert!(places.look(third, true, 5));
    assert_eq!(places.passed(5, third), Some(Placing::Abandon(place)));
    // And with what is let go.
    assert!(places.look(third, true, 6));
    places.let_go();
    assert_eq!(places.passed(6, third), None);
}

#[test]
fn a_purge_that_is_due_begins_in_another_place_once() {
    let old = Place::new(2, 1);
    let mut places = builds(Some(old.clone()));
    assert_eq!(places.begin(G2, true, true, 2), None, "there are rows, behind the purge");
    let begin = places.begin(G2, false, true, 2).unwrap();
    assert_eq!(begin, Placing::Begin(Place::new(2, 2)));
    places.handed(WorkId(1), begin);
    assert_eq!(places.begin(G2, false, true, 3), None, "it is due until that is accepted");
    assert_eq!(places.due(G2), None, "until then the old one is what a crash would go on with");
    assert_eq!(places.accepted(WorkId(1)), Some(Some(&Place::new(2, 2))));
    assert_eq!(places.due(G2), Some(Placing::Abandon(old)));
}

#[test]
fn a_shared_destination_gives_up_what_was_begun_and_builds_in_place() {
    let place = Place::new(2, 1);
    let mut places = Places::new(Ability::Abandons, Some(place.clone()));
    let third = Standing { generation: 3, built: 1 };
    assert_eq!((places.begin(third, false, false, 2), places.place(third)), (None, None));
    assert_eq!(places.due(third), Some(Placing::Abandon(place)));
}

#[test]
fn what_a_sink_can_do_nothing_about_is_forgotten() {
    let place = Place::new(2, 1);
    let mut places = builds(Some(place.clone()));
    assert_eq!(places.forget(), []);
    places.fit(Ability::InPlace);
    assert_eq!((places.place(G2), places.due(BUILT)), (None, None));
    assert_eq!(places.forget(), [place]);
    assert_eq!(places.forget(), []);
}

#[test]
fn what_is_in_hand_is_forgotten_too() {
    let mut places = builds(None);
    let begin = places.begin(G2, false, false, 1).unwrap();
    places.handed(WorkId(1), begin.clone());
    places.fit(Ability::InPlace);
    assert_eq!(places.forget(), [begin.place().clone()], "there may be rows of the generation");
    assert_eq!(places.accepted(WorkId(1)), None);
    // A switch that nobody has heard of.
    let place = Place::new(2, 9);
    let mut places = builds(Some(place.clone()));
    places.handed(WorkId(3), Placing::Switch(place.clone()));
    places.fit(Ability::InPlace);
    assert_eq!(places.forget(), [place]);
    // One that was to be abandoned, and is recorded no more.
    let (old, new) = (Place::new(2, 1), Place::new(3, 2));
    let mut places = builds(Some(old.clone()));
    let third = Standing { generation: 3, built: 1 };
    let begin = places.begin(third, false, false, 2).unwrap();
    places.handed(WorkId(1), begin);
    places.accepted(WorkId(1));
    places.handed(WorkId(2), Placing::Abandon(old.clone()));
    places.fit(Ability::InPlace);
    assert_eq!(places.forget(), [old, new]);
}

#[test]
fn a_lane_that_is_let_go_begins_anew_and_leaves_nothing_behind() {
    let mut places = builds(None);
    let first = places.begin(G2, false, false, 1).unwrap();
    places.handed(WorkId(1), first.clone());
    places.let_go();
    assert_eq!(places.place(G2), None);
    assert_eq!(places.due(G2), Some(Placing::Abandon(first.place().clone())), "it may be there all the same");
    // What is recorded is taken up as it was.
    let place = Place::new(2, 9);
    let mut places = builds(Some(place.clone()));
    places.handed(WorkId(3), Placing::Switch(place.clone()));
    places.let_go();
    assert_eq!((places.place(G2), places.due(BUILT)), (Some(&place), Some(Placing::Switch(place.clone()))));
}

// --- the model -----------------------------------------------------------------------------------------

const ROWS: usize = 6;
/// Rows of a chunk.
const CHUNK: usize = 2;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Rows with their versions.
type Documents = BTreeMap<usize, u64>;

#[derive(Clone, Debug)]
enum Item {
    /// A row's version, the number of the change, and where it goes beside what readers see.
    Live {
        row: usize,
        version: u64,
        number: usize,
        place: Option<Place>,
    },
    Chunk {
        rows: Vec<(usize, u64)>,
        place: Option<Place>,
        next: usize,
    },
    Placing(Placing),
}

/// What survives.
#[derive(Clone, Debug)]
struct Saved {
    standing: Standing,
    recorded: Option<Place>,
    /// Changes that are accepted.
    position: usize,
    /// The next row of the run; none: it has not begun, or is complete.
    cursor: Option<usize>,
}

struct World {
    random: Random,
    /// All changes there were: row and version.
    log: Vec<(usize, u64)>,
    saved: Saved,
    /// Written, in order, and not saved yet: the state after each.
    notes: VecDeque<Saved>,
    /// As the host sees it.
    now: Saved,
    places: Places,
    queue: VecDeque<(WorkId, Item)>,
    works: u64,
    handed: usize,
    read: Option<usize>,
    /// A run has not begun yet.
    waits: bool,
    /// What is due, and how many notes are before it.
    barrier: Option<(usize, Placing)>,
    shown: Documents,
    shown_place: Option<Place>,
    others: BTreeMap<String, Documents>,
    switches: usize,
    /// So many notes are to be saved before anything more is delivered.
    held: usize,
    /// Whether readers have seen a document of every row.
    whole: bool,
    /// An index of the destination's own name is there, which no alias can take the place of.
    in_the_way: bool,
    /// Changes that the sink has had, and how far they have come again since the last crash.
    done: usize,
    again: usize,
    sabotage: Sabotage,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Sabotage {
    None,
    /// What is due is done before what led to it is saved.
    NoBarrier,
    /// Live changes do not go to the place.
    LiveToReadersOnly,
    /// A rebuild that has rows begins in another place.
    BeginsWithRows,
    /// What comes behind a begin does not wait until that is recorded.
    DeliversUnrecorded,
    /// The sink makes something else than a place where a document comes and nothing is there.
    MakesNoPlace,
}

/// What there is as the model begins.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Start {
    /// Readers see a generation.
    Built,
    /// A new mapping.
    First,
    /// A new mapping of which nothing is read.
    Unread,
}

const STARTS: [Start; 3] = [Start::Built, Start::First, Start::Unread];

impl World {
    fn new(seed: u64, start: Start, sabotage: Sabotage) -> Self {
        let is_built = start == Start::Built;
        let rows: Documents = (0..if is_built { ROWS } else { 0 }).map(|row| (row, 0)).collect();
        let standing = if start == Start::First { Standing { generation: 1, built: 0 } } else { G1 };
        let cursor = (start == Start::First).then_some(0);
        let saved = Saved { standing, recorded: None, position: 0, cursor };
        let mut world = Self {
            random: Random(seed),
            log: Vec::new(),
            now: saved.clone(),
            saved,
            notes: VecDeque::new(),
            places: builds(None),
            queue: VecDeque::new(),
            works: 0,
            handed: 0,
            read: None,
            waits: false,
            barrier: None,
            shown: rows,
            shown_place: None,
            others: BTreeMap::new(),
            switches: 0,
            held: 0,
            whole: is_built,
            in_the_way: false,
            done: 0,
            again: 0,
            sabotage,
        };
        if start == Start::First {
            world.begin_run(0);
        }
        world
    }

    fn note(&mut self) {
        self.notes.push_back(self.now.clone());
    }

    fn hand(&mut self, item: Item) {
        self.works += 1;
        let work = WorkId(self.works);
        if let Item::Placing(placing) = &item {
            self.places.handed(work, placing.clone());
        }
        self.queue.push_back((work, item));
    }

    fn version(&self, row: usize) -> u64 {
        self.log.iter().rev().find(|(of, _)| *of == row).map_or(0, |(_, version)| *version)
    }

    /// Live changes that were not handed out.
    fn catch_up(&mut self) {
        while let Some(&(row, version)) = self.log.get(self.handed) {
            let place = self.places.place(self.now.standing).cloned();
            let place = place.filter(|_| self.sabotage != Sabotage::LiveToReadersOnly);
            self.hand(Item::Live { row, version, number: self.handed, place });
            self.handed += 1;
        }
    }

    fn begin_run(&mut self, from: usize) {
        let has_rows = from > 0 && self.sabotage != Sabotage::BeginsWithRows;
        let token = u32::try_from(self.works + self.switches as u64 * 1000).unwrap()
            + u32::try_from(self.random.below(1 << 20)).unwrap();
        if self.sabotage == Sabotage::BeginsWithRows && from > 0 {
            self.places = builds(None);
        }
        if let Some(begin) = self.places.begin(self.now.standing, has_rows, false, token) {
            self.hand(Item::Placing(begin));
        }
        (self.read, self.waits) = (Some(from), false);
    }

    fn step(&mut self) {
        match self.random.below(18) {
            0 | 1 => {
                let row = self.random.below(ROWS);
                self.log.push((row, self.version(row) + 1));
            }
            2 | 3 => self.catch_up(),
            5 if self.random.below(8) == 0 => {
                // Another version.
                self.now.standing.generation += 1;
                self.now.cursor = Some(0);
                self.read = None;
                self.queue.retain(|(_, item)| !matches!(item, Item::Chunk { .. }));
                self.note();
                self.waits = true;
            }
            // Its run is granted.
            4 if self.waits => self.begin_run(0),
            6 | 7 => self.read_chunk(),
            8..=12 => self.execute(true),
            13 | 14 => {
                let due = self.places.due(self.now.standing);
                match (&self.barrier, due) {
                    (Some((0, waits)), Some(due)) if *waits == due => {
                        self.barrier = None;
                        self.hand(Item::Placing(due));
                    }
                    (Some((0, _)) | None, Some(due)) => {
                        let before = if self.sabotage == Sabotage::NoBarrier { 0 } else { self.notes.len() };
                        self.barrier = Some((before, due));
                    }
                    _ => {}
                }
            }
            15 if self.random.below(5) == 0 => self.crash(),
            _ => self.save(),
        }
    }

    fn read_chunk(&mut self) {
        let Some(from) = self.read else { return };
        self.catch_up();
        let to = (from + CHUNK).min(ROWS);
        let rows: Vec<_> = (from..to).map(|row| (row, self.version(row))).collect();
        let place = self.places.place(self.now.standing).cloned();
        self.hand(Item::Chunk { rows, place, next: to });
        self.read = (to < ROWS).then_some(to);
    }

    fn save(&mut self) {
        if let Some(saved) = self.notes.pop_front() {
            self.saved = saved;
            self.held = self.held.saturating_sub(1);
            if let Some((before, _)) = &mut self.barrier {
                *before = before.saturating_sub(1);
            }
        }
    }

    /// The sink does the next thing; whether the host hears of it.
    fn execute(&mut self, heard: bool) {
        if self.held > 0 {
            return;
        }
        let Some((work, item)) = self.queue.pop_front() else { return };
        match &item {
            Item::Live { row, version, number, place } => {
                self.again = number + 1;
                self.done = self.done.max(self.again);
                let nothing_is_there = self.shown.is_empty() && self.shown_place.is_none();
                self.in_the_way |= nothing_is_there && self.sabotage == Sabotage::MakesNoPlace;
                self.shown.insert(*row, *version);
                if let Some(documents) = place.as_ref().and_then(|place| self.others.get_mut(place.as_str()))
                {
                    documents.insert(*row, *version);
                }
            }
            Item::Chunk { place: Some(place), .. }
                if place.generation() == 1 && self.shown_place.as_ref() != Some(place) =>
            {
                panic!("the first generation is not seen as it grows");
            }
            Item::Chunk { rows, place: Some(place), .. } if self.shown_place.as_ref() != Some(place) => {
                let documents = self.others.get_mut(place.as_str());
                let documents = documents.unwrap_or_else(|| panic!("rows for {place}, which is not there"));
                documents.extend(rows.iter().copied());
            }
            Item::Chunk { rows, .. } => self.shown.extend(rows.iter().copied()),
            Item::Placing(Placing::Begin(place)) => {
                assert_ne!(self.shown_place.as_ref(), Some(place));
                assert!(!self.in_the_way, "an index is in the way");
                if self.shown.is_empty() {
                    // Switched to at once.
                    self.shown_place = Some(place.clone());
                    self.others.clear();
                } else {
                    self.others.insert(place.to_string(), Documents::new());
                }
            }
            Item::Placing(Placing::Abandon(place)) => drop(self.others.remove(place.as_str())),
            Item::Placing(Placing::Switch(place)) => {
                if self.shown_place.as_ref() != Some(place) {
                    let documents = self.others.remove(place.as_str());
                    let documents =
                        documents.unwrap_or_else(|| panic!("{place} is switched to, and is not there"));
                    let older = self.shown.iter().find(|(row, version)| documents.get(row) < Some(version));
                    // What comes again after a crash brings older versions back for a while, here as anywhere.
                    assert!(
                        older.is_none() || self.again < self.done,
                        "what readers saw is taken back: {older:?}"
                    );
                    self.shown = documents;
                    self.shown_place = Some(place.clone());
                }
                self.others.clear();
                self.switches += 1;
            }
        }
        self.whole |= self.shown.len() == ROWS;
        assert!(!self.whole || self.shown.len() == ROWS, "readers see a part");
        if !heard {
            return;
        }
        match item {
            Item::Live { number, .. } => {
                self.now.position = number + 1;
                self.note();
            }
            Item::Chunk { next, .. } => {
                self.now.cursor = Some(next);
                if next == ROWS {
                    self.now.standing.built = self.now.standing.generation;
                    self.now.cursor = None;
                }
                self.note();
            }
            Item::Placing(placing) => {
                if let Some(recorded) = self.places.accepted(work) {
                    self.now.recorded = recorded.cloned();
                    self.note();
                }
                if matches!(placing, Placing::Begin(_)) && self.sabotage != Sabotage::DeliversUnrecorded {
                    self.held = self.notes.len();
                }
            }
        }
    }

    fn crash(&mut self) {
        if self.random.below(2) == 0 {
            self.execute(false);
        }
        self.queue.clear();
        self.notes.clear();
        (self.barrier, self.held, self.waits) = (None, 0, false);
        self.now = self.saved.clone();
        self.places = builds(self.now.recorded.clone());
        (self.handed, self.again) = (self.now.position, self.now.position);
        self.read = None;
        if let Some(from) = self.now.cursor {
            self.begin_run(from);
        }
    }

    /// Everything that is to be done is done.
    fn settle(&mut self) {
        for _ in 0..100 {
            self.catch_up();
            self.read_chunk();
            while !self.queue.is_empty() || !self.notes.is_empty() {
                self.execute(true);
                self.save();
            }
            if let Some(due) = self.places.due(self.now.standing) {
                self.hand(Item::Placing(due));
            }
        }
        let want: Documents = (0..ROWS).map(|row| (row, self.version(row))).collect();
        assert_eq!(self.shown, want, "readers see what the table is");
        assert!(self.others.is_empty(), "left behind: {:?}", self.others.keys());
        assert_eq!(self.now.recorded, None);
        assert_eq!(self.now.standing.built, self.now.standing.generation);
        let shown = self.shown_place.as_ref().map_or(1, Place::generation);
        assert_eq!(shown, self.now.standing.generation, "the last generation is what readers see");
    }
}

fn run(seed: u64, start: Start, sabotage: Sabotage) -> usize {
    let mut world = World::new(seed, start, sabotage);
    for _ in 0..800 {
        world.step();
    }
    // One more, so that whatever an unheard attempt left is cleared.
    world.now.standing.generation += 1;
    world.now.cursor = Some(0);
    world.queue.retain(|(_, item)| !matches!(item, Item::Chunk { .. }));
    world.note();
    world.begin_run(0);
    world.settle();
    world.switches
}

#[test]
fn readers_see_all_of_a_table_and_its_last_state_whatever_happens() {
    for start in STARTS {
        let switches: usize = (0..600).map(|seed| run(seed, start, Sabotage::None)).sum();
        assert!(switches > 1500, "{start:?}: {switches}");
    }
}

#[test]
fn the_model_sees_what_is_left_out() {
    for (start, sabotage) in [
        (Start::Built, Sabotage::NoBarrier),
        (Start::Built, Sabotage::LiveToReadersOnly),
        (Start::Built, Sabotage::BeginsWithRows),
        (Start::First, Sabotage::DeliversUnrecorded),
        (Start::Unread, Sabotage::MakesNoPlace),
    ] {
        let fails = |seed| std::panic::catch_unwind(|| run(seed, start, sabotage)).is_err();
        assert!((0..600).any(fails), "{start:?}, {sabotage:?}");
    }
}
