//! `cache`: reads of single pages through a cache in the program, compared with other caches and the page cache.

use std::ops::Range;

use forebay::{Config, Engine, Open};
use forebay_cache::{Cache, CacheOptions};
use forebay_report::units::bytes;

use crate::prelude::*;

experiment! {
    CACHE "cache", "Cached reads of pages, beside other caches and the page cache",
        compared by "ns_per_read", per |_| "io";
    options {
        word("workloads", "Orders of the pages", &["hits", "zipf", "mixed"]).list().or("hits,zipf,mixed");
        count("threads", "Threads that read", 1024).or("2");
        count("file-mib", "Size of the test file, in MiB", 1 << 40).or("1024");
        count("cache-mib", "Size of the cache, in MiB", 1 << 40).or("128");
        count("hits", "Reads of each thread in a sample where all are hits", 1 << 40).or("5000000");
        count("reads",
            "Reads of each thread in a sample where some go to the device; a third of them before, to warm up", 1 << 40)
            .or("100000");
        count("repeats", "Interleaved repeats, each with fresh pages", 1000).or("5");
    }
    rows {
        direct "forebay", "forebay-cache: CachedFile::read(..).wait()" => |work| forebay(work, false), twin direct;
        direct "forebay-get", "forebay-cache: CachedFile::get first, which makes no future"
            => |work| forebay(work, true);
        direct "foyer", "foyer-memory 0.22, and pread" => foyer;
        direct "moka", "moka 0.12, and pread" => moka;
        direct "quick_cache", "quick_cache 0.7, and pread" => quick_cache;
        cached "page-cache", "pread through the page cache, with read-ahead off" => |work| pread(work, false);
        direct "pread", "direct pread, no cache" => |work| pread(work, true);
    }
    columns {
        "ns_per_read" "ns/read", "nanoseconds that one thread waits for one read";
        "hit_rate" "hit rate", "share of the reads that the cache served";
        "cpu_ns_per_read" "CPU ns", "processor nanoseconds of all threads for one read";
        "allocations_per_io" "allocs", "heap allocations for one read";
    }
    ranked by ""
    ratios {}
    spreads { "forebay-again" "ns_per_read" "a_a_spread"; }
    limits {}
}

/// Memory of a row in addition to its cache, where memory is limited.
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
    let method = "Each sample is a process of its own with an order of pages of its own. All rows have the same memory. \
        Caches are warm. Rows take turns within a repeat, and figures are medians.";
    let (mut run, scratch) = Run::in_directory(context, CACHE.spec.name, false, method)?;
    let cache_bytes = options.count("cache-mib") << 20;
    let is_large = run::file_bytes(options.count("file-mib")) >= 2 * cache_bytes;
    ensure!(is_large, "the file has to be at least twice as large as the cache");
    let file_bytes = run.make_files(&scratch, options)?;
    let limit_bytes = Some(cache_bytes + BESIDE_BYTES).filter(|bytes| run.limit_memory(*bytes));
    for workload in options.words("workloads") {
        run.table(json!({
            "workload": workload, "threads": options.count("threads"), "file_bytes": file_bytes,
            "cache_bytes": cache_bytes, "memory_limit_bytes": limit_bytes,
            "reads": options.count(if workload == "hits" { "hits" } else { "reads" }),
        }));
    }
    // The device needs 100 us where a cache needs a tenth of one.
    let reads_of_device = options.count("reads") / 10;
    run.prepare = Box::new(move |turn, job| {
        files::evict(&job.path, false)?;
        if turn.way.name == "pread" {
            run::add(job, "reads", (turn.number("reads") as u64).min(reads_of_device));
        }
        Ok(None)
    });
    Ok(run)
}

/// Reads the page at an offset, on one thread: returns its first byte, and whether it was in the cache, if known.
type Reader<'p> = Box<dyn FnMut(u64) -> Result<(u8, bool)> + 'p>;

/// Measures forebay-cache; with `gets` a page is looked for without a future first.
fn forebay(work: &Work, gets: bool) -> Result<Outcome> {
    let engine = Engine::start(Config::new().shards(1).arena_bytes_max(2 * work.cache_bytes as usize))?;
    let cache = Cache::new(&engine, CacheOptions::new().bytes_max(work.cache_bytes))?;
    let file = cache.open(&work.path, Open::read()).wait()?;
    let reader = || -> Result<Reader<'_>> {
        let file = &file;
        Ok(Box::new(move |offset| {
            let page = offset..offset + PAGE_BYTES;
            if gets && let Some(page) = file.get(page.clone()) {
                return Ok((page[0], false));
            }
            Ok((file.read(page).wait()?[0], false))
        }))
    };
    measure(work, reader, || Some(cache.stats().pages.hits))
}

fn foyer(work: &Work) -> Result<Outcome> {
    let builder = foyer_memory::CacheBuilder::new(work.cache_bytes as usize).with_shards(32);
    let map: &foyer_memory::Cache<u64, Page> =
        &builder.with_weighter(|_: &u64, page: &Page| page.len()).build();
    let (file, first_byte) =
        (&open_direct(&work.path)?, |at: &u64| map.get(at).map(|entry| entry.value()[0]));
    before_file(work, file, first_byte, |at, page| drop(map.insert(at, page.into())))
}

fn moka(work: &Work) -> Result<Outcome> {
    let map = &moka::sync::Cache::<u64, Page>::new(work.cache_bytes / PAGE_BYTES);
    let file = &open_direct(&work.path)?;
    before_file(work, file, |at| map.get(at).map(|page| page[0]), |at, page| map.insert(at, page.into()))
}

/// Measures the map inside of forebay-cache.
fn quick_cache(work: &Work) -> Result<Outcome> {
    let map = &quick_cache::sync::Cache::<u64, Page>::new((work.cache_bytes / PAGE_BYTES) as usize);
    let file = &open_direct(&work.path)?;
    before_file(work, file, |at| map.get(at).map(|page| page[0]), |at, page| map.insert(at, page.into()))
}

/// A page of a map in memory.
type Page = Arc<[u8]>;

/// Measures `pread`: past the page cache without any cache, or through it.
fn pread(work: &Work, direct: bool) -> Result<Outcome> {
    let file = if direct { open_direct(&work.path)? } else { File::open(&work.path)? };
    // Read-ahead would bring pages that are not wanted.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
    before_file(work, &file, |_| None, |_, _| ())
}

/// Measures a map of pages in memory, with the pages that it does not have read by `pread`. `first_byte` is that of the page
/// at an offset, if it is there.
fn before_file(
    work: &Work,
    file: &File,
    first_byte: impl Fn(&u64) -> Option<u8> + Copy + Sync,
    put: impl Fn(u64, &[u8]) + Copy + Sync,
) -> Result<Outcome> {
    let reader = || -> Result<Reader<'_>> {
        let memory = pieces(1, PAGE_BYTES as usize, PageKind::Small)?.remove(0);
        Ok(Box::new(move |offset| {
            if let Some(byte) = first_byte(&offset) {
                return Ok((byte, true));
            }
            file.read_exact_at(memory, offset).context("reading a page")?;
            put(offset, memory);
            Ok((memory[0], false))
        }))
    };
    measure(work, reader, || None)
}

/// Measures threads with a reader each. `hits` are those so far, of a cache that counts them itself.
fn measure<'p>(
    work: &Work,
    reader: impl Fn() -> Result<Reader<'p>> + Sync,
    hits: impl Fn() -> Option<u64>,
) -> Result<Outcome> {
    let order = Order::new(work);
    let run_threads = |numbers: Range<u64>| -> Result<u64> {
        let hits = on_threads((0..work.threads).map(|thread| {
            let (reader, order, numbers) = (&reader, &order, numbers.clone());
            move || {
                let (mut read, stream) = (reader()?, thread + numbers.start as usize * work.threads);
                let (mut hits, mut rng) = (0, work.rng(stream));
                for number in numbers {
                    let offset = order.page(number, &mut rng) * PAGE_BYTES;
                    let (byte, hit) = read(offset)?;
                    debug_assert_eq!(u64::from(byte), files::word(offset / 8) & 0xFF);
                    hits += u64::from(hit);
                }
                Ok(hits)
            }
        }))?;
        Ok(hits.iter().sum())
    };
    // Warm up: all pages of `hits`, a third of the reads of the others.
    let before = if order.is_hits() { 0 } else { work.reads / 3 };
    if order.is_hits() && work.row != "pread" {
        let mut read = reader()?;
        for _ in 0..2 {
            (0..order.pages).try_for_each(|page| read(page * PAGE_BYTES).map(drop))?;
        }
    }
    run_threads(0..before)?;
    let hits_before = hits();
    let (used, begun) = (Usage::now(), Instant::now());
    let seen = run_threads(before..work.reads)?;
    let (seconds, used) = (begun.elapsed().as_secs_f64(), Usage::now().since(&used));
    let reads = (work.reads - before) * work.threads as u64;
    let hits = hits().zip(hits_before).map_or(seen, |(after, before)| after - before);
    let has_cache = !matches!(&*work.row, "page-cache" | "pread");
    let mut outcome = Outcome::lasting(seconds)
        .figure("ns_per_read", seconds * 1e9 / (work.reads - before) as f64)
        .figure("cpu_ns_per_read", used.0[usage::CPU_NS] / reads as f64)
        .figure("hit_rate", has_cache.then_some(hits as f64 / reads as f64));
    used.add_to(&mut outcome, reads);
    Ok(outcome)
}

/// Draws pages in the order of a workload: `hits`, random pages that are all in the cache; `zipf`, pages of the whole file,
/// some more often than others (Zipf, 0.99); `mixed`, the same, and one read in four belongs to a scan of the file.
struct Order {
    /// Number of pages that are drawn.
    pages: u64,
    is_mixed: bool,
    /// Sums of the weights of pages; empty: all pages weigh the same.
    sums: Vec<f64>,
}

impl Order {
    fn new(work: &Work) -> Self {
        let mut pages = work.file_bytes / PAGE_BYTES;
        let mut sums = Vec::new();
        if work.workload == "hits" {
            // Half of the cache, so that no part of it overflows.
            pages = work.cache_bytes / PAGE_BYTES / 2;
        } else {
            let weights = (1..=pages).map(|rank| (rank as f64).powf(-0.99));
            sums.extend(weights.scan(0.0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            }));
        }
        Self { pages, is_mixed: work.workload == "mixed", sums }
    }

    fn is_hits(&self) -> bool {
        self.sums.is_empty()
    }

    fn page(&self, number: u64, rng: &mut SplitMix) -> u64 {
        let Some(last) = self.sums.last() else { return rng.below(self.pages) };
        if self.is_mixed && number.is_multiple_of(4) {
            return number / 4 % self.pages;
        }
        let at = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 * last;
        // Pages that are wanted often lie anywhere in the file.
        files::word(self.sums.partition_point(|sum| *sum < at) as u64) % self.pages
    }
}
