//! The result schema: the output of every command of the program with `--json`.
//!
//! All commands share one document and one shape; `result.schema.json` describes every field to a reader of the JSON,
//! `crates/forebay-report/SCHEMA.md` the rest. Numbers are in [`Metrics`], whose names end in their unit.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::environment::Environment;
use crate::result::view::View;
use crate::units::number;

pub mod columns;
pub mod metric;
pub mod targets;
pub mod view;

/// Name of the gate that compares the bytes of a row with those that the device moved.
pub const DEVICE_BYTES: &str = "device_bytes";
/// Suffix of the name of a row that failed a gate.
pub(crate) const FAILED_GATE_MARK: &str = " (!)";
/// Gates that do not apply where memory served a row.
const OF_THE_DEVICE: [&str; 2] = [DEVICE_BYTES, "generator"];

/// The version of the schema; raised when a field changes its meaning or is removed, not when one is added.
pub const SCHEMA: u32 = 2;

/// A whole result document.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Report {
    /// The version of the schema; a document that was read may have a lower one.
    pub schema: u32,
    /// The version of the program that measured.
    pub forebay: String,
    /// The place of the measurement, and the findings of `doctor` there.
    pub environment: Environment,
    /// How experiments of each name are shown.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    views: BTreeMap<String, Arc<View>>,
    /// The experiments; empty for `doctor`.
    pub experiments: Vec<Experiment>,
    /// The experiments of a report that were left out, each with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<String, String>,
    /// Sentences computed from the numbers (the report only).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<String>,
}

impl Report {
    /// Returns a document of this program's version.
    pub fn new(environment: Environment, experiments: Vec<Experiment>) -> Self {
        let own = |experiment: &&Experiment| *experiment.view != View::default();
        let named = |experiment: &Experiment| (experiment.name.clone(), Arc::clone(&experiment.view));
        Self {
            schema: SCHEMA,
            forebay: env!("CARGO_PKG_VERSION").to_owned(),
            environment,
            views: experiments.iter().filter(own).map(named).collect(),
            experiments,
            left_out: BTreeMap::new(),
            verdicts: Vec::new(),
        }
    }

    /// Reads a document, and gives each experiment its view.
    ///
    /// # Errors
    /// The document does not follow the schema.
    pub(crate) fn read(document: serde_json::Value) -> serde_json::Result<Self> {
        let mut report: Self = serde_json::from_value(document)?;
        for experiment in &mut report.experiments {
            experiment.view = report.views.get(&experiment.name).cloned().unwrap_or_default();
        }
        Ok(report)
    }

    /// Adds the contents of another result; the place of its measurement is dropped.
    pub fn add(&mut self, other: Self) {
        self.views.extend(other.views);
        self.experiments.extend(other.experiments);
        self.left_out.extend(other.left_out);
        self.verdicts.extend(other.verdicts);
    }

    /// Returns the document as indented JSON with a final newline.
    ///
    /// # Errors
    /// Fails only when a metric is not a finite number.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }
}

/// Several ways of doing the same work under the same conditions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Experiment {
    /// The name on the command line: `scan`, `random`, ...
    pub name: String,
    /// The fixed parameters: `file_bytes`, `block_bytes`, `depth`, `span_bytes`, `seed`, ...; names
    /// end in their unit.
    pub parameters: BTreeMap<String, serde_json::Value>,
    /// The method and the meaning of each number: one paragraph for a reader of the page.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub method: String,
    /// Caveats on the numbers ("the figures of `buffered` are warm: ...").
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Gates that concern all rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// One row for each way.
    pub rows: Vec<Row>,
    /// The title; empty in documents of schema 1 and of other programs, which are titled by their name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    title: String,
    /// The heading of the experiments that belong together, which have the same name and heading.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    heading: String,
    /// A sentence on the numbers of all experiments of the heading; the first of them has it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sentence: String,
    /// Its presentation; [`parse`](crate::saved::parse) finds it in a document.
    #[serde(skip)]
    pub view: Arc<View>,
}

impl Experiment {
    /// Returns an experiment without rows.
    pub fn new(name: impl Into<String>, method: impl Into<String>) -> Self {
        Self { name: name.into(), method: method.into(), ..Self::default() }
    }

    /// Returns a copy in which rows that were measured but are implausible have no figures.
    pub fn without_implausible(&self) -> Self {
        let mut without_implausible = self.clone();
        for row in &mut without_implausible.rows {
            if let Some(why) = row.implausible() {
                *row = Row::skipped(row.name.as_str(), why);
            }
        }
        without_implausible
    }

    /// Sets a parameter.
    pub fn parameter(mut self, name: &str, value: impl Into<serde_json::Value>) -> Self {
        self.parameters.insert(name.to_owned(), value.into());
        self
    }

    /// Adds rows.
    pub fn with_rows(mut self, rows: impl IntoIterator<Item = Row>) -> Self {
        self.rows.extend(rows);
        self
    }

    /// Sets the title, and the heading that it shares with the experiments that belong together.
    pub fn titled(&mut self, title: impl Into<String>, heading: impl Into<String>) {
        (self.title, self.heading) = (title.into(), heading.into());
    }

    /// Sets how it is shown.
    pub fn shown(mut self, view: View) -> Self {
        self.view = Arc::new(view);
        self
    }

    /// Returns the title for headings and sentences.
    pub fn title(&self) -> &str {
        if self.title.is_empty() { &self.name } else { &self.title }
    }

    /// Returns the heading of the experiments that belong together.
    pub fn heading(&self) -> &str {
        if self.heading.is_empty() { self.title() } else { &self.heading }
    }

    /// Returns the row called `name`.
    pub fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Returns whether a row failed a gate of the run: its own, or one that concerns all rows.
    pub(crate) fn is_marked(&self, row: &Row) -> bool {
        row.is_marked() || self.conditions.iter().any(Condition::failed)
    }

    /// Returns a parameter that is a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.parameters.get(name).and_then(serde_json::Value::as_f64)
    }

    /// Returns a parameter that is a text, or an empty string.
    pub fn text(&self, name: &str) -> &str {
        self.parameters.get(name).and_then(serde_json::Value::as_str).unwrap_or_default()
    }
}

/// One way of doing the work.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Row {
    /// A stable name such as `direct-large`.
    pub name: String,
    /// Describes this way in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Contents of the page cache when the samples started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheState>,
    /// The reason for missing figures (`uncached` on a file system without RWF_DONTCACHE).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Requested settings that were not granted: the figures are shown, but no limit applies to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub degraded: Option<String>,
    /// The median of each metric over the samples.
    pub metrics: Metrics,
    /// Figures that some sample lacks, with the reason: they could not be true there, or rested on too
    /// few operations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<String, String>,
    /// Every repeat, in the order in which it ran.
    pub samples: Vec<Sample>,
    /// Limits that a check applied to a metric; empty outside of checks.
    pub gates: Vec<Gate>,
    /// Gates of the run: whether the figures can be trusted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Times of single operations by name, over all samples: HdrHistogram V2, compressed, in base64; nanoseconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub histograms: BTreeMap<String, String>,
    /// Changes over time in the first repeat.
    #[serde(default, skip_serializing_if = "Series::is_empty")]
    pub series: Series,
    /// The command line of fio that does the same work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fio: Option<String>,
}

/// Lists of numbers of one length by name; a name ends in its unit, and `at_s` has the times of the values.
pub type Series = BTreeMap<String, Vec<f64>>;

impl Row {
    /// Returns a row whose metrics are the medians of `samples`.
    pub fn from_samples(name: impl Into<String>, samples: Vec<Sample>) -> Self {
        let mut values: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for sample in &samples {
            for (name, value) in &sample.metrics.0 {
                values.entry(name).or_default().push(*value);
            }
        }
        let medians =
            values.into_iter().filter_map(|(name, values)| Some((name.to_owned(), median(values)?)));
        let metrics = medians.collect();
        Self { name: name.into(), metrics: Metrics(metrics), samples, ..Self::default() }
    }

    /// Returns a row with a sample of the known figures of each repeat.
    pub fn of_repeats<'a, F: Into<Option<f64>>, S: IntoIterator<Item = (&'a str, F)>>(
        name: impl Into<String>,
        repeats: impl IntoIterator<Item = S>,
    ) -> Self {
        let sample = |(repeat, figures): (u32, S)| Sample { repeat, metrics: figures.into_iter().collect() };
        Self::from_samples(name, (0..).zip(repeats).map(sample).collect())
    }

    /// Returns a row that could not be measured here, with the reason.
    pub fn skipped(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { name: name.into(), skipped: Some(why.into()), ..Self::default() }
    }

    /// Sets the row's description: one sentence.
    pub fn describe(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    /// Sets the state of the page cache. Gates on the device's work do not apply to warm figures: such
    /// a row is about memory and a processor.
    pub fn cache(mut self, cache: CacheState) -> Self {
        self.cache = Some(cache);
        if cache == CacheState::Warm {
            for gate in self.conditions.iter_mut().filter(|gate| OF_THE_DEVICE.contains(&gate.name.as_str()))
            {
                *gate = Condition::unknown(&gate.name, "does not apply: memory may serve this row");
            }
        }
        self
    }

    /// Returns the reason why no verdict may rest on the row, although it was measured: the device
    /// moved other bytes than those that it counts.
    pub fn implausible(&self) -> Option<String> {
        let is_exact = |gate: &&Condition| gate.name == DEVICE_BYTES && gate.at_most.is_some();
        let gate = self.conditions.iter().filter(|gate| gate.failed()).find(is_exact)?;
        Some(format!("the device moved {:.2} times the bytes that it counts", gate.value?))
    }

    /// Returns whether the device's own counters prove that it did the work.
    pub fn is_proven(&self) -> bool {
        let proves = |gate: &Condition| gate.name == DEVICE_BYTES && gate.passed == Some(true);
        self.cache == Some(CacheState::Direct) && self.conditions.iter().any(proves)
    }

    /// Returns whether the row failed a gate of the run.
    pub fn is_marked(&self) -> bool {
        self.conditions.iter().any(Condition::failed)
    }

    /// Returns the median of a metric.
    pub fn get(&self, metric: &str) -> Option<f64> {
        self.metrics.get(metric)
    }

    /// Returns the smallest and the largest value of a metric over the samples.
    pub fn spread(&self, metric: &str) -> Option<(f64, f64)> {
        let values = self.samples.iter().filter_map(|sample| sample.metrics.get(metric));
        values.map(|value| (value, value)).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }
}

/// Contents of the page cache for the file when a sample started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CacheState {
    /// Direct I/O: the page cache plays no part.
    Direct,
    /// A cgroup limits the memory, page cache included, to less than the file.
    MemoryLimited,
    /// The caches of the whole system were dropped before each sample.
    Dropped,
    /// The file's own pages were evicted by fadvise, and mincore confirmed their eviction.
    Evicted,
    /// The file may be cached wholly or in part: the figure says little about the device.
    Warm,
}

impl CacheState {
    /// Returns the words for a table.
    pub fn label(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::MemoryLimited => "memory limited",
            Self::Dropped => "cold (caches dropped)",
            Self::Evicted => "cold (evicted)",
            Self::Warm => "warm",
        }
    }
}

/// Numbers by name; a name ends in its unit. [`metric`] has the names that the report can show.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Metrics(pub BTreeMap<String, f64>);

impl Metrics {
    /// Sets a metric. A value that is not finite is left out: JSON cannot represent it and it means nothing.
    pub fn set(&mut self, name: &str, value: f64) -> &mut Self {
        if value.is_finite() {
            self.0.insert(name.to_owned(), value);
        }
        self
    }

    /// Returns the value of a metric.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }
}

impl<'a, F: Into<Option<f64>>> FromIterator<(&'a str, F)> for Metrics {
    fn from_iter<I: IntoIterator<Item = (&'a str, F)>>(figures: I) -> Self {
        let known = figures.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.into()?)));
        Self(known.filter(|(_, value)| value.is_finite()).collect())
    }
}

/// One repeat of one row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Sample {
    /// The number of the repeat, from 0; rows of an experiment run in turn within a repeat.
    pub repeat: u32,
    /// Measurements of this repeat.
    #[serde(flatten)]
    pub metrics: Metrics,
}

/// A limit that a check applied to a metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Gate {
    /// The purpose of the gate, in a few words.
    pub name: String,
    /// The metric or the ratio that is compared.
    pub metric: String,
    /// Its value; absent where it could not be measured, which does not pass.
    #[serde(default)]
    pub value: Option<f64>,
    /// The smallest value that passes, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// The largest value that passes, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// The distance beyond a limit at which the value still passes, for the noise of the measurement.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tolerance: f64,
    /// Whether the value is within the limits, or beyond them by no more than the tolerance.
    pub passed: bool,
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

impl Gate {
    /// Checks that a value is at least `limit`, and returns the gate.
    pub fn at_least(name: &str, metric: &str, value: f64, limit: f64) -> Self {
        Self { at_least: Some(limit), ..Self::of(name, metric, Some(value)) }.judged()
    }

    /// Checks that a value is at most `limit`, and returns the gate.
    pub fn at_most(name: &str, metric: &str, value: f64, limit: f64) -> Self {
        Self { at_most: Some(limit), ..Self::of(name, metric, Some(value)) }.judged()
    }

    fn of(name: &str, metric: &str, value: Option<f64>) -> Self {
        Self { name: name.to_owned(), metric: metric.to_owned(), value, ..Self::default() }
    }

    fn judged(self) -> Self {
        Self { passed: self.is_met(self.tolerance), ..self }
    }

    /// Returns whether the value is within the limits, or beyond them by no more than `tolerance`.
    pub fn is_met(&self, tolerance: f64) -> bool {
        self.value.is_some_and(|value| {
            self.at_least.is_none_or(|limit| value >= limit - tolerance)
                && self.at_most.is_none_or(|limit| value <= limit + tolerance)
        })
    }
}

/// One gate. A row or an experiment that fails one is marked, never hidden.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Condition {
    /// A stable name: `device_bytes`, `generator`, `other_io`, `steal`, `throttling`, `write_cache`, `extents`.
    pub name: String,
    /// The observed value; the worst of several samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// The smallest value that passes, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// The largest value that passes, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// Absent when the result is unknown, or the gate does not apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed: Option<bool>,
    /// The meaning of the value, or the reason for its absence.
    pub why: String,
    /// The repeats that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repeats: Vec<u32>,
}

impl Condition {
    /// Returns a gate for a value that should be no less than `limit`.
    pub fn at_least(name: &str, value: f64, limit: f64) -> Self {
        let (value, at_least, passed) = (Some(value), Some(limit), Some(value >= limit));
        Self { name: name.to_owned(), value, at_least, passed, ..Self::default() }
    }

    /// Returns a gate for a value that should be no more than `limit`.
    pub fn at_most(name: &str, value: f64, limit: f64) -> Self {
        let (value, at_most, passed) = (Some(value), Some(limit), Some(value <= limit));
        Self { name: name.to_owned(), value, at_most, passed, ..Self::default() }
    }

    /// Returns a gate for a value that should be no less than `least` and no more than `most`.
    pub fn within(name: &str, value: f64, least: f64, most: f64) -> Self {
        let passed = Some((least..=most).contains(&value));
        Self { at_most: Some(most), passed, ..Self::at_least(name, value, least) }
    }

    /// Returns a gate without a known value, with the reason.
    pub fn unknown(name: &str, why: impl Into<String>) -> Self {
        Self { name: name.to_owned(), why: why.into(), ..Self::default() }
    }

    /// Sets the meaning of the value.
    pub fn with_meaning(mut self, why: &str) -> Self {
        why.clone_into(&mut self.why);
        self
    }

    /// Returns how far the value lies outside of the limits; negative within them. `None` without a
    /// value or a limit.
    pub fn excess(&self) -> Option<f64> {
        let value = self.value?;
        let below = self.at_least.map(|least| least - value);
        let above = self.at_most.map(|most| value - most);
        below.into_iter().chain(above).reduce(f64::max)
    }

    /// Returns the limit in words.
    pub fn wanted(&self) -> String {
        match (self.at_least, self.at_most) {
            (Some(least), Some(most)) => format!("{} to {}", number(least), number(most)),
            (Some(least), None) => format!("at least {}", number(least)),
            (None, Some(most)) => format!("at most {}", number(most)),
            (None, None) => "no limit".to_owned(),
        }
    }

    /// Returns whether the gate failed.
    pub fn failed(&self) -> bool {
        self.passed == Some(false)
    }
}

impl From<&Gate> for Condition {
    fn from(check: &Gate) -> Self {
        let Gate { name, value, at_least, at_most, passed, .. } = check.clone();
        Self { name, value, at_least, at_most, passed: Some(passed), ..Self::default() }
    }
}

/// Returns the median; the mean of the middle two when the number of values is even.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    // Halves, because the sum of two large values may be infinite.
    Some(values[last / 2] / 2.0 + values[last.div_ceil(2)] / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(repeat: u32, iops: f64) -> Sample {
        Sample { repeat, metrics: Metrics::from_iter([(metric::IOPS, iops)]) }
    }

    #[test]
    fn metrics_of_a_row_are_medians_and_the_spread_is_kept() {
        let row = Row::from_samples("direct", vec![sample(0, 3.0), sample(1, 1.0), sample(2, 2.0)]);
        assert_eq!(row.metrics.get(metric::IOPS), Some(2.0));
        assert_eq!(row.spread(metric::IOPS), Some((1.0, 3.0)));
    }

    #[test]
    fn an_even_number_of_values_has_the_mean_of_the_middle_two() {
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }

    #[test]
    fn a_sample_is_flat_in_json() {
        let text = serde_json::to_string(&sample(2, 10.0)).expect("finite");
        assert_eq!(text, r#"{"repeat":2,"iops":10.0}"#);
        let back: Sample = serde_json::from_str(&text).expect("the same shape");
        assert_eq!(back, sample(2, 10.0));
    }

    #[test]
    fn values_that_json_cannot_hold_are_left_out() {
        let mut metrics = Metrics::default();
        metrics.set("x", f64::NAN).set("y", 1.0);
        assert_eq!(metrics.0.len(), 1);
        assert_eq!(metrics, Metrics::from_iter([("x", Some(f64::NAN)), ("y", Some(1.0)), ("z", None)]));
    }
}
