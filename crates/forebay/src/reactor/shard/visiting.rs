//! The turns of a shard without a thread; see [`visited`](crate::reactor::visited).

use std::sync::Arc;
use std::task::Waker;

use crate::driver::Wait;
use crate::io::op::{OpFailure, OpKey, OpRequest, OpResult};
use crate::reactor::account::file_table::NO_FILE;
use crate::reactor::open_file::FileCore;
use crate::reactor::read_many;
use crate::reactor::shard::Shard;
use crate::reactor::shard::optable::Continuation;
use crate::reactor::shard::remote::RemotePtr;
use crate::reactor::{visited, walk};

/// With this many operations in flight or fewer, each is submitted immediately: a wait for more gains nothing.
const IN_FLIGHT_FEW: u32 = 4;
/// This many staged operations are submitted immediately, and any number once the first has waited this long.
const STAGED_MAX: u32 = 16;
const STAGED_NS_MAX: u64 = 10_000;
/// A visit continues with requests that complete while they are submitted for at most this many rounds, and starts no round after
/// this time.
const ROUNDS_MAX: u32 = 16;
const VISIT_NS_MAX: u64 = 50_000;
/// Steps of walks in one visit.
const STEPS_PER_VISIT: u32 = 64;
/// A shard that waits only for memory looks again after this long.
const MEMORY_LOOK_NS: u64 = 1_000_000;

/// The state in which a visitor leaves a shard, and what is to be done for it outside.
#[derive(Clone, Copy, Default)]
pub(crate) struct ExitState {
    /// Operations and walks that have not completed.
    pub(crate) load: u32,
    /// Operations are staged that the device would accept, or blocks wait for their walks.
    pub(crate) staged: bool,
    /// Shard 0 should visit.
    pub(crate) asks_shard: bool,
    /// The time at which an operation may start although nothing completes until then.
    pub(crate) at_ns: Option<u64>,
}

/// The start of an operation by a visitor.
pub(crate) enum VisitStart {
    /// It has completed; its memory lies in the request.
    Done(OpResult),
    /// It waits in this slot, for the cell, if any.
    Waits(OpKey),
    Failed(OpFailure),
    /// The op table is full. Nothing has happened.
    Full,
}

impl Shard {
    /// Visits the shards that asked for it; for the shard that does so.
    #[inline]
    pub(super) fn visit_asked(&self) {
        let asked = self.inbox.take_visits();
        if asked != 0 {
            visited::visit_all(self, asked);
        }
    }

    /// Starts an operation, submits it unless more are worth waiting for, and handles completions.
    ///
    /// When it ends, `cell` has the outcome; without one the outcome stays in the slot. `waits`: more are worth waiting for even
    /// with few in flight. It needs a cell.
    #[inline]
    pub(crate) fn begin_visiting(
        &self,
        core: Option<&Arc<FileCore>>,
        request: &mut OpRequest,
        cell: Option<&RemotePtr>,
        waits: bool,
    ) -> (VisitStart, bool) {
        if self.ops.with(|ops| ops.is_full()) {
            return (VisitStart::Full, false);
        }
        let file = match core.map(|core| self.enter_file(core)) {
            None => NO_FILE,
            Some(Ok(file)) => file,
            Some(Err(failure)) => return (VisitStart::Failed(failure), false),
        };
        let staged = self.stage(file, request, || match cell {
            Some(cell) => Continuation::Remote(cell.clone()),
            // No task is woken, and the outcome stays until it is fetched.
            None => Continuation::Wake(Waker::noop().clone()),
        });
        let Some(key) = staged else {
            self.leave_file(file);
            return (VisitStart::Full, false);
        };
        if let Some(cell) = cell {
            cell.set_key(key);
        }
        if self.gathers(waits) {
            return (VisitStart::Waits(key), false);
        }
        self.submit_staged();
        self.take_completions(Wait::Poll);
        match cell {
            None => match self.fetch(key, &mut request.buffer) {
                Some(result) => (VisitStart::Done(result), true),
                None => (VisitStart::Waits(key), true),
            },
            Some(_) => (VisitStart::Waits(key), true),
        }
    }

    /// Starts walks, submits their reads unless more are worth waiting for, and continues as long as these complete immediately.
    pub(crate) fn begin_walks_visiting(&self, batch: &Arc<walk::Batch>) {
        walk::begin_batch(self, batch);
        walk::turn(self, STEPS_PER_VISIT);
        if !self.gathers(false) {
            self.submit_rounds();
        }
    }

    /// Returns whether staged operations wait for more, to be submitted together.
    #[inline]
    fn gathers(&self, although_few: bool) -> bool {
        let (staged, in_flight) = (self.waiting(), self.ops.with(|ops| ops.in_flight));
        if staged >= STAGED_MAX || (staged + in_flight <= IN_FLIGHT_FEW && !although_few) {
            return false;
        }
        let now = self.clock.now();
        if staged == 1 {
            self.gathers_since.set(now);
        }
        // Tasks that compute between two reads would leave the device idle until the last of them had its turn.
        self.clock.ns(now.wrapping_sub(self.gathers_since.get())) < STAGED_NS_MAX
    }

    /// Submits and handles completions, which may request more.
    fn submit_rounds(&self) {
        let began = self.clock.now();
        for _ in 0..ROUNDS_MAX {
            self.submit_staged();
            self.take_completions(Wait::Poll);
            if !self.has_staged() || self.clock.ns(self.clock.now().wrapping_sub(began)) > VISIT_NS_MAX {
                break;
            }
        }
        self.walks.with(|walks| walks.has_staged = false);
    }

    /// Does everything that is ready. One turn of an ordinary shard, without its tasks and its wait.
    #[inline(never)]
    pub(crate) fn visit(&self) {
        self.counters.turns.set(self.counters.turns.get() + 1);
        self.take_messages();
        self.drain_remote();
        read_many::retry_blocked(self);
        walk::turn(self, STEPS_PER_VISIT);
        self.submit_rounds();
    }

    /// Returns the state in which the shard is left.
    #[inline]
    pub(crate) fn leaving(&self) -> ExitState {
        #[cfg(debug_assertions)]
        self.check_invariants();
        #[cfg(debug_assertions)]
        self.engine.arena.check_line(self.index());
        let load = self.ops.with(|ops| ops.in_flight) + self.waiting();
        let walks = self.walks.with(|walks| walks.load());
        if load + walks == 0 {
            return ExitState::default();
        }
        self.leaving_loaded(load + walks)
    }

    #[cold]
    fn leaving_loaded(&self, load: u32) -> ExitState {
        let is_idle = self.ops.with(|ops| ops.in_flight == 0 && !ops.has_staged());
        let waits_for_memory = is_idle && self.waiting_uncalled() > 0;
        let at_ns = self.account.with(|account| account.queues.wake_at_ns());
        let memory_ns = waits_for_memory.then(|| self.clock.ns(self.clock.now()) + MEMORY_LOOK_NS);
        ExitState {
            load,
            staged: self.has_staged() || self.walks.with(|walks| walks.has_arrivals()),
            asks_shard: false,
            at_ns: at_ns.into_iter().chain(memory_ns).min(),
        }
    }

    /// Returns whether operations are staged that the device would accept.
    fn has_staged(&self) -> bool {
        self.ops.with(|ops| ops.has_staged() && ops.in_flight < self.depth)
    }
}
