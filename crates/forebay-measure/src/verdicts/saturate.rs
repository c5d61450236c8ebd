//! Titles and sentences of `measure saturate`.

use crate::reads::names;
use forebay_report::page::facts;
use forebay_report::page::histogram::counts_us;
use forebay_report::page::knee::{Definition, Level, Saturation, saturation};
use forebay_report::page::modes::two_sorts;
use forebay_report::result::{Experiment, Row, metric};
use forebay_report::units::{bytes, number};

/// Load of the processors from which a way is limited by them.
const BUSY: f64 = 0.9;
/// Minimum share of its rate that an open loop must reach to keep up.
const KEPT_UP: f64 = 0.97;
/// Maximum difference between repeats, as a share of their median; above it the median is not trusted.
const UNSTEADY: f64 = 0.25;
/// Tolerance of a program's full speed: one that lacks less than a twentieth of it still has it.
const ROUNDED: f64 = 1.05;
/// Growth of latency that is worth mentioning: doubled.
const DOUBLED: f64 = 2.0;

/// Returns the title of such an experiment in headings.
pub(crate) fn title(experiment: &Experiment) -> String {
    match (experiment.number("readers"), experiment.number("load_percent")) {
        (Some(readers), _) => format!("{}, {} at once", heading(experiment), number(readers)),
        (_, Some(load)) => format!("{}, {} %", heading(experiment), number(load)),
        _ => heading(experiment),
    }
}

/// Returns the heading of the experiments of all loads.
pub(crate) fn heading(experiment: &Experiment) -> String {
    let block = experiment
        .number("block_bytes")
        .map_or_else(String::new, |block| format!(" of {}", bytes(block as u64)));
    if is_open(experiment) {
        format!("Random reads{block} at times of the callers' choosing, at a share of each row's most")
    } else {
        format!("Random reads{block} by more and more readers")
    }
}

fn is_open(experiment: &Experiment) -> bool {
    experiment.parameters.get("loop").and_then(serde_json::Value::as_str) == Some("open")
}

/// A row with its figures at each load.
struct Curve<'a> {
    name: &'a str,
    levels: Vec<Level>,
    rows: Vec<&'a Row>,
    /// The limit of a control group that its maximum comes up to, in words.
    limit: Option<String>,
}

impl Curve<'_> {
    fn most(&self) -> f64 {
        self.levels.iter().map(|level| level.per_second).fold(0.0, f64::max)
    }

    /// Returns whether the processors were busy where the row was fastest.
    fn is_bound_by_processors(&self) -> bool {
        let rate = |row: &Row| row.metrics.get(metric::IOPS).unwrap_or(0.0);
        let fastest = self.rows.iter().max_by(|a, b| rate(a).total_cmp(&rate(b)));
        fastest.and_then(|row| row.metrics.get(names::CPU_SHARE)).is_some_and(|share| share >= BUSY)
    }

    fn wait_at(&self, place: usize) -> String {
        let wait = self.rows.get(place).and_then(|row| row.metrics.get(metric::P99_US));
        wait.map_or_else(|| "-".to_owned(), number)
    }

    fn hint(&self) -> String {
        if self.rows.iter().any(|row| row.samples.len() < 2) {
            return "; measured once, so take it as a hint".to_owned();
        }
        let differ = |row: &&Row| {
            let (low, high) = row.spread(metric::IOPS)?;
            Some((high - low) / row.metrics.get(metric::IOPS)?)
        };
        match self.rows.iter().filter_map(differ).max_by(f64::total_cmp) {
            Some(most) if most > UNSTEADY => {
                format!(
                    "; repeats differ by up to {} %, so take it as a hint",
                    number((most * 100.0).round())
                )
            }
            _ => String::new(),
        }
    }
}

/// Returns the verdicts: for the fastest row all of them, for the others their limits.
pub(crate) fn of(all: &[&Experiment]) -> Vec<String> {
    let mut curves = curves(all);
    curves.sort_by(|a, b| b.most().total_cmp(&a.most()));
    let mut sentences = Vec::new();
    for (place, curve) in curves.iter().enumerate() {
        match saturation(&curve.levels) {
            Some(found) => {
                sentences.push(limit(curve, &found));
                if place == 0 {
                    sentences.push(knees(curve, &found));
                    sentences.extend(programs(curve, &found));
                }
            }
            None => sentences.extend(no_limit(curve)),
        }
        if place == 0 {
            sentences.extend(sorts(curve));
            sentences.extend(at_a_rate(curve.name, all));
        }
    }
    sentences
}

/// Returns the closed loops by row, ascending in their readers.
fn curves<'a>(experiments: &[&'a Experiment]) -> Vec<Curve<'a>> {
    let mut closed: Vec<(f64, &Experiment)> = experiments
        .iter()
        .filter(|experiment| !is_open(experiment))
        .filter_map(|experiment| Some((experiment.number("readers")?, *experiment)))
        .collect();
    closed.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut curves: Vec<Curve<'a>> = Vec::new();
    for (readers, experiment) in closed {
        for row in &experiment.rows {
            let figures = (row.metrics.get(metric::IOPS), row.metrics.get(names::MEAN_US));
            let (Some(per_second), Some(mean_us)) = figures else { continue };
            let known = curves.iter().position(|curve| curve.name == row.name);
            let place = known.unwrap_or_else(|| {
                curves.push(Curve { name: &row.name, levels: Vec::new(), rows: Vec::new(), limit: None });
                curves.len() - 1
            });
            curves[place].levels.push(Level { readers, per_second, mean_us });
            curves[place].rows.push(row);
        }
    }
    for curve in &mut curves {
        curve.limit = experiments.first().and_then(|experiment| facts::limit(experiment, curve.most()));
    }
    curves
}

/// Returns a sentence on the number of readers from which more bring nothing.
fn limit(curve: &Curve<'_>, found: &Saturation) -> String {
    let [_, _, share] = found.knees;
    let last = curve.levels.len() - 1;
    let (at, end) = (curve.levels[share], curve.levels[last]);
    let why = match (curve.is_bound_by_processors(), &curve.limit) {
        (true, _) => "; its processors are busy then, so this is their limit and not the device's".to_owned(),
        (false, Some(limit)) => format!("; this is {limit}, and not the device's"),
        (false, None) => String::new(),
    };
    format!(
        "`{}`: from {} reader{} on each further one only adds latency: {} reads a second, 99 of 100 within {} µs there; {} \
         a second within {} µs with {}{why}{}",
        curve.name,
        number(at.readers),
        if at.readers == 1.0 { "" } else { "s" },
        number(at.per_second),
        curve.wait_at(share),
        number(end.per_second),
        curve.wait_at(last),
        number(end.readers),
        curve.hint()
    )
}

fn knees(curve: &Curve<'_>, found: &Saturation) -> String {
    let parts: Vec<String> = Definition::ALL
        .iter()
        .zip(found.knees)
        .map(|(definition, place)| {
            format!(
                "{} ({}; 99 of 100 within {} µs)",
                number(curve.levels[place].readers),
                definition.name(),
                curve.wait_at(place)
            )
        })
        .collect();
    format!("`{}`: the knee is at so many readers: {}", curve.name, parts.join(", "))
}

fn programs(curve: &Curve<'_>, found: &Saturation) -> Option<String> {
    let alone = curve.levels.first()?.per_second;
    let places = found.places?;
    let carrier = match (curve.is_bound_by_processors(), &curve.limit) {
        (true, _) => "this machine",
        (false, Some(_)) => "this limit",
        (false, None) => "this device",
    };
    // A device for two serves 1.98 times the speed of one: the rest is lost to waiting for each other.
    let rest = match (places * ROUNDED).floor() {
        one if one <= 1.0 => "one such program, and each further one takes from the others".to_owned(),
        many => format!("{} such programs at full speed, and more of them only share it", number(many)),
    };
    Some(format!(
        "a program that reads one block after the other and does nothing else gets {} a second alone; {carrier} carries {rest} \
         ({} a second in all)",
        number(alone),
        number(found.per_second)
    ))
}

fn no_limit(curve: &Curve<'_>) -> Option<String> {
    let last = curve.levels.last().filter(|_| curve.levels.len() >= 3)?;
    Some(format!(
        "`{}`: no limit was found: throughput still grows at {} readers ({} a second){}",
        curve.name,
        number(last.readers),
        number(last.per_second),
        curve.hint()
    ))
}

/// Returns a sentence when the reads of the fewest readers, which hardly wait for each other, are of
/// two sorts.
fn sorts(curve: &Curve<'_>) -> Option<String> {
    let histogram = counts_us(curve.rows.first()?.histograms.get("latency")?);
    let found = two_sorts(&histogram)?;
    let readers = curve.levels.first()?.readers;
    Some(format!(
        "`{}`: reads are of two sorts: with {} reader{} {} % of them take about {} µs and the others about {} µs",
        curve.name,
        number(readers),
        if readers == 1.0 { "" } else { "s" },
        number((found.slow_share * 1000.0).round() / 10.0),
        number(found.slow_us),
        number(found.fast_us)
    ))
}

/// Returns a sentence on the wait of callers that do not wait for each other.
fn at_a_rate(name: &str, experiments: &[&Experiment]) -> Option<String> {
    let mut loads: Vec<(f64, &Row)> = experiments
        .iter()
        .filter(|experiment| is_open(experiment))
        .filter_map(|experiment| Some((experiment.number("load_percent")?, experiment.row(name)?)))
        .filter(|(_, row)| row.metrics.get(metric::P99_US).is_some())
        .collect();
    loads.sort_by(|a, b| a.0.total_cmp(&b.0));
    let wait = |row: &Row| row.metrics.get(metric::P99_US).unwrap_or(0.0);
    let parts: Vec<String> = loads
        .iter()
        .map(|(load, row)| {
            let late = if keeps_up(row) { "" } else { " and falls behind" };
            format!("{} µs at {} %{late}", number(wait(row)), number(*load))
        })
        .collect();
    let (least, first) = loads.first()?;
    let doubled = loads.iter().find(|(_, row)| wait(row) > DOUBLED * wait(first));
    let end = match doubled {
        _ if !keeps_up(first) => String::new(),
        Some((load, _)) => {
            format!("; at {} % it is more than twice that at {} %", number(*load), number(*least))
        }
        None if loads.len() > 1 => format!("; nowhere twice that at {} %", number(*least)),
        None => String::new(),
    };
    Some(format!(
        "`{name}`, at a share of its highest rate in the open loop, completes 99 of 100 within {}{end}",
        parts.join(", ")
    ))
}

/// Returns whether an open loop reached its rate.
fn keeps_up(row: &Row) -> bool {
    let (Some(got), Some(offered)) = (row.metrics.get(metric::IOPS), row.metrics.get(names::OFFERED_PER_S))
    else {
        return true;
    };
    got >= KEPT_UP * offered && row.metrics.get(names::UNANSWERED).unwrap_or(0.0) == 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::result::{Metrics, Sample};

    fn of(experiments: &[Experiment]) -> Vec<String> {
        super::of(&experiments.iter().collect::<Vec<_>>())
    }

    fn row(name: &str, figures: &[(&str, f64)]) -> Row {
        let samples = [0.99, 1.0, 1.01].iter().map(|factor| {
            let mut metrics = Metrics::default();
            for (name, value) in figures {
                metrics.set(name, value * factor);
            }
            Sample { repeat: 0, metrics }
        });
        Row::from_samples(name, samples.collect())
    }

    /// Returns the experiments of a device with `places` places, each read in 100 us.
    fn closed(name: &str, places: f64, share: f64) -> Vec<Experiment> {
        let of_readers = |doublings| {
            let readers = f64::from(1 << doublings);
            let per_second = readers.min(places) * 10_000.0;
            let mean_us = readers / per_second * 1e6;
            let mut experiment = Experiment::new("saturate", "")
                .parameter("loop", "closed")
                .parameter("block_bytes", 4096)
                .parameter("readers", readers);
            experiment.rows = vec![row(
                name,
                &[
                    (metric::IOPS, per_second),
                    (names::MEAN_US, mean_us),
                    (metric::P99_US, 2.0 * mean_us),
                    (names::CPU_SHARE, share),
                ],
            )];
            experiment
        };
        (0..=8).map(of_readers).collect()
    }

    fn open(load: u32, offered: f64, got: f64, wait_us: f64) -> Experiment {
        let mut experiment =
            Experiment::new("saturate", "").parameter("loop", "open").parameter("load_percent", load);
        let figures = [(names::OFFERED_PER_S, offered), (metric::IOPS, got), (metric::P99_US, wait_us)];
        experiment.rows = vec![row("pread", &figures)];
        experiment
    }

    #[test]
    fn the_limit_the_knees_and_the_number_of_programs_are_reported() {
        let sentences = of(&closed("pread", 16.0, 0.3));
        let [limit, knees, programs] = &sentences[..] else { panic!("{sentences:?}") };
        assert_eq!(
            limit,
            "`pread`: from 16 readers on each further one only adds latency: 160,000 reads a second, 99 of 100 within 200 \
             µs there; 160,000 a second within 3,200 µs with 256"
        );
        for part in [
            "16 (largest power",
            "16 (farthest from the chord",
            "16 (95 % of the maximum; 99 of 100 within 200",
        ] {
            assert!(knees.contains(part), "{knees}");
        }
        assert!(
            programs.contains("10,000 a second alone; this device carries 16 such programs"),
            "{programs}"
        );
    }

    #[test]
    fn no_limit_is_claimed_where_none_was_reached() {
        let sentences = of(&closed("pread", 1e9, 0.3));
        assert_eq!(sentences.len(), 1, "{sentences:?}");
        assert!(
            sentences[0].contains("no limit was found: throughput still grows at 256 readers"),
            "{sentences:?}"
        );
        assert!(of(&closed("pread", 16.0, 0.3)[..2]).is_empty());
    }

    #[test]
    fn a_limit_of_the_processors_is_not_called_one_of_the_device() {
        let sentences = of(&closed("pread", 4.0, 0.97));
        assert!(sentences[0].contains("their limit and not the device's"), "{sentences:?}");
        assert!(sentences[2].contains("this machine carries 4 such programs"), "{sentences:?}");
        let one = of(&closed("pread", 1.0, 0.1));
        assert!(
            one[0].contains("from 1 reader on") && one[2].contains("carries one such program"),
            "{one:?}"
        );
    }

    /// Regression: for a container with `io.max riops=160000`, the sentence was "this device carries
    /// 16 such programs".
    #[test]
    fn a_limit_of_a_control_group_is_not_called_one_of_the_device() {
        let limited = |reads: u32| -> Vec<Experiment> {
            let note = |experiment: Experiment| {
                experiment
                    .parameter(facts::IO_LIMIT_BY, "/sys/fs/cgroup/a/io.max")
                    .parameter(facts::IO_LIMIT_READS, reads)
            };
            closed("pread", 16.0, 0.3).into_iter().map(note).collect()
        };
        let sentences = of(&limited(160_000));
        assert!(
            sentences[0].contains(
                "this is the limit of 160,000 reads a second that /sys/fs/cgroup/a/io.max sets, and not the device's"
            ) && sentences[2].contains("this limit carries 16 such programs"),
            "{sentences:?}"
        );
        // A limit far above the rate limits nothing.
        assert!(of(&limited(900_000))[2].contains("this device carries 16 such programs"));
    }

    #[test]
    fn repeats_that_differ_much_are_a_hint() {
        let mut all = closed("pread", 16.0, 0.3);
        all[3].rows[0].samples[0].metrics.set(metric::IOPS, 1.0);
        assert!(
            of(&all)[0].ends_with("; repeats differ by up to 101 %, so take it as a hint"),
            "{:?}",
            of(&all)
        );
        all[3].rows[0].samples.truncate(1);
        assert!(of(&all)[0].ends_with("; measured once, so take it as a hint"));
    }

    #[test]
    fn only_the_fastest_row_has_all_sentences() {
        let mut all = closed("pread", 8.0, 0.1);
        for (experiment, other) in all.iter_mut().zip(closed("forebay-tokio", 32.0, 0.1)) {
            experiment.rows.extend(other.rows);
        }
        let sentences = of(&all);
        assert_eq!(sentences.len(), 4, "{sentences:?}");
        assert!(
            sentences[0].starts_with("`forebay-tokio`: from 32")
                && sentences[3].starts_with("`pread`: from 8")
        );
    }

    #[test]
    fn an_open_loop_reports_where_latency_doubles_and_which_rows_fall_behind() {
        let mut all = closed("pread", 16.0, 0.1);
        all.extend([open(95, 152e3, 120e3, 90e3), open(10, 16e3, 16e3, 110.0), open(50, 80e3, 80e3, 150.0)]);
        let sentence = of(&all).pop().expect("several");
        assert!(
            sentence.ends_with(
                "within 110 µs at 10 %, 150 µs at 50 %, 90,000 µs at 95 % and falls behind; at 95 % it is more than twice \
                 that at 10 %"
            ),
            "{sentence}"
        );
        assert!(title(&all[0]).ends_with("readers, 1 at once") && title(&all[9]).ends_with("most, 95 %"));
        assert!(heading(&all[0]) == heading(&all[1]) && heading(&all[0]) != heading(&all[9]));
    }
}
