//! Degradations: parts that work worse than they could, as values instead of log lines.

use crate::base::priority::Priority;

/// A part that works worse than it could, the reason, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Degradation {
    /// The mechanism, such as `"registered buffers"`.
    pub what: String,
    /// The reason why it does not work here.
    pub why: String,
    /// The change that would make it work.
    pub remedy: String,
}

impl Degradation {
    pub(crate) fn new(
        what: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Degradation {
        Degradation { what: what.into(), why: why.into(), remedy: remedy.into() }
    }
}

impl std::fmt::Display for Degradation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} ({})", self.what, self.why, self.remedy)
    }
}

/// The state of an engine: its driver, and every degradation since it started.
///
/// ```
/// use forebay::{Config, Engine};
/// # fn main() -> forebay::Result<()> {
/// let engine = Engine::start(Config::new())?;
/// println!("{}", engine.health()); // one line, and one for each degradation with its remedy
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Health {
    /// `"uring"`, `"threads"`, or `"sim"` inside a simulated world.
    pub driver: &'static str,
    /// The number of shards that run.
    pub shards: usize,
    /// The interface of the rings that workers of Tokio runtimes have (feature `tokio`): `"uring"`, or `"aio"` where the kernel
    /// refuses io_uring. `None` without such rings: the first operation of a task makes them.
    pub worker_rings: Option<&'static str>,
    /// The priority that the shards' threads were granted of [`Config::priority`](crate::Config::priority):
    /// the weakest of them.
    pub priority: Priority,
    /// The processor that each shard's thread is pinned to, by the shard's number; empty if shards are not pinned
    /// ([`Config::placement`](crate::Config::placement)).
    pub processors: Vec<usize>,
    /// Every degradation, in the order in which it was noticed. Empty means that everything works as
    /// designed.
    pub degraded: Vec<Degradation>,
}

/// Writes a first line with the driver, the shards, their processors and the priority, then a line for each degradation with
/// its remedy.
impl std::fmt::Display for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = if self.shards == 1 { "" } else { "s" };
        write!(f, "{} shard{plural} on {}, ", self.shards, self.driver)?;
        if let Some(interface) = self.worker_rings {
            write!(f, "worker rings on {interface}, ")?;
        }
        if !self.processors.is_empty() {
            f.write_str("processors")?;
            self.processors.iter().try_for_each(|processor| write!(f, " {processor}"))?;
            f.write_str(", ")?;
        }
        write!(f, "priority {}", self.priority)?;
        if self.degraded.is_empty() {
            return f.write_str(", nothing degraded");
        }
        self.degraded.iter().try_for_each(|degradation| write!(f, "\n{degradation}"))
    }
}
