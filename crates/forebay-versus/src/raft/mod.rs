//! `raft`: durable appends to a Raft log as openraft makes them, and proposals to nodes with that log, compared with other logs and
//! states.

mod backends;
pub(crate) mod busy;
mod cluster;
mod states;

use std::collections::VecDeque;

use forebay::{Config, Engine};
use forebay_kv::Options;
use forebay_measure::check_space;
use forebay_raft::{LogOptions, RaftLog, RaftStore};
use forebay_wal::Wal;
use openraft::alias::{EntryOf, LogIdOf};
use openraft::entry::RaftEntry as _;
use openraft::impls::leader_id_adv::LeaderId;
use openraft::storage::{IOFlushed, RaftLogStorage, RaftStateMachine};
use openraft::type_config::TypeConfigExt as _;
use openraft::vote::RaftLeaderIdExt as _;
use tokio::runtime::Builder;

use crate::prelude::*;
use crate::run::RATIO_TO_LIMIT;
use cluster::Client;
use states::{Last, Machine, Memory};

openraft::declare_raft_types!(
    /// Proposals are values, and the last one is kept.
    pub(crate) Types: D = String, R = ()
);

/// The workloads: name, nodes, and description.
const WORKLOADS: &[(&str, usize, &str)] = &[
    ("appends", 0, "durable appends to the log of one node"),
    ("writes", 1, "proposals (client_write) to one node"),
    ("cluster", 3, "proposals (client_write) to three nodes in one process"),
];

/// The limits: of appends the log below, of proposals forebay-raft's log with a state that costs nothing.
const BELOW: &[&str] = &["wal"];
const STATELESS: &[&str] = &["forebay-memory"];

experiment! {
    RAFT "raft", "Appends to a Raft log and proposals to Raft nodes (openraft), beside other logs and states",
        compared by "ratio_to_limit", per |work| if work.workload == "appends" { "append" } else { "write" };
    options {
        word("workloads", "What is measured", &["appends", "writes", "cluster"]).list().or("appends,writes,cluster");
        count("in-flight", "Appends or proposals under way at once", 1024).or("64");
        bytes("value-bytes", "Size of a value", 1, 1 << 20).or("256");
        count("repeats", "Interleaved repeats, each with new files", 1000).or("5");
        seconds("2", "1");
        time("warm-up-seconds", "Seconds before that do not count", 0.0, 86_400.0).or("0.3");
    }
    rows {
        direct "wal", "forebay-wal below it: as many tasks append records of the same length" => below, twin direct;
        direct "forebay", "forebay-raft: its log and its store" => forebay;
        direct "forebay-memory", "forebay-raft's log, and a state in memory"
            => |work| writes(work, async |dir, engine| Ok((log(&engine, &dir).await?, Machine::new(Memory::default())))),
            twin direct;
        cached "raft-log", "raft-log 0.4.6, and a state in memory" => raft_log;
        cached "file", "a file by tokio::fs with one sync for all that waits, and a state in memory" => file;
        cached "rocksdb", "RocksDB for the log, with one sync for all that waits, and for the state, without its log" => rocksdb;
    }
    columns {
        "appends_per_s" "appends/s", "durable appends in a second";
        "writes_per_s" "writes/s", "proposals in a second";
        RATIO_TO_LIMIT;
        P50_US;
        P99_US;
        "cpu_us_per_append" "CPU us", "processor microseconds for one append";
        "cpu_us_per_write" "CPU us", "processor microseconds for one proposal";
        "context_switches_per_append" "switches", "context switches for one append";
        "context_switches_per_write" "switches", "context switches for one proposal";
        "device_writes_per_append" "dev writes", "writes and flushes of the device for one append";
        "device_writes_per_write" "dev writes", "writes and flushes of the device for one proposal";
        "failed" "failed", "proposals that ended with an error";
    }
    ranked by "ratio_to_limit"
    ratios {
        "ratio_to_limit" "appends_per_s" Over BELOW;
        "ratio_to_limit" "writes_per_s" Over STATELESS;
    }
    spreads {
        "wal-again" "appends_per_s" "a_a_spread";
        "forebay-memory-again" "writes_per_s" "a_a_spread";
    }
    limits {
        "forebay" "appends_per_s" over BELOW, at_least 0.85, within "wal-again", when |table| table.text("workload") == "appends";
    }
}

fn title(table: &Table) -> String {
    let what =
        WORKLOADS.iter().find(|(name, ..)| *name == table.text("workload")).map_or("", |(.., what)| what);
    let number = |name| table.number(name).unwrap_or(0.0);
    format!("raft: {what}, {} in flight x {} B", number("writers"), number("record_bytes"))
}

/// Space for the logs of a sample.
const ROOM_BYTES: u64 = 8 << 30;

fn plan<'c>(options: &Values, context: &'c Context) -> Result<Run<'c>> {
    let method = "Each sample is a process of its own with new files. Its time begins after a warm-up. A flush is a device \
        write, too. Rows take turns within a repeat; ratios are those of the same repeat, and figures medians.";
    let (mut run, scratch) = Run::in_directory(context, RAFT.spec.name, true, method)?;
    check_space(&scratch.directory, ROOM_BYTES, "name another directory with --dir")?;
    let wanted = options.words("workloads");
    for (workload, nodes, _) in WORKLOADS.iter().filter(|(name, ..)| wanted.contains(name)) {
        run.table(json!({
            "workload": workload, "nodes": nodes, "writers": options.count("in-flight"),
            "record_bytes": options.count("value-bytes"), "warm_up_seconds": options.number("warm-up-seconds"),
            "tokio_workers": cores(),
        }));
    }
    if !cfg!(feature = "rocksdb") {
        context.progress.print_line("built without the feature rocksdb: its row is left out");
    }
    run.has = Box::new(|setting, row| {
        let is_of_appends = setting.get("workload") == Some(&Value::from("appends"));
        match row.strip_suffix("-again").unwrap_or(row) {
            "wal" => is_of_appends,
            "forebay-memory" => !is_of_appends,
            "rocksdb" => cfg!(feature = "rocksdb"),
            _ => true,
        }
    });
    run.prepare = Box::new(move |_, job| {
        let directory = scratch.temp_directory(context, "raft")?;
        job.path = directory.path().to_owned();
        Ok(Some(Box::new(directory)))
    });
    Ok(run)
}

fn engine() -> Result<Engine> {
    Ok(Engine::start(Config::new())?)
}

fn entry(index: u64, bytes: usize) -> EntryOf<Types> {
    EntryOf::<Types>::new_normal(id(index), "v".repeat(bytes))
}

fn id(index: u64) -> LogIdOf<Types> {
    LogIdOf::<Types>::new(LeaderId::new_committed(1, 1), index)
}

/// After this many appends those before the last [`APPENDS_KEPT`] are purged or truncated.
const APPENDS_TO_PURGE: u64 = 50_000;
const APPENDS_KEPT: u64 = 10_000;

/// Measures the log below: tasks append one record after the other, of the length that an entry has in forebay-raft's log.
fn below(work: &Work) -> Result<Outcome> {
    let engine = engine()?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let (wal, _) = Wal::open(&engine, &work.path, forebay_wal::Options::new()).wait()?;
    let record = vec![b'v'; rmp_serde::to_vec_named(&entry(1_000_000, work.record_bytes))?.len()];
    let lanes = (0..work.writers).map(|_| (wal.clone(), record.clone()));
    let outcome = tokio_tasks!(work, runtime, lanes, |(wal, record)| {
        let lsn = wal.append(&record).await?;
        if lsn.0.is_multiple_of(APPENDS_TO_PURGE) {
            wal.truncate_before(forebay_wal::Lsn(lsn.0 - APPENDS_KEPT)).await?;
        }
    })?;
    wal.close().wait()?;
    engine.close().wait()?;
    Ok(outcome)
}

/// Measures appends to a log: one task makes them, as openraft's loop does, and never has more under way than it should.
fn appends<L: RaftLogStorage<Types>>(work: &Work, open: impl AsyncFnOnce() -> Result<L>) -> Result<Outcome> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let mut log = runtime.block_on(open())?;
    let (window, inner) = (work.window(), work.clone());
    let meter = window.meter();
    let meters = on_tokio(
        &runtime,
        std::iter::once(async move {
            let (mut next, mut flying) = (0, VecDeque::new());
            loop {
                while flying.len() < inner.writers {
                    let (sender, receiver) = Types::oneshot();
                    let began = meter.begin();
                    log.append([entry(next, inner.record_bytes)], IOFlushed::signal(sender)).await?;
                    flying.push_back((began, receiver));
                    next += 1;
                    if next.is_multiple_of(APPENDS_TO_PURGE) {
                        log.purge(id(next - APPENDS_KEPT)).await?;
                    }
                }
                let Some((began, receiver)) = flying.pop_front() else { continue };
                receiver.await??;
                if meter.finish(began).is_none() {
                    break;
                }
            }
            for (_, receiver) in flying {
                receiver.await??;
            }
            let last = log.get_log_state().await?.last_log_id;
            ensure!(last == Some(id(next - 1)), "the log ends with {last:?} after {next} appends");
            Ok(meter)
        }),
    )?;
    Ok(window.outcome(meters))
}

/// Measures proposals to nodes, one after the other from as many tasks as should be under way.
fn writes<L, M>(work: &Work, open: impl AsyncFn(PathBuf, Engine) -> Result<(L, M)>) -> Result<Outcome>
where
    L: RaftLogStorage<Types>,
    M: RaftStateMachine<Types>,
{
    let engine = engine()?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let nodes = runtime.block_on(cluster::start(work.nodes, &work.path, |dir| open(dir, engine.clone())))?;
    let window = work.window();
    let clients = (0..work.writers).map(|_| {
        let (meter, mut client) = (window.meter(), Client::new(&nodes, work.record_bytes));
        async move {
            while_open!(meter, client.propose().await?);
            anyhow::Ok((meter, client.failed))
        }
    });
    let (meters, failed): (Vec<_>, Vec<u64>) = on_tokio(&runtime, clients)?.into_iter().unzip();
    runtime.block_on(cluster::stop(nodes))?;
    drop(runtime);
    engine.close().wait()?;
    Ok(window.outcome(meters).figure("failed", failed.iter().sum::<u64>() as f64))
}

fn is_appends(work: &Work) -> bool {
    work.workload == "appends"
}

async fn log(engine: &Engine, dir: &Path) -> Result<RaftLog<Types>> {
    Ok(RaftLog::open(engine, dir.join("log"), LogOptions::new()).await?)
}

/// Memory of each node's store.
const STORE_BYTES: u64 = 32 << 20;

async fn store(engine: &Engine, dir: &Path) -> Result<RaftStore<Types, Last>> {
    Ok(RaftStore::open(engine, dir.join("state"), Options::new().memory_bytes_max(STORE_BYTES), Last).await?)
}

fn forebay(work: &Work) -> Result<Outcome> {
    if is_appends(work) {
        let engine = engine()?;
        return appends(work, async || log(&engine, &work.path).await);
    }
    writes(work, async |dir, engine| Ok((log(&engine, &dir).await?, store(&engine, &dir).await?)))
}

fn raft_log(work: &Work) -> Result<Outcome> {
    if is_appends(work) {
        return appends(work, async || backends::raft_log::open(&work.path));
    }
    writes(work, async |dir, _| {
        Ok((backends::raft_log::open(&dir.join("log"))?, Machine::new(Memory::default())))
    })
}

fn file(work: &Work) -> Result<Outcome> {
    if is_appends(work) {
        return appends(work, async || backends::file(&work.path.join("log")).await);
    }
    writes(work, async |dir, _| {
        Ok((backends::file(&dir.join("log")).await?, Machine::new(Memory::default())))
    })
}

#[cfg(not(feature = "rocksdb"))]
fn rocksdb(_: &Work) -> Result<Outcome> {
    bail!("built without the feature rocksdb")
}

#[cfg(feature = "rocksdb")]
fn rocksdb(work: &Work) -> Result<Outcome> {
    let outcome = if is_appends(work) {
        appends(work, async || backends::rocks::open(&work.path))
    } else {
        writes(work, async |dir, _| {
            let mut options = rocksdb::Options::default();
            options.create_if_missing(true);
            let state = rocksdb::DB::open(&options, dir.join("state"))?;
            Ok((backends::rocks::open(&dir.join("log"))?, Machine::new(state)))
        })
    };
    backends::rocks::wait_for_threads()?;
    outcome
}
