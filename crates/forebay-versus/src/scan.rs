//! `scan`: one sequential pass over a file that does not fit into the memory that a row may use.

use ::forebay::Open;
use forebay_measure::prefault;
use forebay_report::result::columns::{BUFFERS_PEAK_BYTES, CPU_S_PER_GB, MB_PER_S, MEMORY_PEAK_BYTES};
use forebay_report::units::bytes;

use crate::fio;
use crate::peers::runtimes::{compio, glommio, monoio, tokio_uring};
use crate::peers::{bare, blocking, forebay};
use crate::prelude::*;
use crate::run::{HOT_KEPT_SHARE, LOADED_SHARE, RATIO_TO_LIMIT, RESIDENT_PEAK_BYTES};

/// The block of the "large" rows, in bytes.
pub(crate) const BLOCK_LARGE_BYTES: usize = 512 << 10;

/// The reads in flight of the "large" rows.
pub(crate) const DEPTH_LARGE: usize = 5;

/// The geometry of these rows of Forebay.
const LARGE: Option<(usize, usize)> = Some((BLOCK_LARGE_BYTES, DEPTH_LARGE));

/// The bare loops on hugepage memory; the limit is the best of them.
const LIMITS: &[&str] = &["bare-512k-x8", "bare-512k-x5", "bare-1m-x8", "bare-256k-x16", "bare-512k-x20"];
const SMALL_PAGES: &[&str] = &["bare-512k-x8-4k-pages"];
const MIB: f64 = 1_048_576.0;

experiment! {
    SCAN "scan", "One sequential pass over a large file", compared by "mb_per_s", per |_| "io";
    options {
        count("file-mib", "Size of the test file, in MiB", 1 << 40).or("3072");
        count("memory-mib", "Memory of each row, page cache included, in MiB (root; 0: no limit)", 1 << 40)
            .zero_too().or("1024");
        count("hot-mib", run::HOT_MIB, 1 << 40).zero_too().or("0");
        count("repeats", "Interleaved processes of each row; the targets want five or more", 1000).or("5");
    }
    rows {
        direct "bare-512k-x8", "the io-uring crate, 512 KiB, 8 in flight, on hugepages"
            => |scan| bare::scan(scan, 512 << 10, 8, PageKind::Huge), twin direct;
        direct "bare-512k-x5", "5 in flight" => |scan| bare::scan(scan, 512 << 10, 5, PageKind::Huge);
        direct "bare-1m-x8", "1 MiB, 8 in flight" => |scan| bare::scan(scan, 1 << 20, 8, PageKind::Huge);
        direct "bare-256k-x16", "256 KiB, 16 in flight" => |scan| bare::scan(scan, 256 << 10, 16, PageKind::Huge);
        direct "bare-512k-x20", "20 in flight" => |scan| bare::scan(scan, 512 << 10, 20, PageKind::Huge);
        direct "bare-512k-x8-4k-pages", "512 KiB, 8 in flight, on ordinary pages"
            => |scan| bare::scan(scan, 512 << 10, 8, PageKind::Small);
        direct "forebay-default", "file.scan() on the shard as it comes"
            => |scan| forebay::scan_on_shard(scan, Open::read(), None);
        direct "forebay-large", "file.scan() with 512 KiB x 5"
            => |scan| forebay::scan_on_shard(scan, Open::read(), LARGE);
        cached "forebay-adaptive", "file.scan() of a file opened adaptive"
            => |scan| forebay::scan_on_shard(scan, Open::read().adaptive(), None);
        cached "forebay-buffered", "file.scan() of a file opened buffered"
            => |scan| forebay::scan_on_shard(scan, Open::read().buffered(), None);
        direct "forebay-default-tokio", "forebay-default from a current-thread Tokio runtime"
            => |scan| forebay::scan_from_tokio(scan, None);
        direct "forebay-large-tokio", "forebay-large from a current-thread Tokio runtime"
            => |scan| forebay::scan_from_tokio(scan, LARGE);
        direct "glommio", "glommio 0.9: DmaStreamReader, 512 KiB, five read ahead, no copy" => glommio::scan;
        direct "compio", "compio 0.19: five tasks that each read the next 512 KiB" => compio::scan;
        direct "monoio", "monoio 0.2: the same" => monoio::scan;
        direct "tokio-uring", "tokio-uring 0.5: the same, with registered buffers" => tokio_uring::scan;
        direct "std-threads", "five threads that each read the next 512 KiB" => blocking::scan_pread;
        direct "fio", "fio, 512 KiB x 8" => |scan| fio::scan(scan, false);
        direct "fio-hugepages", "the same with hugepages for its buffers" => |scan| fio::scan(scan, true);
        cached "std-fs-128k", "std::fs::File with a buffer of 128 KiB" => blocking::scan_std_fs;
        cached "tokio-fs-128k", "tokio::fs with a buffer of 128 KiB" => blocking::scan_tokio_fs;
        cached "mmap", "a memory map with the advice \"sequential\"" => blocking::scan_mmap;
        cached "dontcache-1m", "preadv2 with RWF_DONTCACHE, 1 MiB a call" => blocking::scan_dontcache;
    }
    columns {
        MB_PER_S;
        RATIO_TO_LIMIT;
        CPU_S_PER_GB;
        BUFFERS_PEAK_BYTES;
        RESIDENT_PEAK_BYTES;
        MEMORY_PEAK_BYTES;
        LOADED_SHARE;
        HOT_KEPT_SHARE;
    }
    ranked by "mb_per_s"
    ratios {
        "ratio_to_limit" "mb_per_s" Over LIMITS;
        "ratio_to_mmap" "mb_per_s" Over &["mmap"];
        "ratio_to_dontcache-1m" "mb_per_s" Over &["dontcache-1m"];
        "ratio_to_std-fs-128k" "mb_per_s" Over &["std-fs-128k"];
    }
    spreads { "bare-512k-x8-again" "mb_per_s" "a_a_spread"; }
    limits {
        "forebay-default" "mb_per_s" over LIMITS, at_least 0.95, within "bare-512k-x8-again";
        "forebay-default" "mb_per_s" over &["fio"], at_least 1.0, within "bare-512k-x8-again";
        "forebay-default" "mb_per_s" over SMALL_PAGES, at_least 2.0, within "bare-512k-x8-again";
        "forebay-default" "cpu_s_per_gb" at_most 0.04;
        "forebay-default" "buffers_peak_bytes" at_most 8.0 * MIB;
        "forebay-large" "mb_per_s" over LIMITS, at_least 0.95, within "bare-512k-x8-again";
        "forebay-large" "mb_per_s" over &["fio"], at_least 1.0, within "bare-512k-x8-again";
        "forebay-large" "mb_per_s" over SMALL_PAGES, at_least 2.0, within "bare-512k-x8-again";
        "forebay-large" "cpu_s_per_gb" at_most 0.04;
        "forebay-large" "buffers_peak_bytes" at_most 4.0 * MIB;
    }
}

fn title(table: &Table) -> String {
    let size = |name: &str| table.number(name).map(|size| bytes(size as u64));
    let limit = size("memory_limit_bytes").map_or_else(|| "no limit on".to_owned(), |limit| limit + " of");
    format!("Scan of {}, {limit} memory", size("file_bytes").unwrap_or_default())
}

fn plan<'c>(options: &Values, context: &'c Context) -> Result<Run<'c>> {
    let method = "Each sample is a process of its own that reads the whole file once, from before it is opened, and one word \
        of every page, whose sum is checked. The page cache is emptied of the file before each. Rows take turns within a \
        repeat; ratios are those of the same repeat, and figures medians.";
    let (mut run, scratch) = Run::in_directory(context, SCAN.spec.name, false, method)?;
    let file_bytes = run.make_files(&scratch, options)?;
    let memory_bytes = options.count("memory-mib") << 20;
    let is_limited = memory_bytes > 0 && run.limit_memory(memory_bytes);
    // Twice what the page cache may fill: its pages are allocated from the most recently freed memory, and not only from there.
    let touched = prefault(2 * memory_bytes);
    run.table(json!({
        "device": "disk", "file_bytes": file_bytes, "memory_touched_bytes": touched,
        "memory_limit_bytes": is_limited.then_some(memory_bytes), "hot_bytes": options.count("hot-mib") << 20,
    }));
    let has_fio = fio::is_available(options);
    run.has = Box::new(move |_, row| has_fio || !row.starts_with("fio"));
    run.prepare = Box::new(|_, job| files::evict(&job.path, false).map(|()| None));
    Ok(run)
}

/// The parts of a file that tasks claim, each the next part, where a library has no read-ahead.
pub(crate) struct Parts {
    next: AtomicU64,
    file_bytes: u64,
}

impl Parts {
    /// Returns offset and length of the next part, which no other task has claimed.
    pub(crate) fn take(&self) -> Option<(u64, usize)> {
        let offset = self.next.fetch_add(BLOCK_LARGE_BYTES as u64, Ordering::Relaxed);
        let left = self.file_bytes.checked_sub(offset).filter(|left| *left > 0)?;
        Some((offset, left.min(BLOCK_LARGE_BYTES as u64) as usize))
    }
}

/// A pass in progress.
pub(crate) struct Pass {
    begun: Instant,
    used: Usage,
    file_bytes: u64,
}

impl Work {
    /// Returns the start of a pass: before the file is opened and memory is made.
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
    pub(crate) fn finish(&self, checksum: &Checksum) -> Result<Outcome> {
        let seconds = self.begun.elapsed().as_secs_f64();
        let used = Usage::now().since(&self.used);
        checksum.check(self.file_bytes)?;
        let gb = self.file_bytes as f64 / 1e9;
        Ok(Outcome::lasting(seconds)
            .figure("mb_per_s", gb * 1e3 / seconds)
            .figure("cpu_s_per_gb", used.0[usage::CPU_NS] / 1e9 / gb)
            .figure("context_switches_per_gb", used.0[usage::CONTEXT_SWITCHES] / gb))
    }
}
