//! A sample that begins at an instant which somebody else sets: when it has everything ready it says so on standard
//! output, reads the instant on standard input, and waits for it. So samples on several hosts begin together.

use std::fs;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use rustix::thread::ClockId;
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};

use super::job::{Answer, Job, Reading};

/// The line with which a sample says that it waits.
pub(super) const READY: &str = "ready";

const NS_PER_S: u64 = 1_000_000_000;

/// Of this process, which runs one sample: where [`Gauge::start`](super::gauge::Gauge::start) stands.
static LINE: Mutex<Line> = Mutex::new(Line::None);

#[derive(Debug)]
enum Line {
    /// This sample begins when it likes.
    None,
    /// The next gauge waits.
    Armed {
        device_stat: Option<PathBuf>,
    },
    Begun {
        begun_ns: u64,
        device: Option<(PathBuf, u64)>,
    },
}

/// What a sample that began together with others answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Timed {
    pub(super) answer: Answer,
    /// When its time began, on the monotonic clock of its host.
    pub(super) begun_ns: u64,
    /// Latencies of all its operations.
    pub(super) histogram: Option<String>,
    /// What the block device counted as read in the same time, for whomever.
    pub(super) device_bytes: Option<u64>,
}

/// The clock that instants are told in: the same for all processes of a host.
pub(super) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * NS_PER_S + now.tv_nsec.cast_unsigned()
}

/// Lets the next gauge of this process wait.
pub(super) fn arm(job: &Job) {
    *lock() = Line::Armed { device_stat: job.device_stat.clone() };
}

/// Waits where this process was told to; otherwise returns at once.
///
/// # Errors
/// Whoever sets the instant has gone.
pub(super) fn wait() -> io::Result<()> {
    let mut line = lock();
    let Line::Armed { device_stat } = &mut *line else { return Ok(()) };
    let device_stat = device_stat.take();
    let mut out = io::stdout().lock();
    writeln!(out, "{READY}")?;
    out.flush()?;
    let mut text = String::new();
    io::stdin().lock().read_line(&mut text)?;
    let at: u64 =
        text.trim().parse().map_err(|_| io::Error::other("the start of the sample was called off"))?;
    let instant = Timespec { tv_sec: (at / NS_PER_S).cast_signed(), tv_nsec: (at % NS_PER_S).cast_signed() };
    while let Err(error) = rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &instant) {
        if error != rustix::io::Errno::INTR {
            return Err(error.into());
        }
    }
    let device = device_stat.and_then(|path| {
        let bytes = read_bytes(&path)?;
        Some((path, bytes))
    });
    *line = Line::Begun { begun_ns: monotonic_ns(), device };
    Ok(())
}

/// What the sample answers: with the time when it began where it waited for it.
///
/// # Errors
/// It has no JSON.
pub(super) fn answer(reading: &Reading) -> anyhow::Result<String> {
    let line = lock();
    let Line::Begun { begun_ns, device } = &*line else {
        return Ok(serde_json::to_string(&Answer::of(reading))?);
    };
    let device_bytes = device.as_ref().and_then(|(path, before)| read_bytes(path)?.checked_sub(*before));
    let histogram = reading.latency.as_ref().map(super::latency::Latency::to_text).transpose();
    let timed = Timed {
        answer: Answer::of(reading),
        begun_ns: *begun_ns,
        histogram: histogram.context("the histogram cannot be written")?,
        device_bytes,
    };
    Ok(serde_json::to_string(&timed)?)
}

fn lock() -> std::sync::MutexGuard<'static, Line> {
    LINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Field 3 of a block device's `stat`, which counts in units of 512 bytes whatever the device's blocks are.
fn read_bytes(stat: &std::path::Path) -> Option<u64> {
    parse_read_bytes(&fs::read_to_string(stat).ok()?)
}

fn parse_read_bytes(stat: &str) -> Option<u64> {
    stat.split_whitespace().nth(2)?.parse::<u64>().ok()?.checked_mul(512)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_are_counted_in_512() {
        assert_eq!(parse_read_bytes("   28513     6028  3510642    15001"), Some(3_510_642 * 512));
        assert_eq!(parse_read_bytes("1 2"), None);
    }

    #[test]
    fn without_being_told_nothing_waits() {
        assert!(wait().is_ok());
        assert!(monotonic_ns() > 0);
    }
}
