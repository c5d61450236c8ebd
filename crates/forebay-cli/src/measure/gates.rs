//! The gates of a sample: conditions under which a figure means what it says. A row that fails one is marked.

use super::witness::{Bytes, Witness};
use crate::result::Condition;

/// Less than this share of what was claimed from the device was not the device's work.
const DEVICE_SHARE: f64 = 0.95;
/// A processor that is busier is the limit, not the device.
const BUSY_SHARE: f64 = 0.9;
/// More of others' bytes on the device, as a share of all, are in the figures.
const OTHERS_SHARE: f64 = 0.05;
/// So few are nobody's fault: metadata, a daemon's log.
const OTHERS_BYTES: u64 = 1 << 20;
/// More of the processors' time that the host gave away shows.
const STEAL_SHARE: f64 = 0.02;
/// Below so many ticks a share is an accident.
const STEAL_TICKS: u64 = 3;

/// What a sample says of itself, to be held against what was seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Claim {
    /// What the device must have delivered; `None` where memory may have.
    pub(super) read_bytes: Option<u64>,
    /// What the device must have taken.
    pub(super) written_bytes: Option<u64>,
    /// Threads that do the work.
    pub(super) workers: Option<usize>,
    /// It keeps processors busy because that is what is looked at.
    pub(super) busy_on_purpose: bool,
}

/// One sample's number of repeat, what was seen, and what it claims.
pub(super) type Seen<'a> = (u32, &'a Witness, Claim);

/// Processors that this process may use.
pub(super) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The gates of a row that ran on so many processors, over all its samples: a sample that fails fails the row, whose value is the worst.
pub(super) fn of_row(samples: &[Seen<'_>], processors: usize) -> Vec<Condition> {
    let gates: [fn(&Seen<'_>, usize) -> Condition; 5] = [
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

/// The condition of the worst sample, with the repeats that failed.
fn worst(all: Vec<(u32, Condition)>) -> Option<Condition> {
    let failed: Vec<u32> =
        all.iter().filter(|(_, gate)| gate.passed == Some(false)).map(|(repeat, _)| *repeat).collect();
    let badness = |gate: &Condition| {
        let distance = match (gate.value, gate.at_least, gate.at_most) {
            (Some(value), Some(least), _) => least - value,
            (Some(value), None, Some(most)) => value - most,
            _ => f64::NEG_INFINITY,
        };
        (gate.passed == Some(false), gate.passed.is_some(), distance)
    };
    let (_, mut gate) = all.into_iter().max_by(|(_, one), (_, other)| {
        badness(one).partial_cmp(&badness(other)).unwrap_or(std::cmp::Ordering::Equal)
    })?;
    gate.repeats = failed;
    Some(gate)
}

fn device_bytes((_, witness, claim): &Seen<'_>) -> Condition {
    const NAME: &str = "device_bytes";
    let claims = [
        (claim.read_bytes, witness.device.map(|device| device.read)),
        (claim.written_bytes, witness.device.map(|device| device.written)),
    ];
    let shares = claims.iter().filter_map(|(claimed, seen)| {
        let claimed = claimed.filter(|bytes| *bytes > 0)?;
        Some((*seen)? as f64 / claimed as f64)
    });
    match shares.reduce(f64::min) {
        Some(share) => Condition::at_least(NAME, share, DEVICE_SHARE)
            .because("bytes that the device moved, as a share of those that the row counts"),
        None if claims.iter().all(|(claimed, _)| claimed.is_none()) => {
            Condition::unknown(NAME, "does not apply: memory may serve this row")
        }
        None => Condition::unknown(NAME, "there is no block device that counts its bytes"),
    }
}

fn generator((_, witness, claim): &Seen<'_>, processors: usize) -> Condition {
    const NAME: &str = "generator";
    if claim.busy_on_purpose {
        return Condition::unknown(NAME, "does not apply: processors are kept busy on purpose");
    }
    let workers = claim.workers.unwrap_or(processors).clamp(1, processors);
    let all = witness.cpu_seconds / (witness.seconds * workers as f64);
    let share = all.max(witness.busiest_thread.unwrap_or(0.0));
    if !share.is_finite() {
        return Condition::unknown(NAME, "the sample has no length");
    }
    Condition::at_most(NAME, share, BUSY_SHARE)
        .because("share of the time in which the busiest thread, or all processors, worked: near 1 a processor is the limit")
}

fn other_io((_, witness, claim): &Seen<'_>) -> Condition {
    const NAME: &str = "other_io";
    let (Some(device), Some(own)) = (witness.device, witness.own) else {
        return Condition::unknown(NAME, "the device or the process has no counters");
    };
    // What a sample writes comes to the device later, and with the file system's journal: that is not others' work.
    let sum =
        |bytes: Bytes| if claim.written_bytes.is_some() { bytes.read } else { bytes.read + bytes.written };
    let (seen, own) = (sum(device), sum(own));
    if own < OTHERS_BYTES && claim.read_bytes.is_none() && claim.written_bytes.is_none() {
        return Condition::unknown(
            NAME,
            "does not apply: memory served this row, and others' work did not wait for it",
        );
    }
    let others = seen.saturating_sub(own);
    let share = if others < OTHERS_BYTES { 0.0 } else { others as f64 / seen as f64 };
    Condition::at_most(NAME, share, OTHERS_SHARE)
        .because("bytes on the device that this process did not cause, as a share of all")
}

fn steal((_, witness, _): &Seen<'_>) -> Condition {
    const NAME: &str = "steal";
    let Some(ticks) = witness.ticks.filter(|ticks| ticks.all > 0) else {
        return Condition::unknown(NAME, "the kernel counted no time");
    };
    let share = if ticks.stolen < STEAL_TICKS { 0.0 } else { ticks.stolen as f64 / ticks.all as f64 };
    Condition::at_most(NAME, share, STEAL_SHARE)
        .because("share of the processors' time that the host gave to others")
}

fn throttling((_, witness, _): &Seen<'_>) -> Condition {
    const NAME: &str = "throttling";
    match witness.throttled {
        Some(times) => Condition::at_most(NAME, times as f64, 0.0)
            .because("how often a cgroup's limit on processor time held the process back"),
        None => Condition::unknown(NAME, "no cgroup counts it"),
    }
}

/// What the write cache was set to before and after the measuring.
pub(super) fn write_cache(before: Option<&str>, after: Option<&str>) -> Condition {
    const NAME: &str = "write_cache";
    match (before, after) {
        (Some(before), Some(after)) if before == after => {
            let means = if before.contains("back") {
                "a write is durable only after a flush"
            } else {
                "the device says that a finished write is durable"
            };
            Condition { passed: Some(true), ..Condition::unknown(NAME, format!("{before}: {means}")) }
        }
        (Some(before), Some(after)) => {
            let why = format!("it was changed from {before} to {after} while it was measured");
            Condition { passed: Some(false), ..Condition::unknown(NAME, why) }
        }
        _ => Condition::unknown(NAME, "no block device says what it has"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::witness::Ticks;

    fn good() -> Witness {
        Witness {
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

    fn failed(witness: Witness, claim: Claim) -> Vec<String> {
        let gates = of_row(&[(0, &good(), claim), (1, &witness, claim)], processors());
        assert_eq!(gates.len(), 5);
        let failed = gates.into_iter().filter(|gate| gate.passed == Some(false));
        failed.inspect(|gate| assert!(gate.repeats.contains(&1), "{gate:?}")).map(|gate| gate.name).collect()
    }

    /// Each gate fails when what it looks for is there, alone, and none fails without.
    #[test]
    fn every_gate_can_fail_alone() {
        assert_eq!(failed(good(), claim()), [""; 0]);
        let cached = Witness { device: Some(Bytes { read: 94 << 20, written: 0 }), ..good() };
        assert_eq!(failed(cached, claim()), ["device_bytes"]);
        assert_eq!(failed(Witness { busiest_thread: Some(0.91), ..good() }, claim()), ["generator"]);
        assert_eq!(failed(Witness { cpu_seconds: 0.95, ..good() }, claim()), ["generator"]);
        let crowded = Witness { device: Some(Bytes { read: 100 << 20, written: 9 << 20 }), ..good() };
        assert_eq!(failed(crowded, claim()), ["other_io"]);
        let stolen = Witness { ticks: Some(Ticks { all: 400, stolen: 9 }), ..good() };
        assert_eq!(failed(stolen, claim()), ["steal"]);
        assert_eq!(failed(Witness { throttled: Some(1), ..good() }, claim()), ["throttling"]);
    }

    #[test]
    fn what_is_not_known_is_not_called_good() {
        let blind = Witness { device: None, own: None, ticks: None, throttled: None, ..good() };
        let gates = of_row(&[(0, &blind, claim())], processors());
        let known: Vec<bool> = gates.iter().map(|gate| gate.passed.is_some()).collect();
        assert_eq!(known, [false, true, false, false, false], "{gates:?}");
        let busy = Claim { busy_on_purpose: true, ..claim() };
        assert_eq!(failed(Witness { cpu_seconds: 9.0, ..good() }, busy), [""; 0]);
    }

    #[test]
    fn what_writes_is_not_blamed_for_the_journal() {
        let journal = Witness {
            device: Some(Bytes { read: 0, written: 30 << 20 }),
            own: Some(Bytes { read: 0, written: 10 << 20 }),
            ..good()
        };
        let writing = Claim { written_bytes: Some(10 << 20), read_bytes: None, ..claim() };
        let gates = of_row(&[(0, &journal, writing)], processors());
        assert!(gates.iter().all(|gate| gate.passed != Some(false)), "{gates:?}");
        let lost = Witness { device: Some(Bytes { read: 0, written: 9 << 20 }), ..journal };
        assert_eq!(of_row(&[(0, &lost, writing)], processors())[0].passed, Some(false));
    }

    #[test]
    fn what_memory_serves_does_not_mind_others_on_the_device() {
        let busy = Witness { own: Some(Bytes::default()), ..good() };
        assert_eq!(failed(busy.clone(), Claim { read_bytes: None, ..claim() }), [""; 0]);
        assert_eq!(failed(busy, claim()), ["other_io"]);
    }

    #[test]
    fn a_write_cache_that_changes_is_told() {
        assert_eq!(write_cache(Some("write back"), Some("write back")).passed, Some(true));
        assert_eq!(write_cache(Some("write back"), Some("write through")).passed, Some(false));
        assert_eq!(write_cache(None, Some("write back")).passed, None);
    }
}
