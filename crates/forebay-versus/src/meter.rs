//! The metrics of one sample, measured the same way for every row: a clock that is cheap enough to read once per operation,
//! and a window of time in which operations count. And the callers that all libraries have: threads, and tasks of Tokio.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use forebay_measure::experiment::Outcome;
use hdrhistogram::Histogram;
use tokio::runtime::Runtime;

use crate::usage::Usage;

/// Does the same again and again for as long as the window of a meter is open. A macro, so that each loop is code of its
/// row: no function or future lies between it and the library under test.
macro_rules! while_open {
    ($meter:expr, $work:expr) => {{
        let mut began = $meter.begin();
        loop {
            $work;
            match $meter.finish(began) {
                Some(now) => began = now,
                None => break,
            }
        }
    }};
}
pub(crate) use while_open;

/// The stretch of time that counts: it opens after the warm-up and closes after the measuring time. The first
/// thread to finish an operation beyond either end reads the process's usage there.
#[derive(Debug)]
pub(crate) struct Window {
    clock: Clock,
    open: u64,
    close: u64,
    at_open: OnceLock<Usage>,
    at_close: OnceLock<Usage>,
}

impl Window {
    /// Returns a window that opens `warm_up` from now and stays open for `measure`.
    pub(crate) fn start(warm_up: Duration, measure: Duration) -> Arc<Self> {
        let clock = Clock::calibrated();
        let open = clock.now() + clock.ticks(warm_up);
        let close = open + clock.ticks(measure);
        Arc::new(Self { clock, open, close, at_open: OnceLock::new(), at_close: OnceLock::new() })
    }

    /// Returns a meter for one thread of this window.
    pub(crate) fn meter(self: &Arc<Self>) -> Meter {
        Meter {
            window: Arc::clone(self),
            operations: 0,
            opened: false,
            latencies: Histogram::new_with_bounds(1, 1 << 36, 2).ok(),
        }
    }

    /// Returns the outcome, from the meters of all threads.
    pub(crate) fn outcome(&self, meters: impl IntoIterator<Item = Meter>) -> Outcome {
        let mut operations = 0;
        let mut latencies: Option<Histogram<u32>> = None;
        for meter in meters {
            operations += meter.operations;
            match (&mut latencies, meter.latencies) {
                (Some(all), Some(part)) => _ = all.add(part),
                (None, part) => latencies = part,
                (Some(_), None) => {}
            }
        }
        let elapsed_us = self.clock.us(self.close - self.open);
        let mut outcome = Outcome::lasting(elapsed_us / 1e6);
        let figures = &mut outcome.figures;
        figures.set("iops", operations as f64 / elapsed_us * 1e6).set("ios", operations as f64);
        if let Some(latencies) = latencies {
            figures
                .set("p50_us", self.clock.us(latencies.value_at_quantile(0.50)))
                .set("p99_us", self.clock.us(latencies.value_at_quantile(0.99)));
        }
        if let (Some(begin), Some(end)) = (self.at_open.get(), self.at_close.get()) {
            end.since(begin).add_to(&mut outcome, operations);
        }
        outcome
    }
}

/// Counts the operations of one thread. Not shared between threads: sharing would add to the cost under test.
#[derive(Debug)]
pub(crate) struct Meter {
    window: Arc<Window>,
    operations: u64,
    opened: bool,
    latencies: Option<Histogram<u32>>,
}

impl Meter {
    /// Returns the present, as the start of an operation.
    #[inline]
    pub(crate) fn begin(&self) -> u64 {
        self.window.clock.now()
    }

    /// Notes that an operation which began at `began` has completed. Returns the present, as the start of the
    /// next one, or `None` when the window has closed.
    #[inline]
    pub(crate) fn finish(&mut self, began: u64) -> Option<u64> {
        let now = self.window.clock.now();
        if now < self.window.open {
            return Some(now);
        }
        if !self.opened {
            self.opened = true;
            self.window.at_open.get_or_init(Usage::now);
        }
        if now >= self.window.close {
            self.window.at_close.get_or_init(Usage::now);
            return None;
        }
        self.operations += 1;
        if let Some(latencies) = &mut self.latencies {
            latencies.saturating_record(now - began);
        }
        Some(now)
    }
}

/// One meter for all tasks of a single-threaded runtime.
#[derive(Clone, Debug)]
pub(crate) struct LocalMeter(Rc<RefCell<Meter>>);

impl LocalMeter {
    /// Returns a meter of `window` to be cloned into the tasks of this thread.
    pub(crate) fn new(window: &Arc<Window>) -> Self {
        Self(Rc::new(RefCell::new(window.meter())))
    }

    /// See [`Meter::begin`].
    #[inline]
    pub(crate) fn begin(&self) -> u64 {
        self.0.borrow().begin()
    }

    /// See [`Meter::finish`].
    #[inline]
    pub(crate) fn finish(&self, began: u64) -> Option<u64> {
        self.0.borrow_mut().finish(began)
    }

    /// Returns the counts, for a sample of several threads.
    pub(crate) fn take(&self) -> Meter {
        let window = Arc::clone(&self.0.borrow().window);
        self.0.replace(window.meter())
    }

    /// Returns the outcome, when all tasks have ended.
    pub(crate) fn outcome(&self) -> Outcome {
        let meter = self.take();
        let window = Arc::clone(&meter.window);
        window.outcome([meter])
    }
}

/// Runs each piece of work on a thread of its own.
///
/// # Errors
/// The first error of a thread, or that it panicked.
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
///
/// # Errors
/// The first error of a task.
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

/// A clock that reads in ticks; a read costs about 5 ns on the counter and about 50 ns on the system's clock.
/// Every row uses the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    counter: bool,
    origin: Instant,
    ticks_per_ns: f64,
}

impl Clock {
    /// Finds the counter's rate; takes 10 ms.
    pub(crate) fn calibrated() -> Self {
        let origin = Instant::now();
        if !has_steady_counter() {
            return Self { counter: false, origin, ticks_per_ns: 1.0 };
        }
        let begin = counter();
        while origin.elapsed() < CALIBRATION {
            std::hint::spin_loop();
        }
        let ticks = counter() - begin;
        let ticks_per_ns = ticks as f64 / origin.elapsed().as_nanos() as f64;
        Self { counter: true, origin, ticks_per_ns }
    }

    /// Returns the present, in ticks.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        if self.counter { counter() } else { self.origin.elapsed().as_nanos() as u64 }
    }

    /// Returns `duration` in ticks.
    pub(crate) fn ticks(&self, duration: Duration) -> u64 {
        (duration.as_nanos() as f64 * self.ticks_per_ns) as u64
    }

    /// Returns `ticks` in microseconds.
    pub(crate) fn us(&self, ticks: u64) -> f64 {
        ticks as f64 / self.ticks_per_ns / 1e3
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: reading the time-stamp counter touches no memory; every x86_64 processor has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

#[cfg(target_arch = "x86_64")]
fn has_steady_counter() -> bool {
    std::fs::read_to_string("/proc/cpuinfo")
        .is_ok_and(|text| text.contains(" constant_tsc") && text.contains(" nonstop_tsc"))
}

#[cfg(not(target_arch = "x86_64"))]
fn has_steady_counter() -> bool {
    false
}
