//! Requests over HTTP, to where the config lets the plugin go (`[plugins.<name>.grants] http`).
//!
//! With the cargo feature `http`. A call waits for its answer, and has it whole; redirects are not followed. Natively
//! (in unit tests) requests are answered by [`testing::set_http`](crate::testing::set_http).
//!
//! ```no_run
//! # use anabranch_sdk::{Failure, http::Request};
//! # fn ask() -> Result<(), Failure> {
//! let answer = Request::post("https://search.example.com:9200/_bulk")
//!     .header("content-type", "application/x-ndjson")
//!     .body("{}\n")
//!     .send()?;
//! if answer.status != 200 { /* … */ }
//! # Ok(())
//! # }
//! ```

use std::{
    fmt::{self, Write as _},
    time::Duration,
};

use crate::{Failure, FailureClass};

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `POST`, …
    pub method: String,
    /// `https://host:port/path?query`
    pub url: String,
    /// Names and values. The host adds those that the config has for the URL's origin.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// How long to wait for the answer to begin; never longer than the config lets a request take.
    pub timeout: Option<Duration>,
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// Names, in lower case, and values.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body.
    pub body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The config does not allow it; the message names the setting.
    Denied(String),
    /// It took too long.
    Timeout(String),
    /// There was no connection, or it broke.
    Failed(String),
    /// No request can be made of the URL, the method or the headers.
    Request(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Denied(message) | Self::Timeout(message) | Self::Failed(message) | Self::Request(message)) =
            self;
        f.write_str(message)
    }
}

impl std::error::Error for Error {}

/// What is denied is fatal, what can be no request is poison; the rest may work later.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (class, code) = match &error {
            Error::Denied(_) => (FailureClass::Fatal, "http-denied"),
            Error::Timeout(_) => (FailureClass::Retry, "http-timeout"),
            Error::Failed(_) => (FailureClass::Retry, "http-failed"),
            Error::Request(_) => (FailureClass::Poison, "http-request"),
        };
        Self { class, code: code.to_owned(), message: error.to_string(), retry_after: None }
    }
}

impl Request {
    /// A request without headers or a body.
    pub fn new(method: impl Into<String>, url: impl Into<String>) -> Self {
        let (method, url) = (method.into(), url.into());
        Self { method, url, headers: Vec::new(), body: Vec::new(), timeout: None }
    }

    /// A GET.
    pub fn get(url: impl Into<String>) -> Self {
        Self::new("GET", url)
    }

    /// A POST.
    pub fn post(url: impl Into<String>) -> Self {
        Self::new("POST", url)
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Waits no longer than this for the answer to begin.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sends it, and waits for the whole answer.
    ///
    /// # Errors
    /// There is no answer. An answer with any status is one.
    pub fn send(self) -> Result<Response, Error> {
        #[cfg(target_family = "wasm")]
        return wasm::send(self);
        #[cfg(not(target_family = "wasm"))]
        return target(&self.url).and_then(|_| crate::testing::answer(&self));
    }
}

/// A text as one part of a URL's path, or of its query: an id may have a `/` or a `?`.
#[must_use]
pub fn escaped(part: &str) -> String {
    let mut out = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Where a request goes.
#[derive(Debug, PartialEq, Eq)]
#[cfg_attr(not(target_family = "wasm"), allow(dead_code))] // only in a component is a request sent
struct Target<'a> {
    secure: bool,
    authority: &'a str,
    /// With the query.
    path: String,
}

fn target(url: &str) -> Result<Target<'_>, Error> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong_url(url))?;
    let secure = scheme.eq_ignore_ascii_case("https");
    let rest = rest.split('#').next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if authority.is_empty() || !(secure || scheme.eq_ignore_ascii_case("http")) {
        return Err(wrong_url(url));
    }
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    Ok(Target { secure, authority, path })
}

/// No request can go there. Its user, path and query may be secrets.
fn wrong_url(url: &str) -> Error {
    let is_scheme = |text: &str| {
        let mut letters = text.bytes();
        letters.next().is_some_and(|first| first.is_ascii_alphabetic())
            && letters.all(|letter| letter.is_ascii_alphanumeric() || b"+.-".contains(&letter))
    };
    let place = match url.split_once("://").filter(|(scheme, _)| is_scheme(scheme)) {
        Some((scheme, rest)) => {
            let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}")
        }
        None => "a URL without scheme and host".to_owned(),
    };
    Error::Request(format!("no request can go to {place}: a URL is `https://host:port/path?query`"))
}

/// The host's own words begin with what they are, also where it shows them as the error of a stream.
#[cfg_attr(not(target_family = "wasm"), allow(dead_code))] // only a component hears them
fn said(message: &str) -> Error {
    let inner = message.strip_prefix("ErrorCode::").unwrap_or(message);
    let wrapped = inner.strip_prefix("InternalError(Some(\"").and_then(|rest| rest.rsplit_once("\"))"));
    let words = match wrapped {
        Some((words, _)) => words.replace("\\\"", "\"").replace("\\\\", "\\"),
        None => message.to_owned(),
    };
    if let Some(rest) = words.strip_prefix("denied: ") {
        Error::Denied(rest.to_owned())
    } else if let Some(rest) = words.strip_prefix("timeout: ") {
        Error::Timeout(rest.to_owned())
    } else {
        Error::Failed(words)
    }
}

impl Response {
    /// The first value of a header, where it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let named = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        named.and_then(|(_, value)| std::str::from_utf8(value).ok())
    }
}

#[cfg(target_family = "wasm")]
mod wasm {
    use super::{Error, Request, Response, Target, said, target, wrong_url};
    use crate::bindings::outbound::wasi::{
        http::{
            outgoing_handler,
            types::{
                ErrorCode, Fields, IncomingBody, Method, OutgoingBody, OutgoingRequest, RequestOptions,
                Scheme,
            },
        },
        io::streams::StreamError,
    };

    /// Bytes that one write may have.
    const CHUNK: usize = 4096;

    pub(super) fn send(request: Request) -> Result<Response, Error> {
        let Target { secure, authority, path } = target(&request.url)?;
        let entries: Vec<_> =
            request.headers.into_iter().map(|(name, value)| (name, value.into_bytes())).collect();
        let headers = Fields::from_list(&entries)
            .map_err(|error| Error::Request(format!("a header cannot be sent: {error}")))?;
        let outgoing = OutgoingRequest::new(headers);
        if outgoing.set_method(&method(&request.method)).is_err() {
            return Err(Error::Request("the method is no word that can be sent".to_owned()));
        }
        let scheme = if secure { Scheme::Https } else { Scheme::Http };
        let fits = outgoing.set_scheme(Some(&scheme)).is_ok()
            && outgoing.set_authority(Some(authority)).is_ok()
            && outgoing.set_path_with_query(Some(&path)).is_ok();
        if !fits {
            return Err(wrong_url(&request.url));
        }
        let options = request.timeout.and_then(|timeout| {
            let options = RequestOptions::new();
            let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
            options.set_first_byte_timeout(Some(nanos)).is_ok().then_some(options)
        });
        let body = outgoing.body().map_err(|()| Error::Failed("the request has no body".to_owned()))?;
        let answer = outgoing_handler::handle(outgoing, options).map_err(failed)?;
        // Who refuses it stops reading, and says why in the answer.
        let written = write(body, &request.body);
        answer.subscribe().block();
        let incoming = match answer.get() {
            Some(Ok(incoming)) => incoming.map_err(failed)?,
            Some(Err(())) | None => return Err(Error::Failed("there is no answer".to_owned())),
        };
        written?;
        let body = incoming.consume().map_err(|()| Error::Failed("the answer has no body".to_owned()))?;
        let headers = incoming.headers().entries();
        Ok(Response { status: incoming.status(), headers, body: read(body)? })
    }

    fn write(body: OutgoingBody, bytes: &[u8]) -> Result<(), Error> {
        {
            let stream = body.write().map_err(|()| Error::Failed("the body cannot be written".to_owned()))?;
            for chunk in bytes.chunks(CHUNK) {
                stream.blocking_write_and_flush(chunk).map_err(broken)?;
            }
        }
        OutgoingBody::finish(body, None).map_err(failed)
    }

    fn read(body: IncomingBody) -> Result<Vec<u8>, Error> {
        let stream = body.stream().map_err(|()| Error::Failed("the answer cannot be read".to_owned()))?;
        let mut bytes = Vec::new();
        loop {
            match stream.blocking_read(1 << 16) {
                Ok(more) => bytes.extend_from_slice(&more),
                Err(StreamError::Closed) => return Ok(bytes),
                Err(error) => return Err(broken(error)),
            }
        }
    }

    fn method(name: &str) -> Method {
        match name.to_ascii_uppercase().as_str() {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "POST" => Method::Post,
            "PUT" => Method::Put,
            "DELETE" => Method::Delete,
            "CONNECT" => Method::Connect,
            "OPTIONS" => Method::Options,
            "TRACE" => Method::Trace,
            "PATCH" => Method::Patch,
            _ => Method::Other(name.to_owned()),
        }
    }

    fn broken(error: StreamError) -> Error {
        match error {
            StreamError::Closed => Error::Failed("the connection was closed".to_owned()),
            StreamError::LastOperationFailed(error) => said(&error.to_debug_string()),
        }
    }

    fn failed(code: ErrorCode) -> Error {
        match code {
            ErrorCode::InternalError(Some(message)) => said(&message),
            ErrorCode::HttpRequestDenied => Error::Denied("the host denies requests".to_owned()),
            ErrorCode::HttpResponseTimeout | ErrorCode::ConnectionTimeout => {
                Error::Timeout("there was no answer in time".to_owned())
            }
            other => Error::Failed(format!("{other:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::set_http;

    #[test]
    fn a_request_that_cannot_be_made_is_poison_and_told_without_its_secrets() {
        set_http(|request| panic!("{} was sent", request.url));
        for (url, shown) in [
            ("no url", "to a URL without scheme"),
            ("ftp://me:marker@host:21/marker?marker", "to ftp://host:21:"),
            ("https:///marker", "to https://:"),
            ("", "to a URL"),
        ] {
            let failure = Failure::from(Request::get(url).send().unwrap_err());
            assert_eq!((failure.class, failure.code.as_str()), (FailureClass::Poison, "http-request"));
            assert!(failure.message.contains(shown) && !failure.message.contains("marker"), "{failure}");
        }
        let found = target("HTTP://x:1?a=b#c").unwrap();
        assert_eq!(found, Target { secure: false, authority: "x:1", path: "/?a=b".to_owned() });
        let found = target("https://x").unwrap();
        assert_eq!(found, Target { secure: true, authority: "x", path: "/".to_owned() });
    }

    #[test]
    fn a_part_of_a_url_is_escaped() {
        assert_eq!(escaped("a/b?c=1&d ~-._9ü"), "a%2Fb%3Fc%3D1%26d%20~-._9%C3%BC");
    }

    #[test]
    fn the_hosts_words_begin_with_what_they_are() {
        for (message, expected) in [
            ("denied: x: `y`", Error::Denied("x: `y`".to_owned())),
            ("timeout: late", Error::Timeout("late".to_owned())),
            ("no connection: denied: by", Error::Failed("no connection: denied: by".to_owned())),
            (
                r#"ErrorCode::InternalError(Some("denied: set \"a\""))"#,
                Error::Denied(r#"set "a""#.to_owned()),
            ),
            ("ErrorCode::Reset", Error::Failed("ErrorCode::Reset".to_owned())),
        ] {
            assert_eq!(said(message), expected);
        }
    }
}
