//! Tests of `forebay wal` as a program, on real logs: whole, damaged, and directories that are not a log.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use forebay::{Config, Engine};
use forebay_wal::inspect::{GroupKind, Report, inspect};
use forebay_wal::{Lsn, Options, Wal};
use serde_json::Value;

use crate::support::{Directory, Outcome, run};

fn engine() -> Engine {
    Engine::start(Config::new().shards(1)).expect("an engine")
}

fn options() -> Options {
    Options::new().segment_bytes(256 << 10)
}

fn record(lsn: u64) -> Vec<u8> {
    (0..200u64).map(|at| (lsn * 31 + at) as u8).collect()
}

/// Writes a log of `count` records, each in a separate group, and closes it.
fn write(engine: &Engine, dir: &Path, count: u64) {
    fs::create_dir_all(dir).expect("a directory");
    let (wal, recovery) = Wal::open(engine, dir, options()).wait().expect("a new log");
    assert!(recovery.created);
    for lsn in 1..=count {
        assert_eq!(wal.append(&record(lsn)).wait().expect("an append"), Lsn(lsn));
    }
    wal.close().wait().expect("closing");
}

/// Returns everything in the directory that a reader could see.
fn everything(dir: &Path) -> (BTreeMap<PathBuf, (Vec<u8>, SystemTime)>, SystemTime) {
    let modified = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).expect("a time");
    let entries = fs::read_dir(dir).expect("the directory").map(|entry| entry.expect("an entry").path());
    let files = entries.map(|path| (path.clone(), (fs::read(&path).expect("a file"), modified(&path))));
    (files.collect(), modified(dir))
}

/// Returns the records of the log after opening it, and the next number.
fn content(engine: &Engine, dir: &Path, options: Options) -> (BTreeMap<u64, Vec<u8>>, u64) {
    let (wal, _) = Wal::open(engine, dir, options).wait().expect("it opens");
    let mut records = BTreeMap::new();
    let mut reader = wal.read_from(wal.first_lsn());
    loop {
        match reader.next().wait().transpose() {
            Ok(Some(record)) => assert!(records.insert(record.lsn().0, record.to_vec()).is_none()),
            Ok(None) => break,
            Err(error) => {
                let Some(lost) = error.loss() else { panic!("{error}") };
                reader = wal.read_from(lost.last.next());
            }
        }
    }
    let next = wal.next_lsn().0;
    wal.close().wait().expect("closing");
    (records, next)
}

/// Returns the location of the group with this record.
fn group_of(report: &Report, lsn: u64) -> (PathBuf, u64, u64) {
    let groups =
        report.segments.iter().flat_map(|segment| segment.groups.iter().map(move |group| (segment, group)));
    let mut of_lsn = groups.filter(|(_, group)| group.live.contains(&lsn));
    let (segment, group) = of_lsn.next().expect("the record's group");
    (segment.file.clone(), group.offset, group.bytes)
}

/// Damages a byte of the record.
fn flip(report: &Report, lsn: u64) {
    let (file, offset, _) = group_of(report, lsn);
    overwrite(&file, offset + 250, &[0xa5, 0x5a, 0xff]);
}

fn overwrite(file: &Path, offset: u64, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(file).expect("a segment");
    file.write_all_at(bytes, offset).expect("damage");
}

/// Runs a command on the log and checks that nothing in it has changed.
fn reading(dir: &Path, arguments: &[&str]) -> Outcome {
    let before = everything(dir);
    let outcome = run(arguments);
    assert!(everything(dir) == before, "{arguments:?} changed the log");
    outcome
}

fn json(outcome: &Outcome) -> Value {
    let value: Value =
        serde_json::from_str(&outcome.out).unwrap_or_else(|error| panic!("{error}: {}", outcome.out));
    assert_eq!((&value["schema"], &value["forebay"]), (&2.into(), &env!("CARGO_PKG_VERSION").into()));
    value["wal"].clone()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a readable name")
}

#[test]
fn a_whole_log_is_shown_and_verified() {
    let (engine, dir) = (engine(), Directory::new("wal-whole"));
    write(&engine, dir.path(), 100);
    fs::write(dir.path().join("diary.txt"), "nothing to do with it").expect("a stranger");

    let verified = reading(dir.path(), &["wal", "verify", dir.text()]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.out, verified.err);
    assert_eq!(verified.out, "whole: 100 records, 1 to 100; all proven durable\n");

    let shown = reading(dir.path(), &["wal", "inspect", dir.text()]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    for part in ["100 records, 1 to 100; the next one is 101", "0000000000000001.wal", "diary.txt", "whole: "]
    {
        assert!(shown.out.contains(part), "no {part:?} in:\n{}", shown.out);
    }
    assert!(!shown.out.contains("IN USE") && !shown.out.contains("watermark 1:"), "{}", shown.out);
    let groups = reading(dir.path(), &["wal", "inspect", dir.text(), "--groups"]);
    for part in ["records  50 to 50  epoch 1", "reopen  none", "mark  none", "watermark 1:"] {
        assert!(groups.out.contains(part), "no {part:?} in:\n{}", groups.out);
    }
}

#[test]
fn json_has_the_contents_of_the_lines() {
    let (engine, dir) = (engine(), Directory::new("wal-json"));
    write(&engine, dir.path(), 10);
    let outcome = reading(dir.path(), &["wal", "inspect", dir.text(), "--json", "--groups"]);
    let log = &json(&outcome)["log"];
    assert_eq!(
        (&log["verdict"], &log["whole"], &log["in_use"]),
        (&"opens".into(), &true.into(), &false.into())
    );
    assert_eq!((&log["records"], &log["first_lsn"], &log["next_lsn"]), (&10.into(), &1.into(), &11.into()));
    assert_eq!((&log["proven_lsn"], &log["unproven_records"]), (&10.into(), &0.into()));
    assert_eq!(log["id"].as_str().map(str::len), Some(32));
    let groups = log["segments"][0]["groups"].as_array().expect("groups");
    assert_eq!(groups[0]["kind"], "reopen");
    assert_eq!(groups.iter().filter_map(|group| group["records"].as_u64()).sum::<u64>(), 10);
    assert!(groups.iter().all(|group| group["linked"] == true));
    assert_eq!(groups.last().map(|last| &last["watermark"]), Some(&log["watermark"]));
    assert!(json(&run(&["wal", "verify", dir.text(), "--json"]))["log"]["segments"][0]["groups"].is_null());
}

#[test]
fn values_are_shown() {
    let (engine, dir) = (engine(), Directory::new("wal-values"));
    let (wal, _) = Wal::open(&engine, dir.path(), options()).wait().expect("it opens");
    wal.set("vote", b"for \xff").wait().expect("set");
    wal.set("long", &[b'7'; 100]).wait().expect("set");
    wal.append(&record(1)).wait().expect("appended");
    wal.close().wait().expect("closing");
    let shown = reading(dir.path(), &["wal", "inspect", dir.text(), "--groups"]);
    for part in ["vote = \"for \\xff\"", "777\"... (100 bytes)", "sets values ("] {
        assert!(shown.out.contains(part), "no {part:?} in:\n{}", shown.out);
    }
    let outcome = reading(dir.path(), &["wal", "inspect", dir.text(), "--json", "--groups"]);
    let log = &json(&outcome)["log"];
    assert_eq!((&log["values"][1]["key"], &log["values"][1]["hex"]), (&"vote".into(), &"666f7220ff".into()));
    assert!(log["values_lost"].is_null());
    let groups = log["segments"][0]["groups"].as_array().expect("groups");
    assert_eq!(groups.iter().filter(|group| group["sets_values"] == true).count(), 2);
}

#[test]
fn a_damaged_record_is_named_and_all_others_are_saved() {
    let (engine, dir) = (engine(), Directory::new("wal-flip"));
    let (log, out) = (dir.path().join("log"), dir.path().join("out"));
    write(&engine, &log, 100);
    let report = inspect(&engine, &log).wait().expect("it is a log");
    flip(&report, 50);
    let (file, offset, _) = group_of(&report, 50);

    let verified = reading(&log, &["wal", "verify", text(&log)]);
    assert_eq!(verified.code, Some(1), "{}{}", verified.out, verified.err);
    assert!(verified.out.starts_with("DAMAGED: an open is refused; repair can save 99 records, 1 to 100\n"));
    let sentence = format!("lost: record 50, durable once, from byte {offset} of {} on\n", file.display());
    assert!(verified.out.contains(&sentence), "{}", verified.out);
    assert_eq!(reading(&log, &["wal", "inspect", text(&log)]).code, Some(0));

    let repaired = reading(&log, &["wal", "repair", text(&log), "--to", text(&out)]);
    assert_eq!(repaired.code, Some(1), "{}{}", repaired.out, repaired.err);
    assert!(repaired.out.contains(&sentence), "{}", repaired.out);
    assert!(repaired.out.contains("saved: 99 records, 1 to 100, into the new log"), "{}", repaired.out);
    let verified = reading(&out, &["wal", "verify", text(&out)]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.out, verified.err);
    assert!(verified.out.contains("accepted as lost earlier: record 50"), "{}", verified.out);

    let expected: BTreeMap<u64, Vec<u8>> =
        (1..=100).filter(|&lsn| lsn != 50).map(|lsn| (lsn, record(lsn))).collect();
    assert!(content(&engine, &out, options().create(false)) == (expected, 101));
    // It is a log like any other.
    let (wal, recovery) = Wal::open(&engine, &out, options()).wait().expect("it opens again");
    assert_eq!((recovery.lost.len(), recovery.lost[0].first, recovery.lost[0].last), (1, Lsn(50), Lsn(50)));
    assert_eq!(wal.append(b"more").wait().expect("an append"), Lsn(101));
    wal.close().wait().expect("closing");
    assert_eq!(run(&["wal", "verify", text(&out)]).code, Some(0));
}

/// Salvage is the other way to recover records of a damaged log; both must find the same records.
#[test]
fn repair_saves_the_same_as_salvage() {
    let (engine, dir) = (engine(), Directory::new("wal-salvage"));
    let log = dir.path().join("log");
    write(&engine, &log, 200);
    {
        let (wal, _) = Wal::open(&engine, &log, options()).wait().expect("it opens");
        wal.truncate_before(Lsn(20)).wait().expect("truncated");
        wal.truncate_from(Lsn(181)).wait().expect("truncated");
        let large = vec![7; 150 << 10];
        for _ in 0..4 {
            wal.append(&[b"", &large[..], b"small"]).wait().expect("appended");
        }
        wal.close().wait().expect("closing");
        drop(wal);
        let (wal, _) = Wal::open(&engine, &log, options()).wait().expect("it opens");
        wal.append(&record(193)).wait().expect("appended");
        wal.close().wait().expect("closing");
    }
    let report = inspect(&engine, &log).wait().expect("it is a log");
    assert!(report.is_whole() && report.segments.len() > 3, "{report:?}");
    assert!(
        report
            .segments
            .iter()
            .flat_map(|segment| &segment.groups)
            .any(|group| { group.kind == GroupKind::Truncate(Lsn(180)) && group.linked })
    );
    let plain = content_of_copy(&engine, dir.path(), &log, "plain");
    for damaged in [&[][..], &[20], &[20, 21, 22], &[100, 102, 180], &[184], &[60, 187, 193], &[193]] {
        let case = format!("{damaged:?}");
        let (copy, out) = (copied(dir.path(), &log, &case), dir.path().join(format!("out-{case}")));
        let of_copy = inspect(&engine, &copy).wait().expect("it is a log");
        damaged.iter().for_each(|&lsn| flip(&of_copy, lsn));
        let repaired = reading(&copy, &["wal", "repair", text(&copy), "--to", text(&out)]);
        assert_eq!(
            repaired.code,
            Some(i32::from(!damaged.is_empty())),
            "{case}: {}{}",
            repaired.out,
            repaired.err
        );
        assert_eq!(run(&["wal", "verify", text(&out)]).code, Some(0), "{case}");
        let saved = content(&engine, &out, options());
        assert!(saved == content(&engine, &copy, options().salvage(true)), "{case}");
        let lost = plain.keys().filter(|lsn| !saved.0.contains_key(lsn)).count();
        assert!(lost >= damaged.len() && lost <= 3 * damaged.len(), "{case}: {lost}");
        assert!(saved.0.iter().all(|(lsn, record)| plain.get(lsn) == Some(record)), "{case}");
    }
}

fn copied(dir: &Path, log: &Path, label: &str) -> PathBuf {
    let copy = dir.join(format!("copy-{label}"));
    fs::create_dir(&copy).expect("a directory");
    for entry in fs::read_dir(log).expect("the log") {
        let path = entry.expect("an entry").path();
        fs::copy(&path, copy.join(path.file_name().expect("a name"))).expect("copied");
    }
    copy
}

fn content_of_copy(engine: &Engine, dir: &Path, log: &Path, label: &str) -> BTreeMap<u64, Vec<u8>> {
    content(engine, &copied(dir, log, label), options()).0
}

#[test]
fn an_unfinished_end_is_reported_as_at_most_the_last_group() {
    let (engine, dir) = (engine(), Directory::new("wal-tail"));
    let (log, out) = (dir.path().join("log"), dir.path().join("out"));
    write(&engine, &log, 10);
    // As after a power cut in the last write: no record of the end, no mark, and half of the last record.
    fs::remove_file(log.join("wal.end")).expect("a closed log has it");
    let report = inspect(&engine, &log).wait().expect("it is a log");
    let (file, offset, bytes) = group_of(&report, 10);
    let end = report.segments[0].used_bytes();
    overwrite(&file, offset + bytes, &vec![0; (end - offset - bytes) as usize]);
    overwrite(&file, offset + 300, &[0; 96]);

    let verified = reading(&log, &["wal", "verify", text(&log)]);
    assert_eq!(verified.code, Some(1), "{}{}", verified.out, verified.err);
    assert!(verified.out.contains("9 records, 1 to 9"), "{}", verified.out);
    assert!(verified.out.contains(&format!("cut off: the bytes from {offset} of")), "{}", verified.out);
    assert!(verified.out.contains("at most the last group"), "{}", verified.out);
    let repaired = reading(&log, &["wal", "repair", text(&log), "--to", text(&out), "--json"]);
    assert_eq!(repaired.code, Some(1), "{}", repaired.err);
    let document = json(&repaired);
    assert_eq!(
        (&document["saved"]["records"], &document["log"]["cut"]["offset_bytes"]),
        (&9.into(), &offset.into())
    );
    assert_eq!(document["saved"]["log"]["whole"], true);
    assert_eq!(content(&engine, &out, options()).1, 10);
}

#[test]
fn a_log_of_which_nothing_is_left_is_damaged_and_cannot_be_repaired() {
    let (engine, dir) = (engine(), Directory::new("wal-nothing"));
    let (log, out) = (dir.path().join("log"), dir.path().join("out"));
    write(&engine, &log, 3);
    for (file, (bytes, _)) in everything(&log).0 {
        overwrite(&file, 0, &vec![0; bytes.len()]);
    }
    let verified = reading(&log, &["wal", "verify", text(&log)]);
    assert_eq!(verified.code, Some(1), "{}{}", verified.out, verified.err);
    assert!(verified.out.contains("nothing can be saved"), "{}", verified.out);
    let repaired = reading(&log, &["wal", "repair", text(&log), "--to", text(&out)]);
    assert_eq!(repaired.code, Some(2), "{}", repaired.out);
    assert!(repaired.err.contains("everything is lost") && !out.exists(), "{}", repaired.err);
}

#[test]
fn unreadable_inputs_have_an_exit_code_of_their_own() {
    let (engine, dir) = (engine(), Directory::new("wal-unreadable"));
    let (log, empty, file) = (dir.path().join("log"), dir.path().join("empty"), dir.path().join("file"));
    write(&engine, &log, 3);
    fs::create_dir(&empty).expect("a directory");
    fs::write(&file, "no log").expect("a file");
    let out = dir.path().join("out");
    for path in [&dir.path().join("missing"), &empty, &file] {
        let path = text(path);
        for arguments in [
            &["wal", "verify", path][..],
            &["wal", "inspect", path],
            &["wal", "repair", path, "--to", text(&out)],
        ] {
            let outcome = run(arguments);
            assert_eq!(outcome.code, Some(2), "{arguments:?}: {}{}", outcome.out, outcome.err);
            assert!(outcome.err.contains(path) && outcome.out.is_empty(), "{arguments:?}: {}", outcome.err);
            assert!(!out.exists(), "{arguments:?}");
        }
    }
    assert!(everything(&empty).0.is_empty());

    // Two logs in one directory.
    let other = dir.path().join("other");
    write(&engine, &other, 100);
    let mixed = copied(dir.path(), &log, "mixed");
    fs::copy(other.join("0000000000000002.wal"), mixed.join("0000000000000002.wal")).expect("copied");
    let outcome = reading(&mixed, &["wal", "verify", text(&mixed)]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.out);
    assert!(outcome.err.contains("belongs to another log"), "{}", outcome.err);
    let outcome = reading(&mixed, &["wal", "inspect", text(&mixed)]);
    assert!(outcome.code == Some(0) && outcome.out.contains("refused: "), "{}{}", outcome.out, outcome.err);
    let outcome = run(&["wal", "repair", text(&mixed), "--to", text(&out)]);
    assert!(outcome.code == Some(2) && !out.exists(), "{}", outcome.out);
    // The log is in use.
    let (wal, _) = Wal::open(&engine, &other, options()).wait().expect("it opens");
    wal.append(b"further").wait().expect("appended");
    let outcome = run(&["wal", "verify", text(&other)]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.out);
    assert!(outcome.err.contains("is in use"), "{}", outcome.err);
    let outcome = run(&["wal", "inspect", text(&other)]);
    assert!(outcome.code == Some(0) && outcome.out.contains("IN USE"), "{}{}", outcome.out, outcome.err);
    let outcome = run(&["wal", "repair", text(&other), "--to", text(&out)]);
    assert!(outcome.code == Some(2) && !out.exists(), "{}", outcome.out);
    assert!(outcome.err.contains("open"), "{}", outcome.err);
    wal.append(b"the program did not disturb it").wait().expect("appended");
    wal.close().wait().expect("closing");
}

#[test]
fn repair_never_touches_existing_files() {
    let (engine, dir) = (engine(), Directory::new("wal-out"));
    let (log, full, empty) = (dir.path().join("log"), dir.path().join("full"), dir.path().join("empty"));
    write(&engine, &log, 3);
    fs::create_dir(&full).expect("a directory");
    fs::create_dir(&empty).expect("a directory");
    fs::write(full.join("diary.txt"), "precious").expect("a file");
    let inside = log.join("out");
    let around = full.join("../log/out");
    for out in [&log, &full, &full.join("diary.txt"), &inside, &around, &dir.path().join("no/such/parent")] {
        let before = everything(&full);
        let outcome = reading(&log, &["wal", "repair", text(&log), "--to", text(out)]);
        assert_eq!(outcome.code, Some(2), "{}: {}", out.display(), outcome.out);
        assert!(everything(&full) == before && !inside.exists());
    }
    let outcome = reading(&log, &["wal", "repair", text(&log), "--to", text(&empty)]);
    assert_eq!(outcome.code, Some(0), "{}{}", outcome.out, outcome.err);
    assert!(outcome.out.starts_with("whole: 3 records"), "{}", outcome.out);
    let names: Vec<_> = everything(&empty).0.into_keys().collect();
    assert_eq!(names, [empty.join("0000000000000001.wal"), empty.join("wal.end")]);
}

/// A copied log has no lock file, and inspecting it must not create one.
#[test]
fn a_copy_without_its_lock_file_is_read_as_it_is() {
    let (engine, dir) = (engine(), Directory::new("wal-copy"));
    write(&engine, dir.path(), 3);
    fs::remove_file(dir.path().join("wal.lock")).expect("there was one");
    for command in ["verify", "inspect"] {
        let outcome = reading(dir.path(), &["wal", command, dir.text()]);
        assert_eq!(outcome.code, Some(0), "{}{}", outcome.out, outcome.err);
    }
}
