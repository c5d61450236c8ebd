//! The times at which reads begin, and the phases in which they count.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use super::arrivals::{Arrivals, sleep_until};
use super::job::{Pacing, ReadWork};

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

/// The state common to the sample's readers. The gauging thread moves the sample through its phases, so
/// that exactly the gauged reads are counted, however late the machine runs that thread.
#[derive(Debug)]
pub(super) struct Pacer {
    phase: AtomicU8,
    arrivals: Option<Arrivals>,
    /// Open loop: reads due from this instant on count. It is fixed when all readers are there.
    counted_from: OnceLock<Instant>,
    /// The time from that instant after which no read begins.
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
    /// Open loop: reads that were due are still being completed.
    Draining,
    /// No read begins any more.
    Over,
}

/// A read to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scheduled {
    /// Open loop: the instant when it is due.
    pub(super) due: Option<Instant>,
    /// Closed loop: whether it began while system calls are counted.
    pub(super) calls_count: bool,
}

impl Pacer {
    pub(super) fn new(work: &ReadWork) -> Self {
        let arrivals = match work.pacing {
            Pacing::Closed => None,
            Pacing::Open { per_second } => {
                let lasts = WARM + Duration::from_secs_f64(work.seconds);
                Some(Arrivals::new(per_second, lasts, work.seed.rotate_left(7)))
            }
        };
        let lasts = Duration::from_secs_f64(work.seconds) + PATIENCE;
        Self { phase: AtomicU8::new(Phase::Warming as u8), arrivals, counted_from: OnceLock::new(), lasts }
    }

    /// Returns the next read for a free reader; in an open loop it may be due later. `None` means that the
    /// reader has ended.
    pub(super) fn next_read(&self) -> Option<Scheduled> {
        match &self.arrivals {
            Some(arrivals) => arrivals.take().map(|due| Scheduled { due: Some(due), calls_count: false }),
            None => match self.phase() {
                Phase::Over => None,
                phase => Some(Scheduled { due: None, calls_count: phase == Phase::Calls }),
            },
        }
    }

    /// Returns whether a read due at `due` counts in the latency.
    pub(super) fn counts(&self, due: Instant) -> bool {
        self.counted_from.get().is_some_and(|from| due >= *from)
    }

    /// Returns whether due reads of an open loop no longer begin.
    pub(super) fn gave_up(&self) -> bool {
        self.phase() == Phase::Over || self.is_open() && self.is_late()
    }

    pub(super) fn is_open(&self) -> bool {
        self.arrivals.is_some()
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
        sleep_until(self.begin() - READINGS);
    }

    /// Waits until the warm-up has ended.
    pub(super) fn warmed(&self) {
        sleep_until(self.begin());
    }

    /// Lets no further read begin, and releases readers that wait for the beginning.
    pub(super) fn end(&self) {
        self.enter(Phase::Over);
        self.begin();
    }

    fn begin(&self) -> Instant {
        let begins = Instant::now() + READY;
        let counted_from = *self.counted_from.get_or_init(|| begins + WARM);
        if let Some(arrivals) = &self.arrivals {
            arrivals.begin(begins);
        }
        counted_from
    }

    fn is_late(&self) -> bool {
        self.counted_from.get().is_some_and(|from| Instant::now() >= *from + self.lasts)
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::Way;
    use super::*;

    fn work(pacing: Pacing) -> ReadWork {
        ReadWork {
            way: Way::Pread,
            span_bytes: 1 << 20,
            block_bytes: 4096,
            readers: 1,
            workers: 1,
            pacing,
            seconds: 0.4,
            seed: 1,
            count_calls: false,
        }
    }

    #[test]
    fn a_closed_loop_goes_on_until_it_is_over() {
        let pacer = Pacer::new(&work(Pacing::Closed));
        for phase in [Phase::Warming, Phase::Counting, Phase::Calls, Phase::Draining] {
            pacer.enter(phase);
            let calls_count = phase == Phase::Calls;
            assert_eq!(
                (pacer.phase(), pacer.next_read()),
                (phase, Some(Scheduled { due: None, calls_count }))
            );
        }
        pacer.enter(Phase::Over);
        assert_eq!((pacer.phase(), pacer.next_read(), pacer.is_open()), (Phase::Over, None, false));
        assert!(pacer.gave_up());
    }

    #[test]
    fn an_open_loop_ends_with_its_arrivals_and_counts_those_after_the_warming() {
        let pacer = Pacer::new(&work(Pacing::Open { per_second: 1000.0 }));
        pacer.begin();
        let (mut all, mut counted) = (0, 0);
        while let Some(next_read) = pacer.next_read() {
            all += 1;
            counted += u32::from(next_read.due.is_some_and(|due| pacer.counts(due)));
        }
        assert!(!pacer.gave_up(), "the sample has just begun");
        assert!(pacer.is_open() && all > counted && counted > 200, "{all} {counted}");
        assert_eq!(pacer.phase(), Phase::Warming);
    }
}
