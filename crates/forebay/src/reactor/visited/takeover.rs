//! The end of visited shards, by the last shard of the engine that ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::{VisitedShard, VisitedShards};
use crate::memory::arena::Aside;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::shard::Shard;
use crate::reactor::shard::clock::{Clock, Ticks};

/// The pause between two attempts to get a visited shard from a visitor.
const PAUSE: Duration = Duration::from_micros(100);
/// The longest wait for completions of one of several rings.
const DRAIN_SLICE: Duration = Duration::from_millis(1);

/// A visited shard that no visitor will enter again.
struct TakenShard<'v> {
    visited: &'v VisitedShard,
    shard: Box<Shard>,
}

impl VisitedShards {
    /// Notes that a shard has ended. The last one ends the visited shards, as an ordinary shard ends: cancels, drains until the
    /// deadline, and leaks the rest. Returns the number of leaked operations.
    pub(crate) fn shard_ended(&self, engine: &Arc<EngineShared>) -> usize {
        if self.running.fetch_sub(1, Ordering::AcqRel) != 1 {
            return 0;
        }
        self.lock().closed = true;
        let clock = engine.clock();
        let allowed = u64::try_from(engine.config.shutdown_deadline.as_nanos()).unwrap_or(u64::MAX);
        let deadline = clock.now().saturating_add(clock.ticks(allowed));
        let left = || Duration::from_nanos(clock.ns(deadline.saturating_sub(clock.now())));
        let mut leaked = 0;
        let mut taken: Vec<TakenShard<'_>> = Vec::new();
        for visited in self.iter() {
            match visited.take(engine, &clock, deadline) {
                Ok(Some(shard)) => taken.push(TakenShard { visited, shard }),
                Ok(None) => {}
                // Its visitor may continue at any time, and ends it then.
                Err(load) => leaked += load.max(1),
            }
        }
        taken.iter().for_each(|taken| taken.with(Shard::begin_end));
        loop {
            let mut drained = true;
            for taken in &taken {
                drained &= taken.with(|shard| shard.drain(left().min(DRAIN_SLICE)));
            }
            if drained || left().is_zero() {
                break;
            }
        }
        for taken in taken {
            leaked += taken.finish(engine);
        }
        leaked
    }
}

impl VisitedShard {
    /// Removes the shard, for its end. `Ok(None)` if it was lost before.
    ///
    /// # Errors
    /// The number of its operations, if a visitor did not leave before the deadline.
    fn take(
        &self,
        engine: &EngineShared,
        clock: &Clock,
        deadline: Ticks,
    ) -> Result<Option<Box<Shard>>, usize> {
        self.over.store(true, Ordering::Release);
        let mut is_mine = self.lock.try_lock();
        while !is_mine && clock.now() < deadline {
            // Nothing reports that a visitor has left: most do within a microsecond.
            pause(engine);
            is_mine = self.lock.try_lock();
        }
        if !is_mine {
            self.is_abandoned.store(true, Ordering::Release);
            // The mark has the visitor look once more, and find that the shard is its to end.
            is_mine = self.lock.try_lock_or_mark();
        }
        let shard = if is_mine {
            self.inbox.end();
            Ok(self.seat.shard.take())
        } else {
            Err(self.load.load(Ordering::Relaxed) as usize)
        };
        // Its future ends. The lock is never released again, so visitors are sent elsewhere.
        self.attendant.wake();
        shard
    }
}

impl VisitedShard {
    /// Ends the shard with the lock held, for an engine that has ended. What is in flight is leaked.
    #[cold]
    pub(super) fn end_late(&self) {
        if let Some(shard) = self.seat.shard.take() {
            let engine = shard.engine().clone();
            let taken = TakenShard { visited: self, shard };
            taken.with(Shard::begin_end);
            taken.finish(&engine);
        }
    }
}

/// Lets a visitor continue.
fn pause(engine: &EngineShared) {
    #[cfg(feature = "_sim")]
    if let Some(world) = &engine.world {
        return world.pause(PAUSE);
    }
    let _ = engine;
    thread::park_timeout(PAUSE);
}

impl TakenShard<'_> {
    /// Runs `act` with the shard's memory on this thread.
    fn with<T>(&self, act: impl FnOnce(&Shard) -> T) -> T {
        Aside::with(&self.visited.seat.cache, || act(&self.shard))
    }

    /// Ends the shard and gives its memory back. Returns the number of leaked operations.
    fn finish(self, engine: &EngineShared) -> usize {
        Aside::with(&self.visited.seat.cache, || {
            let leaked = self.shard.finish_end();
            drop(self.shard);
            engine.arena.uninstall();
            leaked
        })
    }
}
