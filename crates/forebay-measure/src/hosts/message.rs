//! The messages between controller and agent, a line of JSON each.

use std::io::{BufRead, Read, Write};

use anyhow::Context as _;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::experiment::Outcome;
use crate::gates::Claim;
use crate::options::Values;
use forebay_report::result::{Condition, Experiment};

/// The size of the longest line; the longest messages contain a histogram of some kilobytes.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Sends one message.
///
/// # Errors
/// Fails when the other side has closed the connection.
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
/// Fails when the other side has closed the connection, or sent a line that is too long or not a message.
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
        format!("a line that is not a message: {text:?}")
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
    /// Make the files of an experiment. It is the first task, and occurs only once.
    Prepare { experiment: String, options: Values, seed: u64 },
    /// Make a sample ready.
    Sample { round: u64, sample: Sample },
    /// Start the sample at this instant of the agent's clock, or (`None`) give it up. Without meaning for an agent whose sample has
    /// failed.
    Go { at_ns: Option<u64> },
    /// The measurement is complete.
    End,
}

/// The turn of a sample: the number of its table, its row, repeat and seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) setting: usize,
    pub(super) row: String,
    pub(super) repeat: usize,
    pub(super) seed: u64,
    pub(super) seconds: f64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FromAgent {
    /// The first message. Other versions can read it, too: they may have other facts.
    Hello { program: String, facts: serde_json::Value },
    /// The agent is still alive.
    Alive,
    /// The instants when the request arrived and when this reply was sent, on the agent's monotonic clock.
    Clock { arrived_ns: u64, sent_ns: u64 },
    /// The file has been written.
    Prepared(PreparedAgent),
    /// The sample waits for its start.
    Ready,
    /// The result of a sample, with gates of the file and the device.
    Sampled { outcome: Box<Outcome>, claim: Claim, conditions: Vec<Condition> },
    /// The sample failed; others are possible. That of an earlier round was given up.
    Failed { round: u64, why: String },
    /// Nothing more can be measured on this host. `code` is the exit code of the same failure on one host.
    Lost { why: String, code: u8 },
}

/// The facts about an agent's host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Facts {
    /// The host's name for itself.
    pub(super) host: String,
    pub(super) cpus_allowed: u64,
    /// The most memory that a sample may use.
    pub(super) memory_affordable_bytes: u64,
}

/// An agent that can run samples.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct PreparedAgent {
    /// The host and its file system, in a sentence.
    pub(super) about: String,
    /// The tables, whose rows have no figures.
    pub(super) tables: Vec<Experiment>,
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(banner.contains("not a message") && banner.contains("node-b"), "{banner}");
        assert!(!banner.contains('\u{1b}'), "{banner}");
    }
}
