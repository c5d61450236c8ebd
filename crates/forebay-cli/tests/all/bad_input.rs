//! Mistakes in the input of every experiment: nonsensical values, unusable places, results of other versions, and Ctrl-C at any
//! moment. Each results in a clear sentence, an exit code, and no leftover.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use crate::support::{Directory, Outcome, begun, forebay, interrupt, outcome, run};
use forebay_test::children::SIGINT;
use rustix::process::geteuid;
use serde_json::{Value, json};

/// Those of the help, and parts under their own names.
const EXPERIMENTS: [&str; 11] = [
    "scan",
    "random",
    "saturate",
    "cpu",
    "wal",
    "blocking",
    "walk",
    "writes",
    "sustain",
    "amplification",
    "files",
];
/// The parts among them, which the help leaves out.
const PARTS: [&str; 4] = ["random", "saturate", "cpu", "sustain"];
/// Experiments whose path may be a file, which is only read.
const READERS: [&str; 4] = ["scan", "random", "saturate", "cpu"];
const NOWHERE: &str = "/no/such/path/for/forebay";
/// Texts that are invalid for every count or measure.
const ABSURD: [&str; 10] =
    ["", "0", "-1", "many", "5 parsecs", "NaN", "inf", "1e400", "99999999999999999999999", "1,,2"];

/// Returns the options of an experiment that have a value, parsed from its help: their names, and the names of the values.
fn options(experiment: &str) -> Vec<(String, String)> {
    let help = run(&["measure", experiment, "--help"]).out;
    let of_line = |line: &str| {
        let (name, value) = line.trim().strip_prefix("--")?.split_once(' ')?;
        let value = value.trim().strip_prefix('<')?.split('>').next()?;
        Some((format!("--{name}"), value.to_owned()))
    };
    help.lines().filter_map(of_line).collect()
}

#[test]
fn every_experiment_is_covered() {
    let names = run(&["measure", "--help"]).out;
    let listed = names.lines().skip_while(|line| !line.starts_with("Commands")).skip(1);
    let mut listed: Vec<&str> = listed
        .take_while(|line| !line.trim().is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    // Experiments missing here have tests of their own for this.
    listed.retain(|name| EXPERIMENTS.contains(name));
    let known = EXPERIMENTS.into_iter().filter(|name| !PARTS.contains(name));
    assert_eq!(listed, known.collect::<Vec<_>>(), "{names}");
}

#[test]
fn values_that_make_no_sense() {
    let mut covered = 0;
    for experiment in EXPERIMENTS {
        for (option, value) in options(experiment) {
            // Names of files and hosts are tested elsewhere.
            if value.starts_with("HOST") || value.starts_with("FILE") || option == "--namespace" {
                continue;
            }
            for absurd in ABSURD {
                let argument = format!("{option}={absurd}");
                let outcome = run(&["measure", experiment, NOWHERE, &argument, "--quiet"]);
                // A zero seed is not a mistake, and zero as the load means no open loop.
                let may_be_zero =
                    option == "--seed" || (experiment, option.as_str()) == ("saturate", "--load");
                if absurd == "0" && may_be_zero {
                    assert_eq!(outcome.code, Some(3), "{experiment} {argument}: {}", outcome.err);
                    continue;
                }
                covered += 1;
                assert_eq!(outcome.code, Some(2), "{experiment} {argument}: {}{}", outcome.out, outcome.err);
                assert!(outcome.err.contains(&option), "{experiment} {argument}: {}", outcome.err);
                assert!(outcome.out.is_empty() && !outcome.err.contains("panicked"), "{}", outcome.err);
            }
        }
    }
    assert!(covered > 500, "{covered}: the help was not understood");
}

/// Sizes that can be written down but that no disk has: no sum of them overflows.
#[test]
fn sizes_beyond_every_disk() {
    let directory = Directory::new("beyond");
    for experiment in EXPERIMENTS {
        let sizes =
            options(experiment).into_iter().any(|(option, value)| option == "--size" && value == "BYTES");
        if !sizes || experiment == "files" {
            continue;
        }
        for size in ["8000TiB", "7800000TiB"] {
            let outcome = run(&["measure", experiment, directory.text(), "--quiet", "--size", size]);
            assert_eq!(outcome.code, Some(4), "{experiment} {size}: {}{}", outcome.out, outcome.err);
            assert!(outcome.err.contains("free"), "{experiment} {size}: {}", outcome.err);
        }
        assert_eq!(directory.names(), Vec::<String>::new(), "{experiment}");
    }
    let memory = run(&["measure", "scan", directory.text(), "--quiet", "--memory", "7800000TiB"]);
    assert_eq!(memory.code, Some(4), "{}", memory.err);
}

/// Runs the program as a user without any permission here. `None` where this cannot be tried.
fn as_unprivileged(arguments: &[&str]) -> Option<Outcome> {
    let mut command = forebay(arguments);
    if geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    // That user may have no access to the build directory.
    command.output().ok().map(|output| outcome(&output))
}

#[test]
fn folders_that_this_user_may_not_write_to() {
    let directory = Directory::new("closed");
    let closed = directory.path().join("closed");
    fs::create_dir(&closed).expect("it is our directory");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).expect("it is ours");
    let name = closed.to_str().expect("readable name");
    for experiment in EXPERIMENTS {
        let Some(outcome) = as_unprivileged(&["measure", experiment, name, "--quick", "--quiet"]) else {
            return;
        };
        assert_eq!(outcome.code, Some(3), "{experiment}: {}{}", outcome.out, outcome.err);
        assert!(outcome.err.contains(name) && outcome.err.contains("ermission denied"), "{}", outcome.err);
    }
    let page = closed.join("page.html");
    let page = page.to_str().expect("readable name");
    for arguments in [
        &["report", name, "--quick", "--quiet", "--out", page][..],
        &["report", name, "--quick", "--quiet", "--out", "/dev/null"],
    ] {
        let Some(outcome) = as_unprivileged(arguments) else { return };
        assert!(matches!(outcome.code, Some(2 | 3)), "{arguments:?}: {}{}", outcome.out, outcome.err);
        assert!(outcome.err.starts_with("forebay: "), "{arguments:?}: {}", outcome.err);
    }
    // An agent reports to its controller.
    let Some(outcome) = as_unprivileged(&["agent", "--stdio", name]) else { return };
    assert_eq!(outcome.code, Some(3), "{}{}", outcome.out, outcome.err);
    assert!(outcome.out.contains(r#"{"lost":{"why":""#), "{}", outcome.out);
    assert_eq!(fs::read_dir(&closed).expect("readable").count(), 0);
}

#[test]
fn files_that_this_user_may_not_read() {
    let directory = Directory::new("secret");
    let file = directory.file("data", 40 << 20);
    let mode = if geteuid().is_root() { 0o600 } else { 0o000 };
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("it is ours");
    let name = file.to_str().expect("readable name");
    for experiment in READERS {
        let Some(outcome) = as_unprivileged(&["measure", experiment, name, "--quiet"]) else { return };
        assert_eq!(outcome.code, Some(3), "{experiment}: {}{}", outcome.out, outcome.err);
        assert!(outcome.err.contains("may not be used by this user"), "{}", outcome.err);
    }
    assert_eq!(directory.names(), ["data"]);
}

#[test]
fn things_that_are_no_storage() {
    let directory = Directory::new("things");
    let socket = directory.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("it is our directory");
    let socket = socket.to_str().expect("readable name");
    for experiment in EXPERIMENTS {
        for thing in ["/dev/null", "/dev/zero", "/dev/tty", socket] {
            let permissions: [&[&str]; 2] = [&[], &["--overwrite", "--destroy-data"]];
            for permissions in permissions {
                let outcome = run(&[&["measure", experiment, thing, "--quiet"], permissions].concat());
                assert_eq!(outcome.code, Some(3), "{experiment} {thing}: {}{}", outcome.out, outcome.err);
                assert!(outcome.err.contains(thing), "{experiment}: {}", outcome.err);
            }
        }
    }
    for command in [&["report"][..], &["agent", "--stdio"], &["doctor"]] {
        let outcome = run(&[command, &[socket]].concat());
        assert!(matches!(outcome.code, Some(2 | 3)), "{command:?}: {}", outcome.err);
    }
    assert_eq!(directory.names(), ["socket"]);
}

/// A file with permission only to read is unchanged after any measurement.
#[test]
fn files_with_data_are_only_read() {
    let directory = Directory::new("data");
    let file = directory.file("data", 48 << 20);
    let before = fs::read(&file).expect("readable");
    let name = file.to_str().expect("readable name");
    for (experiment, more) in [
        ("saturate", &["--readers", "1,2", "--load", "0", "--seconds", "0.05", "--repeats", "1"][..]),
        ("cpu", &["--readers", "1", "--seconds", "0.05", "--repeats", "1", "--rows", "pread,io_uring"]),
    ] {
        let outcome = run(&[&["measure", experiment, name, "--quiet"], more].concat());
        assert_eq!(outcome.code, Some(0), "{experiment}: {}", outcome.err);
    }
    assert!(before == fs::read(&file).expect("readable"), "the file was changed");
    assert_eq!(directory.names(), ["data"]);
}

fn result(schema: u32, experiment: &str) -> Value {
    json!({
        "schema": schema, "forebay": "0.1.0",
        "experiments": [{ "name": experiment, "parameters": {}, "rows": [] }],
        "environment": {
            "time_unix_s": 1, "kernel": "Linux 6.18.0", "architecture": "x86_64", "cpus_allowed": 2, "cpus_online": 2,
            "virtual_machine": true, "memory_total_bytes": 1, "memory_available_bytes": 1, "optimized_build": true
        }
    })
}

#[test]
fn results_that_cannot_be_used() {
    let directory = Directory::new("results");
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).expect("it is our directory");
        path.to_str().expect("readable name").to_owned()
    };
    let good = write("good.json", &result(1, "scan").to_string());
    let other = write("other.json", &result(1, "random").to_string());
    let page = directory.path().join("page.html");
    let page = page.to_str().expect("readable name");
    let newer = write("newer.json", &result(7, "scan").to_string());
    let cut = write("cut.json", &result(1, "scan").to_string()[..60]);
    let empty = write("empty.json", "");
    let binary = write("binary.json", "");
    fs::write(&binary, [0xff, 0xfe, 0x00]).expect("it is our directory");
    let before = directory.names();
    for (file, code, words) in [
        (newer.as_str(), 2, "version 7 of the schema"),
        (&cut, 2, "cut off"),
        (&empty, 2, "is empty"),
        (&binary, 2, "is not text"),
        (NOWHERE, 3, "does not exist"),
        (directory.text(), 3, "cannot be used"),
    ] {
        for arguments in [
            &["diff", &good, file][..],
            &["diff", file, &good, "--json"],
            &["assert", file, "scan.direct.mb_per_s > 1"],
            &["convert", file],
            &["report", "--from", file, "--out", page],
        ] {
            let outcome = run(arguments);
            assert_eq!(outcome.code, Some(code), "{arguments:?}: {}{}", outcome.out, outcome.err);
            assert!(outcome.err.contains(words) && outcome.out.is_empty(), "{arguments:?}: {}", outcome.err);
        }
    }
    for more in [&[][..], &["--json"]] {
        let outcome = run(&[&["diff", &good, &other], more].concat());
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(2), ""), "{}", outcome.err);
        assert!(outcome.err.contains("no experiment is in both"), "{}", outcome.err);
    }
    assert_eq!(directory.names(), before);
}

/// Interrupts the program where its progress has these words, and checks for leftovers.
fn interrupt_at(directory: &Directory, arguments: &[&str], words: &str) {
    interrupt(begun(&mut forebay(arguments), words), SIGINT);
    assert_eq!(directory.names(), Vec::<String>::new(), "{arguments:?} at {words:?}");
}

/// While the file is created, while samples run, and between experiments of a report.
#[test]
fn ctrl_c_in_every_phase_leaves_nothing() {
    for experiment in EXPERIMENTS {
        let directory = Directory::new("phases");
        let mut arguments = vec!["measure", experiment, directory.text()];
        // Never over before the signal: the number of repeats is too large to complete. At least the minimum of each experiment.
        match experiment {
            "scan" | "random" => arguments.extend(["--memory", "32MiB", "--size", "48MiB"]),
            "saturate" | "cpu" | "walk" | "writes" | "sustain" | "amplification" => {
                arguments.extend(["--size", "16MiB"]);
            }
            _ => arguments.push("--quick"),
        }
        arguments.extend(["--repeats", "1000"]);
        interrupt_at(&directory, &arguments, &format!("measure {experiment}"));
        if !["wal", "blocking", "files", "amplification"].contains(&experiment) {
            interrupt_at(&directory, &arguments, "...");
        }
    }
    let directory = Directory::new("report-phases");
    let page = directory.path().join("page.html");
    let page = page.to_str().expect("readable name");
    let arguments = ["report", directory.text(), "--quick", "--only", "files,patterns", "--out", page];
    for words in ["doctor", "experiment 1 of 2", "measure patterns ..."] {
        interrupt_at(&directory, &arguments, words);
    }
}

/// Regression: a report that was ended after 13 of its experiments kept nothing of them.
#[test]
fn a_report_that_is_ended_keeps_what_was_measured() {
    let directory = Directory::new("ended");
    let page = directory.path().join("page.html");
    let name = page.to_str().expect("readable name");
    let arguments = ["report", directory.text(), "--quick", "--only", "files,patterns", "--out", name];
    interrupt(begun(&mut forebay(&arguments), "experiment 2 of 2"), SIGINT);
    assert_eq!(directory.names(), ["page.html"]);
    let text = fs::read_to_string(&page).expect("the page of the first one");
    assert!(text.contains("Random pieces of"), "the first one");
    assert!(text.contains("<code>files</code> was left out: the run was ended before it"), "the second one");
    // Parts of an experiment are kept in the JSON.
    let json = directory.path().join("reads.json");
    let destination = format!("--json={}", json.display());
    let rows = ["--quick", "--size", "48MiB", "--rows", "direct,classes", destination.as_str()];
    let arguments = [&["measure", "reads", directory.text()][..], &rows].concat();
    interrupt(begun(&mut forebay(&arguments), "measure fairness"), SIGINT);
    let kept: Value =
        serde_json::from_str(&fs::read_to_string(&json).expect("the first part")).expect("JSON");
    assert_eq!(kept["left_out"]["fairness"], "the run was ended before it", "{kept}");
    assert_eq!(kept["experiments"][0]["name"], "random", "{kept}");
}
