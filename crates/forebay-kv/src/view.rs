//! A consistent set of memtables and tables for reads, and the moment of a read.

use std::sync::Arc;

use crate::manifest::version::Version;
use crate::memtable::{KeyVersion, Memtables};

/// The memtables and tables at one moment. Immutable, except that the active memtable grows.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) active: Arc<Memtables>,
    /// Newest first.
    pub(crate) sealed: Vec<Arc<Memtables>>,
    pub(crate) version: Arc<Version>,
}

/// The moment as of which reads are made.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    pub(crate) view: Arc<View>,
    /// The newest record that they see.
    pub(crate) lsn: u64,
    /// The second since 1970 that decides which values have expired.
    pub(crate) now_s: u64,
}

impl View {
    /// Returns the memtables, newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<Memtables>> {
        std::iter::once(&self.active).chain(&self.sealed)
    }

    /// Returns the newest version of a key in the memtables that is not newer than `lsn`.
    pub(crate) fn in_memtables(&self, keyspace: u32, key: &[u8], lsn: u64) -> Option<KeyVersion> {
        self.memtables().find_map(|memtables| memtables.get(keyspace, key, lsn))
    }
}
