//! [`Range`]: the entries between two keys, in order.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::ops::{Bound, ControlFlow};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use forebay::Waitable;

use super::Handle;
use crate::engine::shared::StoreCore;
use crate::error::{Error, Result};
use crate::manifest::version::LEVELS;
use crate::merge::{Bounds, Memory, Merge, Run, Source};
use crate::table::{CursorHow, Direction, Entry, Leave};
use crate::value::{HeldShare, Value};
use crate::view::Moment;

/// Maximum entries of one fetch, and after it without another; the first fetches one entry, a further one as many as were returned.
const AHEAD_MAX: usize = 32;
/// Bytes of values after which a fetch ends, and after which another is due.
const AHEAD_BYTES: u64 = 32 << 10;
/// Maximum bytes of a range's reads that are in flight or not consumed.
const READ_BYTES_MAX: u64 = 1 << 20;

/// The entries between two keys in the order of the keys, as the store was when the range was made; see
/// [`Keyspace::range`](crate::Keyspace::range). It is not an iterator, because the next entry may have to be read: instead of
/// `for` use `while let Some(entry) = range.next().await`, or `next().wait()` on threads. With the feature `stream` it is also a
/// `futures_core::Stream`.
///
/// A range keeps the memtables and files of that moment, and keeps the store open. From its first entry on, its memory counts as
/// held by the program. This is its read-ahead, at most a quarter of that share of the budget and at most 1 MiB, but at least one
/// leaf for each table of level 0 and for each level. In each of these it reads ahead at most as much as it has read so far.
/// Values outside of leaves are read up to 512 KiB ahead in addition, as far as the range has proceeded. It also holds up to 32
/// entries with 32 KiB, or one entry, before they are returned. Values pin the memory that they are in, as those of gets do.
pub struct Range {
    handle: Arc<Handle>,
    wanted: RangeSpec,
    stage: Stage,
    fetched: VecDeque<Pair>,
    /// Number of entries that it has returned.
    given: usize,
    /// Entries that it may return without a fetch, and the bytes of their values: a fetch checks the program's share of the memory,
    /// and yields.
    unchecked: (usize, u64),
}

/// The source and the bounds of a range.
#[derive(Clone)]
struct RangeSpec {
    keyspace: u32,
    moment: Moment,
    bounds: Arc<Bounds>,
    direction: Direction,
    /// Where the entries begin that an earlier [`Work`] has left.
    left: Option<Bound<Vec<u8>>>,
    is_fresh: bool,
    /// Whether values outside of leaves are left unread.
    is_of_keys: bool,
}

impl RangeSpec {
    /// Returns the bounds of the remaining entries.
    fn bounds_left(&self) -> Arc<Bounds> {
        let Some(left) = self.left.clone() else { return self.bounds.clone() };
        let Bounds { low, high } = &*self.bounds;
        Arc::new(match self.direction {
            Direction::Forward => Bounds { low: left, high: high.clone() },
            Direction::Backward => Bounds { low: low.clone(), high: left },
        })
    }
}

/// A key and its value.
type Pair = (Vec<u8>, Value);
type FetchFuture = Pin<Box<dyn Future<Output = (Box<Work>, Result<Fetch>)> + Send>>;

enum Stage {
    Failed(Option<Error>),
    Begun,
    Idle(Box<Work>),
    Fetching(FetchFuture),
    Over,
}

/// The result of one fetch.
struct Fetch {
    entries: VecDeque<Pair>,
    is_last: bool,
}

/// The state of a range in progress.
struct Work {
    merge: Merge,
    shared: Arc<StoreCore>,
    now_s: u64,
    is_fresh: bool,
    _held: HeldShare,
}

impl Range {
    pub(crate) fn new(handle: &Arc<Handle>, keyspace: u32, bounds: Bounds, at: Option<Moment>) -> Range {
        let moment = at.unwrap_or_else(|| handle.shared.pin());
        let (bounds, direction) = (Arc::new(bounds), Direction::Forward);
        let (left, is_fresh, is_of_keys) = (None, false, false);
        let wanted = RangeSpec { keyspace, moment, bounds, direction, left, is_fresh, is_of_keys };
        Range {
            handle: handle.clone(),
            wanted,
            stage: Stage::Begun,
            fetched: VecDeque::new(),
            given: 0,
            unchecked: (0, 0),
        }
    }

    /// Returns a range whose first result is an error.
    pub(crate) fn failed(handle: &Arc<Handle>, error: Error) -> Range {
        let mut range = Range::new(handle, 0, Bounds::ALL, None);
        range.stage = Stage::Failed(Some(error));
        range
    }

    /// Returns the same entries from the last to the first. A range in progress starts again at that end.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// # let users = store.keyspace("users").wait()?;
    /// # users.put("anna", "1").wait()?;
    /// # users.put("bert", "2").wait()?;
    /// let mut range = users.iter().rev();
    /// let (last, _) = range.next().wait().ok_or("no entry")??;
    /// assert_eq!(last, b"bert");
    /// # drop(range);
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    #[must_use = "it is the range that goes the other way"]
    pub fn rev(mut self) -> Range {
        self.wanted.direction = match self.wanted.direction {
            Direction::Forward => Direction::Backward,
            Direction::Backward => Direction::Forward,
        };
        if !matches!(self.stage, Stage::Failed(_)) {
            self.stage = Stage::Begun;
        }
        self.wanted.left = None;
        self.fetched.clear();
        self.given = 0;
        self
    }

    /// Reads leaves and values from the device even if the cache has them, and leaves the cache unchanged: for checks of the
    /// bytes on the device. Entries that were not flushed yet are read from memory, and inner nodes may be read from the cache;
    /// [`Store::verify`](crate::Store::verify) reads those, too. Has no effect on entries that were fetched before.
    #[must_use = "it is the range that reads the device"]
    pub fn fresh(mut self) -> Range {
        self.wanted.is_fresh = true;
        self
    }

    /// Skips values stored outside of leaves, which are longer than a quarter of [`leaf_bytes`](crate::Options::leaf_bytes): the
    /// range returns empty values instead. Other values, and those that were not flushed yet, are returned in full. For counts of
    /// entries and callers that need only keys. Has no effect on a range in progress.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// # let photos = store.keyspace("photos").wait()?;
    /// # photos.put("anna", [0_u8; 5000]).wait()?;
    /// let (mut range, mut count) = (photos.iter().keys_only(), 0);
    /// while range.next().wait().transpose()?.is_some() {
    ///     count += 1;
    /// }
    /// assert_eq!(count, 1);
    /// # drop(range);
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    #[must_use = "it is the range that leaves values unread"]
    pub fn keys_only(mut self) -> Range {
        self.wanted.is_of_keys = true;
        self
    }

    /// Returns the next entry, or `None` at the end. Dropping the future loses nothing.
    ///
    /// # Errors
    /// Those of [`Keyspace::get`](crate::Keyspace::get). After [`MemoryBudget`](crate::ErrorKind::MemoryBudget) the next call
    /// continues at the same entry; after another error the range is at its end.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).await?;
    /// # let users = store.keyspace("users").await?;
    /// let mut range = users.range("anna"..="bert");
    /// while let Some(entry) = range.next().await {
    ///     let (key, value) = entry?;
    ///     println!("{key:?}: {} bytes", value.len());
    /// }
    /// # drop(range);
    /// # store.close().await?;
    /// # Ok(()) }
    /// ```
    #[expect(clippy::should_implement_trait, reason = "the asynchronous `next`, as that of a `Stream`")]
    pub fn next(&mut self) -> Waitable<impl Future<Output = Option<Result<Pair>>>> {
        Waitable::new("range", poll_fn(|context| self.poll_next_entry(context).map(Result::transpose)))
    }

    /// Passes the key and value of each further entry to `see`, until `see` breaks or the range ends. Returns the value of the
    /// break, or `None` at the end. Another call continues behind the last entry passed.
    ///
    /// Entries in memory are passed in place. [`next`](Self::next) copies each key and most values, which for a few short entries
    /// is more than half of its cost. `see` runs on the polling thread, and should not block. Dropping the future loses nothing
    /// but the rest of the entries.
    ///
    /// # Errors
    /// Those of [`next`](Self::next).
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).await?;
    /// # let users = store.keyspace("users").await?;
    /// # users.put("anna", "1").await?;
    /// # users.put("bert", "2").await?;
    /// let (mut range, mut bytes) = (users.range("anna"..), 0);
    /// let all = range.visit(|_key, value| {
    ///     bytes += value.len();
    ///     if bytes < 1000 { ControlFlow::Continue(()) } else { ControlFlow::Break("enough") }
    /// });
    /// assert_eq!(all.await?, None); // no break
    /// # drop(range);
    /// # store.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn visit<B>(
        &mut self,
        mut see: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Waitable<impl Future<Output = Result<Option<B>>>> {
        Waitable::new("range", poll_fn(move |context| self.poll_visit(context, &mut see)))
    }

    fn poll_visit<B>(
        &mut self,
        context: &mut Context<'_>,
        see: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Poll<Result<Option<B>>> {
        loop {
            while let Some((key, value)) = self.fetched.pop_front() {
                self.given += 1;
                if let ControlFlow::Break(answer) = see(&key, &value) {
                    return Poll::Ready(Ok(Some(answer)));
                }
            }
            while let Some((work, bytes_left)) = self.move_now()? {
                let value = work.bytes().unwrap_or_default();
                *bytes_left = bytes_left.saturating_sub(value.len() as u64);
                let answer = see(work.merge.key(), value);
                self.given += 1;
                if let ControlFlow::Break(answer) = answer {
                    return Poll::Ready(Ok(Some(answer)));
                }
            }
            if !ready!(self.poll_work(context))? {
                return Poll::Ready(Ok(None));
            }
        }
    }

    fn poll_next_entry(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Pair>>> {
        loop {
            if let Some(entry) = self.fetched.pop_front() {
                self.given += 1;
                return Poll::Ready(Ok(Some(entry)));
            }
            if let Some((work, bytes_left)) = self.move_now()?
                && let Some(value) = work.value()
            {
                *bytes_left = bytes_left.saturating_sub(value.held_bytes());
                let key = work.merge.key().to_vec();
                self.given += 1;
                return Poll::Ready(Ok(Some((key, value))));
            }
            if !ready!(self.poll_work(context))? {
                return Poll::Ready(Ok(None));
            }
        }
    }

    /// Brings the entries nearer that need a wait: begins the work, or has a fetch proceed. Returns `false` at the end.
    fn poll_work(&mut self, context: &mut Context<'_>) -> Poll<Result<bool>> {
        let mut work = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Failed(error) => return Poll::Ready(error.map_or(Ok(false), Err)),
            Stage::Over => return Poll::Ready(Ok(false)),
            Stage::Begun => Work::begin(&self.handle.shared, &self.wanted)?,
            Stage::Idle(work) if work.is_fresh == self.wanted.is_fresh => work,
            Stage::Idle(work) => {
                self.pass(&work);
                drop(work);
                Work::begin(&self.handle.shared, &self.wanted)?
            }
            Stage::Fetching(mut fetching) => {
                let Poll::Ready((work, fetched)) = fetching.as_mut().poll(context) else {
                    self.stage = Stage::Fetching(fetching);
                    return Poll::Pending;
                };
                let fetched = fetched?;
                self.fetched = fetched.entries;
                if !fetched.is_last {
                    self.stage = Stage::Idle(work);
                }
                return Poll::Ready(Ok(true));
            }
        };
        self.handle.shared.check_open()?;
        if let Err(error) = self.handle.shared.check_held() {
            // It restarts behind the last entry. It keeps none of its memory meanwhile: ranges that wait for each other's
            // memory would wait forever.
            self.pass(&work);
            self.stage = Stage::Begun;
            return Poll::Ready(Err(error));
        }
        if !work.merge.has_begun() {
            if Pin::new(&mut forebay::shard::yield_if_needed()).poll(context).is_pending() {
                self.stage = Stage::Idle(work);
                return Poll::Pending;
            }
            if work.merge.begin_now()? {
                self.unchecked = (AHEAD_MAX, AHEAD_BYTES);
                self.stage = Stage::Idle(work);
                return Poll::Ready(Ok(true));
            }
        }
        let count = if work.merge.has_next() { 1 } else { (self.given + 1).min(2 * AHEAD_MAX) };
        self.unchecked = (AHEAD_MAX, AHEAD_BYTES);
        self.stage = Stage::Fetching(Box::pin(work.fetch(count)));
        Poll::Ready(Ok(true))
    }

    /// Moves to the next entry if that needs no wait, and returns the work there, with the bytes that may be returned before the next
    /// fetch. After an error the range is at its end.
    fn move_now(&mut self) -> Result<Option<(&Work, &mut u64)>> {
        let (entries, bytes) = &mut self.unchecked;
        loop {
            let Stage::Idle(work) = &mut self.stage else { return Ok(None) };
            if work.is_fresh != self.wanted.is_fresh || *entries == 0 || *bytes == 0 {
                return Ok(None);
            }
            *entries -= 1;
            match work.merge.next_now() {
                Ok(Some(true)) if work.bytes().is_none() => {}
                Ok(Some(true)) => break,
                Ok(None) => return Ok(None),
                Ok(Some(false)) => {
                    self.stage = Stage::Over;
                    return Ok(None);
                }
                Err(error) => {
                    self.stage = Stage::Over;
                    return Err(error);
                }
            }
        }
        let Stage::Idle(work) = &self.stage else { return Ok(None) };
        Ok(Some((work, bytes)))
    }

    /// Lets the next [`Work`] begin behind the entries that this one has read.
    fn pass(&mut self, work: &Work) {
        if let key @ [_, ..] = work.merge.key() {
            let key = key.to_vec();
            let is_returned = !work.merge.is_unloaded();
            self.wanted.left = Some(if is_returned { Bound::Excluded(key) } else { Bound::Included(key) });
        }
    }
}

impl Work {
    fn begin(shared: &Arc<StoreCore>, wanted: &RangeSpec) -> Result<Box<Work>> {
        let RangeSpec { keyspace, moment: Moment { view, lsn, now_s }, direction, .. } = wanted;
        let bounds = &wanted.bounds_left();
        if view.version.is_dropped(*keyspace) {
            return Err(Error::dropped_keyspace());
        }
        shared.look_for_room(1);
        let (class, is_fresh) = (forebay::shard::class(), wanted.is_fresh);
        let mut how = CursorHow { class, is_fresh, ..CursorHow::range(*direction) };
        let mut sources: Vec<Source> = view
            .memtables()
            .map(|memtables| {
                Source::Memory(Memory::new(memtables.clone(), *keyspace, *lsn, bounds, *direction))
            })
            .collect();
        let mut held = 0;
        if let Some(levels) = view.version.keyspace(*keyspace) {
            let level0 = (0..levels.level(0).len()).map(|index| (0, index..index + 1));
            let lists = level0.chain((1..LEVELS).map(|level| (level, 0..levels.level(level).len())));
            let runs = lists.map(|(level, tables)| Run::new(&levels.list(level), tables, bounds, how));
            let mut runs: Vec<Run> = runs.filter(|run| !run.is_empty()).collect();
            let (count, unpacked) = (runs.len(), levels.unpacked_leaf_bytes());
            let share = READ_BYTES_MAX.min(shared.budget.held / 4) / (count.max(1) as u64);
            how = how.within(share.saturating_sub(unpacked), shared.options.leaf_bytes.into());
            runs.iter_mut().for_each(|run| run.set_how(how));
            if wanted.is_of_keys {
                let leave = Arc::new(Leave { bytes_min: 0, keeps_short: true, kept: None });
                runs = runs.into_iter().map(|run| run.leaving(&leave)).collect();
            }
            sources.extend(runs.into_iter().map(|run| Source::Run(Box::new(run))));
            held = (how.memory_bytes() + unpacked) * count as u64;
        }
        let held = HeldShare::new(Some(shared.cache.held()), held);
        let merge = Merge::new(sources, *direction);
        Ok(Box::new(Work { merge, shared: shared.clone(), now_s: *now_s, is_fresh, _held: held }))
    }

    /// Fetches at most `count` entries, and [`AHEAD_MAX`].
    async fn fetch(mut self: Box<Work>, count: usize) -> (Box<Work>, Result<Fetch>) {
        let fetched = self.entries(count).await;
        (self, fetched)
    }

    async fn entries(&mut self, count: usize) -> Result<Fetch> {
        let (count, is_short) = (count.min(AHEAD_MAX), count <= AHEAD_MAX);
        let (mut entries, mut bytes) = (VecDeque::with_capacity(count), 0);
        while entries.len() < count && bytes < AHEAD_BYTES {
            if !self.merge.next().await? {
                return Ok(Fetch { entries, is_last: true });
            }
            if let Some(value) = self.value() {
                bytes += value.held_bytes();
                entries.push_back((self.merge.key().to_vec(), value));
            }
            // The program may want no more, and a leaf more costs a read.
            if is_short && !entries.is_empty() && !self.merge.has_next() {
                break;
            }
            forebay::shard::yield_if_needed().await;
        }
        Ok(Fetch { entries, is_last: false })
    }

    /// Returns the bytes of the value at the merge's position, unless it is deleted or has expired; none of a value that is left unread.
    fn bytes(&self) -> Option<&[u8]> {
        match self.merge.entry()? {
            Entry::Deleted => None,
            entry if entry.has_expired(self.now_s) => None,
            Entry::Value { bytes, .. } => Some(bytes),
            Entry::Blob { .. } => Some(&[]),
        }
    }

    /// Returns the value at the merge's position, to keep, unless it is deleted or has expired.
    fn value(&self) -> Option<Value> {
        self.bytes()?;
        let value = match self.merge.at()? {
            Source::Memory(memory) => self.shared.value_of(memory.found()?, || self.now_s),
            Source::Run(run) => run.cursor()?.value(),
        };
        // One that is left unread.
        Some(value.unwrap_or_else(|| Value::of_bytes(Bytes::new(), 0, self.shared.cache.held())))
    }
}

#[cfg(feature = "stream")]
impl futures_core::Stream for Range {
    type Item = Result<(Vec<u8>, Value)>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_next_entry(context).map(Result::transpose)
    }
}

forebay::_debug_parts!(Range, |range| bounds: range.wanted.bounds);
