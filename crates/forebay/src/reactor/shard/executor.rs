//! The shard's own executor: tasks that run next to the device, in one run queue per class.

mod run_queues;
mod stalls;
mod task_future;

use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use crate::base::class::Class;
use crate::base::pending::Sender;
use crate::io::stats::Stall;
use crate::reactor::shard::clock::{Clock, Ticks};
use crate::reactor::shard::inbox::Inbox;
use crate::reactor::shard::local::LocalCell;
use crate::reactor::shard::{self, Shard};
use crate::reactor::stall_profiler::Beat;
use run_queues::Queues;
use stalls::Stalls;
use task_future::TaskFuture;

pub(crate) use task_future::Abort;

/// The executor's data on a task.
#[derive(Debug)]
pub(crate) struct TaskMeta {
    class: Class,
    /// Position in the list of tasks.
    index: u32,
}

/// A task that is ready to be polled once.
pub(crate) type Runnable = async_task::Runnable<TaskMeta>;

/// Polls after which completions and the inbox get their turn.
const POLLS_PER_TURN: u32 = 256;
/// Polls per reading of the clock.
const POLLS_PER_CLOCK: u32 = 16;
/// Time after which completions and the inbox get their turn, and after which `yield_if_needed` yields.
pub(crate) const SLICE_NS: u64 = 200_000;

/// The tasks of one shard.
pub(crate) struct Executor {
    queues: LocalCell<Queues>,
    /// Every task that has not ended, so that closing can cancel it. The task's future holds its index.
    tasks: LocalCell<Tasks>,
    slice: Ticks,
    /// The first reading of the clock in this turn. Most turns are short and never read it.
    slice_began: Cell<Option<Ticks>>,
    /// The task that is running.
    current: Cell<u32>,
    /// A longer poll is recorded as a stall.
    stall: Ticks,
    stalls: LocalCell<Stalls>,
    /// Notified of every poll, for back-traces of long polls.
    beat: Beat,
    /// Set when a task yields: the turn's tasks have had their share.
    yielded: Cell<bool>,
}

const NO_TASK: u32 = u32::MAX;

struct Tasks {
    slots: Vec<Option<LiveTask>>,
    /// The type name of the last future in each place.
    names: Vec<&'static str>,
    free: Vec<usize>,
    closed: bool,
}

/// A task that has not ended.
struct LiveTask {
    task: async_task::Task<(), TaskMeta>,
    /// The waker for the task's operations, kept once here instead of being reference-counted per operation.
    waker: Waker,
}

impl Executor {
    pub(crate) fn new(clock: &Clock, stall_ns: u64, beat: Beat) -> Executor {
        Executor {
            queues: LocalCell::new(Queues::new()),
            tasks: LocalCell::new(Tasks {
                slots: Vec::new(),
                names: Vec::new(),
                free: Vec::new(),
                closed: false,
            }),
            slice: clock.ticks(SLICE_NS),
            slice_began: Cell::new(None),
            current: Cell::new(NO_TASK),
            stall: clock.ticks(stall_ns),
            stalls: LocalCell::new(Stalls::default()),
            beat,
            yielded: Cell::new(false),
        }
    }

    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.queues.with(|queues| queues.is_empty())
    }

    /// Returns the number of tasks that have not ended.
    pub(crate) fn task_count(&self) -> usize {
        self.tasks.with(|tasks| tasks.slots.len() - tasks.free.len())
    }

    #[inline]
    pub(crate) fn push(&self, runnable: Runnable) {
        self.queues.with(|queues| queues.push(runnable));
    }

    /// Starts a task that sends its result to `answer`. A closed executor drops both, which completes the
    /// result with an error.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        inbox: &Arc<Inbox>,
        class: Class,
        future: impl Future<Output = T> + 'static,
        answer: Sender<T>,
        abort: Arc<Abort>,
    ) {
        let Some(index) = self.tasks.with(|tasks| tasks.reserve()) else {
            // In this order, and with a panic caught, as for a task that has started.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
            return drop(answer);
        };
        let name = std::any::type_name_of_val(&future);
        self.begin(inbox.clone(), class, name, TaskFuture::new(future, answer, index, abort));
    }

    fn begin(&self, home: Arc<Inbox>, class: Class, name: &'static str, future: TaskFuture) {
        let index = future.index();
        self.tasks.with(|tasks| tasks.names[index] = name);
        let schedule = move |runnable: Runnable| schedule(&home, runnable);
        let builder = async_task::Builder::new().metadata(TaskMeta { class, index: index as u32 });
        // SAFETY: the future and its output are 'static. The future need not be Send: it is polled and dropped on the shard's
        // thread only, because `schedule` hands every runnable to that thread (its own queue, or the inbox, which that thread
        // empties), and because at its end the thread cancels every task and runs all runnables, so that no runnable with a future
        // inside outlives it; when the thread dies by a panic all of it is leaked instead. `schedule` itself is Send + Sync: it
        // holds an Arc of an Inbox.
        let (runnable, task) = unsafe { builder.spawn_unchecked(move |_| future, schedule) };
        let waker = runnable.waker();
        debug_assert!(self.tasks.with(|tasks| tasks.slots[index].is_none()), "a task has a place of its own");
        self.tasks.with(|tasks| tasks.slots[index] = Some(LiveTask { task, waker }));
        runnable.schedule();
    }

    /// Polls all ready tasks, or until the turn's allowance is used up.
    #[inline]
    pub(crate) fn run(&self, shard: &Shard) {
        self.slice_began.set(None);
        // A panic in a task's code is caught in `TaskFuture`. A panic that unwinds to here is of a waker or a destructor of the
        // program and must not end the shard. The rest of the turn's tasks run next turn.
        if catch_unwind(AssertUnwindSafe(|| self.run_ready(shard))).is_err() {
            self.beat.poll_ends();
        }
        self.current.set(NO_TASK);
        shard.set_class(Class::DEFAULT);
    }

    fn run_ready(&self, shard: &Shard) {
        let mut polls = 0;
        // The clock is not read where a reading costs as much as half an operation.
        let timed = shard.clock().is_cheap();
        let mut began = if timed { shard.clock().now() } else { 0 };
        while let Some(runnable) = self.queues.with(|queues| queues.pop(&shard.engine().classes)) {
            let TaskMeta { class, index } = *runnable.metadata();
            shard.set_class(class);
            self.current.set(index);
            self.beat.poll_begins();
            runnable.run();
            self.beat.poll_ends();
            if timed {
                let ended = shard.clock().now();
                if ended.wrapping_sub(began) > self.stall {
                    self.note_stall(index, shard.clock().ns(ended.wrapping_sub(began)));
                }
                began = ended;
            } else if let Some((_, since)) = self.beat.sampled() {
                // The watcher has measured this poll.
                self.note_stall(index, shard.clock().ns(shard.clock().now().wrapping_sub(since)));
            }
            polls += 1;
            if self.yielded.replace(false)
                || polls == POLLS_PER_TURN
                || (polls % POLLS_PER_CLOCK == 0 && self.slice_is_over(shard))
            {
                break;
            }
        }
    }

    #[cold]
    fn note_stall(&self, index: u32, ns: u64) {
        let name = self.tasks.with(|tasks| tasks.names.get(index as usize).copied().unwrap_or_default());
        self.stalls.with(|stalls| stalls.note(name, ns, &self.beat));
    }

    /// Returns the tasks that held the shard for too long.
    pub(crate) fn stalls(&self) -> Vec<Stall> {
        self.stalls.with(|stalls| stalls.list(&self.beat))
    }

    /// Returns the number of the running task if `waker` is that task's own waker.
    /// [`wake_task`](Self::wake_task) then has the same effect as the waker.
    #[inline]
    pub(crate) fn own_task(&self, waker: &Waker) -> Option<u32> {
        let index = self.current.get();
        let own = self.tasks.with(|tasks| match tasks.slots.get(index as usize) {
            Some(Some(live)) => live.waker.will_wake(waker),
            _ => false,
        });
        own.then_some(index)
    }

    /// Wakes a task by its number. A task that has ended ignores it; another task in its place sees a
    /// spurious wake-up.
    #[inline]
    pub(crate) fn wake_task(&self, index: u32) {
        self.tasks.with(|tasks| {
            if let Some(Some(live)) = tasks.slots.get(index as usize) {
                // This runs only our own `schedule`, which does not access the list of tasks.
                live.waker.wake_by_ref();
            }
        });
    }

    /// Ends this turn's tasks after the current poll, so that completions and the inbox are first.
    pub(crate) fn give_way(&self) {
        self.yielded.set(true);
    }

    /// Returns whether this turn's time slice has passed.
    #[inline]
    pub(crate) fn slice_is_over(&self, shard: &Shard) -> bool {
        let now = shard.clock().now();
        match self.slice_began.get() {
            Some(began) => now.wrapping_sub(began) > self.slice,
            None => {
                self.slice_began.set(Some(now));
                false
            }
        }
    }

    /// Cancels every task and rejects new tasks. The caller then runs until [`task_count`](Self::task_count) is 0.
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
            debug_assert!(tasks.free.len() <= tasks.slots.len(), "a task's place goes back once");
            tasks.slots[index].take()
        });
        if let Some(LiveTask { task, waker }) = task {
            task.detach();
            drop(waker);
        }
    }
}

impl Tasks {
    fn reserve(&mut self) -> Option<usize> {
        if self.closed {
            return None;
        }
        Some(self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.names.push("");
            self.slots.len() - 1
        }))
    }
}

/// Schedules a woken task: directly into a run queue on its own thread, through the inbox from any other.
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
