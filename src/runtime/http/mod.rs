//! The operations endpoint: a small HTTP server for probes, scrapers and people.
//!
//! Each connection is for one request, and has a limit for its headers and for the whole, so that a slow client holds
//! a place for seconds; where there are too many, the oldest goes. It changes nothing and asks for no password:
//! whoever may reach the address may read what is there, which is no secret, and of rows at most the keys that errors name.
//!
//! - the server → here; who answers what → `site`
//! - `/healthz` → `shape`; `/api/status` → `status`; `/` → `page`

mod page;
mod shape;
mod site;
mod status;

use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::error::RunError;

pub(super) use site::Site;

/// Connections at the same time.
const CONNECTIONS: usize = 64;
/// From the beginning of a connection to the end of the request's headers.
const HEADER_LIMIT: Duration = Duration::from_secs(5);
/// The whole of a connection.
const CONNECTION_LIMIT: Duration = Duration::from_secs(20);
/// Bytes of a request's headers, and of what is written ahead.
const BUFFER: usize = 16 << 10;
/// After a failure to accept, such as too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);
/// How long answers that are under way may take once the process ends.
const STOP_LIMIT: Duration = Duration::from_secs(1);

/// The running server.
#[derive(Debug)]
pub(super) struct Server {
    closing: CancellationToken,
    // Aborts it when the process ends some other way.
    task: JoinSet<()>,
}

impl Server {
    /// Listens, and answers from now on.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub(super) async fn start(address: SocketAddr, site: Site) -> Result<Self, RunError> {
        let refused = |source| RunError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        info!(%address, "listening for HTTP");
        let closing = CancellationToken::new();
        let mut task = JoinSet::new();
        task.spawn(serve(listener, Arc::new(site), closing.clone()));
        Ok(Self { closing, task })
    }

    /// Ends, with what is being answered.
    pub(super) async fn stop(mut self) {
        self.closing.cancel();
        while self.task.join_next().await.is_some() {}
    }
}

async fn serve(listener: TcpListener, site: Arc<Site>, closing: CancellationToken) {
    let mut connections = JoinSet::new();
    let mut by_age: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        tokio::select! {
            () = closing.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    by_age.retain(|connection| !connection.is_finished());
                    if by_age.len() >= CONNECTIONS
                        && let Some(oldest) = by_age.pop_front()
                    {
                        oldest.abort();
                    }
                    by_age.push_back(connections.spawn(answer(stream, Arc::clone(&site))));
                }
                Err(error) => {
                    debug!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }
    drop(listener);
    let left = async { while connections.join_next().await.is_some() {} };
    // What takes longer is aborted with the set.
    let _ = tokio::time::timeout(STOP_LIMIT, left).await;
}

/// One connection: one request.
async fn answer(stream: TcpStream, site: Arc<Site>) {
    let service = service_fn(move |request| {
        let site = Arc::clone(&site);
        async move { Ok::<_, std::convert::Infallible>(site.answer(request.method(), request.uri().path()).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT)
        .keep_alive(false)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_LIMIT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "an HTTP connection broke"),
        Err(_) => debug!("an HTTP connection took too long"),
    }
}
