//! What programs hold: handles of an open store, and what these return.

pub(crate) mod batch;
pub(crate) mod changes;
pub(crate) mod checkpoint;
pub(crate) mod ingest;
pub(crate) mod keyspace;
pub(crate) mod load;
pub(crate) mod open;
pub(crate) mod range;
pub(crate) mod snapshot;
pub(crate) mod sorted_file;
pub(crate) mod store;
pub(crate) mod transaction;
pub(crate) mod verify;

use std::sync::Arc;

use crate::engine::recover::Recovery;
use crate::engine::shared::StoreCore;

/// State shared by all clones, keyspaces and snapshots; dropping the last reference closes the store.
pub(crate) struct Handle {
    pub(crate) shared: Arc<StoreCore>,
    /// Distinguishes the store from others.
    pub(crate) number: u64,
    recovery: Recovery,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.begin_close();
    }
}
