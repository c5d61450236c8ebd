//! The file `wal.end`: the end of the log, recorded outside of its segments.
//!
//! Two slots are written in turn, and each write is synced, so one slot is whole at any time. The file gets
//! its name once both slots are written: a file without a whole slot is damaged.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay::{Dir, Durability, File, Open};

use crate::error::{Error, ErrorKind, Result, is_unreadable};
use crate::format::{EndRecord, SLOT_BYTES, SLOTS, Slot, unknown_version};

pub(crate) const END_NAME: &str = "wal.end";
/// The file's name until it is complete.
pub(crate) const END_NEW_NAME: &str = "wal.end.new";

/// The result of reading the file.
#[derive(Clone, Debug)]
pub(crate) struct FoundEnd {
    pub(crate) path: PathBuf,
    /// The newest whole record.
    pub(crate) record: Option<EndRecord>,
    /// The number of that record, and its slot.
    newest: (u64, usize),
    /// The file exists, but no slot of it is whole.
    pub(crate) damaged: bool,
}

impl FoundEnd {
    /// Returns the result for a log without the file.
    pub(crate) fn none(dir: &Path) -> FoundEnd {
        FoundEnd { path: dir.join(END_NAME), record: None, newest: (0, 1), damaged: false }
    }

    /// Judges the bytes of the slots; `None` is a slot that could not be read.
    ///
    /// # Errors
    /// [`ErrorKind::Version`] for a record of another version of the format.
    fn of(dir: &Path, slots: [Option<&[u8]>; 2]) -> Result<FoundEnd> {
        let mut found = FoundEnd::none(dir);
        found.damaged = true;
        for (slot, bytes) in slots.into_iter().enumerate() {
            match bytes.map_or(Slot::Damaged, EndRecord::parse) {
                Slot::Whole(number, record) if found.damaged || number > found.newest.0 => {
                    found =
                        FoundEnd { record: Some(record), newest: (number, slot), damaged: false, ..found };
                }
                Slot::Version(version) => {
                    let text = unknown_version(version);
                    return Err(Error::at(ErrorKind::Version { found: version }, &found.path, text));
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

/// Reads the file in a log's directory.
///
/// # Errors
/// System errors, unless `tolerant`: then an unreadable slot counts as damaged. [`ErrorKind::Version`].
pub(crate) async fn find(dir: &Dir, tolerant: bool) -> Result<FoundEnd> {
    let file = match dir.open(END_NAME, Open::read().buffered()).await {
        Err(error) if error.kind() == forebay::ErrorKind::NotFound => {
            return Ok(FoundEnd::none(dir.path()));
        }
        other => other?,
    };
    let mut slots = Vec::with_capacity(SLOTS.len());
    for at in SLOTS {
        match file.read_up_to(at..at + SLOT_BYTES as u64).await {
            Ok(slot) => slots.push(Some(slot)),
            Err(error) if tolerant && is_unreadable(&error) => slots.push(None),
            Err(error) => return Err(error.into()),
        }
    }
    let slot = |at: usize| slots.get(at).and_then(|slot| slot.as_deref());
    FoundEnd::of(dir.path(), [slot(0), slot(1)])
}

/// The file `wal.end` of an open log.
pub(crate) struct EndFile {
    dir: Dir,
    shard: usize,
    file: Option<File>,
    /// The number of the newest record, and its slot.
    newest: (u64, usize),
    written: Option<EndRecord>,
    /// Counts the bytes written.
    written_bytes: Arc<AtomicU64>,
}

impl EndFile {
    /// Continues from the records found. The file is created when a record is [written](Self::write).
    pub(crate) fn new(dir: &Dir, found: &FoundEnd, shard: usize, written_bytes: Arc<AtomicU64>) -> EndFile {
        EndFile { dir: dir.clone(), shard, file: None, newest: found.newest, written: None, written_bytes }
    }

    /// Makes a record durable in place of the older one. Writes nothing if the same record was written last.
    ///
    /// Without space for a new file, or without a descriptor, the log keeps the existing record; a later call tries again.
    ///
    /// # Errors
    /// System errors. The newest record remains.
    pub(crate) async fn write(&mut self, record: EndRecord) -> Result<()> {
        if self.written == Some(record) {
            return Ok(());
        }
        let number = self.newest.0 + 1;
        let file = match self.file().await {
            Ok(Some(file)) => file,
            Ok(None) => {
                return match self.make(record, number).await {
                    Err(error) if error.kind() == forebay::ErrorKind::NoSpace => Ok(()),
                    Err(error) if error.is_out_of_descriptors() => Ok(()),
                    other => Ok(other?),
                };
            }
            Err(error) if error.is_out_of_descriptors() => return Ok(()),
            Err(error) => return Err(error),
        };
        let slot = 1 - self.newest.1;
        file.write(SLOTS[slot], &record.slot(number)[..]).durable(Durability::All).await?;
        self.written_bytes.fetch_add(SLOT_BYTES as u64, Ordering::Relaxed);
        (self.newest, self.written) = ((number, slot), Some(record));
        Ok(())
    }

    /// Returns the file, if it exists.
    async fn file(&mut self) -> Result<Option<File>> {
        // Numbers start at 1, so a number above 0 means that a whole slot was found. A damaged file is
        // created anew.
        if self.file.is_none() && self.newest.0 > 0 {
            self.file = Some(self.dir.open(END_NAME, Open::write().buffered().shard(self.shard)).await?);
        }
        Ok(self.file.clone())
    }

    /// Creates the file with the record in both slots.
    ///
    /// # Errors
    /// System errors; no file is left then.
    pub(crate) async fn make(&mut self, record: EndRecord, number: u64) -> forebay::Result<()> {
        let dir = &self.dir;
        if dir.metadata(END_NEW_NAME).await.is_ok() {
            dir.remove_file(END_NEW_NAME).await?;
        }
        let file = dir.open(END_NEW_NAME, Open::create_new().buffered().shard(self.shard)).await?;
        let made = async {
            for (slot, number) in [(0, number), (1, number + 1)] {
                file.write(SLOTS[slot], &record.slot(number)[..]).await?;
                self.written_bytes.fetch_add(SLOT_BYTES as u64, Ordering::Relaxed);
            }
            file.sync(Durability::All).await?;
            dir.rename(END_NEW_NAME, END_NAME).await?;
            dir.sync().await
        };
        if let Err(error) = made.await {
            // A file with the temporary name has no meaning.
            let _ = dir.remove_file(END_NEW_NAME).await;
            return Err(error);
        }
        (self.file, self.newest, self.written) = (Some(file), (number + 1, 1), Some(record));
        Ok(())
    }
}
