//! compio, on its io_uring driver.

use std::mem::MaybeUninit;

use compio::BufResult;
use compio::buf::{IoBuf, IoBufMut, SetLen};
use compio::driver::ProactorBuilder;
use compio::fs::{File, OpenOptions};
use compio::io::AsyncReadAt as _;
use compio::runtime::{Runtime, RuntimeBuilder};

use crate::prelude::*;

/// Measures random reads: `depth` local tasks over one file opened with O_DIRECT, `read_at` into page-aligned
/// hugepage memory.
pub(crate) fn random(reads: &Reads) -> Result<Outcome> {
    let buffers = pieces(reads.depth, BLOCK_BYTES, PageKind::Huge)?;
    runtime()?.block_on(async {
        let file = open(&reads.path).await?;
        let meter = LocalMeter::new(&reads.window());
        let start = |(i, piece)| {
            let (file, meter, mut offsets) = (file.clone(), meter.clone(), reads.offsets(i));
            compio::runtime::spawn(async move {
                let mut buffer = Buffer(piece);
                while_open!(meter, {
                    let offset = offsets.next();
                    let BufResult(result, back) = file.read_at(buffer, offset).await;
                    buffer = back;
                    let got = result?;
                    ensure!(got == BLOCK_BYTES, "a read gave {got} bytes");
                    offsets.check(&buffer.0, offset)?;
                });
                anyhow::Ok(())
            })
        };
        let tasks: Vec<_> = buffers.into_iter().enumerate().map(start).collect();
        for task in tasks {
            task.await.map_err(|_| anyhow!("a task panicked"))??;
        }
        Ok(meter.outcome())
    })
}

/// Measures the scan: compio has no read-ahead, so five tasks each read the next 512 KiB that no other task
/// has taken.
pub(crate) fn scan(scan: &Scan) -> Result<Outcome> {
    runtime()?.block_on(async {
        let pass = scan.begin();
        let file = open(&scan.path).await?;
        let parts = scan.parts();
        let start = |piece| {
            let (file, parts) = (file.clone(), parts.clone());
            compio::runtime::spawn(async move {
                let (mut buffer, mut checksum) = (Buffer(piece), Checksum::default());
                while let Some((offset, length)) = parts.take() {
                    let BufResult(result, back) = file.read_at(buffer, offset).await;
                    buffer = back;
                    let got = result?;
                    ensure!(got == length, "a read gave {got} bytes");
                    checksum.add(offset, &buffer.0[..got]);
                }
                anyhow::Ok(checksum)
            })
        };
        let tasks: Vec<_> =
            pieces(DEPTH_LARGE, BLOCK_LARGE_BYTES, PageKind::Huge)?.into_iter().map(start).collect();
        let mut checksum = Checksum::default();
        for task in tasks {
            checksum.merge(&task.await.map_err(|_| anyhow!("a task panicked"))??);
        }
        pass.finish(&checksum)
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
