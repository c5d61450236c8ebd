//! The demo of three members, ended before its time. Regression: its servers ended, and its directory was removed, when values were
//! dropped, which no signal does. Ctrl-C left 441 MB, and SIGTERM two servers that ran forever.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_test::children::{SIGINT, SIGKILL, SIGTERM, end_with_parent, signal};

/// Only a hang lasts so long.
const LONG: Duration = Duration::from_secs(60);

/// The demo, which `cargo test` builds next to the folder of this program.
fn demo() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let demo = own.ancestors().nth(2).unwrap().join("examples/demo_cluster");
    assert!(demo.exists(), "{}: cargo build -p forebay-etcd --example demo_cluster", demo.display());
    demo
}

/// Starts the demo with its directory below `place`, and returns once its members are processes.
fn start(place: &Path) -> Child {
    let mut command = Command::new(demo());
    command.arg(env!("CARGO_BIN_EXE_forebay-etcd")).env("TMPDIR", place);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = end_with_parent(&mut command).spawn().unwrap();
    // Its output stays open: it has more to say.
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let has_begun = lines.map_while(Result::ok).any(|line| line.starts_with("three members in "));
    assert!(has_begun, "it ended with {:?}", child.wait());
    // A process has no command line for a moment: its parent hears that it was started before its arguments are in place.
    until(|| servers(place).len() == 3, || format!("three members, and there are {:?}", servers(place)));
    child
}

fn until(is_so: impl Fn() -> bool, what: impl Fn() -> String) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "{}", what());
        std::thread::yield_now();
    }
}

/// Returns the command lines of processes with a directory below `place`.
fn servers(place: &Path) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| fs::read_to_string(process.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(place.to_str().unwrap())).collect()
}

#[test]
fn a_signal_leaves_neither_servers_nor_a_directory() {
    for number in [SIGINT, SIGTERM] {
        let place = tempfile::tempdir().unwrap();
        let mut child = start(place.path());
        signal(&child, number).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(servers(place.path()), Vec::<String>::new(), "signal {number}");
        let left: Vec<_> = fs::read_dir(place.path()).unwrap().collect();
        assert!(left.is_empty(), "signal {number}: {left:?}");
        assert_eq!(status.code(), Some(128 + number), "{status}");
    }
}

#[test]
fn the_servers_do_not_outlive_a_demo_that_was_killed() {
    let place = tempfile::tempdir().unwrap();
    let mut child = start(place.path());
    signal(&child, SIGKILL).unwrap();
    child.wait().unwrap();
    // The kernel kills them next.
    until(|| servers(place.path()).is_empty(), || format!("{:?} go on", servers(place.path())));
}
