//! The thread that checks the shards.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::unwind::Unwinder;
use super::{Beat, ProfilerState, Pulse, WHAT, signal, symbols};
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::shard::clock::Clock;

/// The interval between two checks, while polls run, is half of the bound within these limits.
const LOOK_MIN: Duration = Duration::from_millis(1);
const LOOK_MAX: Duration = Duration::from_secs(1);
/// After this long without a new poll on any shard the watcher sleeps until one wakes it.
const AWAKE: Duration = Duration::from_millis(100);
/// While a poll runs it still checks this often, and where the kernel has no membarrier(2): there a poll that starts at the same
/// time may not see that it should wake the watcher.
const ASLEEP: Duration = Duration::from_secs(1);

pub(super) struct Watcher {
    shared: Arc<ProfilerState>,
    engine: Weak<EngineShared>,
    seen: Vec<Observation>,
    unwinder: Unwinder,
}

/// The state of a shard at the last check.
struct Observation {
    beat: u64,
    since: Instant,
    /// Whether a sample of this very poll was requested.
    asked: bool,
}

impl Watcher {
    pub(super) fn new(shared: Arc<ProfilerState>, engine: Weak<EngineShared>) -> Watcher {
        let seen = shared
            .shards
            .iter()
            .map(|_| Observation { beat: 0, since: Instant::now(), asked: false })
            .collect();
        Watcher { shared, engine, seen, unwinder: Unwinder::new() }
    }

    pub(super) fn run(mut self) {
        let every = (self.shared.bound / 2).clamp(LOOK_MIN, LOOK_MAX);
        let has_barrier = register_barrier();
        let _ = self.shared.alarm.watcher.set(std::thread::current());
        fence(Ordering::SeqCst);
        // No poll yet, so it sleeps immediately.
        let mut active = None;
        while !self.shared.ending.load(Ordering::SeqCst) {
            let now = Instant::now();
            let Some(news) = self.look(now) else { return };
            if news {
                // After the look: names for a sample may need longer than the whole time.
                active = Some(Instant::now());
            }
            if active.is_some_and(|active| active.elapsed() < AWAKE) {
                self.shared.alarm.asleep.store(false, Ordering::SeqCst);
                // An end notified since the check above has left a token: this does not wait then.
                std::thread::park_timeout(every);
                continue;
            }
            self.shared.alarm.asleep.store(true, Ordering::SeqCst);
            let is_certain = has_barrier && barrier();
            // A poll that started before the barrier is seen here; a later poll sees that it must wake this thread.
            if self.has_news() {
                self.shared.alarm.asleep.store(false, Ordering::SeqCst);
                active = Some(Instant::now());
                continue;
            }
            if is_certain && !self.has_runner() {
                std::thread::park();
            } else {
                std::thread::park_timeout(ASLEEP);
            }
        }
    }

    /// Returns whether a poll runs, whose end wakes no thread and may leave a sample.
    fn has_runner(&self) -> bool {
        self.seen.iter().any(|seen| seen.beat & 1 == 1)
    }

    /// Returns whether a shard started a poll since the last check, or runs one that is not sampled yet.
    fn has_news(&self) -> bool {
        let has_news = |(Beat(pulse), seen): (&Beat, &Observation)| {
            let beat = pulse.now.load(Ordering::Relaxed);
            beat != seen.beat || (beat & 1 == 1 && !seen.asked)
        };
        self.shared.shards.iter().zip(&self.seen).any(has_news)
    }

    /// Checks every shard once. Returns whether anything requires the next check soon, or `None` when the
    /// signal is not ours any more.
    fn look(&mut self, now: Instant) -> Option<bool> {
        let mut news = false;
        for shard in 0..self.seen.len() {
            let Beat(pulse) = &self.shared.shards[shard];
            let pulse = pulse.clone();
            news |= self.take_sample(shard, &pulse);
            let beat = pulse.now.load(Ordering::Relaxed);
            let seen = &mut self.seen[shard];
            if seen.beat != beat {
                *seen = Observation { beat, since: now, asked: false };
                news = true;
            } else if beat & 1 == 1 && !seen.asked {
                news = true;
                if now.duration_since(seen.since) > self.shared.bound {
                    seen.asked = true;
                    let clock = Clock::system();
                    let held = u64::try_from(seen.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
                    pulse.since.store(clock.now().wrapping_sub(clock.ticks(held)), Ordering::Relaxed);
                    if !ask(&pulse, beat) {
                        self.report_lost();
                        return None;
                    }
                }
            }
        }
        Some(news)
    }

    /// Makes a text of the sample that a shard has left, if any. Returns whether it found one.
    fn take_sample(&mut self, shard: usize, pulse: &Pulse) -> bool {
        let Some(sample) = pulse.sample.get() else { return false };
        let unwinder = &mut self.unwinder;
        let taken = sample.read(|poll, sample| {
            unwinder.refresh();
            (poll, unwinder.places(sample))
        });
        let Some((poll, places)) = taken else { return false };
        if let Some(text) = symbols::text(&places, &self.unwinder) {
            #[cfg(feature = "tracing")]
            tracing::warn!(shard, back_trace = &*text, "a task holds its shard");
            #[cfg(not(feature = "tracing"))]
            let _ = shard;
            pulse.lock_findings().push((poll, text));
        }
        true
    }

    #[cold]
    fn report_lost(&self) {
        if let Some(engine) = self.engine.upgrade() {
            let why = "the program handles SIGURG itself since the engine was started";
            engine.degrade_once(
                WHAT,
                why,
                "leave SIGURG to the engine; Stats::stalls has the names all the same",
            );
        }
    }
}

/// Makes this process known to membarrier(2), so that [`barrier`] is fast. Returns whether the kernel has it.
fn register_barrier() -> bool {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
}

/// Has every thread of this process pass a full memory barrier. Returns whether that was done.
fn barrier() -> bool {
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier(2) has no pointer arguments.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Requests a sample of a poll. Returns false when the signal belongs to other code by now. A thread that
/// cannot respond (it sleeps in the kernel, or blocks the signal) is not waited for; the request stands until
/// it does or until another poll's sample is requested.
fn ask(pulse: &Pulse, poll: u64) -> bool {
    if !signal::is_ours() {
        return false;
    }
    let sitter = pulse.lock_sitter();
    if let (Some(sitter), Some(sample)) = (*sitter, pulse.sample.get())
        && sample.ask(poll)
    {
        signal::ask(sitter.thread);
    }
    true
}
