//! Files of a simulated world, where the system's calls do not work: names and bytes are the world's engine's.

use std::fs::{FileType, Metadata, Permissions};
use std::future::Future;
use std::io::{self, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use forebay::shard::JoinHandle;
use forebay::{Block, Class, Durability, Engine, ErrorKind, FileKind, Open};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use tokio::sync::Mutex;

use crate::buffer::Buffer;
use crate::failure::io_error;

/// The most bytes of one read of a whole file.
const PIECE_BYTES: u64 = 1 << 20;

/// An open file or directory of a world.
#[derive(Debug)]
pub(crate) struct SimulatedFile {
    engine: Engine,
    object: SimulatedObject,
    access: SimulatedAccess,
    /// That of the open file, which clones share. Held while bytes move, as the kernel does.
    cursor: Mutex<u64>,
}

/// An open file, or a directory, which the core opens apart: it has no offsets.
#[derive(Debug)]
pub(crate) enum SimulatedObject {
    File(forebay::File),
    /// With a descriptor that stands for it.
    Dir(forebay::Dir, std::fs::File),
}

/// The uses that a file was opened for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimulatedAccess {
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    pub(crate) appends: bool,
}

impl SimulatedFile {
    pub(crate) fn new(engine: Engine, object: SimulatedObject, access: SimulatedAccess) -> SimulatedFile {
        SimulatedFile { engine, object, access, cursor: Mutex::default() }
    }

    /// Starts a task of the world, which continues when its handle is dropped.
    pub(crate) fn spawn<F, Fut>(&self, make: F) -> JoinHandle<Fut::Output>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future + 'static,
        Fut::Output: Send + 'static,
    {
        let shard = self.file().map_or(0, forebay::File::home_shard);
        self.engine.spawn_on_shard(shard, Class::DEFAULT, make)
    }

    /// Returns the file, or the error of a call that a directory refuses.
    fn file(&self) -> io::Result<&forebay::File> {
        match &self.object {
            SimulatedObject::File(file) => Ok(file),
            SimulatedObject::Dir(..) => Err(Errno::ISDIR.into()),
        }
    }

    /// Returns a descriptor that stands for the file.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match &self.object {
            SimulatedObject::File(file) => file.as_fd(),
            SimulatedObject::Dir(_, root) => root.as_fd(),
        }
    }

    /// Reads at an offset, without the cursor.
    pub(crate) async fn read_at(&self, offset: u64, len: usize) -> io::Result<Block> {
        if !self.access.reads {
            return Err(Errno::BADF.into());
        }
        let range = offset..offset.saturating_add(len as u64);
        self.file()?.read_up_to(range).await.map_err(io_error)
    }

    fn check_write(&self) -> io::Result<()> {
        if self.access.writes || self.access.appends { Ok(()) } else { Err(Errno::BADF.into()) }
    }

    pub(crate) async fn read(&self, buffer: &mut Buffer, len: usize) -> io::Result<usize> {
        let mut cursor = self.cursor.lock().await;
        let block = self.read_at(*cursor, len).await?;
        buffer.room(block.len()).copy_from_slice(&block);
        buffer.hold(block.len());
        *cursor += block.len() as u64;
        Ok(block.len())
    }

    /// Writes at the cursor, which first moves by `skip`.
    pub(crate) async fn write(&self, skip: i64, bytes: &[u8]) -> io::Result<()> {
        self.check_write()?;
        let mut cursor = self.cursor.lock().await;
        let at = self.end().await?.unwrap_or_else(|| cursor.saturating_add_signed(skip));
        if !bytes.is_empty() {
            self.file()?.write(at, bytes.to_vec()).await.map_err(io_error)?;
        }
        *cursor = at + bytes.len() as u64;
        Ok(())
    }

    /// Writes at an offset; at the end, if the file was opened to append.
    pub(crate) async fn write_at(&self, offset: u64, bytes: Vec<u8>) -> io::Result<()> {
        self.check_write()?;
        if bytes.is_empty() {
            return Ok(());
        }
        let at = self.end().await?.unwrap_or(offset);
        self.file()?.write(at, bytes).await.map_err(io_error)
    }

    /// Returns where writes land if the file was opened to append. Two open files that append concurrently may return the same.
    async fn end(&self) -> io::Result<Option<u64>> {
        if !self.access.appends {
            return Ok(None);
        }
        self.file()?.len().await.map(Some).map_err(io_error)
    }

    pub(crate) async fn seek(&self, to: SeekFrom) -> io::Result<u64> {
        let mut cursor = self.cursor.lock().await;
        let (from, distance) = match to {
            SeekFrom::Start(offset) => (offset, 0),
            SeekFrom::Current(distance) => (*cursor, distance),
            SeekFrom::End(distance) => (self.file()?.len().await.map_err(io_error)?, distance),
        };
        let place = from.checked_add_signed(distance).filter(|place| *place <= i64::MAX as u64);
        *cursor = place.ok_or(Errno::INVAL)?;
        Ok(*cursor)
    }

    pub(crate) async fn set_len(&self, len: u64) -> io::Result<()> {
        if self.check_write().is_err() {
            return Err(Errno::INVAL.into());
        }
        self.file()?.truncate(len).await.map_err(io_error)
    }

    pub(crate) async fn sync(&self, durability: Durability) -> io::Result<()> {
        let synced = match &self.object {
            SimulatedObject::File(file) => file.sync(durability).await,
            SimulatedObject::Dir(dir, _) => dir.sync().await,
        };
        synced.map_err(io_error)
    }

    pub(crate) async fn metadata(&self) -> io::Result<Metadata> {
        let known = match &self.object {
            SimulatedObject::File(file) => file.metadata().await,
            SimulatedObject::Dir(dir, _) => dir.own_metadata().await,
        };
        metadata(&known.map_err(io_error)?)
    }
}

/// Returns the standard library's value for a file of a world. Only a real file has one: this one lies in memory, has the length,
/// the permissions and the time of the last change, and no name. Of a directory only the type is the world's.
pub(crate) fn metadata(known: &forebay::Metadata) -> io::Result<Metadata> {
    if known.is_dir() {
        return std::fs::metadata("/");
    }
    let file = std::fs::File::from(memfd_create("forebay-fs", MemfdFlags::CLOEXEC)?);
    file.set_len(known.len())?;
    file.set_permissions(Permissions::from_mode(known.mode() & 0o7777))?;
    if let Some(time) = known.modified() {
        file.set_times(std::fs::FileTimes::new().set_modified(time))?;
    }
    file.metadata()
}

/// Returns the standard library's value for a kind of file. A world has files and directories.
pub(crate) fn file_type(kind: FileKind) -> io::Result<FileType> {
    let found = match kind {
        FileKind::Dir => std::fs::metadata("/")?,
        _ => std::fs::File::from(memfd_create("forebay-fs", MemfdFlags::CLOEXEC)?).metadata()?,
    };
    Ok(found.file_type())
}

/// Returns the error of a call that worlds have nothing for.
pub(crate) fn unsupported(call: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("a simulated world has no {call}"))
}

/// Returns a path from the root without `.` and `..`. Worlds have no symbolic links, and relative paths are relative to `/`.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    let mut whole = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => whole.push(name),
            Component::ParentDir => {
                whole.pop();
            }
            _ => {}
        }
    }
    whole
}

/// Opens a file. To read alone it may be a directory, which is opened to be synced.
pub(crate) async fn open(
    engine: Engine,
    path: PathBuf,
    open: Open,
    reads_alone: bool,
) -> forebay::Result<SimulatedObject> {
    let error = match engine.open(&path, open).await {
        Ok(file) => return Ok(SimulatedObject::File(file)),
        Err(error) => error,
    };
    if error.kind() == ErrorKind::InvalidInput
        && reads_alone
        && let (Ok(dir), Ok(root)) = (engine.open_dir(path).await, std::fs::File::open("/"))
    {
        return Ok(SimulatedObject::Dir(dir, root));
    }
    Err(error)
}

pub(crate) async fn read(engine: Engine, path: PathBuf) -> forebay::Result<Vec<u8>> {
    let file = engine.open(path, Open::read().buffered()).await?;
    let mut bytes = Vec::new();
    loop {
        let at = bytes.len() as u64;
        let block = file.read_up_to(at..at + PIECE_BYTES).await?;
        if block.is_empty() {
            return Ok(bytes);
        }
        bytes.extend_from_slice(&block);
    }
}

pub(crate) async fn write(engine: Engine, path: PathBuf, contents: Vec<u8>) -> forebay::Result<()> {
    let file = engine.open(path, Open::create().truncate().buffered()).await?;
    if !contents.is_empty() {
        file.write(0, contents).await?;
    }
    Ok(())
}

pub(crate) async fn copy(engine: Engine, from: PathBuf, to: PathBuf) -> forebay::Result<u64> {
    let contents = read(engine.clone(), from).await?;
    let len = contents.len() as u64;
    write(engine, to, contents).await?;
    Ok(len)
}

/// Removes a directory and all below it, the deepest first.
pub(crate) async fn remove_dir_all(engine: Engine, path: PathBuf) -> forebay::Result<()> {
    let (mut unread, mut empty) = (vec![path], Vec::new());
    while let Some(dir) = unread.pop() {
        for entry in engine.read_dir(&dir).await? {
            let path = dir.join(entry.name());
            match entry.kind() {
                FileKind::Dir => unread.push(path),
                _ => engine.remove_file(path).await?,
            }
        }
        empty.push(dir);
    }
    while let Some(dir) = empty.pop() {
        engine.remove_dir(dir).await?;
    }
    Ok(())
}
