//! Drops memory of the program that dropped operations had.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::pool::Pool;
use crate::memory::lent::Releaser;

/// The most owners that wait to be dropped; more are leaked.
const QUEUE_MAX: usize = 65_536;

/// A thread for the drops of lent memory, which may block: on a lock of a thread that waits for a shard, say. So it neither reaps
/// completions nor opens or renames files. It starts with the first such drop, and ends when it is idle.
pub(crate) struct Releases {
    pool: Pool,
    leaked: Arc<AtomicU64>,
    /// A simulated world has one thread, which drops in its order.
    is_simulated: bool,
}

impl Releases {
    pub(crate) fn new(is_simulated: bool) -> Arc<Releases> {
        let pool = Pool::new("forebay-release", 1, QUEUE_MAX);
        Arc::new(Releases { pool, leaked: Arc::default(), is_simulated })
    }

    /// Returns how many owners were leaked.
    pub(crate) fn leaked(&self) -> u64 {
        self.leaked.load(Ordering::Relaxed)
    }
}

impl Releaser for Releases {
    fn release(&self, owner: Box<dyn Send>) {
        if self.is_simulated {
            return drop(owner);
        }
        // A refused job is dropped, here perhaps: the owner must not be, then.
        let owner = ManuallyDrop::new(owner);
        let job = Box::new(move || drop(ManuallyDrop::into_inner(owner)));
        if self.pool.submit(job).is_err() {
            self.leaked.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    struct Tells(mpsc::Sender<std::thread::ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.send(std::thread::current().id()).unwrap();
        }
    }

    #[test]
    fn owners_are_dropped_on_a_thread_of_their_own_and_leaked_after_the_end() {
        let (sender, drops) = mpsc::channel();
        let releases = Releases::new(false);
        releases.release(Box::new(Tells(sender.clone())));
        assert_ne!(drops.recv().unwrap(), std::thread::current().id());
        releases.pool.close();
        releases.release(Box::new(Tells(sender.clone())));
        assert!(drops.try_recv().is_err() && releases.leaked() == 1);
        Releases::new(true).release(Box::new(Tells(sender)));
        assert_eq!(drops.recv().unwrap(), std::thread::current().id());
    }
}
