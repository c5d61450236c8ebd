//! The locks of names. A call that changes a name holds its lock from the check to the rename: in all processes that have the store's root
//! open.
//!
//! A lock is a flock(2) lock on one of a fixed number of hidden files in the root, chosen by the name's hash. The kernel releases
//! it with the process that held it. A lock file's modification time is the last time given to an object under the lock. Each
//! object that is put gets a later time, and different locks never give the same time: so no two objects of a store have the same
//! time, and no tag names two of them, despite deletes, copies, renames, reused inodes, and clock changes.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay::{Class, Durability, Engine, ErrorKind, File, Lock, Open, shard};
use futures_util::future::{Either, select, try_join};

use crate::attributes::{Attributes, MARK_NS, micros};
use crate::failure::{Failure, Result};
use crate::handles::{look_up, metadata_of};
use crate::is_broken;
use crate::line::{FirstPlace, LOCKS};
use crate::location;
use crate::store::StoreState;

/// How long a lock is waited for that no change of this process gets: that of a process that was stopped, and not killed, stays.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Attempts to acquire a lock whose file is removed meanwhile.
const TRIES_MAX: u32 = 100;

/// The locks of some names, until they are dropped.
pub(crate) struct NameLocks {
    /// At least one, in the order of their numbers.
    held: Vec<HeldLock>,
}

struct HeldLock {
    number: u64,
    /// `None`: the file does not exist, and this process may not create it.
    file: Option<File>,
    /// The next change is to find the file closed.
    _place: FirstPlace,
}

/// Runs a change of names under their locks, as a task of the engine's: one whose future the program keeps unpolled, or drops, holds up
/// no other one.
pub(crate) async fn under_locks<T, F>(
    shared: &Arc<StoreState>,
    class: Class,
    locations: &[String],
    change: impl FnOnce(Arc<StoreState>, NameLocks) -> F + Send + 'static,
) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + 'static,
{
    // In one order, so that two changes never wait for each other.
    let mut numbers: Vec<u64> = locations.iter().map(|location| number(location)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let (shared, engine) = (shared.clone(), shared.engine.clone());
    let shard = numbers.first().map_or(0, |number| *number as usize % engine.shard_count());
    let task = engine.spawn_on_shard(shard, class, move || async move {
        let mut held = Vec::with_capacity(numbers.len());
        for number in numbers {
            held.push(take(&shared, number).await?);
        }
        held.iter().for_each(|lock| shared.lines.count_change(lock.number));
        change(shared, NameLocks { held }).await
    });
    task.await?
}

impl NameLocks {
    /// Fails if a lock is not held because this process may not make its file.
    pub(crate) fn check(&self, path: &Path) -> Result<()> {
        match self.held.iter().find(|lock| lock.file.is_none()) {
            None => Ok(()),
            Some(lock) => Err(Failure::text(format!(
                "{} is not updated: the lock of its name is the file {} in the store's root, which this process can neither make nor open; \
                 make it, or let the process write in the root",
                path.display(),
                location::lock(lock.number)
            ))),
        }
    }

    /// Returns the first time, in microseconds, that a file may get which was written and has no name yet: its own, which the clock gave it,
    /// or a later one than the last under the lock.
    pub(crate) async fn first_time(&self, file: &File) -> Result<u64> {
        let lock = self.held.first().and_then(|lock| lock.file.as_ref());
        let last = async {
            match lock {
                Some(lock) => metadata_of(lock).await.map(|last| micros(&last) + 1),
                None => Ok(0),
            }
        };
        let (own, last) = try_join(metadata_of(file), last).await?;
        Ok(micros(&own).max(last))
    }

    /// Gives a file that was written and has no name yet its time of modification, `from_us` microseconds or a little more: later than that
    /// of all that had its name. Returns its attributes.
    ///
    /// # Errors
    /// With `is_exact`, also when the file system does not keep such a time.
    pub(crate) async fn stamp(
        &self,
        file: &File,
        path: &Path,
        from_us: u64,
        has_attributes: bool,
        is_exact: bool,
    ) -> Result<Attributes> {
        let Some(lock) = self.held.first() else { return Err(Failure::text("no name is locked")) };
        let time_us = time_of_lock(from_us, lock.number);
        let since_epoch =
            Duration::from_micros(time_us) + Duration::from_nanos(if has_attributes { MARK_NS } else { 0 });
        let Some(modified) = SystemTime::UNIX_EPOCH.checked_add(since_epoch) else {
            return Err(Failure::text(format!(
                "{} has a time of modification without an end",
                path.display()
            )));
        };
        let remembered = async {
            let Some(file) = &lock.file else { return Ok(()) };
            match file.set_modified(modified).await {
                // futimens(3): the file of another user. Then only the clock distinguishes a deleted object from its successor.
                Err(error) if error.kind() != ErrorKind::PermissionDenied => Err(error),
                _ => Ok(()),
            }
        };
        let (stamped, ()) = try_join(file.set_modified(modified), remembered).await?;
        if is_exact && stamped.modified() != Some(modified) {
            return Err(Failure::text(format!(
                "{} is not put: its file system does not keep the time of a change to 100 nanoseconds, which updates and attributes \
                 need; move the store to one that does",
                path.display()
            )));
        }
        Ok(Attributes::of(&stamped))
    }
}

/// Returns whether the rest of a file's metadata is to be synced once more after its time was set.
pub(crate) fn syncs_all(durability: Durability, has_attributes: bool) -> bool {
    match durability {
        Durability::None => false,
        Durability::All => true,
        _ => has_attributes && !is_broken!(AttributesNotSynced),
    }
}

/// Acquires a lock.
///
/// # Errors
/// [`Failure::Locked`] when another process does not give it back.
async fn take(shared: &StoreState, number: u64) -> Result<HeldLock> {
    let path = shared.root.join(location::lock(number));
    let taken = async {
        let place = shared.lines.enter(number).await;
        let file = take_file(&shared.engine, &path).await?;
        Ok::<_, Failure>(HeldLock { number, file, _place: place })
    };
    let mut taken = pin!(taken);
    let mut changes = shared.lines.changes(number);
    loop {
        match select(taken.as_mut(), pin!(shard::sleep(PATIENCE))).await {
            Either::Left((taken, _)) => return taken,
            Either::Right((slept, _)) => slept?,
        }
        // A line within this process may be long. It does not move while its head waits in vain.
        let known = std::mem::replace(&mut changes, shared.lines.changes(number));
        if known == changes {
            return Err(is_held(&path));
        }
    }
}

async fn take_file(engine: &Engine, path: &Path) -> Result<Option<File>> {
    for _ in 0..TRIES_MAX {
        let Some((file, is_locked)) = open(engine, path).await? else { return Ok(None) };
        let locked = if is_locked { Ok(()) } else { file.lock_within(Lock::Exclusive, PATIENCE).await };
        match locked {
            Ok(()) => {}
            // A network file system without locks, or whose locks want what another user's file does not allow: as one that is not there.
            Err(error) if error.kind() == ErrorKind::Unsupported || is_without_locks(&error) => {
                return Ok(None);
            }
            Err(error) if error.kind() == ErrorKind::Locked => return Err(is_held(path)),
            Err(error) => return Err(error.into()),
        }
        // Another program may have removed it, so that others lock another one. Some file systems count no names.
        if !file.is_removed()? || is_named(engine, &file, path).await? {
            return Ok(Some(file));
        }
    }
    Err(Failure::Locked(format!(
        "the lock {} was removed {TRIES_MAX} times while it was taken: end the program that removes it, then try again",
        path.display()
    )))
}

fn is_held(path: &Path) -> Failure {
    Failure::Locked(format!(
        "a process has held the lock {} for {} seconds: it is stopped, or its disk is; resume it or end it, then try again",
        path.display(),
        PATIENCE.as_secs()
    ))
}

/// Returns whether `path` is the name of an open file.
pub(crate) async fn is_named(engine: &Engine, file: &File, path: &Path) -> Result<bool> {
    let own = metadata_of(file).await?;
    let found = look_up(engine, path).await;
    Ok(found.is_ok_and(|found| (found.device(), found.inode()) == (own.device(), own.inode())))
}

/// Returns whether NFS said so: its service of locks is not there, or it wants a descriptor for writing.
fn is_without_locks(error: &forebay::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOLCK | libc::EBADF))
}

/// Opens a lock file, and takes its lock if it is free. A failure to create it is not a reason to refuse a change: on a full disk objects
/// are deleted.
async fn open(engine: &Engine, path: &Path) -> Result<Option<(File, bool)>> {
    let is_refused = |error: &forebay::Error| {
        use ErrorKind::{NoSpace, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
        matches!(error.kind(), NoSpace | NotADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem)
    };
    // Others may lock it too.
    match engine.open_locked(path, Open::create().permissions(0o666).buffered(), Lock::Exclusive).await {
        Err(error) if is_refused(&error) => {}
        opened => return Ok(Some(opened?)),
    }
    match engine.open_locked(path, Open::read().buffered(), Lock::Exclusive).await {
        Err(error) if is_refused(&error) => Ok(None),
        opened => Ok(Some(opened?)),
    }
}

/// Returns the number of the lock of a name.
fn number(location: &str) -> u64 {
    // FNV-1a: the same in each build, independent of the standard library.
    let hash = location.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // Mixed: the last letter of a name changes few of the upper bits, and the numbered names of a table had one lock.
    (hash ^ hash >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - LOCKS.ilog2())
}

/// Returns the first time, in microseconds, that is not before `from_us` and that belongs to a lock.
fn time_of_lock(from_us: u64, number: u64) -> u64 {
    from_us.saturating_add((number + LOCKS - from_us % LOCKS) % LOCKS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn times_of_locks_differ() {
        for from_us in [0, 1, 63, 64, 1_000_000_007] {
            for number in 0..LOCKS {
                let time_us = time_of_lock(from_us, number);
                assert!((from_us..from_us + LOCKS).contains(&time_us));
                assert_eq!(time_us % LOCKS, number);
            }
        }
    }

    /// Processes of different builds have to agree.
    #[test]
    fn numbers_stay_as_they_are() {
        assert_eq!(["", "d/0", "d/1", "d/2"].map(number), [33, 45, 18, 54]);
        let numbered: BTreeSet<u64> = (0..1000).map(|name| number(&format!("object/{name:06}"))).collect();
        assert_eq!(numbered.len() as u64, LOCKS);
    }
}
