//! Batches of documents to an HTTP receiver, signed by Standard Webhooks.
//!
//! What it guarantees: a delivery is acknowledged when the receiver has answered 2xx for all of it; requests
//! of one delivery go out one after the other, and documents of a destination keep their order; a request
//! that has to be repeated keeps its `webhook-id` and its bytes and gets a fresh timestamp; parts that the
//! receiver took are not sent again when a later part fails and the delivery is repeated. What it must never
//! do: follow a redirect, show the URL, a header or a key, or take silence for consent.
//!
//! The protocol of the receiver is in `docs/sinks.md`.

mod answer;
mod client;
mod envelope;
mod progress;
mod signature;

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use reqwest::{
    Client, Response,
    header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue},
};
use tokio::sync::OnceCell;

use self::{
    answer::Verdict,
    client::{Endpoint, Redactor},
    envelope::{Envelope, Part},
    progress::Progress,
    signature::Signer,
};
use super::{Capabilities, HttpSettings, Rejected, Sink, no_purge};
use crate::model::{Documents, Failure, FailureClass};

/// The most that is read of a 2xx answer; one that is longer is no list of results.
const ANSWER_LIMIT: usize = 4 * 1024 * 1024;
/// The most that is read of a refusal.
const REFUSAL_LIMIT: usize = 16 * 1024;

/// POSTs documents.
#[derive(Debug)]
pub struct HttpSink {
    name: String,
    settings: HttpSettings,
    endpoint: Endpoint,
    headers: HeaderMap,
    signer: Signer,
    redactor: Redactor,
    client: OnceCell<Client>,
    progress: Progress,
}

impl HttpSink {
    /// The sink `name`. Connects nowhere.
    ///
    /// # Errors
    /// Class fatal: the URL, a header or a key cannot be used.
    pub fn new(name: &str, settings: &HttpSettings) -> Result<Self, Failure> {
        let refuse = |(code, what): (&str, String)| {
            Failure::new(FailureClass::Fatal, code, format!("sink `{name}`: {what}"))
        };
        let endpoint = Endpoint::new(&settings.url).map_err(|what| refuse(("http-url", what)))?;
        let headers = client::headers(settings).map_err(|what| refuse(("http-header", what)))?;
        let signer = Signer::new(&settings.secrets).map_err(|what| refuse(("http-secret", what)))?;
        Ok(Self {
            name: name.to_owned(),
            redactor: Redactor::new(settings),
            settings: settings.clone(),
            endpoint,
            headers,
            signer,
            client: OnceCell::new(),
            progress: Progress::default(),
        })
    }

    async fn client(&self) -> Result<&Client, Failure> {
        let settings = self.settings.clone();
        let https = self.endpoint.is_https();
        let make = || async move {
            // Reading the system's certificates blocks.
            match tokio::task::spawn_blocking(move || client::make(&settings, https)).await {
                Ok(made) => made.map_err(|what| self.failure(FailureClass::Fatal, "http-client", what)),
                Err(error) => Err(self.failure(FailureClass::Retry, "http-stopped", error.to_string())),
            }
        };
        self.client.get_or_try_init(make).await
    }

    fn failure(&self, class: FailureClass, code: &str, what: impl AsRef<str>) -> Failure {
        let what = self.redactor.clean(what.as_ref());
        Failure::new(class, code, format!("sink `{}`: {}: {what}", self.name, self.endpoint))
    }

    /// Sends one part, unless the receiver has answered for it in an earlier attempt at this delivery.
    async fn settle(&self, documents: &Documents, part: &Part) -> Result<(progress::Key, Verdict), Failure> {
        let mut envelope = Envelope::render(documents, part);
        let key = envelope.key();
        let (id, known) = self.progress.begin(key);
        if let Some(verdict) = known {
            return Ok((key, verdict));
        }
        envelope.set_id(&id);
        let body = self.encode(envelope.into_bytes()).await?;
        let verdict = self.post(part.destination(documents), &id, body, part.len()).await?;
        self.progress.answered(key, &verdict);
        Ok((key, verdict))
    }

    async fn encode(&self, json: Vec<u8>) -> Result<Bytes, Failure> {
        if !self.settings.gzip {
            return Ok(json.into());
        }
        let packed = tokio::task::spawn_blocking(move || envelope::gzip(&json)).await;
        let packed =
            packed.map_err(|error| error.to_string()).and_then(|done| done.map_err(|e| e.to_string()));
        packed.map(Bytes::from).map_err(|what| self.failure(FailureClass::Retry, "http-gzip", what))
    }

    async fn post(
        &self,
        destination: &str,
        id: &str,
        body: Bytes,
        documents: usize,
    ) -> Result<Verdict, Failure> {
        let url = match self.endpoint.url(destination) {
            Ok(url) => url,
            Err(what) => {
                let failure = self.failure(FailureClass::Poison, "http-destination", what);
                return Ok(Verdict::Refused(failure));
            }
        };
        let headers = self.signed(id, &body);
        let sent = self.client().await?.post(url).headers(headers).body(body).send().await;
        let response = sent.map_err(|error| self.network(error))?;
        self.judge(response, documents).await
    }

    /// The headers of one attempt, over exactly the bytes that will be sent.
    fn signed(&self, id: &str, body: &[u8]) -> HeaderMap {
        let mut headers = self.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.settings.gzip {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut insert = |name: &'static str, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        };
        insert("webhook-id", id);
        insert("webhook-timestamp", &timestamp.to_string());
        if let Some(signature) = self.signer.sign(id, timestamp, body) {
            insert("webhook-signature", &signature);
        }
        headers
    }

    async fn judge(&self, response: Response, documents: usize) -> Result<Verdict, Failure> {
        let status = response.status();
        let retry_after = answer::retry_after(response.headers(), SystemTime::now());
        if status.is_success() {
            let body = self.read_answer(response).await?;
            return answer::results(&body, documents)
                .map(|refused| Verdict::Taken(self.quoted(refused)))
                .map_err(|what| self.failure(FailureClass::Fatal, "http-answer", what));
        }
        let text = read_some(response, REFUSAL_LIMIT).await;
        let class = answer::class(status);
        let what = answer::describe(status, &self.quote(&String::from_utf8_lossy(&text)));
        let mut failure = self.failure(class, &format!("http-{}", status.as_u16()), what);
        failure.retry_after = retry_after;
        match class {
            FailureClass::Poison => Ok(Verdict::Refused(failure)),
            FailureClass::Retry | FailureClass::Fatal => Err(failure),
        }
    }

    fn quoted(&self, refused: Vec<(usize, String)>) -> Vec<(usize, String)> {
        refused.into_iter().map(|(index, message)| (index, self.quote(&message))).collect()
    }

    fn quote(&self, words: &str) -> String {
        answer::excerpt(&self.redactor.clean(words))
    }

    /// The whole body of a 2xx: one that is cut off may have had rejections in it, so it is no answer.
    async fn read_answer(&self, mut response: Response) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(|error| self.network(error))? {
            body.extend_from_slice(&piece);
            if body.len() > ANSWER_LIMIT {
                let what = format!(
                    "answered more than {ANSWER_LIMIT} bytes; answer 2xx without a body, or with results"
                );
                return Err(self.failure(FailureClass::Fatal, "http-answer", what));
            }
        }
        Ok(body)
    }

    fn network(&self, error: reqwest::Error) -> Failure {
        let (code, what) = if error.is_timeout() {
            ("http-timeout", format!("no answer within {:?}", self.settings.timeout))
        } else if error.is_connect() {
            ("http-connect", "cannot connect".to_owned())
        } else {
            ("http-network", "the connection broke".to_owned())
        };
        let error = error.without_url();
        let mut reasons = String::new();
        let mut source = std::error::Error::source(&error);
        while let Some(reason) = source {
            reasons.push_str(": ");
            reasons.push_str(&reason.to_string());
            source = reason.source();
        }
        self.failure(FailureClass::Retry, code, what + &reasons)
    }
}

/// The beginning of a body, as far as it can be had.
async fn read_some(mut response: Response, limit: usize) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await {
        body.extend_from_slice(&piece);
        if body.len() >= limit {
            break;
        }
    }
    body
}

#[async_trait::async_trait]
impl Sink for HttpSink {
    fn kind(&self) -> &'static str {
        "http"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    async fn open(&self) -> Result<(), Failure> {
        self.progress.doubt();
        self.client().await.map(|_| ())
    }

    async fn deliver(
        &self,
        documents: &Documents,
        _progress: Option<&super::Progress>,
    ) -> Result<Vec<Rejected>, Failure> {
        let mut rejected = Vec::new();
        let mut parts =
            envelope::cut(documents, &mut rejected, self.settings.max_documents, self.settings.max_bytes);
        parts.reverse();
        let mut settled = Vec::with_capacity(parts.len());
        while let Some(part) = parts.pop() {
            let (key, verdict) = self.settle(documents, &part).await?;
            settled.push(key);
            match verdict {
                Verdict::Taken(refused) => {
                    rejected.extend(refused.into_iter().filter_map(|(at, message)| {
                        Some(Rejected::poison(part.index(at)?, "http-rejected", message))
                    }))
                }
                Verdict::Refused(failure) => match part.halves() {
                    Ok((first, second)) => parts.extend([second, first]),
                    Err(index) => rejected.push(Rejected { index, failure }),
                },
            }
        }
        self.progress.finish(&settled);
        rejected.sort_by_key(|refused| refused.index);
        Ok(rejected)
    }

    async fn purge(&self, _destination: &str, _progress: Option<&super::Progress>) -> Result<(), Failure> {
        Err(no_purge(&self.name, self.kind()))
    }

    async fn close(&self) -> Result<(), Failure> {
        Ok(())
    }
}
