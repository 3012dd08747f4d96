//! Runs that are asked for, wait, are granted, paused, slowed down and withdrawn.

use std::collections::BTreeSet;

use crate::{
    backfill::{Controls, Stage, TableControl},
    model::Scope,
};

use super::*;

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn scoped(run: &str, table: u32) -> RunSpec {
    let scope = Some(Arc::new(Scope::Where("id > 7".into())));
    RunSpec { run: run.into(), scope, mappings: names(&["a"]), ..Bench::spec(table) }
}

fn stage(bench: &Bench, table: u32) -> Stage {
    bench.machine.run(table).unwrap().stage
}

/// A whole reading, delivered.
fn finish(bench: &mut Bench, request: &ReadRequest) -> Out {
    bench.read(request, "9:9:", &[]);
    bench.machine.durable(request.attempt)
}

fn pause(table: u32) -> Controls {
    let control = TableControl { paused: true, rows_per_second: None };
    Controls { tables: [(table, control)].into(), ..Controls::default() }
}

fn rate(rows_per_second: u32) -> Controls {
    Controls { rows_per_second: Some(rows_per_second), ..Controls::default() }
}

#[test]
fn a_request_during_a_run_wins_with_the_mappings_of_both() {
    let mut bench = Bench::new();
    let first = only_read(&bench.machine.add(RunSpec { mappings: names(&["a"]), ..Bench::spec(1) }));
    bench.read(&first, "9:9:", &[1, 2]);
    let out = bench.machine.add(RunSpec { run: "new".into(), mappings: names(&["b"]), ..Bench::spec(1) });
    let superseded =
        Command::Supersede { old: "run-1".into(), new: "new".into(), mappings: names(&["a", "b"]) };
    assert_eq!(out[0], superseded);
    assert_eq!(after(&only_read(&out)), None);
    assert_eq!(bench.machine.durable(first.attempt), [], "later progress of the old run is discarded");
    assert!(bench.machine.remove_mapping(1, "a").is_empty());
    assert_eq!(bench.machine.remove_mapping(1, "b"), ["new".into()]);
}

#[test]
fn a_request_during_a_pause_waits_for_it() {
    let mut bench = Bench::new();
    let request = only_read(&bench.machine.add(Bench::spec(1)));
    let failure = ReadFailure { timed_out: false, message: "no right to read".into() };
    bench.machine.read_failed(request.attempt, failure, SECOND);
    let out = bench.machine.add(RunSpec { run: "new".into(), ..Bench::spec(1) });
    assert!(reads(&out).is_empty());
    assert_eq!(bench.machine.run(1).unwrap().attempts, 1);
    only_read(&bench.machine.tick(6 * SECOND));
}

#[test]
fn a_run_reads_once_its_beginning_is_granted_and_is_forgotten_once_it_was_withdrawn() {
    let begin = |table: u32| Command::Begin { run: format!("run-{table}").into() };
    let mut bench = Bench::new();
    assert_eq!(bench.machine.add(Bench::queued(1)), [begin(1)]);
    assert_eq!(bench.machine.add(Bench::queued(2)), [], "its place is taken while it is asked about");
    assert_eq!(bench.machine.tick(SECOND), [], "asked once");
    assert_eq!(bench.machine.begun("another", true), []);
    assert_eq!(bench.machine.begun("run-1", false), [begin(2)]);
    assert!(bench.machine.run(1).is_none());
    assert!(!bench.machine.run(2).unwrap().started);
    assert_eq!(only_read(&bench.machine.begun("run-2", true)).table, 2);
    assert_eq!(bench.machine.begun("run-2", false), [], "begun is begun");
    assert!(bench.machine.run(2).unwrap().started);
}

#[test]
fn what_is_streamed_before_a_beginning_is_granted_is_read_and_not_overtaken() {
    let mut bench = Bench::new();
    bench.machine.add(Bench::queued(1));
    // Handed out before the targets are emptied for the run.
    bench.commit(846, 100, &[(1, Touch::Key(b"1"))]);
    assert!(reads(&bench.machine.begun("run-1", true)).is_empty(), "the next snapshot may miss it");
    assert!(reads(&bench.machine.probe(&snapshot("846:848:846"))).is_empty());
    let request = only_read(&bench.machine.probe(&snapshot("848:848:")));
    bench.commit(849, 200, &[(1, Touch::Key(b"2"))]);
    assert_eq!(bench.machine.begun("run-1", true), [], "told again");
    let out = bench.read(&request, "848:850:849", &[1, 2]);
    assert_eq!(emissions(&out)[0].dropped, [1], "of what comes behind the beginning it is");
}

#[test]
fn a_run_that_waits_for_visibility_lets_others_read() {
    let mut bench = Bench::new();
    let first = only_read(&bench.machine.add(RunSpec { skip_until: Lsn(200), ..Bench::spec(1) }));
    bench.machine.add(Bench::spec(2));
    bench.commit(846, 100, &[(1, Touch::Key(b"1"))]);
    let out = bench.read(&first, "846:848:846", &[1, 2]);
    assert_eq!(only_read(&out).table, 2);
}

// --- scoped runs --------------------------------------------------------------------------------

#[test]
fn scoped_runs_wait_behind_their_tables_run_in_order() {
    let mut bench = Bench::new();
    let whole = only_read(&bench.machine.add(RunSpec { mappings: names(&["b"]), ..Bench::spec(1) }));
    for run in ["first", "second"] {
        assert_eq!(bench.machine.add(scoped(run, 1)), []);
    }
    assert_eq!(bench.machine.run_count(1), 3);
    let views: Vec<_> = bench.machine.runs().map(|(_, view)| (view.run.to_string(), view.stage)).collect();
    let expected = [("run-1", Stage::Reading), ("first", Stage::Queued), ("second", Stage::Queued)];
    assert_eq!(views, expected.map(|(run, stage)| (run.to_owned(), stage)));
    let first = only_read(&finish(&mut bench, &whole));
    assert_eq!((&*first.run, first.scope.is_some()), ("first", true));
    assert_eq!(first.scope, scoped("first", 1).scope);
    let second = only_read(&finish(&mut bench, &first));
    assert_eq!(&*second.run, "second");
    assert!(completed(&finish(&mut bench, &second)));
    assert_eq!(bench.machine.run_count(1), 0);
}

#[test]
fn a_whole_run_takes_the_place_of_scoped_ones_and_reads_everything() {
    let mut bench = Bench::new();
    let first = only_read(&bench.machine.add(scoped("first", 1)));
    bench.machine.add(scoped("covered", 1));
    bench.machine.add(RunSpec { mappings: names(&["a", "other"]), ..scoped("not covered", 1) });
    let out = bench.machine.add(RunSpec { mappings: names(&["b"]), ..Bench::spec(1) });
    let superseded =
        |old: &str| Command::Supersede { old: old.into(), new: "run-1".into(), mappings: names(&["a", "b"]) };
    assert_eq!(out[..2], [superseded("first"), superseded("covered")]);
    let whole = only_read(&out);
    assert_eq!((&*whole.run, &whole.scope, after(&whole)), ("run-1", &None, None));
    assert_eq!(bench.machine.durable(first.attempt), []);
    assert_eq!(bench.machine.run_count(1), 2);
    assert_eq!(&*only_read(&finish(&mut bench, &whole)).run, "not covered");
}

#[test]
fn scoped_runs_that_wait_are_withdrawn_and_lose_mappings_and_a_changed_key_restarts_them() {
    let mut bench = Bench::new();
    let whole = only_read(&bench.machine.add(RunSpec { mappings: names(&["b"]), ..Bench::spec(1) }));
    bench.read(&whole, "9:9:", &[1, 2]);
    let Command::SaveCursor { cursor, .. } = &bench.machine.durable(whole.attempt)[0] else { panic!() };
    let cursor = Some(cursor.clone());
    bench.machine.add(RunSpec { started: false, ..scoped("withdrawn", 1) });
    bench.machine.add(scoped("without mappings", 1));
    bench.machine.add(RunSpec { mappings: names(&["a", "b"]), cursor, ..scoped("last", 1) });
    for run in ["withdrawn", "without mappings", "run-1"] {
        bench.machine.begun(run, false);
        assert_eq!(bench.machine.run_count(1), 3, "the others have begun");
    }
    assert_eq!(bench.machine.remove_mapping(1, "a"), ["without mappings".into()]);
    let restarted = |run: &str| Command::Restart { run: run.into(), reason: RestartReason::KeyChanged };
    let out = bench.machine.relation_changed(1, true);
    assert_eq!(out[..2], [restarted("run-1"), restarted("last")]);
    let last = only_read(&finish(&mut bench, &only_read(&out)));
    assert_eq!((&*last.run, after(&last)), ("last", None));
    assert_eq!(bench.machine.remove_mapping(1, "b"), ["last".into()]);
    assert_eq!(bench.machine.run_count(1), 0);
}

#[test]
fn a_withdrawn_run_makes_room_for_the_next_of_its_table() {
    let mut bench = Bench::new();
    bench.machine.add(Bench::queued(1));
    bench.machine.add(RunSpec { started: false, ..scoped("first", 1) });
    let begin = Command::Begin { run: "first".into() };
    assert_eq!(bench.machine.begun("run-1", false), [begin]);
    assert_eq!(&*only_read(&bench.machine.begun("first", true)).run, "first");
}

// --- pause and rate -----------------------------------------------------------------------------

#[test]
fn a_pause_lets_what_is_in_flight_go_on_and_then_others_read() {
    let mut bench = Bench::new();
    let first = only_read(&bench.machine.add(Bench::spec(1)));
    bench.machine.add(Bench::spec(2));
    bench.mark(&first, MarkerKind::Low);
    let second = only_read(&bench.arrive(&first, "9:9:", &[1, 2]));
    assert!(bench.machine.control(pause(1), 0).is_empty());
    assert!(reads(&bench.arrive(&second, "9:9:", &[3, 4])).is_empty());
    assert_eq!(stage(&bench, 1), Stage::Stream);
    assert_eq!(emissions(&bench.mark(&first, MarkerKind::High)).len(), 1);
    assert_eq!(emissions(&bench.mark(&second, MarkerKind::High)).len(), 1);
    assert_eq!(stage(&bench, 1), Stage::Delivering);
    assert!(reads(&bench.machine.durable(first.attempt)).is_empty(), "its place is not free yet");
    let other = only_read(&bench.machine.durable(second.attempt));
    assert_eq!((other.table, stage(&bench, 1)), (2, Stage::Throttled));
    assert_eq!(bench.machine.next_wake(), None);
    bench.machine.control(Controls::default(), 0);
    assert_eq!(stage(&bench, 1), Stage::Queued);
    let on = only_read(&finish(&mut bench, &other));
    assert_eq!((on.table, after(&on)), (1, Some("4")));
}

#[test]
fn a_paused_run_does_not_even_begin() {
    let mut bench = Bench::new();
    assert_eq!(bench.machine.control(Controls { paused: true, ..Controls::default() }, 0), []);
    assert_eq!(bench.machine.add(Bench::queued(1)), []);
    assert_eq!((stage(&bench, 1), bench.machine.run(1).unwrap().active), (Stage::Throttled, false));
    let begin = Command::Begin { run: "run-1".into() };
    assert_eq!(bench.machine.control(Controls::default(), 0), [begin]);
    bench.machine.control(pause(1), 0);
    assert_eq!(bench.machine.begun("run-1", true), []);
    assert_eq!(bench.machine.run_count(1), 1);
}

#[test]
fn a_rate_clips_pages_and_spreads_readings() {
    let page = PageSettings { most: 100, ..settings().page };
    let mut bench = Bench::with(Settings { page, ..settings() });
    bench.machine.control(rate(4), 10 * SECOND);
    let first = only_read(&bench.machine.add(Bench::spec(1)));
    assert_eq!(first.limit, 4);
    assert!(reads(&bench.read(&first, "9:9:", &[1, 2, 3])).is_empty());
    assert_eq!(stage(&bench, 1), Stage::Delivering);
    let first_rows = ChunkRead { exhausted: false, ..chunk(first.attempt, 3, "9:9:", &[1, 2, 3]) };
    assert!(bench.machine.chunk_read(first_rows).is_empty(), "counted once");
    bench.machine.rewind(1);
    assert_eq!(stage(&bench, 1), Stage::Throttled);
    let at = 10 * SECOND + 750_000;
    assert_eq!(bench.machine.next_wake(), Some(at));
    assert_eq!(bench.machine.tick(at - 1), []);
    let again = only_read(&bench.machine.tick(at));
    assert_eq!(bench.machine.next_wake(), None, "it reads");
    bench.mark(&again, MarkerKind::Low);
    bench.arrive(&again, "9:9:", &[1, 2, 3, 4]);
    assert_eq!(bench.machine.next_wake(), Some(at + SECOND));
    let unbounded = only_read(&bench.machine.control(Controls::default(), at));
    assert!(unbounded.limit > 4);
}

// --- what a run waits for -----------------------------------------------------------------------

#[test]
fn views_say_what_a_run_waits_for() {
    let mut bench = Bench::new();
    bench.commit(846, 100, &[(1, Touch::Key(b"1"))]);
    bench.machine.add(Bench::queued(1));
    assert_eq!(stage(&bench, 1), Stage::Stream, "until a commit is visible");
    bench.machine.probe(&snapshot("848:848:"));
    assert_eq!(stage(&bench, 1), Stage::Queued, "until its beginning is granted");
    let request = only_read(&bench.machine.begun("run-1", true));
    bench.machine.add(Bench::spec(2));
    assert_eq!((stage(&bench, 1), stage(&bench, 2)), (Stage::Reading, Stage::Queued));
    bench.machine.yield_to_live(true);
    bench.arrive(&request, "848:848:", &[1]);
    assert_eq!(stage(&bench, 1), Stage::Stream);
    bench.mark(&request, MarkerKind::High);
    assert_eq!(stage(&bench, 1), Stage::Yielding);
    bench.machine.yield_to_live(false);
    assert_eq!(stage(&bench, 1), Stage::Delivering);
    bench.machine.rewind(1);
    bench.machine.delivery_failed(1, "sink is down".into(), SECOND);
    assert_eq!(stage(&bench, 1), Stage::Reading, "what is in flight goes on");
    bench.machine.rewind(1);
    let view = bench.machine.run(1).unwrap();
    assert_eq!((view.stage, view.stats.retries), (Stage::Backoff, 1));
}
