//! Walks between a future on any thread and the shard that runs them: one message and one wake, however many they are.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use atomic_waker::AtomicWaker;

use super::state::Job;
use super::table::WalkKey;
use crate::base::class::Class;
use crate::io::op::OpFailure;
use crate::reactor::open_file::FileCore;
use crate::reactor::shard::foreign::{ForeignNode, NodeKind};

/// See the module's text. `places` and `progress` belong to the shard until `done`.
#[repr(C)]
pub(crate) struct Batch {
    node: ForeignNode,
    /// The node is in the shard's list.
    queued: AtomicBool,
    cancelled: AtomicBool,
    done: AtomicBool,
    shard: AtomicUsize,
    waker: AtomicWaker,
    pub(crate) file: Arc<FileCore>,
    pub(crate) settings: Settings,
    /// The walk that began in a future on its shard, which was then polled elsewhere.
    pub(crate) adopts: Option<WalkKey>,
    places: UnsafeCell<Vec<Place>>,
    progress: UnsafeCell<Progress>,
}

/// What walks of one call have in common.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) class: Class,
    pub(crate) hops_max: u32,
    /// Walks of a batch under way at once.
    pub(crate) depth: u32,
}

/// One walk of a batch.
pub(crate) enum Place {
    Waiting(Range<u64>, Job),
    /// In this slot of the shard's walks.
    Running(u32),
    Over(Job),
    /// Its ending is lost, or was taken.
    Gone,
}

/// What only the shard knows.
#[derive(Clone, Copy, Default)]
pub(crate) struct Progress {
    pub(crate) begun: bool,
    /// Waits for a slot, in the shard's list.
    pub(crate) is_blocked: bool,
    /// Walks are being begun, further down on the stack.
    pub(crate) is_beginning: bool,
    pub(crate) next: u32,
    pub(crate) running: u32,
}

// SAFETY: `places` and `progress` are touched by one side at a time: by whoever made the batch until its message or node
// was sent; by the shard's thread (or whoever refuses the unsent message) until `done` is stored with Release; by the
// future after it loaded `done` with Acquire. Jobs are Send. The rest is atomic or never changes.
unsafe impl Send for Batch {}
// SAFETY: as the line above argues for every field.
unsafe impl Sync for Batch {}

impl Batch {
    pub(crate) fn new(
        file: Arc<FileCore>,
        settings: Settings,
        walks: Vec<Place>,
        adopts: Option<WalkKey>,
    ) -> Arc<Batch> {
        Arc::new(Batch {
            node: ForeignNode::new(NodeKind::Walks),
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

    /// For the future: every walk as it ended, once.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Vec<Place>> {
        if !self.is_done() {
            self.waker.register(waker);
            // The shard may have finished between the look and the registration.
            if !self.is_done() {
                return Poll::Pending;
            }
        }
        // SAFETY: `done` was seen, so the shard is here no more, and this side has one future.
        Poll::Ready(std::mem::take(unsafe { &mut *self.places.get() }))
    }

    /// For the future's drop: no further hop is begun.
    pub(crate) fn cancel(self: &Arc<Self>) {
        self.cancelled.store(true, Ordering::Release);
        if !self.is_done() {
            self.tell_shard();
        }
    }

    /// Leaves word for the shard, to look what became of this batch; false when the shard has ended.
    pub(crate) fn tell_shard(self: &Arc<Self>) -> bool {
        let Some(inbox) = self.file.engine().inboxes.get(self.shard.load(Ordering::Relaxed)) else {
            return false;
        };
        if self.queued.swap(true, Ordering::AcqRel) {
            return true;
        }
        let raw = Arc::into_raw(self.clone()).cast_mut().cast::<ForeignNode>();
        // SAFETY: a pointer out of an Arc is never null.
        let node = unsafe { NonNull::new_unchecked(raw) };
        // SAFETY: the flag says that the node is in no list; the list owns the count that was just taken.
        let pushed = unsafe { inbox.foreign.push(node) };
        if pushed {
            inbox.kick();
        } else {
            // SAFETY: the node was not pushed, so this is its one taker.
            drop(unsafe { Batch::from_node(node) });
        }
        pushed
    }

    /// For the shard that took the node.
    ///
    /// # Safety
    /// `node` must come from `tell_shard`, once.
    pub(crate) unsafe fn from_node(node: NonNull<ForeignNode>) -> Arc<Batch> {
        // SAFETY: the node is the first field of a repr(C) Batch, and the count was left for us.
        let batch = unsafe { Arc::from_raw(node.as_ptr().cast::<Batch>().cast_const()) };
        // A swap: what was done before a word that was not sent, because this one was under way, is seen from here on.
        batch.queued.swap(false, Ordering::AcqRel);
        batch
    }

    /// For the side that has it: how far it is.
    pub(crate) fn progress(&self) -> Progress {
        // SAFETY: the caller is the one side that touches it now; the copy ends the reference.
        unsafe { *self.progress.get() }
    }

    /// For the side that has it.
    pub(crate) fn set_progress(&self, change: impl FnOnce(&mut Progress)) {
        // SAFETY: the caller is the one side that touches it now, and `change` does not come back here.
        change(unsafe { &mut *self.progress.get() });
    }

    /// For the side that has it: how many walks.
    pub(crate) fn len(&self) -> u32 {
        // SAFETY: the caller is the one side that touches it now; the reference ends here.
        unsafe { (&*self.places.get()).len() as u32 }
    }

    /// For the side that has it: puts a walk's state, and hands out what was there, to be dropped elsewhere.
    pub(crate) fn replace(&self, number: u32, place: Place) -> Place {
        // SAFETY: the caller is the one side that touches it now; no code of the program's runs meanwhile.
        match unsafe { (&mut *self.places.get()).get_mut(number as usize) } {
            Some(known) => std::mem::replace(known, place),
            None => place,
        }
    }

    /// Where the walks are. Only the side that has the batch may look.
    pub(crate) fn places(&self) -> *mut Vec<Place> {
        self.places.get()
    }

    /// For the side that has it: nothing more comes; tells the future.
    pub(crate) fn end(&self) {
        self.done.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// For whoever popped the unbegun batch from a closed inbox, and for a shard's end: what has not ended fails.
    pub(crate) fn refuse(&self, failure: OpFailure) {
        for number in 0..self.len() {
            let place = match self.replace(number, Place::Gone) {
                Place::Waiting(root, mut job) => {
                    let error = failure.into_error("walk", Some(&self.file));
                    job.fail(error.with_range(root.start, root.end.saturating_sub(root.start)));
                    Place::Over(job)
                }
                other => other,
            };
            self.replace(number, place);
        }
        self.end();
    }
}
