//! The shard's turns: look for news, run tasks, submit, wait, take completions; and its orderly end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::driver::Wait;
use crate::file::CloseNode;
use crate::op::{OpFailure, OpOutcome};
use crate::pending::Sender;
use crate::read_many::{self, Batch};
use crate::shard::Shard;
use crate::shard::clock::Ticks;
use crate::shard::foreign::{ForeignNode, NodeKind};
use crate::shard::inbox::Message;
use crate::shard::optable::{Continuation, NO_FILE, OpKey, SlotState};
use crate::shard::remote::{RemoteCell, RemotePtr};
use crate::stats::{FlowStats, ShardStats};

/// Messages a turn takes before tasks and completions have theirs.
const MESSAGES_PER_TURN: usize = 256;
/// A wait for several completions ends with one after this long.
const PATIENCE: Duration = Duration::from_micros(50);
/// With at least `IN_FLIGHT_SEVERAL` operations in flight the shard waits for a quarter of them, else for one: the timer
/// that bounds a wait for several costs more than the wake-ups it saves when few are in flight (at depth 8 on a disk
/// 5.95 us of processor time a read instead of 4.98).
const IN_FLIGHT_PER_WAIT: u32 = 4;
const IN_FLIGHT_SEVERAL: u32 = 16;

/// After so many useless spins in a row the pause between tries grows no more: 128 waits.
const USELESS_SPINS_MAX: u16 = 7;

/// How a shard ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// Operations whose completion was not seen before the deadline; their memory and files are leaked.
    pub(crate) leaked: usize,
}

/// Whether spinning before sleeping pays at the moment.
#[derive(Clone, Copy, Default)]
pub(crate) struct Spin {
    /// Waits that may not spin, after spinning was useless.
    pause: u16,
    /// Useless spins in a row.
    useless: u16,
}

impl Shard {
    /// The thread's life until the engine closes.
    pub(crate) fn run(&self) -> Ended {
        while !self.inbox.is_ending() {
            self.turn();
        }
        self.end()
    }

    fn turn(&self) {
        self.counters.turns.set(self.counters.turns.get() + 1);
        self.take_messages();
        self.take_word();
        self.wake_sleepers();
        read_many::retry_blocked(self);
        self.executor.run(self);
        self.submit_staged();
        let wait = self.choose_wait();
        self.take_completions(wait);
        self.inbox.awake();
    }

    fn take_messages(&self) {
        for _ in 0..MESSAGES_PER_TURN {
            // A full op table leaves messages in the inbox, whose senders wait in turn.
            if self.ops.with(|ops| ops.is_full()) {
                break;
            }
            match self.inbox.pop() {
                Some(Message::Op(cell)) => self.begin_remote(cell),
                Some(Message::Batch(batch)) => read_many::begin(self, batch),
                Some(Message::Call(call)) => call(self),
                None => break,
            }
        }
        self.inbox.tell_room();
        for _ in 0..MESSAGES_PER_TURN {
            match self.inbox.pop_runnable() {
                Some(runnable) => self.executor.push(runnable),
                None => break,
            }
        }
    }

    /// Reads what destructors on other threads left.
    fn take_word(&self) {
        let capacity = self.ops.with(|ops| ops.table.capacity());
        self.inbox.take_dropped(capacity, |index| self.drop_op_at(index));
        self.inbox.foreign.take_all(|node| self.heed(node));
    }

    fn heed(&self, node: NonNull<ForeignNode>) {
        // SAFETY: nodes in the list are live, and this call owns what they begin.
        match unsafe { node.as_ref() }.kind {
            NodeKind::Remote => {
                // SAFETY: a node of this kind comes from `RemoteCell::queue` or `cancel`, and is taken once.
                let (cell, cancelled) = unsafe { RemoteCell::from_node(node) };
                match (cell.key(), cancelled) {
                    (Some(key), true) => self.drop_op(key),
                    (Some(key), false) => self.adopt(cell, key),
                    // Its message has not come yet; it will find the mark.
                    (None, _) => {}
                }
            }
            NodeKind::File => {
                // SAFETY: a node of this kind is the first field of a `CloseNode` that was pushed once.
                let core = unsafe { CloseNode::take(node) };
                let file = core.table_index(self.index());
                // Given up first: when the entry goes below, whoever waits for the close finds the descriptor closed.
                // The entry, if there is one, keeps the file.
                drop(core);
                if self.files.with(|files| files.close(file)) {
                    self.remove_file(file);
                }
            }
            NodeKind::Batch => {
                // SAFETY: a node of this kind comes from `Batch::queue`, and is taken once.
                let batch = unsafe { Batch::from_node(node) };
                read_many::resume(self, &batch);
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
                // `take_messages` looked for room first, so this is for a table that filled up in between.
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

    /// Sleep, and for how long and how many completions? Never while there is anything to do.
    #[inline]
    fn choose_wait(&self) -> Wait {
        if !self.executor.is_idle() || !self.inbox.is_quiet() {
            return Wait::Poll;
        }
        let (in_flight, starved) =
            self.ops.with(|ops| (ops.in_flight, ops.waiting() > 0 && ops.in_flight == 0));
        if self.spin_until_news(in_flight) {
            return Wait::Poll;
        }
        self.inbox.about_to_sleep();
        if !self.inbox.is_quiet() {
            return Wait::Poll;
        }
        if in_flight == 0 {
            self.ops.with(|ops| ops.table.shrink());
        }
        let limit = self.timers.with(|timers| timers.next_deadline()).map(|deadline| {
            Duration::from_nanos(self.clock.ns(deadline.saturating_sub(self.clock.now())))
                + Duration::from_micros(1)
        });
        // Waiting only for memory: a foreign return wakes us, but one that this thread's own tasks make does not,
        // so look again soon.
        let limit =
            if starved { Some(limit.map_or(PATIENCE * 20, |limit| limit.min(PATIENCE * 20))) } else { limit };
        let completions = if in_flight < IN_FLIGHT_SEVERAL { 1 } else { in_flight / IN_FLIGHT_PER_WAIT };
        Wait::For { completions, patience: (completions > 1).then_some(PATIENCE), limit }
    }

    /// Looks for completions and messages for a short while before sleeping; a wake-up costs more than that when
    /// news is near. Stops trying for a while when it did not pay.
    #[inline]
    fn spin_until_news(&self, in_flight: u32) -> bool {
        let (limit, state) = match in_flight {
            0 => (self.engine.spin_idle, &self.spin_idle),
            _ => (self.engine.spin_flying, &self.spin_flying),
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
        // What was staged in this turn must be with the device while we look.
        if in_flight > 0 {
            self.take_completions(Wait::Poll);
            if !self.executor.is_idle() {
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

    fn take_completions(&self, wait: Wait) {
        let mut batch = self.completed.with(std::mem::take);
        let reaped =
            self.driver.with(|driver| driver.complete(wait, |key, result| batch.push((key, result))));
        if let Err(error) = reaped {
            self.engine.degrade_once(
                "driver",
                &format!("waiting for completions failed: {error}"),
                "report this",
            );
        }
        if !batch.is_empty() {
            // Read once for all, and only if some operation's times are taken.
            let mut now = None;
            for (key, result) in batch.drain(..) {
                self.completed(key, result, &mut now);
            }
        }
        // Given back for its capacity, so that a turn allocates nothing.
        self.completed.with(|kept| *kept = batch);
    }

    /// Cancel all, drain with a deadline, leak what is left.
    fn end(&self) -> Ended {
        self.inbox.close(false);
        self.end_tasks(u32::MAX);
        // Before the operations: or each request of a batch that ends now would begin the next one.
        read_many::refuse_all(self, OpFailure::EngineClosed);
        self.fail_unsubmitted();
        let flying = self.ops.with(|ops| ops.table.live_keys());
        for &key in &flying {
            self.cancel_in_flight(key);
        }
        let deadline = Instant::now() + self.engine.config.shutdown_deadline;
        while self.ops.with(|ops| ops.in_flight) > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.take_word();
            self.take_completions(Wait::For { completions: 1, patience: None, limit: Some(left) });
            // Short transfers and the syncs of durable writes go on to their end.
            self.submit_staged();
        }
        self.inbox.foreign.close(|node| self.heed(node));
        let leaked = self.leak_in_flight(OpFailure::EngineClosed);
        self.drain_files(false);
        if leaked == 0 {
            self.driver.with(|driver| driver.retire());
        }
        self.end_tasks(u32::MAX);
        Ended { leaked }
    }

    /// The end after a panic that no task can answer for: whoever waits is told, nothing that the device may use is
    /// freed, and each step runs whatever the ones before it did.
    pub(crate) fn end_lost(&self) {
        self.inbox.close(true);
        let steps: [&dyn Fn(); 5] = [
            &|| self.end_tasks(10_000),
            &|| {
                self.inbox.foreign.close(|node| {
                    let _ = catch_unwind(AssertUnwindSafe(|| self.heed(node)));
                })
            },
            &|| read_many::refuse_all(self, OpFailure::ShardLost),
            &|| {
                self.leak_in_flight(OpFailure::ShardLost);
            },
            &|| self.drain_files(true),
        ];
        for step in steps {
            let _ = catch_unwind(AssertUnwindSafe(step));
        }
    }

    /// Lets go of all files, and tells those who wait for their close; one that the device may use stays open.
    fn drain_files(&self, keep_all: bool) {
        let drained = self.files.with(|files| self.driver.with(|driver| files.drain(self.index(), driver)));
        for (core, in_use) in drained {
            core.entry_gone_from(in_use || keep_all);
        }
    }

    /// Drops every task's future on this thread, where it was polled. `patience`: looks at an empty queue after which
    /// it gives up on tasks that nobody brings.
    fn end_tasks(&self, mut patience: u32) {
        self.executor.close();
        loop {
            while let Some(runnable) = self.inbox.pop_runnable() {
                self.executor.push(runnable);
            }
            if self.executor.is_idle() && self.executor.task_count() == 0 {
                break;
            }
            if self.executor.is_idle() {
                // A waker on another thread is between taking the task and pushing it.
                patience -= 1;
                if patience == 0 {
                    break;
                }
                std::thread::yield_now();
                continue;
            }
            self.executor.run(self);
        }
    }

    /// Operations that the device has not seen fail now; nothing of theirs is lost.
    fn fail_unsubmitted(&self) {
        for key in self.ops.with(|ops| ops.table.live_keys()) {
            if self.ops.with(|ops| ops.table.slot(key.index).state) == SlotState::Staged {
                self.finish_with(key.index, OpFailure::EngineClosed);
            }
        }
        self.ops.with(|ops| ops.forget_staged());
    }

    fn cancel_in_flight(&self, key: OpKey) {
        let cancel = self.ops.with(|ops| {
            let slot = ops.table.slot(key.index);
            let cancel = slot.state == SlotState::InFlight && !slot.cancelling;
            slot.cancelling |= cancel;
            cancel
        });
        if cancel {
            self.driver.with(|driver| driver.cancel(key));
        }
    }

    /// The device did not answer in time: its memory and files stay as they are for ever, and whoever waits is told.
    pub(crate) fn leak_in_flight(&self, failure: OpFailure) -> usize {
        let keys = self.ops.with(|ops| ops.table.live_keys());
        let mut leaked = 0;
        for key in keys {
            let (in_flight, buffer, continuation) = self.ops.with(|ops| {
                let slot = ops.table.slot(key.index);
                let buffer = slot.buffer.take();
                let continuation = std::mem::replace(&mut slot.continuation, Continuation::Orphan);
                (slot.state == SlotState::InFlight, buffer, continuation)
            });
            if in_flight {
                leaked += 1;
                // The kernel may still write here.
                std::mem::forget(buffer);
            }
            match continuation {
                Continuation::Remote(cell) => {
                    // A waker that panics must not keep the others from their answers.
                    let _ = catch_unwind(AssertUnwindSafe(|| cell.finish(OpOutcome::failed(failure))));
                }
                Continuation::Wake(waker) => {
                    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
                }
                Continuation::Task(task) => self.executor.wake_task(task),
                Continuation::Batch { .. } | Continuation::Orphan => {}
            }
        }
        leaked
    }

    /// This shard's counters; for a message.
    pub(crate) fn tell_stats(&self, answer: Sender<ShardReport>) {
        let (in_flight, slots_used, slots) =
            self.ops.with(|ops| (ops.in_flight, ops.table.live(), ops.table.capacity()));
        let stats = ShardStats {
            turns: self.counters.turns.get(),
            enters: self.driver.with(|driver| driver.enters()),
            kicks: self.inbox.kicks.load(std::sync::atomic::Ordering::Relaxed),
            spins: self.counters.spins.get(),
            spins_useful: self.counters.spins_useful.get(),
            in_flight,
            slots_used,
            slots,
            tasks: self.executor.task_count(),
            memory_waits: self.counters.memory_waits.get(),
            stray_completions: self.counters.strays.get(),
        };
        let flows = self.flows.with(|flows| flows.snapshot());
        answer.send(Ok(ShardReport { stats, flows }));
    }

    /// Registers a sleeping task's waker; returns the number that renews or removes it.
    pub(crate) fn set_timer(&self, deadline: Ticks, id: Option<u64>, waker: &std::task::Waker) -> u64 {
        // Cloning and dropping wakers may run code of the program's, so nothing is borrowed meanwhile.
        let waker = waker.clone();
        let (id, old) = self.timers.with(|timers| timers.set(deadline, id, waker));
        drop(old);
        id
    }

    pub(crate) fn remove_timer(&self, deadline: Ticks, id: u64) {
        drop(self.timers.with(|timers| timers.remove(deadline, id)));
    }
}

/// One shard's part of [`Stats`](crate::Stats).
pub(crate) struct ShardReport {
    pub(crate) stats: ShardStats,
    pub(crate) flows: Vec<((u8, u16), FlowStats)>,
}
