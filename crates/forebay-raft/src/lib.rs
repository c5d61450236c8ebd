//! The log and the state machine of a Raft node, for openraft: on `forebay-wal` and `forebay-kv`.
//!
//! No consensus of its own: openraft decides, and this crate keeps what it must not forget.
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
pub use options::LogOptions;
pub use snapshot::{RaftSnapshot, SnapshotPart, SnapshotReader, SnapshotReceiver};
pub use store::RaftStore;
pub use tree::SnapshotFile;

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
