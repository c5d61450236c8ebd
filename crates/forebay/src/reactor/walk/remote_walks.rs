//! Walks between a future on any thread and the shard that runs them: one message and one wake-up, regardless
//! of the number of walks.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use super::state::Job;
use super::table::WalkKey;
use crate::base::class::Class;
use crate::base::in_flight::Stay;
use crate::base::paused_clock;
use crate::base::sync::AtomicWaker;
use crate::base::wakes;
use crate::io::op::OpFailure;
use crate::reactor::open_file::FileCore;
use crate::reactor::shard::remote_list::{NodeKind, RemoteNode};

/// A batch of walks; see the module's documentation. `places` and `progress` belong to the shard until
/// `done`.
#[repr(C)]
pub(crate) struct Batch {
    node: RemoteNode,
    /// Whether the node is in the shard's list.
    queued: AtomicBool,
    cancelled: AtomicBool,
    done: AtomicBool,
    shard: AtomicUsize,
    waker: AtomicWaker,
    pub(crate) file: Arc<FileCore>,
    pub(crate) settings: Settings,
    /// The walk that started in a future on its shard, which was then polled elsewhere.
    pub(crate) adopts: Option<WalkKey>,
    places: UnsafeCell<Vec<BatchEntry>>,
    progress: UnsafeCell<Progress>,
    /// Set when the future is dropped: the file is in flight for as long as the shard may have the batch. Below `file`, so that it is
    /// dropped after it.
    left: UnsafeCell<Option<Stay>>,
}

/// Settings that the walks of one call share.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) class: Class,
    pub(crate) hops_max: u32,
    /// The most walks of a batch in progress.
    pub(crate) depth: u32,
}

/// One walk of a batch.
pub(crate) enum BatchEntry {
    Waiting(Range<u64>, Job),
    /// Runs in this slot of the shard's walks.
    Running(u32),
    Over(Job),
    /// Its ending is lost, or was returned.
    Gone,
}

/// The state of a batch that belongs to the shard.
#[derive(Clone, Copy, Default)]
pub(crate) struct Progress {
    pub(crate) begun: bool,
    /// Whether it waits for a slot, in the shard's list.
    pub(crate) is_blocked: bool,
    /// Whether a caller on the stack is starting walks.
    pub(crate) is_beginning: bool,
    pub(crate) next: u32,
    pub(crate) running: u32,
}

// SAFETY: `places` and `progress` are accessed by one side at a time: by the thread that made the batch until
// its message or node was sent; by the shard's thread (or the thread that refuses the unsent message) until
// `done` is stored with Release; by the future after it loaded `done` with Acquire. `left` is the future's. Jobs are Send. The rest
// is atomic or never changes.
unsafe impl Send for Batch {}
// SAFETY: as the line above argues for every field.
unsafe impl Sync for Batch {}

impl Batch {
    pub(crate) fn new(
        file: Arc<FileCore>,
        settings: Settings,
        walks: Vec<BatchEntry>,
        adopts: Option<WalkKey>,
    ) -> Arc<Batch> {
        Arc::new(Batch {
            node: RemoteNode::new(NodeKind::Walks),
            queued: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            done: AtomicBool::new(false),
            shard: AtomicUsize::new(0),
            waker: AtomicWaker::new(),
            file,
            settings,
            adopts,
            places: UnsafeCell::new(walks),
            progress: UnsafeCell::new(Progress::default()),
            left: UnsafeCell::new(None),
        })
    }

    pub(crate) fn set_shard(&self, shard: usize) {
        self.shard.store(shard, Ordering::Relaxed);
    }

    pub(crate) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Returns, for the future, every walk with its ending, once.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Vec<BatchEntry>> {
        if !self.is_done() {
            let registered = paused_clock::poll(waker, |waker| {
                self.waker.register(waker);
                // The shard may have finished between the check and the registration.
                if self.is_done() { Poll::Ready(()) } else { Poll::Pending }
            });
            if registered.is_pending() {
                return Poll::Pending;
            }
        }
        // SAFETY: `done` was seen, so the shard no longer accesses the places, and this side has one future.
        Poll::Ready(std::mem::take(unsafe { &mut *self.places.get() }))
    }

    /// Cancels the batch, for the future's drop: no further hop starts.
    pub(crate) fn cancel(self: &Arc<Self>) {
        self.cancelled.store(true, Ordering::Release);
        if !self.is_done() {
            // SAFETY: the future's drop alone calls this, once; else it is dropped with the batch, of which this side has a count.
            unsafe { *self.left.get() = Some(self.file.stay()) };
            self.notify_shard();
        }
    }

    /// Notifies the shard to check the state of this batch. Returns false when the shard has ended.
    pub(crate) fn notify_shard(self: &Arc<Self>) -> bool {
        let Some(inbox) = self.file.engine().inbox(self.shard.load(Ordering::Relaxed)) else {
            return false;
        };
        if self.queued.swap(true, Ordering::AcqRel) {
            return true;
        }
        let raw = Arc::into_raw(self.clone()).cast_mut().cast::<RemoteNode>();
        // SAFETY: a pointer out of an Arc is never null.
        let node = unsafe { NonNull::new_unchecked(raw) };
        // SAFETY: the flag shows that the node is in no list; the list owns the new count.
        let pushed = unsafe { inbox.remote_list.push(node) };
        if pushed {
            inbox.kick();
        } else {
            // SAFETY: the node was not pushed, so this is its one taker.
            drop(unsafe { Batch::from_node(node) });
        }
        pushed
    }

    /// Returns the batch of a node, for the shard that popped it.
    ///
    /// # Safety
    /// `node` must be from `notify_shard`, and be used once.
    pub(crate) unsafe fn from_node(node: NonNull<RemoteNode>) -> Arc<Batch> {
        // SAFETY: the node is the first field of a repr(C) Batch, and the count was left for us.
        let batch = unsafe { Arc::from_raw(node.as_ptr().cast::<Batch>().cast_const()) };
        // A swap: changes made before a notification that was skipped, because this one was under way, are
        // visible from here on.
        batch.queued.swap(false, Ordering::AcqRel);
        batch
    }

    /// Returns the progress, for the side that owns it.
    pub(crate) fn progress(&self) -> Progress {
        // SAFETY: the caller is the one side that accesses it now; the copy ends the reference.
        unsafe { *self.progress.get() }
    }

    /// Changes the progress, for the side that owns it.
    pub(crate) fn set_progress(&self, change: impl FnOnce(&mut Progress)) {
        // SAFETY: the caller is the one side that accesses it now, and `change` does not re-enter this function.
        change(unsafe { &mut *self.progress.get() });
    }

    /// Returns the number of walks, for the side that owns the places.
    pub(crate) fn len(&self) -> u32 {
        // SAFETY: the caller is the one side that accesses it now; the reference ends here.
        unsafe { (&*self.places.get()).len() as u32 }
    }

    /// Replaces a walk's state, for the side that owns the places. Returns the old state, to be dropped
    /// elsewhere.
    pub(crate) fn replace(&self, number: u32, place: BatchEntry) -> BatchEntry {
        // SAFETY: the caller is the one side that accesses it now; no code of the program's runs meanwhile.
        match unsafe { (&mut *self.places.get()).get_mut(number as usize) } {
            Some(known) => std::mem::replace(known, place),
            None => place,
        }
    }

    /// Returns the place of the walks. Only the side that owns the batch may read it.
    pub(crate) fn places(&self) -> *mut Vec<BatchEntry> {
        self.places.get()
    }

    /// Ends the batch, for the side that owns it, and notifies the future: no more endings follow.
    pub(crate) fn end(&self) {
        debug_assert!(!self.is_done(), "a batch of walks ends once");
        self.done.store(true, Ordering::Release);
        wakes::wake_registered(&self.waker);
    }

    /// Fails every walk that has not ended. It is for the thread that popped the unbegun batch from a closed
    /// inbox, and for a shard's end.
    pub(crate) fn refuse(&self, failure: OpFailure) {
        for number in 0..self.len() {
            let place = match self.replace(number, BatchEntry::Gone) {
                BatchEntry::Waiting(root, mut job) => {
                    let error = failure.into_error("walk", Some(&self.file));
                    job.fail(error.with_range(root.start, root.end.saturating_sub(root.start)));
                    BatchEntry::Over(job)
                }
                other => other,
            };
            self.replace(number, place);
        }
        self.end();
    }
}
