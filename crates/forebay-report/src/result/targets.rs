//! Targets: figures of a row, alone or relative to another row in the same repeat, and the limits that they must keep.
//!
//! Machines drift within a run, so rows are compared repeat by repeat, and the median of these ratios counts. How much
//! such a median moves by itself is the A-A spread: the ratios of two rows that are the same code under two names. A
//! limit can be met within that spread.

use super::{Experiment, Gate, Row, median};

/// The most that noise may excuse, of a ratio, and of the limit of a difference. A table whose A-A spread is larger was
/// measured on a machine that was not at rest.
const TOLERANCE_MAX: f64 = 0.10;

/// The figure with which a row's figure is compared.
#[derive(Clone, Copy, Debug)]
pub enum Beside {
    /// None.
    Nothing,
    /// Ratios to the best of these rows: the one whose median of [`Targets::ranked_by`] is the largest.
    Over(&'static [&'static str]),
    /// Ratios to the largest figure of these rows in each repeat.
    OverLargest(&'static [&'static str]),
    /// Differences from the best of these rows.
    Above(&'static [&'static str]),
}

/// A metric that compares rows; each row gets it, in each sample.
#[derive(Clone, Copy, Debug)]
pub struct Ratio {
    /// The name of the new metric.
    pub name: &'static str,
    /// The metric that is compared.
    pub metric: &'static str,
    /// The rows to compare with.
    pub beside: Beside,
}

/// A limit on a row's figure.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    row: &'static str,
    metric: &'static str,
    beside: Beside,
    at_least: Option<f64>,
    at_most: Option<f64>,
    again: &'static str,
    when: fn(&Experiment) -> bool,
}

impl Target {
    /// Returns a target of a row's median without a limit yet.
    pub const fn of(row: &'static str, metric: &'static str) -> Self {
        let beside = Beside::Nothing;
        Self { row, metric, beside, at_least: None, at_most: None, again: "", when: |_| true }
    }

    /// Compares the ratios to the best of these rows.
    pub const fn over(self, rows: &'static [&'static str]) -> Self {
        Self { beside: Beside::Over(rows), ..self }
    }

    /// Compares the ratios to the largest of these rows in each repeat.
    pub const fn over_largest(self, rows: &'static [&'static str]) -> Self {
        Self { beside: Beside::OverLargest(rows), ..self }
    }

    /// Compares the differences from the best of these rows.
    pub const fn above(self, rows: &'static [&'static str]) -> Self {
        Self { beside: Beside::Above(rows), ..self }
    }

    /// Sets the smallest value that passes.
    pub const fn at_least(self, limit: f64) -> Self {
        Self { at_least: Some(limit), ..self }
    }

    /// Sets the largest value that passes.
    pub const fn at_most(self, limit: f64) -> Self {
        Self { at_most: Some(limit), ..self }
    }

    /// Tolerates the A-A spread of the row `again`, whose twin has the name without `-again`; a tenth at most.
    pub const fn within(self, again: &'static str) -> Self {
        Self { again, ..self }
    }

    /// Limits the target to some tables.
    pub const fn when(self, applies: fn(&Experiment) -> bool) -> Self {
        Self { when: applies, ..self }
    }
}

/// The comparisons and targets of an experiment.
#[derive(Clone, Copy, Debug)]
pub struct Targets {
    /// The metric that decides which of several rows is the best: the more the better.
    pub ranked_by: &'static str,
    /// Metrics that compare rows.
    pub ratios: &'static [Ratio],
    /// A-A spreads: the row whose name ends in `-again`, the metric, and the name of the spread as a metric of that row.
    pub spreads: &'static [(&'static str, &'static str, &'static str)],
    /// The limits.
    pub limits: &'static [Target],
}

impl Targets {
    /// No comparisons and no targets.
    pub const NONE: Self = Self { ranked_by: "", ratios: &[], spreads: &[], limits: &[] };

    /// Adds the metrics that compare rows, and the A-A spreads, to a table.
    pub fn compare(&self, table: &mut Experiment) {
        for ratio in self.ratios {
            for index in 0..table.rows.len() {
                let compared = self.compared(table, &table.rows[index], ratio.metric, ratio.beside);
                let Some((values, _)) = compared else { continue };
                let row = &mut table.rows[index];
                for (repeat, value) in &values {
                    for sample in row.samples.iter_mut().filter(|sample| sample.repeat == *repeat) {
                        sample.metrics.set(ratio.name, *value);
                    }
                }
                if let Some(value) = median_of(&values) {
                    row.metrics.set(ratio.name, value);
                }
            }
        }
        let mut worst = 0.0_f64;
        for (again, metric, name) in self.spreads {
            let Some(spread) = self.spread(table, again, metric, &Beside::Over(&[])) else { continue };
            worst = worst.max(spread);
            if let Some(row) = table.rows.iter_mut().find(|row| row.name == *again) {
                row.metrics.set(name, spread);
            }
        }
        if worst > TOLERANCE_MAX {
            table.notes.push(format!(
                "NOISE: the A-A spread is {worst:.2}: these figures decide nothing, measure again on a machine at rest"
            ));
        }
    }

    /// Adds the gates to the rows of a table that have targets there. A figure that was not measured misses its target. Targets
    /// relative to rows that the table lacks are ignored.
    pub fn judge(&self, table: &mut Experiment) {
        for target in self.limits {
            let place = table.rows.iter().position(|row| row.name == target.row);
            let Some(index) = place.filter(|_| (target.when)(table)) else { continue };
            let compared = self.compared(table, &table.rows[index], target.metric, target.beside);
            let Some((values, other)) = compared else { continue };
            let tolerance = self.spread(table, target.again, target.metric, &target.beside).unwrap_or(0.0);
            let most = match target.beside {
                Beside::Above(_) => TOLERANCE_MAX * target.at_most.unwrap_or(0.0).abs(),
                _ => TOLERANCE_MAX,
            };
            let name = match target.beside {
                Beside::Nothing => target.metric.to_owned(),
                Beside::Above(_) => format!("{} above {other}", target.metric),
                Beside::Over(_) | Beside::OverLargest(_) => format!("{} / {other}", target.metric),
            };
            let gate = Gate {
                at_least: target.at_least,
                at_most: target.at_most,
                tolerance: tolerance.min(most),
                ..Gate::of(&name, target.metric, median_of(&values))
            };
            table.rows[index].gates.push(gate.judged());
        }
    }

    /// Returns the names of the rows that have limits.
    pub fn rows(&self) -> impl Iterator<Item = &'static str> {
        self.limits.iter().map(|target| target.row)
    }

    /// Returns a row's figures by repeat, relative to those of other rows; `None` if the table has no such row.
    fn compared(
        &self,
        table: &Experiment,
        row: &Row,
        metric: &str,
        beside: Beside,
    ) -> Option<(Repeats, String)> {
        let own = by_repeat(row, metric);
        let (others, combine): (_, fn(f64, f64) -> f64) = match beside {
            Beside::Nothing => return Some((own.collect(), String::new())),
            Beside::Over(others) | Beside::OverLargest(others) => (others, |a, b| a / b),
            Beside::Above(others) => (others, |a, b| a - b),
        };
        let mut rows: Vec<&Row> = others.iter().filter_map(|name| table.row(name)).collect();
        let rank = |row: &&Row| row.metrics.get(self.ranked_by).unwrap_or(f64::NEG_INFINITY);
        rows.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
        if !matches!(beside, Beside::OverLargest(_)) {
            rows.truncate(1);
        }
        rows.first()?;
        let other = rows.iter().map(|row| &*row.name).collect::<Vec<_>>().join(" or ");
        let at = |repeat: u32| {
            let values = rows.iter().filter_map(|row| at_repeat(row, metric, repeat));
            values.reduce(f64::max)
        };
        let values = own.filter_map(|(repeat, value)| Some((repeat, combine(value, at(repeat)?))));
        Some((values.filter(|(_, value)| value.is_finite()).collect(), other))
    }

    /// Returns the A-A spread of a metric: the distance of the quartiles of a row relative to its twin from agreement, whichever is
    /// farther. Not the extremes, because one disturbed repeat of eleven must not excuse a row; and not the median, which does not
    /// show how much a median of so few repeats moves.
    fn spread(&self, table: &Experiment, again: &str, metric: &str, beside: &Beside) -> Option<f64> {
        let (row, twin) = (table.row(again)?, table.row(again.strip_suffix("-again")?)?);
        let differs = matches!(beside, Beside::Above(_));
        let mut values: Vec<f64> = by_repeat(row, metric)
            .filter_map(|(repeat, value)| {
                let twin = at_repeat(twin, metric, repeat)?;
                Some(if differs { value - twin } else { value / twin - 1.0 })
            })
            .filter(|value| value.is_finite())
            .collect();
        values.sort_by(f64::total_cmp);
        Some(quantile(&values, 0.25)?.abs().max(quantile(&values, 0.75)?.abs()))
    }
}

/// Figures of a row by repeat.
type Repeats = Vec<(u32, f64)>;

fn median_of(values: &Repeats) -> Option<f64> {
    median(values.iter().map(|(_, value)| *value).collect())
}

fn by_repeat<'a>(row: &'a Row, metric: &'a str) -> impl Iterator<Item = (u32, f64)> + 'a {
    row.samples.iter().filter_map(move |sample| Some((sample.repeat, sample.metrics.get(metric)?)))
}

fn at_repeat(row: &Row, metric: &str, repeat: u32) -> Option<f64> {
    by_repeat(row, metric).find(|(other, _)| *other == repeat).map(|(_, value)| value)
}

/// Returns the value at `share` (0 to 1) of sorted values, interpolated.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let at = share * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(below + (above - below) * at.fract())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Metrics, Sample};

    fn row(name: &str, values: &[(u32, f64)]) -> Row {
        let sample = |(repeat, value): &(u32, f64)| Sample {
            repeat: *repeat,
            metrics: Metrics::from_iter([("iops", *value)]),
        };
        Row::from_samples(name, values.iter().map(sample).collect())
    }

    fn table() -> Experiment {
        Experiment::new("random", "").parameter("depth", 8).with_rows([
            row("bare", &[(0, 100.0), (1, 200.0), (2, 100.0), (3, 100.0), (4, 100.0)]),
            row("bare-again", &[(0, 100.0), (1, 202.0), (2, 98.0), (3, 100.0), (4, 500.0)]),
            row("batched", &[(0, 90.0), (1, 100.0), (2, 110.0), (3, 90.0)]),
            row("own", &[(0, 93.0), (2, 93.0), (3, 94.0)]),
            Row::skipped("broken", "refused"),
        ])
    }

    fn gates(limit: Target) -> Vec<Gate> {
        let mut table = table();
        let limits = Box::leak(Box::new([limit]));
        Targets { ranked_by: "iops", limits, ..Targets::NONE }.judge(&mut table);
        table.rows.into_iter().flat_map(|row| row.gates).collect()
    }

    #[test]
    fn ratios_are_those_of_the_same_repeat_and_both_rows_must_have_it() {
        let mut table = table();
        let ratio = |name, beside| Ratio { name, metric: "iops", beside };
        let ratios = Box::leak(Box::new([
            ratio("to_best", Beside::Over(&["bare", "batched", "missing"])),
            ratio("to_limit", Beside::OverLargest(&["bare", "batched"])),
            ratio("above", Beside::Above(&["bare"])),
            ratio("none", Beside::Over(&["missing"])),
        ]));
        Targets { ranked_by: "iops", ratios, ..Targets::NONE }.compare(&mut table);
        let own = table.row("own").expect("there");
        let of = |name: &str| own.samples.iter().map(|sample| sample.metrics.get(name)).collect::<Vec<_>>();
        assert_eq!(of("to_best"), [Some(0.93), Some(0.93), Some(0.94)]);
        assert_eq!(of("to_limit"), [Some(0.93), Some(93.0 / 110.0), Some(0.94)]);
        assert_eq!((own.metrics.get("to_best"), own.metrics.get("above")), (Some(0.93), Some(-7.0)));
        assert_eq!(own.metrics.get("none"), None);
        assert!(table.row("broken").is_some_and(|row| row.metrics.get("to_best").is_none()));
    }

    #[test]
    fn the_spread_ignores_one_outlier_and_more_than_a_tenth_is_noise() {
        let spreads = &[("bare-again", "iops", "a_a_spread"), ("own-again", "iops", "a_a_spread")];
        let targets = Targets { spreads, ..Targets::NONE };
        let mut table = table();
        targets.compare(&mut table);
        let spread =
            table.row("bare-again").and_then(|row| row.metrics.get("a_a_spread")).expect("it has a twin");
        assert!((spread - 0.01).abs() < 1e-9, "{spread}");
        assert!(table.notes.is_empty(), "{:?}", table.notes);
        table.rows[1].samples.truncate(2);
        table.rows[1].samples[0].metrics.set("iops", 150.0);
        targets.compare(&mut table);
        assert!(table.notes[0].starts_with("NOISE"), "{:?}", table.notes);
    }

    #[test]
    fn the_tolerance_relaxes_the_target_and_an_unmeasured_figure_misses_it() {
        const OWN: Target = Target::of("own", "iops").over(&["bare"]).within("bare-again");
        let of = |target| {
            let gate = gates(target).remove(0);
            (gate.is_met(0.0), gate.passed)
        };
        assert_eq!(of(OWN.at_least(0.93)), (true, true));
        assert_eq!(of(OWN.at_least(0.935)), (false, true));
        assert_eq!(of(OWN.at_least(0.95)), (false, false));
        assert_eq!(of(OWN.at_most(0.925)), (false, true));
        assert_eq!(of(Target::of("own", "iops").over(&["bare"]).at_least(0.935)), (false, false));
        assert_eq!(of(Target::of("own", "iops").at_least(93.0)), (true, true));
        assert_eq!(of(Target::of("own", "iops").above(&["bare"]).at_most(-7.0)), (true, true));
        assert_eq!(of(Target::of("own", "p99_us").at_most(1.0)), (false, false));
        assert_eq!(of(Target::of("broken", "iops").at_least(0.0)), (false, false));
        assert_eq!(gates(OWN.at_least(0.9))[0].name, "iops / bare");
        for absent in [
            Target::of("own", "iops").over(&["missing"]).at_least(0.0),
            Target::of("missing", "iops").at_least(0.0),
            OWN.at_least(0.0).when(|table| table.number("depth") == Some(32.0)),
        ] {
            assert_eq!(gates(absent), []);
        }
    }

    #[test]
    fn quantiles_interpolate_and_a_noisy_machine_excuses_a_tenth_only() {
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), Some(2.5));
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 1.0), Some(3.0));
        assert_eq!(quantile(&[], 0.5), None);
        let mut table = table();
        for sample in &mut table.rows[1].samples {
            sample.metrics.set("iops", 900.0);
        }
        const LIMITS: &[Target] =
            &[Target::of("own", "iops").over(&["bare"]).at_least(1.05).within("bare-again")];
        Targets { ranked_by: "iops", limits: LIMITS, ..Targets::NONE }.judge(&mut table);
        let gate = &table.rows[3].gates[0];
        assert!((gate.tolerance - 0.1).abs() < 1e-9 && !gate.passed, "{gate:?}");
    }
}
