//! Changes over time: a chart for each list of numbers that rows keep beside their times.

use crate::page::chart::{Chart, Shape};
use crate::page::svg::{Line, Mark, Point, Spread, XAxis};
use crate::result::{Experiment, metric};

/// Name of the list with the times.
const AT: &str = "at_s";

/// Returns one chart for each series of an experiment, with a line for each row that has it and a mark
/// where its level changed.
pub(crate) fn of(group: &[&Experiment]) -> Vec<Chart> {
    group.iter().flat_map(|experiment| of_one(experiment)).collect()
}

fn of_one(experiment: &Experiment) -> Vec<Chart> {
    let mut names: Vec<&str> = Vec::new();
    for name in experiment.rows.iter().flat_map(|row| row.series.keys()) {
        if name != AT && !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let marks = || -> Vec<Mark> {
        let changed = experiment.rows.iter().filter(|row| row.series.contains_key(AT));
        changed
            .filter_map(|row| {
                let label = format!("{} changes", row.name);
                Some(Mark { at: row.metrics.get(metric::CHANGE_S)?, label, level: false })
            })
            .collect()
    };
    names
        .into_iter()
        .map(|name| {
            let heading = experiment.view.column(name).map_or(name, |column| &*column.heading);
            Chart {
                title: format!("{heading} over time"),
                note: format!("{heading} of each tenth of a second of the first repeat."),
                shape: Shape::Lines {
                    x: XAxis { title: "seconds".to_owned(), spread: Spread::Linear, ticks_at_points: false },
                    y: heading.to_owned(),
                    lines: lines(experiment, name),
                    marks: marks(),
                },
            }
        })
        .collect()
}

fn lines(experiment: &Experiment, name: &str) -> Vec<Line> {
    let rows =
        experiment.rows.iter().filter_map(|row| Some((row, row.series.get(AT)?, row.series.get(name)?)));
    rows.map(|(row, at, values)| Line {
        name: row.name.clone(),
        points: at.iter().zip(values).map(|(at, value)| Point::new(*at, *value)).collect(),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Metrics, Row, Sample, Series};

    fn sustain(change_s: Option<f64>) -> Experiment {
        let mut metrics = Metrics::default();
        metrics.set(metric::SUSTAINED_MB_PER_S, 50.0);
        if let Some(at) = change_s {
            metrics.set(metric::CHANGE_S, at);
        }
        let mut row = Row::from_samples("random-write", vec![Sample { repeat: 0, metrics }]);
        let rates = vec![100.0, 100.0, 50.0];
        row.series =
            Series::from([(AT.to_owned(), vec![0.0, 0.1, 0.2]), (metric::MB_PER_S.to_owned(), rates)]);
        let mut experiment = Experiment::new("sustain", "how");
        experiment.rows.push(row);
        experiment
    }

    #[test]
    fn a_series_is_a_line_over_time_and_its_change_a_mark() {
        let (changed, steady) = (sustain(Some(0.2)), sustain(None));
        let charts = of(&[&changed]);
        assert_eq!(charts.len(), 1, "the times are no series of their own");
        let Shape::Lines { lines, marks, .. } = &charts[0].shape else { panic!("{charts:?}") };
        let points: Vec<(f64, f64)> = lines[0].points.iter().map(|point| (point.x, point.y)).collect();
        assert_eq!(points, [(0.0, 100.0), (0.1, 100.0), (0.2, 50.0)]);
        assert_eq!(marks.iter().map(|mark| mark.at).collect::<Vec<_>>(), [0.2]);
        let charts = of(&[&steady]);
        let Shape::Lines { marks, .. } = &charts[0].shape else { panic!("{charts:?}") };
        assert!(marks.is_empty());
    }

    #[test]
    fn rows_without_a_series_have_no_chart() {
        let mut experiment = sustain(None);
        experiment.rows[0].series.clear();
        assert!(of(&[&experiment]).is_empty());
    }
}
