//! The proof: random schedules of a small Postgres, a host that crashes, and the machine between them,
//! against an oracle. And its counter-proof: with each rule broken, the same schedules find it.
//!
//! `ANABRANCH_SIMULATION_SEED` runs one seed, `ANABRANCH_SIMULATION_COUNT` sets how many are run.

mod host;
mod prng;
mod source;

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

use host::Host;
use prng::Prng;
use source::Source;

use super::machine::Sabotage;

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Rows are emitted whether overtaken or not.
    EmitAll,
    /// DBLog's window: rows are dropped when touched between the watermarks, by position alone.
    ClassicWindow,
    /// A chunk counts as durable when it is emitted.
    SaveCursorEarly,
    /// The old key of a key update or a delete is not recorded.
    IgnoreOldKeys,
    /// TRUNCATE does not overtake rows.
    IgnoreTruncate,
    /// The slot is confirmed up to the ledger, whatever is in limbo.
    ConfirmPastLimbo,
    /// After a restart the slot is confirmed up to the ledger before anything was streamed again.
    ConfirmBeforeStreamed,
    /// What precedes the slot is taken for visible.
    NoSlotBaseline,
    /// What precedes the table's publication is taken for visible.
    NoPublicationBaseline,
    /// A lane takes what the stream has of a table from before it joined the publication (again).
    LaneBeforePublication,
    /// What is in limbo when a run begins is taken for visible.
    ForgetLimboAtBegin,
    /// A transaction that a target's lane skips is taken for one that this run's target has.
    SkippedCountsAsReceived,
    /// The machine is not shown what every lane skips.
    FeedOnlyDelivered,
    /// The machine lives on when the server was restarted.
    MachineOutlivesServer,
    /// Markers of an earlier process count.
    NoIncarnation,
    /// The snapshot is taken before the table is locked.
    NoTableLock,
    /// A chunk is delivered later than where it was judged.
    EmitLate,
    /// A lane that lost its queue does not rewind the run.
    NoRewind,
    /// Touches are forgotten by the newest snapshot, not by the oldest undecided one.
    PruneByNewest,
    /// A superseding run keeps the window of the old one.
    KeepWindow,
    /// A cursor is used with a key that is not the one it was taken with.
    CursorOfAnyKey,
    /// What was built of a former table is not purged.
    NoPurge,
    /// A lane takes what the stream has of a former table.
    FormerTable,
    /// A run begins although it was withdrawn.
    AlwaysGrant,
    /// A run reads before its beginning is granted.
    ReadUngranted,
    /// A paused table is read.
    IgnorePause,
    /// A table is read faster than it may.
    IgnoreRate,
    /// A scoped run takes the place of its table's run.
    ScopedAtOnce,
    /// A run that takes the place of a scoped one reads its rows only.
    WholeKeepsScope,
    /// A run that takes the place of another has its own mappings only.
    MappingsNotJoined,
    /// What waits behind a run is forgotten with it.
    ForgetWaiting,
    /// What is in limbo when a scoped run's turn comes is taken for visible.
    ForgetLimboAtTurn,
}

/// Each with a seed that finds it; where that is no longer so, others are tried.
const FAULTS: [(Fault, u64); 32] = [
    (Fault::EmitAll, 3),
    (Fault::ClassicWindow, 3),
    (Fault::SaveCursorEarly, 24),
    (Fault::IgnoreOldKeys, 102),
    (Fault::IgnoreTruncate, 1595),
    (Fault::ConfirmPastLimbo, 985),
    (Fault::ConfirmBeforeStreamed, 1249),
    (Fault::NoSlotBaseline, 18),
    (Fault::NoPublicationBaseline, 4402),
    (Fault::LaneBeforePublication, 123),
    (Fault::ForgetLimboAtBegin, 20),
    (Fault::SkippedCountsAsReceived, 2138),
    (Fault::FeedOnlyDelivered, 31),
    (Fault::MachineOutlivesServer, 3045),
    (Fault::NoIncarnation, 31),
    (Fault::NoTableLock, 140),
    (Fault::EmitLate, 50),
    (Fault::NoRewind, 57),
    (Fault::PruneByNewest, 32),
    (Fault::KeepWindow, 486),
    (Fault::CursorOfAnyKey, 8332),
    (Fault::NoPurge, 23),
    (Fault::FormerTable, 15),
    (Fault::AlwaysGrant, 0),
    (Fault::ReadUngranted, 0),
    (Fault::IgnorePause, 1),
    (Fault::IgnoreRate, 57),
    (Fault::ScopedAtOnce, 5),
    (Fault::WholeKeepsScope, 10),
    (Fault::MappingsNotJoined, 16),
    (Fault::ForgetWaiting, 1),
    (Fault::ForgetLimboAtTurn, 2383),
];

impl Fault {
    /// Those that cannot be injected from outside the machine.
    fn inside(self) -> Option<Sabotage> {
        match self {
            Self::PruneByNewest => Some(Sabotage::PruneByNewest),
            Self::KeepWindow => Some(Sabotage::KeepWindow),
            Self::ReadUngranted => Some(Sabotage::ReadUngranted),
            Self::IgnorePause => Some(Sabotage::IgnorePause),
            Self::IgnoreRate => Some(Sabotage::IgnoreRate),
            Self::ScopedAtOnce => Some(Sabotage::ScopedAtOnce),
            Self::WholeKeepsScope => Some(Sabotage::WholeKeepsScope),
            Self::MappingsNotJoined => Some(Sabotage::MappingsNotJoined),
            Self::ForgetWaiting => Some(Sabotage::ForgetWaiting),
            Self::ForgetLimboAtTurn => Some(Sabotage::ForgetLimboAtTurn),
            _ => None,
        }
    }

    /// Those that break what is asked, which is checked as it happens.
    fn is_of_requests(self) -> bool {
        matches!(self, Self::AlwaysGrant | Self::ReadUngranted | Self::IgnorePause | Self::IgnoreRate)
    }
}

/// How a seed's world behaves, in percent.
struct Temper {
    lazy: usize,
    release: usize,
    truncate: usize,
    crash: usize,
    read_failure: usize,
    stream: usize,
    disturb: usize,
}

impl Temper {
    fn new(rng: &mut Prng) -> Self {
        let of = |rng: &mut Prng, choices: [usize; 4]| choices[rng.below(4)];
        Self {
            lazy: of(rng, [0, 0, 40, 95]),
            release: of(rng, [2, 10, 40, 90]),
            truncate: of(rng, [0, 1, 3, 8]),
            crash: of(rng, [0, 1, 2, 4]),
            read_failure: of(rng, [0, 0, 3, 10]),
            stream: of(rng, [15, 40, 70, 90]),
            disturb: of(rng, [0, 10, 30, 60]),
        }
    }
}

struct World {
    rng: Prng,
    temper: Temper,
    source: Source,
    steps: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Prng::new(seed);
        let temper = Temper::new(&mut rng);
        let first_xid = match rng.below(3) {
            0 => (1 << 32) - 1 - rng.below(60) as u64,
            1 => 800,
            _ => (5 << 32) + (1 << 31) - rng.below(60) as u64,
        };
        let source = Source::new(first_xid, 4 + rng.below(16));
        let steps = 150 + rng.below(400);
        Self { rng, temper, source, steps }
    }

    /// Something happens in the database.
    fn database(&mut self) {
        let (rng, source, temper) = (&mut self.rng, &mut self.source, &self.temper);
        if rng.chance(temper.release)
            && let Some(xid) = rng.pick(&source.limbo()).copied()
        {
            return source.release(xid);
        }
        let open = source.open();
        let Some(xid) = rng.pick(&open).copied().filter(|_| open.len() > 4 || rng.chance(80)) else {
            source.begin();
            return;
        };
        match rng.below(20) {
            0..=10 => source.write(xid, rng, temper.truncate),
            11 => source.savepoint(xid),
            12 => source.rollback_to(xid),
            13 => source.abort(xid),
            14 => source.flush(),
            _ => {
                let lazy = rng.chance(temper.lazy);
                source.commit(xid, lazy, rng);
            }
        }
    }

    /// Something happens in the host.
    fn host(&mut self, host: &mut Host) -> Result<(), String> {
        let (rng, source, temper) = (&mut self.rng, &mut self.source, &self.temper);
        match rng.below(20) {
            0..=5 => {
                if rng.chance(temper.stream) {
                    host.stream(source, rng)?;
                }
            }
            6..=10 => {
                if host.readers() > 0 {
                    let at = rng.below(host.readers());
                    host.step_reader(at, temper.read_failure, source, rng)?;
                }
            }
            11..=13 => {
                let lane = rng.below(host.lanes());
                host.deliver(lane)?;
            }
            14..=15 => {
                host.acknowledge(source, rng)?;
            }
            16 => {
                host.answer_probe(source, rng)?;
                host.answer_beginning(source, rng)?;
            }
            17 if rng.chance(20) => host.haunt(source, rng),
            17 => host.tick(1000 + rng.below(4_000_000) as i64, source, rng)?,
            18 => host.confirm(source)?,
            _ => host.save_positions(),
        }
        Ok(())
    }

    /// Something goes wrong, or somebody asks for something.
    fn disturb(&mut self, host: &mut Host) -> Result<(), String> {
        let (rng, source, temper) = (&mut self.rng, &mut self.source, &self.temper);
        if rng.chance(temper.crash) {
            let server = rng.chance(40);
            if server {
                source.crash();
            }
            match !server && rng.chance(50) {
                true => host.fail_over(source, rng)?,
                false => host.crash(server, source, rng)?,
            }
        }
        if !rng.chance(temper.disturb) {
            return Ok(());
        }
        match rng.below(60) {
            0..=3 => host.bump(source, rng),
            4..=5 => host.lose_lane(source, rng)?,
            6 => host.sink_failed(source, rng)?,
            7 => host.relation_changed(source, rng)?,
            8..=9 => host.yield_to_live(true, source, rng)?,
            10..=13 => host.yield_to_live(false, source, rng)?,
            14 => source.emit("someone else's \u{0} message".into(), rng),
            15 | 16 => host.map_late_table(false, source, rng),
            17..=19 => host.request_scope(source, rng),
            20..=22 => host.cancel(source, rng)?,
            23..=25 => host.control(false, source, rng)?,
            26..=28 => host.control(true, source, rng)?,
            _ => {}
        }
        Ok(())
    }

    /// All transactions end, everything is visible and flushed, and the host gets all the time it needs.
    fn quiesce(&mut self, host: &mut Host) -> Result<(), String> {
        let (rng, source) = (&mut self.rng, &mut self.source);
        for xid in source.open() {
            if rng.chance(80) { source.commit(xid, false, rng) } else { source.abort(xid) }
        }
        for xid in source.limbo() {
            source.release(xid);
        }
        source.flush();
        host.exorcise(source);
        host.control(true, source, rng)?;
        host.yield_to_live(false, source, rng)?;
        host.map_late_table(true, source, rng);
        for _ in 0..3000 {
            if host.is_outdated(source) {
                host.crash(false, source, rng)?;
                host.exorcise(source);
            }
            if host.is_quiet(source) {
                return Ok(());
            }
            for at in (0..host.readers()).rev() {
                host.step_reader(at, 0, source, rng)?;
            }
            while host.stream(source, rng)? {}
            host.flush_late();
            for lane in 0..host.lanes() {
                while host.deliver(lane)? {}
            }
            while host.acknowledge(source, rng)? {}
            while host.answer_probe(source, rng)? {}
            while host.answer_beginning(source, rng)? {}
            host.confirm(source)?;
            if host.readers() == 0 {
                host.sleep(source, rng)?;
            }
        }
        Err(format!("does not come to rest: {}", host.describe()))
    }
}

#[derive(Debug, Default)]
struct Figures {
    emitted: u64,
    dropped: u64,
    rereads: u64,
    scoped: u64,
    cancelled: u64,
    steps: usize,
}

impl Figures {
    fn add(&mut self, other: &Self) {
        self.emitted += other.emitted;
        self.dropped += other.dropped;
        self.rereads += other.rereads;
        self.scoped += other.scoped;
        self.cancelled += other.cancelled;
        self.steps += other.steps;
    }
}

fn run(seed: u64, fault: Option<Fault>, figures: &mut Figures) -> Result<(), String> {
    let mut world = World::new(seed);
    for _ in 0..world.rng.below(80) {
        world.database();
    }
    let late_table = world.rng.chance(30);
    let mut host = Host::install(&mut world.source, late_table, fault, &mut world.rng);
    for _ in 0..world.steps {
        world.database();
        for _ in 0..world.rng.below(5) {
            world.host(&mut host)?;
        }
        world.disturb(&mut host)?;
    }
    world.quiesce(&mut host)?;
    figures.steps += world.steps;
    figures.emitted += host.emitted;
    figures.dropped += host.dropped;
    figures.rereads += host.rereads;
    figures.scoped += host.scoped;
    figures.cancelled += host.cancelled;
    host.check(&world.source)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Answers of `work` for the numbers below `count`, on all cores, in any order; stops after some that are `Some`.
fn on_all_cores<T: Send>(count: u64, enough: usize, work: impl Fn(u64) -> Option<T> + Sync) -> Vec<(u64, T)> {
    let next = AtomicU64::new(0);
    let found = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count || found.lock().unwrap().len() >= enough {
                        return;
                    }
                    if let Some(answer) = work(number) {
                        found.lock().unwrap().push((number, answer));
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap();
    found.sort_by_key(|(number, _)| *number);
    found
}

#[test]
#[expect(clippy::print_stderr, reason = "figures of a test")]
fn destination_equals_source_after_quiet() {
    if let Some(seed) = number("ANABRANCH_SIMULATION_SEED") {
        return run(seed, None, &mut Figures::default()).unwrap();
    }
    let count = number("ANABRANCH_SIMULATION_COUNT").unwrap_or(100_000);
    let figures = Mutex::new(Figures::default());
    let failures = on_all_cores(count, 5, |seed| {
        let mut own = Figures::default();
        let failure = run(seed, None, &mut own).err();
        figures.lock().unwrap().add(&own);
        failure.map(|error| format!("seed {seed}: {error}"))
    });
    let failures: Vec<String> = failures.into_iter().map(|(_, failure)| failure).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let figures = figures.into_inner().unwrap();
    let seen = [figures.dropped, figures.scoped, figures.cancelled].iter().all(|seen| *seen > count / 10);
    assert!(seen && figures.emitted > count && figures.rereads > 0, "{figures:?}");
    eprintln!("{count} seeds: {figures:?}");
}

#[test]
#[expect(clippy::print_stderr, reason = "figures of a test")]
fn every_broken_rule_is_found() {
    let found = on_all_cores(FAULTS.len() as u64, FAULTS.len(), |number| {
        let (fault, hint) = FAULTS[number as usize];
        let failure = |seed| Some((seed, run(seed, Some(fault), &mut Figures::default()).err()?));
        std::iter::once(hint).chain(0..20_000).find_map(failure)
    });
    for (number, (seed, error)) in &found {
        let error: String = error.chars().take(200).collect();
        eprintln!("{:?} by seed {seed}: {error}", FAULTS[*number as usize].0);
    }
    let missed = |number: &u64| found.binary_search_by_key(number, |(number, _)| *number).is_err();
    let missed: Vec<Fault> =
        (0..FAULTS.len() as u64).filter(missed).map(|number| FAULTS[number as usize].0).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
