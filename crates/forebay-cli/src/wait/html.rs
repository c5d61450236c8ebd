//! The report as one self-contained page.

use forebay_wait::{Call, File, Report};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::measure::Document;
use super::text::{cells, device_work, figures, time, title, waited_for};
use forebay_report::page::PAGE_BYTES_MAX;
use forebay_report::page::html as page;
use forebay_report::units::printable;

const BAR_WIDTH: f64 = 600.0;

/// Returns the whole page, with as many files as requested; the JSON in its source has as many as fit.
pub(super) fn of(document: &Document, files: usize) -> serde_json::Result<String> {
    let room = PAGE_BYTES_MAX.saturating_sub(page_with(document, files, "", None).len() + REMARK_BYTES);
    let (source, known) = document.to_source(room)?;
    Ok(page_with(document, files, &source, known))
}

/// More bytes than the remark on omitted files needs.
const REMARK_BYTES: usize = 200;

fn page_with(document: &Document, files: usize, source: &str, known: Option<usize>) -> String {
    let report = &document.report;
    page::text(html! {
        (DOCTYPE)
        html lang="en" {
            (page::head(html! { "How long it waited: " (title(report)) }))
            body {
                header {
                    h1 { "How long a program waited" }
                    // A command may be a whole script.
                    p { code { (title(report)) } }
                    p.soft { (document.kernel) }
                }
                main {
                    h2 { "Verdicts" }
                    ul.verdicts { @for sentence in &report.advice { li { (page::sentence(sentence)) } } }
                    (time_bar(report))
                    (totals(report))
                    (waits(report, files))
                    @if !report.notes.is_empty() {
                        h2 { "Notes" }
                        ul { @for note in &report.notes { li { (page::sentence(note)) } } }
                    }
                    p.small {
                        "Written by forebay " (env!("CARGO_PKG_VERSION")) ". All numbers as JSON are in this page's source"
                        @if let Some(known) = known {
                            ", as far as there is room: of " (known) " files of " (report.files.len()) ", those that were waited \
                             for longest. The whole is what " code { "--json" } " writes"
                        }
                        "."
                    }
                }
                script type="application/json" id="forebay-result" { (PreEscaped(source)) }
            }
        }
    })
}

/// Returns the time as one bar: full wait at the device, full wait above it, what may be full wait, some wait while other threads
/// run, the rest.
fn time_bar(report: &Report) -> Markup {
    let device = report.device.unwrap_or_default();
    let at = if report.device.is_some() { device.full_wait_at_device_ns } else { report.full_wait_ns };
    let above = report.full_wait_ns.saturating_sub(at);
    let maybe = report.maybe_full_wait_ns;
    let some = report.some_wait_ns + report.maybe_some_wait_ns;
    let beside = some.saturating_sub(report.full_wait_ns + maybe);
    let rest = report.wall_ns.saturating_sub(some);
    let at_name = if report.device.is_some() { "all stood still, at the device" } else { "all stood still" };
    let parts = [
        (at_name, at, "s3"),
        ("all stood still, above the device", above, "s1"),
        ("all slept, it may be for I/O", maybe, "s2"),
        ("some waited while others ran", beside, "s0"),
        ("no thread waited for I/O", rest, "s7"),
    ];
    // A possible wait has a row only if it is not 0.
    let parts: Vec<_> = parts.into_iter().filter(|part| part.1 > 0 || part.2 != "s2").collect();
    let shares: Vec<f64> = parts.iter().map(|part| part.1 as f64 / report.wall_ns.max(1) as f64).collect();
    let starts = shares.iter().scan(0.0, |sum, share| {
        let start = *sum;
        *sum += share;
        Some(start)
    });
    let label = "the time by state of the threads; the numbers are in the table below";
    html! {
        h2 { "Where the time went" }
        figure {
            svg viewBox=(format!("0 0 {BAR_WIDTH} 32")) role="img" aria-label=(label) {
                @for ((part, share), start) in parts.iter().zip(&shares).zip(starts) {
                    @if *share > 0.0 {
                        rect class=(format!("part {}", part.2)) x=(format!("{:.1}", start * BAR_WIDTH)) y="1" height="30"
                            width=(format!("{:.1}", share * BAR_WIDTH)) {}
                    }
                }
            }
            // Next to the drawing and not in it: text there would shrink with it on a narrow screen.
            ul.legend {
                @for (part, share) in parts.iter().zip(&shares) {
                    li {
                        svg.sign viewBox="0 0 22 12" aria-hidden="true" focusable="false" {
                            rect class=(part.2) x="0" y="0" width="22" height="12" {}
                        }
                        (part.0) ": " (time(part.1)) " (" (format!("{:.1} %", share * 100.0)) ")"
                    }
                }
            }
        }
    }
}

fn totals(report: &Report) -> Markup {
    html! {
        h2 { "The whole" }
        div.scroll tabindex="0" role="region" aria-label="The whole" {
            table { tbody { @for (name, value) in figures(report) { tr { th scope="row" { (name.trim()) } td { (value) } } } } }
        }
    }
}

fn waits(report: &Report, files: usize) -> Markup {
    let (shown, hidden) = waited_for(report, files);
    let without: Vec<&Call> = report.without_file.iter().filter(|call| call.wait_ns > 0).collect();
    if shown.is_empty() && without.is_empty() {
        return html! {};
    }
    html! {
        h2 { "For what" }
        div.scroll tabindex="0" role="region" aria-label="Files and calls with waits" {
            table {
                thead {
                    tr {
                        th scope="col" { "call" }
                        @for name in ["wait", "share", "count", "bytes", "mean time", "longest", "sequential", "cache hits"] {
                            th.number scope="col" { (name) }
                        }
                    }
                }
                @for file in &shown { (group(file)) }
                @if !without.is_empty() {
                    tbody {
                        tr { th colspan="9" scope="rowgroup" { "without an open file" } }
                        @for call in &without { (row(&call.call, &cells(call))) }
                    }
                }
            }
        }
        @if let Some(sentence) = hidden { p.small { (sentence) "." } }
    }
}

fn group(file: &File) -> Markup {
    html! {
        tbody {
            tr { th colspan="9" scope="rowgroup" { (printable(&file.path)) } }
            @for call in &file.calls { (row(&call.call, &cells(call))) }
            tr { td.small colspan="9" { (device_work(file)) } }
        }
    }
}

fn row(name: &str, cells: &[String]) -> Markup {
    html! { tr { td { (name) } @for cell in cells { td.number { (cell) } } } }
}
