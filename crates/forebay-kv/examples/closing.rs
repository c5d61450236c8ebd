//! The cost of an end: dropping the last handle of an engine, a log and a store, and waiting for `close`.
//!
//! Run with `cargo run --release -p forebay-kv --example closing [repeats]`; it writes a few megabytes into a
//! new folder under the current one and removes them again. Each figure is the median of the repeats (9).
//! `docs/modes.md` has figures of this program.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use forebay::{Config, Engine};
use forebay_kv::Store;
use forebay_wal::Wal;

/// Records, or entries, written before each end.
const COUNT: u32 = 1000;

const NAMES: [&str; 6] = [
    "drop of an Engine",
    "close().wait() of an Engine",
    "drop of a Wal",
    "close().wait() of a Wal",
    "drop of a Store",
    "close().wait() of a Store",
];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let repeats = std::env::args().nth(1).map_or(Ok(9), |count| count.parse::<usize>())?.max(1);
    let base = tempfile::tempdir_in(".")?;
    let mut took = vec![Vec::new(); NAMES.len()];
    for repeat in 0..repeats {
        for (index, took) in took.iter_mut().enumerate() {
            took.push(ended(index, &base.path().join(format!("{repeat}-{index}")))?);
        }
    }
    println!("{:30}{:>14}", "end", "calling thread");
    for (name, mut took) in NAMES.iter().zip(took) {
        took.sort_by(f64::total_cmp);
        println!("{name:30}{:>11.1} us", took[took.len() / 2]);
    }
    Ok(())
}

/// Returns the microseconds that the end with this number spends on the calling thread.
fn ended(index: usize, dir: &Path) -> Result<f64> {
    let engine = Engine::start(Config::new())?;
    let waits = !index.is_multiple_of(2);
    match index / 2 {
        0 => {
            let begun = Instant::now();
            if waits {
                engine.close().wait()?;
            } else {
                drop(engine);
            }
            Ok(micros(begun))
        }
        1 => {
            let (wal, _) = Wal::open(&engine, dir, forebay_wal::Options::new()).wait()?;
            for _ in 0..COUNT {
                wal.append(&[7; 100]).queued().wait()?;
            }
            let begun = Instant::now();
            if waits {
                wal.close().wait()?;
            } else {
                drop(wal);
            }
            let took = micros(begun);
            // The log of a dropped handle is still being written; the engine's end would cut that off.
            if !waits {
                reopened(&engine, dir)?;
            }
            engine.close().wait()?;
            Ok(took)
        }
        _ => {
            let store =
                Store::open(&engine, dir, forebay_kv::Options::new().memory_bytes_max(16 << 20)).wait()?;
            let keys = store.default_keyspace();
            let mut batch = forebay_kv::Batch::new();
            for number in 0..COUNT {
                batch.put(&keys, number.to_be_bytes(), [7; 100]);
            }
            store.write(&batch).wait()?;
            drop(keys);
            let begun = Instant::now();
            if waits {
                store.close().wait()?;
            } else {
                drop(store);
            }
            let took = micros(begun);
            if !waits {
                // An open waits for a store of this process that is closing.
                Store::open(&engine, dir, forebay_kv::Options::new().memory_bytes_max(16 << 20))
                    .wait()?
                    .close()
                    .wait()?;
            }
            engine.close().wait()?;
            Ok(took)
        }
    }
}

/// Opens the log of a dropped handle once it has closed.
fn reopened(engine: &Engine, dir: &Path) -> Result<()> {
    loop {
        match Wal::open(engine, dir, forebay_wal::Options::new()).wait() {
            Ok((wal, recovery)) => {
                assert_eq!(recovery.last.0, u64::from(COUNT));
                return Ok(wal.close().wait()?);
            }
            Err(error) if error.kind() == forebay_wal::ErrorKind::Locked => std::thread::yield_now(),
            Err(error) => return Err(error.into()),
        }
    }
}

fn micros(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e6
}
