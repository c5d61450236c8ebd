//! Segments: the files of a log.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay::{Block, Class, Dir, Durability, Engine, File, Lock, Open, Pending};

use crate::error::{Error, ErrorKind, Result};
use crate::format::segment_name;
use crate::options::Fill;
use crate::recover::{Scan, Scanner};

mod index;
mod pace;

pub(crate) use index::{DurableGroup, Index, SearchStart, cut_holes};
pub(crate) use pace::Pace;
use pace::Step;

/// One file of the log. It is not reused or removed while a reference to it exists.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) generation: u64,
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    /// Length of the file, in bytes.
    pub(crate) bytes: u64,
    /// It may have bytes of older groups outside of its groups.
    pub(crate) recycled: bool,
    /// It can be reused without a scan: apart from zeros and the data written since the log was opened, it has at most groups with
    /// lower numbers.
    pub(crate) known: bool,
}

/// Directory, shard and lengths for making segments.
#[derive(Clone, Debug)]
pub(crate) struct Maker {
    pub(crate) engine: Engine,
    pub(crate) dir: Dir,
    pub(crate) shard: usize,
    /// The log's own class.
    pub(crate) class: Class,
    pub(crate) bytes: u64,
    /// All bytes that the log has written; see [`Stats::written_bytes`](crate::Stats::written_bytes).
    pub(crate) written_bytes: Arc<AtomicU64>,
    /// The log's file system has no command of the device for zeros: it was tried.
    pub(crate) no_zeros: Arc<AtomicBool>,
}

/// A segment without a number. The log continues in it if a fresh one does not fit: a rename needs no space, and no other process
/// can take that space first.
pub(crate) const RESERVE_NAME: &str = "wal.reserve";
/// The reserve's name until it is complete.
pub(crate) const RESERVE_NEW_NAME: &str = "wal.reserve.new";

impl Maker {
    /// Returns whether the log has a reserve as long as a segment.
    pub(crate) async fn has_reserve(&self) -> bool {
        self.dir.metadata(RESERVE_NAME).await.is_ok_and(|found| found.len() >= self.bytes)
    }

    /// Makes the log's reserve, unless one as long as a segment exists. It is only allocated: few logs ever write to it.
    ///
    /// # Errors
    /// `NoSpace`, with the number of missing bytes, and system errors; an existing reserve stays.
    pub(crate) async fn make_reserve(&self, pace: &Pace) -> Result<()> {
        if self.has_reserve().await {
            return Ok(());
        }
        // Left over from an earlier attempt.
        if self.dir.metadata(RESERVE_NEW_NAME).await.is_ok() {
            self.dir.remove_file(RESERVE_NEW_NAME).await?;
        }
        let made = self.make_at(RESERVE_NEW_NAME, 0, Fill::Allocated, Some(pace)).await;
        let reserve = made.map_err(|error| self.lacking(self.dir.path().join(RESERVE_NAME), error))?;
        reserve.file.unlock().await?;
        if let Err(error) = self.dir.rename(RESERVE_NEW_NAME, RESERVE_NAME).await {
            let _ = self.dir.remove_file(RESERVE_NEW_NAME).await;
            return Err(error.into());
        }
        Ok(())
    }

    /// Makes the log's reserve the segment of this number, without new space, if it `fits`. The inner error says why it does not
    /// become that.
    pub(crate) async fn take_reserve(
        &self,
        generation: u64,
        fits: impl Fn(&File, u64) -> Result<bool>,
    ) -> Result<std::result::Result<Segment, &'static str>> {
        let file = match self.dir.open(RESERVE_NAME, Open::read().shard(self.shard)).await {
            Err(error) if error.kind() == forebay::ErrorKind::NotFound => {
                return Ok(Err("the log has no reserve (wal.reserve)"));
            }
            other => other?,
        };
        let scan = scan_file(&file, file.path().to_path_buf(), generation).await?;
        if !scan.is_blank() {
            return Ok(Err("the log's reserve (wal.reserve) is not empty"));
        }
        if !fits(&file, scan.bytes)? {
            return Ok(Err("the log's reserve (wal.reserve) is too short for its last records"));
        }
        drop(file);
        self.dir.rename(RESERVE_NAME, segment_name(generation)).await?;
        self.open(generation, false).await.map(Ok)
    }

    /// Makes a segment ready for writing: a used one under its new name, or a new file prepared as `fill` says. The
    /// segment is durable on return. `pace` says when zeros are due, and that the work is to end; without it the segment is waited for.
    ///
    /// # Errors
    /// `NoSpace`, with the number of missing bytes, and system errors. An unfinished file is removed.
    pub(crate) async fn make(
        &self,
        generation: u64,
        used: Option<Arc<Segment>>,
        fill: Fill,
        pace: Option<&Pace>,
    ) -> Result<Arc<Segment>> {
        let made = self.try_make(generation, used, fill, pace).await;
        made.map_err(|error| self.lacking(self.path(generation), error))
    }

    /// Returns the error of a segment that was not made; one for lack of space says how many bytes it lacks.
    fn lacking(&self, path: PathBuf, error: Error) -> Error {
        match error.kind() {
            ErrorKind::NoSpace => {
                let remedy = "free as many on this file system, or truncate the log while it is open";
                Error::no_space(path, self.bytes, remedy, &error)
            }
            _ => error,
        }
    }

    async fn try_make(
        &self,
        generation: u64,
        used: Option<Arc<Segment>>,
        fill: Fill,
        pace: Option<&Pace>,
    ) -> Result<Arc<Segment>> {
        if let Some(used) = used {
            if used.known || self.can_become(&used, generation).await? {
                self.dir.rename(segment_name(used.generation), segment_name(generation)).await?;
                return match self.open(generation, true).await {
                    // All other groups in it have lower numbers than any given from now on.
                    Ok(segment) => Ok(Arc::new(Segment { known: true, ..segment })),
                    Err(error) => Err(self.without(generation, error).await),
                };
            }
            let _ = self.remove(used.generation).await;
        }
        let segment = self.make_at(&segment_name(generation), generation, fill, pace).await?;
        if forebay::_is_broken!(SegmentNotFlushed) {
            return Ok(segment);
        }
        match self.dir.sync().await {
            Ok(()) => Ok(segment),
            Err(error) => Err(self.without(generation, error.into()).await),
        }
    }

    /// Removes a segment that could not be finished for lack of a descriptor, so that another attempt may make it. Returns the error.
    async fn without(&self, generation: u64, error: Error) -> Error {
        if error.is_out_of_descriptors() {
            let _ = self.remove(generation).await;
        }
        error
    }

    /// Returns whether the segment has no group that would be whole at its place under this number or a later
    /// one. A drive that lied about a flush can leave such a group: the renaming of the segment is undone,
    /// and the groups written to it after that are still there. Reads the whole segment.
    async fn can_become(&self, used: &Segment, generation: u64) -> Result<bool> {
        let scan = scan_file(&used.file, used.path.clone(), used.generation).await?;
        Ok(scan.ahead.0 < generation)
    }

    /// As [`make`](Self::make), with a name chosen by the caller that is not made durable.
    pub(crate) async fn make_at(
        &self,
        name: &str,
        generation: u64,
        fill: Fill,
        pace: Option<&Pace>,
    ) -> Result<Arc<Segment>> {
        let file = self.dir.open(name, Open::create_new().shard(self.shard)).await?;
        match self.fill(&file, fill, pace).await {
            Ok(()) => Ok(Arc::new(Segment {
                generation,
                path: file.path().to_path_buf(),
                file,
                bytes: self.bytes,
                recycled: false,
                known: true,
            })),
            Err(error) => {
                // If this fails, only space is lost: an empty segment has no meaning.
                let _ = self.dir.remove_file(name).await;
                Err(error)
            }
        }
    }

    /// Opens a segment for writing.
    pub(crate) async fn open(&self, generation: u64, recycled: bool) -> Result<Segment> {
        let path = self.path(generation);
        let file = self.dir.open(segment_name(generation), Open::write().shard(self.shard)).await?;
        lock_segment(&file, Lock::Exclusive).await?;
        let bytes = file.len().await?;
        Ok(Segment { generation, file, path, bytes, recycled, known: false })
    }

    /// Opens a segment that another opener prepared, perhaps incompletely, and makes it durable.
    pub(crate) async fn adopt(&self, generation: u64) -> Result<Arc<Segment>> {
        let segment = self.open(generation, true).await?;
        segment.file.sync(Durability::All).await?;
        self.dir.sync().await?;
        Ok(Arc::new(segment))
    }

    pub(crate) async fn open_to_read(&self, generation: u64) -> Result<Arc<Segment>> {
        let path = self.path(generation);
        let file = self.dir.open(segment_name(generation), Open::read().shard(self.shard)).await?;
        let bytes = file.len().await?;
        Ok(Arc::new(Segment { generation, file, path, bytes, recycled: true, known: false }))
    }

    /// Returns the path of a segment for messages: the directory may have been moved since it was opened.
    pub(crate) fn path(&self, generation: u64) -> PathBuf {
        self.dir.path().join(segment_name(generation))
    }

    /// Rejects a segment that has no name any more: data written to it vanishes when it is closed. Costs one
    /// system call that reaches no device.
    ///
    /// # Errors
    /// `Io`, with the path of the segment.
    pub(crate) async fn check_named(&self, segment: &Segment) -> Result<()> {
        if !segment.file.is_removed()? {
            return Ok(());
        }
        // Some file systems count no names at all, so the name itself is decisive.
        let name = segment.path.file_name().unwrap_or_default();
        if let (Ok(named), Ok(own)) = (self.dir.metadata(name).await, segment.file.metadata().await)
            && (named.inode(), named.device()) == (own.inode(), own.device())
        {
            return Ok(());
        }
        let text = "the segment was removed while the log was open, so nothing more can be made durable in it; \
                    restore the log's directory and open the log again";
        Err(Error::at(ErrorKind::Io, &segment.path, text))
    }

    /// Removes a segment that the log does not need; one that cannot be removed is left for the next time.
    pub(crate) fn remove(&self, generation: u64) -> Pending<()> {
        self.dir.remove_file(segment_name(generation))
    }

    /// Prepares a new file, durably.
    async fn fill(&self, file: &File, fill: Fill, pace: Option<&Pace>) -> Result<()> {
        lock_segment(file, Lock::Exclusive).await?;
        match file.allocate(0..self.bytes).await {
            Ok(()) if fill == Fill::Allocated => return flush_new(file).await,
            Err(error) if error.kind() != forebay::ErrorKind::Unsupported => return Err(error.into()),
            _ => {}
        }
        let (mut at, mut zeros) = (0, Block::new());
        while at < self.bytes {
            let left = self.bytes - at;
            let step = match pace {
                Some(pace) => pace.step(left).await?,
                None => Step::waited_for(left),
            };
            let range = at..at + step.bytes;
            if !self.command_zeros(file, range.clone()).await? {
                let bytes = step.bytes as usize;
                if zeros.len() < bytes {
                    zeros = self.engine.block(bytes)?.freeze();
                }
                let Some(block) = zeros.slice(..bytes) else { break };
                let class = if step.is_ahead { Class::BACKGROUND } else { self.class };
                file.write(at, block).class(class).await?;
                self.written_bytes.fetch_add(step.bytes, Ordering::Relaxed);
            }
            at = range.end;
        }
        flush_new(file).await
    }

    /// Makes the device write zeros without a transfer of them. Returns false where it cannot, or its file system or kernel; a log
    /// tries that once.
    ///
    /// # Errors
    /// `NoSpace`.
    async fn command_zeros(&self, file: &File, range: Range<u64>) -> Result<bool> {
        if self.no_zeros.load(Ordering::Relaxed) {
            return Ok(false);
        }
        match file.write_zeros(range).await {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == forebay::ErrorKind::NoSpace => Err(error.into()),
            // Where it failed for another reason, the writes that follow report it.
            Err(_) => {
                self.no_zeros.store(true, Ordering::Relaxed);
                Ok(false)
            }
        }
    }
}

/// Makes the length and the extents of a new segment durable. No group does that: one that is written with FUA persists its own
/// sectors alone.
async fn flush_new(file: &File) -> Result<()> {
    if forebay::_is_broken!(SegmentNotFlushed) {
        return Ok(());
    }
    Ok(file.sync(Durability::All).await?)
}

/// How long a segment's lock is waited for.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Locks a segment; waits for a write that a dead process left to the kernel.
pub(crate) async fn lock_segment(file: &File, lock: Lock) -> Result<()> {
    if locked_in_time(file, lock, LOCK_PATIENCE).await? {
        Ok(())
    } else {
        Err(Error::at(ErrorKind::Locked, file.path(), "somebody else has this segment open"))
    }
}

/// Tries for some time to lock a file; returns false if another process keeps the lock that long. A
/// write that a dead process left to the kernel holds its file, and so the file's lock, until the write
/// completes. So the owner of the lock is alone with the file, although the previous owner may have ended in
/// the middle of a write.
pub(crate) async fn locked_in_time(file: &File, lock: Lock, patience: Duration) -> Result<bool> {
    match file.lock_within(lock, patience).await {
        Err(error) if error.kind() == forebay::ErrorKind::Locked => Ok(false),
        other => other.map(|()| true).map_err(Error::from),
    }
}

/// Bytes of one read, and the number of such reads in flight.
pub(crate) const READ_BYTES: usize = 256 << 10;
pub(crate) const READ_DEPTH: usize = 4;

/// Scans a whole segment. Needs 1 MiB of I/O memory, and memory for its longest group.
pub(crate) async fn scan_file(file: &File, path: PathBuf, generation: u64) -> Result<Scan> {
    let mut scanner = Scanner::new(path, generation, file.len().await?);
    let mut blocks = file.scan().request_bytes(READ_BYTES).depth(READ_DEPTH).start();
    while let Some(block) = blocks.next().await.transpose()? {
        scanner.push(&block);
        forebay::shard::yield_if_needed().await;
    }
    Ok(scanner.finish())
}
