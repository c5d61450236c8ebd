//! Preconditions of an experiment: the file to be read and the device's write cache, each with its gate.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::backing_device::queue_setting;
use crate::experiment::Place;
use crate::extents::{self, Extents};
use crate::gates;
use forebay_report::result::Condition;

/// The state recorded before the measurement.
#[derive(Debug)]
pub(super) struct Preconditions {
    extents: Option<io::Result<Extents>>,
    device_stat: Option<PathBuf>,
    write_cache: Option<String>,
}

impl Preconditions {
    /// Records the extents beneath the first `bytes` bytes of a file that will be read.
    pub(super) fn of_file(file: &File, bytes: u64, device_stat: Option<&Path>) -> Self {
        Self { extents: Some(Extents::of(file, bytes)), ..Self::of_device(device_stat) }
    }

    /// Records the state for an experiment that writes its own files.
    pub(super) fn of_device(device_stat: Option<&Path>) -> Self {
        Self {
            extents: None,
            device_stat: device_stat.map(Path::to_owned),
            write_cache: device_stat.and_then(write_cache),
        }
    }

    /// Replaces the recorded extents of the files.
    pub(super) fn set_extents(&mut self, extents: io::Result<Extents>) {
        self.extents = Some(extents);
    }

    /// Returns the facts on the place of these files, as of now.
    pub(super) fn place(&self, path: &Path, file_system: &str) -> Place {
        Place {
            path: path.to_owned(),
            file_system: file_system.to_owned(),
            device_stat: self.device_stat.clone(),
            conditions: self.conditions(),
        }
    }

    fn conditions(&self) -> Vec<Condition> {
        let after = self.device_stat.as_deref().and_then(write_cache);
        let mut conditions = vec![gates::write_cache(self.write_cache.as_deref(), after.as_deref())];
        conditions.extend(self.extents.as_ref().map(extents::gate));
        conditions
    }
}

/// Returns `write back` or `write through`.
fn write_cache(device_stat: &Path) -> Option<String> {
    queue_setting(device_stat, "write_cache")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_preconditions_are_reported_and_known_ones_have_gates() {
        let names = |preconditions: &Preconditions| -> Vec<(String, Option<bool>)> {
            preconditions.conditions().into_iter().map(|gate| (gate.name, gate.passed)).collect()
        };
        let mut preconditions = Preconditions::of_device(None);
        assert_eq!(names(&preconditions), [("write_cache".to_owned(), None)]);
        preconditions.set_extents(Ok(Extents { written: 1, unwritten: 1, holes: 0 }));
        assert_eq!(names(&preconditions)[1], ("extents".to_owned(), Some(false)));
    }
}
