//! The settings of a store, and its start.

use std::path::{Path, PathBuf};

use forebay::{Class, Durability, Engine, Mode, Waitable};

use crate::store::{ForebayStore, StoreState};

/// The settings of a [`ForebayStore`] to open; made by [`ForebayStore::builder`].
///
/// ```
/// use forebay::{Config, Durability, Engine, Mode};
/// use forebay_object_store::ForebayStore;
///
/// # #[tokio::main]
/// # async fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let root = dir.path();
/// let engine = Engine::start(Config::new())?;
/// let store = ForebayStore::builder(&engine, root)
///     .read_mode(Mode::Adaptive)
///     .put_durability(Durability::None)
///     .class(engine.class("reports", 50)?)
///     .open()
///     .await?;
/// # engine.close().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a store is there once `open` has returned"]
pub struct ForebayStoreBuilder {
    engine: Engine,
    root: PathBuf,
    settings: Settings,
}

/// The settings of a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) read_mode: Mode,
    pub(crate) put_durability: Durability,
    pub(crate) open_files_max: Option<usize>,
    pub(crate) gap_bytes_max: u64,
    pub(crate) automatic_cleanup: bool,
    pub(crate) class: Option<Class>,
}

impl ForebayStoreBuilder {
    pub(crate) fn new(engine: &Engine, root: &Path) -> ForebayStoreBuilder {
        let settings = Settings {
            read_mode: Mode::Adaptive,
            put_durability: Durability::Data,
            open_files_max: None,
            gap_bytes_max: 16 << 10,
            automatic_cleanup: false,
            class: None,
        };
        ForebayStoreBuilder { engine: engine.clone(), root: root.to_path_buf(), settings }
    }

    /// Sets the I/O mode of reads. Default: [`Mode::Adaptive`].
    pub fn read_mode(mut self, mode: Mode) -> Self {
        self.settings.read_mode = mode;
        self
    }

    /// Sets the durability of puts, copies and renames when they return. Default: [`Durability::Data`].
    ///
    /// With it an object, its name, and the directories that were made for it survive a power failure: the object is whole or
    /// absent, and a replaced object is either the old or the new one. With [`Durability::None`] an object may be missing, empty
    /// or torn afterwards. [`Durability::All`] syncs the other metadata of the object as well. Deletions are never durable.
    pub fn put_durability(mut self, durability: Durability) -> Self {
        self.settings.put_durability = durability;
        self
    }

    /// Sets the files that stay open for further reads, at least 1. Default: as many as the engine keeps open for all its stores
    /// ([`Config::descriptors_max`](forebay::Config::descriptors_max)), which is nearly half of the descriptors that the process
    /// may have. An adaptive file has two descriptors, any other file has one.
    ///
    /// Calls open more files in addition: an eighth as many descriptors as the engine keeps, from 2 to 64 files, and as many more
    /// while others wait for their turn; each unfinished upload has one as well. When the process is out of descriptors,
    /// the least recently used files that nothing reads are closed, and the failed call is retried. For tests; programs use the
    /// engine's setting.
    #[doc(hidden)]
    pub fn open_files_max(mut self, files: usize) -> Self {
        self.settings.open_files_max = Some(files.max(1));
        self
    }

    /// Sets the most bytes between two ranges of `get_ranges` that are read with one request. Default: 16 KiB; 0 merges only ranges
    /// that touch or overlap. See [`ReadMany::gap_bytes_max`](forebay::ReadMany::gap_bytes_max).
    pub fn gap_bytes_max(mut self, bytes: u64) -> Self {
        self.settings.gap_bytes_max = bytes;
        self
    }

    /// Sets whether a directory that a deletion leaves empty is removed, and those above it up to the root. Default: no.
    /// Used by tests alone.
    #[doc(hidden)]
    pub fn automatic_cleanup(mut self, cleans: bool) -> Self {
        self.settings.automatic_cleanup = cleans;
        self
    }

    /// Sets the class of the store's reads and writes. Default: that of the task that polls; see
    /// [`Class::scope`](forebay::Class::scope).
    pub fn class(mut self, class: Class) -> Self {
        self.settings.class = Some(class);
        self
    }

    /// Opens the store. A relative root is resolved against the current working directory.
    ///
    /// # Errors
    /// [`NotFound`](forebay::ErrorKind::NotFound) when the root does not exist, [`NotADirectory`](forebay::ErrorKind::NotADirectory)
    /// when it is not a directory, and the errors of a closed engine.
    pub fn open(self) -> Waitable<impl Future<Output = forebay::Result<ForebayStore>>> {
        Waitable::new("open_store", async move {
            let root = std::path::absolute(&self.root).unwrap_or(self.root);
            // Fails with ENOTDIR if it is not a directory.
            self.engine.open_dir(&root).await?;
            Ok(ForebayStore::of(StoreState::new(self.engine, root, self.settings)))
        })
    }
}
