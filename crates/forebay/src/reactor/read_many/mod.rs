//! Batches of ranges on their shard: sorted, merged where that pays, read, and completed with one wake-up.

mod batch;
mod plan;
mod run;

use std::ops::Range;

use crate::base::error::Error;

pub(crate) use batch::Batch;
pub(crate) use plan::{Limits, Plan};
pub(crate) use run::{Batches, begin, piece_done, refuse_all, resume, retry_blocked};

/// Returns the error of one range, with its file and bounds.
fn range_error(batch: &Batch, error: Error, range: &Range<u64>) -> Error {
    batch.file().describe(error).with_range(range.start, range.end.saturating_sub(range.start))
}
