//! The machine, case by case: what the simulation found, and what has a case number.

mod batches;
mod requests;

use std::{sync::Arc, time::Duration};

use crate::model::{EntityName, Lsn, Snapshot};

use crate::backfill::{
    Attempt, ChunkRead, Command, Emission, KeyColumn, Keys, Machine, Marker, MarkerKind, PageSettings,
    ReadFailure, ReadRequest, RereadReason, RestartReason, RunSpec, Settings, Touch,
};

type Out = Vec<Command<Vec<u32>>>;

const SECOND: i64 = 1_000_000;

fn snapshot(text: &str) -> Arc<Snapshot> {
    Arc::new(text.parse().unwrap())
}

fn settings() -> Settings {
    let page = PageSettings { most: 2, floor: 2, time: Duration::from_secs(1), bytes: 1000 };
    Settings { page, prefetch_bytes: 10_000, max_concurrent: 1, ..Settings::default() }
}

struct Bench {
    machine: Machine<Vec<u32>>,
}

impl Bench {
    fn new() -> Self {
        Self::with(settings())
    }

    fn with(settings: Settings) -> Self {
        Self { machine: Machine::new(settings, 7, None) }
    }

    /// A run that was begun before.
    fn spec(table: u32) -> RunSpec {
        RunSpec { started: true, ..Self::queued(table) }
    }

    fn queued(table: u32) -> RunSpec {
        RunSpec::new(format!("run-{table}"), EntityName::new("public", format!("t{table}")), table)
    }

    fn commit(&mut self, xid: u32, at: u64, touches: &[(u32, Touch<'_>)]) {
        self.machine.committed(xid, Lsn(at), Lsn(at + 5));
        for (table, touch) in touches {
            self.machine.touched(*table, *touch);
        }
    }

    fn mark(&mut self, request: &ReadRequest, kind: MarkerKind) -> Out {
        let content = request.marker("anabranch", kind).encode();
        self.machine.marker(&Marker::parse(content.as_bytes(), "anabranch").unwrap())
    }

    fn arrive(&mut self, request: &ReadRequest, seen: &str, rows: &[u32]) -> Out {
        self.machine.chunk_read(chunk(request.attempt, request.limit, seen, rows))
    }

    /// A whole reading, undisturbed.
    fn read(&mut self, request: &ReadRequest, seen: &str, rows: &[u32]) -> Out {
        let mut out = self.mark(request, MarkerKind::Low);
        out.extend(self.arrive(request, seen, rows));
        out.extend(self.mark(request, MarkerKind::High));
        out
    }
}

fn key(attribute: i16) -> Vec<KeyColumn> {
    vec![KeyColumn { name: "id".into(), attribute, type_oid: 23, collation: 0 }]
}

fn chunk(attempt: Attempt, limit: u32, seen: &str, rows: &[u32]) -> ChunkRead<Vec<u32>> {
    ChunkRead {
        attempt,
        snapshot: snapshot(seen),
        key: key(1),
        keys: rows.iter().map(ToString::to_string).collect::<Keys>(),
        rows: rows.to_vec(),
        bytes: rows.len() * 10,
        elapsed: Duration::from_millis(1),
        last: rows.last().map(|row| vec![row.to_string()]),
        exhausted: rows.len() < limit as usize,
    }
}

fn reads(out: &Out) -> Vec<ReadRequest> {
    out.iter().filter_map(|c| if let Command::Read(r) = c { Some(r.clone()) } else { None }).collect()
}

fn only_read(out: &Out) -> ReadRequest {
    let mut reads = reads(out);
    assert_eq!(reads.len(), 1, "{out:?}");
    reads.remove(0)
}

fn emissions(out: &Out) -> Vec<Emission<Vec<u32>>> {
    out.iter().filter_map(|c| if let Command::Emit(e) = c { Some(e.clone()) } else { None }).collect()
}

fn saved(out: &Out) -> Option<(String, u64)> {
    out.iter().rev().find_map(|command| match command {
        Command::SaveCursor { cursor, chunks, .. } => Some((cursor.values[0].clone(), *chunks)),
        _ => None,
    })
}

fn completed(out: &Out) -> bool {
    out.iter().any(|command| matches!(command, Command::Complete { .. }))
}

fn after(request: &ReadRequest) -> Option<&str> {
    request.after.as_ref().map(|cursor| cursor.values[0].as_str())
}

// --- visibility ---------------------------------------------------------------------------------

#[test]
fn the_measured_race_is_decided_by_visibility() {
    let mut bench = Bench::new();
    let request = only_read(&bench.machine.add(Bench::spec(1)));
    bench.commit(846, 100, &[(1, Touch::Key(b"1"))]);
    bench.mark(&request, MarkerKind::Low);
    bench.arrive(&request, "846:848:846", &[1, 2]);
    let out = bench.mark(&request, MarkerKind::High);
    assert_eq!(emissions(&out)[0].dropped, [0], "the commit came before the low mark and is invisible");
}

#[test]
fn after_a_restart_nothing_is_confirmed_before_it_is_streamed_again() {
    let mut bench = Bench::new();
    assert_eq!(bench.machine.confirmable(), Lsn::ZERO);
    bench.commit(846, 100, &[]);
    assert_eq!(bench.machine.confirmable(), Lsn(100));
    bench.machine.passed(Lsn(400));
    assert_eq!(bench.machine.confirmable(), Lsn(100), "a keepalive's position neither");
    bench.machine.probe(&snapshot("847:847:"));
    assert_eq!(bench.machine.confirmable(), Lsn(400));
}

#[test]
fn a_run_waits_for_what_was_in_limbo_when_it_began() {
    let mut bench = Bench::new();
    bench.commit(846, 100, &[(1, Touch::Key(b"1"))]);
    let out = bench.machine.add(Bench::spec(1));
    assert_eq!(out, [Command::Probe], "nobody knows whether its targets received the commit");
    assert!(reads(&bench.machine.probe(&snapshot("846:848:846"))).is_empty());
    assert!(bench.machine.run(1).unwrap().blocked);
    only_read(&bench.machine.probe(&snapshot("848:848:")));
}

#[test]
fn a_commit_that_a_target_skips_is_not_counted_as_received() {
    let mut bench = Bench::new();
    let spec = RunSpec { skip_until: Lsn(200), ..Bench::spec(1) };
    let request = only_read(&bench.machine.add(spec));
    bench.commit(846, 100, &[(1, Touch::Key(b"1"))]);
    let out = bench.read(&request, "846:848:846", &[1, 2]);
    let reread = Command::Reread { run: "run-1".into(), chunk: 0, reason: RereadReason::Untracked };
    assert!(out.contains(&reread), "{out:?}");
    assert!(emissions(&out).is_empty() && reads(&out).is_empty());
    let request = only_read(&bench.machine.probe(&snapshot("848:848:")));
    assert_eq!(emissions(&bench.read(&request, "848:848:", &[1, 2]))[0].dropped, Vec::<u32>::new());
}

#[test]
fn a_later_snapshot_takes_nothing_from_an_earlier_chunk() {
    let mut bench = Bench::new();
    let first = only_read(&bench.machine.add(Bench::spec(1)));
    bench.mark(&first, MarkerKind::Low);
    let second = only_read(&bench.arrive(&first, "10:10:", &[1, 2]));
    bench.commit(10, 100, &[(1, Touch::Key(b"2"))]);
    bench.arrive(&second, "11:11:", &[3, 4]);
    bench.machine.probe(&snapshot("12:12:"));
    let out = bench.mark(&first, MarkerKind::High);
    assert_eq!(emissions(&out)[0].dropped, [1], "visible to the second chunk, not to the first");
    assert_eq!(emissions(&bench.mark(&second, MarkerKind::High))[0].dropped, Vec::<u32>::new());
}

#[test]
fn what_precedes_the_slot_must_be_visible() {
    let slot = snapshot("847:847:");
    let mut bench = Bench { machine: Machine::new(settings(), 1, Some(slot)) };
    assert_eq!(bench.machine.add(Bench::spec(1)), [Command::Probe]);
    assert!(reads(&bench.machine.probe(&snapshot("846:848:846"))).is_empty());
    only_read(&bench.machine.probe(&snapshot("848:848:")));
}

#[test]
fn rows_may_come_after_their_high_mark() {
    let mut bench = Bench::new();
    let request = only_read(&bench.machine.add(Bench::spec(1)));
    assert!(emissions(&bench.mark(&request, MarkerKind::High)).is_empty());
    bench.commit(50, 100, &[(1, Touch::Key(b"1"))]);
    let out = bench.arrive(&request, "50:50:", &[1, 2]);
    assert_eq!(emissions(&out)[0].dropped, [0], "judged where it is emitted");
}

#[test]
fn chunks_that_yield_are_judged_when_they_go_on() {
    let mut bench = Bench::new();
    let request = only_read(&bench.machine.add(Bench::spec(1)));
    bench.machine.yield_to_live(true);
    assert!(emissions(&bench.read(&request, "50:50:", &[1, 2])).is_empty());
    bench.commit(50, 100, &[(1, Touch::Key(b"2"))]);
    assert_eq!(emissions(&bench.machine.yield_to_live(false))[0].dropped, [1]);
}

#[test]
fn c051_c052_other_readings_markers_close_no_window() {
    let mut bench = Bench::new();
    let request = only_read(&bench.machine.add(Bench::spec(1)));
    bench.arrive(&request, "50:50:", &[1, 2]);
    let marker = request.marker("anabranch", MarkerKind::High);
    for attempt in [
        Attempt { incarnation: request.attempt.incarnation - 1, ..request.attempt },
        Attempt { serial: request.attempt.serial + 1000, ..request.attempt },
    ] {
        assert!(emissions(&bench.machine.marker(&Marker { attempt, ..marker.clone() })).is_empty());
    }
    assert_eq!(emissions(&bench.machine.marker(&marker)).len(), 1);
    assert!(emissions(&bench.machine.marker(&marker)).is_empty(), "streamed again");
}

// --- chunks -------------------------------------------------------------------------------------

#[test]
fn c066_a_cursor_is_saved_when_all_before_it_is_durable() {
    let mut bench = Bench::new();
    let first = only_read(&bench.machine.add(Bench::spec(1)));
    let second = only_read(&bench.read(&first, "9:9:", &[1, 2]));
    let third = only_read(&bench.read(&second, "9:9:", &[3, 4]));
    let out = bench.read(&third, "9:9:", &[5]);
    assert!(reads(&out).is_empty() && !completed(&out));
    assert_eq!(bench.machine.durable(second.attempt), []);
    assert_eq!(saved(&bench.machine.durable(first.attempt)), Some(("4".into(), 2)));
    let out = bench.machine.durable(third.attempt);
    assert_eq!(saved(&out), Some(("5".into(), 3)));
    assert!(completed(&out));
    assert_eq!(bench.machine.runs().count(), 0);
}

#[test]
fn c066_a_stored_run_goes_on_behind_its_cursor() {
    let mut bench = Bench::new();
    let first = only_read(&bench.machine.add(Bench::spec(1)));
    bench.read(&first, "9:9:", &[1, 2]);
    let out = bench.machine.durable(first.attempt);
    let Some(Command::SaveCursor { cursor, rows, chunks, .. }) = out.into_iter().next() else { panic!() };
    let spec = RunSpec { cursor: Some(cursor), rows, chunks, started: true, ..Bench::spec(1) };
    let mut next = Bench { machine: Machine::new(settings(), 8, None) };
    let request = only_read(&next.machine.add(spec));
    assert_eq!((after(&request), request.chunk), (Some("2"), 1));
    assert_ne!(request.attempt.incarnation, first.attempt.incarnation);
}

#[test]
fn c067_every_run_ends() {
    // An empty table.
    let mut bench = Bench::new();
    let request = only_read(&bench.machine.add(Bench::spec(1)));
    let out = bench.read(&request, "9:9:", &[]);
    assert_eq!(emissions(&out).len(), 1);
    assert!(completed(&bench.machine.durable(request.attempt)));
    // An exact multiple of the page.
    let request = only_read(&bench.machine.add(Bench::spec(1)));
    let last = only_read(&bench.read(&request, "9:9:", &[1, 2]));
    bench.read(&last, "9:9:", &[]);
    bench.machine.durable(request.attempt);
    let out = bench.machine.durable(last.attempt);
    assert_eq!(saved(&out), Some(("2".into(), 2)));
    assert!(completed(&out));
    // Every row overtaken.
    let request = only_read(&bench.machine.add(Bench::spec(1)));
    bench.commit(20, 500, &[(1, Touch::All)]);
    let out = bench.read(&request, "20:20:", &[1]);
    assert_eq!(emissions(&out)[0].dropped, [0]);
    assert!(completed(&bench.machine.durable(request.attempt)));
}

#[test]
fn a_chunk_that_is_read_again_takes_the_later_ones_with_it() {
    let mut bench = Bench::new();
    let first = only_read(&bench.machine.add(Bench::spec(1)));
    bench.mark(&first, MarkerKind::Low);
    let second = only_read(&bench.arrive(&first, "9:9:", &[1, 2]));
    bench.mark(&second, MarkerKind::Low);
    bench.arrive(&second, "9:9:", &[3, 4]);
    bench.machine.relation_changed(1, false);
    let out = bench.mark(&first, MarkerKind::High);
    assert!(emissions(&out).is_empty());
    let again = only_read(&out);
    assert_eq!((after(&again), again.chunk), (None, 0));
    assert!(emissions(&bench.mark(&second, MarkerKind::High)).is_empty(), "abandoned");
    // The second reading ends elsewhere; the chunk behind it begins there.
    let third = only_read(&bench.read(&again, "12:12:", &[2, 9]));
    assert_eq!((after(&third), third.chunk), (Some("9"), 1));
}

#[test]
fn a_relation_change_before_the_low_mark_is_in_the_snapshot() {
    let mut bench = Bench::new();
    let request = only_read(&bench.machine.add(Bench::spec(1)));
    bench.machine.relation_changed(1, false);
    assert_eq!(emissions(&bench.read(&request, "9:9:", &[1, 2])).len(), 1);
}

#[test]
fn c023_c043_a_changed_key_restarts_the_run_and_a_renamed_one_does_not() {
    let mut bench = Bench::new();
    let first = only_read(&bench.machine.add(Bench::spec(1)));
    let second = only_read(&bench.read(&first, "9:9:", &[1, 2]));
    let mut read = chunk(second.attempt, second.limit, "9:9:", &[3, 4]);
    read.key[0].name = "number".into();
    let third = only_read(&bench.machine.chunk_read(read));
    let mut read = chunk(third.attempt, third.limit, "9:9:", &[5, 6]);
    read.key = key(2);
    let out = bench.machine.chunk_read(read);
    assert!(out.contains(&Command::Restart { run: "run-1".into(), reason: RestartReason::KeyChanged }));
    let again = only_read(&out);
    assert_eq!((after(&again), again.chunk), (None, 0));
    assert_eq!(bench.machine.durable(first.attempt), [], "of the progress that was discarded");
    let out = bench.machine.relation_changed(1, true);
    assert!(matches!(out[0], Command::Restart { .. }));
}

#[test]
fn c068_c071_failures_shrink_pages_pause_and_let_others_read() {
    let mut bench = Bench::with(Settings {
        page: PageSettings { most: 100, floor: 10, ..settings().page },
        ..settings()
    });
    let mut request = only_read(&bench.machine.add(Bench::spec(1)));
    assert!(reads(&bench.machine.add(Bench::spec(2))).is_empty(), "one table at a time");
    let timeout = || ReadFailure { timed_out: true, message: "statement timeout".into() };
    for limit in [12, 10] {
        request = only_read(&bench.machine.read_failed(request.attempt, timeout(), SECOND));
        assert_eq!((request.table, request.limit), (1, limit));
    }
    let out = bench.machine.read_failed(request.attempt, timeout(), SECOND);
    let failed =
        matches!(&out[0], Command::Fail { attempts: 1, not_before, .. } if *not_before == 6 * SECOND);
    assert!(failed, "{out:?}");
    let other = only_read(&out);
    assert_eq!(other.table, 2);
    assert!(bench.machine.read_failed(request.attempt, timeout(), SECOND).is_empty(), "reported twice");
    bench.read(&other, "9:9:", &[1]);
    assert!(reads(&bench.machine.durable(other.attempt)).is_empty(), "still pausing");
    assert_eq!(bench.machine.next_wake(), Some(6 * SECOND));
    let request = only_read(&bench.machine.tick(6 * SECOND));
    assert_eq!((request.table, request.chunk), (1, 0));
}

#[test]
fn c069_reading_ahead_is_bounded_in_bytes() {
    let mut bench = Bench::with(Settings { prefetch_bytes: 60, ..settings() });
    let mut request = only_read(&bench.machine.add(Bench::spec(1)));
    let first = request.clone();
    let mut held = 1;
    for row in (1..100).step_by(2) {
        let out = bench.read(&request, "9:9:", &[row, row + 1]);
        let Some(next) = reads(&out).into_iter().next() else { break };
        (request, held) = (next, held + 1);
    }
    assert_eq!(held, 2, "what is emitted and not durable counts too");
    assert_eq!(reads(&bench.machine.durable(first.attempt)).len(), 1);
}

#[test]
fn c071_a_dead_sink_lets_other_tables_read_and_recovers_at_once() {
    let mut bench = Bench::with(Settings { prefetch_bytes: 1, ..settings() });
    let first = only_read(&bench.machine.add(Bench::spec(1)));
    bench.machine.add(Bench::spec(2));
    assert!(reads(&bench.read(&first, "9:9:", &[1, 2])).is_empty(), "one chunk at a time");
    let other = only_read(&bench.machine.delivery_failed(1, "sink is down".into(), SECOND));
    assert_eq!(other.table, 2);
    bench.read(&other, "9:9:", &[]);
    assert!(reads(&bench.machine.durable(other.attempt)).is_empty());
    let second = only_read(&bench.machine.durable(first.attempt));
    assert_eq!((second.table, after(&second)), (1, Some("2")));
}

#[test]
fn a_torn_down_lane_gets_its_chunks_again() {
    let mut bench = Bench::new();
    let first = only_read(&bench.machine.add(Bench::spec(1)));
    let second = only_read(&bench.read(&first, "9:9:", &[1, 2]));
    bench.machine.durable(first.attempt);
    bench.read(&second, "9:9:", &[3, 4]);
    let again = only_read(&bench.machine.rewind(1));
    assert_eq!((after(&again), again.chunk), (Some("2"), 1));
    assert_eq!(bench.machine.durable(second.attempt), []);
}
