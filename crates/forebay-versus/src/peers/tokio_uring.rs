//! tokio-uring with fixed buffers, its fastest way.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use tokio_uring::buf::fixed::{FixedBuf, FixedBufRegistry};
use tokio_uring::buf::{IoBuf, IoBufMut};
use tokio_uring::fs::File;

use crate::content::{self, Checksum};
use crate::memory::{PageKind, Piece, pieces};
use crate::meter::{LocalMeter, Window};
use crate::random::{BLOCK_BYTES, RandomJob, open_direct};
use crate::rng::Rng;
use crate::sample::Sample;
use crate::scan::{BLOCK_LARGE_BYTES, DEPTH_LARGE, ScanJob};

/// Measures random reads: `depth` local tasks over one file opened with O_DIRECT, `read_fixed_at` into
/// registered hugepage memory.
pub(crate) fn random(job: &RandomJob) -> Result<Sample> {
    tokio_uring::builder().entries(1024).start(async {
        let file = Rc::new(File::from_std(open_direct(&job.path)?));
        let buffers = register(job.depth, BLOCK_BYTES)?;
        let window = Window::start(job.warm_up, job.measure);
        let meter = LocalMeter::new(&window);
        let tasks: Vec<_> = buffers
            .into_iter()
            .enumerate()
            .map(|(i, mut buffer)| {
                let (file, meter, mut rng) = (Rc::clone(&file), meter.clone(), Rng::new(job.seed, i));
                let file_bytes = job.file_bytes;
                tokio_uring::spawn(async move {
                    let mut first = true;
                    let mut began = meter.begin();
                    loop {
                        let offset = rng.page_offset(file_bytes);
                        let (result, back) = file.read_fixed_at(buffer, offset).await;
                        buffer = back;
                        let got = result?;
                        ensure!(got == BLOCK_BYTES, "a read gave {got} bytes");
                        if std::mem::take(&mut first) {
                            content::check_start(&buffer, offset)?;
                        }
                        match meter.finish(began) {
                            Some(now) => began = now,
                            None => return Ok(()),
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await??;
        }
        Ok(meter.sample(&window))
    })
}

/// Measures the scan: tokio-uring has no read-ahead, so five tasks each read the next 512 KiB that no other
/// task has taken.
pub(crate) fn scan(job: &ScanJob) -> Result<Sample> {
    tokio_uring::builder().entries(1024).start(async {
        let begun = job.begin();
        let file = Rc::new(File::from_std(open_direct(&job.path)?));
        let next = Rc::new(Cell::new(0));
        let tasks: Vec<_> = register(DEPTH_LARGE, BLOCK_LARGE_BYTES)?
            .into_iter()
            .map(|mut buffer| {
                let (file, next, file_bytes) = (Rc::clone(&file), Rc::clone(&next), job.file_bytes);
                tokio_uring::spawn(async move {
                    let mut checksum = Checksum::default();
                    loop {
                        let offset = next.get();
                        if offset >= file_bytes {
                            return anyhow::Ok(checksum);
                        }
                        next.set(offset + BLOCK_LARGE_BYTES as u64);
                        let (result, back) = file.read_fixed_at(buffer, offset).await;
                        buffer = back;
                        let got = result?;
                        ensure!(
                            got as u64 == (file_bytes - offset).min(BLOCK_LARGE_BYTES as u64),
                            "a read gave {got} bytes"
                        );
                        checksum.add(offset, &buffer[..got]);
                    }
                })
            })
            .collect();
        let mut checksum = Checksum::default();
        for task in tasks {
            checksum.merge(&task.await??);
        }
        job.finish(begun, &checksum)
    })
}

fn register(count: usize, bytes: usize) -> Result<Vec<FixedBuf>> {
    let registry = FixedBufRegistry::new(pieces(count, bytes, PageKind::Huge)?.into_iter().map(Buffer));
    registry.register().context("registering the buffers; raise the limit on locked memory")?;
    (0..count).map(|i| registry.check_out(i).context("the registry has a buffer for every task")).collect()
}

/// A piece as tokio-uring's buffer.
struct Buffer(Piece);

// SAFETY: the bytes do not move when the piece does, and all of them are initialised.
unsafe impl IoBuf for Buffer {
    fn stable_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.0.len()
    }

    fn bytes_total(&self) -> usize {
        self.0.len()
    }
}

// SAFETY: as above; the length never changes.
unsafe impl IoBufMut for Buffer {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    unsafe fn set_init(&mut self, _pos: usize) {}
}
