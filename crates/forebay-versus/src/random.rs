//! `random`: 4 KiB random reads in one thread at several depths, on the disk and on a zram device.

use std::any::Any;

use ::forebay::{DriverChoice, Open};
use forebay_report::result::columns::{CONTEXT_SWITCHES_PER_IO, CPU_US_PER_IO, IOPS};

use crate::fio;
use crate::peers::runtimes::{compio, glommio, monoio, tokio_uring};
use crate::peers::{bare, blocking, forebay, worker_ring};
use crate::prelude::*;
use crate::run::RATIO_TO_LIMIT;
use crate::zram::{self, Zram};

/// The block of a read, in bytes.
pub(crate) const BLOCK_BYTES: usize = 4096;

const LOOPS: &[&str] = &["bare", "bare-batched"];
const RING: &[&str] = &["bare-worker-ring"];
const RING_CURRENT: &[&str] = &["bare-worker-ring-current"];
const BLOCKING: &[&str] = &["tokio-spawn-blocking"];

experiment! {
    RANDOM "random", "Random 4 KiB reads in one thread at several depths, on the disk and on zram",
        compared by "ratio_to_limit", per |_| "io";
    options {
        count("depths", "Reads in flight at once", 4096).list().or("1,8,32,128");
        word("devices", "The disk under --dir, and ext4 on a zram device that the run adds (root)", &["disk", "zram"])
            .list().or("disk,zram");
        count("repeats", "Interleaved repeats; the targets want eleven or more", 1000).or("11");
        seconds("0.5", "0.5");
        time("warm-up-seconds", "Seconds before that do not count", 0.0, 86_400.0).or("0.15");
        count("file-mib", "Size of the test file on the disk, in MiB", 1 << 40).or("4096");
        count("zram-mib", "Size of the test file on zram, in MiB; it takes that much memory", 1 << 40).or("1024");
        flag("count-syscalls",
            "Also count system calls (root), in one more sample of each row, because counting takes time at every call");
    }
    rows {
        direct "bare", "a loop on the io-uring crate that waits for one completion"
            => |reads| bare::random(reads, false), twin direct;
        direct "bare-batched", "waits for a quarter of the reads in flight, at most 50 us once there is one"
            => |reads| bare::random(reads, true);
        direct "bare-worker-ring", "a ring for each worker of Tokio's multi-threaded runtime"
            => |reads| worker_ring::random(reads, true), twin direct;
        direct "bare-worker-ring-current", "a ring for Tokio's current-thread runtime"
            => |reads| worker_ring::random(reads, false);
        direct "pread-threads", "a thread for each read in flight, pread" => blocking::random_pread, twin direct;
        direct "forebay-shard", "a task for each read in flight, on the shard" => forebay::random_on_shard;
        direct "forebay-tokio", "the same from tasks of Tokio's multi-threaded runtime"
            => |reads| forebay::random_from_tokio(reads, true, DriverChoice::Auto, Open::read());
        direct "forebay-tokio-current", "the same from its current-thread runtime"
            => |reads| forebay::random_from_tokio(reads, false, DriverChoice::Auto, Open::read());
        direct "forebay-tokio-aio", "as forebay-tokio, without io_uring: native AIO in the workers"
            => |reads| forebay::random_from_tokio(reads, true, DriverChoice::Threads, Open::read());
        direct "forebay-tokio-aio-current", "as forebay-tokio-current, without io_uring"
            => |reads| forebay::random_from_tokio(reads, false, DriverChoice::Threads, Open::read());
        direct "forebay-wait", "a plain thread for each read in flight, in .wait()"
            => |reads| forebay::random_from_threads(reads, Open::read());
        cached "forebay-wait-adaptive", "the same on a file opened adaptive"
            => |reads| forebay::random_from_threads(reads, Open::read().adaptive());
        direct "forebay-read-many", "batches of 20,000 ranges from Tokio, each as one read_many (depth 128 only)"
            => forebay::random_read_many;
        direct "glommio", "glommio 0.9: DmaFile::read_at_aligned" => glommio::random;
        direct "compio", "compio 0.19: read_at with O_DIRECT" => compio::random;
        direct "monoio", "monoio 0.2: read_at with O_DIRECT" => monoio::random;
        direct "tokio-uring", "tokio-uring 0.5: read_fixed_at with registered buffers" => tokio_uring::random;
        direct "tokio-spawn-blocking", "Tokio 1: pread in spawn_blocking, one call for each read"
            => blocking::random_spawn_blocking;
        cached "tokio-fs", "Tokio 1: tokio::fs through the page cache, which is emptied of the file before"
            => blocking::random_tokio_fs;
        direct "fio", "fio's io_uring engine with fixed buffers and registered files"
            => |reads| fio::random(reads, false);
        direct "fio-batched", "the same, which submits and reaps a quarter of the depth at once"
            => |reads| fio::random(reads, true);
    }
    columns {
        IOPS;
        RATIO_TO_LIMIT;
        "ratio_to_better_loop" "to better loop", "IOPS against the loop with the better median";
        CPU_US_PER_IO;
        CONTEXT_SWITCHES_PER_IO;
        "syscalls_per_io" "syscalls/IO", "system calls for one read";
        "enters_per_turn" "enters/turn", "system calls for one turn of the shard";
        "allocations_per_io" "allocs/IO", "heap allocations for one read";
        P50_US;
        P99_US;
    }
    ranked by "iops"
    ratios {
        "ratio_to_limit" "iops" OverLargest LOOPS;
        "ratio_to_better_loop" "iops" Over LOOPS;
    }
    spreads {
        "bare-again" "iops" "a_a_spread";
        "bare-again" "cpu_us_per_io" "a_a_spread_cpu";
        "bare-worker-ring-again" "iops" "a_a_spread";
    }
    limits {
        "forebay-shard" "iops" over_largest LOOPS, at_least 0.98, within "bare-again", when on_disk;
        "forebay-shard" "iops" over_largest LOOPS, at_least 0.95, within "bare-again",
            when |table| on_zram(table) && depth(table) == 1;
        "forebay-shard" "iops" over_largest LOOPS, at_least 0.92, within "bare-again",
            when |table| on_zram(table) && matches!(depth(table), 8 | 128);
        "forebay-shard" "iops" over_largest LOOPS, at_least 0.93, within "bare-again",
            when |table| on_zram(table) && depth(table) == 32;
        "forebay-shard" "cpu_us_per_io" over LOOPS, at_most 1.10, within "bare-again", when on_disk;
        "forebay-shard" "iops" over &["bare"], at_least 1.10, within "bare-again",
            when |table| on_disk(table) && depth(table) == 32;
        "forebay-shard" "iops" over &["glommio"], at_least 1.0, within "bare-again", when on_zram;
        "forebay-shard" "iops" over &["compio"], at_least 1.0, within "bare-again", when on_zram;
        "forebay-shard" "iops" over &["monoio"], at_least 1.0, within "bare-again", when on_zram;
        "forebay-shard" "iops" over &["tokio-uring"], at_least 1.0, within "bare-again", when on_zram;
        "forebay-shard" "iops" over &["fio"], at_least 1.0, within "bare-again", when on_zram;
        "forebay-shard" "iops" over &["fio-batched"], at_least 1.0, within "bare-again", when on_zram;
        // A task's reads compared with those of a ring that the worker itself fills. Where a device completes immediately, the
        // processor time of the path shows best at low depth, and the rate at high depth.
        "forebay-tokio" "iops" over RING, at_least 0.95, within "bare-worker-ring-again", when on_disk;
        "forebay-tokio" "iops" over RING, at_least 0.90, within "bare-worker-ring-again", when is_deep_zram;
        "forebay-tokio" "cpu_us_per_io" over RING, at_most 1.10, within "bare-worker-ring-again", when on_disk;
        "forebay-tokio" "cpu_us_per_io" above RING, at_most 0.7, when is_shallow_zram;
        "forebay-tokio-current" "iops" over RING_CURRENT, at_least 0.95, within "bare-worker-ring-again", when on_disk;
        "forebay-tokio-current" "iops" over RING_CURRENT, at_least 0.90, within "bare-worker-ring-again",
            when is_deep_zram;
        "forebay-tokio-current" "cpu_us_per_io" over RING_CURRENT, at_most 1.10, within "bare-worker-ring-again",
            when on_disk;
        "forebay-tokio-current" "cpu_us_per_io" above RING_CURRENT, at_most 0.7, when is_shallow_zram;
        "forebay-tokio" "cpu_us_per_io" over BLOCKING, at_most 0.4, within "bare-again",
            when |table| depth(table) == 128;
        "forebay-tokio-current" "cpu_us_per_io" over BLOCKING, at_most 0.4, within "bare-again",
            when |table| depth(table) == 128;
        "forebay-tokio" "iops" over BLOCKING, at_least 1.0, within "bare-again", when |table| depth(table) == 1;
        "forebay-tokio-current" "iops" over BLOCKING, at_least 1.0, within "bare-again",
            when |table| depth(table) == 1;
        "forebay-read-many" "iops" over &["forebay-shard"], at_least 0.97, within "bare-again";
        // A batch may allocate its own result; a thousandth of an allocation a range is twenty for the whole batch.
        "forebay-read-many" "allocations_per_io" at_most 0.001;
        "forebay-shard" "enters_per_turn" at_most 1.0;
    }
}

fn on_disk(table: &Table) -> bool {
    table.text("device") == "disk"
}

fn on_zram(table: &Table) -> bool {
    !on_disk(table)
}

fn is_deep_zram(table: &Table) -> bool {
    on_zram(table) && depth(table) >= 32
}

fn is_shallow_zram(table: &Table) -> bool {
    on_zram(table) && depth(table) < 32
}

fn depth(table: &Table) -> u64 {
    table.number("depth").unwrap_or(0.0) as u64
}

fn title(table: &Table) -> String {
    format!("Random reads of 4 KiB, {}, depth {}", table.text("device"), depth(table))
}

fn plan<'c>(options: &Values, context: &'c Context) -> Result<Run<'c>> {
    let method = "Each sample is a process of its own with fresh offsets. Its time begins after a warm-up. Every task checks \
        its first read. Rows take turns within a repeat; ratios are those of the same repeat, and figures medians.";
    let (mut run, scratch) = Run::in_directory(context, RANDOM.spec.name, false, method)?;
    let mut devices = options.words("devices");
    if let Err(error) = zram::check()
        && devices.contains(&"zram")
    {
        ensure!(devices.len() > 1, error);
        context.progress.print_line(&format!("zram is left out: {error:#}"));
        devices.retain(|device| *device != "zram");
    }
    let bytes =
        |device| run::file_bytes(options.count(if device == "zram" { "zram-mib" } else { "file-mib" }));
    for device in devices {
        for depth in options.counts("depths") {
            run.table(json!({
                "device": device, "depth": depth, "block_bytes": BLOCK_BYTES, "file_bytes": bytes(device),
                "warm_up_seconds": options.number("warm-up-seconds"), "tokio_workers": cores(),
            }));
        }
    }
    let has_fio = fio::is_available(options);
    run.has = Box::new(move |setting, row| {
        (row != "forebay-read-many" || setting.get("depth") == Some(&json!(128)))
            && (has_fio || !row.starts_with("fio"))
    });
    if options.given("count-syscalls") {
        run.count_syscalls()?;
    }
    let mut made: Option<(String, PathBuf, Box<dyn Any>)> = None;
    run.prepare = Box::new(move |turn, job| {
        let (device, bytes) = (turn.text("device"), turn.number("file_bytes") as u64);
        if made.as_ref().is_none_or(|(of, ..)| of != device) {
            // Before the next is made.
            made = None;
            let (path, held): (_, Box<dyn Any>) = if device == "zram" {
                let zram = Zram::add(bytes + bytes / 8 + (128 << 20), &context.cleanup)?;
                // It is removed with the device, and nothing of this process holds it open: a signal could not unmount the device
                // otherwise.
                let path = zram.path().join("data");
                run::fill(context, &path, bytes)?;
                (path, Box::new(zram))
            } else {
                let file = run::test_file(context, &scratch, bytes)?;
                (file.path().to_owned(), Box::new(file))
            };
            made = Some((device.to_owned(), path, held));
        }
        if let Some((_, path, _)) = &made {
            job.path.clone_from(path);
        }
        // Rows that look into the page cache start cold; all others bypass it.
        if turn.way.cached {
            files::evict(&job.path, false)?;
        }
        Ok(None)
    });
    Ok(run)
}

impl Work {
    /// Returns the offsets of a task.
    pub(crate) fn offsets(&self, task: usize) -> Offsets {
        let (rng, block_bytes) = (self.rng(task), self.block_bytes);
        // A block starts at any page from which it fits into the file.
        let file_bytes = self.file_bytes + PAGE_BYTES - (block_bytes as u64).next_multiple_of(PAGE_BYTES);
        Offsets { rng, file_bytes, block_bytes, is_first: true }
    }
}

/// The offsets of the reads of one task, and the check of the first of them.
pub(crate) struct Offsets {
    rng: SplitMix,
    file_bytes: u64,
    pub(crate) block_bytes: usize,
    is_first: bool,
}

impl Offsets {
    /// Returns the next offset, a multiple of a page.
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        page_offset(&mut self.rng, self.file_bytes)
    }

    /// Checks the contents of the task's first block.
    #[inline]
    pub(crate) fn check(&mut self, got: &[u8], offset: u64) -> Result<()> {
        if std::mem::take(&mut self.is_first) {
            ensure!(got.len() == self.block_bytes, "a read gave {} bytes", got.len());
            files::check_start(got, offset)?;
        }
        Ok(())
    }
}

/// Opens the test file for direct reads.
pub(crate) fn open_direct(path: &Path) -> Result<File> {
    Ok(File::options().read(true).custom_flags(libc::O_DIRECT).open(path)?)
}
