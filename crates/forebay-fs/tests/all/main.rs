//! The tests of `tokio::fs` by name, one module a subject.

mod common;
mod cursor;
mod differential;
mod lives;
mod names;
mod ranges;
mod signatures;
mod specials;
mod worlds;
