//! The tests are tested: the sequences that CI follows must catch a core that is broken on purpose, and the unbroken core must
//! survive the same sequences.

use std::future::IntoFuture;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::tree::{self, Sum, Tree};
use forebay::mutants::{self, Mutant};
use forebay::{Block, Error, Open, Step, Walk};
use forebay_conformance::{Env, sequence, suite};
use forebay_sim::{Fault, Profile, Rule, World};

/// Fewer seeds than CI runs, which are 1,000.
const SEEDS: u64 = 300;
const STEPS: usize = 40;

/// Fails unless one of the first seeds distinguishes a core that is broken like this from the unbroken core.
fn is_caught(mutant: Mutant) {
    for seed in 0..SEEDS {
        let steps = sequence::seeded(seed, STEPS);
        let broken = catch_unwind(AssertUnwindSafe(|| {
            mutants::with(mutant, || sequence::simulate(seed, &steps).map(drop))
        }));
        if matches!(broken, Ok(Ok(()))) {
            continue;
        }
        match broken {
            Ok(Err(broken)) => println!("seed {seed}: {broken}"),
            _ => println!("seed {seed}: the broken core panicked"),
        }
        if let Err(wrong) = sequence::simulate(seed, &steps) {
            panic!("seed {seed} with the core as it is: {wrong}");
        }
        return;
    }
    panic!("{mutant:?} survived {SEEDS} seeds");
}

#[test]
fn a_buffer_freed_at_drop_is_caught() {
    is_caught(Mutant::BufferFreedAtDrop);
}

#[test]
fn a_missing_generation_check_is_caught() {
    is_caught(Mutant::NoGenerationCheck);
}

#[test]
fn a_short_read_taken_as_success_is_caught() {
    is_caught(Mutant::ShortReadIsSuccess);
}

#[test]
fn an_ignored_flush_is_caught() {
    is_caught(Mutant::IgnoredFlush);
}

#[test]
fn a_dropped_call_that_keeps_its_turn_is_caught() {
    is_caught(Mutant::DroppedCallsStayQueued);
}

/// The same by the suite's cases.
#[test]
fn a_dropped_call_that_outlives_the_close_is_caught() {
    for case in [
        "lives::calls_about_a_file_end_with_its_close",
        "lives::a_copy_ends_with_the_close_of_either_file",
        "lives::calls_in_a_directory_end_with_its_close",
        "lives::calls_of_an_engine_end_with_its_close",
    ] {
        let run = |seed| case_in_a_world(case, seed);
        let broken = |seed| mutants::with(Mutant::DroppedCallsStayQueued, || run(seed));
        let caught = (0..20).find_map(|seed| broken(seed).err().map(|what| (seed, what)));
        let (seed, what) = caught.unwrap_or_else(|| panic!("{case} let the broken core pass 20 times"));
        println!("{case}, seed {seed}: {what}");
        (0..20).for_each(|seed| run(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}")));
    }
}

/// Walks that request sixteen pages and follow the first, together with walks that keep the pages they read: memory that was reused
/// too early shows as another page's bytes.
fn walk_in_a_crowd(seed: u64) -> Result<(), String> {
    let disk = Profile::nand().fault(Rule::new(Fault::CancelRace).chance_ppm(500_000));
    let run = World::new(seed).disk(disk).run(async |engine| {
        let tree = Tree::new(3, 9);
        let file = engine.open("/tree", Open::create()).await.map_err(|error| error.to_string())?;
        file.write(0, tree.bytes.clone()).await.map_err(|error| error.to_string())?;
        for _ in 0..10 {
            let some = file.walk_many((2..12).map(|enough| (tree.root.clone(), Sum::new(enough))));
            let keepers = (0..10).map(|n| (tree.root.clone(), Keeper::new(n)));
            let keepers = file.walk_many(keepers);
            let (some, keepers) = futures::join!(some.into_future(), keepers.into_future());
            for result in some.map_err(|error| error.to_string())? {
                result.map_err(|error| format!("{error:?}"))?;
            }
            for kept in keepers.map_err(|error| error.to_string())? {
                for (place, page) in kept.map_err(|error| format!("{error:?}"))? {
                    tree::records(&page, place).ok_or(format!("the page at {place} is another one"))?;
                }
            }
        }
        Ok(())
    });
    run.unwrap_or_else(|failure| Err(failure.to_string()))
}

/// Reads pages one after the other and keeps them.
struct Keeper {
    next: u64,
    kept: Vec<(u64, Block)>,
}

impl Keeper {
    fn new(first: u64) -> Keeper {
        Keeper { next: first * 3, kept: Vec::new() }
    }
}

impl Walk for Keeper {
    type Output = Vec<(u64, Block)>;
    type Error = Error;

    fn step(&mut self, block: &Block, at: Range<u64>) -> Step<Self::Output, Error> {
        self.kept.push((at.start, block.clone()));
        self.next += 1;
        match self.kept.len() {
            12 => Step::Done(std::mem::take(&mut self.kept)),
            _ => Step::Read(self.next * tree::PAGE..(self.next + 1) * tree::PAGE),
        }
    }
}

#[test]
fn an_abandoned_read_whose_memory_is_freed_is_caught() {
    let broken = |seed| {
        let run = || mutants::with(Mutant::AbandonedReadFreed, || walk_in_a_crowd(seed));
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("the broken core panicked".to_string()))
    };
    let caught = (0..100).find_map(|seed| broken(seed).err().map(|what| (seed, what)));
    let (seed, what) = caught.expect("one of 100 seeds catches it");
    println!("seed {seed}: {what}");
    for seed in 0..100 {
        walk_in_a_crowd(seed).unwrap_or_else(|wrong| panic!("seed {seed} with the core as it is: {wrong}"));
    }
}

/// Runs a case of the conformance suite in a world.
fn case_in_a_world(name: &str, seed: u64) -> Result<(), String> {
    let cases = suite::cases();
    let case = cases.iter().find(|case| case.name() == name).expect("a case");
    // Some requests are done although they were cancelled.
    let disk = Profile::nand().fault(Rule::new(Fault::CancelRace).chance_ppm(500_000));
    let run = World::new(seed).disk(disk).run(async |_| {
        let config = forebay::Config::new().shards(2);
        let env = Env::start(config, "/case").await.map_err(|error| error.to_string())?;
        suite::run(case, &env).await.map(drop).map_err(|failure| failure.to_string())
    });
    run.unwrap_or_else(|failure| Err(failure.to_string()))
}

/// Where the first sender that waits for room is a future that is not polled any more, its wake-up is lost to
/// all others.
#[test]
fn a_wake_up_that_a_frozen_future_swallows_is_caught() {
    for seed in 0..5 {
        // Its futures wait for room and are not polled again.
        let run = || case_in_a_world("freezes::senders_that_wait_for_room", seed);
        let broken = mutants::with(Mutant::OneSenderWoken, run);
        let what = broken.expect_err("each seed catches it");
        println!("seed {seed}: {what}");
        run().unwrap_or_else(|wrong| panic!("seed {seed} with the core as it is: {wrong}"));
    }
}

/// Memory of the program that is returned while the device still has its address, and ends of it that stay in I/O memory.
#[test]
fn lent_memory_given_back_early_and_a_bounce_not_copied_are_caught() {
    for (mutant, case) in [
        (
            Mutant::LentGivenBackEarly,
            "lent::memory_of_a_dropped_operation_is_the_engines_until_the_device_is_done",
        ),
        (Mutant::BounceNotCopied, "lent::any_range_goes_into_any_memory"),
    ] {
        let caught = (0..10).find_map(|seed| {
            mutants::with(mutant, || case_in_a_world(case, seed)).err().map(|what| (seed, what))
        });
        let (seed, what) = caught.unwrap_or_else(|| panic!("{mutant:?} survived ten seeds"));
        println!("{mutant:?}, seed {seed}: {what}");
        case_in_a_world(case, seed)
            .unwrap_or_else(|wrong| panic!("seed {seed} with the core as it is: {wrong}"));
    }
}

/// The switch is off when its closure has returned, also after a panic, and never on for another thread.
#[test]
fn a_mutant_ends_with_its_closure() {
    let steps = ["open h0 a create direct", "write h0 0+4096 p3 data", "sync h0 all", "read h0 0..4096"];
    let steps: Vec<sequence::Step> = steps.iter().map(|line| line.parse().expect("a step")).collect();
    let panicked = catch_unwind(|| mutants::with(Mutant::IgnoredFlush, || panic!("in the closure")));
    assert!(panicked.is_err());
    for seed in (0..40).map(|seed| seed * 2) {
        sequence::simulate(seed, &steps).expect("the core as it is");
    }
    mutants::with(Mutant::IgnoredFlush, || {
        let elsewhere =
            std::thread::spawn(move || (0..40).all(|seed| sequence::simulate(seed * 2, &steps).is_ok()));
        assert!(elsewhere.join().expect("no panic"));
    });
}
