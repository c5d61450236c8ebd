//! The metrics of one sample, measured the same way for every row: a clock that is cheap enough to read once per operation,
//! and a window of time in which operations count. And the callers that all libraries have: threads, and tasks of a runtime.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use forebay_measure::experiment::Outcome;
use hdrhistogram::Histogram;
use tokio::runtime::Runtime;

use crate::run::Work;
use crate::usage::Usage;

/// Does the same again and again for as long as the window of a meter is open. A macro, so that each loop is code of its
/// row: no function or future lies between it and the library under test.
macro_rules! while_open {
    ($meter:expr, $turn:expr) => {{
        let mut began = $meter.begin();
        loop {
            $turn;
            match $meter.finish(began) {
                Some(now) => began = now,
                None => break,
            }
        }
    }};
}
pub(crate) use while_open;

/// Runs a task for each of `lanes` on a runtime of one thread, which repeats its turn for as long as the window is open.
/// `spawn` returns a future of the task's result. Returns the meter of all.
macro_rules! local_tasks {
    ($window:expr, $spawn:path, $lanes:expr, |$lane:pat_param| $turn:expr) => {{
        let meter = std::rc::Rc::new($window.meter());
        let tasks = $lanes.map(|$lane| {
            let meter = meter.clone();
            $spawn(async move {
                while_open!(meter, $turn);
                anyhow::Ok(())
            })
        });
        all(tasks).await?;
        meter.take()
    }};
}
pub(crate) use local_tasks;

/// Returns the results of tasks, all of which are started before the first is awaited.
pub(crate) async fn all<T>(tasks: impl Iterator<Item = impl Future<Output = Result<T>>>) -> Result<Vec<T>> {
    let tasks: Vec<_> = tasks.collect();
    let mut results = Vec::with_capacity(tasks.len());
    for task in tasks {
        results.push(task.await?);
    }
    Ok(results)
}

/// Measures a task of a Tokio runtime for each of `lanes`, which repeats its turn for as long as the window is open.
macro_rules! tokio_tasks {
    ($work:expr, $runtime:expr, $lanes:expr, |$lane:pat_param| $turn:expr) => {{
        let lanes: Vec<_> = $lanes.collect();
        let window = $work.window();
        let tasks = lanes.into_iter().map(|$lane| {
            let meter = window.meter();
            async move {
                while_open!(meter, $turn);
                Ok(meter)
            }
        });
        on_tokio(&$runtime, tasks).map(|meters| window.outcome(meters))
    }};
}
pub(crate) use tokio_tasks;

/// Measures a thread for each of `lanes`, which repeats its turn for as long as the window is open.
pub(crate) fn threads<T: FnMut() -> Result<()> + Send>(
    work: &Work,
    lanes: impl Iterator<Item = T>,
) -> Result<Outcome> {
    let lanes: Vec<T> = lanes.collect();
    let window = work.window();
    let meters = on_threads(lanes.into_iter().map(|mut turn| {
        let meter = window.meter();
        move || {
            while_open!(meter, turn()?);
            Ok(meter)
        }
    }))?;
    Ok(window.outcome(meters))
}

/// Runs each piece of work on its own thread.
pub(crate) fn on_threads<T: Send>(
    work: impl Iterator<Item = impl FnOnce() -> Result<T> + Send>,
) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = work.map(|work| scope.spawn(work)).collect();
        let ended =
            threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?);
        ended.collect()
    })
}

/// Runs each piece of work as a task of Tokio.
pub(crate) fn on_tokio<T: Send + 'static>(
    runtime: &Runtime,
    work: impl Iterator<Item = impl Future<Output = Result<T>> + Send + 'static>,
) -> Result<Vec<T>> {
    runtime.block_on(async {
        let tasks: tokio::task::JoinSet<_> = work.collect();
        tasks.join_all().await.into_iter().collect()
    })
}

/// The time of comparing the counter with the system's clock before a measurement.
const CALIBRATION: Duration = Duration::from_millis(10);

/// The stretch of time that counts: it opens after the warm-up and closes after the measuring time. The first
/// thread to finish an operation beyond either end reads the process's usage there.
///
/// Its clock reads in ticks; a read costs about 5 ns on the processor's counter and about 50 ns on the system's clock, which is
/// read without a steady counter. Every row uses the same clock.
pub(crate) struct Window {
    has_counter: bool,
    origin: Instant,
    ticks_per_ns: f64,
    open: u64,
    close: u64,
    at_open: OnceLock<Usage>,
    at_close: OnceLock<Usage>,
}

impl Window {
    /// Returns the window of a sample's work, whose warm-up starts when the clock's rate is known, after 10 ms.
    pub(crate) fn start(work: &Work) -> Arc<Self> {
        let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let has_counter = cfg!(target_arch = "x86_64")
            && [" constant_tsc", " nonstop_tsc"].iter().all(|flag| flags.contains(flag));
        let origin = Instant::now();
        let mut ticks_per_ns = 1.0;
        if has_counter {
            let begin = counter();
            while origin.elapsed() < CALIBRATION {
                std::hint::spin_loop();
            }
            let ticks = counter() - begin;
            ticks_per_ns = ticks as f64 / origin.elapsed().as_nanos() as f64;
        }
        let (at_open, at_close) = (OnceLock::new(), OnceLock::new());
        let mut window = Self { has_counter, origin, ticks_per_ns, open: 0, close: 0, at_open, at_close };
        let ticks = |seconds: f64| (seconds * 1e9 * ticks_per_ns) as u64;
        window.open = window.now() + ticks(work.warm_up_seconds);
        window.close = window.open + ticks(work.seconds);
        Arc::new(window)
    }

    #[inline]
    fn now(&self) -> u64 {
        if self.has_counter { counter() } else { self.origin.elapsed().as_nanos() as u64 }
    }

    fn us(&self, ticks: u64) -> f64 {
        ticks as f64 / self.ticks_per_ns / 1e3
    }

    /// Returns a meter for one thread of this window.
    pub(crate) fn meter(self: &Arc<Self>) -> Meter {
        let latencies = Histogram::new_with_bounds(1, 1 << 36, 2).ok();
        let counts = Counts { latencies, ..Counts::default() };
        Meter { window: Arc::clone(self), counts: RefCell::new(counts) }
    }

    /// Returns the outcome, from the meters of all threads.
    pub(crate) fn outcome(&self, meters: impl IntoIterator<Item = Meter>) -> Outcome {
        let mut operations = 0;
        let mut latencies: Option<Histogram<u32>> = None;
        for counts in meters.into_iter().map(|meter| meter.counts.into_inner()) {
            operations += counts.operations;
            match (&mut latencies, counts.latencies) {
                (Some(all), Some(part)) => _ = all.add(part),
                (None, part) => latencies = part,
                (Some(_), None) => {}
            }
        }
        let elapsed_us = self.us(self.close - self.open);
        let us = |share| latencies.as_ref().map(|all| self.us(all.value_at_quantile(share)));
        let mut outcome = Outcome::lasting(elapsed_us / 1e6)
            .figure("iops", operations as f64 / elapsed_us * 1e6)
            .figure("ios", operations as f64)
            .figure("p50_us", us(0.50))
            .figure("p99_us", us(0.99));
        if let (Some(begin), Some(end)) = (self.at_open.get(), self.at_close.get()) {
            end.since(begin).add_to(&mut outcome, operations);
        }
        outcome
    }
}

/// Counts the operations of one thread, of all its tasks. Not shared between threads: sharing would add to the cost under
/// test.
pub(crate) struct Meter {
    window: Arc<Window>,
    counts: RefCell<Counts>,
}

#[derive(Default)]
struct Counts {
    operations: u64,
    opened: bool,
    latencies: Option<Histogram<u32>>,
}

impl Meter {
    /// Returns the present, as the start of an operation.
    #[inline]
    pub(crate) fn begin(&self) -> u64 {
        self.window.now()
    }

    /// Notes that an operation started at `began` has completed. Returns the present, as the start of the next operation, or `None`
    /// when the window has closed.
    #[inline]
    pub(crate) fn finish(&self, began: u64) -> Option<u64> {
        let now = self.window.now();
        if now < self.window.open {
            return Some(now);
        }
        let mut counts = self.counts.borrow_mut();
        if !counts.opened {
            counts.opened = true;
            self.window.at_open.get_or_init(Usage::now);
        }
        if now >= self.window.close {
            self.window.at_close.get_or_init(Usage::now);
            return None;
        }
        counts.operations += 1;
        if let Some(latencies) = &mut counts.latencies {
            latencies.saturating_record(now - began);
        }
        Some(now)
    }

    /// Returns the counts, when the tasks that share this meter have ended.
    pub(crate) fn take(&self) -> Self {
        Self { window: Arc::clone(&self.window), counts: RefCell::new(self.counts.take()) }
    }
}

/// Returns the processor's time-stamp counter, or 0 without one.
#[inline]
fn counter() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reading the time-stamp counter touches no memory; every x86_64 processor has it.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    0
}
