//! The client end of an engine's socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};

use forebay_report::failure::Failure;

/// Maximum length of a reply; no engine sends more: 256 files with long paths are a tenth of it.
const REPLY_BYTES_MAX: u64 = 16 << 20;
/// The time for a reply, after which the program counts as stopped.
const REPLY_WITHIN: Duration = Duration::from_secs(5);

/// Requests the exposition of the engine that serves the socket at `path`; `None` when the engine is about to end.
///
/// # Errors
/// [`Failure::Path`] when no engine serves there, [`Failure::Lacking`] when it is another user's; or the reply is not an exposition
/// of an engine.
pub(super) fn request(path: &Path) -> anyhow::Result<Option<String>> {
    let (tell, told) = mpsc::channel();
    let own = path.to_owned();
    // On a thread that may wait without an end: a connection, too, waits where a stopped program has as many as it may have.
    let requesting = thread::Builder::new().spawn(move || drop(tell.send(reply(&own))));
    requesting.context("no thread can be started for the request")?;
    told.recv_timeout(REPLY_WITHIN).unwrap_or_else(|_| {
        let (name, seconds) = (path.display(), REPLY_WITHIN.as_secs());
        Err(anyhow!("{name} gave no reply within {seconds} s: its program is stopped, or is not an engine's"))
    })
}

/// Does the same, in any time.
fn reply(path: &Path) -> anyhow::Result<Option<String>> {
    let name = path.display();
    let mut stream = UnixStream::connect(path).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => Failure::Path(format!(
            "no engine serves {name}: its program ended without removing it, or it is no engine's socket; name \
             the socket of a running engine"
        )),
        io::ErrorKind::PermissionDenied => Failure::Lacking(format!(
            "{name} belongs to another user: only that user and root may read the statistics of its engine"
        )),
        _ => Failure::missing(path, &error),
    })?;
    let (mut status, mut reply) = (String::new(), String::new());
    let sent = stream.write_all(b"GET /metrics?files HTTP/1.1\r\nHost: engine\r\n\r\n");
    let received = sent.and_then(|()| {
        let mut stream = BufReader::new(stream.take(REPLY_BYTES_MAX));
        stream.read_line(&mut status)?;
        // Another program's socket may stay open after its first line.
        if status.starts_with("HTTP/1.1 200 ") { stream.read_to_string(&mut reply) } else { Ok(0) }
    });
    match received {
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            Ok(None)
        }
        Err(error) => Err(error).context("the statistics of the engine cannot be read"),
        Ok(_) if status.is_empty() => Ok(None),
        Ok(_) => match reply.split_once("\r\n\r\n") {
            Some((_, page)) if page.ends_with("# EOF\n") => Ok(Some(page.to_owned())),
            // It ended before the end of its reply.
            _ if reply.contains("application/openmetrics-text") => Ok(None),
            _ => bail!("the reply is not an engine's statistics: {name} is the socket of another program"),
        },
    }
}
