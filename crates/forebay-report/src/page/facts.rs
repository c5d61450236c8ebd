//! Figures of a whole report that several sentences need.

use super::knee::saturated_at;
use crate::result::columns::{groups, row_names};
use crate::result::view::{self, Role};
use crate::result::{CacheState, Condition, DEVICE_BYTES, Experiment, Report, Row, metric};
use crate::units::{largest, number};

/// The sweeps that show where more load no longer pays off, the better one first.
const SWEEPS: [Role; 2] = [Role::Saturation, Role::Random];

/// A row of an experiment, and the section of the page that shows it.
#[derive(Clone, Copy, Debug)]
pub struct FoundRow<'a> {
    /// The number of the section.
    pub section: usize,
    /// The experiment.
    pub experiment: &'a Experiment,
    /// The row.
    pub row: &'a Row,
    /// Value of the metric that was searched for.
    pub value: f64,
}

/// Returns whether a row's figures may be compared: measured, granted its requested settings, not from
/// memory, and not contradicted by the device's own counters.
pub fn counts(row: &Row) -> bool {
    row.skipped.is_none()
        && row.degraded.is_none()
        && row.cache != Some(CacheState::Warm)
        && row.implausible().is_none()
}

/// Returns whether a row may stand for the device where no row is proven to: it read past the page
/// cache, and no counter contradicts it.
pub(crate) fn is_direct(row: &Row) -> bool {
    let contradicts = |gate: &Condition| gate.name == DEVICE_BYTES && gate.failed();
    counts(row)
        && matches!(row.cache, Some(CacheState::Direct) | None)
        && !row.conditions.iter().any(contradicts)
}

/// Returns the rows that describe the device: those proven by its counters or, without counters, all that bypass the page cache. A
/// row that the page cache serves in part does not describe the device.
pub fn of_device<'a>(report: &'a Report, role: Role, metric: &str) -> Vec<FoundRow<'a>> {
    let all = rows(report, role, metric);
    let proven: Vec<_> = all.iter().filter(|found| found.row.is_proven()).copied().collect();
    if proven.is_empty() { all.into_iter().filter(|found| is_direct(found.row)).collect() } else { proven }
}

/// A spread of repeats, as a share of the median, from which a figure is marked.
pub(crate) const WIDE: f64 = 0.25;

/// Returns the distance of a figure's largest repeat from the smallest, as a share of the median; `None` of one repeat.
pub(crate) fn spread(row: &Row, metric: &str) -> Option<f64> {
    let ((low, high), median) = row.spread(metric).zip(row.get(metric)).filter(|_| row.samples.len() > 1)?;
    Some((high - low) / median)
}

/// Returns every row that was measured, with its section and experiment.
pub(crate) fn measured(report: &Report) -> impl Iterator<Item = (usize, &Experiment, &Row)> {
    let sections = groups(&report.experiments).into_iter().enumerate();
    let experiments = sections.flat_map(|(section, group)| group.into_iter().map(move |one| (section, one)));
    let rows = experiments.flat_map(|(section, one)| one.rows.iter().map(move |row| (section, one, row)));
    rows.filter(|(.., row)| row.skipped.is_none())
}

/// Returns the rows that have the metric, of the experiments with this role. Rows whose figures do not count are left out.
pub fn rows<'a>(report: &'a Report, role: Role, metric: &str) -> Vec<FoundRow<'a>> {
    let rows = measured(report).filter(|(_, experiment, row)| experiment.view.role == role && counts(row));
    let found = rows.filter_map(|(section, experiment, row)| {
        Some(FoundRow { section, experiment, row, value: row.get(metric)? })
    });
    found.collect()
}

/// A row over the number of readers.
#[derive(Debug)]
pub struct Curve<'a> {
    /// The number of the section.
    pub section: usize,
    /// The quantity that the load counts.
    pub load: String,
    /// Load and row, ascending.
    pub points: Vec<(f64, &'a Row)>,
    /// The experiment of the smallest load; the fixed parameters are the same in all.
    pub experiment: &'a Experiment,
    /// The device's counters prove that it served all of these reads.
    pub proven: bool,
}

impl<'a> Curve<'a> {
    /// Returns the row of the smallest load.
    pub fn first(&self) -> (f64, &'a Row) {
        self.points[0]
    }

    /// Returns the row of the largest load.
    pub fn last(&self) -> (f64, &'a Row) {
        self.points[self.points.len() - 1]
    }

    /// Returns the load with the most reads per second.
    pub fn best(&self) -> (f64, &'a Row) {
        largest(self.points.iter().copied(), |(_, row)| rate(row)).unwrap_or(self.last())
    }

    /// Returns the maximum of the reads per second.
    pub fn most(&self) -> f64 {
        rate(self.best().1)
    }

    /// Returns a phrase on the gain beyond the load of the knee, as far as it was measured.
    pub fn beyond_knee(&self) -> String {
        let ((knee, row), (last, _), (at, best)) = (self.knee(), self.last(), self.best());
        let more = ((rate(best) / rate(row) - 1.0) * 100.0).round();
        let [more_text, at, last_text] = [more, at, last].map(number);
        match () {
            () if knee >= last => format!("more than {last_text} was not measured"),
            () if more >= 1.0 => format!("at most {more_text} % more, at {at} (measured up to {last_text})"),
            () => format!("more brings none (measured up to {last_text})"),
        }
    }

    /// Returns, in words, the limit of a control group that the maximum reaches.
    pub fn limit(&self) -> Option<String> {
        limit(self.experiment, self.most())
    }

    /// Returns the smallest load from which larger loads gain little.
    pub fn knee(&self) -> (f64, &'a Row) {
        let curve: Vec<(f64, f64)> = self.points.iter().map(|(load, row)| (*load, rate(row))).collect();
        saturated_at(&curve).map_or(self.last(), |at| self.points[at])
    }
}

/// Share of a limit that counts as reaching it: a token bucket lets a little more or less through than
/// its rate.
const AT_THE_LIMIT: f64 = 0.85;

/// Returns, in words, the limit of a control group that `per_second` reads reach: then the device may be faster.
pub fn limit(experiment: &Experiment, per_second: f64) -> Option<String> {
    let block = experiment.number("block_bytes").unwrap_or(0.0);
    let by = experiment.parameters.get(IO_LIMIT_BY)?.as_str()?;
    let reached =
        |name: &str, value: f64| experiment.number(name).filter(|limit| value >= AT_THE_LIMIT * limit);
    let reads = reached(IO_LIMIT_READS, per_second).map(|limit| format!("{} reads a second", number(limit)));
    let bytes =
        reached(IO_LIMIT_BYTES, per_second * block).map(|limit| format!("{} MB/s", number(limit / 1e6)));
    let phrase = reads.or(bytes)?;
    Some(format!("the limit of {phrase} that {by} sets"))
}

/// Parameters of experiments under a limit of a control group.
pub const IO_LIMIT_BY: &str = "io_limit_by";
/// See [`IO_LIMIT_BY`].
pub const IO_LIMIT_READS: &str = "io_limit_reads_per_s";
/// See [`IO_LIMIT_BY`].
pub const IO_LIMIT_BYTES: &str = "io_limit_bytes_per_s";

/// Returns the reads per second of a row.
pub(crate) fn rate(row: &Row) -> f64 {
    row.get(metric::IOPS).unwrap_or_default()
}

/// Returns the sweep over concurrency whose row reached the most reads per second: of `saturate`,
/// otherwise of `random`.
pub fn curve(report: &Report) -> Option<Curve<'_>> {
    SWEEPS.into_iter().find_map(|role| {
        let sections = groups(&report.experiments).into_iter().enumerate();
        let own = sections.filter(|(_, group)| group[0].view.role == role && whole(group[0]));
        let mut curves: Vec<_> =
            own.flat_map(|(section, group)| curves_of(section, &group).unwrap_or_default()).collect();
        if curves.iter().any(|curve| curve.proven) {
            curves.retain(|curve| curve.proven);
        }
        largest(curves, Curve::most)
    })
}

/// Returns whether the reads cover the whole file: a small part of it may fit in a drive's memory.
fn whole(experiment: &Experiment) -> bool {
    match (experiment.number("span_bytes"), experiment.number("file_bytes")) {
        (Some(span), Some(file)) => span >= file * 0.999,
        _ => true,
    }
}

/// Returns whether an experiment reads blocks of 4 KiB over the whole file with `depth` in flight.
pub(crate) fn is_at(experiment: &Experiment, depth: f64) -> bool {
    let in_flight = experiment.number("depth").or_else(|| experiment.number("readers"));
    in_flight == Some(depth)
        && experiment.number("block_bytes").is_none_or(|bytes| bytes == 4096.0)
        && whole(experiment)
}

fn curves_of<'a>(section: usize, group: &[&'a Experiment]) -> Option<Vec<Curve<'a>>> {
    let axis = view::axis(group).filter(|axis| ["readers", "depth"].contains(&&*axis.parameter))?;
    let curve = |name: &str| {
        let point = |experiment: &&'a Experiment| {
            let row = experiment.row(name).filter(|row| is_direct(row) && row.get(metric::IOPS).is_some())?;
            Some((experiment.number(&axis.parameter)?, row))
        };
        let mut points: Vec<(f64, &'a Row)> = group.iter().filter_map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let proven = points.iter().all(|(_, row)| row.is_proven());
        Curve { section, load: axis.label.to_string(), points, experiment: group[0], proven }
    };
    Some(row_names(group).into_iter().map(curve).filter(|curve| curve.points.len() >= 3).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::environment::Environment;
    use crate::result::columns::SHARED;
    use crate::result::view::View;

    /// Returns a row of three repeats that differ by a hundredth.
    pub(crate) fn row(name: &str, figures: &[(&str, f64)]) -> Row {
        let scaled = |factor: f64| figures.iter().map(move |(name, value)| (*name, value * factor));
        let mut row = Row::of_repeats(name, [0.99, 1.0, 1.01].map(scaled)).cache(CacheState::Direct);
        row.conditions.push(Condition::within(DEVICE_BYTES, 1.0, 0.95, 1.02));
        row
    }

    /// Returns a report of these experiments.
    pub(crate) fn report(experiments: Vec<Experiment>) -> Report {
        let environment = Environment { cpus_allowed: 2, ..Environment::default() };
        Report::new(environment, experiments)
    }

    /// Returns random reads at four depths.
    pub(crate) fn random(figures: [(u32, f64); 4]) -> Vec<Experiment> {
        let experiment = |(depth, iops): (u32, f64)| {
            let p99 = f64::from(depth) / iops * 1e6 * 1.5;
            let figures = [
                (metric::IOPS, iops),
                (metric::P50_US, p99 / 1.5),
                (metric::P99_US, p99),
                (metric::CPU_US_PER_IO, 5.0),
            ];
            Experiment::new("random", "")
                .shown(View::of(Role::Random, SHARED))
                .parameter("depth", depth)
                .parameter("block_bytes", 4096)
                .parameter("span_bytes", 1 << 30)
                .parameter("file_bytes", 1 << 30)
                .with_rows([row("direct", &figures)])
        };
        figures.into_iter().map(experiment).collect()
    }

    #[test]
    fn the_knee_is_the_smallest_load_with_all_there_is() {
        let report = report(random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)]));
        let curve = curve(&report).expect("four depths");
        assert_eq!((curve.first().0, curve.knee().0, curve.last().0), (1.0, 32.0, 128.0));
        assert_eq!(curve.most(), 82e3);
        assert_eq!(curve.load, "reads in flight");
    }

    #[test]
    fn figures_from_memory_do_not_count() {
        let mut experiments = random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)]);
        for experiment in &mut experiments {
            experiment.rows[0].cache = Some(CacheState::Warm);
        }
        let report = report(experiments);
        assert!(curve(&report).is_none() && rows(&report, Role::Random, metric::IOPS).is_empty());
    }
}
