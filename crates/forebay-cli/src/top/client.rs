//! The client end of an engine's socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use forebay_report::failure::Failure;

/// Maximum length of a line; no engine sends more: 256 files with long paths are a tenth of it.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the engine's socket at `path`.
    ///
    /// # Errors
    /// [`Failure::Path`] when no engine serves there, [`Failure::Lacking`] when it is another user's.
    pub(super) fn connect(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let stream = UnixStream::connect(path).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => Failure::Path(format!(
                "no engine serves {name}: its program ended without removing it, or it is no engine's socket; name \
                 the socket of a running engine"
            )),
            io::ErrorKind::PermissionDenied => Failure::Lacking(format!(
                "{name} belongs to another user: only that user and root may read the statistics of its engine"
            )),
            _ => Failure::missing(path, &error),
        })?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Requests the engine's current statistics and returns them as a line; `None` when the engine has ended.
    ///
    /// # Errors
    /// The connection failed, or the response is not a line.
    pub(super) fn request(&mut self) -> anyhow::Result<Option<String>> {
        self.stream.get_ref().set_read_timeout(None)?;
        let mut line = String::new();
        let sent = self.stream.get_ref().write_all(b"stats\n");
        let received =
            sent.and_then(|()| io::Read::take(&mut self.stream, LINE_BYTES_MAX).read_line(&mut line));
        match received {
            Ok(0) => Ok(None),
            Ok(_) if line.ends_with('\n') => Ok(Some(line)),
            Ok(_) => Err(Failure::Unsuitable("the reply is not an engine's statistics".to_owned()).into()),
            Err(error) if has_ended(&error) => Ok(None),
            Err(error) => Err(error).context("the statistics of the engine cannot be read"),
        }
    }

    /// Waits for `interval`. Returns false when the engine ends meanwhile.
    ///
    /// # Errors
    /// The connection failed.
    pub(super) fn wait(&mut self, interval: Duration) -> anyhow::Result<bool> {
        self.stream.get_ref().set_read_timeout(Some(interval))?;
        loop {
            return match self.stream.fill_buf() {
                Ok([]) => Ok(false),
                Ok(_) => Err(Failure::Unsuitable(
                    "the engine sent a line without a request; this is not an engine's statistics".to_owned(),
                )
                .into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    Ok(true)
                }
                Err(error) if has_ended(&error) => Ok(false),
                Err(error) => Err(error).context("the statistics of the engine cannot be read"),
            };
        }
    }
}

fn has_ended(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
