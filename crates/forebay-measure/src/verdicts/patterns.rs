//! Titles and sentences of `measure patterns`.

use forebay_report::page::noise::{Difference, difference, too_wide};
use forebay_report::result::{Experiment, Row, metric};
use forebay_report::units::{bytes, number};

/// Returns the title of such an experiment in headings.
pub(crate) fn title(experiment: &Experiment) -> String {
    let memory = experiment.number("memory_mib").map_or_else(|| "?".to_owned(), number);
    format!("{}, {memory} MiB of memory", heading(experiment))
}

/// Returns the heading of the experiments of one pattern.
pub(crate) fn heading(experiment: &Experiment) -> String {
    let piece = experiment.number("piece_bytes").map_or_else(|| "?".to_owned(), |piece| bytes(piece as u64));
    let participants = experiment.number("participants").map_or_else(|| "?".to_owned(), number);
    match pattern(experiment) {
        "random" => format!("Random pieces of {piece} until durable"),
        _ => format!("Strided records of {piece} until durable, {participants} participant(s)"),
    }
}

fn pattern(experiment: &Experiment) -> &str {
    experiment.parameters.get("pattern").and_then(serde_json::Value::as_str).unwrap_or("?")
}

/// Returns the verdicts: for random pieces one for each size of memory, for strided records one for
/// each number of participants.
pub(crate) fn of(experiments: &[&Experiment]) -> Vec<String> {
    let rows = |name: &str, of: &Experiment| of.rows.iter().find(|row| row.name == name).cloned();
    let mut sentences = Vec::new();
    for experiment in experiments {
        let gathered = if pattern(experiment) == "random" { "combine" } else { "collective" };
        let Some(gathering) = rows(gathered, experiment) else { continue };
        // The rows that gather nothing are in the first table of their pattern.
        let family = |name: &str| {
            let family = experiments.iter().filter(|other| heading(other) == heading(experiment));
            family.filter_map(|other| rows(name, other)).next()
        };
        let compared: Vec<String> = [("o-direct", "each alone"), ("write-fsync", "the page cache")]
            .into_iter()
            .filter_map(|(name, meaning)| Some((family(name)?, meaning)))
            .filter_map(|(row, meaning)| compare(&gathering, &row, meaning))
            .collect();
        if !compared.is_empty() {
            sentences.push(format!("{}: `{gathered}` is {}", title(experiment), compared.join(" and ")));
        }
    }
    sentences
}

fn compare(gathering: &Row, other: &Row, meaning: &str) -> Option<String> {
    let hint = if gathering.samples.len() < 2 { " (measured once)" } else { "" };
    let other_name = &other.name;
    Some(match difference(gathering, other, metric::MB_PER_S)? {
        Difference::More(times) if times.is_finite() => {
            format!("{} times as fast as `{other_name}`, {meaning}{hint}", number(times))
        }
        Difference::Less(times) if times.is_finite() => {
            format!("{} times slower than `{other_name}`, {meaning}{hint}", number(times))
        }
        Difference::Equal => match too_wide(&[(gathering, metric::MB_PER_S), (other, metric::MB_PER_S)]) {
            Some((low, high)) => format!(
                "not clearly faster or slower than `{other_name}`, {meaning} (the repeats spread from {} to {} MB/s)",
                number(low),
                number(high)
            ),
            None => format!("about as fast as `{other_name}`, {meaning}{hint}"),
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::result::{Metrics, Sample};

    fn row(name: &str, rate: f64) -> Row {
        let samples = (0..3).map(|repeat| {
            let mut metrics = Metrics::default();
            metrics.set(metric::MB_PER_S, rate);
            Sample { repeat, metrics }
        });
        Row::from_samples(name, samples.collect())
    }

    fn experiment(pattern: &str, memory: u64, rows: Vec<Row>) -> Experiment {
        let mut experiment = Experiment::new("patterns", "")
            .parameter("pattern", pattern)
            .parameter("participants", 2)
            .parameter("memory_mib", memory)
            .parameter("piece_bytes", 4096);
        experiment.rows = rows;
        experiment
    }

    #[test]
    fn every_size_of_memory_is_compared_with_the_rows_that_have_none() {
        let first = vec![row("write-fsync", 400.0), row("o-direct", 50.0), row("combine", 800.0)];
        let all = [experiment("random", 1024, first), experiment("random", 256, vec![row("combine", 200.0)])];
        let sentences = of(&all.each_ref());
        assert_eq!(
            sentences,
            [
                "Random pieces of 4 KiB until durable, 1,024 MiB of memory: `combine` is 16 times as fast as `o-direct`, \
                 each alone and 2 times as fast as `write-fsync`, the page cache",
                "Random pieces of 4 KiB until durable, 256 MiB of memory: `combine` is 4 times as fast as `o-direct`, each \
                 alone and 2 times slower than `write-fsync`, the page cache",
            ]
        );
    }

    #[test]
    fn without_figures_there_is_no_sentence() {
        let alone = experiment("strided", 64, vec![row("combine", 800.0)]);
        assert!(of(&[&alone]).is_empty());
        let skipped = experiment("strided", 64, vec![row("collective", 5.0), Row::skipped("o-direct", "no")]);
        assert!(of(&[&skipped]).is_empty());
    }
}
