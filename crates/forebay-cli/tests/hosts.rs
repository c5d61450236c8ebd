//! Several agents and a controller on this host: the measurements, the refusals, and no leftovers
//! whichever process dies.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Lines, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{Directory, Outcome, document, forebay, outcome, run, tail};

const SECRET: &str = "correct horse battery staple";
const SMALL: [&str; 4] = ["--memory", "32MiB", "--size", "40MiB"];
/// Long enough for any machine; only a failing test waits that long.
const LONG: Duration = Duration::from_secs(60);

/// A running agent, killed at the end.
struct Agent {
    child: Child,
    address: String,
    directory: Directory,
    #[allow(dead_code, reason = "kept open, or the agent could not say anything")]
    out: Lines<BufReader<ChildStdout>>,
}

impl Agent {
    fn start() -> Self {
        Self::start_with(&[], |_| {})
    }

    fn start_with(options: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let directory = Directory::new("agent");
        let mut arguments = vec!["agent", directory.text(), "--listen", "127.0.0.1:0"];
        arguments.extend(options);
        let mut command = with_secret(&arguments, SECRET);
        change(&mut command);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the program starts");
        let mut out = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let line = out.next().expect("it says where it listens").expect("readable");
        let address = line.rsplit(' ').next().expect("the address is last").to_owned();
        assert!(line.starts_with("forebay agent: serves "), "{line}");
        Self { child, address, directory, out }
    }

    fn signal(&self, signal: Signal) {
        let id = Pid::from_raw(i32::try_from(self.child.id()).expect("small")).expect("not zero");
        kill_process(id, signal).expect("it is our child");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn with_secret(arguments: &[&str], secret: &str) -> Command {
    let mut command = forebay(arguments);
    command.env("FOREBAY_SECRET", secret);
    command
}

/// Runs the controller to its end.
fn controller(arguments: &[&str], secret: &str) -> Outcome {
    outcome(&with_secret(arguments, secret).output().expect("the program starts"))
}

fn places(agents: &[Agent]) -> String {
    agents.iter().map(|agent| agent.address.as_str()).collect::<Vec<_>>().join(",")
}

/// Starts a controller that measures until it is stopped. Returns after its first sample has begun on
/// all hosts.
fn endless(hosts: &str) -> (Child, Lines<BufReader<ChildStderr>>) {
    let mut arguments = vec!["measure", "random", "--hosts", hosts, "--seconds", "600", "--depth", "1"];
    arguments.extend(["--rows", "direct-pread"]);
    arguments.extend(SMALL);
    let mut child = with_secret(&arguments, SECRET)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let begun = lines.by_ref().map_while(Result::ok).any(|line| line.contains("measure random on"));
    assert!(begun, "the measurement was not announced");
    (child, lines)
}

/// Waits until a directory is empty: the measuring process empties it when it notices the end.
fn emptied(directory: &Directory) {
    let begun = Instant::now();
    while !directory.names().is_empty() {
        assert!(begun.elapsed() < LONG, "left behind: {:?}", directory.names());
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
    let agents = [Agent::start(), Agent::start(), Agent::start()];
    let hosts = places(&agents);
    let mut arguments = vec!["measure", "random", "--hosts", &hosts, "--json", "--quiet", "--repeats", "1"];
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
    let outcome = controller(&arguments, SECRET);
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
    for agent in &agents {
        assert_eq!(agent.directory.names(), Vec::<String>::new());
    }
    // Again with the same agents: this time a table, of the other experiment.
    let mut arguments =
        vec!["measure", "scan", "--hosts", &hosts, "--repeats", "1", "--rows", "default,mmap"];
    arguments.extend(SMALL);
    let outcome = controller(&arguments, SECRET);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    for words in ["default@3", "mmap@1", "last done s", "@2 is host 2 (127.0.0.1:"] {
        assert!(outcome.out.contains(words), "{words}: {}", outcome.out);
    }
    for agent in &agents {
        assert_eq!(agent.directory.names(), Vec::<String>::new());
    }
}

#[test]
fn an_agent_that_is_killed_is_named_and_the_others_stop() {
    let mut agents = vec![Agent::start(), Agent::start(), Agent::start()];
    let hosts = places(&agents);
    let (mut child, lines) = endless(&hosts);
    for agent in &agents {
        assert_eq!(agent.directory.names().len(), 1, "it measures a file of its own");
    }
    let victim = &mut agents[1];
    victim.signal(Signal::KILL);
    victim.child.wait().expect("it is our child");
    let stderr: Vec<String> = lines.map_while(Result::ok).collect();
    let status = child.wait().expect("it ends");
    let stderr = stderr.join("\n");
    assert_eq!(status.code(), Some(1), "{stderr}");
    let name = format!("host 2 ({}) was lost", agents[1].address);
    assert!(stderr.contains(&name) && stderr.contains("the others were stopped"), "{stderr}");
    for agent in &agents {
        emptied(&agent.directory);
    }
    // The other agents serve the next controller.
    let hosts = format!("{},{}", agents[0].address, agents[2].address);
    let mut arguments =
        vec!["measure", "scan", "--hosts", &hosts, "--repeats", "1", "--rows", "direct-large"];
    arguments.extend(SMALL);
    let outcome = controller(&arguments, SECRET);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
}

#[test]
fn a_controller_that_is_killed_ends_the_measurement() {
    let agents = [Agent::start(), Agent::start()];
    let (mut child, _lines) = endless(&places(&agents));
    child.kill().expect("it is our child");
    child.wait().expect("it ends");
    for agent in &agents {
        emptied(&agent.directory);
    }
}

#[test]
fn an_agent_that_is_stopped_by_a_signal_leaves_nothing() {
    let mut agents = [Agent::start()];
    let (mut child, lines) = endless(&agents[0].address);
    agents[0].signal(Signal::TERM);
    let status = agents[0].child.wait().expect("it ends");
    assert_eq!(status.code(), Some(143));
    assert_eq!(agents[0].directory.names(), Vec::<String>::new());
    lines.for_each(drop);
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
}

#[test]
fn a_second_controller_is_refused_and_the_first_goes_on() {
    let agents = [Agent::start()];
    let hosts = &agents[0].address;
    let (mut child, _lines) = endless(hosts);
    let outcome = controller(&["measure", "scan", "--hosts", hosts, "--quiet"], SECRET);
    assert_eq!(outcome.code, Some(1));
    for words in [hosts.as_str(), "measuring for the controller at 127.0.0.1:", "one at a time"] {
        assert!(outcome.err.contains(words), "{words}: {}", outcome.err);
    }
    assert_eq!(child.try_wait().expect("it is our child"), None, "the first one was disturbed");
    assert_eq!(agents[0].directory.names().len(), 1);
    child.kill().expect("it is our child");
    child.wait().expect("it ends");
    emptied(&agents[0].directory);
}

#[test]
fn another_secret_none_and_a_bad_one_are_refused() {
    let agents = [Agent::start()];
    let arguments = ["measure", "scan", "--hosts", &agents[0].address, "--quiet"];
    let outcome = controller(&arguments, "another secret of some length");
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.err.contains("another secret"), "{}", outcome.err);
    let outcome = controller(&arguments, "short");
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.err.contains("5 bytes"), "{}", outcome.err);
    let without = run(&arguments);
    assert_eq!(without.code, Some(2));
    assert!(
        without.err.contains("--secret-file") && without.err.contains("FOREBAY_SECRET"),
        "{}",
        without.err
    );

    let directory = Directory::new("secret");
    let file = directory.path().join("secret");
    fs::write(&file, SECRET).expect("it is our directory");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("ours");
    let name = file.to_str().expect("readable name");
    let with_file = [&arguments[..], &["--secret-file", name]].concat();
    let outcome = run(&with_file);
    assert_eq!(outcome.code, Some(3));
    assert!(outcome.err.contains("chmod 600"), "{}", outcome.err);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("ours");
    let small = [&with_file[..], &SMALL, &["--repeats", "1", "--rows", "direct-large"]].concat();
    let outcome = run(&small);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
}

#[test]
fn agents_refuse_other_targets() {
    let directory = Directory::new("refused");
    let file = directory.file("data", 4096);
    let cases: [(&[&str], i32, &str); 4] = [
        (&["agent", file.to_str().expect("readable")], 3, "is no directory"),
        (&["agent", "/no/such/path"], 3, "does not exist"),
        (&["agent", directory.text(), "--listen", "somewhere"], 2, "--listen"),
        (&["agent", directory.text(), "--secret", "x"], 2, "--secret"),
    ];
    for (arguments, code, words) in cases {
        let outcome = controller(arguments, SECRET);
        assert_eq!(outcome.code, Some(code), "{arguments:?}: {}", outcome.err);
        assert!(outcome.err.contains(words), "{arguments:?}: {}", outcome.err);
    }
    let hosts = ["measure", "scan", "--hosts", "127.0.0.1:1"];
    for (more, code, words) in [
        (vec![directory.text()], 2, "leave out"),
        (vec!["--overwrite", "--destroy-data"], 2, "only temp files"),
        (vec!["--hosts-file", "x"], 2, "cannot be used with"),
        (vec![], 1, "no agent can be reached"),
    ] {
        let outcome = controller(&[&hosts[..], &more].concat(), SECRET);
        assert_eq!(outcome.code, Some(code), "{more:?}: {}", outcome.err);
        assert!(outcome.err.contains(words), "{more:?}: {}", outcome.err);
    }
    assert_eq!(directory.names(), ["data"]);
}

#[test]
fn a_host_without_space_is_named_with_the_code_of_one_host() {
    let agents = [Agent::start(), Agent::start()];
    let hosts = places(&agents);
    let outcome =
        controller(&["measure", "scan", "--hosts", &hosts, "--memory", "32MiB", "--size", "8000TiB"], SECRET);
    assert_eq!(outcome.code, Some(4), "{}", outcome.err);
    assert!(outcome.err.contains("host ") && outcome.err.contains("free"), "{}", outcome.err);
    for agent in &agents {
        emptied(&agent.directory);
    }
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

    /// Returns a command that runs the program on one of the hosts; host 0 has the controller.
    fn on(&self, host: usize, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(host), env!("CARGO_BIN_EXE_forebay")]).args(arguments);
        command.env("FOREBAY_SECRET", SECRET).stdin(Stdio::null());
        command
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
fn agents_on_other_hosts_of_a_network() {
    let Some(network) = Network::new(3) else {
        println!("skipped: network namespaces cannot be made here (they need root and iproute2)");
        return;
    };
    let directories = [Directory::new("net"), Directory::new("net"), Directory::new("net")];
    let mut agents: Vec<(Child, BufReader<ChildStdout>)> = (1..=3)
        .map(|host| {
            let listen = format!("10.77.0.{}:7317", host + 1);
            let mut child = network
                .on(host, &["agent", directories[host - 1].text(), "--listen", &listen])
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("it starts");
            let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
            let mut line = String::new();
            out.read_line(&mut line).expect("it says where it listens");
            assert!(line.trim_end().ends_with(&listen), "{line}");
            (child, out)
        })
        .collect();
    let hosts = "10.77.0.2,10.77.0.3,10.77.0.4";
    let mut arguments = vec!["measure", "random", "--hosts", hosts, "--json", "--quiet", "--repeats", "1"];
    arguments.extend(["--seconds", "0.2", "--depth", "1", "--rows", "direct-pread"]);
    arguments.extend(SMALL);
    let measured = outcome(&network.on(0, &arguments).output().expect("it starts"));
    assert_eq!(measured.code, Some(0), "{}", measured.err);
    let value = document(&measured);
    assert!(number(row(&value["experiments"][1], "direct-pread@3"), "iops") > 0.0);

    // Cut off in the middle of a run: the end of a connection does not arrive from there, only silence.
    arguments.extend(["--seconds", "600"]);
    arguments.retain(|argument| !matches!(*argument, "--quiet" | "0.2"));
    let first = arguments.iter().position(|argument| *argument == "--seconds").expect("it is there");
    arguments.remove(first);
    let mut child =
        network.on(0, &arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut errors = BufReader::new(child.stderr.take().expect("it is piped"));
    let mut line = String::new();
    while !line.contains("measure random on") {
        line.clear();
        assert!(errors.read_line(&mut line).expect("readable") > 0, "it ended early");
    }
    assert!(ip(&["-n", &network.name(2), "link", "set", "eth0", "down"]));
    let mut stderr = String::new();
    errors.read_to_string(&mut stderr).expect("readable");
    assert_eq!(child.wait().expect("it ends").code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("host 2 (10.77.0.3) was lost") && stderr.contains("no message arrived"),
        "{stderr}"
    );
    for directory in &directories {
        emptied(directory);
    }
    for (agent, _) in &mut agents {
        let _ = agent.kill();
        let _ = agent.wait();
    }
    assert!(Path::new(directories[0].text()).exists());
}
