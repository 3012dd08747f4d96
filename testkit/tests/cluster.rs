//! The private Postgres servers themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use testkit::{Cluster, ClusterOptions, Stop, shared, wait_for};

#[tokio::test(flavor = "multi_thread")]
async fn databases_of_one_shared_cluster_are_apart() {
    let cluster = shared().unwrap();
    let one = cluster.create_database().await.unwrap();
    let two = shared().unwrap().create_database().await.unwrap();
    assert_ne!(one.url, two.url);
    one.execute("create table t (a int); insert into t values (7)").await.unwrap();
    assert_eq!(one.query_text("select a::text from t").await.unwrap(), "7");
    assert!(two.query_text("select a::text from t").await.is_err());
    assert_eq!(one.query_text("show wal_level").await.unwrap(), "logical");

    one.execute("select pg_create_logical_replication_slot('left_behind', 'pgoutput')").await.unwrap();
    one.drop_slots().await.unwrap();
    let left = "select count(*)::text from pg_replication_slots where slot_name = 'left_behind'";
    assert_eq!(one.query_text(left).await.unwrap(), "0");

    let socket = testkit::postgres::connect(&cluster.socket_conninfo(&one.name)).await.unwrap();
    assert_eq!(socket.query_one("select a from t", &[]).await.unwrap().get::<_, i32>(0), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_keeps_its_data_and_port_over_restarts() {
    let options = ClusterOptions::new()
        .setting("max_replication_slots", "3")
        .hba("host all locked 127.0.0.1/32 scram-sha-256");
    let cluster = Cluster::start(options).unwrap();
    let database = cluster.create_database().await.unwrap();
    database.execute("create role locked login password 'p'; create table t (a int)").await.unwrap();
    database.execute("insert into t values (1)").await.unwrap();
    cluster.restart(Stop::Immediate).unwrap();
    database.execute("insert into t values (2)").await.unwrap();
    cluster.restart(Stop::Fast).unwrap();
    assert_eq!(database.query_text("select count(*)::text from t").await.unwrap(), "2");
    assert_eq!(database.query_text("show max_replication_slots").await.unwrap(), "3");
    let wrong = cluster.url(&database.name).replace("postgres@", "locked:wrong@");
    let error = testkit::postgres::connect(&wrong).await.unwrap_err();
    assert!(format!("{error:#}").contains("password authentication failed"), "{error:#}");

    cluster.configure(&[("statement_timeout", "77s")]).unwrap();
    cluster.reload("statement_timeout", "77s").await.unwrap();

    let directory = cluster.data_dir();
    drop(cluster);
    assert!(!directory.exists());
}

#[test]
#[ignore = "run by a_killed_process_leaves_nothing in a process of its own"]
#[allow(clippy::print_stdout)]
fn hold_a_cluster() {
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    println!("\ndirectory={}", cluster.socket_dir().display());
    loop {
        std::thread::park();
    }
}

#[test]
fn a_killed_process_leaves_nothing() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "hold_a_cluster", "--nocapture"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let directory = lines
        .map(|line| line.unwrap())
        .find_map(|line| line.strip_prefix("directory=").map(str::to_owned))
        .unwrap();
    let postmaster = std::fs::read_to_string(Path::new(&directory).join("data/postmaster.pid")).unwrap();
    let server = postmaster.lines().next().unwrap().to_owned();
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    wait_for("the directory to go", Duration::from_secs(20), || Ok(!Path::new(&directory).exists())).unwrap();
    assert!(!Command::new("kill").args(["-0", &server]).stderr(Stdio::null()).status().unwrap().success());
}
