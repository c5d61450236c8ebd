//! The properties of a simulated disk: its speed, its size, and its guarantees for a power cut.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::internal::ErrorExt;
use forebay::{Error, Result};

use crate::fault::Rule;

/// The fate, in a power cut, of writes that completed into the disk's volatile cache and were not flushed.
/// Bytes of buffered files that were not synced are in the machine's memory; in every mode each of them
/// survives or not on its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// Every completed write survives. Only writes in flight may be missing.
    Nothing,
    /// All writes up to one point in the order in which they completed.
    Prefix,
    /// Each write survives or not on its own.
    #[default]
    Subset,
}

/// The order in which changes of names become durable without a sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MetadataOrder {
    /// All changes of one disk in the order in which they were made, as with the journals of ext4 and XFS. A
    /// sync of a file or directory also makes everything durable up to the last change that touched it.
    #[default]
    Journal,
    /// No more than POSIX guarantees: a directory's changes are durable when that directory was synced. Before that each directory
    /// keeps a prefix of its changes, independently of the others.
    Posix,
}

/// A simulated disk with a file system on it. All figures can be set; the presets are a starting point.
///
/// Times and chances are whole numbers, and the world's seed determines all randomness, so a profile behaves the same on every
/// machine.
///
/// ```
/// use forebay_sim::{Fault, Loss, Profile, Rule};
/// let log = Profile::nand().at("/log").lost(Loss::Prefix).fault(Rule::new(Fault::FlushError).nth(7));
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
    /// A write with FUA, of a disk that has it.
    pub(crate) fua_ns: Option<u64>,
    /// Times of the world, and the durations of a flush and of a write with FUA from each on.
    pub(crate) durable_from: Vec<(u64, u64, u64)>,
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
    pub(crate) write_zeros: bool,
    pub(crate) lost: Loss,
    pub(crate) torn: bool,
    pub(crate) metadata: MetadataOrder,
    pub(crate) rules: Vec<Rule>,
}

impl Profile {
    /// Returns a disk without limits: every operation takes a microsecond, nothing varies, nothing fails. The write cache (64 MiB)
    /// is still volatile. A power cut loses any part of it, so that a missing sync shows.
    pub fn ideal() -> Profile {
        Profile {
            mount: PathBuf::from("/"),
            sector: 512,
            memory_alignment: 512,
            offset_alignment: 512,
            read_ns: 1_000,
            write_ns: 1_000,
            flush_ns: 1_000,
            fua_ns: None,
            durable_from: Vec::new(),
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
            write_zeros: false,
            lost: Loss::Subset,
            torn: true,
            metadata: MetadataOrder::Journal,
            rules: Vec::new(),
        }
    }

    /// Returns a solid-state drive for consumers: reads of 80 us, 32 at a time; writes of 15 us into a
    /// volatile cache of 64 MiB; flushes of 600 us; 3 GB/s; one operation in a thousand takes twenty times as
    /// long.
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

    /// Returns a drive with 10 us a read or write, 16 at a time, 2.5 GB/s, and no volatile cache: a completed write is durable,
    /// and sectors of 4096 bytes are never torn (a write of several may be). A flush takes 2 us.
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

    /// Returns a network disk of a cloud: 0.6 ms, 3,000 operations a second with a burst of 600, 125 MB/s, no
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

    /// Sets the directory where its file system is mounted. Default: `/`.
    pub fn at(mut self, path: impl AsRef<Path>) -> Profile {
        self.mount = path.as_ref().to_path_buf();
        self
    }

    /// Sets the number of bytes that are written atomically: 512 or 4096. The alignment of offsets
    /// is raised where it is less.
    pub fn sector(mut self, bytes: u32) -> Profile {
        self.sector = bytes;
        self.offset_alignment = self.offset_alignment.max(bytes);
        self
    }

    /// Sets the alignment of direct I/O in bytes: for memory, and for offset and length. Default: 512 for
    /// both, 4,096 for offsets of [`optane`](Profile::optane), as such drives report it.
    ///
    /// No real drive has a greater alignment for memory than for offsets. Such a setting refuses the rest of an operation that was
    /// cut short at an offset between the two, because the rest starts where the operation stopped.
    pub fn alignment(mut self, memory: u32, offset: u32) -> Profile {
        self.memory_alignment = memory;
        self.offset_alignment = offset;
        self
    }

    /// Sets the durations of a read, a write and a flush on an idle disk, without the transfer of the bytes.
    pub fn latency(mut self, read: Duration, write: Duration, flush: Duration) -> Profile {
        (self.read_ns, self.write_ns, self.flush_ns) = (ns(read), ns(write), ns(flush));
        self
    }

    /// Gives the disk FUA, and sets the duration of such a write on an idle disk, without the transfer of the bytes. A durable
    /// write by [`Flush::Blocking`](forebay::Flush::Blocking) to a direct file, within its length, is then one operation that
    /// brings its own sectors to the medium, and nothing else: no earlier write, no length, no name. Default: without FUA, such a
    /// write is a write and a flush.
    pub fn fua(mut self, write: Duration) -> Profile {
        self.fua_ns = Some(ns(write));
        self
    }

    /// Changes the durations of a flush and of a write with FUA, from `time` of the world on. Of several changes that are due,
    /// the last one added applies.
    pub fn durable_from(mut self, time: Duration, flush: Duration, fua: Duration) -> Profile {
        self.durable_from.push((ns(time), ns(flush), ns(fua)));
        self
    }

    /// Returns the durations of a flush and of a write with FUA at a time of the world.
    pub(crate) fn durable_ns(&self, now_ns: u64) -> (u64, u64) {
        let changed = self.durable_from.iter().rev().find(|(from_ns, ..)| *from_ns <= now_ns);
        let first = (self.flush_ns, self.fua_ns.unwrap_or(self.write_ns));
        changed.map_or(first, |(_, flush_ns, fua_ns)| (*flush_ns, *fua_ns))
    }

    /// Sets the duration of a call about names, without the syncs in it.
    pub fn call_latency(mut self, call: Duration) -> Profile {
        self.call_ns = ns(call);
        self
    }

    /// Makes each operation take up to `percent` longer, drawn from the seed. 0 switches it off.
    pub fn jitter(mut self, percent: u32) -> Profile {
        self.jitter_percent = percent.min(10_000);
        self
    }

    /// Makes `ppm` operations in a million take `factor` times as long.
    pub fn tail(mut self, ppm: u32, factor: u32) -> Profile {
        (self.tail_ppm, self.tail_factor) = (ppm.min(1_000_000), factor);
        self
    }

    /// Sets the number of operations that the disk works on at the same time.
    pub fn parallelism(mut self, operations: u32) -> Profile {
        self.parallelism = operations;
        self
    }

    /// Sets the number of operations that the disk accepts before more wait outside.
    pub fn queue_depth(mut self, operations: u32) -> Profile {
        self.queue_depth = operations;
        self
    }

    /// Sets the bytes that the disk moves in a second, over all operations; 0 for no limit.
    pub fn bandwidth(mut self, bytes_per_second: u64) -> Profile {
        self.bytes_per_second = bytes_per_second;
        self
    }

    /// Sets the long-term rate in operations a second, with bursts of `burst`; a rate of 0 for no limit.
    pub fn iops(mut self, rate: u64, burst: u64) -> Profile {
        (self.iops, self.burst) = (rate, burst);
        self
    }

    /// Sets the longest request in bytes. Longer requests are split and count as several; 0 for no limit.
    pub fn max_request(mut self, bytes: u32) -> Profile {
        self.max_request = bytes;
        self
    }

    /// Sets the bytes of the volatile write cache. With 0 a write is durable when it completes.
    pub fn write_cache(mut self, bytes: u64) -> Profile {
        self.write_cache = bytes;
        self
    }

    /// Sets the bytes of the write cache that a flush brings to the medium in a second. This time is in addition to the time of
    /// every flush; 0 for none. Nothing reaches the medium before a flush or a full cache.
    pub fn drain(mut self, bytes_per_second: u64) -> Profile {
        self.drain_bytes_per_second = bytes_per_second;
        self
    }

    /// Makes the disk start no operation for `length` at the end of each `every`, as drives in garbage collection do. A `length` of
    /// zero switches it off; a `length` not less than `every` is refused as impossible.
    pub fn stall(mut self, every: Duration, length: Duration) -> Profile {
        (self.stall_every_ns, self.stall_ns) = (ns(every), ns(length));
        self
    }

    /// Sets the bytes of space for files, in blocks of 4096; `ENOSPC` when they are used up.
    pub fn capacity(mut self, bytes: u64) -> Profile {
        self.capacity = bytes;
        self
    }

    /// Sets whether kernel, file system and disk support [`File::write_zeros`](forebay::File::write_zeros). Default: no; the call
    /// fails with `EOPNOTSUPP`.
    pub fn write_zeros(mut self, has: bool) -> Profile {
        self.write_zeros = has;
        self
    }

    /// Sets the fate of unflushed writes in a power cut. Default: [`Loss::Subset`].
    pub fn lost(mut self, lost: Loss) -> Profile {
        self.lost = lost;
        self
    }

    /// Sets whether a power cut may leave some sectors of a write and not others. Default: yes.
    pub fn torn(mut self, torn: bool) -> Profile {
        self.torn = torn;
        self
    }

    /// Sets the order in which names become durable. Default: [`MetadataOrder::Journal`].
    pub fn metadata_order(mut self, order: MetadataOrder) -> Profile {
        self.metadata = order;
        self
    }

    /// Adds a rule for faults. Rules apply in the order in which they were added.
    pub fn fault(mut self, rule: Rule) -> Profile {
        self.rules.push(rule);
        self
    }

    /// Rejects profiles that no disk could have.
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
