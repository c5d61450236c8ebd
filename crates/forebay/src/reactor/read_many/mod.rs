//! Batches of ranges on their shard: sorted, merged where that pays, read, and completed with one wake-up.

mod batch;
mod long;
mod plan;
mod run;

use crate::base::error::Error;

pub(crate) use batch::Batch;
pub(crate) use long::part_bytes;
pub(crate) use plan::{Limits, Piece, Plan, Ranges};
pub(crate) use run::{Batches, KEPT_BYTES_MAX, begin, packer, piece_done, refuse_all, resume, retry_blocked};

/// Returns the error of one range, with its file and bounds.
fn range_error(batch: &Batch, error: Error, number: u32) -> Error {
    let range = batch.plan.ranges.get(number);
    batch.file_of(number).describe(error).with_range(range.start, range.end.saturating_sub(range.start))
}
