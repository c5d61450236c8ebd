//! The n-th call to the disk fails, for each n. After each run the store is opened again, and the oracle of the simulation judges its
//! contents. The larger n is, the more calls are skipped, so that the test ends.

use forebay::Engine;
use forebay_sim::{Dirty, Fault, Rule};
use forebay_test::nth_call::{self, Call};

use crate::simulation::program::{self, Plan, SharedModel};
use crate::simulation::store::Shape;

fn each_call(call: Call, seed: u64) {
    let parts = forebay_test::one_in(5).max(forebay_test::one_in_daily(3)) as u64;
    let next = |n: u64| n + 1 + n * parts / 20;
    nth_call::each(call, seed, next, |seed| {
        let (shared, shape) = (SharedModel::default(), Shape { memtable_bytes: 16 << 10, ..Shape::of(seed) });
        async move |engine: Engine, rules: Option<Vec<Rule>>| {
            let phases = if rules.is_some() { 2 } else { 1 };
            let rules = rules.unwrap_or_default();
            let plan = Plan { shape, rules, from_the_start: true, may_cut: false, phases, steps: 25 };
            program::live(engine, shared.clone(), plan).await
        }
    });
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
