//! The disk itself: direct reads of 4 KiB at random offsets of a file as large as the data, and direct writes
//! of such a file.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::atomic::{AtomicU64, Ordering};

use super::drive::{self, ENTRY_BYTES};
use super::{IN_FLIGHT, THREADS};
use crate::peers::worker_ring;
use crate::prelude::*;

const WRITE_BYTES: u64 = 1 << 20;
const WRITERS: usize = 4;
const FILE: &str = "raw";

/// Measures random reads: each thread, or each task of Tokio through its worker's ring, has one read in flight. Of a load:
/// writes.
pub(super) fn sample(work: &Work) -> Result<Outcome> {
    if work.workload == "load" {
        return drive::load(work, || load(work));
    }
    let path = work.path.join(FILE);
    let file_bytes = path.metadata()?.len();
    if work.workload == "tokio" {
        return worker_ring::random(&Work { path, file_bytes, depth: IN_FLIGHT, ..work.clone() }, true);
    }
    let file = &open_direct(&path)?;
    let count = if work.workload == "one" { 1 } else { THREADS };
    let buffers = pieces(count, PAGE_BYTES as usize, PageKind::Huge)?;
    let lanes = buffers.into_iter().enumerate().map(|(i, buffer)| {
        let mut rng = work.rng(i);
        move || {
            let offset = page_offset(&mut rng, file_bytes);
            file.read_exact_at(buffer, offset)?;
            content::check_start(buffer, offset)
        }
    });
    threads(work, lanes)
}

/// Writes the file: the limit of a load.
fn load(work: &Work) -> Result<()> {
    let path = work.path.join(FILE);
    let mut options = File::options();
    options.write(true).create_new(true).custom_flags(libc::O_DIRECT);
    let file = options.open(&path).with_context(|| format!("making {} for direct I/O", path.display()))?;
    let writes = (work.keys * ENTRY_BYTES).div_ceil(WRITE_BYTES);
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, writes * WRITE_BYTES)?;
    let next = AtomicU64::new(0);
    let write = |buffer: &mut [u8]| -> Result<()> {
        content::fill(buffer, 0);
        loop {
            let offset = next.fetch_add(1, Ordering::Relaxed) * WRITE_BYTES;
            if offset >= writes * WRITE_BYTES {
                return Ok(());
            }
            // Each page begins with its content for this offset, so that a read can be checked.
            for at in (0..WRITE_BYTES).step_by(PAGE_BYTES as usize) {
                content::fill(&mut buffer[at as usize..at as usize + 8], offset + at);
            }
            file.write_all_at(buffer, offset)?;
        }
    };
    let write = &write;
    let buffers = pieces(WRITERS, WRITE_BYTES as usize, PageKind::Huge)?;
    on_threads(buffers.into_iter().map(|buffer| move || write(buffer)))?;
    Ok(file.sync_data()?)
}
