//! `forebay-versus`: Forebay compared with its peers. Every row is the same work through another library, every sample is a
//! separate process, and rows alternate; docs/performance.md describes how to run it and how to read its output.

mod cache;
mod files;
mod fio;
mod kv;
mod meter;
mod nop;
mod objects;
mod peers;
mod prelude;
mod raft;
mod random;
mod ranges;
mod run;
mod scan;
mod sweep;
mod usage;
mod wal;
mod zram;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use forebay_measure::cleanup::Cleanup;
use forebay_measure::context::{Context, Target};
use forebay_measure::experiment::Experiment;
use forebay_measure::kind::Entry;
use forebay_measure::options::{Length, Values};
use forebay_measure::output::{print, print_raw};
use forebay_measure::progress::Progress;
use forebay_measure::runner::{FAILED_SAMPLES, run_apart};
use forebay_measure::{CHILD_SUBCOMMAND, doctor, run_child};
use forebay_report::page::summary;
use forebay_report::result::columns::Column;
use forebay_report::result::{Experiment as Table, Report, Row};
use forebay_report::units::number;

#[global_allocator]
static ALLOCATOR: usage::CountingAllocator = usage::CountingAllocator;

/// Every experiment.
static ALL: [&dyn Experiment; 11] = [
    &random::RANDOM,
    &scan::SCAN,
    &ranges::RANGES,
    &objects::OBJECT_STORE,
    &nop::NOP,
    &wal::WAL,
    &raft::RAFT,
    &raft::busy::RAFT_BUSY,
    &kv::KV,
    &cache::CACHE,
    &sweep::SWEEP,
];

fn main() -> ExitCode {
    match run(&command().get_matches()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("forebay-versus: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Returns the command line, made of what the experiments state.
fn command() -> Command {
    let path = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("PATH").help(help).value_parser(value_parser!(PathBuf))
    };
    let command = Command::new("forebay-versus")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Forebay beside its peers: the same work through every library, in one interleaved run")
        .subcommand_required(true)
        .subcommand(Command::new(CHILD_SUBCOMMAND).hide(true));
    ALL.iter().fold(command, |command, experiment| {
        let spec = experiment.spec();
        let check = "End with exit code 1 when a target is missed or a row fails";
        command.subcommand(Entry(*experiment).augment(Command::new(spec.name).about(spec.about)).args([
            path(
                "dir",
                "Directory for the test files, which are removed at the end [default: the current one]",
            ),
            path("json", "Also write the result to this file as JSON"),
            Arg::new("check").long("check").help(check).action(ArgAction::SetTrue),
        ]))
    })
}

fn run(matches: &ArgMatches) -> Result<ExitCode> {
    let (name, matches) = matches.subcommand().context("no experiment was named")?;
    if name == CHILD_SUBCOMMAND {
        print_raw(&format!("{}\n", run_child(false, &ALL.map(Entry))?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let experiment =
        *ALL.iter().find(|experiment| experiment.spec().name == name).context("no such experiment")?;
    let values = values(experiment, matches)?;
    if values.given("list") {
        print(&sweep::list(&values))?;
        return Ok(ExitCode::SUCCESS);
    }
    if run::load_average().is_some_and(|load| load > run::LOAD_AT_REST) {
        eprintln!(
            "the machine is busy with other work (load average above {}): the figures will not be worth much",
            run::LOAD_AT_REST
        );
    }
    let path = |name| matches.get_one::<PathBuf>(name).map(PathBuf::as_path);
    let target = Target::resolve(path("dir").unwrap_or(Path::new(".")), false, false)?;
    let context = Context::new(target, Progress::detect(false), Cleanup::install()?, run::fresh_seed());
    let tables = measure(experiment, &values, &context, path("json"))?;
    let missed = if is_sweep(experiment) { sweep::summarise(&tables) } else { summarise(&tables) }?;
    Ok(if matches.get_flag("check") && missed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the options, with the defaults of `--quick` where an experiment has it.
fn values(experiment: &dyn Experiment, matches: &ArgMatches) -> Result<Values> {
    let of = |length| Values::new(experiment.spec().options, Some(matches), length);
    let values = of(Length::Full)?;
    Ok(if values.given("quick") { of(Length::Quick)? } else { values })
}

/// Returns whether its tables are points of axes, of which a run has hundreds.
fn is_sweep(experiment: &dyn Experiment) -> bool {
    experiment.spec().name == sweep::SWEEP.spec.name
}

/// Measures, prints each table, and writes the file after each, so that an interrupted run keeps its results so far.
fn measure(
    experiment: &'static dyn Experiment,
    values: &Values,
    context: &Context,
    json: Option<&Path>,
) -> Result<Vec<Table>> {
    let mut tables: Vec<Table> = Vec::new();
    let mut plan = experiment.plan(values, context)?;
    run_apart(experiment, values, context, plan.as_mut(), |part| {
        let order = |row: &Row| experiment.spec().ways.iter().position(|way| way.name == row.name);
        let (table, is_whole) = run::join(&mut tables, part, order);
        if !is_whole {
            return Ok(());
        }
        experiment.targets().judge(table);
        Entry(experiment).present(std::slice::from_mut(table));
        let text = if is_sweep(experiment) {
            sweep::record(table)?
        } else {
            record(table)?;
            summary::tables(&Report::new(doctor::machine_only(), vec![table.clone()]), true)
        };
        print(&text)?;
        if let Some(path) = json {
            let text = Report::new(doctor::machine_only(), tables.clone()).to_json()?;
            std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    })?;
    Ok(tables)
}

/// Records the figures of a table for docs/results. A row is named by the table's title and its name.
fn record(table: &Table) -> Result<()> {
    let columns = Column::present(&[table]);
    let rows = table.rows.iter().flat_map(|row| {
        columns.iter().filter_map(move |column| {
            let value = number(column.value(row)?);
            let spread = column.spread(row).map(|(low, high)| format!("{} to {}", number(low), number(high)));
            let name = format!("{}, {}", table.title(), row.name);
            Some([name, value, column.heading.to_string(), spread.unwrap_or_default()])
        })
    });
    run::record(&table.name, rows)
}

/// Prints how the targets were met; returns the number of missed targets and of failed rows.
fn summarise(tables: &[Table]) -> Result<usize> {
    let rows = || tables.iter().flat_map(|table| &table.rows);
    let gates: Vec<_> = rows().flat_map(|row| &row.gates).collect();
    let strictly = gates.iter().filter(|gate| gate.is_met(0.0)).count();
    let met = gates.iter().filter(|gate| gate.passed).count();
    let missed = gates.len() - met;
    let is_failed =
        |row: &&Row| row.skipped.is_some() || row.conditions.iter().any(|gate| gate.name == FAILED_SAMPLES);
    let failed = rows().filter(is_failed).count();
    print(&format!(
        "\n{} targets: {strictly} met, {} met within the A-A spread, {missed} missed; {failed} rows failed\n",
        gates.len(),
        met - strictly,
    ))?;
    ensure!(rows().any(|row| !row.samples.is_empty()), "no row gave a figure");
    Ok(missed + failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every default parses, and every row that a target names exists.
    #[test]
    fn the_command_line_is_whole_and_targets_name_rows() {
        command().debug_assert();
        for experiment in ALL {
            let spec = experiment.spec();
            Values::new(spec.options, None, Length::Full).unwrap();
            let names: Vec<&str> = spec.ways.iter().map(|way| way.name).collect();
            for row in experiment.targets().rows() {
                assert!(names.contains(&row), "{}: there is no row {row}", spec.name);
            }
        }
    }
}
