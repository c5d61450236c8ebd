//! The connected clients: a request is a line, a reply is a line, and no client waits for another.

use std::io;
use std::os::unix::net::UnixStream;

use rustix::event::PollFlags;

use super::{read_some, send};

/// The most clients at once. Further ones wait until one of these goes.
const CLIENTS_MAX: usize = 8;
/// The most bytes of a request, which no valid one comes near.
const LINE_BYTES_MAX: usize = 64;

#[derive(Default)]
pub(super) struct Clients {
    list: Vec<Client>,
}

struct Client {
    stream: UnixStream,
    /// The bytes of a line that is not complete yet.
    line: Vec<u8>,
    /// The reply on its way out; `sent` bytes of it have gone.
    answer: Vec<u8>,
    sent: usize,
    /// Whether the client has shut down its sending side.
    ended: bool,
}

/// The next action for a client.
#[derive(PartialEq)]
enum Next {
    Wait,
    Ask,
    Close,
}

impl Clients {
    pub(super) fn has_room(&self) -> bool {
        self.list.len() < CLIENTS_MAX
    }

    pub(super) fn add(&mut self, stream: UnixStream) {
        if stream.set_nonblocking(true).is_ok() {
            self.list.push(Client { stream, line: Vec::new(), answer: Vec::new(), sent: 0, ended: false });
        }
    }

    /// Returns each client with the event that it waits for: room for its reply, or a request.
    pub(super) fn list(&self) -> impl Iterator<Item = (&UnixStream, PollFlags)> {
        self.list.iter().map(|client| {
            let flags = if client.answer.is_empty() { PollFlags::IN } else { PollFlags::OUT };
            (&client.stream, flags)
        })
    }

    /// Serves those that are ready, in the order of [`list`](Self::list). `ask` makes one reply for all
    /// requests of this round. Returns false when it can make none any more.
    pub(super) fn work(&mut self, ready: &[bool], ask: impl Fn() -> Option<String>) -> bool {
        let mut line: Option<String> = None;
        let mut at = 0;
        for &ready in ready {
            let Some(client) = self.list.get_mut(at) else { break };
            let mut next = if ready { client.go_on() } else { Next::Wait };
            if next == Next::Ask {
                if line.is_none() {
                    line = ask();
                }
                let Some(line) = &line else { return false };
                client.answer = line.as_bytes().to_vec();
                next = client.go_on();
            }
            match next {
                Next::Close => drop(self.list.remove(at)),
                Next::Ask | Next::Wait => at += 1,
            }
        }
        true
    }
}

impl Client {
    fn go_on(&mut self) -> Next {
        if !self.answer.is_empty() {
            return self.send();
        }
        self.receive()
    }

    fn send(&mut self) -> Next {
        match send(&self.stream, &self.answer[self.sent..]) {
            Ok(sent) => self.sent += sent,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return Next::Close,
        }
        if self.sent == self.answer.len() {
            self.answer.clear();
            self.sent = 0;
            if self.ended {
                return Next::Close;
            }
        }
        Next::Wait
    }

    /// Receives one request at a time. Bytes behind it are read after it has been replied to.
    fn receive(&mut self) -> Next {
        let mut byte = [0];
        loop {
            match read_some(&self.stream, &mut byte) {
                None => return Next::Wait,
                Some(Err(_)) => return Next::Close,
                Some(Ok(0)) if self.line.is_empty() => return Next::Close,
                // The last line need not end.
                Some(Ok(0)) => self.ended = true,
                Some(Ok(_)) if byte[0] != b'\n' => {
                    self.line.push(byte[0]);
                    if self.line.len() > LINE_BYTES_MAX {
                        return Next::Close;
                    }
                    continue;
                }
                Some(Ok(_)) => {}
            }
            let line = std::mem::take(&mut self.line);
            return if line.trim_ascii() == b"stats" { Next::Ask } else { Next::Close };
        }
    }
}
