//! The files that stay open for further reads.
//!
//! A name is looked up again for each read, and the open file is used only if it still is the file of that name: device and inode
//! are the same. Because it is open, its inode's number cannot be given to another file. So a file that anybody replaced, by a rename
//! of the file itself or of a directory or symbolic link above it, is seen by the next read.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay::{
    Engine, ErrorKind, File, FileCache, FileEntry, FilePlace, FileUse, Metadata, Open, Pending, internal,
};

use crate::failure::{Failure, Result};

/// A file that was opened to be read. The cache may have closed it since.
struct Handle {
    entry: FileEntry,
    identity: Identity,
}

/// The file system and the number of a file in it.
pub(crate) type Identity = ((u32, u32), u64);

/// The same in every run, as a simulated world has to be.
type FixedHasher = BuildHasherDefault<DefaultHasher>;

/// Number of handles from which on closed handles are looked for; the search repeats when the number has doubled.
const KNOWN_MIN: usize = 64;

/// Open files by their location.
pub(crate) struct Handles {
    engine: Engine,
    pub(crate) cache: FileCache,
    known: Mutex<HandleMap>,
}

struct HandleMap {
    handles: HashMap<String, Handle, FixedHasher>,
    /// Number of handles at which closed handles are removed.
    handles_max: usize,
}

impl Handles {
    pub(crate) fn new(engine: &Engine, open: Open, files_max: Option<usize>) -> Handles {
        let known = HandleMap { handles: HashMap::default(), handles_max: KNOWN_MIN };
        let cache = FileCache::new(engine, open, files_max);
        Handles { engine: engine.clone(), cache, known: Mutex::new(known) }
    }

    /// Returns the file of an object that is open already, if it is the one with this metadata.
    pub(crate) fn get(&self, location: &str, found: &Metadata) -> Option<FileUse> {
        let known = self.known()?;
        known.handles.get(location).filter(|handle| handle.identity == identity(found))?.entry.get()
    }

    /// Opens the file of an object, which is a regular one, and returns it with its metadata. `place` is the caller's.
    ///
    /// # Errors
    /// The file does not exist.
    pub(crate) async fn open(
        &self,
        location: &str,
        path: &Path,
        place: &FilePlace,
    ) -> Result<(FileUse, Metadata)> {
        let entry = self.cache.file(path);
        let file = entry.open(place).await.map_err(|error| Failure::of_file(path, error))?;
        // Of the open file: the name may have become another file's meanwhile.
        let found = metadata_of(&file).await?;
        self.put(location, Handle { entry, identity: identity(&found) });
        // The file may have been deleted before it was put here, and a handle would keep its space.
        if file.is_removed().unwrap_or(false) {
            self.forget(location);
        }
        Ok((file, found))
    }

    fn put(&self, location: &str, handle: Handle) {
        let Some(mut known) = self.known() else { return };
        if known.handles.len() >= known.handles_max {
            known.handles.retain(|_, handle| handle.entry.is_open());
            known.handles_max = KNOWN_MIN.max(2 * known.handles.len());
        }
        let before = known.handles.insert(location.to_string(), handle);
        drop(known);
        drop(before);
    }

    /// Closes the file of an object that was deleted or replaced, once no read uses it: an open file keeps its space.
    pub(crate) fn forget(&self, location: &str) {
        let handle = self.known().and_then(|mut known| known.handles.remove(location));
        drop(handle);
    }

    /// Closes all files that no read uses, and each other one when its last read ends; waits for the opens under way.
    pub(crate) fn clear(&self) -> Pending<()> {
        let handles = self.known().map(|mut known| std::mem::take(&mut known.handles));
        drop(handles);
        self.cache.close_idle()
    }

    /// Returns the handles; `None` in the child of a fork, which may have copied the lock while it was held.
    fn known(&self) -> Option<MutexGuard<'_, HandleMap>> {
        let is_forked = internal::is_forked(&self.engine);
        (!is_forked).then(|| self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the metadata of the file at `path`: immediately if the kernel has its name in memory.
///
/// # Errors
/// The file does not exist.
pub(crate) async fn look_up(engine: &Engine, path: &Path) -> Result<Metadata> {
    let found = match engine.try_metadata(path) {
        Some(found) => found,
        None => engine.metadata(path).await,
    };
    found.map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::not_found(path, error),
        _ => error.into(),
    })
}

/// Returns the metadata of an open file: immediately, except in a simulated world.
pub(crate) async fn metadata_of(file: &File) -> forebay::Result<Metadata> {
    match file.try_metadata() {
        Some(found) => found,
        None => file.metadata().await,
    }
}

pub(crate) fn identity(metadata: &Metadata) -> Identity {
    (metadata.device(), metadata.inode())
}
