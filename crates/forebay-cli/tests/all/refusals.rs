//! Refusals of the program, with their sentences and exit codes.

use std::fs;

use crate::support::{Directory, forebay, run, run_limited};

/// Runs the program and checks that it refuses on standard error only, with `code` and every one of `words`.
fn refused(arguments: &[&str], code: i32, words: &[&str]) {
    let outcome = run(arguments);
    assert_eq!(outcome.code, Some(code), "{arguments:?}: {}{}", outcome.out, outcome.err);
    assert_eq!(outcome.out, "", "{arguments:?}");
    for word in words {
        assert!(outcome.err.contains(word), "{arguments:?}: {word:?} is not in {}", outcome.err);
    }
}

#[test]
fn wrong_usage() {
    refused(&["frobnicate"], 2, &["frobnicate"]);
    refused(&["measure", "scan", "--no-such-option"], 2, &["--no-such-option"]);
    refused(&["measure", "random", "--depth", "many"], 2, &["many"]);
    refused(&[], 2, &["Usage"]);
    refused(&["measure"], 2, &["Usage", "blocking"]);
    refused(&["measure", "scna"], 2, &["scna", "scan"]);
}

/// Refused with any permission: these experiments have files of their own.
#[test]
fn experiments_that_take_a_directory_only() {
    let directory = Directory::new("file");
    let file = directory.file("data", 1 << 20);
    let before = fs::read(&file).expect("readable");
    let name = file.to_str().expect("readable name");
    for experiment in [
        "baseline",
        "wal",
        "blocking",
        "walk",
        "writes",
        "patterns",
        "sustain",
        "fairness",
        "amplification",
        "files",
        "samples",
        "collective",
    ] {
        for permissions in [&[][..], &["--overwrite", "--destroy-data"]] {
            refused(&[&["measure", experiment, name][..], permissions].concat(), 3, &[name, "directory"]);
        }
    }
    assert!(before == fs::read(&file).expect("readable"));
    assert_eq!(directory.names(), ["data"]);
}

#[test]
fn experiments_that_there_are_not() {
    refused(&["report", "--only", "scan,scna"], 2, &["\"scna\"", "scan, reads, wal, blocking, walk, writes"]);
    let directory = Directory::new("only");
    let file = directory.file("data", 40 << 20);
    let page = directory.path().join("page.html");
    let [file, page] = [&file, &page].map(|path| path.to_str().expect("readable name"));
    refused(
        &["report", file, "--only", "scan,walk,wal", "--out", page],
        3,
        &["wal, walk: these need a directory", file],
    );
    assert_eq!(directory.names(), ["data"]);
}

/// A minute of work must not end in the refusal of its destination, and no file of others is replaced.
#[test]
fn the_file_for_json_is_checked_before_anything_is_done() {
    let directory = Directory::new("json");
    let diary = directory.path().join("diary.txt");
    fs::write(&diary, "dear diary").expect("it is our directory");
    let (diary, page) = (diary.to_str().expect("readable name"), directory.path().join("page.html"));
    let (to_diary, page) = (format!("--json={diary}"), page.to_str().expect("readable name"));
    let to_missing = format!("--json={}/missing/x.json", directory.text());
    for command in [
        &["doctor", directory.text()][..],
        &["measure", "scan", directory.text()],
        &["report", directory.text(), "--out", page],
        &["diff", page, page],
        &["kv", "stats", directory.text()],
        &["kv", "verify", directory.text()],
        &["wal", "inspect", directory.text()],
        &["wal", "verify", directory.text()],
        &["wal", "repair", directory.text(), "--to", page],
    ] {
        refused(&[command, &[&to_diary]].concat(), 3, &[diary, "was not written by this program"]);
        refused(&[command, &[&to_missing]].concat(), 3, &["missing does not exist"]);
    }
    refused(&["kv", "scan", directory.text(), &to_diary], 3, &[diary, "exists: name a new file"]);
    let to_page = format!("--json={page}");
    for both in [[to_page.as_str(), page], ["--json", "-"]] {
        refused(&["report", directory.text(), both[0], "--out", both[1]], 2, &["would both go to"]);
    }
    assert_eq!(fs::read_to_string(diary).expect("readable"), "dear diary");
    assert_eq!(directory.names(), ["diary.txt"]);
}

/// A user wrote the page to `results/`, which did not exist: the report was measured to its end, and its page could not be written.
#[test]
fn a_name_that_no_file_can_have_is_refused_before_anything_is_done() {
    let directory = Directory::new("names");
    let long = "x".repeat(256);
    for (end, words) in [
        ("results/", "results/ names a directory"),
        ("results/.", "results/. names a directory"),
        (long.as_str(), "File name too long"),
    ] {
        let name = format!("{}/{end}", directory.text());
        refused(&["report", directory.text(), "--out", &name], 3, &[words]);
        refused(&["doctor", directory.text(), &format!("--json={name}")], 3, &[words]);
    }
    assert_eq!(directory.names(), Vec::<String>::new());
}

/// A user wrote to a link to the newest of the program's own results, which was called another's, and to /dev/null, which was to be
/// removed.
#[test]
fn what_is_not_a_file_is_called_so() {
    let directory = Directory::new("link");
    let [result, link] = ["result.json", "newest.json"].map(|name| directory.path().join(name));
    let written = run(&["doctor", directory.text(), &format!("--json={}", result.display())]);
    assert_eq!(written.code, Some(0), "{}", written.err);
    std::os::unix::fs::symlink(&result, &link).expect("it is our directory");
    for name in [link.to_str().expect("readable name"), "/dev/null"] {
        let words = format!("{name} is not a regular file");
        let words = [words.as_str(), "`-` for standard output"];
        refused(&["doctor", directory.text(), &format!("--json={name}")], 3, &words);
        refused(&["report", directory.text(), "--out", name], 3, &words);
    }
    assert_eq!(directory.names(), ["newest.json", "result.json"]);
}

/// A user wrote page and JSON to `page.html` and `./page.html`: the JSON replaced the page, and the summary named it as the page.
#[test]
fn one_file_by_two_paths_is_one_place() {
    let directory = Directory::new("place");
    let page = directory.path().join("page.html");
    let name = directory.path().file_name().expect("it has a name");
    let (page, again) = (page.to_str().expect("readable name"), page.with_file_name("..").join(name));
    let again = format!("{}/page.html", again.to_str().expect("readable name"));
    let json = format!("--json={again}");
    refused(&["report", directory.text(), &json, "--out", page], 2, &["would both go to", "page.html"]);
    let both = ["--junit", page, "--openmetrics", again.as_str()];
    refused(&[&["assert", "a.json", "a.b.c > 1"][..], &both].concat(), 2, &["name two files"]);
    assert_eq!(directory.names(), Vec::<String>::new());
}

/// The name of the file is behind `=`: another word is the next argument.
#[test]
fn json_takes_no_word_of_its_own() {
    refused(&["doctor", ".", "--json", "numbers.json"], 2, &["numbers.json"]);
    refused(&["doctor", ".", "--json="], 2, &["--json"]);
}

#[test]
fn help_and_version_succeed() {
    for arguments in
        [&["--help"][..], &["doctor", "--help"], &["measure", "scan", "--help"], &["report", "--help"]]
    {
        let outcome = run(arguments);
        assert_eq!(outcome.code, Some(0), "{arguments:?}");
        assert!(outcome.out.contains("Usage: forebay"), "{}", outcome.out);
        assert!(!outcome.out.contains("__measure-child"), "the hidden subcommand is shown: {}", outcome.out);
    }
    assert!(run(&["--version"]).out.contains(env!("CARGO_PKG_VERSION")));
}

/// The program starts itself with these commands; they are of no use to others.
#[test]
fn a_suggestion_names_no_command_of_the_programs_own() {
    for typed in ["__measure-chil", "__measure", "measure-child", "__agent-worke", "agent-worker", "__"] {
        let outcome = run(&[typed]);
        assert_eq!(outcome.code, Some(2), "{typed}: {}", outcome.err);
        assert!(outcome.err.contains("unrecognized subcommand"), "{}", outcome.err);
        let said = outcome.err.replace(&format!("'{typed}'"), "");
        assert!(!said.contains("child") && !said.contains("worker"), "{}", outcome.err);
    }
}

#[test]
fn the_manual_and_completions_are_printed() {
    let page = run(&["man"]);
    assert_eq!(page.code, Some(0), "{}", page.err);
    assert!(page.out.contains(".TH forebay 1"), "{}", page.out);
    let script = run(&["completions", "bash"]);
    assert_eq!(script.code, Some(0), "{}", script.err);
    assert!(script.out.contains("complete -F _forebay"), "{}", script.out);
    assert_eq!(run(&["completions", "csh"]).code, Some(2));
}

/// Regression: every experiment had the same line for a while, that of the options common to all.
#[test]
fn the_help_describes_each_experiment() {
    let help = run(&["measure", "--help"]).out;
    let lines =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let words: Vec<&str> =
        lines.filter_map(|line| line.trim().split_once(' ')).map(|(_, what)| what.trim()).collect();
    assert!(words.len() > 10, "{help}");
    for (place, what) in words.iter().enumerate() {
        assert!(what.len() > 20 && !words[..place].contains(what), "{what}");
    }
    let first = run(&["measure", "baseline", "--help"]).out;
    assert!(first.starts_with(words[0]), "{first}");
}

#[test]
fn a_missing_path() {
    let missing = "/no/such/path/for/forebay";
    for command in [&["doctor", missing][..], &["measure", "scan", missing], &["measure", "random", missing]]
    {
        refused(command, 3, &[missing, "does not exist"]);
    }
    let directory = Directory::new("missing");
    let page = directory.path().join("page.html");
    refused(
        &["report", missing, "--out", page.to_str().expect("readable name")],
        3,
        &[missing, "does not exist"],
    );
    assert_eq!(directory.names(), Vec::<String>::new());
}

#[test]
fn things_that_are_neither_files_nor_directories() {
    for command in
        [&["doctor", "/dev/null"][..], &["measure", "scan", "/dev/null"], &["measure", "random", "/dev/zero"]]
    {
        refused(command, 3, &["/dev/", "neither a directory, a regular file nor a block device"]);
    }
}

#[test]
fn contents_are_replaced_only_with_both_options() {
    let directory = Directory::new("twice");
    let file = directory.file("data", 1 << 20);
    let before = fs::read(&file).expect("readable");
    let name = file.to_str().expect("readable name");
    for command in ["scan", "random"] {
        for permission in ["--overwrite", "--destroy-data"] {
            refused(&["measure", command, name, permission], 2, &["--overwrite", "--destroy-data", name]);
        }
    }
    // A directory has more than one file: no permission covers it.
    refused(&["measure", "scan", directory.text(), "--overwrite", "--destroy-data"], 2, &["is a directory"]);
    assert!(before == fs::read(&file).expect("readable"));
    assert_eq!(directory.names(), ["data"]);
}

#[test]
fn a_file_that_is_too_small() {
    let directory = Directory::new("small");
    let file = directory.file("data", 64 << 10);
    for command in ["scan", "random"] {
        refused(&["measure", command, file.to_str().expect("readable name")], 4, &["too small"]);
    }
    let empty = directory.file("empty", 0);
    refused(&["measure", "scan", empty.to_str().expect("readable name")], 4, &["too small"]);
}

#[test]
fn a_file_system_without_direct_io() {
    // kernfs refuses O_DIRECT, and its files report the size of a page.
    for command in ["scan", "random"] {
        refused(
            &["measure", command, "/sys/devices/system/cpu/online"],
            4,
            &["direct I/O does not work", "sysfs"],
        );
    }
}

#[test]
fn a_directory_that_takes_no_files() {
    refused(&["measure", "scan", "/proc"], 3, &["/proc", "cannot be written"]);
}

#[test]
fn a_directory_without_space() {
    let directory = Directory::new("space");
    refused(&["measure", "scan", directory.text(), "--size", "8000TiB"], 4, &["free", "7.8 PiB"]);
    assert_eq!(directory.names(), Vec::<String>::new());
}

/// A file system takes files of 4 GiB at most, a user has a quota: some experiments named the remedy, others ended with code 1 and
/// "File too large".
#[test]
fn a_directory_that_takes_no_long_files() {
    let directory = Directory::new("long");
    for (experiment, options) in [
        ("scan", &["--memory", "32MiB", "--size", "64MiB"][..]),
        ("walk", &["--size", "64MiB"]),
        ("samples", &["--size", "128MiB"]),
        ("collective", &["--size", "64MiB", "--ranks", "1"]),
    ] {
        let arguments = [&["measure", experiment, directory.text()], options].concat();
        // 4 MiB, of other shells 8. The signal would end the program.
        let outcome = run_limited("trap '' XFSZ && ulimit -f 8192", &arguments);
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(4), ""), "{experiment}: {}", outcome.err);
        for words in ["File too large", "give a smaller --size"] {
            assert!(outcome.err.contains(words), "{experiment}: {}", outcome.err);
        }
    }
    assert_eq!(directory.names(), Vec::<String>::new());
}

#[test]
fn a_report_replaces_nothing_that_is_not_its_own() {
    let directory = Directory::new("own");
    let page = directory.path().join("diary.html");
    fs::write(&page, "dear diary").expect("it is our directory");
    let name = page.to_str().expect("readable name");
    refused(
        &["report", directory.text(), "--quick", "--out", name],
        3,
        &[name, "not written by this program"],
    );
    assert_eq!(fs::read_to_string(&page).expect("readable"), "dear diary");
    let lost = directory.path().join("none/page.html");
    refused(
        &["report", directory.text(), "--quick", "--out", lost.to_str().expect("readable name")],
        3,
        &["does not exist"],
    );
    assert_eq!(directory.names(), ["diary.html"]);
}

/// Regression: the exit code was 1, that of a measurement that failed.
#[test]
fn a_path_that_is_not_utf_8() {
    use std::os::unix::ffi::OsStrExt as _;

    let directory = Directory::new("bytes");
    let inner = directory.path().join(std::ffi::OsStr::from_bytes(b"a\xff"));
    fs::create_dir(&inner).expect("it is our directory");
    let output = forebay(&["measure", "scan", "--quick"]).arg(&inner).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not UTF-8"), "{output:?}");
}

/// Regression: no run and no doctor named the files of a run that SIGKILL ended.
#[test]
fn leftovers_of_a_killed_run_are_named() {
    let directory = Directory::new("leftovers");
    // No process has this number: the largest of a kernel is 4,194,304.
    let left = directory.file(".forebay-measure-4194305-7.tmp", 4096);
    let outcome = run(&["doctor", directory.text()]);
    assert!(outcome.out.contains("degraded    leftovers"), "{}", outcome.out);
    assert!(outcome.out.contains(".forebay-measure-4194305-7.tmp"), "{}", outcome.out);
    // The next measurement says so before anything can fail.
    let outcome = run(&["measure", "scan", directory.text(), "--memory", "1"]);
    assert!(
        outcome.err.contains("a run that was killed left .forebay-measure-4194305-7.tmp"),
        "{}",
        outcome.err
    );
    assert!(left.exists());
}
