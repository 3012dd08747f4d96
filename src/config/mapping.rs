//! From `[[map]]` entries and what plugins say of themselves to mappings.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    model::{Description, EntityName, PluginKind, Revision},
    pipeline::{Identity, Inputs, PluginStamp, RolloutPolicy, Route, Wanted},
    sink::SinkSettings,
};

use super::{
    error::{ConfigError, Problem, did_you_mean, listed},
    settings::{Config, MapEntry, MapPolicy, OnFailure, Place},
};

/// Entity → transform → sink and destination: the unit that has a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its name: its identity in the state schema. Unique.
    pub name: String,
    /// The table.
    pub entity: EntityName,
    /// The name of the transform.
    pub transform: String,
    /// The name of the sink.
    pub sink: String,
    /// Where documents land in the sink unless they say otherwise.
    pub destination: String,
    /// The manual part of its version.
    pub version: Option<String>,
    /// What it does when things change or fail.
    pub policy: MapPolicy,
    /// Whether a patch release of its transform rebuilds it.
    pub rederive_patch: bool,
    /// Whether a patch release of its sink's plugin rebuilds it.
    pub rederive_sink_patch: bool,
}

impl Mapping {
    /// This mapping as the rollout compares it, under a revision of its transform and what that says of itself, and
    /// one of its sink, where that is a plugin.
    #[must_use]
    pub fn wanted(
        &self,
        revision: &Revision,
        description: &Description,
        sink_kind: &str,
        sink_plugin: Option<&Revision>,
    ) -> Wanted {
        let stamp = |revision: &Revision| PluginStamp {
            name: revision.name.clone(),
            version: revision.version.clone(),
            sha256: revision.sha256.clone(),
        };
        Wanted {
            name: self.name.clone(),
            identity: Identity {
                route: Route {
                    entity: self.entity.to_string(),
                    sink: self.sink.clone(),
                    sink_kind: sink_kind.to_owned(),
                    destination: self.destination.clone(),
                },
                transform: stamp(revision),
                sink_plugin: sink_plugin.map(stamp),
                version_key: self.version.clone(),
                inputs: Inputs::of(description),
            },
            policy: RolloutPolicy {
                auto_backfill: self.policy.auto_backfill,
                auto_backfill_on_version_change: self.policy.auto_backfill_on_version_change,
                purge_on_change: self.policy.purge_on_change,
                rederive_patch: self.rederive_patch,
                rederive_sink_patch: self.rederive_sink_patch,
            },
        }
    }
}

/// What a config and a set of plugins come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mappings {
    /// The mappings, those of the file in its order, then those that plugins declare.
    pub mappings: Vec<Mapping>,
    /// Sentences about plugins that do nothing, and why.
    pub notices: Vec<String>,
}

/// Completes the `[[map]]` entries of a config from the descriptions of the plugins that were loaded. A
/// transform that no entry names is mapped for each table it declares, when there is only one sink.
///
/// # Errors
///
/// Everything that is wrong, with its place in the file: a plugin that is not there or is no transform, a
/// table or destination that nobody names, two mappings of one name or with one destination.
pub fn resolve_mappings(config: &Config, descriptions: &[Description]) -> Result<Mappings, ConfigError> {
    let mut resolver =
        Resolver { config, descriptions, problems: Vec::new(), found: Vec::new(), notices: Vec::new() };
    resolver.check_plugins();
    resolver.check_sinks();
    for entry in &config.maps {
        resolver.entry(entry);
    }
    resolver.declared();
    resolver.check_names();
    resolver.check_destinations();
    resolver.look_for_other_ways();
    if resolver.found.is_empty() && resolver.problems.is_empty() {
        resolver.nothing();
    }
    let Resolver { problems, found, notices, .. } = resolver;
    if problems.is_empty() {
        Ok(Mappings { mappings: found.into_iter().map(|(mapping, _)| mapping).collect(), notices })
    } else {
        Err(ConfigError { file: config.file.clone(), problems })
    }
}

struct Resolver<'a> {
    config: &'a Config,
    descriptions: &'a [Description],
    problems: Vec<Problem>,
    found: Vec<(Mapping, Place)>,
    notices: Vec<String>,
}

impl<'a> Resolver<'a> {
    fn complain(&mut self, place: &Place, message: impl Into<String>) {
        let message = message.into();
        self.problems.push(Problem { position: place.position, key: place.key.clone(), message });
    }

    fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.descriptions.iter().map(|description| description.name.as_str())
    }

    fn missing(&self, name: &str) -> String {
        let hint = did_you_mean(name, self.names());
        let dir = self.config.plugins.dir.display();
        let all = if hint.is_empty() { format!("; there are {}", listed(self.names())) } else { hint };
        format!("no plugin in {dir} has the name `{name}`{all}")
    }

    /// One name, one plugin; and each `[plugins.<name>]` is for a plugin that exists.
    fn check_plugins(&mut self) {
        let mut seen = BTreeSet::new();
        for name in self.names() {
            if !seen.insert(name) {
                let dir = self.config.plugins.dir.display();
                let message = format!("two plugins in {dir} have the name `{name}`; remove one");
                self.complain(&Place::default(), message);
            }
        }
        for (name, settings) in &self.config.plugins.named {
            if !seen.contains(name.as_str()) {
                let message = self.missing(name);
                self.complain(&settings.place, message);
            }
        }
    }

    /// Each sink that is a plugin has one, and each sink plugin has a sink.
    fn check_sinks(&mut self) {
        let mut used = BTreeSet::new();
        for sink in self.config.sinks.keys() {
            let Some(plugin) = self.config.sink_plugin(sink) else { continue };
            used.insert(plugin);
            let place = self.config.sink_places.get(sink).cloned().unwrap_or_default();
            let found = self.descriptions.iter().find(|known| known.name == plugin);
            match found.map(|description| description.kind) {
                None => {
                    let message = self.missing(plugin);
                    self.complain(&place, message);
                }
                Some(PluginKind::Transform) => {
                    let message = format!("the plugin `{plugin}` is a transform, not a sink");
                    self.complain(&place, message);
                }
                Some(PluginKind::Sink) => {}
            }
        }
        for description in self.descriptions {
            if description.kind == PluginKind::Sink && !used.contains(description.name.as_str()) {
                self.notices.push(format!(
                    "the plugin `{}` {} does nothing: it is a sink, and no [sink.<name>] names it",
                    description.name, description.version
                ));
            }
        }
    }

    fn entry(&mut self, entry: &MapEntry) {
        let Some(description) = self.descriptions.iter().find(|known| known.name == entry.transform) else {
            let message = self.missing(&entry.transform);
            return self.complain(&entry.transform_place, message);
        };
        if description.kind != PluginKind::Transform {
            let message = format!("the plugin `{}` is a sink, not a transform", entry.transform);
            return self.complain(&entry.transform_place, message);
        }
        let entities = match &entry.table {
            Some(table) => vec![table.clone()],
            None => match self.declared_tables(description, &entry.place) {
                Some(tables) => tables,
                None => return,
            },
        };
        if entities.is_empty() {
            let message =
                format!("has no `table`, and the plugin `{}` declares none; add one", entry.transform);
            return self.complain(&entry.place, message);
        }
        if entities.len() > 1 && entry.name.is_some() {
            let message = format!(
                "the plugin `{}` declares {} tables, which cannot share one `name`; write a [[map]] for each \
                 table",
                entry.transform,
                entities.len()
            );
            return self.complain(&entry.place, message);
        }
        if entry.policy.on_failure == OnFailure::Quarantine && description.names_ids {
            let message = format!(
                "on_failure = \"quarantine\" needs a transform whose documents stand under the keys of their rows, and \
                 the plugin `{}` names ids of its own: a change that is passed over may be the only one that tells \
                 which document has to go; leave out `on_failure`",
                entry.transform
            );
            return self.complain(&entry.place, message);
        }
        for entity in entities {
            let mapping = self.mapping(description, entity, &entry.sink, Some(entry));
            self.found.push((mapping, entry.place.clone()));
        }
    }

    fn declared_tables(&mut self, description: &Description, place: &Place) -> Option<Vec<EntityName>> {
        let mut entities = Vec::new();
        for table in &description.tables {
            match table.parse() {
                Ok(entity) => entities.push(entity),
                Err(_) => {
                    let message = format!(
                        "the plugin `{}` {} declares the table `{table}`, which is no name of a table; name \
                         the table in a [[map]]",
                        description.name, description.version
                    );
                    self.complain(place, message);
                    return None;
                }
            }
        }
        Some(entities)
    }

    fn mapping(
        &self,
        description: &Description,
        entity: EntityName,
        sink: &str,
        entry: Option<&MapEntry>,
    ) -> Mapping {
        let own = entry.and_then(|entry| entry.destination.clone());
        let destination =
            own.or_else(|| description.destination.clone()).unwrap_or_else(|| default_destination(&entity));
        let name = entry.and_then(|entry| entry.name.clone());
        Mapping {
            name: name.unwrap_or_else(|| derived_name(&entity, &description.name, sink)),
            entity,
            transform: description.name.clone(),
            sink: sink.to_owned(),
            destination,
            version: entry.and_then(|entry| entry.version.clone()),
            policy: entry.map(|entry| entry.policy).unwrap_or_default(),
            rederive_patch: self.config.plugins.of(&description.name).rederive_patch,
            rederive_sink_patch: self
                .config
                .sink_plugin(sink)
                .is_none_or(|plugin| self.config.plugins.of(plugin).rederive_patch),
        }
    }

    /// Transforms that no entry names: the tables that they declare.
    fn declared(&mut self) {
        let named: BTreeSet<_> = self.config.maps.iter().map(|entry| entry.transform.as_str()).collect();
        for description in self.descriptions {
            if description.kind != PluginKind::Transform || named.contains(description.name.as_str()) {
                continue;
            }
            let plugin = format!("the plugin `{}` {}", description.name, description.version);
            if description.tables.is_empty() {
                self.notices
                    .push(format!("{plugin} does nothing: no [[map]] names it, and it declares no tables"));
                continue;
            }
            let sinks: Vec<_> = self.config.sinks.keys().map(String::as_str).collect();
            let [sink] = sinks.as_slice() else {
                self.notices.push(format!(
                    "{plugin} does nothing: no [[map]] names it, and there are several sinks ({})",
                    listed(sinks.iter().copied())
                ));
                continue;
            };
            for entity in self.declared_tables(description, &Place::default()).unwrap_or_default() {
                let mapping = self.mapping(description, entity, sink, None);
                self.found.push((mapping, Place::default()));
            }
        }
    }

    fn check_names(&mut self) {
        let mut seen = BTreeSet::new();
        let mut twice = Vec::new();
        for (mapping, place) in &self.found {
            if !seen.insert(mapping.name.as_str()) {
                let message = format!(
                    "two mappings have the name `{}`; give one of them a `name` of its own",
                    mapping.name
                );
                twice.push((place.clone(), message));
            }
        }
        for (place, message) in twice {
            self.complain(&place, message);
        }
    }

    /// Two mappings may share a destination only where both name their own ids, and neither empties it. Two sinks that
    /// write to the same are one, but for SQLite files, which are known to be shared when they are written.
    fn check_destinations(&mut self) {
        let mut users: BTreeMap<(String, &str), Vec<(&Mapping, &Place)>> = BTreeMap::new();
        for (mapping, place) in &self.found {
            let to = if self.config.sink_plugin(&mapping.sink).is_some() {
                self.config.writes_to(&mapping.sink)
            } else {
                mapping.sink.clone()
            };
            users.entry((to, &mapping.destination)).or_default().push((mapping, place));
        }
        let names_ids = |mapping: &Mapping| {
            self.descriptions.iter().any(|known| known.name == mapping.transform && known.names_ids)
        };
        let mut clashes = Vec::new();
        for ((_, destination), users) in users {
            let [(first, _), .., (last, place)] = users.as_slice() else { continue };
            let reason = if !users.iter().all(|(mapping, _)| names_ids(mapping)) {
                "documents of the same key would overwrite each other"
            } else if users.iter().any(|(mapping, _)| mapping.policy.purge_on_change) {
                "purge_on_change of one would remove the documents of the other"
            } else {
                continue;
            };
            let sinks = if first.sink == last.sink {
                format!("in the sink `{}`", first.sink)
            } else {
                format!("in the sinks `{}` and `{}`, which have the same settings", first.sink, last.sink)
            };
            let message = format!(
                "the mappings `{}` and `{}` both write to `{destination}` {sinks}, where {reason}; give one of them \
                 another `destination`",
                first.name, last.name
            );
            clashes.push(((*place).clone(), message));
        }
        for (place, message) in clashes {
            self.complain(&place, message);
        }
    }

    /// Tells of a destination that two sinks may share without being known to.
    fn look_for_other_ways(&mut self) {
        let plugin = |mapping: &Mapping| match self.config.sinks.get(&mapping.sink) {
            Some(SinkSettings::Plugin(settings)) => Some(settings),
            _ => None,
        };
        let may_be_one = |one: &Mapping, other: &Mapping| {
            let (Some(one_settings), Some(other_settings)) = (plugin(one), plugin(other)) else {
                return false;
            };
            one.destination == other.destination
                && one_settings != other_settings
                && one_settings.may_be_one_with(other_settings)
        };
        let mut told = Vec::new();
        for (at, (other, _)) in self.found.iter().enumerate() {
            let ones = self.found[..at].iter().filter(|(one, _)| may_be_one(one, other));
            told.extend(ones.map(|(one, _)| {
                format!(
                    "the mappings `{}` and `{}` both write to `{}`, in the sinks `{}` and `{}`, which are the same plugin \
                     and differ in numbers and switches alone: where they lead to one place, a rebuild or a purge of one \
                     removes the documents of the other; give one of them another `destination`, or both the same sink",
                    one.name, other.name, other.destination, one.sink, other.sink
                )
            }));
        }
        self.notices.append(&mut told);
    }

    fn nothing(&mut self) {
        let dir = self.config.plugins.dir.display().to_string();
        let mut message = if self.descriptions.is_empty() {
            format!("there is nothing to do: {dir} holds no plugin")
        } else {
            "there is nothing to do: no [[map]] is written, and no plugin can work without one".to_owned()
        };
        for notice in &self.notices {
            message.push_str("; ");
            message.push_str(notice);
        }
        self.complain(&Place::default(), message);
    }
}

/// The name of a mapping that has none of its own: readable, and the same as long as table, transform and
/// sink are.
fn derived_name(entity: &EntityName, transform: &str, sink: &str) -> String {
    format!("{entity}:{transform}:{sink}")
}

/// The table's name; with its schema where that is not `public`, so that two tables of one name stay apart.
fn default_destination(entity: &EntityName) -> String {
    if entity.schema == "public" {
        entity.table.clone()
    } else {
        format!("{}.{}", entity.schema, entity.table)
    }
}

#[cfg(test)]
mod tests;
