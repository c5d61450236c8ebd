//! Sweeps: a figure along one number that a user chooses, ours and that of a peer which was measured in turn with it, as rows of
//! figures and a summary. Figures are rates: more is better.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::RangeInclusive;

use crate::result::{Experiment, median};
use crate::units::number;

/// Neighbours that differ by more are a cliff.
const CLIFF: f64 = 1.3;

/// Returns the points of an axis: both ends, powers of two and constants, each with its neighbours. A quick sweep has powers of two
/// without neighbours.
pub fn points(range: &RangeInclusive<u64>, constants: &[u64], is_quick: bool) -> Vec<u64> {
    let around = |at: u64| [at.saturating_sub(1), at, at.saturating_add(1)];
    let powers = (0..u64::BITS).map(|shift| 1_u64 << shift);
    let powers: Vec<u64> = if is_quick { powers.collect() } else { powers.flat_map(around).collect() };
    let ends = [*range.start(), *range.end()];
    let all = powers.into_iter().chain(constants.iter().copied().flat_map(around)).chain(ends);
    let all: BTreeSet<u64> = all.filter(|at| range.contains(at)).collect();
    all.into_iter().collect()
}

/// A figure along an axis.
#[derive(Clone, Debug)]
pub struct Sweep {
    name: String,
    /// The unit of the axis, and that of the figure.
    units: [&'static str; 2],
    /// The names of both sides: ours, and the peer's.
    sides: [&'static str; 2],
    points: Vec<Point>,
}

/// The figures at a point of an axis; `None`: not measured.
#[derive(Clone, Copy, Debug)]
struct Point {
    at: u64,
    sides: [Option<Rounds>; 2],
    /// Our figure over the peer's, round by round.
    ratio: Option<Rounds>,
}

/// A figure of several rounds.
#[derive(Clone, Copy, Debug)]
struct Rounds {
    median: f64,
    low: f64,
    high: f64,
}

impl Rounds {
    fn of(values: Vec<f64>) -> Option<Self> {
        let ends = values.iter().map(|value| (*value, *value));
        let (low, high) = ends.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
        Some(Self { low, high, median: median(values)? })
    }
}

/// The way from a point to its neighbour, of one side.
#[derive(Clone, Copy, Debug)]
struct Step {
    from: u64,
    to: u64,
    /// The larger of both medians over the smaller.
    times: f64,
    /// Whether each round of one is above each round of the other.
    is_apart: bool,
}

impl Step {
    fn is_cliff(&self) -> bool {
        self.times > CLIFF && self.is_apart
    }

    fn text(&self) -> String {
        format!("{:.2} from {} to {}", self.times, self.from, self.to)
    }
}

impl Sweep {
    /// Returns a sweep without points: its name, the units of the axis and of the figure, and the names of both sides, ours first.
    pub fn new(name: impl Into<String>, units: [&'static str; 2], sides: [&'static str; 2]) -> Self {
        Self { name: name.into(), units, sides, points: Vec::new() }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds a point: a table with a row of each side's name. Points are added in order.
    pub fn add(&mut self, at: u64, table: &Experiment, metric: &str) {
        let by_round = |side: &str| -> Vec<(u32, f64)> {
            let samples = table.row(side).into_iter().flat_map(|row| &row.samples);
            samples.filter_map(|sample| Some((sample.repeat, sample.metrics.get(metric)?))).collect()
        };
        let [ours, peer] = self.sides.map(by_round);
        let in_round = |round: u32| peer.iter().find(|(other, _)| *other == round).map(|(_, value)| *value);
        let ratios = ours.iter().filter_map(|(round, value)| Some(value / in_round(*round)?));
        let ratio = Rounds::of(ratios.filter(|ratio| ratio.is_finite()).collect());
        let sides = [&ours, &peer].map(|side| Rounds::of(side.iter().map(|(_, value)| *value).collect()));
        self.points.push(Point { at, sides, ratio });
    }

    /// Returns the newest point in a line.
    pub fn newest(&self) -> String {
        let Some(point) = self.points.last() else { return String::new() };
        let side = |side: usize| {
            let median = point.sides[side].map_or_else(|| "-".to_owned(), |rounds| number(rounds.median));
            format!("{} {median}", self.sides[side])
        };
        let ratio = point.ratio.map_or_else(String::new, |ratio| {
            format!(", ratio {:.2} ({:.2} to {:.2})", ratio.median, ratio.low, ratio.high)
        });
        let (at, [unit, figure]) = (point.at, self.units);
        format!("{} at {at} {unit}: {}, {} {figure}{ratio}\n", self.name, side(0), side(1))
    }

    /// Returns the figures of all points that were measured: the point, the median, its unit, and its least and greatest value. The
    /// unit of a side's figure ends in `of SIDE`, that of the ratio has both names.
    pub fn rows(&self) -> Vec<[String; 4]> {
        let [unit, figure] = self.units;
        let [ours, peer] = self.sides;
        let row = |point: &Point, rounds: Option<Rounds>, of: String| {
            let Rounds { median, low, high } = rounds?;
            let spread = format!("{} to {}", number(low), number(high));
            Some([format!("{} {unit}", point.at), number(median), of, spread])
        };
        let rows = self.points.iter().flat_map(|point| {
            [
                row(point, point.sides[0], format!("{figure} of {ours}")),
                row(point, point.sides[1], format!("{figure} of {peer}")),
                row(point, point.ratio, format!("{ours} over {peer}")),
            ]
        });
        rows.flatten().collect()
    }

    /// Returns the steps of a side between points that are a tenth apart at most. Others differ by what they do.
    fn steps(&self, side: usize) -> impl Iterator<Item = Step> {
        self.points.windows(2).filter_map(move |pair| {
            let [from, to] = [&pair[0], &pair[1]];
            let (was, is) = (from.sides[side]?, to.sides[side]?);
            let times = (was.median / is.median).max(is.median / was.median);
            let is_near = to.at - from.at <= from.at / 10;
            let is_apart = was.high < is.low || is.high < was.low;
            (is_near && times.is_finite()).then_some(Step { from: from.at, to: to.at, times, is_apart })
        })
    }

    /// Returns the number of our cliffs: neighbours that differ by more than 1.3, in each round.
    pub fn cliffs(&self) -> usize {
        self.steps(0).filter(Step::is_cliff).count()
    }
}

/// Returns a table of sweeps: the worst neighbours of each side, and the lowest ratio. Below it are all cliffs.
pub fn summary(sweeps: &[Sweep]) -> String {
    let mut text = format!(
        "\n{:<20} {:>6}  {:<32} {:<32} lowest ratio\n",
        "axis", "points", "our worst neighbours", "the peer's"
    );
    let mut cliffs = String::new();
    for sweep in sweeps {
        let worst = |side| {
            let step = sweep.steps(side).max_by(|a, b| a.times.total_cmp(&b.times));
            step.map_or_else(|| "-".to_owned(), |step| step.text())
        };
        let ratios = sweep.points.iter().filter_map(|point| Some((point.at, point.ratio?.median)));
        let lowest = ratios.min_by(|a, b| a.1.total_cmp(&b.1));
        let (count, [ours, peer]) = (sweep.points.len(), [worst(0), worst(1)]);
        let lowest = lowest.map_or_else(|| "-".to_owned(), |(at, ratio)| format!("{ratio:.2} at {at}"));
        // Writing to a text cannot fail.
        _ = writeln!(text, "{:<20} {count:>6}  {ours:<32} {peer:<32} {lowest}", sweep.name);
        for (side, name) in sweep.sides.iter().enumerate() {
            for step in sweep.steps(side).filter(Step::is_cliff) {
                let [unit, figure] = sweep.units;
                let (axis, step) = (&sweep.name, step.text());
                _ = writeln!(cliffs, "cliff: {axis}, {name}: {figure} differ by {step} {unit}");
            }
        }
    }
    text + &cliffs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Row;

    fn row(name: &str, rounds: &[f64]) -> Row {
        Row::of_repeats(name, rounds.iter().map(|value| [("iops", *value)]))
    }

    /// A sweep of these points, each with the rounds of both sides.
    fn sweep(points: &[(u64, &[f64], &[f64])]) -> Sweep {
        let mut sweep = Sweep::new("core-read", ["B", "reads/s"], ["ours", "peer"]);
        for (at, ours, peer) in points {
            let table = Experiment::new("sweep", "").with_rows([row("ours", ours), row("peer", peer)]);
            sweep.add(*at, &table, "iops");
        }
        sweep
    }

    #[test]
    fn points_lie_around_powers_of_two_and_constants_and_within_the_range() {
        assert_eq!(points(&(3..=9), &[], false), [3, 4, 5, 7, 8, 9]);
        assert_eq!(points(&(1..=40), &[10, 41], true), [1, 2, 4, 8, 9, 10, 11, 16, 32, 40]);
        assert_eq!(points(&(1..=u64::MAX), &[], false).last(), Some(&u64::MAX));
    }

    #[test]
    fn ratios_are_those_of_the_same_round() {
        // The medians alone would say 1.5.
        let sweep = sweep(&[(1, &[10.0, 20.0, 30.0], &[20.0, 10.0, 30.0])]);
        let ratio = sweep.points[0].ratio.expect("both were measured");
        assert_eq!((ratio.median, ratio.low, ratio.high), (1.0, 0.5, 2.0));
        assert_eq!(sweep.newest(), "core-read at 1 B: ours 20, peer 20 reads/s, ratio 1.00 (0.50 to 2.00)\n");
    }

    #[test]
    fn a_side_without_figures_is_left_out() {
        let sweep = sweep(&[(1, &[10.0, 12.0], &[]), (2, &[], &[])]);
        assert_eq!(sweep.rows(), [["1 B", "11", "reads/s of ours", "10 to 12"]]);
        assert_eq!(sweep.newest(), "core-read at 2 B: ours -, peer - reads/s\n");
        assert!(summary(&[sweep]).contains(" -\n"));
    }

    #[test]
    fn a_point_has_a_row_of_each_side_and_of_the_ratio() {
        let sweep = sweep(&[(4096, &[1000.0, 2000.0], &[5.0, 5.0]), (4097, &[10.0], &[])]);
        let rows = [
            ["4096 B", "1,500", "reads/s of ours", "1,000 to 2,000"],
            ["4096 B", "5", "reads/s of peer", "5 to 5"],
            ["4096 B", "300", "ours over peer", "200 to 400"],
            ["4097 B", "10", "reads/s of ours", "10 to 10"],
        ];
        assert_eq!(sweep.rows(), rows);
    }

    #[test]
    fn a_cliff_is_between_neighbours_and_beyond_their_rounds() {
        let points: [(u64, &[f64], &[f64]); 5] = [
            (100, &[10.0, 10.0], &[10.0, 10.0]),
            // A fall of a half in each round; the peer's rounds overlap.
            (101, &[5.0, 5.0], &[4.0, 10.0]),
            (110, &[5.0, 6.0], &[8.0, 10.0]),
            // Further apart than a tenth.
            (200, &[1.0, 1.0], &[10.0, 10.0]),
            (201, &[1.2, 1.2], &[10.0, 10.0]),
        ];
        let sweep = sweep(&points);
        assert_eq!(sweep.cliffs(), 1);
        let text = summary(std::slice::from_ref(&sweep));
        assert!(text.contains("2.00 from 100 to 101"), "{text}");
        assert!(text.contains("1.43 from 100 to 101"), "the peer's worst neighbours: {text}");
        assert!(text.contains("0.10 at 200"), "{text}");
        let cliffs: Vec<&str> = text.lines().filter(|line| line.starts_with("cliff")).collect();
        assert_eq!(cliffs, ["cliff: core-read, ours: reads/s differ by 2.00 from 100 to 101 B"]);
    }
}
