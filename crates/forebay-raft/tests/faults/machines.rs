//! What the nodes run on: a network namespace and a disk for each, where they can be had.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The disk of a node, if it has one of its own.
const DISK_BYTES: u64 = 96 << 20;
const PORT: u16 = 7000;

/// Nodes' addresses and directories. Its end removes all of it.
pub(crate) struct Machines {
    dir: tempfile::TempDir,
    count: usize,
    /// The namespaces' common name; `None` where all nodes share the network of the test.
    network: Option<String>,
    /// The third number of all addresses.
    subnet: u8,
    has_disks: bool,
    ports: Vec<u16>,
}

/// Runs a program of the system; returns whether it did what it should.
fn run(program: &str, arguments: &[&str]) -> bool {
    let command = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    command.is_ok_and(|status| status.success())
}

fn ip(line: &str) -> bool {
    run("ip", &line.split(' ').collect::<Vec<_>>())
}

impl Machines {
    pub(crate) fn new(count: usize) -> Machines {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let ports = (0..count).map(|_| free_port()).collect();
        let (name, subnet) = free_network();
        let mut machines = Machines { dir, count, network: None, subnet, has_disks: false, ports };
        if machines.make_network(&name) {
            println!("each node has a network of its own");
        } else {
            println!("no network namespaces here (root, and the program ip): partitions are left out");
        }
        machines.has_disks = (0..count).all(|node| machines.make_disk(node));
        if !machines.has_disks {
            println!("no loop devices here (root, and mkfs.ext4): full disks are left out");
        }
        machines
    }

    fn make_network(&mut self, name: &str) -> bool {
        self.network = Some(name.to_owned());
        let bridge = format!("{name}b");
        let mut is_made = ip(&format!("link add {bridge} type bridge"))
            && ip(&format!("addr add {}/24 dev {bridge}", self.host()))
            && ip(&format!("link set {bridge} up"));
        for node in 0..self.count {
            let (space, outer) = (format!("{name}n{node}"), format!("{name}v{node}"));
            is_made = is_made
                && ip(&format!("netns add {space}"))
                && ip(&format!("link add {outer} type veth peer name eth0 netns {space}"))
                && ip(&format!("link set {outer} master {bridge} up"))
                && ip(&format!("-n {space} addr add {}/24 dev eth0", self.host_of(node)))
                && ip(&format!("-n {space} link set eth0 up"))
                && ip(&format!("-n {space} link set lo up"));
        }
        is_made = is_made && self.nodes_reach_each_other(name);
        if !is_made {
            self.remove_network();
        }
        is_made
    }

    /// A firewall may drop what goes over a bridge. Nothing listens yet, so a connection that arrives is refused.
    fn nodes_reach_each_other(&self, name: &str) -> bool {
        let connect = format!("echo > /dev/tcp/{}/{PORT}", self.host_of(0));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("{name}n1"), "timeout", "5", "bash", "-c", &connect]);
        command.env("LC_ALL", "C");
        command.output().is_ok_and(|done| String::from_utf8_lossy(&done.stderr).contains("refused"))
    }

    fn remove_network(&mut self) {
        if let Some(name) = self.network.take() {
            for node in 0..self.count {
                ip(&format!("netns del {name}n{node}"));
            }
            ip(&format!("link del {name}b"));
        }
    }

    fn make_disk(&self, node: usize) -> bool {
        let (image, dir) = (self.dir.path().join(format!("{node}.img")), self.dir_of(node));
        let file = fs::File::create(&image).expect("a file");
        file.set_len(DISK_BYTES).expect("room");
        fs::create_dir_all(&dir).expect("a directory");
        let (image, dir) = (image.to_string_lossy(), dir.to_string_lossy());
        run("mkfs.ext4", &["-q", "-m", "0", &image]) && run("mount", &["-o", "loop", &image, &dir])
    }

    fn host(&self) -> String {
        format!("10.213.{}.254", self.subnet)
    }

    fn host_of(&self, node: usize) -> String {
        format!("10.213.{}.{}", self.subnet, node + 1)
    }

    pub(crate) fn address(&self, node: usize) -> String {
        match self.network {
            Some(_) => format!("{}:{PORT}", self.host_of(node)),
            None => format!("127.0.0.1:{}", self.ports[node]),
        }
    }

    /// Returns the directory of a node, on its disk.
    pub(crate) fn dir_of(&self, node: usize) -> PathBuf {
        self.dir.path().join(node.to_string())
    }

    pub(crate) fn log_of(&self, node: usize) -> PathBuf {
        self.dir.path().join(format!("{node}.log"))
    }

    /// Returns a command that runs this test's program on a node.
    pub(crate) fn command(&self, node: usize) -> Command {
        let program = std::env::current_exe().expect("this program");
        match &self.network {
            None => Command::new(program),
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &format!("{name}n{node}")]).arg(program);
                command
            }
        }
    }

    pub(crate) fn has_network(&self) -> bool {
        self.network.is_some()
    }

    pub(crate) fn has_disks(&self) -> bool {
        self.has_disks
    }

    /// Lets packets from one node to another go nowhere; those of the other direction still arrive.
    pub(crate) fn cut(&self, from: usize, to: usize) {
        if let Some(name) = &self.network {
            assert!(
                ip(&format!("-n {name}n{from} route replace blackhole {}/32", self.host_of(to))),
                "a route"
            );
        }
    }

    /// Ends all cuts.
    pub(crate) fn heal(&self) {
        let Some(name) = &self.network else { return };
        for from in 0..self.count {
            for to in 0..self.count {
                // Most of them are not there.
                ip(&format!("-n {name}n{from} route del blackhole {}/32", self.host_of(to)));
            }
        }
    }

    /// Fills a node's disk, but for some blocks.
    pub(crate) fn fill(&self, node: usize) {
        let ballast = self.ballast(node);
        let _ = run("dd", &["if=/dev/zero", &format!("of={}", ballast.display()), "bs=64k"]);
        assert!(fs::metadata(&ballast).is_ok_and(|found| found.len() > 0), "the disk is full");
    }

    pub(crate) fn give_space_back(&self, node: usize) {
        let _ = fs::remove_file(self.ballast(node));
    }

    fn ballast(&self, node: usize) -> PathBuf {
        self.dir_of(node).join("ballast")
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        self.remove_network();
        for node in 0..self.count {
            // A process that was just killed may hold it for a moment.
            let (dir, begun) = (self.dir_of(node), Instant::now());
            while is_mounted(&dir) && !run("umount", &[&dir.to_string_lossy()]) {
                if begun.elapsed() > Duration::from_secs(20) {
                    run("umount", &["-l", &dir.to_string_lossy()]);
                    break;
                }
                std::thread::yield_now();
            }
        }
    }
}

fn is_mounted(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1) == dir.to_str())
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Returns a name and a subnet that no other network has, of this program or another.
fn free_network() -> (String, u8) {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let id = std::process::id();
    let used =
        Command::new("ip").args(["-4", "-o", "addr"]).output().map(|done| done.stdout).unwrap_or_default();
    let used = String::from_utf8_lossy(&used).into_owned();
    // Tests that begin at the same time look at neighbours.
    let mut candidates = (0..=255u8).map(|step| (id.wrapping_mul(16) + number) as u8 ^ step);
    let subnet = candidates.find(|subnet| !used.contains(&format!("10.213.{subnet}.")));
    (format!("fb{id:x}{number}"), subnet.expect("a free subnet"))
}
