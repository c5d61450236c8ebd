//! `cache`: reads of single pages through a cache in the program, beside other caches and the page cache.

mod forebay;
mod maps;
mod page_cache;

use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use forebay_report::units::bytes;

use crate::prelude::*;

/// The experiment.
pub(crate) static CACHE: Versus = Versus { spec: &SPEC, targets: &TARGETS, plan, sample, title };

static SPEC: Spec = spec(
    "cache",
    "Cached reads of pages, beside other caches and the page cache",
    &[
        Opt::word("workloads", "Orders of the pages", &["hits", "zipf", "mixed"]).list().or("hits,zipf,mixed"),
        Opt::count("threads", "Threads that read", 1024).or("2"),
        Opt::count("file-mib", "Size of the test file, in MiB", 1 << 40).or("1024"),
        Opt::count("cache-mib", "Size of the cache, in MiB", 1 << 40).or("128"),
        Opt::count("hits", "Reads of each thread in a sample where all are hits", 1 << 40).or("5000000"),
        Opt::count(
            "reads",
            "Reads of each thread in a sample where some go to the device; a third of them before, to warm up",
            1 << 40,
        )
        .or("100000"),
        Opt::count("repeats", "Interleaved repeats, each with fresh pages", 1000).or("5"),
    ],
    &[
        Way::direct("forebay", "forebay-cache: CachedFile::read(..).wait()"),
        Way::direct("forebay-again", "the same, for the A-A spread"),
        Way::direct("forebay-get", "forebay-cache: CachedFile::get first, which makes no future"),
        Way::direct("foyer", "foyer-memory 0.22, and pread"),
        Way::direct("moka", "moka 0.12, and pread"),
        Way::direct("quick_cache", "quick_cache 0.7, and pread"),
        Way::cached("page-cache", "pread through the page cache, with read-ahead off"),
        Way::direct("pread", "direct pread, no cache"),
    ],
    &[
        column("ns_per_read", "ns/read", 1.0, "nanoseconds that one thread waits for one read"),
        column("hit_rate", "hit rate", 1.0, "share of the reads that the cache served"),
        column("cpu_ns_per_read", "CPU ns", 1.0, "processor nanoseconds of all threads for one read"),
        column("allocations_per_io", "allocs", 1.0, "heap allocations for one read"),
    ],
    "ns_per_read",
);

static TARGETS: Targets =
    Targets { spreads: &[("forebay-again", "ns_per_read", "a_a_spread")], ..Targets::NONE };

/// Memory of a row beside its cache, where memory is limited.
const BESIDE_BYTES: u64 = 160 << 20;

fn title(table: &Table) -> String {
    let number = |name| table.number(name).unwrap_or(0.0) as u64;
    format!(
        "{}: pages of 4 KiB from {} threads, a cache of {}, a file of {}, {} reads a thread",
        table.text("workload"),
        number("threads"),
        bytes(number("cache_bytes")),
        bytes(number("file_bytes")),
        number("reads")
    )
}

fn plan<'c>(options: &Values, context: &'c Context) -> Result<Run<'c>> {
    let (scratch, place) = run::scratch(context, SPEC.name, false)?;
    let (file_bytes, cache_bytes) =
        (run::file_bytes(options.count("file-mib")), options.count("cache-mib") << 20);
    ensure!(file_bytes >= 2 * cache_bytes, "the file has to be at least twice as large as the cache");
    let file = run::test_file(context, &scratch.directory, file_bytes)?;
    let limit = run::limit(context, cache_bytes + BESIDE_BYTES);
    let settings = options.words("workloads").into_iter().map(|workload| {
        parameters(json!({
            "workload": workload, "threads": options.count("threads"), "file_bytes": file_bytes,
            "cache_bytes": cache_bytes, "reads": options.count(if workload == "hits" { "hits" } else { "reads" }),
            "memory_limit_bytes": limit.is_some().then_some(cache_bytes + BESIDE_BYTES),
        }))
    });
    let method = "Each sample is a process of its own with an order of pages of its own. All rows have the same memory. \
        Caches are warm. Rows take turns within a repeat, and figures are medians.";
    let mut run = Run::new(context, place, settings.collect(), method);
    run.limit = limit;
    // The device takes 100 us where a cache takes a tenth of one.
    let reads_of_device = options.count("reads") / 10;
    run.prepare = Box::new(move |turn, job| {
        job.path = file.path().to_owned();
        crate::page_cache::evict(file.path(), false)?;
        if turn.way.name == "pread" {
            run::add(job, "reads", (turn.number("reads") as u64).min(reads_of_device));
        }
        Ok(None)
    });
    Ok(run)
}

/// The work of a sample.
#[derive(Debug, Deserialize)]
struct Work {
    #[serde(skip)]
    path: PathBuf,
    #[serde(skip)]
    seed: u64,
    file_bytes: u64,
    workload: Workload,
    threads: usize,
    cache_bytes: u64,
    reads: u64,
}

/// Orders of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Workload {
    /// Random pages that are all in the cache.
    #[default]
    Hits,
    /// Pages of the whole file, some more often than others (Zipf, 0.99).
    Zipf,
    /// The same, and one read in four belongs to a scan of the file.
    Mixed,
}

/// Reads the page that begins at an offset, on one thread: returns its first byte, and whether it was in the cache, where
/// that is known.
type Reader<'p> = Box<dyn FnMut(u64) -> Result<(u8, bool)> + 'p>;

/// A way to read a page. One value serves all threads.
trait Peer: Send + Sync {
    /// Returns a reader for one thread.
    fn reader(&self) -> Result<Reader<'_>>;

    /// Returns the hits so far, of a cache that counts them itself.
    fn hits(&self) -> Option<u64> {
        None
    }
}

fn sample(job: &Job) -> Result<Outcome> {
    let work = Work { path: job.path.clone(), seed: job.seed, ..job.work()? };
    let peer: Box<dyn Peer> = match without_again(&job.row) {
        "forebay" => Box::new(forebay::Pages::open(&work, false)?),
        "forebay-get" => Box::new(forebay::Pages::open(&work, true)?),
        "foyer" => Box::new(maps::foyer(&work)?),
        "moka" => Box::new(maps::moka(&work)?),
        "quick_cache" => Box::new(maps::quick(&work)?),
        "page-cache" => Box::new(page_cache::Pages::open(&work, false)?),
        "pread" => Box::new(page_cache::Pages::open(&work, true)?),
        other => return Err(no_row(other)),
    };
    let order = Order::new(&work);
    // Warm up: all pages of `hits`, a third of the reads of the others.
    let before = if work.workload == Workload::Hits { 0 } else { work.reads / 3 };
    if work.workload == Workload::Hits && job.row != "pread" {
        let mut read = peer.reader()?;
        for _ in 0..2 {
            (0..order.pages).try_for_each(|page| read(page * PAGE_BYTES).map(drop))?;
        }
    }
    run_threads(peer.as_ref(), &order, &work, 0..before)?;
    let hits_before = peer.hits();
    let (used, begun) = (Usage::now(), Instant::now());
    let hits = run_threads(peer.as_ref(), &order, &work, before..work.reads)?;
    let (seconds, used) = (begun.elapsed().as_secs_f64(), Usage::now().since(&used));
    let reads = (work.reads - before) * work.threads as u64;
    let hits = peer.hits().zip(hits_before).map_or(hits, |(after, before)| after - before);
    let mut outcome = Outcome::lasting(seconds);
    used.add_to(&mut outcome, reads);
    outcome
        .figures
        .set("ns_per_read", seconds * 1e9 / (work.reads - before) as f64)
        .set("cpu_ns_per_read", used.cpu_ns as f64 / reads as f64);
    if !matches!(job.row.as_str(), "page-cache" | "pread") {
        outcome.figures.set("hit_rate", hits as f64 / reads as f64);
    }
    Ok(outcome)
}

fn run_threads(peer: &dyn Peer, order: &Order, work: &Work, numbers: Range<u64>) -> Result<u64> {
    let hits = on_threads((0..work.threads).map(|thread| {
        let numbers = numbers.clone();
        move || {
            let mut read = peer.reader()?;
            let mut rng = Rng::new(work.seed ^ numbers.start, thread);
            let mut hits = 0;
            for number in numbers {
                let offset = order.page(number, &mut rng) * PAGE_BYTES;
                let (byte, hit) = read(offset)?;
                debug_assert_eq!(u64::from(byte), content::word(offset / 8) & 0xFF);
                hits += u64::from(hit);
            }
            Ok(hits)
        }
    }))?;
    Ok(hits.iter().sum())
}

/// Draws pages in the order of a workload.
struct Order {
    workload: Workload,
    /// Number of pages that are drawn.
    pages: u64,
    sums: Vec<f64>,
}

impl Order {
    fn new(work: &Work) -> Self {
        let all = work.file_bytes / PAGE_BYTES;
        let (pages, ranks) = match work.workload {
            // Half of the cache, so that no part of it overflows.
            Workload::Hits => (work.cache_bytes / PAGE_BYTES / 2, 0),
            _ => (all, all),
        };
        let mut sum = 0.0;
        let weights = (1..=ranks).map(|rank| (rank as f64).powf(-0.99));
        let sums = weights.map(|weight| {
            sum += weight;
            sum
        });
        Self { workload: work.workload, pages, sums: sums.collect() }
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
type Page = Arc<[u8]>;

/// Reads pages past the page cache, for caches that have no reads of their own.
struct Direct {
    file: std::fs::File,
}

impl Direct {
    fn open(path: &Path) -> Result<Self> {
        let file = std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(path);
        Ok(Self { file: file.with_context(|| format!("opening {}", path.display()))? })
    }

    /// Returns a function that reads a page into memory of one thread, and passes it on.
    fn reader(&self) -> Result<impl FnMut(u64) -> Result<Page> + '_> {
        let mut memory = pieces(1, PAGE_BYTES as usize, PageKind::Small)?;
        Ok(move |offset| {
            self.file.read_exact_at(&mut memory[0], offset).context("reading a page")?;
            Ok(Page::from(&memory[0][..]))
        })
    }
}
