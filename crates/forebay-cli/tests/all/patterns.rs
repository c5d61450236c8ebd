//! End-to-end tests of `measure patterns`: the contents of its document, its refusals, and no leftovers.

use crate::support::{Directory, document, is_refused, needs_space, run};
use serde_json::Value;

fn names(experiment: &Value) -> Vec<&str> {
    let rows = experiment["rows"].as_array().expect("a list");
    rows.iter().filter_map(|row| row["name"].as_str()).collect()
}

#[test]
fn every_row_writes_in_every_setting() {
    let directory = Directory::new("patterns");
    let outcome = run(&[
        "measure",
        "patterns",
        directory.text(),
        "--json",
        "--quiet",
        "--size",
        "4MiB",
        "--parts",
        "1,4",
        "--participants",
        "1,3",
        "--repeats",
        "2",
        "--seconds",
        "60",
    ]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let experiments = value["experiments"].as_array().expect("a list");
    let settings: Vec<(&str, u64, u64)> = experiments
        .iter()
        .map(|experiment| {
            assert_eq!(experiment["name"], "patterns");
            let parameters = &experiment["parameters"];
            let number = |name: &str| parameters[name].as_u64().expect("a number");
            let pattern = parameters["pattern"].as_str().expect("a word");
            (pattern, number("participants"), number("memory_mib"))
        })
        .collect();
    assert_eq!(settings, [("random", 1, 28), ("random", 1, 1), ("strided", 1, 64), ("strided", 3, 64)]);
    assert_eq!(names(&experiments[0]), ["write-fsync", "o-direct", "combine"]);
    assert_eq!(names(&experiments[1]), ["combine"]);
    for strided in &experiments[2..] {
        assert_eq!(names(strided), ["write-fsync", "o-direct", "combine", "collective"]);
    }
    for experiment in experiments {
        let bytes = experiment["parameters"]["bytes"].as_f64().expect("a number");
        for row in experiment["rows"].as_array().expect("a list") {
            assert_eq!(row["skipped"], Value::Null, "{row}");
            for sample in row["samples"].as_array().expect("a list") {
                let value =
                    |name: &str| sample[name].as_f64().unwrap_or_else(|| panic!("{name} is missing: {row}"));
                let written = value("mb_per_s") * value("total_ms") * 1e3;
                assert!((written / bytes - 1.0).abs() < 0.001, "all of it: {row}");
                // The writes of all processes count, so only a lower bound is known, where the device
                // has counters at all.
                if let Some(share) = sample["device_bytes_per_byte"].as_f64() {
                    assert!(share >= 0.99, "{row}");
                }
            }
        }
    }
    let verdicts = value["verdicts"].to_string();
    assert!(verdicts.contains("28 MiB of memory: `combine` is"), "{verdicts}");
    assert!(verdicts.contains("3 participant(s): `collective` is"), "{verdicts}");
    assert_eq!(directory.names(), Vec::<String>::new());
}

#[test]
fn impossible_values_are_refused() {
    for (arguments, known) in [
        (&["--rows", "combine,quick"][..], "there is no row"),
        (&["--pattern", "sparse"], "there is no \"sparse\""),
        (&["--size", "1MiB"], "4 MiB"),
        (&["--parts", "0"], "0"),
        (&["--participants", "65"], "65"),
        (&["--seconds", "nan"], "nan"),
    ] {
        is_refused("patterns", arguments, known);
    }
    needs_space("patterns");
}

/// A user gave all writes a file larger than memory: each sample of this part had all of it in memory, and the kernel ended programs.
#[test]
fn data_beyond_the_memory_are_refused() {
    let directory = Directory::new("memory");
    let outcome = run(&["measure", "patterns", directory.text(), "--quiet", "--size", "8000TiB"]);
    assert_eq!(outcome.code, Some(4), "{}", outcome.err);
    let words = "the data of a sample need 15.6 PiB of memory, and ";
    assert!(outcome.err.contains(words) && outcome.err.contains("give a smaller --size"), "{}", outcome.err);
    assert_eq!(directory.names(), Vec::<String>::new());
}
