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
