//! Cancellation is safe at any moment: dropped futures, timeouts, an engine closed with reads in flight. An
//! operation keeps its memory and its file until the kernel has completed it, whether or not a caller still
//! waits.
//!
//! Run with `cargo run --release -p forebay --example cancel`; it writes 64 MiB into the current folder and
//! removes them again.

use std::error::Error;
use std::time::Duration;

use forebay::{Class, Config, Durability, Engine, ErrorKind, File, Open, Result, shard};
use futures::FutureExt;

const MIB: u64 = 1 << 20;
const BYTES: u64 = 64 * MIB;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::start(Config::new())?;
    let file = engine.temp_file(".", Open::create()).await?;
    for offset in (0..BYTES).step_by(MIB as usize) {
        let mut block = engine.block(MIB as usize)?;
        block.fill((offset / MIB) as u8);
        file.write(offset, block).await?;
    }
    file.sync(Durability::Data).await?;

    // The first of many wins; the others are dropped with their reads in flight at the device.
    let (handle, counts) = (file.clone(), engine.clone());
    let race = engine.spawn_on_shard(file.home_shard(), Class::DEFAULT, move || async move {
        let reads = (0..BYTES / MIB).map(|number| handle.read(number * MIB..(number + 1) * MIB));
        let (first, number, others) = futures::future::select_all(reads).await;
        println!("read {number} of 64 came first with {} bytes, {} are dropped", first?.len(), others.len());
        drop(others);
        println!(
            "  the engine holds {} KiB until the kernel is done with them",
            counts.memory().held_bytes >> 10
        );
        Result::<()>::Ok(())
    });
    race.await??;
    // A read into memory of our own, polled once and dropped: that memory, too, stays with the engine.
    let block = engine.block(MIB as usize)?;
    let _ = file.read_into(0, block).now_or_never();

    // A time limit drops the future, too; the next read of the same bytes is not disturbed. (Tokio's clock
    // ticks in milliseconds.)
    let limit = Duration::from_micros(10);
    let batch = file.read_many((0..BYTES / MIB).map(|number| number * MIB..(number + 1) * MIB));
    match tokio::time::timeout(limit, batch).await {
        Ok(blocks) => println!("tokio's timeout: the batch of {} reads was faster", blocks?.len()),
        Err(_) => println!("tokio's timeout: elapsed, the batch of 64 reads is dropped"),
    }
    check(&file, 5).await?;

    // On a shard the limit is part of the ring's wait, no other thread is involved.
    let handle = file.clone();
    let outcome = engine.spawn_on_shard(file.home_shard(), Class::DEFAULT, move || async move {
        let outcome = shard::timeout(limit, handle.read(9 * MIB..10 * MIB)).await;
        check(&handle, 9).await?;
        outcome.map(drop)
    });
    match outcome.await? {
        Ok(()) => println!("shard::timeout of 10 us: the read was faster"),
        Err(error) if error.kind() == ErrorKind::Elapsed => println!("shard::timeout of 10 us: elapsed"),
        Err(error) => return Err(error.into()),
    }

    // Closing a file completes when its last operation has ended, dropped ones included: after it the engine
    // holds no memory.
    let handle = file.clone();
    file.close().await?;
    println!("file closed: the engine holds {} bytes", engine.memory().held_bytes);
    assert_eq!(engine.memory().held_bytes, 0);
    assert_eq!(handle.read(0..1).await.map_err(|error| error.kind()).err(), Some(ErrorKind::FileClosed));

    // An engine that is closed with reads in flight waits for them, up to Config::shutdown_deadline.
    let file = engine.temp_file(".", Open::create()).await?;
    file.write(0, vec![7; MIB as usize]).await?;
    let reads: Vec<_> = (0..64)
        .map(|_| {
            let file = file.clone();
            tokio::spawn(async move { file.read(0..MIB).await.map(drop) })
        })
        .collect();
    let report = engine.close().await?;
    println!("engine closed: {} operations leaked", report.leaked_operations);
    let mut refused = 0;
    for read in reads {
        match read.await? {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::EngineClosed | ErrorKind::Cancelled) => {
                refused += 1
            }
            Err(error) => return Err(error.into()),
        }
    }
    println!("  of 64 reads {} had their bytes by then, {refused} heard that it is closed", 64 - refused);
    Ok(())
}

/// Checks that one whole MiB has the bytes of that write.
async fn check(file: &File, number: u64) -> Result<()> {
    let block = file.read(number * MIB..(number + 1) * MIB).await?;
    assert!(block.iter().all(|&byte| byte == number as u8));
    Ok(())
}
