//! An intrusive lock-free list through which other threads notify a shard without waiting, failing or
//! allocating.
//!
//! Destructors may neither wait nor fail, so their notice to a shard is a link that is part of the object itself. The number of
//! existing objects therefore bounds the list, and it is never full. Pushes are onto a stack. The shard removes the whole stack, so
//! no node is ever compared with one that was freed and reused in between (no ABA).

use std::ptr::{self, NonNull};

use crate::base::sync::atomic::{AtomicPtr, Ordering};

/// The link; the first field of every object that can be left for a shard.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RemoteNode {
    next: AtomicPtr<RemoteNode>,
    pub(crate) kind: NodeKind,
}

/// The type of the object at whose start the node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    /// A `RemoteCell`: adopt it, or cancel its operation.
    Remote,
    /// A `CloseNode`: the file's last handle was dropped.
    File,
    /// A `Batch`: continue, or stop.
    Batch,
    /// A batch of walks: take one over, or stop.
    Walks,
}

impl RemoteNode {
    pub(crate) fn new(kind: NodeKind) -> RemoteNode {
        RemoteNode { next: AtomicPtr::new(ptr::null_mut()), kind }
    }
}

/// The stack of nodes for one shard. Each push is followed by a kick, as the shard may have looked here and be on its way to sleep:
/// - a future polled elsewhere (`OpFuture::adopt`, `walk::Batch::notify_shard`) waits for the reply;
/// - a stream that was full (`read_many::Batch::poll_next`) waits for further results;
/// - a dropped one (`drop_remote`, both `Batch::cancel`) waits for nothing, but others do for its memory and its file's close. Its
///   operation may have ended since the last check, and then no completion wakes the shard either;
/// - a file's close (`FileCore::release`) waits for its entry in the table.
///
/// `VisitedShard::adopt` does not kick: it visits, or marks the lock for the visitor that is inside. A drop that leaves a bit in a
/// `DropBitmap` instead of a node kicks for the same reasons.
#[derive(Debug)]
pub(crate) struct RemoteList {
    head: AtomicPtr<RemoteNode>,
}

/// The head of a list that accepts no more nodes; never dereferenced.
const CLOSED: *mut RemoteNode = ptr::without_provenance_mut(1);

impl RemoteList {
    pub(crate) fn new() -> RemoteList {
        RemoteList { head: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Leaves a node and passes ownership of the object at whose start it is. Returns false if the shard has ended; the ownership
    /// then stays with the caller.
    ///
    /// # Safety
    /// `node` must point to a live node outside of lists, with permission to access the object at whose start it is. It must stay
    /// live until the shard has removed it.
    pub(crate) unsafe fn push(&self, node: NonNull<RemoteNode>) -> bool {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head == CLOSED {
                return false;
            }
            // SAFETY: the caller guarantees that the node is live and in no list, so only this call uses its
            // link.
            unsafe { node.as_ref() }.next.store(head, Ordering::Relaxed);
            // Release: the shard sees the node's contents and link when it removes the stack.
            match self.head.compare_exchange_weak(head, node.as_ptr(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => head = now,
            }
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed).is_null()
    }

    /// Removes all nodes, oldest first, and passes each to `visit`, which then owns it.
    pub(crate) fn take_all(&self, visit: impl FnMut(NonNull<RemoteNode>)) {
        if !self.is_empty() {
            let head = self.head.swap(ptr::null_mut(), Ordering::Acquire);
            Self::visit_oldest_first(head, visit);
        }
    }

    /// As [`take_all`](Self::take_all); every later push is rejected.
    pub(crate) fn close(&self, visit: impl FnMut(NonNull<RemoteNode>)) {
        let head = self.head.swap(CLOSED, Ordering::AcqRel);
        Self::visit_oldest_first(head, visit);
    }

    fn visit_oldest_first(mut head: *mut RemoteNode, mut visit: impl FnMut(NonNull<RemoteNode>)) {
        let mut oldest: *mut RemoteNode = ptr::null_mut();
        while head != CLOSED {
            let Some(node) = NonNull::new(head) else { break };
            // SAFETY: nodes in the removed stack are live (the push's contract) and owned by this call alone since the swap.
            let link = &unsafe { node.as_ref() }.next;
            head = link.load(Ordering::Relaxed);
            link.store(oldest, Ordering::Relaxed);
            oldest = node.as_ptr();
        }
        while let Some(node) = NonNull::new(oldest) {
            // SAFETY: as above; the link is read before `visit` may free the node.
            oldest = unsafe { node.as_ref() }.next.load(Ordering::Relaxed);
            visit(node);
        }
    }
}

#[cfg(all(test, forebay_loom))]
mod loom_tests;

#[cfg(test)]
mod tests;
