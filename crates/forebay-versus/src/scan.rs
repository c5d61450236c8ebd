//! `scan`: one sequential pass over a file that does not fit into the memory that a row may use.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ::forebay::Open;
use forebay_measure::{peak_resident_bytes, prefault};
use forebay_report::page::columns::{BUFFERS_PEAK_BYTES, CPU_S_PER_GB, MB_PER_S, MEMORY_PEAK_BYTES};
use forebay_report::units::bytes;

use crate::fio;
use crate::peers::{bare, buffered, compio, forebay, glommio, monoio, std_threads, tokio_fs, tokio_uring};
use crate::prelude::*;
use crate::run::{HOT_KEPT_SHARE, LOADED_SHARE, RATIO_TO_LIMIT, RESIDENT_PEAK_BYTES};

/// The block of the "large" rows, in bytes.
pub(crate) const BLOCK_LARGE_BYTES: usize = 512 << 10;

/// The reads in flight of the "large" rows.
pub(crate) const DEPTH_LARGE: usize = 5;

/// The experiment.
pub(crate) static SCAN: Versus = Versus { spec: &SPEC, targets: &TARGETS, plan, sample, title };

static SPEC: Spec = spec(
    "scan",
    "One sequential pass over a large file",
    &[
        Opt::count("file-mib", "Size of the test file, in MiB", 1 << 40).or("3072"),
        Opt::count(
            "memory-mib",
            "Memory of each row, page cache included, in MiB (root; 0: no limit)",
            1 << 40,
        )
        .zero_too()
        .or("1024"),
        run::HOT_MIB,
        Opt::count("repeats", "Interleaved processes of each row; the targets want five or more", 1000)
            .or("5"),
    ],
    &[
        Way::direct("bare-512k-x8", "the io-uring crate, 512 KiB, 8 in flight, on hugepages"),
        Way::direct("bare-512k-x8-again", "the same, for the A-A spread"),
        Way::direct("bare-512k-x5", "5 in flight"),
        Way::direct("bare-1m-x8", "1 MiB, 8 in flight"),
        Way::direct("bare-256k-x16", "256 KiB, 16 in flight"),
        Way::direct("bare-512k-x20", "20 in flight"),
        Way::direct("bare-512k-x8-4k-pages", "512 KiB, 8 in flight, on ordinary pages"),
        Way::direct("forebay-default", "file.scan() on the shard as it comes"),
        Way::direct("forebay-large", "file.scan() with 512 KiB x 5"),
        Way::cached("forebay-adaptive", "file.scan() of a file opened adaptive"),
        Way::cached("forebay-buffered", "file.scan() of a file opened buffered"),
        Way::direct("forebay-default-tokio", "forebay-default from a current-thread Tokio runtime"),
        Way::direct("forebay-large-tokio", "forebay-large from a current-thread Tokio runtime"),
        Way::direct("glommio", "glommio 0.9: DmaStreamReader, 512 KiB, five read ahead, no copy"),
        Way::direct("compio", "compio 0.19: five tasks that each read the next 512 KiB"),
        Way::direct("monoio", "monoio 0.2: the same"),
        Way::direct("tokio-uring", "tokio-uring 0.5: the same, with registered buffers"),
        Way::direct("std-threads", "five threads that each read the next 512 KiB"),
        Way::direct("fio", "fio, 512 KiB x 8"),
        Way::direct("fio-hugepages", "the same with hugepages for its buffers"),
        Way::cached("std-fs-128k", "std::fs::File with a buffer of 128 KiB"),
        Way::cached("tokio-fs-128k", "tokio::fs with a buffer of 128 KiB"),
        Way::cached("mmap", "a memory map with the advice \"sequential\""),
        Way::cached("dontcache-1m", "preadv2 with RWF_DONTCACHE, 1 MiB a call"),
    ],
    &[
        MB_PER_S,
        RATIO_TO_LIMIT,
        CPU_S_PER_GB,
        BUFFERS_PEAK_BYTES,
        RESIDENT_PEAK_BYTES,
        MEMORY_PEAK_BYTES,
        LOADED_SHARE,
        HOT_KEPT_SHARE,
    ],
    "mb_per_s",
);

/// The bare loops on hugepage memory; the limit is the best of them.
const LIMITS: &[&str] = &["bare-512k-x8", "bare-512k-x5", "bare-1m-x8", "bare-256k-x16", "bare-512k-x20"];
const MIB: f64 = 1_048_576.0;

static TARGETS: Targets = Targets {
    ranked_by: "mb_per_s",
    ratios: &[
        Ratio { name: "ratio_to_limit", metric: "mb_per_s", beside: Beside::Over(LIMITS) },
        Ratio { name: "ratio_to_mmap", metric: "mb_per_s", beside: Beside::Over(&["mmap"]) },
        Ratio { name: "ratio_to_dontcache-1m", metric: "mb_per_s", beside: Beside::Over(&["dontcache-1m"]) },
        Ratio { name: "ratio_to_std-fs-128k", metric: "mb_per_s", beside: Beside::Over(&["std-fs-128k"]) },
    ],
    spreads: &[("bare-512k-x8-again", "mb_per_s", "a_a_spread")],
    limits: &[
        rate("forebay-default", LIMITS, 0.95),
        rate("forebay-default", &["fio"], 1.0),
        rate("forebay-default", &["bare-512k-x8-4k-pages"], 2.0),
        Target::of("forebay-default", "cpu_s_per_gb").at_most(0.04),
        Target::of("forebay-default", "buffers_peak_bytes").at_most(8.0 * MIB),
        rate("forebay-large", LIMITS, 0.95),
        rate("forebay-large", &["fio"], 1.0),
        rate("forebay-large", &["bare-512k-x8-4k-pages"], 2.0),
        Target::of("forebay-large", "cpu_s_per_gb").at_most(0.04),
        Target::of("forebay-large", "buffers_peak_bytes").at_most(4.0 * MIB),
    ],
};

const fn rate(row: &'static str, others: &'static [&'static str], least: f64) -> Target {
    Target::of(row, "mb_per_s").over(others).at_least(least).within("bare-512k-x8-again")
}

fn title(table: &Table) -> String {
    let size = |name: &str| table.number(name).map(|size| bytes(size as u64));
    let limit = size("memory_limit_bytes").map_or_else(|| "no limit on".to_owned(), |limit| limit + " of");
    format!("Scan of {}, {limit} memory", size("file_bytes").unwrap_or_default())
}

fn plan<'c>(options: &Values, context: &'c Context) -> Result<Run<'c>> {
    let (scratch, place) = run::scratch(context, SPEC.name, false)?;
    let file_bytes = run::file_bytes(options.count("file-mib"));
    let file = run::test_file(context, &scratch.directory, file_bytes)?;
    let hot = run::hot_file(context, &scratch.directory, options)?;
    let memory_bytes = options.count("memory-mib") << 20;
    let limit = (memory_bytes > 0).then(|| run::limit(context, memory_bytes)).flatten();
    // Twice what the page cache may fill: its pages come from what was freed last, and not from there alone.
    let touched = prefault(2 * memory_bytes);
    let has_fio = fio::is_available(options);
    let setting = parameters(json!({
        "device": "disk", "file_bytes": file_bytes, "memory_touched_bytes": touched,
        "memory_limit_bytes": limit.is_some().then_some(memory_bytes),
        "hot_bytes": options.count("hot-mib") << 20,
    }));
    let method = "Each sample is a process of its own that reads the whole file once, from before it is opened, and one word \
        of every page, whose sum is checked. The page cache is emptied of the file before each. Rows take turns within a \
        repeat; ratios are those of the same repeat, and figures medians.";
    let mut run = Run::new(context, place, vec![setting], method);
    run.has = Box::new(move |_, row| has_fio || !row.starts_with("fio"));
    run.limit = limit;
    run.prepare = Box::new(move |_, job| {
        job.path = file.path().to_owned();
        page_cache::evict(file.path(), false)?;
        run::evict_hot(hot.as_ref(), job)?;
        Ok(None)
    });
    Ok(run)
}

/// The work of a sample.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    pub(crate) path: PathBuf,
    pub(crate) file_bytes: u64,
}

#[derive(Debug, Deserialize)]
struct Work {
    file_bytes: u64,
    /// The hot file.
    hot: Option<PathBuf>,
}

/// The parts of a file that tasks take, each the next one, where a library has no read-ahead.
#[derive(Debug)]
pub(crate) struct Parts {
    next: AtomicU64,
    file_bytes: u64,
}

impl Parts {
    /// Returns offset and length of the next part, which no other task has taken.
    pub(crate) fn take(&self) -> Option<(u64, usize)> {
        let offset = self.next.fetch_add(BLOCK_LARGE_BYTES as u64, Ordering::Relaxed);
        let left = self.file_bytes.checked_sub(offset).filter(|left| *left > 0)?;
        Some((offset, left.min(BLOCK_LARGE_BYTES as u64) as usize))
    }
}

/// A pass that has begun.
#[derive(Debug)]
pub(crate) struct Pass {
    begun: Instant,
    used: Usage,
    file_bytes: u64,
}

impl Scan {
    /// Returns the start of the pass: before the file is opened and memory is made.
    pub(crate) fn begin(&self) -> Pass {
        Pass { begun: Instant::now(), used: Usage::now(), file_bytes: self.file_bytes }
    }

    /// Returns the parts of the file, to be shared by tasks.
    pub(crate) fn parts(&self) -> Arc<Parts> {
        Arc::new(Parts { next: AtomicU64::new(0), file_bytes: self.file_bytes })
    }
}

impl Pass {
    /// Returns the outcome of a pass, when the whole file was read.
    ///
    /// # Errors
    /// When it was not.
    pub(crate) fn finish(&self, checksum: &Checksum) -> Result<Outcome> {
        let seconds = self.begun.elapsed().as_secs_f64();
        let used = Usage::now().since(&self.used);
        checksum.check(self.file_bytes)?;
        let gb = self.file_bytes as f64 / 1e9;
        let mut outcome = Outcome::lasting(seconds);
        outcome
            .figures
            .set("mb_per_s", gb * 1e3 / seconds)
            .set("cpu_s_per_gb", used.cpu_ns as f64 / 1e9 / gb)
            .set("context_switches_per_gb", used.context_switches as f64 / gb);
        Ok(outcome)
    }
}

fn sample(job: &Job) -> Result<Outcome> {
    let work: Work = job.work()?;
    if let Some(hot) = &work.hot {
        page_cache::load(hot)?;
    }
    let scan = &Scan { path: job.path.clone(), file_bytes: work.file_bytes };
    let huge = |bytes, depth| bare::scan(scan, bytes, depth, PageKind::Huge);
    let large = Some((BLOCK_LARGE_BYTES, DEPTH_LARGE));
    let mut outcome = match without_again(&job.row) {
        "bare-512k-x8" => huge(512 << 10, 8),
        "bare-512k-x5" => huge(512 << 10, 5),
        "bare-1m-x8" => huge(1 << 20, 8),
        "bare-256k-x16" => huge(256 << 10, 16),
        "bare-512k-x20" => huge(512 << 10, 20),
        "bare-512k-x8-4k-pages" => bare::scan(scan, 512 << 10, 8, PageKind::Small),
        "forebay-default" => forebay::scan_on_shard(scan, Open::read(), None),
        "forebay-adaptive" => forebay::scan_on_shard(scan, Open::read().adaptive(), None),
        "forebay-buffered" => forebay::scan_on_shard(scan, Open::read().buffered(), None),
        "forebay-large" => forebay::scan_on_shard(scan, Open::read(), large),
        "forebay-default-tokio" => forebay::scan_from_tokio(scan, None),
        "forebay-large-tokio" => forebay::scan_from_tokio(scan, large),
        "glommio" => glommio::scan(scan),
        "compio" => compio::scan(scan),
        "monoio" => monoio::scan(scan),
        "tokio-uring" => tokio_uring::scan(scan),
        "std-threads" => std_threads::scan(scan),
        "fio" => run_fio(scan, false),
        "fio-hugepages" => run_fio(scan, true),
        "std-fs-128k" => buffered::std_fs(scan),
        "tokio-fs-128k" => tokio_fs::scan(scan),
        "mmap" => buffered::mmap(scan),
        "dontcache-1m" => buffered::dontcache(scan),
        other => Err(no_row(other)),
    }?;
    outcome.figures.set("loaded_share", page_cache::share(&job.path)?);
    if let Some(hot) = &work.hot {
        outcome.figures.set("hot_kept_share", page_cache::share(hot)?);
    }
    if let Some(peak) = peak_resident_bytes().filter(|_| !job.row.starts_with("fio")) {
        outcome.figures.set("resident_peak_bytes", peak as f64);
    }
    Ok(outcome)
}

fn run_fio(scan: &Scan, hugepages: bool) -> Result<Outcome> {
    let depth = 8;
    let arguments =
        ["--rw=read".to_owned(), format!("--bs={BLOCK_LARGE_BYTES}"), format!("--iodepth={depth}")];
    let answer = fio::run(&scan.path, &arguments, hugepages)?;
    let mut outcome = Outcome::lasting(answer.number("/job_runtime") / 1e3);
    outcome
        .figures
        .set("mb_per_s", answer.number("/read/bw_bytes") / 1e6)
        .set("cpu_s_per_gb", answer.cpu_s() * 1e9 / scan.file_bytes as f64)
        .set("buffers_peak_bytes", (depth * BLOCK_LARGE_BYTES) as f64);
    Ok(outcome)
}
