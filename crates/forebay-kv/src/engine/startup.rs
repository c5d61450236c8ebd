//! Opening a store: its directory, its manifest, its tables, its log.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::Path;
use std::sync::Arc;

use forebay::{Dir, Engine, FileCache, Open};
use forebay_wal::{Lsn, Wal, make_dirs, sync_name};

use super::holder;
use super::recover::{self, Recovery};
use super::rules::{self, Entries};
use super::shared::{Parts, StoreCore};
use super::space::RESERVE;
use super::tasks;
use crate::budget::Budget;
use crate::cache::Cache;
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::version::{Version, pin_keyspace, pins_filter};
use crate::manifest::{Edit, How, Manifest};
use crate::names::{DEFAULT, LOG, MANIFEST, MANIFEST_BYTES, TABLES, table_path};
#[cfg(feature = "zstd")]
use crate::node::codec::ZSTD_LEVELS;
use crate::options::{Compression, Options};
use crate::table::{Files, OpenHow, TABLE_GONE, Table, opened_at_once};
use crate::wait::all;

/// Opens the store in a directory and starts its tasks, on the shard of the calling thread.
pub(crate) async fn open(
    engine: Engine,
    dir: &Path,
    options: Options,
    budget: Budget,
) -> Result<(Arc<StoreCore>, Recovery)> {
    let dir = home(&engine, dir, &options).await?;
    let files = FileCache::new(&engine, Open::read(), None);
    let opened = Scene { engine, dir, files, options }.open(budget).await?;
    tasks::begin(&opened.0)?;
    Ok(opened)
}

/// Checks the options of an open, and divides the memory by them.
pub(crate) fn budget(engine: &Engine, options: &mut Options) -> Result<Budget> {
    check(engine, options)?;
    options.create &= !options.read_only;
    Budget::of(engine, options)
}

fn check(engine: &Engine, options: &Options) -> Result<()> {
    let refused = |text: &str| Err(Error::new(ErrorKind::InvalidInput, text));
    let leaf = options.leaf_bytes;
    if !(4096..=32 << 10).contains(&leaf) || !leaf.is_multiple_of(4096) {
        return refused("leaf_bytes must be a multiple of 4,096 from 4 to 32 KiB");
    }
    #[cfg(feature = "zstd")]
    for compression in [options.compression, options.upper_compression] {
        if let Some(Compression::Zstd(level)) = compression
            && !ZSTD_LEVELS.contains(&level)
        {
            return refused("Compression::Zstd needs a level from 1 to 9");
        }
    }
    if options.shard >= engine.shard_count() {
        return refused("the engine has no such shard: they are counted from 0");
    }
    let is_segment = |bytes: u64| (64 << 10..=1 << 30).contains(&bytes) && bytes.is_multiple_of(4096);
    if options.log_segment_bytes.is_some_and(|bytes| !is_segment(bytes)) {
        return refused("log_segment_bytes must be a multiple of 4,096 from 64 KiB to 1 GiB");
    }
    if options.reserve_bytes.is_some_and(|bytes| bytes > 1 << 40) {
        return refused("reserve_bytes must be at most 1 TiB");
    }
    if options.read_only && options.salvage {
        return refused("salvage writes, and read_only forbids that: choose one of the two");
    }
    if options.store_id == Some(0) {
        return refused("store_id must not be 0");
    }
    Ok(())
}

/// The inputs of an open.
struct Scene {
    engine: Engine,
    dir: Dir,
    /// The tables' files.
    files: FileCache,
    options: Options,
}

/// Opens the directory of a store; creates it if the options ask for that.
async fn home(engine: &Engine, dir: &Path, options: &Options) -> Result<Dir> {
    match engine.metadata(dir).await {
        Ok(found) if found.is_dir() => {}
        Ok(_) => {
            let text = "this is not a directory: give one for the store";
            return Err(Error::at(ErrorKind::InvalidInput, dir, text));
        }
        Err(error) if is_missing(&error) && options.create => make_dirs(engine, dir).await?,
        Err(error) if is_missing(&error) => return Err(none(dir)),
        Err(error) => return Err(error.into()),
    }
    Ok(engine.open_dir(dir).await?)
}

fn none(dir: &Path) -> Error {
    Error::at(ErrorKind::NotFound, dir, "there is no store in this directory, and this open creates none")
}

impl Scene {
    async fn open(self, budget: Budget) -> Result<(Arc<StoreCore>, Recovery)> {
        let there = self.look().await?;
        let identity = holder::identity(&self.engine, self.dir.path()).await;
        holder::closed(identity).await;
        let (manifest, found) = self.manifest(&there).await?;
        // Again with the lock held: another opener's changes are complete now.
        let there = match self.look().await {
            // Opening the manifest may have created the record of its end.
            Ok(now) => Entries { has_manifest_end: there.has_manifest_end, ..now },
            Err(error) => {
                let _ = manifest.close().await;
                return Err(error);
            }
        };
        match self.rest(budget, &manifest, &there).await {
            Ok((cache, version, tables, wal, log, budget, refused)) => {
                let Scene { engine, dir, files, mut options } = self;
                options.compression.get_or_insert_with(|| compression_of(&version));
                let (home, dir) = (dir.clone(), dir.path().to_path_buf());
                let parts = Parts {
                    engine,
                    dir,
                    home,
                    tables,
                    files,
                    options,
                    budget,
                    cache,
                    wal,
                    manifest,
                    version,
                };
                let shared = Arc::new(StoreCore::new(parts));
                let recovery = Recovery { log, manifest: found, refused, ..Recovery::default() };
                match recover::recover(&shared, recovery, &there).await {
                    Ok(recovery) => {
                        holder::enter(identity, &shared);
                        Ok((shared, recovery))
                    }
                    Err(error) => {
                        // Otherwise the next open would find them locked.
                        let _ = shared.wal.close().await;
                        let _ = shared.manifest.close().await;
                        Err(error.first())
                    }
                }
            }
            Err(error) => {
                let _ = manifest.close().await;
                Err(error)
            }
        }
    }

    /// Lists the directory and checks that it is a store's, or may become one.
    async fn look(&self) -> Result<Entries> {
        let dir = self.dir.path();
        let there = Entries::read(&self.dir).await?;
        if there.is_unfinished {
            return Err(rules::unfinished(dir));
        }
        if !there.manifest {
            if let Some(stranger) = there.strangers.first() {
                let text = format!("the directory is not empty and holds no store, but {stranger:?}");
                return Err(Error::at(ErrorKind::Foreign, dir, text));
            }
            if !there.is_young() {
                return Err(rules::manifest_lost(dir, "is gone"));
            }
            if !self.options.create {
                return Err(self.none());
            }
        }
        Ok(there)
    }

    fn none(&self) -> Error {
        none(self.dir.path())
    }

    /// Opens the manifest, or creates it; also returns how its log was found.
    async fn manifest(&self, there: &Entries) -> Result<(Manifest, forebay_wal::Recovery)> {
        let home = self.dir.path();
        let is_young = there.is_young();
        if !there.manifest {
            self.dir.create_dir(MANIFEST).await?;
        }
        let dir = self.dir.open_dir(MANIFEST).await?;
        let how = How {
            // A manifest without a segment is new only while both the log and the tables are missing.
            create: is_young && self.options.create,
            salvage: self.options.salvage,
            read_only: self.options.read_only,
            store_id: self.options.store_id,
            segment_bytes: self
                .options
                .log_segment_bytes
                .map_or(MANIFEST_BYTES, |bytes| bytes.min(MANIFEST_BYTES)),
            shard: self.options.shard,
            class: self.options.class,
        };
        if !how.create && !has_segments(&dir).await? {
            return Err(if is_young { self.none() } else { rules::manifest_lost(home, "is empty") });
        }
        let (manifest, found) = match Manifest::open(&self.engine, &dir, how).await {
            Err(error) if error.kind() == ErrorKind::Locked => {
                return Err(holder::locked(&self.engine, home).await);
            }
            Err(error) if error.kind() == ErrorKind::NoSpace && self.gives_reserve().await => {
                Manifest::open(&self.engine, &dir, how).await?
            }
            other => other?,
        };
        let begun = match manifest.with(|state| rules::check_begun(home, state, there)) {
            Ok(()) if manifest.with(|state| !state.is_empty()) => return Ok((manifest, found)),
            Ok(()) if self.options.create => self.begin(&manifest).await,
            Ok(()) => Err(self.none()),
            Err(error) => Err(error),
        };
        match begun {
            Ok(()) => Ok((manifest, found)),
            Err(error) => {
                let _ = manifest.close().await;
                Err(error)
            }
        }
    }

    async fn begin(&self, manifest: &Manifest) -> Result<()> {
        let edit = Edit {
            is_whole: true,
            store_id: self.options.store_id.unwrap_or_else(|| random_id(&self.engine, self.dir.path())),
            log_start: Some(1),
            keyspaces: vec![(0, DEFAULT.to_string())],
            ..Edit::default()
        };
        // Sync the names first, including the directory's name. An attempt that fails before they are durable leaves an empty
        // manifest, so the next open repeats this step. Without a manifest other names would be damage.
        self.dir.sync().await?;
        sync_name(&self.engine, self.dir.path()).await?;
        manifest.apply(&edit).await
    }

    /// Opens tables and log. Changes nothing in them unless all are in order.
    async fn rest(
        &self,
        budget: Budget,
        manifest: &Manifest,
        there: &Entries,
    ) -> Result<(Arc<Cache>, Version, Dir, Wal, forebay_wal::Recovery, Budget, Option<Error>)> {
        let state = manifest.state();
        let is_begun = state.has_log();
        let cache = Cache::new(budget.cache, budget.pinned_max(&self.options));
        let mut version = Version::default();
        for (id, name) in &state.keyspaces {
            version.add_keyspace(*id, name, state.unlogged.contains(id), pin_keyspace(&cache, name));
        }
        if state.next_keyspace as usize > state.keyspaces.len() {
            version = version.without_keyspaces(&[]);
        }
        let home = if there.tables { Some(self.dir.open_dir(TABLES).await?) } else { None };
        let class = self.options.class;
        let mut named = Vec::with_capacity(state.tables.len());
        for (level, meta) in state.tables.values() {
            if home.is_none() {
                let path = table_path(self.dir.path(), meta.id);
                return Err(Error::at(ErrorKind::MissingTable, &path, TABLE_GONE));
            }
            let pin_filter = pins_filter(usize::from(*level), &self.options);
            named.push((&**meta, OpenHow { class, pin_filter }));
        }
        if let Some(home) = &home {
            let mut files = Files::new(&self.engine, home, &cache, &self.files).kept(&state.kept);
            let opened = Table::open_all(&mut files, &named).await?;
            let levels = state.tables.values().map(|(level, _)| *level);
            version = version.edited(&[], &Default::default(), &levels.zip(opened).collect::<Vec<_>>());
        }
        // Behind all inner levels, which have the memory first.
        for some in version.with_kept_filters(&self.options).chunks(opened_at_once(&self.files)) {
            all(some.iter().map(|table| Box::pin(table.keep_filter(class))).collect()).await;
        }
        let (log, is_reader) = (self.dir.path().join(LOG), self.options.read_only);
        let no_log = || if is_begun { rules::log_gone(&log) } else { rules::unmade(self.dir.path()) };
        if (is_begun || is_reader) && !there.log {
            return Err(no_log());
        }
        if !there.log {
            self.dir.create_dir(LOG).await?;
        }
        let log_dir = self.dir.open_dir(LOG).await?;
        if (is_begun || is_reader) && !has_segments(&log_dir).await? {
            return Err(no_log());
        }
        let home = match home {
            Some(home) => home,
            // No table is in it: copies may leave an empty directory out.
            None if is_reader => self.dir.clone(),
            None => {
                self.dir.create_dir(TABLES).await?;
                self.dir.open_dir(TABLES).await?
            }
        };
        if !is_reader {
            self.dir.sync().await?;
        }
        let open_log = || Wal::open_in(&self.engine, &log_dir, self.log_options(&budget, is_begun));
        let (wal, recovery) = match open_log().await {
            Err(error)
                if error.kind() == forebay_wal::ErrorKind::NoSpace
                    && !is_reader
                    && self.gives_reserve().await =>
            {
                open_log().await?
            }
            other => other?,
        };
        let judged = rules::check_log(self.dir.path(), &state, &recovery);
        let taken = match &judged {
            Ok(()) if is_begun => Ok(()),
            Ok(()) if is_reader => Err(rules::unmade(self.dir.path())),
            Ok(()) => manifest.apply(&Edit { next_table: 1, ..Edit::default() }).await,
            Err(_) if self.options.salvage => salvage(manifest, &wal).await,
            Err(error) => Err(error.clone()),
        };
        match taken {
            Ok(()) => Ok((cache, version, home, wal, recovery, budget, judged.err())),
            Err(error) => {
                let _ = wal.close().await;
                Err(error)
            }
        }
    }

    /// Removes the store's reserve, for a log without space to continue. Returns whether a reserve existed.
    async fn gives_reserve(&self) -> bool {
        self.dir.remove_file(RESERVE).await.is_ok()
    }

    fn log_options(&self, budget: &Budget, is_begun: bool) -> forebay_wal::Options {
        let (pending, group) = budget.log_limits(&self.options);
        let options = forebay_wal::Options::new()
            .segment_bytes(budget.log_segment_bytes(&self.options))
            .recent_bytes(0)
            .record_bytes_max(budget.record)
            .pending_bytes_max(pending)
            .group_bytes_max(group)
            .create(!is_begun)
            .salvage(self.options.salvage)
            .read_only(self.options.read_only)
            .shard(self.options.shard);
        match self.options.store_id {
            Some(id) => options.log_id(u128::from(id) << 8 | 2),
            None => options,
        }
    }
}

/// Returns the compression of the newest compressed table that the store has written itself.
fn compression_of(version: &Version) -> Compression {
    let own = version.tables().filter(|(_, table)| !table.is_sorted_file());
    let tables = own.filter_map(|(_, table)| Some((table.id(), table.codec()?)));
    tables.max_by_key(|(id, _)| *id).map_or(Compression::None, |(_, codec)| codec.compression())
}

async fn has_segments(dir: &Dir) -> Result<bool> {
    let entries = dir.read_dir().await?;
    Ok(entries.iter().any(|entry| entry.name().to_str().is_some_and(|name| name.ends_with(".wal"))))
}

/// Continues with a log that lacks records that the manifest requires, and adapts the manifest to it.
async fn salvage(manifest: &Manifest, wal: &Wal) -> Result<()> {
    let start = manifest.with(|state| state.log_start);
    if wal.next_lsn().0 < start {
        // The rest of its records are all in tables. New records must not reuse their numbers.
        wal.reset_to(Lsn(start)).await?;
    }
    let edit = Edit { next_table: 1, log_end: Some(wal.durable_end()), ..Edit::default() };
    manifest.apply(&edit).await
}

fn is_missing(error: &forebay::Error) -> bool {
    // ENOENT.
    error.raw_os_error() == Some(2)
}

/// Returns a number that no other store has. In a simulated world, whose runs must be equal, it is derived
/// from the directory's name.
pub(crate) fn random_id(engine: &Engine, dir: &Path) -> u64 {
    let id = match engine.driver() {
        "sim" => xxhash_rust::xxh3::xxh3_64(dir.as_os_str().as_encoded_bytes()),
        // The standard library's hashers have keys from the system's randomness.
        _ => RandomState::new().build_hasher().finish(),
    };
    id.max(1)
}
