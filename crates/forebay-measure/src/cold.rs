//! Ways to begin a sample without the file in memory, and to limit the memory that the sample may fill.

use crate::cleanup::Cleanup;
use forebay_report::result::CacheState;

use super::cgroup::{Group, Parent};
use super::residency::{drop_all_caches, evict, resident_bytes};
use super::test_file::TestFile;
use super::units::show_bytes;

/// The largest share of the file in memory at the start of a cold sample.
const COLD_SHARE: f64 = 0.01;

/// The way that works here. The variants are in order of preference.
#[derive(Debug)]
pub(super) enum Cold {
    /// Each sample runs in a memory cgroup of its own, and the file's pages are evicted before it.
    Cgroup(Parent),
    /// The machine's page cache is dropped before each sample; nothing limits the memory that a
    /// sample may fill.
    Dropped,
    /// The file's own pages are evicted before each sample, and mincore confirms that they are gone.
    Fadvise,
    /// None of these ways works.
    Warm,
}

impl Cold {
    /// Tries the ways in turn, each by a real attempt, and returns the first that works. The second value
    /// lists the ways that did not work, for the reader of the numbers.
    pub(super) fn choose(test_file: &TestFile, memory_bytes: u64, cleanup: &Cleanup) -> (Self, Vec<String>) {
        let mut notes = Vec::new();
        let refusal = match Parent::find(memory_bytes, cleanup) {
            Ok(parent) => {
                if let Err(why) = evict_checked(test_file, true) {
                    notes.push(format!(
                        "the file could not be evicted from memory before the samples ({why}): \
                         the page-cache rows begin partly warm"
                    ));
                }
                return (Self::Cgroup(parent), notes);
            }
            Err(refusal) => refusal,
        };
        notes.push(format!(
            "memory could not be limited by a cgroup ({refusal}): the page cache may grow as far as the machine \
             allows, and the memory column shows it; run as root, or in a delegated cgroup, to set the limit"
        ));
        if drop_all_caches().is_ok() && cold(test_file).is_ok() {
            return (Self::Dropped, notes);
        }
        match evict_checked(test_file, false) {
            Ok(()) => (Self::Fadvise, notes),
            Err(why) => {
                notes.push(format!(
                    "the file could not be brought out of memory ({why}): the figures of the page-cache rows are warm"
                ));
                (Self::Warm, notes)
            }
        }
    }

    /// Returns the name for the experiment's parameters.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Cgroup(_) => "cgroup",
            Self::Dropped => "dropped",
            Self::Fadvise => "fadvise",
            Self::Warm => "warm",
        }
    }

    /// Describes this way in a sentence.
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

    /// Returns the state of the cache in which a row that uses it begins.
    pub(super) const fn cache_state(&self) -> CacheState {
        match self {
            Self::Cgroup(_) => CacheState::MemoryLimited,
            Self::Dropped => CacheState::Dropped,
            Self::Fadvise => CacheState::Evicted,
            Self::Warm => CacheState::Warm,
        }
    }

    /// Evicts the file from memory and creates the sample's cgroup, when there is one.
    ///
    /// # Errors
    /// Fails when the chosen way, which worked before, no longer works.
    pub(super) fn prepare(
        &self,
        test_file: &TestFile,
        memory_bytes: u64,
        number: u64,
        cleanup: &Cleanup,
    ) -> anyhow::Result<Option<Group>> {
        match self {
            Self::Cgroup(parent) => {
                // A failure to evict was already reported when the way was chosen.
                let _ = evict(&test_file.handle);
                let group = Group::create(parent, memory_bytes, number, cleanup).map_err(|error| {
                    anyhow::anyhow!("a memory cgroup could be made before, but not any more: {error}")
                })?;
                return Ok(Some(group));
            }
            Self::Dropped => drop_all_caches()?,
            Self::Fadvise => evict(&test_file.handle)?,
            Self::Warm => {}
        }
        Ok(None)
    }
}

fn evict_checked(test_file: &TestFile, may_drop_all: bool) -> Result<(), String> {
    evict(&test_file.handle).map_err(|error| error.to_string())?;
    let first = cold(test_file);
    if first.is_ok() || !may_drop_all || drop_all_caches().is_err() {
        return first;
    }
    cold(test_file)
}

fn cold(test_file: &TestFile) -> Result<(), String> {
    let resident = resident_bytes(&test_file.handle, test_file.bytes).map_err(|error| error.to_string())?;
    if resident as f64 <= test_file.bytes as f64 * COLD_SHARE {
        Ok(())
    } else {
        Err(format!(
            "mincore still finds {} of it; its result is exact for the file's owner only",
            show_bytes(resident)
        ))
    }
}
