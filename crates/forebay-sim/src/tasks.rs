//! The program's own tasks, which the world polls in seeded order.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::ThreadId;

use crate::node::NodeState;

/// The number of the program itself, which is not in the list.
pub(crate) const PROGRAM: u64 = 0;

type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

struct Task {
    node: Rc<NodeState>,
    /// `None` while it is polled.
    future: Option<TaskFuture>,
    waker: Waker,
    /// Whether it may be polled on any shard's thread as well as outside.
    wanders: bool,
    abort: Arc<AtomicBool>,
}

/// All tasks, the queue of ready tasks, and the sleepers with their times.
pub(crate) struct Tasks {
    list: RefCell<BTreeMap<u64, Task>>,
    next: Cell<u64>,
    ready: Arc<Ready>,
    sleeping: RefCell<BTreeMap<(u64, u64), Waker>>,
    next_sleeper: Cell<u64>,
}

struct Ready {
    queue: Mutex<VecDeque<u64>>,
    thread: ThreadId,
    foreign: Arc<AtomicBool>,
}

struct TaskWake {
    task: u64,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for TaskWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if std::thread::current().id() != self.ready.thread {
            self.ready.foreign.store(true, Ordering::SeqCst);
        }
        if !self.queued.swap(true, Ordering::SeqCst) {
            self.ready.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.task);
        }
    }
}

/// The waker of one task, and the mark that it is in the queue.
#[derive(Clone)]
pub(crate) struct Wakes(Arc<TaskWake>);

impl Wakes {
    pub(crate) fn waker(&self) -> Waker {
        self.0.clone().into()
    }

    /// Called before a poll: from here on a wake-up queues the task again.
    pub(crate) fn taken(&self) {
        self.0.queued.store(false, Ordering::SeqCst);
    }
}

impl Tasks {
    pub(crate) fn new(foreign: Arc<AtomicBool>) -> Tasks {
        let ready = Ready { queue: Mutex::default(), thread: std::thread::current().id(), foreign };
        Tasks {
            list: RefCell::default(),
            next: Cell::new(PROGRAM + 1),
            ready: Arc::new(ready),
            sleeping: RefCell::default(),
            next_sleeper: Cell::new(0),
        }
    }

    pub(crate) fn wakes(&self, task: u64) -> Wakes {
        Wakes(Arc::new(TaskWake { task, queued: AtomicBool::new(false), ready: self.ready.clone() }))
    }

    /// Adds a task of a node that is ready to run, and returns its waker.
    pub(crate) fn add(
        &self,
        node: Rc<NodeState>,
        future: TaskFuture,
        wanders: bool,
        abort: Arc<AtomicBool>,
    ) -> Waker {
        let number = self.next.get();
        self.next.set(number + 1);
        let wakes = self.wakes(number);
        let waker = wakes.waker();
        let tracked = TrackedFuture { wakes, future };
        let task = Task { node, future: Some(Box::pin(tracked)), waker: waker.clone(), wanders, abort };
        self.list.borrow_mut().insert(number, task);
        waker.wake_by_ref();
        waker
    }

    /// Returns the number of tasks in the queue, which has the order in which they were woken.
    pub(crate) fn ready_count(&self) -> usize {
        self.ready.queue.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Removes the task at a place of the queue.
    pub(crate) fn take_ready(&self, place: usize) -> Option<u64> {
        self.ready.queue.lock().unwrap_or_else(PoisonError::into_inner).remove(place)
    }

    /// Returns the node of a task.
    pub(crate) fn node(&self, number: u64) -> Option<Rc<NodeState>> {
        self.list.borrow().get(&number).map(|task| task.node.clone())
    }

    pub(crate) fn wanders(&self, number: u64) -> bool {
        self.list.borrow().get(&number).is_some_and(|task| task.wanders)
    }

    /// Polls a task once. A finished or aborted task is removed. A panic of the task propagates to the caller.
    pub(crate) fn poll(&self, number: u64) {
        let taken = self
            .list
            .borrow_mut()
            .get_mut(&number)
            .map(|task| (task.future.take(), task.waker.clone(), task.abort.load(Ordering::SeqCst)));
        let Some((Some(mut future), waker, aborted)) = taken else { return };
        let over = aborted || future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        if over {
            // Out of the list before it is dropped: its destructors may access the list.
            let task = self.list.borrow_mut().remove(&number);
            drop(future);
            drop(task);
        } else if let Some(task) = self.list.borrow_mut().get_mut(&number) {
            task.future = Some(future);
        }
    }

    /// Returns the number of tasks that have not ended.
    pub(crate) fn count(&self) -> usize {
        self.list.borrow().len()
    }

    /// Removes the first task of a node, or of all, from the list, and returns it with its node.
    pub(crate) fn take_first(&self, node: Option<u32>) -> Option<(Rc<NodeState>, Box<dyn std::any::Any>)> {
        let mut list = self.list.borrow_mut();
        let is_meant = |task: &Task| node.is_none_or(|node| node == task.node.number);
        let number = *list.iter().find(|(_, task)| is_meant(task))?.0;
        let task = list.remove(&number)?;
        Some((task.node.clone(), Box::new(task)))
    }

    /// Forgets the ready queue and all sleepers.
    pub(crate) fn forget(&self) {
        self.ready.queue.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let sleeping = std::mem::take(&mut *self.sleeping.borrow_mut());
        drop(sleeping);
    }

    /// Wakes `waker` at a time in nanoseconds. Returns the number that removes it.
    pub(crate) fn sleep_until(&self, at_ns: u64, waker: Waker) -> u64 {
        let number = self.next_sleeper.get();
        self.next_sleeper.set(number + 1);
        self.sleeping.borrow_mut().insert((at_ns, number), waker);
        number
    }

    pub(crate) fn forget_sleeper(&self, at_ns: u64, number: u64) {
        let sleeper = self.sleeping.borrow_mut().remove(&(at_ns, number));
        drop(sleeper);
    }

    pub(crate) fn next_sleeper_ns(&self) -> Option<u64> {
        self.sleeping.borrow().keys().next().map(|&(at_ns, _)| at_ns)
    }

    /// Wakes all sleepers, which check their clock and continue to sleep.
    pub(crate) fn wake_all_sleepers(&self) {
        let sleeping = std::mem::take(&mut *self.sleeping.borrow_mut());
        sleeping.into_values().for_each(Waker::wake);
    }

    pub(crate) fn wake_sleepers(&self, now_ns: u64) {
        loop {
            let due = {
                let mut sleeping = self.sleeping.borrow_mut();
                match sleeping.first_entry() {
                    Some(first) if first.key().0 <= now_ns => first.remove(),
                    _ => return,
                }
            };
            due.wake();
        }
    }
}

/// Marks the task as out of the queue before each poll.
struct TrackedFuture {
    wakes: Wakes,
    future: TaskFuture,
}

impl Future for TrackedFuture {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.wakes.taken();
        self.future.as_mut().poll(context)
    }
}
