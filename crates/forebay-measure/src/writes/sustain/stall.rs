//! Finds the periods in which a load stands still, and whether they recur at a regular interval.
//!
//! Method: completed operations are counted in steps wide enough for their number to be significant. Of all steps, the busiest
//! quarter sets the usual number. A step with less than a quarter of that number is a standstill, and adjacent standstills are
//! merged. Standstills are regular when all intervals between them are equal, or small multiples of one interval if some were
//! missed, over the whole time. A standstill shorter than two steps may not show.

use super::STEP_MS;

/// Minimum operations of a step; fewer could be chance.
const OPERATIONS_MIN: f64 = 32.0;
/// Minimum rounds of a step: everything in flight completes several times in it, so that completing together is not a standstill.
const ROUNDS_MIN: f64 = 4.0;
/// Minimum steps; fewer show nothing.
const STEPS_MIN: usize = 20;
/// A step below this share of the busy steps is a standstill.
const STILL: f64 = 0.25;
/// Quantile of the steps whose number counts as busy: this share of all steps has no more.
const BUSY_QUANTILE: f64 = 0.75;
/// A period longer than this share of the time is a separate level, and not a standstill.
const LONGEST_SHARE: f64 = 1.0 / 3.0;
/// Minimum standstills for a rhythm.
const REGULAR_MIN: usize = 4;
/// Tolerance of an interval, as a share of the usual one; at least `TOLERANCE_STEPS` steps.
const TOLERANCE: f64 = 0.1;
const TOLERANCE_STEPS: f64 = 1.5;
/// Maximum tolerance as a share of the usual interval: with more, any series would pass.
const TOLERANCE_MAX: f64 = 0.25;
/// Minimum share of intervals within the tolerance.
const ALIKE_MIN: f64 = 0.9;
/// Minimum share of the standstills that the rhythm predicts.
const PRESENT_MIN: f64 = 0.75;
/// Maximum standstills missed in a row.
const MISSED_MAX: f64 = 2.0;

/// The standstills of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stalls {
    /// Width of the steps.
    pub(super) step_ms: f64,
    pub(super) count: usize,
    /// Length of the median standstill; 0 without standstills.
    pub(super) length_ms: f64,
    /// Total length as a share of the time.
    pub(super) share: f64,
    /// Interval between standstills, when it is regular.
    pub(super) every_s: Option<f64>,
}

/// Returns the standstills in `steps`, the numbers of operations that completed in each [`STEP_MS`]
/// with `depth` in flight. Returns `None` when the time is too short for the number of operations.
pub(super) fn find(steps: &[u32], depth: usize) -> Option<Stalls> {
    let all: f64 = steps.iter().map(|count| f64::from(*count)).sum();
    if all <= 0.0 {
        return None;
    }
    let wanted = OPERATIONS_MIN.max(ROUNDS_MIN * depth as f64);
    let together = (wanted * steps.len() as f64 / all).ceil().max(1.0) as usize;
    let wide: Vec<f64> =
        steps.chunks_exact(together).map(|chunk| chunk.iter().map(|count| f64::from(*count)).sum()).collect();
    if wide.len() < STEPS_MIN {
        return None;
    }
    let step_ms = (together as u64 * STEP_MS) as f64;
    let runs = runs(&wide);
    let usual = forebay_report::result::median(wide.clone())?;
    let mut lengths: Vec<f64> = runs.iter().map(|run| length(&wide, *run, usual)).collect();
    let starts: Vec<f64> = runs.iter().map(|(first, _)| *first as f64).collect();
    let share = lengths.iter().sum::<f64>() / wide.len() as f64;
    let every_s = regular(&starts, wide.len() as f64).map(|steps| steps * step_ms / 1000.0);
    lengths.iter_mut().for_each(|steps| *steps *= step_ms);
    let length_ms = forebay_report::result::median(lengths).unwrap_or_default();
    Some(Stalls { step_ms, count: runs.len(), length_ms, share, every_s })
}

/// Returns the standstills: the first step of each, and its number of steps.
fn runs(wide: &[f64]) -> Vec<(usize, usize)> {
    let mut sorted = wide.to_vec();
    sorted.sort_by(f64::total_cmp);
    let busy = sorted[((sorted.len() - 1) as f64 * BUSY_QUANTILE) as usize];
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (index, count) in wide.iter().enumerate().filter(|(_, count)| **count < STILL * busy) {
        debug_assert!(*count < busy);
        match runs.last_mut() {
            Some((first, steps)) if *first + *steps == index => *steps += 1,
            _ => runs.push((index, 1)),
        }
    }
    runs.retain(|(_, steps)| (*steps as f64) < LONGEST_SHARE * wide.len() as f64);
    runs
}

/// Returns the length of a standstill in steps: the operations missing in it, and in the two
/// adjacent steps that it covers in part.
fn length(wide: &[f64], (first, steps): (usize, usize), usual: f64) -> f64 {
    let around = &wide[first.saturating_sub(1)..wide.len().min(first + steps + 1)];
    let missing: f64 = around.iter().map(|count| (usual - count).max(0.0)).sum();
    if usual > 0.0 { missing / usual } else { steps as f64 }
}

/// Returns the usual interval in steps, if any, of standstills that start at `starts` within `steps` steps.
fn regular(starts: &[f64], steps: f64) -> Option<f64> {
    if starts.len() < REGULAR_MIN {
        return None;
    }
    let distances: Vec<f64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let usual = forebay_report::result::median(distances.clone())?;
    let tolerance = (TOLERANCE * usual).max(TOLERANCE_STEPS);
    if tolerance > TOLERANCE_MAX * usual {
        return None;
    }
    let times = |distance: &f64| (distance / usual).round();
    let is_alike = |distance: &&f64| {
        let times = times(distance);
        (1.0..=1.0 + MISSED_MAX).contains(&times) && (*distance - times * usual).abs() <= tolerance
    };
    let alike = distances.iter().filter(is_alike).count() as f64;
    let periods: f64 = distances.iter().map(times).sum();
    let every = (starts[starts.len() - 1] - starts[0]) / periods;
    let called_for = (steps / every).floor();
    let is_regular =
        alike >= ALIKE_MIN * distances.len() as f64 && starts.len() as f64 >= PRESENT_MIN * called_for;
    is_regular.then_some(every)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::SplitMix;

    const SECOND: usize = (1000 / STEP_MS) as usize;

    fn unit(random: &mut SplitMix) -> f64 {
        (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns `seconds` of a load with a mean of `rate` operations per step and the scatter of chance.
    fn steady(rate: f64, seconds: usize, random: &mut SplitMix) -> Vec<u32> {
        let one = |random: &mut SplitMix| {
            // The sum of twelve is nearly normal, with a deviation of 1.
            let normal: f64 = (0..12).map(|_| unit(random)).sum::<f64>() - 6.0;
            (rate + normal * rate.sqrt()).max(0.0).round() as u32
        };
        (0..seconds * SECOND).map(|_| one(random)).collect()
    }

    /// Removes all completions in `length` steps from each of `starts` on.
    fn still(mut steps: Vec<u32>, starts: impl Iterator<Item = usize>, length: usize) -> Vec<u32> {
        for start in starts {
            let end = steps.len().min(start + length);
            steps[start.min(end)..end].fill(0);
        }
        steps
    }

    #[test]
    fn standstills_every_second_are_found_with_their_length() {
        for seed in 1..=30 {
            let mut random = SplitMix::new(seed);
            for (seconds, every, length) in
                [(5, 100, 10), (60, 100, 4), (60, 100, 60), (60, 730, 25), (60, 25, 5)]
            {
                let phase = 7 + seed as usize % (every - length);
                let load = steady(100.0, seconds, &mut random);
                let simulated = still(load, (phase..seconds * SECOND).step_by(every), length);
                let found = find(&simulated, 8).expect("it is long enough");
                let period_s = found.every_s.unwrap_or_else(|| panic!("{seed} {every} {length}: {found:?}"));
                assert!(
                    (period_s / (every as f64 / 100.0) - 1.0).abs() < 0.02,
                    "{every} {length}: {found:?}"
                );
                assert!(
                    (found.length_ms / (length as f64 * 10.0) - 1.0).abs() < 0.2,
                    "{every} {length}: {found:?}"
                );
                let share = length as f64 / every as f64;
                assert!((found.share / share - 1.0).abs() < 0.35, "{share}: {found:?}");
            }
        }
    }

    #[test]
    fn one_that_is_missed_breaks_no_rhythm_and_many_that_are_missed_do() {
        let mut random = SplitMix::new(5);
        let of = |keep: fn(&usize) -> bool, random: &mut SplitMix| {
            let starts = (1..60).filter(keep).map(|second| second * SECOND);
            find(&still(steady(100.0, 60, random), starts, 10), 8).expect("it is long enough").every_s
        };
        assert!(of(|second| second % 9 != 0, &mut random).is_some_and(|every| (every - 1.0).abs() < 0.02));
        assert_eq!(of(|second| *second < 10, &mut random), None, "at the beginning only");
        assert_eq!(of(|second| second % 7 == 0 || second % 5 == 0, &mut random), None);
    }

    /// A few standstills can look like a rhythm by chance, though seldom.
    #[test]
    fn standstills_at_random_times_have_no_rhythm() {
        let mut claimed = 0;
        for seed in 1..=400 {
            let mut random = SplitMix::new(seed);
            let (seconds, count) = if seed % 2 == 0 { (60, 40) } else { (20, 6) };
            let load = steady(60.0, seconds, &mut random);
            let starts: Vec<usize> =
                (0..count).map(|_| random.below((seconds * SECOND) as u64) as usize).collect();
            let found = find(&still(load, starts.into_iter(), 8), 8).expect("it is long enough");
            assert!(found.count > 0 && found.share > 0.0, "{found:?}");
            claimed += u32::from(found.every_s.is_some());
        }
        assert!(claimed <= 4, "{claimed} of 400");
    }

    #[test]
    fn a_load_that_only_scatters_stands_nowhere_still() {
        for seed in 1..=50 {
            let mut random = SplitMix::new(seed);
            for (rate, depth) in [(0.5, 1), (3.0, 8), (100.0, 32), (1000.0, 8)] {
                let found = find(&steady(rate, 60, &mut random), depth).expect("it is long enough");
                assert_eq!((found.count, found.share, found.every_s), (0, 0.0, None), "{rate}: {found:?}");
            }
            // All 32 end together, every 35 ms.
            let together: Vec<u32> = (0..2000).map(|step| if step * 10 % 35 < 10 { 32 } else { 0 }).collect();
            let found = find(&together, 32).expect("it is long enough");
            assert_eq!(found.count, 0, "{found:?}");
        }
    }

    #[test]
    fn waves_drifts_and_levels_are_no_standstills() {
        let mut random = SplitMix::new(3);
        let mut waves = steady(100.0, 60, &mut random);
        waves
            .iter_mut()
            .enumerate()
            .filter(|(step, _)| step / 50 % 2 == 0)
            .for_each(|(_, count)| *count /= 2);
        assert_eq!(find(&waves, 8).expect("long").count, 0);
        let drift: Vec<u32> = (0..6000).map(|step| 100 - step / 75).collect();
        assert_eq!(find(&drift, 8).expect("long").count, 0);
        let mut fallen = steady(100.0, 60, &mut random);
        fallen[3000..].iter_mut().for_each(|count| *count /= 10);
        assert_eq!(find(&fallen, 8).expect("long").count, 0);
    }

    /// Standstills shorter than the steps are not guessed; the result reports the width of the steps.
    #[test]
    fn the_width_of_a_step_follows_the_number_of_operations() {
        let mut random = SplitMix::new(4);
        let found = find(&steady(100.0, 10, &mut random), 8).expect("long");
        assert_eq!(found.step_ms, 10.0);
        let found = find(&steady(2.0, 60, &mut random), 8).expect("long");
        assert!((150.0..=180.0).contains(&found.step_ms), "{found:?}");
        assert_eq!(find(&steady(0.1, 10, &mut random), 32), None, "a disk of 10 operations a second");
        assert_eq!(find(&[], 8), None);
        assert_eq!(find(&[0; 500], 8), None);
    }
}
