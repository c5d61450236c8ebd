//! The callback thread of an engine: it polls the operations that have a notice, and calls what C wants to be called.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::mpsc::Receiver;

use crate::code::{Code, Fault};
use crate::op::Op;
use crate::types::{Callback, Outcome};

/// Work for the callback thread.
pub(crate) enum Event {
    /// The future of an operation wants to be polled.
    Wake(Arc<Op>),
    /// An operation has ended.
    End(Arc<Op>),
    /// The engine has been closed.
    Stop,
}

/// How C is notified of the end of an operation.
pub(crate) struct Notifier {
    callback: Callback,
    user: AtomicPtr<c_void>,
    eventfd: Option<c_int>,
}

impl Notifier {
    /// Returns a notifier, if anything is to be notified.
    ///
    /// # Safety
    /// The callback may be called with `user` on the callback thread, does not unwind, and the descriptor is open and no one
    /// else's but the caller's, until the operation has been announced.
    pub(crate) unsafe fn new(callback: Callback, user: *mut c_void, eventfd: c_int) -> Option<Notifier> {
        let eventfd = (eventfd > 0).then_some(eventfd);
        let is_any = callback.is_some() || eventfd.is_some();
        is_any.then(|| Notifier { callback, user: AtomicPtr::new(user), eventfd })
    }

    fn notify(&self, op: &Arc<Op>, outcome: &Outcome) {
        if let Some(callback) = self.callback {
            let user = self.user.load(Ordering::Relaxed);
            // SAFETY: what C has given for this (`new`), with an operation and an outcome that live during the call.
            unsafe { callback(user, Arc::as_ptr(op).cast_mut(), outcome) };
        }
        if let Some(eventfd) = self.eventfd {
            // SAFETY: the descriptor is open (`new`), and is not closed here.
            let event = ManuallyDrop::new(unsafe { File::from_raw_fd(eventfd) });
            // A full counter has woken its reader already.
            let _ = (&*event).write_all(&1u64.to_ne_bytes());
        }
    }
}

thread_local! {
    static IS_CALLBACK_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Returns an error on a callback thread, which may neither wait nor destroy: the awaited work may need this thread.
pub(crate) fn refuse_here(call: &str) -> Result<(), Fault> {
    if IS_CALLBACK_THREAD.get() {
        let text = format!(
            "{call} waits or destroys, which a callback must not; submit, or hand it to another thread"
        );
        return Err(Fault::new(Code::InCallback, text));
    }
    Ok(())
}

/// Works until the engine has been closed.
pub(crate) fn run(events: Receiver<Event>) {
    IS_CALLBACK_THREAD.set(true);
    for event in events {
        let step = || match event {
            Event::Wake(op) => {
                op.drive();
                true
            }
            Event::End(op) => {
                if let (Some(notifier), Some(outcome)) = (op.notifier(), op.outcome()) {
                    notifier.notify(&op, &outcome);
                }
                op.announced();
                true
            }
            Event::Stop => false,
        };
        match catch_unwind(AssertUnwindSafe(step)) {
            Ok(true) => {}
            Ok(false) => return,
            // Its drop could panic as well.
            Err(payload) => std::mem::forget(payload),
        }
    }
}
