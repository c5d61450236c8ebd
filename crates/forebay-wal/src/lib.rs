//! A write-ahead log that never lies.
//!
//! Records are appended in groups, one write and one flush a group; an append resolves when its record is
//! durable. After a crash [`Wal::open`] gives back every record that was acknowledged, in order, or says
//! which are lost and where: it never opens quietly with less. What the bytes on disk look like, and why
//! recovery may conclude what it concludes, is in the manual page `docs/wal-format.md`.

mod append;
mod appended;
#[cfg(feature = "_breakage")]
#[doc(hidden)]
pub mod breakage;
mod end;
mod error;
mod format;
pub mod inspect;
mod lost;
mod lsn;
mod open;
mod options;
mod queue;
mod reader;
mod recover;
mod segment;
mod stats;
mod wait;
mod wal;
mod writer;

pub use append::{Append, AppendBatch, AppendUnsynced, Close, Settled};
pub use appended::{Appended, Room};
pub use error::{Error, ErrorKind, Result};
pub use lost::Lost;
pub use lsn::{End, Lsn};
pub use open::Opening;
pub use options::Options;
pub use reader::{Reader, Record};
pub use recover::{Cut, Damage, Recovery};
pub use stats::{Distribution, Stats};
pub use wal::Wal;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/wal.md")]
struct Manual;
