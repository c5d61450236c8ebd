//! The point where more load no longer pays off: three definitions of the knee of a curve of throughput
//! over load. They agree on a device of one limit, and show how far to trust them where they do not.

/// One load and its results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// Readers, each with one read in flight.
    pub readers: f64,
    /// Reads per second, all readers together.
    pub per_second: f64,
    /// Mean time of a read.
    pub mean_us: f64,
}

/// A definition of the knee: its name in sentences, and the index of the level at which it finds the knee of a curve
/// (`None` for an empty one).
type Knee = (&'static str, fn(&[Level]) -> Option<usize>);

/// All definitions of the knee:
/// - the largest *power*, throughput divided by response time (Kleinrock, "Power and deterministic rules of thumb for
///   probabilistic problems in computer communications", ICC 1979);
/// - the largest distance of the curve above its chord, both axes scaled to 1 (Satopaa, Albrecht, Irwin and Raghavan,
///   "Finding a 'Kneedle' in a haystack", ICDCSW 2011);
/// - the load at which the curve is [saturated](saturated_at).
pub const KNEES: [Knee; 3] = [
    ("largest power (Kleinrock)", |curve| {
        first_largest(curve.iter().map(|level| level.per_second / level.mean_us))
    }),
    ("farthest from the chord (Kneedle)", chord),
    ("under 10 % a doubling", |curve| {
        let points: Vec<(f64, f64)> = curve.iter().map(|level| (level.readers, level.per_second)).collect();
        saturated_at(&points)
    }),
];

/// Minimum gain of twice the load, as a factor of the throughput: a smaller step is within the noise between repeats, and
/// costs more latency than it brings.
const GAIN_OF_DOUBLING: f64 = 1.1;
/// Minimum gain of any larger load, however many doublings away: so much is worth it.
const GAIN_IN_ALL: f64 = 1.2;
/// Minimum rise of a curve; one that rises by less is flat.
const FLAT: f64 = 1.05;

/// Returns the index of the smallest load from which no larger load gains a tenth for each doubling, or a fifth in total: the rule
/// of all sentences, questions and marks. The curve, of load and throughput, ascends in its load. The last index means that
/// throughput still grew there; `None` means an empty curve.
pub fn saturated_at(curve: &[(f64, f64)]) -> Option<usize> {
    let pays = |(load, rate): &(f64, f64), (more, found): &(f64, f64)| {
        let doublings = (more / load).log2().max(1.0);
        *found >= rate * GAIN_OF_DOUBLING.powf(doublings).min(GAIN_IN_ALL)
    };
    (0..curve.len()).find(|at| !curve[at + 1..].iter().any(|more| pays(&curve[*at], more)))
}

/// The result of a curve of throughput over load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saturation {
    /// The largest throughput.
    pub per_second: f64,
    /// The largest throughput divided by that of one reader: the number of readers that the device serves at
    /// full speed. This is the crossing of the two asymptotes (Denning and Buzen, "The operational analysis
    /// of queueing network models", ACM Computing Surveys 1978). `None` when one reader was not measured.
    pub places: Option<f64>,
    /// The knees by [`KNEES`], each an index into the curve.
    pub knees: [usize; 3],
}

/// Returns the saturation of a curve, which must ascend in its load. Returns `None` with fewer than three levels, or when the
/// throughput still grew at the end. Then the device may be faster, and a knee would be an artefact of the measurement.
pub fn saturation(curve: &[Level]) -> Option<Saturation> {
    if curve.len() < 3 {
        return None;
    }
    let per_second = most(curve)?;
    let [power, chord, share] = KNEES.map(|(_, find)| find(curve));
    let knees = [power?, chord?, share?];
    if knees[2] + 1 == curve.len() {
        return None;
    }
    let alone = curve.first().filter(|level| level.readers == 1.0);
    Some(Saturation { per_second, places: alone.map(|level| per_second / level.per_second), knees })
}

fn most(curve: &[Level]) -> Option<f64> {
    let most = curve.iter().map(|level| level.per_second).fold(0.0, f64::max);
    (most > 0.0).then_some(most)
}

fn chord(curve: &[Level]) -> Option<usize> {
    let (first, last) = (curve.first()?, curve.last()?);
    let least = curve.iter().map(|level| level.per_second).fold(f64::INFINITY, f64::min);
    let (width, height) = (last.readers - first.readers, most(curve)? - least);
    if height < (FLAT - 1.0) * least || width <= 0.0 {
        // A curve that rises by less than noise has its knee at its start.
        return Some(0);
    }
    let above = |level: &Level| (level.per_second - least) / height - (level.readers - first.readers) / width;
    first_largest(curve.iter().map(above))
}

fn first_largest(values: impl Iterator<Item = f64>) -> Option<usize> {
    let finite = values.enumerate().filter(|(_, value)| value.is_finite());
    finite.reduce(|best, next| if next.1 > best.1 { next } else { best }).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the curve of a device that serves `places` reads at a time, each in 100 us: the bounds
    /// of the operational laws.
    fn ideal(places: f64) -> Vec<Level> {
        let level = |doublings| {
            let readers = f64::from(1 << doublings);
            let per_second = readers.min(places) * 10_000.0;
            Level { readers, per_second, mean_us: readers / per_second * 1e6 }
        };
        (0..=8).map(level).collect()
    }

    #[test]
    fn all_definitions_find_the_limit_of_a_device_of_one_limit() {
        for places in [1.0, 2.0, 16.0, 32.0, 128.0] {
            let curve = ideal(places);
            let found = saturation(&curve).expect("it is saturated");
            let readers = found.knees.map(|knee| curve[knee].readers);
            assert_eq!(readers, [places; 3], "{places}");
            assert_eq!(found.places, Some(places));
            assert!((found.per_second - places * 10_000.0).abs() < 1e-6);
        }
    }

    #[test]
    fn a_device_that_is_not_saturated_has_no_knee() {
        assert_eq!(saturation(&ideal(256.0)), None);
        assert_eq!(saturation(&ideal(1024.0)), None);
        assert_eq!(saturation(&ideal(2.0)[..2]), None);
        assert_eq!(saturation(&[]), None);
    }

    /// Regression: 12 % more for four times the load were "no, and rising" in a question, and "little more" in the sentence of
    /// the same page.
    #[test]
    fn little_more_for_much_more_load_is_saturation() {
        let at = |curve: &[(f64, f64)]| saturated_at(curve).map(|at| curve[at].0);
        assert_eq!(at(&[(1.0, 10e3), (8.0, 60e3), (32.0, 82e3), (128.0, 92e3)]), Some(32.0));
        assert_eq!(at(&[(1.0, 10e3), (8.0, 60e3), (32.0, 82e3), (128.0, 99e3)]), Some(128.0), "a fifth");
        assert_eq!(at(&[(16.0, 50e3), (24.0, 54e3)]), Some(16.0), "noise between near loads");
        assert_eq!(at(&[(16.0, 50e3)]), Some(16.0));
        assert_eq!(at(&[]), None);
        // Grows by less than a tenth each time, and by a fifth in the end.
        let mut slow = ideal(1.0);
        for (index, level) in slow.iter_mut().enumerate() {
            level.per_second *= 1.08_f64.powi(index as i32);
        }
        assert_eq!(saturation(&slow).map(|found| slow[found.knees[2]].readers), Some(64.0));
    }

    #[test]
    fn noise_on_a_flat_end_moves_no_knee() {
        let mut curve = ideal(16.0);
        for (index, level) in curve.iter_mut().enumerate() {
            level.per_second *= if index % 2 == 0 { 1.02 } else { 0.98 };
        }
        let found = saturation(&curve).expect("it is saturated");
        assert_eq!(found.knees.map(|knee| curve[knee].readers), [16.0; 3]);
    }

    #[test]
    fn a_device_that_gets_slower_under_load_has_its_knee_before_that() {
        let mut curve = ideal(32.0);
        for level in curve.iter_mut().filter(|level| level.readers > 32.0) {
            level.per_second *= 0.7;
            level.mean_us /= 0.7;
        }
        let found = saturation(&curve).expect("it is saturated");
        assert_eq!(found.knees.map(|knee| curve[knee].readers), [32.0; 3]);
    }

    #[test]
    fn without_one_reader_the_number_of_programs_is_unknown() {
        assert_eq!(saturation(&ideal(16.0)[2..]).map(|found| found.places), Some(None));
    }
}
