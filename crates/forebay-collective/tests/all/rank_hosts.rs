//! Ranks on hosts of a network: namespaces whose only link is a process of these tests, a relay that delays each frame. Skipped with a
//! line where they cannot be made.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_test::children::end_with_parent;
use forebay_test::killed::say;

use crate::common::dir;
use crate::rank_kills::{RankProcess, SIZE, hear, reason, repeat, start_on_host};

const HOSTS: usize = 2;
const V4: [&str; HOSTS] = ["10.213.0.1/24", "10.213.0.2/24"];
/// Without a look for the same address on the network, which lasts seconds.
const V6: [&str; HOSTS] = ["fd00:f0::1/64 nodad", "fd00:f0::2/64 nodad"];

/// The delay of each frame, which the relay gets in this variable.
const DELAY_MS: u64 = 10;
const DELAY: &str = "FOREBAY_TEST_RELAY_MS";
/// Longer than the longest segment that a link passes on as a whole, with its headers.
const FRAME_MAX: usize = 128 << 10;

/// packet(7): frames have a header that describes checksums and segments which a device would still compute.
const PACKET_VNET_HDR: libc::c_int = 15;
/// The kernel's if_packet.h: frames that this namespace itself sends are left out.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// Hosts, and the namespace between them in which the relay runs.
struct Network {
    name: String,
    relay: Option<Child>,
}

impl Network {
    /// Makes the hosts with an address each, or without any link. Prints why they cannot be made.
    fn new(addresses: &[&str]) -> Option<Network> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // `forebay_test::machines` finds by this name what killed tests have left behind.
        let name = format!("fb{:x}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut network = Network { name, relay: None };
        if !network.make(addresses) {
            println!("skipped: no network namespaces with {addresses:?} here (root, and the program ip)");
            return None;
        }
        (addresses.is_empty() || network.start_relay()).then_some(network)
    }

    fn make(&self, addresses: &[&str]) -> bool {
        let middle = self.space(HOSTS);
        let mut is_made = ip(&format!("netns add {middle}"));
        for host in 0..HOSTS {
            let space = self.space(host);
            is_made =
                is_made && ip(&format!("netns add {space}")) && ip(&format!("-n {space} link set lo up"));
        }
        for (host, address) in addresses.iter().enumerate() {
            let space = self.space(host);
            is_made = is_made
                && ip(&format!("-n {middle} link add port{host} type veth peer name eth0 netns {space}"))
                && ip(&format!("-n {middle} link set port{host} up"))
                && ip(&format!("-n {space} addr add {address} dev eth0"))
                && ip(&format!("-n {space} link set eth0 up"));
        }
        is_made
    }

    /// Starts the relay. Returns whether it works; it may lack the right to packet sockets.
    fn start_relay(&mut self) -> bool {
        let mut command = self.command(HOSTS);
        command.args(["rank_hosts::relay", "--exact", "--ignored", "--nocapture"]);
        command.env(DELAY, DELAY_MS.to_string()).stdout(Stdio::piped());
        let mut child = end_with_parent(&mut command).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        self.relay = Some(child);
        let mut said = out.lines().map_while(Result::ok);
        let word = said.find(|line| line.ends_with("relays") || line.contains("skipped: "));
        let word = word.expect("the relay says whether it works");
        if !word.ends_with("relays") {
            println!("{word}");
        }
        word.ends_with("relays")
    }

    fn space(&self, host: usize) -> String {
        format!("{}n{host}", self.name)
    }

    /// Returns a command that runs this program on a host.
    fn command(&self, host: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(host)]).arg(std::env::current_exe().unwrap());
        command
    }

    /// Ends the relay: no frame arrives any more, and no end of a connection.
    fn cut(&mut self) {
        if let Some(mut relay) = self.relay.take() {
            relay.kill().unwrap();
            relay.wait().unwrap();
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.cut();
        for host in 0..=HOSTS {
            ip(&format!("netns del {}", self.space(host)));
        }
    }
}

fn ip(line: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(line.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Opens a link, to read and write its frames.
fn open_link(name: &str) -> io::Result<File> {
    let check = |result: libc::c_int| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
    // SAFETY: a system call with plain numbers.
    let socket = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor is new, and nothing else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let on: libc::c_int = 1;
    let (value, len) = (std::ptr::from_ref(&on).cast(), size_of_val(&on) as libc::socklen_t);
    for option in [PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING] {
        // SAFETY: the descriptor is open, and the kernel reads a number of this length.
        check(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, value, len) })?;
    }
    let name = CString::new(name)?;
    // SAFETY: all fields are numbers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_protocol = (libc::ETH_P_ALL as libc::c_ushort).to_be();
    // SAFETY: a string that ends with a zero.
    address.sll_ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) }.cast_signed();
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel reads an address of this length.
    check(unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), len) })?;
    Ok(File::from(socket))
}

#[test]
#[ignore = "the relay that the tests of this file start"]
fn relay() {
    let Some(delay) = std::env::var(DELAY).ok().and_then(|text| text.parse().ok()) else { return };
    let delay = Duration::from_millis(delay);
    let links = (0..HOSTS).map(|host| open_link(&format!("port{host}"))).collect::<io::Result<Vec<_>>>();
    let links = match links {
        Ok(links) => links,
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EAFNOSUPPORT)) => {
            return say(&format!("skipped: no packet sockets here: {error}"));
        }
        Err(error) => panic!("no link: {error}"),
    };
    thread::scope(|scope| {
        for (mut from, mut to) in [(&links[0], &links[1]), (&links[1], &links[0])] {
            let (queue, frames) = mpsc::channel::<(Instant, Vec<u8>)>();
            scope.spawn(move || {
                let mut frame = vec![0; FRAME_MAX];
                while let Ok(len) = from.read(&mut frame) {
                    let _ = queue.send((Instant::now() + delay, frame[..len].to_vec()));
                }
            });
            scope.spawn(move || {
                for (due, frame) in frames {
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    // A frame that finds no place is lost, as in any network.
                    let _ = to.write(&frame);
                }
            });
        }
        say("relays");
    });
}

/// Starts the ranks on the hosts in turn.
fn start(network: &Network, dir: &Path, seconds: u64) -> Vec<RankProcess> {
    let start = |number: u32| start_on_host(network.command(number as usize % HOSTS), dir, number, seconds);
    (0..SIZE).map(start).collect()
}

/// Calls with holes, over either version of IP: each rank reads what another one has written, and finds no other bytes.
#[test]
fn hosts_write_and_read_over_a_slow_link() {
    for addresses in [V4, V6] {
        let dir = dir();
        let Some(network) = Network::new(&addresses) else { continue };
        let mut ranks = start(&network, dir.path(), 60);
        // They meet and call four times.
        for (_, out) in &mut ranks {
            hear(out, 6);
        }
        for (child, _) in &mut ranks {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        repeat(dir.path());
    }
}

/// No end of a connection arrives over a link that is cut: each side ends the call after its deadlines.
#[test]
fn a_cut_link_ends_the_call_on_both_hosts() {
    let dir = dir();
    let Some(mut network) = Network::new(&V4) else { return };
    let mut ranks = start(&network, dir.path(), 2);
    hear(&mut ranks[0].1, 2);
    network.cut();
    for (number, rank) in ranks.iter_mut().enumerate() {
        let reason = reason(number, rank);
        assert!(reason.contains(" within "), "rank {number}: {reason}");
    }
    repeat(dir.path());
}

/// Rank 0 listed no address, and the other ranks failed after three minutes.
#[test]
fn a_host_without_a_network_is_named_at_once() {
    let dir = dir();
    let Some(network) = Network::new(&[]) else { return };
    let mut rank = start_on_host(network.command(0), dir.path(), 0, 60);
    let reason = reason(0, &mut rank);
    assert!(reason.contains("no address that other hosts can connect to"), "{reason}");
}
