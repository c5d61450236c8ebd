//! A cell: all rows under the same parameters, sampled in turn.

use anyhow::Result;

use crate::interrupt;
use crate::sample::Sample;
use crate::statistics::a_a_spread;

/// Failures of a row after which it is not tried again.
const FAILURES_MAX: usize = 2;

/// The samples of a cell.
#[derive(Debug)]
pub(crate) struct Cell {
    rows: Vec<RowSamples>,
}

/// The samples of a row by repeat, and its errors.
#[derive(Debug)]
pub(crate) struct RowSamples {
    pub(crate) name: String,
    pub(crate) samples: Vec<Option<Sample>>,
    pub(crate) failure: Option<String>,
}

impl Cell {
    /// Samples every row once per repeat; the order rotates by one row from repeat to repeat, so that no row
    /// always follows the same neighbour. A row that fails is noted and the others continue.
    ///
    /// # Errors
    /// Only when interrupted.
    pub(crate) fn run(
        label: &str,
        rows: &[&str],
        repeats: usize,
        mut measure: impl FnMut(&str) -> Result<Sample>,
    ) -> Result<Self> {
        let empty =
            |row: &&str| RowSamples { name: (*row).to_owned(), samples: vec![None; repeats], failure: None };
        let mut all: Vec<_> = rows.iter().map(empty).collect();
        let mut failures = vec![0; rows.len()];
        for repeat in 0..repeats {
            eprintln!("{label}: repeat {} of {repeats}", repeat + 1);
            for step in 0..rows.len() {
                let at = (step + repeat) % rows.len();
                if failures[at] == FAILURES_MAX {
                    continue;
                }
                match measure(rows[at]) {
                    Ok(sample) => all[at].samples[repeat] = Some(sample),
                    Err(error) => {
                        interrupt::check()?;
                        failures[at] += 1;
                        eprintln!("{label}: {} failed: {error:#}", rows[at]);
                        all[at].failure = Some(format!("{error:#}"));
                    }
                }
            }
        }
        Ok(Self { rows: all })
    }

    /// Returns a cell of rows that were sampled in several turns.
    pub(crate) fn of(rows: Vec<RowSamples>) -> Self {
        Self { rows }
    }

    /// Returns the rows with their samples.
    pub(crate) fn into_rows(self) -> Vec<RowSamples> {
        self.rows
    }

    /// Returns the rows, for the report.
    pub(crate) fn rows(&self) -> &[RowSamples] {
        &self.rows
    }

    /// Returns whether all these rows are part of this cell.
    pub(crate) fn has(&self, rows: &[&str]) -> bool {
        rows.iter().all(|row| self.rows.iter().any(|other| other.name == *row))
    }

    /// Returns a metric of a row by repeat.
    pub(crate) fn values(&self, row: &str, metric: &str) -> Vec<Option<f64>> {
        let row = self.rows.iter().find(|other| other.name == row);
        row.map_or_else(Vec::new, |row| {
            row.samples.iter().map(|sample| sample.as_ref().and_then(|sample| sample.get(metric))).collect()
        })
    }

    /// Returns the ratios of one row's metric to another's, paired by repeat.
    pub(crate) fn ratios(&self, row: &str, to: &str, metric: &str) -> Vec<f64> {
        pair(&self.values(row, metric), &self.values(to, metric), |a, b| a / b)
    }

    /// Returns the ratios of a row's metric to given values, paired by repeat.
    pub(crate) fn ratios_to(&self, row: &str, metric: &str, to: &[Option<f64>]) -> Vec<f64> {
        pair(&self.values(row, metric), to, |a, b| a / b)
    }

    /// Returns the differences of one row's metric and another's, paired by repeat.
    pub(crate) fn differences(&self, row: &str, to: &str, metric: &str) -> Vec<f64> {
        pair(&self.values(row, metric), &self.values(to, metric), |a, b| a - b)
    }

    /// Returns the A-A spread of a metric: `again` is the row `first` under another name.
    pub(crate) fn spread(&self, first: &str, again: &str, metric: &str) -> f64 {
        a_a_spread(&self.ratios(again, first, metric))
    }
}

fn pair(a: &[Option<f64>], b: &[Option<f64>], combine: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    a.iter()
        .zip(b)
        .filter_map(|(a, b)| Some(combine((*a)?, (*b)?)))
        .filter(|value| value.is_finite())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_rotates_failures_do_not_stop_the_rest_and_pairs_need_both() {
        let mut order = String::new();
        let cell = Cell::run("test", &["a", "b", "c"], 3, |row| {
            order.push_str(row);
            anyhow::ensure!(row != "b", "no such thing");
            let mut sample = Sample::default();
            sample.set("iops", if row == "a" { 10.0 } else { 20.0 });
            Ok(sample)
        })
        .unwrap();
        assert_eq!(order, "abcbcaca");
        assert_eq!(cell.ratios("a", "c", "iops"), [0.5, 0.5, 0.5]);
        assert!(cell.ratios("b", "c", "iops").is_empty());
        assert_eq!(cell.rows()[1].failure.as_deref(), Some("no such thing"));
    }
}
