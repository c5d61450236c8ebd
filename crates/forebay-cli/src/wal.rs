//! `forebay wal`: inspects a write-ahead log, verifies it, and saves the remaining records of a damaged one.
//!
//! Nothing here writes into the log's directory. Exit codes: 0 whole (`inspect`: shown), 1 damaged or
//! cut off, 2 unreadable.

mod inspection;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use forebay::{Config, Engine};
use forebay_wal::inspect::{Report, Verdict, inspect, repair};

use crate::output::{JsonArgs, print};
use forebay_measure::cleanup::Cleanup;
use forebay_report::failure::Failure;

/// The commands on logs.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Exit codes: 0 the log is whole (inspect: it was shown; repair: every record was saved); 1 it is \
        damaged, or bytes after its last good group were cut off; 2 it cannot be read or is in use, or there is no \
        log."
)]
pub(crate) enum WalCommand {
    /// Show segments, groups, record numbers and watermarks, and the outcome of opening the log.
    Inspect {
        #[command(flatten)]
        log: LogArgs,
        /// List every group too.
        #[arg(long)]
        groups: bool,
    },
    /// Check whether the log is whole; list the lost records and their position if not.
    Verify(LogArgs),
    /// Write every record that can be saved into a new log; the damaged one is only read.
    Repair {
        #[command(flatten)]
        log: LogArgs,
        /// The new log's directory: a new or an empty one, outside of the damaged log's.
        #[arg(long, value_name = "OUT")]
        to: PathBuf,
    },
}

/// Options of every command.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// The log's directory; it is only read.
    dir: PathBuf,
    #[command(flatten)]
    json: JsonArgs,
}

/// Exit code for a damaged or cut-off log, where a log is whole with code 0.
const DAMAGED: u8 = 1;

/// Runs a command. Every failure has the exit code 2, because code 1 is a result.
pub(crate) fn run(command: &WalCommand) -> anyhow::Result<ExitCode> {
    let is_whole = execute(command).map_err(Failure::data)?;
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) })
}

fn execute(command: &WalCommand) -> anyhow::Result<bool> {
    let (WalCommand::Inspect { log, .. } | WalCommand::Verify(log) | WalCommand::Repair { log, .. }) =
        command;
    let (json, cleanup) = (log.json.destination()?, Cleanup::default());
    let engine = Engine::start(Config::new().shards(1)).map_err(failure)?;
    match command {
        WalCommand::Inspect { groups, .. } => {
            let report = inspected(&engine, &log.dir)?;
            if json.write(|| inspection::inspected_json(&report, *groups), &cleanup)? {
                print(&inspection::inspected(&report, *groups))?;
            }
            Ok(true)
        }
        WalCommand::Verify(_) => {
            let (report, dir) = (inspected(&engine, &log.dir)?, log.dir.display());
            if report.in_use {
                return Err(failure(format!(
                    "{dir} is in use: close the log first, because the end of one that is written to looks unfinished"
                ))
                .into());
            }
            if let Verdict::Refused(error) = &report.verdict {
                return Err(failure(error).into());
            }
            if json.write(|| inspection::inspected_json(&report, false), &cleanup)? {
                print(&inspection::findings(&report))?;
            }
            if report.unreadable().next().is_some() {
                return Err(failure(format!(
                    "the drive cannot read all of {dir}; `forebay wal repair` saves the rest"
                ))
                .into());
            }
            Ok(report.is_whole())
        }
        WalCommand::Repair { to, .. } => {
            let repaired = repair(&engine, &log.dir, to).wait().map_err(failure)?;
            if json.write(|| inspection::repaired_json(&repaired), &cleanup)? {
                print(&inspection::repaired(&repaired))?;
            }
            // Damage that lost no record does not exist in the new log.
            let cut =
                repaired.before.recovery.as_ref().is_some_and(|recovery| recovery.truncated_at.is_some());
            Ok(!cut && repaired.before.lost_now.is_empty())
        }
    }
}

fn inspected(engine: &Engine, dir: &Path) -> Result<Report, Failure> {
    let report = inspect(engine, dir).wait().map_err(failure)?;
    match report.verdict {
        Verdict::NoLog => Err(failure(format!("there is no log in {}", dir.display()))),
        _ => Ok(report),
    }
}

fn failure(error: impl ToString) -> Failure {
    Failure::Data(error.to_string())
}
