//! `forebay convert`: results of other programs to this program's schema, and its own to CSV.
//!
//! The readers of fio, elbencho, IOR and mdtest return an experiment for each job or phase of each run; `merge` joins the
//! runs of the same work.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde_json::{Deserializer, Value};

use super::{not_json, plain, row};
use crate::environment::Environment;
use crate::failure::Failure;
use crate::page::columns::together;
use crate::result::{Condition, Experiment, Report, Row, Sample, metric};

/// Note of an experiment without repeats.
const ONCE: &str = "One run: the spread between runs is unknown. Name the files of several runs of the same work to \
                    make them repeats.";

/// A result of another program: the program with its version, the time where it is known, and the experiments.
type Foreign = (String, u64, Vec<Experiment>);

/// Converts the named texts of other programs, with an experiment for each job or phase. Runs of the same work become
/// repeats. `None` when there is a single text that is from no such program.
///
/// # Errors
/// [`Failure::Usage`] when a result has no figures, or one of several is of another program.
pub fn of_others(texts: &[(String, String)]) -> Result<Option<Report>, Failure> {
    let (mut programs, mut experiments, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for (name, text) in texts {
        let wrong = |what: String| Failure::Usage(format!("{name} {what}"));
        let Some((program, time_unix_s, mut found)) = foreign(text).map_err(wrong)? else {
            if texts.len() == 1 {
                return Ok(None);
            }
            super::parse(name, text)?;
            return Err(wrong("is a result of forebay: it is converted alone".to_owned()));
        };
        found.retain(|experiment| !experiment.rows.is_empty());
        if found.is_empty() {
            return Err(wrong(format!("is of {program} and has no job with any figures")));
        }
        for experiment in &mut found {
            experiment.method = format!("Measured by {program} and converted. {}", experiment.method);
        }
        experiments.append(&mut found);
        times.push(time_unix_s);
        programs.push(program);
    }
    programs.dedup();
    let environment = Environment {
        time_unix_s: times.first().copied().unwrap_or_default(),
        kernel: format!("unknown: measured by {}", programs.join(" and ")),
        optimized_build: true,
        ..Environment::default()
    };
    Ok(Some(Report::new(environment, merge(experiments))))
}

/// Finds the program that wrote a text, and reads it; `None` when it is none of these.
///
/// # Errors
/// What is wrong with the text, to follow its name.
fn foreign(text: &str) -> Result<Option<Foreign>, String> {
    // Editors add a byte order mark, and fio writes what it divides by zero as no JSON has it.
    let text = ["-nan", "nan", "-inf", "inf"]
        .iter()
        .fold(text.trim_start_matches('\u{feff}').to_owned(), |text, word| {
            text.replace(&format!(" : {word}"), " : null")
        });
    let text = text.as_str();
    // fio and launchers print their warnings before the JSON.
    let lines = text.split_inclusive('\n');
    let start: usize = lines.take_while(|line| !line.trim_start().starts_with('{')).map(str::len).sum();
    let (mut documents, mut fault) = (Vec::new(), None);
    for document in Deserializer::from_str(&text[start..]).into_iter::<Value>() {
        document.map_or_else(|error| fault = Some(error), |document| documents.push(document));
    }
    let has = |name: &str| documents.first().is_some_and(|first| first.get(name).is_some());
    let first = documents.first().unwrap_or(&Value::Null);
    let version = |name: &str| first[name].as_str().unwrap_or("unknown");
    Ok(Some(match fault {
        _ if has("fio version") => {
            if text.matches("\"fio version\"").count() > 1 {
                return Err(
                    "has several results of fio: --status-interval writes running totals; keep the last of \
                            them, or give each run a file"
                        .to_owned(),
                );
            }
            let time_unix_s = first["timestamp"].as_u64().unwrap_or_default();
            (version("fio version").to_owned(), time_unix_s, of_fio(first))
        }
        Some(error) if has("phase_type") => return Err(not_json(&error)),
        None if has("phase_type") => ("elbencho".to_owned(), 0, documents.iter().map(of_elbencho).collect()),
        _ if has("tests") && has("Version") => (format!("IOR-{}", version("Version")), 0, of_ior(first)),
        _ if text.lines().any(begins_table) => {
            let (version, found) = of_text(text);
            (version.to_owned(), 0, found)
        }
        _ => return Ok(None),
    }))
}

/// Joins experiments with the same name, parameters and method: their samples are repeats of one row.
fn merge(found: Vec<Experiment>) -> Vec<Experiment> {
    let key = |one: &Experiment| (one.name.clone(), one.parameters.clone(), one.method.clone());
    let works = together(found, |one, other| key(one) == key(other));
    let merged = works.into_iter().map(|runs| {
        let mut merged = runs[0].clone();
        merged.rows.clear();
        merged.notes = runs.iter().flat_map(|run| run.notes.clone()).collect();
        merged.notes.sort();
        merged.notes.dedup();
        for rows in together(runs.iter().flat_map(|run| &run.rows), |one, other| one.name == other.name) {
            let samples = (0..).zip(rows.iter().flat_map(|row| row.samples.clone()));
            let samples = samples.map(|(repeat, sample)| Sample { repeat, ..sample }).collect();
            merged.rows.push(Row::from_samples(&rows[0].name, samples).describe(&rows[0].description));
        }
        if merged.rows.iter().all(|row| row.samples.len() < 2) {
            merged.notes.push(ONCE.to_owned());
        }
        merged
    });
    merged.collect()
}

/// Returns a line for each figure: of a row (`repeat` is `all`) and of each of its repeats.
///
/// # Errors
/// None that can happen with a text in memory.
pub fn to_csv(report: &Report) -> anyhow::Result<String> {
    let mut table = csv::Writer::from_writer(Vec::new());
    let heading = ["experiment", "parameters", "row", "repeat", "metric", "value", "failed_gates", "skipped"];
    table.write_record(heading)?;
    for experiment in &report.experiments {
        let parameters = experiment.parameters.iter().map(|(name, value)| format!("{name}={}", plain(value)));
        let parameters = parameters.collect::<Vec<_>>().join(";");
        for row in &experiment.rows {
            let gates = experiment.conditions.iter().chain(&row.conditions);
            let failed = gates.filter(|gate| Condition::failed(gate)).map(|gate| gate.name.as_str());
            let failed = failed.collect::<Vec<_>>().join(";");
            let skipped = row.skipped.as_deref().unwrap_or("");
            let mut line = |repeat: &str, metric: &str, value: &str| {
                let name = experiment.name.as_str();
                table.write_record([name, &parameters, &row.name, repeat, metric, value, &failed, skipped])
            };
            if row.skipped.is_some() {
                line("", "", "")?;
            }
            let samples = row.samples.iter().map(|sample| (sample.repeat.to_string(), &sample.metrics));
            for (repeat, metrics) in std::iter::once(("all".to_owned(), &row.metrics)).chain(samples) {
                for (metric, value) in &metrics.0 {
                    line(&repeat, metric, &value.to_string())?;
                }
            }
        }
    }
    let bytes = table.into_inner().map_err(|error| error.into_error());
    Ok(String::from_utf8(bytes.context("the table could not be written")?)?)
}

/// fio's kinds of work; a job has figures for each.
const KINDS: [&str; 4] = ["read", "write", "trim", "mixed"];
/// Bytes of a mebibyte, in millions.
const MIB: f64 = 1.048_576;
/// IOR's figures: the metric, the column of the table, the name in the JSON, and the factor of the unit.
const IOR: [(&str, &str, &str, f64); 6] = [
    (metric::MB_PER_S, "bw(MiB/s)", "bwMiB", MIB),
    (metric::IOPS, "IOPS", "iops", 1.0),
    (metric::MEAN_US, "Latency(s)", "latency", 1e6),
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
fn known(value: &Value, name: &str) -> Option<f64> {
    let value = value.get(name)?;
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Reads a document of fio. Jobs with the same name and options in one reporting group ran at the same time: they
/// are parts of one run.
fn of_fio(document: &Value) -> Vec<Experiment> {
    const METHOD: &str = "Times are fio's completion latencies: from when an operation was submitted, not from when it \
                          was due.";
    // With --client each host has its jobs, and an entry adds up all.
    let of_hosts = list(&document["client_stats"]).filter(|job| job["jobname"] != "All clients");
    let jobs = list(&document["jobs"]).chain(of_hosts).map(|job| {
        let mut experiment = Experiment::new("fio", METHOD);
        let parameters = &mut experiment.parameters;
        set(parameters, &document["global options"]);
        set(parameters, &job["job options"]);
        // It says when a job runs, and the first of several repeats does not need it.
        let is_serial = parameters.remove("stonewall").is_some();
        let depth = parameters.get("iodepth").map(|depth| ("depth", depth.clone()));
        let name = job["jobname"].as_str().map(|name| ("job", Value::from(name)));
        let host = job["hostname"].as_str().map(|host| ("host", Value::from(host)));
        parameters
            .extend(depth.into_iter().chain(name).chain(host).map(|(key, value)| (key.to_owned(), value)));
        // A new group that does not wait for the others runs at the same time as they do.
        let is_parallel = parameters.contains_key("new_group") && !is_serial;
        (job, if is_parallel { &Value::Null } else { &job["groupid"] }, experiment)
    });
    let alike = |one: &(_, &Value, Experiment), other: &(_, &Value, Experiment)| {
        one.1 == other.1 && one.2.parameters == other.2.parameters
    };
    let filled = together(jobs, alike).into_iter().map(|jobs| {
        let parts: Vec<&Value> = jobs.iter().map(|(job, ..)| *job).collect();
        let mut experiment = jobs[0].2.clone();
        experiment.rows = KINDS.iter().filter_map(|kind| fio_row(kind, &parts)).collect();
        experiment.rows.extend(fio_syncs(&parts));
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
    // Before 2.2 the number follows from the rate.
    let done = |job: &Value, kind: &str| {
        let of_rate = || Some(known(&job[kind], "iops")? * known(&job[kind], "runtime")? / 1000.0);
        known(&job[kind], "total_ios").or_else(of_rate).unwrap_or(0.0)
    };
    let parts: Vec<&Value> = parts.iter().filter(|job| done(job, kind) > 0.0).copied().collect();
    let operations: f64 = parts.iter().map(|job| done(job, kind)).sum();
    if parts.is_empty() {
        return None;
    }
    let longest_ms = parts.iter().filter_map(|job| known(&job[kind], "runtime")).reduce(f64::max);
    let rate = |of: &dyn Fn(&Value) -> Option<f64>| -> Option<f64> {
        let share = |figures: &Value| match (known(figures, "runtime"), longest_ms) {
            (Some(runtime_ms), Some(longest_ms)) if longest_ms > 0.0 => runtime_ms / longest_ms,
            _ => 1.0,
        };
        parts.iter().map(|job| Some(of(&job[kind])? * share(&job[kind]))).sum()
    };
    let bytes =
        |figures: &Value| known(figures, "bw_bytes").or_else(|| known(figures, "bw").map(|kib| kib * 1024.0));
    let mut found = vec![
        (metric::IOPS, rate(&|figures| known(figures, "iops"))),
        (metric::MB_PER_S, rate(&|figures| Some(bytes(figures)? / 1e6))),
        (metric::SECONDS, longest_ms.map(|ms| ms / 1000.0)),
    ];
    found.extend(fio_percentiles(kind, "clat", &parts));
    // A job's processor time covers all of its work.
    let all: f64 = parts.iter().flat_map(|job| KINDS[..3].iter().map(|kind| done(job, kind))).sum();
    if kind == "mixed" || all == operations {
        let cpu_us = |job: &&Value| {
            let share = (known(job, "usr_cpu")? + known(job, "sys_cpu")?) / 100.0;
            // The time of all jobs of a group, since 3.8. `runtime` is that of the longest, and nothing says how many there were.
            Some(share * 1000.0 * known(job, "job_runtime")?)
        };
        let per_io = |total: Option<f64>| total.map(|total| total / operations);
        found.push((metric::CPU_US_PER_IO, per_io(parts.iter().map(cpu_us).sum())));
        let switches = parts.iter().map(|job| known(job, "ctx")).sum();
        found.push((metric::CONTEXT_SWITCHES_PER_IO, per_io(switches)));
    }
    Some(row(kind, found).describe("as fio calls it"))
}

/// Returns the percentiles of some times of fio, the largest of any part: nanoseconds since fio 3, microseconds before.
fn fio_percentiles(kind: &str, times: &str, parts: &[&Value]) -> [(&'static str, Option<f64>); 3] {
    let nanoseconds = format!("{times}_ns");
    PERCENTILES.map(|(name, key, _)| {
        let of = |job: &Value, times: &str, divisor: f64| {
            Some(known(&job[kind][times]["percentile"], key)? / divisor)
        };
        let of = |job: &&Value| of(job, &nanoseconds, 1000.0).or_else(|| of(job, times, 1.0));
        (name, parts.iter().filter_map(of).reduce(f64::max))
    })
}

/// Returns the row of the syncs among the work (`fsync`, `fdatasync`), whose times are in no other row.
fn fio_syncs(parts: &[&Value]) -> Option<Row> {
    let syncs: f64 = parts.iter().filter_map(|job| known(&job["sync"], "total_ios")).sum();
    let found = row("sync", fio_percentiles("sync", "lat", parts));
    (syncs > 0.0 && !found.metrics.0.is_empty())
        .then(|| found.describe("fsync and fdatasync calls: their times are in no other row"))
}

/// Reads a phase of elbencho, a line of its JSON file, which has numbers as texts.
fn of_elbencho(phase: &Value) -> Experiment {
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
        let (reads, all) = ("rwmix_read", &times["histogram"]);
        for (name, figures, times, histogram) in [
            (done.to_owned(), figures, times, all),
            (format!("{done}.{reads}"), &figures[reads], &times[reads], &all[reads]),
        ] {
            if let Some(why) = histogram["histo_max_exceeded"].as_str() {
                experiment.notes.push(format!("{name} has no percentiles: {why}"));
            }
            let rates =
                ELBENCHO.map(|(name, key, divisor)| (name, known(figures, key).map(|it| it / divisor)));
            let percentile = |(name, _, share)| (name, upper_end(histogram, share));
            let mean = (metric::MEAN_US, known(times, "avg_us"));
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
    let ranges =
        histogram["buckets"].as_array()?.iter().map(|range| Some((end(range)?, known(range, "count")?)));
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
        // Its JSON has four digits of a second: a shorter time is unknown.
        let value = known(operation, column).or_else(|| known(operation, key)).filter(|value| *value > 0.0);
        (name, value.map(|value| value * factor))
    };
    experiment.rows.push(row(access, IOR.map(figure)).describe("as IOR calls it"));
    Some(experiment)
}

/// Reads IOR's JSON (`summaryFormat=JSON`).
fn of_ior(document: &Value) -> Vec<Experiment> {
    let mut found = Vec::new();
    for test in list(&document["tests"]) {
        let command = document.get("Command line").map(|command| ("command".to_owned(), command.clone()));
        let mut parameters = BTreeMap::from_iter(command);
        set(&mut parameters, &test["Options"]);
        // A list of operations; before 4.0 a list of iterations, each a list of operations.
        let operations = |result| list(result).chain(result.is_object().then_some(result));
        let operations = list(&test["Results"]).flat_map(operations);
        found.extend(operations.filter_map(|operation| ior(&parameters, operation)));
    }
    found
}

/// Returns whether a line begins a table of IOR or mdtest.
fn begins_table(line: &str) -> bool {
    line.starts_with("SUMMARY") || line.starts_with("access") && line.contains("bw(MiB/s)")
}

/// Reads the text of IOR (settings under `Options:`, and a table with a line for each operation of each iteration) or
/// mdtest (tables under `SUMMARY rate`, with a line for each operation). Returns the version, too.
fn of_text(text: &str) -> (&str, Vec<Experiment>) {
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
            // `SUMMARY time:`, later `SUMMARY time (in ms/op):`.
            (["SUMMARY", what, ..], _) if what.trim_end_matches(':') == "time" => iterations = 0,
            (["SUMMARY" | "SUMMARY:", ..], _) => {
                columns.clear();
                iterations = words.iter().rev().nth(1).and_then(|count| count.parse().ok()).unwrap_or(0);
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
            _ if columns.first() == Some(&"Operation") && iterations > 0 => {
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
    if name.is_empty() || max <= 0.0 || ![max, min, mean].iter().all(|rate| rate.is_finite()) {
        return;
    }
    // Version 3.3 sums up the rates of all tasks, of which these are too few: then the deviation is another one.
    let values = match iterations {
        2 => vec![min, max],
        3 => vec![min, 3.0 * mean - max - min, max],
        _ => Vec::new(),
    };
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let near = 0.01 + 1e-4 * max;
    let are_all = [iterations, iterations.saturating_sub(1)]
        .iter()
        .any(|count| ((squares / f64::from((*count).max(1))).sqrt() - sd).abs() <= near)
        && values.iter().all(|value| (min - near..=max + near).contains(value))
        && (values.iter().sum::<f64>() - f64::from(iterations) * mean).abs() <= near;
    let values = if are_all && !values.is_empty() { values } else { vec![mean] };
    if iterations > 1 && values.len() == 1 {
        experiment.notes.push(format!(
            "{name}: only the mean of {iterations} iterations is known, which lie from {min} to {max} with a standard \
             deviation of {sd}"
        ));
    }
    let samples = values.iter().flat_map(|value| row("", [(metric::FILES_PER_S, *value)]).samples).collect();
    let row = Row { name: name.to_lowercase().replace(' ', "-"), samples, ..Row::default() };
    experiment.rows.push(row.describe(format!("{name}, as mdtest calls it")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saved::parse;

    fn named(text: &str) -> (String, String) {
        ("x.json".to_owned(), text.to_owned())
    }

    fn convert(texts: &[&str]) -> Report {
        let texts: Vec<_> = texts.iter().map(|text| named(text)).collect();
        of_others(&texts).expect("there are figures").expect("the program is known")
    }

    fn refused(texts: &[&str]) -> String {
        let texts: Vec<_> = texts.iter().map(|text| named(text)).collect();
        of_others(&texts).expect_err("it is no result").to_string()
    }

    fn fixture(name: &str) -> String {
        let path = format!("{}/tests/fixtures/foreign/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).expect("the fixture is there")
    }

    /// Returns the figures of a row in each repeat.
    fn samples(experiment: &Experiment, row: &str, metric: &str) -> Vec<f64> {
        let row = experiment.row(row).unwrap_or_else(|| panic!("no {row}: {experiment:?}"));
        row.samples.iter().filter_map(|sample| sample.metrics.get(metric)).collect()
    }

    const MODERN: &str = r#"fio: this platform does not support process shared mutexes
{ "fio version": "fio-3.36", "timestamp": 1700000000, "global options": { "ioengine": "io_uring", "bs": "4k" },
  "jobs": [ { "jobname": "rand", "error": 0, "job options": { "iodepth": "32", "rw": "randread" },
    "read": { "total_ios": 1000, "iops": 2000.5, "bw": 8000, "bw_bytes": 8192000, "runtime": 500,
      "clat_ns": { "percentile": { "50.000000": 90000, "99.000000": 200000, "99.900000": 400000 } } },
    "write": { "total_ios": 0, "iops": 0.0 }, "trim": { "total_ios": 0 },
    "job_runtime": 500, "usr_cpu": 5.0, "sys_cpu": 15.0, "ctx": 2000 } ] }"#;

    #[test]
    fn a_job_of_fio_becomes_an_experiment() {
        let report = convert(&[MODERN]);
        let [experiment] = report.experiments.as_slice() else { panic!("{report:?}") };
        assert_eq!((experiment.number("depth"), experiment.rows.len()), (Some(32.0), 1));
        assert_eq!(experiment.parameters["rw"], "randread");
        let row = experiment.row("read").expect("it read");
        let metric = |name| row.metrics.get(name);
        assert_eq!((metric(metric::IOPS), metric(metric::MB_PER_S)), (Some(2000.5), Some(8.192)));
        assert_eq!((metric(metric::P50_US), metric(metric::P99_9_US)), (Some(90.0), Some(400.0)));
        assert_eq!((metric(metric::CPU_US_PER_IO), metric(metric::SECONDS)), (Some(100.0), Some(0.5)));
        assert_eq!(metric(metric::CONTEXT_SWITCHES_PER_IO), Some(2.0));
    }

    #[test]
    fn old_versions_count_in_other_units() {
        let old = r#"{"fio version": "fio-2.16", "jobs": [{"jobname": "w", "write": {"total_ios": 10, "iops": 5.0,
            "bw": 1000, "clat": {"percentile": {"50.000000": 90}}}}]}"#;
        let report = convert(&[old]);
        let row = report.experiments[0].row("write").expect("it wrote").clone();
        assert_eq!(row.metrics.get(metric::MB_PER_S), Some(1.024));
        assert_eq!((row.metrics.get(metric::P50_US), row.metrics.get(metric::P99_US)), (Some(90.0), None));
    }

    #[test]
    fn only_output_of_fio_with_figures_is_converted() {
        for other in ["", "{}", "[1]", "{\"schema\":1}", &MODERN[..MODERN.len() / 2]] {
            assert!(of_others(&[named(other)]).expect("no complaint").is_none(), "{other}");
        }
        for empty in [r#"{"fio version": "fio-3.1"}"#, r#"{"fio version": "fio-3.1", "jobs": [{"read": 7}]}"#]
        {
            let error = refused(&[empty]);
            assert!(error.contains("no job with any figures"), "{error}");
        }
    }

    #[test]
    fn a_table_has_a_line_for_each_figure() {
        let mut report = convert(&[MODERN]);
        report.experiments[0].rows[0].metrics.0.retain(|name, _| name == metric::IOPS);
        report.experiments[0].rows[0].samples[0].metrics.0.retain(|name, _| name == metric::IOPS);
        report.experiments[0].rows[0].conditions = vec![Condition::at_most("steal", 0.5, 0.02)];
        report.experiments[0].rows.push(Row::skipped("trim", "refused, \"no\""));
        report.experiments[0].parameters = [("bs".to_owned(), Value::from("4k"))].into();
        let expected = "experiment,parameters,row,repeat,metric,value,failed_gates,skipped\n\
            fio,bs=4k,read,all,iops,2000.5,steal,\n\
            fio,bs=4k,read,0,iops,2000.5,steal,\n\
            fio,bs=4k,trim,,,,,\"refused, \"\"no\"\"\"\n";
        assert_eq!(to_csv(&report).expect("in memory"), expected);
    }

    /// A document of fio as it is, without what this program makes of it.
    fn raw(text: &str) -> Value {
        let start = text.find("\n{").map_or(0, |at| at + 1);
        let mut documents = Deserializer::from_str(&text[start..]).into_iter();
        documents.next().expect("a document").expect("JSON")
    }

    #[test]
    fn files_of_the_same_job_are_repeats_and_jobs_at_the_same_time_are_one_run() {
        let [one, two] = ["fio-3.33-jobs-1.json", "fio-3.33-jobs-2.json"].map(fixture);
        let report = convert(&[&one, &two]);
        let first = raw(&one);
        assert_eq!(report.environment.time_unix_s, first["timestamp"].as_u64().expect("a time"));
        let [point, mix] = report.experiments.as_slice() else { panic!("{report:?}") };
        let jobs: Vec<&Value> = list(&first["jobs"]).filter(|job| job["jobname"] == "point").collect();
        let of = |of: &dyn Fn(&Value) -> f64| jobs.iter().map(|job| of(job)).collect::<Vec<_>>();
        let longest = of(&|job| job["read"]["runtime"].as_f64().expect("ms")).into_iter().fold(0.0, f64::max);
        let row = point.row("read").expect("it read");
        let near = |metric: &str, wanted: f64| {
            let found = row.samples[0].metrics.get(metric).expect("a figure");
            assert!((found / wanted - 1.0).abs() < 1e-6, "{metric}: {found}, not {wanted}");
        };
        // Two jobs of 500 reads beside each other, in the time of the longer one.
        near(metric::IOPS, 1000.0 / longest * 1000.0);
        near(metric::SECONDS, longest / 1000.0);
        assert_eq!(row.samples[1].repeat, 1);
        // The largest of both jobs: none of these is the percentile of all reads.
        for (name, key, _) in PERCENTILES {
            let all = of(&|job| job["read"]["clat_ns"]["percentile"][key].as_f64().expect("ns"));
            near(name, all.into_iter().fold(0.0, f64::max) / 1000.0);
        }
        let figure = |job: &Value, name: &str| job[name].as_f64().expect("a number");
        near(metric::CONTEXT_SWITCHES_PER_IO, of(&|job| figure(job, "ctx")).iter().sum::<f64>() / 1000.0);
        let cpu_us =
            of(&|job| (figure(job, "usr_cpu") + figure(job, "sys_cpu")) * 10.0 * figure(job, "job_runtime"));
        near(metric::CPU_US_PER_IO, cpu_us.iter().sum::<f64>() / 1000.0);
        assert!(point.notes.iter().any(|note| note.contains("sum of 2 jobs")), "{:?}", point.notes);
        assert_eq!((mix.rows.len(), mix.notes.len()), (2, 0), "two runs have a spread: {:?}", mix.notes);
        assert_eq!(mix.row("read").and_then(|row| row.metrics.get(metric::CPU_US_PER_IO)), None);
        let alone = convert(&[&one]);
        assert!(alone.experiments.iter().all(|one| one.notes.iter().any(|note| note == ONCE)));
    }

    /// The sums of a group were divided by the time of its longest job, a fourth of the truth for four jobs.
    #[test]
    fn processor_time_is_that_of_all_jobs_of_a_group_or_unknown() {
        let text = fixture("fio-3.33-group.json");
        let job = raw(&text)["jobs"][0].clone();
        let row = convert(&[&text]).experiments[0].row("read").expect("it read").clone();
        let figure = |name: &str| job[name].as_f64().expect("a number");
        let wanted = (figure("usr_cpu") + figure("sys_cpu")) * 10.0 * figure("job_runtime") / 1000.0;
        assert!(figure("job_runtime") > 1.5 * job["read"]["runtime"].as_f64().expect("ms"));
        assert_eq!(row.metrics.get(metric::CPU_US_PER_IO), Some(wanted));
        // Before 3.8 the time of all is not there. The structure is that of fio 3.1, read in its sources.
        let old = r#"{"fio version": "fio-3.1", "global options": {"numjobs": "4", "group_reporting": ""}, "jobs": [{"jobname": "r",
            "job options": {"rw": "randread"}, "read": {"total_ios": 100000, "iops": 10000.0, "runtime": 10000},
            "usr_cpu": 5.0, "sys_cpu": 20.0, "ctx": 100000}]}"#;
        let row = convert(&[old]).experiments[0].row("read").expect("it read").clone();
        assert_eq!(
            (row.metrics.get(metric::CPU_US_PER_IO), row.metrics.get(metric::IOPS)),
            (None, Some(10_000.0))
        );
    }

    #[test]
    fn syncs_hosts_and_marks_of_fio_are_read() {
        let text = fixture("fio-3.33-sync.json");
        let found = convert(&[&text]).experiments;
        let wanted = raw(&text)["jobs"][0]["sync"]["lat_ns"]["percentile"]["99.000000"].as_f64().expect("ns");
        assert_eq!(samples(&found[0], "sync", metric::P99_US), [wanted / 1000.0]);
        assert_ne!(samples(&found[0], "write", metric::P99_US), [wanted / 1000.0]);
        // A client's output begins with the lines of its hosts.
        let text = fixture("fio-3.33-client.json");
        let found = convert(&[&text]).experiments;
        let job = &raw(&text)["client_stats"][0];
        assert_eq!(samples(&found[0], "read", metric::IOPS), [job["read"]["iops"].as_f64().expect("a rate")]);
        assert_eq!(Some(&found[0].parameters["host"]), job.get("hostname"));
        let with_sum = text.replace(
            "\"client_stats\" : [",
            "\"client_stats\" : [{\"jobname\": \"All clients\", \"read\": {\"total_ios\": 1}},",
        );
        assert_eq!(convert(&[&with_sum]).experiments.len(), 1);
        let marked = format!(
            "\u{feff}{}",
            MODERN.replace("\"trim\": { \"total_ios\": 0 }", "\"trim\": { \"iops\" : -nan }")
        );
        assert_eq!(
            convert(&[&marked]).to_json().expect("finite"),
            convert(&[MODERN]).to_json().expect("finite")
        );
        // The structure of fio 2.1.10, read in its sources: no number of operations, no options.
        let oldest = r#"{"fio version": "fio-2.1.10", "jobs": [{"jobname": "r", "read": {"bw": 26040, "iops": 6510, "runtime": 30001,
            "clat": {"percentile": {"50.000000": 145, "0.00": 0}}}, "usr_cpu": 1.5, "sys_cpu": 6.2, "ctx": 195400}]}"#;
        let row = convert(&[oldest]).experiments[0].row("read").expect("it read").clone();
        assert_eq!(
            (row.metrics.get(metric::IOPS), row.metrics.get(metric::P50_US)),
            (Some(6510.0), Some(145.0))
        );
    }

    #[test]
    fn jobs_of_the_same_name_one_after_the_other_are_repeats() {
        let job = |group: u32, options: &str| {
            format!(
                r#"{{"jobname": "a", "groupid": {group}, "job options": {{"rw": "read"{options}}},
                    "read": {{"total_ios": 10, "iops": 5.0, "runtime": 2000}}}}"#
            )
        };
        let fio =
            |jobs: [String; 2]| format!(r#"{{"fio version": "fio-3.36", "jobs": [{}]}}"#, jobs.join(","));
        let counts = |text: String| {
            let found = convert(&[&text]).experiments;
            found.iter().map(|one| samples(one, "read", metric::IOPS)).collect::<Vec<_>>()
        };
        assert_eq!(counts(fio([job(0, ""), job(1, r#", "stonewall": """#)])), [[5.0, 5.0]]);
        assert_eq!(counts(fio([job(0, ""), job(0, "")])), [[10.0]]);
        let parallel = r#", "new_group": "1""#;
        assert_eq!(counts(fio([job(0, parallel), job(1, parallel)])), [[10.0]]);
        assert_eq!(counts(fio([job(0, r#", "bs": "4k""#), job(0, "")])), [[5.0], [5.0]]);
    }

    #[test]
    fn running_totals_of_fio_are_no_repeats() {
        let text = fixture("fio-3.33-jobs-2.json");
        assert!(refused(&[&format!("{text}{text}")]).contains("--status-interval"));
        assert!(
            refused(&[&format!("{text}\npoint: (groupid=0, jobs=2)\n{text}")]).contains("running totals")
        );
        // `--output-format=json,normal` has a text after the JSON.
        assert_eq!(convert(&[&format!("{text}\npoint: (groupid=0, jobs=2)\n")]).experiments.len(), 2);
    }

    /// The JSON of 4.0 has a list of operations where 3.3 had a list of iterations, and was refused.
    #[test]
    fn text_and_json_of_ior_have_the_same_rows_in_each_version() {
        for version in ["3.3.0", "4.0.0"] {
            for (suffix, digits) in [("out", 1e-9), ("json", 1e-4)] {
                let text = fixture(&format!("ior-{version}.{suffix}"));
                let report = convert(&[&text]);
                let [experiment] = report.experiments.as_slice() else { panic!("{report:?}") };
                assert_eq!(experiment.rows.len(), 2, "a removal has no figures");
                assert_eq!(experiment.number("tasks"), Some(2.0));
                assert!(experiment.method.contains(&format!("IOR-{version}")), "{}", experiment.method);
                assert_eq!(experiment.notes, [""; 0], "two repetitions");
                assert_eq!(experiment.parameters["xfersize"], "65536 bytes");
                for access in ["write", "read"] {
                    let rates = samples(experiment, access, metric::MB_PER_S);
                    let seconds = samples(experiment, access, metric::SECONDS);
                    assert_eq!((rates.len(), seconds.len()), (2, 2), "{version} {access}");
                    // Its rate is that of a mebibyte in the time that it gives.
                    for (rate, seconds) in rates.iter().zip(seconds) {
                        let near = (rate * seconds - MIB).abs() <= rate * 0.5f64.mul_add(digits, 5e-7) + 0.01;
                        assert!(near, "{version} {access}: {rate} MB/s in {seconds} s");
                    }
                }
            }
        }
    }

    #[test]
    fn ior_before_3_3_has_fewer_columns() {
        let old = "IOR-3.0.1: MPI Coordinated Test of Parallel I/O\n\nSummary:\n\tapi                = MPIIO (version=3)\n\
            \ttasks              = 2\n\naccess    bw(MiB/s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   \
            total(s)   iter\n------    ---------\nwrite     125.00     1024 64.00      -          0.25   0.0625  0.5   0\n";
        let found = convert(&[old]).experiments;
        assert_eq!(samples(&found[0], "write", metric::MB_PER_S), [131.072]);
        assert_eq!(samples(&found[0], "write", metric::CLOSE_MS), [62.5]);
        assert_eq!(samples(&found[0], "write", metric::OPEN_MS), [0.0; 0]);
        assert_eq!(
            (&found[0].parameters["api"], found[0].number("tasks")),
            (&"MPIIO (version=3)".into(), Some(2.0))
        );
        assert!(refused(&[old.split("write").next().expect("a part")]).contains("no job with any figures"));
    }

    #[test]
    fn rates_of_mdtest_have_the_iterations_that_can_be_known() {
        let text = fixture("mdtest-4.0.0.out");
        let report = convert(&[&text]);
        let [experiment] = report.experiments.as_slice() else { panic!("{report:?}") };
        assert_eq!(experiment.rows.len(), 10);
        // The largest, the smallest and the mean rate, of the line of the first table.
        let line = |text: &str| -> Vec<f64> {
            let line =
                text.lines().find(|line| line.trim_start().starts_with("File creation")).expect("a line");
            line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
        };
        let [max, min, mean, _] = line(&text)[..] else { panic!("four figures") };
        let created = samples(experiment, "file-creation", metric::FILES_PER_S);
        assert_eq!((created.len(), created[0], created[2]), (3, min, max));
        assert!((created.iter().sum::<f64>() / 3.0 - mean).abs() < 0.01, "{created:?}");
        assert_eq!((experiment.number("tasks"), experiment.number("nodes")), (Some(2.0), Some(1.0)));
        assert_eq!(experiment.parameters["items"], "200 files/directories");
        assert_eq!(experiment.notes, [""; 0]);
        let many = text.replace("of 3 iterations", "of 9 iterations");
        let report = convert(&[&many, &many]);
        let created = samples(&report.experiments[0], "file-creation", metric::FILES_PER_S);
        assert_eq!(created, [mean, mean]);
        let notes = &report.experiments[0].notes;
        assert!(
            notes.iter().any(|note| note.contains("File creation: only the mean of 9 iterations")),
            "{notes:?}"
        );
        // Version 1 has colons, and newer ones can have columns of single ranks.
        let old = "mdtest-1.9.3 was launched with 2 total task(s) on 1 node(s)\n\nSUMMARY: (of 1 iterations)\n   Operation  \
            Max            Min           Mean        Std Dev\n   ---\n   File stat         :        9.5   9.5   9.5   0.0\n";
        assert_eq!(samples(&convert(&[old]).experiments[0], "file-stat", metric::FILES_PER_S), [9.5]);
        let ranks = old
            .replace("Operation ", "Operation per Rank: Max Min Mean per Iteration: ")
            .replace(":        9.5", "1.0 2.0 3.0 9.5");
        assert_eq!(samples(&convert(&[&ranks]).experiments[0], "file-stat", metric::FILES_PER_S), [9.5]);
        // Version 3.3 takes the rates of all tasks together, so that three do not follow from them.
        let text = fixture("mdtest-3.3.0.out");
        let created = samples(&convert(&[&text]).experiments[0], "directory-creation", metric::FILES_PER_S);
        assert_eq!(created.len(), 1, "{created:?}");
    }

    /// A table of times was read as rates: 0.58 ms became 0.58 files a second.
    #[test]
    fn times_of_mdtest_are_no_rates() {
        for version in ["3.3.0", "4.0.0"] {
            let (both, times) =
                (fixture(&format!("mdtest-{version}.out")), fixture(&format!("mdtest-{version}-times.out")));
            assert!(both.contains("SUMMARY time:"), "{version}");
            assert!(refused(&[&times]).contains("no job with any figures"), "{version}");
            let rates = both.split("SUMMARY time:").next().expect("a part");
            assert_eq!(
                convert(&[&both]).to_json().expect("finite"),
                convert(&[rates]).to_json().expect("finite"),
                "{version}"
            );
            // As releases after 4.0 call it.
            let newer = times.replace("SUMMARY time:", "SUMMARY time (in ms/op):");
            assert!(refused(&[&newer]).contains("no job with any figures"), "{version}");
        }
        let infinite =
            fixture("mdtest-4.0.0.out").replace("   File stat     ", "   File stat   inf inf inf nan\n   X ");
        assert!(convert(&[&infinite]).experiments[0].row("file-stat").is_none());
    }

    #[test]
    fn phases_of_elbencho_become_experiments() {
        let text = fixture("elbencho-3.1-9.json");
        let report = convert(&[&text]);
        let [directories, write, mixed] = report.experiments.as_slice() else { panic!("{report:?}") };
        assert_eq!(samples(directories, "last_done", metric::FILES_PER_S), [25_000.0]);
        assert_eq!(samples(directories, "last_done", "mean_us"), [31.0], "those of entries");
        assert_eq!(samples(write, "last_done", metric::IOPS), [20_000.0, 21_000.0], "the same phase twice");
        assert_eq!(samples(write, "last_done", metric::MB_PER_S), [81.92, 86.016]);
        assert_eq!(samples(write, "first_done", metric::SECONDS), [0.9, 0.856]);
        let row = write.row("last_done").expect("it ended");
        let times = [metric::P50_US, metric::P99_US, metric::P99_9_US].map(|name| row.metrics.get(name));
        assert_eq!(times, [Some(215.0), Some(1024.0), Some(1024.0)]);
        assert_eq!((&write.parameters["phase"], write.number("block_size")), (&"WRITE".into(), Some(4096.0)));
        assert_eq!(samples(mixed, "last_done.rwmix_read", metric::IOPS), [3000.0]);
        assert_eq!(samples(mixed, "last_done.rwmix_read", "mean_us"), [150.0]);
        assert_eq!(write.parameters["version"], "3.1-9");
        assert_eq!(samples(mixed, "last_done.rwmix_read", metric::P99_US), [152.0]);
        let exceeded = text.replace(
            r#"{"buckets":[{"range":"152"#,
            r#"{"histo_max_exceeded":"too long","buckets":[{"range":"152"#,
        );
        assert!(convert(&[&exceeded]).experiments[1].notes.iter().any(|note| note.contains("too long")));
        assert!(refused(&[&text[..text.len() - 9]]).contains("was cut off"));
    }

    #[test]
    fn several_files_are_of_programs_that_are_known() {
        let [ior, fio] = ["ior-4.0.0.out", "fio-3.33-jobs-1.json"].map(fixture);
        assert_eq!(convert(&[&ior, &fio]).environment.kernel, "unknown: measured by IOR-4.0.0 and fio-3.33");
        let own = Report::new(Environment::default(), Vec::new()).to_json().expect("finite");
        assert!(refused(&[&ior, &own]).contains("it is converted alone"));
        assert!(refused(&[&ior, "<html>"]).contains("reads the JSON of forebay, fio, elbencho and IOR"));
    }

    /// A generator of numbers that look random (xorshift).
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, limit: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % limit.max(1) as u64) as usize
        }
    }

    /// Reads a text with every reader that may get it, and prints and compares a result.
    fn read_all(text: &str) {
        let report = of_others(&[named(text)]).ok().flatten().or_else(|| parse("x.json", text).ok());
        if let Some(report) = report {
            to_csv(&report).expect("in memory");
            report.to_json().expect("finite");
            let comparison = crate::saved::diff::compare(&report, &report);
            if let Ok(comparison) = comparison {
                comparison.to_json().expect("finite");
                comparison.to_text();
            }
        }
    }

    #[test]
    fn no_reader_panics_on_a_damaged_file() {
        let words = [
            "-1",
            "0",
            "1e308",
            "-1e400",
            "NaN",
            "inf",
            "null",
            "[]",
            "{}",
            "\"\"",
            "\n",
            "\0",
            "{",
            "}",
            "\u{fffd}\u{2028}",
            "18446744073709551616",
            "4294967296",
            ":",
            ",",
            "write",
            "read",
            "(of 2 iterations)",
            "SUMMARY",
            "access bw(MiB/s)",
        ];
        let waited = r#"{"schema": 1, "forebay": "0", "kind": "wait", "time_unix_s": 1, "kernel": "", "command": [], "pid": 7,
            "method": "pressure", "wall_ns": 2, "full_wait_share": 0.5, "some_wait_share": 0.5, "wait_sum_ns": 3,
            "iowait": {"full_share": 0.5}, "files": [{"path": "a", "wait_ns": 1, "wait_share": 1.0}], "advice": ["b"], "notes": []}"#;
        let foreign = [
            "fio-3.33-jobs-1.json",
            "fio-3.33-sync.json",
            "elbencho-3.1-9.json",
            "ior-3.3.0.json",
            "ior-4.0.0.json",
            "ior-4.0.0.out",
            "mdtest-4.0.0.out",
        ]
        .map(fixture);
        let own = [convert(&[&foreign[0]]).to_json().expect("finite"), waited.to_owned()];
        let mut dice = Dice(0x2545_F491_4F6C_DD1D);
        for text in foreign.into_iter().chain(own) {
            // All places of a text are ASCII, so any of them can be cut.
            assert!(text.is_ascii());
            let step = (text.len() / 40).max(1);
            for at in (0..text.len()).step_by(step) {
                read_all(&text[..at]);
                read_all(&text[at..]);
                let word = words[dice.below(words.len())];
                let end = (at + dice.below(12)).min(text.len());
                read_all(&format!("{}{word}{}", &text[..at], &text[end..]));
            }
            // Values of every field in turn: digits, and whole words.
            let starts: Vec<usize> = text.match_indices([' ', ':', '\n']).map(|(at, _)| at + 1).collect();
            for at in starts.iter().copied().step_by((starts.len() / 100).max(1)) {
                let rest = &text[at..];
                let end = at + rest.find([' ', ',', '\n', '}']).unwrap_or(rest.len());
                let word = words[dice.below(words.len())];
                read_all(&format!("{}{word}{}", &text[..at], &text[end..]));
            }
        }
    }
}
