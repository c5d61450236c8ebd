//! The disk itself: direct reads of 4 KiB at random offsets of a file as large as the data, and direct writes
//! of such a file.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};

use super::data::ENTRY_BYTES;
use super::drive::join_all;
use super::{KvJob, Workload};
use crate::content::{self, PAGE_BYTES};
use crate::memory::{PageKind, Piece, pieces};
use crate::meter::Window;
use crate::peers::worker_ring;
use crate::random::RandomJob;
use crate::rng::Rng;
use crate::sample::Sample;

const WRITE_BYTES: u64 = 1 << 20;
const WRITERS: usize = 4;
const FILE: &str = "raw";

/// Writes the file: the limit of a load.
pub(crate) fn load(job: &KvJob) -> Result<()> {
    let path = job.dir.join(FILE);
    let mut options = File::options();
    let file = options
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .with_context(|| format!("making {} for direct I/O", path.display()))?;
    let writes = (job.keys * ENTRY_BYTES).div_ceil(WRITE_BYTES);
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, writes * WRITE_BYTES)?;
    let next = AtomicU64::new(0);
    let write = |mut buffer: Piece| -> Result<()> {
        content::fill(&mut buffer, 0);
        loop {
            let offset = next.fetch_add(1, Ordering::Relaxed) * WRITE_BYTES;
            if offset >= writes * WRITE_BYTES {
                return Ok(());
            }
            // Each page begins with its content for this offset, so that a read can be checked.
            for at in (0..WRITE_BYTES).step_by(PAGE_BYTES as usize) {
                content::fill(&mut buffer[at as usize..at as usize + 8], offset + at);
            }
            file.write_all_at(&buffer, offset)?;
        }
    };
    let buffers = pieces(WRITERS, WRITE_BYTES as usize, PageKind::Huge)?;
    std::thread::scope(|scope| {
        join_all(buffers.into_iter().map(|buffer| scope.spawn(|| write(buffer))).collect())
    })?;
    Ok(file.sync_data()?)
}

/// Measures random reads: each thread, or each task of Tokio, has one read in flight.
pub(crate) fn get(job: &KvJob) -> Result<Sample> {
    if job.workload == Workload::Tokio {
        return from_tokio(job);
    }
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(job.dir.join(FILE))?;
    let file_bytes = file.metadata()?.len();
    let threads = if job.workload == Workload::One { 1 } else { super::THREADS };
    let buffers = pieces(threads, PAGE_BYTES as usize, PageKind::Huge)?;
    let window = Window::start(job.warm_up, job.measure);
    let meters = std::thread::scope(|scope| {
        let threads = buffers.into_iter().enumerate().map(|(i, mut buffer)| {
            let (file, mut meter) = (&file, window.meter());
            scope.spawn(move || {
                let mut rng = Rng::new(job.seed, i);
                let mut began = meter.begin();
                loop {
                    let offset = rng.page_offset(file_bytes);
                    file.read_exact_at(&mut buffer, offset)?;
                    content::check_start(&buffer, offset)?;
                    match meter.finish(began) {
                        Some(now) => began = now,
                        None => return Ok(meter),
                    }
                }
            })
        });
        join_all(threads.collect())
    })?;
    Ok(window.sample(meters))
}

/// Measures random reads of tasks through their workers' rings.
fn from_tokio(job: &KvJob) -> Result<Sample> {
    let path = job.dir.join(FILE);
    let random = RandomJob {
        row: job.row.clone(),
        file_bytes: path.metadata()?.len(),
        path,
        depth: super::IN_FLIGHT,
        warm_up: job.warm_up,
        measure: job.measure,
        seed: job.seed,
    };
    worker_ring::random(&random, true)
}
