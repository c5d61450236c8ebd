//! Removal of whole ranges and whole keyspaces: tables are dropped, and nothing is written for each key.
//!
//! Both are one edit of the manifest. Flushes are held up meanwhile, so that older entries are in tables and are removed, and newer
//! entries stay in memtables, above the gap.

use std::ops::Bound;
use std::sync::Arc;

use super::compact::pick;
use super::compact::{self, Output};
use super::flush;
use super::shared::{StoreCore, in_task};
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::Edit;
use crate::manifest::version::{LEVELS, Levels};
use crate::merge::{Bounds, Merge, Run, Source};
use crate::names::DEFAULT;
use crate::table::{CursorHow, Direction, Leave, Table};
use crate::value::HeldShare;

/// Removes all entries of a keyspace within bounds that were written before the call.
pub(crate) async fn range(shared: &Arc<StoreCore>, keyspace: u32, bounds: Bounds) -> Result<()> {
    in_task(shared, move |shared| async move {
        shared.check_writable()?;
        // Only the holder of this turn changes the levels below the first.
        let _turn = shared.compaction.turn.take().await;
        // Before flushes are held up, so that little of this work is left then.
        while compact::clear_level0(&shared, keyspace, &bounds).await? {}
        let _hold = flush::hold(&shared).await?;
        while compact::clear_level0(&shared, keyspace, &bounds).await? {}
        let levels = shared.with_view(|view| view.version.keyspace(keyspace).cloned());
        let mut outputs = Vec::new();
        let levels = levels.ok_or_else(Error::dropped_keyspace)?;
        match cut(&shared, &levels, keyspace, &bounds, &mut outputs).await {
            Ok(()) => Ok(()),
            Err(error) => {
                for output in outputs {
                    output.abandon().await;
                }
                Err(error)
            }
        }
    })
    .await
}

/// Rewrites the tables at the ends of the bounds without the entries within, and exchanges all tables in one step.
async fn cut(
    shared: &Arc<StoreCore>,
    levels: &Levels,
    keyspace: u32,
    bounds: &Bounds,
    outputs: &mut Vec<Output>,
) -> Result<()> {
    let (mut removed, mut added) = (Vec::new(), Vec::new());
    let (separation_bytes, is_full) = (shared.options.separation_bytes, shared.full.is_full());
    let leave = pick::leave(levels, shared.budget.memtable, separation_bytes, false, is_full);
    for level in 1..LEVELS {
        for table in levels.level(level).iter().filter(|table| bounds.meet(table)) {
            removed.push(table.id());
            let (smallest, largest) = (&table.meta().smallest, &table.meta().largest);
            if [smallest, largest].iter().all(|key| bounds.is_above_low(key) && bounds.is_below_high(key)) {
                continue;
            }
            let mut output = Output::new(shared, keyspace, level, shared.budget.tables / 4);
            if leave.is_for(table) {
                output.allow_links();
            }
            let copied = copy_around(shared, table, bounds, &leave, &mut output).await;
            outputs.push(output);
            copied?;
            if let Some(output) = outputs.last_mut() {
                for meta in output.finish().await?.to_vec() {
                    added.push((level as u8, flush::open(shared, &meta, [table], level).await?));
                }
            }
        }
    }
    if removed.is_empty() {
        return Ok(());
    }
    let edit = Edit {
        next_table: added.iter().map(|(_, table)| table.id() + 1).max().unwrap_or(0),
        removed,
        added: added.iter().map(|(level, table)| (*level, table.meta().clone())).collect(),
        ..Edit::default()
    };
    shared.manifest.check_room_for(&edit).await?;
    // The manifest may name the files even if the edit fails.
    outputs.iter_mut().for_each(|output| drop(output.keep()));
    shared.edit(&edit, &added, |commit| shared.touch(commit, [(keyspace, bounds.clone())])).await
}

/// Copies the entries of a table that lie outside of bounds.
async fn copy_around(
    shared: &Arc<StoreCore>,
    table: &Arc<Table>,
    bounds: &Bounds,
    leave: &Arc<Leave>,
    output: &mut Output,
) -> Result<()> {
    let memory = shared.budget.tables / 2;
    let _buffers = HeldShare::new(Some(&shared.budget.tables_used), memory);
    let how = CursorHow { class: shared.options.background, ..CursorHow::merge() };
    let how = how.within(memory / 2, shared.options.leaf_bytes.into());
    let outside = |bound: &Bound<Vec<u8>>| match bound {
        Bound::Unbounded => None,
        Bound::Included(key) => Some(Bound::Excluded(key.clone())),
        Bound::Excluded(key) => Some(Bound::Included(key.clone())),
    };
    let below = outside(&bounds.low).map(|high| Bounds { low: Bound::Unbounded, high });
    let above = outside(&bounds.high).map(|low| Bounds { low, high: Bound::Unbounded });
    for part in [below, above].into_iter().flatten() {
        let run = Run::new(&Arc::new(vec![table.clone()]), 0..1, &Arc::new(part), how).leaving(leave);
        let mut entries = Merge::new(vec![Source::Run(Box::new(run))], Direction::Forward);
        while entries.next().await? {
            let Some(entry) = entries.entry() else { continue };
            output.add(entries.key(), entry).await?;
            shared.check_writable()?;
            forebay::shard::yield_if_needed().await;
        }
    }
    Ok(())
}

/// Drops a keyspace with all that it has.
pub(crate) async fn keyspace(shared: &Arc<StoreCore>, name: &str) -> Result<()> {
    if name == DEFAULT {
        let text = "the keyspace `default` cannot be dropped; delete its entries with `delete_range(..)`";
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    let name = name.to_string();
    in_task(shared, move |shared| async move {
        shared.check_writable()?;
        let _turn = shared.keyspace_turn.take().await;
        let _compaction = shared.compaction.turn.take().await;
        let _hold = flush::hold(&shared).await?;
        let found = shared.with_view(|view| {
            let id = view.version.keyspace_named(&name)?;
            let levels = view.version.keyspace(id)?;
            let tables = (0..LEVELS).flat_map(|level| levels.level(level).iter().map(|table| table.id()));
            Some((id, tables.collect::<Vec<_>>()))
        });
        let Some((id, removed)) = found else {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no keyspace {name:?} to drop")));
        };
        let edit = Edit { removed, dropped: vec![id], ..Edit::default() };
        let room = shared.manifest.check_room_for(&edit).await;
        room.map_err(|error| shared.full.why().unwrap_or(error))?;
        shared.edit(&edit, &[], |commit| shared.touch(commit, [(id, Bounds::ALL)])).await
    })
    .await
}
