//! Tests with a closed standard error: the program's work continues, and its exit code stays the same.

use std::fs;
use std::io;
use std::process::Stdio;

use crate::support::{Directory, forebay, run};

/// Runs the program with a standard error without a reader. Returns its exit code.
fn with_closed_stderr(arguments: &[&str]) -> Option<i32> {
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    let mut command = forebay(arguments);
    command.stdout(Stdio::null()).stderr(writer);
    command.status().expect("the program starts").code()
}

/// Regression: `forebay kv load` into a large store, its standard error piped to a program that ended.
/// The next line of progress panicked: exit code 101 in the middle of the load. Every `eprintln!` of
/// the program did the same.
#[test]
fn a_load_ends_with_all_rows() {
    let directory = Directory::new("unheard");
    let (input, store) = (directory.path().join("input.tsv"), directory.path().join("store"));
    let rows: String = (0..1000).map(|row| format!("{row:04}\tvalue {row}\n")).collect();
    fs::write(&input, rows).expect("it has space");
    let [input, store] = [&input, &store].map(|path| path.to_str().expect("a readable name"));
    assert_eq!(with_closed_stderr(&["kv", "load", store, input, "--create"]), Some(0));
    let scanned = run(&["kv", "scan", store, "--keys-only"]);
    assert_eq!(scanned.out.lines().count(), 1000, "{}", scanned.err);
    assert_eq!(with_closed_stderr(&["kv", "get", store, "absent"]), Some(1));
}

#[test]
fn an_experiment_ends_with_its_figures_and_a_refusal_with_its_code() {
    let directory = Directory::new("unheard");
    let path = directory.text();
    let scan = [
        "measure",
        "scan",
        path,
        "--memory",
        "32MiB",
        "--size",
        "48MiB",
        "--repeats",
        "1",
        "--rows",
        "default",
    ];
    assert_eq!(with_closed_stderr(&scan), Some(0));
    assert_eq!(with_closed_stderr(&["measure", "scan", "/nowhere"]), Some(3));
    assert_eq!(with_closed_stderr(&["frobnicate"]), Some(2));
}
