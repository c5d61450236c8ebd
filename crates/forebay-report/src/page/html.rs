//! The page: one self-contained file that works offline and has every number it shows.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::PAGE_MARK;
use super::columns::{Column, groups, heading, once};
use super::embed::{Embedded, PAGE_BYTES_MAX, embed};
use super::{advice, charts, gates, headline, place, questions, sections, svg};
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
    let (path, device) = match place::storage(&report.environment) {
        Some([path, device]) => (path, Some(device)),
        None => ("Forebay".to_owned(), None),
    };
    let title = if device.is_some() { format!("Forebay on {path}") } else { path.clone() };
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
                a.skip href="#content" { "Skip to the figures" }
                header {
                    h1 { (path) @if let Some(device) = &device { " " span.soft { (device) } } }
                    p.soft {
                        (machine_line(&report.environment))
                        @if report.environment.time_unix_s > 0 { " \u{b7} " (place::date(report.environment.time_unix_s)) }
                    }
                }
                main id="content" tabindex="-1" {
                    div.first {
                        (headline::of(report))
                        (overview(report))
                        (questions::of(report))
                        (advice::of(report))
                    }
                    (gates::distrust(report))
                    (contents(report))
                    (sections::experiments(&report.experiments))
                    @if !report.verdicts.is_empty() {
                        (place::fold("verdicts", "All verdicts", html! {
                            ul.verdicts { @for verdict in &report.verdicts { li { (sentence(verdict)) } } }
                        }))
                    }
                    (place::doctor(&report.environment))
                    (place::environment(&report.environment))
                    (legend(report))
                }
                footer {
                    p.small {
                        "Written by forebay " (report.forebay) ". All numbers as JSON are in this page's source"
                        @match &embedded.left_out {
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

/// Returns the chart of the first screen: rate and latency over the load, side by side.
fn overview(report: &Report) -> Markup {
    charts::overview(report).map_or_else(|| html! {}, |pair| svg::pair(&pair))
}

fn contents(report: &Report) -> Markup {
    html! {
        nav aria-label="Experiments" {
            ul {
                @for (index, group) in groups(&report.experiments).iter().enumerate() {
                    li { a href=(format!("#{}", sections::id(index))) { (heading(group)) } }
                }
            }
        }
    }
}

fn legend(report: &Report) -> Markup {
    let groups = groups(&report.experiments);
    let columns = once(groups.iter().flat_map(|group| Column::present(group)));
    let rows = columns.iter().map(|column| vec![html! { (column.heading) }, html! { (column.meaning) }]);
    place::fold("columns", "Columns", listing("", "Columns", &["column", "meaning"], rows))
}

/// Returns a table that can be scrolled with the keyboard; the first cell of a row is its heading.
pub(crate) fn listing(
    class: &str,
    title: &str,
    heads: &[&str],
    rows: impl Iterator<Item = Vec<Markup>>,
) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(title) {
            table class=[(!class.is_empty()).then_some(class)] {
                caption.unseen { (title) }
                thead { tr { @for head in heads { th scope="col" { (head) } } } }
                tbody {
                    @for row in rows {
                        tr { @for (index, cell) in row.iter().enumerate() { @if index == 0 { th scope="row" { (cell) } } @else { td { (cell) } } } }
                    }
                }
            }
        }
    }
}

/// Maximum words of a sentence that is shown without being asked for.
const WORDS_MAX: usize = 20;

/// Returns a sentence in at most 20 words: its first clauses, or its first words. The whole one is folded.
pub(crate) fn brief(sentence: &str) -> String {
    let words: Vec<&str> = sentence.split_whitespace().collect();
    if words.len() <= WORDS_MAX {
        return sentence.to_owned();
    }
    let end =
        words[..WORDS_MAX].iter().rposition(|word| word.ends_with(';')).filter(|end| *end >= WORDS_MAX / 3);
    let end = end.map_or(WORDS_MAX, |end| end + 1);
    format!("{} \u{2026}", words[..end].join(" ").trim_end_matches([';', ',', ':']))
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
    prose(&if text.ends_with(['.', ':', '?', '\u{2026}']) { text } else { format!("{text}.") })
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
        assert!(links.clone().count() >= 2);
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
