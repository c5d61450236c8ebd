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
