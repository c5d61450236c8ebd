//! Axes: the position of a value between two coordinates, and the round values that get a tick.

use crate::units::number;

/// The spacing of values over an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// From 0, in steps of equal length.
    Linear,
    /// A factor of ten has the same length everywhere; values are above 0.
    Log,
    /// Shares of operations, from 0 to below 1: 90 %, 99 % and 99.9 % are equally far apart.
    Tail,
}

impl Spread {
    /// Returns [`Spread::Log`] for values that are above 0 and so far apart that a linear axis would
    /// hide the small ones.
    pub(crate) fn fitting(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = extent(values);
        if low > 0.0 && high / low >= 8.0 { Self::Log } else { Self::Linear }
    }

    /// Returns the text of a value: a number, or a share with all of its nines.
    pub(crate) fn text(self, value: f64) -> String {
        if self != Self::Tail {
            return number(value);
        }
        let text = format!("{:.6}", value * 100.0);
        format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
    }

    fn transform(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Log => value.max(f64::MIN_POSITIVE).log10(),
            Self::Tail => -(1.0 - value.clamp(0.0, LAST_TAIL)).log10(),
        }
    }
}

/// End of an axis of shares: no measurement has more than a billion operations.
const LAST_TAIL: f64 = 0.999_999_999;

/// An axis between two coordinates.
#[derive(Debug)]
pub(crate) struct Scale {
    spread: Spread,
    low: f64,
    high: f64,
    start: f64,
    end: f64,
    /// The values that get a tick, with their text.
    pub ticks: Vec<(f64, String)>,
}

impl Scale {
    /// Returns an axis with round ticks that covers all `values`, from `start` to `end`.
    pub(crate) fn new(spread: Spread, values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let (low, high) = extent(values);
        let ticks = match spread {
            Spread::Linear => linear_ticks(low.min(0.0), high),
            Spread::Log => log_ticks(low, high),
            Spread::Tail => tail_ticks(high),
        };
        let (first, last) = (ticks[0], ticks[ticks.len() - 1]);
        let ticks = ticks.into_iter().map(|value| (value, spread.text(value))).collect();
        Self { spread, low: spread.transform(first), high: spread.transform(last), start, end, ticks }
    }

    /// Returns an axis whose ticks are the values themselves.
    pub(crate) fn of_values(spread: Spread, values: &[f64], start: f64, end: f64) -> Self {
        let (low, high) = extent(values.iter().copied());
        let (low, high) = match spread {
            Spread::Linear => (low.min(0.0), if high > low { high } else { low + 1.0 }),
            // A single value is in the middle.
            _ if high <= low => (low / 2.0, low * 2.0),
            _ => (low, high),
        };
        let ticks = values.iter().map(|value| (*value, spread.text(*value))).collect();
        Self { spread, low: spread.transform(low), high: spread.transform(high), start, end, ticks }
    }

    /// Returns the coordinate of a value; values beyond the axis are at its end.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let share = (self.spread.transform(value) - self.low) / (self.high - self.low);
        let share = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
        self.start + (self.end - self.start) * share
    }
}

/// Returns the maximum width of a tick's text: small screens have larger letters.
pub(crate) fn width_of(text: &str) -> f64 {
    text.chars().count() as f64 * 8.8
}

fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .filter(|value| value.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    if low <= high { (low, high) } else { (0.0, 1.0) }
}

/// Returns multiples of 1, 2 or 5 times a power of ten, at most about five steps, that enclose both values.
fn linear_ticks(low: f64, high: f64) -> Vec<f64> {
    let step = round_step(high - low);
    let first = (low / step).floor();
    let last = (high / step - 1e-9).ceil().max(first + 1.0);
    (0..=(last - first) as u32).map(|index| (first + f64::from(index)) * step).collect()
}

/// Returns powers of ten; between few of them also 2 and 5 times these.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let low = if low > 0.0 { low } else { high.max(1e-9) / 1000.0 };
    let high = high.max(low);
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let factors: &[f64] = if last - first <= 3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let all: Vec<f64> = (first..=last)
        .flat_map(|power| factors.iter().map(move |factor| factor * 10_f64.powi(power)))
        .collect();
    let begin = all.iter().rposition(|tick| *tick <= low * 1.000_001).unwrap_or(0);
    let end = all.iter().position(|tick| *tick >= high * 0.999_999).unwrap_or(all.len() - 1);
    if end > begin { all[begin..=end].to_vec() } else { vec![low / 2.0, low, low * 2.0] }
}

/// Returns 0, a half, and shares that end at the nines of `high`, at least two and at most six of them.
fn tail_ticks(high: f64) -> Vec<f64> {
    let nines = Spread::Tail.transform(high).ceil().clamp(2.0, 6.0) as i32;
    [0.0, 0.5].into_iter().chain((1..=nines).map(|count| 1.0 - 10_f64.powi(-count))).collect()
}

/// Returns 1, 2 or 5 times a power of ten, so that at most five steps span `range`.
fn round_step(range: f64) -> f64 {
    if range <= 0.0 || !range.is_finite() {
        return 1.0;
    }
    let rough = range / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let factor =
        [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= rough * 0.999_999).unwrap_or(10.0);
    factor * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(scale: &Scale) -> Vec<&str> {
        scale.ticks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn linear_ticks_are_round_and_reach_around_the_values() {
        assert_eq!(round_step(10.0), 2.0);
        assert_eq!(round_step(2_700.0), 1000.0);
        assert_eq!(round_step(0.0), 1.0);
        let scale = Scale::new(Spread::Linear, [2_700.0].into_iter(), 0.0, 100.0);
        assert_eq!(texts(&scale), ["0", "1,000", "2,000", "3,000"]);
        assert_eq!(scale.at(3000.0), 100.0);
    }

    #[test]
    fn a_log_axis_gives_each_factor_the_same_room() {
        let scale = Scale::new(Spread::Log, [10.0, 100_000.0].into_iter(), 0.0, 400.0);
        assert_eq!(texts(&scale), ["10", "100", "1,000", "10,000", "100,000"]);
        assert!((scale.at(1000.0) - 200.0).abs() < 1e-6);
        let narrow = Scale::new(Spread::Log, [30.0, 450.0].into_iter(), 0.0, 1.0);
        assert_eq!(texts(&narrow), ["20", "50", "100", "200", "500"]);
    }

    #[test]
    fn a_tail_axis_shows_the_nines() {
        let scale = Scale::new(Spread::Tail, [0.999].into_iter(), 0.0, 300.0);
        assert_eq!(texts(&scale), ["0 %", "50 %", "90 %", "99 %", "99.9 %"]);
        assert!((scale.at(0.99) - 200.0).abs() < 1e-6);
    }

    #[test]
    fn values_far_apart_get_a_log_axis() {
        assert_eq!(Spread::fitting([10.0, 300.0].into_iter()), Spread::Log);
        assert_eq!(Spread::fitting([10.0, 70.0].into_iter()), Spread::Linear);
        assert_eq!(Spread::fitting([0.0, 300.0].into_iter()), Spread::Linear);
    }

    #[test]
    fn a_single_value_is_in_the_middle() {
        let alone = Scale::of_values(Spread::Log, &[8.0], 0.0, 300.0);
        assert!((alone.at(8.0) - 150.0).abs() < 1e-6);
    }

    #[test]
    fn shares_keep_their_nines() {
        assert_eq!([0.5, 0.9999].map(|share| Spread::Tail.text(share)), ["50 %", "99.99 %"]);
    }

    #[test]
    fn no_value_breaks_an_axis() {
        for spread in [Spread::Linear, Spread::Log, Spread::Tail] {
            for values in [vec![], vec![0.0], vec![-5.0], vec![f64::NAN], vec![1e-12, 1e15]] {
                let scale = Scale::new(spread, values.iter().copied(), 0.0, 100.0);
                assert!(!scale.ticks.is_empty());
                for value in values.iter().copied().chain([0.0, 1.0]).filter(|value| value.is_finite()) {
                    assert!((0.0..=100.0).contains(&scale.at(value)), "{spread:?} {value}");
                }
            }
        }
    }
}
