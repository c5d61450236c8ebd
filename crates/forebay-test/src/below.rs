//! What may happen to the layer below a log or a store, before, during and after one of its calls. In a simulated world.

use std::fmt::{self, Debug, Display};
use std::future::Future;

use forebay::Engine;
use forebay_sim::{self as sim, Fault, Rule, World};

use crate::worlds;

/// Seeds of each row of a table.
const SEEDS: u64 = 4;

/// The event that strikes the layer below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// Nothing.
    Works,
    /// The program's handle of the engine is dropped.
    EngineDropped,
    /// The engine is closed.
    EngineClosed,
    /// Its calls fail from now on.
    Fails(Fault),
}

/// The moment of the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before the call.
    Before,
    /// After the call was polled some times.
    During,
    /// After the call has returned.
    After,
}

impl Below {
    /// All variants.
    pub const ALL: [Self; 6] = [
        Self::Works,
        Self::EngineDropped,
        Self::EngineClosed,
        Self::Fails(Fault::WriteError),
        Self::Fails(Fault::FlushError),
        Self::Fails(Fault::NoSpace),
    ];

    /// Returns the engine if the program still has it.
    async fn strike(self, engine: Engine) -> Option<Engine> {
        match self {
            Self::Works => {}
            Self::EngineDropped => return None,
            Self::EngineClosed => {
                let _ = engine.close().await;
                return None;
            }
            Self::Fails(fault) => sim::inject(Rule::new(fault)),
        }
        Some(engine)
    }
}

impl Moment {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Before, Self::During, Self::After];
}

/// A case of a table: one call, and what happens to the layer below.
#[derive(Clone, Copy, Debug)]
pub struct Case<C> {
    /// The call.
    pub call: C,
    /// The event.
    pub below: Below,
    /// The moment of the event.
    pub moment: Moment,
    /// The number of polls before [`Moment::During`].
    pub polls: usize,
    /// The seed of the case's world.
    pub seed: u64,
}

impl<C: Debug> Display for Case<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {:?} {:?}, seed {}", self.call, self.below, self.moment, self.seed)
    }
}

impl<C: Debug> Case<C> {
    /// Runs the case in a world whose power fails after the call: `act` prepares all and makes the call [around](Case::around) the
    /// event, `find` inspects the disk afterwards. Returns the outputs of both.
    ///
    /// # Panics
    /// If the world failed.
    pub fn run<T, F>(
        &self,
        act: impl AsyncFnOnce(Engine) -> T,
        find: impl AsyncFnOnce(Engine, &T) -> F,
    ) -> (T, F) {
        let mut world = World::new(self.seed).disk(worlds::ssd(self.seed));
        let acted = world.run(act).unwrap_or_else(|failure| panic!("{self}: {failure}"));
        world.clear_faults();
        world.power_cut();
        world.reboot();
        let found = world.run(async |engine| find(engine, &acted).await);
        (acted, found.unwrap_or_else(|failure| panic!("{self}: {failure}")))
    }

    /// Makes the call, with the event at its moment. Returns the call's output.
    pub async fn around<T>(&self, engine: Engine, call: impl Future<Output = T>) -> T {
        match self.moment {
            Moment::Before => {
                let _engine = self.below.strike(engine).await;
                call.await
            }
            Moment::During => {
                let going = sim::frozen_after(self.polls, Box::pin(call)).await;
                let _engine = self.below.strike(engine).await;
                match going {
                    Ok(done) => done,
                    Err(going) => going.await,
                }
            }
            Moment::After => {
                let done = call.await;
                drop(self.below.strike(engine).await);
                done
            }
        }
    }
}

/// Runs all cases of these calls. `case` judges what was found, and returns the call's error if it may be. Returns the calls that failed at
/// least once, with what had happened.
///
/// # Panics
/// If a call failed although nothing had happened yet, or no call failed with one of `failing`.
pub fn table<C: Copy + Debug, E: Display>(
    calls: &[C],
    failing: &[Below],
    case: impl Fn(Case<C>) -> Result<(), E>,
) -> Vec<(C, Below)> {
    let mut failed = Vec::new();
    for &call in calls {
        for below in Below::ALL {
            for moment in Moment::ALL {
                let is_harmless =
                    matches!(below, Below::Works | Below::EngineDropped) || moment == Moment::After;
                let mut successes = 0;
                for seed in 0..SEEDS {
                    let row = Case { call, below, moment, polls: 1 + seed as usize, seed };
                    match case(row) {
                        Ok(()) => successes += 1,
                        Err(error) => assert!(!is_harmless, "{row}: it failed before its fault: {error}"),
                    }
                }
                println!("{call:?}, {below:?} {moment:?}: {successes} of {SEEDS} succeed");
                if successes < SEEDS {
                    failed.push((call, below));
                }
            }
        }
    }
    for below in failing {
        let has_failed = failed.iter().any(|(_, of)| of == below);
        assert!(has_failed, "{below:?}: no call failed, so this shows little");
    }
    failed
}
