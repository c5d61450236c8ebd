//! Transfers on a connection until a deadline.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Fills `into` from the connection.
///
/// # Errors
/// [`TimedOut`](io::ErrorKind::TimedOut) after `deadline`, which may move on meanwhile, however the bytes trickle;
/// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) where the connection was closed.
pub(crate) fn read_full(
    mut stream: &TcpStream,
    into: &mut [u8],
    deadline: impl Fn() -> Instant,
) -> io::Result<()> {
    let mut filled = 0;
    while filled < into.len() {
        stream.set_read_timeout(Some(time_left(deadline())?))?;
        match stream.read(&mut into[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) => retry(error)?,
        }
    }
    Ok(())
}

/// Writes all bytes to the connection, with the errors of [`read_full`].
pub(crate) fn write_full(
    mut stream: &TcpStream,
    bytes: &[u8],
    deadline: impl Fn() -> Instant,
) -> io::Result<()> {
    let mut written = 0;
    while written < bytes.len() {
        stream.set_write_timeout(Some(time_left(deadline())?))?;
        match stream.write(&bytes[written..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => written += count,
            Err(error) => retry(error)?,
        }
    }
    Ok(())
}

/// Returns how long a call may wait; never zero, which sockets refuse.
fn time_left(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        // The kernel rounds to microseconds.
        left => Ok(left.max(Duration::from_millis(1))),
    }
}

/// Passes over the errors after which the deadline decides.
fn retry(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Ok(()),
        _ => Err(error),
    }
}
