//! The amount that a device needs in flight: the smallest amount that keeps its throughput. It is measured
//! while classes compete for the device.
//!
//! Windows are measured one after the other: the cost completed per time. At first the budget doubles as long as that brings a
//! tenth more. Later an occasional window with a smaller budget shows whether less is enough. Rarely, a window with a larger budget
//! shows whether more has become worthwhile. A window counts only when operations waited for the budget; otherwise the program
//! requested no more. The device must also have had work all the time: a late shard finds everything done and the device idle,
//! which gives no information about the device.

use super::cost::PIECE_COST;

/// The upper limit of a budget.
pub(super) const BUDGET_MAX: u64 = 64 << 20;
/// The least number of pieces in flight of a budget: one that moves and one behind it.
const PIECES_MIN: u64 = 2;
/// Windows between two tries with a smaller budget. The number doubles, up to the second value, while less is
/// not enough.
const DOWN_EVERY: (u32, u32) = (16, 256);
/// Windows between two tries with a larger budget. A try costs other operations time; each is less than 0.2 %
/// of the time.
const UP_EVERY: u32 = 512;
/// The number of consecutive late windows that double the budget: the operations in flight must last until
/// the shard checks again.
const LATE_MAX: u32 = 4;
/// The limit up to which late windows double the budget.
const LATE_BUDGET_MAX: u64 = 4 << 20;

/// The figures of one window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    pub(super) cost: u64,
    pub(super) ns: u64,
    /// Operations waited for the budget.
    pub(super) limited: bool,
    /// The device was found idle although operations waited.
    pub(super) late: bool,
    /// Timed operations of classes with a latency goal: `met` within the goal, `missed` beyond it.
    pub(super) met: u32,
    pub(super) missed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// The budget doubles; holds the rate before.
    Growing(u64),
    Steady,
    /// One window with a smaller budget, or with a larger one; holds the budget before.
    Less(u64),
    More(u64),
}

/// A device's budget and the state of its search.
#[derive(Debug)]
pub(super) struct DepthController {
    pub(super) budget: u64,
    phase: Phase,
    /// Cost per millisecond in the windows that counted, smoothed.
    rate: u64,
    until_less: u32,
    less_every: u32,
    until_more: u32,
    late: u32,
}

impl DepthController {
    pub(super) fn new() -> DepthController {
        DepthController {
            budget: LEAST,
            phase: Phase::Growing(0),
            rate: 0,
            until_less: DOWN_EVERY.0,
            less_every: DOWN_EVERY.0,
            until_more: UP_EVERY,
            late: 0,
        }
    }

    /// Starts at the knee that a calibration found; the current knee is searched from there.
    pub(super) fn at(budget: u64) -> DepthController {
        DepthController {
            budget: budget.clamp(LEAST, BUDGET_MAX),
            phase: Phase::Steady,
            ..DepthController::new()
        }
    }

    /// Rescales the rate when a cost of `before` now counts as `after`.
    pub(super) fn reweigh(&mut self, before: u64, after: u64) {
        if before != after {
            let rate = u128::from(self.rate) * u128::from(after) / u128::from(before.max(1));
            self.rate = u64::try_from(rate).unwrap_or(u64::MAX);
        }
    }

    fn set(&mut self, budget: u64) {
        self.budget = budget.clamp(LEAST, BUDGET_MAX);
    }

    /// Evaluates a window's figures and sets `budget` for the next one. Returns true when the device had
    /// enough work all the time, so that the window shows its capability.
    pub(super) fn end_window(&mut self, window: &Window) -> bool {
        debug_assert!((LEAST..=BUDGET_MAX).contains(&self.budget), "the budget keeps its limits");
        let rate = window.cost.saturating_mul(1_000_000) / window.ns.max(1);
        if window.missed > window.met / 8 {
            // Too many operations missed their class's latency goal: reduce the budget at any cost.
            self.phase = Phase::Steady;
            self.set(self.budget - self.budget / 4);
            return false;
        }
        if window.late {
            self.late += 1;
            if self.late >= LATE_MAX {
                self.late = 0;
                self.set((self.budget * 2).min(LATE_BUDGET_MAX.max(self.budget)));
            }
            return false;
        }
        self.late = 0;
        if !window.limited {
            return false;
        }
        let steady = self.phase == Phase::Steady;
        match self.phase {
            Phase::Growing(before) if rate > before + before / 10 => {
                self.phase = Phase::Growing(rate);
                self.set(self.budget * 2);
            }
            Phase::Growing(before) => {
                (self.phase, self.rate) = (Phase::Steady, before.max(rate));
                self.set(self.budget / 2);
            }
            Phase::Less(before) => {
                self.phase = Phase::Steady;
                if rate >= self.rate - self.rate / 32 {
                    self.less_every = DOWN_EVERY.0;
                } else {
                    self.less_every = (self.less_every * 2).min(DOWN_EVERY.1);
                    self.set(before);
                }
                self.until_less = self.less_every;
            }
            Phase::More(before) => {
                self.phase = Phase::Steady;
                if rate > self.rate + self.rate / 10 {
                    (self.phase, self.rate) = (Phase::Growing(rate), rate);
                    self.set(self.budget * 2);
                } else {
                    self.set(before);
                }
            }
            Phase::Steady => self.steady(rate),
        }
        steady
    }

    fn steady(&mut self, rate: u64) {
        self.rate = if self.rate == 0 { rate } else { self.rate - self.rate / 8 + rate / 8 };
        self.until_less = self.until_less.saturating_sub(1);
        self.until_more = self.until_more.saturating_sub(1);
        if self.until_more == 0 {
            self.until_more = UP_EVERY;
            self.phase = Phase::More(self.budget);
            self.set(self.budget + self.budget / 2);
        } else if self.until_less == 0 {
            self.until_less = self.less_every;
            if self.budget > LEAST {
                self.phase = Phase::Less(self.budget);
                self.set(self.budget - self.budget / 4);
            }
        }
    }
}

/// The lower limit of a budget.
const LEAST: u64 = PIECES_MIN * PIECE_COST;

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a device that moves `rate` per millisecond once `needs` is in flight, and proportionally
    /// less below that.
    fn device(rate: u64, needs: u64, depth_controller: &mut DepthController, windows: usize) {
        for _ in 0..windows {
            let cost = rate * depth_controller.budget.min(needs) / needs;
            let window = Window { cost, ns: 1_000_000, limited: true, ..Window::default() };
            depth_controller.end_window(&window);
        }
    }

    #[test]
    fn finds_what_a_device_needs_and_little_more() {
        for needs in [50 << 10, 400 << 10, 3 << 20] {
            let mut depth_controller = DepthController::new();
            device(1 << 20, needs, &mut depth_controller, 300);
            let least = LEAST;
            assert!(depth_controller.budget >= needs * 9 / 10, "{needs}: {}", depth_controller.budget);
            assert!(
                depth_controller.budget <= (needs * 3 / 2).max(least),
                "{needs}: {}",
                depth_controller.budget
            );
        }
    }

    #[test]
    fn follows_a_device_that_changes() {
        let mut depth_controller = DepthController::new();
        device(1 << 20, 300 << 10, &mut depth_controller, 300);
        device(8 << 20, 3 << 20, &mut depth_controller, 3_000);
        assert!(depth_controller.budget >= 5 << 19, "{}", depth_controller.budget);
        device(1 << 20, 300 << 10, &mut depth_controller, 3_000);
        assert!(depth_controller.budget <= 600 << 10, "{}", depth_controller.budget);
    }

    #[test]
    fn a_slow_shard_is_not_a_slow_disk() {
        // The view of a late shard: everything done together, and half of the rate.
        let mut depth_controller = DepthController::new();
        device(1 << 20, 1 << 20, &mut depth_controller, 300);
        let before = depth_controller.budget;
        for _ in 0..100 {
            let late =
                Window { cost: 1 << 19, ns: 1_000_000, limited: true, late: true, ..Window::default() };
            depth_controller.end_window(&late);
        }
        assert!(depth_controller.budget >= before, "{} of {before}", depth_controller.budget);
    }

    #[test]
    fn a_missed_goal_takes_from_the_budget() {
        let mut depth_controller = DepthController::new();
        device(1 << 20, 3 << 20, &mut depth_controller, 300);
        let before = depth_controller.budget;
        let late = Window { cost: 1 << 20, ns: 1_000_000, limited: true, missed: 1, ..Window::default() };
        depth_controller.end_window(&late);
        assert!(depth_controller.budget < before);
    }
}
