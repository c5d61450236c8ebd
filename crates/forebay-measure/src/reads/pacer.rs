//! The times at which reads begin, and the phases in which they count.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::super::backend::{Op, sleep_until};
use super::super::pattern::SplitMix;

/// The warm-up, which is not measured: threads, rings and files are used for the first time.
pub(super) const WARM: Duration = Duration::from_millis(100);
/// The phase after the measured time in which system calls are counted.
pub(super) const CALLS: Duration = Duration::from_millis(100);
/// Open loop: the wait for results after the last read was due. A read without a result by then gets none,
/// because the device is slower than the offered rate.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time allowed for reading all counters of the machine.
const READINGS: Duration = Duration::from_millis(20);
/// The time from fixing the due times until the first read is due.
const READY: Duration = Duration::from_millis(5);
/// The most reads of an open loop. More could not be requested anyway, and would need gigabytes.
const COUNT_MAX: f64 = 20e6;

/// The state common to the sample's readers. The gauging thread moves the sample through its phases, so
/// that exactly the gauged reads are counted, however late the machine runs that thread.
#[derive(Debug)]
pub(super) struct Pacer {
    phase: AtomicU8,
    /// Open loop: the times at which reads are due, from the beginning on. They are fixed before, whatever the device does.
    due_ns: Option<Vec<u64>>,
    /// Open loop: the next read; any free reader takes it.
    next: AtomicUsize,
    /// The beginning, set once when all readers are there: 256 threads take their time to start.
    begins: OnceLock<Instant>,
    /// The time from the end of the warm-up after which no due read begins.
    lasts: Duration,
}

/// The phases of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing counts yet.
    Warming,
    /// Reads, time and processor time count.
    Counting,
    /// System calls count.
    Calls,
    /// Reads that were due are still being completed.
    Draining,
    /// No read begins any more.
    Over,
}

impl Pacer {
    /// Returns the pacer of an open loop of `per_second` reads, or of a closed one.
    pub(super) fn new(seconds: f64, per_second: Option<f64>, seed: u64) -> Self {
        let seconds = Duration::from_secs_f64(seconds);
        Self {
            phase: AtomicU8::new(Phase::Warming as u8),
            due_ns: per_second.map(|rate| arrivals(rate, WARM + seconds, seed.rotate_left(7))),
            next: AtomicUsize::new(0),
            begins: OnceLock::new(),
            lasts: seconds + PATIENCE,
        }
    }

    /// Returns the next read for a free reader, without its offset. Its tag is 1 if it begins while system calls are
    /// counted. `None` means that the reader has ended.
    pub(super) fn next(&self) -> Option<Op> {
        match &self.due_ns {
            Some(due_ns) => {
                let index = self.next.fetch_add(1, Ordering::Relaxed);
                let begins = *self.begins.wait();
                let due = begins + Duration::from_nanos(*due_ns.get(index)?);
                Some(Op { due: Some(due), ..Op::read(0) })
            }
            None => match self.phase() {
                Phase::Over => None,
                phase => Some(Op { tag: u64::from(phase == Phase::Calls), ..Op::read(0) }),
            },
        }
    }

    /// Returns whether a read due at `due` counts in the latency.
    pub(super) fn counts(&self, due: Instant) -> bool {
        self.begins.get().is_some_and(|begins| due >= *begins + WARM)
    }

    /// Returns whether due reads of an open loop no longer begin.
    pub(super) fn gave_up(&self) -> bool {
        let is_late = |begins: &Instant| Instant::now() >= *begins + WARM + self.lasts;
        self.phase() == Phase::Over || self.begins.get().is_some_and(is_late)
    }

    pub(super) fn is_open(&self) -> bool {
        self.due_ns.is_some()
    }

    pub(super) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Warming,
            1 => Phase::Counting,
            2 => Phase::Calls,
            3 => Phase::Draining,
            _ => Phase::Over,
        }
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Fixes the times, now that all readers are there, and waits until shortly before the end
    /// of the warm-up.
    pub(super) fn warm(&self) {
        sleep_until(self.begin() + WARM - READINGS);
    }

    /// Waits until the warm-up has ended.
    pub(super) fn warmed(&self) {
        sleep_until(self.begin() + WARM);
    }

    /// Lets no further read begin, and releases readers that wait for the beginning.
    pub(super) fn end(&self) {
        self.enter(Phase::Over);
        self.begin();
    }

    fn begin(&self) -> Instant {
        *self.begins.get_or_init(|| Instant::now() + READY)
    }
}

/// Returns independent arrivals, `per_second` on average, for `lasts`. The gaps between them are exponentially distributed,
/// as those of many independent programs.
fn arrivals(per_second: f64, lasts: Duration, seed: u64) -> Vec<u64> {
    let (mut random, per_second) = (SplitMix::new(seed), per_second.max(1e-3));
    let (limit, mut at) = (lasts.as_nanos() as f64, 0.0);
    let mut due_ns = Vec::with_capacity((per_second * lasts.as_secs_f64()).min(COUNT_MAX) as usize);
    loop {
        // 53 random bits, above zero.
        let uniform = ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        at += -uniform.ln() * 1e9 / per_second;
        if at >= limit || due_ns.len() as f64 >= COUNT_MAX {
            return due_ns;
        }
        due_ns.push(at as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_given_number_and_exponential_gaps() {
        let due: Vec<f64> = arrivals(10_000.0, Duration::from_secs(1), 7)
            .into_iter()
            .map(|due_ns| Duration::from_nanos(due_ns).as_secs_f64())
            .collect();
        assert!(due.is_sorted() && due.iter().all(|time| *time < 1.0));
        let count = due.len() as f64;
        // Five standard deviations of a Poisson distribution.
        assert!((count - 10_000.0).abs() < 500.0, "{count}");
        let gaps: Vec<f64> = due.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // An exponential distribution deviates by its mean; fixed gaps would not at all.
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.1, "{mean} {variance}");
    }

    #[test]
    fn the_seed_fixes_the_times() {
        let first = |seed| arrivals(100.0, Duration::from_secs(5), seed)[0];
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
        let begins = Instant::now();
        sleep_until(begins);
        assert!(Instant::now() >= begins);
    }

    #[test]
    fn a_closed_loop_goes_on_until_it_is_over() {
        let pacer = Pacer::new(0.4, None, 1);
        for phase in [Phase::Warming, Phase::Counting, Phase::Calls, Phase::Draining] {
            pacer.enter(phase);
            let tag = u64::from(phase == Phase::Calls);
            assert_eq!((pacer.phase(), pacer.next()), (phase, Some(Op { tag, ..Op::read(0) })));
        }
        pacer.enter(Phase::Over);
        assert_eq!((pacer.phase(), pacer.next(), pacer.is_open()), (Phase::Over, None, false));
        assert!(pacer.gave_up());
    }

    #[test]
    fn an_open_loop_ends_with_its_arrivals_and_counts_those_after_the_warming() {
        let pacer = Pacer::new(0.4, Some(1000.0), 1);
        pacer.begin();
        let begins = pacer.begin();
        let (mut all, mut counted) = (0, 0);
        while let Some(read) = pacer.next() {
            all += 1;
            counted += u32::from(read.due.is_some_and(|due| pacer.counts(due)));
            assert!(read.due.is_some_and(|due| due >= begins), "the beginning is fixed once");
        }
        assert!(!pacer.gave_up(), "the sample has just begun");
        assert!(pacer.is_open() && all > counted && counted > 200, "{all} {counted}");
        assert_eq!((pacer.phase(), pacer.next()), (Phase::Warming, None));
    }
}
