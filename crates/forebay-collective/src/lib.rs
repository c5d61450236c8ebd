//! Many small writes of a file as few large writes: a write combiner for pieces at any offsets, and collective writes of many tasks
//! or processes.
//!
//! ```
//! use forebay::{Config, Durability, Engine, Open};
//! use forebay_collective::{Options, WriteCombiner};
//!
//! # fn main() -> forebay::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("table");
//! let engine = Engine::start(Config::new())?;
//! let file = engine.open(&path, Open::create()).wait()?;
//! let combiner = WriteCombiner::start(&file, Options::new().memory_bytes_max(4 << 20));
//! combiner.write(5_000, b"small").wait()?; // in memory
//! combiner.write(70, b"pieces").wait()?;
//! combiner.flush(Durability::Data).wait()?; // in the file, and durable
//! assert_eq!(&file.read(70..76).wait()?[..], b"pieces");
//! # Ok(()) }
//! ```
//!
//! | you want | use |
//! |---|---|
//! | small writes at any offsets merged into large writes | [`WriteCombiner`] |
//! | some of them before others | [`WriteCombiner::barrier`] |
//! | to write one file from many tasks, each the pieces between those of the others | [`Collective`] |
//! | to write and read one file from many processes, of one host or several | [`Ranks`], [`View`] |
//! | a limit for memory, the length and number of requests, a class, a deadline | [`Options`] |
//! | figures | [`WriteStats`] |
//!
//! [The guide](https://github.com/forebay-rs/forebay/blob/main/docs/collective.md) says which one suits which program.

#![forbid(unsafe_code)]
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

mod coalesce;
mod collective;
#[cfg(feature = "_mutants")]
#[doc(hidden)]
pub mod mutants;
mod options;
mod ranks;
#[doc(hidden)]
pub mod rendezvous;
mod view;
mod write_combiner;

pub use coalesce::WriteStats;
pub use collective::Collective;
pub use options::Options;
pub use ranks::Ranks;
pub use rendezvous::Rank;
pub use view::View;
pub use write_combiner::WriteCombiner;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/collective.md")]
struct Guide;
