//! Fills a store until its disk is full, deletes everything and fills it again; in every second round another process first fills
//! the rest of the disk, and in half of the rounds the store is opened again on the full disk. Fails if the store refuses deletes
//! for a minute, becomes read-only, or does not give all space back. `scripts/checks/full-disk` runs it on small file systems.
//!
//! ```text
//! cargo run --release -p forebay-kv --example full_disk -- DIR plain|separated|keyspaces ROUNDS
//! ```

use std::error::Error;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use forebay::{Config, Engine};
use forebay_kv::{Batch, ErrorKind, Keyspace, Options, Store};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// How long one call may be refused.
const PATIENCE: Duration = Duration::from_secs(60);
/// Keys that are deleted one by one.
const SINGLE: usize = 2_000;
const AT_ONCE: usize = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Plain,
    Separated,
    Keyspaces,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [dir, shape, count] => run(Path::new(dir), shape, count),
        // Small enough to be run with all other examples.
        [] => tempfile::tempdir_in(".").map_err(Into::into).and_then(|dir| small(dir.path())),
        _ => Err("usage: full_disk DIR plain|separated|keyspaces ROUNDS".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("full_disk: {error}");
            ExitCode::FAILURE
        }
    }
}

fn small(dir: &Path) -> Outcome {
    let engine = Engine::start(Config::new())?;
    round(&engine, dir, Shape::Keyspaces, 0, 100).map(drop)
}

fn run(dir: &Path, shape: &str, count: &str) -> Outcome {
    let shape = match shape {
        "plain" => Shape::Plain,
        "separated" => Shape::Separated,
        "keyspaces" => Shape::Keyspaces,
        _ => return Err(format!("there is no shape {shape}").into()),
    };
    let engine = Engine::start(Config::new())?;
    let (mut least, mut most) = (usize::MAX, 0);
    for number in 0..count.parse()? {
        let began = Instant::now();
        let keys = round(&engine, dir, shape, number, u64::MAX)
            .map_err(|error| format!("round {number}: {error}"))?;
        println!("{shape:?}, round {number}: {keys} keys, {:.1?}", began.elapsed());
        if number % 2 == 0 {
            (least, most) = (least.min(keys), most.max(keys));
        }
    }
    if most > 0 && least * 2 < most {
        return Err(format!("space is missing: a round had {least} keys, another {most}").into());
    }
    Ok(())
}

fn open(engine: &Engine, dir: &Path, shape: Shape) -> Outcome<(Store, Vec<Keyspace>)> {
    let store = Store::open(engine, dir.join("store"), Options::new().memory_bytes_max(16 << 20)).wait()?;
    let mut keyspaces = vec![store.default_keyspace()];
    if shape == Shape::Keyspaces {
        for name in ["one", "two"] {
            keyspaces.push(store.keyspace(name).wait()?);
        }
    }
    Ok((store, keyspaces))
}

fn key(number: u64) -> [u8; 8] {
    // At a random place among the others.
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

/// Puts until the store is full, or `most` batches. Returns how many keys are there.
fn fill(store: &Store, keyspaces: &[Keyspace], shape: Shape, mut keys: u64, most: u64) -> Outcome<u64> {
    let length = if shape == Shape::Separated { 40_000 } else { 1_000 };
    for _ in 0..most {
        let mut batch = Batch::new();
        for number in keys..keys + 10 {
            let keyspace = &keyspaces[number as usize % keyspaces.len()];
            batch.put(keyspace, key(number), vec![number as u8; length]);
        }
        match store.write(&batch).wait() {
            Ok(()) => keys += 10,
            Err(error) if error.kind() == ErrorKind::NoSpace => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(keys)
}

/// Makes a call until the store does not refuse it any more.
fn patiently(mut call: impl FnMut() -> forebay_kv::Result<()>) -> Outcome {
    let began = Instant::now();
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::NoSpace && began.elapsed() < PATIENCE => {
                sleep(Duration::from_millis(20));
            }
            done => {
                done?;
                return Ok(());
            }
        }
    }
}

/// Fills the rest of the disk in another process.
fn take_the_rest(filler: &Path) -> Outcome {
    let mut to = std::ffi::OsString::from("of=");
    to.push(filler);
    Command::new("dd").arg("if=/dev/zero").arg(to).arg("bs=64k").stderr(Stdio::null()).status()?;
    Ok(())
}

/// Returns how many keys the store had.
fn round(engine: &Engine, dir: &Path, shape: Shape, number: u64, most: u64) -> Outcome<usize> {
    let filler = dir.join("filler");
    let (is_shared, is_reopened) = (number % 2 == 1, number % 4 >= 2);
    let (mut store, mut keyspaces) = open(engine, dir, shape)?;
    let mut keys = 0;
    if is_shared {
        keys = fill(&store, &keyspaces, shape, keys, 300)?;
        take_the_rest(&filler)?;
    }
    keys = fill(&store, &keyspaces, shape, keys, most)?;
    if is_reopened {
        drop(keyspaces);
        store.close().wait()?;
        (store, keyspaces) = open(engine, dir, shape)?;
    }
    let numbers: Vec<u64> = (0..keys).collect();
    let (single, others) = numbers.split_at(SINGLE.min(numbers.len()));
    for part in single.chunks(1).chain(others.chunks(AT_ONCE)) {
        let mut batch = Batch::new();
        for number in part {
            batch.delete(&keyspaces[*number as usize % keyspaces.len()], key(*number));
        }
        patiently(|| store.write(&batch).wait())?;
    }
    if is_shared {
        std::fs::remove_file(&filler)?;
    }
    patiently(|| store.compact().wait())?;
    let began = Instant::now();
    let is_over = || {
        let stats = store.stats();
        let tables: usize =
            stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels).map(|level| level.tables).sum();
        tables == 0 && stats.value_files == 0 && stats.full.is_none()
    };
    while !is_over() {
        if began.elapsed() > PATIENCE {
            return Err(format!("not all space is back: {:?}", store.stats()).into());
        }
        sleep(Duration::from_millis(20));
    }
    for keyspace in &keyspaces {
        if keyspace.iter().next().wait().transpose()?.is_some() {
            return Err("a deleted key is there".into());
        }
    }
    drop(keyspaces);
    store.close().wait()?;
    Ok(keys as usize)
}
