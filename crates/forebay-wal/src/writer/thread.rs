//! The log's own thread: it writes and flushes groups by system calls of its own, so neither the tasks of a shard nor those
//! of a runtime delay a flush, and a flush delays none of them.
//!
//! Everything else of the log (making segments, reading, opening) stays on its shard. So does the log's end with its
//! engine: a task there does nothing but notice it.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use forebay::Engine;

use super::idle::Idle;
use super::{EndGuard, Writer};
use crate::error::{ErrorKind, Result};
use crate::queue::Queue;

/// Starts the thread. Returns the log's state where the system has no thread for it.
pub(crate) fn start(writer: Writer) -> std::result::Result<(), Box<Writer>> {
    let shared = writer.shared.clone();
    let place = Arc::new(Mutex::new(Some(writer)));
    let take = |place: &Mutex<Option<Writer>>| place.lock().unwrap_or_else(PoisonError::into_inner).take();
    let theirs = place.clone();
    // An engine's close waits for the thread, so that the log's locks are gone when it has returned.
    let of_engine = shared.engine.enter_thread();
    let body = move || {
        if let Some(writer) = take(&theirs) {
            writer.run_on_thread();
        }
        drop(of_engine);
    };
    match thread::Builder::new().name("forebay-wal".to_owned()).spawn(body) {
        Ok(_) => {
            // A shard that refuses the task is ending, and the task's drop ends the log with it.
            let noticed = EngineEnd(shared);
            let task = forebay::shard::spawn(async move {
                poll_fn(|context| noticed.0.poll_end(context.waker())).await.is_ok()
            });
            drop(task);
            Ok(())
        }
        Err(_) => take(&place).map_or(Ok(()), |writer| Err(Box::new(writer))),
    }
}

/// Dropped by an engine that ends, with the task that has it.
struct EngineEnd(Arc<Queue>);

impl Drop for EngineEnd {
    fn drop(&mut self) {
        self.0.engine_ends();
    }
}

impl Writer {
    /// Runs until the log is closed or fails, or its engine ends.
    fn run_on_thread(mut self) {
        let _guard = EndGuard(self.shared.clone());
        let engine = self.shared.engine.clone();
        match self.serve_on_thread(&engine) {
            Ok(()) => {}
            // The engine has ended: that cuts the log short, and is no failure of it.
            Err(error) if error.kind() == ErrorKind::Closed => return,
            Err(error) => self.shared.fail(&error),
        }
        let _ = engine.block_on_in_turn(self.finish());
    }

    fn serve_on_thread(&mut self, engine: &Engine) -> Result<()> {
        let mut idle = Idle::of_thread();
        self.prepare_ahead();
        loop {
            let work = idle.wait(self)?;
            if engine.block_on_in_turn(self.step(work))?? {
                return Ok(());
            }
        }
    }
}
