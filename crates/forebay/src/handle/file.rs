//! An open file, the same from a Tokio task, a plain thread and a task on a shard.

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::base::class::Class;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::pending::Pending;
use crate::base::wait::Waitable;
use crate::device::{Alignment, Device};
use crate::driver::meta::{self, Advice, FdOwner, Lock, MetaReply, MetaRequest};
use crate::io::metadata::Metadata;
use crate::io::mode::Mode;
use crate::reactor::open_file::FileCore;
use crate::reactor::shard;

/// The pause between two tries of a lock that is waited for.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// An open file: a handle that is cheap to clone and works from any thread.
///
/// ```
/// use forebay::{Config, Durability, Engine, Open};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("points.bin");
/// let engine = Engine::start(Config::new())?;
/// let file = engine.open(&path, Open::create()).await?;
/// file.write(0, vec![7; 4096]).durable(Durability::Data).await?;
/// let block = file.read(1_000..1_100).await?; // any offset, any length; no copy
/// assert_eq!(block[..], [7; 100]);
/// # Ok(()) }
/// ```
///
/// | task | methods |
/// |---|---|
/// | read a range | [`read`](File::read), [`read_up_to`](File::read_up_to), [`read_into`](File::read_into) own memory |
/// | read many ranges in one batch | [`read_many`](File::read_many) |
/// | read from front to back | [`scan`](File::scan) |
/// | follow a chain of reads: a tree, a list | [`walk`](File::walk), [`walk_many`](File::walk_many) |
/// | write a range | [`write`](File::write), [`write(..).durable(..)`](crate::Write::durable) |
/// | make finished writes durable | [`sync`](File::sync) |
/// | write from front to back, any sizes | [`append`](File::append) |
/// | write small pieces at any offsets, or one file from many tasks | the crate `forebay-collective` |
/// | length and space | [`len`](File::len), [`truncate`](File::truncate), [`allocate`](File::allocate), [`write_zeros`](File::write_zeros), [`punch_hole`](File::punch_hole), [`copy_range`](File::copy_range) |
/// | lock it against other programs | [`try_lock`](File::try_lock), [`lock_within`](File::lock_within), [`unlock`](File::unlock) |
/// | use of the page cache | [`advise`](File::advise), [`mode`](File::mode) |
/// | attributes | [`metadata`](File::metadata), [`path`](File::path), [`is_removed`](File::is_removed), [`alignment`](File::alignment), [`device`](File::device), [`home_shard`](File::home_shard) |
/// | know when its operations have ended | [`close`](File::close) |
///
/// Operations are builders: await them in a task of any executor, or call `.wait()` on a plain thread. On a shard of the file's
/// engine they run on that shard; from other threads they are sent to the file's home shard, in batches. Operations in flight are
/// unordered. Dropping an operation's future cancels the operation if possible. The engine keeps its memory until the device is
/// done with it, so freed memory is never written to.
///
/// The same file may be open directly and through the page cache at the same time. Each handle sees the completed operations of the
/// other, including unsynced writes to the page cache. Concurrent operations on the same range through both are unordered.
///
/// When the last handle is dropped, the file is closed as soon as its operations have ended; [`File::close`]
/// reports when.
pub struct File {
    core: Arc<FileCore>,
}

impl File {
    pub(crate) fn new(core: Arc<FileCore>) -> File {
        File { core }
    }

    #[inline]
    pub(crate) fn core(&self) -> &Arc<FileCore> {
        &self.core
    }

    /// Reserves space on the device for the range, so that writes to it cannot run out of space, and extends the file to the
    /// end of the range.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of fallocate(2); [`ErrorKind::Unsupported`] if the file system does not support the call.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// file.allocate(0..1 << 20).wait()?; // writes below 1 MiB cannot fail with ENOSPC any more
    /// assert_eq!(file.len().wait()?, 1 << 20);
    /// # Ok(()) }
    /// ```
    pub fn allocate(&self, range: Range<u64>) -> Pending<()> {
        self.ranged("allocate", range, |file, offset, len| MetaRequest::Allocate { file, offset, len })
    }

    /// Writes zeros to the range by a device command, which transfers no bytes, and extends the file to the end of the range.
    /// Later writes there change no metadata of the file, unlike those into space that was only [allocated](File::allocate).
    ///
    /// Durable with the next [`sync`](File::sync). A call that has started [may still take effect](Pending#when-it-is-dropped)
    /// after its future is dropped.
    ///
    /// # Errors
    /// Those of fallocate(2) with `FALLOC_FL_WRITE_ZEROES`; [`ErrorKind::Unsupported`] before Linux 6.17, and where the file
    /// system or the device does not support it. The file is then unchanged; use [`write`](File::write).
    ///
    /// ```
    /// # use forebay::{Config, Engine, ErrorKind, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// match file.write_zeros(0..1 << 20).wait() {
    ///     Err(error) if error.kind() == ErrorKind::Unsupported => file.write(0, vec![0; 1 << 20]).wait()?,
    ///     written => written?,
    /// };
    /// # Ok(()) }
    /// ```
    pub fn write_zeros(&self, range: Range<u64>) -> Pending<()> {
        self.ranged("write_zeros", range, |file, offset, len| MetaRequest::WriteZeros { file, offset, len })
    }

    /// Frees the space of the range: it reads as zeros, and the length stays.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of fallocate(2); [`ErrorKind::Unsupported`] if the file system does not support the call.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// file.punch_hole(4096..8192).wait()?;
    /// assert_eq!(file.read(4095..4097).wait()?[..], [7, 0]);
    /// assert_eq!(file.len().wait()?, 16_384);
    /// # Ok(()) }
    /// ```
    pub fn punch_hole(&self, range: Range<u64>) -> Pending<()> {
        if self.core.namespace_bytes().is_some() && !self.core.is_closed() {
            return self.punch_namespace(range);
        }
        self.ranged("punch_hole", range, |file, offset, len| MetaRequest::PunchHole { file, offset, len })
    }

    /// Sets the length: cuts the file, or extends it with zeros.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of ftruncate(2).
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// file.truncate(100).wait()?;
    /// assert_eq!(file.read_up_to(0..4096).wait()?.len(), 100);
    /// # Ok(()) }
    /// ```
    pub fn truncate(&self, len: u64) -> Pending<()> {
        self.ask(MetaRequest::Truncate { file: self.owner(), len }, meta::done)
    }

    /// Returns the length in bytes.
    ///
    /// # Errors
    /// Those of fstat(2).
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// assert_eq!(file.len().wait()?, 16_384);
    /// # Ok(()) }
    /// ```
    pub fn len(&self) -> Pending<u64> {
        self.metadata().map(|metadata| Ok(metadata.len()))
    }

    /// Returns length, times and other attributes.
    ///
    /// # Errors
    /// Those of fstat(2).
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// let metadata = file.metadata().wait()?;
    /// assert!(metadata.is_file() && metadata.len() == 16_384);
    /// # Ok(()) }
    /// ```
    pub fn metadata(&self) -> Pending<Metadata> {
        self.ask(MetaRequest::FileMetadata { file: self.owner() }, |reply| match reply {
            MetaReply::Metadata(metadata) => Some(metadata),
            _ => None,
        })
    }

    /// Advises the kernel of the expected use of a range.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of posix_fadvise(2).
    ///
    /// ```
    /// # use forebay::{Advice, Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::start(Config::new())?;
    /// // The page cache lets go of a part that was read through it and is not needed again.
    /// let file = engine.open("Cargo.toml", Open::read().buffered()).wait()?;
    /// file.read_up_to(0..4096).wait()?;
    /// file.advise(0..4096, Advice::DontNeed).wait()?;
    /// # Ok(()) }
    /// ```
    pub fn advise(&self, range: Range<u64>, advice: Advice) -> Pending<()> {
        // The kernel interprets a length of 0 as "to the end", and its offsets are signed (posix_fadvise(2)): behind them is no byte.
        let end = range.end.min(i64::MAX as u64);
        let has_bytes = !(end..=range.end).contains(&range.start);
        if !has_bytes && !self.core.is_closed() {
            return Pending::ready(Ok(()));
        }
        let start = if has_bytes { range.start } else { end };
        self.ranged("advise", start..end, move |file, offset, len| MetaRequest::Advise {
            file,
            offset,
            len,
            advice,
        })
    }

    /// Copies a range of this file to `offset` of another and returns the number of bytes copied, fewer if this file ends
    /// first. The kernel makes the copy, and shares extents where the file system can.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of copy_file_range(2).
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// let copy = engine.open(dir.path().join("copy"), Open::create()).wait()?;
    /// let bytes = file.copy_range(0..u64::MAX >> 1, &copy, 0).wait()?; // up to the end of the file
    /// assert_eq!((bytes, copy.len().wait()?), (16_384, 16_384));
    /// # Ok(()) }
    /// ```
    pub fn copy_range(&self, range: Range<u64>, to: &File, offset: u64) -> Pending<u64> {
        let Some(len) = range.end.checked_sub(range.start) else {
            return self.backwards("copy_range", &range);
        };
        let request = MetaRequest::CopyRange {
            from: self.owner(),
            offset: range.start,
            len,
            to: to.owner(),
            to_offset: offset,
        };
        self.ask(request, |reply| match reply {
            MetaReply::Copied(bytes) => Some(bytes),
            _ => None,
        })
    }

    /// Closes the file for all its handles. Later operations fail with [`ErrorKind::FileClosed`]; operations in flight complete.
    /// The close completes after the last of them, including calls on length, space, locks and attributes and [dropped
    /// calls](Pending#when-it-is-dropped).
    ///
    /// The descriptor itself is closed then too, and with it the [lock](File::try_lock), unless the program still holds other handles
    /// of the file or futures of its operations: it closes with the last of them.
    ///
    /// # Errors
    /// [`ErrorKind::FileClosed`] if it was closed before.
    ///
    /// ```
    /// # use forebay::{Config, Engine, ErrorKind, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// let other = file.clone();
    /// file.close().wait()?; // nothing of it is in flight any more
    /// let error = other.read(0..1).wait().map(drop);
    /// assert_eq!(error.map_err(|error| error.kind()), Err(ErrorKind::FileClosed));
    /// # Ok(()) }
    /// ```
    pub fn close(self) -> Pending<()> {
        if self.core.is_closed() {
            return Pending::ready(Err(self.core.describe(Error::new(ErrorKind::FileClosed, "close"))));
        }
        if self.core.engine().is_forked() {
            return Pending::ready(Err(self.core.describe(Error::new(ErrorKind::Forked, "close"))));
        }
        self.core.close();
        Pending::from_future(
            "close",
            Box::pin(async move {
                poll_fn(|context| self.core.poll_closed(context.waker())).await;
                drop(self);
                Ok(())
            }),
        )
    }

    /// Returns whether the file has been unlinked, as of now; its content is then lost when it is closed. One system call on
    /// the calling thread, which does not reach the device. On a network file system the result is that of this machine's
    /// cached attributes.
    ///
    /// # Errors
    /// Those of fstat(2).
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// let path = dir.path().join("data");
    /// engine.remove_file(&path).wait()?;
    /// assert!(file.is_removed()?); // a log would be opened anew here
    /// # Ok(()) }
    /// ```
    pub fn is_removed(&self) -> crate::Result<bool> {
        use crate::driver::meta::DescriptorOwner;
        const OPERATION: &str = "is_removed";
        let core = &self.core;
        if core.is_closed() {
            return Err(core.describe(Error::new(ErrorKind::FileClosed, OPERATION)));
        }
        core.engine().is_removed(OPERATION, core.descriptor()).map_err(|error| core.describe(error))
    }

    /// Returns the identifier of this open file, shared by all its handles and unique within the process. A path opened twice
    /// has two identifiers.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> forebay::Result<()> {
    /// # let engine = Engine::start(Config::new())?;
    /// let file = engine.open("Cargo.toml", Open::read()).wait()?;
    /// assert_eq!(file.id(), file.clone().id());
    /// assert_ne!(file.id(), engine.open("Cargo.toml", Open::read()).wait()?.id());
    /// # Ok(()) }
    /// ```
    pub fn id(&self) -> u64 {
        self.core.id()
    }

    /// Returns the path as it was opened.
    pub fn path(&self) -> &Path {
        self.core.path()
    }

    /// Returns the file's mode: direct, buffered, uncached or adaptive.
    pub fn mode(&self) -> Mode {
        self.core.mode()
    }

    /// Returns the alignment that direct operations need for offsets, lengths and memory.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// let unit = u64::from(file.alignment().offset); // 512 or 4,096 on most devices, 1 through the page cache
    /// let end = 10_000u64.next_multiple_of(unit);
    /// file.write(0, vec![1; end as usize]).wait()?; // whole units, as direct I/O demands
    /// # Ok(()) }
    /// ```
    pub fn alignment(&self) -> Alignment {
        let alignment = *self.core.alignment();
        Alignment { direct: alignment.direct && !self.core.has_left_direct(), ..alignment }
    }

    /// Returns the device that the file is on.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// let device = file.device();
    /// println!("{} has a queue of {:?} requests", device.name(), device.queue_depth());
    /// # Ok(()) }
    /// ```
    pub fn device(&self) -> &Device {
        self.core.device()
    }

    /// Returns the shard that serves this file for all callers outside the shards.
    ///
    /// ```
    /// # use forebay::{Class, Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// let (shard, file) = (file.home_shard(), file.clone());
    /// let task = engine.spawn_on_shard(shard, Class::DEFAULT, move || async move { file.read(0..100).await });
    /// assert_eq!(task.wait()??.len(), 100);
    /// # Ok(()) }
    /// ```
    pub fn home_shard(&self) -> usize {
        self.core.home()
    }

    pub(crate) fn owner(&self) -> FdOwner {
        self.core.clone()
    }

    /// Executes a request on the pool; errors name this file.
    fn ask<T: Send + 'static>(
        &self,
        request: MetaRequest,
        answer: impl FnOnce(MetaReply) -> Option<T> + Send + 'static,
    ) -> Pending<T> {
        if self.core.is_closed() {
            let error = Error::new(ErrorKind::FileClosed, request.operation());
            return Pending::ready(Err(self.core.describe(error)));
        }
        match self.core.namespace_bytes() {
            None => self.core.engine().ask_of(&self.core, request, answer),
            Some(bytes) => self.ask_namespace(bytes, request, answer),
        }
    }

    fn ranged(
        &self,
        operation: &'static str,
        range: Range<u64>,
        request: impl FnOnce(FdOwner, u64, u64) -> MetaRequest,
    ) -> Pending<()> {
        match range.end.checked_sub(range.start) {
            Some(len) => self.ask(request(self.owner(), range.start, len), meta::done),
            None => self.backwards(operation, &range),
        }
    }

    fn backwards<T>(&self, operation: &'static str, range: &Range<u64>) -> Pending<T> {
        let note = format!("the range ends ({}) before it starts ({})", range.end, range.start);
        Pending::ready(Err(self.core.describe(Error::invalid(operation, note))))
    }
}

impl Clone for File {
    fn clone(&self) -> File {
        self.core.add_handle();
        File { core: self.core.clone() }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.core.drop_handle();
    }
}

/// Returns the descriptor, for calls that Forebay does not offer. The caller must not close it or change its
/// flags.
impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.fd()
    }
}

crate::_debug_parts!(File, |file| path: file.path(), mode: file.mode());

impl File {
    /// Takes a lock on the whole file without waiting. The lock belongs to this open file and all its handles, and is released
    /// with the last of them (flock(2)), also while a forked child has the descriptor. It is advisory: programs that take no lock
    /// are not bound.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// The locks of a killed process outlive it: the kernel releases them after tearing down the process's rings and their
    /// requests, up to 0.6 seconds after waitpid(2) returned, longer on a slow device. [`lock_within`](File::lock_within)
    /// waits. They also stay while a child lives that was forked meanwhile and has not called execve(2).
    ///
    /// # Errors
    /// [`ErrorKind::Locked`](crate::ErrorKind::Locked) if another holder has a conflicting lock.
    ///
    /// ```
    /// # use forebay::{Config, Engine, ErrorKind, Lock, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// file.try_lock(Lock::Exclusive).wait()?;
    /// let other = engine.open(dir.path().join("data"), Open::write()).wait()?;
    /// let refused = other.try_lock(Lock::Shared).wait();
    /// assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::Locked));
    /// file.unlock().wait()?;
    /// other.try_lock(Lock::Shared).wait()?;
    /// # Ok(()) }
    /// ```
    pub fn try_lock(&self, lock: Lock) -> Pending<()> {
        self.core.note_lock();
        self.ask(MetaRequest::TryLock { file: self.owner(), lock }, meta::done)
    }

    /// Takes a lock as [`try_lock`](File::try_lock) does, and tries again every 5 milliseconds for about `patience` while
    /// another holder has a conflicting one: for the locks of a process that was killed, a few seconds. No thread blocks
    /// meanwhile.
    ///
    /// Dropping the future ends the retries; an attempt that has started [may still take effect](Pending#when-it-is-dropped).
    ///
    /// # Errors
    /// [`ErrorKind::Locked`](crate::ErrorKind::Locked) if another holder had a conflicting lock all the time.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Lock, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// file.lock_within(Lock::Exclusive, std::time::Duration::from_secs(10)).wait()?;
    /// # Ok(()) }
    /// ```
    pub fn lock_within(
        &self,
        lock: Lock,
        patience: Duration,
    ) -> Waitable<impl Future<Output = Result<()>> + use<>> {
        let file = self.clone();
        Waitable::new(
            "lock_within",
            async move { file.until_free(patience, |file| file.try_lock(lock)).await },
        )
    }

    /// Tries to lock until no other holder has a conflicting lock, for about `patience`.
    async fn until_free(&self, patience: Duration, attempt: impl Fn(&File) -> Pending<()>) -> Result<()> {
        // Counted, not timed: the same with a clock that stands, or jumps.
        for _ in 0..patience.as_nanos().div_ceil(LOCK_PAUSE.as_nanos()) {
            match attempt(self).await {
                Err(error) if error.kind() == ErrorKind::Locked => self.pause(LOCK_PAUSE).await?,
                result => return result,
            }
        }
        attempt(self).await
    }

    /// Waits on the home shard, which has the clock.
    async fn pause(&self, pause: Duration) -> Result<()> {
        let inbox = &self.core.engine().inboxes[self.core.home()];
        shard::spawn_on(inbox, Class::DEFAULT, move || shard::sleep(pause)).await?
    }

    /// Releases the lock.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of flock(2).
    pub fn unlock(&self) -> Pending<()> {
        self.ask(MetaRequest::Unlock { file: self.owner() }, meta::done)
    }
}

/// For our crates.
impl File {
    /// Returns the metadata by a system call of the calling thread, instead of a hand-over to the pool; `None` for an NVMe namespace and in
    /// a simulated world. A network file system may wait for its server.
    ///
    /// # Errors
    /// Those of fstat(2).
    #[doc(hidden)]
    pub fn try_metadata(&self) -> Option<Result<Metadata>> {
        const OPERATION: &str = "metadata";
        let core = &self.core;
        if core.engine().is_simulated() || core.namespace_bytes().is_some() {
            return None;
        }
        let found = if core.is_closed() {
            Err(Error::new(ErrorKind::FileClosed, OPERATION))
        } else {
            core.engine().check(OPERATION).and_then(|()| meta::metadata(core.fd()))
        };
        Some(found.map_err(|error| core.describe(error)))
    }

    /// Sets the file's modification time and returns its metadata, with the time as the file system stores it.
    ///
    /// # Errors
    /// Those of futimens(3).
    #[doc(hidden)]
    pub fn set_modified(&self, modified: SystemTime) -> Pending<Metadata> {
        self.ask(MetaRequest::SetModified { file: self.owner(), modified }, |reply| match reply {
            MetaReply::Metadata(metadata) => Some(metadata),
            _ => None,
        })
    }

    /// Takes an OFD lock on the whole file, which excludes other programs' POSIX and OFD locks (fcntl(2)), or releases it with `None`. Tries
    /// for about `patience`, as [`lock_within`](File::lock_within) does. An exclusive lock needs a file that is open for writing, a shared
    /// one for reading. It ends as [that of `try_lock`](File::try_lock) does, with the last handle.
    ///
    /// # Errors
    /// Those of [`lock_within`](File::lock_within); [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a system without OFD
    /// locks, and in simulated worlds.
    #[doc(hidden)]
    pub fn record_lock(
        &self,
        lock: Option<Lock>,
        patience: Duration,
    ) -> Waitable<impl Future<Output = Result<()>> + use<>> {
        let file = self.clone();
        if lock.is_some() {
            self.core.note_record_lock();
        }
        Waitable::new("record_lock", async move {
            let request = |file: &File| MetaRequest::RecordLock { file: file.owner(), lock };
            file.until_free(patience, |file| file.ask(request(file), meta::done)).await
        })
    }

    /// Sets an extended attribute, whose name starts with `user.`.
    ///
    /// # Errors
    /// Those of fsetxattr(2); [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a file system without them.
    #[doc(hidden)]
    pub fn set_attribute(&self, name: String, value: Vec<u8>) -> Pending<()> {
        self.ask(MetaRequest::SetAttribute { file: self.owner(), name, value }, meta::done)
    }

    /// Returns the extended attributes whose names start with `user.`.
    ///
    /// # Errors
    /// Those of flistxattr(2) and fgetxattr(2).
    #[doc(hidden)]
    pub fn attributes(&self) -> Pending<Vec<(String, Vec<u8>)>> {
        self.ask(MetaRequest::Attributes { file: self.owner() }, |reply| match reply {
            MetaReply::Attributes(attributes) => Some(attributes),
            _ => None,
        })
    }
}

impl File {
    /// Executes a request on a namespace. Metadata and locks work; all else fails, as its size is fixed and it has no page cache.
    #[cold]
    fn ask_namespace<T: Send + 'static>(
        &self,
        bytes: u64,
        request: MetaRequest,
        answer: impl FnOnce(MetaReply) -> Option<T> + Send + 'static,
    ) -> Pending<T> {
        let operation = request.operation();
        match request {
            MetaRequest::FileMetadata { .. } => {
                self.core.engine().ask_of(&self.core, request, move |reply| {
                    let MetaReply::Metadata(mut metadata) = reply else { return None };
                    metadata.set_len(bytes);
                    answer(MetaReply::Metadata(metadata))
                })
            }
            MetaRequest::TryLock { .. } | MetaRequest::Unlock { .. } | MetaRequest::RecordLock { .. } => {
                self.core.engine().ask_of(&self.core, request, answer)
            }
            _ => {
                if let Err(error) = self.core.engine().check(operation) {
                    return Pending::ready(Err(self.core.describe(error)));
                }
                let note = format!("an NVMe namespace has a fixed size ({bytes} bytes) and no page cache");
                let error = Error::new(ErrorKind::Unsupported, operation).with_note(note);
                Pending::ready(Err(self.core.describe(error)))
            }
        }
    }

    /// Fails [`File::punch_hole`] of a namespace, which exists on Linux only.
    #[cfg(not(target_os = "linux"))]
    fn punch_namespace(&self, _: Range<u64>) -> Pending<()> {
        Pending::ready(Err(self.core.describe(Error::new(ErrorKind::Unsupported, "punch_hole"))))
    }

    /// Executes [`File::punch_hole`] of a namespace.
    #[cfg(target_os = "linux")]
    fn punch_namespace(&self, range: Range<u64>) -> Pending<()> {
        let core = self.core.clone();
        let failed = |error| Pending::ready(Err(core.describe(error)));
        if let Err(error) = core.engine().check("punch_hole") {
            return failed(error);
        }
        let (Some(namespace), Some(len)) = (core.namespace().cloned(), range.end.checked_sub(range.start))
        else {
            return self.backwards("punch_hole", &range);
        };
        if !core.is_writable() {
            return failed(Error::os("punch_hole", libc::EBADF));
        }
        let owner = core.clone();
        core.engine().run("punch_hole", Some(&*core), move || {
            namespace.punch(owner.fd(), range.start, len).map_err(|error| owner.describe(error))
        })
    }
}
