//! Steady state by the window of SNIA's Solid State Storage Performance Test Specification (PTS): in five rounds the largest and
//! the smallest figure differ by at most 20 % of the mean, and the line of least squares through them rises or falls by at
//! most 10 % of it from the first to the last. After 25 rounds the search ends.

use super::level::mean;

/// The most rounds.
const ROUNDS: usize = 25;
/// Rounds of a window.
const WINDOW: usize = 5;
const RANGE_MAX: f64 = 0.2;
const SLOPE_MAX: f64 = 0.1;

/// Returns the number of bins in each of the rounds that divide a load.
pub(super) fn round_bins(bins: usize) -> usize {
    (bins / ROUNDS).max(1)
}

/// Returns the number, from 1, of the round that ends the first steady window of `bins`.
pub(super) fn steady_round(bins: &[f64]) -> Option<usize> {
    let length = round_bins(bins.len());
    let rounds: Vec<f64> = bins.chunks_exact(length).take(ROUNDS).map(mean).collect();
    rounds.windows(WINDOW).position(is_steady).map(|first| first + WINDOW)
}

/// Returns the first round of the window that ends with round `end`.
pub(super) fn window_start(end: usize) -> usize {
    (end + 1).saturating_sub(WINDOW)
}

fn is_steady(window: &[f64]) -> bool {
    let (mean, last) = (mean(window), window.len() as f64 - 1.0);
    let range = window.iter().fold(f64::MIN, |most, value| most.max(*value))
        - window.iter().fold(f64::MAX, |least, value| least.min(*value));
    let places = || (0..window.len()).map(|place| place as f64 - last / 2.0);
    let slope = places().zip(window).map(|(place, value)| place * value).sum::<f64>()
        / places().map(|place| place * place).sum::<f64>();
    mean > 0.0 && range <= RANGE_MAX * mean && (slope * last).abs() <= SLOPE_MAX * mean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(round: impl Fn(usize) -> f64, count: usize) -> Vec<f64> {
        (0..count).map(round).collect()
    }

    /// `count` rounds of `one` and `other` in turn, and then five of 100.
    fn late(count: usize) -> Vec<f64> {
        [rounds(|at| if at % 2 == 0 { 50.0 } else { 150.0 }, count), vec![100.0; 5]].concat()
    }

    #[test]
    fn planted_series_are_judged_as_the_specification_does() {
        let fresh = [vec![500.0, 400.0, 300.0, 200.0, 150.0, 120.0, 105.0], vec![100.0; 18]].concat();
        let planted: [(&str, Vec<f64>, Option<usize>); 24] = [
            ("a level", vec![100.0; 25], Some(5)),
            ("five rounds", vec![100.0; 5], Some(5)),
            ("four rounds", vec![100.0; 4], None),
            ("a range of 20 %", vec![90.0, 110.0, 100.0, 100.0, 100.0], Some(5)),
            ("a range of 21 %", vec![89.0, 110.0, 100.0, 100.0, 101.0], None),
            ("a rise of 10 %", vec![95.0, 97.5, 100.0, 102.5, 105.0], Some(5)),
            ("a rise of 11 %", vec![94.5, 97.25, 100.0, 102.75, 105.5], None),
            ("a fall of 10 %", vec![105.0, 102.5, 100.0, 97.5, 95.0], Some(5)),
            ("a fall of 11 %", vec![105.5, 102.75, 100.0, 97.25, 94.5], None),
            ("a fresh drive that fills", fresh, Some(11)),
            ("a decay without end", rounds(|at| 1000.0 * 0.8_f64.powi(at as i32), 25), None),
            ("a drift of 2 % a round", rounds(|at| 100.0 - 2.0 * at as f64, 25), Some(5)),
            ("a drift of 3 % a round", rounds(|at| 100.0 - 3.0 * at as f64, 25), None),
            ("a cache that ends after nine rounds", [vec![200.0; 9], vec![100.0; 16]].concat(), Some(5)),
            ("a cache that ends after four", [vec![200.0; 4], vec![100.0; 21]].concat(), Some(9)),
            ("a saw of 24 %", rounds(|at| if at % 2 == 0 { 112.0 } else { 88.0 }, 25), None),
            ("a saw of 18 %", rounds(|at| if at % 2 == 0 { 109.0 } else { 91.0 }, 25), Some(5)),
            ("a peak every four rounds", rounds(|at| if at % 4 == 2 { 300.0 } else { 100.0 }, 25), None),
            ("one early peak", [vec![100.0, 100.0, 200.0], vec![100.0; 22]].concat(), Some(8)),
            ("a standstill", vec![100.0, 100.0, 0.0, 100.0, 100.0], None),
            ("nothing at all", vec![0.0; 25], None),
            ("the last window", late(20), Some(25)),
            ("one round too late", late(21), None),
            ("no rounds", Vec::new(), None),
        ];
        for (name, series, expected) in planted {
            // Ten bins make a round; a series of fewer rounds is one of bins.
            let bins: Vec<f64> = series.iter().flat_map(|rate| vec![*rate; 10]).collect();
            let found =
                if series.len() < ROUNDS { steady_round(&series) } else { steady_round(&bins[..250]) };
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn a_load_of_a_minute_has_rounds_of_24_bins() {
        assert_eq!([600, 610, 15_000, 10].map(round_bins), [24, 24, 600, 1]);
        assert_eq!(window_start(5), 1);
    }
}
