//! The page: one self-contained file that works offline and has every number it shows.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::PAGE_MARK;
use super::columns::{Column, groups, heading};
use super::embed::{Embedded, PAGE_BYTES_MAX, embed};
use super::{advice, marks, place, questions, sections};
use crate::doctor::machine_line;
use crate::result::Report;

/// The style of all pages.
pub const STYLE: &str = include_str!("style.css");

/// Returns the whole page, of at most `PAGE_BYTES_MAX` as far as thinning the numbers in its source
/// allows it.
pub fn page(report: &Report) -> String {
    let without = document(report, &Embedded { json: String::new(), left_out: None });
    document(report, &embed(report, PAGE_BYTES_MAX.saturating_sub(without.len() + REMARK_BYTES)))
}

/// More bytes than the remark on omitted numbers takes.
const REMARK_BYTES: usize = 1000;

fn document(report: &Report, embedded: &Embedded) -> String {
    let title = report
        .environment
        .path
        .as_ref()
        .map_or_else(|| "Forebay".to_owned(), |path| format!("Forebay on {}", path.path));
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                (PreEscaped(PAGE_MARK))
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#content" { "Skip to the summary" }
                header {
                    h1 { (title) }
                    p.soft { (machine_line(&report.environment)) ". Measured on " (place::date(report.environment.time_unix_s)) "." }
                    @if !report.environment.optimized_build {
                        p.note { "Measured with an unoptimised build: the figures are not representative." }
                    }
                }
                main id="content" tabindex="-1" {
                    (questions::of(report))
                    (advice::of(report))
                    (failed_gates(report))
                    (contents(report))
                    @if !report.verdicts.is_empty() {
                        section aria-labelledby="verdicts" {
                            h2 id="verdicts" { "Verdicts" }
                            ul.verdicts { @for verdict in &report.verdicts { li { (sentence(verdict)) } } }
                        }
                    }
                    (sections::experiments(&report.experiments))
                    (place::doctor(&report.environment))
                    (place::environment(&report.environment))
                    (legend(report))
                }
                footer {
                    p.small {
                        "Written by forebay " (report.forebay) ". All numbers as JSON are in this page's source"
                        @match embedded.left_out {
                            None => { "." }
                            Some(what) => {
                                ", as far as there is room: " (what) ". The whole is what " code { "--json" } " writes."
                            }
                        }
                    }
                }
                script type="application/json" id="forebay-result" { (PreEscaped(&embedded.json)) }
            }
        }
    }
    .into_string()
}

fn failed_gates(report: &Report) -> Markup {
    let warnings = marks::warnings(report);
    html! {
        @if !warnings.is_empty() {
            section aria-labelledby="distrust" {
                h2 id="distrust" { "Failed gates" }
                p { "These rows failed a gate; their figures are shown, and marked." }
                ul.warnings { @for warning in &warnings { li { (sentence(warning)) } } }
            }
        }
    }
}

fn contents(report: &Report) -> Markup {
    let groups = groups(&report.experiments);
    html! {
        nav aria-labelledby="contents" {
            h2 id="contents" { "On this page" }
            ul {
                @if !report.verdicts.is_empty() { li { a href="#verdicts" { "Verdicts" } } }
                @for (index, group) in groups.iter().enumerate() {
                    li { a href=(format!("#{}", sections::id(index))) { (heading(group)) } }
                }
                li { a href="#doctor" { "Features at this path" } }
                li { a href="#place" { "Environment" } }
                li { a href="#columns" { "Columns" } }
            }
        }
    }
}

fn legend(report: &Report) -> Markup {
    let mut columns: Vec<&Column> = Vec::new();
    for column in groups(&report.experiments).iter().flat_map(|group| Column::present(group)) {
        if !columns.contains(&column) {
            columns.push(column);
        }
    }
    html! {
        section aria-labelledby="columns" {
            h2 id="columns" { "Columns" }
            div.scroll tabindex="0" role="region" aria-label="Columns" {
                table {
                    caption.unseen { "Columns" }
                    thead { tr { th scope="col" { "column" } th scope="col" { "meaning" } } }
                    tbody { @for column in &columns { tr { th scope="row" { (column.heading) } td { (column.meaning) } } } }
                }
            }
        }
    }
}

/// Returns the text with the parts between backticks as code.
pub fn prose(text: &str) -> Markup {
    html! {
        @for (index, part) in text.split('`').enumerate() {
            @if index % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// Returns a sentence as a paragraph has it: its first letter in upper case and a full stop at its end.
pub fn sentence(text: &str) -> Markup {
    let text = capital(text);
    prose(&if text.ends_with(['.', ':', '?']) { text } else { format!("{text}.") })
}

/// Returns a sentence with its first letter in upper case; the name of a row stays as it is.
pub fn capital(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Check;
    use crate::environment::Environment;
    use crate::result::{Experiment, Metrics, Row, Sample, metric};

    fn report() -> Report {
        let mut metrics = Metrics::default();
        metrics.set(metric::MB_PER_S, 1000.0);
        let mut experiment = Experiment::new("scan", "Each row reads the file.");
        experiment.rows.push(Row::from_samples("buffered", vec![Sample { repeat: 0, metrics }]));
        let environment = Environment {
            checks: vec![Check::degraded("memory", "memlock", "</script><b>", "raise it")],
            ..Environment::default()
        };
        let mut report = Report::new(environment, vec![experiment]);
        report.verdicts.push("this is a verdict".to_owned());
        report
    }

    #[test]
    fn the_page_needs_nothing_else() {
        let page = page(&report());
        assert!(page.starts_with("<!DOCTYPE html>"));
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        let links = page.split("href=\"").skip(1);
        assert!(links.clone().count() > 3);
        for link in links {
            assert!(link.starts_with('#') || link.starts_with("data:,\""), "{}", &link[..20]);
        }
        assert!(page.contains("prefers-color-scheme: dark"));
        assert!(page.contains("This is a verdict."));
        assert!(page.contains("Each row reads the file."));
    }

    #[test]
    fn text_cannot_break_out_of_its_place() {
        let page = page(&report());
        assert_eq!(page.matches("</script>").count(), 1);
        assert!(!page.contains("<b>"));
    }

    #[test]
    fn names_in_backticks_are_code() {
        assert_eq!(sentence("with `a<b` it is").into_string(), "With <code>a&lt;b</code> it is.");
        assert_eq!(sentence("Done.").into_string(), "Done.");
    }

    #[test]
    fn the_page_carries_its_own_numbers_and_mark() {
        let page = page(&report());
        assert!(page.contains(PAGE_MARK));
        let start =
            page.find("id=\"forebay-result\">").expect("the element") + "id=\"forebay-result\">".len();
        let end = page.rfind("</script>").expect("its end");
        let back: Report = serde_json::from_str(&page[start..end]).expect("the schema");
        assert_eq!(back.experiments[0].rows[0].metrics.get(metric::MB_PER_S), Some(1000.0));
    }
}
