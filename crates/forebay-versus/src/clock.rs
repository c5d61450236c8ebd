//! A clock cheap enough to read once per operation: the time-stamp counter where it is steady, `Instant` elsewhere.

use std::time::{Duration, Instant};

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
