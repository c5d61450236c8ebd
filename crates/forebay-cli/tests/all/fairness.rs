//! End-to-end tests of `measure fairness`: the contents of its document, its refusals, and no leftovers.

use crate::support::{Directory, document, run};

const TINY: [&str; 8] = ["--json", "--quiet", "--size", "8MiB", "--repeats", "1", "--seconds", "0.1"];

#[test]
fn every_row_has_the_figures_of_those_it_has() {
    let directory = Directory::new("fairness");
    for (more, word, numbers) in
        [(&["--hogs", "1,2"][..], "read", &[1, 2][..]), (&["--hogs", "1", "--writes"], "write", &[1])]
    {
        let arguments = [&["measure", "fairness", directory.text()][..], &TINY, more].concat();
        let outcome = run(&arguments);
        // A gate that fails only marks its row: this machine may be busy.
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        let value = document(&outcome);
        let experiments = value["experiments"].as_array().expect("a list");
        let hogs: Vec<_> = experiments.iter().map(|experiment| &experiment["parameters"]["hogs"]).collect();
        assert_eq!(hogs, numbers);
        for experiment in experiments {
            assert_eq!(
                (&experiment["name"], &experiment["parameters"]["hog_does"]),
                (&"fairness".into(), &word.into())
            );
            let rows = experiment["rows"].as_array().expect("a list");
            let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
            assert_eq!(names, ["reader-alone", "hogs-alone", "no-classes", "classes", "ionice", "cgroup-io"]);
            for row in rows {
                let name = row["name"].as_str().expect("a word");
                if let Some(why) = row["skipped"].as_str() {
                    // Rows with requirements that not every machine meets name them.
                    let known = ["ionice", "cgroup"];
                    assert!(name == "ionice" || name == "cgroup-io", "{row}");
                    assert!(known.iter().any(|word| why.contains(word)), "{row}");
                    continue;
                }
                let has =
                    |metric: &str| row["metrics"][metric].is_object() || row["metrics"][metric].is_number();
                assert_eq!(has("hog_mb_per_s"), name != "reader-alone", "{row}");
                assert_eq!(has("iops"), name != "hogs-alone", "{row}");
                // Percentiles need several reads, which a tenth of a second on a busy machine may not have.
                for metric in ["p50_us", "p99_us", "p99_9_us"] {
                    assert!(!has(metric) || name != "hogs-alone", "{metric}: {row}");
                }
                let reports = !row["samples"].as_array().expect("a list").is_empty();
                assert!(
                    reports && (name == "hogs-alone" || row["histograms"]["latency"].is_string()),
                    "{row}"
                );
            }
        }
        // A sentence needs percentiles, too.
        let rows = experiments.iter().flat_map(|experiment| experiment["rows"].as_array().expect("a list"));
        let mut readers = rows.filter(|row| row["name"] != "hogs-alone" && row["skipped"].is_null());
        let verdicts = value["verdicts"].to_string();
        assert!(
            verdicts.contains("hog") || readers.any(|row| row["metrics"]["p99_us"].is_null()),
            "{verdicts}: {value}"
        );
        assert_eq!(directory.names(), Vec::<String>::new());
    }
}

#[test]
fn the_table_has_the_named_rows() {
    let directory = Directory::new("fairness-table");
    let outcome = run(&[
        "measure",
        "fairness",
        directory.text(),
        "--quiet",
        "--size",
        "8MiB",
        "--repeats",
        "1",
        "--seconds",
        "0.1",
        "--hogs",
        "1",
        "--rows",
        "reader-alone,classes",
    ]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    // On a busy machine a tenth of a second has too few reads for a p99.
    for words in ["reader-alone", "classes", "p50 µs", "hog MB/s", "  gates: "] {
        assert!(outcome.out.contains(words), "{words:?} is not in:\n{}", outcome.out);
    }
    assert!(!outcome.out.contains("no-classes"), "{}", outcome.out);
    assert_eq!(directory.names(), Vec::<String>::new());
}

#[test]
fn impossible_values_are_refused() {
    let directory = Directory::new("fairness-refused");
    let here = directory.text();
    for (arguments, code, known) in [
        (&["--rows", "classes,quick"][..], 2, "there is no row"),
        (&["--hogs", "0"], 2, "0"),
        (&["--hogs", "65"], 2, "65"),
        (&["--size", "1MiB"], 2, "8 MiB"),
        (&["--seconds", "nan"], 2, "nan"),
        (&["--size", "8000TiB"], 4, "free"),
    ] {
        let outcome = run(&[&["measure", "fairness", here][..], arguments].concat());
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(code), ""), "{arguments:?}: {}", outcome.err);
        assert!(outcome.err.contains(known), "{arguments:?}: {}", outcome.err);
        assert_eq!(directory.names(), Vec::<String>::new());
    }
}
