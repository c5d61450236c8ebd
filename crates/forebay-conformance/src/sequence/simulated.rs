//! Sequences in a simulated world: faults, power cuts, and the state afterwards.

use std::fmt;

use forebay::{Config, Mode, WorkerRings};
use forebay_sim::{Dirty, Failure, Fault, Loss, MetadataOrder, Profile, Rule, World};

use super::generate::generate;
use super::session::Session;
use super::step::{Access, NAMES, Step};
use super::{Mismatch, Report};

/// Numbers that a seed determines for ever, in every process and on every machine.
#[derive(Clone, Debug)]
struct Numbers(u64);

impl Numbers {
    fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    /// Returns a number below `n` (SplitMix64).
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * u128::from(n)) >> 64) as u64
    }
}

/// Returns the sequence of `count` steps that belongs to a seed.
pub fn seeded(seed: u64, count: usize) -> Vec<Step> {
    let mut numbers = Numbers::new(seed);
    generate(&mut |n| numbers.below(n), count)
}

/// The reason why a sequence failed in a world.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SimulationError {
    /// A result that must not occur.
    Mismatch(Mismatch),
    /// The run did not end normally.
    Failure(Failure),
}

impl fmt::Display for SimulationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SimulationError::Mismatch(mismatch) => mismatch.fmt(f),
            SimulationError::Failure(failure) => failure.fmt(f),
        }
    }
}

impl std::error::Error for SimulationError {}

impl From<Mismatch> for SimulationError {
    fn from(mismatch: Mismatch) -> SimulationError {
        SimulationError::Mismatch(mismatch)
    }
}

impl From<Failure> for SimulationError {
    fn from(failure: Failure) -> SimulationError {
        SimulationError::Failure(failure)
    }
}

/// Follows the steps in a world of this seed, in one to three lives, and returns the counts. Each life ends with a power cut, at
/// some operation or after its last step, or with a restart. Then everything is checked. Odd seeds have faults, even seeds do not.
/// In every third seed's world operations use rings.
///
/// # Errors
/// [`SimulationError`]: the first result that must not occur.
pub fn simulate(seed: u64, steps: &[Step]) -> Result<Report, SimulationError> {
    let mut numbers = Numbers::new(!seed);
    let rules = if seed % 2 == 1 { rules(&mut numbers) } else { Vec::new() };
    let mut world = World::new(seed).disk(profile(&mut numbers)).steps_max(1_000_000);
    if seed % 3 == 2 {
        world = world.config(Config::new().worker_rings(WorkerRings::Always));
    }
    let mut session = Session::new("/");
    let visible = [Fault::ReadError, Fault::WriteError, Fault::FlushError, Fault::NoSpace];
    let lives = 1 + numbers.below(3) as usize;
    let length = steps.len().div_ceil(lives).max(1);
    for (life, steps) in steps.chunks(length).enumerate() {
        rules.iter().for_each(|rule| world.inject(rule.clone()));
        session.faults(rules.iter().any(|rule| visible.contains(&rule.fault())));
        let end = numbers.below(4);
        if end == 3 {
            world.power_cut_at_operation(1 + numbers.below(4 * steps.len() as u64));
        }
        let first = life * length;
        let opens = opens(&mut numbers, life);
        let followed = world.run(async |engine| {
            session.run(&engine, &opens, first).await?;
            session.run(&engine, steps, first).await
        });
        match followed {
            Ok(followed) => {
                followed?;
                if end == 0 {
                    session.restart()?;
                } else {
                    world.power_cut();
                    session.power_cut()?;
                }
            }
            Err(failure) if failure.is_power_cut() => session.power_cut()?,
            Err(failure) => return Err(failure.into()),
        }
        world.clear_faults();
        session.faults(false);
        world.reboot();
        // A cut that did not happen in this life must not happen in the next one.
        world.power_cut_at_operation(u64::MAX);
        world.run(async |engine| session.verify(&engine).await)??;
    }
    Ok(session.report())
}

/// Returns the steps that open files in a later life, so that its steps have something to work on.
fn opens(numbers: &mut Numbers, life: usize) -> Vec<Step> {
    let mut open = |handle| {
        let mode = [Mode::Direct, Mode::Buffered][numbers.below(2) as usize];
        Step::Open { handle, name: numbers.below(u64::from(NAMES)) as u8, access: Access::Create, mode }
    };
    if life == 0 { Vec::new() } else { (0..2).map(&mut open).collect() }
}

fn profile(numbers: &mut Numbers) -> Profile {
    let profile = match numbers.below(4) {
        0 => Profile::ideal(),
        1 => Profile::nand(),
        2 => Profile::optane(),
        _ => Profile::cloud(),
    };
    let lost = [Loss::Subset, Loss::Prefix, Loss::Nothing][numbers.below(3) as usize];
    let order = [MetadataOrder::Journal, MetadataOrder::Posix][numbers.below(2) as usize];
    let profile = profile.lost(lost).metadata_order(order).torn(numbers.below(2) == 0);
    // A small cache: some writes are durable before a sync requests it.
    if numbers.below(4) == 0 { profile.write_cache(64 << 10) } else { profile }
}

fn rules(numbers: &mut Numbers) -> Vec<Rule> {
    let kinds: [(Fault, u32); 12] = [
        (Fault::ReadError, 60_000),
        (Fault::WriteError, 80_000),
        (Fault::FlushError, 200_000),
        (Fault::FlushError, 500_000),
        (Fault::NoSpace, 50_000),
        (Fault::ShortRead, 300_000),
        (Fault::ShortWrite, 300_000),
        (Fault::Slow, 50_000),
        (Fault::CancelRace, 500_000),
        (Fault::TornWrite, 300_000),
        (Fault::LostWrite, 300_000),
        (Fault::Reorder, 300_000),
    ];
    (0..1 + numbers.below(4))
        .map(|_| {
            let (fault, ppm) = kinds[numbers.below(kinds.len() as u64) as usize];
            let dirty = if numbers.below(2) == 0 { Dirty::Lost } else { Dirty::Kept };
            Rule::new(fault).chance_ppm(ppm).dirty(dirty)
        })
        .collect()
}
