//! Who answers what.

use std::{fmt::Write as _, sync::Arc};

use http_body_util::Full;
use hyper::{
    Method, Response, StatusCode,
    body::Bytes,
    header::{
        ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS,
    },
};
use tracing::debug;

use crate::{
    config::Config,
    runtime::{
        health::{Health, Level},
        metrics::Metrics,
    },
};

use super::{page, shape::HealthShape, status::StatusReader};

const PATHS: [&str; 6] = ["/", "/livez", "/readyz", "/healthz", "/metrics", "/api/status"];

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";
/// The OpenMetrics specification, version 1.0, "Text Format".
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Everything that may be asked for.
#[derive(Debug)]
pub(in crate::runtime) struct Site {
    installation: String,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    status: StatusReader,
}

/// An answer before it is one of HTTP.
struct Answer {
    status: StatusCode,
    kind: &'static str,
    body: String,
}

impl Answer {
    fn new(well: bool, kind: &'static str, body: String) -> Self {
        let status = if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        Self { status, kind, body }
    }

    fn line(well: bool, line: &str) -> Self {
        Self::new(well, TEXT, format!("{line}\n"))
    }
}

impl Site {
    pub(in crate::runtime) fn new(config: &Config, health: Arc<Health>, metrics: Arc<Metrics>) -> Self {
        let installation = config.source.slot.clone();
        let status = StatusReader::new(config.source.connect.clone(), installation.clone());
        Self { installation, health, metrics, status }
    }

    /// Answers a request.
    pub(super) async fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        if !PATHS.contains(&path) {
            let body = format!("there is nothing here; there is {}\n", PATHS.join(", "));
            return respond(Answer { status: StatusCode::NOT_FOUND, kind: TEXT, body });
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            let body = "only GET and HEAD\n".to_owned();
            let mut response = respond(Answer { status: StatusCode::METHOD_NOT_ALLOWED, kind: TEXT, body });
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        respond(match path {
            "/livez" => self.live(),
            "/readyz" => self.ready(),
            "/healthz" => self.health(),
            "/metrics" => self.metrics(),
            "/api/status" => {
                let (well, body) = self.status.read().await;
                Answer::new(well, JSON, body.to_string())
            }
            _ => self.page(),
        })
    }

    fn live(&self) -> Answer {
        let (state, now) = self.health.look();
        match state.live(now) {
            Ok(()) => Answer::line(true, "alive"),
            Err(reason) => Answer::line(false, &reason),
        }
    }

    fn ready(&self) -> Answer {
        let (state, now) = self.health.look();
        match state.ready(now) {
            Ok(what) => Answer::line(true, what),
            Err(reason) => Answer::line(false, &reason),
        }
    }

    fn health(&self) -> Answer {
        let shape = self.shape();
        match serde_json::to_string_pretty(&shape) {
            Ok(json) => Answer::new(shape.status != Level::Down, JSON, json + "\n"),
            Err(error) => Answer::line(false, &error.to_string()),
        }
    }

    fn shape(&self) -> HealthShape {
        let (state, now) = self.health.look();
        HealthShape::new(&self.installation, &state, now)
    }

    fn metrics(&self) -> Answer {
        match self.metrics.encode() {
            Ok(text) => Answer::new(true, OPEN_METRICS, text),
            Err(error) => Answer::line(false, &error.to_string()),
        }
    }

    fn page(&self) -> Answer {
        let mut body = String::new();
        match write!(body, "{}", page::Page(&self.shape())) {
            Ok(()) => Answer::new(true, HTML, body),
            Err(error) => {
                debug!(%error, "the page cannot be written");
                Answer::line(false, "the page cannot be written")
            }
        }
    }
}

fn respond(Answer { status, kind, body }: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response
}
