//! The controller's side: all agents of one measurement, which do everything together or not at all.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::message::{Facts, FromAgent, PreparedAgent, Sample, ToAgent, receive, send};
use super::{ALIVE_EVERY, SILENCE_MAX};
use crate::experiment::Outcome;
use crate::gates::Claim;
use crate::options::Values;
use crate::start_barrier::monotonic_ns;
use forebay_report::failure::Failure;
use forebay_report::result::Condition;

/// The limit for an agent to start, a login to its host included.
const START_WITHIN: Duration = Duration::from_secs(30);
/// The limit for any step that lasts no longer than a message.
const REPLY_WITHIN: Duration = Duration::from_secs(30);
/// The limit for the agents to end after one of them failed.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// The limit for evicting a file from memory, starting a process, and ending it.
const SAMPLE_WITHIN: Duration = Duration::from_secs(60);
/// The slowest rate at which files are written.
const BYTES_PER_S_MIN: f64 = 20e6;
/// The time from the order to the start of a sample, in addition to the slowest round trip.
const LEAD: Duration = Duration::from_millis(30);
/// Requests for each host's clock before each start.
const CLOCK_REQUESTS: usize = 8;
const EVENTS_MAX: usize = 1024;

/// A connection to an agent.
pub(super) struct Link {
    pub(super) input: Box<dyn BufRead + Send>,
    pub(super) output: Box<dyn Write + Send>,
    pub(super) carrier: Carrier,
}

/// The carrier of a connection.
pub(super) enum Carrier {
    /// A process whose standard input and output lead to the agent, and its command line.
    Process(Child, String),
    Stream(TcpStream),
}

impl Link {
    /// Starts a command that is, or connects to, an agent.
    ///
    /// # Errors
    /// Fails when the program does not exist.
    pub(super) fn start(mut command: Command) -> anyhow::Result<Self> {
        let text = format!("{command:?}").replace('"', "");
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.with_context(|| format!("`{text}` cannot be started"))?;
        let (input, output) = child.stdout.take().zip(child.stdin.take()).context("both are piped")?;
        Ok(Self {
            input: Box::new(BufReader::new(input)),
            output: Box::new(output),
            carrier: Carrier::Process(child, text),
        })
    }
}

/// One agent as the controller sees it.
pub(super) struct Host {
    /// The name: `node-a:/data`, or `rank 3 on node-a`.
    pub(super) name: String,
    /// The short form for names of rows: the place in the list from 1, or the rank.
    pub(super) label: String,
    is_rank: bool,
    pub(super) facts: Facts,
    pub(super) prepared: Option<PreparedAgent>,
    output: Option<Box<dyn Write + Send>>,
    carrier: Carrier,
    offset: Offset,
}

/// The result of one host in a round.
#[derive(Debug)]
pub(crate) struct HostSample {
    pub(crate) outcome: Outcome,
    pub(super) claim: Claim,
    /// Gates of the file and the device.
    pub(super) conditions: Vec<Condition>,
    /// The start of the sample, on the controller's clock.
    pub(super) begun_ns: i128,
    /// The error bound of that instant.
    pub(super) clock_error_ns: u64,
}

impl HostSample {
    /// Returns a sample of a process of this host; `None` when it did not start at a set instant.
    pub(crate) fn of(outcome: Outcome) -> Option<Self> {
        let (begun_ns, claim) = (i128::from(outcome.begun_ns?), Claim::default());
        Some(Self { outcome, claim, conditions: Vec::new(), begun_ns, clock_error_ns: 0 })
    }
}

/// The arrival of a message: its host's place in the list, the message, and the instant.
type Arrival = (usize, anyhow::Result<FromAgent>, u64);

/// All agents. Dropping the controller ends their measurements.
pub(super) struct Controller {
    pub(super) hosts: Vec<Host>,
    inbox: Receiver<Arrival>,
    /// The number of hosts whose connection has not ended.
    connected: usize,
    /// The instant when the agents were last notified that this side is alive.
    alive_sent: Instant,
    /// The time without a message after which a host is lost.
    silence: Duration,
    /// The limit for a step that reads or writes the file.
    step_within: Duration,
    rounds: u64,
}

impl Controller {
    /// Returns the controller of these agents, after all of them have started.
    ///
    /// # Errors
    /// Fails with the name of the agent that did not start or has another version.
    pub(super) fn new(links: Vec<(String, Link)>, are_ranks: bool) -> anyhow::Result<Self> {
        let (events, inbox) = sync_channel(EVENTS_MAX);
        let mut hosts = Vec::new();
        for (index, (name, link)) in links.into_iter().enumerate() {
            let Link { mut input, output, carrier } = link;
            let events = events.clone();
            // Ends with the connection, or when the receiver is dropped.
            std::thread::Builder::new().spawn(move || {
                loop {
                    let message = receive(&mut input);
                    let is_last = message.is_err();
                    if events.send((index, message, monotonic_ns())).is_err() || is_last {
                        return;
                    }
                }
            })?;
            hosts.push(Host {
                name,
                label: (index + usize::from(!are_ranks)).to_string(),
                is_rank: are_ranks,
                facts: Facts::default(),
                prepared: None,
                output: Some(output),
                carrier,
                offset: Offset::UNKNOWN,
            });
        }
        let connected = hosts.len();
        let (alive_sent, silence) = (Instant::now(), START_WITHIN);
        let step_within = SAMPLE_WITHIN;
        let mut controller = Self { hosts, inbox, connected, alive_sent, silence, step_within, rounds: 0 };
        let hellos = controller.gather(START_WITHIN, "start", |_, message, _| match message {
            FromAgent::Hello { program, facts } => Some((program, facts)),
            _ => None,
        });
        let hellos = hellos.context("not every host has an agent; is forebay installed there?")?;
        for (host, (program, facts)) in controller.hosts.iter_mut().zip(hellos) {
            let own = env!("CARGO_PKG_VERSION");
            // Figures of two versions do not belong to one measurement, even where their messages agree.
            anyhow::ensure!(
                program == own,
                "versions differ: {} has forebay {program:?}, this one is {own}; install the same",
                host.title()
            );
            host.facts = serde_json::from_value(facts)?;
            if host.is_rank {
                host.name = format!("{} on {}", host.name, host.facts.host);
            }
        }
        controller.silence = SILENCE_MAX;
        Ok(controller)
    }

    /// Lets every host write its file, each with different contents.
    ///
    /// # Errors
    /// Fails with the host that cannot do so and the reason. The exit code is that of the same
    /// failure on one host.
    pub(super) fn prepare(
        &mut self,
        experiment: &str,
        options: &Values,
        seed: u64,
        file_bytes: u64,
    ) -> anyhow::Result<()> {
        let (run, hosts) = (seed, self.hosts.len());
        for (index, host) in self.hosts.iter_mut().enumerate() {
            let mut options = options.clone();
            // For experiments whose hosts work on one file.
            for (name, value) in [("host", index as f64), ("hosts", hosts as f64), ("run", run as f64)] {
                options.set(name, value);
            }
            // Storage that detects equal blocks must not find any.
            let seed = (seed ^ (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)) & ((1 << 53) - 1);
            host.send(&ToAgent::Prepare { experiment: experiment.to_owned(), options, seed });
        }
        // A sample may read as much again before it is ready.
        self.step_within = SAMPLE_WITHIN + Duration::from_secs_f64(file_bytes as f64 / BYTES_PER_S_MIN);
        let prepared = self.gather(self.step_within, "prepare its file", |_, message, _| match message {
            FromAgent::Prepared(prepared) => Some(prepared),
            _ => None,
        })?;
        for (host, prepared) in self.hosts.iter_mut().zip(prepared) {
            host.prepared = Some(prepared);
        }
        Ok(())
    }

    /// Runs one sample on every host, started at the same instant. The inner error is the reason why no host has a sample: one of
    /// them could not participate. Further rounds are possible after it.
    ///
    /// # Errors
    /// Fails with the host that was lost; nothing more can be measured.
    pub(super) fn round(&mut self, sample: Sample) -> anyhow::Result<Result<Vec<HostSample>, String>> {
        self.rounds += 1;
        let failed = |host: &Host, why: String| format!("{}: {why}", host.title());
        let limit = self.step_within + Duration::from_secs_f64(sample.seconds);
        self.send_all(&ToAgent::Sample { round: self.rounds, sample });
        let ready = self.gather(limit, "make its sample ready", |host, message, _| match message {
            FromAgent::Ready => Some(Ok(())),
            FromAgent::Failed { why, .. } => Some(Err(failed(host, why))),
            _ => None,
        })?;
        if let Err(why) = ready.into_iter().collect::<Result<Vec<()>, _>>() {
            // Hosts that are ready give the sample up, and report so; the next step ignores that.
            self.send_all(&ToAgent::Go { at_ns: None });
            return Ok(Err(why));
        }
        self.read_clocks()?;
        let slowest_ns = self.hosts.iter().map(|host| host.offset.error_ns).max().unwrap_or(0);
        let at_ns = monotonic_ns() + LEAD.as_nanos() as u64 + slowest_ns.saturating_mul(4);
        for host in &mut self.hosts {
            host.send(&ToAgent::Go { at_ns: Some(host.offset.to_theirs(at_ns)) });
        }
        let ended = self.gather(limit, "end its sample", |host, message, _| match message {
            FromAgent::Sampled { outcome, claim, conditions } => Some(Ok(HostSample {
                begun_ns: host.offset.to_ours(outcome.begun_ns?),
                clock_error_ns: host.offset.error_ns,
                outcome: *outcome,
                claim,
                conditions,
            })),
            FromAgent::Failed { why, .. } => Some(Err(failed(host, why))),
            _ => None,
        })?;
        Ok(ended.into_iter().collect())
    }

    /// Reads all clocks together. Offsets of a minute ago would be off by the difference of the crystals.
    fn read_clocks(&mut self) -> anyhow::Result<()> {
        self.hosts.iter_mut().for_each(|host| host.offset = Offset::UNKNOWN);
        for _ in 0..CLOCK_REQUESTS {
            let mut sent = Vec::with_capacity(self.hosts.len());
            for host in &mut self.hosts {
                sent.push(monotonic_ns());
                host.send(&ToAgent::Clock);
            }
            let replies =
                self.gather(REPLY_WITHIN, "report its clock", |_, message, at_ns| match message {
                    FromAgent::Clock { arrived_ns, sent_ns } => Some((arrived_ns, sent_ns, at_ns)),
                    _ => None,
                })?;
            for ((host, sent_ns), (arrived_ns, replied_ns, received_ns)) in
                self.hosts.iter_mut().zip(sent).zip(replies)
            {
                host.offset = host.offset.or(Offset::of(sent_ns, arrived_ns, replied_ns, received_ns));
            }
        }
        Ok(())
    }

    /// Waits for a message of every host, and returns the values that `take` makes of them. The hosts learn
    /// meanwhile that this side is alive.
    ///
    /// # Errors
    /// Fails with the host that was lost, did not reply within `limit`, or whose message `take` refused.
    fn gather<T>(
        &mut self,
        limit: Duration,
        what: &str,
        mut take: impl FnMut(&Host, FromAgent, u64) -> Option<T>,
    ) -> anyhow::Result<Vec<T>> {
        let begun = Instant::now();
        let mut heard = vec![begun; self.hosts.len()];
        let mut outcomes: Vec<Option<T>> = self.hosts.iter().map(|_| None).collect();
        while let Some(late) = outcomes.iter().position(Option::is_none) {
            if self.alive_sent.elapsed() >= ALIVE_EVERY {
                self.send_all(&ToAgent::Alive);
                self.alive_sent = Instant::now();
            }
            if let Some(silent) = heard.iter().position(|heard| heard.elapsed() >= self.silence) {
                let seconds = self.silence.as_secs();
                return Err(self.hosts[silent].lost(&format!("no message arrived for {seconds} s")));
            }
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                let (host, seconds) = (self.hosts[late].title(), limit.as_secs());
                anyhow::bail!("{host} did not {what} within {seconds} s; the others were stopped");
            }
            let until_alive = ALIVE_EVERY.saturating_sub(self.alive_sent.elapsed());
            let received = self.inbox.recv_timeout(left.min(until_alive));
            let Ok((index, message, arrived_ns)) = received else { continue };
            heard[index] = Instant::now();
            let host = &mut self.hosts[index];
            match message {
                Ok(FromAgent::Alive) => {}
                // Of a sample that was given up.
                Ok(FromAgent::Failed { round, .. }) if round < self.rounds => {}
                Ok(FromAgent::Lost { why, code }) => return Err(failure(host, &why, code)),
                Ok(message) => {
                    let outcome = take(host, message, arrived_ns);
                    let unexpected =
                        || format!("{} sent an unexpected message, and did not {what}", host.title());
                    outcomes[index] = Some(outcome.with_context(unexpected)?);
                }
                Err(error) => {
                    self.connected -= 1;
                    let ended = host.ended().map_or_else(String::new, |ended| format!("; {ended}"));
                    return Err(host.lost(&format!("{error:#}{ended}")));
                }
            }
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    fn send_all(&mut self, message: &ToAgent) {
        for host in &mut self.hosts {
            host.send(message);
        }
    }

    /// Ends the measurement; returns when every agent has removed its files.
    ///
    /// # Errors
    /// Fails when an agent did not end in time.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        self.send_all(&ToAgent::End);
        self.close(REPLY_WITHIN);
        anyhow::ensure!(self.connected == 0, "not all agents removed their files within {REPLY_WITHIN:?}");
        Ok(())
    }

    /// Ends the input of all agents and waits until they have ended.
    fn close(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        for host in &mut self.hosts {
            host.output = None;
            if let Carrier::Stream(stream) = &host.carrier {
                // Fails when the other side closed it before.
                let _ = stream.shutdown(Shutdown::Write);
            }
        }
        while self.connected > 0 {
            match self.inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((_, message, _)) => self.connected -= usize::from(message.is_err()),
                Err(_) => break,
            }
        }
        for host in &mut self.hosts {
            if let Carrier::Process(child, _) = &mut host.carrier {
                // Most have ended by themselves. The agent behind one that is cut off notices the silence.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.close(STOP_WITHIN);
    }
}

impl Host {
    /// Returns `host 2 (node-b:/data)` or `rank 1 on node-b`.
    pub(super) fn title(&self) -> String {
        if self.is_rank { self.name.clone() } else { format!("host {} ({})", self.label, self.name) }
    }

    fn send(&mut self, message: &ToAgent) {
        if let Some(output) = &mut self.output {
            // What ended the connection is read from its other direction.
            let _ = send(output, message);
        }
    }

    fn lost(&self, why: &str) -> anyhow::Error {
        anyhow::anyhow!("{} was lost: {why}; the others were stopped", self.title())
    }

    /// Returns how the process that connects ended. It has closed its output and ends shortly after.
    fn ended(&mut self) -> Option<String> {
        let Carrier::Process(child, command) = &mut self.carrier else { return None };
        let deadline = Instant::now() + Duration::from_secs(1);
        while Instant::now() < deadline {
            if let Some(status) = child.try_wait().ok()? {
                return Some(format!("`{command}` ended with {status}"));
            }
            // The system's interface for children offers only a wait without a limit.
            std::thread::park_timeout(Duration::from_millis(5));
        }
        None
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

/// The lead of another host's monotonic clock over this host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Offset {
    ahead_ns: i128,
    /// The bound on the distance of the true offset, however unequal the two ways were.
    error_ns: u64,
}

impl Offset {
    /// The offset before any round trip.
    const UNKNOWN: Self = Self { ahead_ns: 0, error_ns: u64::MAX };

    /// Estimates the offset from a request for the clock and its reply: sent and received on this host's clock, arrived
    /// and replied on the other's.
    fn of(sent_ns: u64, arrived_ns: u64, replied_ns: u64, received_ns: u64) -> Self {
        let there = i128::from(arrived_ns) - i128::from(sent_ns);
        let back = i128::from(replied_ns) - i128::from(received_ns);
        let on_the_way = (there - back).max(0);
        Self { ahead_ns: (there + back) / 2, error_ns: u64::try_from(on_the_way / 2).unwrap_or(u64::MAX) }
    }

    /// Returns the estimate with the shorter round trip, which bounds the error.
    fn or(self, other: Self) -> Self {
        if other.error_ns < self.error_ns { other } else { self }
    }

    /// Converts an instant of this host's clock to the other's.
    fn to_theirs(self, ours_ns: u64) -> u64 {
        u64::try_from(i128::from(ours_ns) + self.ahead_ns).unwrap_or(0)
    }

    /// Converts an instant of the other host's clock to this one's. It may be before this clock's origin.
    fn to_ours(self, theirs_ns: u64) -> i128 {
        i128::from(theirs_ns) - self.ahead_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AHEAD: i128 = -5_000_000_000;

    fn trip(sent_ns: u64, way_there: u64, thinking: u64, way_back: u64) -> Offset {
        let theirs = |ours: u64| u64::try_from(i128::from(ours) + AHEAD).expect("after their start");
        let arrived = sent_ns + way_there;
        let replied = arrived + thinking;
        Offset::of(sent_ns, theirs(arrived), theirs(replied), replied + way_back)
    }

    #[test]
    fn equal_ways_give_the_offset_exactly_however_long_the_reply_took() {
        let offset = trip(9_000_000_000, 40_000, 7_000_000, 40_000);
        assert_eq!(offset, Offset { ahead_ns: AHEAD, error_ns: 40_000 });
        assert_eq!(offset.to_theirs(9_000_000_000), 4_000_000_000);
        assert_eq!(offset.to_ours(4_000_000_000), 9_000_000_000);
    }

    #[test]
    fn the_fastest_trip_decides_and_its_error_holds_the_truth() {
        let trips = [
            trip(9_000_000_000, 900_000, 0, 20_000),
            trip(9_100_000_000, 30_000, 10_000, 50_000),
            trip(9_200_000_000, 20_000, 0, 5_000_000),
        ];
        let offset = trips.into_iter().fold(Offset::UNKNOWN, Offset::or);
        assert_eq!(offset.error_ns, 40_000);
        assert!((offset.ahead_ns - AHEAD).unsigned_abs() <= u128::from(offset.error_ns), "{offset:?}");
    }
}
