//! The storage of a walk's state: in place up to a size, otherwise in a box, and behind one type either way.
//!
//! A slot of a shard's table cannot be generic, so it holds a [`Job`]: 144 bytes of storage and a function that has the type of
//! their content. All unsafe code of walks except the batch's is here.

use std::any::Any;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Walk;
use super::step::{Ranges, Step};
use crate::base::error::Error;
use crate::memory::block::Block;

/// Bytes of a walk without a box: 128 of state, and the tag that distinguishes state from result.
const ROOM_BYTES: usize = 144;

/// The result or failure of a walk.
pub(crate) type WalkEnding<W> = Result<<W as Walk>::Output, Failure<<W as Walk>::Error>>;

/// The failure of a walk, for the walk's or the core's reason. The core's error becomes the walk's own type where the result is
/// returned, since that conversion is the program's code.
pub(crate) enum Failure<E> {
    Own(E),
    Core(Error),
}

/// The request of a step, without the walk's types.
#[allow(clippy::large_enum_variant, reason = "lives for one return, as the step does that it is made of")]
pub(crate) enum Next {
    Read(Range<u64>),
    ReadEach(Ranges),
    Wait,
    /// The ending is in the job.
    Over,
    /// The step panicked; the job is unchanged.
    Panicked(Error),
}

/// A walk in progress, or its ending, of any type.
pub(crate) struct Job(JobStorage);

enum JobStorage {
    Inline(Inline),
    Boxed(Box<dyn AnyWork>),
}

#[repr(C, align(16))]
struct Room([MaybeUninit<u8>; ROOM_BYTES]);

/// A `Work<W>` in place. It may be moved like any other value.
struct Inline {
    room: Room,
    /// Restores the type of the contents: the same address, with the methods of the value in it.
    view: fn(*mut Room) -> *mut dyn AnyWork,
    /// Like the value in the room: `Send`, and not `Sync`.
    _holds: PhantomData<Box<dyn AnyWork>>,
}

impl Inline {
    fn get(&mut self) -> &mut dyn AnyWork {
        // SAFETY: `Job::new` wrote a value of the type that `view` has into the room, whose size and
        // alignment suffice for it, and it stays there until `drop`. The reference borrows the room for as
        // long as it lives.
        unsafe { &mut *(self.view)(&raw mut self.room) }
    }
}

impl Drop for Inline {
    fn drop(&mut self) {
        // SAFETY: as in `get`; the value is dropped here only, and no code accesses the room afterwards.
        unsafe { std::ptr::drop_in_place((self.view)(&raw mut self.room)) };
    }
}

fn view<W: Walk>(room: *mut Room) -> *mut dyn AnyWork {
    room.cast::<Work<W>>()
}

impl Job {
    #[inline]
    pub(crate) fn new<W: Walk>(walk: W) -> Job {
        let work = Work { state: WorkState::Running(walk) };
        if size_of::<Work<W>>() > ROOM_BYTES || align_of::<Work<W>>() > align_of::<Room>() {
            return Job(JobStorage::Boxed(Box::new(work)));
        }
        let mut inline =
            Inline { room: Room([MaybeUninit::uninit(); ROOM_BYTES]), view: view::<W>, _holds: PhantomData };
        // SAFETY: the room is large enough for the value and aligned for it, as was just checked; it holds
        // nothing yet, and `inline` is not dropped in between, since a write does not unwind.
        unsafe { (&raw mut inline.room).cast::<Work<W>>().write(work) };
        Job(JobStorage::Inline(inline))
    }

    pub(crate) fn is_boxed(&self) -> bool {
        matches!(self.0, JobStorage::Boxed(_))
    }

    /// Runs a step and returns its request. Panics are caught.
    #[inline]
    pub(crate) fn step(&mut self, block: &Block, at: Range<u64>) -> Next {
        self.work().step(block, at)
    }

    /// Ends the walk with an error of the core's.
    pub(crate) fn fail(&mut self, error: Error) {
        self.work().fail(error);
    }

    /// Returns the name of the walk's type, for reports.
    pub(crate) fn name(&mut self) -> &'static str {
        self.work().name()
    }

    /// Returns the ending of a walk of this type, or `None` if it has no ending (any more) or is of another type.
    pub(crate) fn into_ending<W: Walk>(mut self) -> Option<WalkEnding<W>> {
        self.work().as_any().downcast_mut::<Work<W>>()?.take_ending()
    }

    /// Returns the state of a walk of this type that has not ended.
    pub(crate) fn running<W: Walk>(&mut self) -> Option<&mut W> {
        match &mut self.work().as_any().downcast_mut::<Work<W>>()?.state {
            WorkState::Running(walk) => Some(walk),
            WorkState::Over(_) | WorkState::Taken => None,
        }
    }

    #[inline]
    fn work(&mut self) -> &mut dyn AnyWork {
        match &mut self.0 {
            JobStorage::Inline(inline) => inline.get(),
            JobStorage::Boxed(work) => &mut **work,
        }
    }
}

/// The operations on a walk whose type is not known.
trait AnyWork: Send {
    fn step(&mut self, block: &Block, at: Range<u64>) -> Next;
    fn fail(&mut self, error: Error);
    fn name(&self) -> &'static str;
    fn as_any(&mut self) -> &mut dyn Any;
}

struct Work<W: Walk> {
    state: WorkState<W>,
}

enum WorkState<W: Walk> {
    Running(W),
    Over(WalkEnding<W>),
    Taken,
}

impl<W: Walk> Work<W> {
    /// Replaces the state. The program's destructors run here, wherever the shard is: a panic of theirs must
    /// not end the shard.
    fn become_state(&mut self, state: WorkState<W>) {
        let old = std::mem::replace(&mut self.state, state);
        let _ = catch_unwind(AssertUnwindSafe(|| drop(old)));
    }

    fn take_ending(&mut self) -> Option<WalkEnding<W>> {
        match std::mem::replace(&mut self.state, WorkState::Taken) {
            WorkState::Over(ending) => Some(ending),
            other => {
                self.state = other;
                None
            }
        }
    }
}

impl<W: Walk> Drop for Work<W> {
    fn drop(&mut self) {
        self.become_state(WorkState::Taken);
    }
}

impl<W: Walk> AnyWork for Work<W> {
    fn step(&mut self, block: &Block, at: Range<u64>) -> Next {
        let WorkState::Running(walk) = &mut self.state else { return Next::Over };
        let ending = match catch_unwind(AssertUnwindSafe(|| walk.step(block, at))) {
            Ok(Step::Read(range)) => return Next::Read(range),
            Ok(Step::ReadEach(ranges)) => return Next::ReadEach(ranges),
            Ok(Step::Wait) => return Next::Wait,
            Err(panic) => {
                let error = Error::panicked("walk", panic.as_ref());
                // The panic's payload is the program's as well.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
                return Next::Panicked(error);
            }
            Ok(Step::Done(output)) => Ok(output),
            Ok(Step::Fail(error)) => Err(Failure::Own(error)),
        };
        self.become_state(WorkState::Over(ending));
        Next::Over
    }

    fn fail(&mut self, error: Error) {
        self.become_state(WorkState::Over(Err(Failure::Core(error))));
    }

    fn name(&self) -> &'static str {
        std::any::type_name::<W>()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

#[cfg(test)]
mod tests;
