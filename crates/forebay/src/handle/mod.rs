//! The handles that programs hold: engines and files.

pub(crate) mod engine;
pub(crate) mod file;
pub(crate) mod open;
