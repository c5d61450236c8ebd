//! Titles and sentences of `measure cpu`.

use crate::reads::names;
use forebay_report::page::order::{Better, order};
use forebay_report::result::{Experiment, Row, metric};
use forebay_report::units::{bytes, number};

/// Returns the title of such an experiment in headings.
pub(crate) fn title(experiment: &Experiment) -> String {
    let block = experiment
        .number("block_bytes")
        .map_or_else(String::new, |block| format!(" of {}", bytes(block as u64)));
    let readers = experiment.number("readers").map_or_else(|| "?".to_owned(), number);
    format!("Processor time of random reads{block}, {readers} at once")
}

/// Returns the verdicts, one for each number of reads in flight.
pub(crate) fn of(experiments: &[&Experiment]) -> Vec<String> {
    let mut sentences = Vec::new();
    for experiment in experiments {
        sentences.extend(costs(experiment));
        sentences.extend(one_core(experiment));
        sentences.extend(calls(experiment));
    }
    sentences
}

fn at_once(experiment: &Experiment) -> String {
    let readers = experiment.number("readers").map_or_else(|| "?".to_owned(), number);
    format!("with {readers} read{} in flight", if readers == "1" { "" } else { "s" })
}

fn costs(experiment: &Experiment) -> Option<String> {
    let rows: Vec<&Row> = experiment.rows.iter().collect();
    let order = order(&rows, metric::CPU_US_PER_IO, Better::Less)?;
    let hint = if rows.iter().any(|row| row.samples.len() == 1) {
        "; measured once, so take it as a hint"
    } else {
        ""
    };
    Some(format!(
        "processor time of one read {}, in µs, the cheapest first: {order}{hint}",
        at_once(experiment)
    ))
}

/// Returns a sentence on how many reads one core drives, at best and at worst.
fn one_core(experiment: &Experiment) -> Option<String> {
    let mut rows: Vec<(&Row, f64)> = experiment
        .rows
        .iter()
        .filter_map(|row| Some((row, row.metrics.get(names::IOPS_PER_CORE)?)))
        .collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1));
    let ((first, most), (last, least)) = (*rows.first()?, *rows.last().filter(|_| rows.len() > 1)?);
    let of = |name: &str| {
        let row =
            rows.iter().find(|(row, _)| row.name == name && ![&first.name, &last.name].contains(&&row.name));
        row.map(|(row, rate)| format!(", {} with `{}`", number(*rate), row.name))
    };
    let between: String = ["forebay-shard", "forebay-tokio", "pread"].into_iter().filter_map(of).collect();
    Some(format!(
        "{}, one core drives {} reads a second with `{}`{between}, and {} with `{}`",
        at_once(experiment),
        number(most),
        first.name,
        number(least),
        last.name
    ))
}

fn calls(experiment: &Experiment) -> Option<String> {
    let parts: Vec<String> = ["pread", "spawn-blocking", "forebay-shard", "forebay-tokio"]
        .iter()
        .filter_map(|name| {
            let row = experiment.row(name)?;
            let calls = row.metrics.get(names::SYSTEM_CALLS_PER_IO)?;
            let switches = row.metrics.get(metric::CONTEXT_SWITCHES_PER_IO)?;
            Some(format!("{} and {} with `{name}`", number(calls), number(switches)))
        })
        .collect();
    (!parts.is_empty()).then(|| {
        format!("system calls and context switches of one read {}: {}", at_once(experiment), parts.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::result::{Metrics, Sample};

    fn row(name: &str, cpu_us: f64, calls: Option<f64>) -> Row {
        let samples = [0.99, 1.0, 1.01].iter().map(|factor| {
            let mut metrics = Metrics::default();
            metrics
                .set(metric::CPU_US_PER_IO, cpu_us * factor)
                .set(names::IOPS_PER_CORE, 1e6 / cpu_us / factor)
                .set(metric::CONTEXT_SWITCHES_PER_IO, 0.5);
            if let Some(calls) = calls {
                metrics.set(names::SYSTEM_CALLS_PER_IO, calls);
            }
            Sample { repeat: 0, metrics }
        });
        Row::from_samples(name, samples.collect())
    }

    fn experiment(rows: Vec<Row>) -> Experiment {
        let mut experiment =
            Experiment::new("cpu", "").parameter("readers", 32).parameter("block_bytes", 4096);
        experiment.rows = rows;
        experiment
    }

    #[test]
    fn the_order_one_core_and_the_calls_are_reported() {
        let rows = vec![
            row("pread", 20.0, Some(1.0)),
            row("io_uring", 10.0, None),
            row("tokio-fs", 50.0, Some(4.0)),
            row("forebay-shard", 10.1, Some(0.25)),
            Row::skipped("io_uring-iopoll", "refused"),
        ];
        let sentences = of(&[&experiment(rows)]);
        let [costs, core, calls] = &sentences[..] else { panic!("{sentences:?}") };
        assert_eq!(
            costs,
            "processor time of one read with 32 reads in flight, in µs, the cheapest first: 1. `io_uring` 10 and \
             `forebay-shard` 10.1; 2. `pread` 20; 3. `tokio-fs` 50"
        );
        assert_eq!(
            core,
            "with 32 reads in flight, one core drives 100,000 reads a second with `io_uring`, 99,010 with \
             `forebay-shard`, 50,000 with `pread`, and 20,000 with `tokio-fs`"
        );
        assert!(calls.ends_with("1 and 0.500 with `pread`, 0.250 and 0.500 with `forebay-shard`"), "{calls}");
        assert_eq!(title(&experiment(Vec::new())), "Processor time of random reads of 4 KiB, 32 at once");
    }

    #[test]
    fn one_row_is_compared_with_nothing() {
        let sentences = of(&[&experiment(vec![row("io_uring", 10.0, None)])]);
        assert!(sentences.is_empty(), "{sentences:?}");
    }
}
