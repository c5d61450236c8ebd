//! The result as text for a terminal.

use std::fmt::Write as _;

use super::columns::{Column, groups, heading};
use super::conditions;
use crate::check::Verdict;
use crate::doctor::machine_line;
use crate::result::{Experiment, Report, Row};
use crate::units::number;

/// Returns the tables of all experiments, the doctor's findings, and the verdicts.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "forebay {} on {}", report.forebay, machine_line(&report.environment));
    if let Some(path) = &report.environment.path {
        let devices: Vec<&str> = path.layers.iter().map(|layer| layer.name.as_str()).collect();
        let _ = writeln!(
            text,
            "{} ({}) on {}, {}",
            path.path,
            path.kind,
            path.file_system.as_deref().unwrap_or("no file system"),
            if devices.is_empty() { "no block device".to_owned() } else { devices.join(" on ") }
        );
    }
    let wanting: Vec<_> =
        report.environment.checks.iter().filter(|check| check.verdict != Verdict::Ok).collect();
    if !wanting.is_empty() {
        let names: Vec<&str> = wanting.iter().map(|check| check.name.as_str()).collect();
        let _ = writeln!(text, "degraded or unavailable here: {} (see `forebay doctor`)", names.join(", "));
    }
    text.push_str(&tables(&report.experiments));
    if !report.verdicts.is_empty() {
        text.push_str("\nVerdicts\n");
        for verdict in &report.verdicts {
            let _ = writeln!(text, "  * {verdict}");
        }
    }
    text
}

/// Returns the tables alone.
pub fn tables(experiments: &[Experiment]) -> String {
    let mut text = String::new();
    for group in groups(experiments) {
        text.push('\n');
        table(&mut text, &group);
    }
    text
}

/// Writes one table for experiments that belong together: one row for each way in each of them.
fn table(text: &mut String, group: &[&Experiment]) {
    let axis = group.first().filter(|_| group.len() > 1).map(|first| &*first.view.axis.parameter);
    let _ = writeln!(text, "{}", heading(group));
    let columns = Column::present(group);
    let mut grid = vec![vec!["row".to_owned()]];
    grid[0].extend(axis.map(str::to_owned));
    grid[0].extend(columns.iter().map(|column| column.heading.to_string()));
    let compared = Column::compared(group, &columns);
    grid[0].push(match compared {
        Some(column) if Some(column) != columns.first().copied() => format!("{} spread", column.heading),
        _ => "spread".to_owned(),
    });
    grid[0].push("cache".to_owned());
    for experiment in group {
        for row in experiment.rows.iter().filter(|row| row.skipped.is_none()) {
            let mut cells = vec![conditions::marked_name(row)];
            cells.extend(axis.map(|axis| experiment.number(axis).map_or_else(String::new, number)));
            cells.extend(columns.iter().map(|column| column.cell(row)));
            cells.push(compared.map_or_else(String::new, |column| spread(column, row)));
            cells.push(row.cache.map_or("", |cache| cache.label()).to_owned());
            grid.push(cells);
        }
    }
    let widths: Vec<usize> = (0..grid[0].len())
        .map(|index| grid.iter().map(|cells| cells[index].chars().count()).max().unwrap_or(0))
        .collect();
    for cells in &grid {
        let mut line = format!("  {:<width$}", cells[0], width = widths[0]);
        for (cell, width) in cells.iter().zip(&widths).skip(1) {
            let _ = write!(line, "  {cell:>width$}");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let mut reported = Vec::new();
    for experiment in group {
        for row in &experiment.rows {
            if let Some(why) = &row.skipped {
                reported.push(format!("{}: not measured: {why}", row.name));
            }
            reported.extend(row.gates.iter().map(|gate| conditions::check(row, gate)));
        }
        reported.extend(experiment.notes.iter().map(|note| format!("note: {note}")));
    }
    reported.extend(conditions::lines(group));
    let mut seen = Vec::new();
    for line in reported {
        if !seen.contains(&line) {
            let _ = writeln!(text, "  {line}");
            seen.push(line);
        }
    }
}

/// Describes the spread of the column over the repeats, and their number.
fn spread(column: &Column, row: &Row) -> String {
    match column.spread(row) {
        Some((low, high)) if row.samples.len() > 1 => {
            format!("{}-{} ({})", number(low), number(high), row.samples.len())
        }
        _ => "once".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;
    use crate::result::{CacheState, Metrics, Sample, metric};

    #[test]
    fn a_table_has_headings_spread_and_the_state_of_the_cache() {
        let samples = [1000.0, 1200.0, 1100.0]
            .iter()
            .enumerate()
            .map(|(index, value)| {
                let mut metrics = Metrics::default();
                metrics.set(metric::MB_PER_S, *value);
                Sample { repeat: index as u32, metrics }
            })
            .collect();
        let mut experiment = Experiment::new("scan", "");
        experiment.rows.push(Row::from_samples("buffered", samples).cache(CacheState::Warm));
        experiment.rows.push(Row::skipped("uncached", "refused"));
        let text = render(&Report::new(Environment::default(), vec![experiment]));
        assert!(text.contains("MB/s"));
        assert!(text.contains("1,100"));
        assert!(text.contains("1,000-1,200 (3)"));
        assert!(text.contains("warm"));
        assert!(text.contains("uncached: not measured: refused"));
    }
}
