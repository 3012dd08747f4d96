//! `backfill` by the program itself, on a real server and without a host: what is stored, said and answered.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    io::Write as _,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use anabranch::{
    backfill::Report,
    control::{Control, ControlError, Goal, Rows, Waited},
    model::{EntityName, Lsn, Scope},
    postgres::ConnectSettings,
    state::{MappingStatus, RunStatus, Store, StoredMapping, StoredRun, Target},
};
use serde_json::Value;
use testkit::{Database, shared, wait_until};
use tokio_postgres::Client;

const SLOT: &str = "shop";
const SOON: Duration = Duration::from_secs(60);

struct Scene {
    database: Database,
    client: Client,
    store: Store,
}

impl Scene {
    /// Two tables, and no schema `anabranch`.
    async fn new() -> Self {
        let database = shared().unwrap().create_database().await.unwrap();
        let client = database.connect().await.unwrap();
        let tables = "create table public.products (id bigint primary key, region text not null); \
                      create table public.lines (day date, number int, primary key (day, number)); \
                      insert into public.products select n, 'eu' from generate_series(1, 100) as n";
        client.batch_execute(tables).await.unwrap();
        Self { database, client, store: Store::new(SLOT) }
    }

    /// The same with mapping `search` of `public.products`, built.
    async fn mapped() -> Self {
        let scene = Self::new().await;
        scene.store.upgrade(&scene.client).await.unwrap();
        scene.save(&mapping("1.4.0", 1, 1)).await;
        scene
    }

    async fn save(&self, mapping: &StoredMapping) {
        self.store.save_mapping(&self.client, mapping).await.unwrap();
    }

    async fn save_run(&self, run: &StoredRun) {
        self.store.save_run(&self.client, run).await.unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
        command.arg("backfill").args(arguments).args(["--url", &self.database.url, "--slot", SLOT]);
        command.env_clear().stdin(Stdio::null());
        command
    }

    /// Exit code, what was said, and what went wrong.
    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = tokio::task::block_in_place(|| self.command(arguments).output().unwrap());
        said(&output)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let (code, stdout, stderr) = self.run(&[arguments, &["--json"]].concat());
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{code} {error}: {stdout}{stderr}"))
    }

    /// Its sessions have a name of their own: those of a command that has ended may still be there.
    fn spawn(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.env("PGAPPNAME", "spawned");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Waits until a command of [`Scene::spawn`] listens.
    async fn listened(&self) {
        wait_until("somebody to listen", SOON, async || {
            let query = "select count(*) from pg_stat_activity where datname = current_database() \
                         and pid <> pg_backend_pid() and state = 'idle' and query <> '' \
                         and application_name = 'spawned/state'";
            Ok(self.client.query_one(query, &[]).await?.get::<_, i64>(0) == 1)
        })
        .await
        .unwrap();
    }
}

fn said(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

async fn ended(child: Child) -> (i32, String, String) {
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    said(&tokio::time::timeout(SOON, output).await.expect("it ends").unwrap())
}

fn products() -> EntityName {
    EntityName::new("public", "products")
}

fn mapping(version: &str, generation: i64, built: i64) -> StoredMapping {
    let identity = serde_json::json!({
        "route": { "entity": "public.products", "sink": "s", "sink_kind": "null", "destination": "d" },
        "transform": { "name": "product-search", "version": version, "sha256": "00" },
        "inputs": { "tables": [], "depends_on": [], "wants_deletes": false, "names_ids": false }
    });
    let first = StoredMapping::new("search", products(), 1, identity.to_string());
    StoredMapping { generation, built, accepted: Lsn(1), ..first }
}

fn run(status: RunStatus) -> StoredRun {
    StoredRun {
        status,
        rows: 41,
        chunks: 2,
        estimate: Some(100),
        report: Report { rows: 41, retries: 2, wall_ms: 4000, reading_ms: 3000, ..Report::default() },
        ..StoredRun::new(products(), "r", vec!["search".into()])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_from_eight_processes_at_once_are_one_and_wake_the_leader() {
    let scene = Scene::new().await;
    let mut leader = anabranch_client(&scene).await;
    leader.batch_execute("listen anabranch").await.unwrap();
    let asking: Vec<Child> =
        (0..8).map(|_| scene.spawn(&["request", "products", "--purge", "--json"])).collect();
    let mut new = 0;
    for child in asking {
        let (code, stdout, stderr) = ended(child).await;
        assert_eq!(code, 0, "{stdout}{stderr}");
        let shape: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(shape["requests"][0]["target"], "public.products");
        new += i32::from(shape["requests"][0]["new"].as_bool().unwrap());
    }
    assert_eq!(new, 1);
    let requests = scene.store.requests(&scene.client).await.unwrap();
    assert_eq!(requests.len(), 1);
    assert_eq!((&requests[0].target, requests[0].purge), (&Target::Table(products()), true));
    let told = tokio::time::timeout(SOON, leader.notification()).await.unwrap().unwrap();
    assert_eq!((told.channel(), told.payload()), ("anabranch", SLOT));

    let (code, text, _) = scene.run(&["request", "products"]);
    assert_eq!(code, 0);
    assert!(text.contains("was requested already") && text.contains("no mapping of it is known"), "{text}");
    let (code, text, _) = scene.run(&["status"]);
    assert!(code == 0 && text.contains("public.products requested"), "{text}");
    assert!(text.contains("with a purge") && text.contains("no host streams"), "{text}");
}

/// A session of the kind that hosts have.
async fn anabranch_client(scene: &Scene) -> anabranch::postgres::Client {
    use anabranch::postgres::{ConnectSettings, Purpose};
    let connect = ConnectSettings::parse(&scene.database.url, |_| None).unwrap();
    connect.connect(Purpose::State).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_says_what_it_withdrew() {
    let scene = Scene::mapped().await;
    scene.save(&StoredMapping { purge: true, ..mapping("1.4.0", 2, 1) }).await;
    scene.save_run(&run(RunStatus::Queued)).await;
    scene.run(&["request", "search", "public.products"]);
    let shape = scene.json(&["cancel", "public.products"]);
    let cancelled = &shape["targets"][0];
    assert_eq!((&cancelled["withdrawn"], &cancelled["requests"]), (&true.into(), &2.into()), "{shape}");
    assert_eq!((&cancelled["run"], &cancelled["marked"]), (&true.into(), &true.into()), "{shape}");
    assert!(!scene.store.mappings(&scene.client).await.unwrap()[0].purge);

    let (code, text, _) = scene.run(&["wait", "search", "--timeout", "60s"]);
    assert_eq!(code, 0, "a cancelled table is not waited for");
    assert!(text.contains("was cancelled") && text.contains("backfill request public.products"), "{text}");
    let (code, text, _) = scene.run(&["cancel", "products"]);
    assert!(code == 0 && text.contains("there was nothing to withdraw"), "{text}");

    let running = run(RunStatus::Running);
    scene.store.start_requested(&scene.client, &[], Some(&running), &[]).await.unwrap();
    let (code, text, _) = scene.run(&["cancel", "products"]);
    assert!(code == 0 && text.contains("for search is running and goes on"), "{text}");
    assert_eq!(scene.store.runs(&scene.client).await.unwrap()[0].status, RunStatus::Running);

    // What the leader does not finish to take up is said.
    let asked = scene.store.ask(&scene.client, &Target::Table(products()), &[None], false).await.unwrap();
    scene.store.take_requests(&scene.client, &[asked[0].id]).await.unwrap();
    let shape = scene.json(&["cancel", "products"]);
    assert_eq!(
        (&shape["targets"][0]["taken"], &shape["targets"][0]["withdrawn"]),
        (&1.into(), &false.into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_begins_before_the_schema_is_there_and_ends_when_all_is_built() {
    let scene = Scene::new().await;
    let (code, text, progress) = scene.run(&["wait", "products", "--timeout", "200ms"]);
    assert_eq!(code, 3, "{text}{progress}");
    assert!(progress.contains("no host has run on this database yet"), "{progress}");
    assert!(text.contains("not complete in time"), "{text}");

    let waiting = scene.spawn(&["wait", "products", "--timeout", "60s"]);
    scene.listened().await;
    scene.store.upgrade(&scene.client).await.unwrap();
    scene.save(&mapping("1.4.0", 1, 0)).await;
    scene.save_run(&run(RunStatus::Running)).await;
    // Its connection may be lost meanwhile.
    let end = "select pg_terminate_backend(pid) from pg_stat_activity \
               where datname = current_database() and application_name = 'spawned/state'";
    scene.client.execute(end, &[]).await.unwrap();
    scene.listened().await;
    scene
        .store
        .complete_run(&scene.client, "r", 100, 3, &[("search".into(), 1)], &Report::default())
        .await
        .unwrap();
    let (code, text, progress) = ended(waiting).await;
    assert_eq!(code, 0, "{text}{progress}");
    assert!(text.contains("public.products complete (100 rows)") && text.ends_with("complete\n"), "{text}");

    // At once when it is complete, for all and for one.
    for arguments in [&["wait"][..], &["wait", "search"], &["wait", "products", "--timeout", "0s"]] {
        assert_eq!(scene.run(arguments).0, 0, "{arguments:?}");
    }
    let shape = scene.json(&["wait"]);
    assert_eq!((&shape["result"], &shape["items"][0]["step"]), (&"complete".into(), &"complete".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_shows_progress_and_fails_with_the_last_error() {
    let scene = Scene::mapped().await;
    scene.save(&mapping("1.4.0", 2, 1)).await;
    scene.save_run(&run(RunStatus::Running)).await;
    let (code, text, progress) = scene.run(&["wait", "--timeout", "300ms"]);
    assert_eq!(code, 3);
    for text in [&text, &progress] {
        assert!(text.contains("public.products reading 41% (41 of ~100 rows) "), "{text}");
        assert!(text.contains("~5 s left, 2 retries"), "{text}");
    }
    scene.store.fail_run(&scene.client, "r", 3, 0, "disk full").await.unwrap();
    let (code, text, _) = scene.run(&["wait", "public.products", "--timeout", "60s"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("failed: public.products is failing: disk full"), "{text}");
    let shape = scene.json(&["wait", "--timeout", "60s"]);
    assert_eq!(shape["result"], "failed");
    assert_eq!(shape["error"], "public.products is failing: disk full");

    // A request for something else is waited for, and a pause is said.
    scene.save_run(&run(RunStatus::Complete)).await;
    scene.save(&mapping("1.4.0", 2, 2)).await;
    scene.run(&["request", "lines"]);
    assert_eq!(scene.run(&["wait", "search", "--timeout", "10s"]).0, 0);
    assert_eq!(scene.run(&["wait", "--timeout", "100ms"]).0, 3, "everything");
    scene.save_run(&run(RunStatus::Running)).await;
    scene.run(&["pause"]);
    let (code, text, _) = scene.run(&["wait", "products", "--timeout", "100ms"]);
    assert!(code == 3 && text.contains("public.products is paused"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deploy_waits_for_a_version_before_its_host_is_up() {
    let scene = Scene::mapped().await;
    let wait = &["wait", "--plugin", "product-search@1.5.0", "--timeout", "60s"][..];
    assert_eq!(scene.run(&["wait", "--plugin", "product-search@1.4.0"]).0, 0);
    let waiting = scene.spawn(wait);
    scene.listened().await;
    // The old version fails meanwhile, which the new one is for.
    let failing = StoredMapping { status: MappingStatus::Failing, ..mapping("1.4.0", 1, 1) };
    scene.save(&failing).await;
    let (code, text, _) = scene.run(&["wait", "--plugin", "product-search@1.5.0", "--timeout", "100ms"]);
    assert!(code == 3 && text.contains("1.4.0 is stored"), "{text}");
    scene.save(&mapping("1.5.0", 2, 1)).await;
    let (code, text, _) = scene.run(&["wait", "--plugin", "product-search@1.5.0", "--timeout", "100ms"]);
    assert!(code == 3 && text.contains("public.products waits for its run"), "{text}");
    scene.save(&mapping("1.5.0", 2, 2)).await;
    let (code, text, progress) = ended(waiting).await;
    assert_eq!(code, 0, "{text}{progress}");
    assert_eq!(scene.run(&["wait", "--plugin", "product-search"]).0, 2, "usage");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_wait_harms_nothing() {
    let scene = Scene::mapped().await;
    scene.run(&["request", "products"]);
    let waiting = scene.spawn(&["wait"]);
    scene.listened().await;
    let interrupt = Command::new("kill").args(["-INT", &waiting.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let (code, text, _) = ended(waiting).await;
    assert!(code == 130 && text.contains("interrupted; the backfills go on"), "{code} {text}");
    assert_eq!(scene.store.requests(&scene.client).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_are_checked_before_they_are_stored() {
    let scene = Scene::mapped().await;
    let stored = async || scene.store.requests(&scene.client).await.unwrap();
    for bad in [
        "regoin = 'eu'",
        "id",
        "id > 7)",
        "true) or (true",
        "true); drop table public.products; --",
        "id > (select 1 from public.nothing)",
    ] {
        let (code, text, error) = scene.run(&["request", "products", "--where", bad]);
        assert_eq!(code, 2, "{bad}: {text}{error}");
        assert!(error.contains("the condition cannot be used"), "{error}");
    }
    let missing = scene.run(&["request", "public.nothing", "--where", "true"]);
    assert_eq!(missing.0, 2, "{}", missing.2);
    assert_eq!(scene.run(&["request", "products", "--purge", "--where", "true"]).0, 2);
    assert!(stored().await.is_empty());
    scene.client.query_one("select count(*) from public.products", &[]).await.unwrap();

    let good = "region = 'e)u' and id > 7";
    let (code, _, error) = scene.run(&["request", "search", "--where", good]);
    assert_eq!(code, 0, "{error}");
    scene.run(&["request", "search", "--where", good]);
    let requests = stored().await;
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].scope, Some(Scope::Where(good.into())));
    assert_eq!(requests[0].target, Target::Mapping("search".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_checked_put_in_order_and_split() {
    let scene = Scene::mapped().await;
    let (code, _, error) = scene.run(&["request", "products", "--keys", "7", "-1", "7"]);
    assert_eq!(code, 0, "{error}");
    scene.run(&["request", "products", "--keys", "-1", "7"]);
    let requests = scene.store.requests(&scene.client).await.unwrap();
    let keys = |keys: &[&[&str]]| {
        let text = |key: &&[&str]| key.iter().map(|&part| part.to_owned()).collect();
        Some(Scope::Keys(keys.iter().map(text).collect()))
    };
    assert_eq!(requests.len(), 1, "the same keys are the same request");
    assert_eq!(requests[0].scope, keys(&[&["-1"], &["7"]]));
    let (code, _, error) = scene.run(&["request", "lines", "--keys", "2024-01-31,7"]);
    assert_eq!(code, 0, "{error}");
    let requests = scene.store.requests(&scene.client).await.unwrap();
    assert_eq!(requests[1].scope, keys(&[&["2024-01-31", "7"]]));
    for (table, key, what) in [
        ("products", "seven", "is of type bigint"),
        ("lines", "2024-01-31", "does not have the 2 parts"),
        ("lines", "yesterweek,7", "is of type date"),
        ("nothing", "1", "there is no table public.nothing"),
    ] {
        let (code, _, error) = scene.run(&["request", table, "--keys", key]);
        assert!(code == 2 && error.contains(what), "{code} {error}");
    }

    let mut command = scene.command(&["request", "products", "--keys-from", "-", "--json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines: String = (0..2500).map(|number| format!("{number}\r\n")).collect();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let (code, stdout, _) = ended(child).await;
    let shape: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, shape["requests"][0]["ids"].as_array().unwrap().len()), (0, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn pauses_and_rates_are_stored_and_shown() {
    let scene = Scene::mapped().await;
    scene.save_run(&run(RunStatus::Running)).await;
    let (_, text, _) = scene.run(&["pause", "search"]);
    assert_eq!(text, "backfills of public.products are paused\n", "a mapping's table");
    scene.run(&["rate", "500"]);
    assert_eq!(scene.json(&["rate", "70", "products"])["rows_per_second"], 70);
    let shape = scene.json(&["status", "products"]);
    assert_eq!(shape["controls"].as_array().unwrap().len(), 2, "{shape}");
    assert_eq!(
        (&shape["backfills"][0]["paused"], &shape["backfills"][0]["rows_per_second"]),
        (&true.into(), &70.into())
    );
    assert_eq!(shape["backfills"][0]["report"]["reading_ms"], 3000);
    let (_, text, _) = scene.run(&["status"]);
    assert!(text.contains("backfills of public.products: paused, 70 rows a second at the most"), "{text}");
    assert!(text.contains("time: reading 3 s"), "{text}");
    assert_eq!(scene.json(&["status", "lines"])["backfills"].as_array().unwrap().len(), 0);
    for arguments in [&["resume", "products"][..], &["rate", "none", "products"], &["rate", "none"]] {
        assert_eq!(scene.run(arguments).0, 0, "{arguments:?}");
    }
    assert_eq!(scene.store.controls(&scene.client).await.unwrap(), []);
    assert_eq!(scene.run(&["rate", "0"]).0, 2);
    let (code, text, _) = Scene::new().await.run(&["status"]);
    assert!(code == 1 && text.contains("never ran on this database"), "{text}");
}

/// A host of the release before still runs: its schema is not upgraded under it.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_schema_is_left_to_its_hosts() {
    let scene = Scene::mapped().await;
    let known: i32 =
        scene.client.query_one("select version from anabranch.version", &[]).await.unwrap().get(0);
    scene.client.execute("update anabranch.version set version = 1", &[]).await.unwrap();
    let (code, _, error) = scene.run(&["request", "products"]);
    assert!(code == 1 && error.contains("start `anabranch run` of this release first"), "{error}");
    let (code, _, progress) = scene.run(&["wait", "--timeout", "100ms"]);
    assert!(code == 3 && progress.contains("has version 1"), "{progress}");
    scene.client.execute("update anabranch.version set version = $1", &[&known]).await.unwrap();
    assert_eq!(scene.run(&["wait", "--timeout", "60s"]).0, 0);
}

/// What the commands do, a program does by the library: with a connection string, and nothing else at hand.
#[tokio::test(flavor = "multi_thread")]
async fn the_library_does_what_the_commands_do() {
    let scene = Scene::mapped().await;
    let connect = ConnectSettings::parse(&scene.database.url, |_| None).unwrap();
    let mut control = Control::connect(&connect, SLOT).await.unwrap();
    let asked = control.request("products", &Rows::All, true).await.unwrap();
    assert_eq!((asked.target, asked.asked[0].new), (Target::Table(products()), true));
    assert_eq!(asked.mappings, ["search"]);
    let again = control.request("products", &Rows::All, false).await.unwrap();
    assert_eq!((again.asked[0].id, again.asked[0].new), (asked.asked[0].id, false));
    let part = control.request("search", &Rows::Keys(vec!["7".into()]), false).await.unwrap();
    assert_eq!(part.asked.len(), 1);
    let slip = control.request("search", &Rows::Where("regoin = 1".into()), false).await.unwrap_err();
    assert!(matches!(slip, ControlError::Usage(_)), "{slip}");

    let goal = Goal { targets: vec!["products".into()], ..Goal::default() };
    let mut told = 0;
    let waited = control.wait(&goal, Some(Duration::from_millis(300)), |_| told += 1).await.unwrap();
    assert!(matches!(waited, Waited::TimedOut(Some(_))) && told > 0, "{waited:?}");
    assert_eq!(control.pause(Some("search")).await.unwrap(), Some(products()));
    let cancelled = control.cancel("products").await.unwrap().withdrawn;
    assert_eq!((cancelled.requests, cancelled.marked), (2, true));
    let picture = control.status().await.unwrap().unwrap();
    assert!(picture.requests.is_empty() && picture.is_paused(&products()));
    control.resume(Some("search")).await.unwrap();
    let waited = control.wait(&goal, None, |_| {}).await.unwrap();
    assert!(matches!(waited, Waited::Complete(_)), "what was built stays so: {waited:?}");
    control.close().await;
}
