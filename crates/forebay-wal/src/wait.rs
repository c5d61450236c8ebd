//! `.wait()`: blocking a plain thread on an answer of the log.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use forebay::Engine;

use crate::error::{Error, ErrorKind, Result};

/// Runs `future` to its end on the calling thread, which sleeps in between.
///
/// A shard's thread is refused, and a simulated world's: it would wait for work that only it can do.
pub(crate) fn block_on<T>(engine: &Engine, future: impl Future<Output = Result<T>>) -> Result<T> {
    if forebay::shard::current().is_some() {
        return Err(Error::new(ErrorKind::WaitOnShard, "waiting on a shard's own thread would never end"));
    }
    if engine.driver() == "sim" {
        let text = "waiting would stop the one thread of the simulated world";
        return Err(Error::new(ErrorKind::WaitInWorld, text));
    }
    thread_local! {
        static PARKER: Waker = Waker::from(Arc::new(Parker(thread::current())));
    }
    let waker = PARKER.with(Waker::clone);
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            // A wake between the poll and here leaves a token, so this returns at once.
            Poll::Pending => thread::park(),
        }
    }
}

struct Parker(Thread);

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}
