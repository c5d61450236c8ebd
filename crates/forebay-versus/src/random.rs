//! `random`: 4 KiB random reads in one thread at several depths, on the disk and on a zram device.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::forebay::{DriverChoice, Open};
use forebay_measure::cleanup::TempFile;
use forebay_report::page::columns::{CONTEXT_SWITCHES_PER_IO, CPU_US_PER_IO, IOPS};

use crate::peers::{
    bare, compio, forebay, glommio, monoio, std_threads, tokio_fs, tokio_spawn_blocking, tokio_uring,
    worker_ring,
};
use crate::prelude::*;
use crate::run::RATIO_TO_LIMIT;
use crate::zram::{self, Zram};
use crate::{fio, usage};

/// The block of a read, in bytes.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// The experiment.
pub(crate) static RANDOM: Versus = Versus { spec: &SPEC, targets: &TARGETS, plan, sample, title };

static SPEC: Spec = spec(
    "random",
    "Random 4 KiB reads in one thread at several depths, on the disk and on zram",
    &[
        Opt::count("depths", "Reads in flight at once", 4096).list().or("1,8,32,128"),
        Opt::word(
            "devices",
            "The disk under --dir, and ext4 on a zram device that the run adds (root)",
            &["disk", "zram"],
        )
        .list()
        .or("disk,zram"),
        Opt::count("repeats", "Interleaved repeats; the targets want eleven or more", 1000).or("11"),
        Opt::seconds("0.5", "0.5"),
        Opt::time("warm-up-seconds", "Seconds before that do not count", 0.0, 86_400.0).or("0.15"),
        Opt::count("file-mib", "Size of the test file on the disk, in MiB", 1 << 40).or("4096"),
        Opt::count("zram-mib", "Size of the test file on zram, in MiB; it takes that much memory", 1 << 40)
            .or("1024"),
        Opt::flag(
            "count-syscalls",
            "Also count system calls (root), in one more sample of each row, because counting takes time at every call",
        ),
    ],
    &[
        Way::direct("bare", "a loop on the io-uring crate that waits for one completion"),
        Way::direct("bare-again", "the same, for the A-A spread"),
        Way::direct(
            "bare-batched",
            "waits for a quarter of the reads in flight, at most 50 us once there is one",
        ),
        Way::direct("bare-worker-ring", "a ring for each worker of Tokio's multi-threaded runtime"),
        Way::direct("bare-worker-ring-again", "the same, for the A-A spread"),
        Way::direct("bare-worker-ring-current", "a ring for Tokio's current-thread runtime"),
        Way::direct("pread-threads", "a thread for each read in flight, pread"),
        Way::direct("pread-threads-again", "the same, for the A-A spread"),
        Way::direct("forebay-shard", "a task for each read in flight, on the shard"),
        Way::direct("forebay-tokio", "the same from tasks of Tokio's multi-threaded runtime"),
        Way::direct("forebay-tokio-current", "the same from its current-thread runtime"),
        Way::direct("forebay-tokio-aio", "as forebay-tokio, without io_uring: native AIO in the workers"),
        Way::direct("forebay-tokio-aio-current", "as forebay-tokio-current, without io_uring"),
        Way::direct("forebay-wait", "a plain thread for each read in flight, in .wait()"),
        Way::cached("forebay-wait-adaptive", "the same on a file opened adaptive"),
        Way::direct(
            "forebay-read-many",
            "batches of 20,000 ranges from Tokio, each as one read_many (depth 128 only)",
        ),
        Way::direct("glommio", "glommio 0.9: DmaFile::read_at_aligned"),
        Way::direct("compio", "compio 0.19: read_at with O_DIRECT"),
        Way::direct("monoio", "monoio 0.2: read_at with O_DIRECT"),
        Way::direct("tokio-uring", "tokio-uring 0.5: read_fixed_at with registered buffers"),
        Way::direct("tokio-spawn-blocking", "Tokio 1: pread in spawn_blocking, one call for each read"),
        Way::cached(
            "tokio-fs",
            "Tokio 1: tokio::fs through the page cache, which is emptied of the file before",
        ),
        Way::direct("fio", "fio's io_uring engine with fixed buffers and registered files"),
        Way::direct("fio-batched", "the same, which submits and reaps a quarter of the depth at once"),
    ],
    &[
        IOPS,
        RATIO_TO_LIMIT,
        column("ratio_to_better_loop", "to better loop", 1.0, "IOPS against the loop with the better median"),
        CPU_US_PER_IO,
        CONTEXT_SWITCHES_PER_IO,
        column("syscalls_per_io", "syscalls/IO", 1.0, "system calls for one read"),
        column("enters_per_turn", "enters/turn", 1.0, "system calls for one turn of the shard"),
        column("allocations_per_io", "allocs/IO", 1.0, "heap allocations for one read"),
        P50_US,
        P99_US,
    ],
    "ratio_to_limit",
);

const LOOPS: &[&str] = &["bare", "bare-batched"];

static TARGETS: Targets = Targets {
    ranked_by: "iops",
    ratios: &[
        Ratio { name: "ratio_to_limit", metric: "iops", beside: Beside::OverLargest(LOOPS) },
        Ratio { name: "ratio_to_better_loop", metric: "iops", beside: Beside::Over(LOOPS) },
    ],
    spreads: &[
        ("bare-again", "iops", "a_a_spread"),
        ("bare-again", "cpu_us_per_io", "a_a_spread_cpu"),
        ("bare-worker-ring-again", "iops", "a_a_spread"),
    ],
    limits: &[
        to_limit(0.98).when(on_disk),
        to_limit(0.95).when(|table| on_zram(table) && depth(table) == 1),
        to_limit(0.92).when(|table| on_zram(table) && matches!(depth(table), 8 | 128)),
        to_limit(0.93).when(|table| on_zram(table) && depth(table) == 32),
        Target::of("forebay-shard", "cpu_us_per_io")
            .over(LOOPS)
            .at_most(1.10)
            .within("bare-again")
            .when(on_disk),
        iops("forebay-shard", &["bare"], 1.10).when(|table| on_disk(table) && depth(table) == 32),
        iops("forebay-shard", &["glommio"], 1.0).when(on_zram),
        iops("forebay-shard", &["compio"], 1.0).when(on_zram),
        iops("forebay-shard", &["monoio"], 1.0).when(on_zram),
        iops("forebay-shard", &["tokio-uring"], 1.0).when(on_zram),
        iops("forebay-shard", &["fio"], 1.0).when(on_zram),
        iops("forebay-shard", &["fio-batched"], 1.0).when(on_zram),
        // A task's reads beside those of a ring that the worker itself fills. Where a device completes at once, the processor
        // time of the path shows best at low depth, and the rate at high depth.
        beside_ring("forebay-tokio", "iops", RING).at_least(0.95).when(on_disk),
        beside_ring("forebay-tokio", "iops", RING).at_least(0.90).when(is_deep_zram),
        beside_ring("forebay-tokio", "cpu_us_per_io", RING).at_most(1.10).when(on_disk),
        Target::of("forebay-tokio", "cpu_us_per_io").above(RING).at_most(0.7).when(is_shallow_zram),
        beside_ring("forebay-tokio-current", "iops", RING_CURRENT).at_least(0.95).when(on_disk),
        beside_ring("forebay-tokio-current", "iops", RING_CURRENT).at_least(0.90).when(is_deep_zram),
        beside_ring("forebay-tokio-current", "cpu_us_per_io", RING_CURRENT).at_most(1.10).when(on_disk),
        Target::of("forebay-tokio-current", "cpu_us_per_io")
            .above(RING_CURRENT)
            .at_most(0.7)
            .when(is_shallow_zram),
        cpu_beside_blocking("forebay-tokio"),
        cpu_beside_blocking("forebay-tokio-current"),
        iops("forebay-tokio", BLOCKING, 1.0).when(|table| depth(table) == 1),
        iops("forebay-tokio-current", BLOCKING, 1.0).when(|table| depth(table) == 1),
        iops("forebay-read-many", &["forebay-shard"], 0.97),
        // A batch may allocate its own result; a thousandth of an allocation a range is twenty for the whole batch.
        Target::of("forebay-read-many", "allocations_per_io").at_most(0.001),
        Target::of("forebay-shard", "enters_per_turn").at_most(1.0),
    ],
};

const RING: &[&str] = &["bare-worker-ring"];
const RING_CURRENT: &[&str] = &["bare-worker-ring-current"];
const BLOCKING: &[&str] = &["tokio-spawn-blocking"];

const fn iops(row: &'static str, others: &'static [&'static str], least: f64) -> Target {
    Target::of(row, "iops").over(others).at_least(least).within("bare-again")
}

const fn to_limit(least: f64) -> Target {
    Target::of("forebay-shard", "iops").over_largest(LOOPS).at_least(least).within("bare-again")
}

const fn beside_ring(row: &'static str, metric: &'static str, ring: &'static [&'static str]) -> Target {
    Target::of(row, metric).over(ring).within("bare-worker-ring-again")
}

const fn cpu_beside_blocking(row: &'static str) -> Target {
    let cpu = Target::of(row, "cpu_us_per_io").over(BLOCKING).at_most(0.4).within("bare-again");
    cpu.when(|table| depth(table) == 128)
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
    let (scratch, place) = run::scratch(context, SPEC.name, false)?;
    let mut devices = options.words("devices");
    if let Err(error) = zram::check()
        && devices.contains(&"zram")
    {
        ensure!(devices.len() > 1, error);
        context.progress.print_line(&format!("zram is left out: {error:#}"));
        devices.retain(|device| *device != "zram");
    }
    let mut settings = Vec::new();
    for device in devices {
        let mib = if device == "zram" { "zram-mib" } else { "file-mib" };
        settings.extend(options.counts("depths").into_iter().map(|depth| {
            parameters(json!({
                "device": device, "depth": depth, "block_bytes": BLOCK_BYTES,
                "file_bytes": run::file_bytes(options.count(mib)),
                "warm_up_seconds": options.number("warm-up-seconds"), "tokio_workers": cores(),
            }))
        }));
    }
    let has_fio = fio::is_available(options);
    let method = "Each sample is a process of its own with fresh offsets. Its time begins after a warm-up. Every task checks \
        its first read. Rows take turns within a repeat; ratios are those of the same repeat, and figures medians.";
    let mut run = Run::new(context, place, settings, method);
    run.has = Box::new(move |setting, row| {
        (row != "forebay-read-many" || setting.get("depth") == Some(&json!(128)))
            && (has_fio || !row.starts_with("fio"))
    });
    if options.given("count-syscalls") {
        run.syscall_event = Some(usage::syscall_event(&context.cleanup)?);
    }
    let mut made: Option<(String, TestFile)> = None;
    run.prepare = Box::new(move |turn, job| {
        let device = turn.text("device");
        if made.as_ref().is_none_or(|(of, _)| of != device) {
            made = None;
            let bytes = turn.number("file_bytes") as u64;
            let file = match device {
                "zram" => TestFile::on_zram(context, bytes)?,
                _ => TestFile::OnDisk(run::test_file(context, &scratch.directory, bytes)?),
            };
            made = Some((device.to_owned(), file));
        }
        if let Some((_, file)) = &made {
            job.path = file.path();
        }
        // Rows that look into the page cache start cold; everything else goes past it.
        if turn.way.cached {
            page_cache::evict(&job.path, false)?;
        }
        Ok(None)
    });
    Ok(run)
}

/// The test file of a device.
enum TestFile {
    OnDisk(TempFile),
    OnZram(Zram),
}

impl TestFile {
    /// Adds a zram device and makes the file there. It goes with the device, and nothing of this process holds it open: a
    /// signal could not unmount the device otherwise.
    fn on_zram(context: &Context, bytes: u64) -> Result<Self> {
        let made = Self::OnZram(Zram::add(bytes + bytes / 8 + (128 << 20), &context.cleanup)?);
        run::fill(context, &made.path(), bytes)?;
        Ok(made)
    }

    fn path(&self) -> PathBuf {
        match self {
            Self::OnDisk(file) => file.path().to_owned(),
            Self::OnZram(zram) => zram.path().join("data"),
        }
    }
}

/// The work of a sample of random reads.
#[derive(Clone, Debug)]
pub(crate) struct Reads {
    pub(crate) path: PathBuf,
    pub(crate) file_bytes: u64,
    /// Reads in flight.
    pub(crate) depth: usize,
    pub(crate) warm_up: Duration,
    pub(crate) measure: Duration,
    pub(crate) seed: u64,
}

/// The parameters that it needs.
#[derive(Debug, Deserialize)]
struct Work {
    file_bytes: u64,
    depth: usize,
    warm_up_seconds: f64,
}

impl Reads {
    /// Returns the window of time that counts, which begins to warm up now.
    pub(crate) fn window(&self) -> Arc<Window> {
        Window::start(self.warm_up, self.measure)
    }

    /// Returns the offsets of a task.
    pub(crate) fn offsets(&self, task: usize) -> Offsets {
        Offsets { rng: Rng::new(self.seed, task), file_bytes: self.file_bytes, is_first: true }
    }
}

/// The offsets of the reads of one task, and the check of the first of them.
#[derive(Debug)]
pub(crate) struct Offsets {
    rng: Rng,
    file_bytes: u64,
    is_first: bool,
}

impl Offsets {
    /// Returns the next offset, a multiple of the block.
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.rng.page_offset(self.file_bytes)
    }

    /// Checks the contents of the task's first block.
    #[inline]
    pub(crate) fn check(&mut self, got: &[u8], offset: u64) -> Result<()> {
        if std::mem::take(&mut self.is_first) {
            ensure!(got.len() == BLOCK_BYTES, "a read gave {} bytes", got.len());
            content::check_start(got, offset)?;
        }
        Ok(())
    }
}

/// Takes a sample.
fn sample(job: &Job) -> Result<Outcome> {
    let work: Work = job.work()?;
    let reads = &Reads {
        path: job.path.clone(),
        file_bytes: work.file_bytes / PAGE_BYTES * PAGE_BYTES,
        depth: work.depth,
        warm_up: Duration::from_secs_f64(work.warm_up_seconds),
        measure: Duration::from_secs_f64(job.seconds),
        seed: job.seed,
    };
    match without_again(&job.row) {
        "bare" => bare::random(reads, bare::Waiting::ForOne),
        "bare-batched" => bare::random(reads, bare::Waiting::ForSeveral),
        "bare-worker-ring" => worker_ring::random(reads, true),
        "bare-worker-ring-current" => worker_ring::random(reads, false),
        "pread-threads" => std_threads::random(reads),
        "forebay-shard" => forebay::random_on_shard(reads),
        "forebay-tokio" => forebay::random_from_tokio(reads, true, DriverChoice::Auto),
        "forebay-tokio-current" => forebay::random_from_tokio(reads, false, DriverChoice::Auto),
        "forebay-tokio-aio" => forebay::random_from_tokio(reads, true, DriverChoice::Threads),
        "forebay-tokio-aio-current" => forebay::random_from_tokio(reads, false, DriverChoice::Threads),
        "forebay-wait" => forebay::random_from_threads(reads, Open::read()),
        "forebay-wait-adaptive" => forebay::random_from_threads(reads, Open::read().adaptive()),
        "forebay-read-many" => forebay::random_read_many(reads),
        "glommio" => glommio::random(reads),
        "compio" => compio::random(reads),
        "monoio" => monoio::random(reads),
        "tokio-uring" => tokio_uring::random(reads),
        "tokio-spawn-blocking" => tokio_spawn_blocking::random(reads),
        "tokio-fs" => tokio_fs::random(reads),
        "fio" => run_fio(reads, false),
        "fio-batched" => run_fio(reads, true),
        other => Err(no_row(other)),
    }
}

fn run_fio(reads: &Reads, batched: bool) -> Result<Outcome> {
    let mut arguments = vec![
        "--rw=randread".to_owned(),
        format!("--bs={BLOCK_BYTES}"),
        format!("--iodepth={}", reads.depth),
        "--norandommap".to_owned(),
        format!("--randseed={}", reads.seed >> 22),
        "--time_based".to_owned(),
        "--lat_percentiles=1".to_owned(),
        "--clat_percentiles=0".to_owned(),
        format!("--runtime={}ms", reads.measure.as_millis()),
        format!("--ramp_time={}ms", reads.warm_up.as_millis()),
    ];
    if batched {
        let batch = (reads.depth / 4).max(1);
        arguments.push(format!("--iodepth_batch_submit={batch}"));
        arguments.push(format!("--iodepth_batch_complete_min={batch}"));
        arguments.push(format!("--iodepth_batch_complete_max={}", reads.depth));
    }
    Ok(fio::run(&reads.path, &arguments, false)?.random())
}

/// Opens the test file for direct reads.
///
/// # Errors
/// When it cannot be opened.
pub(crate) fn open_direct(path: &Path) -> Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    Ok(std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(path)?)
}
