//! `tokio::fs`: one range after the other, and one task a range.

use std::io::SeekFrom;
use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use forebay_measure::experiment::Outcome;
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio::sync::Semaphore;

use super::{Batch, Work, check};

/// Measures one task with one file: seek, read, next.
pub(crate) fn sequential(work: &Work, ranges: Vec<Range<u64>>) -> Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    runtime.block_on(async {
        let batch = Batch::begin();
        let mut file = File::open(&work.path).await?;
        for range in &ranges {
            check(range, &read(&mut file, range).await?)?;
        }
        Ok(batch.finish(ranges.len()))
    })
}

/// Measures one task a range. The cursor belongs to the file, so each task opens the file for itself. A
/// semaphore bounds how many are at work, or 20,000 open files would meet the limit on descriptors.
pub(crate) fn tasks(work: &Work, ranges: Vec<Range<u64>>) -> Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    runtime.block_on(async {
        let batch = Batch::begin();
        let permits = Arc::new(Semaphore::new(work.tasks_max));
        let count = ranges.len();
        let mut tasks = tokio::task::JoinSet::new();
        for range in ranges {
            let (permits, path) = (Arc::clone(&permits), work.path.clone());
            tasks.spawn(async move {
                let _permit = permits.acquire().await?;
                let mut file = File::open(path).await?;
                check(&range, &read(&mut file, &range).await?)
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(batch.finish(count))
    })
}

async fn read(file: &mut File, range: &Range<u64>) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.seek(SeekFrom::Start(range.start)).await?;
    file.read_exact(&mut bytes).await?;
    Ok(bytes)
}
