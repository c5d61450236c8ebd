//! Activity of the machine during a sample: readings before and after, whose differences the gates check.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::backing_device::queue_setting;
use crate::cgroup;

/// Maximum threads that are read one by one: reading more costs more than the information is worth.
const THREADS_MAX: usize = 64;
const SECTOR_BYTES: u64 = 512;

/// Counters at one moment; `None` where a counter cannot be read here.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Readings {
    /// Bytes read from and written to the device, by all processes.
    pub(super) device: Option<Bytes>,
    /// Bytes read from and written to storage on behalf of this process.
    pub(super) own: Option<Bytes>,
    /// Ticks of all processors, and the part of them used by other virtual machines.
    pub(super) ticks: Option<Ticks>,
    /// Number of times a cgroup throttled this process.
    pub(super) throttled: Option<u64>,
    /// Nanoseconds on a processor, by thread.
    pub(super) threads: Option<BTreeMap<u32, u64>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bytes {
    pub(super) read: u64,
    pub(super) written: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ticks {
    pub(super) all: u64,
    pub(super) stolen: u64,
}

/// The differences between two [`Readings`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct CounterDeltas {
    pub(super) seconds: f64,
    /// User and system time of all threads of the process.
    pub(super) cpu_seconds: f64,
    pub(super) device: Option<Bytes>,
    pub(super) own: Option<Bytes>,
    pub(super) ticks: Option<Ticks>,
    pub(super) throttled: Option<u64>,
    /// Share of the time that the busiest thread was on a processor, of the threads that existed at the end.
    pub(super) busiest_thread: Option<f64>,
}

/// Returns the number after `name` in a file of /proc, in bytes where its unit is kB.
pub(crate) fn value(text: &str, name: &str) -> Option<u64> {
    let mut words = text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    if words.next() == Some("kB") { number.checked_mul(1024) } else { Some(number) }
}

impl Readings {
    /// Reads all available counters. `device_stat` is a block device's `stat` file.
    pub(super) fn now(device_stat: Option<&Path>) -> Self {
        Self {
            // A queue can be configured not to count.
            device: device_stat
                .filter(|stat| queue_setting(stat, "iostats").is_none_or(|counts| counts != "0"))
                .and_then(read_device),
            own: read_own(),
            ticks: fs::read_to_string("/proc/stat").ok().and_then(|text| parse_ticks(&text)),
            throttled: throttled(&cgroup::cpu_stats()),
            threads: threads(),
        }
    }

    /// Reads the byte counters once more. They include everything that happens, so they are read as close to the measured time as
    /// possible, and the others, which need up to milliseconds, are not in between.
    pub(super) fn read_bytes_again(&mut self, device_stat: Option<&Path>) {
        self.device = self.device.and(device_stat).and_then(read_device);
        self.own = self.own.and_then(|_| read_own());
    }
}

impl CounterDeltas {
    /// Returns the differences between two readings, over `seconds` that cost `cpu_seconds`.
    pub(super) fn between(before: &Readings, after: &Readings, seconds: f64, cpu_seconds: f64) -> Self {
        let bytes = |(before, after): (Bytes, Bytes)| Bytes {
            read: after.read.saturating_sub(before.read),
            written: after.written.saturating_sub(before.written),
        };
        let ticks = |(before, after): (Ticks, Ticks)| Ticks {
            all: after.all.saturating_sub(before.all),
            stolen: after.stolen.saturating_sub(before.stolen),
        };
        let throttled = before.throttled.zip(after.throttled);
        let busiest = before.threads.as_ref().zip(after.threads.as_ref()).and_then(|(before, after)| {
            let spent = |(thread, ns): (&u32, &u64)| ns - before.get(thread).copied().unwrap_or(0).min(*ns);
            after.iter().map(spent).max()
        });
        Self {
            seconds,
            cpu_seconds,
            device: before.device.zip(after.device).map(bytes),
            own: before.own.zip(after.own).map(bytes),
            ticks: before.ticks.zip(after.ticks).map(ticks),
            throttled: throttled.map(|(before, after)| after.saturating_sub(before)),
            busiest_thread: busiest.map(|ns| ns as f64 / 1e9 / seconds).filter(|share| share.is_finite()),
        }
    }
}

fn read_device(stat: &Path) -> Option<Bytes> {
    parse_device(&fs::read_to_string(stat).ok()?)
}

fn read_own() -> Option<Bytes> {
    parse_own(&fs::read_to_string("/proc/self/io").ok()?)
}

/// Parses fields 3 and 7 of a block device's `stat`: sectors read and written.
fn parse_device(stat: &str) -> Option<Bytes> {
    let mut fields = stat.split_whitespace().map(|field| field.parse::<u64>().ok());
    let (read, written) = (fields.nth(2)??, fields.nth(3)??);
    Some(Bytes { read: read * SECTOR_BYTES, written: written * SECTOR_BYTES })
}

fn parse_own(io: &str) -> Option<Bytes> {
    Some(Bytes { read: value(io, "read_bytes:")?, written: value(io, "write_bytes:")? })
}

/// Parses the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal. The
/// guest times that follow are already in user and nice.
fn parse_ticks(stat: &str) -> Option<Ticks> {
    let fields: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .take(8)
        .collect();
    Some(Ticks { all: fields.iter().sum(), stolen: *fields.get(7)? })
}

/// Returns how often the cgroups throttled their processes, together. `None` where no group counts that.
fn throttled(stats: &[PathBuf]) -> Option<u64> {
    let texts = stats.iter().filter_map(|path| fs::read_to_string(path).ok());
    texts.filter_map(|text| value(&text, "nr_throttled ")).reduce(u64::saturating_add)
}

/// Returns the nanoseconds on a processor of each thread; `None` for very many threads, or if the kernel does not count.
fn threads() -> Option<BTreeMap<u32, u64>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc/self/task").ok()?.flatten() {
        if found.len() == THREADS_MAX {
            return None;
        }
        let Some(thread) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A thread that has just ended is not a reason to drop the figures of the others.
        let Ok(text) = fs::read_to_string(entry.path().join("schedstat")) else { continue };
        found.insert(thread, text.split_whitespace().next()?.parse().ok()?);
    }
    (!found.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_the_kernel_files_are_found() {
        let stat = "   28513     6028  3510642    15001     6076    12993   915360     1748        0     8028    16920     3356\n";
        assert_eq!(parse_device(stat), Some(Bytes { read: 3_510_642 * 512, written: 915_360 * 512 }));
        assert_eq!(parse_device("1 2 3"), None);
        let io = "rchar: 6976\nsyscr: 10\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n";
        assert_eq!(parse_own(io), Some(Bytes { read: 4096, written: 8192 }));
        assert_eq!(parse_own(""), None);
        let ticks = parse_ticks("cpu  10 20 30 40 5 6 7 8 9 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n");
        assert_eq!(ticks, Some(Ticks { all: 126, stolen: 8 }));
        assert_eq!(parse_ticks("cpu  1 2 3\n"), None);
        assert_eq!(value("nr_periods 9\nnr_throttled 4\nthrottled_usec 77\n", "nr_throttled "), Some(4));
        assert_eq!(value("usage_usec 9\n", "nr_throttled "), None);
        assert_eq!(value("MemTotal: 9 kB\nMemAvailable:    2048 kB\n", "MemAvailable:"), Some(2 << 20));
        assert_eq!(value("Name:\tx\nVmHWM:\t    2052 kB\nVmRSS:\t 1 kB\n", "VmHWM:"), Some(2_101_248));
        assert_eq!(value("MemTotal: 9 kB\n", "MemAvailable:"), None);
    }

    #[test]
    fn deltas_are_differences_of_counters_that_both_readings_have() {
        let before = Readings {
            device: Some(Bytes { read: 100, written: 5 }),
            ticks: Some(Ticks { all: 10, stolen: 1 }),
            throttled: Some(3),
            threads: Some(BTreeMap::from([(1, 500_000_000)])),
            ..Readings::default()
        };
        let after = Readings {
            device: Some(Bytes { read: 300, written: 5 }),
            own: Some(Bytes { read: 1, written: 1 }),
            ticks: Some(Ticks { all: 110, stolen: 11 }),
            throttled: Some(3),
            threads: Some(BTreeMap::from([(1, 600_000_000), (2, 900_000_000)])),
        };
        let counter_deltas = CounterDeltas::between(&before, &after, 1.0, 0.5);
        assert_eq!(counter_deltas.device, Some(Bytes { read: 200, written: 0 }));
        assert_eq!((counter_deltas.own, counter_deltas.throttled), (None, Some(0)));
        assert_eq!(counter_deltas.ticks, Some(Ticks { all: 100, stolen: 10 }));
        assert_eq!(counter_deltas.busiest_thread, Some(0.9));
        assert_eq!(CounterDeltas::between(&before, &after, 0.0, 0.0).busiest_thread, None);
    }

    #[test]
    fn this_process_and_machine_are_read() {
        let readings = Readings::now(None);
        assert!(readings.ticks.is_some_and(|ticks| ticks.all > 0), "{readings:?}");
        assert_eq!(readings.device, None);
        if let Some(threads) = readings.threads {
            assert!(threads.contains_key(&std::process::id()), "{threads:?}");
        }
    }
}
