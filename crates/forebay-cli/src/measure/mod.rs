//! The experiments: `scan` reads a file from beginning to end, `random` reads blocks anywhere in it, `wal` and
//! `blocking` make records durable, `walk` looks up in an index, `writes` writes blocks at random, `sustain` keeps one
//! load up, `amplification` reads small pieces, `files` handles many small files.
//!
//! The first two make (or only read) one file ([`subject`]), find out how a sample can begin cold and with little memory
//! ([`cold`], [`cgroup`], [`residency`]), and run every sample in a fresh child process ([`sampler`], [`child`]), the
//! rows in turn within each repeat. [`std_rows`] and [`forebay_rows`] hold the ways of reading themselves.
//! The first two can run on several hosts at once ([`hosts`]), whose samples begin together ([`startline`]).
//! Those that append ([`wal`]) have a directory of their own for each sample instead, and lookups ([`walk`]) a file with
//! an index. [`saturate`] and [`cpu`] read one file with many readers ([`reads`]); the last four have a directory ([`home`]) with a file, or with many ([`planted`]).

pub(crate) mod hosts;
pub(crate) mod kind;

mod aligned;
mod amplification;
mod beneath;
mod blocking;
mod cgroup;
mod child;
mod cold;
mod cpu;
mod extents;
mod files;
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
mod planted;
mod random;
pub(crate) mod reads;
mod residency;
mod sampler;
mod saturate;
mod scan;
mod span;
mod startline;
mod std_rows;
mod subject;
mod sustain;
mod turns;
mod units;
mod wal;
mod walk;
mod witness;
mod writes;

/// The name of the hidden subcommand with which the program starts itself for one sample; it has one argument, which
/// goes to [`run_child`].
pub(crate) const CHILD_SUBCOMMAND: &str = "__measure-child";

/// What a histogram of a row holds: times in microseconds, ascending, each with its count. Empty when the text is none.
pub(crate) fn counts_us(histogram: &str) -> Vec<(f64, u64)> {
    latency::counts_us(histogram)
}

/// A histogram as a row has it.
#[cfg(test)]
pub(crate) fn histogram_of(times: &[std::time::Duration]) -> String {
    let mut latency = latency::Latency::new().expect("a few kilobytes");
    times.iter().for_each(|time| latency.record(*time));
    latency.to_text().expect("it has a text")
}

/// Runs one sample and returns the line to print on standard output; with `start_line` it begins when it is told to.
///
/// # Errors
/// The text is not one that this program wrote, or the sample failed; the message goes to standard error and the exit
/// code is not zero.
pub(crate) fn run_child(job: &str, start_line: bool) -> anyhow::Result<String> {
    child::run(job, start_line)
}
