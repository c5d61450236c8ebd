//! The report's page, made from a saved result that has every experiment: the checks that need no
//! browser. `scripts/checks/page` checks the same page in one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::support::{Directory, run};
use forebay_report::page::html::STYLE;
use html5ever::tendril::TendrilSink;
use html5ever::{ParseOpts, parse_document};
use markup5ever_rcdom::{Handle, NodeData, RcDom};

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/every-experiment.json");
/// Maximum size of a page.
const BYTES_MAX: usize = 1_000_000;
/// Maximum number of words that are seen before something is opened.
const WORDS_MAX: usize = 6_000;
/// Maximum number of words of a sentence in a section.
const SENTENCE_WORDS_MAX: usize = 25;
/// Number of longer sentences in the methods, notes and rows of the saved result: it may only fall.
const LONG_SENTENCES: usize = 43;

fn page() -> String {
    written(&[]).1
}

/// Returns what `report` prints of the fixture, and the page that it writes.
fn written(options: &[&str]) -> (String, String) {
    let directory = Directory::new("page");
    let out = directory.path().join("page.html");
    let mut arguments = vec!["report", "--from", FIXTURE, "--out", out.to_str().expect("readable name")];
    arguments.extend(options);
    let outcome = run(&arguments);
    assert_eq!(outcome.code, Some(0), "{}{}", outcome.out, outcome.err);
    assert!(outcome.out.contains("The page: "), "{}", outcome.out);
    (outcome.out, fs::read_to_string(&out).expect("it was written"))
}

#[test]
fn the_summary_fits_on_a_terminal_and_the_tables_are_printed_on_demand() {
    let (out, _) = written(&[]);
    let wide: Vec<&str> = out.lines().filter(|line| line.chars().count() > 100).collect();
    assert!(out.lines().count() <= 40 && wide.is_empty(), "{wide:?}\n{out}");
    for part in
        ["4 KiB random, depth 32", "Is a processor the limit?", "What to change first", "What to distrust"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (verbose, _) = written(&["--verbose"]);
    let [brief, tables] = [&out, &verbose].map(|text| text.matches("\n  row ").count());
    assert!(brief == 0 && tables > 20, "{brief} {tables}");
    assert!(verbose.contains("Verdicts"), "{verbose}");
}

#[test]
fn claims_are_printed_below_the_summary_each_with_its_verdict_and_command() {
    let (out, _) = written(&["--claims"]);
    let claims = out.split("Claims of published texts\n").nth(1).expect("they are printed");
    assert!(claims.lines().all(|line| line.chars().count() <= 100), "{claims}");
    let verdicts = claims.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   ")).count();
    assert_eq!(verdicts, claims.matches("      claimed: ").count(), "{claims}");
    for block in [
        "  holds\n      With read-ahead as parallelism a direct scan is faster than a buffered one\n",
        "  not decided here\n      A cache of descriptors for each processor gives a tenth more reads\n",
        "      here: this program contains no RocksDB",
        "      forebay measure wal --load cpu --loop open\n",
    ] {
        assert!(claims.contains(block), "{block}: {claims}");
    }
}

/// An element in document order: its name, its attributes, its place in the tree and the node itself.
struct Element {
    name: String,
    attributes: BTreeMap<String, String>,
    /// Names of the enclosing elements, the nearest last.
    around: Vec<String>,
    node: Handle,
}

impl Element {
    fn get(&self, attribute: &str) -> Option<&str> {
        self.attributes.get(attribute).map(String::as_str)
    }

    fn text(&self) -> String {
        let mut text = String::new();
        collect_text(&self.node, &mut text);
        text.trim().to_owned()
    }
}

fn collect_text(node: &Handle, text: &mut String) {
    if let NodeData::Text { contents } = &node.data {
        text.push_str(&contents.borrow());
    }
    for child in node.children.borrow().iter() {
        collect_text(child, text);
    }
}

/// A page's elements, and its tree: nodes lose their children when it is dropped.
struct Elements {
    all: Vec<Element>,
    _tree: RcDom,
}

impl std::ops::Deref for Elements {
    type Target = [Element];

    fn deref(&self) -> &[Element] {
        &self.all
    }
}

fn elements(page: &str) -> Elements {
    let tree = parse_document(RcDom::default(), ParseOpts::default()).one(page);
    assert!(tree.errors.borrow().is_empty(), "not valid HTML: {:?}", tree.errors.borrow());
    let mut all = Vec::new();
    collect(&tree.document, &mut Vec::new(), &mut all);
    Elements { all, _tree: tree }
}

fn collect(node: &Handle, around: &mut Vec<String>, all: &mut Vec<Element>) {
    let mut named = false;
    if let NodeData::Element { name, attrs, .. } = &node.data {
        let attributes =
            attrs.borrow().iter().map(|attr| (attr.name.local.to_string(), attr.value.to_string())).collect();
        let name = name.local.to_string();
        all.push(Element { name: name.clone(), attributes, around: around.clone(), node: node.clone() });
        around.push(name);
        named = true;
    }
    for child in node.children.borrow().iter() {
        collect(child, around, all);
    }
    if named {
        around.pop();
    }
}

#[test]
fn the_page_of_every_experiment_is_valid_and_small() {
    let page = page();
    assert!(page.len() < BYTES_MAX, "{} bytes", page.len());
    let elements = elements(&page);
    let count = |name: &str| elements.iter().filter(|element| element.name == name).count();
    assert_eq!((count("main"), count("h1"), count("nav")), (1, 1, 1));
    assert!(count("figure") > 20 && count("section") > 10, "{} figures", count("figure"));
    // A script that runs could fail; this page has no scripts.
    let scripts: Vec<Option<&str>> =
        elements.iter().filter(|element| element.name == "script").map(|script| script.get("type")).collect();
    assert_eq!(scripts, [Some("application/json")]);
}

#[test]
fn a_broken_page_is_seen_by_this_parser() {
    let broken = page().replacen("</section>", "</div></section>", 1);
    let dom = parse_document(RcDom::default(), ParseOpts::default()).one(broken.as_str());
    assert!(!dom.errors.borrow().is_empty());
}

#[test]
fn ids_are_unique_and_links_and_labels_lead_to_them() {
    let page = page();
    let elements = elements(&page);
    let mut ids: Vec<&str> = elements.iter().filter_map(|element| element.get("id")).collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "an id stands twice");
    for element in elements.iter() {
        if let Some(link) = element.get("href").filter(|_| element.name == "a") {
            let target = link.strip_prefix('#').unwrap_or_else(|| panic!("{link} leads out of the page"));
            assert!(ids.contains(&target), "{link}");
            assert!(!element.text().is_empty(), "{link} has no text");
        }
        if let Some(label) = element.get("aria-labelledby") {
            assert!(ids.contains(&label), "{label}");
        }
    }
    assert_eq!(
        elements.iter().find(|element| element.name == "a").and_then(|link| link.get("class")),
        Some("skip")
    );
}

#[test]
fn headings_leave_no_level_out() {
    let mut level = 0;
    for heading in elements(&page())
        .iter()
        .filter(|element| element.name.len() == 2 && element.name.starts_with('h') && element.name != "hr")
    {
        let own: u32 = heading.name[1..].parse().expect("h1 to h6");
        assert!(own <= level + 1, "h{own} after h{level}: {}", heading.text());
        assert!(!heading.text().is_empty());
        level = own;
    }
}

/// Adds the texts that are seen while everything foldable is folded.
fn collect_seen(node: &Handle, text: &mut String) {
    let mut only_summary = false;
    if let NodeData::Element { name, attrs, .. } = &node.data {
        let attrs = attrs.borrow();
        let has = |name: &str, value: &str| {
            attrs
                .iter()
                .any(|attr| &*attr.name.local == name && attr.value.split(' ').any(|part| part == value))
        };
        if ["head", "script", "style"].contains(&&*name.local) || has("class", "unseen") {
            return;
        }
        only_summary = &*name.local == "details";
    }
    if let NodeData::Text { contents } = &node.data {
        text.push(' ');
        text.push_str(&contents.borrow());
    }
    for child in node.children.borrow().iter() {
        let is_summary = matches!(&child.data, NodeData::Element { name, .. } if &*name.local == "summary");
        if !only_summary || is_summary {
            collect_seen(child, text);
        }
    }
}

#[test]
fn few_words_are_seen_before_something_is_opened() {
    let page = page();
    let tree = parse_document(RcDom::default(), ParseOpts::default()).one(page.as_str());
    let mut seen = String::new();
    collect_seen(&tree.document, &mut seen);
    let words = seen.split_whitespace().count();
    eprintln!("{words} words");
    assert!((500..=WORDS_MAX).contains(&words), "{words} words");
    assert!(seen.contains("Is a processor the limit?") && !seen.contains("not measured: "), "{seen}");
}

#[test]
fn the_first_screen_has_place_figures_chart_questions_and_changes_in_this_order() {
    let page = page();
    let (first, _) = page.split_once("id=\"distrust\"").expect("reasons to distrust");
    let (_, first) = first.split_once("<body>").expect("the body");
    let mut from = 0;
    for part in [
        "/srv/data",
        "ext4 on vda",
        "Linux 6.18.0",
        "2026-11-22",
        "Sequential",
        "4 KiB random, depth 32",
        "Sync and spread",
        "id=\"overview\"",
        "Five questions",
        "Do many users starve each other?",
        "What to change first",
    ] {
        let place = first[from..].find(part).unwrap_or_else(|| panic!("{part} is not where it should be"));
        from += place;
    }
    for sentence in first.split("<p>").skip(1).filter_map(|rest| rest.split("</p>").next()) {
        let text = sentence.split("<code>forebay").next().unwrap_or(sentence);
        assert!(text.split_whitespace().count() <= 20, "{text}");
    }
}

#[test]
fn sentences_of_sections_are_short() {
    let elements = elements(&page());
    let is_experiment = |id: &str| id.starts_with("experiment-");
    let sections =
        elements.iter().filter(|element| element.get("aria-labelledby").is_some_and(is_experiment));
    let mut inside = Vec::new();
    sections.for_each(|section| collect(&section.node, &mut Vec::new(), &mut inside));
    let is_long = |sentence: &&str| sentence.split_whitespace().count() > SENTENCE_WORDS_MAX;
    let mut long = BTreeSet::new();
    for element in inside.iter().filter(|element| ["p", "li"].contains(&&*element.name)) {
        let text = element.text();
        if element.get("class") == Some("sentence") {
            assert!(!is_long(&text.as_str()) && !text.ends_with('\u{2026}'), "{text}");
        }
        long.extend(text.split(". ").filter(is_long).map(str::to_owned));
    }
    assert!(long.len() <= LONG_SENTENCES, "{}: {long:#?}", long.len());
}

#[test]
fn every_chart_has_a_text_and_its_section_a_table_with_its_numbers() {
    let page = page();
    let elements = elements(&page);
    let mut figures = 0;
    for section in elements.iter().filter(|element| ["section", "figure"].contains(&&*element.name)) {
        let mut inside = Vec::new();
        collect(&section.node, &mut Vec::new(), &mut inside);
        let named = |name: &str| inside.iter().filter(|element| element.name == name).count();
        if section.name == "section" {
            // Each chart has the numbers of the table of rows, or its own table.
            assert!(named("figure") == 0 || (named("table") > 0 && named("td") > 0), "{}", section.text());
            continue;
        }
        figures += 1;
        let title = inside.iter().find(|element| element.name == "figcaption").expect("a caption").text();
        let drawings: Vec<&Element> =
            inside.iter().filter(|element| element.get("role") == Some("img")).collect();
        assert!(!drawings.is_empty(), "{title}");
        for drawing in drawings {
            let label = drawing.get("aria-label").expect("a label");
            let shown = label.strip_prefix("Chart: ").and_then(|rest| rest.split_once(". "));
            assert!(
                shown.is_some_and(|(shown, numbers)| !shown.is_empty() && !numbers.is_empty()),
                "{label}"
            );
        }
        for sign in inside.iter().filter(|element| element.name == "svg" && element.get("role").is_none()) {
            assert_eq!(sign.get("aria-hidden"), Some("true"), "{title}");
        }
    }
    assert!(figures > 20, "{figures}");
}

#[test]
fn tables_name_their_columns_and_rows_and_can_be_scrolled_with_the_keyboard() {
    let elements = elements(&page());
    for element in elements.iter() {
        match element.name.as_str() {
            "th" => {
                let scope = element.get("scope");
                assert!(scope == Some("col") || scope == Some("row"), "{}", element.text());
            }
            "table" => {
                let mut inside = Vec::new();
                collect(&element.node, &mut Vec::new(), &mut inside);
                assert!(inside.iter().any(|part| part.name == "caption"), "{}", element.text());
                assert!(element.around.iter().any(|around| around == "div"));
            }
            "div" if element.get("class") == Some("scroll") => {
                assert_eq!((element.get("tabindex"), element.get("role")), (Some("0"), Some("region")));
                assert!(element.get("aria-label").is_some_and(|label| !label.is_empty()));
            }
            _ => {}
        }
    }
}

#[test]
fn a_failed_gate_is_marked_where_the_row_stands() {
    let page = page();
    let elements = elements(&page);
    let marks = || elements.iter().filter(|element| element.get("class") == Some("mark-failed"));
    assert!(marks().count() > 0);
    for mark in marks() {
        // Below a headline figure, or next to the name of a row.
        let place = mark.around.last().map(String::as_str);
        assert!(mark.name == "dd" || place == Some("th"), "{}", mark.text());
    }
    assert!(page.contains("What to distrust"));
}

/// Returns the colours of one scheme: the values of `--name:` in the style sheet, at the first
/// occurrence or the second.
fn colours(style: &str, scheme: usize) -> BTreeMap<String, [f64; 3]> {
    let block = style.split(":root {").nth(scheme + 1).expect("a light and a dark scheme");
    let block = &block[..block.find('}').expect("it ends")];
    let mut colours = BTreeMap::new();
    for rule in block.split(';') {
        let Some((name, value)) = rule.split_once(':') else { continue };
        if let (Some(name), Some(hex)) = (name.trim().strip_prefix("--"), value.trim().strip_prefix('#')) {
            let part = |at: usize| {
                let byte = u8::from_str_radix(&hex[at..at + 2], 16).expect("six digits");
                let share = f64::from(byte) / 255.0;
                if share <= 0.040_45 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
            };
            colours.insert(name.to_owned(), [part(0), part(2), part(4)]);
        }
    }
    colours
}

/// Returns the contrast of WCAG 2: from 1 to 21.
fn contrast(one: [f64; 3], other: [f64; 3]) -> f64 {
    let light = |[red, green, blue]: [f64; 3]| 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
    let (a, b) = (light(one), light(other));
    a.max(b) / a.min(b)
}

#[test]
fn text_and_lines_stand_out_from_the_paper_in_both_schemes() {
    assert!((contrast([0.0; 3], [1.0; 3]) - 21.0).abs() < 1e-9);
    for scheme in 0..2 {
        let colours = colours(STYLE, scheme);
        for text in ["ink", "soft", "link", "good", "middling", "bad"] {
            for ground in ["paper", "panel"] {
                let ratio = contrast(colours[text], colours[ground]);
                assert!(ratio >= 4.5, "scheme {scheme}: {text} on {ground}: {ratio:.2}");
            }
        }
        for series in 0..8 {
            let ratio = contrast(colours[&format!("s{series}")], colours["paper"]);
            assert!(ratio >= 3.0, "scheme {scheme}: s{series}: {ratio:.2}");
        }
    }
}

#[test]
fn results_of_other_versions_are_refused_and_nothing_is_written() {
    let directory = Directory::new("from");
    let out = directory.path().join("page.html");
    let out = out.to_str().expect("readable name");
    let file = directory.path().join("saved.json");
    let name = file.to_str().expect("readable name");
    for (text, word) in [
        ("no json", "is not JSON"),
        ("{}", "not written by forebay"),
        (r#"{"schema": 99, "forebay": "9.0.0"}"#, "version 99"),
        (r#"{"schema": 1, "forebay": "0.1.0", "experiments": []}"#, "environment"),
    ] {
        fs::write(&file, text).expect("its own directory");
        let outcome = run(&["report", "--from", name, "--out", out]);
        assert_eq!(outcome.code, Some(2), "{text}: {}", outcome.err);
        assert!(outcome.err.contains(word) && outcome.err.contains(name), "{text}: {}", outcome.err);
    }
    let missing = run(&["report", "--from", "/no/such/file.json", "--out", out]);
    assert_eq!(missing.code, Some(3), "{}", missing.err);
    let both = run(&["report", "--from", name, "--quick", "--out", out]);
    assert_eq!(both.code, Some(2), "{}", both.err);
    assert_eq!(directory.names(), ["saved.json"]);
}
