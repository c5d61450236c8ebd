//! The metrics of a table, with their order and units, and the groups of experiments.

use serde::{Deserialize, Serialize};

use super::view::Text;
pub use crate::result::metric::columns::*;
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
    /// The metric's name.
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

/// Times until an append was durable.
pub const DURABLE: [Definition; 4] = [
    column(metric::DURABLE[0], "durable p50 µs", 1.0, "half of the appends were durable by then"),
    column(metric::DURABLE[1], "p99", 1.0, "99 of 100 appends were durable by then, in µs"),
    column(metric::DURABLE[2], "p99.9", 1.0, "999 of 1,000 appends were durable by then, in µs"),
    column(metric::DURABLE[3], "max", 1.0, "all appends were durable by then, in µs"),
];
/// Times until the task that awaits an append was woken.
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
/// Lateness of the timer tasks during the work.
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
    FILES_PER_S,
    MEAN_US,
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

    /// Returns the median of a row as text, or a dash without one.
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
pub fn once<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    together(items, |one, other| one == other)
        .into_iter()
        .filter_map(|same| same.into_iter().next())
        .collect()
}

/// Groups items that are alike, in the order of each group's first item.
pub fn together<T>(items: impl IntoIterator<Item = T>, alike: impl Fn(&T, &T) -> bool) -> Vec<Vec<T>> {
    let mut all: Vec<Vec<T>> = Vec::new();
    for item in items {
        match all.iter_mut().find(|group| alike(&group[0], &item)) {
            Some(group) => group.push(item),
            None => all.push(vec![item]),
        }
    }
    all
}
