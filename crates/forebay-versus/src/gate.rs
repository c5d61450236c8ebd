//! A gate: a figure that must be reached, with and without the tolerance that noise allows.

use serde::{Serialize, Serializer};

/// The most that noise may excuse. A cell whose A-A spread is larger was measured on a machine that was not
/// at rest.
const TOLERANCE_MAX: f64 = 0.10;

/// The side of the target on which the figure must lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// At least the target.
    AtLeast,
    /// At most the target.
    AtMost,
}

/// One gate and its verdicts.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    name: String,
    bound: Bound,
    target: f64,
    /// `None` when it could not be measured.
    measured: Option<f64>,
    /// The relaxation of the target: the A-A spread of the cell; 0 where the gate is no ratio of the cell.
    tolerance: f64,
    met_strictly: bool,
    met: bool,
}

impl Gate {
    /// Returns a gate on a ratio of a cell with this A-A spread. `met` allows for the spread (but for no more
    /// than a tenth), `met_strictly` does not. A figure that was not measured is not met.
    pub(crate) fn new(
        name: impl Into<String>,
        bound: Bound,
        target: f64,
        measured: f64,
        a_a_spread: f64,
    ) -> Self {
        Self::with_tolerance(name, bound, target, measured, a_a_spread.min(TOLERANCE_MAX))
    }

    /// Returns a gate on a figure that is no ratio, with a tolerance in its own unit.
    pub(crate) fn with_tolerance(
        name: impl Into<String>,
        bound: Bound,
        target: f64,
        measured: f64,
        tolerance: f64,
    ) -> Self {
        let reached = |slack: f64| match bound {
            Bound::AtLeast => measured >= target - slack,
            Bound::AtMost => measured <= target + slack,
        };
        Self {
            name: name.into(),
            bound,
            target,
            measured: measured.is_finite().then_some(measured),
            tolerance,
            met_strictly: reached(0.0),
            met: reached(tolerance),
        }
    }

    /// Returns whether it is met within the tolerance.
    pub(crate) fn met(&self) -> bool {
        self.met
    }

    /// Returns whether it is met without any tolerance.
    pub(crate) fn met_strictly(&self) -> bool {
        self.met_strictly
    }

    /// Returns one line for people.
    pub(crate) fn line(&self) -> String {
        let sign = match self.bound {
            Bound::AtLeast => ">=",
            Bound::AtMost => "<=",
        };
        let verdict = match (self.met_strictly, self.met) {
            (true, _) => "met     ",
            (false, true) => "met (aa)",
            (false, false) => "MISSED  ",
        };
        let measured = self.measured.map_or_else(|| "not measured".to_owned(), |value| format!("{value:.3}"));
        format!(
            "{verdict} {}: {measured} {sign} {:.3} (tolerance {:.3})",
            self.name, self.target, self.tolerance
        )
    }
}

/// A gate as docs/report-schema.md describes it, with the tolerance and the verdict without it.
#[derive(Serialize)]
struct Written<'g> {
    name: &'g str,
    metric: &'g str,
    value: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at_least: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at_most: Option<f64>,
    tolerance: f64,
    passed: bool,
    passed_strictly: bool,
}

impl Serialize for Gate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = Written {
            name: &self.name,
            // Names have the form "cell: metric".
            metric: self.name.split_once(": ").map_or(&self.name, |(_, metric)| metric),
            value: self.measured,
            at_least: (self.bound == Bound::AtLeast).then_some(self.target),
            at_most: (self.bound == Bound::AtMost).then_some(self.target),
            tolerance: self.tolerance,
            passed: self.met,
            passed_strictly: self.met_strictly,
        };
        written.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tolerance_relaxes_the_target_and_an_unmeasured_gate_is_missed() {
        let gate = Gate::new("a", Bound::AtLeast, 0.95, 0.93, 0.03);
        assert!(gate.met() && !gate.met_strictly());
        assert!(!Gate::new("a", Bound::AtLeast, 0.95, 0.91, 0.03).met());
        assert!(Gate::new("a", Bound::AtMost, 1.10, 1.12, 0.03).met());
        assert!(!Gate::new("a", Bound::AtMost, 1.10, 1.14, 0.03).met());
        assert!(!Gate::new("a", Bound::AtLeast, 1.0, 0.85, 3.0).met(), "a noisy machine excuses nothing");
        assert!(!Gate::new("a", Bound::AtLeast, 0.5, f64::NAN, 0.1).met());
        assert!(!Gate::new("a", Bound::AtMost, 0.5, f64::NAN, 0.1).met());
    }
}
