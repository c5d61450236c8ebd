//! The gates of a sample: conditions under which a figure is valid. A row that fails one is marked.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::latency::Latency;
use crate::system_counters::{Bytes, CounterDeltas};
use forebay_report::result::{Condition, Metrics, metric};

/// The least share of the claimed bytes that the device must have moved. Below it, the device did
/// not do the work.
const DEVICE_SHARE: f64 = 0.95;
/// The largest such share. Above it, the device did other processes' work, or work that the row
/// did not count.
const DEVICE_SHARE_MOST: f64 = 1.02;
/// The fewest operations that determine a p99; a p99.9 needs those of the next constant.
const OPERATIONS_OF_P99: u64 = 100;
const OPERATIONS_OF_P99_9: u64 = 1000;
/// The largest plausible share of processor time. The clocks of processors and of time differ by less.
const CPU_SHARE_MOST: f64 = 1.05;
/// The largest share of time in which a processor may work. A busier processor is the limit,
/// not the device.
const BUSY_SHARE: f64 = 0.9;
/// The largest share of other processes' bytes on the device. Above it, they affect the figures.
const OTHERS_SHARE: f64 = 0.05;
/// Other processes' bytes below which they are ignored: metadata, a daemon's log.
const OTHERS_BYTES: u64 = 128 << 10;
/// The fewest bytes of a row that uses the device. A row that causes fewer is served from memory.
const OWN_BYTES: u64 = 1 << 20;
/// The largest share of the processors' time that the host gave to others. More of it affects the figures.
const STEAL_SHARE: f64 = 0.02;
/// The fewest stolen ticks from which a share is computed. With fewer, the share is chance.
const STEAL_TICKS: u64 = 3;

/// A sample's claims about itself, to be compared with the observed counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Bytes that the device must have delivered; `None` where memory may have.
    pub read_bytes: Option<u64>,
    /// Minimum bytes written to the device.
    pub written_bytes: Option<u64>,
    /// The number of threads that do the work.
    pub workers: Option<usize>,
    /// Whether the row keeps processors busy on purpose, as the subject of the measurement.
    pub busy_on_purpose: bool,
    /// Whether the row requests from the device exactly the bytes that it counts, and no others.
    pub exact: bool,
    /// Whether each operation makes at least one system call.
    pub blocking: bool,
}

/// Measurements of a child in addition to its result; every result has them as a field.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Evidence {
    pub(super) counter_deltas: CounterDeltas,
    /// Times of single operations. `latency` stands for metrics such as `p50_us`, any other name for metrics with it as prefix,
    /// such as `durable_p50_us`.
    pub(super) times: BTreeMap<String, Latency>,
}

/// The result of one sample.
#[derive(Debug, Default)]
pub(super) struct SampleFigures {
    pub(super) metrics: Metrics,
    pub(super) evidence: Evidence,
    pub(super) claim: Claim,
}

/// The observation of one sample: the number of its repeat, the counters, and its claims.
pub(super) type Observation<'a> = (u32, &'a CounterDeltas, Claim);

/// Returns the number of processors that this process may use.
pub(super) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the gates of a row that ran on this number of processors, over all its samples. A sample that
/// fails a gate fails the row, whose value is the worst.
pub(super) fn of_row(samples: &[Observation<'_>], processors: usize) -> Vec<Condition> {
    let gates: [fn(&Observation<'_>, usize) -> Condition; 5] = [
        |seen, _| device_bytes(seen),
        generator,
        |seen, _| other_io(seen),
        |seen, _| steal(seen),
        |seen, _| throttling(seen),
    ];
    gates
        .iter()
        .filter_map(|gate| worst(samples.iter().map(|seen| (seen.0, gate(seen, processors))).collect()))
        .collect()
}

/// Rates of operations whose times are recorded. A rate of 0 contradicts these times.
const RATES: [&str; 6] = [
    metric::IOPS,
    metric::MB_PER_S,
    metric::APPENDS_PER_S,
    metric::RECORDS_PER_S,
    metric::LOOKUPS_PER_S,
    metric::FILES_PER_S,
];
/// Costs of operations. No operation is free.
const COSTS: [&str; 5] = [
    metric::CPU_US_PER_IO,
    metric::CPU_S_PER_GB,
    metric::CPU_US_PER_APPEND,
    metric::CPU_US_PER_LOOKUP,
    metric::CPU_US_PER_FILE,
];

/// Returns the figures of a sample that cannot be true or that rest on too few operations, each with the
/// reason. They are left out of the sample, so that no row, table or verdict has them.
pub(super) fn implausible(sampled: &SampleFigures) -> BTreeMap<String, String> {
    let (figures, mut found) = (&sampled.metrics, BTreeMap::new());
    let mut is = |metric: &str, why: String| {
        if figures.get(metric).is_some() {
            found.entry(metric.to_owned()).or_insert(why);
        }
    };
    // Times of the operations themselves. The evidence also has other times, of timers that run meanwhile.
    let own = ["latency", "durable"].iter().filter_map(|name| sampled.evidence.times.get(*name));
    let operations = own.map(Latency::count).max().unwrap_or(0);
    for rate in
        RATES.iter().filter(|rate| figures.get(rate).is_some_and(|value| value <= 0.0) && operations > 0)
    {
        is(rate, format!("0, although {operations} operations have a time: the sample is too short"));
    }
    for (name, times) in &sampled.evidence.times {
        let prefix = if name == "latency" { String::new() } else { format!("{name}_") };
        for (percentile, needed) in [("p99", OPERATIONS_OF_P99), ("p99_9", OPERATIONS_OF_P99_9)] {
            if times.count() < needed {
                let why = format!("{} operations in the sample; {needed} are needed", times.count());
                is(&format!("{prefix}{percentile}_us"), why);
            }
        }
    }
    if sampled.claim.blocking && figures.get(metric::SYSTEM_CALLS_PER_IO).is_some_and(|calls| calls < 1.0) {
        is(metric::SYSTEM_CALLS_PER_IO, "less than one for an operation that makes one at least".to_owned());
    }
    for cost in COSTS.iter().filter(|cost| figures.get(cost).is_some_and(|value| value <= 0.0)) {
        is(cost, "no processor time at all: the sample is too short for the clock that counts it".to_owned());
    }
    if figures.get(metric::CPU_SHARE).is_some_and(|share| share > CPU_SHARE_MOST) {
        is(metric::CPU_SHARE, "more processor time than there was".to_owned());
    }
    found
}

/// Returns the condition of the worst sample, with the repeats that failed.
pub(super) fn worst(all: Vec<(u32, Condition)>) -> Option<Condition> {
    let failed: Vec<u32> =
        all.iter().filter(|(_, gate)| gate.passed == Some(false)).map(|(repeat, _)| *repeat).collect();
    let badness = |gate: &Condition| {
        let excess = gate.excess().unwrap_or(f64::NEG_INFINITY);
        (gate.passed == Some(false), gate.passed.is_some(), excess)
    };
    let (_, mut gate) = all.into_iter().max_by(|(_, one), (_, other)| {
        badness(one).partial_cmp(&badness(other)).unwrap_or(std::cmp::Ordering::Equal)
    })?;
    gate.repeats = failed;
    Some(gate)
}

fn device_bytes((_, counter_deltas, claim): &Observation<'_>) -> Condition {
    const NAME: &str = "device_bytes";
    let of = |bytes: fn(Bytes) -> u64| (counter_deltas.device.map(bytes), counter_deltas.own.map(bytes));
    let claims =
        [(claim.read_bytes, of(|bytes| bytes.read)), (claim.written_bytes, of(|bytes| bytes.written))];
    let shares = claims.iter().filter_map(|(claimed, (device, own))| {
        let claimed = claimed.filter(|bytes| *bytes > 0)?;
        // Bytes that the device moved beyond the claim belong to this row as far as this process caused
        // them; the gate `other_io` has the rest.
        let beyond = device.filter(|moved| *moved > claimed).zip(*own);
        let seen = beyond.map(|(moved, own)| moved.min(own.max(claimed))).or(*device)?;
        Some(seen as f64 / claimed as f64)
    });
    const WHY: &str = "bytes that the device moved, as a share of those that the row counts";
    match shares.reduce(f64::min) {
        Some(share) if claim.exact => {
            Condition::within(NAME, share, DEVICE_SHARE, DEVICE_SHARE_MOST).with_meaning(WHY)
        }
        Some(share) => Condition::at_least(NAME, share, DEVICE_SHARE).with_meaning(WHY),
        None if claims.iter().all(|(claimed, _)| claimed.is_none()) => {
            Condition::unknown(NAME, "does not apply: memory may serve this row")
        }
        None => Condition::unknown(NAME, "there is no block device that counts its bytes"),
    }
}

fn generator((_, counter_deltas, claim): &Observation<'_>, processors: usize) -> Condition {
    const NAME: &str = "generator";
    if claim.busy_on_purpose {
        return Condition::unknown(NAME, "does not apply: processors are kept busy on purpose");
    }
    let workers = claim.workers.unwrap_or(processors).clamp(1, processors);
    let all = counter_deltas.cpu_seconds / (counter_deltas.seconds * workers as f64);
    let share = all.max(counter_deltas.busiest_thread.unwrap_or(0.0));
    if !share.is_finite() {
        return Condition::unknown(NAME, "the sample has no length");
    }
    Condition::at_most(NAME, share, BUSY_SHARE)
        .with_meaning("share of the time in which the busiest thread, or all processors, worked: near 1 a processor is the limit")
}

fn other_io((_, counter_deltas, claim): &Observation<'_>) -> Condition {
    const NAME: &str = "other_io";
    let (Some(device), Some(own)) = (counter_deltas.device, counter_deltas.own) else {
        return Condition::unknown(NAME, "the device or the process has no counters");
    };
    // Bytes that a sample writes reach the device later, and with the file system's journal: that is
    // not others' work.
    let sum =
        |bytes: Bytes| if claim.written_bytes.is_some() { bytes.read } else { bytes.read + bytes.written };
    let (seen, own) = (sum(device), sum(own));
    if own < OWN_BYTES && claim.read_bytes.is_none() && claim.written_bytes.is_none() {
        return Condition::unknown(
            NAME,
            "does not apply: memory served this row, and others' work did not wait for it",
        );
    }
    let others = seen.saturating_sub(own);
    let share = if others < OTHERS_BYTES { 0.0 } else { others as f64 / seen as f64 };
    Condition::at_most(NAME, share, OTHERS_SHARE)
        .with_meaning("bytes on the device that this process did not cause, as a share of all")
}

fn steal((_, counter_deltas, _): &Observation<'_>) -> Condition {
    const NAME: &str = "steal";
    let Some(ticks) = counter_deltas.ticks.filter(|ticks| ticks.all > 0) else {
        return Condition::unknown(NAME, "the kernel counted no time");
    };
    let share = if ticks.stolen < STEAL_TICKS { 0.0 } else { ticks.stolen as f64 / ticks.all as f64 };
    Condition::at_most(NAME, share, STEAL_SHARE)
        .with_meaning("share of the processors' time that the host gave to others")
}

fn throttling((_, counter_deltas, _): &Observation<'_>) -> Condition {
    const NAME: &str = "throttling";
    match counter_deltas.throttled {
        Some(times) => Condition::at_most(NAME, times as f64, 0.0)
            .with_meaning("how often a cgroup's limit on processor time held the process back"),
        None => Condition::unknown(NAME, "no cgroup counts it"),
    }
}

/// Returns the gate on the write cache, from its settings before and after the measurement.
pub(super) fn write_cache(before: Option<&str>, after: Option<&str>) -> Condition {
    const NAME: &str = "write_cache";
    match (before, after) {
        (Some(before), Some(after)) if before == after => {
            let means = if before.contains("back") {
                "a write is durable only after a flush"
            } else {
                "the device reports that a finished write is durable"
            };
            Condition { passed: Some(true), ..Condition::unknown(NAME, format!("{before}: {means}")) }
        }
        (Some(before), Some(after)) => {
            let why = format!("it was changed from {before} to {after} while it was measured");
            Condition { passed: Some(false), ..Condition::unknown(NAME, why) }
        }
        _ => Condition::unknown(NAME, "no block device reports a write cache"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::row_of;
    use crate::system_counters::Ticks;
    use forebay_report::result::CacheState;

    fn good() -> CounterDeltas {
        CounterDeltas {
            seconds: 1.0,
            cpu_seconds: 0.3,
            device: Some(Bytes { read: 100 << 20, written: 0 }),
            own: Some(Bytes { read: 100 << 20, written: 0 }),
            ticks: Some(Ticks { all: 400, stolen: 1 }),
            throttled: Some(0),
            busiest_thread: Some(0.3),
        }
    }

    fn claim() -> Claim {
        Claim { read_bytes: Some(100 << 20), workers: Some(1), ..Claim::default() }
    }

    fn failed(counter_deltas: CounterDeltas, claim: Claim) -> Vec<String> {
        let gates = of_row(&[(0, &good(), claim), (1, &counter_deltas, claim)], processors());
        assert_eq!(gates.len(), 5);
        let failed = gates.into_iter().filter(|gate| gate.passed == Some(false));
        failed.inspect(|gate| assert!(gate.repeats.contains(&1), "{gate:?}")).map(|gate| gate.name).collect()
    }

    /// Each gate fails alone when its condition is violated, and all others hold.
    #[test]
    fn every_gate_can_fail_alone() {
        assert_eq!(failed(good(), claim()), [""; 0]);
        let cached = CounterDeltas { device: Some(Bytes { read: 94 << 20, written: 0 }), ..good() };
        assert_eq!(failed(cached, claim()), ["device_bytes"]);
        assert_eq!(failed(CounterDeltas { busiest_thread: Some(0.91), ..good() }, claim()), ["generator"]);
        assert_eq!(failed(CounterDeltas { cpu_seconds: 0.95, ..good() }, claim()), ["generator"]);
        let crowded = CounterDeltas { device: Some(Bytes { read: 100 << 20, written: 9 << 20 }), ..good() };
        assert_eq!(failed(crowded, claim()), ["other_io"]);
        let stolen = CounterDeltas { ticks: Some(Ticks { all: 400, stolen: 9 }), ..good() };
        assert_eq!(failed(stolen, claim()), ["steal"]);
        assert_eq!(failed(CounterDeltas { throttled: Some(1), ..good() }, claim()), ["throttling"]);
    }

    fn sample(times: u64, figures: &[(&str, f64)]) -> SampleFigures {
        let mut latency = Latency::new().expect("a few kilobytes");
        (0..times).for_each(|_| latency.record(std::time::Duration::from_micros(100)));
        let mut sampled =
            SampleFigures { claim: Claim { blocking: true, ..claim() }, ..SampleFigures::default() };
        for (name, value) in figures {
            sampled.metrics.set(name, *value);
        }
        sampled.evidence.times.insert("latency".to_owned(), latency);
        sampled
    }

    /// Story: the JSON had 0.695 system calls for each `pread`, 0.0 IOPS together with a latency, and a p99 of 3 reads, and
    /// sentences were made of them.
    #[test]
    fn figures_that_cannot_be_true_are_left_out_with_the_reason() {
        let left_out = |times, figures: &[(&str, f64)]| -> Vec<String> {
            implausible(&sample(times, figures)).into_keys().collect()
        };
        let percentiles = [(metric::P50_US, 9.0), (metric::P99_US, 9.0), (metric::P99_9_US, 9.0)];
        assert_eq!(left_out(3, &percentiles), [metric::P99_9_US, metric::P99_US]);
        assert_eq!(left_out(100, &percentiles), [metric::P99_9_US]);
        assert_eq!(left_out(1000, &percentiles), [""; 0]);
        let calls = |calls| left_out(2000, &[(metric::SYSTEM_CALLS_PER_IO, calls)]);
        assert_eq!((calls(0.695), calls(1.0)), (vec![metric::SYSTEM_CALLS_PER_IO.to_owned()], vec![]));
        let nothing = [(metric::IOPS, 0.0), (metric::P50_US, 9.0), (metric::SECONDS, 1.0)];
        assert_eq!(left_out(2000, &nothing), [metric::IOPS]);
        assert_eq!(left_out(0, &nothing), [""; 0], "that nothing ended is a figure, too");
        assert_eq!(left_out(2000, &[(metric::CPU_US_PER_IO, 0.0)]), [metric::CPU_US_PER_IO]);
        assert_eq!(left_out(2000, &[(metric::CPU_SHARE, 1.2)]), [metric::CPU_SHARE]);
        let row = row_of("pread", vec![(0, sample(3, &percentiles)), (1, sample(2000, &percentiles))], 2);
        assert_eq!(row.samples[0].metrics.get(metric::P99_US), None);
        assert!(row.metrics.get(metric::P99_US).is_some(), "the other sample has it");
        assert_eq!(row.left_out[metric::P99_US], "3 operations in the sample; 100 are needed");
    }

    /// Story: `device_bytes` of 1.22 passed a gate that required 0.95 at least.
    #[test]
    fn a_device_that_moved_more_than_was_counted_fails_and_takes_no_part_in_a_verdict() {
        let of = |read: u64, exact| {
            let bytes = Some(Bytes { read, written: 0 });
            let counter_deltas = CounterDeltas { device: bytes, own: bytes, ..good() };
            let sampled = SampleFigures {
                claim: Claim { exact, ..claim() },
                evidence: Evidence { counter_deltas, ..Evidence::default() },
                ..SampleFigures::default()
            };
            row_of("direct", vec![(0, sampled)], 2).cache(CacheState::Direct)
        };
        let row = of(122 << 20, true);
        assert!(row.is_marked() && !row.is_proven());
        assert_eq!(
            row.implausible().as_deref(),
            Some("the device moved 1.22 times the bytes that it counts")
        );
        assert!(of(101 << 20, true).is_proven() && !of(101 << 20, true).is_marked());
        assert!(of(90 << 20, true).implausible().is_some());
        assert!(!of(122 << 20, false).is_marked(), "what lies between two blocks is read with them");
        // Bytes that other processes read are in their own gate, even when they are few.
        let beside = |others: u64, claimed: u64| {
            let own = Bytes { read: claimed, written: 0 };
            let device = Bytes { read: claimed + others, written: 0 };
            let counter_deltas = CounterDeltas { device: Some(device), own: Some(own), ..good() };
            let claim = Claim { exact: true, read_bytes: Some(claimed), ..claim() };
            let gates = of_row(&[(0, &counter_deltas, claim)], processors()).into_iter();
            gates.filter(Condition::failed).map(|gate| gate.name).collect::<Vec<_>>()
        };
        assert_eq!(beside(900 << 10, 4 << 20), ["other_io"]);
        assert_eq!(beside(64 << 10, 4 << 20), [""; 0]);
    }

    /// Story: rows that read from memory failed the gates `generator` and `device_bytes`, which apply
    /// to the device.
    #[test]
    fn a_warm_row_fails_no_gate_of_the_device() {
        let busy = CounterDeltas {
            cpu_seconds: 0.99,
            busiest_thread: Some(0.99),
            device: Some(Bytes::default()),
            ..good()
        };
        let sampled = || SampleFigures {
            claim: claim(),
            evidence: Evidence { counter_deltas: busy.clone(), ..Evidence::default() },
            ..SampleFigures::default()
        };
        let row = |cache| row_of("buffered", vec![(0, sampled())], 2).cache(cache);
        assert!(row(CacheState::Evicted).is_marked());
        let warm = row(CacheState::Warm);
        assert!(!warm.is_marked(), "{warm:?}");
        let why = warm.conditions.iter().filter(|gate| gate.why.contains("memory may serve")).count();
        assert_eq!(why, 2);
    }

    #[test]
    fn unknown_gates_do_not_pass() {
        let blind = CounterDeltas { device: None, own: None, ticks: None, throttled: None, ..good() };
        let gates = of_row(&[(0, &blind, claim())], processors());
        let known: Vec<bool> = gates.iter().map(|gate| gate.passed.is_some()).collect();
        assert_eq!(known, [false, true, false, false, false], "{gates:?}");
        let busy = Claim { busy_on_purpose: true, ..claim() };
        assert_eq!(failed(CounterDeltas { cpu_seconds: 9.0, ..good() }, busy), [""; 0]);
    }

    #[test]
    fn writers_are_not_blamed_for_the_journal() {
        let journal = CounterDeltas {
            device: Some(Bytes { read: 0, written: 30 << 20 }),
            own: Some(Bytes { read: 0, written: 10 << 20 }),
            ..good()
        };
        let writing = Claim { written_bytes: Some(10 << 20), read_bytes: None, ..claim() };
        let gates = of_row(&[(0, &journal, writing)], processors());
        assert!(gates.iter().all(|gate| gate.passed != Some(false)), "{gates:?}");
        let lost = CounterDeltas { device: Some(Bytes { read: 0, written: 9 << 20 }), ..journal };
        assert_eq!(of_row(&[(0, &lost, writing)], processors())[0].passed, Some(false));
    }

    #[test]
    fn rows_served_from_memory_ignore_other_io_on_the_device() {
        let busy = CounterDeltas { own: Some(Bytes::default()), ..good() };
        assert_eq!(failed(busy.clone(), Claim { read_bytes: None, ..claim() }), [""; 0]);
        assert_eq!(failed(busy, claim()), ["other_io"]);
    }

    #[test]
    fn a_write_cache_that_changes_fails_its_gate() {
        assert_eq!(write_cache(Some("write back"), Some("write back")).passed, Some(true));
        assert_eq!(write_cache(Some("write back"), Some("write through")).passed, Some(false));
        assert_eq!(write_cache(None, Some("write back")).passed, None);
    }
}
