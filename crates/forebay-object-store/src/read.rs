//! Reads: the open object, its ranges in one batch, and streams.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use forebay::device::DeviceKind;
use forebay::{Class, File, FilePlace, FileUse, Scan};
use futures_core::Stream;
use futures_util::future::try_join;
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::attributes::{self, Attributes, ProgramAttributes};
use crate::failure::{Failure, Result};
use crate::handles::look_up;
use crate::location;
use crate::store::{ForebayStore, StoreState};

/// A stream returns up to this many bytes as one chunk, so that a caller who wants one `Bytes` gets it without a second copy, which
/// costs as much as the first.
const CHUNK_BYTES_MAX: u64 = 8 << 20;
/// A longer range of a batch is read by itself, in parts of this many bytes, this many at a time.
const BATCHED_BYTES_MAX: u64 = 1 << 20;
/// A little less than a power of two, which is the length of I/O memory: whole blocks around a part fit into it.
const PART_BYTES: usize = (1 << 20) - 8192;
const PARTS: u32 = 4;
/// From this length on it is tried first whether there is memory for a range. glibc maps such memory by itself: the try has no effect on
/// the memory of shorter ranges.
const CHECKED_MEMORY_MIN: usize = 64 << 20;
/// A stream has this many reads of this length ahead, from its start, within the range that the caller has named. They end at whole
/// blocks of the file, so a power of two fits them.
const REQUEST_BYTES: usize = 1 << 20;
/// The number of such ranges that are read at the same time.
const LONG_RANGES: usize = 2;
/// Chunks of streams stay in the engine's memory while less than one part of this many is in use. Beyond that they are copied: the
/// consumer may keep them for as long as it likes, and other reads need that memory. As many bytes are read at most for gets of which
/// the program has not polled the stream.
const HELD_PART: u64 = 4;

/// An object that is open to be read.
pub(crate) struct Object {
    content: Content,
    path: PathBuf,
    pub(crate) attributes: Attributes,
}

enum Content {
    /// There are no bytes to read.
    Nothing(ProgramAttributes),
    File(FileUse),
    /// A queued call has read the range, so that it keeps no file open.
    Read {
        range: Range<u64>,
        bytes: UnreadBytes,
        program_attributes: ProgramAttributes,
    },
    /// As `Read`, but the range is longer than a chunk, or others have this many bytes in memory: the file is opened again for
    /// each chunk that the program polls.
    Later {
        location: String,
        program_attributes: ProgramAttributes,
    },
}

/// The bytes of a get whose stream the program has not polled.
struct UnreadBytes {
    bytes: Bytes,
    _room: Room,
}

/// Bytes that are counted until it is dropped.
struct Room {
    bytes: u64,
    all_bytes: Arc<AtomicU64>,
}

impl Room {
    /// Counts these bytes, if the sum is at most `bytes_max` with them.
    fn take(all_bytes: &Arc<AtomicU64>, bytes: u64, bytes_max: u64) -> Option<Room> {
        let more = |all: u64| all.checked_add(bytes).filter(|all| *all <= bytes_max);
        all_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Room { bytes, all_bytes: all_bytes.clone() })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.all_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Object {
    /// Returns the attributes that the program gave it.
    pub(crate) async fn program_attributes(&self) -> Result<ProgramAttributes> {
        match &self.content {
            Content::File(file) => program_attributes_of(file, &self.attributes).await,
            Content::Nothing(program_attributes)
            | Content::Read { program_attributes, .. }
            | Content::Later { program_attributes, .. } => Ok(program_attributes.clone()),
        }
    }
}

async fn program_attributes_of(file: &File, found: &Attributes) -> Result<ProgramAttributes> {
    if found.is_marked { attributes::get(file).await } else { Ok(ProgramAttributes::new()) }
}

impl ForebayStore {
    /// Returns the attributes of an object, without opening it unless it has some of the program's.
    pub(crate) async fn head(&self, location: &str) -> Result<(Attributes, ProgramAttributes)> {
        let path = location::object(&self.shared.root, location)?;
        let found = look_up(&self.shared.engine, &path).await?;
        if found.is_dir() {
            return Err(is_directory(&path));
        }
        let attributes = Attributes::of(&found);
        if !attributes.is_marked {
            return Ok((attributes, ProgramAttributes::new()));
        }
        let object = self.open_object(location, |_| None).await?;
        let own = object.program_attributes().await?;
        Ok((object.attributes, own))
    }

    /// Opens an object. `wanted` returns the range that will be read, if any, and whether it is all of the object: where more files are
    /// open than should be, a range of one chunk is read in the turn of the call, and the file is given back.
    pub(crate) async fn open_object(
        &self,
        location: &str,
        wanted: impl FnOnce(&Attributes) -> Option<(Range<u64>, bool)> + Send + 'static,
    ) -> Result<Object> {
        let path = location::object(&self.shared.root, location)?;
        let found = look_up(&self.shared.engine, &path).await?;
        if found.is_dir() {
            return Err(is_directory(&path));
        }
        if let Some(file) = self.shared.handles.get(location, &found) {
            return Ok(Object { content: Content::File(file), path, attributes: Attributes::of(&found) });
        }
        if !found.is_file() {
            // A pipe, for example, has no bytes to read, and needs no other end.
            let content = Content::Nothing(ProgramAttributes::new());
            return Ok(Object { content, path, attributes: Attributes::of(&found) });
        }
        let (shared, class, location) = (self.shared.clone(), self.class(), location.to_string());
        let open = move |place: FilePlace| async move {
            let (file, found) = shared.handles.open(&location, &path, &place).await?;
            let attributes = Attributes::of(&found);
            let content = if place.is_taken() {
                read_in_turn(&shared, file, location, &attributes, wanted(&attributes), class).await?
            } else {
                Content::File(file)
            };
            Ok::<_, Failure>(Object { content, path, attributes })
        };
        self.shared.handles.cache.run(class, open).await?
    }

    /// Reads ranges of an object as one batch; the results are in their order.
    pub(crate) async fn read_ranges(&self, location: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let path = location::object(&self.shared.root, location)?;
        let found = look_up(&self.shared.engine, &path).await?;
        let (class, gap_bytes_max) = (self.class(), self.shared.settings.gap_bytes_max);
        if let Some(file) = self.shared.handles.get(location, &found) {
            return read_batch(&file, &path, found.len(), ranges, gap_bytes_max, class).await;
        }
        if !found.is_file() {
            // Empty ranges need no read, and a directory cannot be read.
            let is_all_empty = ranges.iter().all(Range::is_empty);
            return if is_all_empty {
                Ok(vec![Bytes::new(); ranges.len()])
            } else {
                Err(Failure::text(format!(
                    "{} has no bytes to read: it is not a regular file",
                    path.display()
                )))
            };
        }
        let (shared, location, ranges) = (self.shared.clone(), location.to_string(), ranges.to_vec());
        let read = move |place| async move {
            let (file, found) = shared.handles.open(&location, &path, &place).await?;
            read_batch(&file, &path, found.len(), &ranges, gap_bytes_max, class).await
        };
        self.shared.handles.cache.run(class, read).await?
    }

    /// Returns the bytes of an open object as they arrive: of a range, or of all of it.
    pub(crate) fn stream(
        &self,
        object: Object,
        range: Range<u64>,
        is_whole: bool,
    ) -> impl Stream<Item = Result<Bytes>> + Send + use<> {
        let (shared, class) = (self.shared.clone(), self.class());
        let next = match object.content {
            Content::File(file) if is_unsized(&file, &range, is_whole) => {
                let scan = file.scan().class(class).start();
                Next::Scanned { scan, _file: file, at: 0, end: 0 }
            }
            Content::File(file) if range.end - range.start > CHUNK_BYTES_MAX => {
                let scan = file.scan().range(range.clone()).class(class);
                let scan = scan.request_bytes(REQUEST_BYTES).depth(PARTS as usize).start();
                Next::Scanned { scan, _file: file, at: range.start, end: range.end }
            }
            Content::File(file) if !range.is_empty() => Next::Whole(file, range),
            Content::Read { range: read, bytes, .. } => {
                debug_assert_eq!(read, range, "the range that was wanted");
                Next::Read(bytes)
            }
            Content::Later { location, .. } => {
                Next::Later { location, e_tag: object.attributes.e_tag, range }
            }
            Content::File(_) | Content::Nothing(_) => Next::Nothing,
        };
        let path = object.path;
        stream::try_unfold(next, move |next| {
            let (shared, path) = (shared.clone(), path.clone());
            async move {
                match next {
                    Next::Nothing => Ok(None),
                    Next::Read(unread) => Ok(Some((unread.bytes, Next::Nothing))),
                    Next::Later { location, e_tag, range } => {
                        let end = range.end.min(range.start + CHUNK_BYTES_MAX);
                        let (at, tag, chunk) = (location.clone(), e_tag.clone(), range.start..end);
                        let bytes = read_later(shared, at, path, tag, chunk, class).await?;
                        let rest = end..range.end;
                        let next = if rest.is_empty() {
                            Next::Nothing
                        } else {
                            Next::Later { location, e_tag, range: rest }
                        };
                        Ok(Some((bytes, next)))
                    }
                    Next::Whole(file, range) => {
                        let bytes = read_one(&file, range, class).await?;
                        Ok(Some((bytes, Next::Nothing)))
                    }
                    Next::Scanned { mut scan, _file, at, end } => match scan.next().await {
                        None if at < end => Err(Failure::text(format!(
                            "{} became shorter while it was read: it ended at byte {at} of {end}; read it again",
                            path.display()
                        ))),
                        None => Ok(None),
                        Some(block) => {
                            let block = block?;
                            let at = at + block.len() as u64;
                            let memory = shared.engine.memory();
                            let is_little = memory.held_bytes < memory.arena_bytes_max / HELD_PART;
                            let bytes =
                                if is_little { Bytes::from(block) } else { Bytes::copy_from_slice(&block) };
                            Ok(Some((bytes, Next::Scanned { scan, _file, at, end })))
                        }
                    },
                }
            }
        })
    }
}

/// The next step of a stream.
enum Next {
    Read(UnreadBytes),
    Later {
        location: String,
        e_tag: String,
        range: Range<u64>,
    },
    Whole(FileUse, Range<u64>),
    /// The scan has returned all bytes before `at`. It keeps the file open itself, and the use keeps it from being closed as idle.
    Scanned {
        scan: Scan,
        _file: FileUse,
        at: u64,
        end: u64,
    },
    Nothing,
}

/// Reads what a call in its turn wants of an open object, if anything: when the call has ended, others need the file, and perhaps nothing
/// polls the result.
async fn read_in_turn(
    shared: &StoreState,
    file: FileUse,
    location: String,
    found: &Attributes,
    wanted: Option<(Range<u64>, bool)>,
    class: Class,
) -> Result<Content> {
    let program_attributes = program_attributes_of(&file, found).await?;
    let Some((range, is_whole)) = wanted else { return Ok(Content::Nothing(program_attributes)) };
    if range.is_empty() {
        let has_bytes =
            is_unsized(&file, &range, is_whole) && file.scan().class(class).start().next().await.is_some();
        return Ok(if has_bytes { Content::File(file) } else { Content::Nothing(program_attributes) });
    }
    let len = range.end - range.start;
    let bytes_max = shared.engine.memory().arena_bytes_max / HELD_PART;
    let room = (len <= CHUNK_BYTES_MAX).then(|| Room::take(&shared.unread_bytes, len, bytes_max)).flatten();
    let Some(room) = room else { return Ok(Content::Later { location, program_attributes }) };
    let bytes = read_one(&file, range.clone(), class).await?;
    let bytes = UnreadBytes { bytes, _room: room };
    Ok(Content::Read { range, bytes, program_attributes })
}

/// Returns whether one read has to find the end of an object: on no block device a length of 0 may say nothing, as that of a file of
/// procfs. A range is judged by the length.
fn is_unsized(file: &File, range: &Range<u64>, is_whole: bool) -> bool {
    is_whole && range.is_empty() && file.device().kind() == DeviceKind::Anonymous
}

/// Reads a range of the object with the tag, whose file was given back.
async fn read_later(
    shared: Arc<StoreState>,
    location: String,
    path: PathBuf,
    e_tag: String,
    range: Range<u64>,
    class: Class,
) -> Result<Bytes> {
    let cache = shared.handles.cache.clone();
    let read = move |place| async move {
        let (file, found) = shared.handles.open(&location, &path, &place).await?;
        if Attributes::of(&found).e_tag != e_tag {
            return Err(Failure::text(format!(
                "{} was replaced after its file was closed for other gets: get it again, and read or drop the streams of gets",
                path.display()
            )));
        }
        read_one(&file, range, class).await
    };
    cache.run(class, read).await?
}

/// Reads ranges of an open file of `size_bytes` bytes.
async fn read_batch(
    file: &File,
    path: &Path,
    size_bytes: u64,
    ranges: &[Range<u64>],
    gap_bytes_max: u64,
    class: Class,
) -> Result<Vec<Bytes>> {
    for range in ranges {
        check(path, range, size_bytes)?;
    }
    let is_long = |range: &Range<u64>| range.end - range.start > BATCHED_BYTES_MAX;
    let mut batched = Vec::with_capacity(ranges.len());
    batched.extend(ranges.iter().filter(|range| !is_long(range)).cloned());
    let batch =
        file.read_many(batched).gap_bytes_max(gap_bytes_max).waste_bytes_max(gap_bytes_max.saturating_mul(4));
    let batch = async { Ok(batch.class(class).detached().await?) };
    let long: Vec<Range<u64>> = ranges.iter().filter(|range| is_long(range)).cloned().collect();
    let long = stream::iter(long).map(move |range| read_long(file, range, class));
    let (batched, long) = try_join(batch, long.buffered(LONG_RANGES).try_collect::<Vec<_>>()).await?;
    let (mut batched, mut long) = (batched.into_iter(), long.into_iter());
    let mut results = Vec::with_capacity(ranges.len());
    for range in ranges {
        let next = if is_long(range) { long.next() } else { batched.next().transpose()?.map(Bytes::from) };
        results.push(next.unwrap_or_default());
    }
    Ok(results)
}

/// Reads a range into newly allocated memory.
async fn read_one(file: &File, range: Range<u64>, class: Class) -> Result<Bytes> {
    if range.end - range.start > BATCHED_BYTES_MAX {
        return read_long(file, range, class).await;
    }
    let mut read = file.read_many([range]).class(class).detached().await?;
    Ok(read.pop().transpose()?.map(Bytes::from).unwrap_or_default())
}

/// Reads a long range into newly allocated memory. Bytes outside of the page cache are read through I/O memory: for a direct read
/// the kernel has to find the pages of new memory before the request starts, while a copy overlaps with other requests.
async fn read_long(file: &File, range: Range<u64>, class: Class) -> Result<Bytes> {
    let bytes = range.end - range.start;
    let Some(len) = usize::try_from(bytes).ok().filter(|len| is_available(*len)) else {
        return Err(Failure::text(format!("{bytes} bytes do not fit into memory; read them as a stream")));
    };
    let parts =
        range.clone().step_by(PART_BYTES).map(|start| start..range.end.min(start + PART_BYTES as u64));
    let batch = file.read_many(parts).class(class).depth(PARTS);
    let (result, bytes) = batch.into_memory(BytesMut::zeroed(len)).await;
    result?;
    Ok(bytes.freeze())
}

/// Returns whether memory of this length can be allocated: without it, `BytesMut::zeroed` ends the process.
fn is_available(len: usize) -> bool {
    if len < CHECKED_MEMORY_MIN {
        return true;
    }
    let mut memory = Vec::<u8>::new();
    let reserved = memory.try_reserve_exact(len);
    // The compiler removes an allocation that nothing uses.
    std::hint::black_box(memory.as_ptr());
    reserved.is_ok()
}

/// Fails for a range that the file does not have. An empty range is always there.
fn check(path: &Path, range: &Range<u64>, size_bytes: u64) -> Result<()> {
    if range.start > range.end {
        return Err(Failure::text(format!(
            "the range {}..{} of {} ends before it begins",
            range.start,
            range.end,
            path.display()
        )));
    }
    if !range.is_empty() && range.end > size_bytes {
        return Err(Failure::text(format!(
            "the range {}..{} is not in {}, which has {size_bytes} bytes",
            range.start,
            range.end,
            path.display()
        )));
    }
    Ok(())
}

fn is_directory(path: &Path) -> Failure {
    Failure::not_found(path, "there is a directory of this name, and no object")
}
