//! Visited shards of a world: which ring a task may enter, when the runtime drives one, and visitors that stop in the middle.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Wake, Waker};

use forebay::internal::{EngineShared, InterruptedVisit, SimMachine, SimWake, VisitedShard};

use crate::hub::Hub;
use crate::node::NodeState;

/// The workers among which a task that is polled outside of shards moves. Their rings are those of its engine, in turn.
pub(crate) const WORKERS: u64 = 4;
/// A visit of the runtime stops in the middle this often, in a million.
const INTERRUPTED_PPM: u32 = 150_000;
/// For at most so long, which is longer than the time after which shard 0 visits rings.
const INTERRUPTED_NS_MAX: u64 = 15_000_000;
/// The chance, in a million, that the runtime is not driven for a while, or never again, after one of its visits.
const UNDRIVEN_PPM: u32 = 20_000;
const UNDRIVEN_NS_MAX: u64 = 50_000_000;

/// A visited shard of the world, and the runtime's task that drives it.
pub(crate) struct Ring {
    engine: Arc<EngineShared>,
    node: Rc<NodeState>,
    visited: Arc<VisitedShard>,
    port: usize,
    wake: Arc<SimWake>,
    waker: Waker,
    /// A stopped visit, and the time at which it continues.
    interrupted: RefCell<Option<(u64, InterruptedVisit)>>,
    /// Until then the runtime is not driven.
    undriven_until_ns: Cell<u64>,
}

/// Wakes the runtime's task.
struct Attendant(Arc<SimWake>);

impl Wake for Attendant {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}

impl Ring {
    /// Makes the next ring of an engine. `None` if it has enough.
    pub(crate) fn new(hub: &Rc<Hub>, engine: &Arc<EngineShared>) -> Option<Rc<Ring>> {
        let wake = Arc::new(SimWake::new(hub.foreign.clone()));
        let (visited, port) = VisitedShard::add(engine, hub.clone(), wake.clone())?;
        let waker = Waker::from(Arc::new(Attendant(wake.clone())));
        visited.attend(&waker);
        Some(Rc::new(Ring {
            engine: engine.clone(),
            node: hub.here(),
            visited,
            port,
            wake,
            waker,
            interrupted: RefCell::new(None),
            undriven_until_ns: Cell::new(0),
        }))
    }

    pub(crate) fn engine(&self) -> &Arc<EngineShared> {
        &self.engine
    }

    /// Returns the node on which its engine was started.
    pub(crate) fn node(&self) -> &Rc<NodeState> {
        &self.node
    }

    pub(crate) fn port(&self) -> usize {
        self.port
    }

    fn goes_on_ns(&self) -> Option<u64> {
        self.interrupted.borrow().as_ref().map(|interrupted| interrupted.0)
    }

    /// Returns whether an interrupted visit continues now.
    pub(crate) fn is_due(&self, hub: &Hub) -> bool {
        self.goes_on_ns().is_some_and(|at_ns| hub.now_ns() >= at_ns)
    }

    fn has_news(&self, hub: &Hub) -> bool {
        !self.visited.is_gone() && (self.wake.is_woken() || hub.done_count(self.port) > 0)
    }

    /// Returns whether the runtime would visit, or an interrupted visit continue.
    pub(crate) fn is_ready(&self, hub: &Hub) -> bool {
        match self.goes_on_ns() {
            Some(at_ns) => hub.now_ns() >= at_ns,
            None => self.has_news(hub) && hub.now_ns() >= self.undriven_until_ns.get(),
        }
    }

    /// Returns the time at which it becomes ready by itself.
    pub(crate) fn next_ns(&self, hub: &Hub) -> Option<u64> {
        let visits_ns = || self.has_news(hub).then(|| self.undriven_until_ns.get());
        self.goes_on_ns().or_else(visits_ns).filter(|&at_ns| at_ns != u64::MAX)
    }

    /// Lets the interrupted visit continue, if any.
    pub(crate) fn go_on(&self) {
        let interrupted = self.interrupted.borrow_mut().take();
        if let Some((_, interrupted)) = interrupted {
            interrupted.go_on();
        }
    }

    /// Runs a turn of the runtime's task, or the rest of an interrupted visit.
    pub(crate) fn step(&self, hub: &Hub) {
        if self.goes_on_ns().is_some() {
            return self.go_on();
        }
        self.wake.take();
        self.visited.attend(&self.waker);
        let ends = self.choose_end(hub);
        if let Some(until_ns) = ends.undriven_until_ns {
            self.undriven_until_ns.set(until_ns);
        }
        let Some((has_looked, goes_on_ns)) = ends.interrupted else { return self.visited.visit() };
        let visit = self.visited.visit_in_part(has_looked);
        *self.interrupted.borrow_mut() = visit.map(|visit| (goes_on_ns, visit));
    }

    fn choose_end(&self, hub: &Hub) -> Ends {
        let source = &mut hub.fate.borrow_mut().source;
        let interrupted = source
            .ppm(INTERRUPTED_PPM)
            .then(|| (source.below(2) == 1, hub.now_ns() + source.below(INTERRUPTED_NS_MAX)));
        let undriven_until_ns = source.ppm(UNDRIVEN_PPM).then(|| match source.below(16) {
            // The runtime is dropped.
            15 => u64::MAX,
            _ => hub.now_ns() + source.below(UNDRIVEN_NS_MAX),
        });
        Ends { interrupted, undriven_until_ns }
    }
}

/// The way in which a visit of the runtime ends.
struct Ends {
    /// Whether it stops after its look, and the time at which it continues.
    interrupted: Option<(bool, u64)>,
    /// The time until which the runtime is not driven after it.
    undriven_until_ns: Option<u64>,
}
