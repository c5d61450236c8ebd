//! The shard's turns: check for messages, run tasks, submit, wait, handle completions.

use std::ptr::NonNull;
use std::time::Duration;

use crate::base::health::Degradation;
use crate::driver::Wait;
use crate::io::op::{OpFailure, OpOutcome};
use crate::reactor::account::file_table::NO_FILE;
use crate::reactor::open_file::CloseNode;
use crate::reactor::read_many::{self, Batch};
use crate::reactor::shard::Shard;
use crate::reactor::shard::clock::Ticks;
use crate::reactor::shard::ending::EndReport;
use crate::reactor::shard::inbox::{MESSAGES_PER_TURN, Message};
use crate::reactor::shard::optable::Continuation;
use crate::reactor::shard::remote::{RemoteCell, RemotePtr};
use crate::reactor::shard::remote_list::{NodeKind, RemoteNode};
use crate::reactor::walk;

/// A wait for several completions ends with one after this long.
const PATIENCE: Duration = Duration::from_micros(50);
/// With at least `IN_FLIGHT_SEVERAL` operations in flight the shard waits for a quarter of them, else for one: the timer
/// that bounds a wait for several costs more than the wake-ups it saves when few are in flight (at depth 8 on a disk
/// 5.95 us of processor time a read instead of 4.98).
///
/// `IN_FLIGHT_PER_WAIT` also bounds spinning: with more in flight a shard sleeps immediately. The bare ring of `forebay measure
/// walk` waits by the same number.
const IN_FLIGHT_PER_WAIT: u32 = 4;
const IN_FLIGHT_SEVERAL: u32 = 16;

/// By default an idle shard polls for messages only where the device completes faster than this. On zram
/// polling doubles the rate of single reads from Tokio; on a disk of 45 us it cost a fifth of it.
const FAST_DEVICE_NS: u64 = 20_000;
/// The number of consecutive useless spins after which the pause between tries no longer grows: 128 waits.
const USELESS_SPINS_MAX: u16 = 7;

/// Records whether spinning before sleeping currently pays.
#[derive(Clone, Copy, Default)]
pub(crate) struct Spin {
    /// Number of waits that may not spin, after spinning was useless.
    pause: u16,
    /// Consecutive useless spins.
    useless: u16,
}

impl Shard {
    /// Runs the shard's turns until the engine closes, then ends the shard.
    pub(crate) fn run(&self) -> EndReport {
        while !self.inbox.is_ending() {
            let wait = self.work();
            self.rest(wait);
        }
        self.end()
    }

    /// Runs the first half of a turn: everything that is ready. Returns how long to wait for more.
    #[inline]
    pub(crate) fn work(&self) -> Wait {
        self.counters.turns.set(self.counters.turns.get() + 1);
        self.take_messages();
        self.drain_remote();
        self.wake_sleepers();
        read_many::retry_blocked(self);
        self.executor.run(self);
        walk::turn(self, walk::STEPS_PER_TURN);
        self.submit_staged();
        self.walks.with(|walks| walks.has_staged = false);
        self.choose_wait()
    }

    /// Runs the second half of a turn: waits in the driver and handles the completions.
    #[inline]
    pub(crate) fn rest(&self, wait: Wait) {
        self.take_completions(wait);
        self.hurry_walks();
        self.inbox.awake();
    }

    /// Submits the requests of walks' steps before tasks run. If no task is ready, the next turn is soon
    /// enough.
    #[inline]
    fn hurry_walks(&self) {
        for _ in 0..walk::HOPS_PER_TURN {
            if self.executor.is_idle() || !self.walks.with(|walks| std::mem::take(&mut walks.has_staged)) {
                break;
            }
            self.submit_staged();
            self.take_completions(Wait::Poll);
        }
    }

    #[inline(always)]
    pub(super) fn take_messages(&self) {
        self.late_calls.look(&self.inbox);
        let mut taken = 0;
        while taken < MESSAGES_PER_TURN {
            // A full op table leaves messages in the inbox, and their senders wait in turn.
            if self.ops.with(|ops| ops.is_full()) {
                break;
            }
            match self.inbox.pop() {
                Some(Message::Op(cell)) => self.begin_remote(cell),
                Some(Message::Batch(batch)) => read_many::begin(self, batch),
                Some(Message::Walks(batch)) => walk::begin_batch(self, &batch),
                Some(Message::Call(call)) => call(self),
                None => break,
            }
            taken += 1;
        }
        self.late_calls.take(&self.inbox, taken, |call| call(self));
        self.inbox.notify_room(taken);
        for _ in 0..MESSAGES_PER_TURN {
            match self.inbox.pop_runnable() {
                Some(runnable) => self.executor.push(runnable),
                None => break,
            }
        }
    }

    /// Handles the notices that destructors on other threads left.
    pub(super) fn drain_remote(&self) {
        self.inbox.take_memory_call();
        #[cfg(any(feature = "_sim", all(feature = "tokio", target_os = "linux", not(forebay_no_uring))))]
        self.visit_asked();
        let capacity = self.ops.with(|ops| ops.table.capacity());
        self.inbox.dropped.take(capacity, |index| self.drop_op_at(index));
        if !self.inbox.dropped_walks.is_empty() {
            let capacity = self.walks.with(|walks| walks.capacity());
            self.inbox.dropped_walks.take(capacity, |index| walk::drop_walk_at(self, index));
        }
        self.inbox.remote_list.take_all(|node| self.handle_node(node));
    }

    pub(super) fn handle_node(&self, node: NonNull<RemoteNode>) {
        // SAFETY: nodes in the list are live, and this call owns the object at whose start each of them is.
        match unsafe { node.as_ref() }.kind {
            NodeKind::Remote => {
                // SAFETY: a node of this kind is from `RemoteCell::queue` or `cancel`, and is passed once.
                let (cell, cancelled) = unsafe { RemoteCell::from_node(node) };
                match (cell.key(), cancelled) {
                    (Some(key), true) => self.drop_op(key),
                    (Some(key), false) => self.adopt(cell, key),
                    // Its message has not arrived yet; the shard will find the mark when it does.
                    (None, _) => {}
                }
            }
            NodeKind::File => {
                // SAFETY: a node of this kind is the first field of a `CloseNode` that was pushed once.
                let core = unsafe { CloseNode::take(node) };
                let file = core.table_index(self.index());
                // Dropped first: when the entry is removed below, a caller that waits for the close finds the descriptor closed.
                // The entry, if any, keeps the file.
                drop(core);
                if self.account.with(|account| account.files.close(file)) {
                    self.remove_file(file);
                }
            }
            NodeKind::Batch => {
                // SAFETY: a node of this kind is from `Batch::queue`, and is passed once.
                let batch = unsafe { Batch::from_node(node) };
                read_many::resume(self, &batch);
            }
            NodeKind::Walks => {
                // SAFETY: a node of this kind is from `walk::Batch::notify_shard`, and is passed once.
                let batch = unsafe { walk::Batch::from_node(node) };
                walk::resume(self, &batch);
            }
        }
    }

    fn begin_remote(&self, cell: RemotePtr) {
        // SAFETY: the cell was just popped from the inbox.
        let Some(sent) = (unsafe { cell.take_request() }) else { return };
        if cell.is_cancelled() {
            return;
        }
        let file = match sent.file.as_ref().map_or(Ok(NO_FILE), |core| self.enter_file(core)) {
            Ok(file) => file,
            Err(failure) => {
                return cell.finish(OpOutcome { result: Err(failure), buffer: sent.request.buffer });
            }
        };
        let mut request = sent.request;
        let kept = cell.clone();
        match self.stage(file, &mut request, || Continuation::Remote(kept)) {
            Some(key) => cell.set_key(key),
            None => {
                // `take_messages` checked for free slots first, so this handles a table that filled up in between.
                self.leave_file(file);
                let result = Err(OpFailure::Errno(libc::EAGAIN));
                cell.finish(OpOutcome { result, buffer: request.buffer });
            }
        }
    }

    fn wake_sleepers(&self) {
        if self.timers.with(|timers| timers.is_empty()) {
            return;
        }
        let now = self.clock.now();
        while let Some(waker) = self.timers.with(|timers| timers.pop_due(now)) {
            waker.wake();
        }
    }

    /// Returns whether to sleep, for how long and for how many completions. Never sleeps with work left.
    #[inline]
    fn choose_wait(&self) -> Wait {
        let has_arrivals = self.walks.with(|walks| walks.has_arrivals());
        if has_arrivals || !self.executor.is_idle() || !self.inbox.is_quiet() {
            return Wait::Poll;
        }
        // With polling, nothing would end a sleep when the device completes.
        if self.driver.with(|driver| driver.is_polling()) {
            return Wait::Poll;
        }
        let before = self.ops.with(|ops| ops.in_flight);
        // The kernel's deferred work of a command runs while this thread waits in it: a shard that looked for
        // completions would enter the kernel for each such part.
        if self.ops.with(|ops| ops.commands == 0) && self.spin_until_news(before) {
            return Wait::Poll;
        }
        let in_flight = self.ops.with(|ops| ops.in_flight);
        // An operation that ended while this thread span may be what others here wait for.
        if in_flight < before && self.waiting() > 0 {
            return Wait::Poll;
        }
        let starved = in_flight == 0 && self.waiting_uncalled() > 0;
        let wake_at_ns = self.account.with(|account| account.queues.wake_at_ns());
        self.inbox.about_to_sleep();
        if !self.inbox.is_quiet() {
            return Wait::Poll;
        }
        #[cfg(debug_assertions)]
        self.check_invariants();
        #[cfg(debug_assertions)]
        self.engine.arena.check_line(self.index());
        if in_flight == 0 {
            self.ops.with(|ops| ops.table.shrink());
            self.walks.with(|walks| walks.shrink());
            let now_ns = || self.clock.ns(self.clock.now());
            self.account.with(|account| account.queues.note_idle(now_ns));
        }
        let has_limit = starved || wake_at_ns.is_some() || !self.timers.with(|timers| timers.is_empty());
        let limit = if has_limit { self.sleep_limit(starved, wake_at_ns) } else { None };
        let completions = if in_flight < IN_FLIGHT_SEVERAL { 1 } else { in_flight / IN_FLIGHT_PER_WAIT };
        Wait::For { completions, patience: (completions > 1).then_some(PATIENCE), limit, in_flight }
    }

    /// Returns how long the shard sleeps at most. Most sleeps have no limit.
    #[inline(never)]
    fn sleep_limit(&self, starved: bool, wake_at_ns: Option<u64>) -> Option<Duration> {
        let limit = self.timers.with(|timers| timers.next_deadline()).map(|deadline| {
            let left_ns = self.clock.ns(deadline.saturating_sub(self.clock.now()));
            Duration::from_nanos(left_ns.saturating_add(1_000))
        });
        // Only waiting for the device's time, or for memory behind that. A return on another thread wakes the shard, but one by this
        // thread's own tasks does not, so it checks again soon.
        let limit = if starved { limit.into_iter().chain([PATIENCE * 20]).min() } else { limit };
        // A capped class, or one that lets others catch up, proceeds without an event.
        wake_at_ns.map_or(limit, |at_ns| {
            let left_ns = at_ns.saturating_sub(self.clock.ns(self.clock.now()));
            limit.into_iter().chain([Duration::from_nanos(left_ns.saturating_add(1_000))]).min()
        })
    }

    /// Polls for completions and messages for a short while before sleeping: a wake-up costs more than that when an event is near.
    /// Returns whether one arrived. Pauses the attempts for a while when they did not pay.
    #[inline]
    fn spin_until_news(&self, in_flight: u32) -> bool {
        let (limit, state) = match in_flight {
            // With a device slower than a wake-up, spinning would only deprive the program of the processor.
            0 if self.engine.config.spin.is_none() && self.device_ns.get() > FAST_DEVICE_NS => return false,
            0 => (self.spin_idle_max, &self.spin_idle),
            _ => (self.spin_flying_max, &self.spin_flying),
        };
        if limit == 0 || in_flight > IN_FLIGHT_PER_WAIT {
            return false;
        }
        let mut spin = state.get();
        if spin.pause > 0 {
            spin.pause -= 1;
            state.set(spin);
            return false;
        }
        // Operations staged in this turn must be with the device while the shard spins.
        if in_flight > 0 {
            self.take_completions(Wait::Poll);
            // A step may have requested more, which is submitted with the next turn.
            if !self.executor.is_idle() || self.walks.with(|walks| walks.has_staged || walks.has_arrivals()) {
                return true;
            }
        }
        self.counters.spins.set(self.counters.spins.get() + 1);
        let began = self.clock.now();
        let useful = loop {
            if !self.inbox.is_quiet()
                || (in_flight > 0 && self.driver.with(|driver| driver.has_completions()))
            {
                break true;
            }
            if self.clock.now().wrapping_sub(began) > limit {
                break false;
            }
            std::hint::spin_loop();
        };
        if useful {
            self.counters.spins_useful.set(self.counters.spins_useful.get() + 1);
            spin.useless = 0;
        } else {
            spin.useless = (spin.useless + 1).min(USELESS_SPINS_MAX);
            spin.pause = 1 << spin.useless;
        }
        state.set(spin);
        useful
    }

    pub(super) fn take_completions(&self, wait: Wait) {
        let mut batch = self.completed.with(std::mem::take);
        let reaped =
            self.driver.with(|driver| driver.complete(wait, |key, result| batch.push((key, result))));
        if let Err(error) = reaped {
            self.report_driver_failure(&error);
        }
        if !batch.is_empty() {
            // Read once for all completions, and only if some operation is sampled.
            let mut now = None;
            for (key, result) in batch.drain(..) {
                self.completed(key, result, &mut now);
            }
            if self.walks.with(|walks| walks.has_arrivals()) {
                walk::run(self);
            }
        }
        // Returned for its capacity, so that a turn allocates nothing.
        self.completed.with(|kept| *kept = batch);
    }

    /// Reports the driver's own account of a failure, or else the failure itself.
    #[cold]
    fn report_driver_failure(&self, error: &std::io::Error) {
        if !self.tell_degradations() {
            let why = format!("waiting for completions failed: {error}");
            self.engine.degrade_once("driver", &why, "report this");
        }
    }

    /// Reports the driver's degradations. Returns whether it reported any.
    #[cold]
    pub(super) fn tell_degradations(&self) -> bool {
        let told = self.driver.with(|driver| driver.degradations());
        for Degradation { what, why, remedy } in &told {
            self.engine.degrade_once(what, why, remedy);
        }
        !told.is_empty()
    }

    /// Counts and reports a request that the polled ring returned undone. It and the file's later requests use the ordinary ring.
    #[cold]
    pub(super) fn tell_not_pollable(&self) {
        self.counters.polls_refused.set(self.counters.polls_refused.get() + 1);
        self.engine.degrade_once(
            "polled I/O",
            "the file system or device took no polled request; completions come by interrupt",
            "use a file system that polls (ext4, XFS, btrfs) on a device with poll queues",
        );
    }

    /// Registers a sleeping task's waker; returns the number that renews or removes it.
    pub(crate) fn set_timer(&self, deadline: Ticks, id: Option<u64>, waker: &std::task::Waker) -> u64 {
        // Cloning and dropping wakers may run the program's code, so nothing is borrowed meanwhile.
        let waker = waker.clone();
        let (id, old) = self.timers.with(|timers| timers.set(deadline, id, waker));
        drop(old);
        id
    }

    pub(crate) fn remove_timer(&self, deadline: Ticks, id: u64) {
        drop(self.timers.with(|timers| timers.remove(deadline, id)));
    }
}
