//! The stores that object_store has itself, over ForebayStore: scripts/checks/object-store-programs makes a package of this file, and other
//! crates' tests name these types. With `FOREBAY_STORES=local` each is over object_store's LocalFileSystem instead.

use std::fmt;
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use bytes::Bytes;
use forebay::{Config, Engine};
use forebay_object_store::ForebayStore;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem as OwnLocal;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use tempfile::TempDir;
use url::Url;

static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::start(Config::new()).unwrap());

/// Returns the store that is tested, at the root of another one.
fn store(own: &OwnLocal, root: &FilePath, cleans: bool) -> Arc<dyn ObjectStore> {
    if std::env::var_os("FOREBAY_STORES").is_some_and(|name| name == "local") {
        return Arc::new(own.clone().with_automatic_cleanup(cleans));
    }
    let opened = ForebayStore::builder(&ENGINE, root).automatic_cleanup(cleans).open().wait();
    Arc::new(opened.unwrap_or_else(|error| panic!("{}: {error}", root.display())))
}

/// As object_store's `LocalFileSystem`.
#[derive(Clone, Debug)]
pub struct LocalFileSystem {
    /// For its names.
    own: OwnLocal,
    root: PathBuf,
    store: Arc<dyn ObjectStore>,
}

impl LocalFileSystem {
    pub fn new() -> Self {
        Self::of(OwnLocal::new(), PathBuf::from("/"))
    }

    pub fn new_with_prefix(prefix: impl AsRef<FilePath>) -> Result<Self> {
        let own = OwnLocal::new_with_prefix(prefix.as_ref())?;
        Ok(Self::of(own, prefix.as_ref().canonicalize().unwrap()))
    }

    fn of(own: OwnLocal, root: PathBuf) -> Self {
        let store = store(&own, &root, false);
        Self { own, root, store }
    }

    pub fn path_to_filesystem(&self, location: &Path) -> Result<PathBuf> {
        self.own.path_to_filesystem(location)
    }

    pub fn with_automatic_cleanup(mut self, cleans: bool) -> Self {
        self.store = store(&self.own, &self.root, cleans);
        self
    }
}

impl Default for LocalFileSystem {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for LocalFileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.own, f)
    }
}

/// As object_store's `InMemory`, in a folder that is removed with its last clone.
#[derive(Clone, Debug)]
pub struct InMemory {
    store: Arc<dyn ObjectStore>,
    _folder: Arc<TempDir>,
}

impl InMemory {
    pub fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let own = OwnLocal::new_with_prefix(folder.path()).unwrap();
        Self { store: store(&own, folder.path(), false), _folder: Arc::new(folder) }
    }
}

impl Default for InMemory {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for InMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InMemory")
    }
}

/// As object_store's `parse_url_opts`, with the stores above.
pub fn parse_url_opts<I, K, V>(url: &Url, options: I) -> Result<(Box<dyn ObjectStore>, Path)>
where
    I: IntoIterator<Item = (K, V)>,
    K: AsRef<str>,
    V: Into<String>,
{
    let (own, path) = object_store::parse_url_opts(url, options)?;
    let store: Box<dyn ObjectStore> = match url.scheme() {
        "file" => Box::new(LocalFileSystem::new()),
        "memory" => Box::new(InMemory::new()),
        _ => own,
    };
    Ok((store, path))
}

macro_rules! object_store_by_its_store {
    ($name:ident) => {
        #[async_trait]
        impl ObjectStore for $name {
            async fn put_opts(
                &self,
                location: &Path,
                payload: PutPayload,
                options: PutOptions,
            ) -> Result<PutResult> {
                self.store.put_opts(location, payload, options).await
            }

            async fn put_multipart_opts(
                &self,
                location: &Path,
                options: PutMultipartOptions,
            ) -> Result<Box<dyn MultipartUpload>> {
                self.store.put_multipart_opts(location, options).await
            }

            async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
                self.store.get_opts(location, options).await
            }

            async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
                self.store.get_ranges(location, ranges).await
            }

            fn delete_stream(
                &self,
                locations: BoxStream<'static, Result<Path>>,
            ) -> BoxStream<'static, Result<Path>> {
                self.store.delete_stream(locations)
            }

            fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
                self.store.list(prefix)
            }

            fn list_with_offset(
                &self,
                prefix: Option<&Path>,
                offset: &Path,
            ) -> BoxStream<'static, Result<ObjectMeta>> {
                self.store.list_with_offset(prefix, offset)
            }

            async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
                self.store.list_with_delimiter(prefix).await
            }

            async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
                self.store.copy_opts(from, to, options).await
            }

            async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
                self.store.rename_opts(from, to, options).await
            }
        }
    };
}

object_store_by_its_store!(LocalFileSystem);
object_store_by_its_store!(InMemory);
