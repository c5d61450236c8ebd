//! Finds the single place where the level of a series changes, if any.
//!
//! Method: of all ways to cut the series in two, choose the cut with the least sum of squares around the two means (least squares,
//! one change point). Every series has such a cut, so it counts only under three conditions. It explains much more than chance
//! would (the ratio of explained to remaining squares). The *medians* of the two sides differ by at least 15 % of the higher median
//! (single stalls move means, not medians). The medians also differ by more than the scatter of the sides.

/// Minimum bins of a side: half a second.
const SIDE_BINS: usize = 5;
/// Minimum change, as a share of the higher level.
const CHANGE_MIN: f64 = 0.15;
/// Minimum ratio of explained to remaining squares. Chance alone seldom exceeds 15 over the cuts of
/// hundreds of bins.
const EXPLAINED_MIN: f64 = 25.0;
/// Minimum change in standard deviations of the side with more scatter.
const SCATTER_MIN: f64 = 3.0;
/// Factor from the median distance to the median to the standard deviation of a normal distribution.
const MEDIAN_TO_DEVIATION: f64 = 1.4826;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Levels {
    /// Median before the change; of the whole series without a change.
    pub(super) burst: f64,
    /// Median after the change; of the whole series without a change.
    pub(super) sustained: f64,
    /// Number of bins before the change.
    pub(super) change: Option<usize>,
    /// Standard deviation divided by the mean, of the part after the change.
    pub(super) variation: f64,
}

/// Returns the levels of `bins` and the change between them; `None` without bins.
pub(super) fn find(bins: &[f64]) -> Option<Levels> {
    if bins.is_empty() {
        return None;
    }
    let change = cut(bins).filter(|at| counts(bins, *at));
    let (before, after) = bins.split_at(change.unwrap_or(0));
    let sustained = median(after);
    let burst = if before.is_empty() { sustained } else { median(before) };
    Some(Levels { burst, sustained, change, variation: variation(after) })
}

/// Returns the cut at which two means fit best.
fn cut(bins: &[f64]) -> Option<usize> {
    let total: f64 = bins.iter().sum();
    let mut left = 0.0;
    let mut best: Option<(f64, usize)> = None;
    for (index, value) in bins.iter().enumerate() {
        // The squares that a cut before this bin explains. The remaining squares are those around the two means.
        if index >= SIDE_BINS && bins.len() - index >= SIDE_BINS {
            let (count, rest) = (index as f64, (bins.len() - index) as f64);
            let explained = left * left / count + (total - left) * (total - left) / rest;
            if best.is_none_or(|(most, _)| explained > most) {
                best = Some((explained, index));
            }
        }
        left += value;
    }
    best.map(|(_, index)| index)
}

/// Returns whether a cut counts as a change.
fn counts(bins: &[f64], at: usize) -> bool {
    let (before, after) = bins.split_at(at);
    let remaining = squares(before) + squares(after);
    let explained = squares(bins) - remaining;
    let freedom = bins.len().saturating_sub(2).max(1) as f64;
    let (first, second) = (median(before), median(after));
    let difference = (first - second).abs();
    explained >= EXPLAINED_MIN * remaining / freedom
        && difference >= CHANGE_MIN * first.max(second)
        && difference > SCATTER_MIN * scatter(before).max(scatter(after))
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn squares(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|value| (value - mean).powi(2)).sum()
}

fn median(values: &[f64]) -> f64 {
    forebay_report::result::median(values.to_vec()).unwrap_or_default()
}

fn scatter(values: &[f64]) -> f64 {
    let middle = median(values);
    let distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    MEDIAN_TO_DEVIATION * median(&distances)
}

fn variation(values: &[f64]) -> f64 {
    let mean = mean(values);
    if mean > 0.0 { (squares(values) / values.len() as f64).sqrt() / mean } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::SplitMix;

    /// Returns `count` bins around `level` with a scatter of `share` of it (uniform, so the
    /// deviation is 0.58 of that).
    fn noise(level: f64, share: f64, count: usize, seed: u64) -> Vec<f64> {
        let mut random = SplitMix::new(seed);
        let unit = |word: u64| (word >> 11) as f64 / (1_u64 << 53) as f64;
        (0..count).map(|_| level * (1.0 + share * (2.0 * unit(random.next_u64()) - 1.0))).collect()
    }

    fn simulated(parts: &[(f64, usize)], share: f64, seed: u64) -> Vec<f64> {
        let of = |(index, (level, count)): (usize, &(f64, usize))| {
            noise(*level, share, *count, seed * 100 + index as u64)
        };
        parts.iter().enumerate().flat_map(of).collect()
    }

    /// A token bucket that runs empty, or a write cache that fills up: early, late, in a short and
    /// in a long run.
    #[test]
    fn a_simulated_drop_is_found_at_its_time() {
        for seed in 1..=20 {
            for (before, after) in [(10, 590), (300, 300), (560, 40), (15, 35)] {
                for (low, share) in [(50.0, 0.1), (30.0, 0.2), (5.0, 0.2)] {
                    let bins = simulated(&[(100.0, before), (low, after)], share, seed);
                    let found = find(&bins).expect("it has bins");
                    let at = found.change.unwrap_or_else(|| panic!("{before} {low} {share}: {found:?}"));
                    assert!(at.abs_diff(before) <= 1, "{before} {low} {share}: {found:?}");
                    assert!((found.burst / 100.0 - 1.0).abs() < share, "{found:?}");
                    assert!((found.sustained / low - 1.0).abs() < share, "{found:?}");
                }
            }
        }
    }

    #[test]
    fn a_rise_is_a_change_too() {
        let found = find(&simulated(&[(50.0, 100), (100.0, 300)], 0.1, 1)).expect("it has bins");
        assert_eq!(found.change, Some(100));
        assert!(found.sustained > found.burst);
    }

    #[test]
    fn a_level_that_only_scatters_does_not_change() {
        for seed in 1..=200 {
            for (share, count) in [(0.02, 50), (0.1, 600), (0.5, 600), (0.9, 50), (0.9, 18_000)] {
                // Long series are slow to check, and one of them shows as much as many.
                if count > 1000 && seed > 3 {
                    continue;
                }
                let found = find(&noise(100.0, share, count, seed)).expect("it has bins");
                assert_eq!(found.change, None, "{share} {count} {seed}: {found:?}");
                assert_eq!(found.burst, found.sustained);
                assert!((found.variation - 0.577 * share).abs() < 0.2 * share, "{found:?}");
            }
        }
    }

    #[test]
    fn stalls_and_slow_drifts_are_no_change_of_level() {
        // One bin in ten stands still, as with garbage collection every second.
        let mut stalls = noise(100.0, 0.1, 300, 4);
        stalls.iter_mut().step_by(10).for_each(|bin| *bin = 0.0);
        assert_eq!(find(&stalls).expect("it has bins").change, None);
        // All stalls at the end.
        let mut late = noise(100.0, 0.1, 300, 5);
        late[200..].iter_mut().step_by(4).for_each(|bin| *bin = 0.0);
        assert_eq!(find(&late).expect("it has bins").change, None);
        let drift: Vec<f64> = (0..300).map(|index| 100.0 - f64::from(index) / 6.0).collect();
        assert_eq!(find(&drift).expect("it has bins").change, None);
        // Half a second fast, half a second slow.
        let waves: Vec<f64> = (0..300).map(|index| if index / 5 % 2 == 0 { 100.0 } else { 40.0 }).collect();
        assert_eq!(find(&waves).expect("it has bins").change, None);
    }

    #[test]
    fn a_change_below_a_seventh_is_none() {
        let found = find(&simulated(&[(100.0, 200), (90.0, 200)], 0.02, 6)).expect("it has bins");
        assert_eq!(found.change, None, "{found:?}");
    }

    #[test]
    fn few_or_empty_bins_are_no_error() {
        assert_eq!(find(&[]), None);
        for count in 1..12 {
            assert_eq!(find(&vec![7.0; count]).expect("it has bins").change, None);
            assert_eq!(find(&vec![0.0; count]).expect("it has bins").variation, 0.0);
        }
    }
}
