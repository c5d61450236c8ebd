//! Automatic compaction, by the member that leads: as etcd does it.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::{Context, stopped};
use crate::config::AutoCompaction;
use crate::proto::etcdserverpb::CompactionRequest;
use crate::proto::peer::command::Change;

/// Between two compactions by revisions.
const REVISION_INTERVAL: Duration = Duration::from_secs(300);
/// The longest time between two compactions by time; a tenth of it between two looks.
const PERIOD_MAX: Duration = Duration::from_secs(3600);
const LOOKS: u32 = 10;

/// The revisions at earlier times.
#[derive(Debug, Default)]
struct Looks(VecDeque<(Instant, i64)>);

impl Looks {
    /// Notes the revision of now, and returns the latest one that is at least `kept` old.
    fn look(&mut self, now: Instant, revision: i64, kept: Duration) -> Option<i64> {
        self.0.push_back((now, revision));
        let mut old = None;
        while let Some((at, revision)) = self.0.front()
            && now.saturating_duration_since(*at) >= kept
        {
            old = Some(*revision);
            self.0.pop_front();
        }
        old
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
            AutoCompaction::Periodic(kept) => looks.look(Instant::now(), current, kept),
        };
        let Some(revision) = revision.filter(|revision| *revision > compacted.max(1)) else { continue };
        if !context.node.is_leader() {
            continue;
        }
        let change = Change::Compact(CompactionRequest { revision, physical: false });
        match context.change_by(context.own_author(), change).await {
            Ok(_) => {
                compacted = revision;
                tracing::info!(revision, "compacted");
            }
            // A client may have compacted further.
            Err(error) => tracing::info!(revision, %error, "not compacted"),
        }
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
            found.extend(looks.look(Instant::now(), revision * 100, kept));
            tokio::time::advance(step).await;
        }
        assert_eq!(found, (1..=15).map(|revision| revision * 100).collect::<Vec<_>>());
    }
}
