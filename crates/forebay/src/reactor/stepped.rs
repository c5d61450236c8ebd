//! A shard without a thread: a simulated world steps it, and it is the thread's current shard during a step.

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

/// A shard and its cache of I/O memory. It belongs to its world's thread.
pub struct SteppedShard {
    engine: Arc<EngineShared>,
    shard: RefCell<Option<Box<Shard>>>,
    end: Cell<Option<Sender<EndReport>>>,
    caches: Cell<Aside>,
}

/// The conditions under which a shard has its next turn, unless it is woken before. Times count from the end of the turn.
#[derive(Clone, Copy, Debug)]
pub struct ShardSleep {
    /// The number of completions.
    pub completions: usize,
    /// After this time one completion is enough.
    pub patience: Option<Duration>,
    /// After this time it has a turn without any.
    pub limit: Option<Duration>,
}

impl SteppedShard {
    /// Makes the shard of an engine with this index. It reaches `machine` by a new port, whose number is returned as well, and
    /// `wake` is woken when it has news. Its end is reported through `end`.
    pub fn new(
        engine: &Arc<EngineShared>,
        index: usize,
        machine: Rc<dyn SimMachine>,
        wake: Arc<SimWake>,
        end: Sender<EndReport>,
    ) -> (SteppedShard, usize) {
        let driver = SimDriver::new(machine, wake);
        let port = driver.port();
        let outside = Aside::NOTHING.swap();
        let (inbox, driver) = (engine.inboxes[index].clone(), Driver::Sim(driver));
        let handle = driver.wake_handle();
        let shard = shard::new_shard(inbox, engine, driver, handle, Clock::simulated());
        let caches = outside.swap();
        let stepped = SteppedShard {
            engine: engine.clone(),
            shard: RefCell::new(Some(shard)),
            end: Cell::new(Some(end)),
            caches: Cell::new(caches),
        };
        (stepped, port)
    }

    /// Returns the engine that the shard belongs to.
    pub fn engine(&self) -> &Arc<EngineShared> {
        &self.engine
    }

    /// Returns whether it has ended; false during a turn.
    pub fn is_over(&self) -> bool {
        self.shard.try_borrow().is_ok_and(|shard| shard.is_none())
    }

    /// Runs one turn, or the end when the engine is closing. `has_slept` is whether the last turn ended in a sleep. Returns the
    /// sleep that it starts, or `None` if work is left, or if it has ended.
    pub fn turn(&self, has_slept: bool) -> Option<ShardSleep> {
        let mut sleep = None;
        let over = self.enter(|shard| {
            if has_slept {
                shard.rest(Wait::Poll);
            }
            if shard.inbox().is_ending() {
                return Some(shard.end());
            }
            match shard.work() {
                Wait::Poll => shard.rest(Wait::Poll),
                Wait::For { completions, patience, limit, .. } => {
                    sleep = Some(ShardSleep { completions: completions as usize, patience, limit });
                }
            }
            None
        });
        match over {
            Some(Ok(None)) | None => {}
            Some(Ok(Some(ended))) => self.over(Ok(ended)),
            Some(Err(panic)) => self.over(Err(panic)),
        }
        sleep
    }

    /// Runs `visit` as if on this shard's thread, which has its turn soon. `has_slept` is as for [`turn`](SteppedShard::turn).
    pub fn visit(&self, has_slept: bool, visit: impl FnOnce()) {
        let visited = self.enter(|shard| {
            if has_slept {
                shard.rest(Wait::Poll);
            }
            visit();
        });
        if let Some(Err(panic)) = visited {
            self.over(Err(panic));
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

crate::_debug_parts!(SteppedShard, |stepped_shard| is_over: stepped_shard.is_over());
