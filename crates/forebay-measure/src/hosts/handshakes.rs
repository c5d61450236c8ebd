//! Connections to an agent that have not proven anything yet. Their number is limited.
//!
//! Anyone who can connect could take all places, so a new connection is never turned away. It replaces the
//! oldest one of the address that has the most. A controller proves itself within some milliseconds.

use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Connections that may be in their handshake at one time.
pub(super) const HANDSHAKES_MAX: usize = 16;

/// The least time for which a connection keeps its place, however many others come.
const KEPT: Duration = Duration::from_millis(250);

/// The connections in their handshake.
#[derive(Debug, Default)]
pub(super) struct Handshakes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    connections: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    peer: Option<IpAddr>,
    since: Instant,
    stream: TcpStream,
}

impl Handshakes {
    /// Makes a place for the connection, for which another one may be closed, and returns its number.
    /// Waits for at most 250 ms where all others are new as well.
    ///
    /// # Errors
    /// Fails when no descriptors are left.
    pub(super) fn enter(&self, stream: &TcpStream) -> std::io::Result<u64> {
        let copy = stream.try_clone()?;
        let peer = stream.peer_addr().ok().map(|address| address.ip());
        loop {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let number = state.next;
            let wait = match state.victim() {
                None => None,
                Some(place) => match KEPT.checked_sub(state.connections[place].since.elapsed()) {
                    Some(left) if !left.is_zero() => Some(left),
                    _ => {
                        let closed = state.connections.remove(place);
                        // Its thread notices the shutdown. A connection closed from the other side has
                        // nothing to shut down.
                        let _ = closed.stream.shutdown(Shutdown::Both);
                        None
                    }
                },
            };
            match wait {
                Some(left) => {
                    drop(state);
                    std::thread::park_timeout(left);
                }
                None => {
                    state.next += 1;
                    state.connections.push(Connection { number, peer, since: Instant::now(), stream: copy });
                    return Ok(number);
                }
            }
        }
    }

    /// Releases the place of a connection whose handshake has ended.
    pub(super) fn leave(&self, number: u64) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.connections.retain(|connection| connection.number != number);
    }
}

impl State {
    /// Returns the connection that a new one replaces; `None` when there is a free place.
    fn victim(&self) -> Option<usize> {
        if self.connections.len() < HANDSHAKES_MAX {
            return None;
        }
        let of_peer = |peer| self.connections.iter().filter(|other| other.peer == peer).count();
        let most = self.connections.iter().map(|connection| of_peer(connection.peer)).max()?;
        // The order is that of their arrival.
        self.connections.iter().position(|connection| of_peer(connection.peer) == most)
    }
}
