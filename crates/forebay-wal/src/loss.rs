//! Acknowledged records that are lost.

use std::path::PathBuf;

use crate::lsn::Lsn;

/// A range of acknowledged records that are damaged or missing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The first lost record.
    pub first: Lsn,
    /// The last one; `u64::MAX` if their number is unknown.
    pub last: Lsn,
    /// The segment in which the damage starts.
    pub file: PathBuf,
    /// Offset of the damage, in bytes.
    pub offset: u64,
}
