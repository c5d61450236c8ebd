//! The experiments: `baseline` measures the headline figures, `scan` reads a file from beginning to end, `random` reads blocks anywhere in it, `wal`
//! and `blocking` make records durable, `walk` looks up in an index, `writes` writes blocks at random,
//! `patterns` writes small pieces as they come and after gathering them, `sustain` keeps one load up,
//! `fairness` reads beside hogs, `amplification` reads small pieces, `files` handles many small files.
//!
//! The first two create (or only read) one file (`test_file`), find out how a sample can begin cold and
//! with little memory (`cold`, `cgroup`, `residency`), and run every sample in a fresh child process
//! (`sampler`), the rows in turn within each repeat. The first two can run on several hosts at once ([`hosts`]), whose
//! samples begin together (`start_barrier`). [`calibrate`] is no experiment: it records a device's figures in
//! a file. Those that append (`wal`) have a directory of their own for each sample instead, and lookups
//! (`walk`) a file with an index; `timers` are the other tasks beside both. `saturate` and `cpu`
//! read one file with many readers (`reads`), in the ways of `backend`; the last four have a directory (`scratch_dir`) with a file, or
//! with many (`file_set`).
//!
//! # Experiments of another program
//!
//! A program with experiments of its own implements [`experiment::Experiment`] and [`experiment::Plan`], lists them as
//! [`kind::Entry::New`], passes [`CHILD_SUBCOMMAND`] with its argument to [`run_child`], and runs a plan with
//! [`runner::run_apart`]. `forebay-versus` is such a program.

pub mod cleanup;
pub mod context;
pub mod doctor;
pub mod hosts;
pub mod kind;
pub mod output;
pub mod progress;

mod aligned;
mod amplification;
mod backend;
pub mod backing_device;
mod baseline;
pub mod calibrate;
pub mod cgroup;
mod cold;
mod commands;
mod cpu;
pub mod experiment;
mod extents;
mod fairness;
mod file_set;
mod files;
mod fio;
mod gates;
mod gauge;
mod io_limit;
pub mod job;
mod lanes;
mod latency;
pub mod options;
mod pace;
mod pattern;
mod patterns;
mod plan;
mod preconditions;
mod prelude;
mod random;
mod reads;
pub mod residency;
pub mod runner;
mod sampler;
mod saturate;
mod scan;
pub mod scratch_dir;
mod sentences;
mod start_barrier;
pub(crate) mod sustain;
mod system_counters;
mod test_file;
mod timers;
mod units;
#[cfg(test)]
mod verdicts;
mod wal;
mod walk;
pub(crate) mod writes;

pub use gauge::peak_resident_bytes;
pub use scan::prefault;
pub use test_file::check_space;

/// The name of the hidden subcommand with which the program starts itself for one sample; it has one argument, which
/// goes to [`run_child`].
pub const CHILD_SUBCOMMAND: &str = "__measure-child";

/// Runs one sample of an experiment of `registry`, such as [`kind::ALL`], and returns the line to print on standard output.
/// With `start_line` it begins at the
/// instant that it reads on standard input.
///
/// # Errors
/// Fails when the text is not one that this program wrote, or the sample failed. The message goes to
/// standard error and the exit code is not zero.
pub fn run_child(job: &str, start_line: bool, registry: &[kind::Entry]) -> anyhow::Result<String> {
    sampler::run_here(job, start_line, registry)
}
