//! What a term takes up from the sinks: how far the documents are, by the tokens that were stored with them.
//!
//! A sink that cannot be asked now costs a repetition and nothing else: the state schema says where to go on
//! as well. A sink that answers, and has neither a token nor the destination of a mapping that had documents,
//! has lost it; the mapping is rebuilt. It must never take an older installation, whose sinks have destinations
//! and no tokens yet, for one of these.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tracing::{error, info, warn};

use crate::{
    backfill::RunSpec,
    model::{Documents, Failure, FailureClass, Origin},
    pipeline::LaneId,
    postgres::Client,
    state::{Store, StoredMapping, StoredRun},
};

use super::{
    delivery::shared_destinations,
    error::TermError,
    outlet::Outlet,
    placing,
    plan::{Planned, Verdict},
    source::Source,
    term::{Context, Lane},
    token::{History, Token, cursor_with, position_with, usable},
};

/// How long a sink may take to say what it has.
const ASK_LIMIT: Duration = Duration::from_secs(15);

/// What the state schema alone says of a mapping's documents.
pub(super) fn as_stored(stored: &StoredMapping, source: &Source) -> Token {
    let installation = &source.installation;
    Token {
        installation: installation.name.clone(),
        mapping: stored.name.clone(),
        history: History { system: installation.system_identifier.clone(), timeline: installation.timeline },
        leadership: installation.term,
        generation: stored.generation,
        position: stored.accepted.max(source.confirmed),
        run: None,
    }
}

/// The token that a sink has under `key`; none where it has none, or keeps none.
pub(super) async fn recover(outlet: &Outlet, key: &str) -> Result<Option<Token>, Failure> {
    if !outlet.capabilities().progress {
        return Ok(None);
    }
    let Some(text) = outlet.progress(key).await? else { return Ok(None) };
    Token::decode(&text).map(Some).map_err(|error| {
        let message =
            format!("the progress that a {} sink has of {key} cannot be read: {error}", outlet.kind());
        Failure::new(FailureClass::Fatal, "token-unreadable", message)
    })
}

/// Asks the sinks of all mappings that run, and lets the plan follow. Gives the latest leadership that any of them
/// has seen: this one must be later, or what it writes is refused.
///
/// # Errors
/// The state schema.
pub(super) async fn take_up(
    context: &Context,
    state: &Client,
    planned: &mut [Planned],
    source: &Source,
) -> Result<i64, TermError> {
    let mut latest = 0;
    let mut shares = shared_destinations(planned.iter().map(|plan| {
        let mapping = &plan.mapping;
        (mapping.name.as_str(), context.config.writes_to(&mapping.sink), mapping.destination.as_str())
    }));
    let store = Store::new(context.config.source.slot.as_str());
    // One that fails is asked once, so that it holds up the others no longer than that.
    let mut silent = BTreeSet::new();
    for plan in planned.iter_mut() {
        plan.shares = shares.remove(&plan.stored.name).unwrap_or_default();
        let outlet = &context.sinks[&plan.mapping.sink];
        if plan.stored.building.is_some() && plan.verdict == Verdict::Runs {
            if !outlet.capabilities().generations {
                if placing::forget(plan) {
                    begin_anew(plan, source);
                }
                store.save_mapping(state, &plan.stored).await?;
            } else if !plan.shares.is_empty() {
                join(plan, source);
                store.save_mapping(state, &plan.stored).await?;
            }
        }
        let asks = plan.verdict == Verdict::Runs && outlet.capabilities().progress;
        if !asks || silent.contains(&plan.mapping.sink) {
            continue;
        }
        let asked = tokio::time::timeout(ASK_LIMIT, ask(outlet, plan)).await;
        let told = asked.unwrap_or_else(|_| {
            let message = format!("the sink {} does not answer", plan.mapping.sink);
            Err(Failure::new(FailureClass::Retry, "sink-silent", message))
        });
        let (found, is_lost) = match told {
            Ok(told) => told,
            Err(failure) => {
                let sink = plan.mapping.sink.clone();
                warn!(sink, %failure, "cannot say what it has: its mappings go on from what the state schema says");
                silent.insert(sink);
                continue;
            }
        };
        if is_lost {
            lose(plan, source);
            store.save_mapping(state, &plan.stored).await?;
        }
        let ours = found.as_ref().filter(|token| token.history.system == plan.token.history.system);
        let seen = ours.map_or(0, |token| token.leadership);
        latest = latest.max(seen);
        if let Some(token) = found.as_ref().filter(|token| token.history.system != plan.token.history.system)
        {
            of_another_source(plan, token, source);
            store.save_mapping(state, &plan.stored).await?;
        }
        if let Some(token) = found.as_ref().filter(|token| !plan.rebuilt && is_from_later(token, source)) {
            go_back(plan, token, source);
            store.save_mapping(state, &plan.stored).await?;
        }
        let follows = follow(plan, found.as_ref(), source);
        plan.token.leadership = plan.token.leadership.max(seen);
        if !follows {
            anchor(outlet, plan).await;
        }
    }
    Ok(latest)
}

/// What the sink has, and whether it has lost what it had.
async fn ask(outlet: &Outlet, plan: &Planned) -> Result<(Option<Token>, bool), Failure> {
    let found = recover(outlet, &plan.token.key()).await?;
    let expects = found.is_none() && !plan.rebuilt && had_documents(plan);
    let is_lost = expects && !outlet.has_destination(&plan.mapping.destination).await?;
    Ok((found, is_lost))
}

/// Whether anything that is not streamed again should be in the sink.
fn had_documents(plan: &Planned) -> bool {
    plan.stored.built > 0 || plan.run.as_ref().is_some_and(|run| run.rows > 0)
}

/// Whether a sink has what the source does not have any more: it was restored from a backup.
fn is_from_later(token: &Token, source: &Source) -> bool {
    let Source { installation, system, .. } = source;
    let history = History { system: system.system_identifier.clone(), timeline: system.timeline };
    // Whoever delivers has saved the number of its term before: no sink has one of the term that begins now, unless
    // the source has forgotten it.
    let ours = token.history.system == history.system && token.leadership >= installation.term;
    ours || (token.history == history && token.position > system.flushed)
}

/// The destination was filled from another database: what that had and this one does not have stays, unless it is
/// emptied. Everything of this one is built in any case: its state schema knows nothing, or that it is another cluster.
fn of_another_source(plan: &mut Planned, token: &Token, source: &Source) {
    warn!(
        mapping = plan.stored.name,
        entity = %plan.stored.entity,
        sink = plan.mapping.sink,
        before = token.history.system,
        now = source.system.system_identifier,
        purge = source.purge,
        "THE SOURCE IS ANOTHER ONE: the sink has documents of another database (by its system identifier); where \
         purge_on_repair is not set, those of rows that this one does not have stay",
    );
    plan.stored.purge |= source.purge && plan.rebuilt;
}

/// The source is as it was at an earlier time: a new generation, built from the first row.
fn go_back(plan: &mut Planned, token: &Token, source: &Source) {
    error!(
        mapping = plan.stored.name,
        entity = %plan.stored.entity,
        sink = plan.mapping.sink,
        position = %token.position,
        leadership = token.leadership,
        "THE SOURCE WENT BACK: the sink has documents of changes that it does not have any more (was a backup \
         restored?); they are built again from the first row",
    );
    plan.stored.generation += 1;
    (plan.rebuilt, plan.run) = (true, None);
    plan.stored.purge |= source.purge;
    plan.token = as_stored(&plan.stored, source);
}

/// Others write to the destination now, to what its readers see: what was begun beside that is given up, and built
/// in place.
fn join(plan: &mut Planned, source: &Source) {
    warn!(
        mapping = plan.stored.name,
        entity = %plan.stored.entity,
        destination = plan.mapping.destination,
        shared_with = plan.shares.join(", "),
        "its destination is shared now, so that it cannot be built beside what readers see: it is built again in place",
    );
    begin_anew(plan, source);
}

/// What has been read of the generation is of no use: the next one is built from the first row.
fn begin_anew(plan: &mut Planned, source: &Source) {
    plan.stored.generation += 1;
    plan.stored.built = plan.stored.built.min(plan.stored.generation - 1);
    (plan.rebuilt, plan.run) = (true, None);
    plan.token = as_stored(&plan.stored, source);
}

/// The destination is gone: a new generation, built from the first row.
fn lose(plan: &mut Planned, source: &Source) {
    error!(
        mapping = plan.stored.name,
        entity = %plan.stored.entity,
        sink = plan.mapping.sink,
        destination = plan.mapping.destination,
        "THE DESTINATION IS GONE: it was filled, and is not there any more (was its file removed, or its path \
         changed?); it is built again from the first row",
    );
    plan.stored.generation += 1;
    (plan.rebuilt, plan.run) = (true, None);
    plan.token = as_stored(&plan.stored, source);
}

/// Lets the plan follow a token; false where there is none that says anything of this generation.
fn follow(plan: &mut Planned, found: Option<&Token>, source: &Source) -> bool {
    let (generation, history) = (plan.stored.generation, plan.token.history.clone());
    let found = found.filter(|_| !plan.rebuilt && !source.repaired);
    let Some(token) = usable(found, generation, &history) else { return false };
    plan.stored.accepted = position_with(plan.stored.accepted, Some(token), generation, &history);
    plan.token = as_stored(&plan.stored, source);
    // What a purge that is still due takes away is not in the sink.
    plan.token.run = token.run.clone().filter(|_| !plan.stored.purge);
    true
}

/// Leaves a first token, so that a sink without it is known to have lost it. Where that fails, the first documents
/// bring it.
async fn anchor(outlet: &Outlet, plan: &Planned) {
    let nothing = Documents::new(plan.stored.entity.to_string(), Origin::Stream, plan.stored.generation);
    let left = async {
        let progress = plan.token.progress()?;
        outlet.deliver(&nothing, Some(&progress)).await
    };
    if let Ok(Err(failure)) = tokio::time::timeout(ASK_LIMIT, left).await {
        warn!(mapping = plan.stored.name, %failure, "its progress could not be stored with its documents yet");
    }
}

/// Where the targets of a run have more of it than is stored, it goes on from there.
pub(super) fn go_on_further(spec: &mut RunSpec, stored: &StoredRun, lanes: &BTreeMap<LaneId, Lane>) {
    let targets = lanes.values().filter(|lane| spec.mappings.contains(lane.name()));
    let tokens = targets.map(|lane| lane.planned.token.run.as_ref());
    if let Some(token) = cursor_with(&stored.run, stored.chunks, tokens) {
        info!(
            entity = %spec.entity,
            run = %spec.run,
            saved = spec.rows,
            rows = token.rows,
            "the sinks have more of the backfill than was saved: it goes on from what they have",
        );
        (spec.cursor, spec.rows, spec.chunks) = (token.cursor, token.rows, token.chunks);
    }
}
