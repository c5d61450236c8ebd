//! End-to-end tests of `measure walk`: the contents of its document, its refusals, and no leftovers.

use crate::support::{Directory, check_sentence, document, experiments, is_refused, rows, run, tail};
use serde_json::Value;

const ROWS: [&str; 8] = [
    "pread",
    "io_uring",
    "forebay-task",
    "forebay-walk",
    "forebay-walk-tokio",
    "blocking-per-hop",
    "blocking-whole",
    "tokio-fs",
];

fn measure(directory: &Directory, arguments: &str) -> (crate::support::Outcome, Value) {
    let mut all = vec!["measure", "walk", directory.text(), "--json", "--quiet"];
    all.extend(arguments.split(' '));
    let outcome = run(&all);
    let value = document(&outcome);
    (outcome, value)
}

#[test]
fn every_row_looks_up_in_every_setting() {
    let directory = Directory::new("walk");
    let arguments =
        "--size 4MiB --seconds 0.1 --repeats 2 --depth 1,4 --threads 1,3 --node 512 --in-flight 6";
    let (outcome, value) = measure(&directory, arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let settings: Vec<(u64, u64)> = experiments(&value)
        .iter()
        .map(|experiment| {
            let number = |name: &str| experiment["parameters"][name].as_u64().expect("a number");
            assert_eq!((number("in_flight"), number("levels")), (6, 4));
            assert!(number("node_bytes") == 512 && number("read_bytes") >= 512);
            assert!(number("file_bytes") <= 4 << 20);
            (number("threads"), number("depth"))
        })
        .collect();
    assert_eq!(settings, [(1, 1), (1, 4), (3, 1), (3, 4)]);
    for experiment in experiments(&value) {
        assert_eq!(experiment["name"], "walk");
        let names: Vec<&str> = rows(experiment).iter().filter_map(|row| row["name"].as_str()).collect();
        assert_eq!(names, ROWS);
        for row in rows(experiment) {
            let number = |name: &str| experiment["parameters"][name].as_f64().expect("a number");
            check_row(row, number("depth"), number("in_flight"));
        }
        let notes = experiment["notes"].to_string();
        assert!(notes.contains("host") && notes.contains("tokio-fs"), "{notes}");
    }
    // The nodes' length is the outermost loop.
    let arguments =
        "--size 4MiB --seconds 0.1 --repeats 1 --depth 1,4 --threads 1 --node 512,4096 --rows pread";
    let (outcome, value) = measure(&directory, arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let settings = experiments(&value).iter().map(|experiment| {
        ["node_bytes", "depth"].map(|name| experiment["parameters"][name].as_u64().expect("a number"))
    });
    assert_eq!(settings.collect::<Vec<_>>(), [[512, 1], [512, 4], [4096, 1], [4096, 4]]);
    assert_eq!(directory.names(), Vec::<String>::new());
}

fn check_row(row: &Value, depth: f64, tasks: f64) {
    let name = row["name"].as_str().expect("a name");
    // Where the kernel refuses a ring, the limit is unavailable, and no other row may be missing.
    if name == "io_uring" && row["skipped"].is_string() {
        return;
    }
    assert_eq!(row["skipped"], Value::Null, "{row}");
    assert_eq!(row["gates"], Value::Array(Vec::new()), "only a check has limits: {row}");
    assert_eq!(row["cache"], if name == "tokio-fs" { "evicted" } else { "direct" }, "{row}");
    assert_eq!(row["samples"].as_array().map(Vec::len), Some(2), "{row}");
    let metric = |name: &str| row["metrics"][name].as_f64();
    assert!(metric("lookups_per_s").is_some_and(|rate| rate > 0.0), "{row}");
    assert!(metric("p50_us") <= Some(tail(row, "p99_us")) && metric("p50_us") > Some(0.0), "{row}");
    assert!(
        metric("cpu_us_per_lookup").is_some() && metric("context_switches_per_lookup").is_some(),
        "{row}"
    );
    // A walk wakes once. Ways that decide in the task are woken at most once for each read,
    // `tokio::fs` twice.
    let wakes = metric("wakes_per_lookup");
    let most = match name {
        "pread" | "io_uring" => return assert_eq!(wakes, None, "{row}"),
        "forebay-walk" | "forebay-walk-tokio" | "blocking-whole" => 1.0,
        "tokio-fs" => 2.0 * depth,
        _ => depth,
    };
    assert!(wakes.is_some(), "{row}");
    // A lookup can be over before its wake-up arrives, which the task's next lookup then counts: one a task, where the
    // earlier lookup was part of the warm-up.
    for sample in row["samples"].as_array().expect("a list") {
        let metric =
            |name: &str| sample[name].as_f64().unwrap_or_else(|| panic!("each sample has {name}: {row}"));
        let lookups = metric("lookups_per_s") * metric("seconds");
        // Regression: on a busy machine no lookup ended within a sample of 0.1 s; such a sample has no figures a lookup.
        if lookups == 0.0 {
            continue;
        }
        assert!(metric("wakes_per_lookup") * lookups <= most * lookups + tasks + 0.5, "{row}");
    }
}

#[test]
fn a_check_has_gates_for_the_sixth_depth_only_and_an_exit_code() {
    let directory = Directory::new("check");
    let rows_wanted = "io_uring,pread,forebay-walk,forebay-walk-tokio,blocking-per-hop,blocking-whole";
    let arguments =
        format!("--quick --check --size 2MiB --seconds 0.1 --depth 5,6 --rows {rows_wanted} --fanout 7");
    let (outcome, value) = measure(&directory, &arguments);
    let [fifth, sixth] = experiments(&value) else { panic!("two depths") };
    assert_eq!((&sixth["parameters"]["depth"], &sixth["parameters"]["fan_out"]), (&6.into(), &7.into()));
    let gates = |experiment: &Value, name: &str| -> Vec<bool> {
        let row = rows(experiment).iter().find(|row| row["name"] == name).expect("it was asked for");
        let gates = row["gates"].as_array().expect("gates is a list");
        gates.iter().map(|gate| gate["passed"].as_bool().expect("a gate has passed or not")).collect()
    };
    for row in rows_wanted.split(',') {
        assert_eq!(gates(fifth, row), Vec::<bool>::new(), "{row}");
    }
    let all = [gates(sixth, "forebay-walk"), gates(sixth, "forebay-walk-tokio")].concat();
    assert!(all.len() >= 4, "{sixth}");
    assert_eq!(outcome.code, Some(i32::from(all.contains(&false))), "{}", outcome.err);
}

/// Checks the metrics of the timer tasks in a row that was measured with them.
fn check_timers(row: &Value) {
    let metric = |name: &str| row["metrics"][name].as_f64();
    assert_eq!(row["skipped"], Value::Null, "{row}");
    assert!(metric("timers_late_p50_us").is_some_and(|late| late >= 0.0), "{row}");
    assert!(metric("timers_late_p50_us") <= Some(tail(row, "timers_late_p99_us")), "{row}");
    assert!(metric("timers_late_p99_us") <= metric("timers_late_max_us"), "{row}");
    assert!(row["histograms"]["timers_late"].is_string(), "{row}");
    assert_eq!(metric("cpu_us_per_lookup"), None, "the timers' own would be in it: {row}");
}

#[test]
fn timers_beside_the_lookups_record_their_lateness() {
    let directory = Directory::new("timers");
    let arguments = "--quick --size 4MiB --seconds 0.15 --beside timers --in-flight 6 --depth 2";
    let (outcome, value) = measure(&directory, arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let [experiment] = experiments(&value) else { panic!("one setting") };
    assert_eq!(experiment["parameters"]["beside"], "timers");
    let [alone, others @ ..] = rows(experiment) else { panic!("rows") };
    assert_eq!((&alone["name"], others.len()), (&"no-lookups".into(), ROWS.len()));
    check_timers(alone);
    let share = alone["metrics"]["timers_cpu_share"].as_f64().expect("their own cost is told");
    assert!(share > 0.0, "{alone}");
    assert_eq!(alone["metrics"]["lookups_per_s"], Value::Null);
    others.iter().filter(|row| row["skipped"].is_null()).for_each(check_timers);
    let notes = experiment["notes"].to_string();
    assert!(notes.contains("of one processor by themselves"), "{notes}");
    check_sentence(&value, "timers");
    let verdicts = value["verdicts"].to_string();
    assert!(!verdicts.contains("lookups/s"), "beside timers nothing else is claimed: {verdicts}");
}

/// Published figures include the creation and the removal of a file; the sentences must mention that.
#[test]
fn lookups_can_be_counted_as_published() {
    let directory = Directory::new("published");
    let arguments = "--quick --as-published --seconds 0.1 --in-flight 3 --depth 1,3 --node 512,4096";
    let (outcome, value) = measure(&directory, arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    assert_eq!(experiments(&value).len(), 4);
    for experiment in experiments(&value) {
        assert_eq!(experiment["parameters"]["as_published"], true);
        let names: Vec<&str> = rows(experiment).iter().filter_map(|row| row["name"].as_str()).collect();
        let wanted: Vec<&str> = ROWS.into_iter().filter(|row| *row != "io_uring").collect();
        assert_eq!(names, wanted, "what is registered once is left out");
        for row in rows(experiment) {
            assert_eq!(row["skipped"], Value::Null, "{row}");
            assert!(row["metrics"]["lookups_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
            assert_eq!(row["cache"], if row["name"] == "tokio-fs" { "warm" } else { "direct" }, "{row}");
        }
        assert!(experiment["method"].to_string().contains("makes a file of"), "{experiment}");
    }
    check_sentence(&value, "published, depth");
    assert_eq!(directory.names(), Vec::<String>::new());
    let refused = run(&["measure", "walk", directory.text(), "--as-published", "--rows", "io_uring"]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    let both = run(&["measure", "walk", directory.text(), "--as-published", "--check"]);
    assert_eq!(both.code, Some(2), "{}", both.err);
}

#[test]
fn tables_name_the_index_and_put_depths_together() {
    let directory = Directory::new("tables");
    let arguments = "--quick --size 1MiB --depth 1,2 --rows forebay-walk,pread --seconds 0.05 --in-flight 3";
    // Without it, columns are left out when long figures need the width.
    let mut all = vec!["measure", "walk", directory.text(), "--verbose"];
    all.extend(arguments.split(' '));
    let outcome = run(&all);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    for part in [
        "Lookups in nodes of 512 B, 3 in flight from 1 thread(s)\n",
        "depth",
        "lookups/s",
        "CPU µs/lookup",
        "wakes/lookup",
    ] {
        assert!(outcome.out.contains(part), "{part}: {}", outcome.out);
    }
    // A row that the device contradicts takes no part in sentences (`check_sentence`).
    let is_disturbed = outcome.out.contains("GATE FAILED: device_bytes");
    assert!(is_disturbed || outcome.out.contains("lookups/s with `forebay-walk`"), "{}", outcome.out);
}

#[test]
fn impossible_values_are_refused() {
    for (arguments, known) in [
        (&["--rows", "forebay-walk,quick"][..], "there is no row"),
        (&["--node", "1024"], "512 or 4096"),
        (&["--node", "512", "--fanout", "31"], "--fanout"),
        (&["--size", "4KiB"], "1 MiB"),
        (&["--depth", "0"], "0"),
    ] {
        is_refused("walk", arguments, known);
    }
}
