//! Tasks that hold their shard for too long: one reading of the counter a poll, and a name when it took long.

use crate::io::stats::Stall;
use crate::reactor::watch::Beat;

/// Names kept a shard; further ones count under the last.
const NAMES_MAX: usize = 64;

/// What was noticed.
#[derive(Default)]
pub(super) struct Stalls {
    list: Vec<Known>,
}

struct Known {
    stall: Stall,
    /// The longest poll that a sample was taken of, whose back-trace is not there yet.
    awaited: Option<u64>,
    /// How long the poll of the back-trace took, or of the one awaited.
    traced_ns: u64,
}

impl Stalls {
    /// After the poll.
    #[cold]
    pub(super) fn note(&mut self, task: &'static str, ns: u64, beat: &Beat) {
        let known = self.list.iter().position(|known| known.stall.task == task);
        let place = known.or((self.list.len() == NAMES_MAX).then_some(NAMES_MAX - 1)).unwrap_or_else(|| {
            let stall = Stall { task, polls: 0, longest_ns: 0, back_trace: None };
            self.list.push(Known { stall, awaited: None, traced_ns: 0 });
            self.list.len() - 1
        });
        if let Some(known) = self.list.get_mut(place) {
            known.stall.polls += 1;
            known.stall.longest_ns = known.stall.longest_ns.max(ns);
            if let Some((poll, _)) = beat.sampled()
                && known.stall.task == task
                && ns > known.traced_ns
            {
                (known.awaited, known.traced_ns) = (Some(poll), ns);
            }
        }
        #[cfg(feature = "tracing")]
        tracing::warn!(task, ns, "a task held its shard");
        self.take(beat);
    }

    /// Not within a poll.
    pub(super) fn list(&mut self, beat: &Beat) -> Vec<Stall> {
        self.take(beat);
        self.list.iter().map(|known| known.stall.clone()).collect()
    }

    /// Takes what was found out about polls that are over; of those that were not the longest nothing is kept.
    fn take(&mut self, beat: &Beat) {
        beat.findings(|poll, back_trace| {
            if let Some(known) = self.list.iter_mut().find(|known| known.awaited == Some(poll)) {
                known.stall.back_trace = Some(back_trace);
                known.awaited = None;
            }
        });
    }
}
