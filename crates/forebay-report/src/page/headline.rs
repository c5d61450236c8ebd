//! The headline figures: rates and latencies by which devices are compared, from the baseline experiment or, where it
//! was not run, from the nearest other rows.

use maud::{Markup, html};

use super::facts::{self, FoundRow};
use super::gates;
use crate::result::view::Role;
use crate::result::{Report, Row, metric};
use crate::units::{largest, number, percent, time};

/// One figure with its unit; the latency of a rate, or the tail of a latency; the distance of the largest repeat from the
/// smallest, as a share of the median; the reason why the figure is marked; and the name of its row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    pub value: String,
    pub detail: Option<String>,
    pub spread: Option<f64>,
    pub doubt: Option<String>,
    pub row: String,
}

/// Figures of one load, each with its name; `None` where it was not measured.
pub(crate) type Card = (&'static str, [(&'static str, Option<Figure>); 2]);

/// Names of the loads, and of the rows of a baseline experiment with their reads and writes.
const CARDS: [(&str, [&str; 2]); 3] = [
    ("Sequential", ["sequential-read", "sequential-write"]),
    ("4 KiB random, depth 1", ["random-read-1", "random-write-1"]),
    ("4 KiB random, depth 32", ["random-read-32", "random-write-32"]),
];

/// Returns the figures in the order in which they are shown.
pub(crate) fn cards(report: &Report) -> Vec<Card> {
    let rate = |name: &str| of_rate(found(report, name)?, name.starts_with("sequential"));
    let cards = CARDS.map(|(label, [read, write])| (label, [("read", rate(read)), ("write", rate(write))]));
    let sync = found(report, "sync").and_then(of_latency);
    let all = cards.iter().flat_map(|(_, figures)| figures).filter_map(|(_, figure)| figure.as_ref());
    let spreads = all.chain(&sync).filter_map(|figure| Some((figure.spread?, &figure.row)));
    let spread = largest(spreads, |(spread, _)| *spread).map(|(spread, row)| Figure {
        value: format!("up to {}", percent(spread)),
        detail: Some(row.clone()),
        spread: None,
        doubt: None,
        row: row.clone(),
    });
    cards.into_iter().chain([("Sync and spread", [("sync", sync), ("spread", spread)])]).collect()
}

/// Returns the row for a name of the baseline experiment, or the closest row.
fn found<'a>(report: &'a Report, name: &str) -> Option<&'a Row> {
    let mut baseline = report.experiments.iter().filter(|one| one.view.role == Role::Baseline);
    if let Some(row) = baseline.find_map(|one| one.row(name)).filter(|row| row.skipped.is_none()) {
        return Some(row);
    }
    let best = |found: Vec<FoundRow<'a>>| largest(found, |found| found.value).map(|found| found.row);
    let at = |depth: f64| {
        [Role::Random, Role::Saturation].into_iter().find_map(|role| {
            let mut all = facts::of_device(report, role, metric::IOPS);
            all.retain(|found| facts::is_at(found.experiment, depth));
            best(all)
        })
    };
    match name {
        "sequential-read" => best(facts::of_device(report, Role::Sequential, metric::MB_PER_S)),
        "random-read-1" => at(1.0),
        "random-read-32" => at(32.0),
        _ => None,
    }
}

/// Returns the row of the sequential read that the cards show, so that sentences have no other figure of it.
pub(crate) fn sequential_read(report: &Report) -> Option<(&Row, f64)> {
    let row = found(report, CARDS[0].1[0])?;
    Some((row, row.get(metric::MB_PER_S)?))
}

fn of_rate(row: &Row, in_bytes: bool) -> Option<Figure> {
    let (name, unit) = if in_bytes { (metric::MB_PER_S, "MB/s") } else { (metric::IOPS, "IOPS") };
    let value = format!("{} {unit}", number(row.get(name)?.round()));
    Some(figure(row, name, value, !in_bytes))
}

fn of_latency(row: &Row) -> Option<Figure> {
    Some(figure(row, metric::P50_US, format!("p50 {}", time(row.get(metric::P50_US)?)), true))
}

fn figure(row: &Row, compared: &str, value: String, has_tail: bool) -> Figure {
    let p99 = row.get(metric::P99_US).filter(|_| has_tail);
    let spread = facts::spread(row, compared).filter(|share| share.is_finite());
    let wide = spread.filter(|share| *share > facts::WIDE);
    let wide = wide.map(|share| format!("repeats differ by {}", percent(share)));
    Figure {
        value,
        detail: p99.map(|us| format!("p99 {}", time(us))),
        spread,
        doubt: gates::first_failed(row)
            .or_else(|| row.degraded.clone())
            .or(wide)
            .or_else(|| gates::uncounted(row)),
        row: row.name.clone(),
    }
}

/// Returns the figures as cards for the first screen.
pub(crate) fn of(report: &Report) -> Markup {
    html! {
        div.cards {
            @for (load, figures) in cards(report) {
                div.card {
                    h2 { (load) }
                    dl {
                        @for (name, figure) in &figures {
                            div.doubt[figure.as_ref().is_some_and(|figure| figure.doubt.is_some())] {
                                dt { (name) }
                                @if let Some(figure) = figure {
                                    dd.value { (figure.value) }
                                    dd.tail { @if let Some(detail) = &figure.detail { (detail) } }
                                    @if let Some(why) = &figure.doubt { dd.mark-failed { (why) } }
                                } @else { dd.value title="not measured" { "-" } dd.tail {} }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::facts::tests::{random, report, row};
    use super::*;
    use crate::result::columns::SHARED;
    use crate::result::view::View;
    use crate::result::{Condition, DEVICE_BYTES, Experiment};

    /// Returns a baseline experiment with a row for each headline figure.
    pub(crate) fn baseline() -> Experiment {
        let random = |name: &str, iops: f64, p99: f64| {
            row(name, &[(metric::IOPS, iops), (metric::P50_US, p99 / 2.0), (metric::P99_US, p99)])
        };
        Experiment::new("baseline", "").shown(View::of(Role::Baseline, SHARED)).with_rows([
            row("sequential-read", &[(metric::MB_PER_S, 3120.4)]),
            row("sequential-write", &[(metric::MB_PER_S, 1540.0)]),
            random("random-read-1", 12_400.0, 120.0),
            random("random-read-32", 301_000.0, 240.0),
            random("random-write-1", 45_000.0, 40.0),
            random("random-write-32", 210_000.0, 900.0),
            random("sync", 800.0, 3400.0),
        ])
    }

    fn values(report: &Report) -> Vec<Option<String>> {
        let all = cards(report);
        all.into_iter().flat_map(|(_, figures)| figures).map(|(_, figure)| Some(figure?.value)).collect()
    }

    #[test]
    fn the_baseline_has_every_figure() {
        let mut experiment = baseline();
        experiment.rows[5].conditions.push(Condition::at_most("steal", 0.3, 0.02));
        let report = report(vec![experiment]);
        let expected = [
            "3,120 MB/s",
            "1,540 MB/s",
            "12,400 IOPS",
            "45,000 IOPS",
            "301,000 IOPS",
            "210,000 IOPS",
            "p50 1.70 ms",
        ];
        assert_eq!(values(&report)[..7], expected.map(|value| Some(value.to_owned())));
        assert_eq!(values(&report)[7].as_deref(), Some("up to 2 %"));
        let marked: Vec<String> = cards(&report)
            .into_iter()
            .flat_map(|(_, figures)| figures)
            .filter_map(|(_, figure)| figure.filter(|figure| figure.doubt.is_some()).map(|figure| figure.row))
            .collect();
        assert_eq!(marked, ["random-write-32"]);
    }

    #[test]
    fn other_experiments_stand_in_for_the_baseline() {
        let report = report(random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)]));
        let values = values(&report);
        assert_eq!(values[2].as_deref(), Some("10,000 IOPS"));
        assert_eq!(values[4].as_deref(), Some("80,000 IOPS"));
        assert_eq!(values.iter().filter(|value| value.is_none()).count(), 5);
    }

    /// Reads of FUSE and of a network may be served from memory, and no counter of this machine shows it.
    #[test]
    fn figures_that_no_device_counted_are_marked() {
        let mut experiment = baseline();
        experiment.rows[0].conditions = vec![Condition::unknown(DEVICE_BYTES, "there is no block device")];
        experiment.rows[1].conditions = vec![Condition::unknown(DEVICE_BYTES, "does not apply: memory may")];
        let [(_, [(_, Some(read)), (_, Some(write))]), ..] = &cards(&report(vec![experiment]))[..] else {
            panic!("figures")
        };
        assert_eq!(read.doubt.as_deref(), Some("no device here counted its bytes"));
        assert_eq!(write.doubt, None);
    }

    #[test]
    fn repeats_that_lie_far_apart_are_marked() {
        let mut experiment = baseline();
        experiment.rows[0].samples[0].metrics.set(metric::MB_PER_S, 1000.0);
        let [(_, [(_, Some(read)), _]), ..] = &cards(&report(vec![experiment]))[..] else {
            panic!("figures")
        };
        assert_eq!(read.doubt.as_deref(), Some("repeats differ by 69 %"));
    }
}
