//! The offset of another host's clock, estimated from round trips.

/// The lead of another host's monotonic clock over this host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Offset {
    pub(super) ahead_ns: i128,
    /// The bound on the distance of the true offset, however unequal the two ways were.
    pub(super) error_ns: u64,
}

impl Offset {
    /// The offset before any round trip.
    pub(super) const UNKNOWN: Self = Self { ahead_ns: 0, error_ns: u64::MAX };

    /// Estimates the offset from a request for the clock and its reply: sent and received on this host's clock, arrived
    /// and replied on the other's.
    pub(super) fn of(sent_ns: u64, arrived_ns: u64, replied_ns: u64, received_ns: u64) -> Self {
        let there = i128::from(arrived_ns) - i128::from(sent_ns);
        let back = i128::from(replied_ns) - i128::from(received_ns);
        let on_the_way = (there - back).max(0);
        Self { ahead_ns: (there + back) / 2, error_ns: u64::try_from(on_the_way / 2).unwrap_or(u64::MAX) }
    }

    /// Returns the better of two estimates: that of the faster round trip, whose two ways can differ least.
    pub(super) fn or(self, other: Self) -> Self {
        if other.error_ns < self.error_ns { other } else { self }
    }

    /// Converts an instant of this host's clock to the other's.
    pub(super) fn to_theirs(self, ours_ns: u64) -> u64 {
        u64::try_from(i128::from(ours_ns) + self.ahead_ns).unwrap_or(0)
    }

    /// Converts an instant of the other host's clock to this one's. It may lie before this clock began.
    pub(super) fn to_ours(self, theirs_ns: u64) -> i128 {
        i128::from(theirs_ns) - self.ahead_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AHEAD: i128 = -5_000_000_000;

    fn trip(sent_ns: u64, way_there: u64, thinking: u64, way_back: u64) -> Offset {
        let theirs = |ours: u64| u64::try_from(i128::from(ours) + AHEAD).expect("after their start");
        let arrived = sent_ns + way_there;
        let replied = arrived + thinking;
        Offset::of(sent_ns, theirs(arrived), theirs(replied), replied + way_back)
    }

    #[test]
    fn equal_ways_give_the_offset_exactly_however_long_the_reply_took() {
        let offset = trip(9_000_000_000, 40_000, 7_000_000, 40_000);
        assert_eq!(offset, Offset { ahead_ns: AHEAD, error_ns: 40_000 });
        assert_eq!(offset.to_theirs(9_000_000_000), 4_000_000_000);
        assert_eq!(offset.to_ours(4_000_000_000), 9_000_000_000);
    }

    #[test]
    fn the_fastest_trip_decides_and_its_error_holds_the_truth() {
        let trips = [
            trip(9_000_000_000, 900_000, 0, 20_000),
            trip(9_100_000_000, 30_000, 10_000, 50_000),
            trip(9_200_000_000, 20_000, 0, 5_000_000),
        ];
        let offset = trips.into_iter().fold(Offset::UNKNOWN, Offset::or);
        assert_eq!(offset.error_ns, 40_000);
        assert!((offset.ahead_ns - AHEAD).unsigned_abs() <= u128::from(offset.error_ns), "{offset:?}");
    }
}
