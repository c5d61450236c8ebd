//! End-to-end tests of `measure saturate`: the contents of its document, its refusals, and no leftovers.

use crate::support::{Directory, document, metric, rows, run, tail};
use serde_json::Value;

const ROWS: [&str; 3] = ["pread", "io_uring-defer-taskrun", "forebay-tokio"];

/// Returns whether the kernel refused the ring of this row. Then only that row may be missing.
fn is_refused(row: &Value) -> bool {
    row["name"] == "io_uring-defer-taskrun" && row["skipped"].is_string()
}

#[test]
fn every_row_reads_at_every_load_closed_and_open() {
    let directory = Directory::new("saturate");
    let mut arguments = vec!["measure", "saturate", directory.text(), "--json", "--quiet"];
    arguments
        .extend("--size 4MiB --seconds 0.05 --repeats 2 --readers 1,3,8 --load 20,90 --seed 3".split(' '));
    let outcome = run(&arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let experiments = value["experiments"].as_array().expect("experiments is a list");
    let settings: Vec<(&str, Option<u64>, Option<u64>)> = experiments
        .iter()
        .map(|experiment| {
            let parameters = &experiment["parameters"];
            assert_eq!(
                (&parameters["file_bytes"], &parameters["own_file"]),
                (&(4 << 20).into(), &true.into())
            );
            let kind = parameters["loop"].as_str().expect("a word");
            (kind, parameters["readers"].as_u64(), parameters["load_percent"].as_u64())
        })
        .collect();
    let closed = [1, 3, 8].map(|readers| ("closed", Some(readers), None));
    let open = [20, 90].map(|load| ("open", None, Some(load)));
    assert_eq!(settings, [&closed[..], &open].concat());
    let mut most: Vec<f64> = vec![0.0; ROWS.len()];
    for experiment in experiments {
        let names: Vec<&str> = rows(experiment).iter().filter_map(|row| row["name"].as_str()).collect();
        let open = experiment["parameters"]["loop"] == "open";
        // A row that was refused in the closed loop has no rate for the open one.
        assert!(names == ROWS || open && names == [ROWS[0], ROWS[2]], "{names:?}");
        for row in rows(experiment).iter().filter(|row| !is_refused(row)) {
            assert_eq!(row["skipped"], Value::Null, "{row}");
            assert_eq!(row["samples"].as_array().map(Vec::len), Some(2), "{row}");
            assert!(metric(row, "iops") > 0.0 && metric(row, "cpu_share") > 0.0, "{row}");
            assert!(metric(row, "p50_us") <= tail(row, "p99_us"), "{row}");
            assert!(tail(row, "p99_us") <= tail(row, "p99_9_us"), "{row}");
            let place = ROWS.iter().position(|name| row["name"] == *name).expect("a known row");
            if open {
                let offered =
                    most[place] * experiment["parameters"]["load_percent"].as_f64().expect("a number");
                assert!((metric(row, "offered_per_s") / offered * 100.0 - 1.0).abs() < 1e-6, "{row}");
                let late = row["metrics"]["late_p99_us"].as_f64();
                assert!(late.is_none_or(|late| late <= tail(row, "p99_9_us") * 1.02), "{row}");
                assert!(metric(row, "unanswered") >= 0.0, "{row}");
            } else {
                most[place] = most[place].max(metric(row, "iops"));
            }
        }
    }
    let method = experiments[3]["method"].to_string();
    assert!(method.contains("from when a read was due"), "{method}");
    let verdicts = value["verdicts"].to_string();
    assert!(verdicts.contains(" saturates at ") || verdicts.contains("no saturation up to"), "{verdicts}");
    assert_eq!(directory.names(), Vec::<String>::new());
}

#[test]
fn a_file_is_only_read_and_its_table_has_a_line_for_each_load() {
    let directory = Directory::new("saturate-file");
    let file = directory.file("mine", 1 << 20);
    let before = std::fs::read(&file).expect("readable");
    let mut arguments = vec!["measure", "saturate", file.to_str().expect("readable name"), "--quiet"];
    arguments.extend("--seconds 0.03 --repeats 1 --readers 1,2 --load 50 --rows pread".split(' '));
    let outcome = run(&arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    for part in [
        "Random reads of 4 KiB by more and more readers",
        "callers' choosing",
        "readers",
        "asked/s",
        "note: the file existed",
    ] {
        assert!(outcome.out.contains(part), "{part}: {}", outcome.out);
    }
    assert!(before == std::fs::read(&file).expect("readable"));
    assert_eq!(directory.names(), ["mine"]);
}

#[test]
fn impossible_values_are_refused() {
    let directory = Directory::new("saturate-small");
    let small = directory.file("small", 64 << 10);
    for (arguments, code, known) in [
        (&["--rows", "pread,mmap"][..], 2, "there is no row"),
        (&["--readers", "0"], 2, "0"),
        (&["--readers", "-4"], 2, "-4"),
        (&["--load", "300"], 2, "300"),
        (&["--block", "1000"], 2, "4 KiB"),
        (&["--size", "0"], 2, "not a usable size"),
        (&["--seconds", "forever"], 2, "not a time"),
        (&["--size", "64KiB"], 4, "too small"),
        (&["--size", "9000TiB"], 4, "free"),
        (&[small.to_str().expect("readable name")], 4, "too small"),
        (&["/dev/null"], 3, "/dev/null"),
        (&["/nowhere/at/all"], 3, "/nowhere/at/all"),
    ] {
        let path = if arguments[0].starts_with('/') { None } else { Some(directory.text()) };
        let mut all = vec!["measure", "saturate"];
        all.extend(path);
        all.extend(arguments);
        let outcome = run(&all);
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(code), ""), "{arguments:?}: {}", outcome.err);
        assert!(outcome.err.contains(known), "{arguments:?}: {}", outcome.err);
    }
    assert_eq!(directory.names(), ["small"]);
}
