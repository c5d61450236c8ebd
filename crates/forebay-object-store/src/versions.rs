//! The versions of object_store.

#[cfg(feature = "object_store_013")]
mod v13;
mod v14;
