//! The page: one self-contained file that works offline and has every number it shows.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use super::{PAGE_BYTES_MAX, PAGE_MARK, advice, beside, charts, gates, headline, questions, svg};
use crate::environment::Environment;
use crate::findings::machine_line;
use crate::result::columns::{Column, groups, heading, once, row_names};
use crate::result::{Condition, Experiment, Report, Series, view};
use crate::units::{bytes, date, escaped, number, printable};

/// The style of all pages.
pub const STYLE: &str = include_str!("style.css");
/// More bytes than the remark on omitted numbers needs.
const REMARK_BYTES: usize = 1000;
/// Maximum values of a series after thinning.
const SERIES_VALUES: usize = 600;
/// Maximum words of a sentence that is shown without being asked for.
const WORDS_MAX: usize = 20;

/// The heading of a page, and its first screen.
#[derive(Debug)]
struct Top {
    title: String,
    device: Option<String>,
    first: Markup,
}

/// Returns the whole page. The numbers in its source are thinned to keep it within `PAGE_BYTES_MAX` where possible.
pub fn page(report: &Report) -> String {
    let (title, device) = match storage(&report.environment) {
        Some([path, device]) => (path, Some(device)),
        None => ("Forebay".to_owned(), None),
    };
    let is_bare = beside::is_bare(report);
    let first = html! {
        @if is_bare { (beside::of(report)) } @else {
            (headline::of(report))
            @if let Some(pair) = charts::overview(report) { (svg::pair(&pair)) }
            (questions::of(report))
        }
        @if !is_bare || !advice::advice(report).is_empty() { (advice::of(report)) }
    };
    fitting(report, &Top { title, device, first })
}

/// Returns the page of several results side by side, each with the name of its file.
pub fn beside(results: &[(String, Report)]) -> String {
    let names: Vec<&str> = results.iter().map(|(name, _)| name.as_str()).collect();
    let title = printable(&names.join(" beside ")).into_owned();
    fitting(&beside::merged(results), &Top { title, device: None, first: beside::first_screen(results) })
}

fn fitting(report: &Report, top: &Top) -> String {
    let without = document(report, top, &EmbeddedJson { json: String::new(), left_out: None });
    document(report, top, &embed(report, PAGE_BYTES_MAX.saturating_sub(without.len() + REMARK_BYTES)))
}

/// Returns the head of a page with this title.
pub fn head(title: Markup) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            (PreEscaped(PAGE_MARK))
            meta name="viewport" content="width=device-width, initial-scale=1";
            title { (title) }
            style { (PreEscaped(STYLE)) }
        }
    }
}

/// Returns the text of a page, control characters of names escaped.
pub fn text(page: Markup) -> String {
    escaped(&page.into_string(), &['\n', '\t']).into_owned()
}

/// Returns JSON for the source of a page: "<" could end its element early, and control characters are not allowed there. In JSON
/// the escapes stand for the same characters.
pub fn source(json: &str) -> String {
    let mut source = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '<' | '\u{7f}'..='\u{9f}' => source.push_str(&format!("\\u{:04x}", u32::from(letter))),
            _ => source.push(letter),
        }
    }
    source
}

fn document(report: &Report, Top { title, device, first }: &Top, embedded: &EmbeddedJson) -> String {
    let groups = groups(&report.experiments);
    let heads_a_section = |verdict: &str| groups.iter().any(|group| group[0].sentence == verdict);
    let further: Vec<&String> = report.verdicts.iter().filter(|verdict| !heads_a_section(verdict)).collect();
    text(html! {
        (DOCTYPE)
        html lang="en" {
            (head(html! { @if device.is_some() { "Forebay on " } (title) }))
            body {
                a.skip href="#content" { "Skip to the figures" }
                header {
                    h1 { (title) @if let Some(device) = device { " " span.soft { (device) } } }
                    p.soft {
                        (machine_line(&report.environment))
                        @if report.environment.time_unix_s > 0 { " \u{b7} " (date(report.environment.time_unix_s)) }
                    }
                }
                main id="content" tabindex="-1" {
                    div.first { (first) }
                    (gates::distrust(report))
                    nav aria-label="Experiments" {
                        ul { @for (index, group) in groups.iter().enumerate() { li { a href=(format!("#{}", id(index))) { (heading(group)) } } } }
                    }
                    div.sections { @for (index, group) in groups.iter().enumerate() { (section(index, group)) } }
                    @if !further.is_empty() {
                        (fold("verdicts", "Further verdicts", html! {
                            ul.verdicts { @for verdict in further { li { (sentence(verdict)) } } }
                        }))
                    }
                    (features(&report.environment))
                    (place(&report.environment))
                    (legend(&groups))
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
    })
}

/// Returns the id of a section on the page.
pub(crate) fn id(index: usize) -> String {
    format!("experiment-{}", index + 1)
}

/// Returns the section of experiments that belong together: a sentence and the main chart, and all else folded.
fn section(index: usize, group: &[&Experiment]) -> Markup {
    let (id, charts, whole) = (id(index), charts::of(group), group[0].sentence.as_str());
    let short = brief(whole);
    html! {
        section aria-labelledby=(id) {
            h2 id=(id) { (heading(group)) }
            @if !whole.is_empty() { p.sentence { (sentence(&short)) } }
            @if let Some(main) = charts.first() { (svg::figure(main, &format!("{id}-chart-1"))) }
            details {
                summary { (folded(group, charts.len())) span.unseen { ": " (heading(group)) } }
                @if short != whole { p { (sentence(whole)) } }
                (table(group))
                @if charts.len() > 1 {
                    div.charts {
                        @for (index, chart) in charts.iter().enumerate().skip(1) { (svg::figure(chart, &format!("{id}-chart-{}", index + 1))) }
                    }
                }
                h3 { "Method" }
                (about(group))
                h3 { "Gates" }
                (gates::table(group))
            }
        }
    }
}

/// Describes the folded part of a section, with the rows that are doubtful.
fn folded(group: &[&Experiment], charts: usize) -> String {
    let rows = || group.iter().flat_map(|experiment| &experiment.rows);
    let failed = match rows().filter(|row| gates::failed(row)).count() {
        0 => String::new(),
        failed => format!(" ({failed} failed a gate)"),
    };
    let charts = match charts {
        0 | 1 => String::new(),
        2 => ", another chart".to_owned(),
        charts => format!(", {} more charts", charts - 1),
    };
    format!("Numbers of {} rows{failed}{charts}, method, gates", rows().count())
}

/// Returns the method behind the numbers, the notes on them, and the description of each row.
fn about(group: &[&Experiment]) -> Markup {
    let rows =
        || group.iter().flat_map(|experiment| &experiment.rows).filter(|row| !row.description.is_empty());
    let described = row_names(group).into_iter().filter_map(|name| rows().find(|row| row.name == name));
    let (method, described) = (&group[0].method, described.collect::<Vec<_>>());
    html! {
        @if !method.is_empty() { p { (prose(method)) } }
        @for note in once(group.iter().flat_map(|experiment| &experiment.notes)) { p.note { (sentence(note)) } }
        @if !described.is_empty() {
            ul { @for row in described { li { code { (row.name) } ": " (prose(&row.description)) } } }
        }
    }
}

/// Returns one table for experiments that belong together: one row for each place of the axis and each way.
fn table(group: &[&Experiment]) -> Markup {
    let columns = Column::present(group);
    let axis = view::axis(group);
    let title = heading(group);
    html! {
        div.scroll tabindex="0" role="region" aria-label=(format!("Table: {title}")) {
            table.figures {
                caption.unseen { (title) ": medians, with the smallest and the largest repeat below" }
                thead {
                    tr {
                        @if let Some(axis) = &axis { th.number scope="col" { (axis.label) } }
                        th scope="col" { "row" }
                        @for column in &columns { th.number scope="col" title=(column.meaning) { (column.heading) } }
                        th scope="col" { "page cache" }
                        th.number scope="col" { "repeats" }
                    }
                }
                tbody {
                    @for (experiment, row) in group.iter().flat_map(|one| one.rows.iter().map(move |row| (one, row))) {
                        tr class=[gates::failed(row).then_some("failed")] {
                            @if let Some(axis) = &axis {
                                td { (experiment.number(&axis.parameter).map_or_else(String::new, number)) }
                            }
                            th scope="row" { (row.name) (gates::marks(row)) }
                            @if let Some(why) = &row.skipped {
                                td.text colspan=(columns.len() + 2) { "not measured: " (why) }
                            } @else {
                                @for column in &columns {
                                    td {
                                        (column.cell(row))
                                        @if let Some((low, high)) = column.spread(row).filter(|_| row.samples.len() > 1) {
                                            div.small { (number(low)) " - " (number(high)) }
                                        }
                                    }
                                }
                                td.text { (row.cache.map_or("", |cache| cache.label())) }
                                td { (row.samples.len()) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn legend(groups: &[Vec<&Experiment>]) -> Markup {
    let columns = once(groups.iter().flat_map(|group| Column::present(group)));
    let rows = columns.iter().map(|column| vec![html! { (column.heading) }, html! { (column.meaning) }]);
    fold("columns", "Columns", listing("", "Columns", &["column", "meaning"], rows))
}

/// Returns the measured path, behind the machine's name where it is known, and its storage: `node7:/srv/data`, `ext4 on vda
/// (256 GiB)`.
pub(crate) fn storage(environment: &Environment) -> Option<[String; 2]> {
    let path = environment.path.as_ref()?;
    let device = path.device.as_ref().map(|device| {
        let facts: Vec<String> = device.model.iter().cloned().chain(device.size_bytes.map(bytes)).collect();
        let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join(", ")) };
        format!("{}{facts}", path.layers.first().map_or(&device.name, |layer| &layer.name))
    });
    let device = device.unwrap_or_else(|| "no block device".to_owned());
    let file_system = path.file_system.as_ref().map_or_else(String::new, |name| format!("{name} on "));
    let host = environment.host.as_ref().map_or_else(String::new, |host| format!("{host}:"));
    Some([printable(&format!("{host}{}", path.path)).into_owned(), format!("{file_system}{device}")])
}

/// Returns the findings of `doctor`.
fn features(environment: &Environment) -> Markup {
    let rows = environment.checks.iter().map(|check| {
        let verdict = check.verdict.label();
        vec![
            html! { (check.group) " / " (check.name) },
            html! { span class=(verdict) { (verdict) } },
            html! { (check.why) },
            html! { (check.remedy.as_deref().unwrap_or("")) },
        ]
    });
    let heads = ["mechanism", "verdict", "observation", "remedy"];
    let table = listing("", "Features, each tested by calling it", &heads, rows);
    fold("doctor", "Features at this path", table)
}

/// Returns a section whose contents are folded.
fn fold(id: &str, title: &str, contents: Markup) -> Markup {
    html! { section.fold aria-labelledby=(id) { details { summary { h2 id=(id) { (title) } } (contents) } } }
}

/// Returns everything that is known about machine, file system and devices, as it is in the document.
fn place(environment: &Environment) -> Markup {
    let time = Some(environment.time_unix_s).filter(|time| *time > 0);
    let mut facts = Vec::from_iter(time.map(|time| ("measured at".to_owned(), date(time))));
    let known = Environment { checks: Vec::new(), ..environment.clone() };
    let mut known = serde_json::to_value(known).unwrap_or_default();
    // Results of other programs, and of `forebay wait`, do not contain these figures.
    known.as_object_mut().into_iter().for_each(|known| known.retain(|_, value| *value != 0));
    collect("", &known, &mut facts);
    let rows = facts.iter().map(|(name, value)| vec![html! { (name) }, html! { (value) }]);
    fold("place", "Environment", listing("", "Environment", &["fact", "value"], rows))
}

/// Adds a value under its name in words, or each of its parts.
fn collect(name: &str, value: &Value, facts: &mut Vec<(String, String)>) {
    let mut inner = |key: &str, part: &Value| {
        collect(format!("{name} {}", key.replace('_', " ")).trim(), part, facts);
    };
    let text = match value {
        Value::Object(parts) => return parts.iter().for_each(|(key, part)| inner(key, part)),
        Value::Array(parts) => {
            return (1..).zip(parts).for_each(|(number, part)| inner(&format!("{number}"), part));
        }
        Value::Null => return,
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    facts.push(match (name.strip_suffix(" bytes"), value.as_u64()) {
        (Some(name), Some(size)) => (name.to_owned(), bytes(size)),
        _ => (name.to_owned(), text),
    });
}

/// The numbers in the source of a page, thinned where the page would become too large, and a description of the data left
/// out, where any are.
#[derive(Debug)]
struct EmbeddedJson {
    json: String,
    left_out: Option<String>,
}

/// Leaves something out of an experiment; its name.
type Step = (fn(&mut Experiment), &'static str);

/// The data that are left out one after the other until the rest fits.
const STEPS: [Step; 5] = [
    (|one| one.rows.iter_mut().for_each(|row| shorten_series(&mut row.series)), ""),
    (|one| one.rows.iter_mut().for_each(|row| row.histograms.clear()), "histograms"),
    (
        |one| one.rows.iter_mut().for_each(|row| row.conditions.retain(Condition::failed)),
        "gates that did not fail",
    ),
    (|one| one.rows.iter_mut().for_each(|row| row.samples.clear()), "single repeats"),
    (leave_out_texts, "methods, notes and descriptions, which the page shows"),
];

fn leave_out_texts(one: &mut Experiment) {
    one.method.clear();
    one.notes.clear();
    one.rows.iter_mut().for_each(|row| row.description.clear());
}

/// Returns the JSON of all numbers in at most `room` bytes: complete if it fits, otherwise with shorter series, then
/// without more and more of the rest, and finally `null`.
fn embed(report: &Report, room: usize) -> EmbeddedJson {
    let json = |report: &Report| source(&serde_json::to_string(report).unwrap_or_default());
    let fits = |report: &Report| Some(json(report)).filter(|json| json.len() <= room);
    if let Some(json) = fits(report) {
        return EmbeddedJson { json, left_out: None };
    }
    let mut thin = report.clone();
    let mut left_out = "the series in it have fewer values, each the mean of several".to_owned();
    for (index, (step, name)) in STEPS.into_iter().enumerate() {
        thin.experiments.iter_mut().for_each(step);
        left_out += ["", "; left out are ", ", "][index.min(2)];
        left_out += name;
        if let Some(json) = fits(&thin) {
            return EmbeddedJson { json, left_out: Some(left_out) };
        }
    }
    EmbeddedJson { json: "null".to_owned(), left_out: Some("all of them are left out of it".to_owned()) }
}

/// Replaces groups of adjacent values by their mean; its time is that of the first of them.
fn shorten_series(series: &mut Series) {
    for (name, values) in series {
        let together = values.len().div_ceil(SERIES_VALUES).max(1);
        let of = |group: &[f64]| match name.as_str() {
            "at_s" => group.first().copied().unwrap_or_default(),
            // Further digits of a mean are artefacts of the division.
            _ => (group.iter().sum::<f64>() / group.len() as f64 * 1000.0).round() / 1000.0,
        };
        if together > 1 {
            *values = values.chunks(together).map(of).collect();
        }
    }
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

/// Returns a sentence with its first letter in upper case and a full stop at its end.
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
    use crate::result::{Row, metric};

    fn report() -> Report {
        let row = Row::of_repeats("buffered", [[(metric::MB_PER_S, 1000.0)]]);
        let experiment = Experiment::new("scan", "Each row reads the file.").with_rows([row]);
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
    fn a_verdict_that_heads_a_section_is_not_listed_again() {
        let mut report = report();
        report.experiments[0].sentence = "this is a verdict".to_owned();
        let page = page(&report);
        let (shown, _) = page.split_once("id=\"forebay-result\"").expect("the numbers");
        assert_eq!(shown.matches("This is a verdict.").count(), 1);
        assert!(!shown.contains("Further verdicts"));
    }

    #[test]
    fn text_cannot_break_out_of_its_place() {
        let page = page(&report());
        assert_eq!(page.matches("</script>").count(), 1);
        assert!(!page.contains("<b>"));
    }

    /// Regression: control characters of names were escaped in titles only.
    #[test]
    fn a_page_has_no_control_characters_and_its_numbers_keep_them() {
        const NAME: &str = "a\x1b[2J\u{7f}\u{9b}b";
        let mut report = report();
        report.environment.checks[0].why = NAME.to_owned();
        report.experiments[0].rows[0].name = NAME.to_owned();
        report.verdicts.push(NAME.to_owned());
        let page = page(&report);
        assert!(!page.contains(|letter: char| letter.is_control() && letter != '\n'), "{page}");
        assert!(page.contains("a\\u{1b}[2J\\u{7f}\\u{9b}b"), "{page}");
        let json = page.split_once("id=\"forebay-result\">").expect("the element").1;
        let json = json.split_once("</script>").expect("its end").0;
        let back: Report = serde_json::from_str(json).expect("the schema");
        assert_eq!(back.experiments[0].rows[0].name, NAME);
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

    mod embed {
        use super::*;

        fn report() -> Report {
            let mut row = Row::of_repeats("random-read", [[(metric::IOPS, 1.5)]; 100]);
            row.conditions =
                vec![Condition::at_most("steal", 0.0, 0.02).with_meaning(&"a share ".repeat(60))];
            row.histograms.insert("latency".to_owned(), "x".repeat(10_000));
            let at: Vec<f64> = (0..6000).map(|bin| f64::from(bin) / 10.0).collect();
            let rates: Vec<f64> = (0..6000).map(|bin| f64::from(bin % 10)).collect();
            row.series = Series::from([("at_s".to_owned(), at), (metric::MB_PER_S.to_owned(), rates)]);
            let experiment = Experiment::new("sustain", "Reads for as long as a row lasts.").with_rows([row]);
            Report::new(Environment::default(), vec![experiment])
        }

        #[test]
        fn values_within_the_limit_stay_and_the_rest_is_dropped_in_order() {
            let report = report();
            let whole = embed(&report, usize::MAX);
            assert_eq!((whole.left_out.clone(), whole.json.contains("xxx")), (None, true));
            let (mut remarks, mut room) = (Vec::new(), whole.json.len());
            while room > "null".len() {
                let embedded = embed(&report, room - 1);
                assert!(embedded.json.len() < room, "{room}: {}", embedded.json.len());
                assert!(serde_json::from_str::<serde_json::Value>(&embedded.json).is_ok());
                remarks.push(embedded.left_out.expect("something is left out"));
                room = embedded.json.len();
            }
            assert_eq!(remarks.len(), 6, "{remarks:?}");
            assert!(
                remarks[0].ends_with("the mean of several") && remarks[5].contains("all of them"),
                "{remarks:?}"
            );
            assert!(remarks[3].ends_with("left out are histograms, gates that did not fail, single repeats"));
        }

        #[test]
        fn values_beside_each_other_become_their_mean() {
            let mut series = report().experiments[0].rows[0].series.clone();
            shorten_series(&mut series);
            assert_eq!((series["at_s"].len(), series["at_s"][1]), (600, 1.0));
            assert!(series[metric::MB_PER_S].iter().all(|mean| *mean == 4.5));
            let before = series.clone();
            shorten_series(&mut series);
            assert_eq!(series, before);
        }
    }

    mod place {
        use super::*;

        #[test]
        fn every_known_fact_is_a_row_with_its_unit() {
            let mut known =
                Environment { memory_total_bytes: 8 << 30, cpus_allowed: 2, ..Environment::default() };
            known.mitigations.insert("spectre_v1".to_owned(), "none".to_owned());
            let page = place(&known).into_string();
            for row in [
                "memory total</th><td>8 GiB",
                "mitigations spectre v1</th><td>none",
                "cpus allowed</th><td>2",
            ] {
                assert!(page.contains(row), "{row}: {page}");
            }
            assert!(
                !page.contains("memory limit") && !page.contains("cpus online"),
                "what is unknown has no row: {page}"
            );
        }
    }

    mod sections {
        use super::*;

        fn experiments(all: &[Experiment]) -> Markup {
            section(0, &all.iter().collect::<Vec<_>>())
        }

        fn random(depth: u32) -> Experiment {
            let row = Row::of_repeats("direct", [[(metric::IOPS, f64::from(depth) * 1000.0)]]);
            Experiment::new("random", "how").parameter("depth", depth).with_rows([row])
        }

        #[test]
        fn one_depth_makes_bars_and_several_make_lines() {
            let one = experiments(&[random(1)]).into_string();
            assert!(one.contains("<rect") && !one.contains("<polyline"));
            let several = experiments(&[random(1), random(8)]).into_string();
            assert!(several.contains("<polyline"));
            assert_eq!(several.matches("<table class=\"figures\"").count(), 1);
        }

        #[test]
        fn a_row_without_figures_has_its_reason() {
            let experiment = Experiment::new("scan", "").with_rows([Row::skipped("uncached", "refused")]);
            let page = experiments(&[experiment]).into_string();
            assert!(page.contains("not measured: refused"));
            assert!(!page.contains("<svg"));
        }

        #[test]
        fn a_failed_gate_stands_at_its_row_and_below() {
            let mut experiment = random(1);
            experiment.rows[0].conditions.push(Condition::at_least("device_bytes", 0.5, 0.95));
            let page = experiments(&[experiment]).into_string();
            assert!(page.contains("<tr class=\"failed\">"), "{page}");
            assert!(
                page.contains(
                    "direct<span class=\"mark-failed\">failed: device bytes against claimed bytes</span>"
                ),
                "{page}"
            );
            assert!(page.contains("at least 0.950"), "{page}");
        }
    }
}
