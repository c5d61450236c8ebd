//! Tokio tasks read one file: range by range from several tasks, and thousands of ranges as one request.
//!
//! Run with `cargo run --release -p forebay --example tokio_read`; it writes 32 MiB into the current folder and removes
//! them again.

use std::error::Error;
use std::time::Instant;

use forebay::{Config, Durability, Engine, File, Open, Result};

const PAGE: u64 = 4096;
const PAGES: u64 = 8192;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let engine = Engine::start(Config::new())?;
    let file = engine.temp_file(".", Open::create()).await?;
    write_numbered_pages(&engine, &file).await?;

    // Eight tasks, each with its own handle, request one small range after the other.
    let begun = Instant::now();
    let mut tasks = Vec::new();
    for worker in 0..8 {
        let file = file.clone();
        tasks.push(tokio::spawn(async move {
            for turn in 0..256 {
                let page = (worker * 256 + turn) * 2_654_435_761 % PAGES;
                let number = file.read(page * PAGE..page * PAGE + 8).await?;
                assert_eq!(number_of(&number), page);
            }
            Result::<()>::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    report("8 tasks, one read at a time each", 2048, begun);

    // As many ranges in one request: one message to the storage thread, one wake-up of this task.
    let pages: Vec<u64> = (0..2048).map(|turn| turn * 2_654_435_761 % PAGES).collect();
    let begun = Instant::now();
    let blocks = file.read_many(pages.iter().map(|page| page * PAGE..page * PAGE + 8)).await?;
    for (page, block) in pages.iter().zip(blocks) {
        assert_eq!(number_of(&block?), *page); // each range has its own result, in request order
    }
    report("1 task, all ranges in one read_many", 2048, begun);

    // The same as a stream: in order of arrival, with bounded memory.
    let begun = Instant::now();
    let mut arrived = 0;
    let mut stream = file.read_many(pages.iter().map(|page| page * PAGE..(page + 1) * PAGE)).stream();
    while let Some((index, block)) = stream.next().await {
        assert_eq!(number_of(&block?[..8]), pages[index]);
        arrived += 1;
    }
    report("1 task, whole pages as a stream", arrived, begun);

    let report = engine.close().await?;
    println!("closed; {} operations leaked", report.leaked_operations);
    Ok(())
}

/// Each page starts with its number.
async fn write_numbered_pages(engine: &Engine, file: &File) -> Result<()> {
    const PAGES_A_WRITE: u64 = 256;
    for first in (0..PAGES).step_by(PAGES_A_WRITE as usize) {
        let mut pages = engine.block((PAGES_A_WRITE * PAGE) as usize)?;
        for (number, page) in (first..).zip(pages.chunks_exact_mut(PAGE as usize)) {
            page[..8].copy_from_slice(&number.to_le_bytes());
        }
        file.write(first * PAGE, pages).await?;
    }
    file.sync(Durability::Data).await
}

fn number_of(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(u64::MAX, u64::from_le_bytes)
}

fn report(what: &str, reads: u64, begun: Instant) {
    let seconds = begun.elapsed().as_secs_f64();
    println!("{what}: {reads} reads in {:.1} ms, {:.0} a second", seconds * 1e3, reads as f64 / seconds);
}
