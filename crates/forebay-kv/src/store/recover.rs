//! From what lies in a directory to a store: the log's records go back into memtables, and files that nobody
//! names go away.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay::{FileKind, Open};
use forebay_wal::{Lsn, Recovery};

use super::flush;
use super::shared::{Shared, table_id, tables_dir};
use crate::error::{Error, ErrorKind, Result};
use crate::memtable;
use crate::record;
use crate::table::{HeaderFound, read_header};

/// Replays the log and removes what a crash left.
pub(super) async fn recover(shared: &Arc<Shared>, recovery: &Recovery) -> Result<()> {
    let start = shared.manifest.with(|state| state.log_start);
    let files = tables(shared).await?;
    // A replay may have to flush, and no table that is written gets a name that is taken.
    files.iter().for_each(|(id, _)| shared.reserve_table(*id));
    replay(shared, Lsn(start), recovery.last).await?;
    shared.inserted.fetch_max(recovery.last.0, Ordering::AcqRel);
    remove_orphans(shared, files).await?;
    if recovery.first.0 < start {
        shared.wal.truncate_before(Lsn(start)).await?;
    }
    Ok(())
}

async fn replay(shared: &Arc<Shared>, start: Lsn, last: Lsn) -> Result<()> {
    let mut reader = shared.wal.read_from(start);
    while reader.position() <= last {
        let Some(found) = reader.next().await? else { break };
        let lsn = found.lsn();
        let damaged = |error: Error| {
            let path = shared.dir.join("log");
            Error::at(error.kind().clone(), &path, format!("record {lsn}: {error}"))
        };
        let bytes = &found[..];
        let places = record::parse(bytes).map_err(damaged)?;
        for &at in &places {
            let entry = record::entry_at(bytes, at as usize);
            let keyspace = entry.map_or(u32::MAX, |(entry, _)| entry.keyspace);
            if shared.with_view(|view| view.version.keyspace(keyspace).is_none()) {
                let text = format!("it is of keyspace {keyspace}, which there is none");
                return Err(damaged(Error::new(ErrorKind::Corruption, text)));
            }
        }
        let cost = memtable::cost(bytes.len(), places.len());
        loop {
            {
                let mut commit = shared.lock();
                if shared.has_space(&mut commit, cost)? {
                    commit.active.insert(bytes, &places, lsn.0);
                    break;
                }
            }
            // A smaller budget than the one that it was written with.
            flush::oldest(shared).await?;
        }
        shared.counters.replayed.fetch_add(1, Ordering::Relaxed);
        forebay::shard::yield_if_needed().await;
    }
    Ok(())
}

/// The files that have names of tables.
async fn tables(shared: &Arc<Shared>) -> Result<Vec<(u32, PathBuf)>> {
    let dir = tables_dir(&shared.dir);
    let entries = shared.engine.read_dir(&dir).await?;
    let files = entries.iter().filter(|entry| entry.kind() == FileKind::File);
    Ok(files
        .filter_map(|entry| Some((entry.name().to_str().and_then(table_id)?, dir.join(entry.name()))))
        .collect())
}

/// Removes tables that no manifest named: what a crash left of flushes and compactions. Other files stay.
async fn remove_orphans(shared: &Arc<Shared>, files: Vec<(u32, PathBuf)>) -> Result<()> {
    let known: BTreeSet<u32> = shared.manifest.with(|state| state.tables.keys().copied().collect());
    for (id, path) in files {
        if !known.contains(&id) && is_ours(shared, &path, id).await? {
            shared.engine.remove_file(&path).await?;
            shared.counters.orphans.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Whether a file begins as our tables do, or has nothing in it yet.
async fn is_ours(shared: &Arc<Shared>, path: &Path, id: u32) -> Result<bool> {
    let file = shared.engine.open(path, Open::read().buffered().shard(shared.options.shard)).await?;
    let head = file.read_up_to(0..4096).await?;
    Ok(matches!(read_header(&head, id), HeaderFound::Ours { .. } | HeaderFound::Empty))
}
