//! The experiments on the page: charts, a table, how the numbers were made.

use maud::{Markup, html};

use super::columns::{Column, groups, heading};
use super::conditions;
use super::svg::{self, Line, Whisker};
use crate::doctor::units::number;
use crate::measure::kind;
use crate::result::{Experiment, Row};

/// All experiments, those that belong together with lines over what differs between them.
pub(crate) fn experiments(experiments: &[Experiment]) -> Markup {
    html! {
        @for group in groups(experiments) {
            h2 { (heading(&group)) }
            (about(&group))
            @if let [only] = group.as_slice() {
                (bar_charts(only))
            } @else {
                (sweep_charts(&group))
            }
            (table(&group))
            @for line in conditions::lines(&group) { p.small { (line) } }
        }
    }
}

/// How the numbers were made, what must be known about them, and what each row is.
fn about(group: &[&Experiment]) -> Markup {
    let rows = || group.iter().flat_map(|experiment| &experiment.rows);
    html! {
        @if let Some(first) = group.first() { @if !first.method.is_empty() { p { (first.method) } } }
        @for note in once(group.iter().flat_map(|experiment| &experiment.notes)) { p.note { (note) } }
        ul {
            @for name in once(rows().map(|row| &row.name)) {
                @if let Some(row) = rows().find(|row| &row.name == name && !row.description.is_empty()) {
                    li { code { (row.name) } ": " (row.description) }
                }
            }
        }
    }
}

/// Each text once, in the order in which they appear.
fn once<'a>(texts: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut seen = Vec::new();
    for text in texts {
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen
}

fn bar_charts(experiment: &Experiment) -> Markup {
    let kind = kind::of(experiment);
    html! {
        div.charts {
            @for column in kind.charts.iter().filter_map(|metric| Column::of(kind, metric)) {
                @let bars: Vec<(String, Whisker)> = experiment.rows.iter()
                    .filter_map(|row| Some((row.name.clone(), whisker(column, row)?))).collect();
                @if !bars.is_empty() {
                    figure {
                        (svg::bars(column.heading, &bars))
                        figcaption { (column.heading) ": " (column.meaning) ". Bars are medians, whiskers go from the smallest to the largest repeat." }
                    }
                }
            }
        }
    }
}

fn sweep_charts(group: &[&Experiment]) -> Markup {
    let Some(kind) = group.first().map(|first| kind::of(first)) else { return html! {} };
    let place = |experiment: &&Experiment| experiment.number(kind.axis.parameter);
    let mut places: Vec<f64> = group.iter().filter_map(place).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let labels: Vec<String> = places.iter().map(|place| number(*place)).collect();
    let names = once(group.iter().flat_map(|experiment| &experiment.rows).map(|row| &row.name));
    html! {
        div.charts {
            @for column in kind.charts.iter().filter_map(|metric| Column::of(kind, metric)) {
                @let lines: Vec<Line> = names.iter().filter_map(|name| line(name, group, &places, column)).collect();
                @if !lines.is_empty() {
                    figure {
                        (svg::lines(kind.axis.label, &labels, column.heading, &lines))
                        figcaption { (column.heading) ": " (column.meaning) ". Points are medians, whiskers go from the smallest to the largest repeat." }
                    }
                }
            }
        }
    }
}

fn line(name: &str, group: &[&Experiment], places: &[f64], column: &Column) -> Option<Line> {
    let mut points: Vec<(usize, Whisker)> = group
        .iter()
        .filter_map(|experiment| {
            let value = experiment.number(kind::of(experiment).axis.parameter)?;
            let place = places.iter().position(|known| *known == value)?;
            Some((place, whisker(column, experiment.row(name)?)?))
        })
        .collect();
    points.sort_by_key(|(place, _)| *place);
    (!points.is_empty()).then(|| Line { name: name.to_owned(), points })
}

fn whisker(column: &Column, row: &Row) -> Option<Whisker> {
    let value = column.value(row)?;
    let (low, high) = column.spread(row).unwrap_or((value, value));
    Some(Whisker { value, low, high })
}

/// One table for experiments that belong together: one row for each way in each of them.
fn table(group: &[&Experiment]) -> Markup {
    let columns = Column::present(group);
    let axis = group.first().filter(|_| group.len() > 1).map(|first| kind::of(first).axis.parameter);
    html! {
        div.scroll {
            table {
                thead {
                    tr {
                        @if let Some(axis) = axis { th.number { (axis) } }
                        th { "row" }
                        @for column in &columns { th.number { (column.heading) } }
                        th { "page cache" }
                        th.number { "repeats" }
                    }
                }
                tbody {
                    @for experiment in group {
                        @for row in &experiment.rows {
                            tr {
                                @if let Some(axis) = axis { td.number { (experiment.number(axis).map_or_else(String::new, number)) } }
                                td { (conditions::marked_name(row)) }
                                @if let Some(why) = &row.skipped {
                                    td colspan=(columns.len() + 2) { "not measured: " (why) }
                                } @else {
                                    @for column in &columns { td.number { (column.cell(row)) (spread(column, row)) } }
                                    td { (row.cache.map_or("", |cache| cache.label())) }
                                    td.number { (row.samples.len()) }
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
    use crate::result::{Metrics, Sample, metric};

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
        assert_eq!(several.matches("<table").count(), 1);
    }

    #[test]
    fn a_row_without_figures_says_why() {
        let mut experiment = Experiment::new("scan", "");
        experiment.rows.push(Row::skipped("uncached", "refused"));
        let page = experiments(&[experiment]).into_string();
        assert!(page.contains("not measured: refused"));
        assert!(!page.contains("<svg"));
    }
}
