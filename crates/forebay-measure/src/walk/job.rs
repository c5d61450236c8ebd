//! The parameters of one sample of `measure walk`, and its result.

use serde::{Deserialize, Serialize};

use super::super::interleave::{Evidence, Way};
use super::super::wal::Times;
use super::tree::Tree;

/// One run of one row with one depth and number of threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WalkWork {
    pub(super) row: WalkRow,
    pub(super) tree: Tree,
    /// Alignment of a direct read of this file, in offset and length.
    pub(super) unit_bytes: u64,
    /// Nodes from root to leaf.
    pub(super) depth: u64,
    /// Number of lookups in flight, all threads together.
    pub(super) in_flight: usize,
    /// Number of threads from which lookups come.
    pub(super) threads: usize,
    /// Each lookup makes a file with its nodes and removes it; its time includes both.
    pub(super) as_published: bool,
    /// Runs beside a thousand timer tasks.
    pub(super) timers: bool,
    /// Measured seconds, without the warm-up before.
    pub(crate) seconds: f64,
    /// Seed of the keys.
    pub(super) seed: u64,
}

impl WalkWork {
    /// Returns the number of threads that have something to do.
    pub(super) fn threads(&self) -> usize {
        self.threads.clamp(1, self.in_flight)
    }

    /// Returns the number of shards: at most one for each processor, where the lookups come from elsewhere.
    pub(super) fn shards(&self) -> usize {
        if self.row.is_on_shards() { self.threads() } else { self.threads().min(processors()) }
    }

    /// Returns the number of threads that do the work, those of the engine included.
    pub(super) fn workers(&self) -> usize {
        match self.row {
            WalkRow::NoLookups => processors(),
            WalkRow::Pread => self.in_flight,
            WalkRow::ForebayWalkTokio => self.threads() + self.shards(),
            // The blocking pool has a thread for each read that waits.
            WalkRow::BlockingPerHop | WalkRow::BlockingWhole | WalkRow::TokioFs => {
                self.threads() + self.in_flight
            }
            _ => self.threads(),
        }
    }

    /// Returns the direct read that covers the node at `position`: the read's offset in the file, and
    /// the node's offset in the read.
    pub(super) fn around(&self, position: u64) -> (u64, usize) {
        let begin = position / self.unit_bytes * self.unit_bytes;
        (begin, (position - begin) as usize)
    }

    /// Returns the bytes of such a read.
    pub(super) fn read_bytes(&self) -> usize {
        self.tree.node_bytes.max(self.unit_bytes) as usize
    }
}

/// Returns the number of processors that this process may use.
pub(super) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Ways to descend, one row each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WalkRow {
    /// Only the timer tasks, no lookups.
    NoLookups,
    Pread,
    #[serde(rename = "io_uring")]
    IoUring,
    ForebayTask,
    ForebayWalk,
    ForebayWalkTokio,
    BlockingPerHop,
    BlockingWhole,
    TokioFs,
}

impl WalkRow {
    pub(super) const ALL: [Self; 8] = [
        Self::Pread,
        Self::IoUring,
        Self::ForebayTask,
        Self::ForebayWalk,
        Self::ForebayWalkTokio,
        Self::BlockingPerHop,
        Self::BlockingWhole,
        Self::TokioFs,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::NoLookups => "no-lookups",
            Self::Pread => "pread",
            Self::IoUring => "io_uring",
            Self::ForebayTask => "forebay-task",
            Self::ForebayWalk => "forebay-walk",
            Self::ForebayWalkTokio => "forebay-walk-tokio",
            Self::BlockingPerHop => "blocking-per-hop",
            Self::BlockingWhole => "blocking-whole",
            Self::TokioFs => "tokio-fs",
        }
    }

    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::NoLookups => "no lookups: the timer tasks alone",
            Self::Pread => "a std thread for each lookup in flight, pread with O_DIRECT",
            Self::IoUring => {
                "a loop on a bare ring that submits the next read where the last one completes, with \
                 registered file and memory, O_DIRECT: the limit"
            }
            Self::ForebayTask => "tasks on Forebay's shards, one File::read().await for each node, O_DIRECT",
            Self::ForebayWalk => {
                "tasks on Forebay's shards, one File::walk().await for each lookup, O_DIRECT"
            }
            Self::ForebayWalkTokio => {
                "tasks of a Tokio runtime, one File::walk().await for each lookup, O_DIRECT"
            }
            Self::BlockingPerHop => {
                "tasks of a Tokio runtime, a spawn_blocking with pread for each node, O_DIRECT"
            }
            Self::BlockingWhole => {
                "tasks of a Tokio runtime, a spawn_blocking with all preads of a lookup, O_DIRECT"
            }
            Self::TokioFs => {
                "tasks of a Tokio runtime, seek and read_exact of a tokio::fs::File each, through the page \
                 cache"
            }
        }
    }

    pub(super) const fn is_on_shards(self) -> bool {
        matches!(self, Self::ForebayTask | Self::ForebayWalk)
    }

    /// Returns whether the lookups are tasks of a Tokio runtime.
    pub(super) const fn is_of_tokio(self) -> bool {
        matches!(self, Self::ForebayWalkTokio | Self::BlockingPerHop | Self::BlockingWhole | Self::TokioFs)
    }

    pub(super) const fn uses_page_cache(self) -> bool {
        matches!(self, Self::TokioFs)
    }
}

/// The result that the child process prints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct WalkResult {
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) context_switches: u64,
    pub(super) in_flight_avg: Option<f64>,
    /// Lookups that completed and were verified in these seconds.
    pub(super) lookups: u64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    /// Number of times a task was polled again for a lookup; rows without tasks have none.
    pub(super) wakes: Option<u64>,
    /// Lateness of the timer tasks.
    pub(super) timers: Option<Times>,
    pub(super) evidence: Evidence,
}

impl Way for WalkRow {
    fn name(&self) -> &'static str {
        (*self).name()
    }

    fn description(&self) -> &'static str {
        (*self).description()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_json_are_the_names_in_the_tables() {
        for row in WalkRow::ALL {
            assert_eq!(serde_json::to_value(row).expect("plain"), row.name());
        }
    }

    #[test]
    fn a_node_is_read_with_the_bytes_around_it() {
        let tree = Tree { node_bytes: 512, fan_out: 30, levels: 1, nodes: 8, seed: 0 };
        let mut work = WalkWork {
            row: WalkRow::Pread,
            tree,
            unit_bytes: 4096,
            depth: 1,
            in_flight: 2,
            threads: 8,
            as_published: false,
            timers: false,
            seconds: 1.0,
            seed: 0,
        };
        assert_eq!((work.around(4096 + 1536), work.read_bytes()), ((4096, 1536), 4096));
        work.unit_bytes = 512;
        assert_eq!((work.around(4096 + 1536), work.read_bytes()), ((5632, 0), 512));
        work.tree.node_bytes = 4096;
        assert_eq!((work.around(8192), work.read_bytes()), ((8192, 0), 4096));
        assert_eq!(work.threads(), 2);
    }
}
