//! A batch in progress: shared by the future that waits for it and the shard that runs it.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};

use crossbeam_queue::ArrayQueue;

use super::long::LongRanges;
use super::plan::Plan;
use super::range_error;
use crate::base::class::Class;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::in_flight::Stay;
use crate::base::paused_clock;
use crate::base::priority::Gate;
use crate::base::sync::AtomicWaker;
use crate::base::wakes;
use crate::io::op::OpFailure;
use crate::memory::arena::{Packer, Ticket};
use crate::memory::block::Block;
use crate::memory::lent::LentMemory;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::open_file::FileCore;
use crate::reactor::ranges::AlignedRange;
use crate::reactor::shard::remote_list::{NodeKind, RemoteNode};

type PieceResult = Option<Result<Block>>;
type Results = ArrayQueue<(usize, Result<Block>)>;

/// A batch of ranges; see the module's text. `progress` and `collected` belong to the shard until `done`.
#[repr(C)]
pub(crate) struct Batch {
    node: RemoteNode,
    /// The node is in the shard's list.
    queued: AtomicBool,
    pub(crate) cancelled: AtomicBool,
    pub(crate) done: AtomicBool,
    /// The stream's queue was full: the consumer notifies the shard once it has consumed results.
    stalled: AtomicBool,
    shard: AtomicUsize,
    waker: AtomicWaker,
    files: Box<[Arc<FileCore>]>,
    pub(crate) class: Class,
    pub(crate) depth: u32,
    /// Each result pins little more than its own bytes.
    pub(crate) detached: bool,
    pub(crate) plan: Plan,
    /// For streams: results on their way to the consumer.
    queue: Option<Results>,
    /// Serializes access to the queue when the shard is a real-time thread.
    gate: Gate,
    /// The program's memory that results are read into, and the place of each range in it.
    destination: UnsafeCell<Option<LentMemory>>,
    starts: Vec<u64>,
    /// Without a stream: a slot for each range's result.
    collected: UnsafeCell<Vec<PieceResult>>,
    pub(crate) progress: UnsafeCell<Progress>,
    /// Of a stream: the reason for missing results.
    failure: OnceLock<OpFailure>,
    /// Set when the future is dropped: the files are in flight for as long as the shard may have the batch. Below `files`, so that it
    /// is dropped after them.
    left: UnsafeCell<Vec<Stay>>,
}

/// State that only the shard uses.
#[derive(Default)]
pub(crate) struct Progress {
    /// Index in the shard's list of batches.
    pub(crate) place: u32,
    pub(crate) begun: bool,
    pub(crate) next_piece: u32,
    pub(crate) in_flight: u32,
    /// The present limit of requests in flight; below the batch's depth after one found no memory.
    pub(crate) depth: u32,
    /// Requests that found no memory while others were in flight, to be made again.
    pub(crate) again: VecDeque<u32>,
    /// Ranges that are read in parts.
    pub(crate) long: LongRanges,
    /// The place in the line of the long range that starts next.
    pub(crate) ticket: Option<Ticket>,
    /// The request that found no memory although it was alone, of a batch into the program's memory: it uses ordinary memory for
    /// its copy.
    pub(crate) apart: Option<u32>,
    /// It is among its shard's batches that are to be tried again.
    pub(crate) is_blocked: bool,
    /// Ranges (indices into `order`) of failed merged requests, to be read one by one.
    pub(crate) split: VecDeque<u32>,
    /// Places the results that are copied.
    pub(crate) packer: Option<Packer>,
    /// Bytes of I/O memory that collected results keep, and the limit for them once it is known.
    pub(crate) kept_bytes: usize,
    pub(crate) kept_bytes_max: Option<usize>,
    /// Results that found the stream's queue full.
    waiting: VecDeque<(usize, Result<Block>)>,
}

impl Progress {
    /// Releases the memory and the place in the line of ranges that get no result. Requests in flight keep theirs.
    pub(crate) fn give_up(&mut self) {
        self.long = LongRanges::default();
        self.ticket = None;
    }
}

/// Marks a piece number as the index in `order` of a single range.
pub(crate) const SINGLE: u32 = 1 << 31;
/// Marks it as the number of a part of a long range.
pub(crate) const PART: u32 = 1 << 30;

/// Returns whether a piece number is that of a part of a long range.
pub(crate) const fn is_part(piece: u32) -> bool {
    piece & (PART | SINGLE) == PART
}

// SAFETY: `progress` is touched by the shard's thread only, from `begin` until the batch leaves its list, and
// before that by the thread that refuses the unsent message. `collected` and `destination` are used by the same until `done`
// is stored with Release, and by the future only after it loaded `done` with Acquire. `left` is the future's. The rest is atomic
// or never changes.
unsafe impl Send for Batch {}
// SAFETY: as the comment above argues for every field.
unsafe impl Sync for Batch {}

impl Batch {
    /// Creates a batch. `queue` is the capacity of a stream's queue; without one the results are collected.
    pub(crate) fn new(
        files: Box<[Arc<FileCore>]>,
        plan: Plan,
        class: Class,
        depth: u32,
        queue: Option<usize>,
        detached: bool,
    ) -> Arc<Batch> {
        let mut collected = Vec::new();
        if queue.is_none() {
            collected.resize_with(plan.ranges.len(), || None);
        }
        let gate = Gate::new(files[0].engine().config.is_real_time());
        Arc::new(Batch {
            node: RemoteNode::new(NodeKind::Batch),
            queued: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            done: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            shard: AtomicUsize::new(0),
            waker: AtomicWaker::new(),
            files,
            class,
            depth,
            detached,
            plan,
            queue: queue.map(ArrayQueue::new),
            gate,
            destination: UnsafeCell::new(None),
            starts: Vec::new(),
            collected: UnsafeCell::new(collected),
            progress: UnsafeCell::new(Progress::default()),
            failure: OnceLock::new(),
            left: UnsafeCell::default(),
        })
    }

    /// Has the result of each range read to its place in `memory`; for a batch that was just made.
    pub(crate) fn read_into(self: &mut Arc<Self>, memory: LentMemory, starts: Vec<u64>) {
        let batch = Arc::get_mut(self);
        debug_assert!(batch.is_some(), "a batch gets its memory before it is shared");
        let Some(batch) = batch else { return };
        debug_assert_eq!(starts.len(), batch.plan.ranges.len(), "every range has its place");
        batch.starts = starts;
        *batch.destination.get_mut() = Some(memory);
    }

    /// Returns whether results are read into the program's memory; on the batch's shard.
    pub(crate) fn has_destination(&self) -> bool {
        // SAFETY: as for `destination`.
        unsafe { (*self.destination.get()).is_some() }
    }

    /// Returns the place of a range in the program's memory; on the batch's shard.
    pub(crate) fn destination(&self, number: u32) -> Option<LentMemory> {
        // SAFETY: the memory belongs to the shard until `done`, and this side only reads.
        let memory = unsafe { &*self.destination.get() };
        memory.as_ref().map(|memory| memory.from(self.starts[number as usize] as usize))
    }

    /// Gives the program's memory up: after the end, or before the batch was sent.
    ///
    /// # Safety
    /// `done` was seen, or no shard has got the batch.
    pub(crate) unsafe fn forget_destination(&self) {
        // SAFETY: the caller's promise: the shard does not use it any more, or never did.
        unsafe { *self.destination.get() = None };
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Returns the first file, whose shard runs the batch.
    pub(crate) fn first_file(&self) -> &Arc<FileCore> {
        &self.files[0]
    }

    /// Returns the file of a range.
    pub(crate) fn file_of(&self, number: u32) -> &Arc<FileCore> {
        &self.files[self.plan.ranges.file(number) as usize]
    }

    pub(crate) fn engine(&self) -> &Arc<EngineShared> {
        self.files[0].engine()
    }

    pub(crate) fn files(&self) -> &[Arc<FileCore>] {
        &self.files
    }

    pub(crate) fn set_shard(&self, shard: usize) {
        self.shard.store(shard, Ordering::Relaxed);
    }

    pub(crate) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// Returns the reason for the missing results of a stream that is over.
    pub(crate) fn failure(&self) -> Option<OpFailure> {
        self.failure.get().copied()
    }

    /// Returns the error of a range that gets no result.
    pub(crate) fn refusal(&self, failure: OpFailure, number: usize) -> Error {
        let error = failure.into_error("read_many", None);
        range_error(self, error, number as u32)
    }

    /// Returns every range's result, once; for the future.
    pub(crate) fn poll_all(&self, waker: &Waker) -> Poll<Result<Vec<Result<Block>>>> {
        let waited = paused_clock::poll(waker, |waker| {
            if self.is_done_or_wakes(waker) { Poll::Ready(()) } else { Poll::Pending }
        });
        if waited.is_pending() {
            return Poll::Pending;
        }
        // SAFETY: `done` was seen, so the shard writes no more, and this side has one future.
        let collected = std::mem::take(unsafe { &mut *self.collected.get() });
        let lost = |number: usize| {
            let error = Error::new(ErrorKind::Cancelled, "read_many");
            Err(range_error(self, error, number as u32))
        };
        let results = collected.into_iter().enumerate();
        Poll::Ready(Ok(results.map(|(number, answer)| answer.unwrap_or_else(|| lost(number))).collect()))
    }

    /// Returns the next result that is there; for the stream.
    pub(crate) fn poll_next(self: &Arc<Self>, waker: &Waker) -> Poll<Option<(usize, Result<Block>)>> {
        let Some(queue) = &self.queue else { return Poll::Ready(None) };
        let pop = || {
            let _alone = self.gate.enter();
            queue.pop()
        };
        let mut taken = pop();
        if taken.is_none() {
            let waited = paused_clock::poll(waker, |waker| {
                let done = self.is_done_or_wakes(waker);
                // Returns a result that arrived between the check and the registration.
                match pop() {
                    None if !done => Poll::Pending,
                    taken => Poll::Ready(taken),
                }
            });
            taken = std::task::ready!(waited);
            if taken.is_none() {
                return Poll::Ready(None);
            }
        }
        if queue.len() <= queue.capacity() / 2 && self.stalled.swap(false, Ordering::AcqRel) {
            self.notify_shard();
        }
        Poll::Ready(taken)
    }

    fn is_done_or_wakes(&self, waker: &Waker) -> bool {
        if self.done.load(Ordering::Acquire) {
            return true;
        }
        self.waker.register(waker);
        self.done.load(Ordering::Acquire)
    }

    /// Cancels the batch, when its future is dropped: no further request starts, and arriving results are dropped.
    pub(crate) fn cancel(self: &Arc<Self>) {
        self.cancelled.store(true, Ordering::Release);
        if !self.done.load(Ordering::Acquire) {
            let stays = self.files.iter().map(|core| core.stay()).collect();
            // SAFETY: the future's drop alone calls this, once; else it is dropped with the batch, of which this side has a count.
            unsafe { *self.left.get() = stays };
            self.notify_shard();
        }
    }

    fn notify_shard(self: &Arc<Self>) {
        let Some(inbox) = self.engine().inbox(self.shard.load(Ordering::Relaxed)) else { return };
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let raw = Arc::into_raw(self.clone()).cast_mut().cast::<RemoteNode>();
        // SAFETY: a pointer out of an Arc is never null.
        let node = unsafe { NonNull::new_unchecked(raw) };
        // SAFETY: the flag says that the node is in no list; the list owns the new count.
        if unsafe { inbox.remote_list.push(node) } {
            inbox.kick();
        } else {
            // SAFETY: the node was not pushed, so this is its one taker.
            drop(unsafe { Batch::from_node(node) });
        }
    }

    /// Returns the batch of a node, for the shard that removed it.
    ///
    /// # Safety
    /// `node` must be from `notify_shard`, and be used once.
    pub(crate) unsafe fn from_node(node: NonNull<RemoteNode>) -> Arc<Batch> {
        // SAFETY: the node is the first field of a repr(C) Batch, and the count was left for us.
        let batch = unsafe { Arc::from_raw(node.as_ptr().cast::<Batch>().cast_const()) };
        // A notification is not sent while another is under way. The swap makes the work before such a
        // skipped notification visible from here on.
        batch.queued.swap(false, Ordering::AcqRel);
        batch
    }

    /// Fails the remaining ranges and ends the batch. For the thread that popped the unbegun batch from a
    /// closed inbox, and for a shard's end.
    pub(crate) fn refuse(&self, failure: OpFailure) {
        for number in 0..self.plan.ranges.len() {
            let vacant = match &self.queue {
                None => {
                    // SAFETY: not done, and the caller is the one side that may write now.
                    unsafe { (&(*self.collected.get()))[number].is_none() }
                }
                Some(_) => false,
            };
            if vacant {
                self.put(number, Err(self.refusal(failure, number)));
            }
        }
        // SAFETY: as above. No read may wait for memory of a batch that is over.
        unsafe { (*self.progress.get()).give_up() };
        // A stream knows which ranges have had their results.
        let _ = self.failure.set(failure);
        self.end();
    }

    /// Returns whether all results are kept until the last one has arrived.
    #[inline]
    pub(crate) fn collects(&self) -> bool {
        self.queue.is_none()
    }

    /// Returns whether every range has its result; for a batch that collects them.
    pub(crate) fn is_whole(&self) -> bool {
        // SAFETY: as for `put`.
        self.queue.is_some() || unsafe { &*self.collected.get() }.iter().all(Option::is_some)
    }

    pub(crate) fn end(&self) {
        debug_assert!(!self.done.load(Ordering::Relaxed), "a batch ends once");
        self.done.store(true, Ordering::Release);
        wakes::wake_registered(&self.waker);
    }

    /// Delivers a result: to the stream's queue, or to the range's slot.
    #[inline]
    pub(crate) fn put(&self, number: usize, result: Result<Block>) {
        match &self.queue {
            None => {
                // SAFETY: not done, and only the shard (or the refusing thread) is here.
                let place = unsafe { &mut (&mut (*self.collected.get()))[number] };
                debug_assert!(place.is_none(), "range {number} gets its result once");
                *place = Some(result);
            }
            Some(queue) => {
                // SAFETY: `progress` belongs to this side.
                let waiting = unsafe { &mut (*self.progress.get()).waiting };
                if waiting.is_empty() {
                    if let Err(back) = self.push(queue, (number, result)) {
                        waiting.push_back(back);
                    }
                } else {
                    waiting.push_back((number, result));
                }
            }
        }
    }

    #[inline]
    fn push(&self, queue: &Results, result: (usize, Result<Block>)) -> Result<(), (usize, Result<Block>)> {
        let _alone = self.gate.enter();
        queue.push(result)
    }

    /// Moves waiting results into the stream's queue; returns true when all have been moved.
    #[inline]
    pub(crate) fn drain_waiting(&self) -> bool {
        let Some(queue) = &self.queue else { return true };
        // SAFETY: `progress` belongs to the shard, whose thread this is.
        let waiting = unsafe { &mut (*self.progress.get()).waiting };
        while let Some(result) = waiting.pop_front() {
            if let Err(back) = self.push(queue, result) {
                waiting.push_front(back);
                self.stalled.store(true, Ordering::Release);
                // The consumer may have emptied the queue before it could see the mark.
                if queue.is_full() {
                    return false;
                }
                self.stalled.store(false, Ordering::Release);
            }
        }
        true
    }

    /// Returns the numbers of the ranges of a request.
    #[inline]
    pub(crate) fn members(&self, piece: u32) -> &[u32] {
        match piece & SINGLE {
            0 => {
                let piece = &self.plan.pieces[piece as usize];
                &self.plan.order[piece.first as usize..(piece.first + piece.count) as usize]
            }
            _ => std::slice::from_ref(&self.plan.order[(piece & !SINGLE) as usize]),
        }
    }

    #[inline]
    pub(crate) fn place_of(&self, piece: u32) -> Option<AlignedRange> {
        match piece & SINGLE {
            0 => {
                let piece = &self.plan.pieces[piece as usize];
                debug_assert!(
                    u32::try_from(piece.len).is_ok(),
                    "a range longer than a part is read in parts"
                );
                Some(AlignedRange { offset: piece.offset, len: piece.len as u32 })
            }
            _ => {
                let number = self.plan.order[(piece & !SINGLE) as usize];
                let file = self.plan.ranges.file(number);
                AlignedRange::of(self.plan.ranges.get(number), self.plan.grains[file as usize]).ok()
            }
        }
    }

    /// Wakes the consumer of a stream, which consumes results while others are still in flight.
    #[inline]
    pub(crate) fn wake_consumer(&self) {
        if self.queue.as_ref().is_some_and(|queue| !queue.is_empty()) {
            wakes::wake_registered(&self.waker);
        }
    }
}
