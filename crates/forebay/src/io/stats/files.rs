//! Counts of the operations on each open file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::io::op::OpKind;

/// An open file and the counts of its operations since it was opened; see
/// [`Engine::file_stats`](crate::Engine::file_stats).
///
/// An operation counts when it has ended, failures included; the bytes are those that it transferred. Reads that the page cache
/// served on the caller's thread are in `page_cache_reads` and not in `reads`.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct FileStats {
    /// Its path as it was opened.
    pub path: PathBuf,
    /// Its device's name.
    pub device: String,
    /// Reads that have ended.
    pub reads: u64,
    /// Writes that have ended.
    pub writes: u64,
    /// Syncs that have ended; those that belong to a durable write are not counted here.
    pub syncs: u64,
    /// Bytes read, including those that widened ranges added.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Reads that the page cache served on the caller's thread; as [`Stats::page_cache_reads`](crate::Stats::page_cache_reads).
    pub page_cache_reads: u64,
    /// Bytes of those reads.
    pub page_cache_bytes: u64,
    /// Reads that tried the page cache and missed.
    pub page_cache_misses: u64,
    /// Reads that did not try it; as [`Stats::page_cache_skips`](crate::Stats::page_cache_skips).
    pub page_cache_skips: u64,
}

impl FileStats {
    pub(crate) fn add_page_cache(&mut self, sum: PageCacheSum) {
        self.page_cache_reads += sum.reads;
        self.page_cache_bytes += sum.bytes;
        self.page_cache_misses += sum.misses;
        self.page_cache_skips += sum.skips;
    }
}

/// The counters of a file's reads that could try the page cache; see [`FileStats`].
#[derive(Debug, Default)]
pub(crate) struct PageCacheCounts {
    pub(crate) reads: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) skips: AtomicU64,
}

impl PageCacheCounts {
    pub(crate) fn load(&self) -> PageCacheSum {
        PageCacheSum {
            reads: self.reads.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            skips: self.skips.load(Ordering::Relaxed),
        }
    }
}

/// The same as numbers, of one file or of several.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageCacheSum {
    pub(crate) reads: u64,
    pub(crate) bytes: u64,
    pub(crate) misses: u64,
    pub(crate) skips: u64,
}

impl PageCacheSum {
    pub(crate) fn add(&mut self, more: PageCacheSum) {
        self.reads += more.reads;
        self.bytes += more.bytes;
        self.misses += more.misses;
        self.skips += more.skips;
    }

    /// Returns whether any read is counted.
    pub(crate) fn is_used(self) -> bool {
        self.reads + self.misses + self.skips > 0
    }
}

/// An account's counters of a file, in its entry of the file table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FileCounts {
    reads: u64,
    writes: u64,
    syncs: u64,
    read_bytes: u64,
    write_bytes: u64,
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedOp {
    pub(crate) kind: OpKind,
    pub(crate) bytes: u32,
    /// After a read, the number of bytes that the program requested.
    pub(crate) asked: u32,
    pub(crate) has_failed: bool,
    /// Whether the operation is a sync that is the second half of a write.
    pub(crate) after_write: bool,
}

impl FileCounts {
    #[inline]
    pub(crate) fn add(&mut self, op: EndedOp) {
        let bytes = u64::from(op.bytes);
        match op.kind {
            OpKind::Read => {
                self.reads += 1;
                self.read_bytes += bytes;
            }
            OpKind::SyncData | OpKind::SyncAll if !op.after_write => self.syncs += 1,
            OpKind::Write | OpKind::SyncData | OpKind::SyncAll => {
                self.writes += 1;
                self.write_bytes += bytes;
            }
            OpKind::Nop | OpKind::Command => {}
        }
    }
}

/// A file of an account, and its counters.
#[derive(Debug)]
pub(crate) struct FileReport {
    /// Identifies the open file, which others may have worked with as well.
    pub(crate) key: usize,
    pub(crate) path: PathBuf,
    pub(crate) device: u16,
    pub(crate) counts: FileCounts,
}

/// The sum of the reports about the same files, by path.
#[derive(Default)]
pub(crate) struct FileSum(BTreeMap<(PathBuf, usize), FileStats>);

impl FileSum {
    /// Adds a report, and returns the sum for its file.
    pub(crate) fn add(&mut self, report: FileReport, device: impl FnOnce(u16) -> String) -> &mut FileStats {
        let FileReport { key, path, device: number, counts } = report;
        let place = self.0.entry((path, key));
        let known = place.or_insert_with_key(|(path, _)| FileStats {
            path: path.clone(),
            device: device(number),
            ..FileStats::default()
        });
        known.reads += counts.reads;
        known.writes += counts.writes;
        known.syncs += counts.syncs;
        known.read_bytes += counts.read_bytes;
        known.write_bytes += counts.write_bytes;
        known
    }

    pub(crate) fn list(self) -> Vec<FileStats> {
        self.0.into_values().collect()
    }
}
