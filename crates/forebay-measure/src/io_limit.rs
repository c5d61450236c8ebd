//! A control group's limit on the I/O of this process. The maximum of a sweep may be this limit, and
//! not the device's.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cgroup::{IoMarks, io_limit_files};
use forebay_report::page::facts::{IO_LIMIT_BY, IO_LIMIT_BYTES, IO_LIMIT_READS};
use forebay_report::result::Experiment;

/// The smallest limits on reads that bind this process on a device.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct IoLimit {
    reads_per_s: Option<u64>,
    bytes_per_s: Option<u64>,
    /// The file that sets the last of the limits.
    by: String,
}

impl IoLimit {
    /// Returns the limits of the device that `stat` counts, and of those below it. `None` when nothing
    /// limits its reads.
    pub(super) fn of_device(stat: Option<&Path>) -> Option<Self> {
        let mut devices = Vec::new();
        numbers(&fs::canonicalize(stat?.parent()?).ok()?, &mut devices);
        let files = io_limit_files().into_iter();
        Self::smallest(
            files.filter_map(|(file, of)| Some((fs::read_to_string(&file).ok()?, of, file))),
            &devices,
        )
    }

    fn smallest(files: impl Iterator<Item = (String, IoMarks, PathBuf)>, devices: &[String]) -> Option<Self> {
        let mut found = Self::default();
        for (text, marks, file) in files {
            // The first line of one of the devices, without its number.
            let values = text.lines().find_map(|line| {
                devices.iter().find_map(|own| line.strip_prefix(own.as_str())?.strip_prefix(' '))
            });
            let Some(values) = values else { continue };
            for (known, mark) in [&mut found.reads_per_s, &mut found.bytes_per_s].into_iter().zip(marks) {
                let value = |pair: &str| pair.strip_prefix(mark?)?.parse().ok();
                let limit: Option<u64> = values.split_whitespace().find_map(value);
                if let Some(limit) = limit.filter(|limit| known.is_none_or(|known| *limit < known)) {
                    *known = Some(limit);
                    found.by = file.display().to_string();
                }
            }
        }
        (!found.by.is_empty()).then_some(found)
    }

    /// Returns the experiment with the limit among its parameters.
    pub(super) fn note(limit: Option<&Self>, mut experiment: Experiment) -> Experiment {
        let Some(limit) = limit else { return experiment };
        for (name, value) in [(IO_LIMIT_READS, limit.reads_per_s), (IO_LIMIT_BYTES, limit.bytes_per_s)] {
            if let Some(value) = value {
                experiment = experiment.parameter(name, value);
            }
        }
        experiment.parameter(IO_LIMIT_BY, limit.by.as_str())
    }
}

/// Adds the numbers, such as `8:0`, of a device at its place in sysfs, of its disk where it is a partition,
/// and of all devices below it.
fn numbers(device: &Path, found: &mut Vec<String>) {
    let mut add = |place: &Path| {
        let number = fs::read_to_string(place.join("dev")).ok().map(|text| text.trim().to_owned());
        found.extend(number);
    };
    add(device);
    if device.join("partition").exists()
        && let Some(disk) = device.parent()
    {
        add(disk);
    }
    for below in fs::read_dir(device.join("slaves")).into_iter().flatten().flatten() {
        if let Ok(place) = fs::canonicalize(below.path()) {
            numbers(&place, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::IO_LIMITS;

    #[test]
    fn the_smallest_limit_of_all_groups_above_binds() {
        let [(_, all), (_, reads), _] = IO_LIMITS;
        let file = |text: &str, of, name: &str| (text.to_owned(), of, PathBuf::from(name));
        let files = || {
            [
                file("8:0 rbps=max wbps=1000 riops=5000 wiops=max\n254:0 riops=7\n", all, "/a/b/io.max"),
                file("8:0 rbps=20000000 wbps=max riops=9000 wiops=max\n", all, "/a/io.max"),
                file("8:0 4000\n", reads, "/v1/blkio.throttle.read_iops_device"),
            ]
        };
        let of = |device: &str, count: usize| {
            IoLimit::smallest(files().into_iter().take(count), &[device.to_owned()])
        };
        let limit = of("8:0", 2).expect("two groups limit it");
        assert_eq!((limit.reads_per_s, limit.bytes_per_s), (Some(5000), Some(20_000_000)));
        assert_eq!(of("8:0", 3).and_then(|limit| limit.reads_per_s), Some(4000));
        assert_eq!(of("8:16", 3), None);
        let noted = IoLimit::note(Some(&limit), Experiment::new("saturate", ""));
        assert_eq!((noted.number(IO_LIMIT_READS), noted.number(IO_LIMIT_BYTES)), (Some(5e3), Some(20e6)));
        assert!(IoLimit::note(None, Experiment::new("saturate", "")).parameters.is_empty());
    }
}
