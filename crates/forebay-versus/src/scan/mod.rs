//! `scan`: one sequential pass over a file that does not fit into the memory that a row may use.

mod buffered;
mod gates;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cell::Cell;
use crate::child::{self, Job};
use crate::cli::Common;
use crate::content::Checksum;
use crate::memory::{self, PageKind};
use crate::memory_limit::{self, MemoryLimit};
use crate::peers::{bare, compio, forebay, glommio, monoio, std_threads, tokio_fs, tokio_uring};
use crate::report::{Document, Experiment};
use crate::sample::Sample;
use crate::test_file::TestFile;
use crate::usage::{self, Usage};
use crate::{fio, page_cache};

/// The block of the "large" rows, in bytes.
pub(crate) const BLOCK_LARGE_BYTES: usize = 512 << 10;

/// The reads in flight of the "large" rows.
pub(crate) const DEPTH_LARGE: usize = 5;

/// All rows, in the order of the table.
pub(crate) const ROWS: &[&str] = &[
    "bare-512k-x8",
    "bare-512k-x8-again",
    "bare-512k-x5",
    "bare-1m-x8",
    "bare-256k-x16",
    "bare-512k-x20",
    "bare-512k-x8-4k-pages",
    "forebay-default",
    "forebay-large",
    "forebay-adaptive",
    "forebay-buffered",
    "forebay-default-tokio",
    "forebay-large-tokio",
    "glommio",
    "compio",
    "monoio",
    "tokio-uring",
    "std-threads",
    "fio",
    "fio-hugepages",
    "std-fs-128k",
    "tokio-fs-128k",
    "mmap",
    "dontcache-1m",
];

const COLUMNS: &[(&str, &str, usize)] = &[
    ("mb_per_s", "MB/s", 0),
    ("mb_per_s_min", "min", 0),
    ("mb_per_s_max", "max", 0),
    ("ratio_to_limit", "to limit", 3),
    ("ratio_to_limit_min", "min", 3),
    ("ratio_to_limit_max", "max", 3),
    ("cpu_s_per_gb", "CPU s/GB", 3),
    ("buffers_peak_bytes", "buffers MiB", 1),
    ("resident_peak_bytes", "resident MiB", 0),
    ("memory_peak_bytes", "with cache MiB", 0),
    ("loaded_share", "loaded", 3),
    ("hot_kept_share", "hot set kept", 3),
];

/// Options of `scan`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Size of the test file, in MiB.
    #[arg(long, default_value_t = 3072)]
    file_mib: u64,
    /// Memory that each row may use, page cache included, in MiB (needs root; 0: no limit).
    #[arg(long, default_value_t = 1024)]
    memory_mib: u64,
    /// Size of another program's hot file, in MiB, which is in the page cache under the same limit; 0 for none.
    #[arg(long, default_value_t = 0)]
    hot_mib: u64,
    /// Interleaved processes per row; the gates want five or more.
    #[arg(long, default_value_t = 5)]
    repeats: usize,
}

/// The measurement of a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ScanJob {
    pub(crate) row: String,
    pub(crate) path: PathBuf,
    pub(crate) file_bytes: u64,
    /// The cgroup to enter first.
    pub(crate) cgroup: Option<PathBuf>,
    /// The hot file.
    pub(crate) hot: Option<PathBuf>,
}

impl ScanJob {
    /// Returns the start of the pass: before the file is opened and memory is made.
    pub(crate) fn begin(&self) -> (Instant, Usage) {
        (Instant::now(), Usage::now())
    }

    /// Returns the sample of a pass, when the whole file was read.
    ///
    /// # Errors
    /// When it was not.
    pub(crate) fn finish(&self, begun: (Instant, Usage), checksum: &Checksum) -> Result<Sample> {
        let seconds = begun.0.elapsed().as_secs_f64();
        let used = Usage::now().since(&begun.1);
        checksum.check(self.file_bytes)?;
        let gb = self.file_bytes as f64 / 1e9;
        let mut sample = Sample::default();
        sample.set("mb_per_s", gb * 1e3 / seconds);
        sample.set("cpu_s_per_gb", used.cpu_ns as f64 / 1e9 / gb);
        sample.set("context_switches_per_gb", used.context_switches as f64 / gb);
        Ok(sample)
    }
}

/// Runs the experiment.
///
/// # Errors
/// When the test file cannot be made, or when interrupted.
pub(crate) fn run(options: &Options) -> Result<usize> {
    let mut rows = options.common.choose(ROWS)?;
    if rows.iter().any(|row| row.starts_with("fio")) && !fio::available() {
        rows.retain(|row| !row.starts_with("fio"));
    }
    let file = TestFile::create(&options.common.dir()?, options.file_mib << 20)?;
    let hot = match options.hot_mib {
        0 => None,
        mib => Some(TestFile::create_named(&options.common.dir()?, "hot", mib << 20)?),
    };
    let limit = match options.memory_mib {
        0 => None,
        mib => MemoryLimit::create(mib << 20)
            .map_err(|error| {
                eprintln!("no memory limit, so the buffered rows may cache more than they should: {error:#}")
            })
            .ok(),
    };
    // Twice what the page cache may fill: its pages come from what was freed last, and not from there alone.
    let touched = memory::touch(2 * (options.memory_mib << 20))?;
    let cell = Cell::run("scan", &rows, options.repeats, |row| {
        page_cache::evict(file.path(), false)?;
        if let Some(hot) = &hot {
            page_cache::evict(hot.path(), false)?;
        }
        if let Some(limit) = &limit {
            limit.reset_peak();
        }
        let job = ScanJob {
            row: row.to_owned(),
            path: file.path().to_owned(),
            file_bytes: file.bytes(),
            cgroup: limit.as_ref().map(|limit| limit.path().to_owned()),
            hot: hot.as_ref().map(|hot| hot.path().to_owned()),
        };
        child::measure(&Job::Scan(job), None)
    })?;
    let parameters = json!({
        "device": "disk",
        "file_bytes": file.bytes(),
        "memory_limit_bytes": limit.is_some().then_some(options.memory_mib << 20),
        "memory_touched_bytes": touched,
        "hot_bytes": options.hot_mib << 20,
        "repeats": options.repeats,
    });
    let parameters = parameters.as_object().cloned().unwrap_or_default();
    let mut experiment = Experiment::new("scan", parameters, cell.rows());
    gates::judge(&mut experiment, &cell);
    let allowed = if limit.is_some() {
        format!("{} MiB of memory allowed", options.memory_mib)
    } else {
        "no memory limit".into()
    };
    let title = format!(
        "scan of {} MiB, {allowed}: medians of {} interleaved processes, page cache emptied before each",
        file.bytes() >> 20,
        options.repeats
    );
    experiment.print(&title, COLUMNS);
    let mut document = Document::new();
    document.push(experiment);
    options.common.write_json(&document)?;
    document.summarise()
}

/// Measures one sample in this process.
///
/// # Errors
/// The error of the row.
pub(crate) fn measure(job: &ScanJob) -> Result<Sample> {
    if let Some(cgroup) = &job.cgroup {
        memory_limit::enter(cgroup)?;
    }
    if let Some(hot) = &job.hot {
        page_cache::load(hot)?;
    }
    let huge = |bytes, depth| bare::scan(job, bytes, depth, PageKind::Huge);
    let mut sample = match job.row.as_str() {
        "bare-512k-x8" | "bare-512k-x8-again" => huge(512 << 10, 8),
        "bare-512k-x5" => huge(512 << 10, 5),
        "bare-1m-x8" => huge(1 << 20, 8),
        "bare-256k-x16" => huge(256 << 10, 16),
        "bare-512k-x20" => huge(512 << 10, 20),
        "bare-512k-x8-4k-pages" => bare::scan(job, 512 << 10, 8, PageKind::Small),
        "forebay-default" => forebay::scan_on_shard(job, ::forebay::Open::read(), None),
        "forebay-adaptive" => forebay::scan_on_shard(job, ::forebay::Open::read().adaptive(), None),
        "forebay-buffered" => forebay::scan_on_shard(job, ::forebay::Open::read().buffered(), None),
        "forebay-large" => {
            forebay::scan_on_shard(job, ::forebay::Open::read(), Some((BLOCK_LARGE_BYTES, DEPTH_LARGE)))
        }
        "forebay-default-tokio" => forebay::scan_from_tokio(job, None),
        "forebay-large-tokio" => forebay::scan_from_tokio(job, Some((BLOCK_LARGE_BYTES, DEPTH_LARGE))),
        "glommio" => glommio::scan(job),
        "compio" => compio::scan(job),
        "monoio" => monoio::scan(job),
        "tokio-uring" => tokio_uring::scan(job),
        "std-threads" => std_threads::scan(job),
        "fio" => run_fio(job, fio::Buffers::Ordinary),
        "fio-hugepages" => run_fio(job, fio::Buffers::Hugepages),
        "std-fs-128k" => buffered::std_fs(job),
        "tokio-fs-128k" => tokio_fs::scan(job),
        "mmap" => buffered::mmap(job),
        "dontcache-1m" => buffered::dontcache(job),
        other => bail!("there is no row {other}"),
    }?;
    sample.set("loaded_share", page_cache::share(&job.path)?);
    if let Some(hot) = &job.hot {
        sample.set("hot_kept_share", page_cache::share(hot)?);
    }
    if !job.row.starts_with("fio") {
        sample.set("resident_peak_bytes", usage::peak_resident_bytes());
    }
    if let Some(peak) = job.cgroup.as_deref().and_then(memory_limit::peak_bytes) {
        sample.set("memory_peak_bytes", peak);
    }
    Ok(sample)
}

fn run_fio(job: &ScanJob, buffers: fio::Buffers) -> Result<Sample> {
    let depth = 8;
    let arguments =
        ["--rw=read".to_owned(), format!("--bs={BLOCK_LARGE_BYTES}"), format!("--iodepth={depth}")];
    let answer = fio::run(&job.path, &arguments, buffers)?;
    let gb = job.file_bytes as f64 / 1e9;
    let mut sample = Sample::default();
    sample.set("mb_per_s", answer["read"]["bw_bytes"].as_f64().unwrap_or(f64::NAN) / 1e6);
    sample.set("cpu_s_per_gb", fio::cpu_s(&answer) / gb);
    sample.set("buffers_peak_bytes", (depth * BLOCK_LARGE_BYTES) as f64);
    Ok(sample)
}
