//! The machine, looked at.

use std::collections::VecDeque;

use crate::backfill::{RunSpec, RunStats, RunView, Stage, run::Run, share_done};

use super::Machine;

impl<P> Machine<P> {
    /// The runs, by table; behind each the scoped ones that wait for it.
    pub fn runs(&self) -> impl Iterator<Item = (u32, RunView<'_>)> {
        self.runs.iter().flat_map(|(table, run)| {
            let waiting = self.waiting.get(table).into_iter().flatten().map(waiting_view);
            std::iter::once(self.view(run)).chain(waiting).map(|view| (*table, view))
        })
    }

    /// The run of a table.
    #[must_use]
    pub fn run(&self, table: u32) -> Option<RunView<'_>> {
        self.runs.get(&table).map(|run| self.view(run))
    }

    /// How many runs a table has, with those that wait for the first.
    #[must_use]
    pub fn run_count(&self, table: u32) -> usize {
        usize::from(self.runs.contains_key(&table)) + self.waiting.get(&table).map_or(0, VecDeque::len)
    }

    fn view<'a>(&self, run: &'a Run<P>) -> RunView<'a> {
        RunView {
            active: run.active,
            blocked: !run.window.may_read(self.limbo.latest().map(AsRef::as_ref)),
            stage: self.stage(run),
            in_flight: run.in_flight(),
            window_bytes: run.window.size(),
            stats: run.stats,
            ..waiting_view(&run.spec)
        }
    }

    fn stage(&self, run: &Run<P>) -> Stage {
        let table = run.spec.table;
        if let Some(stage) = run.oldest_stage() {
            return stage;
        }
        if self.pace.paused(table) {
            return Stage::Throttled;
        }
        if run.spec.not_before > self.now {
            return Stage::Backoff;
        }
        if !run.window.may_read(self.limbo.latest().map(AsRef::as_ref)) {
            return Stage::Stream;
        }
        match run.active && run.spec.started {
            false => Stage::Queued,
            true if self.pace.free_at(table) > self.now => Stage::Throttled,
            true => Stage::Reading,
        }
    }
}

fn waiting_view(spec: &RunSpec) -> RunView<'_> {
    RunView {
        run: &spec.run,
        entity: &spec.entity,
        mappings: &spec.mappings,
        scope: spec.scope.as_deref(),
        rows: spec.rows,
        chunks: spec.chunks,
        share: share_done(spec.rows, spec.estimate),
        started: spec.started,
        active: false,
        blocked: false,
        stage: Stage::Queued,
        in_flight: 0,
        attempts: spec.attempts,
        not_before: spec.not_before,
        window_bytes: 0,
        stats: RunStats::default(),
    }
}
