//! Lists: directories are read one at a time, and the attributes of their files some hundreds at a time.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use forebay::{DirEntry, ErrorKind, FileKind, Metadata};
use futures_core::Stream;
use futures_util::stream;

use crate::attributes::Attributes;
use crate::failure::{Failure, Result};
use crate::location;
use crate::store::{ForebayStore, StoreState};

/// Files whose attributes are looked up with one call.
const LOOKED_UP_MAX: usize = 512;
/// Directories above a prefix that are looked up with one call.
const ABOVE_MAX: usize = 64;

/// An object in a list.
pub(crate) struct ListEntry {
    pub(crate) location: String,
    pub(crate) attributes: Attributes,
}

/// The entries directly below a prefix.
#[derive(Default)]
pub(crate) struct Level {
    /// Locations of directories, in order.
    pub(crate) directories: Vec<String>,
    pub(crate) objects: Vec<ListEntry>,
}

impl ForebayStore {
    /// Returns the objects below a prefix, in all directories. With `offset`, those whose locations sort after it.
    pub(crate) fn list_all(
        &self,
        prefix: &str,
        offset: Option<String>,
    ) -> impl Stream<Item = Result<ListEntry>> + Send + use<> {
        let top = Dir {
            path: location::below(&self.shared.root, prefix),
            location: prefix.to_string(),
            above: None,
        };
        let walk = Walk {
            shared: self.shared.clone(),
            offset,
            dirs: vec![Arc::new(top)],
            names: Names::default(),
            ready: VecDeque::new(),
        };
        stream::try_unfold(walk, async |mut walk| Ok(walk.next().await?.map(|entry| (entry, walk))))
    }

    /// Returns the objects and directories directly below a prefix.
    pub(crate) async fn list_level(&self, prefix: &str) -> Result<Level> {
        let top = Dir {
            path: location::below(&self.shared.root, prefix),
            location: prefix.to_string(),
            above: None,
        };
        let top = Arc::new(top);
        let mut names = Names::of(&self.shared, &top).await?;
        let mut level = Level::default();
        while let Some(found) = names.look_up(&self.shared, &top).await? {
            for (name, metadata) in found {
                match metadata {
                    Some(metadata) if !metadata.is_dir() => {
                        if location::may_be_object(&name.location) {
                            let attributes = Attributes::of(&metadata);
                            level.objects.push(ListEntry { location: name.location, attributes });
                        }
                    }
                    _ => level.directories.push(name.location),
                }
            }
        }
        Ok(level)
    }
}

/// A directory on the way of a walk.
struct Dir {
    path: PathBuf,
    location: String,
    /// The directory that it was found in; `None` for the first one.
    above: Option<Arc<Dir>>,
}

/// A walk through all directories below one.
struct Walk {
    shared: Arc<StoreState>,
    offset: Option<String>,
    /// Directories to read, the next one last.
    dirs: Vec<Arc<Dir>>,
    /// Names of the directory that was read last.
    names: Names,
    /// Objects to return.
    ready: VecDeque<ListEntry>,
}

impl Walk {
    async fn next(&mut self) -> Result<Option<ListEntry>> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Ok(Some(entry));
            }
            if let Some(dir) = self.names.dir.clone() {
                if let Some(found) = self.names.look_up(&self.shared, &dir).await? {
                    self.take(&dir, found);
                    continue;
                }
                self.names = Names::default();
            }
            let Some(dir) = self.dirs.pop() else { return Ok(None) };
            self.names = Names::of(&self.shared, &dir).await?;
            // Before the attributes are looked up: objects before the offset cost nothing.
            if let Some(offset) = &self.offset {
                self.names.waiting.retain(|name| name.kind != FileKind::File || name.location > *offset);
            }
            self.names.waiting.retain(|name| match name.kind {
                FileKind::File => location::may_be_object(&name.location),
                FileKind::Symlink => true,
                _ => false,
            });
            let below = std::mem::take(&mut self.names.dirs);
            self.dirs.extend(below.into_iter().rev().map(|name| Arc::new(name.into_dir(&dir))));
        }
    }

    fn take(&mut self, dir: &Arc<Dir>, found: Vec<(Name, Option<Metadata>)>) {
        for (name, metadata) in found {
            let Some(metadata) = metadata else { continue };
            if metadata.is_dir() {
                self.dirs.push(Arc::new(name.into_dir(dir)));
            } else if metadata.is_file()
                && location::may_be_object(&name.location)
                && self.offset.as_ref().is_none_or(|offset| name.location > *offset)
            {
                let attributes = Attributes::of(&metadata);
                self.ready.push_back(ListEntry { location: name.location, attributes });
            }
        }
    }
}

/// A name in a directory.
struct Name {
    path: PathBuf,
    location: String,
    kind: FileKind,
}

impl Name {
    fn into_dir(self, above: &Arc<Dir>) -> Dir {
        Dir { path: self.path, location: self.location, above: Some(above.clone()) }
    }
}

/// The names of a directory.
#[derive(Default)]
struct Names {
    dir: Option<Arc<Dir>>,
    dirs: Vec<Name>,
    /// Names whose attributes are to be looked up.
    waiting: VecDeque<Name>,
}

impl Names {
    /// Reads a directory. A removed directory has no names.
    async fn of(shared: &StoreState, dir: &Arc<Dir>) -> Result<Names> {
        let entries = match shared.engine.read_dir(&dir.path).await {
            Ok(entries) => entries,
            Err(error) => return is_empty(shared, dir, error).await.map(|()| Names::default()),
        };
        let name = |entry: &DirEntry| -> Result<Name> {
            let location = location::child(&dir.location, entry.name())?;
            Ok(Name { path: dir.path.join(entry.name()), location, kind: entry.kind() })
        };
        let mut names = Names { dir: Some(dir.clone()), ..Names::default() };
        for entry in &entries {
            let name = name(entry)?;
            match name.kind {
                FileKind::Dir => names.dirs.push(name),
                _ => names.waiting.push_back(name),
            }
        }
        Ok(names)
    }

    /// Returns further names with their metadata: first the directories, without metadata, then all others, some hundreds at a
    /// time. Removed names and dangling symbolic links are left out. `None` at the end.
    ///
    /// # Errors
    /// A name that exists and cannot be looked up: a list without it would look complete.
    async fn look_up(
        &mut self,
        shared: &StoreState,
        dir: &Arc<Dir>,
    ) -> Result<Option<Vec<(Name, Option<Metadata>)>>> {
        if !self.dirs.is_empty() {
            return Ok(Some(std::mem::take(&mut self.dirs).into_iter().map(|name| (name, None)).collect()));
        }
        if self.waiting.is_empty() {
            return Ok(None);
        }
        let count = self.waiting.len().min(LOOKED_UP_MAX);
        let names: Vec<Name> = self.waiting.drain(..count).collect();
        let looked_up = shared.engine.metadata_many(names.iter().map(|name| &name.path)).await?;
        let mut found = Vec::with_capacity(count);
        for (name, metadata) in names.into_iter().zip(looked_up) {
            match metadata {
                Ok(metadata) => {
                    if name.kind == FileKind::Symlink && metadata.is_dir() {
                        check_loop(shared, dir, &name, &metadata).await?;
                    }
                    found.push((name, Some(metadata)));
                }
                Err(error) => match error.kind() {
                    ErrorKind::NotFound => {}
                    // A file took the place of the directory, and of all names in it.
                    ErrorKind::NotADirectory if name.kind != FileKind::Symlink => {}
                    _ => return Err(error.into()),
                },
            }
        }
        Ok(Some(found))
    }
}

/// Returns whether a directory that cannot be read counts as empty: it was removed, or the prefix is that of a file.
async fn is_empty(shared: &StoreState, dir: &Dir, error: forebay::Error) -> Result<()> {
    match error.kind() {
        ErrorKind::NotFound => Ok(()),
        ErrorKind::NotADirectory if dir.above.is_none() => {
            // The name itself, or one above it?
            shared.engine.metadata(&dir.path).await?;
            Ok(())
        }
        _ => Err(error.into()),
    }
}

/// Fails for a symbolic link to a directory that it lies in, below the prefix or above it: the list would have no end.
async fn check_loop(shared: &StoreState, dir: &Arc<Dir>, link: &Name, target: &Metadata) -> Result<()> {
    let identity = |found: &Metadata| (found.device(), found.inode());
    let walked = std::iter::successors(Some(dir), |dir| dir.above.as_ref());
    let mut above: Vec<PathBuf> = walked.map(|dir| dir.path.clone()).collect();
    loop {
        // The kernel resolves `..` by the directories themselves, through any links in the path.
        let top = above.last().cloned().unwrap_or_default();
        above.extend(std::iter::successors(Some(top), |dir| Some(dir.join(".."))).skip(1).take(ABOVE_MAX));
        let mut last = None;
        let mut is_over = false;
        for (path, found) in above.iter().zip(shared.engine.metadata_many(&above).await?) {
            let found = found.ok().as_ref().map(identity);
            if found == Some(identity(target)) {
                return Err(Failure::text(format!(
                    "the symbolic link {} leads to {}, in which it lies; remove one of them",
                    link.path.display(),
                    path.display()
                )));
            }
            // The parent of the file system's root is the root.
            is_over = found.is_none() || found == last;
            last = found;
        }
        if is_over {
            return Ok(());
        }
        above = above.pop().into_iter().collect();
    }
}
