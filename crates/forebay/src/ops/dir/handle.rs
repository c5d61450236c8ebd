//! An open directory, and the calls on its entries.

use std::ffi::OsStr;
use std::future::poll_fn;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{DirEntry, Metadata, done, entries, metadata};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::in_flight::{InFlight, Stay};
use crate::base::pending::Pending;
use crate::driver::meta::{At, Descriptor, DescriptorOwner, FdOwner, MetaReply, MetaRequest};
use crate::handle::engine::{Engine, WeakEngine};
use crate::handle::file::File;
use crate::handle::open::{self, Open};

/// An open directory. Its calls reach the entries *of this directory*, also after it was moved, after another was put in its old
/// place, and after a change of the process's working directory.
///
/// Every call looks a path up again. A program that keeps several files in a directory opens the directory once
/// and names them here; otherwise `mv data data.old; mv other data` makes it change the wrong directory.
///
/// Names are single names: not empty, without a slash, neither `.` nor `..`. A symbolic link is followed where the system call
/// follows it. In a removed directory, calls that create or look up an entry fail with `ENOENT`.
///
/// A handle; clones are cheap. It does not keep the engine running: when the engine has ended its calls
/// return [`ErrorKind::EngineClosed`]. In the child of a fork they return [`ErrorKind::Forked`]. Every call
/// runs on a thread of the engine's pool, as those of the [`Engine`] do.
///
/// ```
/// use forebay::{Config, Engine, Open};
/// # fn main() -> forebay::Result<()> {
/// # let base = tempfile::tempdir().unwrap();
/// # let (data, moved) = (base.path().join("data"), base.path().join("moved"));
/// # std::fs::create_dir(&data).unwrap();
/// let engine = Engine::start(Config::new())?;
/// let dir = engine.open_dir(&data).wait()?;
/// std::fs::rename(&data, &moved).unwrap();
/// dir.open("rows", Open::create_new().buffered()).wait()?;
/// assert!(moved.join("rows").exists() && !data.exists());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Dir {
    core: Arc<DirCore>,
}

struct DirCore {
    fd: Descriptor,
    /// The path by which it was opened.
    path: PathBuf,
    engine: WeakEngine,
    closed: AtomicBool,
    in_flight: Arc<InFlight>,
}

impl DirCore {
    fn check_open(&self, operation: &'static str) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) {
            Err(Error::new(ErrorKind::FileClosed, operation).with_path(&self.path))
        } else {
            Ok(())
        }
    }
}

impl DescriptorOwner for DirCore {
    fn descriptor(&self) -> &Descriptor {
        &self.fd
    }

    fn enter(&self, operation: &'static str) -> Result<Option<Stay>> {
        let stay = self.in_flight.enter();
        self.check_open(operation).map(|()| Some(stay))
    }
}

impl Dir {
    /// Returns the path by which the directory was opened, for messages. It may have been moved since.
    pub fn path(&self) -> &Path {
        &self.core.path
    }

    /// Opens a file in the directory with the options `open`, and returns it; see [`Engine::open`].
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of [`Engine::open`]; [`ErrorKind::InvalidInput`] for an invalid name.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let dir = engine.open_dir(dir.path()).wait()?;
    /// let file = dir.open("rows", Open::create_new()).wait()?;
    /// dir.sync().wait()?; // its name survives a power failure
    /// # Ok(()) }
    /// ```
    pub fn open(&self, name: impl AsRef<OsStr>, open: Open) -> Pending<File> {
        self.with_engine("open", name, |engine, at| open::open(engine, at, open))
    }

    /// Opens a directory in the directory, and returns it.
    ///
    /// # Errors
    /// Those of [`Engine::open_dir`]; [`ErrorKind::InvalidInput`] for an invalid name.
    pub fn open_dir(&self, name: impl AsRef<OsStr>) -> Pending<Dir> {
        self.with_engine("open_dir", name, self::open)
    }

    /// Creates a file in the directory that has no name, and returns it; see [`Engine::temp_file`].
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of [`Engine::temp_file`].
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let dir = engine.open_dir(dir.path()).wait()?;
    /// let file = dir.temp_file(Open::create()).wait()?;
    /// file.write(0, vec![1; 4096]).wait()?; // gone with its last handle
    /// # Ok(()) }
    /// ```
    pub fn temp_file(&self, open: Open) -> Pending<File> {
        match self.core.engine.upgrade() {
            Some(engine) => open::temp_file(&engine, self.itself(), open),
            None => self.ended("temp_file"),
        }
    }

    /// Creates a directory in the directory. Not synced: [`sync`](Dir::sync) makes it durable.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of mkdirat(2); [`ErrorKind::InvalidInput`] for an invalid name.
    pub fn create_dir(&self, name: impl AsRef<OsStr>) -> Pending<()> {
        self.ask(self.at("create_dir", name).map(|path| MetaRequest::CreateDir { path }), done)
    }

    /// Renames the entry `from` to `to`, replacing a file that had that name, and syncs the directory.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of [`Engine::rename`]; [`ErrorKind::InvalidInput`] for an invalid name.
    ///
    /// ```
    /// # use forebay::{Config, Durability, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let dir = engine.open_dir(dir.path()).wait()?;
    /// let new = dir.open("settings.new", Open::create_new().buffered()).wait()?;
    /// new.write(0, b"depth = 8").durable(Durability::Data).wait()?;
    /// dir.rename("settings.new", "settings").wait()?; // the old or the new content after a crash, never a mixture
    /// # Ok(()) }
    /// ```
    pub fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> Pending<()> {
        self.rename_into(from, self, to)
    }

    /// Moves the entry `from` into the directory `into`, as `to`, and syncs both directories. Used by tests alone.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of [`Engine::rename`]; [`ErrorKind::InvalidInput`] for an invalid name.
    #[doc(hidden)]
    pub fn rename_into(&self, from: impl AsRef<OsStr>, into: &Dir, to: impl AsRef<OsStr>) -> Pending<()> {
        let both = self.at("rename", from).and_then(|from| Ok((from, into.at("rename", to)?)));
        self.ask(both.map(|(from, to)| MetaRequest::Rename { from, to }), done)
    }

    /// Gives the file `from` a second name, `to` in the directory `into`, and syncs that directory. Fails if the name exists.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of [`Engine::hard_link`]; [`ErrorKind::InvalidInput`] for an invalid name.
    pub fn hard_link(&self, from: impl AsRef<OsStr>, into: &Dir, to: impl AsRef<OsStr>) -> Pending<()> {
        let both = self.at("hard_link", from).and_then(|from| Ok((from, into.at("hard_link", to)?)));
        self.ask(both.map(|(from, to)| MetaRequest::HardLink { from, to }), done)
    }

    /// Removes a file's name. Not synced: [`sync`](Dir::sync) makes one removal, or a thousand, durable.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of unlinkat(2); [`ErrorKind::InvalidInput`] for an invalid name.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> Pending<()> {
        self.ask(self.at("remove_file", name).map(|path| MetaRequest::RemoveFile { path }), done)
    }

    /// Removes an empty directory in the directory. Not synced, as [`remove_file`](Dir::remove_file).
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of unlinkat(2) with `AT_REMOVEDIR`; [`ErrorKind::InvalidInput`] for an invalid name.
    pub fn remove_dir(&self, name: impl AsRef<OsStr>) -> Pending<()> {
        self.ask(self.at("remove_dir", name).map(|path| MetaRequest::RemoveDir { path }), done)
    }

    /// Makes the names in the directory durable: files created in it or removed from it stay so after a power failure.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of fsync(2).
    pub fn sync(&self) -> Pending<()> {
        self.ask(Ok(MetaRequest::SyncDir { path: self.itself() }), done)
    }

    /// Returns the entries, sorted by name, without `.` and `..`; see [`Engine::read_dir`].
    ///
    /// # Errors
    /// Those of readdir(3).
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let dir = engine.open_dir(dir.path()).wait()?;
    /// dir.open("rows", Open::create_new()).wait()?;
    /// let names: Vec<_> = dir.read_dir().wait()?.iter().map(|entry| entry.name().to_owned()).collect();
    /// assert_eq!(names, ["rows"]);
    /// # Ok(()) }
    /// ```
    pub fn read_dir(&self) -> Pending<Vec<DirEntry>> {
        self.ask(Ok(MetaRequest::ReadDir { path: self.itself() }), entries)
    }

    /// Returns the metadata of an entry; symbolic links are followed.
    ///
    /// # Errors
    /// Those of stat(2); [`ErrorKind::InvalidInput`] for an invalid name.
    pub fn metadata(&self, name: impl AsRef<OsStr>) -> Pending<Metadata> {
        self.ask(self.at("metadata", name).map(|path| MetaRequest::Metadata { path }), metadata)
    }

    /// Returns the metadata of the directory itself. Inode and device show whether a path leads to it; it has
    /// no [`links`](Metadata::links) once it was removed.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn own_metadata(&self) -> Pending<Metadata> {
        self.ask(Ok(MetaRequest::Metadata { path: self.itself() }), metadata)
    }

    /// Returns whether the directory was removed, as of now. Unlike the other calls it makes one system call on the
    /// calling thread, which takes some 0.2 us and does not reach the device.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn is_removed(&self) -> Result<bool> {
        self.core.check_open("is_removed")?;
        let removed = self.core.engine.shared().is_removed("is_removed", &self.core.fd);
        removed.map_err(|error| error.with_path(&self.core.path))
    }

    /// Closes the directory for all its handles. Later calls fail with [`ErrorKind::FileClosed`]. Calls about its entries that are
    /// in flight run to their end, also [dropped](Pending#when-it-is-dropped) and [detached](Pending::detach) calls; then the close
    /// completes. Files that were opened in the directory stay open.
    ///
    /// The descriptor itself is closed then too, unless other handles of the directory exist: it closes with the last of them.
    ///
    /// # Errors
    /// [`ErrorKind::FileClosed`] if it was closed before.
    ///
    /// ```
    /// # use forebay::{Config, Engine, ErrorKind, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let base = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// let dir = engine.open_dir(base.path()).wait()?;
    /// let other = dir.clone();
    /// dir.close().wait()?; // no call in it is in flight any more
    /// let error = other.remove_file("name").wait();
    /// assert_eq!(error.map_err(|error| error.kind()), Err(ErrorKind::FileClosed));
    /// # Ok(()) }
    /// ```
    pub fn close(self) -> Pending<()> {
        if self.core.engine.shared().is_forked() {
            return Pending::ready(Err(Error::new(ErrorKind::Forked, "close").with_path(&self.core.path)));
        }
        if self.core.closed.swap(true, Ordering::SeqCst) {
            return Pending::ready(self.core.check_open("close"));
        }
        Pending::from_future(
            "close",
            Box::pin(async move {
                poll_fn(|context| self.core.in_flight.poll_none(context.waker())).await;
                drop(self);
                Ok(())
            }),
        )
    }

    fn owner(&self) -> FdOwner {
        self.core.clone()
    }

    fn itself(&self) -> At {
        At::itself(self.owner(), &self.core.path)
    }

    /// Returns the place of a name, or an error for an invalid one.
    pub(crate) fn at(&self, operation: &'static str, name: impl AsRef<OsStr>) -> Result<At> {
        let name = Path::new(name.as_ref());
        let mut parts = name.components();
        let only = (parts.next(), parts.next());
        // `components` drops a slash or a dot at the end; a name has neither.
        if matches!(only, (Some(Component::Normal(part)), None) if part == name.as_os_str()) {
            return Ok(At::within(self.owner(), &self.core.path, name));
        }
        Err(Error::invalid(
            operation,
            format!(
                "{name:?} is not a name in a directory: one is not empty, has no slash, and is neither . nor .."
            ),
        )
        .with_path(&self.core.path))
    }

    fn ask<T: Send + 'static>(
        &self,
        request: Result<MetaRequest>,
        take: impl FnOnce(MetaReply) -> Option<T> + Send + 'static,
    ) -> Pending<T> {
        match request {
            Ok(request) => self.core.engine.shared().ask(request, take),
            Err(error) => Pending::ready(Err(error)),
        }
    }

    /// Makes a call that needs a handle of the engine.
    fn with_engine<T>(
        &self,
        operation: &'static str,
        name: impl AsRef<OsStr>,
        call: impl FnOnce(&Engine, At) -> Pending<T>,
    ) -> Pending<T> {
        match (self.at(operation, name), self.core.engine.upgrade()) {
            (Err(error), _) => Pending::ready(Err(error)),
            (Ok(at), Some(engine)) => call(&engine, at),
            (Ok(_), None) => self.ended(operation),
        }
    }

    fn ended<T>(&self, operation: &'static str) -> Pending<T> {
        let error = match self.core.engine.shared().check(operation) {
            Err(error) => error,
            Ok(()) => Error::new(ErrorKind::EngineClosed, operation),
        };
        Pending::ready(Err(error.with_path(&self.core.path)))
    }
}

crate::_debug_parts!(Dir, |dir| path: dir.path());

pub(super) fn open(engine: &Engine, at: At) -> Pending<Dir> {
    let path = at.path().to_path_buf();
    let engine = engine.downgrade();
    let shared = engine.shared().clone();
    shared.ask(MetaRequest::OpenDir { path: at }, move |reply| match reply {
        MetaReply::Opened(fd) => {
            let (closed, in_flight) = (AtomicBool::new(false), Arc::default());
            Some(Dir { core: Arc::new(DirCore { fd, path, engine, closed, in_flight }) })
        }
        _ => None,
    })
}
