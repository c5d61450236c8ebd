//! SQLite's rule: the first call to the disk fails, then the second, then the third, until a whole run passes
//! without reaching the failure. After each run the store is opened again, and the oracle of the simulation
//! judges its contents. From the twentieth call on, increasingly many calls are skipped, so that the test
//! ends.

use crate::simulation::program;

use forebay::sim::{Dirty, Fault, MetadataOrder, Profile, Rule, World};

use crate::simulation::program::{Plan, Shared};
use crate::simulation::store::Shape;

/// More calls than any run makes.
const CALLS_MAX: u64 = 20_000;

/// The fault at the n-th call.
#[derive(Clone, Copy, Debug)]
enum Call {
    Fails(Fault, Dirty),
    /// The power fails when the n-th operation of any kind is submitted to the disk.
    IsTheLast,
}

/// Runs two lives: in the first the n-th call fails, the second checks the store. Returns whether the first
/// life reached that call.
fn attempt(seed: u64, call: Call, n: u64) -> Result<bool, String> {
    let order = [MetadataOrder::Journal, MetadataOrder::Posix][(seed % 2) as usize];
    let mut world = World::new(seed).disk(Profile::nand().at("/disk").metadata_order(order)).stalls_ppm(0);
    let shared = Shared::default();
    let shape = Shape { memtable_bytes: 16 << 10, ..Shape::of(seed) };
    let calm = Plan { shape, rules: Vec::new(), from_the_start: true, may_cut: false, phases: 1, steps: 25 };
    let plan = match call {
        Call::Fails(fault, dirty) => {
            Plan { rules: vec![Rule::new(fault).nth(n).dirty(dirty)], phases: 2, ..calm.clone() }
        }
        Call::IsTheLast => {
            world.power_cut_at_operation(n);
            Plan { phases: 2, ..calm.clone() }
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
    let looked = world.run(async |engine| program::live(engine, shared.clone(), calm).await);
    looked.map_err(|failure| failure.to_string())??;
    Ok(struck)
}

fn each_call(call: Call, seed: u64) {
    let (mut n, mut met) = (1, 0);
    while n < CALLS_MAX {
        match attempt(seed, call, n) {
            Ok(true) => met += 1,
            Ok(false) => break,
            Err(why) => panic!("{call:?}, call {n} of seed {seed}: {why}"),
        }
        n += 1 + n * forebay_test::one_in(5) as u64 / 20;
    }
    println!("{call:?}: {met} of {n} calls of seed {seed}");
    assert!(met > 1 && n < CALLS_MAX, "{call:?} met {met} calls of seed {seed}");
}

#[test]
fn the_nth_write_fails() {
    each_call(Call::Fails(Fault::WriteError, Dirty::Lost), 1);
}

#[test]
fn the_nth_flush_fails_and_loses_what_it_was_for() {
    each_call(Call::Fails(Fault::FlushError, Dirty::Lost), 2);
}

#[test]
fn the_nth_flush_fails_and_loses_nothing() {
    each_call(Call::Fails(Fault::FlushError, Dirty::Kept), 1);
}

/// Faults in writes, allocations, and the creation of files and directories.
#[test]
fn the_nth_call_that_takes_space_finds_none() {
    each_call(Call::Fails(Fault::NoSpace, Dirty::Lost), 2);
}

#[test]
fn the_nth_read_fails() {
    each_call(Call::Fails(Fault::ReadError, Dirty::Lost), 1);
}

#[test]
fn the_power_goes_at_the_nth_call() {
    each_call(Call::IsTheLast, 1);
    each_call(Call::IsTheLast, 2);
}
