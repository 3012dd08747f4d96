//! `wasi:http`: requests of guests, to where the configuration lets them go.
//!
//! Guarantees: nothing is sent to an origin that is not granted, nor over a connection to a private address unless those
//! are (the addresses that are connected to are checked, so that no name server can get around it); redirects are not
//! followed; no proxy of the environment is used; granted headers are set here, for their origin alone, and a guest
//! never sees them; bytes and time are bounded. Every refusal names the setting, to the guest and in the log.
//! Must never: answer from anywhere but the origin, or put a header's value into an error.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use reqwest::{
    Client, Method, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    header::HeaderMap,
    redirect,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

use super::{
    address::is_private,
    log::{Level, Line, LogGate, clean},
    services::Meter,
};
use crate::{
    model::{Lsn, Revision},
    plugin::{
        grants::{Capability, HttpGrant, Origin, header_name, header_value},
        limits::size,
        tls,
    },
};

/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Bytes that wait of one request's body, in the host.
const CHUNK: usize = 64 << 10;
/// The word that a refusal by the configuration begins with, for guests to tell it from other errors.
const DENIED: &str = "denied: ";

/// What one plugin may reach, and the connections to it.
pub(in crate::plugin) struct HttpClient {
    plugin: String,
    grant: HttpGrant,
    headers: BTreeMap<Origin, HeaderMap>,
    client: Client,
    flights: Arc<Semaphore>,
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").field("grant", &self.grant).finish_non_exhaustive()
    }
}

impl HttpClient {
    /// Reads certificates: call it where blocking is allowed.
    pub(in crate::plugin) fn new(plugin: &str, grant: HttpGrant) -> Result<Self, String> {
        let https = grant.origins.iter().any(Origin::is_https);
        let tls = tls::client(grant.ca_file.as_deref(), https)?;
        let resolver = Resolver { private: grant.private_addresses, plugin: Arc::from(plugin) };
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .dns_resolver(resolver)
            .connect_timeout(CONNECT_LIMIT.min(grant.timeout))
            .pool_idle_timeout(Duration::from_secs(30))
            .user_agent(concat!("anabranch/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| format!("no HTTP client: {}", error.without_url()))?;
        let headers = grant.headers.iter().map(|(origin, named)| Ok((origin.clone(), header_map(named)?)));
        let headers = headers.collect::<Result<_, String>>()?;
        let flights = Arc::new(Semaphore::new(grant.in_flight.max(1)));
        Ok(Self { plugin: plugin.to_owned(), grant, headers, client, flights })
    }

    fn setting(&self, key: &str) -> String {
        format!("`[plugins.{}.grants] {key}`", self.plugin)
    }

    /// Where a request leads, once that is found to be allowed.
    fn judge(&self, method: &Method, uri: &http::Uri) -> Result<(Url, Origin), Refusal> {
        // A proxy would take the first anywhere; the second has a server tell what headers it got.
        if matches!(*method, Method::CONNECT | Method::TRACE) {
            return Err(Refusal(format!("the method {method} is for no plugin")));
        }
        let odd = || Refusal("this is no URL that a request can go to".to_owned());
        let url = Url::parse(&uri.to_string()).map_err(|_| odd())?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refusal(format!(
                "a URL may not have a user or a password; let the host set a header: {}",
                self.setting("headers")
            )));
        }
        let origin = Origin::of(&url).ok_or_else(odd)?;
        if !self.grant.origins.contains(&origin) {
            return Err(Refusal(format!(
                "requests to {origin} are not granted: add \"{origin}\" to {}",
                self.setting("http")
            )));
        }
        // Names are looked at when they are resolved; these are not.
        let host = url.host_str().unwrap_or_default();
        let literal: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        match literal.filter(|address| !self.grant.private_addresses && is_private(*address)) {
            Some(address) => Err(Refusal::private(&self.plugin, &address.to_string(), address)),
            None => Ok((url, origin)),
        }
    }

    async fn send(
        self: Arc<Self>,
        request: http::Request<WasiBody>,
        options: RequestOptions,
        open: Open,
    ) -> Result<http::Response<WasiBody>, Error> {
        let (parts, body) = request.into_parts();
        let (url, origin) = self.judge(&parts.method, &parts.uri).map_err(Refusal::into_error)?;
        let Ok(permit) = Arc::clone(&self.flights).try_acquire_owned() else {
            return Err(Refusal(format!(
                "more than {} requests at once: make fewer, or raise {}",
                self.grant.in_flight,
                self.setting("http_in_flight")
            ))
            .into_error());
        };
        let until = Instant::now() + self.grant.timeout;
        let whole = Limited::new(body, self.grant.max_request).collect();
        let whole = tokio::time::timeout_at(until, whole).await.map_err(|_| self.late())?;
        let body = whole.map_err(|error| self.request_error(error))?.to_bytes();
        let mut headers = parts.headers;
        // In place of the guest's own of the same name.
        for (name, value) in self.headers.get(&origin).into_iter().flatten() {
            headers.insert(name, value.clone());
        }
        let sending = self.client.request(parts.method, url).headers(headers).body(body);
        let sending = sending.timeout(until.saturating_duration_since(Instant::now())).send();
        let first =
            options.connect_timeout.unwrap_or_default() + options.first_byte_timeout.unwrap_or_default();
        let first = if first.is_zero() { self.grant.timeout } else { first };
        let sent = tokio::time::timeout(first, sending).await.map_err(|_| Error::HttpResponseTimeout)?;
        let answer = sent.map_err(|error| self.error(&error))?;
        let limit = self.grant.max_response;
        if answer.content_length().is_some_and(|length| length > limit as u64) {
            return Err(self.too_large());
        }
        let answer = http::Response::from(answer);
        Ok(answer.map(|body| {
            // What has come to its end holds nothing up, though the guest may keep it.
            let held = Some((permit, open)).filter(|_| !body.is_end_stream());
            let body = Received { body: Box::pin(body), left: limit, client: self, _held: held };
            body.boxed_unsync()
        }))
    }

    fn request_error(&self, error: Box<dyn std::error::Error + Send + Sync>) -> Error {
        if error.is::<LengthLimitError>() {
            return Refusal(format!(
                "the request's body is larger than {}: send less, or raise {}",
                size(self.grant.max_request),
                self.setting("http_max_request")
            ))
            .into_error();
        }
        match error.downcast() {
            Ok(error) => *error,
            Err(error) => Error::InternalError(Some(error.to_string())),
        }
    }

    fn late(&self) -> Error {
        let message = format!(
            "timeout: no whole answer within {:?}: see why, or raise {}",
            self.grant.timeout,
            self.setting("http_timeout")
        );
        Error::InternalError(Some(message))
    }

    fn too_large(&self) -> Error {
        Refusal(format!(
            "the answer is larger than {}: ask for less, or raise {}",
            size(self.grant.max_response),
            self.setting("http_max_response")
        ))
        .into_error()
    }

    fn error(&self, error: &reqwest::Error) -> Error {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        let mut text = String::new();
        while let Some(error) = cause {
            if let Some(refusal) = error.downcast_ref::<Refusal>() {
                return refusal.clone().into_error();
            }
            // The outermost names the URL, which may have what is nobody's business.
            text = error.to_string();
            cause = error.source();
        }
        if error.is_timeout() && !error.is_connect() {
            return self.late();
        }
        let what = if error.is_connect() { "no connection" } else { "the request failed" };
        Error::InternalError(Some(clean(&format!("{what}: {text}"))))
    }
}

fn header_map(named: &BTreeMap<String, crate::model::Secret>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in named {
        let wrong = |problem| format!("`headers`, `{name}`: {problem}");
        headers.insert(header_name(name).map_err(wrong)?, header_value(value).map_err(wrong)?);
    }
    Ok(headers)
}

/// What the configuration does not allow, in words.
#[derive(Clone, Debug)]
struct Refusal(String);

impl Refusal {
    fn private(plugin: &str, host: &str, address: IpAddr) -> Self {
        Self(format!(
            "{host} is at {address}, an address of this machine or of a private network: if that is meant, set \
             `[plugins.{plugin}.grants] private_addresses = true`"
        ))
    }

    fn into_error(self) -> Error {
        Error::InternalError(Some(format!("{DENIED}{}", self.0)))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// Resolves names to addresses that may be connected to; the connector takes no others.
struct Resolver {
    private: bool,
    plugin: Arc<str>,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (private, plugin) = (self.private, Arc::clone(&self.plugin));
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let usable = usable(&plugin, name.as_str(), found, private)?;
            Ok(Box::new(usable.into_iter()) as Addrs)
        })
    }
}

/// Those of a name's addresses that may be connected to: none that is private, whatever stands beside it.
fn usable(
    plugin: &str,
    name: &str,
    found: Vec<SocketAddr>,
    private: bool,
) -> Result<Vec<SocketAddr>, Refusal> {
    let may = |address: &SocketAddr| private || !is_private(address.ip());
    let (usable, others): (Vec<_>, Vec<_>) = found.into_iter().partition(may);
    match (usable.is_empty(), others.first()) {
        (true, Some(other)) => Err(Refusal::private(plugin, name, other.ip())),
        _ => Ok(usable),
    }
}

/// The body of an answer, up to its limit.
struct Received {
    body: Pin<Box<reqwest::Body>>,
    left: usize,
    client: Arc<HttpClient>,
    /// Until all of it was read, or the guest gave it up.
    _held: Option<(OwnedSemaphorePermit, Open)>,
}

/// Counts an instance's requests that are not at their end.
type Open = Arc<()>;

impl Body for Received {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        let Some(frame) = ready!(this.body.as_mut().poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let frame = frame.map_err(|error| this.client.error(&error));
        let bytes = frame.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::len);
        let Some(left) = this.left.checked_sub(bytes) else {
            return Poll::Ready(Some(Err(this.client.too_large())));
        };
        this.left = left;
        Poll::Ready(Some(frame))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The calls that one instance makes.
pub(in crate::plugin) struct Requests {
    client: Option<Arc<HttpClient>>,
    caller: Caller,
    open: Open,
}

/// Who asks, for the log.
#[derive(Clone)]
struct Caller {
    revision: Option<Arc<Revision>>,
    entity: Arc<str>,
    lsn: Lsn,
    log: Arc<LogGate>,
    meter: Option<Arc<dyn Meter>>,
}

impl Caller {
    fn tell(&self, error: &Error) {
        let Error::InternalError(Some(message)) = error else { return };
        let Some(revision) = &self.revision else { return };
        let Some(message) = message.strip_prefix(DENIED) else { return };
        if let Some(meter) = &self.meter {
            meter.refused(Capability::Http);
        }
        let message = &format!("a request was refused: {message}");
        self.log.write(Line { revision, entity: &self.entity, lsn: self.lsn, level: Level::Warn, message });
    }
}

impl Requests {
    pub(in crate::plugin) fn new(log: Arc<LogGate>) -> Self {
        Self {
            client: None,
            open: Open::default(),
            caller: Caller { revision: None, entity: Arc::from(""), lsn: Lsn::ZERO, log, meter: None },
        }
    }

    pub(in crate::plugin) fn with_client(
        &mut self,
        revision: Arc<Revision>,
        client: Option<Arc<HttpClient>>,
    ) {
        (self.caller.revision, self.client) = (Some(revision), client);
    }

    /// Whether the guest began requests that it neither finished nor gave up.
    pub(in crate::plugin) fn are_unfinished(&self) -> bool {
        Arc::strong_count(&self.open) > 1
    }

    pub(in crate::plugin) fn called_for(
        &mut self,
        entity: &Arc<str>,
        lsn: Lsn,
        meter: Option<Arc<dyn Meter>>,
    ) {
        self.caller.entity.clone_from(entity);
        (self.caller.lsn, self.caller.meter) = (lsn, meter);
    }
}

type Answered = Result<(http::Response<WasiBody>, Worker), Error>;
type Worker = Box<dyn Future<Output = Result<(), Error>> + Send>;

impl WasiHttpHooks for Requests {
    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        CHUNK
    }

    /// It is set from the URL.
    fn set_host_header(&mut self) -> bool {
        false
    }

    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _result: Worker,
    ) -> Box<dyn Future<Output = Answered> + Send> {
        let (client, caller, open) = (self.client.clone(), self.caller.clone(), Arc::clone(&self.open));
        Box::new(async move {
            // Without a grant nothing is linked; this is for whoever would link it all the same.
            let client = client.ok_or(Error::HttpRequestDenied)?;
            let answer = Arc::clone(&client).send(request, options.unwrap_or_default(), open).await;
            let answer = answer.inspect_err(|error| caller.tell(error))?;
            Ok((answer, Box::new(async { Ok(()) }) as Worker))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_names_addresses_only_those_of_the_internet_are_used() {
        let found = |texts: &[&str]| -> Vec<SocketAddr> {
            texts.iter().map(|text| SocketAddr::new(text.parse().unwrap(), 0)).collect()
        };
        let of = |texts: &[&str], private| usable("p", "name.example", found(texts), private);
        let mixed = ["10.0.0.1", "8.8.8.8", "::ffff:127.0.0.1", "2606:4700::1111"];
        assert_eq!(of(&mixed, false).unwrap(), found(&["8.8.8.8", "2606:4700::1111"]));
        assert_eq!(of(&mixed, true).unwrap(), found(&mixed), "where that is granted");
        let refusal = of(&["169.254.169.254", "fd00::1"], false).unwrap_err().to_string();
        assert!(refusal.starts_with("name.example is at 169.254.169.254, an address of"), "{refusal}");
        assert!(refusal.contains("`[plugins.p.grants] private_addresses = true`"), "{refusal}");
    }
}
