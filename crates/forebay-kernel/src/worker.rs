//! The thread that owns a session inside the kernel, and the way of walks to it and back.
//!
//! A ring of this kind belongs to one thread. A caller puts its walk into the inbox; the thread removes walks from it, starts as
//! many as the slots allow, and enters the kernel, which runs them. While the thread is in the kernel a new walk wakes it through a
//! descriptor that the loop watches. An idle thread is parked.

use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay::File;

use crate::engine_failure::{DETACHED, EngineFailure};
use crate::error::Error;
use crate::inside::Inside;
use crate::options::{EngineKind, Options};
use crate::process::Process;
use crate::program::Program;
use crate::reactor::Start;
use crate::session;

/// States of the thread.
const AWAKE: u8 = 0;
const IN_KERNEL: u8 = 1;
const PARKED: u8 = 2;

/// From this many walks in flight on, the thread waits for a quarter of them.
const MANY: u32 = 16;

/// The thread's handle. Dropping it ends the thread: walks that have not ended resolve with [`Error::Closed`]. A forked child has
/// no such thread, and its walks run in the reactor, which has the right error for them.
#[derive(Debug)]
pub(crate) struct Worker<T> {
    pub(crate) kind: EngineKind,
    process: Process,
    shared: Arc<WorkerState<T>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct WorkerState<T> {
    inbox: Mutex<VecDeque<Ticket<T>>>,
    state: AtomicU8,
    is_closed: AtomicBool,
    /// The session is no longer usable.
    is_broken: AtomicBool,
    poke: OwnedFd,
    enters: AtomicU64,
    steps: AtomicU64,
}

/// A walk on its way to the thread.
#[derive(Debug)]
struct Ticket<T> {
    start: Start,
    promise: Arc<Promise<T>>,
}

/// The place for a walk's outcome, and the waker to notify. A forked child inherits its parent's promises, which no thread
/// completes there.
#[derive(Debug)]
pub(crate) struct Promise<T> {
    process: Process,
    state: Mutex<State<T>>,
}

#[derive(Debug)]
enum State<T> {
    Waiting(Option<Waker>),
    Over(Result<T, WalkFailure>),
    Taken,
}

/// The reason why a walk has no result.
#[derive(Debug)]
pub(crate) enum WalkFailure {
    /// The walk failed.
    Failed(Error),
    /// The session broke, or cannot continue this walk: it may be run again on another engine.
    Broken,
}

impl From<Error> for WalkFailure {
    fn from(error: Error) -> WalkFailure {
        match error {
            Error::Elsewhere { .. } => WalkFailure::Broken,
            other => WalkFailure::Failed(other),
        }
    }
}

/// The future of one walk's end.
#[derive(Debug)]
pub(crate) struct Outcome<T>(Arc<Promise<T>>);

impl<T> Outcome<T> {
    pub(crate) fn of(promise: Arc<Promise<T>>) -> Outcome<T> {
        Outcome(promise)
    }
}

impl<T: Send + 'static> Worker<T> {
    /// Starts the thread, and waits until its session is open.
    ///
    /// # Errors
    /// Why the session cannot be opened, as a sentence without its full stop.
    pub(crate) fn start<P: Program<Output = T>>(
        program: &Arc<P>,
        file: &File,
        kind: EngineKind,
        options: &Options,
        broken: &Arc<EngineFailure>,
    ) -> Result<Worker<T>, String> {
        let (tell, told) = mpsc::channel();
        // A thread that spins in the kernel would not notice new walks.
        let options = Options { spin: Duration::ZERO, ..*options };
        let (program, file, broken) = (Arc::clone(program), file.clone(), Arc::clone(broken));
        let thread = thread::Builder::new()
            .name("forebay-kwalk".to_owned())
            .spawn(move || {
                let opened = Inside::open(kind, program.as_ref(), &file, &options).and_then(|mut session| {
                    session.watch();
                    let poke = session.poker().map_err(|error| error.to_string())?;
                    Ok((session, Arc::new(WorkerState::new(poke))))
                });
                match opened {
                    Ok((session, shared)) => {
                        if tell.send(Ok(Arc::clone(&shared))).is_ok() {
                            Thread { session, shared, program, broken, slots: Vec::new() }.run();
                        }
                    }
                    Err(why) => drop(tell.send(Err(why))),
                }
            })
            .map_err(|error| format!("there is no thread for the loop ({error})"))?;
        match told.recv() {
            Ok(Ok(shared)) => Ok(Worker { kind, process: Process::here(), shared, thread: Some(thread) }),
            Ok(Err(why)) => Err(why),
            Err(_) => Err("the loop's thread died".to_owned()),
        }
    }

    /// Sends a walk to the thread.
    pub(crate) fn send(&self, start: Start) -> Outcome<T> {
        let promise = Promise::new();
        self.put(std::iter::once((start, Arc::clone(&promise))));
        Outcome(promise)
    }

    /// Sends many walks to the thread with one message.
    pub(crate) fn send_many(&self, starts: &[Start]) -> Vec<Outcome<T>> {
        let promises: Vec<_> = starts.iter().map(|_| Promise::new()).collect();
        self.put(starts.iter().copied().zip(promises.iter().map(Arc::clone)));
        promises.into_iter().map(Outcome).collect()
    }

    fn put(&self, walks: impl Iterator<Item = (Start, Arc<Promise<T>>)>) {
        // Checked before the lock is acquired, which another thread may have held in the moment of the fork.
        if self.process.is_elsewhere() {
            return walks.for_each(|(_, promise)| promise.keep(Err(WalkFailure::Broken)));
        }
        let mut inbox = self.shared.inbox();
        if self.shared.is_broken.load(Ordering::SeqCst) {
            drop(inbox);
            walks.for_each(|(_, promise)| promise.keep(Err(WalkFailure::Broken)));
            return;
        }
        inbox.extend(walks.map(|(start, promise)| Ticket { start, promise }));
        drop(inbox);
        self.wake();
    }

    fn wake(&self) {
        // The inbox was filled before: if the thread falls asleep after this load, it checks the inbox first.
        match self.shared.state.load(Ordering::SeqCst) {
            IN_KERNEL => session::poke(&self.shared.poke),
            PARKED => {
                if let Some(thread) = &self.thread {
                    thread.thread().unpark();
                }
            }
            _ => {}
        }
    }

    /// Ends the thread, and waits until it has exited and its session is closed.
    pub(crate) fn close(mut self) {
        if self.process.is_elsewhere() {
            return;
        }
        let thread = self.thread.take();
        self.end();
        if let Some(thread) = thread {
            thread.thread().unpark();
            // The thread does not panic: the program's own code is called where that is caught.
            let _ = thread.join();
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.process.is_elsewhere() || self.shared.is_broken.load(Ordering::SeqCst)
    }

    /// Returns the number of calls into the kernel, and of runs of the program there.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.shared.enters.load(Ordering::Relaxed), self.shared.steps.load(Ordering::Relaxed))
    }
}

impl<T> Worker<T> {
    /// Signals the end to the thread in either of its sleeps; a parked thread needs an unpark besides.
    fn end(&self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        session::poke(&self.shared.poke);
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        if self.process.is_elsewhere() {
            // The thread's handle would be given back to a C library that knows no such thread; the descriptor wakes the parent's.
            return std::mem::forget(self.thread.take());
        }
        self.end();
        if let Some(thread) = self.thread.take() {
            // Not joined: a destructor never waits. The thread owns all that it uses.
            thread.thread().unpark();
        }
    }
}

impl<T> WorkerState<T> {
    fn new(poke: OwnedFd) -> WorkerState<T> {
        WorkerState {
            inbox: Mutex::new(VecDeque::new()),
            state: AtomicU8::new(AWAKE),
            is_closed: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            poke,
            enters: AtomicU64::new(0),
            steps: AtomicU64::new(0),
        }
    }

    fn inbox(&self) -> std::sync::MutexGuard<'_, VecDeque<Ticket<T>>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the thread sleeps now, unless it has work. Returns whether it may sleep.
    fn may_sleep(&self, state: u8) -> bool {
        self.state.store(state, Ordering::SeqCst);
        let may = self.inbox().is_empty() && !self.is_closed.load(Ordering::SeqCst);
        if !may {
            self.state.store(AWAKE, Ordering::SeqCst);
        }
        may
    }
}

/// The thread's own side.
struct Thread<P: Program> {
    session: Inside,
    shared: Arc<WorkerState<P::Output>>,
    program: Arc<P>,
    broken: Arc<EngineFailure>,
    /// The promise of the walk in each slot.
    slots: Vec<Option<Arc<Promise<P::Output>>>>,
}

impl<P: Program> Thread<P> {
    fn run(mut self) {
        self.slots.resize_with(self.session.slots(), || None);
        while !self.shared.is_closed.load(Ordering::SeqCst) {
            self.begin();
            if self.session.under_way() == 0 {
                if self.shared.may_sleep(PARKED) {
                    thread::park();
                    self.shared.state.store(AWAKE, Ordering::SeqCst);
                }
                continue;
            }
            // With all slots in use the thread may enter the kernel with walks in the inbox: they can wait for a slot.
            let may_enter = !self.session.has_room() || self.shared.may_sleep(IN_KERNEL);
            if may_enter && let Err(why) = self.enter() {
                self.broken.set(self.session.kind(), &why);
                self.shared.is_broken.store(true, Ordering::SeqCst);
                return self.give_up(|| WalkFailure::Broken);
            }
        }
        self.give_up(|| WalkFailure::Failed(Error::Closed));
    }

    /// Fills free slots from the inbox.
    fn begin(&mut self) {
        while self.session.has_room() {
            let Some(ticket) = self.shared.inbox().pop_front() else { return };
            let start = ticket.start;
            if let Some(slot) = self.session.begin(start.root, &start.scratch, start.hops_max)
                && let Some(place) = self.slots.get_mut(slot as usize)
            {
                *place = Some(ticket.promise);
            }
        }
    }

    fn enter(&mut self) -> Result<(), String> {
        let under_way = self.session.under_way();
        let ran = self.session.run(if under_way < MANY { 1 } else { under_way / 4 });
        self.shared.state.store(AWAKE, Ordering::SeqCst);
        self.session.take_poke();
        let (program, slots, mut is_detached) = (&self.program, &mut self.slots, false);
        self.session.drain(|ended, page| {
            is_detached |= ended.is_detached();
            // A panic of the program's own code must not end the thread, for which all walks wait. The reactor will meet the
            // same panic, and has an error for it.
            let result = ended.outcome.map_err(WalkFailure::from).and_then(|scratch| {
                catch_unwind(AssertUnwindSafe(|| program.end(&scratch, page)))
                    .map_err(|_| WalkFailure::Broken)
            });
            if let Some(promise) = slots.get_mut(ended.slot as usize).and_then(Option::take) {
                promise.keep(result);
            }
        });
        let (enters, steps) = self.session.counts();
        self.shared.enters.store(enters, Ordering::Relaxed);
        self.shared.steps.store(steps, Ordering::Relaxed);
        if is_detached { ran.and(Err(DETACHED.to_owned())) } else { ran }
    }

    fn give_up(mut self, why: impl Fn() -> WalkFailure) {
        for promise in self.slots.drain(..).flatten() {
            promise.keep(Err(why()));
        }
        let left: Vec<_> = self.shared.inbox().drain(..).collect();
        for ticket in left {
            ticket.promise.keep(Err(why()));
        }
    }
}

impl<T> Promise<T> {
    pub(crate) fn new() -> Arc<Promise<T>> {
        Arc::new(Promise { process: Process::here(), state: Mutex::new(State::Waiting(None)) })
    }

    pub(crate) fn keep(&self, result: Result<T, WalkFailure>) {
        let before = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *state, State::Over(result))
        };
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> Future for Outcome<T> {
    type Output = Result<T, WalkFailure>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, WalkFailure>> {
        let promise = &self.0;
        if promise.process.is_elsewhere() {
            return Poll::Ready(Err(WalkFailure::Broken));
        }
        let mut state = promise.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Taken) {
            State::Over(result) => Poll::Ready(result),
            before @ State::Waiting(_) => {
                *state = State::Waiting(Some(context.waker().clone()));
                drop(state);
                // Without the lock: the last reference to the session's handle may be a waker's.
                drop(before);
                Poll::Pending
            }
            // Polled after its end.
            State::Taken => Poll::Ready(Err(WalkFailure::Failed(Error::Closed))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    /// The waker of a task that has the last handle of the walks, and ends them as it is dropped.
    struct Ends(Arc<Promise<u32>>);

    impl Wake for Ends {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.keep(Err(WalkFailure::Failed(Error::Closed)));
        }
    }

    /// A walk's future went from a task that had ended to another one, and its first poll there waited for its own lock without an end.
    #[test]
    fn a_waker_is_dropped_without_the_lock() {
        let promise = Promise::new();
        let mut outcome = Outcome::of(Arc::clone(&promise));
        let first = Waker::from(Arc::new(Ends(promise)));
        assert!(Pin::new(&mut outcome).poll(&mut Context::from_waker(&first)).is_pending());
        drop(first);
        let mut second = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut outcome).poll(&mut second).is_pending());
        let ended = Pin::new(&mut outcome).poll(&mut second);
        assert!(matches!(ended, Poll::Ready(Err(WalkFailure::Failed(Error::Closed)))), "{ended:?}");
    }
}
