//! A cluster of three `forebay-etcd` servers in one machine, whose disk loses what was not flushed: the simultaneous power cut of
//! all nodes.
//!
//! etcdctl puts, each key once. After a cut every acknowledged key must be there, at each member alike.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::subject::{self, Say, Writer, ended};

const SERVERS: u64 = 3;
const WRITERS: u64 = 2;
/// Timeout for a cluster that starts, in an emulated machine.
const READY: Duration = Duration::from_secs(180);

/// The guest's half: the servers, which end with it.
#[derive(Debug)]
pub(crate) struct Cluster {
    servers: Vec<Child>,
    dir: PathBuf,
}

fn client(member: u64) -> String {
    format!("127.0.0.1:{}", 2379 + 10 * member)
}

fn peer(member: u64) -> String {
    format!("http://127.0.0.1:{}", 2380 + 10 * member)
}

/// Runs etcdctl, whose output has a field in each line.
fn etcdctl(endpoint: &str, arguments: &[&str]) -> Result<Vec<String>, String> {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").args(["--command-timeout=20s", "--endpoints", endpoint]).args(arguments);
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

impl Cluster {
    fn start(dir: &Path) -> Result<Cluster, String> {
        let mut cluster = Cluster { servers: Vec::new(), dir: dir.to_owned() };
        let all: Vec<String> = (0..SERVERS).map(|member| format!("n{member}={}", peer(member))).collect();
        for member in 0..SERVERS {
            let log = File::create(format!("/tmp/n{member}.log")).map_err(|error| error.to_string())?;
            let mut command = Command::new("forebay-etcd");
            command
                .arg(format!("--name=n{member}"))
                .arg(format!("--data-dir={}", dir.join(member.to_string()).display()))
                .arg(format!("--listen-client-urls=http://{}", client(member)))
                .arg(format!("--advertise-client-urls=http://{}", client(member)))
                .arg(format!("--listen-peer-urls={}", peer(member)))
                .arg(format!("--initial-advertise-peer-urls={}", peer(member)))
                .arg(format!("--initial-cluster={}", all.join(",")))
                // So that cuts fall into snapshots and purges as well. An emulated machine is slow.
                .args(["--snapshot-count=20", "--snapshot-catchup-entries=5"])
                .args(["--heartbeat-interval=300", "--election-timeout=3000"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log);
            let child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
            cluster.servers.push(child);
        }
        Ok(cluster)
    }

    /// Returns the error of a server that has ended.
    fn check(&mut self) -> Result<(), String> {
        for (member, child) in self.servers.iter_mut().enumerate() {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                let log = std::fs::read_to_string(format!("/tmp/n{member}.log")).unwrap_or_default();
                let last = log.lines().last().unwrap_or_default();
                return Err(format!("server {member} of {} ended with {status}: {last}", self.dir.display()));
            }
        }
        Ok(())
    }

    /// Returns all keys and values of a member, by a linearizable read.
    fn read(&mut self, member: u64) -> Result<Vec<String>, String> {
        let begun = Instant::now();
        loop {
            self.check()?;
            match etcdctl(&client(member), &["get", "w", "--prefix"]) {
                Ok(lines) => return Ok(lines),
                Err(why) if begun.elapsed() > READY => return Err(format!("member {member}: {why}")),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }
}

/// Starts the servers, and prints what all of them have.
pub(crate) fn recover(dir: &Path, say: Say<'_>) -> Result<Box<dyn Writer>, String> {
    let mut cluster = Cluster::start(dir)?;
    let first = cluster.read(0)?;
    for member in 1..SERVERS {
        let other = cluster.read(member)?;
        if other != first {
            return Err(format!("members differ: {first:?} and {other:?}"));
        }
    }
    let endpoints = (0..SERVERS).map(client).collect::<Vec<_>>().join(",");
    // Nothing is put meanwhile, so they are at one revision.
    let hashes = etcdctl(&endpoints, &["endpoint", "hashkv"])?;
    let hash = |line: &String| line.split(", ").nth(1).map(str::to_owned);
    if hashes.len() as u64 != SERVERS || hashes.iter().any(|line| hash(line) != hash(&hashes[0])) {
        return Err(format!("hashes differ: {hashes:?}"));
    }
    for pair in first.chunks(2) {
        say(&format!("has {}", pair.join(" ")));
    }
    say("whole");
    Ok(Box::new(cluster))
}

impl Writer for Cluster {
    fn write(self: Box<Self>, life: u64, say: Say<'_>) -> Result<(), String> {
        std::thread::scope(|scope| {
            let threads = (0..WRITERS).map(|writer| {
                scope.spawn(move || {
                    for count in 0.. {
                        let key = format!("w{life:04}.{writer}.{count:04}");
                        // One whose outcome is not known may be there later, or not.
                        let put = etcdctl(&client((writer + count) % SERVERS), &["put", &key, &value(&key)]);
                        if put.is_ok() && !say(&format!("ack {key} {}", value(&key))) {
                            break;
                        }
                    }
                    Ok(())
                })
            });
            ended(threads.collect())
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in &mut self.servers {
            let _gone = child.kill();
            let _gone = child.wait();
        }
    }
}

/// Returns the value that a key is put with.
fn value(key: &str) -> String {
    format!("value-of-{key}")
}

/// The host's half.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    acknowledged: BTreeMap<String, String>,
    found: BTreeMap<String, String>,
    count: u64,
}

impl subject::Model for Model {
    fn began(&mut self, _: u64) {}

    fn hear(&mut self, words: &[&str]) -> Result<(), String> {
        match words {
            ["has", key, found] => {
                if *found != value(key) {
                    return Err(format!("{key} has the value {found}"));
                }
                self.found.insert((*key).to_owned(), (*found).to_owned());
            }
            ["ack", key, value] => {
                self.acknowledged.insert((*key).to_owned(), (*value).to_owned());
                self.count += 1;
            }
            ["whole"] => {
                let found = std::mem::take(&mut self.found);
                if let Some(key) = self.acknowledged.keys().find(|key| !found.contains_key(*key)) {
                    return Err(format!("{key} was acknowledged, and is not there"));
                }
                // A recovery has shown them, so they stay.
                self.acknowledged = found;
            }
            _ => return Err(format!("the guest said something that is not a line: {}", words.join(" "))),
        }
        Ok(())
    }

    fn acknowledged(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::hear;

    #[test]
    fn acknowledged_keys_must_be_there_and_others_may_be() {
        let written = || {
            let mut model = Model::default();
            hear(&mut model, &["whole", "ack w1 value-of-w1", "ack w2 value-of-w2"]).expect("two keys");
            model
        };
        let both = ["has w1 value-of-w1", "has w2 value-of-w2"];
        hear(&mut written(), &[&both[..], &["whole"]].concat()).expect("both");
        let mut model = written();
        hear(&mut model, &[&both[..], &["has w3 value-of-w3", "whole"]].concat()).expect("one more");
        hear(&mut model, &[&both[..], &["whole"]].concat()).expect_err("it was there before");
        hear(&mut written(), &["has w1 value-of-w1", "whole"]).expect_err("one is lost");
        hear(&mut written(), &["has w1 value-of-w2"]).expect_err("another's value");
    }
}
