//! The durations of operations: places in the disk, its bus, and the token buckets of a cloud. Whole numbers
//! only.

use crate::history::Fate;
use crate::profile::Profile;

/// The times at which the parts of one disk are free again, in nanoseconds of the world's clock.
#[derive(Debug)]
pub(super) struct Timing {
    /// One for each operation that the disk works on at the same time.
    places: Vec<u64>,
    bus_ns: u64,
    /// The time at which the bucket would be empty of debt. Operations may run ahead of it by the burst.
    iops_ns: u64,
}

/// The start and end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
}

const SECOND: u64 = 1_000_000_000;

impl Timing {
    pub(super) fn new(profile: &Profile) -> Timing {
        let places = profile.parallelism.min(profile.queue_depth).max(1) as usize;
        Timing { places: vec![0; places], bus_ns: 0, iops_ns: 0 }
    }

    pub(super) fn reset(&mut self) {
        self.places.fill(0);
        (self.bus_ns, self.iops_ns) = (0, 0);
    }

    /// Schedules an operation of `requests` requests that moves `bytes`. Returns its span.
    pub(super) fn take(
        &mut self,
        profile: &Profile,
        base_ns: u64,
        bytes: u64,
        requests: u64,
        now_ns: u64,
        fate: &mut Fate,
    ) -> Span {
        let free = self.places.iter().position(|&free| free <= now_ns);
        let place = free.or_else(|| {
            self.places.iter().enumerate().min_by_key(|(_, free)| **free).map(|(place, _)| place)
        });
        let place = place.unwrap_or(0);
        let mut start_ns = now_ns.max(self.places[place]);
        if profile.iops > 0 {
            let each = SECOND / profile.iops.min(SECOND);
            let allowed = self.iops_ns.saturating_sub(each.saturating_mul(profile.burst.max(1) - 1));
            start_ns = start_ns.max(allowed);
            self.iops_ns = self.iops_ns.max(start_ns).saturating_add(each.saturating_mul(requests));
        }
        start_ns = after_stall(profile, start_ns);
        let latency_ns = self.latency(profile, base_ns, fate);
        let mut end_ns = start_ns.saturating_add(latency_ns);
        if profile.bytes_per_second > 0 && bytes > 0 {
            let moves_ns = u128::from(bytes) * u128::from(SECOND) / u128::from(profile.bytes_per_second);
            let moves_ns = u64::try_from(moves_ns).unwrap_or(u64::MAX);
            // The bus moves one transfer after the other, in the order of their starts.
            self.bus_ns = self.bus_ns.max(start_ns).saturating_add(moves_ns);
            end_ns = end_ns.max(self.bus_ns);
        }
        self.places[place] = end_ns;
        Span { start_ns, end_ns }
    }

    fn latency(&self, profile: &Profile, base_ns: u64, fate: &mut Fate) -> u64 {
        if fate.source.ppm(profile.tail_ppm) {
            return base_ns.saturating_mul(u64::from(profile.tail_factor.max(1)));
        }
        let most = base_ns.saturating_mul(u64::from(profile.jitter_percent)) / 100;
        // A thousand steps are enough, and small choices are simple.
        let steps = fate.source.below(if most == 0 { 0 } else { 1000 });
        base_ns + (u128::from(most) * u128::from(steps) / 1000) as u64
    }
}

/// Returns when an operation that could start at `start_ns` does start: each period ends with a stall.
fn after_stall(profile: &Profile, start_ns: u64) -> u64 {
    let every_ns = profile.stall_every_ns;
    if profile.stall_ns == 0 || every_ns <= profile.stall_ns {
        return start_ns;
    }
    match start_ns % every_ns {
        phase if phase >= every_ns - profile.stall_ns => start_ns.saturating_add(every_ns - phase),
        _ => start_ns,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::source::Source;

    fn ends(profile: &Profile, operations: u64, bytes: u64) -> Vec<Span> {
        let (mut timing, mut fate) = (Timing::new(profile), Fate::new(Source::new(1)));
        (0..operations).map(|_| timing.take(profile, profile.read_ns, bytes, 1, 0, &mut fate)).collect()
    }

    #[test]
    fn a_bucket_gives_its_burst_at_once_and_then_its_rate() {
        let profile = Profile::ideal().iops(3_000, 600);
        let spans = ends(&profile, 6_600, 4096);
        assert_eq!(spans[599].start_ns, 0);
        assert!(spans[600].start_ns > 0);
        // The 6,000 behind the burst take two seconds, to a permille.
        let last = spans[6_599].start_ns;
        assert!(last.abs_diff(2 * SECOND) < SECOND / 500, "{last}");
    }

    #[test]
    fn a_bus_moves_what_it_can_in_a_second() {
        let profile = Profile::ideal().bandwidth(125_000_000);
        let last = ends(&profile, 1_000, 125_000).last().map(|span| span.end_ns).unwrap();
        assert!(last.abs_diff(SECOND) < SECOND / 100, "{last}");
    }

    #[test]
    fn nothing_begins_while_the_disk_stalls() {
        let millisecond = SECOND / 1000;
        let of = |profile: &Profile, at: u64| after_stall(profile, at * millisecond) / millisecond;
        let stalls = Profile::ideal().stall(Duration::from_secs(1), Duration::from_millis(50));
        assert_eq!(
            [0, 949, 950, 999, 1000, 1950].map(|at| of(&stalls, at)),
            [0, 949, 1000, 1000, 1000, 2000]
        );
        assert_eq!(of(&Profile::ideal(), 950), 950);
        // Operations under way continue.
        let slow = stalls.latency(Duration::from_millis(100), Duration::ZERO, Duration::ZERO);
        let (mut timing, mut fate) = (Timing::new(&slow), Fate::new(Source::new(1)));
        let span = timing.take(&slow, slow.read_ns, 0, 1, 900 * millisecond, &mut fate);
        assert_eq!((span.start_ns, span.end_ns), (900 * millisecond, SECOND));
    }

    #[test]
    fn places_limit_how_many_run_together() {
        let profile = Profile::ideal().parallelism(4).queue_depth(2);
        let starts: Vec<_> = ends(&profile, 6, 0).iter().map(|span| span.start_ns).collect();
        assert_eq!(starts, [0, 0, 1000, 1000, 2000, 2000]);
    }

    #[test]
    fn tails_are_rare_and_jitter_is_bounded() {
        let profile = Profile::nand().parallelism(100_000).queue_depth(100_000);
        let spans = ends(&profile, 20_000, 0);
        let tails = spans.iter().filter(|span| span.end_ns == 20 * profile.read_ns).count();
        assert!((5..50).contains(&tails), "{tails}");
        let most = profile.read_ns * 3 / 2;
        assert!(spans.iter().all(|span| span.end_ns <= most || span.end_ns == 20 * profile.read_ns));
    }
}
