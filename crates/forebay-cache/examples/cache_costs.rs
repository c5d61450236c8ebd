//! Costs of hits and misses, next to the bare map and the bare read. Run it in release mode, in a directory on the device: `cargo
//! run --release -p forebay-cache --example cache_costs -- DIR`. A second argument (`get`, `read`, `miss`, `bare`) and a number of
//! times run one of them alone, for counts of instructions by valgrind.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use forebay::{Config, DriverChoice, Engine, File, Open};
use forebay_cache::{Cache, CacheOptions, CachedFile};

const PAGE: u64 = 4096;
const PAGES: u64 = 16_384;

fn page(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) % PAGES
}

/// Polls to the end without sleeping: a hit is ready immediately, or after one yield.
fn now<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}

fn get(file: &CachedFile, times: u64) -> u64 {
    (0..times)
        .map(|number| {
            file.get(page(number) * PAGE..(page(number) + 1) * PAGE).map_or(0, |page| page.len() as u64)
        })
        .sum()
}

fn read(file: &CachedFile, times: u64) -> forebay::Result<u64> {
    (0..times)
        .map(|number| Ok(now(file.read(page(number) * PAGE + 8..page(number) * PAGE + 108))?.len() as u64))
        .sum()
}

/// Reads pages of which few are in memory, and seldom those.
fn miss(file: &CachedFile, times: u64) -> forebay::Result<u64> {
    let mut sum = 0;
    for number in 0..times {
        sum += file.read(page(number) * PAGE..(page(number) + 1) * PAGE).wait()?.len() as u64;
    }
    Ok(sum)
}

fn bare(file: &File, times: u64) -> forebay::Result<u64> {
    let mut sum = 0;
    for number in 0..times {
        sum += file.read(page(number) * PAGE..(page(number) + 1) * PAGE).wait()?.len() as u64;
    }
    Ok(sum)
}

fn timed(name: &str, times: u64, run: impl FnOnce() -> forebay::Result<u64>) -> forebay::Result<()> {
    let begun = Instant::now();
    run()?;
    let ns = begun.elapsed().as_nanos() as f64 / times as f64;
    println!("{name}: {ns:.1} ns, {:.2} million a second", 1e3 / ns);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().unwrap_or_else(|| ".".to_string());
    let (only, times) = (arguments.next(), arguments.next());
    let times: u64 = times.map_or(Ok(0), |times| times.parse())?;
    let path = std::path::Path::new(&dir).join(format!("cache-costs-{}", std::process::id()));
    std::fs::write(&path, vec![7; (PAGES * PAGE) as usize])?;
    // Valgrind runs one thread at a time, and a ring that waits would hold it.
    let driver = if only.is_some() { DriverChoice::Threads } else { DriverChoice::Auto };
    let engine = Engine::start(Config::new().shards(1).driver(driver))?;
    // Space for all pages for hits, and for a few of them for misses.
    let room = if matches!(only.as_deref(), Some("miss")) { 1 << 20 } else { 2 * PAGES * PAGE };
    let cache = Cache::new(&engine, CacheOptions::new().bytes_max(room))?;
    let small = Cache::new(&engine, CacheOptions::new().bytes_max(1 << 20))?;
    let file = cache.open(&path, Open::read()).wait()?;
    let missing = small.open(&path, Open::read()).wait()?;
    std::fs::remove_file(&path)?;
    match only.as_deref() {
        Some("miss") => println!("{}", miss(&missing, times)?),
        Some("bare") => println!("{}", bare(file.file(), times)?),
        Some(kind) => {
            for start in 0..PAGES / 64 {
                file.read(start * 64 * PAGE..(start + 1) * 64 * PAGE).wait()?;
            }
            println!("{}", if kind == "get" { get(&file, times) } else { read(&file, times)? });
        }
        None => {
            for start in 0..PAGES / 64 {
                file.read(start * 64 * PAGE..(start + 1) * 64 * PAGE).wait()?;
            }
            assert_eq!(get(&file, PAGES), PAGES * PAGE);
            for _ in 0..3 {
                timed("get", 5_000_000, || Ok(get(&file, 5_000_000)))?;
                timed("read, a future", 5_000_000, || read(&file, 5_000_000))?;
            }
            for _ in 0..5 {
                timed("miss", 20_000, || miss(&missing, 20_000))?;
                timed("bare read", 20_000, || bare(file.file(), 20_000))?;
            }
            println!("{:?}", small.stats());
        }
    }
    Ok(())
}
