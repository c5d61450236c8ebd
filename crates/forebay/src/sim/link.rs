//! How an engine knows its world.

use std::sync::Arc;

use crate::base::pending::Sender;
use crate::driver::meta::MetaRequest;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::shard::Ended;
use crate::sim::hub::{self, Answer};
use crate::sim::shards::Stepped;

/// Names a world; what it stands for is reached on that world's thread only, while it runs.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    world: u64,
}

impl Link {
    /// Of the world that runs on this thread.
    pub(crate) fn current() -> Option<Link> {
        Some(hub::here()).filter(|&world| world != 0).map(|world| Link { world })
    }

    /// Is this the world's thread, and does it run?
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        hub::here() == self.world
    }

    /// Has the world's machine carry out a call about files. Elsewhere the answer is given up, which answers for itself.
    pub(crate) fn ask(&self, request: MetaRequest, answer: Answer) {
        if let Some(hub) = hub::current().filter(|_| self.is_here()) {
            hub.ask(request, answer);
        }
    }

    /// Whether an open file of the machine has no name any more; `None` when the machine does not know the file.
    pub(crate) fn is_removed(&self, file: u32) -> Option<bool> {
        let hub = hub::current().filter(|_| self.is_here())?;
        hub.machine.borrow().has_no_name(file)
    }

    /// Makes the shards of a new engine, which the world steps from now on.
    pub(crate) fn adopt(&self, engine: &Arc<EngineShared>, ends: Vec<Sender<Ended>>) {
        let Some(hub) = hub::current().filter(|_| self.is_here()) else { return };
        for (index, end) in ends.into_iter().enumerate() {
            let stepped = Stepped::new(&hub, engine, index, end);
            hub.shards.borrow_mut().push(stepped);
        }
    }
}
