//! The disk itself: direct reads of 4 KiB at random offsets of a file as large as the data, and direct writes
//! of such a file.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::atomic::{AtomicU64, Ordering};

use super::data::ENTRY_BYTES;
use super::{IN_FLIGHT, THREADS, Work};
use crate::peers::worker_ring;
use crate::prelude::*;

const WRITE_BYTES: u64 = 1 << 20;
const WRITERS: usize = 4;
const FILE: &str = "raw";

/// Writes the file: the limit of a load.
pub(super) fn load(work: &Work) -> Result<()> {
    let path = work.dir.join(FILE);
    let mut options = File::options();
    let file = options
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .with_context(|| format!("making {} for direct I/O", path.display()))?;
    let writes = (work.keys * ENTRY_BYTES).div_ceil(WRITE_BYTES);
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
    let write = &write;
    on_threads(buffers.into_iter().map(|buffer| move || write(buffer)))?;
    Ok(file.sync_data()?)
}

/// Measures random reads: each thread, or each task of Tokio through its worker's ring, has one read in flight.
pub(super) fn get(work: &Work) -> Result<Outcome> {
    let path = work.dir.join(FILE);
    let file_bytes = path.metadata()?.len();
    if work.workload == "tokio" {
        let (warm_up, measure, seed) = (work.warm_up(), work.measure, work.seed);
        let reads = Reads { path, file_bytes, depth: IN_FLIGHT, warm_up, measure, seed };
        return worker_ring::random(&reads, true);
    }
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let threads = if work.workload == "one" { 1 } else { THREADS };
    let buffers = pieces(threads, PAGE_BYTES as usize, PageKind::Huge)?;
    let window = work.window();
    let meters = on_threads(buffers.into_iter().enumerate().map(|(i, mut buffer)| {
        let (file, mut meter, mut rng) = (&file, window.meter(), Rng::new(work.seed, i));
        move || {
            while_open!(meter, {
                let offset = rng.page_offset(file_bytes);
                file.read_exact_at(&mut buffer, offset)?;
                content::check_start(&buffer, offset)?;
            });
            Ok(meter)
        }
    }))?;
    Ok(window.outcome(meters))
}
