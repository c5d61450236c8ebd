//! Loads at which reading through the page cache is faster than reading directly.

use super::titles::span;
use forebay_report::page::noise::{Difference, difference};
use forebay_report::result::{Experiment, Row, metric};
use forebay_report::units::number;

/// Ways of direct reading; the page cache is compared with the best of them.
const DIRECT: [&str; 4] = ["direct", "direct-polled", "direct-tokio", "direct-pread"];

/// Describes at which depths of a span the page cache is faster, equal or slower. `None` where it was
/// not measured.
pub(super) fn wins(group: &[&Experiment]) -> Option<String> {
    let mut depths: Vec<(f64, Difference)> = group
        .iter()
        .filter_map(|experiment| Some((experiment.number("depth")?, of_depth(experiment)?)))
        .collect();
    depths.sort_by(|a, b| a.0.total_cmp(&b.0));
    let of = |wanted: fn(&Difference) -> bool| -> Vec<f64> {
        depths.iter().filter(|(_, found)| wanted(found)).map(|(depth, _)| *depth).collect()
    };
    let wins = of(|found| matches!(found, Difference::More(_)));
    let equal = of(|found| matches!(found, Difference::Equal));
    let loses = of(|found| matches!(found, Difference::Less(_)));
    let largest = |more: bool| {
        let times = depths.iter().filter_map(|(_, found)| match (found, more) {
            (Difference::More(times), true) | (Difference::Less(times), false) => Some(*times),
            _ => None,
        });
        times.fold(1.0, f64::max)
    };
    let mut parts = Vec::new();
    if !wins.is_empty() {
        parts.push(format!("wins {}, by up to {} times", at(&wins), number(largest(true))));
    }
    if !equal.is_empty() {
        parts.push(format!("is no different {}", at(&equal)));
    }
    if !loses.is_empty() {
        parts.push(format!("loses {}, by up to {} times", at(&loses), number(largest(false))));
    }
    (!parts.is_empty()).then(|| {
        format!(
            "over {} the page cache (`buffered`) {} against the fastest way of reading directly",
            span(group[0]),
            parts.join(", ")
        )
    })
}

/// Share of the maximum from which a scan counts as reaching it.
const ENOUGH: f64 = 0.95;

/// Describes how many large requests in flight a scan needs, and at which numbers the page cache is faster.
pub(super) fn scans(swept: &[&Experiment], buffered: Option<&Row>) -> Option<String> {
    const ROW: &str = "direct-large";
    let mut rows: Vec<(f64, &Row)> = swept
        .iter()
        .filter_map(|experiment| Some((experiment.number("depth")?, experiment.row(ROW)?)))
        .filter(|(_, row)| row.metrics.get(metric::MB_PER_S).is_some())
        .collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let rate = |row: &Row| row.metrics.get(metric::MB_PER_S).unwrap_or(0.0);
    let most = rows.iter().map(|(_, row)| rate(row)).fold(0.0, f64::max);
    let (depth, row) = rows.iter().find(|(_, row)| rate(row) >= ENOUGH * most)?;
    let wins: Vec<f64> = rows
        .iter()
        .filter(|(_, row)| {
            let other = buffered.and_then(|buffered| difference(buffered, row, metric::MB_PER_S));
            matches!(other, Some(Difference::More(_)))
        })
        .map(|(depth, _)| *depth)
        .collect();
    let cache = match (buffered.and_then(|row| row.metrics.get(metric::MB_PER_S)), wins.as_slice()) {
        (None, _) => String::new(),
        (Some(rate), []) => format!("; the page cache (`buffered`, {}) wins at none of them", number(rate)),
        (Some(rate), wins) => format!("; the page cache (`buffered`, {}) wins {}", number(rate), at(wins)),
    };
    Some(format!(
        "a scan with reads of 512 KiB needs {} in flight for all there is ({} MB/s, and {} at most){cache}",
        number(*depth),
        number(rate(row)),
        number(most)
    ))
}

fn of_depth(experiment: &Experiment) -> Option<Difference> {
    let rate = |row: &Row| row.metrics.get(metric::IOPS).unwrap_or(0.0);
    let direct =
        DIRECT.iter().filter_map(|name| experiment.row(name)).max_by(|a, b| rate(a).total_cmp(&rate(b)))?;
    difference(experiment.row("buffered")?, direct, metric::IOPS)
}

fn at(depths: &[f64]) -> String {
    let all: Vec<String> = depths.iter().map(|depth| number(*depth)).collect();
    format!("at depth{} {}", if all.len() == 1 { "" } else { "s" }, all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::result::{Metrics, Sample};

    fn experiment(depth: u32, buffered: f64, direct: f64) -> Experiment {
        let row = |name: &str, rate: f64| {
            let samples = [0.98, 1.0, 1.02].iter().map(|factor| {
                let mut metrics = Metrics::default();
                metrics.set(metric::IOPS, rate * factor);
                Sample { repeat: 0, metrics }
            });
            Row::from_samples(name, samples.collect())
        };
        let mut experiment = Experiment::new("random", "").parameter("depth", depth);
        experiment.rows = vec![row("buffered", buffered), row("direct", 1.0), row("direct-pread", direct)];
        experiment
    }

    #[test]
    fn a_sweep_of_scans_reports_its_depth_and_where_the_cache_wins() {
        let of = |depth: Option<u32>, name: &str, rate: f64| {
            let samples = [0.99, 1.0, 1.01].iter().map(|factor| {
                let mut metrics = Metrics::default();
                metrics.set(metric::MB_PER_S, rate * factor);
                Sample { repeat: 0, metrics }
            });
            let mut experiment = Experiment::new("scan", "");
            if let Some(depth) = depth {
                experiment = experiment.parameter("depth", depth);
            }
            experiment.rows = vec![Row::from_samples(name, samples.collect())];
            experiment
        };
        let mut all = vec![of(None, "buffered", 1000.0)];
        all.extend(
            [(4, 2900.0), (1, 700.0), (2, 1400.0), (8, 3000.0)]
                .map(|(depth, rate)| of(Some(depth), "direct-large", rate)),
        );
        let reported =
            |all: &[Experiment]| crate::verdicts::reads::scans(&all.iter().collect::<Vec<_>>()).pop();
        assert_eq!(
            reported(&all).as_deref(),
            Some(
                "a scan with reads of 512 KiB needs 4 in flight for all there is (2,900 MB/s, and 3,000 at most); the page \
                 cache (`buffered`, 1,000) wins at depth 1"
            )
        );
        assert!(reported(&all[1..]).is_some_and(|sentence| !sentence.contains("page cache")));
        assert_eq!(scans(&[], None), None);
    }

    #[test]
    fn depths_are_grouped_by_the_gain_of_the_cache() {
        let all = [
            experiment(32, 50e3, 100e3),
            experiment(1, 30e3, 10e3),
            experiment(8, 80e3, 80.5e3),
            experiment(2, 40e3, 20e3),
        ];
        let reported = wins(&all.iter().collect::<Vec<_>>());
        assert_eq!(
            reported.as_deref(),
            Some(
                "over the file the page cache (`buffered`) wins at depths 1, 2, by up to 3 times, is no different at depth 8, \
                 loses at depth 32, by up to 2 times against the fastest way of reading directly"
            )
        );
        let mut without = experiment(1, 1.0, 1.0);
        without.rows.remove(0);
        assert_eq!(wins(&[&without]), None);
    }
}
