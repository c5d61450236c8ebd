//! `forebay wal`: inspects a write-ahead log, verifies it, and saves the remaining records of a damaged one.
//!
//! Nothing here writes into the log's directory. Exit codes: 0 whole (`inspect`: shown), 1 damaged or
//! cut off, 2 unreadable.

mod json;
mod text;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use forebay::{Config, Engine};
use forebay_wal::inspect::{Report, Verdict, inspect, repair};

use crate::output::print;
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
    Inspect(InspectArgs),
    /// Check whether the log is whole; list the lost records and their position if not.
    Verify(VerifyArgs),
    /// Write every record that can be saved into a new log; the damaged one is only read.
    Repair(RepairArgs),
}

/// Options of `wal inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The log's directory; it is only read.
    dir: PathBuf,
    /// List every group too.
    #[arg(long)]
    groups: bool,
    /// Print JSON instead of lines.
    #[arg(long)]
    json: bool,
}

/// Options of `wal verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The log's directory; it is only read.
    dir: PathBuf,
    /// Print JSON instead of lines.
    #[arg(long)]
    json: bool,
}

/// Options of `wal repair`.
#[derive(Debug, Args)]
pub(crate) struct RepairArgs {
    /// The damaged log's directory; it is only read.
    dir: PathBuf,
    /// The new log's directory: a new or an empty one, outside of the damaged log's.
    #[arg(long, value_name = "OUT")]
    to: PathBuf,
    /// Print JSON instead of lines.
    #[arg(long)]
    json: bool,
}

/// Exit code 1.
const DAMAGED: u8 = 1;

/// Runs a command. Every failure has the exit code 2: 1 is the result that a log is damaged.
pub(crate) fn run(command: &WalCommand) -> anyhow::Result<ExitCode> {
    execute(command).map_err(|error| {
        if error.is::<Failure>() { error } else { Failure::Log(format!("{error:#}")).into() }
    })
}

fn execute(command: &WalCommand) -> anyhow::Result<ExitCode> {
    let engine =
        Engine::start(Config::default().shards(1)).map_err(|error| Failure::Log(error.to_string()))?;
    match command {
        WalCommand::Inspect(args) => {
            let report = inspected(&engine, &args.dir)?;
            print(&if args.json {
                json::inspected(&report, args.groups)?
            } else {
                text::inspected(&report, args.groups)
            })?;
            Ok(ExitCode::SUCCESS)
        }
        WalCommand::Verify(args) => verify(&engine, args),
        WalCommand::Repair(args) => {
            let repaired = repair(&engine, &args.dir, &args.to).wait().map_err(|error| failure(&error))?;
            print(&if args.json { json::repaired(&repaired)? } else { text::repaired(&repaired) })?;
            // Damage that took no record is gone in the new log.
            let cut = repaired.before.recovery.as_ref().is_some_and(|recovery| recovery.cut.is_some());
            Ok(code(!cut && repaired.before.lost_now.is_empty()))
        }
    }
}

fn verify(engine: &Engine, args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let report = inspected(engine, &args.dir)?;
    if report.in_use {
        let text = format!(
            "{} is in use: close the log first, because the end of one that is written to looks unfinished",
            args.dir.display()
        );
        return Err(Failure::Log(text).into());
    }
    if let Verdict::Refused(error) = &report.verdict {
        return Err(failure(error).into());
    }
    print(&if args.json { json::inspected(&report, false)? } else { text::verified(&report) })?;
    if report.unreadable().next().is_some() {
        let text = format!(
            "the drive cannot read all of {}; `forebay wal repair` saves the rest",
            args.dir.display()
        );
        return Err(Failure::Log(text).into());
    }
    Ok(code(report.is_whole()))
}

fn inspected(engine: &Engine, dir: &Path) -> anyhow::Result<Report> {
    let report = inspect(engine, dir).wait().map_err(|error| failure(&error))?;
    match report.verdict {
        Verdict::NoLog => Err(Failure::Log(format!("there is no log in {}", dir.display())).into()),
        _ => Ok(report),
    }
}

fn failure(error: &forebay_wal::Error) -> Failure {
    Failure::Log(error.to_string())
}

fn code(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) }
}
