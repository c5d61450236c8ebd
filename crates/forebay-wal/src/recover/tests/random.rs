//! Logs with random operations, random deaths and random damage.

use super::exhaustive::{SEGMENT, UNIT, damage, judge, units};
use super::log::{LOG_ID, Log, old_segment};
use crate::format::{Epochs, Flags, GRAIN, Header, Kind, Position, VERSION, seal};
use crate::recover::{recover, scan};
use crate::values::Stamp;

/// Reproducible pseudorandom numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// Appends one group of a random kind.
fn step(log: &mut Log, random: &mut Random) {
    match random.below(22) {
        20 => _ = log.set("vote", random.below(2)),
        21 => _ = log.set(["applied", "cursor"][random.below(2) as usize], random.below(3)),
        0..=10 => _ = log.append(1 + random.below(3), 20 + random.below(300) as usize),
        11 | 12 => _ = log.append(1, 3000 + random.below(15_000) as usize),
        13 | 14 => _ = log.mark(),
        15 | 16 => {
            let kept = random.below(log.next - log.first + 1);
            match (log.first + kept).checked_sub(1) {
                Some(last) => _ = log.truncate_after(last),
                None => _ = log.reset_to(0),
            }
        }
        17 => {
            let first = log.first + random.below(log.next - log.first + 1);
            log.truncate_before(first);
            log.mark();
        }
        18 => _ = log.reset_to(random.below(100)),
        _ => {
            log.begin_recycled(old_segment(SEGMENT));
            log.append(1, 100);
        }
    }
}

/// Ends the process while the last group is being written: any subset of its units may be on disk.
fn die(log: &mut Log, random: &mut Random) {
    let Some((header, _)) = log.written.last().cloned() else { return };
    let recycled = header.flags.recycled().then(|| old_segment(SEGMENT));
    let segment = log.segments.get_mut(&header.generation).expect("a segment of the log");
    let range = header.offset as usize..(header.offset + u64::from(header.total_len)) as usize;
    let mut torn = false;
    for at in range.step_by(UNIT) {
        if random.below(2) == 0 {
            let unit = &mut segment[at..at + UNIT];
            let whole = unit.to_vec();
            match &recycled {
                Some(old) => unit.copy_from_slice(&old[at..at + UNIT]),
                None => unit.fill(0),
            }
            torn |= *unit != whole[..];
        }
    }
    if torn {
        log.written.pop();
    }
}

/// Returns whether the header behind this unit's group remembers all epochs that start in it. If not, all records before it count
/// as lost: FORMAT.md, "after three opens or more that were cut off".
fn are_remembered(log: &Log, (generation, unit): (u64, usize)) -> bool {
    let place = Position { generation, offset: (unit * UNIT) as u64 };
    let headers = || log.written.iter().map(|(header, _)| header);
    let is_dead = |place: Position| {
        headers().any(|later| later.flags.reopen() && (later.cut..later.position()).contains(&place))
    };
    let before = headers().rfind(|header| header.end() <= place).map(|header| header.epochs.number);
    let after = headers().find(|header| header.position() > place && !is_dead(header.position()));
    before.zip(after).is_none_or(|(before, after)| after.epochs.number - before <= 4)
}

#[test]
fn random_lives() {
    for seed in 1..=150 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
        let mut log = Log::from(SEGMENT, seed % 3);
        for life in 0..6 {
            let steps = random.below(12);
            (0..steps).for_each(|_| step(&mut log, &mut random));
            // The groups of earlier lives are durable, and so is the REOPEN group of this one.
            if steps > 0 {
                die(&mut log, &mut random);
            }
            let (last, expected) = log.written.last().cloned().expect("the first group");
            let values = log.values_at[&last.position()].clone();
            log.open(false).unwrap_or_else(|error| panic!("seed {seed} life {life}: {error}"));
            assert!(
                log.records.keys().eq(expected.keys()),
                "seed {seed} life {life}: {:?}",
                log.records.keys()
            );
            assert!(log.records == expected, "seed {seed} life {life}");
            assert!(log.values == values, "seed {seed} life {life}: other values");
        }
        (0..1 + random.below(4)).for_each(|_| step(&mut log, &mut random));
        let what = format!("seed {seed}");
        let units = units(&log);
        let first = log.written.last().map_or(0, |(header, _)| header.start_generation);
        for _ in 0..6 {
            let mut segments = log.segments.clone();
            let unit = units[random.below(units.len() as u64) as usize];
            damage(&mut segments, unit, random.below(3) as usize, &[]);
            if unit.0 >= first && are_remembered(&log, unit) {
                judge(&log, &segments, &format!("{what} unit {unit:?}"));
            }
        }
    }
}

/// Groups with correct checksums and arbitrary fields: recovery returns, with any result.
#[test]
fn any_fields_are_judged() {
    for seed in 1..=4000 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
        let mut segments = vec![vec![0u8; 6 * UNIT]; 3];
        let mut crc = 0;
        for (index, segment) in segments.iter_mut().enumerate() {
            for (unit, bytes) in segment.chunks_exact_mut(UNIT).enumerate() {
                if random.below(4) == 0 {
                    continue;
                }
                crc = seal(&any_header(&mut random, index as u64 + 1, unit as u64, crc), bytes);
            }
        }
        for salvage in [false, true] {
            let scans = segments.iter().zip(1..).map(|(bytes, at)| scan(format!("{at}").into(), at, bytes));
            _ = recover(scans.collect(), &super::log::no_end(), salvage);
        }
    }
}

fn any_header(random: &mut Random, generation: u64, unit: u64, crc: u32) -> Header {
    let mut small = || match random.below(12) {
        0 => u64::MAX - random.below(3),
        _ => random.below(6),
    };
    let mut place = || Position { generation: small(), offset: small() % 6 * u64::from(GRAIN) };
    let (watermark, cut, resume) = (place(), place(), place());
    let kinds = [Kind::Records, Kind::Mark, Kind::Truncate, Kind::Reset, Kind::Gap];
    let stamp = Stamp { epoch: small(), count: small() };
    Header {
        version: VERSION,
        values: stamp,
        values_len: 0,
        crc: 0,
        total_len: 0,
        log_id: LOG_ID,
        generation,
        offset: unit * u64::from(GRAIN),
        epochs: Epochs { number: small(), firsts: [small(), small(), small(), small()] },
        first_lsn: small(),
        record_count: 0,
        payload_len: 0,
        previous: if small() > 2 { crc } else { 0 },
        kind: kinds[small() as usize % 5],
        flags: if unit == 0 && small() > 3 { Flags::REOPEN } else { Flags::default() },
        watermark,
        first_retained: small(),
        base_lsn: small(),
        argument: small(),
        cut,
        resume,
        start_generation: small(),
    }
}
