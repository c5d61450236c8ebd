//! Stands in for walks inside the kernel without the feature `kernel` and on systems other than Linux.

use crate::options::Options;
use crate::store::shared::Shared;
use crate::table::{Found, Lookup};

pub(crate) struct KernelWalks;

impl KernelWalks {
    pub(crate) fn new(_: &Options, _: u64) -> KernelWalks {
        KernelWalks
    }

    /// Returns `None`: the lookup has not been to the kernel, and the ordinary walk goes on.
    pub(crate) fn descend(&self, _: &Shared, _: &mut Lookup) -> Option<Option<Found>> {
        None
    }

    /// Returns no walks, no fallbacks and no reason.
    pub(crate) fn stats(&self) -> (u64, u64, Option<String>) {
        (0, 0, None)
    }
}
