//! The rows with Forebay, from tasks of a Tokio runtime.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use forebay::{Config, Engine, File, Open};

use super::super::file_set::FileSet;
use super::super::gauge::Gauge;
use super::job::{AmplificationResult, AmplificationWork, ContentChecker, Piece, Pieces};
use super::run::{Tally, deadline, result, share};

/// Pieces that a program of the row `read-many` can request at once.
const BATCH: usize = 256;

/// Runs `direct`.
///
/// # Errors
/// Fails when a read failed, or returned data other than those written.
pub(super) fn direct(
    directory: &Path,
    device_stat: Option<&Path>,
    work: &AmplificationWork,
) -> anyhow::Result<AmplificationResult> {
    with_files(directory, work, |files| async move {
        let gauge = Gauge::start(device_stat)?;
        let deadline = deadline(&gauge, work);
        let lanes: Vec<_> = (0..work.in_flight)
            .map(|lane| tokio::spawn(one_by_one(Arc::clone(&files), work.clone(), lane, deadline)))
            .collect();
        let mut tally = Tally::new()?;
        for lane in lanes {
            tally.add(&lane.await.context("a reading task panicked")??)?;
        }
        result(gauge, tally)
    })
}

async fn one_by_one(
    files: Arc<Vec<File>>,
    work: AmplificationWork,
    lane: usize,
    deadline: Instant,
) -> anyhow::Result<Tally> {
    let (mut pieces, mut checker) = (Pieces::new(&work, lane), ContentChecker::new(work.file_set));
    let mut tally = Tally::new()?;
    for _ in 0..share(&work, lane) {
        let piece = pieces.next_piece();
        let begun = Instant::now();
        if begun >= deadline {
            break;
        }
        let file = &files[piece.file as usize];
        let block = file.read(piece.offset..piece.offset + piece.bytes).await?;
        tally.latency.record(begun.elapsed());
        tally.bytes += piece.bytes;
        checker.check(piece, &block)?;
    }
    Ok(tally)
}

/// Runs `read-many`: batches of the pieces that the lanes of the other rows read, in turn.
///
/// # Errors
/// As [`direct`].
pub(super) fn read_many(
    directory: &Path,
    device_stat: Option<&Path>,
    work: &AmplificationWork,
) -> anyhow::Result<AmplificationResult> {
    let mut lanes: Vec<(Pieces, u64)> =
        (0..work.in_flight).map(|lane| (Pieces::new(work, lane), share(work, lane))).collect();
    let mut wanted = Vec::with_capacity(work.reads as usize);
    while lanes.iter().any(|(_, left)| *left > 0) {
        for (pieces, left) in lanes.iter_mut().filter(|(_, left)| *left > 0) {
            *left -= 1;
            wanted.push(pieces.next_piece());
        }
    }
    with_files(directory, work, |files| async move {
        let gauge = Gauge::start(device_stat)?;
        let deadline = deadline(&gauge, work);
        let mut tally = Tally::new()?;
        for batch in wanted.chunks(BATCH) {
            if Instant::now() >= deadline {
                break;
            }
            let mut of_file: BTreeMap<u32, Vec<Piece>> = BTreeMap::new();
            for piece in batch {
                of_file.entry(piece.file).or_default().push(*piece);
            }
            let calls: Vec<Vec<Piece>> = of_file.into_values().collect();
            let tasks: Vec<_> = (0..work.in_flight.min(calls.len()))
                .map(|lane| {
                    let mine = calls.iter().skip(lane).step_by(work.in_flight).cloned().collect();
                    tokio::spawn(together(Arc::clone(&files), work.clone(), mine))
                })
                .collect();
            for task in tasks {
                tally.add(&task.await.context("a reading task panicked")??)?;
            }
        }
        result(gauge, tally)
    })
}

/// Makes one call for each group of pieces; the pieces of a group belong to one file.
async fn together(
    files: Arc<Vec<File>>,
    work: AmplificationWork,
    groups: Vec<Vec<Piece>>,
) -> anyhow::Result<Tally> {
    let mut checker = ContentChecker::new(work.file_set);
    let mut tally = Tally::new()?;
    for group in groups {
        let Some(first) = group.first() else { continue };
        let ranges: Vec<_> = group.iter().map(|piece| piece.offset..piece.offset + piece.bytes).collect();
        let begun = Instant::now();
        let depth = work.in_flight as u32;
        let blocks = files[first.file as usize].read_many(ranges).depth(depth).await?;
        let waited = begun.elapsed();
        for (piece, block) in group.into_iter().zip(blocks) {
            tally.latency.record(waited);
            tally.bytes += piece.bytes;
            checker.check(piece, &block?)?;
        }
    }
    Ok(tally)
}

/// Opens all files before the sample, and closes the engine after it. A sample whose engine does not end
/// well cannot be trusted.
fn with_files<Reading>(
    directory: &Path,
    work: &AmplificationWork,
    read: impl FnOnce(Arc<Vec<File>>) -> Reading,
) -> anyhow::Result<AmplificationResult>
where
    Reading: Future<Output = anyhow::Result<AmplificationResult>>,
{
    let engine = Engine::start(Config::default().shards(1))?;
    let files = (0..work.file_set.files)
        .map(|file| Ok(engine.open(FileSet::path(directory, file), Open::read()).wait()?))
        .collect::<anyhow::Result<Vec<File>>>()?;
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(work.in_flight);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).build()?;
    let result = runtime.block_on(read(Arc::new(files)))?;
    drop(runtime);
    let report = engine.close().wait()?;
    anyhow::ensure!(
        report.leaked_operations == 0 && report.lost_shards == 0,
        "the engine lost {} shards and {} operations as it was closed",
        report.lost_shards,
        report.leaked_operations
    );
    Ok(result)
}
