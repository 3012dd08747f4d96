//! How far backfills are: one answer for `wait` and for people, made from what is stored at one moment.

use std::{collections::BTreeSet, fmt, time::Duration};

use crate::{
    model::{EntityName, Scope},
    pipeline::Identity,
    state::{MappingStatus, RunStatus, StoredMapping, StoredRun, Target},
};

use super::{ControlError, Picture};

/// What is waited for. Nothing named is everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Goal {
    /// Mappings and tables, as they are written.
    pub targets: Vec<String>,
    /// Versions of transforms that are to be built everywhere they are used.
    pub plugins: Vec<PluginGoal>,
}

/// A version of a transform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginGoal {
    /// The transform's name.
    pub name: String,
    /// Its version.
    pub version: semver::Version,
}

/// Where something that is waited for is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// No mapping of it is known.
    Unmapped,
    /// Another version of its transform is stored than the one that is waited for.
    Outdated,
    /// Asked for, and no leader has begun it.
    Requested,
    /// It is to be built, and has no run yet.
    Waiting,
    /// Its run waits for its turn.
    Queued,
    /// Its run reads.
    Reading,
    /// Its run, or its table's, is paused.
    Paused,
    /// Its run or a mapping fails, and is tried again.
    Failing,
    /// It cannot run as it is.
    Refused,
    /// It was cancelled, and is not read until somebody asks.
    Cancelled,
    /// It is built.
    Complete,
}

impl Step {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unmapped => "unmapped",
            Self::Outdated => "outdated",
            Self::Requested => "requested",
            Self::Waiting => "waiting",
            Self::Queued => "queued",
            Self::Reading => "reading",
            Self::Paused => "paused",
            Self::Failing => "failing",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
            Self::Complete => "complete",
        }
    }

    fn is_over(self) -> bool {
        matches!(self, Self::Cancelled | Self::Complete)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One thing that is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The table, or the mapping or transform as it was named.
    pub name: String,
    /// Which part of it: `where …`, `3 keys`, or the version that is waited for.
    pub part: Option<String>,
    /// Where it is.
    pub step: Step,
    /// Rows that are durable.
    pub rows: u64,
    /// About how many there are.
    pub estimate: Option<u64>,
    /// Since its first page was asked for; of one that is complete, until then.
    pub elapsed: Option<Duration>,
    /// About how long it still takes.
    pub left: Option<Duration>,
    /// Readings and deliveries that failed.
    pub retries: u64,
    /// How long it was held back by a pause or a rate.
    pub throttled: Duration,
    /// Rows a second at the most.
    pub rate: Option<u32>,
    /// What stands in its way.
    pub error: Option<String>,
}

impl Item {
    /// An item of which nothing else is known.
    pub fn new(name: impl Into<String>, step: Step) -> Self {
        Self {
            name: name.into(),
            part: None,
            step,
            rows: 0,
            estimate: None,
            elapsed: None,
            left: None,
            retries: 0,
            throttled: Duration::ZERO,
            rate: None,
            error: None,
        }
    }

    /// How much of it is durable, in percent. More rows than were estimated are still not all rows.
    #[must_use]
    pub fn percent(&self) -> Option<u64> {
        if self.step == Step::Complete {
            return Some(100);
        }
        let estimate = self.estimate.filter(|estimate| *estimate > 0)?;
        Some((self.rows.saturating_mul(100) / estimate).min(99))
    }
}

/// Whether the waiting is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not yet.
    Waiting,
    /// All that is meant is built, or cancelled.
    Complete,
    /// Something fails, with its last error.
    Failed(String),
}

/// How far everything is that is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether the waiting is over.
    pub verdict: Verdict,
    /// One by one.
    pub items: Vec<Item>,
    /// What somebody should know: nobody streams, a table is paused.
    pub notes: Vec<String>,
}

impl Standing {
    pub(super) fn waiting(note: impl Into<String>) -> Self {
        Self { verdict: Verdict::Waiting, items: Vec::new(), notes: vec![note.into()] }
    }
}

/// How far a goal is, by what is stored; none: there is no state schema.
///
/// # Errors
/// A target is neither a mapping nor the name of a table.
pub fn progress(picture: Option<&Picture>, goal: &Goal) -> Result<Standing, ControlError> {
    let Some(picture) = picture else {
        return Ok(Standing::waiting("no host has run on this database yet"));
    };
    let view = View { picture, goal };
    let mut items = Vec::new();
    for plugin in &goal.plugins {
        items.extend(view.plugin(plugin));
    }
    for target in view.targets()? {
        view.target(&target, &mut items);
    }
    // Mappings share runs.
    let mut once: Vec<Item> = Vec::with_capacity(items.len());
    for item in items {
        if !once.contains(&item) {
            once.push(item);
        }
    }
    Ok(Standing { verdict: verdict(&once), notes: view.notes(&once), items: once })
}

/// A run by itself, whatever is waited for.
#[must_use]
pub fn describe(picture: &Picture, run: &StoredRun) -> Item {
    let view = View { picture, goal: &Goal::default() };
    view.run(run, view.step(run))
}

fn verdict(items: &[Item]) -> Verdict {
    let failed = items.iter().find(|item| matches!(item.step, Step::Failing | Step::Refused));
    if let Some(item) = failed {
        let error = item.error.as_deref().unwrap_or("no error was recorded");
        return Verdict::Failed(format!("{} is {}: {error}", item.name, item.step));
    }
    let over = !items.is_empty() && items.iter().all(|item| item.step.is_over());
    if over { Verdict::Complete } else { Verdict::Waiting }
}

struct View<'a> {
    picture: &'a Picture,
    goal: &'a Goal,
}

impl View<'_> {
    /// What is meant by name; everything where nothing is named.
    fn targets(&self) -> Result<Vec<Target>, ControlError> {
        let Picture { mappings, requests, .. } = self.picture;
        let mut targets = BTreeSet::new();
        for text in &self.goal.targets {
            targets.insert(self.picture.resolve(text)?);
        }
        for plugin in &self.goal.plugins {
            let its = mappings.iter().filter(|mapping| is_of(mapping, plugin));
            targets.extend(its.map(|mapping| Target::Mapping(mapping.name.clone())));
        }
        if self.goal.targets.is_empty() && self.goal.plugins.is_empty() {
            targets.extend(mappings.iter().map(|mapping| Target::Table(mapping.entity.clone())));
            let asked = requests.iter().map(|pending| &pending.request.target);
            // A mapping's request is counted with its table, where that is known.
            targets.extend(asked.filter(|&target| self.picture.entity_of(target).is_none()).cloned());
            let unmapped = requests.iter().filter_map(|pending| match &pending.request.target {
                target @ Target::Table(_) => Some(target.clone()),
                Target::Mapping(_) => None,
            });
            targets.extend(unmapped);
        }
        Ok(targets.into_iter().collect())
    }

    /// Whether another version of its transform is waited for, so that how this one fares means nothing.
    fn is_outdated(&self, mapping: &StoredMapping) -> bool {
        self.goal.plugins.iter().any(|plugin| {
            identity(mapping).is_some_and(|identity| {
                identity.transform.name == plugin.name && identity.transform.version != plugin.version
            })
        })
    }

    /// What keeps a version from being stored everywhere.
    fn plugin(&self, plugin: &PluginGoal) -> Vec<Item> {
        let wanted = format!("{} {}", plugin.name, plugin.version);
        let its: Vec<_> = self.picture.mappings.iter().filter(|mapping| is_of(mapping, plugin)).collect();
        if its.is_empty() {
            let part = Some(plugin.version.to_string());
            return vec![Item { part, ..Item::new(&plugin.name, Step::Unmapped) }];
        }
        let outdated = its.into_iter().filter_map(|mapping| {
            let stored = identity(mapping)?.transform.version;
            let part = Some(format!("{wanted} is waited for, {stored} is stored"));
            let differs = stored != plugin.version;
            differs.then(|| Item { part, ..Item::new(&mapping.name, Step::Outdated) })
        });
        outdated.collect()
    }

    fn target(&self, target: &Target, items: &mut Vec<Item>) {
        let mappings: Vec<&StoredMapping> = self.picture.mappings_of(target).collect();
        let current: Vec<&StoredMapping> =
            mappings.iter().filter(|mapping| !self.is_outdated(mapping)).copied().collect();
        let before = items.len();
        self.requests(target, &mappings, items);
        let requested = items.len() > before;
        if mappings.is_empty() {
            if !requested {
                items.push(Item::new(target.to_string(), Step::Unmapped));
            }
            return;
        }
        if current.is_empty() {
            return;
        }
        let entity = &current[0].entity;
        let whole = self.runs(target, entity, &current, items);
        for mapping in &current {
            if let Some(step) = broken(mapping) {
                let error = mapping.last_error.clone();
                let retries = u64::try_from(mapping.attempts).unwrap_or(0);
                items.push(Item { error, retries, ..Item::new(&mapping.name, step) });
            }
        }
        let active = whole.is_some_and(|run| is_active(run.status));
        if !active && !requested {
            items.push(self.settled(entity, &current, whole));
        }
    }

    /// A table without a run that is under way.
    fn settled(&self, entity: &EntityName, mappings: &[&StoredMapping], whole: Option<&StoredRun>) -> Item {
        // Its readers have to see it, too.
        let is_built =
            |mapping: &&StoredMapping| mapping.built >= mapping.generation && mapping.building.is_none();
        let built = !self.is_to_be_repaired() && mappings.iter().all(is_built);
        let complete = whole.filter(|run| run.status == RunStatus::Complete && built);
        if let Some(run) = complete {
            return self.run(run, Step::Complete);
        }
        let cancelled = whole.is_some_and(|run| run.status == RunStatus::Cancelled);
        let step = match (built, cancelled) {
            (true, _) => Step::Complete,
            (false, true) => Step::Cancelled,
            (false, false) => Step::Waiting,
        };
        Item::new(entity.to_string(), step)
    }

    /// Whether the next term builds everything again, since the slot was dropped on purpose.
    fn is_to_be_repaired(&self) -> bool {
        self.picture.suspension.as_ref().is_some_and(|suspension| !suspension.keep_slot)
    }

    fn requests(&self, target: &Target, mappings: &[&StoredMapping], items: &mut Vec<Item>) {
        for pending in &self.picture.requests {
            let request = &pending.request;
            let meant = match &request.target {
                Target::Mapping(name) => {
                    request.target == *target || mappings.iter().any(|mapping| mapping.name == *name)
                }
                Target::Table(entity) => {
                    request.target == *target || mappings.iter().any(|mapping| mapping.entity == *entity)
                }
            };
            if meant {
                let part = request.scope.as_ref().map(part);
                items.push(Item { part, ..Item::new(request.target.to_string(), Step::Requested) });
            }
        }
    }

    /// The runs that are under way; gives the whole table's, whatever it is.
    fn runs(
        &self,
        target: &Target,
        entity: &EntityName,
        mappings: &[&StoredMapping],
        items: &mut Vec<Item>,
    ) -> Option<&StoredRun> {
        let is_for = |run: &StoredRun| {
            matches!(target, Target::Table(_))
                || mappings.iter().any(|mapping| run.mappings.contains(&mapping.name))
        };
        let of_table = || self.picture.runs.iter().filter(|run| run.entity == *entity);
        for run in of_table().filter(|run| is_active(run.status) && is_for(run)) {
            items.push(self.run(run, self.step(run)));
        }
        // A mark has no mappings; it is the table's.
        of_table().find(|run| run.scope.is_none() && (is_for(run) || run.status == RunStatus::Cancelled))
    }

    fn step(&self, run: &StoredRun) -> Step {
        match run.status {
            RunStatus::Complete => Step::Complete,
            RunStatus::Cancelled => Step::Cancelled,
            RunStatus::Failing => Step::Failing,
            RunStatus::Queued | RunStatus::Running if self.picture.is_paused(&run.entity) => Step::Paused,
            RunStatus::Queued => Step::Queued,
            RunStatus::Running => Step::Reading,
        }
    }

    fn run(&self, run: &StoredRun, step: Step) -> Item {
        let age = self.picture.ages.get(&run.run);
        let begun = age.filter(|_| run.status != RunStatus::Queued);
        let elapsed = begun.map(|age| age.started.saturating_sub(age.finished.unwrap_or_default()));
        let rows = u64::try_from(run.rows).unwrap_or(0);
        let estimate = run.estimate.and_then(|rows| u64::try_from(rows).ok());
        let attempts = u64::try_from(run.attempts).unwrap_or(0);
        let wall = Duration::from_millis(run.report.wall_ms);
        let measured = if wall.is_zero() { elapsed } else { Some(wall) };
        Item {
            part: run.scope.as_ref().map(part),
            rows,
            estimate,
            elapsed,
            left: (step == Step::Reading).then(|| left(rows, estimate?, measured?)).flatten(),
            retries: run.report.retries.max(attempts),
            throttled: Duration::from_millis(run.report.throttled_ms),
            rate: self.picture.rate(&run.entity).filter(|_| is_active(run.status)),
            error: run.last_error.clone(),
            ..Item::new(run.entity.to_string(), step)
        }
    }

    fn notes(&self, items: &[Item]) -> Vec<String> {
        let mut notes = Vec::new();
        let suspension = self.picture.suspension.as_ref().filter(|suspension| suspension.holds());
        if let Some(suspension) = suspension {
            let since = &suspension.since;
            notes.push(format!("suspended since {since}; `anabranch resume` lets it go on"));
        } else if !self.picture.streaming && items.iter().any(|item| !item.step.is_over()) {
            notes.push("no host streams at the moment".to_owned());
        }
        let named = |step: Step| {
            let names: BTreeSet<&str> =
                items.iter().filter(|item| item.step == step).map(|item| item.name.as_str()).collect();
            names.into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        notes.extend(
            named(Step::Paused)
                .iter()
                .map(|name| format!("{name} is paused; `anabranch backfill resume` lets it go on")),
        );
        notes.extend(named(Step::Cancelled).iter().map(|name| {
            format!("{name} was cancelled and is not built; `anabranch backfill request {name}` builds it")
        }));
        notes
    }
}

fn identity(mapping: &StoredMapping) -> Option<Identity> {
    serde_json::from_str(&mapping.identity).ok()
}

fn is_of(mapping: &StoredMapping, plugin: &PluginGoal) -> bool {
    identity(mapping).is_some_and(|identity| identity.transform.name == plugin.name)
}

fn broken(mapping: &StoredMapping) -> Option<Step> {
    match mapping.status {
        MappingStatus::Running => None,
        MappingStatus::Failing => Some(Step::Failing),
        MappingStatus::Refused => Some(Step::Refused),
    }
}

fn is_active(status: RunStatus) -> bool {
    matches!(status, RunStatus::Queued | RunStatus::Running | RunStatus::Failing)
}

/// A scope for people; no key and no value is shown.
fn part(scope: &Scope) -> String {
    match scope {
        Scope::Where(text) => format!("where {text}"),
        Scope::Keys(keys) if keys.len() == 1 => "1 key".to_owned(),
        Scope::Keys(keys) => format!("{} keys", keys.len()),
    }
}

/// What is left at the speed so far; nothing is said before there is one.
fn left(rows: u64, estimate: u64, elapsed: Duration) -> Option<Duration> {
    let missing = estimate.checked_sub(rows).filter(|_| rows > 0)?;
    let factor = u128::from(missing);
    let millis = elapsed.as_millis().saturating_mul(factor) / u128::from(rows);
    u64::try_from(millis).ok().map(Duration::from_millis)
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
