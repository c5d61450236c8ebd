//! The files that stay open for further reads.
//!
//! A name is looked up again for each read, and the open file is used only if it still is the file of that name: device and inode
//! are the same. Because it is open, its inode's number cannot be given to another file. So a file that anybody replaced, by a rename
//! of the file itself or of a directory or symbolic link above it, is seen by the next read.

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::path::Path;
use std::sync::Arc;

use forebay::{Engine, ErrorKind, File, Metadata, Open};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, UnitWeighter};

use crate::crowd::{Crowd, OpenFileGuard};
use crate::failure::{Failure, Result};

/// A file that is open to be read.
pub(crate) struct Handle {
    pub(crate) file: File,
    identity: Identity,
    _guard: OpenFileGuard,
}

/// The file system and the number of a file in it.
type Identity = ((u32, u32), u64);

/// The same in every run, as a simulated world has to be.
type FixedHasher = BuildHasherDefault<DefaultHasher>;

/// Open files by their location.
pub(crate) struct Handles {
    files: Cache<String, Arc<Handle>, UnitWeighter, FixedHasher>,
    open: Open,
    crowd: Arc<Crowd>,
}

impl Handles {
    pub(crate) fn new(files_max: usize, open: Open, crowd: Arc<Crowd>) -> Handles {
        let mut options = OptionsBuilder::new();
        options.shards(1).estimated_items_capacity(files_max).weight_capacity(files_max as u64);
        let (hasher, lifecycle) = (FixedHasher::default(), DefaultLifecycle::default());
        let files = match options.build() {
            Ok(options) => Cache::with_options(options, UnitWeighter, hasher, lifecycle),
            // Cannot happen: all required settings are set.
            Err(_) => Cache::with(files_max, files_max as u64, UnitWeighter, hasher, lifecycle),
        };
        Handles { files, open, crowd }
    }

    /// Returns the file of an object that is open already, if it is the one with this metadata.
    pub(crate) fn get(&self, location: &str, found: &Metadata) -> Option<Arc<Handle>> {
        self.files.get(location).filter(|handle| handle.identity == identity(found))
    }

    /// Opens the file of an object, which is a regular one, and returns it with its metadata.
    ///
    /// # Errors
    /// There is no such file.
    pub(crate) async fn open(
        &self,
        engine: &Engine,
        location: &str,
        path: &Path,
    ) -> Result<(Arc<Handle>, Metadata)> {
        let guard = self.crowd.count();
        let file = engine.open(path, self.open).await.map_err(|error| Failure::of_file(path, error))?;
        // Of the open file: the name may have become another file's meanwhile.
        let found = file.metadata().await?;
        let handle = Arc::new(Handle { file, identity: identity(&found), _guard: guard });
        self.files.insert(location.to_string(), handle.clone());
        // The file may have been deleted before it was put here, and a handle would keep its space.
        if handle.file.is_removed().unwrap_or(false) {
            self.forget(location);
        }
        Ok((handle, found))
    }

    /// Closes the file of an object that was deleted or replaced, once no read uses it: an open file keeps its space.
    pub(crate) fn forget(&self, location: &str) {
        self.files.remove(location);
    }

    /// Closes all files that no read uses.
    pub(crate) fn clear(&self) {
        self.files.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }
}

/// Returns the metadata of the file at `path`: at once where the kernel has its name in memory.
///
/// # Errors
/// There is no such file.
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

fn identity(metadata: &Metadata) -> Identity {
    (metadata.device(), metadata.inode())
}
