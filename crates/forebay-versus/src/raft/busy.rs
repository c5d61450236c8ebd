//! `raft-busy`: three nodes in one process with a busy Tokio runtime: the time of a proposal, and how often heartbeats arrive so
//! late that the leader has lost its lease.

use forebay::{Config, Engine, Priority};
use openraft::storage::{RaftLogStorage, RaftStateMachine};
use tokio::runtime::{Builder, Runtime};

use super::cluster::{self, Client, ELECTION_MS_MIN};
use super::{backends, log, store};
use crate::prelude::*;

experiment! {
    RAFT_BUSY "raft-busy", "Proposals to three Raft nodes in one process beside tasks that compute, and heartbeats that come too late",
        compared by "p99_us", per |_| "write";
    options {
        count("clients", "Threads that propose one value after the other", 1024).or("8");
        count("busy-tasks", "Tasks that compute", 1024).or("4");
        time("computes", "Seconds that each computes between two yields; 0 for no tasks", 0.0, 60.0).list().or("0,0.003,0.1,0.3");
        bytes("value-bytes", "Size of a value", 1, 1 << 20).or("256");
        count("repeats", "Interleaved repeats, each with new files", 1000).or("3");
        seconds("5", "1");
        time("warm-up-seconds", "Seconds before that do not count", 0.0, 86_400.0).or("0.3");
    }
    rows {
        cached "file", "a log by tokio::fs with one sync for all that waits, on the busy runtime"
            => |work| measure(work, false, async |dir, engine| {
                Ok((backends::file(&dir.join("log")).await?, store(&engine, &dir).await?))
            });
        direct "forebay", "forebay-raft's log on shards, Raft on the busy runtime" => |work| forebay(work, false), twin direct;
        direct "forebay-apart", "forebay-raft's log on shards, Raft on a runtime of its own with two threads"
            => |work| forebay(work, true);
    }
    columns {
        "writes_per_s" "writes/s", "proposals in a second";
        P50_US;
        P99_US;
        "longest_us" "longest us", "the proposal that took longest";
        "leases_lost" "leases lost", "times that no majority had acknowledged the leader for 300 ms, after which the others may elect";
        "quorum_age_max_ms" "no quorum ms", "the longest time without such an acknowledgement, in milliseconds";
        "elections" "elections", "elections of another leader";
        "failed" "failed", "proposals that ended with an error";
        "cpu_us_per_write" "CPU us", "processor microseconds for one proposal, those of the busy tasks too";
    }
    ranked by "writes_per_s"
    ratios {}
    spreads { "forebay-again" "writes_per_s" "a_a_spread"; }
    limits {}
}

const NODES: usize = 3;

fn title(table: &Table) -> String {
    let number = |name| table.number(name).unwrap_or(0.0);
    let busy = match number("computes_s") {
        0.0 => "an idle runtime".to_owned(),
        seconds => {
            format!("{} tasks that compute for {} ms between two yields", number("tasks_max"), seconds * 1e3)
        }
    };
    format!("raft-busy: proposals of {} threads beside {busy}", number("writers"))
}

fn plan<'c>(options: &Values, context: &'c Context) -> Result<Run<'c>> {
    let method = "Each sample is a process of its own with new files: three nodes with heartbeats every 50 ms, which elect after 300 to \
        600 ms without one. The busy runtime has two workers. Clients are threads, so that their own turns are not measured. Rows \
        take turns within a repeat; figures are medians.";
    let (mut run, scratch) = Run::in_directory(context, RAFT_BUSY.spec.name, true, method)?;
    for computes_s in options.numbers("computes") {
        run.table(json!({
            "computes_s": computes_s, "nodes": NODES, "writers": options.count("clients"), "tasks_max": options.count("busy-tasks"),
            "record_bytes": options.count("value-bytes"), "warm_up_seconds": options.number("warm-up-seconds"),
        }));
    }
    run.prepare = Box::new(move |_, job| {
        let directory = scratch.temp_directory(context, "raft")?;
        job.path = directory.path().to_owned();
        Ok(Some(Box::new(directory)))
    });
    Ok(run)
}

fn forebay(work: &Work, is_apart: bool) -> Result<Outcome> {
    measure(work, is_apart, async |dir, engine| Ok((log(&engine, &dir).await?, store(&engine, &dir).await?)))
}

fn runtime(name: &str) -> Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(2).thread_name(name).enable_all().build()?)
}

/// Between two looks at the leader's lease.
const LOOK: Duration = Duration::from_millis(5);

/// Returns how often the leader's lease was lost until it is over, and the longest time without a majority.
fn watch_leases<M: RaftStateMachine<super::Types>>(
    nodes: &cluster::Nodes<M>,
    is_over: &AtomicBool,
) -> (u64, Duration) {
    let (mut lost, mut longest, mut is_lost) = (0, Duration::ZERO, false);
    while !is_over.load(Ordering::Relaxed) {
        if let Some(age) = cluster::quorum_age(nodes) {
            let was_lost = std::mem::replace(&mut is_lost, age > Duration::from_millis(ELECTION_MS_MIN));
            lost += u64::from(is_lost && !was_lost);
            longest = longest.max(age);
        }
        std::thread::sleep(LOOK);
    }
    (lost, longest)
}

/// Measures nodes on the busy runtime, or apart from it.
fn measure<L, M>(
    work: &Work,
    is_apart: bool,
    open: impl AsyncFn(PathBuf, Engine) -> Result<(L, M)>,
) -> Result<Outcome>
where
    L: RaftLogStorage<super::Types>,
    M: RaftStateMachine<super::Types>,
{
    let engine = Engine::start(Config::new().shards(1).priority(Priority::Prompt))?;
    let (busy, own) = (runtime("busy")?, runtime("raft")?);
    let home = if is_apart { &own } else { &busy };
    let nodes = home.block_on(cluster::start(work.nodes, &work.path, |dir| open(dir, engine.clone())))?;
    let computes = Duration::from_secs_f64(work.computes_s);
    for _ in 0..if computes.is_zero() { 0 } else { work.tasks_max } {
        busy.spawn(async move {
            loop {
                let begun = Instant::now();
                while begun.elapsed() < computes {
                    std::hint::spin_loop();
                }
                tokio::task::yield_now().await;
            }
        });
    }
    let terms = cluster::term(&nodes);
    let is_over = Arc::new(AtomicBool::new(false));
    let leases = std::thread::spawn({
        let (nodes, is_over) = (nodes.clone(), is_over.clone());
        move || watch_leases(&nodes, &is_over)
    });
    let window = work.window();
    let results = on_threads((0..work.writers).map(|_| {
        let (meter, mut client) = (window.meter(), Client::new(&nodes, work.record_bytes));
        let handle = home.handle();
        move || {
            let mut longest = Duration::ZERO;
            while_open!(meter, {
                let begun = Instant::now();
                handle.block_on(client.propose())?;
                longest = longest.max(begun.elapsed());
            });
            Ok((meter, longest, client.failed))
        }
    }))?;
    is_over.store(true, Ordering::Relaxed);
    let (leases_lost, quorum_age_max) = leases.join().map_err(|_| anyhow!("a thread panicked"))?;
    let elections = cluster::term(&nodes) - terms;
    let longest =
        results.iter().map(|(_, longest, _)| *longest).max().map_or(0.0, |longest| longest.as_secs_f64());
    let failed: u64 = results.iter().map(|(.., failed)| failed).sum();
    let outcome = window.outcome(results.into_iter().map(|(meter, ..)| meter));
    busy.shutdown_background();
    own.shutdown_background();
    engine.close().wait()?;
    Ok(outcome
        .figure("longest_us", longest * 1e6)
        .figure("leases_lost", leases_lost as f64)
        .figure("quorum_age_max_ms", quorum_age_max.as_secs_f64() * 1e3)
        .figure("elections", elections as f64)
        .figure("failed", failed as f64))
}
