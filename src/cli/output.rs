//! Results on stdout: sentences for people, or one JSON value for programs.

use std::{
    fmt,
    io::{self, ErrorKind, Write},
    time::Duration,
};

use serde::Serialize;

/// Where the result of a command goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    /// Whether the result is one JSON value.
    pub(super) json: bool,
}

impl Output {
    /// Writes a result: as JSON, or as the text that `text` makes of it.
    pub(super) fn result<T: Serialize>(self, value: &T, text: impl FnOnce(&T) -> String) -> io::Result<()> {
        let mut shown = if self.json { serde_json::to_string_pretty(value)? } else { text(value) };
        if !shown.is_empty() && !shown.ends_with('\n') {
            shown.push('\n');
        }
        write(&mut io::stdout().lock(), &shown)
    }

    /// Writes an error: on stderr for people, on stdout as JSON.
    pub(super) fn error(self, error: &ErrorShape) -> io::Result<()> {
        if self.json {
            #[derive(Serialize)]
            struct Wrapped<'a> {
                error: &'a ErrorShape,
            }
            return self.result(&Wrapped { error }, |_| String::new());
        }
        write(&mut io::stderr().lock(), &format!("error: {}\n", error.message))
    }
}

/// A reader that has gone away (`anabranch status | head -1`) has seen what it wanted.
fn write(to: &mut impl Write, text: &str) -> io::Result<()> {
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// The JSON shape of an error.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ErrorShape {
    /// `config` (exit code 2) or `failed` (exit code 1).
    pub(super) kind: &'static str,
    /// One or several sentences.
    pub(super) message: String,
    /// What is wrong with the config file, one by one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) problems: Vec<ProblemShape>,
}

/// The JSON shape of one problem of a config file.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ProblemShape {
    /// The file, as it was named.
    pub(super) file: String,
    /// From 1.
    pub(super) line: Option<usize>,
    /// From 1, in characters.
    pub(super) column: Option<usize>,
    /// The dotted path of the key.
    pub(super) key: String,
    /// What is wrong and what to do.
    pub(super) message: String,
}

impl fmt::Display for ProblemShape {
    /// As [`ConfigError`](crate::config::ConfigError) writes it: `anabranch.toml:3:1: source.solt: …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, ":{line}:{column}")?;
        }
        let separator = if self.key.is_empty() { "" } else { ": " };
        write!(f, "{separator}{}: {}", self.key, self.message)
    }
}

/// Lines up rows under a heading, two spaces between columns.
pub(super) fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<_> = heading.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let heading: Vec<_> = heading.iter().map(|&cell| cell.to_owned()).collect();
    for row in std::iter::once(&heading).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let padding = " ".repeat(width.saturating_sub(cell.chars().count()) + 2);
            line.push_str(cell);
            line.push_str(&padding);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A size for people: `1.5 GiB`.
pub(super) fn bytes(size: u64) -> String {
    let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(scale, _)| size >= *scale) {
        Some((scale, unit)) => {
            let tenths = size / (scale / 10);
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        }
        None => format!("{size} B"),
    }
}

/// A time for people: `69 s`, `12 min 5 s`, `3 h 20 min`.
pub(super) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 if !time.is_zero() => "<1 s".to_owned(),
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// `1 request`, `2 requests`
pub(super) fn several(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", count(i64::try_from(number).unwrap_or(i64::MAX)))
}

/// `1 request is`, `2 requests are`
pub(super) fn several_are(number: u64, what: &str) -> String {
    format!("{} {}", several(number, what), if number == 1 { "is" } else { "are" })
}

/// A count for people: `1 000 210`.
pub(super) fn count(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::from(if number < 0 { "-" } else { "" });
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(16 << 20), "16.0 MiB");
        assert_eq!(count(1_000_210), "1 000 210");
        assert_eq!(count(-12), "-12");
        let times = [0, 119, 725, 12_000].map(|seconds| duration(Duration::from_secs(seconds)));
        assert_eq!(times, ["0 s", "119 s", "12 min 5 s", "3 h 20 min"]);
        assert_eq!(duration(Duration::from_millis(3)), "<1 s");
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["é".to_owned(), "1".to_owned()], vec!["long".to_owned(), "2".to_owned()]];
        assert_eq!(table(&["a", "b"], &rows), "a     b\né     1\nlong  2\n");
    }

    struct Gone;

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_left_is_no_error() {
        assert!(write(&mut Gone, "x").is_ok());
    }
}
