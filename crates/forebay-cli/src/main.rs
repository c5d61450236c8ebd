//! The `forebay` program: describes the storage under a path, tests which I/O mechanisms work there, and
//! measures their real performance.

// These macros panic when the stream is closed; `output` has functions that do not.
#![deny(clippy::print_stderr, clippy::print_stdout)]

#[cfg(not(target_os = "linux"))]
compile_error!("the program `forebay` is for Linux; elsewhere use the library, which runs there on threads");

mod cli;
mod exit;
mod kernel_walks;
mod kv;
mod manual;
mod output;
mod saved;
mod top;
mod wait;
mod wal;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use clap::{Parser, Subcommand as _};

use cli::{CalibrateArgs, Cli, Command, CommonArgs, DoctorArgs, Measure, OwnCommand, ReportArgs};
use forebay_measure::cleanup::{Cleanup, LEFTOVERS_REMEDY, leftovers};
use forebay_measure::context::{Context, Target};
use forebay_measure::hosts::{Setup, Task};
use forebay_measure::kind::{self, Entry, Kind};
use forebay_measure::progress::Progress;
use forebay_measure::{self as measure, doctor};
use forebay_report::environment::Environment;
use forebay_report::failure::Failure;
use forebay_report::page as report;
use forebay_report::result::{Report, Row};
use output::{CALIBRATION_MARK, Destination, Json, PAGE_MARK, print, print_fitted, print_raw};

fn main() -> ExitCode {
    // clap prints help and version to standard output with code 0, and usage errors with code 2.
    let own =
        std::env::args_os().nth(1).is_some_and(|name| name.to_str().is_some_and(OwnCommand::has_subcommand));
    let result = if own { run_own(OwnCommand::parse()) } else { run(Cli::parse()) };
    match result {
        Ok(code) => code,
        Err(error) => exit::report(&error),
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let cleanup = || Cleanup::install().context("the signal handlers cannot be installed");
    match cli.command {
        Command::Doctor(args) => run_doctor(&args, &cleanup()?),
        Command::Calibrate(args) => run_calibrate(&args, &cleanup()?),
        Command::Measure(measure) => run_measure(&measure, &cleanup()?),
        Command::Agent(args) => {
            measure::hosts::agent::run(&args, &|name| kind::part(name).map(|part| part.0), &cleanup()?)
        }
        Command::Report(args) => run_report(&args, &cleanup()?),
        Command::Diff(args) => saved::diff(&args),
        Command::Assert(args) => saved::assert(&args),
        Command::Convert(args) => saved::convert(&args),
        Command::Top(args) => top::run(&args, &cleanup()?),
        // This command catches signals itself: they are meant for the command that it runs.
        Command::Wait(args) => wait::run(&args),
        // A signal ends this command immediately. An interrupted repair then leaves only files that are not a log yet.
        Command::Wal(command) => wal::run(&command),
        // A signal leaves a store only in states from which the next open recovers.
        Command::Kv(command) => kv::run(&command),
        Command::Completions { shell } => Ok(print(&manual::completions(shell)).map(|()| ExitCode::SUCCESS)?),
        Command::Man => Ok(print(&manual::page()?).map(|()| ExitCode::SUCCESS)?),
    }
}

/// The child creates nothing that must be undone, so the default action of signals is right for it.
fn run_own(command: OwnCommand) -> anyhow::Result<ExitCode> {
    match command {
        OwnCommand::MeasureChild { start_line } => {
            let parts: Vec<Entry> = kind::parts().chain(kind::JOBS.parts()).copied().collect();
            print_raw(&format!("{}\n", measure::run_child(start_line, &parts)?))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run_doctor(args: &DoctorArgs, cleanup: &Cleanup) -> anyhow::Result<ExitCode> {
    let target = Target::resolve(&args.path, false, false)?;
    let json = args.json.destination()?;
    let report = Report::new(examine(&target, cleanup)?, Vec::new());
    if json.write(|| report.to_json(), cleanup)? {
        let color = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        print_raw(&forebay_report::findings::render(&report.environment, color))?;
    }
    if !doctor::suitable(&report.environment) {
        // The reason has its exit code: the path, its space, or direct I/O.
        doctor::preflight(&target, cleanup)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Examines the machine and `target`, also with what only this program can try.
///
/// # Errors
/// As for [`doctor::examine`].
fn examine(target: &Target, cleanup: &Cleanup) -> Result<Environment, Failure> {
    let mut environment = doctor::examine(target, cleanup)?;
    let checks = [kernel_walks::examine(&environment), wait::examine()];
    environment.checks.extend(checks);
    Ok(environment)
}

fn run_calibrate(args: &CalibrateArgs, cleanup: &Cleanup) -> anyhow::Result<ExitCode> {
    let out = Destination::new(&args.out, CALIBRATION_MARK)?;
    let (quick, quiet) = (args.quick, args.quiet);
    let common =
        CommonArgs { quick, quiet, verbose: false, seed: None, overwrite: false, destroy_data: false };
    let context = prepare(&args.path, &common, cleanup)?;
    let calibration = measure::calibrate::run(&args.options, &context)?;
    let text = calibration.to_toml();
    if let Err(error) = out.write(&text, cleanup) {
        // A place that became full costs no figures.
        if !out.is_stdout() {
            print_raw(&text)?;
        }
        return Err(error.into());
    }
    if !out.is_stdout() {
        print(&measure::calibrate::render(&calibration, &args.out))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn run_measure(measure: &Measure, cleanup: &Cleanup) -> anyhow::Result<ExitCode> {
    let json = measure.args.json.destination()?;
    let mut parts = measure.kind.chosen(&measure.matches)?;
    if let Some(part) = parts.iter().find(|part| part.0.runs_on_hosts())
        && let Some(task) = Task::of(part.0, &measure.matches)?
    {
        return run_on_hosts(*part, &task, measure, &json, cleanup);
    }
    let context = prepare(&measure.path()?, &measure.args.common, cleanup)?;
    let before = doctor::machine_only();
    let mut left_out = LeftOut::default();
    let matches = Some(&measure.matches);
    let experiments = match parts.as_slice() {
        [part] => {
            // A part that purges a device does so where it is named alone.
            if measure.kind.parts().len() > 1 && !matches!(context.target, Target::Directory(_)) {
                part.check_space(matches, &context)?;
            }
            part.measure(matches, &context)?
        }
        _ => {
            // Files that do not fit are known before anything is measured.
            parts
                .retain(|part| left_out.none(*part, part.check_space(matches, &context), &context).is_some());
            let mut experiments = Vec::new();
            for (done, part) in parts.iter().enumerate() {
                let measured = part.measure(matches, &context);
                experiments.extend(left_out.none(*part, measured, &context).unwrap_or_default());
                let mut report = Report::new(before.clone(), experiments.clone());
                report.left_out.clone_from(&left_out.reasons);
                keep(report, &parts[done + 1..], None, &json, cleanup);
            }
            experiments
        }
    };
    if experiments.is_empty() {
        left_out.failed()?;
    }
    // Last, as the doctor runs for two seconds: a nonsensical option is refused without them. Its failure costs no figures.
    let (time_unix_s, memory_available_bytes) = (before.time_unix_s, before.memory_available_bytes);
    let environment = match examine(&context.target, cleanup) {
        Ok(found) => Environment { time_unix_s, memory_available_bytes, ..found },
        Err(failure) => {
            context.progress.print_line(&format!("doctor: the path could not be examined: {failure}"));
            before
        }
    };
    let mut report = Report::new(environment, experiments);
    report.left_out = left_out.reasons;
    report.verdicts = kind::verdicts(&report.experiments);
    let text = || report::summary::render(&report, measure.args.common.verbose);
    json.write_beside(|| report.to_json(), text, cleanup)?;
    // Only a run with `--check` has gates in its rows; all others succeed here.
    let missed = |row: &Row| row.gates.iter().any(|gate| !gate.passed);
    let failed = report.experiments.iter().flat_map(|experiment| &experiment.rows).any(missed);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs this process's part in a measurement on several hosts. The result reports gates that failed.
fn run_on_hosts(
    part: Entry,
    task: &Task,
    measure: &Measure,
    json: &Json,
    cleanup: &Cleanup,
) -> anyhow::Result<ExitCode> {
    let common = &measure.args.common;
    let setup = Setup {
        path: &measure.path()?,
        quick: common.quick,
        seed: common.seed.unwrap_or_else(fresh_seed),
        progress: Progress::detect(common.quiet),
        destructive: common.overwrite || common.destroy_data,
    };
    let Some(mut experiments) = task.run(&setup, cleanup)? else { return Ok(ExitCode::SUCCESS) };
    part.present(&mut experiments);
    let report = Report::new(doctor::machine_only(), experiments);
    let text = || report::summary::render(&report, common.verbose);
    json.write_beside(|| report.to_json(), text, cleanup)?;
    Ok(ExitCode::SUCCESS)
}

fn run_report(args: &ReportArgs, cleanup: &Cleanup) -> anyhow::Result<ExitCode> {
    // Checked before anything is measured: a minute of work must not end in "permission denied".
    let (page, json) = (Destination::new(&args.out, PAGE_MARK)?, args.json.destination()?);
    json.beside(&page)?;
    json.replaces_none_of(&args.wait)?;
    let wait = args.wait.as_deref().map(saved::load_wait).transpose()?;
    if !args.from.is_empty() {
        return show_results(args, wait, &page, &json, cleanup);
    }
    let mut context = prepare(&args.path, &args.common, cleanup)?;
    let mut left_out = LeftOut::default();
    // Files that do not fit are known before anything is measured.
    let mut parts = parts(&args.only, &context)?;
    parts.retain(|part| left_out.none(*part, part.check_space(None, &context), &context).is_some());
    if parts.is_empty() {
        left_out.failed()?;
    }
    context.progress.print_line("doctor: testing the features of this path");
    let mut report = Report::new(examine(&context.target, cleanup)?, Vec::new());
    let seconds: Vec<u64> = parts.iter().map(|part| part.seconds(context.quick)).collect();
    for (done, part) in parts.iter().enumerate() {
        context.begin(&seconds, done);
        let left = context.left().map_or_else(String::new, |left| format!(", {left} in all"));
        let (number, count) = (done + 1, parts.len());
        context.progress.print_line(&format!("experiment {number} of {count}: {}{left}", part.name()));
        let measured = part.measure(None, &context);
        let tables = left_out.none(*part, measured, &context).unwrap_or_default();
        report.add(Report::new(Environment::default(), tables));
        report.left_out.clone_from(&left_out.reasons);
        keep(report.clone(), &parts[number..], Some(&page), &json, cleanup);
    }
    if report.experiments.is_empty() {
        left_out.failed()?;
    }
    report.verdicts = kind::verdicts(&report.experiments);
    if let Some(wait) = wait {
        report.add(wait);
    }
    write_report(&report, args, &page, &json, cleanup)
}

/// Writes the page of results that were saved; `wait` is added to the first of them.
fn show_results(
    args: &ReportArgs,
    wait: Option<Report>,
    page: &Destination,
    json: &Json,
    cleanup: &Cleanup,
) -> anyhow::Result<ExitCode> {
    let mut results = saved::load_results(&args.from)?;
    if let (Some((_, first)), Some(wait)) = (results.first_mut(), wait) {
        first.add(wait);
    }
    if let [(_, report)] = results.as_slice() {
        return write_report(report, args, page, json, cleanup);
    }
    if args.claims {
        return Err(Failure::Usage("--claims is about one result: name one file".to_owned()).into());
    }
    page.write(&report::html::beside(&results), cleanup)?;
    if !page.is_stdout() {
        print_fitted(&report::summary::beside(&results, &args.out.display().to_string()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The experiments that a report leaves out, each with the reason, and the first failure.
#[derive(Debug, Default)]
struct LeftOut {
    reasons: BTreeMap<String, String>,
    first: Option<anyhow::Error>,
}

impl LeftOut {
    /// Returns the value of a part's result; `None` for a failure, whose reason is kept.
    fn none<T>(&mut self, part: Entry, result: anyhow::Result<T>, context: &Context) -> Option<T> {
        match result {
            Ok(found) => Some(found),
            Err(error) => {
                let why = format!("{error:#}");
                context.progress.print_line(&format!("{} is left out: {why}", part.name()));
                self.reasons.insert(part.name().to_owned(), why);
                self.first.get_or_insert(error);
                None
            }
        }
    }

    /// Fails with the first failure, if any.
    fn failed(&mut self) -> anyhow::Result<()> {
        self.first.take().map_or(Ok(()), Err)
    }
}

/// Writes what was measured until now, so that an end by a signal costs no more than the rest, if any.
fn keep(mut report: Report, rest: &[Entry], page: Option<&Destination>, json: &Json, cleanup: &Cleanup) {
    if rest.is_empty() || report.experiments.is_empty() {
        return;
    }
    let of = |part: &Entry| (part.name().to_owned(), "the run was ended before it".to_owned());
    report.left_out.extend(rest.iter().map(of));
    report.verdicts = kind::verdicts(&report.experiments);
    // What cannot be written now may be at the end, which says so where it cannot.
    if let Some(page) = page.filter(|page| !page.is_stdout()) {
        let _ = page.write(&report::html::page(&report), cleanup);
    }
    if let (Some(file), Ok(text)) = (json.file(), report.to_json()) {
        let _ = file.write(&text, cleanup);
    }
}

fn write_report(
    report: &Report,
    args: &ReportArgs,
    page: &Destination,
    json: &Json,
    cleanup: &Cleanup,
) -> anyhow::Result<ExitCode> {
    let written = page.write(&report::html::page(report), cleanup);
    let text = || if page.is_stdout() { String::new() } else { summary(report, args) };
    json.write_beside(|| report.to_json(), text, cleanup)?;
    written?;
    Ok(ExitCode::SUCCESS)
}

/// Returns what `report` prints.
fn summary(report: &Report, args: &ReportArgs) -> String {
    let brief = report::summary::brief(report, &args.out.display().to_string());
    let tables = args.common.verbose.then(|| report::summary::tables(report, true));
    let claims = args.claims.then(|| format!("\n{}", measure::claims::render(&report.experiments)));
    brief + &tables.unwrap_or_default() + &claims.unwrap_or_default()
}

/// Returns the parts of a report: those of the experiments named, or all that the path allows.
fn parts(only: &[Kind], context: &Context) -> Result<Vec<Entry>, Failure> {
    let is_directory = matches!(context.target, Target::Directory(_));
    let chosen = |part: &Entry| only.is_empty() || only.iter().any(|named| named.has(part.name()));
    let (parts, others): (Vec<Entry>, Vec<Entry>) =
        kind::parts().copied().filter(chosen).partition(|part| is_directory || !part.needs_directory());
    if !others.is_empty() {
        let names: Vec<&str> = others.iter().map(|part| part.name()).collect();
        let why = format!("{}: these need a directory for files of their own", names.join(", "));
        if only.iter().any(|named| named.parts().iter().all(|part| part.needs_directory())) {
            return Err(Failure::Path(format!("{why}, and {} is none", context.target.path().display())));
        }
        context.progress.print_line(&format!("not measured: {why}"));
    }
    Ok(parts)
}

fn prepare(path: &Path, common: &CommonArgs, cleanup: &Cleanup) -> anyhow::Result<Context> {
    let target = Target::resolve(path, common.overwrite, common.destroy_data)?;
    // Jobs of measuring processes are JSON.
    if std::fs::canonicalize(path).is_ok_and(|path| path.to_str().is_none()) {
        let why = "has a name that is not UTF-8: name another path";
        return Err(Failure::Path(format!("{} {why}", path.display())).into());
    }
    doctor::preflight(&target, cleanup)?;
    let progress = Progress::detect(common.quiet);
    let seed = common.seed.unwrap_or_else(fresh_seed);
    if let Target::Directory(directory) = &target
        && let Some(line) = leftovers(directory)
    {
        progress.print_line(&format!("{line}: {LEFTOVERS_REMEDY}"));
    }
    let mut context = Context::new(target, progress, cleanup.clone(), seed);
    context.quick = common.quick;
    if cfg!(debug_assertions) {
        progress.print_line(
            "this is an unoptimised build: its figures are not representative; build with --release",
        );
    }
    Ok(context)
}

/// Returns a seed that no earlier run used: a host that caches must not have seen the offsets before.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    // 53 bits: every reader of the JSON can represent the number exactly.
    (now ^ (u64::from(std::process::id()) << 32)) & ((1 << 53) - 1)
}
