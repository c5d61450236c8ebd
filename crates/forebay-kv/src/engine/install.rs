//! Installation of tables that were written past the log and past memory, by a bulk load or into sorted files: all of them
//! become parts of the store in one edit of the manifest.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::compact::{self, pick};
use super::flush;
use super::range_lock::{LockedRanges, RangeLock, between};
use super::shared::{Commit, StoreCore};
use super::space::Work;
use crate::error::{Error, Result};
use crate::is_broken;
use crate::manifest::Edit;
use crate::manifest::version::{LEVELS, Levels};
use crate::merge::Bounds;
use crate::names::table_name;
use crate::table::{Table, TableMeta};

/// A table with more deletions than this part of its entries stays above the last level, so that compaction drops them.
const DELETED_PART: u64 = 8;
const LAST: usize = LEVELS - 1;

/// The order of installed tables among the writes of their keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOrder {
    /// The tables are newer than all writes before the step in which they become visible, and older than all later ones. Writers of
    /// their keys wait for that step. For sorted files: files that overlap are placed in level 0, with new numbers.
    Exact,
    /// Writes during the installation may be newer, and no writer waits. Overlapping tables in the first two levels are compacted,
    /// because the tables keep their numbers.
    Loose,
}

/// The place of installed tables.
pub(crate) struct Placement {
    /// The level of each table.
    pub(crate) levels: Vec<usize>,
    /// The newest record at that moment.
    pub(crate) lsn: u64,
}

/// Makes tables, whose files are among the store's and durable, parts of it in one step. Each is placed in the lowest level where
/// it hides nothing newer. The files stay after an error that leaves open whether the manifest names them, and are removed after
/// other errors.
pub(crate) async fn install(
    shared: &Arc<StoreCore>,
    mut metas: Vec<TableMeta>,
    order: WriteOrder,
) -> Result<Placement> {
    let mut unnamed: Vec<u32> = metas.iter().map(|meta| meta.id).collect();
    let installed = place(shared, &mut metas, order, &mut unnamed).await;
    if installed.is_err() {
        for id in unnamed {
            shared.remove_table(id).await;
        }
    }
    installed
}

async fn place(
    shared: &Arc<StoreCore>,
    metas: &mut [TableMeta],
    order: WriteOrder,
    unnamed: &mut Vec<u32>,
) -> Result<Placement> {
    shared.check_writable()?;
    if metas.is_empty() {
        return Ok(Placement { levels: Vec::new(), lsn: shared.lock().last });
    }
    shared.full.check_growth()?;
    // Only the holder of this turn changes the levels below the first, and removes keyspaces.
    let _turn = shared.compaction.turn.take().await;
    let ranges = (order == WriteOrder::Exact).then(|| Arc::new(ranges_of(shared, metas)));
    make_room(shared, metas, order).await?;
    // Before the lock, so that little is left to be flushed while writers wait.
    if ranges.as_ref().is_some_and(|ranges| shared.has_in_memtables(ranges)) {
        flush::everything(shared).await?;
    }
    let mut tables = Vec::with_capacity(metas.len());
    for meta in &*metas {
        tables.push(open(shared, meta).await?);
    }
    let (_lock, _hold) = match &ranges {
        Some(ranges) => (Some(lock(shared, ranges).await?), None),
        None => {
            // All earlier writes end up below the tables, and later writes do not reach tables before them.
            let hold = flush::hold(shared).await?;
            make_room(shared, metas, order).await?;
            (None, Some(hold))
        }
    };
    let mut levels = Vec::with_capacity(metas.len());
    for (meta, table) in metas.iter_mut().zip(&mut tables) {
        let level = level_of(shared, meta)?;
        if level == 0 && is_behind(shared, meta) {
            debug_assert!(meta.number != meta.id, "the nodes of a sorted file have a number of their own");
            // In level 0 higher numbers are newer.
            let (old, new) = (meta.id, shared.next_table());
            unnamed.push(new);
            shared.tables.rename(table_name(old), table_name(new)).await?;
            meta.id = new;
            *table = open(shared, meta).await?;
        }
        levels.push(level);
    }
    shared.check_writable()?;
    shared.full.check_growth()?;
    let added: Vec<_> = levels.iter().map(|level| *level as u8).zip(tables).collect();
    let mut lsn = 0;
    for part in added.chunks(if is_broken!(IngestInParts) { 1 } else { added.len() }) {
        let edit = Edit {
            next_table: part.iter().map(|(_, table)| table.id() + 1).max().unwrap_or(0),
            added: part.iter().map(|(level, table)| (*level, table.meta().clone())).collect(),
            ..Edit::default()
        };
        shared.manifest.check_room_for(&edit).await?;
        // The manifest may name the files even if the edit fails, so they are kept.
        unnamed.clear();
        let shown = |commit: &mut Commit| {
            let tables = part.iter().map(|(_, table)| table.meta());
            let touched = tables.map(|meta| (meta.keyspace, between(&meta.smallest, &meta.largest)));
            shared.touch(commit, touched);
            commit.unlock_ranges();
            lsn = commit.last;
        };
        shared.edit(&edit, part, shown).await?;
    }
    Ok(Placement { levels, lsn })
}

/// Compacts tables that are in the way: of all tables with [`WriteOrder::Loose`], otherwise of those with which level 0 would
/// have more tables than it should.
async fn make_room(shared: &Arc<StoreCore>, metas: &[TableMeta], order: WriteOrder) -> Result<()> {
    let mut upper: BTreeMap<u32, usize> = BTreeMap::new();
    for meta in metas {
        let upper = upper.entry(meta.keyspace).or_default();
        while level_of(shared, meta)? == 0 {
            let level0 = with_levels(shared, meta, |levels| levels.level(0).len())?;
            let has_room = *upper == 0 || level0 + *upper < pick::LEVEL0_FULL;
            if order == WriteOrder::Exact && has_room {
                *upper += 1;
                break;
            }
            if !compact::clear(shared, meta.keyspace, &between(&meta.smallest, &meta.largest)).await? {
                return Err(Error::dropped_keyspace());
            }
        }
    }
    Ok(())
}

/// Returns the ranges of keys that may be neither in memory only nor written to while the tables become visible.
fn ranges_of(shared: &StoreCore, metas: &[TableMeta]) -> LockedRanges {
    let unlogged: Vec<u32> = shared.with_view(|view| {
        let unlogged = view.version.keyspaces().filter(|(_, levels)| levels.is_unlogged);
        unlogged.map(|(id, _)| id).collect()
    });
    let mut ranges: Vec<(u32, Bounds)> =
        metas.iter().map(|meta| (meta.keyspace, between(&meta.smallest, &meta.largest))).collect();
    if metas.iter().any(|meta| unlogged.contains(&meta.keyspace)) {
        // After a crash these are as of one flush: nothing older than the tables may be in memory only.
        ranges.extend(unlogged.into_iter().map(|keyspace| (keyspace, Bounds::ALL)));
    }
    LockedRanges(ranges)
}

/// Locks ranges of keys for writers, with all that was written to them before in tables.
async fn lock<'s>(shared: &'s Arc<StoreCore>, ranges: &Arc<LockedRanges>) -> Result<RangeLock<'s>> {
    let patience = shared.full.patience(Work::Flush);
    let lock = shared.lock_ranges(ranges);
    if lock.is_sealed {
        flush::flushed(shared, lock.last, patience).await?;
    }
    // Relaxed writes from before must not be lost where the tables are not.
    if shared.wal.durable_lsn().0 < lock.last {
        shared.wal.sync().await.map_err(|error| shared.log_error(error))?;
    }
    Ok(lock)
}

/// Returns the lowest level where a table hides nothing newer; 0 if it overlaps a table there or in level 1.
fn level_of(shared: &StoreCore, meta: &TableMeta) -> Result<usize> {
    let place = |levels: &Levels| pick::place(levels, &meta.smallest, &meta.largest).unwrap_or(0);
    let level = with_levels(shared, meta, place)?;
    if level == LAST && meta.deleted > meta.entries / DELETED_PART { Ok(LAST - 1) } else { Ok(level) }
}

/// Returns whether level 0 has a table with a higher number.
fn is_behind(shared: &StoreCore, meta: &TableMeta) -> bool {
    let is_behind = |levels: &Levels| levels.level(0).iter().any(|table| table.id() > meta.id);
    with_levels(shared, meta, is_behind).unwrap_or(false)
}

fn with_levels<T>(shared: &StoreCore, meta: &TableMeta, look: impl FnOnce(&Levels) -> T) -> Result<T> {
    shared
        .with_view(|view| view.version.keyspace(meta.keyspace).map(|levels| look(levels)))
        .ok_or_else(Error::dropped_keyspace)
}

async fn open(shared: &StoreCore, meta: &TableMeta) -> Result<Arc<Table>> {
    flush::open(shared, meta, [], level_of(shared, meta)?).await
}
