//! A compaction: reads its tables in order, writes the newest entry of each key to new tables, and
//! exchanges the tables in one step.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::output::Output;
use super::pick::{Job, Progress};
use crate::engine::flush;
use crate::engine::shared::StoreCore;
use crate::engine::space::Work;
use crate::error::{Error, Result};
use crate::is_broken;
use crate::manifest::Edit;
use crate::manifest::version::pins_filter;
use crate::merge::{Bounds, Merge, Run, Source};
use crate::node::codec::Codec;
use crate::table::{CursorHow, Direction, Entry, TableMeta};
use crate::value::HeldShare;

/// Limits in entries and bytes after which other tasks of the shard get their turn: about 100 us of work
/// (32 KiB were 200).
const SLICE_ENTRIES: usize = 32;
const SLICE_BYTES: usize = 16 << 10;

/// The pieces of a long job of several runs: it needs space for about `1/PIECES` of the level that it rewrites.
const PIECES: u64 = 8;

/// Runs a job. Returns whether it was done. A store that closes ends the job.
///
/// A long job is run piece by piece: the tables that a piece has rewritten are removed before the next piece starts. On a full disk
/// each piece rewrites one table, so that the job needs space for one table; so it does after a job that found no space, until a
/// job of several runs has rewritten tables or no job is left, except with tables of level 0: they stay until the last piece, and the output of
/// finished pieces is duplicated. A partly finished job continues after its last piece if no other job has run since.
///
/// # Errors
/// After `NoSpace` only the finished pieces have changed anything. Errors of the manifest make the
/// store read-only.
pub(super) async fn run(shared: &Arc<StoreCore>, mut job: Job) -> Result<bool> {
    let (compaction, is_full) = (&shared.compaction, shared.full.is_full());
    let _use = shared.full.begin(Work::Compaction);
    shared.manifest.check_room()?;
    let begun = compaction.progress().take();
    // A full disk has space for a move, but not for a copy.
    if job.is_move() && (is_full || !changes_codec(shared, &job)) {
        let mut added = Vec::new();
        for table in job.uppers() {
            let has_same_parts = pins_filter(job.target, &shared.options);
            // What of a table is in memory depends on its level.
            let table = if has_same_parts {
                table.clone()
            } else {
                flush::open(shared, table.meta(), [table], job.target).await?
            };
            added.push((job.target as u8, table));
        }
        let edit = Edit {
            removed: job.uppers().map(|table| table.id()).collect(),
            added: added.iter().map(|(level, table)| (*level, table.meta().clone())).collect(),
            ..Edit::default()
        };
        shared.manifest.check_room_for(&edit).await?;
        shared.edit(&edit, &added, |_| ()).await?;
        shared.counters.moved.fetch_add(added.len() as u64, Ordering::Relaxed);
        return Ok(true);
    }
    let done = begun.as_ref().and_then(|begun| job.skip_done(begun));
    let begun = begun.filter(|_| done.is_some());
    let low = done.map_or(Bound::Unbounded, Bound::Excluded);
    let bytes: u64 = job.lower.iter().map(|table| table.meta().bytes).sum();
    // At least two tables for each participating shard.
    let table_bytes = shared.budget.table_bytes_max() * 2 * shared.compaction_shards().count() as u64;
    let runs = job.upper.len();
    let piece_bytes = match runs {
        _ if is_full || (compaction.is_tight() && job.level > 0) => 0,
        0 | 1 => bytes,
        _ => (bytes / PIECES).max(table_bytes),
    };
    let ran = pieces(shared, job, low, piece_bytes).await;
    match &ran {
        Err(error) if error.is_shortage() => {
            compaction.is_tight.store(true, Ordering::Relaxed);
            let mut left = compaction.progress();
            *left = left.take().or(begun.map(Progress::stuck));
        }
        Ok(true) if runs > 1 && bytes > 0 && !is_full => compaction.is_tight.store(false, Ordering::Relaxed),
        _ => {}
    }
    ran
}

/// Runs a job, of which keys up to `low` are done, in pieces that need space for this many bytes of the target.
async fn pieces(shared: &Arc<StoreCore>, job: Job, low: Bound<Vec<u8>>, piece_bytes: u64) -> Result<bool> {
    let is_full = shared.full.is_full();
    if job.lower.len() < 2 || job.lower.iter().map(|table| table.meta().bytes).sum::<u64>() <= piece_bytes {
        let passed = job.uppers().map(|table| table.id()).collect();
        return part(shared, &job, Bounds { low, high: Bound::Unbounded }, passed, true).await;
    }
    for piece in job.into_pieces(low, piece_bytes) {
        let Some(levels) = shared.with_view(|view| view.version.keyspace(piece.keyspace).cloned()) else {
            return Ok(true);
        };
        shared.manifest.check_room()?;
        let begun = piece.progress();
        let (bounds, passed, is_last) = (piece.bounds.clone(), piece.passed.clone(), piece.is_last);
        if !part(shared, &piece.into_job(levels), bounds, passed, is_last).await? {
            return Ok(false);
        }
        *shared.compaction.progress() = begun;
        // On a disk that has become full the rest may not fit: a smaller job runs first.
        if !is_full {
            shared.full.check_growth()?;
        }
    }
    Ok(true)
}

/// Returns whether a job moves tables to a level with another codec than the levels above it.
fn changes_codec(shared: &StoreCore, job: &Job) -> bool {
    let codec = |level| Codec::of(shared.compression(level));
    let target = codec(job.target);
    target != codec(job.level) && job.uppers().any(|table| table.codec() != target)
}

/// Runs a job for the keys within `bounds`, which the upper tables that it has `passed` then leave.
async fn part(
    shared: &Arc<StoreCore>,
    job: &Job,
    bounds: Bounds,
    passed: Vec<u32>,
    is_last: bool,
) -> Result<bool> {
    let memory = shared.budget.tables / 2;
    let _buffers = HeldShare::new(Some(&shared.budget.tables_used), memory);
    let Some(mut outputs) = outputs(shared, job, bounds, memory).await? else { return Ok(false) };
    let written: Vec<TableMeta> = outputs.iter().flat_map(Output::written).cloned().collect();
    debug_assert!(
        written.iter().all(|meta| {
            let covers = |input: &TableMeta| input.smallest <= meta.largest && meta.smallest <= input.largest;
            job.inputs().any(|table| covers(table.meta()))
        }),
        "a compaction writes no keys but those of its inputs"
    );
    debug_assert!(
        written.iter().map(|meta| meta.entries).sum::<u64>()
            <= job.inputs().map(|table| table.meta().entries).sum::<u64>(),
        "a compaction writes no more entries than it read"
    );
    let mut added = Vec::with_capacity(written.len());
    for meta in &written {
        match flush::open(shared, meta, job.inputs(), job.target).await {
            Ok(table) => added.push((job.target as u8, table)),
            Err(error) => {
                abandon(shared, outputs).await;
                return Err(error);
            }
        }
    }
    let edit = Edit {
        next_table: written.iter().map(|meta| meta.id + 1).max().unwrap_or(0),
        removed: passed.into_iter().chain(job.lower.iter().map(|table| table.id())).collect(),
        added: written.iter().map(|meta| (job.target as u8, meta.clone())).collect(),
        ..Edit::default()
    };
    if let Err(error) = shared.manifest.check_room_for(&edit).await {
        abandon(shared, outputs).await;
        return Err(error);
    }
    if is_broken!(InputsRemovedTooSoon) {
        for table in job.inputs().filter(|_| is_last) {
            shared.remove_table(table.id()).await;
        }
    }
    let parts = outputs.len() as u64;
    // Whether the edit succeeds or not, the manifest may name them.
    outputs.iter_mut().for_each(|output| drop(output.keep()));
    shared.edit(&edit, &added, |_| ()).await?;
    let counters = &shared.counters;
    // Pieces count as one compaction, which has read the upper tables once.
    let read: u64 =
        job.inputs().filter(|table| edit.removed.contains(&table.id())).map(|table| table.meta().bytes).sum();
    counters.compactions.fetch_add(u64::from(is_last), Ordering::Relaxed);
    counters.compaction_parts.fetch_add(parts - u64::from(!is_last), Ordering::Relaxed);
    counters.compaction_read.fetch_add(read, Ordering::Relaxed);
    let bytes: u64 = written.iter().map(|meta| meta.bytes).sum();
    counters.compaction_written.fetch_add(bytes, Ordering::Relaxed);
    Ok(true)
}

/// Writes the tables of a job for the keys within `bounds`: a large job in several ranges of keys, each on a different shard.
/// Returns `None` if the store closes; then, and after an error, no table remains.
async fn outputs(
    shared: &Arc<StoreCore>,
    job: &Job,
    bounds: Bounds,
    memory: u64,
) -> Result<Option<Vec<Output>>> {
    let shards: Vec<usize> = shared.compaction_shards().collect();
    // Each range reads all runs, of which a cursor holds two leaves and an unpacked one at least.
    let (runs, unpacked) = runs_of(job);
    let range_bytes = runs as u64 * (2 * u64::from(shared.options.leaf_bytes) + unpacked);
    let count = shards.len().min((memory / 2 / range_bytes.max(1)) as usize);
    let ranges = job.ranges(&bounds, count, shared.budget.table_bytes_max());
    if ranges.len() < 2 {
        let output = write(shared, job, bounds, memory, shared.background_shard()).await?;
        return Ok(output.map(|output| vec![output]));
    }
    let memory = memory / ranges.len() as u64;
    let writing: Vec<_> = ranges
        .into_iter()
        .zip(shards)
        .map(|(bounds, shard)| {
            let (job, class) = (job.clone(), shared.options.background);
            shared.spawn_task(shard, class, move |shared| async move {
                write(&shared, &job, bounds, memory, shard).await
            })
        })
        .collect();
    let (mut outputs, mut failed, mut is_over) = (Vec::new(), None, false);
    for written in writing {
        match written.await.map_err(Error::from).and_then(|written| written) {
            Ok(Some(output)) => outputs.push(output),
            Ok(None) => is_over = true,
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        None if !is_over => return Ok(Some(outputs)),
        _ => abandon(shared, outputs).await,
    }
    failed.map_or(Ok(None), Err)
}

/// Returns the number of runs that a job reads, and the bytes of their longest leaf, unpacked.
fn runs_of(job: &Job) -> (usize, u64) {
    let unpacked = job.inputs().map(|table| table.unpacked_leaf_bytes()).max().unwrap_or(0);
    (job.upper.len() + usize::from(!job.lower.is_empty()), unpacked)
}

/// Removes the tables of a job, which has found no space or has ended, and records their space.
async fn abandon(shared: &StoreCore, outputs: Vec<Output>) {
    for output in outputs {
        shared.full.note_in_vain(Work::Compaction, output.bytes());
        output.abandon().await;
    }
}

/// Writes the tables of a job for the keys within `bounds`, on this shard. Returns `None` if the store closes; then, and
/// after an error, no table is left.
async fn write(
    shared: &Arc<StoreCore>,
    job: &Job,
    bounds: Bounds,
    memory: u64,
    shard: usize,
) -> Result<Option<Output>> {
    let mut output = Output::new(shared, job.keyspace, job.target, memory / 2);
    output.set_shard(shard);
    // On a full disk it may fail time and again: the blocks of its inputs stay in the cache.
    if !shared.full.is_full() {
        output.fill_cache();
    }
    if let ([lower], false) = (&job.lower[..], bounds.is_all()) {
        output.rewrites(lower.meta().bytes);
    }
    if job.inputs().any(|table| job.leave.is_for(table)) {
        output.allow_links();
    }
    let written = match merge(shared, job, bounds, memory / 2, &mut output).await {
        Ok(true) => output.finish().await,
        Ok(false) => {
            output.abandon().await;
            return Ok(None);
        }
        Err(error) => Err(error),
    };
    match written {
        Ok(_) => Ok(Some(output)),
        Err(error) => {
            abandon(shared, vec![output]).await;
            Err(error)
        }
    }
}

/// Writes the remaining entries. Returns whether it reached the end.
async fn merge(
    shared: &Arc<StoreCore>,
    job: &Job,
    bounds: Bounds,
    memory: u64,
    output: &mut Output,
) -> Result<bool> {
    let (class, gives_up) = (shared.options.background, output.fills_cache());
    let how = CursorHow { class, gives_up, ..CursorHow::merge() };
    let (runs, unpacked) = runs_of(job);
    let share = (memory / runs as u64).saturating_sub(unpacked);
    let how = how.within(share, shared.options.leaf_bytes.into());
    let bounds = Arc::new(bounds);
    let runs = job.upper.iter().chain([&job.lower]);
    let runs = runs.map(|tables| {
        let (all, tables) = (0..tables.len(), Arc::new(tables.clone()));
        Run::new(&tables, all, &bounds, how).leaving(&job.leave)
    });
    let sources = runs.filter(|run| !run.is_empty()).map(|run| Source::Run(Box::new(run))).collect();
    let mut merge = Merge::new(sources, Direction::Forward);
    let now_s = shared.now_s();
    let (mut entries, mut bytes) = (0, 0);
    while merge.next().await? {
        let key = merge.key();
        let Some(entry) = merge.entry() else { continue };
        entries += merge.versions();
        bytes += key.len();
        if entry == Entry::Deleted || entry.has_expired(now_s) {
            if job.is_below(key) {
                output.add(key, Entry::Deleted).await?;
            }
        } else {
            if let Entry::Value { bytes: value, .. } = entry {
                bytes += value.len();
            }
            output.add(key, entry).await?;
        }
        if entries >= SLICE_ENTRIES || bytes >= SLICE_BYTES {
            (entries, bytes) = (0, 0);
            if shared.check_writable().is_err() {
                return Ok(false);
            }
            forebay::shard::yield_now().await;
        }
    }
    Ok(true)
}
