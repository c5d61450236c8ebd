//! Latency over the share of operations: 50 %, 90 %, 99 %, 99.9 % at equal distances, so that the tail
//! is visible.

use super::{Chart, LINES};
use crate::page::chart::Shape;
use crate::page::histogram;
use crate::page::svg::{Line, Point, Spread, XAxis};
use crate::page::view;
use crate::result::{Experiment, Row, metric};
use crate::units::number;

/// Latencies that an experiment can have: the name of their histogram, their label, and their percentiles.
const FAMILIES: [Family; 3] = [
    Family {
        histogram: "latency",
        what: "latency",
        percentiles: [(0.5, metric::P50_US), (0.99, metric::P99_US), (0.999, metric::P99_9_US)],
    },
    Family {
        histogram: "durable",
        what: "time until durable",
        percentiles: [(0.5, metric::DURABLE[0]), (0.99, metric::DURABLE[1]), (0.999, metric::DURABLE[2])],
    },
    Family {
        histogram: "seen",
        what: "time until seen",
        percentiles: [(0.5, metric::SEEN[0]), (0.99, metric::SEEN[1]), (0.999, metric::SEEN[2])],
    },
];

struct Family {
    histogram: &'static str,
    what: &'static str,
    percentiles: [(f64, &'static str); 3],
}

/// Returns a chart for each latency of the group; for a sweep, of its first and its last place.
pub(crate) fn of(group: &[&Experiment]) -> Vec<Chart> {
    let ordered = super::in_order(group);
    let ends = match ordered.as_slice() {
        [] => Vec::new(),
        [only] => vec![*only],
        [first, .., last] => vec![*first, *last],
    };
    let axis = view::axis(group);
    let charts = ends.iter().flat_map(|experiment| {
        let place = axis.as_ref().and_then(|axis| {
            Some(format!(", {}: {}", axis.label, number(experiment.number(&axis.parameter)?)))
        });
        let place = place.unwrap_or_default();
        FAMILIES.iter().filter_map(move |family| chart(experiment, family, &place))
    });
    charts.collect()
}

fn chart(experiment: &Experiment, family: &Family, place: &str) -> Option<Chart> {
    let what = family.what;
    let lines: Vec<Line> = experiment
        .rows
        .iter()
        .filter_map(|row| Some(Line { name: row.name.clone(), points: points(row, family)? }))
        .take(LINES)
        .collect();
    if lines.is_empty() {
        return None;
    }
    Some(Chart {
        title: format!("{} by share of operations{place}", crate::page::html::capital(what)),
        note: format!(
            "At 99 % stands the {what} that 99 of 100 operations did not exceed. A curve that is flat and then steep serves \
             most operations well and a few badly."
        ),
        shape: Shape::Lines {
            x: XAxis {
                title: "share of operations".to_owned(),
                spread: Spread::Tail,
                ticks_at_points: false,
            },
            y: "µs".to_owned(),
            lines,
            marks: Vec::new(),
        },
    })
}

/// Returns the points of the whole histogram, or of at least two percentiles.
fn points(row: &Row, family: &Family) -> Option<Vec<Point>> {
    let curve = row.histograms.get(family.histogram).and_then(|text| histogram::curve(text));
    let curve = curve.unwrap_or_else(|| {
        let percentiles = family.percentiles.iter();
        percentiles.filter_map(|(share, metric)| Some((*share, row.metrics.get(metric)?))).collect()
    });
    (curve.len() >= 2).then(|| curve.into_iter().map(|(share, us)| Point::new(share, us)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Metrics, Sample};

    fn experiment(depth: u32) -> Experiment {
        let mut metrics = Metrics::default();
        metrics.set(metric::P50_US, 100.0).set(metric::P99_US, 300.0).set(metric::P99_9_US, 900.0);
        let mut experiment = Experiment::new("random", "").parameter("depth", depth);
        experiment.rows.push(Row::from_samples("direct", vec![Sample { repeat: 0, metrics }]));
        experiment
    }

    #[test]
    fn a_sweep_shows_its_first_and_its_last_place() {
        let all = [experiment(32), experiment(1), experiment(8)];
        let group: Vec<&Experiment> = all.iter().collect();
        let titles: Vec<String> = of(&group).into_iter().map(|chart| chart.title).collect();
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
        let charts = of(&[&experiment(1)]);
        let Shape::Lines { lines, .. } = &charts[0].shape else { panic!("lines") };
        assert_eq!(lines[0].points.len(), 3);
        assert_eq!(charts[0].title, "Latency by share of operations");
    }

    #[test]
    fn a_row_with_its_histogram_has_a_curve_of_it() {
        let mut experiment = experiment(1);
        let text = crate::page::histogram::tests::text(1..=10_000);
        experiment.rows[0].histograms.insert("latency".to_owned(), text);
        let charts = of(&[&experiment]);
        let Shape::Lines { lines, .. } = &charts[0].shape else { panic!("lines") };
        assert!(lines[0].points.len() > 20, "{}", lines[0].points.len());
    }
}
