//! The store: what its clones share, and what programs hold.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use forebay::{Class, Durability, Engine, ErrorKind, Open, Pending, shard};

use crate::directories::{Directories, NameSyncs};
use crate::handles::Handles;
use crate::is_broken;
use crate::line::Lines;
use crate::options::{ForebayStoreBuilder, Settings};

/// The reciprocal of the uploads that keep their files open, as a part of the descriptors that the engine's caches may have.
const UPLOADS_PART: usize = 2;

/// An `ObjectStore` for files below a directory, which reads and writes with a Forebay engine.
///
/// It implements `object_store::ObjectStore` of object_store 0.14, and of 0.13 with the feature `object_store_013`. Objects,
/// locations, symbolic links, staged files and directories are those of object_store's `LocalFileSystem`: both may work on the same
/// tree at the same time, and either can replace the other. [`docs/object-store.md`] has the differences.
///
/// Clones share the store. Any executor will do; no call blocks its thread, or needs a thread of the runtime's blocking pool.
///
/// - **`get_ranges`** is one batch: ranges are sorted, merged over small gaps, and all in flight together. In addition to its own
///   bytes a result pins at most 4 KiB, or, up to 8 KiB long, three times its length.
/// - **`get_opts`** returns a stream: one chunk up to 8 MiB, else a scan with four reads of 1 MiB ahead.
/// - **A file that was replaced** is seen by the next read, even if another process replaced it: each read looks the name up (1
///   to 2 us), and saves only the open. A stream continues with its initial file, or fails if that was changed and its descriptor
///   given to other calls.
/// - **Updates** (`PutMode::Update`): of all calls with the same tag one succeeds, across processes, if all have opened the store
///   with the same root. Every change of a name holds its lock; while a stopped process holds that lock, changes fail after 10
///   seconds.
/// - **Changes run to completion**: a change whose future is dropped after its first poll continues as a task of the engine, so
///   that no staged file is left. Dropping a `MultipartUpload` removes its staged file.
///
/// ```
/// use forebay::{Config, Engine};
/// use forebay_object_store::ForebayStore;
/// use object_store::{ObjectStore, ObjectStoreExt, path::Path};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let root = dir.path();
/// let engine = Engine::start(Config::new())?;
/// let store = ForebayStore::builder(&engine, root).open().await?;
///
/// let location = Path::from("tables/2026/part-0.parquet");
/// store.put(&location, "PAR1 columns PAR1".into()).await?; // durable
/// let parts = store.get_ranges(&location, &[0..4, 13..17]).await?;
/// assert_eq!(parts, ["PAR1", "PAR1"]);
/// # engine.close().await?;
/// # Ok(()) }
/// ```
///
/// [`docs/object-store.md`]: https://github.com/forebay-rs/forebay/blob/main/docs/object-store.md
#[derive(Clone)]
pub struct ForebayStore {
    pub(crate) shared: Arc<StoreState>,
    class: Option<Class>,
}

/// The state that a store's clones share.
pub(crate) struct StoreState {
    pub(crate) engine: Engine,
    pub(crate) root: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) handles: Handles,
    pub(crate) directories: Directories,
    name_syncs: NameSyncs,
    /// Those before the locks of names.
    pub(crate) lines: Lines,
    /// Bytes in memory of gets whose streams the program has not polled.
    pub(crate) unread_bytes: Arc<AtomicU64>,
    /// Cloned by each upload that keeps its file open.
    uploads: Arc<()>,
}

impl StoreState {
    pub(crate) fn new(engine: Engine, root: PathBuf, settings: Settings) -> StoreState {
        let handles = Handles::new(&engine, Open::read().mode(settings.read_mode), settings.open_files_max);
        let (directories, name_syncs) = (Directories::default(), NameSyncs::default());
        let (lines, unread_bytes, uploads) = (Lines::new(), Arc::default(), Arc::default());
        StoreState { engine, root, settings, handles, directories, name_syncs, lines, unread_bytes, uploads }
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.settings.put_durability != Durability::None
    }

    /// Returns what a put does with its bytes before they get their name.
    pub(crate) fn durability(&self) -> Durability {
        if is_broken!(BytesNotSynced) { Durability::None } else { self.settings.put_durability }
    }

    /// Returns what an upload has while it keeps its file open; `None` if enough of them do.
    pub(crate) fn upload_place(&self) -> Option<Arc<()>> {
        let uploads_max = (self.handles.cache.descriptors_max() / UPLOADS_PART).max(1);
        // One of the clones is the store's.
        (Arc::strong_count(&self.uploads) <= uploads_max).then(|| self.uploads.clone())
    }

    /// Renames a file, and makes that durable if the store's puts are.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Pending<()> {
        if self.is_durable() && !is_broken!(NameNotSynced) {
            self.engine.rename(from, to)
        } else {
            self.engine.rename_unsynced(from, to)
        }
    }

    /// Makes the change of a name durable if the store's puts are.
    pub(crate) async fn sync_name(&self, path: &Path) -> forebay::Result<()> {
        let Some(above) = path.parent().filter(|_| self.is_durable() && !is_broken!(NameNotSynced)) else {
            return Ok(());
        };
        match self.name_syncs.sync(&self.engine, above).await {
            // The object was deleted since, and the directory with it.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            synced => synced,
        }
    }
}

impl ForebayStore {
    /// Returns the settings of a store for the files below `root`; [`open`](ForebayStoreBuilder::open) opens it.
    pub fn builder(engine: &Engine, root: impl AsRef<Path>) -> ForebayStoreBuilder {
        ForebayStoreBuilder::new(engine, root.as_ref())
    }

    pub(crate) fn of(shared: StoreState) -> ForebayStore {
        let class = shared.settings.class;
        ForebayStore { shared: Arc::new(shared), class }
    }

    /// Returns the same store for work of another class: a query, a tenant. Both share open files.
    ///
    /// ```
    /// # use forebay::{Class, Config, Engine};
    /// # use forebay_object_store::ForebayStore;
    /// # #[tokio::main]
    /// # async fn main() -> forebay::Result<()> {
    /// # let engine = Engine::start(Config::new())?;
    /// # let dir = tempfile::tempdir().unwrap();
    /// let store = ForebayStore::builder(&engine, dir.path()).open().await?;
    /// let compaction = store.with_class(Class::BACKGROUND);
    /// # let _ = compaction;
    /// # engine.close().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_class(&self, class: Class) -> ForebayStore {
        ForebayStore { shared: self.shared.clone(), class: Some(class) }
    }

    /// Returns the class of an operation that starts now.
    pub(crate) fn class(&self) -> Class {
        self.class.unwrap_or_else(shard::class)
    }

    /// Returns the root directory of the store's objects.
    pub fn root(&self) -> &Path {
        &self.shared.root
    }

    /// Returns the number of files that stay open for further reads.
    pub fn open_files(&self) -> usize {
        self.shared.handles.cache.open_files()
    }

    /// Closes all files that no read uses. A file that another program deletes keeps its space while it is open here: at most until
    /// this call, or until other files replace it. The closing starts with the call. The future completes when all earlier opens
    /// have ended, including those of dropped reads, and their files are closed.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`](forebay::ErrorKind::Forked) in the child of a fork.
    pub fn close_files(&self) -> Pending<()> {
        self.shared.handles.clear()
    }
}

impl fmt::Display for ForebayStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForebayStore({})", self.shared.root.display())
    }
}

impl fmt::Debug for ForebayStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForebayStore")
            .field("root", &self.shared.root)
            .field("settings", &self.shared.settings)
            .field("class", &self.class)
            .finish_non_exhaustive()
    }
}
