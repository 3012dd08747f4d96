//! Opens connections of both kinds from one [`ConnectSettings`], with the session settings that make text
//! output the same everywhere.

use std::{ops::Deref, sync::Arc, time::Duration};

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::{
    io::AsyncWriteExt as _,
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tokio_postgres::{AsyncMessage, Notification, SimpleQueryMessage, config};

use super::{
    error::{Error, ErrorKind},
    settings::{ChannelBinding, ConnectSettings, Host, TargetSession},
    transport::{self, Transport},
    wire::{TextRow, Wire},
};

/// What a connection is for; shown as part of its `application_name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The walsender.
    Stream,
    /// Chunk reads and re-reads.
    Snapshot,
    /// Markers, catalogue, publication and slot.
    Control,
    /// The `anabranch` schema.
    State,
    /// The leader's lock.
    Leader,
    /// What operators ask for.
    Requests,
    /// What is told over HTTP.
    Status,
    /// What transforms ask the source.
    Query,
}

impl Purpose {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Snapshot => "snapshot",
            Self::Control => "control",
            Self::State => "state",
            Self::Leader => "leader",
            Self::Requests => "requests",
            Self::Status => "status",
            Self::Query => "query",
        }
    }
}

/// Pinned on every connection, so that streamed and selected text are the same bytes whatever role, database
/// and server say, and so that no limit meant for applications ends a session. `row_security = off` makes a
/// read that policies would thin out an error; with `synchronous_commit = local` our own commits are flushed
/// here and do not wait for a standby that is missing.
const PINNED: &str = "-c DateStyle=ISO -c IntervalStyle=iso_8601 -c TimeZone=UTC -c bytea_output=hex \
    -c extra_float_digits=3 -c lc_monetary=C -c xmloption=content -c standard_conforming_strings=on \
    -c quote_all_identifiers=off -c search_path=pg_catalog -c row_security=off -c synchronous_commit=local \
    -c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off \
    -c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0 -c idle_session_timeout=0";

/// What a server of this version knows beside: an older one would refuse the connection over it.
fn later_settings(version: u32) -> Option<&'static str> {
    (version >= 17).then_some("set transaction_timeout = 0")
}

/// The `options` of the start-up message: the user's first, so that the pinned ones win.
pub(super) fn pinned_options(settings: &ConnectSettings) -> String {
    settings.options.as_ref().map_or_else(|| PINNED.to_owned(), |options| format!("{options} {PINNED}"))
}

/// A session for queries: dereferences to [`tokio_postgres::Client`].
///
/// Owns the task that drives the connection; dropping it ends the session.
#[derive(Debug)]
pub struct Client {
    inner: tokio_postgres::Client,
    driver: Driver,
    ended: watch::Receiver<Option<Error>>,
    notifications: mpsc::UnboundedReceiver<Notification>,
    version: u32,
}

impl Deref for Client {
    type Target = tokio_postgres::Client;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl Client {
    /// The server's major version, such as 15.
    #[must_use]
    pub fn server_version(&self) -> u32 {
        self.version
    }

    /// Resolves when the session is over, whoever ended it, with the reason.
    pub async fn ended(&self) -> Error {
        let mut ended = self.ended.clone();
        let reason = ended.wait_for(Option::is_some).await;
        reason.ok().and_then(|reason| reason.clone()).unwrap_or_else(|| Error::closed("its driver is gone"))
    }

    /// The next notification of a channel that this session listens to; None when the session is over.
    /// Cancel-safe.
    pub async fn notification(&mut self) -> Option<Notification> {
        self.notifications.recv().await
    }

    /// Ends the session in good order.
    pub async fn close(self) {
        let Self { inner, mut driver, .. } = self;
        drop(inner);
        // When the peer does not listen any more, dropping the driver closes the socket.
        let _ = tokio::time::timeout(Duration::from_secs(2), &mut driver.0).await;
    }

    /// The rows of each statement of a parameterless text, in the simple protocol: the server's own text.
    pub(crate) async fn text_results(&self, sql: &str) -> Result<Vec<Vec<TextRow>>, Error> {
        let (mut results, mut rows) = (Vec::new(), Vec::new());
        for message in self.inner.simple_query(sql).await? {
            match message {
                SimpleQueryMessage::Row(row) => {
                    rows.push((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect());
                }
                SimpleQueryMessage::CommandComplete(_) => results.push(std::mem::take(&mut rows)),
                _ => {}
            }
        }
        Ok(results)
    }
}

#[derive(Debug)]
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Hands the transport on as it is: TLS was agreed on already.
struct Established;

impl tokio_postgres::tls::TlsConnect<Transport> for Established {
    type Stream = Transport;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Transport, Self::Error>>;

    fn connect(self, stream: Transport) -> Self::Future {
        std::future::ready(Ok(stream))
    }
}

impl ConnectSettings {
    /// Opens a session for queries, at the first host of the list that will do.
    ///
    /// # Errors
    /// One sentence for the host that failed, or all of them.
    pub async fn connect(&self, purpose: Purpose) -> Result<Client, Error> {
        let mut failures = Failures::default();
        for host in &self.hosts {
            match self.limited(self.connect_host(host, purpose), host).await {
                Ok(client) => return Ok(client),
                Err(error) => failures.add(host, error),
            }
        }
        Err(failures.into_error(self))
    }

    /// Opens a session of the simple query protocol; `replication` makes it a walsender.
    pub(super) async fn connect_wire(
        &self,
        purpose: Purpose,
        replication: bool,
    ) -> Result<(Wire, Host), Error> {
        let mut failures = Failures::default();
        for host in &self.hosts {
            match self.limited(self.wire_host(host, purpose, replication), host).await {
                Ok(wire) => return Ok((wire, host.clone())),
                Err(error) => failures.add(host, error),
            }
        }
        Err(failures.into_error(self))
    }

    /// Asks the server to cancel what the session with this key is doing, and waits until it has been told.
    pub(super) async fn cancel(
        &self,
        host: &Host,
        (process_id, secret_key): (i32, i32),
    ) -> Result<(), Error> {
        let attempt = async {
            let mut transport = transport::open(self, host).await?;
            let mut request = BytesMut::new();
            frontend::cancel_request(process_id, secret_key, &mut request);
            transport.write_all(&request).await?;
            transport.flush().await?;
            // The server answers nothing and closes once the signal is sent.
            let mut rest = [0; 16];
            while tokio::io::AsyncReadExt::read(&mut transport, &mut rest).await.is_ok_and(|count| count > 0)
            {
            }
            Ok(())
        };
        self.limited(attempt, host).await
    }

    async fn limited<T>(
        &self,
        attempt: impl Future<Output = Result<T, Error>>,
        host: &Host,
    ) -> Result<T, Error> {
        let Some(limit) = self.connect_timeout else { return attempt.await };
        tokio::time::timeout(limit, attempt).await.unwrap_or_else(|_| {
            let text = format!("{host} did not answer within {} s (connect_timeout)", limit.as_secs());
            Err(Error::new(ErrorKind::Unreachable, text))
        })
    }

    /// The server cuts a name after 63 bytes; what the connection is for must stay.
    fn application_name(&self, purpose: Purpose) -> String {
        let purpose = purpose.as_str();
        let room = 63 - 1 - purpose.len();
        let mut end = room.min(self.application_name.len());
        while !self.application_name.is_char_boundary(end) {
            end -= 1;
        }
        format!("{}/{purpose}", &self.application_name[..end])
    }

    async fn wire_host(&self, host: &Host, purpose: Purpose, replication: bool) -> Result<Wire, Error> {
        let transport = transport::open(self, host).await?;
        let mut wire = Wire::start(transport, self, &self.application_name(purpose), replication).await?;
        let version = wire.parameters.get("server_version").map_or(0, |text| major_version(text));
        if let Some(sql) = later_settings(version) {
            wire.query(sql).await?;
        }
        self.check_target(wire.parameters.get("in_hot_standby").map(String::as_str), host)?;
        Ok(wire)
    }

    async fn connect_host(&self, host: &Host, purpose: Purpose) -> Result<Client, Error> {
        let transport = transport::open(self, host).await?;
        let mut config = tokio_postgres::Config::new();
        config
            .user(&self.user)
            .dbname(&self.dbname)
            .options(pinned_options(self))
            .application_name(self.application_name(purpose))
            // "Direct" keeps tokio-postgres from negotiating TLS once more.
            .ssl_mode(config::SslMode::Require)
            .ssl_negotiation(config::SslNegotiation::Direct)
            .channel_binding(match self.channel_binding {
                ChannelBinding::Disable => config::ChannelBinding::Disable,
                ChannelBinding::Prefer => config::ChannelBinding::Prefer,
                ChannelBinding::Require => config::ChannelBinding::Require,
            });
        if let Some(password) = &self.password {
            config.password(password.expose());
        }
        let (inner, connection) = config.connect_raw(transport, Established).await?;
        self.check_target(connection.parameter("in_hot_standby"), host)?;
        let version = connection.parameter("server_version").map_or(0, major_version);
        let (say_ended, ended) = watch::channel(None);
        let (notify, notifications) = mpsc::unbounded_channel();
        let driver = Driver(tokio::spawn(drive(connection, notify, say_ended)));
        if let Some(sql) = later_settings(version) {
            inner.batch_execute(sql).await?;
        }
        Ok(Client { inner, driver, ended, notifications, version })
    }

    fn check_target(&self, in_hot_standby: Option<&str>, host: &Host) -> Result<(), Error> {
        if self.target == TargetSession::ReadWrite && in_hot_standby == Some("on") {
            let text = format!("{host} is a standby, and target_session_attrs asks for a primary");
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        Ok(())
    }
}

async fn drive(
    mut connection: tokio_postgres::Connection<Transport, Transport>,
    notify: mpsc::UnboundedSender<Notification>,
    ended: watch::Sender<Option<Error>>,
) {
    let reason = loop {
        match std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            // Nobody listens when the client is being dropped.
            Some(Ok(AsyncMessage::Notification(notification))) => drop(notify.send(notification)),
            Some(Ok(AsyncMessage::Notice(notice))) => tracing::debug!(notice = notice.message(), "postgres"),
            Some(Ok(_)) => {}
            Some(Err(error)) => break error.into(),
            None => break Error::closed("it was closed by this side"),
        }
    };
    ended.send_replace(Some(reason));
}

/// `15.8 (Debian 15.8-1)`, `18beta1`: the leading digits.
pub(super) fn major_version(text: &str) -> u32 {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().unwrap_or(0)
}

#[derive(Default)]
struct Failures(Vec<(Arc<str>, Error)>);

impl Failures {
    fn add(&mut self, host: &Host, error: Error) {
        self.0.push((host.to_string().into(), error));
    }

    fn into_error(mut self, settings: &ConnectSettings) -> Error {
        let what = format!("cannot connect to {}", settings.describe());
        match self.0.pop() {
            Some((_, only)) if self.0.is_empty() => only.context(what),
            Some((host, last)) => {
                let earlier: String =
                    self.0.iter().map(|(host, error)| format!("{host}: {error}; ")).collect();
                last.context(format!("{what}: {earlier}{host}"))
            }
            None => Error::settings("the connection string has no host"),
        }
    }
}
