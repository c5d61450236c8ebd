//! An open file with the names and traits of tokio's.

use std::fmt;
use std::fs::{File as StdFile, Metadata, Permissions};
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice, IoSliceMut, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use forebay::{Durability, Mode};
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};
use tokio::sync::Mutex;
use tokio::task::coop;

use crate::accept;
use crate::buffer::Buffer;
use crate::descriptor::Descriptor;
use crate::engines;
use crate::failure::io_error;
use crate::options::OpenOptions;
use crate::simulated::{SimulatedFile, unsupported};
use crate::threads;
use crate::times::FileTimes;

/// As tokio's default.
const BUFFER_BYTES_MAX: usize = 2 * 1024 * 1024;
/// The most bytes that one positioned read moves; longer reads are made of several.
const POSITIONED_BYTES_MAX: usize = 8 << 20;
/// The most reads without a try for the page cache after a failed try.
const TRIES_LEFT_OUT_MAX: u32 = 15;
/// The read of a device with which a file is opened in the engine: the first may be its only one.
const ENGINE_READ: u32 = 2;

/// A reference to an open file, as `tokio::fs::File`: with its methods, its traits, its cursor and its buffering.
///
/// Writes return when their bytes are accepted; [`flush`] waits until the file has them and returns their error. A file that is
/// dropped before still writes them.
///
/// In addition to tokio's methods it has methods for ranges: [`read_exact_at`](File::read_exact_at),
/// [`read_vectored_at`](File::read_vectored_at), [`write_all_at`](File::write_all_at) and [`sync_range`](File::sync_range). They
/// leave the cursor alone, and any number of them may be in flight.
///
/// ```
/// use forebay_fs::File;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main]
/// # async fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("greeting");
/// let mut file = File::create(&path).await?;
/// file.write_all(b"hello, world!").await?;
/// file.flush().await?;
///
/// let mut contents = Vec::new();
/// File::open(&path).await?.read_to_end(&mut contents).await?;
/// assert_eq!(contents, b"hello, world!");
/// # Ok(()) }
/// ```
///
/// [`flush`]: https://docs.rs/tokio/latest/tokio/io/trait.AsyncWriteExt.html#method.flush
pub struct File {
    handle: Handle,
    inner: Mutex<Inner>,
    max_buf_size: usize,
}

/// The open file of the machine, or of a simulated world.
#[derive(Clone)]
pub(crate) enum Handle {
    Here(Arc<Descriptor>),
    World(Arc<SimulatedFile>),
}

/// The operation in flight, at most one, and its traces.
struct Inner {
    state: State,
    /// The error of accepted bytes that a later write or flush returns.
    last_write_err: Option<io::ErrorKind>,
    pos: u64,
    /// A clone may move the cursor at any time: only the kernel's own reads are right.
    is_shared: bool,
    /// Reads without a try for the page cache, now and after the next failed try.
    tries_left_out: u32,
    tries_to_leave_out: u32,
    /// Reads that were moved to a thread.
    waits: u32,
}

enum State {
    Idle(Buffer),
    Busy(Busy),
}

type Busy = Pin<Box<dyn Future<Output = io::Result<(Operation, Buffer)>> + Send>>;

enum Operation {
    Read(io::Result<usize>),
    Write(io::Result<()>),
    Seek(io::Result<u64>),
}

// A panic at any point leaves the state whole: operations run on other threads and hand over values.
impl std::panic::UnwindSafe for File {}

impl File {
    /// Opens a file to read it.
    ///
    /// # Errors
    /// Those of [`OpenOptions::open`].
    pub async fn open(path: impl AsRef<Path>) -> io::Result<File> {
        Self::options().read(true).open(path).await
    }

    /// Opens a file to write it; creates it if it does not exist, and empties it if it does.
    ///
    /// # Errors
    /// Those of [`OpenOptions::open`].
    pub async fn create(path: impl AsRef<Path>) -> io::Result<File> {
        Self::options().write(true).create(true).truncate(true).open(path).await
    }

    /// Creates a file to read and write it; fails if it exists.
    ///
    /// # Errors
    /// Those of [`OpenOptions::open`].
    pub async fn create_new<P: AsRef<Path>>(path: P) -> std::io::Result<File> {
        Self::options().read(true).write(true).create_new(true).open(path).await
    }

    /// Returns options for an open.
    #[must_use]
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    /// Converts a file of the standard library. Duplicates of the file share its cursor.
    pub fn from_std(std: StdFile) -> File {
        File::of(Handle::Here(Arc::new(Descriptor::new(std, Mode::Buffered, engines::scope()))))
    }

    pub(crate) fn of(handle: Handle) -> File {
        let inner = Inner {
            state: State::Idle(Buffer::default()),
            last_write_err: None,
            pos: 0,
            is_shared: false,
            tries_left_out: 0,
            tries_to_leave_out: 0,
            waits: 0,
        };
        File { handle, inner: Mutex::new(inner), max_buf_size: BUFFER_BYTES_MAX }
    }

    /// Makes completed writes and all metadata durable, after the operation in flight.
    ///
    /// # Errors
    /// Those of fsync(2). The next write or flush returns the error of accepted bytes.
    pub async fn sync_all(&self) -> io::Result<()> {
        self.sync(Durability::All).await
    }

    /// Makes completed writes durable, with the metadata needed to read them.
    ///
    /// # Errors
    /// As [`sync_all`](File::sync_all).
    pub async fn sync_data(&self) -> io::Result<()> {
        self.sync(Durability::Data).await
    }

    async fn sync(&self, durability: Durability) -> io::Result<()> {
        let mut inner = self.inner.lock().await;
        inner.complete_inflight().await;
        match &self.handle {
            Handle::Here(descriptor) => {
                let descriptor = descriptor.clone();
                let call = move || match durability {
                    Durability::All => descriptor.std.sync_all(),
                    _ => descriptor.std.sync_data(),
                };
                threads::run(call).await?
            }
            Handle::World(file) => file.sync(durability).await,
        }
    }

    /// Makes the bytes of `range` durable, as far as they were written before. Linux flushes whole files and devices, so this is a
    /// [`sync_data`](File::sync_data) wherever the range has bytes: sync_file_range(2) leaves lengths and the device's cache out.
    ///
    /// # Errors
    /// As [`sync_all`](File::sync_all).
    pub async fn sync_range(&self, range: Range<u64>) -> io::Result<()> {
        if range.is_empty() { Ok(()) } else { self.sync_data().await }
    }

    /// Changes the length of the file.
    ///
    /// # Errors
    /// Those of ftruncate(2).
    pub async fn set_len(&self, size: u64) -> io::Result<()> {
        let mut inner = self.inner.lock().await;
        inner.complete_inflight().await;
        let mut buffer = inner.take_buffer();
        let skip = buffer.discard();
        inner.state = State::Busy(self.handle.begin_set_len(skip, size, buffer));
        match poll_fn(|context| inner.poll_operation(context)).await {
            Some(Ok(Operation::Seek(result))) => {
                inner.pos = result?;
                Ok(())
            }
            Some(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns the file's metadata.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub async fn metadata(&self) -> io::Result<Metadata> {
        match &self.handle {
            Handle::Here(descriptor) => {
                let descriptor = descriptor.clone();
                threads::run(move || descriptor.std.metadata()).await?
            }
            Handle::World(file) => file.metadata().await,
        }
    }

    /// Returns another handle of the same open file, with the same cursor.
    ///
    /// # Errors
    /// Those of dup(2).
    pub async fn try_clone(&self) -> io::Result<File> {
        let mut inner = self.inner.lock().await;
        inner.complete_inflight().await;
        inner.is_shared = true;
        drop(inner);
        let handle = match &self.handle {
            Handle::Here(descriptor) => {
                let descriptor = descriptor.clone();
                Handle::Here(Arc::new(threads::run(move || descriptor.try_clone()).await??))
            }
            Handle::World(file) => Handle::World(file.clone()),
        };
        let mut clone = File::of(handle);
        clone.inner.get_mut().is_shared = true;
        clone.set_max_buf_size(self.max_buf_size);
        Ok(clone)
    }

    /// Returns the standard library's file, after the operation in flight.
    ///
    /// # Panics
    /// In a simulated world, which has no such file.
    pub async fn into_std(mut self) -> StdFile {
        self.inner.get_mut().complete_inflight().await;
        loop {
            match self.try_into_std() {
                Ok(std) => return std,
                Err(file) => self = file,
            }
            self.must_be_of_machine();
            // A dropped call, such as for metadata, still has the file on one of the threads.
            let _ = threads::run(|| ()).await;
        }
    }

    #[expect(clippy::panic, reason = "tokio's signature has no error")]
    fn must_be_of_machine(&self) {
        if let Handle::World(_) = &self.handle {
            panic!("a file of a simulated world is not a file of the operating system");
        }
    }

    /// Returns the standard library's file, or this one if an operation is in flight, or in a simulated world.
    ///
    /// # Errors
    /// The file itself.
    #[allow(clippy::result_large_err, reason = "tokio's signature")]
    pub fn try_into_std(mut self) -> Result<StdFile, Self> {
        let Handle::Here(descriptor) = self.handle else { return Err(self) };
        match Arc::try_unwrap(descriptor) {
            Ok(descriptor) => Ok(descriptor.std),
            Err(descriptor) => {
                self.handle = Handle::Here(descriptor);
                Err(self)
            }
        }
    }

    /// Changes the file's permissions.
    ///
    /// # Errors
    /// Those of fchmod(2); [`Unsupported`](io::ErrorKind::Unsupported) in a simulated world.
    pub async fn set_permissions(&self, perm: Permissions) -> io::Result<()> {
        let Handle::Here(descriptor) = &self.handle else { return Err(unsupported("permissions")) };
        let descriptor = descriptor.clone();
        threads::run(move || descriptor.std.set_permissions(perm)).await?
    }

    /// Changes the file's timestamps, after the operation in flight.
    ///
    /// # Errors
    /// Those of futimens(3); [`Unsupported`](io::ErrorKind::Unsupported) in a simulated world.
    pub async fn set_times(&self, times: FileTimes) -> io::Result<()> {
        self.inner.lock().await.complete_inflight().await;
        let Handle::Here(descriptor) = &self.handle else { return Err(unsupported("timestamps to set")) };
        let descriptor = descriptor.clone();
        threads::run(move || descriptor.std.set_times(times.into_std())).await?
    }

    /// Changes the time of the last modification.
    ///
    /// # Errors
    /// As [`set_times`](File::set_times).
    pub async fn set_modified(&self, time: std::time::SystemTime) -> io::Result<()> {
        self.set_times(FileTimes::new().set_modified(time)).await
    }

    /// Sets the most bytes that one read or write moves. Default: 2 MiB.
    ///
    /// # Panics
    /// For 0.
    #[track_caller]
    pub fn set_max_buf_size(&mut self, max_buf_size: usize) {
        assert!(max_buf_size > 0, "`max_buf_size` must be greater than 0");
        self.max_buf_size = max_buf_size;
    }

    /// Returns the most bytes that one read or write moves.
    pub fn max_buf_size(&self) -> usize {
        self.max_buf_size
    }

    /// Reads exactly the bytes at `offset` that fill `buf`. They include what this handle has accepted before. The cursor stays.
    ///
    /// # Errors
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) when the file ends before; those of pread(2).
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> std::io::Result<()> {
    /// let file = forebay_fs::File::open("Cargo.toml").await?;
    /// let mut name = [0; 7];
    /// file.read_exact_at(&mut name, 1).await?;
    /// assert_eq!(&name, b"package");
    /// # Ok(()) }
    /// ```
    pub async fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_up_to_at(buf, offset).await? < buf.len() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "failed to fill whole buffer"));
        }
        Ok(())
    }

    /// Reads bytes at `offset` into `bufs`, the first one first, and returns their number: fewer than fit at the end of the file.
    /// The cursor stays.
    ///
    /// # Errors
    /// Those of preadv(2).
    pub async fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let room: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut bytes = vec![0; room];
        let count = self.read_up_to_at(&mut bytes, offset).await?;
        let mut rest = &bytes[..count];
        for buf in bufs {
            let (part, behind) = rest.split_at(buf.len().min(rest.len()));
            buf[..part.len()].copy_from_slice(part);
            rest = behind;
        }
        Ok(count)
    }

    /// Writes all of `buf` at `offset`, or at the end if the file was opened to append. The file has the bytes when this returns.
    /// The cursor stays.
    ///
    /// # Errors
    /// Those of pwrite(2).
    pub async fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.complete_inflight().await;
        let bytes = buf.to_vec();
        match &self.handle {
            Handle::Here(descriptor) => {
                let descriptor = descriptor.clone();
                threads::run(move || descriptor.write_at(offset, &bytes)).await?
            }
            Handle::World(file) => {
                let own = file.clone();
                let write = move || async move { own.write_at(offset, bytes).await };
                file.spawn(write).await.map_err(io_error)?
            }
        }
    }

    /// Reads until `buf` is full or the file ends.
    async fn read_up_to_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.complete_inflight().await;
        let mut moved = 0;
        while moved < buf.len() {
            match self.read_some_at(&mut buf[moved..], offset.saturating_add(moved as u64)).await? {
                0 => break,
                count => moved += count,
            }
        }
        Ok(moved)
    }

    async fn read_some_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = buf.len().min(POSITIONED_BYTES_MAX);
        let buf = &mut buf[..len];
        if len == 0 {
            return Ok(0);
        }
        let descriptor = match &self.handle {
            Handle::Here(descriptor) => descriptor,
            Handle::World(file) => {
                let block = file.read_at(offset, len).await?;
                buf[..block.len()].copy_from_slice(&block);
                return Ok(block.len());
            }
        };
        if let Some(count) = descriptor.try_read_at(buf, offset) {
            return Ok(count);
        }
        if !descriptor.has_asked() {
            let descriptor = descriptor.clone();
            threads::run(move || descriptor.engine_file().map(drop)).await??;
        }
        if let Some(file) = descriptor.known_engine_file() {
            match file.read_up_to(offset..offset.saturating_add(len as u64)).await {
                Ok(block) => {
                    buf[..block.len()].copy_from_slice(&block);
                    return Ok(block.len());
                }
                Err(error) if error.raw_os_error().is_some() || descriptor.needs_engine() => {
                    return Err(io_error(error));
                }
                // It was the engine that refused, not the file.
                Err(_) => {}
            }
        }
        read_by_thread(descriptor, buf, offset).await
    }

    async fn complete_inflight(&self) {
        self.inner.lock().await.complete_inflight().await;
    }
}

async fn read_by_thread(descriptor: &Arc<Descriptor>, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let (descriptor, len) = (descriptor.clone(), buf.len());
    let call = move || {
        let mut buffer = Buffer::default();
        let result = descriptor.read_at(&mut buffer, len, offset);
        result.map(|_| buffer)
    };
    let buffer = threads::run(call).await??;
    let bytes = buffer.bytes();
    buf[..bytes.len()].copy_from_slice(bytes);
    Ok(bytes.len())
}

impl Handle {
    /// Returns a read at the cursor.
    fn begin_read(&self, mut buffer: Buffer, len: usize, asks: bool) -> Busy {
        match self {
            Handle::Here(descriptor) => {
                let descriptor = descriptor.clone();
                on_thread(move || {
                    if asks {
                        // The read has the error, if it has one.
                        let _ = descriptor.engine_file();
                    }
                    let result = descriptor.read(&mut buffer, len);
                    (Operation::Read(result), buffer)
                })
            }
            Handle::World(file) => on_shard(file, move |file| async move {
                let result = file.read(&mut buffer, len).await;
                (Operation::Read(result), buffer)
            }),
        }
    }

    /// Returns a read at the cursor by the engine, or the buffer back where the engine has no such file.
    fn begin_engine_read(&self, buffer: Buffer, len: usize) -> Result<Busy, Buffer> {
        let Handle::Here(descriptor) = self else { return Err(buffer) };
        let Some(file) = descriptor.known_engine_file() else { return Err(buffer) };
        let Ok(cursor) = (&descriptor.std).stream_position() else { return Err(buffer) };
        let read = file.read_into(cursor, buffer.into_memory(len)).owned();
        let descriptor = descriptor.clone();
        Ok(Box::pin(async move {
            let (result, memory) = read.await;
            match result {
                Ok(count) => {
                    let result = descriptor.move_to(cursor + count as u64).map(|()| count);
                    Ok((Operation::Read(result), Buffer::of(memory, count)))
                }
                // It was the engine that refused, not the file.
                Err(error) if error.raw_os_error().is_none() => {
                    Handle::Here(descriptor).begin_read(Buffer::default(), len, false).await
                }
                Err(error) => Ok((Operation::Read(Err(io_error(error))), Buffer::default())),
            }
        }))
    }

    /// Returns a write at the cursor, which first moves by `skip`. It continues without its waiter.
    fn begin_write(&self, skip: i64, mut buffer: Buffer) -> Busy {
        match self {
            Handle::Here(descriptor) => {
                let descriptor = descriptor.clone();
                let accepted = accept::accept();
                on_thread(move || {
                    let result = descriptor.write(skip, buffer.bytes());
                    buffer.discard();
                    // In this order: where nothing else has the file, it is closed when the write counts as ended.
                    drop(descriptor);
                    drop(accepted);
                    (Operation::Write(result), buffer)
                })
            }
            Handle::World(file) => on_shard(file, move |file| async move {
                let result = file.write(skip, buffer.bytes()).await;
                buffer.discard();
                (Operation::Write(result), buffer)
            }),
        }
    }

    /// Returns a seek after one by `skip`. Of a cursor without clones it is made here and now, unless it needs the file's length.
    fn begin_seek(&self, skip: i64, to: SeekFrom, buffer: Buffer, is_shared: bool) -> Busy {
        match self {
            Handle::Here(descriptor) => {
                let descriptor = descriptor.clone();
                let call = move || {
                    let result = descriptor.skip(skip).and_then(|()| (&descriptor.std).seek(to));
                    (Operation::Seek(result), buffer)
                };
                if is_shared || matches!(to, SeekFrom::End(_)) {
                    return on_thread(call);
                }
                let ended: io::Result<(Operation, Buffer)> = Ok(call());
                Box::pin(std::future::ready(ended))
            }
            Handle::World(file) => on_shard(file, move |file| async move {
                let result = match skip {
                    0 => file.seek(to).await,
                    _ => match file.seek(SeekFrom::Current(skip)).await {
                        Ok(_) => file.seek(to).await,
                        Err(error) => Err(error),
                    },
                };
                (Operation::Seek(result), buffer)
            }),
        }
    }

    /// Returns a change of the length after a seek by `skip`. As tokio's it counts as a seek to 0 for what `poll_complete` returns.
    fn begin_set_len(&self, skip: i64, len: u64, buffer: Buffer) -> Busy {
        match self {
            Handle::Here(descriptor) => {
                let descriptor = descriptor.clone();
                on_thread(move || {
                    let result = descriptor.skip(skip).and_then(|()| descriptor.std.set_len(len));
                    (Operation::Seek(result.map(|()| 0)), buffer)
                })
            }
            Handle::World(file) => on_shard(file, move |file| async move {
                let result = match file.seek(SeekFrom::Current(skip)).await {
                    Ok(_) => file.set_len(len).await,
                    Err(error) => Err(error),
                };
                (Operation::Seek(result.map(|()| 0)), buffer)
            }),
        }
    }
}

fn on_thread(call: impl FnOnce() -> (Operation, Buffer) + Send + 'static) -> Busy {
    Box::pin(threads::run(call))
}

/// Makes calls of a world in a separate task, which continues without a waiter.
fn on_shard<W>(
    file: &Arc<SimulatedFile>,
    calls: impl FnOnce(Arc<SimulatedFile>) -> W + Send + 'static,
) -> Busy
where
    W: Future<Output = (Operation, Buffer)> + 'static,
{
    let own = file.clone();
    let task = file.spawn(move || calls(own));
    Box::pin(async move { task.await.map_err(io_error) })
}

impl Inner {
    /// Takes the idle buffer; an operation in flight has it otherwise.
    fn take_buffer(&mut self) -> Buffer {
        match &mut self.state {
            State::Idle(buffer) => std::mem::take(buffer),
            State::Busy(_) => Buffer::default(),
        }
    }

    /// Polls the operation in flight. `None` without one; the buffer is idle then, and after its end.
    fn poll_operation(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Operation>>> {
        let State::Busy(busy) = &mut self.state else { return Poll::Ready(None) };
        let (result, buffer) = match ready!(busy.as_mut().poll(context)) {
            Ok((operation, buffer)) => (Ok(operation), buffer),
            Err(error) => (Err(error), Buffer::default()),
        };
        self.state = State::Idle(buffer);
        Poll::Ready(Some(result))
    }

    async fn complete_inflight(&mut self) {
        poll_fn(|context| self.poll_complete_inflight(context)).await;
    }

    /// Waits for the operation in flight; an error of its bytes is kept for the next write or flush.
    fn poll_complete_inflight(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let result = ready!(self.poll_flush(context));
        self.last_write_err = result.err().map(|error| error.kind());
        Poll::Ready(())
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(kind) = self.last_write_err.take() {
            return Poll::Ready(Err(kind.into()));
        }
        Poll::Ready(match ready!(self.poll_operation(context)) {
            Some(Err(error)) => Err(error),
            Some(Ok(Operation::Write(result))) => result,
            None | Some(Ok(Operation::Read(_) | Operation::Seek(_))) => Ok(()),
        })
    }

    /// Accepts bytes of `slices` once no other operation is in flight.
    fn poll_accept(
        &mut self,
        context: &mut Context<'_>,
        handle: &Handle,
        slices: &[IoSlice<'_>],
        most: usize,
    ) -> Poll<io::Result<usize>> {
        if let Some(kind) = self.last_write_err.take() {
            return Poll::Ready(Err(kind.into()));
        }
        match ready!(self.poll_operation(context)) {
            Some(Err(error)) => return Poll::Ready(Err(error)),
            Some(Ok(Operation::Write(Err(error)))) => return Poll::Ready(Err(error)),
            _ => {}
        }
        let mut buffer = self.take_buffer();
        let skip = buffer.discard();
        let count = buffer.take(slices, most);
        self.state = State::Busy(handle.begin_write(skip, buffer));
        Poll::Ready(Ok(count))
    }

    /// Reads from the page cache on the calling thread. Returns whether it did.
    fn try_read(&mut self, handle: &Handle, reader: &mut ReadBuf<'_>, len: usize) -> bool {
        let Handle::Here(descriptor) = handle else { return false };
        if self.is_shared || !descriptor.takes_tries(len) {
            return false;
        }
        if self.tries_left_out > 0 {
            self.tries_left_out -= 1;
            return false;
        }
        let Some(count) = descriptor.try_read(reader.initialize_unfilled_to(len)) else {
            self.tries_to_leave_out = (2 * self.tries_to_leave_out + 1).min(TRIES_LEFT_OUT_MAX);
            self.tries_left_out = self.tries_to_leave_out;
            return false;
        };
        reader.advance(count);
        self.tries_to_leave_out = 0;
        true
    }

    /// Starts a read that may wait for the device.
    fn begin_read(&mut self, handle: &Handle, len: usize) {
        let buffer = self.take_buffer();
        let begun = if self.is_shared { Err(buffer) } else { handle.begin_engine_read(buffer, len) };
        let busy = begun.unwrap_or_else(|buffer| {
            self.waits = self.waits.saturating_add(1);
            handle.begin_read(buffer, len, !self.is_shared && self.waits == ENGINE_READ)
        });
        self.state = State::Busy(busy);
    }
}

impl AsyncRead for File {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, dst: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let me = self.get_mut();
        let inner = me.inner.get_mut();
        loop {
            match ready!(inner.poll_operation(cx)) {
                None => {}
                Some(Err(error)) | Some(Ok(Operation::Read(Err(error)))) => return Poll::Ready(Err(error)),
                Some(Ok(Operation::Read(Ok(_)))) => {
                    if let State::Idle(buffer) = &mut inner.state {
                        buffer.give(dst);
                    }
                    return Poll::Ready(Ok(()));
                }
                Some(Ok(Operation::Write(Ok(())))) => {}
                Some(Ok(Operation::Write(Err(error)))) => inner.last_write_err = Some(error.kind()),
                Some(Ok(Operation::Seek(result))) => inner.pos = result.unwrap_or(inner.pos),
            }
            if let State::Idle(buffer) = &mut inner.state
                && (!buffer.is_empty() || dst.remaining() == 0)
            {
                buffer.give(dst);
                return Poll::Ready(Ok(()));
            }
            let len = dst.remaining().min(me.max_buf_size);
            // A task whose reads never wait still yields to others.
            let budget = ready!(coop::poll_proceed(cx));
            if inner.try_read(&me.handle, dst, len) {
                budget.made_progress();
                return Poll::Ready(Ok(()));
            }
            drop(budget);
            inner.begin_read(&me.handle, len);
        }
    }
}

impl AsyncSeek for File {
    fn start_seek(self: Pin<&mut Self>, mut pos: SeekFrom) -> io::Result<()> {
        let me = self.get_mut();
        let inner = me.inner.get_mut();
        if let State::Busy(_) = &inner.state {
            return Err(io::Error::other(
                "other file operation is pending, call poll_complete before start_seek",
            ));
        }
        let mut buffer = inner.take_buffer();
        // The cursor is behind the bytes that were read and not returned.
        let mut skip = buffer.discard();
        if let SeekFrom::Current(distance) = &mut pos
            && let Some(whole) = distance.checked_add(skip)
        {
            *distance = whole;
            skip = 0;
        } else if !matches!(pos, SeekFrom::Current(_)) {
            skip = 0;
        }
        inner.state = State::Busy(me.handle.begin_seek(skip, pos, buffer, inner.is_shared));
        Ok(())
    }

    fn poll_complete(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let inner = self.get_mut().inner.get_mut();
        match ready!(inner.poll_operation(cx)) {
            None => {}
            Some(Err(error)) => return Poll::Ready(Err(error)),
            Some(Ok(Operation::Read(_) | Operation::Write(Ok(())))) => {}
            Some(Ok(Operation::Write(Err(error)))) => inner.last_write_err = Some(error.kind()),
            Some(Ok(Operation::Seek(result))) => {
                if let Ok(pos) = &result {
                    inner.pos = *pos;
                }
                return Poll::Ready(result);
            }
        }
        Poll::Ready(Ok(inner.pos))
    }
}

impl AsyncWrite for File {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, src: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(src)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let me = self.get_mut();
        me.inner.get_mut().poll_accept(cx, &me.handle, bufs, me.max_buf_size)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().inner.get_mut().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

impl From<StdFile> for File {
    fn from(std: StdFile) -> Self {
        Self::from_std(std)
    }
}

impl From<OwnedFd> for File {
    fn from(fd: OwnedFd) -> Self {
        Self::from_std(StdFile::from(fd))
    }
}

// The text is tokio's, which its tests compare.
impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("tokio::fs::File");
        match &self.handle {
            Handle::Here(descriptor) => debug.field("std", &descriptor.std),
            Handle::World(file) => debug.field("simulated", file),
        };
        debug.finish()
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.handle {
            Handle::Here(descriptor) => descriptor.std.as_fd(),
            Handle::World(file) => file.fd(),
        }
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

#[expect(unsafe_code, reason = "the trait's method is unsafe")]
impl FromRawFd for File {
    unsafe fn from_raw_fd(fd: RawFd) -> Self {
        // SAFETY: the contract of this method is that of the standard library's, which the caller keeps.
        unsafe { StdFile::from_raw_fd(fd).into() }
    }
}
