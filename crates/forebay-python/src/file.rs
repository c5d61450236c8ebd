//! Files, and the calls on them.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay::{Class, Durability, Mode, Open};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyTuple};

use crate::fault::Fault;
use crate::hub::{Call, Hub};
use crate::job::{self, Handle, Job, Value, Writers};
use crate::memory::{AlignedMemory, Destination, Here};
use crate::ranges::{Ranges, position};
use crate::scan::Scan;
use crate::{drive, process};

/// The longest read that a waiting thread makes itself, in one system call: of a direct file, which is read in parts beyond it,
/// and of one through the page cache.
const IN_TURN_DIRECT_MAX: usize = 128 << 10;
const IN_TURN_BUFFERED_MAX: usize = 4 << 20;
/// The shortest read for which the file's length is looked at first, so that no memory is made for bytes that it does not have.
const CHECK_LENGTH_FROM: u64 = 1 << 20;
/// The owner's rights to read and to write, of permissions as in chmod(2).
const OWNER_RIGHTS: u32 = 0o600;

/// An open file.
#[pyclass(frozen, subclass, module = "forebay._forebay", weakref)]
pub(crate) struct File {
    path: Arc<Path>,
    /// The same from the root, for other processes and after a change of the working directory.
    absolute: PathBuf,
    mode: Mode,
    is_writable: bool,
    /// Its I/O gives way to that of other files.
    is_background: bool,
    /// Device and inode.
    identity: (u64, u64),
    /// The descriptor, which forked children inherit.
    descriptor: AtomicI32,
    is_closed: AtomicBool,
    /// Held only by attached threads, and not across calls. `None` once closed.
    opened: Mutex<Option<Here<OpenFile>>>,
}

#[derive(Clone)]
struct OpenFile {
    main: forebay::File,
    /// The same file through the page cache: for writes that are not of whole blocks; made for the first one.
    buffered: Option<forebay::File>,
    /// Appends look for the end one after the other.
    line: Arc<async_lock::Mutex<()>>,
}

pub(crate) fn parse_mode(mode: &str) -> PyResult<Mode> {
    match mode {
        "adaptive" => Ok(Mode::Adaptive),
        "direct" => Ok(Mode::Direct),
        "buffered" => Ok(Mode::Buffered),
        "uncached" => Ok(Mode::Uncached),
        other => Err(PyValueError::new_err(format!(
            "mode is {other:?}; use \"adaptive\", \"direct\", \"buffered\" or \"uncached\""
        ))),
    }
}

pub(crate) fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Direct => "direct",
        Mode::Buffered => "buffered",
        Mode::Uncached => "uncached",
        _ => "adaptive",
    }
}

/// Returns device and inode of an open file.
pub(crate) fn identity(file: &forebay::File) -> std::io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(file.as_fd())?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Returns the length of a regular file; `None` for a device.
fn regular_len(file: &forebay::File) -> Option<u64> {
    let stat = rustix::fs::fstat(file.as_fd()).ok()?;
    let is_regular = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    is_regular.then(|| u64::try_from(stat.st_size).unwrap_or(0))
}

impl File {
    fn refuse_closed(&self) -> PyErr {
        PyValueError::new_err(format!("{} is closed; open it again", self.path.display()))
    }

    fn refuse_write(&self) -> PyErr {
        let text = "the file was opened to read; use forebay.open(path, write=True)";
        PyOSError::new_err((libc::EBADF, text, self.path.to_path_buf().into_os_string()))
    }

    /// Returns the file as it is open in this process. A forked child's first use opens it again.
    fn opened(&self, py: Python<'_>) -> PyResult<OpenFile> {
        {
            let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
            match &*opened {
                None => return Err(self.refuse_closed()),
                Some(here) => {
                    if let Some(opened) = here.get() {
                        return Ok(opened.clone());
                    }
                }
            }
        }
        let main = self.open_again(py, self.mode)?;
        let descriptor = main.as_fd().as_raw_fd();
        let new = OpenFile { main, buffered: None, line: Arc::default() };
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        match opened.as_ref().map(|here| here.get().cloned()) {
            None => Err(self.refuse_closed()),
            // Another thread was faster.
            Some(Some(opened)) => Ok(opened),
            Some(None) => {
                *opened = Some(Here::new(new.clone()));
                self.descriptor.store(descriptor, Ordering::Relaxed);
                Ok(new)
            }
        }
    }

    /// Opens the same file once more. The inherited descriptor refers to it even after it was renamed, replaced or removed; if that
    /// descriptor is closed, the path is used, if it is still the path of this file.
    fn open_again(&self, py: Python<'_>, mode: Mode) -> PyResult<forebay::File> {
        let engine = process::engine(py)?;
        let open = if self.is_writable { Open::write() } else { Open::read() }.mode(mode);
        let inherited: RawFd = self.descriptor.load(Ordering::Relaxed);
        let open_one = |path: &Path| drive::wait_for(py, engine, Box::pin(engine.open(path, open)), false);
        let by_descriptor = open_one(Path::new(&format!("/proc/self/fd/{inherited}")))?;
        if let Ok(file) = by_descriptor
            && identity(&file).ok() == Some(self.identity)
        {
            return Ok(file);
        }
        let file = open_one(&self.absolute)?.map_err(|error| self.fault(error).into_py(py))?;
        match identity(&file) {
            Ok(identity) if identity == self.identity => Ok(file),
            _ => Err(PyOSError::new_err((
                libc::ESTALE,
                "the path leads to another file than the one that was opened, and its inherited descriptor is gone; open it again",
                self.path.to_path_buf().into_os_string(),
            ))),
        }
    }

    /// Returns the file's length.
    fn len(&self, py: Python<'_>, file: &forebay::File) -> PyResult<u64> {
        match regular_len(file) {
            Some(len) => Ok(len),
            None => {
                let len = drive::wait_for(py, process::engine(py)?, Box::pin(file.len()), false)?;
                len.map_err(|error| self.fault(error).into_py(py))
            }
        }
    }

    /// Returns the files for a write, for which the bytes and the place are known or not.
    fn writers(&self, py: Python<'_>, place: Option<(u64, usize)>) -> PyResult<(Writers, OpenFile)> {
        let mut opened = self.opened(py)?;
        if !self.is_writable {
            return Err(self.refuse_write());
        }
        let is_whole = match place {
            Some((offset, len)) => job::is_whole(&opened.main, offset, len),
            None => opened.main.alignment().offset <= 1,
        };
        if !is_whole && opened.buffered.is_none() {
            let new = self.open_again(py, Mode::Buffered)?;
            let mut known = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
            // Only a file that is found here is closed, after its calls.
            let here = known.as_mut().ok_or_else(|| self.refuse_closed())?;
            let faster = here.get().and_then(|opened| opened.buffered.clone());
            opened.buffered = Some(faster.unwrap_or(new));
            *here = Here::new(opened.clone());
        }
        let main = self.handle(opened.main.clone());
        Ok((Writers { main, buffered: opened.buffered.clone() }, opened))
    }

    fn class(&self) -> Class {
        if self.is_background { Class::BACKGROUND } else { Class::DEFAULT }
    }

    fn handle(&self, file: forebay::File) -> Handle {
        Handle { file, path: self.path.clone(), class: self.class() }
    }

    fn read_job(&self, py: Python<'_>, offset: i64, length: Option<i64>) -> PyResult<(Job, bool)> {
        let offset = position(offset, "offset")?;
        let length = length.map(|length| position(length, "length")).transpose()?;
        let file = self.opened(py)?.main;
        let length = match length {
            Some(length) if length < CHECK_LENGTH_FROM => length,
            length => {
                let end = self.len(py, &file)?;
                if end == 0 {
                    let range = offset..offset.saturating_add(length.unwrap_or(u64::MAX));
                    return Ok((job::read_unsized(self.handle(file), range), false));
                }
                let most = end.saturating_sub(offset);
                length.map_or(most, |length| length.min(most))
            }
        };
        let len = usize::try_from(length)
            .map_err(|_| PyValueError::new_err(format!("length is {length}, more than memory can be")))?;
        Ok(self.read_to(file, offset, Destination::bytes(py, len)?, true))
    }

    /// Returns the read of all of `memory`, and whether the caller's thread may make it itself.
    fn read_to(
        &self,
        file: forebay::File,
        offset: u64,
        mut memory: Destination,
        as_bytes: bool,
    ) -> (Job, bool) {
        let len = memory.len();
        if self.mode == Mode::Adaptive
            && len as u64 > job::CACHED_BYTES_MAX
            && let Some(end) = regular_len(&file)
            && end > offset
        {
            memory.cut(usize::try_from(end - offset).unwrap_or(usize::MAX));
            return (job::read_in_parts(self.handle(file), offset, memory, as_bytes), false);
        }
        let in_turn = self.is_in_turn(len);
        (job::read(self.handle(file), offset, memory, as_bytes), in_turn)
    }

    fn read_into_job(&self, py: Python<'_>, offset: i64, buffer: &Bound<'_, PyAny>) -> PyResult<(Job, bool)> {
        let offset = position(offset, "offset")?;
        let file = self.opened(py)?.main;
        Ok(self.read_to(file, offset, Destination::writable(buffer)?, false))
    }

    fn read_many_job(
        &self,
        py: Python<'_>,
        ranges: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        settings: Settings,
    ) -> PyResult<Job> {
        let ranges = Ranges::of(ranges)?;
        let file = self.opened(py)?.main;
        let (memory, value) = destination(&ranges, out)?;
        let batch = settings.set(file.read_many(ranges.each)).class(self.class());
        Ok(job::read_many(batch, Some(self.path.clone()), memory, value))
    }

    fn write_job(
        &self,
        py: Python<'_>,
        offset: i64,
        data: &Bound<'_, PyAny>,
        durable: bool,
    ) -> PyResult<(Job, bool)> {
        let offset = position(offset, "offset")?;
        let memory = Destination::readable(data)?;
        let in_turn = self.is_in_turn(memory.len());
        let (writers, _) = self.writers(py, Some((offset, memory.len())))?;
        let handle = writers.into_handle(offset, memory.len());
        Ok((job::write(handle, offset, memory, durable), in_turn && !durable))
    }

    fn append_job(&self, py: Python<'_>, data: &Bound<'_, PyAny>, durable: bool) -> PyResult<Job> {
        let memory = Destination::readable(data)?;
        let (writers, opened) = self.writers(py, None)?;
        Ok(job::append(process::engine(py)?, writers, opened.line, memory, durable))
    }

    fn sync_job(&self, py: Python<'_>, data_only: bool) -> PyResult<Job> {
        let durability = if data_only { Durability::Data } else { Durability::All };
        Ok(job::sync(self.opened(py)?.main, self.path.clone(), durability))
    }

    fn is_in_turn(&self, len: usize) -> bool {
        len <= if self.mode == Mode::Buffered { IN_TURN_BUFFERED_MAX } else { IN_TURN_DIRECT_MAX }
    }

    fn fault(&self, error: forebay::Error) -> Fault {
        Fault::of_file(error, &self.path)
    }
}

/// Creates a file that its owner may not both read and write, and opens it through the page cache as well, which only root could do later.
/// Returns `None` if it was not created: the ordinary open finds an old file, or the error.
fn create_restricted(
    py: Python<'_>,
    path: &Path,
    mode: Mode,
    permissions: u32,
) -> PyResult<Option<(forebay::File, Option<forebay::File>)>> {
    let engine = process::engine(py)?;
    let open_one = |path: &Path, open| drive::wait_for(py, engine, Box::pin(engine.open(path, open)), false);
    let open = Open::create_new().mode(mode).permissions(permissions | OWNER_RIGHTS);
    let Ok(main) = open_one(path, open)? else { return Ok(None) };
    let again = format!("/proc/self/fd/{}", main.as_fd().as_raw_fd());
    // Without it, writes of whole pages work.
    let buffered = open_one(Path::new(&again), Open::write().buffered())?.ok();
    if let Ok(found) = rustix::fs::fstat(main.as_fd()) {
        let permissions = rustix::fs::Mode::from_raw_mode(found.st_mode & !(OWNER_RIGHTS & !permissions));
        // A file system that refuses it has different permissions.
        let _ = rustix::fs::fchmod(main.as_fd(), permissions);
    }
    Ok(Some((main, buffered)))
}

/// The memory for a batch, and its result for Python: None into the caller's buffer, else views of new memory.
fn destination(ranges: &Ranges, out: Option<&Bound<'_, PyAny>>) -> PyResult<(Destination, Value)> {
    match out {
        Some(out) => {
            let mut memory = Destination::writable(out)?;
            if memory.len() < ranges.bytes {
                let (len, bytes) = (memory.len(), ranges.bytes);
                return Err(PyValueError::new_err(format!("out has {len} bytes; the ranges have {bytes}")));
            }
            memory.cut(ranges.bytes);
            Ok((memory, Value::None))
        }
        None => {
            let aligned = AlignedMemory::new(ranges.bytes, false)?;
            let mut end = 0;
            let parts = ranges.each.iter().map(|range| {
                let start = end;
                end += (range.end - range.start) as usize;
                start..end
            });
            let parts = parts.collect();
            Ok((Destination::aligned(aligned.clone(), 0), Value::Views(aligned, parts)))
        }
    }
}

/// The settings of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) depth: Option<u32>,
    pub(crate) max_gap: Option<u64>,
}

impl Settings {
    pub(crate) fn set(self, mut batch: forebay::ReadMany) -> forebay::ReadMany {
        if let Some(depth) = self.depth {
            batch = batch.depth(depth);
        }
        if let Some(bytes) = self.max_gap {
            batch = batch.gap_bytes_max(bytes);
            // Two ranges with such a gap are merged then, for any default.
            batch = batch.waste_bytes_max(bytes.max(if bytes == 0 { 0 } else { 64 << 10 }));
        }
        batch
    }
}

#[pymethods]
impl File {
    #[new]
    #[pyo3(signature = (path, mode="adaptive", write=false, create=false, *, truncate=false, exclusive=false, permissions=0o666, background=false))]
    #[expect(clippy::too_many_arguments, reason = "the keywords of a Python function")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        mode: &str,
        write: bool,
        create: bool,
        truncate: bool,
        exclusive: bool,
        permissions: u32,
        background: bool,
    ) -> PyResult<File> {
        let mode = parse_mode(mode)?;
        if !write && (create || truncate || exclusive) {
            return Err(PyValueError::new_err("create, truncate and exclusive change files; add write=True"));
        }
        let open = match (write, create, exclusive) {
            (_, _, true) => Open::create_new(),
            (_, true, _) => Open::create(),
            (true, ..) => Open::write(),
            _ => Open::read(),
        };
        let mut open = open.mode(mode).permissions(permissions);
        if truncate {
            open = open.truncate();
        }
        let engine = process::engine(py)?;
        process::current().release_returned(py);
        let shown: Arc<Path> = path.as_path().into();
        let new = match mode {
            Mode::Adaptive | Mode::Direct
                if (create || exclusive) && permissions & OWNER_RIGHTS != OWNER_RIGHTS =>
            {
                create_restricted(py, &path, mode, permissions)?
            }
            _ => None,
        };
        let (main, buffered) = match new {
            Some((main, buffered)) => (main, buffered),
            None => {
                let main = drive::wait_for(py, engine, Box::pin(engine.open(&path, open)), false)?;
                (main.map_err(|error| Fault::of_open(error, &shown).into_py(py))?, None)
            }
        };
        let looked = identity(&main).and_then(|identity| Ok((identity, std::path::absolute(&path)?)));
        let (identity, absolute) = looked.map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            PyOSError::new_err((errno, error.to_string(), path.clone().into_os_string()))
        })?;
        Ok(File {
            path: shown,
            absolute,
            mode,
            is_writable: write,
            is_background: background,
            identity,
            descriptor: AtomicI32::new(main.as_fd().as_raw_fd()),
            is_closed: AtomicBool::new(false),
            opened: Mutex::new(Some(Here::new(OpenFile { main, buffered, line: Arc::default() }))),
        })
    }

    /// The path as it was given.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.to_path_buf()
    }

    /// The mode: "adaptive", "direct", "buffered" or "uncached".
    #[getter]
    fn mode(&self) -> &'static str {
        mode_name(self.mode)
    }

    /// True if the file can be written.
    #[getter]
    fn writable(&self) -> bool {
        self.is_writable
    }

    /// The file's length in bytes, as it is now.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let file = self.opened(py)?.main;
        self.len(py, &file)
    }

    /// The alignment of offset and length in the file at which a direct read or write needs no copy.
    #[getter]
    fn alignment(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.opened(py)?.main.alignment().offset)
    }

    /// True after close.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Returns the file's descriptor, which stays the file's. In the modes "adaptive" and "direct" it has O_DIRECT, so that other
    /// calls on it need aligned memory.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.opened(py)?.main.as_fd().as_raw_fd())
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { ", closed" } else { "" };
        let write = if self.is_writable { ", write" } else { "" };
        format!("<forebay.File {:?}, {}{write}{closed}>", self.path, mode_name(self.mode))
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        if slf.get().closed() { Err(slf.get().refuse_closed()) } else { Ok(slf) }
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    /// Closes the file: calls in flight end first, later calls raise ValueError. Closing it again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.is_closed.store(true, Ordering::Relaxed);
        let Some(opened) = opened.as_ref().and_then(Here::get).cloned() else { return Ok(()) };
        let files = opened.buffered.into_iter().chain([opened.main]).collect();
        drive::run(py, process::engine(py)?, job::close(files, self.path.clone()), false).map(drop)
    }

    /// Returns the bytes at `offset`: `length` of them, or fewer where the file ends; all up to its end without a length. A file of
    /// size 0 is read until a read finds its end, up to 1 GiB: files of /proc have no size, and bytes all the same.
    #[pyo3(signature = (offset, length=None))]
    fn read(&self, py: Python<'_>, offset: i64, length: Option<i64>) -> PyResult<Py<PyAny>> {
        let (job, in_turn) = self.read_job(py, offset, length)?;
        drive::run(py, process::engine(py)?, job, in_turn)
    }

    /// Starts `read` on an asyncio loop.
    #[pyo3(signature = (hub, make_future, offset, length=None))]
    fn _begin_read(
        &self,
        hub: &Bound<'_, Hub>,
        make_future: &Bound<'_, PyAny>,
        offset: i64,
        length: Option<i64>,
    ) -> PyResult<Call> {
        Hub::begin(hub, make_future, self.read_job(hub.py(), offset, length)?.0)
    }

    /// Reads into a writable buffer from `offset` on. Returns the number of bytes, which is smaller than the buffer where the file
    /// ends.
    fn read_into(&self, py: Python<'_>, offset: i64, buffer: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let (job, in_turn) = self.read_into_job(py, offset, buffer)?;
        drive::run(py, process::engine(py)?, job, in_turn)
    }

    /// Starts `read_into` on an asyncio loop.
    fn _begin_read_into(
        &self,
        hub: &Bound<'_, Hub>,
        make_future: &Bound<'_, PyAny>,
        offset: i64,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<Call> {
        Hub::begin(hub, make_future, self.read_into_job(hub.py(), offset, buffer)?.0)
    }

    /// Reads many ranges as one batch: sorted, merged where they are close, all in flight together.
    ///
    /// `ranges` are pairs of offset and length, or an array of int64 or uint64 of the shape (n, 2). With `out`, a writable buffer,
    /// the results lie in it one behind the other, in the order of the ranges, and the call returns `out`. Without, it returns a
    /// list of memoryviews, which share one piece of memory (their `obj`).
    ///
    /// `depth` is the number of requests in flight, 128 by default; `max_gap` the most bytes between two ranges that one request
    /// reads, 16 KiB by default.
    ///
    /// Raises EOFError when the file ends inside of a range; all other ranges have been read then.
    #[pyo3(signature = (ranges, out=None, *, depth=None, max_gap=None))]
    fn read_many(
        &self,
        py: Python<'_>,
        ranges: &Bound<'_, PyAny>,
        out: Option<Bound<'_, PyAny>>,
        depth: Option<u32>,
        max_gap: Option<u64>,
    ) -> PyResult<Py<PyAny>> {
        let job = self.read_many_job(py, ranges, out.as_ref(), Settings { depth, max_gap })?;
        let value = drive::run(py, process::engine(py)?, job, false)?;
        Ok(out.map_or(value, Bound::unbind))
    }

    /// Starts `read_many` on an asyncio loop.
    #[pyo3(signature = (hub, make_future, ranges, out=None, *, depth=None, max_gap=None))]
    fn _begin_read_many(
        &self,
        hub: &Bound<'_, Hub>,
        make_future: &Bound<'_, PyAny>,
        ranges: &Bound<'_, PyAny>,
        out: Option<Bound<'_, PyAny>>,
        depth: Option<u32>,
        max_gap: Option<u64>,
    ) -> PyResult<Call> {
        let job = self.read_many_job(hub.py(), ranges, out.as_ref(), Settings { depth, max_gap })?;
        Hub::begin(hub, make_future, job)
    }

    /// Returns an iterator over the file from `start` to `stop`, or to its end: read-only memoryviews of `block` bytes, with `depth` reads
    /// ahead (by default as many as the device is worth).
    ///
    /// `block` is rounded up to whole pages of 4,096 bytes, and is at most 64 MiB, in the mode "adaptive" 4 MiB. The last view is shorter,
    /// and the first one where `start` is within a page.
    ///
    /// The bytes are not copied: each view keeps its piece of I/O memory. While a program keeps more than a quarter of that memory,
    /// further blocks are copies.
    #[pyo3(signature = (start=0, stop=None, block=1048576, depth=None))]
    fn scan(
        &self,
        py: Python<'_>,
        start: i64,
        stop: Option<i64>,
        block: usize,
        depth: Option<usize>,
    ) -> PyResult<Scan> {
        let start = position(start, "start")?;
        let stop = stop.map(|stop| position(stop, "stop")).transpose()?;
        if block == 0 || depth == Some(0) {
            return Err(PyValueError::new_err("block and depth must be at least 1"));
        }
        let scan = self.opened(py)?.main.scan().request_bytes(block).class(self.class());
        let scan = match stop {
            Some(stop) => scan.range(start..stop.max(start)),
            None => scan.range(start..),
        };
        let scan = scan.depth(depth.unwrap_or_else(|| ((8 << 20) / block).clamp(2, 32)));
        Ok(Scan::new(scan.start(), self.path.clone()))
    }

    /// Writes all of `data` at `offset`. Returns the number of bytes. With `durable` they survive a power cut once it returns.
    ///
    /// Whole pages (4,096 bytes), and whole blocks of the device where these are longer (see `alignment`), bypass the page cache unless the
    /// mode is "buffered"; other bytes use it.
    #[pyo3(signature = (offset, data, durable=false))]
    fn write(
        &self,
        py: Python<'_>,
        offset: i64,
        data: &Bound<'_, PyAny>,
        durable: bool,
    ) -> PyResult<Py<PyAny>> {
        let (job, in_turn) = self.write_job(py, offset, data, durable)?;
        drive::run(py, process::engine(py)?, job, in_turn)
    }

    /// Starts `write` on an asyncio loop.
    #[pyo3(signature = (hub, make_future, offset, data, durable=false))]
    fn _begin_write(
        &self,
        hub: &Bound<'_, Hub>,
        make_future: &Bound<'_, PyAny>,
        offset: i64,
        data: &Bound<'_, PyAny>,
        durable: bool,
    ) -> PyResult<Call> {
        Hub::begin(hub, make_future, self.write_job(hub.py(), offset, data, durable)?.0)
    }

    /// Writes all of `data` after the file's last byte. Returns its offset. Appends by one File object never overlap; those of
    /// other objects and processes may.
    #[pyo3(signature = (data, durable=false))]
    fn append(&self, py: Python<'_>, data: &Bound<'_, PyAny>, durable: bool) -> PyResult<Py<PyAny>> {
        let job = self.append_job(py, data, durable)?;
        drive::run(py, process::engine(py)?, job, false)
    }

    /// Starts `append` on an asyncio loop.
    #[pyo3(signature = (hub, make_future, data, durable=false))]
    fn _begin_append(
        &self,
        hub: &Bound<'_, Hub>,
        make_future: &Bound<'_, PyAny>,
        data: &Bound<'_, PyAny>,
        durable: bool,
    ) -> PyResult<Call> {
        Hub::begin(hub, make_future, self.append_job(hub.py(), data, durable)?)
    }

    /// Makes all writes that have returned durable; with `data_only` without the file's times.
    #[pyo3(signature = (data_only=false))]
    fn sync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        drive::run(py, process::engine(py)?, self.sync_job(py, data_only)?, false).map(drop)
    }

    /// Starts `sync` on an asyncio loop.
    #[pyo3(signature = (hub, make_future, data_only=false))]
    fn _begin_sync(
        &self,
        hub: &Bound<'_, Hub>,
        make_future: &Bound<'_, PyAny>,
        data_only: bool,
    ) -> PyResult<Call> {
        Hub::begin(hub, make_future, self.sync_job(hub.py(), data_only)?)
    }

    /// Sets the file's length. New bytes are zero.
    fn truncate(&self, py: Python<'_>, size: i64) -> PyResult<()> {
        let size = position(size, "size")?;
        let file = self.opened(py)?.main;
        if !self.is_writable {
            return Err(self.refuse_write());
        }
        drive::run(py, process::engine(py)?, job::truncate(file, self.path.clone(), size), false).map(drop)
    }

    /// Path, mode, write and background, by which another process opens the same file.
    fn _arguments(&self) -> (PathBuf, &'static str, bool, bool) {
        (self.absolute.clone(), mode_name(self.mode), self.is_writable, self.is_background)
    }
}

fn read_many_job(
    py: Python<'_>,
    requests: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
    settings: Settings,
) -> PyResult<Job> {
    let engine = process::engine(py)?;
    let mut ranges = Ranges::new();
    let mut files: Vec<forebay::File> = Vec::new();
    let mut places: HashMap<*mut pyo3::ffi::PyObject, usize> = HashMap::new();
    let mut of: Vec<usize> = Vec::new();
    let mut kept: Vec<Bound<'_, File>> = Vec::new();
    let mut class = Class::BACKGROUND;
    for (number, request) in PyIterator::from_object(requests)?.enumerate() {
        let (file, offset, len): (Bound<'_, File>, i64, i64) =
            request?.extract().map_err(|error: PyErr| {
                let text = format!("request {number} must be a tuple of file, offset and length: {error}");
                pyo3::exceptions::PyTypeError::new_err(text)
            })?;
        let place = match places.get(&file.as_ptr()) {
            Some(place) => *place,
            None => {
                files.push(file.get().opened(py)?.main);
                if !file.get().is_background {
                    class = Class::DEFAULT;
                }
                places.insert(file.as_ptr(), files.len() - 1);
                // The address of a dropped object could be reused.
                kept.push(file);
                files.len() - 1
            }
        };
        of.push(place);
        ranges.push(position(offset, "offset")?, position(len, "length")?)?;
    }
    let (memory, value) = destination(&ranges, out)?;
    let requests = of.iter().zip(ranges.each).map(|(place, range)| (&files[*place], range));
    let batch = settings.set(engine.read_many(requests)).class(class);
    Ok(job::read_many(batch, None, memory, value))
}

/// Reads ranges of several files as one batch: as File.read_many, for tuples of file, offset and length.
#[pyfunction]
#[pyo3(signature = (requests, out=None, *, depth=None, max_gap=None))]
pub(crate) fn read_many(
    py: Python<'_>,
    requests: &Bound<'_, PyAny>,
    out: Option<Bound<'_, PyAny>>,
    depth: Option<u32>,
    max_gap: Option<u64>,
) -> PyResult<Py<PyAny>> {
    let job = read_many_job(py, requests, out.as_ref(), Settings { depth, max_gap })?;
    let value = drive::run(py, process::engine(py)?, job, false)?;
    Ok(out.map_or(value, Bound::unbind))
}

/// Starts `read_many` on an asyncio loop.
#[pyfunction]
#[pyo3(signature = (hub, make_future, requests, out=None, *, depth=None, max_gap=None))]
pub(crate) fn _begin_read_many(
    hub: &Bound<'_, Hub>,
    make_future: &Bound<'_, PyAny>,
    requests: &Bound<'_, PyAny>,
    out: Option<Bound<'_, PyAny>>,
    depth: Option<u32>,
    max_gap: Option<u64>,
) -> PyResult<Call> {
    let job = read_many_job(hub.py(), requests, out.as_ref(), Settings { depth, max_gap })?;
    Hub::begin(hub, make_future, job)
}
