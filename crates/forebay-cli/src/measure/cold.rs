//! How a sample begins without the file in memory, and how little memory it may fill.

use crate::cleanup::Cleanup;
use crate::result::CacheState;

use super::cgroup::{self, Group, Parent};
use super::residency::{drop_all_caches, evict, resident_bytes};
use super::sampler;
use super::subject::Subject;
use super::units::show_bytes;

/// A sample is cold when at most this share of the file is in memory as it begins.
const COLD_SHARE: f64 = 0.01;

/// The way that works here, the best first.
#[derive(Debug)]
pub(super) enum Cold {
    /// Each sample runs in a memory cgroup of its own, and the file's pages are evicted before it.
    Cgroup(Parent),
    /// The page cache of the machine is dropped before each sample; nothing limits what a sample may fill.
    Dropped,
    /// The file's own pages are evicted before each sample, and mincore sees that they are gone.
    Fadvise,
    /// None of these works.
    Warm,
}

impl Cold {
    /// Tries the ways in turn, each by doing it. The second value says what did not work, for the reader of the
    /// numbers.
    pub(super) fn choose(subject: &Subject, memory_bytes: u64, cleanup: &Cleanup) -> (Self, Vec<String>) {
        let mut notes = Vec::new();
        let mut refusal = None;
        for parent in Parent::candidates() {
            cgroup::sweep(&parent);
            match try_group(&parent, memory_bytes, cleanup) {
                Ok(()) => {
                    if let Err(why) = evict_checked(subject, true) {
                        notes.push(format!(
                            "the file could not be evicted from memory before the samples ({why}): \
                             the page-cache rows begin partly warm"
                        ));
                    }
                    return (Self::Cgroup(parent), notes);
                }
                // The first refusal concerns the best place and explains most.
                Err(error) => {
                    refusal.get_or_insert(error);
                }
            }
        }
        let refusal = refusal.unwrap_or_else(|| "no memory cgroup hierarchy is mounted".to_owned());
        notes.push(format!(
            "memory could not be limited by a cgroup ({refusal}): the page cache may grow as far as the machine \
             allows, and the memory column shows it; run as root, or in a delegated cgroup, to set the limit"
        ));
        if drop_all_caches().is_ok() && cold(subject).is_ok() {
            return (Self::Dropped, notes);
        }
        match evict_checked(subject, false) {
            Ok(()) => (Self::Fadvise, notes),
            Err(why) => {
                notes.push(format!(
                    "the file could not be brought out of memory ({why}): the figures of the page-cache rows are warm"
                ));
                (Self::Warm, notes)
            }
        }
    }

    /// The word for the experiment's parameters.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Cgroup(_) => "cgroup",
            Self::Dropped => "dropped",
            Self::Fadvise => "fadvise",
            Self::Warm => "warm",
        }
    }

    /// What that means, in a sentence.
    pub(super) fn describe(&self, memory_bytes: u64) -> String {
        match self {
            Self::Cgroup(parent) => format!(
                "Every sample runs in a memory cgroup ({}) of its own that allows {}, page cache included; \
                 the file's pages are evicted before it.",
                parent.version(),
                show_bytes(memory_bytes)
            ),
            Self::Dropped => "The page cache of the machine is dropped before every sample.".to_owned(),
            Self::Fadvise => {
                "The file's pages are evicted by fadvise before every sample, and mincore sees that they are gone."
                    .to_owned()
            }
            Self::Warm => "The page cache could not be emptied.".to_owned(),
        }
    }

    /// What a row that uses the page cache found there.
    pub(super) const fn cache_state(&self) -> CacheState {
        match self {
            Self::Cgroup(_) => CacheState::MemoryLimited,
            Self::Dropped => CacheState::Dropped,
            Self::Fadvise => CacheState::Evicted,
            Self::Warm => CacheState::Warm,
        }
    }

    /// Brings the file out of memory and makes the sample's cgroup, when there is one.
    ///
    /// # Errors
    /// What worked when it was chosen does not work any more.
    pub(super) fn prepare(
        &self,
        subject: &Subject,
        memory_bytes: u64,
        number: u64,
        cleanup: &Cleanup,
    ) -> anyhow::Result<Option<Group>> {
        match self {
            Self::Cgroup(parent) => {
                // It was said at the beginning when this does not help.
                let _ = evict(&subject.handle);
                let group = Group::create(parent, memory_bytes, number, cleanup).map_err(|error| {
                    anyhow::anyhow!("a memory cgroup could be made before, but not any more: {error}")
                })?;
                return Ok(Some(group));
            }
            Self::Dropped => drop_all_caches()?,
            Self::Fadvise => evict(&subject.handle)?,
            Self::Warm => {}
        }
        Ok(None)
    }
}

fn try_group(parent: &Parent, memory_bytes: u64, cleanup: &Cleanup) -> Result<(), String> {
    let group = Group::create(parent, memory_bytes, 0, cleanup).map_err(|error| error.to_string())?;
    sampler::probe(&group, cleanup).map_err(|error| format!("{error:#}"))
}

fn evict_checked(subject: &Subject, may_drop_all: bool) -> Result<(), String> {
    evict(&subject.handle).map_err(|error| error.to_string())?;
    let first = cold(subject);
    if first.is_ok() || !may_drop_all || drop_all_caches().is_err() {
        return first;
    }
    cold(subject)
}

fn cold(subject: &Subject) -> Result<(), String> {
    let resident = resident_bytes(&subject.handle, subject.bytes).map_err(|error| error.to_string())?;
    if resident as f64 <= subject.bytes as f64 * COLD_SHARE {
        Ok(())
    } else {
        Err(format!(
            "mincore still finds {} of it, which it tells truly to the file's owner only",
            show_bytes(resident)
        ))
    }
}
