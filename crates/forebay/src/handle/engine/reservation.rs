//! [`MemoryReservation`]: parts of the arena that are promised.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::error::{Error, Result};
use crate::reactor::engine_shared::EngineShared;

/// A part of an engine's I/O memory that is promised until this is dropped; see
/// [`Engine::reserve_memory`](crate::Engine::reserve_memory).
#[must_use = "the promise ends when this is dropped"]
pub struct MemoryReservation {
    engine: Arc<EngineShared>,
    bytes: u64,
}

impl MemoryReservation {
    pub(super) fn new(engine: &Arc<EngineShared>, bytes: u64) -> Result<MemoryReservation> {
        let most = engine.arena.counts().bytes_mapped_max as u64;
        let fits = |known: u64| known.checked_add(bytes).filter(|all| *all <= most);
        match engine.reserved.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits) {
            Ok(_) => Ok(MemoryReservation { engine: engine.clone(), bytes }),
            Err(known) => Err(Error::invalid(
                "reserve memory",
                format!(
                    "{bytes} bytes of I/O memory were asked for, and of Config::arena_bytes_max, {most} bytes, {known} \
                     are promised already: ask for less, or raise Config::arena_bytes_max"
                ),
            )),
        }
    }

    pub(super) fn left(engine: &EngineShared) -> u64 {
        let most = engine.arena.counts().bytes_mapped_max as u64;
        most.saturating_sub(engine.reserved.load(Ordering::Acquire))
    }

    /// Returns the number of promised bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Debug for MemoryReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryReservation").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.engine.reserved.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}
