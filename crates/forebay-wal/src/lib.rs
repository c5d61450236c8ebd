//! A write-ahead log with group commit over direct I/O, which names lost records.
//!
//! ```
//! use forebay::{Config, Engine};
//! use forebay_wal::{Options, Wal};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! let engine = Engine::start(Config::new())?;
//! let (wal, recovery) = Wal::open(&engine, dir, Options::new()).await?; // recovery: the records found and lost
//! let lsn = wal.append(b"a record").await?; // resolves once it is durable; .wait() on a plain thread
//! let mut reader = wal.read_from(lsn);
//! while let Some(record) = reader.next().await {
//!     println!("{} bytes, {} records before", record?.len(), recovery.last);
//! }
//! wal.close().await?;
//! # Ok(()) }
//! ```
//!
//! For programs that must not lose what they acknowledged: databases, queues, consensus. Records are appended in
//! groups, with one write and one flush a group. After a crash [`Wal::open`] returns every acknowledged record, in
//! order, or reports which are lost and where. The few kinds of damage by others that no open can notice are in
//! [the format](https://github.com/forebay-rs/forebay/blob/main/crates/forebay-wal/FORMAT.md#detected-losses).
//!
//! | you want | use |
//! |---|---|
//! | to open a log, and know the records found and lost | [`Wal::open`], [`Recovery`] |
//! | a record durable before continuing | [`Wal::append`] |
//! | several records as a unit | [`Wal::append`], [`Batch`] |
//! | records queued now and durable later | [`Append::queued`], [`Wal::sync`] |
//! | records queued under a lock, without a wait | [`Wal::try_append`], [`Wal::room`] |
//! | a vote, an applied index: small values next to the records | [`Wal::set`], [`Batch::set`], [`Wal::value`] |
//! | to read from a record on | [`Wal::read_from`], [`Reader::follow`] |
//! | to read a range, also of records that are not durable yet | [`Wal::read`] |
//! | to wait for a record | [`Wal::wait_queued`], [`Wal::wait_durable`] |
//! | old or the newest records removed | [`Wal::truncate_before`], [`Wal::truncate_from`], [`Wal::reset_to`] |
//! | the loss of the newest records noticed | [`Wal::record_end`] |
//! | an orderly end | [`Wal::close`] |
//! | counts and times | [`Wal::stats`] |
//! | inspect a log that is not open, or repair a damaged log | `inspect::inspect`, `inspect::records`, `inspect::repair` (feature `inspect`) |
//!
//! # Features
//!
//! All are off by default.
//!
//! | feature | adds |
//! |---|---|
//! | `inspect` | the module `inspect`: the records and groups of a log that is not open, the result that an open would have, repair |
//!
//! # Guides
//!
//! - [The log](https://github.com/forebay-rs/forebay/blob/main/docs/wal.md): append, read, truncate, recover
//! - [The format](https://github.com/forebay-rs/forebay/blob/main/crates/forebay-wal/FORMAT.md): the bytes on disk, and why recovery may draw its conclusions
//! - [Blocking](https://github.com/forebay-rs/forebay/blob/main/docs/modes.md#blocking): where a thread may wait, and the cost
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

mod append;
mod batch;
mod end_file;
mod error;
mod format;
#[cfg(feature = "inspect")]
pub mod inspect;
mod loss;
mod lsn;
#[cfg(feature = "_mutants")]
#[doc(hidden)]
pub mod mutants;
mod open;
mod operation;
mod options;
mod queue;
mod read;
mod reader;
mod recover;
mod segment;
mod stats;
mod values;
mod wait;
mod wal;
mod writer;

pub use append::{Append, PendingAppend};
pub use batch::Batch;
pub use error::{Error, ErrorKind, Result};
pub use loss::Loss;
#[doc(hidden)]
pub use lsn::End;
pub use lsn::Lsn;
#[doc(hidden)]
pub use open::{Holders, make_dirs, parent_of, sync_name};
pub use operation::LogOperation;
#[doc(hidden)]
pub use options::Fill;
pub use options::Options;
pub use reader::{Reader, Record};
pub use recover::{Damage, Recovery};
pub use stats::{GroupWay, Stats};
pub use wal::Wal;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/wal.md")]
struct Manual;
