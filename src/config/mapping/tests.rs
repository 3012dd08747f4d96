use crate::model::Encoding;

use super::*;

fn describe(name: &str, tables: &[&str], destination: Option<&str>) -> Description {
    Description {
        raw: vec![],
        name: name.to_owned(),
        version: semver::Version::new(1, 4, 0),
        kind: PluginKind::Transform,
        encoding: Encoding::Json,
        tables: tables.iter().map(|&table| table.to_owned()).collect(),
        columns: None,
        destination: destination.map(str::to_owned),
        wants_deletes: false,
        names_ids: false,
        depends_on: Vec::new(),
    }
}

fn config(text: &str) -> Config {
    let user = |name: &str| (name == "USER").then(|| "ada".into());
    super::super::parse("anabranch.toml", text, &user).unwrap()
}

const ONE_SINK: &str = "[sink.search]\nkind = \"null\"\n";
const TWO_SINKS: &str = "[sink.a]\nkind = \"null\"\n[sink.b]\nkind = \"null\"\n";

#[test]
fn a_dropped_plugin_works_alone() {
    let found = resolve_mappings(&config(ONE_SINK), &[describe("p", &["products"], Some("items"))]).unwrap();
    let [mapping] = found.mappings.as_slice() else { panic!("{found:?}") };
    assert_eq!(mapping.name, "public.products:p:search");
    assert_eq!((mapping.sink.as_str(), mapping.destination.as_str()), ("search", "items"));
    assert!(mapping.policy.auto_backfill && mapping.rederive_patch);
}

#[test]
fn an_entry_goes_before_what_is_declared() {
    let text = format!(
        "{ONE_SINK}[plugins.p]\nrederive = {{ patch = false }}\n[[map]]\ntransform = \"p\"\ntable = \"a.t\"\n\
         destination = \"d\"\nversion = \"2\"\nauto_backfill = false\n"
    );
    let found = resolve_mappings(&config(&text), &[describe("p", &["products"], Some("items"))]).unwrap();
    let [mapping] = found.mappings.as_slice() else { panic!("{found:?}") };
    assert_eq!(mapping.entity, EntityName::new("a", "t"));
    assert_eq!((mapping.destination.as_str(), mapping.version.as_deref()), ("d", Some("2")));
    assert!(!mapping.policy.auto_backfill && !mapping.rederive_patch);
}

#[test]
fn c021_tables_of_one_name_in_two_schemas_stay_apart() {
    let found = resolve_mappings(&config(ONE_SINK), &[describe("p", &["a.items", "b.items"], None)]).unwrap();
    let seen: Vec<_> =
        found.mappings.iter().map(|mapping| (mapping.name.as_str(), mapping.destination.as_str())).collect();
    assert_eq!(seen, [("a.items:p:search", "a.items"), ("b.items:p:search", "b.items")]);
}

#[test]
fn a_plugin_that_cannot_be_mapped_is_told_of() {
    let text = format!("{TWO_SINKS}[[map]]\ntransform = \"p\"\nsink = \"a\"\n");
    let descriptions = [describe("p", &["t"], None), describe("q", &["u"], None), describe("r", &[], None)];
    let found = resolve_mappings(&config(&text), &descriptions).unwrap();
    assert_eq!(found.mappings.len(), 1);
    assert_eq!(found.notices.len(), 2, "{:?}", found.notices);
    assert!(found.notices[0].contains("`q`") && found.notices[0].contains("several sinks"));
}

fn error(text: &str, descriptions: &[Description]) -> String {
    resolve_mappings(&config(text), descriptions).unwrap_err().to_string()
}

#[test]
fn errors_name_the_place_and_the_nearest_plugin() {
    let text = format!("{ONE_SINK}[[map]]\ntransform = \"product-serach\"\n[plugins.prodct-search]\n");
    let said = error(&text, &[describe("product-search", &["t"], None)]);
    assert!(said.contains("anabranch.toml:4:13: map[0].transform: no plugin in"), "{said}");
    assert!(said.contains("plugins.prodct-search: no plugin"), "{said}");
    assert_eq!(said.matches("did you mean `product-search`?").count(), 2, "{said}");
}

#[test]
fn a_table_must_come_from_somewhere() {
    let text = format!("{ONE_SINK}[[map]]\ntransform = \"p\"\n");
    assert!(error(&text, &[describe("p", &[], None)]).contains("has no `table`"));
    let named = format!("{text}name = \"n\"\n");
    assert!(error(&named, &[describe("p", &["a", "b"], None)]).contains("cannot share one `name`"));
    let bad = error(ONE_SINK, &[describe("p", &["a b"], None)]);
    assert!(bad.contains("`p` 1.4.0 declares the table `a b`"), "{bad}");
}

#[test]
fn names_and_destinations_do_not_clash() {
    let text = format!(
        "{ONE_SINK}[[map]]\ntransform = \"p\"\ndestination = \"x\"\n\
         [[map]]\ntransform = \"p\"\ndestination = \"y\"\n"
    );
    assert!(error(&text, &[describe("p", &["t"], None)]).contains("two mappings have the name"));
    let shared = [describe("p", &["t"], Some("x")), describe("q", &["t"], Some("x"))];
    assert!(error(ONE_SINK, &shared).contains("documents of the same key would overwrite each other"));
    let naming = shared.map(|description| Description { names_ids: true, ..description });
    assert_eq!(resolve_mappings(&config(ONE_SINK), &naming).unwrap().mappings.len(), 2);
    let purging = format!("{ONE_SINK}[[map]]\ntransform = \"p\"\npurge_on_change = true\n");
    assert!(error(&purging, &naming).contains("would remove the documents of the other"));
}

#[test]
fn two_sinks_that_lead_to_one_place_are_known_by_their_settings() {
    let text = |first: &str, second: &str| {
        format!(
            "[sink.a]\nkind = \"plugin\"\nplugin = \"s\"\nconfig = {{ {first} }}\n\
             [sink.b]\nkind = \"plugin\"\nplugin = \"s\"\nconfig = {{ {second} }}\n\
             [[map]]\ntransform = \"p\"\nsink = \"a\"\ndestination = \"d\"\n\
             [[map]]\ntransform = \"p\"\nsink = \"b\"\ndestination = \"d\"\n"
        )
    };
    let sink = Description { kind: PluginKind::Sink, ..describe("s", &[], None) };
    let known = [describe("p", &["t"], None), sink];
    let url = "url = \"https://x\"";
    let told = error(&text(url, url), &known);
    assert!(
        told.contains("both write to `d` in the sinks `a` and `b`, which have the same settings"),
        "{told}"
    );
    let naming = known.clone().map(|known| Description { names_ids: true, ..known });
    let same = config(&text(url, url));
    assert!(resolve_mappings(&same, &naming).unwrap().notices.is_empty());
    assert_eq!((same.writes_to("a"), same.writes_to("b")), ("a".to_owned(), "a".to_owned()));

    let tuned = config(&text(url, &format!("{url}, max_bytes = 5, replace_index = true")));
    let notices = resolve_mappings(&tuned, &known).unwrap().notices;
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("both write to `d`, in the sinks `a` and `b`"), "{notices:?}");
    assert_ne!(tuned.writes_to("a"), tuned.writes_to("b"));

    let apart = config(&text(url, &format!("{url}, index_prefix = \"b-\"")));
    assert!(resolve_mappings(&apart, &known).unwrap().notices.is_empty());
}

#[test]
fn what_is_wanted_has_all_that_makes_documents() {
    let text = format!(
        "{ONE_SINK}[[map]]\ntransform = \"p\"\nversion = \"2\"\npurge_on_change = true\n\
         [plugins.p]\nrederive = {{ patch = false }}\n"
    );
    let description = describe("p", &["t"], Some("d"));
    let found = resolve_mappings(&config(&text), std::slice::from_ref(&description)).unwrap();
    let revision = Revision {
        name: "p".into(),
        version: semver::Version::new(1, 4, 0),
        sha256: "ab".into(),
        interface: "anabranch:plugin@1.0.0".into(),
    };
    let wanted = found.mappings[0].wanted(&revision, &description, "null", None);
    assert_eq!(wanted.name, "public.t:p:search");
    assert_eq!(wanted.identity.version_text(), "1.4.0 (2)");
    assert_eq!(wanted.identity.route.entity, "public.t");
    assert!(wanted.policy.purge_on_change && !wanted.policy.rederive_patch);
}

#[test]
fn nothing_to_do_is_an_error() {
    assert!(error(ONE_SINK, &[]).contains("holds no plugin"));
    assert!(error(TWO_SINKS, &[describe("p", &["t"], None)]).contains("several sinks"));
    let sink = Description { kind: PluginKind::Sink, ..describe("s", &[], None) };
    let text = format!("{ONE_SINK}[[map]]\ntransform = \"s\"\ntable = \"t\"\n");
    assert!(error(&text, &[sink]).contains("is a sink, not a transform"));
}
