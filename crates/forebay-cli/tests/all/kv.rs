//! Tests of `forebay kv` as a program, on real stores: whole, damaged, and directories that are not a store.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use forebay::{Config, Engine};
use forebay_kv::{Options, Store};
use serde_json::Value;

use crate::support::{Directory, Outcome, forebay, outcome, run};

/// Runs a command that must end with this code.
fn ends(code: i32, arguments: &[&str]) -> Outcome {
    let outcome = run(arguments);
    assert_eq!(outcome.code, Some(code), "{arguments:?}: {}{}", outcome.out, outcome.err);
    outcome
}

/// Runs a command like [`ends`], with `input` on standard input.
fn fed(code: i32, arguments: &[&str], input: &[u8]) -> Outcome {
    let mut command = forebay(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    child.stdin.take().expect("a pipe").write_all(input).expect("it reads");
    let outcome = outcome(&child.wait_with_output().expect("it ends"));
    assert_eq!(outcome.code, Some(code), "{arguments:?}: {}{}", outcome.out, outcome.err);
    outcome
}

fn json(outcome: &Outcome) -> Value {
    let value: Value =
        serde_json::from_str(&outcome.out).unwrap_or_else(|error| panic!("{error}: {}", outcome.out));
    assert_eq!((&value["schema"], &value["forebay"]), (&2.into(), &env!("CARGO_PKG_VERSION").into()));
    value["kv"].clone()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a readable name")
}

/// A user named a device in place of a file: it was read until no memory was left.
#[test]
fn a_file_is_not_read_beyond_the_longest_value() {
    let dir = Directory::new("kv-endless");
    let store = dir.path().join("store");
    let refused = ends(2, &["kv", "put", text(&store), "a", "--file", "/dev/zero", "--create"]);
    assert!(refused.err.contains("/dev/zero is longer than 16 MiB"), "{}", refused.err);
    assert!(!store.exists());
}

#[test]
fn values_are_put_got_and_deleted() {
    let dir = Directory::new("kv-values");
    let store = dir.path().join("store");
    let store = text(&store);
    // No command creates a store without the option for it.
    for arguments in [
        &["kv", "get", store, "a"][..],
        &["kv", "put", store, "a", "1"],
        &["kv", "delete", store, "a"],
        &["kv", "scan", store],
        &["kv", "stats", store],
        &["kv", "verify", store],
        &["kv", "compact", store],
    ] {
        assert!(ends(2, arguments).err.contains("--create"), "{arguments:?}");
        assert!(!Path::new(store).exists());
    }
    ends(0, &["kv", "put", store, "a", "one", "--create"]);
    assert_eq!(ends(0, &["kv", "get", store, "a"]).out, "one");
    assert_eq!(ends(0, &["kv", "get", store, "61", "--hex-key", "--hex"]).out, "6f6e65\n");
    let absent = ends(1, &["kv", "get", store, "b"]);
    assert!(absent.out.is_empty() && absent.err.contains("the key does not exist"), "{}", absent.err);
    ends(0, &["kv", "delete", store, "a"]);
    ends(0, &["kv", "delete", store, "a"]);
    ends(1, &["kv", "get", store, "a"]);
    // Any bytes, from a file and from standard input.
    fed(0, &["kv", "put", store, "00ff", "--hex-key", "--file", "-"], b"\0\xffraw\n");
    assert_eq!(ends(0, &["kv", "get", store, "00ff", "--hex-key", "--hex"]).out, "00ff7261770a\n");
    let long = dir.file("long", 100_000);
    ends(0, &["kv", "put", store, "long", "--file", text(&long)]);
    let got = forebay(&["kv", "get", store, "long"]).output().expect("it runs");
    assert!(got.stdout == fs::read(&long).expect("a file"));
    assert_eq!(ends(0, &["kv", "scan", store, "--keys-only"]).out, "\\x00\\xff\nlong\n");
    // A value that expires immediately does not exist.
    ends(0, &["kv", "put", store, "short", "1", "--expires-in", "0"]);
    ends(1, &["kv", "get", store, "short"]);
    ends(0, &["kv", "put", store, "short", "1", "--expires-in", "100000"]);
    assert_eq!(ends(0, &["kv", "get", store, "short"]).out, "1");
    // Invalid requests.
    assert!(ends(2, &["kv", "put", store, "", "1"]).err.contains("at least one byte"));
    assert!(ends(2, &["kv", "get", store, "0", "--hex-key"]).err.contains("not hexadecimal"));
    ends(2, &["kv", "put", store, "a"]);
    ends(3, &["kv", "put", store, "a", "--file", text(&dir.path().join("none"))]);
}

#[test]
fn keyspaces_are_apart() {
    let dir = Directory::new("kv-keyspaces");
    ends(0, &["kv", "put", dir.text(), "a", "1", "--create"]);
    let refused = ends(2, &["kv", "put", dir.text(), "a", "2", "--keyspace", "other"]);
    assert!(refused.err.contains("no keyspace \"other\"; it has default"), "{}", refused.err);
    ends(0, &["kv", "put", dir.text(), "a", "2", "--keyspace", "other", "--create"]);
    assert_eq!(ends(0, &["kv", "get", dir.text(), "a"]).out, "1");
    assert_eq!(ends(0, &["kv", "get", dir.text(), "a", "--keyspace", "other"]).out, "2");
    assert_eq!(ends(0, &["kv", "scan", dir.text(), "--keyspace", "other"]).out, "a\t2\n");
    ends(2, &["kv", "scan", dir.text(), "--keyspace", "third"]);
}

#[test]
fn scans_return_the_loaded_records() {
    let dir = Directory::new("kv-scan");
    let store = dir.path().join("store");
    let store = text(&store);
    let lines: String = (0..3_000).map(|number| format!("key {number:04},{}\n", number * 7)).collect();
    let loaded = fed(0, &["kv", "load", store, "-", "--format", "csv", "--create"], lines.as_bytes());
    assert_eq!(loaded.out, "3000 entries loaded\n");
    let scan = |more: &[&str]| ends(0, &[&["kv", "scan", store], more].concat()).out;
    let expected: Vec<String> =
        (0..3_000).map(|number| format!("key {number:04}\t{}\n", number * 7)).collect();
    assert_eq!(scan(&[]), expected.concat());
    assert_eq!(scan(&["--from", "key 0100", "--to", "key 0110"]), expected[100..110].concat());
    assert_eq!(scan(&["--prefix", "key 29"]), expected[2_900..].concat());
    assert_eq!(scan(&["--limit", "3"]), expected[..3].concat());
    let backward: Vec<_> = expected[2_990..].iter().rev().cloned().collect();
    assert_eq!(scan(&["--reverse", "--limit", "10"]), backward.concat());
    assert_eq!(scan(&["--prefix", "6b657920303030", "--hex-key"]), expected[..10].concat());
    assert_eq!(scan(&["--keys-only", "--limit", "1"]), "key 0000\n");
    assert_eq!(scan(&["--from", "z"]), "");
    // A reader that closes the pipe is not an error.
    let mut child = forebay(&["kv", "scan", store]);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    assert_eq!(child.wait_with_output().expect("it ends").status.code(), Some(0));

    // From one store into another, for arbitrary bytes.
    ends(0, &["kv", "put", store, "ff00", "--hex-key", "tab\tline\n"]);
    let dump = dir.path().join("dump.jsonl");
    fs::write(&dump, scan(&["--json"])).expect("a file");
    let other = dir.path().join("other");
    ends(0, &["kv", "load", text(&other), text(&dump), "--create", "--sorted"]);
    assert_eq!(ends(0, &["kv", "scan", text(&other), "--json"]).out, scan(&["--json"]));
    ends(0, &["kv", "verify", text(&other)]);

    // JSON into a new file, in addition to the text.
    let lines = dir.path().join("lines.jsonl");
    let to_file = format!("--json={}", lines.display());
    assert_eq!(scan(&[&to_file]), scan(&[]));
    assert_eq!(fs::read_to_string(&lines).expect("it was written"), scan(&["--json"]));
    assert!(ends(3, &["kv", "scan", store, &to_file]).err.contains("name a new file"));
}

/// A user mistyped the name of a store, and then gave the right one: the scan refused the file for its lines, which the first scan had
/// made.
#[test]
fn a_scan_that_is_refused_leaves_no_file() {
    let dir = Directory::new("kv-no-scan");
    let [none, store, lines] = ["none", "store", "lines.jsonl"].map(|name| dir.path().join(name));
    let (store, to_file) = (text(&store), format!("--json={}", lines.display()));
    ends(0, &["kv", "put", store, "a", "1", "--create"]);
    ends(2, &["kv", "scan", text(&none), &to_file]);
    ends(2, &["kv", "scan", store, "--keyspace", "other", &to_file]);
    assert!(!lines.exists());
    ends(0, &["kv", "scan", store, &to_file]);
    assert_eq!(fs::read_to_string(&lines).expect("it was written"), "{\"key\":\"a\",\"value\":\"1\"}\n");
}

#[test]
fn files_of_every_format_are_loaded() {
    let dir = Directory::new("kv-load");
    let store = dir.path().join("store");
    let store = text(&store);
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        fs::write(&path, content).expect("a file");
        path
    };
    let csv = file("one.csv", "id,value,key\n1,\"first, one\",c\n2,second,a\n");
    let tsv = file("two.tsv", "b\t\"as it is\"\n");
    // A user saved it with an editor that adds a byte order mark: "expected value".
    let jsonl = file(
        "three.jsonl",
        "\u{feff}{\"key\":\"d\",\"value\":\"\\u00e9\"}\n\n{\"key\":\"e\",\"value_hex\":\"00\"}\n",
    );
    ends(0, &["kv", "load", store, text(&csv), "--header", "--create"]);
    ends(0, &["kv", "load", store, text(&tsv)]);
    let loaded = ends(0, &["kv", "load", store, text(&jsonl)]);
    assert_eq!(loaded.out, "2 entries loaded\n");
    assert!(loaded.err.contains("load: 2 entries"), "no progress: {}", loaded.err);
    assert!(ends(0, &["kv", "load", store, text(&jsonl), "--quiet"]).err.is_empty());
    // An empty list from that editor was refused in line 1: "EOF while parsing a value". One of CSV was loaded.
    for name in ["five.csv", "five.tsv", "five.jsonl"] {
        let marked = file(name, "\u{feff}");
        assert_eq!(ends(0, &["kv", "load", store, text(&marked)]).out, "0 entries loaded\n", "{name}");
    }
    let expected = "a\tsecond\nb\t\"as it is\"\nc\tfirst, one\nd\té\ne\t\\x00\n";
    assert_eq!(ends(0, &["kv", "scan", store]).out, expected);
    let unknown = file("four.txt", "");
    assert!(ends(2, &["kv", "load", store, text(&unknown)]).err.contains("add --format"));
    ends(3, &["kv", "load", store, text(&dir.path().join("none.csv"))]);
    ends(2, &["kv", "load", store, text(&jsonl), "--header"]);
}

#[test]
fn bad_input_is_named_with_its_line() {
    let dir = Directory::new("kv-bad");
    let store = dir.path().join("store");
    let store = text(&store);
    let lines = |count: u64, last: &str| {
        let good: String = (0..count).map(|number| format!("{number:05}\tvalue\n")).collect();
        good + last
    };
    let loads = |more: &[&str], input: &str| {
        let arguments = [&["kv", "load", store, "-", "--format", "tsv", "--create"], more].concat();
        fed(2, &arguments, input.as_bytes())
    };
    // Of input that must be sorted, nothing is loaded, wherever it fails.
    for (last, words) in [
        ("broken\n", "line 5001: 1 fields, where a line has 2: key and value; nothing was loaded"),
        ("00007\tlate\n", "not above the one before it"),
        ("\tvalue\n", "line 5001: a key has at least one byte; nothing was loaded"),
    ] {
        let refused = loads(&["--sorted"], &lines(5_000, last));
        assert!(refused.err.contains("-, line 5001: ") && refused.err.contains(words), "{}", refused.err);
        assert_eq!(ends(0, &["kv", "scan", store, "--limit", "1"]).out, "");
        let stats = json(&ends(0, &["kv", "stats", store, "--json"]));
        assert_eq!(stats["table_bytes"], 0);
        let tables = fs::read_dir(Path::new(store).join("tables")).expect("tables").count();
        assert_eq!(tables, 0, "files of the load are left");
    }
    // Otherwise the error reports the number of entries loaded.
    let refused = loads(&[], &lines(3_000, "broken\n"));
    assert!(refused.err.contains("line 3001: 1 fields"), "{}", refused.err);
    assert!(refused.err.contains("2048 entries before it are in the store"), "{}", refused.err);
    assert_eq!(ends(0, &["kv", "scan", store, "--keys-only"]).out.lines().count(), 2_048);
    let refused = loads(&[], &lines(1, "\tvalue\n"));
    assert!(refused.err.contains("line 2: a key has at least one byte"), "{}", refused.err);
    let long = format!("a\t{}\n", "x".repeat(17 << 20));
    let refused = loads(&[], &long);
    assert!(refused.err.contains("line 1: a value of"), "{}", refused.err);
}

/// A user loaded a table in which a quote was missing: all lines behind it became the value of one key, and the load said that it had
/// loaded them.
#[test]
fn a_quoted_field_without_an_end_is_not_loaded() {
    let dir = Directory::new("kv-quote");
    let store = dir.path().join("store");
    for more in [&[][..], &["--sorted"]] {
        let load = [&["kv", "load", text(&store), "-", "--format", "csv", "--create"], more].concat();
        let refused = fed(2, &load, b"a,1\nb,\"2\nc,3\nd,4\n");
        assert!(refused.err.contains("line 2: a quoted field has no end"), "{}", refused.err);
        assert_eq!(ends(0, &["kv", "scan", text(&store)]).out, "");
    }
}

/// A user wrote a value into a file on a full disk: the file was empty, and the exit code 0.
#[test]
fn a_value_that_is_not_written_is_a_failure() {
    let dir = Directory::new("kv-full");
    let store = dir.path().join("store");
    ends(0, &["kv", "put", text(&store), "a", "short", "--create"]);
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("it takes nothing");
    let got = forebay(&["kv", "get", text(&store), "a"]).stdout(full).output().expect("it starts");
    let got = outcome(&got);
    assert_eq!(got.code, Some(2), "{}", got.err);
    assert!(got.err.contains("No space left on device"), "{}", got.err);
}

/// Creates a closed store with tables and a log.
fn made(dir: &Path) {
    let engine = Engine::start(Config::new().shards(1)).expect("an engine");
    let store = Store::open(&engine, dir, Options::new().memory_bytes_max(16 << 20)).wait().expect("a store");
    let keyspace = store.default_keyspace();
    for number in 0..500u64 {
        keyspace.put(format!("key {number:03}"), [number as u8; 200]).wait().expect("a put");
    }
    store.flush().wait().expect("flushed");
    keyspace.delete("key 007").wait().expect("a delete");
    store.close().wait().expect("closing");
}

fn table(dir: &Path) -> PathBuf {
    let tables = fs::read_dir(dir.join("tables")).expect("tables");
    tables.map(|entry| entry.expect("an entry").path()).min().expect("a table")
}

#[test]
fn a_damaged_store_is_reported_with_file_and_offset() {
    let dir = Directory::new("kv-verify");
    made(dir.path());
    let whole = ends(0, &["kv", "verify", dir.text()]);
    let table = table(dir.path());
    let bytes = fs::metadata(&table).expect("a table").len();
    let words = format!(
        "whole: 1 table of {bytes} bytes with 500 entries, 0 of them deletions; 1 record in the log\n"
    );
    assert_eq!(whole.out, words);
    assert!(ends(0, &["kv", "verify", dir.text(), "--quiet"]).err.is_empty());
    let shown = json(&ends(0, &["kv", "verify", dir.text(), "--json"]));
    let outside = Directory::new("kv-verify-json");
    let file = outside.path().join("verified.json");
    let beside = ends(0, &["kv", "verify", dir.text(), &format!("--json={}", file.display())]);
    assert_eq!(beside.out, words);
    let written: Value =
        serde_json::from_str(&fs::read_to_string(&file).expect("it was written")).expect("JSON");
    assert_eq!(written["kv"], shown);
    assert_eq!(
        (&shown["whole"], &shown["entries"], &shown["records_in_log"]),
        (&true.into(), &500.into(), &1.into())
    );

    let file = fs::OpenOptions::new().write(true).open(&table).expect("a table");
    file.write_all_at(b"damage", 3 * 4096 + 1000).expect("damage");
    let before = fs::read(&table).expect("a table");
    let damaged = ends(1, &["kv", "verify", dir.text()]);
    assert!(damaged.out.starts_with("DAMAGED: 1 finding; "), "{}", damaged.out);
    let place = format!("{} at byte {}: ", table.display(), 3 * 4096);
    assert!(damaged.out.contains(&place), "no {place:?} in {}", damaged.out);
    let shown = json(&ends(1, &["kv", "verify", dir.text(), "--json"]));
    assert_eq!(shown["findings"][0]["file"], text(&table));
    assert_eq!((&shown["whole"], &shown["findings"][0]["offset_bytes"]), (&false.into(), &(3 * 4096).into()));
    assert!(fs::read(&table).expect("a table") == before);
    // Undamaged entries are still there.
    assert!(ends(2, &["kv", "scan", dir.text()]).err.contains(&place));
    ends(0, &["kv", "get", dir.text(), "key 499"]);
}

#[test]
fn a_store_in_use_and_a_directory_without_one_are_refused() {
    let dir = Directory::new("kv-use");
    let engine = Engine::start(Config::new().shards(1)).expect("an engine");
    let store = Store::open(&engine, dir.path(), Options::new()).wait().expect("a store");
    for arguments in [["kv", "verify", dir.text()], ["kv", "stats", dir.text()], ["kv", "scan", dir.text()]] {
        let refused = ends(2, &arguments);
        assert!(refused.err.contains("open"), "{}", refused.err);
    }
    store.close().wait().expect("closing");
    ends(0, &["kv", "verify", dir.text()]);
    // Commands that read share a store with others that do.
    let reader = Store::open(&engine, dir.path(), Options::new().read_only(true)).wait().expect("a store");
    ends(0, &["kv", "scan", dir.text()]);
    let refused = ends(2, &["kv", "put", dir.text(), "a", "1"]);
    assert!(refused.err.contains("read in process"), "{}", refused.err);
    reader.close().wait().expect("closing");
    let other = Directory::new("kv-none");
    fs::write(other.path().join("diary.txt"), "mine").expect("a file");
    assert!(ends(2, &["kv", "scan", other.text()]).err.contains("diary.txt"));
    ends(2, &["kv", "put", other.text(), "a", "1", "--create"]);
    ends(2, &["kv", "verify", other.text()]);
    assert_eq!(other.names(), ["diary.txt"]);
}

#[test]
fn stats_and_compact_print_their_figures() {
    let dir = Directory::new("kv-stats");
    made(dir.path());
    let shown = ends(0, &["kv", "stats", dir.text()]);
    for part in ["1 record, in no table yet", "default", "500"] {
        assert!(shown.out.contains(part), "no {part:?} in:\n{}", shown.out);
    }
    let stats = json(&ends(0, &["kv", "stats", dir.text(), "--json"]));
    assert_eq!(stats["records_in_log"], 1);
    assert_eq!(stats["keyspaces"][0]["levels"][0]["entries"], 500);
    // A user gave the memory that the refusal of a long log named, and the command did not take it.
    let small = json(&ends(0, &["kv", "stats", dir.text(), "--json", "--memory-mib", "32"]));
    assert_eq!(small["memory"]["budget_bytes"], 32 << 20, "{small}");
    let compacted = ends(0, &["kv", "compact", dir.text()]);
    assert!(compacted.out.starts_with("tables: "), "{}", compacted.out);
    let stats = json(&ends(0, &["kv", "stats", dir.text(), "--json"]));
    let levels = stats["keyspaces"][0]["levels"].as_array().expect("levels");
    assert_eq!((levels.len(), &levels[0]["level"], &levels[0]["entries"]), (1, &6.into(), &499.into()));
    assert_eq!(stats["records_in_log"], 0);
    ends(0, &["kv", "compact", dir.text(), "--keyspace", "default"]);
    ends(2, &["kv", "compact", dir.text(), "--keyspace", "none"]);
    ends(0, &["kv", "verify", dir.text()]);
}

#[test]
fn compaction_compresses_a_store_and_others_leave_it_so() {
    let dir = Directory::new("kv-compression");
    let store = dir.path().join("store");
    let (store, saved) = (text(&store), |store: &str| {
        let stats = json(&ends(0, &["kv", "stats", store, "--json"]));
        let levels = stats["keyspaces"][0]["levels"].as_array().expect("levels").clone();
        levels.iter().map(|level| level["saved_bytes"].as_u64().expect("a number")).sum::<u64>()
    });
    let records: String =
        (0..2_000).map(|number| format!("key {number:05}\t{}\n", "a record ".repeat(12))).collect();
    let load = ["kv", "load", store, "-", "--format", "tsv", "--sorted", "--create", "--quiet"];
    fed(0, &load, records.as_bytes());
    assert_eq!(saved(store), 0);
    assert!(!ends(0, &["kv", "stats", store]).out.contains("compressed"));
    ends(0, &["kv", "compact", store, "--compression", "lz4"]);
    assert!(saved(store) > 100_000, "{}", saved(store));
    assert!(ends(0, &["kv", "stats", store]).out.contains("bytes less than without"));
    let before = saved(store);
    ends(0, &["kv", "compact", store]);
    assert_eq!(saved(store), before, "a command without the option decompressed the store");
    ends(0, &["kv", "verify", store]);
    assert_eq!(ends(0, &["kv", "get", store, "key 01234"]).out, "a record ".repeat(12));
    ends(0, &["kv", "compact", store, "--compression", "none"]);
    assert_eq!(saved(store), 0);
    ends(2, &["kv", "compact", store, "--compression", "other"]);
}

/// Overwrites the last pages of a store's log or manifest that are not zeros with zeros.
fn lose_the_end(dir: &Path) {
    let segments = fs::read_dir(dir).expect("a log").map(|entry| entry.expect("an entry").path());
    let contents = |path: PathBuf| (fs::read(&path).expect("a segment"), path);
    let mut segments: Vec<_> =
        segments.filter(|path| path.extension().is_some_and(|end| end == "wal")).map(contents).collect();
    segments.retain(|(bytes, _)| bytes.iter().any(|&byte| byte != 0));
    segments.sort_by(|one, other| one.1.cmp(&other.1));
    let (bytes, path) = segments.pop().expect("a used segment");
    let end = bytes.iter().rposition(|&byte| byte != 0).expect("it is used") / 4096;
    let file = fs::OpenOptions::new().write(true).open(&path).expect("a segment");
    file.write_all_at(&vec![0; 3 * 4096], (end.saturating_sub(2) * 4096) as u64).expect("zeros");
}

/// Regression: `kv verify` called a store whole although `kv get` refused it, and called its only
/// table one that an open removes. A store that lost the end of its log returned old values. Every
/// command now reports the same, and a salvage saves the rest.
#[test]
fn a_store_that_lost_an_end_is_refused_by_every_command() {
    for log in ["manifest", "log"] {
        let dir = Directory::new(&format!("kv-lost-{log}"));
        made(dir.path());
        for number in 0..4 {
            ends(0, &["kv", "put", dir.text(), &format!("late {number}"), "new"]);
        }
        lose_the_end(&dir.path().join(log));
        let verified = ends(1, &["kv", "verify", dir.text()]);
        assert!(
            verified.out.starts_with("DAMAGED") && !verified.out.contains("an open removes it"),
            "{}",
            verified.out
        );
        let place = text(dir.path());
        for arguments in
            [&["kv", "get", place, "late 3"][..], &["kv", "scan", place], &["kv", "stats", place]]
        {
            let refused = ends(2, arguments);
            assert!(refused.out.is_empty() && refused.err.contains("forebay kv salvage"), "{}", refused.err);
        }
        assert!(table(dir.path()).exists());
        if log == "log" {
            let salvaged = ends(0, &["kv", "salvage", dir.text()]);
            assert!(salvaged.out.contains(" are lost"), "{}", salvaged.out);
            ends(0, &["kv", "verify", dir.text()]);
            ends(0, &["kv", "put", dir.text(), "after", "it"]);
            assert_eq!(ends(0, &["kv", "get", dir.text(), "after"]).out, "it");
        }
    }
}
