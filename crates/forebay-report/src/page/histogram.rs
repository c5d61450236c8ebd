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
}
