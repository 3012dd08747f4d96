use proptest::prelude::*;

use super::*;

const POLICY: RolloutPolicy = RolloutPolicy {
    auto_backfill: true,
    auto_backfill_on_version_change: true,
    purge_on_change: false,
    rederive_patch: true,
    rederive_sink_patch: true,
};

fn stamp(version: &str, bytes: &str) -> PluginStamp {
    PluginStamp { name: "p".into(), version: version.parse().unwrap(), sha256: bytes.into() }
}

fn identity(version: &str, bytes: &str) -> Identity {
    Identity {
        route: Route {
            entity: "public.t".into(),
            sink: "s".into(),
            sink_kind: "sqlite".into(),
            destination: "d".into(),
        },
        transform: stamp(version, bytes),
        sink_plugin: None,
        version_key: None,
        inputs: Inputs::default(),
    }
}

fn decision(stored: Identity, wanted: Identity, policy: RolloutPolicy, dev: bool) -> Decision {
    let wanted = Wanted { name: "m".into(), identity: wanted, policy };
    let steps = compare(&[wanted], &[Stored { name: "m".into(), identity: stored }], dev);
    assert_eq!(steps.len(), 1);
    steps.into_iter().next().unwrap().decision
}

fn reasons(decision: &Decision) -> Vec<String> {
    match decision {
        Decision::Rebuild { differences, .. } | Decision::Adopt { differences } => {
            differences.iter().map(ToString::to_string).collect()
        }
        Decision::Refused { conflicts } => conflicts.iter().map(ToString::to_string).collect(),
        other => panic!("{other:?} has no reasons"),
    }
}

#[test]
fn c091_every_difference_of_a_version_rebuilds_up_or_down() {
    let versions = ["1.9.0", "1.10.0", "1.10.0-rc.1", "1.10.0+b2", "1.10.0+b3", "2.0.0", "1.9.1", "0.0.1"];
    for from in versions {
        for to in versions {
            // The bytes differ along with the version, as they do in life.
            let found = decision(identity(from, from), identity(to, to), POLICY, false);
            if from == to {
                assert_eq!(found, Decision::Unchanged);
            } else {
                assert!(
                    matches!(found, Decision::Rebuild { backfill: true, purge: false, .. }),
                    "{from} {to}"
                );
            }
        }
    }
    let up = decision(identity("1.9.0", "a"), identity("1.10.0", "b"), POLICY, false);
    assert_eq!(reasons(&up), ["p 1.9.0 → 1.10.0"]);
    let down = decision(identity("1.10.0", "a"), identity("1.10.0-rc.1", "b"), POLICY, false);
    assert_eq!(reasons(&down), ["p 1.10.0 → 1.10.0-rc.1 (down)"]);
}

#[test]
fn c091_versions_are_strict() {
    for text in ["v1", "1", "1.2", "01.2.3", "1.2.3.4", "", " 1.2.3", "1.2.3-", "1.2.3-01", "1.2.-3"] {
        assert!(semver::Version::parse(text).is_err(), "{text}");
    }
}

#[test]
fn c091_other_bytes_of_the_same_version_are_refused() {
    let found =
        decision(identity("1.4.0", "aaaaaaaaaaaaaaaa"), identity("1.4.0", "bbbbbbbbbbbbbbbb"), POLICY, false);
    let said = reasons(&found).join("");
    assert!(matches!(found, Decision::Refused { .. }));
    assert!(said.contains("p 1.4.0 has other bytes") && said.contains("bump its version"), "{said}");
    assert!(said.contains("aaaaaaaaaaaa → bbbbbbbbbbbb"), "{said}");
}

#[test]
fn other_bytes_count_as_a_bump_under_dev_and_with_a_manual_bump() {
    let dev = decision(identity("1.4.0", "a"), identity("1.4.0", "b"), POLICY, true);
    assert_eq!(reasons(&dev), ["p: other bytes (--dev)"]);
    let bumped = Identity { version_key: Some("2".into()), ..identity("1.4.0", "b") };
    let found = decision(identity("1.4.0", "a"), bumped, POLICY, false);
    assert!(matches!(found, Decision::Rebuild { .. }), "{found:?}");
    assert!(reasons(&found).contains(&"version none → \"2\"".to_owned()));
}

#[test]
fn other_inputs_of_the_same_version_are_refused() {
    let description = Description {
        raw: vec![],
        name: "p".into(),
        version: semver::Version::new(1, 4, 0),
        kind: crate::model::PluginKind::Transform,
        encoding: crate::model::Encoding::Json,
        tables: vec!["b".into(), "a".into()],
        columns: Some(vec!["x".into()]),
        destination: None,
        wants_deletes: false,
        names_ids: false,
        depends_on: Vec::new(),
    };
    let stored = Identity { inputs: Inputs::of(&description), ..identity("1.4.0", "a") };
    let same = Description { tables: vec!["a".into(), "b".into()], ..description.clone() };
    let reordered = Identity { inputs: Inputs::of(&same), ..identity("1.4.0", "a") };
    assert_eq!(decision(stored.clone(), reordered, POLICY, false), Decision::Unchanged);
    let other = Description { columns: None, depends_on: vec!["c".into()], ..description };
    let changed = |version: &str| Identity { inputs: Inputs::of(&other), ..identity(version, "a") };
    let found = decision(stored.clone(), changed("1.4.0"), POLICY, false);
    assert!(reasons(&found)[0].contains("declares other columns, dependencies"), "{found:?}");
    assert!(matches!(found, Decision::Refused { .. }));
    // An exempt patch release is not exempt when it reads something else.
    let policy = RolloutPolicy { rederive_patch: false, ..POLICY };
    assert!(matches!(decision(stored, changed("1.4.1"), policy, false), Decision::Rebuild { .. }));
}

#[test]
fn patch_releases_may_be_exempt() {
    let policy = RolloutPolicy { rederive_patch: false, ..POLICY };
    let find = |from: &str, to: &str| decision(identity(from, from), identity(to, to), policy, false);
    assert_eq!(reasons(&find("1.4.0", "1.4.1")), ["p 1.4.0 → 1.4.1"]);
    assert!(matches!(find("1.4.0", "1.4.1"), Decision::Adopt { .. }));
    assert!(matches!(find("1.4.1", "1.4.0"), Decision::Adopt { .. }), "also down");
    for to in ["1.5.0", "2.4.0", "1.4.1-rc.1", "1.4.0+build"] {
        assert!(matches!(find("1.4.0", to), Decision::Rebuild { .. }), "{to}");
    }
}

#[test]
fn another_route_rebuilds() {
    let mut wanted = identity("1.0.0", "a");
    wanted.route.destination = "e".into();
    wanted.route.sink_kind = "http".into();
    let found = decision(identity("1.0.0", "a"), wanted, POLICY, false);
    assert_eq!(reasons(&found), ["sink kind sqlite → http", "destination d → e"]);
    let mut plugin = identity("1.0.0", "b");
    plugin.transform.name = "q".into();
    assert_eq!(reasons(&decision(identity("1.0.0", "a"), plugin, POLICY, false)), ["p 1.0.0 → q 1.0.0"]);
}

#[test]
fn a_sink_plugin_has_a_version_too() {
    let with = |version: &str, bytes: &str| Identity {
        sink_plugin: Some(PluginStamp { name: "k".into(), ..stamp(version, bytes) }),
        ..identity("1.0.0", "a")
    };
    assert_eq!(
        reasons(&decision(with("1.0.0", "x"), with("1.1.0", "y"), POLICY, false)),
        ["k 1.0.0 → 1.1.0"]
    );
    assert!(matches!(
        decision(with("1.0.0", "x"), with("1.0.0", "y"), POLICY, false),
        Decision::Refused { .. }
    ));
    assert_eq!(
        reasons(&decision(identity("1.0.0", "a"), with("1.0.0", "x"), POLICY, false)),
        ["none → k 1.0.0"]
    );
    assert_eq!(with("1.1.0", "x").version_text(), "1.0.0 / 1.1.0");
    let exempt = RolloutPolicy { rederive_sink_patch: false, ..POLICY };
    let found = decision(with("1.0.0", "x"), with("1.0.1", "y"), exempt, false);
    assert!(matches!(found, Decision::Adopt { .. }), "{found:?}");
    let found = decision(with("1.0.0", "x"), with("1.1.0", "y"), exempt, false);
    assert!(matches!(found, Decision::Rebuild { .. }), "{found:?}");
}

/// As 0.1 stored it, before sinks could be plugins.
#[test]
fn what_a_built_in_sink_was_stored_with_stays_the_same() {
    let text = r#"{"route":{"entity":"public.t","sink":"s","sink_kind":"sqlite","destination":"d"},
        "transform":{"name":"p","version":"1.0.0","sha256":"a"},
        "inputs":{"tables":[],"depends_on":[],"wants_deletes":false,"names_ids":false}}"#;
    let stored: Identity = serde_json::from_str(text).unwrap();
    assert_eq!(decision(stored.clone(), identity("1.0.0", "a"), POLICY, false), Decision::Unchanged);
    assert!(!serde_json::to_string(&stored).unwrap().contains("sink_plugin"), "an older host reads it too");
}

#[test]
fn policies_are_followed() {
    let quiet = RolloutPolicy { auto_backfill_on_version_change: false, purge_on_change: true, ..POLICY };
    let found = decision(identity("1.0.0", "a"), identity("1.1.0", "b"), quiet, false);
    assert!(matches!(found, Decision::Rebuild { backfill: false, purge: false, .. }), "{found:?}");
    let purging = RolloutPolicy { purge_on_change: true, ..POLICY };
    let found = decision(identity("1.0.0", "a"), identity("1.1.0", "b"), purging, false);
    assert!(matches!(found, Decision::Rebuild { backfill: true, purge: true, .. }), "{found:?}");
    let manual = RolloutPolicy { auto_backfill: false, ..POLICY };
    let new = Wanted { name: "n".into(), identity: identity("1.0.0", "a"), policy: manual };
    assert_eq!(compare(&[new], &[], false)[0].decision, Decision::New { backfill: false });
}

#[test]
fn stored_identities_read_back() {
    let mut stored = identity("1.10.0-rc.1+b2", "a");
    stored.version_key = Some("2".into());
    let text = serde_json::to_string(&stored).unwrap();
    assert_eq!(serde_json::from_str::<Identity>(&text).unwrap(), stored);
    assert_eq!(stored.version_text(), "1.10.0-rc.1+b2 (2)");
}

fn any_identity() -> impl Strategy<Value = Identity> {
    let version = prop::sample::select(vec!["1.0.0", "1.0.1", "1.1.0", "2.0.0-a", "1.0.0+x"]);
    let key = prop::option::of(prop::sample::select(vec!["1", "2"]));
    (version, prop::sample::select(vec!["a", "b"]), key, prop::sample::select(vec!["d", "e"])).prop_map(
        |(version, bytes, key, destination)| {
            let mut identity = identity(version, bytes);
            identity.version_key = key.map(str::to_owned);
            identity.route.destination = destination.into();
            identity
        },
    )
}

fn any_policy() -> impl Strategy<Value = RolloutPolicy> {
    any::<[bool; 4]>().prop_map(|[first, change, purge, patch]| RolloutPolicy {
        auto_backfill: first,
        auto_backfill_on_version_change: change,
        purge_on_change: purge,
        rederive_patch: patch,
        rederive_sink_patch: patch,
    })
}

proptest! {
    /// The same is never rebuilt; what is not unchanged says why; what was decided once is settled.
    #[test]
    fn decisions_are_settled(from in any_identity(), to in any_identity(), policy in any_policy(), dev: bool) {
        prop_assert_eq!(decision(from.clone(), from.clone(), policy, dev), Decision::Unchanged);
        let found = decision(from.clone(), to.clone(), policy, dev);
        prop_assert_eq!(found == Decision::Unchanged, from == to);
        if found != Decision::Unchanged {
            prop_assert!(!reasons(&found).is_empty());
        }
        if let Decision::Refused { .. } = found {
            prop_assert!(!dev && from.transform.version == to.transform.version);
            prop_assert_ne!(from.transform.sha256, to.transform.sha256);
        }
    }

    /// Each name is decided once, and a mapping is decided by its own state alone.
    #[test]
    fn mappings_do_not_touch_each_other(
        wanted in prop::collection::btree_map("[a-d]", (any_identity(), any_policy()), 0..4),
        stored in prop::collection::btree_map("[a-d]", any_identity(), 0..4),
    ) {
        let wanted: Vec<_> = wanted
            .into_iter()
            .map(|(name, (identity, policy))| Wanted { name, identity, policy })
            .collect();
        let stored: Vec<_> =
            stored.into_iter().map(|(name, identity)| Stored { name, identity }).collect();
        let steps = compare(&wanted, &stored, false);
        let mut names: Vec<_> = steps.iter().map(|step| step.mapping.clone()).collect();
        names.sort();
        let mut expected: Vec<_> = wanted.iter().map(|m| m.name.clone()).chain(stored.iter().map(|m| m.name.clone())).collect();
        expected.sort();
        expected.dedup();
        prop_assert_eq!(names, expected);
        for mapping in &wanted {
            let own: Vec<_> = stored.iter().filter(|s| s.name == mapping.name).cloned().collect();
            let alone = compare(std::slice::from_ref(mapping), &own, false);
            prop_assert!(steps.contains(&alone[0]));
        }
    }
}
