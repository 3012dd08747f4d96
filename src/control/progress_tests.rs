use std::collections::BTreeMap;

use crate::{
    backfill::Report,
    model::Lsn,
    state::{PendingRequest, RunAge, StoredControl, StoredRequest, Suspension},
};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn products() -> EntityName {
    EntityName::new("public", "products")
}

fn mapping(name: &str, version: &str, generation: i64, built: i64) -> StoredMapping {
    let identity = serde_json::json!({
        "route": { "entity": "public.products", "sink": "s", "sink_kind": "null", "destination": name },
        "transform": { "name": "search", "version": version, "sha256": "00" },
        "inputs": { "tables": [], "depends_on": [], "wants_deletes": false, "names_ids": false }
    });
    let first = StoredMapping::new(name, products(), 1, identity.to_string());
    StoredMapping { generation, built, accepted: Lsn(1), ..first }
}

fn run(status: RunStatus, scope: Option<Scope>) -> StoredRun {
    let mappings = vec!["a".into(), "b".into()];
    let queued = StoredRun::new(products(), format!("{status:?}{scope:?}"), mappings);
    StoredRun {
        status,
        rows: 410_211,
        chunks: 83,
        estimate: Some(1_000_000),
        scope,
        report: Report { retries: 2, wall_ms: 48_000, ..Report::default() },
        ..queued
    }
}

fn picture(mappings: &[StoredMapping], runs: &[StoredRun]) -> Picture {
    let ages = runs.iter().map(|run| {
        let (started, updated) = (50 * SECOND, SECOND);
        let age = RunAge { run: run.run.clone(), started, updated, finished: Some(2 * SECOND) };
        (run.run.clone(), age)
    });
    Picture {
        mappings: mappings.to_vec(),
        runs: runs.to_vec(),
        ages: ages.collect(),
        streaming: true,
        ..Picture::default()
    }
}

fn request(target: Target, scope: Option<Scope>) -> PendingRequest {
    let request = StoredRequest { id: 1, target, scope, purge: false };
    PendingRequest { request, taken: false, age: SECOND }
}

fn goal(targets: &[&str]) -> Goal {
    Goal { targets: targets.iter().map(|&target| target.to_owned()).collect(), plugins: Vec::new() }
}

fn at_version(version: &str) -> Goal {
    let version = version.parse().unwrap();
    Goal { targets: Vec::new(), plugins: vec![PluginGoal { name: "search".into(), version }] }
}

fn standing(picture: &Picture, goal: &Goal) -> Standing {
    progress(Some(picture), goal).unwrap()
}

fn steps(standing: &Standing) -> Vec<Step> {
    standing.items.iter().map(|item| item.step).collect()
}

#[test]
fn without_a_schema_it_waits() {
    let standing = progress(None, &goal(&["products"])).unwrap();
    assert_eq!(standing.verdict, Verdict::Waiting);
    assert!(standing.notes[0].contains("no host has run"));
    assert_eq!(
        super::progress(Some(&Picture::default()), &Goal::default()).unwrap().verdict,
        Verdict::Waiting
    );
}

#[test]
fn what_is_built_is_complete_at_once() {
    let mappings = [mapping("a", "1.4.0", 2, 2), mapping("b", "1.4.0", 1, 1)];
    for runs in [&[][..], &[run(RunStatus::Complete, None)], &[run(RunStatus::Cancelled, None)]] {
        for goal in
            [Goal::default(), goal(&["public.products", "a"]), goal(&["products"]), at_version("1.4.0")]
        {
            let standing = standing(&picture(&mappings, runs), &goal);
            assert_eq!(standing.verdict, Verdict::Complete, "{goal:?} {standing:?}");
            assert!(standing.notes.is_empty(), "{standing:?}");
        }
    }
    let done = standing(&picture(&mappings, &[run(RunStatus::Complete, None)]), &Goal::default());
    assert_eq!((done.items.len(), done.items[0].percent()), (1, Some(100)));
    assert_eq!(done.items[0].elapsed, Some(48 * SECOND));
}

#[test]
fn a_run_tells_how_far_it_is() {
    let mappings = [mapping("a", "1.4.0", 2, 1), mapping("b", "1.4.0", 1, 1)];
    let mut picture = picture(&mappings, &[run(RunStatus::Running, None)]);
    let standing_of = |picture: &Picture| standing(picture, &goal(&["a"]));
    let reading = standing_of(&picture);
    assert_eq!((&reading.verdict, steps(&reading).as_slice()), (&Verdict::Waiting, &[Step::Reading][..]));
    let item = &reading.items[0];
    assert_eq!((item.percent(), item.retries, item.rate), (Some(41), 2, None));
    assert_eq!(item.left.map(|left| left.as_secs()), Some(69));
    let paused = StoredControl { entity: None, paused: true, rows_per_second: None };
    let limited = StoredControl { entity: Some(products()), paused: false, rows_per_second: Some(7) };
    picture.controls = vec![paused, limited];
    let paused = standing_of(&picture);
    assert_eq!(
        (&paused.verdict, steps(&paused)[0], paused.items[0].rate),
        (&Verdict::Waiting, Step::Paused, Some(7))
    );
    assert!(paused.notes[0].contains("public.products is paused"), "{:?}", paused.notes);
    picture.streaming = false;
    assert!(standing_of(&picture).notes[0].contains("no host streams"));
}

#[test]
fn requests_and_parts_are_waited_for() {
    let mappings = [mapping("a", "1.4.0", 1, 1), mapping("b", "1.4.0", 1, 1)];
    let keys = || Some(Scope::Keys(vec![vec!["1".into()], vec!["2".into()]]));
    for (target, waits) in [
        (Target::Table(products()), true),
        (Target::Mapping("a".into()), true),
        (Target::Mapping("b".into()), false),
        (Target::Table(EntityName::new("public", "other")), false),
    ] {
        let mut picture = picture(&mappings, &[run(RunStatus::Complete, None)]);
        picture.requests = vec![request(target.clone(), keys())];
        let of_a = standing(&picture, &goal(&["a"]));
        assert_eq!(of_a.verdict == Verdict::Waiting, waits, "{target:?} {of_a:?}");
        if waits {
            assert_eq!(
                (of_a.items[0].step, of_a.items[0].part.as_deref()),
                (Step::Requested, Some("2 keys"))
            );
        }
        assert_eq!(standing(&picture, &Goal::default()).verdict, Verdict::Waiting, "all is all: {target:?}");
    }
    let runs = [run(RunStatus::Complete, None), run(RunStatus::Queued, keys())];
    let parts = standing(&picture(&mappings, &runs), &goal(&["products"]));
    assert_eq!(parts.verdict, Verdict::Waiting);
    assert!(parts.items.iter().any(|item| item.step == Step::Queued && item.elapsed.is_none()), "{parts:?}");
}

#[test]
fn what_fails_ends_it_with_its_last_error() {
    let good = mapping("a", "1.4.0", 2, 1);
    let failing = StoredRun { last_error: Some("disk full".into()), ..run(RunStatus::Failing, None) };
    let failed = |standing: Standing| match standing.verdict {
        Verdict::Failed(error) => error,
        other => panic!("{other:?}"),
    };
    let said = failed(standing(&picture(std::slice::from_ref(&good), &[failing]), &goal(&["a"])));
    assert_eq!(said, "public.products is failing: disk full");
    for status in [MappingStatus::Failing, MappingStatus::Refused] {
        let bad = StoredMapping { status, last_error: Some("bump it".into()), ..mapping("b", "1.4.0", 1, 1) };
        let both = picture(&[good.clone(), bad], &[run(RunStatus::Running, None)]);
        assert!(failed(standing(&both, &Goal::default())).ends_with("bump it"));
        assert_eq!(standing(&both, &goal(&["a"])).verdict, Verdict::Waiting, "another mapping's");
    }
}

#[test]
fn a_cancelled_table_is_done_with_a_note() {
    let mappings = [mapping("a", "1.4.0", 2, 1)];
    let mark = StoredRun { mappings: Vec::new(), ..run(RunStatus::Cancelled, None) };
    let mut picture = picture(&mappings, &[mark]);
    for goal in [goal(&["a"]), goal(&["products"]), Goal::default()] {
        let cancelled = standing(&picture, &goal);
        assert_eq!((&cancelled.verdict, steps(&cancelled)[0]), (&Verdict::Complete, Step::Cancelled));
        assert!(cancelled.notes[0].contains("was cancelled"), "{cancelled:?}");
    }
    picture.requests = vec![request(Target::Table(products()), None)];
    assert_eq!(standing(&picture, &goal(&["a"])).verdict, Verdict::Waiting, "until it is asked for");
}

#[test]
fn a_version_is_waited_for_before_its_host_is_up() {
    let wanted = at_version("1.5.0");
    let nothing = standing(&picture(&[], &[]), &wanted);
    assert_eq!((&nothing.verdict, steps(&nothing)[0]), (&Verdict::Waiting, Step::Unmapped));
    // The old version fails, which is what the new one is for.
    let old = StoredMapping {
        status: MappingStatus::Failing,
        last_error: Some("bug".into()),
        ..mapping("a", "1.4.0", 1, 1)
    };
    let mixed = [old, mapping("b", "1.5.0", 2, 2)];
    let failing = StoredRun { mappings: vec!["a".into()], ..run(RunStatus::Failing, None) };
    let outdated = standing(&picture(&mixed, &[failing]), &wanted);
    assert_eq!(outdated.verdict, Verdict::Waiting, "{outdated:?}");
    assert!(outdated.items[0].part.as_deref().unwrap().contains("1.4.0 is stored"), "{outdated:?}");
    let building = [mapping("a", "1.5.0", 2, 1), mapping("b", "1.5.0", 2, 2)];
    let reading = standing(&picture(&building, &[run(RunStatus::Running, None)]), &wanted);
    assert_eq!((&reading.verdict, steps(&reading)[0]), (&Verdict::Waiting, Step::Reading));
    assert_eq!(standing(&picture(&building, &[]), &wanted).verdict, Verdict::Waiting, "its run comes");
    let built = [mapping("a", "1.5.0", 2, 2), mapping("b", "1.5.0", 2, 2)];
    assert_eq!(standing(&picture(&built, &[]), &wanted).verdict, Verdict::Complete);
    let refused = StoredMapping { status: MappingStatus::Refused, ..mapping("a", "1.5.0", 2, 2) };
    assert!(matches!(standing(&picture(&[refused], &[]), &wanted).verdict, Verdict::Failed(_)));
}

#[test]
fn targets_are_mappings_or_tables() {
    let mappings =
        [StoredMapping { entity: EntityName::new("shop", "items"), ..mapping("products", "1.0.0", 1, 1) }];
    let picture = Picture { ages: BTreeMap::new(), ..picture(&mappings, &[]) };
    let resolved = |text: &str| picture.resolve(text).unwrap();
    assert_eq!(resolved("products"), Target::Mapping("products".into()));
    assert_eq!(resolved("orders"), Target::Table(EntityName::new("public", "orders")));
    assert_eq!(resolved("public.products"), Target::Table(products()));
    assert_eq!(resolved("a.t:p:s"), Target::Mapping("a.t:p:s".into()), "a name that only a mapping has");
    assert_eq!(resolved("a.\"t:p\""), Target::Table(EntityName::new("a", "t:p")));
    assert!(picture.resolve("a.b.c").is_err() && picture.resolve("a b").is_err());
    let unknown = standing(&picture, &goal(&["orders"]));
    assert_eq!((&unknown.verdict, steps(&unknown)[0]), (&Verdict::Waiting, Step::Unmapped));
}

#[test]
fn what_is_suspended_without_its_slot_is_not_complete() {
    let suspended = |keep_slot, resumed| Picture {
        streaming: false,
        suspension: Some(Suspension {
            keep_slot,
            reason: None,
            since: "2026-05-01T12:00:00Z".into(),
            settled: true,
            resumed,
            purge: false,
        }),
        ..picture(&[mapping("search", "1.4.0", 1, 1)], &[])
    };
    let told = standing(&suspended(false, false), &Goal::default());
    assert_eq!((steps(&told), told.verdict.clone()), (vec![Step::Waiting], Verdict::Waiting));
    assert_eq!(told.notes, ["suspended since 2026-05-01T12:00:00Z; `anabranch resume` lets it go on"]);
    // Until the next term has made new generations of everything.
    assert_eq!(standing(&suspended(false, true), &Goal::default()).verdict, Verdict::Waiting);
    assert_eq!(standing(&suspended(true, false), &Goal::default()).verdict, Verdict::Complete);
}
