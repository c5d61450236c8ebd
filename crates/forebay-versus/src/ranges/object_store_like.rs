//! The way of `object_store`'s local file system in `get_ranges`: the whole batch is one task.

use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use anyhow::Result;
use forebay_measure::experiment::Outcome;

use super::{Batch, Work, check};

/// Measures one `spawn_blocking` for all ranges: sorted and merged where they touch or overlap (no gap is
/// bridged), then read one after the other with pread into a vector each. All of them are returned together
/// and then checked.
pub(crate) fn one_task(work: &Work, ranges: Vec<Range<u64>>) -> Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    runtime.block_on(async {
        let batch = Batch::begin();
        let path = work.path.clone();
        let task = tokio::task::spawn_blocking(move || -> Result<_> {
            let file = std::fs::File::open(path)?;
            let merged = merge_touching(&ranges);
            let mut fetched = Vec::with_capacity(merged.len());
            for range in &merged {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                file.read_exact_at(&mut bytes, range.start)?;
                fetched.push(bytes);
            }
            Ok((ranges, merged, fetched))
        });
        let (ranges, merged, fetched) = task.await??;
        for range in &ranges {
            let at = merged.partition_point(|other| other.start <= range.start) - 1;
            let start = (range.start - merged[at].start) as usize;
            let end = (range.end - merged[at].start) as usize;
            check(range, &fetched[at][start..end])?;
        }
        Ok(batch.finish(ranges.len()))
    })
}

fn merge_touching(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_and_overlapping_ranges_merge_and_gaps_stay() {
        assert_eq!(merge_touching(&[10..20, 0..5, 20..30, 25..27, 40..50]), [0..5, 10..30, 40..50]);
        assert!(merge_touching(&[]).is_empty());
    }
}
