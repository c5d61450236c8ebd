//! Reads a log's directory without changing it.

use std::ops::Range;
use std::path::{Path, PathBuf};

use forebay::{Engine, File, FileKind, Lock, Open};

use crate::end_file::{self, FoundEnd};
use crate::error::{Error, ErrorKind, Result, is_unreadable};
use crate::format::{GRAIN, segment_generation};
use crate::open::{LOCK_NAME, holders_of_taken, is_known};
use crate::recover::{NeededSegments, Scan, Scanner};
use crate::segment::{LOCK_PATIENCE, locked_in_time};

/// Length of one read, in bytes.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;
/// Stands for unreadable bytes. It is not zero, because no zeros were read there.
const UNREADABLE: u8 = 0xff;

/// The contents of a log's directory.
pub(super) struct LogDirectory {
    pub(super) dir: PathBuf,
    pub(super) in_use: bool,
    /// Oldest first.
    pub(super) segments: Vec<Segment>,
    pub(super) unknown_files: Vec<PathBuf>,
    /// The record of the log's end outside of the segments.
    pub(super) end: FoundEnd,
    /// Holds the lock shared, if the log has a lock file.
    pub(super) _lock: Option<File>,
}

pub(super) struct Segment {
    pub(super) scan: Scan,
    pub(super) needed: bool,
    pub(super) unreadable: Vec<Range<u64>>,
}

/// Reads the directory and all its segments.
pub(super) async fn find(engine: &Engine, dir: &Path) -> Result<LogDirectory> {
    if !engine.metadata(dir).await?.is_dir() {
        return Err(Error::at(ErrorKind::InvalidInput, dir, "this is not a directory: give that of a log"));
    }
    let entries = engine.read_dir(dir).await?;
    let has_lock = entries.iter().any(|entry| entry.name() == LOCK_NAME);
    let (lock, mut in_use) = if has_lock {
        shared_lock(engine, &dir.join(LOCK_NAME)).await?
    } else {
        // A copy of a log has no lock file, and a reader does not create one.
        (None, false)
    };
    // Before the segments: if the log is open, they can only be newer.
    let end = end_file::find(&engine.open_dir(dir).await?, true).await?;
    // Listed again: a segment may have got its name before the lock was acquired.
    let (mut generations, mut unknown_files) = (Vec::new(), Vec::new());
    for entry in engine.read_dir(dir).await? {
        let name = entry.name().to_str();
        match name.and_then(segment_generation).filter(|_| entry.kind() == FileKind::File) {
            Some(generation) => generations.push((generation, dir.join(entry.name()))),
            None if name.is_some_and(is_known) => {}
            None => unknown_files.push(dir.join(entry.name())),
        }
    }
    generations.sort_unstable();
    let mut segments = Vec::with_capacity(generations.len());
    let mut needed = NeededSegments::default();
    for (generation, path) in generations.into_iter().rev() {
        let file = match engine.open(&path, Open::read()).await {
            Ok(file) => file,
            // The segment was recycled meanwhile.
            Err(_) if in_use && engine.metadata(&path).await.is_err() => continue,
            Err(error) => return Err(error.into()),
        };
        if !in_use {
            in_use = is_being_written(&file).await?;
        }
        let mut scanner = Scanner::new(path, generation, file.len().await?);
        let unreadable = each_piece(&file, |piece| scanner.push(piece)).await?;
        let scan = scanner.finish();
        let is_needed = needed.includes(generation);
        if is_needed {
            needed.add(&scan);
        }
        segments.push(Segment { scan, needed: is_needed, unreadable });
    }
    segments.reverse();
    Ok(LogDirectory { dir: dir.to_path_buf(), in_use, segments, unknown_files, end, _lock: lock })
}

/// Takes the log's lock shared, as patiently as an open. Returns the file that holds it, and whether a conflicting lock is held.
async fn shared_lock(engine: &Engine, path: &Path) -> Result<(Option<File>, bool)> {
    let file = engine.open(path, Open::read().buffered()).await?;
    let is_taken = holders_of_taken(engine, &file, Lock::Shared).await?.is_some();
    Ok(((!is_taken).then_some(file), is_taken))
}

/// Returns whether a segment is locked although the log is not open. A process that died releases its locks
/// late, so this waits for them.
async fn is_being_written(file: &File) -> Result<bool> {
    let locked = locked_in_time(file, Lock::Shared, LOCK_PATIENCE).await?;
    if locked {
        file.unlock().await?;
    }
    Ok(!locked)
}

/// Returns the bytes of a whole file, and the ranges that could not be read.
pub(super) async fn bytes_of(file: &File) -> Result<(Vec<u8>, Vec<Range<u64>>)> {
    let mut bytes = Vec::with_capacity(usize::try_from(file.len().await?).unwrap_or(0));
    let unreadable = each_piece(file, |piece| bytes.extend_from_slice(piece)).await?;
    Ok((bytes, unreadable))
}

/// Reads a file in pieces, in order. Returns the ranges that could not be read and were replaced by other
/// bytes.
async fn each_piece(file: &File, mut each: impl FnMut(&[u8])) -> Result<Vec<Range<u64>>> {
    let length = file.len().await?;
    let mut unreadable: Vec<Range<u64>> = Vec::new();
    let mut step = CHUNK_BYTES;
    let (mut at, mut careful_to) = (0, 0);
    loop {
        if at >= length {
            return Ok(unreadable);
        }
        if at >= careful_to {
            step = CHUNK_BYTES;
        }
        match file.read_up_to(at..length.min(at + step)).await {
            Ok(block) if block.is_empty() => return Ok(unreadable),
            Ok(block) => {
                each(&block);
                at += block.len() as u64;
            }
            Err(error) if !is_unreadable(&error) => return Err(error.into()),
            // Read the same stretch again in small steps, to lose as little as possible.
            Err(_) if step > u64::from(GRAIN) => {
                careful_to = length.min(at + step);
                step = u64::from(GRAIN);
            }
            Err(_) => {
                let end = length.min(at + step);
                each(&[UNREADABLE; GRAIN as usize][..(end - at) as usize]);
                match unreadable.last_mut() {
                    Some(last) if last.end == at => last.end = end,
                    _ => unreadable.push(at..end),
                }
                at = end;
            }
        }
    }
}
