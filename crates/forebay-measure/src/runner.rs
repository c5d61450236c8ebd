//! Runs the plan of an experiment: every row of every table takes its turn in each repeat, in a process of its own, and the
//! samples become rows.

use std::time::Instant;

use anyhow::Context as _;

use super::experiment::{Experiment, Outcome, Parameters, Plan, Spec, Start, Turn, Way};
use super::gates;
use super::interleave::{SampleFigures, cut_short, row_of, seeds, until};
use super::job::Job;
use super::options::{Length, Values};
use super::pattern::SplitMix;
use super::plan::{another_repeat, fit_seconds, interleaved};
use super::sampler::run_child;
use crate::context::Context;
use crate::progress::Unit;
use forebay_report::result::{Condition, Experiment as Table, Metrics, Row, metric};

/// Name of the condition of a row some of whose samples failed.
pub const FAILED_SAMPLES: &str = "failed_samples";

/// One row of one table.
struct Cell {
    setting: usize,
    way: &'static Way,
    /// Samples by number of repeat.
    sampled: Vec<(u32, SampleFigures)>,
    /// The failed samples, and the reason of the last one.
    failures: (usize, String),
    /// Metrics of the sample that only counted.
    counted: Metrics,
    /// Changes over time in the first sample.
    series: forebay_report::result::Series,
}

/// Measures all rows of all tables of a plan in turn, and returns the tables. Options that every run has: `seconds`,
/// `repeats`, `rows`. A table without any of the rows that were named is left out.
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
    let tables = measure(spec, options, context, plan, &settings, 0)?;
    let mut rows = tables.iter().flat_map(|table| &table.rows).peekable();
    if let Some(why) =
        rows.peek().and_then(|row| row.skipped.as_ref()).filter(|_| rows.all(|row| row.skipped.is_some()))
    {
        anyhow::bail!("nothing could be measured on {}: {why}", context.target.path().display());
    }
    Ok(tables)
}

/// Measures one table of a plan after the other, and passes each to `done` with the comparisons of its rows. For plans
/// whose settings disturb each other, or take so long that each is kept at once.
///
/// # Errors
/// Those of `done`.
pub fn run_apart(
    experiment: &dyn Experiment,
    options: &Values,
    context: &Context,
    plan: &mut dyn Plan,
    mut done: impl FnMut(Table) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let settings = plan.settings();
    for first in 0..settings.len() {
        for mut table in measure(experiment.spec(), options, context, plan, &settings[..=first], first)? {
            experiment.targets().compare(&mut table);
            done(table)?;
        }
    }
    Ok(())
}

/// Measures the settings from number `first` on.
fn measure(
    spec: &Spec,
    options: &Values,
    context: &Context,
    plan: &mut dyn Plan,
    settings: &[Parameters],
    first: usize,
) -> anyhow::Result<Vec<Table>> {
    let wanted = |way: &&Way| options.rows.is_empty() || options.rows.iter().any(|name| name == way.name);
    let ways: Vec<&'static Way> = spec.ways.iter().filter(wanted).collect();
    let mut cells: Vec<Cell> = Vec::new();
    for (setting, parameters) in settings.iter().enumerate().skip(first) {
        let own = ways.iter().filter(|way| plan.has(parameters, way));
        cells.extend(own.map(|way| Cell {
            setting,
            way,
            sampled: Vec::new(),
            failures: Default::default(),
            counted: Metrics::default(),
            series: Default::default(),
        }));
    }
    if cells.is_empty() {
        return Ok(Vec::new());
    }
    // A setting that is measured apart may have its own.
    let own = |name: &str| settings.get(first)?.get(name)?.as_f64();
    let repeats =
        own("repeats").map_or_else(|| options.count("repeats"), |repeats| repeats as u64).max(1) as usize;
    let extra = plan.extra_seconds();
    let asked = own("seconds").or_else(|| options.number("seconds"));
    let seconds = asked.unwrap_or(1.0);
    let fitted = fit_seconds(seconds + extra, cells.len() * repeats, context.remaining()) - extra;
    let seconds = fitted.max(seconds.min(plan.seconds_min()));
    let (place, tries) = (plan.place(), plan.retries() + 1);

    let seeds = seeds(context, repeats + 1);
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
            if cell.failures.0 == tries {
                continue;
            }
            let turn =
                Turn { setting, parameters, way, repeat: done, seed: seeds[done], seconds, counts: false };
            match sample(spec, context, plan, &turn, &place) {
                Ok((figures, series)) => {
                    cell.sampled.push((done as u32, figures));
                    if done == 0 {
                        cell.series = series;
                    }
                }
                Err(error) => cell.failures = (cell.failures.0 + 1, format!("{error:#}")),
            }
        }
        done += 1;
    }
    step.finish(&format!("{done} repeats of {count} rows"));
    let counted = plan.counted();
    for cell in cells.iter_mut().filter(|cell| !counted.is_empty() && !cell.sampled.is_empty()) {
        let (setting, way, seed) = (cell.setting, cell.way, seeds[repeats]);
        let turn =
            Turn { setting, parameters: &settings[setting], way, repeat: done, seed, seconds, counts: true };
        match sample(spec, context, plan, &turn, &place) {
            Ok((figures, _)) => {
                let own = figures.metrics.0.into_iter();
                cell.counted.0.extend(own.filter(|(name, _)| counted.contains(&name.as_str())));
            }
            Err(error) => cell.failures = (cell.failures.0 + 1, format!("{error:#}")),
        }
    }
    let conditions = plan.conditions();
    let table = |(setting, parameters): (usize, &Parameters)| {
        let mut table = Table::new(spec.name, plan.method(parameters, seconds));
        table.parameters = parameters.clone().into_iter().collect();
        if asked.is_some() {
            table = table.parameter("seconds", seconds);
        }
        let mut table = table
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
    let tables = settings.iter().enumerate().skip(first).map(table);
    Ok(tables.filter(|table| !table.rows.is_empty()).collect())
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
    let failures = cell.failures.0;
    let is_counted = cell.sampled.iter().any(|(_, figures)| figures.evidence.counter_deltas.seconds > 0.0);
    let mut row = if cell.sampled.is_empty() || (failures > 0 && plan.retries() == 0) {
        Row::skipped(cell.way.name, cell.failures.1.clone())
    } else {
        row_of(cell.way.name, cell.sampled, gates::processors())
    };
    if !is_counted {
        // Nothing was counted beside these samples that a gate could judge.
        row.conditions.clear();
    }
    if failures > 0 && row.skipped.is_none() {
        row.conditions.push(Condition {
            why: cell.failures.1,
            ..Condition::at_most(FAILED_SAMPLES, failures as f64, 0.0)
        });
    }
    row.metrics.0.extend(cell.counted.0);
    let mut row = row.describe(cell.way.description);
    row.series = cell.series;
    match plan.cache(parameters, cell.way) {
        Some(cache) => row.cache(cache),
        None => row,
    }
}
