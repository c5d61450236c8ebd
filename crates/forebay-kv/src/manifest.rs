//! The store's manifest: a log of edits that lists the store's tables, its keyspaces and its part of the
//! write-ahead log.
//!
//! The log is a `forebay_wal` log, in `manifest/`. An edit is one record, or several consecutive records if it is long; [`edit`]
//! describes the format. From time to time the whole state is written as one edit that starts from nothing, and everything before
//! it is dropped.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay::{Class, Dir, Engine, Open};
use forebay_wal::{End, Lsn, Recovery, Wal};

use crate::async_mutex::AsyncMutex;
use crate::error::{Error, ErrorKind, Result};

pub(crate) mod edit;
mod frame;
mod state;
pub(crate) mod version;
pub(crate) mod work_index;

pub(crate) use edit::Edit;
pub(crate) use state::ManifestState;

/// Edits after which the whole state is written.
const EDITS_MAX: u64 = 256;
/// Minimum of edits for writing the whole state early while the disk is full.
const EDITS_MIN: u64 = 32;
/// Bytes kept free in the last segment while the disk has no space for another: with less, no flush or compaction starts.
const ROOM_MIN: u64 = 64 << 10;
/// The file with which the space for a long edit is looked for.
const ROOM: &str = "room.new";
/// How often an edit waits for I/O memory, or the flush of a close for a descriptor, and how long each time: ten seconds together, as
/// the logs do.
const PAUSES_MAX: u32 = 100;
const PAUSE: Duration = Duration::from_millis(100);

/// The wait for what the program may give back, with the pauses so far.
#[derive(Default)]
pub(crate) struct Patience(u32);

impl Patience {
    /// Returns whether to try again, after a pause.
    pub(crate) async fn outlasts(&mut self) -> Result<bool> {
        if self.0 == PAUSES_MAX {
            return Ok(false);
        }
        self.0 += 1;
        forebay::shard::sleep(PAUSE).await?;
        Ok(true)
    }
}

/// The manifest of an open store.
#[derive(Debug)]
pub(crate) struct Manifest {
    dir: PathBuf,
    /// The directory, wherever it is now.
    home: Dir,
    shard: usize,
    wal: Wal,
    /// Serializes the edits.
    turn: AsyncMutex,
    inner: Mutex<Inner>,
}

/// Rebuilds a state from the records of a manifest.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    joiner: frame::Joiner,
    state: ManifestState,
    /// Edits since the whole state was written.
    edits: u64,
}

impl Replay {
    /// Applies the next record.
    pub(crate) fn add(&mut self, dir: &Path, lsn: Lsn, record: &[u8]) -> Result<()> {
        let damaged = |what: &str| {
            Error::at(ErrorKind::Corruption, dir, format!("record {lsn} of the manifest: {what}"))
        };
        let Some(edit) = self.joiner.add(record).map_err(|error| error.told(dir, lsn.0))? else {
            return Ok(());
        };
        let edit = Edit::decode(edit).ok_or_else(|| damaged("an edit that makes no sense"))?;
        if edit.is_whole {
            (self.state, self.edits) = (ManifestState::default(), 0);
        }
        self.state.apply(&edit).map_err(damaged)?;
        self.edits += 1;
        Ok(())
    }

    pub(crate) fn into_state(self) -> ManifestState {
        self.state
    }
}

/// Returns why a log finds no space for its next segment, or for the reserve in which it continues without one.
pub(crate) fn no_space(wal: &Wal) -> Option<Error> {
    wal.no_space().or_else(|| wal.reserve_bytes().err()).map(Error::from)
}

/// Reads a manifest's log, starting at a record.
async fn replay(wal: &Wal, dir: &Path, from: Lsn) -> Result<Replay> {
    let mut reader = wal.read_from(from);
    let mut replay = Replay::default();
    while let Some(record) = reader.next().await.transpose()? {
        replay.add(dir, record.lsn(), &record)?;
    }
    Ok(replay)
}

#[derive(Debug)]
struct Inner {
    state: ManifestState,
    /// Edits since the whole state was written.
    edits: u64,
}

/// Parameters for opening a manifest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) create: bool,
    /// Recovers the usable part of a damaged manifest.
    pub(crate) salvage: bool,
    /// Changes nothing.
    pub(crate) read_only: bool,
    pub(crate) store_id: Option<u64>,
    /// Segment size of the manifest's log, in bytes.
    pub(crate) segment_bytes: u64,
    pub(crate) shard: usize,
    pub(crate) class: Class,
}

impl Manifest {
    /// Opens the manifest in an existing directory; a new manifest is empty. Also returns the result of
    /// recovering its log.
    pub(crate) async fn open(engine: &Engine, dir: &Dir, how: How) -> Result<(Manifest, Recovery)> {
        let options = forebay_wal::Options::new()
            .segment_bytes(how.segment_bytes)
            .recent_bytes(0)
            .group_bytes_max(frame::PART_BYTES * 2)
            .pending_bytes_max(frame::PART_BYTES * 8)
            // Few records, from a task on that shard.
            .own_thread(false)
            .create(how.create)
            .salvage(how.salvage)
            .read_only(how.read_only)
            .shard(how.shard)
            .class(how.class);
        let options = match how.store_id {
            Some(id) => options.log_id(u128::from(id) << 8 | 1),
            None => options,
        };
        let (wal, recovery) = Wal::open_in(engine, dir, options).await?;
        let replay = match replay(&wal, dir.path(), recovery.first).await {
            Ok(replay) => replay,
            Err(error) => {
                // Otherwise the next open would find it locked.
                let _ = wal.close().await;
                return Err(error);
            }
        };
        let inner = Inner { state: replay.state, edits: replay.edits };
        let manifest = Manifest {
            dir: dir.path().to_path_buf(),
            home: dir.clone(),
            shard: how.shard,
            wal,
            turn: AsyncMutex::default(),
            inner: Mutex::new(inner),
        };
        Ok((manifest, recovery))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a copy of the durable state.
    pub(crate) fn state(&self) -> ManifestState {
        self.lock().state.clone()
    }

    /// Inspects the state without copying it.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&ManifestState) -> T) -> T {
        look(&self.lock().state)
    }

    /// Returns the bytes of memory used by its log. The state counts with the metadata of keyspaces and tables.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.wal.stats().pending_bytes as u64
    }

    /// Returns all bytes that its log has written.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.wal.stats().written_bytes
    }

    /// Makes an edit durable. After an error the edit may or may not be there once the store is opened again.
    ///
    /// # Errors
    /// Those of the log; [`ErrorKind::Corruption`] for an edit that does not fit the state, with nothing
    /// changed.
    pub(crate) async fn apply(&self, edit: &Edit) -> Result<()> {
        let _turn = self.turn.take().await;
        let mut next = self.state();
        next.apply(edit).map_err(|what| Error::new(ErrorKind::Corruption, format!("an edit: {what}")))?;
        self.append(edit).await?;
        let edits = {
            let mut inner = self.lock();
            inner.state = next;
            inner.edits += 1;
            inner.edits
        };
        if edits >= EDITS_MAX && self.has_room_for_state().await {
            self.write_down().await?;
        }
        Ok(())
    }

    /// Records the end of the store's log, unless the state has it already.
    ///
    /// # Errors
    /// Those of [`apply`](Self::apply).
    pub(crate) async fn note_log_end(&self, end: End) -> Result<()> {
        if self.with(|state| state.log_end == Some(end)) {
            Ok(())
        } else {
            self.apply(&Edit { log_end: Some(end), ..Edit::default() }).await
        }
    }

    /// Returns why its log currently finds no space for the next segment or its reserve, if so.
    pub(crate) fn no_space(&self) -> Option<Error> {
        no_space(&self.wal)
    }

    /// Returns the bytes that fit into its log without new space.
    fn room(&self) -> u64 {
        self.wal.segment_bytes_left().max(self.wal.reserve_bytes().unwrap_or(0))
    }

    /// Fails if the log has no space for another segment and little of the last is left for edits.
    pub(crate) fn check_room(&self) -> Result<()> {
        self.no_space().filter(|_| self.room() < ROOM_MIN).map_or(Ok(()), Err)
    }

    /// As [`check_room`](Self::check_room), for an edit that may be a long one: a log without space fails for good.
    pub(crate) async fn check_room_for(&self, edit: &Edit) -> Result<()> {
        let bytes = edit.encode().len() as u64;
        let _turn = self.turn.take().await;
        // Each of its records is padded.
        self.check_bytes(ROOM_MIN.max(bytes + bytes / 8 + ROOM_MIN / 2)).await
    }

    /// Returns whether the whole state can be written. Without space for the next segment it must fit into one that is there.
    async fn has_room_for_state(&self) -> bool {
        let bytes = self.with(ManifestState::to_edit).encode().len() as u64;
        self.check_bytes(2 * bytes + ROOM_MIN / 2).await.is_ok()
    }

    /// Fails without space for this many bytes of records. More than fit into a segment that is there need further segments, each
    /// of which may find none: the log would fail between two records. In the turn.
    async fn check_bytes(&self, bytes: u64) -> Result<()> {
        if bytes <= self.room() {
            return Ok(());
        }
        match self.no_space() {
            Some(error) => Err(error),
            // The next segment is on its way.
            None if bytes <= ROOM_MIN => Ok(()),
            None => self.look_for_space(bytes).await,
        }
    }

    /// Fails if the disk has no space for this many bytes.
    async fn look_for_space(&self, bytes: u64) -> Result<()> {
        // Left over from a crash.
        let _ = self.home.remove_file(ROOM).await;
        let open = Open::create_new().buffered().shard(self.shard);
        let file = match self.home.open(ROOM, open).await {
            Err(error) if error.kind() == forebay::ErrorKind::NoSpace => return Err(error.into()),
            Err(_) => return Ok(()),
            Ok(file) => file,
        };
        let allocated = file.allocate(0..bytes).await;
        let closed = file.close().await;
        let _ = self.home.remove_file(ROOM).await;
        match allocated.and(closed) {
            Err(error) if error.kind() == forebay::ErrorKind::NoSpace => Err(error.into()),
            // Where space cannot be allocated, only the edit shows.
            _ => Ok(()),
        }
    }

    /// Writes the whole state sooner than usual, which frees earlier segments for reuse or removal.
    pub(crate) async fn shrink(&self) -> Result<()> {
        let _turn = self.turn.take().await;
        let least = if self.no_space().is_some() { EDITS_MIN / 4 } else { EDITS_MIN };
        let is_worth_it = self.lock().edits >= least;
        if is_worth_it && self.has_room_for_state().await { self.write_down().await } else { Ok(()) }
    }

    /// Writes the whole state and drops the records before it.
    async fn write_down(&self) -> Result<()> {
        let first = self.append(&self.with(ManifestState::to_edit)).await?;
        self.wal.truncate_before(first).await?;
        self.lock().edits = 0;
        Ok(())
    }

    /// Appends one edit in as many records as it needs. Returns the number of the first one. Nothing is written that would not
    /// be read back.
    async fn append(&self, edit: &Edit) -> Result<Lsn> {
        let parts: Vec<Vec<u8>> = frame::parts(&edit.encode(), edit.is_extended()).collect();
        let mut joiner = frame::Joiner::default();
        let read =
            parts.iter().filter_map(|part| joiner.add(part).ok().flatten().and_then(Edit::decode)).last();
        if read.as_ref() != Some(edit) {
            let text =
                "an edit would not be read back as it was written, so it was not written: please report this";
            return Err(Error::at(ErrorKind::Corruption, &self.dir, text));
        }
        let mut first = None;
        for part in parts {
            first.get_or_insert(self.queue(&part).await?);
        }
        // The end is stored outside of the segments, so that an open detects a manifest that lost this edit.
        self.wal.record_end().await?;
        Ok(first.unwrap_or_default())
    }

    /// Queues a record. The program may hold all I/O memory for a moment, and an edit that fails makes the store read-only.
    async fn queue(&self, record: &[u8]) -> Result<Lsn> {
        let mut patience = Patience::default();
        loop {
            match self.wal.append(record).queued().await.map_err(Error::from) {
                Err(error) if error.is_out_of_memory() && patience.outlasts().await? => {}
                queued => return queued.map(|queued| queued.lsn()),
            }
        }
    }

    /// Reads the whole manifest again and compares it with the state in memory.
    pub(crate) async fn check(&self) -> Result<()> {
        // Nothing is dropped while the turn is held.
        let _turn = self.turn.take().await;
        let replay = replay(&self.wal, &self.dir, self.wal.first_lsn()).await?;
        if replay.state == self.state() {
            Ok(())
        } else {
            Err(Error::at(ErrorKind::Corruption, &self.dir, "the manifest is not what it was"))
        }
    }

    /// Closes the manifest; nothing is lost even without this.
    pub(crate) async fn close(&self) -> Result<()> {
        Ok(self.wal.close().await?)
    }
}
