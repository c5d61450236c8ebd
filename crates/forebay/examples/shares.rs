//! Three classes compete for a device with 100, 300 and 600 shares: the rate that each received in a second, and its due.
//!
//! Run with `cargo run --release -p forebay --example shares`; it writes 256 MiB into the current folder,
//! reads them at random for a second, and removes them again.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay::{Class, Config, Durability, Engine, File, Open, Result};

const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 256 * MIB;
const READ_BYTES: u64 = 32 << 10;
/// Reads of each class in flight together: more than the device needs, so that some reads always wait.
const READS: u64 = 64;
const SHARES: [u32; 3] = [100, 300, 600];

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn Error + Send + Sync>> {
    let engine = Engine::start(Config::new().arena_bytes_max(128 << 20))?;
    let file = engine.temp_file(".", Open::create()).await?;
    for at in (0..FILE_BYTES).step_by(MIB as usize) {
        file.write(at, vec![at as u8; MIB as usize]).await?;
    }
    file.sync(Durability::All).await?;

    // The first competition lets the scheduler find the number in flight that the device needs; only the
    // second that follows counts.
    let (counting, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let mut readers = Vec::new();
    for shares in SHARES {
        let class = engine.class(&shares.to_string(), shares)?;
        let received = Arc::new(AtomicU64::new(0));
        let mut reads = Vec::new();
        for number in 0..READS {
            let (file, counting, over) = (file.clone(), counting.clone(), over.clone());
            let seed = u64::from(shares) << 32 | number;
            reads.push(tokio::spawn(read_on(file, class, seed, received.clone(), counting, over)));
        }
        readers.push((shares, received, reads));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    counting.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let seconds = begun.elapsed().as_secs_f64();
    counting.store(false, Ordering::Relaxed);
    over.store(true, Ordering::Relaxed);

    let mut got = Vec::new();
    for (shares, received, reads) in readers {
        for read in reads {
            read.await??;
        }
        got.push((shares, received.load(Ordering::Relaxed)));
    }
    let (all, sum) = (got.iter().map(|(_, bytes)| bytes).sum::<u64>(), SHARES.iter().sum::<u32>());
    for (shares, bytes) in got {
        let (part, due) = (bytes as f64 / all as f64, f64::from(shares) / f64::from(sum));
        println!(
            "{shares:>4} shares: {:>7.0} MB/s, {:>4.1} % of all where {:>4.1} % are due ({:+.1} %)",
            bytes as f64 / seconds / 1e6,
            part * 100.0,
            due * 100.0,
            (part / due - 1.0) * 100.0
        );
    }
    for device in engine.stats().await?.devices {
        println!("the device {} is given {} KiB in flight", device.device, device.budget_bytes >> 10);
    }
    engine.close().await?;
    Ok(())
}

/// Reads at random places, one after the other, until the time has ended.
async fn read_on(
    file: File,
    class: Class,
    seed: u64,
    received: Arc<AtomicU64>,
    counting: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
) -> Result<()> {
    let mut random = seed;
    while !over.load(Ordering::Relaxed) {
        // Knuth's generator of 64 bits; its upper half is good enough for places.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (random >> 33) % (FILE_BYTES / READ_BYTES) * READ_BYTES;
        file.read(at..at + READ_BYTES).class(class).await?;
        if counting.load(Ordering::Relaxed) {
            received.fetch_add(READ_BYTES, Ordering::Relaxed);
        }
    }
    Ok(())
}
