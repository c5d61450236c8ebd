//! End-to-end tests of `measure cpu`: the contents of its document, its refusals, and no leftovers.

use crate::support::{Directory, check_sentence, document, is_refused, run, tail};
use serde_json::Value;

const ROWS: [&str; 14] = [
    "pread",
    "preadv2-hipri",
    "io_submit",
    "io_uring",
    "io_uring-fixed-buffers",
    "io_uring-fixed-files",
    "io_uring-defer-taskrun",
    "io_uring-sqpoll",
    "io_uring-iopoll",
    "tokio-fs",
    "spawn-blocking",
    "forebay-shard",
    "forebay-polled",
    "forebay-tokio",
];

fn metric(row: &Value, name: &str) -> Option<f64> {
    row["metrics"][name].as_f64()
}

#[test]
fn every_row_has_its_costs_or_the_reason_why_not() {
    let directory = Directory::new("cpu");
    let mut arguments = vec!["measure", "cpu", directory.text(), "--json", "--quiet"];
    arguments.extend("--size 4MiB --seconds 0.1 --repeats 1 --readers 1,8".split(' '));
    let outcome = run(&arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let experiments = value["experiments"].as_array().expect("experiments is a list");
    let readers: Vec<u64> =
        experiments.iter().filter_map(|one| one["parameters"]["readers"].as_u64()).collect();
    assert_eq!(readers, [1, 8]);
    for experiment in experiments {
        let by = experiment["parameters"]["system_calls_by"].as_str().expect("a word");
        let rows = experiment["rows"].as_array().expect("rows is a list");
        let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
        assert_eq!(names, ROWS);
        for row in rows {
            let name = row["name"].as_str().expect("a name");
            // This kernel or device may refuse rings and polling; the row must report that.
            if let Some(why) = row["skipped"].as_str() {
                let may = ["preadv2-hipri", "io_submit", "forebay-polled"].contains(&name);
                assert!(may || name.starts_with("io_uring"), "{row}");
                assert!(why.contains("the kernel refuses") || why.contains("registering"), "{row}");
                continue;
            }
            assert_eq!(row["cache"], if name == "tokio-fs" { "evicted" } else { "direct" }, "{row}");
            let of_row = |name: &str| metric(row, name).unwrap_or_else(|| panic!("{name} is missing: {row}"));
            let sum = of_row("cpu_user_ns_per_io") + of_row("cpu_system_ns_per_io");
            assert!(sum > 0.0 && (of_row("cpu_us_per_io") * 1000.0 / sum - 1.0).abs() < 1e-6, "{row}");
            assert!((of_row("iops_per_core") * sum / 1e9 - 1.0).abs() < 1e-6, "{row}");
            let parts = of_row("voluntary_switches_per_io") + of_row("involuntary_switches_per_io");
            assert!((of_row("context_switches_per_io") - parts).abs() < 1e-6, "{row}");
            assert!(of_row("iops") > 0.0 && of_row("p50_us") <= tail(row, "p99_us"), "{row}");
            let calls = metric(row, "system_calls_per_io");
            let counts_itself = name.starts_with("pread") || name.starts_with("io_");
            assert!(by != "kernel" || calls.is_some(), "{row}");
            assert!(by != "row" || calls.is_some() == counts_itself, "{row}");
            if name == "pread" {
                // At least one for each read that started and ended while calls were counted.
                assert!(calls.is_some_and(|calls| calls >= 1.0), "{row}");
            }
        }
    }
    for part in ["CPU µs of a read, 8 in flight", "one core drives, 8 in flight"] {
        check_sentence(&value, part);
    }
    assert_eq!(directory.names(), Vec::<String>::new());
}

#[test]
fn a_table_has_a_column_for_each_cost() {
    let directory = Directory::new("cpu-table");
    let mut arguments = vec!["measure", "cpu", directory.text(), "--quick", "--quiet"];
    arguments
        .extend("--verbose --size 1MiB --seconds 0.05 --repeats 1 --rows pread,forebay-shard".split(' '));
    let outcome = run(&arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    for part in [
        "Processor time of random reads of 4 KiB, 32 at once",
        "user ns/IO",
        "system ns/IO",
        "IOPS/core",
        "forced/IO",
        "note: system calls were counted by the",
    ] {
        assert!(outcome.out.contains(part), "{part}: {}", outcome.out);
    }
}

#[test]
fn impossible_values_are_refused() {
    for (arguments, known) in [
        (&["--rows", "sqpoll"][..], "there is no row"),
        (&["--readers", "5000"], "5000"),
        (&["--block", "3"], "4 KiB"),
        (&["--size", "lots"], "not a size"),
        (&["--repeats", "0"], "0"),
    ] {
        is_refused("cpu", arguments, known);
    }
}
