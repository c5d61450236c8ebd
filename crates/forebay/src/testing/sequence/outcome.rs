//! The results of running a sequence.

use std::fmt;

/// Counts over a sequence whose results were all right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Steps that were carried out.
    pub steps: u64,
    /// Steps that had nothing to work on.
    pub skipped: u64,
    /// Bytes that came from files and were right.
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
    /// The result that came instead.
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
