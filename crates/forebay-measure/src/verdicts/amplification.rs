//! Titles and sentences of `measure amplification`.

use forebay_report::page::noise::{Difference, difference};
use forebay_report::result::{Experiment, Row, metric};
use forebay_report::units::{bytes, number};

const RATE: &str = metric::IOPS;

/// Returns the title of such an experiment in headings.
pub(crate) fn title(experiment: &Experiment) -> String {
    let files = experiment.number("files").map_or_else(|| "?".to_owned(), number);
    format!("{} from {files} file(s)", heading(experiment))
}

/// Returns the heading of the experiments of all numbers of files.
pub(crate) fn heading(experiment: &Experiment) -> String {
    let size = |name: &str| experiment.number(name).map_or_else(|| "?".to_owned(), |size| bytes(size as u64));
    format!("Pieces of {} to {} wanted at random", size("wanted_bytes_min"), size("wanted_bytes_max"))
}

/// Returns the verdicts: bytes read for each byte requested, for each number of files; then the most
/// files against the fewest.
pub(crate) fn of(experiments: &[&Experiment]) -> Vec<String> {
    let mut all = experiments.to_vec();
    let files = |experiment: &Experiment| experiment.number("files").unwrap_or_default();
    all.sort_by(|a, b| files(a).total_cmp(&files(b)));
    let mut sentences: Vec<String> = all.iter().filter_map(|experiment| per_byte(experiment)).collect();
    if let [few, .., many] = all.as_slice() {
        sentences.extend(many_files(few, many));
    }
    sentences
}

/// Returns the metric to use: the kernel's account of the process where there is one, otherwise that of
/// the device, whose counters include the reads of all processes.
fn counted(row: &Row) -> Option<&'static str> {
    [metric::PROCESS_BYTES_PER_BYTE, metric::DEVICE_BYTES_PER_BYTE]
        .into_iter()
        .find(|metric| row.metrics.get(metric).is_some())
}

fn measured<'a>(experiment: &'a Experiment, name: &str) -> Option<&'a Row> {
    experiment.row(name).filter(|row| row.skipped.is_none())
}

fn per_byte(experiment: &Experiment) -> Option<String> {
    let names = [
        ("buffered", "pread through the page cache as it comes"),
        ("buffered-random-advice", "with random advice"),
        ("read-many", "read_many"),
        ("direct", "direct reads"),
    ];
    let compared: Vec<(&Row, f64, &str)> = names
        .iter()
        .filter_map(|(name, phrase)| {
            let row = measured(experiment, name)?;
            Some((row, row.metrics.get(counted(row)?)?, *phrase))
        })
        .collect();
    let list: Vec<String> =
        compared.iter().map(|(_, times, phrase)| format!("{} ({phrase})", number(*times))).collect();
    let (most, least) = (
        compared.iter().max_by(|a, b| a.1.total_cmp(&b.1))?,
        compared.iter().min_by(|a, b| a.1.total_cmp(&b.1))?,
    );
    let is_clear = counted(most.0) == counted(least.0)
        && counted(most.0).and_then(|metric| difference(most.0, least.0, metric)) != Some(Difference::Equal);
    let end = if compared.len() < 2 {
        String::new()
    } else if is_clear {
        format!(": {} reads {} times as much as {}", most.2, number(most.1 / least.1), least.2)
    } else {
        ": no way reads clearly more than another".to_owned()
    };
    Some(format!(
        "{}: bytes read from the device for each byte wanted: {}{end}{}",
        title(experiment),
        list.join(", "),
        hint(most.0)
    ))
}

fn many_files(few: &Experiment, many: &Experiment) -> Option<String> {
    let count = |experiment: &Experiment| experiment.number("files").map(number);
    let (few_files, many_files) = (count(few)?, count(many)?);
    if few_files == many_files {
        return None;
    }
    let (before, after) = (measured(few, "buffered")?, measured(many, "buffered")?);
    let metric = counted(before).filter(|metric| counted(after) == Some(metric))?;
    let more = difference(after, before, metric)?;
    let read = match more {
        Difference::More(times) => {
            format!("the page cache reads {} times as much for the same pieces", number(times))
        }
        Difference::Less(times) => {
            format!("the page cache reads {} times less for the same pieces", number(times))
        }
        Difference::Equal => "the page cache reads no more for the same pieces".to_owned(),
    };
    let speed = measured(few, "direct").zip(measured(many, "direct")).and_then(|(before, after)| {
        Some(match (difference(after, before, RATE)?, more) {
            (Difference::Less(times), _) => {
                format!(", and direct reads are {} times slower from them", number(times))
            }
            (_, Difference::More(_)) => {
                ", while direct reads are as fast from them: many files are not slower, they are read more than needed"
                    .to_owned()
            }
            _ => ", and direct reads are as fast from them: many files are not slower".to_owned(),
        })
    });
    Some(format!(
        "The same amount of data in {many_files} files instead of {few_files}: {read}{}{}",
        speed.unwrap_or_default(),
        hint(after)
    ))
}

fn hint(row: &Row) -> &'static str {
    if row.samples.len() < 2 { "; measured once, so take it as a hint" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::result::{Metrics, Sample};

    fn row(name: &str, per_byte: f64, rate: f64) -> Row {
        let samples = [0.99, 1.0, 1.01].iter().map(|factor| {
            let mut metrics = Metrics::default();
            metrics.set(metric::PROCESS_BYTES_PER_BYTE, per_byte * factor).set(RATE, rate * factor);
            // Another process reads, too.
            metrics.set(metric::DEVICE_BYTES_PER_BYTE, 100.0 * factor);
            Sample { repeat: 0, metrics }
        });
        Row::from_samples(name, samples.collect())
    }

    fn experiment(files: u32, rows: Vec<Row>) -> Experiment {
        let mut experiment = Experiment::new("amplification", "")
            .parameter("files", files)
            .parameter("wanted_bytes_min", 512)
            .parameter("wanted_bytes_max", 4096);
        experiment.rows = rows;
        experiment
    }

    #[test]
    fn read_ahead_in_many_files_is_found() {
        let few = experiment(1, vec![row("buffered", 3.0, 9e3), row("direct", 1.2, 20e3)]);
        let many = experiment(1000, vec![row("buffered", 12.0, 3e3), row("direct", 1.2, 20e3)]);
        let sentences = of(&[&many, &few]);
        assert_eq!(sentences.len(), 3, "{sentences:?}");
        assert!(
            sentences[0].starts_with("Pieces of 512 B to 4 KiB wanted at random from 1 file(s): bytes read")
                && sentences[0].ends_with(
                    "3 (pread through the page cache as it comes), 1.20 (direct reads): pread through the page cache as it \
                     comes reads 2.50 times as much as direct reads"
                ),
            "{}",
            sentences[0]
        );
        assert_eq!(
            sentences[2],
            "The same amount of data in 1,000 files instead of 1: the page cache reads 4 times as much for the same \
             pieces, while direct reads are as fast from them: many files are not slower, they are read more than needed"
        );
    }

    #[test]
    fn many_files_are_not_accused_where_nothing_differs() {
        let rows = || vec![row("buffered", 1.2, 20e3), row("direct", 1.2, 20e3)];
        let sentences = of(&[&experiment(1, rows()), &experiment(50, rows())]);
        assert!(sentences[0].contains("no way reads clearly more"), "{sentences:?}");
        assert!(
            sentences[2].ends_with("no more for the same pieces, and direct reads are as fast from them: many files are not slower"),
            "{sentences:?}"
        );
    }

    #[test]
    fn slower_files_are_called_slower() {
        let few = experiment(1, vec![row("buffered", 3.0, 9e3), row("direct", 1.2, 20e3)]);
        let many = experiment(1000, vec![row("buffered", 3.0, 9e3), row("direct", 1.2, 5e3)]);
        let sentences = of(&[&few, &many]);
        assert!(sentences[2].contains("direct reads are 4 times slower from them"), "{sentences:?}");
        assert!(!sentences[2].contains("not slower"), "{sentences:?}");
    }

    #[test]
    fn rows_without_figures_make_no_sentence() {
        assert!(of(&[&experiment(1, vec![Row::skipped("buffered", "no")])]).is_empty());
    }
}
