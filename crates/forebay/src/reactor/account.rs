//! Accounts of operations.

pub(crate) mod files;
