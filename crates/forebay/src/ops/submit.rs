//! The future of one operation, on a shard or anywhere else.
//!
//! First polled on a shard it uses a slot immediately: no message, no allocation. First polled elsewhere it sends a cell through
//! the home shard's inbox. **A future remembers where its slot lives**: polled or dropped on any other thread it never touches the
//! slot, but notifies the owner.

use std::sync::Arc;
use std::task::{Context, Poll};

use crate::base::class::Class;
use crate::base::here::{self, Waits};
use crate::io::op::{OpBuffer, OpFailure, OpKey, OpOutcome, OpRequest, OpResult};
use crate::reactor::account::file_table::NO_FILE;
use crate::reactor::calls;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::open_file::FileCore;
use crate::reactor::shard::inbox::{Inbox, Message};
use crate::reactor::shard::optable::Continuation;
use crate::reactor::shard::remote::{RemoteCell, RemotePtr};
use crate::reactor::shard::{Shard, with_current};
use crate::reactor::visited::{self, OpStart};

/// The target of an operation: the file, or the engine alone.
pub(crate) enum Target<'f> {
    File(&'f Arc<FileCore>),
    /// For operations that outlive the call that started them, as a scan's do.
    Owned(Arc<FileCore>),
    Engine(&'f Arc<EngineShared>),
}

impl Target<'_> {
    #[inline]
    fn engine(&self) -> &Arc<EngineShared> {
        match self {
            Target::File(core) => core.engine(),
            Target::Owned(core) => core.engine(),
            Target::Engine(engine) => engine,
        }
    }

    #[inline]
    fn file(&self) -> Option<&Arc<FileCore>> {
        match self {
            Target::File(core) => Some(core),
            Target::Owned(core) => Some(core),
            Target::Engine(_) => None,
        }
    }

    fn home(&self) -> &Arc<Inbox> {
        &self.engine().inboxes[self.file().map_or(0, |core| core.home())]
    }
}

/// A file, borrowed from a handle or kept for as long as the operation lives.
#[derive(Clone)]
pub(crate) enum FileRef<'f> {
    Borrowed(&'f Arc<FileCore>),
    Owned(Arc<FileCore>),
}

impl<'f> FileRef<'f> {
    #[inline]
    pub(crate) fn target(&self) -> Target<'f> {
        match self {
            FileRef::Borrowed(core) => Target::File(core),
            FileRef::Owned(core) => Target::Owned(core.clone()),
        }
    }

    /// Returns the same with its own reference count of the file.
    pub(crate) fn into_owned(self) -> FileRef<'static> {
        match self {
            FileRef::Borrowed(core) => FileRef::Owned(core.clone()),
            FileRef::Owned(core) => FileRef::Owned(core),
        }
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Arc<FileCore> {
        match self {
            FileRef::Borrowed(core) => core,
            FileRef::Owned(core) => core,
        }
    }
}

impl std::ops::Deref for FileRef<'_> {
    type Target = FileCore;

    #[inline]
    fn deref(&self) -> &FileCore {
        self.shared()
    }
}

/// One operation in progress; see the documentation of this module.
///
/// The request stays where it is until its fields are copied into a slot one by one. Moving it as a whole from function to function
/// cost more than everything else before the submission.
pub(crate) struct OpFuture<'f> {
    target: Target<'f>,
    request: OpRequest,
    state: State,
}

enum State {
    /// Not polled yet, or the shard was full.
    New,
    /// In a slot of the shard with this number.
    Local {
        shard: u32,
        key: OpKey,
    },
    /// Represented by a cell; the number is the shard that has, or will have, the slot.
    Remote {
        shard: u32,
        cell: RemotePtr,
    },
    Over,
}

impl<'f> OpFuture<'f> {
    #[inline]
    pub(crate) fn new(target: Target<'f>, request: OpRequest) -> OpFuture<'f> {
        OpFuture { target, request, state: State::New }
    }

    /// Returns the request while it may still be changed, which ends with the first poll that submits it.
    #[inline]
    pub(crate) fn options(&mut self) -> Option<&mut OpRequest> {
        matches!(self.state, State::New).then_some(&mut self.request)
    }

    /// Returns offset and length in the file, as the operation was made.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.request.offset, self.request.len.into())
    }

    /// Returns the same operation, in its present state, for a target that is not borrowed.
    pub(crate) fn into_owned(mut self, target: Target<'static>) -> OpFuture<'static> {
        let state = std::mem::replace(&mut self.state, State::Over);
        OpFuture { target, request: self.request.take(), state }
    }

    /// Returns the result once it is there; the memory is then returned by [`take_buffer`](Self::take_buffer).
    #[inline]
    pub(crate) fn poll_result(&mut self, context: &mut Context<'_>) -> Poll<OpResult> {
        match self.state {
            State::New => self.begin(context),
            State::Local { shard: uid, key } => {
                let buffer = &mut self.request.buffer;
                let here = with_current(|shard| {
                    if shard.uid() == uid { Some(shard.poll_op(key, context.waker(), buffer)) } else { None }
                });
                match here {
                    Some(Some(Poll::Ready(result))) => {
                        self.state = State::Over;
                        Poll::Ready(result)
                    }
                    Some(Some(Poll::Pending)) => Poll::Pending,
                    _ => self.adopt(uid, key, context),
                }
            }
            _ => self.poll_cell(context),
        }
    }

    /// Returns the memory of an operation that has ended.
    #[inline]
    pub(crate) fn take_buffer(&mut self) -> OpBuffer {
        self.request.buffer.take()
    }

    /// Returns result and memory together, for callers where one more move does not matter.
    pub(crate) fn poll_outcome(&mut self, context: &mut Context<'_>) -> Poll<OpOutcome> {
        let result = std::task::ready!(self.poll_result(context));
        Poll::Ready(OpOutcome { result, buffer: self.take_buffer() })
    }

    #[cold]
    fn poll_cell(&mut self, context: &mut Context<'_>) -> Poll<OpResult> {
        let State::Remote { cell, .. } = &self.state else {
            // Polled again after it had completed: a contract error of the caller, which gets an error and no
            // panic.
            return Poll::Ready(Err(OpFailure::Errno(libc::ECANCELED)));
        };
        let polled = cell.poll(context.waker());
        if polled.is_pending() && self.target.engine().is_forked() {
            // The shard that would complete it lives in the parent only.
            return self.fail(OpFailure::Forked);
        }
        let OpOutcome { result, buffer } = std::task::ready!(polled);
        self.request.buffer = buffer;
        self.state = State::Over;
        Poll::Ready(result)
    }

    #[inline]
    fn begin(&mut self, context: &mut Context<'_>) -> Poll<OpResult> {
        if let Some(failure) = self.target.engine().failure() {
            return self.fail(failure);
        }
        let engine = Arc::as_ptr(self.target.engine());
        let begun = with_current(|shard| {
            if Arc::as_ptr(shard.engine()) == engine {
                self.begin_on(shard, context)
            } else {
                // A shard of another engine counts as "elsewhere" too.
                Attempt::Elsewhere
            }
        });
        match begun {
            Some(Attempt::Waiting) => Poll::Pending,
            Some(Attempt::Failed(failure)) => self.fail(failure),
            Some(Attempt::Elsewhere) | None => {
                if here::waits() == Waits::InTurn
                    && let Some(core) = self.target.file()
                    && let Some(result) = calls::run(core, &mut self.request)
                {
                    self.state = State::Over;
                    return Poll::Ready(result);
                }
                let begun =
                    visited::begin_op(self.target.engine(), self.target.file(), &mut self.request, context);
                match begun {
                    None => self.send(context),
                    Some(begun) => self.begun(begun, context),
                }
            }
        }
    }

    /// Continues after the operation has started in the ring of this worker.
    #[inline]
    fn begun(&mut self, start: OpStart, context: &mut Context<'_>) -> Poll<OpResult> {
        match start {
            OpStart::Done(result) => {
                self.state = State::Over;
                Poll::Ready(result)
            }
            OpStart::Waits { shard, cell } => {
                self.state = State::Remote { shard, cell };
                self.poll_cell(context)
            }
            OpStart::Failed(failure) => self.fail(failure),
            OpStart::Later => Poll::Pending,
        }
    }

    #[inline]
    fn begin_on(&mut self, shard: &Shard, context: &mut Context<'_>) -> Attempt {
        if !shard.has_slot_room(context.waker()) {
            return Attempt::Waiting;
        }
        let file = match self.target.file() {
            None => NO_FILE,
            Some(core) => match shard.enter_file(core) {
                Ok(file) => file,
                Err(failure) => return Attempt::Failed(failure),
            },
        };
        // The class of the task that polls first, which need not be the one that made the operation.
        if self.request.class == Class::OF_TASK {
            self.request.class = shard.class();
        }
        // Cloned before anything is borrowed: the clone may run the program's code.
        let staged = match shard.executor().own_task(context.waker()) {
            Some(task) => shard.stage(file, &mut self.request, || Continuation::Task(task)),
            None => {
                let waker = context.waker().clone();
                shard.stage(file, &mut self.request, || Continuation::Wake(waker))
            }
        };
        match staged {
            Some(key) => self.state = State::Local { shard: shard.uid(), key },
            None => {
                // A slot was free above; only the clone of a foreign waker can have taken it.
                shard.leave_file(file);
                return Attempt::Failed(OpFailure::Errno(libc::EAGAIN));
            }
        }
        Attempt::Waiting
    }

    /// Ends the operation before its start. Its memory stays here.
    #[cold]
    fn fail(&mut self, failure: OpFailure) -> Poll<OpResult> {
        self.state = State::Over;
        Poll::Ready(Err(failure))
    }

    fn send(&mut self, context: &mut Context<'_>) -> Poll<OpResult> {
        self.request.class = self.request.class.or_of_task();
        let cell = RemoteCell::request(self.target.file().cloned(), self.request.take());
        // The waker is in place before the shard can see the cell, so the first poll is the only one needed.
        let first = cell.poll(context.waker());
        debug_assert!(first.is_pending());
        match self.target.home().send(Message::Op(cell.clone()), Some(context.waker())) {
            Ok(()) => self.state = State::Remote { shard: self.target.home().uid, cell },
            Err(_) => {
                // SAFETY: the message was returned, so no other thread has the cell.
                if let Some(sent) = unsafe { cell.take_request() } {
                    self.request = sent.request;
                }
            }
        }
        Poll::Pending
    }

    /// Replaces the slot by a cell and notifies the owner, for a future polled on another thread than the
    /// slot's.
    #[cold]
    fn adopt(&mut self, uid: u32, key: OpKey, context: &mut Context<'_>) -> Poll<OpResult> {
        if self.target.engine().is_forked() {
            return self.fail(OpFailure::Forked);
        }
        let cell = RemoteCell::adopt(key);
        let first = cell.poll(context.waker());
        debug_assert!(first.is_pending());
        match self.owner(uid) {
            Some(inbox) => {
                let node = cell.queue();
                // SAFETY: a fresh cell's node is in no list; the list owns one count of the cell.
                let pushed = unsafe { inbox.remote_list.push(node) };
                if !pushed {
                    // SAFETY: the node was not pushed, so this is its one taker.
                    drop(unsafe { RemoteCell::from_node(node) });
                    let failure = inbox.failure();
                    return self.refused(failure);
                }
                inbox.kick();
                self.state = State::Remote { shard: uid, cell };
                Poll::Pending
            }
            None => self.refused(None),
        }
    }

    fn refused(&mut self, failure: Option<OpFailure>) -> Poll<OpResult> {
        self.fail(failure.unwrap_or(OpFailure::EngineClosed))
    }

    fn owner(&self, uid: u32) -> Option<&Arc<Inbox>> {
        self.target.engine().all_inboxes().find(|inbox| inbox.uid == uid)
    }
}

/// The result of an attempt to start on the current thread.
enum Attempt {
    /// In a slot, or waiting for one; the waker is registered either way.
    Waiting,
    Failed(OpFailure),
    Elsewhere,
}

impl Drop for OpFuture<'_> {
    #[inline]
    fn drop(&mut self) {
        if matches!(self.state, State::Over | State::New) {
            return;
        }
        self.give_up();
    }
}

impl OpFuture<'_> {
    /// Abandons an operation whose future is dropped before its outcome was returned.
    #[cold]
    fn give_up(&mut self) {
        // A child forked within a task of a shard still has the shard's copy, but not its ring.
        if self.target.engine().is_forked() {
            return;
        }
        match std::mem::replace(&mut self.state, State::Over) {
            State::Local { shard: uid, key } => {
                let here = with_current(|shard| {
                    let here = shard.uid() == uid;
                    if here {
                        shard.drop_op(key);
                    }
                    here
                });
                if here != Some(true)
                    && let Some(inbox) = self.owner(uid)
                {
                    inbox.dropped.mark(key.index);
                    inbox.kick();
                }
            }
            State::Remote { shard, cell } => {
                if let Some(core) = self.target.file().filter(|_| !cell.is_done()) {
                    cell.leave(core.stay());
                }
                if let Some(inbox) = self.owner(shard) {
                    drop_remote(inbox, cell);
                }
            }
            State::New | State::Over => {}
        }
    }
}

fn drop_remote(inbox: &Arc<Inbox>, cell: RemotePtr) {
    if let Some(node) = cell.cancel() {
        // SAFETY: `cancel` returns a node that is in no list, with one count of the cell.
        let pushed = unsafe { inbox.remote_list.push(node) };
        if pushed {
            inbox.kick();
        } else {
            // The shard has ended: release the count that the list would have owned.
            // SAFETY: the node was not pushed, so only this call has it.
            drop(unsafe { RemoteCell::from_node(node) });
        }
    }
}
