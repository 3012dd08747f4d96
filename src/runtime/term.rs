//! One leadership: from the lock to a running pump, and back.
//!
//! A term looks before it touches anything (preflight), takes the lock, brings the state schema, the
//! publication and the slot to what the config means, decides what is new, rebuilt or refused, and pumps. Its
//! tasks end with it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::{
    backfill::{Machine, PageSettings, RunView, Settings as BackfillMachineSettings, everything_before},
    config::Config,
    model::{ChangeBatch, Failure, Lsn, Place},
    pipeline::{LaneId, LaneOrder, Ledger, OpenRows, Places, Standing, Subscriptions, WorkId},
    postgres::{
        Client, ConnectSettings, ErrorKind, Holder, Leadership, Lease, Purpose, StreamOptions,
        SystemIdentity, fence,
    },
    state::Store,
};

use super::{
    answer::{ANSWER_LIMIT, answered},
    background::Background,
    branch::{Branch, again},
    error::TermError,
    health::{Health, State},
    held::GivenUp,
    history::Memory,
    lane::{LaneHandle, LaneSettings, QuarantineSettings},
    lookout::Lookout,
    metrics::Metrics,
    outlet::Outlets,
    placing,
    plan::{self, Planned, Verdict},
    pump::{Probe, Pump, PumpSettings, Saving, Stopped},
    readers::{Readers, Reading},
    recover,
    relations::Relations,
    reload::{PluginSet, Reloads},
    requests::Requests,
    reread::Rereader,
    scribe::{Note, Scribe},
    serve::Server,
    source::{self, Source},
    spool::{self, Trust},
    survey::Observer,
    suspended,
};

/// How long the last notes may take to be written.
const FINISH_LIMIT: Duration = Duration::from_secs(5);
/// How long preparations may take to be given up in good order.
const GIVE_UP_LIMIT: Duration = Duration::from_secs(10);
/// How long the catalogue may take to be looked at; there may be many tables.
const PREFLIGHT_LIMIT: Duration = Duration::from_secs(60);
/// How often a blocked backfill asks for visibility at the least.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// What all terms of a process share.
pub(super) struct Context {
    pub(super) config: Arc<Config>,
    pub(super) settings: ConnectSettings,
    pub(super) sinks: Arc<Outlets>,
    pub(super) health: Arc<Health>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) background: Background,
    /// The slot was shown to be of no use: it is given up, and everything is built again.
    pub(super) given_up: GivenUp,
    pub(super) memory: Arc<Memory>,
    /// Whether large transactions are kept here until they commit.
    pub(super) spool: Trust,
}

/// How a term ended in good order.
#[derive(Debug)]
pub(super) enum Ended {
    Shutdown,
    /// The plugins changed in a way that a running term cannot take up.
    Reconfigure(Arc<PluginSet>),
    /// A new term is to look at everything again: the installation was suspended or resumed, or a table changed.
    Again,
}

/// Leads until told to stop.
///
/// # Errors
/// Whatever ended the term; see [`TermError::is_transient`].
pub(super) async fn run(
    context: &Context,
    reloads: &mut Reloads,
    shutdown: &CancellationToken,
    streamed: &mut bool,
) -> Result<Ended, TermError> {
    let config = &context.config;
    let control = context.settings.connect(Purpose::Control).await?;
    let suspended =
        answered("whether it is suspended", ANSWER_LIMIT, suspended::suspension(context, &control));
    if let Some(suspension) = suspended.await? {
        context.health.note(State::is_suspended);
        let again = tokio::select! {
            again = suspended::idle(context, control, suspension, shutdown) => again?,
            Some(changed) = reloads.next() => return Ok(Ended::Reconfigure(changed)),
        };
        return Ok(if again { Ended::Again } else { Ended::Shutdown });
    }
    let wanted = plan::wanted(config, &reloads.at_work)?;
    let preflight = plan::preflight(config, &control, &wanted);
    answered("whether the source is ready", PREFLIGHT_LIMIT, preflight).await?;
    let stand_by = |_: Option<&Holder>| context.health.note(State::stands_by);
    let lock = Leadership::acquire_telling(&context.settings, &config.source.slot, stand_by);
    let leadership = tokio::select! {
        biased;
        () = shutdown.cancelled() => return Ok(Ended::Shutdown),
        taken = lock => taken?,
        // A standby leads with the plugins of the moment at which it takes over.
        Some(changed) = reloads.next() => return Ok(Ended::Reconfigure(changed)),
    };
    context.health.note(State::has_lock);
    context.metrics.term_began();
    info!(installation = config.source.slot, "leading");
    let leading = async {
        // As they are now, however long another host has led meanwhile.
        let (tables, _) = plan::look(config, &control, &wanted).await?;
        let grounds = Grounds { wanted, tables, control, leadership: &leadership };
        lead(context, grounds, reloads, shutdown, streamed).await
    };
    let led = tokio::select! {
        lost = leadership.lost() => Err(TermError::LeadershipLost { reason: lost.to_string() }),
        led = leading => led,
    };
    leadership.release().await;
    led
}

/// What a term begins on.
struct Grounds<'a> {
    wanted: Vec<plan::WantedMapping>,
    tables: plan::Tables,
    control: Client,
    leadership: &'a Leadership,
}

async fn lead(
    context: &Context,
    Grounds { wanted, tables, control, leadership }: Grounds<'_>,
    reloads: &mut Reloads,
    shutdown: &CancellationToken,
    streamed: &mut bool,
) -> Result<Ended, TermError> {
    let state = context.settings.connect(Purpose::State).await?;
    // While this host waited for the lead.
    if suspended::suspension(context, &state).await?.is_some() {
        return Ok(Ended::Again);
    }
    let given_up = async {
        shutdown.cancelled().await;
        tokio::time::sleep(GIVE_UP_LIMIT).await;
    };
    // Told to stop, it is left to end by itself: dropped in the middle, it would leave a slot half made, and a
    // server process that waits for it.
    let preparing = async {
        let fenced = fence(&state, leadership).await?;
        let prepared = source::prepare(context, &control, &state, &wanted, &tables, shutdown).await?;
        Ok::<_, TermError>((leadership.lease(fenced), prepared))
    };
    let (lease, prepared) = tokio::select! {
        prepared = preparing => prepared?,
        () = given_up => return Ok(Ended::Shutdown),
    };
    let Some(mut source) = prepared else { return Ok(Ended::Shutdown) };
    let (mut planned, scoped, left) =
        plan::decide(&context.config, &state, wanted.clone(), &tables, &source).await?;
    placing::remove_left(context, &lease, left).await;
    let stored: Vec<Lsn> = planned.iter().map(|plan| plan.stored.accepted).collect();
    let seen = recover::take_up(context, &state, &mut planned, &source).await?;
    // The state schema may have been made anew; what is in the sinks was not.
    source.installation.term = source.installation.term.max(seen + 1);
    planned.iter_mut().for_each(|plan| plan.token.leadership = source.installation.term);
    let store = Store::new(context.config.source.slot.as_str());
    store.save_installation(&state, &source.installation).await?;
    store.forget_suspension(&state).await?;
    let controls = store.controls(&state).await?;
    for (plan, stored) in planned.iter().zip(stored) {
        if plan.stored.accepted > stored {
            // What the sink has and the schema does not know of may have closed entries.
            store.look_again(&state, &plan.stored.name).await?;
        }
    }
    let quarantined = store.quarantined_rows(&state, None).await?;
    let term = source.installation.term;
    context.health.note(|state, _| state.term = Some(term));
    context.memory.begins(&source.installation, source.system.flushed);
    let config = Arc::clone(&context.config);
    let lookout = Lookout::start(&context.settings, config, wanted, tables, source.before.clone());
    let parts = Parts { control, state, lookout, lease, quarantined };
    let mut pump = assemble(context, &reloads.at_work, planned, &source, parts);
    // Before the first reading.
    pump.control(&controls);
    pump.begin_backfills(&scoped);
    let ended = stream(context, &mut pump, &source, reloads, shutdown, streamed).await;
    pump.join_lanes().await;
    pump.scribe.finish(FINISH_LIMIT).await;
    ended
}

/// Pumps connection after connection, as long as only lanes ask for another one.
async fn stream(
    context: &Context,
    pump: &mut Pump,
    source: &Source,
    reloads: &mut Reloads,
    shutdown: &CancellationToken,
    streamed: &mut bool,
) -> Result<Ended, TermError> {
    let settings = &context.config.source;
    let mut start = source.confirmed;
    loop {
        let mut options = StreamOptions::new(settings.slot.as_str(), settings.publication.as_str(), start);
        options.status_interval = settings.status_interval;
        options.silence_limit = settings.silence_limit;
        let mut client = context.settings.connect_replication().await?;
        same_server(&source.system, client.identify_system().await?)?;
        // Beyond what was saved, it would leave out in silence what lies between.
        if client.slot_position(&settings.slot).await?.is_none_or(|position| position > pump.secured) {
            return Err(TermError::AnotherSlot { slot: settings.slot.clone() });
        }
        let pipeline = &context.config.pipeline;
        let system = source.installation.system_identifier.as_str();
        let spooling = spool::for_connection(pipeline, &context.spool, &settings.slot, system).await;
        if spooling.is_some() {
            options = options.streaming(client.server_version());
        }
        let stream = client.start(&options).await?;
        info!(slot = settings.slot, from = %start, "streaming");
        *streamed = true;
        let ran = pump.run(stream, spooling, reloads, shutdown).await;
        match ran.map_err(|error| stuck(error, pump))? {
            Stopped::Shutdown => return Ok(Ended::Shutdown),
            Stopped::Again => return Ok(Ended::Again),
            Stopped::Reconfigure(plugins) => return Ok(Ended::Reconfigure(plugins)),
            Stopped::Restream(lanes) => start = pump.ledger.rewind(&lanes),
        }
    }
}

/// Several servers may answer at one address, or from a list of hosts.
fn same_server(before: &SystemIdentity, now: SystemIdentity) -> Result<(), TermError> {
    let words =
        |system: &SystemIdentity| format!("{} on timeline {}", system.system_identifier, system.timeline);
    let same = (&before.system_identifier, before.timeline) == (&now.system_identifier, now.timeline);
    if same { Ok(()) } else { Err(TermError::Moved { before: words(before), now: words(&now) }) }
}

fn stuck(error: TermError, pump: &Pump) -> TermError {
    match error {
        TermError::Postgres(source) if source.kind() == ErrorKind::TooLarge => TermError::Stuck {
            at: source.at(),
            entity: pump.relations.last.clone(),
            source: Box::new(source),
        },
        error => error,
    }
}

/// One mapping in a term.
pub(super) struct Lane {
    pub(super) id: LaneId,
    pub(super) planned: Planned,
    /// None while it cannot run.
    pub(super) handle: Option<LaneHandle>,
    /// The run that it is part of.
    pub(super) run: Option<Arc<str>>,
    /// The purge that is due and was handed out.
    pub(super) purging: Option<WorkId>,
    /// Where it is built beside what readers see.
    pub(super) places: Places,
    /// The work that began a place, which is recorded once everything that was noted before this barrier is saved.
    pub(super) begun: Option<(u64, WorkId)>,
    pub(super) documents: u64,
    /// How often in a row it has failed, and the last failure; none while it works.
    pub(super) failure: Option<(u32, Failure)>,
}

impl Lane {
    pub(super) fn name(&self) -> &str {
        &self.planned.stored.name
    }

    /// Which generation it has, and which is built.
    pub(super) fn standing(&self) -> Standing {
        Standing { generation: self.planned.stored.generation, built: self.planned.stored.built }
    }

    /// Where what is handed out now goes, beside what readers see.
    pub(super) fn place(&self) -> Option<&Place> {
        self.places.place(self.standing())
    }

    /// Whether it runs, and gets what is streamed.
    pub(super) fn follows(&self, ledger: &Ledger) -> bool {
        self.handle.is_some() && ledger.follows(self.id)
    }

    /// Whether it runs, and the last thing heard of it was no failure.
    pub(super) fn works(&self) -> bool {
        self.handle.as_ref().is_some_and(|handle| !handle.failing())
    }

    /// How much work keeps all of it busy: as much as is transformed at once, and one piece that is delivered.
    pub(super) fn enough(&self) -> usize {
        self.handle.as_ref().map_or(0, LaneHandle::at_once) + 1
    }

    /// Leaves the runs of its table, which go on for the other mappings: it does not follow the stream any more,
    /// and gets runs of its own when it does again. Neither here nor in the state may the end or the cursor of
    /// such a run say anything about it.
    pub(super) fn leave_run(&mut self, machine: &mut Machine<Arc<ChangeBatch>>, scribe: &Scribe) {
        let (table, mapping) = (self.planned.table.oid, self.planned.stored.name.clone());
        let part = |(of, view): &(u32, RunView<'_>)| *of == table && view.mappings.contains(&mapping);
        let runs: Vec<_> = machine
            .runs()
            .filter(part)
            .map(|(_, view)| (Arc::clone(view.run), view.scope.cloned()))
            .collect();
        let forgotten = machine.remove_mapping(table, &mapping);
        for (run, scope) in runs {
            if let Some(scope) = scope {
                scribe.note(Note::AskAgain(Box::new(again(&mapping, &scope))));
                if forgotten.contains(&run) {
                    scribe.note(Note::ForgetScoped { run });
                    continue;
                }
            }
            scribe.note(Note::Leave { run, mapping: mapping.clone() });
        }
        self.run = None;
    }
}

/// What goes into a pump.
struct Parts {
    control: Client,
    state: Client,
    lookout: Lookout,
    lease: Lease,
    /// The rows that are in quarantine, with their mappings.
    quarantined: Vec<(String, String, LaneOrder)>,
}

fn assemble(
    context: &Context,
    plugins: &PluginSet,
    planned: Vec<Planned>,
    source: &Source,
    Parts { control, state, lookout, lease, quarantined }: Parts,
) -> Pump {
    let config = &context.config;
    let (events, lane_events) = mpsc::unbounded_channel();
    let publication = config.source.publication.as_str();
    let timeout = config.backfill.statement_timeout;
    let metrics = Arc::clone(&context.metrics);
    let rereader = Rereader::new(context.settings.clone(), publication.to_owned(), timeout, metrics);
    let rereader = Arc::new(rereader);
    let term = source.installation.term;
    let server = Server::new(&context.settings, config, term, context.metrics.numbers());
    let mut ledger = Ledger::new(source.confirmed);
    let mut subscriptions = Subscriptions::default();
    let mut lanes = BTreeMap::new();
    let known = planned.iter().map(|planned| {
        let Planned { stored, mapping, .. } = planned;
        (stored.name.as_str(), mapping.sink.as_str(), stored.entity.to_string())
    });
    context.metrics.know(known);
    for (number, planned) in (1u32..).zip(planned) {
        let id = LaneId(number);
        let accepted = planned.stored.accepted.max(source.confirmed);
        let handle = match &planned.verdict {
            Verdict::Runs => {
                ledger.attach(id, accepted);
                subscriptions.add(planned.stored.entity.clone(), id);
                let of_it = quarantined.iter().filter(|(mapping, ..)| *mapping == planned.stored.name);
                let open = of_it.map(|(_, row, order)| (row.clone().into_bytes(), *order)).collect();
                let settings = lane_settings(context, id, &planned, &rereader, &lease, term, open);
                let active = planned.active(config, &plugins.plugins[&planned.mapping.transform], &server);
                Some(LaneHandle::start(settings, active, events.clone(), CancellationToken::new()))
            }
            Verdict::Held { reason } => {
                error!(
                    mapping = planned.stored.name,
                    position = %accepted,
                    "does not run, and the slot keeps what it misses: {reason}",
                );
                ledger.attach_frozen(id, accepted);
                None
            }
            Verdict::Unusable { reason } => {
                error!(
                    mapping = planned.stored.name,
                    "does not run, and is built again once it can: {reason}"
                );
                None
            }
            Verdict::Refused { reason } => {
                error!(mapping = planned.stored.name, "does not run: {reason}");
                None
            }
        };
        let places = placing::places(context, &planned);
        let lane = Lane {
            id,
            planned,
            handle,
            run: None,
            purging: None,
            places,
            begun: None,
            documents: 0,
            failure: None,
        };
        lanes.insert(id, lane);
    }
    let reading = Reading {
        settings: context.settings.clone(),
        installation: config.source.slot.clone(),
        publication: publication.to_owned(),
        timeout,
    };
    let (readers, reads) = Readers::start(reading, context.background.handle());
    let mut relations = Relations::new(control, publication);
    for lane in lanes.values() {
        relations.numbered_by(lane.planned.table.oid, &lane.planned.table.key);
        if let Some(key) = &lane.planned.read_by {
            relations.was_named(lane.planned.table.oid, key);
        }
    }
    let baseline = source.installation.baseline.map(|xid| Arc::new(everything_before(xid)));
    let mappings = lanes.values().map(|lane| (lane.name().to_owned(), lane.planned.stored.entity.clone()));
    let requests = Requests::start(context.settings.clone(), config.source.slot.clone(), mappings.collect());
    Pump {
        settings: pump_settings(config),
        context: plan::ReloadContext {
            config: Arc::clone(config),
            sinks: Arc::clone(&context.sinks),
            dev: config.plugins.dev,
            server,
        },
        ledger,
        machine: Machine::new(machine_settings(config), source.installation.term.cast_unsigned(), baseline),
        branch: Branch::new(readers, reads, Arc::clone(&context.metrics)),
        subscriptions,
        lanes,
        relations,
        scribe: Scribe::start(&config.source.slot, state),
        lane_events,
        yielding: None,
        probe: Probe { pending: false, last: std::time::Instant::now() },
        secured: source.confirmed,
        barriers: 0,
        saving: Saving { last: std::time::Instant::now(), worked: false, noted: source.confirmed },
        wrote: std::time::Instant::now(),
        requests,
        parked: Vec::new(),
        lookout,
        rekeying: BTreeMap::new(),
        observer: Observer::new(
            Arc::clone(&context.health),
            Arc::clone(&context.metrics),
            Arc::clone(&context.memory),
        ),
    }
}

fn lane_settings(
    context: &Context,
    id: LaneId,
    planned: &Planned,
    rereader: &Arc<Rereader>,
    lease: &Lease,
    term: i64,
    open: OpenRows,
) -> LaneSettings {
    let config = &context.config;
    LaneSettings {
        id,
        mapping: planned.stored.name.clone(),
        entity: planned.stored.entity.clone(),
        sink: Arc::clone(&context.sinks[&planned.mapping.sink]),
        batch_rows: config.pipeline.batch_rows,
        batch_bytes: config.pipeline.batch_bytes,
        rereader: Arc::clone(rereader),
        reread: planned.mapping.policy.reread,
        lease: lease.clone(),
        background: context.background.handle().clone(),
        token: planned.token.clone(),
        shares: planned.shares.clone(),
        metrics: context.metrics.mapping(&planned.stored.name, &planned.mapping.sink),
        quarantine: QuarantineSettings {
            on_failure: planned.mapping.policy.on_failure,
            bounds: planned.mapping.policy.quarantine,
            sink: planned.mapping.sink.clone(),
            installation: config.source.slot.clone(),
            term,
            connect: context.settings.clone(),
            open,
        },
    }
}

fn pump_settings(config: &Config) -> PumpSettings {
    PumpSettings {
        installation: config.source.slot.clone(),
        batch_rows: config.pipeline.batch_rows,
        batch_bytes: config.pipeline.batch_bytes,
        queue_bytes: config.pipeline.queue_bytes,
        silence_limit: config.source.silence_limit,
        heartbeat_interval: config.source.heartbeat_interval,
        drain_limit: config.pipeline.drain_limit,
    }
}

fn machine_settings(config: &Config) -> BackfillMachineSettings {
    let backfill = &config.backfill;
    let page = PageSettings {
        most: backfill.chunk_size,
        bytes: backfill.max_chunk_bytes,
        ..PageSettings::default()
    };
    BackfillMachineSettings {
        page,
        prefetch_bytes: backfill.prefetch_bytes,
        max_concurrent: backfill.max_concurrent,
        probe_interval: PROBE_INTERVAL,
        ..BackfillMachineSettings::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c060_a_connection_to_another_server_ends_the_term() {
        let system = |identifier: &str, timeline, flushed| SystemIdentity {
            system_identifier: identifier.to_owned(),
            timeline,
            flushed: Lsn(flushed),
        };
        let before = system("730", 1, 10);
        assert!(same_server(&before, system("730", 1, 20)).is_ok());
        for now in [system("731", 1, 20), system("730", 2, 20)] {
            let error = same_server(&before, now).unwrap_err();
            assert!(
                error.is_transient() && error.to_string().contains("730 on timeline 1 before"),
                "{error}"
            );
        }
    }
}
