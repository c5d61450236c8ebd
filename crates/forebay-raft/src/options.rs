//! Options of a log.

use forebay_wal::{Lsn, Options};

/// Most bytes of entries in one group of the log; a longer entry is alone in its group.
const BATCH_BYTES_MAX: u64 = 1 << 20;

/// The settings of a [`RaftLog`](crate::RaftLog). Each has a default that suits a log on a local drive.
#[derive(Clone, Debug)]
#[must_use = "give it to RaftLog::open"]
pub struct LogOptions {
    wal: Options,
    segment_bytes: u64,
    tail_bytes_max: usize,
    pending_bytes_max: usize,
    pub(crate) read_bytes_max: usize,
}

impl LogOptions {
    /// Returns the default settings.
    pub fn new() -> LogOptions {
        LogOptions {
            wal: Options::new(),
            segment_bytes: 64 << 20,
            tail_bytes_max: 8 << 20,
            pending_bytes_max: 32 << 20,
            read_bytes_max: 1 << 20,
        }
    }

    /// Sets the length of a segment file in bytes, a multiple of 4,096 from 64 KiB to 1 GiB. A purge frees whole segments for
    /// reuse. An entry must fit into a segment. Default: 64 MiB.
    pub fn segment_bytes(mut self, bytes: u64) -> LogOptions {
        self.segment_bytes = bytes;
        self
    }

    /// Sets how many bytes of the newest durable entries stay in memory, encoded, so that replication reads them without
    /// a system call. Entries that are not durable yet are in memory in any case. Default: 8 MiB.
    pub fn tail_bytes_max(mut self, bytes: usize) -> LogOptions {
        self.tail_bytes_max = bytes;
        self
    }

    /// Sets the most bytes of entries that wait to be written. Above it `append` waits, and openraft's loop with it, so
    /// memory does not grow without bound on a disk that is slower than the program. Default: 32 MiB.
    pub fn pending_bytes_max(mut self, bytes: usize) -> LogOptions {
        self.pending_bytes_max = bytes;
        self
    }

    /// Sets the most bytes of entries that one read of a stream, or of openraft's limited read, decodes at a time; always at
    /// least one entry. Default: 1 MiB.
    pub fn read_bytes_max(mut self, bytes: usize) -> LogOptions {
        self.read_bytes_max = bytes;
        self
    }

    /// Sets everything else: the shard, the I/O class, the way to flush. The settings above replace theirs, and the first
    /// record always has number 0.
    pub fn wal(mut self, options: Options) -> LogOptions {
        self.wal = options;
        self
    }

    /// Returns the most bytes of a batch: all of one must fit into a segment.
    pub(crate) fn batch_bytes_max(&self) -> usize {
        BATCH_BYTES_MAX.min(self.segment_bytes / 4).try_into().unwrap_or(usize::MAX)
    }

    pub(crate) fn into_wal(self) -> Options {
        self.wal
            .segment_bytes(self.segment_bytes)
            .recent_bytes(self.tail_bytes_max)
            .pending_bytes_max(self.pending_bytes_max)
            .first_lsn(Lsn(0))
    }
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions::new()
    }
}
