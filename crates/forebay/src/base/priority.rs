//! The priority of the shards' threads in the kernel's scheduler, and how a runtime's workers give way to
//! them.

mod gate;
#[cfg_attr(not(target_os = "linux"), path = "priority/elsewhere.rs")]
mod kernel;

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

pub(crate) use gate::{Gate, let_others_run};
pub(crate) use kernel::Before;

use crate::base::health::Degradation;

/// The priority with which a shard's thread gets a processor when it has work and other threads want the
/// processors, too.
///
/// A storage thread sleeps most of the time and runs for microseconds. With threads that never sleep, such as the busy workers of
/// an async runtime, the kernel by default lets it wait for a scheduler tick or more, 1 to 4 ms each, at every wake-up. The device
/// completes a request in a hundredth of that. [`Health::priority`](crate::Health::priority) reports the priority that was granted.
/// Values compare by strength.
///
/// ```
/// use forebay::{Config, Engine, Priority};
/// # fn main() -> forebay::Result<()> {
/// let engine = Engine::start(Config::new().priority(Priority::Prompt))?;
/// if engine.health().priority < Priority::Prompt {
///     eprintln!("{:?}", engine.health().degraded); // what was refused, why, and what would help
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Priority {
    /// The priority of the thread that starts the engine. No system call is made.
    #[default]
    Default,
    /// A time slice of 100 us instead of the usual 1 to 4 ms (`sched_runtime` of sched_setattr(2), Linux 6.12 or later). The
    /// scheduler (EEVDF) prefers a thread with a short slice to threads with long slices, as long as it has not exceeded its share.
    /// Needs no privilege.
    ///
    /// It works fully where the busy threads give way by [`polite_worker`]. Without that, a shard that has
    /// used up its share waits like every other thread.
    Prompt,
    /// `SCHED_FIFO` with priority 1: the shard runs as soon as it can run, before every ordinary thread.
    /// Needs `CAP_SYS_NICE` or `RLIMIT_RTPRIO` of at least 1 (`ulimit -r`, `LimitRTPRIO=` of systemd).
    /// Without it the shards get [`Prompt`](Priority::Prompt), which
    /// [`Engine::health`](crate::Engine::health) reports.
    ///
    /// No ordinary thread runs on a processor while such a thread does. So the shard never spins
    /// ([`Config::spin`](crate::Config::spin) means nothing), and it takes a lock where it would otherwise
    /// wait for another thread's next instruction. Tasks on it must not compute for long: they would hold up
    /// the program until the kernel steps in (by default it leaves ordinary threads 5 % of a processor).
    /// Where `RLIMIT_RTTIME` is set, it limits the shards as well.
    RealTime,
}

impl Priority {
    fn from_rank(rank: u8) -> Priority {
        [Priority::Default, Priority::Prompt].get(usize::from(rank)).copied().unwrap_or(Priority::RealTime)
    }
}

impl fmt::Display for Priority {
    /// Writes `default`, `prompt` or `real-time`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Priority::Default => "default",
            Priority::Prompt => "prompt",
            Priority::RealTime => "real-time",
        })
    }
}

/// The priority that each shard was granted.
#[derive(Debug)]
pub(crate) struct Priorities(Box<[AtomicU8]>);

impl Priorities {
    pub(crate) fn new(shards: usize) -> Priorities {
        Priorities((0..shards).map(|_| AtomicU8::new(Priority::Default as u8)).collect())
    }

    pub(crate) fn set(&self, shard: usize, priority: Priority) {
        if let Some(rank) = self.0.get(shard) {
            rank.store(priority as u8, Ordering::Relaxed);
        }
    }

    pub(crate) fn of(&self, shard: usize) -> Priority {
        self.0.get(shard).map_or(Priority::Default, |rank| Priority::from_rank(rank.load(Ordering::Relaxed)))
    }

    /// Returns the weakest of all shards' priorities.
    pub(crate) fn weakest(&self) -> Priority {
        (0..self.0.len()).map(|shard| self.of(shard)).min().unwrap_or_default()
    }
}

/// Gives the calling thread, a shard's that has no ring yet, as much of `asked` as the kernel allows. Threads
/// that it starts, the kernel's workers of its ring among them, inherit it. Returns the priority granted, and
/// reports the rest to `degrade`.
pub(crate) fn raise_thread(asked: Priority, mut degrade: impl FnMut(Degradation)) -> Priority {
    if asked == Priority::RealTime {
        match kernel::real_time() {
            Ok(()) => return Priority::RealTime,
            Err(refusal) => degrade(Degradation::new(
                "real-time priority",
                format!("the kernel refused SCHED_FIFO: {refusal}"),
                "grant CAP_SYS_NICE, or RLIMIT_RTPRIO of at least 1 (ulimit -r 1, LimitRTPRIO=1 of systemd)",
            )),
        }
    }
    if asked == Priority::Default {
        return Priority::Default;
    }
    match kernel::prompt() {
        Ok(kernel::PromptThread { heavier: None }) => Priority::Prompt,
        Ok(kernel::PromptThread { heavier: Some(nice) }) => {
            degrade(Degradation::new(
                "nice value of the shards",
                format!("the thread that started the engine has nice {nice}, which the shards inherited"),
                "start the engine before the runtime, or on a thread that is not one of its polite workers",
            ));
            Priority::Prompt
        }
        Err(refusal) => {
            degrade(Degradation::new(
                "short time slice",
                format!("the kernel gave none: {refusal}"),
                "use Linux 6.12 or later, and a seccomp profile that permits sched_setattr",
            ));
            Priority::Default
        }
    }
}

/// Makes the calling thread yield to storage threads: its nice value becomes +10, which needs no privilege.
///
/// For the workers of a runtime, with shards of [`Priority::Prompt`]; with [`Priority::RealTime`] it is not needed. A worker
/// without competition for its processor computes as fast as before. Where threads compete, one with nice +10 has about a tenth of
/// the weight of one with 0. So the shard, which sleeps most of the time, is never found to have had more than its share, and its
/// short slice then lets it preempt the worker as soon as it wakes. More would not help, and +19 does harm: a thread of such little
/// weight may hold a lock that the shard or the program waits for, and not run for long.
///
/// The value is this thread's alone, but threads that it starts inherit it: start the engine elsewhere, such
/// as in `main` before the runtime. A thread with that value or a higher one stays as it is, so calling twice
/// changes nothing. It cannot be undone without privilege. Where nice values belong to whole processes (not
/// on Linux) it does nothing.
///
/// ```
/// use forebay::{Config, Engine, Priority};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = Engine::start(Config::new().priority(Priority::Prompt))?; // before the runtime: not a polite thread
/// let runtime = tokio::runtime::Builder::new_multi_thread()
///     .enable_all()
///     .on_thread_start(forebay::polite_worker)
///     .build()?;
/// runtime.block_on(async {
///     // ... tasks that compute, and use the engine
/// });
/// # drop(runtime);
/// # engine.close().wait()?;
/// # Ok(()) }
/// ```
pub fn polite_worker() {
    kernel::lower_nice(POLITE_NICE);
}

/// Nice value of a polite worker.
const POLITE_NICE: i32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_come_back_and_the_weakest_counts() {
        for priority in [Priority::Default, Priority::Prompt, Priority::RealTime] {
            assert_eq!(Priority::from_rank(priority as u8), priority);
        }
        let granted = Priorities::new(3);
        assert_eq!(granted.weakest(), Priority::Default);
        (0..3).for_each(|shard| granted.set(shard, Priority::RealTime));
        assert_eq!(granted.weakest(), Priority::RealTime);
        granted.set(1, Priority::Prompt);
        assert_eq!((granted.weakest(), granted.of(2)), (Priority::Prompt, Priority::RealTime));
        granted.set(3, Priority::Default);
        assert_eq!((granted.weakest(), granted.of(3)), (Priority::Prompt, Priority::Default));
    }
}
