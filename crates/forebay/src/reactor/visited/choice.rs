//! Which ring an operation may use: that of the Tokio worker which polls it, or one that a simulated world chooses.

#[cfg(feature = "_sim")]
use std::cell::Cell;
use std::sync::Arc;
#[cfg(feature = "_sim")]
use std::sync::atomic::Ordering;
use std::task::Context;

use super::VisitedShard;
#[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
use super::runtime;
use crate::base::here::{self, Waits};
use crate::base::wakes;
use crate::reactor::engine_shared::EngineShared;

/// Runs `run` with the ring of the task that is polled. `None` without a ring, or inside of another call of this function.
#[inline]
pub(super) fn with_ring<T>(
    engine: &Arc<EngineShared>,
    run: impl FnOnce(&Arc<VisitedShard>) -> T,
) -> Option<T> {
    // The step of a walk, which runs under a ring's lock and counts as on a shard: another ring would wake under that lock.
    if wakes::is_collecting() {
        debug_assert!(here::is_on_shard(), "no code of the program but steps runs under a ring's lock");
        return None;
    }
    // A thread in a `.wait()` cannot drive its runtime. Without shard 0 no thread would serve a ring.
    if engine.visited.places() == 0 || here::waits() != Waits::No || engine.inboxes[0].failure().is_some() {
        return None;
    }
    #[cfg(feature = "_sim")]
    if let Some(world) = &engine.world {
        return with_chosen(engine, world.ring(engine)?, run);
    }
    #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
    return runtime::with_ring(engine, run);
    #[cfg(not(all(feature = "tokio", target_os = "linux", not(forebay_no_uring))))]
    None
}

/// Runs `run` with the ring that a world chose.
#[cfg(feature = "_sim")]
fn with_chosen<T>(
    engine: &Arc<EngineShared>,
    (place, is_inline): (usize, bool),
    run: impl FnOnce(&Arc<VisitedShard>) -> T,
) -> Option<T> {
    std::thread_local! {
        static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    }
    struct InsideMark;
    impl Drop for InsideMark {
        fn drop(&mut self) {
            IS_INSIDE.set(false);
        }
    }
    if IS_INSIDE.replace(true) {
        return None;
    }
    let _mark = InsideMark;
    let ring = engine.visited.iter().nth(place)?;
    ring.note_inline(is_inline);
    (!ring.is_neglected.load(Ordering::Relaxed)).then(|| run(ring))
}

/// Returns whether the task that is polled may continue in this turn. If not, it has been woken for the next one.
#[inline]
pub(super) fn proceeds(engine: &EngineShared, context: &mut Context<'_>) -> bool {
    #[cfg(feature = "_sim")]
    if let Some(world) = &engine.world {
        return world.proceeds(context.waker());
    }
    let _ = engine;
    #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
    {
        let turn = tokio::task::coop::poll_proceed(context);
        if let std::task::Poll::Ready(turn) = &turn {
            turn.made_progress();
        }
        turn.is_ready()
    }
    #[cfg(not(all(feature = "tokio", target_os = "linux", not(forebay_no_uring))))]
    {
        let _ = context;
        true
    }
}
