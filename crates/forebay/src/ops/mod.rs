//! The operations: the futures that calls on a handle return, and the capabilities built of single
//! operations.

// In this order the methods of `File` appear in its documentation.
pub(crate) mod read;
pub(crate) mod read_many;
pub(crate) mod write;
pub(crate) mod write_many;

pub(crate) mod scan;
pub(crate) mod walk;

pub(crate) mod append;
pub(crate) mod command_shard;

pub(crate) mod dir;
pub(crate) mod file_cache;
pub(crate) mod lent_op;
pub(crate) mod nop;
pub(crate) mod nvme;
pub(crate) mod stats_server;
pub(crate) mod submit;
