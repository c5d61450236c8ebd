//! Flushes: writing memtables to tables.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_wal::Lsn;

use super::recent_changes::{FlushedKeys, Surplus};
use super::shared::{Commit, StoreCore};
use super::space::Work;
use crate::error::{ErrorKind, Result};
use crate::is_broken;
use crate::manifest::version::{keeps_filter, pins_filter};
use crate::manifest::{Edit, Patience};
use crate::memtable::Memtables;
use crate::table::{Entry, Files, OpenHow, Table, TableMeta, TableSpec, TableWriter};
use crate::value::HeldShare;

/// Number of entries copied out of a memtable at a time.
const BATCH: usize = 32;

/// Seals the active memtable and waits until its contents are in tables.
pub(crate) async fn everything(shared: &Arc<StoreCore>) -> Result<()> {
    shared.check_writable()?;
    let patience = shared.full.patience(Work::Flush);
    let upto = seal(shared, |_| ());
    shared.try_again();
    flushed(shared, upto, patience).await
}

/// Flushes all memtables, while the store has no tasks.
pub(super) async fn now(shared: &Arc<StoreCore>) -> Result<()> {
    seal(shared, |_| ());
    while oldest_now(shared).await? {}
    Ok(())
}

/// As [`oldest`], while the store has no tasks: on a full disk it releases the reserve and tries again, and where the program may give
/// back what is short it waits for that, as the logs do.
pub(super) async fn oldest_now(shared: &Arc<StoreCore>) -> Result<bool> {
    let mut patience = Patience::default();
    loop {
        match oldest(shared).await {
            Err(error) if error.kind() == ErrorKind::NoSpace && shared.release_reserve().await => {}
            Err(error) if error.is_crowded() && patience.outlasts().await? => {}
            done => return done,
        }
    }
}

/// Seals the active memtable and returns the number of its last record. `also` runs under the same lock.
fn seal(shared: &StoreCore, also: impl FnOnce(u64)) -> u64 {
    let mut commit = shared.lock();
    let upto = commit.last;
    shared.seal(&mut commit);
    also(upto);
    upto
}

/// Holds flushes back: while it lives, no record is flushed that was written after it was made.
pub(crate) struct Hold<'a>(&'a StoreCore);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.flush_limit.store(u64::MAX, Ordering::Release);
        self.0.work.notify();
    }
}

/// Flushes all records written so far and holds back later ones until the returned guard is dropped. Only one
/// may exist at a time.
pub(crate) async fn hold(shared: &StoreCore) -> Result<Hold<'_>> {
    shared.check_writable()?;
    let (hold, patience) = (Hold(shared), shared.full.patience(Work::Flush));
    let upto = seal(shared, |upto| shared.flush_limit.store(upto, Ordering::Release));
    shared.try_again();
    flushed(shared, upto, patience).await?;
    Ok(hold)
}

/// Waits until a record is in tables, or until flushes have failed for lack of space more than `patience`
/// times.
pub(crate) async fn flushed(shared: &StoreCore, upto: u64, patience: u64) -> Result<()> {
    shared
        .space
        .until(|| match shared.check_writable() {
            _ if shared.lock().flushed >= upto => Some(Ok(())),
            Err(error) => Some(Err(error)),
            Ok(()) => shared.full.check_tries(Work::Flush, patience).err().map(Err),
        })
        .await
}

/// Writes the oldest sealed memtables to tables of level 0, one for each keyspace. Returns false without sealed memtables.
///
/// The order: the records are durable in the log; the tables are durable; the manifest names them and the
/// record from which on the log is needed; the log releases the records before it.
pub(crate) async fn oldest(shared: &Arc<StoreCore>) -> Result<bool> {
    let Some(memtables) = shared.lock().sealed.front().cloned() else { return Ok(false) };
    let _use = shared.full.begin(Work::Flush);
    let last = memtables.last_lsn();
    // Writers may have committed records to it that are not inserted yet. It gets no new records.
    shared.insertion.until(last);
    shared.gate.start(shared.engine.now_ns());
    shared.gate.watch(flush(shared, &memtables)).await?;
    shared.counters.flushes.fetch_add(1, Ordering::Relaxed);
    shared.space.notify();
    if shared.lock().sealed.is_empty() {
        shared.gate.notify_all();
    } else {
        shared.gate.notify();
    }
    if let Some(memtables) = Arc::into_inner(memtables) {
        memtables.take_down().await;
    }
    // Snapshots may keep it, and open transactions its keys; the cache then shrinks by their size. If it cannot, the next
    // writer gets the error.
    drop(shared.check_held());
    let needed = shared.feeds.needed_after(last, shared.full.is_full());
    shared.wal.truncate_before(needed).await.map_err(|error| shared.log_error(error))?;
    Ok(true)
}

/// Gives up the records of the log that are in tables and that no feed wants any more.
pub(super) async fn release_log(shared: &StoreCore) {
    if shared.check_writable().is_err() {
        return;
    }
    let last = shared.lock().flushed;
    let needed = shared.feeds.needed(last, shared.full.is_full());
    if let Err(error) = shared.wal.truncate_before(needed).await {
        drop(shared.log_error(error));
    }
}

async fn flush(shared: &Arc<StoreCore>, memtables: &Memtables) -> Result<()> {
    let last = memtables.last_lsn();
    shared.manifest.check_room()?;
    // A table must not hold records that the log may lose: the log would reuse their numbers. Those of records that are
    // not logged may not even be on their way.
    if shared.wal.durable_lsn().0 < last && !is_broken!(NumbersNotWritten) {
        shared.wal.sync().await.map_err(|error| shared.log_error(error))?;
    }
    if is_broken!(LogCutTooSoon) {
        shared.wal.truncate_before(Lsn(last + 1)).await?;
    }
    let since = {
        // Writers that enter after this section see all records of the memtable.
        let _commit = shared.lock();
        shared.recent().needed(last)
    };
    let mut changed = since.map(|since| FlushedKeys::new(since, last));
    let mut metas: Vec<TableMeta> = Vec::new();
    for keyspace in memtables.keyspaces() {
        if shared.with_view(|view| view.version.is_dropped(keyspace)) {
            continue;
        }
        if let Some(changed) = &mut changed {
            changed.begin(keyspace);
        }
        match write(shared, memtables, keyspace, changed.as_mut()).await {
            Ok(meta) => metas.extend(meta),
            Err(error) => {
                abandon(shared, &metas).await;
                return Err(error);
            }
        }
    }
    shared.gate.all_written(shared.engine.now_ns());
    debug_assert!(
        metas.iter().map(|meta| meta.entries).sum::<u64>() <= memtables.entries() as u64,
        "a flush writes no more entries than the memtable has"
    );
    let opened = match shared.sync_tables(metas.len()).await {
        Ok(()) => open_all(shared, &metas).await,
        Err(error) => Err(error),
    };
    let tables = match opened {
        Ok(tables) => tables,
        Err(error) => {
            abandon(shared, &metas).await;
            return Err(error);
        }
    };
    let edit = Edit {
        log_start: Some(last + 1),
        next_table: metas.iter().map(|meta| meta.id + 1).max().unwrap_or(0),
        added: metas.iter().map(|meta| (0, meta.clone())).collect(),
        ..Edit::default()
    };
    if let Err(error) = shared.manifest.check_room_for(&edit).await {
        abandon(shared, &metas).await;
        return Err(error);
    }
    let mut surplus = Surplus::default();
    let flushed = |commit: &mut Commit| {
        let flushed = commit.sealed.pop_front();
        debug_assert!(
            flushed.as_ref().is_some_and(|flushed| std::ptr::eq(&**flushed, memtables))
                && commit.flushed < last,
            "the oldest memtable is flushed first"
        );
        memtables.hold();
        commit.flushed = last;
        surplus = shared.recent().add_flush(last, changed);
        shared.gate.end(shared.engine.now_ns());
        shared.next_flush(commit);
    };
    let edited = shared.edit(&edit, &tables, flushed).await;
    drop(surplus);
    edited
}

/// Removes tables that nothing names, and notes their space. A file that cannot be removed now is removed when the store is opened.
async fn abandon(shared: &StoreCore, metas: &[TableMeta]) {
    for meta in metas {
        shared.full.note_in_vain(Work::Flush, meta.bytes);
        shared.remove_table(meta.id).await;
    }
}

/// Opens a table that was just written, for a level. `inputs` are tables that share files with it.
pub(crate) async fn open<'t>(
    shared: &StoreCore,
    meta: &TableMeta,
    inputs: impl IntoIterator<Item = &'t Arc<Table>>,
    level: usize,
) -> Result<Arc<Table>> {
    let class = forebay::shard::class();
    let how = OpenHow { class, pin_filter: pins_filter(level, &shared.options) };
    let mut files = Files::new(&shared.engine, &shared.tables, &shared.cache, &shared.files);
    for table in inputs {
        files.add(std::iter::once(table.own_file()).chain(table.far_files()));
    }
    let table = Table::open(&mut files, meta, how).await?;
    if keeps_filter(level, &shared.options) {
        table.keep_filter(class).await;
    }
    Ok(table)
}

/// Opens tables that were just written for level 0, several concurrently.
async fn open_all(shared: &StoreCore, metas: &[TableMeta]) -> Result<Vec<(u8, Arc<Table>)>> {
    let how = OpenHow { class: forebay::shard::class(), pin_filter: pins_filter(0, &shared.options) };
    let named: Vec<_> = metas.iter().map(|meta| (meta, how)).collect();
    let mut files = Files::new(&shared.engine, &shared.tables, &shared.cache, &shared.files);
    let tables = Table::open_all(&mut files, &named).await?;
    Ok(tables.into_iter().map(|table| (0, table)).collect())
}

/// Writes the newest version of each key of a keyspace to a table. Deletions are left out where no lower level has the key. Returns
/// `None` if no entry remains. `changed` gets all keys, in their order.
async fn write(
    shared: &Arc<StoreCore>,
    memtables: &Memtables,
    keyspace: u32,
    mut changed: Option<&mut FlushedKeys>,
) -> Result<Option<TableMeta>> {
    // No older data is in transit: flushes run one after the other, and compaction keeps the contents of a
    // level.
    let below = shared.with_view(|view| view.version.keyspace(keyspace).cloned());
    let spec = TableSpec {
        id: shared.next_table(),
        // A small buffer and depth: the log's flushes wait for data in flight to the device.
        buffer_bytes: 64 << 10,
        depth: 1,
        // On a full disk it may fail time and again.
        fill: !shared.full.is_full(),
        ..shared.table_spec(keyspace, 0, shared.options.class)
    };
    // This also counts the buffer that is being filled, and entries on their way.
    let buffers = spec.buffer_bytes as u64 * (spec.depth as u64 + 2);
    let _buffers = HeldShare::new(Some(&shared.budget.tables_used), buffers);
    let mut writer: Option<TableWriter> = None;
    let mut last: Vec<u8> = Vec::new();
    loop {
        let from = if last.is_empty() { Bound::Unbounded } else { Bound::Excluded(&last[..]) };
        let batch = memtables.batch(keyspace, (from, Bound::Unbounded), false, u64::MAX, BATCH);
        for found in &batch.found {
            if let Some(changed) = &mut changed {
                changed.add(found.key(), found.lsn);
            }
            let entry = if !found.deleted {
                Entry::Value { bytes: found.value(), expires_s: found.expires_s }
            } else if below.as_ref().is_some_and(|levels| levels.covers(found.key())) {
                Entry::Deleted
            } else {
                continue;
            };
            let added = match &mut writer {
                Some(writer) => writer.add(found.key(), entry).await,
                None => {
                    let created =
                        TableWriter::create_in(&shared.engine, &shared.tables, spec.clone()).await?;
                    writer.insert(created).add(found.key(), entry).await
                }
            };
            if let Err(error) = added {
                if let Some(writer) = writer {
                    shared.full.note_in_vain(Work::Flush, writer.bytes());
                    // If the file stays, the next open of the store finds it by its name.
                    let _ = writer.abandon().await;
                }
                return Err(error);
            }
        }
        if let Some(changed) = &mut changed {
            changed.count_bytes(shared.cache.held(), batch.is_last);
            let surplus = shared.recent().limit_flush(changed);
            drop(surplus);
        }
        shared.gate.advance(batch.found.len());
        match batch.found.last() {
            Some(found) if !batch.is_last => {
                last.clear();
                last.extend_from_slice(found.key());
            }
            _ => break,
        }
        forebay::shard::yield_if_needed().await;
    }
    match writer {
        Some(writer) => {
            let bytes = writer.bytes();
            match writer.finish().await {
                Ok(meta) => {
                    shared.counters.flushed_bytes.fetch_add(meta.bytes, Ordering::Relaxed);
                    Ok(Some(meta))
                }
                Err(error) => {
                    shared.full.note_in_vain(Work::Flush, bytes);
                    shared.remove_table(spec.id).await;
                    Err(error)
                }
            }
        }
        None => Ok(None),
    }
}
