//! Tests of `forebay doctor` as a program.

use std::fs;

use forebay_test::children::{Restriction, restrict};

use crate::support::{Directory, check_document, document, forebay, run};

#[test]
fn a_directory_is_examined_and_left_as_it_was() {
    let directory = Directory::new("doctor");
    let outcome = run(&["doctor", directory.text()]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    for name in [
        "setup",
        "memlock",
        "direct",
        "dioalign",
        "rwf_dontcache",
        "durable_writes",
        "write_cache",
        "poll_queues",
        "nvme_commands",
        "start",
    ] {
        let line = outcome.out.lines().find(|line| line.split_whitespace().nth(1) == Some(name));
        let line = line.unwrap_or_else(|| panic!("no line about {name}:\n{}", outcome.out));
        let verdict = line.split_whitespace().next();
        assert!(matches!(verdict, Some("ok" | "degraded" | "unavailable")), "{line}");
        assert_eq!(verdict == Some("ok"), !line.contains("remedy:"), "{line}");
    }
    assert_eq!(directory.names(), Vec::<String>::new());
}

#[test]
fn json_is_the_documented_schema() {
    let directory = Directory::new("doctor-json");
    let value = document(&run(&["doctor", directory.text(), "--json"]));
    assert_eq!(value["experiments"].as_array().map(Vec::len), Some(0));
    assert_eq!(value["environment"]["path"]["kind"], "directory");
    assert!(value["environment"]["engine"]["driver"].is_string());
    let checks = value["environment"]["checks"].as_array().expect("there are checks");
    assert!(checks.len() > 20, "{}", checks.len());
    for check in checks {
        assert!(
            ["ok", "degraded", "unavailable"].contains(&check["verdict"].as_str().unwrap_or("")),
            "{check}"
        );
        assert!(check["why"].as_str().is_some_and(|why| !why.is_empty()), "{check}");
    }
}

#[test]
fn json_goes_into_a_file_beside_the_text() {
    let directory = Directory::new("doctor-json-file");
    let file = directory.path().join("doctor.json");
    let to_file = format!("--json={}", file.display());
    for _ in 0..2 {
        let outcome = run(&["doctor", directory.text(), &to_file]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        assert!(outcome.out.lines().count() > 20 && !outcome.out.starts_with('{'), "{}", outcome.out);
        let written = fs::read_to_string(&file).expect("it was written");
        check_document(&serde_json::from_str(&written).expect("JSON"));
        assert_eq!(directory.names(), ["doctor.json"]);
    }
}

#[test]
fn a_file_is_only_read_and_its_directory_is_not_written() {
    let directory = Directory::new("doctor-file");
    let file = directory.file("data", 1 << 20);
    let before = (fs::read(&file).expect("readable"), fs::metadata(&file).expect("there").modified().ok());
    let folder_before = fs::metadata(directory.path()).expect("there").modified().ok();
    let outcome = run(&["doctor", file.to_str().expect("readable name")]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    assert!(outcome.out.contains("not tried: this file was not created by the program"), "{}", outcome.out);
    let after = (fs::read(&file).expect("readable"), fs::metadata(&file).expect("there").modified().ok());
    assert!(before == after);
    assert_eq!(folder_before, fs::metadata(directory.path()).expect("there").modified().ok());
}

#[test]
fn a_file_without_direct_io_has_its_exit_code() {
    // kernfs refuses O_DIRECT, and its files report the size of a page.
    let outcome = run(&["doctor", "/sys/devices/system/cpu/online"]);
    assert_eq!(outcome.code, Some(4), "{}", outcome.out);
    let line = outcome.out.lines().find(|line| line.trim_start().starts_with("unavailable direct"));
    assert!(line.is_some_and(|line| line.contains("remedy:")), "{}", outcome.out);
    assert!(
        outcome.err.contains("direct I/O does not work at /sys/devices/system/cpu/online"),
        "{}",
        outcome.err
    );
}

/// Regression: where no file can be made the error was that direct I/O cannot be used.
#[test]
fn a_directory_without_write_permission_has_its_exit_code() {
    let outcome = run(&["doctor", "/proc"]);
    assert_eq!(outcome.code, Some(3), "{}", outcome.out);
    assert!(outcome.out.contains("unavailable temp_file"), "{}", outcome.out);
    assert!(outcome.err.contains("/proc: a temp file of 1 MiB cannot be written here"), "{}", outcome.err);
}

#[test]
fn a_seccomp_filter_against_io_uring_is_recognised() {
    let directory = Directory::new("seccomp");
    let mut command = forebay(&["doctor", directory.text(), "--json"]);
    restrict(&mut command, vec![Restriction::no_io_uring_and(&[])]);
    let outcome = crate::support::outcome(&command.output().expect("the program starts"));
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let checks = value["environment"]["checks"].as_array().expect("there are checks");
    let setup = checks.iter().find(|check| check["name"] == "setup").expect("the ring was tried");
    assert_eq!(setup["verdict"], "unavailable");
    assert!(setup["why"].as_str().is_some_and(|why| why.contains("seccomp")), "{setup}");
    assert_eq!(value["environment"]["engine"]["driver"], "threads");
    assert_eq!(directory.names(), Vec::<String>::new());
}
