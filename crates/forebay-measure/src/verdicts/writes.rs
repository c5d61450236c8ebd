//! Titles and sentences of `measure writes`.

mod flush;

use flush::flush;
use forebay_report::page::noise::{NOTEWORTHY, too_wide};
use forebay_report::result::{Experiment, Row, metric};
use forebay_report::units::{bytes, number};

const ADVERTISED: &str = metric::IOPS_ADVERTISED;
const RELIABLE: &str = metric::IOPS_RELIABLE;

/// Returns the title of such an experiment in headings.
pub(crate) fn title(experiment: &Experiment) -> String {
    let clients = experiment.number("clients").map_or_else(|| "?".to_owned(), number);
    format!("{}, {clients} client(s)", heading(experiment))
}

/// Returns the heading of the experiments of one pattern.
pub(crate) fn heading(experiment: &Experiment) -> String {
    let pattern = experiment.parameters.get("pattern").and_then(serde_json::Value::as_str);
    format!(
        "Random writes of {}, {}",
        experiment.number("block_bytes").map_or_else(|| "?".to_owned(), |block| bytes(block as u64)),
        pattern.unwrap_or("?")
    )
}

/// Returns the verdicts: for each pattern on the fewest clients.
pub(crate) fn of(experiments: &[&Experiment]) -> Vec<String> {
    let writes = || experiments.iter().copied();
    let mut sentences = Vec::new();
    let mut reported = Vec::new();
    for experiment in writes() {
        let pattern = experiment.parameters.get("pattern");
        if reported.contains(&pattern) {
            continue;
        }
        reported.push(pattern);
        let fewest = writes().filter(|other| other.parameters.get("pattern") == pattern).min_by(|a, b| {
            let clients = |experiment: &Experiment| experiment.number("clients").unwrap_or_default();
            clients(a).total_cmp(&clients(b))
        });
        if let Some(fewest) = fewest {
            sentences.extend(ratio(fewest));
            sentences.extend(each_durable(fewest));
            sentences.extend(flush(fewest));
        }
    }
    sentences
}

fn figures<'a>(experiment: &'a Experiment, metric: &str) -> impl Iterator<Item = (&'a Row, f64)> {
    let rows = experiment.rows.iter();
    let values = rows.filter_map(|row| Some((row, row.metrics.get(metric)?)));
    values.collect::<Vec<_>>().into_iter().filter(|(_, value)| *value > 0.0)
}

/// Returns a sentence on the range of figures that the same writes can give: the largest against the
/// smallest.
fn ratio(experiment: &Experiment) -> Option<String> {
    let (top, largest) = figures(experiment, ADVERTISED).max_by(|a, b| a.1.total_cmp(&b.1))?;
    let (bottom, smallest) = figures(experiment, RELIABLE).min_by(|a, b| a.1.total_cmp(&b.1))?;
    let (best, most) = figures(experiment, RELIABLE).max_by(|a, b| a.1.total_cmp(&b.1))?;
    let times = largest / smallest;
    let title = title(experiment);
    if !above(top, ADVERTISED, bottom, RELIABLE)
        && let Some(spread) = spread(&[(top, ADVERTISED), (bottom, RELIABLE)])
    {
        return Some(format!(
            "{title}: {spread} to show whether it makes a difference which time is counted: `{}` advertises {} \
             writes a second, and {} can be relied on (`{}`), as medians{}",
            top.name,
            number(largest),
            number(smallest),
            bottom.name,
            hint(&[top, bottom])
        ));
    }
    if times < NOTEWORTHY || !above(top, ADVERTISED, bottom, RELIABLE) {
        return Some(format!(
            "{title}: it makes no clear difference here which time is counted: `{}` advertises {} writes a second, and \
             {} can be relied on (`{}`){}",
            top.name,
            number(largest),
            number(smallest),
            bottom.name,
            hint(&[top, bottom])
        ));
    }
    let range = if best.name == bottom.name {
        format!("{} a second (`{}`)", number(smallest), bottom.name)
    } else {
        format!("{} (`{}`) to {} (`{}`)", number(smallest), bottom.name, number(most), best.name)
    };
    Some(format!(
        "{title}: `{}` advertises {} writes a second, and {range} can be relied on: the largest of these figures is \
         {} times the smallest, for the same writes on the same device{}",
        top.name,
        number(largest),
        number(times),
        hint(&[top, bottom])
    ))
}

/// Returns a sentence on the best way where each write must be durable before the next one.
fn each_durable(experiment: &Experiment) -> Option<String> {
    let names = ["o-direct-dsync", "fdatasync-each", "fsync-each", "forebay-durable"];
    let of_these = |(row, _): &(&Row, f64)| names.contains(&row.name.as_str());
    let mut rows: Vec<(&Row, f64)> = figures(experiment, RELIABLE).filter(of_these).collect();
    if rows.len() < 2 {
        return None;
    }
    rows.sort_by(|a, b| b.1.total_cmp(&a.1));
    let ((best, most), (worst, least)) = (rows[0], rows[rows.len() - 1]);
    let list: Vec<String> =
        rows.iter().map(|(row, rate)| format!("`{}` {}", row.name, number(*rate))).collect();
    let list = list.join(", ");
    let title = title(experiment);
    let hint = hint(&[best, worst]);
    Some(if most / least >= NOTEWORTHY && above(best, RELIABLE, worst, RELIABLE) {
        format!(
            "{title}, each durable before the next: `{}` makes {} times as many a second as `{}` ({list}){hint}",
            best.name,
            number(most / least),
            worst.name
        )
    } else if let Some(spread) = spread(&rows.iter().map(|(row, _)| (*row, RELIABLE)).collect::<Vec<_>>()) {
        format!(
            "{title}, each durable before the next: {spread} to show which way is fastest, or that they are alike \
             ({list}, as medians){hint}"
        )
    } else {
        format!("{title}, each durable before the next: all ways are about as fast ({list}){hint}")
    })
}

/// Returns whether every repeat of `row` is above every repeat of `other`.
fn above(row: &Row, metric: &str, other: &Row, other_metric: &str) -> bool {
    match (row.spread(metric), other.spread(other_metric)) {
        (Some((low, _)), Some((_, high))) => low > high,
        _ => false,
    }
}

/// Returns `the repeats spread too widely (12,000 to 80,000 a second)`, where they do.
fn spread(figures: &[(&Row, &str)]) -> Option<String> {
    let (low, high) = too_wide(figures)?;
    Some(format!("the repeats spread too widely ({} to {} a second)", number(low), number(high)))
}

fn hint(rows: &[&Row]) -> &'static str {
    if rows.iter().any(|row| row.samples.len() < 2) { "; measured once, so take it as a hint" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::result::{Metrics, Sample};

    pub(super) fn row(name: &str, advertised: f64, reliable: Option<f64>) -> Row {
        let samples = [0.98, 1.0, 1.02].iter().map(|factor| {
            let mut metrics = Metrics::default();
            metrics.set(ADVERTISED, advertised * factor);
            if let Some(reliable) = reliable {
                metrics.set(RELIABLE, reliable * factor);
            }
            Sample { repeat: 0, metrics }
        });
        Row::from_samples(name, samples.collect())
    }

    pub(super) fn experiment(pattern: &str, clients: u32, rows: Vec<Row>) -> Experiment {
        let mut experiment = Experiment::new("writes", "")
            .parameter("pattern", pattern)
            .parameter("clients", clients)
            .parameter("block_bytes", 4096);
        experiment.rows = rows;
        experiment
    }

    /// A device with a slow flush: the page cache takes everything at once, and each flush costs.
    #[test]
    fn the_ratio_of_a_slow_flush_is_found_for_the_fewest_clients() {
        let rows = || {
            vec![
                row("naive", 400e3, None),
                row("sync-close", 390e3, Some(40e3)),
                row("o-direct-dsync", 2e3, Some(2e3)),
                row("fsync-each", 380e3, Some(1e3)),
            ]
        };
        let all = [experiment("sparse", 4, rows()), experiment("sparse", 1, rows())];
        let sentences = of(&all.each_ref());
        assert_eq!(sentences.len(), 2, "{sentences:?}");
        assert!(
            sentences[0].starts_with(
                "Random writes of 4 KiB, sparse, 1 client(s): `naive` advertises 400,000 writes a second, and \
                 1,000 (`fsync-each`) to 40,000 (`sync-close`) can be relied on: the largest of these figures is 400 times"
            ),
            "{}",
            sentences[0]
        );
        assert!(
            sentences[1].contains("`o-direct-dsync` makes 2 times as many a second as `fsync-each`"),
            "{}",
            sentences[1]
        );
    }

    #[test]
    fn a_device_on_which_all_are_alike_is_not_accused() {
        let rows = vec![
            row("naive", 1.01e3, None),
            row("o-direct-dsync", 1.0e3, Some(1.0e3)),
            row("fsync-each", 1.0e3, Some(0.99e3)),
        ];
        let sentences = of(&[&experiment("dense", 1, rows)]);
        assert!(sentences[0].contains("no clear difference"), "{sentences:?}");
        assert!(sentences[1].contains("all ways are about as fast"), "{sentences:?}");
    }

    /// Regression: on a disk that other machines share, repeats of one row were between 12,000 and
    /// 80,000 per second. Their medians differed by half, no row was above all repeats of another, and
    /// so they were called "about as fast".
    #[test]
    fn repeats_that_spread_widely_are_not_called_alike() {
        let wide = |name: &str, rates: [f64; 3]| {
            let samples = rates.map(|rate| {
                let mut metrics = Metrics::default();
                metrics.set(ADVERTISED, rate).set(RELIABLE, rate);
                Sample { repeat: 0, metrics }
            });
            Row::from_samples(name, samples.into())
        };
        let rows = |first: [f64; 3]| {
            vec![
                wide("o-direct", first),
                wide("o-direct-dsync", [12e3, 20e3, 75e3]),
                wide("fsync-each", [14e3, 22e3, 60e3]),
            ]
        };
        let sentences = of(&[&experiment("dense", 1, rows([15e3, 31e3, 80e3]))]);
        let text = sentences.join("\n");
        assert_eq!(sentences.len(), 3, "{text}");
        assert!(sentences[0].contains("the repeats spread too widely (12,000 to 80,000 a second)"), "{text}");
        assert!(sentences[1].contains("the repeats spread too widely (12,000 to 75,000 a second)"), "{text}");
        assert!(sentences[2].contains("(12,000 to 80,000 a second) to show the cost of a flush"), "{text}");
        assert!(!text.contains("about as fast") && !text.contains("no clear difference"), "{text}");
        // A row above all others is mentioned, however wide its own spread is.
        let clear = of(&[&experiment("dense", 1, rows([150e3, 310e3, 800e3]))]);
        assert!(clear[0].contains("`o-direct` advertises 310,000 writes a second, and "), "{clear:?}");
    }

    #[test]
    fn rows_without_figures_have_no_sentence() {
        assert!(of(&[&experiment("dense", 1, vec![row("naive", 1e6, None)])]).is_empty());
        assert!(of(&[&experiment("dense", 1, vec![Row::skipped("fsync-each", "no")])]).is_empty());
    }
}
