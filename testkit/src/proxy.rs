//! A TCP proxy before a Postgres server, for faults of the network: links that fall silent, that are cut in the
//! middle of a message, and servers that change behind an address.
//!
//! A link is known by the `application_name` of its start-up message. Whatever is ordered for links whose names end
//! in a text holds for those that there are and for those that come.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU16, AtomicU64, Ordering},
    },
};

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
    sync::watch,
    task::JoinHandle,
};

/// What a link is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Pass,
    /// Nothing passes, and nothing is closed: half-open to either side.
    Stall,
    Cut,
}

/// A link's ends for whoever gives orders.
#[derive(Debug)]
struct Link {
    name: String,
    order: watch::Sender<Order>,
    /// What the server may still send before the link is cut.
    left: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Links {
    links: HashMap<u64, Link>,
    /// Links whose names end so stall.
    stalled: Option<String>,
    accepted: u64,
}

#[derive(Debug)]
struct Shared {
    server: AtomicU16,
    links: Mutex<Links>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The proxy; dropped, it cuts all links and listens no more.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut("");
    }
}

impl Proxy {
    /// Listens on a port of its own, before the server on `server`.
    pub async fn start(server: u16) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared { server: AtomicU16::new(server), links: Mutex::default() });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { port, shared, task })
    }

    /// Connection URL of the superuser through the proxy, without TLS.
    pub fn url(&self, database: &str) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }

    /// New links lead to the server on this port.
    pub fn lead_to(&self, server: u16) {
        self.shared.server.store(server, Ordering::Release);
    }

    /// Links whose names end in `name` fall silent (all: the empty text), also those that come.
    pub fn stall(&self, name: &str) {
        let mut links = self.shared.lock();
        links.stalled = Some(name.to_owned());
        for link in links.links.values().filter(|link| link.name.ends_with(name)) {
            link.order.send_replace(Order::Stall);
        }
    }

    /// Everything passes again, what was held back first.
    pub fn resume(&self) {
        let mut links = self.shared.lock();
        links.stalled = None;
        for link in links.links.values() {
            link.order.send_replace(Order::Pass);
        }
    }

    /// Ends the links whose names end in `name`; says how many.
    pub fn cut(&self, name: &str) -> usize {
        self.tell(name, |link| {
            link.order.send_replace(Order::Cut);
        })
    }

    /// Ends the links that there are, and whose names end in `name`, once the server has sent so many bytes more,
    /// wherever that is; says how many they are.
    pub fn cut_after(&self, name: &str, bytes: u64) -> usize {
        self.tell(name, |link| link.left.store(bytes, Ordering::Release))
    }

    fn tell(&self, name: &str, order: impl Fn(&Link)) -> usize {
        let links = self.shared.lock();
        let meant: Vec<_> = links.links.values().filter(|link| link.name.ends_with(name)).collect();
        meant.iter().for_each(|link| order(link));
        meant.len()
    }

    /// Links that there are and whose names end in `name`.
    pub fn count(&self, name: &str) -> usize {
        self.shared.lock().links.values().filter(|link| link.name.ends_with(name)).count()
    }

    /// Links that have been there.
    pub fn accepted(&self) -> u64 {
        self.shared.lock().accepted
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        // A link that breaks is over for both sides, and nobody else's business.
        tokio::spawn(async move { drop(serve(client, &shared).await) });
    }
}

async fn serve(mut client: TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_nodelay(true)?;
    let startup = startup(&mut client).await?;
    let (order, orders) = watch::channel(Order::Pass);
    let left = Arc::new(AtomicU64::new(u64::MAX));
    let id = {
        let mut links = shared.lock();
        links.accepted += 1;
        let name = application_name(&startup);
        if links.stalled.as_ref().is_some_and(|stalled| name.ends_with(stalled)) {
            order.send_replace(Order::Stall);
        }
        let id = links.accepted;
        links.links.insert(id, Link { name, order, left: Arc::clone(&left) });
        id
    };
    let passed = async {
        let mut server = TcpStream::connect(("127.0.0.1", shared.server.load(Ordering::Acquire))).await?;
        server.set_nodelay(true)?;
        server.write_all(&startup).await?;
        let (from_server, to_server) = server.into_split();
        let (from_client, to_client) = client.into_split();
        let endless = Arc::new(AtomicU64::new(u64::MAX));
        // The end of one direction is the end of the link.
        tokio::select! {
            ended = carry(from_client, to_server, orders.clone(), endless) => ended,
            ended = carry(from_server, to_client, orders.clone(), left) => ended,
        }
    };
    let passed = passed.await;
    shared.lock().links.remove(&id);
    passed
}

async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut orders: watch::Receiver<Order>,
    left: Arc<AtomicU64>,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    let mut held = 0;
    loop {
        let order = *orders.borrow_and_update();
        match order {
            Order::Cut => return Ok(()),
            Order::Stall => {
                if orders.changed().await.is_err() {
                    return Ok(());
                }
                continue;
            }
            Order::Pass => {}
        }
        if held > 0 {
            let may = left.load(Ordering::Acquire);
            let part = usize::try_from(may).unwrap_or(usize::MAX).min(held);
            to.write_all(&buffer[..part]).await?;
            if part < held {
                return Ok(());
            }
            if may != u64::MAX {
                left.fetch_sub(part as u64, Ordering::AcqRel);
            }
            held = 0;
        }
        tokio::select! {
            biased;
            changed = orders.changed() => if changed.is_err() { return Ok(()) },
            read = from.read(&mut buffer) => match read? {
                0 => return Ok(()),
                count => held = count,
            },
        }
    }
}

/// The first message: its length, and the rest.
async fn startup(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut message = vec![0; 4];
    client.read_exact(&mut message).await?;
    let length = message.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
    message.resize(length.clamp(4, 16 << 10), 0);
    client.read_exact(&mut message[4..]).await?;
    Ok(message)
}

/// Of the pairs of texts that end in a zero each, after length and version.
fn application_name(startup: &[u8]) -> String {
    let mut texts = startup.get(8..).unwrap_or_default().split(|byte| *byte == 0);
    while let (Some(name), Some(value)) = (texts.next(), texts.next()) {
        if name == b"application_name" {
            return String::from_utf8_lossy(value).into_owned();
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_known_by_its_application_name() {
        let startup = b"\0\0\0\x30\0\x03\0\0user\0postgres\0application_name\0anabranch/stream\0\0";
        assert_eq!(application_name(startup), "anabranch/stream");
        assert_eq!(application_name(b"\0\0\0\x08\0\x03\0\0"), "");
    }
}
