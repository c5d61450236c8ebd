//! Records that were acknowledged and are gone.

use std::path::PathBuf;

use crate::lsn::Lsn;

/// Records that had been acknowledged and are damaged or gone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// The first lost record.
    pub first: Lsn,
    /// The last one; `u64::MAX` where nothing says how many there were.
    pub last: Lsn,
    /// The segment in which the damage begins.
    pub file: PathBuf,
    /// Where it begins, in bytes.
    pub offset: u64,
}
