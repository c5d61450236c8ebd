//! Puts: an object is written under a staged name, and gets its own name when it is whole.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use forebay::{Class, Durability, ErrorKind, File, FilePlace, Metadata, Open};
use futures_util::future::join;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::attributes::{self, Attributes, ProgramAttributes, micros};
use crate::failure::{Failure, Result};
use crate::finish::{Finish, finish};
use crate::handles::{Identity, identity, look_up, metadata_of};
use crate::is_broken;
use crate::location;
use crate::locks::{self, NameLocks, is_named, under_locks};
use crate::store::{ForebayStore, StoreState};

/// Bytes of one request.
const REQUEST_BYTES_MAX: usize = 8 << 20;
/// Shorter chunks are joined by copying; longer chunks are written in place.
const JOINED_BYTES_MAX: usize = 64 << 10;
/// Bytes of chunks that are put together at a time.
const RUN_BYTES_MAX: usize = 4 << 20;
/// Requests of one put in flight. Buffered writes of a file are serialized in the kernel.
const DEPTH: usize = 4;

impl ForebayStore {
    /// Puts an object, if what has its name so far is as `condition` says. Returns its entity tag.
    pub(crate) fn put(
        &self,
        location: &str,
        chunks: Vec<Bytes>,
        condition: Condition,
        attributes: ProgramAttributes,
    ) -> Result<Finish<Result<String>>> {
        let path = location::object(&self.shared.root, location)?;
        let (shared, class, location) = (self.shared.clone(), self.class(), location.to_string());
        let put = move |place| async move {
            let (_place, _counted) = (place, shared.handles.cache.count());
            if let Condition::Tag(_) = condition {
                // One that is late writes nothing. Under the lock it is looked at again.
                condition.check(&path, look_up(&shared.engine, &path).await)?;
            }
            let (file, staged) = stage(&shared, &path).await?;
            let has_attributes = !attributes.is_empty();
            let object = NewObject { file, staged, path, location, has_attributes };
            let put = async {
                attributes::set(&object.file, &object.location, &attributes).await?;
                // Meanwhile the kernel learns the name, which is looked up under its lock without a thread then.
                let written = write(&object.file, 0, chunks, shared.durability(), class);
                let (written, _) = join(written, look_up(&shared.engine, &object.path)).await;
                written?;
                publish(&shared, class, &object, condition).await
            };
            let result = put.await;
            if result.is_err() {
                let _ = discard(&shared, &object.file, &object.staged).await;
            }
            shared.handles.forget(&object.location);
            result
        };
        let cache = self.shared.handles.cache.clone();
        Ok(finish(&self.shared.engine, async move { cache.run(class, put).await? }))
    }

    /// Starts an object that is put in parts.
    pub(crate) fn begin_upload(
        &self,
        location: &str,
        attributes: ProgramAttributes,
    ) -> Result<Finish<Result<Upload>>> {
        let path = location::object(&self.shared.root, location)?;
        let (shared, class, location) = (self.shared.clone(), self.class(), location.to_string());
        let begin = move |place: FilePlace| async move {
            let (_place, _counted) = (place, shared.handles.cache.count());
            let (file, staged) = stage(&shared, &path).await?;
            let prepared = async {
                attributes::set(&file, &location, &attributes).await?;
                Ok::<_, Failure>(metadata_of(&file).await?)
            };
            let found = match prepared.await {
                Ok(found) => found,
                Err(refused) => {
                    let _ = discard(&shared, &file, &staged).await;
                    return Err(refused);
                }
            };
            let open = shared.upload_place().map(|place| Arc::new(OpenFile { file, _place: place }));
            let staged =
                StagedFile { path: staged, identity: identity(&found), created: found.created(), open };
            Ok::<_, Failure>(Upload {
                shared,
                class,
                location,
                path,
                has_attributes: !attributes.is_empty(),
                parts: Arc::new(Parts {
                    state: Mutex::new(UploadState::Open(staged)),
                    written_bytes: AtomicU64::new(0),
                }),
                begun_bytes: 0,
            })
        };
        let cache = self.shared.handles.cache.clone();
        Ok(finish(&self.shared.engine, async move { cache.run(class, begin).await? }))
    }
}

/// An object that is put in parts. Dropping it removes what was written.
pub(crate) struct Upload {
    shared: Arc<StoreState>,
    class: Class,
    location: String,
    path: PathBuf,
    has_attributes: bool,
    parts: Arc<Parts>,
    /// Bytes of all parts so far: the offset of the next one.
    begun_bytes: u64,
}

/// The state of an upload that its parts and its end share.
struct Parts {
    state: Mutex<UploadState>,
    written_bytes: AtomicU64,
}

enum UploadState {
    Open(StagedFile),
    /// It is being completed; without the lock of the name it opens again.
    Ending,
    Ended,
}

/// The file of an upload.
#[derive(Clone)]
struct StagedFile {
    path: PathBuf,
    identity: Identity,
    /// Of a file that is not open, another one may have device and inode by now.
    created: Option<SystemTime>,
    /// `None` if other uploads have the descriptors: then each part opens the file again.
    open: Option<Arc<OpenFile>>,
}

struct OpenFile {
    file: File,
    _place: Arc<()>,
}

impl StagedFile {
    fn is_file_of(&self, found: &Metadata) -> bool {
        self.identity == identity(found) && self.created == found.created()
    }

    /// Returns the file, which is opened if it is not.
    async fn file(&self, shared: &StoreState) -> Result<File> {
        if let Some(open) = &self.open {
            return Ok(open.file.clone());
        }
        let file = match shared.engine.open(&self.path, Open::write().buffered()).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(abandoned(&self.path)),
            opened => opened?,
        };
        let found = metadata_of(&file).await?;
        if self.is_file_of(&found) { Ok(file) } else { Err(abandoned(&self.path)) }
    }

    /// Removes the file, unless that was done.
    async fn discard(&self, shared: &StoreState) -> Result<()> {
        let is_own = match look_up(&shared.engine, &self.path).await {
            Err(Failure::NotFound { .. }) => false,
            found => self.is_file_of(&found?),
        };
        if !is_own {
            return Err(abandoned(&self.path));
        }
        Ok(shared.engine.remove_file(&self.path).await?)
    }
}

impl Parts {
    fn state(&self) -> MutexGuard<'_, UploadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the end of an upload, or ends it. Returns its file if it was open.
    fn leave(&self, next: UploadState) -> Option<StagedFile> {
        let mut state = self.state();
        match (std::mem::replace(&mut *state, UploadState::Ended), next) {
            (UploadState::Open(staged), next) => {
                *state = next;
                Some(staged)
            }
            (UploadState::Ending, UploadState::Ending) => {
                *state = UploadState::Ending;
                None
            }
            _ => None,
        }
    }

    /// Opens an upload whose end has failed. Returns false if it was aborted or dropped meanwhile.
    fn open_again(&self, staged: &StagedFile) -> bool {
        let mut state = self.state();
        let is_ending = matches!(*state, UploadState::Ending);
        if is_ending {
            *state = UploadState::Open(staged.clone());
        }
        is_ending
    }
}

impl Upload {
    /// Returns the write of the next part. Parts may be written in any order, and at the same time.
    pub(crate) fn put_part(&mut self, chunks: Vec<Bytes>) -> Finish<Result<()>> {
        let offset = self.begun_bytes;
        let bytes: u64 = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        // The bytes of one that is refused must not be missing if the upload is opened again.
        let is_open = matches!(*self.parts.state(), UploadState::Open(..));
        if is_open {
            self.begun_bytes += bytes;
        }
        let (parts, shared, class) = (self.parts.clone(), self.shared.clone(), self.class);
        finish(&self.shared.engine, async move {
            let staged = match &*parts.state() {
                UploadState::Open(staged) if is_open => staged.clone(),
                _ => return Err(has_ended()),
            };
            if let Some(open) = &staged.open {
                write(&open.file, offset, chunks, Durability::None, class).await?;
            } else {
                let cache = shared.handles.cache.clone();
                let put = move |place: FilePlace| async move {
                    let (_place, _counted) = (place, shared.handles.cache.count());
                    let file = staged.file(&shared).await?;
                    // Synced before the close: only files that are open certainly see that the kernel could not write their bytes.
                    write(&file, offset, chunks, shared.durability(), class).await
                };
                cache.run(class, put).await??;
            }
            parts.written_bytes.fetch_add(bytes, Ordering::AcqRel);
            Ok(())
        })
    }

    /// Gives the object its name. Returns its entity tag. The upload has ended then, unless another process did not give back the lock of
    /// the name.
    pub(crate) fn complete(&mut self) -> impl Future<Output = Result<String>> + Send + use<> {
        let change = self.begin_complete();
        async move { change?.await }
    }

    fn begin_complete(&mut self) -> Result<Finish<Result<String>>> {
        let missing_bytes = self.begun_bytes.saturating_sub(self.parts.written_bytes.load(Ordering::Acquire));
        if missing_bytes > 0 && matches!(*self.parts.state(), UploadState::Open(..)) {
            return Err(Failure::text(format!(
                "{missing_bytes} bytes of the parts of {} are not written; await all parts, then complete it; if one has failed, begin \
                 another upload",
                self.path.display()
            )));
        }
        let Some(staged) = self.parts.leave(UploadState::Ending) else { return Err(has_ended()) };
        let (shared, class, has_attributes) = (self.shared.clone(), self.class, self.has_attributes);
        let (parts, path, location) = (self.parts.clone(), self.path.clone(), self.location.clone());
        let complete = move |place: FilePlace| async move {
            let (_place, _counted) = (place, shared.handles.cache.count());
            let completed = async {
                let file = staged.file(&shared).await?;
                let (staged, location) = (staged.path.clone(), location.clone());
                let object = NewObject { file, staged, path, location, has_attributes };
                if shared.durability() != Durability::None {
                    object.file.sync(shared.durability()).class(class).await?;
                }
                publish(&shared, class, &object, Condition::None).await
            };
            let result = match completed.await {
                Err(Failure::Locked(text)) if parts.open_again(&staged) => Err(Failure::Locked(format!(
                    "{text}; the upload is as it was: complete it again, or abort it"
                ))),
                Err(failure) => {
                    let _ = staged.discard(&shared).await;
                    Err(failure)
                }
                completed => completed,
            };
            shared.handles.forget(&location);
            result
        };
        let cache = self.shared.handles.cache.clone();
        Ok(finish(&self.shared.engine, async move { cache.run(class, complete).await? }))
    }

    /// Removes what was written.
    pub(crate) fn abort(&mut self) -> impl Future<Output = Result<()>> + Send + use<> {
        let shared = self.shared.clone();
        let staged = self.parts.leave(UploadState::Ended).ok_or_else(has_ended);
        let change =
            staged.map(|staged| finish(&shared.engine.clone(), async move { staged.discard(&shared).await }));
        async move { change?.await }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(staged) = self.parts.leave(UploadState::Ended) {
            let shared = self.shared.clone();
            drop(self.shared.engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
                let _ = staged.discard(&shared).await;
            }));
        }
    }
}

fn has_ended() -> Failure {
    Failure::text("the upload was completed or aborted before; begin another one")
}

/// Makes a file under a free staged name of the object at `path`, and the directories above it that are missing.
async fn stage(shared: &StoreState, path: &Path) -> Result<(File, PathBuf)> {
    if is_broken!(PutInPlace)
        && let Ok(file) = shared.engine.open(path, Open::create().truncate().buffered()).await
    {
        return Ok((file, path.to_path_buf()));
    }
    let mut number = 1;
    loop {
        let staged = location::staged(path, number);
        let error = match shared.engine.open(&staged, Open::create_new().buffered()).await {
            Ok(file) => return Ok((file, staged)),
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::AlreadyExists => number += 1,
            ErrorKind::NotFound => make_parents(shared, path).await?,
            _ => return Err(error.into()),
        }
    }
}

/// Makes the missing directories above `path`.
pub(crate) async fn make_parents(shared: &StoreState, path: &Path) -> Result<()> {
    match path.parent() {
        Some(above) => shared.directories.make(&shared.engine, &shared.root, above).await,
        None => Ok(()),
    }
}

/// Makes the names of all directories above `path` durable, if the store's puts are.
pub(crate) async fn sync_parents(shared: &StoreState, path: &Path) -> Result<()> {
    match path.parent() {
        Some(above) if shared.is_durable() && !is_broken!(DirectoriesNotSynced) => {
            shared.directories.sync(&shared.engine, &shared.root, above).await
        }
        _ => Ok(()),
    }
}

/// The state of its name that a put asks for.
#[derive(Clone, Debug)]
pub(crate) enum Condition {
    /// Anything.
    None,
    /// No object.
    Absent,
    /// The object with this entity tag.
    Tag(String),
}

impl Condition {
    /// Fails if `found` is not the object with the tag. The kernel decides whether it is missing.
    fn check(&self, path: &Path, found: Result<Metadata>) -> Result<Option<Metadata>> {
        let Condition::Tag(tag) = self else { return Ok(found.ok()) };
        match found {
            Ok(found) if found.is_file() && Attributes::of(&found).e_tag == *tag => Ok(Some(found)),
            Ok(_) => Err(Failure::precondition(path, format!("the object's tag is not {tag} any more"))),
            Err(Failure::NotFound { .. }) => {
                Err(Failure::precondition(path, format!("there is no object, and so none of the tag {tag}")))
            }
            Err(failure) => Err(failure),
        }
    }
}

/// An object that is written, and has no name yet.
#[derive(Clone)]
struct NewObject {
    file: File,
    staged: PathBuf,
    path: PathBuf,
    location: String,
    has_attributes: bool,
}

/// Gives an object, whose bytes are durable if the store's puts are, its name. Returns its entity tag.
async fn publish(
    shared: &Arc<StoreState>,
    class: Class,
    object: &NewObject,
    condition: Condition,
) -> Result<String> {
    // First, so that a name is returned only in a durable directory. The staged file keeps the directories from being removed.
    sync_parents(shared, &object.path).await?;
    let locations = [object.location.clone()];
    let object = object.clone();
    let path = object.path.clone();
    let put =
        under_locks(shared, class, &locations, move |shared: Arc<StoreState>, locks: NameLocks| async move {
            give_name(&shared, class, &object, condition, &locks).await
        });
    let e_tag = put.await?;
    // Without the lock: other puts need not wait for the device. The sync of a later put makes both durable.
    shared.sync_name(&path).await?;
    Ok(e_tag)
}

/// Gives an object its name, the lock of which is held.
async fn give_name(
    shared: &StoreState,
    class: Class,
    object: &NewObject,
    condition: Condition,
    locks: &NameLocks,
) -> Result<String> {
    let NewObject { file, staged, path, has_attributes, .. } = object;
    let is_update = matches!(condition, Condition::Tag(_));
    if is_update {
        locks.check(path)?;
    }
    let (found, first) = join(look_up(&shared.engine, path), locks.first_time(file)).await;
    let found = if is_broken!(TagNotChecked) { found.ok() } else { condition.check(path, found)? };
    let is_exact = is_update || *has_attributes;
    let from_us = first?.max(found.map_or(0, |found| micros(&found) + 1));
    let put = locks.stamp(file, path, from_us, *has_attributes, is_exact).await?;
    if locks::syncs_all(shared.durability(), *has_attributes) {
        file.sync(Durability::All).class(class).await?;
    }
    // The name may be another put's by now. Some file systems count no names.
    if file.is_removed()? && !is_named(&shared.engine, file, staged).await? {
        return Err(abandoned(staged));
    }
    if !matches!(condition, Condition::Absent) {
        shared.engine.rename_unsynced(staged, path).await?;
        return Ok(put.e_tag);
    }
    shared
        .engine
        .hard_link_unsynced(staged, path)
        .await
        .map_err(|error| Failure::of_new_name(path, error))?;
    // It is published: a staged name that stays is hidden, and does no harm.
    let _ = shared.engine.remove_file(staged).await;
    Ok(put.e_tag)
}

/// Removes a staged file whose object was not put. If it was renamed before the failure, or removed, another put may have the name by
/// now.
async fn discard(shared: &StoreState, file: &File, staged: &Path) -> Result<()> {
    if !is_named(&shared.engine, file, staged).await? {
        return Err(abandoned(staged));
    }
    Ok(shared.engine.remove_file(staged).await?)
}

/// Returns the failure of an upload whose staged file is not its own any more.
fn abandoned(staged: &Path) -> Failure {
    Failure::text(format!(
        "the staged file {} was removed before the object was whole, as one that was abandoned; put it again",
        staged.display()
    ))
}

/// Writes chunks one behind the other.
async fn write(
    file: &File,
    offset: u64,
    chunks: Vec<Bytes>,
    durability: Durability,
    class: Class,
) -> Result<()> {
    let mut runs = runs(offset, chunks);
    // The usual small object: one request, with its sync.
    let alone = if runs.len() <= 1 { durability } else { Durability::None };
    if let [Run::One(..)] = runs[..]
        && let Some(Run::One(offset, bytes)) = runs.pop()
    {
        return write_one(file, offset, bytes, alone, class).await;
    }
    let written = stream::iter(runs).map(|run| async move {
        match run {
            Run::One(offset, bytes) => write_one(file, offset, bytes, Durability::None, class).await,
            Run::Joined(pieces) => {
                let written = file.write_many(pieces).class(class).await?;
                written.into_iter().try_for_each(|result| Ok(result?))
            }
        }
    });
    written.buffer_unordered(DEPTH).try_collect::<()>().await?;
    if durability != Durability::None {
        file.sync(durability).class(class).await?;
    }
    Ok(())
}

async fn write_one(
    file: &File,
    offset: u64,
    bytes: Bytes,
    durability: Durability,
    class: Class,
) -> Result<()> {
    file.write(offset, bytes).durable(durability).class(class).await?;
    Ok(())
}

/// Chunks that are written with one call.
enum Run {
    One(u64, Bytes),
    Joined(Vec<(u64, Bytes)>),
}

/// Divides chunks that lie one behind the other, the first at `offset`.
fn runs(mut offset: u64, chunks: Vec<Bytes>) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut joined_bytes = 0;
    for mut chunk in chunks {
        while !chunk.is_empty() {
            let bytes = chunk.split_to(chunk.len().min(REQUEST_BYTES_MAX));
            let (at, len) = (offset, bytes.len());
            offset += len as u64;
            if len > JOINED_BYTES_MAX {
                runs.push(Run::One(at, bytes));
                continue;
            }
            match runs.last_mut() {
                Some(Run::Joined(pieces)) if joined_bytes + len <= RUN_BYTES_MAX => {
                    joined_bytes += len;
                    pieces.push((at, bytes));
                }
                _ => {
                    joined_bytes = len;
                    runs.push(Run::Joined(vec![(at, bytes)]));
                }
            }
        }
    }
    for run in &mut runs {
        if let Run::Joined(pieces) = run
            && pieces.len() == 1
            && let Some((at, bytes)) = pieces.pop()
        {
            *run = Run::One(at, bytes);
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_written_in_requests_of_a_bounded_length() {
        let chunks = [0, 1, 100_000, 3, 4, 0, 20 << 20, 5].map(|len| Bytes::from(vec![7; len]));
        let (mut at, mut shape) = (1_000, Vec::new());
        for run in runs(at, chunks.to_vec()) {
            let pieces = match run {
                Run::One(offset, bytes) => vec![(offset, bytes)],
                Run::Joined(pieces) => pieces,
            };
            shape.push(pieces.len());
            for (offset, bytes) in pieces {
                assert_eq!(offset, at);
                assert!(bytes.len() <= REQUEST_BYTES_MAX && !bytes.is_empty());
                at += bytes.len() as u64;
            }
        }
        assert_eq!(at, 1_000 + 1 + 100_000 + 7 + (20 << 20) + 5);
        assert_eq!(shape, [1, 1, 2, 1, 1, 1, 1]);
        let many = runs(0, vec![Bytes::from_static(&[1; 60_000]); 100]);
        assert_eq!(many.len(), 2, "4 MiB at a time");
        assert!(runs(0, vec![Bytes::new()]).is_empty());
    }
}
