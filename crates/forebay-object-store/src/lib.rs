//! An [`object_store`](https://docs.rs/object_store) for local files on [Forebay](forebay): many ranges as one batch, reads that use the
//! page cache where it has the bytes and the device where not, and puts that are durable when they return.
//!
//! [`ForebayStore`] takes the place of object_store's `LocalFileSystem`, for DataFusion, parquet, Lance and others.

mod attributes;
mod directories;
mod failure;
mod finish;
mod handles;
mod list;
mod location;
mod names;
mod options;
mod read;
mod store;
mod versions;
mod write;

pub use options::{ForebayStoreBuilder, PutDurability, ReadPolicy};
pub use store::ForebayStore;
