//! The log and the state machine of a Raft node, for openraft: on `forebay-wal` and `forebay-kv`.
//!
//! Consensus is openraft's; this crate stores the state that must not be lost. For services that replicate a state larger than
//! memory, and want one flush for many appends.
//!
//! | you want | use |
//! |---|---|
//! | entries, votes and what is committed and purged | [`RaftLog`], [`LogOptions`] |
//! | entries to change your data | [`Apply`] |
//! | the data, with the log id up to which they are applied | [`RaftStore`] |
//! | to read the data | [`RaftStore::keyspaces`] |
//! | to read it while entries are applied | [`until_memory`] |
//! | a snapshot sent to another node | [`RaftSnapshot::reader`], [`RaftStore::receive_snapshot`], [`SnapshotPart`] |
//! | an orderly end | [`RaftLog::close`], [`RaftStore::close`] |
//!
//! # Features
//!
//! The crate has no features. openraft's are yours to choose: depend on the same version of it.
//!
//! # Guides
//!
//! - [Raft](https://github.com/forebay-rs/forebay/blob/main/docs/raft.md): what is durable when, what a crash leaves, snapshots, settings, space
//! - [The log](https://github.com/forebay-rs/forebay/blob/main/docs/wal.md) and [the store](https://github.com/forebay-rs/forebay/blob/main/docs/kv.md) below

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

mod apply;
mod codec;
mod current;
mod error;
mod flushes;
mod log;
mod memory;
#[cfg(feature = "_mutants")]
#[doc(hidden)]
pub mod mutants;
mod options;
mod reader;
mod snapshot;
mod store;
mod tree;

pub use apply::Apply;
pub use error::{Error, ErrorKind, Result};
pub use log::RaftLog;
pub use memory::until_memory;
pub use options::LogOptions;

/// Commits that wait for the state machine: minutes of them, as each is a group of entries. A waiting commit occupies some hundred
/// bytes.
const COMMITS_MAX: u64 = 1 << 20;

/// Returns openraft's default settings, except for `enable_leader_restore` and `state_machine_channel_size`. Start from it instead
/// of `openraft::Config::default()`.
///
/// With that setting on, which is openraft's default, a node that led before it was started again leads immediately, without an
/// election. It must know then what it had committed, and it does not: [`RaftStore`] flushes nothing when it applies an entry,
/// and [`RaftLog`] writes the committed log id with the next append. Its linearizable reads are stale until it has learned it. It
/// also reuses the log ids of entries that it had sent before they were durable here, and nodes diverge.
///
/// `state_machine_channel_size` is the number of commits that may wait for the state machine, which may wait for memory
/// ([`until_memory`]). With more of them the node does not vote, appends nothing, and does not end; openraft's default is 1,024,
/// here it is 1,048,576.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = openraft::Config { heartbeat_interval: 100, ..forebay_raft::config() }.validate()?;
/// assert_eq!(config.enable_leader_restore, Some(false));
/// # Ok(()) }
/// ```
pub fn config() -> openraft::Config {
    openraft::Config {
        enable_leader_restore: Some(false),
        state_machine_channel_size: Some(COMMITS_MAX),
        ..openraft::Config::default()
    }
}
pub use snapshot::{RaftSnapshot, SnapshotPart, SnapshotReader, SnapshotReceiver};
pub use store::RaftStore;
pub use tree::SnapshotFile;

use forebay::_is_broken as is_broken;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/raft.md")]
struct Manual;
