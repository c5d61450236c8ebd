//! The meeting of the processes of one job. Rank 0 listens and waits for all. Every rank (including rank 0)
//! connects to it and then serves as an agent would.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::agent::facts;
use super::controller::{Controller, welcome};
use super::frame::Times;
use super::link::Link;
use super::message::{Facts, ToAgent};
use super::ranks::{Invitation, Rank};
use super::secret::Key;
use super::{ALIVE_EVERY, handshake, session};
use crate::cleanup::Cleanup;

/// The time for which ranks wait for each other. On a busy machine launchers start them minutes apart.
pub(super) const RENDEZVOUS_WITHIN: Duration = Duration::from_secs(180);
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// The interval at which a rank looks for rank 0's file. No file system notifies one host of
/// another one's writes.
const POLL_EVERY: Duration = Duration::from_millis(100);

/// The controller of rank 0, and the thread in which rank 0 is one of its agents.
#[derive(Debug)]
pub(super) struct RankGroup {
    pub(super) controller: Controller,
    own: JoinHandle<anyhow::Result<()>>,
}

impl RankGroup {
    /// Ends the measurement; see [`Controller::end`].
    ///
    /// # Errors
    /// Fails when a rank did not end, or this one's own part failed.
    pub(super) fn end(self) -> anyhow::Result<()> {
        self.controller.end()?;
        self.own.join().map_err(|_| anyhow::anyhow!("rank 0's own thread panicked"))?
    }
}

/// Waits, as rank 0, until all ranks have come.
///
/// # Errors
/// Fails with the ranks that did not come.
pub(super) fn lead(rank: &Rank, directory: &Path, cleanup: &Cleanup) -> anyhow::Result<RankGroup> {
    let secret = Key::random()?;
    let listener = TcpListener::bind(rank.listen()).context("no port can be opened for the other ranks")?;
    let address = listener.local_addr()?;
    let invitation = Invitation::new(address, &secret)?;
    let _published = invitation
        .publish(&rank.file(directory), cleanup)
        .with_context(|| format!("the file by which ranks meet cannot be made in {}", directory.display()))?;
    let (arrivals, inbox) = sync_channel(64);
    let acceptor = std::thread::spawn({
        let secret = secret.clone();
        move || receive_all(&listener, &secret, &arrivals)
    });
    let here = SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.into(), address.port());
    let own = std::thread::spawn({
        let (directory, cleanup) = (directory.to_owned(), cleanup.clone());
        move || {
            let stream = TcpStream::connect_timeout(&here, CONNECT_WITHIN)?;
            let link = handshake::as_agent(stream, &secret, Times::default())?;
            session::serve(link, &directory, facts(Some(0)), &cleanup)
        }
    });
    let members = wait_for_all(rank.size, &inbox);
    drop(inbox);
    // This connection wakes the listener, which finds that no task waits behind it, and ends.
    let _ = TcpStream::connect_timeout(&here, CONNECT_WITHIN);
    let _ = acceptor.join();
    Ok(RankGroup { controller: Controller::new(members?), own })
}

type Arrival = (Link, Facts);

fn receive_all(listener: &TcpListener, secret: &Key, arrivals: &SyncSender<Option<Arrival>>) {
    for stream in listener.incoming() {
        let (arrivals, secret) = (arrivals.clone(), secret.clone());
        // A connection came. The send only tests whether a receiver still waits for connections.
        if arrivals.send(None).is_err() {
            return;
        }
        let Ok(stream) = stream else { continue };
        std::thread::spawn(move || {
            let arrival = handshake::as_controller(stream, &secret, Times::default()).and_then(welcome);
            if let Ok(arrival) = arrival {
                let _ = arrivals.send(Some(arrival));
            }
        });
    }
}

fn wait_for_all(
    size: u32,
    inbox: &Receiver<Option<Arrival>>,
) -> anyhow::Result<Vec<(String, String, Link, Facts)>> {
    let deadline = Instant::now() + RENDEZVOUS_WITHIN;
    let mut alive_sent = Instant::now();
    let mut places: Vec<Option<Arrival>> = (0..size).map(|_| None).collect();
    loop {
        let missing: Vec<String> =
            (0..places.len()).filter(|rank| places[*rank].is_none()).map(|rank| rank.to_string()).collect();
        if missing.is_empty() {
            break;
        }
        // Notifies the ranks that have come already that they are still wanted.
        if alive_sent.elapsed() >= ALIVE_EVERY {
            for (link, facts) in places.iter_mut().flatten() {
                let sent = link.sender.send(&ToAgent::Alive);
                sent.with_context(|| format!("rank {:?} on {} was lost", facts.rank, facts.host))?;
            }
            alive_sent = Instant::now();
        }
        let left = deadline.saturating_duration_since(Instant::now());
        match inbox.recv_timeout(left.min(ALIVE_EVERY)) {
            Ok(None) => {}
            Err(RecvTimeoutError::Timeout) if left > ALIVE_EVERY => {}
            Ok(Some((link, facts))) => {
                let place = facts.rank.and_then(|rank| places.get_mut(rank as usize));
                match place {
                    Some(place) if place.is_none() => *place = Some((link, facts)),
                    _ => anyhow::bail!(
                        "rank {:?} of {size} connected twice or is out of range: is another job of the same name in \
                         this directory?",
                        facts.rank
                    ),
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => anyhow::bail!(
                "of {size} ranks these did not connect within {} s: {}; do all of them see the same directory?",
                RENDEZVOUS_WITHIN.as_secs(),
                missing.join(", ")
            ),
        }
    }
    let members = places.into_iter().flatten().enumerate();
    Ok(members
        .map(|(rank, (link, facts))| {
            (rank.to_string(), format!("rank {rank} on {}", facts.host), link, facts)
        })
        .collect())
}

/// Finds rank 0, as one of the other ranks, and serves it until it reports that all is done.
///
/// # Errors
/// Fails when rank 0 cannot be found, or has gone.
pub(super) fn follow(rank: &Rank, directory: &Path, cleanup: &Cleanup) -> anyhow::Result<()> {
    let file: PathBuf = rank.file(directory);
    let deadline = Instant::now() + RENDEZVOUS_WITHIN;
    let mut last = anyhow::anyhow!("the file {} did not appear", file.display());
    loop {
        match try_once(&file) {
            Ok(Some(link)) => {
                return session::serve(link, directory, facts(Some(rank.number)), cleanup)
                    .context("the measurement was ended");
            }
            Ok(None) => {}
            // The file may be left behind by a run that was killed, until rank 0 of this one replaces it.
            Err(error) => last = error,
        }
        if Instant::now() >= deadline {
            let patience = RENDEZVOUS_WITHIN.as_secs();
            return Err(last)
                .with_context(|| format!("rank {} did not find rank 0 within {patience} s", rank.number));
        }
        std::thread::park_timeout(POLL_EVERY);
    }
}

fn try_once(file: &Path) -> anyhow::Result<Option<Link>> {
    let Some(invitation) = Invitation::read(file)? else { return Ok(None) };
    let secret = invitation.secret()?;
    let mut last = anyhow::anyhow!("rank 0's host has no address");
    for place in invitation.places() {
        let link = TcpStream::connect_timeout(&place, CONNECT_WITHIN)
            .with_context(|| format!("rank 0 cannot be reached at {place}"))
            .and_then(|stream| handshake::as_agent(stream, &secret, Times::default()));
        match link {
            Ok(link) => return Ok(Some(link)),
            Err(error) => last = error,
        }
    }
    Err(last)
}
