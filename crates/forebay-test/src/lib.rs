//! Parts that the tests of several crates share: counted allocations, a layer below that fails, calls that are kept unpolled, files of
//! directories at work, histories of transactions and of registers, worlds with random disks and faults, worlds of
//! one Raft node, text expositions of figures, processes that are killed or end with their test, machines for the nodes of a cluster,
//! and system calls that are refused or counted.
//!
//! It is a development dependency only and is not published.

pub mod allocations;
#[cfg(feature = "sim")]
pub mod below;
#[cfg(unix)]
pub mod children;
pub mod draw;
pub mod exposition;
#[cfg(feature = "sim")]
pub mod frozen;
pub mod history;
pub mod killed;
pub mod live_files;
#[cfg(all(feature = "cluster", target_os = "linux"))]
pub mod machines;
#[cfg(feature = "raft")]
pub mod raft_worlds;
#[cfg(feature = "cluster")]
pub mod registers;
#[cfg(target_os = "linux")]
pub mod system_calls;
#[cfg(feature = "sim")]
pub mod worlds;

/// Returns `parts` where the tests are asked for little, which limits the seeds of worlds too (`FOREBAY_SIM_SEEDS_MAX` is set), and 1
/// otherwise. A test that goes through a long table takes one row in so many.
pub fn one_in(parts: usize) -> usize {
    if std::env::var_os("FOREBAY_SIM_SEEDS_MAX").is_some() { parts } else { 1 }
}
