//! Settings that a program may choose when it opens a store.

use forebay::Class;

/// The settings of a store.
///
/// ```
/// # use forebay::{Config, Engine};
/// # use forebay_kv::{Options, Store};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let engine = Engine::start(Config::new())?;
/// let options = Options::new()
///     .memory_bytes_max(32 << 20) // all that the store holds, at any time
///     .create(true);
/// let store = Store::open(&engine, dir.path(), options).wait()?;
/// # store.close().wait()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "give it to Store::open"]
pub struct Options {
    pub(crate) memory_bytes_max: Option<u64>,
    pub(crate) memtable_bytes: Option<u64>,
    pub(crate) log_segment_bytes: Option<u64>,
    pub(crate) leaf_bytes: u32,
    /// Chosen when the store is opened, if the program left it open.
    pub(crate) compression: Option<Compression>,
    /// Of the levels above the last; `None`: the same.
    pub(crate) upper_compression: Option<Compression>,
    pub(crate) separation_bytes: u32,
    pub(crate) shard: usize,
    pub(crate) class: Class,
    pub(crate) background: Class,
    pub(crate) create: bool,
    pub(crate) salvage: bool,
    pub(crate) read_only: bool,
    pub(crate) store_id: Option<u64>,
    pub(crate) clock: fn() -> u64,
    pub(crate) pinned_bytes: Option<u64>,
    pub(crate) filter_policy: FilterPolicy,
    pub(crate) reserve_bytes: Option<u64>,
    pub(crate) delete_batch_max: u64,
    pub(crate) level0_full: Option<usize>,
    #[cfg(feature = "kernel")]
    pub(crate) kernel_walk: KernelWalk,
    #[cfg(feature = "kernel")]
    pub(crate) kernel_walk_again: bool,
}

impl Options {
    /// Returns the default settings.
    pub fn new() -> Options {
        Options {
            memory_bytes_max: None,
            memtable_bytes: None,
            log_segment_bytes: None,
            leaf_bytes: 4096,
            compression: None,
            upper_compression: None,
            separation_bytes: 32 << 10,
            shard: 0,
            class: Class::LOG,
            background: Class::BACKGROUND,
            create: true,
            salvage: false,
            read_only: false,
            store_id: None,
            clock: seconds_since_1970,
            pinned_bytes: None,
            filter_policy: FilterPolicy::WhereTheyFit,
            reserve_bytes: None,
            delete_batch_max: 256,
            level0_full: None,
            #[cfg(feature = "kernel")]
            kernel_walk: KernelWalk::Never,
            #[cfg(feature = "kernel")]
            kernel_walk_again: false,
        }
    }

    /// Sets the maximum memory in bytes that the store holds at any time, in total; at least [`Options::MEMORY_BYTES_MIN`].
    /// [`Stats::memory`](crate::Stats) shows its division. Most of it is I/O memory, so it is at most the part of the engine's
    /// [`Config::arena_bytes_max`](forebay::Config::arena_bytes_max) that other open stores leave. Default: 256 MiB, or half of
    /// that part if this is less.
    pub fn memory_bytes_max(mut self, bytes: u64) -> Options {
        self.memory_bytes_max = Some(bytes);
        self
    }

    /// Smallest budget of a store: 16 MiB.
    pub const MEMORY_BYTES_MIN: u64 = 16 << 20;

    /// Default budget of a store, where the engine has twice as much left: 256 MiB.
    pub(crate) const MEMORY_BYTES_DEFAULT: u64 = 256 << 20;

    /// Sets the maximum bytes of the cache for pinned blocks: inner levels of tables, and filters. The metadata of keyspaces and
    /// tables stay in memory in any case, and memory that the program holds beyond its share is apart from it. A lower limit leaves
    /// more of the cache to evictable blocks, which is better where a few keys are read often. Default and maximum: fifteen
    /// sixteenths of the cache.
    pub fn pinned_bytes(mut self, bytes: u64) -> Options {
        self.pinned_bytes = Some(bytes);
        self
    }

    /// Sets whether gets check the Bloom filters of the last level too; see [`FilterPolicy`]. Default:
    /// [`FilterPolicy::WhereTheyFit`].
    pub fn filter_policy(mut self, filter_policy: FilterPolicy) -> Options {
        self.filter_policy = filter_policy;
        self
    }

    /// Sets whether threads that wait for gets ([`Get::wait`](crate::Get::wait), [`MultiGet::wait`](crate::MultiGet::wait)) walk
    /// down tables inside the kernel, from the first inner node that is not in memory to the leaf; see [`KernelWalk`]. Such a walk
    /// costs one system call, without another thread or a wake-up, and up to 16 walks of a `multi_get` share the call. Off Linux,
    /// before Linux 7.1, and without CAP_BPF and CAP_PERFMON, gets use the ordinary way instead and return the same results.
    /// Default: [`KernelWalk::Never`].
    ///
    /// Each such thread has a session with the kernel from its first walk until the thread ends. A session needs some milliseconds
    /// to open and 64 KiB of memory, from the thread's first `multi_get` on 128 KiB, which count within the budget of each store
    /// that the thread walks in. While it is open, other io_uring rings of the thread share one worker thread of each kind. The
    /// reads of these walks have no class, and bypass the engine's scheduler and its statistics.
    #[cfg(feature = "kernel")]
    pub fn kernel_walk(mut self, kernel_walk: KernelWalk) -> Options {
        self.kernel_walk = kernel_walk;
        self
    }

    /// For this crate's own tests: uses kernel walks even where filling the cache would pay off.
    #[cfg(all(feature = "kernel", feature = "_mutants"))]
    #[doc(hidden)]
    pub fn kernel_walk_again(mut self) -> Options {
        self.kernel_walk_again = true;
        self
    }

    /// For this crate's own tests: the entries up to which a range is deleted by a batch.
    #[doc(hidden)]
    pub fn delete_batch_max(mut self, entries: u64) -> Options {
        self.delete_batch_max = entries;
        self
    }

    /// For this crate's own tests: the tables of a full level 0, so that a store of few flushes has runs.
    #[doc(hidden)]
    pub fn level0_full(mut self, tables: usize) -> Options {
        self.level0_full = Some(tables.max(1));
        self
    }

    /// Sets the bytes of recent writes after which a memtable is sealed and written to tables, from 16 KiB up
    /// to a third of its share of the budget. It also bounds the longest record. Default: that third.
    pub fn memtable_bytes(mut self, bytes: u64) -> Options {
        self.memtable_bytes = Some(bytes);
        self
    }

    /// Sets the bytes of one segment file of the log, a multiple of 4,096 from 64 KiB to 1 GiB. Default:
    /// about [`memtable_bytes`](Options::memtable_bytes), from 1 to 64 MiB.
    pub fn log_segment_bytes(mut self, bytes: u64) -> Options {
        self.log_segment_bytes = Some(bytes);
        self
    }

    /// Sets the bytes of the reserve: a file in the store's directory that occupies space and has no data. When the file system is
    /// full, the store frees the reserve, so that deletions can be written to tables and compacted, which frees space; then it
    /// allocates the reserve again. With 0 the store has no reserve, and deletes may fail to shrink a full store. At most 1 TiB.
    /// Default: it grows with the store: the bytes in memtables, 24 KiB for each keyspace there but one, five times the longest key of
    /// each, one table, a segment of either log, and up to an eighth of the most, which with one keyspace of short keys is 161 MiB with
    /// 256 MiB of memory and 192 MiB with more.
    /// A table that a full store has rewritten may be half as long again as others, for which it has up to 32 MiB in addition. At an
    /// open it is halved or quartered if less space is free; if it cannot grow later, the store is full. File systems without
    /// fallocate(2) have no reserve.
    pub fn reserve_bytes(mut self, bytes: u64) -> Options {
        self.reserve_bytes = Some(bytes);
        self
    }

    /// Sets the target size of a table's leaves: a multiple of 4,096 from 4 to 32 KiB. Default: 4 KiB.
    pub fn leaf_bytes(mut self, bytes: u32) -> Options {
        self.leaf_bytes = bytes;
        self
    }

    /// Sets how the tables that are written from now on are compressed. Existing tables stay as they are until
    /// a compaction rewrites them, so a store may have tables of several kinds;
    /// [`Store::compact`](crate::Store::compact) rewrites all that differ. Default: the compression of the
    /// newest compressed table that the store has written (Zstandard at level 3), and [`Compression::None`] if no table is
    /// compressed.
    pub fn compression(mut self, compression: Compression) -> Options {
        self.compression = Some(compression);
        self
    }

    /// Sets another compression for the tables above the last level, which flushes write and compaction soon replaces: a fast one
    /// there, and a strong one for the last level, which has nearly all of the data. A table that reaches the last level is then
    /// rewritten with [`compression`](Options::compression), even where it would only have been moved. Separated values
    /// ([`separation_bytes`](Options::separation_bytes)) stay as the flush wrote them. Default: the same at all levels.
    pub fn upper_compression(mut self, compression: Compression) -> Options {
        self.upper_compression = Some(compression);
        self
    }

    /// Sets the length in bytes from which on values are separated from their keys (key-value separation): compaction rewrites the
    /// keys and leaves such values in their files. So a value of a busy keyspace is written twice (log, flush) and at most once
    /// more while files are joined and emptied, instead of once or more for each level, and a range reads such values apart from
    /// their keys: those that lie together with one read, up to 512 KiB ahead. Files of which more than two thirds are garbage (at
    /// rest: more than a quarter) are emptied and removed; [`Stats::value_files`](crate::Stats::value_files) counts them. Values in
    /// leaves, of up to a quarter of [`leaf_bytes`](Options::leaf_bytes), are never separated. Values between the two lengths lie
    /// right before their leaf: a get needs one more read for such a value, while ranges and compactions read many of them with
    /// their leaf. `u32::MAX` separates no values. Default: 32 KiB.
    pub fn separation_bytes(mut self, bytes: u32) -> Options {
        self.separation_bytes = bytes;
        self
    }

    /// Sets the shard that owns the store's log. Flushes to tables and compaction run on the next shard, if
    /// the engine has several. Default: 0.
    pub fn shard(mut self, shard: usize) -> Options {
        self.shard = shard;
        self
    }

    /// Sets the class of the manifest and of flushes to tables, for which writers may have to wait. Default:
    /// [`Class::LOG`].
    pub fn class(mut self, class: Class) -> Options {
        self.class = class;
        self
    }

    /// Sets the class of deferrable work: compaction and removal of files. Default: [`Class::BACKGROUND`].
    pub fn background(mut self, class: Class) -> Options {
        self.background = class;
        self
    }

    /// Sets whether a store is created in an empty directory, and the directory where it does not exist.
    /// Default: yes.
    pub fn create(mut self, create: bool) -> Options {
        self.create = create;
        self
    }

    /// Sets whether a store whose log or manifest is damaged, or shorter than it was, is opened with the part
    /// that is left; see [`Recovery`](crate::Recovery). Bytes dropped from the logs are copied aside first
    /// (`salvaged-*.wal`), and tables that the manifest does not name stay, as `*.fkv.kept`. Default: no;
    /// opening such a store fails and changes nothing.
    ///
    /// Deleted and overwritten values may reappear: the records of their deletion or overwrite may be among the lost records.
    pub fn salvage(mut self, salvage: bool) -> Options {
        self.salvage = salvage;
        self
    }

    /// Sets whether the store is opened read-only. Nothing in its directory is created, changed or removed, so it may lie on a
    /// file system that is mounted read-only, or belong to another user. Records of the log that are in no table are read into
    /// memory. Any number of readers may have a store open, but not together with a writer; each refusal
    /// ([`Locked`](crate::ErrorKind::Locked)) names the processes. A copy of a store without the files `wal.lock` is read without
    /// locks.
    ///
    /// Reads, snapshots, ranges and [`Store::verify`](crate::Store::verify) work as usual; calls that change the store fail with
    /// [`ErrorKind::ReadOnly`](crate::ErrorKind::ReadOnly). A damaged store is refused as by an open that writes. After a crash the
    /// newest writes may be read although they were not acknowledged, and a power cut may still lose them: an open that writes
    /// makes them durable. Cannot be combined with [`salvage`](Options::salvage); [`create`](Options::create) has no effect.
    /// Default: no.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{ErrorKind, Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let options = Options::new().memory_bytes_max(16 << 20);
    /// # let store = Store::open(&engine, dir.path(), options.clone()).wait()?;
    /// # store.default_keyspace().put("anna", "1").wait()?;
    /// # store.close().wait()?;
    /// let store = Store::open(&engine, dir.path(), options.read_only(true)).wait()?;
    /// let users = store.default_keyspace();
    /// assert_eq!(users.get("anna").wait()?.as_deref(), Some(&b"1"[..]));
    /// assert_eq!(users.put("bert", "2").wait().unwrap_err().kind(), ErrorKind::ReadOnly);
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn read_only(mut self, read_only: bool) -> Options {
        self.read_only = read_only;
        self
    }

    /// Sets the number that distinguishes this store's logs from those of others. Default: random. Tests that
    /// must be repeatable set it.
    #[doc(hidden)]
    pub fn store_id(mut self, id: u64) -> Options {
        self.store_id = Some(id);
        self
    }

    /// Sets the clock by which values expire, in seconds since 1970. Default: the system's clock. Tests that
    /// must be repeatable set it.
    pub fn clock(mut self, clock: fn() -> u64) -> Options {
        self.clock = clock;
        self
    }
}

/// A compression of a table's leaves and of its long values.
///
/// A leaf keeps its size on disk and holds up to four times as many bytes of entries, or as many bytes and
/// fewer pages where leaves are long, so a get reads as much as without compression. Leaves and values that
/// do not gain are stored as they are, and after some of them only one in 64 is tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// Tables are not compressed, and versions of this crate before compression can read them.
    #[default]
    None,
    /// LZ4: the least processor time, about half of the bytes of text and records.
    Lz4,
    /// Zstandard of a level from 1 to 9; 3 is usual. Fewer bytes than LZ4 for several times its processor time. Each writer of
    /// tables uses up to 1 MiB of memory for it from the cache's share. The tables can be read only by programs with the feature
    /// `zstd`.
    #[cfg(feature = "zstd")]
    Zstd(u8),
}

/// The levels whose Bloom filters gets check; see [`Options::filter_policy`].
///
/// A filter has 10 bits a key, and is wrong about one absent key in a hundred. Those of the upper levels are always used: most of
/// the keys looked up are absent there. The last level has nine tenths of the keys. Without its filters a get of a key that is not
/// in the store reads a leaf in vain; gets of existing keys gain nothing from them. Every table has its filter on disk, so a store
/// may be opened with another policy at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterPolicy {
    /// Filters of the last level as well, of as many tables as fit: all inner levels of tables stay pinned, and these filters use
    /// at most a quarter of the cache in addition to pinned memory. They are never read for a get. When inner levels need the
    /// memory, filters are released, table by table; [`MemoryStats::filters_left_out`](crate::MemoryStats::filters_left_out) counts
    /// the filters that are not in memory.
    #[default]
    WhereTheyFit,
    /// The levels above the last. For stores with short entries whose gets are all of existing keys: there filters are a larger
    /// part of the data, and the cache keeps as many leaves less.
    UpperLevels,
    /// All. Filters of the last level are pinned before the lowest inner level if they fit, and otherwise read for gets. For stores
    /// that are mostly asked for keys they do not have, such as one that looks a key up before it writes it.
    Always,
}

/// When waiting threads walk down tables inside the kernel; see [`Options::kernel_walk`].
#[cfg(feature = "kernel")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelWalk {
    /// Never.
    #[default]
    Never,
    /// Where it is faster, as measured: a few lookups in a hundred are tried the other way, for lone gets and for `multi_get`
    /// separately. A thread opens a session after 32,768 lookups that could have used it. If the kernel or the process's
    /// permissions do not allow a session, the store tries once and reports no degradation.
    WhereCheaper,
    /// Always. Where this is not possible, [`Engine::health`](forebay::Engine::health) reports a degradation,
    /// and [`Stats::kernel_fell_back`](crate::Stats::kernel_fell_back) counts the gets.
    Always,
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}

fn seconds_since_1970() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |time| time.as_secs())
}
