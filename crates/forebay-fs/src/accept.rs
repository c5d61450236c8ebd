//! Bytes that a file has accepted are in it before the end of what could outlive them unseen: the runtime whose task gave them, or
//! a thread without a runtime. tokio's runtimes wait for their blocking threads; this crate's own threads are detached.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::runtime::{Handle, Id};

thread_local! {
    static LEDGERS: RefCell<Ledgers> = const { RefCell::new(Ledgers { of_runtimes: Vec::new(), own: None }) };
}

/// Counts a write until the returned value is dropped, which it is when the bytes are written or have failed.
pub(crate) fn accept() -> AcceptedWrite {
    let counted = LEDGERS.try_with(|ledgers| ledgers.borrow_mut().accept());
    // At the thread's end nothing is left that could wait.
    counted.unwrap_or_else(|_| AcceptedWrite { ledger: Arc::new(Ledger::new()) })
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

/// The ledgers of one thread: for each runtime that it works for, and its own.
struct Ledgers {
    of_runtimes: Vec<(Id, Arc<Ledger>)>,
    own: Option<Attendant>,
}

impl Ledgers {
    fn accept(&mut self) -> AcceptedWrite {
        if let Ok(runtime) = Handle::try_current()
            && let Some(counted) = self.of_runtime(&runtime).count()
        {
            return counted;
        }
        let own = self.own.take().filter(|own| own.ledger.is_open()).unwrap_or_else(Attendant::new);
        let ledger = own.ledger.clone();
        self.own = Some(own);
        ledger.count().unwrap_or_else(|| AcceptedWrite { ledger })
    }

    /// Returns the ledger for the runtime. A runtime that is shut down drops the attendant at once, before a write counts.
    fn of_runtime(&mut self, runtime: &Handle) -> Arc<Ledger> {
        let id = runtime.id();
        // Numbers of runtimes that have ended are used again.
        self.of_runtimes.retain(|(_, ledger)| ledger.is_open());
        if let Some((_, ledger)) = self.of_runtimes.iter().find(|(known, _)| *known == id) {
            return ledger.clone();
        }
        let attendant = Attendant::new();
        let ledger = attendant.ledger.clone();
        drop(runtime.spawn(attendant));
        self.of_runtimes.push((id, ledger.clone()));
        ledger
    }
}

/// Waits for the writes of a ledger when it is dropped: as a task of a runtime, which drops its tasks when it shuts down, or as a
/// value of a thread.
struct Attendant {
    ledger: Arc<Ledger>,
}

impl Attendant {
    fn new() -> Attendant {
        Attendant { ledger: Arc::new(Ledger::new()) }
    }
}

impl Future for Attendant {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        self.ledger.end();
    }
}

/// Writes under way, until their attendant ends.
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

    /// Returns whether it takes writes. A forked child has a copy without the threads that would end its writes, and perhaps locked.
    fn is_open(&self) -> bool {
        self.process == std::process::id() && !self.lock().has_ended
    }

    /// Counts a write, if the attendant still waits for it.
    fn count(self: &Arc<Self>) -> Option<AcceptedWrite> {
        let mut entries = self.lock();
        if entries.has_ended {
            return None;
        }
        entries.writes += 1;
        drop(entries);
        Some(AcceptedWrite { ledger: self.clone() })
    }

    /// Takes no further writes, and blocks until the others have ended.
    fn end(&self) {
        if self.process != std::process::id() {
            return;
        }
        let mut entries = self.lock();
        entries.has_ended = true;
        while entries.writes > 0 {
            entries = self.none.wait(entries).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
