//! `plugin new`: a project in each language, for a table of every type or a sink, whose own test passes and which builds.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anabranch::{
    author::{answers, cases},
    model::PluginKind,
    plugin::{artifact::judge, grants::Capability},
};
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
            if !tools.exists() {
                symlink(repository().join("plugins/node_modules"), tools).unwrap();
            }
            let mut npm = Command::new("sh");
            // Types are checked where there are some.
            npm.args(["-c", "npm run --if-present check && npm test"]);
            npm
        }
        Language::Go => {
            let tools = language_tools(language).unwrap().unwrap();
            let place = tools.environment.iter().find(|(name, _)| name == "VIRTUAL_ENV").unwrap();
            let mut go = Command::new(Path::new(&place.1).join("bin/go"));
            go.args(["test", "./..."]);
            tools.apply(&mut go);
            assert_eq!(unformatted(project), "", "as an author's editor would write it");
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

/// The files in a folder that gofmt would write otherwise.
fn unformatted(folder: &Path) -> String {
    let tools = language_tools(Language::Go).unwrap().unwrap();
    let place = tools.environment.iter().find(|(name, _)| name == "VIRTUAL_ENV").unwrap();
    let mut root = Command::new(Path::new(&place.1).join("bin/go"));
    root.args(["env", "GOROOT"]);
    tools.apply(&mut root);
    let root = run(&mut root).unwrap();
    run(Command::new(Path::new(root.trim()).join("bin/gofmt")).arg("-l").arg(folder)).unwrap()
}

/// Short and long names are aligned with each other up to a point.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_project_in_go_is_formatted_whatever_its_columns_are_called() {
    if language_tools(Language::Go).unwrap().is_none() {
        return;
    }
    let long = |letter: &str| letter.repeat(60);
    let table = format!(
        "create table long (id int primary key, {} text, {} int[], b text, k1 int, \"no word\" int, {} bool, {} text)",
        long("a"),
        long("b"),
        long("c"),
        "d".repeat(30)
    );
    let database = shared().unwrap().create_database().await.unwrap();
    database.connect().await.unwrap().batch_execute(&table).await.unwrap();
    let folder = folder_of("new-in-go");
    create(&folder, &["go", "long", "--table", "public.long", "--url", &database.url]);
    assert!(
        fs::read_to_string(folder.join("long/main.go")).unwrap().contains(&format!("A{}", &long("a")[1..]))
    );
    assert_eq!(unformatted(&folder), "");
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

/// Two languages are one tool that takes a quarter of a minute: one of them is built, and of transforms the other (above).
#[test]
fn a_new_sink_is_tested_and_built_in_every_language() {
    let folder = folder_of("new-sinks");
    for (language, word, is_built) in [
        (Language::Rust, "rust", true),
        (Language::JavaScript, "js", false),
        (Language::JavaScript, "ts", true),
        (Language::Python, "python", true),
        (Language::C, "c", true),
        (Language::Go, "go", true),
    ] {
        if language != Language::Rust && language_tools(language).unwrap().is_none() {
            continue;
        }
        let name = format!("items-{word}");
        let shape = create(&folder, &[word, &name, "--sink"]);
        assert_eq!((shape["kind"].as_str(), &shape["table"]), (Some("sink"), &Value::Null));
        let project = folder.join(&name);
        test(language, &project);
        if !is_built {
            continue;
        }
        let built = guests::build(BINARY, &Guest::new(&project)).unwrap_or_else(|error| panic!("{error:#}"));
        let shape = judge(&fs::read(built).unwrap()).unwrap();
        assert_eq!((shape.kind, shape.capabilities), (PluginKind::Sink, [Capability::Http].into()), "{word}");
    }
    // A transform's types are checked, too.
    if language_tools(Language::JavaScript).unwrap().is_some() {
        create(&folder, &["typescript", "typed"]);
        test(Language::JavaScript, &folder.join("typed"));
    }
}

#[test]
fn a_sink_has_no_table() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(BINARY);
    command.args(["plugin", "new", "go", "items", "--sink", "--table", "public.products"]);
    let refused = command.current_dir(folder.path()).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("--sink and --table exclude each other"), "{said}");
    assert!(!folder.path().join("items").exists());
    let shape = create(folder.path(), &["c", "items", "--sink"]);
    let next: Vec<_> = shape["next"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    assert_eq!((next.first(), next.last()), (Some(&"cd items"), Some(&"anabranch plugin build")));
    assert!(!next.contains(&"anabranch plugin test"), "that is for transforms: {next:?}");
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
    const GO: &str = "package main\nimport anabranch \"anabranch-sdk\"\ntype partly struct{}\n\
        func (p *partly) Deliver(d anabranch.Delivery) ([]error, error) { return d.Accepted(), nil }\n\
        func (p *partly) Purge(destination string) error { return nil }\n\
        func (p *partly) Begin(destination, place string) (bool, error) { return true, nil }\n\
        func (p *partly) Switch(destination, place string) error { return nil }\n\
        var sink = anabranch.Sink[struct{}, *partly]{}\n\
        func init() { anabranch.ExportSwitchingSink(&sink) }\nfunc main() {}\n";
    const C: &str = "#include \"anabranch_sink.h\"\n\
        static bool deliver(ab_delivery *d, ab_failure *f) { (void)f; ab_accept_rest(d); return true; }\n\
        static bool purge(ab_str d, ab_failure *f) { (void)d, (void)f; return true; }\n\
        static bool begin(ab_str d, ab_str p, bool *s, ab_failure *f) { (void)d, (void)p, (void)s, (void)f; return true; }\n\
        static bool switch_to(ab_str d, ab_str p, ab_failure *f) { (void)d, (void)p, (void)f; return true; }\n\
        AB_SWITCHING_SINK(.deliver = deliver, .purge = purge, .begin = begin, .switch_to = switch_to);\n";
    const C_UNEXPORTED: &str = "#include \"anabranch_sink.h\"\n\
        static bool deliver(ab_delivery *d, ab_failure *f) { (void)f; ab_accept_rest(d); return true; }\n\
        static bool abandon(ab_str d, ab_str p, ab_failure *f) { (void)d, (void)p, (void)f; return true; }\n\
        AB_SINK(.deliver = deliver, .abandon = abandon);\n";
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
        (
            Language::JavaScript,
            "javascript",
            "export const plugin = sink(class { deliver() {} begin() {} abandon() {} });",
            "`begin`, `switch` and `abandon`, all three of them: `switch` is missing",
        ),
        (
            Language::Python,
            "python",
            "from anabranch_sdk import sink\nclass Partly:\n    def deliver(self, batch): ...\n    def switch(self, d, p): ...\n\
             plugin = sink(Partly)\n",
            "`begin`, `switch` and `abandon`, all three of them: `begin` and `abandon` are missing (project.py:5)",
        ),
        (Language::Go, "go", GO, "missing method Abandon"),
        (Language::C, "c", C, "AB_SWITCHING_SINK without `.abandon`"),
        (Language::C, "c", C_UNEXPORTED, "are exported by AB_SWITCHING_SINK alone"),
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
        match language {
            Language::JavaScript => {
                fs::create_dir(project.join("node_modules")).unwrap();
                symlink("../anabranch-sdk", project.join("node_modules/anabranch-sdk")).unwrap();
                fs::write(project.join("src/index.js"), format!("{SDK}{source}")).unwrap();
            }
            Language::Python => fs::write(project.join("project.py"), source).unwrap(),
            Language::Go => fs::write(project.join("main.go"), source).unwrap(),
            _ => fs::write(project.join("src/plugin.c"), source).unwrap(),
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
