//! Titles and sentences of `measure fairness`.

use forebay_report::result::{Experiment, metric};
use forebay_report::units::number;

/// Returns the title of such an experiment in headings.
pub(crate) fn title(experiment: &Experiment) -> String {
    let hogs = experiment.number("hogs").map_or_else(|| "?".to_owned(), number);
    format!(
        "A small reader beside {hogs} hog{} that {}",
        if hogs == "1" { "" } else { "s" },
        does(experiment, &hogs)
    )
}

/// Returns the heading of several such experiments.
pub(crate) fn heading(experiment: &Experiment) -> String {
    format!("A small reader beside hogs that {}", does(experiment, "several"))
}

fn does(experiment: &Experiment, hogs: &str) -> String {
    let does = experiment.parameters.get("hog_does").and_then(serde_json::Value::as_str).unwrap_or("read");
    format!("{does}{}", if hogs == "1" { "s" } else { "" })
}

/// Returns the verdicts: the benefit of classes for each number of hogs.
pub(crate) fn of(experiments: &[&Experiment]) -> Vec<String> {
    experiments.iter().filter_map(|experiment| worth(experiment)).collect()
}

fn worth(experiment: &Experiment) -> Option<String> {
    let get =
        |row: &str, name: &str| experiment.rows.iter().find(|known| known.name == row)?.metrics.get(name);
    let (without, with) = (get("no-classes", metric::P99_US)?, get("classes", metric::P99_US)?);
    let alone = get("reader-alone", metric::P99_US)
        .map_or_else(String::new, |alone| format!(", {} µs alone", number(alone.round())));
    let kept = match (get("hogs-alone", metric::HOG_MB_PER_S), get("classes", metric::HOG_MB_PER_S)) {
        (Some(all), Some(kept)) if all > 0.0 => {
            format!("; the hogs keep {} % of what they move alone", number((100.0 * kept / all).round()))
        }
        _ => String::new(),
    };
    Some(format!(
        "{}: 99 of 100 of its reads take at most {} µs with classes, {} µs without{alone}{kept}",
        title(experiment),
        number(with.round()),
        number(without.round())
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::result::{Metrics, Row, Sample};

    fn row(name: &str, p99: Option<f64>, hogs: Option<f64>) -> Row {
        let mut metrics = Metrics::default();
        for (name, value) in [(metric::P99_US, p99), (metric::HOG_MB_PER_S, hogs)] {
            if let Some(value) = value {
                metrics.set(name, value);
            }
        }
        Row::from_samples(name, vec![Sample { repeat: 0, metrics }])
    }

    #[test]
    fn the_gain_of_classes_is_reported() {
        let mut experiment =
            Experiment::new("fairness", "").parameter("hogs", 1).parameter("hog_does", "read");
        experiment.rows = vec![
            row("reader-alone", Some(80.0), None),
            row("hogs-alone", None, Some(1000.0)),
            row("no-classes", Some(9000.4), Some(990.0)),
            row("classes", Some(200.0), Some(900.0)),
        ];
        assert_eq!(
            of(&[&experiment]),
            [
                "A small reader beside 1 hog that reads: 99 of 100 of its reads take at most 200 µs with classes, \
              9,000 µs without, 80 µs alone; the hogs keep 90 % of what they move alone"
            ]
        );
        experiment.rows.pop();
        assert!(of(&[&experiment]).is_empty());
        assert_eq!(heading(&experiment), "A small reader beside hogs that read");
    }
}
