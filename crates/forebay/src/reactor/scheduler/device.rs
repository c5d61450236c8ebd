//! The state of one physical device that all accounts of an engine share.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::cost::PIECE_COST;
use super::depth_controller::{DepthController, Window};
use super::write_cost::{EVEN, Mix, WriteCost};
use crate::base::class::{CLASSES_MAX, NO_TENANT, Spec, Specs, TENANTS_MAX};
use crate::device::calibration::Calibration;
use crate::io::op::OpKind;

/// The number of virtual times: one per class and one per tenant.
pub(super) const TAGS: usize = CLASSES_MAX + TENANTS_MAX;
/// Fraction bits of virtual time: a cost advances it by cost * 2^10 / shares. A u64 lasts for 18 PB with one
/// share.
pub(super) const TAG_SHIFT: u32 = 10;
/// The cost of large requests that a quiet device may have in flight.
const QUIET_COST_MAX: u64 = 8 << 20;
/// A measuring window lasts at least this long, and at least `WINDOW_PIECES` pieces.
const WINDOW_NS: u64 = 1_000_000;
const WINDOW_PIECES: u64 = 64;
/// The credit that a cap may accumulate, as time. It covers how late a shard may check.
///
/// A shard that checks later than this after a cap has opened loses the rest of the time, so a smaller one keeps classes
/// below their caps. After a pause a class exceeds its cap by this much of it: `docs/tuning.md` promises the number.
const CAP_BURST_NS: u64 = 2_000_000;

/// One account's use of the device. It has its own cache line, which others read only while they find the
/// device contended.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Beat {
    /// Counts the account's turns with operations for the device.
    pub(super) turns: AtomicU64,
    /// One bit per class that it has used lately.
    pub(super) classes: AtomicU32,
    /// The number of turns after which it had nothing in flight, and the time of that.
    idle_turns: AtomicU64,
    idle_ns: AtomicU64,
}

impl Beat {
    /// Counts a turn. Only the account itself does so, so no atomic addition is needed.
    #[inline]
    pub(super) fn advance(&self) {
        self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Notes that nothing of the account is in flight or waits. Reads the clock only at the first time after a turn with operations.
    #[inline]
    pub(super) fn note_idle(&self, now_ns: impl FnOnce() -> u64) {
        let turns = self.turns.load(Ordering::Relaxed);
        if self.idle_turns.load(Ordering::Relaxed) != turns {
            self.idle_ns.store(now_ns(), Ordering::Relaxed);
            self.idle_turns.store(turns, Ordering::Release);
        }
    }

    /// Returns the time since which the account has been idle, if it was so after `turns` turns.
    pub(super) fn idle_since_ns(&self, turns: u64) -> Option<u64> {
        (self.idle_turns.load(Ordering::Acquire) == turns).then(|| self.idle_ns.load(Ordering::Relaxed))
    }
}

/// One physical device; see [`scheduler`](super).
#[derive(Debug)]
pub(crate) struct DeviceScheduler {
    pub(crate) name: String,
    /// Whether a calibration supplied the first budget and write cost.
    pub(crate) calibrated: bool,
    /// One bit per class that some account has used. The one that finds a stale bit clears it. Read once per
    /// turn.
    pub(super) classes: AtomicU32,
    pub(super) beats: Box<[Beat]>,
    /// One bit per shard that waits for room or for its turn.
    pub(super) waiting: AtomicU64,
    /// The cost that accounts have leased.
    leased: AtomicU64,
    budget: AtomicU64,
    /// The cost of a write relative to a read, in sixty-fourths.
    write_ratio: AtomicU32,
    pub(super) tags: [AtomicU64; TAGS],
    /// Virtual time of the device, followed by the virtual time within each tenant.
    pub(super) now: [AtomicU64; 1 + TENANTS_MAX],
    /// Per class, the number of shards with waiting operations.
    pub(super) backlog: [AtomicU32; CLASSES_MAX],
    /// For each cap of a class, the time up to which it is used up, in nanoseconds of the engine's clock.
    caps: [[AtomicU64; 4]; CLASSES_MAX],
    window: WindowCounts,
    estimates: Mutex<Estimates>,
    /// How often shards wrote `leased`, for the test that says what leases cost.
    #[cfg(feature = "_sim")]
    pub(super) lease_writes: LeaseWrites,
}

/// Returns the index of the virtual time that counts for a class, its own or its tenant's, and the shares
/// that count there.
pub(super) fn top(class: usize, specs: &Specs) -> (usize, u64) {
    match specs.classes[class].tenant {
        NO_TENANT => (class, u64::from(specs.classes[class].shares.max(1))),
        tenant => (CLASSES_MAX + usize::from(tenant), u64::from(specs.tenants[usize::from(tenant)].max(1))),
    }
}

/// The writes of the line that all shards share.
#[cfg(feature = "_sim")]
#[derive(Debug, Default)]
pub(super) struct LeaseWrites {
    pub(super) taken: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) given_back: AtomicU64,
    /// Shards that were woken because of released room.
    pub(super) wakes: AtomicU64,
}

/// The device's properties that are measured while classes compete for it.
#[derive(Debug)]
struct Estimates {
    depth_controller: DepthController,
    write_cost: WriteCost,
}

/// The completed operations, as cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CompletedCost {
    pub(super) cost: u64,
    /// The parts of `cost` that are writes and syncs.
    writes: u64,
    syncs: u64,
}

impl CompletedCost {
    pub(super) fn add(&mut self, kind: OpKind, cost: u64) {
        self.cost += cost;
        match kind {
            OpKind::Write => self.writes += cost,
            OpKind::SyncData | OpKind::SyncAll => self.syncs += cost,
            OpKind::Read | OpKind::Nop | OpKind::Command => {}
        }
    }
}

#[derive(Debug)]
struct WindowCounts {
    began_ns: AtomicU64,
    cost: AtomicU64,
    writes: AtomicU64,
    syncs: AtomicU64,
    limited: AtomicBool,
    late: AtomicBool,
    met: AtomicU32,
    missed: AtomicU32,
}

impl DeviceScheduler {
    pub(crate) fn new(name: &str, accounts: usize, known: Option<&Calibration>) -> DeviceScheduler {
        let depth_controller = known.map_or_else(DepthController::new, |known| {
            DepthController::at(u64::from(known.knee_depth) * PIECE_COST)
        });
        let write_cost = known.map_or(EVEN, |known| (known.write_cost * f64::from(EVEN)).round() as u32);
        DeviceScheduler {
            name: name.to_string(),
            calibrated: known.is_some(),
            classes: AtomicU32::new(0),
            beats: (0..accounts).map(|_| Beat::default()).collect(),
            waiting: AtomicU64::new(0),
            leased: AtomicU64::new(0),
            budget: AtomicU64::new(depth_controller.budget),
            write_ratio: AtomicU32::new(write_cost),
            tags: [const { AtomicU64::new(0) }; TAGS],
            now: [const { AtomicU64::new(0) }; 1 + TENANTS_MAX],
            backlog: [const { AtomicU32::new(0) }; CLASSES_MAX],
            caps: [const { [const { AtomicU64::new(0) }; 4] }; CLASSES_MAX],
            window: WindowCounts {
                began_ns: AtomicU64::new(0),
                cost: AtomicU64::new(0),
                writes: AtomicU64::new(0),
                syncs: AtomicU64::new(0),
                limited: AtomicBool::new(false),
                late: AtomicBool::new(false),
                met: AtomicU32::new(0),
                missed: AtomicU32::new(0),
            },
            estimates: Mutex::new(Estimates { depth_controller, write_cost: WriteCost::new(write_cost) }),
            #[cfg(feature = "_sim")]
            lease_writes: LeaseWrites::default(),
        }
    }

    pub(crate) fn budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    /// Returns the cost of a write relative to a read of the same size.
    pub(crate) fn write_cost(&self) -> f64 {
        f64::from(self.write_ratio.load(Ordering::Relaxed)) / f64::from(EVEN)
    }

    /// Returns the charge of an operation of this kind to its class's share: `cost` for a read.
    #[inline]
    pub(super) fn weigh(&self, kind: OpKind, cost: u64) -> u64 {
        match kind {
            OpKind::Write => (cost * u64::from(self.write_ratio.load(Ordering::Relaxed))) / u64::from(EVEN),
            _ => cost,
        }
    }

    /// Leases room for `cost` more in flight; returns whether it succeeded. On a contended device the budget is the limit.
    pub(super) fn lease(&self, cost: u64, contended: bool) -> bool {
        let limit = if contended { self.budget() } else { QUIET_COST_MAX.max(self.budget()) };
        let take = |leased: u64| (leased == 0 || leased + cost <= limit).then_some(leased + cost);
        let had_room = self.leased.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        #[cfg(feature = "_sim")]
        if had_room { &self.lease_writes.taken } else { &self.lease_writes.refused }
            .fetch_add(1, Ordering::Relaxed);
        had_room
    }

    /// Returns whether an account without a queue may have a place for an operation of this class. An operation that waits
    /// elsewhere is first, unless the class is alone.
    #[inline]
    pub(crate) fn takes_calls(&self, class: usize) -> bool {
        self.classes.load(Ordering::Relaxed) & !(1 << class) == 0 || !self.has_backlog()
    }

    /// Returns whether operations wait for room or for their turn on any shard.
    pub(super) fn has_backlog(&self) -> bool {
        self.backlog.iter().any(|shards| shards.load(Ordering::Relaxed) > 0)
    }

    /// Brings an idle class's virtual time up to now: a class does not catch up on a share that it did not
    /// request.
    pub(super) fn catch_up(&self, class: usize, specs: &Specs) {
        let now = self.now[0].load(Ordering::Relaxed);
        self.tags[top(class, specs).0].fetch_max(now, Ordering::Relaxed);
        if let Some(now) = self.now.get(1 + usize::from(specs.classes[class].tenant)) {
            self.tags[class].fetch_max(now.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Advances the virtual times of a class whose operation is submitted, and of the device.
    pub(super) fn advance(&self, class: usize, weight: u64, specs: &Specs) {
        let ((place, shares), spec) = (top(class, specs), &specs.classes[class]);
        let start = self.tags[place].fetch_add((weight << TAG_SHIFT) / shares, Ordering::Relaxed);
        self.now[0].fetch_max(start, Ordering::Relaxed);
        if let Some(now) = self.now.get(1 + usize::from(spec.tenant)) {
            let takes = (weight << TAG_SHIFT) / u64::from(spec.shares.max(1));
            now.fetch_max(self.tags[class].fetch_add(takes, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Returns how often leases were taken, refused and returned, and shards woken because of released room.
    #[cfg(feature = "_sim")]
    pub(crate) fn lease_writes(&self) -> [u64; 4] {
        let LeaseWrites { taken, refused, given_back, wakes } = &self.lease_writes;
        [taken, refused, given_back, wakes].map(|count| count.load(Ordering::Relaxed))
    }

    /// Takes a lease even without room for it.
    pub(super) fn lease_anyway(&self, cost: u64) {
        #[cfg(feature = "_sim")]
        self.lease_writes.taken.fetch_add(1, Ordering::Relaxed);
        self.leased.fetch_add(cost, Ordering::Relaxed);
    }

    pub(super) fn give_back(&self, cost: u64) {
        #[cfg(feature = "_sim")]
        self.lease_writes.given_back.fetch_add(1, Ordering::Relaxed);
        let leased = self.leased.fetch_sub(cost, Ordering::Relaxed);
        debug_assert!(leased >= cost, "no more is given back than was leased: {cost} of {leased}");
    }

    /// Returns whether the leases exceed the current budget.
    pub(super) fn is_overdrawn(&self) -> bool {
        self.leased.load(Ordering::Relaxed) > self.budget()
    }

    /// Returns the time at which a capped class may continue, 0 for now. Charges nothing.
    pub(super) fn cap_opens_ns(&self, class: usize, spec: &Spec, is_write: bool, now_ns: u64) -> u64 {
        let dims = if is_write { [1, 3] } else { [0, 2] };
        let open = |dim: usize| match spec.caps[dim] {
            0 => 0,
            _ => self.caps[class][dim].load(Ordering::Relaxed),
        };
        let opens_ns = dims.into_iter().map(open).max().unwrap_or(0);
        if opens_ns <= now_ns { 0 } else { opens_ns }
    }

    /// Charges an operation to its class's caps. Each cap is a bucket that is used up to a certain time (virtual scheduling, ITU
    /// I.371); an operation may start at that time.
    pub(super) fn charge_caps(&self, class: usize, spec: &Spec, is_write: bool, bytes: u32, now_ns: u64) {
        let amounts =
            if is_write { [(1, u64::from(bytes)), (3, 1)] } else { [(0, u64::from(bytes)), (2, 1)] };
        for (dim, amount) in amounts {
            if spec.caps[dim] == 0 {
                continue;
            }
            let takes_ns = u128::from(amount) * 1_000_000_000 / u128::from(spec.caps[dim]);
            let takes_ns = u64::try_from(takes_ns).unwrap_or(u64::MAX);
            let from = |used: u64| used.max(now_ns.saturating_sub(CAP_BURST_NS));
            let _ = self.caps[class][dim].fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                Some(from(used).saturating_add(takes_ns))
            });
        }
    }

    /// Converts the time that a class has used ahead at its old caps to its new caps. A cap that is new or lifted starts at zero.
    pub(crate) fn change_caps(&self, class: usize, before: [u64; 4], caps: [u64; 4], now_ns: u64) {
        for (dim, (before, cap)) in before.into_iter().zip(caps).enumerate() {
            let used_until = &self.caps[class][dim];
            if before == 0 || cap == 0 {
                used_until.store(0, Ordering::Relaxed);
            } else if before != cap {
                let _ = used_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until| {
                    let ahead_ns = u128::from(until.checked_sub(now_ns)?);
                    let ahead_ns = ahead_ns * u128::from(before) / u128::from(cap);
                    Some(now_ns.saturating_add(u64::try_from(ahead_ns).unwrap_or(u64::MAX)))
                });
            }
        }
    }

    pub(super) fn note_limited(&self) {
        if !self.window.limited.load(Ordering::Relaxed) {
            self.window.limited.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn note_late(&self) {
        self.window.late.store(true, Ordering::Relaxed);
    }

    /// Counts a timed operation of a class with a latency goal as met or missed; `ns` is the device's time.
    pub(super) fn note_time(&self, ns: u64, goal_ns: u64) {
        let counter = if ns <= goal_ns { &self.window.met } else { &self.window.missed };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Starts a window now. A quiet device has no windows, so the next one starts here.
    pub(super) fn begin_window(&self, now_ns: u64) {
        self.window.began_ns.store(now_ns, Ordering::Relaxed);
        for counter in [&self.window.cost, &self.window.writes, &self.window.syncs] {
            counter.store(0, Ordering::Relaxed);
        }
        self.window.limited.store(false, Ordering::Relaxed);
        // Operations already in flight would distort the first window, so it is marked late.
        self.window.late.store(true, Ordering::Relaxed);
    }

    /// Adds completed operations. The shard that finds the window finished evaluates it.
    pub(super) fn completed(&self, done: CompletedCost, now_ns: u64) {
        let CompletedCost { cost, writes, syncs } = done;
        for (counter, more) in [(&self.window.writes, writes), (&self.window.syncs, syncs)] {
            if more > 0 {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
        let total = self.window.cost.fetch_add(cost, Ordering::Relaxed) + cost;
        let ns = now_ns.saturating_sub(self.window.began_ns.load(Ordering::Relaxed));
        if ns < WINDOW_NS || total < WINDOW_PIECES * PIECE_COST {
            return;
        }
        // Another shard that holds the lock evaluates the window.
        let Ok(mut estimates) = self.estimates.try_lock() else { return };
        let writes = self.window.writes.swap(0, Ordering::Relaxed);
        let others = self.window.syncs.swap(0, Ordering::Relaxed);
        let all = self.window.cost.swap(0, Ordering::Relaxed);
        let mix = Mix { reads: all.saturating_sub(writes + others), writes, others, ns };
        let window = Window {
            // Counted by the device's time, so that the device's capability does not change with the mix of requests.
            cost: weight(mix, estimates.write_cost.ratio),
            ns,
            limited: self.window.limited.swap(false, Ordering::Relaxed),
            late: self.window.late.swap(false, Ordering::Relaxed),
            met: self.window.met.swap(0, Ordering::Relaxed),
            missed: self.window.missed.swap(0, Ordering::Relaxed),
        };
        self.window.began_ns.store(now_ns, Ordering::Relaxed);
        let tells = estimates.depth_controller.end_window(&window);
        if tells {
            let before = weight(mix, estimates.write_cost.ratio);
            estimates.write_cost.end_window(mix);
            let after = weight(mix, estimates.write_cost.ratio);
            estimates.depth_controller.reweigh(before, after);
            self.write_ratio.store(estimates.write_cost.ratio, Ordering::Relaxed);
        }
        self.budget.store(estimates.depth_controller.budget, Ordering::Relaxed);
    }
}

/// Returns the combined cost of a window's operations, with writes weighted by `ratio`.
fn weight(mix: Mix, ratio: u32) -> u64 {
    mix.reads + mix.others + mix.writes * u64::from(ratio) / u64::from(EVEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_is_kept_however_often_a_shard_looks() {
        let device = DeviceScheduler::new("d", 1, None);
        let spec = Spec { caps: [10_000_000, 0, 0, 0], ..Spec::default() };
        for (class, look_ns) in [(3, 10_000), (4, 1_000_000)] {
            let (mut bytes, mut at) = (0u64, 1_000_000_000);
            let began = at;
            while at < began + 1_000_000_000 {
                while device.cap_opens_ns(class, &spec, false, at) == 0 {
                    device.charge_caps(class, &spec, false, 4096, at);
                    bytes += 4096;
                }
                at += look_ns;
            }
            assert!(bytes.abs_diff(10_000_000) < 100_000, "{bytes} bytes, looking every {look_ns} ns");
        }
        assert_eq!(device.cap_opens_ns(3, &spec, true, 0), 0, "writes have no cap");
    }

    /// A class read 4 KiB at a byte a second, and had 4,096 s to wait when its cap was raised, and later lifted.
    #[test]
    fn what_is_used_counts_at_the_new_cap() {
        let device = DeviceScheduler::new("d", 1, None);
        let capped = |cap| Spec { caps: [cap, 0, 0, 0], ..Spec::default() };
        let (now_ns, second) = (1_000_000_000_000, 1_000_000_000);
        device.charge_caps(3, &capped(1), false, 4096, now_ns);
        assert!(device.cap_opens_ns(3, &capped(1), false, now_ns) > now_ns + 4_000 * second);
        device.change_caps(3, capped(1).caps, capped(4096).caps, now_ns);
        let opens_ns = device.cap_opens_ns(3, &capped(4096), false, now_ns);
        assert!(opens_ns > now_ns && opens_ns <= now_ns + second, "{opens_ns}");
        device.change_caps(3, capped(4096).caps, capped(1).caps, now_ns);
        assert!(device.cap_opens_ns(3, &capped(1), false, now_ns) > now_ns + 4_000 * second, "lowered");
        device.change_caps(3, capped(1).caps, capped(0).caps, now_ns);
        device.change_caps(3, capped(0).caps, capped(1).caps, now_ns);
        assert_eq!(device.cap_opens_ns(3, &capped(1), false, now_ns), 0, "lifted, and set anew");
    }

    #[test]
    fn leases_end_with_the_budget_and_one_is_always_had() {
        let device = DeviceScheduler::new("d", 1, None);
        assert!(device.lease(100 << 20, true), "the first whatever it costs");
        assert!(!device.lease(1, true));
        device.give_back(100 << 20);
        let mut leased = 0;
        while device.lease(1 << 12, true) {
            leased += 1 << 12;
        }
        assert!(leased <= device.budget() && leased + (1 << 12) > device.budget());
        assert!(!device.is_overdrawn());
    }
}
