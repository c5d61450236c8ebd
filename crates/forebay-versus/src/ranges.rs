//! `ranges`: the batch that a data-frame reader makes: 20,000 ranges of one file, requested from Tokio, total
//! time.

use std::io::SeekFrom;
use std::ops::Range;

use forebay::{Config, Engine, Open};
use forebay_report::units::number;
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio::runtime::Builder;
use tokio::sync::Semaphore;

use crate::prelude::*;
use crate::run::{HOT_KEPT_SHARE, LOADED_SHARE, RESIDENT_PEAK_BYTES};

/// The shapes of a batch: how its ranges lie in the file.
const SHAPES: [(&str, &str); 4] = [
    ("uniform", "4 KiB at random multiples of 4 KiB"),
    ("clustered", "chunks of 50 ranges of 1-16 KiB with gaps below 16 KiB, any offset"),
    ("mixed", "1-64 KiB at any offset"),
    // From the start again after the last of the file.
    ("records", "3 KiB one behind the other"),
];
/// Ranges that belong together in the clustered shape, as the columns of one row group do.
const CLUSTER_RANGES: usize = 50;
const KIB: u64 = 1024;

const SEQUENTIAL: &[&str] = &["tokio-fs-sequential"];
const TASKS: &[&str] = &["tokio-fs-tasks"];
const OBJECT_STORE: &[&str] = &["object-store-like"];
const STREAM: &[&str] = &["read_many"];
const AGAIN: &str = "tokio-fs-sequential-again";

experiment! {
    RANGES "ranges", "20,000 ranges of one file, read as one batch from Tokio, cold and warm",
        compared by "total_ms", per |_| "io";
    options {
        word("shapes", "Shapes of the batch", &["uniform", "clustered", "mixed", "records"])
            .list().or("uniform,clustered,mixed");
        // Nothing, all, and one run of 16 pages in 2 or 10 is cached.
        word("caches", "States of the page cache", &["cold", "warm", "half", "tenth"]).list().or("cold,warm");
        count("count", "Ranges of a batch", 1 << 32).or("20000");
        count("repeats", "Interleaved repeats, each with fresh ranges", 1000).or("5");
        count("file-mib", "Size of the test file, in MiB", 1 << 40).or("3072");
        count("tasks-max", "Tasks of `tokio-fs-tasks` at work at once (each holds an open file)", 1 << 20).or("128");
        count("memory-mib", "Memory of a sample, page cache included, in MiB (root); 0: no limit", 1 << 40)
            .zero_too().or("0");
        count("hot-mib", run::HOT_MIB, 1 << 40).zero_too().or("0");
    }
    rows {
        cached "tokio-fs-sequential", "one task, one file: seek, read_exact, next" => sequential, twin cached;
        cached "tokio-fs-tasks", "a task for each range, each with a file of its own" => task_each;
        cached "object-store-like", "one spawn_blocking for the batch, as object_store does for local files"
            => one_task;
        cached "mmap", "a memory map, each range copied into a vector, one thread" => copy_from_map;
        direct "read_many", "Forebay's batch as a stream: each range is used and dropped as it arrives"
            => |work| read_many(work, Open::read(), true);
        direct "read_many-collect", "Forebay's batch as a whole, all ranges held"
            => |work| read_many(work, Open::read(), false);
        cached "read_many-buffered", "the same on a file opened buffered"
            => |work| read_many(work, Open::read().buffered(), false);
        cached "read_many-adaptive", "the same on a file opened adaptive"
            => |work| read_many(work, Open::read().adaptive(), false);
        cached "read_many-adaptive-stream", "as read_many, on a file opened adaptive"
            => |work| read_many(work, Open::read().adaptive(), true);
    }
    columns {
        "total_ms" "total ms", "milliseconds from opening the file to the last range checked";
        "times_faster_than_sequential" "x sequential", "how many times faster than `tokio-fs-sequential`";
        "cpu_ms" "CPU ms", "processor milliseconds, user and system, all threads";
        "allocations_per_range" "allocs/range", "heap allocations for one range";
        RESIDENT_PEAK_BYTES;
        "page_cache_share" "from page cache", "share of the ranges that the page cache served at once";
        LOADED_SHARE;
        HOT_KEPT_SHARE;
    }
    ranked by "ranges_per_s"
    ratios { "times_faster_than_sequential" "ranges_per_s" Over SEQUENTIAL; }
    spreads { "tokio-fs-sequential-again" "total_ms" "a_a_spread"; }
    // A warm stream is shown, even if it is not the faster row.
    limits {
        // One batch of a fresh process: opening the file and tables that grow by doubling are included, which is some hundred
        // allocations. The steady state has its target in `random`.
        "read_many" "allocations_per_range" at_most 0.05;
        // The better of direct and buffered.
        "read_many-adaptive" "total_ms" over &["read_many-collect", "read_many-buffered"], within AGAIN, at_most 1.05;
        "read_many-adaptive" "total_ms" over OBJECT_STORE, within AGAIN, at_most 0.4, when is_cold;
        "read_many-adaptive" "total_ms" over OBJECT_STORE, within AGAIN, at_most 1.0, when |table| !is_cold(table);
        "read_many-collect" "total_ms" over STREAM, within AGAIN, at_most 1.5, when |table| shape(table) == "records";
        "read_many-collect" "cpu_ms" over STREAM, within AGAIN, at_most 1.5, when |table| shape(table) == "records";
        "read_many" "ranges_per_s" over SEQUENTIAL, within AGAIN, at_least 3.0, when is_cold;
        "read_many" "ranges_per_s" over &["mmap"], within AGAIN, at_least 1.0, when is_cold;
        "read_many" "ranges_per_s" over TASKS, within AGAIN, at_least 1.2,
            when |table| is_cold(table) && shape(table) == "uniform";
        "read_many" "ranges_per_s" over TASKS, within AGAIN, at_least 2.0,
            when |table| is_cold(table) && shape(table) == "clustered";
        "read_many" "cpu_ms" over TASKS, within AGAIN, at_most 0.5, when is_cold;
    }
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
    let method = "Each sample is a process of its own with one batch of fresh ranges, from Tokio; its time runs from opening \
        the file to the last range checked. Rows take turns within a repeat; ratios are those of the same repeat, and \
        figures medians.";
    let (mut run, scratch) = Run::in_directory(context, RANGES.spec.name, false, method)?;
    let memory_bytes = options.count("memory-mib") << 20;
    let is_limited = memory_bytes > 0;
    ensure!(!is_limited || run.limit_memory(memory_bytes), "--memory-mib needs a memory cgroup");
    let file_bytes = run.make_files(&scratch, options)?;
    let drop_caches = rustix::process::geteuid().is_root();
    if !drop_caches {
        context
            .progress
            .print_line("without root only the file itself is dropped from the page cache, not its metadata");
    }
    for cache in options.words("caches") {
        for shape in options.words("shapes") {
            let ranges_are = SHAPES.iter().find(|(name, _)| *name == shape).map(|(_, ranges_are)| ranges_are);
            run.table(json!({
                "device": "disk", "shape": shape, "ranges_are": ranges_are, "cache": cache,
                "ranges": options.count("count"), "file_bytes": file_bytes, "tasks_max": options.count("tasks-max"),
                "memory_limit_bytes": is_limited.then_some(memory_bytes),
                "hot_bytes": options.count("hot-mib") << 20, "tokio_workers": cores(),
            }));
        }
    }
    run.prepare = Box::new(move |turn, job| {
        let cache = turn.text("cache");
        if cache == "warm" {
            files::load(&job.path)?;
        } else {
            files::evict(&job.path, drop_caches)?;
            if cache != "cold" {
                files::load_every(&job.path, if cache == "half" { 2 } else { 10 })?;
            }
        }
        Ok(None)
    });
    Ok(run)
}

/// Measures a batch from Tokio, from opening the file to the last range checked. `take` gets the ranges twice: to pass on,
/// and to check.
fn batch(
    work: &Work,
    take: impl AsyncFnOnce(Vec<Range<u64>>, &[Range<u64>]) -> Result<()>,
) -> Result<Outcome> {
    let ranges = ranges(work);
    let wanted = ranges.clone();
    Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let (used, begun) = (Usage::now(), Instant::now());
        take(ranges, &wanted).await?;
        let seconds = begun.elapsed().as_secs_f64();
        let (used, ranges) = (Usage::now().since(&used), wanted.len() as f64);
        Ok(Outcome::lasting(seconds)
            .figure("total_ms", seconds * 1e3)
            .figure("ranges_per_s", ranges / seconds)
            .figure("cpu_ms", used.0[usage::CPU_NS] / 1e6)
            .figure("context_switches_per_range", used.0[usage::CONTEXT_SWITCHES] / ranges)
            .figure(
                "allocations_per_range",
                Some(used.0[usage::ALLOCATIONS] / ranges).filter(|count| !count.is_nan()),
            ))
    })
}

/// Checks `got` against the test file's content at `range`: its length, its first and its last bytes.
pub(crate) fn check(range: &Range<u64>, got: &[u8]) -> Result<()> {
    ensure!(got.len() as u64 == range.end - range.start, "range {range:?} gave {} bytes", got.len());
    files::check_start(got, range.start)?;
    let tail = got.len().saturating_sub(8);
    files::check_start(&got[tail..], range.start + tail as u64)
}

/// Measures one task of Tokio with one file: seek, read, next.
fn sequential(work: &Work) -> Result<Outcome> {
    batch(work, async |ranges, _| {
        let mut file = File::open(&work.path).await?;
        for range in ranges {
            check(&range, &read(&mut file, &range).await?)?;
        }
        Ok(())
    })
}

/// Measures one task of Tokio a range. The cursor belongs to the file, so each task opens the file for itself. A
/// semaphore bounds how many are at work, or 20,000 open files would meet the limit on descriptors.
fn task_each(work: &Work) -> Result<Outcome> {
    batch(work, async |ranges, _| {
        let permits = Arc::new(Semaphore::new(work.tasks_max));
        let mut tasks = tokio::task::JoinSet::new();
        for range in ranges {
            let (permits, path) = (Arc::clone(&permits), work.path.clone());
            tasks.spawn(async move {
                let _permit = permits.acquire().await?;
                let mut file = File::open(path).await?;
                check(&range, &read(&mut file, &range).await?)
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(())
    })
}

async fn read(file: &mut File, range: &Range<u64>) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.seek(SeekFrom::Start(range.start)).await?;
    file.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Measures the way of `object_store`'s local file system in `get_ranges`: one `spawn_blocking` for all ranges, sorted and
/// merged where they touch or overlap (no gap is bridged), then read one after the other with pread into a vector each. All
/// of them are returned together and then checked.
fn one_task(work: &Work) -> Result<Outcome> {
    batch(work, async |ranges, wanted| {
        let path = work.path.clone();
        let task = tokio::task::spawn_blocking(move || -> Result<_> {
            let file = std::fs::File::open(path)?;
            let merged = merge_touching(&ranges);
            let mut fetched = Vec::with_capacity(merged.len());
            for range in &merged {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                file.read_exact_at(&mut bytes, range.start)?;
                fetched.push(bytes);
            }
            Ok((merged, fetched))
        });
        let (merged, fetched) = task.await??;
        for range in wanted {
            let at = merged.partition_point(|other| other.start <= range.start) - 1;
            let place = |offset| (offset - merged[at].start) as usize;
            check(range, &fetched[at][place(range.start)..place(range.end)])?;
        }
        Ok(())
    })
}

fn merge_touching(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Maps the file with the default advice and copies one range after the other into a new vector. This is the work of a reader
/// that has to own the bytes before it decodes them.
fn copy_from_map(work: &Work) -> Result<Outcome> {
    batch(work, async |ranges, _| {
        let file = std::fs::File::open(&work.path)?;
        // SAFETY: the file is this run's own and nothing changes it while it is mapped.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        for range in ranges {
            let bytes = map[range.start as usize..range.end as usize].to_vec();
            check(&range, &bytes)?;
        }
        Ok(())
    })
}

/// Measures `read_many` as a stream, each range checked when it arrives, in any order, and its memory released; or as a
/// whole: all ranges are held together, in the order of the request.
fn read_many(work: &Work, open: Open, streams: bool) -> Result<Outcome> {
    let engine = Engine::start(Config::new())?;
    usage::count_allocations();
    let outcome = batch(work, async |ranges, wanted| {
        let file = engine.open(&work.path, open).await?;
        let read = file.read_many(ranges);
        let mut seen = 0;
        if streams {
            let mut stream = read.stream();
            while let Some((index, block)) = stream.next().await {
                check(&wanted[index], &block?)?;
                seen += 1;
            }
        } else {
            for (range, block) in wanted.iter().zip(read.await?) {
                check(range, &block?)?;
                seen += 1;
            }
        }
        ensure!(seen == wanted.len(), "{seen} of {} ranges came back", wanted.len());
        Ok(())
    })?;
    let served = engine.stats().wait()?.page_cache_reads as f64;
    Ok(outcome.figure("page_cache_share", served / work.ranges as f64))
}

/// Returns the ranges of a sample's batch, in random order, the same for the same seed.
pub(crate) fn ranges(work: &Work) -> Vec<Range<u64>> {
    let (shape, count, file_bytes) = (&*work.shape, work.ranges, work.file_bytes);
    let mut rng = work.rng(0);
    let mut ranges = Vec::with_capacity(count);
    while ranges.len() < count {
        match shape {
            "uniform" => {
                let start = page_offset(&mut rng, file_bytes);
                ranges.push(start..start + 4 * KIB);
            }
            "clustered" => {
                let room = CLUSTER_RANGES as u64 * 32 * KIB;
                let mut at = rng.below(file_bytes.saturating_sub(room).max(1));
                for _ in 0..CLUSTER_RANGES.min(count - ranges.len()) {
                    let end = (at + KIB + rng.below(15 * KIB)).min(file_bytes);
                    ranges.push(at.min(end - 1)..end);
                    at = end + rng.below(16 * KIB);
                }
            }
            "mixed" => {
                let length = KIB + rng.below(63 * KIB + 1);
                let start = rng.below(file_bytes - length + 1);
                ranges.push(start..start + length);
            }
            _ => {
                let start = ranges.len() as u64 % (file_bytes / (3 * KIB)).max(1) * 3 * KIB;
                ranges.push(start..(start + 3 * KIB).min(file_bytes));
            }
        }
    }
    // A batch is in the order of the query, not of the file; clusters stay together, as column chunks do.
    if !matches!(shape, "clustered" | "records") {
        rng.shuffle(&mut ranges);
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(shape: &str, ranges: usize, file_bytes: u64, seed: u64) -> Vec<Range<u64>> {
        super::ranges(&Work { shape: shape.to_owned(), ranges, file_bytes, seed, ..Work::default() })
    }

    #[test]
    fn every_shape_has_the_count_stays_in_the_file_and_depends_on_the_seed_only() {
        let file_bytes = 64 << 20;
        for (shape, _) in SHAPES {
            let ranges = make(shape, 1003, file_bytes, 7);
            assert_eq!(ranges.len(), 1003);
            assert!(ranges.iter().all(|range| range.start < range.end && range.end <= file_bytes));
            assert_eq!(ranges, make(shape, 1003, file_bytes, 7));
            assert!(shape == "records" || ranges != make(shape, 1003, file_bytes, 8));
        }
    }

    #[test]
    fn gaps_within_a_cluster_are_below_16_kib() {
        let ranges = make("clustered", 500, 1 << 30, 3);
        for cluster in ranges.chunks(CLUSTER_RANGES) {
            assert!(
                cluster
                    .windows(2)
                    .all(|pair| pair[1].start >= pair[0].end && pair[1].start - pair[0].end < 16 * KIB)
            );
        }
    }

    #[test]
    fn touching_and_overlapping_ranges_merge_and_gaps_stay() {
        assert_eq!(merge_touching(&[10..20, 0..5, 20..30, 25..27, 40..50]), [0..5, 10..30, 40..50]);
        assert!(merge_touching(&[]).is_empty());
    }
}
