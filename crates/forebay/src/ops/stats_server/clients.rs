//! Who is connected: a request is a line, an answer is a line, and nobody waits for anybody.

use std::io;
use std::os::unix::net::UnixStream;

use rustix::event::PollFlags;

use super::{read_some, send};

/// Further ones wait until one of these goes.
const CLIENTS_MAX: usize = 8;
/// No request is nearly as long.
const LINE_BYTES_MAX: usize = 64;

#[derive(Default)]
pub(super) struct Clients {
    list: Vec<Client>,
}

struct Client {
    stream: UnixStream,
    /// Of a line that is not whole yet.
    line: Vec<u8>,
    /// What goes out, and how much of it has gone.
    answer: Vec<u8>,
    sent: usize,
    /// It sends nothing more.
    ended: bool,
}

/// What is to be done with a client.
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

    /// Each with what it waits for: room for its answer, or a request.
    pub(super) fn list(&self) -> impl Iterator<Item = (&UnixStream, PollFlags)> {
        self.list.iter().map(|client| {
            let flags = if client.answer.is_empty() { PollFlags::IN } else { PollFlags::OUT };
            (&client.stream, flags)
        })
    }

    /// Serves those that are ready, in the order of [`list`](Self::list). `ask` makes one answer for all who asked; false when
    /// it has none any more.
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

    /// One request at a time: what comes behind it is read when it was answered.
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
