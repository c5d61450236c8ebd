//! The work of one sample of random reads, and its result.

use serde::{Deserialize, Serialize};

use super::super::interleave::{self, Evidence};

/// One run of one way with one number of readers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReadWork {
    pub(crate) way: Way,
    /// The bytes, from the beginning of the file, that are read; at least one block.
    pub(crate) span_bytes: u64,
    pub(crate) block_bytes: u64,
    /// The most reads in flight, of all threads together.
    pub(crate) readers: usize,
    /// Worker threads of a Tokio runtime.
    pub(crate) workers: usize,
    pub(crate) pacing: Pacing,
    /// The measured seconds; the warm-up and the count of system calls are additional.
    pub(crate) seconds: f64,
    /// The seed of the offsets and of the times at which reads are due.
    pub(crate) seed: u64,
    /// Whether system calls are counted afterwards.
    pub(crate) count_calls: bool,
}

impl ReadWork {
    pub(super) const fn blocks(&self) -> u64 {
        let blocks = self.span_bytes / self.block_bytes;
        if blocks == 0 { 1 } else { blocks }
    }
}

/// The rule for when the next read begins.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Pacing {
    /// The next read begins when the reader's last one has ended.
    Closed,
    /// Reads begin at random times, this many a second on average.
    Open { per_second: f64 },
}

/// Ways to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    Pread,
    #[serde(rename = "preadv2-hipri")]
    PreadHipri,
    #[serde(rename = "io_uring")]
    Uring,
    #[serde(rename = "io_uring-fixed-buffers")]
    UringFixedBuffers,
    #[serde(rename = "io_uring-fixed-files")]
    UringFixedFiles,
    #[serde(rename = "io_uring-defer-taskrun")]
    UringDeferTaskrun,
    #[serde(rename = "io_uring-sqpoll")]
    UringSqpoll,
    #[serde(rename = "io_uring-iopoll")]
    UringIopoll,
    #[serde(rename = "io_uring-commands")]
    UringCommands,
    TokioFs,
    SpawnBlocking,
    ForebayShard,
    ForebayPolled,
    ForebayCommands,
    ForebayTokio,
}

impl Way {
    pub(crate) const ALL: [Self; 15] = [
        Self::Pread,
        Self::PreadHipri,
        Self::Uring,
        Self::UringFixedBuffers,
        Self::UringFixedFiles,
        Self::UringDeferTaskrun,
        Self::UringSqpoll,
        Self::UringIopoll,
        Self::UringCommands,
        Self::TokioFs,
        Self::SpawnBlocking,
        Self::ForebayShard,
        Self::ForebayPolled,
        Self::ForebayCommands,
        Self::ForebayTokio,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pread => "pread",
            Self::PreadHipri => "preadv2-hipri",
            Self::Uring => "io_uring",
            Self::UringFixedBuffers => "io_uring-fixed-buffers",
            Self::UringFixedFiles => "io_uring-fixed-files",
            Self::UringDeferTaskrun => "io_uring-defer-taskrun",
            Self::UringSqpoll => "io_uring-sqpoll",
            Self::UringIopoll => "io_uring-iopoll",
            Self::UringCommands => "io_uring-commands",
            Self::TokioFs => "tokio-fs",
            Self::SpawnBlocking => "spawn-blocking",
            Self::ForebayShard => "forebay-shard",
            Self::ForebayPolled => "forebay-polled",
            Self::ForebayCommands => "forebay-commands",
            Self::ForebayTokio => "forebay-tokio",
        }
    }

    pub(crate) const fn description(self) -> &'static str {
        match self {
            Self::Pread => "a std thread for each reader, pread with O_DIRECT",
            Self::PreadHipri => "a std thread for each reader, preadv2 with RWF_HIPRI and O_DIRECT",
            Self::Uring => {
                "one thread with a plain ring, a submission and a wait for at least one completion a turn"
            }
            Self::UringFixedBuffers => "the same with registered memory",
            Self::UringFixedFiles => "the same with registered memory and a registered file",
            Self::UringDeferTaskrun => {
                "the same with registered memory and file, SINGLE_ISSUER and DEFER_TASKRUN"
            }
            Self::UringSqpoll => {
                "registered memory and file, and a thread of the kernel that looks for submissions (SQPOLL)"
            }
            Self::UringIopoll => {
                "registered memory and file, SINGLE_ISSUER and DEFER_TASKRUN, and completions that are polled for (IOPOLL)"
            }
            Self::UringCommands => {
                "the same ring with entries of 128 bytes, and reads as commands to the NVMe namespace"
            }
            Self::TokioFs => {
                "a Tokio task for each reader, seek and read_exact of a tokio::fs::File, through the page cache"
            }
            Self::SpawnBlocking => {
                "a Tokio task for each reader, a spawn_blocking with pread and O_DIRECT for each read"
            }
            Self::ForebayShard => "a task on one of Forebay's shards for each reader, O_DIRECT",
            Self::ForebayPolled => {
                "a task on one of Forebay's shards for each reader, O_DIRECT, and completions that are polled for"
            }
            Self::ForebayCommands => {
                "the same from the NVMe namespace (Engine::open_nvme), where reads are commands, and polled for"
            }
            Self::ForebayTokio => "Forebay from tasks of a Tokio runtime, one shard, O_DIRECT",
        }
    }

    pub(crate) const fn uses_page_cache(self) -> bool {
        matches!(self, Self::TokioFs)
    }

    /// Returns whether the way reads from a namespace, by commands that the block layer does not see.
    pub(crate) const fn sends_commands(self) -> bool {
        matches!(self, Self::UringCommands | Self::ForebayCommands)
    }

    /// Returns whether each read is a system call of the thread that wants it, or of one that
    /// waits in its stead.
    pub(crate) const fn is_blocking(self) -> bool {
        matches!(self, Self::Pread | Self::PreadHipri | Self::TokioFs | Self::SpawnBlocking)
    }

    /// Returns whether all of the program's part runs on one thread, so that it can use only one processor.
    pub(crate) const fn is_one_thread(self) -> bool {
        matches!(
            self,
            Self::Uring
                | Self::UringFixedBuffers
                | Self::UringFixedFiles
                | Self::UringDeferTaskrun
                | Self::UringIopoll
                | Self::UringCommands
                | Self::ForebayShard
                | Self::ForebayPolled
                | Self::ForebayCommands
        )
    }
}

impl interleave::Way for Way {
    fn name(&self) -> &'static str {
        Self::name(*self)
    }

    fn description(&self) -> &'static str {
        Self::description(*self)
    }
}

/// The result that the child prints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReadResult {
    /// Seconds in which reads counted.
    pub(crate) seconds: f64,
    /// Reads that ended in that time.
    pub(crate) operations: u64,
    /// Open loop: reads that were due in that time and had no result when the sample was given up.
    pub(crate) unanswered: u64,
    pub(crate) mean_us: Option<f64>,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) p99_9_us: Option<f64>,
    /// Open loop: the time from when a read was due until it began.
    pub(crate) late_p99_us: Option<f64>,
    pub(crate) user_ns: u64,
    pub(crate) system_ns: u64,
    pub(crate) voluntary_switches: u64,
    pub(crate) involuntary_switches: u64,
    pub(crate) calls: Option<Calls>,
    pub(crate) in_flight_avg: Option<f64>,
    /// A value that depends on every block checked.
    pub(crate) folded: u64,
    pub(crate) evidence: Evidence,
}

/// System calls of a stretch of the sample.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Calls {
    pub(crate) count: u64,
    /// Reads that completed in that stretch.
    pub(crate) operations: u64,
    /// Whether the kernel counted them. Otherwise the way counted its own calls, which do not include
    /// waking threads.
    pub(crate) by_kernel: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_json_are_the_names_in_the_tables() {
        for way in Way::ALL {
            assert_eq!(serde_json::to_value(way).expect("plain"), way.name());
        }
    }

    #[test]
    fn a_job_survives_its_text() {
        let work = ReadWork {
            way: Way::UringSqpoll,
            span_bytes: 1 << 20,
            block_bytes: 4096,
            readers: 8,
            workers: 2,
            pacing: Pacing::Open { per_second: 12.5 },
            seconds: 0.5,
            seed: 3,
            count_calls: true,
        };
        let text = serde_json::to_string(&work).expect("plain");
        assert_eq!(serde_json::from_str::<ReadWork>(&text).expect("its own text"), work);
        assert_eq!((work.blocks(), ReadWork { span_bytes: 1, ..work }.blocks()), (256, 1));
    }
}
