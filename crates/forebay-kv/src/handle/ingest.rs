//! Ingest of sorted files: a store adopts files that were written outside of it, in one edit of the manifest.
//!
//! The order: the files are checked; they get a second name among the store's tables; they are installed
//! (`engine/install.rs`); their first names are removed.

use std::ffi::OsStr;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay::{Dir, Durability, File, Lock, Open};
use forebay_wal::{Lsn, parent_of};

use super::keyspace::Keyspace;
use crate::engine::install::{Placement, WriteOrder, install};
use crate::engine::shared::{StoreCore, in_task};
use crate::error::{Error, ErrorKind, Result};
use crate::names::table_name;
use crate::table::{Table, TableMeta};
use crate::value::HeldShare;
use crate::wait::{FirstStep, Stage, block_on};

/// Memory of the buffers of a verification or a copy.
const MEMORY: u64 = 1 << 20;
/// Bytes of one read of a copy.
const COPY_BYTES: u64 = 256 << 10;
/// EPERM, EXDEV, EMLINK, ENOSYS and EOPNOTSUPP: the file cannot have a second name there.
const NO_LINK: [i32; 5] = [1, 18, 31, 38, 95];

/// The future of [`Store::ingest`](crate::Store::ingest): completes when the files are durable parts of the store. The ingest
/// starts at the first poll, and continues if the future is dropped.
#[must_use = "nothing is ingested unless this is awaited or waited for"]
pub struct Ingest<'a> {
    shared: &'a Arc<StoreCore>,
    stage: Stage<'a, Request, IngestReport>,
}

struct Request {
    files: Vec<Source>,
    is_verified: bool,
    keeps_files: bool,
}

/// A file to be ingested, with its keyspace.
struct Source {
    keyspace: u32,
    name: Arc<str>,
    path: PathBuf,
}

/// The result of an ingest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IngestReport {
    /// The files, in the order of the call.
    pub files: Vec<IngestedFile>,
    /// The newest record of the log when the files became visible. Writes with higher numbers are newer than their
    /// entries; others are older, or have other keys.
    pub lsn: Lsn,
}

/// An ingested file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IngestedFile {
    /// Its path before the ingest.
    pub path: PathBuf,
    /// The name of its keyspace.
    pub keyspace: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// The number of its entries, deletions included.
    pub entries: u64,
    /// The level of the keyspace where it lies; 0 if it overlaps entries of level 1 or above.
    pub level: usize,
    /// Whether it was copied, because it lies on another file system or the file system has no hard links.
    pub is_copied: bool,
    /// Whether a file still exists at that path: it was kept on request, could not be removed, or was replaced by another file.
    pub is_left: bool,
}

impl<'a> Ingest<'a> {
    pub(crate) fn new<P: AsRef<Path>>(
        shared: &'a Arc<StoreCore>,
        number: u64,
        files: impl IntoIterator<Item = (&'a Keyspace, P)>,
    ) -> Ingest<'a> {
        let source = |(keyspace, path): (&Keyspace, P)| {
            keyspace.check_store(number)?;
            let (keyspace, name) = (keyspace.id(), Arc::from(keyspace.name()));
            Ok(Source { keyspace, name, path: path.as_ref().to_path_buf() })
        };
        let files: Result<Vec<Source>> = files.into_iter().map(source).collect();
        let wanted = |files| Stage::Wanted(Request { files, is_verified: true, keeps_files: false });
        Ingest { shared, stage: files.map_or_else(Stage::Failed, wanted) }
    }

    /// Skips the verification of the files, which reads all of their bytes once. Their two ends are still checked. For
    /// files that this machine has just written: damage elsewhere in them is found only when it is read.
    pub fn unverified(mut self) -> Ingest<'a> {
        if let Stage::Wanted(request) = &mut self.stage {
            request.is_verified = false;
        }
        self
    }

    /// Leaves the files where they are, so that other stores can ingest them too. They share their bytes with the store,
    /// as a second name of the same file, and must not be written to.
    pub fn keep_files(mut self) -> Ingest<'a> {
        if let Stage::Wanted(request) = &mut self.stage {
            request.keeps_files = true;
        }
        self
    }

    /// Blocks the calling thread until the files are durable parts of the store.
    ///
    /// # Errors
    /// Those of the operation; [`ErrorKind::WaitOnShard`] on a shard's thread and [`ErrorKind::WaitInWorld`]
    /// in a simulated world: use `.await` there.
    pub fn wait(self) -> Result<IngestReport> {
        block_on(&self.shared.engine, self)
    }
}

impl Future for Ingest<'_> {
    type Output = Result<IngestReport>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<IngestReport>> {
        let shared = self.shared;
        self.stage.poll(context, |request| {
            let running = in_task(shared, move |shared| async move { ingest(&shared, request).await });
            Ok(FirstStep::Running(Box::pin(running)))
        })
    }
}

forebay::_debug_parts!(Ingest<'_>);

/// A file that was checked.
struct Candidate {
    source: Source,
    dir: Dir,
    file: File,
    identity: Identity,
    meta: TableMeta,
    is_copied: bool,
}

/// A file's device and inode.
type Identity = ((u32, u32), u64);

impl Candidate {
    /// Removes the file's first name, unless another file has it now: the ingest may have waited for minutes, and a program that
    /// writes such files may have put the next file there. Returns whether the name is free.
    async fn remove(&self) -> bool {
        let Some(name) = self.source.path.file_name() else { return false };
        match self.dir.metadata(name).await {
            // It was given twice.
            Err(error) => error.kind() == forebay::ErrorKind::NotFound,
            Ok(found) if (found.device(), found.inode()) != self.identity => false,
            Ok(_) => self.dir.remove_file(name).await.is_ok(),
        }
    }
}

/// A file that this ingest has locked, with its device and inode: one file may be given for several keyspaces.
struct FileLock {
    file: File,
    identity: Identity,
}

async fn ingest(shared: &Arc<StoreCore>, request: Request) -> Result<IngestReport> {
    let mut locks = Vec::new();
    let done = locked_by(shared, request, &mut locks).await;
    // Released before the call returns: the files may be ingested elsewhere then.
    for FileLock { file, .. } in locks {
        let _ = file.unlock().await;
    }
    done
}

async fn locked_by(
    shared: &Arc<StoreCore>,
    request: Request,
    locks: &mut Vec<FileLock>,
) -> Result<IngestReport> {
    shared.check_writable()?;
    shared.full.check_growth()?;
    let (mut candidates, mut dirs) = (Vec::with_capacity(request.files.len()), Vec::new());
    for source in request.files {
        let dir = dir_of(shared, &source.path, &mut dirs).await?;
        candidates.push(check(shared, source, dir, request.is_verified, locks).await?);
    }
    check_order(&candidates)?;
    if candidates.is_empty() {
        return Ok(IngestReport { files: Vec::new(), lsn: Lsn(shared.lock().last) });
    }
    let mut staged = Vec::with_capacity(candidates.len());
    for candidate in &mut candidates {
        staged.push(candidate.meta.clone());
        match stage(shared, candidate).await {
            Ok(is_copied) => candidate.is_copied = is_copied,
            Err(error) => {
                for meta in staged {
                    shared.remove_table(meta.id).await;
                }
                return Err(error);
            }
        }
    }
    let Placement { levels, lsn } = install(shared, staged, WriteOrder::Exact).await?;
    let mut files = Vec::with_capacity(candidates.len());
    let mut left = Vec::with_capacity(candidates.len());
    for candidate in &candidates {
        left.push(request.keeps_files || !candidate.remove().await);
    }
    if !request.keeps_files {
        sync_dirs(&candidates).await;
    }
    for ((candidate, level), is_left) in candidates.into_iter().zip(levels).zip(left) {
        shared.counters.ingested.fetch_add(candidate.meta.bytes, Ordering::Relaxed);
        let Candidate { source, meta, is_copied, .. } = candidate;
        files.push(IngestedFile {
            path: source.path,
            keyspace: source.name.to_string(),
            bytes: meta.bytes,
            entries: meta.entries,
            level,
            is_copied,
            is_left,
        });
    }
    Ok(IngestReport { files, lsn: Lsn(lsn) })
}

/// Makes the removal of the files' first names durable. A name that reappears after a power failure would be ingested again by a
/// program that ingests each file that it finds, and its old values would hide newer values.
async fn sync_dirs(candidates: &[Candidate]) {
    let mut synced = Vec::new();
    for candidate in candidates {
        let path = parent_of(&candidate.source.path);
        if !synced.contains(&path) {
            synced.push(path);
            // The store has the files in any case.
            let _ = candidate.dir.sync().await;
        }
    }
}

/// Returns the directory of a file. Files in one directory share its descriptor.
async fn dir_of(shared: &StoreCore, file: &Path, dirs: &mut Vec<(PathBuf, Dir)>) -> Result<Dir> {
    let path = parent_of(file);
    if let Some((_, dir)) = dirs.iter().find(|(known, _)| known == path) {
        return Ok(dir.clone());
    }
    let dir = shared.engine.open_dir(path).await?;
    dirs.push((path.to_path_buf(), dir.clone()));
    Ok(dir)
}

/// Checks a file, and makes its bytes durable: it may be a fresh copy.
async fn check(
    shared: &Arc<StoreCore>,
    source: Source,
    dir: Dir,
    is_verified: bool,
    locks: &mut Vec<FileLock>,
) -> Result<Candidate> {
    let (engine, path, class) = (&shared.engine, &source.path, shared.options.background);
    let Some(name) = path.file_name() else {
        return Err(Error::at(ErrorKind::InvalidInput, path, "this is not a file to ingest"));
    };
    let (above, tables) = (dir.own_metadata().await?, shared.tables.own_metadata().await?);
    if (above.device(), above.inode()) == (tables.device(), tables.inode()) {
        let text =
            "the directory of the store's own tables has no files to ingest: write sorted files elsewhere";
        return Err(Error::at(ErrorKind::InvalidInput, path, text));
    }
    let (file, found) = lock(&dir, name, path, locks).await?;
    let held = shared.budget.held / 2;
    let _held = HeldShare::new(Some(shared.cache.held()), MEMORY.min(held));
    shared.check_held()?;
    let identity = (shared.next_table(), source.keyspace);
    let table = Table::open_sorted(engine, &file, identity, (&shared.cache, &shared.files), class).await?;
    let limit = shared.budget.value;
    if table.sorted_value_bytes_max() > limit as u64 {
        let text = format!(
            "this sorted file has a value of {} bytes; with this memory values have {limit} at most. Open the store with a \
             larger `Options::memory_bytes_max`, or write the file without that value",
            table.sorted_value_bytes_max()
        );
        return Err(Error::at(ErrorKind::TooLarge { limit }, path, text));
    }
    if is_verified {
        table.verify(class).await?;
        shared.check_writable()?;
    }
    file.sync(Durability::All).await?;
    let meta = table.meta().clone();
    Ok(Candidate { source, dir, file, identity: found, meta, is_copied: false })
}

/// Time to wait for a file's lock: the lock of a killed process is released late.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Opens a file and locks it, unless this ingest has it already.
async fn lock(dir: &Dir, name: &OsStr, path: &Path, locks: &mut Vec<FileLock>) -> Result<(File, Identity)> {
    let file = match dir.open(name, Open::read()).await {
        Err(error) if error.kind() == forebay::ErrorKind::NotFound => {
            return Err(Error::at(ErrorKind::NotFound, path, "there is no such file to ingest"));
        }
        file => file?,
    };
    let metadata = file.metadata().await?;
    let identity = (metadata.device(), metadata.inode());
    if let Some(known) = locks.iter().find(|known| known.identity == identity) {
        return Ok((known.file.clone(), identity));
    }
    match file.lock_within(Lock::Exclusive, LOCK_PATIENCE).await {
        Err(error) if error.kind() == forebay::ErrorKind::Locked => {
            let text =
                "this sorted file is still being written, or is ingested elsewhere: finish it there first";
            return Err(Error::at(ErrorKind::Locked, path, text));
        }
        // A file system without locks has no such protection.
        _ => locks.push(FileLock { file: file.clone(), identity }),
    }
    Ok((file, identity))
}

/// Checks that files of the same keyspace do not overlap.
fn check_order(candidates: &[Candidate]) -> Result<()> {
    let mut sorted: Vec<&Candidate> = candidates.iter().collect();
    sorted.sort_by(|one, other| {
        let order = one.source.keyspace.cmp(&other.source.keyspace);
        order.then_with(|| one.meta.smallest.cmp(&other.meta.smallest))
    });
    for pair in sorted.windows(2) {
        let [one, other] = pair else { continue };
        if one.source.keyspace == other.source.keyspace && one.meta.largest >= other.meta.smallest {
            let text = format!(
                "this sorted file has keys within those of {} in the keyspace {:?}, and nothing says which are newer: \
                 ingest one after the other",
                one.source.path.display(),
                one.source.name
            );
            return Err(Error::at(ErrorKind::InvalidInput, &other.source.path, text));
        }
    }
    Ok(())
}

/// Gives a file a name among the store's tables, durably. Returns whether that needed a copy.
async fn stage(shared: &Arc<StoreCore>, candidate: &Candidate) -> Result<bool> {
    shared.check_writable()?;
    let (name, file) = (table_name(candidate.meta.id), &candidate.file);
    let Some(from) = candidate.source.path.file_name() else { return Ok(false) };
    let links = file.metadata().await?.links();
    match candidate.dir.hard_link(from, &shared.tables, &name).await {
        Ok(()) if file.metadata().await?.links() > links => return Ok(false),
        // The name is not that of the file that was checked: it was replaced, or is a symbolic link.
        Ok(()) => shared.tables.remove_file(&name).await?,
        Err(error) if error.raw_os_error().is_some_and(|errno| NO_LINK.contains(&errno)) => {}
        Err(error) => return Err(error.into()),
    }
    let class = shared.options.background;
    let copy = shared.tables.open(&name, Open::create_new().shard(shared.background_shard())).await?;
    let mut append = copy.append().request_bytes(COPY_BYTES as usize).depth(1).class(class).start();
    let mut at = 0;
    while at < candidate.meta.bytes {
        let end = (at + COPY_BYTES).min(candidate.meta.bytes);
        append.write_block(file.read(at..end).class(class).await?).await?;
        shared.counters.written.fetch_add(end - at, Ordering::Relaxed);
        shared.check_writable()?;
        at = end;
    }
    append.sync(Durability::All).await?;
    append.close().await?;
    shared.tables.sync().await?;
    Ok(true)
}
