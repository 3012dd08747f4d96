//! One instance of a component: a store of its own, with its limits.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use wasmtime::{Engine, Store, Trap, UpdateDeadline, WasmBacktrace, component::ResourceTable};
use wasmtime_wasi::clocks::WasiClocksCtx;
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};
use wasmtime_wasi_io::IoView;

use super::{
    abi::v1::{Called, Exports, Instance, PlaceCall},
    fault::FaultKind,
    host::{
        call::{Call, Granted},
        config::Settings,
        http::{HttpClient, Requests},
        log::{LogGate, clean},
        services::Writes,
    },
    limits::{LimitError, Limits},
};
use crate::model::{Failure, Lsn, Revision};

/// How long after the deadline the outer timer waits for the epoch to do its work: it is for host calls, which
/// epochs do not stop.
const GRACE: Duration = Duration::from_millis(200);
/// What a guest may hold of the host at a time: requests, answers, headers, streams.
const HANDLES: usize = 512;
/// Bytes of one set of headers.
const HEADERS: usize = 32 << 10;

/// What host functions see of the call that they run in.
pub(super) struct GuestState {
    pub(super) limits: Limits,
    /// None in the sandbox of `describe`: its log lines go nowhere.
    pub(super) revision: Option<Arc<Revision>>,
    pub(super) entity: Arc<str>,
    pub(super) lsn: Lsn,
    pub(super) settings: Settings,
    pub(super) log: Arc<LogGate>,
    /// Lines that the present call may still log.
    pub(super) lines_left: u32,
    pub(super) handles: ResourceTable,
    pub(super) clocks: WasiClocksCtx,
    pub(super) granted: Arc<Granted>,
    pub(super) call: Call,
    requests: Requests,
    http: WasiHttpCtx,
    deadline: Instant,
}

impl GuestState {
    pub(super) fn new(limits: Limits, settings: Settings, log: Arc<LogGate>) -> Self {
        let (entity, deadline) = (Arc::from(""), Instant::now());
        let mut handles = ResourceTable::new();
        handles.set_max_capacity(HANDLES);
        let mut http = WasiHttpCtx::new();
        http.set_field_size_limit(HEADERS);
        let requests = Requests::new(Arc::clone(&log));
        let clocks = WasiClocksCtx::default();
        Self {
            limits,
            revision: None,
            entity,
            lsn: Lsn::ZERO,
            settings,
            log,
            lines_left: 0,
            handles,
            clocks,
            granted: Granted::nothing(),
            call: Call::default(),
            requests,
            http,
            deadline,
        }
    }

    /// Whose instance it is, and what it may do.
    pub(super) fn with_revision(
        mut self,
        revision: Arc<Revision>,
        granted: Arc<Granted>,
        http: Option<Arc<HttpClient>>,
    ) -> Self {
        self.requests.with_client(Arc::clone(&revision), http);
        self.revision = Some(revision);
        self.granted = granted;
        self
    }

    /// What the next call is for.
    fn called_for(&mut self, entity: &Arc<str>, lsn: Lsn, call: Call) {
        self.entity.clone_from(entity);
        self.lsn = lsn;
        self.requests.called_for(entity, lsn, call.services.meter.clone());
        self.call = call;
    }
}

impl IoView for GuestState {
    fn table(&mut self) -> &mut ResourceTable {
        &mut self.handles
    }
}

impl WasiHttpView for GuestState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.requests, table: &mut self.handles, ctx: &mut self.http }
    }
}

/// An instance that may be called.
pub(super) struct Guest {
    store: Store<GuestState>,
    instance: Instance,
    born: Instant,
    calls: u32,
    /// Whether a sink was told its settings.
    opened: bool,
}

impl Guest {
    /// Makes a fresh instance.
    pub(super) async fn new(
        engine: &Engine,
        exports: &Exports,
        state: GuestState,
        deadline: Duration,
    ) -> Result<Self, FaultKind> {
        let (mut store, limit) = bounded(engine, state);
        store.epoch_deadline_callback(|context| {
            let over = Instant::now() >= context.data().deadline;
            Ok(if over { UpdateDeadline::Interrupt } else { UpdateDeadline::Yield(1) })
        });
        arm(&mut store, deadline);
        let made = tokio::time::timeout(deadline + GRACE, Instance::new(&mut store, exports)).await;
        let instance = made.map_err(|_| FaultKind::Deadline(deadline))?.map_err(|error| {
            match classify(&error, deadline, limit) {
                FaultKind::Trap(problem) => FaultKind::Instantiate(problem),
                other => other,
            }
        })?;
        Ok(Self { store, instance, born: Instant::now(), calls: 0, opened: false })
    }

    /// Whether it may go on serving: neither too often called, nor too old, nor grown so far that the next call would
    /// not have half of the memory limit to itself.
    pub(super) fn is_fresh(&self, calls: u32, age: Duration) -> bool {
        self.calls < calls && self.born.elapsed() < age && !self.store.data().limits.is_half_used()
    }

    /// Whether it left requests unfinished: each holds one of the places that all of the plugin's have.
    pub(super) fn has_unfinished(&self) -> bool {
        self.store.data().requests.are_unfinished()
    }

    /// What its memories hold, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.store.data().limits.used()
    }

    /// Gives back what memory was kept for it and not taken.
    pub(super) fn settle(&mut self) {
        self.store.data_mut().limits.settle();
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.store.data().settings
    }

    /// One call. After an error this instance is to be thrown away: it may hold anything.
    pub(super) async fn transform(
        &mut self,
        entity: &Arc<str>,
        lsn: Lsn,
        call: Call,
        request: &[u8],
        deadline: Duration,
    ) -> Result<Result<Vec<u8>, Failure>, FaultKind> {
        let limit = self.begin_call(entity, lsn, call, deadline);
        let call = self.instance.transform(&mut self.store, request);
        within(deadline, limit, call).await
    }

    /// Tells a sink its settings, where that was not done yet. After an error or a failure this instance is to be
    /// thrown away.
    pub(super) async fn open(
        &mut self,
        entity: &Arc<str>,
        settings: &str,
        deadline: Duration,
    ) -> Result<Result<(), Failure>, FaultKind> {
        if self.opened {
            return Ok(Ok(()));
        }
        let limit = self.begin_call(entity, Lsn::ZERO, Call::default(), deadline);
        let opened = within(deadline, limit, self.instance.open(&mut self.store, settings)).await?;
        self.opened = opened.is_ok();
        Ok(opened)
    }

    /// One delivery. After an error this instance is to be thrown away.
    pub(super) async fn deliver(
        &mut self,
        entity: &Arc<str>,
        lsn: Lsn,
        request: &[u8],
        deadline: Duration,
    ) -> Result<Result<Vec<u8>, Failure>, FaultKind> {
        let limit = self.begin_call(entity, lsn, Call::default(), deadline);
        within(deadline, limit, self.instance.deliver(&mut self.store, request)).await
    }

    /// Has a sink empty a destination. After an error this instance is to be thrown away.
    pub(super) async fn purge(
        &mut self,
        entity: &Arc<str>,
        destination: &str,
        deadline: Duration,
    ) -> Result<Result<(), Failure>, FaultKind> {
        let limit = self.begin_call(entity, Lsn::ZERO, Call::default(), deadline);
        within(deadline, limit, self.instance.purge(&mut self.store, destination)).await
    }

    /// Has a sink do something with a place; of `begin`, whether readers see anything. After an error this instance is
    /// to be thrown away.
    pub(super) async fn place(
        &mut self,
        entity: &Arc<str>,
        call: PlaceCall,
        (destination, place): (&str, &str),
        deadline: Duration,
    ) -> Result<Result<bool, Failure>, FaultKind> {
        let limit = self.begin_call(entity, Lsn::ZERO, Call::default(), deadline);
        within(deadline, limit, self.instance.place(&mut self.store, call, destination, place)).await
    }

    /// Gives its limit of memory.
    fn begin_call(&mut self, entity: &Arc<str>, lsn: Lsn, call: Call, deadline: Duration) -> usize {
        self.calls += 1;
        self.store.data_mut().called_for(entity, lsn, call);
        arm(&mut self.store, deadline);
        self.store.data().limits.limit()
    }
}

/// A store in which memory, and what calls pass to the host, is bounded; and that bound, in bytes.
pub(super) fn bounded(engine: &Engine, state: GuestState) -> (Store<GuestState>, usize) {
    let mut store = Store::new(engine, state);
    store.limiter(|state| &mut state.limits);
    let limit = store.data().limits.limit();
    store.set_hostcall_fuel(limit);
    (store, limit)
}

/// A call with its outer timer.
async fn within<T>(
    deadline: Duration,
    limit: usize,
    call: impl Future<Output = Called<T>>,
) -> Result<Result<T, Failure>, FaultKind> {
    match tokio::time::timeout(deadline + GRACE, call).await {
        Ok(reply) => reply.map_err(|error| classify(&error, deadline, limit)),
        Err(_) => Err(FaultKind::Deadline(deadline)),
    }
}

impl Guest {
    /// What the last call wrote, for who knows that it went well.
    pub(super) fn take_writes(&mut self) -> Writes {
        std::mem::take(&mut self.store.data_mut().call).writes
    }
}

fn arm(store: &mut Store<GuestState>, deadline: Duration) {
    let state = store.data_mut();
    state.deadline = Instant::now() + deadline;
    state.lines_left = state.log.limit();
    store.set_epoch_deadline(1);
}

/// What wasmtime says of a call that passes too much, and of a component that is made of too much; it has no types for
/// these.
const PASSED: &str = "fuel allocated for hostcalls has been exhausted";
const COUNT: &str = "resource limit exceeded: ";

/// What an error of wasmtime means, in a store with this deadline and this limit of memory.
pub(super) fn classify(error: &wasmtime::Error, deadline: Duration, limit: usize) -> FaultKind {
    if let Some(limit) = error.downcast_ref::<LimitError>() {
        return FaultKind::Memory(limit.clone());
    }
    let mut problem = clean(&error.root_cause().to_string());
    if problem.ends_with(PASSED) {
        return FaultKind::Memory(LimitError::Passed { limit });
    }
    if let Some(problem) = problem.strip_prefix(COUNT) {
        return FaultKind::Memory(LimitError::Count { problem: problem.to_owned() });
    }
    let frames = error.downcast_ref::<WasmBacktrace>().map(WasmBacktrace::frames).unwrap_or_default();
    let names: Vec<_> = frames.iter().filter_map(|frame| frame.func_name()).take(3).collect();
    if !names.is_empty() {
        problem = format!("{problem}, in {}", clean(&names.join(" < ")));
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::Interrupt) => FaultKind::Deadline(deadline),
        Some(Trap::StackOverflow) => FaultKind::Stack(problem),
        _ => FaultKind::Trap(problem),
    }
}
