//! The work of one sample of `measure files`, and its result.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::super::file_set::FileSet;
use super::super::interleave::{Evidence, Way};
use super::super::pattern::SplitMix;

/// One run of one row with one call and number of files at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct FilesWork {
    pub(super) row: FilesRow,
    pub(super) call: Call,
    /// The existing files; new files have the same lengths and contents.
    pub(super) file_set: FileSet,
    pub(super) at_once: usize,
    /// The time in seconds after which no file begins.
    pub(super) seconds_max: f64,
    /// The seed of the order.
    pub(super) seed: u64,
}

impl FilesWork {
    /// Returns all files, in the order in which they are visited.
    pub(super) fn order(&self) -> Vec<u32> {
        let mut random = SplitMix::new(self.seed);
        let mut order: Vec<u32> = (0..self.file_set.files).collect();
        for index in (1..order.len()).rev() {
            order.swap(index, random.below(index as u64 + 1) as usize);
        }
        order
    }

    /// Returns the present or future path of file number `file`.
    pub(super) fn path(directory: &Path, file: u32) -> PathBuf {
        FileSet::path(directory, file)
    }
}

/// The calls made with each file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Call {
    /// Open, read, close.
    Read,
    /// Create, write, sync, close.
    Create,
    /// Stat.
    Stat,
}

impl Call {
    pub(super) const ALL: [Self; 3] = [Self::Read, Self::Create, Self::Stat];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Create => "create",
            Self::Stat => "stat",
        }
    }

    pub(super) const fn phrase(self) -> &'static str {
        match self {
            Self::Read => "opens it, reads it whole and closes it",
            Self::Create => "makes it, writes it whole, syncs it (fsync) and closes it",
            Self::Stat => "reads its metadata (statx)",
        }
    }
}

/// Ways to make the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FilesRow {
    StdThreads,
    TokioFs,
    Forebay,
}

impl FilesRow {
    pub(super) const ALL: [Self; 3] = [Self::StdThreads, Self::TokioFs, Self::Forebay];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::StdThreads => "std-threads",
            Self::TokioFs => "tokio-fs",
            Self::Forebay => "forebay",
        }
    }

    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::StdThreads => "a std thread for each file at once, std::fs, through the page cache",
            Self::TokioFs => {
                "a task of a Tokio runtime for each file at once, tokio::fs, through the page cache"
            }
            Self::Forebay => "a task of a Tokio runtime for each file at once, Forebay, O_DIRECT",
        }
    }

    pub(super) const fn uses_page_cache(self) -> bool {
        !matches!(self, Self::Forebay)
    }
}

/// The result that the child prints. Times of the calls are sums over all files.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct FilesResult {
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) files: u64,
    pub(super) open_s: f64,
    pub(super) read_s: f64,
    pub(super) write_s: f64,
    pub(super) sync_s: f64,
    pub(super) close_s: f64,
    pub(super) stat_s: f64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    pub(super) evidence: Evidence,
}

impl Way for FilesRow {
    fn name(&self) -> &'static str {
        (*self).name()
    }

    fn description(&self) -> &'static str {
        (*self).description()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_json_are_the_names_in_the_tables() {
        for row in FilesRow::ALL {
            assert_eq!(serde_json::to_value(row).expect("plain"), row.name());
        }
        for call in Call::ALL {
            assert_eq!(serde_json::to_value(call).expect("plain"), call.name());
        }
    }

    #[test]
    fn every_file_has_its_place_in_the_order() {
        let file_set = FileSet { files: 500, file_bytes: 4096, seed: 1 };
        let (row, call) = (FilesRow::Forebay, Call::Read);
        let work = FilesWork { row, call, file_set, at_once: 3, seconds_max: 1.0, seed: 9 };
        let mut order = work.order();
        assert_ne!(order, (0..500).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..500).collect::<Vec<_>>());
    }
}
