//! The search for a shorter run that still fails.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

use forebay::internal::{ErrorExt, panic_words};
use forebay::{Error, Result};

use crate::world::World;

/// The choices that a world made, in order: which task or shard ran next, which fault struck, how long the
/// device took.
///
/// Choice 0 is always the simplest, and after the end of the sequence every choice is 0. So a shorter
/// sequence, or one with more zeros, is a simpler run. Its text form consists of decimal numbers and repeats:
/// `0x12 5 3x2`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    choices: Vec<u32>,
}

impl Schedule {
    pub(crate) fn new(choices: Vec<u32>) -> Schedule {
        Schedule { choices }
    }

    /// Returns the number of choices.
    pub fn len(&self) -> usize {
        self.choices.len()
    }

    /// Returns whether every choice is the simplest.
    pub fn is_empty(&self) -> bool {
        self.choices.is_empty()
    }

    pub(crate) fn choices(&self) -> &[u32] {
        &self.choices
    }

    /// Returns the measure of simplicity: the length, then the number of choices that are not 0.
    fn weight(&self) -> (usize, usize) {
        (self.choices.len(), self.choices.iter().filter(|&&choice| choice != 0).count())
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut blank = "";
        for run in self.choices.chunk_by(|a, b| a == b) {
            match run.len() {
                1 => write!(f, "{blank}{}", run[0])?,
                many => write!(f, "{blank}{}x{many}", run[0])?,
            }
            blank = " ";
        }
        Ok(())
    }
}

impl FromStr for Schedule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Schedule> {
        let bad =
            |word: &str| Error::invalid("schedule", format!("{word:?} is neither NUMBER nor NUMBERxTIMES"));
        let mut choices = Vec::new();
        for word in text.split_whitespace() {
            let (choice, times) = word.split_once('x').unwrap_or((word, "1"));
            let times: usize =
                times.parse().ok().filter(|&times| times <= 1 << 22).ok_or_else(|| bad(word))?;
            let choice: u32 = choice.parse().map_err(|_| bad(word))?;
            choices.extend(std::iter::repeat_n(choice, times));
        }
        Ok(Schedule { choices })
    }
}

/// The result of [`shrink`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Shrunk {
    /// The simplest schedule that still fails; [`World::replay`] runs it.
    pub schedule: Schedule,
    /// The failure's text.
    pub why: String,
    /// Choices of the run at the start of the search.
    pub choices_before: usize,
    /// Runs that were made.
    pub runs: usize,
}

impl fmt::Display for Shrunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (of {} choices {} are left, after {} runs; World::replay runs them: {:?})",
            self.why,
            self.choices_before,
            self.schedule.len(),
            self.runs,
            self.schedule.to_string()
        )
    }
}

/// Searches for a simpler run of `seed`'s failure: fewer choices, and more of them 0. `attempt` gives the
/// world its disks, runs the code under test, and fails by an error or a panic. At most `runs_max` runs are
/// made.
///
/// The result may fail for another reason than the first run did; it only has to fail.
///
/// ```
/// use forebay_sim::{self as sim, World};
///
/// // Fails when a draw is above 300.
/// let shrunk = sim::shrink(7, 200, |world| {
///     let drawn = world.run(async |_| (0..20).map(|_| sim::random(1000)).max()).unwrap();
///     if drawn > Some(300) { Err(format!("{drawn:?}")) } else { Ok(()) }
/// })
/// .expect("seed 7 fails");
/// assert!(shrunk.schedule.len() < shrunk.choices_before);
/// ```
///
/// Returns `None` when the seed does not fail, or made more choices than are recorded (4 million).
pub fn shrink<E: fmt::Display>(
    seed: u64,
    runs_max: usize,
    mut attempt: impl FnMut(&mut World) -> std::result::Result<(), E>,
) -> Option<Shrunk> {
    let mut runs = 0;
    let mut fails = |mut world: World| -> Option<(Schedule, String)> {
        runs += 1;
        let why = match catch_unwind(AssertUnwindSafe(|| attempt(&mut world))) {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("panicked: {}", panic_words(panic.as_ref())),
        };
        Some((world.schedule()?, why))
    };
    let (mut best, mut why) = fails(World::new(seed))?;
    let choices_before = best.len();
    let mut left = runs_max.saturating_sub(1);
    let mut chunk = best.len().next_power_of_two();
    while chunk > 0 && left > 0 {
        let mut improved = false;
        let mut at = 0;
        while at < best.len() && left > 0 {
            let end = (at + chunk).min(best.len());
            let mut found = false;
            for simpler in simpler(&best.choices, at, end) {
                if left == 0 {
                    break;
                }
                left -= 1;
                // The replay may make fewer choices than requested, so the choices it made are compared.
                if let Some((schedule, text)) = fails(World::replay(seed, &Schedule::new(simpler)))
                    && schedule.weight() < best.weight()
                {
                    (best, why) = (schedule, text);
                    found = true;
                    break;
                }
            }
            improved |= found;
            if !found {
                at = end;
            }
        }
        if !improved {
            chunk /= 2;
        }
        chunk = chunk.min(best.len().next_power_of_two());
        if best.is_empty() {
            break;
        }
    }
    Some(Shrunk { schedule: best, why, choices_before, runs })
}

/// Returns simpler sequences: without everything from `at` on, without the chunk, with the chunk at 0, with
/// it halved.
fn simpler(choices: &[u32], at: usize, end: usize) -> Vec<Vec<u32>> {
    let mut tries = vec![choices[..at].to_vec(), [&choices[..at], &choices[end..]].concat()];
    if choices[at..end].iter().any(|&choice| choice != 0) {
        let mut zeros = choices.to_vec();
        zeros[at..end].fill(0);
        tries.push(zeros);
    }
    tries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_survives_being_text() {
        let schedule = Schedule::new(vec![0, 0, 0, 5, 3, 3, 4_294_967_295]);
        assert_eq!(schedule.to_string(), "0x3 5 3x2 4294967295");
        assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule);
        assert!("5x99999999999".parse::<Schedule>().is_err());
        assert!("five".parse::<Schedule>().is_err());
        assert_eq!("".parse::<Schedule>().unwrap(), Schedule::default());
    }
}
