//! The lock of a file whose holes are kept: that of flock(2), and an OFD lock against programs that use fcntl(2).

use std::time::{Duration, Instant};

use forebay::{ErrorKind, File, Lock, Result};

/// Takes both locks, within about `patience`.
pub(super) async fn lock(file: &File, patience: Duration) -> Result<()> {
    let begin = Instant::now();
    file.lock_within(Lock::Exclusive, patience).await?;
    let locked = record_lock(file, Some(Lock::Exclusive), patience.saturating_sub(begin.elapsed())).await;
    if locked.is_err() {
        file.unlock().await?;
    }
    locked.map(|_| ())
}

/// Releases both locks.
pub(super) async fn unlock(file: &File) -> Result<()> {
    let released = record_lock(file, None, Duration::ZERO).await;
    file.unlock().await.and(released.map(|_| ()))
}

/// Returns whether another process has locked the file, by both locks.
pub(super) async fn is_locked(file: &File) -> Result<bool> {
    let is_free = match file.try_lock(Lock::Shared).await {
        Err(error) if error.kind() == ErrorKind::Locked => false,
        result => result.map(|()| true)?,
    };
    if is_free {
        return file.unlock().await.map(|()| false);
    }
    match record_lock(file, Some(Lock::Shared), Duration::ZERO).await {
        Err(error) if error.kind() == ErrorKind::Locked => Ok(true),
        Ok(true) => record_lock(file, None, Duration::ZERO).await.map(|_| false),
        // A system without OFD locks has the other one.
        other => other.map(|_| true),
    }
}

/// Takes an OFD lock, or releases it. Returns whether the system has such locks.
async fn record_lock(file: &File, lock: Option<Lock>, patience: Duration) -> Result<bool> {
    match file.record_lock(lock, patience).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(false),
        result => result.map(|()| true),
    }
}
