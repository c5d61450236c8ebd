//! An experiment on several hosts: the same rows as on one, with every sample on all hosts together. Each way has a row for all
//! hosts together, and one for each host. Histograms are merged; nothing is averaged over hosts.

use std::collections::BTreeSet;

use super::controller::{Controller, Host, HostSample};
use super::message::Sample;
use crate::context::Context;
use crate::experiment::{Experiment, Outcome, Spec};
use crate::gates::SampleFigures;
use crate::gates::{self, Claim};
use crate::latency::{self, Latency};
use crate::options::Values;
use crate::plan::{Sizes, interleaved};
use crate::progress::Unit;
use crate::runner::{figures, row_of, seeds};
use crate::units::show_bytes;
use forebay_report::result::{CacheState, Condition, Experiment as Table, Row, metric};

/// One row of one table, and its samples.
struct Cell {
    setting: usize,
    row: Row,
    rounds: Rounds,
}

/// Measures an experiment on all hosts.
///
/// # Errors
/// Fails when a host was lost or cannot measure, or no row could be measured.
pub(super) fn measure(
    controller: &mut Controller,
    experiment: &dyn Experiment,
    options: &Values,
    context: &Context,
) -> anyhow::Result<Vec<Table>> {
    let (spec, hosts) = (experiment.spec(), controller.hosts.len());
    let mut options = options.clone();
    if options.has("memory") {
        // Sizes that every host can afford.
        let affordable = controller.hosts.iter().map(|host| host.facts.memory_affordable_bytes).min();
        let (memory, size) = (options.optional("memory"), options.optional("size"));
        let sizes = Sizes::within(affordable.unwrap_or(u64::MAX), context, memory, size)?;
        options.set("memory", sizes.memory_bytes as f64);
        options.set("size", sizes.file_bytes as f64);
    }
    let file_bytes = options.count("size");
    let label = format!("write {} of test data on each of {hosts} hosts", show_bytes(file_bytes));
    let step = context.step(label, hosts as u64, Unit::Count);
    controller.prepare(spec.name, &options, context.seed, file_bytes)?;
    step.finish("done");

    let mut tables = frames(&controller.hosts);
    let mut cells = Vec::new();
    for (setting, table) in tables.iter_mut().enumerate() {
        let rows = std::mem::take(&mut table.rows).into_iter();
        cells.extend(rows.map(|row| Cell { setting, row, rounds: Ok(Vec::new()) }));
    }
    let repeats = options.count("repeats").max(1) as usize;
    let seconds = options.number("seconds").unwrap_or(1.0);
    let label = format!("measure {} on {hosts} hosts", spec.name);
    let step = context.step(label, (cells.len() * repeats) as u64, Unit::Count);
    for (repeat, seed) in seeds(context, repeats).into_iter().enumerate() {
        for (position, index) in interleaved(repeat, cells.len()).enumerate() {
            step.set((repeat * cells.len() + position) as u64);
            let Cell { setting, row, rounds: Ok(rounds) } = &mut cells[index] else { continue };
            step.message(row.name.as_str());
            let sample = Sample { setting: *setting, row: row.name.clone(), repeat, seed, seconds };
            match controller.round(sample)? {
                Ok(hosts) => rounds.push(Round { repeat: repeat as u32, hosts }),
                Err(why) => cells[index].rounds = Err(why),
            }
        }
    }
    step.finish(&format!("{repeats} repeats of {} cells", cells.len()));
    let failed: Vec<&String> = cells.iter().filter_map(|cell| cell.rounds.as_ref().err()).collect();
    if let Some(why) = failed.first().filter(|_| failed.len() == cells.len()) {
        anyhow::bail!("nothing could be measured: {why}");
    }
    for cell in cells {
        let last = cell.rounds.as_ref().ok().and_then(|rounds| rounds.last());
        let table = &mut tables[cell.setting];
        if let Some(last) = last.filter(|_| table.conditions.is_empty()) {
            table.conditions = preconditions(last, &controller.hosts);
        }
        table.rows.extend(rows(spec, &cell.row, &cell.rounds, &controller.hosts)?);
    }
    let names: Vec<&str> = controller.hosts.iter().map(|host| host.name.as_str()).collect();
    let finish = |table: Table| {
        let table = table.parameter("hosts", names.clone()).parameter("seconds", seconds);
        table.parameter("repeats", repeats).parameter("seed", context.seed)
    };
    Ok(tables.into_iter().map(finish).collect())
}

/// Returns the tables of the first host, with the parameters that are the same on all hosts and the notes of each. Their rows
/// have no figures.
fn frames(hosts: &[Host]) -> Vec<Table> {
    let prepared = || hosts.iter().filter_map(|host| Some((host, host.prepared.as_ref()?)));
    let Some((_, first)) = prepared().next() else { return Vec::new() };
    let mut tables = first.tables.clone();
    for (setting, table) in tables.iter_mut().enumerate() {
        let others = || prepared().filter_map(|(host, own)| Some((host, own.tables.get(setting)?)));
        table.method = METHOD.to_owned();
        table
            .parameters
            .retain(|name, value| others().all(|(_, other)| other.parameters.get(name) == Some(value)));
        let about =
            prepared().map(|(host, own)| format!("@{} is {}: {}", host.label, host.title(), own.about));
        let common: BTreeSet<String> = table
            .notes
            .drain(..)
            .filter(|note| others().all(|(_, other)| other.notes.contains(note)))
            .collect();
        let own = others().flat_map(|(host, other)| {
            let own = other.notes.iter().filter(|note| !common.contains(*note));
            own.map(|note| format!("@{}: {note}", host.label)).collect::<Vec<_>>()
        });
        table.notes = about.chain(own).chain(common.iter().cloned()).collect();
        for row in &mut table.rows {
            let is_same =
                |(_, other): (&Host, &Table)| other.row(&row.name).is_some_and(|own| own.cache == row.cache);
            if !others().all(is_same) {
                row.cache = Some(CacheState::Warm);
            }
        }
    }
    tables
}

/// Returns the preconditions of each host, with the host's label.
fn preconditions(round: &Round, hosts: &[Host]) -> Vec<Condition> {
    let of_host = |(sample, host): (&HostSample, &Host)| {
        let labelled =
            |gate: &Condition| Condition { why: format!("@{}: {}", host.label, gate.why), ..gate.clone() };
        sample.conditions.iter().map(labelled).collect::<Vec<_>>()
    };
    round.hosts.iter().zip(hosts).flat_map(of_host).collect()
}

/// The largest spread of the starts, as a share of the sample's time. A larger one makes the sum of the
/// hosts doubtful.
const SKEW_SHARE_MAX: f64 = 0.05;

/// One repeat: the result of every host.
#[derive(Debug)]
struct Round {
    repeat: u32,
    hosts: Vec<HostSample>,
}

/// All repeats of a row, or the reason for their absence.
type Rounds = Result<Vec<Round>, String>;

/// Returns the rows of one way; `frame` has its name, description and state of the cache.
///
/// # Errors
/// Fails when hosts sent histograms that do not fit together.
fn rows(spec: &Spec, frame: &Row, rounds: &Rounds, hosts: &[Host]) -> anyhow::Result<Vec<Row>> {
    let finish = |row: Row, whose: String| {
        let row = row.describe(format!("{}; {whose}", frame.description));
        match frame.cache {
            Some(cache) => row.cache(cache),
            None => row,
        }
    };
    let all_hosts = "all hosts together".to_owned();
    let name = &frame.name;
    let rounds = match rounds {
        Ok(rounds) => rounds,
        Err(why) => return Ok(vec![finish(Row::skipped(name, why), all_hosts)]),
    };
    let sampled = rounds
        .iter()
        .map(|round| Ok((round.repeat, together(spec, round)?)))
        .collect::<anyhow::Result<_>>()?;
    let mut all = row_of(name, sampled, 1);
    // Gates of a process belong to the hosts' rows.
    all.conditions = conditions(rounds);
    let mut rows = vec![finish(all, all_hosts)];
    for (index, host) in hosts.iter().enumerate() {
        let alone = |round: &Round| {
            let sample = &round.hosts[index];
            (round.repeat, figures(spec, sample.claim, &sample.outcome))
        };
        let processors = host.facts.cpus_allowed.clamp(1, 1 << 16) as usize;
        let sampled = rounds.iter().map(alone).collect();
        let row = row_of(&format!("{name}@{}", host.label), sampled, processors);
        rows.push(finish(row, format!("{} alone", host.title())));
    }
    Ok(rows)
}

/// Returns all hosts' samples of one round as one: operations of all, from the first start to the last end.
fn together(spec: &Spec, round: &Round) -> anyhow::Result<SampleFigures> {
    let mut sampled = figures(spec, Claim::default(), &whole(&round.hosts)?);
    let error_ns = round.hosts.iter().map(|sample| sample.clock_error_ns).max().unwrap_or(0);
    sampled.metrics.set(metric::CLOCK_ERROR_US, error_ns as f64 / 1e3);
    Ok(sampled)
}

/// Returns samples that started together as one sample.
///
/// # Errors
/// Their histograms do not fit together.
pub(crate) fn whole(hosts: &[HostSample]) -> anyhow::Result<Outcome> {
    let window = Window::of(hosts);
    // Requests in flight are left out: hosts may share a device, whose requests would be counted for each of them.
    let mut all = Outcome { seconds: window.last_done_s, ..Outcome::default() };
    for outcome in hosts.iter().map(|sample| &sample.outcome) {
        all.cpu_seconds += outcome.cpu_seconds;
        all.context_switches += outcome.context_switches;
        all.bytes += outcome.bytes;
        all.operations += outcome.operations;
        latency::merge(&mut all.evidence.times, outcome.evidence.times.clone())?;
    }
    all.figures
        .set(metric::FIRST_DONE_S, window.first_done_s)
        .set(metric::LAST_DONE_S, window.last_done_s)
        .set(metric::START_SKEW_US, window.skew_s * 1e6);
    Ok(all)
}

/// Times in seconds since the first host's start.
#[derive(Debug)]
struct Window {
    first_done_s: f64,
    last_done_s: f64,
    /// The time until the last host's start.
    skew_s: f64,
}

impl Window {
    fn of(hosts: &[HostSample]) -> Self {
        let first = hosts.iter().map(|sample| sample.begun_ns).min().unwrap_or(0);
        let starts = || hosts.iter().map(|sample| (sample.begun_ns - first) as f64 / 1e9);
        let ends = || starts().zip(hosts).map(|(start, sample)| start + sample.outcome.seconds);
        Self {
            first_done_s: ends().fold(f64::INFINITY, f64::min),
            last_done_s: ends().fold(0.0, f64::max),
            skew_s: starts().fold(0.0, f64::max),
        }
    }
}

/// Returns the gates of all hosts together.
fn conditions(rounds: &[Round]) -> Vec<Condition> {
    let skews = rounds.iter().map(|round| {
        let window = Window::of(&round.hosts);
        let share = window.skew_s / window.last_done_s;
        (round.repeat, Condition::at_most("start_skew", share, SKEW_SHARE_MAX))
    });
    let counts = rounds.iter().filter_map(|round| {
        let results = || round.hosts.iter().map(|sample| &sample.outcome);
        let operations: u64 = results().map(|result| result.operations).sum();
        let times = results().filter_map(|result| result.evidence.times.get("latency"));
        let counted = times.map(Latency::count).reduce(|one, other| one + other)?;
        let share = counted.min(operations) as f64 / counted.max(operations) as f64;
        Some((round.repeat, Condition::at_least("sums", share, 1.0)))
    });
    let skew = gates::worst(skews.collect()).map(|gate| {
        gate.with_meaning("how far the hosts' starts lay apart, as a share of the sample's time")
    });
    let count = gates::worst(counts.collect()).map(|gate| {
        gate.with_meaning("the hosts' operations and those in the merged histogram, smaller by larger")
    });
    skew.into_iter().chain(count).collect()
}

const METHOD: &str = "Unless its row says otherwise, every host has a file of its own with contents of its own. Every sample runs on all hosts at \
    once, each time in a fresh process that had everything ready before and began at the same instant; how far the \
    starts lay apart is `start_skew_us`, and how well the hosts' clocks are known is `clock_error_us`. A row without @ \
    is all hosts together: all their operations, from the first start to the last end, with percentiles of their merged \
    histogram; a row with @ is one host within the same time. Rows take turns within a repeat, and a figure is the \
    median of the repeats.";

#[cfg(test)]
#[path = "rounds_tests.rs"]
mod tests;
