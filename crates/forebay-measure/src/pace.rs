//! Rules common to all rows: when a scan ends, and which offsets a random reader visits.

use std::time::{Duration, Instant};

use super::gauge::Gauge;
use super::job::{Job, RandomWork, Reading, ScanWork};
use super::pattern::{Checker, PAGE_BYTES, SplitMix};

/// Bytes for which the clock is read once: few enough to take a tenth of a second on a slow disk, and
/// enough that the clock costs little beside 4 KiB reads.
const CLOCK_BYTES: u64 = 128 * 1024;

/// Counts and checks the bytes that a scan delivers, and reports when its time has ended.
#[derive(Debug)]
pub(super) struct Pace {
    checker: Checker,
    deadline: Instant,
    total: u64,
    bytes: u64,
    operations: u64,
    next_clock: u64,
    late: bool,
}

impl Pace {
    pub(super) fn new(job: &Job, work: &ScanWork, begun: Instant) -> Self {
        Self {
            checker: Checker::new(job.pattern()),
            deadline: begun + Duration::from_secs_f64(work.seconds_max),
            total: work.bytes,
            bytes: 0,
            operations: 0,
            next_clock: CLOCK_BYTES,
            late: false,
        }
    }

    /// Takes the next bytes of the file; returns `false` when the time has ended.
    ///
    /// # Errors
    /// Fails when the bytes are not those written there.
    pub(super) fn take(&mut self, bytes: &[u8]) -> anyhow::Result<bool> {
        self.checker.check(self.bytes, bytes)?;
        Ok(self.advance(bytes.len() as u64))
    }

    /// Takes the next page, of which only the first word was read.
    ///
    /// # Errors
    /// See [`take`](Self::take).
    pub(super) fn take_word(&mut self, page: u64, word: u64) -> anyhow::Result<bool> {
        self.checker.check_word(page, word)?;
        Ok(self.advance(PAGE_BYTES as u64))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Ends the scan, and returns its figures.
    ///
    /// # Errors
    /// Fails when the row stopped before the end of the file and before its time had passed, or the gauge
    /// could not be read.
    pub(super) fn finish(self, gauge: Gauge, buffers_peak_bytes: Option<u64>) -> anyhow::Result<Reading> {
        let cost = gauge.stop()?;
        anyhow::ensure!(
            self.late || self.bytes == self.total,
            "{} of {} bytes were delivered; the file became shorter, or the way it was read loses data",
            self.bytes,
            self.total
        );
        Ok(Reading {
            cost,
            bytes: self.bytes,
            operations: self.operations,
            latency: None,
            buffers_peak_bytes,
            folded: self.checker.folded(),
        })
    }

    fn advance(&mut self, bytes: u64) -> bool {
        self.bytes += bytes;
        self.operations += 1;
        if self.bytes < self.next_clock {
            return true;
        }
        self.next_clock = self.bytes + CLOCK_BYTES;
        self.late = Instant::now() >= self.deadline;
        !self.late
    }
}

/// The offsets that one of the readers visits.
#[derive(Debug, Clone)]
pub(super) struct Offsets {
    random: SplitMix,
    start: u64,
    blocks: u64,
    block_bytes: u64,
}

impl Offsets {
    /// Returns the offsets of a `lane`. Each lane of a sample has its own.
    pub(super) fn new(work: &RandomWork, lane: usize) -> Self {
        Self::over(work.seed, lane, work.span_start, work.blocks(), work.block_bytes)
    }

    /// Returns the offsets of a lane over `blocks` blocks that begin at `start`.
    pub(super) fn over(seed: u64, lane: usize, start: u64, blocks: u64, block_bytes: u64) -> Self {
        let mut seeds = SplitMix::new(seed ^ (lane as u64).rotate_left(32));
        Self { random: SplitMix::new(seeds.next_u64()), start, blocks: blocks.max(1), block_bytes }
    }

    pub(super) fn next_offset(&mut self) -> u64 {
        self.start + self.random.below(self.blocks) * self.block_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::{RandomRow, ScanRow};
    use super::*;

    fn random_work(seed: u64) -> RandomWork {
        RandomWork {
            row: RandomRow::Direct,
            span_start: 8192,
            span_bytes: 40_960,
            block_bytes: 4096,
            depth: 2,
            threads: 1,
            seconds: 1.0,
            seed,
            warm_bytes: 0,
        }
    }

    #[test]
    fn offsets_stay_in_the_span_and_reach_all_of_it() {
        let mut offsets = Offsets::new(&random_work(1), 0);
        let mut seen: Vec<u64> = (0..1000).map(|_| offsets.next_offset()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, (0..10).map(|block| 8192 + block * 4096).collect::<Vec<_>>());
    }

    #[test]
    fn lanes_and_seeds_have_their_own_offsets() {
        let first = |seed, lane| {
            let mut offsets = Offsets::new(&RandomWork { span_bytes: 1 << 40, ..random_work(seed) }, lane);
            offsets.next_offset()
        };
        assert_ne!(first(1, 0), first(1, 1));
        assert_ne!(first(1, 0), first(2, 0));
        assert_eq!(first(1, 0), first(1, 0));
    }

    #[test]
    fn a_scan_ends_at_its_deadline() {
        let work = ScanWork { row: ScanRow::Buffered, bytes: 1 << 30, seconds_max: 0.0, depth: None };
        let job = Job::new("scan", "/", &work, 0.0).expect("plain");
        let gauge = Gauge::start(None).expect("getrusage works");
        let mut pace = Pace::new(&job, &work, gauge.begun());
        assert!(pace.take(&[0; 4096]).expect("nothing is compared"));
        assert!(!pace.take(&[0; 128 * 1024]).expect("nothing is compared"));
        let reading = pace.finish(gauge, None).expect("getrusage works");
        assert_eq!((reading.bytes, reading.operations), (132 * 1024, 2));
    }

    #[test]
    fn a_scan_that_loses_its_end_is_an_error() {
        let work = ScanWork { row: ScanRow::Default, bytes: 8192, seconds_max: 60.0, depth: None };
        let job = Job::new("scan", "/", &work, 0.0).expect("plain");
        let gauge = Gauge::start(None).expect("getrusage works");
        let mut pace = Pace::new(&job, &work, gauge.begun());
        assert!(pace.take(&[0; 4096]).expect("nothing is compared"));
        let error = pace.finish(gauge, None).expect_err("half of it is missing");
        assert!(error.to_string().contains("4096 of 8192"), "{error}");
    }
}
