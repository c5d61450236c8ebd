//! The messages between controller and agent, a line of JSON each. They contain everything that an agent can
//! be ordered to do: no message contains a path, a name of a file or a command.

use std::io::{BufRead, Read, Write};
use std::path::Path;

use anyhow::Context as _;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::super::interleave::SampleFigures;
use super::super::job::{Job, RandomWork, ScanWork};
use super::super::sampler::{Cached, Outcome};
use super::super::start_barrier::Timed;
use super::super::{random, scan};
use crate::result::{CacheState, Condition};

/// The version of the messages, raised when one changes its meaning.
pub(super) const PROTOCOL: u32 = 2;

/// The size of the longest line; the longest messages contain a histogram of some kilobytes.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Sends one message.
///
/// # Errors
/// Fails when the other side has gone.
pub(super) fn send(out: &mut impl Write, message: &impl Serialize) -> anyhow::Result<()> {
    // One write: two would be two packets, and the second would wait for the acknowledgement of the first.
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    out.write_all(&line)?;
    Ok(out.flush()?)
}

/// Waits for the next message. Nothing can be received after an error.
///
/// # Errors
/// Fails when the other side has gone, or sent a line that is too long or no message.
pub(super) fn receive<T: DeserializeOwned>(input: &mut impl BufRead) -> anyhow::Result<T> {
    let mut line = Vec::new();
    input.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    anyhow::ensure!(!line.is_empty(), "the connection was closed");
    anyhow::ensure!(
        line.pop() == Some(b'\n'),
        "a line ended after {} bytes; a whole one has at most {LINE_BYTES_MAX}",
        line.len() + 1
    );
    serde_json::from_slice(&line).with_context(|| {
        let text: String = String::from_utf8_lossy(&line).chars().take(80).collect();
        format!("a line that is no message: {text:?}")
    })
}

/// A message from the controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ToAgent {
    /// The controller is still alive.
    Alive,
    /// Requests the time of the agent's clock.
    Clock,
    /// Write the file. It is the first task, and comes only once.
    Prepare { memory_bytes: u64, file_bytes: u64, seed: u64 },
    /// Make a sample ready.
    Sample { round: u64, work: HostWork },
    /// Begin the sample at this instant of the agent's clock, or (`None`) give it up.
    Go { round: u64, at_ns: Option<u64> },
    /// The measurement is complete.
    End,
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

    /// Returns the bytes that the sample reads before its start.
    pub(super) fn warm_bytes(&self) -> u64 {
        match self {
            Self::Scan(_) => 0,
            Self::Random(work) => work.warm_bytes,
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
    /// The first message. Other versions can read it, too: they may have other facts.
    Hello { protocol: u32, program: String, facts: serde_json::Value },
    /// The agent is still alive.
    Alive,
    /// The instants when the request arrived and when this reply was sent, on the agent's monotonic clock.
    Clock { arrived_ns: u64, sent_ns: u64 },
    /// The file has been written.
    Prepared(Prepared),
    /// The sample waits for its start.
    Ready { round: u64 },
    /// The result of a sample, with gates of the file and the device.
    Sampled { round: u64, timed: Box<Timed>, memory_peak_bytes: Option<u64>, conditions: Vec<Condition> },
    /// The sample failed; others are possible.
    Failed { round: u64, why: String },
    /// Nothing more can be measured on this host. `code` is the exit code of the same failure on one host.
    Lost { why: String, code: u8 },
}

/// The facts about an agent's host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Facts {
    /// The host's name for itself.
    pub(super) host: String,
    pub(super) kernel: String,
    pub(super) architecture: String,
    pub(super) cpus_allowed: u64,
    /// The most memory that a sample may use.
    pub(super) memory_affordable_bytes: u64,
    pub(super) optimized_build: bool,
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
        let fine = serde_json::to_string(&ToAgent::Sample { round: 1, work: HostWork::Random(random()) })
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
        let prepare = r#"{"prepare":{"memory_bytes":1,"file_bytes":2,"seed":3,"directory":"/"}}"#;
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

    fn received(bytes: &[u8]) -> Result<u32, String> {
        receive(&mut std::io::BufReader::new(bytes)).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn messages_arrive_whole_and_in_order() {
        let mut bytes = Vec::new();
        for number in 0..3_u32 {
            send(&mut bytes, &number).expect("memory");
        }
        let mut input = &bytes[..];
        for number in 0..3_u32 {
            assert_eq!(receive::<u32>(&mut input).expect("sent"), number);
        }
        assert!(received(b"").is_err_and(|error| error.contains("the connection was closed")));
    }

    #[test]
    fn half_a_line_a_long_one_and_another_text_are_refused() {
        assert!(received(b"12").is_err_and(|error| error.contains("ended after 2 bytes")));
        let mut long = vec![b'1'; LINE_BYTES_MAX as usize];
        long.extend_from_slice(b"1\n");
        assert!(received(&long).is_err_and(|error| error.contains("at most 1048576")));
        let banner = received(b"Welcome to \x1b[31mnode-b\n").expect_err("no message");
        assert!(banner.contains("no message") && banner.contains("node-b"), "{banner}");
        assert!(!banner.contains('\u{1b}'), "{banner}");
    }
}
