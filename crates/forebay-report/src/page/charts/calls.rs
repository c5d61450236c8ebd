//! Time by call: bars made of the time in open, write, sync, close, ...

use super::Chart;
use crate::page::chart::Shape;
use crate::page::view;
use crate::result::Experiment;
use crate::units::number;

/// The calls, in the order in which a program makes them.
const CALLS: [&str; 10] =
    ["create", "open", "stat", "read", "write", "sync", "close", "rename", "unlink", "remove"];
/// Suffixes of such a metric's name, and their units.
const UNITS: [(&str, &str); 4] = [("_ms", "ms"), ("_us", "µs"), ("_s", "s"), ("_seconds", "s")];

/// Returns the chart, where rows have the times of at least two calls.
pub(crate) fn of(group: &[&Experiment]) -> Option<Chart> {
    UNITS.iter().find_map(|(suffix, unit)| in_unit(group, suffix, unit))
}

fn in_unit(group: &[&Experiment], suffix: &str, unit: &str) -> Option<Chart> {
    let rows = || group.iter().flat_map(|experiment| &experiment.rows);
    let calls: Vec<&str> = CALLS
        .into_iter()
        .filter(|call| rows().any(|row| row.metrics.get(&format!("{call}{suffix}")).is_some()))
        .collect();
    if calls.len() < 2 {
        return None;
    }
    let axis = view::axis(group);
    let mut bars = Vec::new();
    for experiment in super::in_order(group) {
        for row in &experiment.rows {
            let values: Vec<Option<f64>> =
                calls.iter().map(|call| row.metrics.get(&format!("{call}{suffix}"))).collect();
            if values.iter().any(Option::is_some) {
                let place =
                    axis.as_ref().and_then(|axis| Some((&axis.label, experiment.number(&axis.parameter)?)));
                let name = match place {
                    Some((label, place)) => format!("{}, {label}: {}", row.name, number(place)),
                    None => row.name.clone(),
                };
                bars.push((name, values.into_iter().map(Option::unwrap_or_default).collect()));
            }
        }
    }
    Some(Chart {
        title: "Time by call".to_owned(),
        note: format!(
            "Medians of the time spent in each call, in {unit}, stacked in the order in which they are made; the sum stands \
             at the bar's end."
        ),
        shape: Shape::Stacked {
            axis: unit.to_owned(),
            parts: calls.into_iter().map(str::to_owned).collect(),
            bars,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Metrics, Row, Sample};

    fn writes(figures: &[(&str, f64)]) -> Experiment {
        let mut metrics = Metrics::default();
        for (name, value) in figures {
            metrics.set(name, *value);
        }
        let mut experiment = Experiment::new("writes", "");
        experiment.rows.push(Row::from_samples("sync-close", vec![Sample { repeat: 0, metrics }]));
        experiment
    }

    #[test]
    fn calls_are_stacked_in_their_order() {
        let experiment =
            writes(&[("sync_ms", 30.0), ("open_ms", 1.0), ("write_ms", 4.0), ("total_ms", 35.0)]);
        let chart = of(&[&experiment]).expect("three calls");
        let Shape::Stacked { parts, bars, .. } = chart.shape else { panic!("bars") };
        assert_eq!(parts, ["open", "write", "sync"]);
        assert_eq!(bars, [("sync-close".to_owned(), vec![1.0, 4.0, 30.0])]);
    }

    #[test]
    fn one_call_alone_is_no_chart() {
        assert_eq!(of(&[&writes(&[("read_us", 30.0), ("p99_us", 1.0)])]), None);
    }
}
