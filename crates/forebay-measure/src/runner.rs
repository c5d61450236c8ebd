//! Runs the plan of an experiment: every row of every table takes its turn in each repeat, in a process of its own, and the
//! samples become rows.

use std::time::Instant;

use anyhow::Context as _;

use super::experiment::{Outcome, Parameters, Plan, Spec, Start, Turn, Way};
use super::gates;
use super::interleave::{SampleFigures, cut_short, row_of, seeds, until};
use super::job::Job;
use super::options::{Length, Values};
use super::pattern::SplitMix;
use super::plan::{another_repeat, fit_seconds, interleaved};
use super::sampler::{Begin, run_child_at};
use crate::cleanup::Cleanup;
use crate::context::Context;
use crate::progress::Unit;
use forebay_report::result::{Experiment as Table, Row, metric};

/// One row of one table.
struct Cell {
    setting: usize,
    way: &'static Way,
    /// Samples by number of repeat, or the reason why there are none.
    sampled: Result<Vec<(u32, SampleFigures)>, String>,
    /// Changes over time in the first sample.
    series: forebay_report::result::Series,
}

/// Measures all rows of all tables of a plan, and returns the tables. Options that every run has: `seconds`, `repeats`,
/// `rows`.
///
/// # Errors
/// Every row failed; the first reason is in the error.
pub(crate) fn run(
    spec: &'static Spec,
    options: &Values,
    length: Length,
    context: &Context,
    plan: &mut dyn Plan,
) -> anyhow::Result<Vec<Table>> {
    debug_assert!(length == Length::Quick || !context.quick, "the defaults are those of the context");
    let settings = plan.settings();
    let mut cells: Vec<Cell> = Vec::new();
    for (setting, parameters) in settings.iter().enumerate() {
        let own = ways(spec, options, plan, parameters);
        cells.extend(own.map(|way| Cell {
            setting,
            way,
            sampled: Ok(Vec::new()),
            series: Default::default(),
        }));
    }
    let repeats = options.count("repeats").max(1) as usize;
    let extra = plan.extra_seconds();
    let seconds = options.number("seconds").unwrap_or(1.0);
    let fitted = fit_seconds(seconds + extra, cells.len() * repeats, context.remaining()) - extra;
    let seconds = fitted.max(seconds.min(0.1));
    let place = plan.place();

    let seeds = seeds(context, repeats);
    let mut order = SplitMix::new(context.seed ^ 0x6f72_6465_7200_0000);
    let (count, begun, until) = (cells.len(), Instant::now(), until(context));
    let step = context.step(format!("measure {}", spec.name), (count * repeats) as u64, Unit::Count);
    let remaining = || until.map(|until| until.saturating_duration_since(Instant::now()));
    let mut done = 0;
    while done < repeats && another_repeat(done, begun.elapsed(), remaining()) {
        let mut turns: Vec<usize> = interleaved(done, count).collect();
        if plan.is_shuffled() {
            order.shuffle(&mut turns);
        }
        for (position, index) in turns.into_iter().enumerate() {
            let cell = &mut cells[index];
            let (setting, way) = (cell.setting, cell.way);
            let parameters = &settings[setting];
            step.set((done * count + position) as u64);
            step.message(format!("{}{}", way.name, described(spec, parameters)));
            let Ok(samples) = &mut cell.sampled else { continue };
            let turn = Turn { setting, parameters, way, repeat: done, seed: seeds[done], seconds };
            match sample(spec, plan, &turn, &context.cleanup, None) {
                Ok((outcome, claim)) => {
                    samples.push((done as u32, figures(spec, claim, &outcome)));
                    if done == 0 {
                        cell.series = outcome.series;
                    }
                }
                Err(error) => cell.sampled = Err(format!("{error:#}")),
            }
        }
        done += 1;
    }
    step.finish(&format!("{done} repeats of {count} rows"));
    let failed: Vec<&String> = cells.iter().filter_map(|cell| cell.sampled.as_ref().err()).collect();
    if let Some(why) = failed.first().filter(|_| failed.len() == count) {
        anyhow::bail!("nothing could be measured on {}: {why}", place.path.display());
    }
    let table = |(setting, parameters): (usize, &Parameters)| {
        let own = cells.extract_if(.., |cell| cell.setting == setting);
        let rows = own.map(|cell| row(plan, parameters, cell)).collect();
        let mut table = table(spec, plan, parameters, seconds, rows);
        table.notes.extend(cut_short(done, repeats));
        table.parameter("repeats", done).parameter("seed", context.seed)
    };
    Ok(settings.iter().enumerate().map(table).collect())
}

/// Returns the ways of a table, in their order.
pub(crate) fn ways<'a>(
    spec: &'static Spec,
    options: &'a Values,
    plan: &'a dyn Plan,
    setting: &'a Parameters,
) -> impl Iterator<Item = &'static Way> + 'a {
    let named = |way: &Way| options.rows.is_empty() || options.rows.iter().any(|name| name == way.name);
    spec.ways.iter().filter(move |way| plan.always(setting, way) || named(way) && plan.has(setting, way))
}

/// Returns a table with these rows.
pub(crate) fn table(
    spec: &Spec,
    plan: &dyn Plan,
    setting: &Parameters,
    seconds: f64,
    rows: Vec<Row>,
) -> Table {
    let mut table = Table::new(spec.name, plan.method(setting, seconds));
    table.parameters = setting.clone().into_iter().collect();
    let mut table =
        table.parameter("seconds", seconds).parameter("file_system", plan.place().file_system.as_str());
    table.notes = plan.notes(setting);
    table.conditions = plan.conditions();
    table.rows = rows;
    plan.finish(setting, &mut table);
    table
}

/// Describes the setting, for the progress.
fn described(spec: &Spec, parameters: &Parameters) -> String {
    let value = parameters.get(&*spec.axis.parameter);
    value.map_or_else(String::new, |value| format!(", {} {value}", spec.axis.label))
}

/// Takes one sample, which begins at the instant that `begin` returns where there is one.
///
/// # Errors
/// The row cannot be run here, or did not do its work.
pub(crate) fn sample(
    spec: &Spec,
    plan: &mut dyn Plan,
    turn: &Turn<'_>,
    cleanup: &Cleanup,
    begin: Option<&mut Begin<'_>>,
) -> anyhow::Result<(Outcome, gates::Claim)> {
    let place = plan.place();
    let mut job = Job::new(spec.name, place.path, turn.parameters, turn.seconds)?;
    job.device_stat = place.device_stat;
    (job.row, job.seed, job.seconds) = (turn.way.name.to_owned(), turn.seed, turn.seconds);
    let start: Start = plan.start(turn, job)?;
    let text = run_child_at(&start.job, start.group.as_ref(), cleanup, begin)?;
    let mut outcome: Outcome =
        serde_json::from_str(&text).context("the result of the measuring process cannot be read")?;
    plan.ended(turn, &start, &mut outcome)?;
    Ok((outcome.clone(), plan.claim(turn, &outcome)))
}

/// Returns the metrics of the spec's columns and charts, with the evidence behind them.
pub(crate) fn figures(spec: &Spec, claim: gates::Claim, outcome: &Outcome) -> SampleFigures {
    let mut metrics = outcome.metrics();
    let own = |name: &str| {
        name == metric::SECONDS
            || name == spec.compared
            || name == metric::MB_PER_S && spec.compared == metric::IOPS
            || outcome.figures.get(name).is_some()
            || spec.columns.iter().any(|column| column.metric == name)
            || spec.charts.contains(&name)
    };
    metrics.0.retain(|name, _| own(name));
    SampleFigures { metrics, evidence: outcome.evidence.clone(), claim }
}

fn row(plan: &dyn Plan, parameters: &Parameters, cell: Cell) -> Row {
    let mut row = match cell.sampled {
        Ok(sampled) => row_of(cell.way.name, sampled, gates::processors()),
        Err(why) => Row::skipped(cell.way.name, why),
    };
    row.series = cell.series;
    described_row(plan, parameters, cell.way, row)
}

/// Returns the row with the description of its way, and the state of the cache in which its samples begin.
pub(crate) fn described_row(plan: &dyn Plan, setting: &Parameters, way: &Way, row: Row) -> Row {
    let row = row.describe(way.description);
    match plan.cache(setting, way) {
        Some(cache) => row.cache(cache),
        None => row,
    }
}
