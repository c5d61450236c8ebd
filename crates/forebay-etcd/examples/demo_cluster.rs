//! Three members on this machine: `scripts/demo-cluster`. Clients write, the leader is killed and started again, and all that was
//! acknowledged is read back from each member.
//!
//! Its argument is the program `forebay-etcd`. Everything is in a temporary directory, which is removed at the end, also when a signal
//! ends it (SIGINT, SIGTERM, SIGHUP). SIGKILL ends its servers with it, and leaves the directory.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_etcd::proto::etcdserverpb::kv_client::KvClient;
use forebay_etcd::proto::etcdserverpb::maintenance_client::MaintenanceClient;
use forebay_etcd::proto::etcdserverpb::{PutRequest, RangeRequest, StatusRequest};
use forebay_test::children::{SIGHUP, SIGINT, SIGTERM, end_with_parent};
use forebay_test::ports::free_port;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tonic::transport::{Channel, Endpoint};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const MEMBERS: usize = 3;
const CLIENTS: u32 = 8;
/// Longer waits mean a failure.
const LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// A member's process, killed when it is dropped.
struct Member {
    name: String,
    child: Child,
}

impl Drop for Member {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Cluster {
    program: PathBuf,
    dir: PathBuf,
    clients: Vec<String>,
    peers: Vec<String>,
}

/// Returns URLs with ports that are free now.
fn urls(count: usize) -> Vec<String> {
    (0..count).map(|_| format!("http://127.0.0.1:{}", free_port())).collect()
}

impl Cluster {
    /// Starts a member. The main thread calls this, and it lives as long as the demo does: the servers end with it.
    fn start(&self, member: usize) -> Result<Member> {
        let name = format!("member{}", member + 1);
        let all: Vec<String> =
            (0..MEMBERS).map(|at| format!("member{}={}", at + 1, self.peers[at])).collect();
        let log = File::options().create(true).append(true).open(self.dir.join(format!("{name}.log")))?;
        let (client, peer) = (&self.clients[member], &self.peers[member]);
        let mut command = Command::new(&self.program);
        command
            .args(["--name", &name, "--data-dir"])
            .arg(self.dir.join(&name))
            .args(["--listen-client-urls", client, "--advertise-client-urls", client])
            .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
            .args(["--initial-cluster", &all.join(",")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        Ok(Member { name, child: end_with_parent(&mut command).spawn()? })
    }

    /// Returns a connection to one member, with the member's id and the leader's, once it knows one.
    async fn connect(&self, member: usize) -> Result<(Channel, u64, u64)> {
        let begun = Instant::now();
        loop {
            let tried = async {
                let channel = Endpoint::new(self.clients[member].clone())?.connect().await?;
                let status =
                    MaintenanceClient::new(channel.clone()).status(StatusRequest {}).await?.into_inner();
                let own = status.header.map_or(0, |header| header.member_id);
                Result::Ok((channel, own, status.leader))
            };
            match tried.await {
                Ok((channel, own, leader)) if leader != 0 => return Ok((channel, own, leader)),
                Err(error) if begun.elapsed() > LIMIT => return Err(error),
                _ if begun.elapsed() > LIMIT => return Err("no leader was elected within a minute".into()),
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

/// The puts of a client that were acknowledged.
#[derive(Default)]
struct AcknowledgedPuts {
    values: BTreeMap<String, String>,
    puts: u64,
    longest: Duration,
    failures: u64,
}

/// Puts until `over`. One that fails is tried again with the same value.
async fn write(number: u32, urls: Vec<String>, over: Arc<AtomicBool>) -> Result<AcknowledgedPuts> {
    // Calls are spread over the members in turn; an unreachable member costs a failure.
    let endpoints = urls.into_iter().map(Endpoint::new).collect::<Result<Vec<_>, _>>()?;
    let mut client = KvClient::new(Channel::balance_list(endpoints.into_iter()));
    let mut acknowledged = AcknowledgedPuts::default();
    while !over.load(Ordering::Relaxed) {
        let count = acknowledged.puts;
        let (key, value) = (format!("client{number}/{:03}", count % 500), format!("value {count}"));
        let begun = Instant::now();
        let put = PutRequest { key: key.clone().into(), value: value.clone().into(), ..Default::default() };
        while let Err(error) = client.put(put.clone()).await {
            acknowledged.failures += 1;
            if begun.elapsed() > LIMIT {
                return Err(error.into());
            }
            tokio::time::sleep(PAUSE).await;
        }
        acknowledged.longest = acknowledged.longest.max(begun.elapsed());
        acknowledged.values.insert(key, value);
        acknowledged.puts += 1;
    }
    Ok(acknowledged)
}

/// Compares a member's keys with the values that were acknowledged last.
async fn check(channel: Channel, acknowledged: &[AcknowledgedPuts]) -> Result<usize> {
    // From the first key with this prefix up to the key after the last.
    let range = RangeRequest { key: "client".into(), range_end: "clienu".into(), ..Default::default() };
    let found = KvClient::new(channel).max_decoding_message_size(usize::MAX).range(range).await?.into_inner();
    let mut values = BTreeMap::new();
    for pair in found.kvs {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec());
        values.insert(text(&pair.key)?, text(&pair.value)?);
    }
    for (key, value) in acknowledged.iter().flat_map(|one| &one.values) {
        if values.get(key) != Some(value) {
            let found = values.get(key);
            return Err(format!("{key} was acknowledged with {value:?}, and is {found:?}").into());
        }
    }
    Ok(values.len())
}

async fn run(program: &Path, dir: &Path) -> Result<()> {
    let begun = Instant::now();
    let cluster =
        Cluster { program: program.into(), dir: dir.into(), clients: urls(MEMBERS), peers: urls(MEMBERS) };
    let mut members = (0..MEMBERS).map(|member| cluster.start(member)).collect::<Result<Vec<_>>>()?;
    println!("three members in {}", dir.display());
    println!("  endpoints: {}", cluster.clients.join(","));
    let (_, _, leader) = cluster.connect(0).await?;
    println!("a leader after {:.1?}", begun.elapsed());
    let mut victim = None;
    for member in 0..MEMBERS {
        let (_, own, _) = cluster.connect(member).await?;
        if own == leader {
            victim = Some(member);
        }
    }
    let victim = victim.ok_or("the leader is none of the members")?;

    let over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(write(number, cluster.clients.clone(), over.clone())))
        .collect();
    tokio::time::sleep(Duration::from_secs(3)).await;

    let killed = Instant::now();
    members[victim].child.kill()?;
    members[victim].child.wait()?;
    println!("the leader, {}, was killed (SIGKILL) while {CLIENTS} clients write", members[victim].name);
    while cluster.connect((victim + 1) % MEMBERS).await?.2 == leader {
        tokio::time::sleep(PAUSE).await;
    }
    println!("another member leads after {:.1?}", killed.elapsed());
    tokio::time::sleep(Duration::from_secs(3)).await;

    let restarted = Instant::now();
    members[victim] = cluster.start(victim)?;
    cluster.connect(victim).await?;
    println!("{} was started again, and is back after {:.1?}", members[victim].name, restarted.elapsed());
    tokio::time::sleep(Duration::from_secs(2)).await;
    over.store(true, Ordering::Relaxed);
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.push(writer.await??);
    }
    for (at, member) in members.iter().enumerate() {
        let (channel, _, _) = cluster.connect(at).await?;
        let count = check(channel, &acknowledged).await?;
        println!("  {}: its {count} keys have the values that were acknowledged last", member.name);
    }
    let puts: u64 = acknowledged.iter().map(|one| one.puts).sum();
    let failures: u64 = acknowledged.iter().map(|one| one.failures).sum();
    let longest = acknowledged.iter().map(|one| one.longest).max().unwrap_or_default();
    println!(
        "{puts} puts were acknowledged, and none is lost; {failures} tries failed, and the longest put took {longest:.1?}"
    );
    Ok(())
}

/// The signals that end it before its time.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Returns the number of the first to exit.
    async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.interrupt.recv() => SIGINT,
            _ = self.terminate.recv() => SIGTERM,
            _ = self.hangup.recv() => SIGHUP,
        }
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let program = std::env::args_os().nth(1).ok_or("give the program forebay-etcd")?;
    // From here on a signal runs no default action, which would leave everything behind.
    let mut signals = Signals::new()?;
    let dir = tempfile::Builder::new().prefix("forebay-cluster-").tempdir()?;
    // What a signal interrupts is dropped here, and the members with it, which are waited for.
    let ran = tokio::select! {
        ran = tokio::time::timeout(LIMIT + PAUSE, run(Path::new(&program), dir.path())) => Ok(ran),
        signal = signals.next() => Err(signal),
    };
    dir.close()?;
    match ran {
        Ok(ran) => ran.map_err(|_| "it did not end within a minute")?.map(|()| ExitCode::SUCCESS),
        Err(signal) => {
            eprintln!("ended by signal {signal}; the members have ended, and their directory is removed");
            Ok(ExitCode::from(128 + signal as u8))
        }
    }
}
