//! The experiments and the report from end to end, with small files: the figures mean nothing, their shape does.

use std::fs;

use crate::support::{Directory, begun, check_document, document, forebay, interrupt, run};
use forebay_test::children::{SIGINT, SIGTERM};
use serde_json::Value;

const SMALL: [&str; 4] = ["--memory", "32MiB", "--size", "48MiB"];

#[test]
fn a_scan_has_every_row_and_leaves_nothing_behind() {
    let directory = Directory::new("scan");
    let mut arguments =
        vec!["measure", "scan", directory.text(), "--json", "--quiet", "--repeats", "1", "--seed", "7"];
    arguments.extend(SMALL);
    let outcome = run(&arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let scan = &value["experiments"][0];
    assert_eq!(scan["name"], "scan");
    assert_eq!(scan["parameters"]["file_bytes"], 48 << 20);
    let rows = scan["rows"].as_array().expect("rows");
    for name in
        ["buffered", "mmap", "direct-4k", "direct-read-ahead", "direct-no-copy", "direct-large", "uncached"]
    {
        let row = rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row {name}"));
        if name != "uncached" {
            assert!(row["metrics"]["mb_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
            assert!(row["metrics"]["cpu_s_per_gb"].is_number(), "{row}");
        }
    }
    assert_eq!(directory.names(), Vec::<String>::new());
}

#[test]
fn random_reads_at_one_depth_make_a_table_for_each_span() {
    let directory = Directory::new("random");
    let mut arguments =
        vec!["measure", "random", directory.text(), "--repeats", "1", "--seconds", "0.05", "--depth", "4"];
    arguments.extend(SMALL);
    let outcome = run(&arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    assert_eq!(outcome.out.matches("Random reads of 4 KiB over").count(), 2, "{}", outcome.out);
    // The tail needs more reads than a slow disk completes in this time.
    for heading in ["IOPS", "p50 µs", "CPU µs/IO", "switches/IO"] {
        assert!(outcome.out.contains(heading), "{heading}: {}", outcome.out);
    }
    assert_eq!(directory.names(), Vec::<String>::new());
}

#[test]
fn progress_is_plain_lines_without_a_terminal_and_never_on_standard_output() {
    let directory = Directory::new("progress");
    let mut arguments =
        vec!["measure", "scan", directory.text(), "--json", "--repeats", "1", "--rows", "buffered"];
    arguments.extend(SMALL);
    let outcome = run(&arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    document(&outcome);
    assert!(outcome.err.contains("measure scan ..."), "{}", outcome.err);
    assert!(!outcome.err.contains('\x1b') && !outcome.err.contains('\r'), "{}", outcome.err);
}

#[test]
fn a_file_is_overwritten_with_both_options_and_keeps_its_length() {
    let directory = Directory::new("overwrite");
    let file = directory.file("data", 48 << 20);
    let before = fs::read(&file).expect("readable");
    let name = file.to_str().expect("readable name");
    let outcome = run(&[
        "measure",
        "scan",
        name,
        "--overwrite",
        "--destroy-data",
        "--quiet",
        "--repeats",
        "1",
        "--rows",
        "buffered",
    ]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let after = fs::read(&file).expect("readable");
    assert_eq!(before.len(), after.len());
    assert!(before != after);
}

#[test]
fn a_signal_removes_the_temp_file() {
    for signal in [SIGINT, SIGTERM] {
        let directory = Directory::new("signal");
        let arguments = ["measure", "scan", directory.text(), "--repeats", "1000"];
        // The line that announces the write appears once the file exists.
        let begun = begun(&mut forebay(&[&arguments[..], &SMALL].concat()), "test data");
        assert_eq!(directory.names().len(), 1);
        interrupt(begun, signal);
        assert_eq!(directory.names(), Vec::<String>::new());
    }
}

#[test]
fn a_report_is_one_page_and_one_document() {
    let directory = Directory::new("report");
    let file = directory.file("data", 40 << 20);
    let before = fs::read(&file).expect("readable");
    let page = directory.path().join("page.html");
    let numbers = directory.path().join("numbers.json");
    let to_file = format!("--json={}", numbers.display());
    let arguments = [
        "report",
        file.to_str().expect("readable name"),
        "--quick",
        "--only",
        "random,scan",
        "--out",
        page.to_str().expect("readable name"),
        &to_file,
    ];
    let outcome = run(&arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    assert!(
        outcome.out.contains("What to change first") && outcome.out.lines().count() <= 40,
        "{}",
        outcome.out
    );
    let html = fs::read_to_string(&page).expect("it was written");
    for part in [
        "<!DOCTYPE html>",
        "<svg",
        "prefers-color-scheme",
        "Further verdicts",
        "Features at this path",
        "</html>",
    ] {
        assert!(html.contains(part), "{part}");
    }
    for outside in ["http://", "https://", "src=", "<link"] {
        assert!(!html.contains(outside), "the page needs {outside}");
    }
    let text = fs::read_to_string(&numbers).expect("it was written");
    let value: Value = serde_json::from_str(&text).expect("JSON");
    check_document(&value);
    assert!(value["verdicts"].as_array().is_some_and(|verdicts| !verdicts.is_empty()));
    assert_eq!(names(&value), ["scan", "random"], "in the report's own order");
    assert!(outcome.err.contains("experiment 1 of 2: scan, about 1"), "{}", outcome.err);
    assert!(before == fs::read(&file).expect("readable"), "a file that was only to be read has changed");
    assert_eq!(directory.names(), ["data", "numbers.json", "page.html"]);
}

/// Returns the names of a document's experiments, each once.
fn names(value: &Value) -> Vec<&str> {
    let experiments = value["experiments"].as_array().expect("experiments");
    let mut names: Vec<&str> = experiments.iter().filter_map(|found| found["name"].as_str()).collect();
    names.dedup();
    names
}

#[test]
fn a_report_has_only_the_named_experiments() {
    let directory = Directory::new("named");
    let page = directory.path().join("page.html");
    let page = page.to_str().expect("readable name");
    let outcome =
        run(&["report", directory.text(), "--quick", "--only", "collective", "--out", page, "--json"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    assert_eq!(names(&document(&outcome)), ["collective"]);
}

/// The four that read, of which the first two are the main job.
#[test]
fn a_report_on_a_file_has_all_experiments_that_only_read() {
    let directory = Directory::new("default");
    let file = directory.file("data", 40 << 20);
    let page = directory.path().join("page.html");
    let [file, page] = [&file, &page].map(|path| path.to_str().expect("readable name"));
    let mut command = forebay(&["report", file, "--quick", "--out", page]);
    interrupt(begun(&mut command, "experiment 1 of 4: scan, about"), SIGINT);
    assert_eq!(directory.names(), ["data"]);
}
