//! glommio.

use std::rc::Rc;

use glommio::io::{DmaFile, DmaStreamReaderBuilder};
use glommio::{GlommioError, LocalExecutor, LocalExecutorBuilder, Placement};

use crate::prelude::*;

/// Measures random reads: `depth` local tasks over one `DmaFile` with `read_at_aligned`, glommio's own
/// registered memory.
pub(crate) fn random(reads: &Reads) -> Result<Outcome> {
    executor()?.run(async {
        let file = Rc::new(DmaFile::open(&reads.path).await.map_err(in_words)?);
        let meter = LocalMeter::new(&reads.window());
        let start = |i| {
            let (file, meter, mut offsets) = (Rc::clone(&file), meter.clone(), reads.offsets(i));
            glommio::spawn_local(async move {
                while_open!(meter, {
                    let offset = offsets.next();
                    let read = file.read_at_aligned(offset, BLOCK_BYTES).await.map_err(in_words)?;
                    ensure!(read.len() == BLOCK_BYTES, "a read gave {} bytes", read.len());
                    offsets.check(&read, offset)?;
                });
                anyhow::Ok(())
            })
        };
        let tasks: Vec<_> = (0..reads.depth).map(start).collect();
        for task in tasks {
            task.await?;
        }
        Ok(meter.outcome())
    })
}

/// Measures the scan: `DmaStreamReader`, 512 KiB buffers, five read ahead, no copy.
pub(crate) fn scan(scan: &Scan) -> Result<Outcome> {
    executor()?.run(async {
        let pass = scan.begin();
        let file = DmaFile::open(&scan.path).await.map_err(in_words)?;
        let mut reader = DmaStreamReaderBuilder::new(file)
            .with_buffer_size(BLOCK_LARGE_BYTES)
            .with_read_ahead(DEPTH_LARGE)
            .build();
        let (mut checksum, mut offset) = (Checksum::default(), 0);
        while offset < scan.file_bytes {
            let piece = reader.get_buffer_aligned(BLOCK_LARGE_BYTES as u64).await.map_err(in_words)?;
            ensure!(!piece.is_empty(), "the reader ended at {offset} of {} bytes", scan.file_bytes);
            checksum.add(offset, &piece);
            offset += piece.len() as u64;
        }
        let outcome = pass.finish(&checksum)?;
        reader.close().await.map_err(in_words)?;
        Ok(outcome)
    })
}

fn executor() -> Result<LocalExecutor> {
    LocalExecutorBuilder::new(Placement::Unbound).make().map_err(in_words)
}

/// Its errors cannot be sent between threads, as those of this program can.
fn in_words(error: GlommioError<()>) -> anyhow::Error {
    anyhow!("{error}")
}
