//! A file several times over, in each mode and in several ways: the milliseconds of each pass, and how much of the file the page cache has
//! afterwards. Adaptive files load it with the second pass, as far as memory is free.
//!
//! Run with `cargo run --release -p forebay --example passes [MIB [PASSES]]`; it writes a file of 64 MiB into the current folder
//! and removes it again. Each row starts with the file evicted from the page cache.

use std::error::Error;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use forebay::{Advice, Config, Durability, Engine, File, Open, Result};

/// The reader of a row.
enum Reader {
    Std(std::fs::File),
    Forebay(File),
}

#[derive(Clone, Copy)]
enum Way {
    Scan,
    Batch,
    /// Reads of that many bytes, by that many threads.
    Reads(u64, u64),
}

const WAYS: [(&str, Way); 6] = [
    ("scan", Way::Scan),
    ("batch of 64 KiB", Way::Batch),
    ("64 KiB, one thread", Way::Reads(64 << 10, 1)),
    ("64 KiB, eight threads", Way::Reads(64 << 10, 8)),
    ("4 KiB, one thread", Way::Reads(4096, 1)),
    ("4 KiB, eight threads", Way::Reads(4096, 8)),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<u64>());
    let bytes = numbers.next().transpose()?.unwrap_or(64).max(1) << 20;
    let passes = numbers.next().transpose()?.unwrap_or(5);
    let folder = tempfile::tempdir_in(".")?;
    let path = folder.path().join("passes.bin");
    write_noise(&Engine::start(Config::new())?, &path, bytes)?;
    for (name, way) in WAYS {
        for (mode, open) in [
            ("std::fs", None),
            ("direct", Some(Open::read())),
            ("adaptive", Some(Open::read().adaptive())),
            ("buffered", Some(Open::read().buffered())),
        ] {
            // A new engine has missed nothing yet.
            let engine = Engine::start(Config::new())?;
            engine.open(&path, Open::read().buffered()).wait()?.advise(0..bytes, Advice::DontNeed).wait()?;
            let reader = match open {
                None => Reader::Std(std::fs::File::open(&path)?),
                Some(open) => Reader::Forebay(engine.open(&path, open).wait()?),
            };
            print!("{name:22} {mode:9}");
            for _ in 0..passes {
                let begun = Instant::now();
                pass(&reader, way, bytes)?;
                print!(" {:8.1}", begun.elapsed().as_secs_f64() * 1e3);
            }
            let stats = engine.stats().wait()?;
            println!(" ms, {} hits, {} misses", stats.page_cache_reads, stats.page_cache_misses);
        }
    }
    Ok(())
}

/// Reads all of the file once.
fn pass(reader: &Reader, way: Way, bytes: u64) -> Result<(), Box<dyn Error>> {
    match (reader, way) {
        (Reader::Forebay(file), Way::Scan) => {
            let mut scan = file.scan().start();
            while let Some(block) = scan.next().wait() {
                block?;
            }
        }
        (Reader::Forebay(file), Way::Batch) => {
            // By 8 MiB, so that results need no more memory than that.
            for start in (0..bytes).step_by(8 << 20) {
                let end = bytes.min(start + (8 << 20));
                let ranges = (start..end).step_by(64 << 10).map(|at| at..at + (64 << 10));
                for block in file.read_many(ranges).wait()? {
                    block?;
                }
            }
        }
        (Reader::Std(file), Way::Scan | Way::Batch) => {
            let mut buffer = vec![0; 128 << 10];
            for at in (0..bytes).step_by(buffer.len()) {
                file.read_exact_at(&mut buffer, at)?;
            }
        }
        (reader, Way::Reads(len, threads)) => {
            let failures: Vec<_> = std::thread::scope(|scope| {
                let read =
                    |thread| move || reads(reader, (thread..bytes / len).step_by(threads as usize), len);
                let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(read(thread))).collect();
                handles.into_iter().filter_map(|handle| handle.join().ok()?.err()).collect()
            });
            if let Some(failure) = failures.into_iter().next() {
                return Err(failure.into());
            }
        }
    }
    Ok(())
}

/// Reads parts of the file one after the other.
fn reads(reader: &Reader, parts: impl Iterator<Item = u64>, len: u64) -> std::io::Result<()> {
    let mut buffer = vec![0; len as usize];
    for part in parts {
        let range: Range<u64> = part * len..(part + 1) * len;
        match reader {
            Reader::Std(file) => file.read_exact_at(&mut buffer, range.start)?,
            Reader::Forebay(file) => drop(file.read(range).wait()?),
        }
    }
    Ok(())
}

/// Writes bytes that no device or file system can compress.
fn write_noise(engine: &Engine, path: &Path, bytes: u64) -> Result<()> {
    let file = engine.open(path, Open::create_new()).wait()?;
    let mut state = 1_u64;
    for offset in (0..bytes).step_by(1 << 20) {
        let mut block = engine.block(1 << 20)?;
        for word in block.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        file.write(offset, block).wait()?;
    }
    file.sync(Durability::All).wait()
}
