//! Selects the charts of an experiment by the available numbers. Parameters that vary give curves over
//! them, several percentiles a curve over the share of operations, times of several calls bars made of
//! parts, series a line over time.

mod calls;
mod knees;
mod percentiles;
mod series;

use super::chart::{Chart, Shape};
use super::columns::Column;
use super::svg::{Bar, Line, Point, Spread, Whisker, XAxis};
use super::view;
use crate::result::{Experiment, Row, metric};

/// Maximum lines that remain distinguishable.
const LINES: usize = 12;

/// Returns all charts of experiments that belong together, in the order in which the page shows them.
pub(crate) fn of(group: &[&Experiment]) -> Vec<Chart> {
    let mut charts = match group {
        [] => return Vec::new(),
        [only] => bars(only),
        _ => sweep(group),
    };
    charts.extend(against_throughput(group));
    charts.extend(series::of(group));
    charts.extend(calls::of(group));
    charts.extend(percentiles::of(group));
    charts
}

fn bars(experiment: &Experiment) -> Vec<Chart> {
    let chart = |column: &Column| {
        let bars: Vec<Bar> = experiment
            .rows
            .iter()
            .filter_map(|row| Some(Bar { name: row.name.clone(), value: whisker(column, row)? }))
            .collect();
        (!bars.is_empty()).then(|| Chart {
            title: column.heading.to_string(),
            note: format!(
                "{}. Bars are medians, whiskers go from the smallest to the largest repeat.",
                meaning(column)
            ),
            shape: Shape::Bars { axis: column.heading.to_string(), bars },
        })
    };
    experiment.view.charts().filter_map(chart).collect()
}

fn sweep(group: &[&Experiment]) -> Vec<Chart> {
    let Some(axis) = view::axis(group) else { return Vec::new() };
    let chart = |column: &Column| {
        let lines = rows(group, |name| {
            points(group, name, |experiment, row| {
                let value = whisker(column, row)?;
                let x = experiment.number(&axis.parameter)?;
                Some(Point { x, y: value.value, low: value.low, high: value.high })
            })
        });
        (!lines.is_empty()).then(|| Chart {
            title: format!("{} over {}", column.heading, axis.label),
            note: format!(
                "{}. Points are medians, whiskers go from the smallest to the largest repeat.",
                meaning(column)
            ),
            shape: Shape::Lines {
                x: over(&axis.label, &lines),
                y: column.heading.to_string(),
                lines,
                marks: if column.metric == metric::IOPS { knees::of(group) } else { Vec::new() },
            },
        })
    };
    group[0].view.charts().filter_map(chart).collect()
}

/// Returns the chart of latency (vertical) over throughput (horizontal). Where a curve turns upwards,
/// more operations in flight only add latency.
fn against_throughput(group: &[&Experiment]) -> Option<Chart> {
    let first = group.first().filter(|_| group.len() >= 4)?;
    let rate = [metric::IOPS, metric::LOOKUPS_PER_S]
        .into_iter()
        .filter_map(|name| first.view.column(name))
        .find(|column| {
        group.iter().any(|experiment| experiment.rows.iter().any(|row| column.value(row).is_some()))
    })?;
    let latency = first.view.column(metric::P99_US)?;
    let lines = rows(group, |name| {
        points(group, name, |_, row| Some(Point::new(rate.value(row)?, latency.value(row)?)))
    });
    let axis = view::axis(group)?;
    (lines.iter().any(|line| line.points.len() >= 4)).then(|| Chart {
        title: format!("{} against {}", latency.heading, rate.heading),
        note: format!(
            "Each point is one number of {}, joined in their order: where a curve turns upwards without going on to the \
             right, more at once only waits longer.",
            axis.label
        ),
        shape: Shape::Lines {
            x: XAxis { title: rate.heading.to_string(), spread: Spread::Linear, ticks_at_points: false },
            y: latency.heading.to_string(),
            lines,
            marks: Vec::new(),
        },
    })
}

/// Returns a line for each name of a row that has points.
fn rows(group: &[&Experiment], points: impl Fn(&str) -> Vec<Point>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in group.iter().flat_map(|experiment| &experiment.rows) {
        if lines.len() < LINES && lines.iter().all(|line| line.name != row.name) {
            let points = points(&row.name);
            if !points.is_empty() {
                lines.push(Line { name: row.name.clone(), points });
            }
        }
    }
    lines
}

/// Returns the points of the row `name`, in the order of the group's axis.
fn points(
    group: &[&Experiment],
    name: &str,
    point: impl Fn(&Experiment, &Row) -> Option<Point>,
) -> Vec<Point> {
    in_order(group).into_iter().filter_map(|experiment| point(experiment, experiment.row(name)?)).collect()
}

/// Returns the experiments in the order of the parameter that differs between them.
fn in_order<'a>(group: &[&'a Experiment]) -> Vec<&'a Experiment> {
    let axis = view::axis(group);
    let place = |experiment: &Experiment| axis.as_ref().and_then(|axis| experiment.number(&axis.parameter));
    let mut ordered = group.to_vec();
    ordered.sort_by(|a, b| place(a).unwrap_or_default().total_cmp(&place(b).unwrap_or_default()));
    ordered
}

/// Returns whether the group's axis counts readers.
fn over_readers(group: &[&Experiment]) -> bool {
    view::axis(group).is_some_and(|axis| axis.parameter == "readers")
}

/// Returns a horizontal axis with a tick for each measured place.
fn over(title: &str, lines: &[Line]) -> XAxis {
    let places = lines.iter().flat_map(|line| line.points.iter().map(|point| point.x));
    let (low, high) =
        places.fold((f64::INFINITY, 0.0_f64), |(low, high), place| (low.min(place), high.max(place)));
    let spread = if low > 0.0 && high / low > 10.0 { Spread::Log } else { Spread::Linear };
    XAxis { title: title.to_owned(), spread, ticks_at_points: true }
}

fn whisker(column: &Column, row: &Row) -> Option<Whisker> {
    let value = column.value(row)?;
    let (low, high) = column.spread(row).unwrap_or((value, value));
    Some(Whisker { value, low, high })
}

/// Returns the meaning of a column, as the beginning of a paragraph.
fn meaning(column: &Column) -> String {
    format!("{}: {}", column.heading, column.meaning)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Metrics, Sample};

    fn random(depth: u32, figures: &[(&str, f64)]) -> Experiment {
        let mut metrics = Metrics::default();
        for (name, value) in figures {
            metrics.set(name, *value);
        }
        let mut experiment = Experiment::new("random", "how").parameter("depth", depth);
        experiment.rows.push(Row::from_samples("direct", vec![Sample { repeat: 0, metrics }]));
        experiment
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
        let Shape::Lines { lines, .. } = &charts[0].shape else { panic!("{charts:?}") };
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
        let mut experiment = Experiment::new("scan", "");
        experiment.rows.push(Row::skipped("uncached", "refused"));
        assert!(of(&[&experiment]).is_empty() && of(&[]).is_empty());
    }
}
