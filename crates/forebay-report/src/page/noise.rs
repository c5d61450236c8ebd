//! Decides whether two rows differ, or only their samples: the one rule behind every verdict and every
//! comparison.

use crate::result::Row;

/// Minimum factor of a difference. Smaller differences do not count, for any number of repeats: few repeats hide the machine's own
/// drift.
pub const NOTEWORTHY: f64 = 1.05;

/// Spread of repeats above which two rows cannot be called alike either: that claim needs repeats that
/// are alike.
const WIDE: f64 = 1.25;

/// The result of comparing a figure of one row with that of another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Difference {
    /// No difference beyond noise.
    Equal,
    /// Larger by this factor.
    More(f64),
    /// Smaller by this factor.
    Less(f64),
}

/// Compares `metric` of `row` with that of `other`. They are equal unless the figures differ by 5 %
/// and each lies outside the range of the other row's repeats. `None` when one of them has no figure.
pub fn difference(row: &Row, other: &Row, metric: &str) -> Option<Difference> {
    let (own, theirs) = (row.metrics.get(metric)?, other.metrics.get(metric)?);
    let times = if own >= theirs { own / theirs } else { theirs / own };
    // Against zero every figure is more; zero against zero is equal.
    let is_clear = !times.is_nan() && times >= NOTEWORTHY && apart(row, other, metric);
    Some(match (is_clear, own >= theirs) {
        (false, _) => Difference::Equal,
        (true, true) => Difference::More(times),
        (true, false) => Difference::Less(times),
    })
}

/// Returns whether each row's figure lies outside the range of the other row's repeats.
fn apart(row: &Row, other: &Row, metric: &str) -> bool {
    let outside = |row: &Row, other: &Row| match (row.metrics.get(metric), other.spread(metric)) {
        (Some(median), Some((low, high))) => median < low || median > high,
        _ => false,
    };
    outside(row, other) && outside(other, row)
}

/// Returns the range of all repeats of these rows, each with its metric, when it is too wide to call
/// them alike.
pub fn too_wide(figures: &[(&Row, &str)]) -> Option<(f64, f64)> {
    let spreads = figures.iter().filter_map(|(row, metric)| row.spread(metric));
    let (low, high) = spreads.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
    (high > low * WIDE).then_some((low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[f64]) -> Row {
        Row::of_repeats("row", values.iter().map(|value| [("x", *value)]))
    }

    #[test]
    fn a_difference_is_five_percent_and_outside_of_the_repeats() {
        let compare = |one: &[f64], other: &[f64]| difference(&row(one), &row(other), "x");
        assert_eq!(compare(&[200.0, 210.0, 190.0], &[100.0, 99.0, 101.0]), Some(Difference::More(2.0)));
        assert_eq!(compare(&[100.0, 99.0, 101.0], &[200.0, 210.0, 190.0]), Some(Difference::Less(2.0)));
        assert_eq!(compare(&[104.0], &[100.0]), Some(Difference::Equal), "too little");
        assert_eq!(
            compare(&[120.0, 90.0, 130.0], &[100.0, 125.0, 90.0]),
            Some(Difference::Equal),
            "overlapping"
        );
        assert_eq!(compare(&[0.0], &[0.0]), Some(Difference::Equal));
        assert_eq!(compare(&[1.0], &[0.0]), Some(Difference::More(f64::INFINITY)));
        assert_eq!(compare(&[], &[1.0]), None);
    }

    #[test]
    fn only_repeats_that_are_alike_show_that_rows_are() {
        let (near, far) = (row(&[100.0, 110.0, 95.0]), row(&[12.0, 80.0, 30.0]));
        assert_eq!(too_wide(&[(&near, "x"), (&near, "x")]), None);
        assert_eq!(too_wide(&[(&near, "x"), (&far, "x")]), Some((12.0, 110.0)));
        assert_eq!(too_wide(&[(&row(&[0.0, 1.0]), "x")]), Some((0.0, 1.0)));
        assert_eq!(too_wide(&[(&far, "y")]), None);
    }
}
