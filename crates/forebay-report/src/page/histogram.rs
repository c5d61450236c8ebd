//! Times of single operations, in the form stored in a result: HdrHistogram V2, compressed, in base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;

/// Maximum points of a curve for each nine of its tail.
const POINTS_OF_A_NINE: i32 = 6;

/// Returns the latency in microseconds that each share of operations did not exceed, up to the last share
/// that at least one operation exceeds. `None` for a text that has no histogram, or an empty one.
pub fn curve(text: &str) -> Option<Vec<(f64, f64)>> {
    let histogram = read(text)?;
    let count = histogram.len();
    if count == 0 {
        return None;
    }
    let last = 1.0 - 1.0 / count as f64;
    let shares = (0..).map(|index| 1.0 - 10_f64.powf(-f64::from(index) / f64::from(POINTS_OF_A_NINE)));
    let shares = shares.take_while(|share| *share < last.min(0.999_999)).chain([last]);
    Some(shares.map(|share| (share, histogram.value_at_quantile(share) as f64 / 1000.0)).collect())
}

/// Returns the recorded times in microseconds, ascending, each with its count. Empty when the text has
/// no histogram.
pub fn counts_us(text: &str) -> Vec<(f64, u64)> {
    let Some(histogram) = read(text) else { return Vec::new() };
    let values = histogram.iter_recorded();
    values
        .map(|value| (value.value_iterated_to() as f64 / 1000.0, value.count_since_last_iteration()))
        .collect()
}

fn read(text: &str) -> Option<Histogram<u64>> {
    let bytes = STANDARD.decode(text).ok()?;
    Deserializer::new().deserialize(&mut bytes.as_slice()).ok()
}

/// Steps of the scale: quarter octaves.
const STEPS_PER_OCTAVE: f64 = 4.0;
/// Half width of the valley: two steps to each side of a point.
const VALLEY_STEPS: usize = 2;
/// Minimum operations: fewer do not show a share of one in a hundred.
const OPERATIONS_MIN: u64 = 200;
const SHARE_MIN: f64 = 0.01;
/// Maximum content of the valley, as a share of the smaller side.
const VALLEY_MAX: f64 = 0.1;
/// Minimum factor between the two sorts.
const APART_MIN: f64 = 3.0;

/// The two sorts of operations in a histogram.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sorts {
    /// Median of the faster operations.
    pub fast_us: f64,
    /// Median of the slower operations.
    pub slow_us: f64,
    /// Share of the slower operations.
    pub slow_share: f64,
}

/// Returns the two sorts in a histogram of latencies in microseconds, ascending, each with its count: where a cache serves
/// some operations and a slower device the others.
///
/// On a scale of quarter octaves, the valley between two sorts is an octave that is nearly empty. Each side has a share of
/// at least one in a hundred, and their medians are far apart. A long tail, exponential or a power of the latency, has as
/// much in the octave before any point as behind it, and so has no valley.
pub fn two_sorts(histogram: &[(f64, u64)]) -> Option<Sorts> {
    let all: u64 = histogram.iter().map(|(_, count)| count).sum();
    if all < OPERATIONS_MIN {
        return None;
    }
    let step = |us: f64| (us.max(1e-3).log2() * STEPS_PER_OCTAVE).floor() as i64;
    let (first, last) = (step(histogram.first()?.0), step(histogram.last()?.0));
    let mut steps = vec![0_u64; usize::try_from(last - first).ok()? + 1];
    for (us, count) in histogram {
        *steps.get_mut(usize::try_from(step(*us) - first).ok()?)? += count;
    }
    let mut below = 0;
    let mut best: Option<(f64, usize)> = None;
    for at in 0..steps.len() {
        let smaller = below.min(all - below) as f64;
        if smaller >= SHARE_MIN * all as f64 {
            let valley = &steps[at.saturating_sub(VALLEY_STEPS)..steps.len().min(at + VALLEY_STEPS)];
            let depth = valley.iter().sum::<u64>() as f64 / smaller;
            if best.is_none_or(|(least, _)| depth < least) {
                best = Some((depth, at));
            }
        }
        below += steps[at];
    }
    let (_, at) = best.filter(|(depth, _)| *depth < VALLEY_MAX)?;
    let border = first + at as i64;
    let (fast, slow): (Vec<_>, Vec<_>) = histogram.iter().copied().partition(|(us, _)| step(*us) < border);
    let sorts = Sorts {
        fast_us: middle(&fast)?,
        slow_us: middle(&slow)?,
        slow_share: count(&slow) as f64 / all as f64,
    };
    (sorts.slow_us >= APART_MIN * sorts.fast_us).then_some(sorts)
}

fn count(part: &[(f64, u64)]) -> u64 {
    part.iter().map(|(_, count)| count).sum()
}

/// Returns the median.
fn middle(part: &[(f64, u64)]) -> Option<f64> {
    let half = count(part).div_ceil(2);
    let mut sum = 0;
    part.iter()
        .find(|(_, count)| {
            sum += count;
            sum >= half
        })
        .map(|(us, _)| *us)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};

    /// Returns the text of a histogram of these microseconds.
    pub(crate) fn text(microseconds: impl Iterator<Item = u64>) -> String {
        let mut histogram = Histogram::<u32>::new_with_bounds(1, 60_000_000_000, 2).expect("a few kilobytes");
        microseconds.for_each(|time| histogram.record(time * 1000).expect("less than a minute"));
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(&histogram, &mut bytes).expect("memory");
        STANDARD.encode(bytes)
    }

    #[test]
    fn a_curve_rises_to_the_share_that_one_operation_is_beyond() {
        let curve = curve(&text(1..=10_000)).expect("a histogram");
        assert!(curve.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1), "{curve:?}");
        let (share, time) = curve[curve.len() - 1];
        assert!((share - 0.9999).abs() < 1e-9 && (time - 9999.0).abs() < 100.0, "{share} {time}");
        assert!(curve.len() < 30, "{}", curve.len());
    }

    #[test]
    fn other_texts_have_no_curve() {
        for wrong in ["", "x", "HISTFAAA", &text(std::iter::empty())] {
            assert_eq!(curve(wrong), None, "{wrong}");
        }
    }

    mod sorts {
        use crate::page::histogram::two_sorts;

        /// Returns `count` latencies, given by their quantiles.
        fn of(count: u32, quantile: impl Fn(f64) -> f64) -> Vec<(f64, u64)> {
            (0..count).map(|index| (quantile((f64::from(index) + 0.5) / f64::from(count)), 1)).collect()
        }

        fn both(fast: Vec<(f64, u64)>, slow: Vec<(f64, u64)>) -> Vec<(f64, u64)> {
            let mut all = [fast, slow].concat();
            all.sort_by(|a, b| a.0.total_cmp(&b.0));
            all
        }

        /// Returns the quantiles of an exponential distribution, as of a queue.
        fn exponential(mean: f64) -> impl Fn(f64) -> f64 {
            move |share| -mean * (1.0 - share).ln()
        }

        #[test]
        fn two_levels_are_found_with_their_shares() {
            for (share, times) in [(40_u32, 4.0), (200, 20.0), (2_000, 100.0)] {
                // Each level scatters by half of it.
                let level = |us: f64| move |share: f64| us * (1.0 + 0.5 * share);
                let found = two_sorts(&both(of(2_000, level(100.0)), of(share, level(100.0 * times))));
                let found = found.unwrap_or_else(|| panic!("{share} {times}"));
                assert!((found.fast_us - 125.0).abs() < 2.0, "{found:?}");
                assert!((found.slow_us / (125.0 * times) - 1.0).abs() < 0.05, "{found:?}");
                let expected = f64::from(share) / f64::from(2_000 + share);
                assert!((found.slow_share - expected).abs() < 0.002, "{found:?}");
            }
        }

        #[test]
        fn tails_and_scatter_are_one_sort() {
            for count in [200, 5_000, 100_000] {
                assert_eq!(two_sorts(&of(count, exponential(100.0))), None);
                // Tails that fall with a power of the latency: half of them, a third.
                assert_eq!(two_sorts(&of(count, |share| 100.0 / (1.0 - share))), None);
                assert_eq!(two_sorts(&of(count, |share| 100.0 / (1.0 - share).powf(0.5))), None);
                assert_eq!(two_sorts(&of(count, |share| 100.0 * (1.0 + share))), None);
                assert_eq!(two_sorts(&of(count, |_| 100.0)), None);
            }
        }

        #[test]
        fn few_slow_ones_and_near_ones_are_no_sort() {
            let level = |us: f64| move |_: f64| us;
            assert_eq!(two_sorts(&both(of(2_000, level(100.0)), of(10, level(2_000.0)))), None, "1 in 200");
            assert_eq!(two_sorts(&both(of(2_000, level(100.0)), of(500, level(250.0)))), None, "2.5 times");
            assert_eq!(two_sorts(&both(of(90, level(100.0)), of(90, level(2_000.0)))), None, "too few");
            assert_eq!(two_sorts(&[]), None);
        }
    }
}
