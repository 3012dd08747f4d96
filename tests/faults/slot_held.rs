//! Another client has the slot: named, waited for without haste, and taken up by itself.

use testkit::{Host, load::LoadOptions, postgres::shared, shop::Size, wait_until};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    web::Web,
    world::{Background, SOON, TWO_MAPPINGS, World, order_summary, product_search, seed},
};

const ROWS: Size = Size { products: 1_000, orders: 1_000, customers: 0 };
const LISTEN: &str = "\n[http]\nlisten = \"127.0.0.1:0\"\n";

/// Streams from the slot as somebody else, by the bytes of the protocol: what the host's own client calls itself is
/// taken for a former leader's.
async fn hold(port: u16, slot: &str) -> TcpStream {
    let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let pairs =
        ["user", "postgres", "database", slot, "replication", "database", "application_name", "somebody"];
    let mut body = 196_608_u32.to_be_bytes().to_vec();
    pairs.iter().for_each(|text| body.extend_from_slice(format!("{text}\0").as_bytes()));
    body.push(0);
    send(&mut server, b"", &body).await;
    while receive(&mut server).await != b'Z' {}
    let options = format!("proto_version '1', publication_names '\"{slot}\"'");
    let start = format!("START_REPLICATION SLOT \"{slot}\" LOGICAL 0/0 ({options})\0");
    send(&mut server, b"Q", start.as_bytes()).await;
    assert_eq!(receive(&mut server).await, b'W', "the slot is had");
    server
}

async fn send(server: &mut TcpStream, tag: &[u8], body: &[u8]) {
    let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    server.write_all(&[tag, &length, body].concat()).await.unwrap();
}

/// The type of the next message.
async fn receive(server: &mut TcpStream) -> u8 {
    let tag = server.read_u8().await.unwrap();
    let mut body = vec![0; server.read_u32().await.unwrap() as usize - 4];
    server.read_exact(&mut body).await.unwrap();
    tag
}

/// Seconds of the processor that a host has used (Linux: `utime` and `stime`, in hundredths).
fn cpu_seconds(host: &Host) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", host.id()?)).ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / 100.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn c064_a_slot_that_another_client_has_is_waited_for_without_haste() {
    let database = shared().unwrap().create_database().await.unwrap();
    let mut world = World::new(&database.url, ROWS, &format!("{TWO_MAPPINGS}{LISTEN}")).await;
    world.install("product-search", &product_search("1.0.0"));
    world.install("order-summary", &order_summary("1.0.0"));
    world.host.start().unwrap();
    world.built("products", 1).await;
    world.built("orders", 1).await;
    world.terminate();
    let load = Background::start(
        &world.url,
        LoadOptions { copy_every: 0, ..LoadOptions::new(seed(), ROWS.products) },
    )
    .await;
    // The load alters rows, not what this client confirms: it confirms nothing.
    let holder = hold(shared().unwrap().port(), world.slot()).await;
    let from = world.host.log_length();
    world.host.start().unwrap();
    let told = world.logged(from, "which another client has").await;
    assert!(told.contains("of somebody") && told.contains("pg_terminate_backend("), "{told}");
    let web = Web::of(&mut world.host, from).await;
    web.ask_until("/readyz", "does not stream yet: waiting for the slot", "/livez").await.unwrap();

    let (lines, used) = (world.host.log().lines().count(), cpu_seconds(&world.host));
    let waited = format!(
        "select (now() - backend_start > '15 s')::text from pg_stat_activity as a
         join pg_replication_slots as s on s.active_pid = a.pid where s.slot_name = '{}'",
        world.slot()
    );
    wait_until("the other to have had it for a while", SOON, async || {
        Ok(world.text(&waited).await.as_deref() == Some("true"))
    })
    .await
    .unwrap();
    let told = world.host.log().lines().count() - lines;
    assert!(told <= 2, "{told} lines while it waits\n{}", world.host.log_tail());
    if let (Some(before), Some(now)) = (used, cpu_seconds(&world.host)) {
        assert!(now - before < 3.0, "{} s of the processor", now - before);
    }
    // Told to stop, it need not wait.
    world.terminate();
    let from = world.host.log_length();
    world.host.start().unwrap();
    world.logged(from, "which another client has").await;
    drop(holder);
    world.logged(from, "the slot is free now").await;
    world.logged(from, ": streaming ").await;
    load.stop().await;
    world.check().await;
    assert!(!world.host.log().contains("THE STREAM HAS A GAP"), "{}", world.host.log_tail());
    world.terminate();
}
