//! What compression costs and saves: a load, gets of cached keys, gets of a store much larger than its cache, a scan and an
//! overwrite, with values that compress to about half and with random values. Times are processor time of the whole process.
//!
//! `compression DIR [RECORDS] [ROUNDS]` makes its stores below DIR, a new directory, and removes them. The compressions alternate;
//! figures are medians of the rounds.

use std::path::Path;
use std::time::Duration;

use forebay::{Config, Engine};
use forebay_kv::{Batch, Compression, Options, Store};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const VALUE_BYTES: usize = 200;
const GETS: u64 = 200_000;
/// Keys that fit into the cache.
const CACHED: u64 = 4_000;
const NAMES: [&str; 8] = [
    "load us/record",
    "cached get ns",
    "uncached get us",
    "scan us/record",
    "overwrite us/record",
    "file bytes/record",
    "written bytes/record",
    "wall us/uncached get",
];

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let dir = Path::new(arguments.first().ok_or("compression DIR [RECORDS] [ROUNDS]")?);
    let number = |at: usize, default| arguments.get(at).map_or(Ok(default), |text| text.parse::<u64>());
    let (records, rounds) = (number(1, 400_000)?, number(2, 3)?);
    std::fs::create_dir(dir)?;
    let engine = Engine::start(Config::new().shards(2))?;
    for is_random in [false, true] {
        println!(
            "\n{} values of {VALUE_BYTES} bytes, {records} records",
            ["half", "random"][usize::from(is_random)]
        );
        let mut all = vec![Vec::new(); compressions().len()];
        for _ in 0..rounds {
            for ((_, compression), figures) in compressions().into_iter().zip(&mut all) {
                figures.push(measure(&engine, &dir.join("store"), compression, records, is_random)?);
            }
        }
        print!("{:<24}", "");
        compressions().iter().for_each(|(name, _)| print!("{name:>12}"));
        println!();
        for (at, name) in NAMES.iter().enumerate() {
            print!("{name:<24}");
            for figures in &all {
                let mut column: Vec<f64> = figures.iter().map(|row| row[at]).collect();
                column.sort_by(f64::total_cmp);
                print!("{:>12.3}", column[column.len() / 2]);
            }
            println!();
        }
    }
    std::fs::remove_dir(dir)?;
    Ok(())
}

fn compressions() -> Vec<(&'static str, Compression)> {
    vec![
        ("none", Compression::None),
        ("lz4", Compression::Lz4),
        #[cfg(feature = "zstd")]
        ("zstd 1", Compression::Zstd(1)),
        #[cfg(feature = "zstd")]
        ("zstd 3", Compression::Zstd(3)),
    ]
}

fn mix(seed: u64) -> u64 {
    let mut word = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn key(record: u64) -> String {
    format!("user{record:08}")
}

/// Returns a value: a record in JSON with a token that does not compress, or random bytes.
fn value(record: u64, version: u64, is_random: bool) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(VALUE_BYTES + 60);
    let mut field = 0;
    if !is_random {
        let seed = mix(record ^ version << 40);
        let (id, score, active) = (seed % 100_000, (seed >> 20) % 1_000, seed.is_multiple_of(2));
        let text = format!(
            "{{\"id\":{record},\"name\":\"user {id:05}\",\"email\":\"u{id}@example.com\",\"active\":{active},\
             \"score\":{score},\"country\":\"DE\",\"language\":\"de\",\"token\":\""
        );
        bytes.extend_from_slice(text.as_bytes());
    }
    while bytes.len() < VALUE_BYTES {
        bytes.extend_from_slice(&mix(record ^ version << 40 ^ field << 52).to_le_bytes());
        field += 1;
    }
    bytes.truncate(VALUE_BYTES);
    bytes
}

/// Returns the processor time of the process so far.
fn processor() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn measure(
    engine: &Engine,
    dir: &Path,
    compression: Compression,
    records: u64,
    is_random: bool,
) -> Outcome<[f64; 8]> {
    let options = Options::new().memory_bytes_max(24 << 20).compression(compression);
    let store = Store::open(engine, dir, options).wait()?;
    let keys = store.default_keyspace();
    let mut figures = [0.0; 8];
    let per = |begun: Duration, count: u64| (processor() - begun).as_secs_f64() * 1e6 / count as f64;

    let mut values: Vec<Vec<u8>> = Vec::new();
    let begun = processor();
    for chunk in 0..records.div_ceil(4096) {
        let range = chunk * 4096..records.min((chunk + 1) * 4096);
        values.extend(range.map(|record| value(record, 0, is_random)));
        values.clear();
    }
    let made = processor() - begun;
    let begun = processor() + made;
    let mut loader = keys.loader();
    for record in 0..records {
        loader.add(key(record), value(record, 0, is_random)).wait()?;
    }
    loader.finish().wait()?;
    figures[0] = per(begun, records);
    let levels = store.stats().keyspaces.remove(0).levels;
    figures[5] = levels.iter().map(|level| level.bytes).sum::<u64>() as f64 / records as f64;

    let get = |record: u64| -> Outcome<()> {
        let found = keys.get(&key(record)).wait()?.ok_or("a record is missing")?;
        if found.len() == VALUE_BYTES { Ok(()) } else { Err("a wrong value".into()) }
    };
    for record in (0..CACHED).chain(0..CACHED) {
        get(record)?;
    }
    let begun = processor();
    for number in 0..GETS {
        get(mix(number) % CACHED)?;
    }
    figures[1] = per(begun, GETS) * 1e3;

    for number in 0..20_000 {
        get(mix(number) % records)?;
    }
    let (begun, wall) = (processor(), std::time::Instant::now());
    for number in 0..GETS / 4 {
        get(mix(number ^ 1 << 50) % records)?;
    }
    figures[2] = per(begun, GETS / 4);
    figures[7] = wall.elapsed().as_secs_f64() * 1e6 / (GETS / 4) as f64;

    let begun = processor();
    let count = engine.block_on(async {
        let (mut range, mut count) = (keys.iter(), 0);
        while let Some(entry) = range.next().await {
            entry?;
            count += 1;
        }
        Ok::<u64, forebay_kv::Error>(count)
    })??;
    figures[3] = per(begun, count);

    let (begun, before) = (processor(), written(&store));
    for number in 0..records / 2 / 64 {
        let mut batch = Batch::new();
        for at in 0..64 {
            let record = mix(number * 64 + at) % records;
            batch.put(&keys, key(record), value(record, 1, is_random));
        }
        store.write(&batch).wait()?;
    }
    store.flush().wait()?;
    store.settle().wait()?;
    figures[4] = per(begun, records / 2);
    figures[6] = (written(&store) - before) as f64 / (records / 2) as f64;
    store.close().wait()?;
    std::fs::remove_dir_all(dir)?;
    Ok(figures)
}

/// Returns the bytes of tables written so far.
fn written(store: &Store) -> u64 {
    let stats = store.stats();
    stats.flushed_bytes + stats.compaction_written_bytes
}
