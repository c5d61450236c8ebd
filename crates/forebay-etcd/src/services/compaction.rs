//! Automatic compaction, by the member that leads: as etcd does it.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::{Context, stopped};
use crate::config::AutoCompaction;
use crate::proto::etcdserverpb::CompactionRequest;
use crate::proto::peer::command::Change;
use crate::refusal::Refusal;

/// Between two compactions by revisions.
const REVISION_INTERVAL: Duration = Duration::from_secs(300);
/// Between two compactions by time, or the time that is kept if that is shorter; a tenth of it between two looks.
const PERIOD_MAX: Duration = Duration::from_secs(3600);
const LOOKS: u32 = 10;

/// The revisions at earlier times.
#[derive(Debug, Default)]
struct Looks {
    revisions: VecDeque<(Instant, i64)>,
    /// The last compaction.
    compacted: Option<Instant>,
}

impl Looks {
    /// Notes the revision of now. Returns the latest one that is at least `kept` old, once a period has passed since the last compaction.
    fn due(&mut self, now: Instant, revision: i64, kept: Duration) -> Option<i64> {
        self.revisions.push_back((now, revision));
        let mut old = None;
        while let Some((at, revision)) = self.revisions.front()
            && now.saturating_duration_since(*at) >= kept
        {
            old = Some(*revision);
            self.revisions.pop_front();
        }
        // The look that is nearest to the end of the period.
        let period = kept.min(PERIOD_MAX);
        let least = period.saturating_sub(period / LOOKS / 2);
        old.filter(|_| self.compacted.is_none_or(|at| now.saturating_duration_since(at) >= least))
    }

    /// Notes a compaction.
    fn compacted(&mut self, now: Instant) {
        self.compacted = Some(now);
    }
}

/// Compacts until the server ends.
pub(crate) async fn run(context: Context, how: AutoCompaction) {
    let interval = match how {
        AutoCompaction::Off => return,
        AutoCompaction::Revision(_) => REVISION_INTERVAL,
        AutoCompaction::Periodic(kept) => kept.min(PERIOD_MAX) / LOOKS,
    };
    let (mut stopping, mut looks, mut compacted) = (context.stopping.clone(), Looks::default(), 0);
    let mut ticks = tokio::time::interval(interval.max(Duration::from_millis(1)));
    loop {
        tokio::select! {
            () = stopped(&mut stopping) => return,
            _ = ticks.tick() => {}
        }
        let current = context.hub.revision();
        let revision = match how {
            AutoCompaction::Off => return,
            AutoCompaction::Revision(kept) => Some(current - kept),
            AutoCompaction::Periodic(kept) => looks.due(Instant::now(), current, kept),
        };
        let Some(revision) = revision.filter(|revision| *revision > compacted.max(1)) else { continue };
        if !context.node.is_leader() {
            continue;
        }
        let change = Change::Compact(CompactionRequest { revision, physical: false });
        match context.change_by(context.own_author(), change).await {
            Ok(_) => tracing::info!(revision, "compacted"),
            // By a client, perhaps further.
            Err(error) if error.message() == Refusal::Compacted.text() => {}
            Err(error) => {
                tracing::info!(revision, %error, "not compacted");
                continue;
            }
        }
        compacted = revision;
        looks.compacted(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn history_of_the_kept_time_stays() {
        let (mut looks, kept, step) = (Looks::default(), Duration::from_secs(10), Duration::from_secs(1));
        let mut found = Vec::new();
        for revision in 1..=25 {
            found.extend(looks.due(Instant::now(), revision * 100, kept));
            tokio::time::advance(step).await;
        }
        assert_eq!(found, (1..=15).map(|revision| revision * 100).collect::<Vec<_>>());
    }

    /// Story: a cluster that keeps an hour was compacted every six minutes. A watch that was away for longer than the hour had lost its place
    /// at the next of these, and with etcd it has up to another hour.
    #[tokio::test(start_paused = true)]
    async fn compactions_are_a_period_apart() {
        for (kept_minutes, apart) in [(60, 60), (24 * 60, 60), (10, 10)] {
            let kept = Duration::from_secs(60 * kept_minutes);
            let step = Duration::from_secs(6 * apart);
            let (mut looks, begun, mut at) = (Looks::default(), Instant::now(), Vec::new());
            for look in 0..500 {
                if looks.due(Instant::now(), look, kept).is_some() {
                    // It takes a while.
                    tokio::time::advance(step / 100).await;
                    looks.compacted(Instant::now());
                    at.push(begun.elapsed().as_secs() / 60);
                    tokio::time::advance(step - step / 100).await;
                } else {
                    tokio::time::advance(step).await;
                }
            }
            let expected = (0..).map(|number| kept_minutes + number * apart).take(at.len());
            assert_eq!(at, expected.collect::<Vec<_>>(), "{kept_minutes} minutes are kept");
            assert!(at.len() > 20, "{at:?}");
        }
    }
}
