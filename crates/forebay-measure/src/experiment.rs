//! An experiment: rows (ways to do the same work) in settings (tables), and samples of each in separate processes.
//!
//! An experiment's module has one value that implements [`Experiment`]; [`kind`](crate::kind) lists it. The
//! [`runner`] does everything that experiments have in common: options, turns, seeds, time budgets,
//! processes, standard metrics, gates, tables. An experiment has its [`Spec`], the [`Plan`] of a run (files,
//! settings, the job of each sample), one sample in the child process, and the sentences on its tables.

use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::cgroup::Group;
use crate::context::Context;
use crate::gauge::Cost;
use crate::job::Job;
use crate::latency::Latency;
use crate::options::{Length, Opt, Values};
use crate::runner;
use forebay_report::result::columns::Definition;
use forebay_report::result::targets::Targets;
use forebay_report::result::view::{Axis, Gain, Role};
use forebay_report::result::{CacheState, Condition, Experiment as Table, Metrics, Row, Series, metric};
use forebay_report::units::{bytes, number};

pub use crate::gates::Claim;
use crate::gates::Evidence;

/// The fixed facts of an experiment.
#[derive(Debug)]
pub struct Spec {
    /// The name on the command line and in the JSON.
    pub name: &'static str,
    /// The experiment's purpose: one sentence without its end, for the help, the progress and the page.
    pub about: &'static str,
    /// The most seconds in `report --quick`, all files included; a test limits the sum.
    pub quick_seconds: u64,
    /// The approximate seconds in a report without `--quick`. They serve only to show the time left.
    pub full_seconds: u64,
    /// Whether it creates its own files. It cannot use an existing one, and is left out of reports on one.
    pub needs_directory: bool,
    /// Its options; `--rows` is added.
    pub options: &'static [Opt],
    /// The ways to do the work, in the order of the table.
    pub ways: &'static [Way],
    /// The columns of its tables, in this order, where a row has them; other standard metrics are left out.
    pub columns: &'static [Definition],
    /// The metric by which rows are compared; a table shows its spread.
    pub compared: &'static str,
    /// The metrics that have a chart.
    pub charts: &'static [&'static str],
    /// The parameter that differs between tables that belong together.
    pub axis: Axis,
    /// Its part in the conclusions of a report.
    pub role: Role,
    /// Comparisons of the usual way with the best one.
    pub gains: fn() -> Vec<Gain>,
}

impl Spec {
    /// Returns the way of a row.
    ///
    /// # Errors
    /// No way is called `name`.
    pub(crate) fn way(&self, name: &str) -> anyhow::Result<&'static Way> {
        let way = self.ways.iter().find(|way| way.name == name);
        way.with_context(|| format!("`{}` has no row {name:?}", self.name))
    }
}

/// A way to do the work; each is a row.
#[derive(Debug, PartialEq, Eq)]
pub struct Way {
    /// A stable name.
    pub name: &'static str,
    /// A description in one sentence.
    pub description: &'static str,
    /// Whether the page cache can have a part in its figures.
    pub cached: bool,
    /// Whether it is measured with any choice of rows.
    pub always: bool,
}

impl Way {
    /// Returns a way that bypasses the page cache.
    pub const fn direct(name: &'static str, description: &'static str) -> Self {
        Self { name, description, cached: false, always: false }
    }

    /// Returns a way that uses the page cache.
    pub const fn cached(name: &'static str, description: &'static str) -> Self {
        Self { name, description, cached: true, always: false }
    }

    /// Returns the baseline of the other rows, which is always measured.
    pub const fn base(name: &'static str, description: &'static str) -> Self {
        Self { name, description, cached: true, always: true }
    }
}

/// One experiment.
pub trait Experiment: fmt::Debug + Sync {
    /// Returns its fixed facts.
    fn spec(&self) -> &'static Spec;

    /// Prepares a run: checks the options, and makes the files.
    ///
    /// # Errors
    /// Options that contradict each other, a path that cannot be used: each a
    /// [`Failure`](forebay_report::failure::Failure).
    fn plan<'a>(&self, options: &Values, context: &'a Context) -> anyhow::Result<Box<dyn Plan + 'a>>;

    /// Measures; the default runs one plan.
    ///
    /// # Errors
    /// As for [`plan`](Self::plan), or nothing could be measured.
    fn measure(&self, options: &Values, length: Length, context: &Context) -> anyhow::Result<Vec<Table>> {
        let mut plan = self.plan(options, context)?;
        let mut tables = runner::run(self.spec(), options, length, context, plan.as_mut())?;
        if options.given("check") {
            self.check(&mut tables);
        }
        Ok(tables)
    }

    /// Returns about how many bytes its own files have. Experiments with a limit on memory have a file larger than that instead.
    fn file_bytes(&self, options: &Values) -> u64 {
        options.count("size")
    }

    /// Compares the rows with limits, for `--check`: fills their gates.
    fn check(&self, _tables: &mut [Table]) {}

    /// Runs one sample, in the child process.
    ///
    /// # Errors
    /// The row cannot be run here, or did not do its work.
    fn sample(&self, job: &Job) -> anyhow::Result<Outcome>;

    /// Returns the command line of fio that does the work of a row on the file at `path`, if fio supports it.
    fn fio(&self, _table: &Table, _row: &Row, _path: &Path) -> Option<String> {
        None
    }

    /// Returns whether it can run on several hosts together, each with its own file.
    fn runs_on_hosts(&self) -> bool {
        false
    }

    /// Returns the comparisons of rows that every table has, and the limits that a check applies.
    fn targets(&self) -> &'static Targets {
        &Targets::NONE
    }

    /// Returns the title of a table, and the heading of the tables that belong together.
    fn title(&self, table: &Table) -> (String, String);

    /// Returns sentences computed from all of its tables, the most important first.
    fn verdicts(&self, _tables: &[&Table]) -> Vec<String> {
        Vec::new()
    }
}

/// The parameters of a table, which are those of its samples, too.
pub type Parameters = Map<String, Value>;

/// Returns the parameters of a JSON object: `parameters(json!({ "depth": 8 }))`.
pub fn parameters(object: Value) -> Parameters {
    match object {
        Value::Object(parameters) => parameters,
        _ => Parameters::new(),
    }
}

/// Returns the text of a parameter; empty without one.
pub(crate) fn text<'a>(parameters: &'a Parameters, name: &str) -> &'a str {
    parameters.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Returns a parameter of a table as titles show it; a question mark if it is missing.
pub(crate) fn shown(table: &Table, name: &str) -> String {
    match table.parameters.get(name) {
        Some(Value::String(text)) => text.clone(),
        value => value.and_then(Value::as_f64).map_or_else(|| "?".to_owned(), number),
    }
}

/// The same of a number of bytes.
pub(crate) fn shown_bytes(table: &Table, name: &str) -> String {
    table.number(name).map_or_else(|| "?".to_owned(), |size| bytes(size as u64))
}

/// The turn of one sample.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    /// The number of its setting.
    pub setting: usize,
    /// The parameters of its setting.
    pub parameters: &'a Parameters,
    /// The row.
    pub way: &'static Way,
    /// The number of the repeat, from 0.
    pub repeat: usize,
    /// The seed of the repeat, the same for all rows.
    pub seed: u64,
    /// The length of the sample, fitted into the budget.
    pub seconds: f64,
    /// Whether this is the extra sample after all repeats, which measures [`Plan::counted`] alone.
    pub counts: bool,
}

impl Turn<'_> {
    /// Returns a parameter that is a number, or 0.
    pub fn number(&self, name: &str) -> f64 {
        self.parameters.get(name).and_then(Value::as_f64).unwrap_or(0.0)
    }

    /// Returns a parameter that is a whole number, or 0.
    pub fn count(&self, name: &str) -> usize {
        self.number(name) as usize
    }

    /// Returns the text of a parameter; empty without one.
    pub fn text(&self, name: &str) -> &str {
        text(self.parameters, name)
    }
}

/// A sample that is ready to be started.
#[derive(Debug)]
pub struct Start {
    /// The job that its process gets.
    pub job: Job,
    /// The cgroup in which its process runs.
    pub group: Option<Group>,
    /// Any value that lives as long as the sample, such as a temporary directory.
    pub held: Option<Box<dyn Any>>,
}

impl From<Job> for Start {
    fn from(job: Job) -> Self {
        Self { job, group: None, held: None }
    }
}

/// Facts on the place of a run.
#[derive(Debug, Clone)]
pub struct Place {
    /// The default path of samples.
    pub path: PathBuf,
    /// The file system's type: `ext4`, `xfs`, ...
    pub file_system: String,
    /// The `stat` file of the block device below, if any.
    pub device_stat: Option<PathBuf>,
    /// Gates for all rows, checked before the run; a table has those checked after it.
    pub conditions: Vec<Condition>,
}

/// One run of an experiment: its files, its tables, and the job of each sample.
pub trait Plan {
    /// Returns the place.
    fn place(&self) -> Place;

    /// Returns the parameters of each table; parameters of the run as a whole are in all of them.
    fn settings(&self) -> Vec<Parameters>;

    /// Returns whether a table has this row.
    fn has(&self, _setting: &Parameters, _way: &Way) -> bool {
        true
    }

    /// Returns whether a table has this row also where `--rows` names others.
    fn always(&self, _setting: &Parameters, _way: &Way) -> bool {
        false
    }

    /// Returns the seconds of a sample in addition to `--seconds`: warm-up, additional phases.
    fn extra_seconds(&self) -> f64 {
        0.0
    }

    /// Returns the length below which no budget shortens a sample.
    fn seconds_min(&self) -> f64 {
        0.1
    }

    /// Returns whether the order of all samples of a repeat is shuffled, instead of moved by one.
    fn is_shuffled(&self) -> bool {
        false
    }

    /// Returns how often a row is sampled again after samples that failed. Without that the first failure ends a row, and
    /// it has no figures; with it, a row keeps those of its other samples, and a failed condition has the reason.
    fn retries(&self) -> usize {
        0
    }

    /// Returns the metrics measured by one more sample of each row after all repeats, with [`Turn::counts`], because counting them
    /// costs time at every operation.
    fn counted(&self) -> &'static [&'static str] {
        &[]
    }

    /// Makes a sample ready: evicts files, makes directories. `job` has name, row, path, parameters, seed and seconds.
    ///
    /// # Errors
    /// Something that worked before no longer does; the row is then left out.
    fn start(&mut self, _turn: &Turn<'_>, job: Job) -> anyhow::Result<Start> {
        Ok(job.into())
    }

    /// Completes the outcome by figures from outside of the sample's process. The files of [`start`](Self::start) are
    /// still there.
    ///
    /// # Errors
    /// The row did not do its work.
    fn ended(&mut self, _turn: &Turn<'_>, _start: &Start, _outcome: &mut Outcome) -> anyhow::Result<()> {
        Ok(())
    }

    /// Returns the sample's claims, for the gates.
    fn claim(&self, _turn: &Turn<'_>, _outcome: &Outcome) -> Claim {
        Claim::default()
    }

    /// Returns the state of the page cache in which samples of a row start; `None` if it does not matter.
    fn cache(&self, _setting: &Parameters, way: &Way) -> Option<CacheState> {
        (!way.cached).then_some(CacheState::Direct)
    }

    /// Returns how the numbers are made, in a paragraph.
    fn method(&self, setting: &Parameters, seconds: f64) -> String;

    /// Returns the caveats on the numbers.
    fn notes(&self, _setting: &Parameters) -> Vec<String> {
        Vec::new()
    }

    /// Changes the finished table: degraded rows, descriptions that depend on the setting.
    fn finish(&self, _setting: &Parameters, _table: &mut Table) {}
}

/// The result of one sample.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The time that was measured.
    pub seconds: f64,
    /// User and system time of all threads.
    pub cpu_seconds: f64,
    /// Voluntary and involuntary context switches of all threads.
    pub context_switches: u64,
    /// Requests at the block device, averaged over the time.
    pub in_flight_avg: Option<f64>,
    /// Blocks, records, lookups, files: the operations that were counted.
    pub operations: u64,
    /// Bytes of these operations.
    pub bytes: u64,
    /// Metrics of this experiment alone.
    #[serde(default)]
    pub figures: Metrics,
    /// Standard metrics that this sample does not have.
    #[serde(default)]
    pub without: Vec<String>,
    /// Requested settings that were not granted: no limit applies to the row.
    #[serde(default)]
    pub degraded: Option<String>,
    /// Parameters of the table that only a sample finds out.
    #[serde(default)]
    pub found: Parameters,
    /// Values over time, by name.
    #[serde(default)]
    pub series: Series,
    /// A value that depends on every page checked.
    #[serde(default)]
    pub folded: u64,
    /// The most memory that was in RAM for the process at one time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_peak_bytes: Option<u64>,
    /// The start of its time, if it was ordered to start at a set instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_ns: Option<u64>,
    pub(crate) evidence: Evidence,
}

impl Outcome {
    /// Returns the outcome of operations with these times; `latency` may be empty.
    pub(crate) fn new(cost: Cost, operations: u64, bytes: u64, latency: Latency) -> Self {
        let mut outcome = Self {
            seconds: cost.seconds,
            cpu_seconds: cost.cpu_seconds,
            context_switches: cost.context_switches,
            in_flight_avg: cost.in_flight_avg,
            operations,
            bytes,
            ..Self::default()
        };
        outcome.evidence.counter_deltas = cost.counter_deltas;
        outcome.times("latency", latency);
        outcome
    }

    /// Adds times of operations under a name: `latency` gives metrics such as `p50_us`, any other such as
    /// `durable_p50_us`. No times add nothing.
    pub(crate) fn times(&mut self, name: &str, latency: Latency) {
        if latency.count() > 0 {
            self.evidence.times.insert(name.to_owned(), latency);
        }
    }

    /// Returns an outcome of this duration, for an experiment with only its own metrics.
    pub fn lasting(seconds: f64) -> Self {
        Self { seconds, ..Self::default() }
    }

    /// Sets a metric of this experiment alone.
    pub fn figure(mut self, name: &str, value: impl Into<Option<f64>>) -> Self {
        if let Some(value) = value.into() {
            self.figures.set(name, value);
        }
        self
    }

    /// Leaves out standard metrics that would mislead in this sample.
    pub(crate) fn without(mut self, names: &[&str]) -> Self {
        self.without.extend(names.iter().map(|name| (*name).to_owned()));
        self
    }

    /// Returns the metrics that every experiment can have, and its own.
    pub fn metrics(&self) -> Metrics {
        let (operations, bytes) = (self.operations as f64, self.bytes as f64);
        let (rate, cpu_us) = (operations / self.seconds, self.cpu_seconds * 1e6 / operations);
        let deltas = &self.evidence.counter_deltas;
        let mut metrics = Metrics::default();
        for name in [metric::IOPS, metric::LOOKUPS_PER_S, metric::FILES_PER_S, metric::APPENDS_PER_S] {
            metrics.set(name, rate);
        }
        for name in [
            metric::CPU_US_PER_IO,
            metric::CPU_US_PER_LOOKUP,
            metric::CPU_US_PER_FILE,
            metric::CPU_US_PER_APPEND,
        ] {
            metrics.set(name, cpu_us);
        }
        for name in [metric::CONTEXT_SWITCHES_PER_IO, metric::CONTEXT_SWITCHES_PER_LOOKUP] {
            metrics.set(name, self.context_switches as f64 / operations);
        }
        metrics
            .set(metric::SECONDS, self.seconds)
            .set(metric::MB_PER_S, bytes / 1e6 / self.seconds)
            .set(metric::CPU_S_PER_GB, self.cpu_seconds * 1e9 / bytes);
        let moved = |read: Option<u64>, written: Option<u64>| Some((read? + written?) as f64 / bytes);
        let device = deltas.device;
        let own = deltas.own;
        let optional = [
            (metric::IN_FLIGHT_AVG, self.in_flight_avg),
            (
                metric::DEVICE_BYTES_PER_BYTE,
                moved(device.map(|bytes| bytes.read), device.map(|bytes| bytes.written)),
            ),
            (
                metric::PROCESS_BYTES_PER_BYTE,
                moved(own.map(|bytes| bytes.read), own.map(|bytes| bytes.written)),
            ),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                metrics.set(name, value);
            }
        }
        for (name, latency) in &self.evidence.times {
            let prefix = if name == "latency" { String::new() } else { format!("{name}_") };
            for (percentile, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99_9", 0.999), ("max", 1.0)] {
                if let Some(value) = latency.quantile_us(quantile) {
                    metrics.set(&format!("{prefix}{percentile}_us"), value);
                }
            }
            if let Some(mean) = latency.mean_us() {
                metrics.set(&format!("{prefix}mean_us"), mean);
            }
        }
        metrics.0.retain(|name, _| !self.without.contains(name));
        metrics.0.extend(self.figures.0.iter().map(|(name, value)| (name.clone(), *value)));
        metrics
    }
}

/// Returns the state of the cache at the start of a sample, whose files were evicted before (`is_cold`) or could not be.
pub fn cache_of(way: &Way, is_cold: bool) -> CacheState {
    match (way.cached, is_cold) {
        (false, _) => CacheState::Direct,
        (true, true) => CacheState::Evicted,
        (true, false) => CacheState::Warm,
    }
}

/// Returns the hint of a sentence on rows of which one was measured only once.
pub(crate) fn once(rows: &[&Row]) -> &'static str {
    if rows.iter().any(|row| row.samples.len() < 2) { " (measured once)" } else { "" }
}

/// The note on files that stayed in memory.
pub const PARTLY_WARM: &str =
    "the files could not be brought out of memory before every sample: the page-cache rows begin partly warm";
