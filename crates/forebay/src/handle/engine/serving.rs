//! What an engine tells of itself beyond its counts: each file's, and all of it to other processes.

use std::path::Path;
use std::sync::{Arc, PoisonError, Weak};

use super::Engine;
use super::stats::{gather, gather_files};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::pending::Pending;
use crate::io::stats::{FileStats, Stats};
use crate::ops::stats_server::{Bell, StatsServer};
use crate::reactor::engine_shared::EngineShared;

impl Engine {
    /// What was done with each file that is open and that a shard has worked with, sorted by path. Each shard is asked with
    /// one message, and copies what it knows: some 100 ns for each open file on the shard, so not for hot loops.
    ///
    /// # Errors
    /// As for [`stats`](Engine::stats).
    pub fn file_stats(&self) -> Pending<Vec<FileStats>> {
        if let Err(error) = self.check() {
            return Pending::ready(Err(error));
        }
        Pending::from_future("stats", Box::pin(gather_files(self.shared.clone())))
    }

    /// Tells this engine's statistics to whoever connects to a Unix socket at `path`, until the engine ends or the value
    /// is dropped; `forebay top PATH` shows them. Only the user that this process belongs to (and root) may connect.
    ///
    /// A thread of its own answers, and asks the shards when it is asked, as [`stats`](Engine::stats) does: nobody connected
    /// costs nothing. See [`StatsServer`] for what is said.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) when something other than a socket is at `path`, and for paths too long for a
    /// socket (108 bytes on Linux); `EADDRINUSE` when a living process serves there, whereas what a dead one left is replaced;
    /// the system's. [`Unsupported`](ErrorKind::Unsupported) in a simulated world.
    pub fn serve_stats(&self, path: impl AsRef<Path>) -> Result<StatsServer> {
        self.check()?;
        if self.shared.is_simulated() {
            let error = Error::new(ErrorKind::Unsupported, "stats socket");
            return Err(error.with_note("a simulated world has no sockets"));
        }
        StatsServer::start(&self.shared, path.as_ref())
    }
}

impl EngineShared {
    /// Rings when the engine ends; at once when it has ended.
    pub(crate) fn ring_at_end(&self, bell: &Arc<Bell>) {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers.retain(|known| known.strong_count() > 0);
        servers.push(Arc::downgrade(bell));
        drop(servers);
        if self.failure().is_some() {
            bell.ring();
        }
    }

    /// Everything that is told of the engine; `None` when it has ended.
    pub(crate) fn tell(shared: &Weak<EngineShared>) -> Option<Told> {
        let shared = shared.upgrade().filter(|shared| shared.failure().is_none())?;
        let stats = Pending::from_future("stats", Box::pin(gather(shared.clone()))).wait().ok()?;
        let files = Pending::from_future("stats", Box::pin(gather_files(shared.clone()))).wait().ok()?;
        let clock = shared.clock();
        Some(Told {
            at_ns: clock.ns(clock.now()),
            driver: shared.driver.get().copied().unwrap_or("threads"),
            degraded: shared.lock_degraded().iter().map(ToString::to_string).collect(),
            stats,
            files,
        })
    }
}

/// What is told of an engine at one moment.
pub(crate) struct Told {
    /// On a clock whose beginning means nothing.
    pub(crate) at_ns: u64,
    pub(crate) driver: &'static str,
    pub(crate) degraded: Vec<String>,
    pub(crate) stats: Stats,
    pub(crate) files: Vec<FileStats>,
}
