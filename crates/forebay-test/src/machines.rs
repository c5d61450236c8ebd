//! Machines for the nodes of a cluster on this one: a network namespace and a disk for each, where they can be had.
//!
//! Networks need root and the program `ip`, disks need loop devices and `mkfs.ext4`, brakes a cgroup controller in addition to a
//! disk. Missing features are reported on standard output, and their faults do nothing. The next run removes the leftovers of
//! killed runs.

mod brake;
mod leftovers;
pub mod nodes;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use self::brake::Brakes;
use crate::ports::free_port;

/// The first port of a node that has a separate network.
const PORT: u16 = 7000;
/// The ports of a node.
const PORTS: usize = 2;
/// The part of the ballast that is written, and not only allocated, when a disk is filled.
const WRITTEN_BYTES: u64 = 8 << 20;
/// How long an unmount is tried: a process that was just killed may hold its disk for a moment.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(20);

/// Nodes' addresses and directories, which are removed when this is dropped.
#[derive(Debug)]
pub struct Machines {
    dir: tempfile::TempDir,
    count: usize,
    /// Common to all that is made for these machines, and unlike that of others.
    name: String,
    has_network: bool,
    /// The third number of all addresses.
    subnet: u8,
    has_disks: bool,
    brakes: Option<Brakes>,
    /// Ports of this machine, for nodes that share its network.
    ports: Vec<[u16; PORTS]>,
}

/// Runs a program of the system; returns whether it succeeded.
fn run(program: &str, arguments: &[&str]) -> bool {
    let command = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    command.is_ok_and(|status| status.success())
}

fn ip(line: &str) -> bool {
    run("ip", &line.split(' ').collect::<Vec<_>>())
}

impl Machines {
    /// Makes `count` machines, with disks of `disk_bytes` in a fresh directory below `parent`.
    ///
    /// # Errors
    /// `parent` has too little space, or no subnet is free.
    pub fn new(parent: &Path, count: usize, disk_bytes: u64) -> io::Result<Machines> {
        leftovers::remove(parent);
        let (name, subnet) = free_network()?;
        let dir = tempfile::Builder::new().prefix(&format!("{name}-")).tempdir_in(parent)?;
        let ports = (0..count).map(|_| [free_port(), free_port()]).collect();
        let mut machines =
            Machines { dir, count, name, has_network: false, subnet, has_disks: false, brakes: None, ports };
        machines.has_network = machines.make_network();
        if machines.has_network {
            println!("each node has a network of its own");
        } else {
            machines.remove_network();
            println!("no network namespaces here (root, and the program ip): partitions are left out");
        }
        machines.has_disks = true;
        for node in 0..count {
            machines.has_disks &= machines.make_disk(node, disk_bytes)?;
        }
        if machines.has_disks {
            let devices =
                (0..count).map(|node| device_of(&machines.dir_of(node))).collect::<Option<Vec<_>>>();
            machines.brakes = devices.and_then(|devices| Brakes::new(&machines.name, devices));
        } else {
            println!("no loop devices here (root, and mkfs.ext4): full disks are left out");
        }
        if machines.brakes.is_none() {
            println!(
                "no limits for devices here (a controller blkio or io of cgroups): slow disks are left out"
            );
        }
        Ok(machines)
    }

    fn make_network(&self) -> bool {
        let bridge = self.bridge();
        let mut is_made = ip(&format!("link add {bridge} type bridge"))
            && ip(&format!("addr add {}/24 dev {bridge}", self.host()))
            && ip(&format!("link set {bridge} up"));
        for node in 0..self.count {
            let (space, outer) = (self.space(node), format!("{}v{node}", self.name));
            is_made = is_made
                && ip(&format!("netns add {space}"))
                && ip(&format!("link add {outer} type veth peer name eth0 netns {space}"))
                && ip(&format!("link set {outer} master {bridge} up"))
                && ip(&format!("-n {space} addr add {}/24 dev eth0", self.host_of(node)))
                && ip(&format!("-n {space} link set eth0 up"))
                && ip(&format!("-n {space} link set lo up"));
        }
        is_made && self.nodes_reach_each_other()
    }

    /// A firewall may drop packets on a bridge. Nothing listens yet, so a connection that arrives is refused.
    fn nodes_reach_each_other(&self) -> bool {
        if self.count < 2 {
            return true;
        }
        let connect = format!("echo > /dev/tcp/{}/{PORT}", self.host_of(0));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(1), "timeout", "5", "bash", "-c", &connect]);
        command.env("LC_ALL", "C");
        command.output().is_ok_and(|done| String::from_utf8_lossy(&done.stderr).contains("refused"))
    }

    fn remove_network(&self) {
        for node in 0..self.count {
            ip(&format!("netns del {}", self.space(node)));
        }
        ip(&format!("link del {}", self.bridge()));
    }

    fn make_disk(&self, node: usize, bytes: u64) -> io::Result<bool> {
        let (image, dir) = (self.dir.path().join(format!("{node}.img")), self.dir_of(node));
        fs::File::create(&image)?.set_len(bytes)?;
        fs::create_dir_all(&dir)?;
        let (image, dir) = (image.to_string_lossy(), dir.to_string_lossy());
        Ok(run("mkfs.ext4", &["-q", "-m", "0", &image]) && run("mount", &["-o", "loop", &image, &dir]))
    }

    fn bridge(&self) -> String {
        format!("{}b", self.name)
    }

    fn space(&self, node: usize) -> String {
        format!("{}n{node}", self.name)
    }

    fn host(&self) -> String {
        format!("10.213.{}.254", self.subnet)
    }

    fn host_of(&self, node: usize) -> String {
        format!("10.213.{}.{}", self.subnet, node + 1)
    }

    /// Returns the address of a node's first (0) or second (1) port.
    pub fn address(&self, node: usize, port: usize) -> String {
        if self.has_network {
            format!("{}:{}", self.host_of(node), usize::from(PORT) + port)
        } else {
            format!("127.0.0.1:{}", self.ports[node][port])
        }
    }

    /// Returns the directory of a node, on its disk.
    pub fn dir_of(&self, node: usize) -> PathBuf {
        self.dir.path().join(node.to_string())
    }

    /// Returns the file for a node's outputs. It is not on its disk.
    pub fn log_of(&self, node: usize) -> PathBuf {
        self.dir.path().join(format!("{node}.log"))
    }

    /// Returns a command that runs a program on a node. The process has the program's number and no other.
    pub fn command(&self, node: usize, program: &Path) -> Command {
        if !self.has_network {
            return Command::new(program);
        }
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(node)]).arg(program);
        command
    }

    /// Returns whether nodes can be cut off from each other.
    pub fn has_network(&self) -> bool {
        self.has_network
    }

    /// Returns whether each node has a disk, which can be filled.
    pub fn has_disks(&self) -> bool {
        self.has_disks
    }

    /// Returns whether disks can be made slow.
    pub fn has_brakes(&self) -> bool {
        self.brakes.is_some()
    }

    /// Drops packets from one node to another; those of the other direction still arrive.
    ///
    /// # Errors
    /// `ip` fails, although it made the network.
    pub fn cut(&self, from: usize, to: usize) -> io::Result<()> {
        let route = format!("-n {} route replace blackhole {}/32", self.space(from), self.host_of(to));
        if !self.has_network || ip(&route) { Ok(()) } else { Err(io::Error::other(route)) }
    }

    /// Ends all cuts.
    pub fn heal(&self) {
        if !self.has_network {
            return;
        }
        for from in 0..self.count {
            for to in 0..self.count {
                // Most of them are not there.
                ip(&format!("-n {} route del blackhole {}/32", self.space(from), self.host_of(to)));
            }
        }
    }

    /// Fills a node's disk except some blocks.
    ///
    /// # Errors
    /// The ballast is empty: the disk was full, or it could not be made.
    pub fn fill(&self, node: usize) -> io::Result<()> {
        let (ballast, dir) = (self.ballast(node), self.dir_of(node));
        let free = Command::new("df").args(["--output=avail", "-B1"]).arg(&dir).output()?.stdout;
        let free =
            String::from_utf8_lossy(&free).lines().last().and_then(|line| line.trim().parse::<u64>().ok());
        // Most of it without writing, which is fast.
        let most_bytes = free.unwrap_or(0).saturating_sub(WRITTEN_BYTES);
        if most_bytes > 0 {
            run("fallocate", &["-l", &most_bytes.to_string(), &ballast.to_string_lossy()]);
        }
        // It ends with an error, as the disk is full then.
        let all = format!("of={}", ballast.display());
        let _ = run("dd", &["if=/dev/zero", &all, "bs=64k", "oflag=append", "conv=notrunc"]);
        if fs::metadata(&ballast)?.len() > 0 { Ok(()) } else { Err(io::Error::other("no ballast")) }
    }

    /// Removes the ballast of a node's disk, if any.
    pub fn give_space_back(&self, node: usize) {
        let _ = fs::remove_file(self.ballast(node));
    }

    fn ballast(&self, node: usize) -> PathBuf {
        self.dir_of(node).join("ballast")
    }

    /// Makes a node's disk slow for this process: some writes a second.
    ///
    /// # Errors
    /// The process has ended, or its group was removed.
    pub fn brake(&self, node: usize, process: u32) -> io::Result<()> {
        self.brakes.as_ref().map_or(Ok(()), |brakes| brakes.on(node, process))
    }

    /// Makes a node's disk as fast as before.
    ///
    /// # Errors
    /// Its group was removed.
    pub fn release(&self, node: usize) -> io::Result<()> {
        self.brakes.as_ref().map_or(Ok(()), |brakes| brakes.off(node))
    }

    /// Returns how many writes of a node's disk were counted while its group had it, limited or not. It starts with the first brake.
    pub fn writes_in_group(&self, node: usize) -> u64 {
        self.brakes.as_ref().map_or(0, |brakes| brakes.writes(node))
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        if self.has_network {
            self.remove_network();
        }
        for node in 0..self.count {
            // With a limit an unmount would be slow.
            let _ = self.release(node);
            unmount(&self.dir_of(node));
        }
    }
}

fn unmount(dir: &Path) {
    let begun = Instant::now();
    while is_mounted(dir) && !run("umount", &[&dir.to_string_lossy()]) {
        if begun.elapsed() > UNMOUNT_TIMEOUT {
            run("umount", &["-l", &dir.to_string_lossy()]);
            return;
        }
        std::thread::yield_now();
    }
}

/// Returns the lines of the mounts, as device, directory, kind and options.
fn mounts() -> Vec<[String; 4]> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = |line: &str| {
        let mut fields = line.split(' ').map(str::to_owned);
        Some([fields.next()?, fields.next()?, fields.next()?, fields.next()?])
    };
    mounts.lines().filter_map(fields).collect()
}

fn is_mounted(dir: &Path) -> bool {
    mounts().iter().any(|[_, at, ..]| Some(&**at) == dir.to_str())
}

/// Returns the numbers of the device that is mounted there, as `major:minor`.
fn device_of(dir: &Path) -> Option<String> {
    let mounted = mounts().into_iter().find(|[_, at, ..]| Some(&**at) == dir.to_str());
    let [device, ..] = mounted?;
    let name = device.strip_prefix("/dev/")?;
    let numbers = fs::read_to_string(format!("/sys/block/{name}/dev")).ok()?;
    Some(numbers.trim().to_owned())
}

/// Returns a name and a subnet that no other network has, of this program or another.
fn free_network() -> io::Result<(String, u8)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let id = std::process::id();
    let used =
        Command::new("ip").args(["-4", "-o", "addr"]).output().map(|done| done.stdout).unwrap_or_default();
    let used = String::from_utf8_lossy(&used).into_owned();
    // Tests that start at the same time search from neighbouring numbers.
    let mut candidates = (0..=255u8).map(|step| (id.wrapping_mul(16) + number) as u8 ^ step);
    let subnet = candidates.find(|subnet| !used.contains(&format!("10.213.{subnet}.")));
    let subnet = subnet.ok_or_else(|| io::Error::other("all subnets are taken"))?;
    Ok((leftovers::name(id, number), subnet))
}
