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
//! read one file with many readers (`reads`); the last four have a directory (`scratch_dir`) with a file, or
//! with many (`file_set`).

pub mod cleanup;
pub mod context;
pub mod doctor;
pub mod hosts;
pub mod kind;
pub mod output;
pub mod progress;

mod aligned;
mod amplification;
mod backing_device;
mod baseline;
mod blocking;
pub mod calibrate;
mod cgroup;
mod cold;
mod commands;
mod cpu;
mod experiment;
mod extents;
mod fairness;
mod file_set;
mod files;
mod fio;
mod gates;
mod gauge;
mod interleave;
mod io_limit;
mod job;
mod lanes;
mod latency;
mod options;
mod pace;
mod pattern;
mod patterns;
mod plan;
mod preconditions;
mod random;
pub(crate) mod reads;
pub(crate) mod residency;
mod runner;
mod sampler;
mod saturate;
mod scan;
mod scratch_dir;
mod start_barrier;
pub(crate) mod sustain;
mod system_counters;
mod test_file;
mod timers;
mod units;
pub(crate) mod verdicts;
mod wal;
mod walk;
pub(crate) mod writes;

/// The name of the hidden subcommand with which the program starts itself for one sample; it has one argument, which
/// goes to [`run_child`].
pub const CHILD_SUBCOMMAND: &str = "__measure-child";

/// Runs one sample and returns the line to print on standard output. With `start_line` it begins at the
/// instant that it reads on standard input.
///
/// # Errors
/// Fails when the text is not one that this program wrote, or the sample failed. The message goes to
/// standard error and the exit code is not zero.
pub fn run_child(job: &str, start_line: bool) -> anyhow::Result<String> {
    sampler::run_here(job, start_line)
}
