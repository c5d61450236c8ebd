//! The numbers in the source of a page, thinned where the page would become too large.

use crate::result::{Condition, Experiment, Report, Row, Series};

/// Maximum size of a page.
pub const PAGE_BYTES_MAX: usize = 1_000_000;
/// Maximum values of a series after thinning.
const SERIES_VALUES: usize = 600;

/// The text for the source, and a remark on it.
#[derive(Debug)]
pub(crate) struct Embedded {
    pub json: String,
    /// Describes the data left out, where any are.
    pub left_out: Option<String>,
}

/// Leaves something out of an experiment.
type Step = fn(&mut Experiment);

/// The data that are left out one after the other until the rest fits, besides values of series.
const STEPS: [(Step, &str); 4] = [
    (|one| every_row(one, |row| row.histograms.clear()), "histograms"),
    (|one| every_row(one, |row| row.conditions.retain(Condition::failed)), "gates that did not fail"),
    (|one| every_row(one, |row| row.samples.clear()), "single repeats"),
    (leave_out_texts, "methods, notes and descriptions, which the page shows"),
];

fn every_row(one: &mut Experiment, step: impl FnMut(&mut Row)) {
    one.rows.iter_mut().for_each(step);
}

fn leave_out_texts(one: &mut Experiment) {
    one.method.clear();
    one.notes.clear();
    every_row(one, |row| row.description.clear());
}

/// Returns the JSON of all numbers in at most `room` bytes: complete if it fits, otherwise with shorter series, then
/// without more and more of the rest, and finally `null`.
pub(crate) fn embed(report: &Report, room: usize) -> Embedded {
    let whole = text(report);
    if whole.len() <= room {
        return Embedded { json: whole, left_out: None };
    }
    let mut thin = report.clone();
    for one in &mut thin.experiments {
        every_row(one, |row| shorten_series(&mut row.series));
    }
    let mut left_out = "the series in it have fewer values, each the mean of several".to_owned();
    let mut names = Vec::new();
    for step in std::iter::once(None).chain(STEPS.map(Some)) {
        if let Some((step, name)) = step {
            thin.experiments.iter_mut().for_each(step);
            names.push(name);
        }
        let json = text(&thin);
        if json.len() <= room {
            if !names.is_empty() {
                left_out.push_str(&format!("; left out are {}", names.join(", ")));
            }
            return Embedded { json, left_out: Some(left_out) };
        }
    }
    Embedded { json: "null".to_owned(), left_out: Some("all of them are left out of it".to_owned()) }
}

fn text(report: &Report) -> String {
    // "<" cannot end the element early, and JSON reads the escape as the same character.
    serde_json::to_string(report).unwrap_or_default().replace('<', "\\u003c")
}

/// Replaces groups of adjacent values by their mean; its time is that of the first of them.
fn shorten_series(series: &mut Series) {
    for (name, values) in series {
        let together = values.len().div_ceil(SERIES_VALUES).max(1);
        let of = |group: &[f64]| match name.as_str() {
            "at_s" => group.first().copied().unwrap_or_default(),
            _ => thousandths(group.iter().sum::<f64>() / group.len() as f64),
        };
        if together > 1 {
            *values = values.chunks(together).map(of).collect();
        }
    }
}

/// Rounds a mean, whose further digits come from the division and have no use.
fn thousandths(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;
    use crate::result::{Experiment, Metrics, Sample, metric};

    fn report() -> Report {
        let mut metrics = Metrics::default();
        metrics.set(metric::IOPS, 1.5);
        let mut row = Row::from_samples("random-read", vec![Sample { repeat: 0, metrics }; 100]);
        row.conditions = vec![Condition::at_most("steal", 0.0, 0.02).with_meaning(&"a share ".repeat(60))];
        row.histograms.insert("latency".to_owned(), "x".repeat(10_000));
        let at: Vec<f64> = (0..6000).map(|bin| f64::from(bin) / 10.0).collect();
        let rates: Vec<f64> = (0..6000).map(|bin| f64::from(bin % 10)).collect();
        row.series = Series::from([("at_s".to_owned(), at), (metric::MB_PER_S.to_owned(), rates)]);
        let mut experiment = Experiment::new("sustain", "Reads for as long as a row lasts.");
        experiment.rows.push(row);
        Report::new(Environment::default(), vec![experiment])
    }

    #[test]
    fn values_within_the_limit_stay_and_the_rest_is_dropped_in_order() {
        let report = report();
        let whole = embed(&report, usize::MAX);
        assert_eq!((whole.left_out.clone(), whole.json.contains("xxx")), (None, true));
        let (mut remarks, mut room) = (Vec::new(), whole.json.len());
        while room > "null".len() {
            let embedded = embed(&report, room - 1);
            assert!(embedded.json.len() < room, "{room}: {}", embedded.json.len());
            assert!(serde_json::from_str::<serde_json::Value>(&embedded.json).is_ok());
            remarks.push(embedded.left_out.expect("something is left out"));
            room = embedded.json.len();
        }
        assert_eq!(remarks.len(), 6, "{remarks:?}");
        assert!(
            remarks[0].ends_with("the mean of several") && remarks[5].contains("all of them"),
            "{remarks:?}"
        );
        assert!(remarks[3].ends_with("left out are histograms, gates that did not fail, single repeats"));
    }

    #[test]
    fn values_beside_each_other_become_their_mean() {
        let mut series = report().experiments[0].rows[0].series.clone();
        shorten_series(&mut series);
        assert_eq!((series["at_s"].len(), series["at_s"][1]), (600, 1.0));
        assert!(series[metric::MB_PER_S].iter().all(|mean| *mean == 4.5));
        let before = series.clone();
        shorten_series(&mut series);
        assert_eq!(series, before);
    }
}
