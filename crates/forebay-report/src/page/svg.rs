//! Charts as figures of the page: bars, stacked bars, lines and markers, over linear and logarithmic axes. `charts` decides
//! on their contents. Colours come from the page's style sheet, so that a chart follows the light or the dark scheme.
//! Series differ by shape as well as by colour. Every chart scales with the page (viewBox, no fixed width).

use maud::{Markup, html};

use super::html::{listing, prose};
use crate::units::number;

/// Maximum rows of a chart's table; longer series show every n-th of their points.
const TABLE_ROWS: usize = 16;
/// Maximum drawn points of a line: about two for each pixel of a wide chart.
const DRAWN_MAX: usize = 2_000;
/// Number of points from which a line has few dots.
const DENSE: usize = 16;

/// A chart, before it is drawn: the title with the conditions (`p99 µs over reads in flight`), how to read the drawing,
/// quantity and unit of the values, and lines, or bars with a point for each of their parts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chart {
    pub title: String,
    pub note: String,
    pub y: String,
    pub lines: Vec<Line>,
    pub shape: Shape,
}

/// The kinds of charts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    /// Horizontal bars made of these parts; empty if each bar is one part.
    Bars(Vec<String>),
    /// Lines over an axis. Some have their own table, because the table of the rows lacks their numbers.
    Lines { x: XAxis, marks: Vec<Mark>, has_table: bool },
}

/// A point: its place, its value, and the smallest and the largest value there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub x: f64,
    pub y: f64,
    pub low: f64,
    pub high: f64,
}

impl Point {
    /// Returns a point without a spread.
    pub(crate) fn new(x: f64, y: f64) -> Self {
        Self { x, y, low: y, high: y }
    }
}

/// One line with its points in the order in which they are joined, or one bar. A line aside is dashed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    pub name: String,
    pub points: Vec<Point>,
    pub aside: bool,
}

impl Line {
    /// Returns a line that is drawn like most.
    pub(crate) fn new(name: &str, points: Vec<Point>) -> Self {
        Self { name: name.to_owned(), points, aside: false }
    }

    /// Returns the length of a bar: all parts together.
    fn sum(&self) -> f64 {
        self.points.iter().map(|point| point.y).sum()
    }

    /// Returns the end of a bar and its whisker.
    fn end(&self) -> f64 {
        self.points.iter().map(|point| point.high).fold(self.sum(), f64::max)
    }
}

/// A place on the horizontal axis with a remark.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mark {
    pub at: f64,
    pub label: String,
}

/// The horizontal axis: a quantity with its unit, and ticks at each place that has points, or at round values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct XAxis {
    pub title: String,
    pub spread: Spread,
    pub ticks_at_points: bool,
}

impl XAxis {
    /// Returns an axis with round ticks.
    pub(crate) fn new(title: &str, spread: Spread) -> Self {
        Self { title: title.to_owned(), spread, ticks_at_points: false }
    }
}

impl Chart {
    /// Returns a chart of lines whose numbers are in the table of the rows.
    pub(crate) fn lines(title: String, note: &str, x: XAxis, y: &str, lines: Vec<Line>) -> Self {
        let shape = Shape::Lines { x, marks: Vec::new(), has_table: false };
        Self { title, note: note.to_owned(), y: y.to_owned(), lines, shape }
    }

    /// Sets the marks of a chart of lines, and whether it has a table of the numbers.
    pub(crate) fn with(mut self, new: Vec<Mark>, table: bool) -> Self {
        if let Shape::Lines { marks, has_table, .. } = &mut self.shape {
            (*marks, *has_table) = (new, table);
        }
        self
    }

    fn drawing(&self, form: Form) -> Markup {
        match &self.shape {
            Shape::Bars(parts) => bars(&self.label(), &self.y, parts, &self.lines),
            Shape::Lines { x, marks, .. } => lines(&self.label(), form, x, &self.y, &self.lines, marks),
        }
    }

    fn legend(&self) -> Markup {
        let (names, filled): (Vec<&String>, _) = match &self.shape {
            Shape::Bars(parts) => (parts.iter().collect(), true),
            Shape::Lines { .. } => (self.lines.iter().map(|line| &line.name).collect(), false),
        };
        html! {
            @if !(filled && names.is_empty()) {
                ul.legend { @for (index, name) in names.iter().enumerate() { li { (sign(index, filled)) (name) } } }
            }
        }
    }

    /// Describes the chart in words, for readers who cannot see it.
    fn label(&self) -> String {
        let Shape::Lines { x, marks, .. } = &self.shape else {
            let bars = self.lines.iter().map(|bar| format!("{} {}", bar.name, number(bar.sum())));
            return format!("Chart: {}. {}.", self.title, bars.collect::<Vec<_>>().join("; "));
        };
        let lines = self.lines.iter().map(|line| match &line.points[..] {
            [] => format!("{} nothing", line.name),
            [only] => format!("{} {}", line.name, number(only.y)),
            [first, .., last] => {
                let [from, to] =
                    [first, last].map(|point| format!("{} at {}", number(point.y), x.spread.text(point.x)));
                format!("{} from {from} to {to}", line.name)
            }
        });
        let marks = marks.iter().map(|mark| format!("{} at {}", mark.label, number(mark.at)));
        format!("Chart: {}. {}.", self.title, lines.chain(marks).collect::<Vec<_>>().join("; "))
    }

    /// Returns a table with one row for each place at which some line has a point.
    fn table(&self, x: &XAxis) -> Markup {
        let places = places(&self.lines);
        let every = places.len().div_ceil(TABLE_ROWS).max(1);
        let names: Vec<String> = self.lines.iter().map(|line| format!("{}, {}", line.name, self.y)).collect();
        let heads: Vec<&str> = std::iter::once(&x.title).chain(&names).map(String::as_str).collect();
        let rows = places.iter().step_by(every).map(|place| {
            let at = |line: &Line| line.points.iter().find(|point| point.x == *place).map(|point| point.y);
            let cells = self.lines.iter().map(|line| at(line).map_or_else(|| "-".to_owned(), number));
            std::iter::once(x.spread.text(*place)).chain(cells).map(|cell| html! { (cell) }).collect()
        });
        html! {
            (listing("numbers", &self.title, &heads, rows))
            @if every > 1 { p.small { "One of each " (every) " places; there are " (number(places.len() as f64)) "." } }
        }
    }
}

/// Returns the places at which lines have points, ascending.
fn places(lines: &[Line]) -> Vec<f64> {
    let mut places: Vec<f64> =
        lines.iter().flat_map(|line| line.points.iter().map(|point| point.x)).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    places
}

/// Returns the chart as a figure; `id` is unique on the page.
pub(crate) fn figure(chart: &Chart, id: &str) -> Markup {
    html! {
        figure id=(id) {
            figcaption { strong { (chart.title) } " " span.small { (prose(&chart.note)) } }
            (chart.drawing(LARGE))
            (chart.legend())
            @if let Shape::Lines { x, has_table: true, .. } = &chart.shape {
                details {
                    summary { "Numbers of this chart" span.unseen { ": " (chart.title) } }
                    (chart.table(x))
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
            div.pair { @for chart in charts { (chart.drawing(SMALL)) } }
            (charts[0].legend())
        }
    }
}

/// Returns the class that colours a series.
fn class(series: usize) -> String {
    format!("s{}", series % 8)
}

/// Returns a series' own shape around each of its points, so that series differ by more than colour. One path holds all:
/// half of a page is charts. The first two shapes are ends of lines without length.
fn dots(series: usize, points: impl Iterator<Item = (f64, f64)>) -> Markup {
    let (class, shape) = match series % 5 {
        0 => ("round ", "h0"),
        1 => ("square ", "h0"),
        2 => ("", "m0-4.6l4.2 7.8h-8.4z"),
        3 => ("", "m0-4.8l4.8 4.8l-4.8 4.8l-4.8-4.8z"),
        _ => ("", "m0 4.6l4.2-7.8h-8.4z"),
    };
    let path: String = points.map(|(x, y)| format!("M{} {}{shape}", n(x), n(y))).collect();
    html! { path class=(format!("dots {class}{}", self::class(series))) d=(path) {} }
}

/// Returns a series' sign in a legend.
fn sign(series: usize, filled: bool) -> Markup {
    html! {
        svg.sign viewBox="0 0 22 12" aria-hidden="true" focusable="false" {
            @if filled {
                rect class=(class(series)) x="3" y="1" width="16" height="10" {}
            } @else {
                line class=(format!("curve {}", class(series))) x1="0" x2="22" y1="6" y2="6" {}
                (dots(series, std::iter::once((11.0, 6.0))))
            }
        }
    }
}

/// Formats a coordinate with one decimal: enough for a screen, short in the file.
fn n(value: f64) -> String {
    format!("{value:.1}").trim_end_matches(".0").to_owned()
}

/// Width of bars, and their start.
const BARS: (f64, f64) = (480.0, 8.0);
/// Height of one bar with its name, which is above it: long names fit on a narrow screen, too.
const ROW: f64 = 35.0;
/// Distance of the bar from the top of its row, and its height.
const BAR: (f64, f64) = (17.0, 13.0);

/// Returns horizontal bars, each with its sum at the end, and a whisker from the smallest to the largest repeat. `label` is
/// the text for readers who cannot see them.
fn bars(label: &str, axis: &str, parts: &[String], bars: &[Line]) -> Markup {
    let ((width, left), top) = (BARS, 2.0);
    let bottom = top + ROW * bars.len() as f64;
    // Space for the number after the longest bar.
    let widest = bars.iter().map(|bar| width_of(&number(bar.end()))).fold(40.0, f64::max);
    let right = width - widest - 12.0;
    let scale = Scale::new(Spread::Linear, bars.iter().map(Line::end), left, right);
    let height = bottom + 40.0;
    let grid =
        scale.ticks.iter().map(|(tick, _)| format!("M{} {}V{}", n(scale.at(*tick)), n(top), n(bottom)));
    html! {
        svg viewBox=(format!("0 0 {width} {height}")) role="img" aria-label=(label) {
            path.grid d=(grid.collect::<String>()) {}
            line.axis x1=(n(left)) x2=(n(left)) y1=(n(top)) y2=(n(bottom)) {}
            g.tick text-anchor="middle" {
                @for (tick, text) in &scale.ticks {
                    text x=(n(scale.at(*tick))) y=(n(bottom + 16.0)) text-anchor=[(*tick == 0.0).then_some("start")] { (text) }
                }
            }
            @for (index, one) in bars.iter().enumerate() { (bar(one, parts, &scale, top + ROW * index as f64)) }
            text.title x=(n((left + right) / 2.0)) y=(n(height - 6.0)) text-anchor="middle" { (axis) }
        }
    }
}

fn bar(bar: &Line, parts: &[String], scale: &Scale, top: f64) -> Markup {
    let middle = top + BAR.0 + BAR.1 / 2.0;
    let mut begin = 0.0;
    html! {
        text.label x=(n(BARS.1)) y=(n(top + 13.0)) { (bar.name) }
        @for (part, point) in bar.points.iter().enumerate() {
            @let x = scale.at(begin);
            ({ begin += point.y; "" })
            @let width = scale.at(begin) - x;
            @if width >= 0.05 || bar.points.len() == 1 {
                rect class=(format!("part {}", class(part))) x=(n(x)) y=(n(top + BAR.0)) width=(n(width.max(0.5))) height=(n(BAR.1)) {
                    @if let Some(name) = parts.get(part) { title { (name) ": " (number(point.y)) } }
                }
            }
        }
        @for (low, high) in bar.points.iter().map(|point| (scale.at(point.low), scale.at(point.high))) {
            @if high > low {
                path.whisker d=(format!("M{} {}v8m0-4H{}m0-4v8", n(low), n(middle - 4.0), n(high))) {}
            }
        }
        text.value x=(n(scale.at(bar.end()) + 6.0)) y=(n(middle + 4.5)) { (number(bar.sum())) }
    }
}

/// Width of a chart of lines in its own units, which the page scales, height of its plot, and whether its vertical axis is
/// logarithmic in any case.
#[derive(Clone, Copy, Debug)]
struct Form(f64, f64, bool);

/// A chart of a section.
const LARGE: Form = Form(480.0, 190.0, false);
/// Half of the chart of the first screen.
const SMALL: Form = Form(290.0, 124.0, true);

/// Draws lines with their marks. `label` is the text for readers who cannot see them; the legend is
/// part of the page.
fn lines(label: &str, form: Form, x: &XAxis, y_title: &str, lines: &[Line], marks: &[Mark]) -> Markup {
    let (height, drawing) = plot(form, x, y_title, lines, marks);
    html! {
        svg viewBox=(format!("0 0 {} {height}", form.0)) role="img" aria-label=(label) { (drawing) }
    }
}

/// Draws lines with their marks; returns the height, and the drawing.
fn plot(
    Form(width, plot, is_log): Form,
    x_axis: &XAxis,
    y_title: &str,
    lines: &[Line],
    marks: &[Mark],
) -> (f64, Markup) {
    let end = width - 14.0;
    let points = || lines.iter().flat_map(|line| &line.points);
    let heights = || points().flat_map(|point| [point.y, point.low, point.high]);
    let spread = if is_log { Spread::Log } else { Spread::fitting(heights()) };
    let top = 26.0 + 17.0 * marks.len() as f64;
    let bottom = top + plot;
    // The vertical axis grows upwards.
    let y = Scale::new(spread, heights(), bottom, top);
    let left = y.ticks.iter().map(|(_, text)| width_of(text)).fold(30.0, f64::max) + 10.0;
    let x = if x_axis.ticks_at_points {
        Scale::of_values(x_axis.spread, places(lines), left + 10.0, end - 8.0)
    } else {
        Scale::new(x_axis.spread, points().map(|point| point.x), left + 10.0, end - 8.0)
    };
    let height = bottom + 42.0;
    // A line across for each tick of the vertical axis, and a short one below for each of the horizontal one.
    let across = y.ticks.iter().map(|(tick, _)| format!("M{} {}H{}", n(left), n(y.at(*tick)), n(end)));
    let below = x.ticks.iter().map(|(tick, _)| format!("M{} {}v4", n(x.at(*tick)), n(bottom)));
    let drawing = html! {
        // One path for all lines of the grid, and the common attributes of its texts in one place:
        // half of a page is charts.
        path.grid d=(across.chain(below).collect::<String>()) {}
        g.tick text-anchor="end" {
            @for (tick, text) in &y.ticks { text x=(n(left - 6.0)) y=(n(y.at(*tick) + 4.0)) { (text) } }
        }
        g.tick text-anchor="middle" {
            @for (place, text) in readable(&x, width) { text x=(n(place)) y=(n(bottom + 17.0)) { (text) } }
        }
        line.axis x1=(n(left)) x2=(n(end)) y1=(n(bottom)) y2=(n(bottom)) {}
        text.title x="2" y="14" { (y_title) @if spread == Spread::Log { " (log axis)" } }
        text.title x=(n((left + end) / 2.0)) y=(n(height - 6.0)) text-anchor="middle" { (x_axis.title) }
        @for (index, mark) in marks.iter().enumerate() {
            @let (x, top) = (x.at(mark.at), 26.0 + 17.0 * index as f64);
            path.mark d=(format!("M{} {}V{}", n(x), n(top), n(bottom))) {}
            // On the side with more space.
            @let (anchor, x) = if x > width / 2.0 { ("end", x - 5.0) } else { ("start", x + 5.0) };
            text.label x=(n(x)) y=(n(top + 10.0)) text-anchor=(anchor) { (mark.label) }
        }
        @for (index, line) in lines.iter().enumerate() { (curve(index, lines.len(), line, &x, &y)) }
    };
    (height, drawing)
}

/// Returns the middles and texts of the ticks that do not overlap the previous tick's. All ticks have their line.
fn readable(x: &Scale, width: f64) -> Vec<(f64, &str)> {
    let mut free = f64::NEG_INFINITY;
    let mut texts = Vec::new();
    for (tick, text) in &x.ticks {
        let half = width_of(text) / 2.0;
        let middle = x.at(*tick).min(width - half);
        if middle - half >= free {
            free = middle + half;
            texts.push((middle, text.as_str()));
        }
    }
    texts
}

/// Returns the points to draw. If they exceed the width of a chart, these are the lowest and the highest of each group: the drawing
/// looks the same, and the page of half an hour stays small.
fn drawn(points: &[Point]) -> Vec<&Point> {
    if points.len() <= DRAWN_MAX {
        return points.iter().collect();
    }
    let ends = |group: &'_ [Point]| {
        let places = 0..group.len();
        let by_value = |a: &usize, b: &usize| group[*a].y.total_cmp(&group[*b].y);
        (places.clone().min_by(by_value), places.max_by(by_value))
    };
    let groups = points.chunks(points.len().div_ceil(DRAWN_MAX / 2).max(2));
    let of_group = groups.flat_map(|group| {
        let (low, high) = ends(group);
        let is_end = move |at: &usize| [low, high].contains(&Some(*at));
        (0..group.len()).filter(is_end).map(|at| &group[at])
    });
    of_group.collect()
}

fn curve(series: usize, of: usize, line: &Line, x: &Scale, y: &Scale) -> Markup {
    let dense = line.points.len() >= DENSE;
    // Side by side, so that no whisker hides another one.
    let shift = if dense { 0.0 } else { 2.5 * (series as f64 - (of as f64 - 1.0) / 2.0) };
    let at = |point: &Point| x.at(point.x) + shift;
    let joined =
        drawn(&line.points).into_iter().map(|point| format!("{},{}", n(at(point)), n(y.at(point.y))));
    let joined: Vec<String> = joined.collect();
    let class = class(series);
    html! {
        polyline class=(format!("curve {class}{}", if line.aside { " aside" } else { "" })) points=(joined.join(" ")) {}
        @for point in line.points.iter().filter(|point| point.high > point.low) {
            path class=(format!("spread {class}")) d=(format!("M{} {}V{}", n(at(point)), n(y.at(point.low)), n(y.at(point.high)))) {}
        }
        // A few dots of a dense line, so that it is recognized in the legend.
        (dots(series, line.points.iter().step_by(if dense { line.points.len() / 5 } else { 1 }).map(|point| (at(point), y.at(point.y)))))
    }
}

/// The spacing of values over an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// From 0, in steps of equal length.
    Linear,
    /// A factor of ten has the same length everywhere; values are above 0.
    Log,
    /// Shares of operations, from 0 to below 1: 90 %, 99 % and 99.9 % are equally far apart.
    Tail,
}

impl Spread {
    /// Returns [`Spread::Log`] for values that are above 0 and so far apart that a linear axis would hide the small values.
    fn fitting(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = extent(values);
        if low > 0.0 && high / low >= 8.0 { Self::Log } else { Self::Linear }
    }

    /// Returns the text of a value: a number, or a share with all of its nines.
    fn text(self, value: f64) -> String {
        if self != Self::Tail {
            return number(value);
        }
        let text = format!("{:.6}", value * 100.0);
        format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
    }

    fn transform(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Log => value.max(f64::MIN_POSITIVE).log10(),
            // No measurement has more than a billion operations.
            Self::Tail => -(1.0 - value.clamp(0.0, 0.999_999_999)).log10(),
        }
    }
}

/// An axis between two coordinates.
#[derive(Debug)]
struct Scale {
    spread: Spread,
    low: f64,
    high: f64,
    start: f64,
    end: f64,
    /// The values that get a tick, with their text.
    ticks: Vec<(f64, String)>,
}

impl Scale {
    /// Returns an axis with round ticks that covers all `values`, from `start` to `end`.
    fn new(spread: Spread, values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let (low, high) = extent(values);
        let ticks = match spread {
            Spread::Linear => linear_ticks(low.min(0.0), high),
            Spread::Log => log_ticks(low, high),
            Spread::Tail => tail_ticks(high),
        };
        Self::between(spread, (ticks[0], ticks[ticks.len() - 1]), ticks, start, end)
    }

    /// Returns an axis whose ticks are the values themselves.
    fn of_values(spread: Spread, values: Vec<f64>, start: f64, end: f64) -> Self {
        let (low, high) = extent(values.iter().copied());
        let ends = match spread {
            Spread::Linear => (low.min(0.0), if high > low { high } else { low + 1.0 }),
            // A single value is in the middle.
            _ if high <= low => (low / 2.0, low * 2.0),
            _ => (low, high),
        };
        Self::between(spread, ends, values, start, end)
    }

    fn between(spread: Spread, ends: (f64, f64), ticks: Vec<f64>, start: f64, end: f64) -> Self {
        let ticks = ticks.into_iter().map(|value| (value, spread.text(value))).collect();
        Self { spread, low: spread.transform(ends.0), high: spread.transform(ends.1), start, end, ticks }
    }

    /// Returns the coordinate of a value; values beyond the axis are at its end.
    fn at(&self, value: f64) -> f64 {
        let share = (self.spread.transform(value) - self.low) / (self.high - self.low);
        let share = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
        self.start + (self.end - self.start) * share
    }
}

/// Returns the maximum width of a tick's text: small screens have larger letters.
fn width_of(text: &str) -> f64 {
    text.chars().count() as f64 * 8.8
}

fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let finite = values.filter(|value| value.is_finite()).map(|value| (value, value));
    finite.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or((0.0, 1.0))
}

/// Returns multiples of 1, 2 or 5 times a power of ten, at most about five steps, that enclose both values.
fn linear_ticks(low: f64, high: f64) -> Vec<f64> {
    let step = round_step(high - low);
    let first = (low / step).floor();
    let last = (high / step - 1e-9).ceil().max(first + 1.0);
    (0..=(last - first) as u32).map(|index| (first + f64::from(index)) * step).collect()
}

/// Returns powers of ten; between few of them also 2 and 5 times these.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let low = if low > 0.0 { low } else { high.max(1e-9) / 1000.0 };
    let high = high.max(low);
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let factors: &[f64] = if last - first <= 3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let all: Vec<f64> = (first..=last)
        .flat_map(|power| factors.iter().map(move |factor| factor * 10_f64.powi(power)))
        .collect();
    let begin = all.iter().rposition(|tick| *tick <= low * 1.000_001).unwrap_or(0);
    let end = all.iter().position(|tick| *tick >= high * 0.999_999).unwrap_or(all.len() - 1);
    if end > begin { all[begin..=end].to_vec() } else { vec![low / 2.0, low, low * 2.0] }
}

/// Returns 0, a half, and shares that end at the nines of `high`, at least two and at most six of them.
fn tail_ticks(high: f64) -> Vec<f64> {
    let nines = Spread::Tail.transform(high).ceil().clamp(2.0, 6.0) as i32;
    [0.0, 0.5].into_iter().chain((1..=nines).map(|count| 1.0 - 10_f64.powi(-count))).collect()
}

/// Returns 1, 2 or 5 times a power of ten, so that at most five steps span `range`.
fn round_step(range: f64) -> f64 {
    if range <= 0.0 || !range.is_finite() {
        return 1.0;
    }
    let rough = range / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= rough * 0.999_999);
    factor.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_are_short() {
        assert_eq!(n(12.04), "12");
        assert_eq!(n(-0.26), "-0.3");
    }

    #[test]
    fn forty_series_look_different() {
        let mut seen: Vec<String> = (0..40).map(|series| sign(series, false).into_string()).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 40);
    }

    mod bar {
        use super::*;

        fn bar(name: &str, value: f64) -> Line {
            Line::new(name, vec![Point { low: value * 0.9, high: value * 1.1, ..Point::new(0.0, value) }])
        }

        #[test]
        fn bars_scale_with_the_page_and_name_their_unit() {
            let chart = bars("what it shows", "MB/s", &[], &[bar("buffered", 1000.0), bar("direct", 2400.0)])
                .into_string();
            assert!(chart.contains("viewBox=\"0 0 480 "));
            assert!(!chart.contains("<svg width"));
            assert!(chart.contains(">MB/s</text>") && chart.contains("aria-label=\"what it shows\""));
            assert_eq!(chart.matches("<rect").count(), 2);
        }

        #[test]
        fn nothing_is_drawn_outside_of_the_chart() {
            let chart = bars("", "IOPS", &[], &[bar("a", 0.0), bar("b", 123_456.0)]).into_string();
            for part in chart.split("m0-4H").skip(1) {
                let end = part.find('m').expect("the whisker's end");
                let x: f64 = part[..end].parse().expect("a coordinate");
                assert!((0.0..=BARS.0).contains(&x), "{x}");
            }
        }

        #[test]
        fn names_are_escaped() {
            assert!(bars("", "MB/s", &[], &[bar("<b>", 1.0)]).into_string().contains("&lt;b&gt;"));
        }

        #[test]
        fn parts_stand_behind_each_other() {
            let parts = ["write".to_owned(), "sync".to_owned()];
            let each = Line::new("each", [1.0, 3.0].map(|y| Point::new(0.0, y)).to_vec());
            let chart = bars("", "s", &parts, &[each]).into_string();
            assert_eq!(chart.matches("class=\"part s").count(), 2);
            // 4 is the end of the axis: the second part starts at a quarter of it.
            let widths: Vec<f64> = chart
                .split("width=\"")
                .skip(1)
                .map(|part| part[..part.find('"').expect("closed")].parse().expect("a number"))
                .collect();
            assert!((widths[1] / widths[0] - 3.0).abs() < 0.01, "{widths:?}");
            assert!(chart.contains(">4</text>"));
        }
    }

    mod curve {
        use super::*;

        fn axis() -> XAxis {
            XAxis { title: "in flight".to_owned(), spread: Spread::Log, ticks_at_points: true }
        }

        fn line(values: impl IntoIterator<Item = (f64, f64)>) -> Line {
            Line::new("direct", values.into_iter().map(|(x, y)| Point::new(x, y)).collect())
        }

        #[test]
        fn every_value_has_a_dot_and_every_place_a_tick() {
            let chart =
                lines("", LARGE, &axis(), "IOPS", &[line([(1.0, 10.0), (8.0, 20.0)])], &[]).into_string();
            assert_eq!(chart.matches("h0").count(), 2);
            assert_eq!(chart.matches("<polyline").count(), 1);
            assert!(chart.contains(">8</text>") && chart.contains(">IOPS</text>"));
        }

        /// Regression: the texts of 99.99 %, 99.999 % and 99.9999 % overlapped.
        #[test]
        fn texts_of_ticks_that_stand_close_are_not_drawn_over_each_other() {
            let shares = vec![0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999_999];
            let tail = XAxis { title: "share".to_owned(), spread: Spread::Tail, ticks_at_points: false };
            for (axis, places) in [(tail, shares), (axis(), (1..=256).map(f64::from).collect())] {
                texts_have_room(&axis, places);
            }
        }

        fn texts_have_room(axis: &XAxis, places: Vec<f64>) {
            let points = line(places.into_iter().map(|place| (place, 10.0)));
            let chart = lines("", LARGE, axis, "p99", &[points], &[]).into_string();
            let (_, texts) = chart.split_once("text-anchor=\"middle\">").expect("the lower ticks");
            let texts = texts.split_once("</g>").expect("they end").0;
            let mut free = 0.0;
            let mut count = 0;
            for text in texts.split("<text x=\"").skip(1) {
                let (place, rest) = text.split_once('"').expect("a place");
                let phrase =
                    rest.split_once('>').and_then(|(_, phrase)| phrase.split_once('<')).expect("a text").0;
                let (middle, half) = (place.parse::<f64>().expect("a number"), width_of(phrase) / 2.0);
                assert!(middle - half >= free - 0.1, "{phrase} in {texts}");
                free = middle + half;
                count += 1;
            }
            // Ticks without a text have their line.
            assert!(count >= 4 && chart.matches("v4").count() > count, "{count}: {chart}");
        }

        #[test]
        fn values_far_apart_are_drawn_over_a_labelled_log_axis() {
            let chart = lines("", LARGE, &axis(), "p99 µs", &[line([(1.0, 10.0), (8.0, 20_000.0)])], &[])
                .into_string();
            assert!(chart.contains("p99 µs (log axis)"));
        }

        #[test]
        fn many_points_are_a_line_with_few_dots() {
            let many = line((0..600).map(|index| (f64::from(index), 100.0)));
            let chart = lines("", LARGE, &axis(), "IOPS", &[many], &[]).into_string();
            assert!(chart.matches("h0").count() <= 6);
        }

        #[test]
        fn marks_are_named_and_stand_at_their_place() {
            let marks = [Mark { at: 4.0, label: "knee".to_owned() }];
            let points = line([(1.0, 10.0), (8.0, 20.0)]);
            let chart = lines("", LARGE, &axis(), "IOPS", &[points], &marks).into_string();
            assert_eq!(chart.matches("class=\"mark\"").count(), 1);
            assert!(chart.contains(">knee</text>"));
        }

        #[test]
        fn a_line_of_one_point_or_none_breaks_nothing() {
            for values in [vec![], vec![(0.0, 0.0)], vec![(-1.0, 1e300)]] {
                let chart = lines("", LARGE, &axis(), "IOPS", &[line(values)], &[]).into_string();
                assert!(!chart.contains("inf") && !chart.contains("NaN"), "{chart}");
            }
        }
    }

    mod axis {
        use super::*;

        fn texts(scale: &Scale) -> Vec<&str> {
            scale.ticks.iter().map(|(_, text)| text.as_str()).collect()
        }

        #[test]
        fn linear_ticks_are_round_and_reach_around_the_values() {
            assert_eq!(round_step(10.0), 2.0);
            assert_eq!(round_step(2_700.0), 1000.0);
            assert_eq!(round_step(0.0), 1.0);
            let scale = Scale::new(Spread::Linear, [2_700.0].into_iter(), 0.0, 100.0);
            assert_eq!(texts(&scale), ["0", "1,000", "2,000", "3,000"]);
            assert_eq!(scale.at(3000.0), 100.0);
        }

        #[test]
        fn a_log_axis_gives_each_factor_the_same_room() {
            let scale = Scale::new(Spread::Log, [10.0, 100_000.0].into_iter(), 0.0, 400.0);
            assert_eq!(texts(&scale), ["10", "100", "1,000", "10,000", "100,000"]);
            assert!((scale.at(1000.0) - 200.0).abs() < 1e-6);
            let narrow = Scale::new(Spread::Log, [30.0, 450.0].into_iter(), 0.0, 1.0);
            assert_eq!(texts(&narrow), ["20", "50", "100", "200", "500"]);
        }

        #[test]
        fn a_tail_axis_shows_the_nines() {
            let scale = Scale::new(Spread::Tail, [0.999].into_iter(), 0.0, 300.0);
            assert_eq!(texts(&scale), ["0 %", "50 %", "90 %", "99 %", "99.9 %"]);
            assert!((scale.at(0.99) - 200.0).abs() < 1e-6);
        }

        #[test]
        fn values_far_apart_get_a_log_axis() {
            assert_eq!(Spread::fitting([10.0, 300.0].into_iter()), Spread::Log);
            assert_eq!(Spread::fitting([10.0, 70.0].into_iter()), Spread::Linear);
            assert_eq!(Spread::fitting([0.0, 300.0].into_iter()), Spread::Linear);
        }

        #[test]
        fn a_single_value_is_in_the_middle() {
            let alone = Scale::of_values(Spread::Log, vec![8.0], 0.0, 300.0);
            assert!((alone.at(8.0) - 150.0).abs() < 1e-6);
        }

        #[test]
        fn shares_keep_their_nines() {
            assert_eq!([0.5, 0.9999].map(|share| Spread::Tail.text(share)), ["50 %", "99.99 %"]);
        }

        #[test]
        fn no_value_breaks_an_axis() {
            for spread in [Spread::Linear, Spread::Log, Spread::Tail] {
                for values in [vec![], vec![0.0], vec![-5.0], vec![f64::NAN], vec![1e-12, 1e15]] {
                    let scale = Scale::new(spread, values.iter().copied(), 0.0, 100.0);
                    assert!(!scale.ticks.is_empty());
                    for value in values.iter().copied().chain([0.0, 1.0]).filter(|value| value.is_finite()) {
                        assert!((0.0..=100.0).contains(&scale.at(value)), "{spread:?} {value}");
                    }
                }
            }
        }
    }

    mod chart {
        use super::*;

        fn lines(count: u32) -> Chart {
            let points =
                (0..count).map(|index| Point::new(f64::from(index), 1000.0 + f64::from(index))).collect();
            let x = XAxis::new("s", Spread::Linear);
            let lines = vec![Line::new("random-read", points)];
            let chart = Chart::lines("IOPS over time".to_owned(), "What it counts.", x, "IOPS", lines);
            chart.with(vec![Mark { at: 1.0, label: "sustained".to_owned() }], true)
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
            let chart = Chart {
                title: "t".to_owned(),
                note: String::new(),
                y: "s".to_owned(),
                lines: vec![Line::new("each", [1.0, 3.0].map(|y| Point::new(0.0, y)).to_vec())],
                shape: Shape::Bars(vec!["write".to_owned(), "sync".to_owned()]),
            };
            let page = figure(&chart, "c1").into_string();
            assert!(page.contains("Chart: t. each 4.") && !page.contains("<table"), "{page}");
        }
    }
}
