//! Titles and sentences of `measure wal` and `measure blocking`.

use super::interference;
use forebay_report::page::noise::{Difference, difference};
use forebay_report::result::{Experiment, Row, metric};
use forebay_report::units::number;

const P99: &str = metric::DURABLE[1];
/// The log's rows, the most prompt first, and their names in sentences.
const LOGS: [(&str, &str); 3] = [
    ("forebay-realtime", "the log at real-time priority"),
    ("forebay-prompt", "the log at prompt priority beside polite workers"),
    ("forebay", "the log at default priority"),
];
const OTHERS: [(&str, &str); 5] = [
    ("tokio-fs", "tokio::fs"),
    ("spawn-blocking", "spawn_blocking"),
    ("own-runtime", "a second runtime"),
    ("std-thread", "a thread of its own"),
    ("std-in-task", "blocking calls in the task"),
];

/// Returns the title of such an experiment in headings.
pub(crate) fn title(experiment: &Experiment) -> String {
    let count = |name: &str| experiment.number(name).map_or_else(|| "?".to_owned(), number);
    let threads = experiment.number("threads").map_or_else(String::new, |count| format!("{count} "));
    let load = match experiment.parameters.get("load").and_then(serde_json::Value::as_str) {
        Some("cpu") => format!("{threads}workers busy"),
        Some("timers") => format!("{threads}workers beside 1,000 timers"),
        _ => format!("{threads}workers idle"),
    };
    let what =
        if is_published(experiment) { "Appends to a file each, made and removed" } else { "Durable appends" };
    if experiment.name == "blocking" {
        return format!(
            "Batches of {} records, {} caller(s), {load}",
            count("batch_records"),
            count("appenders")
        );
    }
    if is(experiment, "loop", "open") {
        return format!("{what}, {} a second at fixed times, {load}", count("rate_per_s"));
    }
    format!("{what}, {} appender(s), {load}", count("appenders"))
}

/// Returns the verdicts of `measure wal`.
pub(crate) fn wal(experiments: &[&Experiment]) -> Vec<String> {
    let mut sentences: Vec<String> = experiments.iter().copied().filter_map(published).collect();
    let all = || experiments.iter().copied().filter(|found| !is_published(found));
    let usual = |found: &Experiment| found.number("threads").is_none();
    let open = |load: &str| {
        let mut loops = all().filter(|found| is(found, "loop", "open") && is(found, "load", load));
        let first = loops.clone().next();
        loops.find(|found| usual(found)).or(first)
    };
    if let Some(busy) = open("cpu") {
        sentences.extend(under_load(busy));
        if let Some(idle) = open("none") {
            sentences.extend(LOGS.iter().filter_map(|log| against_idle(busy, idle, log)));
        }
        sentences.extend(work(busy));
    }
    let throughputs = all().filter(|found| is(found, "loop", "closed") && !is(found, "load", "timers"));
    sentences.extend(throughputs.filter_map(throughput));
    let beside = experiments.iter().filter(|found| is(found, "load", "timers"));
    sentences.extend(beside.filter_map(|found| interference::sentence(found, "no-appends", &title(found))));
    let mut reported = Vec::new();
    for row in experiments.iter().flat_map(|experiment| &experiment.rows) {
        if let Some(why) = row.degraded.as_ref().filter(|_| !reported.contains(&&row.name)) {
            reported.push(&row.name);
            sentences.push(format!("`{}` ran degraded, so its figures are not compared: {why}", row.name));
        }
    }
    sentences
}

/// Returns the verdicts of `measure blocking`.
pub(crate) fn blocking(experiments: &[&Experiment]) -> Vec<String> {
    let beside = experiments.iter().filter(|found| is(found, "load", "timers"));
    let interference = beside.filter_map(|found| interference::sentence(found, "no-appends", &title(found)));
    experiments.iter().flat_map(|experiment| batches(experiment)).chain(interference).collect()
}

/// Returns a sentence with all ways, the quickest first. They are not the cost of an append.
fn published(experiment: &Experiment) -> Option<String> {
    let p50 = metric::SEEN[0];
    let mut rows: Vec<(f64, &Row)> = experiment
        .rows
        .iter()
        .filter(|row| is_published(experiment) && row.skipped.is_none() && row.degraded.is_none())
        .filter_map(|row| Some((row.metrics.get(p50)?, row)))
        .collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let reported: Vec<String> =
        rows.iter().map(|(us, row)| format!("{} with `{}`", time(*us), row.name)).collect();
    let hint = hint(rows.first()?.1);
    Some(format!(
        "{}: half of them are over within {}; the making and the removal of a file are in it, as in published figures{hint}",
        title(experiment),
        reported.join(", ")
    ))
}

/// Returns whether each append had a file of its own.
fn is_published(experiment: &Experiment) -> bool {
    experiment.parameters.get("as_published").is_some_and(|value| value == true)
}

fn is(experiment: &Experiment, name: &str, value: &str) -> bool {
    experiment.parameters.get(name).and_then(serde_json::Value::as_str) == Some(value)
}

/// Returns the row with its figures, when it was measured and got its requested settings.
fn measured<'a>(experiment: &'a Experiment, name: &str) -> Option<&'a Row> {
    experiment.row(name).filter(|row| row.skipped.is_none() && row.degraded.is_none())
}

/// Returns the log's most prompt row that was measured.
fn log(experiment: &Experiment) -> Option<(&Row, &'static str)> {
    LOGS.iter().find_map(|(name, phrase)| Some((measured(experiment, name)?, *phrase)))
}

/// Formats a time: `310 µs`, `2.90 ms`.
fn time(us: f64) -> String {
    if us < 1000.0 { format!("{} µs", number(us)) } else { format!("{} ms", number(us / 1000.0)) }
}

fn time_of(row: &Row, metric: &str) -> Option<String> {
    row.metrics.get(metric).map(time)
}

/// Compares a time of `row` with that of `other`: `9.4 times less than`.
fn compared(row: &Row, other: &Row, metric: &str) -> Option<String> {
    Some(match difference(row, other, metric)? {
        Difference::Less(times) => format!("{} times less than", number(times)),
        Difference::More(times) => format!("{} times more than", number(times)),
        Difference::Equal => "about as much as".to_owned(),
    })
}

/// Returns the end of a sentence when no repeats show the noise.
fn hint(row: &Row) -> &'static str {
    if row.samples.len() < 2 { "; measured once, so take it as a hint" } else { "" }
}

fn under_load(busy: &Experiment) -> Option<String> {
    let (own, phrase) = log(busy)?;
    let others: Vec<(&Row, &str)> =
        OTHERS.iter().filter_map(|(name, phrase)| Some((measured(busy, name)?, *phrase))).collect();
    let (first, first_phrase) = others.first()?;
    let figures: Vec<String> = others
        .iter()
        .filter_map(|(row, phrase)| Some(format!("{} with {phrase}", time_of(row, P99)?)))
        .collect();
    Some(format!(
        "with the workers busy, 99 of 100 durable appends at {} a second take at most {} and {} with {phrase}, {} {first_phrase}; \
         the awaiting task sees it after at most {} ({first_phrase}: {}){}",
        busy.number("rate_per_s").map_or_else(String::new, number),
        figures.join(", "),
        time_of(own, P99)?,
        compared(own, first, P99)?,
        time_of(own, metric::SEEN[1])?,
        time_of(first, metric::SEEN[1])?,
        hint(own),
    ))
}

fn against_idle(busy: &Experiment, idle: &Experiment, log: &(&str, &str)) -> Option<String> {
    let (with, without) = (measured(busy, log.0)?, measured(idle, log.0)?);
    let hint = hint(with);
    let (with, without) = (with.metrics.get(P99)?, without.metrics.get(P99)?);
    Some(format!(
        "with {}, the time in which 99 of 100 appends are durable is {} times that of an idle runtime when the workers \
         are busy ({} against {}){hint}",
        log.1,
        number(with / without),
        time(with),
        time(without)
    ))
}

fn work(busy: &Experiment) -> Option<String> {
    let (own, phrase) = log(busy)?;
    let share =
        |row: &Row| row.metrics.get(metric::WORK_KEPT).map(|kept| format!("{} %", number(kept * 100.0)));
    let others: Vec<String> = OTHERS
        .iter()
        .filter_map(|(name, phrase)| Some(format!("{} with {phrase}", share(measured(busy, name)?)?)))
        .collect();
    let beside = if others.is_empty() { String::new() } else { format!("; {}", others.join(", ")) };
    Some(format!(
        "beside these appends the runtime keeps {} of its own work with {phrase}{beside}",
        share(own)?
    ))
}

fn throughput(experiment: &Experiment) -> Option<String> {
    let rate = |row: &Row| row.metrics.get(metric::APPENDS_PER_S);
    let fastest = |rows: &[(&str, &'static str)]| {
        rows.iter()
            .filter_map(|(name, phrase)| {
                let row = measured(experiment, name)?;
                Some((row, *phrase, rate(row)?))
            })
            .max_by(|a, b| a.2.total_cmp(&b.2))
    };
    let ((own, phrase, rate), (other, other_phrase, theirs)) = (fastest(&LOGS)?, fastest(&OTHERS)?);
    let count = experiment.number("appenders").map_or_else(String::new, number);
    let verdict = match difference(own, other, metric::APPENDS_PER_S)? {
        Difference::Equal => "no clear difference was seen".to_owned(),
        Difference::More(times) => format!("{} times as many", number(times)),
        Difference::Less(times) => format!("{} times fewer", number(times)),
    };
    let hint = hint(own);
    Some(format!(
        "{count} appender(s) with {}{} workers: {} durable appends a second with {phrase}, 99 of 100 durable within {}; the fastest \
         other is {other_phrase} with {} within {}: {verdict}{hint}",
        experiment.number("threads").map_or_else(String::new, |count| format!("{count} ")),
        if is(experiment, "load", "cpu") { "busy" } else { "idle" },
        number(rate),
        time_of(own, P99)?,
        number(theirs),
        time_of(other, P99)?,
    ))
}

/// Returns one sentence for the log and one for the store.
fn batches(experiment: &Experiment) -> Vec<String> {
    let log = ("the log", ["direct", "spawn-blocking", "async"]);
    let store = ("the store", ["store-direct", "store-spawn-blocking", "store-async"]);
    [log, store].into_iter().filter_map(|(what, rows)| three_ways(experiment, what, rows)).collect()
}

fn three_ways(experiment: &Experiment, what: &str, rows: [&str; 3]) -> Option<String> {
    let [waits, moved, awaits] = rows.map(|name| measured(experiment, name));
    let (waits, moved, awaits) = (waits?, moved?, awaits?);
    let rate = |row: &Row| row.metrics.get(metric::APPENDS_PER_S).map(number);
    let p50 = metric::SEEN[0];
    Some(format!(
        "{}, into {what}: half of them take at most {} awaited ({} a second), {} with .wait() in the task ({}), {} with .wait() in \
         spawn_blocking ({}); awaiting takes {} spawn_blocking",
        title(experiment),
        time_of(awaits, p50)?,
        rate(awaits)?,
        time_of(waits, p50)?,
        rate(waits)?,
        time_of(moved, p50)?,
        rate(moved)?,
        compared(awaits, moved, p50)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::result::{Metrics, Sample};

    fn of(experiments: &[Experiment]) -> Vec<String> {
        wal(&experiments.iter().collect::<Vec<_>>())
    }

    fn row(name: &str, p99_us: f64, rate: f64) -> Row {
        let samples = [0.99, 1.0, 1.01]
            .iter()
            .map(|factor| {
                let mut metrics = Metrics::default();
                metrics
                    .set(P99, p99_us * factor)
                    .set(metric::SEEN[1], p99_us * 2.0)
                    .set(metric::WORK_KEPT, 0.97)
                    .set(metric::APPENDS_PER_S, rate * factor);
                Sample { repeat: 0, metrics }
            })
            .collect();
        Row::from_samples(name, samples)
    }

    fn experiment(kind: &str, load: &str, rows: Vec<Row>) -> Experiment {
        let mut experiment = Experiment::new("wal", "")
            .parameter("loop", kind)
            .parameter("load", load)
            .parameter("rate_per_s", 500)
            .parameter("appenders", 64);
        experiment.rows = rows;
        experiment
    }

    #[test]
    fn a_calm_log_is_reported_with_its_figures() {
        let sentences = of(&[
            experiment("open", "none", vec![row("forebay-realtime", 300.0, 500.0)]),
            experiment(
                "open",
                "cpu",
                vec![row("tokio-fs", 2900.0, 500.0), row("forebay-realtime", 310.0, 500.0)],
            ),
        ]);
        assert!(
            sentences[0].contains(
                "2.90 ms with tokio::fs and 310 µs with the log at real-time priority, 9.35 times less"
            ),
            "{}",
            sentences[0]
        );
        assert!(
            sentences[0].contains("sees it after at most 620 µs (tokio::fs: 5.80 ms)"),
            "{}",
            sentences[0]
        );
        assert!(sentences[1].contains("1.03 times"), "{}", sentences[1]);
        assert!(sentences[2].contains("97 % of its own work"), "{}", sentences[2]);
    }

    #[test]
    fn a_loss_is_reported_too() {
        let rows = vec![row("std-thread", 200.0, 100e3), row("forebay", 400.0, 50e3)];
        let sentences = of(&[experiment("closed", "none", rows)]);
        assert!(
            sentences[0].contains("a thread of its own with 100,000")
                && sentences[0].contains("2 times fewer")
        );
        let rows = vec![row("tokio-fs", 200.0, 500.0), row("forebay", 400.0, 500.0)];
        let sentences = of(&[experiment("open", "cpu", rows)]);
        assert!(sentences[0].contains("2 times more than tokio::fs"), "{}", sentences[0]);
    }

    #[test]
    fn a_priority_that_was_refused_is_no_result() {
        let mut refused = row("forebay-realtime", 3000.0, 500.0);
        refused.degraded = Some("no privilege".to_owned());
        let rows = vec![row("tokio-fs", 2900.0, 500.0), refused, row("forebay", 2500.0, 500.0)];
        let sentences = of(&[experiment("open", "cpu", rows)]);
        assert!(sentences[0].contains("at default priority"), "{}", sentences[0]);
        assert!(sentences.last().is_some_and(|last| last.contains("no privilege")), "{sentences:?}");
    }
}
