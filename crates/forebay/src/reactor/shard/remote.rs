//! The cell through which a future on any thread and a shard share one operation.

use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Poll, Waker};

use crate::base::in_flight::Stay;
use crate::base::paused_clock;
use crate::base::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use crate::base::sync::{AtomicWaker, UnsafeCell};
use crate::base::wakes;
use crate::io::op::OpKey;
use crate::io::op::{OpFailure, OpOutcome, OpRequest};
use crate::reactor::open_file::FileCore;
use crate::reactor::shard::remote_list::{NodeKind, RemoteNode};

/// A cell shared by the future and the shard; see [`RemoteCell`].
pub(crate) type RemotePtr = Arc<RemoteCell>;

/// One operation shared between two threads.
///
/// Life of a cell that carries a request: the future fills `request` and sends the cell through the inbox. The shard reads the
/// request, runs it, fills `outcome`, sets `DONE` and wakes the future. A cell that adopts an operation (its future was first
/// polled on the shard and then elsewhere) carries the slot's key instead and is passed through the foreign list.
#[repr(C)]
pub(crate) struct RemoteCell {
    node: RemoteNode,
    state: AtomicU8,
    /// `QUEUED`: the node is in the shard's foreign list. `CANCELLED`: the future was dropped.
    flags: AtomicU8,
    waker: AtomicWaker,
    request: UnsafeCell<Option<SentRequest>>,
    outcome: UnsafeCell<Option<OpOutcome>>,
    /// The slot's key. Set at creation for an adopting cell; set by the shard for a sent one (then read by
    /// the shard only).
    key: AtomicU64,
    /// Set when the future is dropped: the file is in flight for as long as its shard may have the request. Below `request`, so
    /// that it is dropped after it.
    left: UnsafeCell<Option<Stay>>,
}

/// The contents that a cell carries to the shard.
pub(crate) struct SentRequest {
    pub(crate) file: Option<Arc<FileCore>>,
    pub(crate) request: OpRequest,
}

const PENDING: u8 = 0;
const DONE: u8 = 1;
const QUEUED: u8 = 1;
const CANCELLED: u8 = 2;
const NO_KEY: u64 = u64::MAX;

// SAFETY: `request` is written before the cell is sent and touched by the shard only after that (the inbox's queue
// orders the two); `outcome` is written by the shard before `DONE` is stored with Release and read by the future
// only after it loaded `DONE` with Acquire; `left` is written by the future once, and else dropped with the cell. Everything else is
// atomic. The contents are Send: files are shared
// handles, buffers and blocks are Send.
unsafe impl Send for RemoteCell {}
// SAFETY: as above.
unsafe impl Sync for RemoteCell {}

impl RemoteCell {
    /// Returns a cell that requests a new operation.
    pub(crate) fn request(file: Option<Arc<FileCore>>, request: OpRequest) -> RemotePtr {
        RemoteCell::new(Some(SentRequest { file, request }), NO_KEY)
    }

    /// Returns a cell for an operation that is already running.
    pub(crate) fn adopt(key: OpKey) -> RemotePtr {
        RemoteCell::new(None, key.to_user_data())
    }

    /// Returns a cell for an operation that is about to start on the thread that holds its shard.
    #[cfg(any(feature = "_sim", all(feature = "tokio", target_os = "linux", not(forebay_no_uring))))]
    pub(crate) fn waiting() -> RemotePtr {
        RemoteCell::new(None, NO_KEY)
    }

    fn new(request: Option<SentRequest>, key: u64) -> RemotePtr {
        Arc::new(RemoteCell {
            node: RemoteNode::new(NodeKind::Remote),
            state: AtomicU8::new(PENDING),
            flags: AtomicU8::new(0),
            waker: AtomicWaker::new(),
            request: UnsafeCell::new(request),
            outcome: UnsafeCell::new(None),
            key: AtomicU64::new(key),
            left: UnsafeCell::new(None),
        })
    }

    /// Polls for the future. Returns the outcome once; otherwise `waker` is woken later.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<OpOutcome> {
        if self.state.load(Ordering::Acquire) != DONE {
            let registered = paused_clock::poll(waker, |waker| {
                self.waker.register(waker);
                // The shard may have finished between the load and the registration.
                if self.is_done() { Poll::Ready(()) } else { Poll::Pending }
            });
            if registered.is_pending() {
                return Poll::Pending;
            }
        }
        // SAFETY: after DONE the shard no longer touches the outcome, and only the one future that owns this
        // side calls `poll`.
        match unsafe { (*self.outcome.get()).take() } {
            Some(outcome) => Poll::Ready(outcome),
            // Polled again after it was ready: a contract error of the caller, which gets an error and not a
            // panic.
            None => Poll::Ready(OpOutcome::failed(OpFailure::Errno(libc::ECANCELED))),
        }
    }

    /// Returns the request, once; called by the shard, and by a sender that found the inbox closed.
    ///
    /// # Safety
    /// The caller must hold the cell as a message: popped from the inbox, or not yet sent.
    pub(crate) unsafe fn take_request(&self) -> Option<SentRequest> {
        // SAFETY: the caller is the only one that may access the request now.
        unsafe { (*self.request.get()).take() }
    }

    /// Completes the operation with its outcome and wakes the future; called by the shard.
    pub(crate) fn finish(&self, outcome: OpOutcome) {
        // For a model checker the load would be one more step of each thread.
        debug_assert!(cfg!(all(forebay_loom, test)) || !self.is_done(), "a cell gets its outcome once");
        // SAFETY: only the shard (or the sender, if no shard ever saw the cell) finishes, once; the future
        // reads only after DONE.
        unsafe { *self.outcome.get() = Some(outcome) };
        self.state.store(DONE, Ordering::Release);
        wakes::wake_registered(&self.waker);
    }

    /// Stores the slot's key, so that a later cancel finds the slot; called by the shard.
    pub(crate) fn set_key(&self, key: OpKey) {
        self.key.store(key.to_user_data(), Ordering::Relaxed);
    }

    /// Returns the key of the slot that this cell stands for; called by the shard.
    pub(crate) fn key(&self) -> Option<OpKey> {
        match self.key.load(Ordering::Relaxed) {
            NO_KEY => None,
            key => Some(OpKey::from_user_data(key)),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state.load(Ordering::Acquire) == DONE
    }

    /// Returns whether the request's future was already dropped; called by the shard when the request arrives.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.flags.load(Ordering::Acquire) & CANCELLED != 0
    }

    /// Keeps the objects that the request refers to in flight until the cell is dropped; called by the future's drop, once.
    pub(crate) fn leave(&self, stay: Stay) {
        // SAFETY: only the future's side accesses it before the drop of the cell, which this count puts off.
        unsafe { *self.left.get() = Some(stay) };
    }

    /// Marks an adopting future's node as queued and returns the pointer to push.
    pub(crate) fn queue(self: &Arc<Self>) -> NonNull<RemoteNode> {
        self.flags.fetch_or(QUEUED, Ordering::Relaxed);
        into_node(self.clone())
    }

    /// Marks that no task waits any more; called by the future's drop. Returns a node to push, unless one is already in the list;
    /// the shard will then see the mark when it removes that node.
    pub(crate) fn cancel(self: Arc<Self>) -> Option<NonNull<RemoteNode>> {
        if self.is_done() {
            return None;
        }
        let before = self.flags.fetch_or(CANCELLED | QUEUED, Ordering::AcqRel);
        (before & QUEUED == 0).then(|| into_node(self))
    }

    /// Returns the cell of a node that the shard removed, and whether its future was dropped.
    ///
    /// # Safety
    /// `node` must be from [`queue`](Self::queue) or [`cancel`](Self::cancel), and be used once.
    pub(crate) unsafe fn from_node(node: NonNull<RemoteNode>) -> (RemotePtr, bool) {
        // SAFETY: `into_node` made the pointer from an Arc whose count this owns now; the node is the first field of a repr(C)
        // struct and the pointer kept the provenance of the whole.
        let cell = unsafe { Arc::from_raw(node.as_ptr().cast::<RemoteCell>().cast_const()) };
        let flags = cell.flags.fetch_and(!QUEUED, Ordering::AcqRel);
        (cell, flags & CANCELLED != 0)
    }
}

fn into_node(cell: RemotePtr) -> NonNull<RemoteNode> {
    let raw = Arc::into_raw(cell).cast_mut().cast::<RemoteNode>();
    // SAFETY: a pointer out of an Arc is never null.
    unsafe { NonNull::new_unchecked(raw) }
}

#[cfg(test)]
pub(crate) mod fixture;

#[cfg(all(test, forebay_loom))]
mod loom_tests;

#[cfg(test)]
mod tests;
