//! The experiments of the program `forebay`, the runner of their samples, and the examination of a machine.
//!
//! - An experiment, or a part of one, implements [`experiment::Experiment`]; [`kind::ALL`] lists the experiments: one module
//!   and one line each. Its [`Spec`](experiment::Spec) has name, options, rows and columns as data; its
//!   [`Plan`](experiment::Plan) is one run.
//! - The [`runner`] runs the samples of all rows in turn, each in a separate process: the program starts itself with
//!   [`CHILD_SUBCOMMAND`], in which it calls [`run_child`] with its registry. Metrics, gates and tables are the runner's
//!   work. Another program has its own registry of [`kind::Entry`] values, and runs plans with [`runner::run_apart`].
//! - What experiments share: lanes on threads and tasks, a back end of calls at a queue depth, test files, cold starts
//!   under memory limits, counters and gauges.
//! - [`hosts`] runs an experiment on several hosts together, [`doctor`] examines machine and path, and [`calibrate`] records a
//!   device's figures.

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
pub mod claims;
mod cold;
mod collective;
mod commands;
mod entry;
pub mod experiment;
mod extents;
mod file_set;
mod files;
mod fio;
mod gates;
mod gauge;
mod io_limit;
pub mod job;
mod job_file;
mod jobs;
mod lanes;
mod latency;
pub mod options;
mod pace;
mod pattern;
mod plan;
mod preconditions;
mod prelude;
mod reads;
pub mod residency;
pub mod runner;
mod sampler;
mod samples;
mod scan;
pub mod scratch_dir;
mod sentences;
mod start_barrier;
mod system_counters;
mod test_file;
mod timers;
mod units;
#[cfg(test)]
mod verdicts;
mod wal;
mod walk;
pub(crate) mod writes;

use anyhow::Context as _;

pub use gauge::peak_resident_bytes;
pub use pattern::SplitMix;
pub use reads::CallCounter;
pub use scan::prefault;
pub use test_file::{check_space, write_direct};

/// The name of the hidden subcommand with which the program starts itself for one sample; it calls [`run_child`].
pub const CHILD_SUBCOMMAND: &str = "__measure-child";

/// Runs one sample of an experiment of `registry`, such as [`kind::parts`], and returns the line to print on standard output. Its job
/// is the first line of standard input. With `start_line` it starts at the instant in the second.
///
/// # Errors
/// Fails when the job was not written by this program, or the sample failed. The message is written to standard error and the exit
/// code is not zero.
pub fn run_child(start_line: bool, registry: &[kind::Entry]) -> anyhow::Result<String> {
    let job = sampler::job_here(&mut std::io::stdin().lock(), start_line)?;
    let Some(job) = job else { return Ok("{}".to_owned()) };
    let mut own = registry.iter().filter(|entry| entry.name() == job.experiment);
    own.next().context("a sample of an experiment that is not known")?.sample(&job)
}
