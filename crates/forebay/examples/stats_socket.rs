//! An engine that can be inspected while it runs: two classes read concurrently, and a socket serves their statistics.
//!
//! ```text
//! cargo run --release -p forebay --example stats_socket -- 30
//! forebay top forebay-example.sock
//! ```
//! It runs for this many seconds (default 5), and makes and removes its own file in the current folder.

use std::time::{Duration, Instant};

use forebay::{Class, Config, Engine, File, Open, Result, shard};

const FILE_BYTES: u64 = 64 << 20;

/// Runs eight readers of that size, one request each, until the time has ended.
async fn readers(file: File, bytes: u64, until: Instant) -> Result<u64> {
    let mut tasks = Vec::new();
    for reader in 0..8u64 {
        let file = file.clone();
        tasks.push(shard::spawn(async move {
            let (mut at, mut reads) = (reader * 7919, 0);
            while Instant::now() < until {
                let start = at % (FILE_BYTES / bytes) * bytes;
                file.read(start..start + bytes).await?;
                at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1) >> 3;
                reads += 1;
            }
            Ok(reads)
        })?);
    }
    let mut reads = 0;
    for task in tasks {
        reads += task.await??;
    }
    Ok(reads)
}

fn main() -> Result<()> {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(5);
    let engine = Engine::start(Config::new().shards(1))?;
    let _serving = engine.serve_stats("forebay-example.sock")?;
    println!("for {seconds} s: forebay top forebay-example.sock");

    let path = "forebay-example-stats.tmp";
    let file = engine.open(path, Open::create()).wait()?;
    let block = engine.block_from(&vec![7; 1 << 20])?.freeze();
    for mib in 0..FILE_BYTES >> 20 {
        file.write(mib << 20, block.clone()).wait()?;
    }
    let until = Instant::now() + Duration::from_secs(seconds);
    let (lookups, scan) = (file.clone(), file.clone());
    let small = engine.spawn_on_shard(0, Class::DEFAULT, move || readers(lookups, 4096, until));
    let large = engine.spawn_on_shard(0, Class::BACKGROUND, move || readers(scan, 1 << 20, until));
    let (small, large) = (small.wait(), large.wait());
    engine.remove_file(path).wait()?;
    println!("{} lookups of 4 KiB, {} reads of 1 MiB", small??, large??);
    for file in engine.file_stats().wait()? {
        println!("{}: {} reads, {} bytes", file.path.display(), file.reads, file.read_bytes);
    }
    Ok(())
}
