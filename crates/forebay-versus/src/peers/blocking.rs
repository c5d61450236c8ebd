//! Calls that block: of plain threads, of Tokio's blocking threads, and the ways through the page cache.

use std::io::Read as _;

use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio::runtime::Builder;

use crate::prelude::*;

/// `RWF_DONTCACHE` (Linux 6.14): read through the page cache and drop the pages afterwards.
const RWF_DONTCACHE: libc::c_int = 0x80;

/// The buffer of the rows with a file and its cursor.
const BUFFER_BYTES: usize = 128 << 10;

/// Measures random reads: each of `depth` threads has one pread in flight, of the pages that have the block.
pub(crate) fn random_pread(reads: &Work) -> Result<Outcome> {
    let file = &open_direct(&reads.path)?;
    let block_bytes = reads.block_bytes;
    let buffers = pieces(reads.depth, block_bytes.next_multiple_of(PAGE_BYTES as usize), PageKind::Huge)?;
    let lanes = buffers.into_iter().enumerate().map(|(i, buffer)| {
        let mut offsets = reads.offsets(i);
        move || {
            let offset = offsets.next();
            file.read_exact_at(buffer, offset)?;
            offsets.check(&buffer[..block_bytes], offset)
        }
    });
    threads(reads, lanes)
}

/// Measures random reads of `std::fs` through the page cache: each of `depth` threads reads into its own memory.
pub(crate) fn random_std_fs(reads: &Work) -> Result<Outcome> {
    let file = &File::open(&reads.path)?;
    let lanes = (0..reads.depth).map(|i| {
        let (mut buffer, mut offsets) = (vec![0; reads.block_bytes], reads.offsets(i));
        move || {
            let offset = offsets.next();
            file.read_exact_at(&mut buffer, offset)?;
            offsets.check(&buffer, offset)
        }
    });
    threads(reads, lanes)
}

/// Measures durable writes of `std::fs` at random pages: each of `depth` threads writes through the page cache, and syncs the file.
pub(crate) fn writes_std_fs(writes: &Work) -> Result<Outcome> {
    let file = &File::options().write(true).open(&writes.path)?;
    let lanes = (0..writes.depth).map(|i| {
        let (data, mut offsets) = (vec![7; writes.block_bytes], writes.offsets(i));
        move || {
            file.write_all_at(&data, offsets.next())?;
            anyhow::Ok(file.sync_data()?)
        }
    });
    threads(writes, lanes)
}

/// Measures random reads of the usual program with Tokio: `depth` tasks on the multi-threaded runtime with one worker per
/// core, each with one pread in `spawn_blocking` in flight.
pub(crate) fn random_spawn_blocking(reads: &Work) -> Result<Outcome> {
    let file = Arc::new(open_direct(&reads.path)?);
    let buffers = pieces(reads.depth, BLOCK_BYTES, PageKind::Huge)?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let lanes =
        buffers.into_iter().enumerate().map(|(i, buffer)| (Arc::clone(&file), buffer, reads.offsets(i)));
    tokio_tasks!(reads, runtime, lanes, |(file, mut buffer, mut offsets)| {
        let offset = offsets.next();
        let file = Arc::clone(&file);
        let read = tokio::task::spawn_blocking(move || {
            file.read_exact_at(buffer, offset)?;
            std::io::Result::Ok(buffer)
        });
        buffer = read.await??;
        offsets.check(buffer, offset)?;
    })
}

/// Measures random reads of `tokio::fs`: `depth` tasks, each with its own file (the cursor belongs to the file), seek then read. It
/// reads through an internal buffer that direct reads cannot use, so it uses the page cache; read-ahead is off.
pub(crate) fn random_tokio_fs(reads: &Work) -> Result<Outcome> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let lanes = (0..reads.depth).map(|i| {
        let file = File::open(&reads.path)?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
        Ok((tokio::fs::File::from_std(file), vec![0; BLOCK_BYTES], reads.offsets(i)))
    });
    let lanes = lanes.collect::<Result<Vec<_>>>()?.into_iter();
    tokio_tasks!(reads, runtime, lanes, |(mut file, mut buffer, mut offsets)| {
        let offset = offsets.next();
        file.seek(std::io::SeekFrom::Start(offset)).await?;
        file.read_exact(&mut buffer).await?;
        offsets.check(&buffer, offset)?;
    })
}

/// Measures the scan of five threads, each reading the next 512 KiB that no other thread has claimed.
pub(crate) fn scan_pread(scan: &Work) -> Result<Outcome> {
    let pass = scan.begin();
    let file = open_direct(&scan.path)?;
    let buffers = pieces(DEPTH_LARGE, BLOCK_LARGE_BYTES, PageKind::Huge)?;
    let parts = scan.parts();
    let parts = on_threads(buffers.into_iter().map(|buffer| {
        let (file, parts) = (&file, &parts);
        move || {
            let mut checksum = Checksum::default();
            while let Some((offset, length)) = parts.take() {
                file.read_exact_at(&mut buffer[..length], offset)?;
                checksum.add(offset, &buffer[..length]);
            }
            Ok(checksum)
        }
    }))?;
    pass.finish(&Checksum::of_parts(parts))
}

/// Reads a file from its start to its end, and sums it up; `read` fills the memory from an offset, or a part of it.
macro_rules! read_all {
    ($scan:ident, $buffer:ident, |$memory:ident, $offset:ident| $read:expr) => {{
        let (mut checksum, mut $offset) = (Checksum::default(), 0);
        while $offset < $scan.file_bytes {
            let length = ($scan.file_bytes - $offset).min($buffer.len() as u64) as usize;
            let $memory = &mut $buffer[..length];
            let got = $read;
            ensure!(got > 0, "the file ended at {} of {} bytes", $offset, $scan.file_bytes);
            checksum.add($offset, &$buffer[..got]);
            $offset += got as u64;
        }
        checksum
    }};
}

/// Measures the scan with `std::fs::File` and a 128 KiB buffer.
pub(crate) fn scan_std_fs(scan: &Work) -> Result<Outcome> {
    let pass = scan.begin();
    let mut file = File::open(&scan.path)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let checksum = read_all!(scan, buffer, |memory, offset| file.read_exact(memory).map(|()| memory.len())?);
    pass.finish(&checksum)
}

/// Measures the scan with `tokio::fs` and a 128 KiB buffer.
pub(crate) fn scan_tokio_fs(scan: &Work) -> Result<Outcome> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let pass = scan.begin();
    runtime.block_on(async {
        let mut file = tokio::fs::File::open(&scan.path).await?;
        file.set_max_buf_size(BUFFER_BYTES);
        let mut buffer = vec![0; BUFFER_BYTES];
        let checksum = read_all!(scan, buffer, |memory, offset| file.read_exact(memory).await?);
        pass.finish(&checksum)
    })
}

/// Measures the scan with `preadv2` and `RWF_DONTCACHE`, 1 MiB a call.
pub(crate) fn scan_dontcache(scan: &Work) -> Result<Outcome> {
    let pass = scan.begin();
    let file = File::open(&scan.path)?;
    let buffer = pieces(1, 1 << 20, PageKind::Huge)?.remove(0);
    let checksum = read_all!(scan, buffer, |memory, offset| {
        let vector = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
        // SAFETY: `vector` names the writable bytes of `memory`.
        let got =
            unsafe { libc::preadv2(file.as_raw_fd(), &raw const vector, 1, offset as i64, RWF_DONTCACHE) };
        if got < 0 {
            return Err(std::io::Error::last_os_error())
                .context("RWF_DONTCACHE needs Linux 6.14 and a file system that has it");
        }
        got as usize
    });
    pass.finish(&checksum)
}

/// Measures the scan of a memory map with advice "sequential".
pub(crate) fn scan_mmap(scan: &Work) -> Result<Outcome> {
    let pass = scan.begin();
    let file = File::open(&scan.path)?;
    // SAFETY: the file is this run's own and nothing changes it while it is mapped.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    map.advise(memmap2::Advice::Sequential)?;
    let mut checksum = Checksum::default();
    for (i, piece) in map.chunks(1 << 20).enumerate() {
        checksum.add((i << 20) as u64, piece);
    }
    pass.finish(&checksum)
}
