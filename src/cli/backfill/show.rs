//! `backfill status`, and backfills in lines for people.

use std::time::Duration;

use serde::Serialize;

use crate::{
    backfill::Stage,
    control::{ControlShape, Item, Picture, RequestShape, RunShape, Step},
    state::{RunStatus, Target},
};

use super::{
    super::{Context, Exit, output, source::SourceArguments},
    with_control,
};

/// The JSON shape of `backfill status`.
#[derive(Debug, Serialize)]
struct Shape {
    installation: String,
    /// Whether a host streams.
    streaming: bool,
    requests: Vec<RequestShape>,
    backfills: Vec<RunShape>,
    controls: Vec<ControlShape>,
}

pub(super) fn run(context: &Context, source: &SourceArguments, targets: &[String]) -> anyhow::Result<Exit> {
    let (_, installation) = source.resolve(context)?;
    let (known, shape) = with_control(context, source, async |control| {
        let picture = control.status().await?;
        let known = picture.is_some();
        let picture = picture.unwrap_or_default();
        let targets = targets.iter().map(|text| picture.resolve(text)).collect::<Result<Vec<_>, _>>()?;
        Ok((known, shape(installation, &picture, &targets)))
    })?;
    context.output.result(&shape, |shape| text(shape, known))?;
    Ok(if known { Exit::Done } else { Exit::Failed })
}

fn shape(installation: String, picture: &Picture, targets: &[Target]) -> Shape {
    let all = targets.is_empty();
    let entities: Vec<_> = targets.iter().filter_map(|target| picture.entity_of(target)).collect();
    let is_named = |named: &Target| {
        all || targets.contains(named)
            || picture.entity_of(named).is_some_and(|entity| entities.contains(&entity))
    };
    let requests = picture.requests.iter().filter(|pending| is_named(&pending.request.target));
    let runs = picture.runs.iter().filter(|run| all || entities.contains(&run.entity));
    let controls = picture
        .controls
        .iter()
        .filter(|control| all || control.entity.as_ref().is_none_or(|entity| entities.contains(entity)));
    Shape {
        installation,
        streaming: picture.streaming,
        requests: requests.map(|pending| RequestShape::new(picture, pending)).collect(),
        backfills: runs.map(|run| RunShape::new(picture, run)).collect(),
        controls: controls.map(ControlShape::new).collect(),
    }
}

fn text(shape: &Shape, known: bool) -> String {
    if !known {
        return "never ran on this database; `anabranch run` sets it up".to_owned();
    }
    let mut lines: Vec<String> = shape.requests.iter().map(request_line).collect();
    for run in &shape.backfills {
        lines.push(run_line(run));
        lines.extend(report_line(run));
    }
    lines.extend(shape.controls.iter().map(control_line));
    if lines.is_empty() {
        lines.push("no backfill is stored or asked for".to_owned());
    }
    if !shape.streaming {
        lines.push("no host streams at the moment".to_owned());
    }
    lines.join("\n")
}

/// `public.products requested 12 s ago, with a purge`
pub(in crate::cli) fn request_line(request: &RequestShape) -> String {
    let mut line = request.target.clone();
    if request.scope.is_some() {
        line.push_str(" (a part of it)");
    }
    line.push_str(&format!(" requested {} ago", output::duration(Duration::from_secs(request.seconds))));
    if request.purge {
        line.push_str(", with a purge");
    }
    if request.taken {
        line.push_str(", being taken up");
    }
    if !request.mapped {
        line.push_str("; no mapping of it is known so far");
    }
    line
}

/// `public.products reading 41% (410 211 of ~1 000 000 rows) 48 s, ~69 s left, 2 retries: …`
pub(in crate::cli) fn run_line(run: &RunShape) -> String {
    item_line(&run.item)
}

/// What a run has done, and where its time went; nothing of one that has done nothing.
fn report_line(run: &RunShape) -> Option<String> {
    let report = &run.report;
    if report.wall_ms == 0 || run.status == RunStatus::Queued.as_str() {
        return None;
    }
    let speed = report.rows.saturating_mul(1000) / report.wall_ms;
    let mut line = format!(
        "  {} in {}, {} rows a second; {} overtaken, {}",
        output::bytes(report.bytes),
        output::several(report.chunks, "chunk"),
        output::count(i64::try_from(speed).unwrap_or(i64::MAX)),
        output::several(report.dropped, "row"),
        output::several(report.rereads, "reread"),
    );
    let times = report.times();
    let times = times.iter().filter(|(_, time)| !time.is_zero());
    let times: Vec<_> =
        times.map(|(stage, time)| format!("{} {}", stage_word(*stage), output::duration(*time))).collect();
    if !times.is_empty() {
        line.push_str(&format!("\n  time: {}", times.join(", ")));
    }
    Some(line)
}

fn stage_word(stage: Stage) -> &'static str {
    match stage {
        Stage::Queued => "waiting for its turn",
        Stage::Reading => "reading",
        Stage::Stream => "waiting for the stream",
        Stage::Yielding => "yielding to live changes",
        Stage::Transforming => "transforming",
        Stage::Delivering => "delivering",
        Stage::Throttled => "throttled",
        Stage::Backoff => "waiting after failures",
    }
}

/// `backfills of public.products: paused, 500 rows a second at the most`
pub(in crate::cli) fn control_line(control: &ControlShape) -> String {
    let whose = control.entity.as_deref().unwrap_or("all tables");
    let paused = control.paused.then(|| "paused".to_owned());
    let rate = control
        .rows_per_second
        .map(|rate| format!("{} rows a second at the most", output::count(rate.into())));
    let said: Vec<_> = paused.into_iter().chain(rate).collect();
    format!("backfills of {whose}: {}", said.join(", "))
}

/// The name of something that is waited for.
pub(super) fn item_name(item: &Item) -> String {
    match &item.part {
        Some(part) => format!("{} ({part})", item.name),
        None => item.name.clone(),
    }
}

/// Something that is waited for, in a line.
pub(super) fn item_line(item: &Item) -> String {
    format!("{} {}", item_name(item), item_state(item))
}

/// `reading 41% (410 211 of ~1 000 000 rows) 48 s, ~69 s left, 2 retries`
pub(super) fn item_state(item: &Item) -> String {
    let mut text = match item.step {
        Step::Unmapped => "is not mapped so far".to_owned(),
        Step::Waiting => "waits for its run".to_owned(),
        step => step.to_string(),
    };
    if item.step == Step::Cancelled {
        return text;
    }
    if item.rows > 0 || item.elapsed.is_some() {
        text.push_str(&rows(item));
    }
    let mut more = Vec::new();
    if let Some(left) = item.left {
        more.push(format!("~{} left", output::duration(left)));
    }
    if item.retries > 0 {
        more.push(if item.retries == 1 { "1 retry".to_owned() } else { format!("{} retries", item.retries) });
    }
    if item.throttled >= Duration::from_secs(1) {
        more.push(format!("throttled for {}", output::duration(item.throttled)));
    }
    if let Some(rate) = item.rate {
        more.push(format!("{} rows a second at the most", output::count(rate.into())));
    }
    if !more.is_empty() {
        text.push_str(if item.rows > 0 || item.elapsed.is_some() { ", " } else { " " });
        text.push_str(&more.join(", "));
    }
    if let Some(error) = item.error.as_ref().filter(|_| item.step != Step::Complete) {
        text.push_str(&format!(": {error}"));
    }
    text
}

fn rows(item: &Item) -> String {
    let count = |rows: u64| output::count(i64::try_from(rows).unwrap_or(i64::MAX));
    let mut text = match (item.percent(), item.estimate) {
        (Some(percent), Some(estimate)) if item.step != Step::Complete => {
            format!(" {percent}% ({} of ~{} rows)", count(item.rows), count(estimate))
        }
        _ => format!(" ({} rows)", count(item.rows)),
    };
    if let Some(elapsed) = item.elapsed {
        text.push_str(&format!(" {}", output::duration(elapsed)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Item {
        Item {
            name: "public.products".into(),
            part: None,
            step: Step::Reading,
            rows: 410_211,
            estimate: Some(1_000_000),
            elapsed: Some(Duration::from_secs(48)),
            left: Some(Duration::from_secs(69)),
            retries: 2,
            throttled: Duration::ZERO,
            rate: None,
            error: None,
        }
    }

    #[test]
    fn progress_reads_well() {
        assert_eq!(
            item_line(&sample()),
            "public.products reading 41% (410 211 of ~1 000 000 rows) 48 s, ~69 s left, 2 retries"
        );
        let more = Item { rows: 2_000_000, retries: 0, left: None, ..sample() };
        assert_eq!(item_line(&more), "public.products reading 99% (2 000 000 of ~1 000 000 rows) 48 s");
        let done = Item { step: Step::Complete, ..more.clone() };
        assert_eq!(item_line(&done), "public.products complete (2 000 000 rows) 48 s");
        let held = Item {
            part: Some("3 keys".into()),
            step: Step::Paused,
            retries: 1,
            throttled: Duration::from_secs(7),
            rate: Some(500),
            estimate: None,
            error: Some("no".into()),
            ..more
        };
        assert_eq!(
            item_line(&held),
            "public.products (3 keys) paused (2 000 000 rows) 48 s, 1 retry, throttled for 7 s, \
             500 rows a second at the most: no"
        );
        let asked =
            Item { step: Step::Requested, rows: 0, elapsed: None, left: None, retries: 0, ..sample() };
        assert_eq!(item_line(&asked), "public.products requested");
    }
}
