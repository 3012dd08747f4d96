//! The files of a project, and how their places are filled.

use super::{
    NewPlugin, NewProject, ProjectLanguage,
    columns::{Columns, quoted},
    golden, sdk,
};
use crate::model::Relation;

macro_rules! template {
    ($path:literal) => {
        include_str!(concat!("../../../plugins/templates/", $path))
    };
}

/// Paths and texts with places.
type Templates = Vec<(String, &'static str)>;
/// What places are filled with.
type Values = Vec<(&'static str, String)>;

/// Paths and texts of a project; `module` is its name as Python has it.
pub(super) fn files(project: &NewProject<'_>, module: &str) -> Vec<(String, String)> {
    let language = project.language;
    let mut values = vec![("name", project.name.to_owned()), ("module", module.to_owned())];
    let (own, more) = match project.plugin {
        NewPlugin::Transform(table) => {
            values.extend(of_table(language, table));
            (transform(language, module), golden::files(table))
        }
        NewPlugin::Sink => {
            let (source, test) = sources(language, module);
            values.extend([
                ("language", language.to_string()),
                ("commands", project.commands().join("\n")),
                ("features", ", features = [\"sink\", \"http\"]".to_owned()),
                ("source", source),
                ("test", test),
            ]);
            (sink(language, module), Vec::new())
        }
    };
    let own = around(language).into_iter().chain(own).map(|(path, text)| (path, filled(text, &values)));
    let sdk = sdk::files(language.built_as()).map(|(path, text)| (path.to_owned(), text.to_owned()));
    own.chain(more).chain(sdk).collect()
}

/// What a project has whatever it is.
fn around(language: ProjectLanguage) -> Templates {
    let templates = match language {
        ProjectLanguage::Rust => {
            vec![("Cargo.toml", template!("rust/Cargo.toml")), (".gitignore", template!("rust/gitignore"))]
        }
        ProjectLanguage::JavaScript => vec![
            ("package.json", template!("javascript/package.json")),
            (".gitignore", template!("javascript/gitignore")),
        ],
        ProjectLanguage::TypeScript => vec![
            ("package.json", template!("typescript/package.json")),
            ("tsconfig.json", template!("typescript/tsconfig.json")),
            (".gitignore", template!("typescript/gitignore")),
        ],
        ProjectLanguage::Python => vec![
            ("pyproject.toml", template!("python/pyproject.toml")),
            ("requirements.txt", template!("python/requirements.txt")),
            (".gitignore", template!("python/gitignore")),
        ],
        ProjectLanguage::Go => {
            vec![("go.mod", template!("go/go.mod")), (".gitignore", template!("go/gitignore"))]
        }
        ProjectLanguage::C => vec![
            ("plugin.toml", template!("c/plugin.toml")),
            ("requirements.txt", template!("c/requirements.txt")),
            ("Makefile", template!("c/Makefile")),
            (".gitignore", template!("c/gitignore")),
        ],
    };
    templates.into_iter().map(|(path, text)| (path.to_owned(), text)).collect()
}

/// Where the plugin stands, and its test; in Rust both are one file.
fn sources(language: ProjectLanguage, module: &str) -> (String, String) {
    let (source, test) = match language {
        ProjectLanguage::Rust => ("src/lib.rs", "src/lib.rs"),
        ProjectLanguage::JavaScript => ("src/index.js", "test/plugin.test.js"),
        ProjectLanguage::TypeScript => ("src/index.ts", "test/plugin.test.ts"),
        ProjectLanguage::Python => return (format!("{module}.py"), format!("tests/test_{module}.py")),
        ProjectLanguage::Go => ("main.go", "main_test.go"),
        ProjectLanguage::C => ("src/plugin.c", "test/test_plugin.c"),
    };
    (source.to_owned(), test.to_owned())
}

fn transform(language: ProjectLanguage, module: &str) -> Templates {
    let (source, test) = sources(language, module);
    match language {
        ProjectLanguage::Rust => vec![(source, template!("rust/src/lib.rs"))],
        ProjectLanguage::JavaScript => vec![
            (source, template!("javascript/src/index.js")),
            (test, template!("javascript/test/plugin.test.js")),
        ],
        ProjectLanguage::TypeScript => vec![
            (source, template!("typescript/src/index.ts")),
            (test, template!("typescript/test/plugin.test.ts")),
        ],
        ProjectLanguage::Python => {
            vec![(source, template!("python/plugin.py")), (test, template!("python/tests/test_plugin.py"))]
        }
        ProjectLanguage::Go => vec![(source, template!("go/main.go")), (test, template!("go/main_test.go"))],
        ProjectLanguage::C => {
            vec![(source, template!("c/src/plugin.c")), (test, template!("c/test/test_plugin.c"))]
        }
    }
}

fn sink(language: ProjectLanguage, module: &str) -> Templates {
    let (source, test) = sources(language, module);
    let mut templates = match language {
        ProjectLanguage::Rust => vec![(source, template!("rust/sink/lib.rs"))],
        ProjectLanguage::JavaScript => vec![
            (source, template!("javascript/sink/index.js")),
            (test, template!("javascript/sink/plugin.test.js")),
        ],
        ProjectLanguage::TypeScript => vec![
            (source, template!("typescript/sink/index.ts")),
            (test, template!("typescript/sink/plugin.test.ts")),
        ],
        ProjectLanguage::Python => vec![
            (source, template!("python/sink/plugin.py")),
            (test, template!("python/sink/test_plugin.py")),
        ],
        ProjectLanguage::Go => {
            vec![(source, template!("go/sink/main.go")), (test, template!("go/sink/main_test.go"))]
        }
        ProjectLanguage::C => {
            vec![(source, template!("c/sink/plugin.c")), (test, template!("c/sink/test_plugin.c"))]
        }
    };
    templates.push(("README.md".to_owned(), template!("sink/README.md")));
    templates
}

/// What the templates of a transform say of its table.
fn of_table(language: ProjectLanguage, table: &Relation) -> Values {
    let columns = Columns::of(table);
    let mut values = vec![
        ("features", String::new()),
        ("table", table.name.to_string()),
        ("table_text", quoted(&table.name.to_string())),
        ("columns", columns.names()),
        ("raw", columns.raw()),
        ("document", columns.document()),
        ("document_text", quoted(&columns.document())),
    ];
    values.extend(match language {
        ProjectLanguage::Rust => columns.rust(),
        ProjectLanguage::JavaScript => columns.javascript(),
        ProjectLanguage::TypeScript => columns.typescript(),
        ProjectLanguage::Python => columns.python(),
        ProjectLanguage::Go => columns.go(),
        ProjectLanguage::C => columns.c(&table.name),
    });
    values
}

/// A template with its places filled. One pass: what is filled in is not looked at again.
fn filled(template: &str, values: &Values) -> String {
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

    #[test]
    fn places_are_filled_once() {
        let values = vec![("a", "{{b}}".to_owned()), ("b", "x".to_owned())];
        assert_eq!(filled("{{a}} {{b}} {{c}} {{", &values), "{{b}} x {{c}} {{");
    }
}
