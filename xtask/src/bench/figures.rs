//! What was measured: told as it comes, and as a summary or one JSON object at the end.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};

/// Figures by name.
#[derive(Debug)]
pub(super) struct Figures {
    json: bool,
    found: BTreeMap<String, (f64, Vec<f64>)>,
}

impl Figures {
    pub(super) fn new(json: bool) -> Self {
        Self { json, found: BTreeMap::new() }
    }

    /// A line about what goes on, for people.
    pub(super) fn say(&self, line: &str) {
        if self.json {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    }

    /// Keeps the median of what the rounds gave.
    pub(super) fn rounds(&mut self, name: &str, mut values: Vec<f64>) {
        let rounds = values.clone();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = match values.len() {
            0 => f64::NAN,
            odd if odd % 2 == 1 => values[middle],
            _ => f64::midpoint(values[middle - 1], values[middle]),
        };
        self.say(&format!("   {name} = {}   (rounds: {})", shown(median), list(&rounds)));
        self.found.insert(name.to_owned(), (median, rounds));
    }

    /// Keeps one value.
    pub(super) fn one(&mut self, name: &str, value: f64) {
        self.rounds(name, vec![value]);
    }

    /// The summary.
    pub(super) fn finish(self) -> Result<()> {
        let machine = machine();
        if !self.json {
            println!("\n== cargo xtask bench: summary ({machine})");
            for (name, (median, _)) in &self.found {
                println!("   {name:<28} {:>12}", shown(*median));
            }
            return Ok(());
        }
        let value = |(median, rounds): &(f64, Vec<f64>)| json!({ "median": median, "rounds": rounds });
        let figures: BTreeMap<_, Value> =
            self.found.iter().map(|(name, found)| (name.as_str(), value(found))).collect();
        println!("{}", serde_json::to_string(&json!({ "machine": machine, "figures": figures }))?);
        Ok(())
    }
}

fn list(values: &[f64]) -> String {
    values.iter().map(|value| shown(*value)).collect::<Vec<_>>().join(", ")
}

fn shown(value: f64) -> String {
    if value.abs() >= 1000.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

/// The processor, how many of them, and how busy they were: other work on the machine shows here.
fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, name)| name);
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    let load = read("/proc/loadavg");
    let load = load.split_whitespace().next().unwrap_or("?");
    format!("{count} × {model}, load {load}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let mut figures = Figures::new(true);
        figures.rounds("odd", vec![3.0, 1.0, 2.0]);
        figures.rounds("even", vec![4.0, 1.0, 2.0, 3.0]);
        assert!((figures.found["odd"].0 - 2.0).abs() < f64::EPSILON);
        assert!((figures.found["even"].0 - 2.5).abs() < f64::EPSILON);
    }
}
