//! One reader: its offsets, and the results of its reads.

use std::sync::Arc;
use std::time::Instant;

use super::super::job::Job;
use super::super::latency::Latency;
use super::super::pace::Offsets;
use super::super::pattern::Checker;
use super::job::ReadWork;
use super::pacer::{Pacer, Phase, Scheduled};

/// A reader with its offsets, its check of the data and its results.
#[derive(Debug)]
pub(super) struct Lane {
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
    /// System calls while they were counted, where the way counts them itself.
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

    pub(super) fn sum(parts: impl IntoIterator<Item = anyhow::Result<Self>>) -> anyhow::Result<Self> {
        let mut all = Self::new()?;
        for part in parts {
            all.add(&part?)?;
        }
        Ok(all)
    }
}

impl Lane {
    /// Returns reader number `lane` of the sample; each has offsets of its own.
    pub(super) fn new(job: &Job, work: &ReadWork, lane: usize, pacer: &Arc<Pacer>) -> anyhow::Result<Self> {
        let offsets = Offsets::over(work.seed, lane, 0, work.blocks(), work.block_bytes);
        let checker = Checker::new(job.pattern());
        Ok(Self { offsets, checker, pacer: Arc::clone(pacer), tally: Tally::new()? })
    }

    /// Returns the offset of the next read.
    pub(super) fn offset(&mut self) -> u64 {
        self.offsets.next_offset()
    }

    /// Records a read that began at `begun` and has just ended with `bytes`, which are those at `offset`.
    ///
    /// # Errors
    /// Fails when the bytes are not those written there.
    pub(super) fn ended(
        &mut self,
        scheduled: Scheduled,
        begun: Instant,
        offset: u64,
        bytes: &[u8],
    ) -> anyhow::Result<()> {
        let now = Instant::now();
        self.checker.check(offset, bytes)?;
        let phase = self.pacer.phase();
        match phase {
            Phase::Counting => self.tally.operations += 1,
            Phase::Calls if scheduled.calls_count => self.tally.operations_of_calls += 1,
            _ => {}
        }
        match scheduled.due {
            Some(due) if self.pacer.counts(due) => {
                self.tally.latency.record(now.saturating_duration_since(due));
                self.tally.late.record(begun.saturating_duration_since(due));
            }
            None if phase == Phase::Counting => self.tally.latency.record(now - begun),
            _ => {}
        }
        Ok(())
    }

    /// Records a due read that gets no result any more: it has waited at least until now.
    pub(super) fn gave_up(&mut self, scheduled: Scheduled) {
        if let Some(due) = scheduled.due.filter(|due| self.pacer.counts(*due)) {
            self.tally.latency.record(Instant::now().saturating_duration_since(due));
            self.tally.unanswered += 1;
        }
    }

    /// Records that the way made a system call for its reads.
    pub(super) fn called(&mut self) {
        if self.pacer.phase() == Phase::Calls {
            self.tally.own_calls += 1;
        }
    }

    pub(super) fn end(mut self) -> Tally {
        self.tally.folded = self.checker.folded();
        self.tally
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::{Pacing, Way};
    use super::*;

    fn lane(pacing: Pacing) -> (Lane, Arc<Pacer>) {
        let work = ReadWork {
            way: Way::Pread,
            span_bytes: 1 << 20,
            block_bytes: 4096,
            readers: 1,
            workers: 1,
            pacing,
            seconds: 1.0,
            seed: 1,
            count_calls: false,
        };
        let job = Job::new("cpu", "/", &work, 1.0).expect("plain");
        let pacer = Arc::new(Pacer::new(&work));
        (Lane::new(&job, &work, 0, &pacer).expect("a few kilobytes"), pacer)
    }

    /// Story: 0.695 system calls for each `pread`. Reads counted that began before the counter did, and
    /// that ended between its reading and the end of the phase.
    #[test]
    fn only_reads_that_end_while_counting_count() {
        let (mut lane, pacer) = lane(Pacing::Closed);
        // This read began before system calls were counted, so its own call may be missing from the count.
        let early = Scheduled { due: None, calls_count: false };
        let mut read = |phase| {
            pacer.enter(phase);
            lane.called();
            let offset = lane.offset();
            let scheduled = pacer.next_read().unwrap_or(early);
            for scheduled in [early, scheduled] {
                lane.ended(scheduled, Instant::now(), offset, &[0; 4096]).expect("nothing to compare");
            }
        };
        for phase in [Phase::Warming, Phase::Counting, Phase::Counting, Phase::Calls, Phase::Over] {
            read(phase);
        }
        let tally = lane.end();
        assert_eq!((tally.operations, tally.operations_of_calls, tally.own_calls), (4, 1, 1));
        assert_eq!((tally.latency.count(), tally.late.count()), (4, 0));
    }

    /// Coordinated omission: a reader that was busy for a second must not hide the wait of reads that were
    /// due meanwhile.
    #[test]
    fn an_open_loop_counts_from_when_a_read_was_due() {
        let (mut lane, pacer) = lane(Pacing::Open { per_second: 10.0 });
        pacer.warm();
        pacer.enter(Phase::Draining);
        let second = std::time::Duration::from_secs(1);
        let due = Instant::now().checked_add(second).expect("soon");
        // One is due before the warm-up ended, and one after it.
        let early = Instant::now().checked_sub(second).expect("the machine is up that long");
        for due in [early, due] {
            lane.ended(Scheduled { due: Some(due), calls_count: false }, due + second, 0, &[0; 4096])
                .expect("nothing to compare");
        }
        lane.gave_up(Scheduled { due: Some(due), calls_count: false });
        let tally = lane.end();
        assert_eq!((tally.operations, tally.latency.count(), tally.unanswered), (0, 2, 1));
        assert!(tally.late.quantile_us(0.5).is_some_and(|late| late > 0.98e6));
    }
}
