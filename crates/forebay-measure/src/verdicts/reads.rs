//! Sentences computed from the numbers, also when Forebay loses, and when nothing can be concluded.

use super::titles::span;
use forebay_report::page::columns::groups;
use forebay_report::page::noise::{Difference, difference};
use forebay_report::page::order::{Better, order};
use forebay_report::result::{CacheState, Experiment, Row, metric};
use forebay_report::units::{bytes, number};

/// Returns the verdicts of `measure scan`.
pub(crate) fn scans(experiments: &[&Experiment]) -> Vec<String> {
    let mut sentences = Vec::new();
    let (swept, whole): (Vec<&Experiment>, Vec<&Experiment>) =
        experiments.iter().partition(|experiment| experiment.number("depth").is_some());
    whole.iter().for_each(|experiment| scan(experiment, &mut sentences));
    let buffered = whole.iter().find_map(|experiment| experiment.row("buffered"));
    sentences.extend(super::buffered::scans(&swept, buffered));
    sentences
}

/// Returns the verdicts of `measure random`.
pub(crate) fn randoms(experiments: &[&Experiment]) -> Vec<String> {
    let mut sentences = Vec::new();
    for group in groups(experiments.iter().copied()) {
        random_of_span(&group, &mut sentences);
    }
    sentences
}

fn scan(experiment: &Experiment, sentences: &mut Vec<String>) {
    const LARGE: &str = "reading with 5 x 512 KiB in flight";
    let measured = |name: &str| experiment.row(name).filter(|row| row.skipped.is_none());
    let buffered = measured("buffered");
    if let (Some(large), Some(buffered)) = (measured("direct-large"), buffered) {
        let needs = needs(large, buffered);
        push(sentences, compare(LARGE, large, "std::fs", buffered, metric::MB_PER_S, &needs));
        push(sentences, cpu(LARGE, large, "std::fs", buffered, metric::CPU_S_PER_GB, "CPU s per GB"));
    }
    for (subject, row, other_name) in [
        ("Forebay's scan without options", "default", "buffered"),
        (LARGE, "direct-large", "mmap"),
        ("uncached reading (RWF_DONTCACHE)", "uncached", "buffered"),
        ("handing blocks over without a copy", "direct-no-copy", "direct-read-ahead"),
    ] {
        let other_phrase = match other_name {
            "buffered" => "std::fs",
            "direct-read-ahead" => "copying them through AsyncRead",
            name => name,
        };
        if let (Some(row), Some(other)) = (measured(row), measured(other_name)) {
            push(sentences, compare(subject, row, other_phrase, other, metric::MB_PER_S, ""));
        }
    }
    let rows: Vec<&Row> = experiment.rows.iter().collect();
    if let Some(order) = order(&rows, metric::MB_PER_S, Better::More) {
        sentences.push(format!("sequential reads in MB/s, the fastest first: {order}"));
        return;
    }
    let fastest = experiment
        .rows
        .iter()
        .filter_map(|row| Some((row, row.metrics.get(metric::MB_PER_S)?)))
        .max_by(|a, b| a.1.total_cmp(&b.1));
    if let Some((row, rate)) = fastest {
        sentences.push(format!(
            "the fastest sequential read here was `{}` with {} MB/s",
            row.name,
            number(rate)
        ));
    }
}

/// Returns "and needs 2.5 MiB", as far as it was measured.
fn needs(row: &Row, other: &Row) -> String {
    let memory = |row: &Row| row.metrics.get(metric::MEMORY_PEAK_BYTES);
    let mut listed = String::new();
    if let Some(buffers) = row.metrics.get(metric::BUFFERS_PEAK_BYTES).filter(|buffers| *buffers > 0.0) {
        listed = format!(" and needs {} of buffers", bytes(buffers as u64));
    }
    if let (Some(own), Some(theirs)) = (memory(row), memory(other)) {
        listed.push_str(if listed.is_empty() { " and needs" } else { ";" });
        listed.push_str(&format!(
            " {} of memory in all against {}, page cache included",
            bytes(own as u64),
            bytes(theirs as u64)
        ));
    }
    listed
}

/// Returns a phrase on the memory that a row saves, when it is worth mentioning.
fn less_memory(row: &Row, other: &Row) -> String {
    let memory = |row: &Row| row.metrics.get(metric::MEMORY_PEAK_BYTES);
    match (memory(row), memory(other)) {
        (Some(own), Some(theirs)) if own * 1.5 < theirs => format!(
            ", in {} of memory against {}, page cache included",
            bytes(own as u64),
            bytes(theirs as u64)
        ),
        _ => String::new(),
    }
}

fn random_of_span(group: &[&Experiment], sentences: &mut Vec<String>) {
    let measured = |experiment: &Experiment, name: &str| {
        experiment.row(name).filter(|row| row.skipped.is_none()).cloned()
    };
    let rate = |row: &Row| row.metrics.get(metric::IOPS).unwrap_or(0.0);
    let depth = |experiment: &Experiment| experiment.number("depth").unwrap_or(1.0);
    let fastest = group
        .iter()
        .filter_map(|experiment| Some((*experiment, measured(experiment, "direct")?)))
        .max_by(|a, b| rate(&a.1).total_cmp(&rate(&b.1)));
    let Some((fastest, direct)) = fastest else {
        return;
    };
    let shallow = group.iter().copied().min_by(|a, b| depth(a).total_cmp(&depth(b)));
    let mut reported = Vec::new();
    for experiment in [shallow, Some(fastest)].into_iter().flatten() {
        if reported.contains(&depth(experiment)) {
            continue;
        }
        reported.push(depth(experiment));
        if let (Some(direct), Some(buffered)) =
            (measured(experiment, "direct"), measured(experiment, "buffered"))
        {
            let subject =
                format!("random direct reading over {} at depth {}", span(experiment), depth(experiment));
            let other = "pread through the page cache";
            push(
                sentences,
                compare(&subject, &direct, other, &buffered, metric::IOPS, &less_memory(&direct, &buffered)),
            );
        }
    }
    if let Some(threads) = measured(fastest, "direct-pread") {
        let subject = format!("Forebay over {} at depth {}", span(fastest), depth(fastest));
        let other = "one thread for each read, waiting in pread with O_DIRECT";
        push(sentences, compare(&subject, &direct, other, &threads, metric::IOPS, ""));
        push(sentences, cpu(&subject, &direct, other, &threads, metric::CPU_US_PER_IO, "CPU µs per read"));
    }
    let rows: Vec<&Row> = fastest.rows.iter().collect();
    if let Some(order) = order(&rows, metric::IOPS, Better::More) {
        let (place, depth) = (span(fastest), depth(fastest));
        sentences.push(format!(
            "random reads over {place} at depth {depth}, a second, the fastest first: {order}"
        ));
    }
    sentences.extend(super::buffered::wins(group));
    knee(group, rate(&direct), sentences);
}

/// Adds a sentence on the number of reads in flight from which more no longer pay off.
fn knee(group: &[&Experiment], most: f64, sentences: &mut Vec<String>) {
    if group.len() < 3 || most <= 0.0 {
        return;
    }
    let mut points: Vec<(f64, &Row)> = group
        .iter()
        .filter_map(|experiment| Some((experiment.number("depth")?, experiment.row("direct")?)))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let enough =
        points.iter().find(|(_, row)| row.metrics.get(metric::IOPS).is_some_and(|rate| rate >= 0.9 * most));
    if let Some((depth, row)) = enough {
        let waits = row.metrics.get(metric::P99_US).map_or_else(String::new, |wait| {
            format!(", where 99 of 100 reads take at most {} µs", number(wait))
        });
        let end = match points.last() {
            Some((last, _)) if depth >= last => "; more in flight was not measured",
            _ => "",
        };
        sentences.push(format!(
            "over {}, {depth} direct read{} in flight reach 90 % of the most that was seen ({} a second){waits}{end}",
            span(group[0]),
            if *depth == 1.0 { "" } else { "s" },
            number(most)
        ));
    }
}

/// Returns a sentence on how two rows differ in a rate (more is better). `None` when one of them has
/// no figure.
fn compare(
    subject: &str,
    row: &Row,
    other: &str,
    other_row: &Row,
    metric: &str,
    needs: &str,
) -> Option<String> {
    let ratio = row.metrics.get(metric)? / other_row.metrics.get(metric)?;
    if !ratio.is_finite() || ratio <= 0.0 {
        return None;
    }
    let difference = difference(row, other_row, metric)?;
    let mut sentence = match difference {
        Difference::More(times) => {
            format!("{subject} is {} times faster than {other} here{needs}", number(times))
        }
        Difference::Less(times) => {
            format!("{subject} is {} times slower than {other} here{needs}", number(times))
        }
        Difference::Equal => {
            let (own, theirs) = (ranges(row, metric), ranges(other_row, metric));
            format!(
                "between {subject} and {other} no clear difference was seen here ({own} against {theirs}){needs}"
            )
        }
    };
    if [row, other_row].iter().any(|row| row.cache == Some(CacheState::Warm)) {
        sentence
            .push_str("; warm: the page cache may hold all that is read, so this is no figure of the device");
        if matches!(difference, Difference::Less(_)) {
            sentence.push_str(" (data that are hot and fit into memory are best read buffered)");
        }
    }
    if row.samples.len() < 2 || other_row.samples.len() < 2 {
        sentence.push_str("; measured once, so take it as a hint");
    }
    Some(sentence)
}

/// Returns a sentence on how two rows differ in a cost (less is better).
fn cpu(subject: &str, row: &Row, other: &str, other_row: &Row, metric: &str, unit: &str) -> Option<String> {
    let (own, theirs) = (row.metrics.get(metric)?, other_row.metrics.get(metric)?);
    if own <= 0.0 || theirs <= 0.0 {
        return None;
    }
    let figures = format!("{} against {} {unit}", number(own), number(theirs));
    Some(match difference(row, other_row, metric)? {
        Difference::Less(times) => {
            format!("{subject} costs {} times less processor time than {other}: {figures}", number(times))
        }
        Difference::More(times) => {
            format!("{subject} costs {} times more processor time than {other}: {figures}", number(times))
        }
        Difference::Equal => format!("{subject} costs about as much processor time as {other}: {figures}"),
    })
}

/// Formats median and range of a row: `1,000 (900 to 1,100)`.
fn ranges(row: &Row, metric: &str) -> String {
    let median = row.metrics.get(metric).map_or_else(|| "-".to_owned(), number);
    match row.spread(metric) {
        Some((low, high)) if low < high => format!("{median}, {} to {}", number(low), number(high)),
        _ => median,
    }
}

/// Adds a sentence, if there is one.
fn push(sentences: &mut Vec<String>, sentence: Option<String>) {
    sentences.extend(sentence);
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::result::{Metrics, Sample};

    fn row(name: &str, metric: &str, values: &[f64]) -> Row {
        let samples = values
            .iter()
            .enumerate()
            .map(|(index, value)| {
                let mut metrics = Metrics::default();
                metrics.set(metric, *value);
                Sample { repeat: index as u32, metrics }
            })
            .collect();
        Row::from_samples(name, samples)
    }

    fn scan_of(large: &[f64], buffered: Row) -> Vec<String> {
        let mut experiment = Experiment::new("scan", "");
        experiment.rows = vec![buffered, row("direct-large", metric::MB_PER_S, large)];
        scans(&[&experiment])
    }

    #[test]
    fn a_win_is_reported_with_its_factor() {
        let sentences =
            scan_of(&[2400.0, 2500.0, 2300.0], row("buffered", metric::MB_PER_S, &[1000.0, 1100.0, 900.0]));
        assert_eq!(sentences[0], "reading with 5 x 512 KiB in flight is 2.40 times faster than std::fs here");
    }

    #[test]
    fn a_loss_is_reported_too() {
        let sentences =
            scan_of(&[500.0, 510.0, 490.0], row("buffered", metric::MB_PER_S, &[1000.0, 1100.0, 900.0]));
        assert!(sentences[0].contains("2 times slower than std::fs"), "{}", sentences[0]);
    }

    #[test]
    fn overlapping_repeats_are_no_difference() {
        let sentences =
            scan_of(&[1200.0, 900.0, 1300.0], row("buffered", metric::MB_PER_S, &[1000.0, 1250.0, 900.0]));
        assert!(sentences[0].contains("no clear difference"), "{}", sentences[0]);
    }

    #[test]
    fn warm_figures_are_called_warm() {
        let warm = row("buffered", metric::MB_PER_S, &[9000.0, 9100.0]).cache(CacheState::Warm);
        let sentences = scan_of(&[2400.0, 2500.0], warm);
        assert!(sentences[0].contains("slower") && sentences[0].contains("warm"), "{}", sentences[0]);
    }

    #[test]
    fn rows_that_were_not_measured_make_no_sentence() {
        let sentences = scan_of(&[1000.0], Row::skipped("buffered", "no"));
        assert_eq!(sentences, ["the fastest sequential read here was `direct-large` with 1,000 MB/s"]);
    }

    #[test]
    fn random_reads_report_the_knee_and_the_page_cache() {
        let experiments: Vec<Experiment> = [(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)]
            .into_iter()
            .map(|(depth, iops)| {
                let mut experiment = Experiment::new("random", "")
                    .parameter("depth", depth)
                    .parameter("span_bytes", 1 << 20)
                    .parameter("file_bytes", 1 << 30);
                experiment.rows = vec![
                    row("buffered", metric::IOPS, &[500e3, 510e3]).cache(CacheState::Warm),
                    row("direct", metric::IOPS, &[iops, iops * 1.01]),
                ];
                experiment
            })
            .collect();
        let sentences = randoms(&experiments.iter().collect::<Vec<_>>());
        assert!(
            sentences.iter().any(|sentence| sentence.contains("32 direct reads in flight reach 90 %")),
            "{sentences:?}"
        );
        assert!(
            sentences.iter().any(|sentence| sentence.contains("slower than pread through the page cache"))
        );
    }
}
