//! The command line.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use crate::kv::KvCommand;
use crate::output::JsonArgs;
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
    /// Measure a device and save a profile with which engines start.
    Calibrate(CalibrateArgs),
    /// Measure on this host for `measure --hosts`, which starts this command by ssh.
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
    /// Print completions of this command line for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print a manual page of all commands, in roff.
    Man,
}

/// Commands with which the program starts itself. They are not part of [`Cli`], so that neither help nor
/// suggestions, completions or the manual have them.
#[derive(Debug, Parser)]
pub(crate) enum OwnCommand {
    /// Run one sample in a process of its own; the experiments start the program with it.
    #[command(name = forebay_measure::CHILD_SUBCOMMAND)]
    MeasureChild {
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
    #[command(flatten)]
    pub(crate) json: JsonArgs,
}

/// One experiment and its command line. The registry supplies the subcommands.
#[derive(Debug)]
pub(crate) struct Measure {
    /// The experiment named on the command line.
    pub(crate) kind: Kind,
    /// Options common to all experiments.
    pub(crate) args: MeasureArgs,
    /// The matches from which the experiment reads its own options.
    pub(crate) matches: ArgMatches,
}

impl Subcommand for Measure {
    fn augment_subcommands(command: clap::Command) -> clap::Command {
        let of_kind = |kind: Kind| {
            let command = kind.augment(clap::Command::new(kind.name()));
            let is_flag = kind.name() == kind::JOBS.name();
            let command = if is_flag { command.long_flag(kind.name()) } else { command };
            // Last, because each set of options brings its own description of the command that
            // it belongs to.
            let command = MeasureArgs::augment_args(MeasurePath::augment_args(command));
            command.about(kind.about()).long_about(None::<&str>)
        };
        let unlisted = kind::unlisted().map(|kind| of_kind(kind).hide(true));
        let commands = ALL.iter().copied().chain([kind::JOBS]).map(of_kind).chain(unlisted);
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
    /// Never: the path has a default.
    pub(crate) fn path(&self) -> Result<PathBuf, clap::Error> {
        Ok(MeasurePath::from_arg_matches(&self.matches)?.path)
    }
}

/// The path of an experiment; a struct of its own, so that the help lists it before the experiment's own options.
#[derive(Debug, Args)]
struct MeasurePath {
    /// A directory (temp files are written there and removed), or an existing file or block device (only read);
    /// experiments that write need a directory.
    #[arg(default_value = ".")]
    path: PathBuf,
}

/// Options of every experiment, beside its own.
#[derive(Debug, Args)]
pub(crate) struct MeasureArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
}

/// Options that experiments and the report share.
#[derive(Debug, Args)]
pub(crate) struct CommonArgs {
    /// Smaller files and fewer repeats; `report --quick` ends within two minutes.
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
    /// The file for the figures; `-` prints them instead of the summary.
    #[arg(long, value_name = "FILE", default_value = "forebay-calibration.toml")]
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
    /// Measure nothing: make the page of saved results, of this program or of fio, IOR, mdtest or elbencho; of several, the first is
    /// compared with each other one.
    #[arg(long, value_name = "RESULT", num_args = 1.., conflicts_with_all = ["path", "json", "only", "quick", "seed", "overwrite", "destroy_data"])]
    pub(crate) from: Vec<PathBuf>,
    /// A result of `forebay wait --json` to include: how long a program waits.
    #[arg(long, value_name = "WAIT.json")]
    pub(crate) wait: Option<PathBuf>,
    /// The file for the page; `-` prints it instead of the summary.
    #[arg(long, value_name = "FILE", default_value = "forebay-report.html")]
    pub(crate) out: PathBuf,
    /// Print what five published texts claim, each beside this result (docs/reports.md).
    #[arg(long)]
    pub(crate) claims: bool,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
    /// Only these experiments, in the report's order
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = kind::parse_name)]
    pub(crate) only: Vec<Kind>,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Options with one name and several meanings, with the reason.
    const SEVERAL_MEANINGS: [(&str, &str); 5] = [
        ("depth", "reads in flight, one or a sweep; of a walk, the levels of its tree"),
        ("from", "a file (report), or a key (kv scan)"),
        ("load", "the work beside the measured, or a share of what the device can do (saturate)"),
        ("threads", "random has a number, others sweep several"),
        ("to", "a format (convert), a key (kv scan), or a directory (wal repair)"),
    ];

    fn collect(command: &clap::Command, all: &mut BTreeMap<String, BTreeMap<String, Vec<String>>>) {
        for arg in command.get_arguments() {
            let Some(name) = arg.get_long() else { continue };
            // The name of the value says its type.
            let (values, several) = (arg.get_value_names(), arg.get_value_delimiter());
            let meaning = format!("{values:?} {:?} {several:?}", arg.get_num_args());
            let commands = all.entry(name.to_owned()).or_default().entry(meaning).or_default();
            commands.push(command.get_bin_name().unwrap_or_default().to_owned());
        }
        command.get_subcommands().for_each(|command| collect(command, all));
    }

    #[test]
    fn an_option_means_the_same_in_every_command() {
        let (mut command, mut all) = (Cli::command(), BTreeMap::new());
        command.build();
        collect(&command, &mut all);
        for (name, meanings) in &all {
            let is_known = SEVERAL_MEANINGS.iter().any(|(known, _)| known == name);
            assert_eq!(meanings.len() > 1, is_known, "--{name}: {meanings:#?}");
        }
        assert!(all["json"].values().next().is_some_and(|commands| commands.len() > 20), "{all:?}");
    }

    #[test]
    fn every_experiment_has_its_own_options_and_the_common_ones() {
        for kind in ALL.iter().copied().chain(kind::unlisted()) {
            let cli = Cli::try_parse_from(["forebay", "measure", kind.name(), "/data", "--quick", "--json"]);
            let Ok(Cli { command: Command::Measure(measure) }) = cli else { panic!("{}", kind.name()) };
            assert_eq!(measure.kind.name(), kind.name());
            assert!(measure.args.json.is_stdout() && measure.args.common.quick);
            assert_eq!(measure.path().expect("it was given"), PathBuf::from("/data"));
        }
        let wrong = Cli::try_parse_from(["forebay", "measure", "walk", "--no-such-option"]);
        assert!(wrong.is_err_and(|error| error.kind() == ErrorKind::UnknownArgument));
    }
}
