//! A write-ahead log that never lies.
//!
//! Records are appended in groups, with one write and one flush per group; an append resolves when its record
//! is durable. After a crash [`Wal::open`] returns every acknowledged record, in order, or reports which are
//! lost and where: it never opens silently with less. The manual page `docs/wal-format.md` describes the
//! bytes on disk, and why recovery may draw its conclusions.

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
