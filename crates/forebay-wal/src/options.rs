//! Options that a program may choose when it opens a log.

use std::time::Duration;

use forebay::{Class, Durability, Flush};

use crate::lsn::Lsn;

/// The preparation of a new segment, before its first group. For tests and measurements.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fill {
    /// [`Zeros`](Fill::Zeros) while the mean group is shorter than 32 KiB, and [`Allocated`](Fill::Allocated) above, from the third
    /// segment on that is made after the log was opened: a log that is truncated soon reuses its first segments.
    #[default]
    ByGroup,
    /// Fills the segment with zeros. The device writes each byte twice, and the flush of a group then changes no
    /// metadata of the file: the shortest wait for short groups.
    Zeros,
    /// Allocates the space and writes nothing. The flush of each group also makes the file system record that the group's
    /// blocks hold data, a few blocks in its journal: the fewest bytes for long groups. A file system without `fallocate` gets
    /// zeros.
    Allocated,
}

/// Mean bytes of a group from which [`Fill::Allocated`] writes less and is faster. docs/performance.md has the figures.
const ALLOCATED_GROUP_BYTES: u64 = 32 << 10;

impl Fill {
    /// Returns the preparation that suits groups of this mean length.
    pub(crate) fn for_groups_of(self, bytes: u64) -> Fill {
        match self {
            Fill::ByGroup if bytes >= ALLOCATED_GROUP_BYTES => Fill::Allocated,
            Fill::ByGroup => Fill::Zeros,
            fixed => fixed,
        }
    }
}

/// The settings of a log. Every setting has a default that suits a log on a local drive.
///
/// ```
/// # use forebay::{Config, Engine};
/// # use forebay_wal::{Options, Wal};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let engine = Engine::start(Config::new())?;
/// let options = Options::new()
///     .segment_bytes(8 << 20) // files of 8 MiB
///     .pending_bytes_max(1 << 20) // appends wait above 1 MiB
///     .record_bytes_max(64 << 10);
/// let (wal, _) = Wal::open(&engine, dir.path(), options).wait()?;
/// # wal.close().wait()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "give it to Wal::open"]
pub struct Options {
    pub(crate) segment_bytes: u64,
    pub(crate) record_bytes_max: usize,
    pub(crate) pending_bytes_max: usize,
    pub(crate) group_bytes_max: usize,
    pub(crate) mark_after: Duration,
    pub(crate) durability: Durability,
    pub(crate) flush: Option<Flush>,
    pub(crate) try_every: u32,
    pub(crate) fill: Fill,
    pub(crate) class: Class,
    pub(crate) shard: usize,
    pub(crate) own_thread: bool,
    pub(crate) salvage: bool,
    pub(crate) create: bool,
    pub(crate) read_only: bool,
    pub(crate) log_id: Option<u128>,
    pub(crate) first_lsn: Lsn,
    pub(crate) recent_bytes: usize,
}

impl Options {
    /// Returns the default settings.
    pub fn new() -> Options {
        Options {
            segment_bytes: 64 << 20,
            record_bytes_max: 16 << 20,
            pending_bytes_max: 32 << 20,
            group_bytes_max: 1 << 20,
            mark_after: Duration::from_millis(2),
            durability: Durability::Data,
            flush: None,
            try_every: 1_000,
            fill: Fill::ByGroup,
            class: Class::LOG,
            shard: 0,
            own_thread: true,
            salvage: false,
            create: true,
            read_only: false,
            log_id: None,
            first_lsn: Lsn(1),
            recent_bytes: 1 << 20,
        }
    }

    /// Sets the length of a segment file in bytes, a multiple of 4,096 from 64 KiB to 1 GiB. Each segment with live records has a
    /// descriptor. Default: 64 MiB.
    pub fn segment_bytes(mut self, bytes: u64) -> Options {
        self.segment_bytes = bytes;
        self
    }

    /// Sets the maximum length of a record, in bytes; the limit is lower if such a record does not fit into a segment with a
    /// group's header. Default: 16 MiB.
    pub fn record_bytes_max(mut self, bytes: usize) -> Options {
        self.record_bytes_max = bytes;
        self
    }

    /// Sets the maximum bytes of records that wait to be written; above it appends wait. Default: 32 MiB.
    pub fn pending_bytes_max(mut self, bytes: usize) -> Options {
        self.pending_bytes_max = bytes;
        self
    }

    /// Sets the maximum bytes of a group, which is one write; a single longer record makes a longer group.
    /// Default: 1 MiB. For the store.
    #[doc(hidden)]
    pub fn group_bytes_max(mut self, bytes: usize) -> Options {
        self.group_bytes_max = bytes;
        self
    }

    /// Sets the delay after the last group until a group without records marks it as durable. Default: 2 ms. For tests.
    #[doc(hidden)]
    pub fn mark_after(mut self, time: Duration) -> Options {
        self.mark_after = time;
        self
    }

    /// Sets the flush after each group. [`Durability::None`] would void every promise of this crate and is
    /// rejected. Default: [`Durability::Data`]. For tests.
    #[doc(hidden)]
    pub fn durability(mut self, durability: Durability) -> Options {
        self.durability = durability;
        self
    }

    /// Sets how a group is made durable: by a write and a flush, or by one call with `RWF_DSYNC`. Default: the log learns which is
    /// faster on its drive ([`Stats::way`](crate::Stats::way)). It starts as with [`Flush::WhenAlone`], and at most one group in
    /// 1,000 uses the other way.
    ///
    /// A log with [its own thread](Self::own_thread) blocks that thread either way: [`Flush::Queued`] is a write and a flush there,
    /// the other values are one call.
    ///
    /// For a log on its shard, [`Flush::Blocking`] makes the shard's thread write each group durably in one system call. No
    /// kernel worker is involved, which saves two context switches per group, but nothing else on that shard progresses
    /// meanwhile. Choose it for a log with a dedicated [shard](Self::shard). [`Flush::WhenAlone`] does the same while the shard
    /// has nothing else in flight, and uses [`Flush::Queued`] with other operations in flight. Choose [`Flush::Queued`] if a
    /// later operation must never wait for a flush. `forebay doctor` measures both ways on the disk.
    pub fn flush(mut self, flush: Flush) -> Options {
        self.flush = Some(flush);
        self
    }

    /// Sets after how many groups the log tries the other way to make a group durable. Default: 1,000. For tests.
    #[doc(hidden)]
    pub fn try_every(mut self, groups: u32) -> Options {
        self.try_every = groups;
        self
    }

    /// Sets the preparation of new segments. Default: [`Fill::ByGroup`].
    ///
    /// It matters while a log grows: a log that is truncated uses old segments again, which need no preparation.
    #[doc(hidden)]
    pub fn fill(mut self, fill: Fill) -> Options {
        self.fill = fill;
        self
    }

    /// Sets the class of the log's task and its operations. Default: [`Class::LOG`].
    pub fn class(mut self, class: Class) -> Options {
        self.class = class;
        self
    }

    /// Sets the shard that owns the log. Default: 0.
    pub fn shard(mut self, shard: usize) -> Options {
        self.shard = shard;
        self
    }

    /// Sets whether a dedicated thread writes and flushes the log's groups. Default: yes.
    ///
    /// A flush then never waits for a task of a shard or a runtime, wherever appenders run, and its system call blocks no task.
    /// The rest of the log's work stays on its [shard](Self::shard). Without it a task on that shard does everything: one change
    /// of threads less for a program whose tasks on that shard append one record at a time, and the shard's
    /// [priority](forebay::Config::priority) holds for the log. The shard is also used in a simulated world, with
    /// [`Config::wait_calls`](forebay::Config::wait_calls) off, with a raised priority, and if the system has no thread.
    pub fn own_thread(mut self, own_thread: bool) -> Options {
        self.own_thread = own_thread;
        self
    }

    /// Sets whether to open a damaged log with the records that are left. Dropped data is copied aside first
    /// (`salvaged-*.wal`). Default: no, a damaged log is an error and nothing is changed.
    pub fn salvage(mut self, salvage: bool) -> Options {
        self.salvage = salvage;
        self
    }

    /// Sets whether to create a log in an empty directory, and the directory itself if it is missing. Default: yes. A directory
    /// that holds something else and no log is refused in any case.
    pub fn create(mut self, create: bool) -> Options {
        self.create = create;
        self
    }

    /// Sets whether the log is opened read-only. The open then creates and changes no file, and holds the log's lock shared; the
    /// records are read from where they are. Calls that change the log fail with
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput). Default: no. For our crates.
    #[doc(hidden)]
    pub fn read_only(mut self, read_only: bool) -> Options {
        self.read_only = read_only;
        self
    }

    /// Sets the LSN of a new log's first record, such as 0; an existing log keeps its numbers. At most `u64::MAX - 1`. Default: 1.
    ///
    /// [`Wal::next_lsn`](crate::Wal::next_lsn) distinguishes an empty log from a log with one record when the first LSN is 0.
    pub fn first_lsn(mut self, lsn: Lsn) -> Options {
        self.first_lsn = lsn;
        self
    }

    /// Sets how many bytes of the records written last stay in memory, for [`Wal::read`](crate::Wal::read). Default:
    /// 1 MiB. With 0, records are in memory only until they are durable.
    ///
    /// Each group is charged for the I/O memory that it pins: its records, in whole units of 4,096 bytes or more. Short groups are
    /// copied to a buffer of their size, long groups pin the memory from which they were written; a group longer than this is not
    /// kept.
    pub fn recent_bytes(mut self, bytes: usize) -> Options {
        self.recent_bytes = bytes;
        self
    }

    /// Sets the number that distinguishes this log's segments from any other's. Default: random. Tests that
    /// must be reproducible set it.
    #[doc(hidden)]
    pub fn log_id(mut self, id: u128) -> Options {
        self.log_id = Some(id);
        self
    }
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}
