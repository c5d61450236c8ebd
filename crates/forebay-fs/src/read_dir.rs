//! The entries of a directory.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{FileType, Metadata};
use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use forebay::Engine;

use crate::engines;
use crate::simulated;
use crate::threads::{self, Call};

/// The number of entries of one call, as tokio's.
const CHUNK_ENTRIES: usize = 32;

/// Returns the entries of a directory.
///
/// # Errors
/// Those of opendir(3).
pub async fn read_dir(path: impl AsRef<Path>) -> io::Result<ReadDir> {
    let path = path.as_ref().to_owned();
    let Some(engine) = engines::world()? else {
        let open = move || std::fs::read_dir(path).map(|std| Chunk::default().filled(std));
        return Ok(ReadDir(State::Idle(threads::run(open).await??)));
    };
    let dir = path.clone();
    let found = engines::in_world(engine.clone(), move |engine| engine.read_dir(dir)).await?;
    let mut chunk = Chunk::default();
    for entry in found {
        let file_type = simulated::file_type(entry.kind())?;
        let origin =
            EntryOrigin::World { engine: engine.clone(), dir: path.clone(), name: entry.name().into() };
        chunk.entries.push_back(Ok(DirEntry { file_type: Some(file_type), origin }));
    }
    Ok(ReadDir(State::Idle(chunk)))
}

/// The entries of a directory, one after the other, as `tokio::fs::ReadDir`.
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct ReadDir(State);

#[derive(Debug)]
enum State {
    Idle(Chunk),
    Pending(Call<Chunk>),
}

/// Entries that were read, and those that are left.
#[derive(Debug, Default)]
struct Chunk {
    entries: VecDeque<io::Result<DirEntry>>,
    rest: Option<std::fs::ReadDir>,
}

impl ReadDir {
    /// Returns the next entry, `None` after the last one.
    ///
    /// # Errors
    /// Those of readdir(3).
    pub async fn next_entry(&mut self) -> io::Result<Option<DirEntry>> {
        poll_fn(|context| self.poll_next_entry(context)).await
    }

    /// Polls for the next entry.
    ///
    /// # Errors
    /// As [`next_entry`](ReadDir::next_entry).
    pub fn poll_next_entry(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<DirEntry>>> {
        loop {
            match &mut self.0 {
                State::Idle(chunk) => {
                    if let Some(entry) = chunk.entries.pop_front() {
                        return Poll::Ready(entry.map(Some));
                    }
                    let Some(rest) = chunk.rest.take() else { return Poll::Ready(Ok(None)) };
                    let chunk = std::mem::take(chunk);
                    self.0 = State::Pending(threads::run(move || chunk.filled(rest)));
                }
                State::Pending(call) => {
                    let result = ready!(Pin::new(call).poll(cx));
                    self.0 = State::Idle(Chunk::default());
                    self.0 = State::Idle(result?);
                }
            }
        }
    }
}

impl Chunk {
    /// Reads the next entries; may block.
    fn filled(mut self, mut rest: std::fs::ReadDir) -> Chunk {
        for _ in 0..CHUNK_ENTRIES {
            let Some(entry) = rest.next() else { return self };
            let is_error = entry.is_err();
            self.entries.push_back(entry.map(|std| DirEntry {
                file_type: std.file_type().ok(),
                origin: EntryOrigin::Here(Arc::new(std)),
            }));
            if is_error {
                break;
            }
        }
        self.rest = Some(rest);
        self
    }
}

/// An entry of a directory, as `tokio::fs::DirEntry`.
#[derive(Debug)]
pub struct DirEntry {
    file_type: Option<FileType>,
    origin: EntryOrigin,
}

#[derive(Clone, Debug)]
enum EntryOrigin {
    Here(Arc<std::fs::DirEntry>),
    World { engine: Engine, dir: PathBuf, name: OsString },
}

// Values that nothing changes.
impl std::panic::UnwindSafe for DirEntry {}
impl std::panic::RefUnwindSafe for DirEntry {}

impl DirEntry {
    /// Returns the path: that of the directory as it was opened, joined with the name.
    pub fn path(&self) -> PathBuf {
        match &self.origin {
            EntryOrigin::Here(std) => std.path(),
            EntryOrigin::World { dir, name, .. } => dir.join(name),
        }
    }

    /// Returns the name.
    pub fn file_name(&self) -> OsString {
        match &self.origin {
            EntryOrigin::Here(std) => std.file_name(),
            EntryOrigin::World { name, .. } => name.clone(),
        }
    }

    /// Returns the metadata of the entry, without following a symbolic link.
    ///
    /// # Errors
    /// Those of lstat(2).
    pub async fn metadata(&self) -> io::Result<Metadata> {
        match self.origin.clone() {
            EntryOrigin::Here(std) => threads::run(move || std.metadata()).await?,
            EntryOrigin::World { engine, dir, name } => {
                let path = dir.join(name);
                let find = move |engine: Engine| engine.symlink_metadata(path);
                simulated::metadata(&engines::in_world(engine, find).await?)
            }
        }
    }

    /// Returns the type of the entry.
    ///
    /// # Errors
    /// Those of lstat(2), if the file system does not store types in directories.
    pub async fn file_type(&self) -> io::Result<FileType> {
        match (self.file_type, &self.origin) {
            (Some(file_type), _) => Ok(file_type),
            (None, EntryOrigin::Here(std)) => {
                let std = std.clone();
                threads::run(move || std.file_type()).await?
            }
            (None, EntryOrigin::World { .. }) => Ok(self.metadata().await?.file_type()),
        }
    }

    /// Returns the inode's number; 0 in a simulated world.
    pub fn ino(&self) -> u64 {
        match &self.origin {
            EntryOrigin::Here(std) => std.ino(),
            EntryOrigin::World { .. } => 0,
        }
    }
}
