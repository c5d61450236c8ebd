//! Runs the plan of an experiment: every row of every table has its turn in each repeat, in a separate process, and the samples
//! become rows.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::cleanup::Cleanup;
use crate::context::Context;
use crate::experiment::{Experiment, Outcome, Parameters, Plan, Spec, Start, Turn, Way};
use crate::gates::{self, Claim, SampleFigures};
use crate::job::Job;
use crate::latency::{self, Latency};
use crate::options::{Length, Values};
use crate::pattern::SplitMix;
use crate::plan::{another_repeat, fit_seconds, interleaved};
use crate::progress::Unit;
use crate::sampler::{Begin, run_child_at};
use forebay_report::result::{Condition, Experiment as Table, Metrics, Row, Sample, Series, metric};

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
    series: Series,
    degraded: Option<String>,
}

/// Measures all rows of all tables of a plan in turn, and returns the tables. Options that every run has: `seconds`,
/// `repeats`, `rows`. A table without any of the rows that were named is left out.
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
    let take = |plan: &mut dyn Plan, turn: &Turn<'_>| sample(spec, plan, turn, &context.cleanup, None);
    run_by(spec, options, length, context, plan, take)
}

/// Does the same with samples that `take` runs.
fn run_by(
    spec: &'static Spec,
    options: &Values,
    length: Length,
    context: &Context,
    plan: &mut dyn Plan,
    take: impl FnMut(&mut dyn Plan, &Turn<'_>) -> anyhow::Result<(Outcome, Claim)>,
) -> anyhow::Result<Vec<Table>> {
    debug_assert!(length == Length::Quick || !context.quick, "the defaults are those of the context");
    let mut settings = plan.settings();
    let tables = measure(spec, options, context, plan, &mut settings, 0, take)?;
    let mut rows = tables.iter().flat_map(|table| &table.rows).peekable();
    if let Some(why) =
        rows.peek().and_then(|row| row.skipped.as_ref()).filter(|_| rows.all(|row| row.skipped.is_some()))
    {
        anyhow::bail!("nothing could be measured on {}: {why}", context.target.path().display());
    }
    Ok(tables)
}

/// Measures one table of a plan after the other, and passes each to `done` with the comparisons of its rows. For plans whose
/// settings disturb each other, or last so long that each is saved immediately.
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
    let spec = experiment.spec();
    let mut settings = plan.settings();
    for first in 0..settings.len() {
        let take = |plan: &mut dyn Plan, turn: &Turn<'_>| sample(spec, plan, turn, &context.cleanup, None);
        for mut table in measure(spec, options, context, plan, &mut settings[..=first], first, take)? {
            experiment.targets().compare(&mut table);
            done(table)?;
        }
    }
    Ok(())
}

/// Measures the settings from number `first` on.
fn measure(
    spec: &'static Spec,
    options: &Values,
    context: &Context,
    plan: &mut dyn Plan,
    settings: &mut [Parameters],
    first: usize,
    mut take: impl FnMut(&mut dyn Plan, &Turn<'_>) -> anyhow::Result<(Outcome, Claim)>,
) -> anyhow::Result<Vec<Table>> {
    let mut cells: Vec<Cell> = Vec::new();
    for (setting, parameters) in settings.iter().enumerate().skip(first) {
        let own = ways(spec, options, plan, parameters);
        cells.extend(own.map(|way| Cell {
            setting,
            way,
            sampled: Vec::new(),
            failures: Default::default(),
            counted: Metrics::default(),
            series: Default::default(),
            degraded: None,
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
    let tries = plan.retries() + 1;
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
            match take(plan, &turn) {
                Ok((outcome, claim)) => {
                    cell.sampled.push((done as u32, figures(spec, claim, &outcome)));
                    cell.degraded = cell.degraded.take().or(outcome.degraded);
                    if done == 0 {
                        cell.series = outcome.series;
                    }
                    settings[setting].extend(outcome.found);
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
        match take(plan, &turn) {
            Ok((outcome, claim)) => {
                let own = figures(spec, claim, &outcome).metrics.0.into_iter();
                cell.counted.0.extend(own.filter(|(name, _)| counted.contains(&name.as_str())));
            }
            Err(error) => cell.failures = (cell.failures.0 + 1, format!("{error:#}")),
        }
    }
    let table = |(setting, parameters): (usize, &Parameters)| {
        let own: Vec<Cell> = cells.extract_if(.., |cell| cell.setting == setting).collect();
        let degraded = own.iter().filter_map(|cell| Some((cell.way.name, cell.degraded.as_ref()?)));
        let degraded: Vec<String> =
            degraded.map(|(name, why)| format!("`{name}` ran degraded: {why}")).collect();
        let rows = own.into_iter().map(|cell| row(plan, parameters, cell)).collect();
        let mut table = table(spec, plan, parameters, asked.map(|_| seconds), rows);
        table.notes.extend(cut_short(done, repeats));
        table.notes.extend(degraded);
        table.parameter("repeats", done).parameter("seed", context.seed)
    };
    let tables = settings.iter().enumerate().skip(first).map(table);
    Ok(tables.filter(|table| !table.rows.is_empty()).collect())
}

/// Returns the ways of a table, in their order.
pub(crate) fn ways<'a>(
    spec: &'static Spec,
    options: &'a Values,
    plan: &'a dyn Plan,
    setting: &'a Parameters,
) -> impl Iterator<Item = &'static Way> + 'a {
    let named = |way: &Way| options.rows.is_empty() || options.rows.iter().any(|name| name == way.name);
    spec.ways
        .iter()
        .filter(move |way| plan.always(setting, way) || (way.always || named(way)) && plan.has(setting, way))
}

/// Returns a table with these rows.
pub(crate) fn table(
    spec: &Spec,
    plan: &dyn Plan,
    setting: &Parameters,
    seconds: Option<f64>,
    rows: Vec<Row>,
) -> Table {
    let mut table = Table::new(spec.name, plan.method(setting, seconds.unwrap_or_default()));
    table.parameters = setting.clone().into_iter().collect();
    if let Some(seconds) = seconds {
        table = table.parameter("seconds", seconds);
    }
    let place = plan.place();
    let mut table = table.parameter("file_system", place.file_system);
    table.notes = plan.notes(setting);
    table.conditions = place.conditions;
    table.rows = rows;
    plan.finish(setting, &mut table);
    table
}

/// Describes the setting, for the progress.
fn described(spec: &Spec, parameters: &Parameters) -> String {
    let value = parameters.get(&*spec.axis.parameter);
    value.map_or_else(String::new, |value| format!(", {} {value}", spec.axis.label))
}

/// Runs one sample, which starts at the instant returned by `begin`, if given.
///
/// # Errors
/// The row cannot be run here, or did not do its work.
pub(crate) fn sample(
    spec: &Spec,
    plan: &mut dyn Plan,
    turn: &Turn<'_>,
    cleanup: &Cleanup,
    begin: Option<&mut Begin<'_>>,
) -> anyhow::Result<(Outcome, Claim)> {
    let place = plan.place();
    let mut job = Job::new(spec.name, place.path, turn.parameters, turn.seconds)?;
    job.device_stat = place.device_stat;
    (job.row, job.seed, job.seconds) = (turn.way.name.to_owned(), turn.seed, turn.seconds);
    let start: Start = plan.start(turn, job)?;
    let text = run_child_at(&start.job, start.group.as_ref(), cleanup, begin)?;
    let mut outcome: Outcome =
        serde_json::from_str(&text).context("the result of the measuring process cannot be read")?;
    plan.ended(turn, &start, &mut outcome)?;
    let claim = plan.claim(turn, &outcome);
    Ok((outcome, claim))
}

/// Returns the metrics of the spec's columns and charts, with the evidence behind them.
pub(crate) fn figures(spec: &Spec, claim: Claim, outcome: &Outcome) -> SampleFigures {
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
    let failures = cell.failures.0;
    let is_counted = cell.sampled.iter().any(|(_, figures)| figures.evidence.counter_deltas.seconds > 0.0);
    let mut row = if cell.sampled.is_empty() || (failures > 0 && plan.retries() == 0) {
        Row::skipped(cell.way.name, cell.failures.1.clone())
    } else {
        row_of(cell.way.name, cell.sampled, gates::processors())
    };
    if !is_counted {
        // Nothing was counted during these samples that a gate could judge.
        row.conditions.clear();
    }
    if failures > 0 && row.skipped.is_none() {
        row.conditions.push(Condition {
            why: cell.failures.1,
            ..Condition::at_most(FAILED_SAMPLES, failures as f64, 0.0)
        });
    }
    row.metrics.0.extend(cell.counted.0);
    (row.series, row.degraded) = (cell.series, cell.degraded);
    described_row(plan, parameters, cell.way, row)
}

/// Returns the row with the description of its way, and the state of the cache in which its samples start.
pub(crate) fn described_row(plan: &dyn Plan, setting: &Parameters, way: &Way, row: Row) -> Row {
    let row = row.describe(way.description);
    match plan.cache(setting, way) {
        Some(cache) => row.cache(cache),
        None => row,
    }
}

/// Returns a seed for each repeat, shared by all cells. It has 53 bits, which every JSON parser
/// stores exactly.
pub(super) fn seeds(context: &Context, repeats: usize) -> Vec<u64> {
    let mut seeds = SplitMix::new(context.seed);
    (0..repeats).map(|_| seeds.next_u64() >> 11).collect()
}

/// Returns a note when the budget did not suffice.
pub(super) fn cut_short(done: usize, wanted: usize) -> Option<String> {
    (done < wanted).then(|| format!("{done} of {wanted} repeats were run: the time given was over"))
}

/// Returns the row of samples run on `processors` processors, by number of repeat. Its figures are medians of the samples,
/// percentiles over the operations of all samples together, and the gates.
pub(super) fn row_of(name: &str, sampled: Vec<(u32, SampleFigures)>, processors: usize) -> Row {
    let seen: Vec<_> = sampled
        .iter()
        .map(|(repeat, sampled)| (*repeat, &sampled.evidence.counter_deltas, sampled.claim))
        .collect();
    let conditions = gates::of_row(&seen, processors);
    let mut merged: BTreeMap<String, Latency> = BTreeMap::new();
    let mut samples = Vec::with_capacity(sampled.len());
    let mut left_out = BTreeMap::new();
    for (repeat, mut sampled) in sampled {
        for (metric, why) in gates::implausible(&sampled) {
            sampled.metrics.0.remove(&metric);
            left_out.entry(metric).or_insert(why);
        }
        // All histograms of this program have the same bounds.
        let _ = latency::merge(&mut merged, sampled.evidence.times);
        samples.push(Sample { repeat, metrics: sampled.metrics });
    }
    let mut row = Row::from_samples(name, samples);
    for (name, latency) in &merged {
        let prefix = if name == "latency" { String::new() } else { format!("{name}_") };
        for (percentile, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99_9", 0.999), ("max", 1.0)] {
            let metric = format!("{prefix}{percentile}_us");
            if let Some(value) = latency.quantile_us(quantile).filter(|_| row.metrics.get(&metric).is_some())
            {
                row.metrics.set(&metric, value);
            }
        }
        if let Ok(text) = latency.to_text() {
            row.histograms.insert(name.clone(), text);
        }
    }
    row.conditions = conditions;
    row.left_out = left_out;
    row
}

/// Returns the end of the experiment's budget.
pub(super) fn until(context: &Context) -> Option<Instant> {
    context.remaining().and_then(|left: Duration| Instant::now().checked_add(left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;
    use crate::context::Target;
    use crate::experiment::{Place, parameters};
    use crate::options::Opt;
    use crate::progress::Progress;
    use forebay_report::result::CacheState;
    use forebay_report::result::columns;
    use forebay_report::result::view::{Axis, Role};

    static SPEC: Spec = Spec {
        name: "test",
        about: "",
        quick_seconds: 1,
        full_seconds: 1,
        needs_directory: true,
        options: &[Opt::seconds("1", "1"), Opt::repeats("3")],
        ways: &[Way::direct("a", "does it"), Way::direct("b", "")],
        columns: &[columns::IOPS, columns::P50_US],
        compared: metric::IOPS,
        charts: &[],
        axis: Axis::new("depth", "depth"),
        role: Role::Other,
        gains: Vec::new,
    };

    struct Fake;

    impl Plan for Fake {
        fn place(&self) -> Place {
            let (path, file_system) = ("/data".into(), "ext4".to_owned());
            Place { path, file_system, device_stat: None, conditions: Vec::new() }
        }

        fn settings(&self) -> Vec<Parameters> {
            vec![parameters(serde_json::json!({ "depth": 1 }))]
        }

        fn claim(&self, _: &Turn<'_>, _: &Outcome) -> Claim {
            Claim::default()
        }

        fn cache(&self, _: &Parameters, _: &Way) -> Option<CacheState> {
            None
        }

        fn method(&self, _: &Parameters, _: f64) -> String {
            String::new()
        }
    }

    fn outcome(times_us: &[u64]) -> Outcome {
        let mut latency = Latency::new().expect("a few kilobytes");
        times_us.iter().for_each(|time| latency.record(Duration::from_micros(*time)));
        let mut outcome = Outcome { seconds: 1.0, operations: latency.count(), ..Outcome::default() };
        outcome.times("latency", latency);
        outcome.evidence.counter_deltas.seconds = 1.0;
        outcome
    }

    fn measure(take: impl FnMut(&Turn<'_>) -> anyhow::Result<Outcome>) -> anyhow::Result<Vec<Table>> {
        let mut take = take;
        let context =
            Context::new(Target::Directory("/data".into()), Progress::Silent, Cleanup::default(), 1);
        let values = Values::new(SPEC.options, None, Length::Full).expect("valid");
        run_by(&SPEC, &values, Length::Full, &context, &mut Fake, |_, turn| {
            Ok((take(turn)?, Claim::default()))
        })
    }

    /// A median of medians would hide that a whole repeat was slow.
    #[test]
    fn percentiles_are_those_of_all_operations_and_the_spread_is_that_of_the_samples() {
        let times: [&[u64]; 3] = [&[10, 10, 10], &[10], &[1000, 1000, 1000, 1000, 1000]];
        let tables = measure(|turn| Ok(outcome(times[turn.repeat]))).expect("all work");
        let row = &tables[0].rows[0];
        let p50 = row.metrics.get(metric::P50_US).expect("measured");
        assert!((p50 / 1000.0 - 1.0).abs() < 0.02, "{p50}");
        let (low, high) = row.spread(metric::P50_US).expect("measured");
        assert!(low < 11.0 && high > 990.0, "{low} {high}");
        let merged = Latency::try_from(row.histograms["latency"].clone()).expect("its own text");
        assert_eq!(merged.count(), 9);
        assert_eq!(row.metrics.get(metric::P99_US), None, "what no column shows is left out");
        assert_eq!((row.description.as_str(), row.conditions.len()), ("does it", 5));
        assert_eq!((tables[0].number("repeats"), tables[0].number("depth")), (Some(3.0), Some(1.0)));
    }

    #[test]
    fn one_that_fails_is_left_out_and_all_that_fail_are_an_error() {
        let mut calls = Vec::new();
        let tables = measure(|turn| {
            calls.push(format!("{}{}", turn.way.name, turn.repeat));
            anyhow::ensure!(turn.way.name != "b", "refused");
            Ok(outcome(&[1]))
        });
        let tables = tables.expect("one works");
        assert_eq!(calls, ["a0", "b0", "a1", "a2"]);
        assert_eq!(tables[0].rows[0].samples.len(), 3);
        assert_eq!(tables[0].rows[1].skipped.as_deref(), Some("refused"));
        let error = measure(|_| anyhow::bail!("refused")).expect_err("none works");
        assert_eq!(error.to_string(), "nothing could be measured on /data: refused");
        assert_eq!(cut_short(2, 2), None);
        assert!(cut_short(1, 2).is_some_and(|note| note.starts_with("1 of 2")));
    }
}
