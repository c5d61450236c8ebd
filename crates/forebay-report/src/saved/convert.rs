//! `forebay convert`: fio's JSON to this program's schema, and this program's JSON to CSV.

use anyhow::Context as _;
use serde_json::{Map, Value};

use super::select::plain;
use crate::environment::Environment;
use crate::failure::Failure;
use crate::result::{Condition, Experiment, Metrics, Report, Row, Sample, metric};

/// Name of the experiments.
const FIO: &str = "fio";
/// fio's kinds of work; a job has figures for each.
const KINDS: [&str; 3] = ["read", "write", "trim"];

/// Converts fio's result to one experiment for each job; `None` when the text is not from fio.
///
/// # Errors
/// [`Failure::Usage`] when it is a result without figures.
pub fn from_fio(name: &str, text: &str) -> Result<Option<Report>, Failure> {
    // fio prints its warnings before its JSON.
    let Some(start) = text.find('{') else { return Ok(None) };
    let Ok(document) = serde_json::from_str::<Value>(&text[start..]) else { return Ok(None) };
    let Some(version) = document.get("fio version").and_then(Value::as_str) else { return Ok(None) };
    let empty = Map::new();
    let global = document.get("global options").and_then(Value::as_object).unwrap_or(&empty);
    let jobs = document.get("jobs").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut experiments: Vec<Experiment> = jobs.iter().map(|job| of_job(job, global, version)).collect();
    experiments.retain(|experiment| !experiment.rows.is_empty());
    if experiments.is_empty() {
        return Err(Failure::Usage(format!("{name} is of {version} and has no job with any figures")));
    }
    let environment = Environment {
        time_unix_s: document.get("timestamp").and_then(Value::as_u64).unwrap_or_default(),
        kernel: "unknown: measured by fio".to_owned(),
        optimized_build: true,
        ..Environment::default()
    };
    Ok(Some(Report::new(environment, experiments)))
}

fn of_job(job: &Value, global: &Map<String, Value>, version: &str) -> Experiment {
    let mut experiment = Experiment::new(
        FIO,
        format!(
            "Measured by {version} and converted: one run, so the spread between runs is unknown. Times are fio's \
             completion latencies: from when an operation was submitted, not from when it was due."
        ),
    );
    let own = job.get("job options").and_then(Value::as_object);
    for (key, value) in global.iter().chain(own.into_iter().flatten()) {
        experiment = experiment.parameter(key, number_or_text(value));
    }
    if let Some(name) = job.get("jobname").and_then(Value::as_str) {
        experiment = experiment.parameter("job", name);
    }
    if let Some(depth) = experiment.parameters.get("iodepth").cloned() {
        experiment = experiment.parameter("depth", depth);
    }
    experiment.rows = KINDS.iter().filter_map(|kind| row(kind, job)).collect();
    if job.get("error").and_then(Value::as_i64).is_some_and(|error| error != 0) {
        experiment.notes.push(format!("fio reports that the job failed with error {}", job["error"]));
    }
    experiment
}

/// Converts an option of fio, which writes them as texts.
fn number_or_text(value: &Value) -> Value {
    let Some(text) = value.as_str() else { return value.clone() };
    let whole = text.parse::<i64>().map(Value::from).ok();
    let broken = || text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from);
    whole.or_else(broken).unwrap_or_else(|| value.clone())
}

fn row(kind: &str, job: &Value) -> Option<Row> {
    let figures = job.get(kind)?;
    let number = |name: &str| figures.get(name).and_then(Value::as_f64);
    let operations = number("total_ios").filter(|count| *count > 0.0)?;
    let mut metrics = Metrics::default();
    let mut set = |name: &str, value: Option<f64>| {
        if let Some(value) = value {
            metrics.set(name, value);
        }
    };
    set(metric::IOPS, number("iops"));
    let bytes = number("bw_bytes").or_else(|| number("bw").map(|kib| kib * 1024.0));
    set(metric::MB_PER_S, bytes.map(|bytes| bytes / 1e6));
    set(metric::SECONDS, number("runtime").map(|ms| ms / 1000.0));
    // Nanoseconds since fio 3, microseconds before.
    let times =
        figures.get("clat_ns").map(|times| (times, 1000.0)).or(figures.get("clat").map(|times| (times, 1.0)));
    for (name, percentile) in
        [(metric::P50_US, "50.000000"), (metric::P99_US, "99.000000"), (metric::P99_9_US, "99.900000")]
    {
        let found = times
            .and_then(|(times, divisor)| Some(times.get("percentile")?.get(percentile)?.as_f64()? / divisor));
        set(name, found);
    }
    // A job's processor time covers all of its work.
    let alone =
        KINDS.iter().all(|other| *other == kind || job[*other]["total_ios"].as_f64().unwrap_or(0.0) == 0.0);
    if alone {
        let of_job = |name: &str| job.get(name).and_then(Value::as_f64);
        let share = of_job("usr_cpu").zip(of_job("sys_cpu")).map(|(user, system)| (user + system) / 100.0);
        let runtime_us = of_job("job_runtime").or_else(|| number("runtime")).map(|ms| ms * 1000.0);
        set(metric::CPU_US_PER_IO, share.zip(runtime_us).map(|(share, us)| share * us / operations));
        set(metric::CONTEXT_SWITCHES_PER_IO, of_job("ctx").map(|count| count / operations));
    }
    Some(Row::from_samples(kind, vec![Sample { repeat: 0, metrics }]).describe("as fio calls it"))
}

/// Returns a line for each figure: of a row (`repeat` is `all`) and of each of its repeats.
///
/// # Errors
/// None that can happen with a text in memory.
pub fn to_csv(report: &Report) -> anyhow::Result<String> {
    let mut table = csv::Writer::from_writer(Vec::new());
    table.write_record([
        "experiment",
        "parameters",
        "row",
        "repeat",
        "metric",
        "value",
        "failed_gates",
        "skipped",
    ])?;
    for experiment in &report.experiments {
        let parameters: Vec<String> =
            experiment.parameters.iter().map(|(name, value)| format!("{name}={}", plain(value))).collect();
        let parameters = parameters.join(";");
        for row in &experiment.rows {
            let failed: Vec<&str> = experiment
                .conditions
                .iter()
                .chain(&row.conditions)
                .filter(|gate| Condition::failed(gate))
                .map(|gate| gate.name.as_str())
                .collect();
            let failed = failed.join(";");
            let skipped = row.skipped.as_deref().unwrap_or("");
            let mut line = |repeat: &str, metric: &str, value: &str| {
                table.write_record([
                    experiment.name.as_str(),
                    &parameters,
                    &row.name,
                    repeat,
                    metric,
                    value,
                    &failed,
                    skipped,
                ])
            };
            if row.skipped.is_some() {
                line("", "", "")?;
            }
            for (metric, value) in &row.metrics.0 {
                line("all", metric, &value.to_string())?;
            }
            for sample in &row.samples {
                for (metric, value) in &sample.metrics.0 {
                    line(&sample.repeat.to_string(), metric, &value.to_string())?;
                }
            }
        }
    }
    let bytes =
        table.into_inner().map_err(|error| error.into_error()).context("the table could not be written")?;
    Ok(String::from_utf8(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODERN: &str = r#"fio: this platform does not support process shared mutexes
{ "fio version": "fio-3.36", "timestamp": 1700000000, "global options": { "ioengine": "io_uring", "bs": "4k" },
  "jobs": [ { "jobname": "rand", "error": 0, "job options": { "iodepth": "32", "rw": "randread" },
    "read": { "total_ios": 1000, "iops": 2000.5, "bw": 8000, "bw_bytes": 8192000, "runtime": 500,
      "clat_ns": { "percentile": { "50.000000": 90000, "99.000000": 200000, "99.900000": 400000 } } },
    "write": { "total_ios": 0, "iops": 0.0 }, "trim": { "total_ios": 0 },
    "job_runtime": 500, "usr_cpu": 5.0, "sys_cpu": 15.0, "ctx": 2000 } ] }"#;

    #[test]
    fn a_job_of_fio_becomes_an_experiment() {
        let report = from_fio("x.json", MODERN).expect("fio's").expect("fio's");
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
        let report = from_fio("x.json", old).expect("fio's").expect("fio's");
        let row = report.experiments[0].row("write").expect("it wrote").clone();
        assert_eq!(row.metrics.get(metric::MB_PER_S), Some(1.024));
        assert_eq!((row.metrics.get(metric::P50_US), row.metrics.get(metric::P99_US)), (Some(90.0), None));
    }

    #[test]
    fn only_output_of_fio_with_figures_is_converted() {
        for other in ["", "{}", "[1]", "{\"schema\":1}", &MODERN[..MODERN.len() / 2]] {
            assert!(from_fio("x.json", other).expect("no complaint").is_none(), "{other}");
        }
        for empty in [r#"{"fio version": "fio-3.1"}"#, r#"{"fio version": "fio-3.1", "jobs": [{"read": 7}]}"#]
        {
            let error = from_fio("x.json", empty).expect_err("nothing in it");
            assert!(error.to_string().contains("no job with any figures"), "{error}");
        }
    }

    #[test]
    fn a_table_has_a_line_for_each_figure() {
        let mut report = from_fio("x.json", MODERN).expect("fio's").expect("fio's");
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
}
