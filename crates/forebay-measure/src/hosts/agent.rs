//! `forebay agent`: serves one directory to one controller at a time.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;

use super::frame::Times;
use super::handshake;
use super::handshakes::Handshakes;
use super::message::{Facts, FromAgent};
use super::secret::Key;
use super::session;
use crate::cleanup::Cleanup;
use crate::context::Target;
use crate::doctor;
use crate::output::print;
use crate::progress::Progress;
use forebay_report::failure::Failure;

/// The port on which agents listen by default.
pub(super) const PORT: u16 = 7317;

/// The time within which a controller that has just ended releases its place.
const PLACE_WITHIN: Duration = Duration::from_millis(500);

/// Options of `agent`.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// The directory that is measured: temp files are written there and removed, nothing else is touched
    dir: PathBuf,
    /// Address to listen on; controllers on other machines need one of their network; port 0 takes a free port
    #[arg(long, value_name = "ADDR:PORT", default_value_t = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT))]
    listen: SocketAddr,
    /// A file with the secret shared with the controller, readable by its owner only [default: the variable
    /// FOREBAY_SECRET]
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Print no lines about controllers
    #[arg(long)]
    quiet: bool,
}

/// Listens until a signal ends the process.
///
/// # Errors
/// Fails when the directory cannot be measured, there is no secret, or the address cannot be listened on.
pub fn run(args: &AgentArgs, cleanup: &Cleanup) -> anyhow::Result<ExitCode> {
    let secret = Key::load(args.secret_file.as_deref())?;
    let directory = servable(&args.dir, cleanup)?;
    let listener = TcpListener::bind(args.listen)
        .map_err(|error| Failure::Usage(format!("{} cannot be listened on: {error}", args.listen)))?;
    let address = listener.local_addr()?;
    print(&format!("forebay agent: serves {} on {address}\n", directory.display()))?;
    let agent = Arc::new(Agent {
        directory,
        secret,
        progress: Progress::detect(args.quiet),
        cleanup: cleanup.clone(),
        controller: Place::default(),
        handshakes: Handshakes::default(),
    });
    agent.listen(&listener);
    Ok(ExitCode::SUCCESS)
}

/// Returns the directory by its real name, after a check that it can be measured at all.
pub(super) fn servable(directory: &Path, cleanup: &Cleanup) -> Result<PathBuf, Failure> {
    let target = Target::resolve(directory, false, false)?;
    if !matches!(target, Target::Directory(_)) {
        return Err(Failure::Path(format!(
            "{} is no directory: an agent makes a file of its own in one, and serves nothing else",
            directory.display()
        )));
    }
    doctor::preflight(&target, cleanup)?;
    fs::canonicalize(directory).map_err(|error| Failure::missing(directory, &error))
}

/// Returns the facts about this host.
pub(super) fn facts(rank: Option<u32>) -> Facts {
    let machine = doctor::machine_only();
    Facts {
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        kernel: machine.kernel,
        architecture: machine.architecture,
        cpus_allowed: machine.cpus_allowed,
        memory_affordable_bytes: super::super::plan::affordable_bytes(),
        optimized_build: machine.optimized_build,
        rank,
    }
}

#[derive(Debug)]
struct Agent {
    directory: PathBuf,
    secret: Key,
    progress: Progress,
    cleanup: Cleanup,
    /// The controller that is served.
    controller: Place,
    handshakes: Handshakes,
}

impl Agent {
    /// Accepts connections until the process ends.
    fn listen(self: &Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => self.accept(stream),
                // The connection ended before it was accepted, or descriptors are short. Others may come.
                Err(_) => std::thread::park_timeout(Duration::from_millis(50)),
            }
        }
    }

    /// Handles a connection on a thread of its own, so that none keeps another one waiting.
    fn accept(self: &Arc<Self>, stream: TcpStream) {
        let Ok(number) = self.handshakes.enter(&stream) else { return };
        let peer = stream.peer_addr().map_or_else(|_| "somebody".to_owned(), |peer| peer.to_string());
        let agent = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("forebay-controller".to_owned()).spawn(move || {
            let link = handshake::as_agent(stream, &agent.secret, Times::default());
            agent.handshakes.leave(number);
            let outcome = link.and_then(|link| agent.serve(link, &peer));
            match outcome {
                Ok(()) => agent.progress.print_line(&format!("{peer}: done")),
                Err(error) => agent.progress.print_line(&format!("{peer}: {error:#}")),
            }
        });
        if spawned.is_err() {
            self.handshakes.leave(number);
        }
    }

    fn serve(&self, mut link: super::link::Link, peer: &str) -> anyhow::Result<()> {
        let _place = match self.controller.take(peer) {
            Ok(place) => place,
            Err(other) => {
                let why =
                    format!("this agent is measuring for the controller at {other}: it serves one at a time");
                link.sender.send(&FromAgent::Refused { why })?;
                link.sender.close();
                anyhow::bail!("refused: the agent measures for {other}");
            }
        };
        self.progress.print_line(&format!("{peer}: connected"));
        session::serve(link, &self.directory, facts(None), &self.cleanup)
            .with_context(|| format!("the measurement in {} was ended", self.directory.display()))
    }
}

/// The place of the one controller that is served.
#[derive(Debug, Default)]
struct Place {
    taken_by: Mutex<Option<String>>,
    given_back: Condvar,
}

impl Place {
    /// Takes the place for `peer`, or returns its present holder. Waits for a place that is about
    /// to be released.
    fn take(&self, peer: &str) -> Result<Held<'_>, String> {
        let held = self.taken_by.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut held, _) = self
            .given_back
            .wait_timeout_while(held, PLACE_WITHIN, |taken_by| taken_by.is_some())
            .unwrap_or_else(PoisonError::into_inner);
        match &*held {
            Some(other) => Err(other.clone()),
            None => {
                *held = Some(peer.to_owned());
                Ok(Held(self))
            }
        }
    }
}

/// Releases the place when dropped.
#[derive(Debug)]
struct Held<'a>(&'a Place);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *self.0.taken_by.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.0.given_back.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::super::handshakes::HANDSHAKES_MAX;
    use super::*;

    /// Regression: 16 connections that sent nothing held all places for a handshake, so that any user of
    /// the machine could keep controllers away from an agent.
    #[test]
    fn connections_that_prove_nothing_keep_no_controller_away() {
        let secret = Key::from_text(&format!("{}=", "A".repeat(43))).expect("32 bytes");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback works");
        let address = listener.local_addr().expect("it is bound");
        let agent = Arc::new(Agent {
            // No controller gets as far as a measurement.
            directory: std::env::temp_dir(),
            secret: secret.clone(),
            progress: Progress::detect(true),
            cleanup: Cleanup::install().expect("signals can be handled"),
            controller: Place::default(),
            handshakes: Handshakes::default(),
        });
        // Ends with the test's process.
        std::thread::spawn(move || agent.listen(&listener));
        let mut idle = Vec::new();
        for number in 0..3 * HANDSHAKES_MAX {
            let mut stream = TcpStream::connect(address).expect("it listens");
            // Some connections begin a message.
            if number % 2 == 0 {
                stream.write_all(&[0, 0]).expect("it was just opened");
            }
            idle.push(stream);
        }
        let stream = TcpStream::connect(address).expect("it listens");
        if let Err(error) = handshake::as_controller(stream, &secret, Times::default()) {
            panic!("{error:#}");
        }
        drop(idle);
    }
}
