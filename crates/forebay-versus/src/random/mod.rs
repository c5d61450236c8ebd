//! `random`: 4 KiB random reads in one thread at several depths, on the disk and on a zram device.

mod gates;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cell::Cell;
use crate::child::{self, Job};
use crate::cli::Common;
use crate::environment::cores;
use crate::report::{Document, Experiment};
use crate::sample::Sample;
use crate::test_file::TestFile;
use crate::zram::Zram;
use crate::{fio, page_cache, rng};

/// The block of a read, in bytes.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// All rows, in the order of the table.
pub(crate) const ROWS: &[&str] = &[
    "bare",
    "bare-again",
    "bare-batched",
    "bare-worker-ring",
    "bare-worker-ring-again",
    "bare-worker-ring-current",
    "pread-threads",
    "pread-threads-again",
    "forebay-shard",
    "forebay-tokio",
    "forebay-tokio-current",
    "forebay-tokio-aio",
    "forebay-tokio-aio-current",
    "forebay-wait",
    "forebay-wait-adaptive",
    "forebay-read-many",
    "glommio",
    "compio",
    "monoio",
    "tokio-uring",
    "tokio-spawn-blocking",
    "tokio-fs",
    "fio",
    "fio-batched",
];

const COLUMNS: &[(&str, &str, usize)] = &[
    ("iops", "IOPS", 0),
    ("ratio_to_limit", "to limit", 3),
    ("ratio_to_limit_min", "min", 3),
    ("ratio_to_limit_max", "max", 3),
    ("ratio_to_better_loop", "to better loop", 3),
    ("cpu_us_per_io", "CPU us/IO", 2),
    ("context_switches_per_io", "switches/IO", 3),
    ("syscalls_per_io", "syscalls/IO", 3),
    ("enters_per_turn", "enters/turn", 3),
    ("allocations_per_io", "allocs/IO", 4),
    ("p50_us", "p50 us", 1),
    ("p99_us", "p99 us", 1),
];

/// The device below the test file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// The disk under `--dir`.
    Disk,
    /// ext4 on a zram device that the run adds and removes (needs root).
    Zram,
}

/// Options of `random`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Depths: reads in flight at once.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32, 128])]
    depths: Vec<usize>,
    /// Devices.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Device::Disk, Device::Zram])]
    devices: Vec<Device>,
    /// Interleaved repeats; the gates want eleven or more.
    #[arg(long, default_value_t = 11)]
    repeats: usize,
    /// Measured seconds per sample.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Seconds before that do not count.
    #[arg(long, default_value_t = 0.15)]
    warm_up_seconds: f64,
    /// Size of the test file on the disk, in MiB.
    #[arg(long, default_value_t = 4096)]
    file_mib: u64,
    /// Size of the test file on zram, in MiB; it takes that much memory.
    #[arg(long, default_value_t = 1024)]
    zram_mib: u64,
    /// Also count system calls (root): a second, single sample of each row, because counting costs time at every call.
    #[arg(long)]
    count_syscalls: bool,
}

/// The measurement of a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RandomJob {
    /// The row's name.
    pub(crate) row: String,
    /// The test file and its length.
    pub(crate) path: PathBuf,
    pub(crate) file_bytes: u64,
    /// Reads in flight.
    pub(crate) depth: usize,
    pub(crate) warm_up: Duration,
    pub(crate) measure: Duration,
    /// Fresh for every sample.
    pub(crate) seed: u64,
}

/// Runs the experiment.
///
/// # Errors
/// When the test file or the device cannot be made, or when interrupted.
pub(crate) fn run(options: &Options) -> Result<usize> {
    let mut rows = options.common.choose(ROWS)?;
    if rows.iter().any(|row| row.starts_with("fio")) && !fio::available() {
        rows.retain(|row| !row.starts_with("fio"));
    }
    let syscall_event = options.count_syscalls.then(crate::syscalls::event_number).transpose()?;
    let mut document = Document::new();
    for device in &options.devices {
        let experiments = match device {
            Device::Disk => {
                let file = TestFile::create(&options.common.dir()?, options.file_mib << 20)?;
                measure_device(options, "disk", &file, &rows, syscall_event)?
            }
            Device::Zram => {
                let bytes = options.zram_mib << 20;
                match Zram::add(bytes + bytes / 8 + (128 << 20)) {
                    Ok(zram) => {
                        let file = TestFile::create(zram.path(), bytes)?;
                        measure_device(options, "zram", &file, &rows, syscall_event)?
                    }
                    Err(error) if options.devices.len() > 1 => {
                        eprintln!("zram is left out: {error:#}");
                        Vec::new()
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        for experiment in experiments {
            document.push(experiment);
            options.common.write_json(&document)?;
        }
    }
    document.summarise()
}

fn measure_device(
    options: &Options,
    device: &str,
    file: &TestFile,
    rows: &[&str],
    syscall_event: Option<u64>,
) -> Result<Vec<Experiment>> {
    options
        .depths
        .iter()
        .map(|depth| measure_cell(options, device, file, rows, *depth, syscall_event))
        .collect()
}

fn measure_cell(
    options: &Options,
    device: &str,
    file: &TestFile,
    rows: &[&str],
    depth: usize,
    syscall_event: Option<u64>,
) -> Result<Experiment> {
    let rows: Vec<&str> =
        rows.iter().copied().filter(|row| *row != "forebay-read-many" || depth == 128).collect();
    let label = format!("random, {device}, depth {depth}");
    let job = |row: &str| RandomJob {
        row: row.to_owned(),
        path: file.path().to_owned(),
        file_bytes: file.bytes(),
        depth,
        warm_up: Duration::from_secs_f64(options.warm_up_seconds),
        measure: Duration::from_secs_f64(options.seconds),
        seed: rng::fresh_seed(),
    };
    // Rows that look into the page cache start cold; everything else goes past it.
    let prepare = |row: &str| match row {
        "tokio-fs" | "forebay-wait-adaptive" => page_cache::evict(file.path(), false),
        _ => Ok(()),
    };
    let cell = Cell::run(&label, &rows, options.repeats, |row| {
        prepare(row)?;
        if row.starts_with("fio") { run_fio(&job(row)) } else { child::measure(&Job::Random(job(row)), None) }
    })?;
    let parameters = json!({
        "device": device,
        "depth": depth,
        "block_bytes": BLOCK_BYTES,
        "file_bytes": file.bytes(),
        "repeats": options.repeats,
        "seconds": options.seconds,
        "tokio_workers": cores(),
    });
    let parameters = parameters.as_object().cloned().unwrap_or_default();
    let mut experiment = Experiment::new("random", parameters, cell.rows());
    if syscall_event.is_some() {
        let counted = Cell::run(&format!("{label}, counting system calls"), &rows, 1, |row| {
            prepare(row)?;
            if row.starts_with("fio") {
                Ok(Sample::default())
            } else {
                child::measure(&Job::Random(job(row)), syscall_event)
            }
        })?;
        for row in &rows {
            if let Some(Some(value)) = counted.values(row, "syscalls_per_io").first() {
                experiment.set(row, "syscalls_per_io", *value);
            }
        }
    }
    gates::judge(&mut experiment, &cell, device, depth);
    let title = format!(
        "random {BLOCK_BYTES} B reads, {device}, depth {depth}: medians of {} x {} s, fresh seeds, Tokio with {} workers",
        options.repeats,
        options.seconds,
        cores()
    );
    experiment.print(&title, COLUMNS);
    Ok(experiment)
}

fn run_fio(job: &RandomJob) -> Result<Sample> {
    let mut arguments = vec![
        "--rw=randread".to_owned(),
        format!("--bs={BLOCK_BYTES}"),
        format!("--iodepth={}", job.depth),
        "--norandommap".to_owned(),
        format!("--randseed={}", job.seed >> 33),
        "--time_based".to_owned(),
        "--lat_percentiles=1".to_owned(),
        "--clat_percentiles=0".to_owned(),
        format!("--runtime={}ms", job.measure.as_millis()),
        format!("--ramp_time={}ms", job.warm_up.as_millis()),
    ];
    if job.row == "fio-batched" {
        let batch = (job.depth / 4).max(1);
        arguments.push(format!("--iodepth_batch_submit={batch}"));
        arguments.push(format!("--iodepth_batch_complete_min={batch}"));
        arguments.push(format!("--iodepth_batch_complete_max={}", job.depth));
    }
    Ok(fio::random_sample(&fio::run(&job.path, &arguments, fio::Buffers::Ordinary)?))
}

/// Opens the test file for direct reads.
///
/// # Errors
/// When it cannot be opened.
pub(crate) fn open_direct(path: &Path) -> Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    Ok(std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(path)?)
}
