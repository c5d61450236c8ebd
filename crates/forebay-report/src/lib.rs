//! Results of the program `forebay`: the document, its page and summary, and the comparison of two of them.
//!
//! Everything here is pure: JSON in, text out. `forebay-measure` makes the documents, and the program in `forebay-cli`
//! reads and writes the files.

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

pub mod check;
pub mod environment;
pub mod failure;
pub mod findings;
pub mod page;
pub mod result;
pub mod saved;
#[cfg(test)]
mod schema_tests;
pub mod units;
