//! A shard's inbox: the part of the shard that other threads may access at any time. (The rest of a visited shard is its visitor's.)

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::Waker;

use crossbeam_utils::CachePadded;

use crate::base::priority::Gate;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crate::base::sync::{ArrayQueue, Mutex, SegQueue};
use crate::base::wakes;
use crate::driver::WakeHandle;
use crate::io::op::{OpBuffer, OpFailure, OpOutcome};
use crate::reactor::read_many::Batch;
use crate::reactor::shard::Shard;
use crate::reactor::shard::executor::Runnable;
use crate::reactor::shard::optable::SLOTS_MAX;
use crate::reactor::shard::remote::RemotePtr;
use crate::reactor::shard::remote_list::RemoteList;
use crate::reactor::walk::{self, WALKS_MAX};

/// The number of messages, and of late calls, of a turn before tasks and completions have their turn.
pub(crate) const MESSAGES_PER_TURN: usize = 256;

/// Work for the shard to start.
pub(crate) enum Message {
    Op(RemotePtr),
    Batch(Arc<Batch>),
    Walks(Arc<walk::Batch>),
    /// Rare requests: start a task, report the statistics, start to close.
    Call(Call),
}

/// A function that a shard runs on its thread.
pub(crate) type Call = Box<dyn FnOnce(&Shard) + Send>;

/// The shard's view of the calls that found an inbox full. It receives them after all older messages of their senders, so that
/// calls of one thread stay in order.
#[derive(Default)]
pub(crate) struct LateCalls {
    /// A pair `(calls, messages)`: this many calls are received once this many messages have been received.
    due: Cell<Option<(usize, usize)>>,
}

impl LateCalls {
    /// Checks for calls that found the inbox full; runs before messages are received.
    #[inline]
    pub(crate) fn look(&self, inbox: &Inbox) {
        if self.due.get().is_none() && inbox.has_calls() {
            self.count(inbox);
        }
    }

    #[inline(never)]
    fn count(&self, inbox: &Inbox) {
        let _alone = inbox.gate.enter();
        // Calls are counted first: any message that the sender of one of them sent before it is by now in the queue, or was
        // received.
        let calls = inbox.calls.len();
        self.due.set(Some((calls, inbox.len())));
    }

    /// Receives some calls after all earlier messages, counting the `taken` messages of this turn.
    #[inline]
    pub(crate) fn take(&self, inbox: &Inbox, taken: usize, run: impl FnMut(Call)) {
        if let Some((calls, ahead)) = self.due.get() {
            self.take_due(inbox, calls, ahead.saturating_sub(taken), run);
        }
    }

    #[inline(never)]
    fn take_due(&self, inbox: &Inbox, mut calls: usize, ahead: usize, mut run: impl FnMut(Call)) {
        let mut taken = 0;
        while ahead == 0 && calls > 0 && taken < MESSAGES_PER_TURN {
            let Some(call) = inbox.pop_call() else {
                calls = 0;
                break;
            };
            run(call);
            (calls, taken) = (calls - 1, taken + 1);
        }
        self.due.set((calls > 0).then_some((calls, ahead)));
    }
}

/// The part of a shard that is `Sync`: the inbox and the ways to leave a notice without waiting.
pub(crate) struct Inbox {
    /// Unique in the process, so that a future can distinguish its own shard from any other.
    pub(crate) uid: u32,
    /// Position among the engine's shards.
    pub(crate) index: usize,
    /// Submissions. Bounded; senders wait while it is full. Made for the first message: most rings never get one.
    messages: OnceLock<ArrayQueue<Message>>,
    depth: usize,
    /// Calls that found that queue full. Unbounded: the work that a call starts needs more memory than the call itself.
    calls: SegQueue<Call>,
    /// Set for good before the first of these calls: until then no turn needs to check the queue.
    had_calls: AtomicBool,
    /// Cancels, adoptions and closes. Never full.
    pub(crate) remote_list: RemoteList,
    /// Tasks woken by other threads; at most one entry per task.
    runnables: SegQueue<Runnable>,
    /// Guards both queues.
    gate: Gate,
    /// Slots, and walks, whose local future was dropped on another thread.
    pub(crate) dropped: DropBitmap,
    pub(crate) dropped_walks: DropBitmap,
    sleeping: CachePadded<AtomicBool>,
    ending: AtomicBool,
    closed: AtomicBool,
    lost: AtomicBool,
    /// The number of files whose home is this shard. New files are assigned to the shard with the fewest.
    pub(crate) files: AtomicUsize,
    pub(crate) kicks: AtomicU64,
    /// Visited shards that this one is to visit, a bit for each by its number. Stays 0 without any.
    visits: AtomicU64,
    /// The arena has called: operations that wait here for memory are to try again.
    memory_called: AtomicBool,
    room_waiters: AtomicUsize,
    room: Mutex<VecDeque<Waker>>,
    wake: OnceLock<WakeHandle>,
    /// The shard's driver carries out commands.
    takes_commands: AtomicBool,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("uid", &self.uid).field("messages", &self.len()).finish()
    }
}

impl Inbox {
    pub(crate) fn new(index: usize, depth: usize) -> Inbox {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
        Inbox {
            uid: NEXT.fetch_add(1, Ordering::Relaxed),
            index,
            // A model checker does not see the publication of a queue that is made later.
            messages: if cfg!(all(forebay_loom, test)) {
                OnceLock::from(ArrayQueue::new(depth.max(1)))
            } else {
                OnceLock::new()
            },
            depth: depth.max(1),
            calls: SegQueue::new(),
            had_calls: AtomicBool::new(false),
            remote_list: RemoteList::new(),
            runnables: SegQueue::new(),
            gate: Gate::default(),
            dropped: DropBitmap::new(SLOTS_MAX),
            dropped_walks: DropBitmap::new(WALKS_MAX),
            sleeping: CachePadded::new(AtomicBool::new(false)),
            ending: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            files: AtomicUsize::new(0),
            kicks: AtomicU64::new(0),
            visits: AtomicU64::new(0),
            memory_called: AtomicBool::new(false),
            room_waiters: AtomicUsize::new(0),
            room: Mutex::new(VecDeque::new()),
            wake: OnceLock::new(),
            takes_commands: AtomicBool::new(false),
        }
    }

    /// Returns the inbox for a shard whose thread may be a real-time one.
    pub(crate) fn in_real_time(mut self, real_time: bool) -> Inbox {
        self.gate = Gate::new(real_time);
        if real_time {
            // A thread that makes it might be preempted meanwhile.
            self.queue();
        }
        self
    }

    #[inline]
    fn queue(&self) -> &ArrayQueue<Message> {
        self.messages.get_or_init(|| ArrayQueue::new(self.depth))
    }

    fn len(&self) -> usize {
        self.messages.get().map_or(0, ArrayQueue::len)
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.messages.get().is_none_or(ArrayQueue::is_empty)
    }

    fn push(&self, message: Message) -> Result<(), Message> {
        let _alone = self.gate.enter();
        self.queue().push(message)
    }

    /// Sends a message and wakes the shard if it sleeps. If the inbox is full, returns the message, and `waker` is woken when it
    /// has room. After the shard's end the message is completed here with a failure.
    pub(crate) fn send(&self, message: Message, waker: Option<&Waker>) -> Result<(), Message> {
        let message = match self.push(message) {
            Ok(()) => return self.sent(),
            Err(message) => message,
        };
        if let Some(waker) = waker {
            // Cloned before the lock is taken: cloning may run the program's code.
            let waker = waker.clone();
            let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
            room.push_back(waker);
            self.room_waiters.store(room.len(), Ordering::SeqCst);
        }
        // The shard may have made room before it could see the waiter.
        match self.push(message) {
            Ok(()) => self.sent(),
            Err(message) => {
                self.kick();
                Err(message)
            }
        }
    }

    /// Sends a call and never waits: a call that waited for room would start only if its sender were polled again. Calls of one
    /// thread stay in order. After the shard's end the call is dropped, and its captured values report the failure.
    pub(crate) fn call(&self, call: Call) {
        {
            let _alone = self.gate.enter();
            if !self.calls.is_empty() {
                self.calls.push(call);
            } else if let Err(Message::Call(call)) = self.queue().push(Message::Call(call)) {
                // Seen by a shard that is about to sleep because of the fence in `sent`.
                self.had_calls.store(true, Ordering::Relaxed);
                self.calls.push(call);
            }
        }
        // The result is always `Ok`.
        let _ = self.sent();
    }

    fn sent(&self) -> Result<(), Message> {
        // SeqCst on both sides: either the shard's last drain sees the message, or this load sees that the
        // inbox is closed.
        fence(Ordering::SeqCst);
        if self.closed.load(Ordering::SeqCst) {
            self.refuse_all();
            // A sender that found the inbox full of the messages just refused waits for room, which no shard reports any more.
            self.notify_room(usize::MAX);
        } else {
            // The fence above also serves this.
            self.kick_fenced();
        }
        Ok(())
    }

    /// Pops the next message; called by the shard.
    #[inline]
    pub(crate) fn pop(&self) -> Option<Message> {
        // The queue's own check for emptiness costs a memory barrier; this one costs two loads.
        if self.is_empty() {
            return None;
        }
        self.pop_any()
    }

    #[inline]
    fn pop_any(&self) -> Option<Message> {
        let messages = self.messages.get()?;
        let _alone = self.gate.enter();
        messages.pop()
    }

    #[inline]
    fn has_calls(&self) -> bool {
        self.had_calls.load(Ordering::Relaxed) && !self.calls.is_empty()
    }

    /// Pops the next call that found the inbox full.
    fn pop_call(&self) -> Option<Call> {
        let _alone = self.gate.enter();
        self.calls.pop()
    }

    /// Wakes senders that found the inbox full, one for each of the `taken` messages in the order of arrival, or all if no message
    /// is left: a sender that does not return then blocks no other, and messages that are left cause a next turn. Called by the
    /// shard after it received messages.
    #[inline]
    pub(crate) fn notify_room(&self, taken: usize) {
        if self.room_waiters.load(Ordering::SeqCst) != 0 {
            self.wake_waiters(taken);
        }
    }

    // Separate from the check that each turn of a shard makes. With both in one function, saving registers
    // for the rarely executed part cost more than the check.
    #[inline(never)]
    fn wake_waiters(&self, taken: usize) {
        let waiting: VecDeque<Waker> = {
            let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
            let most = if self.is_empty() { usize::MAX } else { taken };
            let most = if crate::_is_broken!(OneSenderWoken) { 1 } else { most };
            let woken =
                if most < room.len() { room.drain(..most).collect() } else { std::mem::take(&mut *room) };
            self.room_waiters.store(room.len(), Ordering::SeqCst);
            woken
        };
        wakes::wake_each(waiting);
    }

    /// Passes a task that another thread woke to its shard.
    // Inlined, its registers would be saved at each wake-up, of which most never get here.
    #[inline(never)]
    pub(crate) fn push_runnable(&self, runnable: Runnable) {
        {
            let _alone = self.gate.enter();
            self.runnables.push(runnable);
        }
        self.kick();
    }

    #[inline]
    pub(crate) fn pop_runnable(&self) -> Option<Runnable> {
        // As in `pop`.
        if self.runnables.is_empty() {
            return None;
        }
        self.pop_any_runnable()
    }

    // Separate from the check for the same reason as `wake_waiters`.
    #[inline(never)]
    fn pop_any_runnable(&self) -> Option<Runnable> {
        let _alone = self.gate.enter();
        self.runnables.pop()
    }

    /// Returns whether the shard has no work to do before it sleeps.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.is_empty()
            && self.runnables.is_empty()
            && self.remote_list.is_empty()
            && self.dropped.is_empty()
            && self.dropped_walks.is_empty()
            && !self.has_calls()
            && self.visits.load(Ordering::Relaxed) == 0
            && !self.memory_called.load(Ordering::Relaxed)
            && !self.is_ending()
    }

    /// Calls those that wait for memory on this shard. Kept until it has looked: it may be on its way to sleep.
    pub(crate) fn call_memory(&self) {
        self.memory_called.store(true, Ordering::Release);
        self.kick();
    }

    /// Clears such a call; called by the shard before it tries again.
    #[inline]
    pub(crate) fn take_memory_call(&self) {
        if self.memory_called.load(Ordering::Relaxed) {
            self.memory_called.swap(false, Ordering::Acquire);
        }
    }

    /// Asks this shard to visit the one with that number.
    #[cfg(any(
        feature = "_sim",
        all(feature = "tokio", target_os = "linux", not(forebay_no_uring)),
        all(test, forebay_loom)
    ))]
    pub(crate) fn ask_visit(&self, index: usize) {
        self.visits.fetch_or(1 << index, Ordering::Release);
        self.kick();
    }

    /// Returns the shards to visit, a bit for each; called by the shard.
    #[inline]
    #[cfg(any(
        feature = "_sim",
        all(feature = "tokio", target_os = "linux", not(forebay_no_uring)),
        all(test, forebay_loom)
    ))]
    pub(crate) fn take_visits(&self) -> u64 {
        if self.visits.load(Ordering::Relaxed) == 0 { 0 } else { self.visits.swap(0, Ordering::Acquire) }
    }

    /// Makes senders kick the shard from now on; called by the shard before it sleeps. It must check
    /// everything once more after this.
    #[inline]
    pub(crate) fn about_to_sleep(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        // Paired with the fence in `kick`: a sender that does not see the flag has pushed before the shard's
        // next check.
        fence(Ordering::SeqCst);
    }

    /// Lets senders wake a shard without a thread from now on. Returns whether no earlier work is left.
    #[inline]
    #[cfg(any(
        feature = "_sim",
        all(feature = "tokio", target_os = "linux", not(forebay_no_uring)),
        all(test, forebay_loom)
    ))]
    pub(crate) fn settles(&self) -> bool {
        self.about_to_sleep();
        self.is_quiet()
    }

    #[inline]
    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Wakes the shard if it sleeps, once for everything sent before it runs.
    #[inline]
    pub(crate) fn kick(&self) {
        fence(Ordering::SeqCst);
        self.kick_fenced();
    }

    #[inline]
    fn kick_fenced(&self) {
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::AcqRel) {
            self.kicks.fetch_add(1, Ordering::Relaxed);
            if let Some(wake) = self.wake.get() {
                wake.wake();
            }
        }
    }

    /// Requests that the shard end.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
        self.kick();
    }

    #[inline]
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    pub(crate) fn set_wake_handle(&self, wake: WakeHandle) {
        let first = self.wake.set(wake);
        debug_assert!(first.is_ok(), "a shard has one wake handle");
    }

    /// Returns whether the shard's driver carries out commands.
    #[inline]
    pub(crate) fn takes_commands(&self) -> bool {
        self.takes_commands.load(Ordering::Relaxed)
    }

    pub(crate) fn set_takes_commands(&self, takes: bool) {
        self.takes_commands.store(takes, Ordering::Relaxed);
    }

    /// Rejects every later message and fails those that wait; called at the shard's end.
    pub(crate) fn close(&self, lost: bool) {
        self.lost.store(lost, Ordering::SeqCst);
        self.closed.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.refuse_all();
        self.notify_room(usize::MAX);
    }

    /// Returns the reason for which messages are rejected, once the inbox is closed.
    pub(crate) fn failure(&self) -> Option<OpFailure> {
        self.closed.load(Ordering::SeqCst).then(|| {
            if self.lost.load(Ordering::SeqCst) { OpFailure::ShardLost } else { OpFailure::EngineClosed }
        })
    }

    fn refuse_all(&self) {
        let failure = self.failure().unwrap_or(OpFailure::EngineClosed);
        while let Some(message) = self.pop_any().or_else(|| self.pop_call().map(Message::Call)) {
            let refuse = || match message {
                Message::Op(cell) => {
                    // SAFETY: the cell was popped from the inbox here, so this holds it as a message.
                    let sent = unsafe { cell.take_request() };
                    let buffer = sent.map_or(OpBuffer::None, |sent| sent.request.buffer);
                    cell.finish(OpOutcome { result: Err(failure), buffer });
                }
                Message::Batch(batch) => batch.refuse(failure),
                Message::Walks(batch) => batch.refuse(failure),
                // When dropped, its captured values report the failure.
                Message::Call(call) => drop(call),
            };
            // A panic in a waker or a destructor of the program must not keep the other senders from their
            // results.
            let _ = catch_unwind(AssertUnwindSafe(refuse));
        }
    }
}

/// Places in a table whose local future was dropped on another thread: one bit per place, so that reporting a
/// drop needs no memory. It takes 128 KiB of addresses per shard for operations, and memory where bits were set: the price of a
/// destructor that allocates nothing.
pub(crate) struct DropBitmap {
    words: Box<[AtomicU64]>,
    any: AtomicBool,
}

impl DropBitmap {
    fn new(places: u32) -> DropBitmap {
        // A model checker follows each word, so it gets only two.
        let words = if cfg!(all(forebay_loom, test)) { 2 } else { places.div_ceil(64) };
        DropBitmap { words: zeroed(words as usize), any: AtomicBool::new(false) }
    }

    /// Reports that the future of a place was dropped on another thread, which then kicks the shard. The place stays as it is until the
    /// shard has read this, so the bit cannot mean another use of it.
    pub(crate) fn mark(&self, index: u32) {
        if let Some(word) = self.words.get(index as usize / 64) {
            word.fetch_or(1 << (index % 64), Ordering::Release);
            // A swap: the shard that finds the flag set is ordered after all threads that set it, not only
            // after the last.
            self.any.swap(true, Ordering::Release);
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// Visits the places marked since the last call, among the first `capacity`.
    pub(crate) fn take(&self, capacity: u32, mut visit: impl FnMut(u32)) {
        if self.is_empty() || !self.any.swap(false, Ordering::Acquire) {
            return;
        }
        for (at, word) in self.words.iter().enumerate().take(capacity.div_ceil(64) as usize) {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                let index = at as u32 * 64 + bits.trailing_zeros();
                debug_assert!(index < capacity, "a future's place exists while it is marked");
                visit(index);
                bits &= bits - 1;
            }
        }
    }
}

/// Returns that many zeros without touching them, so that the system gives pages for them when they are first used.
#[cfg(not(all(forebay_loom, test)))]
fn zeroed(words: usize) -> Box<[AtomicU64]> {
    use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
    let Ok(layout) = Layout::array::<AtomicU64>(words) else { return Box::default() };
    if layout.size() == 0 {
        return Box::default();
    }
    // SAFETY: the layout has a size. All zeros are an `AtomicU64` of 0, and a box of this length frees with this layout.
    unsafe {
        let start = alloc_zeroed(layout).cast::<AtomicU64>();
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, words))
    }
}

#[cfg(all(forebay_loom, test))]
fn zeroed(words: usize) -> Box<[AtomicU64]> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

#[cfg(all(test, forebay_loom))]
mod loom_tests;
#[cfg(all(test, not(forebay_loom)))]
mod tests;
#[cfg(all(test, forebay_loom))]
mod visits_loom_tests;
