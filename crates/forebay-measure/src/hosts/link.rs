//! A connection after the handshake. Every message carries a tag over its number and its bytes, so that a
//! change, a loss, a repetition or an insertion on the way is noticed. Messages are not encrypted.

use std::net::{Shutdown, TcpStream};

use anyhow::Context as _;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::frame::{self, FrameError, Times};
use super::handshake::Role;
use super::secret::{KEY_BYTES, Key};

/// The size of the longest message; the longest ones contain a histogram of some kilobytes.
const LIMIT: usize = 1 << 20;

/// Both directions of a connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
}

/// The sending direction.
#[derive(Debug)]
pub(super) struct Sender {
    stream: TcpStream,
    key: Key,
    number: u64,
}

/// The receiving direction.
#[derive(Debug)]
pub(super) struct Receiver {
    stream: TcpStream,
    key: Key,
    number: u64,
    times: Times,
}

impl Link {
    /// Returns the link of one side; each direction has its own key.
    pub(super) fn new(
        stream: TcpStream,
        secret: &Key,
        transcript: &[u8],
        side: Role,
        times: Times,
    ) -> anyhow::Result<Self> {
        let to_agent = secret.derive(&[b"forebay 1 messages to the agent", transcript]);
        let to_controller = secret.derive(&[b"forebay 1 messages to the controller", transcript]);
        let (out, into) = match side {
            Role::Controller => (to_agent, to_controller),
            Role::Agent => (to_controller, to_agent),
        };
        let second = stream.try_clone()?;
        Ok(Self {
            sender: Sender { stream, key: out, number: 0 },
            receiver: Receiver { stream: second, key: into, number: 0, times },
        })
    }
}

impl Sender {
    /// Sends one message.
    ///
    /// # Errors
    /// Fails when the connection failed, or the other side takes nothing.
    pub(super) fn send<T: Serialize>(&mut self, message: &T) -> anyhow::Result<()> {
        let mut body = serde_json::to_vec(message)?;
        anyhow::ensure!(body.len() + KEY_BYTES <= LIMIT, "a message of {} bytes is too long", body.len());
        let tag = self.key.tag(&[&self.number.to_be_bytes(), &body]);
        self.number += 1;
        body.extend_from_slice(&tag);
        frame::write(&self.stream, &body).context("the connection failed")
    }

    /// Closes the connection, for the receiver of the same side, too.
    pub(super) fn close(&self) {
        // Fails when the other side closed it before.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Receiver {
    /// Waits for the next message. Nothing can be received after an error.
    ///
    /// # Errors
    /// Fails when the connection ended, nothing arrived for too long, or a message was not made by the
    /// other side for this place.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let body = self.receive_bytes()?;
        serde_json::from_slice(&body).context("a message that is not part of the protocol")
    }

    fn receive_bytes(&mut self) -> anyhow::Result<Vec<u8>> {
        let mut body =
            frame::read(&self.stream, LIMIT, self.times.silence, self.times.message).map_err(|error| {
                match error {
                    // A process that is killed with unread bytes ends its connections with this error.
                    FrameError::Io(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                        FrameError::Closed
                    }
                    error => error,
                }
            })?;
        let text = body.len().checked_sub(KEY_BYTES).context("a message without a tag")?;
        let genuine = self.key.verify(&[&self.number.to_be_bytes(), &body[..text]], &body[text..]);
        anyhow::ensure!(genuine, "message {} was changed, repeated or forged on the way", self.number);
        self.number += 1;
        body.truncate(text);
        Ok(body)
    }
}

#[cfg(test)]
impl Sender {
    /// Returns the tag that message `number` would have.
    pub(super) fn tag_for_test(&self, number: u64, text: &[u8]) -> [u8; KEY_BYTES] {
        self.key.tag(&[&number.to_be_bytes(), text])
    }

    /// Writes bytes onto the wire as an attacker on the way could.
    pub(super) fn write_raw_for_test(&self, body: &[u8]) {
        frame::write(&self.stream, body).expect("the connection is open");
    }
}
