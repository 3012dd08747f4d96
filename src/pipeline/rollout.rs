//! What a change of versions asks for: which mappings are new, rebuilt, refused or gone, and why.
//!
//! A pure comparison of what is wanted (config and plugins) with what is stored. The version of a mapping is
//! its transform's version, its sink's version where the sink is a plugin, and the manual `version` of the
//! config. Any difference, up or down, starts a new generation; other bytes or other declared inputs under
//! the same version are refused, because nobody could tell which documents came from which code. Whether the
//! host was upgraded or code was compiled again is never asked.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::model::Description;

/// What makes the documents of a mapping what they are: kept by the state schema as JSON, compared here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Where documents come from and go to.
    pub route: Route,
    /// The transform.
    pub transform: PluginStamp,
    /// The sink, where it is a plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sink_plugin: Option<PluginStamp>,
    /// The `version` of the `[[map]]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_key: Option<String>,
    /// What the transform declares to read.
    pub inputs: Inputs,
}

impl Identity {
    /// The version of the mapping, for people: `1.4.0`, `1.4.0 (2)`, `1.4.0 / 0.3.0`.
    #[must_use]
    pub fn version_text(&self) -> String {
        let mut text = self.transform.version.to_string();
        if let Some(sink) = &self.sink_plugin {
            text.push_str(&format!(" / {}", sink.version));
        }
        if let Some(key) = &self.version_key {
            text.push_str(&format!(" ({key})"));
        }
        text
    }
}

/// Where the documents of a mapping come from and go to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The entity, as `schema.table`.
    pub entity: String,
    /// The sink's name.
    pub sink: String,
    /// The sink's kind.
    pub sink_kind: String,
    /// The destination in the sink.
    pub destination: String,
}

/// A plugin's name, version and bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginStamp {
    /// Its name.
    pub name: String,
    /// Its version, whole: build metadata counts as a difference, too.
    pub version: semver::Version,
    /// SHA-256 of the component, in lower-case hex.
    pub sha256: String,
}

/// What a transform declares to read. Order does not matter, so it is not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inputs {
    tables: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    columns: Option<Vec<String>>,
    depends_on: Vec<String>,
    wants_deletes: bool,
    names_ids: bool,
}

impl Inputs {
    /// The inputs that a plugin declares.
    #[must_use]
    pub fn of(description: &Description) -> Self {
        Self {
            tables: sorted(&description.tables),
            columns: description.columns.as_deref().map(sorted),
            depends_on: sorted(&description.depends_on),
            wants_deletes: description.wants_deletes,
            names_ids: description.names_ids,
        }
    }

    /// The names of what differs.
    fn differences(&self, other: &Self) -> Vec<&'static str> {
        let parts = [
            ("tables", self.tables != other.tables),
            ("columns", self.columns != other.columns),
            ("dependencies", self.depends_on != other.depends_on),
            ("wish for deletes", self.wants_deletes != other.wants_deletes),
            ("naming of ids", self.names_ids != other.names_ids),
        ];
        parts.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }
}

fn sorted(names: &[String]) -> Vec<String> {
    let mut names = names.to_vec();
    names.sort();
    names.dedup();
    names
}

/// A mapping as config and plugins want it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The mapping's name.
    pub name: String,
    /// What its documents come from.
    pub identity: Identity,
    /// What a difference is to lead to.
    pub policy: RolloutPolicy,
}

/// What differences lead to, for one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutPolicy {
    /// Whether a mapping that is seen for the first time is backfilled.
    pub auto_backfill: bool,
    /// Whether a new generation is backfilled.
    pub auto_backfill_on_version_change: bool,
    /// Whether the destination is emptied before that.
    pub purge_on_change: bool,
    /// Whether a patch release of the transform counts as a difference (`rederive.patch`).
    pub rederive_patch: bool,
    /// The same of the sink's plugin.
    pub rederive_sink_patch: bool,
}

/// A mapping as the state schema knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The mapping's name.
    pub name: String,
    /// What its documents came from.
    pub identity: Identity,
}

/// What a mapping needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It was never seen: its state is made.
    New {
        /// Whether its table is backfilled.
        backfill: bool,
    },
    /// Everything is as it was.
    Unchanged,
    /// The stored identity is replaced without a new generation: a patch release that is exempt.
    Adopt {
        /// What differs.
        differences: Vec<Difference>,
    },
    /// A new generation starts.
    Rebuild {
        /// What differs; never empty.
        differences: Vec<Difference>,
        /// Whether its table is backfilled.
        backfill: bool,
        /// Whether its destination is emptied first.
        purge: bool,
    },
    /// The version is the same and what it stands for is not: the old revision stays, or the mapping does
    /// not run.
    Refused {
        /// What differs under the same version; never empty.
        conflicts: Vec<Conflict>,
    },
    /// Nobody wants it any more: its backfill ends and its state is forgotten.
    Removed,
}

/// Something that starts a new generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Another version of a plugin, or another plugin.
    Plugin {
        /// `name version` as stored; none where there was no plugin.
        from: Option<(String, semver::Version)>,
        /// `name version` as wanted; none where there is no plugin any more.
        to: Option<(String, semver::Version)>,
    },
    /// The manual `version` of the config.
    VersionKey {
        /// As stored.
        from: Option<String>,
        /// As wanted.
        to: Option<String>,
    },
    /// A part of the route: `table`, `sink`, `sink kind` or `destination`.
    Route {
        /// Which part.
        part: &'static str,
        /// As stored.
        from: String,
        /// As wanted.
        to: String,
    },
    /// Other declared inputs, together with another version or under `--dev`.
    Inputs {
        /// The names of what differs.
        parts: Vec<&'static str>,
    },
    /// Other bytes of the same version, under `--dev`.
    Bytes {
        /// The plugin.
        plugin: String,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plugin { from: Some((old, from)), to: Some((new, to)) } if old == new => {
                let down = if to < from { " (down)" } else { "" };
                write!(f, "{new} {from} → {to}{down}")
            }
            Self::Plugin { from, to } => {
                let show = |plugin: &Option<(String, semver::Version)>| {
                    plugin.as_ref().map_or("none".to_owned(), |(name, version)| format!("{name} {version}"))
                };
                write!(f, "{} → {}", show(from), show(to))
            }
            Self::VersionKey { from, to } => {
                let show =
                    |key: &Option<String>| key.as_ref().map_or("none".to_owned(), |key| format!("\"{key}\""));
                write!(f, "version {} → {}", show(from), show(to))
            }
            Self::Route { part, from, to } => write!(f, "{part} {from} → {to}"),
            Self::Inputs { parts } => write!(f, "other declared {}", parts.join(", ")),
            Self::Bytes { plugin } => write!(f, "{plugin}: other bytes (--dev)"),
        }
    }
}

/// What differs although the version is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// Other bytes.
    Bytes {
        /// The plugin.
        plugin: String,
        /// Its version.
        version: semver::Version,
        /// SHA-256 as stored.
        from: String,
        /// SHA-256 as wanted.
        to: String,
    },
    /// Other declared inputs.
    Inputs {
        /// The plugin.
        plugin: String,
        /// Its version.
        version: semver::Version,
        /// The names of what differs.
        parts: Vec<&'static str>,
    },
}

impl Conflict {
    /// The plugin that it is about.
    #[must_use]
    pub fn plugin(&self) -> &str {
        match self {
            Self::Bytes { plugin, .. } | Self::Inputs { plugin, .. } => plugin,
        }
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |hash: &str| hash.get(..12).unwrap_or(hash).to_owned();
        match self {
            Self::Bytes { plugin, version, from, to } => write!(
                f,
                "{plugin} {version} has other bytes than the {version} that made the documents (sha256 {} → {}): \
                 bump its version, or put the old file back",
                short(from),
                short(to)
            ),
            Self::Inputs { plugin, version, parts } => write!(
                f,
                "{plugin} {version} declares other {} than the {version} that made the documents: bump its \
                 version",
                parts.join(", ")
            ),
        }
    }
}

/// The decision for one mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The mapping's name.
    pub mapping: String,
    /// What it needs.
    pub decision: Decision,
}

/// Compares what is wanted with what is stored: a step for each wanted mapping in its order, then one for
/// each that is gone, by name. Under `dev`, other bytes of the same version count as a bump.
#[must_use]
pub fn compare(wanted: &[Wanted], stored: &[Stored], dev: bool) -> Vec<Step> {
    let mut left: BTreeMap<_, _> = stored.iter().map(|stored| (stored.name.as_str(), stored)).collect();
    let mut steps = Vec::with_capacity(wanted.len());
    for mapping in wanted {
        let decision = match left.remove(mapping.name.as_str()) {
            Some(stored) => decide(mapping, &stored.identity, dev),
            None => Decision::New { backfill: mapping.policy.auto_backfill },
        };
        steps.push(Step { mapping: mapping.name.clone(), decision });
    }
    let removed = left.into_keys();
    steps.extend(removed.map(|name| Step { mapping: name.to_owned(), decision: Decision::Removed }));
    steps
}

fn decide(wanted: &Wanted, stored: &Identity, dev: bool) -> Decision {
    let identity = &wanted.identity;
    let mut differences = route_differences(&stored.route, &identity.route);
    let mut conflicts = Vec::new();
    let mut exempt = Vec::new();

    let bumped = stored.version_key != identity.version_key;
    if bumped {
        differences.push(Difference::VersionKey {
            from: stored.version_key.clone(),
            to: identity.version_key.clone(),
        });
    }
    let inputs = stored.inputs.differences(&identity.inputs);
    match versions(Some(&stored.transform), Some(&identity.transform)) {
        None => {
            // The manual bump makes it another version of the mapping, whatever the file is.
            let free = bumped || dev;
            conflict(&stored.transform, &identity.transform, &inputs, free, &mut differences, &mut conflicts);
        }
        Some(difference) => {
            let patch = is_patch_release(&stored.transform, &identity.transform);
            if patch && !wanted.policy.rederive_patch && inputs.is_empty() {
                exempt.push(difference);
            } else {
                differences.push(difference);
                if !inputs.is_empty() {
                    differences.push(Difference::Inputs { parts: inputs });
                }
            }
        }
    }
    match versions(stored.sink_plugin.as_ref(), identity.sink_plugin.as_ref()) {
        Some(difference) => {
            let plugins = stored.sink_plugin.as_ref().zip(identity.sink_plugin.as_ref());
            let patch = plugins.is_some_and(|(old, new)| is_patch_release(old, new));
            let exempts = patch && !wanted.policy.rederive_sink_patch;
            if exempts { &mut exempt } else { &mut differences }.push(difference);
        }
        None => {
            if let (Some(old), Some(new)) = (&stored.sink_plugin, &identity.sink_plugin) {
                conflict(old, new, &[], bumped || dev, &mut differences, &mut conflicts);
            }
        }
    }

    if !conflicts.is_empty() {
        return Decision::Refused { conflicts };
    }
    if !differences.is_empty() {
        differences.append(&mut exempt);
        let backfill = wanted.policy.auto_backfill_on_version_change;
        // To empty what is not filled again would only lose documents.
        return Decision::Rebuild { differences, backfill, purge: backfill && wanted.policy.purge_on_change };
    }
    if exempt.is_empty() { Decision::Unchanged } else { Decision::Adopt { differences: exempt } }
}

fn route_differences(stored: &Route, wanted: &Route) -> Vec<Difference> {
    let parts = [
        ("table", &stored.entity, &wanted.entity),
        ("sink", &stored.sink, &wanted.sink),
        ("sink kind", &stored.sink_kind, &wanted.sink_kind),
        ("destination", &stored.destination, &wanted.destination),
    ];
    let differing = parts.into_iter().filter(|(_, from, to)| from != to);
    differing.map(|(part, from, to)| Difference::Route { part, from: from.clone(), to: to.clone() }).collect()
}

/// The difference between two plugins by name and version; none if they are of one version.
fn versions(stored: Option<&PluginStamp>, wanted: Option<&PluginStamp>) -> Option<Difference> {
    let named = |stamp: Option<&PluginStamp>| stamp.map(|stamp| (stamp.name.clone(), stamp.version.clone()));
    let (from, to) = (named(stored), named(wanted));
    (from != to).then_some(Difference::Plugin { from, to })
}

/// What differs between two plugins of one version: a reason to rebuild where that is `free` to happen,
/// otherwise a conflict.
fn conflict(
    stored: &PluginStamp,
    wanted: &PluginStamp,
    inputs: &[&'static str],
    free: bool,
    differences: &mut Vec<Difference>,
    conflicts: &mut Vec<Conflict>,
) {
    let PluginStamp { name: plugin, version, sha256: to } = wanted.clone();
    let from = stored.sha256.clone();
    if from != to {
        if free {
            differences.push(Difference::Bytes { plugin: plugin.clone() });
        } else {
            conflicts.push(Conflict::Bytes { plugin: plugin.clone(), version: version.clone(), from, to });
        }
    }
    if !inputs.is_empty() {
        let parts = inputs.to_vec();
        if free {
            differences.push(Difference::Inputs { parts });
        } else {
            conflicts.push(Conflict::Inputs { plugin, version, parts });
        }
    }
}

/// Whether two versions of one plugin differ by their patch number only, both of them released.
fn is_patch_release(stored: &PluginStamp, wanted: &PluginStamp) -> bool {
    let (old, new) = (&stored.version, &wanted.version);
    stored.name == wanted.name
        && (old.major, old.minor) == (new.major, new.minor)
        && old.patch != new.patch
        && old.pre.is_empty()
        && new.pre.is_empty()
}

#[cfg(test)]
mod tests;
