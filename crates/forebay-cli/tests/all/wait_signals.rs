//! `forebay wait` and signals, in every phase: before the command is its program, while it runs, while the report is written, and
//! while it measures a process that it did not start. The command receives the signals that it would receive without `forebay
//! wait`, the report is written, and nothing is left.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::{Directory, Outcome, outcome, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Returns whether this user may measure with the tracepoints or with a cgroup; prints the reason where not.
fn may_measure() -> bool {
    let probe = run(&["wait", "--", "true"]);
    if probe.code == Some(5) {
        eprintln!("SKIPPED: {}", probe.err);
    }
    probe.code != Some(5)
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("process numbers are small")).expect("not zero")
}

fn signal_number(signal: Signal) -> i32 {
    signal.as_raw()
}

/// Returns the cgroups that a process of this number has left.
fn cgroups_of(maker: u32) -> Vec<String> {
    let mut found = Vec::new();
    let mut places = vec![Path::new("/sys/fs/cgroup").to_path_buf()];
    while let Some(place) = places.pop() {
        for entry in fs::read_dir(&place).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with(&format!("forebay-wait-{maker}-")) {
                    found.push(name);
                }
                places.push(entry.path());
            }
        }
    }
    found
}

/// Gives the signals their default actions. A shell starts background programs with SIGINT and SIGQUIT
/// ignored, and then the command that receives one would ignore it, too.
fn with_own_signals(mut command: Command) -> Command {
    let reset = || {
        for signal in [Signal::INT, Signal::QUIT, Signal::TERM, Signal::HUP] {
            // SAFETY: sets the default action in this process, which may be done between fork and exec.
            unsafe { libc::signal(signal.as_raw(), libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: see the closure; it allocates nothing and acquires no lock.
    unsafe { command.pre_exec(reset) };
    command
}

fn program(arguments: &[&str]) -> Command {
    with_own_signals(crate::support::forebay(arguments))
}

/// Waits for the end; no cgroup may be left.
fn ended(child: Child) -> Outcome {
    let maker = child.id();
    let ended = outcome(&child.wait_with_output().expect("it ends"));
    assert_eq!(cgroups_of(maker), Vec::<String>::new(), "{}", ended.err);
    ended
}

/// Starts `forebay wait` with this shell script. Returns once the script has written its first line.
fn started(script: &str) -> Child {
    let mut child = program(&["wait", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut byte = [0];
    while byte[0] != b'\n' {
        child.stdout.as_mut().expect("piped").read_exact(&mut byte).expect("the script says that it runs");
    }
    child
}

/// Makes `signal` pending before the program's first instruction: the earliest possible arrival.
fn with_pending(mut command: Command, signal: Signal) -> Command {
    let number = signal_number(signal);
    let pend = move || {
        // SAFETY: a set of signals is plain bits, of which all 0 is a valid one; the calls only change this process and
        // may be made between fork and exec.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&raw mut set, number);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            libc::kill(libc::getpid(), number);
        }
        Ok(())
    };
    // SAFETY: see the closure; it allocates nothing and acquires no lock.
    unsafe { command.pre_exec(pend) };
    command
}

#[test]
fn a_signal_while_it_runs_ends_the_command_and_is_in_the_report() {
    if !may_measure() {
        return;
    }
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let child = started("echo ready; exec sleep 600");
        kill_process(pid(&child), signal).expect("it runs");
        let outcome = ended(child);
        let number = signal_number(signal);
        assert_eq!(outcome.code, Some(128 + number), "{}", outcome.err);
        assert!(outcome.err.contains(&format!("which signal {number} ended")), "{}", outcome.err);
        assert!(outcome.err.contains("full wait"), "{}", outcome.err);
    }
}

#[test]
fn a_command_that_handles_a_signal_ends_in_its_own_way() {
    if !may_measure() {
        return;
    }
    let child = started("trap 'exit 7' TERM; echo ready; while :; do sleep 0.02; done");
    kill_process(pid(&child), Signal::TERM).expect("it runs");
    let outcome = ended(child);
    assert_eq!(outcome.code, Some(7), "{}", outcome.err);
    assert!(outcome.err.contains("which ended with code 7"), "{}", outcome.err);
}

/// Regression: a signal that arrived while the BPF programs were loaded was consumed by a handler in the forked child, or counted
/// as one that the terminal had sent to a command that did not exist yet, and the command ran on.
#[test]
fn a_signal_before_the_command_is_its_program_ends_it_there() {
    if !may_measure() {
        return;
    }
    let directory = Directory::new("early");
    let mark = directory.path().join("ran");
    let script = format!("touch '{}'; exec sleep 600", mark.display());
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut command = with_pending(program(&["wait", "--", "sh", "-c", &script]), signal);
        let child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
        let outcome = ended(child);
        assert_eq!(outcome.code, Some(128 + signal_number(signal)), "{}", outcome.err);
        assert!(outcome.err.contains("nothing was measured"), "{}", outcome.err);
        assert!(!mark.exists(), "the command ran all the same");
    }
}

#[test]
fn a_signal_while_the_report_is_written_does_not_cut_it_off() {
    if !may_measure() {
        return;
    }
    // More than a pipe holds, so that the write is still in progress when its first byte arrives here.
    let directory = Directory::new("late");
    for number in 0..400 {
        directory.file(&format!("file-{number}"), 10);
    }
    let script = format!("cat '{}'/* >/dev/null", directory.text());
    let mut child = program(&["wait", "--json", "--", "sh", "-c", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut text = vec![0];
    let mut out = child.stdout.take().expect("piped");
    out.read_exact(&mut text).expect("the report begins");
    for signal in [Signal::TERM, Signal::INT] {
        kill_process(pid(&child), signal).expect("it is still writing, or not yet waited for");
    }
    out.read_to_end(&mut text).expect("it can be read");
    let outcome = ended(child);
    assert_eq!(outcome.code, Some(0), "the command ended well: {}", outcome.err);
    let value: Value = serde_json::from_slice(&text).expect("it is whole");
    assert_eq!(value["kind"], "wait");
}

/// A key sends the signal to the whole foreground, so passing it on would send it twice.
#[test]
fn ctrl_c_reaches_the_command_once() {
    if !may_measure() {
        return;
    }
    let directory = Directory::new("terminal");
    let count = directory.path().join("count");
    let script = format!(
        "trap 'echo x >>\"{0}\"' INT; echo ready; while [ ! -s '{0}' ]; do sleep 0.02; done; sleep 0.3; exit 7",
        count.display()
    );
    let json = directory.path().join("wait.json");
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    // `exec`, because a shell in between is in the foreground, too, and ends by the key.
    let whole = format!(
        "exec {} wait --json={} -- sh -c {}",
        quoted(env!("CARGO_BIN_EXE_forebay")),
        quoted(json.to_str().expect("readable name")),
        quoted(&script)
    );
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &whole, "/dev/null"]);
    let terminal = with_own_signals(terminal).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut terminal) = terminal else {
        eprintln!("SKIPPED: there is no program `script`, which makes a terminal");
        return;
    };
    let mut keys = terminal.stdin.take().expect("piped");
    let mut lines = BufReader::new(terminal.stdout.take().expect("piped")).lines();
    let ready = lines.by_ref().map_while(Result::ok).any(|line| line.trim() == "ready");
    assert!(ready, "the command never began");
    keys.write_all(b"\x03").expect("the terminal takes it");
    lines.for_each(drop);
    assert_eq!(terminal.wait().expect("it ends").code(), Some(7));
    assert_eq!(fs::read_to_string(&count).expect("it came"), "x\n", "once");
    let value: Value = serde_json::from_str(&fs::read_to_string(&json).expect("the report")).expect("whole");
    assert_eq!(value["exit_code"], 7);
}

/// Starts a process that waits for its standard input to end.
fn waiting() -> Child {
    Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("cat starts")
}

#[test]
fn a_signal_ends_the_watching_and_not_the_process_that_is_watched() {
    if !may_measure() {
        return;
    }
    for signal in [Signal::INT, Signal::TERM] {
        let mut watched = waiting();
        let number = watched.id().to_string();
        let arguments = ["wait", "--pid", &number, "--seconds", "3600"];
        let child = with_pending(program(&arguments), signal).stderr(Stdio::piped()).spawn();
        let outcome = ended(child.expect("the program starts"));
        if outcome.code == Some(5) {
            eprintln!("SKIPPED: {}", outcome.err);
        } else {
            assert_eq!(outcome.code, Some(0), "{}", outcome.err);
            assert!(outcome.err.contains("ended before the time was up"), "{}", outcome.err);
        }
        assert_eq!(watched.try_wait().expect("it is ours"), None, "it runs on");
        drop(watched.stdin.take());
        assert!(watched.wait().expect("it ends").success());
    }
}

#[test]
fn watching_a_process_that_ends_at_once_ends_with_it() {
    if !may_measure() {
        return;
    }
    let mut watched = waiting();
    let number = watched.id().to_string();
    let child = program(&["wait", "--pid", &number, "--seconds", "3600"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // Before, while or after the programs are loaded.
    drop(watched.stdin.take());
    assert!(watched.wait().expect("it ends").success());
    let outcome = ended(child);
    let expected = match outcome.code {
        Some(0) => "the process ended before the time was up",
        Some(2) => "there is no process",
        _ => "run as root",
    };
    assert!(outcome.err.contains(expected), "{:?}: {}", outcome.code, outcome.err);
}

/// Processes that a command leaves behind continue to run, and keep no cgroup.
#[test]
fn a_process_that_the_command_left_behind_keeps_nothing() {
    if !may_measure() {
        return;
    }
    let directory = Directory::new("left");
    let number = directory.path().join("number");
    let script = format!("sleep 600 >/dev/null 2>&1 & echo $! >'{}'", number.display());
    let child = program(&["wait", "--", "sh", "-c", &script])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let outcome = ended(child);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let left = fs::read_to_string(&number).expect("the script wrote it").trim().parse().expect("a number");
    let left = Pid::from_raw(left).expect("not zero");
    kill_process(left, Signal::KILL).expect("it runs on");
}
