//! Changes a second that a host drains from a backlog, against `pg_recvlogical` on an identical slot.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use testkit::Host;

use super::figures::Figures;
use super::source::{Bench, DEADLINE, Source, wait_counted};

const SLOT: &str = "bench";
const PEER: &str = "bench_peer";

pub(super) async fn measure(bench: &Bench, rows: u64, figures: &mut Figures) -> Result<()> {
    figures.say(&format!("== stream: backlogs of {rows} rows, drained in turn by both"));
    let mut source = Source::open().await?;
    let mut host = source.host(bench, SLOT, "kind = \"null\"", false)?;
    host.start()?;
    host.wait_log(0, ": streaming ", DEADLINE).await?;
    host.terminate(DEADLINE)?;
    let copy = format!("select pg_copy_logical_replication_slot('{SLOT}', '{PEER}')");
    source.client.batch_execute(&copy).await?;

    for per_transaction in [1000, 1] {
        let (mut ratios, mut ours, mut peers) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..bench.rounds {
            source.insert(rows, per_transaction).await?;
            let end: String = source
                .client
                .query_one("select pg_logical_emit_message(true, 'bench', 'end')::text", &[])
                .await?
                .get(0);
            let (host_took, peer_took) = if round % 2 == 0 {
                let peer = drain_with_peer(&source, &end)?;
                (drain(&mut host, rows).await?, peer)
            } else {
                let host = drain(&mut host, rows).await?;
                (host, drain_with_peer(&source, &end)?)
            };
            ratios.push(peer_took.as_secs_f64() / host_took.as_secs_f64());
            ours.push(rows as f64 / host_took.as_secs_f64());
            peers.push(rows as f64 / peer_took.as_secs_f64());
        }
        figures.rounds(&format!("stream_changes_per_s_{per_transaction}"), ours);
        figures.rounds(&format!("recvlogical_changes_per_s_{per_transaction}"), peers);
        figures.rounds(&format!("stream_ratio_{per_transaction}"), ratios);
    }
    Ok(())
}

/// From the beginning of the stream until the sink has everything; then the host drains and confirms.
async fn drain(host: &mut Host, rows: u64) -> Result<Duration> {
    let from = host.log_length();
    host.start()?;
    let counted = wait_counted(host, from, rows).await?;
    let status = host.terminate(DEADLINE)?;
    if !status.success() {
        bail!("the host did not end well: {status}\n{}", host.log_tail());
    }
    Ok(counted.took)
}

/// From the start of the program until it has everything and has confirmed it.
fn drain_with_peer(source: &Source, end: &str) -> Result<Duration> {
    let mut peer = source.program("pg_recvlogical")?;
    peer.arg("--dbname").arg(source.url()).args([
        "--slot",
        PEER,
        "--start",
        "--no-loop",
        "--file",
        "/dev/null",
    ]);
    peer.args([
        "--endpos",
        end,
        "-o",
        "proto_version=2",
        "-o",
        "publication_names=bench",
        "-o",
        "messages=true",
    ]);
    let started = Instant::now();
    let output = peer.stdin(Stdio::null()).output()?;
    let took = started.elapsed();
    if !output.status.success() {
        bail!("pg_recvlogical: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(took)
}
