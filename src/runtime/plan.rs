//! What a term is to do with each mapping: run it, rebuild it, hold the slot for it, or refuse it.
//!
//! The comparison itself is `pipeline::compare`; here it meets the config, the plugins, the tables as they are
//! and what is stored.

use std::{collections::BTreeMap, sync::Arc};

use tracing::{info, warn};

use crate::{
    backfill::{Cursor, KeyColumn},
    config::{Config, Mapping, resolve_mappings},
    model::{EntityName, Place, Redactor},
    pipeline::{Decision, DocumentRules, Identity, Stored, Wanted, compare},
    plugin::Plugin,
    postgres::{self, Catalog, Client, ColumnLists, Finding, PreflightRequest, Severity},
    state::{MappingStatus, RunStatus, Store, StoredMapping, StoredRun},
};

use super::{
    error::TermError, lane::Active, outlet::Outlets, recover, reload::PluginSet, serve::Server,
    source::Source, token::Token,
};

/// A mapping as config and plugins want it.
#[derive(Clone, Debug)]
pub struct WantedMapping {
    /// As resolved.
    pub mapping: Mapping,
    /// As the rollout compares it: what its documents come from, and what may be done about a difference.
    pub rollout: Wanted,
    names_ids: bool,
    /// What its transform asks for and is not granted.
    ungranted: Option<String>,
    /// A newer revision of its transform that is not taken up, and why.
    pub(super) held: Option<String>,
    /// The columns that its transform reads; none for all.
    columns: Option<Vec<String>>,
    /// Why it is stopped: its plugin was removed.
    pub(super) stopped: Option<String>,
}

/// What is known of the mapped tables.
pub(super) type Tables = BTreeMap<EntityName, TableState>;

/// A mapped table as it is now.
#[derive(Clone, Debug, Default)]
pub(super) struct TableState {
    pub(super) oid: u32,
    pub(super) estimate: Option<u64>,
    /// What its rows are told apart by.
    pub(super) key: Vec<KeyColumn>,
    /// Why its mappings cannot run.
    pub(super) problem: Option<String>,
}

/// Whether a mapping runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Runs,
    /// It has documents and cannot run: the slot keeps what it misses.
    Held {
        reason: String,
    },
    /// Its table cannot be used: it is built again once it can, and the slot keeps nothing for it.
    Unusable {
        reason: String,
    },
    /// It never ran, and cannot.
    Refused {
        reason: String,
    },
}

/// A mapping with what is stored of it from now on.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) mapping: Mapping,
    pub(super) stored: StoredMapping,
    pub(super) verdict: Verdict,
    pub(super) table: TableState,
    /// Somebody cancelled its table's backfill: none begins by itself until one is requested.
    pub(super) cancelled: bool,
    /// Its generation is a new one, so that no stored run is of it.
    pub(super) rebuilt: bool,
    /// The stored run that it may go on with.
    pub(super) run: Option<StoredRun>,
    /// The key by which its table was last read, with the names that its columns had then.
    pub(super) read_by: Option<Vec<KeyColumn>>,
    /// What is in the sink: as stored, until the sink is asked.
    pub(super) token: Token,
    /// The other mappings that write to the same destination.
    pub(super) shares: Vec<String>,
}

impl Planned {
    /// What its lane works with.
    pub(super) fn active(&self, config: &Config, plugin: &Plugin, server: &Server) -> Active {
        active(config, &self.mapping, &self.stored, plugin, server)
    }

    /// The stored run of its present generation.
    pub(super) fn own_run(&self) -> Option<&StoredRun> {
        self.run.as_ref().filter(|_| !self.rebuilt)
    }

    /// Whether its table still has to be read for its generation.
    pub(super) fn needs_backfill(&self) -> bool {
        self.verdict == Verdict::Runs && !self.cancelled && self.stored.built < self.stored.generation
    }
}

pub(super) fn active(
    config: &Config,
    mapping: &Mapping,
    stored: &StoredMapping,
    plugin: &Plugin,
    server: &Server,
) -> Active {
    let generation = stored.generation;
    // Nothing is read again for it, or all of it was; then what is kept is its own.
    let inherits = stored.built >= generation;
    let settings = config.plugins.of(&mapping.transform).guest_config();
    let services = server.of(&mapping.name, generation, inherits, plugin);
    Active {
        secrets: Redactor::new(settings.values()),
        transform: Arc::new(plugin.transform(&mapping.entity, settings).with_services(services)),
        rules: DocumentRules {
            destination: mapping.destination.clone(),
            generation,
            wants_deletes: plugin.description().wants_deletes,
            names_ids: plugin.description().names_ids,
        },
    }
}

/// What the pump needs to judge plugins that change while it runs.
#[derive(Clone, Debug)]
pub(super) struct ReloadContext {
    pub(super) config: Arc<Config>,
    pub(super) sinks: Arc<Outlets>,
    pub(super) dev: bool,
    pub(super) server: Server,
}

/// The mappings that config and plugins come to.
///
/// # Errors
/// They do not fit together.
pub fn wanted(
    config: &Config,
    plugins: &PluginSet,
) -> Result<Vec<WantedMapping>, crate::config::ConfigError> {
    let mappings = resolve_mappings(config, &plugins.descriptions())?;
    for notice in &mappings.notices {
        warn!("{notice}");
    }
    let complete = |mapping: Mapping| {
        let plugin = plugins.named(&mapping.transform)?;
        let kind = config.sinks.get(&mapping.sink)?.kind();
        let sink_name = config.sink_plugin(&mapping.sink);
        let stopped = plugins.why_stopped(&mapping.transform);
        let stopped = stopped.or_else(|| plugins.why_stopped(sink_name?));
        let sink_plugin = match sink_name {
            Some(name) => Some(&**plugins.named(name)?.revision()),
            None => None,
        };
        let rollout = mapping.wanted(plugin.revision(), plugin.description(), kind, sink_plugin);
        let (names_ids, columns) = (plugin.description().names_ids, plugin.description().columns.clone());
        let asks = |plugin: &Plugin| {
            plugin.ungranted().map(|ungranted| format!("plugin {} {ungranted}", plugin.revision()))
        };
        let sink = sink_name.and_then(|name| plugins.named(name));
        let all = |told: [Option<String>; 2]| {
            let told: Vec<String> = told.into_iter().flatten().collect();
            (!told.is_empty()).then(|| told.join("; "))
        };
        let ungranted = all([asks(plugin), sink.and_then(asks)]);
        let held = all([Some(mapping.transform.as_str()), sink_name]
            .map(|name| name.and_then(|name| plugins.held.get(name)).cloned()));
        Some(WantedMapping { mapping, rollout, names_ids, ungranted, held, columns, stopped })
    };
    Ok(mappings.mappings.into_iter().filter_map(complete).collect())
}

/// The same as `pipeline::compare` takes it.
#[must_use]
pub fn wanted_identities(wanted: &[WantedMapping]) -> Vec<Wanted> {
    wanted.iter().map(|wanted| wanted.rollout.clone()).collect()
}

/// Everything that is wrong with the source for these mappings. Touches nothing.
///
/// # Errors
/// The server could not be asked.
pub async fn findings(
    config: &Config,
    control: &Client,
    wanted: &[WantedMapping],
) -> Result<Vec<Finding>, postgres::Error> {
    let mut tables: Vec<EntityName> = wanted.iter().map(|wanted| wanted.mapping.entity.clone()).collect();
    tables.sort();
    tables.dedup();
    let full = wanted.iter().filter(|wanted| wanted.names_ids);
    let full: Vec<EntityName> = full.map(|wanted| wanted.mapping.entity.clone()).collect();
    let request = PreflightRequest {
        slot: &config.source.slot,
        publication: &config.source.publication,
        managed: config.source.manage_publication,
        tables: &tables,
        full_identity: &full,
    };
    postgres::preflight(control, &request).await
}

/// Looks at the source before anything is touched; where no term can begin, at least no application is in trouble for
/// it, whose tables an earlier one has published.
///
/// # Errors
/// It is not ready, or none of the tables is.
pub(super) async fn preflight(
    config: &Config,
    control: &Client,
    wanted: &[WantedMapping],
) -> Result<Tables, TermError> {
    let (tables, others) = look(config, control, wanted).await?;
    let mut fatal = Vec::new();
    for finding in others {
        match finding.severity {
            Severity::Warning => warn!("{finding}"),
            Severity::Error => fatal.push(finding.to_string()),
        }
    }
    if fatal.is_empty() && !tables.is_empty() && tables.values().all(|table| table.problem.is_some()) {
        fatal.extend(tables.values().filter_map(|table| table.problem.clone()));
    }
    if !fatal.is_empty() {
        withdraw(config, control, &tables).await;
        return Err(TermError::Preflight { findings: fatal });
    }
    Ok(tables)
}

/// Takes tables out of the publication that have no identity.
async fn withdraw(config: &Config, control: &Client, tables: &Tables) {
    let source = &config.source;
    let broken = tables.iter().filter(|(_, table)| table.problem.is_some());
    let broken: Vec<EntityName> = broken.map(|(entity, _)| entity.clone()).collect();
    if !source.manage_publication || broken.is_empty() {
        return;
    }
    match postgres::withdraw_unusable(control, &source.publication, &broken).await {
        Ok(withdrawn) => {
            for table in withdrawn {
                warn!(
                    entity = %table.entity,
                    publication = source.publication,
                    "was taken out of the publication, so that its application can update and delete again ({}: {})",
                    table.relation,
                    table.why,
                );
            }
        }
        Err(error) => warn!(
            publication = source.publication,
            "a table without an identity cannot be taken out of the publication: {error}"
        ),
    }
}

/// The mapped tables as they are now, and what else was found: warnings, and what concerns no table.
pub(super) async fn look(
    config: &Config,
    control: &Client,
    wanted: &[WantedMapping],
) -> Result<(Tables, Vec<Finding>), TermError> {
    let mut tables: Tables =
        wanted.iter().map(|wanted| (wanted.mapping.entity.clone(), TableState::default())).collect();
    let mut others = Vec::new();
    for finding in findings(config, control, wanted).await? {
        let table = finding.table.as_ref().filter(|_| finding.severity == Severity::Error);
        match table.map(|entity| tables.get_mut(entity)) {
            Some(Some(table)) => {
                table.problem.get_or_insert_with(|| finding.to_string());
            }
            Some(None) => {}
            None => others.push(finding),
        }
    }
    let names: Vec<EntityName> = tables.keys().cloned().collect();
    for table in Catalog::new(config.source.publication.as_str()).tables(control, &names).await? {
        if let Some(state) = tables.get_mut(&table.name) {
            state.oid = table.oid;
            state.key = table.key_columns();
            state.estimate = table.estimated_rows.and_then(|rows| u64::try_from(rows).ok());
        }
    }
    Ok((tables, others))
}

/// The tables that are to be published.
pub(super) fn entities(wanted: &[WantedMapping], tables: &Tables) -> Vec<EntityName> {
    let usable = |entity: &EntityName| tables.get(entity).is_some_and(|table| table.problem.is_none());
    let mut names: Vec<EntityName> = wanted.iter().map(|wanted| wanted.mapping.entity.clone()).collect();
    names.sort();
    names.dedup();
    names.retain(usable);
    names
}

/// The columns to publish of each table; none where tables are published whole.
pub(super) fn column_lists(config: &Config, wanted: &[WantedMapping]) -> Option<ColumnLists> {
    if !config.source.column_lists {
        return None;
    }
    let is_read_whole = |entity: &EntityName| {
        wanted.iter().any(|wanted| wanted.mapping.entity == *entity && wanted.columns.is_none())
    };
    let mut lists = ColumnLists::new();
    for wanted in wanted.iter().filter(|wanted| !is_read_whole(&wanted.mapping.entity)) {
        let list = lists.entry(wanted.mapping.entity.clone()).or_default();
        list.extend(wanted.columns.iter().flatten().cloned());
    }
    Some(lists)
}

/// Compares with what is stored, and stores what follows.
///
/// # Errors
/// The state schema.
pub(super) async fn decide(
    config: &Config,
    state: &Client,
    wanted: Vec<WantedMapping>,
    tables: &Tables,
    source: &Source,
) -> Result<(Vec<Planned>, Vec<StoredRun>, Vec<Left>), TermError> {
    let store = Store::new(config.source.slot.as_str());
    let stored: BTreeMap<String, StoredMapping> =
        store.mappings(state).await?.into_iter().map(|mapping| (mapping.name.clone(), mapping)).collect();
    let runs = store.runs(state).await?;
    let known = identities(stored.values())?;
    let steps = compare(&wanted_identities(&wanted), &known, config.plugins.dev);
    let mut wanted: BTreeMap<String, WantedMapping> =
        wanted.into_iter().map(|wanted| (wanted.mapping.name.clone(), wanted)).collect();
    let (mut planned, mut left) = (Vec::new(), Vec::new());
    for step in steps {
        let begun = known.iter().find(|known| known.name == step.mapping).zip(stored.get(&step.mapping));
        let begun = begun.and_then(|(known, stored)| Left::of(&known.identity, stored));
        let Some(wanted) = wanted.remove(&step.mapping) else {
            left.extend(begun);
            info!(mapping = step.mapping, "is mapped no more: its state is forgotten, its documents stay");
            store.forget_mapping(state, &step.mapping).await?;
            continue;
        };
        let before = stored.get(&step.mapping).filter(|stored| stored.generation > 0);
        let table = tables.get(&wanted.mapping.entity).cloned().unwrap_or_default();
        let mut plan = plan_one(wanted, before, step.decision, table, source)?;
        let moved = |begun: &Left| {
            (&begun.sink, &begun.destination) != (&plan.mapping.sink, &plan.mapping.destination)
        };
        if let Some(begun) = begun.filter(|begun| plan.verdict == Verdict::Runs && moved(begun)) {
            plan.stored.building = None;
            left.push(begun);
        }
        let of_table = |run: &&StoredRun| run.entity == plan.stored.entity && run.scope.is_none();
        plan.cancelled = runs.iter().filter(of_table).any(|run| run.status == RunStatus::Cancelled);
        if plan.cancelled && plan.stored.built < plan.stored.generation {
            info!(
                mapping = plan.stored.name,
                entity = %plan.stored.entity,
                "its backfill was cancelled: none begins until one is requested",
            );
        }
        plan.read_by = runs.iter().filter(of_table).find_map(cursor).map(|cursor| cursor.key);
        plan.run = runs.iter().find(|run| may_go_on(run, &plan)).cloned();
        if let Some(run) = runs.iter().find(|run| plan.run.is_none() && is_of_another_key(run, &plan)) {
            // Its next reading finds the other key, in its place in the order.
            plan.stored.built = plan.stored.built.min(plan.stored.generation - 1);
            plan.run = Some(run.clone());
        }
        if matches!(plan.verdict, Verdict::Unusable { .. }) {
            store.forget_unfinished_run(state, &plan.stored.entity).await?;
        }
        store.save_mapping(state, &plan.stored).await?;
        planned.push(plan);
    }
    join_rekeyed(&mut planned);
    let used: Vec<&EntityName> = planned.iter().map(|plan| &plan.stored.entity).collect();
    for run in runs.iter().filter(|run| !used.contains(&&run.entity)) {
        store.forget_run(state, &run.entity).await?;
    }
    if !planned.iter().any(|plan| plan.verdict == Verdict::Runs) {
        let reasons = planned.iter().map(|plan| match &plan.verdict {
            Verdict::Held { reason } | Verdict::Unusable { reason } | Verdict::Refused { reason } => {
                format!("{}: {reason}", plan.stored.name)
            }
            Verdict::Runs => String::new(),
        });
        return Err(TermError::NothingToRun { reasons: reasons.collect() });
    }
    let scoped = runs.into_iter().filter(|run| run.scope.is_some()).collect();
    Ok((planned, scoped, left))
}

/// What was begun beside what readers see, where nothing of the config leads to any more.
#[derive(Clone, Debug)]
pub(super) struct Left {
    pub(super) sink: String,
    pub(super) destination: String,
    pub(super) place: Place,
}

impl Left {
    fn of(identity: &Identity, stored: &StoredMapping) -> Option<Self> {
        let (sink, destination) = (identity.route.sink.clone(), identity.route.destination.clone());
        Some(Self { sink, destination, place: stored.building.clone()? })
    }
}

/// The stored identities; a mapping that never ran has none.
pub fn identities<'a>(stored: impl Iterator<Item = &'a StoredMapping>) -> Result<Vec<Stored>, TermError> {
    stored
        .filter(|stored| stored.generation > 0)
        .map(|stored| {
            let identity = serde_json::from_str(&stored.identity).map_err(|error| TermError::Stored {
                what: format!("mapping {}", stored.name),
                problem: error.to_string(),
            })?;
            Ok(Stored { name: stored.name.clone(), identity })
        })
        .collect()
}

fn may_go_on(run: &StoredRun, plan: &Planned) -> bool {
    run.entity == plan.stored.entity
        && run.scope.is_none()
        && !matches!(run.status, RunStatus::Complete | RunStatus::Cancelled)
        && run.mappings.contains(&plan.stored.name)
        && plan.needs_backfill()
}

/// Where it is; none where it has not begun, or cannot be read.
fn cursor(run: &StoredRun) -> Option<Cursor> {
    run.cursor.as_deref().and_then(|cursor| serde_json::from_str(cursor).ok())
}

/// Whether the table was read to its end by a key that it has no more, while nobody looked.
fn is_of_another_key(run: &StoredRun, plan: &Planned) -> bool {
    let of_plan = run.entity == plan.stored.entity && run.scope.is_none() && !plan.rebuilt;
    of_plan
        && run.status == RunStatus::Complete
        && plan.verdict == Verdict::Runs
        && cursor(run).is_some_and(|cursor| cursor.key != plan.table.key)
}

/// A run that is taken up because of another key is for all of its table's mappings that wait for one.
fn join_rekeyed(planned: &mut [Planned]) {
    let complete: Vec<StoredRun> = planned
        .iter()
        .filter_map(|plan| plan.run.clone())
        .filter(|run| run.status == RunStatus::Complete)
        .collect();
    for run in complete {
        let waits = |plan: &&Planned| plan.stored.entity == run.entity && plan.needs_backfill();
        let mut mappings: Vec<String> =
            planned.iter().filter(waits).map(|plan| plan.stored.name.clone()).collect();
        mappings.sort();
        let run = StoredRun { mappings, status: RunStatus::Running, ..run };
        for plan in
            planned.iter_mut().filter(|plan| plan.stored.entity == run.entity && plan.needs_backfill())
        {
            plan.run = Some(run.clone());
        }
    }
}

fn plan_one(
    wanted: WantedMapping,
    before: Option<&StoredMapping>,
    decision: Decision,
    table: TableState,
    source: &Source,
) -> Result<Planned, TermError> {
    let WantedMapping { mapping, rollout, ungranted, held, stopped, .. } = wanted;
    let identity = identity_text(&mapping.name, &rollout.identity)?;
    let fresh = StoredMapping {
        accepted: source.joined,
        since: Some(source.joined),
        building: before.and_then(|before| before.building.clone()),
        ..StoredMapping::new(mapping.name.as_str(), mapping.entity.clone(), table.oid, identity)
    };
    let mut purge = before.is_some_and(|before| before.purge);
    // Not published, perhaps for a while: what is changed of it then is in no stream.
    let unusable = table.problem.is_some();
    let mut refusal = table.problem.clone().or(stopped).or_else(|| ungranted.clone());
    let mut stored = match (before, decision) {
        (None, Decision::New { backfill }) => {
            let built = if backfill { 0 } else { 1 };
            info!(mapping = mapping.name, entity = %mapping.entity, backfill, "is new");
            StoredMapping { built, ..fresh }
        }
        (None, _) => fresh,
        // What is there was made by another revision, and is compared again once this one may run.
        (Some(before), _) if ungranted.is_some() => before.clone(),
        (Some(before), Decision::Rebuild { differences, backfill, purge: purged }) => {
            let reasons: Vec<String> = differences.iter().map(ToString::to_string).collect();
            let generation = before.generation + 1;
            info!(mapping = mapping.name, generation, "is rebuilt: {}", reasons.join(", "));
            purge |= purged;
            let built = before.built_by_change(backfill);
            let accepted = before.accepted;
            StoredMapping { generation, built, accepted, since: Some(accepted), ..fresh }
        }
        (Some(before), Decision::Adopt { .. }) => {
            let StoredMapping { generation, built, accepted, .. } = *before;
            StoredMapping { generation, built, accepted, since: Some(accepted), ..fresh }
        }
        (Some(before), Decision::Refused { conflicts }) => {
            let conflicts: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
            refusal = Some(conflicts.join("; "));
            before.clone()
        }
        (Some(before), _) => StoredMapping { status: MappingStatus::Running, ..before.clone() },
    };
    if let Some(before) = before.filter(|before| refusal.is_none() && before.table_oid != table.oid) {
        warn!(
            mapping = mapping.name,
            entity = %mapping.entity,
            "the table was dropped and created again, or another one was given its name: its documents are purged \
             where the sink can, and rebuilt",
        );
        (stored.generation, stored.table_oid) = (before.generation + 1, table.oid);
        stored.built = stored.built.min(before.generation);
        purge = true;
    }
    if source.repaired && before.is_some() {
        purge |= source.purge;
        stored.generation += 1;
        stored.accepted = source.confirmed;
    }
    let verdict = match refusal {
        None => Verdict::Runs,
        Some(reason) => {
            stored.status = MappingStatus::Refused;
            stored.last_error = Some(reason.clone());
            if let Some(before) = before {
                let is_begun = before.built >= before.generation || is_begun_beside(before);
                if unusable && is_begun {
                    stored.generation = stored.generation.max(before.generation + 1);
                }
                // What it has of its present run, too, misses what nobody streams from here on.
                purge |= unusable && source.purge;
                if unusable { Verdict::Unusable { reason } } else { Verdict::Held { reason } }
            } else {
                (stored.generation, stored.built) = (0, 0);
                Verdict::Refused { reason }
            }
        }
    };
    if verdict == Verdict::Runs {
        (stored.last_error, stored.attempts) = (None, 0);
    }
    stored.purge = purge;
    stored.held = held;
    let rebuilt = before.is_none_or(|before| before.generation != stored.generation);
    let token = recover::as_stored(&stored, source);
    Ok(Planned {
        mapping,
        stored,
        verdict,
        table,
        cancelled: false,
        rebuilt,
        run: None,
        read_by: None,
        token,
        shares: Vec::new(),
    })
}

/// Whether rows of the present generation may be where readers do not see them yet.
fn is_begun_beside(stored: &StoredMapping) -> bool {
    stored.building.as_ref().is_some_and(|place| place.generation() == stored.generation)
}

/// An identity as it is stored.
pub(super) fn identity_text(mapping: &str, identity: &Identity) -> Result<String, TermError> {
    serde_json::to_string(identity)
        .map_err(|error| TermError::Stored { what: format!("mapping {mapping}"), problem: error.to_string() })
}
