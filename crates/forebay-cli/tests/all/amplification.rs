//! End-to-end tests of `measure amplification`: the contents of its document, its refusals, and no leftovers.

use crate::support::{
    Directory, begun, document, experiments, forebay, has_samples, interrupt, is_refused, names_of_rows,
    needs_space, rows, run, tail,
};
use forebay_test::children::SIGINT;
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
        assert_eq!(names_of_rows(experiment), ROWS);
        rows(experiment).iter().for_each(check_row);
    }
    assert!(value["verdicts"].to_string().contains("in 50 files instead of 1"), "{}", value["verdicts"]);
    assert_eq!(directory.names(), Vec::<String>::new());
}

/// 512 B of each of two files are a page each, and 128 KiB each with read-ahead.
#[test]
fn one_piece_in_a_page_shows_what_read_ahead_reads() {
    let directory = Directory::new("piece");
    let arguments = ["measure", "amplification", directory.text(), "--json", "--quiet", "--piece", "512"];
    let outcome = run(&[&arguments[..], &["--size", "20MiB", "--repeats", "2", "--seconds", "10"]].concat());
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let [experiment] = experiments(&value) else { panic!("two files alone: {value}") };
    let parameters = &experiment["parameters"];
    let numbers = ["files", "reads", "piece_bytes"].map(|name| parameters[name].as_u64());
    assert_eq!(numbers, [2, 128, 512].map(Some));
    let read = |name: &str| {
        let row = rows(experiment).iter().find(|row| row["name"] == name).expect("a row");
        has_samples(row, 2);
        row["metrics"]["process_bytes_per_byte"].as_f64().filter(|share| *share > 0.0)
    };
    // Where the kernel has an account of the process.
    if let (Some(page), Some(ahead)) = (read("buffered-random-advice"), read("buffered-read-ahead")) {
        assert!(ahead > 4.0 * page, "{page} {ahead}");
    }
    assert_eq!(directory.names(), Vec::<String>::new());
}

fn check_row(row: &Value) {
    has_samples(row, 2);
    let metric = |name: &str| row["metrics"][name].as_f64();
    assert!(
        metric("iops").is_some_and(|rate| rate > 0.0) && metric("p50_us") <= Some(tail(row, "p99_us")),
        "{row}"
    );
    let is_direct = row["name"] == "direct" || row["name"] == "read-many";
    assert_eq!(row["cache"] == "direct", is_direct, "{row}");
    // Even a read with O_DIRECT reads at least as much as was requested, unless ranges of a batch overlap; and few do. If the
    // kernel has no account of the process, or the file system counts nothing there, the comparison is skipped.
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
        (&["--piece", "1000"], "a power of two"),
        (&["--piece", "512", "--least", "512"], "stands for --least and --most"),
        (&["--piece", "512", "--size", "128KiB"], "128 KiB"),
        (&["--size", "0"], "not a usable size"),
    ] {
        is_refused("amplification", arguments, known);
    }
    needs_space("amplification");
}

#[test]
fn a_signal_in_either_phase_leaves_nothing() {
    for phase in ["write ", "measure amplification"] {
        let directory = Directory::new("signal");
        let arguments = ["measure", "amplification", directory.text(), "--size", "32MiB"];
        let more = ["--files", "200", "--repeats", "1000"];
        interrupt(begun(&mut forebay(&[&arguments[..], &more].concat()), phase), SIGINT);
        assert_eq!(directory.names(), Vec::<String>::new(), "{phase}");
    }
}
