use std::time::Duration;

use anabranch::{
    model::Lsn,
    postgres::{
        Client, ErrorKind, Flush, PublicationPlan, Purpose, ReplicationStream, StreamOptions, create_slot,
        ensure_publication, find_slot,
    },
};
use testkit::{ClusterOptions, Database, wait_until};
use tokio_util::sync::CancellationToken;

use super::{DEADLINE, settings, shared_database, start};

/// A published table `t`, and a slot of the database's name.
async fn prepare(database: &Database) -> (Client, Lsn) {
    database.execute("create table public.t (id int primary key, v text)").await.unwrap();
    let client = settings(&database.url).connect(Purpose::Control).await.unwrap();
    let tables = ["public.t".parse().unwrap()];
    let plan = PublicationPlan { name: &database.name, managed: true, tables: &tables, ..Default::default() };
    ensure_publication(&client, &plan).await.unwrap();
    let never = CancellationToken::new();
    let slot = create_slot(&settings(&database.url), &client, &database.name, false, &never).await.unwrap();
    (client, slot.consistent_point)
}

async fn stream(database: &Database, start: Lsn) -> ReplicationStream {
    let options = StreamOptions::new(&database.name, &database.name, start);
    settings(&database.url).connect_replication().await.unwrap().start(&options).await.unwrap()
}

/// Reads until a commit, and gives its end position with what came before it, as pgoutput's message types.
async fn next_commit(stream: &mut ReplicationStream) -> (Lsn, String) {
    let mut kinds = String::new();
    loop {
        while let Some(payload) = stream.next_buffered().unwrap() {
            // XLogData: 'w', start (8), end (8), time (8), then the message.
            if payload[0] == b'w' {
                let message = &payload[25..];
                kinds.push(char::from(message[0]));
                // Commit: 'C', flags (1), commit position (8), end position (8).
                if message[0] == b'C' {
                    return (Lsn(u64::from_be_bytes(message[10..18].try_into().unwrap())), kinds);
                }
            }
        }
        tokio::time::timeout(DEADLINE, stream.fill()).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn changes_arrive_and_what_is_confirmed_is_not_sent_again() {
    let (_, database) = shared_database().await;
    let (client, start) = prepare(&database).await;
    let mut first = stream(&database, start).await;
    database.execute("insert into public.t values (1, 'one')").await.unwrap();
    let (end, kinds) = next_commit(&mut first).await;
    assert_eq!(kinds, "BRIC");
    database.execute("insert into public.t values (2, 'two')").await.unwrap();
    assert_eq!(next_commit(&mut first).await.1, "BIC");
    first.status().confirm(end);
    first.close(DEADLINE).await.unwrap();
    let slot = find_slot(&client, &database.name).await.unwrap().unwrap();
    assert_eq!(
        (slot.confirmed, slot.active_pid, slot.lost),
        (Some(end), None, None),
        "given free, at the confirmed position"
    );

    let mut second = stream(&database, end).await;
    assert_eq!(next_commit(&mut second).await.1, "BRIC", "the second transaction, whole");
    let logical = client.emit_messages(&[b"hello"], Flush::Now).await.unwrap();
    assert_eq!(next_commit(&mut second).await.1, "BMC");
    assert!(logical[0] > end);
}

/// 14 sends a Begin and a Commit for a transaction of which nothing is published; later servers send nothing.
#[tokio::test]
async fn transactions_without_a_published_change_are_empty_pairs_or_nothing() {
    let (cluster, database) = shared_database().await;
    let (client, start) = prepare(&database).await;
    database.execute("create table public.other (id int)").await.unwrap();
    let mut stream = stream(&database, start).await;
    for _ in 0..2 {
        database.execute("insert into public.other values (1)").await.unwrap();
    }
    database.execute("insert into public.t values (1, 'one')").await.unwrap();
    let mut pairs = 0;
    let end = loop {
        let (end, kinds) = next_commit(&mut stream).await;
        match kinds.as_str() {
            "BC" => pairs += 1,
            kinds => {
                assert_eq!(kinds, "BRIC");
                break end;
            }
        }
    };
    // The table's creation is one, too.
    assert_eq!(pairs, if cluster.major() < 15 { 3 } else { 0 });
    stream.status().confirm(end);
    stream.close(DEADLINE).await.unwrap();
    assert_eq!(find_slot(&client, &database.name).await.unwrap().unwrap().confirmed, Some(end));
}

#[tokio::test]
async fn replies_go_on_while_nobody_reads() {
    let cluster = start(ClusterOptions::new().setting("wal_sender_timeout", "2s")).await;
    let database = cluster.create_database().await.unwrap();
    let (client, start) = prepare(&database).await;
    let mut stream = stream(&database, start).await;
    let before = format!(
        "select (now() - backend_start > '7 s')::text from pg_stat_replication where pid = {}",
        find_slot(&client, &database.name).await.unwrap().unwrap().active_pid.unwrap()
    );
    // More than the sockets' buffers hold, so that the walsender is stuck in sending.
    database
        .execute("insert into public.t select n, repeat('x', 1000) from generate_series(1, 50000) n")
        .await
        .unwrap();
    // Nobody reads for more than three times the server's patience; a walsender that gave up has no row.
    wait_until("the walsender to be 7 s old", DEADLINE, async || {
        Ok(database.query_text(&before).await? == "true")
    })
    .await
    .unwrap();
    let (_, kinds) = next_commit(&mut stream).await;
    assert_eq!(kinds.len(), 50_003);
    assert!(!cluster.log().contains("replication timeout"));
}

#[tokio::test]
async fn a_slot_in_use_is_retryable_and_a_missing_one_is_told() {
    let (_, database) = shared_database().await;
    let (_client, start) = prepare(&database).await;
    let _holder = stream(&database, start).await;
    let settings = settings(&database.url);
    let options = StreamOptions::new(&database.name, &database.name, start);
    let error = settings.connect_replication().await.unwrap().start(&options).await.unwrap_err();
    assert_eq!((error.kind(), error.sqlstate()), (ErrorKind::SlotInUse, Some("55006")), "{error}");
    assert!(error.is_retryable());
    let options = StreamOptions::new("no_such_slot", &database.name, start);
    let error = settings.connect_replication().await.unwrap().start(&options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SlotMissing, "{error}");
    let mut again = settings.connect_replication().await.unwrap();
    assert_eq!(again.drop_slot(&database.name).await.unwrap_err().kind(), ErrorKind::SlotInUse);
    assert_eq!(again.drop_slot("no_such_slot").await.unwrap_err().kind(), ErrorKind::SlotMissing);
}

#[tokio::test]
async fn c058_a_lost_slot_is_told_as_lost() {
    let cluster = start(
        ClusterOptions::new()
            .setting("max_slot_wal_keep_size", "1MB")
            .setting("min_wal_size", "32MB")
            .setting("max_wal_size", "32MB"),
    )
    .await;
    let database = cluster.create_database().await.unwrap();
    let (client, start) = prepare(&database).await;
    for _ in 0..8 {
        database.execute("insert into public.t values (1, 'x'); delete from public.t").await.unwrap();
        // Not together with other statements: it must not be in a transaction that writes.
        database.query_text("select pg_switch_wal()::text").await.unwrap();
        database.execute("checkpoint").await.unwrap();
    }
    let slot = find_slot(&client, &database.name).await.unwrap().unwrap();
    let reason =
        if cluster.major() >= 17 { "wal_removed" } else { "the server has removed WAL that it needs" };
    assert_eq!(slot.lost.as_deref(), Some(reason), "{slot:?}");
    let options = StreamOptions::new(&database.name, &database.name, start);
    let error =
        settings(&database.url).connect_replication().await.unwrap().start(&options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SlotLost, "{error}");
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn the_end_of_the_walsender_ends_the_stream() {
    let (_, database) = shared_database().await;
    let (client, start) = prepare(&database).await;
    let mut stream = stream(&database, start).await;
    let pid = find_slot(&client, &database.name).await.unwrap().unwrap().active_pid.unwrap();
    database.execute(&format!("select pg_terminate_backend({pid})")).await.unwrap();
    let error = loop {
        match stream.next_buffered() {
            Ok(Some(_)) => continue,
            Ok(None) => {}
            Err(error) => break error,
        }
        if let Err(error) = tokio::time::timeout(DEADLINE, stream.fill()).await.unwrap() {
            break error;
        }
    };
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test]
async fn c057_a_silent_link_is_an_error_and_a_quiet_server_is_not() {
    let (cluster, database) = shared_database().await;
    let (_client, start) = prepare(&database).await;
    let proxy = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url =
        format!("postgres://postgres@127.0.0.1:{}/{}", proxy.local_addr().unwrap().port(), database.name);
    let server = cluster.port();
    let (cut, mut is_cut) = tokio::sync::watch::channel(false);
    tokio::spawn(async move {
        let (mut near, _) = proxy.accept().await.unwrap();
        let mut far = tokio::net::TcpStream::connect(("127.0.0.1", server)).await.unwrap();
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
            _ = is_cut.wait_for(|cut| *cut) => {}
        }
        // Half-open: the sockets stay, nothing goes through any more.
        std::future::pending::<()>().await;
    });
    let mut options = StreamOptions::new(&database.name, &database.name, start);
    options.silence_limit = Duration::from_secs(3);
    options.status_interval = Duration::from_millis(200);
    let mut stream = settings(&url).connect_replication().await.unwrap().start(&options).await.unwrap();
    let quiet_for = std::time::Instant::now();
    while quiet_for.elapsed() < options.silence_limit * 2 {
        stream.fill().await.unwrap();
        while stream.next_buffered().unwrap().is_some() {}
    }
    cut.send_replace(true);
    let error = loop {
        match stream.fill().await {
            Ok(()) => while stream.next_buffered().unwrap().is_some() {},
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Silent, "{error}");
}
