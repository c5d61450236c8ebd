//! Guarantees of the experiments for their samples: the memory limit, the metrics, and files that are
//! only read.

use std::fs;

use crate::support::{
    Directory, document, experiments, has_samples, metric, rows, run, run_with_files, tail,
};
use serde_json::Value;

#[test]
fn no_row_of_a_scan_exceeds_the_memory_it_may_use() {
    let directory = Directory::new("limit");
    let outcome = run(&[
        "measure",
        "scan",
        directory.text(),
        "--json",
        "--quiet",
        "--repeats",
        "2",
        "--seconds",
        "0.3",
        "--memory",
        "32MiB",
        "--size",
        "64MiB",
    ]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let scan = &value["experiments"][0];
    let cold = scan["parameters"]["cold"].as_str().expect("a word");
    assert!(["cgroup", "dropped", "fadvise", "warm"].contains(&cold), "{cold}");
    for row in rows(scan) {
        has_samples(row, 2);
        let peak = metric(row, "memory_peak_bytes");
        assert!(peak > 0.0, "{row}");
        // Without a cgroup nothing limits the page cache, and the notes report that.
        if cold == "cgroup" {
            assert!(peak <= f64::from(32 << 20), "{row}");
        }
    }
    let limited = scan["notes"].to_string().contains("could not be limited");
    assert_eq!(limited, cold != "cgroup", "{scan}");
    assert_eq!(directory.names(), Vec::<String>::new());
}

#[test]
fn random_reads_have_ordered_percentiles_for_every_span_and_depth() {
    let directory = Directory::new("percentiles");
    let outcome = run(&[
        "measure",
        "random",
        directory.text(),
        "--json",
        "--quiet",
        "--repeats",
        "1",
        "--seconds",
        "0.1",
        "--memory",
        "32MiB",
        "--size",
        "64MiB",
        "--depth",
        "1,4",
        "--threads",
        "2",
    ]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let experiments = value["experiments"].as_array().expect("experiments is a list");
    assert_eq!(experiments.len(), 4);
    for experiment in experiments {
        let whole = experiment["parameters"]["span_bytes"] == experiment["parameters"]["file_bytes"];
        assert_eq!(rows(experiment).len(), if whole { 8 } else { 5 }, "{experiment}");
        for row in rows(experiment).iter().filter(|row| !has_no_poll_queues(row)) {
            assert_eq!(row["skipped"], Value::Null, "{row}");
            assert!(metric(row, "iops") > 0.0 && metric(row, "cpu_us_per_io") > 0.0, "{row}");
            assert!(metric(row, "p50_us") <= tail(row, "p99_us"), "{row}");
            assert!(tail(row, "p99_us") <= tail(row, "p99_9_us"), "{row}");
            assert!(metric(row, "context_switches_per_io") >= 0.0, "{row}");
        }
    }
}

#[test]
fn an_existing_file_is_only_read() {
    let directory = Directory::new("existing");
    let file = directory.file("mine", 40 << 20);
    let before = fs::read(&file).expect("readable");
    let name = file.to_str().expect("readable name");
    let outcome = run(&[
        "measure",
        "scan",
        name,
        "--json",
        "--quiet",
        "--repeats",
        "1",
        "--rows",
        "buffered,direct-large",
    ]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let scan = &value["experiments"][0];
    assert_eq!(scan["parameters"]["file_bytes"], 40 << 20);
    assert_eq!(scan["parameters"]["own_file"], false);
    assert_eq!(rows(scan).len(), 2);
    assert!(fs::read(&file).expect("readable") == before, "the file was changed");
    assert_eq!(directory.names(), ["mine"]);
}

/// Returns whether the row of polled reads was skipped for lack of poll queues: then it names the
/// reason and the remedy.
fn has_no_poll_queues(row: &Value) -> bool {
    row["name"] == "direct-polled" && row["skipped"].as_str().is_some_and(|why| why.contains("poll queues"))
}

/// Every row has gates that show whether its figures can be trusted, and keeps the time of every
/// single operation.
#[test]
fn rows_have_gates_and_the_times_of_all_operations() {
    let directory = Directory::new("gates");
    let mut arguments = vec!["measure", "random", directory.text(), "--json", "--quiet", "--repeats", "2"];
    arguments.extend(["--memory", "32MiB", "--size", "48MiB", "--seconds", "0.1", "--depth", "4"]);
    let outcome = run(&arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    for experiment in value["experiments"].as_array().expect("experiments") {
        let names = |value: &Value| -> Vec<String> {
            let gates = value["conditions"].as_array().expect("gates");
            gates.iter().map(|gate| gate["name"].as_str().expect("a name").to_owned()).collect()
        };
        assert_eq!(names(experiment), ["write_cache", "extents"]);
        for row in rows(experiment).iter().filter(|row| !has_no_poll_queues(row)) {
            assert_eq!(names(row), ["device_bytes", "generator", "other_io", "steal", "throttling"], "{row}");
            let histogram = row["histograms"]["latency"].as_str().expect("a text");
            assert!(histogram.starts_with("HISTFAAA"), "{histogram}");
        }
    }
    assert!(
        value["environment"]["mitigations"].is_object() || !std::path::Path::new("/sys/devices").exists()
    );
    let outcome = run(&arguments.into_iter().filter(|word| *word != "--json").collect::<Vec<_>>());
    assert!(outcome.out.contains("gates: "), "{}", outcome.out);
}

/// A file whose space is only reserved reads as zeros at the speed of memory, without any work of a device.
#[test]
fn a_file_that_was_never_written_is_found_out() {
    let directory = Directory::new("reserved");
    let path = directory.path().join("reserved");
    let file = fs::File::create(&path).expect("it is our directory");
    if rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 40 << 20).is_err() {
        return;
    }
    file.sync_all().expect("it can be flushed");
    let name = path.to_str().expect("readable name");
    let mut arguments = vec!["measure", "random", name, "--quiet", "--repeats", "1", "--seconds", "0.3"];
    arguments.extend(["--depth", "1", "--rows", "direct-pread"]);
    let outcome = run(&[&arguments[..], &["--json"]].concat());
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let gate = |gates: &Value, name: &str| {
        let gates = gates.as_array().expect("gates").clone();
        gates.into_iter().find(|gate| gate["name"] == name).expect("every gate is there")
    };
    let experiment = &value["experiments"][1];
    let extents = gate(&experiment["conditions"], "extents");
    // A file system that does not report extents, and a device without counters, leave the gate
    // unknown; neither passes it.
    assert_ne!(extents["passed"], true, "{extents}");
    let row = &rows(experiment)[0];
    let device = gate(&row["conditions"], "device_bytes");
    // Bytes that others read meanwhile count for the row, and are found by a separate gate.
    let others = gate(&row["conditions"], "other_io");
    assert!(device["passed"] != true || others["passed"] == false, "{device} {others}");
    assert!(metric(row, "iops") > 0.0, "it is marked, not hidden");
    if device["passed"] == false {
        let text = run(&arguments).out;
        for words in ["direct-pread (!)", "GATE FAILED: device_bytes of direct-pread", "GATE FAILED: extents"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}

#[test]
fn samples_are_read_as_fast_as_they_come_and_at_a_rate() {
    let directory = Directory::new("samples");
    let mut arguments = vec!["measure", "samples", directory.text(), "--json", "--quiet", "--repeats", "1"];
    arguments.extend(["--size", "16MiB", "--seconds", "0.1", "--rate", "800", "--batch", "4"]);
    let outcome = run(&arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let experiments = value["experiments"].as_array().expect("experiments");
    let rates: Vec<_> = experiments.iter().map(|one| one["parameters"]["rate_per_s"].as_u64()).collect();
    assert_eq!(rates, [Some(0), Some(800)]);
    for row in experiments.iter().flat_map(rows) {
        assert_eq!(row["skipped"], Value::Null, "{row}");
        let bytes = metric(row, "mb_per_s") * 1e6 / metric(row, "iops");
        assert!((4096.0..=153_600.0).contains(&bytes), "{bytes}: {row}");
        assert!(metric(row, "p50_us") > 0.0 && metric(row, "cpu_share") > 0.0, "{row}");
    }
    assert!(rows(&experiments[1]).iter().all(|row| metric(row, "iops") < 820.0), "{experiments:?}");
    assert_eq!(value["verdicts"].as_array().map(Vec::len), Some(4), "{}", value["verdicts"]);
    assert_eq!(directory.names(), Vec::<String>::new());
}

#[test]
fn ranks_are_processes_that_write_together() {
    let directory = Directory::new("collective");
    let mut arguments =
        vec!["measure", "collective", directory.text(), "--json", "--quiet", "--repeats", "1"];
    arguments.extend(["--size", "1MiB", "--block", "64KiB", "--ranks", "1,3", "--seconds", "60"]);
    let outcome = run(&arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let experiments = value["experiments"].as_array().expect("experiments");
    assert_eq!(experiments.len(), 2);
    for experiment in experiments {
        let ranks = experiment["parameters"]["ranks"].as_f64().expect("a number");
        assert_eq!(rows(experiment).len(), 8);
        for row in rows(experiment) {
            assert_eq!(row["skipped"], Value::Null, "{row}");
            let (slowest, fastest) = (metric(row, "last_done_s"), metric(row, "first_done_s"));
            assert!(slowest >= fastest && fastest > 0.0, "{row}");
            let written = metric(row, "mb_per_s") * 1e6 * slowest;
            assert!((written / (ranks * f64::from(1 << 20)) - 1.0).abs() < 0.001, "all of it: {row}");
        }
    }
    assert!(value["verdicts"].to_string().contains("3 ranks: `two-phase-sync`"), "{}", value["verdicts"]);
    assert_eq!(directory.names(), Vec::<String>::new());
}

/// A user read by 2,000 readers from a login that lets a process have 1,024 files open, with a higher hard limit: the row that opens
/// a file for each of them was left out with "Too many open files".
#[test]
fn a_row_has_more_files_than_may_be_open_at_first() {
    let directory = Directory::new("descriptors");
    let all = ["--json", "--quiet", "--repeats", "1", "--seconds", "0.05", "--rows", "tokio-fs"];
    for own in [
        &["cpu", "--readers", "300", "--size", "2MiB"][..],
        &["walk", "--in-flight", "300", "--size", "1MiB", "--depth", "1", "--node", "512", "--threads", "1"],
    ] {
        let outcome = run_with_files(256, &[&["measure"][..], own, &all, &[directory.text()]].concat());
        assert_eq!(outcome.code, Some(0), "{own:?}: {}", outcome.err);
        let value = document(&outcome);
        let measured: Vec<&Value> = experiments(&value).iter().flat_map(rows).collect();
        assert!(!measured.is_empty(), "{value}");
        measured.into_iter().for_each(|row| has_samples(row, 1));
    }
}
