//! Measures, rather than shows: forebay-etcd and etcd in turn, with the same client (etcd-client) on the same machine.
//!
//! `compare [--rows a,b] [--nodes 1,3] [--seconds S] [--repeats N] [--keys N] [--value-bytes N] [--server NAME] [--etcd PROGRAM] [--own PROGRAM]
//! [--json FILE]`; `scripts/bench etcd` builds both sides and runs it. `--server` measures one side only, for `scripts/bench sweep`. Data directories are below `TMPDIR`. Each sample has new servers with empty directories and their
//! default settings but for a larger space limit, and sync each change. A row's ratio is of the same repeat; figures are medians.
//!
//! | row | work |
//! |---|---|
//! | `puts-1`, `puts-100`, `puts-1000` | puts from that many clients: keys of 8 bytes, random of 100,000, values of 256 (`--value-bytes N`: others) |
//! | `ranges` | linearizable reads of one key each from 100 clients, of the 100,000 keys |
//! | `ranges-serializable` | the same, of the member's own state |
//! | `txns` | transactions from 100 clients that compare the key's version and put |
//! | `watchers` | 1,000 watchers of all keys over 10 connections while one client puts: events delivered, and how late |
//! | `memory` | one million keys: the server's resident memory afterwards, and the bytes of its directory (`--keys N`: another number) |

#[path = "../tests/common/mod.rs"]
mod common;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::Member;
use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp, WatchOptions};
use tokio::task::JoinSet;

type Failure = Box<dyn Error + Send + Sync>;

const KEYS: u64 = 100_000;
const VALUE: [u8; 256] = [b'v'; 256];
/// Clients of one connection: 1,000 share 100.
const CONNECTIONS_MAX: usize = 100;
const WATCHERS: usize = 1_000;
const WATCHER_CONNECTIONS: usize = 10;
/// Before the time that counts.
const WARM_UP: Duration = Duration::from_secs(1);

/// The rows, and whether they have several nodes as well.
const ROWS: [(&str, bool); 8] = [
    ("puts-1", true),
    ("puts-100", true),
    ("puts-1000", true),
    ("ranges", true),
    ("ranges-serializable", false),
    ("txns", true),
    ("watchers", false),
    ("memory", false),
];

/// The figures of a sample, by name, in the order of the columns.
type Figures = Vec<(&'static str, f64)>;

struct Options {
    rows: Vec<String>,
    nodes: Vec<usize>,
    seconds: f64,
    repeats: usize,
    keys: u64,
    value_bytes: usize,
    server: Option<String>,
    servers: [(&'static str, PathBuf); 2],
    json: Option<PathBuf>,
}

fn options() -> Result<Options, Failure> {
    let mut options = Options {
        rows: ROWS.iter().map(|(name, _)| (*name).to_owned()).collect(),
        nodes: vec![1, 3],
        seconds: 5.0,
        repeats: 5,
        keys: 1_000_000,
        value_bytes: VALUE.len(),
        server: None,
        servers: [("etcd", "etcd".into()), ("forebay-etcd", PathBuf::new())],
        json: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{name} needs a value"));
        match name.as_str() {
            "--rows" => options.rows = value()?.split(',').map(str::to_owned).collect(),
            "--nodes" => {
                options.nodes = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?;
            }
            "--seconds" => options.seconds = value()?.parse()?,
            "--repeats" => options.repeats = value()?.parse()?,
            "--keys" => options.keys = value()?.parse()?,
            "--value-bytes" => options.value_bytes = value()?.parse()?,
            "--server" => options.server = Some(value()?),
            "--etcd" => options.servers[0].1 = value()?.into(),
            "--own" => options.servers[1].1 = value()?.into(),
            "--json" => options.json = Some(value()?.into()),
            _ => return Err(format!("there is no option {name}").into()),
        }
    }
    if let Some(row) = options.rows.iter().find(|row| !ROWS.iter().any(|(name, _)| name == row)) {
        return Err(format!("there is no row {row}").into());
    }
    if let Some(server) = &options.server
        && !options.servers.iter().any(|(name, _)| name == server)
    {
        return Err(format!("there is no server {server}").into());
    }
    if options.servers[1].1.as_os_str().is_empty() {
        options.servers[1].1 = common::own_program();
    }
    Ok(options)
}

/// A key of 8 bytes: its number's digits, in a scrambled order.
fn key(number: u64) -> [u8; 8] {
    (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Random numbers: xorshift, which is enough to choose keys.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Processor time of a process so far, in microseconds.
fn cpu_us(pid: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(f64::NAN);
    // Linux counts hundredths of a second here on every machine.
    (ticks(11) + ticks(12)) * 1e4
}

/// Resident memory of a process, in bytes.
fn resident_bytes(pid: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) * 1024.0
}

fn bytes_below(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        Ok(metadata) => {
            use std::os::unix::fs::MetadataExt;
            metadata.blocks() * 512
        }
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}

struct Cluster {
    members: Vec<Member>,
}

impl Cluster {
    fn start(program: &Path, nodes: usize) -> Cluster {
        // Space for the million keys, with history: etcd's default is 2 GiB.
        let flags = ["--quota-backend-bytes=8589934592"];
        Cluster { members: Member::several(program, nodes, &flags) }
    }

    fn pids(&self) -> Vec<String> {
        self.members.iter().map(|member| member.pid().to_string()).collect()
    }

    fn cpu_us(&self) -> f64 {
        self.pids().iter().map(|pid| cpu_us(pid)).sum()
    }

    /// Returns clients: each has a connection to every member.
    async fn connect(&self, count: usize) -> Result<Vec<Client>, Failure> {
        let endpoints: Vec<String> = self.members.iter().map(Member::endpoint).collect();
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(Client::connect(&endpoints, None).await?);
        }
        Ok(clients)
    }
}

/// Puts `count` keys, 1,000 concurrently.
async fn fill(cluster: &Cluster, count: u64) -> Result<(), Failure> {
    let (clients, next) = (cluster.connect(20).await?, Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for at in 0..1_000 {
        let (mut client, next) = (clients[at % clients.len()].clone(), next.clone());
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok::<_, Failure>(());
                }
                client.put(key(number), VALUE, None).await?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// The operation of a client: it is made again and again.
#[derive(Clone, Copy)]
enum Operation {
    Put,
    Range { is_serializable: bool },
    Txn,
}

impl Operation {
    async fn run(self, client: &mut Client, random: &mut Random, value: &[u8]) -> Result<(), Failure> {
        let key = key(random.below(KEYS));
        match self {
            Operation::Put => drop(client.put(key, value, None).await?),
            Operation::Range { is_serializable } => {
                let options = is_serializable.then(|| GetOptions::new().with_serializable());
                if client.get(key, options).await?.kvs().len() != 1 {
                    return Err("a key is missing".into());
                }
            }
            Operation::Txn => {
                let txn = Txn::new()
                    .when([Compare::version(key, CompareOp::Greater, -1)])
                    .and_then([TxnOp::put(key, value, None)]);
                if !client.txn(txn).await?.succeeded() {
                    return Err("a comparison that always holds did not".into());
                }
            }
        }
        Ok(())
    }
}

/// Measures clients that make one operation after the other.
async fn run(
    cluster: &Cluster,
    operation: Operation,
    clients: usize,
    options: &Options,
) -> Result<Figures, Failure> {
    let (seconds, value_bytes) = (options.seconds, options.value_bytes);
    let connections = cluster.connect(clients.min(CONNECTIONS_MAX)).await?;
    let begun = Instant::now();
    let (open, close) = (begun + WARM_UP, begun + WARM_UP + Duration::from_secs_f64(seconds));
    let mut tasks = JoinSet::new();
    for number in 0..clients {
        let mut client = connections[number % connections.len()].clone();
        tasks.spawn(async move {
            let (mut random, mut each_us) = (Random(0x9e37_79b9 * (number as u64 + 1)), Vec::new());
            let value = vec![b'v'; value_bytes];
            loop {
                let begun = Instant::now();
                if begun >= close {
                    return Ok::<_, Failure>(each_us);
                }
                operation.run(&mut client, &mut random, &value).await?;
                if begun >= open {
                    each_us.push(begun.elapsed().as_micros() as u64);
                }
            }
        });
    }
    tokio::time::sleep_until(open.into()).await;
    let before = (cluster.cpu_us(), cpu_us("self"));
    tokio::time::sleep_until(close.into()).await;
    let after = (cluster.cpu_us(), cpu_us("self"));
    let mut each_us = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        each_us.extend(ended??);
    }
    let count = each_us.len() as f64;
    let mut figures = vec![("per_s", count / seconds)];
    figures.extend(quantiles(each_us));
    figures.push(("server_cpu_us", (after.0 - before.0) / count));
    figures.push(("client_cpu_us", (after.1 - before.1) / count));
    figures.push((
        "server_mib",
        cluster.pids().iter().map(|pid| resident_bytes(pid)).sum::<f64>() / 1_048_576.0,
    ));
    Ok(figures)
}

fn quantiles(mut each_us: Vec<u64>) -> Figures {
    each_us.sort_unstable();
    let at = |permille: usize| {
        each_us.get(each_us.len().saturating_sub(1) * permille / 1000).map_or(f64::NAN, |us| *us as f64 / 1e3)
    };
    vec![("p50_ms", at(500)), ("p99_ms", at(990)), ("longest_ms", at(1000))]
}

/// Measures watchers: each value is the time of its put, so that an event says how late it is.
async fn watch(cluster: &Cluster, seconds: f64) -> Result<Figures, Failure> {
    let epoch = Instant::now();
    let clients = cluster.connect(WATCHER_CONNECTIONS).await?;
    let (is_over, delivered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for number in 0..WATCHERS {
        let mut client = clients[number % clients.len()].clone();
        let (is_over, delivered) = (is_over.clone(), delivered.clone());
        let mut stream = client.watch("w", Some(WatchOptions::new().with_prefix())).await?;
        // The first response says that it watches.
        stream.message().await?;
        tasks.spawn(async move {
            let mut each_us = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let Some(response) = stream.message().await? else { return Err("a watch ended".into()) };
                for event in response.events() {
                    let sent = event.kv().and_then(|kv| kv.value().first_chunk::<8>());
                    let sent = Duration::from_micros(sent.map_or(0, |bytes| u64::from_be_bytes(*bytes)));
                    each_us.push(epoch.elapsed().saturating_sub(sent).as_micros() as u64);
                    delivered.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok::<_, Failure>(each_us)
        });
    }
    let mut client = clients[0].clone();
    let put = async |client: &mut Client, number: u64| {
        let mut value = VALUE;
        value[..8].copy_from_slice(&(epoch.elapsed().as_micros() as u64).to_be_bytes());
        client.put(format!("w{number:07}"), value, None).await
    };
    let (begun, before) = (Instant::now(), (cluster.cpu_us(), cpu_us("self")));
    let mut number = 0;
    while begun.elapsed().as_secs_f64() < seconds {
        put(&mut client, number).await?;
        number += 1;
        // One put after the other, when the events of those before have arrived: the rate is that of the watchers.
        while delivered.load(Ordering::Relaxed) + 10 * (WATCHERS as u64) < number * WATCHERS as u64 {
            tokio::task::yield_now().await;
        }
    }
    let (elapsed, after) = (begun.elapsed().as_secs_f64(), (cluster.cpu_us(), cpu_us("self")));
    let events = delivered.load(Ordering::Relaxed) as f64;
    is_over.store(true, Ordering::Relaxed);
    put(&mut client, number).await?;
    let mut each_us = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        each_us.extend(ended??);
    }
    let mut figures = vec![("per_s", events / elapsed)];
    figures.extend(quantiles(each_us));
    figures.push(("server_cpu_us", (after.0 - before.0) / events));
    figures.push(("client_cpu_us", (after.1 - before.1) / events));
    Ok(figures)
}

/// Measures the server's memory with many keys.
async fn memory(cluster: &Cluster, keys: u64) -> Result<Figures, Failure> {
    let (begun, before) = (Instant::now(), cluster.cpu_us());
    fill(cluster, keys).await?;
    let elapsed = begun.elapsed().as_secs_f64();
    let cpu = (cluster.cpu_us() - before) / keys as f64;
    let resident: f64 = cluster.pids().iter().map(|pid| resident_bytes(pid)).sum();
    let disk: u64 = cluster.members.iter().map(|member| bytes_below(&member.data_dir())).sum();
    Ok(vec![
        ("per_s", keys as f64 / elapsed),
        ("server_cpu_us", cpu),
        ("server_mib", resident / 1_048_576.0),
        ("disk_mib", disk as f64 / 1_048_576.0),
    ])
}

async fn sample(program: &Path, row: &str, nodes: usize, options: &Options) -> Result<Figures, Failure> {
    let cluster = Cluster::start(program, nodes);
    match row {
        "watchers" => watch(&cluster, options.seconds).await,
        "memory" => memory(&cluster, options.keys).await,
        "ranges" | "ranges-serializable" => {
            fill(&cluster, KEYS).await?;
            let is_serializable = row != "ranges";
            run(&cluster, Operation::Range { is_serializable }, 100, options).await
        }
        "txns" => run(&cluster, Operation::Txn, 100, options).await,
        puts => {
            let clients = puts.strip_prefix("puts-").ok_or("no such row")?.parse()?;
            run(&cluster, Operation::Put, clients, options).await
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// The samples of one server, repeat by repeat.
type Samples = Vec<Figures>;

fn column(samples: &Samples, name: &str) -> Vec<f64> {
    let of = |figures: &Figures| figures.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
    samples.iter().filter_map(of).collect()
}

/// Prints a row, and records it for docs/results.
fn print(row: &str, nodes: usize, servers: &[(&str, Samples); 2]) -> Result<(), Failure> {
    let title = format!("{row}, {nodes} {}", if nodes == 1 { "node" } else { "nodes" });
    println!("\n{title}");
    let Some(names) =
        servers[0].1.first().map(|first| first.iter().map(|(name, _)| *name).collect::<Vec<_>>())
    else {
        return Ok(());
    };
    println!("{:>16} {:>14} {:>14} {:>8}  least to most", "", servers[0].0, servers[1].0, "ratio");
    for name in names {
        let [theirs, ours] = [&servers[0].1, &servers[1].1].map(|samples| column(samples, name));
        let mut ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
        ratios.sort_by(f64::total_cmp);
        let [least, most] = [ratios.first(), ratios.last()].map(|ratio| *ratio.unwrap_or(&f64::NAN));
        let spread = format!("{least:.2} to {most:.2}");
        let [theirs, ours, ratio] = [theirs, ours, ratios].map(|values| format!("{:.2}", median(values)));
        println!("{name:>16} {theirs:>14} {ours:>14} {ratio:>8}  {spread}");
        let record = |figure: &str, unit: &str, spread: &str| {
            forebay_test::record("etcd", &format!("{title}: {name}"), figure, unit, spread)
        };
        record(&theirs, "etcd", "")?;
        record(&ours, "here", "")?;
        record(&ratio, "ratio", &spread)?;
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let options = options()?;
    let mut all = Vec::new();
    for nodes in &options.nodes {
        for (row, has_several) in ROWS {
            if !options.rows.iter().any(|wanted| wanted == row) || (*nodes > 1 && !has_several) {
                continue;
            }
            let mut found = [(options.servers[0].0, Samples::new()), (options.servers[1].0, Samples::new())];
            let repeats = if row == "memory" { 1 } else { options.repeats };
            for repeat in 0..repeats {
                for ((_, program), (name, samples)) in options.servers.iter().zip(&mut found) {
                    if options.server.as_ref().is_some_and(|only| only.as_str() != *name) {
                        continue;
                    }
                    // A runtime for each sample: no task of the previous sample continues.
                    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
                    let figures = runtime.block_on(sample(program, row, *nodes, &options))?;
                    runtime.shutdown_background();
                    all.push(serde_json::json!({
                        "row": row, "nodes": nodes, "server": name, "repeat": repeat,
                        "figures": figures.iter().map(|(name, value)| ((*name).to_owned(), (*value).into()))
                            .collect::<serde_json::Map<_, _>>(),
                    }));
                    samples.push(figures);
                    if let Some(path) = &options.json {
                        std::fs::write(path, serde_json::to_string_pretty(&all)?)?;
                    }
                }
            }
            print(row, *nodes, &found)?;
        }
    }
    Ok(())
}
