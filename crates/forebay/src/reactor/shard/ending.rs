//! A shard's end: cancels tasks, drains or leaks operations, releases files and notifies all waiters.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::Duration;

use crate::base::priority;
use crate::driver::Wait;
use crate::io::op::{OpBuffer, OpFailure, OpKey, OpOutcome};
use crate::reactor::account::file_table::NO_FILE;
use crate::reactor::read_many;
use crate::reactor::shard::long_reads::end_long;
use crate::reactor::shard::optable::{Continuation, SlotState};
use crate::reactor::shard::{CURRENT, Shard};
use crate::reactor::walk;

/// The result of a shard's end.
#[derive(Clone, Debug)]
pub struct EndReport {
    /// Operations whose completion did not arrive before the deadline. Their memory and files are leaked.
    pub(crate) leaked: usize,
    /// The names of the pool's calls that had not ended by the deadline.
    pub(crate) calls: Vec<&'static str>,
}

impl Shard {
    /// Cancels everything, drains with a deadline, and leaks the rest.
    pub(crate) fn end(&self) -> EndReport {
        self.begin_end();
        let allowed = u64::try_from(self.engine.config.shutdown_deadline.as_nanos()).unwrap_or(u64::MAX);
        let deadline = self.clock.now().saturating_add(self.clock.ticks(allowed));
        loop {
            let left = Duration::from_nanos(self.clock.ns(deadline.saturating_sub(self.clock.now())));
            if self.drain(left) || left.is_zero() {
                break;
            }
        }
        EndReport { leaked: self.finish_end(), calls: Vec::new() }
    }

    /// The first part of the end: refuses new work, ends operations that have not reached the device, and cancels the rest.
    pub(crate) fn begin_end(&self) {
        self.inbox.close(false);
        self.end_tasks(u32::MAX);
        // Before the operations: otherwise each request of a batch that ends now would start the next one.
        read_many::refuse_all(self, OpFailure::EngineClosed);
        walk::refuse_all(self, OpFailure::EngineClosed);
        self.fail_unsubmitted();
        let flying = self.ops.with(|ops| ops.table.live_keys());
        for &key in &flying {
            self.cancel_in_flight(key);
        }
    }

    /// The second part: waits for completions, for at most `limit`, and handles the available completions. Returns whether nothing
    /// is left to wait for.
    pub(crate) fn drain(&self, limit: Duration) -> bool {
        let in_flight = self.ops.with(|ops| ops.in_flight);
        if in_flight > 0 {
            self.drain_remote();
            // A thread that was away past the deadline leaks nothing that the device has done meanwhile.
            self.take_completions(if limit.is_zero() {
                Wait::Poll
            } else {
                Wait::For { completions: 1, patience: None, limit: Some(limit), in_flight }
            });
            // Short transfers and the syncs of durable writes continue until they complete.
            self.submit_staged();
        }
        self.ops.with(|ops| ops.in_flight) == 0
    }

    /// The last part: leaks what did not complete, and releases everything else. Returns the number of leaked operations.
    pub(crate) fn finish_end(&self) -> usize {
        self.inbox.remote_list.close(|node| self.handle_node(node));
        let leaked = self.leak_in_flight(OpFailure::EngineClosed);
        self.drain_files(false);
        if leaked == 0 {
            self.driver.with(|driver| driver.retire());
        }
        self.end_tasks(u32::MAX);
        leaked
    }

    /// Ends the shard after a panic that cannot be attributed to a task. All waiters are notified, and no
    /// memory is freed that the device may use. Each step runs regardless of the outcome of the steps before
    /// it.
    pub(crate) fn end_lost(&self) {
        let steps: [&dyn Fn(); 8] = [
            &|| self.inbox.close(true),
            &|| self.end_tasks(10_000),
            // A waker may poll immediately. Nothing that it begins may land here, where no later step would end it.
            &|| {
                if self.is_current() {
                    CURRENT.set(ptr::null());
                }
            },
            &|| {
                self.inbox.remote_list.close(|node| {
                    let _ = catch_unwind(AssertUnwindSafe(|| self.handle_node(node)));
                })
            },
            &|| read_many::refuse_all(self, OpFailure::ShardLost),
            &|| walk::refuse_all(self, OpFailure::ShardLost),
            &|| {
                self.leak_in_flight(OpFailure::ShardLost);
            },
            &|| self.drain_files(true),
        ];
        for step in steps {
            let _ = catch_unwind(AssertUnwindSafe(step));
        }
    }

    /// Releases all files and notifies the callers that wait for a close. A file that the device may still
    /// use stays open.
    fn drain_files(&self, keep_all: bool) {
        let unregister = |index, route| self.driver.with(|driver| driver.unregister_file(index, route));
        let drained = self.account.with(|account| account.files.drain(unregister));
        for (core, in_use) in drained {
            core.entry_gone_from(in_use || keep_all);
        }
    }

    /// Drops every task's future on this thread, where it was polled. `patience` is the number of checks of an empty queue after
    /// which it abandons tasks that no thread delivers.
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
                // A waker on another thread is about to push the task.
                if patience == 0 {
                    break;
                }
                let looks = priority::let_others_run(self.engine.config.is_real_time());
                patience = patience.saturating_sub(looks);
                continue;
            }
            self.executor.run(self);
        }
    }

    /// Fails the operations that the device has not seen yet; nothing that they own is lost.
    fn fail_unsubmitted(&self) {
        for key in self.ops.with(|ops| ops.table.live_keys()) {
            if self.ops.with(|ops| ops.table.slot(key.index).state) == SlotState::Staged {
                self.finish_with(key.index, OpFailure::EngineClosed);
            }
        }
        self.ops.with(|ops| ops.forget_staged());
        self.account.with(|account| {
            account.queues.retire();
            account.queues.open();
        });
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

    /// Leaks the operations that the device did not complete in time: their memory and files stay as they are
    /// for ever. All waiters are notified. Returns the number of leaked operations.
    pub(crate) fn leak_in_flight(&self, failure: OpFailure) -> usize {
        let keys = self.ops.with(|ops| ops.table.live_keys());
        let mut leaked = 0;
        for key in keys {
            let ended = self.ops.with(|ops| {
                // A waker that ran before may have polled or dropped the future of one that was done.
                let slot = ops.table.find(key)?;
                if slot.has_allowance {
                    // No read may wait for memory that is never released.
                    end_long(&self.engine.arena, slot);
                }
                let in_flight = slot.state == SlotState::InFlight;
                let buffer = slot.buffer.take();
                let continuation = std::mem::replace(&mut slot.continuation, Continuation::Orphan);
                // A waker may poll its future immediately, and this thread may still count as the shard: the future finds its end,
                // instead of waiting in the slot again. File and charge stay counted.
                (slot.state, slot.result) = (SlotState::Done, Err(failure));
                (slot.file, slot.charge) = (NO_FILE, 0);
                Some((in_flight, buffer, continuation, slot.offset as u32))
            });
            let Some((in_flight, buffer, continuation, number)) = ended else { continue };
            if let OpBuffer::Command(owner) = &buffer {
                let _ = catch_unwind(AssertUnwindSafe(|| owner.lost(number)));
            }
            if in_flight {
                leaked += 1;
                // The kernel may still write here.
                std::mem::forget(buffer);
            }
            match continuation {
                Continuation::Remote(cell) => {
                    // A waker that panics must not keep the other waiters from their results.
                    let _ = catch_unwind(AssertUnwindSafe(|| cell.finish(OpOutcome::failed(failure))));
                }
                Continuation::Wake(waker) => {
                    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
                }
                Continuation::Task(task) => self.executor.wake_task(task),
                Continuation::Batch { .. }
                | Continuation::Walk { .. }
                | Continuation::Command
                | Continuation::Orphan => {}
            }
        }
        // Leaked slots are never free again.
        self.notify_slot_room();
        leaked
    }
}
