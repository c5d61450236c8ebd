//! The thread that starts appends at fixed times. It stands for the network, whose packets arrive
//! whether the processors are busy or not.

use std::io;
use std::time::{Duration, Instant};

/// Raises the calling thread to the highest scheduling priority allowed, and returns a description of
/// it. Threads that it starts, such as a runtime's blocking threads, are ordinary ones.
pub(super) fn raise_priority() -> &'static str {
    if schedule(libc::SCHED_FIFO, 1, 0).is_ok() {
        return "SCHED_FIFO 1";
    }
    // Without this, sleeps end up to 50 us late; real-time threads have no such slack.
    // SAFETY: the call has no pointers; it changes the calling thread's timer slack only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
    if schedule(libc::SCHED_OTHER, 0, 100_000).is_ok() {
        return "a time slice of 100 us";
    }
    "default"
}

fn schedule(policy: libc::c_int, priority: u32, slice_ns: u64) -> io::Result<()> {
    const RESET_ON_FORK: u64 = 1;
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: policy as u32,
        sched_flags: RESET_ON_FORK,
        sched_nice: 0,
        sched_priority: priority,
        sched_runtime: slice_ns,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel reads `size` bytes of a struct that lives until the call returns; 0 is the calling
    // thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A schedule of due times.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    begins: Instant,
    period: Duration,
}

impl Schedule {
    /// Returns a schedule whose first time is due soon, and the others after it, `rate` per second.
    pub(super) fn new(rate: u32) -> Self {
        Self {
            begins: Instant::now() + Duration::from_millis(5),
            period: Duration::from_secs(1) / rate.max(1),
        }
    }

    /// Returns the due time of number `index`, however late the earlier ones were.
    pub(super) fn due(&self, index: u32) -> Instant {
        self.begins + self.period * index
    }
}

/// Sleeps until `time`; returns at once when it has passed.
pub(super) fn sleep_until(time: Instant) {
    while let Some(left) = time.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::sleep(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_times_do_not_depend_on_late_reads() {
        let schedule = Schedule::new(500);
        assert_eq!(schedule.due(500) - schedule.due(0), Duration::from_secs(1));
        sleep_until(schedule.due(2));
        assert!(Instant::now() >= schedule.due(2));
    }

    #[test]
    fn a_thread_started_by_a_punctual_one_is_an_ordinary_one() {
        let policy = || {
            // SAFETY: 0 is the calling thread; there are no pointers.
            unsafe { libc::sched_getscheduler(0) }
        };
        let ordinary = policy();
        let inherited = std::thread::spawn(move || {
            let how = raise_priority();
            assert!(how == "default" || policy() != ordinary || how.contains("slice"), "{how}");
            std::thread::spawn(policy).join().expect("it does not panic")
        });
        assert_eq!(inherited.join().expect("it does not panic"), libc::SCHED_OTHER);
    }
}
