//! Gates of a run: conditions under which its figures can be trusted.

use serde::{Deserialize, Serialize};

use super::Gate;
use crate::units::number;

/// One gate. A row or an experiment that fails one is marked, never hidden.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Condition {
    /// A stable name: `device_bytes`, `generator`, `other_io`, `steal`, `throttling`, `write_cache`, `extents`.
    pub name: String,
    /// The observed value; the worst of several samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// The smallest value that passes, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// The largest value that passes, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// Absent when the result is unknown, or the gate does not apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed: Option<bool>,
    /// The meaning of the value, or the reason why there is none.
    pub why: String,
    /// The repeats that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repeats: Vec<u32>,
}

impl Condition {
    /// Returns a gate for a value that should be no less than `limit`.
    pub fn at_least(name: &str, value: f64, limit: f64) -> Self {
        let (value, at_least, passed) = (Some(value), Some(limit), Some(value >= limit));
        Self { name: name.to_owned(), value, at_least, passed, ..Self::default() }
    }

    /// Returns a gate for a value that should be no more than `limit`.
    pub fn at_most(name: &str, value: f64, limit: f64) -> Self {
        let (value, at_most, passed) = (Some(value), Some(limit), Some(value <= limit));
        Self { name: name.to_owned(), value, at_most, passed, ..Self::default() }
    }

    /// Returns a gate for a value that should be no less than `least` and no more than `most`.
    pub fn within(name: &str, value: f64, least: f64, most: f64) -> Self {
        let passed = Some((least..=most).contains(&value));
        Self { at_most: Some(most), passed, ..Self::at_least(name, value, least) }
    }

    /// Returns a gate without a known value, with the reason.
    pub fn unknown(name: &str, why: impl Into<String>) -> Self {
        Self { name: name.to_owned(), why: why.into(), ..Self::default() }
    }

    /// Sets the meaning of the value.
    pub fn with_meaning(mut self, why: &str) -> Self {
        why.clone_into(&mut self.why);
        self
    }

    /// Returns how far the value lies outside of the limits; negative within them. `None` without a
    /// value or a limit.
    pub fn excess(&self) -> Option<f64> {
        let value = self.value?;
        let below = self.at_least.map(|least| least - value);
        let above = self.at_most.map(|most| value - most);
        below.into_iter().chain(above).reduce(f64::max)
    }

    /// Returns the limit in words.
    pub fn wanted(&self) -> String {
        match (self.at_least, self.at_most) {
            (Some(least), Some(most)) => format!("{} to {}", number(least), number(most)),
            (Some(least), None) => format!("at least {}", number(least)),
            (None, Some(most)) => format!("at most {}", number(most)),
            (None, None) => "no limit".to_owned(),
        }
    }

    /// Returns whether the gate failed.
    pub fn failed(&self) -> bool {
        self.passed == Some(false)
    }
}

impl From<&Gate> for Condition {
    fn from(check: &Gate) -> Self {
        let Gate { name, value, at_least, at_most, passed, .. } = check.clone();
        Self { name, value, at_least, at_most, passed: Some(passed), ..Self::default() }
    }
}
