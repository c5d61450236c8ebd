//! A closed loop with a deadline: each lane starts its next operation as the last one ends, and all lanes start together.

use std::convert::Infallible;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::{Backend, Lane, Op, Target, run};
use crate::experiment::Outcome;
use crate::gauge::{Cost, Gauge};
use crate::job::Job;
use crate::latency::Latency;
use crate::pace::Offsets;
use crate::pattern::{Checker, PAGE_BYTES, Pattern};

/// The tally of a closed loop.
#[derive(Debug)]
pub(crate) struct LoopTally {
    cost: Cost,
    latency: Latency,
    folded: u64,
}

impl LoopTally {
    /// Adds up the times of lanes, and the values folded from the words that they saw.
    ///
    /// # Errors
    /// Memory for the counters is missing.
    pub(crate) fn of(lanes: impl IntoIterator<Item = (Latency, u64)>, cost: Cost) -> anyhow::Result<Self> {
        let (mut latency, mut folded) = (Latency::new()?, 0);
        for (own, word) in lanes {
            latency.add(&own)?;
            folded ^= word;
        }
        Ok(Self { cost, latency, folded })
    }

    /// Returns the outcome of operations on `bytes` each.
    pub(crate) fn outcome(self, bytes: u64) -> Outcome {
        let operations = self.latency.count();
        let outcome = Outcome::new(self.cost, operations, operations * bytes, self.latency);
        Outcome { folded: self.folded, ..outcome }
    }
}

/// Runs lanes, each with its own offsets, until the job's seconds have passed. The first word of a read is compared, or that of
/// each of its pages. Setting up threads and rings is not in the time.
///
/// # Errors
/// The back end is refused here, or an operation failed or returned data other than those written.
pub(crate) fn until_deadline(
    backend: Backend,
    target: &Target,
    job: &Job,
    checks_all: bool,
    offsets: impl Fn(usize) -> Offsets,
) -> anyhow::Result<LoopTally> {
    let begin = Begin(Arc::default());
    // Tasks cannot wait for each other: there may be fewer threads than tasks.
    let (ready, all_ready) = mpsc::channel();
    let (ready, deadline) = (backend.has_threads().then_some(ready), Arc::clone(&begin.0));
    let (is_write, words) = (target.writes, job.pattern());
    let lane = move |number| {
        Ok(Loop {
            is_write,
            words,
            checks_all,
            offsets: offsets(number),
            checker: Checker::new(words),
            latency: Latency::new()?,
            ready: ready.clone(),
            deadline: Arc::clone(&deadline),
            until: None,
            last: Instant::now(),
        })
    };
    let (lanes, cost) = run(backend, target, lane, move |join| {
        // An error means that no lane has a sender any more: all of them are ready, or have failed.
        let (begin, _) = (begin, all_ready.recv());
        let gauge = Gauge::start(job.device_stat.as_deref())?;
        // One deadline for all: lanes with their own deadlines would leave the last of them alone at the end.
        _ = begin.0.set(Some(gauge.begun() + Duration::from_secs_f64(job.seconds)));
        Ok((join()?, gauge.stop()?))
    })?;
    LoopTally::of(lanes.into_iter().map(|lane| (lane.latency, lane.checker.folded())), cost)
}

/// Releases the lanes when their start instant is known. Dropped without an instant, because the sample failed, it lets them end.
pub(crate) struct Begin(pub(crate) Arc<OnceLock<Option<Instant>>>);

impl Drop for Begin {
    fn drop(&mut self) {
        _ = self.0.set(None);
    }
}

/// Gives every page of a write its first word, so that storage that detects equal blocks finds no duplicates.
#[inline]
pub(crate) fn mark_pages(words: Pattern, offset: u64, memory: &mut [u8]) {
    for (page, bytes) in (offset / PAGE_BYTES as u64..).zip(memory.chunks_exact_mut(PAGE_BYTES)) {
        bytes[..8].copy_from_slice(&words.first_word(page).to_le_bytes());
    }
}

/// A lane of the loop.
#[derive(Debug)]
struct Loop {
    is_write: bool,
    /// The first words of pages in the file, if known.
    words: Option<Pattern>,
    checks_all: bool,
    offsets: Offsets,
    checker: Checker,
    latency: Latency,
    /// Dropped when the lane waits for its start.
    ready: Option<Sender<Infallible>>,
    deadline: Arc<OnceLock<Option<Instant>>>,
    until: Option<Instant>,
    /// The end of the last operation.
    last: Instant,
}

// Inlined into the loop of a back end, these leave there nothing of what only open loops need: a sixth fewer user instructions.
impl Lane for Loop {
    #[inline(always)]
    fn next(&mut self) -> Option<Op> {
        // An operation that lasts longer than the whole sample is measured, too.
        match self.until {
            Some(until) if self.last >= until => return None,
            Some(_) => {}
            None => {
                drop(self.ready.take());
                self.until = Some((*self.deadline.wait())?);
                self.last = Instant::now();
            }
        }
        Some(Op { is_write: self.is_write, ..Op::read(self.offsets.next_offset()) })
    }

    #[inline(always)]
    fn begins(&self) -> Instant {
        self.last
    }

    fn fill(&mut self, op: &Op, memory: &mut [u8]) {
        self.words.into_iter().for_each(|words| mark_pages(words, op.offset, memory));
    }

    #[inline(always)]
    fn ended(&mut self, op: Op, begun: Instant, bytes: &[u8]) -> anyhow::Result<()> {
        self.last = Instant::now();
        self.latency.record(self.last - begun);
        match bytes.first_chunk() {
            _ if op.is_write => Ok(()),
            Some(word) if !self.checks_all => {
                self.checker.check_word(op.offset / PAGE_BYTES as u64, u64::from_le_bytes(*word))
            }
            _ => self.checker.check(op.offset, bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::lanes::{test_file, test_job};
    use super::super::Setup;
    use super::*;

    /// The sample waits for lanes that are ready, and must not wait for one that never is.
    #[test]
    fn a_ring_that_is_refused_ends_the_sample() {
        let (_cleanup, temp) = test_file(1, 4 * PAGE_BYTES);
        let job = test_job("baseline", "", temp.path(), json!({}), 1);
        let target = Target::reads(temp.path(), PAGE_BYTES, 1 << 17);
        let offsets = |_| Offsets::in_order(4, PAGE_BYTES as u64);
        let error = until_deadline(Backend::Ring(Setup::full()), &target, &job, false, offsets)
            .expect_err("no ring has so many entries");
        assert!(format!("{error:#}").contains("the kernel refuses"), "{error:#}");
    }
}
