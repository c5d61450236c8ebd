//! The log's own thread: it writes and flushes groups by blocking system calls, so tasks of shards and runtimes neither delay a
//! flush nor are delayed by it. A thread in `.wait()` that is alone takes the log's [`Seat`] for its group
//! ([`Duty`](crate::queue::Duty)).
//!
//! Everything else of the log (making segments, reading, opening) stays on its shard. So does the log's end with its
//! engine: a task there does nothing but notice it.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread;

use super::idle::Idle;
use super::{EndGuard, Writer};
use crate::error::{Error, ErrorKind, Result};
use crate::queue::{Queue, Server, Work};

/// Starts the thread. Returns the log's state where the system has no thread for it.
pub(crate) fn start(writer: Writer) -> std::result::Result<(), Box<Writer>> {
    let shared = writer.shared.clone();
    let seat = Arc::new(Seat(Mutex::new(Some(SeatState { writer, failure: None, is_ticking: false }))));
    let theirs = seat.clone();
    // An engine's close waits for the thread, so that the log's locks are released when it has returned.
    let of_engine = shared.engine.enter_thread();
    let body = move || {
        theirs.run();
        drop(theirs.take());
        drop(of_engine);
    };
    match thread::Builder::new().name("forebay-wal".to_owned()).spawn(body) {
        Ok(_) => {
            let server = Arc::downgrade(&seat);
            shared.serve_by(server);
            // A shard that refuses the task is ending, and the task's drop ends the log with it.
            let noticed = EngineEnd(shared);
            let task = forebay::shard::spawn(async move {
                poll_fn(|context| noticed.0.poll_end(context.waker())).await.is_ok()
            });
            drop(task);
            Ok(())
        }
        Err(_) => seat.take().map_or(Ok(()), |seated| Err(Box::new(seated.writer))),
    }
}

/// Dropped by an engine that ends, with the task that has it.
struct EngineEnd(Arc<Queue>);

impl Drop for EngineEnd {
    fn drop(&mut self) {
        self.0.engine_ends();
    }
}

/// The log's state, for the thread that writes a group: the log's own, or one that waits. `None` after the log's end.
struct Seat(Mutex<Option<SeatState>>);

struct SeatState {
    writer: Writer,
    /// What ended the work of a thread that waited. The log's own thread ends the log for it.
    failure: Option<Error>,
    /// The log's own thread waits for the end of a quiet period.
    is_ticking: bool,
}

impl Seat {
    fn lock(&self) -> MutexGuard<'_, Option<SeatState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<SeatState> {
        self.lock().take()
    }

    /// Runs on the log's own thread until the log is closed or fails, or its engine ends.
    fn run(&self) {
        let Some(shared) = self.lock().as_ref().map(|seated| seated.writer.shared.clone()) else {
            return;
        };
        let _guard = EndGuard(shared.clone());
        match self.serve(&shared) {
            Ok(()) => {}
            // The engine has ended: that cuts the log short, and is not a failure of it.
            Err(error) if error.kind() == ErrorKind::Closed => return,
            Err(error) => shared.fail(&error),
        }
        if let Some(seated) = self.take() {
            let _ = shared.engine.block_on_in_turn(seated.writer.finish());
        }
    }

    fn serve(&self, shared: &Queue) -> Result<()> {
        let mut idle = Idle::of_thread();
        if let Some(seated) = self.lock().as_mut() {
            seated.writer.prepare_ahead();
        }
        loop {
            let mut place = self.lock();
            let Some(SeatState { writer, failure, is_ticking }) = place.as_mut() else {
                return Ok(());
            };
            if let Some(error) = failure.take() {
                return Err(error);
            }
            match idle.poll_on_thread(writer) {
                Poll::Ready(work) => {
                    if shared.engine.block_on_in_turn(writer.step(work?))?? {
                        return Ok(());
                    }
                }
                Poll::Pending => {
                    *is_ticking = idle.is_ticking();
                    drop(place);
                    idle.sleep(&shared.engine);
                }
            }
        }
    }
}

impl SeatState {
    /// Writes one group, in the next segment if it has to be.
    fn write_group(&mut self) -> Result<()> {
        let shared = self.writer.shared.clone();
        while let Some(work) = shared.group_here(self.writer.room()) {
            let is_group = matches!(work, Work::Group(_));
            shared.engine.block_on_in_turn(self.writer.step(Some(work)))??;
            if is_group {
                break;
            }
        }
        Ok(())
    }
}

impl Server for Seat {
    fn write_group(&self) -> bool {
        // After a panic amid a group the writer is not used any more.
        let Ok(mut place) = self.0.lock() else { return true };
        let Some(seated) = place.as_mut().filter(|seated| seated.failure.is_none()) else {
            return true;
        };
        // This stays after a panic.
        seated.failure = Some(Error::new(ErrorKind::Closed, "a thread panicked as it wrote to the log"));
        seated.failure = seated.write_group().err();
        if let Some(error) = seated.failure.as_ref().filter(|error| error.kind() != ErrorKind::Closed) {
            seated.writer.shared.fail(error);
        }
        // The step may have slept, and have consumed a wake-up of the future around it, which is polled again.
        forebay::thread_waker().wake();
        seated.failure.is_some() || !seated.is_ticking
    }
}
