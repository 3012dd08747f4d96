//! Terms, one after the other: what a broken connection, a restarted server or a lost lock ends is begun
//! again, with backoff.

use std::{sync::Arc, time::Duration};

use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::{
    config::Config,
    pipeline::{Backoff, NextAttempt, RetryPolicy},
    plugin::PluginHost,
    sink,
};

use super::{
    background::Background,
    error::{RunError, TermError},
    health::{self, Health, State},
    held::GivenUp,
    http::{Server, Site},
    metrics::Metrics,
    outlet::{self, Outlet, Outlets},
    reload::{self, PluginSet, Reloads},
    slot_watch,
    spool::Trust,
    term::{self, Context, Ended},
};

/// A term that lasted this long was a good one: the next failure is the first again.
const GOOD_TERM: Duration = Duration::from_secs(60);
/// From half a second doubling to half a minute.
const TERMS: RetryPolicy = RetryPolicy::doubling(Duration::from_millis(500), Duration::from_secs(30));
/// Where only somebody can help who changes something: each try reads everything again up to the same place.
const STUCK: RetryPolicy = RetryPolicy::doubling(Duration::from_secs(15), Duration::from_secs(120));

/// Runs an installation until `shutdown` is cancelled.
///
/// # Errors
/// What cannot be cured by trying again, before the first term began: a config that cannot work, a source
/// that is not ready. Later on everything is tried again, and `status` shows it.
pub async fn run(config: Config, shutdown: CancellationToken) -> Result<(), RunError> {
    let health = Arc::new(Health::new());
    let metrics = Arc::new(Metrics::new(&health));
    let server = match config.http.listen {
        Some(address) => {
            let site = Site::new(&config, Arc::clone(&health), Arc::clone(&metrics));
            Some(Server::start(address, site).await?)
        }
        None => None,
    };
    let ended = tokio::select! {
        ended = serve(config, &health, metrics, &shutdown) => ended,
        never = health::keep(&health, &shutdown) => match never {},
    };
    if let Some(server) = server {
        server.stop().await;
    }
    ended
}

async fn serve(
    config: Config,
    health: &Arc<Health>,
    metrics: Arc<Metrics>,
    shutdown: &CancellationToken,
) -> Result<(), RunError> {
    let settings = config.source.connect.clone();
    let host = PluginHost::new(config.plugins.host_settings())?;
    let plugins = PluginSet::load(&host, &config, None).await;
    if !plugins.problems.is_empty() {
        return Err(RunError::Plugins(plugins.problems));
    }
    let sinks = Arc::new(build_sinks(&config)?);
    let (changed, changes) = mpsc::channel(1);
    let health = Arc::clone(health);
    let config = Arc::new(config);
    let background = Background::start()?;
    let (given_up, memory, spool) = (GivenUp::default(), Arc::default(), Trust::default());
    let context = Context { config, settings, sinks, health, metrics, background, given_up, memory, spool };
    let plugins = Arc::new(plugins);
    let watch =
        reload::watch(host, Arc::clone(&context.config), Arc::clone(&plugins), changed, shutdown.clone());
    let mut reloads = Reloads::new(plugins, changes);
    let mut watches = JoinSet::new();
    watches.spawn(watch);
    let slot = slot_watch::keep(
        context.settings.clone(),
        context.config.source.slot.clone(),
        Arc::clone(&context.health),
        shutdown.clone(),
    );
    watches.spawn(slot);
    let ended = terms(&context, &mut reloads, shutdown).await;
    // Awaited, so that no session of theirs outlives this.
    watches.shutdown().await;
    for (name, sink) in &*context.sinks {
        if let Err(failure) = sink.close().await {
            warn!(sink = name, %failure, "did not close in good order");
        }
    }
    ended
}

async fn terms(
    context: &Context,
    reloads: &mut Reloads,
    shutdown: &CancellationToken,
) -> Result<(), RunError> {
    let mut backoff = Backoff::new(TERMS);
    let (mut streamed, mut stuck) = (false, false);
    loop {
        let began = std::time::Instant::now();
        context.health.note(State::term_begins);
        outlet::fit(&context.sinks, &context.config, &reloads.at_work);
        let failure = match term::run(context, reloads, shutdown, &mut streamed).await {
            Ok(Ended::Shutdown) => return Ok(()),
            Ok(Ended::Reconfigure(changed)) => {
                context.health.note(|state, now| state.term_ended(None, now));
                reloads.at_work = changed;
                continue;
            }
            Ok(Ended::Again) => {
                context.health.note(|state, now| state.term_ended(None, now));
                continue;
            }
            Err(_) if shutdown.is_cancelled() => return Ok(()),
            Err(failure) => failure,
        };
        if let Some(reason) = failure.gives_up(&context.config.source.publication) {
            context.given_up.because(reason);
        }
        if matches!(failure, TermError::Spool(_)) {
            context.spool.lose();
            context.metrics.spool_failed();
        }
        if !streamed && !failure.is_transient() {
            return Err(failure.into());
        }
        if failure.is_stuck() && !stuck {
            backoff = Backoff::new(STUCK);
        } else if !failure.is_stuck() && (stuck || began.elapsed() > GOOD_TERM) {
            backoff = Backoff::new(TERMS);
        }
        stuck = failure.is_stuck();
        tokio::select! {
            goes_on = pause(&mut backoff, &failure, &context.health, shutdown) => {
                if !goes_on {
                    return Ok(());
                }
            }
            // What was wrong with them may be mended.
            Some(changed) = reloads.next() => reloads.at_work = changed,
        }
    }
}

/// Waits before the next term; false when the process is to end instead.
async fn pause(
    backoff: &mut Backoff,
    failure: &TermError,
    health: &Health,
    shutdown: &CancellationToken,
) -> bool {
    let NextAttempt::After(delay) = backoff.failed(rand::random(), None) else { return true };
    health.note(|state, now| state.term_ended(Some((failure.to_string(), delay)), now));
    if failure.is_stuck() {
        health.note(State::is_stuck);
    }
    let attempts = backoff.failures();
    if failure.is_transient() {
        warn!(attempts, ?delay, "the term ended: {failure}");
    } else {
        error!(attempts, ?delay, "the term ended and somebody has to mend it: {failure}");
    }
    let waited = shutdown.run_until_cancelled(tokio::time::sleep(delay)).await;
    if waited.is_some() {
        info!("beginning a new term");
    }
    waited.is_some()
}

fn build_sinks(config: &Config) -> Result<Outlets, RunError> {
    let build = |(name, settings): (&String, &sink::SinkSettings)| match sink::build(name, settings) {
        Ok(sink) => Ok((name.clone(), Arc::new(Outlet::new(Arc::from(sink))))),
        Err(failure) => Err(RunError::Sink { name: name.clone(), failure }),
    };
    config.sinks.iter().map(build).collect()
}
