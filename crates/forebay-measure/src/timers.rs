//! Harm to other tasks: a thousand timer tasks on a runtime, and the lateness of each of their wake-ups.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinHandle;

use super::latency::Latency;

/// Number of tasks; each waits for its next due time, again and again.
pub(super) const TASKS: u32 = 1_000;
/// Interval between two due times of a task. The due times of all tasks are spread evenly: ten in each
/// millisecond. A thousand tasks that each wake every millisecond would need a processor for themselves.
pub(super) const PERIOD: Duration = Duration::from_millis(100);
/// Number of histograms; with several, workers seldom write to the same one.
const SHARES: usize = 16;
/// Name of the lateness in [`Evidence`](super::interleave::Evidence); the names of its metrics begin with it.
pub(super) const NAME: &str = "timers_late";

/// Describes the method in words.
pub(super) fn method() -> String {
    format!(
        "Beside it {TASKS} tasks of a Tokio runtime wait for a time each {} ms, so that {} times a millisecond are \
         due, and do nothing else. How long after it is due a time is noticed is their lateness; one that is missed \
         counts, and so do those that follow it. Tokio's timers have a grain of one millisecond: the lateness in the \
         row without other work is their own.",
        PERIOD.as_millis(),
        u128::from(TASKS) / PERIOD.as_millis()
    )
}

/// Running timer tasks; the runtime needs its time driver.
#[derive(Debug)]
pub(super) struct Timers {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    base: Instant,
    /// Due times before this one do not count; nanoseconds after `base`.
    from_ns: AtomicU64,
    /// Due times from this one on do not count either, and the tasks end.
    until_ns: AtomicU64,
    late: Vec<Mutex<Latency>>,
}

impl Shared {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Timers {
    /// Starts the tasks. Nothing counts before [`count`](Self::count).
    ///
    /// # Errors
    /// Memory for the counters is missing.
    pub(super) fn start(runtime: &Handle) -> anyhow::Result<Self> {
        let late = (0..SHARES).map(|_| Ok(Mutex::new(Latency::new()?))).collect::<anyhow::Result<_>>()?;
        let (from_ns, until_ns) = (AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX));
        let shared = Arc::new(Shared { base: Instant::now(), from_ns, until_ns, late });
        let tasks = (0..TASKS).map(|task| runtime.spawn(wait_again(task, Arc::clone(&shared)))).collect();
        Ok(Self { shared, tasks })
    }

    /// Starts counting: due times from now on count.
    pub(super) fn count(&self) {
        self.shared.from_ns.store(self.shared.now_ns(), Ordering::Relaxed);
    }

    /// Counts the due times between these two, regardless of when a thread gets its turn to start or stop.
    pub(super) fn count_between(&self, (from, until): (Instant, Instant)) {
        let after_base = |at: Instant| at.saturating_duration_since(self.shared.base).as_nanos() as u64;
        self.shared.until_ns.store(after_base(until), Ordering::Relaxed);
        self.shared.from_ns.store(after_base(from), Ordering::Relaxed);
    }

    /// Stops counting: due times after this do not count. Those before it do, however late they are noticed.
    pub(super) fn end(&self) {
        self.shared.until_ns.store(self.shared.now_ns(), Ordering::Relaxed);
    }

    /// Returns the lateness of all due times. Waits for the tasks, at most a period unless they are
    /// later than that.
    ///
    /// # Errors
    /// A task panicked.
    pub(super) fn stop(self, runtime: &Runtime) -> anyhow::Result<Latency> {
        if self.shared.until_ns.load(Ordering::Relaxed) == u64::MAX {
            self.end();
        }
        for task in self.tasks {
            runtime.block_on(task).context("a timer task panicked")?;
        }
        let mut all = Latency::new()?;
        for share in &self.shared.late {
            all.add(&share.lock().unwrap_or_else(PoisonError::into_inner))?;
        }
        Ok(all)
    }
}

/// Waits for the due times of a task. A missed one does not move those after it, and each counts
/// with its own lateness.
async fn wait_again(task: u32, shared: Arc<Shared>) {
    let period_ns = PERIOD.as_nanos() as u64;
    let mut due_ns = period_ns * u64::from(task) / u64::from(TASKS);
    while due_ns < shared.until_ns.load(Ordering::Relaxed) {
        let due = shared.base + Duration::from_nanos(due_ns);
        tokio::time::sleep_until(due.into()).await;
        let now = Instant::now();
        let counts = shared.from_ns.load(Ordering::Relaxed) <= due_ns
            && due_ns < shared.until_ns.load(Ordering::Relaxed);
        if counts {
            let share = &shared.late[task as usize % SHARES];
            share.lock().unwrap_or_else(PoisonError::into_inner).record(now.saturating_duration_since(due));
        }
        due_ns += period_ns;
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).enable_time().build().expect("a thread")
    }

    #[test]
    fn each_time_within_the_window_counts_once() {
        let runtime = runtime();
        let timers = Timers::start(runtime.handle()).expect("some kilobytes");
        timers.count();
        std::thread::sleep(Duration::from_millis(150));
        timers.end();
        let window = [&timers.shared.from_ns, &timers.shared.until_ns].map(|at| at.load(Ordering::Relaxed));
        let late = timers.stop(&runtime).expect("no task panicked");
        // One is due in each such interval, whatever the machine scheduled.
        let apart_ns = PERIOD.as_nanos() as u64 / u64::from(TASKS);
        let expected = window[1].div_ceil(apart_ns) - window[0].div_ceil(apart_ns);
        assert_eq!(late.count(), expected);
    }

    /// Regression: the measuring thread set the window's begin when it woke. On a busy machine that was after the
    /// window's end, no time counted, and the sample's lateness was missing.
    #[test]
    fn a_planned_window_counts_although_the_measuring_thread_wakes_after_it() {
        let runtime = runtime();
        let timers = Timers::start(runtime.handle()).expect("some kilobytes");
        let begins = Instant::now() + Duration::from_millis(20);
        timers.count_between((begins, begins + Duration::from_millis(50)));
        // The measuring thread comes back when all is over.
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(150)).await });
        let late = timers.stop(&runtime).expect("no task panicked");
        assert_eq!(late.count(), 500);
    }

    /// The purpose of the experiment: a task that blocks a worker delays the others, and all of them show it.
    #[test]
    fn a_worker_that_is_blocked_is_seen_in_the_times_of_the_others() {
        let runtime = runtime();
        let timers = Timers::start(runtime.handle()).expect("some kilobytes");
        timers.count();
        let blocked = runtime.spawn(async { std::thread::sleep(Duration::from_millis(300)) });
        runtime.block_on(blocked).expect("it does not panic");
        let late = timers.stop(&runtime).expect("no task panicked");
        let half = late.quantile_us(0.5).expect("some were due");
        assert!(half > 50_000.0, "half were up to {half} us late");
        assert!(late.count() > 1_000, "a task's time that is missed counts, too: {}", late.count());
    }

    #[test]
    fn uncounted_times_are_none() {
        let runtime = runtime();
        let timers = Timers::start(runtime.handle()).expect("some kilobytes");
        let late = timers.stop(&runtime).expect("no task panicked");
        assert_eq!(late.count(), 0);
    }
}
