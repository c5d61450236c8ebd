//! Recovery of a store from its directory: replays the log's records into memtables, and removes files that
//! the manifest does not name.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay::Open;
use forebay_wal::Lsn;

use super::flush;
use super::rules::Entries;
use super::shared::StoreCore;
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::Edit;
use crate::memtable;
use crate::names::table_name;
use crate::record;
use crate::table::{HeaderFound, read_header};

/// The suffix added to the name of a table that nothing names and that must not be removed.
const KEPT: &str = ".kept";

/// The state in which a store was found; see [`Store::recovery`](crate::Store::recovery).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Recovery {
    /// The state in which the log of writes was found.
    pub log: forebay_wal::Recovery,
    /// The state in which the log of the manifest was found, which names the tables.
    pub manifest: forebay_wal::Recovery,
    /// Records of the log that were replayed into memory, because they are in no table.
    pub replayed: u64,
    /// Unreferenced table files that were removed: leftovers of flushes and compactions after a crash.
    pub removed: Vec<PathBuf>,
    /// Unreferenced table files that were kept, by their new names. One may be the only copy of some data, because the manifest
    /// is not proven to be complete.
    pub kept: Vec<PathBuf>,
    /// The error that [`Options::salvage`](crate::Options::salvage) overruled: records that the manifest
    /// requires and the log lacks. Records missing within the logs themselves are in `lost` of either.
    pub refused: Option<Error>,
}

/// Replays the log and removes leftovers of a crash.
pub(super) async fn recover(
    shared: &Arc<StoreCore>,
    mut recovery: Recovery,
    entries: &Entries,
) -> Result<Recovery> {
    let (first, last) = (shared.wal.first_lsn(), shared.wal.durable_lsn());
    let start = Lsn(shared.manifest.with(|state| state.log_start));
    // A replay may have to flush; a new table must not get a name in use.
    entries.table_files.iter().for_each(|(id, _)| shared.reserve_table(*id));
    replay(shared, start.max(first), last).await?;
    shared.lock().last = shared.insertion.note(last.0);
    recovery.replayed = shared.counters.replayed.load(Ordering::Relaxed);
    if shared.options.read_only {
        return Ok(recovery);
    }
    if shared.options.salvage {
        // Missing records no longer matter once the log holds no earlier records.
        flush::now(shared).await?;
        let next = last.next();
        let edit = Edit { log_start: Some(next.0), ..Edit::default() };
        shared.edit(&edit, &[], |commit| commit.flushed = last.0).await?;
        shared.wal.truncate_before(next).await?;
    }
    clear(shared, &mut recovery, entries).await?;
    if first < start {
        shared.wal.truncate_before(start).await?;
    }
    Ok(recovery)
}

async fn replay(shared: &Arc<StoreCore>, start: Lsn, last: Lsn) -> Result<()> {
    let mut reader = shared.wal.read_from(start);
    while reader.position() <= last {
        let found = match reader.next().await.transpose() {
            Ok(Some(found)) => found,
            Ok(None) => break,
            Err(error) => match error.loss().filter(|_| shared.options.salvage) {
                Some(lost) if lost.last < last => {
                    reader = shared.wal.read_from(lost.last.next());
                    continue;
                }
                Some(_) => break,
                None => return Err(error.into()),
            },
        };
        let lsn = found.lsn();
        let damaged = |error: Error| {
            let path = shared.dir.join("log");
            Error::at(error.kind(), &path, format!("record {lsn}: {error}"))
        };
        let bytes = &found[..];
        let mut places = record::parse(bytes).map_err(damaged)?;
        let keyspace_at =
            |at: u32| record::entry_at(bytes, at as usize).map_or(u32::MAX, |(entry, _)| entry.keyspace);
        for &at in &places {
            let keyspace = keyspace_at(at);
            if shared.manifest.with(|state| !state.is_known(keyspace)) {
                let text = format!("it is of keyspace {keyspace}, which there is none");
                return Err(damaged(Error::new(ErrorKind::Corruption, text)));
            }
        }
        // Entries of keyspaces that were dropped since.
        shared.with_view(|view| places.retain(|at| !view.version.is_dropped(keyspace_at(*at))));
        let cost = memtable::cost(bytes.len(), places.len());
        loop {
            {
                let mut commit = shared.lock();
                if shared.has_space(&mut commit, cost)? {
                    commit.active.add(bytes, &places, lsn.0);
                    break;
                }
            }
            // The memory budget is smaller than the one that the log was written with.
            if shared.options.read_only {
                return Err(too_small(shared));
            }
            flush::oldest_now(shared).await?;
        }
        shared.counters.replayed.fetch_add(1, Ordering::Relaxed);
        forebay::shard::yield_if_needed().await;
    }
    Ok(())
}

/// Returns the error of an open that may not flush memtables, and needs more of them.
fn too_small(shared: &StoreCore) -> Error {
    let commit = shared.lock();
    let held = commit.sealed_used() + commit.active.used();
    let text = format!(
        "the log has more records that are in no table than the {} bytes of memory for memtables take; raise \
         Options::memory_bytes_max and memtable_bytes, or open the store once without Options::read_only, which writes them to \
         tables",
        shared.budget.memtables
    );
    Error::at(ErrorKind::MemoryBudget { held }, &shared.dir, text)
}

/// Removes tables that the manifest does not name: leftovers of flushes and compactions after a crash. Other
/// files stay, and so do these where the manifest may have lost an edit that named them.
async fn clear(shared: &Arc<StoreCore>, recovery: &mut Recovery, entries: &Entries) -> Result<()> {
    let unnamed: Vec<_> = shared.manifest.with(|state| entries.unnamed(state).cloned().collect());
    let is_complete = entries.has_leftovers_only() && !shared.options.salvage;
    for (id, path) in unnamed {
        if !is_ours(shared, id).await? {
            continue;
        }
        if is_complete {
            shared.tables.remove_file(table_name(id)).await?;
            shared.counters.orphans.fetch_add(1, Ordering::Relaxed);
            recovery.removed.push(path);
        } else {
            let kept = table_name(id) + KEPT;
            shared.tables.rename(table_name(id), &kept).await?;
            recovery.kept.push(path.with_file_name(kept));
        }
    }
    Ok(())
}

/// Returns whether a file starts like a table of this crate, or is still empty.
async fn is_ours(shared: &Arc<StoreCore>, id: u32) -> Result<bool> {
    let file =
        shared.tables.open(table_name(id), Open::read().buffered().shard(shared.options.shard)).await?;
    let head = file.read_up_to(0..4096).await?;
    Ok(matches!(read_header(&head, id), HeaderFound::Ours { .. } | HeaderFound::Empty))
}
