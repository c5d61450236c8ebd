//! Transfers on a connection until a deadline.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// The descriptors that travel together.
pub(crate) const DESCRIPTORS: usize = 2;

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

/// Sends descriptors with one byte on a socket of this host, with the errors of [`read_full`].
pub(crate) fn send_descriptors(
    stream: &TcpStream,
    descriptors: [BorrowedFd<'_>; DESCRIPTORS],
    deadline: impl Fn() -> Instant,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    loop {
        stream.set_write_timeout(Some(time_left(deadline())?))?;
        match sendmsg(stream, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(error) => retry(error.into())?,
        }
    }
}

/// Receives the byte and the descriptors of [`send_descriptors`], fewer where this process has none free, with the errors of
/// [`read_full`].
pub(crate) fn receive_descriptors(
    stream: &TcpStream,
    deadline: impl Fn() -> Instant,
) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        stream.set_read_timeout(Some(time_left(deadline())?))?;
        let into = &mut [IoSliceMut::new(&mut byte)];
        match recvmsg(stream, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) if message.bytes == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => break,
            Err(error) => retry(error.into())?,
        }
    }
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok(descriptors)
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
