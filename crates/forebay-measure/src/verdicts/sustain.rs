//! Titles and sentences of `measure sustain`.

use forebay_report::result::{Experiment, Row, metric};
use forebay_report::units::{bytes, number};

/// Returns the title of such an experiment in headings.
pub(crate) fn title(experiment: &Experiment) -> String {
    format!(
        "One load for {} s after {} s without any",
        experiment.number("seconds").map_or_else(|| "?".to_owned(), number),
        experiment.number("idle_seconds").map_or_else(|| "?".to_owned(), number)
    )
}

/// Minimum share of the time for standstills that are not regular; below it they are not mentioned.
const STILL_SHARE_MIN: f64 = 0.01;

/// Returns the verdicts: for each load whether its level lasts, and whether it stands still at times.
pub(crate) fn of(experiments: &[&Experiment]) -> Vec<String> {
    let of_row = |experiment: &Experiment, row: &Row| [lasts(experiment, row), stalls(row)];
    experiments
        .iter()
        .flat_map(|experiment| experiment.rows.iter().flat_map(|row| of_row(experiment, row)))
        .flatten()
        .collect()
}

fn load(row: &Row) -> &str {
    match row.name.as_str() {
        "random-read" => "Random reads of 4 KiB",
        "random-write" => "Random writes of 4 KiB",
        "sequential-write" => "Sequential writes",
        other => other,
    }
}

/// Returns the value of a metric that most repeats have.
fn of_most_repeats(row: &Row, metric: &str) -> Option<f64> {
    let seen = row.samples.iter().filter(|sample| sample.metrics.get(metric).is_some()).count();
    row.metrics.get(metric).filter(|_| 2 * seen > row.samples.len())
}

fn stalls(row: &Row) -> Option<String> {
    let get = |name: &str| row.metrics.get(name);
    let (count, length) = (get(metric::STALL_COUNT)?, of_most_repeats(row, metric::STALL_MS)?);
    let (share, step) = (get(metric::STALL_SHARE)?, get(metric::STALL_STEP_MS)?);
    let when = match of_most_repeats(row, metric::STALL_EVERY_S) {
        Some(every) => format!(
            "every {} s next to nothing is done for about {} ms",
            number((every * 100.0).round() / 100.0),
            number(length.round())
        ),
        None if share >= STILL_SHARE_MIN => format!(
            "{} time{}, without a rhythm, next to nothing is done, for about {} ms",
            number(count),
            if count == 1.0 { "" } else { "s" },
            number(length.round())
        ),
        None => return None,
    };
    Some(format!(
        "{}: {when}, {} % of the time in all (looked at in steps of {} ms: what is shorter than two of them may not show)",
        load(row),
        number((1000.0 * share).round() / 10.0),
        number(step)
    ))
}

fn lasts(experiment: &Experiment, row: &Row) -> Option<String> {
    let get = |name: &str| row.metrics.get(name);
    let load = load(row);
    let (burst, sustained) = (get(metric::BURST_MB_PER_S)?, get(metric::SUSTAINED_MB_PER_S)?);
    let seconds = experiment.number("seconds").map_or_else(|| "?".to_owned(), number);
    let variation = format!("varying by {} %", number((1000.0 * get(metric::VARIATION)?).round() / 10.0));
    let level = match of_most_repeats(row, metric::CHANGE_S) {
        Some(at) if sustained < burst => format!(
            "{} MB/s for the first {} s ({}), then {} MB/s, which is {} times less, {variation}",
            number(burst),
            number(at),
            get(metric::DROP_BYTES).map_or_else(|| "?".to_owned(), |moved| bytes(moved as u64)),
            number(sustained),
            number(burst / sustained)
        ),
        Some(at) => format!(
            "{} MB/s for the first {} s, then {} MB/s, which is {} times more, {variation}",
            number(burst),
            number(at),
            number(sustained),
            number(sustained / burst)
        ),
        None => format!(
            "{} MB/s over all of {seconds} s, without a change of level, {variation}",
            number(sustained)
        ),
    };
    let is_too_short =
        experiment.parameters.get("too_short").and_then(serde_json::Value::as_bool) == Some(true);
    let short = if is_too_short {
        format!("; {seconds} s are too short for a sustained level")
    } else {
        String::new()
    };
    Some(format!("{load}: {level}{short}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::result::{Metrics, Sample};

    fn row(name: &str, burst: f64, sustained: f64, changes: &[Option<f64>]) -> Row {
        let samples = changes.iter().map(|change| {
            let mut metrics = Metrics::default();
            metrics.set(metric::BURST_MB_PER_S, burst).set(metric::SUSTAINED_MB_PER_S, sustained);
            metrics.set(metric::VARIATION, 0.041);
            if let Some(change) = change {
                metrics.set(metric::CHANGE_S, *change);
                if sustained < burst {
                    metrics.set(metric::DROP_BYTES, f64::from(3 << 29));
                }
            }
            Sample { repeat: 0, metrics }
        });
        Row::from_samples(name, samples.collect())
    }

    fn stalling(figures: &[(&str, f64)]) -> Row {
        let mut metrics = Metrics::default();
        metrics.set(metric::STALL_STEP_MS, 20.0);
        for (name, value) in figures {
            metrics.set(name, *value);
        }
        Row::from_samples("random-write", vec![Sample { repeat: 0, metrics }])
    }

    #[test]
    fn standstills_are_reported_with_their_rhythm_and_the_width_of_a_step() {
        let regular = [
            (metric::STALL_COUNT, 59.0),
            (metric::STALL_MS, 98.4),
            (metric::STALL_SHARE, 0.098),
            (metric::STALL_EVERY_S, 1.002),
        ];
        assert_eq!(
            of(&[&experiment(60, vec![stalling(&regular)])]),
            [
                "Random writes of 4 KiB: every 1 s next to nothing is done for about 98 ms, 9.80 % of the time in all (looked \
                 at in steps of 20 ms: what is shorter than two of them may not show)"
            ]
        );
        let sentences = of(&[&experiment(60, vec![stalling(&regular[..3])])]);
        assert!(sentences[0].contains("59 times, without a rhythm, next to nothing"), "{sentences:?}");
        let seldom = [(metric::STALL_COUNT, 2.0), (metric::STALL_MS, 40.0), (metric::STALL_SHARE, 0.0013)];
        assert!(of(&[&experiment(60, vec![stalling(&seldom)])]).is_empty());
        let none = [(metric::STALL_COUNT, 0.0), (metric::STALL_SHARE, 0.0)];
        assert!(of(&[&experiment(60, vec![stalling(&none)])]).is_empty());
    }

    fn experiment(seconds: u32, rows: Vec<Row>) -> Experiment {
        let mut experiment = Experiment::new("sustain", "")
            .parameter("seconds", seconds)
            .parameter("idle_seconds", 10)
            .parameter("too_short", seconds < 60);
        experiment.rows = rows;
        experiment
    }

    #[test]
    fn a_drop_is_reported_with_the_level_before_it() {
        let rows = vec![row("sequential-write", 500.0, 125.0, &[Some(14.2)])];
        let sentences = of(&[&experiment(60, rows)]);
        assert_eq!(
            sentences,
            [
                "Sequential writes: 500 MB/s for the first 14.2 s (1.5 GiB), then 125 MB/s, which is 4 times less, varying by \
              4.10 %"
            ]
        );
    }

    #[test]
    fn a_level_that_lasts_and_one_that_rises_are_no_drops() {
        let rows =
            vec![row("random-read", 180.0, 180.0, &[None]), row("random-write", 50.0, 100.0, &[Some(2.0)])];
        let sentences = of(&[&experiment(60, rows)]);
        assert!(sentences[0].contains("180 MB/s over all of 60 s, without a change"), "{sentences:?}");
        assert!(sentences[1].contains("then 100 MB/s, which is 2 times more"), "{sentences:?}");
        assert!(sentences.iter().all(|sentence| !sentence.contains("less")), "{sentences:?}");
        assert!(sentences.iter().all(|sentence| !sentence.contains("too short")), "{sentences:?}");
    }

    #[test]
    fn a_change_in_one_repeat_of_three_is_not_reported_and_short_loads_are_marked() {
        let rows = vec![row("random-read", 180.0, 90.0, &[None, Some(3.0), None])];
        let sentences = of(&[&experiment(5, rows)]);
        assert!(sentences[0].contains("without a change of level"), "{sentences:?}");
        assert!(sentences[0].ends_with("; 5 s are too short for a sustained level"), "{sentences:?}");
        assert!(of(&[&experiment(5, vec![Row::skipped("random-read", "no")])]).is_empty());
    }
}
