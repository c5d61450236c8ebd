//! A result as text for a terminal: the summary of a report, and the tables of experiments.

use std::fmt::Write as _;

use super::{advice, beside, gates, headline, html as page, questions};
use crate::check::Verdict;
use crate::findings::machine_line;
use crate::result::columns::{Column, groups, heading, once};
use crate::result::view::Role;
use crate::result::{Experiment, FAILED_GATE_MARK, Report, Row};
use crate::units::{date, number};

/// Maximum width of a line.
pub const WIDTH: usize = 100;
/// Maximum number of lines of the summary.
const LINES_MAX: usize = 40;
/// Maximum lines of a sentence in the summary.
const SENTENCE_LINES: usize = 2;
/// Indentation of sentences below their question or change.
const INDENT: usize = 10;

/// Returns the summary of a report: headline figures, verdicts, changes, doubts, and the path of its page, in at most 40 lines.
pub fn brief(report: &Report, page: &str) -> String {
    let mut lines = place_lines(report);
    lines.push(String::new());
    let is_bare = beside::is_bare(report);
    lines.extend(if is_bare { figures(&[""], &[report]) } else { conclusions(report) });
    let advice = advice::advice(report);
    if !is_bare || !advice.is_empty() {
        lines.extend([String::new(), "What to change first".to_owned()]);
    }
    for advice in advice.iter().take(advice::SHOWN) {
        let text = short(&format!("{}: {}", advice.what, advice.gain));
        lines.extend(block(&format!("  {}", advice.factor()), INDENT, text));
    }
    if advice.is_empty() && !is_bare {
        lines.push(format!("  {}", advice::NONE));
    }
    let doubts = gates::doubts(report);
    if !doubts.is_empty() {
        // Excluding its heading and the place of the page.
        let room = LINES_MAX.saturating_sub(lines.len() + 4);
        lines.extend([String::new(), "What to distrust".to_owned()]);
        lines.extend(
            gates::doubt_lines(&doubts, room).iter().map(|line| clipped(&format!("  {line}"), WIDTH)),
        );
    }
    lines.extend([String::new(), format!("The page: {page} (--verbose prints its tables)")]);
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Returns the summary of several results side by side, with the path of their page.
pub fn beside(results: &[(String, Report)], page: &str) -> String {
    let (names, reports): (Vec<&str>, Vec<&Report>) =
        results.iter().map(|(name, report)| (name.as_str(), report)).unzip();
    let mut lines = Vec::new();
    for (name, report) in names.iter().zip(&reports) {
        lines.extend(broken(&format!("{name}: {}", place_lines(report).join("; ")), WIDTH));
    }
    lines.push(String::new());
    lines.extend(figures(&names, &reports));
    for pair in beside::pairs(results) {
        lines.extend([String::new(), pair.heading]);
        lines.extend(pair.changes.iter().chain(&pair.excluded).map(|line| format!("  {line}")));
        lines.extend(pair.counts.map(|counts| format!("  {counts}")));
    }
    lines.extend([String::new(), format!("The page: {page}")]);
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Returns the figures of the first rows of results; an empty name is left out.
fn figures(names: &[&str], results: &[&Report]) -> Vec<String> {
    let all = beside::lines(results);
    let mut lines = Vec::new();
    for line in all.iter().take(beside::ROWS_SHOWN) {
        lines.push(clipped(&line.name, WIDTH));
        for (name, figures) in names.iter().zip(&line.figures) {
            let of = if name.is_empty() { String::new() } else { format!("{name}: ") };
            lines.push(clipped(&format!("    {of}{}", figures.as_deref().unwrap_or("-")), WIDTH));
        }
    }
    let more = all.len().saturating_sub(beside::ROWS_SHOWN);
    lines.extend((more > 0).then(|| format!("{more} more rows are on the page")));
    lines
}

/// Returns the headline figures, and the questions with their verdicts.
fn conclusions(report: &Report) -> Vec<String> {
    let mut lines = vec![format!("{:<24}{:<36}{}", "", "read", "write")];
    for (load, figures) in headline::cards(report) {
        let [first, second] = figures
            .each_ref()
            .map(|(_, figure)| figure.as_ref().map_or_else(|| format!("{:>13}", "-"), cell));
        match figures {
            // A fact for each line: the sync, and the widest spread with its row.
            [("sync", _), (_, spread)] => {
                lines.push(clipped(&format!("{:<24}{:<36}{first}", "Sync", ""), WIDTH));
                let differ = |spread: headline::Figure| {
                    format!("Repeats differ by {} (`{}`)", spread.value, spread.row)
                };
                lines.extend(spread.map(differ));
            }
            _ => lines.push(clipped(&format!("{load:<24}{first:<36}{second}"), WIDTH)),
        }
    }
    lines.push(String::new());
    for key in questions::key_questions(report) {
        let figure = key.figure.map_or_else(String::new, |figure| format!(" ({figure})"));
        lines.push(format!("{:<INDENT$}{}{figure}", key.verdict.label(), key.question));
        let command = key.command.map_or_else(String::new, |command| format!(" {command}"));
        lines.extend(block("", INDENT, short(&format!("{}{command}", key.sentence))));
    }
    lines
}

/// Returns the storage and the machine, each in a line or two.
pub(crate) fn place_lines(report: &Report) -> Vec<String> {
    let [path, device] = page::storage(&report.environment).unwrap_or_default();
    let date = Some(date(report.environment.time_unix_s)).filter(|_| report.environment.time_unix_s > 0);
    let known: Vec<String> = [path, device].into_iter().chain(date).filter(|part| !part.is_empty()).collect();
    let first = format!("forebay {}: {}", report.forebay, known.join(", "));
    let lines = [first, machine_line(&report.environment)].map(|text| broken(&text, WIDTH));
    lines.into_iter().flatten().collect()
}

fn cell(figure: &headline::Figure) -> String {
    let detail = figure.detail.as_deref().unwrap_or("");
    let mark = if figure.doubt.is_some() { FAILED_GATE_MARK } else { "" };
    format!("{:>13}  {detail}{mark}", figure.value)
}

/// Returns lines below each other behind a sign.
fn block(sign: &str, indent: usize, lines: Vec<String>) -> impl Iterator<Item = String> {
    let signs = std::iter::once(sign).chain(std::iter::repeat(""));
    lines.into_iter().zip(signs).map(move |(line, sign)| format!("{sign:<indent$}{line}"))
}

/// Breaks a sentence below its question or change into lines.
fn short(text: &str) -> Vec<String> {
    broken(text, WIDTH - INDENT)
}

/// Breaks a text into at most [`SENTENCE_LINES`] lines.
fn broken(text: &str, width: usize) -> Vec<String> {
    let mut lines = wrapped(text, width);
    if lines.len() > SENTENCE_LINES {
        let rest = lines.split_off(SENTENCE_LINES - 1).join(" ");
        lines.push(clipped(&rest, width));
    }
    lines.iter().map(|line| clipped(line, width)).collect()
}

/// Breaks a text between words; a word that is wider than a line has its own line.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Cuts a line that is too wide.
fn clipped(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let kept: String = line.chars().take(width - 2).collect();
    format!("{} \u{2026}", kept.trim_end())
}

/// Returns the place of the measurement, the doctor's findings, and the tables of all experiments with their verdicts.
pub fn render(report: &Report, verbose: bool) -> String {
    let mut text = place_lines(report).join("\n") + "\n";
    let wanting = report.environment.checks.iter().filter(|check| check.verdict != Verdict::Ok);
    let names: Vec<&str> = wanting.map(|check| check.name.as_str()).collect();
    if !names.is_empty() {
        let line = format!("degraded or unavailable here: {} (see `forebay doctor`)", names.join(", "));
        wrapped(&line, WIDTH).iter().for_each(|line| text.push_str(&format!("{line}\n")));
    }
    text + &tables(report, verbose)
}

/// Returns the tables of all experiments and the verdicts. Unless `verbose`, tables omit columns that do not fit.
pub fn tables(report: &Report, verbose: bool) -> String {
    let mut text = String::new();
    for group in groups(&report.experiments) {
        text.push('\n');
        table(&mut text, &group, verbose);
    }
    if !report.verdicts.is_empty() {
        text.push_str("\nVerdicts\n");
        report.verdicts.iter().for_each(|verdict| listed(&mut text, "  * ", verdict, verbose));
    }
    text
}

/// Writes a line of a list, broken where it is too wide.
fn listed(text: &mut String, sign: &str, line: &str, verbose: bool) {
    let indent = sign.chars().count();
    let lines = if verbose { vec![line.to_owned()] } else { wrapped(line, WIDTH - indent) };
    block(sign, indent, lines).for_each(|line| *text += &format!("{line}\n"));
}

/// Writes one table for experiments that belong together: one row for each way in each of them.
fn table(text: &mut String, group: &[&Experiment], verbose: bool) {
    let _ = writeln!(text, "{}", heading(group));
    let mut columns = Column::present(group);
    let compared = Column::compared(group, &columns);
    let mut left_out = Vec::new();
    let (mut grid, mut widths) = grid(group, &columns, compared);
    while !verbose && columns.len() > 1 && widths.iter().map(|width| width + 2).sum::<usize>() > WIDTH {
        // The most important columns are first; the compared one stays.
        let Some(index) = columns.iter().rposition(|column| Some(*column) != compared) else { break };
        left_out.insert(0, columns.remove(index).heading.to_string());
        (grid, widths) = self::grid(group, &columns, compared);
    }
    for cells in &grid {
        let mut line = format!("  {:<width$}", cells[0], width = widths[0]);
        for (cell, width) in cells.iter().zip(&widths).skip(1) {
            let _ = write!(line, "  {cell:>width$}");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let mut lines = Vec::new();
    if !left_out.is_empty() {
        let (count, names) = (left_out.len(), left_out.join(", "));
        lines.push(format!("{count} columns left out for their width: {names}; --verbose shows all"));
    }
    if let Some(column) = compared.filter(|column| Some(column) != columns.first()) {
        lines.push(format!("spread: of {}", column.heading));
    }
    for experiment in group {
        let skipped = experiment.rows.iter().filter_map(|row| Some((&row.name, row.skipped.as_ref()?)));
        lines.extend(skipped.map(|(name, why)| format!("{name}: not measured: {why}")));
        if experiment.view.role == Role::Baseline {
            let jobs = experiment.rows.iter().filter_map(|row| row.fio.as_deref());
            lines.extend(jobs.map(|job| format!("fio: {}", job.trim_start_matches("fio "))));
        }
        lines.extend(experiment.notes.iter().map(|note| format!("note: {note}")));
    }
    lines.extend(gates::lines(group));
    once(lines).iter().for_each(|line| listed(text, "  ", line, verbose));
}

/// Returns the cells of a table with its head, and the widths of its columns.
fn grid(
    group: &[&Experiment],
    columns: &[&Column],
    compared: Option<&Column>,
) -> (Vec<Vec<String>>, Vec<usize>) {
    let axis = group.first().filter(|_| group.len() > 1).map(|first| &*first.view.axis.parameter);
    let headings = columns.iter().map(|column| column.heading.to_string());
    let ends = ["spread", "cache"].map(str::to_owned);
    let start = std::iter::once("row".to_owned()).chain(axis.map(str::to_owned));
    let mut grid: Vec<Vec<String>> = vec![start.chain(headings).chain(ends).collect()];
    for experiment in group {
        for row in experiment.rows.iter().filter(|row| row.skipped.is_none()) {
            let place = axis.map(|axis| experiment.number(axis).map_or_else(String::new, number));
            let start = std::iter::once(gates::marked_name(row)).chain(place);
            let spread = compared.map_or_else(String::new, |column| spread(column, row));
            let ends = [spread, row.cache.map_or("", |cache| cache.label()).to_owned()];
            grid.push(start.chain(columns.iter().map(|column| column.cell(row))).chain(ends).collect());
        }
    }
    let width = |index: usize| grid.iter().map(|cells| cells[index].chars().count()).max().unwrap_or(0);
    let widths = (0..grid[0].len()).map(width).collect();
    (grid, widths)
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
    use super::super::facts::tests::{random, report, row};
    use super::*;
    use crate::environment::Environment;
    use crate::result::columns::SHARED;
    use crate::result::{CacheState, Condition, metric};

    #[test]
    fn a_table_has_headings_spread_and_the_state_of_the_cache() {
        let repeats = [1000.0, 1200.0, 1100.0].map(|value| [(metric::MB_PER_S, value)]);
        let row = Row::of_repeats("buffered", repeats).cache(CacheState::Warm);
        let experiment = Experiment::new("scan", "").with_rows([row, Row::skipped("uncached", "refused")]);
        let text = render(&Report::new(Environment::default(), vec![experiment]), false);
        assert!(text.contains("MB/s"));
        assert!(text.contains("1,100"));
        assert!(text.contains("1,000-1,200 (3)"));
        assert!(text.contains("warm"));
        assert!(text.contains("uncached: not measured: refused"));
    }

    fn long(text: &str) -> Vec<&str> {
        text.lines().filter(|line| line.chars().count() > WIDTH).collect()
    }

    /// Returns whether a summary keeps its limits.
    fn check(text: &str) {
        assert!(text.lines().count() <= 40, "{} lines:\n{text}", text.lines().count());
        assert_eq!(long(text), [""; 0], "too wide");
        for part in ["4 KiB random, depth 32", "What to change first", "The page: a.html"] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert_eq!(
            text.lines().filter(|line| line.ends_with('?') || line.contains("? (")).count(),
            5,
            "{text}"
        );
    }

    #[test]
    fn a_summary_keeps_its_limits_with_everything_and_with_nothing() {
        let mut experiments = random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)]);
        experiments.push(headline::tests::baseline());
        let whole = report(experiments.clone());
        let text = brief(&whole, "a.html");
        check(&text);
        assert!(text.contains("12,400 IOPS  p99 120 µs") && text.contains("3,120 MB/s"), "{text}");
        check(&brief(&Report::new(Environment::default(), Vec::new()), "a.html"));
        // Everything failed, in rows with long names on a machine with a long name.
        for (index, row) in experiments.iter_mut().flat_map(|one| &mut one.rows).enumerate() {
            for gate in ["device_bytes", "generator", "other_io", "steal", "throttling"] {
                row.conditions.push(Condition::at_most(gate, 0.9, 0.5));
            }
            row.degraded = (index % 2 == 0).then(|| "real-time priority was refused".to_owned());
        }
        let mut failed = report(experiments);
        failed.environment.cpu_model = Some("A Processor of Many Words ".repeat(6));
        failed.environment.virtual_machine = true;
        let text = brief(&failed, "a.html");
        check(&text);
        assert!(text.contains("(!)") && text.contains("more on the page"), "{text}");
    }

    #[test]
    fn columns_without_room_are_left_out_and_named() {
        let mut experiment = Experiment::new("scan", "");
        let metrics: Vec<(&str, f64)> = SHARED.iter().map(|column| (column.metric, 123_456.0)).collect();
        experiment.rows = vec![row("direct", &metrics)];
        experiment.notes = vec!["a note of many words ".repeat(9)];
        let report = report(vec![experiment]);
        let text = render(&report, false);
        assert_eq!(long(&text), [""; 0]);
        assert!(
            text.contains("columns left out for their width") && text.contains("--verbose shows all"),
            "{text}"
        );
        assert!(text.contains("MB/s") && !text.contains("left out for their width: MB/s"), "{text}");
        let all = render(&report, true);
        assert!(all.contains("wakes/lookup") && !all.contains("left out") && !long(&all).is_empty(), "{all}");
    }
}
