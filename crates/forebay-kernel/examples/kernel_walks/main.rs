//! Lookups in a tree, six pages deep, in several ways, each result verified: walks in the module, in
//! io_uring's own loop and in the reactor, a bare ring that resubmits where it reaps, waiting for interrupts
//! or polling, and threads with pread.
//!
//!     cargo run --release -p forebay-kernel --example kernel_walks -- FILE [SECONDS [REPEATS]]
//!     cargo run --release -p forebay-kernel --example kernel_walks -- FILE SECONDS REPEATS threads
//!     cargo run --release -p forebay-kernel --example kernel_walks -- FILE SECONDS REPEATS reads
//!
//! The second form measures the cost of more threads than processors: four times as many, with 32 lookups in flight as before, and
//! with as many for each thread as before. A further row is a ring whose thread never sleeps, as SPDK's do.
//!
//! The third form has lookups of 1 to 6 reads in the rows of one thread, and shows the cost of a further read apart from the
//! device's time.
//!
//! The file is written (64 MiB of nodes of 512 bytes), used and removed. Rows alternate; figures are medians.

mod planted;
mod rows;
mod samples;

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::thread;
use std::time::Duration;

use forebay::{Config, Engine, Open};
use forebay_kernel::{EngineKind, KernelWalk};
use planted::{Answer, LEVELS, plant};
use rows::{Callers, PROGRAM, Wait, direct, local, options, pread, ring, shared, spinning, tasks};
use samples::{SampleResult, Start, by_threads, median};

/// Lookups in flight, of all threads together.
const LOOKUPS: u32 = 32;

fn main() -> Answer<()> {
    let mut args = std::env::args().skip(1);
    let Some(path) = args.next() else { return Err("give a file that may be written and removed".into()) };
    let path = Path::new(&path);
    let seconds: f64 = args.next().map_or(Ok(0.5), |word| word.parse())?;
    let repeats: usize = args.next().map_or(Ok(5), |word| word.parse())?;
    let measured = match args.next().as_deref() {
        None => measure,
        Some("threads") => more_threads,
        Some("reads") => by_reads,
        Some(other) => return Err(format!("{other} is nothing that can be measured").into()),
    };
    plant(path)?;
    let done = measured(path, Duration::from_secs_f64(seconds), repeats);
    fs::remove_file(path)?;
    done
}

/// A row: its name, and a sample of it at a depth. The sample notifies the `Start` when everything is set up.
type Row<'r> = (&'static str, Box<dyn Fn(u32, &mut Start<'_>) -> Answer<SampleResult> + Sync + 'r>);

/// Returns the possible rows of a single thread.
fn of_one_thread<'r>(path: &'r Path, direct: &'r fs::File, reads: u64, time: Duration) -> Vec<Row<'r>> {
    let mut rows: Vec<Row<'_>> = vec![(
        "io_uring",
        Box::new(move |depth, start: &mut Start<'_>| {
            ring(direct, (depth, reads), time, Wait::Interrupt, start)
        }),
    )];
    if ring(direct, (1, reads), Duration::ZERO, Wait::Polled, &mut Start::alone()).is_ok() {
        for (name, wait) in [("io_uring, polled", Wait::Polled), ("io_uring, never asleep", Wait::Busy)] {
            rows.push((name, Box::new(move |depth, start| ring(direct, (depth, reads), time, wait, start))));
        }
    }
    if forebay_kernel::probe(EngineKind::BpfLoop).is_ok() {
        let of = |depth| options(EngineKind::BpfLoop, depth, false);
        rows.push(("BPF loop", Box::new(move |depth, start| local(path, reads, of(depth), time, start))));
    }
    match local(path, reads, options(EngineKind::Module, 1, false), Duration::ZERO, &mut Start::alone()) {
        Err(why) => println!("{why}"),
        Ok(_) => {
            for (name, polled, spin_us) in
                [("module", false, 0), ("module, spinning", false, 50), ("module, polled", true, 0)]
            {
                let spin = Duration::from_micros(spin_us);
                let of = move |depth| spinning(options(EngineKind::Module, depth, polled), spin);
                rows.push((name, Box::new(move |depth, start| local(path, reads, of(depth), time, start))));
            }
        }
    }
    rows
}

/// The rows of one engine's `KernelWalk`.
macro_rules! names {
    ($engine:literal) => {
        [
            concat!($engine, ", tasks"),
            concat!($engine, ", other shard"),
            concat!($engine, ", Tokio"),
            concat!($engine, ", thread"),
            concat!($engine, ", thread, 8x"),
        ]
    };
}

fn measure(path: &Path, time: Duration, repeats: usize) -> Answer<()> {
    let engine = Engine::start(Config::new().shards(1))?;
    let file = engine.open(path, Open::read()).wait()?;
    let walk = KernelWalk::open(&engine, &file, PROGRAM)?;
    println!("{}", walk.why());
    walk.close();
    let direct = direct(path)?;
    let mut rows: Vec<Row<'_>> = vec![("pread", Box::new(|depth, start| pread(&direct, depth, time, start)))];
    rows.extend(of_one_thread(path, &direct, LEVELS, time));
    // A `KernelWalk`, called by tasks with one lookup each on the shard, on another shard and in Tokio, by a plain thread that
    // waits for as many as the depth, and by a thread with eight times as many in flight.
    for (row, names, kind, polled) in [
        ("pread", names!("reactor"), EngineKind::Reactor, false),
        ("BPF loop", names!("BPF loop"), EngineKind::BpfLoop, false),
        ("module", names!("module"), EngineKind::Module, false),
        ("module, polled", names!("polled"), EngineKind::Module, true),
    ] {
        if rows.iter().any(|(each, _)| *each == row) {
            let (engine, file) = (&engine, &file);
            let of = move |depth| options(kind, depth, polled);
            for (name, callers) in [(names[0], Callers::Shards), (names[2], Callers::Tokio)] {
                let ask =
                    move |depth, start: &mut Start<'_>| tasks(engine, file, of(depth), callers, time, start);
                rows.push((name, Box::new(ask)));
            }
            let elsewhere = move |depth, start: &mut Start<'_>| {
                // For this sample alone: an idle engine executes instructions as well.
                let two = Engine::start(Config::new().shards(2))?;
                let file = two.open(path, Open::read()).wait()?;
                tasks(&two, &file, of(depth), Callers::OtherShards, time, start)
            };
            rows.push((names[1], Box::new(elsewhere)));
            for (name, times) in [(names[3], 1), (names[4], 8)] {
                let ask = move |depth, start: &mut Start<'_>| {
                    shared(engine, file, of(depth), depth * times, time, start)
                };
                rows.push((name, Box::new(ask)));
            }
        }
    }
    println!("{:<22} {:>5} {:>12} {:>9} {:>16}", "row", "depth", "lookups/s", "spread", "calls per lookup");
    for depth in [1, LOOKUPS] {
        let mut taken = vec![Vec::new(); rows.len()];
        let mut calls = vec![0.0; rows.len()];
        for _ in 0..repeats {
            for (place, (_, row)) in rows.iter().enumerate() {
                let sample = row(depth, &mut Start::alone())?;
                taken[place].push(sample.rate());
                calls[place] = sample.calls as f64 / sample.lookups as f64;
            }
        }
        for (place, (name, _)) in rows.iter().enumerate() {
            let (median, spread) = median(&mut taken[place]);
            let called = if calls[place] > 0.0 { format!("{:.2}", calls[place]) } else { "-".to_owned() };
            let percent = spread * 100.0;
            println!("{name:<22} {depth:>5} {median:>12.0} {percent:>8.1}% {called:>16}");
        }
    }
    Ok(())
}

/// Looks up with 1 to 6 reads, in the rows of one thread. Prints the time of a lookup, and its ratio to that of the bare ring.
fn by_reads(path: &Path, time: Duration, repeats: usize) -> Answer<()> {
    let direct = direct(path)?;
    println!(
        "{:<22} {:>5} {:>5} {:>12} {:>9} {:>9}",
        "row", "depth", "reads", "ns a lookup", "spread", "of ring"
    );
    for depth in [1, LOOKUPS] {
        for reads in 1..=LEVELS {
            let rows = of_one_thread(path, &direct, reads, time);
            let mut taken = vec![Vec::new(); rows.len()];
            for _ in 0..repeats {
                for (taken, (_, row)) in taken.iter_mut().zip(&rows) {
                    taken.push(1e9 / row(depth, &mut Start::alone())?.rate());
                }
            }
            let mut of_ring = None;
            for ((name, _), taken) in rows.iter().zip(&mut taken) {
                let (median, spread) = median(taken);
                let (percent, ratio) = (spread * 100.0, *of_ring.get_or_insert(median) / median);
                println!("{name:<22} {depth:>5} {reads:>5} {median:>12.0} {percent:>8.1}% {ratio:>9.2}");
            }
        }
    }
    Ok(())
}

/// Compares one thread per processor with four: with the same number of lookups in flight, so that each thread has fewer, and with
/// as many for each thread. Alternately.
fn more_threads(path: &Path, time: Duration, repeats: usize) -> Answer<()> {
    let processors = thread::available_parallelism().map_or(1, NonZero::get) as u32;
    let each = (LOOKUPS / processors).max(1);
    let sides = [(processors, each), (processors * 4, (each / 4).max(1)), (processors * 4, each)];
    let direct = direct(path)?;
    let rows = of_one_thread(path, &direct, LEVELS, time);
    let mut engines = Vec::new();
    for (threads, _) in sides {
        let engine = Engine::start(Config::new().shards(threads as usize))?;
        let file = engine.open(path, Open::read()).wait()?;
        engines.push((engine, file));
    }
    // Rates of the three, and the ratios of the second and the third to the first.
    let mut taken: Vec<[Vec<f64>; 5]> = vec![Default::default(); rows.len() + 1];
    for _ in 0..repeats {
        for (place, taken) in taken.iter_mut().enumerate() {
            let mut rates = [0.0; 3];
            for (side, &(threads, depth)) in sides.iter().enumerate() {
                rates[side] = match rows.get(place) {
                    Some((_, row)) => by_threads(threads, |start| row(depth, start))?,
                    None => {
                        let (engine, file) = &engines[side];
                        let of = options(EngineKind::Reactor, threads * depth, false);
                        tasks(engine, file, of, Callers::Shards, time, &mut Start::alone())?.rate()
                    }
                };
            }
            let all = rates.into_iter().chain([rates[1] / rates[0], rates[2] / rates[0]]);
            all.zip(taken).for_each(|(value, values)| values.push(value));
        }
    }
    println!("{processors} processors, {repeats} repeats; threads x lookups at once of each");
    let [one, two, three] = sides.map(|(threads, depth)| format!("{threads} x {depth}"));
    println!("{:<22} {one:>10} {two:>10} {three:>10} {:>7} {:>7} {:>9}", "row", "second", "third", "spread");
    let names = rows.iter().map(|(name, _)| *name).chain(["reactor walk"]);
    for (name, values) in names.zip(&mut taken) {
        let [one, two, three, second, third] = values.each_mut().map(|values| median(values));
        let spread = second.1.max(third.1) * 100.0;
        let (one, two, three, second, third) = (one.0, two.0, three.0, second.0, third.0);
        println!(
            "{name:<22} {one:>10.0} {two:>10.0} {three:>10.0} {second:>7.3} {third:>7.3} {spread:>8.1}%"
        );
    }
    Ok(())
}
