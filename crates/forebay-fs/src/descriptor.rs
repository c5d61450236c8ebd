//! An open file of the machine: its descriptor, whose cursor counts, and for reads of the device a second file of the engine.

use std::fs::File as StdFile;
use std::io::{self, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use forebay::{Engine, Mode, Open};
use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, statx};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::buffer::Buffer;
use crate::engines;
use crate::failure::io_error;

/// The longest read that is copied from the page cache on the calling thread: a tenth of a millisecond.
const TRY_BYTES_MAX: usize = 1 << 20;

/// Whether the bytes of a descriptor lie at offsets.
const OFFSETS_UNKNOWN: u8 = 0;
const OFFSETS_NONE: u8 = 1;
const OFFSETS_KNOWN: u8 = 2;

/// A descriptor with what belongs to its open file.
#[derive(Debug)]
pub(crate) struct Descriptor {
    pub(crate) std: StdFile,
    mode: Mode,
    /// That of the scope in which it was opened; `None` for the process's.
    engine: Option<Engine>,
    /// The same file in the engine, with a second descriptor; `None` inside where the system's calls serve it.
    engine_file: OnceLock<Option<forebay::File>>,
    /// Held while that file is opened.
    opening: Mutex<()>,
    /// The process that made it. In a forked child the locks here may be held for ever, by threads that the child does not have.
    process: u32,
    /// Whether its bytes lie at offsets: a dropped or repeated read consumes nothing. Known once a thread has checked: fstat(2) may
    /// wait for a server.
    offsets: AtomicU8,
    /// Reads that must not wait are refused.
    refuses_tries: AtomicBool,
    /// Held by clones while the engine moves bytes at the cursor, which the kernel does not hold then.
    cursor: Arc<Mutex<()>>,
}

impl Descriptor {
    pub(crate) fn new(std: StdFile, mode: Mode, engine: Option<Engine>) -> Descriptor {
        Descriptor {
            std,
            mode,
            engine,
            engine_file: OnceLock::new(),
            opening: Mutex::default(),
            process: std::process::id(),
            offsets: AtomicU8::new(OFFSETS_UNKNOWN),
            // Reads of the engine try the page cache themselves, or bypass it.
            refuses_tries: AtomicBool::new(mode != Mode::Buffered),
            cursor: Arc::default(),
        }
    }

    /// Returns another descriptor of the same open file, with the same cursor.
    pub(crate) fn try_clone(&self) -> io::Result<Descriptor> {
        Ok(Descriptor {
            std: self.std.try_clone()?,
            mode: self.mode,
            engine: self.engine.clone(),
            engine_file: OnceLock::new(),
            opening: Mutex::default(),
            process: self.process,
            offsets: AtomicU8::new(self.offsets.load(Ordering::Relaxed)),
            refuses_tries: AtomicBool::new(self.refuses_tries.load(Ordering::Relaxed)),
            cursor: self.cursor.clone(),
        })
    }

    /// Returns the file in the engine, if it was asked for and is there.
    pub(crate) fn known_engine_file(&self) -> Option<&forebay::File> {
        self.engine_file.get().and_then(Option::as_ref)
    }

    /// Returns whether the file in the engine was asked for, with or without success.
    pub(crate) fn has_asked(&self) -> bool {
        self.engine_file.get().is_some()
    }

    /// Returns the file in the engine, which the first call opens; may block. `None` where the system's calls serve it, as they do
    /// without an engine or a descriptor for it.
    ///
    /// # Errors
    /// Those of the open, where bytes bypass the page cache: the system's calls would need aligned memory. The next call tries again.
    /// Such a file is not for a forked child.
    pub(crate) fn engine_file(&self) -> io::Result<Option<&forebay::File>> {
        if self.process != std::process::id() {
            return if self.needs_engine() { Err(inherited()) } else { Ok(None) };
        }
        if let Some(known) = self.engine_file.get() {
            return Ok(known.as_ref());
        }
        let _alone = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = self.engine_file.get() {
            return Ok(known.as_ref());
        }
        let opened = match self.open_in_engine() {
            Err(error) if self.needs_engine() => return Err(error),
            opened => opened.ok().flatten(),
        };
        Ok(self.engine_file.get_or_init(|| opened).as_ref())
    }

    /// Returns whether the engine moves all bytes.
    pub(crate) fn needs_engine(&self) -> bool {
        self.mode != Mode::Buffered
    }

    /// The engine has files whose bytes lie at offsets, and that may stay open for a moment behind their last handle: it closes its
    /// descriptor by a message to a shard. A program that was just written must not be busy then (`ETXTBSY`), so a file that may be
    /// written stays with the system's calls, unless its mode is the engine's. So does one without a length, as in procfs, which is
    /// read again by each call.
    fn open_in_engine(&self) -> io::Result<Option<forebay::File>> {
        let metadata = self.std.metadata()?;
        let flags = fcntl_getfl(&self.std)?;
        let is_buffered = self.mode == Mode::Buffered;
        let has_length = metadata.len() > 0 || metadata.file_type().is_block_device();
        let is_written = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        if !self.has_offsets() || flags.contains(OFlags::APPEND) || is_buffered && (is_written || !has_length)
        {
            return Ok(None);
        }
        let engine = self.engine.clone().map_or_else(engines::engine, Ok)?;
        let file = engine.from_std(self.std.try_clone()?, Open::read().mode(self.mode)).wait();
        file.map(Some).map_err(io_error)
    }

    /// Returns whether a read of this many bytes may find them in the page cache.
    pub(crate) fn takes_tries(&self, len: usize) -> bool {
        !self.refuses_tries.load(Ordering::Relaxed)
            && len <= TRY_BYTES_MAX
            && self.offsets.load(Ordering::Relaxed) == OFFSETS_KNOWN
    }

    /// Returns whether its bytes lie at offsets; may block.
    pub(crate) fn has_offsets(&self) -> bool {
        let known = self.offsets.load(Ordering::Relaxed);
        if known != OFFSETS_UNKNOWN {
            return known == OFFSETS_KNOWN;
        }
        let found = self.std.metadata();
        let has = found.is_ok_and(|found| found.is_file() || found.file_type().is_block_device());
        self.offsets.store(if has { OFFSETS_KNOWN } else { OFFSETS_NONE }, Ordering::Relaxed);
        has
    }

    /// Reads at the cursor, on the calling thread, if that needs no wait: all of `into`, or the rest of the file.
    pub(crate) fn try_read(&self, into: &mut [u8]) -> Option<usize> {
        let Ok(cursor) = (&self.std).stream_position() else {
            self.refuses_tries.store(true, Ordering::Relaxed);
            return None;
        };
        let read = self.try_read_at(into, cursor)?;
        self.move_to(cursor + read as u64).ok()?;
        Some(read)
    }

    /// Reads at an offset as [`try_read`](Self::try_read) does.
    pub(crate) fn try_read_at(&self, into: &mut [u8], offset: u64) -> Option<usize> {
        let wanted = into.len();
        // The greatest offset stands for the cursor.
        if !self.takes_tries(wanted) || offset > i64::MAX as u64 {
            return None;
        }
        match preadv2(&self.std, &mut [IoSliceMut::new(into)], offset, ReadWriteFlags::NOWAIT) {
            Ok(read) if read == wanted => Some(read),
            // Short at the end of the file, or at a page that is not in memory.
            Ok(read) => {
                // The length as this machine knows it, like the read: without a request to a server.
                let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
                let len = statx(&self.std, c"", flags, StatxFlags::SIZE).ok()?.stx_size;
                (offset + read as u64 >= len).then_some(read)
            }
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(_) => {
                self.refuses_tries.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// Sets the cursor, which is a store in the open file: no wait for a device.
    pub(crate) fn move_to(&self, cursor: u64) -> io::Result<()> {
        (&self.std).seek(SeekFrom::Start(cursor)).map(drop)
    }

    /// Reads at the cursor; blocks.
    pub(crate) fn read(&self, buffer: &mut Buffer, len: usize) -> io::Result<usize> {
        self.has_offsets();
        let Some(file) = self.transfers_by_engine()? else {
            let read = uninterrupted(|| (&self.std).read(buffer.room(len)))?;
            buffer.hold(read);
            return Ok(read);
        };
        let _alone = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let cursor = (&self.std).stream_position()?;
        let memory = std::mem::take(buffer).into_memory(len);
        let (read, memory) = file.read_into(cursor, memory).wait();
        let read = read.map_err(io_error)?;
        *buffer = Buffer::of(memory, read);
        self.move_to(cursor + read as u64)?;
        Ok(read)
    }

    /// Reads at an offset; blocks.
    pub(crate) fn read_at(&self, buffer: &mut Buffer, len: usize, offset: u64) -> io::Result<usize> {
        self.has_offsets();
        let read = uninterrupted(|| self.std.read_at(buffer.room(len), offset))?;
        buffer.hold(read);
        Ok(read)
    }

    /// Writes at the cursor, which first moves by `skip`; blocks.
    pub(crate) fn write(&self, skip: i64, bytes: &[u8]) -> io::Result<()> {
        self.skip(skip)?;
        let Some(file) = self.transfers_by_engine()?.filter(|_| !bytes.is_empty()) else {
            return (&self.std).write_all(bytes);
        };
        let _alone = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let cursor = (&self.std).stream_position()?;
        file.write(cursor, bytes).wait().map_err(io_error)?;
        self.move_to(cursor + bytes.len() as u64)
    }

    /// Writes at an offset; blocks.
    pub(crate) fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self.transfers_by_engine()? {
            Some(file) if !bytes.is_empty() => file.write(offset, bytes).wait().map_err(io_error),
            _ => self.std.write_all_at(bytes, offset),
        }
    }

    /// Moves the cursor by this many bytes; blocks.
    pub(crate) fn skip(&self, bytes: i64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        (&self.std).seek(SeekFrom::Current(bytes)).map(drop)
    }

    /// Returns the file in the engine where the mode needs it.
    fn transfers_by_engine(&self) -> io::Result<Option<&forebay::File>> {
        if self.needs_engine() { self.engine_file() } else { Ok(None) }
    }
}

fn inherited() -> io::Error {
    io::Error::other("a direct or adaptive file belongs to the parent process (open it again in the child)")
}

/// Repeats a call that a signal interrupts, as tokio does for reads.
fn uninterrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
