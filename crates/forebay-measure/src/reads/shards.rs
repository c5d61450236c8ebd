//! The row with Forebay's own tasks, and the code common to both rows of Forebay.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use forebay::{Class, Config, Engine, File, Open, Polling};

use super::super::commands;
use super::super::job::Job;
use super::job::{ReadWork, Way};
use super::lane::{Lane, Tally};
use super::pacer::Pacer;
use super::threads::NO_POLLING;

/// Opens an engine of one shard, and the file.
///
/// # Errors
/// Fails with the errors of the engine, or when polling was requested and is not available.
pub(super) fn open(path: &Path, way: Way) -> anyhow::Result<(Engine, File)> {
    let (engine, file) = match way {
        Way::ForebayCommands => commands::open(path)?,
        _ => {
            let polling = if way == Way::ForebayPolled { Polling::On } else { Polling::Off };
            let engine = Engine::start(Config::default().shards(1).polling(polling))?;
            let file = engine.open(path, Open::read()).wait()?;
            // The first read sets up the ring, and shows whether the file system accepts polled reads.
            file.read_up_to(0..1).wait()?;
            (engine, file)
        }
    };
    match why_not_polled(&engine) {
        Some(why) => Err(anyhow::anyhow!(why).context(NO_POLLING)),
        None => Ok((engine, file)),
    }
}

/// Returns why an engine that was to poll does not, if so.
pub(crate) fn why_not_polled(engine: &Engine) -> Option<String> {
    let degraded = engine.health().degraded.into_iter().find(|degraded| degraded.what == "polled I/O");
    degraded.map(|degraded| degraded.why)
}

/// Closes the engine after the figures were taken. An engine that does not end well cannot be trusted.
///
/// # Errors
/// Fails when the engine lost something.
pub(super) fn close(engine: Engine, file: File) -> anyhow::Result<()> {
    drop(file);
    let report = engine.close().wait()?;
    anyhow::ensure!(
        report.leaked_operations == 0 && report.lost_shards == 0,
        "the engine lost {} shards and {} operations as it was closed",
        report.lost_shards,
        report.leaked_operations
    );
    Ok(())
}

/// Runs one reader of a closed loop, in any task.
///
/// # Errors
/// Fails when a read failed, or returned data other than those written.
pub(super) async fn read(
    shared: Arc<(Job, ReadWork)>,
    file: File,
    lane: usize,
    pacer: Arc<Pacer>,
) -> anyhow::Result<Tally> {
    let (job, work) = &*shared;
    let mut lane = Lane::new(job, work, lane, &pacer)?;
    while let Some(scheduled) = pacer.next_read() {
        let (offset, begun) = (lane.offset(), Instant::now());
        let block = file.read(offset..offset + work.block_bytes).await?;
        lane.ended(scheduled, begun, offset, &block)?;
    }
    Ok(lane.end())
}

/// Runs `forebay-shard`: waits for all readers, which are tasks of the shard.
///
/// # Errors
/// Fails with the errors of the readers, and of a shard that has ended.
pub(super) fn read_on_shard(
    engine: &Engine,
    file: &File,
    shared: &Arc<(Job, ReadWork)>,
    pacer: &Arc<Pacer>,
) -> anyhow::Result<Tally> {
    let (file, shared, pacer) = (file.clone(), Arc::clone(shared), Arc::clone(pacer));
    let all = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let tasks = (0..shared.1.readers)
            .map(|lane| {
                let reading = read(Arc::clone(&shared), file.clone(), lane, Arc::clone(&pacer));
                Ok(forebay::shard::spawn(reading)?)
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut tally = Tally::new()?;
        for task in tasks {
            tally.add(&task.await??)?;
        }
        anyhow::Ok(tally)
    });
    all.wait()?
}
