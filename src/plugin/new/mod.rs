//! `plugin new`: a project to begin with, in each language: a transform for a table's own columns, or a sink.
//!
//! The project stands by itself: it has a copy of the SDK (none is published yet), a first transform that keeps every
//! column, or a sink that puts documents under URLs of their own, and a first test that passes, as does a transform's first
//! golden case. Must never: write over anything that is there.

mod columns;
mod golden;
mod names;
mod sdk;
mod templates;

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use super::{build::Language, describe::named};
use crate::model::{EntityName, Relation};

/// A language that a project is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProjectLanguage {
    /// Rust.
    Rust,
    /// JavaScript.
    JavaScript,
    /// TypeScript.
    TypeScript,
    /// Python.
    Python,
    /// C.
    C,
    /// Go.
    Go,
}

impl ProjectLanguage {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Rust, Self::JavaScript, Self::TypeScript, Self::Python, Self::C, Self::Go];

    /// What builds it.
    #[must_use]
    pub fn built_as(self) -> Language {
        match self {
            Self::Rust => Language::Rust,
            Self::JavaScript | Self::TypeScript => Language::JavaScript,
            Self::Python => Language::Python,
            Self::C => Language::C,
            Self::Go => Language::Go,
        }
    }
}

impl fmt::Display for ProjectLanguage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TypeScript => f.write_str("TypeScript"),
            other => other.built_as().fmt(f),
        }
    }
}

/// What a project is to be.
#[derive(Clone, Copy, Debug)]
pub enum NewPlugin<'a> {
    /// A transform for a table.
    Transform(&'a Relation),
    /// A sink.
    Sink,
}

/// A project that is wanted.
#[derive(Debug)]
pub struct NewProject<'a> {
    /// The language.
    pub language: ProjectLanguage,
    /// The plugin's name, and that of the project.
    pub name: &'a str,
    /// The folder to make.
    pub folder: &'a Path,
    /// What it is to be.
    pub plugin: NewPlugin<'a>,
}

impl NewProject<'_> {
    /// The commands that come next, as its author types them in its folder.
    #[must_use]
    pub fn commands(&self) -> Vec<String> {
        let (tests, tools) = match self.language {
            ProjectLanguage::Rust => (&["cargo test"][..], &["rustup target add wasm32-unknown-unknown"][..]),
            ProjectLanguage::JavaScript => (&["npm install", "npm test"][..], &[][..]),
            ProjectLanguage::TypeScript => (&["npm install", "npm run check", "npm test"][..], &[][..]),
            ProjectLanguage::Python => (&["python3 -m unittest discover tests"][..], VENV),
            ProjectLanguage::Go => (&["go test ./..."][..], &[][..]),
            ProjectLanguage::C => (&["make test"][..], VENV),
        };
        let golden = match self.plugin {
            NewPlugin::Transform(_) => &["anabranch plugin test"][..],
            NewPlugin::Sink => &[],
        };
        let all = [tests, tools, golden, &["anabranch plugin build"]].concat();
        all.into_iter().map(str::to_owned).collect()
    }
}

/// Tools that come in a virtual environment.
const VENV: &[&str] = &["python3 -m venv .venv", ".venv/bin/pip install -r requirements.txt"];

/// A project could not be made.
#[derive(Debug, thiserror::Error)]
pub enum NewError {
    /// A bad name.
    #[error(
        "`{0}` is no name for a plugin: a lower-case letter, then up to 63 lower-case letters, digits, - and _"
    )]
    Name(String),
    /// A name that the language has for something else.
    #[error(
        "`{name}` is a word of {language} or of its library; call the plugin `{name}-search` or the like"
    )]
    Taken {
        /// The name.
        name: String,
        /// The language.
        language: ProjectLanguage,
    },
    /// There is something.
    #[error("{} is there already; remove it, or give another name", .0.display())]
    Exists(PathBuf),
    /// The file system said no.
    #[error("{}: {problem}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        problem: io::Error,
    },
}

/// The columns of the sample table, for a project that nobody has told its table's.
#[must_use]
pub fn sample_table(name: EntityName) -> Relation {
    columns::sample(name)
}

/// Writes the project; gives its files, relative to its folder.
///
/// # Errors
/// See [`NewError`]. What was begun is left, so that the reason can be looked at.
pub fn create(project: &NewProject<'_>) -> Result<Vec<PathBuf>, NewError> {
    let NewProject { language, name, folder, plugin: _ } = *project;
    if !named(name) {
        return Err(NewError::Name(name.to_owned()));
    }
    let module = name.replace('-', "_");
    if names::is_taken(language, name, &module) {
        return Err(NewError::Taken { name: name.to_owned(), language });
    }
    if fs::symlink_metadata(folder).is_ok() {
        return Err(NewError::Exists(folder.to_owned()));
    }
    let mut written = Vec::new();
    for (path, text) in templates::files(project, &module) {
        let place = folder.join(&path);
        let problem = |problem| NewError::Io { path: place.clone(), problem };
        fs::create_dir_all(place.parent().unwrap_or(folder)).map_err(problem)?;
        fs::write(&place, text).map_err(problem)?;
        written.push(PathBuf::from(path));
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Column, ReplicaIdentity, ValueType};

    fn made(language: ProjectLanguage, plugin: NewPlugin<'_>) -> (tempfile::TempDir, Vec<PathBuf>) {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("p");
        let project = NewProject { language, name: "odd-names", folder: &place, plugin };
        let files = create(&project).unwrap();
        let again = create(&project);
        assert!(matches!(again, Err(NewError::Exists(_))), "nothing is written over");
        (folder, files)
    }

    /// A place that a template has and nothing fills: `{{word}}`.
    fn unfilled(text: &str) -> Option<&str> {
        let places = text.split("{{").skip(1).filter_map(|rest| rest.split_once("}}"));
        let is_word = |place: &str| place.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        places.map(|(place, _)| place).find(|place| is_word(place))
    }

    #[test]
    fn every_place_of_every_template_is_filled() {
        assert_eq!(unfilled("a {{ b }} {{C}} {{d}}"), Some("d"));
        let table = sample_table(EntityName::new("public", "products"));
        for language in ProjectLanguage::ALL {
            for plugin in [NewPlugin::Transform(&table), NewPlugin::Sink] {
                let (folder, files) = made(language, plugin);
                assert!(files.len() > 8, "{files:?}");
                for file in files.iter().filter(|file| !file.starts_with("anabranch-sdk")) {
                    let text = fs::read_to_string(folder.path().join("p").join(file)).unwrap();
                    assert_eq!(unfilled(&text), None, "{language}: {}", file.display());
                }
            }
        }
    }

    #[test]
    fn a_sink_says_what_to_do_with_it() {
        for (language, words) in [
            (ProjectLanguage::Rust, ["cargo test", "src/lib.rs"]),
            (ProjectLanguage::TypeScript, ["npm run check", "src/index.ts"]),
            (ProjectLanguage::Python, [".venv/bin/pip install", "tests/test_odd_names.py"]),
            (ProjectLanguage::C, ["make test", "src/plugin.c"]),
        ] {
            let (folder, files) = made(language, NewPlugin::Sink);
            assert!(!files.iter().any(|file| file.starts_with("golden")), "{files:?}");
            let text = fs::read_to_string(folder.path().join("p/README.md")).unwrap();
            for words in words.into_iter().chain(["plugin = \"odd-names\"", "anabranch plugin build\n"]) {
                assert!(text.contains(words), "{words}: {text}");
            }
            assert!(!text.contains("plugin test"), "that is for transforms: {text}");
        }
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        let table = sample_table(EntityName::new("public", "products"));
        let folder = tempfile::tempdir().unwrap();
        let refused = |language, name| {
            let plugin = NewPlugin::Transform(&table);
            let project = NewProject { language, name, folder: &folder.path().join("p"), plugin };
            create(&project).unwrap_err()
        };
        for language in ProjectLanguage::ALL {
            assert!(matches!(refused(language, "Big Name"), NewError::Name(_)));
            assert!(matches!(refused(language, "../up"), NewError::Name(_)));
        }
        assert!(matches!(refused(ProjectLanguage::Python, "json"), NewError::Taken { .. }));
        assert!(matches!(refused(ProjectLanguage::Rust, "type"), NewError::Taken { .. }));
        assert!(matches!(refused(ProjectLanguage::Go, "plugin"), NewError::Taken { .. }));
        assert!(matches!(refused(ProjectLanguage::JavaScript, "anabranch-sdk"), NewError::Taken { .. }));
        assert!(matches!(refused(ProjectLanguage::TypeScript, "anabranch-sdk"), NewError::Taken { .. }));
    }

    #[test]
    fn columns_of_any_name_can_be_read() {
        let column = |name: &str, value_type| Column {
            name: name.to_owned(),
            type_oid: 0,
            value_type,
            identity: false,
        };
        let table = Relation {
            oid: 1,
            name: EntityName::new("Sales", "Order \"Items\""),
            replica_identity: ReplicaIdentity::Default,
            columns: vec![
                column("type", ValueType::Integer),
                column("Unit Price", ValueType::Numeric),
                column("a\"b\\c", ValueType::Text),
            ],
            key: vec![0],
        };
        let (folder, _) = made(ProjectLanguage::Rust, NewPlugin::Transform(&table));
        let text = fs::read_to_string(folder.path().join("p/src/lib.rs")).unwrap();
        for words in [
            r#"#[serde(rename = "type")]"#,
            "column_1: i64",
            r#"#[serde(rename = "a\"b\\c")]"#,
            r#"TABLES: &'static [&'static str] = &["Sales.\"Order \"\"Items\"\"\""]"#,
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let (folder, _) = made(ProjectLanguage::TypeScript, NewPlugin::Transform(&table));
        let text = fs::read_to_string(folder.path().join("p/src/index.ts")).unwrap();
        for words in [
            "  type: number | bigint;",
            r#"  "Unit Price": string | null;"#,
            r#"  "a\"b\\c": string | null;"#,
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let (folder, _) = made(ProjectLanguage::Python, NewPlugin::Transform(&table));
        let text = fs::read_to_string(folder.path().join("p/odd_names.py")).unwrap();
        assert!(text.contains(r#"columns=["type", "Unit Price", "a\"b\\c"]"#), "{text}");
    }
}
