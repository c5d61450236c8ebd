//! End-to-end tests of `measure files`: the contents of its document, its refusals, and no leftovers.

use crate::support::{Directory, begun, document, forebay, has_samples, interrupt, is_refused, run, tail};
use forebay_test::children::SIGINT;
use serde_json::Value;

const ROWS: [&str; 3] = ["std-threads", "tokio-fs", "forebay"];

#[test]
fn every_row_makes_every_call() {
    let directory = Directory::new("files");
    let outcome = run(&[
        "measure",
        "files",
        directory.text(),
        "--json",
        "--quiet",
        "--count",
        "60",
        "--at-once",
        "1,8",
        "--seconds",
        "0.05",
        "--repeats",
        "2",
        "--size",
        "8KiB",
    ]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let experiments = value["experiments"].as_array().expect("a list");
    let settings: Vec<(&str, u64)> = experiments
        .iter()
        .map(|experiment| {
            let parameters = &experiment["parameters"];
            assert_eq!((&parameters["files"], &parameters["file_bytes"]), (&60.into(), &8192.into()));
            (parameters["call"].as_str().expect("a word"), parameters["at_once"].as_u64().expect("a number"))
        })
        .collect();
    assert_eq!(settings, [("read", 1), ("read", 8), ("create", 1), ("create", 8), ("stat", 1), ("stat", 8)]);
    for experiment in experiments {
        assert_eq!(experiment["name"], "files");
        let rows = experiment["rows"].as_array().expect("a list");
        let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
        assert_eq!(names, ROWS);
        let calls: &[&str] = match experiment["parameters"]["call"].as_str() {
            Some("read") => &["open_us", "read_us", "close_us"],
            Some("create") => &["open_us", "write_us", "sync_us", "close_us"],
            _ => &["stat_us"],
        };
        for row in rows {
            check_row(row, calls);
        }
    }
    assert_eq!(value["verdicts"].as_array().map(Vec::len), Some(3), "{}", value["verdicts"]);
    assert_eq!(directory.names(), Vec::<String>::new());
}

fn check_row(row: &Value, calls: &[&str]) {
    has_samples(row, 2);
    let metrics = row["metrics"].as_object().expect("an object");
    for call in ["open_us", "read_us", "write_us", "sync_us", "close_us", "stat_us"] {
        assert_eq!(metrics.contains_key(call), calls.contains(&call), "{call}: {row}");
    }
    assert!(metrics["files_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
    assert!(metrics["p50_us"].as_f64() <= Some(tail(row, "p99_us")), "{row}");
}

#[test]
fn tables_put_the_numbers_at_once_together() {
    let directory = Directory::new("tables");
    let outcome = run(&[
        "measure",
        "files",
        directory.text(),
        "--count",
        "20",
        "--calls",
        "read",
        "--at-once",
        "1,2",
        "--seconds",
        "0.05",
        "--repeats",
        "1",
    ]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    for part in
        ["Open, read and close of files of 4 KiB\n", "at_once", "files/s", "open µs", "read µs", "close µs"]
    {
        assert!(outcome.out.contains(part), "{part}: {}", outcome.out);
    }
}

#[test]
fn impossible_values_are_refused() {
    for (arguments, known) in [
        (&["--rows", "mdtest"][..], "there is no row"),
        (&["--calls", "unlink"], "there are read, create, stat"),
        (&["--count", "0"], "0"),
        (&["--count", "-1"], "-1"),
        (&["--size", "1000"], "multiple of 4 KiB"),
        (&["--size", "1GiB"], "to 1 MiB"),
        (&["--at-once", "65", "--count", "64"], "larger --count"),
    ] {
        is_refused("files", arguments, known);
    }
}

#[test]
fn a_signal_while_files_are_made_leaves_nothing() {
    let directory = Directory::new("signal");
    let arguments = ["measure", "files", directory.text(), "--count", "200", "--calls", "create"];
    let more = ["--at-once", "8", "--repeats", "1000"];
    interrupt(begun(&mut forebay(&[&arguments[..], &more].concat()), "measure files"), SIGINT);
    assert_eq!(directory.names(), Vec::<String>::new());
}
