//! Where there are no walks inside the kernel: without the feature `kernel`, and off Linux.

use crate::options::Options;
use crate::store::shared::Shared;
use crate::table::{Found, Lookup};

pub(crate) struct KernelWalks;

impl KernelWalks {
    pub(crate) fn new(_: &Options, _: u64) -> KernelWalks {
        KernelWalks
    }

    /// What the lookup found: nothing, as it has not been to the kernel.
    pub(crate) fn descend(&self, _: &Shared, _: &mut Lookup) -> Option<Option<Found>> {
        None
    }

    /// Walks, those that fell back, and why there are none.
    pub(crate) fn stats(&self) -> (u64, u64, Option<String>) {
        (0, 0, None)
    }
}
