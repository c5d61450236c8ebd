//! The n-th call to the disk fails, for each n. After each run the log is opened again, and the oracle of the simulation judges the
//! recovered contents.

use forebay::Engine;
use forebay_sim::{Dirty, Fault, Rule};
use forebay_test::nth_call::{self, Call};

use crate::simulation::log::Shape;
use crate::simulation::model::Model;
use crate::simulation::program::{self, Plan, SharedModel};

fn each_call(call: Call) {
    for seed in (0..3).step_by(forebay_test::one_in(3)) {
        let next = |n: u64| n + 1;
        nth_call::each(call, seed, next, |seed| {
            let shape = Shape::of(seed);
            let shared = SharedModel::new(Model::new(shape.first_lsn));
            async move |engine: Engine, rules: Option<Vec<Rule>>| {
                let phases = if rules.is_some() { 4 } else { 1 };
                if rules.is_none() {
                    shared.lock().next_life();
                }
                let rules = rules.unwrap_or_default();
                let plan = Plan { shape, rules, from_the_start: true, lies: false, phases };
                program::live(engine, shared.clone(), plan).await
            }
        });
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
