//! How fast a transform is, one call after the other, and how that compares with another time.
//!
//! What is measured is what the host pays for a row: writing the request, the guest, reading and validating its answer.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{
    model::{Cell, ChangeBatch, Operation, Outcome, Outcomes},
    plugin::{PluginFault, Transform},
};

/// More calls than these are not timed for one size.
const MOST_CALLS: usize = 1_000_000;

/// What a bench found, as it is shown and kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The plugin's name.
    pub plugin: String,
    /// Its version.
    pub version: String,
    /// The table whose rows were sent.
    pub table: String,
    /// Where they are from: `golden`, `sample` or `generated`.
    pub rows_from: String,
    /// How many different ones.
    pub rows: u64,
    /// Bytes of text of a row.
    pub row_bytes: f64,
    /// Bytes of the documents of a row.
    pub output_bytes: f64,
    /// The most memory that one instance had, in bytes.
    pub memory_bytes: u64,
    /// One for each size.
    pub batches: Vec<Measured>,
}

/// What was measured with batches of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Rows of a batch.
    pub batch: u32,
    /// Batches that were timed.
    pub calls: u64,
    /// Rows that failed, of all that were sent.
    pub failed_rows: u64,
    /// Rows a second.
    pub rows_per_second: f64,
    /// Half of the batches took no longer than this, in microseconds.
    pub p50_us: f64,
    /// 99 of a hundred took no longer than this.
    pub p99_us: f64,
    /// Time of the processor for a row, host and guest together, in microseconds; none where the system does not tell.
    pub cpu_us: Option<f64>,
}

/// One measurement as a multiple of another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The plugin and version that were measured before.
    pub before: String,
    /// What makes the two hard to compare.
    pub notes: Vec<String>,
    /// Memory of an instance.
    pub memory: Option<f64>,
    /// Bytes of the documents of a row.
    pub output: Option<f64>,
    /// For each size that both have.
    pub batches: Vec<Pace>,
}

/// Multiples for one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pace {
    /// Rows of a batch.
    pub batch: u32,
    /// Rows a second: more than 1 is faster.
    pub rows_per_second: Option<f64>,
    /// More than 1 is slower.
    pub p50: Option<f64>,
    /// More than 1 is slower.
    pub p99: Option<f64>,
    /// More than 1 is dearer.
    pub cpu: Option<f64>,
}

impl Measurement {
    /// This one as a multiple of one before.
    #[must_use]
    pub fn against(&self, before: &Self) -> Comparison {
        let mut notes = Vec::new();
        let rows = |of: &Self| format!("{} {} rows of {}", of.rows, of.rows_from, of.table);
        if rows(self) != rows(before) {
            notes.push(format!("other rows: {} before, {} now", rows(before), rows(self)));
        }
        let pace = |now: &Measured| {
            let then = before.batches.iter().find(|then| then.batch == now.batch)?;
            Some(Pace {
                batch: now.batch,
                rows_per_second: ratio(now.rows_per_second, then.rows_per_second),
                p50: ratio(now.p50_us, then.p50_us),
                p99: ratio(now.p99_us, then.p99_us),
                cpu: now.cpu_us.zip(then.cpu_us).and_then(|(now, then)| ratio(now, then)),
            })
        };
        let batches: Vec<_> = self.batches.iter().filter_map(pace).collect();
        if batches.is_empty() {
            notes.push("no size of a batch is in both".to_owned());
        }
        Comparison {
            before: format!("{} {}", before.plugin, before.version),
            notes,
            memory: ratio(float(self.memory_bytes), float(before.memory_bytes)),
            output: ratio(self.output_bytes, before.output_bytes),
            batches,
        }
    }
}

fn ratio(now: f64, then: f64) -> Option<f64> {
    (then > 0.0).then_some(now / then)
}

fn float(number: u64) -> f64 {
    number as f64
}

/// The value that so many of a hundred do not exceed; the values are in order.
fn percentile(sorted: &[Duration], hundredths: usize) -> Duration {
    let at = (sorted.len() * hundredths).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

/// Takes out what the host answers itself.
fn only_sent(batch: &mut ChangeBatch, wants_deletes: bool) {
    batch.changes.retain(|change| match change.operation {
        Operation::Insert | Operation::Update | Operation::Read => true,
        Operation::Delete => wants_deletes,
        Operation::Truncate => false,
    });
}

/// Bytes of text in the rows of all changes.
fn text_bytes(batch: &ChangeBatch) -> u64 {
    let spans = batch.changes.iter().flat_map(|change| [change.new, change.old]).flatten();
    let cells = spans.flat_map(|span| batch.row(span).cells);
    cells.map(|cell| if let Cell::Text { len, .. } = cell { u64::from(*len) } else { 0 }).sum()
}

/// The same changes over and over until one batch of the largest size is full. None if there are none.
fn repeated(batch: &mut ChangeBatch, size: u32) -> Option<u32> {
    let own = batch.changes.clone();
    while !own.is_empty() && batch.changes.len() < size as usize {
        batch.changes.extend_from_slice(&own);
    }
    u32::try_from(batch.changes.len()).ok().filter(|&count| count > 0)
}

/// Times batches of some sizes for so long each; none if no row reaches the guest. `measurement` says what is
/// known before.
///
/// # Errors
/// A call fails as a whole.
pub async fn measure(
    transform: &Transform,
    mut batch: ChangeBatch,
    sizes: &[u32],
    time: Duration,
    mut measurement: Measurement,
) -> Result<Option<Measurement>, PluginFault> {
    let wants_deletes = transform.description().wants_deletes;
    let largest = sizes.iter().copied().max().unwrap_or(1);
    only_sent(&mut batch, wants_deletes);
    measurement.rows = batch.changes.len() as u64;
    measurement.row_bytes = ratio(float(text_bytes(&batch)), float(measurement.rows)).unwrap_or_default();
    let Some(count) = repeated(&mut batch, largest) else { return Ok(None) };
    let all: Vec<u32> = (0..count).collect();
    let (mut output, mut sent) = (0, 0);
    for &size in sizes {
        // Making an instance, and growing its memory, is not what a batch costs.
        transform.call(&batch, &all[..size as usize]).await?;
        let mut run = Run::default();
        let cpu = cpu_time();
        let started = Instant::now();
        for window in all.chunks_exact(size as usize).cycle() {
            let call = Instant::now();
            let outcomes = transform.call(&batch, window).await?;
            run.add(call.elapsed(), &outcomes);
            if started.elapsed() >= time || run.times.len() >= MOST_CALLS {
                break;
            }
        }
        let cpu = cpu.zip(cpu_time()).map(|(before, after)| after.saturating_sub(before));
        output += run.output;
        sent += run.rows;
        measurement.batches.push(run.measured(size, cpu));
    }
    measurement.output_bytes = ratio(float(output), float(sent)).unwrap_or_default();
    measurement.memory_bytes = transform.plugin().peak_memory() as u64;
    Ok(Some(measurement))
}

/// Calls of one size.
#[derive(Default)]
struct Run {
    times: Vec<Duration>,
    rows: u64,
    failed: u64,
    output: u64,
}

impl Run {
    fn add(&mut self, time: Duration, outcomes: &Outcomes) {
        self.times.push(time);
        self.rows += outcomes.outcomes.len() as u64;
        self.failed +=
            outcomes.outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Failed(_))).count() as u64;
        self.output += outcomes.documents.iter().map(|document| u64::from(document.body.1)).sum::<u64>();
    }

    fn measured(mut self, batch: u32, cpu: Option<Duration>) -> Measured {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        // Without what happens between calls: that is the bench's own.
        let spent: Duration = self.times.iter().sum();
        self.times.sort_unstable();
        Measured {
            batch,
            calls: self.times.len() as u64,
            failed_rows: self.failed,
            rows_per_second: ratio(float(self.rows), spent.as_secs_f64()).unwrap_or_default(),
            p50_us: micros(percentile(&self.times, 50)),
            p99_us: micros(percentile(&self.times, 99)),
            cpu_us: cpu.and_then(|cpu| ratio(micros(cpu), float(self.rows))),
        }
    }
}

/// How long this thread has had a processor, where the system tells that.
fn cpu_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(pace: f64, sizes: &[u32]) -> Measurement {
        let one = |&batch: &u32| Measured {
            batch,
            calls: 1,
            failed_rows: 0,
            rows_per_second: 1000.0 * pace,
            p50_us: 10.0 / pace,
            p99_us: 0.0,
            cpu_us: None,
        };
        Measurement {
            plugin: "p".to_owned(),
            version: "1.0.0".to_owned(),
            table: "public.t".to_owned(),
            rows_from: "golden".to_owned(),
            rows: 3,
            row_bytes: 10.0,
            output_bytes: 20.0,
            memory_bytes: 1 << 20,
            batches: sizes.iter().map(one).collect(),
        }
    }

    #[test]
    fn one_is_told_as_a_multiple_of_the_other() {
        let before = measurement(1.0, &[1, 100]);
        let found = measurement(2.0, &[100, 1000]).against(&before);
        let pace = Pace { batch: 100, rows_per_second: Some(2.0), p50: Some(0.5), p99: None, cpu: None };
        assert_eq!((found.batches, found.memory, found.notes.len()), (vec![pace], Some(1.0), 0));
        let other = Measurement { rows: 4, ..measurement(1.0, &[7]) }.against(&before);
        assert!(other.notes[0].contains("3 golden rows of public.t before, 4 golden"), "{:?}", other.notes);
        assert!(other.notes[1].contains("no size"), "{:?}", other.notes);
    }

    #[test]
    fn what_the_host_answers_itself_is_not_measured() {
        let file = r#"{"table": "t", "columns": {"id": "int", "note": "text"}, "rows": [
            {"new": {"id": "1", "note": "ab"}}, {"operation": "delete", "old": {"id": "2"}},
            {"operation": "update", "new": {"id": "34"}, "old": {"id": "5", "note": null}}]}"#;
        let mut batch = super::super::Rows::parse(file).unwrap().batch;
        let mut with_deletes = batch.clone();
        only_sent(&mut batch, false);
        assert_eq!((batch.changes.len(), text_bytes(&batch), repeated(&mut batch, 5)), (2, 6, Some(6)));
        only_sent(&mut with_deletes, true);
        assert_eq!((with_deletes.changes.len(), repeated(&mut with_deletes, 1)), (3, Some(3)));
        batch.changes.clear();
        assert_eq!(repeated(&mut batch, 5), None);
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let times: Vec<_> = (1..=200).map(Duration::from_micros).collect();
        assert_eq!(percentile(&times, 50), Duration::from_micros(100));
        assert_eq!(percentile(&times, 99), Duration::from_micros(198));
        assert_eq!(percentile(&times[..1], 50), Duration::from_micros(1));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }

    #[test]
    fn what_was_kept_can_be_read_again() {
        let kept = measurement(1.5, &[1]);
        let text = serde_json::to_string(&kept).unwrap();
        assert_eq!(serde_json::from_str::<Measurement>(&text).unwrap(), kept);
    }
}
