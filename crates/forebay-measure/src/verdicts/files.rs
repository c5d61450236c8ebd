//! Titles and sentences of `measure files`.

use forebay_report::page::noise::{Difference, difference};
use forebay_report::result::{Experiment, Row, metric};
use forebay_report::units::{bytes, number};

const RATE: &str = metric::FILES_PER_S;
/// Times of calls and their names in sentences.
const CALLS: [(&str, &str); 6] = [
    (metric::OPEN_US, "opening"),
    (metric::READ_US, "reading"),
    (metric::WRITE_US, "writing"),
    (metric::SYNC_US, "syncing"),
    (metric::CLOSE_US, "closing"),
    (metric::STAT_US, "stat"),
];
const ROWS: [(&str, &str); 3] =
    [("std-threads", "threads with std::fs"), ("tokio-fs", "tokio::fs"), ("forebay", "Forebay from Tokio")];

/// Returns the title of such an experiment in headings.
pub(crate) fn title(experiment: &Experiment) -> String {
    let at_once = experiment.number("at_once").map_or_else(|| "?".to_owned(), number);
    format!("{}, {at_once} at once", heading(experiment))
}

/// Returns the heading of the experiments of one call.
pub(crate) fn heading(experiment: &Experiment) -> String {
    let size = experiment.number("file_bytes").map_or_else(|| "?".to_owned(), |size| bytes(size as u64));
    match experiment.parameters.get("call").and_then(serde_json::Value::as_str) {
        Some("read") => format!("Open, read and close of files of {size}"),
        Some("create") => format!("Create, write, sync and close of files of {size}"),
        Some("stat") => "Stat of files".to_owned(),
        other => format!("{} of files of {size}", other.unwrap_or("?")),
    }
}

/// Returns the verdicts: one for each call, with the most files at once.
pub(crate) fn of(experiments: &[&Experiment]) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut reported = Vec::new();
    for experiment in experiments {
        let call = experiment.parameters.get("call");
        if reported.contains(&call) {
            continue;
        }
        reported.push(call);
        let at_once = |experiment: &Experiment| experiment.number("at_once").unwrap_or_default();
        let most = experiments
            .iter()
            .filter(|other| other.parameters.get("call") == call)
            .max_by(|a, b| at_once(a).total_cmp(&at_once(b)));
        sentences.extend(most.and_then(|most| fastest(most)));
    }
    sentences
}

/// Returns a sentence on the fastest way: by how much it leads, and where its time goes.
fn fastest(experiment: &Experiment) -> Option<String> {
    let mut rows: Vec<(&Row, f64, &str)> = ROWS
        .iter()
        .filter_map(|(name, phrase)| {
            let row = experiment.row(name)?;
            Some((row, row.metrics.get(RATE)?, *phrase))
        })
        .collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (best, rate, phrase) = *rows.first()?;
    let others: Vec<String> = rows[1..]
        .iter()
        .map(|(row, other, phrase)| {
            let compared = match difference(best, row, RATE) {
                Some(Difference::More(times)) => number(times) + " times fewer",
                _ => "about as many".to_owned(),
            };
            format!("{phrase}: {}, {compared}", number(*other))
        })
        .collect();
    let hint = if best.samples.len() < 2 { "; measured once, so take it as a hint" } else { "" };
    Some(format!(
        "{}: {} a second with {phrase}{}{}{hint}",
        title(experiment),
        number(rate),
        if others.is_empty() { String::new() } else { format!(" ({})", others.join("; ")) },
        time_breakdown(best).unwrap_or_default(),
    ))
}

/// Returns `; 81 % of the time in calls is syncing`.
fn time_breakdown(row: &Row) -> Option<String> {
    let parts: Vec<(f64, &str)> =
        CALLS.iter().filter_map(|(metric, phrase)| Some((row.metrics.get(metric)?, *phrase))).collect();
    let all: f64 = parts.iter().map(|(time, _)| time).sum();
    let (most, phrase) = parts.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0))?;
    (parts.len() > 1 && all > 0.0)
        .then(|| format!("; {} % of the time in calls is {phrase}", number((100.0 * most / all).round())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::result::{Metrics, Sample};

    fn row(name: &str, rate: f64, sync_us: f64) -> Row {
        let samples = [0.98, 1.0, 1.02].iter().map(|factor| {
            let mut metrics = Metrics::default();
            metrics.set(RATE, rate * factor).set(metric::OPEN_US, 20.0).set(metric::SYNC_US, sync_us);
            Sample { repeat: 0, metrics }
        });
        Row::from_samples(name, samples.collect())
    }

    fn experiment(call: &str, at_once: u32, rows: Vec<Row>) -> Experiment {
        let mut experiment = Experiment::new("files", "")
            .parameter("call", call)
            .parameter("at_once", at_once)
            .parameter("file_bytes", 4096);
        experiment.rows = rows;
        experiment
    }

    #[test]
    fn the_fastest_way_is_reported_with_the_slowest_call() {
        let rows = || {
            vec![
                row("std-threads", 1000.0, 180.0),
                row("tokio-fs", 500.0, 400.0),
                row("forebay", 2000.0, 80.0),
            ]
        };
        let all = [experiment("create", 64, rows()), experiment("create", 1, rows())];
        assert_eq!(
            of(&all.each_ref()),
            [
                "Create, write, sync and close of files of 4 KiB, 64 at once: 2,000 a second with Forebay from Tokio \
              (threads with std::fs: 1,000, 2 times fewer; tokio::fs: 500, 4 times fewer); 80 % of the time in calls is \
              syncing"
            ]
        );
    }

    #[test]
    fn ways_that_are_alike_are_called_so() {
        let rows = vec![row("std-threads", 1010.0, 20.0), row("forebay", 1000.0, 20.0)];
        let sentences = of(&[&experiment("read", 4, rows)]);
        assert!(sentences[0].contains("Forebay from Tokio: 1,000, about as many"), "{sentences:?}");
        assert!(!sentences[0].contains("fewer"), "{sentences:?}");
    }

    #[test]
    fn a_call_without_figures_makes_no_sentence() {
        assert!(of(&[&experiment("stat", 1, vec![Row::skipped("forebay", "no")])]).is_empty());
        assert_eq!(title(&experiment("stat", 1, vec![])), "Stat of files, 1 at once");
    }
}
