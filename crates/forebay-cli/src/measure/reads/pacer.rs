//! When reads are begun, and which of them count.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use super::arrivals::{Arrivals, sleep_until};
use super::job::{Pacing, ReadWork};

/// Not measured: threads, rings and files are used for the first time.
pub(super) const WARM: Duration = Duration::from_millis(100);
/// After the measured time, when they are counted.
pub(super) const CALLS: Duration = Duration::from_millis(100);
/// Open loop: what has no answer so long after the last read was due gets none, because the device is slower than what
/// it was asked for.
const PATIENCE: Duration = Duration::from_secs(1);
/// What reading all counters of the machine may take.
const READINGS: Duration = Duration::from_millis(20);
/// From when the times are fixed until the first read is due.
const READY: Duration = Duration::from_millis(5);

/// What the sample's readers share. Whoever gauges the sample moves it through its phases, so that what is counted
/// is what was gauged, however late the machine let it.
#[derive(Debug)]
pub(super) struct Pacer {
    phase: AtomicU8,
    arrivals: Option<Arrivals>,
    /// Open loop: reads that are due from here on count. Fixed when all readers are there.
    counted_from: OnceLock<Instant>,
    /// From then on: when no read is begun any more.
    lasts: Duration,
}

/// What a sample goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing counts yet.
    Warming,
    /// Reads, time and processor time count.
    Counting,
    /// System calls count.
    Calls,
    /// Open loop: what was due is still being answered.
    Draining,
    /// No read is begun any more.
    Over,
}

/// A read to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ask {
    /// Open loop: when it is due.
    pub(super) due: Option<Instant>,
    /// Closed loop: it was begun while system calls are counted.
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

    /// The next read for a reader that is free; in an open loop it may be due later. `None`: the reader has ended.
    pub(super) fn ask(&self) -> Option<Ask> {
        match &self.arrivals {
            Some(arrivals) => arrivals.take().map(|due| Ask { due: Some(due), calls_count: false }),
            None => match self.phase() {
                Phase::Over => None,
                phase => Some(Ask { due: None, calls_count: phase == Phase::Calls }),
            },
        }
    }

    /// Whether a read that was due then counts in the latency.
    pub(super) fn counts(&self, due: Instant) -> bool {
        self.counted_from.get().is_some_and(|from| due >= *from)
    }

    /// Open loop: whether reads that are due are not begun any more.
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

    /// All readers are there: fixes the times, and waits until the warming is over but for a moment.
    pub(super) fn warm(&self) {
        sleep_until(self.begin() - READINGS);
    }

    /// Waits until the warming is over.
    pub(super) fn warmed(&self) {
        sleep_until(self.begin());
    }

    /// No read is begun any more, and nobody waits for a beginning.
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
            assert_eq!((pacer.phase(), pacer.ask()), (phase, Some(Ask { due: None, calls_count })));
        }
        pacer.enter(Phase::Over);
        assert_eq!((pacer.phase(), pacer.ask(), pacer.is_open()), (Phase::Over, None, false));
        assert!(pacer.gave_up());
    }

    #[test]
    fn an_open_loop_ends_with_its_arrivals_and_counts_those_after_the_warming() {
        let pacer = Pacer::new(&work(Pacing::Open { per_second: 1000.0 }));
        pacer.begin();
        let (mut all, mut counted) = (0, 0);
        while let Some(ask) = pacer.ask() {
            all += 1;
            counted += u32::from(ask.due.is_some_and(|due| pacer.counts(due)));
        }
        assert!(!pacer.gave_up(), "the sample has just begun");
        assert!(pacer.is_open() && all > counted && counted > 200, "{all} {counted}");
        assert_eq!(pacer.phase(), Phase::Warming);
    }
}
