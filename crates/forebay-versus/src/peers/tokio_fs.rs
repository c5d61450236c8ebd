//! `tokio::fs`. It reads through a buffer of its own that no direct read can use, so these rows go through
//! the page cache. The file is evicted from it before each sample.

use std::os::fd::AsRawFd as _;

use anyhow::Result;
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

use crate::content::{self, Checksum};
use crate::meter::Window;
use crate::random::{BLOCK_BYTES, RandomJob};
use crate::rng::Rng;
use crate::sample::Sample;
use crate::scan::ScanJob;

/// Measures random reads: `depth` tasks, each with a file of its own (the cursor belongs to the file), seek
/// then read. Read-ahead is off.
pub(crate) fn random(job: &RandomJob) -> Result<Sample> {
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    let window = Window::start(job.warm_up, job.measure);
    let meters = runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for i in 0..job.depth {
            let (path, file_bytes) = (job.path.clone(), job.file_bytes);
            let (mut meter, mut rng) = (window.meter(), Rng::new(job.seed, i));
            tasks.spawn(async move {
                let mut file = File::open(path).await?;
                // SAFETY: advice on an open file; it reads and writes no memory of this process.
                unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
                let mut buffer = vec![0; BLOCK_BYTES];
                let mut first = true;
                let mut began = meter.begin();
                loop {
                    let offset = rng.page_offset(file_bytes);
                    file.seek(std::io::SeekFrom::Start(offset)).await?;
                    file.read_exact(&mut buffer).await?;
                    if std::mem::take(&mut first) {
                        content::check_start(&buffer, offset)?;
                    }
                    match meter.finish(began) {
                        Some(now) => began = now,
                        None => return anyhow::Ok(meter),
                    }
                }
            });
        }
        tasks.join_all().await.into_iter().collect::<Result<Vec<_>>>()
    })?;
    Ok(window.sample(meters))
}

/// Measures the scan with a 128 KiB buffer.
pub(crate) fn scan(job: &ScanJob) -> Result<Sample> {
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    let begun = job.begin();
    let checksum = runtime.block_on(async {
        let mut file = File::open(&job.path).await?;
        file.set_max_buf_size(128 << 10);
        let mut buffer = vec![0; 128 << 10];
        let (mut checksum, mut offset) = (Checksum::default(), 0);
        while offset < job.file_bytes {
            let length = (job.file_bytes - offset).min(buffer.len() as u64) as usize;
            file.read_exact(&mut buffer[..length]).await?;
            checksum.add(offset, &buffer[..length]);
            offset += length as u64;
        }
        anyhow::Ok(checksum)
    })?;
    job.finish(begun, &checksum)
}
