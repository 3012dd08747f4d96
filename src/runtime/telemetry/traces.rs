//! Exports spans to an OpenTelemetry collector (OTLP 1.x over HTTP, as JSON).
//!
//! What belongs to every OpenTelemetry program is set by its standard variables: `OTEL_SERVICE_NAME`,
//! `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER` and its argument, `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_BSP_*`.
//! Exporting has a thread of its own and a bounded queue: a collector that is away costs spans, never changes.

use std::{sync::Arc, time::Duration};

use opentelemetry::{KeyValue, trace::TracerProvider as _};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use tracing::{Subscriber, level_filters::LevelFilter, warn};
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use crate::config::TracesSettings;

use super::spans::TARGET;

/// How long one export may take.
const EXPORT_LIMIT: Duration = Duration::from_secs(5);
/// How long what is left may take when the process ends.
const FINISH_LIMIT: Duration = Duration::from_secs(2);
/// The path of the receiver for spans (OTLP specification, "OTLP/HTTP Request").
const PATH: &str = "/v1/traces";

/// Traces cannot be exported.
#[derive(Debug, thiserror::Error)]
#[error("[traces] endpoint: {reason}")]
pub struct TracesError {
    reason: String,
}

/// What exports, until it is finished.
#[derive(Debug, Default)]
#[must_use]
pub struct Traces {
    provider: Option<SdkTracerProvider>,
}

impl Traces {
    pub(super) fn start<S>(
        settings: &TracesSettings,
    ) -> Result<Option<(Self, impl Layer<S> + use<S>)>, TracesError>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let Some(endpoint) = &settings.endpoint else { return Ok(None) };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpJson)
            .with_endpoint(format!("{}{PATH}", endpoint.expose().trim_end_matches('/')))
            .with_timeout(EXPORT_LIMIT)
            .with_http_client(client()?)
            .build()
            // Its text quotes the URL, which may have a secret in it.
            .map_err(|_| refused("is no URL that spans can be sent to"))?;
        let provider =
            SdkTracerProvider::builder().with_resource(resource()).with_batch_exporter(exporter).build();
        let tracer = provider.tracer(env!("CARGO_PKG_NAME"));
        let exporting = tracing_opentelemetry::layer()
            .with_tracer(tracer)
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_filter(Targets::new().with_target(TARGET, LevelFilter::INFO));
        Ok(Some((Self { provider: Some(provider) }, exporting)))
    }

    /// Exports what is left, within a limit. Not to be called where blocking is forbidden.
    pub fn finish(self) {
        let ended = self.provider.map(|provider| provider.shutdown_with_timeout(FINISH_LIMIT));
        if let Some(Err(error)) = ended {
            warn!(%error, "the last traces could not be exported");
        }
    }
}

/// This program, unless the environment says otherwise.
fn resource() -> Resource {
    let named = std::env::var_os("OTEL_SERVICE_NAME").is_some()
        || std::env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|text| text.contains("service.name="));
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let builder = Resource::builder().with_attribute(version);
    if named { builder.build() } else { builder.with_service_name(env!("CARGO_PKG_NAME")).build() }
}

fn client() -> Result<reqwest::blocking::Client, TracesError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(&error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    reqwest::blocking::Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .timeout(EXPORT_LIMIT)
        .build()
        .map_err(|error| refused(&error.without_url().to_string()))
}

fn refused(reason: &str) -> TracesError {
    TracesError { reason: reason.to_owned() }
}
