//! `tokio::fs`. It reads through a buffer of its own that no direct read can use, so these rows go through
//! the page cache. The file is evicted from it before each sample.

use std::os::fd::AsRawFd as _;

use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

use crate::prelude::*;

/// Measures random reads: `depth` tasks, each with a file of its own (the cursor belongs to the file), seek
/// then read. Read-ahead is off.
pub(crate) fn random(reads: &Reads) -> Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    let window = reads.window();
    let meters = on_tokio(
        &runtime,
        (0..reads.depth).map(|i| {
            let (path, mut meter, mut offsets) = (reads.path.clone(), window.meter(), reads.offsets(i));
            async move {
                let mut file = File::open(path).await?;
                // SAFETY: advice on an open file; it reads and writes no memory of this process.
                unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
                let mut buffer = vec![0; BLOCK_BYTES];
                while_open!(meter, {
                    let offset = offsets.next();
                    file.seek(std::io::SeekFrom::Start(offset)).await?;
                    file.read_exact(&mut buffer).await?;
                    offsets.check(&buffer, offset)?;
                });
                Ok(meter)
            }
        }),
    )?;
    Ok(window.outcome(meters))
}

/// Measures the scan with a 128 KiB buffer.
pub(crate) fn scan(scan: &Scan) -> Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    let pass = scan.begin();
    let checksum = runtime.block_on(async {
        let mut file = File::open(&scan.path).await?;
        file.set_max_buf_size(128 << 10);
        let mut buffer = vec![0; 128 << 10];
        let (mut checksum, mut offset) = (Checksum::default(), 0);
        while offset < scan.file_bytes {
            let length = (scan.file_bytes - offset).min(buffer.len() as u64) as usize;
            file.read_exact(&mut buffer[..length]).await?;
            checksum.add(offset, &buffer[..length]);
            offset += length as u64;
        }
        anyhow::Ok(checksum)
    })?;
    pass.finish(&checksum)
}
