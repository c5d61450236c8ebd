//! Plain threads with pread: `depth` of them.

use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use crate::content::{self, Checksum};
use crate::memory::{PageKind, Piece, pieces};
use crate::meter::Window;
use crate::random::{BLOCK_BYTES, RandomJob, open_direct};
use crate::rng::Rng;
use crate::sample::Sample;
use crate::scan::{BLOCK_LARGE_BYTES, DEPTH_LARGE, ScanJob};

/// Measures random reads: each thread has one read in flight.
pub(crate) fn random(job: &RandomJob) -> Result<Sample> {
    let file = open_direct(&job.path)?;
    let buffers = pieces(job.depth, BLOCK_BYTES, PageKind::Huge)?;
    let window = Window::start(job.warm_up, job.measure);
    let meters = std::thread::scope(|scope| {
        let threads: Vec<_> = buffers
            .into_iter()
            .enumerate()
            .map(|(i, mut buffer)| {
                let (file, mut meter) = (&file, window.meter());
                scope.spawn(move || -> Result<_> {
                    let mut rng = Rng::new(job.seed, i);
                    let mut first = true;
                    let mut began = meter.begin();
                    loop {
                        let offset = rng.page_offset(job.file_bytes);
                        file.read_exact_at(&mut buffer, offset)?;
                        if std::mem::take(&mut first) {
                            content::check_start(&buffer, offset)?;
                        }
                        match meter.finish(began) {
                            Some(now) => began = now,
                            None => return Ok(meter),
                        }
                    }
                })
            })
            .collect();
        join_all(threads)
    })?;
    Ok(window.sample(meters))
}

/// Measures the scan: five threads, each reading the next 512 KiB that no other thread has taken.
pub(crate) fn scan(job: &ScanJob) -> Result<Sample> {
    let begun = job.begin();
    let file = open_direct(&job.path)?;
    let buffers = pieces(DEPTH_LARGE, BLOCK_LARGE_BYTES, PageKind::Huge)?;
    let next = AtomicU64::new(0);
    let parts = std::thread::scope(|scope| {
        let threads =
            buffers.into_iter().map(|buffer| scope.spawn(|| scan_part(job, &file, buffer, &next))).collect();
        join_all(threads)
    })?;
    let mut checksum = Checksum::default();
    for part in &parts {
        checksum.merge(part);
    }
    job.finish(begun, &checksum)
}

fn scan_part(job: &ScanJob, file: &std::fs::File, mut buffer: Piece, next: &AtomicU64) -> Result<Checksum> {
    let mut checksum = Checksum::default();
    loop {
        let offset = next.fetch_add(BLOCK_LARGE_BYTES as u64, Ordering::Relaxed);
        if offset >= job.file_bytes {
            return Ok(checksum);
        }
        let length = (job.file_bytes - offset).min(BLOCK_LARGE_BYTES as u64) as usize;
        file.read_exact_at(&mut buffer[..length], offset)?;
        checksum.add(offset, &buffer[..length]);
    }
}

/// Returns the results of threads that have ended.
///
/// # Errors
/// The first error of a thread, or that it panicked.
pub(crate) fn join_all<T>(threads: Vec<std::thread::ScopedJoinHandle<'_, Result<T>>>) -> Result<Vec<T>> {
    threads
        .into_iter()
        .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked"))))
        .collect()
}
