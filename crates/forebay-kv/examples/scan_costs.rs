//! Prints what ranges cost: scans of 100 entries at random places, and one of all, of a store whose data fit into its memory.
//!
//! `cargo run --release -p forebay-kv --example scan_costs [DIR] [KEYS] [ROUNDS]`

use std::time::{Duration, Instant};

use forebay::{Config, Engine};
use forebay_kv::{Options, Store};

fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let parent = arguments.next().unwrap_or_else(|| ".".to_string());
    let keys: u64 = arguments.next().map_or(Ok(1_500_000), |count| count.parse())?;
    let rounds: u64 = arguments.next().map_or(Ok(10), |count| count.parse())?;
    let dir = tempfile::tempdir_in(parent)?;
    let memory = 1 << 30;
    let engine = Engine::start(Config::new().shards(2).arena_bytes_max(memory))?;
    let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(memory as u64)).wait()?;
    let keyspace = store.default_keyspace();
    keyspace.bulk_load((0..keys).map(|number| (key(number), [number as u8; 200]))).wait()?;
    let mut seed = 1_u64;
    for round in 0..rounds {
        let (begun, mut scans, mut found) = (Instant::now(), 0_u64, 0_u64);
        let before = store.stats();
        while begun.elapsed() < Duration::from_secs(2) {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let from = (seed >> 20) % (keys - 100);
            let mut range = keyspace.range(&key(from)[..]..);
            for _ in 0..100 {
                let Some(entry) = range.next().wait() else { break };
                found += u64::from(entry?.1.len() == 200);
            }
            scans += 1;
        }
        let per_s = scans as f64 / begun.elapsed().as_secs_f64();
        let after = store.stats();
        println!(
            "round {round}: {per_s:.0} scans of 100 a second; {found} entries; cache: {} hits, {} misses, {} MiB",
            after.cache_hits - before.cache_hits,
            after.cache_misses - before.cache_misses,
            after.memory.blocks >> 20
        );
    }
    for _ in 0..3 {
        let (begun, mut range, mut found) = (Instant::now(), keyspace.iter(), 0_u64);
        while let Some(entry) = range.next().wait() {
            found += u64::from(entry?.1.len() == 200);
        }
        println!("all: {:.0} keys a second", found as f64 / begun.elapsed().as_secs_f64());
    }
    store.close().wait()?;
    Ok(())
}
