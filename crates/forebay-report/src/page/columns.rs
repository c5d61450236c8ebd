//! The metrics of a table, with their order and units, and the groups of experiments.

#![allow(missing_docs, reason = "the last argument of each column describes it")]

use serde::{Deserialize, Serialize};

use super::view::Text;
use crate::result::{Experiment, Row, metric};
use crate::units::number;

/// One metric as a column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Column {
    /// The metric's name in [`crate::result::Metrics`].
    pub metric: Text,
    /// The column's heading, with the unit.
    pub heading: Text,
    /// Divisor from the metric's unit to the heading's unit.
    divisor: f64,
    /// Meaning of the number, for the page.
    pub meaning: Text,
}

/// A column as a program defines it.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    pub metric: &'static str,
    heading: &'static str,
    divisor: f64,
    meaning: &'static str,
}

impl From<&Definition> for Column {
    fn from(definition: &Definition) -> Self {
        let Definition { metric, heading, divisor, meaning } = *definition;
        Self { metric: metric.into(), heading: heading.into(), divisor, meaning: meaning.into() }
    }
}

// Columns that several experiments have. An experiment makes columns of its own with [`column`] beside
// its `KIND`.

/// Defines columns: the name of the metric, heading, divisor and meaning of each.
macro_rules! define {
    ($($name:ident $heading:literal, $divisor:literal, $meaning:literal;)*) => {
        $(pub const $name: Definition = column(metric::$name, $heading, $divisor, $meaning);)*
    };
}

define! {
    MB_PER_S "MB/s", 1.0, "millions of bytes that the program got in a second, closing included";
    IOPS "IOPS", 1.0, "blocks or pieces that the program got in a second";
    LOOKUPS_PER_S "lookups/s", 1.0, "lookups that completed and were verified in a second";
    P50_US "p50 µs", 1.0, "half of the operations took no longer, seen from the caller";
    P99_US "p99 µs", 1.0, "99 of 100 operations took no longer";
    P99_9_US "p99.9 µs", 1.0, "999 of 1,000 reads took no longer";
    CPU_S_PER_GB "CPU s/GB", 1.0, "processor seconds, user and system, all threads, for a billion bytes";
    CPU_US_PER_IO "CPU µs/IO", 1.0, "processor microseconds, user and system, all threads, for one block";
    CONTEXT_SWITCHES_PER_IO "switches/IO", 1.0, "voluntary and involuntary context switches for one block";
    CPU_US_PER_LOOKUP "CPU µs/lookup", 1.0, "processor microseconds, user and system, all threads, for one lookup";
    CONTEXT_SWITCHES_PER_LOOKUP "switches/lookup", 1.0, "voluntary and involuntary context switches for one lookup";
    WAKES_PER_LOOKUP "wakes/lookup", 1.0, "how often a lookup's task was polled again";
    IN_FLIGHT_AVG "in flight", 1.0, "requests at the block device, averaged over the time";
    DEVICE_SHARE "on the device %", 0.01,
        "share of a lookup's time in which its read is at the block device; requests of all processes count";
    DEVICE_BYTES_PER_BYTE "device bytes/byte", 1.0,
        "bytes that the block device moved for each byte that the program requested; all processes count";
    PROCESS_BYTES_PER_BYTE "process bytes/byte", 1.0,
        "the same by the kernel's account of the process, without the bytes of other processes";
    MEMORY_PEAK_BYTES "memory MiB", 1_048_576.0, "the largest memory in use, page cache of the file included";
    BUFFERS_PEAK_BYTES "buffers MiB", 1_048_576.0, "the largest sum of buffers held at once";
    APPENDS_PER_S "appends/s", 1.0, "appends that completed in a second";
    RECORDS_PER_S "records/s", 1.0, "records of those appends";
    LATE_P99_US "late p99", 1.0,
        "99 of 100 appends were begun so long after they were due, in µs; it is part of the other times";
    WORK_PER_S "work/s", 1.0, "vectors that the load sorted in a second";
    WORK_KEPT "work kept %", 0.01, "that, as a share of the vectors without appends";
    TIMERS_CPU_SHARE "timers CPU %", 0.01,
        "processor time of the timer tasks with nothing beside them, in percent of one processor";
    CPU_US_PER_APPEND "CPU µs/append", 1.0, "processor microseconds, user and system, all threads, for one append";
    FIRST_DONE_S "first done s", 1.0, "seconds from the first host's start until the first host was done";
    LAST_DONE_S "last done s", 1.0, "seconds from the first host's start until the last host was done";
    START_SKEW_US "skew µs", 1.0, "how far the hosts' starts lay apart, in µs";
    SECONDS "seconds", 1.0, "wall time of one repeat";
    FULL_WAIT_SHARE "full wait %", 0.01, "share of the time in which a thread was blocked on I/O and none ran";
    SOME_WAIT_SHARE "some wait %", 0.01, "share of the time in which a thread was blocked on I/O";
    FULL_IOWAIT_SHARE "full iowait %", 0.01, "full wait, as far as the kernel calls it iowait";
    WAIT_SHARE "of all waits %", 0.01, "a file's share of the waits of all threads";
    WAIT_S "wait s", 1.0, "waits of all threads, in seconds";
}

pub const DURABLE: [Definition; 4] = [
    column(metric::DURABLE[0], "durable p50 µs", 1.0, "half of the appends were durable by then"),
    column(metric::DURABLE[1], "p99", 1.0, "99 of 100 appends were durable by then, in µs"),
    column(metric::DURABLE[2], "p99.9", 1.0, "999 of 1,000 appends were durable by then, in µs"),
    column(metric::DURABLE[3], "max", 1.0, "all appends were durable by then, in µs"),
];
pub const SEEN: [Definition; 4] = [
    column(
        metric::SEEN[0],
        "seen p50 µs",
        1.0,
        "the awaiting tasks of half of the appends were woken by then",
    ),
    column(metric::SEEN[1], "seen p99", 1.0, "those of 99 of 100 appends, in µs"),
    column(metric::SEEN[2], "seen p99.9", 1.0, "those of 999 of 1,000 appends, in µs"),
    column(metric::SEEN[3], "seen max", 1.0, "all of them, in µs"),
];
pub const TIMERS_LATE: [Definition; 3] = [
    column(
        metric::TIMERS_LATE[0],
        "timers late p50 µs",
        1.0,
        "half of the times of the timer tasks beside the work were noticed no later, in µs",
    ),
    column(metric::TIMERS_LATE[1], "timers late p99", 1.0, "99 of 100 of these times, in µs"),
    column(metric::TIMERS_LATE[3], "timers late max", 1.0, "all of them, in µs"),
];

/// Columns of an experiment that this program has no entry for.
pub const SHARED: &[Definition] = &[
    MB_PER_S,
    IOPS,
    column(metric::FILES_PER_S, "files/s", 1.0, "files, directories or objects a second"),
    column("mean_us", "mean µs", 1.0, "mean time of an operation, in µs"),
    P50_US,
    P99_US,
    P99_9_US,
    CPU_S_PER_GB,
    CPU_US_PER_IO,
    CONTEXT_SWITCHES_PER_IO,
    IN_FLIGHT_AVG,
    MEMORY_PEAK_BYTES,
    BUFFERS_PEAK_BYTES,
    APPENDS_PER_S,
    DURABLE[0],
    DURABLE[1],
    SEEN[1],
    LOOKUPS_PER_S,
    CPU_US_PER_LOOKUP,
    WAKES_PER_LOOKUP,
    SECONDS,
];

/// Returns a column: the metric, its heading with the unit, the divisor to that unit, and the meaning
/// of the number.
pub const fn column(
    metric: &'static str,
    heading: &'static str,
    divisor: f64,
    meaning: &'static str,
) -> Definition {
    Definition { metric, heading, divisor, meaning }
}

impl Column {
    /// Returns the columns for which some row of `group` has a value, the most important first.
    pub fn present<'a>(group: &[&'a Experiment]) -> Vec<&'a Self> {
        let Some(first) = group.first() else { return Vec::new() };
        let rows = || group.iter().flat_map(|experiment| &experiment.rows);
        let has = |column: &&Self| rows().any(|row| row.metrics.get(&column.metric).is_some());
        first.view.columns.iter().filter(has).collect()
    }

    /// Returns the column whose spread a table shows: that of the metric by which the rows are compared.
    pub fn compared<'a>(group: &[&Experiment], columns: &[&'a Self]) -> Option<&'a Self> {
        let wanted = group.first().map(|first| &first.view.compared);
        let found = columns.iter().find(|column| Some(&column.metric) == wanted);
        found.or(columns.first()).copied()
    }

    /// Returns the median of a row in the heading's unit.
    pub fn value(&self, row: &Row) -> Option<f64> {
        row.metrics.get(&self.metric).map(|value| value / self.divisor)
    }

    /// Returns the smallest and largest value of a row in the heading's unit.
    pub fn spread(&self, row: &Row) -> Option<(f64, f64)> {
        row.spread(&self.metric).map(|(low, high)| (low / self.divisor, high / self.divisor))
    }

    /// Returns the median of a row as text, or a dash when there is none.
    pub fn cell(&self, row: &Row) -> String {
        self.value(row).map_or_else(|| "-".to_owned(), number)
    }
}

/// Returns the heading of experiments that belong together.
pub fn heading<'a>(group: &[&'a Experiment]) -> &'a str {
    match group {
        [] => "",
        [only] => only.title(),
        [first, ..] => first.heading(),
    }
}

/// Groups the experiments that belong together: those of one name and heading.
pub fn groups<'a>(experiments: impl IntoIterator<Item = &'a Experiment>) -> Vec<Vec<&'a Experiment>> {
    together(experiments, |one, other| one.name == other.name && one.heading() == other.heading())
}

/// Returns the names of all rows, each once.
pub(crate) fn row_names<'a>(group: &[&'a Experiment]) -> Vec<&'a str> {
    once(group.iter().flat_map(|experiment| &experiment.rows).map(|row| row.name.as_str()))
}

/// Returns each item once, in the order in which they appear.
pub(crate) fn once<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    together(items, |one, other| one == other)
        .into_iter()
        .filter_map(|same| same.into_iter().next())
        .collect()
}

/// Returns the items that are alike together, in the order in which the first of them appear.
pub(crate) fn together<T>(items: impl IntoIterator<Item = T>, alike: impl Fn(&T, &T) -> bool) -> Vec<Vec<T>> {
    let mut all: Vec<Vec<T>> = Vec::new();
    for item in items {
        match all.iter_mut().find(|group| alike(&group[0], &item)) {
            Some(group) => group.push(item),
            None => all.push(vec![item]),
        }
    }
    all
}
