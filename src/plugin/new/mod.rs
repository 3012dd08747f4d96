//! `plugin new`: a project to begin with, in each language, for a table's own columns.
//!
//! The project stands by itself: it has a copy of the SDK (none is published yet), a first transform that keeps every
//! column, a first test and a first golden case that pass. Must never: write over anything that is there.

mod columns;
mod golden;
mod sdk;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{build::Language, describe::named};
use crate::model::{EntityName, Relation};
use columns::{Columns, quoted};

/// A project that is wanted.
#[derive(Debug)]
pub struct NewProject<'a> {
    /// The language.
    pub language: Language,
    /// The plugin's name, and that of the project.
    pub name: &'a str,
    /// The folder to make.
    pub folder: &'a Path,
    /// The table that it is for.
    pub table: &'a Relation,
}

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
        language: Language,
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

/// Names that would hide what every Python program needs, or that its grammar keeps.
const PYTHON: &[&str] = &[
    "and",
    "as",
    "assert",
    "async",
    "await",
    "break",
    "class",
    "collections",
    "continue",
    "dataclasses",
    "decimal",
    "def",
    "del",
    "elif",
    "else",
    "except",
    "finally",
    "for",
    "from",
    "global",
    "if",
    "import",
    "in",
    "is",
    "json",
    "lambda",
    "math",
    "nonlocal",
    "not",
    "or",
    "pass",
    "raise",
    "re",
    "return",
    "sys",
    "tests",
    "try",
    "types",
    "typing",
    "unittest",
    "while",
    "with",
    "yield",
    "anabranch_sdk",
];

/// Names that Go knows as packages of its own.
const GO: &[&str] = &[
    "all",
    "anabranch-sdk",
    "bufio",
    "builtin",
    "bytes",
    "cmd",
    "cmp",
    "context",
    "crypto",
    "embed",
    "encoding",
    "errors",
    "expvar",
    "flag",
    "fmt",
    "hash",
    "html",
    "image",
    "internal",
    "io",
    "iter",
    "log",
    "main",
    "maps",
    "math",
    "mime",
    "net",
    "os",
    "path",
    "plugin",
    "reflect",
    "regexp",
    "runtime",
    "slices",
    "sort",
    "std",
    "strconv",
    "strings",
    "structs",
    "sync",
    "syscall",
    "test",
    "testing",
    "time",
    "tool",
    "unicode",
    "unique",
    "unsafe",
    "vendor",
    "weak",
    "work",
];

/// Names that cargo or Rust refuses.
const RUST: &[&str] = &[
    "abstract",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "const",
    "continue",
    "crate",
    "do",
    "dyn",
    "else",
    "enum",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "pub",
    "ref",
    "return",
    "self",
    "static",
    "struct",
    "super",
    "test",
    "trait",
    "true",
    "try",
    "type",
    "typeof",
    "unsafe",
    "unsized",
    "use",
    "virtual",
    "where",
    "while",
    "yield",
    "anabranch-sdk",
    "serde",
];

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
    let NewProject { language, name, folder, table } = *project;
    if !named(name) {
        return Err(NewError::Name(name.to_owned()));
    }
    let module = name.replace('-', "_");
    let taken = match language {
        Language::Rust => RUST.contains(&name),
        Language::JavaScript => name == "anabranch-sdk",
        Language::Python => PYTHON.contains(&module.as_str()),
        Language::C => false,
        // Packages of the standard library, and the SDK, have the same paths.
        Language::Go => GO.contains(&name),
    };
    if taken {
        return Err(NewError::Taken { name: name.to_owned(), language });
    }
    if fs::symlink_metadata(folder).is_ok() {
        return Err(NewError::Exists(folder.to_owned()));
    }
    let mut written = Vec::new();
    for (path, text) in files(language, name, &module, table) {
        let place = folder.join(&path);
        let problem = |problem| NewError::Io { path: place.clone(), problem };
        fs::create_dir_all(place.parent().unwrap_or(folder)).map_err(problem)?;
        fs::write(&place, text).map_err(problem)?;
        written.push(PathBuf::from(path));
    }
    Ok(written)
}

macro_rules! template {
    ($path:literal) => {
        include_str!(concat!("../../../plugins/templates/", $path))
    };
}

/// Paths and texts.
fn files(language: Language, name: &str, module: &str, table: &Relation) -> Vec<(String, String)> {
    let columns = Columns::of(table);
    let table_text = quoted(&table.name.to_string());
    let mut values = vec![
        ("name", name.to_owned()),
        ("module", module.to_owned()),
        ("table", table.name.to_string()),
        ("table_text", table_text),
        ("columns", columns.names()),
        ("raw", columns.raw()),
        ("document", columns.document()),
        ("document_text", quoted(&columns.document())),
    ];
    let templates: Vec<(String, &str)> = match language {
        Language::Rust => {
            values.extend(columns.rust());
            vec![
                ("Cargo.toml".to_owned(), template!("rust/Cargo.toml")),
                (".gitignore".to_owned(), template!("rust/gitignore")),
                ("src/lib.rs".to_owned(), template!("rust/src/lib.rs")),
            ]
        }
        Language::JavaScript => {
            values.extend(columns.javascript());
            vec![
                ("package.json".to_owned(), template!("javascript/package.json")),
                (".gitignore".to_owned(), template!("javascript/gitignore")),
                ("src/index.js".to_owned(), template!("javascript/src/index.js")),
                ("test/plugin.test.js".to_owned(), template!("javascript/test/plugin.test.js")),
            ]
        }
        Language::Python => {
            values.extend(columns.python());
            vec![
                ("pyproject.toml".to_owned(), template!("python/pyproject.toml")),
                ("requirements.txt".to_owned(), template!("python/requirements.txt")),
                (".gitignore".to_owned(), template!("python/gitignore")),
                (format!("{module}.py"), template!("python/plugin.py")),
                (format!("tests/test_{module}.py"), template!("python/tests/test_plugin.py")),
            ]
        }
        Language::Go => {
            values.extend(columns.go());
            vec![
                ("go.mod".to_owned(), template!("go/go.mod")),
                (".gitignore".to_owned(), template!("go/gitignore")),
                ("main.go".to_owned(), template!("go/main.go")),
                ("main_test.go".to_owned(), template!("go/main_test.go")),
            ]
        }
        Language::C => {
            values.extend(columns.c(&table.name));
            vec![
                ("plugin.toml".to_owned(), template!("c/plugin.toml")),
                ("requirements.txt".to_owned(), template!("c/requirements.txt")),
                ("Makefile".to_owned(), template!("c/Makefile")),
                (".gitignore".to_owned(), template!("c/gitignore")),
                ("src/plugin.c".to_owned(), template!("c/src/plugin.c")),
                ("test/test_plugin.c".to_owned(), template!("c/test/test_plugin.c")),
            ]
        }
    };
    let own = templates.into_iter().map(|(path, text)| (path, filled(text, &values)));
    let own = own.chain(golden::files(table));
    own.chain(sdk::files(language).map(|(path, text)| (path.to_owned(), text.to_owned()))).collect()
}

/// A template with its places filled. One pass: what is filled in is not looked at again.
fn filled(template: &str, values: &[(&str, String)]) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        rest = match after.split_once("}}") {
            Some((key, after)) if values.iter().any(|(known, _)| *known == key) => {
                out.extend(values.iter().filter(|(known, _)| *known == key).map(|(_, value)| value.as_str()));
                after
            }
            _ => {
                out.push_str("{{");
                after
            }
        };
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Column, ReplicaIdentity, ValueType};

    fn made(language: Language, table: &Relation) -> (tempfile::TempDir, Vec<PathBuf>) {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("p");
        let project = NewProject { language, name: "odd-names", folder: &place, table };
        let files = create(&project).unwrap();
        (folder, files)
    }

    #[test]
    fn every_place_of_every_template_is_filled() {
        let table = sample_table(EntityName::new("public", "products"));
        for language in Language::ALL {
            let (folder, files) = made(language, &table);
            assert!(files.len() > 8, "{files:?}");
            for file in files.iter().filter(|file| !file.starts_with("anabranch-sdk")) {
                let text = fs::read_to_string(folder.path().join("p").join(file)).unwrap();
                let left = [
                    "name",
                    "module",
                    "table",
                    "columns",
                    "raw",
                    "document",
                    "fields",
                    "test_row",
                    "bindings",
                    "positions",
                    "puts",
                    "table_comment",
                ];
                let left = left.iter().find(|key| text.contains(&format!("{{{{{key}}}}}")));
                assert_eq!(left, None, "{language}: {}", file.display());
            }
            let error = create(&NewProject {
                language,
                name: "odd-names",
                folder: &folder.path().join("p"),
                table: &table,
            });
            assert!(matches!(error, Err(NewError::Exists(_))), "nothing is written over");
        }
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        let table = sample_table(EntityName::new("public", "products"));
        let folder = tempfile::tempdir().unwrap();
        let refused = |language, name| {
            let project = NewProject { language, name, folder: &folder.path().join("p"), table: &table };
            create(&project).unwrap_err()
        };
        for language in Language::ALL {
            assert!(matches!(refused(language, "Big Name"), NewError::Name(_)));
            assert!(matches!(refused(language, "../up"), NewError::Name(_)));
        }
        assert!(matches!(refused(Language::Python, "json"), NewError::Taken { .. }));
        assert!(matches!(refused(Language::Rust, "type"), NewError::Taken { .. }));
        assert!(matches!(refused(Language::Go, "plugin"), NewError::Taken { .. }));
        assert!(matches!(refused(Language::JavaScript, "anabranch-sdk"), NewError::Taken { .. }));
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
        let (folder, _) = made(Language::Rust, &table);
        let text = fs::read_to_string(folder.path().join("p/src/lib.rs")).unwrap();
        for words in [
            r#"#[serde(rename = "type")]"#,
            "column_1: i64",
            r#"#[serde(rename = "a\"b\\c")]"#,
            r#"TABLES: &'static [&'static str] = &["Sales.\"Order \"\"Items\"\"\""]"#,
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let (folder, _) = made(Language::Python, &table);
        let text = fs::read_to_string(folder.path().join("p/odd_names.py")).unwrap();
        assert!(text.contains(r#"columns=["type", "Unit Price", "a\"b\\c"]"#), "{text}");
    }

    #[test]
    fn places_are_filled_once() {
        let values = [("a", "{{b}}".to_owned()), ("b", "x".to_owned())];
        assert_eq!(filled("{{a}} {{b}} {{c}} {{", &values), "{{b}} x {{c}} {{");
    }
}
