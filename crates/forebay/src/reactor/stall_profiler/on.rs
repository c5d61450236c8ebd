//! The watch on systems with back-traces.

mod modules;
mod sample;
mod signal;
mod symbols;
mod unwind;
mod watcher;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::handover::Handover;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::shard::clock::Ticks;
use sample::Sample;

/// An engine's watcher and the reports of its shards. The watcher ends with the last shard, or with this
/// value.
pub(crate) struct StallProfiler(Arc<ProfilerState>);

/// The state that shards and watcher share.
struct ProfilerState {
    shards: Box<[Beat]>,
    /// A poll that is seen for longer than this is sampled.
    bound: Duration,
    alarm: Arc<Alarm>,
    ending: AtomicBool,
}

/// The means by which the first poll after idleness wakes the watcher.
///
/// A shard stores its poll and then loads `asleep`; the watcher stores `asleep` and then checks the polls. So one of them sees the
/// other, if neither processor keeps its store back. The watcher lets the kernel ensure that on all processors (membarrier(2)),
/// which spares each poll a barrier.
#[derive(Default)]
struct Alarm {
    asleep: AtomicBool,
    watcher: OnceLock<Thread>,
}

/// One shard's side: the reports of its executor, and the results for it.
#[derive(Clone)]
pub(crate) struct Beat(Arc<Pulse>);

struct Pulse {
    /// Odd while a poll runs, and then its number; changed by the shard's thread only.
    now: CachePadded<AtomicU64>,
    /// The last sampled poll; changed by the shard's thread only, in the handler.
    sampled: AtomicU64,
    /// The time at which the watcher first saw the poll that it requested a sample of last.
    since: AtomicU64,
    /// The place that a handler writes to; set from the time when the shard's thread sits.
    sample: OnceLock<Handover<Sample>>,
    /// The thread to signal. Locked during the signal, so that the thread does not end before it is sent.
    sitter: Mutex<Option<Sitter>>,
    /// The watcher's findings, by the number of the poll.
    findings: Mutex<Vec<(u64, Arc<str>)>>,
    alarm: Arc<Alarm>,
}

#[derive(Clone, Copy)]
struct Sitter {
    thread: i32,
    /// Whether the thread has the signal blocked. The program wanted that, and it stays so.
    is_deaf: bool,
}

/// A shard's thread as long as it may be sampled; made and dropped on it.
pub(crate) struct Seat {
    pulse: Option<Arc<Pulse>>,
    /// Makes the seat not `Send`: the handler finds the shard by the thread.
    _here: std::marker::PhantomData<*const ()>,
}

const WHAT: &str = "back-traces";

impl StallProfiler {
    pub(crate) fn new(shards: usize, bound: Duration) -> StallProfiler {
        let alarm = Arc::<Alarm>::default();
        let shards = (0..shards).map(|_| Beat::new(&alarm)).collect();
        StallProfiler(Arc::new(ProfilerState { shards, bound, alarm, ending: AtomicBool::new(false) }))
    }

    pub(crate) fn beat(&self, shard: usize) -> Beat {
        self.0.shards[shard].clone()
    }

    /// Makes the calling thread the shard's: from here on it may be sampled, until the seat is dropped.
    pub(crate) fn sit(&self, shard: usize) -> Seat {
        let pulse = &self.0.shards[shard].0;
        let Some(sample) = sample::own_stack().and_then(Sample::new) else {
            return Seat { pulse: None, _here: Default::default() };
        };
        pulse.sample.get_or_init(|| Handover::new(sample));
        signal::set_seat(Arc::as_ptr(pulse));
        *pulse.lock_sitter() = Some(Sitter { thread: signal::this_thread(), is_deaf: signal::is_blocked() });
        Seat { pulse: Some(pulse.clone()), _here: Default::default() }
    }

    /// Starts the watcher, if the signal is free to use; otherwise the engine's health reports it. Called
    /// when every shard sits.
    pub(crate) fn start(&self, engine: &Arc<EngineShared>) {
        if let Err(why) = signal::claim() {
            let remedy = "leave SIGURG to its default; Stats::stalls has the names all the same";
            return engine.degrade_once(WHAT, &why, remedy);
        }
        for Beat(pulse) in &self.0.shards {
            let sitter = *pulse.lock_sitter();
            let (why, remedy) = match sitter {
                Some(Sitter { is_deaf: false, .. }) => continue,
                Some(_) => {
                    ("SIGURG is blocked in the thread that started the engine", "unblock it there first")
                }
                None => (
                    "there is no memory for the copy of a stack",
                    "raise what this process may use (ulimit -v)",
                ),
            };
            return engine.degrade_once(WHAT, why, remedy);
        }
        let (shared, weak) = (self.0.clone(), Arc::downgrade(engine));
        let body = move || watcher::Watcher::new(shared, weak).run();
        match std::thread::Builder::new().name("forebay-watch".into()).spawn(body) {
            // It makes itself known.
            Ok(_) => {}
            Err(error) => {
                let why = format!("no thread for the watcher: {error}");
                engine.degrade_once(WHAT, &why, "raise the limit of threads (ulimit -u)");
            }
        }
    }

    /// Notifies the watcher to end, without waiting for it.
    pub(crate) fn end(&self) {
        self.0.ending.store(true, Ordering::SeqCst);
        // Against the fence in `Watcher::run`: this sees the watcher, or the watcher sees the end.
        fence(Ordering::SeqCst);
        if let Some(watcher) = self.0.alarm.watcher.get() {
            watcher.unpark();
        }
    }
}

impl Drop for StallProfiler {
    fn drop(&mut self) {
        self.end();
    }
}

impl Beat {
    fn new(alarm: &Arc<Alarm>) -> Beat {
        Beat(Arc::new(Pulse {
            now: CachePadded::default(),
            sampled: AtomicU64::new(0),
            since: AtomicU64::new(0),
            sample: OnceLock::new(),
            sitter: Mutex::new(None),
            findings: Mutex::default(),
            alarm: alarm.clone(),
        }))
    }

    /// Called before each poll. Costs two loads and a store; after 0.1 s without polls in the whole engine, a system call.
    #[inline]
    pub(crate) fn poll_begins(&self) {
        // The next odd number, also after a poll that ended by a panic.
        let next = self.0.now.load(Ordering::Relaxed).wrapping_add(2) | 1;
        self.0.now.store(next, Ordering::Relaxed);
        // For the handler, on this very thread: the store is not moved into the poll, nor the next one. And before the load below, see
        // `Alarm`.
        compiler_fence(Ordering::SeqCst);
        if self.0.alarm.asleep.load(Ordering::Relaxed) {
            self.0.alarm.ring();
        }
    }

    #[inline]
    pub(crate) fn poll_ends(&self) {
        compiler_fence(Ordering::SeqCst);
        let now = self.0.now.load(Ordering::Relaxed);
        self.0.now.store(now & !1, Ordering::Relaxed);
    }

    /// Returns, after a poll's end on the shard's thread, its number and the time when it was first seen, if it was sampled. The
    /// sample's text is among the [`findings`](Self::findings) soon.
    #[inline]
    pub(crate) fn sampled(&self) -> Option<(u64, Ticks)> {
        let poll = self.0.now.load(Ordering::Relaxed) | 1;
        let sampled = self.0.sampled.load(Ordering::Relaxed) == poll;
        sampled.then(|| (poll, self.0.since.load(Ordering::Relaxed)))
    }

    /// Passes the findings since the last call to `take`: the number of a poll and its task's stack.
    pub(crate) fn findings(&self, mut take: impl FnMut(u64, Arc<str>)) {
        let findings = std::mem::take(&mut *self.0.lock_findings());
        findings.into_iter().for_each(|(poll, text)| take(poll, text));
    }
}

impl Pulse {
    /// Returns the poll that runs now, as far as one thread sees of another.
    fn running(&self) -> Option<u64> {
        Some(self.now.load(Ordering::Relaxed)).filter(|now| now & 1 == 1)
    }

    /// Makes the sample if it is requested and its poll still runs. Called in the handler, on the shard's thread.
    ///
    /// # Safety
    /// `registers` are those of this thread's, which does not run until this returns.
    unsafe fn take(&self, registers: sample::Registers) {
        let (Some(poll), Some(sample)) = (self.running(), self.sample.get()) else { return };
        // SAFETY: the caller promises that `registers` are this thread's.
        if sample.write(poll, |sample| unsafe { sample.fill(registers) }) {
            self.sampled.store(poll, Ordering::Relaxed);
        }
    }

    fn lock_sitter(&self) -> MutexGuard<'_, Option<Sitter>> {
        self.sitter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_findings(&self) -> MutexGuard<'_, Vec<(u64, Arc<str>)>> {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Alarm {
    #[cold]
    fn ring(&self) {
        if self.asleep.swap(false, Ordering::AcqRel)
            && let Some(watcher) = self.watcher.get()
        {
            watcher.unpark();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(pulse) = self.pulse.take() {
            signal::set_seat(std::ptr::null());
            *pulse.lock_sitter() = None;
        }
    }
}
