//! End-to-end tests of `measure amplification`: the contents of its document, its refusals, and no leftovers.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::{Directory, document, forebay, run, tail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const ROWS: [&str; 4] = ["buffered", "buffered-random-advice", "read-many", "direct"];

#[test]
fn every_row_reads_from_one_file_and_from_many() {
    let directory = Directory::new("amplification");
    let outcome = run(&[
        "measure",
        "amplification",
        directory.text(),
        "--json",
        "--quiet",
        "--size",
        "8MiB",
        "--files",
        "1,50",
        "--reads",
        "200",
        "--repeats",
        "2",
    ]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let experiments = value["experiments"].as_array().expect("a list");
    let files: Vec<u64> = experiments
        .iter()
        .map(|experiment| {
            let parameters = &experiment["parameters"];
            let number = |name: &str| parameters[name].as_u64().expect("a number");
            assert_eq!((number("wanted_bytes_min"), number("wanted_bytes_max")), (512, 4096));
            assert!(number("files") * number("file_bytes") <= 8 << 20);
            number("files")
        })
        .collect();
    assert_eq!(files, [1, 50]);
    for experiment in experiments {
        assert_eq!(experiment["name"], "amplification");
        let rows = experiment["rows"].as_array().expect("a list");
        let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
        assert_eq!(names, ROWS);
        rows.iter().for_each(check_row);
    }
    assert!(value["verdicts"].to_string().contains("in 50 files instead of 1"), "{}", value["verdicts"]);
    assert_eq!(directory.names(), Vec::<String>::new());
}

fn check_row(row: &Value) {
    assert_eq!(row["skipped"], Value::Null, "{row}");
    assert_eq!(row["samples"].as_array().map(Vec::len), Some(2), "{row}");
    let metric = |name: &str| row["metrics"][name].as_f64();
    assert!(
        metric("iops").is_some_and(|rate| rate > 0.0) && metric("p50_us") <= Some(tail(row, "p99_us")),
        "{row}"
    );
    let is_direct = row["name"] == "direct" || row["name"] == "read-many";
    assert_eq!(row["cache"] == "direct", is_direct, "{row}");
    // Even a read with O_DIRECT reads no less than was requested, unless ranges of a batch overlap;
    // and few do. Where the kernel has no account of the process, or the file system counts nothing
    // there, there is nothing to compare.
    if let Some(share) =
        metric("process_bytes_per_byte").filter(|share| *share > 0.0 && row["name"] == "direct")
    {
        assert!((1.0..20.0).contains(&share), "{row}");
    }
}

#[test]
fn impossible_values_are_refused() {
    for (arguments, known) in [
        (&["--rows", "mmap"][..], "there is no row"),
        (&["--files", "0"], "0"),
        (&["--files", "-3"], "-3"),
        (&["--least", "4KiB", "--most", "512"], "the other way round"),
        (&["--size", "1MiB", "--files", "1000"], "fewer --files"),
        (&["--most", "2MiB", "--size", "1MiB", "--files", "1"], "smaller --most"),
        (&["--reads", "many"], "many"),
        (&["--size", "0"], "not a usable size"),
    ] {
        let outcome = run(&[&["measure", "amplification"][..], arguments].concat());
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(2), ""), "{arguments:?}: {}", outcome.err);
        assert!(outcome.err.contains(known), "{arguments:?}: {}", outcome.err);
    }
    let directory = Directory::new("space");
    let outcome = run(&["measure", "amplification", directory.text(), "--size", "8000TiB"]);
    assert_eq!(outcome.code, Some(4), "{}", outcome.err);
    assert_eq!(directory.names(), Vec::<String>::new());
}

#[test]
fn a_signal_in_either_phase_leaves_nothing() {
    for phase in ["write ", "measure amplification"] {
        let directory = Directory::new("signal");
        let mut child = forebay(&[
            "measure",
            "amplification",
            directory.text(),
            "--size",
            "32MiB",
            "--files",
            "200",
            "--repeats",
            "1000",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
        let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let begun = lines.by_ref().map_while(Result::ok).any(|line| line.starts_with(phase));
        assert!(begun, "no {phase} was announced");
        let id = Pid::from_raw(i32::try_from(child.id()).expect("process ids are small")).expect("not zero");
        kill_process(id, Signal::INT).expect("it is our child");
        lines.for_each(drop);
        assert_eq!(child.wait().expect("it ends").code(), Some(130));
        assert_eq!(directory.names(), Vec::<String>::new(), "{phase}");
    }
}
