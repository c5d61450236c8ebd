//! The one engine of a process: made at its first use, again in a forked child, and left alone when the interpreter ends.

use std::os::raw::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use forebay::internal::PerProcess;
use forebay::{Config, DriverChoice, Engine};
use pyo3::exceptions::{PyImportError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::fault::Fault;
use crate::memory::Owner;
use crate::turns::Turns;

/// The number of forks between the process that loaded the module and this one.
static GENERATION: AtomicU64 = AtomicU64::new(0);
static CURRENT: PerProcess<Process> = PerProcess::new();
/// The interpreter is shutting down: no object of it is touched from outside any more.
static ENDING: AtomicBool = AtomicBool::new(false);
/// The settings for the engine; never held while the interpreter is released, so that no fork finds it locked.
static SETTINGS: Mutex<Settings> = Mutex::new(Settings::NONE);

#[derive(Clone, Copy)]
struct Settings {
    arena_bytes: Option<usize>,
    overflow_bytes: Option<usize>,
    shards: Option<usize>,
    queue_depth: Option<u32>,
    driver: DriverChoice,
}

impl Settings {
    const NONE: Settings = Settings {
        arena_bytes: None,
        overflow_bytes: None,
        shards: None,
        queue_depth: None,
        driver: DriverChoice::Auto,
    };

    fn into_config(self) -> Config {
        let mut config = Config::new().driver(self.driver);
        if let Some(bytes) = self.arena_bytes {
            config = config.arena_bytes_max(bytes);
        }
        if let Some(bytes) = self.overflow_bytes {
            config = config.overflow_bytes_max(bytes);
        }
        if let Some(shards) = self.shards {
            config = config.shards(shards);
        }
        if let Some(depth) = self.queue_depth {
            config = config.queue_depth(depth);
        }
        config
    }
}

/// The state of one process. It is never freed: threads that the interpreter leaves behind still use it.
#[derive(Default)]
pub(crate) struct Process {
    engine: OnceLock<Engine>,
    /// Held while the engine starts, with the interpreter released.
    starting: Mutex<()>,
    /// The turns of batches over files by their paths.
    pub(crate) turns: Turns,
    /// Python's objects that lent their memory to operations which ended without their caller.
    returned: Mutex<Vec<Owner>>,
    has_returned: AtomicBool,
}

extern "C" fn after_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Lets forked children notice that they are; once for a process. Refuses interpreters other than the first, whose objects the
/// engine's threads could not distinguish.
pub(crate) fn prepare(_: Python<'_>) -> PyResult<()> {
    // SAFETY: attached, so a current interpreter exists.
    let number = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    if number != 0 {
        return Err(PyImportError::new_err(
            "forebay works in the main interpreter of a process only, and this is a subinterpreter; use threads or processes",
        ));
    }
    static DONE: OnceLock<c_int> = OnceLock::new();
    // SAFETY: the handler is a function of this library, which the interpreter never unloads, and does one atomic addition,
    // which is allowed after a fork.
    let status = *DONE.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) });
    match status {
        0 => Ok(()),
        _ => Err(PyOSError::new_err((status, "forebay could not register its handler for forks"))),
    }
}

/// Returns the number that differs between a process and its forked children.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// Returns this process's state. A child's is new: locks that other threads held at the fork are not part of it.
pub(crate) fn current() -> &'static Process {
    CURRENT.get(Process::default)
}

/// Returns the engine, which the first call starts: a few milliseconds, with the interpreter released.
pub(crate) fn engine(py: Python<'_>) -> PyResult<&'static Engine> {
    let process = current();
    if let Some(engine) = process.engine.get() {
        return Ok(engine);
    }
    let config = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner).into_config();
    let started = py.detach(|| {
        let _alone = process.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = process.engine.get() {
            return Ok(engine);
        }
        let engine = Engine::start(config)?;
        Ok(process.engine.get_or_init(|| engine))
    });
    started.map_err(|error| Fault::new(error).into_py(py))
}

/// Returns the engine if it has been started in this process.
pub(crate) fn started_engine() -> Option<&'static Engine> {
    current().engine.get()
}

/// Sets how the engine starts. Call it before the first file is opened.
///
/// arena_bytes: the most bytes of I/O memory, 1 GiB by default. overflow_bytes: the most bytes in addition to it, 64 MiB by
/// default. shards: the number of storage threads, one to a few by default. queue_depth: requests of one thread in flight. driver:
/// "auto", "uring" or "threads". An omitted setting keeps its default.
///
/// Raises RuntimeError when the engine of this process runs already. A forked child that has not used the engine yet may set
/// other values than its parent.
#[pyfunction]
#[pyo3(signature = (*, arena_bytes=None, overflow_bytes=None, shards=None, queue_depth=None, driver="auto"))]
pub(crate) fn configure(
    arena_bytes: Option<usize>,
    overflow_bytes: Option<usize>,
    shards: Option<usize>,
    queue_depth: Option<u32>,
    driver: &str,
) -> PyResult<()> {
    let driver = match driver {
        "auto" => DriverChoice::Auto,
        "uring" => DriverChoice::Uring,
        "threads" => DriverChoice::Threads,
        other => {
            return Err(PyValueError::new_err(format!(
                "driver is {other:?}; use \"auto\", \"uring\" or \"threads\""
            )));
        }
    };
    for (name, value) in
        [("arena_bytes", arena_bytes), ("shards", shards), ("queue_depth", queue_depth.map(|n| n as usize))]
    {
        if value == Some(0) {
            return Err(PyValueError::new_err(format!("{name} is 0; use at least 1")));
        }
    }
    if current().engine.get().is_some() {
        return Err(PyRuntimeError::new_err(
            "the engine of this process runs already; call forebay.configure before the first file is opened",
        ));
    }
    let settings = Settings { arena_bytes, overflow_bytes, shards, queue_depth, driver };
    *SETTINGS.lock().unwrap_or_else(PoisonError::into_inner) = settings;
    Ok(())
}

/// Marks the end of the interpreter, after which memory of Python that is returned late is leaked.
#[pyfunction]
pub(crate) fn close_at_exit() {
    ENDING.store(true, Ordering::Release);
}

impl Process {
    /// Queues an object that cannot be released here, because this thread is not attached to the interpreter.
    pub(crate) fn give_back(&self, owner: Owner) {
        if ENDING.load(Ordering::Acquire) {
            std::mem::forget(owner);
            return;
        }
        self.returned.lock().unwrap_or_else(PoisonError::into_inner).push(owner);
        let was = self.has_returned.swap(true, Ordering::AcqRel);
        if !was {
            // SAFETY: the function may be called without the interpreter's lock. A full list of pending calls refuses; then the next
            // call of the package does the work.
            unsafe { ffi::Py_AddPendingCall(Some(pending_call), ptr::null_mut()) };
        }
    }

    /// Releases the queued objects.
    pub(crate) fn release_returned(&self, py: Python<'_>) {
        if !self.has_returned.load(Ordering::Relaxed) {
            return;
        }
        self.has_returned.store(false, Ordering::Release);
        let returned = std::mem::take(&mut *self.returned.lock().unwrap_or_else(PoisonError::into_inner));
        returned.into_iter().for_each(|owner| owner.release(py));
    }
}

extern "C" fn pending_call(_: *mut std::ffi::c_void) -> c_int {
    // SAFETY: the interpreter calls it on its main thread, which is attached then.
    let py = unsafe { Python::assume_attached() };
    current().release_returned(py);
    0
}
