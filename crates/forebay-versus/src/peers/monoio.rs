//! monoio, on its io_uring driver.

use std::rc::Rc;

use monoio::buf::IoBufMut;
use monoio::fs::File;
use monoio::{IoUringDriver, Runtime, RuntimeBuilder};

use crate::prelude::*;

/// Measures random reads: `depth` local tasks over one file opened with O_DIRECT, `read_at` into page-aligned
/// hugepage memory.
pub(crate) fn random(reads: &Reads) -> Result<Outcome> {
    let buffers = pieces(reads.depth, BLOCK_BYTES, PageKind::Huge)?;
    runtime()?.block_on(async {
        let file = Rc::new(File::from_std(open_direct(&reads.path)?)?);
        let meter = LocalMeter::new(&reads.window());
        let start = |(i, piece)| {
            let (file, meter, mut offsets) = (Rc::clone(&file), meter.clone(), reads.offsets(i));
            monoio::spawn(async move {
                let mut buffer = Buffer(piece);
                while_open!(meter, {
                    let offset = offsets.next();
                    let (result, back) = file.read_at(buffer, offset).await;
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
            task.await?;
        }
        Ok(meter.outcome())
    })
}

/// Measures the scan: monoio has no read-ahead, so five tasks each read the next 512 KiB that no other task
/// has taken.
pub(crate) fn scan(scan: &Scan) -> Result<Outcome> {
    runtime()?.block_on(async {
        let pass = scan.begin();
        let file = Rc::new(File::from_std(open_direct(&scan.path)?)?);
        let parts = scan.parts();
        let start = |piece| {
            let (file, parts) = (Rc::clone(&file), parts.clone());
            monoio::spawn(async move {
                let (mut buffer, mut checksum) = (Buffer(piece), Checksum::default());
                while let Some((offset, length)) = parts.take() {
                    let (result, back) = file.read_at(buffer, offset).await;
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
            checksum.merge(&task.await?);
        }
        pass.finish(&checksum)
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
