//! A connected client: it reads the request, writes the reply, and closes. It never waits for another client.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Weak;

use rustix::event::PollFlags;

use super::send;
use crate::reactor::engine_shared::EngineShared;

/// The most bytes of a request's head, far more than usual heads have.
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// The body of the reply to any other request.
const REFUSAL: &str = "An engine's statistics are served here: GET /metrics, or GET /metrics?files.\n";

pub(super) struct Client {
    pub(super) stream: UnixStream,
    request: Vec<u8>,
    /// The reply; `sent` bytes of it are written.
    reply: String,
    sent: usize,
}

impl Client {
    /// Returns a client that does not block; `None` when the stream cannot be made so.
    pub(super) fn new(stream: UnixStream) -> Option<Client> {
        stream.set_nonblocking(true).ok()?;
        Some(Client { stream, request: Vec::new(), reply: String::new(), sent: 0 })
    }

    /// Returns the event that it waits for.
    pub(super) fn event(&self) -> PollFlags {
        if self.reply.is_empty() { PollFlags::IN } else { PollFlags::OUT }
    }

    /// Continues after the event. Returns false when it is to be closed.
    pub(super) fn go_on(&mut self, engine: &Weak<EngineShared>) -> bool {
        let moved = if self.reply.is_empty() { self.receive(engine) } else { self.send() };
        moved.unwrap_or_else(|error| {
            matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        })
    }

    fn receive(&mut self, engine: &Weak<EngineShared>) -> io::Result<bool> {
        let mut bytes = [0; 1024];
        let received = self.stream.read(&mut bytes)?;
        self.request.extend(&bytes[..received]);
        // A client that has shut down its side sends no more.
        if received > 0 && !is_whole(&self.request) {
            return Ok(true);
        }
        let Some(reply) = reply(&self.request, engine) else { return Ok(false) };
        self.reply = reply;
        self.send()
    }

    fn send(&mut self) -> io::Result<bool> {
        self.sent += send(&self.stream, &self.reply.as_bytes()[self.sent..])?;
        Ok(self.sent < self.reply.len())
    }
}

/// Returns whether a request needs no more bytes: its head has ended, or it is not a request that is served.
fn is_whole(request: &[u8]) -> bool {
    let is_other = !request.starts_with(b"GET ") && request.contains(&b'\n');
    let has_ended = || request.windows(3).any(|end| end == b"\n\r\n") || request.ends_with(b"\n\n");
    is_other || request.len() > REQUEST_BYTES_MAX || has_ended()
}

/// Returns the reply to a request; `None` without a request, or if the engine has ended.
fn reply(request: &[u8], engine: &Weak<EngineShared>) -> Option<String> {
    let line = request.split(|byte| *byte == b'\n').next()?.trim_ascii();
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let (status, kind, body) = match words[..] {
        [b"GET", path @ (b"/metrics" | b"/metrics?files"), ..] => {
            let page = EngineShared::page(engine, path.ends_with(b"files"))?;
            ("200 OK", page.content_type(), page.finish())
        }
        // A program of an earlier release, which says that it reads version 1.
        [b"stats"] => return Some("{\"forebay_stats\":2}\n".to_string()),
        [b""] if request.is_empty() => return None,
        _ => ("404 Not Found", "text/plain", REFUSAL.to_string()),
    };
    let length = body.len();
    Some(format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    ))
}
