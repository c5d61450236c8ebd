//! Options for opening a file, and the open itself.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::base::error::{Error, Result};
use crate::base::pending::Pending;
use crate::device::{Alignment, Device};
use crate::driver::Route;
use crate::driver::meta::{self, At, Descriptor, DescriptorOwner, Lock, MetaReply, MetaRequest, OpenHow};
#[cfg(target_os = "linux")]
use crate::handle::adaptive;
use crate::handle::engine::Engine;
use crate::handle::file::File;
use crate::io::config::Polling;
use crate::io::mode::Mode;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::open_file::{FileCore, FileParts};
use crate::reactor::page_cache::PageCache;

/// Options for opening a file: start with `Open::read()` or another constructor, and override the defaults, direct I/O on any
/// shard.
///
/// ```
/// use forebay::{Config, Engine, Open};
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let engine = Engine::start(Config::new())?;
/// let log = engine.open(dir.path().join("log"), Open::create().permissions(0o600)).wait()?;
/// let settings = engine.open("Cargo.toml", Open::read().buffered()).wait()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
#[doc(alias = "OpenOptions")]
#[must_use = "it describes a file to open; give it to Engine::open"]
pub struct Open {
    how: OpenHow,
    mode: Mode,
    shard: Option<usize>,
}

impl Open {
    /// Returns the options for an existing file, to read.
    pub fn read() -> Open {
        let how = OpenHow { read: true, mode: 0o666, ..OpenHow::default() };
        Open { how, mode: Mode::Direct, shard: None }
    }

    /// Returns the number of the file's descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        if self.mode == Mode::Adaptive { 2 } else { 1 }
    }

    #[cfg(feature = "_sim")]
    /// Returns whether the options request write access.
    pub(crate) fn is_writable(&self) -> bool {
        self.how.write
    }

    /// Returns the options for an existing file, to read and write.
    pub fn write() -> Open {
        let mut open = Open::read();
        open.how.write = true;
        open
    }

    /// Returns the options for a file to read and write, which is created if it does not exist. Existing
    /// content stays.
    pub fn create() -> Open {
        let mut open = Open::write();
        open.how.create = true;
        open
    }

    /// Returns the options for a new file to read and write; if it exists, the open fails.
    pub fn create_new() -> Open {
        let mut open = Open::write();
        open.how.create_new = true;
        open
    }

    /// Sets the file's I/O mode. Default: [`Mode::Direct`]. [`direct`](Open::direct), [`buffered`](Open::buffered),
    /// [`uncached`](Open::uncached) and [`adaptive`](Open::adaptive) set one each.
    pub fn mode(mut self, mode: Mode) -> Open {
        self.mode = mode;
        self
    }

    /// Bypasses the page cache; the default. The open fails where the file system has no direct I/O. An empty file whose file
    /// system accepted the flag and refuses its first request uses the page cache; [`Engine::health`](crate::Engine::health) says
    /// so.
    pub fn direct(self) -> Open {
        self.mode(Mode::Direct)
    }

    /// Uses the page cache. A read first tries the cache on the calling thread (`RWF_NOWAIT`), without a
    /// hop.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Mode, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::start(Config::new())?;
    /// let file = engine.open("Cargo.toml", Open::read().buffered()).wait()?;
    /// assert_eq!(file.mode(), Mode::Buffered);
    /// # Ok(()) }
    /// ```
    pub fn buffered(self) -> Open {
        self.mode(Mode::Buffered)
    }

    /// Uses the page cache, and drops the pages after use.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::start(Config::new())?;
    /// // One pass over a file that other programs may have in the page cache.
    /// let file = engine.open("Cargo.toml", Open::read().uncached()).wait()?;
    /// let mut scan = file.scan().start();
    /// while let Some(block) = scan.next().wait() {
    ///     block?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn uncached(self) -> Open {
        self.mode(Mode::Uncached)
    }

    /// Serves a read from the page cache if it holds the whole range, otherwise from the device, as [`direct`](Open::direct)
    /// does. A range whose pages all missed before is read through the page cache, which keeps it: one pass over a file loads
    /// nothing, the second loads what finds free memory. Free memory is the machine's `MemFree`, within the limits of the
    /// process's cgroup and of its ancestors. Nothing is loaded while refaults rise (`workingset_refault_file`), and nothing is
    /// evicted.
    ///
    /// [`File::read`](crate::File::read), [`read_up_to`](crate::File::read_up_to), walks, scans and the ranges of
    /// [`read_many`](crate::File::read_many) try the page cache on the calling thread, without a hop: cachestat(2) says whether
    /// all pages of the range are there (about 0.4 us; left out after a thousand hits in a row, until a page is missing), and preadv2(2)
    /// copies them (`RWF_NOWAIT`). If not, the whole range is read from the device. The rule for which reads try:
    /// - all, until 64 attempts on the file in a row have missed;
    /// - then one in 2, in 3, 5, ... up to one in 65, so that a cold file's attempts cost 6 ns a read on average; the first read
    ///   served from the cache restores all attempts;
    /// - no read of more than 4 MiB, and no [`read_into`](crate::File::read_into) with whole blocks into a `BlockMut`;
    /// - a sequential read, which starts at the end of the previous one, is served only if the next two read-ahead windows of the
    ///   device are cached as well, or the rest of the file. Otherwise it would carry on the read-ahead of another program, and
    ///   load the file. A lone read may hit the page that triggers such a read-ahead; it then starts, as by that program's own
    ///   read.
    ///
    /// [`Stats`](crate::Stats) counts each choice: `page_cache_reads`, `page_cache_misses`, `page_cache_skips`.
    ///
    /// Writes, and the alignment that they need, are those of a direct file. The kernel keeps both views of a file the same: a
    /// direct write writes dirty pages of its range back, and drops its cached pages before and after (`kiocb_invalidate_pages`
    /// and `kiocb_invalidate_post_direct_write` in mm/filemap.c); a direct read writes dirty pages back first
    /// (`kiocb_write_and_wait`).
    ///
    /// The file has a second descriptor, for the page cache. Where it cannot be opened (no /proc; cachestat(2) is refused for a
    /// file that the program neither owns nor may write) all reads are read from the device. Where the file system has no direct
    /// I/O, reads are as those of [`uncached`](Open::uncached) if the kernel can do that (`RWF_DONTCACHE`), otherwise as those of
    /// [`buffered`](Open::buffered); where it reports no alignment for it, the open tests it by one read of 4 KiB, on each device
    /// until one has worked. [`Engine::health`](crate::Engine::health) reports either. In a simulated world it is a direct file.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Mode, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::start(Config::new())?;
    /// let file = engine.open("Cargo.toml", Open::read().adaptive()).wait()?;
    /// assert_eq!(file.mode(), Mode::Adaptive);
    /// assert_eq!(&file.read(1..8).wait()?[..], b"package");
    /// # Ok(()) }
    /// ```
    pub fn adaptive(self) -> Open {
        self.mode(Mode::Adaptive)
    }

    /// Sets the file's length to zero while opening it. Needs write access.
    pub fn truncate(mut self) -> Open {
        self.how.truncate = true;
        self
    }

    /// Sets the shard that serves this file for all callers outside the shards. Default: the shard with the fewest files. The open
    /// fails for a shard out of range.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::start(Config::new())?;
    /// let file = engine.open("Cargo.toml", Open::read().shard(0)).wait()?;
    /// assert_eq!(file.home_shard(), 0);
    /// # Ok(()) }
    /// ```
    pub fn shard(mut self, shard: usize) -> Open {
        self.shard = Some(shard);
        self
    }

    /// Sets the permissions of a created file, as in chmod(2), before the process's umask. Default: `0o666`.
    pub fn permissions(mut self, mode: u32) -> Open {
        self.how.mode = mode;
        self
    }
}

pub(crate) fn open(engine: &Engine, at: At, open: Open) -> Pending<File> {
    let path = at.path().to_path_buf();
    begin(engine, request(engine, at, open), path, open, |file| file)
}

/// For our crates.
impl Engine {
    /// Opens a file and tries to take a lock of it, as [`File::try_lock`] does, with one hand-over to the pool. Returns whether it has the
    /// lock; if not, `try_lock` says why. In a simulated world it never has.
    ///
    /// # Errors
    /// Those of [`open`](Engine::open).
    #[doc(hidden)]
    pub fn open_locked(&self, path: impl AsRef<Path>, open: Open, lock: Lock) -> Pending<(File, bool)> {
        let path = path.as_ref();
        begin(self, request(self, path.into(), open), path.to_path_buf(), open, move |file| {
            let file = file?;
            file.core().note_lock();
            let is_locked = meta::lock_now(file.core().descriptor(), lock);
            Ok((file, is_locked))
        })
    }
}

/// Opens a file and gives the result to `then`, on the thread that has it. The call is queued although nothing waits for it; if the
/// engine ends before that, `then` is dropped.
pub(crate) fn open_then(
    engine: &Engine,
    at: At,
    open: Open,
    then: impl FnOnce(Result<File>) + Send + 'static,
) {
    let path = at.path().to_path_buf();
    let then = move |file| {
        then(file);
        Ok(())
    };
    begin(engine, request(engine, at, open), path, open, then).detach();
}

fn request(engine: &Engine, at: At, open: Open) -> MetaRequest {
    MetaRequest::Open { path: at, how: OpenHow { direct: opens_direct(engine, open), ..open.how } }
}

/// Returns whether the file is opened with `O_DIRECT`. An adaptive one gets the flag afterwards: see `adaptive.rs`.
fn opens_direct(engine: &Engine, open: Open) -> bool {
    match open.mode {
        Mode::Direct => true,
        Mode::Adaptive => engine.shared().is_simulated() || cfg!(not(target_os = "linux")),
        Mode::Buffered | Mode::Uncached => false,
    }
}

pub(crate) fn temp_file(engine: &Engine, dir: At, open: Open) -> Pending<File> {
    let path = dir.path().join("(unnamed)");
    begin(engine, MetaRequest::TempFile { dir, direct: opens_direct(engine, open) }, path, open, |file| file)
}

pub(crate) fn from_std(engine: &Engine, file: std::fs::File, open: Open) -> Pending<File> {
    if let Err(error) = check(engine.shared(), "open", open.shard) {
        return Pending::ready(Err(error));
    }
    let engine = engine.clone();
    if engine.shared().is_simulated() {
        return Pending::ready(Err(Error::invalid(
            "open",
            "a file of the operating system cannot be given to a simulated machine",
        )));
    }
    let shared = engine.shared().clone();
    shared.run("open", None, move || {
        let fd = OwnedFd::from(file);
        // pwrite(2): with O_APPEND data is appended to the file, regardless of the offset.
        if flags(&fd)?.contains(rustix::fs::OFlags::APPEND) {
            let text = "the file was opened to append (O_APPEND), so every write would land at its end instead of at its \
                        offset; open it without, and use File::append";
            return Err(Error::invalid("open", text));
        }
        let mode = match (is_direct(&fd)?, open.mode) {
            (true, Mode::Adaptive) => Mode::Adaptive,
            (true, _) => Mode::Direct,
            (false, Mode::Uncached) => Mode::Uncached,
            (false, _) => Mode::Buffered,
        };
        finish(&engine, fd, PathBuf::from("(given file)"), Open { mode, ..open })
    })
}

/// Returns an error if the engine accepts no requests, or lacks the shard.
pub(crate) fn check(shared: &EngineShared, operation: &'static str, shard: Option<usize>) -> Result<()> {
    shared.check(operation)?;
    shard.map_or(Ok(()), |shard| shared.check_shard(operation, shard))
}

/// Starts a call whose reply is an open file; `then` makes the result of that, or of the error.
fn begin<T: Send + 'static>(
    engine: &Engine,
    request: MetaRequest,
    path: PathBuf,
    open: Open,
    then: impl FnOnce(Result<File>) -> Result<T> + Send + 'static,
) -> Pending<T> {
    if let Err(error) = check(engine.shared(), request.operation(), open.shard) {
        return Pending::ready(then(Err(error.with_path(path))));
    }
    // The call keeps a handle of the engine: the engine must not end during an open that outlives all other handles.
    let shared = engine.shared().clone();
    let engine = engine.clone();
    shared.call(request, move |reply| {
        then(match reply {
            Ok(MetaReply::Opened(Descriptor::Os(fd))) => finish(&engine, fd, path, open),
            #[cfg(feature = "_sim")]
            Ok(MetaReply::Opened(Descriptor::Sim(file))) => Ok(finish_simulated(&engine, file, path, open)),
            Ok(_) => Err(Error::new(crate::ErrorKind::Unsupported, "open").with_path(path)),
            Err(error) => Err(error),
        })
    })
}

/// Inspects the opened file; on the pool's thread, because statx and sysfs may block.
fn finish(engine: &Engine, fd: OwnedFd, path: PathBuf, open: Open) -> Result<File> {
    let shared = engine.shared();
    let opened = std::fs::File::from(fd);
    let identity = opened.metadata().map_or((0, 0), |found| {
        use std::os::unix::fs::MetadataExt;
        (found.dev(), found.ino())
    });
    let fd = OwnedFd::from(opened);
    let (device_index, device) = shared.device_of(fd.as_fd(), identity.0);
    let (page_cache, is_direct) = page_cache(shared, &fd, identity, open.mode);
    let alignment = alignment(shared, &fd, is_direct, (device_index, &*device), &path, open.mode)?;
    let mut rw_flags = 0;
    if open.mode == Mode::Uncached || (open.mode == Mode::Adaptive && !alignment.direct) {
        rw_flags = dont_cache_flag(&fd);
        // Advice after a read would drop pages that others have cached: an adaptive file omits it.
        if rw_flags == 0 && open.mode == Mode::Uncached {
            shared.degrade_once(
                "uncached",
                "the kernel or file system has no RWF_DONTCACHE; pages are dropped by advice after use instead",
                "use Linux 6.14 or later with ext4 or XFS",
            );
        }
    }
    let route = if alignment.direct { polled_route(engine, &alignment, &device) } else { Route::Ordinary };
    let fd = Descriptor::Os(fd);
    Ok(file(engine, open, |home| FileParts {
        fd,
        path,
        mode: open.mode,
        rw_flags,
        route,
        #[cfg(target_os = "linux")]
        namespace: None,
        alignment,
        device,
        device_index,
        home,
        page_cache,
    }))
}

/// Returns the page cache's side of an opened file, by its device and inode, and gives an adaptive file `O_DIRECT`. Returns whether
/// the file has the flag.
#[cfg(target_os = "linux")]
fn page_cache(
    shared: &EngineShared,
    fd: &OwnedFd,
    identity: (u64, u64),
    mode: Mode,
) -> (Option<PageCache>, bool) {
    match mode {
        Mode::Buffered => (Some(adaptive::buffered(shared)), false),
        Mode::Adaptive => adaptive::prepare(shared, fd, identity),
        Mode::Direct => (None, true),
        Mode::Uncached => (None, false),
    }
}

#[cfg(not(target_os = "linux"))]
fn page_cache(_: &EngineShared, _: &OwnedFd, _: (u64, u64), mode: Mode) -> (Option<PageCache>, bool) {
    (None, mode == Mode::Direct)
}

/// Returns the alignment of a file; where the kernel reports none, a read finds out whether direct requests work. An adaptive file
/// for which they do not, or for which the kernel would fall back to the page cache silently, loses `O_DIRECT`: reads of any
/// alignment with `RWF_DONTCACHE` are better.
///
/// # Errors
/// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a direct file whose file system refuses direct requests.
fn alignment(
    shared: &EngineShared,
    fd: &OwnedFd,
    direct: bool,
    (index, device): (u16, &Device),
    path: &Path,
    mode: Mode,
) -> Result<Alignment> {
    let alignment = Alignment::of_fd(fd.as_fd(), direct);
    // A read of FUSE ends when a program says so, and an open does not wait for that.
    let is_known =
        alignment.reported || device.file_system().is_some_and(|found| found.type_name().starts_with("fuse"));
    let is_refused = alignment.direct && !is_known && !shared.takes_direct(index, fd.as_fd());
    if is_refused && mode == Mode::Direct {
        return Err(meta::no_direct("open").with_path(path));
    }
    #[cfg(target_os = "linux")]
    if mode == Mode::Adaptive
        && direct
        && (is_refused || !alignment.direct)
        && meta::set_direct(fd.as_fd(), false).is_ok()
    {
        if is_refused {
            let why = format!("{}: the file system takes O_DIRECT and refuses direct reads", path.display());
            shared.report_no_direct(mode, &why);
        }
        return Ok(Alignment::BUFFERED);
    }
    Ok(alignment)
}

/// Builds the file of a simulated machine, which supplies all these properties itself.
#[cfg(feature = "_sim")]
fn finish_simulated(engine: &Engine, found: crate::driver::sim::SimFile, path: PathBuf, open: Open) -> File {
    let alignment = found.alignment;
    let (device_index, device) = engine.shared().device_known(found.device_number, found.device.clone());
    file(engine, open, |home| FileParts {
        fd: Descriptor::Sim(found),
        path,
        mode: open.mode,
        rw_flags: 0,
        route: Route::Ordinary,
        #[cfg(target_os = "linux")]
        namespace: None,
        alignment,
        device,
        device_index,
        home,
        page_cache: None,
    })
}

fn file(engine: &Engine, open: Open, parts: impl FnOnce(usize) -> FileParts) -> File {
    let shared = engine.shared();
    let home = open.shard.unwrap_or_else(|| shared.least_loaded());
    File::new(FileCore::new(shared.clone(), parts(home)))
}

/// The most bytes of one polled request: the capacity of one bio with pages of 4 KiB (`BIO_MAX_VECS`). Only
/// requests that stay in one piece can be polled for.
const POLLED_BYTES_MAX: u64 = 256 * 4096;
/// The limit assumed for a device that does not report its own.
const POLLED_BYTES_UNKNOWN: u64 = 128 << 10;

/// Returns whether completions of a device are polled for, as the configuration requests. If not, the reason
/// is reported.
pub(crate) fn may_poll(engine: &Engine, device: &Device) -> bool {
    let shared = engine.shared();
    if shared.config.polling == Polling::Off {
        return false;
    }
    let refuse = |why: &str, remedy: &str| {
        shared.degrade_once("polled I/O", why, remedy);
        false
    };
    if engine.driver() != "uring" {
        return refuse("the engine's driver cannot poll", "allow io_uring");
    }
    if shared.config.is_real_time() {
        // A thread that nothing preempts must not poll without end.
        return refuse("the shards were asked to run in real time", "choose one of the two");
    }
    if device.io_poll() != Some(true) {
        let why = format!("{} has no poll queues; its completions come by interrupt", device.name());
        return refuse(&why, "on NVMe: boot with nvme.poll_queues=2; other devices rarely have them");
    }
    true
}

/// Returns the route of a direct file's reads and writes.
fn polled_route(engine: &Engine, alignment: &Alignment, device: &Device) -> Route {
    if !may_poll(engine, device) {
        return Route::Ordinary;
    }
    match polled_bytes_max(alignment, device.request_bytes_max(), device.segments_max()) {
        0 => {
            let why = "the device's requests are smaller than its alignment";
            engine.shared().degrade_once("polled I/O", why, "none known");
            Route::Ordinary
        }
        bytes_max => Route::Polled { bytes_max },
    }
}

/// Returns the most bytes of one request to a device, for any pages of the memory; 0 if that is less than one aligned piece.
fn polled_bytes_max(alignment: &Alignment, request: Option<u64>, segments: Option<u32>) -> u32 {
    let request = request.unwrap_or(POLLED_BYTES_UNKNOWN);
    let by_segments = segments.map_or(POLLED_BYTES_UNKNOWN, |segments| u64::from(segments) * 4096);
    let most = request.min(by_segments).min(POLLED_BYTES_MAX) as u32;
    let grain = alignment.offset.max(alignment.memory);
    most - most % grain
}

/// Returns `RWF_DONTCACHE` if this file supports it, else 0. Probed by calling: preadv2(2) returns EOPNOTSUPP
/// otherwise.
#[cfg(target_os = "linux")]
fn dont_cache_flag(fd: &OwnedFd) -> i32 {
    use std::os::fd::AsRawFd;
    const RWF_DONTCACHE: i32 = 0x80;
    let mut byte = 0u8;
    let part = libc::iovec { iov_base: std::ptr::from_mut(&mut byte).cast(), iov_len: 1 };
    // SAFETY: one vector of one writable byte.
    let read = unsafe { libc::preadv2(fd.as_raw_fd(), &part, 1, 0, RWF_DONTCACHE) };
    if read >= 0 { RWF_DONTCACHE } else { 0 }
}

#[cfg(not(target_os = "linux"))]
fn dont_cache_flag(_: &OwnedFd) -> i32 {
    0
}

/// Returns the flags that a descriptor was opened with: fcntl(2), `F_GETFL`.
fn flags(fd: &OwnedFd) -> Result<rustix::fs::OFlags> {
    rustix::fs::fcntl_getfl(fd).map_err(|error| Error::os("open", error.raw_os_error()))
}

/// Returns whether a descriptor was opened with `O_DIRECT`: fcntl(2), `F_GETFL`.
fn is_direct(fd: &OwnedFd) -> Result<bool> {
    let flags = flags(fd)?;
    #[cfg(target_os = "linux")]
    return Ok(flags.contains(rustix::fs::OFlags::DIRECT));
    #[cfg(not(target_os = "linux"))]
    Ok({
        let _ = flags;
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_polled_request_is_one_request_of_the_device() {
        let alignment =
            Alignment { memory: 4096, offset: 512, read_offset: 512, reported: true, direct: true };
        let most = |request, segments| polled_bytes_max(&alignment, request, segments);
        assert_eq!(most(Some(512 << 10), Some(127)), 127 * 4096, "its memory may lie in single pages");
        assert_eq!(most(Some(128 << 10), Some(127)), 128 << 10);
        assert_eq!(most(Some(8 << 20), Some(4096)), 1 << 20, "one bio");
        assert_eq!(most(None, None), 128 << 10);
        assert_eq!(most(Some(3 << 10), Some(1)), 0, "not even one page");
        let large = Alignment { offset: 16 << 10, ..alignment };
        assert_eq!(polled_bytes_max(&large, Some(100 << 10), None), 96 << 10, "parts end at the grain");
    }

    /// Opens a file as one that accepted `O_DIRECT`, without a reported alignment, and whose requests are then refused: any
    /// alignment is assumed. `None` where the kernel accepts them, too.
    #[cfg(target_os = "linux")]
    fn refused_later(engine: &Engine, path: &Path) -> Option<File> {
        use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

        let mut how = std::fs::OpenOptions::new();
        let opened = how.read(true).write(true).custom_flags(libc::O_DIRECT).open(path).ok()?;
        let refusal = opened.read_at(&mut [0; 95], 5).err()?;
        assert_eq!(refusal.raw_os_error(), Some(libc::EINVAL));
        let number = opened.metadata().unwrap().dev();
        let fd = OwnedFd::from(opened);
        let (device_index, device) = engine.shared().device_of(fd.as_fd(), number);
        let alignment = Alignment { memory: 4096, offset: 1, read_offset: 1, reported: false, direct: true };
        Some(file(engine, Open::write().adaptive(), |home| FileParts {
            fd: Descriptor::Os(fd),
            path: path.to_path_buf(),
            mode: Mode::Adaptive,
            rw_flags: 0,
            route: Route::Ordinary,
            namespace: None,
            alignment,
            device,
            device_index,
            home,
            page_cache: None,
        }))
    }

    /// An open detects most file systems that refuse direct requests. The others are detected at the first operation, on any path,
    /// and each operation in flight is repeated.
    #[cfg(target_os = "linux")]
    #[test]
    #[cfg_attr(miri, ignore = "needs a file with O_DIRECT")]
    fn a_file_that_refuses_direct_requests_after_its_open_goes_through_the_page_cache() {
        use crate::{Class, Config, DriverChoice};

        let program = std::env::current_exe().unwrap();
        for driver in [DriverChoice::Auto, DriverChoice::Threads] {
            for way in ["read of a waiting thread", "write of a waiting thread", "reads of a shard"] {
                let mut bytes: Vec<u8> = (0..100_000_u32).map(|at| ((at * 31) >> 3) as u8).collect();
                // Next to the program, where O_DIRECT works; `/tmp` is often memory.
                let named = tempfile::NamedTempFile::new_in(program.parent().unwrap()).unwrap();
                std::fs::write(named.path(), &bytes).unwrap();
                let engine = Engine::start(Config::new().shards(1).driver(driver)).unwrap();
                let Some(file) = refused_later(&engine, named.path()) else {
                    return println!("skipped: the kernel takes any direct request here, or none");
                };
                match way {
                    "read of a waiting thread" => {
                        assert_eq!(file.read(5..100).wait().unwrap()[..], bytes[5..100]);
                    }
                    "write of a waiting thread" => {
                        file.write(3, vec![9; 10]).wait().unwrap();
                        bytes[3..13].fill(9);
                    }
                    _ => {
                        let own = file.clone();
                        let reads = move || async move {
                            futures::future::join(own.read(5..100), own.read(50_001..90_000)).await
                        };
                        let (one, other) = engine.spawn_on_shard(0, Class::DEFAULT, reads).wait().unwrap();
                        assert_eq!(one.unwrap()[..], bytes[5..100]);
                        assert_eq!(other.unwrap()[..], bytes[50_001..90_000]);
                    }
                }
                assert!(file.core().has_left_direct() && !file.alignment().direct, "{driver:?}, {way}");
                let health = engine.health();
                let is_reported = health.degraded.iter().any(|found| found.why.contains("O_DIRECT"));
                assert!(is_reported, "{driver:?}, {way}: {health}");
                assert!(file.read(0..100_000).wait().unwrap()[..] == bytes, "{driver:?}, {way}");
                assert!(std::fs::read(named.path()).unwrap() == bytes, "{driver:?}, {way}");
                file.close().wait().unwrap();
                engine.close().wait().unwrap();
            }
        }
    }
}
