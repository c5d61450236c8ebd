//! Thousands of stores in simulated worlds. Several tasks put, delete, swap and read; disks fail and tear
//! writes; the power fails. After each life an oracle decides whether the contents of the store are possible.

#[path = "simulation/model.rs"]
mod model;
#[path = "simulation/program.rs"]
mod program;
#[path = "simulation/store.rs"]
mod store;

use std::time::Duration;

use forebay::sim::{self, Dirty, Fault, Lost, MetadataOrder, Profile, Rule, World};

use crate::program::{Plan, Shared};
use crate::store::{Shape, mix};

/// Faults of a world, besides power cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// No other faults.
    Crashes,
    /// Writes and flushes fail, the disk is full, reads fail.
    Errors,
}

const LIVES: u64 = 4;
/// Maximum runs to shrink a failing world.
const SHRINKS: usize = 300;

/// A random draw that only the seed determines, for the parameters of a world.
struct Draw {
    seed: u64,
    count: u64,
}

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.count += 1;
        mix(self.seed.wrapping_mul(0x1_0001).wrapping_add(self.count)) % n
    }
}

fn disk(draw: &mut Draw) -> Profile {
    let profile = match draw.below(5) {
        0 => Profile::optane(),
        1 => Profile::ideal(),
        2 => Profile::nand().sector(4096),
        _ => Profile::nand(),
    };
    let lost = [Lost::Subset, Lost::Subset, Lost::Prefix, Lost::Nothing][draw.below(4) as usize];
    let order = [MetadataOrder::Journal, MetadataOrder::Posix][draw.below(2) as usize];
    profile.at("/disk").lost(lost).metadata_order(order).torn(draw.below(4) != 0)
}

/// Returns the faults for writes and flushes of a life.
fn rules(draw: &mut Draw, trouble: Trouble) -> Vec<Rule> {
    let mut rules = Vec::new();
    for fault in [Fault::TornWrite, Fault::LostWrite, Fault::Reorder, Fault::Slow] {
        let ppm = if fault == Fault::Slow { 5_000 } else { 200_000 };
        if draw.below(3) == 0 {
            rules.push(Rule::new(fault).chance_ppm(ppm));
        }
    }
    if trouble != Trouble::Errors {
        return rules;
    }
    let faults = [Fault::WriteError, Fault::FlushError, Fault::FlushError, Fault::NoSpace, Fault::ShortWrite];
    let fault = faults[draw.below(5) as usize];
    let rule = match draw.below(3) {
        0 => Rule::new(fault).chance_ppm(5_000 + draw.below(50_000) as u32),
        1 => Rule::new(fault).nth(1 + draw.below(80)),
        _ => Rule::new(fault).nth(1 + draw.below(80)).times(1),
    };
    rules.push(rule.dirty(if draw.below(2) == 0 { Dirty::Lost } else { Dirty::Kept }));
    if draw.below(4) == 0 {
        rules.push(Rule::new(Fault::ReadError).chance_ppm(20_000));
    }
    rules
}

/// Runs one world from its beginning to its end. The error text describes any failure.
fn attempt(world: &mut World, trouble: Trouble) -> Result<(), String> {
    let mut draw = Draw { seed: world.seed(), count: 0 };
    world.add_disk(disk(&mut draw));
    let shape = Shape::of(world.seed());
    let shared = Shared::default();
    for life in 0..LIVES {
        let told = |text: String| format!("life {life} of a world of {trouble:?}, {shape:?}: {text}");
        world.clear_faults();
        let last = life + 1 == LIVES;
        let orderly = last || draw.below(6) == 0;
        let plan = Plan {
            shape,
            may_cut: !orderly,
            rules: if last { Vec::new() } else { rules(&mut draw, trouble) },
            from_the_start: draw.below(3) == 0,
            phases: if last { 1 } else { 1 + draw.below(3) },
            steps: 30,
        };
        if !orderly {
            match draw.below(4) {
                0 => world.power_cut_after(Duration::from_micros(draw.below(60_000))),
                1 | 2 => world.power_cut_at_operation(1 + draw.below(300)),
                _ => {}
            }
        }
        let run = world.run(async |engine| program::live(engine, shared.clone(), plan).await);
        match run {
            Ok(lived) => lived.map_err(told)?,
            Err(failure) if failure.is_power_cut() => {}
            Err(failure) => return Err(told(failure.to_string())),
        }
        world.clear_faults();
        if !orderly {
            world.power_cut();
        }
        world.reboot();
    }
    match shared.lock().acknowledged {
        0 => Err("nothing was acknowledged in all its lives".to_string()),
        _ => Ok(()),
    }
}

/// Runs many worlds. Shrinks the first that fails as far as possible, and prints it.
fn explore(trouble: Trouble, seeds: u64) {
    let tried = sim::explore(0..seeds, |seed| attempt(&mut World::new(seed), trouble));
    if let Err(failing) = tried {
        // A run that repeats one seed is not shrunk: its purpose is to see that seed.
        let runs = if std::env::var_os("FOREBAY_SIM_SEED").is_some() { 0 } else { SHRINKS };
        let shrunk = (runs > 0).then(|| sim::shrink(failing.seed(), runs, |world| attempt(world, trouble)));
        let shrunk = shrunk.flatten().map(|shrunk| format!("\n\n  shortened: {shrunk}")).unwrap_or_default();
        panic!("{failing}{shrunk}");
    }
}

#[test]
fn crashes_lose_nothing_that_was_acknowledged() {
    explore(Trouble::Crashes, 150);
}

#[test]
fn errors_make_the_store_read_only_and_opening_it_again_recovers() {
    explore(Trouble::Errors, 150);
}

/// The same seed gives the same run.
#[test]
fn worlds_repeat_themselves() {
    let digest = |seed| {
        let mut world = World::new(seed);
        attempt(&mut world, Trouble::Errors).expect("a world that is as it must be");
        (world.history_digest(), world.steps())
    };
    assert_eq!(digest(3), digest(3));
}

/// Test of the oracle: a store with a deliberate fault is caught in the worlds that CI runs, and the correct
/// store passes the same ones.
#[cfg(feature = "_mutants")]
mod broken {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use forebay_kv::mutants::{self, Mutant};

    use super::*;

    /// No more seeds than CI runs.
    const SEEDS: u64 = 150;

    fn is_caught(mutant: Mutant) {
        for seed in 0..SEEDS {
            let broken = || mutants::with(mutant, || attempt(&mut World::new(seed), Trouble::Crashes));
            match catch_unwind(AssertUnwindSafe(broken)) {
                Ok(Ok(())) => continue,
                Ok(Err(why)) => println!("seed {seed}: {why}"),
                Err(_) => println!("seed {seed}: panicked"),
            }
            attempt(&mut World::new(seed), Trouble::Crashes).expect("the store as it is");
            return;
        }
        panic!("{mutant:?} survived {SEEDS} seeds");
    }

    #[test]
    fn a_manifest_that_names_a_table_too_soon_is_caught() {
        is_caught(Mutant::TableNotSynced);
    }

    #[test]
    fn deletions_that_are_dropped_too_soon_are_caught() {
        is_caught(Mutant::DeletionDroppedTooSoon);
    }

    #[test]
    fn inputs_that_are_removed_too_soon_are_caught() {
        is_caught(Mutant::InputsRemovedTooSoon);
    }

    #[test]
    fn what_is_visible_before_it_is_durable_is_caught() {
        is_caught(Mutant::VisibleBeforeDurable);
    }

    #[test]
    fn a_log_that_is_cut_too_soon_is_caught() {
        is_caught(Mutant::LogCutTooSoon);
    }
}
