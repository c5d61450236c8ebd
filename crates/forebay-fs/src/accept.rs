//! Bytes that a file has accepted are in it before the end of what could outlive them unseen: the runtime whose task gave them, or
//! a thread without a runtime. tokio's runtimes wait for their blocking threads; this crate's own threads are detached.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use forebay::internal::PerProcess;
use tokio::runtime::{Handle, Id, RuntimeFlavor};

static RUNTIMES: PerProcess<Mutex<HashMap<Id, Arc<Ledger>>>> = PerProcess::new();

thread_local! {
    /// The wait for the writes of a thread without a runtime.
    static OWN: RefCell<Option<Wait>> = const { RefCell::new(None) };
    /// The waits of a worker for the writes of its runtime.
    static OF_WORKER: RefCell<Vec<Wait>> = const { RefCell::new(Vec::new()) };
}

/// Counts a write until the returned value is dropped, which it is when the bytes are written or have failed.
pub(crate) fn accept() -> AcceptedWrite {
    if let Ok(runtime) = Handle::try_current()
        && let Some(counted) = accept_in(&runtime)
    {
        return counted;
    }
    let own = OWN.try_with(|own| {
        let mut own = own.borrow_mut();
        let wait = own.take().filter(|own| own.0.is_open()).unwrap_or_else(|| Wait(Arc::new(Ledger::new())));
        own.insert(wait).0.clone()
    });
    // At the thread's end nothing is left that could wait.
    let ledger = own.unwrap_or_else(|_| Arc::new(Ledger::new()));
    ledger.count().unwrap_or_else(|| AcceptedWrite { ledger })
}

/// Counts a write for a runtime. One that is shut down drops the attendant immediately, before a write counts.
fn accept_in(runtime: &Handle) -> Option<AcceptedWrite> {
    let mut ledgers = RUNTIMES.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let id = runtime.id();
    if let Some(counted) = ledgers.get(&id).and_then(|ledger| ledger.count()) {
        return Some(counted);
    }
    // Those of runtimes that have ended; their numbers are used again.
    ledgers.retain(|_, ledger| ledger.is_open());
    let ledger = Arc::new(Ledger::new());
    ledgers.insert(id, ledger.clone());
    drop(runtime.spawn(Attendant { ledger: ledger.clone(), runtime: runtime.clone() }));
    ledger.count()
}

/// A write under way.
pub(crate) struct AcceptedWrite {
    ledger: Arc<Ledger>,
}

impl Drop for AcceptedWrite {
    fn drop(&mut self) {
        let mut entries = self.ledger.lock();
        entries.writes = entries.writes.saturating_sub(1);
        if entries.writes == 0 {
            self.ledger.none.notify_all();
        }
    }
}

/// Waits for the writes of a ledger when it is dropped.
struct Wait(Arc<Ledger>);

impl Drop for Wait {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A task of a runtime, which drops its tasks when it shuts down.
struct Attendant {
    ledger: Arc<Ledger>,
    runtime: Handle,
}

impl Future for Attendant {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Drop for Attendant {
    /// Leaves the wait to what the runtime joins when all its tasks are dropped: one of them may have the end of a pipe that a write
    /// waits for.
    fn drop(&mut self) {
        if !self.ledger.close() {
            return;
        }
        let wait = Wait(self.ledger.clone());
        if self.runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
            drop(self.runtime.spawn_blocking(move || drop(wait)));
        } else {
            // Tasks of the others are dropped by workers, this one too.
            let _ = OF_WORKER.try_with(move |waits| waits.borrow_mut().push(wait));
        }
    }
}

/// Writes under way.
struct Ledger {
    process: u32,
    entries: Mutex<Entries>,
    none: Condvar,
}

#[derive(Default)]
struct Entries {
    writes: usize,
    has_ended: bool,
}

impl Ledger {
    fn new() -> Ledger {
        Ledger { process: std::process::id(), entries: Mutex::default(), none: Condvar::new() }
    }

    /// Returns whether it accepts writes. A forked child has a copy without the threads that would end its writes, and perhaps
    /// locked.
    fn is_open(&self) -> bool {
        self.process == std::process::id() && !self.lock().has_ended
    }

    /// Counts a write, if it is still open.
    fn count(self: &Arc<Self>) -> Option<AcceptedWrite> {
        let mut entries = self.lock();
        if entries.has_ended {
            return None;
        }
        entries.writes += 1;
        drop(entries);
        Some(AcceptedWrite { ledger: self.clone() })
    }

    /// Rejects further writes. Returns whether some are in flight.
    fn close(&self) -> bool {
        if self.process != std::process::id() {
            return false;
        }
        let mut entries = self.lock();
        entries.has_ended = true;
        entries.writes > 0
    }

    /// Rejects further writes, and blocks until the others have ended.
    fn end(&self) {
        if !self.close() {
            return;
        }
        let mut entries = self.lock();
        while entries.writes > 0 {
            entries = self.none.wait(entries).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
