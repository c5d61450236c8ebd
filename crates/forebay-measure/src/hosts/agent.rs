//! `forebay agent`: measures in one directory for a controller, which starts it and speaks with it over its
//! standard input and output. The same code serves rank 0 over a connection.
//!
//! The main thread measures. One thread receives, and replies to requests for the clock immediately. Another thread reports that
//! this process is alive and detects when the controller is not. When the controller is lost, the process sends SIGTERM to itself:
//! the handler removes the file even while it is being written.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use rustix::process::{Signal, getpid, kill_process};

use super::message::{Facts, FromAgent, PreparedAgent, Sample, ToAgent, receive, send};
use super::{ALIVE_EVERY, Find, SILENCE_MAX, host_name};
use crate::backend::locked;
use crate::cleanup::Cleanup;
use crate::context::{Context, Target};
use crate::doctor;
use crate::experiment::Turn;
use crate::output::stderr_line;
use crate::plan::affordable_bytes;
use crate::progress::Progress;
use crate::runner;
use crate::start_barrier::monotonic_ns;
use forebay_report::failure::Failure;
use forebay_report::result::Row;

/// The time for the controller's first message. It is sent when all other hosts, or ranks, have started.
const FIRST_WITHIN: Duration = Duration::from_secs(200);

/// Tasks that may wait; a controller that follows the protocol never has more than two.
const TASKS_MAX: usize = 8;

/// Options of `agent`.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Measure in this directory for the controller at standard input and output: a temp file is written there and
    /// removed, nothing else is touched
    #[arg(long, value_name = "DIR")]
    stdio: PathBuf,
}

/// Serves the controller that started this process with the experiments that `find` finds.
///
/// # Errors
/// None: the controller reports them. The exit code is that of the same failure on one host.
pub fn run(args: &AgentArgs, find: Find<'_>, cleanup: &Cleanup) -> anyhow::Result<ExitCode> {
    let input = BufReader::new(io::stdin());
    let outcome = serve(input, Box::new(io::stdout()), &args.stdio, find, cleanup);
    Ok(outcome.map_or_else(|error| ExitCode::from(code(&error)), |()| ExitCode::SUCCESS))
}

/// Serves a controller until it reports the end. The file is removed when this returns. When the controller is lost, the process
/// ends.
///
/// # Errors
/// Fails with the reason why nothing can be measured here; the controller has received it, too.
pub(super) fn serve(
    input: impl BufRead + Send + 'static,
    output: Box<dyn Write + Send>,
    directory: &Path,
    find: Find<'_>,
    cleanup: &Cleanup,
) -> anyhow::Result<()> {
    let silent_from = Mutex::new(Some(Instant::now() + FIRST_WITHIN));
    let wire = Arc::new(Wire { output: Mutex::new(output), silent_from });
    let facts = serde_json::to_value(Facts {
        host: host_name(),
        cpus_allowed: doctor::machine_only().cpus_allowed,
        memory_affordable_bytes: affordable_bytes(),
    })?;
    wire.send(&FromAgent::Hello { program: env!("CARGO_PKG_VERSION").to_owned(), facts })?;
    let outcome = begin(&wire, input, directory, find, cleanup);
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
    find: Find<'_>,
    cleanup: &Cleanup,
) -> anyhow::Result<()> {
    let target = Target::resolve(directory, false, false)?;
    if !matches!(target, Target::Directory(_)) {
        let why =
            format!("{} is not a directory: an agent makes a file of its own in one", directory.display());
        return Err(Failure::Path(why).into());
    }
    doctor::preflight(&target, cleanup)?;
    let (sender, tasks) = sync_channel(TASKS_MAX);
    let (listener, watcher) = (Arc::clone(wire), Arc::clone(wire));
    std::thread::Builder::new().name("forebay-tasks".to_owned()).spawn(move || {
        if listener.listen(input, &sender).is_err() {
            end_process();
        }
    })?;
    std::thread::Builder::new().name("forebay-alive".to_owned()).spawn(move || watcher.watch())?;
    measure(wire, target, find, cleanup, &tasks)
}

/// Ends this process as Ctrl-C would.
fn end_process() -> ! {
    let _ = kill_process(getpid(), Signal::TERM);
    // The main thread must not see the end of the tasks before.
    loop {
        std::thread::park();
    }
}

/// The connection to the controller, as all threads see it.
struct Wire {
    output: Mutex<Box<dyn Write + Send>>,
    /// The instant from which the controller counts as lost. `None` after its last message.
    silent_from: Mutex<Option<Instant>>,
}

impl Wire {
    fn send(&self, message: &FromAgent) -> anyhow::Result<()> {
        send(&mut *locked(&self.output), message)
    }

    /// Passes tasks on until the controller reports the end.
    fn listen(&self, mut input: impl BufRead, tasks: &SyncSender<ToAgent>) -> anyhow::Result<()> {
        loop {
            let message = receive(&mut input)?;
            let arrived_ns = monotonic_ns();
            *locked(&self.silent_from) = Some(Instant::now() + SILENCE_MAX);
            match message {
                ToAgent::Alive => {}
                ToAgent::Clock => self.send(&FromAgent::Clock { arrived_ns, sent_ns: monotonic_ns() })?,
                ToAgent::End => {
                    *locked(&self.silent_from) = None;
                    return Ok(());
                }
                task => tasks.try_send(task).context("more tasks than the protocol allows")?,
            }
        }
    }

    fn watch(&self) {
        loop {
            std::thread::park_timeout(ALIVE_EVERY);
            let Some(silent_from) = *locked(&self.silent_from) else { return };
            if Instant::now() >= silent_from {
                stderr_line("forebay: the controller was lost: no message arrived for too long");
                end_process();
            }
            // The end of the input explains more than a broken output.
            let _ = self.send(&FromAgent::Alive);
        }
    }
}

fn code(error: &anyhow::Error) -> u8 {
    error.downcast_ref::<Failure>().map_or(1, Failure::code)
}

/// Executes tasks until the last.
fn measure(
    wire: &Wire,
    target: Target,
    find: Find<'_>,
    cleanup: &Cleanup,
    tasks: &Receiver<ToAgent>,
) -> anyhow::Result<()> {
    let Ok(task) = tasks.recv() else { return Ok(()) };
    let ToAgent::Prepare { experiment, options, seed } = task else {
        anyhow::bail!("a sample was requested before the file was prepared");
    };
    let known = find(&experiment);
    let experiment = known.with_context(|| format!("the experiment {experiment:?} is not known here"))?;
    let context = Context::new(target, Progress::Silent, cleanup.clone(), seed);
    let (spec, mut plan) = (experiment.spec(), experiment.plan(&options, &context)?);
    let settings = plan.settings();
    let seconds = options.number("seconds").unwrap_or(1.0);
    let frame = |setting| {
        let plan = plan.as_ref();
        let ways = runner::ways(spec, &options, plan, setting);
        let rows = ways.map(|way| {
            let row = Row { name: way.name.to_owned(), ..Row::default() };
            runner::described_row(plan, setting, way, row)
        });
        runner::table(spec, plan, setting, Some(seconds), rows.collect())
    };
    let tables = settings.iter().map(frame).collect();
    let machine = doctor::machine_only();
    let about = format!(
        "{}, {} {}, {} processors, {}{}",
        host_name(),
        machine.kernel,
        machine.architecture,
        machine.cpus_allowed,
        plan.place().file_system,
        if machine.optimized_build {
            ""
        } else {
            "; an unoptimised build, whose figures are not representative"
        },
    );
    wire.send(&FromAgent::Prepared(PreparedAgent { about, tables }))?;
    while let Ok(task) = tasks.recv() {
        match task {
            ToAgent::Sample { round, sample } => {
                let mut begin = || {
                    wire.send(&FromAgent::Ready)?;
                    match tasks.recv() {
                        Ok(ToAgent::Go { at_ns: Some(at_ns) }) => Ok(at_ns),
                        Ok(_) => anyhow::bail!("given up, because another host could not take part"),
                        Err(_) => anyhow::bail!("the sample was ready, and its start did not come"),
                    }
                };
                let Sample { setting, row, repeat, seed, seconds } = sample;
                let way = spec.ways.iter().find(|way| way.name == row).context("an unknown row")?;
                let parameters = settings.get(setting).context("an unknown table")?;
                let turn = Turn { setting, parameters, way, repeat, seed, seconds, counts: false };
                let sampled = runner::sample(spec, plan.as_mut(), &turn, cleanup, Some(&mut begin));
                wire.send(&match sampled {
                    Ok((outcome, claim)) => FromAgent::Sampled {
                        outcome: Box::new(outcome),
                        claim,
                        conditions: plan.place().conditions,
                    },
                    Err(error) => FromAgent::Failed { round, why: format!("{error:#}") },
                })?;
            }
            // The reply to a sample that has failed meanwhile.
            ToAgent::Go { .. } => {}
            _ => anyhow::bail!("the file was prepared already"),
        }
    }
    Ok(())
}
