//! `/`: a page for people. Plain HTML that loads nothing and runs nothing; every text in it is escaped.

use std::fmt::{self, Display, Formatter, Write as _};

use super::shape::{HealthShape, MappingShape, RunShape};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;\
    color:#1b1f24}table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;\
    padding:.3em .8em .3em 0;border-bottom:1px solid #d6dbe1}th{font-weight:600;color:#57606a}h1{font-size:1.4em}\
    h2{font-size:1.1em;margin-top:2em}.ok{color:#1a7f37}.degraded{color:#9a6700}.down,.bad{color:#b42318}\
    .n{font-variant-numeric:tabular-nums}";

/// The page of how things are.
pub(super) struct Page<'a>(pub(super) &'a HealthShape);

/// Text in HTML, in an element or in a quoted attribute.
struct Escaped<T>(T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        struct Escaping<'a, 'b>(&'a mut Formatter<'b>);
        impl fmt::Write for Escaping<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                text.chars().try_for_each(|c| match c {
                    '&' => self.0.write_str("&amp;"),
                    '<' => self.0.write_str("&lt;"),
                    '>' => self.0.write_str("&gt;"),
                    '"' => self.0.write_str("&quot;"),
                    '\'' => self.0.write_str("&#39;"),
                    c => self.0.write_char(c),
                })
            }
        }
        write!(Escaping(f), "{}", self.0)
    }
}

impl Display for Page<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let shape = self.0;
        let name = Escaped(&shape.installation);
        write!(
            f,
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" \
             content=\"5\"><meta name=\"viewport\" content=\"width=device-width\"><title>{name}: {status}</title>\
             <style>{STYLE}</style></head><body><h1>Anabranch: {name} <span class=\"{status}\">{status}</span></h1>",
            status = shape.status.as_str(),
        )?;
        if !shape.reasons.is_empty() {
            f.write_str("<ul>")?;
            shape.reasons.iter().try_for_each(|reason| write!(f, "<li>{}</li>", Escaped(reason)))?;
            f.write_str("</ul>")?;
        }
        facts(f, shape)?;
        table(
            f,
            "Mappings",
            &["mapping", "table", "sink", "state", "generation", "queued", "in quarantine", "last error"],
            &shape.mappings,
            mapping,
        )?;
        table(
            f,
            "Backfills",
            &["table", "waits for", "rows", "chunks", "done", "failures"],
            &shape.backfills,
            run,
        )?;
        writeln!(
            f,
            "<h2>More</h2><p><a href=\"/api/status\">status</a>, <a href=\"/healthz\">health</a>, \
             <a href=\"/metrics\">metrics</a>, <a href=\"/readyz\">ready</a>, <a href=\"/livez\">alive</a></p>\
             <p>Anabranch {}</p></body></html>",
            Escaped(shape.version)
        )
    }
}

fn facts(f: &mut Formatter<'_>, shape: &HealthShape) -> fmt::Result {
    f.write_str("<table>")?;
    fact(f, "role", format_args!("{} for {}", shape.role, span(shape.role_seconds)))?;
    if let Some(term) = shape.term {
        fact(f, "term", term)?;
    }
    if let Some(stream) = &shape.stream {
        let bytes = stream.lag_bytes.map_or_else(|| "unknown".to_owned(), size);
        fact(f, "lag", format_args!("{bytes}, {}", span(stream.lag_seconds)))?;
        fact(f, "streamed", &stream.position)?;
        fact(f, "confirmed", &stream.confirmed)?;
        fact(f, "the server was silent for", span(stream.silence_seconds))?;
        if let Some(spool) = stream.spool.as_ref().filter(|spool| spool.transactions > 0) {
            let (memory, disk) = (size(spool.memory_bytes as u64), size(spool.disk_bytes));
            let text = format_args!("{}, {memory} in memory, {disk} on disk", spool.transactions);
            fact(f, "large transactions kept", text)?;
        }
    }
    if let Some(slot) = &shape.slot {
        let left = slot
            .remaining_bytes
            .map_or_else(|| "no limit".to_owned(), |bytes| format!("{} left", size(bytes)));
        fact(f, "WAL kept", format_args!("{} ({}, {left})", size(slot.retained_bytes), slot.wal_status))?;
    }
    if let Some(error) = &shape.last_error {
        fact(f, "last error", format_args!("{} ({} ago)", error.message, span(error.seconds_ago)))?;
    }
    f.write_str("</table>")
}

fn fact(f: &mut Formatter<'_>, name: &str, value: impl Display) -> fmt::Result {
    write!(f, "<tr><th>{name}</th><td class=\"n\">{}</td></tr>", Escaped(value))
}

fn table<T>(
    f: &mut Formatter<'_>,
    title: &str,
    columns: &[&str],
    rows: &[T],
    row: impl Fn(&mut Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    write!(f, "<h2>{title}</h2><table><tr>")?;
    columns.iter().try_for_each(|column| write!(f, "<th>{column}</th>"))?;
    f.write_str("</tr>")?;
    for one in rows {
        f.write_str("<tr>")?;
        row(f, one)?;
        f.write_str("</tr>")?;
    }
    f.write_str("</table>")
}

fn cell(f: &mut Formatter<'_>, class: &str, value: impl Display) -> fmt::Result {
    write!(f, "<td class=\"{class}\">{}</td>", Escaped(value))
}

fn mapping(f: &mut Formatter<'_>, mapping: &MappingShape) -> fmt::Result {
    cell(f, "", &mapping.name)?;
    cell(f, "", &mapping.entity)?;
    cell(f, "", &mapping.sink)?;
    cell(f, if mapping.state == "running" { "ok" } else { "bad" }, mapping.state)?;
    let built = if mapping.built < mapping.generation { ", being built" } else { "" };
    cell(f, "n", format_args!("{}{built}", mapping.generation))?;
    cell(f, "n", size(mapping.queued_bytes as u64))?;
    cell(f, if mapping.quarantined > 0 { "n bad" } else { "n" }, mapping.quarantined)?;
    match &mapping.last_error {
        Some(error) => {
            cell(f, "", format_args!("{} ({}, {} failures)", error.message, error.code, mapping.attempts))
        }
        None => cell(f, "", mapping.held_revision.as_deref().unwrap_or_default()),
    }
}

fn run(f: &mut Formatter<'_>, run: &RunShape) -> fmt::Result {
    let part = if run.scoped { " (a part of it)" } else { "" };
    cell(f, "", format_args!("{}{part}", run.entity))?;
    cell(f, "", run.stage)?;
    cell(f, "n", run.rows)?;
    cell(f, "n", run.chunks)?;
    match run.percent {
        Some(percent) => cell(f, "n", format_args!("{percent:.0}%"))?,
        None => cell(f, "n", "unknown")?,
    }
    cell(f, "n", run.attempts)
}

fn span(seconds: f64) -> String {
    if seconds < 120.0 { format!("{seconds:.1} s") } else { format!("{:.0} min", seconds / 60.0) }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn size(bytes: u64) -> String {
    let mut size = bytes as f64;
    let mut units = ["B", "KiB", "MiB", "GiB", "TiB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    for larger in units {
        if size < 1024.0 {
            break;
        }
        (size, unit) = (size / 1024.0, larger);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{size:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use crate::runtime::{
        health::State,
        survey::{MappingState, MappingView, Survey, Told},
    };

    use super::*;

    #[test]
    fn every_text_is_escaped() {
        let evil = "<script>alert('x')</script>&\"";
        let told = Told { class: None, code: evil.to_owned(), message: evil.to_owned() };
        let view = MappingView {
            name: evil.to_owned(),
            entity: evil.to_owned(),
            sink: evil.to_owned(),
            state: MappingState::Failing,
            generation: 2,
            built: 1,
            attempts: 3,
            error: Some(told),
            held: None,
            queued_bytes: 5000,
            quarantined: 2,
        };
        let mut state = State::default();
        state.term_ended(Some((evil.to_owned(), Duration::ZERO)), Duration::ZERO);
        state.survey = Some(Arc::new(Survey { mappings: vec![view], ..Survey::default() }));
        let mut shape = HealthShape::new(evil, &state, Duration::ZERO);
        shape.reasons.push(evil.to_owned());
        let page = Page(&shape).to_string();
        assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;"), "{page}");
        assert!(!page.contains("<script") && !page.contains("alert('"), "{page}");
    }

    #[test]
    fn sizes_are_for_people() {
        let sizes = [0, 1023, 1024, 5 << 20, u64::MAX].map(size);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "5.0 MiB", "16777216.0 TiB"]);
    }
}
