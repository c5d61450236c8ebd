//! tokio-uring with registered buffers, its fastest way.

use std::rc::Rc;

use anyhow::Context;
use tokio_uring::buf::fixed::{FixedBuf, FixedBufRegistry};
use tokio_uring::buf::{IoBuf, IoBufMut};
use tokio_uring::fs::File;

use crate::prelude::*;

/// Measures random reads: `depth` local tasks over one file opened with O_DIRECT, `read_fixed_at` into
/// registered hugepage memory.
pub(crate) fn random(reads: &Reads) -> Result<Outcome> {
    tokio_uring::builder().entries(1024).start(async {
        let file = Rc::new(File::from_std(open_direct(&reads.path)?));
        let buffers = register(reads.depth, BLOCK_BYTES)?;
        let meter = LocalMeter::new(&reads.window());
        let start = |(i, mut buffer): (usize, FixedBuf)| {
            let (file, meter, mut offsets) = (Rc::clone(&file), meter.clone(), reads.offsets(i));
            tokio_uring::spawn(async move {
                while_open!(meter, {
                    let offset = offsets.next();
                    let (result, back) = file.read_fixed_at(buffer, offset).await;
                    buffer = back;
                    let got = result?;
                    ensure!(got == BLOCK_BYTES, "a read gave {got} bytes");
                    offsets.check(&buffer, offset)?;
                });
                anyhow::Ok(())
            })
        };
        let tasks: Vec<_> = buffers.into_iter().enumerate().map(start).collect();
        for task in tasks {
            task.await??;
        }
        Ok(meter.outcome())
    })
}

/// Measures the scan: tokio-uring has no read-ahead, so five tasks each read the next 512 KiB that no other
/// task has taken.
pub(crate) fn scan(scan: &Scan) -> Result<Outcome> {
    tokio_uring::builder().entries(1024).start(async {
        let pass = scan.begin();
        let file = Rc::new(File::from_std(open_direct(&scan.path)?));
        let parts = scan.parts();
        let start = |mut buffer: FixedBuf| {
            let (file, parts) = (Rc::clone(&file), parts.clone());
            tokio_uring::spawn(async move {
                let mut checksum = Checksum::default();
                while let Some((offset, length)) = parts.take() {
                    let (result, back) = file.read_fixed_at(buffer, offset).await;
                    buffer = back;
                    let got = result?;
                    ensure!(got == length, "a read gave {got} bytes");
                    checksum.add(offset, &buffer[..got]);
                }
                anyhow::Ok(checksum)
            })
        };
        let tasks: Vec<_> = register(DEPTH_LARGE, BLOCK_LARGE_BYTES)?.into_iter().map(start).collect();
        let mut checksum = Checksum::default();
        for task in tasks {
            checksum.merge(&task.await??);
        }
        pass.finish(&checksum)
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
