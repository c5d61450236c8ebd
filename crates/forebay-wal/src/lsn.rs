//! Log sequence numbers.

use std::fmt;

/// A record's number in its log: the first record is 1, each further one is one more. 0 stands for "none
/// yet".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Before the first record.
    pub const ZERO: Lsn = Lsn(0);

    /// The next record's number.
    #[must_use]
    pub fn next(self) -> Lsn {
        Lsn(self.0.saturating_add(1))
    }
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
