//! `forebay convert`: results of other programs to this program's schema, and its own to CSV.
//!
//! The readers of fio, elbencho, IOR and mdtest return an experiment for each job or phase of each run; `merge` joins the
//! runs of the same work.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde_json::{Deserializer, Value};

use super::{not_json, plain};
use crate::environment::Environment;
use crate::failure::Failure;
use crate::result::columns::together;
use crate::result::{Condition, Experiment, Report, Row, Sample, metric};

/// Note of an experiment without repeats.
const ONCE: &str = "One run: the spread between runs is unknown. Name the files of several runs of the same work to \
                    make them repeats.";

/// A result of another program: the program with its version, the time where it is known, and the experiments.
type Foreign = (String, u64, Vec<Experiment>);

/// Converts the named texts of other programs, with an experiment for each job or phase. Runs of the same work become repeats.
/// `None` for a single text of an unknown program.
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
            return Err(wrong(format!("is of {program}, but has no job with any figures")));
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

/// Finds the program that wrote a text, and reads it; `None` for an unknown program.
///
/// # Errors
/// What is wrong with the text, to follow its name.
fn foreign(text: &str) -> Result<Option<Foreign>, String> {
    // Editors add a byte order mark, and fio writes what it divides by zero as no JSON has it.
    let text = ["-nan", "nan", "-inf", "inf"].iter().fold(
        text.trim_start_matches('\u{feff}').to_owned(),
        |text, word| {
            // Behind a name of JSON: a text of IOR has values such as `info.dat`.
            text.replace(&format!("\" : {word}"), "\" : null")
        },
    );
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
    fn key(one: &Experiment) -> (&str, &BTreeMap<String, Value>, &str) {
        (&one.name, &one.parameters, &one.method)
    }
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
pub fn number_or_text(value: &Value) -> Value {
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
        // It has it as `job`.
        parameters.remove("name");
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
    found.extend(fio_times(kind, "clat", &parts));
    // A job's processor time covers all of its work.
    let all: f64 = parts.iter().flat_map(|job| KINDS[..3].iter().map(|kind| done(job, kind))).sum();
    if kind == "mixed" || all == operations {
        let cpu_us = |job: &&Value| {
            let share = (known(job, "usr_cpu")? + known(job, "sys_cpu")?) / 100.0;
            // The time of all jobs of a group, since 3.8. `runtime` is that of the longest, and their number is unknown.
            Some(share * 1000.0 * known(job, "job_runtime")?)
        };
        let per_io = |total: Option<f64>| total.map(|total| total / operations);
        found.push((metric::CPU_US_PER_IO, per_io(parts.iter().map(cpu_us).sum())));
        let switches = parts.iter().map(|job| known(job, "ctx")).sum();
        found.push((metric::CONTEXT_SWITCHES_PER_IO, per_io(switches)));
    }
    Some(Row::of_repeats(kind, [found]).describe("as fio calls it"))
}

/// Returns figures of some times of fio: the mean, and of the percentiles the largest of any part. They are nanoseconds since fio 3,
/// microseconds before.
fn fio_times(kind: &str, times: &str, parts: &[&Value]) -> Vec<(&'static str, Option<f64>)> {
    let nanoseconds = format!("{times}_ns");
    let of = |job: &Value, figure: &dyn Fn(&Value) -> Option<f64>| {
        let in_us = |times: &str, divisor: f64| Some(figure(&job[kind][times])? / divisor);
        in_us(&nanoseconds, 1000.0).or_else(|| in_us(times, 1.0))
    };
    let sums = parts.iter().map(|job| {
        let count = known(&job[kind][&nanoseconds], "N").or_else(|| known(&job[kind], "total_ios"))?;
        // Where no times were taken, versions that do not count these have a mean of 0.
        let mean = of(job, &|times| known(times, "mean")).filter(|mean| *mean > 0.0 || count == 0.0)?;
        Some((mean * count, count))
    });
    let sums = sums.collect::<Option<Vec<(f64, f64)>>>().unwrap_or_default();
    let (sum, count) = sums.iter().fold((0.0, 0.0), |all, own| (all.0 + own.0, all.1 + own.1));
    let mut found = vec![(metric::MEAN_US, (count > 0.0).then(|| sum / count))];
    found.extend(PERCENTILES.map(|(name, key, _)| {
        let own = parts.iter().filter_map(|job| of(job, &|times| known(&times["percentile"], key)));
        (name, own.reduce(f64::max))
    }));
    found
}

/// Returns the row of the syncs among the work (`fsync`, `fdatasync`), whose times are in no other row.
fn fio_syncs(parts: &[&Value]) -> Option<Row> {
    // 3.33 counts no fdatasync in `total_ios`; version 2 has no nanoseconds.
    let counts = |job: &&Value| [known(&job["sync"], "total_ios"), known(&job["sync"]["lat_ns"], "N")];
    let syncs: f64 = parts.iter().flat_map(counts).flatten().sum();
    let found = Row::of_repeats("sync", [fio_times("sync", "lat", parts)]);
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
            let figures = rates.into_iter().chain([mean]).chain(PERCENTILES.map(percentile));
            let row = Row::of_repeats(name, [figures]);
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
    experiment.rows.push(Row::of_repeats(access, [IOR.map(figure)]).describe("as IOR calls it"));
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

/// Returns whether a line starts a table of IOR or mdtest.
fn begins_table(line: &str) -> bool {
    line.starts_with("SUMMARY") || line.starts_with("access ") && line.contains("bw(MiB/s)")
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
    let repeats = values.iter().map(|value| [(metric::FILES_PER_S, *value)]);
    let row = Row::of_repeats(name.to_lowercase().replace(' ', "-"), repeats);
    experiment.rows.push(row.describe(format!("{name}, as mdtest calls it")));
}

#[cfg(test)]
mod tests;
