//! The steps of verifying.

use std::path::Path;
use std::sync::{Arc, Weak};

use forebay::{Class, Engine, FileCache, Open};
use forebay_wal::Lsn;
use forebay_wal::inspect::{self, Records};

use super::VerifyReport;
use crate::cache::Cache;
use crate::engine::holder;
use crate::engine::rules::{self, Entries};
use crate::engine::shared::StoreCore;
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::{ManifestState, Replay};
use crate::names::{LOG, MANIFEST};
use crate::names::{table_path, tables_dir};
use crate::record;
use crate::table::{CursorHow, Files, OpenHow, TABLE_GONE, Table, TableMeta, opened_at_once};
use crate::value::HeldShare;
use crate::view::Moment;
use crate::wait::all;

/// The error of open(2) and stat(2) for a missing file.
const ENOENT: i32 = 2;

/// A verification in progress.
pub(super) struct Verifier<P> {
    pub(super) engine: Engine,
    /// Its `Arc` is dropped once no task waits for the result.
    pub(super) watch: Weak<()>,
    pub(super) report: VerifyReport,
    pub(super) progress: P,
}

impl<P: FnMut(u64, u64)> Verifier<P> {
    pub(super) async fn closed_store(mut self, dir: &Path) -> Result<VerifyReport> {
        let Some(entries) = self.look(dir).await? else { return Ok(self.report) };
        // Kept to the end because of its lock, the first one that every open requests.
        let mut manifest = match self.records(&dir.join(MANIFEST)).await {
            Ok(Some(manifest)) => manifest,
            Ok(None) => return Ok(self.report),
            Err(error) if error.kind() == ErrorKind::NotFound && !entries.is_young() => {
                self.judge(rules::manifest_lost(dir, "is empty"))?;
                return Ok(self.report);
            }
            Err(error) => return Err(in_use(&self.engine, error, dir).await),
        };
        let mut replay = Replay::default();
        while let Some((lsn, record)) = manifest.next().await.transpose()? {
            if let Err(error) = replay.add(&dir.join(MANIFEST), lsn, &record) {
                self.judge(error)?;
                return Ok(self.report);
            }
        }
        let state = replay.into_state();
        if let Err(error) = rules::check_begun(dir, &state, &entries) {
            self.report.kept = entries.table_files.into_iter().map(|(_, path)| path).collect();
            return self.judge(error).map(|()| self.report);
        }
        if state.is_empty() {
            let text = "the manifest names nothing: there is no store yet, or it was lost";
            return Err(Error::at(ErrorKind::NotFound, dir, text));
        }
        self.tables(dir, &state).await?;
        self.levels(dir, &state);
        if let Err(error) = self.log(dir, &state, &entries).await {
            return Err(in_use(&self.engine, error, dir).await);
        }
        let unnamed = entries.unnamed(&state).map(|(_, path)| path.clone()).collect();
        // An open removes such files only if it accepts the store: one may be the only copy of damaged data.
        if self.report.is_whole() && entries.has_leftovers_only() {
            self.report.leftovers = unnamed
        } else {
            self.report.kept = unnamed
        }
        drop(manifest);
        Ok(self.report)
    }

    pub(super) async fn open_store(mut self, shared: &Arc<StoreCore>, class: Class) -> Result<VerifyReport> {
        let memory = CursorHow::merge().memory_bytes() + (256 << 10);
        let _held = HeldShare::new(Some(shared.cache.held()), memory.min(shared.budget.held / 2));
        shared.check_held()?;
        if let Err(error) = shared.manifest.check().await {
            self.judge(error)?;
        }
        let Moment { view, lsn, .. } = shared.pin();
        for (_, table) in view.version.tables() {
            shared.check_open()?;
            self.table(table, class).await?;
        }
        drop(view);
        let mut reader = shared.wal.read_from(shared.wal.first_lsn());
        while reader.position() <= Lsn(lsn) {
            shared.check_open()?;
            match reader.next().await.transpose() {
                Ok(Some(found)) => {
                    self.report.records += 1;
                    if let Err(error) = record::parse(&found) {
                        let text = format!("record {}: {error}", found.lsn());
                        self.judge(Error::at(error.kind(), &shared.dir.join(LOG), text))?;
                    }
                }
                Ok(None) => break,
                // The record was dropped meanwhile: it is in tables now.
                Err(error) if matches!(error.kind(), forebay_wal::ErrorKind::OutOfRange { .. }) => {
                    reader = shared.wal.read_from(shared.wal.first_lsn());
                }
                Err(error) => {
                    self.judge(error.into())?;
                    break;
                }
            }
            self.pause().await?;
        }
        Ok(self.report)
    }

    /// Records an error of the store as a finding; returns any other error, which ends the verification.
    fn judge(&mut self, error: Error) -> Result<()> {
        match error.kind() {
            // Descriptors or memory may suffice later: a lack of them is not a fault of a file.
            _ if error.is_crowded() => Err(error),
            ErrorKind::Corruption | ErrorKind::MissingTable | ErrorKind::Io | ErrorKind::Foreign => {
                self.report.findings.push(error);
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Yields to other tasks. Fails once no task waits for the result.
    async fn pause(&self) -> Result<()> {
        forebay::shard::yield_if_needed().await;
        match self.watch.strong_count() {
            0 => Err(Error::new(ErrorKind::Closed, "no caller waits for this result any more")),
            _ => Ok(()),
        }
    }

    /// Returns the entries of a store's directory, or `None` after a finding.
    async fn look(&mut self, dir: &Path) -> Result<Option<Entries>> {
        match self.engine.metadata(dir).await {
            Ok(found) if found.is_dir() => {}
            Ok(_) => {
                let text = "this is not a directory: give that of a store";
                return Err(Error::at(ErrorKind::InvalidInput, dir, text));
            }
            Err(error) if error.raw_os_error() == Some(ENOENT) => {
                return Err(Error::at(ErrorKind::NotFound, dir, "there is no such directory"));
            }
            Err(error) => return Err(error.into()),
        }
        let entries = Entries::read(&self.engine.open_dir(dir).await?).await?;
        if entries.is_unfinished {
            return Err(rules::unfinished(dir));
        }
        if entries.manifest {
            Ok(Some(entries))
        } else if !entries.is_young() {
            self.judge(rules::manifest_lost(dir, "is gone")).map(|()| None)
        } else {
            Err(Error::at(ErrorKind::NotFound, dir, "there is no store in this directory"))
        }
    }

    /// Returns the records of a log, except for an end that an open would truncate. Records damage as findings; returns `None` if
    /// it prevents reading the log. Fails without a log.
    async fn records(&mut self, dir: &Path) -> Result<Option<Records>> {
        match self.engine.metadata(dir).await {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(ENOENT) => return Err(none(dir)),
            Err(error) => return Err(error.into()),
        }
        let records = match inspect::records(&self.engine, dir).await {
            Ok(records) => records,
            Err(error) if error.kind() == forebay_wal::ErrorKind::InvalidInput => return Err(none(dir)),
            Err(error) => return self.judge(error.into()).map(|()| None),
        };
        let report = records.report();
        if let inspect::Verdict::Damaged(error) | inspect::Verdict::Refused(error) = &report.verdict {
            return self.judge(error.clone().into()).map(|()| None);
        }
        let mut findings = Vec::new();
        for (file, bytes) in report.unreadable() {
            findings.push(Error::corrupt(file, bytes.start, "the drive cannot read this"));
        }
        if let Some(recovery) = &report.recovery {
            self.report.cut |= recovery.truncated_at.is_some();
            for damage in &recovery.damage {
                let text = "damaged, but no record is lost by it";
                findings.push(Error::corrupt(&damage.file, damage.offset, text));
            }
            for lost in &recovery.lost {
                let text = format!("records {} to {} are lost", lost.first, lost.last);
                findings.push(Error::corrupt(&lost.file, lost.offset, text));
            }
        }
        self.report.findings.append(&mut findings);
        Ok(Some(records))
    }

    async fn tables(&mut self, dir: &Path, state: &ManifestState) -> Result<()> {
        // Nothing is pinned: each table is read once, and few of its blocks again.
        let cache = Cache::new(4 << 20, 0);
        let open_files = FileCache::new(&self.engine, Open::read(), None);
        let total: u64 = state.tables.values().map(|(_, meta)| meta.bytes).sum();
        (self.progress)(0, total);
        let home = match self.engine.open_dir(tables_dir(dir)).await {
            Ok(home) => home,
            Err(error) if error.raw_os_error() == Some(ENOENT) => {
                for (_, meta) in state.tables.values() {
                    self.judge(Error::at(ErrorKind::MissingTable, &table_path(dir, meta.id), TABLE_GONE))?;
                }
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let engine = self.engine.clone();
        let files = || Files::new(&engine, &home, &cache, &open_files).kept(&state.kept);
        let metas: Vec<&TableMeta> = state.tables.values().map(|(_, meta)| &**meta).collect();
        for some in metas.chunks(opened_at_once(&open_files)) {
            let opens: Vec<_> = some.iter().map(|meta| Box::pin(open(files(), meta))).collect();
            for (meta, opened) in some.iter().zip(all(opens).await) {
                let opened = match opened {
                    // Memory and descriptors suffice for one.
                    Err(error) if error.is_crowded() => open(files(), meta).await,
                    opened => opened,
                };
                match opened {
                    Ok(table) => self.table(&table, Class::DEFAULT).await?,
                    Err(error) => {
                        (self.report.tables, self.report.table_bytes) =
                            (self.report.tables + 1, self.report.table_bytes + meta.bytes);
                        self.judge(error)?;
                    }
                }
                (self.progress)(self.report.table_bytes, total);
            }
        }
        Ok(())
    }

    async fn table(&mut self, table: &Arc<Table>, class: Class) -> Result<()> {
        self.report.tables += 1;
        self.report.table_bytes += table.meta().bytes;
        match table.verify(class).await {
            Ok(verified) => {
                self.report.entries += verified.entries;
                self.report.deleted += verified.deleted;
                self.report.expiring += verified.expiring;
                self.report.blobs += verified.blobs;
            }
            Err(error) => self.judge(error)?,
        }
        self.pause().await
    }

    /// Checks that the tables of each level below the first do not overlap.
    fn levels(&mut self, dir: &Path, state: &ManifestState) {
        let lower = state.tables.values().filter(|(level, _)| *level > 0);
        let mut tables: Vec<_> = lower.map(|(level, meta)| (meta.keyspace, *level, meta)).collect();
        tables.sort_by(|one, other| {
            (one.0, one.1, &one.2.smallest).cmp(&(other.0, other.1, &other.2.smallest))
        });
        for pair in tables.windows(2) {
            let [one, other] = pair else { continue };
            if (one.0, one.1) == (other.0, other.1) && one.2.largest >= other.2.smallest {
                let text = format!("tables {} and {} of level {} overlap", one.2.id, other.2.id, one.1);
                self.report.findings.push(Error::at(ErrorKind::Corruption, &dir.join(MANIFEST), text));
            }
        }
    }

    async fn log(&mut self, dir: &Path, state: &ManifestState, entries: &Entries) -> Result<()> {
        if !state.has_log() && !entries.log {
            return Ok(());
        }
        let log = &dir.join(LOG);
        let mut records = match self.records(log).await {
            Ok(Some(records)) => records,
            Ok(None) => return Ok(()),
            // Left by a crash while the store was created.
            Err(error) if error.kind() == ErrorKind::NotFound && !state.has_log() => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return self.judge(rules::log_gone(log)),
            Err(error) => return Err(error),
        };
        let start = state.log_start;
        if let Some(recovery) = &records.report().recovery
            && let Err(error) = rules::check_log(dir, state, recovery)
        {
            self.judge(error)?;
        }
        while let Some((lsn, bytes)) = records.next().await.transpose()? {
            // Records before the log's start are in tables.
            if lsn.0 < start {
                continue;
            }
            self.report.records += 1;
            if let Err(error) = parses(&bytes, state) {
                let text = format!("record {lsn}: {error}");
                self.judge(Error::at(error.kind(), log, text))?;
            }
            self.pause().await?;
        }
        Ok(())
    }
}

/// Opens a table to be read once: of it nothing stays in memory.
async fn open(mut files: Files, meta: &TableMeta) -> Result<Arc<Table>> {
    Table::open(&mut files, meta, OpenHow { pin_filter: false, ..OpenHow::default() }).await
}

/// Checks that a record is valid and that its keyspaces exist, or existed.
fn parses(bytes: &[u8], state: &ManifestState) -> Result<()> {
    for place in record::parse(bytes)? {
        let entry = record::entry_at(bytes, place as usize);
        let keyspace = entry.map_or(u32::MAX, |(entry, _)| entry.keyspace);
        if !state.is_known(keyspace) {
            let text = format!("it is of keyspace {keyspace}, which there is none");
            return Err(Error::new(ErrorKind::Corruption, text));
        }
    }
    Ok(())
}

fn none(dir: &Path) -> Error {
    Error::at(ErrorKind::NotFound, dir, "there is no log in this directory")
}

async fn in_use(engine: &Engine, error: Error, dir: &Path) -> Error {
    match error.kind() {
        ErrorKind::Locked => holder::locked(engine, dir).await,
        _ => error,
    }
}
