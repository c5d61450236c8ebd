//! A key-value store with a hard memory budget: an LSM tree of immutable B+-trees over direct I/O.
//!
//! ```
//! use forebay::{Config, Engine};
//! use forebay_kv::{Options, Store};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! let engine = Engine::start(Config::new())?;
//! let store = Store::open(&engine, dir, Options::new().memory_bytes_max(64 << 20)).await?;
//! let users = store.keyspace("users").await?;
//! users.put("ada", "1815").await?; // resolves once it is durable; .wait() on a plain thread
//! let mut range = users.prefix("a");
//! while let Some(entry) = range.next().await {
//!     let (key, value) = entry?;
//!     println!("{key:?}: {} bytes", value.len());
//! }
//! # drop(range);
//! store.close().await?;
//! # Ok(()) }
//! ```
//!
//! For programs that embed a store with more data than memory in their process: services, indexes, metadata of larger systems. Gets
//! need no threads, writes are durable when they complete, and [`Options::memory_bytes_max`] bounds all memory of the store.
//!
//! | you want | use |
//! |---|---|
//! | to open a store | [`Store::open`], [`Options`] |
//! | keys of one kind apart from others | [`Store::keyspace`], [`Store::keyspaces`] |
//! | one value, or several at one moment | [`Keyspace::get`], [`Keyspace::multi_get`] |
//! | a durable change | [`Keyspace::put`], [`Keyspace::put_until`], [`Keyspace::delete`] |
//! | several changes, atomically | [`Batch`], [`Store::write`] |
//! | a change only if the value is still the same | [`Keyspace::compare_and_set`] |
//! | reads and changes together, unless another write conflicts | [`Store::transaction`], [`Store::transact`] |
//! | entries in order, in either direction | [`Keyspace::range`], [`Keyspace::prefix`], [`Keyspace::iter`], [`Range::rev`] |
//! | the store as it was at one moment | [`Store::snapshot`] |
//! | every write in order, as it becomes durable | [`Store::changes`] |
//! | sorted entries loaded fast | [`Keyspace::bulk_load`], [`Keyspace::loader`] |
//! | sorted files written elsewhere, ingested unchanged | [`SortedFile`], [`Store::ingest`] |
//! | background work done now | [`Store::flush`], [`Store::compact`], [`Store::settle`] |
//! | a copy that opens as a store | [`Store::checkpoint`] |
//! | to read a store of which nothing may change | [`Options::read_only`] |
//! | every byte read and checked | [`Store::verify`], [`verify()`] |
//! | counts, memory, levels | [`Store::stats`] |
//! | an orderly end | [`Store::close`] |
//!
//! # Features
//!
//! None is on by default.
//!
//! | feature | adds | needs |
//! |---|---|---|
//! | `stream` | `futures_core::Stream` for ranges | the crate futures-core |
//! | `zstd` | `Compression::Zstd` | a C compiler |
//! | `kernel` | `Options::kernel_walk`: table descents inside the kernel; Linux | a C compiler, make, pkg-config, and libelf and zlib with their headers |
//!
//! # Guides
//!
//! - [The store](https://github.com/forebay-rs/forebay/blob/main/docs/kv.md): durability, memory, space, errors, limits
//! - [The table format](https://github.com/forebay-rs/forebay/blob/main/crates/forebay-kv/FORMAT.md): the bytes on disk
//! - [Blocking](https://github.com/forebay-rs/forebay/blob/main/docs/modes.md#blocking): where a thread may wait, and the cost
//! - [Kernel walks](https://github.com/forebay-rs/forebay/blob/main/docs/kernel-walks.md): descents inside the kernel
//! - [Disasters of the field](https://github.com/forebay-rs/forebay/blob/main/docs/testing.md#disasters): and what log and store do about them

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
mod async_mutex;
mod budget;
mod cache;
mod engine;
mod error;
mod event;
mod handle;
mod manifest;
mod memtable;
mod merge;
#[cfg(feature = "_mutants")]
#[doc(hidden)]
pub mod mutants;
mod names;
mod node;
mod options;
mod record;
mod table;
mod value;
mod view;
mod wait;

pub use engine::commit::Write;
pub use engine::get::{Get, MultiGet};
pub use engine::recover::Recovery;
pub use engine::stats::{KeyspaceStats, LevelStats, MemoryStats, Stats};
pub use engine::swap::SwapOutcome;
pub use error::{Error, ErrorKind, Result};
pub use handle::batch::Batch;
pub use handle::changes::{ChangeSet, ChangedEntry, Changes};
pub use handle::ingest::{Ingest, IngestReport, IngestedFile};
pub use handle::keyspace::Keyspace;
pub use handle::load::BulkLoad;
pub use handle::open::OpenFuture;
pub use handle::range::Range;
pub use handle::snapshot::Snapshot;
pub use handle::sorted_file::{SortedFile, SortedFileInfo, SortedFileOptions};
pub use handle::store::Store;
pub use handle::transaction::{Isolation, Transaction, TransactionRange};
pub use handle::verify::{VerifyReport, verify, verify_with};
#[cfg(feature = "kernel")]
pub use options::KernelWalk;
pub use options::{Compression, FilterPolicy, Options};
pub use value::Value;
pub use wait::Pending;

use forebay::_is_broken as is_broken;

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
