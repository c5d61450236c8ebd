//! The findings of the doctor.

use serde::{Deserialize, Serialize};

/// The subject of one test, its verdict, the reason and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Check {
    /// The area tested: `io_uring`, `memory`, `path`, `device`, `engine` or `wait`.
    pub group: String,
    /// A stable name such as `defer_taskrun`.
    pub name: String,
    /// The result of the test.
    pub verdict: Verdict,
    /// The observation that led to the verdict.
    pub why: String,
    /// A change that would improve the result; absent if nothing needs a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Check {
    /// Returns a finding that the mechanism works.
    pub fn ok(group: &str, name: &str, why: impl Into<String>) -> Self {
        Self::new(group, name, Verdict::Ok, why.into(), None)
    }

    /// Returns a finding that Forebay works without the mechanism, at a cost.
    pub fn degraded(group: &str, name: &str, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(group, name, Verdict::Degraded, why.into(), Some(remedy.into()))
    }

    /// Returns a finding that the mechanism cannot be used here.
    pub fn unavailable(group: &str, name: &str, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(group, name, Verdict::Unavailable, why.into(), Some(remedy.into()))
    }

    fn new(group: &str, name: &str, verdict: Verdict, why: String, remedy: Option<String>) -> Self {
        let remedy = remedy.filter(|text| !text.is_empty());
        Self { group: group.to_owned(), name: name.to_owned(), verdict, why, remedy }
    }
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The mechanism works.
    Ok,
    /// Forebay works, but slower or with more memory than it could.
    Degraded,
    /// This mechanism cannot be used here.
    Unavailable,
}

impl Verdict {
    /// Returns the word for a table.
    pub(crate) fn label(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}
