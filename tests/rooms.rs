//! The house's rules, as far as text can tell: which room may name which, which crates stay out of the pure
//! layers, who may start tasks. See `docs/architecture.md`.
//!
//! The rules are read from the source's tokens, comments and strings left out, so they hold for `use`, for
//! full paths and for `super::` chains alike.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::Path;

/// Rooms and their layers. A room names rooms of smaller layers, and itself.
const LAYERS: &[(&str, u8)] = &[
    ("model", 0),
    ("pgoutput", 1),
    ("backfill", 1),
    ("pipeline", 1),
    ("postgres", 2),
    ("plugin", 2),
    ("sink", 2),
    ("state", 2),
    ("control", 2),
    ("config", 3),
    ("author", 3),
    ("runtime", 3),
    ("cli", 3),
];

/// Arrows beside the layers: where from (a path prefix), which room, why.
const ARROWS: &[(&str, &str, &str)] = &[
    ("sink/plugin", "plugin", "a sink that is written as a guest runs in the plugin room's engine"),
    ("sink/http", "plugin::tls", "requests over HTTP trust the same authorities, whoever makes them"),
    ("backfill/", "pgoutput::text", "snapshot rows are decoded by the stream's one value decoder"),
    ("pipeline/", "pgoutput::text", "values are encoded for guests by the one value encoder"),
    ("control/", "state", "what is asked for is rows of the state schema, and what is told is read from it"),
    ("control/", "postgres", "a connection of its own, and the catalogue that keys are checked against"),
    ("runtime/", "config", "the runtime is built from a config as meant"),
    ("cli/", "config", "commands read the config"),
    ("cli/", "author", "`plugin test`, `bench` and `diff` show what the author's loop found"),
    ("cli/", "runtime", "`run` starts the runtime"),
];

/// Crates that the layers 0 and 1 never name: they are synchronous and do no I/O.
const OUTSIDE: &[&str] = &["tokio", "wasmtime", "reqwest", "tokio_postgres", "rusqlite", "hyper", "notify"];

/// Words of one place: the token or path, the path prefixes that may name it, what the rule is for.
const PLACES: &[(&str, &[&str], &str)] = &[
    ("bindgen", &["plugin/abi"], "only plugin/abi names generated bindings"),
    (
        "expose",
        &[
            "model/secret.rs",
            "config/",
            "postgres/",
            "sink/",
            "plugin/",
            "runtime/supervisor.rs",
            "runtime/plan.rs",
            "runtime/telemetry/traces.rs",
            "cli/",
        ],
        "only who uses a secret sees its text",
    ),
];

/// Ways to start a task or thread.
const SPAWNS: &[&str] = &[
    "tokio::spawn",
    "task::spawn",
    "task::spawn_local",
    "spawn_blocking",
    "JoinSet",
    "TaskTracker",
    "thread::spawn",
    "thread::Builder",
];

/// Who starts tasks beside the runtime: a path prefix, what, and why it is bounded by its owner.
const SPAWNERS: &[(&str, &str, &str)] = &[
    ("runtime/", "", "the supervisor owns every task"),
    ("postgres/", "tokio::spawn", "a connection's driver, aborted when its client is dropped"),
    ("sink/sqlite", "spawn_blocking", "SQLite is synchronous; the call is awaited before the next"),
    ("sink/http", "spawn_blocking", "compressing and signing a body is CPU work; awaited by its delivery"),
    ("sink/jsonl", "spawn_blocking", "file writes are synchronous; the call is awaited before the next"),
    ("plugin/", "spawn_blocking", "compiling is CPU work; awaited by its caller"),
    (
        "plugin/engine",
        "thread::Builder",
        "the epoch ticker has to run when every task is busy; it ends with the engine",
    ),
];

/// One token of code: a name or a punctuation mark, its line, whether it stands inside `#[cfg(test)]`.
struct Token<'a> {
    text: &'a str,
    line: usize,
    in_tests: bool,
    /// How many inline modules stand around it.
    depth: usize,
}

#[test]
fn every_room_keeps_to_its_layer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    read_sources(&root, &root, &mut files);
    assert!(files.len() > 3, "no sources found in {}", root.display());
    let found: Vec<_> = files.iter().flat_map(|(path, text)| check(path, text)).collect();
    assert!(found.is_empty(), "{} rules are broken:\n{}", found.len(), found.join("\n"));
}

fn read_sources(root: &Path, dir: &Path, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_sources(root, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
            files.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

/// What is wrong in one file; `path` is relative to `src/`.
fn check(path: &str, text: &str) -> Vec<String> {
    let code = blank_comments_and_strings(text);
    let tokens = tokenize(&code, path.ends_with("/tests.rs") || path.contains("/tests/"));
    let mut found = Vec::new();
    let mut complain = |line: usize, what: String| found.push(format!("src/{path}:{line}: {what}"));

    let room = path.split('/').next().unwrap_or_default().trim_end_matches(".rs");
    let is_root = room == "lib" || room == "main";
    let layer = layer_of(room);
    if layer.is_none() && !is_root {
        complain(
            1,
            format!("`{room}` is no room; give it a layer in tests/rooms.rs and docs/architecture.md"),
        );
    }
    if !is_root {
        for (line, named) in named_rooms(path, &tokens) {
            if !arrow_is_allowed(path, room, &named) {
                complain(line, format!("`{room}` must not name `crate::{named}`"));
            }
        }
    }
    for (index, token) in tokens.iter().enumerate() {
        if layer.is_some_and(|layer| layer <= 1) && OUTSIDE.contains(&token.text) {
            complain(token.line, format!("`{room}` is a pure layer and must not name `{}`", token.text));
        }
        for (word, places, rule) in PLACES {
            if token.text == *word && !is_root && !places.iter().any(|place| path.starts_with(place)) {
                complain(token.line, format!("`{word}` here: {rule}"));
            }
        }
        if token.in_tests || is_root {
            continue;
        }
        for spawn in SPAWNS.iter().filter(|spawn| stands_at(&tokens, index, spawn)) {
            let allowed = SPAWNERS
                .iter()
                .any(|(place, what, _)| path.starts_with(place) && (what.is_empty() || spawn == what));
            if !allowed {
                complain(token.line, format!("`{spawn}` here: only `runtime` starts tasks"));
            }
        }
    }
    found
}

fn layer_of(room: &str) -> Option<u8> {
    LAYERS.iter().find(|(name, _)| *name == room).map(|(_, layer)| *layer)
}

fn arrow_is_allowed(path: &str, room: &str, named: &str) -> bool {
    let target = named.split("::").next().unwrap_or_default();
    if target == room {
        return true;
    }
    let lower = matches!((layer_of(room), layer_of(target)), (Some(from), Some(to)) if to < from);
    lower
        || ARROWS.iter().any(|(from, to, _)| {
            path.starts_with(from) && (named == *to || named.starts_with(&format!("{to}::")))
        })
}

/// Whether the path `wanted` (`a::b`) starts at a token.
fn stands_at(tokens: &[Token<'_>], index: usize, wanted: &str) -> bool {
    let mut at = index;
    wanted.split("::").enumerate().all(|(number, name)| {
        if number > 0 {
            if tokens.get(at).is_none_or(|token| token.text != "::") {
                return false;
            }
            at += 1;
        }
        at += 1;
        tokens.get(at - 1).is_some_and(|token| token.text == name)
    })
}

/// The rooms that a file names through `crate::…` or a chain of `super::` that reaches the root, each as
/// `room` or `room::next`.
fn named_rooms(path: &str, tokens: &[Token<'_>]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let file_depth = path.split('/').count() - usize::from(path.ends_with("/mod.rs"));
    let mut index = 0;
    while index < tokens.len() {
        let token = &tokens[index];
        let mut after = None;
        if token.text == "crate" && text_at(tokens, index + 1) == "::" {
            after = Some(index + 2);
        } else if token.text == "super" {
            let (mut at, mut steps) = (index, 0);
            while text_at(tokens, at) == "super" && text_at(tokens, at + 1) == "::" {
                steps += 1;
                at += 2;
            }
            if steps >= file_depth + token.depth {
                after = Some(at);
            }
            index = at.max(index);
        }
        if let Some(at) = after {
            collect_first_names(tokens, at, &mut found);
        }
        index += 1;
    }
    found
}

/// At `name…` the name with its next segment; at `{…}` that of each branch.
fn collect_first_names(tokens: &[Token<'_>], at: usize, found: &mut Vec<(usize, String)>) {
    if text_at(tokens, at) != "{" {
        push_name(tokens, at, found);
        return;
    }
    let (mut depth, mut index, mut at_branch) = (1, at + 1, true);
    while depth > 0 && index < tokens.len() {
        match tokens[index].text {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," if depth == 1 => at_branch = true,
            _ if depth == 1 && at_branch => {
                push_name(tokens, index, found);
                at_branch = false;
            }
            _ => {}
        }
        index += 1;
    }
}

fn push_name(tokens: &[Token<'_>], at: usize, found: &mut Vec<(usize, String)>) {
    let Some(token) = tokens.get(at) else { return };
    // `crate::SomeType` or a macro is no room; lib.rs keeps nothing but rooms.
    if !token.text.starts_with(|c: char| c.is_ascii_lowercase()) || layer_of(token.text).is_none() {
        return;
    }
    let next = text_at(tokens, at + 2);
    if text_at(tokens, at + 1) == "::" && next == "{" {
        // Every branch is named, so that an arrow to one module of a room can be told apart.
        let mut inner = Vec::new();
        let (mut depth, mut index, mut at_branch) = (1, at + 3, true);
        while depth > 0 && index < tokens.len() {
            match tokens[index].text {
                "{" => depth += 1,
                "}" => depth -= 1,
                "," if depth == 1 => at_branch = true,
                name if depth == 1 && at_branch => {
                    inner.push((tokens[index].line, format!("{}::{name}", token.text)));
                    at_branch = false;
                }
                _ => {}
            }
            index += 1;
        }
        found.extend(inner);
    } else if text_at(tokens, at + 1) == "::" {
        found.push((token.line, format!("{}::{next}", token.text)));
    } else {
        found.push((token.line, token.text.to_owned()));
    }
}

fn text_at<'a>(tokens: &[Token<'a>], index: usize) -> &'a str {
    tokens.get(index).map_or("", |token| token.text)
}

/// Names, `::` and single punctuation marks, with the inline modules and test modules around them.
fn tokenize(code: &str, in_tests: bool) -> Vec<Token<'_>> {
    let mut tokens: Vec<Token<'_>> = Vec::new();
    // Open braces: whether each opens a module, and whether it opens something for tests only.
    let mut braces: Vec<(bool, bool)> = Vec::new();
    let mut test_item = false;
    let (mut line, mut at) = (1, 0);
    while let Some(c) = code[at..].chars().next() {
        let rest = &code[at..];
        let length = if c.is_alphanumeric() || c == '_' {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            c.len_utf8()
        };
        let text = &code[at..at + length];
        at += length;
        if c == '\n' {
            line += 1;
        }
        if c.is_whitespace() {
            continue;
        }
        match text {
            "{" => {
                let is_module = tokens.len() >= 2 && tokens[tokens.len() - 2].text == "mod";
                braces.push((is_module, test_item));
                test_item = false;
            }
            "}" => {
                braces.pop();
            }
            ";" => test_item = false,
            "]" if ends_with(&tokens, &["#", "[", "cfg", "(", "test", ")"]) => test_item = true,
            _ => {}
        }
        let in_tests = in_tests || test_item || braces.iter().any(|(_, tests)| *tests);
        let depth = braces.iter().filter(|(module, _)| *module).count();
        tokens.push(Token { text, line, in_tests, depth });
    }
    tokens
}

fn ends_with(tokens: &[Token<'_>], wanted: &[&str]) -> bool {
    tokens.len() >= wanted.len()
        && tokens[tokens.len() - wanted.len()..].iter().zip(wanted).all(|(token, text)| token.text == *text)
}

/// The source with comments and the insides of strings and characters blanked, lines kept.
fn blank_comments_and_strings(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut name_before = false;
    while let Some(c) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(length) = raw_string(rest).filter(|_| !name_before) {
            length
        } else if c == '"' {
            quoted(rest, '"')
        } else if c == '\'' && is_character(rest) {
            quoted(rest, '\'')
        } else {
            out.push(c);
            name_before = c.is_alphanumeric() || c == '_';
            rest = &rest[c.len_utf8()..];
            continue;
        };
        out.extend(rest[..length].chars().filter(|c| *c == '\n'));
        out.push(' ');
        name_before = false;
        rest = &rest[length..];
    }
    out
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The length of a raw string (`r"…"`, `br#"…"#`) that starts here.
fn raw_string(text: &str) -> Option<usize> {
    let prefix = ["r", "br", "cr"].iter().find(|prefix| {
        text.strip_prefix(**prefix).is_some_and(|rest| rest.trim_start_matches('#').starts_with('"'))
    })?;
    let rest = &text[prefix.len()..];
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    let end = format!("\"{}", "#".repeat(hashes));
    let start = prefix.len() + hashes + 1;
    Some(text[start..].find(&end).map_or(text.len(), |at| start + at + end.len()))
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Tells `'a'` and `'\n'` from a lifetime.
fn is_character(text: &str) -> bool {
    let mut characters = text.chars().skip(1);
    match characters.next() {
        Some('\\') => true,
        Some(_) => characters.next() == Some('\''),
        None => false,
    }
}

#[test]
fn every_test_that_a_guarantee_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = String::new();
    for room in ["src", "tests", "testkit", "plugins", "fuzz"] {
        read_all(&root.join(room), &mut sources);
    }
    let defined: std::collections::HashSet<&str> = sources
        .split("fn ")
        .skip(1)
        .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next())
        .collect();
    let page = fs::read_to_string(root.join("docs/guarantees.md")).unwrap();
    let shown = page.lines().filter_map(|line| line.strip_suffix(" |")?.rsplit_once(" | ")).map(|(_, by)| by);
    let is_name = |word: &&str| {
        word.contains('_') && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let named: Vec<&str> = shown.flat_map(|by| by.split('`').skip(1).step_by(2)).filter(is_name).collect();
    assert!(named.len() > 100, "the page's tables are read: {}", named.len());
    let gone: Vec<&str> = named.into_iter().filter(|name| !defined.contains(name)).collect();
    assert!(gone.is_empty(), "docs/guarantees.md names tests that do not exist: {gone:#?}");
}

/// The text of all Rust files below a directory, but for what was built.
fn read_all(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            read_all(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

mod planted {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(path, text).len()
    }

    #[test]
    fn wrong_arrows_are_found() {
        assert_eq!(found("model/lsn.rs", "use crate::sink::Sink;"), 1);
        assert_eq!(found("pgoutput/frame.rs", "use crate::{model::Lsn, backfill::{Window, Cursor}};"), 2);
        assert_eq!(found("sink/http.rs", "fn f() { crate::state::load() }"), 1);
        assert_eq!(found("sink/http.rs", "use super::super::state;"), 1);
        assert_eq!(found("sink/mod.rs", "mod tests { use super::super::config::Config; }"), 1);
        assert_eq!(found("config/mod.rs", "use crate::runtime::Pump;"), 1);
        assert_eq!(found("sink/http.rs", "use crate::plugin::Pool;"), 1);
        assert_eq!(found("backfill/mod.rs", "use crate::pgoutput::{text::encode_value, frame};"), 1);
        assert_eq!(found("cupboard/mod.rs", ""), 1);
    }

    #[test]
    fn right_arrows_are_not() {
        assert_eq!(found("sink/http.rs", "use crate::{model::Lsn, sink::Sink}; use super::Rejected;"), 0);
        assert_eq!(found("sink/plugin.rs", "use crate::plugin::Pool;"), 0);
        assert_eq!(found("sink/mod.rs", "mod plugin; mod tests { use super::plugin; }"), 0);
        assert_eq!(found("cli/run.rs", "use crate::{config, runtime, postgres};"), 0);
        assert_eq!(found("backfill/mod.rs", "use crate::pgoutput::text;"), 0);
        assert_eq!(found("lib.rs", "pub mod sink; use crate::sink;"), 0);
        assert_eq!(
            found("model/lsn.rs", "// crate::sink\n/* crate::cli /* */ */ const A: &str = \"crate::sink\";"),
            0
        );
        assert_eq!(
            found("model/lsn.rs", "const A: &str = r#\"crate::sink \" tokio\"#; const B: char = '\"';"),
            0
        );
    }

    #[test]
    fn crates_out_of_place_are_found() {
        assert_eq!(found("pipeline/route.rs", "use tokio::sync::mpsc;"), 1);
        assert_eq!(found("backfill/machine.rs", "fn f<'a>(x: &'a str) { wasmtime::Engine::default(); }"), 1);
        assert_eq!(found("sink/http.rs", "use tokio::sync::mpsc;"), 0);
        assert_eq!(found("runtime/pump.rs", "wasmtime::component::bindgen!({});"), 1);
        assert_eq!(found("plugin/abi/v1.rs", "wasmtime::component::bindgen!({});"), 0);
        assert_eq!(found("runtime/pump.rs", "info!(url = url.expose());"), 1);
    }

    #[test]
    fn tasks_out_of_place_are_found() {
        assert_eq!(found("sink/http/mod.rs", "fn f() { tokio::spawn(g()); }"), 1);
        assert_eq!(found("sink/null.rs", "fn f() { tokio::task::spawn_blocking(g); }"), 1);
        assert_eq!(found("control/mod.rs", "fn f() { std::thread::spawn(g); }"), 1);
        assert_eq!(found("sink/sqlite/mod.rs", "fn f() { tokio::task::spawn_blocking(g); }"), 0);
        assert_eq!(found("runtime/term.rs", "fn f() { tokio::spawn(g()); }"), 0);
        let tests = "fn f() {}\n#[cfg(test)]\nmod tests { fn g() { tokio::spawn(h()); } }";
        assert_eq!(found("sink/http/mod.rs", tests), 0);
        assert_eq!(found("sink/http/mod.rs", &format!("{tests}\nfn k() {{ tokio::spawn(h()); }}")), 1);
        assert_eq!(found("cli/build.rs", "fn f() { Command::new(\"cargo\").spawn(); }"), 0);
    }
}
