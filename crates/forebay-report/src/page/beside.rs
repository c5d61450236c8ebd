//! Results of any program, one or several side by side: their figures, what differs beyond noise, and what cannot be compared.

use maud::{Markup, html};

use super::gates;
use super::html::{listing, prose, sentence};
use super::summary::place_lines;
use crate::environment::Environment;
use crate::result::columns::{Column, once};
use crate::result::view::Role;
use crate::result::{Experiment, FAILED_GATE_MARK, Report, Row, metric};
use crate::saved::{called, diff, keys, label};
use crate::units::number;

/// Rows that are shown initially.
pub(crate) const ROWS_SHOWN: usize = 8;
/// Figures that are shown of a row.
const FIGURES_SHOWN: usize = 4;
/// The figures that most programs have, the most telling first.
const USUAL: [&str; 5] =
    [metric::MB_PER_S, metric::IOPS, metric::FILES_PER_S, metric::P50_US, metric::P99_US];

/// A row, with its figures in each of the results; `None` in one that lacks it.
#[derive(Debug)]
pub(crate) struct Line {
    pub name: String,
    pub figures: Vec<Option<String>>,
}

/// The comparison of the first result with another one, in lines.
#[derive(Debug, Default)]
pub(crate) struct Pair {
    pub heading: String,
    pub counts: Option<String>,
    pub changes: Vec<String>,
    pub excluded: Vec<String>,
}

/// Returns whether no conclusion rests on any experiment of a result, so that its first screen has the figures of its rows.
pub(crate) fn is_bare(report: &Report) -> bool {
    !report.experiments.is_empty() && report.experiments.iter().all(|one| one.view.role == Role::Other)
}

/// Returns the rows of all results, each once.
pub(crate) fn lines(results: &[&Report]) -> Vec<Line> {
    let all: Vec<&[Experiment]> = results.iter().map(|result| result.experiments.as_slice()).collect();
    let mut lines: Vec<Line> = Vec::new();
    for name in once(all.iter().copied().flatten().map(|experiment| experiment.name.as_str())) {
        let keys = keys(&all, name);
        for (place, result) in all.iter().enumerate() {
            let experiments = called(result, name).into_iter();
            for (experiment, row) in experiments.flat_map(|one| one.rows.iter().map(move |row| (one, row))) {
                let name = format!("{}.{}", label(experiment, &keys), row.name);
                let found = lines.iter().position(|line| line.name == name && line.figures[place].is_none());
                let at = found.unwrap_or_else(|| {
                    lines.push(Line { name, figures: vec![None; results.len()] });
                    lines.len() - 1
                });
                lines[at].figures[place] = Some(figures(experiment, row));
            }
        }
    }
    lines
}

/// Returns the most telling figures of a row, the first with the range of its repeats.
fn figures(experiment: &Experiment, row: &Row) -> String {
    if let Some(why) = &row.skipped {
        return format!("not measured: {why}");
    }
    let view = &experiment.view;
    let usual = USUAL.iter().filter_map(|metric| view.column(metric));
    let columns: Vec<&Column> =
        once(view.column(&view.compared).into_iter().chain(usual).chain(&view.columns));
    let known = columns.into_iter().filter(|column| column.value(row).is_some()).take(FIGURES_SHOWN);
    let parts = known.enumerate().map(|(index, column)| {
        let spread = column.spread(row).filter(|_| index == 0 && row.samples.len() > 1);
        let spread =
            spread.map_or_else(String::new, |(low, high)| format!(" ({} to {})", number(low), number(high)));
        format!("{} {}{spread}", column.heading, column.cell(row))
    });
    let repeats = match row.samples.len() {
        0 | 1 => "once".to_owned(),
        repeats => format!("{repeats} repeats"),
    };
    let mark = if gates::failed(row) || experiment.is_marked(row) { FAILED_GATE_MARK } else { "" };
    format!("{}, {repeats}{mark}", parts.collect::<Vec<_>>().join(", "))
}

/// Returns the comparisons of the first result with each other one.
pub(crate) fn pairs(results: &[(String, Report)]) -> Vec<Pair> {
    let Some(((name, first), others)) = results.split_first() else { return Vec::new() };
    let compare = |(other, second): &(String, Report)| {
        let heading = format!("{name} -> {other}");
        match diff::compare(first, second) {
            Ok(found) => Pair {
                heading,
                counts: Some(found.counts()),
                changes: found
                    .rows
                    .iter()
                    .flat_map(|row| {
                        row.lines().into_iter().map(move |line| format!("`{}`: {line}", row.name()))
                    })
                    .collect(),
                excluded: found.excluded(),
            },
            Err(failure) => {
                let excluded = failure.to_string().lines().map(|line| line.trim().to_owned()).collect();
                Pair { heading, excluded, ..Pair::default() }
            }
        }
    };
    others.iter().map(compare).collect()
}

/// Returns one document with the experiments of all results, each with the name of its result.
pub(crate) fn merged(results: &[(String, Report)]) -> Report {
    let mut merged = Report::new(Environment { optimized_build: true, ..Environment::default() }, Vec::new());
    for (name, report) in results {
        let mut report = report.clone();
        report.verdicts.clear();
        report.left_out =
            report.left_out.into_iter().map(|(what, why)| (format!("{name}: {what}"), why)).collect();
        for experiment in &mut report.experiments {
            let [title, heading] =
                [experiment.title(), experiment.heading()].map(|text| format!("{name}: {text}"));
            experiment.titled(title, heading);
            experiment.parameters.insert("result".to_owned(), name.as_str().into());
        }
        merged.add(report);
    }
    merged
}

/// Returns the table of the rows of results, each result with a column.
fn table(heads: &[&str], results: &[&Report]) -> Markup {
    let mut shown = lines(results);
    let folded = shown.split_off(ROWS_SHOWN.min(shown.len()));
    let heads: Vec<&str> = std::iter::once("row").chain(heads.iter().copied()).collect();
    let cells = |title: &str, lines: &[Line]| {
        let rows = lines.iter().map(|line| {
            let figures = line.figures.iter().map(|text| html! { (text.as_deref().unwrap_or("-")) });
            std::iter::once(html! { code { (line.name) } }).chain(figures).collect::<Vec<Markup>>()
        });
        listing("", title, &heads, rows)
    };
    html! {
        section.beside aria-labelledby="figures" {
            h2 id="figures" { "Figures" }
            (cells("Figures", &shown))
            @if !folded.is_empty() {
                details { summary { (folded.len()) " more rows" } (cells("Figures of the other rows", &folded)) }
            }
        }
    }
}

/// Returns the first screen of a result on whose experiments no conclusion rests.
pub(crate) fn of(report: &Report) -> Markup {
    table(&["figures"], &[report])
}

pub(crate) fn first_screen(results: &[(String, Report)]) -> Markup {
    let (names, reports): (Vec<&str>, Vec<&Report>) =
        results.iter().map(|(name, report)| (name.as_str(), report)).unzip();
    let pairs = pairs(results);
    let places = results
        .iter()
        .map(|(name, report)| vec![html! { (name) }, html! { (place_lines(report).join("; ")) }]);
    html! {
        (table(&names, &reports))
        section.beside aria-labelledby="differences" {
            h2 id="differences" { "What differs beyond noise" }
            @for pair in &pairs {
                h3 { (pair.heading) }
                ul { @for line in &pair.changes { li { (prose(line)) } } }
                p { (sentence(pair.counts.as_deref().unwrap_or("Nothing can be compared"))) }
            }
        }
        section.beside aria-labelledby="excluded" {
            h2 id="excluded" { "What cannot be compared" }
            @for pair in &pairs {
                h3 { (pair.heading) }
                ul { @for line in &pair.excluded { li { (sentence(line)) } } }
                @if pair.excluded.is_empty() { p { "Everything could be compared." } }
            }
        }
        section.beside aria-labelledby="results" {
            h2 id="results" { "Results" }
            (listing("", "Results", &["result", "measured by, and where"], places))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{html as page, summary};
    use super::*;
    use crate::saved::convert;

    fn fixture(name: &str) -> (String, String) {
        let path = format!("{}/tests/fixtures/foreign/{name}", env!("CARGO_MANIFEST_DIR"));
        (name.to_owned(), std::fs::read_to_string(path).expect("the fixture is there"))
    }

    fn converted(names: &[&str]) -> Report {
        let texts: Vec<_> = names.iter().map(|name| fixture(name)).collect();
        convert::of_others(&texts).expect("it has figures").expect("the program is known")
    }

    /// Returns the part of a page before its sections.
    fn first(page: &str) -> &str {
        page.split_once("<nav").expect("the list of sections").0
    }

    /// Regression: the page of a converted result had five unanswered questions, and lacked its figures.
    #[test]
    fn the_first_screen_of_any_program_has_its_own_figures() {
        for (name, words) in [
            (
                "fio-3.33-jobs-1.json",
                &["job=point", "].read", "MB/s", "IOPS", "p50 µs", "p99 µs", "once"][..],
            ),
            ("fio-3.33-client.json", &["read", "IOPS", "p99 µs"]),
            ("ior-3.3.0.json", &["ior.write", "MB/s", "2 repeats"]),
            ("ior-4.0.0.out", &["ior.read", "MB/s", "2 repeats"]),
            ("mdtest-4.0.0.out", &["mdtest.file-creation", "files/s", "3 repeats"]),
            ("elbencho-3.1-9.json", &["last_done", "MB/s", "IOPS"]),
        ] {
            let report = converted(&[name]);
            let (page, text) = (page::page(&report), summary::brief(&report, "a.html"));
            for word in words {
                assert!(first(&page).contains(word), "{name}: {word}: {}", first(&page));
                assert!(text.contains(word), "{name}: {word}: {text}");
            }
            assert!(!page.contains("Five questions") && !text.contains("Unknown"), "{name}: {text}");
            assert!(text.lines().count() <= 40, "{text}");
        }
    }

    #[test]
    fn results_beside_each_other_show_figures_differences_and_what_is_not_compared() {
        let before = converted(&["fio-3.33-jobs-1.json", "fio-3.33-jobs-2.json", "fio-3.33-jobs-1.json"]);
        let mut after = before.clone();
        let faster =
            after.experiments.iter_mut().flat_map(|one| &mut one.rows).flat_map(|row| &mut row.samples);
        for sample in faster {
            sample.metrics.0.values_mut().for_each(|value| *value *= 100.0);
        }
        for experiment in &mut after.experiments {
            let rows = experiment.rows.iter();
            experiment.rows = rows.map(|row| Row::from_samples(&row.name, row.samples.clone())).collect();
        }
        let other = converted(&["ior-4.0.0.out"]);
        let results: Vec<(String, Report)> = [("a.json", before), ("b.json", after), ("ior.out", other)]
            .map(|(name, one)| (name.to_owned(), one))
            .into();
        let (page, text) = (page::beside(&results), summary::beside(&results, "page.html"));
        let screen = first(&page);
        for words in
            ["a.json beside b.json beside ior.out", "a.json -&gt; b.json", "100 times more", "ior.write"]
        {
            assert!(screen.contains(words), "{words}: {screen}");
        }
        for words in
            ["a.json: IOPS", "a.json -> b.json", "100 times more", "no experiment is in both", "page.html"]
        {
            assert!(text.replace("MB/s", "IOPS").contains(words), "{words}: {text}");
        }
        // The document in the page has all experiments, each with its result.
        assert!(page.contains("\"result\":\"ior.out\""), "{page}");
    }

    #[test]
    fn results_without_repeats_have_no_difference() {
        let [one, two] = ["fio-3.33-jobs-1.json", "fio-3.33-jobs-2.json"].map(|name| converted(&[name]));
        let mut faster = two;
        for row in faster.experiments.iter_mut().flat_map(|one| &mut one.rows) {
            row.metrics
                .0
                .values_mut()
                .chain(row.samples[0].metrics.0.values_mut())
                .for_each(|value| *value *= 9.0);
        }
        let results = [("a".to_owned(), one), ("b".to_owned(), faster)];
        let pairs = pairs(&results);
        assert_eq!((pairs.len(), pairs[0].changes.len()), (1, 0), "{pairs:?}");
        assert!(pairs[0].excluded.iter().any(|line| line.starts_with("without repeats: ")), "{pairs:?}");
    }
}
