//! The tests are tested: a core that is broken on purpose must be caught by the sequences that CI follows, and the core
//! as it is must survive the same ones.

use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay::testing::breakage::{self, Breakage};
use forebay::testing::sequence;

/// Fewer seeds than CI looks at, which are 1,000.
const SEEDS: u64 = 300;
const STEPS: usize = 40;

/// Fails unless one of the first seeds tells a core that is broken like this from the core as it is.
fn is_caught(breakage: Breakage) {
    for seed in 0..SEEDS {
        let steps = sequence::seeded(seed, STEPS);
        let broken = catch_unwind(AssertUnwindSafe(|| {
            breakage::with(breakage, || sequence::simulate(seed, &steps).map(drop))
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
    panic!("{breakage:?} survived {SEEDS} seeds");
}

#[test]
fn a_buffer_freed_at_drop_is_caught() {
    is_caught(Breakage::BufferFreedAtDrop);
}

#[test]
fn a_missing_generation_check_is_caught() {
    is_caught(Breakage::NoGenerationCheck);
}

#[test]
fn a_short_read_taken_as_success_is_caught() {
    is_caught(Breakage::ShortReadIsSuccess);
}

#[test]
fn an_ignored_flush_is_caught() {
    is_caught(Breakage::IgnoredFlush);
}

/// The switch is off when its closure is over, also after a panic, and never on for another thread.
#[test]
fn a_breakage_ends_with_its_closure() {
    let steps = ["open h0 a create direct", "write h0 0+4096 p3 data", "sync h0 all", "read h0 0..4096"];
    let steps: Vec<sequence::Step> = steps.iter().map(|line| line.parse().expect("a step")).collect();
    let panicked = catch_unwind(|| breakage::with(Breakage::IgnoredFlush, || panic!("in the closure")));
    assert!(panicked.is_err());
    for seed in (0..40).map(|seed| seed * 2) {
        sequence::simulate(seed, &steps).expect("the core as it is");
    }
    breakage::with(Breakage::IgnoredFlush, || {
        let elsewhere =
            std::thread::spawn(move || (0..40).all(|seed| sequence::simulate(seed * 2, &steps).is_ok()));
        assert!(elsewhere.join().expect("no panic"));
    });
}
