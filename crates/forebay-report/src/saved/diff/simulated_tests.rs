//! Tests of the rule of [`noise`](super::noise) on simulated runs. With noise as on real machines, two
//! runs of the same program are alike, and one that is slower by a tenth is detected.

use super::significance::{Outcome, Pair, judge};
use super::*;
use crate::environment::Environment;
use crate::result::Sample;

/// Number of pairs of runs of each sort.
const RUNS: u64 = 60;

/// A generator of random numbers from one seed.
struct Dice(u64);

impl Dice {
    /// Returns a number spread evenly between 0 and 1.
    fn even(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((word ^ (word >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a normally distributed number around 0 (Box and Muller).
    fn normal(&mut self, deviation: f64) -> f64 {
        let radius = (-2.0 * self.even().max(1e-300).ln()).sqrt();
        deviation * radius * (std::f64::consts::TAU * self.even()).cos()
    }
}

/// The disturbances of a machine on its measurements; all as shares.
#[derive(Clone, Copy)]
struct Machine {
    /// Noise of each sample.
    noise: f64,
    /// Drift from run to run, common to all rows.
    run: f64,
    /// Drift from repeat to repeat, common to all rows; half of it remains for the next.
    drift: f64,
    /// Share of samples that are slower by a third.
    stall: f64,
}

const QUIET: Machine = Machine { noise: 0.01, run: 0.005, drift: 0.003, stall: 0.0 };
const USUAL: Machine = Machine { noise: 0.03, run: 0.01, drift: 0.01, stall: 0.02 };
const NOISY: Machine = Machine { noise: 0.08, run: 0.03, drift: 0.05, stall: 0.08 };

/// The figures of a row, each with its sensitivity to noise, and whether it is less where the machine
/// is faster.
const FIGURES: [(&str, f64, f64, bool); 8] = [
    (metric::IOPS, 80e3, 1.0, false),
    (metric::MB_PER_S, 328.0, 1.0, false),
    (metric::P50_US, 390.0, 1.0, true),
    (metric::P99_US, 800.0, 2.5, true),
    (metric::P99_9_US, 2000.0, 6.0, true),
    (metric::CPU_US_PER_IO, 5.0, 1.0, true),
    (metric::CONTEXT_SWITCHES_PER_IO, 0.3, 2.0, true),
    (metric::IN_FLIGHT_AVG, 31.0, 1.0, false),
];

/// Returns a run of `rows` rows, each `fast` times as fast as usual.
fn run(dice: &mut Dice, machine: Machine, rows: usize, repeats: u32, fast: impl Fn(usize) -> f64) -> Report {
    let of_run = dice.normal(machine.run);
    let (mut drift, mut samples) = (0.0, vec![Vec::new(); rows]);
    for repeat in 0..repeats {
        drift = 0.5 * drift + dice.normal(machine.drift);
        for (row, samples) in samples.iter_mut().enumerate() {
            let stalled = if dice.even() < machine.stall { -0.4 } else { 0.0 };
            let speed = fast(row).ln() + of_run + drift + stalled + dice.normal(machine.noise);
            let figure = |(name, usual, feels, is_less): (&'static str, f64, f64, bool)| {
                let beside =
                    dice.normal(machine.noise * 0.3 * feels) + (feels - 1.0) * dice.normal(machine.noise);
                let own = (speed + beside) * if is_less { -1.0 } else { 1.0 };
                (name, usual * own.exp())
            };
            samples.push(Sample { repeat, metrics: FIGURES.into_iter().map(figure).collect() });
        }
    }
    let row = |(index, samples)| Row::from_samples(format!("row {index}"), samples);
    let experiment = Experiment::new("random", "").with_rows(samples.into_iter().enumerate().map(row));
    Report::new(Environment::default(), vec![experiment])
}

/// Returns the number of figures compared and of those called changed, over pairs of runs of the same
/// program.
fn alike(machine: Machine, repeats: u32) -> (usize, usize) {
    let mut counts = (0, 0);
    for seed in 0..RUNS {
        let mut dice = Dice(seed << 8 | u64::from(repeats));
        let [first, second] = [(); 2].map(|()| run(&mut dice, machine, 10, repeats, |_| 1.0));
        let found = compare(&first, &second).expect("the same experiment");
        counts = (counts.0 + found.compared, counts.1 + found.changed);
    }
    counts
}

/// Regression: of two runs of the same program with one repeat each, 20 to 58 of 60 to 88 figures were
/// "changed beyond noise".
#[test]
fn of_two_runs_of_the_same_program_at_most_one_figure_in_twenty_is_called_changed() {
    for (name, machine) in [("quiet", QUIET), ("usual", USUAL), ("noisy", NOISY)] {
        for repeats in [1, 2, 3, 5, 10] {
            let (compared, changed) = alike(machine, repeats);
            assert!(changed * 20 <= compared, "{name}, {repeats} repeats: {changed} of {compared}");
            assert!(repeats > 1 || changed == 0, "one repeat knows nothing of its noise: {changed}");
        }
    }
}

/// Returns the share of slower rows whose rate is called less.
fn found(machine: Machine, repeats: u32, slower: usize) -> f64 {
    let (mut found, mut all) = (0, 0);
    for seed in 0..RUNS {
        let mut dice = Dice(seed << 8 | 0xff);
        let first = run(&mut dice, machine, 10, repeats, |_| 1.0);
        let second = run(&mut dice, machine, 10, repeats, |row| if row < slower { 0.9 } else { 1.0 });
        let comparison = compare(&first, &second).expect("the same experiment");
        for row in 0..slower {
            let name = format!("row {row}");
            let changes =
                comparison.rows.iter().filter(|changed| changed.row == name).flat_map(|row| &row.changes);
            let is_rate = |change: &Change| change.metric == metric::IOPS && change.change == "less";
            all += 1;
            found += usize::from(changes.into_iter().any(is_rate));
        }
    }
    found as f64 / all as f64
}

#[test]
fn a_slowdown_of_a_tenth_is_found_nine_times_of_ten() {
    for (name, machine, repeats) in [("quiet", QUIET, 3), ("quiet", QUIET, 5), ("usual", USUAL, 10)] {
        for slower in [10, 2] {
            let share = found(machine, repeats, slower);
            assert!(share >= 0.9, "{name}, {repeats} repeats, {slower} of 10 rows: {share}");
        }
    }
}

/// An undecided figure reports the number of repeats needed, and with that number it is decided.
#[test]
fn the_recommended_number_of_repeats_suffices() {
    let mut dice = Dice(7);
    let [first, second] = [(); 2].map(|()| run(&mut dice, USUAL, 10, 1, |_| 1.0));
    let once = compare(&first, &second).expect("the same experiment");
    assert_eq!((once.changed, once.alike, once.unclear), (0, 0, once.compared));
    let needed = once.repeats_needed.expect("this noise can be averaged away");
    assert!((3..=20).contains(&needed), "{needed}");
    let [first, second] = [(); 2].map(|()| run(&mut dice, USUAL, 10, needed as u32, |_| 1.0));
    let rates = |report: &Report| report.experiments[0].rows.clone();
    let (first, second) = (rates(&first), rates(&second));
    let pairs: Vec<Pair<'_>> = first
        .iter()
        .zip(&second)
        .map(|(first, second)| Pair { metric: metric::IOPS, first, second })
        .collect();
    let clear = judge(&pairs).into_iter().filter(|outcome| !matches!(outcome, Outcome::Unclear(_))).count();
    assert!(clear * 2 >= pairs.len(), "{clear} of {}", pairs.len());
}
