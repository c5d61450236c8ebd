//! Stores in simulated worlds. Several tasks put, delete, swap and read; disks fail and tear
//! writes; the power fails. After each life an oracle decides whether the contents of the store are possible.

pub(crate) mod model;
pub(crate) mod program;
pub(crate) mod store;

use forebay_sim::World;
use forebay_test::worlds::{self, Draw, Trouble};

use crate::simulation::program::{Plan, SharedModel};
use crate::simulation::store::Shape;

const LIVES: u64 = 4;

/// Runs one world. The error text describes any failure.
fn attempt(world: &mut World, trouble: Trouble) -> Result<(), String> {
    let mut draw = Draw::new(world.seed());
    world.add_disk(worlds::disk(&mut draw));
    let shape = Shape::of(world.seed());
    let shared = SharedModel::default();
    for life in 0..LIVES {
        let told = |text: String| format!("life {life} of a world of {trouble:?}, {shape:?}: {text}");
        let last = life + 1 == LIVES;
        let orderly = last || draw.below(6) == 0;
        let plan = Plan {
            shape: shape.in_life(life),
            may_cut: !orderly,
            rules: if last { Vec::new() } else { trouble.faults(&mut draw, 5_000, 80) },
            from_the_start: draw.below(3) == 0,
            phases: if last { 1 } else { 1 + draw.below(3) },
            steps: 30,
        };
        if !orderly {
            worlds::order_cut(world, &mut draw, 0..60_000, 300);
        }
        let live = async |engine| program::live(engine, shared.clone(), plan).await;
        worlds::live(world, !orderly, live).map_err(told)?;
    }
    match shared.lock().acknowledged {
        0 => Err("nothing was acknowledged in all its lives".to_string()),
        _ => Ok(()),
    }
}

fn explore(trouble: Trouble, seeds: u64) {
    worlds::explore(seeds, |world| attempt(world, trouble));
}

#[test]
fn crashes_lose_nothing_that_was_acknowledged() {
    explore(Trouble::Crashes, 75);
}

#[test]
fn errors_make_the_store_read_only_and_opening_it_again_recovers() {
    explore(Trouble::Errors, 75);
}

/// The same seed gives the same run.
#[test]
fn worlds_repeat_themselves() {
    worlds::repeats_itself(|world| attempt(world, Trouble::Errors));
}

/// Test of the oracle: a store with a deliberate fault is caught in the worlds that CI runs, and the correct store passes the same
/// worlds.
#[cfg(feature = "_mutants")]
mod broken {
    use forebay_kv::mutants::{self, Mutant};

    use super::*;

    /// No more seeds than CI runs.
    const SEEDS: u64 = 150;

    fn is_caught(mutant: Mutant) {
        let attempt = |world: &mut World| attempt(world, Trouble::Crashes);
        worlds::is_caught(mutant, SEEDS, |run| mutants::with(mutant, run), attempt);
    }

    #[test]
    fn a_manifest_that_names_a_table_too_soon_is_caught() {
        is_caught(Mutant::TableNotSynced);
        is_caught(Mutant::TablesNotNamed);
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
