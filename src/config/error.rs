//! What is wrong with a config file, said so that it can be put right: file, line, column, key, remedy.
//!
//! Every problem of a file is told at once. A message may quote what was typed, never what a reference
//! stood for.

use std::{cell::RefCell, fmt, path::PathBuf};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it is: line and column, both from 1, the column in characters. None where the file as a whole,
    /// or something outside it, is meant.
    pub position: Option<(usize, usize)>,
    /// The dotted path of the key, such as `sink.search.path` or `map[0].table`; empty for the whole file.
    pub key: String,
    /// What is wrong and what to do.
    pub message: String,
}

/// A config file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The file, as it was named.
    pub file: PathBuf,
    /// What is wrong, in the order of the file; never empty.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// An error about the file as a whole.
    pub(crate) fn whole(file: impl Into<PathBuf>, message: impl Into<String>) -> Self {
        let problem = Problem { position: None, key: String::new(), message: message.into() };
        Self { file: file.into(), problems: vec![problem] }
    }
}

impl fmt::Display for ConfigError {
    /// One line a problem: `anabranch.toml:3:1: pipline: …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{}", self.file.display())?;
            if let Some((line, column)) = problem.position {
                write!(f, ":{line}:{column}")?;
            }
            f.write_str(": ")?;
            if !problem.key.is_empty() {
                write!(f, "{}: ", problem.key)?;
            }
            f.write_str(&problem.message)?;
        }
        Ok(())
    }
}

/// Where a key or value stands: its byte offset in the file, and its dotted path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct At {
    pub(super) offset: Option<usize>,
    pub(super) key: String,
}

/// The problems found so far, shared by all who read a file.
#[derive(Debug, Default)]
pub(super) struct Problems(RefCell<Vec<(Option<usize>, Problem)>>);

impl Problems {
    pub(super) fn add(&self, at: &At, message: impl Into<String>) {
        let problem = Problem { position: None, key: at.key.clone(), message: message.into() };
        self.0.borrow_mut().push((at.offset, problem));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// The error that they make, in the order of the file; none if nothing is wrong.
    pub(super) fn into_error(self, file: impl Into<PathBuf>, text: &str) -> Option<ConfigError> {
        let mut found = self.0.into_inner();
        found.sort_by_key(|(offset, _)| offset.unwrap_or(usize::MAX));
        let problems: Vec<_> = found
            .into_iter()
            .map(|(offset, problem)| Problem { position: offset.map(|at| position(text, at)), ..problem })
            .collect();
        (!problems.is_empty()).then(|| ConfigError { file: file.into(), problems })
    }
}

/// Line and column, from 1, of a byte offset.
pub(super) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// `; did you mean …?` for the name that is nearest to `typed`, or nothing if none is near.
pub(crate) fn did_you_mean<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    match nearest(typed, names) {
        Some(name) => format!("; did you mean `{name}`?"),
        None => String::new(),
    }
}

/// The name that `typed` was probably meant to be.
pub(crate) fn nearest<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = typed.to_lowercase();
    let contains = |name: &str| {
        let (long, short) =
            if name.len() > lower.len() { (name, lower.as_str()) } else { (lower.as_str(), name) };
        short.len() >= 3 && long.contains(short)
    };
    let scored = names.into_iter().filter_map(|name| {
        let distance = strsim::osa_distance(&lower, &name.to_lowercase());
        let close = distance <= 1 + name.chars().count() / 4;
        (close || contains(name)).then_some((distance, name))
    });
    scored.min().map(|(_, name)| name)
}

/// `a`, `b` and `c`.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.into_iter().map(|name| format!("`{name}`")).collect();
    match names.split_last() {
        None => "none".to_owned(),
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_characters_from_one() {
        let text = "a = 1\né = 2\n";
        assert_eq!(position(text, 0), (1, 1));
        assert_eq!(position(text, 6), (2, 1));
        assert_eq!(position(text, 8), (2, 2), "a two-byte letter is one column");
        assert_eq!(position(text, text.len()), (3, 1));
        assert_eq!(position(text, 7), (3, 1), "an offset inside a letter is no place: the end");
    }

    #[test]
    fn the_nearest_name_is_near() {
        assert_eq!(nearest("serach", ["stock", "search"]), Some("search"));
        assert_eq!(nearest("retires", ["retries", "url"]), Some("retries"));
        assert_eq!(nearest("mapping", ["map", "sink"]), Some("map"));
        assert_eq!(nearest("banana", ["map", "sink"]), None);
        assert_eq!(nearest("SLOT", ["slot"]), Some("slot"));
    }
}
