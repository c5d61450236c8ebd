//! Shard 0's visits to visited shards: on request, at an operation's turn, and while no other thread visits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Wake, Waker};

use super::VisitedShard;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::shard::{Shard, with_current};

/// Shard 0 looks this often at the rings that have operations.
const LOOK_EVERY_NS: u64 = 10_000_000;
/// It stops after this many looks that found no operation: an engine without work does not wake up. A restart needs one wake-up.
const IDLE_LOOKS_MAX: u32 = 10;

/// Visits the shards that were asked for; called on shard 0.
pub(crate) fn visit_all(shard: &Shard, mut asked: u64) {
    while asked != 0 {
        let index = asked.trailing_zeros() as usize;
        asked &= asked - 1;
        if let Some(visited) = shard.engine().visited.by_index(index) {
            visited.visit();
        }
    }
}

/// Starts shard 0's visits to the rings, unless it has them already.
#[inline]
pub(super) fn begin(engine: &Arc<EngineShared>) {
    if crate::_is_broken!(RingsUnwatched) {
        return;
    }
    if engine.visited.watched.starts() {
        engine.inboxes[0].call(Box::new(|shard| look_later(shard, &Arc::new(Looker::default()))));
    }
}

/// The waker of the timer: it looks where it is woken, on shard 0.
#[derive(Default)]
struct Looker {
    state: std::sync::Mutex<Looks>,
}

#[derive(Default)]
struct Looks {
    /// The counts of visits at the last look.
    visits: Vec<u64>,
    idle: u32,
}

impl Wake for Looker {
    fn wake(self: Arc<Self>) {
        with_current(|shard| look(shard, &self));
    }
}

fn look_later(shard: &Shard, looker: &Arc<Looker>) {
    let clock = shard.clock();
    shard.set_timer(clock.now() + clock.ticks(LOOK_EVERY_NS), None, &Waker::from(looker.clone()));
}

fn look(shard: &Shard, looker: &Arc<Looker>) {
    let visited = &shard.engine().visited;
    let is_loaded = |ring: &Arc<VisitedShard>| ring.load.load(Ordering::Relaxed) > 0;
    let mut looks = looker.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for (place, ring) in visited.iter().enumerate() {
        let visits = ring.visits.load(Ordering::Relaxed);
        if looks.visits.len() <= place {
            looks.visits.push(visits);
        } else if std::mem::replace(&mut looks.visits[place], visits) == visits && is_loaded(ring) {
            let before = ring.load.load(Ordering::Relaxed);
            ring.visit();
            if ring.load.load(Ordering::Relaxed) < before {
                ring.neglected();
            }
        }
    }
    looks.idle = if visited.iter().any(is_loaded) { 0 } else { looks.idle + 1 };
    if looks.idle < IDLE_LOOKS_MAX {
        return look_later(shard, looker);
    }
    if !visited.watched.stops(|| visited.iter().any(is_loaded)) {
        look_later(shard, looker);
    }
}

impl VisitedShard {
    /// Keeps new operations away until the runtime is driven again.
    fn neglected(&self) {
        self.is_neglected.store(true, Ordering::Relaxed);
        self.attendant.wake();
    }
}

/// Has shard 0 visit at a time of the engine's clock, unless it will before.
#[cold]
pub(super) fn visit_at(visited: &VisitedShard, at_ns: u64) {
    let earlier = |known: u64| (known == 0 || known > at_ns).then_some(at_ns.max(1));
    if visited.timer_ns.fetch_update(Ordering::AcqRel, Ordering::Acquire, earlier).is_err() {
        return;
    }
    let index = visited.inbox.index;
    visited.bell.call(Box::new(move |shard| {
        let (clock, waker) = (shard.clock(), Waker::from(Arc::new(Due { index, at_ns })));
        let wait_ns = at_ns.saturating_sub(clock.ns(clock.now()));
        shard.set_timer(clock.now() + clock.ticks(wait_ns), None, &waker);
    }));
}

/// The waker of such a timer.
struct Due {
    index: usize,
    at_ns: u64,
}

impl Wake for Due {
    fn wake(self: Arc<Self>) {
        with_current(|shard| {
            if let Some(visited) = shard.engine().visited.by_index(self.index) {
                // A later timer may have been left out because of this one, and the visit asks for it again.
                let _ = visited.timer_ns.compare_exchange(
                    self.at_ns.max(1),
                    0,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
                visited.visit();
            }
        });
    }
}
