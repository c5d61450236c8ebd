//! The operations in flight of a runtime with a paused clock, and its blocking task that waits for them.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use tokio::runtime::{self, Builder, Handle, RuntimeFlavor};
use tokio::time::Instant;

use crate::base::here::{self, Waits};

/// Whether clocks can be paused: the program's Tokio has the feature `test-util`.
static CAN_PAUSE: LazyLock<bool> = LazyLock::new(has_test_util);

thread_local! {
    /// The clock of the runtime that this thread drove last.
    static CLOCK: RefCell<Option<(runtime::Id, Arc<Clock>)>> = const { RefCell::new(None) };
}

/// The operations in flight of one runtime.
#[derive(Debug, Default)]
struct Clock {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    in_flight: usize,
    /// A blocking task waits for their end.
    is_held: bool,
    /// The runtime has dropped its tasks. Its end does not wait for operations.
    is_over: bool,
}

impl Clock {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation. `None` once the runtime ends.
    fn enter(self: Arc<Self>, runtime: &Handle) -> Option<ClockHold> {
        let mut state = self.lock();
        if state.is_over {
            return None;
        }
        state.in_flight += 1;
        let is_held = std::mem::replace(&mut state.is_held, true);
        drop(state);
        let hold = ClockHold(self.clone());
        if !is_held {
            let held = self.clone();
            // Tokio panics where no thread can be started.
            let spawned =
                catch_unwind(AssertUnwindSafe(|| drop(runtime.spawn_blocking(move || held.wait_for_none()))));
            if spawned.is_err() {
                self.lock().is_held = false;
            }
        }
        Some(hold)
    }

    /// Blocks until nothing is in flight.
    fn wait_for_none(&self) {
        let mut state = self.lock();
        while state.in_flight > 0 && !state.is_over {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_held = false;
    }
}

/// A guard of an operation in flight: it stops its runtime's paused clock until it is dropped.
#[derive(Debug)]
pub struct ClockHold(Arc<Clock>);

impl Drop for ClockHold {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.in_flight -= 1;
        if state.in_flight == 0 {
            self.0.changed.notify_all();
        }
    }
}

/// Belongs to a task of the runtime, which drops its tasks when it ends.
struct RuntimeEnd(Arc<Clock>);

impl Drop for RuntimeEnd {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
        self.0.changed.notify_all();
    }
}

/// Counts an operation in flight, if this thread is in a runtime whose clock is paused.
#[inline]
pub fn stand() -> Option<ClockHold> {
    if *CAN_PAUSE { stand_in_runtime() } else { None }
}

#[cold]
fn stand_in_runtime() -> Option<ClockHold> {
    #[cfg(feature = "_sim")]
    if here::world() != 0 {
        return None;
    }
    let runtime = Handle::try_current().ok()?;
    if runtime.runtime_flavor() != RuntimeFlavor::CurrentThread || !is_paused() {
        return None;
    }
    clock_of(&runtime)?.enter(&runtime)
}

/// Returns whether the clock of this runtime is paused: one that is not goes on between two readings.
fn is_paused() -> bool {
    let first = Instant::now();
    let second = Instant::now();
    first == second
}

fn clock_of(runtime: &Handle) -> Option<Arc<Clock>> {
    let is_its = |(id, clock): &&(runtime::Id, Arc<Clock>)| *id == runtime.id() && !clock.lock().is_over;
    let find = |known: &RefCell<Option<(runtime::Id, Arc<Clock>)>>| {
        known.borrow().as_ref().filter(is_its).map(|(_, clock)| clock.clone())
    };
    if let Some(clock) = CLOCK.try_with(find).ok()? {
        return Some(clock);
    }
    let clock = Arc::<Clock>::default();
    let end = RuntimeEnd(clock.clone());
    drop(runtime.spawn(async move {
        let _end = end;
        std::future::pending::<()>().await;
    }));
    CLOCK.try_with(|known| known.replace(Some((runtime.id(), clock.clone())))).ok()?;
    Some(clock)
}

/// A waker whose operation is in flight until it is woken or dropped.
#[derive(Debug)]
pub(super) struct StandingWaker {
    waker: Waker,
    standing: Mutex<Option<ClockHold>>,
}

impl StandingWaker {
    /// Ends the wait of the clock.
    pub(super) fn release(&self) {
        let standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(standing);
    }
}

impl Wake for StandingWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    /// The task is ready before the clock may go on.
    fn wake_by_ref(self: &Arc<Self>) {
        self.waker.wake_by_ref();
        self.release();
    }
}

/// Returns a waker that wakes `waker`, if this thread is in a runtime whose clock is paused.
#[inline]
pub(super) fn standing_waker(waker: &Waker) -> Option<Arc<StandingWaker>> {
    if *CAN_PAUSE { wrap(waker) } else { None }
}

#[cold]
fn wrap(waker: &Waker) -> Option<Arc<StandingWaker>> {
    // A thread in a `.wait()` does not drive its runtime.
    if here::is_on_shard() || here::waits() != Waits::No {
        return None;
    }
    let standing = Mutex::new(Some(stand_in_runtime()?));
    Some(Arc::new(StandingWaker { waker: waker.clone(), standing }))
}

/// Returns whether Tokio was built with `test-util`. The builder then has a method of this name, which precedes the trait's.
fn has_test_util() -> bool {
    #[allow(dead_code, reason = "with `test-util` the builder's method is called")]
    struct Without;

    #[allow(dead_code, reason = "with `test-util` the builder's method is called")]
    trait WithoutTestUtil {
        fn start_paused(&mut self, _start_paused: bool) -> Without {
            Without
        }
    }

    impl WithoutTestUtil for Builder {}

    trait TestUtil {
        fn is_builder(&self) -> bool;
    }

    impl TestUtil for Without {
        fn is_builder(&self) -> bool {
            false
        }
    }

    impl TestUtil for &mut Builder {
        fn is_builder(&self) -> bool {
            true
        }
    }

    Builder::new_current_thread().start_paused(false).is_builder()
}
