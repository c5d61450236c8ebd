//! Decides whether a figure changed between two runs, or only its samples differ.
//!
//! A figure is compared by the logarithms of its repeats. It uses trimmed means, because single repeats can be far off, and their
//! standard error by the winsorized variance (Yuen 1974). A few repeats estimate their own variance badly, so it is shrunk towards
//! the usual variance of figures of its kind (Smyth 2004). Repeats of a run show the noise of one moment, not the machine's drift
//! from one run to the next. That drift is added. It is the usual drift of figures of the kind or, if larger, the common movement
//! of all rows of these runs from repeat to repeat: rows alternate within a repeat. A figure counts as changed when it passes
//! Benjamini and Hochberg (1995) at 10 % and differs by more than figures of its kind do without a cause.

use std::collections::BTreeMap;

use crate::result::{Row, Sample, median};

/// Accepted share of false positives among the figures called changed.
const FALSE_SHARE: f64 = 0.1;
/// Weight of the kind's variance in these runs, in degrees of freedom of the figure's own.
const PRIOR: f64 = 8.0;
/// Minimum figures of a kind for an estimate of their variance from these runs; with fewer the usual
/// value is used.
const ENOUGH: usize = 8;
/// Share of the repeats trimmed at each end: the largest and the smallest fifth.
const TRIMMED: f64 = 0.2;
/// Factor of the variance of means of repeats: a disturbance of one repeat also affects the following repeats.
const STAYS: f64 = 3.0;
/// Approximate number of standard errors that make a difference visible; used for the number of
/// repeats needed.
const SEEN_FROM: f64 = 2.5;
/// Maximum repeats that are recommended.
const REPEATS_MAX: f64 = 100.0;

/// Figures that behave alike; all shares are of the figure itself.
#[derive(Debug)]
struct Kind {
    /// Usual difference between repeats (standard deviation), used where these runs do not show it.
    usual: f64,
    /// Minimum difference between runs beyond that.
    drift: f64,
    /// Minimum change; a smaller change does not count.
    least: f64,
    /// Change that must have been detectable for two figures to count as alike.
    worth_seeing: f64,
}

/// Operations or bytes per second, mean and median times, memory; processor time; 99th percentiles, and counts of
/// single events; 99.9th percentiles, and maxima.
const KINDS: [Kind; 4] = [
    Kind { usual: 0.04, drift: 0.01, least: 0.05, worth_seeing: 0.10 },
    Kind { usual: 0.05, drift: 0.01, least: 0.05, worth_seeing: 0.10 },
    Kind { usual: 0.10, drift: 0.03, least: 0.10, worth_seeing: 0.30 },
    Kind { usual: 0.25, drift: 0.10, least: 0.30, worth_seeing: 1.00 },
];
/// Parts of the names of metrics with the places of their kinds, the first that fits counts.
const NAMES: [(usize, &[&str]); 3] = [
    (3, &["p99_9", "max_us", "stall", "_us_max"]),
    (2, &["p99", "switches", "wakes", "late", "unanswered", "skew", "variation", "in_flight"]),
    (1, &["cpu"]),
];

/// Returns the place of a metric's kind in [`KINDS`].
fn kind_of(metric: &str) -> usize {
    let named = |(_, parts): &&(usize, &[&str])| parts.iter().any(|part| metric.contains(part));
    NAMES.iter().find(named).map_or(0, |(kind, _)| *kind)
}

/// A figure in both runs.
#[derive(Debug)]
pub(crate) struct Pair<'a> {
    pub metric: &'a str,
    pub first: &'a Row,
    pub second: &'a Row,
}

/// The conclusion on a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// The factor of the change (less than 1: smaller; infinite: it was zero).
    Changed(f64),
    /// A noteworthy change would have been detected.
    Alike,
    /// Too few repeats to detect a change, with the number that would suffice, where it is known.
    Unclear(Option<usize>),
}

/// Returns the logarithms of the figure in each repeat; `None` where it is zero, or no repeat has it.
fn logs(row: &Row, metric: &str) -> Option<Vec<f64>> {
    let values: Vec<f64> = row.samples.iter().filter_map(|sample| sample.metrics.get(metric)).collect();
    (!values.is_empty() && values.iter().all(|value| *value > 0.0))
        .then(|| values.into_iter().map(f64::ln).collect())
}

/// Returns the trimmed mean, the winsorized sum of squares, and the number of values behind the mean.
fn center(mut logs: Vec<f64>) -> (f64, f64, f64) {
    logs.sort_by(f64::total_cmp);
    let count = logs.len();
    let cut = (TRIMMED * count as f64) as usize;
    let kept = &logs[cut..count - cut];
    let mean = kept.iter().sum::<f64>() / kept.len() as f64;
    let winsorized = || logs.iter().map(|value| value.clamp(kept[0], kept[kept.len() - 1]));
    let middle = winsorized().sum::<f64>() / count as f64;
    (mean, winsorized().map(|value| (value - middle).powi(2)).sum(), kept.len() as f64)
}

/// The difference of a figure's logarithms between the runs.
#[derive(Debug)]
struct Figure {
    kind: usize,
    repeats: usize,
    by: f64,
    /// Sum of squares of single repeats, and its degrees of freedom.
    squares: f64,
    degrees: f64,
    /// Variance of the difference for that of one repeat.
    weight: f64,
    /// Variance of one repeat; with the two below it is known once all figures are.
    variance: f64,
    /// Standard error of the difference.
    error: f64,
    /// Probability of such a difference without a change.
    chance: f64,
}

impl Figure {
    fn of(pair: &Pair<'_>) -> Option<Self> {
        let (first, second) = (logs(pair.first, pair.metric)?, logs(pair.second, pair.metric)?);
        let repeats = first.len().min(second.len());
        let ((first, first_squares, first_kept), (second, second_squares, second_kept)) =
            (center(first), center(second));
        Some(Self {
            kind: kind_of(pair.metric),
            repeats,
            by: second - first,
            squares: first_squares + second_squares,
            degrees: first_kept + second_kept - 2.0,
            weight: 1.0 / first_kept + 1.0 / second_kept,
            variance: 0.0,
            error: 0.0,
            chance: 1.0,
        })
    }

    /// Fills in the noise, from the standard deviations of a repeat and of a run of figures of the kind.
    fn estimate(&mut self, repeat: f64, drift: f64) {
        let degrees = self.degrees + PRIOR;
        self.variance = (self.squares + PRIOR * repeat.powi(2)) / degrees;
        self.error = (self.variance * self.weight + 2.0 * drift.powi(2)).sqrt();
        self.chance = chance(self.by / self.error, degrees);
    }

    /// Returns whether the runs show their own noise, which one repeat does not.
    fn is_known(&self) -> bool {
        self.repeats > 1
    }

    fn unchanged(&self, drift: f64) -> Outcome {
        let wanted = (1.0 + KINDS[self.kind].worth_seeing).ln() / SEEN_FROM;
        if self.is_known() && self.error <= wanted {
            return Outcome::Alike;
        }
        let room = wanted.powi(2) - 2.0 * drift.powi(2);
        // Trimming costs a little more than the variance shows.
        let needed = (2.2 * self.variance / room).ceil();
        let is_possible = room > 0.0 && needed <= REPEATS_MAX;
        Outcome::Unclear(is_possible.then(|| (needed as usize).max(self.repeats + 1)))
    }
}

/// Returns the conclusions on all figures, in their order.
pub(crate) fn judge(pairs: &[Pair<'_>]) -> Vec<Outcome> {
    let mut figures: Vec<Option<Figure>> = pairs.iter().map(Figure::of).collect();
    let drifts = drifts(pairs);
    for (kind, Kind { usual, .. }) in KINDS.iter().enumerate() {
        let of_kind = |figure: &&Figure| figure.kind == kind && figure.degrees > 0.0;
        let known = figures.iter().flatten().filter(of_kind);
        let variances: Vec<f64> = known.map(|figure| figure.squares / figure.degrees).collect();
        let enough = variances.len() >= ENOUGH;
        let repeat = median(variances).filter(|_| enough).map_or(*usual, f64::sqrt);
        let of_kind = figures.iter_mut().flatten().filter(|figure| figure.kind == kind);
        of_kind.for_each(|figure| figure.estimate(repeat, drifts[kind]));
    }
    let known = figures.iter().flatten().filter(|figure| figure.is_known());
    let mut chances: Vec<f64> = known.map(|figure| figure.chance).collect();
    chances.sort_by(f64::total_cmp);
    let share = FALSE_SHARE / chances.len() as f64;
    let mut steps = chances.iter().enumerate().rev();
    let limit = steps
        .find(|(place, chance)| **chance <= share * (place + 1) as f64)
        .map_or(-1.0, |(_, chance)| *chance);
    let outcome = |(pair, figure): (&Pair<'_>, &Option<Figure>)| {
        let Some(figure) = figure else { return of_nothing(pair) };
        let is_clear = figure.is_known()
            && figure.chance <= limit
            && figure.by.abs() >= KINDS[figure.kind].least.ln_1p();
        let medians = pair.second.metrics.get(pair.metric).zip(pair.first.metrics.get(pair.metric));
        // The medians on display must agree.
        let times =
            medians.map(|(second, first)| second / first).filter(|times| (*times > 1.0) == (figure.by > 0.0));
        times.filter(|_| is_clear).map_or_else(|| figure.unchanged(drifts[figure.kind]), Outcome::Changed)
    };
    pairs.iter().zip(&figures).map(outcome).collect()
}

/// Concludes on figures that are zero in some repeat: only zero and more than zero can be distinguished.
fn of_nothing(pair: &Pair<'_>) -> Outcome {
    // `None`: some repeats are zero, or the repeats are too few.
    let is_zero = |row: &Row| {
        let values = row.samples.iter().map(|sample| sample.metrics.get(pair.metric));
        let zeros: Vec<bool> = values
            .map(|value| value.filter(|value| *value >= 0.0).map(|value| value == 0.0))
            .collect::<Option<_>>()?;
        (zeros.len() > 2 && zeros.iter().all(|zero| *zero == zeros[0])).then(|| zeros[0])
    };
    match (is_zero(pair.first), is_zero(pair.second)) {
        (Some(true), Some(true)) => Outcome::Alike,
        (Some(true), Some(false)) => Outcome::Changed(f64::INFINITY),
        (Some(false), Some(true)) => Outcome::Changed(0.0),
        _ => Outcome::Unclear(None),
    }
}

/// Returns, for each kind, the offset of a run as a whole, as a standard deviation, from the common movement of all
/// figures from one of its repeats to the next.
fn drifts(pairs: &[Pair<'_>]) -> [f64; KINDS.len()] {
    let mut moves: BTreeMap<(usize, bool, u32), Vec<f64>> = BTreeMap::new();
    for pair in pairs {
        for (row, is_second) in [(pair.first, false), (pair.second, true)] {
            let Some(logs) = logs(row, pair.metric).filter(|logs| logs.len() == row.samples.len()) else {
                continue;
            };
            let mean = logs.iter().sum::<f64>() / logs.len() as f64;
            for (Sample { repeat, .. }, value) in row.samples.iter().zip(&logs) {
                moves.entry((kind_of(pair.metric), is_second, *repeat)).or_default().push(value - mean);
            }
        }
    }
    let mut runs: BTreeMap<(usize, bool), Vec<f64>> = BTreeMap::new();
    for ((kind, run, _), values) in moves {
        runs.entry((kind, run)).or_default().extend(median(values));
    }
    let mut drifts = KINDS.map(|kind| kind.drift);
    for ((kind, _), effects) in runs.into_iter().filter(|(_, effects)| effects.len() > 1) {
        let count = effects.len() as f64;
        let variance = effects.iter().map(|effect| effect.powi(2)).sum::<f64>() / (count - 1.0);
        drifts[kind] = drifts[kind].max((STAYS * variance / count).sqrt());
    }
    drifts
}

/// Returns the probability that chance gives a value of Student's t as far from 0, by the normal
/// distribution after Wallace (1959).
fn chance(t: f64, degrees: f64) -> f64 {
    let z = (8.0 * degrees + 1.0) / (8.0 * degrees + 3.0) * (degrees * (t * t / degrees).ln_1p()).sqrt();
    // Abramowitz and Stegun 7.1.26.
    let x = z / std::f64::consts::SQRT_2;
    let k = 1.0 / (1.0 + 0.327_591_1 * x);
    let terms = [0.254_829_592, -0.284_496_736, 1.421_413_741, -1.453_152_027, 1.061_405_429];
    let sum = terms.iter().rev().fold(0.0, |sum, term| (sum + term) * k);
    (sum * (-x * x).exp()).clamp(0.0, 1.0)
}
