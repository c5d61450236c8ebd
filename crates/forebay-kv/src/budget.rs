//! The division of a store's memory.
//!
//! Every share is a limit that some part of the store keeps, and together they are the budget. Of `total`
//! bytes:
//!
//! | share | up to 40 MiB | of more than that |
//! |---|---|---|
//! | memtables, three | 3/20 | 3/11 |
//! | log | 1/16 | 1/8, at most 32 MiB together |
//! | manifest | 1/64 | the same, at most 1 MiB together |
//! | buffers of flushes and compactions | 1/10, 2 MiB at least | the same, at most 16 MiB together |
//! | gets under way | 1/32 | 1/16, at most 16 MiB together |
//! | held by programs, with the record of recent changes | 1/16 | 1/16 |
//! | lost by I/O memory between buffers | 0 | 1/4, at most 8 MiB |
//! | cache: inner levels, filters, table metadata, blocks | about half | a third or more |
//!
//! While there are no writes, the cache has most of the memtables' share, and most of that for programs while these hold little
//! (`engine/loan.rs`).
//!
//! A small store is assumed to be mostly read: its cache has the larger part, of which fifteen sixteenths
//! may be pinned. The case that decided it is 40 MiB for 4 M keys of 16 bytes with values of 1,000, 4 GB:
//!
//! * four records fill a leaf of 4 KiB, so the last level has 1,000,000 leaves;
//! * an inner node has 4,076 bytes for entries of 8 + 4 bytes and 3 to 4 of the separator, about 260, so
//!   the lowest inner level has 3,850 nodes: 15.0 MiB;
//! * the level above has 15 nodes and a root, or one root for each table: 0.1 to 0.6 MiB;
//! * tables of all levels but the last have a tenth of the keys, whose filters have 10 bits a key: 0.5 MiB;
//! * together 16.2 MiB. The cache has 22.9 MiB and may pin 21.4 of them. So every get of an existing key reads one leaf, and one
//!   leaf more only when a filter is wrong (one time in a hundred), and 6 MiB are left for leaves. A quarter of these is for
//!   filters of the last level, which have 4.3 MiB: a third of them fit, in place of 0.04 % of the leaves.
//!
//! Beyond the budget the process uses up to 16 MiB for the rounding of the arena, which keeps some MiB free ahead of need, for the
//! arena's caches, and for the allocator's slack. An engine without a store has no I/O memory. Memory that is allocated and freed
//! on different threads is I/O memory, or mapped by itself: the allocator keeps freed memory per thread, and that was more than the
//! memory in use. With larger budgets, long values have buffers of several megabytes, contiguous powers of two; between cached
//! blocks no such piece is free.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use forebay::{Engine, MemoryReservation};

use crate::admission::Pool;
use crate::cache::lasting_max;
use crate::error::{Error, ErrorKind, Result};
use crate::memtable::SLACK_BYTES;
use crate::names::MANIFEST_BYTES;
use crate::options::Options;
use crate::record::VALUE_BYTES_MAX;
use crate::value::HeldBytes;

/// The shares of a store's budget, in bytes, and the use of those shares that are handed out here.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) total: u64,
    /// Memtables, active and sealed.
    pub(crate) memtables: u64,
    /// Memory that memtables may have allocated beyond that: the unused ends of pages, too short for another entry.
    pub(crate) memtables_slack: u64,
    /// Bytes at which a memtable is sealed.
    pub(crate) memtable: u64,
    /// The log's buffers.
    pub(crate) log: u64,
    /// The buffers of the manifest's log. Its state counts in the cache, with the metadata of keyspaces and tables.
    pub(crate) manifest: u64,
    /// Buffers of flushes and compactions.
    pub(crate) tables: u64,
    /// Blocks of gets in flight.
    pub(crate) gets: u64,
    /// Values held by programs, and memtables that only snapshots need.
    pub(crate) held: u64,
    /// Losses of I/O memory: buffers are powers of two, and long buffers do not fit between others.
    pub(crate) spare: u64,
    /// The rest: top levels, filters, blocks.
    pub(crate) cache: u64,
    /// Bytes of flushes' and compactions' buffers in use.
    pub(crate) tables_used: Arc<HeldBytes>,
    /// The memory that the engine has reserved for this store.
    reserved: Mutex<Option<MemoryReservation>>,
    /// The longest value of a table, which compaction reads into one buffer.
    pub(crate) value: usize,
    /// The longest record, a put or a whole batch: a memtable, the log's buffers and a segment of the log hold it.
    pub(crate) record: usize,
    /// Bytes of memtables that only snapshots need.
    snapshots: Arc<AtomicU64>,
    /// Three quarters of the share are for reads in flight. One quarter is for blocks that were read and not collected yet: a block
    /// keeps a leaf, while a read has three times as much.
    pub(crate) gets_under_way: Arc<Pool>,
    /// Reads of long values, which count as held by the program. Limits the part of that share that may be
    /// in flight.
    pub(crate) long_under_way: Arc<Pool>,
}

const MIB: u64 = 1 << 20;
/// The longest table, and the shortest that counts as full.
const TABLE_BYTES_MAX: u64 = 64 * MIB;
const TABLE_BYTES_MIN: u64 = 256 << 10;
/// The upper limit of the default reserve.
const RESERVE_MAX: u64 = 192 * MIB;
/// The steps in which it grows with the store.
const RESERVE_STEPS: u64 = 16;
/// Budgets up to this size give the cache the larger part.
const SMALL: u64 = 40 * MIB;
/// Bytes of a log group with one record, apart from the record: header, length and number of values.
const GROUP_FRAMING: u64 = 256 + 4 + 2;
/// Maximum number of keyspaces of a store.
const KEYSPACES_MAX: u64 = 10_000;
/// Bytes of memory for each keyspace that a store may have. At least a third of it is the cache's, for the metadata of the keyspace
/// and of two tables: one of the last level, and one of a flush (`CROWDED_PART` in `engine/compact/pick.rs`).
const KEYSPACE_BYTES: u64 = 16 << 10;
/// The smallest memtable that can be configured.
const MEMTABLE_MIN: u64 = 16 << 10;

impl Budget {
    pub(crate) fn new(options: &Options) -> Result<Budget> {
        let (total, least) =
            (options.memory_bytes_max.unwrap_or(Options::MEMORY_BYTES_DEFAULT), Options::MEMORY_BYTES_MIN);
        if total < least {
            let text = format!("memory_bytes_max is {total}: give {least} or more");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        let part = |small: u64, large: u64| total.min(SMALL) / small + total.saturating_sub(SMALL) / large;
        let third = part(20, 11);
        let memtable = options.memtable_bytes.unwrap_or(third);
        if !(MEMTABLE_MIN..=third).contains(&memtable) {
            let text = format!(
                "memtable_bytes is {memtable}: with memory_bytes_max of {total} give {MEMTABLE_MIN} to {third}"
            );
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        let memtables = memtable * 3;
        // An empty memtable fits a record of fifteen sixteenths.
        let memtables_slack = 3 * SLACK_BYTES.saturating_sub(memtable / 16);
        let log = part(16, 8).min(32 * MIB);
        let manifest = (total / 64).min(MIB);
        let tables = (total / 10).clamp(2 * MIB, 16 * MIB);
        let gets = part(32, 16).min(16 * MIB);
        let held = total / 16;
        let spare = (total.saturating_sub(SMALL) / 4).min(8 * MIB);
        let cache = total - memtables - memtables_slack - manifest - log - tables - gets - held - spare;
        debug_assert!(cache >= total / 3, "the cache has a third of the memory, or more");
        // Compactions read the longest value into one buffer, which is a power of two.
        let value = (1 << tables.ilog2()).min(VALUE_BYTES_MAX as u64);
        // The default segment is longer than any record.
        let segment = options.log_segment_bytes.map_or(u64::MAX, |bytes| bytes.saturating_sub(GROUP_FRAMING));
        let record = (memtable - memtable / 16).min(log / 3 * 2).min(segment);
        debug_assert!(record < memtable && value <= tables, "the longest record and value have their memory");
        Ok(Budget {
            total,
            memtables,
            memtables_slack,
            memtable,
            log,
            manifest,
            tables,
            gets,
            held,
            spare,
            cache,
            value: value as usize,
            record: record as usize,
            reserved: Mutex::default(),
            tables_used: Arc::default(),
            snapshots: Arc::default(),
            gets_under_way: Pool::new(gets / 4 * 3, gets / 4),
            long_under_way: Pool::new(held / 2, held / 4),
        })
    }

    /// Returns the budget of a store of this engine. Reserves its memory, and sets it in the options if they leave it open.
    ///
    /// # Errors `InvalidInput`, with both figures, when the engine has less.
    pub(crate) fn of(engine: &Engine, options: &mut Options) -> Result<Budget> {
        let left = engine.memory_unreserved();
        let half = (left / 2).clamp(Options::MEMORY_BYTES_MIN, Options::MEMORY_BYTES_DEFAULT);
        options.memory_bytes_max.get_or_insert(half);
        let budget = Budget::new(options)?;
        let total = budget.total;
        let reserved = engine.reserve_memory(total).map_err(|_| {
            let left = engine.memory_unreserved();
            let text = format!(
                "a budget of {total} bytes of memory, and the engine has {left} bytes of I/O memory left beside what other \
                 stores may use: raise Config::arena_bytes_max by {} bytes or more, or choose a smaller Options::memory_bytes_max",
                total.saturating_sub(left)
            );
            Error::new(ErrorKind::InvalidInput, text)
        })?;
        Ok(Budget { reserved: Mutex::new(Some(reserved)), ..budget })
    }

    /// Releases the reserved memory for others, because the store has ended.
    pub(crate) fn release(&self) {
        drop(self.reserved.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Returns the counter for the memory of memtables that only snapshots need.
    pub(crate) fn snapshots(&self) -> &Arc<AtomicU64> {
        &self.snapshots
    }

    /// Returns the length of the longest value that is compressed. Compaction holds such a value twice, as it
    /// was read and as it was.
    pub(crate) fn packed_value_max(&self) -> usize {
        self.value / 2
    }

    /// Returns an error for a value that compaction could not read.
    pub(crate) fn check_value(&self, bytes: usize) -> Result<()> {
        let limit = self.value;
        if bytes <= limit {
            return Ok(());
        }
        let text = format!(
            "a value of {bytes} bytes; with this memory values have {limit} at most: put it in parts, or raise \
             Options::memory_bytes_max"
        );
        Err(Error::new(ErrorKind::TooLarge { limit }, text))
    }

    /// Returns an error for a record of this many bytes and entries that costs a memtable `cost`, if it does not fit into the
    /// store. One that is not logged has neither buffer nor segment of the log, and may have nearly all of the memtables' share:
    /// an empty memtable takes it once the others are flushed.
    pub(crate) fn check_record(
        &self,
        bytes: usize,
        entries: usize,
        cost: u64,
        is_unlogged: bool,
    ) -> Result<()> {
        let share = self.memtables - self.memtables / 16;
        let (record, memtable) =
            if is_unlogged { (share as usize, share) } else { (self.record, self.memtable) };
        if bytes <= record && cost <= memtable {
            return Ok(());
        }
        // A memtable holds fewer bytes of many short entries than the log.
        let of_memtable = bytes as f64 * (memtable as f64 / cost as f64);
        let limit = record.min(of_memtable as usize);
        let text = format!(
            "{entries} changes of {bytes} bytes together; with this memory the most is {limit}: use smaller batches, or raise \
             Options::memory_bytes_max"
        );
        Err(Error::new(ErrorKind::TooLarge { limit }, text))
    }

    /// Returns the most bytes of the record with which open transactions compare (`engine/recent_changes.rs`). They count as held by
    /// the program, and the cache lends what its share lacks.
    pub(crate) fn recent_changes_max(&self) -> u64 {
        self.total / 8
    }

    pub(crate) fn gets_bytes(&self) -> u64 {
        self.gets_under_way.bytes()
    }

    /// Returns the bytes of the cache that may be pinned.
    pub(crate) fn pinned_max(&self, options: &Options) -> u64 {
        let most = lasting_max(self.cache);
        options.pinned_bytes.map_or(most, |bytes| bytes.min(most))
    }

    /// Returns two limits in bytes: of the log's pending records, and of one of its groups. Groups grow by doubling, and two empty
    /// groups are kept. Without space for a further segment, what is pending has to fit into the log's reserve, which is as long.
    pub(crate) fn log_limits(&self, options: &Options) -> (usize, usize) {
        let pending = (self.log / 3).min(self.log_segment_bytes(options) / 2);
        (pending as usize, ((pending / 4).min(MIB) as usize).max(4096))
    }

    /// Returns the size of the longest table that compactions write.
    pub(crate) fn table_bytes_max(&self) -> u64 {
        (self.memtable * 4).clamp(TABLE_BYTES_MIN, TABLE_BYTES_MAX)
    }

    /// Returns the bytes of a segment of the log. About as long as a memtable: a flush then frees few segments at a time, and the
    /// log reuses those instead of writing new segments through.
    pub(crate) fn log_segment_bytes(&self, options: &Options) -> u64 {
        let usual = (self.record as u64 + (64 << 10)).max(self.memtable).next_power_of_two();
        options.log_segment_bytes.unwrap_or(usual.clamp(MIB, 64 * MIB))
    }

    /// Returns the disk space that a full store needs to continue, with these bytes of flushes to come and in tables, and in the longest
    /// of them. All memory is flushed to tables, one table of the last level is rewritten, and each log gets its next segment. With
    /// deletions each such step frees more than it uses.
    ///
    /// The result is a multiple of a sixteenth of the largest store's need, plus one step, which suffices until the reserve has
    /// grown. The tables of many keyspaces may need more than the memtables' share, and a table that was rewritten alone half as much
    /// again as others (`Output::rewrites`).
    pub(crate) fn reserve(&self, options: &Options, unflushed: u64, tables: u64, longest: u64) -> u64 {
        let usual = self.table_bytes_max();
        let surplus = longest.min(usual / 2 * 3).saturating_sub(usual);
        let needed = self.space_to_go_on(options, unflushed, tables) + surplus;
        let step = self.reserve_step(options);
        let most = self.reserve_max(options) + surplus + unflushed.saturating_sub(self.memtables);
        (needed.next_multiple_of(step) + step).min(most)
    }

    /// Returns the bytes by which the reserve grows.
    pub(crate) fn reserve_step(&self, options: &Options) -> u64 {
        (self.reserve_max(options) / RESERVE_STEPS).next_multiple_of(4096)
    }

    fn reserve_max(&self, options: &Options) -> u64 {
        self.space_to_go_on(options, self.memtables, u64::MAX).next_multiple_of(4096).min(RESERVE_MAX)
    }

    fn space_to_go_on(&self, options: &Options, unflushed: u64, tables: u64) -> u64 {
        let logs = self.log_segment_bytes(options) + MANIFEST_BYTES;
        unflushed + tables.min(self.table_bytes_max()) + logs
    }

    /// Returns the most keyspaces that the store may have.
    pub(crate) fn keyspaces_max(&self) -> usize {
        (self.total / KEYSPACE_BYTES).min(KEYSPACES_MAX) as usize
    }

    /// Returns the error for one keyspace more.
    pub(crate) fn too_many_keyspaces(&self) -> Error {
        let (total, most) = (self.total, self.keyspaces_max());
        let of_memory = if total < KEYSPACES_MAX * KEYSPACE_BYTES {
            format!(
                " with {total} bytes of memory: raise Options::memory_bytes_max by {KEYSPACE_BYTES} bytes for each more, or"
            )
        } else {
            ":".to_string()
        };
        let text = format!(
            "a store has {most} keyspaces at most{of_memory} have several in one, with a prefix of its keys"
        );
        Error::new(ErrorKind::InvalidInput, text)
    }

    pub(crate) fn exhausted(&self, held: u64) -> Error {
        let text = format!(
            "the program holds {held} bytes in values and snapshots, and its share of {} bytes of memory is {}: drop some of them, or \
             raise Options::memory_bytes_max",
            self.total, self.held
        );
        Error::new(ErrorKind::MemoryBudget { held }, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memtable;
    use crate::record::KEY_BYTES_MAX;

    #[test]
    fn the_shares_add_up_to_the_whole() {
        for total in [Options::MEMORY_BYTES_MIN, 40 << 20, 256 << 20, 1 << 40] {
            let options = Options::new().memory_bytes_max(total);
            let budget = Budget::new(&options).unwrap();
            let sum = budget.memtables
                + budget.memtables_slack
                + budget.log
                + budget.manifest
                + budget.tables
                + budget.gets;
            assert_eq!(sum + budget.held + budget.spare + budget.cache, total);
            assert!(budget.cache >= total / 3, "{budget:?}");
            assert!(budget.record as u64 <= budget.memtable && budget.record > 16 << 10);
            let (pending, group) = budget.log_limits(&options);
            assert!(2 * pending + 3 * group <= budget.log as usize);
        }
    }

    #[test]
    fn forty_mebibytes_pin_the_inner_levels_of_four_million_keys() {
        let budget = Budget::new(&Options::new().memory_bytes_max(40 << 20)).unwrap();
        let leaves = 4_000_000 / 4_u64;
        let (lowest, filters) = (leaves.div_ceil(260) * 4096, 4_000_000 / 8 * 10);
        let upper = (leaves.div_ceil(260)).div_ceil(260) * 4096 + 125 * 4096;
        assert!(lowest + upper + filters <= budget.pinned_max(&Options::new()), "{budget:?}");
    }

    #[test]
    fn the_longest_values_fit_into_the_usual_budget() {
        let budget = Budget::new(&Options::new()).unwrap();
        assert!(budget.value == VALUE_BYTES_MAX && budget.record >= VALUE_BYTES_MAX + KEY_BYTES_MAX + 64);
    }

    #[test]
    fn of_short_entries_a_memtable_holds_fewer_bytes() {
        let budget = Budget::new(&Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN)).unwrap();
        let check = |bytes: usize, entries: usize| {
            let cost = memtable::cost(bytes, entries);
            budget.check_record(bytes, entries, cost, false).map_err(|error| error.kind())
        };
        check(budget.record, 1).unwrap();
        assert_eq!(check(budget.record + 1, 1), Err(ErrorKind::TooLarge { limit: budget.record }));
        // Deletions of keys of one byte.
        let Err(ErrorKind::TooLarge { limit }) = check(12 * 50_000, 50_000) else { panic!("it fits") };
        assert!(limit < budget.record && check(limit / 12 * 12 - 12, limit / 12 - 1).is_ok(), "{limit}");
    }

    /// Story: the reserve counted one table of the usual length. On a full disk a table is rewritten alone, and becomes half as long
    /// again: where others took all space but the reserve, the next deletions in it found none.
    #[test]
    fn the_reserve_has_space_for_the_longest_table() {
        for memory in [16 << 20, 256 << 20, 4 << 30] {
            let options = Options::new().memory_bytes_max(memory);
            let budget = Budget::new(&options).unwrap();
            let reserve = |longest| budget.reserve(&options, budget.memtables, u64::MAX, longest);
            let usual = budget.table_bytes_max();
            let most = usual / 2 * 3;
            for longest in [0, usual, usual + 4096, most] {
                assert_eq!(reserve(longest), reserve(0) + longest.saturating_sub(usual), "{longest}");
            }
            assert_eq!(reserve(u64::MAX), reserve(most), "sorted files have any length");
        }
    }

    #[test]
    fn each_keyspace_has_its_memory() {
        let of = |total| Budget::new(&Options::new().memory_bytes_max(total)).unwrap();
        let most = [16 << 20, 64 << 20, 157 << 20, 1 << 40].map(|total| of(total).keyspaces_max());
        assert_eq!(most, [1_024, 4_096, 10_000, 10_000]);
        let text = of(16 << 20).too_many_keyspaces().to_string();
        assert!(
            ["1024", "16777216", "memory_bytes_max", "prefix"].iter().all(|word| text.contains(word)),
            "{text}"
        );
        let text = of(256 << 20).too_many_keyspaces().to_string();
        assert!(text.contains("10000") && !text.contains("memory"), "{text}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |options: Options| Budget::new(&options).unwrap_err().kind();
        let least = Options::MEMORY_BYTES_MIN;
        assert_eq!(refused(Options::new().memory_bytes_max(least - 1)), ErrorKind::InvalidInput);
        let options = Options::new().memory_bytes_max(least);
        assert_eq!(refused(options.clone().memtable_bytes(1000)), ErrorKind::InvalidInput);
        assert_eq!(refused(options.memtable_bytes(least / 20 + 1)), ErrorKind::InvalidInput);
    }
}
