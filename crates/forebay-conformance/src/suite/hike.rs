//! A walk through a file of known bytes, for the cases about walks and those about futures.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay::{Block, Error, Step, Walk};

use super::operations::LEN;
use super::tools::{Dice, bytes_of};

/// A walk from place to place as its dice decide, which compares each block with the file's known bytes.
pub(super) struct Hike {
    pub(super) dice: Dice,
    pub(super) hops: u32,
    /// Concurrent reads; one of several is followed and the others are dropped, or all are awaited.
    pub(super) width: u64,
    pub(super) waits: bool,
    pub(super) under_way: u64,
    pub(super) wrong: u64,
    pub(super) _entry: Option<Entry>,
}

impl Hike {
    pub(super) fn new(seed: u64, hops: u32) -> Hike {
        Hike { dice: Dice(seed | 1), hops, width: 1, waits: false, under_way: 1, wrong: 0, _entry: None }
    }

    /// The root of every hike.
    pub(super) const ROOT: Range<u64> = 3..700;
}

impl Walk for Hike {
    /// The number of blocks that did not have the file's bytes.
    type Output = u64;
    type Error = Error;

    fn step(&mut self, block: &Block, at: Range<u64>) -> Step<u64, Error> {
        self.wrong += u64::from(block[..] != bytes_of(at)[..]);
        self.under_way -= 1;
        if self.waits && self.under_way > 0 {
            return Step::Wait;
        }
        if self.hops == 0 {
            return Step::Done(self.wrong);
        }
        self.hops -= 1;
        self.under_way = self.width;
        let mut range = || {
            let start = self.dice.roll(LEN - 3_000);
            start..start + 1 + self.dice.roll(2_999)
        };
        match self.width {
            1 => Step::Read(range()),
            width => Step::read_each((0..width).map(|_| range())),
        }
    }
}

/// Counts the entries that were made and not yet dropped.
#[derive(Clone, Default)]
pub(super) struct Ledger(Arc<AtomicU64>);

pub(super) struct Entry(Ledger);

impl Ledger {
    pub(super) fn entry(&self) -> Option<Entry> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Some(Entry(self.clone()))
    }

    pub(super) fn left(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}
