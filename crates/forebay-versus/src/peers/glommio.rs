//! glommio.

use anyhow::{Result, anyhow, ensure};
use glommio::io::{DmaFile, DmaStreamReaderBuilder};
use glommio::{LocalExecutorBuilder, Placement};
use std::rc::Rc;

use crate::content::{self, Checksum};
use crate::meter::{LocalMeter, Window};
use crate::random::{BLOCK_BYTES, RandomJob};
use crate::rng::Rng;
use crate::sample::Sample;
use crate::scan::{BLOCK_LARGE_BYTES, DEPTH_LARGE, ScanJob};

/// Measures random reads: `depth` local tasks over one `DmaFile` with `read_at_aligned`, glommio's own
/// registered memory.
pub(crate) fn random(job: &RandomJob) -> Result<Sample> {
    let executor =
        LocalExecutorBuilder::new(Placement::Unbound).make().map_err(|error| anyhow!("{error}"))?;
    executor.run(async {
        let file = Rc::new(DmaFile::open(&job.path).await.map_err(|error| anyhow!("{error}"))?);
        let window = Window::start(job.warm_up, job.measure);
        let meter = LocalMeter::new(&window);
        let tasks: Vec<_> = (0..job.depth)
            .map(|i| {
                let (file, meter, mut rng) = (Rc::clone(&file), meter.clone(), Rng::new(job.seed, i));
                let file_bytes = job.file_bytes;
                glommio::spawn_local(async move {
                    let mut first = true;
                    let mut began = meter.begin();
                    loop {
                        let offset = rng.page_offset(file_bytes);
                        let read = file
                            .read_at_aligned(offset, BLOCK_BYTES)
                            .await
                            .map_err(|error| anyhow!("{error}"))?;
                        ensure!(read.len() == BLOCK_BYTES, "a read gave {} bytes", read.len());
                        if std::mem::take(&mut first) {
                            content::check_start(&read, offset)?;
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

/// Measures the scan: `DmaStreamReader`, 512 KiB buffers, five read ahead, no copy.
pub(crate) fn scan(job: &ScanJob) -> Result<Sample> {
    let executor =
        LocalExecutorBuilder::new(Placement::Unbound).make().map_err(|error| anyhow!("{error}"))?;
    executor.run(async {
        let begun = job.begin();
        let file = DmaFile::open(&job.path).await.map_err(|error| anyhow!("{error}"))?;
        let mut reader = DmaStreamReaderBuilder::new(file)
            .with_buffer_size(BLOCK_LARGE_BYTES)
            .with_read_ahead(DEPTH_LARGE)
            .build();
        let (mut checksum, mut offset) = (Checksum::default(), 0);
        while offset < job.file_bytes {
            let piece = reader
                .get_buffer_aligned(BLOCK_LARGE_BYTES as u64)
                .await
                .map_err(|error| anyhow!("{error}"))?;
            ensure!(!piece.is_empty(), "the reader ended at {offset} of {} bytes", job.file_bytes);
            checksum.add(offset, &piece);
            offset += piece.len() as u64;
        }
        let sample = job.finish(begun, &checksum)?;
        reader.close().await.map_err(|error| anyhow!("{error}"))?;
        Ok(sample)
    })
}
