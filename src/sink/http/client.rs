//! Where requests go and what carries them: the URL, the headers, TLS. Everything here knows secrets and
//! shows none.

use std::{fmt, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{
    Client, Url,
    header::{HeaderMap, HeaderName, HeaderValue},
    redirect,
};

use super::HttpSettings;
use crate::{model::Secret, plugin::tls};

const PLACEHOLDER: &str = "{destination}";
/// What may stand in a path segment and in a query as it is (RFC 3986, "unreserved").
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Texts shorter than this are not searched for in messages: every `1` would be taken for one.
const SHORTEST_SECRET: usize = 6;
/// Headers that this sink sets by itself.
const OWN: [&str; 7] = [
    "content-type",
    "content-encoding",
    "content-length",
    "transfer-encoding",
    "host",
    "connection",
    "expect",
];

/// Where to POST. Displayed as scheme and host only: the rest of a webhook's URL often is a password.
#[derive(Clone)]
pub(super) struct Endpoint {
    template: Secret,
    shown: String,
    https: bool,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Endpoint {
    pub(super) fn new(url: &Secret) -> Result<Self, String> {
        let parse = |destination| {
            let text = url.expose().replace(PLACEHOLDER, destination);
            Url::parse(&text)
                .map_err(|error| format!("`url` is not a URL ({error}); write `https://host/path`"))
        };
        let parsed = parse("a")?;
        let shown = match (parsed.scheme(), parsed.host_str(), parsed.port()) {
            (scheme @ ("http" | "https"), Some(host), None) => format!("{scheme}://{host}"),
            (scheme @ ("http" | "https"), Some(host), Some(port)) => format!("{scheme}://{host}:{port}"),
            _ => return Err("`url` must begin with `https://` or `http://`".to_owned()),
        };
        let other = parse("b")?;
        if (parsed.username(), parsed.password()) != (other.username(), other.password())
            || parsed.origin() != other.origin()
        {
            return Err(format!("`{PLACEHOLDER}` may stand in the path or the query of `url` only"));
        }
        Ok(Self { template: url.clone(), shown, https: parsed.scheme() == "https" })
    }

    pub(super) fn is_https(&self) -> bool {
        self.https
    }

    /// The URL for a destination.
    pub(super) fn url(&self, destination: &str) -> Result<Url, String> {
        let template = self.template.expose();
        if template.contains(PLACEHOLDER) && matches!(destination, "" | "." | "..") {
            return Err(format!("destination `{destination}` cannot be part of a URL"));
        }
        let encoded = utf8_percent_encode(destination, SEGMENT).to_string();
        Url::parse(&template.replace(PLACEHOLDER, &encoded))
            .map_err(|error| format!("destination `{destination}` gives no URL ({error})"))
    }
}

/// The configured headers, their values marked so that nobody prints them.
pub(super) fn headers(settings: &HttpSettings) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in &settings.headers {
        let lower = name.to_ascii_lowercase();
        if OWN.contains(&lower.as_str()) || lower.starts_with("webhook-") {
            return Err(format!("header `{name}` is set by the sink itself; leave it out"));
        }
        let key = HeaderName::from_bytes(lower.as_bytes())
            .map_err(|_| format!("`{name}` cannot be a header's name"))?;
        let mut value = HeaderValue::from_str(value.expose())
            .map_err(|_| format!("the value of header `{name}` has characters that no header may have"))?;
        value.set_sensitive(true);
        headers.append(key, value);
    }
    Ok(headers)
}

/// Makes the client. Reads certificate files: call it where blocking is allowed.
pub(super) fn make(settings: &HttpSettings, https: bool) -> Result<Client, String> {
    Client::builder()
        .tls_backend_preconfigured(tls::client(settings.ca_file.as_deref(), https)?)
        .redirect(redirect::Policy::none())
        .retry(reqwest::retry::never())
        .timeout(settings.timeout)
        .connect_timeout(settings.connect_timeout)
        .pool_idle_timeout(Duration::from_secs(30))
        .user_agent(concat!("anabranch/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| format!("no HTTP client: {}", error.without_url()))
}

/// Takes configured secrets out of texts that others wrote: a receiver may echo what it was sent.
#[derive(Debug)]
pub(super) struct Redactor(Vec<Secret>);

impl Redactor {
    pub(super) fn new(settings: &HttpSettings) -> Self {
        let mut texts: Vec<String> = vec![settings.url.expose().to_owned()];
        if let Ok(url) = Url::parse(settings.url.expose()) {
            texts.extend(url.password().map(str::to_owned));
            texts.extend(url.query().map(str::to_owned));
            // As the header that the client makes of them.
            let credentials = format!("{}:{}", url.username(), url.password().unwrap_or_default());
            texts.push(STANDARD.encode(credentials));
            texts.push(url.path().to_owned());
        }
        for (_, value) in &settings.headers {
            texts.push(value.expose().to_owned());
            texts.extend(value.expose().split_once(' ').map(|(_, token)| token.to_owned()));
        }
        texts.extend(settings.secrets.iter().map(|secret| secret.expose().to_owned()));
        texts.retain(|text| text.len() >= SHORTEST_SECRET);
        // The longest first: one may be part of another.
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        Self(texts.into_iter().map(Secret::new).collect())
    }

    /// Also takes out the beginning of a secret at the end of the text, which may have been cut off there.
    pub(super) fn clean(&self, text: &str) -> String {
        let whole = |text: String, secret: &Secret| text.replace(secret.expose(), "[secret]");
        let mut clean = self.0.iter().fold(text.to_owned(), whole);
        let begun = self.0.iter().filter_map(|secret| begun(&clean, secret.expose())).max();
        if let Some(length) = begun {
            clean.truncate(clean.len() - length);
            clean.push_str("[secret]");
        }
        clean
    }
}

/// How many bytes at the end of the text are the beginning of this secret, if enough to tell something.
fn begun(text: &str, secret: &str) -> Option<usize> {
    let cuts = secret.char_indices().map(|(at, _)| at).rev();
    cuts.take_while(|at| *at >= SHORTEST_SECRET).find(|at| text.ends_with(&secret[..*at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &str) -> Result<Endpoint, String> {
        Endpoint::new(&Secret::new(url))
    }

    #[test]
    fn urls_are_checked() {
        for bad in
            ["", "example.com", "ftp://a", "https://", "https://{destination}.a/", "http://{destination}@a/"]
        {
            assert!(endpoint(bad).is_err(), "{bad}");
        }
        let url = endpoint("https://a/x/{destination}?d={destination}").unwrap();
        assert_eq!(
            url.url("a b/ü&#").unwrap().as_str(),
            "https://a/x/a%20b%2F%C3%BC%26%23?d=a%20b%2F%C3%BC%26%23"
        );
        assert!(url.url("..").is_err());
        assert_eq!(endpoint("https://a/x").unwrap().url("..").unwrap().as_str(), "https://a/x");
    }

    #[test]
    fn c096_urls_are_shown_without_what_may_be_secret() {
        let shown = endpoint("https://marker-user:marker-pass@a:8443/marker/path?marker=1").unwrap();
        assert_eq!(format!("{shown} {shown:?}"), "https://a:8443 https://a:8443");
        assert!(!endpoint("marker://marker:marker@x").unwrap_err().contains("marker"));
        assert!(!endpoint("https://[marker").unwrap_err().contains("marker"));
    }

    #[test]
    fn c096_headers_are_checked_and_never_shown() {
        let with = |name: &str, value: &str| {
            let mut settings = HttpSettings::new(Secret::new("https://a"));
            settings.headers.push((name.to_owned(), Secret::new(value)));
            headers(&settings)
        };
        assert!(!format!("{:?}", with("Authorization", "Bearer marker").unwrap()).contains("marker"));
        for (name, value) in [("webhook-id", "x"), ("Content-Length", "1"), ("a b", "x"), ("x", "marker\n")] {
            assert!(!with(name, value).unwrap_err().contains("marker"), "{name}");
        }
    }

    #[test]
    fn c096_echoed_secrets_are_taken_out() {
        let mut settings = HttpSettings::new(Secret::new("https://u:marker-p@a/marker-path?marker-q=1"));
        settings.headers.push(("a".to_owned(), Secret::new("Bearer marker-token")));
        settings.headers.push(("b".to_owned(), Secret::new("1")));
        settings.secrets.push(Secret::new("marker-key"));
        let redactor = Redactor::new(&settings);
        let echoed =
            "1 Bearer marker-token, marker-token; marker-key at /marker-path?marker-q=1 for marker-p";
        let clean = redactor.clean(echoed);
        assert!(clean.starts_with("1 [secret]") && !clean.contains("marker"), "{clean}");
        assert!(!format!("{redactor:?}").contains("marker"));
        for cut in ["x-key: Bearer marker-tok", "at /marker-", "by marker-k"] {
            let clean = redactor.clean(cut);
            assert!(clean.ends_with("[secret]") && !clean.contains("marker"), "{clean}");
        }
        assert_eq!(redactor.clean("at /m"), "at /m", "too short to tell anything");
    }

    #[test]
    fn a_certificate_file_must_have_certificates() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut settings = HttpSettings::new(Secret::new("https://a"));
        settings.ca_file = Some(file.path().to_owned());
        assert!(make(&settings, true).unwrap_err().contains("no certificate in it"));
        settings.ca_file = Some("/nowhere/ca.pem".into());
        assert!(make(&settings, true).unwrap_err().contains("/nowhere/ca.pem"));
        assert!(make(&HttpSettings::new(Secret::new("http://a")), false).is_ok());
    }
}
