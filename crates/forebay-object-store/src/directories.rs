//! Directories that objects need: made where they are missing, and durable before a put returns.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay::{Class, Engine, ErrorKind};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};

use crate::failure::Result;
use crate::is_broken;

/// The most directories that are remembered.
const KNOWN_MAX: usize = 4096;
/// Beyond the limit one in this many is forgotten, chosen arbitrarily, and synced once more. Forgetting all of them would mean a
/// sync for each put of a program that cycles through one directory more than the limit.
const FORGOTTEN_PART: usize = 8;
/// Times that a directory is made while others remove those above it.
const TRIES_MAX: u32 = 100;

/// Which directories are certainly durable: their names were synced while they existed.
///
/// A directory that another task has just made, or another program, may not be durable yet, although it is there. So a durable put
/// syncs the names of all directories above its object, each once. A directory that another program removes and makes again without
/// a sync counts as the first.
#[derive(Default)]
pub(crate) struct Directories {
    known: Mutex<DurableSet>,
}

#[derive(Default)]
struct DurableSet {
    durable: HashSet<PathBuf>,
    /// Changes with each forgotten directory: it invalidates syncs that started before.
    forgotten: u64,
}

impl Directories {
    fn known(&self) -> MutexGuard<'_, DurableSet> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the directory `path` below `root`, and those above it that are missing.
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub(crate) async fn make(&self, engine: &Engine, root: &Path, path: &Path) -> Result<()> {
        self.forget_up_to(root, path);
        let mut tries = 0;
        loop {
            tries += 1;
            // A deletion that leaves no empty directory may remove one in the middle of this call: one above it is missing then, or
            // it was there when it was to be made, and no longer when it was looked at.
            match engine.create_dir_all(path).await {
                Err(error) if error.kind() == ErrorKind::NotFound && tries < TRIES_MAX => {}
                Err(error) if error.kind() == ErrorKind::AlreadyExists && tries < TRIES_MAX => {
                    if is_no_directory(engine, path).await {
                        return Err(error.into());
                    }
                }
                made => return Ok(made?),
            }
        }
    }

    /// Makes the names of the directory `path` and of those between it and `root` durable. All of them exist.
    ///
    /// # Errors
    /// Those of fsync(2) on a directory.
    pub(crate) async fn sync(&self, engine: &Engine, root: &Path, path: &Path) -> Result<()> {
        for dir in up_to(root, path).into_iter().rev() {
            let forgotten = {
                let known = self.known();
                if known.durable.contains(dir) {
                    continue;
                }
                known.forgotten
            };
            if let Some(above) = dir.parent() {
                engine.sync_dir(above).await?;
            }
            let mut known = self.known();
            if known.durable.len() >= KNOWN_MAX {
                let mut number = 0;
                known.durable.retain(|_| {
                    number += 1;
                    number % FORGOTTEN_PART != 0
                });
            }
            if known.forgotten == forgotten {
                known.durable.insert(dir.to_path_buf());
            }
        }
        Ok(())
    }

    /// Removes the directory `path` and those above it below `root` that are empty.
    pub(crate) async fn remove_empty(&self, engine: &Engine, root: &Path, path: &Path) {
        for dir in up_to(root, path) {
            self.forget(dir);
            let removed = engine.remove_dir(dir).await;
            // A put may have synced it in between.
            self.forget(dir);
            if removed.is_err() {
                return;
            }
        }
    }

    fn forget(&self, dir: &Path) {
        if is_broken!(RemovedDirectoryKnown) {
            return;
        }
        let mut known = self.known();
        known.durable.remove(dir);
        known.forgotten += 1;
    }

    fn forget_up_to(&self, root: &Path, path: &Path) {
        up_to(root, path).into_iter().for_each(|dir| self.forget(dir));
    }
}

/// The syncs of directories whose names have changed. Changes in one directory share them: changes made during a sync wait for the
/// next sync, which starts after it. This many concurrent puts occupy one thread of the engine's pool, not all threads.
#[derive(Clone, Default)]
pub(crate) struct NameSyncs {
    dirs: Arc<Mutex<HashMap<PathBuf, Turns>>>,
}

/// A sync of a directory, for all that wait for it: its result, and that of the sync before it.
type SharedSync = Shared<BoxFuture<'static, (forebay::Result<()>, forebay::Result<()>)>>;

struct Turns {
    running: SharedSync,
    /// Has not started.
    next: Option<SharedSync>,
}

impl NameSyncs {
    /// Makes the names durable that are in the directory `dir` now.
    ///
    /// # Errors
    /// Those of fsync(2), for all that share the sync and for all that have waited for its end: the kernel reports once that it did not
    /// write a name, perhaps theirs.
    pub(crate) async fn sync(&self, engine: &Engine, dir: &Path) -> forebay::Result<()> {
        let sync = self.turn(engine, dir);
        let (synced, before) = sync.clone().await;
        let mut dirs = self.dirs();
        if dirs.get(dir).is_some_and(|turns| turns.next.is_none() && turns.running.ptr_eq(&sync)) {
            dirs.remove(dir);
        }
        if is_broken!(FailedSyncForgotten) { synced } else { synced.and(before) }
    }

    /// Returns a sync that had not started before this call.
    fn turn(&self, engine: &Engine, dir: &Path) -> SharedSync {
        let mut dirs = self.dirs();
        let Some(turns) = dirs.get_mut(dir) else {
            let running: SharedSync = engine.sync_dir(dir).map(|synced| (synced, Ok(()))).boxed().shared();
            dirs.insert(dir.to_path_buf(), Turns { running: running.clone(), next: None });
            return running;
        };
        if is_broken!(BegunSyncShared) {
            return turns.running.clone();
        }
        if let Some(next) = &turns.next {
            return next.clone();
        }
        let (syncs, before) = (self.clone(), turns.running.clone());
        let (own, dir) = (engine.clone(), dir.to_path_buf());
        // A task of the engine: its start must not depend on a put that the program may keep unpolled.
        let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            let (before, _) = before.await;
            syncs.begin_next(&dir);
            (own.sync_dir(&dir).await, before)
        });
        let next = async move { task.await.unwrap_or_else(|error| (Err(error), Ok(()))) };
        let next: SharedSync = next.boxed().shared();
        turns.next = Some(next.clone());
        next
    }

    fn begin_next(&self, dir: &Path) {
        if let Some(turns) = self.dirs().get_mut(dir)
            && let Some(next) = turns.next.take()
        {
            turns.running = next;
        }
    }

    fn dirs(&self) -> MutexGuard<'_, HashMap<PathBuf, Turns>> {
        self.dirs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether `path` exists and is not a directory.
async fn is_no_directory(engine: &Engine, path: &Path) -> bool {
    engine.metadata(path).await.is_ok_and(|there| !there.is_dir())
}

/// Returns the directory `path` and those above it, without `root`.
fn up_to<'a>(root: &Path, path: &'a Path) -> Vec<&'a Path> {
    path.ancestors().take_while(|dir| *dir != root && dir.starts_with(root)).collect()
}
