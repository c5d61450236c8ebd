//! Many worlds, one after the other, and how to come back to the one that failed.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::base::error::panic_words;

/// The environment variable that names the one seed to try.
const SEED_VARIABLE: &str = "FOREBAY_SIM_SEED";

/// The first seed that failed; its text tells why and how to repeat it.
#[derive(Clone, Debug)]
pub struct Failing {
    seed: u64,
    tried: u64,
    why: String,
}

impl Failing {
    /// The seed that failed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// What the attempt said, or the words of its panic.
    pub fn why(&self) -> &str {
        &self.why
    }
}

impl fmt::Display for Failing {
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

impl std::error::Error for Failing {}

/// Calls `attempt` with each seed until one fails, by an error or a panic. Answers how many were tried.
///
/// With `FOREBAY_SIM_SEED=17` in the environment only seed 17 is tried: that is the command that a failure prints.
///
/// ```
/// use forebay::sim::{self, Profile, World};
/// use forebay::Open;
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
/// [`Failing`] for the first seed that failed.
pub fn explore<E: fmt::Display>(
    seeds: impl IntoIterator<Item = u64>,
    mut attempt: impl FnMut(u64) -> Result<(), E>,
) -> Result<u64, Failing> {
    let wanted = std::env::var(SEED_VARIABLE).ok().and_then(|text| text.trim().parse().ok());
    let seeds: &mut dyn Iterator<Item = u64> = match wanted {
        Some(seed) => &mut std::iter::once(seed),
        None => &mut seeds.into_iter(),
    };
    let mut tried = 0;
    for seed in seeds {
        let why = match catch_unwind(AssertUnwindSafe(|| attempt(seed))) {
            Ok(Ok(())) => {
                tried += 1;
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("panicked: {}", panic_words(panic.as_ref())),
        };
        return Err(Failing { seed, tried, why });
    }
    Ok(tried)
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
