//! Which metrics a table shows, in which order and unit, and what an experiment is called.

use crate::doctor::units::{bytes, number};
use crate::result::{Experiment, Row, metric};

/// One metric as a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Column {
    /// The metric's name in [`crate::result::Metrics`].
    pub(crate) metric: &'static str,
    /// The column's heading, with the unit.
    pub(crate) heading: &'static str,
    /// What a metric's value is divided by to get the heading's unit.
    divisor: f64,
    /// What the number counts, for the page.
    pub(crate) meaning: &'static str,
}

/// Every metric that tables show, in their order.
pub(crate) const COLUMNS: [Column; 40] = [
    column(
        metric::MB_PER_S,
        "MB/s",
        1.0,
        "millions of bytes that the program got in a second, closing included",
    ),
    column(metric::IOPS, "IOPS", 1.0, "blocks or pieces that the program got in a second"),
    column(metric::LOOKUPS_PER_S, "lookups/s", 1.0, "lookups that were answered and verified in a second"),
    column(
        metric::IOPS_ADVERTISED,
        "IOPS as advertised",
        1.0,
        "writes divided by the time in write calls alone",
    ),
    column(
        metric::IOPS_RELIABLE,
        "IOPS you can rely on",
        1.0,
        "writes divided by the whole time: open, write, sync and close; rows that are not durable then have none",
    ),
    column(metric::OPEN_MS, "open ms", 1.0, "time that a client spent opening"),
    column(metric::WRITE_MS, "write ms", 1.0, "time that a client spent in write calls"),
    column(metric::SYNC_MS, "sync ms", 1.0, "time that a client spent in sync calls"),
    column(metric::CLOSE_MS, "close ms", 1.0, "time that a client spent closing"),
    column(metric::TOTAL_MS, "total ms", 1.0, "from the beginning until the last client was ready"),
    column(
        metric::SYNC_LEFT_OUT_MS,
        "sync left out ms",
        1.0,
        "how long the sync took afterwards that the row did not make",
    ),
    column(metric::P50_US, "p50 µs", 1.0, "half of the operations took no longer, seen from the caller"),
    column(metric::P99_US, "p99 µs", 1.0, "99 of 100 operations took no longer"),
    column(metric::P99_9_US, "p99.9 µs", 1.0, "999 of 1,000 operations took no longer"),
    column(
        metric::CPU_S_PER_GB,
        "CPU s/GB",
        1.0,
        "processor seconds, user and system, all threads, for a billion bytes",
    ),
    column(
        metric::CPU_US_PER_IO,
        "CPU µs/IO",
        1.0,
        "processor microseconds, user and system, all threads, for one block",
    ),
    column(
        metric::CONTEXT_SWITCHES_PER_IO,
        "switches/IO",
        1.0,
        "voluntary and involuntary context switches for one block",
    ),
    column(
        metric::CPU_US_PER_LOOKUP,
        "CPU µs/lookup",
        1.0,
        "processor microseconds, user and system, all threads, for one lookup",
    ),
    column(
        metric::CONTEXT_SWITCHES_PER_LOOKUP,
        "switches/lookup",
        1.0,
        "voluntary and involuntary context switches for one lookup",
    ),
    column(metric::WAKES_PER_LOOKUP, "wakes/lookup", 1.0, "how often a lookup's task was polled again"),
    column(
        metric::DEVICE_BYTES_PER_BYTE,
        "device bytes/byte",
        1.0,
        "bytes that the block device moved for each byte that the program asked for; everyone's count",
    ),
    column(
        metric::PROCESS_BYTES_PER_BYTE,
        "process bytes/byte",
        1.0,
        "the same by the kernel's account of the process: what others move is not in it",
    ),
    column(metric::IN_FLIGHT_AVG, "in flight", 1.0, "requests at the block device, averaged over the time"),
    column(
        metric::MEMORY_PEAK_BYTES,
        "memory MiB",
        1_048_576.0,
        "the largest memory in use, page cache of the file included",
    ),
    column(metric::BUFFERS_PEAK_BYTES, "buffers MiB", 1_048_576.0, "the largest sum of buffers held at once"),
    column(metric::APPENDS_PER_S, "appends/s", 1.0, "appends that were answered in a second"),
    column(metric::RECORDS_PER_S, "records/s", 1.0, "records of those appends"),
    column(metric::DURABLE[0], "durable p50 µs", 1.0, "half of the appends were durable by then"),
    column(metric::DURABLE[1], "p99", 1.0, "99 of 100 appends were durable by then, in µs"),
    column(metric::DURABLE[2], "p99.9", 1.0, "999 of 1,000 appends were durable by then, in µs"),
    column(metric::DURABLE[3], "max", 1.0, "all appends were durable by then, in µs"),
    column(
        metric::SEEN[0],
        "seen p50 µs",
        1.0,
        "the awaiting tasks of half of the appends were told by then",
    ),
    column(metric::SEEN[1], "seen p99", 1.0, "those of 99 of 100 appends, in µs"),
    column(metric::SEEN[2], "seen p99.9", 1.0, "those of 999 of 1,000 appends, in µs"),
    column(metric::SEEN[3], "seen max", 1.0, "all of them, in µs"),
    column(
        metric::LATE_P99_US,
        "late p99",
        1.0,
        "99 of 100 appends were begun so long after they were due, in µs; it is part of the other times",
    ),
    column(metric::WORK_PER_S, "work/s", 1.0, "vectors that the load sorted in a second"),
    column(metric::WORK_KEPT, "work kept %", 0.01, "that, as a share of what there was without appends"),
    column(
        metric::CPU_US_PER_APPEND,
        "CPU µs/append",
        1.0,
        "processor microseconds, user and system, all threads, for one append",
    ),
    column(metric::SECONDS, "seconds", 1.0, "wall time of one repeat"),
];

const fn column(metric: &'static str, heading: &'static str, divisor: f64, meaning: &'static str) -> Column {
    Column { metric, heading, divisor, meaning }
}

impl Column {
    /// The column of a metric.
    pub(crate) fn of(metric: &str) -> Option<&'static Self> {
        COLUMNS.iter().find(|column| column.metric == metric)
    }

    /// The columns for which some row of `group` has a value, the most important first.
    pub(crate) fn present(group: &[&Experiment]) -> Vec<&'static Self> {
        let scan = group.first().is_some_and(|first| first.name == "scan");
        let wanted = |metric: &str| {
            // Blocks have one size and samples one length: neither column would tell anything new.
            (scan || !matches!(metric, metric::MB_PER_S | metric::SECONDS))
                && group
                    .iter()
                    .flat_map(|experiment| &experiment.rows)
                    .any(|row| row.metrics.get(metric).is_some())
        };
        COLUMNS.iter().filter(|column| wanted(column.metric)).collect()
    }

    /// The column whose spread a table tells: the one that the rows are compared by.
    pub(crate) fn compared(columns: &[&'static Self]) -> Option<&'static Self> {
        let durable = columns.iter().find(|column| column.metric == metric::DURABLE[1]);
        durable.or(columns.first()).copied()
    }

    /// The median of a row in the heading's unit.
    pub(crate) fn value(&self, row: &Row) -> Option<f64> {
        row.metrics.get(self.metric).map(|value| value / self.divisor)
    }

    /// Smallest and largest value of a row in the heading's unit.
    pub(crate) fn spread(&self, row: &Row) -> Option<(f64, f64)> {
        row.spread(self.metric).map(|(low, high)| (low / self.divisor, high / self.divisor))
    }

    /// The median of a row as text; a dash when there is none.
    pub(crate) fn cell(&self, row: &Row) -> String {
        self.value(row).map_or_else(|| "-".to_owned(), number)
    }
}

/// What an experiment is called in headings.
pub(crate) fn title(experiment: &Experiment) -> String {
    let size = |name: &str| experiment.number(name).map(|value| bytes(value as u64));
    match experiment.name.as_str() {
        "scan" => match size("file_bytes") {
            Some(file) => format!("Sequential read of {file}"),
            None => "Sequential read".to_owned(),
        },
        "random" => {
            let block = size("block_bytes").map_or_else(String::new, |block| format!(" of {block}"));
            let depth =
                experiment.number("depth").map_or_else(String::new, |depth| format!(", {depth} in flight"));
            format!("Random reads{block} over {}{depth}", span(experiment))
        }
        "wal" | "blocking" => super::appends::title(experiment),
        "walk" => super::walks::title(experiment),
        "writes" => super::writes::title(experiment),
        "amplification" => super::amplification::title(experiment),
        other => other.to_owned(),
    }
}

/// What experiments that belong together are called.
pub(crate) fn heading(group: &[&Experiment]) -> String {
    match group {
        [] => String::new(),
        [only] => title(only),
        [first, ..] if first.name == "walk" => super::walks::heading(first),
        [first, ..] => {
            let block = first
                .number("block_bytes")
                .map_or_else(String::new, |block| format!(" of {}", bytes(block as u64)));
            format!("Random reads{block} over {}", span(first))
        }
    }
}

/// Experiments that belong together: random reads over the same span, lookups in the same index from as many threads;
/// every other experiment stands alone.
pub(crate) fn groups(experiments: &[Experiment]) -> Vec<Vec<&Experiment>> {
    let mut groups: Vec<Vec<&Experiment>> = Vec::new();
    for experiment in experiments {
        let same = |group: &&mut Vec<&Experiment>| {
            let first = group[0];
            match (experiment.name.as_str(), first.name.as_str()) {
                ("random", "random") => span(first) == span(experiment),
                ("walk", "walk") => super::walks::belong_together(first, experiment),
                _ => false,
            }
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(experiment),
            None => groups.push(vec![experiment]),
        }
    }
    groups
}

/// Which part of the file random reads went to.
pub(crate) fn span(experiment: &Experiment) -> String {
    let (Some(span), Some(file)) = (experiment.number("span_bytes"), experiment.number("file_bytes")) else {
        return "the file".to_owned();
    };
    if span >= file * 0.999 {
        format!("the whole file ({})", bytes(file as u64))
    } else {
        format!("{} of the file's {}", bytes(span as u64), bytes(file as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_name_what_was_held_fixed() {
        let experiment = Experiment::new("random", "")
            .parameter("file_bytes", 1_u64 << 30)
            .parameter("span_bytes", 1_u64 << 30)
            .parameter("block_bytes", 4096)
            .parameter("depth", 32);
        assert_eq!(title(&experiment), "Random reads of 4 KiB over the whole file (1 GiB), 32 in flight");
        assert_eq!(title(&Experiment::new("scan", "")), "Sequential read");
    }

    #[test]
    fn random_reads_over_the_same_span_belong_together() {
        let random = |depth: u32, span: u32| {
            Experiment::new("random", "")
                .parameter("file_bytes", 1 << 30)
                .parameter("span_bytes", span)
                .parameter("depth", depth)
        };
        let all = [Experiment::new("scan", ""), random(1, 4096), random(8, 4096), random(1, 8192)];
        let sizes: Vec<usize> = groups(&all).iter().map(Vec::len).collect();
        assert_eq!(sizes, [1, 2, 1]);
        assert_eq!(heading(&groups(&all)[1]), "Random reads over 4 KiB of the file's 1 GiB");
    }

    #[test]
    fn every_column_is_found_by_its_metric() {
        for column in &COLUMNS {
            assert_eq!(Column::of(column.metric), Some(column));
        }
    }
}
