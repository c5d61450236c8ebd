//! Why a run failed.

use std::fmt;
use std::time::Duration;

use crate::explore::replay_command;

/// The event that ended a run before its program did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// A power cut, as the program or the world's owner had asked; see [`World::reboot`](super::World::reboot).
    PowerCut,
    /// The program, or a task of it, panicked; the message is in the text.
    Panicked,
    /// Nothing can happen any more, and the program waits: for a task that ended without an answer, or for something
    /// outside of the world, as a timer of Tokio's or another thread.
    Deadlock,
    /// The world made more steps than [`World::steps_max`](super::World::steps_max): something runs in circles.
    Endless,
    /// Something of the world was woken by another thread, so that no seed could repeat the run.
    ForeignThread,
    /// The core broke its rules: memory or a file was used by two operations, or after its return. A bug in Forebay, worth
    /// reporting with the seed.
    Violation,
    /// The power is off; [`World::reboot`](super::World::reboot) is needed first.
    Off,
    /// It could not start: another world runs on this thread, or the engine's settings were refused.
    NotStarted,
}

/// The reason why a run ended before its program did; the text names the seed and how to repeat the run.
#[derive(Clone, Debug)]
pub struct Failure {
    kind: FailureKind,
    text: String,
    seed: u64,
    at: Duration,
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, text: impl Into<String>, seed: u64, at_ns: u64) -> Failure {
        Failure { kind, text: text.into(), seed, at: Duration::from_nanos(at_ns) }
    }

    /// Returns the kind of event that ended it.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Returns whether this is a power cut, which most callers have requested.
    pub fn is_power_cut(&self) -> bool {
        self.kind == FailureKind::PowerCut
    }

    /// Returns the seed of the world.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the virtual time at which it happened, since the world's start.
    pub fn at(&self) -> Duration {
        self.at
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (seed {}, {:?} into the world's time", self.text, self.seed, self.at)?;
        match self.kind {
            FailureKind::PowerCut | FailureKind::Off | FailureKind::NotStarted => f.write_str(")"),
            _ => write!(f, "; to repeat it: {})", replay_command(self.seed)),
        }
    }
}

impl std::error::Error for Failure {}
