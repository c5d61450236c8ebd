//! What a real-time thread does where an ordinary one may spin.

use std::sync::PoisonError;
use std::time::Duration;

use crate::base::sync::{Mutex, MutexGuard};

/// Stands around a lock-free queue whose one side is a real-time thread.
///
/// Between claiming a place in such a queue and filling it a thread may be preempted, and who comes to that place next
/// spins until it runs again. A shard under `SCHED_FIFO` that has preempted it keeps the processor that it needs, until
/// the kernel steps in: six senders on two processors had operations of 100 to 134 ms that way. At the gate the
/// shard sleeps instead. Shards of other priorities have no gate: they spin for a slice at most.
#[derive(Debug, Default)]
pub(crate) struct Gate(Option<Mutex<()>>);

impl Gate {
    pub(crate) fn new(real_time: bool) -> Gate {
        Gate(real_time.then(|| Mutex::new(())))
    }

    /// Alone at the queue until the answer is dropped; for every access that claims a place, on both sides.
    #[inline]
    pub(crate) fn enter(&self) -> Option<MutexGuard<'_, ()>> {
        self.0.as_ref().map(|gate| gate.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Lets other threads run, for a look that is repeated: a yield, and in real time a nap, since no ordinary thread gets
/// the processor by a yield. Answers how many looks that was worth.
pub(crate) fn let_others_run(real_time: bool) -> u32 {
    if !real_time {
        std::thread::yield_now();
        return 1;
    }
    let nap = Duration::from_micros(50);
    let time = rustix::thread::Timespec { tv_sec: 0, tv_nsec: nap.subsec_nanos() as _ };
    // A signal may cut it short: the caller looks again anyway.
    let _ = rustix::thread::nanosleep(&time);
    100
}
