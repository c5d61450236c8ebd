//! The ordinary memory of long reads in flight: its amount, and the order of turns.
//!
//! *Allowance*: the bytes that long reads may have under way together. It belongs to a read from the moment it gets its memory until its
//! request has ended; then the block is the program's. *Ticket*: the place in the line of a read that has to wait, by its arrival.
//!
//! A read proceeds if none is in flight, regardless of its length and of other waiters: so a blocked shard does not block others,
//! and each wait is for a request that ends without the program. Otherwise it proceeds if it is the first in the line and fits into
//! the allowance. The lock is taken twice for each long read, which lasts milliseconds; short reads never use the line.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ArenaCore;

pub(super) struct Line {
    bytes_max: usize,
    /// The same as in the state, for figures.
    under_way: AtomicUsize,
    /// The part of it that reads have kept, whose memory is in `long_bytes`.
    kept: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    under_way: usize,
    /// The next ticket's number.
    next: u64,
    waiting: BTreeMap<u64, Waiter>,
}

struct Waiter {
    shard: usize,
    /// It should try again; its shard was woken, or is about to be.
    is_called: bool,
}

/// A place in the line, released when it is dropped.
pub(crate) struct Ticket {
    shared: Arc<ArenaCore>,
    number: u64,
}

/// A part of the allowance, returned when it is dropped.
pub(crate) struct UnderWay {
    shared: Arc<ArenaCore>,
    bytes: usize,
}

impl Line {
    pub(super) fn new(bytes_max: usize) -> Line {
        Line { bytes_max, under_way: AtomicUsize::new(0), kept: AtomicUsize::new(0), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn bytes_kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    fn bytes_under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    fn set(&self, state: &mut State, under_way: usize) {
        state.under_way = under_way;
        self.under_way.store(under_way, Ordering::Relaxed);
    }

    #[cfg(debug_assertions)]
    pub(super) fn check(&self, shard: usize) {
        let state = self.lock();
        let sleeps = |waiter: &Waiter| waiter.shard == shard && !waiter.is_called;
        assert!(
            state.under_way > 0 || !state.waiting.values().any(sleeps),
            "a long read waits for memory only while another one under way gives some back"
        );
    }
}

impl State {
    /// Calls the first in the line, and all if nothing is under way. Returns their shards, a bit for each, to be woken without the lock.
    fn call(&mut self) -> u64 {
        let count = if self.under_way == 0 { usize::MAX } else { 1 };
        self.waiting.values_mut().take(count).fold(0, |shards, waiter| {
            waiter.is_called = true;
            shards | 1 << (waiter.shard % 64)
        })
    }
}

pub(super) fn enter(
    shared: &Arc<ArenaCore>,
    shard: usize,
    bytes: usize,
    ticket: &mut Option<Ticket>,
) -> Option<UnderWay> {
    let line = &shared.line;
    let mut state = line.lock();
    let number = ticket.as_ref().map(|ticket| ticket.number);
    let is_first = state.waiting.keys().next().is_none_or(|first| Some(*first) == number);
    let has_room = state.under_way.checked_add(bytes).is_some_and(|sum| sum <= line.bytes_max);
    if state.under_way > 0 && !(is_first && has_room) {
        let number = number.unwrap_or(state.next);
        state.next = state.next.max(number + 1);
        state.waiting.insert(number, Waiter { shard, is_called: false });
        drop(state);
        ticket.get_or_insert_with(|| Ticket { shared: Arc::clone(shared), number });
        return None;
    }
    if let Some(number) = number {
        state.waiting.remove(&number);
    }
    let under_way = state.under_way.saturating_add(bytes);
    line.set(&mut state, under_way);
    // The next read may fit as well.
    let shards = state.call();
    drop(state);
    if let Some(ticket) = ticket.take() {
        ticket.forget();
    }
    shared.waiting.call(shards);
    Some(UnderWay { shared: Arc::clone(shared), bytes })
}

/// As [`leave`], for a part that was [kept](UnderWay::keep).
pub(super) fn leave_kept(shared: &ArenaCore, bytes: usize) {
    shared.line.kept.fetch_sub(bytes, Ordering::Relaxed);
    leave(shared, bytes);
}

fn leave(shared: &ArenaCore, bytes: usize) {
    let mut state = shared.line.lock();
    debug_assert!(state.under_way >= bytes, "what is given back was under way");
    let under_way = state.under_way.saturating_sub(bytes);
    shared.line.set(&mut state, under_way);
    let shards = state.call();
    drop(state);
    shared.waiting.call(shards);
}

impl Ticket {
    /// Drops a ticket whose place in the line is released already.
    fn forget(self) {
        let ticket = std::mem::ManuallyDrop::new(self);
        // SAFETY: moved out once; the ticket itself is never dropped.
        drop(unsafe { std::ptr::read(&raw const ticket.shared) });
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.shared.line.lock();
        state.waiting.remove(&self.number);
        let shards = state.call();
        drop(state);
        self.shared.waiting.call(shards);
    }
}

impl UnderWay {
    /// Leaves it with an operation, whose end gives it back by [`Arena::leave_line`](super::Arena::leave_line).
    pub(crate) fn keep(self) {
        let this = std::mem::ManuallyDrop::new(self);
        this.shared.line.kept.fetch_add(this.bytes, Ordering::Relaxed);
        // SAFETY: moved out once; the value itself is never dropped.
        drop(unsafe { std::ptr::read(&raw const this.shared) });
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        leave(&self.shared, self.bytes);
    }
}

crate::_debug_parts!(Line, |line| under_way: line.under_way);

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::memory::arena::{Arena, ArenaConfig, Nodes};

    /// An arena of two shards whose allowance is 100 pages, and the number of each shard's wake-ups.
    fn arena() -> (Arena, [Arc<AtomicU64>; 2]) {
        let config = ArenaConfig {
            bytes_initial: 0,
            first_region_bytes: usize::MAX,
            bytes_max: 100 * 4096,
            overflow_bytes_max: 0,
            long_bytes_max: usize::MAX,
            shards: 2,
        };
        let arena = Arena::new(config, Nodes::default()).unwrap();
        let wakes: [Arc<AtomicU64>; 2] = std::array::from_fn(|_| Arc::default());
        for (shard, wakes) in wakes.iter().cloned().enumerate() {
            let count = move || {
                wakes.fetch_add(1, Ordering::Relaxed);
            };
            arena.set_memory_waker(shard, Box::new(count));
        }
        (arena, wakes)
    }

    const PAGE: usize = 4096;

    #[test]
    fn a_lone_read_goes_whatever_its_length_and_others_follow_in_order() {
        let (arena, wakes) = arena();
        let large = arena.enter_line(0, 1000 * PAGE, &mut None).unwrap();
        let (mut second, mut third) = (None, None);
        assert!(arena.enter_line(1, 90 * PAGE, &mut second).is_none());
        assert!(arena.enter_line(0, 5 * PAGE, &mut third).is_none());
        #[cfg(debug_assertions)]
        arena.check_line(0);
        drop(large);
        assert_eq!(wakes.each_ref().map(|wakes| wakes.load(Ordering::Relaxed)), [1, 1]);
        let kept = arena.enter_line(1, 90 * PAGE, &mut second).unwrap();
        assert!(second.is_none());
        assert_eq!(wakes[0].load(Ordering::Relaxed), 2, "there is room for the next one");
        let mut fourth = None;
        assert!(arena.enter_line(1, PAGE, &mut fourth).is_none(), "not before those that came before it");
        let small = arena.enter_line(0, 5 * PAGE, &mut third).unwrap();
        assert!(arena.enter_line(1, PAGE, &mut fourth).is_some());
        drop((kept, small));
        assert_eq!(arena.0.0.line.bytes_under_way(), 0);
    }

    #[test]
    fn a_waiter_that_gives_up_calls_the_next() {
        let (arena, wakes) = arena();
        let held = arena.enter_line(0, 50 * PAGE, &mut None).unwrap();
        let (mut large, mut small) = (None, None);
        assert!(arena.enter_line(0, 80 * PAGE, &mut large).is_none());
        assert!(arena.enter_line(1, PAGE, &mut small).is_none());
        drop(large.take());
        assert_eq!(wakes[1].load(Ordering::Relaxed), 1);
        assert!(arena.enter_line(1, PAGE, &mut small).is_some());
        held.keep();
        arena.leave_line(50 * PAGE);
        assert_eq!(arena.0.0.line.bytes_under_way(), 0);
    }

    #[test]
    fn a_shard_that_stands_still_holds_up_no_other() {
        let (arena, _) = arena();
        let held = arena.enter_line(0, 50 * PAGE, &mut None).unwrap();
        let (mut stalled, mut other) = (None, None);
        assert!(arena.enter_line(0, 80 * PAGE, &mut stalled).is_none());
        assert!(arena.enter_line(1, 80 * PAGE, &mut other).is_none());
        drop(held);
        assert!(arena.enter_line(1, 80 * PAGE, &mut other).is_some(), "nothing is under way");
    }
}
