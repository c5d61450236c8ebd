//! An experiment on several hosts: the same rows as on one, with every sample on all hosts at once.

use std::collections::BTreeSet;

use super::super::experiment::Experiment;
use super::super::options::Values;
use super::super::plan::{Sizes, interleaved};
use super::super::runner::seeds;
use super::super::units::show_bytes;
use super::controller::{Controller, Host, HostSample};
use super::merge::{Round, Rounds, rows};
use super::message::Sample;
use crate::context::Context;
use crate::progress::Unit;
use forebay_report::result::{CacheState, Condition, Experiment as Table, Row};

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

const METHOD: &str = "Unless its row says otherwise, every host has a file of its own with contents of its own. Every sample runs on all hosts at \
    once, each time in a fresh process that had everything ready before and began at the same instant; how far the \
    starts lay apart is `start_skew_us`, and how well the hosts' clocks are known is `clock_error_us`. A row without @ \
    is all hosts together: all their operations, from the first start to the last end, with percentiles of their merged \
    histogram; a row with @ is one host within the same time. Rows take turns within a repeat, and a figure is the \
    median of the repeats.";
