//! An operation that was submitted: a future, its result, and its memory.

use std::ffi::{CString, c_int};
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::callbacks::{Event, Notifier};
use crate::code::{Code, Fault, c_text};
use crate::instance::{Instance, lock};
use crate::types::Outcome;

/// An operation on its way.
pub(crate) type Job = Pin<Box<dyn Future<Output = Result<Transfer, Fault>> + Send>>;

/// The bytes that an operation moved; those of each request of a batch.
pub(crate) struct Transfer {
    pub(crate) bytes: u64,
    pub(crate) parts: Vec<Result<u64, Fault>>,
}

/// The handle of an operation that was submitted.
pub struct Op {
    instance: Arc<Instance>,
    number: u64,
    notifier: Option<Notifier>,
    /// The future, until it has ended or was cancelled. Locked while it is polled, and before `state`.
    job: Mutex<Option<Job>>,
    state: Mutex<State>,
    changed: Condvar,
    /// Set once, when the operation has ended.
    record: OnceLock<Record>,
}

struct State {
    /// The future wants to be polled.
    is_woken: bool,
    /// The engine or the kernel has memory of the caller.
    is_memory_out: bool,
    /// The result, until the operation has ended.
    result: Option<Result<Transfer, Fault>>,
}

/// The outcome of an operation that has ended, which lives as long as the operation.
struct Record {
    code: Code,
    os_error: c_int,
    bytes: u64,
    text: Option<CString>,
    parts: Vec<Record>,
}

impl Record {
    fn of(result: Result<Transfer, Fault>) -> Record {
        match result {
            Err(fault) => Record::of_fault(&fault, 0),
            Ok(Transfer { bytes, parts }) => {
                let first_fault = parts.iter().find_map(|part| part.as_ref().err());
                let mut record = match first_fault {
                    Some(fault) => Record::of_fault(fault, bytes),
                    None => Record::of_bytes(bytes),
                };
                let each = |part: Result<u64, Fault>| match part {
                    Ok(bytes) => Record::of_bytes(bytes),
                    Err(fault) => Record::of_fault(&fault, 0),
                };
                record.parts = parts.into_iter().map(each).collect();
                record
            }
        }
    }

    fn of_bytes(bytes: u64) -> Record {
        Record { code: Code::Ok, os_error: 0, bytes, text: None, parts: Vec::new() }
    }

    fn of_fault(fault: &Fault, bytes: u64) -> Record {
        let text = Some(c_text(&fault.text));
        Record { code: fault.code, os_error: fault.os_error, bytes, text, parts: Vec::new() }
    }

    fn outcome(&self) -> Outcome {
        Outcome {
            size: size_of::<Outcome>(),
            code: self.code as c_int,
            os_error: self.os_error,
            bytes: self.bytes,
            text: self.text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr()),
        }
    }
}

impl Op {
    pub(crate) fn new(
        instance: Arc<Instance>,
        number: u64,
        notifier: Option<Notifier>,
        is_memory_out: bool,
    ) -> Arc<Op> {
        Arc::new(Op {
            instance,
            number,
            notifier,
            job: Mutex::new(None),
            state: Mutex::new(State { is_woken: true, is_memory_out, result: None }),
            changed: Condvar::new(),
            record: OnceLock::new(),
        })
    }

    pub(crate) fn instance(&self) -> &Instance {
        &self.instance
    }

    pub(crate) fn notifier(&self) -> Option<&Notifier> {
        self.notifier.as_ref()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Starts the operation on the calling thread.
    pub(crate) fn begin(self: &Arc<Self>, job: Job) {
        *lock(&self.job) = Some(job);
        self.drive();
    }

    /// Polls the future, if any.
    pub(crate) fn drive(self: &Arc<Self>) {
        let mut job = lock(&self.job);
        let Some(future) = job.as_mut() else { return };
        // Before the poll: a wake-up during it counts for the next one.
        self.state().is_woken = false;
        let waker = Waker::from(self.clone());
        let mut context = Context::from_waker(&waker);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
        let result = match polled {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(result)) => result,
            Err(payload) => {
                std::mem::forget(payload);
                Err(Fault::panicked())
            }
        };
        let over = job.take();
        drop(job);
        self.end(result, over);
    }

    /// Gives the operation up if it has no result: the kernel may still use its memory, and it ends once that is returned.
    pub(crate) fn cancel(self: &Arc<Self>, fault: Fault) {
        let job = lock(&self.job).take();
        if job.is_some() {
            self.end(Err(fault), job);
        }
    }

    fn end(self: &Arc<Self>, result: Result<Transfer, Fault>, over: Option<Job>) {
        let is_shard_lost = matches!(&result, Err(fault) if fault.code == Code::ShardLost);
        self.state().result = Some(result);
        // The future may have memory of the caller, whose return looks for the result.
        drop(over);
        if is_shard_lost {
            // Memory that the future did not have was leaked with the shard.
            self.lose_memory();
        }
        self.settle();
    }

    /// Gives up memory that will not be returned; returns whether the operation has any.
    fn lose_memory(&self) -> bool {
        let mut state = self.state();
        let is_lost = self.record.get().is_none() && state.is_memory_out;
        if is_lost {
            state.is_memory_out = false;
            state.result = Some(Err(memory_lost()));
        }
        is_lost
    }

    /// Handles the report that neither the engine nor the kernel has memory of the operation any more.
    pub(crate) fn memory_back(self: &Arc<Self>) {
        self.state().is_memory_out = false;
        self.settle();
    }

    /// Ends the operation of an engine that has ended; returns whether its memory was not returned.
    pub(crate) fn give_up(self: &Arc<Self>) -> bool {
        let fault = Fault::new(Code::EngineClosed, "the engine was closed before the operation had ended");
        self.cancel(fault.clone());
        let is_lost = self.lose_memory();
        // For an operation that has not started.
        self.state().result.get_or_insert(Err(fault));
        self.settle();
        is_lost
    }

    /// Records the outcome, once, when the result is known and all memory is back.
    fn settle(self: &Arc<Self>) {
        let mut state = self.state();
        if state.is_memory_out || self.record.get().is_some() {
            return;
        }
        let Some(result) = state.result.take() else { return };
        // Records are set under the lock alone, and the record was unset.
        let _ = self.record.set(Record::of(result));
        drop(state);
        if self.notifier.is_some() {
            self.instance.send(Event::End(self.clone()));
        } else {
            self.instance.leave(self.number);
        }
        self.changed.notify_all();
    }

    /// Notes that the operation has been announced.
    pub(crate) fn announced(&self) {
        self.instance.leave(self.number);
    }

    /// Waits until the operation has ended, at most for the time of `patience`, and returns whether it has.
    pub(crate) fn wait(self: &Arc<Self>, patience: Option<Duration>) -> bool {
        let until = patience.and_then(|patience| Instant::now().checked_add(patience));
        loop {
            let mut state = self.state();
            if self.record.get().is_some() {
                return true;
            }
            // With a notice the callback thread polls it.
            if self.notifier.is_none() && state.is_woken {
                // For other waiters too, which poll only after another wake-up.
                state.is_woken = false;
                drop(state);
                self.drive();
                continue;
            }
            match until {
                None => drop(self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    drop(self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner));
                }
            }
        }
    }

    /// Returns the outcome, or that of a request of a batch; `None` before the operation has ended.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.record.get().map(Record::outcome)
    }

    /// Returns the outcome of a request of a batch.
    pub(crate) fn part(&self, index: usize) -> Result<Outcome, Fault> {
        let record = self.record.get().ok_or_else(pending)?;
        // A single operation, and a batch that failed as a whole, have one outcome.
        let part = if record.parts.is_empty() { Some(record) } else { record.parts.get(index) };
        let part = part.ok_or_else(|| Fault::invalid(format!("the batch has no request {index}")))?;
        Ok(part.outcome())
    }

    /// Returns the failure that the operation ended with.
    pub(crate) fn fault(&self) -> Result<(), Fault> {
        let record = self.record.get().ok_or_else(pending)?;
        let Some(text) = &record.text else { return Ok(()) };
        let text = text.to_string_lossy().into_owned();
        Err(Fault { code: record.code, os_error: record.os_error, text })
    }
}

/// Returns the failure of a call that needs the outcome of an operation that has not ended.
pub(crate) fn pending() -> Fault {
    Fault::new(Code::Pending, "the operation has not ended yet; wait for it, or cancel it and wait")
}

/// Returns the failure of an operation whose memory is not returned.
pub(crate) fn memory_lost() -> Fault {
    let text =
        "the engine ended before the device gave the memory back, to which it may still write: never free it";
    Fault::new(Code::MemoryLost, text)
}

impl Wake for Op {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.notifier.is_some() {
            self.instance.send(Event::Wake(self.clone()));
        } else {
            self.state().is_woken = true;
            self.changed.notify_all();
        }
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Op").field("number", &self.number).finish_non_exhaustive()
    }
}
