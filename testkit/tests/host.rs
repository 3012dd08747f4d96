//! The host as a child, played by a shell script.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use testkit::{Host, wait_for};

const DEADLINE: Duration = Duration::from_secs(20);

/// Logs a line a run, ends with 0 on SIGTERM, answers `status`.
const SCRIPT: &str = r#"#!/bin/sh
case $1 in
status) echo '{"mappings": []}' ;;
run)
    trap 'echo drained; exit 0' TERM
    echo "runs with $COLOUR from $3"
    while :; do sleep 0.05; done ;;
esac
"#;

fn script(dir: &tempfile::TempDir) -> PathBuf {
    let path = dir.path().join("anabranch");
    fs::write(&path, SCRIPT).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn starts_signals_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::new(script(&dir)).unwrap();
    host.config("[source]\n").unwrap();
    host.env("COLOUR", "green");
    host.start().unwrap();
    let line = host.wait_log(0, "runs with", DEADLINE).await.unwrap();
    assert_eq!(line, format!("runs with green from {}", host.path("anabranch.toml").display()));
    assert!(host.status().unwrap()["mappings"].is_array());
    host.signal("STOP").unwrap();
    host.signal("CONT").unwrap();
    assert!(host.terminate(DEADLINE).unwrap().success());
    assert!(!host.is_running().unwrap());

    let from = host.log_length();
    host.start().unwrap();
    host.wait_log(from, "runs with", DEADLINE).await.unwrap();
    host.kill().unwrap();
    assert_eq!(host.log().matches("drained").count(), 1);
    assert!(host.wait_log(from, "never said", DEADLINE).await.unwrap_err().to_string().contains("ended"));
}

#[test]
#[ignore = "run by a_killed_test_leaves_no_host in a process of its own"]
#[allow(clippy::print_stdout)]
fn hold_a_host() {
    let mut host = Host::new(std::env::var("SCRIPT").unwrap()).unwrap();
    host.start().unwrap();
    println!("\nhost={} {}", host.id().unwrap(), host.dir().display());
    loop {
        std::thread::park();
    }
}

#[test]
fn a_killed_test_leaves_no_host() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .env("SCRIPT", script(&dir))
        .args(["--ignored", "--exact", "hold_a_host", "--nocapture"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let host =
        lines.map(Result::unwrap).find_map(|line| line.strip_prefix("host=").map(str::to_owned)).unwrap();
    let (host, directory) = host.split_once(' ').unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("the host to be killed", DEADLINE, || {
        Ok(!Command::new("kill").args(["-0", host]).stderr(Stdio::null()).status()?.success())
    })
    .unwrap();
    wait_for("its directory to go", DEADLINE, || Ok(!Path::new(directory).exists())).unwrap();
}
