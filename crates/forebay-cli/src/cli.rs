//! The command line.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, FromArgMatches, Parser, Subcommand};

use crate::kv::KvCommand;
use crate::saved::{AssertArgs, ConvertArgs, DiffArgs};
use crate::top::TopArgs;
use crate::wait::WaitArgs;
use crate::wal::WalCommand;
use forebay_measure::calibrate::CalibrateOptions;
use forebay_measure::hosts::agent::AgentArgs;
use forebay_measure::kind::{self, ALL, Kind};

/// Tests the I/O features of a storage path and measures the performance that programs get from it.
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
#[command(after_help = "Exit codes: 0 done; 1 something failed; 2 wrong usage; 3 the path cannot be used; \
    4 the path is not suitable (no space, no direct I/O, file too small); \
    5 this build or this user cannot do it; 128+N ended by signal N.")]
pub(crate) struct Cli {
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the storage under a path and the features of Forebay that work there.
    Doctor(DoctorArgs),
    /// Measure one way of using storage.
    #[command(subcommand)]
    Measure(Measure),
    /// Measure a device once and save its figures, with which engines start.
    Calibrate(CalibrateArgs),
    /// Serve one directory to a controller that measures on several hosts at once.
    Agent(AgentArgs),
    /// Run doctor and all experiments, and write one HTML page.
    Report(ReportArgs),
    /// Show the differences between two results that exceed the noise.
    Diff(DiffArgs),
    /// Check figures of a result: exit code 0 when all expressions hold, 1 when one does not.
    Assert(AssertArgs),
    /// Convert fio's JSON into this program's, and this program's into CSV.
    Convert(ConvertArgs),
    /// Run a command and show how long it waited for I/O, and for which files.
    Wait(WaitArgs),
    /// Show the activity of a running engine by class, device and file.
    Top(TopArgs),
    /// Inspect or verify a write-ahead log, or save the intact records of a damaged one.
    #[command(subcommand)]
    Wal(WalCommand),
    /// Read, write, load, verify and compact a key-value store.
    #[command(subcommand)]
    Kv(KvCommand),
    /// Measure for an agent; the agent starts the program with it.
    #[command(name = forebay_measure::hosts::WORKER_SUBCOMMAND, hide = true)]
    AgentWorker {
        /// The directory that the agent serves.
        directory: PathBuf,
    },
    /// Run one sample in a process of its own; the experiments start the program with it.
    #[command(name = forebay_measure::CHILD_SUBCOMMAND, hide = true)]
    MeasureChild {
        /// The job, as the parent process wrote it.
        job: String,
        /// Wait for the instant at which to begin.
        #[arg(long)]
        start_line: bool,
    },
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

/// One experiment and its command line. The registry supplies the subcommands.
#[derive(Debug)]
pub(crate) struct Measure {
    /// The experiment named on the command line.
    pub(crate) kind: &'static Kind,
    /// Options common to all experiments.
    pub(crate) args: MeasureArgs,
    /// The matches from which the experiment reads its own options.
    pub(crate) matches: ArgMatches,
}

impl Subcommand for Measure {
    fn augment_subcommands(command: clap::Command) -> clap::Command {
        let commands = ALL.iter().map(|kind| {
            let command = MeasurePath::augment_args(clap::Command::new(kind.name));
            // Last, because each set of options brings its own description of the command that
            // it belongs to.
            MeasureArgs::augment_args((kind.options)(command)).about(kind.about).long_about(None::<&str>)
        });
        command.subcommand_required(true).arg_required_else_help(true).subcommands(commands)
    }

    fn augment_subcommands_for_update(command: clap::Command) -> clap::Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        kind::find(name).is_some()
    }
}

impl FromArgMatches for Measure {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let missing = || clap::Error::new(ErrorKind::MissingSubcommand);
        let (name, matches) = matches.subcommand().ok_or_else(missing)?;
        Ok(Self {
            kind: kind::find(name).ok_or_else(missing)?,
            args: MeasureArgs::from_arg_matches(matches)?,
            matches: matches.clone(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Measure {
    /// Returns the path where the experiment works.
    ///
    /// # Errors
    /// None: there is a default.
    pub(crate) fn path(&self) -> Result<PathBuf, clap::Error> {
        Ok(MeasurePath::from_arg_matches(&self.matches)?.path)
    }
}

/// The path of an experiment; a struct of its own, so that the help lists it before the experiment's own options.
#[derive(Debug, Args)]
struct MeasurePath {
    /// A directory (temp files are written there and removed), or an existing file or block device (only read);
    /// experiments that write take a directory only.
    #[arg(default_value = ".")]
    path: PathBuf,
}

/// Options of every experiment, beside its own.
#[derive(Debug, Args)]
pub(crate) struct MeasureArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options that experiments and the report share.
#[derive(Debug, Args)]
pub(crate) struct CommonArgs {
    /// Smaller files and fewer repeats; `report --quick` ends within three minutes.
    #[arg(long)]
    pub(crate) quick: bool,
    /// The seed of file contents and offsets [default: a new one for each run, stored in the result]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
    /// Print no progress.
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Print all tables, with all of their columns.
    #[arg(long)]
    pub(crate) verbose: bool,
    /// First of two permissions to REPLACE THE CONTENTS of the file or device that was named.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Second of two permissions to REPLACE THE CONTENTS of the file or device that was named.
    #[arg(long)]
    pub(crate) destroy_data: bool,
}

/// Options of `calibrate`.
#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// A directory on the device (a temp file is written there and removed).
    #[arg(default_value = ".")]
    pub(crate) path: PathBuf,
    /// The file to write; `-` prints to standard output.
    #[arg(long, value_name = "FILE.toml", default_value = "forebay-calibration.toml")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) options: CalibrateOptions,
    /// A smaller file and less time: about five seconds.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print no progress.
    #[arg(long)]
    pub(crate) quiet: bool,
}

/// Options of `report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// A directory (temp files are written there and removed), or an existing file or block device (only
    /// read).
    #[arg(default_value = ".")]
    pub(crate) path: PathBuf,
    /// Measure nothing: make the page of a result that was saved with `--json`.
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["path", "json", "only", "quick", "seed", "overwrite", "destroy_data"])]
    pub(crate) from: Option<PathBuf>,
    /// A result of `forebay wait --json` to include: how long a program waits.
    #[arg(long, value_name = "WAIT.json")]
    pub(crate) wait: Option<PathBuf>,
    /// The file for the page.
    #[arg(long, value_name = "FILE.html", default_value = "forebay-report.html")]
    pub(crate) out: PathBuf,
    /// The file for all numbers as JSON; `-` prints them instead of the summary.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Only these experiments, in the report's order
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = kind::parse_name)]
    pub(crate) only: Vec<&'static Kind>,
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

    #[test]
    fn every_experiment_has_its_own_options_and_the_common_ones() {
        for kind in ALL {
            let cli = Cli::try_parse_from(["forebay", "measure", kind.name, "/data", "--quick", "--json"]);
            let Ok(Cli { command: Command::Measure(measure) }) = cli else { panic!("{}", kind.name) };
            assert_eq!(measure.kind.name, kind.name);
            assert!(measure.args.json && measure.args.common.quick);
            assert_eq!(measure.path().expect("it was given"), PathBuf::from("/data"));
        }
        let wrong = Cli::try_parse_from(["forebay", "measure", "walk", "--no-such-option"]);
        assert!(wrong.is_err_and(|error| error.kind() == ErrorKind::UnknownArgument));
    }
}
