//! An agent and its controller, from the welcome to the end. The session passes tasks to a worker and its
//! results back, replies to requests for the clock, and notices when the other side has gone.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use super::super::start_barrier::monotonic_ns;
use super::link::{self, Link, Sender};
use super::message::{Done, Facts, FromAgent, Task, ToAgent};
use super::{ALIVE_EVERY, secret};
use crate::cleanup::{Cleanup, Guard};

/// The time in which a worker must remove its file and end.
const END_WITHIN: Duration = Duration::from_secs(20);

/// Results and messages that may wait before their sender blocks.
const EVENTS_MAX: usize = 64;

#[derive(Debug)]
enum Event {
    Controller {
        message: anyhow::Result<ToAgent>,
        arrived_ns: u64,
    },
    /// A message of the worker. `None` means that it has ended, or that its output makes no sense.
    Worker(Option<Done>),
}

/// Serves one controller until it reports the end. When this returns, the worker has ended and
/// its file is gone.
///
/// # Errors
/// Fails with the reason for an earlier end: the connection to the controller has ended, or the worker.
pub(super) fn serve(link: Link, directory: &Path, facts: Facts, cleanup: &Cleanup) -> anyhow::Result<()> {
    let Link { mut sender, receiver } = link;
    let (events, inbox) = sync_channel(EVENTS_MAX);
    let mut worker = match Worker::start(directory, cleanup, events.clone()) {
        Ok(worker) => worker,
        Err(error) => {
            // If the send fails, the controller learns of the failure from the end of the connection.
            let _ = sender.send(&FromAgent::Refused { why: format!("{error:#}") });
            return Err(error);
        }
    };
    sender.send(&FromAgent::Welcome(facts))?;
    let listener = std::thread::spawn(move || listen(receiver, &events));
    let outcome = pass_on(&mut sender, &mut worker, &inbox);
    // A sender that waits to put an event into the inbox continues, and finds the receiver gone.
    drop(inbox);
    let ended = worker.end();
    // Only now, so that a controller that sees the end can rely on nothing being left.
    sender.close();
    let _ = listener.join();
    outcome.and(ended)
}

fn listen(mut receiver: link::Receiver, events: &SyncSender<Event>) {
    loop {
        let message = receiver.receive();
        let arrived_ns = monotonic_ns();
        let last = message.is_err();
        if events.send(Event::Controller { message, arrived_ns }).is_err() || last {
            return;
        }
    }
}

fn pass_on(sender: &mut Sender, worker: &mut Worker, inbox: &Receiver<Event>) -> anyhow::Result<()> {
    let mut alive_sent = Instant::now();
    loop {
        let event = match inbox.recv_timeout(ALIVE_EVERY.saturating_sub(alive_sent.elapsed())) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => {
                sender.send(&FromAgent::Alive)?;
                alive_sent = Instant::now();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => anyhow::bail!("the connection's thread has ended"),
        };
        match event {
            Event::Controller { message, arrived_ns } => {
                match message.context("the connection to the controller has ended")? {
                    ToAgent::Alive => {}
                    ToAgent::Clock { number } => {
                        sender.send(&FromAgent::Clock { number, arrived_ns, sent_ns: monotonic_ns() })?;
                    }
                    ToAgent::Task(task) => worker.give(&task)?,
                    ToAgent::End => return Ok(()),
                }
            }
            Event::Worker(Some(done)) => sender.send(&FromAgent::Done(done))?,
            Event::Worker(None) => {
                let why = "the process that measures has ended";
                sender.send(&FromAgent::Lost { why: why.to_owned() })?;
                anyhow::bail!(why);
            }
        }
    }
}

/// The worker's process.
#[derive(Debug)]
struct Worker {
    child: Arc<Mutex<Child>>,
    stdin: Option<ChildStdin>,
    reader: Option<std::thread::JoinHandle<()>>,
    #[allow(dead_code, reason = "held for its Drop")]
    guard: Guard,
}

impl Worker {
    fn start(directory: &Path, cleanup: &Cleanup, events: SyncSender<Event>) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("the path of this program's file is not known")?;
        let mut command = Command::new(program);
        command
            .arg(super::WORKER_SUBCOMMAND)
            .arg(directory)
            // The worker needs no secret. It has its own process group, so that this process ends it and
            // not the terminal.
            .env_remove(secret::VARIABLE)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut pipes = None;
        let slot = Arc::new(Mutex::new(None));
        let doomed = Arc::clone(&slot);
        let ((), guard) = cleanup
            .create(
                || {
                    let mut child = command.spawn()?;
                    pipes = child.stdin.take().zip(child.stdout.take());
                    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(Mutex::new(child)));
                    Ok(())
                },
                move || {
                    if let Some(child) = doomed.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
                        end(child);
                    }
                },
            )
            .context("the process that measures cannot be started")?;
        let child = slot.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (child, (stdin, stdout)) = child.zip(pipes).context("its input and output are piped")?;
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let done = line.ok().and_then(|line| serde_json::from_str(&line).ok());
                let last = done.is_none();
                if events.send(Event::Worker(done)).is_err() || last {
                    return;
                }
            }
            // The receiver is gone when this is the end of the session.
            let _ = events.send(Event::Worker(None));
        });
        Ok(Self { child, stdin: Some(stdin), reader: Some(reader), guard })
    }

    fn give(&mut self, task: &Task) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("the worker is at its end")?;
        let text = serde_json::to_string(task)? + "\n";
        // A worker that has ended is noticed by the end of its output.
        let _ = stdin.write_all(text.as_bytes());
        Ok(())
    }

    /// Ends the process as Ctrl-C would, so that it removes its file.
    fn end(mut self) -> anyhow::Result<()> {
        drop(self.stdin.take());
        let ended = end(&self.child);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        anyhow::ensure!(ended, "the process that measures did not end within {} s", END_WITHIN.as_secs());
        Ok(())
    }
}

/// Requests the worker's end and waits for it; kills it when it does not end. Returns whether it
/// ended by itself.
fn end(child: &Mutex<Child>) -> bool {
    let deadline = Instant::now() + END_WITHIN;
    let mut is_signalled = false;
    loop {
        let mut child = lock(child);
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return true,
        }
        if !is_signalled && let Some(id) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            // The worker has not been waited for, so the process id is still its own.
            let _ = kill_process(id, Signal::TERM);
            is_signalled = true;
        }
        if Instant::now() >= deadline {
            let _ = child.kill();
            let _ = child.wait();
            return false;
        }
        drop(child);
        // The system's interface for children offers only a wait without a limit.
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn lock(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}
