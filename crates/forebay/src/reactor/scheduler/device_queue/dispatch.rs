//! Selects the next waiting operation.

use std::sync::atomic::Ordering;

use super::{DeviceQueue, Request, ShardView, bit, bits};
use crate::base::class::CLASSES_MAX;
use crate::reactor::scheduler::cost::PIECE_COST;
use crate::reactor::scheduler::device::{TAG_SHIFT, top};
use crate::reactor::shard::optable::{Continuation, OpTable};

/// The longest time for which a shard that is ahead lets others catch up. An unused share is given away.
const HOLD_NS_MAX: u64 = 1_000_000;
/// How far ahead a shard may be before it waits, in pieces.
const AHEAD_PIECES: u64 = 4;
/// How far behind a class may be, in pieces.
const BEHIND_PIECES: u64 = 64;

impl DeviceQueue {
    /// Removes and returns the next waiting operation, if it may start now. Otherwise sets the time to check again.
    pub(in crate::reactor::scheduler) fn dispatch(
        &mut self,
        table: &mut OpTable,
        view: ShardView<'_>,
        wake_at_ns: &mut u64,
    ) -> Option<u32> {
        let specs = view.specs;
        // Limits how far a class may be behind: the share that it missed on a delayed shard is not made up at
        // the others' cost.
        let now = self.shared.now[0].load(Ordering::Relaxed);
        let mut best: Option<(u64, u64, usize)> = None;
        for class in bits(self.waiting) {
            let Some(head) = self.flows[class].queue.head() else { continue };
            let slot = table.slot(head);
            if matches!(slot.continuation, Continuation::Orphan) {
                // No task wants it any more, and its memory is needed.
                return self.pop(class, table);
            }
            let request = Request::of(slot);
            let spec = &specs.classes[class];
            if spec.is_capped() {
                let opens_ns = self.shared.cap_opens_ns(class, spec, request.is_write(), view.now_ns);
                if opens_ns != 0 {
                    *wake_at_ns = (*wake_at_ns).min(opens_ns);
                    self.set_backlogged(class, false);
                    continue;
                }
                if !self.flows[class].backlogged {
                    self.shared.catch_up(class, specs);
                    self.set_backlogged(class, true);
                }
            }
            let (place, shares) = top(class, specs);
            let behind = ((BEHIND_PIECES * PIECE_COST) << TAG_SHIFT) / shares;
            self.shared.tags[place].fetch_max(now.saturating_sub(behind), Ordering::Relaxed);
            let tag = |place: usize| self.shared.tags[place].load(Ordering::Relaxed);
            let key = (tag(place), tag(class), class);
            best = Some(best.map_or(key, |best| best.min(key)));
        }
        let (_, _, class) = best?;
        let head = self.flows[class].queue.head()?;
        let cost = self.cost(Request::of(table.slot(head)));
        let held = self.is_held_back(class, view, wake_at_ns);
        if held || !(self.is_owed(class, specs) || self.has_room(cost)) {
            self.shared.waiting.fetch_or(1 << view.me, Ordering::Relaxed);
            return None;
        }
        self.pop(class, table)
    }

    fn pop(&mut self, class: usize, table: &mut OpTable) -> Option<u32> {
        let index = self.flows[class].queue.pop_front(table)?;
        if self.flows[class].queue.head().is_none() {
            self.waiting &= !bit(class);
            self.set_backlogged(class, false);
        }
        Some(index)
    }

    /// Returns whether this shard's best operation is ahead of those that wait on other shards. Those are then first, for a while.
    fn is_held_back(&mut self, class: usize, view: ShardView<'_>, wake_at_ns: &mut u64) -> bool {
        if self.shared.beats.len() == 1 || !self.contended {
            return false;
        }
        let shared = &self.shared;
        let specs = view.specs;
        let tag = |class: usize| shared.tags[top(class, specs).0].load(Ordering::Relaxed);
        let behind = (0..CLASSES_MAX)
            .filter(|&class| shared.backlog[class].load(Ordering::Relaxed) > 0)
            .map(tag)
            .min();
        let ahead = AHEAD_PIECES * PIECE_COST;
        let ahead = (ahead << TAG_SHIFT) / top(class, specs).1;
        let Some(behind) = behind.filter(|behind| tag(class) > behind.saturating_add(ahead)) else {
            self.held = None;
            return false;
        };
        // Shards that make no progress meanwhile, because they are delayed for example, are not waited for.
        let since_ns = self.held.filter(|held| held.1 == behind).map_or(view.now_ns, |held| held.0);
        self.held = Some((since_ns, behind));
        let until_ns = since_ns + HOLD_NS_MAX;
        if view.now_ns >= until_ns {
            return false;
        }
        *wake_at_ns = (*wake_at_ns).min(until_ns);
        true
    }
}
