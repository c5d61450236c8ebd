//! Durable appends with many in flight: openraft's log beside the log below it, which is the limit.
//! `cargo run --release -p forebay-raft --example appends -- DIRECTORY [IN_FLIGHT [BYTES [SECONDS [REPEATS]]]]`
//!
//! One task appends to the Raft log, as openraft's loop does, and never has more than IN_FLIGHT entries whose callbacks have not
//! come. IN_FLIGHT tasks append records of the same encoded length to the log below, each one after the other. The repeats of
//! both alternate. Prints a line of JSON for each.

use std::collections::VecDeque;
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay::Engine;
use forebay_raft::{LogOptions, RaftLog};
use forebay_wal::{Options, Wal};
use openraft::alias::{EntryOf, LogIdOf};
use openraft::entry::RaftEntry;
use openraft::impls::leader_id_adv::LeaderId;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use openraft::vote::RaftLeaderIdExt;

openraft::declare_raft_types!(
    /// Entries are texts.
    Types: D = String, R = String
);

type Failure = Box<dyn Error + Send + Sync>;

/// How long each append took.
#[derive(Default)]
struct Measured {
    appends_ns: Vec<u64>,
    elapsed: Duration,
    groups: u64,
}

impl Measured {
    fn print(&mut self, name: &str, repeat: u64) {
        self.appends_ns.sort_unstable();
        let count = self.appends_ns.len();
        let at_us = |part: f64| {
            let at = ((count as f64 * part) as usize).min(count.saturating_sub(1));
            self.appends_ns.get(at).map_or(0.0, |ns| *ns as f64 / 1e3)
        };
        println!(
            "{{\"log\": \"{name}\", \"repeat\": {repeat}, \"appends_per_s\": {:.0}, \"p50_us\": {:.1}, \"p99_us\": {:.1}, \
             \"appends_per_group\": {:.1}}}",
            count as f64 / self.elapsed.as_secs_f64(),
            at_us(0.5),
            at_us(0.99),
            count as f64 / self.groups.max(1) as f64,
        );
    }
}

fn entry(index: u64, bytes: usize) -> EntryOf<Types> {
    let id = LogIdOf::<Types>::new(LeaderId::new_committed(1, 1), index);
    EntryOf::<Types>::new_normal(id, "x".repeat(bytes))
}

/// Appends with up to `in_flight` entries that are not durable, and purges all but the last 10,000 entries now and then.
async fn raft(
    engine: &Engine,
    dir: &Path,
    in_flight: usize,
    bytes: usize,
    time: Duration,
) -> Result<Measured, Failure> {
    let mut log = RaftLog::<Types>::open(engine, dir, LogOptions::new()).await?;
    let mut next = log.get_log_state().await?.last_log_id.map_or(0, |id| id.index + 1);
    let (mut measured, mut flying, begun) = (Measured::default(), VecDeque::new(), Instant::now());
    let groups = log.wal().stats().groups;
    while begun.elapsed() < time || !flying.is_empty() {
        while flying.len() < in_flight && begun.elapsed() < time {
            let (sender, receiver) = Types::oneshot();
            let appended = Instant::now();
            log.append([entry(next, bytes)], IOFlushed::signal(sender)).await?;
            flying.push_back((appended, receiver));
            next += 1;
            if next.is_multiple_of(50_000) {
                let kept = LogIdOf::<Types>::new(LeaderId::new_committed(1, 1), next - 10_000);
                log.purge(kept).await?;
            }
        }
        if let Some((appended, receiver)) = flying.pop_front() {
            receiver.await??;
            measured.appends_ns.push(u64::try_from(appended.elapsed().as_nanos())?);
        }
    }
    measured.elapsed = begun.elapsed();
    measured.groups = log.wal().stats().groups - groups;
    log.close().await?;
    Ok(measured)
}

/// Appends from `in_flight` tasks, and truncates as often.
async fn bare(
    engine: &Engine,
    dir: &Path,
    in_flight: usize,
    bytes: usize,
    time: Duration,
) -> Result<Measured, Failure> {
    let (wal, _) = Wal::open(engine, dir, Options::new()).await?;
    let (groups, begun) = (wal.stats().groups, Instant::now());
    let record = vec![b'x'; rmp_serde::to_vec_named(&entry(1_000_000, bytes))?.len()];
    let writers = (0..in_flight).map(|_| {
        let (wal, record) = (wal.clone(), record.clone());
        tokio::spawn(async move {
            let mut appends_ns = Vec::new();
            while begun.elapsed() < time {
                let appended = Instant::now();
                let lsn = wal.append(&record).await?;
                appends_ns.push(u64::try_from(appended.elapsed().as_nanos())?);
                if lsn.0.is_multiple_of(50_000) {
                    wal.truncate_before(forebay_wal::Lsn(lsn.0 - 10_000)).await?;
                }
            }
            Ok::<_, Failure>(appends_ns)
        })
    });
    let mut measured = Measured::default();
    for writer in writers.collect::<Vec<_>>() {
        measured.appends_ns.extend(writer.await??);
    }
    measured.elapsed = begun.elapsed();
    measured.groups = wal.stats().groups - groups;
    wal.close().await?;
    Ok(measured)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let dir = arguments.first().ok_or("usage: appends DIRECTORY [IN_FLIGHT [BYTES [SECONDS [REPEATS]]]]")?;
    let number = |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |text| text.parse::<u64>());
    let (in_flight, bytes) = (usize::try_from(number(1, 64)?)?, usize::try_from(number(2, 256)?)?);
    let (seconds, repeats) = (number(3, 1)?, number(4, 3)?);
    let (engine, dir, time) =
        (Engine::start(forebay::Config::default())?, Path::new(dir), Duration::from_secs(seconds));
    for repeat in 0..repeats {
        bare(&engine, &dir.join("bare"), in_flight, bytes, time).await?.print("forebay-wal", repeat);
        raft(&engine, &dir.join("raft"), in_flight, bytes, time).await?.print("forebay-raft", repeat);
    }
    Ok(())
}
