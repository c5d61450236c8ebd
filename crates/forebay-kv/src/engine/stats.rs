//! The counters of a store, and the structures that report them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::shared::StoreCore;
use crate::cache::PinPurpose;
use crate::manifest::version::LEVELS;

/// Counts since the store was opened, and its current state; see [`Store::stats`](crate::Store::stats).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The shares of the memory budget and their use.
    pub memory: MemoryStats,
    /// The keyspaces with their tables, in the order of their creation.
    pub keyspaces: Vec<KeyspaceStats>,
    /// The log's statistics.
    pub log: forebay_wal::Stats,
    /// Memtables that were written to tables.
    pub flushes: u64,
    /// Bytes of the tables that flushes wrote.
    pub flushed_bytes: u64,
    /// Compactions that wrote tables.
    pub compactions: u64,
    /// Key ranges that these compactions were divided into: a large compaction runs on several shards in parallel, where the
    /// engine has more than two.
    pub compaction_parts: u64,
    /// Bytes of the tables that compactions read.
    pub compaction_read_bytes: u64,
    /// Bytes of the tables that compactions wrote.
    pub compaction_written_bytes: u64,
    /// Files that keep only the long values of former tables; see [`Options::separation_bytes`](crate::Options::separation_bytes).
    pub value_files: usize,
    /// Bytes of these files.
    pub value_file_bytes: u64,
    /// Bytes of the values in these files that tables refer to. The rest is freed when compaction has emptied the file.
    pub value_live_bytes: u64,
    /// Tables that moved to another level without being rewritten.
    pub moved: u64,
    /// Bytes of the tables that bulk loads wrote.
    pub loaded_bytes: u64,
    /// Bytes of the sorted files that were ingested.
    pub ingested_bytes: u64,
    /// Bytes that the program has put: keys and values of puts, keys of deletions, 8 for each time of expiry, and keys and
    /// values of bulk loads. A range that is deleted counts with the keys that are deleted one by one for it.
    pub put_bytes: u64,
    /// All bytes that the store has written to its files since the start of its open: its log and its manifest, as
    /// [`forebay_wal::Stats::written_bytes`] counts them (padding, segments prepared with zeros, records of their ends); tables
    /// with their filters, including abandoned tables; copies of ingested files; the logs of checkpoints. The reserve occupies
    /// space without writes, and hard-linked files (checkpoints, ingests) are not written again.
    pub written_bytes: u64,
    /// Bytes that compaction has to rewrite, by its own estimate.
    pub pending_bytes: u64,
    /// Writes that had to wait in line for memory while memtables were written to tables.
    pub space_waits: u64,
    /// Writes that were slowed because compaction is behind.
    pub slowed: u64,
    /// Records of the log that were replayed into memory when the store was opened.
    pub replayed: u64,
    /// Table files removed at the open because no manifest named them.
    pub orphans: u64,
    /// Sealed memtables that wait to be flushed.
    pub sealed: usize,
    /// Blocks that gets found in the cache.
    pub cache_hits: u64,
    /// Blocks that gets did not find in the cache.
    pub cache_misses: u64,
    /// Blocks inserted into the cache.
    pub cache_insertions: u64,
    /// Blocks that gets and ranges read and the cache left out, because they had not been read before lately.
    pub cache_refusals: u64,
    /// Blocks that were evicted for others.
    pub cache_evictions: u64,
    /// Table descents that the kernel completed; see `Options::kernel_walk`.
    pub kernel_walks: u64,
    /// Descents meant for the kernel that used the ordinary way instead or afterwards. Either the kernel has no engine for them,
    /// or the leaf was not conclusive, as for an absent key between two leaves.
    pub kernel_fell_back: u64,
    /// The reason why descents do not run in the kernel as configured, on all threads or on one; set by the first failed attempt.
    pub kernel_refused: Option<String>,
    /// Whether blocking single gets that need an inner node currently walk in the kernel. With `KernelWalk::WhereCheaper` the
    /// store decides.
    pub kernel_gets: bool,
    /// As `kernel_gets`, for `multi_get`.
    pub kernel_multi_gets: bool,
    /// The reason why puts currently fail: with [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) if the store is full, or for
    /// lack of descriptors.
    pub full: Option<crate::Error>,
    /// Bytes of the file that reserves space for a full store; 0 while the store is full, and without such a file.
    pub reserve_bytes: u64,
    /// The failure that made the store read-only.
    pub failed: Option<crate::Error>,
}

impl Stats {
    /// Returns the bytes that the device has written for each byte that the program has put: `written_bytes` for each of
    /// `put_bytes`, with `ingested_bytes` added to both, because a sorted file was written once before its ingest. 1 before the
    /// first write.
    ///
    /// Counted since the open, which fills a new log's first segments with zeros: the figure of a store that was just opened is
    /// high. Bytes still in memtables count as put, and will be written once more.
    pub fn write_amplification(&self) -> f64 {
        match self.put_bytes + self.ingested_bytes {
            0 => 1.0,
            put => (self.written_bytes + self.ingested_bytes) as f64 / put as f64,
        }
    }
}

/// The shares of the memory budget and their use, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// The budget; the shares below add up to it.
    pub budget: u64,
    /// The share of memtables, less the part that the cache uses while they are idle.
    pub memtables_max: u64,
    /// Bytes of the memtables, active and sealed.
    pub memtables: u64,
    /// The share of the log's buffers.
    pub log_max: u64,
    /// Bytes of records that wait to be written; the log's buffers use at most three times as much, plus one group.
    pub log: u64,
    /// The share of the manifest.
    pub manifest_max: u64,
    /// Changes of the manifest that wait to be written. The list of the store's parts is among the metadata below.
    pub manifest: u64,
    /// The share of the buffers of flushes and compactions.
    pub tables_max: u64,
    /// The part of it that running flushes and compactions may use.
    pub tables: u64,
    /// The share of gets: reads in flight, and blocks that their futures have not collected yet.
    pub gets_max: u64,
    /// The part of it that gets in flight use.
    pub gets: u64,
    /// The share of memory that the program holds, less the part that the cache uses meanwhile.
    pub held_max: u64,
    /// Memory that the program holds: values, ranges and loads, writes that wait, and memtables that only
    /// snapshots need. It may exceed its share by as much as the cache can spare.
    pub held: u64,
    /// I/O memory that may be lost to fragmentation: its buffers are powers of two, and long buffers do not fit between others.
    /// Small budgets reserve none of it.
    pub spare_max: u64,
    /// The share of the cache, with the parts that it borrows of the shares of memtables and of held memory.
    pub cache_max: u64,
    /// The pinned part of the cache: the four below.
    pub pinned: u64,
    /// Top levels of tables.
    pub top_levels: u64,
    /// Filters of tables.
    pub filters: u64,
    /// Filters of tables that are not kept: they did not fit, or [`FilterPolicy`](crate::FilterPolicy) leaves them out. These
    /// bytes are on disk, not in memory; parts of them may be among the blocks.
    pub filters_left_out: u64,
    /// Metadata of keyspaces and tables: their names, keys, files and places, in the manifest too.
    pub open_tables: u64,
    /// Memory lent to the program for holdings beyond its share.
    pub lent: u64,
    /// The evictable part of the cache: blocks.
    pub blocks: u64,
}

impl MemoryStats {
    /// Returns all memory in use, which is at most the budget.
    pub fn used(&self) -> u64 {
        let buffers = self.memtables + self.log + self.manifest + self.tables + self.gets;
        // Memory that is lent is part of `held`.
        buffers + self.held + self.top_levels + self.filters + self.open_tables + self.blocks
    }
}

/// Statistics of a keyspace and its tables.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyspaceStats {
    /// The keyspace's name.
    pub name: String,
    /// The keyspace's levels, from the one that flushes write to.
    pub levels: Vec<LevelStats>,
}

/// Statistics of the tables of one level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LevelStats {
    /// Number of tables.
    pub tables: usize,
    /// Bytes of the tables' files.
    pub bytes: u64,
    /// Bytes that compression saved in these files; without it they would have about as many more.
    pub saved_bytes: u64,
    /// Number of entries, deletions included.
    pub entries: u64,
    /// Number of deletions.
    pub deleted: u64,
}

/// Event counters, updated as the events happen.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) flushes: AtomicU64,
    pub(crate) compactions: AtomicU64,
    pub(crate) compaction_parts: AtomicU64,
    pub(crate) compaction_read: AtomicU64,
    pub(crate) compaction_written: AtomicU64,
    pub(crate) moved: AtomicU64,
    pub(crate) loaded: AtomicU64,
    pub(crate) ingested: AtomicU64,
    pub(crate) put: AtomicU64,
    /// Bytes written to tables and checkpoints.
    pub(crate) written: Arc<AtomicU64>,
    pub(super) flushed_bytes: AtomicU64,
    pub(super) space_waits: AtomicU64,
    pub(super) slowed: AtomicU64,
    pub(super) replayed: AtomicU64,
    pub(super) orphans: AtomicU64,
}

pub(crate) fn stats(shared: &Arc<StoreCore>) -> Stats {
    let (view, sealed, memtables, held, cache, (of_held, of_memtables)) = {
        // What the memtables lend the cache changes under this lock.
        let commit = shared.lock();
        let memtables = commit.active.bytes() + commit.sealed_bytes();
        // In this order: bytes that the program holds from here on are taken back from the cache.
        let held = shared.held_bytes();
        let (cache, loans) = (shared.cache.stats(), shared.cache.lent_bytes());
        (shared.view(), commit.sealed.len(), memtables, held, cache, loans)
    };
    let keyspaces = view.version.keyspaces().map(|(_, levels)| {
        let level = |level| {
            let mut sum = LevelStats::default();
            for table in levels.level(level) {
                let meta = table.meta();
                sum.tables += 1;
                sum.bytes += meta.bytes;
                sum.saved_bytes += table.saved_bytes();
                sum.entries += meta.entries;
                sum.deleted += meta.deleted;
            }
            sum
        };
        KeyspaceStats { name: levels.name.to_string(), levels: (0..LEVELS).map(level).collect() }
    });
    let kernel = shared.kernel.stats();
    let (log, budget) = (shared.wal.stats(), &shared.budget);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let of_logs = log.written_bytes + shared.manifest.written_bytes();
    let counters = &shared.counters;
    Stats {
        memory: MemoryStats {
            budget: budget.total,
            memtables_max: budget.memtables + budget.memtables_slack - of_memtables,
            memtables,
            log_max: budget.log,
            log: log.pending_bytes as u64,
            manifest_max: budget.manifest,
            manifest: shared.manifest.memory_bytes(),
            tables_max: budget.tables,
            tables: budget.tables_used.get(),
            gets_max: budget.gets,
            gets: budget.gets_bytes(),
            held_max: budget.held - of_held,
            held,
            cache_max: budget.cache + of_held + of_memtables,
            spare_max: budget.spare,
            pinned: cache.pinned.sum(),
            top_levels: cache.pinned.of(PinPurpose::TopLevels),
            filters: cache.pinned.of(PinPurpose::Filters) + cache.pinned.of(PinPurpose::LastFilters),
            filters_left_out: view.version.tables().map(|(_, table)| table.filter_bytes_left_out()).sum(),
            open_tables: cache.pinned.of(PinPurpose::Tables),
            lent: cache.pinned.of(PinPurpose::Lent),
            blocks: cache.block_bytes,
        },
        keyspaces: keyspaces.collect(),
        log,
        flushes: count(&counters.flushes),
        flushed_bytes: count(&counters.flushed_bytes),
        compactions: count(&counters.compactions),
        compaction_parts: count(&counters.compaction_parts),
        compaction_read_bytes: count(&counters.compaction_read),
        compaction_written_bytes: count(&counters.compaction_written),
        value_files: view.version.kept_files().count(),
        value_file_bytes: view.version.kept_files().map(|file| file.file.bytes()).sum(),
        value_live_bytes: view.version.kept_files().map(|file| file.live_bytes).sum(),
        moved: count(&counters.moved),
        loaded_bytes: count(&counters.loaded),
        ingested_bytes: count(&counters.ingested),
        put_bytes: count(&counters.put),
        written_bytes: count(&counters.written) + of_logs,
        pending_bytes: super::compact::pick::pending_bytes(&view.version, &shared.pick_how()),
        space_waits: count(&counters.space_waits),
        slowed: count(&counters.slowed),
        replayed: count(&counters.replayed),
        orphans: count(&counters.orphans),
        sealed,
        cache_hits: cache.hits,
        cache_misses: cache.misses,
        cache_insertions: cache.insertions,
        cache_refusals: cache.refusals,
        cache_evictions: cache.evictions,
        kernel_walks: kernel.walks,
        kernel_fell_back: kernel.fell_back,
        kernel_refused: kernel.refused,
        kernel_gets: kernel.gets,
        kernel_multi_gets: kernel.multi_gets,
        full: shared.full.why(),
        reserve_bytes: shared.full.reserve_bytes(),
        failed: shared.has_failed(),
    }
}

/// Counters of a store's walks inside the kernel.
#[derive(Default)]
pub(crate) struct KernelStats {
    pub(crate) walks: u64,
    pub(crate) fell_back: u64,
    pub(crate) refused: Option<String>,
    pub(crate) gets: bool,
    pub(crate) multi_gets: bool,
}
