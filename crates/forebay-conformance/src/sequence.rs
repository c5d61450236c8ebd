//! The operation-sequence test: any sequence of steps, followed on an engine and on a model at the same time.
//!
//! A [`Step`] is something that a program may do with a few files: open them in all modes, read and write them from the sequence's
//! own task and from shards, run several operations concurrently, drop futures half way, use streams, names, lengths. A [`Session`]
//! follows steps on an engine, computes the result that each must have, and reports the first wrong one: a [`Mismatch`]. Blocks
//! returned by reads are kept for a while and checked again, so memory that is released too early shows.
//!
//! Where more than one outcome is right (a write whose future was dropped, or that failed, or that another
//! one overlaps), the model keeps all of them for each sector of 512 bytes until a later read decides. It
//! also keeps the states that a power cut may leave: the data acknowledged as durable, and old or new of
//! everything else.
//!
//! [`simulate`] does this in simulated worlds with faults and power cuts; the same on real drivers is
//! [`run`]. [`generate()`] makes sequences out of any source of numbers, [`shrink`] makes a failing one short,
//! and a step's text can be read back.
//!
//! ```
//! use forebay_conformance::sequence::{self, Step};
//! # use forebay::{Config, Engine};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let engine = Engine::start(Config::new())?;
//! let steps = ["open h0 a create buffered", "write h0 0+4096 p7 data", "read h0 100..200"];
//! let steps = steps.iter().map(|line| line.parse()).collect::<Result<Vec<Step>, _>>()?;
//! let report = sequence::run(&engine, dir.path(), &steps).await?;
//! assert_eq!(report.steps, 3);
//! # Ok(()) }
//! ```

use std::fmt;
use std::path::Path;

use forebay::Engine;

mod cut;
mod directory;
mod file_calls;
mod flight;
mod generate;
mod group;
mod node;
mod sector;
mod session;
mod simulated;
mod step;
mod text;

pub use generate::generate;
pub use session::Session;
pub use simulated::{SimulationError, seeded, simulate};
pub use step::{Access, HANDLES, NAMES, Op, Place, Step};
pub use text::ParseStepError;

/// Follows `steps` on `engine` in the empty directory `dir`, checks everything once more, and returns the
/// counts.
///
/// Runs in a task of any executor and on a shard.
///
/// # Errors
/// The first result that must not occur.
pub async fn run(engine: &Engine, dir: &Path, steps: &[Step]) -> Result<Report, Mismatch> {
    let mut session = Session::new(dir);
    session.run(engine, steps, 0).await?;
    session.verify(engine).await?;
    Ok(session.report())
}

/// A length between `min` and `max`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Length {
    min: u64,
    max: u64,
}

impl Length {
    fn exactly(len: u64) -> Length {
        Length { min: len, max: len }
    }

    fn or(self, other: Length) -> Length {
        Length { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    fn at_least(self, end: u64) -> Length {
        Length { min: self.min.max(end), max: self.max.max(end) }
    }

    fn perhaps(self, end: u64) -> Length {
        Length { max: self.max.max(end), ..self }
    }

    fn is_exact(self) -> bool {
        self.min == self.max
    }
}

impl std::fmt::Display for Length {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_exact() { write!(f, "{}", self.min) } else { write!(f, "{} to {}", self.min, self.max) }
    }
}

/// Returns a shorter sequence that still fails: delta debugging, by parts of half the length down to single
/// steps. `fails` is called at most `tries` times; its argument keeps the order of the steps.
pub fn shrink<T: Clone>(steps: &[T], tries: usize, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut best = steps.to_vec();
    let mut left = tries;
    let mut part = best.len().div_ceil(2);
    while part > 0 && left > 0 {
        let mut shorter = false;
        let mut at = 0;
        while at < best.len() && left > 0 {
            let mut without = best.clone();
            without.drain(at..(at + part).min(best.len()));
            left -= 1;
            if fails(&without) {
                best = without;
                shorter = true;
            } else {
                at += part;
            }
        }
        part = match (part, shorter) {
            (1, true) => 1,
            (1, false) => 0,
            _ => part.div_ceil(2),
        };
    }
    best
}

/// Counts over a sequence whose results were all right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Steps that were carried out.
    pub steps: u64,
    /// Steps that had nothing to work on.
    pub skipped: u64,
    /// Bytes read from files and verified.
    pub bytes_checked: u64,
    /// Futures that were dropped before their operation completed.
    pub dropped: u64,
    /// Failures that only a fault explains.
    pub faults: u64,
}

impl std::ops::AddAssign for Report {
    fn add_assign(&mut self, other: Report) {
        self.steps += other.steps;
        self.skipped += other.skipped;
        self.bytes_checked += other.bytes_checked;
        self.dropped += other.dropped;
        self.faults += other.faults;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} steps and {} skipped, {} bytes checked, {} futures dropped, {} failures by faults",
            self.steps, self.skipped, self.bytes_checked, self.dropped, self.faults
        )
    }
}

/// A result that must not occur.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mismatch {
    /// The number of the step, from 0; `None` after the last, during the final check of everything.
    pub step: Option<usize>,
    /// The step or the check, as text.
    pub what: String,
    /// The right result.
    pub expected: String,
    /// The result that was returned instead.
    pub came: String,
    /// The offset of the first wrong byte in the file.
    pub offset: Option<u64>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            Some(step) => write!(f, "step {step}: {}: ", self.what)?,
            None => write!(f, "{}: ", self.what)?,
        }
        write!(f, "expected {}, came {}", self.expected, self.came)?;
        match self.offset {
            Some(offset) => write!(f, " (at byte {offset})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Mismatch {}

#[cfg(test)]
mod tests;
