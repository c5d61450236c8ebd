//! The meeting of the processes that srun or mpirun started, for `forebay-measure` and [`Ranks`](crate::Ranks).
//!
//! Rank 0 publishes a file in a directory that all ranks name: its addresses and two tokens of this run. A rank connects and sends
//! its number and the first token; rank 0 replies with the second token. Instead of a directory the user can give all ranks the
//! same addresses, one of them rank 0's, and a secret from which the tokens are derived. A connection without the token gets
//! nothing, and a program that listens on the port of a dead rank 0 is not followed. The bytes on a connection are not encrypted: a
//! network that others read needs a tunnel.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr as LocalAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use forebay::internal::ErrorExt;
use forebay::{Error, ErrorKind, Result};
use if_addrs::Interface;

mod timed;

pub(crate) use timed::{DESCRIPTORS, read_full, receive_descriptors, send_descriptors, write_full};

/// The time for which ranks wait for each other. On a busy machine launchers start them minutes apart.
pub const RENDEZVOUS_WITHIN: Duration = Duration::from_secs(180);
/// The limit for a connection with its proofs.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// The interval at which a rank looks for rank 0's file. No file system notifies one host of another one's writes.
const POLL_EVERY: Duration = Duration::from_millis(100);
/// The interval at which connections are accepted.
const ACCEPT_EVERY: Duration = Duration::from_millis(10);
/// The first line of an invitation.
const TITLE: &str = "forebay ranks 1";
/// The length of a token: 32 bytes as hexadecimal digits.
const TOKEN_LEN: usize = 64;
/// The prefix of a socket address on one host, an abstract name outside of the file system: it disappears with its process.
const LOCAL: char = '@';
/// The length of the shortest secret: 16 unpredictable bytes make each token.
const SECRET_LEN_MIN: usize = 32;
/// The size of the longest invitation.
const INVITATION_BYTES_MAX: u64 = 1 << 16;

/// The place of this process among those that work together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rank {
    number: u32,
    size: u32,
    /// Distinguishes this job's file from another one's in the same directory.
    job: String,
    /// Whether all processes are on this host.
    is_local: bool,
    host: Option<String>,
}

impl Rank {
    /// Returns rank `number` of `size`, all of them on this host.
    pub fn new(number: u32, size: u32) -> Rank {
        Rank { number, size, job: "job".to_owned(), is_local: true, host: None }
    }

    /// Returns the rank that a launcher gave this process in its environment: Open MPI's mpirun, a launcher with PMI (MPICH), or
    /// srun. `None` without a launcher.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when a variable makes no sense.
    pub fn of_launcher() -> Result<Option<Rank>> {
        let found = Rank::find(|name| std::env::var(name).ok(), true);
        found.map_err(|text| <Error as ErrorExt>::new(ErrorKind::InvalidInput, "ranks").with_note(text))
    }

    /// Returns the rank according to these variables. With `insist` the program is known to be one of several, so the variables of
    /// a batch script count as well; without it they may only mean that a script runs.
    ///
    /// # Errors
    /// The reason why a variable makes no sense.
    #[doc(hidden)]
    pub fn find(get: impl Fn(&str) -> Option<String>, insist: bool) -> Result<Option<Rank>, String> {
        let number = |name: &str| match get(name) {
            Some(text) => {
                let found = text.trim().parse::<u32>();
                found
                    .map(Some)
                    .map_err(|_| format!("the launcher's variable {name} holds no number: {text:?}"))
            }
            None => Ok(None),
        };
        // Open MPI first, then PMI: under Slurm their processes inherit the variables of the process that started them.
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
                return Err(format!(
                    "the launcher's variables give rank {number} of {size}, which is out of range"
                ));
            }
            if size == 1 && !insist {
                continue;
            }
            let nodes = get("SLURM_STEP_NODELIST").or_else(|| get("SLURM_JOB_NODELIST"));
            let one_node = nodes.is_some_and(|nodes| !nodes.is_empty() && !nodes.contains([',', '[']));
            // The launcher's count, if there is one: Slurm's nodes may be those of a step in which it starts some of the processes.
            let is_local = local_size.map_or(one_node, |local_size| local_size == size);
            return Ok(Some(Rank { number, size, job: job_name(&get), is_local, host: None }));
        }
        Ok(None)
    }

    /// Sets the name of the job, which is the same in all its processes: jobs that meet in one directory at the same time need
    /// different names. Default: the launcher's job name.
    pub fn job(mut self, name: &str) -> Rank {
        self.job = file_name(name);
        self
    }

    /// Declares that the processes are on several hosts of a network. Each needs an IPv4 address, or an IPv6 address that is not
    /// link-local.
    pub fn across_hosts(mut self) -> Rank {
        self.is_local = false;
        self
    }

    /// Sets the name of this process's host, of which one process or more become [aggregators](crate::Options::aggregators). Default: the kernel's number of this boot.
    pub fn host(mut self, name: &str) -> Rank {
        self.host = Some(name.to_owned());
        self
    }

    /// Returns the number of this process, from 0.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns the name of this process's host: the same for all processes of one kernel.
    pub(crate) fn host_name(&self) -> String {
        let boot = || fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        self.host.clone().or_else(boot).unwrap_or_default().trim().to_owned()
    }

    /// Returns the file in which rank 0 publishes how it can be found.
    fn file(&self, directory: &Path) -> PathBuf {
        directory.join(format!(".forebay-ranks-{}", self.job))
    }

    /// Finds rank 0, as one of the other ranks, and connects to it.
    ///
    /// # Errors
    /// Rank 0 cannot be found within [`RENDEZVOUS_WITHIN`].
    #[doc(hidden)]
    pub fn follow(&self, directory: &Path) -> io::Result<(Invitation, TcpStream)> {
        let file = self.file(directory);
        let absent = other(format!("the file {} did not appear", file.display()));
        self.find_first(|| Invitation::read(&file), absent)
    }

    /// Connects to rank 0 as soon as `look` finds it.
    fn find_first(
        &self,
        look: impl Fn() -> io::Result<Option<Invitation>>,
        absent: io::Error,
    ) -> io::Result<(Invitation, TcpStream)> {
        let deadline = Instant::now() + RENDEZVOUS_WITHIN;
        let mut last = absent;
        loop {
            let found = look().and_then(|found| match found {
                Some(found) => found.accept(self.number).map(|stream| Some((found, stream))),
                None => Ok(None),
            });
            match found {
                Ok(Some(connected)) => return Ok(connected),
                Ok(None) => {}
                // The file may have been left behind by a killed run, until rank 0 of this run replaces it.
                Err(error) => last = error,
            }
            if Instant::now() >= deadline {
                let (rank, seconds) = (self.number, RENDEZVOUS_WITHIN.as_secs());
                return Err(other(format!("rank {rank} did not find rank 0 within {seconds} s: {last}")));
            }
            thread::park_timeout(POLL_EVERY);
        }
    }
}

/// Returns a name for the job on which all its processes agree.
fn job_name(get: &impl Fn(&str) -> Option<String>) -> String {
    let slurm = get("SLURM_JOB_ID").map(|job| match get("SLURM_STEP_ID") {
        Some(step) => format!("{job}.{step}"),
        None => job,
    });
    let name = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"].into_iter().find_map(get).or(slurm);
    file_name(&name.unwrap_or_else(|| "job".to_owned()))
}

/// Returns a part of a file's name, a different one for each text.
fn file_name(text: &str) -> String {
    let letters = text.chars().map(|letter| match letter {
        letter if letter.is_ascii_alphanumeric() || letter == '.' => letter,
        _ => '-',
    });
    let letters: String = letters.take(64).collect();
    if letters == text {
        return letters;
    }
    // Other texts have the same letters (FNV-1a).
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("{letters}-{hash:016x}")
}

fn other(text: String) -> io::Error {
    io::Error::other(text)
}

/// Where ranks meet.
#[derive(Debug)]
pub(crate) enum MeetingPlace {
    /// A directory, in which rank 0 publishes its addresses and tokens.
    Directory(PathBuf),
    /// Addresses of which rank 0 uses the first possible, with tokens that all know.
    Addresses(Invitation),
}

impl MeetingPlace {
    /// Returns a place at these addresses; `None` without any, and when the secret is too short.
    pub(crate) fn at(places: &[SocketAddr], secret: &[u8]) -> Option<MeetingPlace> {
        if places.is_empty() || secret.len() < SECRET_LEN_MIN {
            return None;
        }
        let (one, other) = secret.split_at(secret.len() / 2);
        // None of them says anything about the other one.
        let token = |half: &[u8]| hexadecimal(half.iter().cycle().take(TOKEN_LEN / 2));
        let (rank_token, reply_token) = (token(one), token(other));
        let (path, places) = (PathBuf::new(), places.to_owned());
        let invitation = Invitation { path, local: None, places, rank_token, reply_token };
        Some(MeetingPlace::Addresses(invitation))
    }

    /// Finds rank 0, as [`follow`](Rank::follow) does.
    pub(crate) fn follow(&self, rank: &Rank) -> io::Result<(Invitation, TcpStream)> {
        match self {
            MeetingPlace::Directory(directory) => rank.follow(directory),
            MeetingPlace::Addresses(invitation) => {
                rank.find_first(|| Ok(Some(invitation.clone())), other("there is no address".to_owned()))
            }
        }
    }

    /// Returns rank 0's meeting, where the others find it from now on.
    pub(crate) fn open(&self, rank: &Rank) -> io::Result<Rendezvous> {
        match self {
            MeetingPlace::Directory(directory) => {
                let meeting = Rendezvous::open(rank, directory)?;
                meeting.invitation.publish()?;
                Ok(meeting)
            }
            MeetingPlace::Addresses(invitation) => {
                Rendezvous::listening(TcpListener::bind(&invitation.places[..])?, invitation)
            }
        }
    }
}

/// The addresses of a process, and the tokens of this run.
#[doc(hidden)]
#[derive(Clone)]
pub struct Invitation {
    path: PathBuf,
    /// The name of a socket for this host alone.
    local: Option<String>,
    places: Vec<SocketAddr>,
    /// The proof of a rank.
    rank_token: String,
    /// The proof of the inviting process.
    reply_token: String,
}

forebay::_debug_parts!(Invitation, |invitation| path: invitation.path, places: invitation.places);

impl Invitation {
    /// Publishes the invitation for the other ranks, atomically.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn publish(&self) -> io::Result<()> {
        let mut temp = self.path.clone().into_os_string();
        temp.push(format!(".{}.tmp", std::process::id()));
        // Left behind by a process of the same number that was killed.
        let _ = fs::remove_file(&temp);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temp)?;
        let written = file.write_all(self.text().as_bytes()).and_then(|()| file.sync_all());
        // A run of this user that was killed may have left a file of the same name.
        let published = written.and_then(|()| fs::rename(&temp, &self.path));
        if published.is_err() {
            let _ = fs::remove_file(&temp);
        }
        published
    }

    /// Removes the file, unless another run has replaced it.
    pub fn withdraw(&self) {
        if let Ok(Some(found)) = Invitation::read(&self.path)
            && found.rank_token == self.rank_token
        {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Returns the places, in the form that [`at`](Invitation::at) accepts.
    pub(crate) fn places(&self) -> String {
        let far = self.places.iter().map(SocketAddr::to_string);
        self.local.iter().cloned().chain(far).collect::<Vec<_>>().join(" ")
    }

    /// Returns the invitation of another process of this run to these places.
    pub(crate) fn at(&self, places: &str) -> io::Result<Invitation> {
        let (local, far): (Vec<&str>, Vec<&str>) =
            places.split_whitespace().partition(|place| place.starts_with(LOCAL));
        let places = far.into_iter().map(str::parse).collect::<Result<Vec<SocketAddr>, _>>();
        let places = places.map_err(|_| other("an address that cannot be read".to_owned()))?;
        Ok(Invitation { local: local.first().map(|name| (*name).to_owned()), places, ..self.clone() })
    }

    fn text(&self) -> String {
        format!("{TITLE}\n{}\n{}\n{}\n", self.places(), self.rank_token, self.reply_token)
    }

    /// Reads the file; returns `None` when it is not there yet.
    ///
    /// # Errors
    /// It is not one that this user's rank 0 wrote.
    fn read(path: &Path) -> io::Result<Option<Invitation>> {
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
        let file = match file {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let metadata = file.metadata()?;
        let is_own = metadata.is_file()
            && metadata.uid() == rustix::process::geteuid().as_raw()
            && metadata.mode() & 0o077 == 0;
        if !is_own {
            return Err(other(format!(
                "{} is not this user's own private file: it is not followed",
                path.display()
            )));
        }
        let mut text = String::new();
        file.take(INVITATION_BYTES_MAX).read_to_string(&mut text)?;
        let foreign = || other(format!("{} was not written by this version of forebay", path.display()));
        let lines: Vec<&str> = text.lines().collect();
        let [TITLE, places, rank_token, reply_token] = lines[..] else { return Err(foreign()) };
        if rank_token.len() != TOKEN_LEN || reply_token.len() != TOKEN_LEN {
            return Err(foreign());
        }
        let blank = Invitation {
            path: path.to_owned(),
            local: None,
            places: Vec::new(),
            rank_token: rank_token.to_owned(),
            reply_token: reply_token.to_owned(),
        };
        blank.at(places).map(Some)
    }

    /// Receives a rank's proof, and proves the inviting process. Returns the rank's number.
    ///
    /// # Errors
    /// The other side is not a rank of this run.
    fn welcome(&self, stream: &TcpStream) -> io::Result<u32> {
        let deadline = Instant::now() + CONNECT_WITHIN;
        // A socket of this host has no delay.
        let _ = stream.set_nodelay(true);
        let mut proof = [0; 4 + TOKEN_LEN];
        read_full(stream, &mut proof, || deadline)?;
        let (number, token) = proof.split_at(4);
        if !is_same(token, self.rank_token.as_bytes()) {
            return Err(other("a connection without the token".to_owned()));
        }
        write_full(stream, self.reply_token.as_bytes(), || deadline)?;
        Ok(number.iter().rev().fold(0, |all, byte| (all << 8) | u32::from(*byte)))
    }

    /// Connects to the inviting process and proves this rank.
    ///
    /// # Errors
    /// It cannot be reached, or is another program.
    pub(crate) fn accept(&self, rank: u32) -> io::Result<TcpStream> {
        // Not reached from another network namespace of the host.
        if let Some(name) = &self.local
            && let Ok(stream) = UnixStream::connect_addr(&local_address(name)?)
            && let Ok(stream) = self.prove(rank, stream_of(stream))
        {
            return Ok(stream);
        }
        let mut last = other("the inviting host has no address".to_owned());
        for place in &self.places {
            let connected = TcpStream::connect_timeout(place, CONNECT_WITHIN);
            let connected = connected.and_then(|stream| stream.set_nodelay(true).map(|()| stream));
            match connected.and_then(|stream| self.prove(rank, stream)) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = other(format!("no rank can be reached at {place}: {error}")),
            }
        }
        Err(last)
    }

    /// Proves this rank to the inviting process, and has that prove itself.
    fn prove(&self, rank: u32, stream: TcpStream) -> io::Result<TcpStream> {
        let deadline = Instant::now() + CONNECT_WITHIN;
        write_full(&stream, &[&rank.to_le_bytes()[..], self.rank_token.as_bytes()].concat(), || deadline)?;
        let mut token = [0; TOKEN_LEN];
        read_full(&stream, &mut token, || deadline)?;
        if is_same(&token, self.reply_token.as_bytes()) {
            unlimited(stream)
        } else {
            Err(other("another program listens there".to_owned()))
        }
    }
}

/// Returns these places for a rank of another host.
pub(crate) fn without_local(places: &str) -> String {
    let far = places.split_whitespace().filter(|place| !place.starts_with(LOCAL));
    far.collect::<Vec<_>>().join(" ")
}

fn local_address(name: &str) -> io::Result<LocalAddr> {
    LocalAddr::from_abstract_name(name)
}

/// Returns a socket of this host as a stream. Sends, receptions, their limits of time and the end are the same for both kinds of sockets.
fn stream_of(local: UnixStream) -> TcpStream {
    TcpStream::from(OwnedFd::from(local))
}

/// A place where ranks connect, until it is dropped.
#[doc(hidden)]
#[derive(Debug)]
pub struct Rendezvous {
    /// One for each version of IP in use.
    listeners: Vec<TcpListener>,
    local: Option<UnixListener>,
    invitation: Invitation,
}

impl Rendezvous {
    /// Returns rank 0's meeting in a directory that all ranks see. Its invitation is not published yet.
    ///
    /// # Errors
    /// No port can be opened; the addresses of this host, or random bytes, cannot be read; other hosts cannot connect to any address of
    /// this one.
    pub fn open(rank: &Rank, directory: &Path) -> io::Result<Rendezvous> {
        let tokens = Invitation {
            path: rank.file(directory),
            local: None,
            places: Vec::new(),
            rank_token: token()?,
            reply_token: token()?,
        };
        Rendezvous::beside(&tokens, rank)
    }

    /// Returns another meeting of the same run, in another process.
    pub(crate) fn beside(invitation: &Invitation, rank: &Rank) -> io::Result<Rendezvous> {
        // Of this host only, where that is enough.
        if rank.is_local {
            return Rendezvous::listening(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, invitation);
        }
        let all = if_addrs::get_if_addrs()?;
        // A link-local address of IPv6 means another interface on each host.
        let is_reachable = |one: &&Interface| one.ip().is_ipv4() || !one.is_link_local();
        let reachable = all.iter().filter(|one| !one.is_loopback()).filter(is_reachable);
        Rendezvous::reachable_at(&reachable.map(Interface::ip).collect::<Vec<_>>(), invitation)
    }

    /// Returns the meeting of this run at these addresses of the host; those of IPv4 are tried first.
    fn reachable_at(addresses: &[IpAddr], invitation: &Invitation) -> io::Result<Rendezvous> {
        let (mut listeners, mut places) = (Vec::new(), Vec::new());
        for any in [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()] {
            let mut of_version = addresses.iter().filter(|ip| ip.is_ipv4() == any.is_ipv4()).peekable();
            if of_version.peek().is_some() {
                let listener = TcpListener::bind((any, 0))?;
                listener.set_nonblocking(true)?;
                let port = listener.local_addr()?.port();
                places.extend(of_version.map(|ip| SocketAddr::new(*ip, port)));
                listeners.push(listener);
            }
        }
        if places.is_empty() {
            return Err(other("this host has no address that other hosts can connect to".to_owned()));
        }
        Ok(Rendezvous { listeners, local: None, invitation: Invitation { places, ..invitation.clone() } })
    }

    /// Returns the meeting of this run at a listener.
    fn listening(listener: TcpListener, invitation: &Invitation) -> io::Result<Rendezvous> {
        listener.set_nonblocking(true)?;
        let invitation = Invitation { places: vec![listener.local_addr()?], ..invitation.clone() };
        Ok(Rendezvous { listeners: vec![listener], local: None, invitation })
    }

    /// Lets ranks of this host connect without the network's protocols, which cost twice the processor time for the same bytes.
    pub(crate) fn with_local(mut self) -> io::Result<Rendezvous> {
        let name = format!("{LOCAL}forebay-ranks-{}", token()?);
        let listener = UnixListener::bind_addr(&local_address(&name)?)?;
        listener.set_nonblocking(true)?;
        (self.local, self.invitation.local) = (Some(listener), Some(name));
        Ok(self)
    }

    /// Returns a pending connection, if any.
    fn arrival(&self) -> io::Result<Option<TcpStream>> {
        if let Some(local) = &self.local
            && let Some((stream, _)) = pending(local.accept())?
        {
            return Ok(Some(stream_of(stream)));
        }
        for listener in &self.listeners {
            if let Some((stream, _)) = pending(listener.accept())? {
                return Ok(Some(stream));
            }
        }
        Ok(None)
    }

    /// Returns the invitation to this meeting.
    pub fn invitation(&self) -> &Invitation {
        &self.invitation
    }

    /// Waits until these ranks have connected. Returns their connections by number; of a rank that connected again, because the
    /// reply was late, the last connection.
    ///
    /// # Errors
    /// Some did not connect within [`RENDEZVOUS_WITHIN`]; the error names the last failure to accept a connection, if any. Or a number is
    /// out of range.
    pub fn gather(&self, ranks: Range<u32>) -> io::Result<Vec<TcpStream>> {
        self.gather_within(ranks, RENDEZVOUS_WITHIN)
    }

    fn gather_within(&self, ranks: Range<u32>, within: Duration) -> io::Result<Vec<TcpStream>> {
        let deadline = Instant::now() + within;
        let (arrivals, inbox) = sync_channel::<(u32, u64, TcpStream)>(64);
        let mut streams: Vec<Option<(u64, TcpStream)>> = ranks.clone().map(|_| None).collect();
        let (mut count, mut refusal) = (0, None);
        while let Some(missing) = streams.iter().position(Option::is_none) {
            // A descriptor may become free until the deadline.
            let arrived = self.arrival().unwrap_or_else(|error| {
                refusal = Some(error);
                None
            });
            // Strangers that connect without end keep no proof waiting.
            let limit = if arrived.is_some() { Duration::ZERO } else { ACCEPT_EVERY };
            if let Some(stream) = arrived {
                count += 1;
                let (arrivals, invitation, order) = (arrivals.clone(), self.invitation.clone(), count);
                // A thread each, so that a connection that sends nothing keeps no rank waiting. Without a thread the connection is
                // closed, and the rank tries again.
                let started = thread::Builder::new().spawn(move || {
                    if let Ok(rank) = invitation.welcome(&stream)
                        && let Ok(stream) = unlimited(stream)
                    {
                        let _ = arrivals.send((rank, order, stream));
                    }
                });
                refusal = started.err().or(refusal);
            }
            if let Ok((rank, order, stream)) = inbox.recv_timeout(limit) {
                let index = rank.checked_sub(ranks.start).map(|index| index as usize);
                match index.and_then(|index| streams.get_mut(index)) {
                    // Proofs of two connections may be read in either order.
                    Some(Some((last, _))) if *last > order => {}
                    Some(place) => *place = Some((order, stream)),
                    None => {
                        return Err(other(format!(
                            "rank {rank} of {} is out of range: is another job of the same name in this directory?",
                            ranks.end
                        )));
                    }
                }
            }
            if Instant::now() >= deadline {
                let reason = match refusal {
                    Some(error) => format!("a connection was not accepted: {error}"),
                    None => "do all of them see the same directory?".to_owned(),
                };
                return Err(other(format!(
                    "of {} ranks {} did not connect within {} s, rank {} among them; {reason}",
                    ranks.end,
                    streams.iter().filter(|stream| stream.is_none()).count(),
                    within.as_secs(),
                    missing as u32 + ranks.start
                )));
            }
        }
        Ok(streams.into_iter().flatten().map(|(_, stream)| stream).collect())
    }
}

/// Returns what was accepted; `None` where no connection is pending.
fn pending<T>(accepted: io::Result<T>) -> io::Result<Option<T>> {
    match accepted {
        Ok(connection) => Ok(Some(connection)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns a connection without the limits of time that its proofs had.
fn unlimited(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    Ok(stream)
}

/// Returns 32 unpredictable bytes as text.
fn token() -> io::Result<String> {
    let mut bytes = [0; TOKEN_LEN / 2];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes))?;
    Ok(hexadecimal(bytes.iter()))
}

fn hexadecimal<'b>(bytes: impl Iterator<Item = &'b u8>) -> String {
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

/// Compares tokens in a time that does not depend on where they differ.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let difference = one.iter().zip(other).fold(0, |all, (one, other)| all | (one ^ other));
    one.len() == other.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_test::children::{all_descriptors, with_descriptors};
    use std::os::unix::fs::PermissionsExt;

    fn find(variables: &[(&str, &str)], insist: bool) -> Result<Option<Rank>, String> {
        let get =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Rank::find(get, insist)
    }

    fn rank(number: u32, size: u32, job: &str, is_local: bool) -> Rank {
        Rank { number, size, job: job.to_owned(), is_local, host: None }
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
        assert_eq!(find(&srun, false), Ok(Some(rank(2, 4, "77.1", false))));
        let mpirun = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", "prterun-a/../b@1"),
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NUM_TASKS", "7"),
        ];
        let job = file_name("prterun-a/../b@1");
        assert!(job.starts_with("prterun-a-..-b-1-"), "{job}");
        assert_eq!(find(&mpirun, false), Ok(Some(rank(0, 2, &job, true))));
        let hydra = [("PMI_RANK", "1"), ("PMI_SIZE", "3"), ("SLURM_JOB_NODELIST", "one")];
        assert_eq!(find(&hydra, false), Ok(Some(rank(1, 3, "job", true))));
    }

    /// mpirun of Open MPI on two nodes of Slurm starts the second node's processes by a step of that node alone. They counted as ranks
    /// of one host, listened on loopback, and the ranks of the first node could not connect to their aggregator.
    #[test]
    fn a_step_on_one_node_of_two_is_not_all_of_a_run() {
        let second = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
            ("SLURM_STEP_NODELIST", "node2"),
            ("SLURM_JOB_NODELIST", "node[1-2]"),
        ];
        assert_eq!(find(&second, true), Ok(Some(rank(1, 2, "job", false))));
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

    fn meeting(directory: &Path) -> Rendezvous {
        Rendezvous::open(&Rank::new(0, 4), directory).expect("loopback works")
    }

    #[test]
    fn an_invitation_is_private_found_whole_and_withdrawn() {
        let directory = tempfile::tempdir().expect("writable");
        let path = directory.path().join(".forebay-ranks-job");
        assert!(Invitation::read(&path).is_ok_and(|found| found.is_none()));
        let meeting = meeting(directory.path());
        meeting.invitation().publish().expect("writable");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
        let found = Invitation::read(&path).expect("ours").expect("there");
        assert_eq!(found.text(), meeting.invitation().text());
        assert_ne!(found.rank_token, found.reply_token);

        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("ours");
        assert!(Invitation::read(&path).is_err(), "others may have written the tokens down");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
        let other = Rendezvous::open(&Rank::new(0, 4), directory.path()).expect("loopback works");
        other.invitation().withdraw();
        assert!(path.exists(), "the file is another run's");
        found.withdraw();
        assert_eq!(fs::read_dir(directory.path()).expect("there").count(), 0);
        std::os::unix::fs::symlink("/etc/hostname", &path).expect("writable");
        assert!(Invitation::read(&path).is_err(), "a link was followed");
    }

    /// Strangers with wrong tokens, and one that sends nothing, neither become ranks nor get a token.
    #[test]
    fn ranks_meet_among_strangers() {
        let directory = tempfile::tempdir().expect("writable");
        let meeting = meeting(directory.path());
        let invitation = meeting.invitation();
        let _silent = TcpStream::connect(invitation.places[0]).expect("it listens");
        let mut strangers = Vec::new();
        for wrong in ["", "0", invitation.reply_token.as_str(), &invitation.rank_token[..63]] {
            let mut stranger = TcpStream::connect(invitation.places[0]).expect("it listens");
            stranger.write_all(&[&1u32.to_le_bytes()[..], wrong.as_bytes()].concat()).expect("open");
            stranger.shutdown(std::net::Shutdown::Write).expect("open");
            strangers.push(stranger);
        }
        thread::scope(|scope| {
            let ranks: Vec<_> = (1..4)
                .map(|rank| scope.spawn(move || invitation.accept(rank).expect("the same run")))
                .collect();
            let streams = meeting.gather(1..4).expect("all come");
            for (index, (rank, stream)) in ranks.into_iter().zip(streams).enumerate() {
                let deadline = Instant::now() + RENDEZVOUS_WITHIN;
                write_full(&rank.join().expect("no panic"), &[index as u8], || deadline).expect("open");
                let mut byte = [9];
                read_full(&stream, &mut byte, || deadline).expect("sent");
                assert_eq!(byte, [index as u8], "connections are in the order of the ranks");
            }
        });
        for mut stranger in strangers {
            let mut text = String::new();
            // A connection that is closed with unread bytes may be reset.
            let _ = stranger.read_to_string(&mut text);
            assert_eq!(text, "");
        }
    }

    /// A rank whose reply arrived late connects again: that ended the meeting of all.
    #[test]
    fn a_second_connection_of_a_rank_replaces_the_first() {
        let directory = tempfile::tempdir().expect("writable");
        let meeting = meeting(directory.path());
        let invitation = meeting.invitation();
        thread::scope(|scope| {
            let gathered = scope.spawn(|| meeting.gather(1..3).expect("both come"));
            let first = invitation.accept(1).expect("the same run");
            let second = invitation.accept(1).expect("the same run");
            assert_eq!((&first).read(&mut [0]).expect("closed, not reset"), 0, "the first one is given up");
            let _third = invitation.accept(2).expect("the same run");
            let streams = gathered.join().expect("no panic");
            assert_eq!(streams[0].peer_addr().expect("open"), second.local_addr().expect("open"));
        });
    }

    /// Without a free descriptor no connection was accepted, and the error suspected the directory.
    #[test]
    fn a_lack_of_descriptors_is_named() {
        let name = "rendezvous::tests::a_lack_of_descriptors_is_named";
        with_descriptors(name, &[64], |_| {
            let directory = tempfile::tempdir().expect("writable");
            let meeting = meeting(directory.path());
            let _rank = TcpStream::connect(meeting.invitation().places[0]).expect("it listens");
            let all = all_descriptors();
            let error = meeting.gather_within(1..2, Duration::ZERO).expect_err("no descriptor is free");
            drop(all);
            let text = error.to_string();
            assert!(text.contains("a connection was not accepted: Too many open files"), "{text}");
        });
    }

    #[test]
    fn ranks_of_one_host_have_a_socket_of_it() {
        let directory = tempfile::tempdir().expect("writable");
        let meeting = meeting(directory.path()).with_local().expect("a name of the host");
        let places = meeting.invitation().places();
        let near = meeting.invitation().at(&places).expect("its own words");
        let far = meeting.invitation().at(&without_local(&places)).expect("its own words");
        assert_eq!((near.places(), far.local.is_none()), (places, true));
        thread::scope(|scope| {
            let ranks = [(near, 1), (far, 2)].map(|(invitation, rank)| {
                scope.spawn(move || invitation.accept(rank).expect("the same run"))
            });
            meeting.gather(1..3).expect("both come");
            // Only those of a network have addresses.
            let is_far = ranks.map(|rank| rank.join().expect("no panic").peer_addr().is_ok());
            assert_eq!(is_far, [false, true]);
        });
    }

    /// Addresses of IPv6 were left out. A host without others listed none, and the ranks looked for it for three minutes.
    #[test]
    fn addresses_of_both_versions_are_listed() {
        let directory = tempfile::tempdir().expect("writable");
        let tokens = meeting(directory.path()).invitation;
        let error = Rendezvous::reachable_at(&[], &tokens).expect_err("no address");
        assert!(error.to_string().contains("no address that other hosts can connect to"), "{error}");
        let [four, six] = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        if TcpListener::bind((six, 0)).is_err() {
            println!("skipped: no IPv6 here");
            return;
        }
        for (addresses, listed) in [(vec![six], vec![six]), (vec![six, four], vec![four, six])] {
            let meeting = Rendezvous::reachable_at(&addresses, &tokens).expect("both are of this host");
            let places = &meeting.invitation().places;
            assert_eq!(places.iter().map(SocketAddr::ip).collect::<Vec<_>>(), listed);
            // A rank at each address.
            let ranks = 1..1 + places.len() as u32;
            thread::scope(|scope| {
                for (rank, place) in ranks.clone().zip(places) {
                    let invitation = tokens.at(&place.to_string()).expect("its own words");
                    scope.spawn(move || invitation.accept(rank).expect("the same run"));
                }
                let found = meeting.gather(ranks.clone()).expect("all come");
                let versions = found.iter().map(|stream| stream.local_addr().expect("open").ip());
                assert_eq!(versions.collect::<Vec<_>>(), listed);
            });
        }
    }

    #[test]
    fn a_program_on_the_port_of_a_dead_rank_0_is_not_followed() {
        let directory = tempfile::tempdir().expect("writable");
        let meeting = meeting(directory.path());
        meeting.listeners[0].set_nonblocking(false).expect("open");
        let error = thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = meeting.listeners[0].accept().expect("the rank connects");
                let mut proof = [0; 4 + TOKEN_LEN];
                stream.read_exact(&mut proof).expect("sent");
                // The best that it can do: return the rank's own proof.
                stream.write_all(&proof[4..]).expect("open");
            });
            meeting.invitation().accept(1).expect_err("no rank 0").to_string()
        });
        assert!(error.contains("another program"), "{error}");
    }
}
