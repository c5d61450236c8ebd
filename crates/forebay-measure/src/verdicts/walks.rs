//! Titles and sentences of `measure walk`.

use super::interference;
use forebay_report::page::noise::{Difference, difference};
use forebay_report::result::{Experiment, Row, metric};
use forebay_report::units::{bytes, number};

const RATE: &str = metric::LOOKUPS_PER_S;
const CPU: &str = metric::CPU_US_PER_LOOKUP;

/// Returns the title of such an experiment in headings.
pub(crate) fn title(experiment: &Experiment) -> String {
    let depth = experiment.number("depth").map_or_else(|| "?".to_owned(), number);
    format!("{}, {depth} read(s) each", heading(experiment))
}

/// Returns the heading of the experiments of all depths.
pub(crate) fn heading(experiment: &Experiment) -> String {
    let count = |name: &str| experiment.number(name).map_or_else(|| "?".to_owned(), number);
    format!(
        "{} in nodes of {}, {} in flight from {} thread(s){}",
        if is_published(experiment) {
            "Lookups, each in a file that is made and removed,"
        } else {
            "Lookups"
        },
        experiment.number("node_bytes").map_or_else(|| "?".to_owned(), |node| bytes(node as u64)),
        count("in_flight"),
        count("threads"),
        if is_beside_timers(experiment) { ", beside 1,000 timers" } else { "" }
    )
}

/// Returns whether a thousand timer tasks ran beside the lookups.
fn is_beside_timers(experiment: &Experiment) -> bool {
    experiment.parameters.get("beside").is_some_and(|value| value == "timers")
}

/// Returns whether each lookup had a file of its own.
fn is_published(experiment: &Experiment) -> bool {
    experiment.parameters.get("as_published").is_some_and(|value| value == true)
}

/// Returns the verdicts: for each index on the lookups with the most reads, from the fewest threads.
pub(crate) fn of(experiments: &[&Experiment]) -> Vec<String> {
    let walks = || experiments.iter().copied().filter(|found| !is_beside_timers(found));
    let order = |experiment: &Experiment| {
        let number = |name| experiment.number(name).unwrap_or_default();
        (-number("threads"), number("depth"))
    };
    let mut sentences = Vec::new();
    let mut text = Vec::new();
    for experiment in walks() {
        let node = experiment.number("node_bytes");
        if text.contains(&node) {
            continue;
        }
        text.push(node);
        let best = walks()
            .filter(|other| other.number("node_bytes") == node)
            .max_by(|a, b| order(a).partial_cmp(&order(b)).unwrap_or(std::cmp::Ordering::Equal));
        if let Some(best) = best {
            sentences.extend(on_shards(best));
            sentences.extend(from_tokio(best));
            sentences.extend(on_the_device(best));
        }
    }
    let beside = experiments.iter().filter(|found| is_beside_timers(found));
    sentences.extend(beside.filter_map(|found| interference::sentence(found, "no-lookups", &title(found))));
    sentences
}

fn measured<'a>(experiment: &'a Experiment, name: &str) -> Option<&'a Row> {
    experiment.row(name).filter(|row| row.skipped.is_none())
}

fn of_row(row: &Row, metric: &str) -> Option<String> {
    row.metrics.get(metric).map(number)
}

/// Compares a figure of `row` with that of `other`: `1.3 times as much as`.
fn compared(row: &Row, other: &Row, metric: &str, phrase: [&'static str; 2]) -> Option<String> {
    Some(match difference(row, other, metric)? {
        Difference::More(times) => format!("{} times {} than", number(times), phrase[0]),
        Difference::Less(times) => format!("{} times {} than", number(times), phrase[1]),
        Difference::Equal => "about as much as".to_owned(),
    })
}

fn hint(row: &Row) -> &'static str {
    if row.samples.len() < 2 { "; measured once, so take it as a hint" } else { "" }
}

fn on_shards(experiment: &Experiment) -> Option<String> {
    let walk = measured(experiment, "forebay-walk")?;
    let mut parts = Vec::new();
    for (name, phrase) in [
        ("io_uring", "a bare loop"),
        ("forebay-task", "one read at a time in a task"),
        ("pread", "pread on threads"),
    ] {
        if let Some(other) = measured(experiment, name) {
            parts.push(format!(
                "{phrase}: {} a second with {} µs of CPU each",
                of_row(other, RATE)?,
                of_row(other, CPU)?
            ));
        }
    }
    Some(format!(
        "{}: {} a second as walks on a shard with {} µs of CPU and {} wake(s) each{}{}{}",
        title(experiment),
        of_row(walk, RATE)?,
        of_row(walk, CPU)?,
        of_row(walk, metric::WAKES_PER_LOOKUP)?,
        if parts.is_empty() { "" } else { "; " },
        parts.join("; "),
        hint(walk)
    ))
}

fn from_tokio(experiment: &Experiment) -> Option<String> {
    let walk = measured(experiment, "forebay-walk-tokio")?;
    let rate = |row: &Row| row.metrics.get(RATE);
    let others = [
        ("blocking-per-hop", "a spawn_blocking for each read"),
        ("blocking-whole", "one spawn_blocking for each lookup"),
        ("tokio-fs", "tokio::fs"),
    ];
    let (other, phrase) = others
        .iter()
        .filter_map(|(name, phrase)| Some((measured(experiment, name)?, *phrase)))
        .max_by(|a, b| rate(a.0).unwrap_or_default().total_cmp(&rate(b.0).unwrap_or_default()))?;
    Some(format!(
        "{}: from Tokio {} a second as walks with {} µs of CPU each, which is {} the fastest other, {phrase} \
         ({}), and {} its CPU ({} µs){}",
        title(experiment),
        of_row(walk, RATE)?,
        of_row(walk, CPU)?,
        compared(walk, other, RATE, ["more", "fewer"])?,
        of_row(other, RATE)?,
        compared(walk, other, CPU, ["more", "less"])?,
        of_row(other, CPU)?,
        hint(walk)
    ))
}

/// Returns a sentence on the share of a lookup that is spent on the device, and so on the rest above it.
fn on_the_device(experiment: &Experiment) -> Option<String> {
    let ways = [
        ("io_uring", "in a bare loop"),
        ("forebay-walk", "as walks on a shard"),
        ("forebay-walk-tokio", "as walks from Tokio"),
        ("pread", "with pread on threads"),
        ("blocking-per-hop", "with a spawn_blocking for each read"),
        ("tokio-fs", "with tokio::fs"),
    ];
    let share = |(name, phrase): &(&str, &str)| {
        let share = measured(experiment, name)?.metrics.get(metric::DEVICE_SHARE)?;
        Some(format!("{} % {phrase}", number((100.0 * share).round())))
    };
    let shares: Vec<String> = ways.iter().filter_map(share).collect();
    (!shares.is_empty()).then(|| {
        format!(
            "{}: of a lookup's time so much is spent on the device: {}",
            title(experiment),
            shares.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::result::{Metrics, Sample};

    fn row(name: &str, rate: f64, cpu_us: f64) -> Row {
        let samples = [0.99, 1.0, 1.01].iter().map(|factor| {
            let mut metrics = Metrics::default();
            metrics.set(RATE, rate * factor).set(CPU, cpu_us * factor).set(metric::WAKES_PER_LOOKUP, 1.0);
            Sample { repeat: 0, metrics }
        });
        Row::from_samples(name, samples.collect())
    }

    fn experiment(depth: u32, threads: u32, rows: Vec<Row>) -> Experiment {
        let mut experiment = Experiment::new("walk", "")
            .parameter("depth", depth)
            .parameter("threads", threads)
            .parameter("in_flight", 64)
            .parameter("node_bytes", 512);
        experiment.rows = rows;
        experiment
    }

    #[test]
    fn the_deepest_lookups_from_one_thread_are_reported() {
        let rows = || {
            vec![
                row("io_uring", 10_000.0, 20.0),
                row("forebay-walk", 9_900.0, 21.0),
                row("forebay-walk-tokio", 9_000.0, 30.0),
                row("blocking-whole", 4_500.0, 90.0),
            ]
        };
        let all = [experiment(1, 1, rows()), experiment(6, 1, rows()), experiment(6, 8, rows())];
        let sentences = of(&all.each_ref());
        assert_eq!(sentences.len(), 2, "{sentences:?}");
        assert!(
            sentences[0].starts_with(
                "Lookups in nodes of 512 B, 64 in flight from 1 thread(s), 6 read(s) each: 9,900 a second"
            ),
            "{}",
            sentences[0]
        );
        assert!(sentences[0].contains("a bare loop: 10,000 a second with 20 µs"), "{}", sentences[0]);
        assert!(
            sentences[1].contains("2 times more than the fastest other, one spawn_blocking for each lookup")
                && sentences[1].contains("3 times less than its CPU (90 µs)"),
            "{}",
            sentences[1]
        );
    }

    #[test]
    fn the_share_on_the_device_is_reported_where_it_is_known() {
        let mut rows = vec![row("forebay-walk", 9_900.0, 21.0), row("pread", 5_000.0, 60.0)];
        rows[0].metrics.set(metric::DEVICE_SHARE, 0.914);
        rows[1].metrics.set(metric::DEVICE_SHARE, 0.4);
        let text = on_the_device(&experiment(6, 1, rows)).expect("two of them have it");
        assert!(
            text.ends_with("is spent on the device: 91 % as walks on a shard, 40 % with pread on threads"),
            "{text}"
        );
        assert_eq!(on_the_device(&experiment(6, 1, vec![row("pread", 5_000.0, 60.0)])), None);
    }

    #[test]
    fn depths_belong_together_and_threads_do_not() {
        let [one, six, many] =
            [(1, 1), (6, 1), (6, 4)].map(|(depth, threads)| experiment(depth, threads, vec![]));
        assert!(heading(&one) == heading(&six) && heading(&six) != heading(&many));
        assert_eq!(title(&one), "Lookups in nodes of 512 B, 64 in flight from 1 thread(s), 1 read(s) each");
        assert!(of(&[&one]).is_empty());
    }
}
