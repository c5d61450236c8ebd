//! The rows that do not use Forebay: `buffered` and `mmap` of the scan, `buffered`, `direct-pread` and
//! `mmap` of the random reads.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::ptr;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::aligned::AlignedBuffer;
use super::gauge::Gauge;
use super::job::{Job, RandomWork, Reading, ScanWork};
use super::latency::Latency;
use super::pace::{Offsets, Pace};
use super::pattern::{Checker, PAGE_BYTES};

const BUFFERED_BYTES: usize = 128 * 1024;

/// Runs `buffered`: the plain read loop of a program without special measures.
pub(super) fn scan_buffered(job: &Job, work: &ScanWork) -> anyhow::Result<Reading> {
    let mut file = File::open(&job.path)?;
    let mut buffer = vec![0; BUFFERED_BYTES];
    let gauge = Gauge::start(job.device_stat.as_deref())?;
    let mut pace = Pace::new(job, work, gauge.begun());
    loop {
        let wanted = (work.bytes - pace.bytes()).min(BUFFERED_BYTES as u64) as usize;
        if wanted == 0 {
            break;
        }
        let got = file.read(&mut buffer[..wanted])?;
        anyhow::ensure!(got > 0, "the file became shorter while it was read");
        if !pace.take(&buffer[..got])? {
            break;
        }
    }
    pace.finish(gauge, Some(BUFFERED_BYTES as u64))
}

/// Runs `mmap`: reads the first word of each page, which makes the kernel bring the page in.
pub(super) fn scan_mmap(job: &Job, work: &ScanWork) -> anyhow::Result<Reading> {
    let file = File::open(&job.path)?;
    let map = Map::new(&file, usize::try_from(work.bytes)?, Advice::Sequential)?;
    let gauge = Gauge::start(job.device_stat.as_deref())?;
    let mut pace = Pace::new(job, work, gauge.begun());
    for page in 0..work.bytes / PAGE_BYTES as u64 {
        if !pace.take_word(page, map.first_word(page as usize))? {
            break;
        }
    }
    pace.finish(gauge, None)
}

struct Map {
    address: *mut std::ffi::c_void,
    bytes: usize,
}

impl Map {
    fn new(file: &File, bytes: usize, advice: Advice) -> anyhow::Result<Self> {
        // SAFETY: this is a new mapping at an address that the kernel chooses.
        let address = unsafe {
            rustix::mm::mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file.as_fd(), 0)
        }?;
        let map = Self { address, bytes };
        // SAFETY: the range is exactly the mapping made above, and this advice changes no contents.
        unsafe { rustix::mm::madvise(map.address, bytes, advice) }?;
        Ok(map)
    }

    fn first_word(&self, page: usize) -> u64 {
        let at = page * PAGE_BYTES;
        assert!(at + 8 <= self.bytes, "page {page} lies behind the end of the mapping");
        // SAFETY: the eight bytes lie inside the mapping (asserted), which lives as long as `self`, and
        // pages are aligned for a u64. The read is volatile and makes no reference, because other processes
        // may write the file; if the file is truncated, the signal ends this child process, which exists
        // for this one sample.
        u64::from_le(unsafe { ptr::read_volatile(self.address.byte_add(at).cast::<u64>()) })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this unmaps the mapping made in `new`; no reference into it was ever made. Failing to
        // unmap leaks it until the process ends, which is now.
        let _ = unsafe { rustix::mm::munmap(self.address, self.bytes) };
    }
}

/// Runs `buffered` and `direct-pread`: one thread for each read in flight.
pub(super) fn random_pread(job: &Job, work: &RandomWork, direct: bool) -> anyhow::Result<Reading> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    let file = OpenOptions::new().read(true).custom_flags(flags).open(&job.path)?;
    on_threads(job, work, |lane, gate| pread_lane(&file, job, work, lane, gate))
}

/// Runs `mmap`: one thread for each read in flight, which touches every page of its block.
pub(super) fn random_mmap(job: &Job, work: &RandomWork) -> anyhow::Result<Reading> {
    let file = File::open(&job.path)?;
    on_threads(job, work, |lane, gate| mmap_lane(&file, job, work, lane, gate))
}

/// A gate that opens when all threads exist, and then passes them the deadline.
type Gate = RwLock<Option<Instant>>;

fn on_threads(
    job: &Job,
    work: &RandomWork,
    read: impl Fn(usize, &Gate) -> anyhow::Result<(Latency, u64)> + Sync,
) -> anyhow::Result<Reading> {
    // Held until all threads exist; then it passes them the deadline. If a thread cannot be created, the
    // lock opens without a deadline, and the others end at once.
    let gate = RwLock::new(None);
    let (gauge, outcomes) = std::thread::scope(|scope| -> anyhow::Result<_> {
        let mut closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let mut threads = Vec::with_capacity(work.depth);
        for lane in 0..work.depth {
            // A lane needs few kilobytes. The default of 2 MiB each would still be only address space, but
            // the kernel may back it with huge pages and spoil the memory figure.
            let builder = std::thread::Builder::new().stack_size(128 * 1024);
            let (read, gate) = (&read, &gate);
            threads.push(builder.spawn_scoped(scope, move || read(lane, gate))?);
        }
        let gauge = Gauge::start(job.device_stat.as_deref())?;
        *closed = Some(gauge.begun() + Duration::from_secs_f64(work.seconds));
        drop(closed);
        let outcomes: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        Ok((gauge, outcomes))
    })?;
    let cost = gauge.stop()?;
    let mut latency = Latency::new()?;
    let mut folded = 0;
    for outcome in outcomes {
        let (part, word) = outcome.map_err(|_| anyhow::anyhow!("a reading thread panicked"))??;
        latency.add(&part)?;
        folded ^= word;
    }
    Ok(Reading {
        cost,
        bytes: latency.count() * work.block_bytes,
        operations: latency.count(),
        latency: Some(latency),
        buffers_peak_bytes: Some(work.block_bytes * work.depth as u64),
        folded,
    })
}

fn pread_lane(
    file: &File,
    job: &Job,
    work: &RandomWork,
    lane: usize,
    gate: &Gate,
) -> anyhow::Result<(Latency, u64)> {
    let mut offsets = Offsets::new(work, lane);
    let mut buffer = AlignedBuffer::new(work.block_bytes as usize);
    let mut checker = Checker::new(job.pattern());
    let mut latency = Latency::new()?;
    let deadline = *gate.read().unwrap_or_else(PoisonError::into_inner);
    let mut begun = Instant::now();
    let deadline = deadline.unwrap_or(begun);
    // A read that takes longer than the whole sample is measured, too.
    while begun < deadline || latency.count() == 0 {
        let offset = offsets.next_offset();
        file.read_exact_at(buffer.bytes_mut(), offset)?;
        let ended = Instant::now();
        latency.record(ended - begun);
        checker.check(offset, buffer.bytes())?;
        begun = ended;
    }
    Ok((latency, checker.folded()))
}

fn mmap_lane(
    file: &File,
    job: &Job,
    work: &RandomWork,
    lane: usize,
    gate: &Gate,
) -> anyhow::Result<(Latency, u64)> {
    // A map for each thread: they share the page cache's pages, as maps of several processes would.
    let map = Map::new(file, usize::try_from(work.span_start + work.span_bytes)?, Advice::Random)?;
    let mut offsets = Offsets::new(work, lane);
    let mut checker = Checker::new(job.pattern());
    let mut latency = Latency::new()?;
    let deadline = *gate.read().unwrap_or_else(PoisonError::into_inner);
    let mut begun = Instant::now();
    let deadline = deadline.unwrap_or(begun);
    // As in the other rows, a read that takes longer than the whole sample is measured, too.
    while begun < deadline || latency.count() == 0 {
        let first = offsets.next_offset() / PAGE_BYTES as u64;
        for page in first..first + work.block_bytes / PAGE_BYTES as u64 {
            checker.check_word(page, map.first_word(page as usize))?;
        }
        let ended = Instant::now();
        latency.record(ended - begun);
        begun = ended;
    }
    Ok((latency, checker.folded()))
}
