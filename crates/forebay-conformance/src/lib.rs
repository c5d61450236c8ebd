//! The promises of the crate `forebay` that hold for every driver, as cases that anyone can run.
//!
//! [`suite`] holds the cases. [`Env`] is the environment of one of them: an engine and a fresh directory. The cases use the public
//! interface only. So they show whether a program may rely on the documentation: on a new driver, on an untried kernel or file
//! system, and in the simulator. [`sequence`] follows random operations on an engine and on a model at the same time.
//!
//! To try a configuration, a kernel or a file system:
//!
//! ```
//! use forebay::Config;
//! use forebay_conformance::suite::{self, Verdict};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let base = tempfile::tempdir()?;
//! # let base = base.path();
//! let config = Config::new().shards(2);
//! for case in suite::cases().iter().filter(|case| case.name().starts_with("names::")) {
//!     if let Verdict::Skipped(why) = suite::run_at(case, &config, base)? {
//!         println!("{} was skipped: {why}", case.name());
//!     }
//! }
//! # Ok(()) }
//! ```
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

mod env;
pub mod sequence;
mod storage;
pub mod suite;

pub use env::{Env, Operation};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
