//! Golden cases: folders with `rows.json` and `documents.json`, and how answers differ from what is expected.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    answers::{Answer, Step},
    document::{compare, excerpt},
    rows::Rows,
};

const ROWS: &str = "rows.json";
const DOCUMENTS: &str = "documents.json";

/// A golden case cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorError {
    /// No cases.
    #[error(
        "{} has no golden case: make a folder in it with a {ROWS}, as in docs/plugins/README.md", .0.display()
    )]
    NoCases(PathBuf),
    /// The file system said no.
    #[error("{}: {problem}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        problem: io::Error,
    },
    /// A file is not of its form.
    #[error("{}: {problem}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// Rows, and what is expected of them.
#[derive(Debug)]
pub struct Case {
    /// The name of its folder.
    pub name: String,
    folder: PathBuf,
    /// Its rows.
    pub rows: Rows,
    /// None where nothing is expected yet.
    expected: Option<Vec<Expected>>,
}

/// One place where answers are not as expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// The row's name.
    pub row: String,
    /// The document's id, where it is one document's.
    pub id: Option<String>,
    /// The field; `outcome` or `failure.…` where no document is compared, empty for a whole document.
    pub field: String,
    /// What was expected, none where nothing was.
    pub expected: Option<String>,
    /// What came out.
    pub actual: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    row: String,
    #[serde(default)]
    steps: Vec<ExpectedStep>,
    failure: Option<ExpectedFailure>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedStep {
    upsert: Option<String>,
    delete: Option<String>,
    destination: Option<String>,
    document: Option<Box<RawValue>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedFailure {
    class: String,
    code: String,
    /// Not compared where it is left out.
    message: Option<String>,
}

/// The cases in a folder, by name; the folder itself may be one.
///
/// # Errors
/// There is none, or one that cannot be read.
pub fn cases(folder: &Path) -> Result<Vec<Case>, AuthorError> {
    let io = |problem| AuthorError::Io { path: folder.to_owned(), problem };
    let mut folders = Vec::new();
    if folder.join(ROWS).is_file() {
        folders.push(folder.to_owned());
    }
    for entry in fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.join(ROWS).is_file() {
            folders.push(path);
        }
    }
    folders.sort();
    if folders.is_empty() {
        return Err(AuthorError::NoCases(folder.to_owned()));
    }
    folders.into_iter().map(Case::read).collect()
}

fn read(path: &Path) -> Result<String, AuthorError> {
    fs::read_to_string(path).map_err(|problem| AuthorError::Io { path: path.to_owned(), problem })
}

impl Case {
    fn read(folder: PathBuf) -> Result<Self, AuthorError> {
        let form = |path: &Path, problem| AuthorError::Form { path: path.to_owned(), problem };
        let path = folder.join(ROWS);
        let rows = Rows::parse(&read(&path)?).map_err(|problem| form(&path, problem))?;
        let path = folder.join(DOCUMENTS);
        let expected = match fs::exists(&path) {
            Ok(false) => None,
            _ => Some(expected(&read(&path)?, &rows.names).map_err(|problem| form(&path, problem))?),
        };
        let name = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned();
        Ok(Self { name, folder, rows, expected })
    }

    /// Where answers, one a row, are not as expected. All of them are where nothing is expected yet.
    #[must_use]
    pub fn mismatches(&self, answers: &[Answer]) -> Vec<Mismatch> {
        let expected = self.expected.as_deref().unwrap_or_default();
        let mut found = Vec::new();
        for (name, answer) in self.rows.names.iter().zip(answers) {
            match expected.iter().find(|expected| expected.row == *name) {
                Some(expected) => mismatches(expected, answer, &mut found),
                None => found.push(outcome(name, None, Some(told(answer)))),
            }
        }
        found
    }

    /// Writes what came out as what is expected, by rename.
    ///
    /// # Errors
    /// The file system says no; what was expected stays then.
    pub fn update(&self, answers: &[Answer]) -> Result<PathBuf, AuthorError> {
        let path = self.folder.join(DOCUMENTS);
        let text = written(&self.rows.names, answers);
        let write = || {
            let file = tempfile::NamedTempFile::new_in(&self.folder)?;
            fs::write(file.path(), &text)?;
            #[cfg(unix)]
            {
                use std::os::unix::fs::PermissionsExt as _;
                // A temporary file is for its owner alone; expectations are for whoever may read the rows.
                let mode = fs::metadata(self.folder.join(ROWS))?.permissions().mode();
                fs::set_permissions(file.path(), fs::Permissions::from_mode(mode))?;
            }
            file.persist(&path).map_err(|error| error.error)?;
            Ok(())
        };
        write().map_err(|problem| AuthorError::Io { path: path.clone(), problem })?;
        Ok(path)
    }
}

fn expected(text: &str, names: &[String]) -> Result<Vec<Expected>, String> {
    let all: Vec<Expected> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    for (at, expected) in all.iter().enumerate() {
        let row = &expected.row;
        if !names.contains(row) {
            return Err(format!(
                "{ROWS} has no row `{row}`; rename it there or here, or take it out with --update"
            ));
        }
        if all[..at].iter().any(|before| before.row == *row) {
            return Err(format!("the row `{row}` stands there twice"));
        }
        if expected.failure.is_some() && !expected.steps.is_empty() {
            return Err(format!("`{row}`: a row that fails has no steps"));
        }
        for step in &expected.steps {
            match (&step.upsert, &step.delete, &step.document) {
                // `"document": null` cannot be told from none.
                (Some(_), None, _) | (None, Some(_), None) => {}
                _ => {
                    return Err(format!(
                        "`{row}`: a step is {{\"upsert\": ID, \"document\": …}} or {{\"delete\": ID}}"
                    ));
                }
            }
        }
    }
    Ok(all)
}

fn outcome(row: &str, expected: Option<String>, actual: Option<String>) -> Mismatch {
    Mismatch { row: row.to_owned(), id: None, field: "outcome".to_owned(), expected, actual }
}

fn mismatches(expected: &Expected, answer: &Answer, found: &mut Vec<Mismatch>) {
    let row = &expected.row;
    match (answer, &expected.failure) {
        (Answer::Failed(failure), Some(wanted)) => {
            let mut differs = |field: &str, expected: &str, actual: &str| {
                if expected != actual {
                    found.push(Mismatch {
                        field: format!("failure.{field}"),
                        ..outcome(row, Some(expected.to_owned()), Some(actual.to_owned()))
                    });
                }
            };
            differs("class", &wanted.class, failure.class.as_str());
            differs("code", &wanted.code, &failure.code);
            if let Some(message) = &wanted.message {
                differs("message", message, &failure.message);
            }
        }
        (Answer::Steps(steps), None) => {
            let wanted: Vec<Step> = expected.steps.iter().map(ExpectedStep::to_step).collect();
            if !wanted.iter().map(named).eq(steps.iter().map(named)) {
                found.push(outcome(row, Some(listed(&wanted)), Some(listed(steps))));
                return;
            }
            for (wanted, step) in wanted.iter().zip(steps) {
                let (Some(left), Some(right)) = (&wanted.document, &step.document) else { continue };
                found.extend(compare(left, right).into_iter().map(|difference| Mismatch {
                    row: row.clone(),
                    id: Some(step.id.clone()),
                    field: difference.path,
                    expected: difference.left,
                    actual: difference.right,
                }));
            }
        }
        (answer, wanted) => {
            let wanted = match wanted {
                Some(failure) => format!("a failure ({}, {})", failure.code, failure.class),
                None => listed(&expected.steps.iter().map(ExpectedStep::to_step).collect::<Vec<_>>()),
            };
            found.push(outcome(row, Some(wanted), Some(told(answer))));
        }
    }
}

impl ExpectedStep {
    fn to_step(&self) -> Step {
        let body = || self.document.as_ref().map_or("null", |document| document.get()).to_owned();
        Step {
            destination: self.destination.clone(),
            id: self.upsert.as_ref().or(self.delete.as_ref()).cloned().unwrap_or_default(),
            document: self.upsert.is_some().then(body),
        }
    }
}

/// A step without its document's fields: operation, id, destination.
fn named(step: &Step) -> (bool, &str, Option<&str>) {
    (step.document.is_some(), &step.id, step.destination.as_deref())
}

fn listed(steps: &[Step]) -> String {
    let one = |step: &Step| {
        let word = if step.document.is_some() { "upsert" } else { "delete" };
        let place = step.destination.as_ref().map(|name| format!(" in {name}")).unwrap_or_default();
        format!("{word} {}{place}", step.id)
    };
    let all: Vec<_> = steps.iter().map(one).collect();
    excerpt(if all.is_empty() { "skip".to_owned() } else { all.join(", ") })
}

fn told(answer: &Answer) -> String {
    match answer {
        Answer::Steps(steps) => listed(steps),
        Answer::Failed(failure) => format!("a failure: {failure}"),
    }
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// The text of a `documents.json`. Documents are written as they came.
fn written(names: &[String], answers: &[Answer]) -> String {
    let mut out = String::from("[\n");
    for (at, (name, answer)) in names.iter().zip(answers).enumerate() {
        let comma = if at == 0 { "" } else { ",\n" };
        // Writing to a String cannot fail.
        let _ = write!(out, "{comma}  {{ \"row\": {},", quoted(name));
        match answer {
            Answer::Failed(failure) => {
                let (class, code) = (failure.class, quoted(&failure.code));
                let message = quoted(&failure.message);
                let _ = write!(
                    out,
                    "\n    \"failure\": {{ \"class\": \"{class}\", \"code\": {code}, \"message\": {message} }} }}"
                );
            }
            Answer::Steps(steps) if steps.is_empty() => out.push_str(" \"steps\": [] }"),
            Answer::Steps(steps) => {
                out.push_str(" \"steps\": [");
                for (at, step) in steps.iter().enumerate() {
                    let comma = if at == 0 { "" } else { "," };
                    let word = if step.document.is_some() { "upsert" } else { "delete" };
                    let _ = write!(out, "{comma}\n    {{ \"{word}\": {}", quoted(&step.id));
                    if let Some(destination) = &step.destination {
                        let _ = write!(out, ", \"destination\": {}", quoted(destination));
                    }
                    if let Some(document) = &step.document {
                        let _ = write!(out, ", \"document\": {document}");
                    }
                    out.push_str(" }");
                }
                out.push_str(" ] }");
            }
        }
    }
    out.push_str("\n]\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Failure, FailureClass};

    fn upsert(id: &str, document: &str) -> Step {
        Step { destination: None, id: id.to_owned(), document: Some(document.to_owned()) }
    }

    fn delete(id: &str) -> Step {
        Step { destination: None, id: id.to_owned(), document: None }
    }

    fn answers() -> Vec<Answer> {
        let elsewhere = Step { destination: Some("else\"where".to_owned()), ..delete("4") };
        vec![
            Answer::Steps(vec![
                delete("0"),
                upsert("1", "{\"price\": 19.90}"),
                upsert("2", "null"),
                elsewhere,
            ]),
            Answer::Steps(Vec::new()),
            Answer::Failed(Failure::new(FailureClass::Poison, "total", "no \"total\"")),
        ]
    }

    fn case(folder: &Path) -> Case {
        let rows = r#"{"table": "public.t", "columns": {"id": "int"},
            "rows": [{"what": "a \"b\"", "new": {"id": "1"}}, {"new": {"id": "2"}}, {"new": {"id": "3"}}]}"#;
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(ROWS), rows).unwrap();
        Case::read(folder.to_owned()).unwrap()
    }

    #[test]
    fn what_was_written_is_what_is_expected() {
        let folder = tempfile::tempdir().unwrap();
        let first = case(&folder.path().join("first"));
        assert_eq!(first.mismatches(&answers()).len(), 3, "nothing is expected yet");
        first.update(&answers()).unwrap();
        let again = cases(folder.path()).unwrap().remove(0);
        assert_eq!(again.mismatches(&answers()), []);
        assert_eq!(fs::read_dir(folder.path().join("first")).unwrap().count(), 2, "nothing is left behind");
    }

    #[test]
    fn a_difference_is_told_by_row_document_and_field() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("first");
        case(&place).update(&answers()).unwrap();
        let mut changed = answers();
        if let Answer::Steps(steps) = &mut changed[0] {
            steps[1] = upsert("1", "{\"price\":19.9}");
        }
        changed[1] = Answer::Steps(vec![delete("2")]);
        changed[2] = Answer::Failed(Failure::new(FailureClass::Retry, "total", "other"));
        let found: Vec<_> = case(&place)
            .mismatches(&changed)
            .into_iter()
            .map(|m| (m.row, m.id.unwrap_or_default(), m.field, m.expected.unwrap(), m.actual.unwrap()))
            .map(|(row, id, field, expected, actual)| format!("{row}|{id}|{field}|{expected}|{actual}"))
            .collect();
        assert_eq!(
            found,
            [
                "a \"b\"|1|price|19.90|19.9",
                "row 2||outcome|skip|delete 2",
                "row 3||failure.class|poison|retry",
                "row 3||failure.message|no \"total\"|other",
            ]
        );
    }

    #[test]
    fn expectations_that_cannot_be_meant_are_refused() {
        let names = ["a".to_owned()];
        let said = |text: &str, words: &str| {
            let error = expected(text, &names).unwrap_err();
            assert!(error.contains(words), "{error}");
        };
        said(r#"[{"row": "b"}]"#, "no row `b`");
        said(r#"[{"row": "a"}, {"row": "a"}]"#, "twice");
        said(r#"[{"row": "a", "steps": [{"delete": "1", "document": {}}]}]"#, "a step is");
        said(r#"[{"row": "a", "steps": [{"document": {}}]}]"#, "a step is");
        let both = r#"[{"row": "a", "steps": [{"delete": "1"}],
            "failure": {"class": "poison", "code": "x"}}]"#;
        said(both, "no steps");
    }
}
