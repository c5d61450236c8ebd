//! Simulated worlds that only their seed determines.

use std::fmt::Debug;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use forebay::Engine;
use forebay_sim::{self as sim, Dirty, Fault, Loss, MetadataOrder, Profile, Rule, World};

pub use crate::draw::{Draw, mix};

/// Maximum runs to shrink a failing world.
const SHRINKS: usize = 300;

/// Returns a disk of a random kind at `/disk`, with a random behaviour at a power cut.
pub fn disk(draw: &mut Draw) -> Profile {
    let profile = match draw.below(5) {
        0 => Profile::optane(),
        1 => Profile::ideal(),
        2 => Profile::nand().sector(4096),
        _ => Profile::nand(),
    };
    let lost = [Loss::Subset, Loss::Subset, Loss::Prefix, Loss::Nothing][draw.below(4) as usize];
    let order = [MetadataOrder::Journal, MetadataOrder::Posix][draw.below(2) as usize];
    profile.at("/disk").lost(lost).metadata_order(order).torn(draw.below(4) != 0)
}

/// Returns the order of metadata of a seed's [`ssd`].
pub fn order(seed: u64) -> MetadataOrder {
    [MetadataOrder::Journal, MetadataOrder::Posix][(seed % 2) as usize]
}

/// Returns an SSD at `/disk`.
pub fn ssd(seed: u64) -> Profile {
    Profile::nand().at("/disk").metadata_order(order(seed))
}

/// Returns faults that a device does not report: torn, lost, reordered and slow writes.
pub fn silent_faults(draw: &mut Draw) -> Vec<Rule> {
    let mut rules = Vec::new();
    for fault in [Fault::TornWrite, Fault::LostWrite, Fault::Reorder, Fault::Slow] {
        let ppm = if fault == Fault::Slow { 5_000 } else { 200_000 };
        if draw.below(3) == 0 {
            rules.push(Rule::new(fault).chance_ppm(ppm));
        }
    }
    rules
}

/// Returns faults that calls report: writes and flushes fail, the disk is full, reads fail. The error strikes
/// with a chance of `ppm` to 11 times that, or once or always from one of the first `calls` calls on.
pub fn reported_faults(draw: &mut Draw, ppm: u32, calls: u64) -> Vec<Rule> {
    let faults = [Fault::WriteError, Fault::FlushError, Fault::FlushError, Fault::NoSpace, Fault::ShortWrite];
    let fault = faults[draw.below(5) as usize];
    let rule = match draw.below(3) {
        0 => Rule::new(fault).chance_ppm(ppm + draw.below(10 * u64::from(ppm)) as u32),
        1 => Rule::new(fault).nth(1 + draw.below(calls)),
        _ => Rule::new(fault).nth(1 + draw.below(calls)).times(1),
    };
    let mut rules = vec![rule.dirty(if draw.below(2) == 0 { Dirty::Lost } else { Dirty::Kept })];
    if draw.below(4) == 0 {
        rules.push(Rule::new(Fault::ReadError).chance_ppm(20_000));
    }
    rules
}

/// Faults of a world, in addition to power cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Only faults that the disk does not report.
    Crashes,
    /// Calls fail.
    Errors,
}

impl Trouble {
    /// Returns the faults of a life: [`silent_faults`], and [`reported_faults`] with these arguments where calls fail.
    pub fn faults(self, draw: &mut Draw, ppm: u32, calls: u64) -> Vec<Rule> {
        let mut rules = silent_faults(draw);
        if self == Trouble::Errors {
            rules.extend(reported_faults(draw, ppm, calls));
        }
        rules
    }
}

/// Orders a power cut for the next life, in three of four lives: after a time in microseconds, or at one of the first `operations`.
pub fn order_cut(world: &mut World, draw: &mut Draw, us: Range<u64>, operations: u64) {
    match draw.below(4) {
        0 => world.power_cut_after(Duration::from_micros(us.start + draw.below(us.end - us.start))),
        1 | 2 => world.power_cut_at_operation(1 + draw.below(operations)),
        _ => {}
    }
}

/// Runs one life of a world, to its end or until the power fails, and starts the machine again: after a power cut, if `is_cut`.
/// The life's faults end with it. Returns whether the power failed within the life.
///
/// # Errors
/// That of the life, or the failure of its run.
pub fn live(
    world: &mut World,
    is_cut: bool,
    life: impl AsyncFnOnce(Engine) -> Result<(), String>,
) -> Result<bool, String> {
    let was_cut = match world.run(life) {
        Ok(lived) => lived.map(|()| false)?,
        Err(failure) if failure.is_power_cut() => true,
        Err(failure) => return Err(failure.to_string()),
    };
    world.clear_faults();
    if is_cut {
        world.power_cut();
    }
    world.reboot();
    Ok(was_cut)
}

/// Returns whether a single world runs (`FOREBAY_SIM_SEED`), which need not show everything that many worlds show together.
pub fn is_single() -> bool {
    std::env::var_os("FOREBAY_SIM_SEED").is_some()
}

/// Runs the worlds of the first `seeds` seeds, in an optimised build of four times as many. Shrinks the first that fails as far as
/// possible.
///
/// # Panics
/// If a world failed; the text has its seed and the shrunk world.
pub fn explore(seeds: u64, attempt: impl Fn(&mut World) -> Result<(), String>) {
    let seeds = 4 * seeds / crate::one_in_daily(4) as u64;
    let tried = sim::explore(0..seeds, |seed| attempt(&mut World::new(seed)));
    if let Err(failing) = tried {
        // A run that repeats one seed must show that seed unchanged.
        let runs = if is_single() { 0 } else { SHRINKS };
        let shrunk = (runs > 0).then(|| sim::shrink(failing.seed(), runs, &attempt));
        let shrunk = shrunk.flatten().map(|shrunk| format!("\n\n  shortened: {shrunk}")).unwrap_or_default();
        panic!("{failing}{shrunk}");
    }
}

/// Checks that the same seed gives the same run.
///
/// # Panics
/// If two runs of seed 3 differ, or the world fails.
pub fn repeats_itself(attempt: impl Fn(&mut World) -> Result<(), String>) {
    let digest = |seed| {
        let mut world = World::new(seed);
        attempt(&mut world).expect("a world without a fault");
        (world.history_digest(), world.steps())
    };
    assert_eq!(digest(3), digest(3));
}

/// Checks that one of the first `seeds` worlds fails with the fault that `broken` injects, and not without it. `broken` runs its
/// argument with the mutant.
///
/// # Panics
/// If the mutant survives all seeds, or its world fails without the mutant.
pub fn is_caught(
    mutant: impl Debug,
    seeds: u64,
    broken: impl Fn(&dyn Fn() -> Result<(), String>) -> Result<(), String>,
    attempt: impl Fn(&mut World) -> Result<(), String>,
) {
    for seed in 0..seeds {
        let run = || attempt(&mut World::new(seed));
        match catch_unwind(AssertUnwindSafe(|| broken(&run))) {
            Ok(Ok(())) => continue,
            Ok(Err(why)) => println!("seed {seed}: {why}"),
            Err(_) => println!("seed {seed}: panicked"),
        }
        run().expect("the same world without the mutant");
        return;
    }
    panic!("{mutant:?} survived {seeds} seeds");
}
