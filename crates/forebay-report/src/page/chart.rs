//! One chart of the page as a figure: the drawing, its legend, the quantity shown and, where no other table has them, its
//! numbers.

use maud::{Markup, html};

use super::html::{listing, prose};
use super::svg::{self, Bar, Line, Mark, XAxis};
use crate::units::number;

/// Maximum rows of a table beside a chart; longer series show every n-th of their points.
const TABLE_ROWS: usize = 16;

/// A chart, before it is drawn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chart {
    /// The title, with the conditions: `p99 µs over reads in flight`.
    pub title: String,
    /// The meaning of the numbers, or how to read the drawing.
    pub note: String,
    /// The drawing.
    pub shape: Shape,
}

/// The kinds of charts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    /// A bar for each row, which may be made of parts.
    Bars {
        /// Quantity and unit of a bar's length.
        axis: String,
        /// Names of the parts; empty where each bar is one.
        parts: Vec<String>,
        /// The bars.
        bars: Vec<Bar>,
    },
    /// Lines over an axis.
    Lines {
        /// The horizontal axis.
        x: XAxis,
        /// Quantity and unit of the vertical axis.
        y: String,
        /// The lines.
        lines: Vec<Line>,
        /// Places with a remark.
        marks: Vec<Mark>,
        /// Whether it has a table of its own: that of the rows has none of these numbers.
        has_table: bool,
    },
}

impl Chart {
    /// Returns a chart of lines whose numbers are in the table of the rows.
    pub(crate) fn lines(title: String, note: &str, x: XAxis, y: &str, lines: Vec<Line>) -> Self {
        let shape = Shape::Lines { x, y: y.to_owned(), lines, marks: Vec::new(), has_table: false };
        Self { title, note: note.to_owned(), shape }
    }

    /// Adds a table of the numbers to a chart of lines.
    pub(crate) fn with_table(mut self) -> Self {
        if let Shape::Lines { has_table, .. } = &mut self.shape {
            *has_table = true;
        }
        self
    }

    /// Sets the marks of a chart of lines.
    pub(crate) fn marked(mut self, new: Vec<Mark>) -> Self {
        if let Shape::Lines { marks, .. } = &mut self.shape {
            *marks = new;
        }
        self
    }
}

/// Returns the chart as a figure; `id` is unique on the page.
pub(crate) fn figure(chart: &Chart, id: &str) -> Markup {
    html! {
        figure id=(id) {
            figcaption { strong { (chart.title) } " " span.small { (prose(&chart.note)) } }
            (drawing(chart, svg::LARGE))
            @if let Shape::Lines { lines, .. } = &chart.shape { (legend(lines)) }
            @if let Shape::Bars { parts, .. } = &chart.shape {
                @if !parts.is_empty() { ul.legend { @for (index, part) in parts.iter().enumerate() { li { (svg::sign(index, true)) (part) } } } }
            }
            @if let Shape::Lines { x, y, lines, has_table: true, .. } = &chart.shape {
                details {
                    summary { "Numbers of this chart" span.unseen { ": " (chart.title) } }
                    (lines_table(&chart.title, x, y, lines))
                }
            }
        }
    }
}

/// Returns two small charts of the same lines side by side, with one legend.
pub(crate) fn pair(charts: &[Chart; 2]) -> Markup {
    html! {
        figure.overview id="overview" {
            figcaption { strong { (charts[0].title) } " " span.small { (charts[0].note) } }
            div.pair { @for chart in charts { (drawing(chart, svg::SMALL)) } }
            @if let Shape::Lines { lines, .. } = &charts[0].shape { (legend(lines)) }
        }
    }
}

fn drawing(chart: &Chart, form: svg::Form) -> Markup {
    match &chart.shape {
        Shape::Bars { axis, parts, bars } => svg::bars(&label(chart), axis, parts, bars),
        Shape::Lines { x, y, lines, marks, .. } => svg::lines(&label(chart), form, x, y, lines, marks),
    }
}

fn legend(lines: &[Line]) -> Markup {
    html! {
        ul.legend {
            @for (index, line) in lines.iter().enumerate() { li { (svg::sign(index, false)) (line.name) } }
        }
    }
}

/// Describes the chart in words, for readers who cannot see it.
fn label(chart: &Chart) -> String {
    let parts: Vec<String> = match &chart.shape {
        Shape::Bars { bars, .. } => {
            bars.iter().map(|bar| format!("{} {}", bar.name, number(bar.sum()))).collect()
        }
        Shape::Lines { x, lines, marks, .. } => {
            let at = |place: f64| x.spread.text(place);
            let lines = lines.iter().map(|line| match &line.points[..] {
                [] => format!("{} nothing", line.name),
                [only] => format!("{} {}", line.name, number(only.y)),
                [first, .., last] => {
                    let (from, to) = (number(first.y), number(last.y));
                    format!("{} from {from} at {} to {to} at {}", line.name, at(first.x), at(last.x))
                }
            });
            lines.chain(marks.iter().map(|mark| format!("{} at {}", mark.label, number(mark.at)))).collect()
        }
    };
    format!("Chart: {}. {}.", chart.title, parts.join("; "))
}

/// Returns a table with one row for each place at which some line has a point.
fn lines_table(title: &str, x: &XAxis, y: &str, lines: &[Line]) -> Markup {
    let mut places: Vec<f64> =
        lines.iter().flat_map(|line| line.points.iter().map(|point| point.x)).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let every = places.len().div_ceil(TABLE_ROWS).max(1);
    let at = |line: &Line, place: f64| {
        let point = line.points.iter().find(|point| point.x == place);
        point.map_or_else(|| "-".to_owned(), |point| number(point.y))
    };
    let names: Vec<String> = lines.iter().map(|line| format!("{}, {y}", line.name)).collect();
    let heads: Vec<&str> = std::iter::once(&*x.title).chain(names.iter().map(String::as_str)).collect();
    let rows = places.iter().step_by(every).map(|place| {
        let cells = lines.iter().map(|line| at(line, *place));
        std::iter::once(x.spread.text(*place)).chain(cells).map(|cell| html! { (cell) }).collect()
    });
    html! {
        (listing("numbers", title, &heads, rows))
        @if every > 1 { p.small { "One of each " (every) " places; there are " (number(places.len() as f64)) "." } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::svg::{Point, Spread};

    fn lines(count: u32) -> Chart {
        let points =
            (0..count).map(|index| Point::new(f64::from(index), 1000.0 + f64::from(index))).collect();
        Chart {
            title: "IOPS over time".to_owned(),
            note: "What it counts.".to_owned(),
            shape: Shape::Lines {
                x: XAxis { title: "s".to_owned(), spread: Spread::Linear, ticks_at_points: false },
                y: "IOPS".to_owned(),
                lines: vec![Line::new("random-read", points)],
                marks: vec![Mark { at: 1.0, label: "sustained".to_owned() }],
                has_table: true,
            },
        }
    }

    #[test]
    fn a_chart_has_a_text_and_a_table() {
        let page = figure(&lines(3), "c1").into_string();
        assert!(page.contains("random-read from 1,000 at 0 to 1,002 at 2; sustained at 1"), "{page}");
        assert!(page.contains("<th scope=\"row\">1</th><td>1,001</td>"), "{page}");
    }

    #[test]
    fn a_long_series_has_a_short_table() {
        let page = figure(&lines(6000), "c1").into_string();
        assert!(page.matches("<tr").count() <= TABLE_ROWS + 3);
        assert!(page.contains("One of each 375 places; there are 6,000."), "{page}");
    }

    #[test]
    fn bars_are_described_and_have_no_table_of_their_own() {
        let bar = |name: &str, values: Vec<f64>| Bar { name: name.to_owned(), values, spread: None };
        let bars = Shape::Bars {
            axis: "s".to_owned(),
            parts: vec!["write".to_owned(), "sync".to_owned()],
            bars: vec![bar("each", vec![1.0, 3.0])],
        };
        let page =
            figure(&Chart { title: "t".to_owned(), note: String::new(), shape: bars }, "c1").into_string();
        assert!(page.contains("Chart: t. each 4.") && !page.contains("<table"), "{page}");
    }
}
