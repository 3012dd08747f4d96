//! Numbers that guests tell, and how often they were refused something, for /metrics.
//!
//! Guarantees: a mapping has as many series as it is granted, and no more; they go with the mapping.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

use crate::{
    model::{Failure, FailureClass},
    plugin::{
        grants::{Capability, MetricsGrant},
        services::{Labels, Meter},
    },
};

use super::metrics::Label;

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    /// By name.
    families: BTreeMap<String, Family>,
    /// How many series each mapping has.
    held: BTreeMap<Label, usize>,
    refusals: BTreeMap<(Label, Label, &'static str), u64>,
}

#[derive(Debug)]
enum Family {
    Counters(BTreeMap<Series, u64>),
    Gauges(BTreeMap<Series, f64>),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Series {
    mapping: Label,
    plugin: Label,
    labels: Labels,
}

impl Series {
    fn all(&self) -> Vec<(String, String)> {
        let own = [("plugin", &self.plugin), ("mapping", &self.mapping)];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value.to_string()));
        own.chain(self.labels.iter().cloned()).collect()
    }
}

impl Family {
    fn retain(&mut self, keep: impl Fn(&Series) -> bool) {
        match self {
            Self::Counters(series) => series.retain(|series, _| keep(series)),
            Self::Gauges(series) => series.retain(|series, _| keep(series)),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Counters(series) => series.is_empty(),
            Self::Gauges(series) => series.is_empty(),
        }
    }

    fn has(&self, wanted: &Series) -> bool {
        match self {
            Self::Counters(series) => series.contains_key(wanted),
            Self::Gauges(series) => series.contains_key(wanted),
        }
    }
}

impl Numbers {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the guests of one mapping tell.
    pub(super) fn of(&self, mapping: &str, plugin: &str) -> Arc<dyn Meter> {
        Arc::new(Own { numbers: self.clone(), mapping: Label::from(mapping), plugin: Label::from(plugin) })
    }

    /// The series of other mappings go.
    pub(super) fn know(&self, mappings: &BTreeSet<&str>) {
        let mut kept = self.kept();
        kept.families
            .values_mut()
            .for_each(|family| family.retain(|series| mappings.contains(&*series.mapping)));
        kept.families.retain(|_, family| !family.is_empty());
        kept.held.retain(|mapping, _| mappings.contains(&**mapping));
        kept.refusals.retain(|(mapping, ..), _| mappings.contains(&**mapping));
    }
}

/// One mapping's.
#[derive(Debug)]
struct Own {
    numbers: Numbers,
    mapping: Label,
    plugin: Label,
}

impl Own {
    fn change(
        &self,
        (name, labels): (&str, Labels),
        fresh: Family,
        grant: &MetricsGrant,
        change: impl FnOnce(&mut Family, Series),
    ) -> Result<(), Failure> {
        let series = Series { mapping: self.mapping.clone(), plugin: self.plugin.clone(), labels };
        let mut kept = self.numbers.kept();
        let kept = &mut *kept;
        if let Some(other) = namesake(name, &fresh).filter(|(other, is_counter)| {
            let known = kept.families.get(other.as_ref());
            known.is_some_and(|family| matches!(family, Family::Counters(_)) == *is_counter)
        }) {
            let (other, kind) = (&other.0, if other.1 { "counter" } else { "gauge" });
            let message = format!(
                "`{name}` is shown under the name of the {kind} `{other}`, since a counter's name ends in `_total` at \
                 /metrics; give one of them another name"
            );
            return Err(Failure::new(FailureClass::Poison, "metrics-kind", message));
        }
        let family = kept.families.get(name);
        if family.is_some_and(|family| std::mem::discriminant(family) != std::mem::discriminant(&fresh)) {
            let is = if matches!(fresh, Family::Counters(_)) { "a gauge" } else { "a counter" };
            let message = format!("`{name}` is {is} already; give one of them another name");
            return Err(Failure::new(FailureClass::Poison, "metrics-kind", message));
        }
        if !family.is_some_and(|family| family.has(&series)) {
            let held = kept.held.entry(self.mapping.clone()).or_default();
            if *held >= grant.max_series {
                let message = format!("`{name}` would be one series more than {}", grant.max_series);
                return Err(Failure::new(FailureClass::Poison, "metrics-series", message));
            }
            *held += 1;
        }
        change(kept.families.entry(name.to_owned()).or_insert(fresh), series);
        Ok(())
    }
}

/// The number of the other kind that would come out under the same name, and whether that is a counter.
fn namesake<'a>(name: &'a str, own: &Family) -> Option<(std::borrow::Cow<'a, str>, bool)> {
    match own {
        Family::Counters(_) => Some((format!("{name}_total").into(), false)),
        Family::Gauges(_) => name.strip_suffix("_total").map(|name| (name.into(), true)),
    }
}

impl Meter for Own {
    fn count(&self, name: &str, labels: Labels, by: u64, grant: &MetricsGrant) -> Result<(), Failure> {
        self.change((name, labels), Family::Counters(BTreeMap::new()), grant, |family, series| {
            if let Family::Counters(counters) = family {
                let count = counters.entry(series).or_default();
                *count = count.wrapping_add(by);
            }
        })
    }

    fn gauge(&self, name: &str, labels: Labels, value: f64, grant: &MetricsGrant) -> Result<(), Failure> {
        self.change((name, labels), Family::Gauges(BTreeMap::new()), grant, |family, series| {
            if let Family::Gauges(gauges) = family {
                gauges.insert(series, value);
            }
        })
    }

    fn refused(&self, capability: Capability) {
        let key = (self.mapping.clone(), self.plugin.clone(), capability.as_str());
        *self.numbers.kept().refusals.entry(key).or_default() += 1;
    }
}

impl Collector for Numbers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let kept = self.kept();
        for (name, family) in &kept.families {
            let name = format!("guest_{name}");
            match family {
                Family::Counters(series) => {
                    let help = "Counted by plugins";
                    let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
                    for (series, count) in series {
                        ConstCounter::new(*count).encode(metric.encode_family(&series.all())?)?;
                    }
                }
                Family::Gauges(series) => {
                    let help = "Told by plugins";
                    let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
                    for (series, value) in series {
                        ConstGauge::new(*value).encode(metric.encode_family(&series.all())?)?;
                    }
                }
            }
        }
        if kept.refusals.is_empty() {
            return Ok(());
        }
        let help = "Calls of plugins that the host refused, by capability";
        let mut metric = encoder.encode_descriptor("plugin_refusals", help, None, MetricType::Counter)?;
        for ((mapping, plugin, capability), count) in &kept.refusals {
            let labels = [("plugin", &**plugin), ("mapping", &**mapping), ("capability", *capability)];
            ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::text, registry::Registry};

    use super::*;

    fn shown(numbers: &Numbers) -> String {
        let mut registry = Registry::with_prefix("anabranch");
        registry.register_collector(Box::new(numbers.clone()));
        let mut out = String::new();
        text::encode(&mut out, &registry).unwrap();
        out
    }

    fn label(value: &str) -> Labels {
        vec![("kind".to_owned(), value.to_owned())]
    }

    #[test]
    fn c099_series_are_bounded_and_go_with_their_mapping() {
        let (numbers, grant) = (Numbers::default(), MetricsGrant { max_series: 2 });
        let (a, b) = (numbers.of("a", "p"), numbers.of("b", "p"));
        a.count("seen", label("x"), 2, &grant).unwrap();
        a.count("seen", label("x"), 3, &grant).unwrap();
        a.gauge("depth", Vec::new(), 1.5, &grant).unwrap();
        assert_eq!(a.count("seen", label("y"), 1, &grant).unwrap_err().code, "metrics-series");
        a.count("seen", label("x"), 1, &grant).unwrap();
        b.count("seen", label("y"), 1, &grant).unwrap();
        assert_eq!(b.gauge("seen", label("y"), 1.0, &grant).unwrap_err().code, "metrics-kind");
        // A counter is shown with `_total` behind its name.
        let error = b.gauge("seen_total", Vec::new(), 1.0, &grant).unwrap_err();
        assert_eq!(error.code, "metrics-kind");
        assert!(error.message.contains("the counter `seen`"), "{error}");
        b.gauge("lots_total", Vec::new(), 1.0, &grant).unwrap();
        let error = a.count("lots", label("x"), 1, &grant).unwrap_err();
        assert!(error.message.contains("the gauge `lots_total`"), "{error}");
        b.refused(Capability::Http);
        let text = shown(&numbers);
        for line in [
            r#"anabranch_guest_seen_total{plugin="p",mapping="a",kind="x"} 6"#,
            r#"anabranch_guest_seen_total{plugin="p",mapping="b",kind="y"} 1"#,
            r#"anabranch_guest_depth{plugin="p",mapping="a"} 1.5"#,
            r#"anabranch_plugin_refusals_total{plugin="p",mapping="b",capability="http"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        numbers.know(&BTreeSet::from(["a"]));
        let text = shown(&numbers);
        assert!(!text.contains("mapping=\"b\"") && text.contains("mapping=\"a\""), "{text}");
        numbers.know(&BTreeSet::new());
        assert!(!shown(&numbers).contains("guest"));
        a.count("seen", label("y"), 1, &grant).unwrap();
    }
}
