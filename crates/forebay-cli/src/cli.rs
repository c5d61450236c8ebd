//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::kv::KvCommand;
use crate::measure::amplification::AmplificationOptions;
use crate::measure::blocking::BlockingOptions;
use crate::measure::random::RandomOptions;
use crate::measure::scan::ScanOptions;
use crate::measure::wal::WalOptions;
use crate::measure::walk::WalkOptions;
use crate::measure::writes::WritesOptions;
use crate::wal::WalCommand;

/// What a storage path can do, and what programs really get from it.
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
#[command(after_help = "Exit codes: 0 done; 1 something failed; 2 wrong usage; 3 the path cannot be used; \
    4 the path is not suitable (no space, no direct I/O, file too small); 128+N ended by signal N.")]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say what is under a path and which of Forebay's mechanisms work there.
    Doctor(DoctorArgs),
    /// Measure one way of using storage.
    #[command(subcommand)]
    Measure(Measure),
    /// Run doctor and all measurements, and write one HTML page.
    Report(ReportArgs),
    /// Look at a write-ahead log, verify it, or save what a damaged one still holds.
    #[command(subcommand)]
    Wal(WalCommand),
    /// Read, write, load, verify and compact a key-value store.
    #[command(subcommand)]
    Kv(KvCommand),
    /// One sample in a process of its own; the experiments start the program with it.
    #[command(name = crate::measure::CHILD_SUBCOMMAND, hide = true)]
    MeasureChild {
        /// What to do, as the parent process wrote it.
        job: String,
    },
}

/// The experiments.
#[derive(Debug, Subcommand)]
pub(crate) enum Measure {
    /// Read a file from its beginning to its end, in several ways.
    Scan(MeasureArgs<ScanOptions>),
    /// Read blocks at random places, in several ways.
    Random(MeasureArgs<RandomOptions>),
    /// Make records durable from a Tokio runtime, idle and busy, in several ways.
    Wal(MeasureArgs<WalOptions>),
    /// Append batches to the log from tasks that block, that use spawn_blocking, or that await.
    Blocking(MeasureArgs<BlockingOptions>),
    /// Look keys up in an index on the device, each a chain of dependent reads, in several ways.
    Walk(MeasureArgs<WalkOptions>),
    /// Write blocks at random, with and without the time for open, sync and close.
    Writes(MeasureArgs<WritesOptions>),
    /// Read pieces of less than a page from one file and from many: what the device reads for them.
    Amplification(MeasureArgs<AmplificationOptions>),
}

/// Options of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// A directory (a temp file is made there and removed), a file or a block device (only read).
    #[arg(default_value = ".")]
    pub(crate) path: PathBuf,
    /// Print JSON instead of lines.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of every experiment, around its own.
#[derive(Debug, Args)]
pub(crate) struct MeasureArgs<Options: Args> {
    /// A directory (a temp file is written there and removed), or an existing file or block device (only
    /// read).
    #[arg(default_value = ".")]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) options: Options,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options that experiments and the report share.
#[derive(Debug, Args)]
pub(crate) struct CommonArgs {
    /// Smaller files and fewer repeats; `report --quick` ends within 90 seconds.
    #[arg(long)]
    pub(crate) quick: bool,
    /// The seed of file contents and offsets; without it every run takes a new one, and says which.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
    /// Say nothing about progress.
    #[arg(long)]
    pub(crate) quiet: bool,
    /// First of two permissions to REPLACE THE CONTENTS of the file or device that was named.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Second of two permissions to REPLACE THE CONTENTS of the file or device that was named.
    #[arg(long)]
    pub(crate) destroy_data: bool,
}

/// Options of `report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// A directory (temp files are written there and removed), or an existing file or block device (only
    /// read).
    #[arg(default_value = ".")]
    pub(crate) path: PathBuf,
    /// Where to write the page.
    #[arg(long, value_name = "FILE.html", default_value = "forebay-report.html")]
    pub(crate) out: PathBuf,
    /// Where to write all numbers as JSON; `-` prints them instead of the summary.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
