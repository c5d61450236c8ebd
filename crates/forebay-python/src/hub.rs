//! Operations of an asyncio loop: one descriptor for all of them, and no thread.
//!
//! The loop watches the hub's descriptor. A completion wakes its operation's waker, on any thread: it notes the operation as ready
//! and writes to the descriptor if it is the first one. The loop then calls [`Hub::run`], which polls the operations that are ready
//! and sets their asyncio futures.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use pyo3::PyTraverseError;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyStopAsyncIteration};
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

use crate::job::{Job, Outcome};
use crate::memory::Here;
use crate::process;

/// The operations of one asyncio loop.
#[pyclass(frozen, module = "forebay._forebay", weakref)]
pub(crate) struct Hub {
    inner: Here<Inner>,
}

struct Inner {
    ready: Arc<Ready>,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    next: u64,
    pending: HashMap<u64, Pending>,
}

struct Pending {
    /// `None` while it is polled.
    job: Option<Job>,
    waker: Arc<CallWaker>,
    future: Py<PyAny>,
}

/// The operations that can continue.
struct Ready {
    numbers: Mutex<Vec<u64>>,
    event: OwnedFd,
}

struct CallWaker {
    number: u64,
    ready: Arc<Ready>,
    /// Whether it is in the ready list.
    is_noted: AtomicBool,
}

impl Wake for CallWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_noted.swap(true, Ordering::AcqRel) {
            return;
        }
        let is_first = {
            let mut numbers = lock(&self.ready.numbers);
            numbers.push(self.number);
            numbers.len() == 1
        };
        if is_first {
            // Fails only where the counter is full, and then the loop is woken anyway.
            let _ = rustix::io::write(&self.ready.event, &1u64.to_ne_bytes());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    fn inner(&self) -> PyResult<&Inner> {
        self.inner.get().ok_or_else(|| {
            PyRuntimeError::new_err(
                "this asyncio loop was inherited through fork; make a new one with asyncio.run",
            )
        })
    }

    /// Starts an operation. `make_future` makes the loop's future if it does not end immediately.
    pub(crate) fn begin(
        slf: &Bound<'_, Self>,
        make_future: &Bound<'_, PyAny>,
        mut job: Job,
    ) -> PyResult<Call> {
        let py = slf.py();
        let inner = slf.get().inner()?;
        process::current().release_returned(py);
        let number = {
            let mut calls = lock(&inner.calls);
            calls.next += 1;
            calls.next
        };
        let waker =
            Arc::new(CallWaker { number, ready: inner.ready.clone(), is_noted: AtomicBool::new(false) });
        let polled = py.detach(|| {
            // `run` works on this same thread: any wake-up then finds the call in the table.
            let polled = job.as_mut().poll(&mut Context::from_waker(&Waker::from(waker.clone())));
            (polled, job)
        });
        let job = match polled {
            (Poll::Ready(outcome), _) => {
                let outcome = Some(outcome);
                return Ok(Call { hub: None, number, future: None, outcome: Mutex::new(outcome) });
            }
            (Poll::Pending, job) => job,
        };
        let future = make_future.call0()?.unbind();
        let pending = Pending { job: Some(job), waker, future: future.clone_ref(py) };
        lock(&inner.calls).pending.insert(number, pending);
        Ok(Call { hub: Some(slf.clone().unbind()), number, future: Some(future), outcome: Mutex::new(None) })
    }

    fn cancel(&self, number: u64) {
        // In a forked child it is the parent's.
        if let Some(inner) = self.inner.get() {
            let pending = lock(&inner.calls).pending.remove(&number);
            drop(pending);
        }
    }
}

#[pymethods]
impl Hub {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Hub> {
        // The engine is made before the loop waits for it.
        process::engine(py)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
            PyOSError::new_err((error.raw_os_error(), "no eventfd could be made for this asyncio loop"))
        })?;
        let ready = Arc::new(Ready { numbers: Mutex::new(Vec::new()), event });
        Ok(Hub { inner: Here::new(Inner { ready, calls: Mutex::default() }) })
    }

    /// Returns whether the hub belongs to this process.
    fn is_here(&self) -> bool {
        self.inner.get().is_some()
    }

    /// Returns the descriptor that is readable when `run` has something to do.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.inner()?.ready.event.as_raw_fd())
    }

    /// Returns the number of operations that have not ended.
    fn __len__(&self) -> usize {
        self.inner.get().map_or(0, |inner| lock(&inner.calls).pending.len())
    }

    /// Polls the operations that are ready and sets the futures of those that have ended; on the loop's thread.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner()?;
        let mut count = [0u8; 8];
        // An empty event is not an error: an earlier turn may have done the work.
        let _ = rustix::io::read(&inner.ready.event, &mut count);
        let numbers = std::mem::take(&mut *lock(&inner.ready.numbers));
        let mut ready: Vec<(u64, Job, Arc<CallWaker>)> = Vec::with_capacity(numbers.len());
        {
            let mut calls = lock(&inner.calls);
            for number in numbers {
                if let Some(pending) = calls.pending.get_mut(&number) {
                    pending.waker.is_noted.store(false, Ordering::Release);
                    let waker = pending.waker.clone();
                    ready.extend(pending.job.take().map(|job| (number, job, waker)));
                }
            }
        }
        let polled: Vec<(u64, Poll<Outcome>, Job)> = py.detach(|| {
            let poll = |(number, mut job, waker): (u64, Job, Arc<CallWaker>)| {
                let polled = job.as_mut().poll(&mut Context::from_waker(&Waker::from(waker)));
                (number, polled, job)
            };
            ready.into_iter().map(poll).collect()
        });
        process::current().release_returned(py);
        let mut settled = Ok(());
        for (number, polled, job) in polled {
            match polled {
                Poll::Pending => {
                    // A call that was cancelled meanwhile is dropped here.
                    if let Some(pending) = lock(&inner.calls).pending.get_mut(&number) {
                        pending.job = Some(job);
                    }
                }
                Poll::Ready(outcome) => {
                    drop(job);
                    let pending = lock(&inner.calls).pending.remove(&number);
                    let result = end(py, outcome);
                    if let Some(pending) = pending {
                        // A signal's handler may raise in it; that must not keep the other calls from their results.
                        settled = settled.and(settle(pending.future.bind(py), result));
                    }
                }
            }
        }
        settled
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Held elsewhere, it is not garbage.
        if let Some(Ok(calls)) = self.inner.get().map(|inner| inner.calls.try_lock()) {
            for pending in calls.pending.values() {
                visit.call(&pending.future)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        if let Some(inner) = self.inner.get() {
            let pending = std::mem::take(&mut lock(&inner.calls).pending);
            drop(pending);
        }
    }
}

fn end(py: Python<'_>, outcome: Outcome) -> PyResult<Py<PyAny>> {
    outcome.into_py(py)?.ok_or_else(|| PyStopAsyncIteration::new_err(()))
}

/// Sets an asyncio future that was not cancelled.
fn settle(future: &Bound<'_, PyAny>, result: PyResult<Py<PyAny>>) -> PyResult<()> {
    let py = future.py();
    if future.call_method0("done")?.is_truthy()? {
        return Ok(());
    }
    match result {
        Ok(value) => future.call_method1("set_result", (value,))?,
        Err(error) => future.call_method1("set_exception", (error.into_value(py),))?,
    };
    Ok(())
}

/// One operation of a loop.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Call {
    hub: Option<Py<Hub>>,
    number: u64,
    future: Option<Py<PyAny>>,
    outcome: Mutex<Option<Outcome>>,
}

#[pymethods]
impl Call {
    /// The loop's future; None where the operation has ended already.
    #[getter]
    fn future(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.future.as_ref().map(|future| future.clone_ref(py))
    }

    /// Returns the result of an operation that ended immediately, or raises; only once.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match lock(&self.outcome).take() {
            Some(outcome) => end(py, outcome),
            None => Err(PyRuntimeError::new_err("the result was taken before")),
        }
    }

    /// Gives the operation up, if it has not ended; its memory stays with the engine until the kernel is done with it.
    fn cancel(&self) {
        if let Some(hub) = &self.hub {
            hub.get().cancel(self.number);
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.hub)?;
        visit.call(&self.future)
    }
}
