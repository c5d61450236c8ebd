//! Tasks that hold their shard for too long: one reading of the counter per poll, and the task's name if the poll was long.

use crate::io::stats::Stall;
use crate::reactor::stall_profiler::Beat;

/// Names kept per shard. More are counted under the last.
const NAMES_MAX: usize = 64;

/// The stalls recorded so far, by task.
#[derive(Default)]
pub(super) struct Stalls {
    list: Vec<StallRecord>,
}

struct StallRecord {
    stall: Stall,
    /// The longest sampled poll whose back-trace has not arrived yet.
    awaited: Option<u64>,
    /// The duration of the poll that the back-trace shows, or of the awaited one.
    traced_ns: u64,
}

impl Stalls {
    /// Records a long poll; called after the poll.
    #[cold]
    pub(super) fn note(&mut self, task: &'static str, ns: u64, beat: &Beat) {
        let known = self.list.iter().position(|known| known.stall.task == task);
        let place = known.or((self.list.len() == NAMES_MAX).then_some(NAMES_MAX - 1)).unwrap_or_else(|| {
            let stall = Stall { task, polls: 0, longest_ns: 0, back_trace: None };
            self.list.push(StallRecord { stall, awaited: None, traced_ns: 0 });
            self.list.len() - 1
        });
        if let Some(record) = self.list.get_mut(place) {
            record.stall.polls += 1;
            record.stall.longest_ns = record.stall.longest_ns.max(ns);
            if let Some((poll, _)) = beat.sampled()
                && record.stall.task == task
                && ns > record.traced_ns
            {
                (record.awaited, record.traced_ns) = (Some(poll), ns);
            }
        }
        #[cfg(feature = "tracing")]
        tracing::warn!(task, ns, "a task held its shard");
        self.take(beat);
    }

    /// Returns the stalls. Must not be called within a poll.
    pub(super) fn list(&mut self, beat: &Beat) -> Vec<Stall> {
        self.take(beat);
        self.list.iter().map(|record| record.stall.clone()).collect()
    }

    /// Collects the back-traces of polls that have ended. Those of polls that were not the longest are discarded.
    fn take(&mut self, beat: &Beat) {
        beat.findings(|poll, back_trace| {
            if let Some(record) = self.list.iter_mut().find(|record| record.awaited == Some(poll)) {
                record.stall.back_trace = Some(back_trace);
                record.awaited = None;
            }
        });
    }
}
