//! Where reading through the page cache wins over reading directly.

use super::noise::{Difference, difference};
use super::reads::span;
use crate::doctor::units::number;
use crate::result::{Experiment, Row, metric};

/// Ways of reading directly; the best of them is what the page cache is held against.
const DIRECT: [&str; 3] = ["direct", "direct-tokio", "direct-pread"];

/// At which depths of a span the page cache is faster, equal or slower. `None` where it was not measured.
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
    use crate::result::{Metrics, Sample};

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
    fn depths_are_told_by_what_the_cache_is_worth_there() {
        let all = [
            experiment(32, 50e3, 100e3),
            experiment(1, 30e3, 10e3),
            experiment(8, 80e3, 80.5e3),
            experiment(2, 40e3, 20e3),
        ];
        let told = wins(&all.iter().collect::<Vec<_>>());
        assert_eq!(
            told.as_deref(),
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
