//! The end of an engine inside the kernel, under walks that continue in the reactor.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay::File;

use crate::choice::REMEDY;
use crate::options::EngineKind;

/// The reason why an engine inside the kernel accepts no walks any more. The first reason stays.
#[derive(Debug, Default)]
pub(crate) struct EngineFailure {
    why: OnceLock<String>,
    is_reported: AtomicBool,
}

/// The reason where the module has no step for a walk: only root can do that.
pub(crate) const DETACHED: &str = "its program was detached from the session";

impl EngineFailure {
    /// Records the reason, a sentence without its full stop, unless a reason is recorded.
    pub(crate) fn set(&self, kind: EngineKind, why: &str) {
        self.why.get_or_init(|| format!("the reactor, because {kind} broke: {why}"));
    }

    pub(crate) fn why(&self) -> Option<&str> {
        self.why.get().map(String::as_str)
    }

    /// Reports the reason, if any, to the engine that the file belongs to: once.
    #[cold]
    pub(crate) fn report(&self, file: &File) {
        if let Some(why) = self.why()
            && !self.is_reported.swap(true, Ordering::Relaxed)
        {
            file.add_degradation("kernel walks", why, REMEDY);
        }
    }
}
