//! One account's side of a device: the operations that wait on its shard, those in flight from it, and its
//! lease.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cost::{PIECE_BYTES, cost};
use super::device::{Beat, CompletedCost, DeviceScheduler, top};
use super::device_queues::Admission;
use super::queue::Queue;
use crate::base::class::{CLASSES_MAX, NO_TENANT, Specs};
use crate::io::op::OpKind;
use crate::reactor::shard::optable::{OpTable, Slot};

mod dispatch;

/// A class counts as in use until it has made no request for this long.
const ACTIVE_NS: u64 = 100_000_000;

/// The account's state that a decision depends on.
#[derive(Clone, Copy)]
pub(super) struct ShardView<'s> {
    /// The account's number.
    pub(super) me: usize,
    pub(super) now_ns: u64,
    pub(super) specs: &'s Specs,
}

/// The properties of a request that the scheduler decides by.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) class: usize,
    pub(crate) kind: OpKind,
    pub(crate) bytes: u32,
}

impl Request {
    #[inline]
    pub(super) fn of(slot: &Slot) -> Request {
        Request { class: slot.class.index(), kind: slot.kind, bytes: slot.len - slot.done }
    }

    fn is_write(self) -> bool {
        !matches!(self.kind, OpKind::Read | OpKind::Nop)
    }
}

/// One class's use of a device by one account, as cost.
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
    /// Whether the class is counted in the device's backlog.
    backlogged: bool,
    /// The time since which it waits with nothing in flight.
    starved_since_ns: Option<u64>,
    counts: Counts,
}

/// One account's side of a device. Without a shard nothing waits in it.
pub(super) struct DeviceQueue {
    pub(super) shared: Arc<DeviceScheduler>,
    flows: [Flow; CLASSES_MAX],
    /// One bit per class with waiting operations.
    pub(super) waiting: u32,
    /// One bit per class that this account has used lately.
    pub(super) active: u32,
    pub(super) contended: bool,
    lease: u64,
    used: u64,
    users_found_ns: u64,
    /// Others' turn counts as last seen, and the times at which they changed.
    seen: Box<[(u64, u64)]>,
    /// The time since which this shard lets others catch up, and their progress at that time.
    held: Option<(u64, u64)>,
    completed: CompletedCost,
    /// Operations completed since the last check.
    reaped: u32,
    /// Since the last turn's end this shard released room, or moved a virtual time: waiting shards may continue.
    frees_others: bool,
}

fn bit(class: usize) -> u32 {
    1 << class
}

fn bits(mask: u32) -> impl Iterator<Item = usize> {
    (0..CLASSES_MAX).filter(move |class| mask & bit(*class) != 0)
}

impl DeviceQueue {
    pub(super) fn new(shared: Arc<DeviceScheduler>, now_ns: u64) -> DeviceQueue {
        let flow = Flow {
            queue: Queue::EMPTY,
            used_ns: 0,
            in_flight: 0,
            backlogged: false,
            starved_since_ns: None,
            counts: Counts::default(),
        };
        let seen = |beat: &Beat| {
            let turns = beat.turns.load(Ordering::Relaxed);
            (turns, beat.idle_since_ns(turns).unwrap_or_else(|| now_ns.saturating_sub(ACTIVE_NS / 2)))
        };
        DeviceQueue {
            flows: [flow; CLASSES_MAX],
            waiting: 0,
            active: 0,
            contended: false,
            lease: 0,
            used: 0,
            users_found_ns: 0,
            seen: shared.beats.iter().map(seen).collect(),
            held: None,
            completed: CompletedCost::default(),
            reaped: 0,
            frees_others: false,
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

    /// Returns whether no classes compete and nothing waits.
    pub(super) fn is_calm(&self) -> bool {
        !self.contended && self.waiting == 0
    }

    /// Decides whether a new operation may be submitted now.
    pub(super) fn admit(&mut self, request: Request, view: ShardView<'_>) -> Admission {
        let class = request.class;
        self.note_use(class, view);
        self.beat(view.me).advance();
        let spec = &view.specs.classes[class];
        if self.waiting & bit(class) != 0 {
            return Admission::Wait;
        }
        if !self.contended && request.bytes <= PIECE_BYTES && !spec.is_capped() && self.waiting == 0 {
            return Admission::Pass;
        }
        self.shared.catch_up(class, view.specs);
        if spec.is_capped() && self.shared.cap_opens_ns(class, spec, request.is_write(), view.now_ns) != 0 {
            return Admission::Wait;
        }
        let free = self.waiting == 0 && self.has_room(self.cost(request));
        if free || self.is_owed(class, view.specs) { Admission::Count } else { Admission::Wait }
    }

    /// Returns whether an operation of this class, of an account without a queue, is admitted without a further look: the class
    /// uses the device alone. Notes the use then.
    #[inline]
    pub(super) fn passes(&self, class: usize, me: usize) -> bool {
        let is_alone =
            self.active == bit(class) && self.shared.classes.load(Ordering::Relaxed) == self.active;
        if is_alone {
            self.beat(me).advance();
        }
        is_alone
    }

    /// As [`admit`](Self::admit) for an account without a queue: a refused operation is sent elsewhere, so no room is kept for it.
    pub(super) fn admit_call(&mut self, request: Request, view: ShardView<'_>) -> Admission {
        let class = request.class;
        self.note_use(class, view);
        self.beat(view.me).advance();
        if !self.contended {
            // Another class may have started to use the device since the last look.
            self.find_users(view);
        }
        if !self.contended {
            return Admission::Pass;
        }
        let is_read = request.kind == OpKind::Read;
        if !is_read || self.shared.has_backlog() || !self.extend_lease(self.cost(request)) {
            return Admission::Wait;
        }
        self.shared.catch_up(class, view.specs);
        Admission::Count
    }

    fn cost(&self, request: Request) -> u64 {
        let piece = if self.contended { PIECE_BYTES } else { u32::MAX };
        cost(request.bytes.min(piece))
    }

    /// Returns whether `cost` fits into the lease, extending it if possible.
    fn has_room(&mut self, cost: u64) -> bool {
        // Each shard may always have one operation, regardless of the others.
        self.extend_lease(cost) || self.used == 0
    }

    /// Returns whether `cost` fits into the lease, extending it if possible.
    fn extend_lease(&mut self, cost: u64) -> bool {
        let needs = self.used + cost;
        if needs <= self.lease {
            return true;
        }
        let has_more = self.shared.lease(needs - self.lease, self.contended);
        if has_more {
            self.lease = needs;
        }
        has_more
    }

    /// Returns whether the class has had less than its share and has nothing in flight. It then need not wait
    /// for room.
    fn is_owed(&self, class: usize, specs: &Specs) -> bool {
        let spec = &specs.classes[class];
        let tag = |place: usize| self.shared.tags[place].load(Ordering::Relaxed);
        let now = |level: usize| self.shared.now[level].load(Ordering::Relaxed);
        self.contended
            && self.flows[class].in_flight == 0
            && tag(top(class, specs).0) <= now(0)
            && (spec.tenant == NO_TENANT || tag(class) <= now(1 + usize::from(spec.tenant)))
    }

    /// Puts an operation into its class's queue. An operation that has started is put at the front.
    pub(super) fn enqueue(&mut self, table: &mut OpTable, index: u32, now_ns: u64) {
        let slot = table.slot(index);
        let (class, begun) = (slot.class.index(), slot.done > 0 || slot.retries > 0);
        let flow = &mut self.flows[class];
        debug_assert_eq!(
            self.waiting & bit(class) != 0,
            flow.queue.head().is_some(),
            "a class's bit is set while operations of it wait"
        );
        if begun {
            flow.queue.push_front(table, index);
        } else {
            flow.queue.push_back(table, index);
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
            if backlogged {
                self.shared.backlog[class].fetch_add(1, Ordering::Relaxed);
            } else {
                self.frees_others = true;
                let before = self.shared.backlog[class].fetch_sub(1, Ordering::Relaxed);
                debug_assert!(before > 0, "a shard leaves a backlog that it has joined");
            }
        }
    }

    /// Returns the number of bytes of a request that may be submitted as one piece.
    pub(super) fn piece_bytes(&self, grain: u32) -> u32 {
        if self.contended { PIECE_BYTES.max(grain) } else { u32::MAX }
    }

    /// Runs before a turn's operations: reports the operations completed since the last turn.
    pub(super) fn begin_turn(&mut self, now_ns: u64) {
        if self.contended && self.completed.cost > 0 {
            if self.reaped > 1 && self.used == 0 && self.waiting != 0 {
                self.shared.note_late();
            }
            self.shared.completed(self.completed, now_ns);
            // It may have raised the budget.
            self.frees_others = true;
        }
        (self.completed, self.reaped) = (CompletedCost::default(), 0);
        if self.contended && self.shared.is_overdrawn() {
            self.give_back_surplus();
        }
    }

    /// Runs after a turn's operations: releases the unused part of the lease to the others. Returns the
    /// shards to wake, one bit each. `mine` is the bit of this shard.
    pub(super) fn end_turn(&mut self, mine: u64) -> u64 {
        let others = self.shared.waiting.load(Ordering::Relaxed) & !mine;
        if self.lease > self.used && (self.waiting == 0 || others != 0 || self.shared.is_overdrawn()) {
            self.give_back_surplus();
        }
        // A shard that was woken for nothing wakes no other: otherwise shards that wait would wake each other without end. A shard
        // never depends on a wake-up that is too early for it: it waits with operations in flight, or until a time.
        match others {
            _ if !std::mem::take(&mut self.frees_others) => 0,
            0 => 0,
            others => {
                let woken = self.shared.waiting.fetch_and(!others, Ordering::Relaxed) & others;
                #[cfg(feature = "_sim")]
                self.shared.lease_writes.wakes.fetch_add(u64::from(woken.count_ones()), Ordering::Relaxed);
                woken
            }
        }
    }

    fn give_back_surplus(&mut self) {
        debug_assert!(self.used <= self.lease, "what is in flight is leased");
        let surplus = self.lease - self.used;
        if surplus > 0 {
            self.shared.give_back(surplus);
            self.frees_others = true;
            self.lease = self.used;
        }
    }

    /// Retires the device queue of a shard that ends: nothing waits any more, and its lease is returned.
    pub(super) fn retire(&mut self, me: usize) {
        for class in 0..CLASSES_MAX {
            self.set_backlogged(class, false);
            self.flows[class].queue = Queue::EMPTY;
        }
        self.waiting = 0;
        self.beat(me).classes.store(0, Ordering::Relaxed);
        self.give_back_surplus();
    }

    /// Returns the cost and the number of the operations in flight that were charged.
    #[cfg(debug_assertions)]
    pub(super) fn in_flight(&self) -> (u64, u32) {
        (self.used, self.flows.iter().map(|flow| flow.in_flight).sum())
    }

    /// Returns the counters of each class on this device queue.
    pub(super) fn counts(&self) -> impl Iterator<Item = (usize, Counts)> + '_ {
        self.flows.iter().map(|flow| flow.counts).enumerate()
    }
}

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

    /// Notes the use of a class whose operations passed without a note, until this turn of the account: it may have been idle before.
    pub(in crate::reactor::scheduler) fn note_passed(&mut self, class: usize, view: ShardView<'_>) {
        let beat = self.beat(view.me);
        let before = beat.turns.load(Ordering::Relaxed).wrapping_sub(1);
        let until_ns = beat.idle_since_ns(before).unwrap_or(view.now_ns);
        let flow = &mut self.flows[class];
        flow.used_ns = flow.used_ns.max(until_ns);
        self.active |= bit(class);
        self.find_users(view);
    }

    /// Collects the classes that use the device in all accounts, and sets `contended` for several classes.
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
        for (account, beat) in self.shared.beats.iter().enumerate() {
            let (turns, seen_ns) = &mut self.seen[account];
            let now_turns = beat.turns.load(Ordering::Relaxed);
            if *turns != now_turns {
                (*turns, *seen_ns) = (now_turns, beat.idle_since_ns(now_turns).unwrap_or(now_ns));
            }
            if account != me && *turns != 0 && now_ns.saturating_sub(*seen_ns) < ACTIVE_NS {
                all |= beat.classes.load(Ordering::Relaxed);
            }
        }
        // A bit that another account sets meanwhile may be lost. That account notices it at its next turn and sets it again.
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

impl DeviceQueue {
    /// Counts a submitted operation. Returns its cost, which its slot stores.
    pub(in crate::reactor::scheduler) fn charge(&mut self, request: Request, view: ShardView<'_>) -> u32 {
        let (class, specs) = (request.class, view.specs);
        let spec = &specs.classes[class];
        if spec.is_capped() {
            self.shared.charge_caps(class, spec, request.is_write(), request.bytes, view.now_ns);
        }
        // Limited to the slot's u32, so that exactly the reserved amount is returned later.
        let cost = cost(request.bytes).min(u64::from(u32::MAX));
        self.used += cost;
        if self.used > self.lease {
            self.shared.lease_anyway(self.used - self.lease);
            self.lease = self.used;
        }
        debug_assert!(self.used <= self.lease, "what is in flight is leased");
        if self.contended {
            self.frees_others = true;
            // Shares are shares of the device's time. The limit on operations in flight is not, so it does
            // not depend on the ratio.
            let weight = self.shared.weigh(request.kind, cost);
            self.shared.advance(class, weight, specs);
            self.count_shares(class, weight, specs);
        }
        let flow = &mut self.flows[class];
        flow.in_flight += 1;
        if let Some(since_ns) = flow.starved_since_ns.take() {
            flow.counts.starved_ns += view.now_ns.saturating_sub(since_ns);
        }
        cost as u32
    }

    /// Counts the cost that the class received, and for it and each waiting class the part that was due to
    /// it.
    fn count_shares(&mut self, class: usize, cost: u64, specs: &Specs) {
        self.flows[class].counts.received += cost;
        let present = self.waiting | bit(class);
        let all: u64 = bits(present).map(|class| top(class, specs).1).sum();
        for class in bits(present) {
            self.flows[class].counts.due += cost * top(class, specs).1 / all.max(1);
        }
    }

    /// Counts an operation that completed.
    pub(in crate::reactor::scheduler) fn complete(
        &mut self,
        class: usize,
        kind: OpKind,
        cost: u32,
        now_ns: u64,
    ) {
        debug_assert!(
            self.used >= u64::from(cost) && self.flows[class].in_flight > 0,
            "a completion gives back what its slot was charged, once"
        );
        self.used -= u64::from(cost);
        self.completed.add(kind, u64::from(cost));
        self.reaped += 1;
        let flow = &mut self.flows[class];
        flow.in_flight -= 1;
        if flow.in_flight == 0 && self.waiting & bit(class) != 0 {
            flow.starved_since_ns = Some(now_ns);
        }
        if self.used == 0 && self.waiting == 0 {
            self.give_back_surplus();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::TAG_SHIFT;
    use super::*;

    #[test]
    fn calls_beside_other_classes_take_room_and_shares_and_give_the_room_back() {
        let (shared, specs) = (Arc::new(DeviceScheduler::new("d", 2, None)), Specs::default());
        let (mine, other, now_ns) = (1, 2, 1_000_000_000);
        let view = ShardView { me: 1, now_ns, specs: &specs };
        let read = Request { class: mine, kind: OpKind::Read, bytes: 4096 };
        let mut calls = DeviceQueue::new(shared.clone(), now_ns);
        assert!(!calls.passes(mine, 1), "it has to look first");
        assert_eq!(calls.admit_call(read, view), Admission::Pass);
        assert!(calls.passes(mine, 1) && shared.takes_calls(mine));
        let mut shard = DeviceQueue::new(shared.clone(), now_ns);
        shard.note_use(other, ShardView { me: 0, ..view });
        shard.beat(0).advance();
        assert!(
            !calls.passes(mine, 1) && shared.takes_calls(mine),
            "beside another class, of which nothing waits"
        );
        let mut charges = Vec::new();
        while calls.admit_call(read, view) == Admission::Count {
            charges.push(calls.charge(read, view));
        }
        let count = charges.len() as u64;
        assert!(count > 1 && count <= shared.budget() / cost(4096));
        let (tag, shares) =
            (shared.tags[mine].load(Ordering::Relaxed), u64::from(specs.classes[mine].shares));
        assert_eq!(tag, count * ((cost(4096) << TAG_SHIFT) / shares));
        let counts = calls.flows[mine].counts;
        assert_eq!((counts.received, counts.due), (count * cost(4096), count * cost(4096)));
        let end = |calls: &mut DeviceQueue, charge| {
            calls.complete(mine, OpKind::Read, charge, now_ns);
            calls.begin_turn(now_ns);
            calls.end_turn(0)
        };
        shared.waiting.store(0b101, Ordering::Relaxed);
        assert_eq!(end(&mut calls, charges[0]), 0b101, "shards that wait for room");
        assert_eq!(end(&mut calls, charges[1]), 0, "each is woken once");
        assert_eq!(calls.admit_call(Request { kind: OpKind::Write, ..read }, view), Admission::Wait);
        assert_eq!(calls.admit_call(read, view), Admission::Count, "there is room");
        shared.backlog[other].store(1, Ordering::Relaxed);
        assert_eq!(calls.admit_call(read, view), Admission::Wait, "an operation that waits goes first");
        assert!(!shared.takes_calls(mine) && !shared.takes_calls(other));
        for &charge in &charges[2..] {
            end(&mut calls, charge);
        }
        assert_eq!((calls.used, calls.lease), (0, 0));
        let later = ShardView { now_ns: now_ns + 2 * ACTIVE_NS, ..view };
        assert_eq!(calls.admit_call(read, later), Admission::Pass, "the other class is idle");
        assert!(calls.passes(mine, 1));
    }

    /// Story: gets of a shard that had not used the device before came eight at a time, as another shard had loaded the store in another
    /// class a while ago. Its first look took the others for active 50 ms before.
    #[test]
    fn an_account_that_is_new_to_a_device_knows_which_others_are_idle() {
        let (shared, specs) = (Arc::new(DeviceScheduler::new("d", 2, None)), Specs::default());
        let (began_ns, later_ns) = (1_000_000_000, 1_000_000_000 + 2 * ACTIVE_NS);
        let view = |me, now_ns| ShardView { me, now_ns, specs: &specs };
        let mut one = DeviceQueue::new(shared.clone(), began_ns);
        one.note_use(1, view(0, began_ns));
        one.beat(0).advance();
        let is_contended = |now_ns| {
            let mut other = DeviceQueue::new(shared.clone(), now_ns);
            other.note_use(2, view(1, now_ns));
            other.contended
        };
        assert!(is_contended(later_ns), "its operation is in flight");
        one.beat(0).note_idle(|| began_ns);
        assert!(is_contended(began_ns + ACTIVE_NS / 2) && !is_contended(later_ns));
    }

    /// Regression: a class whose operations pass is not noted. It counted as in use until another class started, however long it
    /// had been idle, and the first reads after a quiet time had the budget of competing classes.
    #[test]
    fn classes_compete_no_longer_after_an_account_was_idle() {
        let (shared, specs) = (Arc::new(DeviceScheduler::new("d", 2, None)), Specs::default());
        let (began_ns, later_ns) = (1_000_000_000, 1_000_000_000 + 2 * ACTIVE_NS);
        let view = |me, now_ns| ShardView { me, now_ns, specs: &specs };
        let mut one = DeviceQueue::new(shared.clone(), began_ns);
        let mut other = DeviceQueue::new(shared.clone(), began_ns);
        one.note_use(1, view(0, began_ns));
        one.beat(0).advance();
        one.beat(0).note_idle(|| began_ns);
        one.beat(0).note_idle(|| panic!("it was idle before"));
        other.note_use(2, view(1, later_ns));
        other.beat(1).advance();
        assert!(!other.contended, "the other account has been idle");
        // The first turn of the account that was idle, in which a second class starts.
        one.beat(0).advance();
        one.note_passed(1, view(0, later_ns));
        assert_eq!(one.active, 0);
        one.note_use(3, view(0, later_ns));
        assert_eq!(one.active, bit(3));
        // Turns that were not followed by idleness.
        one.beat(0).advance();
        one.note_passed(3, view(0, later_ns));
        other.find_users(view(1, later_ns));
        assert!(one.active == bit(3) && one.contended && other.contended);
    }
}
