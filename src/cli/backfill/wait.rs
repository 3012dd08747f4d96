//! `backfill wait`: a step of a deploy. A bar on a terminal, lines elsewhere, both on stderr.

use std::{
    collections::BTreeMap,
    io::{IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::control::{Control, Goal, Item, PluginGoal, Standing, Step, Waited};

use super::{
    super::{Context, Exit, limit, source::SourceArguments},
    show::{item_line, item_name, item_state},
};

/// How often something is told again that only goes on.
const REPEAT: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    source: SourceArguments,
    /// Tables (`schema.table`) or mappings; all of them where neither they nor plugins are named.
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// Wait until every mapping of this transform has this version, and is built with it; may be given before
    /// the host that brings it is up. Several may be named.
    #[arg(long = "plugin", value_name = "NAME@VERSION", value_parser = plugin)]
    plugins: Vec<PluginGoal>,
    /// Give up after so long, with exit code 3.
    #[arg(long, value_name = "DURATION", value_parser = limit)]
    timeout: Option<Duration>,
}

fn plugin(text: &str) -> Result<PluginGoal, String> {
    let (name, version) = text.rsplit_once('@').ok_or("NAME@VERSION, such as product-search@1.5.0")?;
    let version = version.parse().map_err(|error| format!("`{version}` is no version: {error}"))?;
    if name.is_empty() {
        return Err("the name is missing".to_owned());
    }
    Ok(PluginGoal { name: name.to_owned(), version })
}

/// The JSON shape of `backfill wait`.
#[derive(Debug, Serialize)]
struct Shape {
    /// `complete`, `failed`, `timeout` or `interrupted`.
    result: &'static str,
    error: Option<String>,
    items: Vec<ItemShape>,
    notes: Vec<String>,
    #[serde(skip)]
    lines: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ItemShape {
    /// The table, the mapping or the transform.
    name: String,
    /// Which part or version of it.
    part: Option<String>,
    /// `complete`, `cancelled`, `reading`, `queued`, `paused`, `requested`, `waiting`, `failing`, `refused`,
    /// `outdated` or `unmapped`.
    step: &'static str,
    rows: u64,
    estimate: Option<u64>,
    percent: Option<u64>,
    elapsed_seconds: Option<u64>,
    left_seconds: Option<u64>,
    retries: u64,
    throttled_seconds: u64,
    rows_per_second: Option<u32>,
    error: Option<String>,
}

impl From<&Item> for ItemShape {
    fn from(item: &Item) -> Self {
        Self {
            name: item.name.clone(),
            part: item.part.clone(),
            step: item.step.as_str(),
            rows: item.rows,
            estimate: item.estimate,
            percent: item.percent(),
            elapsed_seconds: item.elapsed.map(|elapsed| elapsed.as_secs()),
            left_seconds: item.left.map(|left| left.as_secs()),
            retries: item.retries,
            throttled_seconds: item.throttled.as_secs(),
            rows_per_second: item.rate,
            error: item.error.clone(),
        }
    }
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<Exit> {
    let (connect, installation) = arguments.source.resolve(context)?;
    let goal = Goal { targets: arguments.targets.clone(), plugins: arguments.plugins.clone() };
    let mut view = View::choose(context.output.json);
    let waited = context.block_on(async {
        // Before anything is waited for: a signal that comes first would end the process instead.
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut control = Control::connect(&connect, installation).await?;
        let waited = tokio::select! {
            waited = control.wait(&goal, arguments.timeout, |standing| view.show(standing)) => Some(waited?),
            // Nothing was changed; the same may be waited for again.
            _ = interrupt.recv() => None,
        };
        control.close().await;
        Ok(waited)
    })?;
    view.clear();
    let (exit, shape) = ended(waited);
    context.output.result(&shape, |shape| text(shape, exit))?;
    Ok(exit)
}

fn ended(waited: Option<Waited>) -> (Exit, Shape) {
    let (exit, result, error, standing) = match waited {
        Some(Waited::Complete(standing)) => (Exit::Done, "complete", None, Some(standing)),
        Some(Waited::Failed(standing, error)) => (Exit::Failed, "failed", Some(error), Some(standing)),
        Some(Waited::TimedOut(standing)) => (Exit::NotReady, "timeout", None, standing),
        None => (Exit::Interrupted, "interrupted", None, None),
    };
    let items = standing.iter().flat_map(|standing| &standing.items).map(ItemShape::from).collect();
    let lines = standing.iter().flat_map(|standing| &standing.items).map(item_line).collect();
    let notes = standing.map(|standing| standing.notes).unwrap_or_default();
    (exit, Shape { result, error, items, notes, lines })
}

fn text(shape: &Shape, exit: Exit) -> String {
    let mut lines = shape.lines.clone();
    lines.extend(shape.notes.iter().map(|note| format!("note: {note}")));
    lines.push(match exit {
        Exit::Done => "complete".to_owned(),
        Exit::Interrupted => "interrupted; the backfills go on".to_owned(),
        Exit::NotReady => "not complete in time; the backfills go on".to_owned(),
        Exit::Failed | Exit::Usage => format!("failed: {}", shape.error.as_deref().unwrap_or("unknown")),
    });
    lines.join("\n")
}

/// How progress is shown.
enum View {
    Nothing,
    Lines(Lines),
    Bars(Bars),
}

impl View {
    fn choose(json: bool) -> Self {
        if json {
            Self::Nothing
        } else if std::io::stderr().is_terminal() {
            Self::Bars(Bars::default())
        } else {
            Self::Lines(Lines::default())
        }
    }

    fn show(&mut self, standing: &Standing) {
        match self {
            Self::Nothing => {}
            Self::Lines(lines) => {
                let mut stderr = std::io::stderr().lock();
                for line in lines.due(standing, Instant::now()) {
                    // A reader that has gone away does not end the waiting.
                    let _ = writeln!(stderr, "{line}");
                }
            }
            Self::Bars(bars) => bars.show(standing),
        }
    }

    fn clear(&mut self) {
        if let Self::Bars(bars) = self {
            bars.clear();
        }
    }
}

/// What was told, and when.
#[derive(Default)]
struct Lines {
    told: BTreeMap<String, (Option<Step>, Instant)>,
}

impl Lines {
    /// What is new, and at intervals what goes on.
    fn due(&mut self, standing: &Standing, now: Instant) -> Vec<String> {
        let items = standing.items.iter().map(|item| (item_name(item), Some(item.step), item_line(item)));
        let notes = standing.notes.iter().map(|note| (note.clone(), None, format!("note: {note}")));
        let current: Vec<_> = items.chain(notes).collect();
        self.told.retain(|name, _| current.iter().any(|(current, ..)| current == name));
        let mut due = Vec::new();
        for (name, step, line) in current {
            let told = self.told.get(&name);
            let goes_on = step.is_some_and(|step| !matches!(step, Step::Complete | Step::Cancelled));
            let again = |(last, at): &(Option<Step>, Instant)| {
                *last != step || (goes_on && now.duration_since(*at) >= REPEAT)
            };
            if told.is_none_or(again) {
                self.told.insert(name, (step, now));
                due.push(line);
            }
        }
        due
    }
}

/// A bar for each thing that is waited for, and one line for notes.
struct Bars {
    all: MultiProgress,
    shown: BTreeMap<String, ProgressBar>,
}

impl Default for Bars {
    fn default() -> Self {
        let target = ProgressDrawTarget::stderr_with_hz(5);
        Self { all: MultiProgress::with_draw_target(target), shown: BTreeMap::new() }
    }
}

impl Bars {
    fn show(&mut self, standing: &Standing) {
        let mut current: BTreeMap<String, (Option<u64>, String)> =
            standing.items.iter().map(|item| (item_name(item), (item.percent(), item_state(item)))).collect();
        if !standing.notes.is_empty() {
            current.insert("note:".to_owned(), (None, standing.notes.join("; ")));
        }
        let gone: Vec<String> =
            self.shown.keys().filter(|name| !current.contains_key(*name)).cloned().collect();
        for bar in gone.iter().filter_map(|name| self.shown.remove(name)) {
            self.all.remove(&bar);
        }
        for (name, (percent, state)) in current {
            let style = style(percent.is_some());
            if let Some(bar) = self.shown.get(&name) {
                bar.set_style(style);
                bar.set_message(state);
                bar.set_position(percent.unwrap_or(0));
                continue;
            }
            // Dressed before it is shown: what is added is drawn at once.
            let bar = ProgressBar::with_draw_target(Some(100), ProgressDrawTarget::hidden());
            let bar = bar.with_style(style).with_prefix(name.clone()).with_message(state);
            bar.set_position(percent.unwrap_or(0));
            self.shown.insert(name, self.all.add(bar));
        }
    }

    fn clear(&mut self) {
        for bar in self.shown.values() {
            bar.finish_and_clear();
        }
        // What cannot be cleared stays on the screen.
        let _ = self.all.clear();
    }
}

fn style(with_bar: bool) -> ProgressStyle {
    let template = if with_bar { "{prefix} {bar:24} {wide_msg}" } else { "{prefix} {wide_msg}" };
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use crate::control::Verdict;

    use super::*;

    #[test]
    fn versions_and_limits_are_read() {
        let goal = plugin("product-search@1.5.0-rc.1").unwrap();
        assert_eq!((goal.name.as_str(), goal.version.to_string().as_str()), ("product-search", "1.5.0-rc.1"));
        for bad in ["product-search", "p@1.5", "@1.5.0", "p@v1.5.0"] {
            assert!(plugin(bad).is_err(), "{bad}");
        }
        assert_eq!(limit("1.5s"), Ok(Duration::from_millis(1500)));
        assert!(limit("10").is_err());
    }

    #[test]
    fn lines_are_told_when_they_change_and_at_intervals() {
        let item = |step| Item { rows: 1, ..Item::new("public.t", step) };
        let standing = |step, notes: &[&str]| Standing {
            verdict: Verdict::Waiting,
            items: vec![item(step)],
            notes: notes.iter().map(|&note| note.to_owned()).collect(),
        };
        let (mut lines, start) = (Lines::default(), Instant::now());
        assert_eq!(
            lines.due(&standing(Step::Reading, &["nobody streams"]), start),
            ["public.t reading (1 rows)", "note: nobody streams"]
        );
        assert!(lines.due(&standing(Step::Reading, &["nobody streams"]), start + REPEAT / 2).is_empty());
        assert_eq!(lines.due(&standing(Step::Reading, &[]), start + REPEAT).len(), 1);
        assert_eq!(lines.due(&standing(Step::Complete, &["nobody streams"]), start + REPEAT).len(), 2);
        assert!(lines.due(&standing(Step::Complete, &["nobody streams"]), start + 3 * REPEAT).is_empty());
    }
}
