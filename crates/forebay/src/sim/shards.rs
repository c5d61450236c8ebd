//! Shards that share the world's one thread: each is a value that is made current for its turns.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::base::pending::Sender;
use crate::driver::sim::{SimDriver, SimMachine, SimWake};
use crate::driver::{Driver, Wait};
use crate::memory::arena::Aside;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::shard::clock::Clock;
use crate::reactor::shard::{self, EndReport, Shard};
use crate::sim::hub::Hub;
use crate::sim::node::NodeState;

/// A shard of the world, its I/O memory, and the conditions that it waits for.
pub(crate) struct SimShard {
    engine: Arc<EngineShared>,
    node: Rc<NodeState>,
    shard: RefCell<Option<Box<Shard>>>,
    end: Cell<Option<Sender<EndReport>>>,
    caches: Cell<Aside>,
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
        let driver = SimDriver::new(hub.clone(), wake.clone());
        let port = driver.port();
        let outside = Aside::NOTHING.swap();
        let (inbox, driver) = (engine.inboxes[index].clone(), Driver::Sim(driver));
        let handle = driver.wake_handle();
        let shard = shard::new_shard(inbox, engine, driver, handle, Clock::simulated());
        let caches = outside.swap();
        Rc::new(SimShard {
            engine: engine.clone(),
            node: hub.here(),
            shard: RefCell::new(Some(shard)),
            end: Cell::new(Some(end)),
            caches: Cell::new(caches),
            asleep: Cell::new(None),
            wake,
            port,
        })
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
        // Borrowed while it runs, and then it has not ended.
        self.shard.try_borrow().is_ok_and(|shard| shard.is_none())
    }

    /// Returns the shard's number among the shards of the run.
    pub(crate) fn port(&self) -> usize {
        self.port
    }

    pub(crate) fn engine(&self) -> &Arc<EngineShared> {
        &self.engine
    }

    /// Returns the node on which its engine was started.
    pub(crate) fn node(&self) -> &Rc<NodeState> {
        &self.node
    }

    /// Has the shard look at its timers again.
    pub(crate) fn wake(&self) {
        self.wake.wake();
    }

    /// Runs one turn, or the end when the engine is closing.
    pub(crate) fn step(&self, hub: &Hub) {
        let over = self.enter(|shard| {
            self.wake_up(shard);
            if shard.inbox().is_ending() {
                return Some(shard.end());
            }
            match shard.work() {
                Wait::Poll => shard.rest(Wait::Poll),
                Wait::For { completions, patience, limit, .. } => {
                    let at =
                        |wait: Option<Duration>| wait.map_or(u64::MAX, |wait| hub.after_ns(&self.node, wait));
                    self.asleep.set(Some(Asleep {
                        completions: completions as usize,
                        patience_ns: at(patience),
                        limit_ns: at(limit),
                    }));
                }
            }
            None
        });
        match over {
            Some(Ok(None)) | None => {}
            Some(Ok(Some(ended))) => self.over(Ok(ended)),
            Some(Err(panic)) => self.over(Err(panic)),
        }
    }

    /// Runs `visit` as if on this shard's thread, which is awake then and has its turn soon.
    pub(crate) fn visit(&self, visit: impl FnOnce()) {
        let visited = self.enter(|shard| {
            self.wake_up(shard);
            visit();
        });
        if let Some(Err(panic)) = visited {
            self.over(Err(panic));
        }
    }

    fn wake_up(&self, shard: &Shard) {
        self.wake.take();
        if self.asleep.take().is_some() {
            shard.rest(Wait::Poll);
        }
    }

    /// Makes the shard current while `run` runs. Returns `None` when the shard has ended.
    fn enter<T>(&self, run: impl FnOnce(&Shard) -> T) -> Option<std::thread::Result<T>> {
        let shard = self.shard.borrow();
        let shard = shard.as_deref()?;
        Some(self.current(shard, || run(shard)))
    }

    fn current<T>(&self, shard: *const Shard, run: impl FnOnce() -> T) -> std::thread::Result<T> {
        let outside = self.caches.replace(Aside::NOTHING).swap();
        // SAFETY: the shard lies in a box that is borrowed, or owned by `run`, until the other one is set
        // below.
        let before = unsafe { shard::set_current(shard) };
        let result = catch_unwind(AssertUnwindSafe(run));
        // SAFETY: the previous shard has not moved: the function that set it is below us on the stack.
        unsafe { shard::set_current(before) };
        self.caches.set(outside.swap());
        result
    }

    fn over(&self, run: std::thread::Result<EndReport>) {
        let (shard, end) = (self.shard.borrow_mut().take(), self.end.take());
        if let (Some(shard), Some(end)) = (shard, end) {
            let current: *const Shard = ptr::from_ref(&*shard);
            // It sets no shard as current at its end. A panic in there has no receiver left.
            let _ = self.current(current, move || shard::shard_over(shard, run, end));
        }
    }
}
