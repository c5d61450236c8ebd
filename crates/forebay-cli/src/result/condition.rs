//! Gates of a run: conditions under which its figures mean what they say.

use serde::{Deserialize, Serialize};

/// One gate. A row or an experiment that fails one is marked, never hidden.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Condition {
    /// A stable name: `device_bytes`, `generator`, `other_io`, `steal`, `throttling`, `write_cache`, `extents`.
    pub(crate) name: String,
    /// What was seen; of several samples the worst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<f64>,
    /// The smallest value that passes, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at_least: Option<f64>,
    /// The largest value that passes, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at_most: Option<f64>,
    /// Absent: it is not known, or does not apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) passed: Option<bool>,
    /// What the value counts, or why there is none.
    pub(crate) why: String,
    /// The repeats that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) repeats: Vec<u32>,
}

impl Condition {
    /// A value that should be no less than `limit`.
    pub(crate) fn at_least(name: &str, value: f64, limit: f64) -> Self {
        let (value, at_least, passed) = (Some(value), Some(limit), Some(value >= limit));
        Self { name: name.to_owned(), value, at_least, passed, ..Self::default() }
    }

    /// A value that should be no more than `limit`.
    pub(crate) fn at_most(name: &str, value: f64, limit: f64) -> Self {
        let (value, at_most, passed) = (Some(value), Some(limit), Some(value <= limit));
        Self { name: name.to_owned(), value, at_most, passed, ..Self::default() }
    }

    /// A value that should be no less than `least` and no more than `most`.
    pub(crate) fn within(name: &str, value: f64, least: f64, most: f64) -> Self {
        let passed = Some((least..=most).contains(&value));
        Self { at_most: Some(most), passed, ..Self::at_least(name, value, least) }
    }

    /// Nothing is known, and why.
    pub(crate) fn unknown(name: &str, why: impl Into<String>) -> Self {
        Self { name: name.to_owned(), why: why.into(), ..Self::default() }
    }

    /// Says what the value counts.
    pub(crate) fn because(mut self, why: &str) -> Self {
        why.clone_into(&mut self.why);
        self
    }

    /// How far the value lies outside of the limits; negative within them. `None` without a value or a limit.
    pub(crate) fn excess(&self) -> Option<f64> {
        let value = self.value?;
        let below = self.at_least.map(|least| least - value);
        let above = self.at_most.map(|most| value - most);
        below.into_iter().chain(above).reduce(f64::max)
    }

    /// Whether it failed.
    pub(crate) fn failed(&self) -> bool {
        self.passed == Some(false)
    }
}
