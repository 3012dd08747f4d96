//! The state schema on a real server: its upgrade, and who wins when several processes write at once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use anabranch::{
    backfill::Report,
    model::{EntityName, Lsn, Place, Scope},
    pipeline::LaneOrder,
    state::{
        Installation, Kept, NewEntry, QuarantineStage, RejectedDocument, RunStatus, StateError, Store,
        StoredMapping, StoredRun, Target,
    },
};
use testkit::{Database, shared, wait_until};
use tokio_postgres::Client;

const SHOP: &str = "shop";

async fn fresh() -> (Database, Client, Store) {
    let database = shared().unwrap().create_database().await.unwrap();
    let client = database.connect().await.unwrap();
    let store = Store::new(SHOP);
    store.upgrade(&client).await.unwrap();
    (database, client, store)
}

fn products() -> EntityName {
    EntityName::new("public", "products")
}

fn table() -> Target {
    Target::Table(products())
}

fn mapping(name: &str, generation: i64, built: i64) -> StoredMapping {
    StoredMapping { generation, built, accepted: Lsn(1), ..StoredMapping::new(name, products(), 1, "{}") }
}

fn run(name: &str, status: RunStatus, scope: Option<Scope>) -> StoredRun {
    let mappings = vec!["a".into(), "b".into()];
    StoredRun { status, estimate: Some(100), scope, ..StoredRun::new(products(), name, mappings) }
}

fn keys() -> Scope {
    Scope::Keys(vec![vec!["1".into()], vec!["2".into()]])
}

async fn one_run(store: &Store, client: &Client) -> StoredRun {
    let runs = store.runs(client).await.unwrap();
    let [run] = runs.as_slice() else { panic!("{runs:?}") };
    run.clone()
}

/// The schema as 0.1.0 wrote it, with what it stored.
const STEP_ONE: &str = "
    create schema anabranch;
    create table anabranch.version (version integer not null);
    insert into anabranch.version values (1);
    create table anabranch.installation (name text primary key, publication text not null,
        system_identifier text not null, timeline integer not null, confirmed pg_lsn not null,
        term bigint not null default 0, baseline bigint, updated_at timestamptz not null default now());
    create table anabranch.mapping (installation text not null, name text not null, entity text not null,
        table_oid oid not null, identity jsonb not null, generation bigint not null, built bigint not null,
        accepted pg_lsn not null, status text not null check (status in ('running', 'failing', 'refused')),
        last_error text, attempts integer not null default 0, updated_at timestamptz not null default now(),
        primary key (installation, name));
    create table anabranch.run (installation text not null, entity text not null, run text not null,
        mappings text[] not null, status text not null check (status in ('running', 'failing', 'complete')),
        cursor text, rows bigint not null default 0, chunks bigint not null default 0, estimate bigint,
        attempts integer not null default 0, last_error text, not_before timestamptz not null default 'epoch',
        started_at timestamptz not null default now(), finished_at timestamptz,
        primary key (installation, entity));
    insert into anabranch.mapping values ('shop', 'a', 'public.products', 1, '{}', 2, 1, '0/1', 'running');
    insert into anabranch.run (installation, entity, run, mappings, status, cursor, rows)
        values ('shop', 'public.products', 'r', '{a}', 'running', '{}', 7);";

#[tokio::test(flavor = "multi_thread")]
async fn the_first_schema_is_upgraded_with_what_is_in_it() {
    let database = shared().unwrap().create_database().await.unwrap();
    let client = database.connect().await.unwrap();
    let store = Store::new(SHOP);
    assert!(!store.ready(&client).await.unwrap(), "there is none");
    client.batch_execute(STEP_ONE).await.unwrap();
    // As another program may have one: it forbids to update what has no identity.
    client.batch_execute("create publication everything for all tables").await.unwrap();
    let older = store.ensure(&client).await.unwrap_err();
    assert!(matches!(older, StateError::Older { found: 1, known: 9 }), "{older}");
    store.upgrade(&client).await.unwrap();
    store.upgrade(&client).await.unwrap();
    assert!(store.ready(&client).await.unwrap());
    assert!(!store.mappings(&client).await.unwrap()[0].purge);
    let found = one_run(&store, &client).await;
    assert_eq!((found.rows, found.cursor.as_deref(), found.scope), (7, Some("{}"), None));
    assert_eq!(found.report, Report::default());
    // What the old keys and checks forbade.
    store.save_run(&client, &run("s", RunStatus::Queued, Some(keys()))).await.unwrap();
    store.save_run(&client, &run("q", RunStatus::Queued, None)).await.unwrap();
    let runs = store.runs(&client).await.unwrap();
    assert_eq!(runs.iter().map(|run| run.run.as_str()).collect::<Vec<_>>(), ["q", "s"]);
    client.execute("update anabranch.version set version = 10", &[]).await.unwrap();
    let newer = store.ensure(&client).await.unwrap_err();
    assert!(matches!(newer, StateError::Newer { found: 10, known: 9 }), "{newer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_several_ask_at_once_is_asked_once() {
    let (database, client, store) = fresh().await;
    let asking = (0..8).map(|number| {
        let (database, store) = (&database, &store);
        async move {
            let client = database.connect().await.unwrap();
            for _ in 0..5 {
                store.ask(&client, &table(), &[None, Some(keys())], number == 3).await.unwrap();
            }
        }
    });
    futures_util::future::join_all(asking).await;
    let requests = store.requests(&client).await.unwrap();
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert!(requests.iter().all(|request| request.purge && request.target == table()));
    assert_eq!(
        requests.iter().map(|request| request.scope.clone()).collect::<Vec<_>>(),
        [None, Some(keys())]
    );
    let long = Scope::Where(format!("name = '{}'", (0..3000).map(|n| n.to_string()).collect::<String>()));
    for _ in 0..2 {
        store.ask(&client, &table(), &[Some(long.clone())], false).await.unwrap();
    }
    assert_eq!(store.requests(&client).await.unwrap().len(), 3, "a scope may be long");
    let other = Store::new("other");
    assert_eq!(other.requests(&client).await.unwrap(), [], "another installation's");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_taking_and_starting_loses_no_request() {
    let (_database, client, store) = fresh().await;
    let first = store.ask(&client, &table(), &[None], true).await.unwrap()[0];
    assert!(first.new);
    assert_eq!(store.take_requests(&client, &[first.id, 999]).await.unwrap(), [first.id]);
    assert!(store.take_requests(&client, &[first.id]).await.unwrap().is_empty(), "it is taken");
    assert_eq!(store.requests(&client).await.unwrap(), []);
    // The leader dies. Meanwhile the same is asked again, without the purge.
    let second = store.ask(&client, &table(), &[None], false).await.unwrap()[0];
    assert!(second.new && second.id > first.id);
    store.release_requests(&client).await.unwrap();
    let requests = store.requests(&client).await.unwrap();
    assert_eq!((requests.len(), requests[0].id, requests[0].purge), (1, second.id, true), "{requests:?}");

    // Whole tables cover what was asked of their parts before, not what is asked after.
    store.save_mapping(&client, &mapping("a", 1, 1)).await.unwrap();
    let part = store.ask(&client, &Target::Mapping("a".into()), &[Some(keys())], false).await.unwrap()[0];
    let third = store.ask(&client, &Target::Mapping("a".into()), &[None], false).await.unwrap()[0];
    let fourth = store.ask(&client, &table(), &[Some(keys())], false).await.unwrap()[0];
    let taken = store.take_requests(&client, &[second.id, third.id]).await.unwrap();
    let mut queued = run("whole", RunStatus::Queued, None);
    queued.report.rows = 3;
    let due = StoredMapping { purge: true, ..mapping("a", 2, 1) };
    store.start_requested(&client, &[due], Some(&queued), &taken).await.unwrap();
    let left = store.pending_requests(&client).await.unwrap();
    assert_eq!(left.iter().map(|left| left.request.id).collect::<Vec<_>>(), [fourth.id], "not {}", part.id);
    assert_eq!(one_run(&store, &client).await, queued);
    assert!(store.mappings(&client).await.unwrap()[0].purge);
    store.purged(&client, "a").await.unwrap();
    assert!(!store.mappings(&client).await.unwrap()[0].purge);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_is_done_without_a_trace_and_builds_nothing() {
    let (_database, client, store) = fresh().await;
    store.save_mapping(&client, &mapping("a", 2, 1)).await.unwrap();
    store.save_run(&client, &run("whole", RunStatus::Complete, None)).await.unwrap();
    store.save_run(&client, &run("part", RunStatus::Queued, Some(keys()))).await.unwrap();
    assert!(store.begin_run(&client, "part").await.unwrap());
    let report = Report { rows: 2, wall_ms: 7, ..Report::default() };
    store.complete_run(&client, "part", 2, 1, &[("a".into(), 2)], &report).await.unwrap();
    assert_eq!(one_run(&store, &client).await.run, "whole");
    assert_eq!(store.mappings(&client).await.unwrap()[0].built, 1);
    store.save_run(&client, &run("next", RunStatus::Queued, None)).await.unwrap();
    store.save_cursor(&client, "next", "{}", 5, 1, &report).await.unwrap();
    store.complete_run(&client, "next", 9, 2, &[("a".into(), 2)], &report).await.unwrap();
    let done = one_run(&store, &client).await;
    assert_eq!((done.status, done.rows, done.report), (RunStatus::Complete, 9, report));
    assert_eq!(store.mappings(&client).await.unwrap()[0].built, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_built_beside_begins_elsewhere_where_changes_were_missed() {
    let (_database, client, store) = fresh().await;
    let beside = StoredMapping { building: Some(Place::new(2, 1)), ..mapping("beside", 2, 1) };
    for one in [beside, mapping("built", 2, 2), mapping("in place", 2, 1)] {
        store.save_mapping(&client, &one).await.unwrap();
    }
    let missed = store.miss_changes(&client, &[(products(), 1)], true).await.unwrap();
    assert_eq!(missed.len(), 3);
    let found = store.mappings(&client).await.unwrap();
    let found: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.generation, one.purge)).collect();
    assert_eq!(found, [("beside", 3, true), ("built", 3, true), ("in place", 2, true)]);
    // What was begun for the generation that is over does not do for a purge, and what is begun for this one does.
    for (generation, purge) in [(2, true), (3, false)] {
        store.save_building(&client, "beside", Some(&Place::new(generation, 2))).await.unwrap();
        assert_eq!(store.mappings(&client).await.unwrap()[0].purge, purge, "{generation}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_withdraws_what_has_not_begun_and_nothing_else() {
    let (_database, client, store) = fresh().await;
    store.save_mapping(&client, &StoredMapping { purge: true, ..mapping("a", 2, 1) }).await.unwrap();
    store.save_run(&client, &run("whole", RunStatus::Queued, None)).await.unwrap();
    store.save_run(&client, &run("part", RunStatus::Queued, Some(keys()))).await.unwrap();
    store.ask(&client, &Target::Mapping("a".into()), &[None], true).await.unwrap();
    store.ask(&client, &table(), &[None, Some(keys())], true).await.unwrap();
    let one = store.withdraw(&client, &Target::Mapping("a".into())).await.unwrap();
    assert_eq!((one.requests, one.run, one.marked), (1, false, false), "{one:?}");
    assert!(one.remains.unwrap().mappings.contains(&"b".to_owned()), "it is for `b`, too");
    let all = store.withdraw(&client, &table()).await.unwrap();
    assert_eq!((all.requests, all.scoped, all.run, all.marked), (2, 1, true, true), "{all:?}");
    assert_eq!((all.remains, all.taken), (None, 0));
    assert!(!store.mappings(&client).await.unwrap()[0].purge, "the purge's mark is withdrawn, too");
    assert!(!store.begin_run(&client, "whole").await.unwrap(), "it must not begin");
    store.save_cursor(&client, "whole", "{}", 1, 1, &Report::default()).await.unwrap();
    store.save_mapping(&client, &mapping("a", 3, 1)).await.unwrap();
    assert_eq!(one_run(&store, &client).await.status, RunStatus::Cancelled, "a new version, too");
    store.forget_run(&client, &products()).await.unwrap();
    assert_eq!(one_run(&store, &client).await.status, RunStatus::Cancelled, "until it is asked for");
    store.start_requested(&client, &[], Some(&run("asked", RunStatus::Queued, None)), &[]).await.unwrap();
    assert!(store.begin_run(&client, "asked").await.unwrap());

    // What has begun goes on; a table that was never read is left marked.
    let running = store.withdraw(&client, &table()).await.unwrap();
    assert_eq!(
        (running.run, running.marked, running.remains.unwrap().status.as_str()),
        (false, false, "running")
    );
    assert!(store.begin_run(&client, "asked").await.unwrap());
    let never = Target::Table(EntityName::new("public", "never"));
    assert!(store.withdraw(&client, &never).await.unwrap().marked);
}

/// Many times over, a leader begins a run while somebody cancels it: exactly one of the two comes through.
#[tokio::test(flavor = "multi_thread")]
async fn either_the_leader_begins_or_the_cancel_withdraws() {
    let (database, client, store) = fresh().await;
    let leader = database.connect().await.unwrap();
    store.save_mapping(&client, &mapping("a", 2, 1)).await.unwrap();
    let whole = table();
    for round in 0..48 {
        let asked = store.ask(&client, &table(), &[None], true).await.unwrap();
        let ids: Vec<i64> = asked.iter().map(|asked| asked.id).collect();
        let begins = async {
            let taken = store.take_requests(&leader, &ids).await.unwrap();
            if taken.is_empty() {
                return false;
            }
            let due = StoredMapping { purge: true, ..mapping("a", 2, 1) };
            store
                .start_requested(&leader, &[due], Some(&run("r", RunStatus::Queued, None)), &taken)
                .await
                .unwrap();
            store.begin_run(&leader, "r").await.unwrap()
        };
        let cancels = async {
            // So many round trips later: before, between and after each of the leader's statements.
            for _ in 0..round % 12 {
                client.batch_execute("select").await.unwrap();
            }
            store.withdraw(&client, &whole).await
        };
        let (began, withdrawn) = tokio::join!(begins, cancels);
        let withdrawn = withdrawn.unwrap();
        let status = one_run(&store, &client).await.status;
        let cancelled = withdrawn.requests + u64::from(withdrawn.run) > 0;
        assert_eq!(began, !cancelled, "{withdrawn:?}");
        assert_eq!(status, if began { RunStatus::Running } else { RunStatus::Cancelled }, "{withdrawn:?}");
        // Withdrawn, running, or about to be: never silent.
        assert!(cancelled || withdrawn.remains.is_some() || withdrawn.taken > 0, "{withdrawn:?}");
        client.execute("delete from anabranch.run", &[]).await.unwrap();
    }

    // In the middle, which the race may never meet: a queued run is withdrawn and cannot begin, and a run that
    // nobody asked for does not take its place.
    let queued = run("r", RunStatus::Queued, None);
    store.start_requested(&leader, &[mapping("a", 2, 1)], Some(&queued), &[]).await.unwrap();
    assert!(store.withdraw(&client, &whole).await.unwrap().run);
    assert!(!store.begin_run(&leader, "r").await.unwrap());
    store.save_run(&leader, &run("by itself", RunStatus::Queued, None)).await.unwrap();
    assert!(!store.begin_run(&leader, "by itself").await.unwrap());
    assert_eq!(one_run(&store, &client).await.status, RunStatus::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn controls_hold_side_by_side_and_leave_nothing() {
    let (_database, client, store) = fresh().await;
    let entity = products();
    store.save_paused(&client, Some(&entity), true).await.unwrap();
    store.save_rate(&client, Some(&entity), Some(50)).await.unwrap();
    store.save_rate(&client, None, Some(u32::MAX)).await.unwrap();
    let controls = store.controls(&client).await.unwrap();
    assert_eq!(
        (controls[0].entity.clone(), controls[0].rows_per_second),
        (None, Some(i32::MAX.cast_unsigned()))
    );
    assert_eq!((controls[1].paused, controls[1].rows_per_second), (true, Some(50)));
    store.save_paused(&client, Some(&entity), false).await.unwrap();
    store.save_rate(&client, Some(&entity), None).await.unwrap();
    store.save_rate(&client, None, None).await.unwrap();
    assert_eq!(store.controls(&client).await.unwrap(), []);
}

fn led_by(term: i64) -> Installation {
    Installation {
        name: SHOP.to_owned(),
        publication: "p".to_owned(),
        publication_oid: None,
        system_identifier: "1".to_owned(),
        timeline: 1,
        confirmed: Lsn(1),
        term,
        baseline: None,
    }
}

fn failed(row: &str, commit: u64) -> NewEntry {
    NewEntry {
        row: row.to_owned(),
        key: Some(vec![row.to_owned()]),
        operation: "update",
        origin: "stream",
        order: LaneOrder { generation: 1, commit_lsn: Lsn(commit), sequence: 0 },
        committed: Some(0),
        stage: QuarantineStage::Transform,
        plugin: "p 1.0.0".to_owned(),
        sink: "out".to_owned(),
        code: "asked".to_owned(),
        reason: "it was asked to fail".to_owned(),
        payload: "{}".to_owned(),
        cut: Vec::new(),
        document: None,
    }
}

/// What is streamed again is older than what came after it.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_change_neither_replaces_nor_ends_a_newer_entry() {
    let (_database, client, store) = fresh().await;
    let entity = products();
    let orders = async || {
        let rows = store.quarantined_rows(&client, Some("a")).await.unwrap();
        rows.into_iter().map(|(_, _, order)| order).collect::<Vec<_>>()
    };
    store.save_installation(&client, &led_by(1)).await.unwrap();
    let (older, newer) = (failed("7", 20), failed("7", 30));
    for entry in [&newer, &older] {
        let kept = store.quarantine(&client, 1, ("a", &entity), std::slice::from_ref(entry), 10).await;
        assert_eq!(kept.unwrap(), Kept::Rows(1));
        assert_eq!(orders().await, [newer.order]);
    }
    assert!(store.release(&client, 1, "a", &[("7".to_owned(), older.order)]).await.unwrap());
    assert_eq!(orders().await, [newer.order], "it says nothing of what came after it");
    assert!(store.release(&client, 1, "b", &[("7".to_owned(), newer.order)]).await.unwrap());
    assert_eq!(orders().await, [newer.order], "nor does what another mapping did");
    assert!(store.release(&client, 1, "a", &[("7".to_owned(), newer.order)]).await.unwrap());
    assert_eq!(orders().await, []);
}

/// What is kept together may be of the same row, and say what no column takes.
#[tokio::test(flavor = "multi_thread")]
async fn of_several_changes_of_a_row_the_latest_is_kept_whatever_it_says() {
    let (_database, client, store) = fresh().await;
    let entity = products();
    store.save_installation(&client, &led_by(1)).await.unwrap();
    let odd = |code: &str| NewEntry {
        code: code.to_owned(),
        reason: "one\0two".to_owned(),
        document: Some(RejectedDocument {
            destination: "d\0d".to_owned(),
            id: "i\0d".to_owned(),
            body: Some("{\0}".to_owned()),
        }),
        ..failed("7", 30)
    };
    let entries = [failed("7", 20), odd("a\0b"), failed("7", 10)];
    let kept = store.quarantine(&client, 1, ("a", &entity), &entries, 10).await;
    assert_eq!(kept.unwrap(), Kept::Rows(1));
    let query =
        "select concat_ws(', ', code, reason, destination, document_id, document) from anabranch.quarantine";
    let told: String = client.query_one(query, &[]).await.unwrap().get(0);
    assert_eq!(told, "a\u{fffd}b, one\u{fffd}two, d\u{fffd}d, i\u{fffd}d, {\u{fffd}}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_guests_keep_is_apart_by_mapping_and_generation() {
    let (_database, client, store) = fresh().await;
    store.save_installation(&client, &led_by(1)).await.unwrap();
    for (mapping, key) in [("a", "of a"), ("b", "of b")] {
        let write = [(key.to_owned(), Some(Vec::new()))];
        assert!(store.write_guest_state(&client, 1, (mapping, 1), &write).await.unwrap());
    }
    let of = async |mapping: &str, generation: i64, inherits: bool| {
        let rows = store.guest_state(&client, 1, (mapping, generation), inherits).await.unwrap().unwrap();
        rows.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    assert_eq!(of("a", 1, false).await, ["of a"]);
    assert!(of("a", 2, false).await.is_empty(), "what is read again begins with nothing");
    let query = "select string_agg(key, ', ') from anabranch.guest_state";
    let left: String = client.query_one(query, &[]).await.unwrap().get(0);
    assert_eq!(left, "of b", "and what the generation before kept is gone");
    assert_eq!(of("b", 2, true).await, ["of b"], "where nothing is read again, it goes on");
}

/// A leader that was overtaken neither reads nor writes what guests keep, nor makes it that of another generation.
#[tokio::test(flavor = "multi_thread")]
async fn c063_only_the_term_that_leads_has_the_state_of_guests() {
    let (_database, client, store) = fresh().await;
    let write = |text: &str| vec![("k".to_owned(), Some(text.as_bytes().to_vec()))];
    let kept = async || {
        let query = "select generation, convert_from(value, 'utf8') from anabranch.guest_state";
        let rows = client.query(query, &[]).await.unwrap();
        rows.into_iter().map(|row| (row.get(0), row.get(1))).collect::<Vec<(i64, String)>>()
    };
    store.save_installation(&client, &led_by(1)).await.unwrap();
    assert!(store.write_guest_state(&client, 1, ("a", 1), &write("first")).await.unwrap());
    store.save_installation(&client, &led_by(2)).await.unwrap();
    assert!(!store.write_guest_state(&client, 1, ("a", 1), &write("late")).await.unwrap());
    assert!(!store.write_guest_state(&client, 1, ("a", 1), &[("k".to_owned(), None)]).await.unwrap());
    assert_eq!(store.guest_state(&client, 1, ("a", 2), true).await.unwrap(), None);
    assert_eq!(store.guest_state(&client, 1, ("a", 2), false).await.unwrap(), None);
    assert_eq!(kept().await, [(1, "first".to_owned())]);
    let inherited = store.guest_state(&client, 2, ("a", 2), true).await.unwrap();
    assert_eq!(inherited, Some(vec![("k".to_owned(), b"first".to_vec())]));
    assert_eq!(kept().await, [(2, "first".to_owned())]);
}

/// A leader that was overtaken changes nothing of the quarantine, and one that is at it is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn c063_only_the_term_that_leads_writes_to_the_quarantine() {
    let (database, client, store) = fresh().await;
    let entity = products();
    let of = ("a", &entity);
    let open = async || store.quarantined_rows(&client, Some("a")).await.unwrap();
    store.save_installation(&client, &led_by(1)).await.unwrap();
    let kept = store.quarantine(&client, 1, of, &[failed("7", 10)], 10).await.unwrap();
    assert_eq!(kept, Kept::Rows(1));
    let full = store.quarantine(&client, 1, of, &[failed("8", 10)], 1).await.unwrap();
    assert_eq!(full, Kept::Full { others: 1 });
    let before = open().await;

    store.save_installation(&client, &led_by(2)).await.unwrap();
    let later = failed("7", 30).order;
    for entries in [[failed("7", 20)], [failed("8", 20)]] {
        let kept = store.quarantine(&client, 1, of, &entries, 10).await.unwrap();
        assert_eq!(kept, Kept::Overtaken);
    }
    assert!(!store.release(&client, 1, "a", &[("7".to_owned(), later)]).await.unwrap());
    assert!(!store.release_before(&client, 1, "a", 9).await.unwrap());
    assert_eq!(open().await, before, "it neither adds nor changes nor ends an entry");
    assert!(store.release(&client, 2, "a", &[("7".to_owned(), later)]).await.unwrap());
    assert_eq!(open().await, []);

    // In the middle of it: the next term begins once it is done.
    let (holder, writer, next) =
        tokio::try_join!(database.connect(), database.connect(), database.connect()).unwrap();
    let pid = async |client: &Client| -> i32 {
        client.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0)
    };
    let (holds, writes_as) = (pid(&holder).await, pid(&writer).await);
    holder.batch_execute("begin; lock table anabranch.quarantine in share mode").await.unwrap();
    let entries = [failed("9", 40)];
    let third = led_by(3);
    let writes = store.quarantine(&writer, 2, of, &entries, 10);
    let leads = async {
        let blocks = async |pid: i32| {
            let query = "select exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)))";
            wait_until("somebody to wait", Duration::from_secs(60), async || {
                Ok(client.query_one(query, &[&pid]).await?.get(0))
            })
            .await
            .unwrap();
        };
        blocks(holds).await;
        let begins = store.save_installation(&next, &third);
        let frees = async {
            blocks(writes_as).await;
            holder.batch_execute("rollback").await.unwrap();
        };
        tokio::join!(begins, frees).0.unwrap();
    };
    let (kept, ()) = tokio::join!(writes, leads);
    assert_eq!(kept.unwrap(), Kept::Rows(1));
    assert_eq!(store.quarantine(&writer, 2, of, &[failed("10", 50)], 10).await.unwrap(), Kept::Overtaken);
}
