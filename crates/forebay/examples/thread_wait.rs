//! Plain threads, no runtime: every operation has `.wait()`.
//!
//! Run with `cargo run --release -p forebay --example thread_wait`; it writes 16 MiB into the current folder and removes
//! them again.

use std::error::Error;
use std::thread;
use std::time::Instant;

use forebay::{Class, Config, Durability, Engine, ErrorKind, Open, Result};

const PAGE: u64 = 4096;
const PAGES: u64 = 4096;
const THREADS: u64 = 4;
const READS: u64 = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::start(Config::new())?;
    let file = engine.temp_file(".", Open::create()).wait()?;

    // A file without a name: it is removed with the last handle.
    for page in (0..PAGES).step_by(256) {
        let mut pages = engine.block(256 * PAGE as usize)?;
        for (number, bytes) in (page..).zip(pages.chunks_exact_mut(PAGE as usize)) {
            bytes.fill((number % 251) as u8);
        }
        file.write(page * PAGE, pages).wait()?;
    }
    file.sync(Durability::Data).wait()?;
    println!(
        "wrote {} MiB, offsets and lengths in multiples of {}",
        (PAGES * PAGE) >> 20,
        file.alignment().offset
    );

    let begun = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let file = &file;
                scope.spawn(move || {
                    for turn in 0..READS {
                        let page = (number * READS + turn) * 2_654_435_761 % PAGES;
                        let at = page * PAGE + 1_003; // reads need no alignment
                        let block = file.read(at..at + 100).wait()?;
                        assert_eq!(&block[..], &[(page % 251) as u8; 100]);
                    }
                    Result::<()>::Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{THREADS} threads, one read at a time each: {:.0} a second",
        (THREADS * READS) as f64 / seconds
    );

    // A pipeline without a runtime: the scan has its reads in flight while this thread processes a block.
    let mut scan = file.scan().request_bytes(256 << 10).depth(4).start();
    let mut bytes = 0;
    while let Some(block) = scan.next().wait() {
        bytes += block?.len();
    }
    println!("a scan gave {} MiB", bytes >> 20);

    // Waiting on a storage thread would block the thread that has to complete the operation: an error, not a
    // hang.
    let handle = file.clone();
    let refused =
        engine.spawn_on_shard(0, Class::DEFAULT, move || async move { handle.read(0..8).wait() }).wait()?;
    assert_eq!(refused.map_err(|error| error.kind()).err(), Some(ErrorKind::WaitOnShard));
    println!("and .wait() on a shard answers ErrorKind::WaitOnShard");

    engine.close().wait()?;
    Ok(())
}
