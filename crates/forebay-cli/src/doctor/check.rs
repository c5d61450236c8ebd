//! One finding of the doctor.

use serde::{Deserialize, Serialize};

/// What was tried, how it went, why, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Check {
    /// What was looked at: `io_uring`, `memory`, `path`, `device`, `engine` or `wait`.
    pub(crate) group: String,
    /// A stable name such as `defer_taskrun`.
    pub(crate) name: String,
    /// How it went.
    pub(crate) verdict: Verdict,
    /// What was seen.
    pub(crate) why: String,
    /// What would make it better; absent when there is nothing to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<String>,
}

impl Check {
    /// It works.
    pub(crate) fn ok(group: &str, name: &str, why: impl Into<String>) -> Self {
        Self::new(group, name, Verdict::Ok, why.into(), None)
    }

    /// Forebay works without it, at a cost.
    pub(crate) fn degraded(
        group: &str,
        name: &str,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::new(group, name, Verdict::Degraded, why.into(), Some(remedy.into()))
    }

    /// It cannot be used here.
    pub(crate) fn unavailable(
        group: &str,
        name: &str,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::new(group, name, Verdict::Unavailable, why.into(), Some(remedy.into()))
    }

    fn new(group: &str, name: &str, verdict: Verdict, why: String, remedy: Option<String>) -> Self {
        Self {
            group: group.to_owned(),
            name: name.to_owned(),
            verdict,
            why,
            remedy: remedy.filter(|text| !text.is_empty()),
        }
    }
}

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// It works.
    Ok,
    /// Forebay works, but slower or with more memory than it could.
    Degraded,
    /// This mechanism cannot be used here.
    Unavailable,
}

impl Verdict {
    /// The word a table uses.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Unavailable => "unavailable",
        }
    }
}
