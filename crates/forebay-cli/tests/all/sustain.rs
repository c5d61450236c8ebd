//! End-to-end tests of `measure sustain`: the contents of its document, its refusals, and no leftovers.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;

use crate::support::{
    Directory, begun, document, forebay, has_samples, interrupt, is_refused, needs_space, run,
};
use forebay_test::children::SIGTERM;
use serde_json::Value;

#[test]
fn every_load_has_its_levels_and_its_series() {
    let directory = Directory::new("sustain");
    let outcome = run(&[
        "measure",
        "sustain",
        directory.text(),
        "--json",
        "--quiet",
        "--size",
        "8MiB",
        "--seconds",
        "1",
        "--idle",
        "0.05",
        "--repeats",
        "2",
        "--depth",
        "4",
    ]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let experiment = &value["experiments"][0];
    assert_eq!(experiment["name"], "sustain");
    assert_eq!(
        (&experiment["parameters"]["too_short"], &experiment["parameters"]["depth"]),
        (&true.into(), &4.into())
    );
    assert!(
        experiment["notes"].to_string().contains("too short for a sustained level"),
        "{}",
        experiment["notes"]
    );
    let rows = experiment["rows"].as_array().expect("a list");
    let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["random-read", "random-write", "sequential-write"]);
    rows.iter().for_each(check_row);
    let verdicts = value["verdicts"].as_array().expect("a list");
    // The machine's disk may stand still meanwhile, which is reported as well.
    let (stalls, levels): (Vec<String>, Vec<String>) =
        verdicts.iter().map(Value::to_string).partition(|verdict| verdict.contains(" stalls "));
    assert!(levels.len() == 3 && stalls.len() <= 1, "{verdicts:?}");
    assert!(levels.iter().all(|verdict| verdict.contains("too short")), "{verdicts:?}");
    assert_eq!(directory.names(), Vec::<String>::new());
}

fn check_row(row: &Value) {
    has_samples(row, 2);
    let metric = |name: &str| row["metrics"][name].as_f64();
    for name in ["burst_mb_per_s", "sustained_mb_per_s", "sync_ms"] {
        assert!(metric(name).is_some_and(|value| value >= 0.0), "{name}: {row}");
    }
    // No operation may end in the time on a device that stands still.
    let moves = metric("sustained_mb_per_s") > Some(0.0);
    for name in ["variation", "iops", "p50_us"] {
        assert!(metric(name).map_or(!moves, |value| value >= 0.0), "{name}: {row}");
    }
    // Whether the level changes depends on the device; that a drop has a change does not.
    assert!(metric("bytes_until_drop").is_none() || metric("change_s").is_some(), "{row}");
    let series = row["series"].as_object().expect("an object");
    let [at, rates] = ["at_s", "mb_per_s"].map(|name| series[name].as_array().expect("a list"));
    assert_eq!((at.len(), rates.len()), (10, 10), "{row}");
    assert!(rates.iter().all(|rate| rate.as_f64().is_some_and(|rate| rate >= 0.0)), "{row}");
}

#[test]
fn a_table_has_levels_and_a_note_on_a_short_load() {
    let directory = Directory::new("tables");
    let outcome = run(&[
        "measure",
        "sustain",
        directory.text(),
        "--quick",
        "--size",
        "8MiB",
        "--seconds",
        "1",
        "--rows",
        "random-read",
    ]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    for part in ["One load for 1 s after 0.500 s", "burst MB/s", "sustained MB/s", "variation %", "too short"]
    {
        assert!(outcome.out.contains(part), "{part}: {}", outcome.out);
    }
}

/// A loop device, which is detached at the end.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// Needs root and losetup; elsewhere it reports that and returns.
#[test]
fn a_whole_device_is_discarded_and_written_over_only_with_both_permissions() {
    let directory = Directory::new("device");
    let backing = directory.file("disk", 48 << 20);
    let before = fs::read(&backing).expect("readable");
    let attached = Command::new("losetup").args(["--find", "--show"]).arg(&backing).output();
    let Some(attached) = attached.ok().filter(|output| output.status.success()) else {
        eprintln!("skipped: a loop device needs root and losetup");
        return;
    };
    let device = Loop(String::from_utf8_lossy(&attached.stdout).trim().to_owned());
    let name = device.0.trim_start_matches("/dev/");
    let most = fs::read_to_string(format!("/sys/block/{name}/queue/discard_max_bytes"));
    if most.is_ok_and(|bytes| bytes.trim() == "0") {
        eprintln!("skipped: the file system below cannot punch holes");
        return;
    }
    let load = ["measure", "sustain", &device.0, "--rows", "random-write", "--seconds", "1", "--json"];
    let both = ["--quiet", "--overwrite", "--destroy-data"];
    let permitted = [&load[..], &both].concat();
    let claim = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&device.0).expect("it is free");
    let [scan, all, one] = [&["scan"][..], &["writes"], &["writes", "--idle", "1"]]
        .map(|named| [&["measure"][..], named, &[device.0.as_str()], &both].concat());
    for (arguments, words) in [
        (&load[..], "directory"),
        (&permitted[..], "is in use"),
        (&scan[..], "is in use"),
        (&all[..], "directory"),
        (&one[..], "directory"),
    ] {
        let outcome = run(arguments);
        assert_eq!(outcome.code, Some(3), "{arguments:?}: {}", outcome.err);
        assert!(outcome.err.contains(words), "{}", outcome.err);
    }
    assert!(before == fs::read(&backing).expect("readable"));
    drop(claim);
    let outcome = run(&permitted);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let experiment = &document(&outcome)["experiments"][0];
    assert_eq!(experiment["parameters"]["file_bytes"], 48 << 20);
    assert!(experiment["notes"].to_string().contains("not a single local drive"), "{}", experiment["notes"]);
    assert_eq!(experiment["parameters"]["whole_drive"], Value::Null);
    drop(device);
    let after = fs::read(&backing).expect("readable");
    assert!(before.chunks(4096).zip(after.chunks(4096)).all(|(old, new)| old != new));
}

#[test]
fn impossible_values_are_refused() {
    for (arguments, known) in [
        (&["--rows", "sequential-read"][..], "there is no row"),
        (&["--seconds", "0.5"], "1 to 1800"),
        (&["--seconds", "1801"], "1 to 1800"),
        (&["--seconds", "-5"], "-5"),
        (&["--seconds", "5min"], "not a time"),
        (&["--size", "1MiB"], "from 8 MiB on"),
        (&["--depth", "0"], "0"),
    ] {
        is_refused("sustain", arguments, known);
    }
    needs_space("sustain");
}

#[test]
fn a_signal_during_a_load_leaves_nothing() {
    let directory = Directory::new("signal");
    let arguments = ["measure", "sustain", directory.text(), "--size", "8MiB", "--seconds", "1800"];
    interrupt(begun(&mut forebay(&arguments), "measure sustain"), SIGTERM);
    assert_eq!(directory.names(), Vec::<String>::new());
}
