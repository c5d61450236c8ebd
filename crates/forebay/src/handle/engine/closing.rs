//! The end of an engine: its report, and the guard that begins it.

use std::sync::{Arc, Mutex, Weak};

use super::Engine;
use crate::base::pending::Pending;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::shard;

/// The outcome of an engine's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloseReport {
    /// Operations that the device did not finish before the deadline; their memory and files were leaked.
    pub leaked_operations: usize,
    /// Shards whose thread had died before.
    pub lost_shards: usize,
}

/// Begins the end when the last handle is dropped. Never waits: it may run on a shard's own thread.
pub(super) struct Guard {
    pub(super) shared: Arc<EngineShared>,
    pub(super) ends: Mutex<Vec<Pending<shard::Ended>>>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.shared.is_forked() {
            self.shared.begin_close();
        }
    }
}

/// A reference to an engine that does not keep it running.
#[derive(Clone)]
pub(crate) struct WeakEngine {
    shared: Arc<EngineShared>,
    guard: Weak<Guard>,
}

impl Engine {
    pub(crate) fn downgrade(&self) -> WeakEngine {
        WeakEngine { shared: self.shared.clone(), guard: Arc::downgrade(&self.guard) }
    }
}

impl WeakEngine {
    pub(crate) fn shared(&self) -> &Arc<EngineShared> {
        &self.shared
    }

    /// Returns a handle, as long as the program has one.
    pub(crate) fn upgrade(&self) -> Option<Engine> {
        Some(Engine { shared: self.shared.clone(), guard: self.guard.upgrade()? })
    }
}
