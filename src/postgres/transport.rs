//! The way to the server: TCP or unix socket, encrypted as configured. The only place that dials.
//!
//! Both kinds of connection come through [`open`], so that neither can be less protected than the other.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::{TcpStream, UnixStream},
};

use super::{
    error::{Error, ErrorKind},
    settings::{Address, ConnectSettings, Host, Keepalives, TlsMode},
    tls,
};

trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// An open connection before the first message of the protocol proper.
pub(super) struct Transport {
    io: Box<dyn Io>,
    /// The `tls-server-end-point` data, under TLS.
    pub(super) binding: Option<Vec<u8>>,
}

impl AsyncRead for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Transport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl tokio_postgres::tls::TlsStream for Transport {
    fn channel_binding(&self) -> tokio_postgres::tls::ChannelBinding {
        match &self.binding {
            Some(data) => tokio_postgres::tls::ChannelBinding::tls_server_end_point(data.clone()),
            None => tokio_postgres::tls::ChannelBinding::none(),
        }
    }
}

/// Dials one host and agrees on TLS, without the time limit of a connection attempt.
pub(super) async fn open(settings: &ConnectSettings, host: &Host) -> Result<Transport, Error> {
    let (name, mut io): (&str, Box<dyn Io>) = match &host.address {
        Address::Socket(directory) => {
            let path = host.socket(directory);
            let stream = dial_socket(&path).await;
            let stream = stream.map_err(|error| unreachable_host(host, &error))?;
            return Ok(Transport { io: Box::new(stream), binding: None });
        }
        Address::Tcp { name, hostaddr } => {
            let stream = dial(name, *hostaddr, host).await?;
            set_options(&stream, &settings.keepalives).map_err(|error| unreachable_host(host, &error))?;
            (name, Box::new(stream))
        }
    };
    if settings.tls == TlsMode::Disable
        || (!settings.direct_tls && !server_has_tls(&mut io, settings, host).await?)
    {
        return Ok(Transport { io, binding: None });
    }
    let server = ServerName::try_from(name.to_owned())
        .map_err(|_| Error::new(ErrorKind::Tls, format!("`{name}` is not a host name that TLS can check")))?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(tls::client_config(settings)?));
    let stream =
        connector.connect(server, io).await.map_err(|error| tls::explain(&error, &host.to_string()))?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let binding = certificate.and_then(|certificate| tls::end_point(certificate));
    Ok(Transport { io: Box::new(stream), binding })
}

async fn dial_socket(path: &std::path::Path) -> io::Result<UnixStream> {
    #[cfg(target_os = "linux")]
    if let Some(name) = path.to_str().and_then(|text| text.strip_prefix('@')) {
        use std::os::linux::net::SocketAddrExt as _;
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
        let stream = std::os::unix::net::UnixStream::connect_addr(&address)?;
        stream.set_nonblocking(true)?;
        return UnixStream::from_std(stream);
    }
    UnixStream::connect(path).await
}

async fn dial(name: &str, hostaddr: Option<std::net::IpAddr>, host: &Host) -> Result<TcpStream, Error> {
    let addresses: Vec<SocketAddr> = match hostaddr {
        Some(address) => vec![SocketAddr::new(address, host.port)],
        None => tokio::net::lookup_host((name, host.port))
            .await
            .map_err(|error| {
                Error::new(
                    ErrorKind::Unreachable,
                    format!("the host name `{name}` cannot be looked up: {error}"),
                )
            })?
            .collect(),
    };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(unreachable_host(host, &last))
}

fn unreachable_host(host: &Host, error: &io::Error) -> Error {
    let what = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            format!("nothing listens at {host}: is the server running there?")
        }
        io::ErrorKind::NotFound => format!("there is no server at {host}: {error}"),
        _ => format!("{host} cannot be reached: {error}"),
    };
    Error::new(ErrorKind::Unreachable, what)
}

fn set_options(stream: &TcpStream, keepalives: &Keepalives) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if !keepalives.enabled {
        return Ok(());
    }
    let options = socket2::TcpKeepalive::new()
        .with_time(keepalives.idle)
        .with_interval(keepalives.interval)
        .with_retries(keepalives.count);
    let socket = socket2::SockRef::from(stream);
    socket.set_keepalive(true)?;
    socket.set_tcp_keepalive(&options)?;
    // Keepalives do not count while something that was sent is not acknowledged: without this, such a link is
    // given up after a quarter of an hour.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(keepalives.idle + keepalives.interval * keepalives.count))?;
    Ok(())
}

async fn server_has_tls(
    io: &mut Box<dyn Io>,
    settings: &ConnectSettings,
    host: &Host,
) -> Result<bool, Error> {
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    let lost = |error: io::Error| {
        Error::new(
            ErrorKind::Closed,
            format!("{host} ended the connection before TLS was agreed on: {error}"),
        )
    };
    io.write_all(&request).await.map_err(lost)?;
    // One byte and no more: what follows it must come through TLS.
    match io.read_u8().await.map_err(lost)? {
        b'S' => Ok(true),
        b'N' if settings.tls == TlsMode::Prefer => Ok(false),
        b'N' => Err(Error::new(
            ErrorKind::Tls,
            format!(
                "{host} does not offer TLS, which sslmode asks for; set `ssl = on` at the server, or use \
                 sslmode=disable where the network is trusted"
            ),
        )),
        // An ErrorResponse: the server has no connection left, or is too old to know the request.
        b'E' => Err(Error::new(
            ErrorKind::Unavailable,
            format!("{host} refused the connection before TLS was agreed on"),
        )),
        _ => Err(Error::protocol(format!("{host} does not speak Postgres's protocol"))),
    }
}
