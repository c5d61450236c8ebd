//! Forebay's `read_many`, called from Tokio.

use std::ops::Range;

use forebay::{Config, Engine, Open};

use super::{Batch, Work, check};
use crate::prelude::*;

/// Measures the batch as a stream: each range is checked when it arrives, in any order, and its memory is
/// released.
pub(crate) fn stream(work: &Work, ranges: Vec<Range<u64>>, open: Open) -> Result<Outcome> {
    let engine = Engine::start(Config::default())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    runtime.block_on(async {
        allocations::start_counting();
        let asked = ranges.clone();
        let batch = Batch::begin();
        let file = engine.open(&work.path, open).await?;
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
pub(crate) fn collect(work: &Work, ranges: Vec<Range<u64>>, open: Open) -> Result<Outcome> {
    let engine = Engine::start(Config::default())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    runtime.block_on(async {
        allocations::start_counting();
        let asked = ranges.clone();
        let batch = Batch::begin();
        let file = engine.open(&work.path, open).await?;
        let blocks = file.read_many(ranges).await?;
        ensure!(blocks.len() == asked.len(), "{} of {} ranges came back", blocks.len(), asked.len());
        for (range, block) in asked.iter().zip(blocks) {
            check(range, &block?)?;
        }
        finish(&engine, batch, asked.len()).await
    })
}

/// Ends the batch, and adds the share of the ranges that the page cache served on the caller's thread.
async fn finish(engine: &Engine, batch: Batch, ranges: usize) -> Result<Outcome> {
    let mut outcome = batch.finish(ranges);
    let served = engine.stats().await?.page_cache_reads as f64;
    outcome.figures.set("page_cache_share", served / ranges as f64);
    Ok(outcome)
}
