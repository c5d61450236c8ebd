//! The experiments: `scan` reads a file from beginning to end, `random` reads blocks anywhere in it, `wal` and
//! `blocking` make records durable, `walk` looks up in an index, `writes` writes blocks at random,
//! `amplification` reads small pieces.
//!
//! The first two make (or only read) one file ([`subject`]), find out how a sample can begin cold and with little memory
//! ([`cold`], [`cgroup`], [`residency`]), and run every sample in a fresh child process ([`sampler`], [`child`]), the
//! rows in turn within each repeat. [`std_rows`] and [`forebay_rows`] hold the ways of reading themselves.
//! Those that append ([`wal`]) have a directory of their own for each sample instead, and lookups ([`walk`]) a file with
//! an index. [`home`], [`rounds`] and [`traffic`] are what the newer experiments share: their directory, the turns of
//! their cells, and the bytes that really moved.

pub(crate) mod kind;

mod aligned;
mod amplification;
mod beneath;
mod blocking;
mod cgroup;
mod child;
mod cold;
mod forebay_rows;
mod gauge;
mod home;
mod job;
mod latency;
mod pace;
mod pattern;
mod plan;
mod random;
mod residency;
mod rounds;
mod sampler;
mod scan;
mod span;
mod std_rows;
mod subject;
mod traffic;
mod units;
mod wal;
mod walk;
mod writes;

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
