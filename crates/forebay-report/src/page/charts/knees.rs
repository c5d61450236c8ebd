//! Points where more readers no longer pay off, as marks in a chart over readers.

use crate::page::knee::{Definition, Level, saturation};
use crate::page::svg::Mark;
use crate::result::{Experiment, metric};

/// Returns a mark for each definition of the knee, for the row with the highest throughput. There is
/// none where the device is not saturated, and none over anything but readers.
pub(crate) fn of(group: &[&Experiment]) -> Vec<Mark> {
    let levels = |name: &str| -> Vec<Level> {
        let level = |experiment: &&Experiment| {
            let row = experiment.row(name)?;
            Some(Level {
                readers: experiment.number("readers")?,
                per_second: row.metrics.get(metric::IOPS)?,
                mean_us: row.metrics.get(metric::MEAN_US)?,
            })
        };
        super::in_order(group).iter().filter_map(level).collect()
    };
    let most = |levels: &[Level]| levels.iter().map(|level| level.per_second).fold(0.0, f64::max);
    let names = group.iter().flat_map(|experiment| experiment.rows.iter().map(|row| row.name.as_str()));
    let fastest = names.map(|name| (name, levels(name))).max_by(|a, b| most(&a.1).total_cmp(&most(&b.1)));
    let Some((_, levels)) = fastest.filter(|_| super::over_readers(group)) else { return Vec::new() };
    let Some(found) = saturation(&levels) else { return Vec::new() };
    let marks = Definition::ALL.iter().zip(found.knees).map(|(definition, place)| Mark {
        at: levels[place].readers,
        label: definition.name().to_owned(),
        level: false,
    });
    marks.collect()
}
