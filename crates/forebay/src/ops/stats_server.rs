//! An engine's statistics for other processes: a Unix socket that only its user may connect to.

mod clients;
mod json;
mod socket;

use std::fmt;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, Weak};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::pending::Pending;
use crate::handle::engine::{Engine, gather, gather_files};
use crate::io::stats::{FileStats, Stats};
use crate::reactor::engine_shared::{AtEnd, EngineShared};
use clients::Clients;
use socket::Name;

/// The pause in accepting after a connection could not be accepted.
const REFUSED_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Serves an engine's statistics at a Unix socket while it lives; made by
/// [`Engine::serve_stats`](crate::Engine::serve_stats). Dropping it removes the socket. It does not keep the
/// engine alive, and when the engine ends, the socket is removed as well.
///
/// A client sends the line `stats` as often as it likes and gets one line of JSON for each. The line is an
/// object with `forebay_stats` (1, the version of the fields that follow), `version`, `pid`, `at_ns` (on a
/// clock for differences only), `driver`, the lists `shards`, `devices`, `classes`, `flows`, `files` (the 256
/// with the most operations; `files_left_out` is the number of the others) and `stalls` with the fields of
/// [`Stats`](crate::Stats) and [`FileStats`](crate::FileStats), `memory`, `wait_calls`, `page_cache_reads`,
/// `page_cache_bytes`, `page_cache_misses`, `page_cache_skips`, and `degraded`, a list of texts. Times are in nanoseconds. Distributions are given as
/// `..._p50_ns` and `..._p99_ns` since the engine's start. Eight clients may be connected at once; a ninth
/// waits.
///
/// ```
/// use forebay::{Config, Engine};
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("engine.sock");
/// let engine = Engine::start(Config::default())?;
/// let _serving = engine.serve_stats(&path)?; // then: forebay top engine.sock
/// # Ok(()) }
/// ```
pub struct StatsServer {
    bell: Arc<Bell>,
}

impl StatsServer {
    pub(crate) fn start(engine: &Arc<EngineShared>, path: &Path) -> Result<StatsServer> {
        let failed = |error: io::Error| Error::io("stats socket", error).with_path(path);
        let (rings, heard) = UnixStream::pair().map_err(failed)?;
        rings.set_nonblocking(true).map_err(failed)?;
        let (listener, name) = Name::bind(path)?;
        let bell = Arc::new(Bell { rings, name });
        engine.ring_at_end(&bell);
        let (weak, own) = (Arc::downgrade(engine), bell.clone());
        let body = move || {
            crate::base::signal_mask::shield_thread();
            // The listener goes first: later clients are refused rather than kept waiting by a listener that
            // no thread serves.
            serve(listener, &heard, &weak);
            own.name.remove();
        };
        let spawned = std::thread::Builder::new().name("forebay-stats".to_string()).spawn(body);
        match spawned {
            Ok(_) => Ok(StatsServer { bell }),
            Err(error) => {
                bell.name.remove();
                Err(failed(error).with_note("no thread for it"))
            }
        }
    }

    /// Returns the path of the socket that clients connect to.
    pub fn path(&self) -> PathBuf {
        self.bell.name.path().to_path_buf()
    }
}

impl Drop for StatsServer {
    fn drop(&mut self) {
        if self.bell.name.is_forked() {
            return;
        }
        // The thread may be waiting for a shard that a task holds, so it is notified and not joined.
        self.bell.name.remove();
        self.bell.ring();
    }
}

impl fmt::Debug for StatsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatsServer").field("path", &self.bell.name.path()).finish_non_exhaustive()
    }
}

/// Notifies the server's thread of its end.
pub(crate) struct Bell {
    rings: UnixStream,
    name: Name,
}

impl AtEnd for Bell {
    fn ring(&self) {
        // A full pipe has been rung often enough, and a closed one has no reader left.
        let _ = send(&self.rings, &[1]);
    }
}

impl Engine {
    /// Serves this engine's statistics at a Unix socket at `path`, until the engine ends or the returned
    /// server is dropped. `forebay top PATH` shows them. Only the user that this process belongs to, and
    /// root, may connect.
    ///
    /// A thread of its own replies. It queries the shards at each request, as [`stats`](Engine::stats) does,
    /// so without a client it costs nothing. [`StatsServer`] describes the protocol.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) when something other than a socket is at `path`, and for paths too long for a
    /// socket (108 bytes on Linux); `EADDRINUSE` when a living process serves there, the socket of a dead process is replaced;
    /// the system's. [`Unsupported`](ErrorKind::Unsupported) in a simulated world.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::default())?;
    /// use std::io::{BufRead, BufReader, Write};
    /// use std::os::unix::net::UnixStream;
    ///
    /// let server = engine.serve_stats(dir.path().join("stats.sock"))?;
    /// // Any process of this user:
    /// let mut client = UnixStream::connect(server.path())?;
    /// client.write_all(b"stats\n")?;
    /// let mut line = String::new();
    /// BufReader::new(client).read_line(&mut line)?;
    /// assert!(line.contains("\"forebay_stats\""));
    /// # Ok(()) }
    /// ```
    pub fn serve_stats(&self, path: impl AsRef<Path>) -> Result<StatsServer> {
        self.check()?;
        if self.shared().is_simulated() {
            let error = Error::new(ErrorKind::Unsupported, "stats socket");
            return Err(error.with_note("a simulated world has no sockets"));
        }
        StatsServer::start(self.shared(), path.as_ref())
    }
}

impl EngineShared {
    /// Rings `bell` when the engine ends, or at once when it has ended.
    fn ring_at_end(&self, bell: &Arc<Bell>) {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers.retain(|known| known.strong_count() > 0);
        let weak = Arc::downgrade(bell);
        servers.push(weak);
        drop(servers);
        if self.failure().is_some() {
            bell.ring();
        }
    }

    /// Returns the statistics to serve; `None` when the engine has ended.
    fn tell(shared: &Weak<EngineShared>) -> Option<Snapshot> {
        let shared = shared.upgrade().filter(|shared| shared.failure().is_none())?;
        let stats = Pending::from_future("stats", Box::pin(gather(shared.clone()))).wait().ok()?;
        let files = Pending::from_future("stats", Box::pin(gather_files(shared.clone()))).wait().ok()?;
        let clock = shared.clock();
        Some(Snapshot {
            at_ns: clock.ns(clock.now()),
            driver: shared.driver.get().copied().unwrap_or("threads"),
            degraded: shared.lock_degraded().iter().map(ToString::to_string).collect(),
            stats,
            files,
        })
    }
}

/// The served statistics of an engine at one moment.
pub(crate) struct Snapshot {
    /// On a clock with an arbitrary beginning.
    pub(crate) at_ns: u64,
    pub(crate) driver: &'static str,
    pub(crate) degraded: Vec<String>,
    pub(crate) stats: Stats,
    pub(crate) files: Vec<FileStats>,
}

/// Serves clients until the bell rings or the engine ends.
fn serve(listener: UnixListener, heard: &UnixStream, engine: &Weak<EngineShared>) {
    let mut clients = Clients::default();
    // Whether the last connection could not be accepted, for example for lack of descriptors.
    let mut refused = false;
    loop {
        let mut fds = vec![PollFd::new(heard, PollFlags::IN)];
        if clients.has_room() && !refused {
            fds.push(PollFd::new(&listener, PollFlags::IN));
        }
        let first = fds.len();
        fds.extend(clients.list().map(|(stream, flags)| PollFd::from_borrowed_fd(stream.as_fd(), flags)));
        let pause = refused.then_some(&REFUSED_PAUSE);
        refused = false;
        match poll(&mut fds, pause) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        }
        if !fds[0].revents().is_empty() {
            return;
        }
        let may_accept = first == 2 && !fds[1].revents().is_empty();
        let ready: Vec<bool> = fds[first..].iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if !clients.work(&ready, || EngineShared::tell(engine).map(|snapshot| json::line(&snapshot))) {
            return;
        }
        if may_accept {
            match listener.accept() {
                Ok((stream, _)) => clients.add(stream),
                Err(error) => refused = error.kind() != io::ErrorKind::WouldBlock,
            }
        }
    }
}

/// Writes as much as there is room for, and returns the number of bytes. A reader that has gone causes an
/// error and no signal, however the program has set up SIGPIPE.
#[cfg(target_os = "linux")]
fn send(stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(stream, bytes, rustix::net::SendFlags::NOSIGNAL)?)
}

#[cfg(not(target_os = "linux"))]
fn send(mut stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    io::Write::write(&mut stream, bytes)
}

/// Reads the bytes that have arrived. Returns `Ok(0)` at the end, and `None` when there is nothing yet.
fn read_some(mut stream: &UnixStream, into: &mut [u8]) -> Option<io::Result<usize>> {
    match stream.read(into) {
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => None,
        read => Some(read),
    }
}
