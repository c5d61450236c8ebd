//! An engine as C holds it: the core's engine, its classes, and the operations that have not ended.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay::{ClassSpec, internal};

use crate::callbacks::{self, Event, Notifier};
use crate::code::{Code, Fault};
use crate::op::Op;
use crate::types::CloseReport;

/// How long a close waits for memory that no leaked operation has: a request that was given up returns it on another thread.
const RETURN_PATIENCE: Duration = Duration::from_secs(1);

/// The classes of each engine, by the numbers that C has: `FB_CLASS_DEFAULT`, `FB_CLASS_LOG` and `FB_CLASS_BACKGROUND`.
const CLASSES: [forebay::Class; 3] =
    [forebay::Class::DEFAULT, forebay::Class::LOG, forebay::Class::BACKGROUND];

/// The handle of an engine.
pub struct Engine {
    pub(crate) instance: Arc<Instance>,
    callback_thread: JoinHandle<()>,
}

/// The handle of a file.
pub struct File {
    pub(crate) file: forebay::File,
    pub(crate) instance: Arc<Instance>,
}

/// The state that the handles of an engine share.
pub(crate) struct Instance {
    pub(crate) engine: forebay::Engine,
    /// By the numbers that C has: first those of each engine.
    classes: Mutex<Vec<forebay::Class>>,
    live: Mutex<Live>,
    /// Notified when the last live operation has ended.
    idle: Condvar,
    events: Sender<Event>,
    /// The core's engine has ended: memory that is not back by now is lost.
    is_over: AtomicBool,
}

struct Live {
    next: u64,
    ops: HashMap<u64, Arc<Op>>,
    is_closing: bool,
}

/// Any thread may use a handle.
const _: fn() = || {
    fn on_any_thread<T: Send + Sync>() {}
    on_any_thread::<Engine>();
    on_any_thread::<File>();
    on_any_thread::<Op>();
};

/// Locks a mutex, also after a panic: no state here is left in between.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    pub(crate) fn start(config: forebay::Config) -> Result<Engine, Fault> {
        let engine = forebay::Engine::start(config)?;
        let (events, queue) = mpsc::channel();
        let callback_thread = thread::Builder::new()
            .name("forebay-call".to_owned())
            .spawn(move || callbacks::run(queue))
            .map_err(|error| Fault {
                code: Code::Io,
                os_error: error.raw_os_error().unwrap_or(0),
                text: format!("the callback thread could not be started: {error}"),
            })?;
        let instance = Arc::new(Instance {
            engine,
            classes: Mutex::new(CLASSES.to_vec()),
            live: Mutex::new(Live { next: 0, ops: HashMap::new(), is_closing: false }),
            idle: Condvar::new(),
            events,
            is_over: AtomicBool::new(false),
        });
        Ok(Engine { instance, callback_thread })
    }

    /// Ends the engine, every operation that was submitted, and the callback thread.
    pub(crate) fn close(self) -> Result<CloseReport, Fault> {
        let Engine { instance, callback_thread } = self;
        lock(&instance.live).is_closing = true;
        let closed = instance.engine.clone().close().wait();
        instance.is_over.store(true, Ordering::Release);
        let lost_memory = instance.end_all();
        instance.send(Event::Stop);
        // It catches the panics of its work.
        let _ = callback_thread.join();
        let report = closed?;
        Ok(CloseReport {
            size: size_of::<CloseReport>(),
            leaked_operations: report.leaked_operations as u64,
            lost_shards: report.lost_shards as u64,
            lost_memory,
        })
    }
}

impl Instance {
    /// Returns an error in a forked child, which must not acquire the locks: other threads may have held them at the fork.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if internal::is_forked(&self.engine) {
            return Err(Fault::new(
                Code::Forked,
                "the handle was inherited through fork, and the parent alone may use it; start an engine in the child",
            ));
        }
        Ok(())
    }

    /// Sets a class, and returns its number.
    pub(crate) fn set_class(&self, spec: ClassSpec) -> Result<u32, Fault> {
        let class = self.engine.set_class(spec)?;
        let mut classes = lock(&self.classes);
        let known = classes.iter().position(|known| *known == class);
        let place = known.unwrap_or_else(|| {
            classes.push(class);
            classes.len() - 1
        });
        // An engine has at most 16 classes.
        Ok(place as u32)
    }

    /// Returns the class with that number.
    pub(crate) fn class(&self, number: u32) -> Result<forebay::Class, Fault> {
        let place = number as usize;
        // The requests of all threads come here: those of the usual classes share no lock.
        let class = CLASSES.get(place).copied().or_else(|| lock(&self.classes).get(place).copied());
        class.ok_or_else(|| {
            Fault::invalid(format!("there is no class {number}; fb_engine_class makes classes"))
        })
    }

    /// Makes an operation.
    pub(crate) fn admit(
        self: &Arc<Self>,
        notifier: Option<Notifier>,
        is_memory_out: bool,
    ) -> Result<Arc<Op>, Fault> {
        let mut live = lock(&self.live);
        if live.is_closing {
            return Err(Fault::new(Code::EngineClosed, "submit: the engine was closed"));
        }
        let number = live.next;
        live.next += 1;
        let op = Op::new(self.clone(), number, notifier, is_memory_out);
        live.ops.insert(number, op.clone());
        Ok(op)
    }

    /// Forgets an operation that has ended and was announced.
    pub(crate) fn leave(&self, number: u64) {
        let mut live = lock(&self.live);
        let op = live.ops.remove(&number);
        let is_idle = live.ops.is_empty();
        drop(live);
        if is_idle {
            self.idle.notify_all();
        }
        drop(op);
    }

    pub(crate) fn send(&self, event: Event) {
        // After the end of the thread no operation is left.
        let _ = self.events.send(event);
    }

    /// Returns whether the core's engine has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Ends all operations once the core's engine has ended, and returns how many have lost their memory.
    fn end_all(&self) -> u64 {
        for op in self.live_ops() {
            if op.notifier().is_some() {
                self.send(Event::Wake(op));
            } else {
                op.drive();
            }
        }
        let mut lost = 0;
        if !self.wait_idle(Some(RETURN_PATIENCE)) {
            lost = self.live_ops().iter().filter(|op| op.give_up()).count() as u64;
            // Callbacks that run still.
            self.wait_idle(None);
        }
        lost
    }

    fn live_ops(&self) -> Vec<Arc<Op>> {
        lock(&self.live).ops.values().cloned().collect()
    }

    /// Waits until no operation is left, at most for the time of `patience`, and returns whether that is so.
    fn wait_idle(&self, patience: Option<Duration>) -> bool {
        let live = lock(&self.live);
        let is_busy = |live: &mut Live| !live.ops.is_empty();
        match patience {
            None => drop(self.idle.wait_while(live, is_busy).unwrap_or_else(PoisonError::into_inner)),
            Some(patience) => {
                let waited = self.idle.wait_timeout_while(live, patience, is_busy);
                let (live, _) = waited.unwrap_or_else(PoisonError::into_inner);
                return live.ops.is_empty();
            }
        }
        true
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("path", &self.file.path()).finish_non_exhaustive()
    }
}
