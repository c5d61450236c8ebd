//! The experiments on the page: a sentence, charts, a table, the method, and the gates.

use maud::{Markup, html};

use super::columns::{Column, groups, heading, once, row_names};
use super::{charts, gates, html as page, svg, view};
use crate::result::{Experiment, Row};
use crate::units::number;

/// Returns the id of a section on the page.
pub(crate) fn id(index: usize) -> String {
    format!("experiment-{}", index + 1)
}

/// Returns all experiments; those that belong together form one section with its main chart, all else folded.
pub(crate) fn experiments(experiments: &[Experiment]) -> Markup {
    html! {
        div.sections {
            @for (index, group) in groups(experiments).iter().enumerate() {
                @let id = id(index);
                @let charts = charts::of(group);
                @let sentence = group[0].sentence.as_str();
                @let short = page::brief(sentence);
                section aria-labelledby=(id) {
                    h2 id=(id) { (heading(group)) }
                    @if !sentence.is_empty() { p.sentence { (page::sentence(&short)) } }
                    @if let Some(main) = charts.first() { (svg::figure(main, &format!("{id}-chart-1"))) }
                    details {
                        summary { (folded(group, charts.len())) span.unseen { ": " (heading(group)) } }
                        @if short != sentence { p { (page::sentence(sentence)) } }
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
    }
}

/// Describes the folded part of a section, with the rows that are doubtful.
fn folded(group: &[&Experiment], charts: usize) -> String {
    let rows = || group.iter().flat_map(|experiment| &experiment.rows);
    let failed = rows().filter(|row| gates::failed(row)).count();
    let mut text = format!("Numbers of {} rows", rows().count());
    if failed > 0 {
        text.push_str(&format!(" ({failed} failed a gate)"));
    }
    match charts.saturating_sub(1) {
        0 => {}
        1 => text.push_str(", another chart"),
        more => text.push_str(&format!(", {more} more charts")),
    }
    text + ", method, gates"
}

/// Returns the method behind the numbers, the notes on them, and the description of each row.
fn about(group: &[&Experiment]) -> Markup {
    let rows = || group.iter().flat_map(|experiment| &experiment.rows);
    let described: Vec<&Row> = row_names(group)
        .into_iter()
        .filter_map(|name| rows().find(|row| row.name == name && !row.description.is_empty()))
        .collect();
    html! {
        @if let Some(first) = group.first() { @if !first.method.is_empty() { p { (page::prose(&first.method)) } } }
        @for note in once(group.iter().flat_map(|experiment| &experiment.notes)) { p.note { (page::sentence(note)) } }
        @if !described.is_empty() {
            ul { @for row in described { li { code { (row.name) } ": " (page::prose(&row.description)) } } }
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
                    @for experiment in group {
                        @for row in &experiment.rows {
                            tr class=[gates::failed(row).then_some("failed")] {
                                @if let Some(axis) = &axis {
                                    td { (experiment.number(&axis.parameter).map_or_else(String::new, number)) }
                                }
                                th scope="row" { (row.name) (gates::marks(row)) }
                                @if let Some(why) = &row.skipped {
                                    td.text colspan=(columns.len() + 2) { "not measured: " (why) }
                                } @else {
                                    @for column in &columns { td { (column.cell(row)) (spread(column, row)) } }
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
}

fn spread(column: &Column, row: &Row) -> Markup {
    html! {
        @if row.samples.len() > 1 {
            @if let Some((low, high)) = column.spread(row) { div.small { (number(low)) " - " (number(high)) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Condition, Metrics, Sample, metric};

    fn random(depth: u32) -> Experiment {
        let mut metrics = Metrics::default();
        metrics.set(metric::IOPS, f64::from(depth) * 1000.0);
        let mut experiment = Experiment::new("random", "how").parameter("depth", depth);
        experiment.rows.push(Row::from_samples("direct", vec![Sample { repeat: 0, metrics }]));
        experiment
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
        let mut experiment = Experiment::new("scan", "");
        experiment.rows.push(Row::skipped("uncached", "refused"));
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
