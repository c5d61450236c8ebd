//! Admission of reads: limits the bytes of blocks that are read concurrently, and handles blocks that the program does not collect.
//!
//! A [`Permit`] belongs to the read, not to the future that requested it. It travels with the read's state to the shard and is
//! released when the read completes there, whether or not the program polls. The block is then left in the pool
//! ([`Permit::leave`]), where its future finds it. A full pool evicts its oldest block, and a future that polls too late reads
//! again. So a future that is never polled again holds no permit, and its block does not keep others out.
//!
//! Futures without memory wait in a FIFO queue. At its turn a future is *called*: it is woken, and its bytes are reserved. A
//! called future that does not poll loses its reservation once nothing else remains that could admit others, that is, when no read
//! is in flight.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use forebay::{Block, Walk, WalkMany, WalkOne};

use crate::is_broken;
use crate::value::HeldShare;

/// Number of completed reads after which a called future that has not polled loses its reservation in any case.
const LATE: u64 = 1024;

/// A share of memory for reads in flight and for blocks that their futures have not collected yet.
#[derive(Debug)]
pub(crate) struct Pool {
    /// The limit for bytes of reads in flight. A single read may be longer.
    reads_max: u64,
    /// The limit for bytes of blocks that wait for their futures. A single block may be longer.
    left_max: u64,
    /// Bytes of reads in flight.
    reads: AtomicU64,
    /// Number of futures in the line, waiting or called.
    queued: AtomicUsize,
    line: Mutex<Line>,
    left: Mutex<LeftBlocks>,
}

/// Futures that wait for memory, in the order of their arrival.
#[derive(Debug, Default)]
struct Line {
    next: u64,
    /// Bytes requested by each waiting future.
    waiting: BTreeMap<u64, (u64, Waker)>,
    /// Bytes reserved for each called future, and the value of `ends` when it was called.
    called: BTreeMap<u64, (u64, u64)>,
    /// The sum of the reserved bytes.
    reserved: u64,
    /// Reads that completed while the line was not empty.
    ends: u64,
}

/// Blocks that wait for their futures.
#[derive(Debug, Default)]
struct LeftBlocks {
    /// The number of the first block. The others follow in order.
    first: u64,
    evictable: VecDeque<Option<LeftBlock>>,
    bytes: u64,
    /// Blocks whose futures polled too late once already. They are kept, up to half of the share.
    kept: BTreeMap<u64, LeftBlock>,
    kept_bytes: u64,
    next_kept: u64,
}

#[derive(Debug)]
struct LeftBlock {
    block: Block,
    _held: Option<HeldShare>,
}

/// Admission for the bytes of one read in flight.
#[derive(Debug)]
pub(crate) struct Permit {
    pool: Arc<Pool>,
    bytes: u64,
}

/// The place where a block was left for its future. Dropping it removes the block if it is still there.
#[derive(Debug)]
pub(crate) struct Ticket {
    /// `None` once the block was collected.
    pool: Option<Arc<Pool>>,
    number: u64,
    is_kept: bool,
}

/// The future returned by [`Pool::begin`].
#[derive(Debug)]
pub(crate) struct Waiter {
    pool: Arc<Pool>,
    bytes: u64,
    /// The place in the line, once the future has one.
    number: Option<u64>,
}

impl Pool {
    pub(crate) fn new(reads_max: u64, left_max: u64) -> Arc<Pool> {
        Arc::new(Pool {
            reads_max,
            left_max,
            reads: AtomicU64::new(0),
            queued: AtomicUsize::new(0),
            line: Mutex::default(),
            left: Mutex::default(),
        })
    }

    /// Returns the limit for bytes of reads in flight.
    pub(crate) fn reads_max(&self) -> u64 {
        self.reads_max
    }

    /// Returns the bytes of reads in flight and of blocks that wait for their futures.
    pub(crate) fn bytes(&self) -> u64 {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        self.reads.load(Ordering::Relaxed) + left.bytes + left.kept_bytes
    }

    /// Waits until a read of `bytes` bytes may start. A read alone is always admitted, however long it is.
    pub(crate) fn begin(self: &Arc<Self>, bytes: u64) -> Waiter {
        Waiter { pool: self.clone(), bytes, number: None }
    }

    /// Returns a permit for a read of `bytes` bytes if it fits now and the line is empty.
    pub(crate) fn try_begin(self: &Arc<Self>, bytes: u64) -> Option<Permit> {
        let is_free = self.queued.load(Ordering::SeqCst) == 0 && self.take(bytes, 0);
        is_free.then(|| Permit { pool: self.clone(), bytes })
    }

    fn take(&self, bytes: u64, reserved: u64) -> bool {
        let fits =
            |reads| (reads == 0 || reads + reserved + bytes <= self.reads_max).then_some(reads + bytes);
        self.reads.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok()
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the bytes of a completed read and calls waiting futures.
    fn end(&self, bytes: u64) {
        let reads = self.reads.fetch_sub(bytes, Ordering::SeqCst);
        debug_assert!(reads >= bytes, "a permit is given back once");
        // Either a future that starts to wait sees the bytes released above, or this check sees that it waits.
        if self.queued.load(Ordering::SeqCst) > 0 {
            let mut line = self.line();
            line.ends += 1;
            self.call(line);
        }
    }

    /// Calls the futures at the head of the line whose reads fit.
    fn call(&self, mut line: MutexGuard<'_, Line>) {
        let mut wakers = Vec::new();
        let is_last = self.reads.load(Ordering::SeqCst) == 0 && !is_broken!(WokenKeepsItsRoom);
        line.forget_late(is_last);
        while let Some(first) = line.waiting.first_entry() {
            let (number, bytes) = (*first.key(), first.get().0);
            let reads = self.reads.load(Ordering::SeqCst);
            let is_alone = reads == 0 && line.reserved == 0;
            if !is_alone && reads + line.reserved + bytes > self.reads_max {
                break;
            }
            wakers.extend(line.waiting.remove(&number).map(|(_, waker)| waker));
            let ends = line.ends;
            line.called.insert(number, (bytes, ends));
            line.reserved += bytes;
        }
        if is_last {
            // No read in flight remains whose completion could call the others, and the called futures may never poll. So all
            // waiting futures are woken and check for themselves.
            wakers.extend(std::mem::take(&mut line.waiting).into_values().map(|(_, waker)| waker));
        }
        self.count(&line);
        drop(line);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn count(&self, line: &Line) {
        debug_assert_eq!(
            line.reserved,
            line.called.values().map(|(bytes, _)| bytes).sum(),
            "reserved are the bytes of those that were called"
        );
        self.queued.store(line.waiting.len() + line.called.len(), Ordering::SeqCst);
    }

    fn leave(self: &Arc<Self>, block: Block, held: Option<HeldShare>, is_again: bool) -> Ticket {
        let bytes = block.pinned_bytes() as u64;
        let entry = LeftBlock { block, _held: held };
        // Dropped after the lock is released.
        let mut evicted = Vec::new();
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let is_kept = is_again && left.kept_bytes + bytes <= self.left_max / 2;
        let number = if is_kept {
            left.keep(entry, bytes)
        } else {
            left.evictable.push_back(Some(entry));
            left.bytes += bytes;
            left.first + left.evictable.len() as u64 - 1
        };
        while left.bytes + left.kept_bytes > self.left_max && left.evictable.len() > 1 {
            evicted.extend(left.pop());
        }
        drop(left);
        Ticket { pool: Some(self.clone()), number, is_kept }
    }

    /// Drops all left blocks that may be evicted. Returns whether it dropped any.
    pub(crate) fn evict(&self) -> bool {
        let evicted = {
            let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            left.first += left.evictable.len() as u64;
            left.bytes = 0;
            std::mem::take(&mut left.evictable)
        };
        evicted.iter().any(Option::is_some)
    }
}

impl Line {
    /// Cancels the reservations of called futures that have not polled.
    fn forget_late(&mut self, is_last: bool) {
        while let Some(first) = self.called.first_entry() {
            let (bytes, called) = *first.get();
            if is_broken!(WokenKeepsItsRoom) || (!is_last && self.ends - called < LATE) {
                return;
            }
            self.reserved -= bytes;
            first.remove();
        }
    }
}

impl LeftBlocks {
    fn keep(&mut self, entry: LeftBlock, bytes: u64) -> u64 {
        let number = self.next_kept;
        self.next_kept += 1;
        self.kept.insert(number, entry);
        self.kept_bytes += bytes;
        number
    }

    /// Removes and returns the oldest block that may be evicted.
    fn pop(&mut self) -> Option<LeftBlock> {
        let popped = self.evictable.pop_front()?;
        self.first += 1;
        self.bytes -= popped.as_ref().map_or(0, |entry| entry.block.pinned_bytes() as u64);
        debug_assert!(self.bytes == 0 || !self.evictable.is_empty(), "bytes that are left are a block's");
        popped
    }

    fn take(&mut self, number: u64, is_kept: bool) -> Option<LeftBlock> {
        if is_kept {
            let taken = self.kept.remove(&number)?;
            self.kept_bytes -= taken.block.pinned_bytes() as u64;
            debug_assert!(self.kept_bytes == 0 || !self.kept.is_empty(), "bytes that are kept are a block's");
            return Some(taken);
        }
        debug_assert!(number < self.first + self.evictable.len() as u64, "a ticket's block was left before");
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let taken = self.evictable.get_mut(index)?.take()?;
        self.bytes -= taken.block.pinned_bytes() as u64;
        while self.evictable.front().is_some_and(Option::is_none) {
            self.pop();
        }
        Some(taken)
    }
}

impl Permit {
    /// Splits off up to `bytes` bytes as a separate permit.
    pub(crate) fn split(&mut self, bytes: u64) -> Permit {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Permit { pool: self.pool.clone(), bytes }
    }

    /// Ends the read and returns the ticket at which its future finds the block. `is_again`: the block was
    /// read before and evicted.
    pub(crate) fn leave(self, block: Block, held: Option<HeldShare>, is_again: bool) -> Ticket {
        self.pool.leave(block, held, is_again)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.pool.end(self.bytes);
        }
    }
}

impl Ticket {
    /// Returns the block, or `None` if it was evicted.
    pub(crate) fn take(mut self) -> Option<Block> {
        self.remove()
    }

    fn remove(&mut self) -> Option<Block> {
        let pool = self.pool.take()?;
        let taken = {
            let mut left = pool.left.lock().unwrap_or_else(PoisonError::into_inner);
            left.take(self.number, self.is_kept)
        };
        taken.map(|taken| taken.block)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        drop(self.remove());
    }
}

impl Future for Waiter {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit> {
        let (bytes, pool) = (self.bytes, self.pool.clone());
        if self.number.is_none()
            && let Some(permit) = pool.try_begin(bytes)
        {
            return Poll::Ready(permit);
        }
        let mut line = pool.line();
        let number = *self.number.get_or_insert_with(|| {
            line.next += 1;
            line.next
        });
        if let Some((reserved, _)) = line.called.remove(&number) {
            line.reserved -= reserved;
        }
        line.waiting.insert(number, (bytes, context.waker().clone()));
        // Counted before the check below, so that a read that completes in between calls this future.
        pool.count(&line);
        let is_first = line.waiting.first_key_value().is_some_and(|(first, _)| *first == number);
        if !is_first || !pool.take(bytes, line.reserved) {
            return Poll::Pending;
        }
        line.waiting.remove(&number);
        self.number = None;
        // More futures of the line may fit now.
        pool.call(line);
        Poll::Ready(Permit { pool, bytes })
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let mut line = self.pool.line();
            line.waiting.remove(&number);
            if let Some((reserved, _)) = line.called.remove(&number) {
                line.reserved -= reserved;
            }
            self.pool.call(line);
        }
    }
}

/// A walk that needs a permit to start.
pub(crate) trait PermitHolder: Walk {
    /// Returns the slot of its permit, which is `None` once the permit has moved on.
    fn permit(&mut self) -> &mut Option<Permit>;
}

/// The future of one walk or of several together.
pub(crate) trait WalkHandle: Future + Unpin {
    /// Calls `look` with the permit of each walk that no shard has accepted yet.
    fn each_unbegun(&mut self, look: impl FnMut(&mut Option<Permit>));
}

impl<W: PermitHolder> WalkHandle for WalkOne<'_, W> {
    fn each_unbegun(&mut self, mut look: impl FnMut(&mut Option<Permit>)) {
        self.unbegun().into_iter().for_each(|walk| look(walk.permit()));
    }
}

impl<W: PermitHolder> WalkHandle for WalkMany<W> {
    fn each_unbegun(&mut self, mut look: impl FnMut(&mut Option<Permit>)) {
        self.unbegun().for_each(|walk| look(walk.permit()));
    }
}

/// Walks that have their permits, until they complete.
///
/// While the shard's inbox is full, the walks are still in the program's hands. Their permits return to the pool, and new permits
/// are requested before the next attempt.
pub(crate) struct Admission<H> {
    walks: H,
    /// Bytes per walk, and the wait for new permits.
    missing: Option<(u64, Waiter)>,
}

impl<H: WalkHandle> Admission<H> {
    pub(crate) fn new(walks: H) -> Admission<H> {
        Admission { walks, missing: None }
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<H::Output> {
        if let Some((each, waiting)) = &mut self.missing {
            let mut permit = ready!(Pin::new(waiting).poll(context));
            let each = *each;
            self.walks.each_unbegun(|of_walk| *of_walk = Some(permit.split(each)));
            self.missing = None;
        }
        let polled = Pin::new(&mut self.walks).poll(context);
        if polled.is_pending() {
            let mut given_up: Option<(u64, u64, Arc<Pool>)> = None;
            self.walks.each_unbegun(|permit| {
                if let Some(permit) = permit.take() {
                    let sum = given_up.as_ref().map_or(0, |(_, sum, _)| *sum) + permit.bytes;
                    given_up = Some((permit.bytes, sum, permit.pool.clone()));
                }
            });
            // The waker is already registered where the walks wait for the shard's inbox.
            self.missing = given_up.map(|(each, sum, pool)| (each, pool.begin(sum)));
        }
        polled
    }

    pub(crate) async fn wait(mut self) -> H::Output {
        poll_fn(|context| self.poll(context)).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use futures::FutureExt;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Count {
        fn get(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }
    }

    fn poll(waiting: &mut Waiter, count: &Arc<Count>) -> Option<Permit> {
        let waker = Waker::from(count.clone());
        match Pin::new(waiting).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[test]
    fn reads_wait_for_room_and_one_may_be_longer_than_all_of_it() {
        let (pool, count) = (Pool::new(100, 0), Arc::default());
        let first = pool.begin(200).now_or_never().unwrap();
        let mut second = pool.begin(1);
        for _ in 0..3 {
            assert!(poll(&mut second, &count).is_none());
        }
        drop(first);
        assert_eq!(count.get(), 1);
        drop(poll(&mut second, &count).unwrap());
        assert_eq!(pool.bytes(), 0);
        assert!(pool.try_begin(100).is_some());
    }

    /// Regression: many keys requested together need nearly all of the share. A read that released little while half of the share
    /// was free woke no waiter, and the future that needed more than half waited forever.
    #[test]
    fn one_that_waits_for_much_is_woken_by_one_that_had_little() {
        let (pool, count) = (Pool::new(100, 0), Arc::default());
        let little = pool.try_begin(1).unwrap();
        let mut much = pool.begin(100);
        assert!(poll(&mut much, &count).is_none());
        drop(little);
        assert_eq!(count.get(), 1);
        assert!(poll(&mut much, &count).is_some());
    }

    /// Regression: newcomers that requested little got the released memory, and a future that had waited longer for much memory
    /// never got enough.
    #[test]
    fn newcomers_do_not_overtake_the_line() {
        let (pool, count) = (Pool::new(100, 0), Arc::default());
        let permits: Vec<Permit> = (0..10).map(|_| pool.try_begin(10).unwrap()).collect();
        let mut much = pool.begin(80);
        assert!(poll(&mut much, &count).is_none());
        for (number, permit) in permits.into_iter().enumerate() {
            drop(permit);
            assert!(number == 9 || pool.try_begin(10).is_none(), "a newcomer overtook after {number}");
            if let Some(permit) = poll(&mut much, &count) {
                assert_eq!(number, 7);
                drop(permit);
                return;
            }
        }
        panic!("it never got its turn");
    }

    #[test]
    fn one_that_is_called_and_does_not_come_stops_no_other() {
        let (pool, counts) = (Pool::new(30, 0), [(); 6].map(|()| Arc::<Count>::default()));
        let permits: Vec<Permit> = (0..3).map(|_| pool.try_begin(10).unwrap()).collect();
        let mut waiting: Vec<Waiter> = counts.iter().map(|_| pool.begin(10)).collect();
        for (waiting, count) in waiting.iter_mut().zip(&counts) {
            assert!(poll(waiting, count).is_none());
        }
        // Three futures are called and are not polled again.
        drop(permits);
        assert!(counts[3..].iter().all(|count| count.get() == 1), "those behind them are not woken");
        let fourth = poll(&mut waiting[3], &counts[3]).expect("the fourth");
        let fifth = poll(&mut waiting[4], &counts[4]);
        drop((fourth, fifth));
        assert!(poll(&mut waiting[5], &counts[5]).is_some());
        assert!(pool.try_begin(10).is_some());
        // The called futures poll late and are admitted.
        assert!(poll(&mut waiting[0], &counts[0]).is_some());
    }

    #[test]
    fn one_that_is_dropped_passes_its_turn_on() {
        let (pool, counts) = (Pool::new(20, 0), [(); 2].map(|()| Arc::<Count>::default()));
        let (one, two) = (pool.try_begin(10).unwrap(), pool.try_begin(10).unwrap());
        let (mut first, mut second) = (pool.begin(10), pool.begin(10));
        assert!(poll(&mut first, &counts[0]).is_none() && poll(&mut second, &counts[1]).is_none());
        drop(one);
        assert_eq!((counts[0].get(), counts[1].get()), (1, 0));
        drop(first);
        assert_eq!(counts[1].get(), 1);
        assert!(poll(&mut second, &counts[1]).is_some());
        drop(two);
        assert_eq!(pool.bytes(), 0);
    }

    #[test]
    fn what_is_not_taken_is_evicted_by_what_comes_later() {
        let config = forebay::Config::new().shards(1).driver(forebay::DriverChoice::Threads);
        let engine = forebay::Engine::start(config).unwrap();
        let block = engine.block_from(&[7; 4096]).unwrap().freeze();
        let pool = Pool::new(100, 3 * block.pinned_bytes() as u64);
        let leave = |is_again| pool.try_begin(10).unwrap().leave(block.clone(), None, is_again);
        let kept = leave(true);
        let tickets: Vec<Ticket> = (0..5).map(|_| leave(false)).collect();
        let taken: Vec<bool> = tickets.into_iter().rev().map(|ticket| ticket.take().is_some()).collect();
        assert_eq!(taken, [true, true, false, false, false]);
        assert!(kept.take().is_some());
        assert_eq!(pool.bytes(), 0);
        let (given_up, evicted) = (leave(false), leave(false));
        drop(given_up);
        assert!(pool.evict() && !pool.evict());
        assert!(evicted.take().is_none() && leave(false).take().is_some());
        assert_eq!(pool.bytes(), 0);
    }
}
