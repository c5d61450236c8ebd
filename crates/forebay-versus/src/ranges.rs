//! `ranges`: the batch that a data-frame reader makes: 20,000 ranges of one file, requested from Tokio, total
//! time.

mod mmap;
mod object_store_like;
mod read_many;
mod shapes;
mod tokio_fs;

use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use forebay::Open;
use forebay_measure::peak_resident_bytes;
use forebay_report::units::number;

use crate::content;
use crate::prelude::*;
use crate::run::{HOT_KEPT_SHARE, LOADED_SHARE, RESIDENT_PEAK_BYTES};
use shapes::Shape;

/// The experiment.
pub(crate) static RANGES: Versus = Versus { spec: &SPEC, targets: &TARGETS, plan, sample, title };

/// The states of the page cache before a sample: nothing, all, and one run of 16 pages in 2 or 10 is cached.
const CACHES: &[&str] = &["cold", "warm", "half", "tenth"];

static SPEC: Spec = spec(
    "ranges",
    "20,000 ranges of one file, read as one batch from Tokio, cold and warm",
    &[
        Opt::word("shapes", "Shapes of the batch", &["uniform", "clustered", "mixed", "records"])
            .list()
            .or("uniform,clustered,mixed"),
        Opt::word("caches", "States of the page cache", CACHES).list().or("cold,warm"),
        Opt::count("count", "Ranges of a batch", 1 << 32).or("20000"),
        Opt::count("repeats", "Interleaved repeats, each with fresh ranges", 1000).or("5"),
        Opt::count("file-mib", "Size of the test file, in MiB", 1 << 40).or("3072"),
        Opt::count(
            "tasks-max",
            "Tasks of `tokio-fs-tasks` at work at once (each holds an open file)",
            1 << 20,
        )
        .or("128"),
        Opt::count(
            "memory-mib",
            "Memory of a sample, page cache included, in MiB (root); 0: no limit",
            1 << 40,
        )
        .zero_too()
        .or("0"),
        run::HOT_MIB,
    ],
    &[
        Way::cached("tokio-fs-sequential", "one task, one file: seek, read_exact, next"),
        Way::cached("tokio-fs-sequential-again", "the same, for the A-A spread"),
        Way::cached("tokio-fs-tasks", "a task for each range, each with a file of its own"),
        Way::cached(
            "object-store-like",
            "one spawn_blocking for the batch, as object_store does for local files",
        ),
        Way::cached("mmap", "a memory map, each range copied into a vector, one thread"),
        Way::direct("read_many", "Forebay's batch as a stream: each range is used and dropped as it arrives"),
        Way::direct("read_many-collect", "Forebay's batch as a whole, all ranges held"),
        Way::cached("read_many-buffered", "the same on a file opened buffered"),
        Way::cached("read_many-adaptive", "the same on a file opened adaptive"),
        Way::cached("read_many-adaptive-stream", "as read_many, on a file opened adaptive"),
    ],
    &[
        column("total_ms", "total ms", 1.0, "milliseconds from opening the file to the last range checked"),
        column(
            "times_faster_than_sequential",
            "x sequential",
            1.0,
            "how many times faster than `tokio-fs-sequential`",
        ),
        column("cpu_ms", "CPU ms", 1.0, "processor milliseconds, user and system, all threads"),
        column("allocations_per_range", "allocs/range", 1.0, "heap allocations for one range"),
        RESIDENT_PEAK_BYTES,
        column(
            "page_cache_share",
            "from page cache",
            1.0,
            "share of the ranges that the page cache served at once",
        ),
        LOADED_SHARE,
        HOT_KEPT_SHARE,
    ],
    "total_ms",
);

const SEQUENTIAL: &[&str] = &["tokio-fs-sequential"];
const TASKS: &[&str] = &["tokio-fs-tasks"];
const OBJECT_STORE: &[&str] = &["object-store-like"];
const STREAM: &[&str] = &["read_many"];

static TARGETS: Targets = Targets {
    ranked_by: "ranges_per_s",
    ratios: &[Ratio {
        name: "times_faster_than_sequential",
        metric: "ranges_per_s",
        beside: Beside::Over(SEQUENTIAL),
    }],
    spreads: &[("tokio-fs-sequential-again", "total_ms", "a_a_spread")],
    // A warm stream is shown, whichever row is faster.
    limits: &[
        // One batch of a fresh process: opening the file and tables that grow by doubling are in it, which is some hundred
        // allocations. The steady state has a target of its own in `random`.
        Target::of("read_many", "allocations_per_range").at_most(0.05),
        // The better of direct and buffered.
        beside("read_many-adaptive", "total_ms", &["read_many-collect", "read_many-buffered"]).at_most(1.05),
        beside("read_many-adaptive", "total_ms", OBJECT_STORE).at_most(0.4).when(is_cold),
        beside("read_many-adaptive", "total_ms", OBJECT_STORE).at_most(1.0).when(|table| !is_cold(table)),
        beside("read_many-collect", "total_ms", STREAM).at_most(1.5).when(|table| shape(table) == "records"),
        beside("read_many-collect", "cpu_ms", STREAM).at_most(1.5).when(|table| shape(table) == "records"),
        times_faster(SEQUENTIAL, 3.0).when(is_cold),
        times_faster(&["mmap"], 1.0).when(is_cold),
        times_faster(TASKS, 1.2).when(|table| is_cold(table) && shape(table) == "uniform"),
        times_faster(TASKS, 2.0).when(|table| is_cold(table) && shape(table) == "clustered"),
        beside("read_many", "cpu_ms", TASKS).at_most(0.5).when(is_cold),
    ],
};

const fn beside(row: &'static str, metric: &'static str, others: &'static [&'static str]) -> Target {
    Target::of(row, metric).over(others).within("tokio-fs-sequential-again")
}

const fn times_faster(others: &'static [&'static str], least: f64) -> Target {
    beside("read_many", "ranges_per_s", others).at_least(least)
}

fn is_cold(table: &Table) -> bool {
    table.text("cache") == "cold"
}

fn shape(table: &Table) -> &str {
    table.text("shape")
}

fn title(table: &Table) -> String {
    let (ranges, shape, cache) = (table.number("ranges").unwrap_or(0.0), shape(table), table.text("cache"));
    format!("{} ranges, {shape} ({}), {cache}", number(ranges), table.text("ranges_are"))
}

fn plan<'c>(options: &Values, context: &'c Context) -> Result<Run<'c>> {
    let (scratch, place) = run::scratch(context, SPEC.name, false)?;
    let memory_bytes = options.count("memory-mib") << 20;
    let limit = (memory_bytes > 0).then(|| run::limit(context, memory_bytes));
    let limit = limit.map(|limit| limit.context("--memory-mib needs a memory cgroup")).transpose()?;
    let file_bytes = run::file_bytes(options.count("file-mib"));
    let file = run::test_file(context, &scratch.directory, file_bytes)?;
    let hot = run::hot_file(context, &scratch.directory, options)?;
    let drop_caches = rustix::process::geteuid().is_root();
    if !drop_caches {
        context
            .progress
            .print_line("without root only the file itself is dropped from the page cache, not its metadata");
    }
    let mut settings = Vec::new();
    for cache in options.words("caches") {
        for shape in options.words("shapes") {
            settings.push(parameters(json!({
                "device": "disk", "shape": shape, "ranges_are": Shape::named(shape)?.description(), "cache": cache,
                "ranges": options.count("count"), "file_bytes": file_bytes, "tasks_max": options.count("tasks-max"),
                "memory_limit_bytes": limit.is_some().then_some(memory_bytes),
                "hot_bytes": options.count("hot-mib") << 20, "tokio_workers": cores(),
            })));
        }
    }
    let method = "Each sample is a process of its own with one batch of fresh ranges, from Tokio; its time runs from opening \
        the file to the last range checked. Rows take turns within a repeat; ratios are those of the same repeat, and \
        figures medians.";
    let mut run = Run::new(context, place, settings, method);
    run.limit = limit;
    run.prepare = Box::new(move |turn, job| {
        job.path = file.path().to_owned();
        match turn.text("cache") {
            "cold" => page_cache::evict(file.path(), drop_caches)?,
            "warm" => page_cache::load(file.path())?,
            part => {
                page_cache::evict(file.path(), drop_caches)?;
                page_cache::load_every(file.path(), if part == "half" { 2 } else { 10 })?;
            }
        }
        run::evict_hot(hot.as_ref(), job)?;
        Ok(None)
    });
    Ok(run)
}

/// The work of a sample.
#[derive(Debug, Deserialize)]
pub(crate) struct Work {
    #[serde(skip)]
    pub(crate) path: PathBuf,
    file_bytes: u64,
    shape: String,
    #[serde(rename = "ranges")]
    count: usize,
    pub(crate) tasks_max: usize,
    /// The hot file.
    hot: Option<PathBuf>,
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

    /// Returns the outcome of a batch of which every range has been checked.
    pub(crate) fn finish(self, ranges: usize) -> Outcome {
        let seconds = self.begun.elapsed().as_secs_f64();
        let (used, ranges) = (Usage::now().since(&self.used), ranges as f64);
        let mut outcome = Outcome::lasting(seconds);
        outcome
            .figures
            .set("total_ms", seconds * 1e3)
            .set("ranges_per_s", ranges / seconds)
            .set("cpu_ms", used.cpu_ns as f64 / 1e6)
            .set("context_switches_per_range", used.context_switches as f64 / ranges);
        if allocations::is_counting() {
            outcome.figures.set("allocations_per_range", used.allocations as f64 / ranges);
        }
        outcome
    }
}

/// Checks `got` against the test file's content at `range`: its length, its first and its last bytes.
pub(crate) fn check(range: &Range<u64>, got: &[u8]) -> Result<()> {
    ensure!(got.len() as u64 == range.end - range.start, "range {range:?} gave {} bytes", got.len());
    content::check_start(got, range.start)?;
    let tail = got.len().saturating_sub(8);
    content::check_start(&got[tail..], range.start + tail as u64)
}

fn sample(job: &Job) -> Result<Outcome> {
    let work = &Work { path: job.path.clone(), ..job.work()? };
    if let Some(hot) = &work.hot {
        page_cache::load(hot)?;
    }
    let cached_before = page_cache::share(&job.path)?;
    let ranges = shapes::make(Shape::named(&work.shape)?, work.count, work.file_bytes, job.seed);
    let mut outcome = match without_again(&job.row) {
        "tokio-fs-sequential" => tokio_fs::sequential(work, ranges),
        "tokio-fs-tasks" => tokio_fs::tasks(work, ranges),
        "object-store-like" => object_store_like::one_task(work, ranges),
        "mmap" => mmap::copy_ranges(work, &ranges),
        "read_many" => read_many::stream(work, ranges, Open::read()),
        "read_many-collect" => read_many::collect(work, ranges, Open::read()),
        "read_many-buffered" => read_many::collect(work, ranges, Open::read().buffered()),
        "read_many-adaptive" => read_many::collect(work, ranges, Open::read().adaptive()),
        "read_many-adaptive-stream" => read_many::stream(work, ranges, Open::read().adaptive()),
        other => Err(no_row(other)),
    }?;
    let figures = &mut outcome.figures;
    figures.set("resident_peak_bytes", peak_resident_bytes().map_or(f64::NAN, |bytes| bytes as f64));
    figures.set("loaded_share", page_cache::share(&job.path)? - cached_before);
    if let Some(hot) = &work.hot {
        figures.set("hot_kept_share", page_cache::share(hot)?);
    }
    Ok(outcome)
}
