//! The stacks for buffers that are dropped away from their own thread, and the wake-up of a shard without
//! memory.

use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

use super::header::Header;
use crate::base::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// An intrusive stack. It is only pushed to one chain at a time and only emptied whole, so ABA cannot occur: no thread ever reads
/// the `next` of a buffer that it does not own.
pub(super) struct ReturnStack {
    head: AtomicPtr<Header>,
    waiting: Arc<WaitingShards>,
    /// Keeps neighbours in the heap off this line; the count of the `Arc` around it is meant to share it.
    _apart: [u64; 12],
}

/// Returns the mark of a closed stack: not null, and never the address of a header, which is aligned to 64.
fn closed() -> *mut Header {
    ptr::without_provenance_mut(1)
}

impl ReturnStack {
    pub(super) fn new(waiting: Arc<WaitingShards>) -> ReturnStack {
        ReturnStack { head: AtomicPtr::new(ptr::null_mut()), waiting, _apart: [0; 12] }
    }

    /// Pushes the chain `first..=last` and wakes the shards that wait for memory. Returns false, with nothing
    /// changed, when the stack is closed.
    ///
    /// SeqCst, against a lost wake-up: a waiting shard sets its bit and then checks the stacks; here the buffer is pushed and then
    /// the bits are checked. In the single total order of these four operations at least one side is second, and sees the other. It
    /// also releases the buffer's contents and header to the thread that empties the stack.
    ///
    /// # Safety
    /// The caller owns every buffer of the chain and gives them up when the result is true.
    pub(super) unsafe fn push(&self, first: NonNull<Header>, last: NonNull<Header>) -> bool {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head == closed() {
                // SAFETY: the chain is still the caller's. An earlier round may have linked it to the stack's
                // buffers.
                unsafe { last.as_ref().set_next(ptr::null_mut()) };
                return false;
            }
            // SAFETY: as above.
            unsafe { last.as_ref().set_next(head) };
            match self.head.compare_exchange_weak(head, first.as_ptr(), Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        self.waiting.wake();
        true
    }

    /// Takes all buffers; may be called from any thread. A closed stack stays closed.
    pub(super) fn take_all(&self) -> Chain {
        let mut head = self.head.load(Ordering::SeqCst);
        while !head.is_null() && head != closed() {
            match self.head.compare_exchange_weak(head, ptr::null_mut(), Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Chain(head),
                Err(now) => head = now,
            }
        }
        Chain(ptr::null_mut())
    }

    /// Refuses later pushes and returns the buffers that were there.
    pub(super) fn close(&self) -> Chain {
        let head = self.head.swap(closed(), Ordering::SeqCst);
        Chain(if head == closed() { ptr::null_mut() } else { head })
    }

    /// Undoes [`close`](ReturnStack::close) for a shard that starts anew.
    pub(super) fn reopen(&self) {
        let _ = self.head.compare_exchange(closed(), ptr::null_mut(), Ordering::SeqCst, Ordering::Relaxed);
    }
}

/// Buffers linked by their headers; the chain owns them. If it is dropped half-way, the rest is leaked.
pub(super) struct Chain(pub(super) *mut Header);

impl Iterator for Chain {
    type Item = NonNull<Header>;

    fn next(&mut self) -> Option<NonNull<Header>> {
        let header = NonNull::new(self.0)?;
        // SAFETY: the chain owns its buffers, so their headers are live; the link is read before the buffer is
        // handed out.
        self.0 = unsafe { header.as_ref().next() };
        Some(header)
    }
}

/// The set of shards that wait for memory, with their wakers.
pub(super) struct WaitingShards {
    /// A bit for each shard. Shards 64 apart share one, and then wake together.
    bits: AtomicU64,
    wakers: Box<[OnceLock<Waker>]>,
}

type Waker = Box<dyn Fn() + Send + Sync>;

impl WaitingShards {
    pub(super) fn new(shards: usize) -> WaitingShards {
        WaitingShards { bits: AtomicU64::new(0), wakers: (0..shards).map(|_| OnceLock::new()).collect() }
    }

    pub(super) fn set_waker(&self, shard: usize, waker: Waker) {
        if let Some(cell) = self.wakers.get(shard) {
            let _ = cell.set(waker);
        }
    }

    pub(super) fn set(&self, shard: usize, waits: bool) {
        let bit = 1u64 << (shard % 64);
        if waits {
            self.bits.fetch_or(bit, Ordering::SeqCst);
        } else if self.wakers.len() <= 64 && self.bits.load(Ordering::Relaxed) & bit != 0 {
            // With a shared bit the other shard may still wait: a wake-up too many is harmless, one too few
            // is not.
            self.bits.fetch_and(!bit, Ordering::SeqCst);
        }
    }

    /// Returns whether a shard waits: a hint without ordering, for the shard's own drops.
    #[inline]
    pub(super) fn anyone(&self) -> bool {
        self.bits.load(Ordering::Relaxed) != 0
    }

    /// Calls the wakers of these shards, a bit for each, whether they wait for memory of the arena or not.
    pub(super) fn call(&self, shards: u64) {
        for (shard, cell) in self.wakers.iter().enumerate() {
            if shards & (1 << (shard % 64)) != 0
                && let Some(waker) = cell.get()
            {
                waker();
            }
        }
    }

    /// Wakes every waiting shard once. A shard sets its bit again if the returned memory was not enough.
    pub(super) fn wake(&self) {
        if self.bits.load(Ordering::SeqCst) != 0 {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        self.call(self.bits.swap(0, Ordering::SeqCst));
    }
}

crate::_debug_parts!(WaitingShards, |waiting_shards| bits: waiting_shards.bits);

#[cfg(all(test, forebay_loom))]
mod loom_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn headers(count: usize) -> Vec<NonNull<Header>> {
        (0..count).map(|_| NonNull::from(Box::leak(Box::new(Header::ordinary(0, ptr::null_mut()))))).collect()
    }

    fn free(headers: Vec<NonNull<Header>>) {
        for header in headers {
            // SAFETY: made by `headers` above; every stack that held it is dropped or empty.
            drop(unsafe { Box::from_raw(header.as_ptr()) });
        }
    }

    #[test]
    fn last_in_first_out_and_whole() {
        let stack = ReturnStack::new(Arc::new(WaitingShards::new(1)));
        let all = headers(3);
        for header in &all {
            // SAFETY: made by `headers` above, and on no other stack.
            assert!(unsafe { stack.push(*header, *header) });
        }
        let taken: Vec<_> = stack.take_all().collect();
        assert_eq!(taken, [all[2], all[1], all[0]]);
        assert_eq!(stack.take_all().count(), 0);
        free(all);
    }

    #[test]
    fn closed_refuses_until_reopened() {
        let stack = ReturnStack::new(Arc::new(WaitingShards::new(1)));
        let all = headers(2);
        // SAFETY: both headers are ours.
        let push = |header| unsafe { stack.push(header, header) };
        assert!(push(all[0]));
        assert_eq!(stack.close().collect::<Vec<_>>(), [all[0]]);
        assert!(!push(all[1]));
        assert_eq!(stack.take_all().count(), 0, "emptying does not reopen");
        assert!(!push(all[1]));
        assert_eq!(stack.close().count(), 0);
        stack.reopen();
        assert!(push(all[1]));
        assert_eq!(stack.take_all().count(), 1);
        free(all);
    }

    #[test]
    fn eight_threads_push_while_one_empties() {
        const EACH: usize = if cfg!(miri) { 50 } else { 20_000 };
        let stack = Arc::new(ReturnStack::new(Arc::new(WaitingShards::new(1))));
        let all = headers(8 * EACH);
        let atoms: Vec<_> = all.iter().map(|header| AtomicPtr::new(header.as_ptr())).collect();
        let mut seen = Vec::new();
        std::thread::scope(|scope| {
            for part in atoms.chunks(EACH) {
                let stack = Arc::clone(&stack);
                scope.spawn(move || {
                    for atom in part {
                        let header = NonNull::new(atom.load(Ordering::Relaxed)).unwrap();
                        // SAFETY: each header is pushed by one thread, once.
                        assert!(unsafe { stack.push(header, header) });
                    }
                });
            }
            while seen.len() < all.len() {
                seen.extend(stack.take_all());
                std::thread::yield_now();
            }
        });
        seen.sort();
        let mut expected = all.clone();
        expected.sort();
        assert_eq!(seen, expected, "each buffer came out exactly once");
        free(all);
    }

    #[test]
    fn wakes_each_waiting_shard_once() {
        let waiting = WaitingShards::new(3);
        let calls: Vec<_> = (0..3).map(|_| Arc::new(AtomicUsize::new(0))).collect();
        for (shard, count) in calls.iter().enumerate() {
            let count = Arc::clone(count);
            waiting.set_waker(
                shard,
                Box::new(move || {
                    count.fetch_add(1, Ordering::Relaxed);
                }),
            );
        }
        waiting.wake();
        waiting.set(0, true);
        waiting.set(2, true);
        waiting.set(1, true);
        waiting.set(1, false);
        waiting.wake();
        waiting.wake();
        let counts: Vec<_> = calls.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        assert_eq!(counts, [1, 0, 1]);
    }
}
