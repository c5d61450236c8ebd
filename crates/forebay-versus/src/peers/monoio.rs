//! monoio, on its io_uring driver.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Result, ensure};
use monoio::buf::IoBufMut;
use monoio::fs::File;
use monoio::{IoUringDriver, Runtime, RuntimeBuilder};

use crate::content::{self, Checksum};
use crate::memory::{PageKind, Piece, pieces};
use crate::meter::{LocalMeter, Window};
use crate::random::{BLOCK_BYTES, RandomJob, open_direct};
use crate::rng::Rng;
use crate::sample::Sample;
use crate::scan::{BLOCK_LARGE_BYTES, DEPTH_LARGE, ScanJob};

/// Measures random reads: `depth` local tasks over one file opened with O_DIRECT, `read_at` into page-aligned
/// hugepage memory.
pub(crate) fn random(job: &RandomJob) -> Result<Sample> {
    let buffers = pieces(job.depth, BLOCK_BYTES, PageKind::Huge)?;
    runtime()?.block_on(async {
        let file = Rc::new(File::from_std(open_direct(&job.path)?)?);
        let window = Window::start(job.warm_up, job.measure);
        let meter = LocalMeter::new(&window);
        let tasks: Vec<_> = buffers
            .into_iter()
            .enumerate()
            .map(|(i, piece)| {
                let (file, meter, mut rng) = (Rc::clone(&file), meter.clone(), Rng::new(job.seed, i));
                let file_bytes = job.file_bytes;
                monoio::spawn(async move {
                    let mut buffer = Buffer(piece);
                    let mut first = true;
                    let mut began = meter.begin();
                    loop {
                        let offset = rng.page_offset(file_bytes);
                        let (result, back) = file.read_at(buffer, offset).await;
                        buffer = back;
                        let got = result?;
                        ensure!(got == BLOCK_BYTES, "a read gave {got} bytes");
                        if std::mem::take(&mut first) {
                            content::check_start(&buffer.0, offset)?;
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
            task.await?;
        }
        Ok(meter.sample(&window))
    })
}

/// Measures the scan: monoio has no read-ahead, so five tasks each read the next 512 KiB that no other task
/// has taken.
pub(crate) fn scan(job: &ScanJob) -> Result<Sample> {
    runtime()?.block_on(async {
        let begun = job.begin();
        let file = Rc::new(File::from_std(open_direct(&job.path)?)?);
        let next = Rc::new(Cell::new(0));
        let tasks: Vec<_> = pieces(DEPTH_LARGE, BLOCK_LARGE_BYTES, PageKind::Huge)?
            .into_iter()
            .map(|piece| {
                let (file, next, file_bytes) = (Rc::clone(&file), Rc::clone(&next), job.file_bytes);
                monoio::spawn(async move {
                    let mut buffer = Buffer(piece);
                    let mut checksum = Checksum::default();
                    loop {
                        let offset = next.get();
                        if offset >= file_bytes {
                            return Ok(checksum);
                        }
                        next.set(offset + BLOCK_LARGE_BYTES as u64);
                        let (result, back) = file.read_at(buffer, offset).await;
                        buffer = back;
                        let got = result?;
                        ensure!(
                            got as u64 == (file_bytes - offset).min(BLOCK_LARGE_BYTES as u64),
                            "a read gave {got} bytes"
                        );
                        checksum.add(offset, &buffer.0[..got]);
                    }
                })
            })
            .collect();
        let mut checksum = Checksum::default();
        for task in tasks {
            checksum.merge(&task.await?);
        }
        job.finish(begun, &checksum)
    })
}

fn runtime() -> Result<Runtime<IoUringDriver>> {
    Ok(RuntimeBuilder::<IoUringDriver>::new().with_entries(1024).build()?)
}

/// A piece as monoio's buffer.
struct Buffer(Piece);

// SAFETY: the bytes do not move when the piece does, and they live until the piece is dropped.
unsafe impl IoBufMut for Buffer {
    fn write_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    fn bytes_total(&mut self) -> usize {
        self.0.len()
    }

    unsafe fn set_init(&mut self, _pos: usize) {
        // All bytes of a piece are initialised from the start.
    }
}
