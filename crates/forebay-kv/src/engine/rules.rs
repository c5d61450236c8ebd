//! The rules that a store's directory, its manifest and its log must satisfy together. An open and a
//! verification apply the same rules.

use std::path::{Path, PathBuf};

use forebay::{Dir, FileKind};
use forebay_wal::Recovery;

use super::space::RESERVE;
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::ManifestState;
use crate::names::{LOG, MANIFEST, TABLES, UNFINISHED, table_id};

/// The directory that file systems put into their root.
const LOST_AND_FOUND: &str = "lost+found";

/// The file in which a log records its end.
const MANIFEST_END: &str = "wal.end";

/// The entries of a store's directory.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    pub(crate) manifest: bool,
    pub(crate) log: bool,
    pub(crate) tables: bool,
    /// Whether it is an unfinished checkpoint.
    pub(crate) is_unfinished: bool,
    /// Names that do not belong to a store, in order.
    pub(crate) strangers: Vec<String>,
    /// Whether the manifest's log has a record of its end. An open compares that end with the log that it
    /// finds, so no acknowledged edit can be missing.
    pub(crate) has_manifest_end: bool,
    /// The files named like tables, with their numbers.
    pub(crate) table_files: Vec<(u32, PathBuf)>,
}

impl Entries {
    /// Lists the directory of a store and that of its tables.
    pub(crate) async fn read(dir: &Dir) -> Result<Entries> {
        let mut found = Entries::default();
        for entry in dir.read_dir().await? {
            match entry.name().to_str() {
                Some(MANIFEST) => found.manifest = true,
                Some(LOG) => found.log = true,
                Some(TABLES) => found.tables = true,
                Some(LOST_AND_FOUND | RESERVE) => {}
                Some(UNFINISHED) => found.is_unfinished = true,
                _ => found.strangers.push(entry.name().to_string_lossy().into_owned()),
            }
        }
        found.strangers.sort_unstable();
        if found.manifest
            && let Ok(manifest) = dir.open_dir(MANIFEST).await
        {
            found.has_manifest_end = manifest.metadata(MANIFEST_END).await.is_ok();
        }
        if found.tables {
            let tables = dir.open_dir(TABLES).await?;
            let entries = tables.read_dir().await?;
            let files = entries.iter().filter(|entry| entry.kind() == FileKind::File);
            let named = files.filter_map(|file| {
                Some((file.name().to_str().and_then(table_id)?, tables.path().join(file.name())))
            });
            found.table_files.extend(named);
            found.table_files.sort_unstable();
        }
        Ok(found)
    }

    /// Returns whether both the log and the directory of tables are missing: at most the start of a store.
    pub(crate) fn is_young(&self) -> bool {
        !self.log && !self.tables
    }

    /// Returns whether tables that the manifest does not name can only be leftovers of a crash. Otherwise
    /// such a table may be the only copy of data that a lost edit of the manifest named.
    pub(crate) fn has_leftovers_only(&self) -> bool {
        self.has_manifest_end
    }

    /// Returns the files of tables that the manifest does not name.
    pub(crate) fn unnamed<'a>(
        &'a self,
        state: &'a ManifestState,
    ) -> impl Iterator<Item = &'a (u32, PathBuf)> {
        self.table_files.iter().filter(|(id, _)| !state.names(*id))
    }
}

/// Returns the error for a directory that holds an unfinished checkpoint.
pub(crate) fn unfinished(dir: &Path) -> Error {
    let text = format!(
        "this is a checkpoint that was never finished: remove the directory and make the checkpoint again \
         (the file {UNFINISHED} in it says so)"
    );
    Error::at(ErrorKind::Unfinished, dir, text)
}

/// Returns the error for a manifest that lost its contents while a log or tables are there.
pub(crate) fn manifest_lost(dir: &Path, how: &str) -> Error {
    let text = format!(
        "the manifest {how}; a log or tables are there. Restore the store from a checkpoint or a backup: nothing in \
         the directory was changed"
    );
    Error::at(ErrorKind::Corruption, dir, text)
}

/// Returns the error for a store whose log was not made yet, and that nothing was written to.
pub(crate) fn unmade(dir: &Path) -> Error {
    let text = "there is no store in this directory yet, as the open that was to make it was cut short; open it once without \
                Options::read_only";
    Error::at(ErrorKind::NotFound, dir, text)
}

pub(crate) fn log_gone(log: &Path) -> Error {
    Error::at(ErrorKind::Corruption, log, "the log is gone")
}

/// Checks that a manifest without tables has neither a log nor table files next to it.
pub(crate) fn check_begun(dir: &Path, state: &ManifestState, entries: &Entries) -> Result<()> {
    if state.is_empty() {
        return if entries.is_young() { Ok(()) } else { Err(manifest_lost(dir, "says nothing")) };
    }
    // Table numbers start at 1, and the manifest records the log before the first table is written.
    match entries.table_files.first() {
        Some((_, table)) if !state.has_log() => {
            let text = format!(
                "the manifest ends before the store had a log, and the table {} is there: the end of the manifest's \
                 log is lost. Restore the store from a checkpoint or a backup: nothing was changed",
                table.display()
            );
            Err(Error::at(ErrorKind::Corruption, &dir.join(MANIFEST), text))
        }
        _ => Ok(()),
    }
}

/// Checks that the log of the store in `dir` holds the records that the manifest requires of it.
pub(crate) fn check_log(dir: &Path, state: &ManifestState, found: &Recovery) -> Result<()> {
    let (first, last, start) = (found.first.0, found.last.0, state.log_start);
    let end = state.log_end.unwrap_or_default();
    let (path, text) = if !state.has_log() && last > 0 {
        let text = format!(
            "the log has records up to {last}, and the manifest ends before the store had a log: the end of the \
             manifest's log is lost"
        );
        (dir.join(MANIFEST), text)
    } else if last < end.lsn.0 {
        let text = format!(
            "the log ends with record {last}, and records up to {} were durable, as the manifest says: records {} to \
             {} are lost",
            end.lsn,
            last + 1,
            end.lsn
        );
        (dir.join(LOG), text)
    } else if found.epoch < end.epoch {
        let text = format!(
            "the log is of epoch {}, and one of epoch {} was durable, as the manifest says: its end is lost",
            found.epoch, end.epoch
        );
        (dir.join(LOG), text)
    } else if first > start || start > last + 1 {
        let text = format!(
            "the log has records {first} to {last}, and the manifest wants those from {start} on: one of them is \
             not what it was"
        );
        (dir.to_path_buf(), text)
    } else {
        return Ok(());
    };
    let remedy = "Restore the store from a checkpoint or a backup, or open it with Options::salvage to go on with what \
                  is left";
    Err(Error::at(ErrorKind::Corruption, &path, format!("{text}. {remedy}")))
}
