//! The cost for a disk of a write combiner's writes, at every length (forebay-test/SWEEPS.md). A failure prints each point of the
//! axis with its counts.

use forebay::{Config, Durability, Open};
use forebay_collective::{Options, WriteCombiner};
use forebay_test::draw::bytes_of;
use forebay_test::sweep::meter::{self, Attempt, count};
use forebay_test::sweep::{Axis, BLOCK, Cost, Sweep};

const MIB: u64 = 1 << 20;
/// The longest request, and the bytes in flight.
const REQUEST: u64 = MIB / 2;
const IN_FLIGHT: u64 = 8 * MIB;

static COMBINED: Axis = Axis {
    name: "combined write",
    unit: "bytes",
    package: "forebay-collective",
    range: 1..=9 * MIB,
    crosses: &[("HOLD_BYTES", 128 << 10), ("IN_FLIGHT_BYTES", 8 << 20)],
    steps: &[],
    limit: None,
};

/// The points of an axis that are tried.
type Points = fn(&Axis) -> Vec<u64>;

/// A write, and the flush that makes it durable.
fn combined(points: Points) {
    let bytes = bytes_of(0..*COMBINED.range.end());
    // A quarter of the memory is more than the writes in flight use at most.
    let options = Options::new().memory_bytes_max(64 << 20);
    let ran = meter::world().config(Config::new().arena_bytes_max(256 << 20)).run(async |engine| {
        // The part of the last page is padded, for which it may be read.
        let ideal = |at: u64| {
            let cost = Cost::together(1 + at.div_ceil(REQUEST), at + BLOCK).with_flushes(1);
            cost.in_rounds(3 + at / IN_FLIGHT)
        };
        let attempt = async |at: u64| -> Attempt {
            let file = engine.open(format!("/disk/{at}"), Open::create()).await?;
            let combiner = WriteCombiner::start(&file, options);
            let written = &bytes[..at as usize];
            let (done, cost) = count(async {
                combiner.write(0, written).await?;
                combiner.flush(Durability::Data).await
            })
            .await;
            done?;
            if file.read_up_to(0..at).await?[..] != *written {
                return Err("bytes that differ".into());
            }
            Ok(cost)
        };
        meter::sweep(&COMBINED, points, ideal, attempt).await
    });
    Sweep::judge_all(&[ran.unwrap_or_else(|failure| panic!("{failure}"))]);
}

#[test]
fn combined_writes_of_every_length() {
    combined(Axis::points);
}

#[test]
#[ignore = "half a minute: the points between those of every gate"]
fn the_points_between() {
    combined(Axis::all_points);
}
