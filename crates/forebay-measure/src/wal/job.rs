//! The parameters of one sample of `measure wal` and `measure blocking`, and its result.

use serde::{Deserialize, Serialize};

use super::super::interleave::{self, Evidence};
use super::super::latency::Latency;

/// One run of one row under one workload and one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WalWork {
    pub(crate) row: WalRow,
    pub(crate) workload: Workload,
    pub(crate) load: Load,
    /// Threads of the runtime.
    pub(crate) workers: usize,
    /// Measured seconds, without the warm-up before.
    pub(crate) seconds: f64,
    pub(crate) record_bytes: usize,
    /// Records in one append.
    pub(crate) batch: usize,
    /// Size of the file that is written through before, and of a segment of the log.
    pub(crate) file_bytes: u64,
    /// Each append makes a file of its own and removes it; its time includes both.
    pub(crate) as_published: bool,
    /// Flush mode of the log; other rows ignore it.
    pub(crate) flush: FlushChoice,
    pub(crate) seed: u64,
}

/// Who waits for the device in the log's rows: `forebay::Flush` by name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FlushChoice {
    /// Write and sync are queued.
    Queued,
    /// The shard's thread waits for the device.
    Blocking,
    /// The shard's thread waits while nothing else is in flight.
    #[default]
    WhenAlone,
}

impl FlushChoice {
    pub(super) const fn flush(self) -> forebay::Flush {
        match self {
            Self::Queued => forebay::Flush::Queued,
            Self::Blocking => forebay::Flush::Blocking,
            Self::WhenAlone => forebay::Flush::WhenAlone,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Blocking => "blocking",
            Self::WhenAlone => "when-alone",
        }
    }
}

/// The schedule of the appends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Workload {
    /// At fixed times, whether earlier ones have completed or not.
    Open {
        /// Appends a second.
        rate: u32,
    },
    /// Each appender waits until its append completes before the next one.
    Closed {
        /// Number of tasks that append.
        appenders: usize,
    },
}

impl Workload {
    /// Returns the maximum number of appends that have a handle of their own.
    pub(super) fn lanes(self) -> usize {
        match self {
            Self::Open { .. } => 64,
            Self::Closed { appenders } => appenders,
        }
    }
}

/// Other work of the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Load {
    /// Nothing.
    None,
    /// Tasks that sort, two for each worker.
    Cpu,
    /// Tasks that only wait for a time, and whose lateness is measured.
    Timers,
}

impl Load {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Cpu => "cpu",
            Self::Timers => "timers",
        }
    }
}

/// Ways to make records durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WalRow {
    /// Only the load: shows the runtime's other tasks without any appends.
    NoAppends,
    TokioFs,
    StdInTask,
    StdThread,
    SpawnBlocking,
    OwnRuntime,
    Forebay,
    ForebayPrompt,
    ForebayRealtime,
    BatchDirect,
    BatchSpawnBlocking,
    BatchAsync,
    StoreDirect,
    StoreSpawnBlocking,
    StoreAsync,
}

/// A way in which a task makes a batch durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The task waits itself and blocks its worker.
    Direct,
    /// A thread for blocking work waits.
    SpawnBlocking,
    /// The task awaits the append.
    Async,
}

impl WalRow {
    /// Rows of `measure wal`.
    pub(super) const APPENDS: [Self; 8] = [
        Self::TokioFs,
        Self::StdInTask,
        Self::StdThread,
        Self::SpawnBlocking,
        Self::OwnRuntime,
        Self::Forebay,
        Self::ForebayPrompt,
        Self::ForebayRealtime,
    ];

    /// Rows of `measure blocking`.
    pub(crate) const BATCHES: [Self; 6] = [
        Self::BatchDirect,
        Self::BatchSpawnBlocking,
        Self::BatchAsync,
        Self::StoreDirect,
        Self::StoreSpawnBlocking,
        Self::StoreAsync,
    ];

    /// Returns the way batches are made durable; `None` for rows of single records.
    pub(super) const fn way(self) -> Option<Way> {
        match self {
            Self::BatchDirect | Self::StoreDirect => Some(Way::Direct),
            Self::BatchSpawnBlocking | Self::StoreSpawnBlocking => Some(Way::SpawnBlocking),
            Self::BatchAsync | Self::StoreAsync => Some(Way::Async),
            _ => None,
        }
    }

    /// Returns whether batches go into a store instead of a log.
    pub(super) const fn is_store(self) -> bool {
        matches!(self, Self::StoreDirect | Self::StoreSpawnBlocking | Self::StoreAsync)
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::NoAppends => "no-appends",
            Self::TokioFs => "tokio-fs",
            Self::StdInTask => "std-in-task",
            Self::StdThread => "std-thread",
            Self::SpawnBlocking | Self::BatchSpawnBlocking => "spawn-blocking",
            Self::OwnRuntime => "own-runtime",
            Self::Forebay => "forebay",
            Self::ForebayPrompt => "forebay-prompt",
            Self::ForebayRealtime => "forebay-realtime",
            Self::BatchDirect => "direct",
            Self::BatchAsync => "async",
            Self::StoreDirect => "store-direct",
            Self::StoreSpawnBlocking => "store-spawn-blocking",
            Self::StoreAsync => "store-async",
        }
    }

    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::NoAppends => "no appends: the runtime's other tasks alone",
            Self::TokioFs => {
                "tokio::fs::File: write_all and flush under a lock, then sync_data beside the others' on a handle of its own"
            }
            Self::StdInTask => "pwrite and fdatasync in the task itself, whose worker waits meanwhile",
            Self::StdThread => {
                "one std thread that takes what waits in a channel, writes it together, flushes once and replies \
                 through oneshots"
            }
            Self::SpawnBlocking => "pwrite and fdatasync in a spawn_blocking of each append",
            Self::OwnRuntime => "as tokio-fs, in a second Tokio runtime with as many workers",
            Self::Forebay => "Forebay's log on one shard, default priority",
            Self::ForebayPrompt => {
                "Forebay's log, Priority::Prompt, the runtime's workers polite (forebay::polite_worker)"
            }
            Self::ForebayRealtime => "Forebay's log, Priority::RealTime",
            Self::BatchDirect => "append_batch(..).wait() in the task itself, whose worker waits meanwhile",
            Self::BatchSpawnBlocking => "append_batch(..).wait() in a spawn_blocking of each batch",
            Self::BatchAsync => "append_batch(..).await in the task",
            Self::StoreDirect => {
                "the store: write(&batch).wait() in the task itself, whose worker waits meanwhile"
            }
            Self::StoreSpawnBlocking => "the store: write(&batch).wait() in a spawn_blocking of each batch",
            Self::StoreAsync => "the store: write(&batch).await in the task",
        }
    }

    /// Returns whether the row uses Forebay's log, alone or under a store.
    pub(super) const fn is_log(self) -> bool {
        !matches!(
            self,
            Self::NoAppends
                | Self::TokioFs
                | Self::StdInTask
                | Self::StdThread
                | Self::SpawnBlocking
                | Self::OwnRuntime
        )
    }
}

/// Percentiles of a time, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
    pub(crate) max_us: f64,
}

impl Times {
    /// Returns the percentiles of `latency`, or `None` when nothing was recorded.
    pub(crate) fn of(latency: &Latency) -> Option<Self> {
        Some(Self {
            p50_us: latency.quantile_us(0.5)?,
            p99_us: latency.quantile_us(0.99)?,
            p99_9_us: latency.quantile_us(0.999)?,
            max_us: latency.quantile_us(1.0)?,
        })
    }
}

/// The result that the child process prints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct WalResult {
    /// Seconds in which appends and work were counted.
    pub(crate) seconds: f64,
    /// Appends that completed in that time for their caller.
    pub(crate) appends: u64,
    /// Time until the records were durable.
    pub(crate) durable: Option<Times>,
    /// Time until the awaiting task was notified.
    pub(crate) seen: Option<Times>,
    /// Open loop: time from the planned start until the append began.
    pub(crate) late: Option<Times>,
    /// Vectors that the load sorted.
    pub(crate) work: u64,
    /// Lateness of the timer tasks.
    pub(crate) timers: Option<Times>,
    pub(crate) workers: usize,
    /// User and system time of all threads.
    pub(crate) cpu_seconds: f64,
    /// Open loop: scheduling policy of the thread that begins appends.
    pub(crate) source: Option<String>,
    /// Requested settings that were not granted.
    pub(crate) degraded: Option<String>,
    pub(super) evidence: Evidence,
}

impl interleave::Way for WalRow {
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
    fn work_survives_its_text() {
        for row in WalRow::APPENDS.into_iter().chain(WalRow::BATCHES) {
            let work = WalWork {
                row,
                workload: Workload::Open { rate: 500 },
                load: Load::Cpu,
                workers: 2,
                seconds: 0.5,
                record_bytes: 256,
                batch: 1,
                file_bytes: 1 << 20,
                as_published: true,
                flush: FlushChoice::Blocking,
                seed: 7,
            };
            let text = serde_json::to_string(&work).expect("plain");
            assert_eq!(serde_json::from_str::<WalWork>(&text).expect("its own text"), work);
        }
    }

    #[test]
    fn names_of_an_experiment_are_unique() {
        for rows in [&WalRow::APPENDS[..], &WalRow::BATCHES[..]] {
            let mut names: Vec<&str> = rows.iter().map(|row| row.name()).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), rows.len());
        }
    }

    #[test]
    fn the_largest_value_is_the_maximum() {
        let mut latency = Latency::new().expect("a few kilobytes");
        assert_eq!(Times::of(&latency), None);
        for microseconds in [10, 20, 3000] {
            latency.record(std::time::Duration::from_micros(microseconds));
        }
        let times = Times::of(&latency).expect("it has values");
        assert!((times.max_us / 3000.0 - 1.0).abs() < 0.02 && times.p50_us < 21.0, "{times:?}");
    }
}
