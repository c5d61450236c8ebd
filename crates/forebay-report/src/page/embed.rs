//! The numbers in the source of a page, thinned where the page would become too large.

use crate::result::{Experiment, Report, Series};

/// Maximum size of a page.
pub const PAGE_BYTES_MAX: usize = 1_000_000;
/// Maximum values of a series after thinning.
const SERIES_VALUES: usize = 600;

/// The text for the source, and a remark on it.
#[derive(Debug)]
pub(crate) struct Embedded {
    pub json: String,
    /// Describes the data left out, where any are.
    pub left_out: Option<&'static str>,
}

/// Leaves something out of an experiment.
type Step = fn(&mut Experiment);

/// Returns the JSON of all numbers in at most `room` bytes. It is complete if it fits, otherwise with shorter
/// series, then also without histograms, then also without the single repeats, and finally `null`.
pub(crate) fn embed(report: &Report, room: usize) -> Embedded {
    let whole = text(report);
    if whole.len() <= room {
        return Embedded { json: whole, left_out: None };
    }
    let mut thin = report.clone();
    let steps: [(Step, &str); 3] = [
        (shorten, "the series in it have fewer values, each the mean of several"),
        (
            drop_histograms,
            "the series in it have fewer values, each the mean of several, and the histograms are left out",
        ),
        (
            drop_samples,
            "the series in it have fewer values, each the mean of several, and the histograms and the single repeats are \
             left out",
        ),
    ];
    for (step, left_out) in steps {
        thin.experiments.iter_mut().for_each(step);
        let json = text(&thin);
        if json.len() <= room {
            return Embedded { json, left_out: Some(left_out) };
        }
    }
    Embedded { json: "null".to_owned(), left_out: Some("all of them are left out of it") }
}

fn text(report: &Report) -> String {
    // "<" cannot end the element early, and JSON reads the escape as the same character.
    serde_json::to_string(report).unwrap_or_default().replace('<', "\\u003c")
}

fn shorten(experiment: &mut Experiment) {
    experiment.rows.iter_mut().for_each(|row| shorten_series(&mut row.series));
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

fn drop_histograms(experiment: &mut Experiment) {
    experiment.rows.iter_mut().for_each(|row| row.histograms.clear());
}

fn drop_samples(experiment: &mut Experiment) {
    experiment.rows.iter_mut().for_each(|row| row.samples.clear());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;
    use crate::result::{Metrics, Row, Sample, metric};

    fn report() -> Report {
        let mut metrics = Metrics::default();
        metrics.set(metric::IOPS, 1.5);
        let mut row = Row::from_samples("random-read", vec![Sample { repeat: 0, metrics }; 100]);
        row.histograms.insert("latency".to_owned(), "x".repeat(10_000));
        let at: Vec<f64> = (0..6000).map(|bin| f64::from(bin) / 10.0).collect();
        let rates: Vec<f64> = (0..6000).map(|bin| f64::from(bin % 10)).collect();
        row.series = Series::from([("at_s".to_owned(), at), (metric::MB_PER_S.to_owned(), rates)]);
        let mut experiment = Experiment::new("sustain", "");
        experiment.rows.push(row);
        Report::new(Environment::default(), vec![experiment])
    }

    #[test]
    fn values_within_the_limit_stay_and_the_rest_is_dropped_in_order() {
        let report = report();
        let whole = embed(&report, usize::MAX);
        assert_eq!((whole.left_out, whole.json.contains("xxx")), (None, true));
        let mut remarks = Vec::new();
        for room in [30_000, 10_000, 7_500, 100] {
            let embedded = embed(&report, room);
            assert!(embedded.json.len() <= room, "{room}: {}", embedded.json.len());
            assert!(serde_json::from_str::<serde_json::Value>(&embedded.json).is_ok());
            remarks.push(embedded.left_out.expect("something is left out"));
        }
        let all = remarks.clone();
        remarks.dedup();
        assert_eq!(remarks.len(), 4, "{all:?}");
        assert!(remarks[0].contains("fewer values") && remarks[3].contains("all of them"), "{remarks:?}");
    }

    #[test]
    fn values_beside_each_other_become_their_mean() {
        let mut report = report();
        shorten(&mut report.experiments[0]);
        let series = &report.experiments[0].rows[0].series;
        assert_eq!((series["at_s"].len(), series["at_s"][1]), (600, 1.0));
        assert!(series[metric::MB_PER_S].iter().all(|mean| *mean == 4.5));
        let before = report.experiments[0].rows[0].series.clone();
        shorten(&mut report.experiments[0]);
        assert_eq!(report.experiments[0].rows[0].series, before);
    }
}
