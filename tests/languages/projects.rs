//! `plugin new`: a project in each language, for a table of every type, whose own test passes and which builds.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anabranch::author::{answers, cases};
use serde_json::Value;
use testkit::{
    command::run,
    guests::{self, Guest, Language, language_tools},
    paths::{repository, target_dir},
    shared,
};

use crate::documents::{host, load_file};

const BINARY: &str = env!("CARGO_BIN_EXE_anabranch");

/// Names that are words of some language or of none, and every kind of type.
const TABLE: &str = r#"
create schema "Shop";
create table "Shop"."Order Items" (
    id bigint primary key, "type" text not null, "Unit Price" numeric, "a""b\c" boolean, "weight, net" double precision,
    day date, at timestamptz, lasts interval, raw bytea, attributes jsonb, tags text[], ids bigint[],
    doubled numeric generated always as ("Unit Price" * 2) stored
);
"#;

/// A folder that stays where it is from run to run, so that what is built in it is built once.
fn folder_of(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn create(folder: &Path, arguments: &[&str]) -> Value {
    let mut command = Command::new(BINARY);
    command.args(["--json", "plugin", "new"]).args(arguments).current_dir(folder);
    let printed = run(&mut command).unwrap_or_else(|error| panic!("{error:#}"));
    serde_json::from_str(&printed).unwrap()
}

/// Runs the project's own test, with what its author would have installed.
fn test(language: Language, project: &Path) {
    let mut command = match language {
        Language::Rust => {
            // The versions that are here already, and compiled code that stays.
            fs::copy(repository().join("plugins/Cargo.lock"), project.join("Cargo.lock")).unwrap();
            let mut cargo = Command::new("cargo");
            cargo.arg("test").env("CARGO_TARGET_DIR", target_dir().join("guests/native"));
            cargo
        }
        Language::JavaScript => {
            fs::create_dir(project.join("node_modules")).unwrap();
            symlink("../anabranch-sdk", project.join("node_modules/anabranch-sdk")).unwrap();
            let tools = project.parent().unwrap().join("node_modules");
            symlink(repository().join("plugins/node_modules"), tools).unwrap();
            let mut npm = Command::new("npm");
            npm.arg("test");
            npm
        }
        Language::Go => {
            let tools = language_tools(language).unwrap().unwrap();
            let place = tools.environment.iter().find(|(name, _)| name == "VIRTUAL_ENV").unwrap();
            let mut go = Command::new(Path::new(&place.1).join("bin/go"));
            go.args(["test", "./..."]);
            tools.apply(&mut go);
            go
        }
        Language::C => {
            let mut make = Command::new("make");
            make.arg("test");
            make
        }
        Language::Python => {
            let mut python = Command::new("python3");
            python.args(["-m", "unittest", "discover", "tests"]);
            python
        }
    };
    run(command.current_dir(project)).unwrap_or_else(|error| panic!("{language:?}: {error:#}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_project_is_tested_and_built_in_every_language() {
    let database = shared().unwrap().create_database().await.unwrap();
    database.connect().await.unwrap().batch_execute(TABLE).await.unwrap();
    let folder = folder_of("new-projects");
    let host = host();
    let languages = [
        (Language::Rust, "rust"),
        (Language::JavaScript, "javascript"),
        (Language::Python, "python"),
        (Language::C, "c"),
        (Language::Go, "go"),
    ];
    for (language, word) in languages {
        if language != Language::Rust && language_tools(language).unwrap().is_none() {
            continue;
        }
        let name = format!("order-items-{word}");
        let table = "Shop.\"Order Items\"";
        let shape = create(&folder, &[word, &name, "--table", table, "--url", &database.url]);
        assert_eq!((shape["from_source"].as_bool(), shape["table"].as_str()), (Some(true), Some(table)));
        let project = folder.join(&name);
        test(language, &project);
        let built = guests::build(BINARY, &Guest::new(&project)).unwrap_or_else(|error| panic!("{error:#}"));
        let plugin = load_file(&host, &built);
        assert_eq!(plugin.revision().to_string(), format!("{name} 0.1.0"));
        let columns = plugin.description().columns.clone().unwrap();
        assert_eq!(columns[..4], ["id", "type", "Unit Price", "a\"b\\c"]);
        assert_eq!(columns.len(), 12, "no generated column: it is not in the stream");
        assert_eq!(plugin.description().tables, [table]);
        let cases = cases(&project.join("golden")).unwrap();
        let transform = plugin.transform(&cases[0].rows.relation().name, BTreeMap::new());
        let answers = answers(&transform, &cases[0].rows.batch, 0..1).await.unwrap();
        assert_eq!(cases[0].mismatches(&answers), [], "{language:?}: its first golden case");
    }
}

#[test]
fn a_project_without_a_source_has_the_columns_of_the_sample() {
    let folder = tempfile::tempdir().unwrap();
    let shape = create(folder.path(), &["python", "search"]);
    assert_eq!(
        (shape["from_source"].as_bool(), shape["table"].as_str()),
        (Some(false), Some("public.products"))
    );
    let next = shape["next"].as_array().unwrap();
    assert_eq!(
        (next.first().unwrap(), next.last().unwrap()),
        (&"cd search".into(), &"anabranch plugin build".into())
    );
    let again =
        Command::new(BINARY).args(["plugin", "new", "python", "search"]).current_dir(folder.path()).output();
    let again = again.unwrap();
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("search is there already"), "{again:?}");
}

/// A sentence each, with what to do.
#[test]
fn tools_that_are_missing_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (word, path, words) in [
        ("javascript", Some(""), "install Node 20 or newer"),
        ("javascript", None, "run `npm install` there"),
        ("python", Some(""), ".venv/bin/pip install -r requirements.txt"),
        ("c", Some(""), ".venv/bin/pip install ziglang"),
        ("go", Some(""), "install Go 1.24 or newer"),
        ("rust", Some(""), "install Rust from https://rustup.rs"),
    ] {
        let name = format!("{word}-{}", path.map_or("node", |_| "nothing"));
        create(folder.path(), &[word, &name]);
        let mut command = Command::new(BINARY);
        command.args(["plugin", "build", &name]).current_dir(folder.path());
        for variable in ["CARGO", "RUSTC", "VIRTUAL_ENV", "WASI_SDK_PATH"] {
            command.env_remove(variable);
        }
        if let Some(path) = path {
            command.env("PATH", path);
        } else if language_tools(Language::JavaScript).unwrap().is_none() {
            continue;
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(words) && said.lines().count() == 1, "{name}: {said}");
    }
}

/// Before anything is made: a module that is no plugin, what cannot be loaded, what no host offers.
#[test]
fn modules_that_become_no_plugin_are_named() {
    const SDK: &str = "import { query, sink, transform } from 'anabranch-sdk';\n";
    let folder = folder_of("no-plugins");
    symlink(repository().join("plugins/node_modules"), folder.join("node_modules")).unwrap();
    for (language, word, source, words) in [
        (Language::JavaScript, "javascript", "export const plugins = 1;", "src/index.js exports no `plugin`"),
        (
            Language::JavaScript,
            "javascript",
            "export const plugin = sink(class {});",
            "src/index.js cannot be loaded: TypeError: a sink is a class with a method `deliver(batch)`",
        ),
        (
            Language::JavaScript,
            "javascript",
            "query('select 1'); export const plugin = transform({ transform: () => null });",
            "what stands at its top runs when it is built, without a host",
        ),
        (
            Language::JavaScript,
            "javascript",
            "import { open } from 'wasi:filesystem/types@0.2.0';\nexport const plugin = transform({ transform: () => open() });",
            "src/index.js imports wasi:filesystem/types@0.2.0, which no plugin gets",
        ),
        (
            Language::JavaScript,
            "javascript",
            "setInterval(() => {}, 1000); export const plugins = 1;",
            "src/index.js exports no `plugin`",
        ),
        (Language::JavaScript, "javascript", "export const plugin = ;", "esbuild could not build project"),
        (Language::Python, "python", "plugins = 1\n", "has no `plugin`, made by `transform(…)` or `sink(…)`"),
        (
            Language::Python,
            "python",
            "import gone\n",
            "the module project cannot be loaded: ModuleNotFoundError: No module named 'gone' (project.py:1)",
        ),
        (
            Language::Python,
            "python",
            "from anabranch_sdk import sink\nplugin = sink(dict)\n",
            "TypeError: a sink is a class with a method `deliver(batch)` (project.py:2)",
        ),
    ] {
        let Some(tools) = language_tools(language).unwrap() else { continue };
        let project = folder.join("project");
        let _ = fs::remove_dir_all(&project);
        create(&folder, &[word, "project"]);
        if language == Language::JavaScript {
            fs::create_dir(project.join("node_modules")).unwrap();
            symlink("../anabranch-sdk", project.join("node_modules/anabranch-sdk")).unwrap();
            fs::write(project.join("src/index.js"), format!("{SDK}{source}")).unwrap();
        } else {
            fs::write(project.join("project.py"), source).unwrap();
        }
        let mut command = Command::new(BINARY);
        command.args(["plugin", "build", "project"]).current_dir(&folder);
        tools.apply(&mut command);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(words), "{source}: {said}");
        let left = fs::read_dir(&project).unwrap().map(|entry| entry.unwrap().file_name());
        let made = left.filter(|name| name == "dist" || name == "__pycache__").count();
        assert_eq!(made, 0, "{source}: nothing is written");
    }
}
