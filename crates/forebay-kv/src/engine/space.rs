//! Handling of a full disk: the work that lacks space, the calls that are refused, and the reserve with which a full store shrinks.
//! A process without descriptors or I/O memory counts as a full disk: the same work fails for lack of them, and is retried.
//!
//! A flush or a compaction that finds no space has changed nothing but whole pieces, so the store continues: it is *full*. One task
//! here manages the state. It releases the reserve, so that deletions can be compacted down to the last level. It retries the work
//! whenever space may be free again, and twice a second. It ends the state when the reserve can be allocated again. That needs more
//! space than the work had lacked, so the state does not flap.
//!
//! Unless its size was chosen, the reserve grows with the store, so that a small store uses little space.
//!
//! The two logs have a part of it in the shape of a segment (`wal.reserve`), in which they continue by a rename: other processes
//! may use the space that the store frees, but never this part. So no log fails for lack of space:
//!
//! 1. puts are refused from the start of the state, when a next segment or a log's reserve finds no space. Puts already under way
//!    are written to the log's reserve;
//! 2. deletes are accepted while the log has space for them and for the groups of the flush after them, and has used little of the
//!    reserve's space for them; else that flush starts, which frees segments;
//! 3. with nothing left to flush, deletes are written to the log's reserve, which is as long as a segment: from then on two
//!    segments alternate;
//! 4. flushes, the manifest and compactions use the space of the file `reserve`, once it is removed. If others have used it up, the
//!    work waits;
//! 5. the state ends when the logs' reserves are made again, then the file `reserve`.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay::Open;

use super::commit::Ready;
use super::compact::pick;
use super::shared::{Commit, StoreCore, short_tables_bytes};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::manifest::no_space;
use crate::memtable::Memtables;

/// The file whose only purpose is to reserve space.
pub(crate) const RESERVE: &str = "reserve";
/// The interval at which work that found no space is retried in any case.
const AGAIN: Duration = Duration::from_millis(500);
/// A store that is opened allocates its reserve in full, or halved up to this many times where space is short.
const HALVINGS: u32 = 2;
/// Failures since space may have become free, after which the periodic retry needs more free space than the last try used. The
/// first of them may be those of several jobs.
const TRIES_IN_VAIN: u64 = 4;

/// Bytes of the log's last segment that deletes leave for the log's own groups: a flush writes two, and at most four memtables are
/// flushed without a further delete.
const LOG_ROOM: u64 = 32 << 10;
/// Bytes of the log that a short delete uses, at most: a separate group.
const GROUP_BYTES: u64 = 4096;
/// The log of deletes, or twice the tables of their keyspaces, uses at most `1/LOG_PART` of the space of the reserve, or a segment,
/// before they are flushed.
const LOG_PART: u64 = 3;

/// Tables of the deletes of one batch, counted twice, that a full store takes in any case.
const BATCH_BYTES: u64 = 512 << 10;

/// Work that may find no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Flush,
    Compaction,
    /// The reserve of a store that is being opened, or a segment of the log.
    Other,
}

/// The outcomes of one kind of work.
#[derive(Debug, Default)]
struct Tries {
    /// Whether it found no space the last time.
    is_lacking: AtomicBool,
    /// Counts its failures to find space.
    failures: AtomicU64,
    /// Those since space may have become free.
    in_vain: AtomicU64,
    /// The bytes that the last failure for lack of space wrote before; of several jobs in one attempt the fewest.
    bytes: AtomicU64,
    /// Whether it waits although its retry is due, as no more space is free than in the last try.
    is_hopeless: AtomicBool,
}

/// Whether a store is full, and the state of its reserve.
#[derive(Debug, Default)]
pub(crate) struct Space {
    is_full: AtomicBool,
    /// The error returned by refused calls.
    why: Mutex<Option<Error>>,
    flush: Tries,
    compaction: Tries,
    /// Counts the attempts: occasions to retry the work.
    attempts: AtomicU64,
    /// Counts the work under way.
    under_way: AtomicU64,
    /// The size of the reserve's file, and the size that it must reach for the state to end; 0 without a
    /// reserve.
    reserve: AtomicU64,
    goal: AtomicU64,
    /// Whether the reserve grows with the store.
    grows: AtomicBool,
    /// Bytes of flushes to come from which the reserve has to be longer.
    outgrown_at: AtomicU64,
    /// Whether the reserve may have to be longer.
    is_outgrown: AtomicBool,
    /// Whether space may have become free.
    is_rung: AtomicBool,
    /// The number of the newest record when a delete first met the full store.
    first_delete: AtomicU64,
    /// Whether a delete waits for the flush of those before it.
    is_flush_wanted: AtomicBool,
    /// Bytes that were free in addition to a memtable's, if no work began since.
    spare: AtomicU64,
    /// Notified when the store becomes full, when space may have become free, and when the store ends.
    pub(super) bell: Event,
}

impl Tries {
    fn is_lacking(&self) -> bool {
        self.is_lacking.load(Ordering::Acquire)
    }

    fn are_in_vain(&self) -> bool {
        self.is_lacking() && self.in_vain.load(Ordering::Acquire) >= TRIES_IN_VAIN
    }
}

/// Work that is under way while it lives.
pub(crate) struct SpaceUse<'s>(&'s Space);

impl Drop for SpaceUse<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Space {
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Acquire)
    }

    /// Returns why the store is full, if it is.
    pub(crate) fn why(&self) -> Option<Error> {
        if self.is_full() { self.why.lock().unwrap_or_else(PoisonError::into_inner).clone() } else { None }
    }

    /// Returns an error if the store is full; for calls that need more space.
    pub(crate) fn check_growth(&self) -> Result<()> {
        self.why().map_or(Ok(()), Err)
    }

    /// Returns an error if flushes find no space; for calls that wait for a flush.
    pub(crate) fn check_flush(&self) -> Result<()> {
        if self.flush.is_lacking() { self.check_growth() } else { Ok(()) }
    }

    /// Returns the number of the present attempt. Work that found no space in it waits for the next.
    pub(crate) fn attempt(&self) -> u64 {
        self.attempts.load(Ordering::Acquire)
    }

    /// Returns whether work waits for more space than it found.
    pub(crate) fn is_hopeless(&self, work: Work) -> bool {
        let is_hopeless = |tries: &Tries| tries.is_hopeless.load(Ordering::Acquire) && tries.are_in_vain();
        self.tries(work).is_some_and(is_hopeless)
    }

    /// Records the start of some work.
    pub(crate) fn begin(&self, work: Work) -> SpaceUse<'_> {
        if let Some(tries) = self.tries(work) {
            tries.bytes.store(0, Ordering::Release);
        }
        self.under_way.fetch_add(1, Ordering::AcqRel);
        self.spare.store(0, Ordering::Release);
        SpaceUse(self)
    }

    /// Adds bytes that work under way wrote before it failed.
    pub(crate) fn note_in_vain(&self, work: Work, bytes: u64) {
        if let Some(tries) = self.tries(work) {
            tries.bytes.fetch_add(bytes, Ordering::AcqRel);
        }
    }

    /// Returns the bytes that the work which began last wrote before it failed.
    pub(crate) fn bytes_in_vain(&self, work: Work) -> u64 {
        self.tries(work).map_or(0, |tries| tries.bytes.load(Ordering::Acquire))
    }

    pub(crate) fn set_in_vain(&self, work: Work, bytes: u64) {
        if let Some(tries) = self.tries(work) {
            tries.bytes.store(bytes, Ordering::Release);
        }
    }

    /// Returns how many failures of some work a caller waits out. In a store that is not full yet that is one
    /// more: after the first failure the reserve is released and the work retried.
    pub(crate) fn patience(&self, work: Work) -> u64 {
        self.failures(work) + u64::from(!self.is_full())
    }

    /// Returns an error once some work has failed more often than `patience`.
    pub(crate) fn check_tries(&self, work: Work, patience: u64) -> Result<()> {
        if self.failures(work) > patience && self.tries(work).is_some_and(Tries::is_lacking) {
            self.check_growth()
        } else {
            Ok(())
        }
    }

    fn failures(&self, work: Work) -> u64 {
        self.tries(work).map_or(0, |tries| tries.failures.load(Ordering::Acquire))
    }

    /// Returns the free bytes of a full disk that the flush and the compaction of the next deletions do not need, as far as known.
    pub(crate) fn spare_bytes(&self) -> u64 {
        self.spare.load(Ordering::Acquire)
    }

    /// Returns the size of the reserve in bytes.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        self.reserve.load(Ordering::Relaxed)
    }

    /// Lets the reserve grow if this many bytes of flushes to come are too many for it.
    #[inline]
    pub(super) fn note_unflushed(&self, bytes: u64) {
        if self.grows.load(Ordering::Relaxed) && bytes >= self.outgrown_at.load(Ordering::Relaxed) {
            self.look_at_reserve();
        }
    }

    #[cold]
    fn look_at_reserve(&self) {
        self.outgrown_at.store(u64::MAX, Ordering::Relaxed);
        if self.grows.load(Ordering::Relaxed) && !self.is_outgrown.swap(true, Ordering::AcqRel) {
            self.bell.notify();
        }
    }

    fn lacks_something(&self) -> bool {
        self.flush.is_lacking() || self.compaction.is_lacking()
    }

    fn tries(&self, work: Work) -> Option<&Tries> {
        match work {
            Work::Flush => Some(&self.flush),
            Work::Compaction => Some(&self.compaction),
            Work::Other => None,
        }
    }

    /// Notifies the task that space may have become free.
    fn ring(&self) {
        if self.is_full() {
            self.is_rung.store(true, Ordering::Release);
            self.bell.notify();
        }
    }
}

impl StoreCore {
    /// Records that some work found no space. The store is full from now on.
    pub(crate) fn lacks_space(&self, work: Work, cause: &Error) {
        let space = &self.full;
        if let Some(tries) = space.tries(work) {
            tries.is_lacking.store(true, Ordering::Release);
            tries.failures.fetch_add(1, Ordering::AcqRel);
            tries.in_vain.fetch_add(1, Ordering::AcqRel);
            if cause.kind() != ErrorKind::NoSpace {
                tries.bytes.store(0, Ordering::Release);
            }
        }
        {
            let mut why = space.why.lock().unwrap_or_else(PoisonError::into_inner);
            if !space.is_full() {
                *why = Some(full(self, cause));
                space.first_delete.store(u64::MAX, Ordering::Release);
                space.is_full.store(true, Ordering::Release);
            }
        }
        self.notify_all();
    }

    /// Makes the store full if the next segment of a log, or its reserve, finds no space.
    pub(crate) fn look_at_logs(&self) {
        if !self.full.is_full()
            && let Some(error) = self.log_lacks()
        {
            self.lacks_space(Work::Other, &error);
        }
    }

    fn log_lacks(&self) -> Option<Error> {
        no_space(&self.wal).or_else(|| self.manifest.no_space())
    }

    /// Returns an error for deletions for which the log of a full store may have no space: a log without space fails for good.
    /// Whether a next segment finds space may not be known yet, so it counts once it exists. Its space is the reserve's, which
    /// flushes and compactions need: deletes are flushed before their log uses much of it. More frequent flushes would use it as
    /// well, by many short tables; so would one flush of many keyspaces.
    pub(crate) fn check_log_room(&self, ready: &Ready, commit: &Commit) -> Result<()> {
        if !self.full.is_full() {
            return Ok(());
        }
        let keyspaces = ready.keyspaces();
        let count = commit.active.keyspace_count() + added(&keyspaces, &commit.active);
        let (needed, tables) = (2 * ready.logged().len() as u64 + LOG_ROOM, 2 * short_tables_bytes(count));
        let taken = self.log_taken(commit).max(tables);
        let goal = self.full.goal.load(Ordering::Acquire);
        let segment = self.budget.log_segment_bytes(&self.options);
        let most = segment.max(goal / LOG_PART);
        let has_room = self.wal.segment_bytes_left() >= needed;
        if has_room && taken < most {
            let is_time = taken >= most / 4 * 3 && commit.sealed.is_empty();
            if is_time && !self.full.is_flush_wanted.swap(true, Ordering::AcqRel) {
                self.full.ring();
            }
            return Ok(());
        }
        if !has_room && needed > segment {
            let (bytes, most) = (ready.logged().len(), (segment - LOG_ROOM) / 2);
            let what =
                format!("a batch of deletes of {bytes} bytes, and the log of a full store takes {most}");
            return self.refuse_batch(&what);
        }
        if !commit.sealed.is_empty() {
            return self.full.check_growth();
        }
        if commit.active.last_lsn() != 0 {
            self.full.is_flush_wanted.store(true, Ordering::Release);
            self.full.ring();
            return self.full.check_growth();
        }
        if tables >= most.max(BATCH_BYTES) {
            let what = format!("a batch of deletes in {count} keyspaces, each of which needs a table");
            return self.refuse_batch(&what);
        }
        match self.wal.reserve_bytes() {
            _ if has_room => Ok(()),
            Ok(reserve) if reserve >= needed => Ok(()),
            _ => self.full.check_growth(),
        }
    }

    /// Returns the most bytes of a record of deletes that the log takes while the store is full; any, if it is not.
    pub(crate) fn deletes_bytes_max(&self) -> u64 {
        let segment = self.budget.log_segment_bytes(&self.options);
        if self.full.is_full() { (segment - LOG_ROOM) / 2 } else { u64::MAX }
    }

    /// Returns the error for a batch of deletes that a full store never takes.
    fn refuse_batch(&self, what: &str) -> Result<()> {
        let text = format!("{what}: use smaller batches");
        self.full.why().map_or(Ok(()), |why| Err(Error::short(&self.dir, text, &why)))
    }

    /// Returns the maximum bytes of the log used by the deletes in the full store's active memtable.
    fn log_taken(&self, commit: &Commit) -> u64 {
        let first = self.full.first_delete.fetch_min(commit.last, Ordering::AcqRel).min(commit.last);
        let sealed = commit.sealed.back().map_or(commit.flushed, |memtables| memtables.last_lsn());
        commit.last.saturating_sub(first.max(sealed)) * GROUP_BYTES
    }

    /// Records that some work was done.
    pub(crate) fn found_space(&self, work: Work) {
        if let Some(tries) = self.full.tries(work) {
            tries.is_lacking.store(false, Ordering::Release);
        }
        // New tables may need a longer reserve.
        self.full.look_at_reserve();
        self.full.ring();
    }

    /// Records that compaction has no work, which needs no space. It is an occasion to retry only if compaction had lacked space.
    pub(crate) fn needs_no_space(&self) {
        if self.full.compaction.is_lacking.swap(false, Ordering::AcqRel) {
            self.full.ring();
        }
    }

    /// Lets work that found no space try again: files were removed, or a caller waits for the work.
    pub(crate) fn try_again(&self) {
        for tries in [&self.full.flush, &self.full.compaction] {
            tries.in_vain.store(0, Ordering::Release);
        }
        self.begin_attempt();
    }

    fn begin_attempt(&self) {
        if self.full.is_full() {
            self.full.attempts.fetch_add(1, Ordering::AcqRel);
            self.work.notify();
            self.changed.notify();
        }
    }

    /// Notifies the task that files were removed.
    pub(super) fn gave_space_back(&self) {
        self.full.ring();
    }

    /// Waits for the next attempt after `attempt`, or for the end of the full state or of the store.
    pub(crate) async fn next_attempt(&self, attempt: u64) {
        let is_next = || self.full.attempt() != attempt || !self.full.is_full() || self.is_over();
        self.changed.until(|| is_next().then_some(())).await;
    }

    fn is_over(&self) -> bool {
        self.check_writable().is_err()
    }

    /// Releases the reserve. Returns whether one existed.
    pub(super) async fn release_reserve(&self) -> bool {
        self.full.reserve.store(0, Ordering::Release);
        // A file that cannot be removed now is found when the store is opened.
        self.home.remove_file(RESERVE).await.is_ok()
    }

    /// Allocates this many bytes for the reserve's file, or removes the file on failure.
    async fn allocate_reserve(&self, bytes: u64) -> Result<()> {
        self.make_reserve(bytes).await?;
        self.full.reserve.store(bytes, Ordering::Release);
        Ok(())
    }

    async fn make_reserve(&self, bytes: u64) -> Result<()> {
        let open = Open::create().buffered().shard(self.background_shard());
        let file = self.home.open(RESERVE, open).await?;
        let allocated = file.allocate(0..bytes).await;
        let closed = file.close().await;
        let done = allocated.and(closed).map_err(Error::from);
        if done.is_err() {
            // This also frees the part that the file system allocated before it ran out of space.
            drop(self.home.remove_file(RESERVE).await);
        }
        done
    }

    /// Suspends work whose next try would fail too: its last tries failed, and less space is free than the last try used.
    async fn look_for_space(&self) {
        let space = &self.full;
        let has_flushed = self.lock().sealed.is_empty();
        // Work under way needs the space itself, and so does the next flush.
        let is_idle =
            space.under_way.load(Ordering::Acquire) == 0 && (has_flushed || space.flush.are_in_vain());
        let mut works =
            [&space.flush, &space.compaction].map(|tries| (tries.bytes.load(Ordering::Acquire), tries));
        works.sort_unstable_by_key(|(bytes, _)| *bytes);
        let mut has_space = true;
        for (bytes, tries) in works {
            let is_asked = is_idle && bytes > 0 && tries.are_in_vain();
            if is_asked && has_space {
                has_space = self.are_free(bytes).await;
            }
            tries.is_hopeless.store(is_asked && !has_space, Ordering::Release);
        }
    }

    /// Looks for the space of the job that a full store runs only beside the space for its next deletions. Nothing else may need it.
    async fn look_for_spare(&self) {
        let space = &self.full;
        let is_idle = || {
            let is_working = space.under_way.load(Ordering::Acquire) > 0 || space.lacks_something();
            !is_working && self.lock().sealed.is_empty()
        };
        space.spare.store(0, Ordering::Release);
        let wanted = self.with_view(|view| pick::spare_bytes_wanted(&view.version, &self.pick_how()));
        if let Some(bytes) = wanted
            && is_idle()
            && self.are_free(bytes + self.budget.memtable).await
            && is_idle()
        {
            space.spare.store(bytes, Ordering::Release);
        }
    }

    /// Returns whether this many bytes of the disk are free.
    async fn are_free(&self, bytes: u64) -> bool {
        let made = self.make_reserve(bytes).await;
        if made.is_ok() {
            drop(self.home.remove_file(RESERVE).await);
        }
        !made.is_err_and(|error| error.kind() == ErrorKind::NoSpace)
    }

    /// Returns the size that the reserve should have now.
    fn reserve_wanted(&self) -> u64 {
        if let Some(bytes) = self.options.reserve_bytes {
            return bytes;
        }
        let (unflushed, tables, longest) = {
            let commit = self.lock();
            let tables = || commit.version.tables().map(|(_, table)| table.meta().bytes);
            (commit.unflushed_bytes(), tables().sum(), tables().max().unwrap_or(0))
        };
        let step = self.budget.reserve_step(&self.options);
        self.full.outgrown_at.store(unflushed + step / 2, Ordering::Relaxed);
        self.budget.reserve(&self.options, unflushed, tables, longest)
    }

    /// Grows the reserve with the store. If no space is left for that, the store is full.
    async fn grow_reserve(&self) {
        let space = &self.full;
        space.is_outgrown.store(false, Ordering::Release);
        let wanted = self.reserve_wanted();
        if wanted <= space.reserve_bytes() {
            return;
        }
        match self.allocate_reserve(wanted).await {
            Ok(()) => space.goal.store(wanted, Ordering::Release),
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                space.goal.store(wanted, Ordering::Release);
                self.lacks_space(Work::Other, &error);
            }
            // The next flush is an occasion to try again.
            Err(error) if error.is_out_of_descriptors() => {}
            // As where it cannot be allocated at the open: the store has no reserve.
            Err(_) => {
                space.reserve.store(0, Ordering::Release);
                space.goal.store(0, Ordering::Release);
                space.grows.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Allocates the reserve of a store that was opened, or adopts an existing reserve. Where space is short it is smaller.
    async fn begin_reserve(&self) {
        let wanted = self.reserve_wanted();
        if let Ok(found) = self.home.metadata(RESERVE).await {
            if found.is_file() && found.len() == wanted && wanted > 0 && found.blocks_bytes() >= wanted {
                self.full.reserve.store(wanted, Ordering::Release);
                self.full.goal.store(wanted, Ordering::Release);
                return;
            }
            let _ = self.home.remove_file(RESERVE).await;
        }
        if wanted == 0 {
            return;
        }
        for halvings in 0..=HALVINGS {
            let bytes = (wanted >> halvings).max(1);
            match self.allocate_reserve(bytes).await {
                Ok(()) => return self.full.goal.store(bytes, Ordering::Release),
                Err(error) if !error.is_shortage() => return,
                Err(error) if halvings == HALVINGS => {
                    self.full.goal.store(bytes, Ordering::Release);
                    self.lacks_space(Work::Other, &error);
                }
                Err(_) => {}
            }
            if self.is_over() {
                return;
            }
        }
    }

    /// Returns whether the full state can end: nothing lacks space, and the reserve could be allocated again. While deletions are on their
    /// way to the last level, which needs space and gives more back, it takes twice the reserve: what is left beside it would soon be full.
    async fn has_space_again(&self) -> bool {
        if self.full.lacks_something() || self.log_lacks().is_some() {
            return false;
        }
        // The memtables and tables may need less by now.
        let bytes = self.full.goal.load(Ordering::Acquire).min(self.reserve_wanted());
        if bytes == 0 {
            return true;
        }
        let is_deleting = self.with_view(|view| pick::is_deleting(&view.version, &self.pick_how()));
        if is_deleting && !self.are_free(bytes * 2).await {
            return false;
        }
        match self.allocate_reserve(bytes).await {
            Err(error) => !error.is_shortage(),
            Ok(()) => true,
        }
    }

    fn end_full(&self) {
        {
            let mut why = self.full.why.lock().unwrap_or_else(PoisonError::into_inner);
            self.full.is_full.store(false, Ordering::Release);
            *why = None;
        }
        self.notify_all();
    }
}

/// Allocates the reserve, then handles each time that the store becomes full, until the store closes or
/// fails.
pub(super) async fn run(shared: &Arc<StoreCore>) {
    let space = &shared.full;
    shared.begin_reserve().await;
    let grows = shared.options.reserve_bytes.is_none() && space.goal.load(Ordering::Acquire) > 0;
    space.grows.store(grows, Ordering::Relaxed);
    loop {
        let is_outgrown = || grows && space.is_outgrown.load(Ordering::Acquire);
        let is_woken = || space.is_full() || shared.is_over() || is_outgrown();
        space.bell.until(|| is_woken().then_some(())).await;
        if shared.is_over() {
            return;
        }
        if !space.is_full() {
            shared.grow_reserve().await;
            continue;
        }
        shared.release_reserve().await;
        shrink(shared).await;
        shared.try_again();
        loop {
            let is_rung = || space.is_rung.swap(false, Ordering::AcqRel) || shared.is_over();
            let rung = space.bell.until(|| is_rung().then_some(()));
            let is_time = forebay::shard::timeout(AGAIN, rung).await.is_err();
            if shared.is_over() {
                return;
            }
            if shared.has_space_again().await {
                // A flush requested in this state does not count for the next full disk.
                space.is_flush_wanted.store(false, Ordering::Release);
                shared.end_full();
                break;
            }
            shrink(shared).await;
            if space.is_flush_wanted.swap(false, Ordering::AcqRel) || is_time {
                seal(shared);
            }
            if is_time {
                shared.look_for_space().await;
                shared.look_for_spare().await;
                shared.begin_attempt();
            } else {
                shared.try_again();
            }
        }
    }
}

/// Returns how many keyspaces a memtable has more with a record of several.
fn added(keyspaces: &BTreeSet<u32>, memtables: &Memtables) -> u64 {
    if keyspaces.len() < 2 {
        return 0;
    }
    let known = memtables.keyspaces();
    keyspaces.iter().filter(|keyspace| known.binary_search(keyspace).is_err()).count() as u64
}

/// Frees segments of the manifest's log. Each piece of a compaction is an edit.
async fn shrink(shared: &StoreCore) {
    if let Err(error) = shared.manifest.shrink().await {
        shared.unless_closed(error);
    }
}

/// Seals the active memtable if no memtable is sealed, so that recent deletions are flushed: only in tables do they free space.
fn seal(shared: &StoreCore) {
    let mut commit = shared.lock();
    if commit.sealed.is_empty() {
        shared.seal(&mut commit);
    }
}

/// Returns the error of refused calls.
fn full(shared: &StoreCore, cause: &Error) -> Error {
    if cause.is_out_of_descriptors() {
        let text = "the store could open no file to write its tables or its log to, so it takes no puts for now: close files, or \
                    raise the limit of open files (ulimit -n). Reads and deletes go on, and puts are taken again as soon as a file \
                    can be opened";
        return Error::short(&shared.dir, text.to_string(), cause);
    }
    if cause.is_out_of_memory() {
        let text = "the program holds all I/O memory, and the store needs some to write its tables or its log, so it takes no puts for \
                    now: drop blocks and values, or raise Config::arena_bytes_max. Reads and deletes go on, and puts are taken again as \
                    soon as there is memory";
        return Error::short(&shared.dir, text.to_string(), cause);
    }
    let remedy = "free space on this file system, or delete keys: deletes are taken, and compaction gives their space \
                  back. Puts are taken again as soon as there is space";
    let goal = match shared.full.goal.load(Ordering::Acquire) {
        0 => String::new(),
        bytes => format!(" for a reserve of {bytes} bytes, twice that until deletes are compacted"),
    };
    Error::short(&shared.dir, format!("the store's file system is full; {remedy}{goal}"), cause)
}
