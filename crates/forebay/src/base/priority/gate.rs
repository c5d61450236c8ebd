//! Waiting of a real-time thread in places where an ordinary thread may spin.

use std::sync::PoisonError;
use std::time::Duration;

use crate::base::sync::{Mutex, MutexGuard};

/// A lock around a lock-free queue that a real-time thread uses on one side.
///
/// A thread may be preempted between claiming a place in such a queue and filling it. The next thread at that place spins until the
/// first one runs again. A shard under `SCHED_FIFO` that has preempted it keeps the processor that it needs, until the kernel steps
/// in: six senders on two processors had operations of 100 to 134 ms for that reason. At the gate the shard sleeps instead. Shards
/// of other priorities have no gate: they spin for a slice at most.
#[derive(Debug, Default)]
pub(crate) struct Gate(Option<Mutex<()>>);

impl Gate {
    pub(crate) fn new(real_time: bool) -> Gate {
        Gate(real_time.then(|| Mutex::new(())))
    }

    /// Locks the queue until the returned guard is dropped. Needed for every access that claims a place, on
    /// both sides.
    #[inline]
    pub(crate) fn enter(&self) -> Option<MutexGuard<'_, ()>> {
        self.0.as_ref().map(|gate| gate.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Lets other threads run before a check is repeated. It yields, and in real time it naps, since no ordinary
/// thread gets the processor by a yield. Returns how many checks that counts for.
pub(crate) fn let_others_run(real_time: bool) -> u32 {
    if !real_time {
        std::thread::yield_now();
        return 1;
    }
    let nap = Duration::from_micros(50);
    let time = rustix::thread::Timespec { tv_sec: 0, tv_nsec: nap.subsec_nanos() as _ };
    // A signal may cut the nap short: the caller checks again anyway.
    let _ = rustix::thread::nanosleep(&time);
    100
}
