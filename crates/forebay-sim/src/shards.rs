//! Shards that share the world's one thread, and the conditions that they wait for.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay::internal::{EndReport, EngineShared, Sender, SimMachine, SimWake, SteppedShard};

use crate::hub::Hub;
use crate::node::NodeState;

/// A shard of the world.
pub(crate) struct SimShard {
    node: Rc<NodeState>,
    shard: SteppedShard,
    asleep: Cell<Option<Asleep>>,
    wake: Arc<SimWake>,
    port: usize,
}

/// The conditions under which a sleeping shard continues, unless it is woken before.
#[derive(Clone, Copy, Debug)]
struct Asleep {
    completions: usize,
    /// From this time on one completion is enough.
    patience_ns: u64,
    limit_ns: u64,
}

impl SimShard {
    pub(crate) fn new(
        hub: &Rc<Hub>,
        engine: &Arc<EngineShared>,
        index: usize,
        end: Sender<EndReport>,
    ) -> Rc<SimShard> {
        let wake = Arc::new(SimWake::new(hub.foreign.clone()));
        let (shard, port) = SteppedShard::new(engine, index, hub.clone(), wake.clone(), end);
        Rc::new(SimShard { node: hub.here(), shard, asleep: Cell::new(None), wake, port })
    }

    /// Returns whether a turn would find work.
    pub(crate) fn is_ready(&self, hub: &Hub) -> bool {
        if self.is_over() {
            return false;
        }
        let Some(asleep) = self.asleep.get() else { return true };
        let (done, now) = (hub.done_count(self.port), hub.now_ns());
        self.wake.is_woken()
            || done >= asleep.completions
            || (done > 0 && now >= asleep.patience_ns)
            || now >= asleep.limit_ns
    }

    /// Returns the time at which the shard continues by itself.
    pub(crate) fn next_ns(&self, hub: &Hub) -> Option<u64> {
        let asleep = self.asleep.get().filter(|_| !self.is_over())?;
        let patience_ns = if hub.done_count(self.port) > 0 { asleep.patience_ns } else { u64::MAX };
        Some(asleep.limit_ns.min(patience_ns)).filter(|&at| at != u64::MAX)
    }

    /// Returns whether the shard's thread has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.shard.is_over()
    }

    /// Returns the shard's number among the shards of the run.
    pub(crate) fn port(&self) -> usize {
        self.port
    }

    pub(crate) fn engine(&self) -> &Arc<EngineShared> {
        self.shard.engine()
    }

    /// Returns the node on which its engine was started.
    pub(crate) fn node(&self) -> &Rc<NodeState> {
        &self.node
    }

    /// Makes the shard check its timers again.
    pub(crate) fn wake(&self) {
        self.wake.wake();
    }

    /// Runs one turn, or the end when the engine is closing.
    pub(crate) fn step(&self, hub: &Hub) {
        let sleep = self.shard.turn(self.wake_up());
        let at = |wait: Option<Duration>| wait.map_or(u64::MAX, |wait| hub.after_ns(&self.node, wait));
        self.asleep.set(sleep.map(|sleep| Asleep {
            completions: sleep.completions,
            patience_ns: at(sleep.patience),
            limit_ns: at(sleep.limit),
        }));
    }

    /// Runs `visit` as if on this shard's thread, which is awake then and has its turn soon.
    pub(crate) fn visit(&self, visit: impl FnOnce()) {
        self.shard.visit(self.wake_up(), visit);
    }

    /// Ends its sleep. Returns whether it slept.
    fn wake_up(&self) -> bool {
        self.wake.take();
        self.asleep.take().is_some()
    }
}
