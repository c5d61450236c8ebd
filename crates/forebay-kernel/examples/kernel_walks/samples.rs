//! Samples of rows: by one thread, or by several that start together.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::planted::Answer;

/// The result of one sample of a row; the time starts when everything is set up.
pub(crate) struct SampleResult {
    pub(crate) lookups: u64,
    pub(crate) calls: u64,
    time: Duration,
}

impl SampleResult {
    pub(crate) fn rate(&self) -> f64 {
        self.lookups as f64 / self.time.as_secs_f64()
    }

    pub(crate) fn since(begun: Instant, lookups: u64, calls: u64) -> SampleResult {
        SampleResult { lookups, calls, time: begun.elapsed() }
    }
}

/// Returns the lookups a second of this many threads, each with its own ring or session; all start when all are set up.
pub(crate) fn by_threads(
    count: u32,
    row: impl Fn(&mut Start<'_>) -> Answer<SampleResult> + Sync,
) -> Answer<f64> {
    let left = AtomicU32::new(count);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(|| row(&mut Start(Some(&left))))).collect();
        let joined = threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked")?);
        joined.map(|taken| taken.map(|taken| taken.rate())).sum()
    })
}

/// Waits until all threads that are to start together are set up.
pub(crate) struct Start<'a>(Option<&'a AtomicU32>);

impl Start<'_> {
    pub(crate) fn alone() -> Start<'static> {
        Start(None)
    }

    pub(crate) fn wait(&mut self) -> Instant {
        if let Some(left) = self.0.take() {
            left.fetch_sub(1, Ordering::AcqRel);
            while left.load(Ordering::Acquire) > 0 {
                thread::yield_now();
            }
        }
        Instant::now()
    }
}

/// A thread that could not be set up keeps no other one waiting.
impl Drop for Start<'_> {
    fn drop(&mut self) {
        if let Some(left) = self.0.take() {
            left.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Returns the median, and the distance of the extremes as a part of it.
pub(crate) fn median(all: &mut [f64]) -> (f64, f64) {
    all.sort_by(f64::total_cmp);
    let median = all[all.len() / 2];
    (median, (all[all.len() - 1] - all[0]) / median)
}
