//! A sample that starts at an instant set by another process. When it has everything ready it reports that on standard output,
//! reads the instant on standard input, and waits for it. So samples on several hosts start together.

use std::io::{self, BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::thread::ClockId;
use rustix::time::Timespec;

/// The line with which a sample reports that it waits.
pub(super) const READY: &str = "ready";

/// The time before a start at which the counters of that start are read. Reading them is faster.
const BEFORE_NS: u64 = 5_000_000;
const NS_PER_S: u64 = 1_000_000_000;

/// The instant when the sample of this process started, or one of the values below, which no clock returns.
static BEGUN_NS: AtomicU64 = AtomicU64::new(ANY_TIME);
/// The sample starts at any time.
const ANY_TIME: u64 = u64::MAX;
/// The next gauge waits.
const ARMED: u64 = u64::MAX - 1;

/// Returns the time on the clock in which instants are given: the same for all processes of a host.
pub(super) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * NS_PER_S + now.tv_nsec.cast_unsigned()
}

/// Lets the next gauge of this process wait.
pub(super) fn arm() {
    BEGUN_NS.store(ARMED, Ordering::Relaxed);
}

/// Waits until shortly before the start where this process was ordered to wait for one, and
/// returns the start.
///
/// # Errors
/// Fails when the start was called off, or the process that sets it has ended.
pub(super) fn approach() -> io::Result<Option<u64>> {
    if BEGUN_NS.load(Ordering::Relaxed) != ARMED {
        return Ok(None);
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{READY}")?;
    out.flush()?;
    let mut text = String::new();
    io::stdin().lock().read_line(&mut text)?;
    let called_off = |_| io::Error::other("the start of the sample was called off");
    let at_ns: u64 = text.trim().parse().map_err(called_off)?;
    wait_until(at_ns.saturating_sub(BEFORE_NS))?;
    Ok(Some(at_ns))
}

/// Waits for the start itself, and records its true time.
///
/// # Errors
/// Fails when waiting for the clock fails.
pub(super) fn begin(at_ns: Option<u64>) -> io::Result<()> {
    if let Some(at_ns) = at_ns {
        wait_until(at_ns)?;
        BEGUN_NS.store(monotonic_ns(), Ordering::Relaxed);
    }
    Ok(())
}

/// Returns the start of the measured time of this process's sample, if it waited for one.
pub(super) fn begun_ns() -> Option<u64> {
    Some(BEGUN_NS.load(Ordering::Relaxed)).filter(|begun_ns| *begun_ns < ARMED)
}

fn wait_until(at_ns: u64) -> io::Result<()> {
    let instant =
        Timespec { tv_sec: (at_ns / NS_PER_S).cast_signed(), tv_nsec: (at_ns % NS_PER_S).cast_signed() };
    loop {
        match rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &instant) {
            Err(rustix::io::Errno::INTR) => {}
            outcome => return Ok(outcome?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_order_nothing_waits() {
        assert!(approach().is_ok_and(|start| start.is_none()));
        assert!(begin(None).is_ok());
        assert_eq!(BEGUN_NS.load(Ordering::Relaxed), ANY_TIME);
    }

    #[test]
    fn instants_are_waited_for_and_past_ones_are_not() {
        let at_ns = monotonic_ns() + 1_000_000;
        wait_until(at_ns).expect("there is such a clock");
        assert!(monotonic_ns() >= at_ns);
        wait_until(1).expect("there is such a clock");
    }
}
