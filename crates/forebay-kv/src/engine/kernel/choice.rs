//! The choice between the kernel and the ordinary way, by the time of lookups in each.
//!
//! Most lookups use the chosen way. A short run of them in each period uses the other way: a run, because threads that wait at the
//! same time share costs. Once both ways have enough lookups their averages are compared. The choice changes when the other way was
//! cheaper by a tenth in two successive comparisons.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The callers that a choice is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A thread that waits for one lookup.
    Get,
    /// A thread that waits for several lookups.
    Batch,
}

/// The way of one kind of caller.
#[derive(Debug)]
pub(super) struct Choice {
    is_kernel: AtomicBool,
    /// Turns so far.
    turns: AtomicU32,
    /// Turns of a period, and of its row in the other way.
    period: u32,
    row: u32,
    tally: Mutex<Tally>,
    /// The last average of each way, in nanoseconds a lookup; 0 before the first.
    usual_ns: [AtomicU64; 2],
}

/// The costs of both ways since the last comparison: the ordinary way, then the kernel.
#[derive(Debug, Default)]
struct Tally {
    ways: [WayCost; 2],
    /// Comparisons in a row that the other way won.
    wins: u32,
}

/// The costs of the turns of one way.
#[derive(Clone, Copy, Debug, Default)]
struct WayCost {
    turns: u32,
    lookups: u64,
    ns: u64,
}

/// Comparisons in a row that the other way must win.
const WINS: u32 = 2;
/// A turn counts for at most this many times the usual one: one that the system interrupted says nothing.
const USUAL_MAX: u64 = 8;

impl Choice {
    /// Returns a choice that is for the ordinary way at first.
    pub(super) fn new(kind: Kind) -> Choice {
        let (period, row) = match kind {
            Kind::Get => (1024, 32),
            Kind::Batch => (256, 8),
        };
        Choice {
            is_kernel: AtomicBool::new(false),
            turns: AtomicU32::new(0),
            period,
            row,
            tally: Mutex::default(),
            usual_ns: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    /// Returns whether the kernel is chosen.
    pub(super) fn is_kernel(&self) -> bool {
        self.is_kernel.load(Relaxed)
    }

    /// Takes a turn. Returns whether its lookups use the kernel.
    pub(super) fn turn_is_inside(&self) -> bool {
        let turn = self.turns.fetch_add(1, Relaxed) % self.period;
        let is_trial = (self.row..2 * self.row).contains(&turn);
        self.is_kernel() != is_trial
    }

    /// Counts the time of a turn. Costs a few additions under its own lock.
    pub(super) fn note(&self, is_inside: bool, took: Duration, lookups: u32) {
        let way = usize::from(is_inside);
        let lookups = u64::from(lookups.max(1));
        let most = match self.usual_ns[way].load(Relaxed) {
            0 => u64::MAX,
            usual => usual.saturating_mul(USUAL_MAX * lookups),
        };
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).min(most);
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = &mut tally.ways[way];
        mine.turns += 1;
        mine.lookups += lookups;
        mine.ns = mine.ns.saturating_add(ns);
        if tally.ways.iter().all(|way| way.turns >= self.row) {
            self.compare(&mut tally);
        }
    }

    fn compare(&self, tally: &mut Tally) {
        let average = std::mem::take(&mut tally.ways).map(|way| way.ns / way.lookups.max(1));
        for (usual, average) in self.usual_ns.iter().zip(average) {
            usual.store(average.max(1), Relaxed);
        }
        let is_kernel = self.is_kernel();
        let (chosen, other) = (average[usize::from(is_kernel)], average[usize::from(!is_kernel)]);
        tally.wins = if other < chosen - chosen / 10 { tally.wins + 1 } else { 0 };
        if tally.wins >= WINS {
            tally.wins = 0;
            self.is_kernel.store(!is_kernel, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has `turns` turns of `lookups` lookups with the given costs of the two ways, in nanoseconds a lookup. Returns how many used
    /// the kernel.
    fn run(choice: &Choice, turns: u32, lookups: u32, ordinary_ns: u64, kernel_ns: u64) -> u32 {
        (0..turns)
            .map(|_| {
                let is_inside = choice.turn_is_inside();
                let ns = if is_inside { kernel_ns } else { ordinary_ns };
                choice.note(is_inside, Duration::from_nanos(ns * u64::from(lookups)), lookups);
                u32::from(is_inside)
            })
            .sum()
    }

    #[test]
    fn the_cheaper_way_is_chosen_and_the_other_one_tried_seldom() {
        for (kind, lookups) in [(Kind::Get, 1), (Kind::Batch, 16)] {
            let choice = Choice::new(kind);
            let tried = run(&choice, 10_240, lookups, 100, 120);
            assert!(!choice.is_kernel() && (1..=10_240 / 32).contains(&tried), "{kind:?}: {tried}");
            run(&choice, 4_096, lookups, 100, 80);
            assert!(choice.is_kernel(), "{kind:?}");
            let inside = run(&choice, 10_240, lookups, 100, 80);
            assert!((10_240 - 10_240 / 32..10_240).contains(&inside), "{kind:?}: {inside}");
            // The device became another one.
            run(&choice, 4_096, lookups, 80, 100);
            assert!(!choice.is_kernel(), "{kind:?}");
        }
    }

    #[test]
    fn a_small_difference_changes_nothing() {
        let choice = Choice::new(Kind::Get);
        run(&choice, 10_240, 1, 100, 95);
        assert!(!choice.is_kernel());
        run(&choice, 4_096, 1, 100, 50);
        assert!(choice.is_kernel());
        run(&choice, 10_240, 1, 95, 100);
        assert!(choice.is_kernel());
    }

    #[test]
    fn one_comparison_is_not_enough() {
        let choice = Choice::new(Kind::Get);
        for _ in 0..20 {
            run(&choice, 1024, 1, 100, 50);
            assert!(!choice.is_kernel());
            run(&choice, 1024, 1, 100, 100);
        }
    }

    #[test]
    fn an_interrupted_turn_does_not_decide() {
        let choice = Choice::new(Kind::Get);
        run(&choice, 4_096, 1, 100, 80);
        assert!(choice.is_kernel());
        for _ in 0..8 {
            choice.note(true, Duration::from_secs(1), 1);
            run(&choice, 1023, 1, 100, 80);
        }
        assert!(choice.is_kernel());
    }
}
