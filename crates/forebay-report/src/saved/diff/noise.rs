//! Decides whether a figure changed between two runs, or only its samples differ.
//!
//! A figure is compared by the logarithms of its repeats. It uses trimmed means, because single
//! repeats can be far off, and their standard error by the winsorized variance (Yuen 1974). A few
//! repeats estimate their own variance badly, so it is shrunk towards the usual variance of figures of
//! its kind (Smyth 2004). Repeats of a run show the noise of one moment, not the machine's drift from
//! one run to the next. That drift is added. It is the usual drift of figures of the kind or, where it
//! is more, the common movement of all rows of these runs from repeat to repeat: rows take turns
//! within a repeat. A figure counts as changed when it passes Benjamini and Hochberg (1995) at 10 %
//! and differs by more than figures of its kind do without a cause.

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
/// Factor of the variance of means of repeats: a disturbance of one repeat also affects the following ones.
const STAYS: f64 = 3.0;
/// Approximate number of standard errors that make a difference visible; used for the number of
/// repeats needed.
const SEEN_FROM: f64 = 2.5;
/// Maximum repeats that are recommended.
const REPEATS_MAX: f64 = 100.0;

/// Figures that behave alike; all shares are of the figure itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Operations or bytes per second, mean and median times, memory.
    Steady,
    /// Processor time.
    Cost,
    /// 99th percentiles, and counts of single events.
    Tail,
    /// 99.9th percentiles, and maxima.
    Extreme,
}

impl Kind {
    fn of(metric: &str) -> Self {
        let has = |parts: &[&str]| parts.iter().any(|part| metric.contains(part));
        if has(&["p99_9", "max_us", "stall", "_us_max"]) {
            Self::Extreme
        } else if has(&["p99", "switches", "wakes", "late", "unanswered", "skew", "variation", "in_flight"]) {
            Self::Tail
        } else if has(&["cpu"]) {
            Self::Cost
        } else {
            Self::Steady
        }
    }

    /// Returns the usual difference between repeats (standard deviation), used where these runs do not
    /// show it.
    const fn usual(self) -> f64 {
        match self {
            Self::Steady => 0.04,
            Self::Cost => 0.05,
            Self::Tail => 0.10,
            Self::Extreme => 0.25,
        }
    }

    /// Returns the minimum difference between runs beyond that.
    const fn drift(self) -> f64 {
        match self {
            Self::Steady | Self::Cost => 0.01,
            Self::Tail => 0.03,
            Self::Extreme => 0.10,
        }
    }

    /// Returns the minimum change; less counts as none.
    const fn least(self) -> f64 {
        match self {
            Self::Steady | Self::Cost => 0.05,
            Self::Tail => 0.10,
            Self::Extreme => 0.30,
        }
    }

    /// Returns the change, as a share, that must have been detectable for two figures to count as alike.
    const fn worth_seeing(self) -> f64 {
        match self {
            Self::Steady | Self::Cost => 0.10,
            Self::Tail => 0.30,
            Self::Extreme => 1.00,
        }
    }
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

/// Returns the logarithms of the figure in each repeat; `None` where a repeat has none.
fn logs(row: &Row, metric: &str) -> Option<Vec<f64>> {
    let values: Vec<f64> = row.samples.iter().filter_map(|sample| sample.metrics.get(metric)).collect();
    (!values.is_empty() && values.iter().all(|value| *value > 0.0))
        .then(|| values.into_iter().map(f64::ln).collect())
}

/// The location of some repeats, the square of its standard error, and the number of values behind it.
#[derive(Debug)]
struct Center {
    mean: f64,
    variance: f64,
    kept: f64,
}

impl Center {
    /// Returns the trimmed mean, and its variance from the winsorized sum of squares.
    fn of(mut logs: Vec<f64>) -> Self {
        logs.sort_by(f64::total_cmp);
        let count = logs.len();
        let cut = (TRIMMED * count as f64) as usize;
        let kept = &logs[cut..count - cut];
        let mean = kept.iter().sum::<f64>() / kept.len() as f64;
        let (low, high) = (kept[0], kept[kept.len() - 1]);
        let winsorized = || logs.iter().map(|value| value.clamp(low, high));
        let middle = winsorized().sum::<f64>() / count as f64;
        let squares: f64 = winsorized().map(|value| (value - middle).powi(2)).sum();
        let kept = kept.len() as f64;
        Self { mean, variance: squares / (kept * (kept - 1.0).max(1.0)), kept }
    }

    fn degrees(&self) -> f64 {
        self.kept - 1.0
    }
}

/// The noise of figures of a kind in these runs, as standard deviations.
#[derive(Clone, Copy, Debug)]
struct Noise {
    /// Noise of one repeat.
    repeat: f64,
    /// Drift from run to run.
    drift: f64,
}

/// A figure in both runs.
#[derive(Debug)]
struct Figure {
    kind: Kind,
    first: Center,
    second: Center,
    repeats: usize,
}

impl Figure {
    fn of(pair: &Pair<'_>) -> Option<Self> {
        let (first, second) = (logs(pair.first, pair.metric)?, logs(pair.second, pair.metric)?);
        let repeats = first.len().min(second.len());
        let (first, second) = (Center::of(first), Center::of(second));
        Some(Self { kind: Kind::of(pair.metric), first, second, repeats })
    }

    fn degrees(&self) -> f64 {
        self.first.degrees() + self.second.degrees()
    }

    /// Returns the sum of squares of single repeats.
    fn squares(&self) -> f64 {
        let of = |center: &Center| center.degrees() * center.variance * center.kept;
        of(&self.first) + of(&self.second)
    }

    fn difference(&self, noise: Noise) -> Difference {
        let degrees = self.degrees() + PRIOR;
        let variance = (self.squares() + PRIOR * noise.repeat.powi(2)) / degrees;
        let error =
            (variance * (1.0 / self.first.kept + 1.0 / self.second.kept) + 2.0 * noise.drift.powi(2)).sqrt();
        let by = self.second.mean - self.first.mean;
        let (kind, repeats, drift) = (self.kind, self.repeats, noise.drift);
        Difference { by, error, chance: chance(by / error, degrees), kind, repeats, variance, drift }
    }
}

/// A difference of logarithms and its uncertainty.
#[derive(Debug)]
struct Difference {
    by: f64,
    error: f64,
    chance: f64,
    kind: Kind,
    repeats: usize,
    /// Variance of one repeat.
    variance: f64,
    drift: f64,
}

impl Difference {
    fn unchanged(&self) -> Outcome {
        let wanted = (1.0 + self.kind.worth_seeing()).ln() / SEEN_FROM;
        if self.repeats > 1 && self.error <= wanted {
            return Outcome::Alike;
        }
        let room = wanted.powi(2) - 2.0 * self.drift.powi(2);
        // Trimming costs a little more than the variance shows.
        let needed = (2.2 * self.variance / room).ceil();
        Outcome::Unclear(
            (room > 0.0 && needed <= REPEATS_MAX).then(|| (needed as usize).max(self.repeats + 1)),
        )
    }
}

/// Returns the conclusions on all figures, in their order.
pub(crate) fn judge(pairs: &[Pair<'_>]) -> Vec<Outcome> {
    let figures: Vec<Option<Figure>> = pairs.iter().map(Figure::of).collect();
    let drifts = drifts(pairs);
    let noise = |kind: Kind| Noise {
        repeat: spread(figures.iter().flatten().filter(|figure| figure.kind == kind)).unwrap_or(kind.usual()),
        drift: drifts.get(&kind).copied().unwrap_or(0.0).max(kind.drift()),
    };
    let difference =
        |figure: &Option<Figure>| figure.as_ref().map(|figure| figure.difference(noise(figure.kind)));
    let differences: Vec<Option<Difference>> = figures.iter().map(difference).collect();
    // One repeat does not show a run's own noise.
    let known = |difference: &&Difference| difference.repeats > 1;
    let mut chances: Vec<f64> =
        differences.iter().flatten().filter(known).map(|found| found.chance).collect();
    chances.sort_by(f64::total_cmp);
    let count = chances.len() as f64;
    let steps = chances.iter().enumerate().rev();
    let limit = steps
        .map(|(place, chance)| (*chance, FALSE_SHARE * (place + 1) as f64 / count))
        .find(|(chance, limit)| chance <= limit)
        .map_or(-1.0, |(chance, _)| chance);
    let outcome = |(pair, difference): (&Pair<'_>, &Option<Difference>)| match difference {
        None => of_nothing(pair),
        Some(found) => {
            let is_clear =
                known(&found) && found.chance <= limit && found.by.abs() >= (1.0 + found.kind.least()).ln();
            // The medians on display must agree.
            match shown(pair).filter(|times| is_clear && (*times > 1.0) == (found.by > 0.0)) {
                Some(times) => Outcome::Changed(times),
                None => found.unchanged(),
            }
        }
    };
    pairs.iter().zip(&differences).map(outcome).collect()
}

/// Returns the median difference between repeats of such figures.
fn spread<'a>(figures: impl Iterator<Item = &'a Figure>) -> Option<f64> {
    let known = figures.filter(|figure| figure.degrees() > 0.0);
    let variances: Vec<f64> = known.map(|figure| figure.squares() / figure.degrees()).collect();
    let enough = variances.len() >= ENOUGH;
    median(variances).filter(|_| enough).map(f64::sqrt)
}

fn shown(pair: &Pair<'_>) -> Option<f64> {
    Some(pair.second.metrics.get(pair.metric)? / pair.first.metrics.get(pair.metric)?)
}

/// Concludes on figures that are zero in some repeat: only zero and more than zero can be distinguished.
fn of_nothing(pair: &Pair<'_>) -> Outcome {
    let of = |row: &Row, test: fn(&f64) -> bool| {
        let values = row.samples.iter().filter_map(|sample| sample.metrics.get(pair.metric));
        row.samples.len() > 2 && values.filter(test).count() == row.samples.len()
    };
    let nothing = |row| of(row, |value| *value == 0.0);
    let some = |row| of(row, |value| *value > 0.0);
    match (pair.first, pair.second) {
        (first, second) if nothing(first) && nothing(second) => Outcome::Alike,
        (first, second) if nothing(first) && some(second) => Outcome::Changed(f64::INFINITY),
        (first, second) if some(first) && nothing(second) => Outcome::Changed(0.0),
        _ => Outcome::Unclear(None),
    }
}

/// Returns the offset of a run as a whole, as a standard deviation, from the common movement of all
/// figures of a kind from one of its repeats to the next.
fn drifts(pairs: &[Pair<'_>]) -> BTreeMap<Kind, f64> {
    let mut moves: BTreeMap<(Kind, bool, u32), Vec<f64>> = BTreeMap::new();
    for pair in pairs {
        for (row, is_second) in [(pair.first, false), (pair.second, true)] {
            let Some(logs) = logs(row, pair.metric).filter(|logs| logs.len() == row.samples.len()) else {
                continue;
            };
            let mean = logs.iter().sum::<f64>() / logs.len() as f64;
            for (Sample { repeat, .. }, value) in row.samples.iter().zip(&logs) {
                moves.entry((Kind::of(pair.metric), is_second, *repeat)).or_default().push(value - mean);
            }
        }
    }
    let mut runs: BTreeMap<(Kind, bool), Vec<f64>> = BTreeMap::new();
    for ((kind, run, _), values) in moves {
        runs.entry((kind, run)).or_default().extend(median(values));
    }
    let mut drifts = BTreeMap::new();
    for ((kind, _), effects) in runs.into_iter().filter(|(_, effects)| effects.len() > 1) {
        let variance = effects.iter().map(|effect| effect.powi(2)).sum::<f64>() / (effects.len() - 1) as f64;
        let known: &mut f64 = drifts.entry(kind).or_default();
        *known = known.max((STAYS * variance / effects.len() as f64).sqrt());
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
