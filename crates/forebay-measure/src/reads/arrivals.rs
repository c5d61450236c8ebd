//! Times at which reads are due in an open loop. They are fixed before the sample begins, whatever
//! the device does.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::super::pattern::SplitMix;

/// The most reads of a sample. More could not be requested anyway, and would need gigabytes.
const COUNT_MAX: f64 = 20e6;

/// Reads that are due one after the other; any free reader takes the next one.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// The beginning, set once when all readers are there: 256 threads take their time to start.
    begins: OnceLock<Instant>,
    due_ns: Vec<u64>,
    next: AtomicUsize,
}

impl Arrivals {
    /// Returns independent arrivals, `per_second` on average, for `lasts`. The gaps between them are
    /// exponentially distributed, as those of many independent programs.
    pub(super) fn new(per_second: f64, lasts: Duration, seed: u64) -> Self {
        let mut random = SplitMix::new(seed);
        let (limit, mut at, mut due_ns) = (lasts.as_nanos() as f64, 0.0, Vec::new());
        let count = (per_second.max(1e-3) * lasts.as_secs_f64()).min(COUNT_MAX);
        due_ns.reserve(count as usize);
        loop {
            // 53 random bits, above zero.
            let uniform = ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
            at += -uniform.ln() * 1e9 / per_second.max(1e-3);
            if at >= limit || due_ns.len() as f64 >= COUNT_MAX {
                return Self { begins: OnceLock::new(), due_ns, next: AtomicUsize::new(0) };
            }
            due_ns.push(at as u64);
        }
    }

    /// Fixes the times; only the first call does.
    pub(super) fn begin(&self, begins: Instant) {
        self.begins.get_or_init(|| begins);
    }

    /// Takes the next read that no other reader has taken, and returns when it is due; `None` after the
    /// last one. Blocks until the times are fixed.
    pub(super) fn take(&self) -> Option<Instant> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let begins = *self.begins.wait();
        self.due_ns.get(index).map(|due| begins + Duration::from_nanos(*due))
    }
}

/// Lets sleeps of the calling thread end on time, and not up to 50 us later.
pub(crate) fn minimise_timer_slack() {
    // SAFETY: the call has no pointers; it changes the calling thread's timer slack only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}

/// Sleeps until `time`; not at all when it has passed.
pub(crate) fn sleep_until(time: Instant) {
    while let Some(left) = time.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::sleep(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_given_number_and_exponential_gaps() {
        let begins = Instant::now();
        let arrivals = Arrivals::new(10_000.0, Duration::from_secs(1), 7);
        arrivals.begin(begins);
        arrivals.begin(begins + Duration::from_secs(9));
        let mut due = Vec::new();
        while let Some(time) = arrivals.take() {
            due.push((time - begins).as_secs_f64());
        }
        assert!(due.is_sorted() && due.iter().all(|time| *time < 1.0));
        let count = due.len() as f64;
        // Five standard deviations of a Poisson distribution.
        assert!((count - 10_000.0).abs() < 500.0, "{count}");
        let gaps: Vec<f64> = due.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // An exponential distribution deviates by its mean; fixed gaps would not at all.
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.1, "{mean} {variance}");
        assert!(arrivals.take().is_none());
    }

    #[test]
    fn the_seed_fixes_the_times() {
        let begins = Instant::now();
        let first = |seed| {
            let arrivals = Arrivals::new(100.0, Duration::from_secs(5), seed);
            arrivals.begin(begins);
            arrivals.take()
        };
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
        sleep_until(begins);
        assert!(Instant::now() >= begins);
    }
}
