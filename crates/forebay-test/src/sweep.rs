//! Sweeps: a number that a user chooses, the points at which it is tried, and two judges of the results.
//!
//! The judge of *works*: up to the documented limit no point fails, and above it each fails with a sentence that has the limit
//! and the way out. The judge of *costs*: a point costs at most 1.5 times the formula of its axis and one more, and neighbours
//! (longer by a tenth, or one apart) differ by at most 1.3 beyond the growth of the formula. A part that is dearer has its
//! reason in a [`Step`] of the axis.
//!
//! Costs are counts of a simulated disk (`meter`), never times of this machine. Requests in flight together make one *round*: a
//! loop that awaits one read after the other shows there, and not in the number of requests.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::{Add, RangeInclusive};

#[cfg(feature = "sim")]
pub mod meter;

/// Bytes of a block of the disk, to which bytes are rounded.
pub const BLOCK: u64 = 4096;

/// Bytes of a group of the log in addition to its records.
const GROUP: u64 = 256;

/// The points of an axis that are tried: [`Axis::points`] or [`Axis::all_points`].
pub type Points = fn(&Axis) -> Vec<u64>;

/// Returns `len` bytes. Those of different numbers differ within the first eight.
pub fn content(number: u64, len: u64) -> Vec<u8> {
    let word = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    let mut bytes = word.repeat(len.div_ceil(8) as usize);
    bytes.truncate(len as usize);
    bytes
}

/// The cost of a point by its formula, in percent.
const FORMULA_PERCENT: u64 = 150;
/// The most by which neighbours differ, beyond the growth of the formula, in percent.
const NEIGHBOUR_PERCENT: u64 = 130;

/// The work of a disk for an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Reads and writes.
    pub requests: u64,
    /// Bytes of the reads and writes.
    pub bytes: u64,
    /// Syncs.
    pub flushes: u64,
    /// Requests and syncs that had to wait for one another.
    pub rounds: u64,
}

/// A count of a [`Cost`]: its name, what one more is, and the count.
type Count = (&'static str, u64, fn(&Cost) -> u64);

const COUNTS: [Count; 4] = [
    ("requests", 1, |cost| cost.requests),
    ("bytes", BLOCK, |cost| cost.bytes),
    ("flushes", 1, |cost| cost.flushes),
    ("rounds", 1, |cost| cost.rounds),
];

impl Cost {
    /// Returns the cost of `requests` that move `bytes` in all, together, without a sync.
    pub fn together(requests: u64, bytes: u64) -> Cost {
        Cost { requests, bytes: bytes.next_multiple_of(BLOCK), flushes: 0, rounds: u64::from(requests > 0) }
    }

    /// Returns the cost of a group of a log that has `bytes` of records: a write, then a sync.
    pub fn of_group(bytes: u64) -> Cost {
        Cost::together(1, bytes + GROUP).with_flushes(1).in_rounds(2)
    }

    /// Returns the same with a number of rounds.
    pub fn in_rounds(self, rounds: u64) -> Cost {
        Cost { rounds, ..self }
    }

    /// Returns the same with a number of syncs.
    pub fn with_flushes(self, flushes: u64) -> Cost {
        Cost { flushes, ..self }
    }
}

/// Work that is done one after the other.
impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            requests: self.requests + other.requests,
            bytes: self.bytes + other.bytes,
            flushes: self.flushes + other.flushes,
            rounds: self.rounds + other.rounds,
        }
    }
}

/// A part of an axis that is dearer than its formula, for a reason. Points inside and outside of it do not count as neighbours.
#[derive(Clone, Debug)]
pub struct Step {
    /// The points.
    pub range: RangeInclusive<u64>,
    /// The highest cost of a point, in percent of the formula.
    pub percent: u64,
    /// The largest difference of neighbours in the range, beyond the growth of the formula, in percent.
    pub neighbours: u64,
    /// The reason.
    pub reason: &'static str,
}

/// The documented limit of an axis.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The largest number that works.
    pub most: u64,
    /// Words of the error above it: the limit, and the way out.
    pub words: &'static [&'static str],
}

/// A number that a user chooses.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The name, which `.ci/constants` uses.
    pub name: &'static str,
    /// The unit of its numbers.
    pub unit: &'static str,
    /// The crate whose user chooses it.
    pub package: &'static str,
    /// The numbers that are tried.
    pub range: RangeInclusive<u64>,
    /// Constants of the crate that it crosses, by name; `scripts/checks/constants` compares their values with the sources.
    pub crosses: &'static [(&'static str, u64)],
    /// The parts that are dearer than the formula.
    pub steps: &'static [Step],
    /// The limit, if the range exceeds one.
    pub limit: Option<Limit>,
}

impl Axis {
    /// Returns the points that every gate tries: both ends, powers of two and inner constants with their neighbours and the numbers
    /// longer by a tenth.
    pub fn points(&self) -> Vec<u64> {
        let powers = (0..u64::BITS).map(|shift| 1_u64 << shift);
        let corners = powers.chain(self.crosses.iter().map(|(_, value)| *value));
        let ends = [*self.range.start(), *self.range.end()];
        let limits = self.limit.iter().flat_map(|limit| [limit.most, limit.most + 1]);
        let around = corners.flat_map(|at| [at.saturating_sub(1), at, at.saturating_add(1), tenth_more(at)]);
        let all: BTreeSet<u64> =
            around.chain(ends).chain(limits).filter(|at| self.range.contains(at)).collect();
        all.into_iter().collect()
    }

    /// Returns [`points`](Self::points) with all between them, each longer by a tenth than the one before it.
    pub fn all_points(&self) -> Vec<u64> {
        let mut all: BTreeSet<u64> = self.points().into_iter().collect();
        let mut at = *self.range.start();
        while at < *self.range.end() {
            all.insert(at);
            at = tenth_more(at);
        }
        all.into_iter().collect()
    }

    fn step(&self, at: u64) -> Option<&Step> {
        self.steps.iter().find(|step| step.range.contains(&at))
    }
}

/// Returns a number longer by a tenth, and by one at least.
fn tenth_more(at: u64) -> u64 {
    at.saturating_add((at / 10).max(1))
}

#[derive(Clone, Debug)]
struct Row {
    at: u64,
    ideal: Cost,
    outcome: Result<Cost, String>,
}

/// The results at the points of an axis.
#[derive(Clone, Debug)]
pub struct Sweep<'a> {
    axis: &'a Axis,
    rows: Vec<Row>,
}

impl<'a> Sweep<'a> {
    /// Returns a sweep without points.
    pub fn new(axis: &'a Axis) -> Sweep<'a> {
        Sweep { axis, rows: Vec::new() }
    }

    /// Adds a point: its cost by the formula, and the cost that was counted, or the text of its error. Points are added in order.
    pub fn add(&mut self, at: u64, ideal: Cost, outcome: Result<Cost, String>) {
        debug_assert!(self.rows.last().is_none_or(|row| row.at < at), "points come in order");
        self.rows.push(Row { at, ideal, outcome });
    }

    /// Judges the points of several sweeps.
    ///
    /// # Panics
    /// If a point fails or is dear. The text has every point of each such sweep with its counts.
    pub fn judge_all(sweeps: &[Sweep<'a>]) {
        let verdict = |sweep: &Sweep<'a>| {
            let findings = sweep.findings();
            (!findings.is_empty()).then(|| format!("{}\n{}", findings.join("\n"), sweep.table()))
        };
        let verdicts: Vec<String> = sweeps.iter().filter_map(verdict).collect();
        assert!(verdicts.is_empty(), "{}", verdicts.join("\n"));
    }

    /// Returns a sentence for each point that fails or is dear.
    pub fn findings(&self) -> Vec<String> {
        let mut findings = Vec::new();
        for row in &self.rows {
            self.judge_outcome(row, &mut findings);
            self.judge_formula(row, &mut findings);
        }
        // Of each point, the next points up to a tenth more.
        for (number, row) in self.rows.iter().enumerate() {
            let near = self.rows[number + 1..].iter().take_while(|next| next.at <= tenth_more(row.at));
            near.for_each(|next| self.judge_neighbours(row, next, &mut findings));
        }
        findings
    }

    fn judge_outcome(&self, row: &Row, findings: &mut Vec<String>) {
        let Axis { name, unit, limit, .. } = self.axis;
        let beyond = limit.filter(|limit| row.at > limit.most);
        match (&row.outcome, beyond) {
            (Err(error), None) => findings.push(format!("{name}, {} {unit}: fails: {error}", row.at)),
            (Ok(_), Some(limit)) => {
                findings.push(format!("{name}, {} {unit}: works beyond the limit of {}", row.at, limit.most));
            }
            (Err(error), Some(limit)) => {
                for word in limit.words.iter().filter(|word| !error.contains(**word)) {
                    findings.push(format!("{name}, {} {unit}: the error lacks {word:?}: {error}", row.at));
                }
            }
            (Ok(_), None) => {}
        }
    }

    fn judge_formula(&self, row: &Row, findings: &mut Vec<String>) {
        let Ok(cost) = &row.outcome else { return };
        let percent = self.axis.step(row.at).map_or(FORMULA_PERCENT, |step| step.percent);
        for (count, unit, of) in COUNTS {
            let (was, most) = (of(cost), of(&row.ideal) * percent / 100 + unit);
            if was > most {
                let (name, ideal) = (self.axis.name, of(&row.ideal));
                findings.push(format!(
                    "{name}, {} {}: {was} {count}, {ideal} by the formula, at most {most}",
                    row.at, self.axis.unit
                ));
            }
        }
    }

    fn judge_neighbours(&self, row: &Row, next: &Row, findings: &mut Vec<String>) {
        let (Ok(cost), Ok(next_cost)) = (&row.outcome, &next.outcome) else { return };
        let step = |row: &Row| self.axis.step(row.at).map(|step| step.range.clone());
        if step(row) != step(next) {
            return;
        }
        let ordinary = (FORMULA_PERCENT, NEIGHBOUR_PERCENT);
        let (percent, neighbours) =
            self.axis.step(row.at).map_or(ordinary, |step| (step.percent, step.neighbours));
        for (count, unit, of) in COUNTS {
            let [was, is] = [cost, next_cost].map(of);
            let [was_ideal, is_ideal] = [row.ideal, next.ideal].map(|ideal| of(&ideal));
            let most = |from: u64, grown: u64| {
                from * neighbours / 100 + grown * percent.max(FORMULA_PERCENT) / 100 + unit
            };
            let rises = is > most(was, is_ideal.saturating_sub(was_ideal));
            let falls = was > most(is, was_ideal.saturating_sub(is_ideal));
            if rises || falls {
                let (name, at) = (self.axis.name, self.axis.unit);
                findings.push(format!(
                    "{name}: a cliff from {} to {} {at}: {was} and {is} {count}",
                    row.at, next.at
                ));
            }
        }
    }

    /// Returns a table with a line for each point: its counts, then `|`, then the counts that the formula gives.
    pub fn table(&self) -> String {
        let Axis { name, unit, package, .. } = self.axis;
        let mut text =
            format!("{package}, {name} ({unit}): requests bytes flushes rounds | by the formula\n");
        for Row { at, ideal, outcome } in &self.rows {
            let counts = |cost: &Cost| COUNTS.map(|(_, _, of)| of(cost).to_string()).join(" ");
            let was = outcome.as_ref().map_or_else(String::clone, counts);
            let step = self
                .axis
                .step(*at)
                .map_or_else(String::new, |step| format!(" ({} %: {})", step.percent, step.reason));
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{at:>12}: {was} | {}{step}", counts(ideal));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest request of the reader in these tests.
    const REQUEST: u64 = 64 << 10;

    fn axis() -> Axis {
        Axis {
            name: "length",
            unit: "bytes",
            package: "none",
            range: 1..=4 << 20,
            crosses: &[("REQUEST", REQUEST), ("ODD", 5_000)],
            steps: &[],
            limit: None,
        }
    }

    /// Returns the cost of a read in parts that are in flight together.
    fn ideal(len: u64) -> Cost {
        Cost::together(len.div_ceil(REQUEST), len)
    }

    fn findings(axis: &Axis, cost: impl Fn(u64) -> Result<Cost, String>) -> Vec<String> {
        let mut sweep = Sweep::new(axis);
        axis.points().into_iter().for_each(|at| sweep.add(at, ideal(at), cost(at)));
        let findings = sweep.findings();
        assert_eq!(sweep.table().lines().count(), axis.points().len() + 1, "each point is in the table");
        findings
    }

    #[test]
    fn points_are_on_both_sides_of_powers_and_constants() {
        let points = axis().points();
        for at in [1, 2, 3, 4095, 4096, 4097, 4505, REQUEST - 1, REQUEST + 1, 4_999, 5_001, 5_500, 4 << 20] {
            assert!(points.contains(&at), "{at}");
        }
        assert!(points.is_sorted() && !points.contains(&0) && points.last() == Some(&(4 << 20)));
        let all = axis().all_points();
        assert!(points.iter().all(|at| all.contains(at)));
        assert!(all.windows(2).all(|pair| pair[1] <= tenth_more(pair[0])), "no gap is longer than a tenth");
        assert_eq!(Axis { range: 0..=3, ..axis() }.points(), [0, 1, 2, 3]);
        let limited = Axis { limit: Some(Limit { most: 1_000_003, words: &[] }), ..axis() };
        assert!([1_000_003, 1_000_004].iter().all(|at| limited.points().contains(at)));
    }

    #[test]
    fn the_formula_itself_passes_and_so_does_one_more() {
        assert_eq!(findings(&axis(), |at| Ok(ideal(at))), [""; 0]);
        let more = |at: u64| {
            let Cost { requests, bytes, flushes, rounds } = ideal(at);
            Ok(Cost {
                requests: requests + 1,
                bytes: bytes + BLOCK,
                flushes: flushes + 1,
                rounds: rounds + 1,
            })
        };
        assert_eq!(findings(&axis(), more), [""; 0]);
    }

    #[test]
    fn an_inner_limit_that_was_halved_is_found() {
        let halved = |at: u64| Ok(Cost::together(at.div_ceil(REQUEST / 2), at));
        assert!(findings(&axis(), halved).iter().any(|finding| finding.contains("requests")));
        // From a length on, which is a cliff before it is dear.
        let most = |at: u64| if at > 1 << 20 { at.div_ceil(REQUEST * 2 / 3) } else { at.div_ceil(REQUEST) };
        let found = findings(&axis(), |at| Ok(Cost::together(most(at), at)));
        assert!(found.iter().any(|finding| finding.contains("a cliff from 1048576 to 1048577")), "{found:?}");
    }

    #[test]
    fn a_parallel_read_made_serial_is_found_by_its_rounds() {
        let serial = |at: u64| Ok(ideal(at).in_rounds(ideal(at).requests));
        let found = findings(&axis(), serial);
        assert!(found.iter().all(|finding| finding.contains("rounds")) && !found.is_empty(), "{found:?}");
        // From a length on only.
        let late = |at: u64| if at > 2 << 20 { serial(at) } else { Ok(ideal(at)) };
        assert!(findings(&axis(), late).iter().any(|finding| finding.contains("a cliff from 2097152")));
    }

    #[test]
    fn what_is_cheaper_behind_a_point_is_a_cliff_too() {
        let before = |at: u64| Ok(if at < 5_000 { Cost::together(1, 40 * BLOCK) } else { ideal(at) });
        let found = findings(&axis(), before);
        assert!(found.iter().any(|finding| finding.contains("a cliff from 4999 to 5000")), "{found:?}");
    }

    #[test]
    fn a_step_with_a_reason_is_accepted_up_to_its_figure() {
        const DEAR: &[Step] =
            &[Step { range: 1..=4_999, percent: 400, neighbours: 130, reason: "it is a test" }];
        let axis = Axis { steps: DEAR, ..axis() };
        let times = |times: u64| {
            move |at: u64| -> Result<Cost, String> {
                let cost = ideal(at);
                Ok(if at < 5_000 { Cost { bytes: cost.bytes * times, ..cost } } else { cost })
            }
        };
        assert_eq!(findings(&axis, times(4)), [""; 0]);
        let found = findings(&axis, times(6));
        assert!(!found.is_empty() && found.iter().all(|finding| finding.contains("bytes")), "{found:?}");
    }

    #[test]
    fn a_limit_is_kept_from_both_sides() {
        let axis = Axis { limit: Some(Limit { most: 5_000, words: &["5,000", "smaller"] }), ..axis() };
        let refused = || Err("the value is longer than 5,000 bytes; store it as smaller ones".to_string());
        assert_eq!(findings(&axis, |at| if at > 5_000 { refused() } else { Ok(ideal(at)) }), [""; 0]);
        let early = findings(&axis, |at| if at >= 5_000 { refused() } else { Ok(ideal(at)) });
        assert!(early.len() == 1 && early[0].contains("5000 bytes: fails"), "{early:?}");
        let late = findings(&axis, |at| if at > 5_001 { refused() } else { Ok(ideal(at)) });
        assert!(late.len() == 1 && late[0].contains("works beyond"), "{late:?}");
        let silent = |at: u64| if at > 5_000 { Err("too long".to_string()) } else { Ok(ideal(at)) };
        assert!(findings(&axis, silent).iter().all(|finding| finding.contains("lacks")));
    }
}
