//! The work of one sample of `measure fairness`, and its result.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::super::interleave::{Evidence, Way};

/// Bytes of the reader's reads.
pub(super) const READ_BYTES: u64 = 4096;
/// Bytes of a hog's requests; the next constant is the number of them in flight.
pub(super) const HOG_BYTES: u64 = 1 << 20;
pub(super) const HOG_DEPTH: usize = 64;

/// One run of one row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct FairWork {
    pub(super) row: FairRow,
    pub(super) hogs: u32,
    pub(super) writes: bool,
    /// Bytes of the file, which has been written through.
    pub(super) file_bytes: u64,
    pub(super) seconds: f64,
    /// The seed of places and contents.
    pub(super) seed: u64,
    /// The file through which the hogs' process enters its control group.
    pub(super) hogs_procs: Option<PathBuf>,
}

/// The programs that run, and the mechanism that keeps them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FairRow {
    ReaderAlone,
    HogsAlone,
    NoClasses,
    Classes,
    Ionice,
    CgroupIo,
}

impl FairRow {
    pub(super) const ALL: [Self; 6] =
        [Self::ReaderAlone, Self::HogsAlone, Self::NoClasses, Self::Classes, Self::Ionice, Self::CgroupIo];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ReaderAlone => "reader-alone",
            Self::HogsAlone => "hogs-alone",
            Self::NoClasses => "no-classes",
            Self::Classes => "classes",
            Self::Ionice => "ionice",
            Self::CgroupIo => "cgroup-io",
        }
    }

    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::ReaderAlone => "the reader without hogs, Forebay on one shard, O_DIRECT",
            Self::HogsAlone => "the hogs without the reader, Forebay on one shard, O_DIRECT",
            Self::NoClasses => "both on one shard of Forebay in one class, O_DIRECT",
            Self::Classes => {
                "both on one shard of Forebay, the hogs in the background class and the reader in the default one, O_DIRECT"
            }
            Self::Ionice => {
                "two engines of Forebay without classes, the hogs' shard in the kernel's idle class (ionice -c 3), O_DIRECT"
            }
            Self::CgroupIo => {
                "two processes with an engine of Forebay each, the hogs' in a control group with a quarter of the weight, O_DIRECT"
            }
        }
    }

    pub(super) fn has_reader(self) -> bool {
        self != Self::HogsAlone
    }

    pub(super) fn has_hogs(self) -> bool {
        self != Self::ReaderAlone
    }
}

/// The result that the child prints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct FairnessResult {
    pub(super) seconds: f64,
    pub(super) reads: u64,
    /// Bytes of operations that completed in time.
    pub(super) hog_bytes: u64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    pub(super) p99_9_us: Option<f64>,
    pub(super) evidence: Evidence,
}

impl Way for FairRow {
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
        for row in FairRow::ALL {
            assert_eq!(serde_json::to_value(row).expect("plain"), row.name());
        }
    }
}
