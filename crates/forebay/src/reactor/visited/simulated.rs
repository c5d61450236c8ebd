//! Visited shards of a simulated world, which is itself the runtime: it visits after completions, or is late, or stops in the middle.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use super::VisitedShard;
use crate::base::wakes;
use crate::driver::Driver;
use crate::driver::sim::{SimDriver, SimMachine, SimWake};
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::shard::{ExitState, Shard};

/// A visit that stopped in the middle, with the lock held: its thread does not run at the moment.
pub struct InterruptedVisit {
    visited: Arc<VisitedShard>,
    woken: Vec<Waker>,
    /// The state in which it is about to leave; `None` while it has not looked yet.
    left: Option<ExitState>,
}

impl VisitedShard {
    /// Returns the number of visited shards that an engine may have.
    pub fn count_max(engine: &EngineShared) -> usize {
        engine.visited.places()
    }

    /// Makes one more for an engine. It reaches `machine` by a new port, whose number is returned as well, and `wake` is woken when
    /// it has news. `None` if the limit is reached.
    pub fn add(
        engine: &Arc<EngineShared>,
        machine: Rc<dyn SimMachine>,
        wake: Arc<SimWake>,
    ) -> Option<(Arc<VisitedShard>, usize)> {
        let driver = SimDriver::new(machine, wake);
        let port = driver.port();
        let visited = &engine.visited;
        Some((visited.add(&mut visited.lock(), engine, Driver::Sim(driver))?, port))
    }

    /// Returns whether the engine has ended this shard.
    pub fn is_gone(&self) -> bool {
        self.is_over()
    }

    /// Starts a turn of the attendant, which is woken by `waker` the next time.
    pub fn attend(&self, waker: &Waker) {
        self.is_neglected.store(false, Ordering::Relaxed);
        self.attendant.register(waker);
        self.begin_flush();
    }

    /// Starts a visit that stops before it has looked, or with `has_looked` when it is about to leave. `None` if another visitor is
    /// inside.
    pub fn visit_in_part(self: &Arc<Self>, has_looked: bool) -> Option<InterruptedVisit> {
        if !self.lock.try_lock_or_mark() {
            return None;
        }
        let mut woken = Vec::new();
        let left = has_looked.then(|| wakes::collect(&mut woken, || self.inside(Shard::visit).1));
        Some(InterruptedVisit { visited: self.clone(), woken, left })
    }
}

crate::_debug_parts!(InterruptedVisit, |interrupted_visit| visited: interrupted_visit.visited);

impl InterruptedVisit {
    /// Ends the visit.
    pub fn go_on(mut self) {
        match self.left {
            None => drop(self.visited.stay(Shard::visit)),
            Some(left) => {
                let left = wakes::collect(&mut self.woken, || self.visited.release(left));
                self.visited.after(left, self.woken);
            }
        }
    }
}
