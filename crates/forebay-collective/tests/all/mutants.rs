//! The checks of the worlds are tested: a writer that is broken on purpose is caught by their seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay::mutants as core_mutants;
use forebay_collective::mutants::{self, Mutant};

use crate::{collective_world, write_combiner_world};

type Attempt = fn(u64) -> Result<(), String>;

/// Checks that at least one of the seeds fails with each of these mutants, and with syncs that do nothing.
fn assert_caught(of_its_own: [Mutant; 2], seeds: u64, attempt: Attempt) {
    let caught = |name: &str, run: &dyn Fn(u64) -> Result<(), String>| {
        let broken = |seed| {
            let run = AssertUnwindSafe(|| run(seed));
            catch_unwind(run).unwrap_or_else(|_| Err("panicked".to_string()))
        };
        let caught = (0..seeds).find_map(|seed| broken(seed).err().map(|why| (seed, why)));
        let (seed, why) = caught.unwrap_or_else(|| panic!("{name} survived"));
        println!("{name}: seed {seed}: {why}");
    };
    for mutant in of_its_own {
        caught(&format!("{mutant:?}"), &|seed| mutants::with(mutant, || attempt(seed)));
    }
    let syncs = core_mutants::Mutant::IgnoredFlush;
    caught("IgnoredFlush", &|seed| core_mutants::with(syncs, || attempt(seed)));
}

#[test]
fn a_broken_combine_is_caught() {
    assert_caught([Mutant::BarrierIgnored, Mutant::EdgeNotRead], 250, write_combiner_world::attempt);
}

#[test]
fn a_broken_collective_is_caught() {
    assert_caught([Mutant::LowestRankWins, Mutant::EdgeNotRead], 300, collective_world::attempt);
}
