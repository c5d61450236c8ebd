//! Frames on a TCP connection: four bytes of length, most significant first, then that many bytes. Both the
//! length and the time are limited, whatever the other side sends.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Time limits of waits on a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// The limit for a message to begin; the other side sends at least an
    /// [`Alive`](super::message) more often.
    pub(super) silence: Duration,
    /// The limit from a message's first byte to its last, and for the other side to take a message.
    pub(super) message: Duration,
    /// The limit for the whole of a handshake on the agent's side, and for each of its messages on
    /// the controller's.
    pub(super) handshake: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(10),
            message: Duration::from_secs(10),
            handshake: Duration::from_secs(5),
        }
    }
}

/// The reason why there is no frame.
#[derive(Debug)]
pub(super) enum FrameError {
    /// The other side closed the connection between two frames.
    Closed,
    /// No frame began within this time.
    Silent(Duration),
    /// A frame began and did not end: the connection was closed, or the time ran out.
    Half { got: usize, of: usize },
    /// A frame's length exceeds the limit.
    TooLarge { bytes: usize, limit: usize },
    /// The connection failed.
    Io(io::Error),
}

impl fmt::Display for FrameError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => formatter.write_str("the connection was closed"),
            Self::Silent(time) => write!(formatter, "no message arrived for {:.1} s", time.as_secs_f64()),
            Self::Half { got, of } => write!(formatter, "a message ended after {got} of {of} bytes"),
            Self::TooLarge { bytes, limit } => {
                write!(formatter, "a message of {bytes} bytes was announced; at most {limit} are accepted")
            }
            Self::Io(error) => write!(formatter, "the connection failed: {error}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Sends one frame.
///
/// # Errors
/// Fails when the connection failed, or the other side takes nothing for the stream's write timeout.
pub(super) fn write(mut stream: &TcpStream, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len()).map_err(|_| io::Error::other("a message beyond 4 GiB"))?;
    // One write: two would be two packets, and the second would wait for the acknowledgement of the first.
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(body);
    stream.write_all(&frame)
}

/// Waits for one frame: up to `silence` for its first byte, and up to `whole` from then on.
///
/// # Errors
/// See [`FrameError`]. The connection is unusable after any of them.
pub(super) fn read(
    stream: &TcpStream,
    limit: usize,
    silence: Duration,
    whole: Duration,
) -> Result<Vec<u8>, FrameError> {
    let mut length = [0; 4];
    let first = begin(stream, &mut length, silence)?;
    rest(stream, limit, length, first, Instant::now() + whole)
}

/// Waits for one frame, which must be complete by `deadline`.
///
/// # Errors
/// See [`FrameError`]. The connection is unusable after any of them.
pub(super) fn read_by(stream: &TcpStream, limit: usize, deadline: Instant) -> Result<Vec<u8>, FrameError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(FrameError::Silent(left));
    }
    let mut length = [0; 4];
    let first = begin(stream, &mut length, left)?;
    rest(stream, limit, length, first, deadline)
}

/// Waits for the first bytes of a frame.
fn begin(stream: &TcpStream, length: &mut [u8; 4], silence: Duration) -> Result<usize, FrameError> {
    stream.set_read_timeout(Some(silence)).map_err(FrameError::Io)?;
    loop {
        match { stream }.read(length) {
            Ok(0) => return Err(FrameError::Closed),
            Ok(got) => return Ok(got),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_timeout(&error) => return Err(FrameError::Silent(silence)),
            Err(error) => return Err(FrameError::Io(error)),
        }
    }
}

fn rest(
    stream: &TcpStream,
    limit: usize,
    mut length: [u8; 4],
    first: usize,
    deadline: Instant,
) -> Result<Vec<u8>, FrameError> {
    fill(stream, &mut length, first, deadline)?;
    let bytes = u32::from_be_bytes(length) as usize;
    if bytes > limit {
        return Err(FrameError::TooLarge { bytes, limit });
    }
    let mut body = vec![0; bytes];
    fill(stream, &mut body, 0, deadline)?;
    Ok(body)
}

fn fill(
    mut stream: &TcpStream,
    memory: &mut [u8],
    mut got: usize,
    deadline: Instant,
) -> Result<(), FrameError> {
    let of = memory.len();
    while got < of {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(FrameError::Half { got, of });
        }
        stream.set_read_timeout(Some(left)).map_err(FrameError::Io)?;
        match stream.read(&mut memory[got..]) {
            Ok(0) => return Err(FrameError::Half { got, of }),
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted || is_timeout(&error) => {}
            Err(error) => return Err(FrameError::Io(error)),
        }
    }
    Ok(())
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::super::testing::pair;
    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn frames_arrive_whole_and_in_order() {
        let (here, there) = pair();
        write(&here, b"one").expect("it is open");
        write(&here, b"").expect("it is open");
        assert_eq!(read(&there, 16, LONG, LONG).expect("it was sent"), b"one");
        assert_eq!(read(&there, 16, LONG, LONG).expect("it was sent"), b"");
        drop(here);
        assert!(matches!(read(&there, 16, LONG, LONG), Err(FrameError::Closed)));
    }

    #[test]
    fn a_large_frame_is_refused_before_its_memory_is_taken() {
        let (mut here, there) = pair();
        here.write_all(&u32::MAX.to_be_bytes()).expect("it is open");
        let error = read(&there, 1024, LONG, LONG).expect_err("4 GiB");
        assert!(matches!(error, FrameError::TooLarge { limit: 1024, .. }), "{error}");
    }

    #[test]
    fn half_a_frame_and_then_silence_ends() {
        let (mut here, there) = pair();
        here.write_all(&[0, 0, 0, 9, b'h', b'a', b'l', b'f']).expect("it is open");
        let error = read(&there, 1024, LONG, SHORT).expect_err("5 bytes are missing");
        assert!(matches!(error, FrameError::Half { got: 4, of: 9 }), "{error}");
    }

    #[test]
    fn half_a_frame_and_then_the_end_is_distinguished_from_a_close() {
        let (mut here, there) = pair();
        here.write_all(&[0, 0]).expect("it is open");
        drop(here);
        assert!(matches!(read(&there, 16, LONG, LONG), Err(FrameError::Half { got: 2, of: 4 })));
    }

    #[test]
    fn silence_ends_too() {
        let (_here, there) = pair();
        assert!(matches!(read(&there, 16, SHORT, LONG), Err(FrameError::Silent(_))));
    }
}
