//! The messages between controller and agent. They contain everything that an agent can be ordered to do:
//! no message contains a path, a name of a file or a command.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::interleave::SampleFigures;
use super::super::job::{Job, RandomWork, ScanWork};
use super::super::sampler::{Cached, Outcome};
use super::super::start_barrier::Timed;
use super::super::{random, scan};
use forebay_report::result::{CacheState, Condition};

/// A message from the controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ToAgent {
    /// The controller is still alive.
    Alive,
    /// Requests the time of the agent's clock.
    Clock { number: u64 },
    /// A task for the worker: anything but a clock or a sign of life, which the agent itself handles.
    Task(Task),
    /// The measurement is complete.
    End,
}

/// A task for the agent's worker, a process of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Task {
    /// Write the file. It is the first task, and comes only once.
    Prepare { memory_bytes: u64, file_bytes: u64, seed: u64 },
    /// Make a sample ready.
    Sample { round: u64, work: HostWork },
    /// Begin the sample at this instant of the agent's clock, or (`None`) give it up.
    Go { round: u64, at_ns: Option<u64> },
}

/// The kinds of samples that run on several hosts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum HostWork {
    Scan(ScanWork),
    Random(RandomWork),
}

impl HostWork {
    /// Returns the most seconds that the sample takes.
    pub(super) fn seconds(&self) -> f64 {
        match self {
            Self::Scan(work) => work.seconds_max,
            Self::Random(work) => work.seconds,
        }
    }

    /// Returns the sample with the file at `path`, and where the page cache's part of its
    /// memory is counted.
    ///
    /// # Errors
    /// Fails when the work has no JSON.
    pub(super) fn job(&self, path: &Path) -> anyhow::Result<(Job, Cached)> {
        match self {
            Self::Scan(work) => scan::job(path, work),
            Self::Random(work) => random::job(path, work),
        }
    }

    /// Returns the figures and claims of a sample; `cache` is the state of the page cache for
    /// rows that use it.
    pub(super) fn sampled(&self, outcome: Outcome, cache: CacheState) -> SampleFigures {
        match self {
            Self::Scan(work) => scan::sampled(outcome, work.row, cache),
            Self::Random(work) => random::sampled(outcome, work),
        }
    }

    /// Checks that a sample may run like this on a file of `file_bytes`. The limits are those of
    /// the command line.
    ///
    /// # Errors
    /// Fails with the value that is out of its limits.
    pub(super) fn check(&self, file_bytes: u64) -> anyhow::Result<()> {
        let seconds = self.seconds();
        anyhow::ensure!((0.01..=86_400.0).contains(&seconds), "a sample of {seconds} s");
        match self {
            Self::Scan(work) => {
                anyhow::ensure!((1..=file_bytes).contains(&work.bytes), "a scan of {} bytes", work.bytes);
            }
            Self::Random(work) => {
                let block = work.block_bytes;
                anyhow::ensure!(
                    block > 0 && block.is_multiple_of(4096) && block <= 64 << 20,
                    "blocks of {block} bytes"
                );
                let end = work.span_start.checked_add(work.span_bytes);
                anyhow::ensure!(
                    work.span_start.is_multiple_of(block)
                        && work.blocks() > 0
                        && end.is_some_and(|end| end <= file_bytes)
                        && work.warm_bytes <= work.span_bytes,
                    "a span of {} bytes at {}",
                    work.span_bytes,
                    work.span_start
                );
                anyhow::ensure!((1..=4096).contains(&work.depth), "{} reads in flight", work.depth);
                anyhow::ensure!((1..=64).contains(&work.threads), "{} threads", work.threads);
            }
        }
        Ok(())
    }
}

/// A message from the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FromAgent {
    /// The agent is still alive.
    Alive,
    /// The first message of an agent that serves the controller.
    Welcome(Facts),
    /// Sent instead of a welcome.
    Refused { why: String },
    /// The instants when the request arrived and when this reply was sent, on the agent's monotonic clock.
    Clock { number: u64, arrived_ns: u64, sent_ns: u64 },
    /// A message of the worker, passed on.
    Done(Done),
    /// The worker has ended, and nothing more can be measured on this host.
    Lost { why: String },
}

/// A message from the agent's worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Done {
    Prepared(Prepared),
    Ready {
        round: u64,
    },
    Sampled {
        round: u64,
        timed: Box<Timed>,
        memory_peak_bytes: Option<u64>,
        /// Gates of the file and the device.
        conditions: Vec<Condition>,
    },
    /// The sample, or (without a round) the preparation, failed.
    Failed {
        round: Option<u64>,
        why: String,
        code: u8,
    },
}

/// The facts about an agent's host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Facts {
    /// The host's name for itself.
    pub(super) host: String,
    pub(super) kernel: String,
    pub(super) architecture: String,
    pub(super) cpus_allowed: u64,
    /// The most memory that a sample may use.
    pub(super) memory_affordable_bytes: u64,
    pub(super) optimized_build: bool,
    /// The rank, under a launcher of ranks.
    pub(super) rank: Option<u32>,
}

/// The file and the method with which an agent measures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Prepared {
    pub(super) file_bytes: u64,
    pub(super) file_system: String,
    /// The method by which samples begin cold, in a sentence.
    pub(super) cold_method: String,
    /// Whether a cgroup limits the page cache.
    pub(super) memory_limited: bool,
    /// The state of the page cache for the rows that use it.
    pub(super) cache: CacheState,
    /// Facts that a reader must have before trusting the numbers.
    pub(super) notes: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::super::super::job::{RandomRow, ScanRow};
    use super::*;

    fn random() -> RandomWork {
        RandomWork {
            row: RandomRow::Direct,
            span_start: 8192,
            span_bytes: 1 << 20,
            block_bytes: 4096,
            depth: 8,
            threads: 1,
            seconds: 0.5,
            seed: 1,
            warm_bytes: 0,
        }
    }

    #[test]
    fn no_message_can_name_a_path() {
        let fine = serde_json::to_string(&ToAgent::Task(Task::Sample {
            round: 1,
            work: HostWork::Random(random()),
        }))
        .expect("plain");
        assert!(serde_json::from_str::<ToAgent>(&fine).is_ok(), "{fine}");
        for (here, with) in [
            ("\"round\":1", "\"round\":1,\"path\":\"/etc/passwd\""),
            ("\"depth\":8", "\"depth\":8,\"path\":\"/etc/passwd\""),
            ("\"random\"", "\"walk\""),
        ] {
            let changed = fine.replace(here, with);
            assert_ne!(changed, fine);
            assert!(serde_json::from_str::<ToAgent>(&changed).is_err(), "{changed}");
        }
        let prepare = r#"{"task":{"prepare":{"memory_bytes":1,"file_bytes":2,"seed":3,"directory":"/"}}}"#;
        assert!(serde_json::from_str::<ToAgent>(prepare).is_err());
    }

    #[test]
    fn work_beyond_its_limits_is_refused() {
        let file = 2 << 20;
        assert!(HostWork::Random(random()).check(file).is_ok());
        let wrong = [
            RandomWork { block_bytes: 0, ..random() },
            RandomWork { block_bytes: 512, ..random() },
            RandomWork { span_start: u64::MAX - 4095, ..random() },
            RandomWork { span_start: 100, ..random() },
            RandomWork { span_bytes: 4 << 20, ..random() },
            RandomWork { span_bytes: 1, ..random() },
            RandomWork { warm_bytes: 4 << 20, ..random() },
            RandomWork { depth: 0, ..random() },
            RandomWork { depth: 100_000, ..random() },
            RandomWork { threads: 1000, ..random() },
            RandomWork { seconds: f64::NAN, ..random() },
            RandomWork { seconds: 1e9, ..random() },
        ];
        for work in wrong {
            assert!(HostWork::Random(work.clone()).check(file).is_err(), "{work:?}");
        }
        for bytes in [0, file + 1] {
            let work = ScanWork { row: ScanRow::Default, bytes, seconds_max: 1.0, depth: None };
            assert!(HostWork::Scan(work).check(file).is_err());
        }
    }
}
