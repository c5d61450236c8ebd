//! Locks on whole files.

use super::File;
use crate::base::pending::Pending;
use crate::driver::meta::{self, Lock, MetaRequest};

impl File {
    /// Takes a lock on the whole file without waiting; it belongs to this open file and all its handles, and goes with
    /// the last of them (flock(2)). It binds only those who ask for it.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`](crate::ErrorKind::Locked) when another holder is in the way.
    pub fn try_lock(&self, lock: Lock) -> Pending<()> {
        self.ask(MetaRequest::TryLock { file: self.owner(), lock }, meta::done)
    }

    /// Gives the lock back.
    ///
    /// # Errors
    /// Those of flock(2).
    pub fn unlock(&self) -> Pending<()> {
        self.ask(MetaRequest::Unlock { file: self.owner() }, meta::done)
    }
}
