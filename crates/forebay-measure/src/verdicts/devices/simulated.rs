//! The devices of the table, and the properties planted in each.

use std::time::Duration;

use forebay_sim::Profile;

pub(super) const MS: Duration = Duration::from_millis(1);
/// Time of a read on all devices, and of a write and a flush on most.
pub(super) const READ: Duration = Duration::from_millis(2);
pub(super) const WRITE: Duration = Duration::from_millis(4);
const FLUSH: Duration = Duration::from_micros(200);

/// A device with its planted properties.
#[derive(Clone)]
pub(super) struct Device {
    pub(super) name: &'static str,
    pub(super) profile: Profile,
    /// Number of reads it serves at full speed: by its depth, its token bucket, its bandwidth. `None`:
    /// more than are requested.
    pub(super) places: Option<f64>,
    /// The share of slower reads, and the factor of their time.
    pub(super) sorts: Option<(f64, f64)>,
    /// Cost of a flush as a multiple of a write's, where that is noteworthy.
    pub(super) flush: Option<f64>,
    /// Much of the written data is in its volatile cache when it is acknowledged.
    pub(super) cache: bool,
    /// The interval from one stall to the next, and the length of a stall.
    pub(super) stall: Option<(Duration, Duration)>,
    /// Number of writes at full speed, and the factor by which it is slower afterwards.
    pub(super) burst_credits: Option<(f64, f64)>,
    /// Its service depends on earlier requests, so that nothing can be said of its reads.
    pub(super) remembers: bool,
}

fn device(name: &'static str, profile: Profile) -> Device {
    let profile = profile.latency(READ, WRITE, FLUSH).write_cache(0);
    Device {
        name,
        profile,
        places: None,
        sorts: None,
        flush: None,
        cache: false,
        stall: None,
        burst_credits: None,
        remembers: false,
    }
}

impl Device {
    /// Returns the number of reads of a closed loop, one after the other. If some reads last several times as long, the loop is
    /// long enough to average them; if the device stalls, it lasts whole periods.
    pub(super) fn reads_each(&self) -> u32 {
        match (self.stall, self.sorts, self.places) {
            (Some((every, _)), ..) => (every.as_micros() / READ.as_micros()) as u32,
            (None, Some(_), Some(_)) => 300,
            (None, Some(_), None) => 60,
            (None, None, _) => 30,
        }
    }

    fn with(self, change: impl FnOnce(Profile) -> Profile) -> Self {
        let profile = change(self.profile.clone());
        Self { profile, ..self }
    }

    fn places(self, places: f64) -> Self {
        Self { places: Some(places), ..self }
    }

    /// Serves `depth` operations at a time; this is a limit where more are requested.
    fn depth(self, depth: u32) -> Self {
        self.with(|profile| profile.parallelism(depth)).places(f64::from(depth))
    }

    /// Makes some operations slower.
    fn tail(self, ppm: u32, times: u32) -> Self {
        let sorts = Some((f64::from(ppm) / 1e6, f64::from(times)));
        Self { sorts, ..self.with(|profile| profile.tail(ppm, times)) }
    }

    /// A flush needs `flush` and the time to drain the cache at `drain` bytes per second; 0: without a cache.
    fn flushes(self, flush: Duration, drain: u64) -> Self {
        let cache = if drain > 0 { 64 << 20 } else { 0 };
        self.with(|profile| profile.latency(READ, WRITE, flush).write_cache(cache).drain(drain))
    }

    fn slow_flush(self, times: f64) -> Self {
        Self { flush: Some(times), ..self }
    }

    fn cached(self) -> Self {
        Self { cache: true, ..self }
    }

    fn stalls(self, every: u32, length: u32) -> Self {
        let (every, length) = (MS * every, MS * length);
        Self { stall: Some((every, length)), ..self.with(|profile| profile.stall(every, length)) }
    }

    /// Has a bucket whose burst lasts so long that later requests depend on earlier requests. `writes` are made at full speed, and
    /// later writes are this many times slower.
    fn purse(self, burst_credits: Option<(f64, f64)>) -> Self {
        Self { burst_credits, remembers: true, ..self }
    }
}

/// Returns a disk without any limit that 256 readers reach.
fn wide() -> Profile {
    Profile::ideal().parallelism(1024)
}

/// Returns all devices: first those whose planted property shows in reads, and those without a property; then those whose property
/// shows in writes, flushes and long loads, and near misses.
pub(super) fn devices() -> Vec<Device> {
    // Reads of 2 ms wait for this bucket, which admits `rate` of them per second.
    let bucket = |rate: u64| wide().iops(rate, 4);
    vec![
        device("no limit", wide()),
        device("no limit, jitter", wide().jitter(50)),
        device("no limit, much jitter", wide().jitter(200)),
        device("no limit, rare tail", wide().tail(1_000, 20)),
        device("no limit, two levels", wide()).tail(50_000, 20),
        device("no limit, two levels and jitter", wide().jitter(40)).tail(100_000, 10),
        device("one at a time", wide()).depth(1),
        device("two at a time", wide()).depth(2),
        device("4 at a time", wide()).depth(4),
        device("8 at a time", wide()).depth(8),
        device("16 at a time", wide()).depth(16),
        device("32 at a time", wide()).depth(32),
        device("64 at a time", wide()).depth(64),
        device("4 at a time, jitter", wide().jitter(50)).depth(4),
        device("16 at a time, jitter", wide().jitter(50)).depth(16),
        device("64 at a time, much jitter", wide().jitter(200)).depth(64),
        device("16 at a time, two levels", wide()).depth(16).tail(100_000, 5),
        device("32 at a time, two levels, jitter", wide().jitter(30)).depth(32).tail(80_000, 6),
        device("8 at a time, rare tail", wide().tail(1_000, 20)).depth(8),
        device("short queue", wide().queue_depth(12)).places(12.0),
        device("bucket of 2,000", bucket(2_000)).places(4.0),
        device("bucket of 8,000", bucket(8_000)).places(16.0),
        device("bucket of 8,000, two levels", bucket(8_000)).places(22.4).tail(100_000, 5),
        device("bucket beyond reach", bucket(1_000_000)),
        device("16 MB/s", wide().bandwidth(16_384_000)).places(8.0),
        device("bandwidth beyond reach", wide().bandwidth(4_000_000_000)),
        device("a drive", Profile::nand()).places(32.0),
        device("a volume of a cloud", Profile::cloud().tail(0, 1).iops(4_000, 4).parallelism(1024))
            .places(10.0),
        device("slow flush", wide()).flushes(MS * 60, 0).slow_flush(15.0),
        device("slow flush, jitter", wide().jitter(50)).flushes(MS * 120, 0).slow_flush(30.0),
        device("slow flush, 16 at a time", wide()).depth(16).flushes(MS * 48, 0).slow_flush(12.0),
        device("a flush of five writes", wide()).flushes(MS * 20, 0),
        device("a flush of half a write", wide()).flushes(MS * 2, 0),
        device("write cache", wide()).flushes(MS, 2_000_000).cached(),
        device("write cache, jitter", wide().jitter(50)).flushes(MS, 1_500_000).cached(),
        device("write cache, rare tail", wide().tail(1_000, 20)).flushes(MS * 2, 1_000_000).cached(),
        device("write cache and slow flush", wide()).flushes(MS * 50, 1_000_000).slow_flush(13.5).cached(),
        device("a cache that drains at once", wide()).flushes(FLUSH, 400_000_000),
        device("a flush of a write, a cache that drains at once", wide()).flushes(MS * 4, 400_000_000),
        device("slow flush, a cache that drains at once", wide())
            .flushes(MS * 60, 40_000_000)
            .slow_flush(15.0),
        device("stalls every second", wide()).stalls(1000, 200),
        device("stalls three times a second", wide()).stalls(300, 60),
        device("stalls half of the time", wide()).stalls(800, 400),
        device("stalls every second, jitter", wide().jitter(100)).stalls(1000, 120),
        device("stalls every second, 4 at a time", wide()).depth(4).stalls(1000, 250),
        device("stalls every second, slow flush", wide())
            .stalls(1000, 100)
            .flushes(MS * 60, 0)
            .slow_flush(15.0),
        device("stalls too short to be seen", wide().stall(MS * 500, MS * 6)),
        device("a purse of 3,000", wide().iops(500, 3_000)).purse(Some((4_000.0, 4.0))),
        device("a purse of 4,000", wide().iops(1_000, 4_000)).purse(Some((8_000.0, 2.0))),
        device("a purse and jitter", wide().jitter(20).iops(400, 4_000)).purse(Some((5_130.0, 4.54))),
        device("a purse beyond reach", wide().iops(500, 50_000)).purse(None),
        device("a purse that hardly matters", wide().iops(1_850, 500)).purse(None),
    ]
}
