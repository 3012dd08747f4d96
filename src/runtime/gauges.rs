//! What is read from the health at each scrape: how things are at this moment.
//!
//! A series is there while what it is about is known: those of the stream and of mappings while a term pumps. So
//! none of them ever shows what was true of an earlier term.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

use crate::backfill::Report;

use super::{
    health::{Health, State},
    metrics::Label,
    survey::{MappingState, MappingView, Survey, age_seconds},
};

/// The statuses of a slot's WAL (Postgres documentation, `pg_replication_slots`).
const WAL_STATUSES: [&str; 4] = ["reserved", "extended", "unreserved", "lost"];

/// See the module.
#[derive(Debug)]
pub(super) struct Gauges {
    health: Arc<Health>,
}

impl Gauges {
    pub(super) fn new(health: Arc<Health>) -> Self {
        Self { health }
    }
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (state, now) = self.health.look();
        let out = &mut Out(&mut encoder);
        out.one("leader", "Whether this process leads", None, u64::from(state.leads))?;
        out.one(
            "ready",
            "Whether it does its duty, as /readyz says",
            None,
            u64::from(state.ready(now).is_ok()),
        )?;
        if let Some(term) = state.term {
            out.one("term", "The number of the last term that this process led", None, term)?;
        }
        slot(out, &state)?;
        if let Some(survey) = &state.survey {
            stream(out, &state, survey)?;
            mappings(out, &survey.mappings)?;
            runs(out, survey)?;
            plugins(out, survey)?;
        }
        Ok(())
    }
}

/// Writes gauges.
struct Out<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Out<'_, '_> {
    fn one(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        value: impl EncodeGaugeValue,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        metric.encode_gauge(&value)
    }

    fn many<const N: usize, V: EncodeGaugeValue + fmt::Debug>(
        &mut self,
        (name, help, unit): (&str, &str, Option<Unit>),
        series: impl IntoIterator<Item = ([(&'static str, Label); N], V)>,
    ) -> fmt::Result {
        let mut series = series.into_iter().peekable();
        if series.peek().is_none() {
            return Ok(());
        }
        let mut metric = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in series {
            ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn stream(out: &mut Out<'_, '_>, state: &State, survey: &Survey) -> fmt::Result {
    out.one(
        "streamed_lsn",
        "Everything before was read and handed out, as a number",
        None,
        survey.position.0,
    )?;
    out.one("confirmed_lsn", "Everything before is done, as a number", None, survey.confirmed.0)?;
    if let Some(lag) = state.lag_bytes() {
        out.one("lag", "WAL that the server has written and that is not confirmed", Some(Unit::Bytes), lag)?;
    }
    let help = "Age of the oldest transaction that was received and is not accepted by every mapping; 0 when there \
                is none";
    out.one("lag", help, Some(Unit::Seconds), survey.oldest.map_or(0.0, age_seconds))?;
    let help = "How long the server had said nothing on the stream";
    out.one("stream_silence", help, Some(Unit::Seconds), survey.silence.as_secs_f64())?;
    spool(out, survey)
}

fn spool(out: &mut Out<'_, '_>, survey: &Survey) -> fmt::Result {
    let help = "Whether large transactions are asked for before they commit";
    out.one("spool_active", help, None, u64::from(survey.spool.is_some()))?;
    let Some(spool) = &survey.spool else { return Ok(()) };
    let help = "Transactions in the spool: not committed yet, or being read back";
    out.one("spool_transactions", help, None, spool.transactions as u64)?;
    let help = "Bytes of such transactions in memory";
    out.one("spool_memory", help, Some(Unit::Bytes), spool.memory as u64)?;
    out.one("spool_disk", "Bytes of such transactions on disk", Some(Unit::Bytes), spool.disk)
}

fn slot(out: &mut Out<'_, '_>, state: &State) -> fmt::Result {
    let Some((slot, _)) = &state.slot else { return Ok(()) };
    let bytes = || Some(Unit::Bytes);
    out.one("slot_retained", "WAL that the server keeps for the slot", bytes(), slot.retained)?;
    if let Some(remaining) = slot.remaining {
        let help = "WAL that may still be written before the server may remove what the slot needs";
        out.one("slot_remaining", help, bytes(), remaining)?;
    }
    let known = WAL_STATUSES
        .map(|status| ([("status", Label::from(status))], u64::from(slot.status_word() == status)));
    out.many(("slot_wal_status", "1 for what the server says of the slot's WAL", None), known)
}

fn mappings(out: &mut Out<'_, '_>, mappings: &[MappingView]) -> fmt::Result {
    fn series<V>(
        mappings: &[MappingView],
        value: impl Fn(&MappingView) -> V,
    ) -> impl Iterator<Item = ([(&'static str, Label); 2], V)> {
        let labels = |view: &MappingView| {
            [("mapping", Label::from(view.name.as_str())), ("sink", Label::from(view.sink.as_str()))]
        };
        mappings.iter().map(move |view| (labels(view), value(view)))
    }
    let works = |view: &MappingView| u64::from(view.state == MappingState::Running);
    out.many(
        ("mapping_works", "Whether the last thing heard of it was no failure", None),
        series(mappings, works),
    )?;
    let queued = |view: &MappingView| view.queued_bytes as u64;
    let about = ("mapping_queued", "Handed out and not yet accepted", Some(Unit::Bytes));
    out.many(about, series(mappings, queued))?;
    let about = ("mapping_quarantined_rows", "Rows in quarantine", None);
    out.many(about, series(mappings, |view| view.quarantined))?;
    let attempts = |view: &MappingView| view.attempts;
    out.many(("mapping_attempts", "Failures in a row", None), series(mappings, attempts))?;
    out.many(("mapping_generation", "Counts its rebuilds", None), series(mappings, |view| view.generation))?;
    let about = ("mapping_built_generation", "The last generation whose backfill completed", None);
    out.many(about, series(mappings, |view| view.built))
}

fn runs(out: &mut Out<'_, '_>, survey: &Survey) -> fmt::Result {
    let count = |stage| survey.runs.iter().filter(|run| run.stage == stage).count() as u64;
    let stages =
        Report::default().times().map(|(stage, _)| ([("stage", Label::from(stage.as_str()))], count(stage)));
    out.many(("backfill_runs", "Runs that are not complete, by what they wait for", None), stages)
}

fn plugins(out: &mut Out<'_, '_>, survey: &Survey) -> fmt::Result {
    let labels = |(name, version): &(String, String)| {
        [("plugin", Label::from(name.as_str())), ("version", Label::from(version.as_str()))]
    };
    let live = survey.plugins.iter().map(|(plugin, instances)| (labels(plugin), instances.live as u64));
    out.many(("plugin_instances", "Instances that there are, idle or at work", None), live)?;
    if survey.plugins.is_empty() {
        return Ok(());
    }
    let help = "Instances thrown away after a fault or with a call that was given up";
    let name = "plugin_instances_discarded";
    let mut metric = out.0.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (plugin, instances) in &survey.plugins {
        ConstCounter::new(instances.discarded).encode(metric.encode_family(&labels(plugin))?)?;
    }
    Ok(())
}
