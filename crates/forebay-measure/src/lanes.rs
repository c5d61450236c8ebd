//! Lanes: the same work several times in parallel, on threads, in tasks of a Tokio runtime, or with an engine in addition. All
//! start together, under one gauge.

use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{self, Poll, Waker};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay::{Class, Config, Engine};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::gauge::{Cost, Gauge};
use crate::job::Job;

/// A lane needs few kilobytes of stack. Much more of it could become huge pages, and be counted as memory in use.
const STACK_BYTES: usize = 256 << 10;

/// Waits until all lanes have ended, and returns their results.
pub(crate) type Join<'a, T> = Box<dyn FnOnce() -> anyhow::Result<Vec<T>> + 'a>;

/// Starts a thread for each lane, whose calls block it.
///
/// # Errors
/// A thread cannot be started.
pub(crate) fn on_own_threads<T: Send + 'static>(
    lanes: impl IntoIterator<Item: Future<Output = anyhow::Result<T>> + Send + 'static>,
) -> anyhow::Result<Join<'static, T>> {
    let builder = || std::thread::Builder::new().stack_size(STACK_BYTES);
    let threads: Vec<_> =
        lanes.into_iter().map(|lane| builder().spawn(|| ready(lane))).collect::<Result<_, _>>()?;
    Ok(Box::new(|| {
        let join = |thread: std::thread::JoinHandle<anyhow::Result<T>>| {
            thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?
        };
        threads.into_iter().map(join).collect()
    }))
}

/// Starts a task of a runtime for each lane.
pub(crate) fn in_tasks<T: Send + 'static>(
    runtime: &Runtime,
    lanes: impl IntoIterator<Item: Future<Output = anyhow::Result<T>> + Send + 'static>,
) -> Join<'_, T> {
    let tasks = lanes.into_iter().map(|lane| runtime.spawn(lane)).collect();
    Box::new(|| runtime.block_on(joined(tasks)))
}

/// Returns the results of tasks.
///
/// # Errors
/// The first error of a task.
pub(crate) async fn joined<T>(tasks: Vec<JoinHandle<anyhow::Result<T>>>) -> anyhow::Result<Vec<T>> {
    let mut ended = Vec::with_capacity(tasks.len());
    for task in tasks {
        ended.push(task.await.context("a task panicked")??);
    }
    Ok(ended)
}

/// Starts a task for each lane, on the first `shards` shards of an engine in turn.
pub(crate) fn tasks_on_shards<T: Send + 'static>(
    engine: &Engine,
    shards: usize,
    lanes: impl IntoIterator<Item: Future<Output = anyhow::Result<T>> + Send + 'static>,
) -> Join<'static, T> {
    let mut of_shard: Vec<Vec<_>> = (0..shards).map(|_| Vec::new()).collect();
    lanes.into_iter().enumerate().for_each(|(number, lane)| of_shard[number % shards].push(lane));
    // A message for each lane could fill the inbox of a shard that waits for the start.
    let start = |(shard, lanes): (usize, Vec<_>)| {
        engine.spawn_on_shard(shard, Class::DEFAULT, move || async move {
            let tasks = lanes.into_iter().map(forebay::shard::spawn).collect::<Result<Vec<_>, _>>()?;
            let mut ended = Vec::with_capacity(tasks.len());
            for task in tasks {
                ended.push(task.await??);
            }
            anyhow::Ok(ended)
        })
    };
    let tasks: Vec<_> = of_shard.into_iter().enumerate().map(start).collect();
    Box::new(|| {
        let parts = tasks.into_iter().map(|task| task.wait()?).collect::<anyhow::Result<Vec<Vec<T>>>>()?;
        Ok(parts.into_iter().flatten().collect())
    })
}

/// Runs `lane` on `lanes` threads, with its number and the instant after which it starts nothing more.
///
/// # Errors
/// A thread cannot be started, or the first error of a lane.
pub(crate) fn on_threads<T: Send>(
    lanes: usize,
    job: &Job,
    lane: impl Fn(usize, Instant) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<(Vec<T>, Cost)> {
    // Held until all threads exist; then it passes them the deadline. If a thread cannot be created, the lock opens without a
    // deadline, and the others end immediately.
    let gate = RwLock::new(None);
    std::thread::scope(|scope| {
        let mut closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let mut threads = Vec::with_capacity(lanes);
        for number in 0..lanes {
            let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
            let (gate, lane) = (&gate, &lane);
            threads.push(builder.spawn_scoped(scope, move || {
                let deadline = *gate.read().unwrap_or_else(PoisonError::into_inner);
                deadline.map(|deadline| lane(number, deadline)).transpose()
            })?);
        }
        let gauge = Gauge::start(job.device_stat.as_deref())?;
        *closed = Some(deadline(&gauge, job));
        drop(closed);
        let joined: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        let cost = gauge.stop()?;
        let ended = joined.into_iter().map(|lane| lane.map_err(|_| anyhow::anyhow!("a thread panicked"))?);
        Ok((ended.filter_map(Result::transpose).collect::<anyhow::Result<_>>()?, cost))
    })
}

/// Runs `lane` in `lanes` tasks of a Tokio runtime with its usual threads, or with `workers`.
///
/// # Errors
/// The runtime cannot be started, or the first error of a lane.
pub(crate) fn on_tokio<T: Send + 'static, F: Future<Output = anyhow::Result<T>> + Send + 'static>(
    lanes: usize,
    workers: Option<usize>,
    job: &Job,
    lane: impl Fn(usize, Instant) -> F,
) -> anyhow::Result<(Vec<T>, Cost)> {
    let mut builder = Builder::new_multi_thread();
    if let Some(workers) = workers {
        builder.worker_threads(workers);
    }
    let runtime = builder.enable_all().build()?;
    let gauge = Gauge::start(job.device_stat.as_deref())?;
    let deadline = deadline(&gauge, job);
    let ended = in_tasks(&runtime, (0..lanes).map(|number| lane(number, deadline)))()?;
    Ok((ended, gauge.stop()?))
}

/// Returns the result of a future that never waits, because its calls block the thread.
///
/// # Errors
/// The errors of the future; it did wait.
pub(crate) fn ready<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    match pin!(future).poll(&mut task::Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => anyhow::bail!("a call that should block the thread did not"),
    }
}

/// Builds a Tokio runtime for work that shares the machine, as `#[tokio::main]` does, with polite workers where wanted.
///
/// # Errors
/// A thread cannot be started.
pub(crate) fn runtime(workers: usize, is_polite: bool) -> std::io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(workers).enable_all();
    if is_polite {
        builder.on_thread_start(forebay::polite_worker);
    }
    builder.build()
}

/// Starts an engine for `work`, and closes it.
///
/// # Errors
/// The errors of the engine and of `work`; an engine that lost something as it closed.
pub(crate) fn with_engine<T>(
    config: Config,
    work: impl FnOnce(&Engine) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let engine = Engine::start(config)?;
    let outcome = work(&engine)?;
    close(engine)?;
    Ok(outcome)
}

/// Closes an engine after the figures were read. A row whose engine does not end well cannot be trusted.
///
/// # Errors
/// It lost something.
pub(crate) fn close(engine: Engine) -> anyhow::Result<()> {
    let report = engine.close().wait()?;
    anyhow::ensure!(
        report.leaked_operations == 0 && report.lost_shards == 0,
        "the engine lost {} shards and {} operations as it was closed",
        report.lost_shards,
        report.leaked_operations
    );
    Ok(())
}

/// Returns the part of `operations` that lane number `lane` of `lanes` has.
pub(crate) fn share(operations: u64, lane: usize, lanes: usize) -> u64 {
    let lanes = lanes as u64;
    operations / lanes + u64::from((lane as u64) < operations % lanes)
}

/// Returns `job` and its parameters, shared by the tasks of a runtime.
///
/// # Errors
/// The parameters are not those of this experiment.
pub(crate) fn shared<W: serde::de::DeserializeOwned>(job: &Job) -> anyhow::Result<Arc<(Job, W)>> {
    Ok(Arc::new((job.clone(), job.work()?)))
}

fn deadline(gauge: &Gauge, job: &Job) -> Instant {
    gauge.begun() + Duration::from_secs_f64(job.seconds)
}

/// Lets this process have `files` files open, and some for itself. A lower limit may suffice: an open fails where it does not.
///
/// # Errors
/// The hard limit is lower.
pub(crate) fn allow_files(files: u64) -> anyhow::Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let wanted = files + 256;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        anyhow::ensure!(
            limit.maximum.is_none_or(|maximum| maximum >= wanted),
            "{wanted} files cannot be open at once here (ulimit -n -H): ask for fewer of them, or raise the limit"
        );
        limit.current = Some(wanted);
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(())
}

/// Returns a file with the pattern of a seed, removed with the value.
#[cfg(test)]
pub(crate) fn test_file(seed: u64, bytes: usize) -> (crate::cleanup::Cleanup, crate::cleanup::TempFile) {
    use std::os::unix::fs::FileExt;
    let cleanup = crate::cleanup::Cleanup::default();
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let temp = cleanup.temp_file(directory, "lanes").expect("writable");
    let mut memory = vec![0; bytes];
    crate::pattern::Pattern::new(seed).fill(0, &mut memory);
    temp.file().write_all_at(&memory, 0).expect("space for a few MiB");
    temp.file().sync_all().expect("it can be flushed");
    (cleanup, temp)
}

/// Returns a file of zeros, of which no block has space.
#[cfg(test)]
pub(crate) fn sparse_file(bytes: u64) -> crate::cleanup::TempFile {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let temp = crate::cleanup::Cleanup::default().temp_file(directory, "lanes").expect("writable");
    temp.file().set_len(bytes).expect("a sparse file");
    temp
}

/// Returns the path of the sample as the tests of this crate use it.
#[cfg(test)]
pub(crate) fn test_job(
    experiment: &str,
    way: &str,
    path: &std::path::Path,
    parameters: serde_json::Value,
    seed: u64,
) -> Job {
    let mut job = Job::new(experiment, path, &parameters, 60.0).expect("plain");
    (job.row, job.seed, job.seconds) = (way.to_owned(), seed, 60.0);
    job
}

/// Returns a row with a sample for each factor, by which all of these metrics are multiplied in it.
#[cfg(test)]
pub(crate) fn test_row(name: &str, factors: &[f64], metrics: &[(&str, f64)]) -> forebay_report::result::Row {
    let scaled = |factor: &f64| {
        let factor = *factor;
        metrics.iter().map(move |(name, value)| (*name, value * factor))
    };
    forebay_report::result::Row::of_repeats(name, factors.iter().map(scaled))
}

/// Returns a table with these parameters and rows.
#[cfg(test)]
pub(crate) fn test_table(
    experiment: &str,
    all: serde_json::Value,
    rows: Vec<forebay_report::result::Row>,
) -> forebay_report::result::Experiment {
    let mut table = forebay_report::result::Experiment::new(experiment, "");
    table.parameters.extend(crate::experiment::parameters(all));
    table.with_rows(rows)
}

/// Returns a context with the folder of this crate, which is on a disk.
#[cfg(test)]
pub(crate) fn test_context() -> crate::context::Context {
    use crate::{cleanup::Cleanup, context::Target, progress::Progress};
    let target = Target::Directory(env!("CARGO_MANIFEST_DIR").into());
    crate::context::Context::new(target, Progress::Silent, Cleanup::default(), 1)
}

/// Returns the options of an experiment as a command line sets them.
#[cfg(test)]
pub(crate) fn test_options(
    spec: &crate::experiment::Spec,
    length: crate::options::Length,
    words: &[&str],
) -> crate::options::Values {
    let command = clap::Command::new("measure").no_binary_name(true);
    let command = crate::options::augment(command, &[(spec.name, spec.options, spec.ways)]);
    let matches = command.try_get_matches_from(words).expect("valid");
    crate::options::Values::new(spec.options, Some(&matches), length).expect("valid")
}
