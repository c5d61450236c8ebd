//! The experiments: `scan` reads a file from beginning to end, `random` reads blocks anywhere in it, `wal` and
//! `blocking` make records durable, `walk` looks up in an index.
//!
//! The first two make (or only read) one file ([`subject`]), find out how a sample can begin cold and with little memory
//! ([`cold`], [`cgroup`], [`residency`]), and run every sample in a fresh child process ([`sampler`], [`child`]), the
//! rows in turn within each repeat. [`std_rows`] and [`forebay_rows`] hold the ways of reading themselves.
//! Those that append ([`wal`]) have a directory of their own for each sample instead, and lookups ([`walk`]) a file with
//! an index. [`saturate`] and [`cpu`] read one file with many readers ([`reads`]).

pub(crate) mod kind;

mod aligned;
mod beneath;
mod blocking;
mod cgroup;
mod child;
mod cold;
mod cpu;
mod extents;
mod forebay_rows;
mod gates;
mod gauge;
mod ground;
mod home;
mod job;
mod latency;
mod pace;
mod pattern;
mod plan;
mod random;
pub(crate) mod reads;
mod residency;
mod sampler;
mod saturate;
mod scan;
mod span;
mod std_rows;
mod subject;
mod turns;
mod units;
mod wal;
mod walk;
mod witness;

/// The name of the hidden subcommand with which the program starts itself for one sample; it has one argument, which
/// goes to [`run_child`].
pub(crate) const CHILD_SUBCOMMAND: &str = "__measure-child";

/// Runs one sample and returns the line to print on standard output.
///
/// # Errors
/// The text is not one that this program wrote, or the sample failed; the message goes to standard error and the exit
/// code is not zero.
pub(crate) fn run_child(job: &str) -> anyhow::Result<String> {
    child::run(job)
}
