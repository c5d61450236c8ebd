//! The results of a run: rows with their samples and gates, as tables for people and as JSON.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::cell::RowSamples;
use crate::gate::Gate;
use crate::sample::Sample;
use crate::statistics::{median, range};

const MIB: f64 = 1_048_576.0;

/// A row of an experiment.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    name: String,
    /// Medians over the samples; `*_min` and `*_max` beside a ratio are its spread.
    metrics: BTreeMap<String, f64>,
    samples: Vec<Sample>,
    gates: Vec<Gate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

/// One cell of a run: all rows under the same parameters.
#[derive(Debug, Serialize)]
pub(crate) struct Experiment {
    name: String,
    parameters: Map<String, Value>,
    /// The method of the numbers.
    method: String,
    rows: Vec<Row>,
}

impl Experiment {
    /// Returns an experiment from the samples of its rows (by repeat; `None` where a row failed), without
    /// gates.
    pub(crate) fn new(name: &str, parameters: Map<String, Value>, rows: &[RowSamples]) -> Self {
        let rows = rows
            .iter()
            .map(|row| {
                let mut samples = Vec::new();
                let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
                for (repeat, sample) in row.samples.iter().enumerate() {
                    let Some(mut sample) = sample.clone() else { continue };
                    for (metric, value) in sample.metrics() {
                        values.entry(metric.clone()).or_default().push(*value);
                    }
                    sample.set("repeat", repeat as f64);
                    samples.push(sample);
                }
                let metrics = values.into_iter().map(|(metric, values)| (metric, median(&values))).collect();
                Row {
                    name: row.name.clone(),
                    metrics,
                    samples,
                    gates: Vec::new(),
                    failure: row.failure.clone(),
                }
            })
            .collect();
        Self { name: name.to_owned(), parameters, method: String::new(), rows }
    }

    /// Sets a metric of a row to the median of `values`, with the smallest and largest beside it.
    pub(crate) fn set_ratio(&mut self, row: &str, metric: &str, values: &[f64]) {
        let Some(row) = self.rows.iter_mut().find(|other| other.name == row) else { return };
        if values.is_empty() {
            return;
        }
        let (low, high) = range(values);
        row.metrics.insert(metric.to_owned(), median(values));
        row.metrics.insert(format!("{metric}_min"), low);
        row.metrics.insert(format!("{metric}_max"), high);
    }

    /// Sets a metric of a row.
    pub(crate) fn set(&mut self, row: &str, metric: &str, value: f64) {
        if let Some(row) = self.rows.iter_mut().find(|other| other.name == row)
            && value.is_finite()
        {
            row.metrics.insert(metric.to_owned(), value);
        }
    }

    /// Returns a metric of a row, `NaN` when it was not measured.
    pub(crate) fn get(&self, row: &str, metric: &str) -> f64 {
        let row = self.rows.iter().find(|other| other.name == row);
        row.and_then(|row| row.metrics.get(metric)).copied().unwrap_or(f64::NAN)
    }

    /// Adds a gate to a row, if the run has that row.
    pub(crate) fn add_gate(&mut self, row: &str, gate: Gate) {
        if let Some(row) = self.rows.iter_mut().find(|other| other.name == row) {
            row.gates.push(gate);
        }
    }

    /// Prints the table and the gates, and keeps the title as the method. Metrics in bytes are shown in MiB.
    /// `columns` are a metric, its heading and its digits after the point.
    pub(crate) fn print(&mut self, title: &str, columns: &[(&str, &str, usize)]) {
        title.clone_into(&mut self.method);
        println!("\n{title}");
        let shown: Vec<_> = columns
            .iter()
            .filter(|(metric, ..)| self.rows.iter().any(|row| row.metrics.contains_key(*metric)))
            .collect();
        let width = self.rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
        print!("{:width$}", "");
        for (_, heading, _) in &shown {
            print!("  {heading:>w$}", w = column_width(heading));
        }
        println!();
        for row in &self.rows {
            print!("{:width$}", row.name);
            for (metric, heading, digits) in &shown {
                let w = column_width(heading);
                match row.metrics.get(*metric) {
                    Some(value) => {
                        let unit = if metric.ends_with("_bytes") { MIB } else { 1.0 };
                        print!("  {:>w$.digits$}", value / unit);
                    }
                    None => print!("  {:>w$}", "-"),
                }
            }
            println!("{}", row.failure.as_ref().map(|text| format!("  failed: {text}")).unwrap_or_default());
        }
        let noise = self.rows.iter().filter_map(|row| row.metrics.get("a_a_spread"));
        let noise = noise.copied().fold(0.0, f64::max);
        if noise > 0.10 {
            println!(
                "  NOISE: the A-A spread is {noise:.2}; these figures decide nothing, run again on a machine at rest"
            );
        }
        for gate in self.rows.iter().flat_map(|row| &row.gates) {
            println!("  {}", gate.line());
        }
    }
}

fn column_width(heading: &str) -> usize {
    heading.len().max(9)
}

/// A whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    schema: u32,
    forebay: &'static str,
    environment: Value,
    experiments: Vec<Experiment>,
}

impl Document {
    /// Returns an empty run on this machine.
    pub(crate) fn new() -> Self {
        Self {
            schema: 1,
            // All crates of the workspace have one version.
            forebay: env!("CARGO_PKG_VERSION"),
            environment: crate::environment::describe(),
            experiments: Vec::new(),
        }
    }

    /// Adds an experiment.
    pub(crate) fn push(&mut self, experiment: Experiment) {
        self.experiments.push(experiment);
    }

    /// Writes the JSON file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
    }

    /// Prints how many gates were met and returns the number that were missed, rows that failed included.
    ///
    /// # Errors
    /// When no row has a figure.
    pub(crate) fn summarise(&self) -> Result<usize> {
        let rows = || self.experiments.iter().flat_map(|experiment| &experiment.rows);
        let gates: Vec<_> = rows().flat_map(|row| &row.gates).collect();
        let strictly = gates.iter().filter(|gate| gate.met_strictly()).count();
        let met = gates.iter().filter(|gate| gate.met()).count();
        let failed = rows().filter(|row| row.failure.is_some()).count();
        println!(
            "\n{} gates: {strictly} met, {} met within the A-A spread of their cell, {} missed; {failed} rows failed",
            gates.len(),
            met - strictly,
            gates.len() - met
        );
        anyhow::ensure!(rows().any(|row| !row.samples.is_empty()), "no row gave a figure");
        Ok(gates.len() - met + failed)
    }
}
