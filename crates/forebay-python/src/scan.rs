//! Scans: blocks from front to back, shown to Python where they lie.

use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::fault::Fault;
use crate::hub::{Call, Hub};
use crate::job::{Job, Outcome, Value};
use crate::memory::{AlignedMemory, BlockBytes, Here};
use crate::{drive, process};

/// The state that a scan and the operation in progress share.
struct ScanState {
    scan: Mutex<forebay::Scan>,
    /// Somebody waits for its next block.
    is_busy: AtomicBool,
    path: Arc<Path>,
}

/// A scan of a file from front to back: an iterator of read-only memoryviews. See File.scan.
#[pyclass(frozen, module = "forebay")]
pub(crate) struct Scan {
    shared: Here<Arc<ScanState>>,
}

/// Ends the mark of a scan in use, also when its operation is dropped.
struct Busy(Arc<ScanState>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.is_busy.store(false, Ordering::Release);
    }
}

impl Scan {
    pub(crate) fn new(scan: forebay::Scan, path: Arc<Path>) -> Scan {
        let shared = ScanState { scan: Mutex::new(scan), is_busy: AtomicBool::new(false), path };
        Scan { shared: Here::new(Arc::new(shared)) }
    }

    fn next(&self) -> PyResult<Job> {
        let shared = self.shared.get().ok_or_else(|| {
            PyRuntimeError::new_err("this scan was started before the process was forked; start a new scan")
        })?;
        if shared.is_busy.swap(true, Ordering::AcqRel) {
            return Err(PyRuntimeError::new_err(
                "another thread or task waits for the next block of this scan; give each a scan of its own",
            ));
        }
        let busy = Busy(shared.clone());
        Ok(Box::pin(async move {
            let shared = &busy.0;
            let next = poll_fn(|context| {
                let mut scan = shared.scan.lock().unwrap_or_else(PoisonError::into_inner);
                // The state is the scan's: a future for each poll loses nothing.
                pin!(scan.next()).poll(context)
            });
            Outcome::new(match next.await {
                None => Ok(Value::End),
                Some(Err(error)) => Err(Fault::of_file(error, &shared.path)),
                Some(Ok(block)) => kept(block),
            })
        }))
    }
}

/// Returns a block in the form that Python keeps: in I/O memory while that is plentiful, as a copy if a program keeps many.
fn kept(block: forebay::Block) -> Result<Value, Fault> {
    let is_scarce = process::started_engine().is_some_and(|engine| {
        let memory = engine.memory();
        memory.held_bytes > memory.arena_bytes_max / 4
    });
    if is_scarce && let Ok(copy) = AlignedMemory::of(&block) {
        return Ok(Value::Block(BlockBytes::Copied(copy)));
    }
    Ok(Value::Block(BlockBytes::Io(Here::new(block))))
}

#[pymethods]
impl Scan {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        drive::run(py, process::engine(py)?, self.next()?, false)
    }

    /// Starts the read of the next block on an asyncio loop.
    fn _begin_next(&self, hub: &Bound<'_, Hub>, make_future: &Bound<'_, PyAny>) -> PyResult<Call> {
        Hub::begin(hub, make_future, self.next()?)
    }
}
