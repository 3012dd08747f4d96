//! `[plugins.<name>.grants]`: what a plugin may use beside the log and its settings.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    plugin::grants::{Grants, HttpGrant, MetricsGrant, Origin, QueryGrant, StateGrant},
    postgres::ConnectSettings,
};

use super::{
    resolve::Resolver,
    section::{Located, Section, TEXT, Text},
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SECOND: Duration = Duration::from_secs(1);

/// `[plugins.<name>.grants]`, as typed.
#[derive(Debug, Default)]
pub(super) struct GrantsTable {
    http: Vec<Text>,
    private_addresses: Option<Located<bool>>,
    ca_file: Option<Text>,
    headers: Vec<(Text, Vec<(String, Text)>)>,
    http_timeout: Option<Text>,
    http_max_request: Option<Text>,
    http_max_response: Option<Text>,
    http_in_flight: Option<Located<i64>>,
    query: Option<Located<bool>>,
    query_url: Option<Text>,
    query_timeout: Option<Text>,
    query_max_rows: Option<Located<i64>>,
    query_max_bytes: Option<Text>,
    state: Option<Located<bool>>,
    state_max_bytes: Option<Text>,
    state_max_keys: Option<Located<i64>>,
    metrics: Option<Located<bool>>,
    metrics_max_series: Option<Located<i64>>,
}

/// The keys of the section.
pub(super) const KEYS: &[&str] = &[
    "http",
    "private_addresses",
    "ca_file",
    "headers",
    "http_timeout",
    "http_max_request",
    "http_max_response",
    "http_in_flight",
    "query",
    "query_url",
    "query_timeout",
    "query_max_rows",
    "query_max_bytes",
    "state",
    "state_max_bytes",
    "state_max_keys",
    "metrics",
    "metrics_max_series",
];

pub(super) fn read(mut section: Section<'_>) -> GrantsTable {
    let size = "a size in quotes, such as \"8MiB\"";
    let duration = "a duration in quotes, such as \"5s\"";
    let table = GrantsTable {
        http: section.text_list("http", "a list, such as http = [\"https://search.example.com:9200\"]"),
        private_addresses: section.boolean("private_addresses"),
        ca_file: section.text("ca_file", TEXT),
        headers: section.table("headers").map(headers).unwrap_or_default(),
        http_timeout: section.text("http_timeout", duration),
        http_max_request: section.text("http_max_request", size),
        http_max_response: section.text("http_max_response", size),
        http_in_flight: section.integer("http_in_flight"),
        query: section.boolean("query"),
        query_url: section.text("query_url", "a URL in quotes, such as \"${QUERY_URL}\""),
        query_timeout: section.text("query_timeout", duration),
        query_max_rows: section.integer("query_max_rows"),
        query_max_bytes: section.text("query_max_bytes", size),
        state: section.boolean("state"),
        state_max_bytes: section.text("state_max_bytes", size),
        state_max_keys: section.integer("state_max_keys"),
        metrics: section.boolean("metrics"),
        metrics_max_series: section.integer("metrics_max_series"),
    };
    section.finish();
    table
}

fn headers(mut section: Section<'_>) -> Vec<(Text, Vec<(String, Text)>)> {
    let tables = section.remaining_tables();
    section.finish_with(|_| {
        "expected the headers of an origin, as in headers = { \"https://host\" = { authorization = \"${KEY}\" } }"
            .to_owned()
    });
    tables.into_iter().map(|(origin, section)| (origin, section.into_texts())).collect()
}

impl Resolver<'_> {
    pub(super) fn grants(&self, table: &GrantsTable) -> Grants {
        let granted = |typed: &Option<Located<bool>>| typed.as_ref().is_some_and(|typed| typed.value);
        let query = granted(&table.query).then(|| QueryGrant {
            timeout: self.duration(table.query_timeout.as_ref(), 5 * SECOND, SECOND / 100..=600 * SECOND),
            max_rows: self.count(table.query_max_rows.as_ref(), 10_000, 1..=1_000_000) as usize,
            max_bytes: self.size(table.query_max_bytes.as_ref(), 8 * MIB, KIB..=GIB),
        });
        let state = granted(&table.state).then(|| StateGrant {
            max_bytes: self.size(table.state_max_bytes.as_ref(), MIB, KIB..=256 * MIB),
            max_keys: self.count(table.state_max_keys.as_ref(), 10_000, 1..=1_000_000) as usize,
        });
        let metrics = granted(&table.metrics).then(|| MetricsGrant {
            max_series: self.count(table.metrics_max_series.as_ref(), 100, 1..=10_000) as usize,
        });
        Grants { http: self.http_grant(table), query, state, metrics }
    }

    /// Whom its questions go to the source as; none for the role that replicates.
    pub(super) fn query_connect(&self, table: &GrantsTable) -> Option<ConnectSettings> {
        let typed = table.query_url.as_ref()?;
        if table.query.as_ref().is_none_or(|typed| !typed.value) {
            self.complain(&typed.at, "nothing is asked without `query = true`");
        }
        self.connect_settings(&self.secret(typed)?, &typed.at)
    }

    fn origin(&self, typed: &Text) -> Option<Origin> {
        let text = self.plain(typed)?;
        Origin::parse(&text).map_err(|problem| self.complain(&typed.at, problem)).ok()
    }

    fn http_grant(&self, table: &GrantsTable) -> Option<HttpGrant> {
        let origins: BTreeSet<_> = table.http.iter().filter_map(|typed| self.origin(typed)).collect();
        let mut headers: BTreeMap<Origin, BTreeMap<_, _>> = BTreeMap::new();
        for (place, named) in &table.headers {
            let Some(origin) = self.origin(&Text { value: place.value.clone(), at: place.at.clone() }) else {
                continue;
            };
            if !origins.contains(&origin) {
                self.complain(&place.at, format!("no request goes there: add \"{origin}\" to `http`"));
            }
            let set = headers.entry(origin).or_default();
            for (name, typed) in named {
                if let Err(problem) = crate::plugin::grants::header_name(name) {
                    self.complain(&typed.at, problem);
                }
                let Some(value) = self.secret(typed) else { continue };
                if let Err(problem) = crate::plugin::grants::header_value(&value) {
                    self.complain(&typed.at, problem);
                }
                set.insert(name.to_ascii_lowercase(), value);
            }
        }
        let ca_file = table.ca_file.as_ref().and_then(|typed| self.path(typed));
        let grant = HttpGrant {
            origins,
            private_addresses: table.private_addresses.as_ref().is_some_and(|typed| typed.value),
            ca_file,
            headers,
            timeout: self.duration(table.http_timeout.as_ref(), 5 * SECOND, SECOND / 100..=600 * SECOND),
            max_request: self.size(table.http_max_request.as_ref(), 8 * MIB, KIB..=GIB),
            max_response: self.size(table.http_max_response.as_ref(), 8 * MIB, KIB..=GIB),
            in_flight: self.count(table.http_in_flight.as_ref(), 32, 1..=1024) as usize,
        };
        (!grant.origins.is_empty()).then_some(grant)
    }
}
