//! Forebay's `read_many`, called from Tokio.

use std::ops::Range;

use anyhow::{Result, ensure};
use forebay::{Config, Engine, File};

use super::{Batch, RangesJob, check};
use crate::allocations;
use crate::sample::Sample;

/// The mode that the file is opened in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Open {
    /// Past the page cache.
    Direct,
    /// Through the page cache.
    Buffered,
    /// Cached bytes from the page cache, the others past it.
    Adaptive,
}

/// Measures the batch as a stream: each range is checked when it arrives, in any order, and its memory is
/// released.
pub(crate) fn stream(job: &RangesJob, ranges: Vec<Range<u64>>, mode: Open) -> Result<Sample> {
    let engine = Engine::start(Config::default())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    runtime.block_on(async {
        allocations::start_counting();
        let asked = ranges.clone();
        let batch = Batch::begin();
        let file = open(&engine, job, mode).await?;
        let mut stream = file.read_many(ranges).stream();
        let mut seen = 0;
        while let Some((index, block)) = stream.next().await {
            check(&asked[index], &block?)?;
            seen += 1;
        }
        ensure!(seen == asked.len(), "{seen} of {} ranges came back", asked.len());
        finish(&engine, batch, seen).await
    })
}

/// Measures the batch as a whole: all ranges are held together, in the order of the request.
pub(crate) fn collect(job: &RangesJob, ranges: Vec<Range<u64>>, mode: Open) -> Result<Sample> {
    let engine = Engine::start(Config::default())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    runtime.block_on(async {
        allocations::start_counting();
        let asked = ranges.clone();
        let batch = Batch::begin();
        let file = open(&engine, job, mode).await?;
        let blocks = file.read_many(ranges).await?;
        ensure!(blocks.len() == asked.len(), "{} of {} ranges came back", blocks.len(), asked.len());
        for (range, block) in asked.iter().zip(blocks) {
            check(range, &block?)?;
        }
        finish(&engine, batch, asked.len()).await
    })
}

/// Ends the batch, and adds the share of the ranges that the page cache served on the caller's thread.
async fn finish(engine: &Engine, batch: Batch, ranges: usize) -> Result<Sample> {
    let mut sample = batch.finish(ranges);
    sample.set("page_cache_share", engine.stats().await?.page_cache_reads as f64 / ranges as f64);
    Ok(sample)
}

async fn open(engine: &Engine, job: &RangesJob, mode: Open) -> Result<File> {
    let options = match mode {
        Open::Direct => forebay::Open::read(),
        Open::Buffered => forebay::Open::read().buffered(),
        Open::Adaptive => forebay::Open::read().adaptive(),
    };
    Ok(engine.open(&job.path, options).await?)
}
