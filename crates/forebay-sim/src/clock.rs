//! The clock of one node: it may be ahead of the world's time, and run faster or slower.

/// The most by which a clock may run fast or slow, in parts per million.
const DRIFT_PPM_MAX: i32 = 500_000;

const PPM: u128 = 1_000_000;

/// Converts between the world's time and the time that one node's clock shows. It is monotonic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeClock {
    /// Both times at the last change of the clock.
    world_ns: u64,
    own_ns: u64,
    drift_ppm: i32,
}

impl NodeClock {
    /// Shows the world's time.
    pub(crate) const EXACT: NodeClock = NodeClock { world_ns: 0, own_ns: 0, drift_ppm: 0 };

    /// Nanoseconds of the clock in a million of the world's.
    fn rate(&self) -> u128 {
        (PPM as i128 + i128::from(self.drift_ppm)) as u128
    }

    /// Returns the time that the clock shows at a time of the world.
    pub(crate) fn shows_ns(&self, world_ns: u64) -> u64 {
        let passed_ns = world_ns.saturating_sub(self.world_ns);
        let own_ns = match self.drift_ppm {
            0 => passed_ns,
            _ => saturated(u128::from(passed_ns) * self.rate() / PPM),
        };
        self.own_ns.saturating_add(own_ns)
    }

    /// Returns the first time of the world at which the clock shows `own_ns` or more.
    pub(crate) fn world_ns_at(&self, own_ns: u64) -> u64 {
        let left_ns = own_ns.saturating_sub(self.own_ns);
        let passed_ns = match self.drift_ppm {
            0 => left_ns,
            _ => saturated((u128::from(left_ns) * PPM).div_ceil(self.rate())),
        };
        self.world_ns.saturating_add(passed_ns)
    }

    /// Returns the clock with another drift from `world_ns` on.
    pub(crate) fn drifting(self, world_ns: u64, drift_ppm: i32) -> NodeClock {
        let drift_ppm = drift_ppm.clamp(-DRIFT_PPM_MAX, DRIFT_PPM_MAX);
        NodeClock { world_ns, own_ns: self.shows_ns(world_ns), drift_ppm }
    }

    /// Returns the clock put forward at `world_ns`.
    pub(crate) fn advanced(self, world_ns: u64, by_ns: u64) -> NodeClock {
        NodeClock { world_ns, own_ns: self.shows_ns(world_ns).saturating_add(by_ns), ..self }
    }
}

fn saturated(ns: u128) -> u64 {
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::NodeClock;

    #[test]
    fn a_deadline_is_reached_at_the_first_time_that_shows_it() {
        for drift_ppm in [-500_000, -333, 0, 1, 200, 499_999] {
            let clock = NodeClock::EXACT.advanced(1_000, 77).drifting(5_000, drift_ppm);
            for own_ns in (5_077..5_200).chain([1 << 40, (1 << 40) + 1]) {
                let at_ns = clock.world_ns_at(own_ns);
                assert!(clock.shows_ns(at_ns) >= own_ns, "{drift_ppm} {own_ns}");
                assert!(at_ns == 5_000 || clock.shows_ns(at_ns - 1) < own_ns, "{drift_ppm} {own_ns}");
            }
        }
    }

    #[test]
    fn a_clock_never_goes_back() {
        let fast = NodeClock::EXACT.drifting(0, 400_000);
        let before = fast.shows_ns(1_000_000);
        assert_eq!(before, 1_400_000);
        let slow = fast.drifting(1_000_000, -9_999_999);
        assert_eq!(slow.shows_ns(1_000_000), before);
        assert_eq!(slow.shows_ns(1_000_010), before + 5, "half the speed is the slowest");
        assert_eq!(NodeClock::EXACT.world_ns_at(u64::MAX), u64::MAX);
        assert_eq!(slow.world_ns_at(u64::MAX), u64::MAX);
    }
}
