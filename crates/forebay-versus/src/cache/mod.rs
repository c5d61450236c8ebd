//! `cache`: reads of single pages through a cache in the program, beside other caches and the page cache.

mod forebay;
mod foyer;
mod moka;
mod page_cache;
mod quick;

use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cell::Cell;
use crate::child::{self, Job};
use crate::cli::Common;
use crate::content::{self, PAGE_BYTES};
use crate::memory::{PageKind, pieces};
use crate::memory_limit::{self, MemoryLimit};
use crate::report::{Document, Experiment};
use crate::rng::{self, Rng};
use crate::sample::Sample;
use crate::test_file::TestFile;
use crate::usage::Usage;

/// All rows, in the order of the table. `pread` has no cache: it is the device.
const ROWS: &[&str] =
    &["forebay", "forebay-again", "forebay-get", "foyer", "moka", "quick_cache", "page-cache", "pread"];

const COLUMNS: &[(&str, &str, usize)] = &[
    ("ns_per_read", "ns/read", 0),
    ("ns_per_read_min", "min", 0),
    ("ns_per_read_max", "max", 0),
    ("hit_rate", "hit rate", 4),
    ("cpu_ns_per_read", "CPU ns", 0),
    ("allocations_per_io", "allocs", 3),
];

/// Memory of a row beside its cache, where memory is limited.
const BESIDE_BYTES: u64 = 160 << 20;

/// Options of `cache`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) common: Common,
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Workload::Hits, Workload::Zipf, Workload::Mixed])]
    workloads: Vec<Workload>,
    /// Threads that read.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Size of the test file, in MiB.
    #[arg(long, default_value_t = 1024)]
    file_mib: u64,
    /// Size of the cache, in MiB.
    #[arg(long, default_value_t = 128)]
    cache_mib: u64,
    /// Reads of each thread per sample where all are hits.
    #[arg(long, default_value_t = 5_000_000)]
    hits: u64,
    /// Reads of each thread per sample where some go to the device; a third of them before, to warm up.
    #[arg(long, default_value_t = 100_000)]
    reads: u64,
    /// Interleaved repeats, each with fresh pages.
    #[arg(long, default_value_t = 5)]
    repeats: usize,
}

/// Orders of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(crate) enum Workload {
    /// Random pages that are all in the cache.
    Hits,
    /// Pages of the whole file, some more often than others (Zipf, 0.99).
    Zipf,
    /// The same, and one read in four belongs to a scan of the file.
    Mixed,
}

/// The measurement of a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CacheJob {
    row: String,
    path: PathBuf,
    file_bytes: u64,
    workload: Workload,
    threads: usize,
    cache_bytes: u64,
    reads: u64,
    seed: u64,
    limit: Option<PathBuf>,
}

/// Reads the page that begins at an offset, on one thread: returns its first byte, and whether it was in the cache, where
/// that is known.
pub(crate) type Reader<'p> = Box<dyn FnMut(u64) -> Result<(u8, bool)> + 'p>;

/// A way to read a page. One value serves all threads.
pub(crate) trait Peer: Send + Sync {
    /// Returns a reader for one thread.
    fn reader(&self) -> Result<Reader<'_>>;

    /// Returns the hits so far, of a cache that counts them itself.
    fn hits(&self) -> Option<u64> {
        None
    }
}

/// Runs the experiment.
///
/// # Errors
/// When the test file cannot be made, or when interrupted.
pub(crate) fn run(options: &Options) -> Result<usize> {
    let rows = options.common.choose(ROWS)?;
    let file = TestFile::create(&options.common.dir()?, options.file_mib << 20)?;
    let cache_bytes = options.cache_mib << 20;
    ensure!(file.bytes() >= 2 * cache_bytes, "the file has to be at least twice as large as the cache");
    let limit = MemoryLimit::create(cache_bytes + BESIDE_BYTES)
        .inspect_err(|error| {
            eprintln!("memory is not limited, so the page cache may keep the whole file: {error:#}")
        })
        .ok();
    let mut document = Document::new();
    for workload in &options.workloads {
        let name = format!("{workload:?}").to_lowercase();
        let reads = if *workload == Workload::Hits { options.hits } else { options.reads };
        let cell = Cell::run(&format!("cache, {name}"), &rows, options.repeats, |row| {
            crate::page_cache::evict(file.path(), false)?;
            let job = CacheJob {
                row: row.to_owned(),
                path: file.path().to_owned(),
                file_bytes: file.bytes(),
                workload: *workload,
                threads: options.threads,
                cache_bytes,
                // The device takes 100 us where a cache takes a tenth of one.
                reads: if row == "pread" { reads.min(options.reads / 10) } else { reads },
                seed: rng::fresh_seed(),
                limit: limit.as_ref().map(|limit| limit.path().to_owned()),
            };
            child::measure(&Job::Cache(job), None)
        })?;
        let parameters = json!({
            "workload": name, "threads": options.threads, "file_bytes": file.bytes(), "cache_bytes": cache_bytes,
            "reads": reads, "repeats": options.repeats, "memory_limited": limit.is_some(),
        });
        let mut experiment =
            Experiment::new("cache", parameters.as_object().cloned().unwrap_or_default(), cell.rows());
        for row in &rows {
            let values: Vec<f64> = cell.values(row, "ns_per_read").into_iter().flatten().collect();
            experiment.set_ratio(row, "ns_per_read", &values);
        }
        experiment.set("forebay-again", "a_a_spread", cell.spread("forebay", "forebay-again", "ns_per_read"));
        let title = format!(
            "{name}: pages of 4 KiB from {} threads, a cache of {} MiB, a file of {} MiB: medians of {} x {reads} reads \
             a thread",
            options.threads, options.cache_mib, options.file_mib, options.repeats
        );
        experiment.print(&title, COLUMNS);
        document.push(experiment);
        options.common.write_json(&document)?;
    }
    document.summarise()
}

/// Measures one sample in this process.
///
/// # Errors
/// The error of the row.
pub(crate) fn measure(job: &CacheJob) -> Result<Sample> {
    if let Some(limit) = &job.limit {
        memory_limit::enter(limit)?;
    }
    let peer: Box<dyn Peer> = match job.row.as_str() {
        "forebay" | "forebay-again" => Box::new(forebay::Pages::open(job, false)?),
        "forebay-get" => Box::new(forebay::Pages::open(job, true)?),
        "foyer" => Box::new(foyer::Pages::open(job)?),
        "moka" => Box::new(moka::Pages::open(job)?),
        "quick_cache" => Box::new(quick::Pages::open(job)?),
        "page-cache" => Box::new(page_cache::Pages::open(job, false)?),
        "pread" => Box::new(page_cache::Pages::open(job, true)?),
        other => bail!("there is no row {other}"),
    };
    let order = Arc::new(Order::new(job));
    // Warm up: all pages of `hits`, a third of the reads of the others.
    let before = if job.workload == Workload::Hits { 0 } else { job.reads / 3 };
    if job.workload == Workload::Hits && job.row != "pread" {
        let mut read = peer.reader()?;
        for _ in 0..2 {
            (0..order.pages).try_for_each(|page| read(page * PAGE_BYTES).map(drop))?;
        }
    }
    run_threads(peer.as_ref(), &order, job, 0..before)?;
    let hits_before = peer.hits();
    let (used, begun) = (Usage::now(), Instant::now());
    let hits = run_threads(peer.as_ref(), &order, job, before..job.reads)?;
    let (seconds, used) = (begun.elapsed().as_secs_f64(), Usage::now().since(&used));
    let reads = (job.reads - before) * job.threads as u64;
    let hits = peer.hits().zip(hits_before).map_or(hits, |(after, before)| after - before);
    let mut sample = Sample::default();
    // The time that one thread waits for one read.
    sample.set("ns_per_read", seconds * 1e9 / (job.reads - before) as f64);
    sample.set("cpu_ns_per_read", used.cpu_ns as f64 / reads as f64);
    sample.set_usage(&used, reads);
    if !matches!(job.row.as_str(), "page-cache" | "pread") {
        sample.set("hit_rate", hits as f64 / reads as f64);
    }
    Ok(sample)
}

fn run_threads(
    peer: &dyn Peer,
    order: &Arc<Order>,
    job: &CacheJob,
    numbers: std::ops::Range<u64>,
) -> Result<u64> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..job.threads)
            .map(|thread| {
                let (order, numbers) = (Arc::clone(order), numbers.clone());
                scope.spawn(move || -> Result<u64> {
                    let mut read = peer.reader()?;
                    let mut rng = Rng::new(job.seed ^ numbers.start, thread);
                    let mut hits = 0;
                    for number in numbers {
                        let offset = order.page(number, &mut rng) * PAGE_BYTES;
                        let (byte, hit) = read(offset)?;
                        debug_assert_eq!(u64::from(byte), content::word(offset / 8) & 0xFF);
                        hits += u64::from(hit);
                    }
                    Ok(hits)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
            .sum()
    })
}

/// Draws pages in the order of a workload.
struct Order {
    workload: Workload,
    /// Number of pages that are drawn.
    pages: u64,
    sums: Vec<f64>,
}

impl Order {
    fn new(job: &CacheJob) -> Self {
        let all = job.file_bytes / PAGE_BYTES;
        let (pages, ranks) = match job.workload {
            // Half of the cache, so that no part of it overflows.
            Workload::Hits => (job.cache_bytes / PAGE_BYTES / 2, 0),
            _ => (all, all),
        };
        let mut sum = 0.0;
        let weights = (1..=ranks).map(|rank| (rank as f64).powf(-0.99));
        let sums = weights.map(|weight| {
            sum += weight;
            sum
        });
        Self { workload: job.workload, pages, sums: sums.collect() }
    }

    fn page(&self, number: u64, rng: &mut Rng) -> u64 {
        if self.workload == Workload::Hits {
            return rng.below(self.pages);
        }
        if self.workload == Workload::Mixed && number.is_multiple_of(4) {
            return number / 4 % self.pages;
        }
        let last = self.sums.last().copied().unwrap_or_default();
        let at = (rng.next() >> 11) as f64 / (1_u64 << 53) as f64 * last;
        // Pages that are wanted often lie anywhere in the file.
        content::word(self.sums.partition_point(|sum| *sum < at) as u64) % self.pages
    }
}

/// A page of the program's own caches.
pub(crate) type Page = Arc<[u8]>;

/// Reads pages past the page cache, for caches that have no reads of their own.
pub(crate) struct Direct {
    file: std::fs::File,
}

impl Direct {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(path);
        Ok(Self { file: file.with_context(|| format!("opening {}", path.display()))? })
    }

    /// Returns a function that reads a page into memory of one thread, and passes it on.
    pub(crate) fn reader(&self) -> Result<impl FnMut(u64) -> Result<Page> + '_> {
        let mut memory = pieces(1, PAGE_BYTES as usize, PageKind::Small)?;
        Ok(move |offset| {
            self.file.read_exact_at(&mut memory[0], offset).context("reading a page")?;
            Ok(Page::from(&memory[0][..]))
        })
    }
}
