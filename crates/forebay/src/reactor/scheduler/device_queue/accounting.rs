//! Charges operations that go to the device and credits them when they complete.

use std::sync::atomic::Ordering;

use super::{DeviceQueue, Request, ShardView, bit, bits, top};
use crate::base::class::Specs;
use crate::io::op::OpKind;
use crate::reactor::scheduler::cost::cost;
use crate::reactor::scheduler::device::TAG_SHIFT;

impl DeviceQueue {
    /// Counts an operation that went to the device. Returns its cost, which its slot stores.
    pub(in crate::reactor::scheduler) fn charge(&mut self, request: Request, view: ShardView<'_>) -> u32 {
        let (class, specs) = (request.class, view.specs);
        let spec = &specs.classes[class];
        if spec.is_capped() {
            self.shared.charge_caps(class, spec, request.is_write(), request.bytes, view.now_ns);
        }
        // Limited to the slot's u32, so that exactly the amount taken is returned later.
        let cost = cost(request.bytes).min(u64::from(u32::MAX));
        self.used += cost;
        if self.used > self.lease {
            self.shared.lease_anyway(self.used - self.lease);
            self.lease = self.used;
        }
        debug_assert!(self.used <= self.lease, "what is in flight is leased");
        if self.contended {
            let (place, shares) = top(class, specs);
            // Shares are shares of the device's time. The limit on operations in flight is not, so it does
            // not depend on the ratio.
            let weight = self.shared.weigh(request.kind, cost);
            let start = self.shared.tags[place].fetch_add((weight << TAG_SHIFT) / shares, Ordering::Relaxed);
            self.shared.now[0].fetch_max(start, Ordering::Relaxed);
            if let Some(now) = self.shared.now.get(1 + usize::from(spec.tenant)) {
                let takes = (weight << TAG_SHIFT) / u64::from(spec.shares.max(1));
                now.fetch_max(self.shared.tags[class].fetch_add(takes, Ordering::Relaxed), Ordering::Relaxed);
            }
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
