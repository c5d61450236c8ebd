//! The rows with Forebay, called from one thread for each participant.

use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay::{Collective, Config, Durability, Engine, Open, WriteCombiner};

use super::blocking;
use super::job::{PatternRow, PatternsWork};

/// I/O memory beside the memory for gathering.
const SPARE_BYTES: u64 = 16 << 20;

/// Runs one thread for each participant. Returns the time taken, and how many pieces of each
/// participant are written.
///
/// # Errors
/// Fails with the errors of the engine.
pub(super) fn write(
    path: &Path,
    work: &PatternsWork,
    data: &Bytes,
) -> anyhow::Result<(Duration, Vec<usize>)> {
    let bytes = (work.memory + SPARE_BYTES) as usize;
    let engine = Engine::start(Config::default().shards(1).arena_bytes(bytes).arena_bytes_max(bytes))?;
    let file = engine.open(path, Open::write()).wait()?;
    let line = Barrier::new(work.participants + 1);
    let memory = work.memory as usize;
    let outcome = match work.row {
        PatternRow::Collective => {
            let handles = file.collective(work.participants).memory(memory.min(16 << 20)).start();
            on_threads(handles, &line, |handle| strided(handle, work, data), || Ok(()))
        }
        _ => {
            let combine = file.write_combiner().memory(memory).start();
            let clones = (0..work.participants).map(|number| (number, combine.clone())).collect();
            let flush = || Ok(combine.flush(Durability::Data).wait()?);
            on_threads(clones, &line, |clone| small(clone, work, data), flush)
        }
    }?;
    file.close().wait()?;
    let report = engine.close().wait()?;
    anyhow::ensure!(
        report.leaked_operations == 0 && report.lost_shards == 0,
        "the engine lost {} shards and {} operations as it was closed",
        report.lost_shards,
        report.leaked_operations
    );
    Ok(outcome)
}

/// The work of a thread after all threads have reached the start.
type Begin<'w> = Box<dyn FnOnce() -> anyhow::Result<usize> + 'w>;

fn on_threads<'w, H: Send>(
    handles: Vec<H>,
    line: &Barrier,
    prepare: impl Fn(H) -> Begin<'w> + Sync,
    finish: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<(Duration, Vec<usize>)> {
    let (begun, done) = std::thread::scope(|scope| {
        let threads: Vec<_> = handles
            .into_iter()
            .map(|handle| {
                let prepare = &prepare;
                scope.spawn(move || {
                    let begin = prepare(handle);
                    line.wait();
                    begin()
                })
            })
            .collect();
        line.wait();
        let begun = Instant::now();
        let outcomes: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        let done = outcomes
            .into_iter()
            .map(|outcome| outcome.map_err(|_| anyhow::anyhow!("a writing thread panicked"))?)
            .collect::<anyhow::Result<Vec<usize>>>();
        (begun, done)
    });
    let done = done?;
    finish()?;
    Ok((begun.elapsed(), done))
}

fn small<'w>(
    (number, combine): (usize, WriteCombiner),
    work: &'w PatternsWork,
    data: &'w Bytes,
) -> Begin<'w> {
    let pieces = work.pieces(number);
    Box::new(move || {
        for piece in &pieces {
            combine.write(piece.start, blocking::bytes(piece, data)).wait()?;
        }
        Ok(pieces.len())
    })
}

fn strided<'w>(mut handle: Collective, work: &'w PatternsWork, data: &'w Bytes) -> Begin<'w> {
    let pieces = work.pieces(handle.rank());
    let count = pieces.len();
    let pieces: Vec<(u64, Bytes)> = pieces
        .into_iter()
        .map(|piece| (piece.start, data.slice(piece.start as usize..piece.end as usize)))
        .collect();
    Box::new(move || {
        handle.write(pieces, Durability::Data).wait()?;
        Ok(count)
    })
}
