//! What host functions know of the call that they run in, and what they do for it: `query`, `state` and `metrics`.
//!
//! Guarantees: nothing is done that is not granted; what a guest wrote counts once its call is done, and not before;
//! everything is bounded, and every refusal names the setting.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::services::{Labels, Services, Writes};
use crate::{
    model::{Encoding, Failure, FailureClass, QueryRows, QueryStatement, Xid},
    plugin::{
        abi::v1::write_rows,
        grants::{Capability, Grants},
        limits::size,
    },
};

/// Bytes of one key.
const MAX_KEY: usize = 512;
/// Keys of one question.
const MAX_KEYS: usize = 10_000;
/// Statements and sets of parameters of one question.
const MAX_SETS: usize = 10_000;
/// Bytes of a label's value.
const MAX_LABEL: usize = 128;
/// Labels of a number.
const MAX_LABELS: usize = 4;
/// How long a call waits for the store.
const STATE_LIMIT: Duration = Duration::from_secs(5);

/// What is the same for all calls of an instance.
#[derive(Debug)]
pub(in crate::plugin) struct Granted {
    pub(in crate::plugin) plugin: String,
    pub(in crate::plugin) grants: Grants,
    pub(in crate::plugin) encoding: Encoding,
}

/// One call.
#[derive(Debug, Default)]
pub(in crate::plugin) struct Call {
    pub(in crate::plugin) services: Services,
    /// The transactions whose changes it is about.
    pub(in crate::plugin) sees: Vec<Xid>,
    /// What it wrote so far.
    pub(in crate::plugin) writes: Writes,
    /// Bytes of it, or more.
    pub(in crate::plugin) written: usize,
}

fn refused(class: FailureClass, code: &str, message: String) -> Failure {
    Failure::new(class, code, message)
}

impl Granted {
    /// Nothing, in the sandbox of `describe`.
    pub(in crate::plugin) fn nothing() -> Arc<Self> {
        Arc::new(Self { plugin: String::new(), grants: Grants::default(), encoding: Encoding::Json })
    }

    fn setting(&self, key: &str) -> String {
        format!("`[plugins.{}.grants] {key}`", self.plugin)
    }

    fn not_granted(&self, capability: Capability) -> Failure {
        let message = format!("{capability} is not granted: set {}", self.setting(capability.line()));
        refused(FailureClass::Fatal, &format!("{capability}-denied"), message)
    }

    fn not_here(&self, capability: Capability) -> Failure {
        let message =
            format!("{capability} is granted, but there is none here: this is not a mapping at work");
        refused(FailureClass::Fatal, &format!("{capability}-unavailable"), message)
    }

    /// Asks the source.
    pub(in crate::plugin) async fn query(
        &self,
        call: &Call,
        statements: Vec<QueryStatement>,
    ) -> Result<Vec<u8>, Failure> {
        let grant = self.grants.query.as_ref().ok_or_else(|| self.not_granted(Capability::Query))?;
        let queries = call.services.queries.as_ref().ok_or_else(|| self.not_here(Capability::Query))?;
        let sets: usize = statements.iter().map(|statement| statement.parameters.len().max(1)).sum();
        if sets > MAX_SETS {
            let message =
                format!("{sets} statements and sets of parameters in one call; at most {MAX_SETS} (fixed)");
            return Err(refused(FailureClass::Fatal, "query-size", message));
        }
        let answered = queries.query(&statements, &call.sees, grant);
        // The outer timer of the call is for guests; this one is for the source.
        let sets = match tokio::time::timeout(grant.timeout, answered).await {
            Ok(answered) => answered.map_err(|failure| self.named(failure))?,
            Err(_) => return Err(self.late(grant.timeout)),
        };
        self.write(&sets)
    }

    /// With the setting that a bound comes from.
    fn named(&self, failure: Failure) -> Failure {
        let key = match failure.code.as_str() {
            "query-rows" => "query_max_rows",
            "query-bytes" => "query_max_bytes",
            "query-timeout" => "query_timeout",
            _ => return failure,
        };
        Failure {
            message: format!("{}: ask for less, or raise {}", failure.message, self.setting(key)),
            ..failure
        }
    }

    fn late(&self, limit: Duration) -> Failure {
        let message = format!("the source did not answer within {limit:?}");
        self.named(refused(FailureClass::Retry, "query-timeout", message))
    }

    fn write(&self, sets: &[QueryRows]) -> Result<Vec<u8>, Failure> {
        write_rows(self.encoding, sets).map_err(|unsendable| {
            let message = format!("the answer's column `{}`: {}", unsendable.column, unsendable.error);
            refused(FailureClass::Poison, "query-value", message)
        })
    }

    fn store<'a>(
        &'a self,
        call: &'a Call,
    ) -> Result<(&'a dyn super::services::KeyValues, &'a crate::plugin::grants::StateGrant), Failure> {
        let grant = self.grants.state.as_ref().ok_or_else(|| self.not_granted(Capability::State))?;
        let state = call.services.state.as_deref().ok_or_else(|| self.not_here(Capability::State))?;
        Ok((state, grant))
    }

    /// Reads, as the call sees it: its own writes first.
    pub(in crate::plugin) async fn state_get(
        &self,
        call: &Call,
        keys: Vec<String>,
    ) -> Result<Vec<Option<Vec<u8>>>, Failure> {
        let (state, _) = self.store(call)?;
        if keys.len() > MAX_KEYS {
            let message = format!("{} keys in one call; at most {MAX_KEYS} (fixed)", keys.len());
            return Err(refused(FailureClass::Fatal, "state-size", message));
        }
        let mut values = in_time(state, state.get(&keys)).await?;
        for (value, key) in values.iter_mut().zip(&keys) {
            if let Some(own) = call.writes.get(key) {
                value.clone_from(own);
            }
        }
        Ok(values)
    }

    /// Writes, for when the call is done.
    pub(in crate::plugin) fn state_set(
        &self,
        call: &mut Call,
        key: String,
        value: Option<Vec<u8>>,
    ) -> Result<(), Failure> {
        let (_, grant) = self.store(call)?;
        let (max_bytes, max_keys) = (grant.max_bytes, grant.max_keys);
        if key.is_empty() || key.len() > MAX_KEY || key.contains('\0') {
            let message = format!("a key has 1 to {MAX_KEY} bytes and no NUL; this one has {}", key.len());
            return Err(refused(FailureClass::Poison, "state-key", message));
        }
        // What the store holds beside is looked at when the call is done.
        let written = call.written.saturating_add(key.len() + value.as_ref().map_or(0, Vec::len));
        if written > max_bytes {
            let message = format!("one call wrote more than {}", size(max_bytes));
            return Err(self.bounded(refused(FailureClass::Fatal, "state-bytes", message)));
        }
        if call.writes.len() >= max_keys && !call.writes.contains_key(&key) {
            let message = format!("one call wrote more than {max_keys} keys");
            return Err(self.bounded(refused(FailureClass::Fatal, "state-keys", message)));
        }
        call.written = written;
        call.writes.insert(key, value);
        Ok(())
    }

    fn bounded(&self, failure: Failure) -> Failure {
        let key = match failure.code.as_str() {
            "state-bytes" => "state_max_bytes",
            "state-keys" => "state_max_keys",
            _ => return failure,
        };
        Failure {
            message: format!("{}: keep less, or raise {}", failure.message, self.setting(key)),
            ..failure
        }
    }

    /// The keys, as the call sees them.
    pub(in crate::plugin) async fn state_keys(
        &self,
        call: &Call,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, Failure> {
        let (state, _) = self.store(call)?;
        let limit = limit.min(MAX_KEYS);
        let wanted = |key: &String| key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after);
        let own: BTreeMap<&String, bool> = call
            .writes
            .iter()
            .filter(|(key, _)| wanted(key))
            .map(|(key, value)| (key, value.is_some()))
            .collect();
        let more = limit.saturating_add(own.values().filter(|kept| !**kept).count());
        let mut keys = in_time(state, state.keys(prefix, after, more)).await?;
        keys.retain(|key| own.get(key).is_none_or(|kept| *kept));
        keys.extend(own.into_iter().filter(|(_, kept)| *kept).map(|(key, _)| key.clone()));
        keys.sort_unstable();
        keys.dedup();
        keys.truncate(limit);
        Ok(keys)
    }

    /// Makes what the call wrote durable: the call is done.
    pub(in crate::plugin) async fn keep(&self, services: &Services, writes: Writes) -> Result<(), Failure> {
        if writes.is_empty() {
            return Ok(());
        }
        let call = Call { services: services.clone(), ..Call::default() };
        let (state, grant) = self.store(&call)?;
        in_time(state, state.write(writes, grant)).await.map_err(|failure| self.bounded(failure))
    }

    /// Counts or sets a number.
    pub(in crate::plugin) fn measure(
        &self,
        call: &Call,
        name: &str,
        mut labels: Labels,
        number: Number,
    ) -> Result<(), Failure> {
        let grant = self.grants.metrics.as_ref().ok_or_else(|| self.not_granted(Capability::Metrics))?;
        let meter = call.services.meter.as_ref().ok_or_else(|| self.not_here(Capability::Metrics))?;
        let wrong = |what: String| Err(refused(FailureClass::Poison, "metrics-name", what));
        if !is_name(name) {
            return wrong(format!("`{}` is no name of a number: {NAME}", short(name)));
        }
        if labels.len() > MAX_LABELS {
            return wrong(format!("`{name}` has {} labels; at most {MAX_LABELS} (fixed)", labels.len()));
        }
        labels.sort_unstable();
        for (at, (label, value)) in labels.iter().enumerate() {
            if !is_name(label) || matches!(label.as_str(), "plugin" | "mapping") {
                let taken = "`plugin` and `mapping` are the host's";
                return wrong(format!("`{}` is no name of a label: {NAME}; {taken}", short(label)));
            }
            if labels[..at].iter().any(|(other, _)| other == label) {
                return wrong(format!("the label `{label}` comes twice"));
            }
            if value.len() > MAX_LABEL {
                return wrong(format!(
                    "the label `{label}` has a value of {} bytes; at most {MAX_LABEL} (fixed)",
                    value.len()
                ));
            }
        }
        let done = match number {
            Number::Count(by) => meter.count(name, labels, by, grant),
            Number::Gauge(value) => meter.gauge(name, labels, value, grant),
        };
        done.map_err(|failure| match failure.code.as_str() {
            "metrics-series" => Failure {
                message: format!(
                    "{}: give labels fewer values, or raise {}",
                    failure.message,
                    self.setting("metrics_max_series")
                ),
                ..failure
            },
            _ => failure,
        })
    }
}

/// What a guest tells.
#[derive(Clone, Copy, Debug)]
pub(in crate::plugin) enum Number {
    Count(u64),
    Gauge(f64),
}

const NAME: &str = "write lower-case letters, digits and `_`, beginning with a letter, at most 48";

fn is_name(name: &str) -> bool {
    let rest = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    name.len() <= 48 && name.starts_with(|c: char| c.is_ascii_lowercase()) && name.bytes().all(rest)
}

fn short(text: &str) -> String {
    super::log::clean(&text.chars().take(60).collect::<String>())
}

async fn in_time<T>(
    state: &dyn super::services::KeyValues,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::time::timeout(STATE_LIMIT, work).await.unwrap_or_else(|_| {
        let message = format!(
            "the state of the mapping {} was not there within {STATE_LIMIT:?} (fixed); what was begun goes on, and it is \
             tried again",
            state.mapping()
        );
        Err(refused(FailureClass::Retry, "state-timeout", message))
    })
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
