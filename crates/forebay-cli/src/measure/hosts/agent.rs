//! `forebay agent`: measures in one directory for a controller, which starts it and speaks with it over its
//! standard input and output. The same code serves rank 0 over a connection.
//!
//! The main thread measures. One thread receives, and replies to requests for the clock at once. Another
//! one reports that this process is alive and notices when the controller is not. When the controller has
//! gone, the process sends SIGTERM to itself: the handler removes the file even while it is being written.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use rustix::process::{Signal, getpid, kill_process};

use super::super::cold::Cold;
use super::super::plan::{MEMORY_MIN_BYTES, affordable_bytes};
use super::super::sampler::Sampler;
use super::super::start_barrier::monotonic_ns;
use super::super::test_file::TestFile;
use super::message::{Facts, FromAgent, HostWork, PROTOCOL, Prepared, ToAgent, receive, send};
use super::{ALIVE_EVERY, SILENCE_MAX};
use crate::cleanup::Cleanup;
use crate::context::{Context, Target};
use crate::doctor;
use crate::exit::Failure;
use crate::output::stderr_line;
use crate::progress::Progress;

/// The time for the controller's first message. It comes when all other hosts, or ranks, have begun.
const FIRST_WITHIN: Duration = Duration::from_secs(200);

/// Tasks that may wait; a controller that follows the protocol never has more than two.
const TASKS_MAX: usize = 8;

/// Options of `agent`.
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    /// Measure in this directory for the controller at standard input and output: a temp file is written there and
    /// removed, nothing else is touched
    #[arg(long, value_name = "DIR")]
    stdio: PathBuf,
}

/// Serves the controller that started this process.
///
/// # Errors
/// None: the controller reports them. The exit code is that of the same failure on one host.
pub(crate) fn run(args: &AgentArgs, cleanup: &Cleanup) -> anyhow::Result<ExitCode> {
    let input = BufReader::new(io::stdin());
    let outcome = serve(input, Box::new(io::stdout()), &args.stdio, cleanup, false);
    Ok(outcome.map_or_else(|error| ExitCode::from(code(&error)), |()| ExitCode::SUCCESS))
}

/// Serves a controller until it reports the end. The file is gone when this returns. The process ends when
/// the controller is lost, `loudly` with a sentence on standard error.
///
/// # Errors
/// Fails with the reason why nothing can be measured here; the controller has received it, too.
pub(super) fn serve(
    input: impl BufRead + Send + 'static,
    output: Box<dyn Write + Send>,
    directory: &Path,
    cleanup: &Cleanup,
    loudly: bool,
) -> anyhow::Result<()> {
    let wire = Arc::new(Wire {
        output: Mutex::new(output),
        silent_from: Mutex::new(Some(Instant::now() + FIRST_WITHIN)),
        loudly,
    });
    let facts = serde_json::to_value(facts())?;
    wire.send(&FromAgent::Hello {
        protocol: PROTOCOL,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        facts,
    })?;
    let outcome = begin(&wire, input, directory, cleanup);
    if let Err(error) = &outcome {
        // If the send fails, the controller learns of the failure from the end of the connection.
        let _ = wire.send(&FromAgent::Lost { why: format!("{error:#}"), code: code(error) });
    }
    outcome
}

/// Checks the directory, starts the threads and measures.
fn begin(
    wire: &Arc<Wire>,
    input: impl BufRead + Send + 'static,
    directory: &Path,
    cleanup: &Cleanup,
) -> anyhow::Result<()> {
    let target = Target::resolve(directory, false, false)?;
    if !matches!(target, Target::Directory(_)) {
        let name = directory.display();
        return Err(Failure::Path(format!(
            "{name} is no directory: an agent makes a file of its own in one"
        ))
        .into());
    }
    doctor::preflight(&target, cleanup)?;
    let (sender, tasks) = sync_channel(TASKS_MAX);
    let (listener, watcher) = (Arc::clone(wire), Arc::clone(wire));
    std::thread::Builder::new().name("forebay-tasks".to_owned()).spawn(move || {
        if let Err(error) = listener.listen(input, &sender) {
            listener.lose(&error);
        }
    })?;
    std::thread::Builder::new().name("forebay-alive".to_owned()).spawn(move || watcher.watch())?;
    measure(wire, target, cleanup, &tasks)
}

/// The connection to the controller, as all threads see it.
struct Wire {
    output: Mutex<Box<dyn Write + Send>>,
    /// The instant from which the controller counts as lost. `None` after its last message.
    silent_from: Mutex<Option<Instant>>,
    loudly: bool,
}

impl Wire {
    fn send(&self, message: &FromAgent) -> anyhow::Result<()> {
        send(&mut *lock(&self.output), message)
    }

    /// Passes tasks on until the controller reports the end.
    fn listen(&self, mut input: impl BufRead, tasks: &SyncSender<ToAgent>) -> anyhow::Result<()> {
        loop {
            let message = receive(&mut input)?;
            let arrived_ns = monotonic_ns();
            *lock(&self.silent_from) = Some(Instant::now() + SILENCE_MAX);
            match message {
                ToAgent::Alive => {}
                ToAgent::Clock => self.send(&FromAgent::Clock { arrived_ns, sent_ns: monotonic_ns() })?,
                ToAgent::End => {
                    *lock(&self.silent_from) = None;
                    return Ok(());
                }
                task => tasks.try_send(task).context("more tasks than the protocol allows")?,
            }
        }
    }

    fn watch(&self) {
        loop {
            std::thread::park_timeout(ALIVE_EVERY);
            let Some(silent_from) = *lock(&self.silent_from) else { return };
            if Instant::now() >= silent_from {
                self.lose(&anyhow::anyhow!("no message arrived for {} s", SILENCE_MAX.as_secs()));
            }
            // The end of the input tells more than an output that nobody reads.
            let _ = self.send(&FromAgent::Alive);
        }
    }

    /// Ends this process because the controller has gone.
    fn lose(&self, why: &anyhow::Error) {
        if self.loudly {
            stderr_line(format_args!("forebay: rank 0 was lost: {why:#}"));
        }
        let _ = kill_process(getpid(), Signal::TERM);
        // The signal ends the process. The main thread must not see the end of the tasks before.
        loop {
            std::thread::park();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn code(error: &anyhow::Error) -> u8 {
    error.downcast_ref::<Failure>().map_or(1, Failure::code)
}

fn facts() -> Facts {
    let machine = doctor::machine_only();
    Facts {
        host: super::host_name(),
        kernel: machine.kernel,
        architecture: machine.architecture,
        cpus_allowed: machine.cpus_allowed,
        memory_affordable_bytes: affordable_bytes(),
        optimized_build: machine.optimized_build,
    }
}

/// Carries out tasks until there are no more.
fn measure(wire: &Wire, target: Target, cleanup: &Cleanup, tasks: &Receiver<ToAgent>) -> anyhow::Result<()> {
    let Ok(task) = tasks.recv() else { return Ok(()) };
    let ToAgent::Prepare { memory_bytes, file_bytes, seed } = task else {
        anyhow::bail!("a sample was requested before the file was prepared");
    };
    anyhow::ensure!(
        memory_bytes >= MEMORY_MIN_BYTES && file_bytes > memory_bytes && file_bytes.is_multiple_of(1 << 20),
        "impossible sizes: {memory_bytes} bytes of memory, {file_bytes} of the file"
    );
    let context = Context::new(target, Progress::Silent, cleanup.clone(), seed);
    let test_file = TestFile::prepare(&context, file_bytes, None)?;
    let (cold, notes) = Cold::choose(&test_file, memory_bytes, cleanup);
    let mut sampler = Sampler::new(&test_file, &cold, memory_bytes, cleanup);
    wire.send(&FromAgent::Prepared(Prepared {
        file_bytes: test_file.bytes,
        file_system: test_file.filesystem.clone(),
        cold_method: cold.describe(memory_bytes),
        memory_limited: matches!(cold, Cold::Cgroup(_)),
        cache: cold.cache_state(),
        notes,
    }))?;
    while let Ok(task) = tasks.recv() {
        match task {
            ToAgent::Sample { round, work } => {
                let sampled = sample(wire, &mut sampler, &test_file, round, &work, tasks);
                let failed = |error| FromAgent::Failed { round, why: format!("{error:#}") };
                wire.send(&sampled.unwrap_or_else(failed))?;
            }
            // The reply to a sample that has failed meanwhile.
            ToAgent::Go { .. } => {}
            _ => anyhow::bail!("the file was prepared already"),
        }
    }
    Ok(())
}

fn sample(
    wire: &Wire,
    sampler: &mut Sampler<'_>,
    test_file: &TestFile,
    round: u64,
    work: &HostWork,
    tasks: &Receiver<ToAgent>,
) -> anyhow::Result<FromAgent> {
    work.check(test_file.bytes).context("the controller requested an impossible sample")?;
    let (job, cached) = work.job(&test_file.path)?;
    let mut start = || {
        wire.send(&FromAgent::Ready { round })?;
        match tasks.recv() {
            Ok(ToAgent::Go { round: of, at_ns: Some(at_ns) }) if of == round => Ok(at_ns),
            Ok(ToAgent::Go { .. }) => anyhow::bail!("given up, because another host could not take part"),
            _ => anyhow::bail!("the sample was ready, and its start did not come"),
        }
    };
    let (timed, memory_peak_bytes) = sampler.run_at(job, cached, &mut start)?;
    let conditions = test_file.preconditions.conditions();
    Ok(FromAgent::Sampled { round, timed: Box::new(timed), memory_peak_bytes, conditions })
}
