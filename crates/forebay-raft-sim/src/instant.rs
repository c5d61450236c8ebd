//! Points in time on a node's clock.

use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::Duration;

use forebay_sim as sim;
use openraft_rt::Instant;

/// The start of a world, so that times before it have a value as well.
const BEGINNING: Duration = Duration::from_secs(1 << 40);

/// A point in time on the clock of a node; see [`sim::now`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SimInstant(Duration);

impl SimInstant {
    /// Returns the time that the clock shows then.
    pub(crate) fn on_clock(self) -> Duration {
        self.0.saturating_sub(BEGINNING)
    }
}

impl Instant for SimInstant {
    fn now() -> SimInstant {
        SimInstant(BEGINNING + sim::now())
    }
}

impl Add<Duration> for SimInstant {
    type Output = SimInstant;

    fn add(self, time: Duration) -> SimInstant {
        SimInstant(self.0.saturating_add(time))
    }
}

impl AddAssign<Duration> for SimInstant {
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

impl Sub<Duration> for SimInstant {
    type Output = SimInstant;

    fn sub(self, time: Duration) -> SimInstant {
        SimInstant(self.0.saturating_sub(time))
    }
}

impl SubAssign<Duration> for SimInstant {
    fn sub_assign(&mut self, time: Duration) {
        *self = *self - time;
    }
}

impl Sub<SimInstant> for SimInstant {
    type Output = Duration;

    fn sub(self, earlier: SimInstant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
