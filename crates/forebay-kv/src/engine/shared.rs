//! The state that all handles of a store and its tasks share.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, Guard};
use forebay::shard::JoinHandle;
use forebay::{Class, Dir, Engine, FileCache};
use forebay_wal::Wal;

use super::compact::{Compaction, pick};
use super::feeds::Feeds;
use super::gate::Gate;
use super::insertion::Insertion;
use super::kernel::KernelWalks;
use super::range_lock::LockedRanges;
use super::recent_changes::{RecentChanges, Surplus};
use super::space::Space;
use super::stats::Counters;
use super::turns::Turns;
use super::write_stall::{WriteStall, crowd};
use crate::async_mutex::AsyncMutex;
use crate::budget::Budget;
use crate::cache::{Cache, Pin, PinPurpose};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::is_broken;
use crate::manifest::version::{LEVELS, Version, pin_keyspace};
use crate::manifest::{Edit, Manifest, edit};
use crate::memtable::Memtables;
use crate::merge::Bounds;
use crate::names::table_name;
use crate::node::codec::Codec;
use crate::options::{Compression, Options};
use crate::table::{Table, TableFile, TableSpec};
use crate::view::{Moment, View};

/// The step in which the cache lends memory.
const LOAN_BYTES: u64 = 1 << 20;

/// The shared state of an open store.
pub(crate) struct StoreCore {
    pub(crate) engine: Engine,
    /// The path by which the store was opened, for messages: the directory may have been moved since.
    pub(crate) dir: PathBuf,
    /// The directory, wherever it is now.
    pub(crate) home: Dir,
    /// The directory of the tables, wherever it is now.
    pub(crate) tables: Dir,
    /// The tables' files, of which those stay open that were read last.
    pub(crate) files: FileCache,
    pub(crate) options: Options,
    pub(crate) budget: Budget,
    pub(crate) cache: Arc<Cache>,
    pub(crate) wal: Wal,
    pub(crate) manifest: Manifest,
    /// The lock of the commit section. Held at most for the copy of a record to the log's queue, or for the
    /// insertion of a few ([`lock_inserted`](StoreCore::lock_inserted)); never across an await.
    commit: Mutex<Commit>,
    /// The view that reads use; changed in the commit section only.
    view: ArcSwap<View>,
    /// The newest record that reads see although it may not be durable.
    pub(super) shown: AtomicU64,
    /// Open feeds of changes, which keep a part of the log.
    pub(crate) feeds: Feeds,
    /// Committed records on their way into memtables.
    pub(super) insertion: Insertion,
    next_table: AtomicU32,
    failed: Mutex<Option<Error>>,
    is_failed: AtomicBool,
    closing: AtomicBool,
    ended: AtomicBool,
    /// Whether its task ended with everything written.
    in_order: AtomicBool,
    /// Background tasks that have to end before the logs are closed.
    tasks: AtomicUsize,
    /// The newest record in the log's queue at the last look for memory to lend the cache.
    pub(super) seen: AtomicU64,
    /// Memory that the cache lends to the program.
    lent: Mutex<Vec<Pin>>,
    lent_bytes: AtomicU64,
    pub(super) keyspace_turn: AsyncMutex,
    pub(crate) write_stall: WriteStall,
    /// The line in which writers wait for memory.
    pub(crate) gate: Gate,
    pub(crate) compaction: Compaction,
    /// Whether the disk is full, and the reserve.
    pub(crate) full: Space,
    /// Memtables with records newer than this are not flushed for now; never in a store that is only read.
    pub(crate) flush_limit: AtomicU64,
    pub(crate) counters: Counters,
    /// State of the descents inside the kernel.
    pub(crate) kernel: KernelWalks,
    /// Whether the active memtable has changes that are not weighed yet.
    pub(super) has_changes: AtomicBool,
    /// Notified when memtables need a flush or changes need weighing, or the store closes.
    pub(crate) work: Event,
    /// Notified when a flush has ended, or the store failed.
    pub(crate) space: Event,
    /// Notified when the tables changed, or the store closes: compaction checks whether it has work.
    pub(crate) changed: Event,
    pub(crate) end: Event,
    /// Notified when the lock of ranges is released, or the store failed or closes.
    pub(super) unlocked: Event,
    /// The lines of transactions that conflicted.
    pub(crate) turns: Turns,
    /// Changes that open transactions compare and that are not in memtables. Transactions start and compare, and changes are added,
    /// inside the commit section; transactions end, and changes are forgotten, outside.
    recent: Mutex<RecentChanges>,
}

/// State that only the commit section reads and writes.
pub(crate) struct Commit {
    pub(crate) active: Arc<Memtables>,
    /// Oldest first; each holds the records before those of the next.
    pub(crate) sealed: VecDeque<Arc<Memtables>>,
    pub(crate) version: Arc<Version>,
    /// The newest record in the log's queue.
    pub(crate) last: u64,
    /// The newest one in which the log has entries, of those since the store was opened.
    pub(crate) last_logged: u64,
    /// The newest record that is in tables.
    pub(crate) flushed: u64,
    /// Bulk loads, ingests and removals so far, which change tables past the log.
    pub(crate) loads: u64,
    /// Keys that no record may change for now.
    pub(super) locked: Option<Arc<LockedRanges>>,
}

impl Commit {
    /// Returns the memtables that are not in tables yet, the newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<Memtables>> {
        std::iter::once(&self.active).chain(self.sealed.iter().rev())
    }

    /// Ends the lock of ranges; writers that wait for it are notified when its guard is dropped.
    pub(crate) fn unlock_ranges(&mut self) {
        self.locked = None;
    }

    pub(super) fn sealed_bytes(&self) -> u64 {
        self.sealed.iter().map(|memtables| memtables.bytes()).sum()
    }

    pub(super) fn sealed_used(&self) -> u64 {
        self.sealed.iter().map(|memtables| memtables.used()).sum()
    }

    /// Returns the bytes that the flushes of all memtables need on disk, about: each has a table for each of its keyspaces, and half
    /// as much again is for those of the next deletions. The edit of the manifest names the first and last keys of all tables, and so
    /// does the edit for the next deletions.
    pub(super) fn unflushed_bytes(&self) -> u64 {
        let bytes = |memtables: &Arc<Memtables>| {
            let keyspaces = memtables.keyspace_count();
            let edit = edit::added_bytes(keyspaces, memtables.longest_keys_bytes());
            memtables.used() + short_tables_bytes(keyspaces) / 2 * 3 + 2 * edit
        };
        self.memtables().map(bytes).sum()
    }

    fn view(&self) -> Arc<View> {
        let newest = self.active.last_lsn();
        let lsns = self.sealed.iter().map(|memtables| memtables.last_lsn());
        debug_assert!(
            lsns.chain((newest > 0).then_some(newest)).is_sorted(),
            "memtables are in the order of their records"
        );
        Arc::new(View {
            active: self.active.clone(),
            sealed: self.sealed.iter().rev().cloned().collect(),
            version: self.version.clone(),
        })
    }
}

/// Returns the least bytes of the tables of this many keyspaces in a memtable, but one.
pub(super) fn short_tables_bytes(keyspaces: u64) -> u64 {
    keyspaces.saturating_sub(1) * pick::SHORT_BYTES
}

/// The parts of a store that an open has gathered.
pub(crate) struct Parts {
    pub(crate) engine: Engine,
    pub(crate) dir: PathBuf,
    pub(crate) home: Dir,
    pub(crate) tables: Dir,
    pub(crate) files: FileCache,
    pub(crate) options: Options,
    pub(crate) budget: Budget,
    pub(crate) cache: Arc<Cache>,
    pub(crate) wal: Wal,
    pub(crate) manifest: Manifest,
    pub(crate) version: Version,
}

impl StoreCore {
    pub(crate) fn new(parts: Parts) -> StoreCore {
        let Parts { engine, dir, home, tables, files, options, budget, cache, wal, manifest, version } =
            parts;
        let (next_table, log_start) = manifest.with(|state| (state.next_table, state.log_start));
        let flushed = log_start.saturating_sub(1);
        // A store that is only read gets no writes from the start.
        let (is_reader, failed) = (options.read_only, options.read_only.then(Error::opened_read_only));
        let (insertion, write_stall) = (Insertion::default(), WriteStall::new(&budget));
        insertion.note(flushed);
        let commit = Commit {
            active: Arc::new(Memtables::new(&engine, budget.snapshots().clone())),
            sealed: VecDeque::new(),
            version: Arc::new(version),
            last: flushed,
            last_logged: 0,
            flushed,
            loads: 0,
            locked: None,
        };
        let recent = RecentChanges::new(flushed, cache.held().clone(), budget.recent_changes_max());
        StoreCore {
            kernel: KernelWalks::new(&options, budget.cache),
            engine,
            dir,
            home,
            tables,
            files,
            options,
            budget,
            cache,
            wal,
            manifest,
            view: ArcSwap::new(commit.view()),
            shown: AtomicU64::new(0),
            feeds: Feeds::default(),
            insertion,
            commit: Mutex::new(commit),
            next_table: AtomicU32::new(next_table.max(1)),
            failed: Mutex::new(failed),
            is_failed: AtomicBool::new(is_reader),
            closing: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            in_order: AtomicBool::new(false),
            tasks: AtomicUsize::new(0),
            seen: AtomicU64::new(0),
            lent: Mutex::default(),
            lent_bytes: AtomicU64::new(0),
            keyspace_turn: AsyncMutex::default(),
            write_stall,
            gate: Gate::default(),
            compaction: Compaction::default(),
            full: Space::default(),
            flush_limit: AtomicU64::new(if is_reader { 0 } else { u64::MAX }),
            counters: Counters::default(),
            has_changes: AtomicBool::new(false),
            work: Event::default(),
            space: Event::default(),
            changed: Event::default(),
            end: Event::default(),
            unlocked: Event::default(),
            turns: Turns::default(),
            recent: Mutex::new(recent),
        }
    }

    /// Closes a feed whose next record was `lsn`; the log removes the records kept for it alone.
    pub(crate) fn leave_feed(&self, lsn: u64) {
        if self.feeds.leave(lsn) {
            self.work.notify();
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Commit> {
        self.commit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn recent(&self) -> MutexGuard<'_, RecentChanges> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a load, an ingest or a removal, which has touched these ranges of keys; called inside the commit section.
    pub(super) fn touch(&self, commit: &mut Commit, ranges: impl IntoIterator<Item = (u32, Bounds)>) {
        commit.loads += 1;
        let mut recent = self.recent();
        for (keyspace, bounds) in ranges {
            // Dropped here: loads are rare.
            drop(recent.add_range(keyspace, commit.loads, bounds));
        }
    }

    /// Publishes the state of the commit section to readers; called inside the section.
    pub(super) fn show(&self, commit: &Commit) {
        self.view.store(commit.view());
    }

    /// Returns the current view, for reads that are not pinned to a moment.
    pub(crate) fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// As [`view`](Self::view), without a reference count as long as the view is not kept.
    pub(super) fn loaded_view(&self) -> Guard<Arc<View>> {
        self.view.load()
    }

    /// As [`view`](Self::view), without a reference count.
    pub(crate) fn with_view<T>(&self, look: impl FnOnce(&View) -> T) -> T {
        look(&self.view.load())
    }

    /// Returns the newest record that reads may see: durable or shown early, with all its entries in memory.
    pub(crate) fn visible(&self) -> u64 {
        let inserted = self.inserted();
        if is_broken!(VisibleBeforeDurable) {
            return inserted;
        }
        inserted.min(self.wal.durable_lsn().0.max(self.shown.load(Ordering::Acquire)))
    }

    /// Returns the newest record whose entries are in memtables, durable or not.
    pub(crate) fn inserted(&self) -> u64 {
        self.insertion.inserted()
    }

    /// Returns the current moment: the view is complete up to the newest visible record.
    pub(crate) fn pin(&self) -> Moment {
        let (view, lsn) = {
            // Nothing is sealed or replaced meanwhile, so the view has every visible record.
            let _commit = self.lock();
            (self.view(), self.visible())
        };
        // After the view: values that a compaction has dropped from it have expired by this second, too.
        Moment { view, lsn, now_s: self.now_s() }
    }

    /// Returns the bytes that the program holds: values, and memtables that only snapshots need.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.cache.held().get() + self.budget.snapshots().load(Ordering::Relaxed)
    }

    /// Returns an error when the program holds all the memory that it may. Beyond its share it may borrow
    /// memory that the cache can spare; the cache shrinks by as much.
    pub(crate) fn check_held(&self) -> Result<()> {
        while !self.is_held_lent() {
            // Long values not yet collected by their futures are evicted; the futures read them again. Then open transactions lose
            // the oldest changes that they may have to compare.
            if !self.budget.long_under_way.evict() && !self.recent().forget(&mut Surplus::default()) {
                return Err(self.budget.exhausted(self.held_bytes()));
            }
        }
        Ok(())
    }

    /// Returns whether the cache lends the program memory beyond its share.
    fn is_held_lent(&self) -> bool {
        self.cache.held().note_others(self.budget.snapshots().load(Ordering::Relaxed));
        let over = self.held_bytes().saturating_sub(self.budget.held);
        if over == 0 && self.lent_bytes.load(Ordering::Relaxed) == 0 {
            return true;
        }
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = over.div_ceil(LOAN_BYTES) as usize;
        lent.truncate(wanted);
        while lent.len() < wanted
            && let Some(pin) = self.cache.pin(PinPurpose::Lent, LOAN_BYTES)
        {
            lent.push(pin);
        }
        self.lent_bytes.store(lent.len() as u64 * LOAN_BYTES, Ordering::Relaxed);
        lent.len() >= wanted
    }

    /// Returns the shard of flushes and compaction: another than the log's, if possible. On the log's shard, their work between two
    /// waits would delay every group of the log.
    pub(crate) fn background_shard(&self) -> usize {
        (self.options.shard + 1) % self.engine.shard_count().max(1)
    }

    /// Returns the shards that a large compaction is divided among: all but the log's, the usual one first.
    pub(crate) fn compaction_shards(&self) -> impl Iterator<Item = usize> {
        let (first, count) = (self.background_shard(), self.engine.shard_count().max(1));
        let others = (first + 1..first + count).map(move |shard| shard % count);
        std::iter::once(first).chain(others.filter(|shard| *shard != self.options.shard))
    }

    /// Returns the path of a table's file when the store was opened, for messages and as its name among the
    /// removals.
    pub(crate) fn table_path(&self, id: u32) -> PathBuf {
        self.tables.path().join(table_name(id))
    }

    /// Removes a table's file, which nothing names. A file that cannot be removed now is removed when the
    /// store is opened.
    pub(crate) async fn remove_table(&self, id: u32) {
        let _ = self.tables.remove_file(table_name(id)).await;
    }

    /// Returns the compression of tables that are written for a level.
    pub(crate) fn compression(&self, level: usize) -> Compression {
        let upper = self.options.upper_compression.filter(|_| level < LEVELS - 1);
        upper.or(self.options.compression).unwrap_or_default()
    }

    /// Returns the parameters for writing tables of a keyspace for a level, without a number.
    pub(crate) fn table_spec(&self, keyspace: u32, level: usize, class: Class) -> TableSpec {
        TableSpec {
            leaf_bytes: self.options.leaf_bytes,
            compression: self.compression(level),
            packed_value_max: self.budget.packed_value_max(),
            separation_bytes: self.options.separation_bytes,
            class,
            shard: Some(self.background_shard()),
            cache: Some(self.cache.clone()),
            written_bytes: self.counters.written.clone(),
            ..TableSpec::new(0, keyspace)
        }
    }

    /// Returns the number for a table that is about to be written; never the same one twice.
    pub(crate) fn next_table(&self) -> u32 {
        self.next_table.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes the names of the `count` tables that were just written durable, with one sync of their directory.
    pub(super) async fn sync_tables(&self, count: usize) -> Result<()> {
        if count == 0 || is_broken!(TablesNotNamed) {
            return Ok(());
        }
        self.tables.sync().await.map_err(Error::from)
    }

    /// Reserves this number and all below: no table gets one of them.
    pub(super) fn reserve_table(&self, id: u32) {
        self.next_table.fetch_max(id.saturating_add(1), Ordering::Relaxed);
    }

    /// Returns the seconds since 1970, from the store's clock.
    pub(crate) fn now_s(&self) -> u64 {
        (self.options.clock)()
    }

    /// Returns the inputs of picking a compaction other than the tables.
    pub(crate) fn pick_how(&self) -> pick::How<'_> {
        pick::How {
            budget: &self.budget,
            now_s: self.now_s(),
            is_full: self.full.is_full(),
            is_tight: self.compaction.is_tight(),
            level0_full: self.options.level0_full.unwrap_or(pick::LEVEL0_FULL),
            codec: Codec::of(self.compression(LEVELS - 1)),
            separation_bytes: self.options.separation_bytes,
            spare_bytes: self.full.spare_bytes(),
        }
    }

    /// Handles an error after which something may have changed on disk: makes the store read-only, unless it
    /// was closed.
    pub(crate) fn unless_closed(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::Closed { error } else { self.fail(&error) }
    }

    /// Makes a change of the tables durable, publishes it to readers, and retires the tables that it removes; their files are
    /// removed after their last reader. `added` are the opened tables that the edit adds. `also` may change the commit section in
    /// the same step. After an error the store is read-only.
    pub(crate) async fn edit(
        &self,
        edit: &Edit,
        added: &[(u8, Arc<Table>)],
        also: impl FnOnce(&mut Commit),
    ) -> Result<()> {
        let edit = &Edit { log_end: Some(self.wal.durable_end()), ..edit.clone() };
        // Of thousands of keyspaces the edit changes a few.
        let losing = self.manifest.with(|state| state.keyspaces_of(&edit.removed));
        self.manifest.apply(edit).await.map_err(|error| self.unless_closed(error))?;
        self.look_at_logs();
        let mut retired: Vec<Arc<TableFile>> = Vec::new();
        // Not in the commit section: blocks may leave the cache for it.
        let known: Vec<Pin> =
            edit.keyspaces.iter().map(|(_, name)| pin_keyspace(&self.cache, name)).collect();
        // A table that only changes its level stays.
        let stays: BTreeSet<u32> = edit.added.iter().map(|(_, meta)| meta.id).collect();
        let leaves: BTreeSet<u32> = edit.removed.iter().copied().filter(|id| !stays.contains(id)).collect();
        {
            let mut commit = self.lock();
            let losing_levels = losing.iter().filter_map(|id| commit.version.keyspace(*id));
            let tables = losing_levels.flat_map(|levels| levels.tables());
            let is_removed = |table: &&Arc<Table>| leaves.contains(&table.id());
            let removed: Vec<_> = tables.map(|(_, table)| table).filter(is_removed).cloned().collect();
            let mut next = commit.version.edited(&edit.removed, &losing, added);
            for ((id, name), known) in edit.keyspaces.iter().zip(known) {
                next.add_keyspace(*id, name, edit.unlogged.contains(id), known);
            }
            if !edit.dropped.is_empty() {
                next = next.without_keyspaces(&edit.dropped);
            }
            for table in &removed {
                let files = std::iter::once(table.own_file()).chain(table.far_files());
                // Other tables may have values in them.
                let is_over = |file: &&Arc<TableFile>| !next.has_values_in(table.meta().keyspace, file.id());
                retired.extend(files.filter(is_over).cloned());
            }
            commit.version = Arc::new(next);
            let flushed = commit.flushed;
            also(&mut commit);
            debug_assert!(flushed <= commit.flushed, "what was flushed stays flushed");
            self.show(&commit);
            self.compaction.note_edit();
        }
        retired.iter().for_each(|file| file.retire());
        self.pace();
        self.changed.notify();
        Ok(())
    }

    /// Updates how much writers are slowed.
    pub(super) fn pace(&self) {
        let how = self.pick_how();
        let look = |view: &View| {
            let (most, all) = pick::level0_tables(&view.version, &how);
            (most.max(crowd(all, &self.budget)), pick::pending_bytes(&view.version, &how))
        };
        let (level0, pending) = self.with_view(look);
        self.write_stall.set_pending_bytes(pending);
        self.write_stall.set_level0(level0);
    }
}

impl StoreCore {
    /// Makes the store read-only with its first failure, and returns that failure.
    pub(crate) fn fail(&self, error: &Error) -> Error {
        let first = {
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.get_or_insert_with(|| error.read_only()).clone()
        };
        self.is_failed.store(true, Ordering::Release);
        self.notify_all();
        first
    }

    /// Returns an error unless the store accepts writes.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_failed.load(Ordering::Acquire)
            && let Some(error) = &*self.failed.lock().unwrap_or_else(PoisonError::into_inner)
        {
            return Err(error.clone());
        }
        self.check_open()
    }

    /// Returns an error once the store was closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closing.load(Ordering::Acquire) {
            Err(Error::at(ErrorKind::Closed, &self.dir, "the store was closed"))
        } else {
            Ok(())
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Returns the failure that made the store read-only; not that it was opened so.
    pub(crate) fn has_failed(&self) -> Option<Error> {
        if self.options.read_only {
            return None;
        }
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn begin_close(&self) {
        self.closing.store(true, Ordering::Release);
        self.notify_all();
    }

    pub(super) fn set_ended(&self) {
        // Handles may outlive the store, and another store may be opened in its place.
        self.cache.clear();
        // The close runs from here on; the close of the store waits for its end.
        drop(self.files.close());
        self.budget.release();
        self.ended.store(true, Ordering::Release);
        self.closing.store(true, Ordering::Release);
        self.notify_all();
    }

    pub(super) fn set_closed_in_order(&self) {
        self.in_order.store(true, Ordering::Release);
    }

    pub(super) fn is_closed_in_order(&self) -> bool {
        self.in_order.load(Ordering::Acquire)
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(super) fn notify_all(&self) {
        [&self.work, &self.space, &self.changed, &self.end, &self.unlocked, &self.full.bell]
            .into_iter()
            .for_each(Event::notify);
        self.write_stall.notify();
        self.gate.notify_all();
        self.turns.notify_all();
    }

    /// Counts a background task until the returned guard is dropped; closing waits for it. Such a task checks
    /// [`is_closing`](Self::is_closing) at least every few milliseconds.
    pub(crate) fn begin_task(self: &Arc<Self>) -> Task {
        self.tasks.fetch_add(1, Ordering::AcqRel);
        Task(self.clone())
    }

    /// Runs `work` on a shard as a background task, which continues if its handle is dropped.
    pub(crate) fn spawn_task<T: Send + 'static, F: Future<Output = T> + 'static>(
        self: &Arc<Self>,
        shard: usize,
        class: Class,
        work: impl FnOnce(Arc<StoreCore>) -> F + Send + 'static,
    ) -> JoinHandle<T> {
        let (owned, task) = (self.clone(), self.begin_task());
        self.engine.spawn_on_shard(shard, class, move || async move {
            let _task = task;
            work(owned).await
        })
    }

    /// Waits until no background task is left.
    pub(super) async fn tasks_end(&self) {
        self.end.until(|| (self.tasks.load(Ordering::Acquire) == 0).then_some(())).await;
    }
}

/// Runs `work` as a background task on the log's shard, in the class of the store's writes. Starts at the first poll, and continues
/// if this future is dropped.
pub(crate) async fn in_task<T: Send + 'static, F: Future<Output = Result<T>> + 'static>(
    shared: &Arc<StoreCore>,
    work: impl FnOnce(Arc<StoreCore>) -> F + Send + 'static,
) -> Result<T> {
    let done = shared.spawn_task(shared.options.shard, shared.options.class, work).await;
    done.map_err(|error| Error::from(error).named(&shared.dir))?
}

/// A background task, counted as long as it runs.
pub(crate) struct Task(Arc<StoreCore>);

impl Drop for Task {
    fn drop(&mut self) {
        let before = self.0.tasks.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "a task is counted until it ends");
        self.0.end.notify();
    }
}
