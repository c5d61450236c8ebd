//! A session of the module on the ring of one of the engine's shards.
//!
//! It has no thread. A walk is one command on the shard's ring: a task on that shard submits it directly, all others with one
//! message for all walks that wait at that moment. The shard copies the result out of the walk's slot when the command has ended,
//! and starts the next waiting walk in it. Futures play no part in this: an unpolled or dropped future keeps no slot.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use forebay::{CommandEntry, CommandRing, CommandShard, Commands, File};

use crate::engine_failure::{DETACHED, EngineFailure};
use crate::error::Error;
use crate::layout as at;
use crate::module::{Bound, command};
use crate::options::{EngineKind, Options};
use crate::program::Program;
use crate::reactor::Start;
use crate::slot;
use crate::worker::{Outcome, Promise, WalkFailure};

/// The session's handle. Dropping it ends the session: walks that have not ended resolve with [`Error::Closed`].
pub(crate) struct OnShard<P: Program>(Arc<Session<P>>);

struct Session<P: Program> {
    program: Arc<P>,
    shard: CommandShard,
    /// `None` once the session ends.
    kernel: Option<Kernel>,
    device: RawFd,
    state: Mutex<State<P::Output>>,
    commands: AtomicU64,
    broken: Arc<EngineFailure>,
    gone: Arc<ReleaseSignal>,
}

/// All that the session has in the kernel.
struct Kernel {
    bound: Bound,
    _mark: ReleaseGuard,
}

struct State<T> {
    free: Vec<u32>,
    /// The promise of the walk in each slot.
    running: Vec<Option<Arc<Promise<T>>>>,
    /// Walks that have no slot yet, in order.
    waiting: VecDeque<(Start, Arc<Promise<T>>)>,
    /// The shard has been called, and has not run yet.
    is_called: bool,
    /// The reason why walks no longer start.
    end: Option<End>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    Broken,
}

impl End {
    fn lost(self) -> WalkFailure {
        match self {
            End::Closed => WalkFailure::Failed(Error::Closed),
            End::Broken => WalkFailure::Broken,
        }
    }
}

/// Walks that have not started, each with the reason why it cannot, unless its future was dropped.
struct UnstartedWalks<T>(Vec<(Arc<Promise<T>>, Option<WalkFailure>)>);

impl<T> UnstartedWalks<T> {
    /// Without the session's lock: the last reference to the session's handle may be a waker's.
    fn let_go(self) {
        for (promise, lost) in self.0 {
            if let Some(lost) = lost {
                promise.keep(Err(lost));
            }
        }
    }
}

/// Set when nothing of the session is left in the kernel, or never will be freed.
#[derive(Default)]
struct ReleaseSignal(Mutex<bool>, Condvar);

struct ReleaseGuard(Arc<ReleaseSignal>);

impl<P: Program> OnShard<P> {
    /// Opens a session for a file on this shard.
    ///
    /// # Errors
    /// Why this engine is not possible here, as a sentence without its full stop.
    pub(crate) fn open(
        program: &Arc<P>,
        file: &File,
        shard: CommandShard,
        options: &Options,
        broken: &Arc<EngineFailure>,
    ) -> Result<OnShard<P>, String> {
        let bound = Bound::open(program.as_ref(), file, options.depth, Duration::ZERO)?;
        let (device, slots, gone) =
            (bound.device.as_raw_fd(), bound.shape.slots, Arc::new(ReleaseSignal::default()));
        Ok(OnShard(Arc::new(Session {
            program: Arc::clone(program),
            shard,
            kernel: Some(Kernel { bound, _mark: ReleaseGuard(Arc::clone(&gone)) }),
            device,
            state: Mutex::new(State {
                free: (0..slots as u32).rev().collect(),
                running: (0..slots).map(|_| None).collect(),
                waiting: VecDeque::new(),
                is_called: false,
                end: None,
            }),
            commands: AtomicU64::new(0),
            broken: Arc::clone(broken),
            gone,
        })))
    }

    pub(crate) fn send(&self, start: Start) -> Outcome<P::Output> {
        let promise = Promise::new();
        self.put(std::iter::once((start, Arc::clone(&promise))));
        Outcome::of(promise)
    }

    pub(crate) fn send_many(&self, starts: &[Start]) -> Vec<Outcome<P::Output>> {
        let promises: Vec<_> = starts.iter().map(|_| Promise::new()).collect();
        self.put(starts.iter().copied().zip(promises.iter().map(Arc::clone)));
        promises.into_iter().map(Outcome::of).collect()
    }

    fn put(&self, walks: impl Iterator<Item = (Start, Arc<Promise<P::Output>>)>) {
        let session = &self.0;
        // A forked child has neither the shard nor the memory. The reactor fails its walks with the right error. Checked before the
        // lock is acquired, which the shard may have held in the moment of the fork.
        let refuse = |end: End| move |(_, promise): (Start, Arc<Promise<_>>)| promise.keep(Err(end.lost()));
        if session.shard.is_forked() {
            return walks.for_each(refuse(End::Broken));
        }
        let mut state = session.state();
        if let Some(end) = state.end {
            drop(state);
            return walks.for_each(refuse(end));
        }
        state.waiting.extend(walks);
        drop(state);
        if session.shard.here(|ring| session.begin(ring)).is_none() {
            session.call();
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.0.shard.is_forked() || self.0.state().end == Some(End::Broken)
    }

    /// Returns the number of commands so far.
    pub(crate) fn commands(&self) -> u64 {
        self.0.commands.load(Ordering::Relaxed)
    }

    /// Ends the session, and waits until the kernel has released the file. On a shard, which must not wait for itself, program and
    /// memory are released a little later.
    pub(crate) fn close(self) {
        if self.0.shard.is_forked() {
            return;
        }
        let gone = Arc::clone(&self.0.gone);
        self.0.end(End::Closed);
        if let Some(kernel) = &self.0.kernel {
            kernel.bound.device.unbind();
        }
        drop(self);
        if forebay::shard::current().is_none() {
            gone.wait();
        }
    }
}

impl<P: Program> Drop for OnShard<P> {
    fn drop(&mut self) {
        if !self.0.shard.is_forked() {
            self.0.end(End::Closed);
        }
    }
}

impl<P: Program> Session<P> {
    fn state(&self) -> MutexGuard<'_, State<P::Output>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts waiting walks while slots are free; on the shard.
    fn begin(self: &Arc<Self>, ring: &CommandRing<'_>) {
        let left = self.begin_in(&mut self.state(), ring);
        left.let_go();
    }

    /// Does the same with the lock held. Returns the walks that have not started: their wakers run, and are dropped, without the
    /// lock.
    fn begin_in(
        self: &Arc<Self>,
        state: &mut State<P::Output>,
        ring: &CommandRing<'_>,
    ) -> UnstartedWalks<P::Output> {
        let mut left = UnstartedWalks(Vec::new());
        let Some(kernel) = &self.kernel else { return left };
        if state.waiting.is_empty() || state.free.is_empty() {
            return left;
        }
        let owner: Arc<dyn Commands> = self.clone();
        while let Some(&number) = state.free.last()
            && let Some((start, promise)) = state.waiting.pop_front()
        {
            // Its future was dropped.
            if Arc::strong_count(&promise) == 1 {
                left.0.push((promise, None));
                continue;
            }
            slot::fill(&kernel.bound.memory, number, start.root, &start.scratch, start.hops_max);
            match ring.begin(&owner, number) {
                Ok(()) => {
                    state.free.pop();
                    if let Some(place) = state.running.get_mut(number as usize) {
                        *place = Some(promise);
                    }
                    self.commands.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => left.0.push((promise, Some(WalkFailure::Failed(Error::Core(error))))),
            }
        }
        left
    }

    /// Calls the shard for the waiting walks, unless it will run anyway: it was called, or a walk ends while all slots are in use.
    fn call(self: &Arc<Self>) {
        {
            let mut state = self.state();
            if state.is_called || state.waiting.is_empty() || state.free.is_empty() {
                return;
            }
            state.is_called = true;
        }
        self.shard.call(self.clone());
    }

    /// Ends the session for a reason that is not its owner's.
    fn break_off(&self, why: &str) {
        self.broken.set(EngineKind::Module, why);
        self.end(End::Broken);
    }

    /// No walk starts any more, and walks that have not ended resolve.
    fn end(&self, end: End) {
        let left: Vec<_> = {
            let mut state = self.state();
            let end = *state.end.get_or_insert(end);
            let running: Vec<_> = state.running.iter_mut().filter_map(Option::take).collect();
            let waiting = state.waiting.drain(..).map(|(_, promise)| promise);
            running.into_iter().chain(waiting).map(|promise| (promise, end)).collect()
        };
        for (promise, end) in left {
            promise.keep(Err(end.lost()));
        }
    }
}

impl<P: Program> Commands for Session<P> {
    fn entry(&self, number: u32) -> CommandEntry {
        CommandEntry::new(self.device, at::MODULE_WALK as u32, command(number, false))
    }

    fn called(self: Arc<Self>) {
        self.state().is_called = false;
        let _ = self.shard.here(|ring| self.begin(ring));
    }

    fn refused(&self) {
        self.break_off("the shard that has its ring has ended");
    }

    fn ended(self: Arc<Self>, number: u32, result: forebay::Result<u32>) {
        let outcome = self.outcome(number, result);
        let mut state = self.state();
        state.free.push(number);
        let promise = state.running.get_mut(number as usize).and_then(Option::take);
        let left = self.shard.here(|ring| self.begin_in(&mut state, ring));
        drop(state);
        if let Some(promise) = promise {
            promise.keep(outcome);
        }
        if let Some(left) = left {
            left.let_go();
        }
    }

    fn lost(&self, _number: u32) {
        self.break_off("the engine's end has not waited for its walks any longer");
        // The kernel may still use the memory, which is never freed. No call waits for that.
        self.gone.set();
    }
}

impl<P: Program> Session<P> {
    /// Returns the outcome of a walk whose command has ended, out of its slot.
    fn outcome(&self, number: u32, result: forebay::Result<u32>) -> Result<P::Output, WalkFailure> {
        let Some(kernel) = &self.kernel else { return Err(WalkFailure::Broken) };
        let result = match result {
            Ok(result) => result as i32,
            Err(error) => match error.raw_os_error() {
                Some(number) => {
                    // No ring of this shard will ever do, or the module was unloaded.
                    if matches!(number, libc::EOPNOTSUPP | libc::EXDEV | libc::ENXIO | libc::ENOTTY) {
                        self.break_off(&format!("it does not take walks on this shard's ring ({error})"));
                    }
                    -number
                }
                None => return Err(WalkFailure::Failed(Error::Core(error))),
            },
        };
        // SAFETY: the shard calls this for the command's end. The slot is free, and can be used again, only afterwards.
        let (ended, page) = unsafe { kernel.bound.ended(number, result) };
        if ended.is_detached() {
            self.break_off(DETACHED);
        }
        let scratch = ended.outcome?;
        // The program's own code must not end the shard. The reactor will meet the same panic, and has an error for it.
        catch_unwind(AssertUnwindSafe(|| self.program.end(&scratch, page))).map_err(|_| WalkFailure::Broken)
    }
}

impl<P: Program> Drop for Session<P> {
    fn drop(&mut self) {
        let Some(kernel) = self.kernel.take() else { return };
        if self.shard.is_forked() {
            // All of it is the parent's: the descriptors here are copies, and a call through them would end
            // the parent's walks.
            return std::mem::forget(kernel);
        }
        // Freeing it waits for the kernel's grace periods, milliseconds each, and this may be a shard. Without a thread it is freed
        // here.
        let _ = thread::Builder::new().name("forebay-kw-end".to_owned()).spawn(move || drop(kernel));
    }
}

impl ReleaseSignal {
    fn set(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.1.notify_all();
    }

    fn wait(&self) {
        let mut is_gone = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_gone {
            is_gone = self.1.wait(is_gone).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for ReleaseGuard {
    fn drop(&mut self) {
        self.0.set();
    }
}
