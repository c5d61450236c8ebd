//! Readers of the results of other programs: fio, elbencho, IOR and mdtest.
//!
//! Each returns an experiment for each job or phase of each run; [`merge`](super::merge) joins the runs of the
//! same work.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::result::{Experiment, Row, metric};
use crate::saved::row;

/// fio's kinds of work; a job has figures for each.
const KINDS: [&str; 4] = ["read", "write", "trim", "mixed"];
/// Mean time of an operation.
const MEAN_US: &str = "mean_us";
/// Bytes of a mebibyte, in millions.
const MIB: f64 = 1.048_576;
/// IOR's figures: the metric, the column of the table, the name in the JSON, and the factor of the unit.
const IOR: [(&str, &str, &str, f64); 6] = [
    (metric::MB_PER_S, "bw(MiB/s)", "bwMiB", MIB),
    (metric::IOPS, "IOPS", "iops", 1.0),
    (MEAN_US, "Latency(s)", "latency", 1e6),
    (metric::OPEN_MS, "open(s)", "openTime", 1e3),
    (metric::CLOSE_MS, "close(s)", "closeTime", 1e3),
    (metric::SECONDS, "total(s)", "totalTime", 1.0),
];
/// elbencho's figures: the metric, its name, and the divisor of the unit.
const ELBENCHO: [(&str, &str, f64); 4] = [
    (metric::MB_PER_S, "bytes/s", 1e6),
    (metric::IOPS, "iops", 1.0),
    (metric::FILES_PER_S, "entries/s", 1.0),
    (metric::SECONDS, "elapsed_time_ms", 1e3),
];
const PERCENTILES: [(&str, &str, f64); 3] = [
    (metric::P50_US, "50.000000", 0.5),
    (metric::P99_US, "99.000000", 0.99),
    (metric::P99_9_US, "99.900000", 0.999),
];

/// Converts a setting that its program writes as a text.
fn number_or_text(value: &Value) -> Value {
    let Some(text) = value.as_str() else { return value.clone() };
    let whole = text.parse::<i64>().map(Value::from).ok();
    let broken = || text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from);
    whole.or_else(broken).unwrap_or_else(|| value.clone())
}

/// Sets the parameters from settings of a program.
fn set(parameters: &mut BTreeMap<String, Value>, settings: &Value) {
    let settings = settings.as_object().into_iter().flatten();
    parameters.extend(settings.map(|(key, value)| (key.clone(), number_or_text(value))));
}

/// Returns a number that may be written as a text.
fn number(value: &Value, name: &str) -> Option<f64> {
    let value = value.get(name)?;
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Reads a document of fio. Jobs with the same name and options in one reporting group ran at the same time: they
/// are parts of one run.
pub(crate) fn fio(document: &Value) -> Vec<Experiment> {
    const METHOD: &str = "Times are fio's completion latencies: from when an operation was submitted, not from when it \
                          was due.";
    let mut groups: Vec<(Experiment, &Value, Vec<&Value>)> = Vec::new();
    for job in list(&document["jobs"]) {
        let mut experiment = Experiment::new("fio", METHOD);
        let parameters = &mut experiment.parameters;
        set(parameters, &document["global options"]);
        set(parameters, &job["job options"]);
        // It says when a job runs, and the first of several repeats does not need it.
        let is_serial = parameters.remove("stonewall").is_some();
        let depth = parameters.get("iodepth").map(|depth| ("depth", depth.clone()));
        let name = job["jobname"].as_str().map(|name| ("job", Value::from(name)));
        parameters.extend(depth.into_iter().chain(name).map(|(key, value)| (key.to_owned(), value)));
        // A new group that does not wait for the others runs at the same time as they do.
        let is_parallel = parameters.contains_key("new_group") && !is_serial;
        let group = if is_parallel { &Value::Null } else { &job["groupid"] };
        let same = |(known, of, _): &&mut (Experiment, &Value, Vec<&Value>)| {
            *of == group && known.parameters == experiment.parameters
        };
        match groups.iter_mut().find(same) {
            Some((.., parts)) => parts.push(job),
            None => groups.push((experiment, group, vec![job])),
        }
    }
    let filled = groups.into_iter().map(|(mut experiment, _, parts)| {
        experiment.rows = KINDS.iter().filter_map(|kind| fio_row(kind, &parts)).collect();
        for error in parts.iter().filter_map(|job| job["error"].as_i64()).filter(|error| *error != 0) {
            experiment.notes.push(format!("fio reports that the job failed with error {error}"));
        }
        if parts.len() > 1 {
            experiment.notes.push(format!(
                "The sum of {} jobs that ran at the same time (numjobs without group_reporting): all their work in \
                 the time of the longest. Percentiles cannot be added up: each is the largest of any job.",
                parts.len()
            ));
        }
        experiment
    });
    filled.collect()
}

/// Returns the row of a kind of work, the sum of the parts of a job.
fn fio_row(kind: &str, parts: &[&Value]) -> Option<Row> {
    let done = |job: &Value, kind: &str| number(&job[kind], "total_ios").unwrap_or(0.0);
    let parts: Vec<&Value> = parts.iter().filter(|job| done(job, kind) > 0.0).copied().collect();
    let operations: f64 = parts.iter().map(|job| done(job, kind)).sum();
    if parts.is_empty() {
        return None;
    }
    let longest_ms = parts.iter().filter_map(|job| number(&job[kind], "runtime")).reduce(f64::max);
    let rate = |of: &dyn Fn(&Value) -> Option<f64>| -> Option<f64> {
        let share = |figures: &Value| match (number(figures, "runtime"), longest_ms) {
            (Some(runtime_ms), Some(longest_ms)) if longest_ms > 0.0 => runtime_ms / longest_ms,
            _ => 1.0,
        };
        parts.iter().map(|job| Some(of(&job[kind])? * share(&job[kind]))).sum()
    };
    let bytes = |figures: &Value| {
        number(figures, "bw_bytes").or_else(|| number(figures, "bw").map(|kib| kib * 1024.0))
    };
    let percentile = |key: &str| {
        // Nanoseconds since fio 3, microseconds before.
        let of = |job: &Value, times: &str, divisor: f64| {
            Some(number(&job[kind][times]["percentile"], key)? / divisor)
        };
        let of = |job: &&Value| of(job, "clat_ns", 1000.0).or_else(|| of(job, "clat", 1.0));
        parts.iter().filter_map(of).reduce(f64::max)
    };
    let mut found = vec![
        (metric::IOPS, rate(&|figures| number(figures, "iops"))),
        (metric::MB_PER_S, rate(&|figures| Some(bytes(figures)? / 1e6))),
        (metric::SECONDS, longest_ms.map(|ms| ms / 1000.0)),
    ];
    found.extend(PERCENTILES.map(|(name, key, _)| (name, percentile(key))));
    // A job's processor time covers all of its work.
    let all: f64 = parts.iter().flat_map(|job| KINDS[..3].iter().map(|kind| done(job, kind))).sum();
    if kind == "mixed" || all == operations {
        let cpu_us = |job: &&Value| {
            let share = (number(job, "usr_cpu")? + number(job, "sys_cpu")?) / 100.0;
            Some(share * 1000.0 * number(job, "job_runtime").or_else(|| number(&job[kind], "runtime"))?)
        };
        let per_io = |total: Option<f64>| total.map(|total| total / operations);
        found.push((metric::CPU_US_PER_IO, per_io(parts.iter().map(cpu_us).sum())));
        let switches = parts.iter().map(|job| number(job, "ctx")).sum();
        found.push((metric::CONTEXT_SWITCHES_PER_IO, per_io(switches)));
    }
    Some(row(kind, found).describe("as fio calls it"))
}

/// Reads a phase of elbencho, a line of its JSON file, which has numbers as texts.
pub(crate) fn elbencho(phase: &Value) -> Experiment {
    const METHOD: &str = "The row last_done ends with the slowest thread, first_done with the fastest; a file, a directory \
                          or an object counts as a file. Times are of single blocks, or of files where the phase has no \
                          blocks. Percentiles are the upper ends of the histogram's ranges, each about a fifth wide.";
    let mut experiment = Experiment::new("elbencho", METHOD);
    set(&mut experiment.parameters, &phase["config"]);
    for (parameter, key) in [("phase", "phase_type"), ("label", "label")] {
        let value = phase.get(key).map(|value| (parameter.to_owned(), value.clone()));
        experiment.parameters.extend(value);
    }
    for done in ["last_done", "first_done"] {
        let figures = &phase[done];
        let times =
            ["IO", "entries"].iter().find_map(|of| figures["latency"].get(of)).unwrap_or(&Value::Null);
        let reads = "rwmix_read";
        for (name, figures, times) in
            [(done.to_owned(), figures, times), (format!("{done}.{reads}"), &figures[reads], &times[reads])]
        {
            let rates =
                ELBENCHO.map(|(name, key, divisor)| (name, number(figures, key).map(|it| it / divisor)));
            let percentile = |(name, _, share)| (name, upper_end(&times["histogram"], share));
            let mean = (MEAN_US, number(times, "avg_us"));
            let row = row(name, rates.into_iter().chain([mean]).chain(PERCENTILES.map(percentile)));
            if !row.metrics.0.is_empty() {
                experiment.rows.push(row.describe("as elbencho calls it"));
            }
        }
    }
    experiment
}

/// Returns the upper end of the range of a histogram that holds a percentile: `1448-1722us` ends at 1722.
fn upper_end(histogram: &Value, share: f64) -> Option<f64> {
    let end =
        |range: &Value| range["range"].as_str()?.trim_end_matches("us").rsplit('-').next()?.parse().ok();
    let ranges = histogram.as_array()?.iter().map(|range| Some((end(range)?, number(range, "count")?)));
    let ranges: Vec<(f64, f64)> = ranges.collect::<Option<_>>()?;
    let wanted = share * ranges.iter().map(|(_, count)| count).sum::<f64>();
    let mut sum = 0.0;
    let holds = |(_, count): &&(f64, f64)| {
        sum += count;
        sum >= wanted
    };
    ranges.iter().find(holds).map(|(end, _)| *end)
}

/// Returns an operation of IOR, with names of its JSON or of its table; `None` where it is neither a read nor a write.
fn ior(parameters: &BTreeMap<String, Value>, operation: &Value) -> Option<Experiment> {
    const METHOD: &str = "Bytes are counted over the time from the first open to the last close, operations over that of \
                          the transfers. The mean time of an operation is that of the fastest task.";
    let access = operation["access"].as_str().filter(|access| ["read", "write"].contains(access))?;
    let mut experiment = Experiment::new("ior", METHOD);
    experiment.parameters = parameters.clone();
    let figure = |(name, column, key, factor): (&'static str, _, _, f64)| {
        let value = number(operation, column).or_else(|| number(operation, key));
        (name, value.map(|value| value * factor))
    };
    experiment.rows.push(row(access, IOR.map(figure)).describe("as IOR calls it"));
    Some(experiment)
}

/// Reads IOR's JSON (`summaryFormat=JSON`).
pub(crate) fn ior_json(document: &Value) -> Vec<Experiment> {
    let mut found = Vec::new();
    for test in list(&document["tests"]) {
        let command = document.get("Command line").map(|command| ("command".to_owned(), command.clone()));
        let mut parameters = BTreeMap::from_iter(command);
        set(&mut parameters, &test["Options"]);
        // A list of iterations, each a list of operations.
        found.extend(
            list(&test["Results"]).flat_map(list).filter_map(|operation| ior(&parameters, operation)),
        );
    }
    found
}

/// Returns whether a line begins a table of IOR or mdtest.
pub(crate) fn begins_table(line: &str) -> bool {
    line.starts_with("SUMMARY") || line.starts_with("access") && line.contains("bw(MiB/s)")
}

/// Reads the text of IOR (settings under `Options:`, and a table with a line for each operation of each iteration) or
/// mdtest (tables under `SUMMARY rate`, with a line for each operation). Returns the version, too.
pub(crate) fn text(text: &str) -> (&str, Vec<Experiment>) {
    const METHOD: &str = "A file, a directory or a tree counts as a file. mdtest prints the largest, the smallest and the \
                          mean rate of its iterations: the single ones follow from these where there are up to three, in \
                          an unknown order.";
    let (mut found, mut version, mut command) = (Vec::new(), "IOR or mdtest", None);
    let (mut parameters, mut in_options) = (BTreeMap::new(), false);
    // The heading of the table, and the iterations of mdtest behind it.
    let (mut columns, mut iterations) = (Vec::new(), 0);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let setting = line.split_once([':', '=']).map(|(key, value)| (key.trim(), value.trim()));
        let mut set =
            |key: &str, value: &str| parameters.insert(key.to_owned(), number_or_text(&Value::from(value)));
        match (words.as_slice(), setting) {
            (["access", ..], _) if begins_table(line) => (columns, in_options) = (words, false),
            (["Operation", .., "Std", "Dev"], _) if iterations > 0 => columns = words,
            (["SUMMARY" | "SUMMARY:", ..], _) => {
                columns.clear();
                iterations = words.iter().rev().nth(1).and_then(|count| count.parse().ok()).unwrap_or(0);
                if words.contains(&"time") {
                    iterations = 0;
                }
                let mut experiment = Experiment::new("mdtest", METHOD);
                experiment.parameters = parameters.clone();
                found.push(experiment);
            }
            // Version 3.0 of IOR calls them a summary, before the table.
            (["Options:" | "Summary:"], _) => {
                (parameters, in_options) = (BTreeMap::from_iter(command.clone()), true)
            }
            (["Results:"], _) => in_options = false,
            ([first, ..], Some((name, _))) if first.starts_with("IOR-") => version = name,
            ([name, "was", "launched", "with", _, .., nodes, "node(s)"], _) => {
                version = name;
                set("nodes", nodes);
            }
            ([tasks, "tasks,", ..], _) => {
                set("tasks", tasks);
                set("items", line.split_once(", ").unwrap_or_default().1);
            }
            (["Command", "line", ..], Some((_, value))) => {
                set("command", value);
                command = Some(("command".to_owned(), Value::from(value)));
            }
            (_, Some((name, value))) if in_options => drop(set(name, value)),
            (["read" | "write", ..], _) if words.len() == columns.len() => {
                let cells =
                    columns.iter().zip(words).map(|(column, cell)| ((*column).to_owned(), cell.into()));
                found.extend(ior(&parameters, &Value::Object(cells.collect())));
            }
            _ if columns.first() == Some(&"Operation") => {
                let name = words.iter().take_while(|word| word.parse::<f64>().is_err());
                let name: Vec<&str> = name.copied().filter(|word| *word != ":").collect();
                let rates: Vec<f64> = words.iter().filter_map(|word| word.parse().ok()).collect();
                if let ([.., max, min, mean, sd], Some(experiment)) = (rates.as_slice(), found.last_mut()) {
                    mdtest(experiment, &name.join(" "), iterations, [*max, *min, *mean, *sd]);
                }
            }
            _ => {}
        }
    }
    (version, found)
}

/// Adds a line of mdtest's table.
fn mdtest(experiment: &mut Experiment, name: &str, iterations: u32, [max, min, mean, sd]: [f64; 4]) {
    // An operation that was not requested has zeros.
    if name.is_empty() || max <= 0.0 {
        return;
    }
    let (near, third) = (0.01 + 1e-6 * max, 3.0 * mean - max - min);
    let values = match iterations {
        2 if (max + min - 2.0 * mean).abs() <= near => vec![min, max],
        3 if third >= min - near && third <= max + near => vec![min, third, max],
        _ => vec![mean],
    };
    if iterations > 1 && values.len() == 1 {
        experiment.notes.push(format!(
            "{name}: only the mean of {iterations} iterations is known, which lie from {min} to {max} with a standard \
             deviation of {sd}"
        ));
    }
    let mut found =
        row(name.to_lowercase().replace(' ', "-"), []).describe(format!("{name}, as mdtest calls it"));
    found.samples =
        values.iter().flat_map(|value| row("", [(metric::FILES_PER_S, Some(*value))]).samples).collect();
    experiment.rows.push(found);
}
