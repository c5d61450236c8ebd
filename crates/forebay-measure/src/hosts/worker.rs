//! The process that measures for an agent: one for each controller. Whatever happens to the controller or
//! the agent, the end of this process ends the measurement and removes its file.
//!
//! It reads tasks from standard input, a line of JSON each, and writes results to standard output. At the
//! end of its input, which also follows from the death of the agent, it sends SIGTERM to itself.

use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::Context as _;
use rustix::process::{Signal, getpid, kill_process};

use super::super::cold::Cold;
use super::super::plan::MEMORY_MIN_BYTES;
use super::super::sampler::Sampler;
use super::super::test_file::TestFile;
use super::message::{Done, HostWork, Prepared, Task};
use crate::cleanup::Cleanup;
use crate::context::{Context, Target};
use crate::progress::Progress;
use forebay_report::failure::Failure;

/// Tasks that may wait; a controller that follows the protocol never has two.
const TASKS_MAX: usize = 8;

/// Serves until the input ends.
///
/// # Errors
/// Fails when the handlers of signals cannot be installed, or the reader of the results is gone.
pub fn run(directory: &Path) -> anyhow::Result<()> {
    let cleanup = Cleanup::install().context("the signal handlers cannot be installed")?;
    let (sender, tasks) = sync_channel(TASKS_MAX);
    std::thread::Builder::new().name("forebay-tasks".to_owned()).spawn(move || {
        take_tasks(&sender);
        // The handler removes the file even while it is being written.
        let _ = kill_process(getpid(), Signal::TERM);
    })?;
    let Ok(task) = tasks.recv() else { return wait_for_the_end() };
    let Task::Prepare { memory_bytes, file_bytes, seed } = task else {
        return fail(None, &anyhow::anyhow!("a sample was requested before the file was prepared"));
    };
    let context =
        Context::new(Target::Directory(directory.to_owned()), Progress::Silent, cleanup.clone(), seed);
    if let Err(error) = serve(&context, memory_bytes, file_bytes, &tasks) {
        fail(None, &error)?;
    }
    wait_for_the_end()
}

/// Waits for the signal that follows the end of the input; it ends this process.
fn wait_for_the_end() -> anyhow::Result<()> {
    loop {
        std::thread::park();
    }
}

fn take_tasks(sender: &SyncSender<Task>) {
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let Ok(task) = serde_json::from_str(&line) else { return };
        if sender.try_send(task).is_err() {
            return;
        }
    }
}

fn serve(
    context: &Context,
    memory_bytes: u64,
    file_bytes: u64,
    tasks: &Receiver<Task>,
) -> anyhow::Result<()> {
    anyhow::ensure!(
        memory_bytes >= MEMORY_MIN_BYTES && file_bytes > memory_bytes && file_bytes.is_multiple_of(1 << 20),
        "impossible sizes: {memory_bytes} bytes of memory, {file_bytes} of the file"
    );
    let test_file = TestFile::prepare(context, file_bytes, None)?;
    let (cold, notes) = Cold::choose(&test_file, memory_bytes, &context.cleanup);
    let mut sampler = Sampler::new(&test_file, &cold, memory_bytes, &context.cleanup);
    send(&Done::Prepared(Prepared {
        file_bytes: test_file.bytes,
        file_system: test_file.filesystem.clone(),
        cold_method: cold.describe(memory_bytes),
        memory_limited: matches!(cold, Cold::Cgroup(_)),
        cache: cold.cache_state(),
        notes,
    }))?;
    while let Ok(task) = tasks.recv() {
        match task {
            Task::Sample { round, work } => match sample(&mut sampler, &test_file, round, work, tasks) {
                Ok(done) => send(&done)?,
                Err(error) => fail(Some(round), &error)?,
            },
            // The reply to a sample that has failed meanwhile.
            Task::Go { .. } => {}
            Task::Prepare { .. } => anyhow::bail!("the file was prepared already"),
        }
    }
    Ok(())
}

fn sample(
    sampler: &mut Sampler<'_>,
    test_file: &TestFile,
    round: u64,
    work: HostWork,
    tasks: &Receiver<Task>,
) -> anyhow::Result<Done> {
    work.check(test_file.bytes).context("the controller requested an impossible sample")?;
    let (job, cached) = work.job(&test_file.path)?;
    let mut start = || {
        send(&Done::Ready { round })?;
        match tasks.recv() {
            Ok(Task::Go { round: of, at_ns: Some(at_ns) }) if of == round => Ok(at_ns),
            Ok(Task::Go { .. }) => anyhow::bail!("given up, because another host could not take part"),
            _ => anyhow::bail!("the sample was ready, and its start did not come"),
        }
    };
    let (timed, memory_peak_bytes) = sampler.run_at(job, cached, &mut start)?;
    let conditions = test_file.preconditions.conditions();
    Ok(Done::Sampled { round, timed: Box::new(timed), memory_peak_bytes, conditions })
}

fn fail(round: Option<u64>, error: &anyhow::Error) -> anyhow::Result<()> {
    let code = error.downcast_ref::<Failure>().map_or(1, Failure::code);
    send(&Done::Failed { round, why: format!("{error:#}"), code })
}

fn send(done: &Done) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(done)?)?;
    Ok(out.flush()?)
}
