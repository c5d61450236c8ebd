//! Connections between ranks: frames of a kind and a length, each with a deadline, and the faults of a collective.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::iter;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay::internal::SealedMemory;
use forebay::{Error, ErrorKind};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::{AddressFamily, sockopt};
use rustix::process::{Resource, getrlimit};

use crate::rendezvous::{DESCRIPTORS, read_full, receive_descriptors, send_descriptors, write_full};

/// The length of a frame's head: its kind, and the length of its body.
const HEAD_LEN: usize = 5;
/// Bytes of a body for which memory is allocated before they have arrived.
const BODY_STEP: usize = 1 << 20;
/// The longest body of a frame without pieces.
pub(super) const SMALL: usize = 1 << 20;
/// The bit of a kind whose bytes follow as memory, behind the body.
const SHARED: u8 = 1 << 7;
/// The number of bytes from which on processes of a host pass memory. It costs about twenty system calls, as many as so many bytes on
/// a socket, whose buffer they exceed.
const SHARED_BYTES_MIN: usize = 256 << 10;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A rank to rank 0, when they meet: its number of ranks, host, and addresses.
    Hello,
    /// Rank 0 to each: the aggregators with their addresses.
    Members,
    /// A rank to rank 0: it is connected to all aggregators.
    Ready,
    /// Rank 0 to each: all are ready.
    Go,
    /// A rank to rank 0: the call that it makes.
    Entry,
    /// Rank 0 to each: the plan of the call.
    Plan,
    /// A sign of life in a long call, from an aggregator to rank 0 and from there to each.
    Alive,
    /// A rank to rank 0: its part is over.
    Over,
    /// Rank 0 to an aggregator: sync.
    Sync,
    /// An aggregator to rank 0: it has.
    Synced,
    /// Rank 0 to each: the call is complete.
    Done,
    /// A rank to rank 0: the call has failed there.
    Failed,
    /// Rank 0 to each: the collective has ended.
    End,
    /// A rank to an aggregator: its pieces of a window, for a write with their bytes.
    Pieces,
    /// An aggregator to a rank: the bytes of its pieces of a window.
    Bytes,
}

const KINDS: [Kind; 15] = [
    Kind::Hello,
    Kind::Members,
    Kind::Ready,
    Kind::Go,
    Kind::Entry,
    Kind::Plan,
    Kind::Alive,
    Kind::Over,
    Kind::Sync,
    Kind::Synced,
    Kind::Done,
    Kind::Failed,
    Kind::End,
    Kind::Pieces,
    Kind::Bytes,
];

/// How near a fault is to the cause. Of several ranks' faults the nearest is the one that all get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Evidence {
    /// Rank 0's word on all faults.
    Verdict,
    /// A refusal, or an error of the file.
    Cause,
    /// A rank's connection to rank 0 has ended.
    Gone,
    /// A rank did nothing within the deadline.
    Silent,
    /// A connection between two ranks has ended: one of them has failed.
    Lost,
}

/// The failure of a collective on one rank.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) evidence: Evidence,
    pub(super) kind: ErrorKind,
    pub(super) text: String,
}

impl Fault {
    pub(super) fn cause(kind: ErrorKind, text: impl Into<String>) -> Fault {
        Fault { evidence: Evidence::Cause, kind, text: text.into() }
    }

    /// Returns the one of two faults that is nearer to the cause.
    pub(super) fn nearer(self, other: Fault) -> Fault {
        if other.evidence < self.evidence { other } else { self }
    }

    /// Returns whether the fault is that of a task on the file which still runs.
    pub(super) fn is_overdue(&self) -> bool {
        self.evidence == Evidence::Cause && self.kind == ErrorKind::Elapsed
    }

    /// Returns the frame that reports the fault.
    pub(super) fn frame(&self, kind: Kind) -> Frame {
        let place = FAULT_KINDS.iter().position(|known| *known == self.kind).unwrap_or_default();
        let (place, got) = match self.kind {
            ErrorKind::UnexpectedEof { got } => (FAULT_KINDS.len(), got),
            _ => (place, 0),
        };
        let mut frame = Frame::new(kind);
        frame.put(self.evidence as u64);
        frame.put(place as u64);
        frame.put(got);
        frame.put_bytes(self.text.as_bytes());
        frame
    }

    /// Reads a report.
    pub(super) fn of_body(body: &[u8]) -> Fault {
        let mut body = Body(body);
        let evidence = match body.take() {
            Some(1) => Evidence::Cause,
            Some(2) => Evidence::Gone,
            Some(3) => Evidence::Silent,
            _ => Evidence::Lost,
        };
        let place = body.take().unwrap_or_default() as usize;
        let got = body.take().unwrap_or_default();
        let kind = match FAULT_KINDS.get(place) {
            Some(kind) => *kind,
            None => ErrorKind::UnexpectedEof { got },
        };
        Fault { evidence, kind, text: String::from_utf8_lossy(body.0).into_owned() }
    }
}

/// Returns the outcomes of two threads of a call. Where both failed, one of them only lost its connections.
pub(super) fn both<A, B>(one: Result<A, Fault>, other: Result<B, Fault>) -> Result<(A, B), Fault> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (Err(one), Err(other)) => Err(one.nearer(other)),
        (Err(fault), Ok(_)) | (Ok(_), Err(fault)) => Err(fault),
    }
}

/// The kinds of errors that other ranks get as they are, without that of a file's end; the rest are the first one.
const FAULT_KINDS: [ErrorKind; 11] = [
    ErrorKind::Io,
    ErrorKind::InvalidInput,
    ErrorKind::Elapsed,
    ErrorKind::Cancelled,
    ErrorKind::Unsupported,
    ErrorKind::NoSpace,
    ErrorKind::Locked,
    ErrorKind::PermissionDenied,
    ErrorKind::ReadOnlyFilesystem,
    ErrorKind::EngineClosed,
    ErrorKind::FileClosed,
];

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::cause(ErrorKind::Io, error.to_string())
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::cause(error.kind(), error.to_string())
    }
}

/// A message that is being made.
pub(super) struct Frame(Vec<u8>);

impl Frame {
    pub(super) fn new(kind: Kind) -> Frame {
        Frame(vec![kind as u8, 0, 0, 0, 0])
    }

    pub(super) fn put(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(super) fn put_bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// The rest of a message that is being read.
pub(super) struct Body<'b>(pub(super) &'b [u8]);

impl Body<'_> {
    /// Returns the next number; `None` at the end.
    pub(super) fn take(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }
}

/// The instant of the last sign of life in a call, of any rank.
#[derive(Debug)]
pub(super) struct Life(Mutex<Instant>);

impl Life {
    pub(super) fn new() -> Arc<Life> {
        Arc::new(Life(Mutex::new(Instant::now())))
    }

    /// Notes one.
    pub(super) fn renew(&self) {
        *self.last() = Instant::now();
    }

    /// Notes a sign of life, unless one was noted in the last quarter of a deadline; returns whether it is noted.
    pub(super) fn renew_after(&self, deadline: Duration) -> bool {
        let mut last = self.last();
        let is_due = last.elapsed() > deadline / 4;
        if is_due {
            *last = Instant::now();
        }
        is_due
    }

    pub(super) fn last(&self) -> MutexGuard<'_, Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether memory may have this length. It counts as a file: a write beyond RLIMIT_FSIZE would end the process by SIGXFSZ.
fn is_within_size_limit(len: usize) -> bool {
    getrlimit(Resource::Fsize).current.is_none_or(|limit| len as u64 <= limit)
}

/// Copies bytes to memory without a name, and seals it; `None` where the system refuses it, or has too little.
fn sealed(bytes: &[&[u8]]) -> Option<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut memory = File::from(memfd_create("forebay-ranks", flags).ok()?);
    // As many as a call accepts.
    for parts in bytes.chunks(1024) {
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            match memory.write_vectored(rest).ok()? {
                0 => return None,
                count => IoSlice::advance_slices(&mut rest, count),
            }
        }
    }
    fcntl_add_seals(&memory, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW).ok()?;
    Some(memory)
}

/// Descriptors that a rank gives up for those that arrive with memory: a process without another free one receives it as well.
#[derive(Default)]
pub(super) struct Spare(Mutex<Vec<OwnedFd>>);

impl Spare {
    pub(super) fn new() -> Arc<Spare> {
        Arc::new(Spare(Mutex::new(free_descriptors())))
    }

    /// Receives while they are given up. In a call one thread of a rank receives memory.
    fn without<T>(&self, receive: impl FnOnce() -> T) -> T {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.clear();
        let received = receive();
        *held = free_descriptors();
        received
    }
}

/// Returns as many descriptors as arrive at a time, fewer where they are not free.
fn free_descriptors() -> Vec<OwnedFd> {
    iter::from_fn(|| eventfd(0, EventfdFlags::CLOEXEC).ok()).take(DESCRIPTORS).collect()
}

/// A connection to another rank. One thread sends and one receives at a time.
pub(super) struct Wire {
    stream: TcpStream,
    /// Whether the other side is a process of this host, which can get descriptors.
    is_near: bool,
    /// The eventfd that went with the last memory: the receiver writes to it once the memory has arrived. The end of a pipe would not
    /// do, as a child that either side has forked meanwhile keeps it open.
    receipt: Mutex<Option<OwnedFd>>,
    spare: Arc<Spare>,
    /// On a connection of pieces, whose other side may have to wait for third ranks: limits count from the last sign of life.
    life: Option<Arc<Life>>,
    /// The other side, for people: `rank 3`.
    peer: String,
    /// The meaning of an end of the connection.
    end: Evidence,
    sending: Mutex<()>,
}

impl Wire {
    /// A connection between a rank and rank 0.
    pub(super) fn control(stream: TcpStream, rank: u32) -> Wire {
        Wire {
            is_near: sockopt::socket_domain(&stream) == Ok(AddressFamily::UNIX),
            receipt: Mutex::default(),
            spare: Arc::default(),
            stream,
            life: None,
            peer: format!("rank {rank}"),
            end: Evidence::Gone,
            sending: Mutex::new(()),
        }
    }

    /// A connection between a rank and an aggregator.
    pub(super) fn of_pieces(stream: TcpStream, rank: u32, life: &Arc<Life>, spare: &Arc<Spare>) -> Wire {
        let (life, spare) = (Some(life.clone()), spare.clone());
        Wire { life, spare, end: Evidence::Lost, ..Wire::control(stream, rank) }
    }

    /// Returns the end of a wait, as far as it is known now.
    fn until(&self, begin: Instant, within: Duration) -> Instant {
        self.life.as_ref().map_or(begin, |life| begin.max(*life.last())) + within
    }

    /// Sends a message.
    pub(super) fn send(&self, mut frame: Frame, within: Duration) -> Result<(), Fault> {
        let Ok(len) = u32::try_from(frame.0.len() - HEAD_LEN) else {
            let text = "the pieces of a window are too many for one message: set a smaller memory_bytes_max";
            return Err(Fault::cause(ErrorKind::InvalidInput, text));
        };
        frame.0[1..HEAD_LEN].copy_from_slice(&len.to_le_bytes());
        let _one = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = Instant::now();
        let sent = write_full(&self.stream, &frame.0, || self.until(begin, within));
        sent.map_err(|error| self.fault(&error, "accepted nothing", within))
    }

    /// Sends a message with bytes of a file: as memory to a process of this host if they are many, else as the end of the body. Memory
    /// waits for the arrival of the memory before it, so that one is under way at most.
    pub(super) fn send_with(&self, mut frame: Frame, bytes: &[&[u8]], within: Duration) -> Result<(), Fault> {
        let len: usize = bytes.iter().map(|part| part.len()).sum();
        if self.is_near && len >= SHARED_BYTES_MIN && is_within_size_limit(len) {
            self.wait_for_receipt(within)?;
            // The flag is the receiver's as well: its write never blocks.
            let receipt = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            if let (Ok(receipt), Some(memory)) = (receipt, sealed(bytes)) {
                frame.0[0] |= SHARED;
                self.send(frame, within)?;
                let begin = Instant::now();
                let descriptors = [memory.as_fd(), receipt.as_fd()];
                let sent = send_descriptors(&self.stream, descriptors, || self.until(begin, within));
                *self.receipt.lock().unwrap_or_else(PoisonError::into_inner) = Some(receipt);
                return sent.map_err(|error| self.fault(&error, "accepted nothing", within));
            }
        }
        frame.0.reserve(len);
        bytes.iter().for_each(|part| frame.put_bytes(part));
        self.send(frame, within)
    }

    /// Waits until the last memory has arrived, or the connection has ended, which the next message notices.
    fn wait_for_receipt(&self, within: Duration) -> Result<(), Fault> {
        let receipt = self.receipt.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(receipt) = receipt else { return Ok(()) };
        let begin = Instant::now();
        loop {
            let left = self.until(begin, within).saturating_duration_since(Instant::now());
            let limit = Timespec::try_from(left).ok();
            // Without events: the end of a connection is always reported.
            let of_stream = PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::empty());
            let mut ends = [PollFd::from_borrowed_fd(receipt.as_fd(), PollFlags::IN), of_stream];
            match poll(&mut ends, limit.as_ref()) {
                Ok(0) if left.is_zero() => {
                    return Err(self.fault(&io::ErrorKind::TimedOut.into(), "accepted nothing", within));
                }
                // A sign of life may have arrived meanwhile.
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// Receives a message without memory, with a body of at most `limit` bytes.
    pub(super) fn receive(&self, limit: usize, within: Duration) -> Result<(Kind, Vec<u8>), Fault> {
        match self.receive_with(limit, within)? {
            (kind, body, None) => Ok((kind, body)),
            (kind, ..) => Err(self.stranger(format!("{kind:?} with memory"))),
        }
    }

    /// Receives a message, with a body and memory of at most `limit` bytes each.
    fn receive_with(
        &self,
        limit: usize,
        within: Duration,
    ) -> Result<(Kind, Vec<u8>, Option<SealedMemory>), Fault> {
        let begin = Instant::now();
        let until = || self.until(begin, within);
        let fault = |error: io::Error| self.fault(&error, "sent nothing", within);
        let mut head = [0; HEAD_LEN];
        read_full(&self.stream, &mut head, until).map_err(fault)?;
        let [kind, len @ ..] = head;
        let len = u32::from_le_bytes(len) as usize;
        let is_shared = kind & SHARED != 0;
        let found = KINDS.get(usize::from(kind & !SHARED)).copied();
        let Some(kind) = found.filter(|_| len <= limit && (self.is_near || !is_shared)) else {
            return Err(self.stranger(format!("a message of kind {kind} with {len} bytes")));
        };
        // Memory is allocated as the bytes arrive, not because a head announces them.
        let mut body = Vec::new();
        while body.len() < len {
            let filled = body.len();
            let step = filled.max(BODY_STEP).min(len - filled);
            // No more than the message has: a window's memory is counted.
            body.reserve_exact(step);
            body.resize(filled + step, 0);
            read_full(&self.stream, &mut body[filled..], until).map_err(fault)?;
        }
        if !is_shared {
            return Ok((kind, body, None));
        }
        let memory = self.spare.without(|| {
            let descriptors = receive_descriptors(&self.stream, until).map_err(fault)?;
            let [memory, receipt] = &descriptors[..] else {
                let text = format!("no descriptor is free for memory of {}", self.peer);
                return Err(Fault::cause(ErrorKind::Io, text));
            };
            let memory = SealedMemory::map(memory.as_fd(), limit);
            let memory = memory.map_err(|error| self.stranger(format!("memory that is refused: {error}")))?;
            // Without it the sender waits until its limit of time.
            let _ = rustix::io::write(receipt, &1u64.to_ne_bytes());
            Ok(memory)
        })?;
        Ok((kind, body, Some(memory)))
    }

    /// Receives a message of this kind, without memory.
    pub(super) fn expect(&self, kind: Kind, limit: usize, within: Duration) -> Result<Vec<u8>, Fault> {
        match self.expect_with(kind, limit, within)? {
            (body, None) => Ok(body),
            _ => Err(self.stranger(format!("{kind:?} with memory"))),
        }
    }

    /// Receives a message of this kind: its body, and the bytes that it has as memory.
    pub(super) fn expect_with(
        &self,
        kind: Kind,
        limit: usize,
        within: Duration,
    ) -> Result<(Vec<u8>, Option<SealedMemory>), Fault> {
        match self.receive_with(limit, within)? {
            (found, body, memory) if found == kind => Ok((body, memory)),
            (found, ..) => Err(self.stranger(format!("{found:?} where {kind:?} is due"))),
        }
    }

    /// Returns the fault of a peer that does not keep to the protocol.
    pub(super) fn stranger(&self, what: String) -> Fault {
        Fault::cause(ErrorKind::InvalidInput, format!("{} sent {what}", self.peer))
    }

    /// Returns the connection's descriptor, for a poll of several connections.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Ends the connection: calls on it, and those of the other side, fail.
    pub(super) fn sever(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn fault(&self, error: &io::Error, silence: &str, within: Duration) -> Fault {
        let (peer, seconds) = (&self.peer, within.as_secs_f64());
        if error.kind() == io::ErrorKind::TimedOut {
            let text = format!("{peer} {silence} within {seconds} s");
            return Fault { evidence: Evidence::Silent, kind: ErrorKind::Elapsed, text };
        }
        let text = match self.end {
            Evidence::Gone => format!("{peer} is gone"),
            _ => format!("the connection to {peer} has ended"),
        };
        Fault { evidence: self.end, kind: ErrorKind::Cancelled, text }
    }
}

#[cfg(test)]
impl Frame {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_test::children::{Restriction, Scene, all_descriptors, with_descriptors};
    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;

    const LONG: Duration = Duration::from_secs(60);

    fn pair() -> (Wire, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Wire::of_pieces(listener.accept().unwrap().0, 3, &Life::new(), &Spare::new()), other)
    }

    /// Returns both ends of a connection between processes of a host.
    fn near_pair() -> (Wire, Wire) {
        let (one, other) = UnixStream::pair().unwrap();
        let stream = |stream: UnixStream| TcpStream::from(OwnedFd::from(stream));
        (Wire::control(stream(one), 3), Wire::of_pieces(stream(other), 3, &Life::new(), &Spare::new()))
    }

    /// Returns the fault of a wire whose other side sends these bytes and closes.
    fn after(bytes: &[u8]) -> Fault {
        let (wire, mut other) = pair();
        other.write_all(bytes).unwrap();
        drop(other);
        wire.receive(100, LONG).unwrap_err()
    }

    #[test]
    fn messages_arrive_as_they_were() {
        let (wire, other) = pair();
        let other = Wire::control(other, 0);
        let mut frame = Frame::new(Kind::Bytes);
        frame.put(7);
        frame.put_bytes(&vec![1; 3_000_000]);
        std::thread::scope(|scope| {
            scope.spawn(|| other.send(frame, LONG).unwrap());
            let (kind, body) = wire.receive(1 << 23, LONG).unwrap();
            assert_eq!((kind, body.len()), (Kind::Bytes, 3_000_008));
            assert_eq!(Body(&body).take(), Some(7));
            assert!(body[8..].iter().all(|byte| *byte == 1));
        });
        for fault in [
            Fault::cause(ErrorKind::UnexpectedEof { got: 77 }, "rank 1 reads too far"),
            Fault { evidence: Evidence::Silent, kind: ErrorKind::Elapsed, text: String::new() },
        ] {
            other.send(fault.frame(Kind::Failed), LONG).unwrap();
            let body = wire.expect(Kind::Failed, SMALL, LONG).unwrap();
            assert_eq!(format!("{:?}", Fault::of_body(&body)), format!("{fault:?}"));
        }
        wire.sever();
        assert_eq!(other.receive(100, LONG).unwrap_err().text, "rank 0 is gone");
    }

    /// Many bytes go to a process of the same host as memory: one at a time, and only if they cannot change any more.
    #[test]
    fn many_bytes_are_memory_on_a_host() {
        let (one, other) = near_pair();
        let bytes: Vec<u8> = (0..SHARED_BYTES_MIN).map(|number| number as u8).collect();
        let parts: Vec<&[u8]> = bytes.chunks(77).collect();
        let send = |parts: &[&[u8]], within| one.send_with(Frame::new(Kind::Pieces), parts, within);
        let receive = || other.expect_with(Kind::Pieces, SHARED_BYTES_MIN, LONG);
        send(&parts, LONG).unwrap();
        assert_eq!(send(&parts, Duration::ZERO).unwrap_err().evidence, Evidence::Silent, "no receipt");
        let (body, memory) = receive().unwrap();
        assert!(body.is_empty() && memory.unwrap().bytes() == bytes);
        send(&parts[1..3], LONG).unwrap();
        let (body, memory) = receive().unwrap();
        assert!(body == bytes[77..3 * 77] && memory.is_none());

        let open = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        let send_open = || {
            let mut frame = Frame::new(Kind::Pieces);
            frame.0[0] |= SHARED;
            one.send(frame, LONG).unwrap();
            send_descriptors(&one.stream, [open.as_fd(), open.as_fd()], || Instant::now() + LONG).unwrap();
        };
        send_open();
        assert!(receive().unwrap_err().text.contains("memory that is refused"));
        send_open();
        assert!(other.receive(SMALL, LONG).is_err());
        // Memory is for messages that may have some.
        send(&parts, LONG).unwrap();
        assert!(other.receive(SMALL, LONG).unwrap_err().text.contains("with memory"));
        let (far, mut stream) = pair();
        stream.write_all(&[Kind::Pieces as u8 | SHARED, 0, 0, 0, 0]).unwrap();
        assert_eq!(far.receive(SMALL, LONG).unwrap_err().kind, ErrorKind::InvalidInput);
    }

    /// A rank forked a child while memory arrived, and the child lived longer than the call. The receipt was the end of a pipe, which
    /// the child kept open: the sender of the memory waited for it until its limit of time, and the call failed on all ranks.
    #[test]
    fn a_forked_child_keeps_no_receipt_back() {
        let ((one, other), (again, receiver)) = (near_pair(), near_pair());
        let bytes = vec![7; SHARED_BYTES_MIN];
        let send = || one.send_with(Frame::new(Kind::Pieces), &[&bytes[..]], LONG).unwrap();
        let until = || Instant::now() + LONG;
        send();
        read_full(&other.stream, &mut [0; HEAD_LEN], until).unwrap();
        // The child's descriptors are open until the end.
        let of_child = receive_descriptors(&other.stream, until).unwrap();
        let mut frame = Frame::new(Kind::Pieces);
        frame.0[0] |= SHARED;
        again.send(frame, LONG).unwrap();
        send_descriptors(&again.stream, [of_child[0].as_fd(), of_child[1].as_fd()], until).unwrap();
        let (_, memory) = receiver.expect_with(Kind::Pieces, SHARED_BYTES_MIN, LONG).unwrap();
        assert!(memory.unwrap().bytes() == bytes);
        send();
        drop(of_child);
    }

    /// A rank had all of its descriptors in use when memory arrived. The kernel dropped those of the memory, and the call failed on all
    /// ranks, though a socket takes none for the same bytes.
    #[test]
    fn memory_arrives_where_no_descriptor_is_free() {
        let name = "ranks::wire::tests::memory_arrives_where_no_descriptor_is_free";
        with_descriptors(name, &[64], |_| {
            let (one, other) = near_pair();
            let bytes = vec![7; SHARED_BYTES_MIN];
            for _ in 0..2 {
                one.send_with(Frame::new(Kind::Pieces), &[&bytes[..]], LONG).unwrap();
                let all = all_descriptors();
                let (_, memory) = other.expect_with(Kind::Pieces, SHARED_BYTES_MIN, LONG).unwrap();
                drop(all);
                assert!(memory.unwrap().bytes() == bytes);
            }
        });
    }

    /// Under a limit on the length of files (`ulimit -f`) an aggregator read a longer file for the ranks of its host. The memory that it sent
    /// counted as a file, and SIGXFSZ ended its process.
    #[test]
    fn memory_beyond_the_limit_of_files_is_sent_as_bytes() {
        let name = "ranks::wire::tests::memory_beyond_the_limit_of_files_is_sent_as_bytes";
        let limit = Restriction::Limit(libc::RLIMIT_FSIZE, SHARED_BYTES_MIN as u64 - 1);
        Scene::new(name).without(vec![limit]).play(|| {
            let (one, other) = near_pair();
            let bytes = vec![7; SHARED_BYTES_MIN];
            std::thread::scope(|scope| {
                scope.spawn(|| one.send_with(Frame::new(Kind::Pieces), &[&bytes[..]], LONG).unwrap());
                let (body, memory) = other.expect_with(Kind::Pieces, SHARED_BYTES_MIN, LONG).unwrap();
                assert!(body == bytes && memory.is_none());
            });
        });
    }

    /// A rank waited for an aggregator that received from others, and failed after one deadline though all were at work.
    #[test]
    fn a_wait_for_pieces_lasts_as_long_as_there_is_life() {
        let (wire, other) = pair();
        Wire::control(other, 0).send(Frame::new(Kind::Pieces), LONG).unwrap();
        let wait = || wire.expect(Kind::Pieces, SMALL, Duration::ZERO);
        assert_eq!(wait().unwrap_err().evidence, Evidence::Silent, "its time has passed");
        *wire.life.as_ref().unwrap().last() = Instant::now() + LONG;
        assert_eq!(wait().unwrap(), b"");
    }

    #[test]
    fn strangers_and_halves_are_refused() {
        let [stranger, lost] = [ErrorKind::InvalidInput, ErrorKind::Cancelled];
        let kinds: [(&[u8], ErrorKind); 6] = [
            (&[99, 0, 0, 0, 0], stranger),
            // Longer than the receiver expects: no memory is allocated for it.
            (&[Kind::Bytes as u8, 101, 0, 0, 0], stranger),
            (&[Kind::Bytes as u8, 255, 255, 255, 255], stranger),
            (&[], lost),
            (&[Kind::Bytes as u8, 100], lost),
            (&[Kind::Bytes as u8, 100, 0, 0, 0, 1, 2, 3], lost),
        ];
        for (bytes, kind) in kinds {
            assert_eq!(after(bytes).kind, kind, "{bytes:?}");
        }
        let (wire, _other) = pair();
        let silence = wire.receive(100, Duration::from_millis(20)).unwrap_err();
        assert_eq!((silence.kind, silence.evidence), (ErrorKind::Elapsed, Evidence::Silent));
    }
}
