//! End-to-end tests of `measure writes`: the contents of its document, its refusals, and no leftovers.

use crate::support::{
    Directory, begun, document, forebay, has_samples, interrupt, is_refused, names_of_rows, needs_space,
    rows, run,
};
use forebay_test::children::SIGINT;
use serde_json::Value;

const ROWS: [&str; 10] = [
    "naive",
    "sync-at-end",
    "sync-close",
    "o-direct",
    "o-direct-dsync",
    "fdatasync-each",
    "fsync-each",
    "forebay",
    "forebay-durable",
    "forebay-combine",
];

#[test]
fn every_row_writes_in_every_setting() {
    let directory = Directory::new("writes");
    let outcome = run(&[
        "measure",
        "writes",
        directory.text(),
        "--json",
        "--quiet",
        "--size",
        "2MiB",
        "--operations",
        "40",
        "--clients",
        "1,3",
        "--repeats",
        "2",
        "--seed",
        "5",
    ]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let experiments = value["experiments"].as_array().expect("a list");
    let settings: Vec<(&str, u64)> = experiments
        .iter()
        .map(|experiment| {
            assert_eq!(experiment["name"], "writes");
            let parameters = &experiment["parameters"];
            assert_eq!(
                (&parameters["operations"], &parameters["file_bytes"]),
                (&40.into(), &(2 << 20).into())
            );
            (
                parameters["pattern"].as_str().expect("a word"),
                parameters["clients"].as_u64().expect("a number"),
            )
        })
        .collect();
    assert_eq!(settings, [("dense", 1), ("dense", 3), ("sparse", 1), ("sparse", 3)]);
    for experiment in experiments {
        assert_eq!(names_of_rows(experiment), ROWS);
        rows(experiment).iter().for_each(check_row);
    }
    let verdicts = value["verdicts"].to_string();
    assert!(
        verdicts.contains("dense, 1 client(s)") && verdicts.contains("sparse, 1 client(s)"),
        "{verdicts}"
    );
    assert_eq!(directory.names(), Vec::<String>::new());
}

#[test]
fn rows_of_several_parts_give_the_tables_of_all_of_them() {
    let directory = Directory::new("parts");
    let size = ["--size", "8MiB", "--seconds", "1", "--repeats", "1", "--quick"];
    let rows = ["--rows", "o-direct,random-read", "--json", "--quiet"];
    let outcome = run(&[&["measure", "writes", directory.text()][..], &size, &rows].concat());
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let tables = value["experiments"].as_array().expect("a list").iter();
    let mut names: Vec<&str> = tables.map(|table| table["name"].as_str().expect("a name")).collect();
    names.dedup();
    assert_eq!(names, ["writes", "patterns", "sustain"]);
    assert_eq!(value["views"].as_object().expect("an object").len(), 3);
    assert_eq!(directory.names(), Vec::<String>::new());
}

fn check_row(row: &Value) {
    has_samples(row, 2);
    let is_durable = row["name"] != "naive" && row["name"] != "o-direct";
    let metric = |name: &str| row["metrics"][name].as_f64();
    assert_eq!(metric("iops_reliable").is_some(), is_durable, "{row}");
    assert_eq!(metric("sync_left_out_ms").is_some(), !is_durable, "{row}");
    for sample in row["samples"].as_array().expect("a list") {
        let value = |name: &str| sample[name].as_f64().unwrap_or_else(|| panic!("{name} is missing: {row}"));
        // The time of a client's calls is part of the time until the last client was ready, except for
        // the close that `sync-at-end` does not wait for.
        let parts = value("open_ms") + value("write_ms") + value("sync_ms");
        assert!(parts <= value("total_ms") * 1.001, "{row}");
        let advertised = value("iops_advertised") * value("write_ms") / 1e3;
        // A sample of a slow device ends before all 40 writes are made.
        let writes = advertised.round();
        assert!((1.0..=40.0).contains(&writes) && (advertised - writes).abs() < 0.01, "{row}");
        if is_durable {
            assert!((value("iops_reliable") * value("total_ms") / 1e3 - writes).abs() < 0.01, "{row}");
            assert!(value("iops_reliable") <= value("iops_advertised"), "{row}");
        }
        // The writes of all processes count, so only a lower bound is known, where the device has
        // counters at all.
        if let Some(share) = sample["device_bytes_per_byte"].as_f64() {
            assert!(share >= 0.99, "{row}");
        }
    }
}

#[test]
fn tables_have_every_kind_of_time() {
    let directory = Directory::new("tables");
    let outcome = run(&[
        "measure",
        "writes",
        directory.text(),
        "--quick",
        "--size",
        "1MiB",
        "--pattern",
        "dense",
        "--clients",
        "1",
        "--rows",
        "naive,fsync-each",
        "--repeats",
        "1",
        "--verbose",
    ]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    for part in [
        "Random writes of 4 KiB, dense, 1 client(s)\n",
        "IOPS as advertised",
        "IOPS you can rely on",
        "open ms",
        "write ms",
        "sync ms",
        "close ms",
        "total ms",
        "(measured once)",
        "there is nothing in them to rely on",
    ] {
        assert!(outcome.out.contains(part), "{part}: {}", outcome.out);
    }
}

#[test]
fn impossible_values_are_refused() {
    for (arguments, known) in [
        (&["--rows", "naive,quick"][..], "there is no row"),
        (&["--pattern", "striped"], "there are dense, sparse"),
        (&["--size", "4KiB"], "1 MiB"),
        (&["--size", "-1"], "-1"),
        (&["--size", "3parsecs"], "not a size"),
        (&["--operations", "0"], "0"),
        (&["--clients", "0"], "0"),
        (&["--seconds", "nan"], "nan"),
        (&["--size", "1MiB", "--operations", "65"], "give a larger --size or fewer --operations"),
        (&["--operations", "2", "--clients", "3"], "nothing to do"),
    ] {
        is_refused("writes", arguments, known);
    }
    needs_space("writes");
}

#[test]
fn a_signal_while_a_row_writes_leaves_nothing() {
    let directory = Directory::new("signal");
    let arguments = ["measure", "writes", directory.text(), "--size", "16MiB", "--rows", "fsync-each"];
    let mut command = forebay(&[&arguments[..], &["--repeats", "1000"]].concat());
    let begun = begun(&mut command, "measure writes");
    assert_eq!(directory.names().len(), 1);
    interrupt(begun, SIGINT);
    assert_eq!(directory.names(), Vec::<String>::new());
}
