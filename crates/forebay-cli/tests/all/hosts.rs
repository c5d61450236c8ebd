//! Several agents and a controller on this host: the measurements, the refusals, and no leftovers after the death of any process. A
//! script stands in for ssh.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Directory, Outcome, TestProcess, begun, document, forebay, outcome, run, tail};
use forebay_test::children::end_with_parent;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Large enough for the names of an unoptimised program's functions, which the engine looks up when a task holds its shard for
/// long: on a busy machine the measuring child was ended for want of memory.
const SMALL: [&str; 4] = ["--memory", "64MiB", "--size", "72MiB"];
/// Text of a controller whose first sample has started.
const MEASURES: &str = "measure random on";
/// Long enough for any machine; only a failing test waits that long.
const LONG: Duration = Duration::from_secs(60);

/// Runs the words after HOST in a shell, as ssh does on HOST. The process becomes the agent.
const SSH: &str = r#"host=$1; shift; echo $$ >"$0.$host"; eval "exec $*""#;
/// The same, with the agent behind a process that passes its input on, as ssh and sshd do. Without its
/// connection the agent lives on.
const RELAY: &str = r#"exec 2>/dev/null; host=$1; shift
sh -c 'echo $$ >"$1"; exec cat' sh "$0.relay-$host" | sh -c "echo \$\$ >'$0.$host'; exec $*""#;

/// Hosts node-1, node-2 .. with a directory each.
struct Cluster {
    home: Directory,
    directories: Vec<Directory>,
}

impl Cluster {
    fn new(count: usize) -> Self {
        Self::with_ssh(count, SSH)
    }

    fn with_ssh(count: usize, text: &str) -> Self {
        let cluster = Self {
            home: Directory::new("ssh"),
            directories: (0..count).map(|_| Directory::new("agent")).collect(),
        };
        cluster.script("ssh", text);
        cluster
    }

    /// Creates a program and returns its path.
    fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("it is our directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        path
    }

    /// Returns the name of a host, counted from 1, as the option `--hosts` has it.
    fn name(&self, host: usize) -> String {
        format!("node-{host}:{}", self.directories[host - 1].text())
    }

    /// Returns a command that measures on hosts of these names.
    fn measure(&self, experiment: &str, hosts: &str, arguments: &[&str]) -> Command {
        let mut command = forebay(&["measure", experiment, "--hosts", hosts]);
        command.arg("--ssh").arg(self.home.path().join("ssh"));
        if !arguments.contains(&"--agent") {
            command.args(["--agent", env!("CARGO_BIN_EXE_forebay")]);
        }
        command.args(arguments);
        command
    }

    /// Measures on all hosts to the end.
    fn run(&self, experiment: &str, arguments: &[&str]) -> Outcome {
        self.run_on(&self.names(), experiment, arguments)
    }

    fn run_on(&self, hosts: &str, experiment: &str, arguments: &[&str]) -> Outcome {
        outcome(&self.measure(experiment, hosts, arguments).output().expect("the program starts"))
    }

    fn names(&self) -> String {
        (1..=self.directories.len()).map(|host| self.name(host)).collect::<Vec<_>>().join(",")
    }

    /// Starts a controller that measures until it is stopped. Returns after its first sample has started on all hosts.
    fn endless(&self) -> TestProcess {
        let mut arguments = vec!["--seconds", "600", "--depth", "1", "--rows", "direct-pread"];
        arguments.extend(SMALL);
        begun(&mut self.measure("random", &self.names(), &arguments), MEASURES)
    }

    /// Sends a signal to the agent of a host, or to `relay-node-2`.
    fn signal(&self, process: &str, signal: Signal) {
        let text = fs::read_to_string(self.home.path().join(format!("ssh.{process}"))).expect("it has begun");
        let id = text.trim().parse().ok().and_then(Pid::from_raw).expect("a number");
        kill_process(id, signal).expect("it is ours");
    }

    /// Waits until the directories of all hosts are empty.
    fn emptied(&self) {
        self.directories.iter().for_each(|directory| emptied(directory.path()));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // An agent that a failed test left stopped removes its file.
        for host in 1..=self.directories.len() {
            let text = fs::read_to_string(self.home.path().join(format!("ssh.node-{host}"))).ok();
            if let Some(id) = text.and_then(|text| text.trim().parse().ok()).and_then(Pid::from_raw) {
                let _ = kill_process(id, Signal::CONT);
            }
        }
    }
}

/// Waits for the end of a command that fails, and returns its last lines.
fn failed((mut child, lines): TestProcess) -> String {
    let text: Vec<String> = lines.map_while(Result::ok).collect();
    let text = text.join("\n");
    assert_eq!(child.wait().expect("it ends").code(), Some(1), "{text}");
    text
}

/// Waits until a directory is empty: the measuring process empties it when it notices the end.
fn emptied(directory: &Path) {
    let begun = Instant::now();
    while let Some(left) = fs::read_dir(directory).expect("it exists").next() {
        assert!(begun.elapsed() < LONG, "left behind: {left:?}");
        std::thread::yield_now();
    }
}

fn row<'a>(experiment: &'a Value, name: &str) -> &'a Value {
    let rows = experiment["rows"].as_array().expect("rows");
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row {name}: {experiment}"))
}

fn number(row: &Value, metric: &str) -> f64 {
    row["samples"][0][metric].as_f64().unwrap_or_else(|| panic!("no {metric}: {row}"))
}

fn condition<'a>(row: &'a Value, name: &str) -> Option<&'a Value> {
    row["conditions"].as_array()?.iter().find(|condition| condition["name"] == name)
}

#[test]
fn three_agents_measure_together_and_add_up() {
    let cluster = Cluster::new(3);
    let mut arguments = vec!["--json", "--quiet", "--repeats", "1"];
    arguments.extend([
        "--seconds",
        "0.3",
        "--depth",
        "2",
        "--rows",
        "direct-pread,buffered,direct",
        "--seed",
        "5",
    ]);
    arguments.extend(SMALL);
    let outcome = cluster.run("random", &arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let experiments = value["experiments"].as_array().expect("a list");
    assert_eq!(experiments.len(), 2, "one for each span");
    for experiment in experiments {
        assert_eq!(experiment["parameters"]["hosts"].as_array().map(Vec::len), Some(3));
        for name in ["direct", "direct-pread", "buffered"] {
            let all = row(experiment, name);
            let alone: Vec<&Value> = (1..=3).map(|host| row(experiment, &format!("{name}@{host}"))).collect();
            let operations = |row: &Value| number(row, "iops") * number(row, "seconds");
            let sum: f64 = alone.iter().map(|row| operations(row)).sum();
            assert!((operations(all) / sum - 1.0).abs() < 1e-6, "{} is not {sum}", operations(all));
            let each = |metric: &str| alone.iter().map(|row| number(row, metric)).fold(0.0, f64::max);
            let slowest = alone.iter().map(|row| tail(row, "p99_9_us")).fold(0.0, f64::max);
            assert!(all["metrics"]["p99_9_us"].as_f64().is_none_or(|all| all <= slowest * 1.001), "{all}");
            assert!(number(all, "first_done_s") <= number(all, "last_done_s"), "{all}");
            assert!(number(all, "last_done_s") >= each("seconds"), "{all}");
            assert!(number(all, "start_skew_us") >= 0.0 && number(all, "clock_error_us") >= 0.0, "{all}");
            let counted = condition(all, "sums").expect("every row of all hosts has this gate");
            assert_eq!(counted["passed"], true, "{counted}");
            assert!(condition(all, "start_skew").is_some(), "{all}");
            assert!(all["histograms"]["latency"].is_string(), "{all}");
            for row in alone.iter().filter(|row| row["cache"] == "direct") {
                // Where a device has counters, they include the reads of all three agents: never less
                // than a host's own. More is rightly doubted.
                let device = condition(row, "device_bytes").expect("every host's row has this gate");
                let is_enough = device["value"].as_f64().is_none_or(|share| share >= 0.95);
                assert!(device["passed"] != false || is_enough, "{device}");
            }
        }
    }
    for directory in &cluster.directories {
        assert_eq!(directory.names(), Vec::<String>::new());
    }
    // Again on the same hosts: this time a table, of the other experiment.
    let mut arguments = vec!["--repeats", "1", "--rows", "default,mmap"];
    arguments.extend(SMALL);
    let outcome = cluster.run("scan", &arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    for words in ["default@3", "mmap@1", "last done s", "@2 is host 2 (node-2:"] {
        assert!(outcome.out.contains(words), "{words}: {}", outcome.out);
    }
    for directory in &cluster.directories {
        assert_eq!(directory.names(), Vec::<String>::new());
    }
}

/// SIGKILL leaves the victim's own file, as with any other command that measures.
#[test]
fn an_agent_that_is_killed_is_named_and_the_others_stop() {
    let cluster = Cluster::new(3);
    let (child, lines) = cluster.endless();
    for directory in &cluster.directories {
        assert_eq!(directory.names().len(), 1, "it measures a file of its own");
    }
    cluster.signal("node-2", Signal::KILL);
    let stderr = failed((child, lines));
    let name = format!("host 2 ({}) was lost", cluster.name(2));
    assert!(stderr.contains(&name) && stderr.contains("the others were stopped"), "{stderr}");
    assert!(stderr.contains("signal: 9"), "how the agent ended: {stderr}");
    emptied(cluster.directories[0].path());
    emptied(cluster.directories[2].path());
    // The hosts serve the next controller.
    let mut arguments = vec!["--repeats", "1", "--rows", "direct-large"];
    arguments.extend(SMALL);
    let outcome = cluster.run("scan", &arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
}

#[test]
fn a_connection_that_is_cut_ends_the_measurement_on_both_sides() {
    let cluster = Cluster::with_ssh(3, RELAY);
    let (child, lines) = cluster.endless();
    cluster.signal("relay-node-2", Signal::KILL);
    let stderr = failed((child, lines));
    let name = format!("host 2 ({}) was lost", cluster.name(2));
    assert!(stderr.contains(&name) && stderr.contains("the others were stopped"), "{stderr}");
    cluster.emptied();
}

#[test]
fn an_agent_that_is_silent_is_named_and_the_others_stop() {
    let cluster = Cluster::with_ssh(2, RELAY);
    let (child, lines) = cluster.endless();
    cluster.signal("node-2", Signal::STOP);
    let stderr = failed((child, lines));
    let name = format!("host 2 ({}) was lost: no message arrived for 10 s", cluster.name(2));
    assert!(stderr.contains(&name) && stderr.contains("the others were stopped"), "{stderr}");
    emptied(cluster.directories[0].path());
    // When the host is back, its agent finds no controller.
    cluster.signal("node-2", Signal::CONT);
    cluster.emptied();
}

#[test]
fn agents_notice_a_controller_that_is_silent() {
    let cluster = Cluster::new(2);
    let (mut child, _lines) = cluster.endless();
    let id = Pid::from_raw(i32::try_from(child.id()).expect("small")).expect("not zero");
    kill_process(id, Signal::STOP).expect("it is our child");
    cluster.emptied();
    child.kill().expect("it is our child");
    child.wait().expect("it ends");
}

#[test]
fn a_controller_that_is_killed_ends_the_measurement() {
    let cluster = Cluster::new(2);
    let (mut child, _lines) = cluster.endless();
    child.kill().expect("it is our child");
    child.wait().expect("it ends");
    cluster.emptied();
}

#[test]
fn an_agent_that_is_stopped_by_a_signal_leaves_nothing() {
    let cluster = Cluster::new(1);
    let (child, lines) = cluster.endless();
    cluster.signal("node-1", Signal::TERM);
    let stderr = failed((child, lines));
    assert!(stderr.contains("exit status: 143"), "{stderr}");
    assert_eq!(cluster.directories[0].names(), Vec::<String>::new());
}

#[test]
fn other_versions_and_other_programs_are_refused() {
    let cluster = Cluster::new(1);
    let hello = r#"{"hello":{"program":"9.9.9\u001b[31m","facts":{},"more":[1]}}"#;
    for (name, text, words) in [
        ("other", &format!("echo '{hello}'; exec cat"), &["versions differ", "9.9.9"][..]),
        ("banner", &"echo Welcome; exec cat".to_owned(), &["a line that is not a message", "Welcome"]),
        ("long", &"exec tr '\\0' x </dev/zero".to_owned(), &["a line ended after 1048576 bytes"]),
        ("half", &"printf '{\"hel'".to_owned(), &["a line ended after 5 bytes", "exit status: 0"]),
    ] {
        let agent = cluster.script(name, text);
        let outcome = cluster.run("scan", &["--agent", agent.to_str().expect("readable")]);
        assert_eq!(outcome.code, Some(1), "{name}: {}", outcome.err);
        for words in [&["host 1 (node-1:"], words].concat() {
            assert!(outcome.err.contains(words), "{name}: {}", outcome.err);
        }
        assert!(!outcome.err.contains('\u{1b}'), "{}", outcome.err);
    }
    assert_eq!(cluster.directories[0].names(), Vec::<String>::new());
}

#[test]
fn the_path_is_that_of_hosts_without_a_directory() {
    let cluster = Cluster::new(2);
    let path = cluster.directories[0].path().join("it's a $HOME");
    fs::create_dir(&path).expect("it is our directory");
    let mut arguments = vec![path.to_str().expect("readable"), "--rows", "direct-pread", "--depth", "1"];
    arguments.extend(["--seconds", "600"]);
    arguments.extend(SMALL);
    let hosts = format!("node-1,me@[::1]:{}", cluster.directories[1].text());
    let (mut child, _lines) = begun(&mut cluster.measure("random", &hosts, &arguments), MEASURES);
    for directory in [&path, cluster.directories[1].path()] {
        assert_eq!(fs::read_dir(directory).expect("it exists").count(), 1, "{}", directory.display());
    }
    child.kill().expect("it is our child");
    child.wait().expect("it ends");
    emptied(&path);
    emptied(cluster.directories[1].path());
}

#[test]
fn agents_refuse_other_targets() {
    let directory = Directory::new("refused");
    let file = directory.file("data", 4096);
    let cases: [(&[&str], i32, &str); 4] = [
        (&["agent", "--stdio", file.to_str().expect("readable")], 3, "is not a directory"),
        (&["agent", "--stdio", "/no/such/path"], 3, "does not exist"),
        (&["agent", directory.text()], 2, "unexpected argument"),
        (&["agent"], 2, "--stdio"),
    ];
    for (arguments, code, words) in cases {
        let outcome = run(arguments);
        assert_eq!(outcome.code, Some(code), "{arguments:?}: {}", outcome.err);
        assert!((outcome.out + &outcome.err).contains(words), "{arguments:?}: {}", outcome.err);
    }
    let cluster = Cluster::new(1);
    for (host, more, code, words) in [
        ("a:/no/such/path", vec![], 3, "host 1 (a:/no/such/path): /no/such/path does not exist"),
        ("a", vec![file.to_str().expect("readable")], 3, "is not a directory"),
        ("a", vec!["--overwrite", "--destroy-data"], 2, "only temp files"),
        ("a", vec!["--hosts-file", "x"], 2, "cannot be used with"),
        ("a,a", vec![], 2, "named twice"),
        ("a,-oProxyCommand=x", vec![], 2, "is not a host"),
        ("a", vec!["--agent", "/no/such/forebay"], 1, "is forebay installed there?"),
        ("a", vec!["--agent", "/no/such/forebay"], 1, "exit status: 127"),
    ] {
        let outcome = cluster.run_on(host, "scan", &more);
        assert_eq!(outcome.code, Some(code), "{host} {more:?}: {}", outcome.err);
        assert!(outcome.err.contains(words), "{host} {more:?}: {}", outcome.err);
    }
    for (arguments, code, words) in [
        (&["--hosts", "a", "--ssh", "/no/such/ssh -p 1"][..], 1, "`/no/such/ssh -p 1 a forebay agent"),
        (&["--hosts", "a", "--ssh", "false"], 1, "host 1 (a) was lost"),
        (&["--ssh", "ssh"], 2, "--hosts"),
    ] {
        let outcome = run(&[&["measure", "scan"], arguments].concat());
        assert_eq!(outcome.code, Some(code), "{arguments:?}: {}", outcome.err);
        assert!(outcome.err.contains(words), "{arguments:?}: {}", outcome.err);
    }
    assert_eq!(directory.names(), ["data"]);
}

#[test]
fn a_host_without_space_is_named_with_the_code_of_one_host() {
    let cluster = Cluster::new(2);
    let outcome = cluster.run("scan", &["--memory", "32MiB", "--size", "8000TiB"]);
    assert_eq!(outcome.code, Some(4), "{}", outcome.err);
    assert!(outcome.err.contains("host ") && outcome.err.contains("free"), "{}", outcome.err);
    cluster.emptied();
}

#[test]
fn ranks_find_each_other_in_their_directory() {
    let directory = Directory::new("ranks");
    let start = |rank: u32| {
        let mut arguments =
            vec!["measure", "random", directory.text(), "--json", "--quiet", "--repeats", "1"];
        arguments.extend(["--seconds", "0.1", "--depth", "1", "--rows", "direct-pread"]);
        arguments.extend(SMALL);
        let mut command = forebay(&arguments);
        let size = "3";
        command.env("PMI_RANK", rank.to_string()).env("PMI_SIZE", size).env("PMI_JOBID", "a/job");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
    };
    let others = [start(1), start(2)];
    let first = outcome(&start(0).wait_with_output().expect("it ends"));
    assert_eq!(first.code, Some(0), "{}", first.err);
    let value = document(&first);
    for rank in 0..3 {
        let row = row(&value["experiments"][0], &format!("direct-pread@{rank}"));
        assert!(number(row, "iops") > 0.0, "{row}");
    }
    for other in others {
        let other = outcome(&other.wait_with_output().expect("it ends"));
        assert_eq!((other.code, other.out.as_str()), (Some(0), ""), "{}", other.err);
    }
    assert_eq!(directory.names(), Vec::<String>::new());
    let outcome = run(&["measure", "scan", directory.text(), "--mpi-like"]);
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.err.contains("SLURM_PROCID"), "{}", outcome.err);
}

/// Ranks of several hosts write one file, which the first one makes. Where the others do not see it, they say so.
#[test]
fn hosts_write_a_shared_file_and_one_each() {
    let cluster = Cluster::new(2);
    let mut arguments = vec!["--json", "--quiet", "--repeats", "1", "--size", "1MiB", "--block", "64KiB"];
    arguments.extend(["--rows", "shared-strided-sync,file-per-rank"]);
    let shared = cluster.directories[0].text();
    let outcome = cluster.run_on(&format!("node-1:{shared},node-2:{shared}"), "collective", &arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let experiment = &value["experiments"][0];
    assert_eq!(experiment["parameters"]["ranks"], 2);
    for name in ["shared-strided-sync", "file-per-rank"] {
        let all = row(experiment, name);
        let written = number(all, "mb_per_s") * 1e6 * number(all, "last_done_s");
        assert!((written / f64::from(2 << 20) - 1.0).abs() < 0.001, "{all}");
        assert!(number(row(experiment, &format!("{name}@2")), "mb_per_s") > 0.0);
    }
    cluster.emptied();

    let outcome = cluster.run("collective", &arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let skipped = row(&value["experiments"][0], "shared-strided-sync")["skipped"].to_string();
    assert!(skipped.contains("node-2") && skipped.contains("a directory that all ranks share"), "{skipped}");
    assert!(number(row(&value["experiments"][0], "file-per-rank"), "mb_per_s") > 0.0);
    cluster.emptied();
}

/// Network namespaces joined by a bridge, each a separate host in terms of the network; removed at the end.
struct Network {
    prefix: String,
    count: usize,
}

impl Network {
    /// Creates them; `None` where they cannot be created.
    fn new(count: usize) -> Option<Self> {
        let network = Self { prefix: format!("fb{}", std::process::id()), count };
        let bridge = network.name(0);
        let mut made = ip(&["netns", "add", &bridge])
            && ip(&["-n", &bridge, "link", "add", "br0", "type", "bridge"])
            && ip(&["-n", &bridge, "link", "set", "br0", "up"])
            && ip(&["-n", &bridge, "addr", "add", "10.77.0.1/24", "dev", "br0"]);
        for host in 1..=count {
            let (name, port) = (network.name(host), format!("port{host}"));
            let address = format!("10.77.0.{}/24", host + 1);
            made = made
                && ip(&["netns", "add", &name])
                && ip(&[
                    "-n", &bridge, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns",
                    &name,
                ])
                && ip(&["-n", &bridge, "link", "set", &port, "master", "br0", "up"])
                && ip(&["-n", &name, "addr", "add", &address, "dev", "eth0"])
                && ip(&["-n", &name, "link", "set", "eth0", "up"])
                && ip(&["-n", &name, "link", "set", "lo", "up"]);
        }
        made.then_some(network)
    }

    fn name(&self, host: usize) -> String {
        format!("{}-{host}", self.prefix)
    }

    /// Returns a command that runs a rank on each of the hosts, from 0.
    fn ranks(&self, arguments: &[&str]) -> Vec<Command> {
        let rank = |rank: usize| {
            let mut command = Command::new("ip");
            let name = self.name(rank + 1);
            command.args(["netns", "exec", &name, env!("CARGO_BIN_EXE_forebay")]).args(arguments);
            command.env("PMI_RANK", rank.to_string()).env("PMI_SIZE", self.count.to_string());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            end_with_parent(&mut command);
            command
        };
        (0..self.count).map(rank).collect()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in 0..=self.count {
            ip(&["netns", "del", &self.name(host)]);
        }
    }
}

fn ip(arguments: &[&str]) -> bool {
    Command::new("ip")
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[test]
fn ranks_on_other_hosts_of_a_network() {
    let Some(network) = Network::new(3) else {
        println!("skipped: network namespaces cannot be made here (they need root and iproute2)");
        return;
    };
    let directory = Directory::new("net");
    let mut arguments = vec!["measure", "random", directory.text(), "--depth", "1", "--rows", "direct-pread"];
    arguments.extend(SMALL);
    let short = [&arguments[..], &["--seconds", "0.2", "--json", "--quiet", "--repeats", "1"]].concat();
    let start = |command: &mut Command| command.spawn().expect("it starts");
    let ranks: Vec<Child> = network.ranks(&short).iter_mut().map(start).collect();
    let ended: Vec<Outcome> =
        ranks.into_iter().map(|rank| outcome(&rank.wait_with_output().expect("it ends"))).collect();
    for rank in &ended {
        assert_eq!(rank.code, Some(0), "{}", rank.err);
    }
    let value = document(&ended[0]);
    assert!(number(row(&value["experiments"][1], "direct-pread@2"), "iops") > 0.0);
    assert_eq!(directory.names(), Vec::<String>::new());

    // Cut off in the middle of a run: the end of a connection does not arrive from there, only silence.
    let endless = [&arguments[..], &["--seconds", "600"]].concat();
    let mut commands = network.ranks(&endless);
    let others: Vec<Child> = commands[1..].iter_mut().map(start).collect();
    let (child, lines) = begun(&mut commands[0], MEASURES);
    assert!(ip(&["-n", &network.name(2), "link", "set", "eth0", "down"]));
    let stderr = failed((child, lines));
    assert!(stderr.contains("rank 1 on ") && stderr.contains("was lost: no message arrived"), "{stderr}");
    for (other, words) in others.into_iter().zip(["the controller was lost", ""]) {
        let other = outcome(&other.wait_with_output().expect("it ends"));
        assert_eq!(other.code, Some(143), "{}", other.err);
        assert!(other.err.contains(words), "{}", other.err);
    }
    emptied(directory.path());
}
