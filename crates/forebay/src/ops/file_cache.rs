//! Caches of open files, for libraries on an engine that read more files than a process may have open.

mod file_limit;

use std::ffi::OsStr;
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

pub use self::file_limit::{AbortOnDrop, FileCount};
use self::file_limit::{Line, Place};
use crate::base::class::Class;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::in_flight::{InFlight, Stay};
use crate::base::pending::Pending;
use crate::base::wait::Waitable;
use crate::base::wakes;
use crate::driver::meta::At;
use crate::handle::engine::{Engine, WeakEngine};
use crate::handle::file::File;
use crate::handle::open::{self, Open};
use crate::ops::dir::Dir;
use crate::reactor::idle_files::{IdleFiles, Slot};

/// One in this many descriptors of all caches is for files that do not stay open, and as many are for calls that take turns.
const BESIDE_PART: usize = 8;
/// Limits for the files of either.
const BESIDE: std::ops::RangeInclusive<usize> = 2..=64;
/// The reciprocal of one batch's part of the files that stay open.
const BATCH_PART: usize = 4;

/// The files of one owner that stay open for later use; for `forebay-object-store`, `forebay-kv` and the Python package alone.
///
/// All caches of an engine share [`Config::descriptors_max`](crate::Config::descriptors_max). Past it, and when the process has no
/// descriptor left, the least recently used files that no operation uses are closed. When the last handle and the last entry
/// are dropped, all of them are closed.
#[doc(hidden)]
#[derive(Clone)]
pub struct FileCache {
    core: Arc<CacheCore>,
}

struct CacheCore {
    engine: WeakEngine,
    owner: u64,
    open: Open,
    files_max: usize,
    beside_max: usize,
    line: Arc<Line>,
    opens: Mutex<Opens>,
}

/// The opens under way in the pool, which belong to the close of their cache. A close waits for earlier opens, and never for later
/// opens, which are counted separately.
#[derive(Default)]
struct Opens {
    is_closed: bool,
    current: Arc<InFlight>,
    /// Opens from before the current close.
    before: Vec<Arc<InFlight>>,
}

/// A file of a cache, open or not.
#[doc(hidden)]
pub struct FileEntry {
    cache: FileCache,
    at: At,
    slot: Arc<Slot<File>>,
    opening: Arc<Mutex<OpenState>>,
}

/// A use of an open file, which stays open until this is dropped.
#[doc(hidden)]
pub struct FileUse {
    slot: Arc<Slot<File>>,
}

/// The place of a call among those that take turns, if it has one; see [`FileCache::run`].
#[doc(hidden)]
pub struct FilePlace(Option<Place>);

/// The open of an entry's file that is under way, and the outcome of the last one that failed.
#[derive(Default)]
struct OpenState {
    is_under_way: bool,
    /// The number of opens started.
    number: u64,
    failed: Option<(u64, Error)>,
    /// Those of the calls that wait for the open under way. Of ten thousand no call looks at the others.
    wakers: Vec<Waker>,
}

/// An open that a call has waited for.
#[derive(Clone, Copy)]
struct AwaitedOpen {
    number: u64,
    /// The place of the call's waker, while the open is under way.
    place: usize,
}

impl FileCache {
    /// Returns a cache of files that are opened with `open`, of which at most `files_max` (at least 1) stay open; `None` sets
    /// only the engine's limit.
    pub fn new(engine: &Engine, open: Open, files_max: Option<usize>) -> FileCache {
        let list = &engine.shared().idle_files;
        let descriptors_max = list.descriptors_max();
        let owner = list.add_owner(files_max.map_or(usize::MAX, |files| files.max(1)));
        let fit = (descriptors_max / open.descriptors()).max(1);
        let beside_max = (descriptors_max / BESIDE_PART).clamp(*BESIDE.start(), *BESIDE.end());
        let core = CacheCore {
            engine: engine.downgrade(),
            owner,
            open,
            files_max: files_max.map_or(fit, |files| files.clamp(1, fit)),
            beside_max,
            line: Line::new(beside_max),
            opens: Mutex::default(),
        };
        FileCache { core: Arc::new(core) }
    }

    /// Returns the file at `path`, which is not opened yet.
    pub fn file(&self, path: impl AsRef<Path>) -> FileEntry {
        self.entry(path.as_ref().into())
    }

    /// Returns the file of this name in an open directory, which is not opened yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for an invalid name.
    pub fn file_in(&self, dir: &Dir, name: impl AsRef<OsStr>) -> Result<FileEntry> {
        Ok(self.entry(dir.at("open", name)?))
    }

    /// Returns an entry for an open file. The file stays open as long as the entry, because it may have no name by which it could
    /// be opened again.
    pub fn holding(&self, file: File) -> FileEntry {
        let entry = self.entry(file.path().into());
        entry.slot.enter();
        entry.slot.open(file, self.core.open.descriptors());
        entry
    }

    fn entry(&self, at: At) -> FileEntry {
        let slot = Slot::new(self.list(), self.core.owner);
        FileEntry { cache: self.clone(), at, slot, opening: Arc::default() }
    }

    fn list(&self) -> &Arc<IdleFiles> {
        &self.core.engine.shared().idle_files
    }

    /// Returns the number of files that are open.
    pub fn open_files(&self) -> usize {
        self.list().open_files(self.core.owner)
    }

    /// Returns how many descriptors the files of all caches of the engine may have.
    pub fn descriptors_max(&self) -> usize {
        self.list().descriptors_max()
    }

    /// Returns how many files one batch should have open, at least 1: a quarter of those that stay open.
    pub fn batch_files_max(&self) -> usize {
        (self.core.files_max / BATCH_PART).max(1)
    }

    /// Closes all files that no operation uses. This starts with the call. The future completes when all earlier opens have ended,
    /// also those whose calls were dropped, and nothing of them is left.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`] in the child of a fork.
    pub fn close_idle(&self) -> Pending<()> {
        self.close_files("close_idle", false)
    }

    /// Closes the cache for all its handles: immediately all files that no operation uses, and each other file when its use ends.
    /// Later opens fail with [`ErrorKind::FileClosed`]. Opens in flight run to their end, also those whose calls were dropped; then
    /// the future completes. It may be called again, and waits as well.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`] in the child of a fork.
    pub fn close(&self) -> Pending<()> {
        self.close_files("close", true)
    }

    fn close_files(&self, operation: &'static str, is_last: bool) -> Pending<()> {
        // A fork may have copied the lock while it was held.
        if self.core.engine.shared().is_forked() {
            return Pending::ready(Err(Error::new(ErrorKind::Forked, operation)));
        }
        let before = {
            let mut opens = lock(&self.core.opens);
            opens.is_closed |= is_last;
            let current = std::mem::take(&mut opens.current);
            opens.before.push(current);
            opens.before.retain(|opens| opens.count() > 0);
            opens.before.clone()
        };
        let (list, owner) = (self.list().clone(), self.core.owner);
        if is_last {
            list.set_files_max(owner, 0);
        } else {
            list.close_idle(owner);
        }
        if crate::_is_broken!(OpensOutliveClose) {
            return Pending::ready(Ok(()));
        }
        if before.is_empty() {
            return Pending::ready(Ok(()));
        }
        Pending::from_future(
            operation,
            Box::pin(async move {
                for opens in before {
                    poll_fn(|context| opens.poll_none(context.waker())).await;
                }
                // The files of opens that nothing waited for.
                list.close_idle(owner);
                Ok(())
            }),
        )
    }

    /// Counts an open that is about to start.
    fn begin_open(&self) -> Result<Stay> {
        let opens = lock(&self.core.opens);
        if opens.is_closed {
            Err(Error::new(ErrorKind::FileClosed, "open"))
        } else {
            Ok(opens.current.enter())
        }
    }

    /// Counts a file that a call of the owner has open outside of the cache, until the result is dropped.
    pub fn count(&self) -> FileCount {
        FileCount::new(&self.core.line)
    }

    /// Runs a call that opens a file of the cache. While few are being opened, and few are in use beyond those that stay open, it
    /// runs where it is polled. Further calls run as tasks of the engine and wait there for a place: such a task is always
    /// polled, so that a call that the program leaves unpolled does not block others. Dropping the future stops the call.
    ///
    /// # Errors
    /// Those of a task.
    pub fn run<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        class: Class,
        call: impl FnOnce(FilePlace) -> F + Send + 'static,
    ) -> Waitable<impl Future<Output = Result<T>> + Send> {
        Waitable::new("run", self.run_call(class, call))
    }

    async fn run_call<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        class: Class,
        call: impl FnOnce(FilePlace) -> F + Send + 'static,
    ) -> Result<T> {
        let open = self.open_files();
        if open.saturating_sub(self.core.files_max) + self.core.line.beside() < self.core.beside_max {
            return Ok(call(FilePlace::NONE).await);
        }
        let Some(engine) = self.core.engine.upgrade() else {
            return Err(Error::new(ErrorKind::EngineClosed, "task"));
        };
        let line = self.core.line.clone();
        let task = engine.spawn_on_shard(open % engine.shard_count(), class, move || async move {
            let place = line.enter().await;
            call(FilePlace(Some(place))).await
        });
        drop(engine);
        AbortOnDrop(task).await
    }
}

impl Drop for CacheCore {
    fn drop(&mut self) {
        self.engine.shared().idle_files.remove_owner(self.owner);
    }
}

impl FileEntry {
    /// Returns the path, for messages.
    pub fn path(&self) -> &Path {
        self.at.path()
    }

    /// Returns whether the file is open at the moment.
    pub fn is_open(&self) -> bool {
        self.slot.is_open()
    }

    /// Returns the file if it is open.
    pub fn get(&self) -> Option<FileUse> {
        let used = Use(&self.slot);
        self.slot.enter().then(|| used.keep())
    }

    /// Returns the file, which is opened if it is not open. `place` is the caller's, if it has one.
    ///
    /// Calls that need the same file wait for one open, which is queued in the pool independently of the calls. Without a free
    /// descriptor, the call waits as long as other calls in places continue, whose end releases one.
    ///
    /// # Errors
    /// Those of [`Engine::open`](crate::Engine::open); [`ErrorKind::FileClosed`] if the cache was closed and the file is not open.
    pub fn open(&self, place: &FilePlace) -> Waitable<impl Future<Output = Result<FileUse>> + Send> {
        Waitable::new("open", self.open_file(place))
    }

    async fn open_file(&self, place: &FilePlace) -> Result<FileUse> {
        let used = Use(&self.slot);
        if self.slot.enter() {
            return Ok(used.keep());
        }
        let engine = self.cache.core.engine.shared();
        engine.check("open").map_err(|error| error.with_path(self.path()))?;
        let _counted = self.cache.count();
        loop {
            let mut mine = None;
            match poll_fn(|context| self.poll_open(&mut mine, context)).await {
                Ok(()) => return Ok(used.keep()),
                Err(error) if error.is_out_of_descriptors() => {
                    if !self.cache.core.line.released(place.0.is_some()).await {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the open in flight, or starts one. `mine` is the open that was waited for before.
    fn poll_open(&self, mine: &mut Option<AwaitedOpen>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let stay = {
            let mut opening = lock(&self.opening);
            // Opened in between, it stays so: the caller is counted as a use.
            if self.slot.is_open() {
                return Poll::Ready(Ok(()));
            }
            if let (Some(mine), Some((failed, error))) = (*mine, &opening.failed)
                && mine.number == *failed
            {
                return Poll::Ready(Err(error.clone()));
            }
            let begun = || self.cache.begin_open().map_err(|error| error.with_path(self.path()));
            let stay = if opening.is_under_way { None } else { Some(begun()?) };
            opening.is_under_way = true;
            opening.number += u64::from(stay.is_some());
            let number = opening.number;
            let place = mine.filter(|mine| mine.number == number).map(|mine| mine.place);
            match place.and_then(|place| opening.wakers.get_mut(place)) {
                Some(waker) => waker.clone_from(context.waker()),
                None => {
                    *mine = Some(AwaitedOpen { number, place: opening.wakers.len() });
                    opening.wakers.push(context.waker().clone());
                }
            }
            let Some(stay) = stay else { return Poll::Pending };
            stay
        };
        let open = self.cache.core.open;
        let end = OpenEnd {
            slot: self.slot.clone(),
            opening: self.opening.clone(),
            descriptors: open.descriptors(),
            is_over: false,
            _stay: stay,
        };
        if let Some(engine) = self.cache.core.engine.upgrade() {
            open::open_then(&engine, self.at.clone(), open, move |result| end.take(result));
        }
        Poll::Pending
    }
}

/// The end of an open: also of one that is never made, because the engine has ended.
struct OpenEnd {
    slot: Arc<Slot<File>>,
    opening: Arc<Mutex<OpenState>>,
    descriptors: usize,
    is_over: bool,
    /// The last field: a close that waits sees what is above released.
    _stay: Stay,
}

impl OpenEnd {
    fn take(mut self, result: Result<File>) {
        self.note(result);
    }

    fn note(&mut self, result: Result<File>) {
        self.is_over = true;
        let failed = match result {
            Ok(file) => {
                self.slot.open(file, self.descriptors);
                None
            }
            Err(error) => Some(error),
        };
        let wakers = {
            let mut opening = lock(&self.opening);
            opening.is_under_way = false;
            opening.failed = failed.map(|error| (opening.number, error));
            std::mem::take(&mut opening.wakers)
        };
        wakes::wake_each(wakers);
    }
}

impl Drop for OpenEnd {
    fn drop(&mut self) {
        if !self.is_over {
            self.note(Err(Error::new(ErrorKind::EngineClosed, "open")));
        }
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for FileEntry {
    fn drop(&mut self) {
        self.slot.remove();
    }
}

/// A use that was counted, or is about to be, by a caller that may be dropped before the file is open.
struct Use<'e>(&'e Arc<Slot<File>>);

impl Use<'_> {
    /// Returns the use of a file that is open.
    fn keep(self) -> FileUse {
        let slot = self.0.clone();
        std::mem::forget(self);
        debug_assert!(slot.is_open(), "a file in use is open");
        FileUse { slot }
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Deref for FileUse {
    type Target = File;

    #[inline]
    fn deref(&self) -> &File {
        // SAFETY: this use was counted before the file was seen to be open, and is until it is dropped.
        unsafe { self.slot.file() }
    }
}

impl Clone for FileUse {
    fn clone(&self) -> FileUse {
        self.slot.enter();
        FileUse { slot: self.slot.clone() }
    }
}

impl Drop for FileUse {
    fn drop(&mut self) {
        self.slot.leave();
    }
}

impl FilePlace {
    /// The place of a call outside of the line.
    pub const NONE: FilePlace = FilePlace(None);

    /// Returns whether others wait for the end of the call.
    pub fn is_taken(&self) -> bool {
        self.0.is_some()
    }
}

crate::_debug_parts!(FileCache, |file_cache| open: file_cache.core.open);

crate::_debug_parts!(FileEntry, |file_entry| path: file_entry.path(), is_open: file_entry.is_open());

impl fmt::Debug for FileUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FileUse").field(&**self).finish()
    }
}

impl fmt::Debug for FilePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FilePlace").field(&self.0.is_some()).finish()
    }
}
