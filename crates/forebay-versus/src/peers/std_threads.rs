//! Plain threads with pread: `depth` of them.

use std::os::unix::fs::FileExt as _;

use crate::prelude::*;

/// Measures random reads: each thread has one read in flight.
pub(crate) fn random(reads: &Reads) -> Result<Outcome> {
    let file = open_direct(&reads.path)?;
    let buffers = pieces(reads.depth, BLOCK_BYTES, PageKind::Huge)?;
    let window = reads.window();
    let meters = on_threads(buffers.into_iter().enumerate().map(|(i, mut buffer)| {
        let (file, mut meter, mut offsets) = (&file, window.meter(), reads.offsets(i));
        move || {
            while_open!(meter, {
                let offset = offsets.next();
                file.read_exact_at(&mut buffer, offset)?;
                offsets.check(&buffer, offset)?;
            });
            Ok(meter)
        }
    }))?;
    Ok(window.outcome(meters))
}

/// Measures the scan: five threads, each reading the next 512 KiB that no other thread has taken.
pub(crate) fn scan(scan: &Scan) -> Result<Outcome> {
    let pass = scan.begin();
    let file = open_direct(&scan.path)?;
    let buffers = pieces(DEPTH_LARGE, BLOCK_LARGE_BYTES, PageKind::Huge)?;
    let parts = scan.parts();
    let sums = on_threads(buffers.into_iter().map(|mut buffer| {
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
    let mut checksum = Checksum::default();
    sums.iter().for_each(|part| checksum.merge(part));
    pass.finish(&checksum)
}
