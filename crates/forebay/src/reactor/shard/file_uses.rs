//! Files of a shard: entries of its account's table.

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::driver::Route;
use crate::io::op::OpResult;
use crate::reactor::account::Account;
use crate::reactor::account::file_table::FileTarget;
use crate::reactor::open_file::FileCore;
use crate::reactor::shard::Shard;
use crate::reactor::shard::optable::Slot;

impl Shard {
    /// Returns the file's entry on this shard, with one more use. [`stage`](Shard::stage) owns the use.
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

    /// Returns the descriptor by which a read loads the page cache, if it does.
    #[inline(never)]
    pub(super) fn loading_view(&self, slot: &Slot, offset: u64, len: u32) -> Option<RawFd> {
        let range = offset..offset + u64::from(len);
        let find = |account: &mut Account| account.files.loading_view(slot.file, &range);
        slot.may_load().then(|| self.account.with(find)).flatten()
    }

    /// Adds a read that bypassed the page cache.
    #[inline(never)]
    pub(super) fn note_miss(&self, slot: &Slot, offset: u64, len: u32) {
        if slot.may_load() {
            let range = offset..offset + u64::from(len);
            self.account.with(|account| account.files.note_miss(slot.file, &range));
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

    /// Switches the requests of a staged operation's file to the page cache.
    #[cold]
    pub(super) fn leave_direct(&self, index: u32) {
        if let Some(core) = self.file_core(self.ops.with(|ops| ops.table.slot(index).file)) {
            core.leave_direct();
        }
    }
}
