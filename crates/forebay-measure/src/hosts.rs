//! One measurement on several hosts at once: agents that serve a directory each, and the controller.
//!
//! - **Ownership.** The controller owns the plan and the clock; an agent owns its directory. The agent
//!   starts a worker, a process of its own for each controller ([`worker`]), which owns the temp file and
//!   the samples. A worker that loses its input ends as if by Ctrl-C, so the file is removed even when
//!   another process dies.
//! - **On the wire** (`frame`, `message`): frames of four bytes of length and JSON, of limited
//!   size, in limited time. First the handshake with version and proof of the shared secret
//!   (`handshake`, `secret`), then messages with a tag over number and bytes under a key of this
//!   session (`link`).
//! - **Requests to an agent**: to write a file of a size, to run a sample of `scan` or `random` with
//!   parameters within the limits of the command line, and to report its clock. No request names a path.
//! - **A round** (`controller`): every host makes the sample ready, in a process that then waits
//!   (`super::start_barrier`). When all are ready, the controller reads their clocks (`clock`). It sends
//!   each host the same instant in the host's own clock, and each host returns its result. If a host cannot
//!   make a sample ready, the round is given up on all hosts.
//! - **Failures.** A host that dies or is cut off ends its connection, or nothing arrives from it for the
//!   time of `frame::Times`, although both sides report every `ALIVE_EVERY` that they are alive. Then
//!   the measurement fails and names the host, and the others see the controller go. A slow host is waited
//!   for up to a limit for each step. Another version is refused. Clocks are monotonic ones, whose offsets
//!   are estimated anew before each start; the start's true spread is reported.
//! - **Rows** (`merge`, `rounds`): one for all hosts with merged histograms, one for each host, and
//!   gates.
//! - **Ranks** (`ranks`, `rendezvous`): processes that srun or mpirun started are agents of rank 0.

use std::path::{Path, PathBuf};

use clap::{ArgMatches, Args};

use super::kind::{Kind, parsed};
use crate::cleanup::Cleanup;
use crate::context::Target;
use crate::progress::Progress;
use forebay_report::failure::Failure;
use forebay_report::result::Experiment;

pub mod agent;
pub mod worker;

mod clock;
mod controller;
mod frame;
mod handshake;
mod handshakes;
mod link;
mod merge;
mod message;
mod ranks;
mod rendezvous;
mod rounds;
mod secret;
mod session;
#[cfg(test)]
mod testing;

use controller::Controller;
use ranks::Rank;
use rounds::Settings;
use secret::Key;

/// The name of the hidden subcommand with which an agent starts its worker; its argument is the directory.
pub const WORKER_SUBCOMMAND: &str = "__agent-worker";

/// The longest interval at which each side of a connection reports that it is alive.
const ALIVE_EVERY: std::time::Duration = std::time::Duration::from_secs(2);

/// The most hosts. More would be a typing error, and each has a thread.
const HOSTS_MAX: usize = 1024;

/// Where an experiment runs, when it is not here alone.
#[derive(Debug, Clone, Default, Args)]
pub struct HostsArgs {
    /// Measure on these hosts at once, each with a `forebay agent`, and not on this one [default port: 7317]
    #[arg(long, value_name = "HOST:PORT,..", value_delimiter = ',')]
    hosts: Vec<String>,
    /// The same from a file: one host a line, # begins a comment
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    hosts_file: Option<PathBuf>,
    /// A file with the secret of the agents, readable by its owner only [default: the variable FOREBAY_SECRET]
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// This process is one of several that srun or mpirun started on PATH; detected without this option in most cases
    #[arg(long, conflicts_with_all = ["hosts", "hosts_file", "alone"])]
    mpi_like: bool,
    /// Measure on this host only, also under srun or mpirun
    #[arg(long, conflicts_with_all = ["hosts", "hosts_file"])]
    alone: bool,
}

/// The part of this process in a measurement on several hosts.
#[derive(Debug)]
enum Part {
    /// The controller of these agents.
    Controller(Vec<String>, Key),
    /// One of several processes that a launcher started.
    Rank(Rank),
}

/// A function that measures one experiment on all hosts, with the given options.
type Experimenter = fn(&mut Controller, &ArgMatches, Settings) -> anyhow::Result<Vec<Experiment>>;

/// The experiments that can run on several hosts; their options have [`HostsArgs`] in them.
static ABLE: &[(&Kind, Experimenter)] = &[
    (&super::scan::KIND, |controller, matches, settings| {
        rounds::scan(controller, &parsed(matches)?, settings)
    }),
    (&super::random::KIND, |controller, matches, settings| {
        rounds::random(controller, &parsed(matches)?, settings)
    }),
];

/// This process's part in a measurement on several hosts.
#[derive(Debug)]
pub struct Task<'a> {
    part: Part,
    experimenter: Experimenter,
    matches: &'a ArgMatches,
}

/// The values of the command line beside the experiment's own options.
#[derive(Debug)]
pub struct Setup<'a> {
    /// The directory of a rank; `.` for a controller.
    pub path: &'a Path,
    /// Selects smaller files and fewer repeats.
    pub quick: bool,
    /// The seed of offsets and contents.
    pub seed: u64,
    /// The sink for progress.
    pub progress: Progress,
    /// Whether a permission to replace contents was given.
    pub destructive: bool,
}

impl HostsArgs {
    /// Returns the part of this process; `None` when it measures alone.
    ///
    /// # Errors
    /// Fails with [`Failure::Usage`] or [`Failure::Path`]: no hosts, no secret, a launcher's variables that
    /// make no sense.
    fn part(&self) -> Result<Option<Part>, Failure> {
        let hosts = match &self.hosts_file {
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| Failure::missing(path, &error))?;
                parse_hosts(&text)
            }
            None => self.hosts.iter().map(|name| name.trim().to_owned()).collect(),
        };
        if self.hosts_file.is_some() || !hosts.is_empty() {
            check_hosts(&hosts)?;
            let secret = Key::load(self.secret_file.as_deref())?;
            return Ok(Some(Part::Controller(hosts, secret)));
        }
        if self.secret_file.is_some() {
            return Err(Failure::Usage("--secret-file is for --hosts and --hosts-file".to_owned()));
        }
        if self.alone {
            return Ok(None);
        }
        let get = |name: &str| std::env::var(name).ok();
        match Rank::find(get, self.mpi_like)? {
            Some(rank) => Ok(Some(Part::Rank(rank))),
            None if self.mpi_like => Err(Failure::Usage(
                "--mpi-like: neither Open MPI (OMPI_COMM_WORLD_RANK) nor PMI (PMI_RANK) nor Slurm (SLURM_PROCID) started this process"
                    .to_owned(),
            )),
            None => Ok(None),
        }
    }
}

impl<'a> Task<'a> {
    /// Returns the task of this process; `None` when it measures alone.
    ///
    /// # Errors
    /// Fails with a [`Failure`]: no hosts, no secret, a launcher's variables that make no sense.
    pub fn of(kind: &Kind, matches: &'a ArgMatches) -> anyhow::Result<Option<Self>> {
        let Some((_, experimenter)) = ABLE.iter().find(|(able, _)| able.name == kind.name) else {
            return Ok(None);
        };
        let part = parsed::<HostsArgs>(matches)?.part()?;
        Ok(part.map(|part| Self { part, experimenter: *experimenter, matches }))
    }

    /// Carries out the task. `None` means that this was a rank that served, and rank 0 has the results.
    ///
    /// # Errors
    /// Fails when a host cannot be reached, was lost, or cannot measure; nothing is left
    /// behind then either.
    pub fn run(&self, setup: &Setup<'_>, cleanup: &Cleanup) -> anyhow::Result<Option<Vec<Experiment>>> {
        if setup.destructive {
            let why =
                "on several hosts only temp files are measured: leave out --overwrite and --destroy-data";
            return Err(Failure::Usage(why.to_owned()).into());
        }
        let settings = Settings { quick: setup.quick, seed: setup.seed, progress: setup.progress };
        match &self.part {
            Part::Controller(hosts, secret) => {
                if setup.path != Path::new(".") {
                    return Err(Failure::Usage(format!(
                        "with --hosts every agent measures the directory that it serves: leave out {}",
                        setup.path.display()
                    ))
                    .into());
                }
                let mut controller = Controller::connect(hosts, secret)?;
                let experiments = (self.experimenter)(&mut controller, self.matches, settings)?;
                controller.end()?;
                Ok(Some(experiments))
            }
            Part::Rank(rank) => {
                if !matches!(Target::resolve(setup.path, false, false)?, Target::Directory(_)) {
                    return Err(Failure::Usage(format!(
                        "{} is no directory: ranks make a temp file each in one that all of them see",
                        setup.path.display()
                    ))
                    .into());
                }
                let directory = agent::servable(setup.path, cleanup)?;
                if rank.number > 0 {
                    rendezvous::follow(rank, &directory, cleanup)?;
                    return Ok(None);
                }
                let mut ranks = rendezvous::lead(rank, &directory, cleanup)?;
                let experiments = (self.experimenter)(&mut ranks.controller, self.matches, settings)?;
                ranks.end()?;
                Ok(Some(experiments))
            }
        }
    }
}

fn parse_hosts(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

fn check_hosts(hosts: &[String]) -> Result<(), Failure> {
    if hosts.is_empty() || hosts.len() > HOSTS_MAX {
        return Err(Failure::Usage(format!(
            "{} hosts were named: from 1 to {HOSTS_MAX} can be",
            hosts.len()
        )));
    }
    for (index, host) in hosts.iter().enumerate() {
        if host.is_empty() || host.contains(char::is_whitespace) {
            return Err(Failure::Usage(format!("{host:?} is not HOST:PORT: write for example node-a:7317")));
        }
        if hosts[..index].contains(host) {
            return Err(Failure::Usage(format!(
                "{host} was named twice: an agent serves one controller once"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_hosts_has_comments_and_no_doubles() {
        let hosts = parse_hosts("# the rack\nnode-a:1\n\n  node-b # slow\n");
        assert_eq!(hosts, ["node-a:1", "node-b"]);
        assert!(check_hosts(&hosts).is_ok());
        for wrong in [vec![], vec!["a".to_owned(), "a".to_owned()], vec!["a b".to_owned()]] {
            assert_eq!(check_hosts(&wrong).map_err(|error| error.code()), Err(2), "{wrong:?}");
        }
    }
}
