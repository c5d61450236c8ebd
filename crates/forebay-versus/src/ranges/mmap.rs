//! A memory map, read by one thread.

use std::fs::File;
use std::ops::Range;

use anyhow::Result;
use forebay_measure::experiment::Outcome;

use super::{Batch, Work, check};

/// Maps the file with the default advice and copies one range after the other into a vector of its own. This
/// is the work of a reader that has to own the bytes before it decodes them.
pub(crate) fn copy_ranges(work: &Work, ranges: &[Range<u64>]) -> Result<Outcome> {
    let batch = Batch::begin();
    let file = File::open(&work.path)?;
    // SAFETY: the file is this run's own and nothing changes it while it is mapped.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    for range in ranges {
        let bytes = map[range.start as usize..range.end as usize].to_vec();
        check(range, &bytes)?;
    }
    Ok(batch.finish(ranges.len()))
}
