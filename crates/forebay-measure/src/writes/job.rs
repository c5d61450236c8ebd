//! The parameters of one sample of `measure writes`, and its result.

use serde::{Deserialize, Serialize};

use super::super::interleave::{Evidence, Way};
use super::super::pattern::SplitMix;

/// Bytes of one write.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// One run of one row with one pattern and number of clients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct WritesWork {
    pub(super) row: WriteRow,
    pub(super) pattern: Pattern,
    /// Size of the file, which has been written through.
    pub(super) file_bytes: u64,
    /// Number of threads or tasks that write at the same time.
    pub(super) clients: usize,
    /// Number of writes, all clients together; no block is written twice.
    pub(super) operations: u64,
    /// Seconds after which no write is begun.
    pub(super) seconds_max: f64,
    /// Seed of the offsets and the contents.
    pub(super) seed: u64,
}

/// The placement of the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Pattern {
    /// Each block of one range once, in random order, so that all gaps are written, too.
    Dense,
    /// Few of the file's blocks, far apart.
    Sparse,
}

impl Pattern {
    pub(super) const ALL: [Self; 2] = [Self::Dense, Self::Sparse];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Sparse => "sparse",
        }
    }
}

impl WritesWork {
    /// Returns the offsets of the writes, in their order; client number `client` has every `clients`th.
    ///
    /// The range is cut into as many equal parts as there are writes, and one block of each part is
    /// written. So no block is written twice, and sparse ones are spread over the whole file.
    pub(super) fn offsets(&self) -> Vec<u64> {
        let mut random = SplitMix::new(self.seed);
        let blocks = match self.pattern {
            Pattern::Dense => 1,
            Pattern::Sparse => self.file_bytes / BLOCK_BYTES / self.operations.max(1),
        };
        let mut offsets: Vec<u64> = (0..self.operations)
            .map(|part| (part * blocks + random.below(blocks.max(1))) * BLOCK_BYTES)
            .collect();
        for index in (1..offsets.len()).rev() {
            offsets.swap(index, random.below(index as u64 + 1) as usize);
        }
        offsets
    }
}

/// Ways to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WriteRow {
    Naive,
    SyncAtEnd,
    SyncClose,
    ODirect,
    ODirectDsync,
    FdatasyncEach,
    FsyncEach,
    Forebay,
    ForebayDurable,
    ForebayCombine,
}

impl WriteRow {
    pub(super) const ALL: [Self; 10] = [
        Self::Naive,
        Self::SyncAtEnd,
        Self::SyncClose,
        Self::ODirect,
        Self::ODirectDsync,
        Self::FdatasyncEach,
        Self::FsyncEach,
        Self::Forebay,
        Self::ForebayDurable,
        Self::ForebayCombine,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::SyncAtEnd => "sync-at-end",
            Self::SyncClose => "sync-close",
            Self::ODirect => "o-direct",
            Self::ODirectDsync => "o-direct-dsync",
            Self::FdatasyncEach => "fdatasync-each",
            Self::FsyncEach => "fsync-each",
            Self::Forebay => "forebay",
            Self::ForebayDurable => "forebay-durable",
            Self::ForebayCombine => "forebay-combine",
        }
    }

    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::Naive => "pwrite into the page cache, no sync: nothing of it survives a power cut for sure",
            Self::SyncAtEnd => {
                "pwrite into the page cache, one fdatasync at the end; the file stays open, closing is not in the \
                 total"
            }
            Self::SyncClose => "pwrite into the page cache, one fsync at the end, closing in the total",
            Self::ODirect => {
                "pwrite with O_DIRECT, no sync: past the page cache, but a device's own cache may lose it"
            }
            Self::ODirectDsync => "pwrite with O_DIRECT and O_DSYNC: each write returns when it is durable",
            Self::FdatasyncEach => "pwrite into the page cache, an fdatasync after each",
            Self::FsyncEach => "pwrite into the page cache, an fsync after each",
            Self::Forebay => {
                "Forebay from tasks of a Tokio runtime, O_DIRECT, one File::sync of each client at the end"
            }
            Self::ForebayDurable => {
                "Forebay from tasks of a Tokio runtime, O_DIRECT, each write durable(Durability::Data)"
            }
            Self::ForebayCombine => {
                "Forebay from tasks of a Tokio runtime, O_DIRECT, writes gathered by a WriteCombiner of each client with memory for \
                 all of them, one flush at the end"
            }
        }
    }

    /// Returns whether all written data are durable when the row's time ends.
    pub(super) const fn is_durable(self) -> bool {
        !matches!(self, Self::Naive | Self::ODirect)
    }

    pub(super) const fn is_direct(self) -> bool {
        matches!(self, Self::ODirect | Self::ODirectDsync) || self.is_forebay()
    }

    pub(super) const fn is_forebay(self) -> bool {
        matches!(self, Self::Forebay | Self::ForebayDurable | Self::ForebayCombine)
    }
}

/// The result that the child process prints. Times of the calls are sums over a client's calls,
/// averaged over the clients.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct WritesResult {
    pub(super) operations: u64,
    pub(super) open_s: f64,
    pub(super) write_s: f64,
    pub(super) sync_s: f64,
    pub(super) close_s: f64,
    /// Time from the beginning until the last client was ready.
    pub(super) total_s: f64,
    /// Time of the sync afterwards, for a row that made none.
    pub(super) left_out_s: Option<f64>,
    pub(super) cpu_seconds: f64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    /// Covers the time until all was durable, also in rows that did not wait for that.
    pub(super) evidence: Evidence,
}

impl Way for WriteRow {
    fn name(&self) -> &'static str {
        (*self).name()
    }

    fn description(&self) -> &'static str {
        (*self).description()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(pattern: Pattern, operations: u64) -> WritesWork {
        let (row, file_bytes) = (WriteRow::Naive, 1 << 20);
        WritesWork { row, pattern, file_bytes, clients: 1, operations, seconds_max: 1.0, seed: 5 }
    }

    #[test]
    fn names_in_json_are_the_names_in_the_tables() {
        for row in WriteRow::ALL {
            assert_eq!(serde_json::to_value(row).expect("plain"), row.name());
        }
        for pattern in Pattern::ALL {
            assert_eq!(serde_json::to_value(pattern).expect("plain"), pattern.name());
        }
    }

    #[test]
    fn dense_writes_meet_each_block_of_a_range_once_and_not_in_order() {
        let offsets = work(Pattern::Dense, 100).offsets();
        let mut sorted = offsets.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).map(|block| block * BLOCK_BYTES).collect::<Vec<_>>());
        assert_ne!(offsets, sorted);
    }

    #[test]
    fn sparse_writes_are_spread_over_the_file_and_meet_no_block_twice() {
        let mut offsets = work(Pattern::Sparse, 50).offsets();
        offsets.sort_unstable();
        offsets.dedup();
        assert_eq!(offsets.len(), 50);
        assert!(offsets.iter().all(|offset| offset.is_multiple_of(BLOCK_BYTES) && *offset < 1 << 20));
        assert!(offsets[49] > 900 << 10, "the last one is in the last fiftieth: {}", offsets[49]);
    }
}
