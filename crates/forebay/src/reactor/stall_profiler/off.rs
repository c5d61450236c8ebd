//! The watch without back-traces: every call is empty.

use std::sync::Arc;
use std::time::Duration;

use crate::reactor::engine_shared::EngineShared;
use crate::reactor::shard::clock::Ticks;

/// See `on.rs`.
pub(crate) struct StallProfiler;

/// See `on.rs`.
#[derive(Clone)]
pub(crate) struct Beat;

/// See `on.rs`.
pub(crate) struct Seat;

impl StallProfiler {
    pub(crate) fn new(_shards: usize, _bound: Duration) -> StallProfiler {
        StallProfiler
    }

    pub(crate) fn beat(&self, _shard: usize) -> Beat {
        Beat
    }

    pub(crate) fn sit(&self, _shard: usize) -> Seat {
        Seat
    }

    #[cfg_attr(
        not(feature = "backtrace"),
        allow(unused_variables, reason = "only then there is something to tell")
    )]
    pub(crate) fn start(&self, engine: &Arc<EngineShared>) {
        #[cfg(feature = "backtrace")]
        engine.degrade_once(
            "back-traces",
            "the feature `backtrace` does nothing on this platform",
            "use Linux on x86_64 or aarch64; Stats::stalls has the names all the same",
        );
    }

    pub(crate) fn end(&self) {}
}

impl Beat {
    #[inline(always)]
    pub(crate) fn poll_begins(&self) {}

    #[inline(always)]
    pub(crate) fn poll_ends(&self) {}

    #[inline(always)]
    pub(crate) fn sampled(&self) -> Option<(u64, Ticks)> {
        None
    }

    pub(crate) fn findings(&self, _take: impl FnMut(u64, Arc<str>)) {}
}
