//! The shard's own executor: tasks that run next to the device, in run queues per class.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::class::{CLASSES_MAX, Class, ClassTable};
use crate::error::{Error, ErrorKind};
use crate::pending::Sender;
use crate::shard::clock::{Clock, Ticks};
use crate::shard::inbox::Inbox;
use crate::shard::local::LocalCell;
use crate::shard::{self, Shard};

/// What the executor knows of a task.
#[derive(Debug)]
pub(crate) struct TaskMeta {
    class: Class,
}

/// A task that is ready to be polled once.
pub(crate) type Runnable = async_task::Runnable<TaskMeta>;

/// Polls after which completions and the inbox get their turn.
const POLLS_PER_TURN: u32 = 256;
/// The clock is read once in so many polls.
const POLLS_PER_CLOCK: u32 = 16;
/// Time after which completions and the inbox get their turn, and after which `yield_if_needed` yields.
pub(crate) const SLICE_NS: u64 = 200_000;

/// The tasks of one shard.
pub(crate) struct Executor {
    queues: LocalCell<Queues>,
    /// Every task that is not over, so that closing can cancel it; the index is in the task's future.
    tasks: LocalCell<Tasks>,
    slice: Ticks,
    slice_began: Cell<Ticks>,
}

struct Queues {
    ready: [VecDeque<Runnable>; CLASSES_MAX],
    /// Virtual time of each class: the one that lags most goes next.
    pass: [u64; CLASSES_MAX],
    /// Bit per class with ready tasks.
    nonempty: u16,
}

struct Tasks {
    slots: Vec<Option<async_task::Task<(), TaskMeta>>>,
    free: Vec<usize>,
    closed: bool,
}

impl Executor {
    pub(crate) fn new(clock: &Clock) -> Executor {
        Executor {
            queues: LocalCell::new(Queues {
                ready: [const { VecDeque::new() }; CLASSES_MAX],
                pass: [0; CLASSES_MAX],
                nonempty: 0,
            }),
            tasks: LocalCell::new(Tasks { slots: Vec::new(), free: Vec::new(), closed: false }),
            slice: clock.ticks(SLICE_NS),
            slice_began: Cell::new(0),
        }
    }

    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.queues.with(|queues| queues.nonempty == 0)
    }

    /// Tasks that are not over.
    pub(crate) fn task_count(&self) -> usize {
        self.tasks.with(|tasks| tasks.slots.len() - tasks.free.len())
    }

    #[inline]
    pub(crate) fn push(&self, runnable: Runnable) {
        self.queues.with(|queues| queues.push(runnable));
    }

    /// Starts a task; its result goes to `answer`. Returns its place in the list of tasks. A closed executor drops
    /// both, which answers for itself.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        inbox: &Arc<Inbox>,
        class: Class,
        future: impl Future<Output = T> + 'static,
        answer: Sender<T>,
    ) -> Option<usize> {
        let index = self.tasks.with(|tasks| tasks.reserve())?;
        let home = inbox.clone();
        let future = Guarded { future: Box::pin(future), answer: Some(answer), index };
        let schedule = move |runnable: Runnable| schedule(&home, runnable);
        let builder = async_task::Builder::new().metadata(TaskMeta { class });
        // SAFETY: the future and its output are 'static. The future need not be Send: it is polled and dropped on
        // the shard's thread only, because `schedule` hands every runnable to that thread (its own queue, or the
        // inbox, which that thread empties), and because at its end the thread cancels every task and runs all
        // runnables, so that none with a future inside outlives it; when the thread dies by a panic all of it is
        // leaked instead. `schedule` itself is Send + Sync: it holds an Arc of an Inbox.
        let (runnable, task) = unsafe { builder.spawn_unchecked(move |_| future, schedule) };
        self.tasks.with(|tasks| tasks.slots[index] = Some(task));
        runnable.schedule();
        Some(index)
    }

    /// Polls ready tasks until none is left or the turn's allowance is used up.
    #[inline]
    pub(crate) fn run(&self, shard: &Shard) {
        self.slice_began.set(shard.turn_began());
        let mut polls = 0;
        while let Some(runnable) = self.queues.with(|queues| queues.pop(&shard.engine().classes)) {
            let class = runnable.metadata().class;
            shard.set_class(class);
            // A panic of the task's code is caught in `Guarded`; what is left to unwind here comes from a waker or
            // destructor of the program's and must not take the shard with it.
            let _ = catch_unwind(AssertUnwindSafe(|| runnable.run()));
            polls += 1;
            if polls == POLLS_PER_TURN || (polls % POLLS_PER_CLOCK == 0 && self.slice_is_over(shard)) {
                break;
            }
        }
        shard.set_class(Class::DEFAULT);
    }

    /// Has this turn's share of time passed?
    #[inline]
    pub(crate) fn slice_is_over(&self, shard: &Shard) -> bool {
        shard.clock().now().wrapping_sub(self.slice_began.get()) > self.slice
    }

    /// Cancels every task, and refuses new ones; the caller then runs until [`task_count`](Self::task_count) is 0.
    pub(crate) fn close(&self) {
        let tasks = self.tasks.with(|tasks| {
            tasks.closed = true;
            tasks.slots.iter_mut().filter_map(Option::take).collect::<Vec<_>>()
        });
        // Dropping a handle cancels its task: it is scheduled once more, and that run drops the future.
        drop(tasks);
    }

    fn forget(&self, index: usize) {
        let task = self.tasks.with(|tasks| {
            tasks.free.push(index);
            tasks.slots[index].take()
        });
        if let Some(task) = task {
            task.detach();
        }
    }

    /// Drops the future of a task soon, wherever it waits.
    pub(crate) fn cancel(&self, index: usize) {
        drop(self.tasks.with(|tasks| tasks.slots.get_mut(index).and_then(Option::take)));
    }
}

impl Queues {
    #[inline]
    fn push(&mut self, runnable: Runnable) {
        let class = runnable.metadata().class.0 as usize % CLASSES_MAX;
        if self.nonempty & (1 << class) == 0 {
            // A class that slept does not catch up on what it did not ask for.
            let behind = self.least_pass().unwrap_or(self.pass[class]);
            self.pass[class] = self.pass[class].max(behind);
            self.nonempty |= 1 << class;
        }
        self.ready[class].push_back(runnable);
    }

    fn least_pass(&self) -> Option<u64> {
        (0..CLASSES_MAX).filter(|class| self.nonempty & (1 << class) != 0).map(|class| self.pass[class]).min()
    }

    /// Stride scheduling (Waldspurger 1995), with a poll as the unit.
    #[inline]
    fn pop(&mut self, classes: &ClassTable) -> Option<Runnable> {
        let class = match self.nonempty.count_ones() {
            0 => return None,
            1 => self.nonempty.trailing_zeros() as usize,
            _ => (0..CLASSES_MAX)
                .filter(|class| self.nonempty & (1 << class) != 0)
                .min_by_key(|&class| self.pass[class])?,
        };
        if !self.nonempty.is_power_of_two() {
            self.pass[class] += (1 << 20) / u64::from(classes.shares(Class(class as u8)).max(1));
        }
        let runnable = self.ready[class].pop_front();
        if self.ready[class].is_empty() {
            self.nonempty &= !(1 << class);
        }
        runnable
    }
}

impl Tasks {
    fn reserve(&mut self) -> Option<usize> {
        if self.closed {
            return None;
        }
        Some(self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        }))
    }
}

/// A task's future with its panics caught, its answer sent, and its place in the executor's list given back.
struct Guarded<F: Future> {
    future: Pin<Box<F>>,
    answer: Option<Sender<F::Output>>,
    index: usize,
}

impl<F: Future> Future for Guarded<F>
where
    F::Output: Send + 'static,
{
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let result = match catch_unwind(AssertUnwindSafe(|| this.future.as_mut().poll(context))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => Err(panicked("task", panic.as_ref())),
        };
        if let Some(answer) = this.answer.take() {
            answer.send(result);
        }
        Poll::Ready(())
    }
}

impl<F: Future> Drop for Guarded<F> {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            answer.send(Err(Error::new(ErrorKind::TaskCancelled, "task")));
        }
        let index = self.index;
        shard::with_current(|shard| shard.executor().forget(index));
    }
}

/// The error for a panic's payload.
pub(crate) fn panicked(operation: &'static str, payload: &(dyn std::any::Any + Send)) -> Error {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message");
    Error::new(ErrorKind::TaskPanicked, operation).with_note(format!("panicked: {text}"))
}

/// Where a woken task goes: on its own thread straight into a run queue, from elsewhere through the inbox.
#[inline]
fn schedule(inbox: &Arc<Inbox>, runnable: Runnable) {
    let mut runnable = Some(runnable);
    shard::with_current(|shard| {
        if shard.uid() == inbox.uid
            && let Some(runnable) = runnable.take()
        {
            shard.executor().push(runnable);
        }
    });
    if let Some(runnable) = runnable {
        inbox.push_runnable(runnable);
    }
}
