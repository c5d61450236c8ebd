//! Names, directories and the metadata of files.

mod handle;

use std::path::Path;

use crate::base::error::Result;
use crate::base::pending::Pending;
use crate::driver::meta::{At, MetaReply, MetaRequest, done, metadata_now};
use crate::handle::engine::Engine;
use crate::io::metadata::{DirEntry, Metadata};

pub use handle::Dir;

/// Names and directories. Every call runs on a thread of the engine's pool, needs no poll to start, and never blocks a shard.
/// [`Pending`](Pending#when-it-is-dropped) documents the effect of a drop.
impl Engine {
    /// Renames the file or directory `from` to `to`, replacing a file that had that name, and makes that
    /// durable: the directories of both names are synced before the call completes.
    ///
    /// A file's *content* is made durable by [`File::sync`](crate::File::sync); to replace a file safely write the new
    /// one under another name, sync it, then rename it.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of rename(2), and of opening the two directories for reading. When the rename worked and a sync
    /// did not, the error's text reports that: the name has changed, but may change back when power fails.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> forebay::Result<()> {
    /// # let engine = Engine::start(Config::new())?;
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (new, name) = (dir.path().join("settings.new"), dir.path().join("settings"));
    /// # std::fs::write(&new, b"depth = 8").unwrap();
    /// engine.rename(&new, &name).wait()?;
    /// assert!(!new.exists() && name.exists());
    /// # Ok(()) }
    /// ```
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Pending<()> {
        self.ask(MetaRequest::Rename { from: at(from), to: at(to) }, done)
    }

    /// Gives the file `from` the second name `to` and syncs the directory of `to`. Fails when `to` exists.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of link(2), and of opening the directory of `to` for reading.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// engine.hard_link(dir.path().join("data"), dir.path().join("second name")).wait()?;
    /// assert_eq!(file.metadata().wait()?.links(), 2);
    /// # Ok(()) }
    /// ```
    pub fn hard_link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Pending<()> {
        self.ask(MetaRequest::HardLink { from: at(from), to: at(to) }, done)
    }

    /// Renames the file or directory `from` to `to` as [`rename`](Engine::rename) does, without a sync: after a power failure the
    /// file may have either name, or neither if its own bytes were not synced. [`sync_dir`](Engine::sync_dir) on both directories
    /// makes it durable.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of rename(2).
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> forebay::Result<()> {
    /// # let engine = Engine::start(Config::new())?;
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (part, whole) = (dir.path().join("scratch.part"), dir.path().join("scratch"));
    /// # std::fs::write(&part, b"recomputed after a crash").unwrap();
    /// engine.rename_unsynced(&part, &whole).wait()?;
    /// assert!(!part.exists() && whole.exists());
    /// # Ok(()) }
    /// ```
    pub fn rename_unsynced(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Pending<()> {
        self.ask(MetaRequest::RenameUnsynced { from: at(from), to: at(to) }, done)
    }

    /// Gives the file `from` the second name `to` as [`hard_link`](Engine::hard_link) does, without a sync. Fails when `to` exists.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of link(2).
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// engine.hard_link_unsynced(dir.path().join("data"), dir.path().join("second name")).wait()?;
    /// assert_eq!(file.metadata().wait()?.links(), 2);
    /// # Ok(()) }
    /// ```
    pub fn hard_link_unsynced(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Pending<()> {
        self.ask(MetaRequest::HardLinkUnsynced { from: at(from), to: at(to) }, done)
    }

    /// Removes a file's name; the file itself is removed with its last name and its last open handle.
    ///
    /// Not synced: after a power failure the name may be there again. [`sync_dir`](Engine::sync_dir) on its directory
    /// makes one removal, or a thousand, durable.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of unlink(2).
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// engine.remove_file(dir.path().join("data")).wait()?;
    /// engine.sync_dir(dir.path()).wait()?; // the name stays away after a power failure
    /// # Ok(()) }
    /// ```
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Pending<()> {
        self.ask(MetaRequest::RemoveFile { path: at(path) }, done)
    }

    /// Removes an empty directory. Not synced, as [`remove_file`](Engine::remove_file).
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of rmdir(2).
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// let sub = dir.path().join("sub");
    /// engine.create_dir(&sub).wait()?;
    /// engine.remove_dir(&sub).wait()?;
    /// # Ok(()) }
    /// ```
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Pending<()> {
        self.ask(MetaRequest::RemoveDir { path: at(path) }, done)
    }

    /// Creates a directory. Not synced: [`sync_dir`](Engine::sync_dir) on the directory above makes it
    /// durable.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of mkdir(2): a directory that exists is an error.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Pending<()> {
        self.ask(MetaRequest::CreateDir { path: at(path) }, done)
    }

    /// Creates a directory and those above it that are missing; an existing directory is not an error. Not synced.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of mkdir(2). Directories created before the failure stay.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// engine.create_dir_all(dir.path().join("tables/2024")).wait()?;
    /// engine.sync_dir(dir.path().join("tables")).wait()?;
    /// engine.sync_dir(dir.path()).wait()?;
    /// # Ok(()) }
    /// ```
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Pending<()> {
        self.ask(MetaRequest::CreateDirAll { path: at(path) }, done)
    }

    /// Makes the names in a directory durable: files created in it or removed from it stay so after a power failure.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of fsync(2), and of opening the directory for reading.
    ///
    /// ```
    /// # use forebay::{Config, Durability, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// let file = engine.open(dir.path().join("new"), Open::create_new()).wait()?;
    /// file.write(0, vec![1; 4096]).durable(Durability::All).wait()?; // the bytes
    /// engine.sync_dir(dir.path()).wait()?; // the name
    /// # Ok(()) }
    /// ```
    pub fn sync_dir(&self, path: impl AsRef<Path>) -> Pending<()> {
        self.ask(MetaRequest::SyncDir { path: at(path) }, done)
    }

    /// Returns the entries of a directory, sorted by name, without `.` and `..`.
    ///
    /// In one list: a directory of a million names takes some 50 MB. Names created or removed meanwhile may be in the list or not.
    ///
    /// # Errors
    /// Those of opendir(3) and readdir(3).
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// for entry in engine.read_dir(dir.path()).wait()? {
    ///     println!("{:?} is {:?}", entry.name(), entry.kind());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Pending<Vec<DirEntry>> {
        self.ask(MetaRequest::ReadDir { path: at(path) }, entries)
    }

    /// Opens the directory at `path` and returns it, to use the names in it wherever it is moved to; see
    /// [`Dir`].
    ///
    /// # Errors
    /// Those of open(2) with `O_DIRECTORY`: `ENOTDIR` when `path` is not a directory.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// let directory = engine.open_dir(dir.path()).wait()?;
    /// let file = directory.open("data", Open::create()).wait()?; // wherever the directory is moved to
    /// # Ok(()) }
    /// ```
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Pending<Dir> {
        handle::open(self, at(path))
    }

    /// Returns the metadata of the file at `path`; symbolic links are followed.
    ///
    /// # Errors
    /// Those of stat(2).
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// let metadata = engine.metadata(dir.path().join("data")).wait()?;
    /// assert_eq!(metadata.len(), 16_384);
    /// # Ok(()) }
    /// ```
    pub fn metadata(&self, path: impl AsRef<Path>) -> Pending<Metadata> {
        self.ask(MetaRequest::Metadata { path: at(path) }, metadata)
    }

    /// Returns the metadata of the file at `path`, without following a symbolic link.
    ///
    /// # Errors
    /// Those of lstat(2).
    ///
    /// ```
    /// # use forebay::{Config, Engine, FileKind};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// let link = dir.path().join("current");
    /// std::os::unix::fs::symlink("release-7", &link)?;
    /// assert_eq!(engine.symlink_metadata(&link).wait()?.kind(), FileKind::Symlink);
    /// # Ok(()) }
    /// ```
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Pending<Metadata> {
        self.ask(MetaRequest::SymlinkMetadata { path: at(path) }, metadata)
    }

    /// Returns the metadata of the files at `paths`, in their order, as one call: a directory of thousands of files costs one hand-over
    /// to the pool, not one for each. Symbolic links are followed.
    ///
    /// One thread looks up all paths: give it some hundreds at a time.
    ///
    /// # Errors
    /// Each path has its own result, with the errors of stat(2). The call as a whole fails only if the engine is closed.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # std::fs::write(dir.path().join("data"), [7; 100])?;
    /// let paths = engine.read_dir(dir.path()).wait()?.into_iter().map(|entry| dir.path().join(entry.name()));
    /// let mut bytes = 0;
    /// for metadata in engine.metadata_many(paths).wait()? {
    ///     bytes += metadata?.len();
    /// }
    /// assert_eq!(bytes, 100);
    /// # Ok(()) }
    /// ```
    pub fn metadata_many<P: AsRef<Path>>(
        &self,
        paths: impl IntoIterator<Item = P>,
    ) -> Pending<Vec<Result<Metadata>>> {
        let paths = paths.into_iter().map(at).collect();
        self.ask(MetaRequest::MetadataMany { paths }, |reply| match reply {
            MetaReply::MetadataMany(found) => Some(found),
            _ => None,
        })
    }

    /// Returns the metadata of the file at `path` immediately, on the calling thread, if the kernel has the whole path in memory;
    /// `None` if not, where [`metadata`](Engine::metadata) may have to read. Symbolic links are followed.
    ///
    /// Costs 1 to 2 us instead of a hand-over to the pool: openat2(2) with `RESOLVE_CACHED`, which needs Linux 5.12 (`None` before
    /// that, and in a simulated world). The path's names are looked up without waiting; a network file system may wait for the
    /// attributes of the file.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) when the kernel knows that the file does not exist, and the errors of a closed
    /// engine.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # #[tokio::main]
    /// # async fn main() -> forebay::Result<()> {
    /// # let engine = Engine::start(Config::new())?;
    /// let metadata = match engine.try_metadata("Cargo.toml") {
    ///     Some(found) => found?,
    ///     None => engine.metadata("Cargo.toml").await?,
    /// };
    /// assert!(metadata.is_file());
    /// # Ok(()) }
    /// ```
    pub fn try_metadata(&self, path: impl AsRef<Path>) -> Option<Result<Metadata>> {
        const OPERATION: &str = "try_metadata";
        if let Err(error) = self.shared().check(OPERATION) {
            return Some(Err(error));
        }
        if self.shared().is_simulated() {
            return None;
        }
        metadata_now(OPERATION, path.as_ref())
    }

    fn ask<T: Send + 'static>(
        &self,
        request: MetaRequest,
        answer: impl FnOnce(MetaReply) -> Option<T> + Send + 'static,
    ) -> Pending<T> {
        self.shared().ask(request, answer)
    }
}

fn entries(reply: MetaReply) -> Option<Vec<DirEntry>> {
    match reply {
        MetaReply::Entries(entries) => Some(entries),
        _ => None,
    }
}

fn metadata(reply: MetaReply) -> Option<Metadata> {
    match reply {
        MetaReply::Metadata(metadata) => Some(metadata),
        _ => None,
    }
}

fn at(path: impl AsRef<Path>) -> At {
    At::from(path.as_ref())
}
