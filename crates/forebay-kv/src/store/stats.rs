//! What a store counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::shared::Shared;
use crate::cache::Pinning;
use crate::manifest::version::LEVELS;

/// Counts since the store was opened, and what it has now; see [`Store::stats`](crate::Store::stats).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// How the budget is divided, and what is used of it.
    pub memory: MemoryStats,
    /// The keyspaces with their tables, in the order in which they were made.
    pub keyspaces: Vec<KeyspaceStats>,
    /// The log's own counts.
    pub log: forebay_wal::Stats,
    /// Memtables that were written to tables.
    pub flushes: u64,
    /// Bytes of the tables that flushes wrote.
    pub flushed_bytes: u64,
    /// Compactions that wrote tables.
    pub compactions: u64,
    /// Bytes of the tables that compactions read.
    pub compaction_read_bytes: u64,
    /// Bytes of the tables that compactions wrote.
    pub compaction_written_bytes: u64,
    /// Tables that came to another level without being written again.
    pub moved: u64,
    /// Bytes of the tables that bulk loads wrote.
    pub loaded_bytes: u64,
    /// Bytes that compaction knows it has to rewrite.
    pub pending_bytes: u64,
    /// Writes that had to wait for memory, in line, while memtables were written to tables.
    pub space_waits: u64,
    /// Writes that were slowed because compaction is behind.
    pub slowed: u64,
    /// Records of the log that were put back into memory when the store was opened.
    pub replayed: u64,
    /// Tables that were removed then, because nothing named them.
    pub orphans: u64,
    /// Sealed memtables that wait to be written to tables.
    pub sealed: usize,
    /// Blocks that gets found in memory.
    pub cache_hits: u64,
    /// Blocks that gets did not find in memory.
    pub cache_misses: u64,
    /// Descents in tables that were walked inside the kernel, to an answer; see `Options::kernel_walk`.
    pub kernel_walks: u64,
    /// Descents that were to be walked there and went, or went again, the ordinary way: there is no engine for them, or the
    /// leaf did not decide, as when an absent key lies between two leaves.
    pub kernel_fell_back: u64,
    /// Why the kernel walks none, if it was to and cannot; known from the first attempt on.
    pub kernel_refused: Option<String>,
    /// Why puts return [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) at present: the store is full.
    pub full: Option<crate::Error>,
    /// Bytes of the file that holds space for a full store; 0 while the store is full, and where there is none.
    pub reserve_bytes: u64,
    /// The failure that made the store read-only.
    pub failed: Option<crate::Error>,
}

impl Stats {
    /// Bytes that were written to tables for each byte that came to them by flushes and loads; 1 before any.
    pub fn write_amplification(&self) -> f64 {
        let came = self.flushed_bytes + self.loaded_bytes;
        if came == 0 { 1.0 } else { (came + self.compaction_written_bytes) as f64 / came as f64 }
    }
}

/// The shares of the budget and their use, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// The budget; the shares of it below add up to it.
    pub budget: u64,
    /// The share of memtables.
    pub memtables_max: u64,
    /// Memtables, the active one and sealed ones.
    pub memtables: u64,
    /// The share of the log's buffers.
    pub log_max: u64,
    /// Records that wait to be written; the log's buffers are at most three times that and a group.
    pub log: u64,
    /// The share of the manifest.
    pub manifest_max: u64,
    /// The manifest: what the store consists of, and changes of it that wait to be written.
    pub manifest: u64,
    /// The share of the buffers of flushes and compactions.
    pub tables_max: u64,
    /// What those that are under way may use of it.
    pub tables: u64,
    /// The share of gets: reads that are under way, and blocks that their futures have not taken yet.
    pub gets_max: u64,
    /// Gets that are under way.
    pub gets: u64,
    /// The share of what the program holds.
    pub held_max: u64,
    /// What the program holds: values, ranges and loads, writes that wait, and memtables that only snapshots
    /// need. Beyond its share it may be what the cache can spare.
    pub held: u64,
    /// What I/O memory may lose: its buffers are powers of two, and long ones find no room between others. None
    /// of small budgets.
    pub spare_max: u64,
    /// The share of the cache.
    pub cache_max: u64,
    /// Of it, what stays: the four below.
    pub pinned: u64,
    /// Top levels of tables.
    pub top_levels: u64,
    /// Filters of tables.
    pub filters: u64,
    /// What is known of open tables: their keys, files and places.
    pub open_tables: u64,
    /// Lent to what the program holds beyond its share.
    pub lent: u64,
    /// Of the cache, blocks that come and go.
    pub blocks: u64,
}

impl MemoryStats {
    /// All that is used, which is at most the budget.
    pub fn used(&self) -> u64 {
        let buffers = self.memtables + self.log + self.manifest + self.tables + self.gets;
        // What is lent is used by what the program holds.
        buffers + self.held + self.top_levels + self.filters + self.open_tables + self.blocks
    }
}

/// A keyspace and its tables.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyspaceStats {
    /// Its name.
    pub name: String,
    /// Its levels, from the one that flushes write to.
    pub levels: Vec<LevelStats>,
}

/// The tables of one level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LevelStats {
    /// Tables.
    pub tables: usize,
    /// Bytes of their files.
    pub bytes: u64,
    /// Entries, deletions included.
    pub entries: u64,
    /// Deletions.
    pub deleted: u64,
}

/// What is counted as it happens.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) flushes: AtomicU64,
    pub(crate) compactions: AtomicU64,
    pub(crate) compaction_read: AtomicU64,
    pub(crate) compaction_written: AtomicU64,
    pub(crate) moved: AtomicU64,
    pub(crate) loaded: AtomicU64,
    pub(super) flushed_bytes: AtomicU64,
    pub(super) space_waits: AtomicU64,
    pub(super) slowed: AtomicU64,
    pub(super) replayed: AtomicU64,
    pub(super) orphans: AtomicU64,
}

pub(super) fn stats(shared: &Arc<Shared>) -> Stats {
    let (view, sealed, memtables) = {
        let commit = shared.lock();
        let memtables = commit.active.bytes() + commit.sealed_bytes();
        (shared.view(), commit.sealed.len(), memtables)
    };
    let keyspaces = view.version.keyspaces().map(|(_, levels)| {
        let level = |level| {
            let mut sum = LevelStats::default();
            for table in levels.level(level) {
                let meta = table.meta();
                sum.tables += 1;
                sum.bytes += meta.bytes;
                sum.entries += meta.entries;
                sum.deleted += meta.deleted;
            }
            sum
        };
        KeyspaceStats { name: levels.name.to_string(), levels: (0..LEVELS).map(level).collect() }
    });
    let (kernel_walks, kernel_fell_back, kernel_refused) = shared.kernel.stats();
    let (log, cache, budget) = (shared.wal.stats(), shared.cache.stats(), &shared.budget);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &shared.counters;
    Stats {
        memory: MemoryStats {
            budget: budget.total,
            memtables_max: budget.memtables,
            memtables,
            log_max: budget.log,
            log: log.pending_bytes as u64,
            manifest_max: budget.manifest,
            manifest: shared.manifest.memory_bytes(),
            tables_max: budget.tables,
            tables: budget.tables_used.get(),
            gets_max: budget.gets,
            gets: budget.gets_bytes(),
            held_max: budget.held,
            held: shared.held_bytes(),
            cache_max: budget.cache,
            spare_max: budget.spare,
            pinned: cache.pinned.sum(),
            top_levels: cache.pinned.of(Pinning::TopLevels),
            filters: cache.pinned.of(Pinning::Filters),
            open_tables: cache.pinned.of(Pinning::Tables),
            lent: cache.pinned.of(Pinning::Lent),
            blocks: cache.block_bytes,
        },
        keyspaces: keyspaces.collect(),
        log,
        flushes: count(&counters.flushes),
        flushed_bytes: count(&counters.flushed_bytes),
        compactions: count(&counters.compactions),
        compaction_read_bytes: count(&counters.compaction_read),
        compaction_written_bytes: count(&counters.compaction_written),
        moved: count(&counters.moved),
        loaded_bytes: count(&counters.loaded),
        pending_bytes: crate::compact::pick::pending_bytes(&view.version, &shared.pick_how()),
        space_waits: count(&counters.space_waits),
        slowed: count(&counters.slowed),
        replayed: count(&counters.replayed),
        orphans: count(&counters.orphans),
        sealed,
        cache_hits: cache.hits,
        cache_misses: cache.misses,
        kernel_walks,
        kernel_fell_back,
        kernel_refused,
        full: shared.full.why(),
        reserve_bytes: shared.full.reserve_bytes(),
        failed: shared.has_failed(),
    }
}
