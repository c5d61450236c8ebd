//! One process of several that srun or mpirun started. Rank 0 controls and takes part, the others serve.
//! They find it through a file in the measured directory, which all of them name: it holds rank 0's addresses
//! and two tokens. A rank connects and sends the first one; rank 0 replies with the second one. The messages
//! of agent and controller follow.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::controller::{Carrier, Controller, Link};
use super::message::{receive, send};
use super::{Find, SILENCE_MAX, agent};
use crate::cleanup::{Cleanup, Guard, Place};
use forebay_report::failure::Failure;

/// The time for which ranks wait for each other. On a busy machine launchers start them minutes apart.
const RENDEZVOUS_WITHIN: Duration = Duration::from_secs(180);
/// The limit for a connection, and for each of its tokens.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// The interval at which a rank looks for rank 0's file. No file system notifies one host of
/// another one's writes.
const POLL_EVERY: Duration = Duration::from_millis(100);
/// The interval at which rank 0 accepts connections.
const ACCEPT_EVERY: Duration = Duration::from_millis(10);

/// The place of this process among the ranks, according to the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rank {
    pub(super) number: u32,
    pub(super) size: u32,
    /// Distinguishes this job's file from another one's in the same directory.
    job: String,
    /// Whether all processes are on this host.
    local: bool,
}

impl Rank {
    /// Determines the number of this process and how many there are. `insist` means that the command line
    /// declared it one of several. Then a batch script's variables count, too; alone they may only mean
    /// that the script runs.
    ///
    /// # Errors
    /// [`Failure::Usage`] when a variable makes no sense.
    pub(super) fn find(get: impl Fn(&str) -> Option<String>, insist: bool) -> Result<Option<Self>, Failure> {
        let number = |name: &str| match get(name) {
            Some(text) => text.trim().parse::<u32>().map(Some).map_err(|_| {
                Failure::Usage(format!("the launcher's variable {name} holds no number: {text:?}"))
            }),
            None => Ok(None),
        };
        // Open MPI first, then PMI: under Slurm their processes inherit the variables of the process
        // that started them.
        let launchers = [
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
            ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
            ("SLURM_PROCID", if insist { "SLURM_NTASKS" } else { "SLURM_STEP_NUM_TASKS" }, ""),
        ];
        for (rank, size, local_size) in launchers {
            let (Some(number), Some(size), local_size) = (number(rank)?, number(size)?, number(local_size)?)
            else {
                continue;
            };
            if number >= size {
                return Err(Failure::Usage(format!(
                    "the launcher's variables give rank {number} of {size}, which is out of range"
                )));
            }
            if size == 1 && !insist {
                continue;
            }
            let nodes = get("SLURM_STEP_NODELIST").or_else(|| get("SLURM_JOB_NODELIST"));
            let one_node = nodes.is_some_and(|nodes| !nodes.is_empty() && !nodes.contains([',', '[']));
            return Ok(Some(Self {
                number,
                size,
                job: job(&get),
                local: one_node || local_size == Some(size),
            }));
        }
        Ok(None)
    }

    /// Returns the file in which rank 0 publishes how it can be found.
    fn file(&self, directory: &Path) -> PathBuf {
        directory.join(format!(".forebay-ranks-{}", self.job))
    }

    /// Waits, as rank 0, until all ranks have come. Its own part is an agent like those of other hosts.
    ///
    /// # Errors
    /// Fails with the ranks that did not come.
    pub(super) fn lead(&self, directory: &Path, cleanup: &Cleanup) -> anyhow::Result<Controller> {
        // Of this host only, where that is enough.
        let address = if self.local { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
        let listener =
            TcpListener::bind((address, 0)).context("no port can be opened for the other ranks")?;
        listener.set_nonblocking(true)?;
        let invitation = Invitation::new(listener.local_addr()?)?;
        let _published = invitation.publish(&self.file(directory), cleanup).with_context(|| {
            format!("the file by which ranks meet cannot be made in {}", directory.display())
        })?;
        let (arrivals, inbox) = sync_channel::<(usize, Link)>(64);
        let deadline = Instant::now() + RENDEZVOUS_WITHIN;
        let mut links: Vec<Option<Link>> = (1..self.size).map(|_| None).collect();
        while let Some(missing) = links.iter().position(Option::is_none) {
            if let Ok((stream, _)) = listener.accept() {
                let (arrivals, invitation) = (arrivals.clone(), invitation.clone());
                // A thread each, so that a connection that sends nothing keeps no rank waiting. Without a
                // thread the connection is closed, and the rank tries again.
                let _ = std::thread::Builder::new().spawn(move || {
                    if let Ok(arrival) = invitation.welcome(stream) {
                        let _ = arrivals.send(arrival);
                    }
                });
            } else if let Ok((rank, link)) = inbox.recv_timeout(ACCEPT_EVERY) {
                match rank.checked_sub(1).and_then(|index| links.get_mut(index)) {
                    Some(place) if place.is_none() => *place = Some(link),
                    _ => anyhow::bail!(
                        "rank {rank} of {} connected twice or is out of range: is another job of the same name in \
                         this directory?",
                        self.size
                    ),
                }
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "of {} ranks {} did not connect within {} s, rank {} among them; do all of them see the same directory?",
                self.size,
                links.iter().filter(|link| link.is_none()).count(),
                RENDEZVOUS_WITHIN.as_secs(),
                missing + 1
            );
        }
        let program = std::env::current_exe().context("the path of this program's file is not known")?;
        let mut own = Command::new(program);
        own.args(["agent", "--stdio"]).arg(directory);
        let all = [Link::start(own)?].into_iter().chain(links.into_iter().flatten());
        Controller::new(all.enumerate().map(|(rank, link)| (format!("rank {rank}"), link)).collect(), true)
    }

    /// Finds rank 0, as one of the other ranks, and serves it until it reports that all is done.
    ///
    /// # Errors
    /// Fails when rank 0 cannot be found, or nothing can be measured here.
    pub(super) fn follow(&self, directory: &Path, find: Find<'_>, cleanup: &Cleanup) -> anyhow::Result<()> {
        let file = self.file(directory);
        let deadline = Instant::now() + RENDEZVOUS_WITHIN;
        let mut last = anyhow::anyhow!("the file {} did not appear", file.display());
        loop {
            match Invitation::read(&file)
                .and_then(|found| found.map(|found| found.accept(self.number)).transpose())
            {
                Ok(Some((input, output))) => {
                    return agent::serve(input, Box::new(output), directory, find, cleanup);
                }
                Ok(None) => {}
                // The file may be left behind by a run that was killed, until rank 0 of this one replaces it.
                Err(error) => last = error,
            }
            if Instant::now() >= deadline {
                let (rank, seconds) = (self.number, RENDEZVOUS_WITHIN.as_secs());
                return Err(last.context(format!("rank {rank} did not find rank 0 within {seconds} s")));
            }
            std::thread::park_timeout(POLL_EVERY);
        }
    }
}

/// Returns a name for the job on which all its processes agree.
fn job(get: &impl Fn(&str) -> Option<String>) -> String {
    let slurm = get("SLURM_JOB_ID").map(|job| match get("SLURM_STEP_ID") {
        Some(step) => format!("{job}.{step}"),
        None => job,
    });
    let name = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"].into_iter().find_map(get).or(slurm);
    name.unwrap_or_else(|| "job".to_owned())
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() || letter == '.' { letter } else { '-' })
        .take(64)
        .collect()
}

/// The addresses of rank 0, and the tokens of this one run.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Invitation {
    places: Vec<SocketAddr>,
    /// The proof of a rank.
    rank_token: String,
    /// The proof of rank 0. A program that listens on its port after its death does not have it.
    reply_token: String,
}

/// The first message in each direction.
#[derive(Debug, Serialize, Deserialize)]
struct Proof {
    rank: u32,
    token: String,
}

impl Invitation {
    /// Returns the invitation to a listener of this host.
    ///
    /// # Errors
    /// Fails when the addresses of this host or random bytes cannot be read.
    fn new(listener: SocketAddr) -> anyhow::Result<Self> {
        let mut places = vec![listener];
        if listener.ip().is_unspecified() {
            let all = if_addrs::get_if_addrs().context("this host's addresses are not known")?;
            let reachable = all.iter().filter(|one| !one.is_loopback()).map(if_addrs::Interface::ip);
            places =
                reachable.filter(IpAddr::is_ipv4).map(|ip| SocketAddr::new(ip, listener.port())).collect();
        }
        Ok(Self { places, rank_token: token()?, reply_token: token()? })
    }

    /// Publishes the invitation where the others look; the file is removed with the guard. It appears
    /// whole, or not at all.
    ///
    /// # Errors
    /// Fails when the directory cannot be written.
    fn publish(&self, path: &Path, cleanup: &Cleanup) -> anyhow::Result<Guard> {
        let directory = path.parent().context("a file in a directory")?;
        let temp = cleanup.temp_file(directory, "ranks")?;
        temp.file().write_all(serde_json::to_string(self)?.as_bytes())?;
        temp.file().sync_all()?;
        let name = path.file_name().and_then(|name| name.to_str()).context("a file with a name")?;
        let (place, own) = (Place::in_directory(directory, name)?, temp.file().try_clone()?);
        let ((), guard) = cleanup.create(
            // A run of this user that was killed may have left a file of the same name.
            || fs::rename(temp.path(), path),
            move || place.remove_if(&own),
        )?;
        Ok(guard)
    }

    /// Reads the file; returns `None` when it is not there yet.
    ///
    /// # Errors
    /// Fails when it is not one that this user's rank 0 wrote.
    fn read(path: &Path) -> anyhow::Result<Option<Self>> {
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
        let file = match file {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.with_context(|| format!("{} cannot be read", path.display()))?,
        };
        let metadata = file.metadata()?;
        let own = metadata.is_file()
            && metadata.uid() == rustix::process::geteuid().as_raw()
            && metadata.mode() & 0o077 == 0;
        anyhow::ensure!(own, "{} is not this user's own private file: it is not followed", path.display());
        let mut text = String::new();
        file.take(1 << 16).read_to_string(&mut text)?;
        let foreign = || format!("{} was not written by this version of forebay", path.display());
        serde_json::from_str(&text).with_context(foreign).map(Some)
    }

    /// Receives, as rank 0, a rank's proof, and proves itself. Returns the rank and the connection.
    ///
    /// # Errors
    /// Fails when the other side is no rank of this run.
    fn welcome(&self, stream: TcpStream) -> anyhow::Result<(usize, Link)> {
        let (mut input, mut output) = connection(stream)?;
        let proof: Proof = receive(&mut input)?;
        anyhow::ensure!(is_same(&proof.token, &self.rank_token), "a connection without the token");
        send(&mut output, &Proof { rank: 0, token: self.reply_token.clone() })?;
        input.get_ref().set_read_timeout(None)?;
        let carrier = Carrier::Stream(output.try_clone()?);
        Ok((proof.rank as usize, Link { input: Box::new(input), output: Box::new(output), carrier }))
    }

    /// Connects to rank 0 and proves this rank.
    ///
    /// # Errors
    /// Fails when rank 0 cannot be reached, or is another program.
    fn accept(&self, rank: u32) -> anyhow::Result<(BufReader<TcpStream>, TcpStream)> {
        let mut last = anyhow::anyhow!("rank 0's host has no address");
        for place in &self.places {
            let connected = || {
                let (mut input, mut output) = connection(TcpStream::connect_timeout(place, CONNECT_WITHIN)?)?;
                send(&mut output, &Proof { rank, token: self.rank_token.clone() })?;
                let proof: Proof = receive(&mut input)?;
                anyhow::ensure!(is_same(&proof.token, &self.reply_token), "another program listens there");
                input.get_ref().set_read_timeout(None)?;
                Ok((input, output))
            };
            match connected() {
                Ok(connected) => return Ok(connected),
                Err(error) => last = error.context(format!("rank 0 cannot be reached at {place}")),
            }
        }
        Err(last)
    }
}

/// Returns both directions of a connection on which little time is left to prove oneself.
fn connection(stream: TcpStream) -> anyhow::Result<(BufReader<TcpStream>, TcpStream)> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(CONNECT_WITHIN))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    Ok((BufReader::new(stream.try_clone()?), stream))
}

/// Returns 32 unpredictable bytes as text.
fn token() -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).context("/dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Compares tokens in a time that does not depend on where they differ.
fn is_same(one: &str, other: &str) -> bool {
    let difference = one.bytes().zip(other.bytes()).fold(0, |all, (one, other)| all | (one ^ other));
    one.len() == other.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn find(variables: &[(&str, &str)], insist: bool) -> Result<Option<Rank>, Failure> {
        let get =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Rank::find(get, insist)
    }

    #[test]
    fn launchers_are_known_by_their_variables() {
        assert_eq!(find(&[], false), Ok(None));
        let srun = [
            ("SLURM_PROCID", "2"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "1"),
            ("SLURM_JOB_NODELIST", "node[1-4]"),
        ];
        let expected = Rank { number: 2, size: 4, job: "77.1".to_owned(), local: false };
        assert_eq!(find(&srun, false), Ok(Some(expected)));
        let mpirun = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", "prterun-a/../b@1"),
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NUM_TASKS", "7"),
        ];
        let expected = Rank { number: 0, size: 2, job: "prterun-a-..-b-1".to_owned(), local: true };
        assert_eq!(find(&mpirun, false), Ok(Some(expected)));
        let hydra = [("PMI_RANK", "1"), ("PMI_SIZE", "3"), ("SLURM_JOB_NODELIST", "one")];
        let expected = Rank { number: 1, size: 3, job: "job".to_owned(), local: true };
        assert_eq!(find(&hydra, false), Ok(Some(expected)));
    }

    #[test]
    fn a_batch_script_alone_is_no_rank_without_the_option() {
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")];
        assert_eq!(find(&batch, false), Ok(None));
        assert!(find(&batch, true).is_ok_and(|rank| rank.is_some_and(|rank| rank.size == 4)));
        assert_eq!(find(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")], false), Ok(None));
        assert!(find(&[("PMI_RANK", "5"), ("PMI_SIZE", "4")], false).is_err());
        assert!(find(&[("PMI_RANK", "x"), ("PMI_SIZE", "4")], false).is_err());
    }

    #[test]
    fn an_invitation_is_private_found_whole_and_removed() {
        let cleanup = Cleanup::default();
        let directory = cleanup.temp_directory(&std::env::temp_dir(), "invite").expect("writable");
        let path = directory.path().join(".forebay-ranks-1");
        assert!(Invitation::read(&path).is_ok_and(|found| found.is_none()));
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 4242);
        let invitation = Invitation::new(address).expect("random bytes");
        let guard = invitation.publish(&path, &cleanup).expect("writable");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
        let found = Invitation::read(&path).expect("ours").expect("there");
        assert_eq!(found.rank_token, invitation.rank_token);
        assert_eq!((found.rank_token.len(), found.reply_token.len()), (64, 64));
        assert_ne!(found.rank_token, found.reply_token);
        assert!(found.places.iter().all(|place| !place.ip().is_loopback() && place.port() == 4242));

        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("ours");
        assert!(Invitation::read(&path).is_err(), "others may have written the tokens down");
        drop(guard);
        assert_eq!(fs::read_dir(directory.path()).expect("there").count(), 0);
        std::os::unix::fs::symlink("/etc/hostname", &path).expect("writable");
        assert!(Invitation::read(&path).is_err(), "a link was followed");
    }

    /// Returns a listener of this host, and its invitation.
    fn invite() -> (TcpListener, Invitation) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback works");
        let address = listener.local_addr().expect("it is bound");
        (listener, Invitation::new(address).expect("random bytes"))
    }

    #[test]
    fn a_rank_and_rank_0_prove_themselves() {
        let (listener, invitation) = invite();
        let rank = std::thread::spawn({
            let invitation = invitation.clone();
            move || invitation.accept(3).expect("the same run")
        });
        let (stream, _) = listener.accept().expect("the rank connects");
        let (number, link) = invitation.welcome(stream).expect("the same run");
        assert_eq!(number, 3);
        let (mut input, mut output) = rank.join().expect("no panic");
        send(&mut output, &7_u32).expect("open");
        let Link { input: mut from_rank, output: mut to_rank, carrier } = link;
        assert_eq!(receive::<u32>(&mut from_rank).expect("sent"), 7);
        send(&mut to_rank, &8_u32).expect("open");
        assert_eq!(receive::<u32>(&mut input).expect("sent"), 8);
        let Carrier::Stream(stream) = carrier else { panic!("a process") };
        stream.shutdown(std::net::Shutdown::Write).expect("open");
        let error = receive::<u32>(&mut input).expect_err("the other side has ended");
        assert!(error.to_string().contains("closed"), "{error}");
    }

    #[test]
    fn a_stranger_is_no_rank_and_gets_no_token() {
        let (listener, invitation) = invite();
        let address = listener.local_addr().expect("it is bound");
        for wrong in ["", "0", invitation.reply_token.as_str(), &invitation.rank_token[..63]] {
            let mut stranger = TcpStream::connect(address).expect("it listens");
            send(&mut stranger, &Proof { rank: 1, token: wrong.to_owned() }).expect("open");
            let (stream, _) = listener.accept().expect("it has connected");
            assert!(invitation.welcome(stream).is_err(), "{wrong}");
            let mut text = String::new();
            // A connection that is closed with unread bytes may be reset.
            let _ = stranger.read_to_string(&mut text);
            assert_eq!(text, "");
        }
    }

    #[test]
    fn a_program_on_the_port_of_a_dead_rank_0_is_not_followed() {
        let (listener, invitation) = invite();
        let stranger = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("the rank connects");
            let (mut input, mut output) = connection(stream).expect("open");
            let proof: Proof = receive(&mut input).expect("sent");
            // The best that it can do: return the rank's own proof.
            send(&mut output, &proof).expect("open");
        });
        let error = invitation.accept(1).expect_err("no rank 0").to_string();
        assert!(error.contains("cannot be reached"), "{error}");
        stranger.join().expect("no panic");
    }
}
