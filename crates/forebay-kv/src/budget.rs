//! How the memory of a store is divided.
//!
//! Every share is a promise of some part of the store, and together they are the budget. Of `total` bytes:
//!
//! | share | up to 40 MiB | of more than that |
//! |---|---|---|
//! | memtables, three | 3/20 | 3/11 |
//! | log | 1/16 | 1/8, at most 32 MiB together |
//! | manifest | 1/64 | the same, at most 1 MiB together |
//! | buffers of flushes and compactions | 1/10, 2 MiB at least | the same, at most 16 MiB together |
//! | gets under way | 1/32 | 1/16, at most 16 MiB together |
//! | what programs hold | 1/16 | 1/16 |
//! | what I/O memory loses between buffers | none | 1/4, at most 8 MiB |
//! | cache: inner levels, filters, table metadata, blocks | about half | a third or more |
//!
//! A small store is one that is read: its cache has the larger part, of which fifteen sixteenths may be
//! pinned. The case that decided it, 40 MiB for 4 M keys of 16 bytes with values of 1,000, 4 GB:
//!
//! * four records fill a leaf of 4 KiB, so there are 1,000,000 leaves;
//! * an inner node has 4,076 bytes for entries of 8 + 4 bytes and 3 to 4 of the separator, about 260, so the
//!   lowest inner level has 3,850 nodes: 15.0 MiB;
//! * the level above has 15 nodes and a root, or one root for each table: 0.1 to 0.6 MiB;
//! * tables of all levels but the last have a tenth of the keys, whose filters take 10 bits a key: 0.5 MiB;
//! * together 16.2 MiB. The cache has 22.9 MiB and may pin 21.4 of them. So every get of a key that is there
//!   reads one leaf, and one leaf more only when a filter is wrong (one time in a hundred), and 6 MiB are
//!   left for leaves. All filters, 4.8 MiB, would fit as well; the last level's are not worth it for keys that are
//!   there.
//!
//! What the process takes beyond the budget is the rounding of the arena, which grows by 8 MiB at once, and
//! the allocator's slack. The engine's first 8 MiB, which it has without a store, are used by the store. What is
//! allocated and freed on different threads is in I/O memory, or mapped by itself: the allocator keeps for each
//! thread what was freed there, which was more than what was used. Of larger budgets long values have buffers of
//! several megabytes, powers of two that lie in one piece; between blocks that come and go there is none free.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::record::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::store::signal::Signal;
use crate::value::HeldBytes;

/// The shares of a store's budget, in bytes, and what is used of those that are given out here.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) total: u64,
    /// Memtables, the active one and sealed ones.
    pub(crate) memtables: u64,
    /// A memtable of so many bytes is sealed.
    pub(crate) memtable: u64,
    /// The log's buffers.
    pub(crate) log: u64,
    /// The manifest and its log's buffers.
    pub(crate) manifest: u64,
    /// Buffers of flushes and compactions.
    pub(crate) tables: u64,
    /// Blocks of gets that are under way.
    pub(crate) gets: u64,
    /// What programs may keep of values, and memtables that only snapshots need.
    pub(crate) held: u64,
    /// What I/O memory loses: buffers are powers of two, and long ones find no room between others.
    pub(crate) spare: u64,
    /// The rest: top levels, filters, blocks.
    pub(crate) cache: u64,
    /// Buffers of flushes and compactions that are under way.
    pub(crate) tables_used: Arc<HeldBytes>,
    /// The longest value of a table, which compaction reads into one buffer.
    pub(crate) value: usize,
    /// The longest record of the log.
    pub(crate) record: usize,
    /// What memtables take that only snapshots need.
    snapshots: Arc<AtomicU64>,
    gets_under_way: Pool,
    /// Reads of long values, which count as held by the program: so much of its share may be under way.
    long_under_way: Pool,
}

/// Bytes that are under way, of so many.
#[derive(Debug)]
struct Pool {
    bytes_max: u64,
    bytes: AtomicU64,
    /// Those who wait for others.
    waiting: AtomicU64,
    free: Signal,
}

const MIB: u64 = 1 << 20;
/// Of budgets up to this the cache has the larger part.
const SMALL: u64 = 40 * MIB;
/// The smallest memtable that can be asked for.
const MEMTABLE_MIN: u64 = 16 << 10;

impl Budget {
    pub(crate) fn new(options: &Options) -> Result<Budget> {
        let (total, least) = (options.memory, Options::MEMORY_MIN);
        if total < least {
            let text = format!("a budget of {total} bytes of memory; the smallest that works is {least}");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        let part = |small: u64, large: u64| total.min(SMALL) / small + total.saturating_sub(SMALL) / large;
        let third = part(20, 11);
        let memtable = options.memtable_bytes.unwrap_or(third);
        if !(MEMTABLE_MIN..=third).contains(&memtable) {
            let text = format!(
                "memtable_bytes of {memtable}; with {total} bytes of memory from {MEMTABLE_MIN} to {third}"
            );
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        let memtables = memtable * 3;
        let log = part(16, 8).min(32 * MIB);
        let manifest = (total / 64).min(MIB);
        let tables = (total / 10).clamp(2 * MIB, 16 * MIB);
        let gets = part(32, 16).min(16 * MIB);
        let held = total / 16;
        let spare = (total.saturating_sub(SMALL) / 4).min(8 * MIB);
        let cache = total - memtables - manifest - log - tables - gets - held - spare;
        // A record has its share of a memtable, its copy in the log, and framing.
        let around = KEY_BYTES_MAX as u64 + 64;
        // And its longest value is read by compactions into one buffer, which is a power of two.
        let value = (1 << tables.ilog2()).min(VALUE_BYTES_MAX as u64);
        let record = (memtable - memtable / 16).min(log / 3 * 2).min(value + around);
        Ok(Budget {
            total,
            memtables,
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
            tables_used: Arc::default(),
            snapshots: Arc::default(),
            gets_under_way: Pool::new(gets),
            long_under_way: Pool::new(held / 2),
        })
    }

    /// Where memtables are counted that only snapshots need.
    pub(crate) fn snapshots(&self) -> &Arc<AtomicU64> {
        &self.snapshots
    }

    pub(crate) fn gets_bytes(&self) -> u64 {
        self.gets_under_way.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the cache that may be pinned.
    pub(crate) fn pinned_max(&self, options: &Options) -> u64 {
        let most = self.cache / 16 * 15;
        options.pinned_bytes.map_or(most, |bytes| bytes.min(most))
    }

    /// Bytes of the log's records that may wait, and of one of its groups. Groups grow by doubling, and two
    /// that are empty are kept.
    pub(crate) fn log_limits(&self) -> (usize, usize) {
        let pending = self.log / 3;
        (pending as usize, ((pending / 4).min(MIB) as usize).max(4096))
    }

    pub(crate) fn exhausted(&self, held: u64) -> Error {
        let text = format!(
            "the program holds {held} bytes in values and snapshots; its share of {} bytes of memory is {}",
            self.total, self.held
        );
        Error::new(ErrorKind::MemoryBudget { held }, text)
    }

    /// Waits until a get may have so many bytes of blocks under way. One always may.
    pub(crate) async fn begin_get(&self, bytes: u64) -> UnderWay<'_> {
        self.gets_under_way.begin(bytes).await
    }

    /// Waits until a long value of so many bytes may be read. One always may.
    pub(crate) async fn begin_long(&self, bytes: u64) -> UnderWay<'_> {
        self.long_under_way.begin(bytes).await
    }
}

impl Pool {
    fn new(bytes_max: u64) -> Pool {
        Pool { bytes_max, bytes: AtomicU64::new(0), waiting: AtomicU64::new(0), free: Signal::default() }
    }

    async fn begin(&self, bytes: u64) -> UnderWay<'_> {
        if let Some(begun) = self.try_begin(bytes) {
            return begun;
        }
        // Either this attempt after the count sees what was given back, or who gives it back sees the count.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting(&self.waiting);
        self.free.until(|| self.try_begin(bytes)).await
    }

    fn try_begin(&self, bytes: u64) -> Option<UnderWay<'_>> {
        let fits = |used| (used == 0 || used + bytes <= self.bytes_max).then_some(used + bytes);
        let begun = self.bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits);
        begun.is_ok().then(|| UnderWay { pool: self, bytes })
    }
}

/// One of those who wait, until it is dropped.
struct Waiting<'a>(&'a AtomicU64);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Gives the bytes back when it goes.
#[derive(Debug)]
pub(crate) struct UnderWay<'a> {
    pool: &'a Pool,
    bytes: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.pool.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        if self.pool.waiting.load(Ordering::SeqCst) > 0 {
            self.pool.free.tell();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_add_up_to_the_whole() {
        for total in [Options::MEMORY_MIN, 40 << 20, 256 << 20, 1 << 40] {
            let budget = Budget::new(&Options::new().memory(total)).unwrap();
            let sum = budget.memtables + budget.log + budget.manifest + budget.tables + budget.gets;
            assert_eq!(sum + budget.held + budget.spare + budget.cache, total);
            assert!(budget.cache >= total / 3, "{budget:?}");
            assert!(budget.record as u64 <= budget.memtable && budget.record > 16 << 10);
            let (pending, group) = budget.log_limits();
            assert!(2 * pending + 3 * group <= budget.log as usize);
        }
    }

    #[test]
    fn forty_mebibytes_pin_the_inner_levels_of_four_million_keys() {
        let budget = Budget::new(&Options::new().memory(40 << 20)).unwrap();
        let leaves = 4_000_000 / 4_u64;
        let (lowest, filters) = (leaves.div_ceil(260) * 4096, 4_000_000 / 8 * 10);
        let upper = (leaves.div_ceil(260)).div_ceil(260) * 4096 + 125 * 4096;
        assert!(lowest + upper + filters <= budget.pinned_max(&Options::new()), "{budget:?}");
    }

    #[test]
    fn the_longest_values_fit_into_the_usual_budget() {
        let budget = Budget::new(&Options::new()).unwrap();
        assert!(budget.record >= VALUE_BYTES_MAX + KEY_BYTES_MAX);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |options: Options| Budget::new(&options).unwrap_err().kind().clone();
        let least = Options::MEMORY_MIN;
        assert_eq!(refused(Options::new().memory(least - 1)), ErrorKind::InvalidInput);
        let options = Options::new().memory(least);
        assert_eq!(refused(options.clone().memtable_bytes(1000)), ErrorKind::InvalidInput);
        assert_eq!(refused(options.memtable_bytes(least / 20 + 1)), ErrorKind::InvalidInput);
    }

    #[test]
    fn gets_wait_for_their_share() {
        futures::executor::block_on(async {
            let budget = Budget::new(&Options::new().memory(Options::MEMORY_MIN)).unwrap();
            let first = budget.begin_get(budget.gets * 2).await;
            let mut second = std::pin::pin!(budget.begin_get(1));
            for _ in 0..3 {
                assert!(futures::poll!(&mut second).is_pending());
            }
            drop(first);
            drop(second.await);
            assert_eq!(budget.gets_bytes(), 0);
        });
    }

    /// Many keys asked for at once need nearly all of the share. Who gave back a little when half of it was
    /// free told nobody, and the one who waited for more than half waited for ever.
    #[test]
    fn one_who_waits_for_much_is_woken_by_one_who_had_little() {
        use std::sync::atomic::AtomicUsize;
        use std::task::{Context, Wake, Waker};

        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let budget = Budget::new(&Options::new().memory(Options::MEMORY_MIN)).unwrap();
        let little = budget.gets_under_way.try_begin(1).unwrap();
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        let mut context = Context::from_waker(&waker);
        let mut much = std::pin::pin!(budget.begin_get(budget.gets));
        assert!(much.as_mut().poll(&mut context).is_pending());
        drop(little);
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert!(much.as_mut().poll(&mut context).is_ready());
    }
}
