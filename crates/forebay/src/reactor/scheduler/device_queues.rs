//! An account's device queues: one for each physical device that it uses.

use std::sync::atomic::Ordering;

use super::cost::PIECE_BYTES;
use super::device_queue::{Counts, DeviceQueue, Request, ShardView};
use crate::base::class::Specs;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::shard::optable::{OpTable, Slot};

/// The decision on the submission of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is submitted without being counted.
    Pass,
    /// It is submitted, and counted after that.
    Count,
    /// It waits in its class's queue.
    Wait,
}

/// Value of `quiet` while no device and class is the quiet one.
const NONE: u32 = u32::MAX;
const NO_LANE: u16 = u16::MAX;
/// Value of `wake_at_ns` without a later time to check at.
const NEVER: u64 = u64::MAX;

/// All device queues of an account. Small operations of the one quiet device and class, if any, pass without a check.
pub(crate) struct DeviceQueues {
    /// The account's number.
    me: usize,
    quiet: u32,
    quiet_queue: usize,
    version: u32,
    /// Index of the device queue by the device's number. Several numbers may be one physical device.
    places: Vec<u16>,
    list: Vec<DeviceQueue>,
    specs: Specs,
    /// The number of operations in all queues.
    waiting: u32,
    wake_at_ns: u64,
    /// Set at the shard's end: nothing waits from then on.
    open: bool,
}

#[inline]
fn key(device: u16, slot: &Slot) -> u32 {
    u32::from(device) << 8 | u32::from(slot.class.0)
}

impl DeviceQueues {
    pub(crate) fn new(me: usize) -> DeviceQueues {
        DeviceQueues {
            me,
            quiet: NONE,
            quiet_queue: 0,
            version: 0,
            places: Vec::new(),
            list: Vec::new(),
            specs: Specs::default(),
            waiting: 0,
            wake_at_ns: NEVER,
            open: false,
        }
    }

    /// Returns the number of operations that wait for their turn.
    #[inline]
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Returns the time at which a waiting operation may start even if nothing completes until then.
    #[inline]
    pub(crate) fn wake_at_ns(&self) -> Option<u64> {
        (self.waiting > 0 && self.wake_at_ns != NEVER).then_some(self.wake_at_ns)
    }

    /// Notes that nothing of this account is in flight: so it is known when a class was used last that is not noted while it is quiet.
    #[inline]
    pub(crate) fn note_idle(&self, now_ns: impl Fn() -> u64) {
        if self.waiting == 0 {
            self.list.iter().for_each(|device_queue| device_queue.beat(self.me).note_idle(&now_ns));
        }
    }

    /// Runs before a turn's operations: checks whether the quiet class is still the only one.
    #[inline]
    pub(crate) fn begin_turn(&mut self, engine: &EngineShared) {
        if self.list.is_empty() {
            return;
        }
        if self.quiet != NONE {
            let device_queue = &self.list[self.quiet_queue];
            device_queue.beat(self.me).advance();
            if device_queue.shared.classes.load(Ordering::Relaxed) == device_queue.active
                && self.version == engine.classes.version()
            {
                return;
            }
        }
        self.begin_loud_turn(engine);
    }

    #[cold]
    fn begin_loud_turn(&mut self, engine: &EngineShared) {
        let now_ns = engine.now_ns();
        self.renew_specs(engine);
        self.end_quiet(now_ns);
        for device_queue in &mut self.list {
            device_queue.begin_turn(now_ns);
        }
        self.wake_at_ns = NEVER;
    }

    /// Ends the quiet state, in which the last use of its class was not recorded.
    fn end_quiet(&mut self, now_ns: u64) {
        if self.quiet != NONE {
            let class = (self.quiet & 0xff) as usize % crate::base::class::CLASSES_MAX;
            let view = ShardView { me: self.me, now_ns, specs: &self.specs };
            self.list[self.quiet_queue].note_passed(class, view);
            self.quiet = NONE;
        }
    }

    fn renew_specs(&mut self, engine: &EngineShared) {
        if self.version != engine.classes.version() {
            (self.specs, self.version) = engine.classes.specs();
        }
    }

    /// Decides whether an operation may be submitted. Costs one comparison on a quiet device.
    #[inline]
    pub(crate) fn admit(&mut self, device: u16, slot: &Slot, engine: &EngineShared) -> Admission {
        if (key(device, slot) == self.quiet && slot.len <= PIECE_BYTES) || device == 0 {
            return Admission::Pass;
        }
        self.admit_loud(device, slot, engine)
    }

    #[cold]
    fn admit_loud(&mut self, device: u16, slot: &Slot, engine: &EngineShared) -> Admission {
        let now_ns = engine.now_ns();
        self.renew_specs(engine);
        let place = self.device_queue_of(device, engine, now_ns);
        if key(device, slot) != self.quiet {
            self.end_quiet(now_ns);
        }
        let view = ShardView { me: self.me, now_ns, specs: &self.specs };
        let Some(device_queue) = self.list.get_mut(place) else { return Admission::Pass };
        let admission = match device_queue.admit(Request::of(slot), view) {
            Admission::Wait if self.open => Admission::Count,
            admission => admission,
        };
        let alone =
            device_queue.active == 1 << slot.class.index() && self.list.iter().all(DeviceQueue::is_calm);
        if alone && !self.specs.classes[slot.class.index()].is_capped() && admission != Admission::Wait {
            (self.quiet, self.quiet_queue) = (key(device, slot), place);
        }
        admission
    }

    /// Admits an operation that a thread carries out itself, and charges it. Returns the charge, 0 if it is not counted; `None` if
    /// the operation has to be sent to a shard, which has a queue for it.
    #[inline]
    pub(crate) fn admit_call(&mut self, device: u16, request: Request, engine: &EngineShared) -> Option<u32> {
        let passes = |place: usize| self.list[place].passes(request.class, self.me);
        if device == 0 || self.place(device).is_some_and(passes) {
            return Some(0);
        }
        self.admit_call_loud(device, request, engine)
    }

    #[cold]
    fn admit_call_loud(&mut self, device: u16, request: Request, engine: &EngineShared) -> Option<u32> {
        let now_ns = engine.now_ns();
        self.renew_specs(engine);
        let place = self.device_queue_of(device, engine, now_ns);
        let view = ShardView { me: self.me, now_ns, specs: &self.specs };
        let Some(device_queue) = self.list.get_mut(place) else { return Some(0) };
        match device_queue.admit_call(request, view) {
            Admission::Pass => Some(0),
            Admission::Count => Some(device_queue.charge(request, view)),
            Admission::Wait => None,
        }
    }

    /// Releases the charge of such an operation at its end. Returns the shards to wake, one bit each.
    #[cold]
    pub(crate) fn end_call(
        &mut self,
        device: u16,
        request: Request,
        charge: u32,
        engine: &EngineShared,
    ) -> u64 {
        let Some(place) = self.place(device) else { return 0 };
        let (device_queue, now_ns) = (&mut self.list[place], engine.now_ns());
        device_queue.complete(request.class, request.kind, charge, now_ns);
        device_queue.begin_turn(now_ns);
        // It has no bit: nothing waits here.
        device_queue.end_turn(0)
    }

    /// Returns the index of a device's device queue. The first use of a device creates the device queue.
    fn device_queue_of(&mut self, device: u16, engine: &EngineShared, now_ns: u64) -> usize {
        if let Some(&place) = self.places.get(usize::from(device))
            && place != NO_LANE
        {
            return usize::from(place);
        }
        let Some(shared) = engine.scheduler_of(device) else { return usize::MAX };
        if self.places.len() <= usize::from(device) {
            self.places.resize(usize::from(device) + 1, NO_LANE);
        }
        let known =
            self.list.iter().position(|device_queue| std::sync::Arc::ptr_eq(&device_queue.shared, &shared));
        let place = known.unwrap_or_else(|| {
            self.list.push(DeviceQueue::new(shared, now_ns));
            self.list.len() - 1
        });
        self.places[usize::from(device)] = place as u16;
        place
    }

    fn place(&self, device: u16) -> Option<usize> {
        self.places
            .get(usize::from(device))
            .filter(|&&place| place != NO_LANE)
            .map(|&place| usize::from(place))
    }

    /// Queues an operation that was not admitted.
    #[cold]
    pub(crate) fn enqueue(&mut self, table: &mut OpTable, device: u16, index: u32, engine: &EngineShared) {
        let Some(place) = self.place(device) else { return };
        debug_assert_eq!(
            self.waiting > 0,
            self.list.iter().any(DeviceQueue::is_waiting),
            "each queued operation is counted"
        );
        self.list[place].enqueue(table, index, engine.now_ns());
        self.waiting += 1;
        self.quiet = NONE;
    }

    /// Returns the next waiting operation, if it may start now.
    #[cold]
    pub(crate) fn dispatch(&mut self, table: &mut OpTable, engine: &EngineShared) -> Option<u32> {
        let view = ShardView { me: self.me, now_ns: engine.now_ns(), specs: &self.specs };
        let wake_at_ns = &mut self.wake_at_ns;
        let index = self
            .list
            .iter_mut()
            .filter(|device_queue| device_queue.is_waiting())
            .find_map(|device_queue| device_queue.dispatch(table, view, wake_at_ns))?;
        self.waiting -= 1;
        debug_assert_eq!(
            self.waiting > 0,
            self.list.iter().any(DeviceQueue::is_waiting),
            "each queued operation is counted"
        );
        Some(index)
    }

    /// Returns the longest piece of one request to a device.
    #[inline]
    pub(crate) fn piece_bytes(&self, device: u16, grain: u32) -> u32 {
        self.place(device).map_or(u32::MAX, |place| self.list[place].piece_bytes(grain))
    }

    /// Counts a submitted operation of `bytes`. Returns the charge that its slot stores.
    #[cold]
    pub(crate) fn charge(&mut self, device: u16, slot: &Slot, bytes: u32, engine: &EngineShared) -> u32 {
        let Some(place) = self.place(device) else { return 0 };
        let view = ShardView { me: self.me, now_ns: engine.now_ns(), specs: &self.specs };
        self.list[place].charge(Request { bytes, ..Request::of(slot) }, view)
    }

    /// Counts the completion of an operation that was charged.
    #[cold]
    pub(crate) fn complete(&mut self, slot: &mut Slot, device_ns: Option<u64>, engine: &EngineShared) {
        let cost = std::mem::take(&mut slot.charge);
        let Some(place) = self.place(slot.device) else { return };
        debug_assert!(cost > 0, "only operations that were charged are given back");
        let device_queue = &mut self.list[place];
        device_queue.complete(slot.class.index(), slot.kind, cost, engine.now_ns());
        let goal_ns = self.specs.classes[slot.class.index()].goal_ns;
        if let Some(ns) = device_ns.filter(|_| device_queue.contended && goal_ns != 0) {
            device_queue.shared.note_time(ns, goal_ns);
        }
    }

    /// Runs after a turn's operations: releases the leases that this account does not use. Returns the shards
    /// to wake, one bit each.
    #[inline]
    pub(crate) fn end_turn(&mut self) -> u64 {
        if self.quiet != NONE {
            return 0;
        }
        let mine = 1 << self.me;
        let busy =
            self.list.iter_mut().filter(|device_queue| device_queue.contended || device_queue.is_waiting());
        busy.fold(0, |wake, device_queue| wake | device_queue.end_turn(mine))
    }

    /// Admits every operation immediately from now on, because the shard is ending.
    pub(crate) fn open(&mut self) {
        self.open = true;
        self.quiet = NONE;
    }

    /// Forgets the waiting operations, after each was ended another way, and releases all leases.
    pub(crate) fn retire(&mut self) {
        self.waiting = 0;
        self.quiet = NONE;
        let me = self.me;
        self.list.iter_mut().for_each(|device_queue| device_queue.retire(me));
    }

    /// Returns the cost and the number of the operations in flight that were charged, over all device queues.
    #[cfg(debug_assertions)]
    pub(crate) fn in_flight(&self) -> (u64, u32) {
        self.list.iter().map(DeviceQueue::in_flight).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    /// Returns the counters by the device's name and the class.
    pub(crate) fn counts(&self) -> Vec<(String, usize, Counts)> {
        let of_lane = |device_queue: &DeviceQueue| {
            let name = device_queue.shared.name.clone();
            device_queue.counts().map(|(class, counts)| (name.clone(), class, counts)).collect::<Vec<_>>()
        };
        self.list
            .iter()
            .flat_map(of_lane)
            .filter(|(_, _, counts)| counts.received > 0 || counts.queued > 0)
            .collect()
    }
}
