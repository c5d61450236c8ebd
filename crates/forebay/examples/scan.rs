//! One file from front to back, with `std::fs` and with `File::scan`: throughput and memory, roughly.
//!
//! Run with `cargo run --release -p forebay --example scan`; it writes 128 MiB into the current folder and
//! removes them again. For figures to rely on use `forebay measure scan`: this is one pass each, and a
//! virtual machine's host may cache.

use std::error::Error;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

use forebay::{Advice, Config, Durability, Engine, Open, Result};

const BYTES: u64 = 128 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir_in(".")?;
    let path = folder.path().join("scan.bin");
    let engine = Engine::start(Config::new())?;
    let sum_written = write_noise(&engine, &path)?;

    // Cold for std::fs, too: the file's pages in the page cache are dropped first.
    engine.open(&path, Open::read().buffered()).wait()?.advise(0..BYTES, Advice::DontNeed).wait()?;
    let begun = Instant::now();
    let mut file = std::fs::File::open(&path)?;
    let mut buffer = vec![0; 128 << 10];
    let mut sum = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            bytes => sum = added(sum, &buffer[..bytes]),
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    assert_eq!(sum, sum_written);
    report("std::fs", seconds, buffer.len() as u64, cached_bytes(&path)?);

    engine.open(&path, Open::read().buffered()).wait()?.advise(0..BYTES, Advice::DontNeed).wait()?;
    let begun = Instant::now();
    let file = engine.open(&path, Open::read()).wait()?;
    let mut scan = file.scan().start();
    let mut sum = 0;
    // The blocks are the memory that the device wrote to: nothing is copied.
    while let Some(block) = scan.next().wait() {
        sum = added(sum, &block?);
    }
    let seconds = begun.elapsed().as_secs_f64();
    assert_eq!(sum, sum_written);
    report("scan", seconds, scan.in_flight_bytes_peak(), cached_bytes(&path)?);

    drop(scan);
    file.close().wait()?;
    engine.close().wait()?;
    Ok(())
}

/// Writes bytes that no device or file system can compress; returns their sum.
fn write_noise(engine: &Engine, path: &Path) -> Result<u64> {
    let file = engine.open(path, Open::create_new()).wait()?;
    let (mut state, mut sum) = (0x9E37_79B9_7F4A_7C15_u64, 0);
    for offset in (0..BYTES).step_by(1 << 20) {
        let mut block = engine.block(1 << 20)?;
        for word in block.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        sum = added(sum, &block);
        file.write(offset, block).wait()?;
    }
    file.sync(Durability::All).wait()?;
    file.close().wait()?;
    Ok(sum)
}

/// Adds one word of each page to the sum: enough to see that all have arrived, cheap enough to time the
/// reading only.
fn added(sum: u64, bytes: &[u8]) -> u64 {
    bytes.chunks(4096).fold(sum, |sum, page| {
        let word = page.first_chunk().copied().map_or(0, u64::from_le_bytes);
        sum.wrapping_mul(31).wrapping_add(word)
    })
}

/// Returns how much of the file is in the page cache, by mincore(2) over a mapping of it.
fn cached_bytes(path: &Path) -> std::io::Result<u64> {
    let file = std::fs::File::open(path)?;
    let len = BYTES as usize;
    let mut resident = vec![0u8; len / 4096];
    // SAFETY: a new read-only mapping of the file that nothing dereferences; the address is checked before
    // its use.
    let map = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if map == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the mapping has `len` bytes, and `resident` has space for a byte for each page of 4 KiB or more.
    let told = unsafe { libc::mincore(map, len, resident.as_mut_ptr()) };
    let error = std::io::Error::last_os_error();
    // SAFETY: the mapping made above, which nothing refers to.
    unsafe { libc::munmap(map, len) };
    if told != 0 {
        Err(error)
    } else {
        Ok(resident.iter().filter(|&&page| page & 1 == 1).count() as u64 * 4096)
    }
}

fn report(name: &str, seconds: f64, buffers: u64, cached: u64) {
    let rate = BYTES as f64 / 1e6 / seconds;
    println!(
        "{name:8} {rate:6.0} MB/s; {} KiB of buffers, {} MiB of page cache",
        buffers >> 10,
        cached >> 20
    );
}
