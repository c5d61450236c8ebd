//! The futures of walks, on a shard or anywhere else. As with single operations, a future remembers where its
//! walk lives, and notifies the owner when it is polled or dropped on another thread.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::{DEPTH, HOPS_MAX, Walk, waiting};
use crate::base::class::Class;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::here::{self, Waits};
use crate::base::wait;
use crate::io::op::OpFailure;
use crate::ops::submit::FileRef;
use crate::reactor::calls;
use crate::reactor::open_file::FileCore;
use crate::reactor::shard::inbox::{Inbox, Message};
use crate::reactor::shard::with_current;
use crate::reactor::visited;
use crate::reactor::walk::remote_walks::{Batch, BatchEntry, Settings};
use crate::reactor::walk::state::{Failure, Job};
use crate::reactor::walk::table::WalkKey;
use crate::reactor::walk::{lifecycle, many};

/// One walk, which starts when it is first polled; see [`File::walk`](crate::File::walk). Dropping it ends the walk.
#[must_use = "a walk begins only when it is awaited or waited for"]
pub struct WalkOne<'f, W: Walk> {
    core: FileRef<'f>,
    root: Range<u64>,
    settings: Settings,
    state: State<W>,
}

/// Many walks in one message, which start when it is first polled; see [`File::walk_many`](crate::File::walk_many).
///
/// Awaiting it fails as a whole only when the file or the engine is closed. All other errors are in the single results, in the
/// order of the walks. It borrows nothing. Dropping it ends all its walks.
#[must_use = "walks begin only when they are awaited or waited for"]
pub struct WalkMany<W: Walk> {
    core: Arc<FileCore>,
    settings: Settings,
    state: Many<W>,
}

enum Many<W> {
    New(Vec<(Range<u64>, W)>),
    Begun(Run),
}

/// Settings that both futures have.
macro_rules! settings {
    ($name:ty, $new:path) => {
        impl<W: Walk> $name {
            /// Sets the hops after which a walk fails with [`TooManyHops`](crate::ErrorKind::TooManyHops), so that a cycle in a
            /// damaged file ends. The root is the first hop; a [`ReadEach`](crate::Step::ReadEach) counts once. Default: 64.
            /// Has no effect after the first poll.
            pub fn hops_max(mut self, hops: u32) -> Self {
                if let $new(_) = self.state {
                    self.settings.hops_max = hops;
                }
                self
            }

            /// Sets the class. Default: that of the task that polls first, [`Class::DEFAULT`] outside of shards and
            /// [scopes](Class::scope). Has no effect after the first poll.
            pub fn class(mut self, class: Class) -> Self {
                if let $new(_) = self.state {
                    self.settings.class = class;
                }
                self
            }
        }
    };
}

settings!(WalkOne<'_, W>, State::New);
settings!(WalkMany<W>, Many::New);

enum State<W> {
    /// Not polled yet, or the shard was full.
    New(W),
    /// In a slot of the shard with this number.
    Local {
        shard: u32,
        key: WalkKey,
    },
    Remote(Run),
    Over,
}

// Neither pins anything in place: the walks themselves move into their slots.
impl<W: Walk> Unpin for WalkOne<'_, W> {}
impl<W: Walk> Unpin for WalkMany<W> {}

impl<'f, W: Walk> WalkOne<'f, W> {
    #[inline]
    pub(super) fn new(core: &'f Arc<FileCore>, root: Range<u64>, walk: W) -> Self {
        let settings = Settings { class: Class::OF_TASK, hops_max: HOPS_MAX, depth: 1 };
        WalkOne { core: FileRef::Borrowed(core), root, settings, state: State::New(walk) }
    }

    /// Returns the same walk with a handle of the file instead of a borrow, for tasks that need `'static`. Costs an atomic
    /// increment.
    pub fn owned(mut self) -> WalkOne<'static, W> {
        WalkOne {
            core: FileRef::Owned(self.core.shared().clone()),
            root: self.root.clone(),
            settings: self.settings,
            state: std::mem::replace(&mut self.state, State::Over),
        }
    }

    /// Blocks the calling thread until the walk has ended.
    ///
    /// # Errors
    /// The same as when awaited; [`ErrorKind::WaitOnShard`] on a shard's thread.
    pub fn wait(self) -> std::result::Result<W::Output, W::Error> {
        match wait::refusal() {
            Some(kind) => Err(Error::new(kind, "walk").into()),
            None => wait::block_in_turn_on_any(self),
        }
    }

    /// Returns the walk's state as long as the walk has not started: before the first poll, and while its shard has no free slot
    /// for it. Afterwards the state belongs to the shard, and this returns nothing.
    ///
    /// A state that holds a resource which others wait for, such as a permit, can release it meanwhile, because this future may
    /// not be polled again for long.
    pub fn unbegun(&mut self) -> Option<&mut W> {
        match &mut self.state {
            State::New(walk) => Some(walk),
            State::Remote(run) => run.unsent::<W>().next(),
            State::Local { .. } | State::Over => None,
        }
    }

    /// Returns the walk with its ending, or the error of a walk without an ending.
    #[inline]
    fn poll_job(&mut self, context: &mut Context<'_>) -> Poll<Result<Job>> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::New(walk) => self.begin(walk, context),
            State::Local { shard: uid, key } => {
                let polled = with_current(|shard| {
                    (shard.uid() == uid).then(|| lifecycle::poll(shard, key, context.waker()))
                });
                match polled.flatten() {
                    Some(Poll::Ready(job)) => Poll::Ready(job.ok_or_else(|| self.lost())),
                    Some(Poll::Pending) => {
                        self.state = State::Local { shard: uid, key };
                        Poll::Pending
                    }
                    None => self.adopt(uid, key, context),
                }
            }
            State::Remote(run) => self.poll_remote(run, context),
            State::Over => {
                let error = Error::invalid("walk", "this walk was polled again after it had completed");
                Poll::Ready(Err(self.core.describe(error)))
            }
        }
    }

    #[inline]
    fn begin(&mut self, walk: W, context: &mut Context<'_>) -> Poll<Result<Job>> {
        let core = self.core.shared();
        if let Some(failure) = refusal(core) {
            return Poll::Ready(Err(self.failed(failure)));
        }
        self.settings.class = self.settings.class.or_of_task();
        let (settings, root, state) = (self.settings, &self.root, &mut self.state);
        let mut walk = Some(walk);
        let here = with_current(|shard| {
            if !Arc::ptr_eq(shard.engine(), core.engine()) {
                return None;
            }
            if !lifecycle::has_room(shard, context.waker()) {
                return Some(Poll::Pending);
            }
            let job = Job::new(walk.take()?);
            Some(match lifecycle::begin(shard, core, settings, root, context.waker(), job) {
                Ok(key) => {
                    let polled = lifecycle::poll(shard, key, context.waker());
                    if polled.is_pending() {
                        *state = State::Local { shard: shard.uid(), key };
                    }
                    polled.map(Ok)
                }
                Err(failure) => Poll::Ready(Err(failure)),
            })
        });
        match (here.flatten(), walk) {
            (Some(polled), None) => polled.map(|ended| match ended {
                Ok(job) => job.ok_or_else(|| self.lost()),
                Err(failure) => Err(self.failed(failure)),
            }),
            (Some(_), Some(walk)) => {
                self.state = State::New(walk);
                Poll::Pending
            }
            (None, Some(walk)) if here::waits() == Waits::InTurn && calls::suits(core, settings.class) => {
                Poll::Ready(Ok(waiting::carry_out(core, settings, self.root.clone(), Job::new(walk))))
            }
            (None, Some(walk)) => {
                let place = BatchEntry::Waiting(self.root.clone(), Job::new(walk));
                self.poll_remote(Run::new(core.clone(), settings, vec![place]), context)
            }
            (None, None) => Poll::Ready(Err(self.lost())),
        }
    }

    fn poll_remote(&mut self, mut run: Run, context: &mut Context<'_>) -> Poll<Result<Job>> {
        let polled = run.poll(context);
        let Poll::Ready(places) = polled else {
            self.state = State::Remote(run);
            return Poll::Pending;
        };
        Poll::Ready(places.and_then(|places| match places.into_iter().next() {
            Some(BatchEntry::Over(job)) => Ok(job),
            _ => Err(self.lost()),
        }))
    }

    /// Replaces the slot by a batch of one and notifies the owner, for a future polled on another thread than
    /// the walk's.
    #[cold]
    fn adopt(&mut self, uid: u32, key: WalkKey, context: &mut Context<'_>) -> Poll<Result<Job>> {
        if self.core.engine().is_forked() {
            return Poll::Ready(Err(self.failed(OpFailure::Forked)));
        }
        let Some(inbox) = owner(&self.core, uid) else {
            return Poll::Ready(Err(self.failed(OpFailure::EngineClosed)));
        };
        let batch = Batch::new(self.core.shared().clone(), self.settings, vec![BatchEntry::Gone], Some(key));
        batch.set_shard(inbox.index);
        // The waker is in place before the shard can see the batch.
        batch.register(context.waker());
        if !batch.notify_shard() {
            let failure = inbox.failure().unwrap_or(OpFailure::EngineClosed);
            return Poll::Ready(Err(self.failed(failure)));
        }
        self.state = State::Remote(Run { batch, sent: true });
        Poll::Pending
    }

    fn failed(&self, failure: OpFailure) -> Error {
        let error = failure.into_error("walk", Some(&self.core));
        error.with_range(self.root.start, self.root.end.saturating_sub(self.root.start))
    }

    /// Returns the error of a walk that was removed from its slot: at its shard's end, or by a caller that cancelled it.
    fn lost(&self) -> Error {
        match self.core.engine().failure() {
            Some(failure) => self.failed(failure),
            None => self.core.describe(Error::new(ErrorKind::Cancelled, "walk")),
        }
    }
}

impl<W: Walk> Future for WalkOne<'_, W> {
    type Output = std::result::Result<W::Output, W::Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let ended = ready!(this.poll_job(context));
        Poll::Ready(ending::<W>(ended, || this.lost()))
    }
}

crate::_debug_parts!([W: Walk] WalkOne<'_, W>, |walk_one| path: walk_one.core.path(), root: walk_one.root);

impl<W: Walk> Drop for WalkOne<'_, W> {
    #[inline]
    fn drop(&mut self) {
        if let State::Local { shard: uid, key } = self.state {
            self.give_up(uid, key);
        }
    }
}

impl<W: Walk> WalkOne<'_, W> {
    /// Abandons the walk of a future that is dropped before its ending was returned.
    #[cold]
    fn give_up(&mut self, uid: u32, key: WalkKey) {
        // A child forked within a task of a shard still has the shard's copy, but not its ring.
        if self.core.engine().is_forked() {
            return;
        }
        let here = with_current(|shard| {
            let here = shard.uid() == uid;
            if here {
                lifecycle::drop_walk(shard, key);
            }
            here
        });
        if here != Some(true)
            && let Some(inbox) = owner(&self.core, uid)
        {
            inbox.dropped_walks.mark(key.index);
            inbox.kick();
        }
    }
}

fn owner(core: &FileCore, uid: u32) -> Option<&Arc<Inbox>> {
    core.engine().inboxes.iter().find(|inbox| inbox.uid == uid)
}

/// Returns the reason why the file accepts no operations here, if any.
fn refusal(core: &FileCore) -> Option<OpFailure> {
    core.engine().failure().or_else(|| core.is_closed().then_some(OpFailure::FileClosed))
}

/// Returns a walk's result in its own types. The conversion of the core's error is the program's code.
fn ending<W: Walk>(
    job: Result<Job>,
    lost: impl FnOnce() -> Error,
) -> std::result::Result<W::Output, W::Error> {
    match job.map(Job::into_ending::<W>) {
        Ok(Some(Ok(output))) => Ok(output),
        Ok(Some(Err(Failure::Own(error)))) => Err(error),
        Ok(Some(Err(Failure::Core(error)))) | Err(error) => Err(error.into()),
        Ok(None) => Err(lost().into()),
    }
}

impl<W: Walk> WalkMany<W> {
    pub(super) fn new(core: &Arc<FileCore>, walks: Vec<(Range<u64>, W)>) -> WalkMany<W> {
        let settings = Settings { class: Class::OF_TASK, hops_max: HOPS_MAX, depth: DEPTH };
        WalkMany { core: core.clone(), settings, state: Many::New(walks) }
    }

    /// Sets the walks in progress at a time, at least 1. Default: 128. Has no effect after the first poll.
    pub fn depth(mut self, walks: u32) -> Self {
        if let Many::New(_) = self.state {
            self.settings.depth = walks.max(1);
        }
        self
    }

    /// Blocks the calling thread until all walks have ended.
    ///
    /// # Errors
    /// The same as when awaited; [`ErrorKind::WaitOnShard`] on a shard's thread.
    pub fn wait(self) -> Result<Vec<std::result::Result<W::Output, W::Error>>> {
        wait::block_on("walk", self)
    }

    /// Returns the walks' states as long as the walks have not started; see [`WalkOne::unbegun`]. They start together.
    pub fn unbegun(&mut self) -> impl Iterator<Item = &mut W> {
        let (new, unsent) = match &mut self.state {
            Many::New(walks) => (Some(walks), None),
            Many::Begun(run) => (None, Some(run.unsent::<W>())),
        };
        new.into_iter().flatten().map(|(_, walk)| walk).chain(unsent.into_iter().flatten())
    }
}

impl<W: Walk> Future for WalkMany<W> {
    type Output = Result<Vec<std::result::Result<W::Output, W::Error>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let run = loop {
            match &mut this.state {
                Many::Begun(run) => break run,
                Many::New(walks) => {
                    let walks = std::mem::take(walks).into_iter();
                    let places =
                        walks.map(|(root, walk)| BatchEntry::Waiting(root, Job::new(walk))).collect();
                    let settings = Settings { class: this.settings.class.or_of_task(), ..this.settings };
                    this.state = Many::Begun(Run::new(this.core.clone(), settings, places));
                }
            }
        };
        let places = match ready!(run.poll(context)) {
            Ok(places) => places,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let lost = || this.core.describe(Error::new(ErrorKind::Cancelled, "walk"));
        let endings = places.into_iter().map(|place| match place {
            BatchEntry::Over(job) => ending::<W>(Ok(job), lost),
            _ => Err(lost().into()),
        });
        Poll::Ready(Ok(endings.collect()))
    }
}

crate::_debug_parts!([W: Walk] WalkMany<W>, |walk_many| path: walk_many.core.path());

/// A batch, and whether it was sent to its shard.
struct Run {
    batch: Arc<Batch>,
    sent: bool,
}

impl Run {
    fn new(core: Arc<FileCore>, settings: Settings, places: Vec<BatchEntry>) -> Run {
        Run { batch: Batch::new(core, settings, places, None), sent: false }
    }

    /// Returns the states of walks that no shard has.
    fn unsent<W: Walk>(&mut self) -> impl Iterator<Item = &mut W> {
        let places = (!self.sent).then(|| {
            // SAFETY: no shard has a batch that was not sent, and sending it needs this `Run`, which the result borrows.
            unsafe { &mut *self.batch.places() }
        });
        places.into_iter().flatten().filter_map(|place| match place {
            BatchEntry::Waiting(_, job) => job.running::<W>(),
            _ => None,
        })
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Vec<BatchEntry>>> {
        let core = &self.batch.file;
        if !self.sent {
            if let Some(failure) = refusal(core) {
                return Poll::Ready(Err(failure.into_error("walk", Some(core))));
            }
            self.batch.register(context.waker());
            self.sent = self.send(context);
            if !self.sent {
                return Poll::Pending;
            }
        }
        let polled = self.batch.poll(context.waker());
        if polled.is_pending() && core.engine().is_forked() {
            // The shard that would complete it lives in the parent only.
            return Poll::Ready(Err(OpFailure::Forked.into_error("walk", Some(core))));
        }
        polled.map(Ok)
    }

    /// Starts the batch: immediately on a shard of its engine or in the ring of this worker, by one message elsewhere. Returns
    /// false when it has to wait for its turn: the inbox is full, or the task has used up its budget.
    fn send(&self, context: &mut Context<'_>) -> bool {
        let core = &self.batch.file;
        let local = with_current(|shard| {
            let ours = Arc::ptr_eq(shard.engine(), core.engine());
            if ours {
                self.batch.set_shard(shard.index());
                many::begin_batch(shard, &self.batch);
            }
            ours
        });
        if local == Some(true) {
            return true;
        }
        if let Some(begun) = visited::begin_walks(core.engine(), &self.batch, context) {
            return begun.is_ready();
        }
        self.batch.set_shard(core.home());
        let inbox = &core.engine().inboxes[core.home()];
        inbox.send(Message::Walks(self.batch.clone()), Some(context.waker())).is_ok()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.sent && !self.batch.file.engine().is_forked() {
            self.batch.cancel();
        }
    }
}
