//! Logs in simulated worlds: several tasks append, truncate, read; disks fail, lie and decay;
//! the power fails. After each life an oracle decides whether the recovered contents, and recovery's report,
//! are possible.

pub(crate) mod damage;
pub(crate) mod groups;
pub(crate) mod log;
pub(crate) mod model;
pub(crate) mod program;
pub(crate) mod records;

use forebay_sim::{Rule, World};
use forebay_test::worlds::{self, Draw};

use crate::simulation::log::Shape;
use crate::simulation::model::Model;
use crate::simulation::program::{Plan, SharedModel};

/// The faults that strike the logs of a world, in addition to power cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// Power cuts only.
    Crashes,
    /// Writes and flushes fail, the disk is full, reads fail.
    Errors,
    /// Flushes succeed without effect, until the power fails.
    Lies,
    /// A group, or a place without one, is damaged while the log is closed.
    Damage,
}

const LIVES: u64 = 4;

/// Returns the faults of writes and flushes in a life.
fn rules(draw: &mut Draw, trouble: Trouble) -> Vec<Rule> {
    let mut rules = worlds::silent_faults(draw);
    if trouble == Trouble::Errors {
        rules.extend(worlds::reported_faults(draw, 10_000, 40));
    }
    rules
}

/// Runs one world. Returns any fault as text.
fn attempt(world: &mut World, trouble: Trouble) -> Result<(), String> {
    let mut draw = Draw::new(world.seed());
    let shape = Shape::of(world.seed());
    world.add_disk(shape.disk(worlds::disk(&mut draw)));
    let shared = SharedModel::new(Model::new(shape.first_lsn));
    for life in 0..LIVES {
        let told = |text: String| format!("life {life} of a world of {trouble:?}, {shape:?}: {text}");
        let last = life + 1 == LIVES;
        let plan = Plan {
            shape,
            rules: if last { Vec::new() } else { rules(&mut draw, trouble) },
            from_the_start: draw.below(3) == 0,
            lies: trouble == Trouble::Lies && !last,
            phases: if last { 1 } else { 1 + draw.below(4) },
        };
        let orderly = last || (draw.below(5) == 0 && !plan.lies);
        if !orderly {
            worlds::order_cut(world, &mut draw, 200..30_200, 150);
        }
        match worlds::live(world, !orderly, async |engine| program::live(engine, shared.clone(), plan).await)
        {
            Err(text) if text == program::GONE => return Ok(()),
            lived => lived.map_err(told)?,
        };
        shared.lock().next_life();
        // One damage at a time: no more until the log was opened.
        let whole = shared.lock().hit.is_none();
        if trouble == Trouble::Damage && !last && draw.below(3) != 0 && whole {
            let hit = world.run(async |engine| damage::strike(&engine).await);
            match hit.map_err(|failure| failure.to_string())? {
                Ok(hit) => shared.lock().hit = Some(hit),
                // The log does not exist yet.
                Err(error) if error.raw_os_error() == Some(2) => {}
                Err(error) => return Err(told(format!("damaging: {error}"))),
            }
        }
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
    explore(Trouble::Crashes, 200);
}

#[test]
fn errors_poison_the_log_and_opening_it_again_recovers() {
    explore(Trouble::Errors, 160);
}

/// The promises of an honest log when flushes lie. Records acknowledged before the lies are there. Other
/// missing records are at the end or are named. No record is there that was never appended.
#[test]
fn lying_flushes_take_the_end_and_nothing_else() {
    explore(Trouble::Lies, 100);
}

#[test]
fn damage_is_named_or_at_most_the_last_group() {
    explore(Trouble::Damage, 160);
}

/// The same seed is the same run.
#[test]
fn worlds_repeat_themselves() {
    worlds::repeats_itself(|world| attempt(world, Trouble::Errors));
}

/// Checks the oracle itself: the worlds that CI runs catch a log that is broken on purpose, and the intact log survives the same
/// worlds.
#[cfg(feature = "_mutants")]
mod broken {
    use forebay_wal::mutants::{self, Mutant};

    use super::*;

    /// Fewer seeds than CI runs.
    const SEEDS: u64 = 250;

    fn is_caught(mutant: Mutant, trouble: Trouble) {
        worlds::is_caught(mutant, SEEDS, |run| mutants::with(mutant, run), |world| attempt(world, trouble));
    }

    #[test]
    fn a_watermark_that_is_ignored_is_caught() {
        is_caught(Mutant::WatermarkIgnored, Trouble::Damage);
    }

    #[test]
    fn a_poison_that_is_ignored_is_caught() {
        is_caught(Mutant::PoisonIgnored, Trouble::Errors);
    }

    /// Where a write with FUA persists its own sectors alone.
    #[test]
    fn a_segment_whose_flush_is_left_to_its_groups_is_caught() {
        is_caught(Mutant::SegmentNotFlushed, Trouble::Crashes);
    }

    #[test]
    fn values_that_are_not_carried_over_are_caught() {
        is_caught(Mutant::ValuesNotCarried, Trouble::Crashes);
    }

    #[test]
    fn a_value_acknowledged_before_its_flush_is_caught() {
        is_caught(Mutant::ValueAcknowledgedEarly, Trouble::Crashes);
    }
}
