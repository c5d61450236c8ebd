//! The future of one operation, on a shard or anywhere else.
//!
//! First polled on a shard it takes a slot there and then: no message, no allocation. First polled elsewhere it
//! sends a cell through the home shard's inbox. **A future remembers where its slot lives**: polled or dropped on any
//! other thread it never touches the slot, but sends word to the owner.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::engine::EngineShared;
use crate::file::FileCore;
use crate::op::{OpFailure, OpOutcome, OpRequest};
use crate::shard::inbox::{Inbox, Message};
use crate::shard::optable::{Continuation, NO_FILE, OpKey};
use crate::shard::remote::{RemoteCell, RemotePtr};
use crate::shard::{Shard, with_current};

/// Whom an operation is for: the file, or the engine alone when there is none.
pub(crate) enum Target<'f> {
    File(&'f Arc<FileCore>),
    /// For operations that outlive the call that began them, as a scan's do.
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

/// One operation on its way; see the module's text.
pub(crate) struct OpFuture<'f> {
    target: Target<'f>,
    state: State,
}

enum State {
    /// Not polled yet, or no room was found.
    New(OpRequest),
    /// In a slot of the shard with this number.
    Local { shard: u32, key: OpKey },
    /// A cell speaks for it; the number is the shard that has, or will have, the slot.
    Remote { shard: u32, cell: RemotePtr },
    Over,
}

impl<'f> OpFuture<'f> {
    #[inline]
    pub(crate) fn new(target: Target<'f>, request: OpRequest) -> OpFuture<'f> {
        OpFuture { target, state: State::New(request) }
    }

    pub(crate) fn poll_outcome(&mut self, context: &mut Context<'_>) -> Poll<OpOutcome> {
        let polled = match &self.state {
            State::Local { shard, key } => {
                let (uid, key) = (*shard, *key);
                let here = with_current(|shard| (shard.uid() == uid).then(|| shard.poll_op(key, context.waker())));
                match here.flatten() {
                    Some(polled) => polled,
                    None => return self.adopt(uid, key, context),
                }
            }
            State::Remote { cell, .. } => cell.poll(context.waker()),
            State::New(_) => return self.begin(context),
            State::Over => Poll::Ready(OpOutcome::failed(OpFailure::Errno(libc::ECANCELED))),
        };
        if polled.is_ready() {
            self.state = State::Over;
        }
        polled
    }

    #[inline]
    fn begin(&mut self, context: &mut Context<'_>) -> Poll<OpOutcome> {
        let State::New(request) = std::mem::replace(&mut self.state, State::Over) else {
            return Poll::Ready(OpOutcome::failed(OpFailure::Errno(libc::ECANCELED)));
        };
        if let Some(failure) = self.target.engine().failure() {
            return Poll::Ready(OpOutcome { result: Err(failure), buffer: request.buffer });
        }
        let mut request = Some(request);
        let engine = Arc::as_ptr(self.target.engine());
        let local = with_current(|shard| {
            // A shard of another engine is "elsewhere" too.
            if Arc::as_ptr(shard.engine()) != engine {
                return None;
            }
            Some(self.target.begin_on(shard, &mut request, context))
        });
        match local.flatten() {
            Some(Begun::Slot(shard, key)) => {
                self.state = State::Local { shard, key };
                Poll::Pending
            }
            Some(Begun::Failed(outcome)) => Poll::Ready(outcome),
            Some(Begun::NoRoom) => {
                if let Some(request) = request {
                    self.state = State::New(request);
                }
                Poll::Pending
            }
            None => match request {
                Some(request) => self.send(request, context),
                None => Poll::Ready(OpOutcome::failed(OpFailure::Errno(libc::ECANCELED))),
            },
        }
    }

    fn send(&mut self, request: OpRequest, context: &mut Context<'_>) -> Poll<OpOutcome> {
        let cell = RemoteCell::request(self.target.file().cloned(), request);
        // The waker is in place before the shard can see the cell, so the first poll is the only one needed.
        let first = cell.poll(context.waker());
        debug_assert!(first.is_pending());
        match self.target.home().send(Message::Op(cell.clone()), Some(context.waker())) {
            Ok(()) => {
                self.state = State::Remote { shard: self.target.home().uid, cell };
                Poll::Pending
            }
            Err(_) => {
                // SAFETY: the message came back, so nobody else has the cell.
                if let Some(sent) = unsafe { cell.take_request() } {
                    self.state = State::New(sent.request);
                }
                Poll::Pending
            }
        }
    }

    /// Polled on another thread than the slot's: a cell takes over, and the owner is told.
    #[cold]
    fn adopt(&mut self, uid: u32, key: OpKey, context: &mut Context<'_>) -> Poll<OpOutcome> {
        let cell = RemoteCell::adopt(key);
        let first = cell.poll(context.waker());
        debug_assert!(first.is_pending());
        match self.owner(uid) {
            Some(inbox) => {
                let node = cell.queue();
                // SAFETY: a fresh cell's node is in no list; the list owns one count of the cell.
                let pushed = unsafe { inbox.foreign.push(node) };
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

    fn refused(&mut self, failure: Option<OpFailure>) -> Poll<OpOutcome> {
        self.state = State::Over;
        Poll::Ready(OpOutcome::failed(failure.unwrap_or(OpFailure::EngineClosed)))
    }

    fn owner(&self, uid: u32) -> Option<&Arc<Inbox>> {
        self.target.engine().inboxes.iter().find(|inbox| inbox.uid == uid)
    }
}

enum Begun {
    Slot(u32, OpKey),
    Failed(OpOutcome),
    NoRoom,
}

impl Target<'_> {
    #[inline]
    fn begin_on(&self, shard: &Shard, request: &mut Option<OpRequest>, context: &mut Context<'_>) -> Begun {
        if !shard.has_slot_room(context.waker()) {
            return Begun::NoRoom;
        }
        let file = match self.file() {
            None => NO_FILE,
            Some(core) => match shard.enter_file(core) {
                Ok(file) => file,
                Err(failure) => {
                    let buffer = request.take().map_or(crate::op::OpBuffer::None, |request| request.buffer);
                    return Begun::Failed(OpOutcome { result: Err(failure), buffer });
                }
            },
        };
        let Some(taken) = request.take() else { return Begun::NoRoom };
        match shard.stage(file, taken, Continuation::Wake(context.waker().clone())) {
            Ok(key) => Begun::Slot(shard.uid(), key),
            Err((refused, continuation)) => {
                *request = Some(refused);
                drop(continuation);
                shard.leave_file(file);
                Begun::NoRoom
            }
        }
    }
}

impl Future for OpFuture<'_> {
    type Output = OpOutcome;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<OpOutcome> {
        self.poll_outcome(context)
    }
}

impl Drop for OpFuture<'_> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Local { shard: uid, key } => {
                let here = with_current(|shard| {
                    let here = shard.uid() == uid;
                    if here {
                        shard.drop_op(key);
                    }
                    here
                });
                if here != Some(true) {
                    if let Some(inbox) = self.owner(uid) {
                        inbox.drop_slot(key);
                    }
                }
            }
            State::Remote { shard, cell } => {
                if let Some(inbox) = self.owner(shard) {
                    drop_remote(inbox, cell);
                }
            }
            State::New(_) | State::Over => {}
        }
    }
}

fn drop_remote(inbox: &Arc<Inbox>, cell: RemotePtr) {
    if let Some(node) = cell.cancel() {
        // SAFETY: `cancel` gives out a node that is in no list, with one count of the cell.
        let pushed = unsafe { inbox.foreign.push(node) };
        if !pushed {
            // The shard has ended: take back the count that the list would have owned.
            // SAFETY: the node was not pushed, so this is its one taker.
            drop(unsafe { RemoteCell::from_node(node) });
        }
    }
}
