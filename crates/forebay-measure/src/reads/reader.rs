//! A reader: its offsets, the times at which its reads start, the phases in which they count, and their results.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::Work;
use crate::backend::{Lane, Op, sleep_until};
use crate::job::Job;
use crate::latency::Latency;
use crate::pace::Offsets;
use crate::pattern::{Checker, SplitMix};

/// The warm-up, which is not measured: threads, rings and files are used for the first time.
pub(super) const WARM: Duration = Duration::from_millis(100);
/// The phase after the measured time in which system calls are counted.
pub(super) const CALLS: Duration = Duration::from_millis(100);
/// The longest time by which a phase is prolonged until a read has counted in it.
const PROLONGED_MOST: Duration = Duration::from_secs(5);
/// Open loop: the wait for results after the last read was due. A read that has not completed by then counts as one without a
/// result: the device is slower than the offered rate.
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
    /// Open loop: the times at which reads are due, from the start. They are fixed beforehand, independent of the device.
    due_ns: Option<Vec<u64>>,
    /// Open loop: the next read; any free reader starts it.
    next: AtomicUsize,
    /// The start, set once when all readers exist: 256 threads need time to start.
    begins: OnceLock<Instant>,
    /// The time from the end of the warm-up after which no due read starts.
    lasts: Duration,
    /// Whether a read has counted in this phase.
    has_counted: AtomicBool,
    /// Whether a reader has found wrong bytes: it reads no more, and no phase waits for it.
    has_failed: AtomicBool,
}

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
    /// No further read starts.
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
            has_counted: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        }
    }

    fn note_counted(&self) {
        // A store by each reader for each read would be a cost of the measurement.
        if !self.has_counted.load(Ordering::Relaxed) {
            self.has_counted.store(true, Ordering::Relaxed);
        }
    }

    /// Waits for the time of a phase, and of a closed loop on a machine so busy that no read has counted by then, for the first
    /// read: a rate needs at least one.
    pub(super) fn wait_for_phase(&self, lasts: Duration) {
        sleep_until(Instant::now() + lasts);
        let given_up = Instant::now() + PROLONGED_MOST;
        let is_wanted =
            || !self.has_counted.load(Ordering::Relaxed) && !self.has_failed.load(Ordering::Relaxed);
        while !self.is_open() && is_wanted() && Instant::now() < given_up {
            sleep_until(Instant::now() + CALLS / 10);
        }
    }

    /// Returns the next read for a free reader, without its offset. Its tag is 1 if it starts while system calls are counted.
    /// `None` means that the reader has ended.
    #[inline]
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

    /// Returns whether due reads of an open loop no longer start.
    pub(super) fn gave_up(&self) -> bool {
        let is_late = |begins: &Instant| Instant::now() >= *begins + WARM + self.lasts;
        self.phase() == Phase::Over || self.begins.get().is_some_and(is_late)
    }

    pub(super) fn is_open(&self) -> bool {
        self.due_ns.is_some()
    }

    #[inline]
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
        self.has_counted.store(false, Ordering::Relaxed);
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

    /// Stops further reads, and releases readers that wait for the start.
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

/// A reader with its offsets, its check of the data and its results.
#[derive(Debug)]
pub(super) struct Reader {
    offsets: Offsets,
    checker: Checker,
    pacer: Arc<Pacer>,
    tally: Tally,
}

/// The results of one reader, or of all of them.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    /// Closed loop: times of reads that ended while counting, from their start. Open loop: times of reads that were due then, from
    /// when they were due.
    pub(super) latency: Latency,
    /// Open loop: times from when reads were due until they started.
    pub(super) late: Latency,
    /// Reads that ended while counting.
    pub(super) operations: u64,
    /// Reads that started and ended while system calls were counted.
    pub(super) operations_of_calls: u64,
    /// Reads without a result.
    pub(super) unanswered: u64,
    /// System calls while they were counted, where the back end knows them.
    pub(super) own_calls: u64,
    pub(super) folded: u64,
}

impl Tally {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            latency: Latency::new()?,
            late: Latency::new()?,
            operations: 0,
            operations_of_calls: 0,
            unanswered: 0,
            own_calls: 0,
            folded: 0,
        })
    }

    pub(super) fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.latency.add(&other.latency)?;
        self.late.add(&other.late)?;
        self.operations += other.operations;
        self.operations_of_calls += other.operations_of_calls;
        self.unanswered += other.unanswered;
        self.own_calls += other.own_calls;
        self.folded ^= other.folded;
        Ok(())
    }
}

impl Reader {
    /// Returns reader number `lane` of the sample; each has different offsets.
    pub(super) fn new(job: &Job, work: &Work, lane: usize, pacer: &Arc<Pacer>) -> anyhow::Result<Self> {
        let blocks = work.file_bytes / work.block_bytes;
        let offsets = Offsets::over(job.seed, lane, 0, blocks, work.block_bytes);
        let checker = Checker::new(job.pattern());
        Ok(Self { offsets, checker, pacer: Arc::clone(pacer), tally: Tally::new()? })
    }

    pub(super) fn end(mut self) -> Tally {
        self.tally.folded = self.checker.folded();
        self.tally
    }
}

impl Lane for Reader {
    #[inline]
    fn next(&mut self) -> Option<Op> {
        let op = self.pacer.next()?;
        Some(Op { offset: self.offsets.next_offset(), ..op })
    }

    /// Records a due read that gets no result any more: it has waited at least until now.
    fn gives_up(&mut self, op: &Op) -> bool {
        let Some(due) = op.due.filter(|_| self.pacer.gave_up()) else { return false };
        if self.pacer.counts(due) {
            self.tally.latency.record(Instant::now().saturating_duration_since(due));
            self.tally.unanswered += 1;
        }
        true
    }

    fn ended(&mut self, op: Op, begun: Instant, bytes: &[u8]) -> anyhow::Result<()> {
        let now = Instant::now();
        self.checker
            .check(op.offset, bytes)
            .inspect_err(|_| self.pacer.has_failed.store(true, Ordering::Relaxed))?;
        let phase = self.pacer.phase();
        match phase {
            Phase::Counting => {
                self.tally.operations += 1;
                self.pacer.note_counted();
            }
            Phase::Calls if op.tag > 0 => {
                self.tally.operations_of_calls += op.tag;
                self.pacer.note_counted();
            }
            _ => {}
        }
        match op.due {
            Some(due) if self.pacer.counts(due) => {
                self.tally.latency.record(now.saturating_duration_since(due));
                self.tally.late.record(begun.saturating_duration_since(due));
            }
            None if phase == Phase::Counting => self.tally.latency.record(now - begun),
            _ => {}
        }
        Ok(())
    }

    fn called(&mut self, calls: u64) {
        if self.pacer.phase() == Phase::Calls {
            self.tally.own_calls += calls;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::lanes::test_job;
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
        // Longer than a busy machine stops a test.
        let pacer = Pacer::new(60.0, Some(1000.0), 1);
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

    fn reader(per_second: Option<f64>) -> (Reader, Arc<Pacer>) {
        let work = json!({ "block_bytes": 4096, "file_bytes": 1 << 20, "readers": 1, "workers": 1 });
        let job = test_job("cpu", "pread", "/".as_ref(), work, 1);
        let pacer = Arc::new(Pacer::new(60.0, per_second, 1));
        let work = job.work().expect("its own");
        (Reader::new(&job, &work, 0, &pacer).expect("a few kilobytes"), pacer)
    }

    /// Story: 0.695 system calls for each `pread`. Reads counted that started before the counter, and that ended between its
    /// reading and the end of the phase.
    #[test]
    fn only_reads_that_end_while_counting_count() {
        let (mut reader, pacer) = reader(None);
        // This read started before system calls were counted, so its own call may be missing from the count.
        let early = Op::read(0);
        for phase in [Phase::Warming, Phase::Counting, Phase::Counting, Phase::Calls, Phase::Over] {
            pacer.enter(phase);
            reader.called(1);
            let next = reader.next().unwrap_or(early);
            for op in [early, next] {
                reader.ended(op, Instant::now(), &[0; 4096]).expect("nothing to compare");
            }
        }
        let tally = reader.end();
        assert_eq!((tally.operations, tally.operations_of_calls, tally.own_calls), (4, 1, 1));
        assert_eq!((tally.latency.count(), tally.late.count()), (4, 0));
    }

    /// Coordinated omission: a reader that was busy for a second must not hide the wait of reads that were
    /// due meanwhile.
    #[test]
    fn an_open_loop_counts_from_when_a_read_was_due() {
        let (mut reader, pacer) = reader(Some(10.0));
        pacer.warm();
        pacer.enter(Phase::Draining);
        let second = Duration::from_secs(1);
        let op = |due| Op { due: Some(due), ..Op::read(0) };
        let due = Instant::now() + second;
        // One is due before the warm-up ended, and one after it.
        let early = Instant::now().checked_sub(second).expect("the machine is up that long");
        for due in [early, due] {
            assert!(!reader.gives_up(&op(due)), "there is time");
            reader.ended(op(due), due + second, &[0; 4096]).expect("nothing to compare");
        }
        pacer.end();
        assert!(reader.gives_up(&op(due)));
        let tally = reader.end();
        assert_eq!((tally.operations, tally.latency.count(), tally.unanswered), (0, 2, 1));
        assert!(tally.late.quantile_us(0.5).is_some_and(|late| late > 0.98e6));
    }
}
