//! Medians, quartiles and the A-A spread.

/// Returns the value at `share` (0 to 1) of the sorted values, interpolated; `NaN` without values.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

/// Returns the middle value; `NaN` without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Returns the smallest and the largest value.
pub(crate) fn range(values: &[f64]) -> (f64, f64) {
    (quantile(values, 0.0), quantile(values, 1.0))
}

/// Returns the spread of an A-A comparison: how far the quartiles of the paired ratios of two identical rows
/// lie from 1, whichever is farther. Not the extremes: one disturbed repeat of eleven must not excuse a row.
/// And not the median alone, which does not show how much a median of so few repeats moves.
pub(crate) fn a_a_spread(ratios: &[f64]) -> f64 {
    if ratios.is_empty() {
        return 0.0;
    }
    (1.0 - quantile(ratios, 0.25)).abs().max((quantile(ratios, 0.75) - 1.0).abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate_and_the_spread_ignores_one_outlier() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(range(&[3.0, 1.0, 2.0]), (1.0, 3.0));
        assert!(median(&[]).is_nan());
        let spread = a_a_spread(&[1.0, 1.01, 0.98, 1.0, 5.0]);
        assert!((spread - 0.01).abs() < 1e-9, "{spread}");
    }
}
