//! A shard: one thread with one driver, one op table, one executor and one inbox.
//!
//! The functions here work inside tasks that run on a shard; see
//! [`Engine::spawn_on_shard`](crate::Engine::spawn_on_shard). Channels and locks that only need wakers
//! (async-channel, futures, `tokio::sync`) work there too.
//!
//! ```
//! use forebay::{Class, Config, Engine, Open, shard};
//! # fn main() -> forebay::Result<()> {
//! let engine = Engine::start(Config::new())?;
//! let file = engine.open("Cargo.toml", Open::read().buffered()).wait()?;
//! let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
//!     let head = shard::spawn(async move { file.read(0..9).await })?;
//!     shard::yield_if_needed().await;
//!     head.await?
//! });
//! assert_eq!(&task.wait()??[..], b"[package]");
//! # Ok(()) }
//! ```

pub(crate) mod clock;
mod commands;
pub(crate) mod ending;
mod event_loop;
pub(crate) mod executor;
mod file_uses;
pub(crate) mod inbox;
mod invariants;
pub(crate) mod local;
mod long_reads;
mod ops;
pub(crate) mod optable;
pub(crate) mod remote;
pub(crate) mod remote_list;
mod report;
mod start;
mod task;
mod timers;
#[cfg(any(feature = "_sim", all(feature = "tokio", target_os = "linux", not(forebay_no_uring))))]
mod visiting;

use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::task::Waker;

use crate::base::class::Class;
use crate::base::here;
use crate::base::wakes;
use crate::driver::Driver;
use crate::reactor::account::Account;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::read_many::Batches;
use crate::reactor::walk::Walks;
use clock::Clock;
use executor::Executor;
use inbox::{Inbox, LateCalls};
use local::LocalCell;
use ops::Ops;
use timers::Timers;

pub(crate) use ending::EndReport;
#[cfg(any(feature = "_sim", all(feature = "tokio", target_os = "linux", not(forebay_no_uring))))]
pub(crate) use start::new_shard;
#[cfg(feature = "_sim")]
pub(crate) use start::shard_over;
pub(crate) use start::start_shards;
pub use task::{
    JoinHandle, Sleep, Timeout, YieldNow, class, current, sleep, spawn, timeout, yield_if_needed, yield_now,
};
pub(crate) use task::{spawn_on, wait_for_a_turn};
#[cfg(any(feature = "_sim", all(feature = "tokio", target_os = "linux", not(forebay_no_uring))))]
pub(crate) use visiting::{ExitState, VisitStart};

/// The number of known regions before the first operation.
const NOT_LOOKED: usize = usize::MAX;

/// The state of one shard's thread. It is accessed through `&Shard` only, because tasks call back into it.
pub(crate) struct Shard {
    inbox: Arc<Inbox>,
    engine: Arc<EngineShared>,
    clock: Clock,
    /// The most operations in flight.
    depth: u32,
    ops: LocalCell<Ops>,
    /// The counters, files and shares of its operations.
    pub(crate) account: LocalCell<Account>,
    driver: LocalCell<Driver>,
    executor: Executor,
    timers: LocalCell<Timers>,
    pub(crate) batches: LocalCell<Batches>,
    pub(crate) walks: LocalCell<Walks>,
    /// Local futures that found the op table full and wait for a slot.
    slot_waiters: LocalCell<Vec<Waker>>,
    counters: Counters,
    class: Cell<Class>,
    /// How many of the arena's regions were offered to the driver, or [`NOT_LOOKED`].
    known_regions: Cell<usize>,
    late_calls: LateCalls,
    /// The device time of the last sampled operation.
    device_ns: Cell<u64>,
    /// The time at which a visitor staged the first of the operations that wait for more.
    #[cfg(any(feature = "_sim", all(feature = "tokio", target_os = "linux", not(forebay_no_uring))))]
    gathers_since: Cell<clock::Ticks>,
    /// The longest spins: while nothing is in flight, and while something is.
    spin_idle_max: clock::Ticks,
    spin_flying_max: clock::Ticks,
    spin_idle: Cell<event_loop::Spin>,
    spin_flying: Cell<event_loop::Spin>,
    /// The buffer for completions of one turn, kept for its capacity.
    completed: LocalCell<Vec<(crate::io::op::OpKey, i32)>>,
}

#[derive(Default)]
struct Counters {
    turns: Cell<u64>,
    spins: Cell<u64>,
    spins_useful: Cell<u64>,
    memory_waits: Cell<u64>,
    strays: Cell<u64>,
    polls_refused: Cell<u64>,
}

thread_local! {
    static CURRENT: Cell<*const Shard> = const { Cell::new(ptr::null()) };
}

/// Runs `f` with the shard that runs on this thread, if any.
#[inline(always)]
pub(crate) fn with_current<R>(f: impl FnOnce(&Shard) -> R) -> Option<R> {
    let shard = CURRENT.with(Cell::get);
    // SAFETY: the pointer is set by the shard's own thread while the shard lives on its stack, and cleared before the shard's end;
    // a thread-local is seen by that thread only.
    if shard.is_null() { None } else { Some(f(unsafe { &*shard })) }
}

/// Makes `shard` this thread's current shard, or clears it if null, and returns the previous one.
fn make_current(shard: *const Shard) -> *const Shard {
    here::set_on_shard(!shard.is_null());
    CURRENT.with(|current| current.replace(shard))
}

/// Makes `shard` this thread's current shard, or clears it if null, and returns the previous one. For the single thread of a
/// simulated world, where the running shard is a value.
///
/// # Safety
/// The shard stays in place until another one, or null, is set.
#[cfg(feature = "_sim")]
pub(crate) unsafe fn set_current(shard: *const Shard) -> *const Shard {
    make_current(shard)
}

/// Runs `run` as on a thread without a shard. For the same.
#[cfg(feature = "_sim")]
pub(crate) fn as_no_shard<T>(run: impl FnOnce() -> T) -> T {
    let before = make_current(ptr::null());
    let result = run();
    make_current(before);
    result
}

impl Shard {
    /// Returns whether it is this thread's current shard. One without a thread never is.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        ptr::eq(CURRENT.with(Cell::get), self)
    }

    #[inline]
    pub(crate) fn uid(&self) -> u32 {
        self.inbox.uid
    }

    #[inline]
    pub(crate) fn index(&self) -> usize {
        self.inbox.index
    }

    #[inline]
    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    #[inline]
    pub(crate) fn engine(&self) -> &Arc<EngineShared> {
        &self.engine
    }

    #[inline]
    pub(crate) fn executor(&self) -> &Executor {
        &self.executor
    }

    #[inline]
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the class of the running task.
    #[inline]
    pub(crate) fn class(&self) -> Class {
        self.class.get()
    }

    #[inline]
    pub(crate) fn set_class(&self, class: Class) {
        self.class.set(class);
    }

    /// Returns whether the op table has a free slot. If not, `waker` is woken for one.
    #[inline]
    pub(crate) fn has_slot_room(&self, waker: &Waker) -> bool {
        if !self.ops.with(|ops| ops.is_full()) {
            return true;
        }
        let waker = waker.clone();
        self.slot_waiters.with(|waiters| waiters.push(waker));
        false
    }

    #[inline]
    fn notify_slot_room(&self) {
        if self.slot_waiters.with(|waiters| !waiters.is_empty()) {
            let waiters = self.slot_waiters.with(std::mem::take);
            wakes::wake_each(waiters);
        }
    }

    /// Removes an unused, closing file from the table.
    fn remove_file(&self, file: u32) {
        let unregister = |index, route| self.driver.with(|driver| driver.unregister_file(index, route));
        let core = self.account.with(|account| account.files.remove(file, unregister));
        if let Some(core) = core {
            core.entry_gone();
        }
    }
}
