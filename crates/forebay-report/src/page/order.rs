//! The order of rows in words; differences within the noise between repeats count as none.

use super::noise::{Difference, difference};
use crate::result::Row;
use crate::units::number;

/// Direction in which values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Small ones.
    Less,
    /// Large ones.
    More,
}

/// Returns the rows that have `metric`, the best first: `1. 'a' 2,400 and 'b' 2,390; 2. 'c' 1,000`. Rows that
/// differ from the first of a place by no more than noise share it. `None` with fewer than two rows.
pub fn order(rows: &[&Row], metric: &str, better: Better) -> Option<String> {
    let mut known: Vec<(&Row, f64)> =
        rows.iter().filter_map(|row| Some((*row, row.metrics.get(metric)?))).collect();
    if known.len() < 2 {
        return None;
    }
    known.sort_by(|a, b| match better {
        Better::Less => a.1.total_cmp(&b.1),
        Better::More => b.1.total_cmp(&a.1),
    });
    let mut places: Vec<Vec<(&Row, f64)>> = Vec::new();
    for (row, value) in known {
        match places.last_mut() {
            Some(place) if is_equal(place[0].0, row, metric) => place.push((row, value)),
            _ => places.push(vec![(row, value)]),
        }
    }
    let ranked = places.iter().enumerate().map(|(index, place)| {
        let rows: Vec<String> =
            place.iter().map(|(row, value)| format!("`{}` {}", row.name, number(*value))).collect();
        format!("{}. {}", index + 1, rows.join(" and "))
    });
    Some(ranked.collect::<Vec<_>>().join("; "))
}

fn is_equal(one: &Row, other: &Row, metric: &str) -> bool {
    difference(one, other, metric) == Some(Difference::Equal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Metrics, Sample};

    fn row(name: &str, values: &[f64]) -> Row {
        let samples = values.iter().map(|value| {
            let mut metrics = Metrics::default();
            metrics.set("x", *value);
            Sample { repeat: 0, metrics }
        });
        Row::from_samples(name, samples.collect())
    }

    #[test]
    fn rows_within_noise_share_a_place() {
        let rows = [
            row("slow", &[100.0, 101.0, 99.0]),
            row("fast", &[200.0, 210.0, 190.0]),
            row("near", &[198.0, 205.0, 188.0]),
            Row::skipped("none", "no"),
        ];
        let rows: Vec<&Row> = rows.iter().collect();
        let ranked = |better| order(&rows, "x", better);
        assert_eq!(ranked(Better::More).as_deref(), Some("1. `fast` 200 and `near` 198; 2. `slow` 100"));
        assert_eq!(ranked(Better::Less).as_deref(), Some("1. `slow` 100; 2. `near` 198 and `fast` 200"));
        assert_eq!(order(&rows[..1], "x", Better::More), None);
        assert_eq!(order(&rows, "y", Better::More), None);
    }
}
