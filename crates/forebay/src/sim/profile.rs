//! What a simulated disk is like: how fast, how large, what it promises when the power goes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::base::error::{Error, Result};
use crate::sim::fault::Rule;

/// What a power cut leaves of writes that completed into the disk's volatile cache and were not flushed.
/// Bytes of buffered files that were not synced are in the machine's memory and are each there or not in
/// every mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lost {
    /// Everything that completed; only what was in flight may be missing.
    Nothing,
    /// All writes up to one point in the order in which they completed, none after it.
    Prefix,
    /// Each write is there or not on its own.
    #[default]
    Subset,
}

/// In which order changes of names become durable when nobody syncs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MetadataOrder {
    /// All changes of one disk in the order in which they were made, as with the journals of ext4 and XFS. A
    /// sync of a file or directory takes along everything up to the last change that touched it.
    #[default]
    Journal,
    /// No more than POSIX says: a directory's changes are durable when that directory was synced; before that
    /// each directory keeps a number of its own changes from the front, whatever the others keep.
    Posix,
}

/// A simulated disk with a file system on it. All figures can be set; the presets are where to begin.
///
/// Times and chances are whole numbers, and all randomness comes from the world's seed, so a profile behaves
/// the same on every machine.
///
/// ```
/// use forebay::sim::{Fault, Lost, Profile, Rule};
/// let log = Profile::nand().at("/log").lost(Lost::Prefix).fault(Rule::new(Fault::FlushError).nth(7));
/// let data = Profile::cloud().capacity(1 << 30);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "give it to World::disk"]
pub struct Profile {
    pub(crate) mount: PathBuf,
    pub(crate) sector: u32,
    pub(crate) memory_alignment: u32,
    pub(crate) offset_alignment: u32,
    pub(crate) read_ns: u64,
    pub(crate) write_ns: u64,
    pub(crate) flush_ns: u64,
    pub(crate) call_ns: u64,
    pub(crate) jitter_percent: u32,
    pub(crate) tail_ppm: u32,
    pub(crate) tail_factor: u32,
    pub(crate) parallelism: u32,
    pub(crate) queue_depth: u32,
    pub(crate) bytes_per_second: u64,
    pub(crate) iops: u64,
    pub(crate) burst: u64,
    pub(crate) max_request: u32,
    pub(crate) write_cache: u64,
    pub(crate) drain_bytes_per_second: u64,
    pub(crate) stall_every_ns: u64,
    pub(crate) stall_ns: u64,
    pub(crate) capacity: u64,
    pub(crate) lost: Lost,
    pub(crate) torn: bool,
    pub(crate) metadata: MetadataOrder,
    pub(crate) rules: Vec<Rule>,
}

impl Profile {
    /// Every operation takes a microsecond, nothing varies, nothing is limited, nothing fails. The write
    /// cache (64 MiB) is volatile all the same and a power cut takes any of it, so a missing sync shows.
    pub fn ideal() -> Profile {
        Profile {
            mount: PathBuf::from("/"),
            sector: 512,
            memory_alignment: 512,
            offset_alignment: 512,
            read_ns: 1_000,
            write_ns: 1_000,
            flush_ns: 1_000,
            call_ns: 1_000,
            jitter_percent: 0,
            tail_ppm: 0,
            tail_factor: 1,
            parallelism: 1024,
            queue_depth: 1024,
            bytes_per_second: 0,
            iops: 0,
            burst: 0,
            max_request: 0,
            write_cache: 64 << 20,
            drain_bytes_per_second: 0,
            stall_every_ns: 0,
            stall_ns: 0,
            capacity: 1 << 40,
            lost: Lost::Subset,
            torn: true,
            metadata: MetadataOrder::Journal,
            rules: Vec::new(),
        }
    }

    /// A solid-state drive for consumers: reads of 80 us, 32 at a time; writes of 15 us into a volatile cache
    /// of 64 MiB; flushes of 600 us; 3 GB/s; one operation in a thousand takes twenty times as long.
    pub fn nand() -> Profile {
        Profile {
            read_ns: 80_000,
            write_ns: 15_000,
            flush_ns: 600_000,
            call_ns: 5_000,
            jitter_percent: 50,
            tail_ppm: 1_000,
            tail_factor: 20,
            parallelism: 32,
            queue_depth: 1024,
            bytes_per_second: 3_000_000_000,
            max_request: 512 << 10,
            capacity: 1 << 40,
            ..Profile::ideal()
        }
    }

    /// 10 us for everything, 16 at a time, 2.5 GB/s, and no volatile cache: what completed is durable, and
    /// sectors of 4096 bytes are never torn (a write of several may be).
    pub fn optane() -> Profile {
        Profile {
            sector: 4096,
            offset_alignment: 4096,
            read_ns: 10_000,
            write_ns: 10_000,
            flush_ns: 2_000,
            call_ns: 5_000,
            jitter_percent: 20,
            tail_ppm: 100,
            tail_factor: 5,
            parallelism: 16,
            bytes_per_second: 2_500_000_000,
            max_request: 128 << 10,
            write_cache: 0,
            ..Profile::ideal()
        }
    }

    /// A network disk of a cloud: 0.6 ms, 3,000 operations a second with a burst of 600, 125 MB/s, no
    /// volatile cache.
    pub fn cloud() -> Profile {
        Profile {
            read_ns: 600_000,
            write_ns: 600_000,
            flush_ns: 600_000,
            call_ns: 5_000,
            jitter_percent: 50,
            tail_ppm: 2_000,
            tail_factor: 30,
            parallelism: 128,
            queue_depth: 128,
            bytes_per_second: 125_000_000,
            iops: 3_000,
            burst: 600,
            max_request: 256 << 10,
            write_cache: 0,
            ..Profile::ideal()
        }
    }

    /// Where its file system is mounted. Default: `/`.
    pub fn at(mut self, path: impl AsRef<Path>) -> Profile {
        self.mount = path.as_ref().to_path_buf();
        self
    }

    /// Bytes that are written whole or not at all: 512 or 4096. The alignment of offsets is raised where it
    /// is less.
    pub fn sector(mut self, bytes: u32) -> Profile {
        self.sector = bytes;
        self.offset_alignment = self.offset_alignment.max(bytes);
        self
    }

    /// What memory, and what offset and length of direct I/O must be multiples of, in bytes. Default: 512 for both, 4,096
    /// for offsets of [`optane`](Profile::optane), as such drives report it.
    ///
    /// More for memory than for offsets is nothing that drives have, and refuses the rest of an operation that came
    /// short at an offset between: it goes on where it stopped.
    pub fn alignment(mut self, memory: u32, offset: u32) -> Profile {
        self.memory_alignment = memory;
        self.offset_alignment = offset;
        self
    }

    /// How long a read, a write and a flush take when nothing is in the way, without the transfer of the
    /// bytes.
    pub fn latency(mut self, read: Duration, write: Duration, flush: Duration) -> Profile {
        (self.read_ns, self.write_ns, self.flush_ns) = (ns(read), ns(write), ns(flush));
        self
    }

    /// How long a call about names takes, without the syncs in it.
    pub fn call_latency(mut self, call: Duration) -> Profile {
        self.call_ns = ns(call);
        self
    }

    /// Each operation takes up to so many percent longer, drawn from the seed. 0 switches it off.
    pub fn jitter(mut self, percent: u32) -> Profile {
        self.jitter_percent = percent.min(10_000);
        self
    }

    /// So many operations in a million take `factor` times as long.
    pub fn tail(mut self, ppm: u32, factor: u32) -> Profile {
        (self.tail_ppm, self.tail_factor) = (ppm.min(1_000_000), factor);
        self
    }

    /// How many operations the disk works on at the same time.
    pub fn parallelism(mut self, operations: u32) -> Profile {
        self.parallelism = operations;
        self
    }

    /// How many operations the disk takes before more wait outside.
    pub fn queue_depth(mut self, operations: u32) -> Profile {
        self.queue_depth = operations;
        self
    }

    /// Bytes that it moves in a second, over all operations; 0 for no limit.
    pub fn bandwidth(mut self, bytes_per_second: u64) -> Profile {
        self.bytes_per_second = bytes_per_second;
        self
    }

    /// Operations a second over a longer time, of which `burst` may come at once; a rate of 0 for no limit.
    pub fn iops(mut self, rate: u64, burst: u64) -> Profile {
        (self.iops, self.burst) = (rate, burst);
        self
    }

    /// The longest request in bytes: longer ones are split and count as several; 0 for no limit.
    pub fn max_request(mut self, bytes: u32) -> Profile {
        self.max_request = bytes;
        self
    }

    /// Bytes of its volatile write cache. With 0 a write is durable when it completes.
    pub fn write_cache(mut self, bytes: u64) -> Profile {
        self.write_cache = bytes;
        self
    }

    /// How many bytes of its write cache a flush brings to the medium in a second, beside the time that every flush
    /// takes; 0 for no such time. Nothing is brought there before somebody flushes or the cache is full.
    pub fn drain(mut self, bytes_per_second: u64) -> Profile {
        self.drain_bytes_per_second = bytes_per_second;
        self
    }

    /// At the end of each `every` it begins nothing for `length`, as drives do that tidy up. A `length` of zero
    /// switches it off; one that is not less than `every` is no disk.
    pub fn stall(mut self, every: Duration, length: Duration) -> Profile {
        (self.stall_every_ns, self.stall_ns) = (ns(every), ns(length));
        self
    }

    /// Bytes of space for files, in blocks of 4096; `ENOSPC` when they are used up.
    pub fn capacity(mut self, bytes: u64) -> Profile {
        self.capacity = bytes;
        self
    }

    /// What a power cut leaves of writes that were not flushed. Default: [`Lost::Subset`].
    pub fn lost(mut self, lost: Lost) -> Profile {
        self.lost = lost;
        self
    }

    /// Whether a power cut may leave some sectors of a write and not others. Default: yes.
    pub fn torn(mut self, torn: bool) -> Profile {
        self.torn = torn;
        self
    }

    /// In which order names become durable. Default: [`MetadataOrder::Journal`].
    pub fn metadata_order(mut self, order: MetadataOrder) -> Profile {
        self.metadata = order;
        self
    }

    /// Adds a rule for what goes wrong. Rules are asked in the order in which they were added.
    pub fn fault(mut self, rule: Rule) -> Profile {
        self.rules.push(rule);
        self
    }

    /// Refuses what no disk could be.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::invalid("mount", what).with_path(&self.mount));
        if !matches!(self.sector, 512 | 4096) {
            return wrong("a sector has 512 or 4096 bytes");
        }
        if !self.memory_alignment.is_power_of_two() || !self.offset_alignment.is_power_of_two() {
            return wrong("alignments are powers of two");
        }
        if self.offset_alignment < self.sector {
            return wrong("offsets cannot be aligned to less than a sector");
        }
        if self.parallelism == 0 || self.queue_depth == 0 {
            return wrong("a disk works on at least one operation");
        }
        if self.max_request != 0 && self.max_request < self.offset_alignment {
            return wrong("the longest request is shorter than the alignment");
        }
        if self.stall_ns > 0 && self.stall_ns >= self.stall_every_ns {
            return wrong("a disk that always stalls does nothing");
        }
        Ok(())
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
