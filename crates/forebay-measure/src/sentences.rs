//! Phrases of sentences, and gates of `--check`, that several experiments have.

use forebay_report::page::noise::{Difference, difference};
use forebay_report::result::{Experiment, Gate, Row};
use forebay_report::units::number;

/// Returns whether each operation had its own file, as in published benchmarks.
pub(crate) fn is_published(table: &Experiment) -> bool {
    table.parameters.get("as_published").is_some_and(|value| value == true)
}

/// Returns the row, when it was measured and got its requested settings.
pub(crate) fn measured<'a>(table: &'a Experiment, name: &str) -> Option<&'a Row> {
    table.row(name).filter(|row| row.skipped.is_none() && row.degraded.is_none())
}

/// Returns those of the rows called `names` that have this metric, with it, the smallest first.
pub(crate) fn ranked<'a>(table: &'a Experiment, names: &[&str], metric: &str) -> Vec<(&'a Row, f64)> {
    let rows = names.iter().filter_map(|name| measured(table, name));
    let mut ranked: Vec<_> = rows.filter_map(|row| Some((row, row.metrics.get(metric)?))).collect();
    ranked.sort_by(|a, b| a.1.total_cmp(&b.1));
    ranked
}

/// Compares a figure of `row` with that of `other`: `9.4 times {more}`, or `{equal}` within noise.
pub(crate) fn compared(row: &Row, other: &Row, metric: &str, words: [&str; 3]) -> Option<String> {
    let [more, less, equal] = words;
    Some(match difference(row, other, metric)? {
        Difference::More(times) => format!("{} times {more}", number(times)),
        Difference::Less(times) => format!("{} times {less}", number(times)),
        Difference::Equal => equal.to_owned(),
    })
}

/// [`Gate::at_least`] or [`Gate::at_most`].
pub(crate) type Bound = fn(&str, &str, f64, f64) -> Gate;

/// A limit on a figure of a row: name and metric of the gate, the figure, and the bound.
pub(crate) type Limit<'a> = (&'a str, &'a str, Option<f64>, Bound, f64);

/// Fills the gates of a row, where the figures are known.
pub(crate) fn hold<'a>(row: &mut Row, limits: impl IntoIterator<Item = Limit<'a>>) {
    let known = limits
        .into_iter()
        .filter_map(|(name, metric, value, gate, bound)| Some(gate(name, metric, value?, bound)));
    row.gates.extend(known);
}
