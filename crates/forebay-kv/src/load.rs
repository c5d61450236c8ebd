//! [`BulkLoad`]: sorted entries that go straight into tables.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay::Waitable;

use crate::compact::{self, Output, pick};
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::Edit;
use crate::manifest::version::{LEVELS, Levels};
use crate::merge::Bounds;
use crate::record::{self, Change};
use crate::sorted_file::OrderCheck;
use crate::store::Handle;
use crate::store::flush;
use crate::store::shared::StoreCore;
use crate::table::{Entry, Table, TableMeta};
use crate::value::HeldShare;

/// Maximum memory of one load, in bytes.
const MEMORY_MAX: u64 = 2 << 20;

/// Sorted entries on their way into a keyspace; see [`Keyspace::loader`](crate::Keyspace::loader).
///
/// The entries are written to tables at once, past the log and past memory. No reader sees any of them until
/// [`finish`](BulkLoad::finish) shows all in one step. Dropping the load before that changes nothing. A load
/// takes up to 2 MiB of memory, or half of the memory that the program may hold if that is less; it counts as
/// held by the program.
pub struct BulkLoad {
    handle: Arc<Handle>,
    keyspace: u32,
    output: Output,
    order: OrderCheck,
    _held: HeldShare,
}

impl BulkLoad {
    pub(crate) fn new(handle: &Arc<Handle>, keyspace: u32) -> BulkLoad {
        let shared = &handle.shared;
        let memory = (shared.budget.held / 2).min(MEMORY_MAX);
        let held = HeldShare::new(Some(shared.cache.held()), memory);
        let mut order = OrderCheck::default();
        order.fail(shared.check_held().err());
        BulkLoad {
            handle: handle.clone(),
            keyspace,
            output: Output::new(shared, keyspace, shared.options.background, memory),
            order,
            _held: held,
        }
    }

    /// Adds an entry, whose key is above all keys added before. Waits only for the device.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for the empty key and for a key that is not above the last one;
    /// [`ErrorKind::KeyTooLong`], [`ErrorKind::TooLarge`], [`ErrorKind::MemoryBudget`],
    /// [`ErrorKind::NoSpace`], [`ErrorKind::Closed`], [`ErrorKind::ReadOnly`]; the system's. After an error,
    /// or if this future was dropped unfinished, every further call fails and nothing of the load will be in
    /// the store.
    pub fn add(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("load", async move { self.put(key.as_ref(), value.as_ref(), None).await })
    }

    /// Adds an entry as [`add`](BulkLoad::add) does; from the second `expires_s` since 1970 on it counts as
    /// deleted.
    ///
    /// # Errors
    /// Those of [`add`](BulkLoad::add).
    pub fn add_until(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expires_s: u64,
    ) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("load", async move { self.put(key.as_ref(), value.as_ref(), Some(expires_s)).await })
    }

    /// Returns the number of entries added so far.
    pub fn entries(&self) -> u64 {
        self.order.entries()
    }

    async fn put(&mut self, key: &[u8], value: &[u8], expires_s: Option<u64>) -> Result<()> {
        let (shared, output) = (&self.handle.shared, &mut self.output);
        let add = async {
            shared.check_writable()?;
            shared.full.check_growth()?;
            record::check(key, &Change::Put { value, expires_s })?;
            // Compaction needs the memory to rewrite the value.
            let limit = shared.budget.value;
            if value.len() > limit {
                let text =
                    format!("a value of {} bytes; with this memory values have {limit} at most", value.len());
                return Err(Error::new(ErrorKind::TooLarge { limit }, text));
            }
            output.add(key, Entry::Value { bytes: value, expires_s }).await
        };
        self.order.add("load", key, add).await
    }

    /// Makes all added entries visible in one step; durable when it returns. Entries written before this call
    /// are older than the load, also where they have the same keys. Entries written while it is in progress
    /// may be older or newer. Continues if its future is dropped.
    ///
    /// Each table goes to the lowest level where it hides nothing newer. Where the load overlaps recently
    /// written entries, those are compacted first.
    ///
    /// # Errors
    /// Those of [`add`](BulkLoad::add); then nothing of the load is in the store. After
    /// [`ErrorKind::ReadOnly`] the store has all or nothing of it once it is opened again.
    pub fn finish(self) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("load", self.commit())
    }

    async fn commit(self) -> Result<()> {
        let BulkLoad { handle, keyspace, mut output, order, _held } = self;
        if let Err(error) = order.check() {
            output.abandon().await;
            return Err(error);
        }
        if let Err(error) = output.finish().await {
            output.abandon().await;
            return Err(error);
        }
        let shared = &handle.shared;
        let (owned, task) = (shared.clone(), shared.begin_task());
        let (shard, class) = (shared.options.shard, shared.options.class);
        let committing = shared.engine.spawn_on_shard(shard, class, move || async move {
            let (_task, _held) = (task, _held);
            match commit(&owned, keyspace, &mut output).await {
                Ok(()) => Ok(()),
                Err(error) => {
                    output.abandon().await;
                    Err(error)
                }
            }
        });
        committing.await?
    }
}

/// Assigns the tables to their levels, in one edit.
async fn commit(shared: &Arc<StoreCore>, keyspace: u32, output: &mut Output) -> Result<()> {
    let metas = output.finish().await?.to_vec();
    if metas.is_empty() {
        return shared.check_writable();
    }
    shared.full.check_growth()?;
    // Only the holder of this turn changes the levels below the first.
    let _turn = shared.compaction.turn.take().await;
    // Compact overlapping tables first, so that little of this work is left when flushes are held up.
    for meta in &metas {
        place(shared, keyspace, meta).await?;
    }
    let mut tables: Vec<Arc<Table>> = Vec::with_capacity(metas.len());
    for meta in &metas {
        let level =
            with_levels(shared, keyspace, |levels| pick::place(levels, &meta.smallest, &meta.largest));
        tables.push(flush::open(shared, meta, [], level.unwrap_or(LEVELS - 1)).await?);
    }
    // Entries written so far are older than the load: they end up below it. Entries written from now on are
    // newer, and must not reach tables before the load does.
    let _hold = flush::hold(shared).await?;
    let mut added = Vec::with_capacity(tables.len());
    for (meta, table) in metas.iter().zip(tables) {
        let level = place(shared, keyspace, meta).await?;
        added.push((level as u8, table));
    }
    let edit = Edit {
        next_table: metas.iter().map(|meta| meta.id + 1).max().unwrap_or(0),
        added: added.iter().map(|(level, table)| (*level, table.meta().clone())).collect(),
        ..Edit::default()
    };
    shared.check_writable()?;
    shared.full.check_growth()?;
    // The manifest may name the files even if the edit fails, so they are kept.
    drop(output.keep());
    shared.edit(&edit, &added, |commit| commit.loads += 1).await?;
    let bytes: u64 = metas.iter().map(|meta| meta.bytes).sum();
    shared.counters.loaded.fetch_add(bytes, Ordering::Relaxed);
    Ok(())
}

fn with_levels<T>(shared: &StoreCore, keyspace: u32, look: impl FnOnce(&Levels) -> Option<T>) -> Option<T> {
    shared.with_view(|view| view.version.keyspace(keyspace).and_then(|levels| look(levels)))
}

/// Returns the lowest level where a table can go; the caller holds compaction's turn. Compacts the tables
/// that are in the way.
async fn place(shared: &Arc<StoreCore>, keyspace: u32, meta: &TableMeta) -> Result<usize> {
    use std::ops::Bound::Included;
    let bounds = Bounds { low: Included(meta.smallest.to_vec()), high: Included(meta.largest.to_vec()) };
    loop {
        let level =
            with_levels(shared, keyspace, |levels| pick::place(levels, &meta.smallest, &meta.largest));
        if let Some(level) = level {
            return Ok(level);
        }
        if !compact::clear(shared, keyspace, &bounds).await? {
            return Err(Error::new(ErrorKind::NotFound, "the keyspace to be loaded does not exist"));
        }
    }
}

impl fmt::Debug for BulkLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkLoad").field("entries", &self.entries()).finish_non_exhaustive()
    }
}
