//! SQLite's rule: the first call to the disk fails, then the second, then the third, until a whole life completes without the failure.
//! After each of these lives, whose power fails at its end, another one judges the contents.

use forebay::Engine;
use forebay_sim::{Dirty, Fault, Rule, World};

use crate::worlds;

/// More calls than any life makes.
const CALLS_MAX: u64 = 20_000;

/// The effect at the n-th call.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// It fails like this. Its bytes are lost, or kept.
    Fails(Fault, Dirty),
    /// The power fails when the n-th operation of any kind is submitted to the disk.
    IsTheLast,
}

/// Runs two lives: in the first the n-th call fails, the second judges. Returns whether the first reached that call.
fn attempt(
    seed: u64,
    call: Call,
    n: u64,
    live: impl AsyncFn(Engine, Option<Vec<Rule>>) -> Result<(), String>,
) -> Result<bool, String> {
    let mut world = World::new(seed).disk(worlds::ssd(seed)).stalls_ppm(0);
    let rules = match call {
        Call::Fails(fault, dirty) => vec![Rule::new(fault).nth(n).dirty(dirty)],
        Call::IsTheLast => {
            world.power_cut_at_operation(n);
            Vec::new()
        }
    };
    let was_cut = worlds::live(&mut world, true, async |engine| live(engine, Some(rules)).await)?;
    let has_failed = matches!(call, Call::Fails(fault, _) if world.counts().fired(fault) > 0);
    worlds::live(&mut world, false, async |engine| live(engine, None).await)?;
    Ok(was_cut || has_failed)
}

/// Makes one call after the other fail. `lives` makes the two lives of a run from its seed: the first is passed the faults, which
/// are in force from its start, the second `None`. `next` returns the number of the call after this one; it may skip some.
///
/// # Panics
/// If a life failed, or the first lives made fewer than two calls, or too many.
pub fn each<L: AsyncFn(Engine, Option<Vec<Rule>>) -> Result<(), String>>(
    call: Call,
    seed: u64,
    next: impl Fn(u64) -> u64,
    lives: impl Fn(u64) -> L,
) {
    let (mut n, mut met) = (1, 0);
    while n < CALLS_MAX {
        match attempt(seed, call, n, lives(seed)) {
            Ok(true) => met += 1,
            Ok(false) => break,
            Err(why) => panic!("{call:?}, call {n} of seed {seed}: {why}"),
        }
        n = next(n);
    }
    println!("{call:?}: {met} of {n} calls of seed {seed}");
    assert!(met > 1 && n < CALLS_MAX, "{call:?} met {met} calls of seed {seed}");
}
