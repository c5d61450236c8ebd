//! The life of an operation from request to completion, in the slots of a shard's op table.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::task::{Poll, Waker};

use crate::base::wakes;
use crate::driver::{IoRequest, NOT_POLLABLE};
use crate::io::op::{
    Flush, OpBuffer, OpFailure, OpKey, OpKind, OpOutcome, OpRequest, OpResult, RETRIES_MAX, read_goes_on,
    write_goes_on,
};
use crate::io::stats::EndedOp;
use crate::memory::arena::{AllocError, Arena, Ticket};
use crate::reactor::account::Account;
use crate::reactor::account::file_table::{FileTarget, NO_FILE};
use crate::reactor::read_many;
use crate::reactor::scheduler::Admission;
use crate::reactor::shard::clock::Ticks;
use crate::reactor::shard::long_reads::end_long;
use crate::reactor::shard::optable::{Continuation, OpTable, SLOTS_MAX, Slot, SlotState};
use crate::reactor::shard::remote::RemotePtr;
use crate::reactor::shard::{NOT_LOOKED, Shard};
use crate::reactor::walk;

/// The op table and its queues.
pub(crate) struct Ops {
    pub(crate) table: OpTable,
    /// Operations ready to be submitted, in order of arrival.
    pub(super) staged: VecDeque<u32>,
    /// Short reads that found no memory, in order of arrival.
    pub(super) starved: VecDeque<u32>,
    /// Long reads that wait in the line for ordinary memory, in order of arrival.
    pub(super) lined: VecDeque<(u32, Ticket)>,
    /// Reads of more bytes are long.
    short_bytes_max: u32,
    /// Whether the arena was notified that this shard waits for memory.
    starving: bool,
    pub(crate) in_flight: u32,
    /// The commands among them.
    pub(crate) commands: u32,
    /// In-flight operations whose buffers the engine frees itself.
    pub(super) returning: u32,
    /// Such operations with their buffers in a device's queue.
    pub(super) returning_queued: u32,
}

/// The number of retries that an attempt counts for if the kernel had no worker thread for it: the kernel
/// already looked for one for 30 ms.
const RETRY_WITHOUT_WORKER: u8 = 25;

/// The interpretation of a completion.
enum Verdict {
    Finished(OpResult),
    Again,
    /// Again, through the page cache: the file system may refuse direct requests.
    NotDirect,
    /// Again, the ordinary way instead of polled.
    NotPollable,
}

/// One pass over the queues of staged operations.
#[derive(Default)]
struct Round {
    /// Whether a read has found no memory in this pass.
    starved_again: bool,
    /// Whether an operation was picked since then.
    picked_starving: bool,
}

/// The operation whose turn it is, out of its queue.
#[derive(Clone, Copy)]
struct Next {
    index: u32,
    /// Whether it waited for its device.
    picked: bool,
    /// Whether reads that found no memory may try again.
    retry: bool,
}

/// The outcome of an attempt to submit one operation.
enum Step {
    /// It was submitted, or waits in a queue.
    GoOn,
    /// The driver accepts no more in this turn.
    DriverIsFull,
}

/// Returns whether the end of this operation returns memory, regardless of its waiter. A write does, and so does the sync that is a
/// durable write's second half. The bytes of a read are returned to the program, except for a walk, where only the walk's step
/// inspects them. (If the step keeps the block, the waiter for that memory checks again.)
#[inline]
pub(super) fn brings_memory(slot: &Slot) -> bool {
    match slot.kind {
        OpKind::Read => matches!(slot.continuation, Continuation::Walk { .. }),
        OpKind::Write => true,
        OpKind::SyncData | OpKind::SyncAll => slot.done > 0,
        OpKind::Nop | OpKind::Command => false,
    }
}

/// Returns whether an operation that waits in a device's queue has memory that its end returns. Walks' reads have theirs there only for a
/// second try, and may lose their walk meanwhile.
#[inline]
fn returns_memory(slot: &Slot) -> bool {
    slot.kind != OpKind::Read && brings_memory(slot)
}

/// Returns the memory of an operation that transfers bytes, and its region.
///
/// # Errors
/// `EFAULT` for a transfer without memory.
#[inline(always)]
fn memory_of(slot: &Slot) -> Result<(Option<NonNull<u8>>, Option<u16>), OpFailure> {
    match slot.kind {
        OpKind::Read | OpKind::Write => match slot.memory() {
            Some((memory, region)) => Ok((Some(memory), region)),
            None => Err(OpFailure::Errno(libc::EFAULT)),
        },
        _ => Ok((None, None)),
    }
}

impl Ops {
    pub(crate) fn new(arena: &Arena) -> Ops {
        Ops {
            table: OpTable::new(),
            staged: VecDeque::with_capacity(256),
            starved: VecDeque::new(),
            lined: VecDeque::new(),
            short_bytes_max: arena.short_bytes_max() as u32,
            starving: false,
            in_flight: 0,
            commands: 0,
            returning: 0,
            returning_queued: 0,
        }
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.table.live() >= SLOTS_MAX
    }

    /// Empties the queues after every staged operation was ended another way.
    pub(crate) fn forget_staged(&mut self) {
        self.staged.clear();
        self.starved.clear();
        self.lined.clear();
        self.returning_queued = 0;
    }

    /// Puts a read that found no memory into its queue: to the front if it was there.
    fn starve(&mut self, index: u32, retry: bool) {
        if retry {
            self.starved.push_front(index);
        } else {
            self.starved.push_back(index);
        }
    }

    /// Returns whether the next staged operation precedes reads that lack memory: it will return memory, for example as the sync of
    /// a durable write, and nothing in flight will.
    fn memory_comes_first(&mut self) -> bool {
        let front = self.staged.front().copied().filter(|_| self.returning == 0);
        front.is_some_and(|index| {
            let slot = self.table.slot(index);
            brings_memory(slot) && !matches!(slot.buffer, OpBuffer::Late)
        })
    }

    /// Returns whether operations are ready to be submitted.
    #[cfg(any(feature = "_sim", all(feature = "tokio", target_os = "linux", not(forebay_no_uring))))]
    #[inline]
    pub(crate) fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Returns the number of operations that wait for the queue depth or for memory.
    #[inline]
    pub(super) fn unsubmitted(&self) -> u32 {
        (self.staged.len() + self.starved.len() + self.lined.len()) as u32
    }

    /// Returns whether an operation under way frees memory at its end without the program's help: in flight, or in a device's queue, which
    /// empties by itself.
    #[inline]
    pub(super) fn some_returns(&self) -> bool {
        self.returning + self.returning_queued > 0
    }
}

impl Shard {
    /// Puts an operation into a slot; the end of this turn submits it to the device. Returns `None` if the op
    /// table is full; everything then stays with the caller.
    #[inline]
    pub(crate) fn stage(
        &self,
        file: u32,
        request: &mut OpRequest,
        continuation: impl FnOnce() -> Continuation,
    ) -> Option<OpKey> {
        self.ops.with(|ops| {
            let key = ops.table.take()?;
            let sampled = self.account.with(Account::begin);
            // Field by field: clearing the whole slot first would write each cache line twice.
            let slot = ops.table.slot(key.index);
            slot.state = SlotState::Staged;
            slot.kind = request.kind;
            if crate::_is_broken!(IgnoredFlush) && matches!(slot.kind, OpKind::SyncData | OpKind::SyncAll) {
                slot.kind = OpKind::Nop;
            }
            slot.class = request.class;
            slot.durability = request.durability;
            slot.flush = request.flush;
            slot.cancelling = false;
            slot.sampled = sampled;
            slot.retries = 0;
            slot.file = file;
            slot.offset = request.offset;
            slot.len = request.len;
            slot.asked = request.asked;
            slot.done = 0;
            slot.buffer.move_from(&mut request.buffer);
            slot.continue_with(continuation());
            if sampled {
                slot.stamp = self.clock.now();
            }
            ops.staged.push_back(key.index);
            Some(key)
        })
    }

    /// Polls for a local future. Returns the result once, with the memory moved into `buffer`; otherwise
    /// `waker` is woken later.
    #[inline]
    pub(crate) fn poll_op(&self, key: OpKey, waker: &Waker, buffer: &mut OpBuffer) -> Poll<OpResult> {
        match self.fetch(key, buffer) {
            Some(result) => Poll::Ready(result),
            None => {
                self.renew_waker(key, waker);
                Poll::Pending
            }
        }
    }

    /// Returns the result of an operation that has ended, once, with the memory moved into `buffer`.
    #[inline(always)]
    pub(crate) fn fetch(&self, key: OpKey, buffer: &mut OpBuffer) -> Option<OpResult> {
        let fetched = self.ops.with(|ops| {
            let Some(slot) = ops.table.find(key) else {
                // Cannot happen while its future lives; returns an error instead of a panic.
                return Some(Err(OpFailure::Errno(libc::ECANCELED)));
            };
            if slot.state != SlotState::Done {
                return None;
            }
            let result = slot.result;
            buffer.move_from(&mut slot.buffer);
            if slot.sampled {
                let handed_over = self.clock.now().wrapping_sub(slot.stamp);
                let (class, device) = (slot.class.0, slot.device);
                self.account.with(|account| {
                    account.flows.of(class, device).handed_over_ns.record(self.clock.ns(handed_over));
                });
            }
            ops.table.give_back(key.index);
            Some(result)
        });
        if fetched.is_some() {
            self.notify_slot_room();
        }
        fetched
    }

    /// Updates the waker of a slot whose future was polled again before the end, perhaps by another task.
    #[cold]
    fn renew_waker(&self, key: OpKey, waker: &Waker) {
        let task = self.executor.own_task(waker);
        let known = self.ops.with(|ops| match ops.table.find(key).map(|slot| &slot.continuation) {
            Some(Continuation::Wake(known)) => known.will_wake(waker),
            Some(Continuation::Task(known)) => Some(*known) == task,
            _ => false,
        });
        if known {
            return;
        }
        // Cloning and dropping wakers may run the program's code, so nothing is borrowed meanwhile.
        let new = task.map_or_else(|| Continuation::Wake(waker.clone()), Continuation::Task);
        let old = self
            .ops
            .with(|ops| ops.table.find(key).map(|slot| std::mem::replace(&mut slot.continuation, new)));
        drop(old);
    }

    /// Handles the drop of a slot's future: no task waits, and the slot keeps memory and file until the
    /// device is done.
    pub(crate) fn drop_op(&self, key: OpKey) {
        let mut cancel = false;
        let dropped = self.ops.with(|ops| {
            let slot = ops.table.find(key)?;
            let continuation = std::mem::replace(&mut slot.continuation, Continuation::Orphan);
            let mut buffer = OpBuffer::None;
            match slot.state {
                SlotState::Done => {
                    buffer = slot.buffer.take();
                    ops.table.give_back(key.index);
                }
                SlotState::InFlight => {
                    let of_walks = crate::_is_broken!(AbandonedReadFreed);
                    let freed = crate::_is_broken!(BufferFreedAtDrop)
                        || of_walks && matches!(continuation, Continuation::Walk { .. });
                    if crate::_is_broken!(LentGivenBackEarly) && matches!(slot.buffer, OpBuffer::Lent(_)) {
                        // The test's memory is never freed. The device continues with its copy of the address.
                        buffer = slot.buffer.take();
                    }
                    if freed && matches!(slot.memory(), Some((_, Some(_)))) {
                        // Only memory of a region: it stays mapped, so that the device's late bytes hit a
                        // neighbour.
                        buffer = slot.buffer.take();
                    }
                    cancel = !std::mem::replace(&mut slot.cancelling, true);
                    // Counted with the orphaning, not with the cancel: the shard's end cancels operations
                    // that futures still wait for.
                    let counted = matches!(continuation, Continuation::Orphan | Continuation::Walk { .. });
                    if !brings_memory(slot) && !counted {
                        ops.returning += 1;
                    }
                }
                // Still staged: freed at its turn.
                _ => {}
            }
            Some((continuation, buffer))
        });
        drop(dropped);
        if cancel {
            self.driver.with(|driver| driver.cancel(key));
        }
        self.notify_slot_room();
    }

    /// Orphans an operation at a shard's end: no task waits for it any more.
    pub(crate) fn orphan_op(&self, key: OpKey) {
        let old = self.ops.with(|ops| {
            ops.table.find(key).map(|slot| std::mem::replace(&mut slot.continuation, Continuation::Orphan))
        });
        drop(old);
    }

    /// Handles a slot whose local future was dropped on another thread.
    pub(crate) fn drop_op_at(&self, index: u32) {
        let key = self.ops.with(|ops| OpKey { index, generation: ops.table.slot(index).generation });
        self.drop_op(key);
    }

    /// Lets a cell on another thread stand for a slot from now on.
    pub(crate) fn adopt(&self, cell: RemotePtr, key: OpKey) {
        let (done, old) = self.ops.with(|ops| match ops.table.find(key) {
            Some(slot) if slot.state == SlotState::Done => {
                let outcome = OpOutcome { result: slot.result, buffer: slot.buffer.take() };
                ops.table.give_back(key.index);
                (Some((cell, outcome)), None)
            }
            Some(slot) => {
                let old = std::mem::replace(&mut slot.continuation, Continuation::Remote(cell));
                (None, Some(old))
            }
            None => (Some((cell, OpOutcome::failed(OpFailure::Errno(libc::ECANCELED)))), None),
        });
        drop(old);
        if let Some((cell, outcome)) = done {
            cell.finish(outcome);
        }
    }

    /// Returns the number of operations that wait for the queue depth, for memory or for their device.
    #[inline]
    pub(super) fn waiting(&self) -> u32 {
        self.ops.with(|ops| ops.unsubmitted()) + self.account.with(|account| account.queues.waiting())
    }

    /// Submits staged operations to the driver while the device accepts them.
    #[inline]
    pub(crate) fn submit_staged(&self) {
        if self.waiting() == 0 {
            return;
        }
        self.register_new_regions();
        self.account.with(|account| account.queues.begin_turn(&self.engine));
        let mut now = None;
        while let Some((index, failure)) = self.submit_until_failure(&mut now) {
            self.finish(index, Err(failure));
        }
        let wake = self.account.with(|account| account.queues.end_turn());
        if wake != 0 {
            self.engine.wake_shards(wake);
        }
    }

    /// Submits until nothing is left or the depth is reached. Returns a slot that cannot be submitted.
    fn submit_until_failure(&self, now: &mut Option<Ticks>) -> Option<(u32, OpFailure)> {
        self.ops.with(|ops| {
            let mut round = Round::default();
            let mut driver_is_full = false;
            if !ops.lined.is_empty()
                && let Some(failed) = self.serve_line(ops)
            {
                return Some(failed);
            }
            while ops.in_flight < self.depth
                && let Some(next) = self.next_to_submit(ops, &mut round)
            {
                match self.submit_next(ops, next, &mut round, now) {
                    Ok(Step::GoOn) => {}
                    Ok(Step::DriverIsFull) => {
                        driver_is_full = true;
                        break;
                    }
                    Err(failure) => return Some((next.index, failure)),
                }
            }
            ops.check_starved(self.depth, driver_is_full);
            let starving = !ops.starved.is_empty();
            if starving || ops.starving {
                self.engine.arena.wait_for_memory(self.index(), starving);
                ops.starving = starving;
            }
            None
        })
    }

    /// Dequeues the next operation.
    #[inline(always)]
    fn next_to_submit(&self, ops: &mut Ops, round: &mut Round) -> Option<Next> {
        let retry = !round.starved_again && !ops.starved.is_empty() && !ops.memory_comes_first();
        let next = if retry { ops.starved.pop_front() } else { ops.staged.pop_front() };
        if let Some(index) = next {
            return Some(Next { index, picked: false, retry });
        }
        // Without memory only one is picked per turn: the queues drain by themselves, and keep their order
        // until then.
        let index = self.account.with(|account| {
            if account.queues.waiting() == 0 || round.picked_starving {
                return None;
            }
            round.picked_starving = round.starved_again;
            account.queues.dispatch(&mut ops.table, &self.engine)
        })?;
        let slot = ops.table.slot(index);
        ops.returning_queued -= u32::from(returns_memory(slot));
        Some(Next { index, picked: true, retry })
    }

    /// Submits one operation, or puts it into the queue in which it has to wait.
    ///
    /// # Errors
    /// The failure of an operation that cannot be submitted.
    #[inline(always)]
    fn submit_next(
        &self,
        ops: &mut Ops,
        next: Next,
        round: &mut Round,
        now: &mut Option<Ticks>,
    ) -> Result<Step, OpFailure> {
        let Next { index, picked, retry } = next;
        let mut slot = ops.table.slot(index);
        debug_assert_eq!(slot.state, SlotState::Staged, "an operation waits in one queue at most");
        debug_assert_eq!(slot.charge, 0, "an operation is charged once it has gone");
        if matches!(slot.continuation, Continuation::Orphan) {
            return Err(OpFailure::Errno(libc::ECANCELED));
        }
        if slot.kind == OpKind::Command {
            if !self.submit_command(index, slot)? {
                ops.staged.push_front(index);
                return Ok(Step::DriverIsFull);
            }
            ops.in_flight += 1;
            ops.commands += 1;
            return Ok(Step::GoOn);
        }
        let target = match slot.file {
            NO_FILE => Some(FileTarget::none()),
            file => self.file_target(file),
        };
        let Some(mut target) = target else { return Err(OpFailure::FileClosed) };
        let is_long = match slot.buffer {
            OpBuffer::Late => slot.len > ops.short_bytes_max,
            OpBuffer::LateApart => true,
            _ => false,
        };
        if is_long {
            if !self.begin_long(ops, index)? {
                return Ok(Step::GoOn);
            }
            slot = ops.table.slot(index);
        }
        let counted = picked
            || match self.account.with(|account| account.queues.admit(target.device, slot, &self.engine)) {
                Admission::Pass => false,
                Admission::Count => true,
                Admission::Wait => {
                    ops.returning_queued += u32::from(returns_memory(slot));
                    self.account.with(|account| {
                        account.queues.enqueue(&mut ops.table, target.device, index, &self.engine);
                    });
                    return Ok(Step::GoOn);
                }
            };
        if matches!(slot.buffer, OpBuffer::Late) {
            if round.starved_again {
                // Later reads wait behind, otherwise small reads would let a large read wait for ever.
                ops.starved.push_back(index);
                return Ok(Step::GoOn);
            }
            let some_returns = ops.returning + ops.returning_queued > 0;
            match self.take_memory(slot.len as usize, some_returns, &mut ops.starving) {
                Ok(buffer) => slot.buffer.move_from(&mut OpBuffer::Buffer(buffer)),
                Err(None) => {
                    round.starved_again = true;
                    self.counters.memory_waits.set(self.counters.memory_waits.get() + 1);
                    ops.starve(index, retry);
                    return Ok(Step::GoOn);
                }
                Err(Some(failure)) => return Err(failure),
            }
        }
        let (memory, region) = memory_of(slot)?;
        let rest = slot.len - slot.done;
        // An operation that the shard's thread executes itself is not split into pieces.
        let len = if counted && slot.flush != Flush::Blocking {
            let piece = |account: &mut Account| account.queues.piece_bytes(target.device, target.read_grain);
            rest.min(self.account.with(piece))
        } else {
            rest
        };
        let offset = slot.offset + u64::from(slot.done);
        let view = if target.may_load { self.loading_view(slot, offset, len) } else { None };
        if let Some(view) = view {
            (target.fd, target.fixed, target.route) = (view, false, 0);
        }
        // In place: a request that a function returned would be copied.
        let request = IoRequest {
            key: OpKey { index, generation: slot.generation },
            kind: slot.kind,
            fd: target.fd,
            fixed_file: target.fixed.then_some(slot.file),
            memory,
            region,
            len,
            offset,
            rw_flags: target.rw_flags,
            route: target.route,
            sync: slot.sync_to_take_along().filter(|_| len == rest),
            flush: slot.flush.resolve(ops.in_flight == 0 && ops.staged.is_empty()),
        };
        if !self.hand_over(slot, &request, target.device, now) {
            ops.staged.push_front(index);
            return Ok(Step::DriverIsFull);
        }
        if target.may_load && view.is_none() {
            self.note_miss(slot, offset, len);
        }
        if counted {
            let charge =
                |account: &mut Account| account.queues.charge(target.device, slot, len, &self.engine);
            slot.charge = self.account.with(charge);
        }
        ops.in_flight += 1;
        ops.returning += u32::from(brings_memory(slot));
        Ok(Step::GoOn)
    }

    /// Hands a request to the driver. Returns false if the driver is full; the slot is then as before.
    #[inline(always)]
    fn hand_over(&self, slot: &mut Slot, request: &IoRequest, device: u16, now: &mut Option<Ticks>) -> bool {
        // Recorded before the driver runs, which may execute a durable write itself.
        let staged = slot.stamp;
        let queued_ns = slot.sampled.then(|| self.pass(slot, now));
        // SAFETY: the slot owns the memory (`buffer`) and, through its use of the file's entry, the file;
        // both stay until `complete` has reported this key, or are leaked at the shard's end.
        let submitted = self.driver.with(|driver| unsafe { driver.submit(request) });
        let Ok(synced) = submitted else {
            slot.stamp = staged;
            return false;
        };
        slot.synced = synced;
        slot.state = SlotState::InFlight;
        slot.device = device;
        if synced {
            *now = None;
        }
        if let Some(queued_ns) = queued_ns {
            self.account
                .with(|account| account.flows.of(slot.class.0, slot.device).queued_ns.record(queued_ns));
        }
        true
    }

    /// Allocates memory for a short read. Returns `Err(None)` if the read must wait: some operation in flight will release memory.
    fn take_memory(
        &self,
        len: usize,
        some_returns: bool,
        starving: &mut bool,
    ) -> Result<crate::memory::arena::Buffer, Option<OpFailure>> {
        let arena = &self.engine.arena;
        match arena.alloc_local(len) {
            Ok(buffer) => return Ok(buffer),
            Err(AllocError::TooLarge) => return Err(Some(AllocError::TooLarge.into())),
            Err(AllocError::NoMemory { .. }) => {}
        }
        // A block returned between the first attempt and the flag is found by the second attempt.
        arena.wait_for_memory(self.index(), true);
        *starving = true;
        self.engine.release_memory();
        match arena.alloc_local(len) {
            Ok(buffer) => Ok(buffer),
            Err(_) if some_returns => Err(None),
            Err(_) => arena.alloc_overflow(len).map_err(|error| Some(error.into())),
        }
    }

    /// Returns the nanoseconds since a sampled operation's last stage, and stamps the stage that starts now. The clock is read once
    /// for all operations of a turn's step.
    fn pass(&self, slot: &mut Slot, now: &mut Option<Ticks>) -> u64 {
        let now = *now.get_or_insert_with(|| self.clock.now());
        self.clock.ns(now.saturating_sub(std::mem::replace(&mut slot.stamp, now)))
    }

    #[inline]
    pub(crate) fn completed(&self, key: OpKey, result: i32, now: &mut Option<Ticks>) {
        let verdict = self.ops.with(|ops| {
            let slot = ops.table.find(key).filter(|slot| slot.state == SlotState::InFlight)?;
            let orphan = matches!(slot.continuation, Continuation::Orphan);
            let (kind, returning) = (slot.kind, orphan || brings_memory(slot));
            let mut device_ns = None;
            if slot.sampled {
                let ns = self.pass(slot, now);
                device_ns = Some(ns);
                self.device_ns.set(ns);
                self.account.with(|account| account.flows.of(slot.class.0, slot.device).device_ns.record(ns));
            }
            if slot.charge != 0 {
                self.account.with(|account| account.queues.complete(slot, device_ns, &self.engine));
            }
            let verdict = self.judge(slot, result, orphan);
            if !matches!(verdict, Verdict::Finished(_)) {
                slot.state = SlotState::Staged;
                ops.staged.push_front(key.index);
            }
            ops.in_flight -= 1;
            ops.commands -= u32::from(kind == OpKind::Command);
            ops.returning -= u32::from(returning);
            debug_assert!(ops.returning <= ops.in_flight, "memory returns with operations in flight");
            Some(verdict)
        });
        match verdict {
            Some(Verdict::Finished(result)) => self.finish(key.index, result),
            Some(Verdict::Again) => {}
            Some(Verdict::NotDirect) => self.leave_direct(key.index),
            Some(Verdict::NotPollable) => self.tell_not_pollable(),
            None => self.counters.strays.set(self.counters.strays.get() + 1),
        }
    }

    /// Interprets a completion's result. A short transfer is never a success: the rest is requested until the
    /// end of the file is proven.
    #[inline]
    fn judge(&self, slot: &mut Slot, result: i32, orphan: bool) -> Verdict {
        if result < 0 {
            if result == NOT_POLLABLE {
                self.account.with(|account| account.files.leave_route(slot.file));
                return if orphan || slot.cancelling {
                    Verdict::Finished(Err(OpFailure::Errno(libc::ECANCELED)))
                } else {
                    Verdict::NotPollable
                };
            }
            // A command that failed may have had an effect, so it is not repeated.
            if slot.kind == OpKind::Command {
                return Verdict::Finished(Err(OpFailure::Errno(-result)));
            }
            // The kernel cancels an operation for which it has no worker thread; nothing was done then.
            let unasked = result == -libc::ECANCELED && !slot.cancelling;
            let again = unasked || matches!(-result, libc::EAGAIN | libc::EINTR);
            if again && !orphan && !slot.cancelling && slot.retries < RETRIES_MAX {
                slot.retries += if unasked { RETRY_WITHOUT_WORKER } else { 1 };
                return Verdict::Again;
            }
            // The page cache may lack memory for what the device has: again, past the page cache.
            let was_load = slot.may_load() && slot.done == 0;
            if was_load && !orphan && !slot.cancelling && self.may_load(slot.file) {
                slot.retries = 1;
                return Verdict::Again;
            }
            let result = if unasked { -libc::EAGAIN } else { result };
            // An operation that the engine's end cancelled fails for that reason.
            let ended = result == -libc::ECANCELED && slot.cancelling && self.inbox.is_ending();
            let failure = if ended {
                OpFailure::EngineClosed
            } else {
                OpFailure::of_result(result, slot.kind, slot.offset + u64::from(slot.len))
            };
            // Once: a second refusal has another reason.
            let may_go_on = !orphan && !slot.cancelling && slot.retries < RETRIES_MAX;
            if failure.refuses_transfer(slot.kind) && may_go_on && self.may_refuse_direct(slot.file) {
                slot.retries = RETRIES_MAX;
                return Verdict::NotDirect;
            }
            return Verdict::Finished(Err(failure));
        }
        match slot.kind {
            OpKind::Nop | OpKind::SyncData | OpKind::SyncAll => Verdict::Finished(Ok(slot.done)),
            OpKind::Command => Verdict::Finished(Ok(result as u32)),
            OpKind::Read => {
                slot.done += result as u32;
                if crate::_is_broken!(ShortReadIsSuccess) && slot.done < slot.len && result > 0 && !orphan {
                    return Verdict::Finished(Ok(slot.len));
                }
                let grain = || self.file_target(slot.file).map_or(1, |target| target.read_grain);
                if !orphan && read_goes_on(slot.len, slot.done, result as u32, grain) {
                    Verdict::Again
                } else {
                    Verdict::Finished(Ok(slot.done.min(slot.len)))
                }
            }
            OpKind::Write => {
                let whole = slot.synced && result == 0;
                slot.done = if whole { slot.len } else { slot.done + result as u32 };
                match write_goes_on(slot.len, slot.done, result as u32) {
                    Ok(false) => {}
                    Ok(true) => return Verdict::Again,
                    Err(failure) => return Verdict::Finished(Err(failure)),
                }
                match slot.durability.sync_kind().filter(|_| !crate::_is_broken!(IgnoredFlush)) {
                    // The sync is the same operation's second half: same slot, same key, submitted with this turn.
                    Some(sync) => {
                        slot.kind = sync;
                        if whole { Verdict::Finished(Ok(slot.done)) } else { Verdict::Again }
                    }
                    None => Verdict::Finished(Ok(slot.done)),
                }
            }
        }
    }

    /// Ends a staged operation that will not be submitted.
    pub(crate) fn finish_with(&self, index: u32, failure: OpFailure) {
        self.finish(index, Err(failure));
    }

    /// Ends an operation that is not in flight: counts it, releases the file, and runs its continuation.
    #[inline]
    fn finish(&self, index: u32, result: OpResult) {
        let (task, unused) = self.ops.with(|ops| {
            let slot = ops.table.slot(index);
            debug_assert!(
                matches!(slot.state, SlotState::Staged | SlotState::InFlight) && slot.charge == 0,
                "an operation ends once, and its charge was given back"
            );
            if slot.has_allowance {
                end_long(&self.engine.arena, slot);
            }
            let file = std::mem::replace(&mut slot.file, NO_FILE);
            let bytes = result.unwrap_or_default();
            let ended = EndedOp {
                kind: slot.kind,
                bytes,
                asked: slot.asked,
                has_failed: result.is_err(),
                after_write: slot.done > 0,
            };
            let is_unused = self.account.with(|account| account.end(file, slot.class, slot.device, ended));
            slot.result = result;
            slot.state = SlotState::Done;
            let task = match slot.continuation {
                Continuation::Task(task) => {
                    slot.continue_after(Continuation::Orphan);
                    Some(task)
                }
                _ => None,
            };
            (task, is_unused.then_some(file))
        });
        if let Some(file) = unused {
            self.remove_file(file);
        }
        match task {
            Some(task) => self.executor.wake_task(task),
            None => self.finish_elsewhere(index, result),
        }
    }

    /// Does the rest of [`finish`](Self::finish) for operations that no task's own future waits for.
    fn finish_elsewhere(&self, index: u32, result: OpResult) {
        if let Some(waker) = self.ops.with(|ops| ops.table.slot(index).take_waker()) {
            return wakes::wake(waker);
        }
        let (continuation, buffer, number) = self.ops.with(|ops| {
            let slot = ops.table.slot(index);
            let continuation = std::mem::replace(&mut slot.continuation, Continuation::Orphan);
            let buffer = slot.buffer.take();
            let number = slot.offset as u32;
            ops.table.give_back(index);
            (continuation, buffer, number)
        });
        match continuation {
            Continuation::Remote(cell) => cell.finish(OpOutcome { result, buffer }),
            Continuation::Batch { batch, piece } => {
                read_many::piece_done(self, batch, piece, OpOutcome { result, buffer });
            }
            Continuation::Walk { walk, place } => {
                walk::arrived(self, walk, place, OpOutcome { result, buffer });
            }
            Continuation::Command => {
                if let OpBuffer::Command(owner) = buffer {
                    owner.ended(number, result.map_err(|failure| failure.into_error("command", None)));
                }
            }
            Continuation::Orphan | Continuation::Wake(_) | Continuation::Task(_) => drop(buffer),
        }
        self.notify_slot_room();
    }

    /// Registers arena regions that appeared since the last check. A refusal is reported once and costs only
    /// speed.
    #[inline]
    fn register_new_regions(&self) {
        let known = self.known_regions.get();
        if known != self.engine.arena.regions() {
            self.register_regions_from(known);
        }
    }

    #[cold]
    fn register_regions_from(&self, known: usize) {
        self.tell_degradations();
        let arena = &self.engine.arena;
        let mut index = known;
        if known == NOT_LOOKED {
            // The first operation's memory is registered too, and it is this one that learns of a refusal.
            arena.begin();
            index = 0;
        }
        while let Some((start, len)) = arena.region(index) {
            let registered = self.driver.with(|driver| driver.register_region(index as u16, start, len));
            if let Err(error) = registered {
                self.engine.degrade_once(
                    "registered buffers",
                    &format!("{len} bytes of I/O memory are not registered: {error}"),
                    "raise RLIMIT_MEMLOCK (ulimit -l), grant CAP_IPC_LOCK, or lower Config::arena_bytes",
                );
            }
            index += 1;
        }
        self.known_regions.set(index);
    }
}
