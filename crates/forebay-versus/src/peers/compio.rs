//! compio, on its io_uring driver.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::rc::Rc;

use anyhow::{Result, ensure};
use compio::BufResult;
use compio::buf::{IoBuf, IoBufMut, SetLen};
use compio::driver::ProactorBuilder;
use compio::fs::{File, OpenOptions};
use compio::io::AsyncReadAt as _;
use compio::runtime::{Runtime, RuntimeBuilder};

use crate::content::{self, Checksum};
use crate::memory::{PageKind, Piece, pieces};
use crate::meter::{LocalMeter, Window};
use crate::random::{BLOCK_BYTES, RandomJob};
use crate::rng::Rng;
use crate::sample::Sample;
use crate::scan::{BLOCK_LARGE_BYTES, DEPTH_LARGE, ScanJob};

/// Measures random reads: `depth` local tasks over one file opened with O_DIRECT, `read_at` into page-aligned
/// hugepage memory.
pub(crate) fn random(job: &RandomJob) -> Result<Sample> {
    let buffers = pieces(job.depth, BLOCK_BYTES, PageKind::Huge)?;
    runtime()?.block_on(async {
        let file = open(&job.path).await?;
        let window = Window::start(job.warm_up, job.measure);
        let meter = LocalMeter::new(&window);
        let tasks: Vec<_> = buffers
            .into_iter()
            .enumerate()
            .map(|(i, piece)| {
                let (file, meter, mut rng) = (file.clone(), meter.clone(), Rng::new(job.seed, i));
                let file_bytes = job.file_bytes;
                compio::runtime::spawn(async move {
                    let mut buffer = Buffer(piece);
                    let mut first = true;
                    let mut began = meter.begin();
                    loop {
                        let offset = rng.page_offset(file_bytes);
                        let BufResult(result, back) = file.read_at(buffer, offset).await;
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
            task.await.map_err(|_| anyhow::anyhow!("a task panicked"))??;
        }
        Ok(meter.sample(&window))
    })
}

/// Measures the scan: compio has no read-ahead, so five tasks each read the next 512 KiB that no other task
/// has taken.
pub(crate) fn scan(job: &ScanJob) -> Result<Sample> {
    runtime()?.block_on(async {
        let begun = job.begin();
        let file = open(&job.path).await?;
        let next = Rc::new(Cell::new(0));
        let tasks: Vec<_> = pieces(DEPTH_LARGE, BLOCK_LARGE_BYTES, PageKind::Huge)?
            .into_iter()
            .map(|piece| {
                let (file, next, file_bytes) = (file.clone(), Rc::clone(&next), job.file_bytes);
                compio::runtime::spawn(async move {
                    let mut buffer = Buffer(piece);
                    let mut checksum = Checksum::default();
                    loop {
                        let offset = next.get();
                        if offset >= file_bytes {
                            return Ok(checksum);
                        }
                        next.set(offset + BLOCK_LARGE_BYTES as u64);
                        let BufResult(result, back) = file.read_at(buffer, offset).await;
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
            checksum.merge(&task.await.map_err(|_| anyhow::anyhow!("a task panicked"))??);
        }
        job.finish(begun, &checksum)
    })
}

fn runtime() -> Result<Runtime> {
    let mut proactor = ProactorBuilder::new();
    proactor.capacity(1024);
    Ok(RuntimeBuilder::new().with_proactor(proactor).build()?)
}

async fn open(path: &std::path::Path) -> Result<File> {
    Ok(OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).await?)
}

/// A piece as compio's buffer. Its length stays: every read fills the whole of it.
struct Buffer(Piece);

impl IoBuf for Buffer {
    fn as_init(&self) -> &[u8] {
        &self.0
    }
}

impl IoBufMut for Buffer {
    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        let bytes: &mut [u8] = &mut self.0;
        // SAFETY: `MaybeUninit<u8>` has the layout of `u8`; compio only writes bytes that it has read from the file.
        unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
    }
}

impl SetLen for Buffer {
    unsafe fn set_len(&mut self, _len: usize) {}
}
