//! Runs of many worlds, one after the other, and the command that repeats one that failed.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay::internal::panic_words;

/// The environment variable that names the one seed to try.
const SEED_VARIABLE: &str = "FOREBAY_SIM_SEED";

/// The environment variable that says how many seeds to try.
const SEEDS_VARIABLE: &str = "FOREBAY_SIM_SEEDS";

/// The environment variable that says how many seeds to try at most.
const MAX_VARIABLE: &str = "FOREBAY_SIM_SEEDS_MAX";

/// The first seed that failed; its text says why and how to repeat it.
#[derive(Clone, Debug)]
pub struct FailedSeed {
    seed: u64,
    tried: u64,
    why: String,
}

impl FailedSeed {
    /// Returns the seed that failed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the error of the attempt, or the message of its panic.
    pub fn why(&self) -> &str {
        &self.why
    }
}

impl fmt::Display for FailedSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {} fails ({} seeds before it did not): {}\n  to repeat it: {}",
            self.seed,
            self.tried,
            self.why,
            replay_command(self.seed)
        )
    }
}

impl std::error::Error for FailedSeed {}

/// Calls `attempt` with each seed until one fails, by an error or a panic, and returns the number of seeds
/// tried.
///
/// Three environment variables replace `seeds`. `FOREBAY_SIM_SEED=17` tries seed 17 alone: that is the command that a failure
/// prints. `FOREBAY_SIM_SEEDS=20000` tries 20,000 seeds: the first of `seeds`, and then those after the last of them.
/// `FOREBAY_SIM_SEEDS_MAX=100` tries the first 100 of `seeds`, or all of fewer.
///
/// ```
/// use forebay::Open;
/// use forebay_sim::{self as sim, Profile, World};
///
/// let tried = sim::explore(0..3, |seed| {
///     let mut world = World::new(seed).disk(Profile::nand());
///     world.run(async |engine| {
///         let file = engine.open("/log", Open::create()).await?;
///         file.write(0, vec![7; 4096]).await
///     })??;
///     Ok::<(), Box<dyn std::error::Error>>(())
/// });
/// assert_eq!(tried.unwrap(), 3);
/// ```
///
/// # Errors
/// [`FailedSeed`] for the first seed that failed.
pub fn explore<E: fmt::Display>(
    seeds: impl IntoIterator<Item = u64>,
    mut attempt: impl FnMut(u64) -> Result<(), E>,
) -> Result<u64, FailedSeed> {
    let mut tried = 0;
    for seed in chosen(seeds, number(SEED_VARIABLE), number(SEEDS_VARIABLE), number(MAX_VARIABLE)) {
        let why = match catch_unwind(AssertUnwindSafe(|| attempt(seed))) {
            Ok(Ok(())) => {
                tried += 1;
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("panicked: {}", panic_words(panic.as_ref())),
        };
        return Err(FailedSeed { seed, tried, why });
    }
    Ok(tried)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.trim().parse().ok())
}

/// Returns the seeds to try: `only` one, the first `count`, or at most `max` of those given.
fn chosen<'a>(
    seeds: impl IntoIterator<Item = u64, IntoIter: 'a>,
    only: Option<u64>,
    count: Option<u64>,
    max: Option<u64>,
) -> Box<dyn Iterator<Item = u64> + 'a> {
    let mut given = seeds.into_iter();
    match (only, count) {
        (Some(seed), _) => Box::new(std::iter::once(seed)),
        (None, Some(count)) => {
            let mut next = 0;
            Box::new((0..count).map(move |_| {
                let seed = given.next().unwrap_or(next);
                next = seed.wrapping_add(1);
                seed
            }))
        }
        (None, None) => match max.and_then(|max| usize::try_from(max).ok()) {
            Some(max) => Box::new(given.take(max)),
            None => Box::new(given),
        },
    }
}

/// The command that tries one seed again: of the test that runs, or of the program.
pub(crate) fn replay_command(seed: u64) -> String {
    let package = std::env::var("CARGO_PKG_NAME").ok();
    let thread = std::thread::current();
    match (package, thread.name()) {
        (Some(package), Some(test)) if test != "main" => {
            format!(
                "{SEED_VARIABLE}={seed} cargo test -p {package} --all-features {test} -- --exact --nocapture"
            )
        }
        _ => {
            let words: Vec<String> = std::env::args().collect();
            format!("{SEED_VARIABLE}={seed} {}", words.join(" "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::chosen;

    #[test]
    fn one_seed_or_as_many_as_asked_for_replace_those_given() {
        let seeds = |only, count, max| chosen(5..8, only, count, max).collect::<Vec<_>>();
        assert_eq!(seeds(None, None, None), [5, 6, 7]);
        assert_eq!(seeds(None, Some(2), None), [5, 6]);
        assert_eq!(seeds(None, Some(5), None), [5, 6, 7, 8, 9]);
        assert_eq!(seeds(Some(3), Some(5), None), [3]);
        assert_eq!(seeds(None, None, Some(2)), [5, 6]);
        assert_eq!(seeds(None, None, Some(9)), [5, 6, 7]);
        assert_eq!(seeds(None, Some(5), Some(2)), [5, 6, 7, 8, 9]);
    }
}
