//! Log sequence numbers.

use std::fmt;

/// The log sequence number of a record. The first record has 1, or [`Options::first_lsn`](crate::Options::first_lsn), and each
/// further record one more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Returns the LSN of the next record.
    #[must_use]
    pub fn next(self) -> Lsn {
        Lsn(self.0.saturating_add(1))
    }
}

/// The durable end of a log: its last record, and the epoch of that numbering.
///
/// A program that stores one outside of the log can check a later open with it. Within one epoch the last record never decreases,
/// and neither does the epoch. So a log that opens with a lower epoch, or in the same epoch with a lower last record, has lost its
/// end. In a log whose end the program never removes ([`truncate_from`](crate::Wal::truncate_from),
/// [`reset_to`](crate::Wal::reset_to)) the last record never decreases at all. For the store, which keeps one in its manifest.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// The last durable record; one before the first in an empty log, but at least 0: the loss of record 0 alone does not show.
    pub lsn: Lsn,
    /// Counts the events that gave, or may have given, an LSN to another record: truncations of the end,
    /// resets, and opens of a log that was not closed.
    pub epoch: u64,
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl From<u64> for Lsn {
    fn from(number: u64) -> Lsn {
        Lsn(number)
    }
}
