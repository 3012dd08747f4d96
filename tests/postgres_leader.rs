//! Leadership on a real server: one leads at a time, the next takes over, and a loss is noticed whatever its
//! kind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anabranch::postgres::{ConnectSettings, ErrorKind, Leadership, Purpose, holder};
use testkit::{Database, shared, wait_until};
use tokio_util::sync::CancellationToken;

const SOON: Duration = Duration::from_secs(30);

fn settings(url: &str) -> ConnectSettings {
    ConnectSettings::parse(url, |_| None).unwrap()
}

async fn lead(url: &str, installation: &str) -> Leadership {
    let (settings, never) = (settings(url), CancellationToken::new());
    let taken = Leadership::acquire(&settings, installation, &never);
    tokio::time::timeout(SOON, taken).await.unwrap().unwrap()
}

async fn locks(database: &Database) -> String {
    let count = "select count(*)::text from pg_locks where locktype = 'advisory' and database = (
        select oid from pg_database where datname = current_database())";
    database.query_text(count).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn c063_the_next_candidate_names_the_holder_and_takes_over_when_it_is_killed() {
    let database = shared().unwrap().create_database().await.unwrap();
    let short = format!("alter role postgres in database {} set statement_timeout = '5s'", database.name);
    database.execute(&short).await.unwrap();
    let first = lead(&database.url, "shop").await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let second = tokio::spawn({
        let settings = settings(&database.url);
        async move {
            Leadership::acquire_telling(&settings, "shop", |holder| tell.send(holder.cloned()).unwrap()).await
        }
    });
    let holder = tokio::time::timeout(SOON, told.recv()).await.unwrap().unwrap().unwrap();
    assert_eq!(holder.pid, first.pid());
    assert_eq!(holder.application_name.as_deref(), Some("anabranch/leader"));
    assert!(holder.age.unwrap() < SOON);

    let lost = async { first.lost().await };
    let kill = format!("select pg_terminate_backend({})::text", first.pid());
    let (error, killed) = tokio::join!(lost, database.query_text(&kill));
    assert_eq!(killed.unwrap(), "true");
    assert!(error.to_string().contains("leadership of `shop` is lost"), "{error}");
    let second = tokio::time::timeout(SOON, second).await.unwrap().unwrap().unwrap();
    assert_ne!(second.pid(), first.pid());
    second.release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c020_siblings_do_not_stand_in_each_others_way() {
    let database = shared().unwrap().create_database().await.unwrap();
    let one = lead(&database.url, "a_b").await;
    let other = lead(&database.url, "axb").await;
    let client = settings(&database.url).connect(Purpose::Control).await.unwrap();
    assert_eq!(holder(&client, "a_b").await.unwrap().unwrap().pid, one.pid());
    assert_eq!(holder(&client, "axb").await.unwrap().unwrap().pid, other.pid());
    assert_eq!(holder(&client, "a-b").await.unwrap(), None);
    one.release().await;
    assert_eq!(holder(&client, "a_b").await.unwrap(), None, "given up at once");
    assert_eq!(holder(&client, "axb").await.unwrap().unwrap().pid, other.pid());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_given_up_leaves_nothing() {
    let database = shared().unwrap().create_database().await.unwrap();
    let first = lead(&database.url, "shop").await;
    let cancel = CancellationToken::new();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let dropped = tokio::spawn({
        let settings = settings(&database.url);
        async move { Leadership::acquire_telling(&settings, "shop", |_| tell.send(()).unwrap()).await }
    });
    tokio::time::timeout(SOON, told.recv()).await.unwrap().unwrap();
    dropped.abort();
    let cancelled = tokio::spawn({
        let (settings, cancel) = (settings(&database.url), cancel.clone());
        async move { Leadership::acquire(&settings, "shop", &cancel).await }
    });
    cancel.cancel();
    let error = tokio::time::timeout(SOON, cancelled).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    first.release().await;
    let sessions = "select count(*)::text from pg_stat_activity where application_name = 'anabranch/leader'
        and datname = current_database()";
    wait_until("the sessions to be gone", SOON, async || Ok(database.query_text(sessions).await? == "0"))
        .await
        .unwrap();
    assert_eq!(locks(&database).await, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_link_is_a_lost_lead() {
    let database = shared().unwrap().create_database().await.unwrap();
    let link = Link::start(shared().unwrap().port());
    let leader = lead(&link.url(&database), "shop").await;
    link.frozen.store(true, Ordering::Relaxed);
    let error = tokio::time::timeout(SOON, leader.lost()).await.unwrap();
    assert_eq!(error.kind(), ErrorKind::Silent, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c065_a_transaction_pooler_is_refused_with_a_hint() {
    let database = shared().unwrap().create_database().await.unwrap();
    let pooler = pooler(shared().unwrap().port());
    let url = database.url.replace(&format!(":{}/", shared().unwrap().port()), &format!(":{pooler}/"));
    let error = Leadership::acquire(&settings(&url), "shop", &CancellationToken::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Settings, "{error}");
    assert!(error.to_string().contains("a connection pooler is in between"), "{error}");
    assert_eq!(locks(&database).await, "0", "refused before anything was locked");
}

/// A TCP link that can fall silent without being closed.
struct Link {
    port: u16,
    frozen: Arc<AtomicBool>,
}

impl Link {
    fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = Self { port: listener.local_addr().unwrap().port(), frozen: Arc::default() };
        let frozen = Arc::clone(&link.frozen);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
                pump(client.try_clone().unwrap(), server.try_clone().unwrap(), Arc::clone(&frozen));
                pump(server, client, Arc::clone(&frozen));
            }
        });
        link
    }

    fn url(&self, database: &Database) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/{}?sslmode=disable", self.port, database.name)
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, frozen: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        loop {
            match from.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(_) if frozen.load(Ordering::Relaxed) => {}
                Ok(count) => {
                    if to.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
            }
        }
        // The other side may be gone already.
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// A pooler in transaction mode: two server processes for each client, statements to each in turn. Knows the
/// simple protocol without log-in, which is what the leader's session speaks.
fn pooler(server: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                // A client that goes away ends its thread.
                let _ = serve(&mut client, server);
            });
        }
    });
    port
}

fn serve(client: &mut TcpStream, server: u16) -> std::io::Result<()> {
    let mut servers =
        [TcpStream::connect(("127.0.0.1", server))?, TcpStream::connect(("127.0.0.1", server))?];
    let mut startup = read_counted(client, Vec::new())?;
    while startup.len() == 8 {
        // A request for TLS: no.
        client.write_all(b"N")?;
        startup = read_counted(client, Vec::new())?;
    }
    for server in &mut servers {
        server.write_all(&startup)?;
    }
    let greeting = read_until_ready(&mut servers[0])?;
    read_until_ready(&mut servers[1])?;
    client.write_all(&greeting)?;
    let mut turn = 0;
    loop {
        let message = read_message(client)?;
        if message[0] == b'X' {
            return Ok(());
        }
        servers[turn].write_all(&message)?;
        client.write_all(&read_until_ready(&mut servers[turn])?)?;
        turn = 1 - turn;
    }
}

fn read_until_ready(server: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let message = read_message(server)?;
        all.extend_from_slice(&message);
        if message[0] == b'Z' {
            return Ok(all);
        }
    }
}

fn read_message(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut tag = [0];
    stream.read_exact(&mut tag)?;
    read_counted(stream, tag.to_vec())
}

fn read_counted(stream: &mut TcpStream, mut message: Vec<u8>) -> std::io::Result<Vec<u8>> {
    let mut count = [0; 4];
    stream.read_exact(&mut count)?;
    let mut body = vec![0; u32::from_be_bytes(count) as usize - 4];
    stream.read_exact(&mut body)?;
    message.extend_from_slice(&count);
    message.append(&mut body);
    Ok(message)
}
