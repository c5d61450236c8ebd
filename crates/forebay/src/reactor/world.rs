//! The simulated world of an engine, as the engine sees it.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::base::error::Result;
use crate::base::here;
use crate::base::pending::Sender;
use crate::driver::meta::{MetaReply, MetaRequest};
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::shard::Ended;

/// Takes the reply of a call about files.
pub(crate) type MetaCallback = Box<dyn FnOnce(Result<MetaReply>) + Send>;

/// A world that engines run in. It is reached on its own thread only, while it runs.
pub(crate) trait World: fmt::Debug + Send + Sync {
    /// Returns whether this is the world's thread, and it runs.
    fn is_here(&self) -> bool;

    /// Has the world's machine carry out a call about files. Elsewhere `answer` is dropped, which sends an error.
    fn ask(&self, request: MetaRequest, answer: MetaCallback);

    /// Returns whether an open file of the machine has lost its name; `None` when the machine does not know the file.
    fn is_removed(&self, file: u32) -> Option<bool>;

    /// Makes the shards of a new engine, which the world steps from now on.
    fn adopt(&self, engine: &Arc<EngineShared>, ends: Vec<Sender<Ended>>);

    /// Returns the place of the visited shard that the task which is polled now may enter, if any, and whether it expects operations to
    /// complete at once.
    fn ring(&self, engine: &Arc<EngineShared>) -> Option<(usize, bool)>;

    /// Returns whether the task that is polled may go on. If not, it has been woken.
    fn proceeds(&self, waker: &Waker) -> bool;

    /// Lets time pass for a shard that waits for a visitor.
    fn pause(&self, pause: Duration);
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<dyn World>>> = const { RefCell::new(None) };
}

/// Returns the world that runs on this thread.
pub(crate) fn current() -> Option<Arc<dyn World>> {
    // Outside of worlds nothing is touched that a thread may have lost already when its last destructors run.
    if here::world() == 0 {
        return None;
    }
    CURRENT.with_borrow(Option::clone)
}

/// Sets the world that runs on this thread, or none.
pub(crate) fn set_current(world: Option<Arc<dyn World>>) {
    CURRENT.set(world);
}
