//! One shard's side of a device: who waits on this shard, what is in flight from it, and what it holds a lease of.

mod charge;
mod look;
mod pick;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cost::{PIECE_BYTES, cost};
use super::device::{Beat, DeviceScheduler, Done};
use super::lanes::Admission;
use super::queue::Queue;
use crate::base::class::{CLASSES_MAX, NO_TENANT, Specs};
use crate::io::op::OpKind;
use crate::reactor::shard::optable::{OpTable, Slot};

/// A class is in use until it has asked for nothing for so long.
pub(super) const ACTIVE_NS: u64 = 100_000_000;

/// What a decision needs to know of the shard.
#[derive(Clone, Copy)]
pub(super) struct Around<'s> {
    /// The shard's number.
    pub(super) me: usize,
    pub(super) now_ns: u64,
    pub(super) specs: &'s Specs,
}

/// What is asked of the device.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) class: usize,
    pub(super) kind: OpKind,
    pub(super) bytes: u32,
}

impl Asked {
    #[inline]
    pub(super) fn of(slot: &Slot) -> Asked {
        Asked { class: slot.class.index(), kind: slot.kind, bytes: slot.len - slot.done }
    }

    fn is_write(self) -> bool {
        !matches!(self.kind, OpKind::Read | OpKind::Nop)
    }
}

/// What a class did on a device, from one shard; in cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) queued: u64,
    pub(crate) received: u64,
    pub(crate) due: u64,
    pub(crate) starved_ns: u64,
}

#[derive(Clone, Copy)]
struct Flow {
    queue: Queue,
    used_ns: u64,
    in_flight: u32,
    /// Counted in the device's backlog.
    backlogged: bool,
    /// Since when it waits with nothing in flight.
    starved_since_ns: Option<u64>,
    counts: Counts,
}

pub(super) struct Lane {
    pub(super) shared: Arc<DeviceScheduler>,
    flows: [Flow; CLASSES_MAX],
    /// Bit per class with waiting operations.
    pub(super) waiting: u32,
    /// Bit per class that this shard has used lately.
    pub(super) active: u32,
    pub(super) contended: bool,
    lease: u64,
    used: u64,
    looked_ns: u64,
    /// Other shards' turns as last seen, and when they changed.
    seen: Box<[(u64, u64)]>,
    /// Since when others are let catch up, and how far those had come.
    held: Option<(u64, u64)>,
    completed: Done,
    /// Operations that completed since the last look.
    reaped: u32,
}

fn bit(class: usize) -> u32 {
    1 << class
}

fn bits(mask: u32) -> impl Iterator<Item = usize> {
    (0..CLASSES_MAX).filter(move |class| mask & bit(*class) != 0)
}

/// Where a class's part of the device is kept: its own virtual time or its tenant's, and the shares that count there.
fn top(class: usize, specs: &Specs) -> (usize, u64) {
    match specs.classes[class].tenant {
        NO_TENANT => (class, u64::from(specs.classes[class].shares.max(1))),
        tenant => (CLASSES_MAX + usize::from(tenant), u64::from(specs.tenants[usize::from(tenant)].max(1))),
    }
}

impl Lane {
    pub(super) fn new(shared: Arc<DeviceScheduler>, now_ns: u64) -> Lane {
        let flow = Flow {
            queue: Queue::EMPTY,
            used_ns: 0,
            in_flight: 0,
            backlogged: false,
            starved_since_ns: None,
            counts: Counts::default(),
        };
        Lane {
            flows: [flow; CLASSES_MAX],
            waiting: 0,
            active: 0,
            contended: false,
            lease: 0,
            used: 0,
            looked_ns: 0,
            seen: shared
                .beats
                .iter()
                .map(|beat| (beat.turns.load(Ordering::Relaxed), now_ns.saturating_sub(ACTIVE_NS / 2)))
                .collect(),
            held: None,
            completed: Done::default(),
            reaped: 0,
            shared,
        }
    }

    #[inline]
    pub(super) fn beat(&self, me: usize) -> &Beat {
        &self.shared.beats[me]
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waiting != 0
    }

    /// Is there nobody to keep apart?
    pub(super) fn is_calm(&self) -> bool {
        !self.contended && self.waiting == 0
    }

    /// May an operation that just came go to the device now?
    pub(super) fn admit(&mut self, asked: Asked, around: Around<'_>) -> Admission {
        let class = asked.class;
        self.note_use(class, around);
        let beat = self.beat(around.me);
        beat.turns.store(beat.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let spec = &around.specs.classes[class];
        if self.waiting & bit(class) != 0 {
            return Admission::Wait;
        }
        if !self.contended && asked.bytes <= PIECE_BYTES && !spec.is_capped() && self.waiting == 0 {
            return Admission::Pass;
        }
        self.catch_up(class, around.specs);
        if spec.is_capped() && self.shared.cap_opens_ns(class, spec, asked.is_write(), around.now_ns) != 0 {
            return Admission::Wait;
        }
        let free = self.waiting == 0 && self.has_room(self.cost(asked));
        if free || self.is_owed(class, around.specs) { Admission::Count } else { Admission::Wait }
    }

    fn cost(&self, asked: Asked) -> u64 {
        let piece = if self.contended { PIECE_BYTES } else { u32::MAX };
        cost(asked.bytes.min(piece))
    }

    /// Is there room for `cost` in the lease, or can the lease be made larger?
    fn has_room(&mut self, cost: u64) -> bool {
        let needs = self.used + cost;
        if needs <= self.lease {
            return true;
        }
        if self.shared.lease(needs - self.lease, self.contended) {
            self.lease = needs;
            return true;
        }
        // Each shard may always have one, whatever others hold.
        self.used == 0
    }

    /// Has the class had less than its share, and nothing in flight? Then it need not wait for room.
    fn is_owed(&self, class: usize, specs: &Specs) -> bool {
        let spec = &specs.classes[class];
        let tag = |place: usize| self.shared.tags[place].load(Ordering::Relaxed);
        let now = |level: usize| self.shared.now[level].load(Ordering::Relaxed);
        self.contended
            && self.flows[class].in_flight == 0
            && tag(top(class, specs).0) <= now(0)
            && (spec.tenant == NO_TENANT || tag(class) <= now(1 + usize::from(spec.tenant)))
    }

    /// A class that asked for nothing does not catch up on it.
    fn catch_up(&self, class: usize, specs: &Specs) {
        let now = self.shared.now[0].load(Ordering::Relaxed);
        self.shared.tags[top(class, specs).0].fetch_max(now, Ordering::Relaxed);
        if let Some(now) = self.shared.now.get(1 + usize::from(specs.classes[class].tenant)) {
            self.shared.tags[class].fetch_max(now.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Puts an operation into its class's queue; one that has begun goes first.
    pub(super) fn enqueue(&mut self, table: &mut OpTable, index: u32, now_ns: u64) {
        let slot = table.slot(index);
        let (class, begun) = (slot.class.index(), slot.done > 0 || slot.retries > 0);
        let flow = &mut self.flows[class];
        match begun {
            true => flow.queue.push_front(table, index),
            false => flow.queue.push_back(table, index),
        }
        flow.counts.queued += u64::from(!begun);
        if self.waiting & bit(class) == 0 {
            self.waiting |= bit(class);
            flow.starved_since_ns = (flow.in_flight == 0).then_some(now_ns);
            self.set_backlogged(class, true);
        }
        if self.contended {
            self.shared.note_limited();
        }
    }

    fn set_backlogged(&mut self, class: usize, backlogged: bool) {
        if std::mem::replace(&mut self.flows[class].backlogged, backlogged) != backlogged {
            match backlogged {
                true => self.shared.backlog[class].fetch_add(1, Ordering::Relaxed),
                false => self.shared.backlog[class].fetch_sub(1, Ordering::Relaxed),
            };
        }
    }

    /// How many bytes of a request may go as one piece.
    pub(super) fn piece_bytes(&self, grain: u32) -> u32 {
        if self.contended { PIECE_BYTES.max(grain) } else { u32::MAX }
    }

    /// Before a turn's operations: what came back since the last one is told.
    pub(super) fn begin_turn(&mut self, now_ns: u64) {
        if self.contended && self.completed.cost > 0 {
            if self.reaped > 1 && self.used == 0 && self.waiting != 0 {
                self.shared.note_late();
            }
            self.shared.completed(self.completed, now_ns);
        }
        (self.completed, self.reaped) = (Done::default(), 0);
        if self.contended && self.shared.is_overdrawn() {
            self.give_back_surplus();
        }
    }

    /// After them: what this shard cannot use is the others'. Answers the shards to wake.
    pub(super) fn end_turn(&mut self, me: usize) -> u64 {
        let others = self.shared.waiting.load(Ordering::Relaxed) & !(1 << me);
        if self.lease > self.used && (self.waiting == 0 || others != 0 || self.shared.is_overdrawn()) {
            self.give_back_surplus();
        }
        match others {
            0 => 0,
            others => self.shared.waiting.fetch_and(!others, Ordering::Relaxed) & others,
        }
    }

    fn give_back_surplus(&mut self) {
        let surplus = self.lease - self.used;
        if surplus > 0 {
            self.shared.give_back(surplus);
            self.lease = self.used;
        }
    }

    /// For a shard that ends: nothing waits any more, and what it held is the others'.
    pub(super) fn retire(&mut self, me: usize) {
        for class in 0..CLASSES_MAX {
            self.set_backlogged(class, false);
            self.flows[class].queue = Queue::EMPTY;
        }
        self.waiting = 0;
        self.beat(me).classes.store(0, Ordering::Relaxed);
        self.give_back_surplus();
    }

    /// What each class did here that was counted.
    pub(super) fn counts(&self) -> impl Iterator<Item = (usize, Counts)> + '_ {
        self.flows.iter().map(|flow| flow.counts).enumerate()
    }
}
