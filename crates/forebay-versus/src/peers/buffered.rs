//! The rows that go through the page cache: `std::fs`, a memory map, and reads that do not stay cached.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;

use anyhow::Context;

use crate::prelude::*;

/// `RWF_DONTCACHE` (Linux 6.14): read through the page cache and drop the pages afterwards.
const RWF_DONTCACHE: libc::c_int = 0x80;

/// Measures `std::fs::File` with a 128 KiB buffer.
pub(crate) fn std_fs(scan: &Scan) -> Result<Outcome> {
    let pass = scan.begin();
    let mut file = File::open(&scan.path)?;
    let mut buffer = vec![0; 128 << 10];
    let (mut checksum, mut offset) = (Checksum::default(), 0);
    while offset < scan.file_bytes {
        let length = (scan.file_bytes - offset).min(buffer.len() as u64) as usize;
        file.read_exact(&mut buffer[..length])?;
        checksum.add(offset, &buffer[..length]);
        offset += length as u64;
    }
    pass.finish(&checksum)
}

/// Measures a memory map with advice "sequential".
pub(crate) fn mmap(scan: &Scan) -> Result<Outcome> {
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

/// Measures `preadv2` with `RWF_DONTCACHE`, 1 MiB a call.
pub(crate) fn dontcache(scan: &Scan) -> Result<Outcome> {
    let pass = scan.begin();
    let file = File::open(&scan.path)?;
    let mut memory = pieces(1, 1 << 20, PageKind::Huge)?;
    let buffer = &mut memory[0];
    let (mut checksum, mut offset) = (Checksum::default(), 0);
    while offset < scan.file_bytes {
        let length = (scan.file_bytes - offset).min(buffer.len() as u64) as usize;
        let vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: length };
        // SAFETY: `vector` names `length` writable bytes of `buffer`.
        let got =
            unsafe { libc::preadv2(file.as_raw_fd(), &raw const vector, 1, offset as i64, RWF_DONTCACHE) };
        if got < 0 {
            return Err(std::io::Error::last_os_error())
                .context("RWF_DONTCACHE needs Linux 6.14 and a file system that has it");
        }
        ensure!(got > 0, "the file ended at {offset} of {} bytes", scan.file_bytes);
        checksum.add(offset, &buffer[..got as usize]);
        offset += got as u64;
    }
    pass.finish(&checksum)
}
