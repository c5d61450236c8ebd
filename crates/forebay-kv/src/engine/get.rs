//! Gets: memtables first, then tables from the newest to the oldest. A get that memory can serve completes immediately, on the
//! caller's thread and without an allocation; the rest continues as a separate future.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::Guard;
use forebay::{FilePlace, FileUse};

use super::shared::StoreCore;
use crate::error::{Error, Result};
use crate::is_broken;
use crate::manifest::version::{LEVELS, Levels};
use crate::memtable::KeyVersion;
use crate::node::UNIT;
use crate::options::FilterPolicy;
use crate::table::{Blob, FilterUse, GetHow, Hit, Lookup, OpenTables, Probe, Table, walk_all};
use crate::value::{HeldShare, Value};
use crate::view::{Moment, View};
use crate::wait::{BoxFuture, FirstStep, Stage, block_in_turn, block_on};

/// The parameters of a get.
#[derive(Clone)]
pub(crate) struct GetParams<'a> {
    pub(crate) keyspace: u32,
    pub(crate) key: &'a [u8],
    /// The moment as of which it reads; the current one if `None`.
    pub(crate) pinned: Option<Moment>,
}

/// The result of a search in memory.
enum InMemory {
    Known(Option<Value>),
    /// The candidate with this number needs reads.
    Reads(Lookup, usize),
    /// The value exists and must be read.
    Blob(Blob),
}

/// The place of a key's value.
enum Location {
    Nowhere,
    Here(Value),
    /// In a table, apart from its key.
    Blob(Blob),
}

impl StoreCore {
    /// Converts a version found in a memtable to a value. Returns `None` for a deletion and for a value that
    /// has expired at `now_s`; the clock is read only if the version expires.
    pub(crate) fn value_of(&self, found: &KeyVersion, now_s: impl FnOnce() -> u64) -> Option<Value> {
        if found.deleted || found.expires_s.is_some_and(|expires_s| expires_s <= now_s()) {
            return None;
        }
        let (bytes, keeps) = found.to_value();
        Some(Value::of_bytes(bytes, keeps, self.cache.held()))
    }

    /// Returns the second that decides which values have expired: that of the moment of a read, or the current one.
    fn second_of(&self, now_s: Option<u64>) -> u64 {
        now_s.filter(|_| !is_broken!(ExpiryOutsideView)).unwrap_or_else(|| self.now_s())
    }

    /// Returns how to look a key up in a table of this level.
    fn how(&self, levels: &Levels, level: usize, table: &Table, now_s: Option<u64>) -> GetHow {
        let is_last = (level + 1..LEVELS).all(|below| levels.level(below).is_empty());
        GetHow {
            // The clock is read only where it matters.
            now_s: if table.meta().expiring > 0 { self.second_of(now_s) } else { 0 },
            filter: if is_last && self.options.filter_policy != FilterPolicy::Always {
                FilterUse::InMemory
            } else {
                FilterUse::Read
            },
            fill: true,
        }
    }

    /// Searches memory for a key, as of record `lsn` and second `now_s`, the current one if `None`.
    fn look(&self, view: &View, lsn: u64, now_s: Option<u64>, keyspace: u32, key: &[u8]) -> Result<InMemory> {
        if view.version.is_dropped(keyspace) {
            return Err(Error::dropped_keyspace());
        }
        match view.in_memtables(keyspace, key, lsn) {
            Some(found) => Ok(InMemory::Known(self.value_of(&found, || self.second_of(now_s)))),
            None => self.look_in_tables(view, now_s, keyspace, key, 0),
        }
    }

    /// Searches memory for a key in the tables, from the candidate with the number `first` on.
    fn look_in_tables(
        &self,
        view: &View,
        now_s: Option<u64>,
        keyspace: u32,
        key: &[u8],
        first: usize,
    ) -> Result<InMemory> {
        let Some(levels) = view.version.keyspace(keyspace) else { return Ok(InMemory::Known(None)) };
        for (number, (level, table)) in levels.candidates(key).enumerate().skip(first) {
            match table.get_cached(key, self.how(levels, level, table, now_s))? {
                Probe::Done(Some(Hit::Value(value))) => return Ok(InMemory::Known(Some(value))),
                Probe::Done(Some(Hit::Blob(blob))) => return Ok(InMemory::Blob(blob)),
                Probe::Done(Some(Hit::Deleted)) => return Ok(InMemory::Known(None)),
                Probe::Done(None) => {}
                Probe::NeedsRead(lookup) => return Ok(InMemory::Reads(lookup, number)),
            }
        }
        Ok(InMemory::Known(None))
    }

    /// Completes from memory or starts to read. `may_block`: the future is polled by a thread that waits for it.
    fn begin<'a>(
        self: &'a Arc<Self>,
        wanted: GetParams<'a>,
        may_block: bool,
    ) -> Result<FirstStep<'a, Option<Value>>> {
        self.check_open()?;
        let GetParams { keyspace, key, pinned } = wanted;
        let (looked, view, now_s) = match pinned {
            Some(Moment { view, lsn, now_s }) => {
                (self.look(&view, lsn, Some(now_s), keyspace, key)?, view, Some(now_s))
            }
            None => {
                // The record number first, then the view: a newer view has all records up to that number.
                let lsn = self.visible();
                let view = self.loaded_view();
                match self.look(&view, lsn, None, keyspace, key)? {
                    InMemory::Known(answer) => return Ok(FirstStep::Done(answer)),
                    reads => (reads, Guard::into_inner(view), None),
                }
            }
        };
        Ok(match looked {
            InMemory::Known(answer) => FirstStep::Done(answer),
            looked => FirstStep::Running(Box::pin(async move {
                self.read(&view, now_s, keyspace, key, looked, may_block).await
            })),
        })
    }

    /// Returns the most bytes of blocks that one get may have in flight.
    fn get_bytes(&self) -> u64 {
        u64::from(self.options.leaf_bytes) + 2 * UNIT as u64
    }

    /// Returns the newest value of a key in tables.
    pub(crate) async fn get_in_tables(
        self: &Arc<Self>,
        view: &View,
        keyspace: u32,
        key: &[u8],
    ) -> Result<Option<Value>> {
        let looked = self.look_in_tables(view, None, keyspace, key, 0)?;
        self.read(view, None, keyspace, key, looked, false).await
    }

    /// Returns whether a key has a value.
    pub(crate) async fn contains(self: &Arc<Self>, keyspace: u32, key: &[u8]) -> Result<bool> {
        self.check_open()?;
        let lsn = self.visible();
        let view = self.view();
        let looked = self.look(&view, lsn, None, keyspace, key)?;
        let found = self.search(&view, None, keyspace, key, looked, false).await?;
        Ok(!matches!(found, Location::Nowhere))
    }

    /// Reads a value, from where the search in memory stopped.
    async fn read(
        self: &Arc<Self>,
        view: &View,
        now_s: Option<u64>,
        keyspace: u32,
        key: &[u8],
        looked: InMemory,
        may_block: bool,
    ) -> Result<Option<Value>> {
        match self.search(view, now_s, keyspace, key, looked, may_block).await? {
            Location::Nowhere => Ok(None),
            Location::Here(value) => Ok(Some(value)),
            Location::Blob(blob) => self.read_blob(blob).await.map(Some),
        }
    }

    /// Reads tables, from where the search in memory stopped, until the value is found.
    async fn search(
        self: &Arc<Self>,
        view: &View,
        now_s: Option<u64>,
        keyspace: u32,
        key: &[u8],
        mut looked: InMemory,
        may_block: bool,
    ) -> Result<Location> {
        let mut is_again = false;
        loop {
            let (lookup, candidate) = match looked {
                InMemory::Known(known) => return Ok(known.map_or(Location::Nowhere, Location::Here)),
                InMemory::Blob(blob) => return Ok(Location::Blob(blob)),
                InMemory::Reads(lookup, candidate) => (lookup, candidate),
            };
            self.check_held()?;
            self.look_for_room(1);
            let found = match lookup.table().if_open() {
                Some(file) => self.look_up(lookup, &file, key, is_again, may_block).await?,
                None => self.open_and_look_up(lookup, key, is_again).await?,
            };
            is_again = found.is_none();
            looked = self.go_on(found, view, now_s, keyspace, key, candidate)?;
        }
    }

    /// Runs a lookup in its table's open file. Returns `None` if the block was evicted or found no memory.
    async fn look_up(
        &self,
        mut lookup: Lookup,
        file: &FileUse,
        key: &[u8],
        is_again: bool,
        may_block: bool,
    ) -> Result<Option<Option<Hit>>> {
        let permit = self.budget.gets_under_way.begin(self.get_bytes()).await;
        let mut plan = may_block.then(|| self.kernel.plan(&lookup));
        let descended = plan.as_mut().and_then(|plan| self.kernel.descend(self, &mut lookup, file, plan));
        let found = match descended {
            Some(found) => Some(found),
            None => {
                // From here on the permit belongs to the read, even if the future is not polled for long.
                let table = lookup.table().clone();
                lookup.admit(permit, is_again);
                match lookup.walk(file, forebay::shard::class()).await {
                    Err(error) if self.cache.gives_way(&error) => None,
                    walked => walked?.take(&table, key)?,
                }
            }
        };
        if let Some(plan) = plan {
            self.kernel.took(plan);
        }
        Ok(found)
    }

    /// Opens the table's file and does the same. While many files are open it queues with others, as a task.
    async fn open_and_look_up(
        self: &Arc<Self>,
        lookup: Lookup,
        key: &[u8],
        is_again: bool,
    ) -> Result<Option<Option<Hit>>> {
        let (shared, key): (_, Box<[u8]>) = (self.clone(), key.into());
        let look_up = move |place: FilePlace| async move {
            let table = lookup.table().clone();
            let file = table.opened(&place).await?;
            shared.look_up(lookup, &file, &key, is_again, false).await
        };
        self.files.run(forebay::shard::class(), look_up).await?
    }

    /// Opens the files of the tables in which `lookups` read: of all of them, or of as many as may be open for one call. Returns
    /// the files, and leaves the lookups of other tables behind the others.
    async fn open_tables<T>(&self, lookups: &mut Vec<(T, Lookup)>) -> Result<(OpenTables, Vec<(T, Lookup)>)> {
        let (mut files, mut later) = (OpenTables::new(), Vec::new());
        let mut opened = 0;
        for (name, lookup) in std::mem::take(lookups) {
            let table = lookup.table().clone();
            if !files.contains_key(&table.id()) {
                let file = match table.if_open() {
                    Some(file) => file,
                    None if opened == self.files.batch_files_max() => {
                        later.push((name, lookup));
                        continue;
                    }
                    None => match table.opened(&FilePlace::NONE).await {
                        Err(error) if error.is_out_of_descriptors() && !files.is_empty() => {
                            opened = self.files.batch_files_max();
                            later.push((name, lookup));
                            continue;
                        }
                        file => file?,
                    },
                };
                opened += 1;
                files.insert(table.id(), file);
            }
            lookups.push((name, lookup));
        }
        Ok((files, later))
    }

    /// Continues the search in memory after a candidate's table was read. Without a result (`None`) the block
    /// was evicted or found no memory, and the same candidate is searched again.
    fn go_on(
        &self,
        found: Option<Option<Hit>>,
        view: &View,
        now_s: Option<u64>,
        keyspace: u32,
        key: &[u8],
        candidate: usize,
    ) -> Result<InMemory> {
        Ok(match found {
            Some(Some(Hit::Value(value))) => InMemory::Known(Some(value)),
            Some(Some(Hit::Blob(blob))) => InMemory::Blob(blob),
            Some(Some(Hit::Deleted)) => InMemory::Known(None),
            Some(None) => self.look_in_tables(view, now_s, keyspace, key, candidate + 1)?,
            None => self.look_in_tables(view, now_s, keyspace, key, candidate)?,
        })
    }

    /// Reads a long value, once memory is free for it; it counts as held by the program from then on.
    async fn read_blob(&self, blob: Blob) -> Result<Value> {
        let (bytes, class) = (blob.memory_bytes(), forebay::shard::class());
        self.look_for_room(1);
        // Before the memory for the read is reserved: from then on nothing may hold it up.
        let file = blob.opened().await?;
        let mut is_again = false;
        loop {
            let permit = self.budget.long_under_way.begin(bytes).await;
            let held = HeldShare::new(Some(self.cache.held()), bytes);
            self.check_held()?;
            match blob.read(&file, class, permit, held, is_again).await {
                Err(error) if self.cache.gives_way(&error) => {}
                read => match read? {
                    Some(value) => return Ok(value),
                    None => is_again = true,
                },
            }
        }
    }

    /// Removes as many lookups from `lookups` as may read now, and waits until at least one may. A request for all of their memory
    /// in one piece would starve behind others with small requests, or starve those.
    async fn admit_some<T>(&self, lookups: &mut Vec<(T, Lookup)>) -> Vec<(T, Lookup)> {
        let bytes = self.get_bytes();
        let mut permit = Some(self.budget.gets_under_way.begin(bytes).await);
        let mut admitted = 0;
        for (_, lookup) in lookups.iter_mut() {
            let Some(permit) = permit.take().or_else(|| self.budget.gets_under_way.try_begin(bytes)) else {
                break;
            };
            lookup.admit(permit, lookup.is_again);
            admitted += 1;
        }
        let waiting = lookups.split_off(admitted);
        std::mem::replace(lookups, waiting)
    }

    /// Returns the values of several keys from one snapshot, in the order of the keys. `may_block`: as for [`begin`](Self::begin).
    async fn get_many(
        &self,
        keyspace: u32,
        keys: &[&[u8]],
        pinned: Option<Moment>,
        may_block: bool,
    ) -> Result<Vec<Option<Value>>> {
        self.check_open()?;
        let Moment { view, lsn, now_s } = pinned.unwrap_or_else(|| self.pin());
        let now_s = Some(now_s);
        // Half of the bytes that may be in flight: a call must not evict blocks that it read before.
        let most = (self.budget.gets_under_way.reads_max() / self.get_bytes() / 2).clamp(1, AT_ONCE) as usize;
        let mut answers = vec![None; keys.len()];
        let mut fresh = keys.iter().enumerate();
        // Each with the key's index, and its candidate.
        let mut lookups: Vec<((usize, usize), Lookup)> = Vec::new();
        let mut blobs: Vec<(usize, Blob)> = Vec::new();
        loop {
            while lookups.len() < most
                && let Some((place, key)) = fresh.next()
            {
                // Any number of keys may be in memory.
                if place > 0 && place.is_multiple_of(AT_ONCE as usize) {
                    forebay::shard::yield_if_needed().await;
                }
                match self.look(&view, lsn, now_s, keyspace, key)? {
                    InMemory::Known(answer) => answers[place] = answer,
                    InMemory::Blob(blob) => blobs.push((place, blob)),
                    InMemory::Reads(lookup, candidate) => lookups.push(((place, candidate), lookup)),
                }
            }
            if lookups.is_empty() {
                break;
            }
            self.check_held()?;
            self.look_for_room(lookups.len());
            let (files, later) = self.open_tables(&mut lookups).await?;
            let (under_way, class) = (self.admit_some(&mut lookups).await, forebay::shard::class());
            lookups.extend(later);
            let key = |(place, _): &(usize, usize)| keys[*place];
            let walked = if may_block {
                self.kernel.walk_all(self, under_way, &files, class, key).await?
            } else {
                walk_all(under_way, &files, class, key).await?
            };
            drop(files);
            for ((place, candidate), found) in walked {
                let is_again = found.is_none();
                match self.go_on(found, &view, now_s, keyspace, keys[place], candidate)? {
                    InMemory::Known(answer) => answers[place] = answer,
                    InMemory::Blob(blob) => blobs.push((place, blob)),
                    InMemory::Reads(mut lookup, candidate) => {
                        lookup.is_again = is_again;
                        lookups.push(((place, candidate), lookup));
                    }
                }
            }
        }
        self.read_blobs(blobs, &mut answers).await?;
        Ok(answers)
    }

    /// Reads long values concurrently, in their order, in at most half of the memory that such reads may use: a call must not evict
    /// its own values. Values for which memory or descriptors ran out are read once more, alone.
    async fn read_blobs(&self, blobs: Vec<(usize, Blob)>, answers: &mut [Option<Value>]) -> Result<()> {
        let bytes_max = self.budget.long_under_way.reads_max() / 2;
        // Each may be in a different file.
        let reads_max = self.files.batch_files_max().min(AT_ONCE as usize);
        let mut waiting = blobs.into_iter().peekable();
        let mut reads: Vec<(usize, Blob, BoxFuture<'_, Value>)> = Vec::new();
        let (mut bytes, mut alone) = (0, Vec::new());
        poll_fn(|context| {
            let mut at = 0;
            loop {
                while reads.len() < reads_max
                    && let Some((place, blob)) = waiting
                        .next_if(|(_, blob)| reads.is_empty() || bytes + blob.memory_bytes() <= bytes_max)
                {
                    bytes += blob.memory_bytes();
                    reads.push((place, blob.clone(), Box::pin(self.read_blob(blob))));
                }
                let Some((_, _, read)) = reads.get_mut(at) else { break };
                let Poll::Ready(value) = read.as_mut().poll(context) else {
                    at += 1;
                    continue;
                };
                let (place, blob, _) = reads.remove(at);
                bytes -= blob.memory_bytes();
                match value {
                    Err(error) if error.is_crowded() => alone.push((place, blob)),
                    value => answers[place] = Some(value?),
                }
            }
            if reads.is_empty() { Poll::Ready(Ok::<(), Error>(())) } else { Poll::Pending }
        })
        .await?;
        for (place, blob) in alone {
            answers[place] = Some(self.read_blob(blob).await?);
        }
        Ok(())
    }
}

/// The future of a get.
#[must_use = "nothing is read unless this is awaited or waited for"]
pub struct Get<'a> {
    shared: &'a Arc<StoreCore>,
    stage: Stage<'a, GetParams<'a>, Option<Value>>,
    /// Whether a thread waits for it, which may block in the kernel.
    may_block: bool,
}

impl<'a> Get<'a> {
    pub(crate) fn new(shared: &'a Arc<StoreCore>, wanted: GetParams<'a>) -> Get<'a> {
        Get { shared, stage: Stage::Wanted(wanted), may_block: false }
    }

    pub(crate) fn failed(shared: &'a Arc<StoreCore>, error: Error) -> Get<'a> {
        Get { shared, stage: Stage::Failed(error), may_block: false }
    }

    /// Blocks the calling thread until the get completes.
    ///
    /// # Errors
    /// Those of the operation; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread
    /// and [`ErrorKind::WaitInWorld`](crate::ErrorKind::WaitInWorld) in a simulated world: use `.await`
    /// there.
    pub fn wait(mut self) -> Result<Option<Value>> {
        self.may_block = true;
        block_in_turn(&self.shared.engine, self)
    }
}

impl Future for Get<'_> {
    type Output = Result<Option<Value>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (shared, may_block) = (self.shared, self.may_block);
        self.stage.poll(context, |wanted| shared.begin(wanted, may_block))
    }
}

forebay::_debug_parts!(Get<'_>);

/// Maximum number of gets in flight in a [`MultiGet`].
const AT_ONCE: u64 = 128;

/// The future of gets of several keys as of one moment.
#[must_use = "nothing is read unless this is awaited or waited for"]
pub struct MultiGet<'a> {
    shared: &'a Arc<StoreCore>,
    stage: Stage<'a, ManyParams<'a>, Vec<Option<Value>>>,
    /// Whether a thread waits for it, which may block in the kernel.
    may_block: bool,
}

struct ManyParams<'a> {
    keyspace: u32,
    keys: Vec<&'a [u8]>,
    pinned: Option<Moment>,
}

impl<'a> MultiGet<'a> {
    pub(crate) fn new(
        shared: &'a Arc<StoreCore>,
        keyspace: u32,
        keys: Vec<&'a [u8]>,
        pinned: Option<Moment>,
    ) -> MultiGet<'a> {
        MultiGet { shared, stage: Stage::Wanted(ManyParams { keyspace, keys, pinned }), may_block: false }
    }

    pub(crate) fn failed(shared: &'a Arc<StoreCore>, error: Error) -> MultiGet<'a> {
        MultiGet { shared, stage: Stage::Failed(error), may_block: false }
    }

    /// Blocks the calling thread until all gets complete.
    ///
    /// # Errors
    /// As [`Get::wait`].
    pub fn wait(mut self) -> Result<Vec<Option<Value>>> {
        self.may_block = true;
        block_on(&self.shared.engine, self)
    }
}

impl Future for MultiGet<'_> {
    type Output = Result<Vec<Option<Value>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (shared, may_block) = (self.shared, self.may_block);
        self.stage.poll(context, |ManyParams { keyspace, keys, pinned }| {
            Ok(FirstStep::Running(Box::pin(async move {
                shared.get_many(keyspace, &keys, pinned, may_block).await
            })))
        })
    }
}

forebay::_debug_parts!(MultiGet<'_>);
