//! Figures as text that Prometheus reads, and the statistics of an engine as such figures.

use std::fmt::{Display, Write as _};
use std::ops::Add;

use self::MetricKind::{Counter, Gauge, Histogram, Info};
use crate::io::stats::{
    ClassStats, DeviceStats, FileStats, FlowStats, Latency, MemoryStats, ShardStats, SlowStep, Stall, Stats,
    WalkStats,
};

/// The most files in an exposition: those with the most operations.
const FILES_MAX: usize = 256;

/// The type of a family of figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// A count that only grows while the process runs. Its name ends in `_total`.
    Counter,
    /// A figure that grows and shrinks.
    Gauge,
    /// A distribution; its samples are made by [`Family::histogram`].
    Histogram,
    /// Texts, as labels of a sample whose value is 1. Its name ends in `_info`.
    Info,
}

/// A text exposition of figures: families with a type and a meaning each, and their samples.
///
/// It is written in [OpenMetrics 1.0](https://prometheus.io/docs/specs/om/open_metrics_spec/), or in the older text format 0.0.4.
/// Names consist of letters, digits and `_`. By convention they start with the program's name and end with the unit, `_seconds` or
/// `_bytes`. A family is written once, and no two of its samples have the same labels. None of this is checked.
///
/// ```
/// use forebay::{Config, Engine, Exposition, MetricKind};
/// # fn main() -> forebay::Result<()> {
/// let engine = Engine::start(Config::new())?;
/// let mut page = Exposition::open_metrics();
/// page.stats(&engine.stats().wait()?);
/// page.family(MetricKind::Counter, "app_sent_bytes_total", "Bytes sent to clients.").sample(&[("peer", "a")], 7);
/// let text = page.finish();
/// assert!(text.contains("\nforebay_shard_tasks{shard=\"0\"} 0\n"));
/// assert!(text.ends_with("\napp_sent_bytes_total{peer=\"a\"} 7\n# EOF\n"));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Exposition {
    text: String,
    is_open_metrics: bool,
}

/// A family of an [`Exposition`]; add its samples to it.
#[derive(Debug)]
pub struct Family<'e> {
    text: &'e mut String,
    name: String,
    suffix: &'static str,
}

impl Exposition {
    /// Returns an empty exposition in OpenMetrics 1.0.
    pub fn open_metrics() -> Exposition {
        Exposition { text: String::new(), is_open_metrics: true }
    }

    /// Returns an empty exposition in the text format 0.0.4 of Prometheus. It has no units, no end mark and no type for texts, which are
    /// gauges there.
    pub fn prometheus() -> Exposition {
        Exposition { text: String::new(), is_open_metrics: false }
    }

    /// Returns the value of HTTP's header `Content-Type` for it.
    pub fn content_type(&self) -> &'static str {
        if self.is_open_metrics {
            "application/openmetrics-text; version=1.0.0; charset=utf-8"
        } else {
            "text/plain; version=0.0.4; charset=utf-8"
        }
    }

    /// Starts a family. `name` is that of its samples; `help` describes them in one line.
    pub fn family(&mut self, kind: MetricKind, name: &str, help: &str) -> Family<'_> {
        let (word, suffix) = match (kind, self.is_open_metrics) {
            (Counter, true) => ("counter", "_total"),
            (Info, true) => ("info", "_info"),
            (Histogram, _) => ("histogram", ""),
            // In the older format the suffixes are parts of names, and texts have no type.
            (Counter, false) => ("counter", ""),
            (Gauge | Info, _) => ("gauge", ""),
        };
        let name = name.strip_suffix(suffix).unwrap_or(name);
        // Writing to a string does not fail, here and below.
        let _ = writeln!(self.text, "# TYPE {name} {word}");
        let unit = name.rsplit('_').next().filter(|unit| ["bytes", "seconds"].contains(unit));
        if let Some(unit) = unit.filter(|_| self.is_open_metrics) {
            let _ = writeln!(self.text, "# UNIT {name} {unit}");
        }
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let help = if self.is_open_metrics { help.replace('"', "\\\"") } else { help };
        let _ = writeln!(self.text, "# HELP {name} {help}");
        Family { name: name.to_string(), suffix, text: &mut self.text }
    }

    /// Returns the text.
    pub fn finish(mut self) -> String {
        if self.is_open_metrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    /// Adds the statistics of an engine, with names that start with `forebay_`; the help of each names the field with its meaning.
    /// Those of shards, rings, classes, devices and tasks have labels that name them.
    pub fn stats(&mut self, stats: &Stats) {
        self.table("", ENGINE, &rows([stats], |_, _| Vec::new()));
        self.table("memory_", MEMORY, &rows([&stats.memory], |_, _| Vec::new()));
        self.table("walk_", WALK, &rows([&stats.walks], |_, _| Vec::new()));
        let slow = rows(&stats.walks.slow_steps, |_, slow| vec![("walk", slow.walk.to_string())]);
        self.table("slow_step_", SLOW_STEP, &slow);
        self.table("shard_", SHARD, &rows(&stats.shards, |number, _| vec![("shard", number.to_string())]));
        let rings = rows(&stats.worker_rings, |number, _| vec![("ring", number.to_string())]);
        self.table("worker_ring_", SHARD, &rings);
        self.table("device_", DEVICE, &rows(&stats.devices, |_, of| vec![("device", of.device.clone())]));
        self.table("class_", CLASS, &rows(&stats.classes, |_, of| pair(&of.class, &of.device)));
        let flows = rows(&stats.flows, |_, of| pair(&of.class, &of.device));
        self.table("flow_", FLOW, &flows);
        self.flow_times("queued", |flow| &flow.queued_ns, &flows);
        self.flow_times("device", |flow| &flow.device_ns, &flows);
        self.flow_times("handed_over", |flow| &flow.handed_over_ns, &flows);
        self.table("stall_", STALL, &rows(&stats.stalls, |_, of| vec![("task", of.task.to_string())]));
        let mut traces = self.family(Info, "forebay_stall_info", "Stall::back_trace of the crate forebay.");
        for stall in &stats.stalls {
            if let Some(trace) = &stall.back_trace {
                traces.sample(&[("task", stall.task), ("back_trace", &**trace)], 1);
            }
        }
    }

    /// Adds a distribution of flows, with buckets from 1 us to 50 s, and two percentiles that buckets say only roughly.
    fn flow_times(&mut self, name: &str, of: fn(&FlowStats) -> &Latency, flows: &Rows<'_, FlowStats>) {
        let help =
            format!("FlowStats::{name}_ns of the crate forebay, of one operation in 32, since the start.");
        for (percentile, quantile) in [("p50", 0.5), ("p99", 0.99)] {
            let mut family = self.family(Gauge, &format!("forebay_flow_{name}_{percentile}_seconds"), &help);
            for (labels, flows) in flows {
                let ns = flows.iter().map(|flow| of(flow).ns_at(quantile)).max();
                family.sample(labels, ns.unwrap_or(0) as f64 / 1e9);
            }
        }
        let mut family = self.family(Histogram, &format!("forebay_flow_{name}_seconds"), &help);
        for (labels, flows) in flows {
            let all = || flows.iter().map(|flow| of(flow));
            let bounds = (3..=10).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u64.pow(power)));
            let buckets = bounds.map(|ns| (ns as f64 / 1e9, all().map(|times| times.count_up_to(ns)).sum()));
            let sum = all().map(|times| times.ns_mean() * times.count() as f64 / 1e9).sum();
            family.histogram(labels, buckets, all().map(Latency::count).sum(), sum);
        }
    }

    /// Adds the open files with the most operations, 256 at most, by path and device. Files of the same path are added up.
    pub fn files(&mut self, files: &[FileStats]) {
        let mut busiest: Vec<&FileStats> = files.iter().collect();
        busiest.sort_by_key(|file| std::cmp::Reverse(file.reads + file.writes + file.syncs));
        let left_out = busiest.len().saturating_sub(FILES_MAX);
        busiest.truncate(FILES_MAX);
        let path = |file: &FileStats| file.path.to_string_lossy().into_owned();
        let files = rows(busiest, |_, of| vec![("path", path(of)), ("device", of.device.clone())]);
        self.table("file_", FILE, &files);
        self.family(Gauge, "forebay_files_left_out", "Open files with fewer operations.").value(left_out);
    }

    /// Adds a family for each column; nanoseconds become seconds. Of rows with the same labels, counts are added and of other
    /// figures the largest is used.
    fn table<T>(&mut self, prefix: &str, columns: &[Column<T>], rows: &Rows<'_, T>) {
        for (kind, name, help, value) in columns {
            let total = if *kind == Counter { "_total" } else { "" };
            let join: fn(f64, f64) -> f64 = if *kind == Counter { f64::add } else { f64::max };
            let (stem, unit, scale) =
                name.strip_suffix("_ns").map_or((*name, "", 1.0), |stem| (stem, "_seconds", 1e9));
            let mut family = self.family(*kind, &format!("forebay_{prefix}{stem}{unit}{total}"), help);
            for (labels, rows) in rows {
                family.sample(labels, rows.iter().map(|row| value(row) / scale).fold(0.0, join));
            }
        }
    }
}

impl Family<'_> {
    /// Adds the one sample of a family without labels. `value` is a number.
    pub fn value(&mut self, value: impl Display) {
        self.line::<&str>(self.suffix, &[], None, value);
    }

    /// Adds a sample with labels, which are names and texts. `value` is a number.
    pub fn sample<S: AsRef<str>>(&mut self, labels: &[(&str, S)], value: impl Display) {
        self.line(self.suffix, labels, None, value);
    }

    /// Adds a distribution: for each bound, from small to large, how many values are not above it; then the number of all values, and
    /// their sum.
    pub fn histogram<S: AsRef<str>>(
        &mut self,
        labels: &[(&str, S)],
        buckets: impl IntoIterator<Item = (f64, u64)>,
        count: u64,
        sum: f64,
    ) {
        for (bound, count) in buckets {
            // Exponents have two digits there.
            let bound = format!("{bound:?}").replace("e-", "e-0");
            self.line("_bucket", labels, Some(&bound), count);
        }
        self.line("_bucket", labels, Some("+Inf"), count);
        self.line("_count", labels, None, count);
        self.line("_sum", labels, None, sum);
    }

    fn line<S: AsRef<str>>(
        &mut self,
        suffix: &str,
        labels: &[(&str, S)],
        bound: Option<&str>,
        value: impl Display,
    ) {
        let _ = write!(self.text, "{}{suffix}", self.name);
        let labels = labels.iter().map(|(name, value)| (*name, value.as_ref()));
        let mut before = '{';
        for (name, value) in labels.chain(bound.map(|bound| ("le", bound))) {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{before}{name}=\"{value}\"");
            before = ',';
        }
        let end = if before == ',' { "}" } else { "" };
        let _ = writeln!(self.text, "{end} {value}");
    }
}

/// Rows of figures by their labels. A device's name may belong to several devices, and a path to several files.
type Rows<'t, T> = Vec<(Vec<(&'static str, String)>, Vec<&'t T>)>;

fn rows<'t, T>(
    list: impl IntoIterator<Item = &'t T>,
    labels: impl Fn(usize, &T) -> Vec<(&'static str, String)>,
) -> Rows<'t, T> {
    let mut rows: Rows<'t, T> = Vec::new();
    for (number, row) in list.into_iter().enumerate() {
        let labels = labels(number, row);
        match rows.iter_mut().find(|(known, _)| *known == labels) {
            Some((_, known)) => known.push(row),
            None => rows.push((labels, vec![row])),
        }
    }
    rows
}

fn pair(class: &str, device: &str) -> Vec<(&'static str, String)> {
    vec![("class", class.to_string()), ("device", device.to_string())]
}

/// A family's type, the field that has its value, its help, and the value.
type Column<T> = (MetricKind, &'static str, &'static str, fn(&T) -> f64);

/// The columns of a type, from the names of its fields.
macro_rules! columns {
    ($of:ident: $($kind:ident [$($field:ident),*])*) => {
        &[$($((
            $kind,
            stringify!($field),
            concat!(stringify!($of), "::", stringify!($field), " of the crate forebay."),
            |of: &$of| of.$field as f64,
        )),*),*]
    };
}

const ENGINE: &[Column<Stats>] = columns!(Stats:
    Counter [wait_calls, page_cache_reads, page_cache_bytes, page_cache_misses, page_cache_skips]);
const MEMORY: &[Column<MemoryStats>] = columns!(MemoryStats:
    Gauge [arena_bytes, arena_bytes_max, held_bytes, overflow_bytes, result_bytes]
    Counter [overflow_allocations, leaked_lends]);
const WALK: &[Column<WalkStats>] = columns!(WalkStats:
    Counter [walks, hops, steps, inline_blocks, boxed_states, wakes]);
const SLOW_STEP: &[Column<SlowStep>] = columns!(SlowStep: Counter [steps] Gauge [longest_ns]);
const SHARD: &[Column<ShardStats>] = columns!(ShardStats:
    Counter [turns, enters, kicks, spins, spins_useful, memory_waits, stray_completions]
    Counter [polled, polls, polls_empty, polls_refused]
    Gauge [in_flight, slots_used, slots, tasks]);
const DEVICE: &[Column<DeviceStats>] = &[
    (Gauge, "budget_bytes", "DeviceStats::budget_bytes of the crate forebay.", |of| of.budget_bytes as f64),
    (Gauge, "write_cost", "DeviceStats::write_cost of the crate forebay.", |of| of.write_cost),
    (Gauge, "calibrated", "DeviceStats::calibrated of the crate forebay.", |of| f64::from(of.calibrated)),
];
const CLASS: &[Column<ClassStats>] = columns!(ClassStats: Counter [queued, received, due, starved_ns]);
const FLOW: &[Column<FlowStats>] = columns!(FlowStats:
    Counter [reads, writes, syncs, failures, read_bytes_asked, read_bytes, write_bytes]);
const FILE: &[Column<FileStats>] = columns!(FileStats:
    Counter [reads, writes, syncs, read_bytes, write_bytes]
    Counter [page_cache_reads, page_cache_bytes, page_cache_misses, page_cache_skips]);
const STALL: &[Column<Stall>] = columns!(Stall: Counter [polls] Gauge [longest_ns]);
