//! The resources that this process used in a span of time: wall time, CPU, context switches, requests in
//! flight at the device.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::start_barrier;
use crate::system_counters::{CounterDeltas, Readings, value};

/// A running gauge; it ends with [`stop`](Gauge::stop).
#[derive(Debug)]
pub(super) struct Gauge {
    usage: Usage,
    device: Option<(PathBuf, u64)>,
    device_stat: Option<PathBuf>,
    readings: Readings,
    begun: Instant,
}

/// The result of [`Gauge::stop`].
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cost {
    pub(super) seconds: f64,
    /// User and system time of all threads of the process, including those that have ended.
    pub(super) cpu_seconds: f64,
    /// The part of it outside of the kernel.
    pub(super) user_seconds: f64,
    /// Voluntary and involuntary context switches of all threads.
    pub(super) context_switches: u64,
    /// The part of them that threads did not want.
    pub(super) involuntary_switches: u64,
    /// The device's own sum of request times, divided by the wall time. Requests of all processes count.
    pub(super) in_flight_avg: Option<f64>,
    /// The counters that the gates check.
    pub(super) counter_deltas: CounterDeltas,
}

impl Gauge {
    /// Starts to count, at the instant that was set for this process where one was. `device` is a block
    /// device's `stat` file.
    ///
    /// # Errors
    /// Fails when getrusage failed, which no kernel is known to do, or when the start that this process
    /// waited for was called off.
    pub(super) fn start(device: Option<&Path>) -> io::Result<Self> {
        let start = start_barrier::approach()?;
        let readings = Readings::now(device);
        let device_stat = device.map(Path::to_owned);
        let device = device.and_then(|path| Some((path.to_owned(), queue_ms(path)?)));
        start_barrier::begin(start)?;
        let mut gauge = Self { usage: Usage::now()?, device, device_stat, readings, begun: Instant::now() };
        gauge.begin_again()?;
        Ok(gauge)
    }

    /// Restarts the count. Reading all counters is slow enough to delay work that starts at a set time.
    ///
    /// # Errors
    /// See [`start`](Self::start).
    pub(super) fn begin_again(&mut self) -> io::Result<()> {
        self.readings.read_bytes_again(self.device_stat.as_deref());
        (self.usage, self.begun) = (Usage::now()?, Instant::now());
        Ok(())
    }

    pub(super) fn begun(&self) -> Instant {
        self.begun
    }

    /// Ends the span, and returns its cost.
    ///
    /// # Errors
    /// See [`start`](Self::start).
    pub(super) fn stop(self) -> io::Result<Cost> {
        let seconds = self.begun.elapsed().as_secs_f64();
        let usage = Usage::now()?;
        let user_seconds = usage.user_seconds - self.usage.user_seconds;
        let cpu_seconds = user_seconds + (usage.system_seconds - self.usage.system_seconds);
        let voluntary = usage.voluntary_switches - self.usage.voluntary_switches;
        let involuntary_switches = usage.involuntary_switches - self.usage.involuntary_switches;
        // First the counters that others' work advances while the rest is read.
        let mut moved = self.readings.clone();
        moved.read_bytes_again(self.device_stat.as_deref());
        let readings = Readings::now(self.device_stat.as_deref());
        let readings = Readings { device: moved.device, own: moved.own, ..readings };
        let in_flight_avg = self.device.and_then(|(path, before)| {
            let spent_ms = queue_ms(&path)?.checked_sub(before)?;
            (seconds > 0.0).then(|| spent_ms as f64 / 1000.0 / seconds)
        });
        Ok(Cost {
            seconds,
            cpu_seconds,
            user_seconds,
            context_switches: voluntary + involuntary_switches,
            involuntary_switches,
            in_flight_avg,
            counter_deltas: CounterDeltas::between(&self.readings, &readings, seconds, cpu_seconds),
        })
    }
}

#[derive(Debug)]
struct Usage {
    user_seconds: f64,
    system_seconds: f64,
    voluntary_switches: u64,
    involuntary_switches: u64,
}

impl Usage {
    fn now() -> io::Result<Self> {
        let mut raw = MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: the kernel writes one rusage to a place that is large enough for it.
        if unsafe { libc::getrusage(libc::RUSAGE_SELF, raw.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so it has written the whole struct.
        let raw = unsafe { raw.assume_init() };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Ok(Self {
            user_seconds: seconds(raw.ru_utime),
            system_seconds: seconds(raw.ru_stime),
            voluntary_switches: raw.ru_nvcsw as u64,
            involuntary_switches: raw.ru_nivcsw as u64,
        })
    }
}

/// Returns the most memory that was in RAM for this process at one time, by its own page tables.
pub fn peak_resident_bytes() -> Option<u64> {
    value(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

fn queue_ms(stat: &Path) -> Option<u64> {
    parse_queue_ms(&fs::read_to_string(stat).ok()?)
}

/// Returns field 11 of a block device's `stat`: milliseconds, summed over requests.
fn parse_queue_ms(stat: &str) -> Option<u64> {
    stat.split_whitespace().nth(10)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_the_kernel_files_are_found() {
        let stat = "   28513     6028  3510642    15001     6076    12993   915360     1748        0     8028    16920     3356       19   207376      158      351       12\n";
        assert_eq!(parse_queue_ms(stat), Some(16_920));
        assert_eq!(parse_queue_ms("1 2 3"), None);
    }

    #[test]
    fn computing_is_processor_time_and_sleeping_is_a_voluntary_switch() {
        let gauge = Gauge::start(None).expect("getrusage works");
        let mut words = super::super::pattern::SplitMix::new(1);
        let mut folded = 0;
        while gauge.begun().elapsed().as_millis() < 30 {
            folded ^= words.next_u64();
        }
        assert_ne!(folded, 0);
        std::thread::sleep(std::time::Duration::from_millis(1));
        let cost = gauge.stop().expect("getrusage works");
        assert!(cost.seconds >= 0.03 && cost.cpu_seconds > 0.0, "{cost:?}");
        assert!(cost.user_seconds <= cost.cpu_seconds, "{cost:?}");
        assert!(cost.context_switches > cost.involuntary_switches, "{cost:?}");
        assert_eq!(cost.in_flight_avg, None);
    }

    #[test]
    fn this_process_has_a_peak() {
        assert!(peak_resident_bytes().is_some_and(|bytes| bytes > 1 << 16));
    }
}
