//! Selects the charts of an experiment by the available numbers. Parameters that vary give curves over
//! them, several percentiles a curve over the share of operations, times of several calls bars made of
//! parts, series a line over time.

use super::facts;
use super::histogram;
use super::html::capital;
use super::knee::{KNEES, Level, saturation};
use super::svg::{Chart, Line, Mark, Point, Shape, Spread, XAxis};
use crate::result::columns::{Column, groups, heading, once, row_names};
use crate::result::view::{self, Axis, Role};
use crate::result::{CacheState, Experiment, Report, Row, metric};

/// Maximum lines that remain distinguishable, in a chart of a section and on the first screen.
const LINES: usize = 12;
const LINES_FIRST: usize = 3;

/// Returns all charts of experiments that belong together, the main one first.
pub(crate) fn of(group: &[&Experiment]) -> Vec<Chart> {
    let mut charts = match group {
        [] => return Vec::new(),
        [only] => bars(only),
        _ => sweep(group),
    };
    charts.extend(against_throughput(group));
    charts.extend(group.iter().flat_map(|experiment| series(experiment)));
    charts.extend(calls(group));
    charts.extend(percentiles(group));
    charts
}

/// Returns rate and latency over the load: of the sweep on which the conclusions rest, or of the baseline's two depths. Rows of the
/// device are first; the fastest other row is separate.
pub(crate) fn overview(report: &Report) -> Option<[Chart; 2]> {
    let groups = groups(&report.experiments);
    let (lines, axis, note) = match facts::curve(report) {
        Some(curve) => {
            let group = &groups[curve.section];
            (swept(group)?, view::axis(group)?, heading(group))
        }
        None => (of_baseline(report)?, Axis::new("depth", "queue depth"), ""),
    };
    let title = format!("Rate and p99 over {}", axis.label);
    Some([(0, "IOPS"), (1, "p99 µs")].map(|(index, y)| {
        let lines: Vec<Line> = lines.iter().map(|both| both[index].clone()).collect();
        let x = XAxis { spread: Spread::Log, ..over(&axis.label, &lines) };
        Chart::lines(title.clone(), note, x, y, lines)
    }))
}

/// Returns rate and p99 of the fastest rows of a sweep.
fn swept(group: &[&Experiment]) -> Option<Vec<[Line; 2]>> {
    let axis = view::axis(group)?;
    let most = |lines: &[Line; 2]| lines[0].points.iter().map(|point| point.y).fold(0.0, f64::max);
    let (mut device, mut others) = (Vec::new(), Vec::new());
    for name in row_names(group) {
        let rows = group.iter().filter_map(|experiment| experiment.row(name));
        let rows: Vec<&Row> = rows.filter(|row| row.skipped.is_none()).collect();
        let mut lines = [metric::IOPS, metric::P99_US].map(|metric| {
            let point = |experiment: &Experiment, row: &Row| {
                let (x, y) = (experiment.number(&axis.parameter)?, row.get(metric)?);
                (x > 0.0 && y > 0.0).then(|| Point::new(x, y))
            };
            Line::new(name, points(group, name, point))
        });
        if lines[0].points.len() < 2 || rows.iter().any(|row| row.degraded.is_some()) {
            continue;
        }
        let cache = rows.iter().find_map(|row| row.cache).filter(|cache| *cache != CacheState::Direct);
        if rows.iter().all(|row| facts::is_direct(row)) {
            device.push(lines);
        } else if let Some(cache) = cache {
            for line in &mut lines {
                (line.aside, line.name) = (true, format!("{name} ({})", cache.label()));
            }
            others.push(lines);
        }
    }
    for rows in [&mut device, &mut others] {
        rows.sort_by(|a, b| most(b).total_cmp(&most(a)));
    }
    device.truncate(LINES_FIRST);
    device.extend(others.into_iter().take(1));
    (!device.is_empty()).then_some(device)
}

/// Returns rate and p99 of the baseline's random reads and writes.
fn of_baseline(report: &Report) -> Option<Vec<[Line; 2]>> {
    let baseline = report.experiments.iter().find(|experiment| experiment.view.role == Role::Baseline)?;
    let lines = ["random-read", "random-write"].map(|name| {
        [metric::IOPS, metric::P99_US].map(|metric| {
            let at = |depth: u32| {
                let row = baseline.row(&format!("{name}-{depth}"))?;
                Some(Point::new(f64::from(depth), row.get(metric).filter(|value| *value > 0.0)?))
            };
            Line::new(name, [1, 32].into_iter().filter_map(at).collect())
        })
    });
    let known: Vec<[Line; 2]> = lines.into_iter().filter(|both| both[0].points.len() == 2).collect();
    (!known.is_empty()).then_some(known)
}

/// Returns the figure of a row at a place, with the range of its repeats.
fn point(column: &Column, row: &Row, x: f64) -> Option<Point> {
    let y = column.value(row)?;
    let (low, high) = column.spread(row).unwrap_or((y, y));
    Some(Point { x, y, low, high })
}

fn bars(experiment: &Experiment) -> Vec<Chart> {
    let chart = |column: &Column| {
        let bar = |row: &Row| Some(Line::new(&row.name, vec![point(column, row, 0.0)?]));
        let lines: Vec<Line> = experiment.rows.iter().filter_map(bar).collect();
        let (title, note) = (column.heading.to_string(), column.meaning.to_string());
        let shape = Shape::Bars(Vec::new());
        (!lines.is_empty()).then(|| Chart { y: title.clone(), title, note, lines, shape })
    };
    experiment.view.charts().filter_map(chart).collect()
}

fn sweep(group: &[&Experiment]) -> Vec<Chart> {
    let Some(axis) = view::axis(group) else { return Vec::new() };
    let chart = |column: &Column| {
        let lines = rows(group, |experiment, row| point(column, row, experiment.number(&axis.parameter)?));
        let title = format!("{} over {}", column.heading, axis.label);
        let marks = if column.metric == metric::IOPS { knees(group, &axis) } else { Vec::new() };
        let x = over(&axis.label, &lines);
        let is_known = !lines.is_empty();
        let chart = Chart::lines(title, &column.meaning, x, &column.heading, lines);
        is_known.then(|| chart.with(marks, false))
    };
    group[0].view.charts().filter_map(chart).collect()
}

/// Returns the chart of latency (vertical) over throughput (horizontal). Where a curve turns upwards,
/// more operations in flight only add latency.
fn against_throughput(group: &[&Experiment]) -> Option<Chart> {
    let view = &group.first().filter(|_| group.len() >= 4)?.view;
    let has =
        |column: &&Column| group.iter().flat_map(|one| &one.rows).any(|row| column.value(row).is_some());
    let rates = [metric::IOPS, metric::LOOKUPS_PER_S].into_iter().filter_map(|name| view.column(name));
    let (rate, latency) = (rates.into_iter().find(has)?, view.column(metric::P99_US)?);
    let lines = rows(group, |_, row| Some(Point::new(rate.value(row)?, latency.value(row)?)));
    let title = format!("{} against {}", latency.heading, rate.heading);
    let note = format!("one point for each number of {}, joined in their order", view::axis(group)?.label);
    let x = XAxis::new(&rate.heading, Spread::Linear);
    let is_curve = lines.iter().any(|line| line.points.len() >= 4);
    is_curve.then(|| Chart::lines(title, &note, x, &latency.heading, lines))
}

/// Returns a line for each name of a row that has points.
fn rows(group: &[&Experiment], point: impl Fn(&Experiment, &Row) -> Option<Point>) -> Vec<Line> {
    let lines = row_names(group).into_iter().map(|name| Line::new(name, points(group, name, &point)));
    lines.filter(|line| !line.points.is_empty()).take(LINES).collect()
}

/// Returns the values of the row `name` at all places, in the order of the group's axis.
fn points<T>(group: &[&Experiment], name: &str, point: impl Fn(&Experiment, &Row) -> Option<T>) -> Vec<T> {
    in_order(group).into_iter().filter_map(|experiment| point(experiment, experiment.row(name)?)).collect()
}

/// Returns the experiments in the order of the parameter that differs between them.
fn in_order<'a>(group: &[&'a Experiment]) -> Vec<&'a Experiment> {
    let axis = view::axis(group);
    let place = |experiment: &Experiment| experiment.number(&axis.as_ref()?.parameter);
    let mut ordered = group.to_vec();
    ordered.sort_by(|a, b| place(a).unwrap_or_default().total_cmp(&place(b).unwrap_or_default()));
    ordered
}

/// Returns a horizontal axis with a tick for each measured place.
fn over(title: &str, lines: &[Line]) -> XAxis {
    let places = lines.iter().flat_map(|line| line.points.iter().map(|point| point.x));
    let (low, high) =
        places.fold((f64::INFINITY, 0.0_f64), |(low, high), place| (low.min(place), high.max(place)));
    let spread = if low > 0.0 && high / low > 10.0 { Spread::Log } else { Spread::Linear };
    XAxis { title: title.to_owned(), spread, ticks_at_points: true }
}

/// Returns a mark for each definition of the knee, for the row with the highest throughput. A device that is not saturated has no
/// mark, nor has any axis but readers.
fn knees(group: &[&Experiment], axis: &Axis) -> Vec<Mark> {
    let level = |experiment: &Experiment, row: &Row| {
        let (per_second, mean_us) = (row.get(metric::IOPS)?, row.get(metric::MEAN_US)?);
        Some(Level { readers: experiment.number("readers")?, per_second, mean_us })
    };
    let most = |levels: &Vec<Level>| levels.iter().map(|level| level.per_second).fold(0.0, f64::max);
    let names = row_names(group).into_iter().filter(|_| axis.parameter == "readers");
    let all = names.map(|name| points(group, name, level));
    let Some(levels) = all.max_by(|a, b| most(a).total_cmp(&most(b))) else { return Vec::new() };
    let knees = saturation(&levels).map(|found| found.knees).into_iter().flatten();
    let mark =
        |((name, _), place): (_, usize)| Mark { at: levels[place].readers, label: str::to_owned(name) };
    KNEES.into_iter().zip(knees).map(mark).collect()
}

/// The calls, in the order in which a program makes them.
const CALLS: [&str; 10] =
    ["create", "open", "stat", "read", "write", "sync", "close", "rename", "unlink", "remove"];
/// Suffixes of such a metric's name, and their units.
const UNITS: [(&str, &str); 4] = [("_ms", "ms"), ("_us", "µs"), ("_s", "s"), ("_seconds", "s")];

/// Returns the chart, where rows have the times of at least two calls.
fn calls(group: &[&Experiment]) -> Option<Chart> {
    UNITS.iter().find_map(|(suffix, unit)| in_unit(group, suffix, unit))
}

fn in_unit(group: &[&Experiment], suffix: &str, unit: &str) -> Option<Chart> {
    let value = |row: &Row, call: &str| row.get(&format!("{call}{suffix}"));
    let has = |call: &&str| group.iter().flat_map(|one| &one.rows).any(|row| value(row, call).is_some());
    let parts: Vec<&str> = CALLS.into_iter().filter(has).collect();
    let bars = in_order(group).into_iter().flat_map(|experiment| {
        let place = view::place(group, experiment);
        let rows = experiment.rows.iter().filter(|row| parts.iter().any(|call| value(row, call).is_some()));
        rows.map(|row| {
            let point = |call: &&str| Point::new(0.0, value(row, call).unwrap_or_default());
            Line::new(&format!("{}{place}", row.name), parts.iter().map(point).collect())
        })
        .collect::<Vec<_>>()
    });
    (parts.len() > 1).then(|| Chart {
        title: "Time by call".to_owned(),
        note: format!("medians in {unit}, stacked in the order in which the calls are made"),
        y: unit.to_owned(),
        lines: bars.collect(),
        shape: Shape::Bars(parts.iter().map(|call| (*call).to_owned()).collect()),
    })
}

/// Latencies that an experiment can have: the name of their histogram, their label, and the metrics of their percentiles.
const FAMILIES: [(&str, &str, [&str; 3]); 3] = [
    ("latency", "latency", [metric::P50_US, metric::P99_US, metric::P99_9_US]),
    ("durable", "time until durable", [metric::DURABLE[0], metric::DURABLE[1], metric::DURABLE[2]]),
    ("seen", "time until seen", [metric::SEEN[0], metric::SEEN[1], metric::SEEN[2]]),
];
/// Shares of operations for these percentiles.
const SHARES: [f64; 3] = [0.5, 0.99, 0.999];

/// Returns a chart for each latency of the group; for a sweep, of its first and its last place.
fn percentiles(group: &[&Experiment]) -> Vec<Chart> {
    let ordered = in_order(group);
    let ends = ordered.iter().take(1).chain(ordered.iter().skip(1).last());
    let charts = ends.flat_map(|experiment| {
        let place = view::place(group, experiment);
        FAMILIES.into_iter().filter_map(move |(histogram, what, percentiles)| {
            let line = |row: &Row| Some(Line::new(&row.name, shares(row, histogram, percentiles)?));
            let lines: Vec<Line> = experiment.rows.iter().filter_map(line).take(LINES).collect();
            let title = format!("{} by share of operations{place}", capital(what));
            let note = format!("at 99 %: the {what} that 99 of 100 operations did not exceed");
            let x = XAxis::new("share of operations", Spread::Tail);
            (!lines.is_empty()).then(|| Chart::lines(title, &note, x, "µs", lines).with(Vec::new(), true))
        })
    });
    charts.collect()
}

/// Returns the points of the whole histogram, or of at least two percentiles.
fn shares(row: &Row, histogram: &str, percentiles: [&str; 3]) -> Option<Vec<Point>> {
    let curve = row.histograms.get(histogram).and_then(|text| histogram::curve(text));
    let curve = curve.unwrap_or_else(|| {
        let percentiles = SHARES.into_iter().zip(percentiles);
        percentiles.filter_map(|(share, metric)| Some((share, row.get(metric)?))).collect()
    });
    (curve.len() >= 2).then(|| curve.into_iter().map(|(share, us)| Point::new(share, us)).collect())
}

/// Name of the list with the times.
const AT: &str = "at_s";

/// Returns one chart for each series of an experiment, with a line for each row that has it and a mark
/// where its level changed.
fn series(experiment: &Experiment) -> Vec<Chart> {
    let names = once(experiment.rows.iter().flat_map(|row| row.series.keys()).filter(|name| *name != AT));
    let mark = |row: &Row| {
        let at = row.get(metric::CHANGE_S).filter(|_| row.series.contains_key(AT))?;
        Some(Mark { at, label: format!("{} changes", row.name) })
    };
    let chart = |name: &String| {
        let line = |row: &Row| {
            let pairs = row.series.get(AT)?.iter().zip(row.series.get(name)?);
            Some(Line::new(&row.name, pairs.map(|(at, value)| Point::new(*at, *value)).collect()))
        };
        let heading = experiment.view.column(name).map_or(name.as_str(), |column| &*column.heading);
        let (title, note) = (format!("{heading} over time"), "each tenth of a second of the first repeat");
        let x = XAxis::new("seconds", Spread::Linear);
        let lines = experiment.rows.iter().filter_map(line).collect();
        let marks = experiment.rows.iter().filter_map(mark).collect();
        Chart::lines(title, note, x, heading, lines).with(marks, true)
    };
    names.into_iter().map(chart).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Series;

    fn random(depth: u32, figures: &[(&str, f64)]) -> Experiment {
        let row = Row::of_repeats("direct", [figures.iter().copied()]);
        Experiment::new("random", "how").parameter("depth", depth).with_rows([row])
    }

    fn titles(charts: &[Chart]) -> Vec<&str> {
        charts.iter().map(|chart| chart.title.as_str()).collect()
    }

    #[test]
    fn one_experiment_makes_bars_and_several_make_lines() {
        let [one, eight] = [1, 8].map(|depth| random(depth, &[(metric::IOPS, f64::from(depth) * 1000.0)]));
        assert_eq!(titles(&of(&[&one])), ["IOPS"]);
        let charts = of(&[&eight, &one]);
        assert_eq!(titles(&charts), ["IOPS over reads in flight"]);
        let lines = &charts[0].lines;
        let places: Vec<f64> = lines[0].points.iter().map(|point| point.x).collect();
        assert_eq!(places, [1.0, 8.0], "in the order of the axis");
    }

    #[test]
    fn a_sweep_with_latency_shows_it_against_throughput() {
        let all: Vec<Experiment> =
            [(1, 10e3, 100.0), (8, 60e3, 150.0), (32, 80e3, 500.0), (128, 81e3, 2000.0)]
                .into_iter()
                .map(|(depth, iops, p99)| random(depth, &[(metric::IOPS, iops), (metric::P99_US, p99)]))
                .collect();
        let group: Vec<&Experiment> = all.iter().collect();
        assert!(titles(&of(&group)).contains(&"p99 µs against IOPS"), "{:?}", titles(&of(&group)));
    }

    #[test]
    fn an_experiment_without_figures_has_no_chart() {
        let experiment = Experiment::new("scan", "").with_rows([Row::skipped("uncached", "refused")]);
        assert!(of(&[&experiment]).is_empty() && of(&[]).is_empty());
    }

    fn writes(figures: &[(&str, f64)]) -> Experiment {
        Experiment::new("writes", "").with_rows([Row::of_repeats("sync-close", [figures.iter().copied()])])
    }

    #[test]
    fn calls_are_stacked_in_their_order() {
        let experiment =
            writes(&[("sync_ms", 30.0), ("open_ms", 1.0), ("write_ms", 4.0), ("total_ms", 35.0)]);
        let chart = calls(&[&experiment]).expect("three calls");
        let Shape::Bars(parts) = chart.shape else { panic!("bars") };
        assert_eq!(parts, ["open", "write", "sync"]);
        assert_eq!(chart.lines[0].points.iter().map(|point| point.y).collect::<Vec<_>>(), [1.0, 4.0, 30.0]);
    }

    #[test]
    fn one_call_alone_is_no_chart() {
        assert_eq!(calls(&[&writes(&[("read_us", 30.0), ("p99_us", 1.0)])]), None);
    }

    fn of_three(depth: u32) -> Experiment {
        random(depth, &[(metric::P50_US, 100.0), (metric::P99_US, 300.0), (metric::P99_9_US, 900.0)])
    }

    #[test]
    fn a_sweep_shows_its_first_and_its_last_place() {
        let all = [of_three(32), of_three(1), of_three(8)];
        let group: Vec<&Experiment> = all.iter().collect();
        let titles: Vec<String> = percentiles(&group).into_iter().map(|chart| chart.title).collect();
        assert_eq!(
            titles,
            [
                "Latency by share of operations, reads in flight: 1",
                "Latency by share of operations, reads in flight: 32"
            ]
        );
    }

    #[test]
    fn three_percentiles_are_three_points() {
        let charts = percentiles(&[&of_three(1)]);
        let lines = &charts[0].lines;
        assert_eq!(lines[0].points.len(), 3);
        assert_eq!(charts[0].title, "Latency by share of operations");
    }

    #[test]
    fn a_row_with_its_histogram_has_a_curve_of_it() {
        let mut experiment = of_three(1);
        let text = crate::page::histogram::tests::text(1..=10_000);
        experiment.rows[0].histograms.insert("latency".to_owned(), text);
        let charts = percentiles(&[&experiment]);
        let lines = &charts[0].lines;
        assert!(lines[0].points.len() > 20, "{}", lines[0].points.len());
    }

    fn sustain(change_s: Option<f64>) -> Experiment {
        let figures = [(metric::SUSTAINED_MB_PER_S, Some(50.0)), (metric::CHANGE_S, change_s)];
        let mut row = Row::of_repeats("random-write", [figures]);
        let rates = vec![100.0, 100.0, 50.0];
        row.series =
            Series::from([(AT.to_owned(), vec![0.0, 0.1, 0.2]), (metric::MB_PER_S.to_owned(), rates)]);
        Experiment::new("sustain", "how").with_rows([row])
    }

    #[test]
    fn a_series_is_a_line_over_time_and_its_change_a_mark() {
        let (changed, steady) = (sustain(Some(0.2)), sustain(None));
        let charts = series(&changed);
        assert_eq!(charts.len(), 1, "the times are no series of their own");
        let Shape::Lines { marks, .. } = &charts[0].shape else { panic!("{charts:?}") };
        let lines = &charts[0].lines;
        let points: Vec<(f64, f64)> = lines[0].points.iter().map(|point| (point.x, point.y)).collect();
        assert_eq!(points, [(0.0, 100.0), (0.1, 100.0), (0.2, 50.0)]);
        assert_eq!(marks.iter().map(|mark| mark.at).collect::<Vec<_>>(), [0.2]);
        let charts = series(&steady);
        let Shape::Lines { marks, .. } = &charts[0].shape else { panic!("{charts:?}") };
        assert!(marks.is_empty());
    }

    #[test]
    fn rows_without_a_series_have_no_chart() {
        let mut experiment = sustain(None);
        experiment.rows[0].series.clear();
        assert!(series(&experiment).is_empty());
    }

    #[test]
    fn the_first_chart_has_rows_of_the_device_and_one_of_memory_apart() {
        let mut experiments = facts::tests::random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)]);
        for experiment in &mut experiments {
            for (name, times) in [("buffered", 9.0), ("mmap", 20.0)] {
                let mut warm = experiment.rows[0].clone();
                warm.name = name.to_owned();
                warm.cache = Some(CacheState::Warm);
                warm.metrics.set(metric::IOPS, times * warm.metrics.get(metric::IOPS).expect("measured"));
                experiment.rows.push(warm);
            }
        }
        let [rate, _] = overview(&facts::tests::report(experiments)).expect("four depths");
        let Shape::Lines { x, .. } = rate.shape else { panic!("lines") };
        let lines = rate.lines;
        let names: Vec<(&str, bool)> = lines.iter().map(|line| (line.name.as_str(), line.aside)).collect();
        assert_eq!(names, [("direct", false), ("mmap (warm)", true)]);
        assert_eq!(x.spread, Spread::Log);
    }

    #[test]
    fn without_a_sweep_the_first_chart_is_the_baseline() {
        let report = facts::tests::report(vec![crate::page::headline::tests::baseline()]);
        let [rate, p99] = overview(&report).expect("two depths");
        for chart in [rate, p99] {
            assert_eq!(chart.lines.iter().map(|line| line.points.len()).collect::<Vec<_>>(), [2, 2]);
        }
        assert!(overview(&facts::tests::report(Vec::new())).is_none());
    }
}
