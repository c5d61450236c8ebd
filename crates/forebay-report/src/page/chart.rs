//! One chart of the page as a figure: the drawing, its legend, the quantity shown, and the same numbers
//! as a table.

use maud::{Markup, html};

use super::svg::{self, Bar, Line, Mark, Spread, XAxis};
use crate::units::number;

/// Maximum rows of a table beside a chart; longer series show every n-th of their points.
const TABLE_ROWS: usize = 60;

/// A chart, before it is drawn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chart {
    /// The title, with the conditions: `p99 µs over reads in flight`.
    pub title: String,
    /// Sentences on the meaning of the numbers and on how to read the drawing.
    pub note: String,
    /// The drawing.
    pub shape: Shape,
}

/// The kinds of charts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    /// A bar for each row of an experiment.
    Bars {
        /// Quantity and unit of a bar's length.
        axis: String,
        /// The bars.
        bars: Vec<Bar>,
    },
    /// Bars made of parts.
    Stacked {
        /// Quantity and unit of a part's length.
        axis: String,
        /// Names of the parts.
        parts: Vec<String>,
        /// Each bar's name and its parts' lengths.
        bars: Vec<(String, Vec<f64>)>,
    },
    /// Lines over an axis.
    Lines {
        /// The horizontal axis.
        x: XAxis,
        /// Quantity and unit of the vertical axis.
        y: String,
        /// The lines.
        lines: Vec<Line>,
        /// Places and levels with a remark.
        marks: Vec<Mark>,
    },
}

/// Returns the chart as a figure; `id` is unique on the page.
pub(crate) fn figure(chart: &Chart, id: &str) -> Markup {
    html! {
        figure id=(id) {
            figcaption { strong { (chart.title) } }
            @match &chart.shape {
                Shape::Bars { axis, bars } => (svg::bars(&label(chart), axis, bars)),
                Shape::Stacked { axis, parts, bars } => {
                    (svg::stacked(&label(chart), axis, parts, bars))
                    ul.legend { @for (index, part) in parts.iter().enumerate() { li { (svg::sign(index, true)) (part) } } }
                }
                Shape::Lines { x, y, lines, marks } => {
                    (svg::lines(&label(chart), x, y, lines, marks))
                    ul.legend {
                        @for (index, line) in lines.iter().enumerate() { li { (svg::sign(index, false)) (line.name) } }
                        @for mark in marks.iter().filter(|mark| mark.level) { li { span.level { } (mark.label) ": " (number(mark.at)) } }
                    }
                }
            }
            p.caption { (super::html::prose(&chart.note)) }
            details {
                summary { "The numbers of this chart" span.unseen { ": " (chart.title) } }
                div.scroll tabindex="0" role="region" aria-label=(format!("Numbers: {}", chart.title)) {
                    table.numbers.places[matches!(chart.shape, Shape::Lines { .. })] { caption.unseen { (chart.title) } (table(&chart.shape)) }
                }
            }
        }
    }
}

/// Describes the chart in words, for readers who cannot see it.
fn label(chart: &Chart) -> String {
    let described = |name: &str, values: &[(f64, f64)]| match (values.first(), values.last()) {
        (Some(first), Some(last)) if values.len() > 1 => {
            format!(
                "{name} from {} at {} to {} at {}",
                number(first.1),
                number(first.0),
                number(last.1),
                number(last.0)
            )
        }
        (Some(only), _) => format!("{name} {}", number(only.1)),
        _ => format!("{name} nothing"),
    };
    let parts: Vec<String> = match &chart.shape {
        Shape::Bars { bars, .. } => {
            bars.iter().map(|bar| format!("{} {}", bar.name, number(bar.value.value))).collect()
        }
        Shape::Stacked { bars, .. } => {
            bars.iter().map(|(name, values)| format!("{name} {}", number(values.iter().sum()))).collect()
        }
        Shape::Lines { x, lines, marks, .. } => {
            let place = |x_value: f64| if x.spread == Spread::Tail { x_value * 100.0 } else { x_value };
            let lines = lines.iter().map(|line| {
                let values: Vec<(f64, f64)> =
                    line.points.iter().map(|point| (place(point.x), point.y)).collect();
                described(&line.name, &values)
            });
            lines.chain(marks.iter().map(|mark| format!("{} at {}", mark.label, number(mark.at)))).collect()
        }
    };
    format!("Chart: {}. {}. The same numbers stand in the table below.", chart.title, parts.join("; "))
}

fn table(shape: &Shape) -> Markup {
    match shape {
        Shape::Bars { axis, bars } => html! {
            thead { tr { th scope="col" { "row" } @for head in [axis.as_str(), "smallest", "largest"] { th scope="col" { (head) } } } }
            tbody {
                @for bar in bars {
                    tr {
                        th scope="row" { (bar.name) }
                        @for value in [bar.value.value, bar.value.low, bar.value.high] { td { (number(value)) } }
                    }
                }
            }
        },
        Shape::Stacked { axis, parts, bars } => html! {
            thead { tr { th scope="col" { "row (" (axis) ")" } @for part in parts { th scope="col" { (part) } } th scope="col" { "sum" } } }
            tbody {
                @for (name, values) in bars {
                    tr {
                        th scope="row" { (name) }
                        @for value in values { td { (number(*value)) } }
                        td { (number(values.iter().sum())) }
                    }
                }
            }
        },
        Shape::Lines { x, y, lines, .. } => lines_table(x, y, lines),
    }
}

/// Returns a table with one row for each place at which some line has a point.
fn lines_table(x: &XAxis, y: &str, lines: &[Line]) -> Markup {
    let mut places: Vec<f64> =
        lines.iter().flat_map(|line| line.points.iter().map(|point| point.x)).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let every = places.len().div_ceil(TABLE_ROWS).max(1);
    let at = |line: &Line, place: f64| {
        line.points
            .iter()
            .find(|point| point.x == place)
            .map_or_else(|| "-".to_owned(), |point| number(point.y))
    };
    let named = |place: f64| match x.spread {
        Spread::Tail => share(place),
        _ => number(place),
    };
    html! {
        thead { tr { th scope="col" { (x.title) } @for line in lines { th scope="col" { (line.name) ", " (y) } } } }
        tbody {
            @for place in places.iter().step_by(every) {
                tr { th scope="row" { (named(*place)) } @for line in lines { td { (at(line, *place)) } } }
            }
        }
        @if every > 1 { tfoot { tr { td colspan=(lines.len() + 1) { "One of each " (every) " places; there are " (number(places.len() as f64)) "." } } } }
    }
}

/// Formats a share of operations as `99.9 %`, with all of its nines.
fn share(value: f64) -> String {
    let text = format!("{:.6}", value * 100.0);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::svg::{Point, Whisker};

    fn lines(count: u32) -> Chart {
        let points =
            (0..count).map(|index| Point::new(f64::from(index), 1000.0 + f64::from(index))).collect();
        Chart {
            title: "IOPS over time".to_owned(),
            note: "What it counts.".to_owned(),
            shape: Shape::Lines {
                x: XAxis { title: "s".to_owned(), spread: Spread::Linear, ticks_at_points: false },
                y: "IOPS".to_owned(),
                lines: vec![Line { name: "random-read".to_owned(), points }],
                marks: vec![Mark { at: 1001.0, label: "sustained".to_owned(), level: true }],
            },
        }
    }

    #[test]
    fn a_chart_has_a_text_and_a_table() {
        let page = figure(&lines(3), "c1").into_string();
        assert!(page.contains("random-read from 1,000 at 0 to 1,002 at 2; sustained at 1,001"), "{page}");
        assert!(page.contains("<th scope=\"row\">1</th><td>1,001</td>"), "{page}");
        assert!(page.contains("sustained: 1,001"));
    }

    #[test]
    fn a_long_series_has_a_short_table() {
        let page = figure(&lines(6000), "c1").into_string();
        assert!(page.matches("<tr").count() <= TABLE_ROWS + 3);
        assert!(page.contains("One of each 100 places; there are 6,000."), "{page}");
    }

    #[test]
    fn bars_and_parts_have_all_their_numbers_below() {
        let bar = Bar { name: "direct".to_owned(), value: Whisker { value: 5.0, low: 4.0, high: 6.0 } };
        let bars = Shape::Bars { axis: "MB/s".to_owned(), bars: vec![bar] };
        let page =
            figure(&Chart { title: "t".to_owned(), note: String::new(), shape: bars }, "c1").into_string();
        assert!(page.contains("<td>4</td><td>6</td>"), "{page}");
        let parts = Shape::Stacked {
            axis: "s".to_owned(),
            parts: vec!["write".to_owned(), "sync".to_owned()],
            bars: vec![("each".to_owned(), vec![1.0, 3.0])],
        };
        let page =
            figure(&Chart { title: "t".to_owned(), note: String::new(), shape: parts }, "c2").into_string();
        assert!(page.contains("<td>3</td><td>4</td>"), "{page}");
    }

    #[test]
    fn shares_keep_their_nines() {
        assert_eq!(share(0.5), "50 %");
        assert_eq!(share(0.9999), "99.99 %");
    }
}
