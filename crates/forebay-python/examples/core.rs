//! The reads of bench/bench.py from Rust, without Python. The difference is the package's cost.
//!
//! `core scan FILE` and `core batches FILE MODE RANGES BATCHES` (MODE: adaptive, direct or buffered) print one line of JSON. The file is
//! read as it is: whether the page cache has it is the caller's part.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay::{Config, Engine, Open};

const RANGE_BYTES: u64 = 4096;
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let engine = Engine::start(Config::new())?;
    match arguments[..] {
        ["scan", path] => scan(&engine, Path::new(path))?,
        ["batches", path, mode, ranges, batches] => {
            let open = match mode {
                "direct" => Open::read().direct(),
                "buffered" => Open::read().buffered(),
                _ => Open::read().adaptive(),
            };
            run_batches(&engine, Path::new(path), open, ranges.parse()?, batches.parse()?)?;
        }
        _ => return Err("usage: core scan FILE | core batches FILE MODE RANGES BATCHES".into()),
    }
    engine.close().wait()?;
    Ok(())
}

fn scan(engine: &Engine, path: &Path) -> Result<(), Box<dyn Error>> {
    let file = engine.open(path, Open::read()).wait()?;
    let clock = Clock::start();
    let mut scan = file.scan().start();
    let mut bytes = 0;
    while let Some(block) = scan.next().wait() {
        bytes += block?.len() as u64;
    }
    clock.report(bytes, &[]);
    Ok(())
}

/// Reads batches one after the other, each into the same memory.
fn run_batches(
    engine: &Engine,
    path: &Path,
    open: Open,
    ranges: usize,
    batches: usize,
) -> Result<(), Box<dyn Error>> {
    let file = engine.open(path, open).wait()?;
    let offsets = places(ranges * batches, file.len().wait()?);
    let batches: Vec<Vec<_>> = offsets
        .chunks(ranges.max(1))
        .map(|batch| batch.iter().map(|offset| *offset..offset + RANGE_BYTES).collect())
        .collect();
    let mut memory = vec![1; ranges * RANGE_BYTES as usize];
    let (mut each, mut bytes) = (Vec::with_capacity(batches.len()), 0);
    let clock = Clock::start();
    for batch in batches {
        let begun = Instant::now();
        let (result, back) = file.read_many(batch).into_memory(memory).wait();
        result?;
        memory = back;
        bytes += memory.len() as u64;
        each.push(begun.elapsed());
    }
    clock.report(bytes, &each);
    Ok(())
}

/// Returns the same offsets as bench.py.
fn places(count: usize, file_bytes: u64) -> Vec<u64> {
    let mut state = SEED;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 16) % (file_bytes - RANGE_BYTES)
    };
    std::iter::repeat_with(next).take(count).collect()
}

struct Clock {
    begun: Instant,
    processor: Duration,
}

impl Clock {
    fn start() -> Clock {
        Clock { begun: Instant::now(), processor: processor() }
    }

    fn report(&self, bytes: u64, each: &[Duration]) {
        let seconds = self.begun.elapsed().as_secs_f64();
        let processor = (processor() - self.processor).as_secs_f64();
        let each: Vec<f64> = each.iter().map(Duration::as_secs_f64).collect();
        println!(
            "{{\"seconds\": {seconds}, \"processor_seconds\": {processor}, \"bytes\": {bytes}, \"each\": {each:?}}}"
        );
    }
}

/// Processor time of all threads.
fn processor() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}
