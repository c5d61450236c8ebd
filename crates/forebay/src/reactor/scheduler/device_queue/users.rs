//! Determines the users of a device. With one class it is quiet; with several, on whatever shards, it is
//! contended.

use std::sync::atomic::Ordering;

use super::{ACTIVE_NS, DeviceQueue, ShardView, bit, bits};

/// How often a shard checks for other users of a contended device.
const FIND_EVERY_NS: u64 = 1_000_000;

impl DeviceQueue {
    /// Notes that a class is in use now, which may make the device contended.
    pub(in crate::reactor::scheduler) fn note_use(&mut self, class: usize, view: ShardView<'_>) {
        self.flows[class].used_ns = view.now_ns;
        let new = self.active & bit(class) == 0;
        self.active |= bit(class);
        if new || view.now_ns.saturating_sub(self.users_found_ns) > FIND_EVERY_NS {
            self.find_users(view);
        }
    }

    /// Collects the classes that use the device on all shards, and sets `contended` if there are several.
    #[cold]
    pub(in crate::reactor::scheduler) fn find_users(&mut self, view: ShardView<'_>) {
        let ShardView { me, now_ns, .. } = view;
        self.users_found_ns = now_ns;
        let flows = &self.flows;
        let waiting = self.waiting;
        let is_active = |class: &usize| {
            let flow = &flows[*class];
            flow.in_flight > 0
                || waiting & bit(*class) != 0
                || now_ns.saturating_sub(flow.used_ns) < ACTIVE_NS
        };
        self.active = bits(self.active).filter(is_active).fold(0, |mask, class| mask | bit(class));
        self.beat(me).classes.store(self.active, Ordering::Relaxed);
        let mut all = self.active;
        for (shard, beat) in self.shared.beats.iter().enumerate() {
            let (turns, seen_ns) = &mut self.seen[shard];
            let now_turns = beat.turns.load(Ordering::Relaxed);
            if *turns != now_turns {
                (*turns, *seen_ns) = (now_turns, now_ns);
            }
            if shard != me && *turns != 0 && now_ns.saturating_sub(*seen_ns) < ACTIVE_NS {
                all |= beat.classes.load(Ordering::Relaxed);
            }
        }
        // A bit that another shard sets meanwhile may be lost. That shard notices at its next turn and sets
        // it again.
        if self.shared.classes.load(Ordering::Relaxed) != all {
            self.shared.classes.store(all, Ordering::Relaxed);
        }
        let contended = all.count_ones() > 1;
        if contended && !self.contended {
            self.shared.begin_window(now_ns);
            self.give_back_surplus();
        }
        self.contended = contended;
    }
}
