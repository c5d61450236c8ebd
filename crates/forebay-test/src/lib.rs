//! Drivers that the tests of several crates share: counted allocations, a layer below that fails, the n-th call that fails, calls that are
//! kept unpolled, files of directories at work, histories of transactions and of registers, worlds with random disks and faults, worlds of
//! one Raft node, text expositions of figures, processes that are killed, end with their test or lack something, machines for the nodes
//! of a cluster and their faults, system calls that are refused or counted, sweeps of the numbers that users choose, and figures of
//! benches for docs/results.
//!
//! It is for tests and benches only and is not published.

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
#[cfg(feature = "sim")]
pub mod nth_call;
pub mod ports;
#[cfg(feature = "raft")]
pub mod raft_worlds;
#[cfg(feature = "cluster")]
pub mod registers;
pub mod sweep;
#[cfg(target_os = "linux")]
pub mod system_calls;
#[cfg(feature = "sim")]
pub mod worlds;

use std::io::Write as _;

/// Appends a figure to the file in `FOREBAY_BENCH_ROWS`, which `scripts/bench --record` sets: the name of its file in docs/results
/// without `.csv`, the row, the figure, its unit, and its least and greatest value. Without the variable nothing is written.
///
/// # Errors
/// Those of the file.
pub fn record(file: &str, row: &str, figure: &str, unit: &str, spread: &str) -> std::io::Result<()> {
    let Some(path) = std::env::var_os("FOREBAY_BENCH_ROWS") else { return Ok(()) };
    let mut rows = std::fs::OpenOptions::new().append(true).create(true).open(path)?;
    writeln!(rows, "{file}\t{row}\t{figure}\t{unit}\t{spread}")
}

/// Returns the number in a variable of the environment, if it is set.
///
/// # Panics
/// If it is not a number.
pub fn number_from(variable: &str) -> Option<u64> {
    Some(std::env::var(variable).ok()?.parse().expect("a number"))
}

/// Returns `parts` in a short run (`FOREBAY_SIM_SEEDS_MAX` is set, which also limits the seeds of worlds), and 1 otherwise. A
/// test of a long table uses one row in `parts`.
pub fn one_in(parts: usize) -> usize {
    if std::env::var_os("FOREBAY_SIM_SEEDS_MAX").is_some() { parts } else { 1 }
}

/// Returns 1 in an optimised build, which `scripts/test --long` makes, and `parts` otherwise.
pub fn one_in_daily(parts: usize) -> usize {
    if cfg!(debug_assertions) { parts } else { 1 }
}
