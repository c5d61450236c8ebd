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
use super::sampler::run_child;
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
/// `rows`. A table without any of the rows that were named is left out.
///
/// # Errors
/// Every row failed; the first reason is in the error.
pub(crate) fn run(
    spec: &Spec,
    options: &Values,
    length: Length,
    context: &Context,
    plan: &mut dyn Plan,
) -> anyhow::Result<Vec<Table>> {
    debug_assert!(length == Length::Quick || !context.quick, "the defaults are those of the context");
    let settings = plan.settings();
    let wanted = |way: &&Way| options.rows.is_empty() || options.rows.iter().any(|name| name == way.name);
    let ways: Vec<&'static Way> = spec.ways.iter().filter(wanted).collect();
    let mut cells: Vec<Cell> = Vec::new();
    for (setting, parameters) in settings.iter().enumerate() {
        let own = ways.iter().filter(|way| plan.has(parameters, way));
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
    let seconds = fitted.max(seconds.min(plan.seconds_min()));
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
            match sample(spec, context, plan, &turn, &place) {
                Ok((figures, series)) => {
                    samples.push((done as u32, figures));
                    if done == 0 {
                        cell.series = series;
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
        anyhow::bail!("nothing could be measured on {}: {why}", context.target.path().display());
    }
    let conditions = plan.conditions();
    let table = |(setting, parameters): (usize, &Parameters)| {
        let mut table = Table::new(spec.name, plan.method(parameters, seconds));
        table.parameters = parameters.clone().into_iter().collect();
        let mut table = table
            .parameter("seconds", seconds)
            .parameter("repeats", done)
            .parameter("file_system", place.file_system.as_str())
            .parameter("seed", context.seed);
        table.notes = plan.notes(parameters);
        table.notes.extend(cut_short(done, repeats));
        table.conditions.clone_from(&conditions);
        let own = cells.extract_if(.., |cell| cell.setting == setting);
        table.rows = own.map(|cell| row(plan, parameters, cell)).collect();
        plan.finish(parameters, &mut table);
        table
    };
    Ok(settings.iter().enumerate().map(table).filter(|table| !table.rows.is_empty()).collect())
}

/// Describes the setting, for the progress.
fn described(spec: &Spec, parameters: &Parameters) -> String {
    let value = parameters.get(&*spec.axis.parameter);
    value.map_or_else(String::new, |value| format!(", {} {value}", spec.axis.label))
}

/// Takes one sample.
fn sample(
    spec: &Spec,
    context: &Context,
    plan: &mut dyn Plan,
    turn: &Turn<'_>,
    place: &super::experiment::Place,
) -> anyhow::Result<(SampleFigures, forebay_report::result::Series)> {
    let mut job = Job::new(spec.name, &place.path, turn.parameters, turn.seconds)?;
    job.device_stat.clone_from(&place.device_stat);
    (job.row, job.seed, job.seconds) = (turn.way.name.to_owned(), turn.seed, turn.seconds);
    let start: Start = plan.start(turn, job)?;
    let text = run_child(&start.job, start.group.as_ref(), &context.cleanup)?;
    let mut outcome: Outcome =
        serde_json::from_str(&text).context("the result of the measuring process cannot be read")?;
    plan.ended(turn, &start, &mut outcome)?;
    Ok((figures(spec, plan.claim(turn, &outcome), &outcome), outcome.series))
}

/// Returns the metrics of the spec's columns and charts, with the evidence behind them.
pub(crate) fn figures(spec: &Spec, claim: gates::Claim, outcome: &Outcome) -> SampleFigures {
    let mut metrics = outcome.metrics();
    let own = |name: &str| {
        name == metric::SECONDS
            || name == spec.compared
            || outcome.figures.get(name).is_some()
            || spec.columns.iter().any(|column| column.metric == name)
            || spec.charts.contains(&name)
    };
    metrics.0.retain(|name, _| own(name));
    SampleFigures { metrics, evidence: outcome.evidence.clone(), claim }
}

fn row(plan: &dyn Plan, parameters: &Parameters, cell: Cell) -> Row {
    let row = match cell.sampled {
        Ok(sampled) => row_of(cell.way.name, sampled, gates::processors()),
        Err(why) => Row::skipped(cell.way.name, why),
    };
    let mut row = row.describe(cell.way.description);
    row.series = cell.series;
    match plan.cache(parameters, cell.way) {
        Some(cache) => row.cache(cache),
        None => row,
    }
}
