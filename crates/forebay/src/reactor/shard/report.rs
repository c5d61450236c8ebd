//! A shard's reports on itself.

use crate::base::pending::Sender;
use crate::io::stats::{FileReport, ShardStats, Stall};
use crate::reactor::account::AccountReport;
use crate::reactor::shard::Shard;

/// One shard's part of [`Stats`](crate::Stats).
pub(crate) struct ShardReport {
    pub(crate) stats: ShardStats,
    pub(crate) account: AccountReport,
    pub(crate) stalls: Vec<Stall>,
}

impl Shard {
    /// Reports the operations on each file from this shard; called by a message.
    pub(crate) fn tell_files(&self, answer: Sender<Vec<FileReport>>) {
        answer.send(Ok(self.account.with(|account| account.files.report())));
    }

    /// Reports this shard's counters; called by a message.
    pub(crate) fn tell_stats(&self, answer: Sender<ShardReport>) {
        let (in_flight, slots_used, slots) =
            self.ops.with(|ops| (ops.in_flight, ops.table.live(), ops.table.capacity()));
        let polling = self.driver.with(|driver| driver.poll_counts());
        let stats = ShardStats {
            priority: self.engine.granted.of(self.index()),
            turns: self.counters.turns.get(),
            enters: self.driver.with(|driver| driver.enters()),
            kicks: self.inbox.kicks.load(std::sync::atomic::Ordering::Relaxed),
            spins: self.counters.spins.get(),
            spins_useful: self.counters.spins_useful.get(),
            in_flight,
            slots_used,
            slots,
            tasks: self.executor.task_count(),
            memory_waits: self.counters.memory_waits.get(),
            stray_completions: self.counters.strays.get(),
            polled: polling.requests,
            polls: polling.polls,
            polls_empty: polling.empty,
            polls_refused: self.counters.polls_refused.get(),
        };
        let account = self.account.with(|account| account.report());
        answer.send(Ok(ShardReport { stats, account, stalls: self.executor.stalls() }));
    }
}
