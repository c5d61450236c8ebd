//! Locks on whole files.

use super::File;
use crate::base::pending::Pending;
use crate::driver::meta::{self, Lock, MetaRequest};

impl File {
    /// Takes a lock on the whole file without waiting. The lock belongs to this open file and all its
    /// handles, and is released with the last of them (flock(2)). It binds only programs that request it too.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`](crate::ErrorKind::Locked) if another holder has a conflicting lock.
    ///
    /// ```
    /// # use forebay::{Config, Engine, ErrorKind, Lock, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::default())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// file.try_lock(Lock::Exclusive).wait()?;
    /// let other = engine.open(dir.path().join("data"), Open::write()).wait()?;
    /// let refused = other.try_lock(Lock::Shared).wait();
    /// assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::Locked));
    /// file.unlock().wait()?;
    /// other.try_lock(Lock::Shared).wait()?;
    /// # Ok(()) }
    /// ```
    pub fn try_lock(&self, lock: Lock) -> Pending<()> {
        self.ask(MetaRequest::TryLock { file: self.owner(), lock }, meta::done)
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// Those of flock(2).
    pub fn unlock(&self) -> Pending<()> {
        self.ask(MetaRequest::Unlock { file: self.owner() }, meta::done)
    }
}
