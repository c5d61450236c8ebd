//! Figures of the device from an earlier measurement: the advice claims no gain that was not measured.

use std::fs;
use std::path::Path;

use forebay_wait::DeviceRates;

use crate::saved;
use forebay_report::environment::PathInfo;
use forebay_report::failure::Failure;
use forebay_report::page::facts::curve;
use forebay_report::result::columns::groups;
use forebay_report::result::{Report, metric};

/// Reads the figures from a result of `measure saturate`, `measure random` or `report`.
///
/// # Errors
/// The file is not such a result, or lacks the figures of one read at a time and of several; a [`Failure`].
pub(super) fn served(file: &Path) -> Result<Vec<DeviceRates>, Failure> {
    let report = saved::load(file)?;
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
    match of(&report, &name) {
        Some(served) => Ok(vec![served]),
        None => Err(Failure::Usage(format!(
            "{} has no figures of this device with one read and with several in flight: give a result of `forebay \
             measure saturate --json` or of `forebay report --json`",
            file.display()
        ))),
    }
}

fn of(report: &Report, name: &str) -> Option<DeviceRates> {
    let curve = curve(report)?;
    let ((load, alone), (in_flight, knee)) = (curve.first(), curve.knee());
    let rate = |row: &forebay_report::result::Row| row.metrics.get(metric::IOPS);
    // Another machine may have a device of the same name and size.
    let here = rustix::system::uname();
    let is_here = |host: &String| *host == here.nodename().to_string_lossy();
    let path = report.environment.path.as_ref().filter(|_| report.environment.host.iter().all(is_here));
    let experiment = groups(&report.experiments).get(curve.section)?.first().copied()?;
    (load == 1.0).then_some(DeviceRates {
        device_number: path.and_then(number).unwrap_or_default(),
        block_bytes: experiment.number("block_bytes")? as u64,
        alone_per_s: rate(alone)?,
        in_flight: in_flight as u64,
        per_s: rate(knee)?,
        source: format!("{} in {name}", experiment.name),
    })
}

/// Returns the number that the uppermost device below the path has on this machine now. Its size must
/// show that it is still the measured one.
fn number(path: &PathInfo) -> Option<String> {
    let here = Path::new("/sys/class/block");
    let upper = &path.layers.first()?.name;
    let measured = path.device.as_ref()?;
    let sectors: u64 = read(&here.join(&measured.name).join("size"))?.parse().ok()?;
    if measured.size_bytes.is_some_and(|bytes| bytes != sectors * 512) {
        return None;
    }
    read(&here.join(upper).join("dev"))
}

fn read(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::environment::Environment;
    use forebay_report::result::columns::SHARED;
    use forebay_report::result::view::{Role, View};
    use forebay_report::result::{CacheState, Condition, DEVICE_BYTES, Experiment, Row, metric};

    /// Returns a report of random reads at these depths, with their IOPS.
    fn random(figures: [(u32, f64); 4]) -> Report {
        let experiment = |(depth, iops): (u32, f64)| {
            let row = Row::of_repeats("direct", [[(metric::IOPS, iops)]]);
            let mut row = row.cache(CacheState::Direct);
            row.conditions.push(Condition::within(DEVICE_BYTES, 1.0, 0.95, 1.02));
            Experiment::new("random", "")
                .shown(View::of(Role::Random, SHARED))
                .parameter("depth", depth)
                .parameter("block_bytes", 4096)
                .with_rows([row])
        };
        Report::new(Environment::default(), figures.map(experiment).into())
    }

    #[test]
    fn the_first_and_the_smallest_load_with_all_there_is_are_taken() {
        let report = random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)]);
        let served = of(&report, "base.json").expect("it has a sweep");
        assert_eq!((served.block_bytes, served.in_flight), (4096, 32));
        assert_eq!((served.alone_per_s, served.per_s), (10e3, 80e3));
        assert_eq!((served.source.as_str(), served.device_number.as_str()), ("random in base.json", ""));
    }

    #[test]
    fn without_a_single_read_first_there_is_no_gain() {
        let report = random([(2, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)]);
        assert!(of(&report, "base.json").is_none());
    }

    #[test]
    fn another_devices_size_is_another_device() {
        let Some(name) = fs::read_dir("/sys/class/block").ok().and_then(|mut all| all.next()?.ok()) else {
            return;
        };
        let name = name.file_name().to_string_lossy().into_owned();
        let sectors =
            read(&Path::new("/sys/class/block").join(&name).join("size")).expect("every device has one");
        let bytes = sectors.parse::<u64>().expect("a number") * 512;
        let path = |size_bytes: u64| PathInfo {
            layers: vec![forebay_report::environment::LayerInfo { name: name.clone(), ..Default::default() }],
            device: Some(forebay_report::environment::DeviceInfo {
                name: name.clone(),
                size_bytes: Some(size_bytes),
                ..Default::default()
            }),
            ..PathInfo::default()
        };
        assert!(number(&path(bytes)).is_some_and(|number| number.contains(':')));
        assert_eq!(number(&path(bytes + 512)), None);
        // Regression: the device of that name and size on another machine was taken for this one.
        let mut report = random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)]);
        report.environment.path = Some(path(bytes));
        assert!(of(&report, "base.json").is_some_and(|served| served.device_number.contains(':')));
        report.environment.host = Some("another machine".to_owned());
        assert!(of(&report, "base.json").is_some_and(|served| served.device_number.is_empty()));
    }
}
