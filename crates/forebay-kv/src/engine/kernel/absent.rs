//! Stands in for walks inside the kernel without the feature `kernel` and on systems other than Linux.

use forebay::{Class, File};

use crate::engine::shared::StoreCore;
use crate::engine::stats::KernelStats;
use crate::error::Result;
use crate::options::Options;
use crate::table::{Hit, Lookup, OpenTables, walk_all};

pub(crate) struct KernelWalks;

#[derive(Clone, Copy)]
pub(crate) struct Plan;

impl KernelWalks {
    pub(crate) fn new(_: &Options, _: u64) -> KernelWalks {
        KernelWalks
    }

    pub(crate) fn plan(&self, _: &Lookup) -> Plan {
        Plan
    }

    /// Returns `None`: the kernel has not run the lookup, and the ordinary walk continues.
    pub(crate) fn descend(
        &self,
        _: &StoreCore,
        _: &mut Lookup,
        _: &File,
        _: &mut Plan,
    ) -> Option<Option<Hit>> {
        None
    }

    pub(crate) fn took(&self, _: Plan) {}

    /// Runs all lookups the ordinary way.
    pub(crate) async fn walk_all<'k, T>(
        &self,
        _: &StoreCore,
        lookups: Vec<(T, Lookup)>,
        files: &OpenTables,
        class: Class,
        key: impl Fn(&T) -> &'k [u8],
    ) -> Result<Vec<(T, Option<Option<Hit>>)>> {
        walk_all(lookups, files, class, key).await
    }

    /// Returns no walks, no fallbacks and no reason.
    pub(crate) fn stats(&self) -> KernelStats {
        KernelStats::default()
    }
}
