//! A key-value store with a hard memory budget.
//!
//! An LSM tree whose tables are immutable, bulk-loaded B+-trees, on Forebay's direct I/O and its log.
//! `docs/kv.md` is the manual; the manual page `docs/kv-format.md` describes the bytes of a table.

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

mod admission;
mod batch;
#[cfg(feature = "_breakage")]
#[doc(hidden)]
pub mod breakage;
mod budget;
mod cache;
mod checkpoint;
mod compact;
mod error;
#[cfg_attr(not(all(feature = "kernel", target_os = "linux")), path = "kernel/absent.rs")]
mod kernel;
mod keyspace;
mod load;
mod manifest;
mod memtable;
mod merge;
mod names;
mod node;
mod options;
mod range;
mod record;
mod signal;
mod snapshot;
mod store;
mod table;
mod turn;
mod value;
mod verify;
mod view;
mod wait;

pub use batch::Batch;
pub use error::{Error, ErrorKind, Result};
pub use keyspace::Keyspace;
pub use load::BulkLoad;
pub use options::Options;
pub use range::Range;
pub use snapshot::Snapshot;
pub use store::{
    Get, KeyspaceStats, LevelStats, MemoryStats, MultiGet, Opening, Recovery, Stats, Store, Swapped, Write,
};
pub use value::Value;
pub use verify::{Verified, verify, verify_with};
pub use wait::Answer;

// The examples of the pages use the core, the log and the store; this crate depends on all three.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct RootReadme;
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/kv.md")]
struct Manual;
