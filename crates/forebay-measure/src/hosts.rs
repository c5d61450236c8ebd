//! One measurement on several hosts together: agents that each measure in one directory, and the controller.
//!
//! - **Connections.** The controller owns the plan and the clock. It starts `ssh HOST forebay agent --stdio DIR`
//!   for each host, so logins, encryption and integrity are those of ssh. Both sides send lines of JSON of
//!   limited size (`message`). Processes that srun or mpirun started are agents of rank 0, over TCP (`ranks`).
//! - **An agent** (`agent`) owns its temp file and the samples. When it loses its input it ends as if by Ctrl-C, so the file is
//!   removed even if the controller or the connection fails.
//! - **A round** (`controller`): every host makes the sample ready, in a process that then waits
//!   (`crate::start_barrier`). When all are ready, the controller reads their clocks. It sends
//!   each host the same instant in the host's own clock, and each host returns its result. If a host cannot
//!   make a sample ready, the round is given up on all hosts.
//! - **Failures.** A host that dies ends its connection. From one that is cut off nothing arrives for `SILENCE_MAX`, although both
//!   sides report every `ALIVE_EVERY` that they are alive. Then the measurement fails and names the host, and the others see the
//!   controller end. A slow host is waited for up to a limit for each step. Clocks are monotonic; their offsets are estimated anew
//!   before each start, and the start's true spread is reported.
//! - **Rows** (`rounds`): one for all hosts with merged histograms, one for each host, and gates.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use clap::{ArgMatches, Args, FromArgMatches as _};
use forebay_collective::Rank;

use crate::cleanup::Cleanup;
use crate::context::{Context, Target};
use crate::experiment::Experiment as Definition;
use crate::options::{Length, Values};
use crate::progress::Progress;
use forebay_report::failure::Failure;
use forebay_report::result::Experiment;

pub mod agent;

mod controller;
mod message;
mod ranks;
mod rounds;

use controller::{Controller, Link};

pub(super) use controller::HostSample;
pub(super) use rounds::whole;

/// The longest interval at which each side of a connection reports that it is alive.
const ALIVE_EVERY: Duration = Duration::from_secs(2);

/// The time without a message after which the other side counts as lost.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Finds an experiment by its name.
pub type Find<'a> = &'a dyn Fn(&str) -> Option<&'static dyn Definition>;

/// The most hosts. More would be a typing error, and each has a process.
const HOSTS_MAX: usize = 1024;

/// Where an experiment runs, when it is not here alone.
#[derive(Debug, Clone, Default, Args)]
pub struct HostsArgs {
    /// Measure on these hosts at once, by ssh, and not on this one; in PATH there, or in DIR of a host
    #[arg(long, value_name = "HOST[:DIR],..", value_delimiter = ',', group = "remote")]
    hosts: Vec<String>,
    /// The same from a file: one host a line, # begins a comment
    #[arg(long, value_name = "FILE", group = "remote")]
    hosts_file: Option<PathBuf>,
    /// The command that runs another one on a host; the host and that command are added to its words
    #[arg(long, value_name = "COMMAND", default_value = "ssh -T -o BatchMode=yes", requires = "remote")]
    ssh: String,
    /// This program on the hosts
    #[arg(long, value_name = "COMMAND", default_value = "forebay", requires = "remote")]
    agent: String,
    /// This process is one of several that srun or mpirun started on PATH; detected without this option in most cases
    #[arg(long, conflicts_with_all = ["remote", "alone"])]
    mpi_like: bool,
    /// Measure on this host only, also under srun or mpirun
    #[arg(long, conflicts_with = "remote")]
    alone: bool,
}

/// The part of this process in a measurement on several hosts.
#[derive(Debug)]
enum Part {
    /// The controller of agents on these hosts.
    Controller(Vec<String>, HostsArgs),
    /// One of several processes that a launcher started.
    Rank(Rank),
}

/// This process's part in a measurement on several hosts.
#[derive(Debug)]
pub struct Task {
    part: Part,
    experiment: &'static dyn Definition,
    matches: ArgMatches,
}

/// The values of the command line in addition to the experiment's own options.
#[derive(Debug)]
pub struct Setup<'a> {
    /// The directory of a rank, and the default directory of hosts.
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
    /// The group of the options that name hosts.
    pub(crate) const REMOTE: &str = "remote";

    /// Returns the part of this process; `None` when it measures alone.
    fn part(self) -> Result<Option<Part>, Failure> {
        let hosts = match &self.hosts_file {
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| Failure::missing(path, &error))?;
                parse_hosts(&text)
            }
            None => self.hosts.iter().map(|name| name.trim().to_owned()).collect(),
        };
        if self.hosts_file.is_some() || !hosts.is_empty() {
            check_hosts(&hosts)?;
            return Ok(Some(Part::Controller(hosts, self)));
        }
        if self.alone {
            return Ok(None);
        }
        let rank = Rank::find(|name| std::env::var(name).ok(), self.mpi_like).map_err(Failure::Usage)?;
        if rank.is_none() && self.mpi_like {
            return Err(Failure::Usage(
                "--mpi-like: neither Open MPI (OMPI_COMM_WORLD_RANK) nor PMI (PMI_RANK) nor Slurm (SLURM_PROCID) started this process"
                    .to_owned(),
            ));
        }
        Ok(rank.map(Part::Rank))
    }

    /// Starts an agent on a host.
    fn start(&self, name: &str, path: &Path) -> anyhow::Result<Link> {
        let (host, directory) = split(name).context("the name was checked")?;
        let path =
            path.to_str().with_context(|| format!("{} is not text that ssh can pass on", path.display()))?;
        let directory = quoted(if directory.is_empty() { path } else { directory });
        let mut words = self.ssh.split_whitespace();
        let mut command = Command::new(words.next().context("--ssh names no command")?);
        command
            .args(words)
            .arg(host)
            .args(self.agent.split_whitespace())
            .args(["agent", "--stdio", &directory]);
        Link::start(command)
    }
}

impl Task {
    /// Returns the task of this process; `None` when it measures alone.
    ///
    /// # Errors
    /// Fails with a [`Failure`]: no hosts, a launcher's variables that make no sense.
    pub fn of(experiment: &'static dyn Definition, matches: &ArgMatches) -> anyhow::Result<Option<Self>> {
        if !experiment.runs_on_hosts() {
            return Ok(None);
        }
        let part = HostsArgs::from_arg_matches(matches)?.part()?;
        Ok(part.map(|part| Self { part, experiment, matches: matches.clone() }))
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
        let mut controller = match &self.part {
            Part::Controller(hosts, args) => {
                let links = hosts.iter().map(|name| Ok((name.clone(), args.start(name, setup.path)?)));
                Controller::new(links.collect::<anyhow::Result<_>>()?, false)?
            }
            Part::Rank(rank) => {
                if !matches!(Target::resolve(setup.path, false, false)?, Target::Directory(_)) {
                    return Err(Failure::Usage(format!(
                        "{} is not a directory: name one that all ranks see, where each makes a temp file",
                        setup.path.display()
                    ))
                    .into());
                }
                if rank.number() > 0 {
                    let own = |name: &str| (name == self.experiment.spec().name).then_some(self.experiment);
                    ranks::follow(rank, setup.path, &own, cleanup)?;
                    return Ok(None);
                }
                ranks::lead(rank, setup.path, cleanup)?
            }
        };
        let length = if setup.quick { Length::Quick } else { Length::Full };
        let options = Values::new(self.experiment.spec().options, Some(&self.matches), length)?;
        // The controller itself measures nothing.
        let target = Target::Directory(setup.path.to_owned());
        let mut context = Context::new(target, setup.progress, cleanup.clone(), setup.seed);
        context.quick = setup.quick;
        let experiments = rounds::measure(&mut controller, self.experiment, &options, &context)?;
        controller.end()?;
        Ok(Some(experiments))
    }
}

/// Returns this host's name for itself.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Splits `user@host:dir` as scp and rsync do, into the host with its user, and a directory that may be empty.
/// An IPv6 address is in brackets. Returns `None` where the host would be no name, or an option of ssh.
fn split(name: &str) -> Option<(String, &str)> {
    let (user, rest) = match name.split_once('@') {
        Some((user, rest)) if !user.contains([':', '/']) => (format!("{user}@"), rest),
        _ => (String::new(), name),
    };
    let (host, directory) = match rest.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, if rest.is_empty() { rest } else { rest.strip_prefix(':')? })
        }
        None => rest.split_once(':').unwrap_or((rest, "")),
    };
    let whole = format!("{user}{host}");
    let is_name = !host.is_empty() && !whole.starts_with('-') && !whole.contains(char::is_whitespace);
    is_name.then_some((whole, directory))
}

/// Returns a path as a word of the shell that ssh starts. A plain one stays as it is, because other commands
/// than ssh start no shell.
fn quoted(path: &str) -> String {
    if path.chars().all(|letter| letter.is_alphanumeric() || "/._-+,:@%~".contains(letter)) {
        return path.to_owned();
    }
    format!("'{}'", path.replace('\'', r"'\''"))
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
        if split(host).is_none() {
            return Err(Failure::Usage(format!(
                "{host:?} is not a host: write node-a, user@node-a:/directory or [::1]:/directory"
            )));
        }
        if hosts[..index].contains(host) {
            return Err(Failure::Usage(format!(
                "{host} was named twice: several agents of one host need a directory each"
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
        let hosts = parse_hosts("# the rack\nnode-a:/data\n\n  node-b # slow\n");
        assert_eq!(hosts, ["node-a:/data", "node-b"]);
        assert!(check_hosts(&hosts).is_ok());
        for wrong in [vec![], vec!["a".to_owned(), "a".to_owned()], vec!["a b".to_owned()]] {
            assert_eq!(check_hosts(&wrong).map_err(|error| error.code()), Err(2), "{wrong:?}");
        }
    }

    #[test]
    fn a_host_may_have_a_user_and_a_directory() {
        for (name, host, directory) in [
            ("node-a", "node-a", ""),
            ("node-a:", "node-a", ""),
            ("me@node-a:/data/x", "me@node-a", "/data/x"),
            ("node-a:a@b:c", "node-a", "a@b:c"),
            ("node-a:with blanks", "node-a", "with blanks"),
            ("[fe80::1]", "fe80::1", ""),
            ("me@[fe80::1]:/data", "me@fe80::1", "/data"),
        ] {
            assert_eq!(split(name), Some((host.to_owned(), directory)), "{name}");
        }
        for wrong in ["", ":/data", "me@", "-oProxyCommand=x", "-l@a", "[::1", "[::1]/data", "::1", "a b"] {
            assert_eq!(split(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_directory_is_one_word_of_a_shell() {
        assert_eq!(quoted("/data/node_1.x"), "/data/node_1.x");
        assert_eq!(quoted("~/data"), "~/data");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quoted(""), "");
    }
}
