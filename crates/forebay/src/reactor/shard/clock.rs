//! The counter used for time stamps of operations.
//!
//! Reading an `Instant` costs about 48 ns on a virtual machine, half of the allowance for a whole operation. Reading the
//! processor's time-stamp counter costs about 5 ns. This module makes all readings of either; in a simulated world they return that
//! world's time.

use std::sync::OnceLock;
#[cfg(target_arch = "x86_64")]
use std::time::Duration;
use std::time::Instant;

/// A point on the counter; only differences are meaningful.
pub(crate) type Ticks = u64;

/// The least time over which the counter's rate is measured. A reading of both clocks is exact to half of its gap, some 25 ns on a
/// virtual machine: one part in 10,000, far below what limits and latencies need.
#[cfg(target_arch = "x86_64")]
const RATE_MEASURED_FOR: Duration = Duration::from_micros(500);

/// The counter in use and the length of one tick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    counter: Counter,
    /// Nanoseconds per tick, as a 32.32 fixed-point number.
    ns_per_tick: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Counter {
    #[cfg(target_arch = "x86_64")]
    TimeStamp,
    Monotonic,
    /// The virtual time of the simulated world on this thread, in nanoseconds.
    #[cfg(feature = "_sim")]
    Virtual,
}

impl Clock {
    /// Returns the process's clock. The first call ends the measurement of the counter's rate, which lasts 0.5 ms from
    /// [`begin`](Clock::begin) on, or from this call.
    pub(crate) fn system() -> Clock {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        *CLOCK.get_or_init(Clock::calibrate)
    }

    /// Starts to measure the counter's rate. Other work of the start is done meanwhile.
    pub(crate) fn begin() {
        #[cfg(target_arch = "x86_64")]
        Clock::first();
    }

    /// Returns both clocks at the time of the first call.
    #[cfg(target_arch = "x86_64")]
    fn first() -> (Instant, Ticks) {
        static FIRST: OnceLock<(Instant, Ticks)> = OnceLock::new();
        *FIRST.get_or_init(|| Clock { counter: Counter::TimeStamp, ns_per_tick: 0 }.reading())
    }

    /// Returns a clock that reads the time of the simulated world on this thread.
    #[cfg(feature = "_sim")]
    pub(crate) const fn simulated() -> Clock {
        Clock { counter: Counter::Virtual, ns_per_tick: 1 << 32 }
    }

    #[inline]
    pub(crate) fn now(&self) -> Ticks {
        match self.counter {
            #[cfg(feature = "_sim")]
            Counter::Virtual => crate::base::here::now_ns(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: every x86_64 processor has the instruction; it reads a counter and touches no memory.
            Counter::TimeStamp => unsafe { std::arch::x86_64::_rdtsc() },
            Counter::Monotonic => monotonic_ns(),
        }
    }

    /// Returns whether a reading costs only a few nanoseconds.
    #[inline]
    pub(crate) fn is_cheap(&self) -> bool {
        self.counter != Counter::Monotonic
    }

    /// Converts ticks to nanoseconds; saturates at about 584 years.
    #[inline]
    pub(crate) fn ns(&self, ticks: Ticks) -> u64 {
        ((u128::from(ticks) * u128::from(self.ns_per_tick)) >> 32) as u64
    }

    /// Converts nanoseconds to ticks; saturates.
    pub(crate) fn ticks(&self, ns: u64) -> Ticks {
        u64::try_from((u128::from(ns) << 32) / u128::from(self.ns_per_tick.max(1))).unwrap_or(u64::MAX)
    }

    /// Reads both clocks at one moment. Of several tries it returns the one with the smallest gap between the
    /// two counter readings, so that being descheduled in the middle does not falsify the rate.
    #[cfg(target_arch = "x86_64")]
    fn reading(&self) -> (Instant, Ticks) {
        let tries = (0..16).map(|_| {
            let before = self.now();
            let wall = Instant::now();
            (self.now().wrapping_sub(before), wall, before)
        });
        tries
            .min_by_key(|&(gap, ..)| gap)
            .map_or_else(|| (Instant::now(), self.now()), |(gap, wall, before)| (wall, before + gap / 2))
    }

    fn calibrate() -> Clock {
        #[cfg(target_arch = "x86_64")]
        if time_stamp_is_steady() {
            let mut clock = Clock { counter: Counter::TimeStamp, ns_per_tick: 0 };
            let (began, first) = Clock::first();
            while began.elapsed() < RATE_MEASURED_FOR {
                std::hint::spin_loop();
            }
            let (ended, last) = clock.reading();
            let (elapsed, ticks) = (ended.duration_since(began).as_nanos(), last.wrapping_sub(first));
            if ticks > 0 && elapsed > 0 {
                clock.ns_per_tick = ((elapsed << 32) / u128::from(ticks)) as u64;
                return clock;
            }
        }
        Clock { counter: Counter::Monotonic, ns_per_tick: 1 << 32 }
    }
}

/// Returns whether the counter runs at one rate in all states: leaf 0x8000_0007, EDX bit 8 (Intel SDM 18.17
/// and AMD APM).
#[cfg(target_arch = "x86_64")]
fn time_stamp_is_steady() -> bool {
    use std::arch::x86_64::__cpuid;
    // SAFETY: every x86_64 processor has the instruction, and it touches no memory.
    #[allow(unused_unsafe, reason = "the call is unsafe for compilers as old as rust-version")]
    let edx = unsafe {
        let leaf_max = __cpuid(0x8000_0000).eax;
        if leaf_max < 0x8000_0007 { 0 } else { __cpuid(0x8000_0007).edx }
    };
    edx & (1 << 8) != 0
}

fn monotonic_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_time_has_the_most_ticks() {
        // Story: its ticks were cut to 64 bits, so that a task that slept for ever could wake after minutes.
        let fast = Clock { counter: Counter::Monotonic, ns_per_tick: (1 << 32) / 5 * 2 };
        assert_eq!(fast.ticks(u64::MAX), u64::MAX);
        assert_eq!(fast.ticks(u64::MAX / 2), u64::MAX);
    }

    #[test]
    fn ticks_agree_with_the_system_clock() {
        let clock = Clock::system();
        // The thread may be preempted between any two readings: one interval lies inside of the counter's, and one outside.
        let (outside, first) = (Instant::now(), clock.now());
        let inside = Instant::now();
        while inside.elapsed().as_millis() < 20 {}
        let inside = inside.elapsed().as_nanos() as u64;
        let ticks = clock.ns(clock.now() - first);
        let outside = outside.elapsed().as_nanos() as u64;
        // Only gross errors count.
        assert!(
            (inside / 2..outside * 2).contains(&ticks),
            "{ticks} ns by the counter, {inside} to {outside} by the clock"
        );
        let hour = 3_600_000_000_000;
        assert!(clock.ns(clock.ticks(hour)).abs_diff(hour) < 1_000_000);
    }
}
