//! `ranges`: the batch that a data-frame reader makes: 20,000 ranges of one file, requested from Tokio, total
//! time.

mod gates;
mod mmap;
mod object_store_like;
mod read_many;
mod shapes;
mod tokio_fs;

use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cell::Cell;
use crate::child::{self, Job};
use crate::cli::Common;
use crate::environment::cores;
use crate::memory_limit::{self, MemoryLimit};
use crate::report::{Document, Experiment};
use crate::sample::Sample;
use crate::test_file::TestFile;
use crate::usage::{Usage, peak_resident_bytes};
use crate::{allocations, content, page_cache, rng};
use shapes::Shape;

/// All rows, in the order of the table.
pub(crate) const ROWS: &[&str] = &[
    "tokio-fs-sequential",
    "tokio-fs-sequential-again",
    "tokio-fs-tasks",
    "object-store-like",
    "mmap",
    "read_many",
    "read_many-collect",
    "read_many-buffered",
    "read_many-adaptive",
    "read_many-adaptive-stream",
];

const COLUMNS: &[(&str, &str, usize)] = &[
    ("total_ms", "total ms", 1),
    ("total_ms_min", "min", 1),
    ("total_ms_max", "max", 1),
    ("times_faster_than_sequential", "x sequential", 2),
    ("cpu_ms", "CPU ms", 1),
    ("bytes_read_per_byte_requested", "read/asked", 3),
    ("allocations_per_range", "allocs/range", 4),
    ("resident_peak_bytes", "resident MiB", 0),
    ("page_cache_share", "from page cache", 3),
    ("loaded_share", "loaded", 3),
    ("hot_kept_share", "hot set kept", 3),
];

/// The state of the page cache before a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cache {
    /// The file is not cached.
    Cold,
    /// The whole file is cached.
    Warm,
    /// Every second run of 16 pages is cached.
    Half,
    /// One run of 16 pages in ten is cached.
    Tenth,
}

impl Cache {
    const fn name(self) -> &'static str {
        match self {
            Cache::Cold => "cold",
            Cache::Warm => "warm",
            Cache::Half => "half cached",
            Cache::Tenth => "a tenth cached",
        }
    }
}

/// Options of `ranges`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Shapes of the batch.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Shape::Uniform, Shape::Clustered, Shape::Mixed])]
    shapes: Vec<Shape>,
    /// States of the page cache.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Cache::Cold, Cache::Warm])]
    caches: Vec<Cache>,
    /// Ranges in a batch.
    #[arg(long, default_value_t = 20_000)]
    count: usize,
    /// Interleaved repeats, each with fresh ranges.
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Size of the test file, in MiB.
    #[arg(long, default_value_t = 3072)]
    file_mib: u64,
    /// Tasks of `tokio-fs-tasks` at work at once (each holds an open file).
    #[arg(long, default_value_t = 128)]
    tasks_max: usize,
    /// Memory of a sample's cgroup, page cache included, in MiB; 0 for no limit. Needs root.
    #[arg(long, default_value_t = 0)]
    memory_mib: u64,
    /// Size of another program's hot file, in MiB, which is in the page cache of the same cgroup; 0 for none.
    #[arg(long, default_value_t = 0)]
    hot_mib: u64,
}

/// The measurement of a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RangesJob {
    pub(crate) row: String,
    pub(crate) path: PathBuf,
    pub(crate) file_bytes: u64,
    pub(crate) shape: Shape,
    pub(crate) count: usize,
    pub(crate) tasks_max: usize,
    pub(crate) seed: u64,
    pub(crate) cgroup: Option<PathBuf>,
    /// The hot file.
    pub(crate) hot: Option<PathBuf>,
}

/// A batch in progress.
#[derive(Debug)]
pub(crate) struct Batch {
    begun: Instant,
    used: Usage,
}

impl Batch {
    /// Returns the start of a batch: runtimes are up, nothing is open.
    pub(crate) fn begin() -> Self {
        Self { used: Usage::now(), begun: Instant::now() }
    }

    /// Returns the sample of a batch of which every range has been checked.
    pub(crate) fn finish(self, ranges: usize) -> Sample {
        let seconds = self.begun.elapsed().as_secs_f64();
        let used = Usage::now().since(&self.used);
        let mut sample = Sample::default();
        sample.set("total_ms", seconds * 1e3);
        sample.set("cpu_ms", used.cpu_ns as f64 / 1e6);
        sample.set("context_switches_per_range", used.context_switches as f64 / ranges as f64);
        if allocations::is_counting() {
            sample.set("allocations_per_range", used.allocations as f64 / ranges as f64);
        }
        sample
    }
}

/// Checks `got` against the test file's content at `range`: its length, its first and its last bytes.
pub(crate) fn check(range: &Range<u64>, got: &[u8]) -> Result<()> {
    ensure!(got.len() as u64 == range.end - range.start, "range {range:?} gave {} bytes", got.len());
    content::check_start(got, range.start)?;
    let tail = got.len().saturating_sub(8);
    content::check_start(&got[tail..], range.start + tail as u64)
}

/// Runs the experiment.
///
/// # Errors
/// When the test file cannot be made, or when interrupted.
pub(crate) fn run(options: &Options) -> Result<usize> {
    let rows = options.common.choose(ROWS)?;
    let file = TestFile::create(&options.common.dir()?, options.file_mib << 20)?;
    let hot = match options.hot_mib {
        0 => None,
        mib => Some(TestFile::create_named(&options.common.dir()?, "hot", mib << 20)?),
    };
    let limit = match options.memory_mib {
        0 => None,
        mib => Some(MemoryLimit::create(mib << 20)?),
    };
    let drop_caches = rustix::process::geteuid().is_root();
    if !drop_caches {
        eprintln!("without root only the file itself is dropped from the page cache, not its metadata");
    }
    let mut document = Document::new();
    // Cold first: evicting the pages that a warm cell has loaded would only cost time.
    for cache in &options.caches {
        for shape in &options.shapes {
            let experiment = measure_cell(
                options,
                (&file, hot.as_ref(), limit.as_ref()),
                &rows,
                *shape,
                *cache,
                drop_caches,
            )?;
            document.push(experiment);
            options.common.write_json(&document)?;
        }
    }
    document.summarise()
}

fn measure_cell(
    options: &Options,
    (file, hot, limit): (&TestFile, Option<&TestFile>, Option<&MemoryLimit>),
    rows: &[&str],
    shape: Shape,
    cache: Cache,
    drop_caches: bool,
) -> Result<Experiment> {
    let cache_name = cache.name();
    let cell = Cell::run(&format!("ranges, {}, {cache_name}", shape.name()), rows, options.repeats, |row| {
        match cache {
            Cache::Cold => page_cache::evict(file.path(), drop_caches)?,
            Cache::Warm => page_cache::load(file.path())?,
            Cache::Half | Cache::Tenth => {
                page_cache::evict(file.path(), drop_caches)?;
                page_cache::load_every(file.path(), if cache == Cache::Half { 2 } else { 10 })?;
            }
        }
        if let Some(hot) = hot {
            page_cache::evict(hot.path(), false)?;
        }
        let job = RangesJob {
            row: row.to_owned(),
            path: file.path().to_owned(),
            file_bytes: file.bytes(),
            shape,
            count: options.count,
            tasks_max: options.tasks_max,
            seed: rng::fresh_seed(),
            cgroup: limit.map(|limit| limit.path().to_owned()),
            hot: hot.map(|hot| hot.path().to_owned()),
        };
        child::measure(&Job::Ranges(job), None)
    })?;
    let parameters = json!({
        "device": "disk",
        "shape": shape.name(),
        "cache": cache_name,
        "ranges": options.count,
        "file_bytes": file.bytes(),
        "repeats": options.repeats,
        "tasks_max": options.tasks_max,
        "memory_limit_bytes": options.memory_mib << 20,
        "hot_bytes": options.hot_mib << 20,
        "tokio_workers": cores(),
    });
    let parameters = parameters.as_object().cloned().unwrap_or_default();
    let mut experiment = Experiment::new("ranges", parameters, cell.rows());
    gates::judge(&mut experiment, &cell, shape, cache);
    let title = format!(
        "{} ranges, {} ({}), {cache_name}: medians of {} interleaved repeats with fresh ranges; \
         tokio-fs-tasks has at most {} tasks at work; Tokio with {} workers",
        options.count,
        shape.name(),
        shape.description(),
        options.repeats,
        options.tasks_max,
        cores()
    );
    experiment.print(&title, COLUMNS);
    Ok(experiment)
}

/// Measures one sample in this process.
///
/// # Errors
/// The error of the row.
pub(crate) fn measure(job: &RangesJob) -> Result<Sample> {
    if let Some(cgroup) = &job.cgroup {
        memory_limit::enter(cgroup)?;
    }
    if let Some(hot) = &job.hot {
        page_cache::load(hot)?;
    }
    let cached_before = page_cache::share(&job.path)?;
    let ranges = shapes::make(job.shape, job.count, job.file_bytes, job.seed);
    let mut sample = match job.row.as_str() {
        "tokio-fs-sequential" | "tokio-fs-sequential-again" => tokio_fs::sequential(job, ranges),
        "tokio-fs-tasks" => tokio_fs::tasks(job, ranges),
        "object-store-like" => object_store_like::one_task(job, ranges),
        "mmap" => mmap::copy_ranges(job, &ranges),
        "read_many" => read_many::stream(job, ranges, read_many::Open::Direct),
        "read_many-collect" => read_many::collect(job, ranges, read_many::Open::Direct),
        "read_many-buffered" => read_many::collect(job, ranges, read_many::Open::Buffered),
        "read_many-adaptive" => read_many::collect(job, ranges, read_many::Open::Adaptive),
        "read_many-adaptive-stream" => read_many::stream(job, ranges, read_many::Open::Adaptive),
        other => bail!("there is no row {other}"),
    }?;
    sample.set("resident_peak_bytes", peak_resident_bytes());
    sample.set("loaded_share", page_cache::share(&job.path)? - cached_before);
    if let Some(hot) = &job.hot {
        sample.set("hot_kept_share", page_cache::share(hot)?);
    }
    Ok(sample)
}
