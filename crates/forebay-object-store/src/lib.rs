//! An [`object_store`](https://docs.rs/object_store) for local files on [Forebay](forebay): many ranges as one batch, reads that use the
//! page cache where it has the bytes and the device where not, and puts that are durable when they return.
//!
//! [`ForebayStore`] replaces object_store's `LocalFileSystem`, for DataFusion, parquet, Lance and others.

// A library neither panics on bad input or failed I/O, nor prints, nor ends the program. Tests may.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::exit
    )
)]

mod abandoned;
mod attributes;
mod directories;
mod failure;
mod finish;
mod handles;
mod line;
mod list;
mod location;
mod locks;
#[cfg(feature = "_mutants")]
#[doc(hidden)]
pub mod mutants;
mod names;
mod options;
mod read;
mod store;
mod versions;
mod write;

pub use options::ForebayStoreBuilder;
pub use store::ForebayStore;

/// Returns whether a fault is put in on purpose; never outside of this crate's own tests.
macro_rules! is_broken {
    ($mutant:ident) => {{
        #[cfg(feature = "_mutants")]
        let is_on = crate::mutants::Mutant::$mutant.is_on();
        #[cfg(not(feature = "_mutants"))]
        let is_on = false;
        is_on
    }};
}
use is_broken;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeCode;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/object-store.md")]
struct GuideCode;
