//! The way in which groups become durable, on simulated drives whose costs are planted and change.

use std::cell::Cell;
use std::time::Duration;

use crate::common::{expected, record, records};
use forebay::Flush;
use forebay_sim::{self as sim, Profile, World};
use forebay_wal::{Fill, GroupWay, Options, Wal};

/// No zeros among groups: on a shard a group is written and flushed while another operation is in flight, in either way.
fn options() -> Options {
    Options::new().segment_bytes(64 << 20).fill(Fill::Allocated).log_id(7)
}

/// The microseconds of a write with FUA, and of a flush.
type Costs = (u64, u64);

/// Returns a consumer's drive with these costs, and with others from `change` on.
fn drive((fua, flush): Costs, change: Duration, then: Costs) -> Profile {
    let us = Duration::from_micros;
    let drive = Profile::nand().jitter(20).tail(0, 1).latency(us(80), us(15), us(flush)).fua(us(fua));
    drive.durable_from(change, us(then.1), us(then.0))
}

/// Appends one record after the other until a time of the world. Returns the time of each, in nanoseconds.
async fn append_until(wal: &Wal, end: Duration) -> Vec<u64> {
    let mut times = Vec::new();
    while sim::world_time() < end {
        let began = sim::world_time();
        wal.append(&[7u8; 100]).await.unwrap();
        times.push((sim::world_time() - began).as_nanos() as u64);
    }
    times
}

#[test]
fn the_faster_way_is_found_on_thirty_of_thirty_drives_and_found_again() {
    const COSTS: [[Costs; 2]; 3] =
        [[(4_000, 1_700), (900, 1_700)], [(1_300, 1_900), (4_000, 1_700)], [(2_600, 800), (900, 3_000)]];
    let (change, end) = (Duration::from_secs(1), Duration::from_secs(2));
    for seed in 0..30 {
        let [first, then] = COSTS[seed as usize % COSTS.len()];
        let ran = World::new(seed).disk(drive(first, change, then)).stalls_ppm(0).run(async |engine| {
            let (wal, _) = Wal::open(&engine, "/log", options().try_every(20)).await.unwrap();
            append_until(&wal, change).await;
            let before = wal.stats().way;
            append_until(&wal, end).await;
            let stats = wal.stats();
            wal.close().await.unwrap();
            (before, stats.way, stats.groups)
        });
        let (before, after, groups) = ran.unwrap();
        for (way, (fua, flush)) in [(before, first), (after, then)] {
            assert_eq!(way.flush == Flush::Queued, flush < fua, "seed {seed}: {fua} and {flush} us, {way}");
            assert!(way.to_string().starts_with("groups become durable by "), "{way}");
        }
        assert!(after.changes > 0 && after.tries * 20 <= groups, "seed {seed}: {groups} groups, {after}");
    }
}

/// Returns the times of appends on a drive, and the log's way at the end.
fn times(flush: Option<Flush>) -> (Vec<u64>, GroupWay) {
    let change = Duration::from_millis(6_500);
    let drive = drive((900, 1_700), change, (4_000, 1_700));
    let ran = World::new(1).disk(drive).stalls_ppm(0).run(async |engine| {
        let options = flush.map_or_else(options, |flush| options().flush(flush));
        let (wal, _) = Wal::open(&engine, "/log", options).await.unwrap();
        let times = append_until(&wal, Duration::from_secs(20)).await;
        let way = wal.stats().way;
        wal.close().await.unwrap();
        (times, way)
    });
    ran.unwrap()
}

/// In the middle of a log's life a write with FUA becomes four times as slow. One append in a thousand is the price.
#[test]
fn the_slow_appends_are_those_of_the_best_fixed_way() {
    let p99 = |mut times: Vec<u64>| {
        times.sort_unstable();
        times[times.len() * 99 / 100]
    };
    let (learned, way) = times(None);
    let appends = learned.len() as u64;
    let fixed = [Flush::Blocking, Flush::Queued].map(|flush| p99(times(Some(flush)).0));
    let (learned, best) = (p99(learned), fixed[0].min(fixed[1]));
    assert!(learned * 100 <= best * 105, "{learned} ns, {fixed:?} ns with a fixed way; {way}");
    assert!(way.flush == Flush::Queued && way.tries * 1_000 <= appends + 100, "{appends} appends, {way}");
}

/// Records of a life that is cut, and its operations.
const RECORDS: u64 = 80;
const OPERATIONS: u64 = 180;

/// Returns a log that changes its way every few groups on its drive.
fn restless() -> (Profile, Options) {
    let us = Duration::from_micros;
    let drive = Profile::ideal().latency(us(1), us(1), us(3)).fua(us(40));
    let costs = |period: u64| if period.is_multiple_of(2) { (us(3), us(40)) } else { (us(40), us(3)) };
    let drive = (1..60).fold(drive, |drive, period| {
        let (flush, fua) = costs(period);
        drive.durable_from(us(300 * period), flush, fua)
    });
    (drive, Options::new().segment_bytes(64 << 10).fill(Fill::Allocated).try_every(2).log_id(7))
}

/// Cuts the power at an operation of a life, and returns how the log that is opened then differs from what was acknowledged.
fn difference(seed: u64, operation: u64) -> Option<String> {
    let (drive, options) = restless();
    let mut world = World::new(seed).disk(drive).stalls_ppm(0);
    world.power_cut_at_operation(operation);
    let acknowledged = Cell::new(0);
    let lived = world.run(async |engine| {
        let (wal, _) = Wal::open(&engine, "/log", options.clone()).await?;
        for number in 1..=RECORDS {
            wal.append(&record(number)).await?;
            acknowledged.set(number);
        }
        Ok::<_, forebay_wal::Error>(())
    });
    match lived {
        Ok(Ok(())) => world.power_cut(),
        Err(failure) if failure.is_power_cut() => {}
        other => return Some(format!("the life before: {other:?}")),
    }
    world.reboot();
    let opened = world.run(async |engine| {
        let (wal, _) = Wal::open(&engine, "/log", options.clone()).await?;
        let found = records(&wal, 1).await?;
        wal.close().await?;
        Ok::<_, forebay_wal::Error>(found)
    });
    let found = match opened {
        Ok(Ok(found)) => found,
        other => return Some(format!("opened after operation {operation}: {other:?}")),
    };
    let (last, acknowledged) = (found.len() as u64, acknowledged.get());
    let is_right = last >= acknowledged && found == expected(1..=last);
    (!is_right).then(|| format!("{last} records after operation {operation}, {acknowledged} acknowledged"))
}

/// The drive persists a write with FUA alone, so a group must rely on nothing that is not flushed: no name, length or extent of its
/// segment, and no group that used the other way.
#[test]
fn a_cut_at_each_operation_loses_nothing_while_the_way_changes() {
    let (drive, options) = restless();
    let ran = World::new(1).disk(drive).stalls_ppm(0).run(async |engine| {
        let (wal, _) = Wal::open(&engine, "/log", options).await.unwrap();
        for number in 1..=RECORDS {
            wal.append(&record(number)).await.unwrap();
        }
        wal.stats().way
    });
    let way = ran.unwrap();
    assert!(way.changes >= 2, "{way}");
    for operation in 1..=OPERATIONS {
        assert_eq!(difference(1 + operation % 2, operation), None);
    }
}

#[cfg(feature = "_mutants")]
#[test]
fn a_new_segment_whose_flush_is_left_to_its_groups_is_noticed() {
    use forebay_wal::mutants::{self, Mutant};
    let noticed = || (1..=OPERATIONS).find_map(|operation| difference(1 + operation % 2, operation));
    let difference = mutants::with(Mutant::SegmentNotFlushed, noticed);
    println!("{}", difference.expect("a cut that takes a segment away"));
}
