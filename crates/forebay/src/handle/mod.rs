//! The handles that programs hold: engines and files.

#[cfg(target_os = "linux")]
mod adaptive;
pub(crate) mod engine;
pub(crate) mod file;
pub(crate) mod open;
