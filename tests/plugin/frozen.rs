//! Guests that were built against an earlier interface, and run for ever: `tests/abi`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anabranch::{
    author::{Case, answers, cases},
    model::{
        DocumentEntry, DocumentOperation, Documents, Encoding, FailureClass, Lsn, Operation, Origin, Outcome,
        Place,
    },
    plugin::{FaultKind, HostSettings, Plugin, SinkConfig, SinkGuest, artifact::sha256},
};
use serde_json::{Value, json};
use testkit::paths::repository;

use crate::{
    guests::{at_work, host, listen, load, told},
    rows::{all, batch, push, relation, text},
};

/// What was frozen of one version of the interface.
pub struct Release {
    pub version: String,
    pub folder: PathBuf,
    pub released: bool,
    guests: Vec<Frozen>,
}

/// A guest of then.
struct Frozen {
    path: PathBuf,
    world: String,
    sha256: String,
}

/// Everything in `tests/abi`.
pub fn releases() -> Vec<Release> {
    let mut folders: Vec<PathBuf> =
        fs::read_dir(repository().join("tests/abi")).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.is_dir());
    folders.sort();
    folders.into_iter().map(Release::read).collect()
}

impl Release {
    fn read(folder: PathBuf) -> Self {
        let list: Value = serde_json::from_slice(&fs::read(folder.join("frozen.json")).unwrap()).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let guest = |guest: &Value| Frozen {
            path: folder.join(text(&guest["file"])),
            world: text(&guest["world"]),
            sha256: text(&guest["sha256"]),
        };
        Self {
            version: text(&list["version"]),
            released: list["released"].as_bool().unwrap(),
            guests: list["guests"].as_array().unwrap().iter().map(guest).collect(),
            folder,
        }
    }

    fn of_world(&self, world: &str) -> impl Iterator<Item = &Frozen> {
        self.guests.iter().filter(move |guest| guest.world == world)
    }

    fn cases(&self) -> Vec<Case> {
        cases(&self.folder.join("golden")).unwrap()
    }
}

fn loaded(path: &Path) -> Plugin {
    load(&host(HostSettings::default()), path)
}

#[test]
fn what_is_frozen_is_the_file_that_was_frozen() {
    for release in releases() {
        let listed = release.guests.iter().map(|guest| guest.path.clone());
        let mut listed: Vec<PathBuf> = listed.collect();
        listed.sort();
        let mut found: Vec<PathBuf> =
            fs::read_dir(&release.folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        found.retain(|path| path.extension().is_some_and(|extension| extension == "wasm"));
        found.sort();
        assert_eq!(found, listed, "{}", release.version);
        let page = fs::read_to_string(release.folder.join("README.md")).unwrap();
        for guest in &release.guests {
            assert_eq!(sha256(&fs::read(&guest.path).unwrap()), guest.sha256, "{}", guest.path.display());
            assert!(page.contains(&guest.sha256), "{}", guest.path.display());
        }
        assert!(release.of_world("transform-plugin").count() > 1, "a guest for each encoding");
        let worlds = fs::read_to_string(release.folder.join("wit/worlds.wit")).unwrap();
        let worlds = worlds.lines().filter_map(|line| line.strip_prefix("world ")?.strip_suffix(" {"));
        for world in worlds {
            assert!(release.of_world(world).count() > 0, "{} has no guest of {world}", release.version);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_transforms_make_the_documents_that_they_made() {
    for release in releases() {
        for guest in release.of_world("transform-plugin") {
            let plugin = loaded(&guest.path);
            assert_eq!(plugin.revision().interface, format!("anabranch:plugin@{}", release.version));
            for case in release.cases() {
                let rows = &case.rows;
                let count = u32::try_from(rows.names.len()).unwrap();
                let transform = plugin.transform(&rows.relation().name, rows.settings.clone());
                let answers = answers(&transform, &rows.batch, 0..count).await;
                let answers = answers.unwrap_or_else(|fault| panic!("{}: {fault}", guest.path.display()));
                assert_eq!(case.mismatches(&answers), [], "{}, {}", guest.path.display(), case.name);
            }
        }
    }
}

/// The typed failure, whose classes are an enum of the interface.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_transform_fails_a_batch_by_every_class() {
    let relation =
        relation(&[("id", anabranch::model::ValueType::Integer), ("act", anabranch::model::ValueType::Text)]);
    for release in releases() {
        let plugin = loaded(&release.folder.join("transform-json.wasm"));
        for (act, class) in [
            ("batch retry", FailureClass::Retry),
            ("batch poison", FailureClass::Poison),
            ("batch fatal", FailureClass::Fatal),
        ] {
            let mut batch = batch(&relation);
            push(&mut batch, anabranch::model::Operation::Insert, Some(&[text("7"), text(act)]), None);
            let fault = at_work(&plugin, &[]).call(&batch, &all(&batch)).await.unwrap_err();
            let FaultKind::Guest(failure) = fault.kind() else { panic!("{act}: {fault}") };
            assert_eq!((failure.class, failure.code.as_str()), (class, "asked"));
            assert_eq!(failure.message, "7 was asked to fail");
        }
    }
}

#[tokio::test]
async fn a_frozen_transform_writes_lines_of_every_level() {
    let relation =
        relation(&[("id", anabranch::model::ValueType::Integer), ("act", anabranch::model::ValueType::Text)]);
    let mut rows = batch(&relation);
    push(&mut rows, anabranch::model::Operation::Insert, Some(&[text("7"), text("log")]), None);
    for release in releases() {
        for guest in release.of_world("transform-plugin") {
            listen();
            let plugin = loaded(&guest.path);
            let outcomes = at_work(&plugin, &[]).call(&rows, &all(&rows)).await.unwrap().outcomes;
            assert_eq!(outcomes, [Outcome::Skip]);
            let told = told();
            for level in ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"] {
                let line = format!("{} of 7", level.to_lowercase());
                let line = told.lines().find(|told| told.contains(&line)).unwrap_or_else(|| panic!("{told}"));
                assert!(line.contains(level), "{line}");
            }
        }
    }
}

/// Documents of `public.things`: ids, with a body or to be deleted.
pub fn documents(of: &[(&str, Option<&str>)]) -> Documents {
    let mut documents = Documents::new("public.things", Origin::Stream, 3);
    let destination = documents.destination("things");
    for (change, (id, body)) in (0..).zip(of) {
        let operation = if body.is_some() { DocumentOperation::Upsert } else { DocumentOperation::Delete };
        let (id, body) =
            (documents.push_bytes(id.as_bytes()), documents.push_bytes(body.unwrap_or_default().as_bytes()));
        documents.entries.push(DocumentEntry {
            operation,
            destination,
            id,
            body,
            change,
            source: Operation::Insert,
            commit_lsn: Lsn(0x16B_3748),
            commit_time: 1_706_702_400_500_000,
        });
    }
    documents
}

pub fn sink(plugin: &Plugin, settings: Value) -> SinkGuest {
    let Value::Object(settings) = settings else { panic!("{settings}") };
    plugin.sink("frozen", SinkConfig::new(&settings.into_iter().collect::<BTreeMap<_, _>>()))
}

#[tokio::test]
async fn a_frozen_sink_takes_json_and_fails_by_every_class() {
    let good = documents(&[("1", Some("{\"n\": 1.50}")), ("2", Some("{\"bad\":1}")), ("3", None)]);
    for release in releases() {
        for guest in release.of_world("sink-plugin") {
            listen();
            let plugin = loaded(&guest.path);
            assert_eq!(plugin.description().encoding, Encoding::Json);
            assert!(!plugin.purges() && !plugin.has_generations());
            let poison = sink(&plugin, json!({"behave": "poison", "only": "bad"}));
            let rejected = poison.deliver(&good, &[0, 1, 2], None).await.unwrap();
            let [(1, failure)] = rejected.as_slice() else { panic!("{rejected:?}") };
            assert_eq!((failure.class, failure.code.as_str()), (FailureClass::Poison, "asked"));
            let told = told();
            for line in [
                r#"accepted ["upsert","things","1",{"n":1.5},"stream",3]"#,
                r#"["delete","things","3",null,"#,
            ] {
                assert!(told.contains(line), "{line}: {told}");
            }
            for (behave, class) in [
                ("retry", FailureClass::Retry),
                ("fatal", FailureClass::Fatal),
                ("retry-batch", FailureClass::Retry),
                ("poison-batch", FailureClass::Poison),
                ("fatal-batch", FailureClass::Fatal),
            ] {
                let sink = sink(&plugin, json!({ "behave": behave }));
                let failure = sink.deliver(&good, &[0, 1, 2], None).await.unwrap_err();
                assert_eq!((failure.class, failure.code.as_str()), (class, "asked"), "{behave}: {failure}");
                let after = (behave == "retry").then_some(Duration::from_millis(100));
                assert_eq!(failure.retry_after, after, "{behave}");
            }
            let failure = sink(&plugin, json!({"behave": "refuse"})).open().await.unwrap_err();
            assert_eq!((failure.class, failure.code.as_str()), (FailureClass::Fatal, "settings"));
        }
    }
}

#[tokio::test]
async fn a_frozen_sink_takes_messagepack_and_empties_destinations() {
    let three =
        documents(&[("1", Some("{}")), ("2", Some("{}")), ("1", None), ("3", Some("{}")), ("4", Some("{}"))]);
    for release in releases() {
        for guest in release.of_world("purging-sink-plugin") {
            listen();
            let plugin = loaded(&guest.path);
            assert_eq!(plugin.description().encoding, Encoding::Msgpack);
            assert!(plugin.purges() && !plugin.has_generations());
            let sink = sink(&plugin, json!({"room": 2, "key": "marker-4711"}));
            let rejected = sink.deliver(&three, &[0, 1, 2, 3, 4], None).await.unwrap();
            let [(4, failure)] = rejected.as_slice() else { panic!("{rejected:?}") };
            assert_eq!((failure.class, failure.code.as_str()), (FailureClass::Poison, "full"));
            sink.purge("things").await.unwrap();
            let told = told();
            for line in [
                "opened with a key of 11 characters",
                "holds 2 documents",
                "purged things, holds 0 documents",
            ] {
                assert!(told.contains(line), "{line}: {told}");
            }
        }
    }
}

#[tokio::test]
async fn a_frozen_sink_builds_beside_what_readers_see_and_switches() {
    let two = documents(&[("1", Some("{}")), ("2", Some("{}"))]);
    let one = documents(&[("1", None)]);
    for release in releases() {
        for guest in release.of_world("switching-sink-plugin") {
            listen();
            let plugin = loaded(&guest.path);
            assert!(plugin.purges() && plugin.has_generations());
            let sink = sink(&plugin, json!({"room": 5}));
            let (first, second) = (Place::new(1, 1), Place::new(2, 0xab));
            assert!(!sink.begin("things", &first).await.unwrap(), "nobody sees anything");
            assert_eq!(sink.deliver(&two, &[0, 1], Some(&first)).await.unwrap(), []);
            sink.switch("things", &first).await.unwrap();
            assert!(sink.begin("things", &second).await.unwrap());
            sink.deliver(&one, &[0], Some(&second)).await.unwrap();
            sink.deliver(&one, &[0], None).await.unwrap();
            sink.abandon("things", &second).await.unwrap();
            let failure = sink.switch("things", &second).await.unwrap_err();
            assert_eq!((failure.class, failure.code.as_str()), (FailureClass::Fatal, "place-gone"));
            let told = told();
            for line in [
                "1-00000001 holds 2 documents",
                "switched things to 1-00000001, holds 2 documents",
                "2-000000ab holds 0 documents",
                "holds 1 documents",
                "abandoned 2-000000ab of things, 0 places are left",
            ] {
                assert!(told.contains(line), "{line}: {told}");
            }
        }
    }
}
