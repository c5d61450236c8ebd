//! One reader: its offsets, and the results of its reads.

use std::sync::Arc;
use std::time::Instant;

use super::super::backend::{Lane, Op};
use super::super::job::Job;
use super::super::latency::Latency;
use super::super::pace::Offsets;
use super::super::pattern::Checker;
use super::Work;
use super::pacer::{Pacer, Phase};

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
    /// Closed loop: times of reads that ended while counting, from their begin. Open loop: times of reads
    /// that were due then, from when they were due.
    pub(super) latency: Latency,
    /// Open loop: times from when reads were due until they began.
    pub(super) late: Latency,
    /// Reads that ended while counting.
    pub(super) operations: u64,
    /// Reads that began and ended while system calls were counted.
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
    /// Returns reader number `lane` of the sample; each has offsets of its own.
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
        self.checker.check(op.offset, bytes)?;
        let phase = self.pacer.phase();
        match phase {
            Phase::Counting => self.tally.operations += 1,
            Phase::Calls => self.tally.operations_of_calls += op.tag,
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
    use std::time::Duration;

    use serde_json::json;

    use super::super::super::lanes::test_job;
    use super::*;

    fn reader(per_second: Option<f64>) -> (Reader, Arc<Pacer>) {
        let work = json!({ "block_bytes": 4096, "file_bytes": 1 << 20, "readers": 1, "workers": 1 });
        let job = test_job("cpu", "pread", "/".as_ref(), work, 1);
        let pacer = Arc::new(Pacer::new(1.0, per_second, 1));
        let work = job.work().expect("its own");
        (Reader::new(&job, &work, 0, &pacer).expect("a few kilobytes"), pacer)
    }

    /// Story: 0.695 system calls for each `pread`. Reads counted that began before the counter did, and
    /// that ended between its reading and the end of the phase.
    #[test]
    fn only_reads_that_end_while_counting_count() {
        let (mut reader, pacer) = reader(None);
        // This read began before system calls were counted, so its own call may be missing from the count.
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
