//! What a program may choose when it opens a store.

use forebay::Class;

/// The settings of a store.
#[derive(Clone, Debug)]
#[must_use = "give it to Store::open"]
pub struct Options {
    pub(crate) memory: Option<u64>,
    pub(crate) memtable_bytes: Option<u64>,
    pub(crate) log_segment_bytes: Option<u64>,
    pub(crate) leaf_bytes: u32,
    pub(crate) shard: usize,
    pub(crate) class: Class,
    pub(crate) background: Class,
    pub(crate) create: bool,
    pub(crate) salvage: bool,
    pub(crate) store_id: Option<u64>,
    pub(crate) clock: fn() -> u64,
    pub(crate) pinned_bytes: Option<u64>,
    pub(crate) reserve_bytes: Option<u64>,
    #[cfg(feature = "kernel")]
    pub(crate) kernel_walk: bool,
    #[cfg(feature = "kernel")]
    pub(crate) kernel_walk_again: bool,
}

impl Options {
    /// The default settings.
    pub fn new() -> Options {
        Options {
            memory: None,
            memtable_bytes: None,
            log_segment_bytes: None,
            leaf_bytes: 4096,
            shard: 0,
            class: Class::LOG,
            background: Class::BACKGROUND,
            create: true,
            salvage: false,
            store_id: None,
            clock: seconds_since_1970,
            pinned_bytes: None,
            reserve_bytes: None,
            #[cfg(feature = "kernel")]
            kernel_walk: false,
            #[cfg(feature = "kernel")]
            kernel_walk_again: false,
        }
    }

    /// The most bytes of memory that the store holds at any time, everything included; at least
    /// [`Options::MEMORY_MIN`]. How it is divided: [`Stats::memory`](crate::Stats). Most of it is I/O memory, so it is at
    /// most what the engine has left of [`Config::arena_bytes_max`](forebay::Config::arena_bytes_max) beside other open
    /// stores. Default: 256 MiB, or half of what the engine has left, if that is less.
    pub fn memory(mut self, bytes: u64) -> Options {
        self.memory = Some(bytes);
        self
    }

    /// The smallest budget that a store works with: 16 MiB.
    pub const MEMORY_MIN: u64 = 16 << 20;

    /// The budget of a store that is opened without [`memory`](Options::memory), where the engine has twice as much left:
    /// 256 MiB.
    pub const MEMORY_DEFAULT: u64 = 256 << 20;

    /// The most bytes of the cache for what stays there: inner levels of tables and filters. What is known of open
    /// tables stays in any case. With less there is more for blocks that come and go, which is better where few
    /// keys are asked for often. Default, and the most: fifteen sixteenths of the cache.
    pub fn pinned_bytes(mut self, bytes: u64) -> Options {
        self.pinned_bytes = Some(bytes);
        self
    }

    /// Whether threads that wait for a get ([`Get::wait`](crate::Get::wait)) walk down tables inside the kernel, from
    /// the first inner node that is not in memory to the leaf: one system call, no other thread, no wake-up. Off
    /// Linux, before Linux 7.1 and without CAP_BPF and CAP_PERFMON gets go the ordinary way instead, with the same
    /// answers, and [`Stats::kernel_fell_back`](crate::Stats::kernel_fell_back) counts them. Default: no.
    ///
    /// Each such thread has a session with the kernel from its first walk until it ends: some milliseconds to open,
    /// and 64 KiB, which count within the budget of each store that the thread walks in. Until then rings of io_uring's
    /// that the thread has besides share one worker thread of each kind. What these walks read has no class and goes
    /// past the engine's scheduler and its statistics.
    #[cfg(feature = "kernel")]
    pub fn kernel_walk(mut self, kernel_walk: bool) -> Options {
        self.kernel_walk = kernel_walk;
        self
    }

    /// For this crate's own tests: walks in the kernel as well where the cache is worth filling.
    #[cfg(all(feature = "kernel", feature = "_breakage"))]
    #[doc(hidden)]
    pub fn kernel_walk_again(mut self) -> Options {
        self.kernel_walk_again = true;
        self
    }

    /// Bytes after which the memory of recent writes is sealed and written to tables, from 16 KiB up to a
    /// third of its share of the budget, which bounds the longest record as well. Default: that third.
    pub fn memtable_bytes(mut self, bytes: u64) -> Options {
        self.memtable_bytes = Some(bytes);
        self
    }

    /// Bytes of one segment file of the log, a multiple of 4,096 from 64 KiB to 1 GiB. Default: about
    /// [`memtable_bytes`](Options::memtable_bytes), from 1 to 64 MiB.
    pub fn log_segment_bytes(mut self, bytes: u64) -> Options {
        self.log_segment_bytes = Some(bytes);
        self
    }

    /// Bytes of the reserve: a file in the store's directory that holds space and no data. When the file system is full it
    /// is given up, so that deletions can be written to tables and compacted, which gives space back; then it is
    /// allocated again. 0: none, and a full store may not get smaller by deletes. At most 1 TiB. Default: the share of
    /// memtables, one table and a segment of either log, at most 192 MiB (161 MiB with 256 MiB of memory, 8 MiB with 16);
    /// half or a quarter of it where there is less space when the store is opened. File systems without fallocate(2) have none.
    pub fn reserve_bytes(mut self, bytes: u64) -> Options {
        self.reserve_bytes = Some(bytes);
        self
    }

    /// The size that a table's leaves aim at: a multiple of 4,096 from 4 to 32 KiB. Default: 4 KiB.
    pub fn leaf_bytes(mut self, bytes: u32) -> Options {
        self.leaf_bytes = bytes;
        self
    }

    /// The shard that owns the store's log. Flushes to tables and compaction run on the next one, if the
    /// engine has several. Default: 0.
    pub fn shard(mut self, shard: usize) -> Options {
        self.shard = shard;
        self
    }

    /// The class of flushes to tables, which writers may come to wait for, and of the manifest. Default:
    /// [`Class::LOG`].
    pub fn class(mut self, class: Class) -> Options {
        self.class = class;
        self
    }

    /// The class of what can wait: compaction, removal of files. Default: [`Class::BACKGROUND`].
    pub fn background(mut self, class: Class) -> Options {
        self.background = class;
        self
    }

    /// Whether a directory without a store gets one, and is made where it does not exist. Default: yes.
    pub fn create(mut self, create: bool) -> Options {
        self.create = create;
        self
    }

    /// Opens a store whose log or manifest is damaged or shorter than it was, with what is left of it; see
    /// [`Recovery`](crate::Recovery). What the logs drop is copied aside first (`salvaged-*.wal`), and tables that the
    /// manifest does not name stay, as `*.fkv.kept`. Default: no, such a store is an error and nothing is changed.
    ///
    /// Deleted and overwritten values may come back: the records that did it may be among those that are lost.
    pub fn salvage(mut self, salvage: bool) -> Options {
        self.salvage = salvage;
        self
    }

    /// The number that tells this store's logs from any other's. Default: random. Tests that must repeat
    /// themselves set it.
    pub fn store_id(mut self, id: u64) -> Options {
        self.store_id = Some(id);
        self
    }

    /// Where the time comes from that values expire by, in seconds since 1970. Default: the system. Tests
    /// that must repeat themselves set it.
    pub fn clock(mut self, clock: fn() -> u64) -> Options {
        self.clock = clock;
        self
    }
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
