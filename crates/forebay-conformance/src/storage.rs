//! The storage of a case's files: a directory, or parts of an NVMe namespace.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use forebay::internal::{self, ErrorExt};
use forebay::{Engine, Error, File, Open, OpenNvme, Pending};

/// Names, and the storage behind them.
#[derive(Clone, Debug)]
pub(crate) enum Storage {
    Directory(PathBuf),
    Namespace(Arc<Namespace>),
}

/// A namespace whose parts have names, for as long as a case runs.
#[derive(Debug)]
pub(crate) struct Namespace {
    path: PathBuf,
    /// The whole namespace, held so that no other process uses it, and to fill parts with.
    whole: File,
    bytes: u64,
    block: u64,
    parts: Mutex<BTreeMap<PathBuf, Range<u64>>>,
}

impl Namespace {
    pub(crate) async fn claim(engine: &Engine, path: PathBuf) -> Result<Namespace, Error> {
        let whole = engine.open_nvme(&path, OpenNvme::write()).await?;
        let (bytes, block) = (whole.len().await?, u64::from(whole.alignment().offset));
        Ok(Namespace { path, whole, bytes, block, parts: Mutex::default() })
    }

    fn parts(&self) -> std::sync::MutexGuard<'_, BTreeMap<PathBuf, Range<u64>>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a name to a part of `len` bytes. It is the part that the name had when that is as long,
    /// otherwise a new one behind all others.
    fn place(&self, path: &Path, len: u64) -> Result<Range<u64>, Error> {
        let mut parts = self.parts();
        if let Some(part) = parts.get(path).filter(|part| part.end - part.start == len) {
            return Ok(part.clone());
        }
        // An unused block before each: no part starts where the namespace does, and few at a page.
        let end = parts.values().map(|part| part.end).max().unwrap_or_default();
        let start = end.next_multiple_of(self.block) + self.block;
        let part = start..start + len;
        if part.end.next_multiple_of(self.block) > self.bytes {
            let note = format!("a case needs more than this namespace's {} bytes", self.bytes);
            return Err(Error::os("open", libc::ENOSPC).with_path(path).with_note(note));
        }
        // The old part of a name is never given to another name: an operation may still be under way there.
        if let Some(old) = parts.insert(path.to_path_buf(), part.clone()) {
            parts.insert(path.join(old.start.to_string()), old);
        }
        Ok(part)
    }

    /// Writes the bytes of a part.
    async fn fill(&self, start: u64, bytes: &[u8]) -> Result<(), Error> {
        for (at, piece) in pieces(bytes) {
            let mut piece = piece.to_vec();
            // The bytes behind a part's end are not zero, and no read of the part may show them.
            piece.resize(piece.len().next_multiple_of(self.block as usize), 0xEE);
            self.whole.write(start + at, piece).await?;
        }
        Ok(())
    }
}

impl Storage {
    /// Returns the path of `name` in this storage.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    pub(crate) fn dir(&self) -> &Path {
        match self {
            Storage::Directory(dir) => dir,
            Storage::Namespace(namespace) => &namespace.path,
        }
    }

    pub(crate) fn is_namespace(&self) -> bool {
        matches!(self, Storage::Namespace(_))
    }

    /// Returns whether such a file exists already.
    pub(crate) async fn has(&self, engine: &Engine, path: &Path) -> bool {
        match self {
            Storage::Directory(_) => engine.metadata(path).await.is_ok(),
            Storage::Namespace(namespace) => namespace.parts().contains_key(path),
        }
    }

    /// Opens a file like [`Engine::open`]. Options that a namespace does not have (how to create, how to
    /// cache) are ignored.
    pub(crate) fn open(&self, engine: &Engine, path: impl AsRef<Path>, open: Open) -> Pending<File> {
        let path = path.as_ref();
        let Storage::Namespace(namespace) = self else { return engine.open(path, open) };
        let part = namespace.parts().get(path).cloned();
        let Some(part) = part else {
            return internal::ready(Err(Error::os("open", libc::ENOENT).with_path(path)));
        };
        let how = if internal::is_writable(&open) { OpenNvme::write() } else { OpenNvme::read() };
        engine.open_nvme(&namespace.path, how.part(part).even_in_use())
    }

    /// Makes a file that holds these bytes and no more.
    pub(crate) async fn put(&self, engine: &Engine, name: &str, bytes: &[u8]) -> Result<PathBuf, Error> {
        let path = self.path(name);
        let file = match self {
            Storage::Directory(_) => engine.open(&path, Open::create().truncate().buffered()).await?,
            Storage::Namespace(namespace) => {
                let part = namespace.place(&path, bytes.len() as u64)?;
                return namespace.fill(part.start, bytes).await.map(|()| path);
            }
        };
        for (at, piece) in pieces(bytes) {
            file.write(at, piece).await?;
        }
        file.close().await?;
        Ok(path)
    }

    /// Opens a new file for writing: empty, or with at least `room` bytes of zeros.
    pub(crate) async fn fresh(
        &self,
        engine: &Engine,
        path: &Path,
        open: Open,
        room: u64,
    ) -> Result<File, Error> {
        if let Storage::Namespace(namespace) = self {
            let room = room.next_multiple_of(namespace.block);
            let part = namespace.place(path, room)?;
            namespace.fill(part.start, &vec![0; room as usize]).await?;
        }
        self.open(engine, path, open).await
    }
}

fn pieces(bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    bytes.chunks(256 << 10).enumerate().map(|(number, piece)| ((number as u64) << 18, piece))
}
