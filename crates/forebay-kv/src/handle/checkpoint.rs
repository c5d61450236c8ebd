//! Checkpoints: a copy of a store that shares its tables' files.
//!
//! A checkpoint is made under another name, with a mark inside that makes every open refuse it. It gets its
//! own name when all of it is durable: under that name it is complete, or it does not exist.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay::{Dir, Durability, Open};
use forebay_wal::{Wal, parent_of};

use crate::engine::flush;
use crate::engine::rules::Entries;
use crate::engine::shared::StoreCore;
use crate::engine::startup::random_id;
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::{Edit, How, Manifest, ManifestState};
use crate::names::{LOG, MANIFEST, MANIFEST_BYTES, TABLES, UNFINISHED, table_name};
use crate::record::{self, Change};
use crate::value::{HeldShare, Value};
use crate::view::View;

/// The suffix of an unfinished checkpoint's name.
const SUFFIX: &str = ".unfinished";
/// The longest name of Linux's file systems, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Maximum links in flight. Each includes a flush of the directory, and the file system combines these.
const LINKS_MAX: usize = 16;
/// Memory of the new manifest and log while they are written.
const MEMORY: u64 = 1 << 20;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const EXDEV: i32 = 18;
const ENOTEMPTY: i32 = 39;

/// Makes a checkpoint in `dir` and returns the values that keys of a keyspace have in it. It runs to its end even if no
/// caller waits for it any more.
pub(crate) async fn checkpoint(
    shared: &Arc<StoreCore>,
    dir: &Path,
    keyspace: u32,
    keys: Vec<Vec<u8>>,
) -> Result<Vec<Option<Value>>> {
    shared.check_writable()?;
    keys.iter().try_for_each(|key| record::check(key, &Change::Delete))?;
    let dir = dir.to_path_buf();
    let work = move |shared: Arc<StoreCore>| async move {
        Checkpoint::of(&shared, &dir)?.make(keyspace, &keys).await
    };
    shared.spawn_task(shared.options.shard, shared.options.background, work).await?
}

/// Returns the last component of a path that was found to have one.
fn name_of(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

/// The directories of an unfinished checkpoint. Files made and removed through them stay in them.
struct CheckpointDirs {
    /// The directory in which it gets its name.
    above: Dir,
    /// The checkpoint's own directory.
    dir: Dir,
}

struct Checkpoint<'a> {
    shared: &'a Arc<StoreCore>,
    /// Its final name.
    dir: &'a Path,
    /// Its name until then.
    making: PathBuf,
}

impl<'a> Checkpoint<'a> {
    fn of(shared: &'a Arc<StoreCore>, dir: &'a Path) -> Result<Checkpoint<'a>> {
        let Some(name) = dir.file_name() else {
            let text = "a checkpoint needs the name of a new directory";
            return Err(Error::at(ErrorKind::InvalidInput, dir, text));
        };
        // A name of the file system's greatest length has no room for a suffix.
        let kept = name.len().min(NAME_BYTES_MAX - SUFFIX.len());
        let mut making = OsString::from(OsStr::from_bytes(&name.as_bytes()[..kept]));
        making.push(SUFFIX);
        Ok(Checkpoint { shared, dir, making: dir.with_file_name(making) })
    }

    /// Makes the checkpoint. Returns the values that the keys have in it.
    async fn make(&self, keyspace: u32, keys: &[Vec<u8>]) -> Result<Vec<Option<Value>>> {
        let engine = &self.shared.engine;
        self.check_outside().await?;
        for (dir, is_making) in [(self.dir, false), (&*self.making, true)] {
            match engine.metadata(dir).await {
                Err(error) if error.raw_os_error() == Some(ENOENT) => {}
                Err(error) => return Err(error.into()),
                Ok(_) if is_making => {
                    let text = "an earlier checkpoint to this name was not finished, or is under way: if none is, \
                                remove this directory";
                    return Err(Error::at(ErrorKind::AlreadyExists, dir, text));
                }
                Ok(_) => return Err(self.exists()),
            }
        }
        self.check_file_system().await?;
        let held = self.shared.budget.held / 2;
        let _held = HeldShare::new(Some(self.shared.cache.held()), MEMORY.min(held));
        self.shared.check_held()?;
        flush::everything(self.shared).await?;
        // The view keeps the tables' files. Entries outside of its tables were written after the start of the flush.
        let view = self.shared.view();
        // Before anything is created: a caller without memory for them may retry immediately, and often.
        let values = self.values(&view, keyspace, keys).await?;
        let above = engine.open_dir(parent_of(self.dir)).await?;
        let (name, making) = (name_of(self.dir), name_of(&self.making));
        above.create_dir(making).await?;
        let dirs = match above.open_dir(making).await {
            Ok(dir) => CheckpointDirs { above, dir },
            Err(error) => {
                let _ = above.remove_dir(making).await;
                return Err(error.into());
            }
        };
        let done = match self.fill(&dirs.dir, &view).await {
            Ok(()) => dirs.above.rename(making, name).await.map_err(|error| match error.raw_os_error() {
                Some(EEXIST | ENOTEMPTY) => self.exists(),
                _ => error.into(),
            }),
            Err(error) => Err(error),
        };
        if done.is_err() {
            dirs.remove(making).await;
        }
        done.map(|()| values)
    }

    async fn values(&self, view: &View, keyspace: u32, keys: &[Vec<u8>]) -> Result<Vec<Option<Value>>> {
        if view.version.is_dropped(keyspace) {
            return Err(Error::dropped_keyspace());
        }
        let mut values = Vec::with_capacity(keys.len());
        for key in keys {
            // A value that no table of this view has is not in the checkpoint.
            values.push(self.shared.get_in_tables(view, keyspace, key).await?);
        }
        Ok(values)
    }

    fn exists(&self) -> Error {
        Error::at(
            ErrorKind::AlreadyExists,
            self.dir,
            "a checkpoint needs a new directory, and this name is taken",
        )
    }

    fn other_file_system(&self) -> Error {
        let text = format!(
            "the store {} is on another file system, and a checkpoint links its files: choose a directory on \
             the store's file system, and copy the checkpoint from there",
            self.shared.dir.display()
        );
        Error::at(ErrorKind::InvalidInput, self.dir, text)
    }

    /// Checks that the checkpoint lies outside of the store's directory, wherever that is now and whichever path leads there.
    async fn check_outside(&self) -> Result<()> {
        let (engine, parent) = (&self.shared.engine, parent_of(self.dir));
        // A simulated world has no symbolic links. A parent that does not exist is refused later.
        let real = if engine.driver() == "sim" { None } else { std::fs::canonicalize(parent).ok() };
        let own = self.shared.home.own_metadata().await?;
        for above in real.as_deref().unwrap_or(parent).ancestors() {
            if let Ok(found) = engine.metadata(above).await
                && (found.device(), found.inode()) == (own.device(), own.inode())
            {
                let text = "a checkpoint must lie outside of its store's directory";
                return Err(Error::at(ErrorKind::InvalidInput, self.dir, text));
            }
        }
        Ok(())
    }

    /// Checks that the checkpoint is on the store's file system, as far as that shows before anything is
    /// written.
    async fn check_file_system(&self) -> Result<()> {
        let engine = &self.shared.engine;
        let parent = parent_of(self.dir);
        let above = engine.metadata(parent).await.map_err(|error| match error.raw_os_error() {
            Some(ENOENT) => {
                Error::at(ErrorKind::NotFound, parent, "there is no such directory to make a checkpoint in")
            }
            _ => error.into(),
        })?;
        let tables = self.shared.tables.own_metadata().await?;
        if above.device() == tables.device() { Ok(()) } else { Err(self.other_file_system()) }
    }

    /// Writes everything durably, then removes the mark.
    async fn fill(&self, making: &Dir, view: &View) -> Result<()> {
        making.open(UNFINISHED, Open::create_new().buffered()).await?.sync(Durability::All).await?;
        // The mark is durable before anything that could be mistaken for a store.
        making.sync().await?;
        making.create_dir(TABLES).await?;
        self.link_tables(&making.open_dir(TABLES).await?, view).await?;
        let state = self.write_manifest(making, view).await?;
        making.sync().await?;
        self.read_back(making, &state).await?;
        making.remove_file(UNFINISHED).await?;
        Ok(making.sync().await?)
    }

    async fn link_tables(&self, to: &Dir, view: &View) -> Result<()> {
        let kept = view.version.kept_files().map(|file| file.file.id());
        let tables: Vec<u32> = view.version.tables().map(|(_, table)| table.id()).chain(kept).collect();
        for some in tables.chunks(LINKS_MAX) {
            self.shared.check_writable()?;
            let link = |id: &u32| self.shared.tables.hard_link(table_name(*id), to, table_name(*id));
            // All links start here.
            let links: Vec<_> = some.iter().map(link).collect();
            for link in links {
                link.await.map_err(|error| match error.raw_os_error() {
                    Some(EXDEV) => self.other_file_system(),
                    _ => error.into(),
                })?;
            }
        }
        Ok(())
    }

    /// Returns the parameters for opening the checkpoint's manifest.
    fn how(&self, store_id: Option<u64>) -> How {
        How {
            create: store_id.is_some(),
            salvage: false,
            read_only: false,
            store_id,
            segment_bytes: MANIFEST_BYTES,
            shard: self.shared.options.shard,
            class: forebay::shard::class(),
        }
    }

    /// Opens the manifest as an open of the checkpoint does, and checks that it says what was written and that all files that
    /// it names are there.
    async fn read_back(&self, making: &Dir, state: &ManifestState) -> Result<()> {
        let (read, _) =
            Manifest::open(&self.shared.engine, &making.open_dir(MANIFEST).await?, self.how(None)).await?;
        let is_same = read.with(|read| read == state);
        read.close().await?;
        self.shared.counters.written.fetch_add(read.written_bytes(), Ordering::Relaxed);
        let entries = Entries::read(making).await?;
        let is_there = |id: &u32| entries.table_files.binary_search_by_key(id, |(id, _)| *id).is_ok();
        if is_same && state.tables.keys().chain(state.kept.keys()).all(is_there) {
            return Ok(());
        }
        let text = "the checkpoint would not open as it was written, and is removed: please report this";
        Err(Error::at(ErrorKind::Corruption, self.dir, text))
    }

    /// Writes a manifest that starts with the view's tables, and an empty log. Returns the state that an open must recover.
    async fn write_manifest(&self, making: &Dir, view: &View) -> Result<ManifestState> {
        let (shared, engine) = (self.shared, &self.shared.engine);
        let store_id = random_id(engine, self.dir);
        making.create_dir(MANIFEST).await?;
        making.create_dir(LOG).await?;
        let (manifest, log) = (making.open_dir(MANIFEST).await?, making.open_dir(LOG).await?);
        let levels: Vec<_> = view.version.keyspaces().collect();
        let added: Vec<_> =
            view.version.tables().map(|(level, table)| (level as u8, table.meta().clone())).collect();
        let kept: BTreeMap<u32, u64> =
            view.version.kept_files().map(|file| (file.file.id(), file.file.bytes())).collect();
        let ids = added.iter().map(|(_, meta)| meta.id).chain(kept.keys().copied());
        let edit = Edit {
            is_whole: true,
            store_id,
            // At least 1, which records that the log exists.
            next_table: ids.max().map_or(1, |last| last.saturating_add(1)),
            kept,
            log_start: Some(1),
            log_end: None,
            keyspaces: levels.iter().map(|(id, levels)| (*id, levels.name.to_string())).collect(),
            next_keyspace: shared.manifest.with(|state| state.next_keyspace),
            dropped: Vec::new(),
            unlogged: levels.iter().filter(|(_, levels)| levels.is_unlogged).map(|(id, _)| *id).collect(),
            removed: Vec::new(),
            added,
        };
        let (begun, _) = Manifest::open(engine, &manifest, self.how(Some(store_id))).await?;
        let applied = begun.apply(&edit).await;
        let state = begun.state();
        begun.close().await?;
        shared.counters.written.fetch_add(begun.written_bytes(), Ordering::Relaxed);
        applied?;
        let options = forebay_wal::Options::new()
            .segment_bytes(MANIFEST_BYTES)
            .recent_bytes(0)
            .record_bytes_max(4096)
            .pending_bytes_max(64 << 10)
            .group_bytes_max(16 << 10)
            .log_id(u128::from(store_id) << 8 | 2)
            .class(forebay::shard::class())
            .shard(shared.options.shard)
            .own_thread(false);
        let (wal, _) = Wal::open_in(engine, &log, options).await?;
        wal.close().await?;
        shared.counters.written.fetch_add(wal.stats().written_bytes, Ordering::Relaxed);
        Ok(state)
    }
}

impl CheckpointDirs {
    /// Removes the unfinished checkpoint as far as possible. Remaining files are marked as unfinished, or are a whole store.
    async fn remove(&self, name: &OsStr) {
        // A rename that returned an error may have happened. Then this is a whole store, and it stays.
        if self.above.metadata(name).await.is_err() {
            return;
        }
        // The last step, which removes the mark, may have failed: so the mark is written again before a part of the store is
        // removed.
        if self.mark().await.is_err() {
            // Nothing may be in it yet.
            let _ = self.above.remove_dir(name).await;
            return;
        }
        for below in [TABLES, MANIFEST, LOG] {
            let Ok(dir) = self.dir.open_dir(below).await else { continue };
            let Ok(entries) = dir.read_dir().await else { continue };
            for entry in entries {
                let _ = dir.remove_file(entry.name()).await;
            }
            let _ = self.dir.remove_dir(below).await;
        }
        // The mark is removed after everything that it marks.
        if self.dir.sync().await.is_ok() {
            let _ = self.dir.remove_file(UNFINISHED).await;
            let _ = self.above.remove_dir(name).await;
        }
    }

    async fn mark(&self) -> forebay::Result<()> {
        self.dir.open(UNFINISHED, Open::create().buffered()).await?.sync(Durability::All).await?;
        self.dir.sync().await
    }
}
