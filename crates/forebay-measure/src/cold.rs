//! A file that is not in memory when a sample starts, and a limit on the memory that the sample may fill.

use serde_json::json;

use crate::cleanup::Cleanup;
use crate::context::Context;
use forebay_report::result::{CacheState, metric};

use crate::cgroup::{Group, Parent};
use crate::experiment::{Outcome, Parameters, Start, Turn, Way, parameters};
use crate::job::Job;
use crate::options::{Opt, Values};
use crate::pattern::Pattern;
use crate::plan::Sizes;
use crate::residency::{drop_all_caches, evict, resident_bytes};
use crate::test_file::TestFile;
use crate::units::show_bytes;

/// The largest share of the file in memory at the start of a cold sample.
const COLD_SHARE: f64 = 0.01;

/// `--memory` of experiments with such a file.
pub(super) const MEMORY: Opt =
    Opt::bytes("memory", "Memory that a sample may use, page cache included", 1, u64::MAX)
        .chosen("1GiB, with --quick 256MiB, less on small machines");
/// `--size` of experiments with such a file.
pub(super) const SIZE: Opt =
    Opt::bytes("size", "Size of the file, or how much is used of an existing one", 1, u64::MAX)
        .chosen("3 times the memory, with --quick 4 times");

/// A file, and the way in which its samples start.
#[derive(Debug)]
pub(super) struct ColdFile {
    pub(super) test_file: TestFile,
    pub(super) memory_bytes: u64,
    cold: Cold,
    /// The ways that did not work.
    refused: Vec<String>,
    /// The number of the last sample, which names its cgroup.
    number: u64,
    cleanup: Cleanup,
}

impl ColdFile {
    /// Returns the sizes that the options choose.
    ///
    /// # Errors
    /// As for [`Sizes::choose`].
    pub(super) fn sizes(options: &Values, context: &Context) -> anyhow::Result<Sizes> {
        Ok(Sizes::choose(context, options.optional("memory"), options.optional("size"))?)
    }

    /// Creates or opens the target of `context`, and determines how its samples can start.
    ///
    /// # Errors
    /// As for [`TestFile::prepare`].
    pub(super) fn prepare(context: &Context, sizes: &Sizes) -> anyhow::Result<Self> {
        let test_file = TestFile::prepare(context, sizes.file_bytes, sizes.limit_bytes)?;
        let (cold, refused) = Cold::choose(&test_file, sizes.memory_bytes, &context.cleanup);
        for note in &refused {
            context.progress.print_line(note);
        }
        let (memory_bytes, cleanup) = (sizes.memory_bytes, context.cleanup.clone());
        Ok(Self { test_file, memory_bytes, cold, refused, number: 0, cleanup })
    }

    /// Returns the parameters of a table that describe it.
    pub(super) fn parameters(&self) -> Parameters {
        parameters(json!({
            "file_bytes": self.test_file.bytes,
            "memory_limit_bytes": self.memory_bytes,
            "cold": self.cold.facts().0,
            "own_file": self.test_file.pattern.is_some(),
        }))
    }

    /// Evicts the file from memory and creates the sample's cgroup, if any.
    ///
    /// # Errors
    /// Fails when the chosen way, which worked before, no longer works.
    pub(super) fn start(&mut self, job: Job) -> anyhow::Result<Start> {
        self.number += 1;
        let mut group = None;
        match &self.cold {
            Cold::Cgroup(parent) => {
                // A failure to evict was already reported when the way was chosen.
                let _ = evict(&self.test_file.handle);
                let created = Group::create(parent, self.memory_bytes, self.number, &self.cleanup);
                group = Some(created.map_err(|error| {
                    anyhow::anyhow!("a memory cgroup could be made before, but not any more: {error}")
                })?);
            }
            Cold::Dropped => drop_all_caches()?,
            Cold::Fadvise => evict(&self.test_file.handle)?,
            Cold::Warm => {}
        }
        let pattern_seed = self.test_file.pattern.map(Pattern::seed);
        Ok(Start { group, ..Job { pattern_seed, ..job }.into() })
    }

    /// Sets the peak memory of a sample, page cache of the file included.
    pub(super) fn ended(&self, turn: &Turn<'_>, start: &Start, outcome: &mut Outcome) {
        let pages = || resident_bytes(&self.test_file.handle, self.test_file.bytes).ok();
        let without_group = || {
            let own = outcome.resident_peak_bytes?;
            Some(match turn.way.name {
                // The process counts the mapped pages that it touched.
                "mmap" => own.max(pages()?),
                _ if turn.way.cached => own + pages()?,
                _ => own,
            })
        };
        if let Some(peak) = start.group.as_ref().and_then(Group::peak_bytes).or_else(without_group) {
            outcome.figures.set(metric::MEMORY_PEAK_BYTES, peak as f64);
        }
    }

    /// Returns the state of the cache in which samples of a row start.
    pub(super) fn cache(&self, way: &Way) -> CacheState {
        if way.cached { self.cold.facts().1 } else { CacheState::Direct }
    }

    /// Returns whether a cgroup limits the memory.
    pub(super) const fn is_limited(&self) -> bool {
        matches!(self.cold, Cold::Cgroup(_))
    }

    /// Describes in two sentences how samples start and how their memory is counted.
    pub(super) fn method(&self) -> String {
        let source = if self.is_limited() {
            "the sample's cgroup: process, page cache and kernel memory"
        } else {
            "the process, with the file's part of the page cache for rows that use it"
        };
        let begins = match &self.cold {
            Cold::Cgroup(parent) => format!(
                "Every sample runs in a memory cgroup ({}) of its own that allows {}, page cache included; \
                 the file's pages are evicted before it.",
                parent.version(),
                show_bytes(self.memory_bytes)
            ),
            cold => cold.facts().2.to_owned(),
        };
        format!("{begins} Memory is the peak of {source}.")
    }

    /// Returns the caveats on the file and its samples.
    pub(super) fn notes(&self) -> Vec<String> {
        let file = &self.test_file;
        let mut notes = self.refused.clone();
        notes.push(if file.pattern.is_some() {
            format!(
                "the {} read were written by this program before, do not compress, and were compared while they were read",
                show_bytes(file.bytes)
            )
        } else {
            "the file existed before and was only read: whether its contents compress, and whether it has holes, which no \
             device reads, is not known"
                .to_owned()
        });
        notes.push("a drive, a RAID controller or a virtual machine's host may hold the file in memory of its own; no row is spared that, none profits alone".to_owned());
        if file.device_stat.is_none() {
            notes.push(format!(
                "requests in flight are not known: {} has no block device that counts them",
                file.filesystem
            ));
        }
        notes
    }
}

/// The way that works here. The variants are in order of preference.
#[derive(Debug)]
enum Cold {
    /// Each sample runs in a separate memory cgroup, and the file's pages are evicted before it.
    Cgroup(Parent),
    /// The machine's page cache is dropped before each sample; nothing limits the memory that a
    /// sample may fill.
    Dropped,
    /// The file's own pages are evicted before each sample, and mincore confirms that they are evicted.
    Fadvise,
    /// None of these ways works.
    Warm,
}

impl Cold {
    /// Tries the ways in turn, each by a real attempt, and returns the first that works. The second value
    /// lists the ways that did not work, for the reader of the numbers.
    fn choose(test_file: &TestFile, memory_bytes: u64, cleanup: &Cleanup) -> (Self, Vec<String>) {
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

    /// Returns the name among the experiment's parameters, the initial state of the cache for a row that uses it, and a sentence
    /// for the ways without a cgroup.
    const fn facts(&self) -> (&'static str, CacheState, &'static str) {
        match self {
            Self::Cgroup(_) => ("cgroup", CacheState::MemoryLimited, ""),
            Self::Dropped => (
                "dropped",
                CacheState::Dropped,
                "The page cache of the machine is dropped before every sample.",
            ),
            Self::Fadvise => (
                "fadvise",
                CacheState::Evicted,
                "The file's pages are evicted by fadvise before every sample, and the kernel then counts none in memory.",
            ),
            Self::Warm => ("warm", CacheState::Warm, "The page cache could not be emptied."),
        }
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
            "the kernel still counts {} of it there, exactly for the file's owner only",
            show_bytes(resident)
        ))
    }
}
