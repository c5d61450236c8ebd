//! The reference that an engine holds to its world.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use forebay::internal::{
    EndReport, EngineShared, MachineCall, MetaRequest, Sender, Turns, World, as_no_shard, here,
};

use crate::hub;
use crate::shards::SimShard;

/// The name of a node of a world. The world itself is reached only on its own thread, and only while it runs.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    world: u64,
    node: u32,
}

impl Link {
    /// Returns a link to a node of the world with this number.
    pub(crate) fn new(world: u64, node: u32) -> Link {
        Link { world, node }
    }
}

impl Turns for Link {
    fn withdraw(&self, call: u64) {
        if let Some(hub) = hub::current().filter(|_| self.is_here()) {
            hub.withdraw(call);
        }
    }

    fn detach(&self, call: u64) {
        if let Some(hub) = hub::current().filter(|_| self.is_here()) {
            hub.detach(call);
        }
    }
}

impl World for Link {
    #[inline]
    fn is_here(&self) -> bool {
        here::world() == self.world
    }

    fn ask(&self, request: MetaRequest, call: MachineCall) -> Option<u64> {
        hub::current().filter(|_| self.is_here())?.ask(self.node, request, call)
    }

    fn refuse(&self, engine: usize) {
        if let Some(hub) = hub::current().filter(|_| self.is_here()) {
            hub.refuse(engine);
        }
    }

    fn end_calls(&self, engine: usize, limit: Duration) -> Vec<&'static str> {
        let Some(hub) = hub::current().filter(|_| self.is_here()) else { return Vec::new() };
        // Tasks that it wakes run on other threads than the shard that waits.
        as_no_shard(|| hub.end_calls(self.node, engine, limit))
    }

    fn is_removed(&self, file: u32) -> Option<bool> {
        let hub = hub::current().filter(|_| self.is_here())?;
        hub.node(self.node).machine.borrow().has_no_name(file)
    }

    fn adopt(&self, engine: &Arc<EngineShared>, ends: Vec<Sender<EndReport>>) {
        let Some(hub) = hub::current().filter(|_| self.is_here()) else { return };
        for (index, end) in ends.into_iter().enumerate() {
            let shard = SimShard::new(&hub, engine, index, end);
            hub.shards.borrow_mut().push(shard);
        }
        hub.add_rings(engine);
    }

    fn ring(&self, engine: &Arc<EngineShared>) -> Option<(usize, bool)> {
        hub::current().filter(|_| self.is_here())?.ring_of_worker(engine)
    }

    fn proceeds(&self, waker: &Waker) -> bool {
        hub::current().is_none_or(|hub| hub.proceeds(waker))
    }

    fn pause(&self, pause: Duration) {
        if let Some(hub) = hub::current() {
            // Visits that continue meanwhile run on other threads than the waiting shard.
            as_no_shard(|| hub.pause(pause));
        }
    }
}
