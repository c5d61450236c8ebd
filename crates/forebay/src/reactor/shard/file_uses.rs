//! Files of a shard: entries of its account's table.

use std::sync::Arc;

use crate::driver::Route;
use crate::io::op::OpResult;
use crate::reactor::account::file_table::FileTarget;
use crate::reactor::open_file::FileCore;
use crate::reactor::shard::Shard;

impl Shard {
    /// Returns the file's entry on this shard, with one more use. [`stage`](Shard::stage) takes over the use.
    #[inline]
    pub(crate) fn enter_file(&self, core: &Arc<FileCore>) -> OpResult {
        let register = |index, fd, route: Route| {
            let registration = self.driver.with(|driver| driver.register_file(index, fd, route));
            if registration.is_news {
                // Checked before the next submission.
                self.known_regions.set(0);
            }
            registration
        };
        let entered = self.account.with(|account| account.files.enter(core, register));
        entered.map_err(|error| error.refuse(core))
    }

    /// As [`enter_file`](Self::enter_file) for an entry that is in use.
    #[inline]
    pub(crate) fn enter_file_again(&self, file: u32) {
        self.account.with(|account| account.files.enter_again(file));
    }

    /// Returns the properties of an entry's file that a submission needs.
    #[inline]
    pub(crate) fn file_target(&self, file: u32) -> Option<FileTarget> {
        self.account.with(|account| account.files.target(file))
    }

    /// Returns the file of an entry.
    pub(crate) fn file_core(&self, file: u32) -> Option<Arc<FileCore>> {
        self.account.with(|account| account.files.core(file))
    }

    /// Undoes [`enter_file`](Self::enter_file).
    pub(crate) fn leave_file(&self, file: u32) {
        if self.account.with(|account| account.leave(file)) {
            self.remove_file(file);
        }
    }

    #[cold]
    pub(super) fn may_load(&self, file: u32) -> bool {
        self.file_target(file).is_some_and(|target| target.may_load)
    }

    #[cold]
    pub(super) fn may_refuse_direct(&self, file: u32) -> bool {
        self.file_core(file).is_some_and(|core| core.may_refuse_direct())
    }

    /// Has the requests of a staged operation's file go through the page cache.
    #[cold]
    pub(super) fn leave_direct(&self, index: u32) {
        if let Some(core) = self.file_core(self.ops.with(|ops| ops.table.slot(index).file)) {
            core.leave_direct();
        }
    }
}
