//! The shapes of a batch.

use std::ops::Range;

use crate::prelude::*;

const KIB: u64 = 1024;

/// Ranges that belong together in the clustered shape, as the columns of one row group do.
const CLUSTER_RANGES: usize = 50;

/// How the ranges of a batch lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Blocks of 4 KiB anywhere.
    Uniform,
    /// Chunks of ranges with small gaps between them.
    Clustered,
    /// Ranges of 1 to 64 KiB anywhere, at any offset.
    Mixed,
    /// Records of 3 KiB, one behind the other, from the start again after the last of the file.
    Records,
}

impl Shape {
    /// Returns the shape of this name in tables and on the command line.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn named(name: &str) -> Result<Self> {
        Ok(match name {
            "uniform" => Self::Uniform,
            "clustered" => Self::Clustered,
            "mixed" => Self::Mixed,
            "records" => Self::Records,
            other => bail!("there is no shape {other}"),
        })
    }

    /// Returns a description of the shape, for people.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Uniform => "4 KiB at random multiples of 4 KiB",
            Self::Clustered => "chunks of 50 ranges of 1-16 KiB with gaps below 16 KiB, any offset",
            Self::Mixed => "1-64 KiB at any offset",
            Self::Records => "3 KiB one behind the other",
        }
    }
}

/// Returns `count` ranges of a file of `file_bytes`, in random order, the same for the same seed.
pub(crate) fn make(shape: Shape, count: usize, file_bytes: u64, seed: u64) -> Vec<Range<u64>> {
    let mut rng = Rng::new(seed, 0);
    let mut ranges = Vec::with_capacity(count);
    while ranges.len() < count {
        match shape {
            Shape::Uniform => {
                let start = rng.page_offset(file_bytes);
                ranges.push(start..start + 4 * KIB);
            }
            Shape::Clustered => {
                let room = CLUSTER_RANGES as u64 * 32 * KIB;
                let mut at = rng.below(file_bytes.saturating_sub(room).max(1));
                for _ in 0..CLUSTER_RANGES.min(count - ranges.len()) {
                    let end = (at + KIB + rng.below(15 * KIB)).min(file_bytes);
                    ranges.push(at.min(end - 1)..end);
                    at = end + rng.below(16 * KIB);
                }
            }
            Shape::Mixed => {
                let length = KIB + rng.below(63 * KIB + 1);
                let start = rng.below(file_bytes - length + 1);
                ranges.push(start..start + length);
            }
            Shape::Records => {
                let start = ranges.len() as u64 % (file_bytes / (3 * KIB)).max(1) * 3 * KIB;
                ranges.push(start..(start + 3 * KIB).min(file_bytes));
            }
        }
    }
    // A batch comes in the order of the query, not of the file; clusters stay together, as column chunks do.
    if !matches!(shape, Shape::Clustered | Shape::Records) {
        for i in (1..ranges.len()).rev() {
            let other = rng.below(i as u64 + 1) as usize;
            ranges.swap(i, other);
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_has_the_count_stays_in_the_file_and_depends_on_the_seed_only() {
        let file_bytes = 64 << 20;
        for shape in [Shape::Uniform, Shape::Clustered, Shape::Mixed, Shape::Records] {
            let ranges = make(shape, 1003, file_bytes, 7);
            assert_eq!(ranges.len(), 1003);
            assert!(ranges.iter().all(|range| range.start < range.end && range.end <= file_bytes));
            assert_eq!(ranges, make(shape, 1003, file_bytes, 7));
            assert!(shape == Shape::Records || ranges != make(shape, 1003, file_bytes, 8));
        }
    }

    #[test]
    fn gaps_within_a_cluster_are_below_16_kib() {
        let ranges = make(Shape::Clustered, 500, 1 << 30, 3);
        for cluster in ranges.chunks(CLUSTER_RANGES) {
            assert!(
                cluster
                    .windows(2)
                    .all(|pair| pair[1].start >= pair[0].end && pair[1].start - pair[0].end < 16 * KIB)
            );
        }
    }
}
