//! An engine's statistics for other processes: a Unix socket that only its user may connect to.

mod client;
mod socket;

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, Weak};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::base::affinity::unpinned;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::pending::Pending;
use crate::handle::engine::{Engine, gather, gather_files};
use crate::io::exposition::Exposition;
use crate::io::exposition::MetricKind::{Gauge, Info};
use crate::reactor::engine_shared::{AtEnd, EngineShared};
use client::Client;
use socket::Name;

/// The most clients at a time. More clients wait until one of these is disconnected.
const CLIENTS_MAX: usize = 8;
/// With this many clients: the time without an event of any after which the first one is disconnected.
const SILENCE_MAX: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// The pause in accepting after a connection could not be accepted.
const REFUSED_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Serves an engine's statistics at a Unix socket while it lives; made by
/// [`Engine::serve_stats`](crate::Engine::serve_stats). Dropping it removes the socket. It does not keep the
/// engine alive, and when the engine ends, the socket is removed as well.
///
/// A client sends the request `GET /metrics` of HTTP, gets an [`Exposition`](crate::Exposition) in OpenMetrics 1.0, and is
/// disconnected. So `curl --unix-socket PATH http://engine/metrics` shows it, and Prometheus reads it through a proxy that listens
/// at a port. It has the engine's [`Stats`](crate::Stats), `forebay_engine_info` (`version`, `driver`), `forebay_pid`,
/// `forebay_at_seconds` (on a clock for differences only) and `forebay_degradation_info`. With `GET /metrics?files` it also has the
/// 256 open files with the most operations; their paths change, and a database of time series would keep each for long. Other
/// requests are refused with a sentence. Eight clients may be connected at a time; a ninth waits. After two seconds in which none of the
/// eight sends or receives, the first of them is disconnected.
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
        let body = unpinned(move || {
            crate::base::size_limit::shield_thread();
            // The listener is dropped first: later clients are refused rather than kept waiting by a listener that no thread
            // serves.
            serve(listener, &heard, &weak);
            own.name.remove();
        });
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

crate::_debug_parts!(StatsServer, |stats_server| path: stats_server.bell.name.path());

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
    /// A dedicated thread serves it and queries the shards at each request, as [`stats`](Engine::stats) does; without clients
    /// it costs nothing. [`StatsServer`] describes the protocol.
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
    /// # let engine = Engine::start(Config::new())?;
    /// use std::io::{Read, Write};
    /// use std::os::unix::net::UnixStream;
    ///
    /// let server = engine.serve_stats(dir.path().join("stats.sock"))?;
    /// // Any process of this user:
    /// let mut client = UnixStream::connect(server.path())?;
    /// client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
    /// let mut reply = String::new();
    /// client.read_to_string(&mut reply)?;
    /// assert!(reply.contains("\nforebay_shard_tasks{shard=\"0\"} 0\n"));
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
    /// Rings `bell` when the engine ends, or immediately when it has ended.
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

    /// Returns the page to serve; `None` when the engine has ended.
    fn page(shared: &Weak<EngineShared>, with_files: bool) -> Option<Exposition> {
        let shared = shared.upgrade().filter(|shared| shared.failure().is_none())?;
        let stats = Pending::from_future("stats", Box::pin(gather(shared.clone()))).wait().ok()?;
        let clock = shared.clock();
        let at = clock.ns(clock.now());
        let mut page = Exposition::open_metrics();
        let driver = shared.driver.get().copied().unwrap_or("threads");
        let facts = [("version", env!("CARGO_PKG_VERSION")), ("driver", driver)];
        page.family(Info, "forebay_engine_info", "Release and driver.").sample(&facts, 1);
        page.family(Gauge, "forebay_pid", "Number of the process.").value(std::process::id());
        page.family(Gauge, "forebay_at_seconds", "A clock for differences.").value(at as f64 / 1e9);
        let mut degraded = page.family(Info, "forebay_degradation_info", "What works worse than it could.");
        for degradation in &*shared.lock_degraded() {
            degraded.sample(&[("reason", degradation.to_string())], 1);
        }
        page.stats(&stats);
        if with_files {
            let files = Pending::from_future("stats", Box::pin(gather_files(shared.clone()))).wait().ok()?;
            page.files(&files);
        }
        Some(page)
    }
}

/// Serves clients until the bell rings.
fn serve(listener: UnixListener, heard: &UnixStream, engine: &Weak<EngineShared>) {
    let mut clients: Vec<Client> = Vec::new();
    // Whether the last connection could not be accepted, for example for lack of descriptors.
    let mut refused = false;
    loop {
        let mut fds = vec![PollFd::new(heard, PollFlags::IN)];
        fds.extend(clients.iter().map(|client| PollFd::new(&client.stream, client.event())));
        let is_full = clients.len() == CLIENTS_MAX;
        if !is_full && !refused {
            fds.push(PollFd::new(&listener, PollFlags::IN));
        }
        let limit = if is_full { Some(&SILENCE_MAX) } else { refused.then_some(&REFUSED_PAUSE) };
        match poll(&mut fds, limit) {
            Ok(0) if is_full => {
                drop(clients.remove(0));
                continue;
            }
            Ok(_) => refused = false,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            return;
        }
        let mut at = 0;
        clients.retain_mut(|client| {
            at += 1;
            !ready[at] || client.go_on(engine)
        });
        if ready.get(at + 1) == Some(&true) {
            match listener.accept() {
                Ok((stream, _)) => clients.extend(Client::new(stream)),
                Err(error) => refused = error.kind() != io::ErrorKind::WouldBlock,
            }
        }
    }
}

/// Writes as much as the socket accepts, and returns the number of bytes. A disconnected reader causes an error and no signal,
/// however the program has set up SIGPIPE.
#[cfg(target_os = "linux")]
fn send(stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(stream, bytes, rustix::net::SendFlags::NOSIGNAL)?)
}

#[cfg(not(target_os = "linux"))]
fn send(mut stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    io::Write::write(&mut stream, bytes)
}
