//! SQLite's rule: the first call to the disk fails, then the second, then the third, until a whole run
//! completes without the failure. After each run the log is opened again, and the oracle of the simulation
//! judges the recovered contents.

use crate::simulation::program;

use forebay::sim::{Dirty, Fault, MetadataOrder, Profile, Rule, World};

use crate::simulation::log::Shape;
use crate::simulation::model::Model;
use crate::simulation::program::{Plan, Shared};

/// More calls than any run makes.
const CALLS_MAX: u64 = 5_000;

/// The effect at the n-th call.
#[derive(Clone, Copy, Debug)]
enum Call {
    Fails(Fault, Dirty),
    /// The power fails when the n-th operation of any kind is submitted to the disk.
    IsTheLast,
}

/// Runs two lives: in the first the n-th call fails, the second checks. Returns whether the first reached
/// that call.
fn attempt(seed: u64, call: Call, n: u64) -> Result<bool, String> {
    let order = [MetadataOrder::Journal, MetadataOrder::Posix][(seed % 2) as usize];
    let mut world = World::new(seed).disk(Profile::nand().at("/disk").metadata_order(order)).stalls_ppm(0);
    let shared = Shared::new(Model::new(Shape::of(seed).first_lsn));
    let calm =
        Plan { shape: Shape::of(seed), rules: Vec::new(), from_the_start: true, lies: false, phases: 1 };
    let plan = match call {
        Call::Fails(fault, dirty) => {
            Plan { rules: vec![Rule::new(fault).nth(n).dirty(dirty)], phases: 4, ..calm.clone() }
        }
        Call::IsTheLast => {
            world.power_cut_at_operation(n);
            Plan { phases: 4, ..calm.clone() }
        }
    };
    let struck = match world.run(async |engine| program::live(engine, shared.clone(), plan).await) {
        Ok(lived) => {
            lived.map(|()| matches!(call, Call::Fails(fault, _) if world.counts().fired(fault) > 0))?
        }
        Err(failure) if failure.is_power_cut() => true,
        Err(failure) => return Err(failure.to_string()),
    };
    world.clear_faults();
    world.power_cut();
    world.reboot();
    shared.lock().next_life();
    let looked = world.run(async |engine| program::live(engine, shared.clone(), calm).await);
    looked.map_err(|failure| failure.to_string())??;
    Ok(struck)
}

fn each_call(call: Call) {
    for seed in (0..3).step_by(forebay_test::one_in(3)) {
        let passed = (1..CALLS_MAX).find(|n| match attempt(seed, call, *n) {
            Ok(struck) => !struck,
            Err(why) => panic!("{call:?}, call {n} of seed {seed}: {why}"),
        });
        let calls = passed.expect("a run that passes");
        println!("{call:?}: {} calls of seed {seed}", calls - 1);
        assert!(calls > 1, "{call:?} met no call of seed {seed}");
    }
}

#[test]
fn the_nth_write_fails() {
    each_call(Call::Fails(Fault::WriteError, Dirty::Lost));
}

#[test]
fn the_nth_flush_fails_and_loses_what_it_was_for() {
    each_call(Call::Fails(Fault::FlushError, Dirty::Lost));
}

#[test]
fn the_nth_flush_fails_and_loses_nothing() {
    each_call(Call::Fails(Fault::FlushError, Dirty::Kept));
}

/// Writes, allocations, and the creation of files and directories.
#[test]
fn the_nth_call_that_takes_space_finds_none() {
    each_call(Call::Fails(Fault::NoSpace, Dirty::Lost));
}

#[test]
fn the_nth_read_fails() {
    each_call(Call::Fails(Fault::ReadError, Dirty::Lost));
}

#[test]
fn the_nth_write_comes_short() {
    each_call(Call::Fails(Fault::ShortWrite, Dirty::Lost));
}

#[test]
fn the_power_goes_at_the_nth_call() {
    each_call(Call::IsTheLast);
}
