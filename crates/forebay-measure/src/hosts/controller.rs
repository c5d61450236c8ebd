//! The controller's side: all agents of one measurement, which do everything together or not at all.

use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::super::start_barrier::{Timed, monotonic_ns};
use super::agent::PORT;
use super::clock::Offset;
use super::frame::Times;
use super::handshake;
use super::link::{Link, Sender};
use super::message::{Done, Facts, FromAgent, HostWork, Prepared, Task, ToAgent};
use super::secret::Key;
use forebay_report::failure::Failure;
use forebay_report::result::Condition;

mod wait;

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// The limit for any step that takes no more time than a message.
const REPLY_WITHIN: Duration = Duration::from_secs(30);
/// The limit for evicting a file from memory, starting a process, and ending it.
const SAMPLE_WITHIN: Duration = Duration::from_secs(60);
/// The slowest rate at which files are written and read.
const BYTES_PER_S_MIN: f64 = 20e6;
/// The time from the order to the start of a sample, in addition to the slowest round trip.
const LEAD: Duration = Duration::from_millis(30);
const EVENTS_MAX: usize = 1024;

/// One agent as the controller sees it.
#[derive(Debug)]
pub(super) struct Host {
    /// The name: `node-a:7317`, or `rank 3 on node-a`.
    pub(super) name: String,
    /// The short form for names of rows: the place in the list from 1, or the rank.
    pub(super) label: String,
    pub(super) facts: Facts,
    pub(super) prepared: Option<Prepared>,
    sender: Sender,
    offset: Offset,
}

/// The result of one host in a round.
#[derive(Debug)]
pub(super) struct HostSample {
    pub(super) timed: Timed,
    pub(super) memory_peak_bytes: Option<u64>,
    pub(super) conditions: Vec<Condition>,
    /// The start of the sample, on the controller's clock.
    pub(super) begun_ns: i128,
    /// The error bound of that instant.
    pub(super) clock_error_ns: u64,
}

#[derive(Debug)]
struct Received {
    host: usize,
    message: anyhow::Result<FromAgent>,
    arrived_ns: u64,
}

/// All agents. Dropping the controller ends their measurements.
#[derive(Debug)]
pub(super) struct Controller {
    pub(super) hosts: Vec<Host>,
    inbox: Receiver<Received>,
    listeners: Vec<JoinHandle<()>>,
    /// The instant when the agents were last notified that this side is alive.
    alive_sent: Instant,
    rounds: u64,
}

impl Controller {
    /// Connects to all agents at once.
    ///
    /// # Errors
    /// Fails with the name of the agent that cannot be reached, has another secret or version, or serves
    /// another controller.
    pub(super) fn connect(names: &[String], secret: &Key) -> anyhow::Result<Self> {
        let joined: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                names.iter().map(|name| scope.spawn(move || join_host(name, secret))).collect();
            threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        let mut members = Vec::new();
        for (index, (name, outcome)) in names.iter().zip(joined).enumerate() {
            let outcome = outcome.unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked")));
            let (link, facts) = outcome.with_context(|| format!("host {} ({name})", index + 1))?;
            members.push(((index + 1).to_string(), name.clone(), link, facts));
        }
        Ok(Self::new(members))
    }

    /// Returns a controller of agents that were welcomed: label, name, link and facts of each.
    pub(super) fn new(members: Vec<(String, String, Link, Facts)>) -> Self {
        let (events, inbox) = sync_channel(EVENTS_MAX);
        let (mut hosts, mut listeners) = (Vec::new(), Vec::new());
        for (index, (label, name, link, facts)) in members.into_iter().enumerate() {
            let Link { sender, mut receiver } = link;
            let events: SyncSender<Received> = events.clone();
            listeners.push(std::thread::spawn(move || {
                loop {
                    let message = receiver.receive();
                    let last = message.is_err();
                    let received = Received { host: index, message, arrived_ns: monotonic_ns() };
                    if events.send(received).is_err() || last {
                        return;
                    }
                }
            }));
            let offset = Offset { ahead_ns: 0, error_ns: u64::MAX };
            hosts.push(Host { name, label, facts, prepared: None, sender, offset });
        }
        Self { hosts, inbox, listeners, alive_sent: Instant::now(), rounds: 0 }
    }

    /// Lets every host write its file, each with contents of its own.
    ///
    /// # Errors
    /// Fails with the host that cannot do so and the reason. The exit code is that of the same
    /// failure on one host.
    pub(super) fn prepare(&mut self, memory_bytes: u64, file_bytes: u64, seed: u64) -> anyhow::Result<()> {
        for (index, host) in self.hosts.iter_mut().enumerate() {
            // Storage that detects equal blocks must not find any.
            let seed = (seed ^ (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)) & ((1 << 53) - 1);
            host.send(&ToAgent::Task(Task::Prepare { memory_bytes, file_bytes, seed }))?;
        }
        let limit = SAMPLE_WITHIN + Duration::from_secs_f64(file_bytes as f64 / BYTES_PER_S_MIN);
        let prepared = self.gather(limit, "prepare its file", |host, message, _| match message {
            FromAgent::Done(Done::Prepared(prepared)) => Ok(Some(prepared)),
            FromAgent::Done(Done::Failed { why, code, .. }) => Err(failure(host, &why, code)),
            other => Err(host.unexpected(&other)),
        })?;
        for (host, prepared) in self.hosts.iter_mut().zip(prepared) {
            anyhow::ensure!(
                prepared.file_bytes == file_bytes,
                "{} made a file of another size",
                host.title()
            );
            host.prepared = Some(prepared);
        }
        Ok(())
    }

    /// Runs one sample on every host, begun at the same instant. The inner error is the reason why no host
    /// has a sample: one of them could not take part. Further rounds are possible after it.
    ///
    /// # Errors
    /// Fails with the host that was lost; nothing more can be measured.
    pub(super) fn round(&mut self, work: &HostWork) -> anyhow::Result<Result<Vec<HostSample>, String>> {
        self.rounds += 1;
        let round = self.rounds;
        for host in &mut self.hosts {
            host.send(&ToAgent::Task(Task::Sample { round, work: work.clone() }))?;
        }
        let warm = match work {
            HostWork::Random(work) => work.warm_bytes as f64 / BYTES_PER_S_MIN,
            HostWork::Scan(_) => 0.0,
        };
        let limit = SAMPLE_WITHIN + Duration::from_secs_f64(warm);
        let ready = self.gather(limit, "make its sample ready", |host, message, _| match message {
            FromAgent::Done(Done::Ready { round: of }) if of == round => Ok(Some(None)),
            FromAgent::Done(Done::Failed { round: Some(of), why, .. }) if of == round => {
                Ok(Some(Some(format!("{}: {why}", host.title()))))
            }
            other => Err(host.unexpected(&other)),
        })?;
        if let Some(why) = ready.iter().flatten().next() {
            self.call_off(round, &ready)?;
            return Ok(Err(why.clone()));
        }
        self.read_clocks()?;
        let slowest_ns = self.hosts.iter().map(|host| host.offset.error_ns).max().unwrap_or(0);
        let at_ns = monotonic_ns() + LEAD.as_nanos() as u64 + slowest_ns.saturating_mul(4);
        for host in &mut self.hosts {
            let at_ns = Some(host.offset.to_theirs(at_ns));
            host.send(&ToAgent::Task(Task::Go { round, at_ns }))?;
        }
        let limit = SAMPLE_WITHIN + Duration::from_secs_f64(work.seconds());
        let ended = self.gather(limit, "end its sample", |host, message, _| match message {
            FromAgent::Done(Done::Sampled { round: of, timed, memory_peak_bytes, conditions })
                if of == round =>
            {
                Ok(Some(Ok(HostSample {
                    begun_ns: host.offset.to_ours(timed.begun_ns),
                    clock_error_ns: host.offset.error_ns,
                    timed: *timed,
                    memory_peak_bytes,
                    conditions,
                })))
            }
            FromAgent::Done(Done::Failed { round: Some(of), why, .. }) if of == round => {
                Ok(Some(Err(format!("{}: {why}", host.title()))))
            }
            other => Err(host.unexpected(&other)),
        })?;
        Ok(ended.into_iter().collect())
    }

    /// Ends the measurement; returns when every agent has removed its files.
    ///
    /// # Errors
    /// Fails when an agent did not end in time.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        for host in &mut self.hosts {
            host.send(&ToAgent::End)?;
        }
        let mut left = self.hosts.len();
        let deadline = Instant::now() + REPLY_WITHIN;
        while left > 0 {
            match self.inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(received) if received.message.is_err() => left -= 1,
                Ok(_) => {}
                Err(_) => anyhow::bail!("not all agents removed their files within {REPLY_WITHIN:?}"),
            }
        }
        Ok(())
    }

    /// Makes the hosts that are ready give the sample up.
    fn call_off(&mut self, round: u64, outcomes: &[Option<String>]) -> anyhow::Result<()> {
        for (host, outcome) in self.hosts.iter_mut().zip(outcomes) {
            if outcome.is_none() {
                host.send(&ToAgent::Task(Task::Go { round, at_ns: None }))?;
            }
        }
        let waiting: Vec<bool> = outcomes.iter().map(Option::is_none).collect();
        self.gather_from(&waiting, REPLY_WITHIN, "give up a sample", |host, message, _| match message {
            FromAgent::Done(Done::Failed { round: Some(of), .. }) if of == round => Ok(Some(())),
            other => Err(host.unexpected(&other)),
        })?;
        Ok(())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        for host in &self.hosts {
            host.sender.close();
        }
        // Listeners that wait for room in the inbox notice that it is gone.
        let (_, closed_inbox) = sync_channel(1);
        self.inbox = closed_inbox;
        for listener in self.listeners.drain(..) {
            let _ = listener.join();
        }
    }
}

impl Host {
    /// Returns `host 2 (node-b:7317)` or `rank 1 on node-b`.
    pub(super) fn title(&self) -> String {
        match self.facts.rank {
            Some(_) => self.name.clone(),
            None => format!("host {} ({})", self.label, self.name),
        }
    }

    fn send(&mut self, message: &ToAgent) -> anyhow::Result<()> {
        let sent = self.sender.send(message);
        sent.with_context(|| format!("{} was lost; the others were stopped", self.title()))
    }

    fn unexpected(&self, message: &FromAgent) -> anyhow::Error {
        let mut text = format!("{message:?}");
        text = text.chars().take(80).collect();
        anyhow::anyhow!("{} sent an unexpected message: {text}", self.title())
    }
}

/// Returns the failure that a host reported, with its exit code.
fn failure(host: &Host, why: &str, code: u8) -> anyhow::Error {
    let sentence = format!("{}: {why}", host.title());
    match code {
        2 => Failure::Usage(sentence).into(),
        3 => Failure::Path(sentence).into(),
        4 => Failure::Unsuitable(sentence).into(),
        _ => anyhow::anyhow!(sentence),
    }
}

fn join_host(name: &str, secret: &Key) -> anyhow::Result<(Link, Facts)> {
    let mut last = None;
    let deadline = Instant::now() + CONNECT_WITHIN;
    for address in addresses(name)? {
        // Leaves at least a moment for the last of many addresses.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(200));
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return welcome(handshake::as_controller(stream, secret, Times::default())?),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error).context("no agent can be reached there; is `forebay agent` running?"),
        None => anyhow::bail!("this name has no address"),
    }
}

/// Receives the first message of a new agent.
///
/// # Errors
/// Fails when the agent serves another controller, or the connection failed.
pub(super) fn welcome(mut link: Link) -> anyhow::Result<(Link, Facts)> {
    match link.receiver.receive()? {
        FromAgent::Welcome(facts) => Ok((link, facts)),
        FromAgent::Refused { why } => anyhow::bail!("refused: {why}"),
        _ => anyhow::bail!(
            "the first message of the agent is not a welcome; install the same version of forebay on all hosts"
        ),
    }
}

fn addresses(name: &str) -> anyhow::Result<Vec<SocketAddr>> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, PORT)]);
    }
    let found = if name.contains(':') { name.to_socket_addrs() } else { (name, PORT).to_socket_addrs() };
    Ok(found.context("the name cannot be resolved; write HOST:PORT")?.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_a_port_or_get_the_usual_one() {
        let one = |name: &str| addresses(name).expect("numbers need no look-up");
        assert_eq!(one("127.0.0.1"), ["127.0.0.1:7317".parse().expect("plain")]);
        assert_eq!(one("127.0.0.1:99"), ["127.0.0.1:99".parse().expect("plain")]);
        assert_eq!(one("::1"), ["[::1]:7317".parse().expect("plain")]);
        assert_eq!(one("[::1]:99"), ["[::1]:99".parse().expect("plain")]);
        assert!(addresses("127.0.0.1:many").is_err());
    }
}
