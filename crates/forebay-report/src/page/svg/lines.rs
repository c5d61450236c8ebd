//! Lines over an axis, with whiskers, and marks at a place.

use maud::{Markup, html};

use super::scale::{Scale, Spread, width_of};
use super::{class, dots, n};

/// Maximum drawn points of a line: about two for each pixel of a wide chart.
const DRAWN_MAX: usize = 2_000;
/// Number of points from which a line has few dots.
const DENSE: usize = 16;

/// Width of a chart in its own units, which the page scales, height of its plot, and whether its vertical axis is
/// logarithmic in any case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form(f64, f64, bool);

/// A chart of a section.
pub(crate) const LARGE: Form = Form(480.0, 190.0, false);
/// Half of the chart of the first screen.
pub(crate) const SMALL: Form = Form(290.0, 124.0, true);

/// A point: its place, its value, and the smallest and the largest value there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    /// The place on the horizontal axis.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// The smallest.
    pub low: f64,
    /// The largest.
    pub high: f64,
}

impl Point {
    /// Returns a point without a spread.
    pub(crate) fn new(x: f64, y: f64) -> Self {
        Self { x, y, low: y, high: y }
    }
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its points, in the order in which they are joined.
    pub points: Vec<Point>,
    /// Whether it is drawn apart from the others, dashed.
    pub aside: bool,
}

impl Line {
    /// Returns a line that is drawn like most.
    pub(crate) fn new(name: &str, points: Vec<Point>) -> Self {
        Self { name: name.to_owned(), points, aside: false }
    }
}

/// A place that is marked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mark {
    /// The place on the horizontal axis.
    pub at: f64,
    /// Its label.
    pub label: String,
}

/// The horizontal axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct XAxis {
    /// The quantity on the axis, with its unit.
    pub title: String,
    /// The spacing of places.
    pub spread: Spread,
    /// Each place that has points gets a tick, instead of round values.
    pub ticks_at_points: bool,
}

impl XAxis {
    /// Returns an axis with round ticks.
    pub(crate) fn new(title: &str, spread: Spread) -> Self {
        Self { title: title.to_owned(), spread, ticks_at_points: false }
    }
}

/// Draws lines with their marks. `label` is the text for readers who cannot see them; the legend is
/// part of the page.
pub(crate) fn lines(
    label: &str,
    Form(width, plot, is_log): Form,
    x_axis: &XAxis,
    y_title: &str,
    lines: &[Line],
    marks: &[Mark],
) -> Markup {
    let end = width - 14.0;
    let points = || lines.iter().flat_map(|line| &line.points);
    let heights: Vec<f64> = points().flat_map(|point| [point.y, point.low, point.high]).collect();
    let spread = if is_log { Spread::Log } else { Spread::fitting(heights.iter().copied()) };
    let top = 26.0 + 17.0 * marks.len() as f64;
    let bottom = top + plot;
    // The vertical axis grows upwards.
    let y = Scale::new(spread, heights.iter().copied(), bottom, top);
    let left = y.ticks.iter().map(|(_, text)| width_of(text)).fold(30.0, f64::max) + 10.0;
    let x = horizontal(x_axis, points().map(|point| point.x).collect(), left + 10.0, end - 8.0);
    let height = bottom + 42.0;
    html! {
        svg viewBox=(format!("0 0 {width} {height}")) role="img" aria-label=(label) {
            // One path for all lines of the grid, and the common attributes of its texts in one place:
            // half of a page is charts.
            path.grid d=(grid(&x, &y, left, end, bottom)) {}
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
                // On the side that has more room.
                @let (anchor, x) = if x > width / 2.0 { ("end", x - 5.0) } else { ("start", x + 5.0) };
                text.label x=(n(x)) y=(n(top + 10.0)) text-anchor=(anchor) { (mark.label) }
            }
            @for (index, line) in lines.iter().enumerate() { (curve(index, lines.len(), line, &x, &y)) }
        }
    }
}

/// Returns the path of the grid: a line across for each tick of the vertical axis, and a short one
/// below for each of the horizontal one.
fn grid(x: &Scale, y: &Scale, left: f64, end: f64, bottom: f64) -> String {
    let across = y.ticks.iter().map(|(tick, _)| format!("M{} {}H{}", n(left), n(y.at(*tick)), n(end)));
    let below = x.ticks.iter().map(|(tick, _)| format!("M{} {}v4", n(x.at(*tick)), n(bottom)));
    across.chain(below).collect()
}

/// Returns the middles and texts of the ticks that have room beside the one before. All ticks have
/// their line.
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

fn horizontal(axis: &XAxis, mut places: Vec<f64>, left: f64, right: f64) -> Scale {
    if axis.ticks_at_points {
        places.sort_by(f64::total_cmp);
        places.dedup();
        return Scale::of_values(axis.spread, &places, left, right);
    }
    Scale::new(axis.spread, places.into_iter(), left, right)
}

/// Returns the points to draw. When there are more than a chart is wide, these are the lowest and the
/// highest of each group: the drawing looks the same, and the page of half an hour stays small.
fn drawn(points: &[Point]) -> impl Iterator<Item = &Point> {
    let each = points.len().div_ceil(DRAWN_MAX / 2).max(2);
    let all = points.len() <= DRAWN_MAX;
    points.chunks(if all { usize::MAX } else { each }).flat_map(move |chunk| {
        let by_value = |a: &(usize, &Point), b: &(usize, &Point)| a.1.y.total_cmp(&b.1.y);
        let ends = [
            chunk.iter().enumerate().min_by(by_value).map_or(0, |(at, _)| at),
            chunk.iter().enumerate().max_by(by_value).map_or(0, |(at, _)| at),
        ];
        chunk.iter().enumerate().filter(move |(at, _)| all || ends.contains(at)).map(|(_, point)| point)
    })
}

fn curve(series: usize, of: usize, line: &Line, x: &Scale, y: &Scale) -> Markup {
    let dense = line.points.len() >= DENSE;
    // Side by side, so that no whisker hides another one.
    let shift = if dense { 0.0 } else { 2.5 * (series as f64 - (of as f64 - 1.0) / 2.0) };
    let at = |point: &Point| x.at(point.x) + shift;
    let joined: Vec<String> =
        drawn(&line.points).map(|point| format!("{},{}", n(at(point)), n(y.at(point.y)))).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn axis() -> XAxis {
        XAxis { title: "in flight".to_owned(), spread: Spread::Log, ticks_at_points: true }
    }

    fn line(values: impl IntoIterator<Item = (f64, f64)>) -> Line {
        Line::new("direct", values.into_iter().map(|(x, y)| Point::new(x, y)).collect())
    }

    #[test]
    fn every_value_has_a_dot_and_every_place_a_tick() {
        let chart = lines("", LARGE, &axis(), "IOPS", &[line([(1.0, 10.0), (8.0, 20.0)])], &[]).into_string();
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
        let chart =
            lines("", LARGE, &axis(), "p99 µs", &[line([(1.0, 10.0), (8.0, 20_000.0)])], &[]).into_string();
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
