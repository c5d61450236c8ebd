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
use crate::store::Handle;
use crate::store::flush;
use crate::store::shared::Shared;
use crate::table::{Entry, Table, TableMeta};
use crate::value::Held;

/// The most memory of one load.
const MEMORY_MAX: u64 = 2 << 20;

/// Sorted entries on their way into a keyspace; see [`Keyspace::loader`](crate::Keyspace::loader).
///
/// They are written to tables at once, past the log and past memory, and nobody sees any until
/// [`finish`](BulkLoad::finish), which shows all in one step. Dropping it before that changes nothing. It
/// takes up to 2 MiB of memory, or half of what the program may hold, and counts as held by the program.
pub struct BulkLoad {
    handle: Arc<Handle>,
    keyspace: u32,
    output: Output,
    last: Vec<u8>,
    entries: u64,
    failed: Option<Error>,
    _held: Held,
}

impl BulkLoad {
    pub(crate) fn new(handle: &Arc<Handle>, keyspace: u32) -> BulkLoad {
        let shared = &handle.shared;
        let memory = (shared.budget.held / 2).min(MEMORY_MAX);
        let held = Held::new(Some(shared.cache.held()), memory);
        BulkLoad {
            handle: handle.clone(),
            keyspace,
            output: Output::new(shared, keyspace, shared.options.background, memory),
            last: Vec::new(),
            entries: 0,
            failed: shared.check_held().err(),
            _held: held,
        }
    }

    /// Adds an entry, whose key is above all that were added before. Waits only for the device.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a key that is not above the last one and for the empty one;
    /// [`ErrorKind::KeyTooLong`], [`ErrorKind::TooLarge`], [`ErrorKind::MemoryBudget`],
    /// [`ErrorKind::NoSpace`], [`ErrorKind::Closed`], [`ErrorKind::ReadOnly`]; the system's. After an error, or when this future was
    /// dropped unfinished, every further call answers an error, and nothing of the load will be in the store.
    pub fn add(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("load", async move { self.put(key.as_ref(), value.as_ref(), None).await })
    }

    /// As [`add`](BulkLoad::add), with a value that is as good as deleted from a second since 1970 on.
    ///
    /// # Errors
    /// As [`add`](BulkLoad::add).
    pub fn add_until(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expires_s: u64,
    ) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("load", async move { self.put(key.as_ref(), value.as_ref(), Some(expires_s)).await })
    }

    /// Entries that were added.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    async fn put(&mut self, key: &[u8], value: &[u8], expires_s: Option<u64>) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let dropped = "an entry of this load was not added to its end, so it cannot go on";
        self.failed = Some(Error::new(ErrorKind::InvalidInput, dropped));
        let added = self.try_put(key, value, expires_s).await;
        self.failed = added.clone().err();
        added
    }

    async fn try_put(&mut self, key: &[u8], value: &[u8], expires_s: Option<u64>) -> Result<()> {
        self.handle.shared.check_writable()?;
        self.handle.shared.full.check_growth()?;
        record::check(key, &Change::Put { value, expires_s })?;
        // Compaction has to have memory for it.
        let limit = self.handle.shared.budget.value;
        if value.len() > limit {
            let text =
                format!("a value of {} bytes; with this memory values have {limit} at most", value.len());
            return Err(Error::new(ErrorKind::TooLarge { limit }, text));
        }
        if key <= &self.last[..] {
            let text = format!(
                "entry {} of the load has a key that is not above the one before it: {:?} after {:?}",
                self.entries,
                String::from_utf8_lossy(&key[..key.len().min(64)]),
                String::from_utf8_lossy(&self.last[..self.last.len().min(64)]),
            );
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        self.output.add(key, Entry::Value { bytes: value, expires_s }).await?;
        self.last.clear();
        self.last.extend_from_slice(key);
        self.entries += 1;
        forebay::shard::yield_if_needed().await;
        Ok(())
    }

    /// Shows everything that was added, in one step; durable when it answers. What was written before this is
    /// called is older than the load, also where it has the same keys; what is written while it is under way
    /// may be either. It goes on when its future is dropped.
    ///
    /// The tables go to the lowest level where they hide nothing that is newer. Where they overlap what was
    /// written lately that is compacted first.
    ///
    /// # Errors
    /// As [`add`](BulkLoad::add); nothing of the load is in the store then, but after
    /// [`ErrorKind::ReadOnly`] all or nothing of it once the store is opened again.
    pub fn finish(self) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("load", self.commit())
    }

    async fn commit(self) -> Result<()> {
        let BulkLoad { handle, keyspace, mut output, failed, _held, .. } = self;
        if let Some(error) = failed {
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

/// Gives the tables their places, in one edit.
async fn commit(shared: &Arc<Shared>, keyspace: u32, output: &mut Output) -> Result<()> {
    let metas = output.finish().await?.to_vec();
    if metas.is_empty() {
        return shared.check_writable();
    }
    shared.full.check_growth()?;
    // The levels below the first do not change but by this.
    let _turn = shared.compaction.turn.take().await;
    // What is in the way goes down first, so that little of it is left when flushes are held up.
    for meta in &metas {
        place(shared, keyspace, meta).await?;
    }
    let mut tables: Vec<Arc<Table>> = Vec::with_capacity(metas.len());
    for meta in &metas {
        let level =
            with_levels(shared, keyspace, |levels| pick::place(levels, &meta.smallest, &meta.largest));
        let is_last = level.is_none_or(|level| level + 1 == LEVELS);
        tables.push(flush::open(shared, meta, !is_last).await?);
    }
    // What was written so far is older than the load: it comes to lie below. What is written from now on is
    // newer, and must not come into tables before.
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
    // Whether it comes to be or not, the manifest may name them.
    drop(output.keep());
    shared.edit(&edit, &added, |commit| commit.loads += 1).await?;
    let bytes: u64 = metas.iter().map(|meta| meta.bytes).sum();
    shared.counters.loaded.fetch_add(bytes, Ordering::Relaxed);
    Ok(())
}

fn with_levels<T>(shared: &Shared, keyspace: u32, look: impl FnOnce(&Levels) -> Option<T>) -> Option<T> {
    shared.with_view(|view| view.version.keyspace(keyspace).and_then(|levels| look(levels)))
}

/// The lowest level where a table can go, in compaction's turn; compacts what is in the way.
async fn place(shared: &Arc<Shared>, keyspace: u32, meta: &TableMeta) -> Result<usize> {
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
        f.debug_struct("BulkLoad").field("entries", &self.entries).finish_non_exhaustive()
    }
}
