//! A batch under way: shared by the future that waits for it and the shard that runs it.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use atomic_waker::AtomicWaker;
use crossbeam_queue::ArrayQueue;

use super::plan::Plan;
use super::range_error;
use crate::arena::BUFFER_BYTES_MIN;
use crate::block::Block;
use crate::class::Class;
use crate::error::{Error, ErrorKind, Result};
use crate::file::FileCore;
use crate::op::{Durability, OpBuffer, OpFailure, OpKind, OpOutcome, OpRequest};
use crate::read::Widened;
use crate::shard::Shard;
use crate::shard::foreign::{ForeignNode, NodeKind};
use crate::shard::optable::Continuation;

type Answer = Option<Result<Block>>;

/// See the module's text. `progress` and `collected` belong to the shard until `done`.
#[repr(C)]
pub(crate) struct Batch {
    node: ForeignNode,
    /// The node is in the shard's list.
    queued: AtomicBool,
    cancelled: AtomicBool,
    done: AtomicBool,
    /// The stream's queue was full: whoever takes from it tells the shard.
    stalled: AtomicBool,
    shard: AtomicUsize,
    waker: AtomicWaker,
    file: Arc<FileCore>,
    class: Class,
    depth: u32,
    plan: Plan,
    /// For streams: results on their way to the consumer.
    queue: Option<ArrayQueue<(usize, Result<Block>)>>,
    /// Otherwise: a place for each range's result.
    collected: UnsafeCell<Vec<Answer>>,
    progress: UnsafeCell<Progress>,
    refused: AtomicBool,
}

/// What only the shard knows.
#[derive(Default)]
struct Progress {
    /// Place in the shard's list of batches.
    place: u32,
    begun: bool,
    next_piece: u32,
    in_flight: u32,
    /// Ranges (places in `order`) of failed merged requests, to be read one by one.
    split: VecDeque<u32>,
    /// Results that found the stream's queue full.
    waiting: VecDeque<(usize, Result<Block>)>,
}

/// Marks a piece number as the place in `order` of a single range.
const SINGLE: u32 = 1 << 31;

// SAFETY: `progress` is touched by the shard's thread only, from `begin` until the batch leaves its list, and before
// that by whoever refuses the unsent message. `collected` is written by the same until `done` is stored with Release,
// and read by the future only after it loaded `done` with Acquire. The rest is atomic or never changes.
unsafe impl Send for Batch {}
// SAFETY: as the line above argues for every field.
unsafe impl Sync for Batch {}

impl Batch {
    /// `queue` is the capacity of a stream's queue; without one the results are collected.
    pub(super) fn new(
        file: Arc<FileCore>,
        plan: Plan,
        class: Class,
        depth: u32,
        queue: Option<usize>,
    ) -> Arc<Batch> {
        let mut collected = Vec::new();
        if queue.is_none() {
            collected.resize_with(plan.ranges.len(), || None);
        }
        Arc::new(Batch {
            node: ForeignNode::new(NodeKind::Batch),
            queued: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            done: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            shard: AtomicUsize::new(0),
            waker: AtomicWaker::new(),
            file,
            class,
            depth,
            plan,
            queue: queue.map(ArrayQueue::new),
            collected: UnsafeCell::new(collected),
            progress: UnsafeCell::new(Progress::default()),
            refused: AtomicBool::new(false),
        })
    }

    pub(crate) fn file(&self) -> &Arc<FileCore> {
        &self.file
    }

    pub(super) fn set_shard(&self, shard: usize) {
        self.shard.store(shard, Ordering::Relaxed);
    }

    pub(super) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// True once: the error of a stream that could not begin is told one time.
    pub(super) fn refused_once(&self) -> bool {
        !self.refused.swap(true, Ordering::Relaxed)
    }

    /// For the future: every range's result, once.
    pub(super) fn poll_all(&self, waker: &Waker) -> Poll<Result<Vec<Result<Block>>>> {
        if !self.is_done(waker) {
            return Poll::Pending;
        }
        // SAFETY: `done` was seen, so the shard writes no more, and this side has one future.
        let collected = std::mem::take(unsafe { &mut *self.collected.get() });
        let lost = |number: usize| {
            let error = Error::new(ErrorKind::Cancelled, "read_many");
            Err(range_error(self, error, &self.plan.ranges[number]))
        };
        let results = collected.into_iter().enumerate();
        Poll::Ready(Ok(results.map(|(number, answer)| answer.unwrap_or_else(|| lost(number))).collect()))
    }

    /// For the stream: the next result that is there.
    pub(super) fn poll_next(self: &Arc<Self>, waker: &Waker) -> Poll<Option<(usize, Result<Block>)>> {
        let Some(queue) = &self.queue else { return Poll::Ready(None) };
        let mut taken = queue.pop();
        if taken.is_none() {
            let done = self.is_done(waker);
            // What came between the look and the registration.
            taken = queue.pop();
            if taken.is_none() {
                return if done { Poll::Ready(None) } else { Poll::Pending };
            }
        }
        if queue.len() <= queue.capacity() / 2 && self.stalled.swap(false, Ordering::AcqRel) {
            self.tell_shard();
        }
        Poll::Ready(taken)
    }

    fn is_done(&self, waker: &Waker) -> bool {
        if self.done.load(Ordering::Acquire) {
            return true;
        }
        self.waker.register(waker);
        self.done.load(Ordering::Acquire)
    }

    /// For the future's drop: no further request is begun, and what comes is dropped.
    pub(super) fn cancel(self: &Arc<Self>) {
        self.cancelled.store(true, Ordering::Release);
        if !self.done.load(Ordering::Acquire) {
            self.tell_shard();
        }
    }

    fn tell_shard(self: &Arc<Self>) {
        let Some(inbox) = self.file.engine().inboxes.get(self.shard.load(Ordering::Relaxed)) else { return };
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let raw = Arc::into_raw(self.clone()).cast_mut().cast::<ForeignNode>();
        // SAFETY: a pointer out of an Arc is never null.
        let node = unsafe { NonNull::new_unchecked(raw) };
        // SAFETY: the flag says that the node is in no list; the list owns the count that was just taken.
        if unsafe { inbox.foreign.push(node) } {
            inbox.kick();
        } else {
            // SAFETY: the node was not pushed, so this is its one taker.
            drop(unsafe { Batch::from_node(node) });
        }
    }

    /// For the shard that took the node.
    ///
    /// # Safety
    /// `node` must come from `tell_shard`, once.
    pub(crate) unsafe fn from_node(node: NonNull<ForeignNode>) -> Arc<Batch> {
        // SAFETY: the node is the first field of a repr(C) Batch, and the count was left for us.
        let batch = unsafe { Arc::from_raw(node.as_ptr().cast::<Batch>().cast_const()) };
        batch.queued.store(false, Ordering::Release);
        batch
    }

    /// For whoever popped the unbegun batch from a closed inbox, and for a shard's end: nothing more comes.
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
                let error = failure.into_error("read_many", Some(&self.file));
                self.put(number, Err(range_error(self, error, &self.plan.ranges[number])));
            }
        }
        if let Some(queue) = &self.queue {
            // A stream tells the failure once and ends.
            let error = failure.into_error("read_many", Some(&self.file));
            let _ = queue.force_push((0, Err(error)));
        }
        self.end();
    }

    fn end(&self) {
        self.done.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Puts a result where its consumer finds it.
    fn put(&self, number: usize, result: Result<Block>) {
        match &self.queue {
            // SAFETY: not done, and only the shard (or the refuser) is here.
            None => unsafe { (&mut (*self.collected.get()))[number] = Some(result) },
            Some(queue) => {
                // SAFETY: `progress` belongs to this side.
                let waiting = unsafe { &mut (*self.progress.get()).waiting };
                if waiting.is_empty() {
                    if let Err(back) = queue.push((number, result)) {
                        waiting.push_back(back);
                    }
                } else {
                    waiting.push_back((number, result));
                }
            }
        }
    }

    /// Moves waiting results on; true when none is left.
    fn drain_waiting(&self) -> bool {
        let Some(queue) = &self.queue else { return true };
        // SAFETY: `progress` belongs to the shard, whose thread this is.
        let waiting = unsafe { &mut (*self.progress.get()).waiting };
        while let Some(result) = waiting.pop_front() {
            if let Err(back) = queue.push(result) {
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

    /// The numbers and bounds of the ranges of a request.
    fn members(&self, piece: u32) -> &[u32] {
        match piece & SINGLE {
            0 => {
                let piece = &self.plan.pieces[piece as usize];
                &self.plan.order[piece.first as usize..(piece.first + piece.count) as usize]
            }
            _ => std::slice::from_ref(&self.plan.order[(piece & !SINGLE) as usize]),
        }
    }

    fn place_of(&self, piece: u32) -> Option<Widened> {
        match piece & SINGLE {
            0 => {
                let piece = &self.plan.pieces[piece as usize];
                Some(Widened { offset: piece.offset, len: piece.len })
            }
            _ => {
                let number = self.plan.order[(piece & !SINGLE) as usize];
                Widened::of(&self.plan.ranges[number as usize], self.plan.grain).ok()
            }
        }
    }
}

/// The batches of one shard.
#[derive(Default)]
pub(crate) struct Batches {
    list: Vec<Option<Arc<Batch>>>,
    free: Vec<u32>,
    /// Batches that found the op table full, to be tried again next turn.
    blocked: Vec<u32>,
}

/// Takes a batch on; on its shard.
pub(crate) fn begin(shard: &Shard, batch: Arc<Batch>) {
    let place = shard.batches.with(|batches| match batches.free.pop() {
        Some(place) => {
            batches.list[place as usize] = Some(batch.clone());
            place
        }
        None => {
            batches.list.push(Some(batch.clone()));
            batches.list.len() as u32 - 1
        }
    });
    // SAFETY: the batch was just handed to this shard, which owns its progress from here on.
    let progress = unsafe { &mut *batch.progress.get() };
    progress.place = place;
    progress.begun = true;
    for &number in &batch.plan.empty {
        batch.put(number as usize, Ok(Block::default()));
    }
    for (number, fault) in &batch.plan.faulty {
        let range = &batch.plan.ranges[*number as usize];
        let copy = match fault.kind() {
            kind @ ErrorKind::TooLarge { .. } => Error::new(kind, "read_many"),
            _ => Error::invalid("read_many", "no file can have this range"),
        };
        batch.put(*number as usize, Err(range_error(&batch, copy, range)));
    }
    go_on(shard, &batch);
}

/// Looks after a batch that left word: its consumer made room, or is gone.
pub(crate) fn resume(shard: &Shard, batch: &Arc<Batch>) {
    // SAFETY: on the batch's shard; `begun` tells whether its message has come yet.
    let begun = unsafe { (*batch.progress.get()).begun };
    if begun && !batch.done.load(Ordering::Relaxed) {
        go_on(shard, batch);
    }
}

/// Tries the batches again that found the op table full.
#[inline]
pub(crate) fn retry_blocked(shard: &Shard) {
    if shard.batches.with(|batches| batches.blocked.is_empty()) {
        return;
    }
    for place in shard.batches.with(|batches| std::mem::take(&mut batches.blocked)) {
        if let Some(batch) = shard.batches.with(|batches| batches.list[place as usize].clone()) {
            go_on(shard, &batch);
        }
    }
}

/// One request of a batch is over.
pub(crate) fn piece_done(shard: &Shard, place: u32, piece: u32, outcome: OpOutcome) {
    let Some(batch) = shard.batches.with(|batches| batches.list.get(place as usize).cloned().flatten())
    else {
        return;
    };
    {
        // SAFETY: on the batch's shard; no other reference to its progress is live here.
        let progress = unsafe { &mut *batch.progress.get() };
        progress.in_flight -= 1;
    }
    if !batch.cancelled.load(Ordering::Acquire) {
        take_piece(&batch, piece, outcome);
    }
    go_on(shard, &batch);
}

fn take_piece(batch: &Arc<Batch>, piece: u32, outcome: OpOutcome) {
    let members = batch.members(piece);
    let Some(place) = batch.place_of(piece) else { return };
    let bytes = match (outcome.result, members.len()) {
        (Ok(bytes), _) => bytes,
        (Err(OpFailure::Errno(_) | OpFailure::NoMemory | OpFailure::TooLarge), 2..) => {
            let first = batch.plan.pieces[piece as usize].first;
            // SAFETY: on the batch's shard; no other reference to its progress is live here.
            let split = unsafe { &mut (*batch.progress.get()).split };
            split.extend(first..first + members.len() as u32);
            return;
        }
        (Err(failure), _) => {
            for &number in members {
                let error = failure.into_error("read_many", Some(&batch.file));
                batch.put(
                    number as usize,
                    Err(range_error(batch, error, &batch.plan.ranges[number as usize])),
                );
            }
            return;
        }
    };
    let OpBuffer::Buffer(buffer) = outcome.buffer else { return };
    // SAFETY: the device filled that many bytes from the buffer's start.
    let whole = unsafe { buffer.into_block(0, bytes as usize) };
    // Copies take a smallest buffer each: many tiny ones would take more memory than the one they are to free.
    let copies_pay = members.len() > 1 && members.len() * BUFFER_BYTES_MIN <= whole.pinned_bytes() / 4;
    let mut whole = Some(whole);
    for (at, &number) in members.iter().enumerate() {
        let range = &batch.plan.ranges[number as usize];
        let (start, end) = (range.start - place.offset, range.end - place.offset);
        let result = if end > u64::from(bytes) {
            let got = u64::from(bytes).saturating_sub(start);
            let error = Error::new(ErrorKind::UnexpectedEof { got }, "read_many");
            Err(range_error(batch, error, range))
        } else {
            // The last range takes the whole over, so that a request with one range counts no references.
            let part = match at + 1 == members.len() {
                true => whole.take(),
                false => whole.clone(),
            };
            let part = part.and_then(|whole| whole.into_slice(start as usize..end as usize));
            part.map(|part| if copies_pay { compact(part) } else { part })
                .ok_or_else(|| range_error(batch, Error::os("read_many", libc::EIO), range))
        };
        batch.put(number as usize, result);
    }
}

/// A small slice of a large merged request would pin all of it for as long as the program keeps the slice; below a
/// sixteenth it is copied.
fn compact(part: Block) -> Block {
    match part.pinned_bytes() / 16 > part.len() {
        true => part.detach(),
        false => part,
    }
}

/// Delivers, begins further requests while there is room, and ends the batch when nothing is left.
fn go_on(shard: &Shard, batch: &Arc<Batch>) {
    let cancelled = batch.cancelled.load(Ordering::Acquire);
    let mut delivered;
    loop {
        // Each time: a request that cannot even begin puts its results where the others wait.
        delivered = cancelled || batch.drain_waiting();
        let (piece, retry) = {
            // SAFETY: on the batch's shard; the reference ends with this block.
            let progress = unsafe { &mut *batch.progress.get() };
            let left = progress.next_piece < batch.plan.pieces.len() as u32 || !progress.split.is_empty();
            if cancelled || !left {
                break;
            }
            if !delivered || progress.in_flight >= batch.depth {
                batch.wake_consumer();
                return;
            }
            match progress.split.pop_front() {
                Some(order) => (order | SINGLE, true),
                None => {
                    progress.next_piece += 1;
                    (progress.next_piece - 1, false)
                }
            }
        };
        if !stage(shard, batch, piece) {
            // SAFETY: as the block above.
            let progress = unsafe { &mut *batch.progress.get() };
            match retry {
                true => progress.split.push_front(piece & !SINGLE),
                false => progress.next_piece -= 1,
            }
            let place = progress.place;
            shard.batches.with(|batches| batches.blocked.push(place));
            return;
        }
    }
    // SAFETY: on the batch's shard; the copies end the reference.
    let (in_flight, place) = unsafe { ((*batch.progress.get()).in_flight, (*batch.progress.get()).place) };
    if in_flight == 0 && delivered {
        shard.batches.with(|batches| {
            batches.list[place as usize] = None;
            batches.free.push(place);
        });
        batch.end();
    } else {
        batch.wake_consumer();
    }
}

impl Batch {
    /// A stream's consumer takes results while others are still under way.
    fn wake_consumer(&self) {
        if self.queue.as_ref().is_some_and(|queue| !queue.is_empty()) {
            self.waker.wake();
        }
    }
}

/// Puts one request into a slot; false when the op table is full.
fn stage(shard: &Shard, batch: &Arc<Batch>, piece: u32) -> bool {
    let Some(place) = batch.place_of(piece) else { return true };
    let file = match shard.enter_file(&batch.file) {
        Ok(file) => file,
        Err(failure) => {
            for &number in batch.members(piece) {
                let error = failure.into_error("read_many", Some(&batch.file));
                batch.put(
                    number as usize,
                    Err(range_error(batch, error, &batch.plan.ranges[number as usize])),
                );
            }
            return true;
        }
    };
    let asked: u64 = batch
        .members(piece)
        .iter()
        .map(|&number| &batch.plan.ranges[number as usize])
        .map(|range| range.end - range.start)
        .sum();
    let mut request = OpRequest {
        kind: OpKind::Read,
        class: batch.class,
        durability: Durability::None,
        offset: place.offset,
        len: place.len,
        asked: asked.min(u64::from(u32::MAX)) as u32,
        buffer: OpBuffer::Late,
    };
    // SAFETY: on the batch's shard; the copy ends the reference.
    let continuation = Continuation::Batch { batch: unsafe { (*batch.progress.get()).place }, piece };
    match shard.stage(file, &mut request, || continuation) {
        Some(_) => {
            // SAFETY: on the batch's shard; the reference ends here.
            unsafe { (*batch.progress.get()).in_flight += 1 };
            true
        }
        None => {
            shard.leave_file(file);
            false
        }
    }
}

/// At a shard's end: every batch that is not over is refused.
pub(crate) fn refuse_all(shard: &Shard, failure: OpFailure) {
    let batches = shard.batches.with(|batches| {
        batches.blocked.clear();
        batches.free.clear();
        std::mem::take(&mut batches.list)
    });
    for batch in batches.into_iter().flatten() {
        if !batch.done.load(Ordering::Relaxed) {
            batch.refuse(failure);
        }
    }
}
