//! What a read looks at: memtables and tables that belong together.

use std::sync::Arc;

use crate::manifest::version::Version;
use crate::memtable::{Found, Memtables};

/// The memtables and tables at some moment. Never changes, but for the active memtable, which grows.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) active: Arc<Memtables>,
    /// Newest first.
    pub(crate) sealed: Vec<Arc<Memtables>>,
    pub(crate) version: Arc<Version>,
}

impl View {
    /// The memtables, newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<Memtables>> {
        std::iter::once(&self.active).chain(&self.sealed)
    }

    /// The newest version of a key in a memtable that is not newer than `lsn`.
    pub(crate) fn in_memtables(&self, keyspace: u32, key: &[u8], lsn: u64) -> Option<Found> {
        self.memtables().find_map(|memtables| memtables.get(keyspace, key, lsn))
    }
}
