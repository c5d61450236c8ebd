//! Charts, drawn by hand: bars with whiskers and lines over depth. Colours come from the page's style sheet, so that a
//! chart follows the light or the dark scheme; every chart scales with the page (viewBox, no fixed width).

use maud::{Markup, html};

use crate::doctor::units::number;

/// Width of every chart in its own units; the page scales it.
const WIDTH: f64 = 600.0;
/// Where bars and lines begin: room for row names.
const LEFT: f64 = 150.0;
/// Where they end: room for the value behind the longest bar.
const RIGHT: f64 = 530.0;
/// Height of one bar's row.
const BAR: f64 = 30.0;

/// A value with the smallest and the largest of its repeats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Whisker {
    /// The median.
    pub(crate) value: f64,
    /// The smallest.
    pub(crate) low: f64,
    /// The largest.
    pub(crate) high: f64,
}

/// Horizontal bars, one for each row, with a whisker from the smallest to the largest repeat.
pub(crate) fn bars(axis: &str, rows: &[(String, Whisker)]) -> Markup {
    let top = 8.0;
    let bottom = top + BAR * rows.len() as f64;
    let scale = Scale::new(rows.iter().map(|(_, whisker)| whisker.high), LEFT, RIGHT);
    let height = bottom + 44.0;
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(axis) {
            @for tick in &scale.ticks {
                line.grid x1=(n(scale.at(*tick))) x2=(n(scale.at(*tick))) y1=(n(top)) y2=(n(bottom)) {}
                text.tick x=(n(scale.at(*tick))) y=(n(bottom + 16.0)) text-anchor="middle" { (number(*tick)) }
            }
            @for (index, (name, whisker)) in rows.iter().enumerate() {
                @let y = top + BAR * index as f64;
                @let middle = y + BAR / 2.0;
                text.label x=(n(LEFT - 8.0)) y=(n(middle + 4.0)) text-anchor="end" { (name) }
                rect class=(format!("series s{}", index % 8)) x=(n(LEFT)) y=(n(y + 5.0))
                    width=(n((scale.at(whisker.value) - LEFT).max(0.5))) height=(n(BAR - 10.0)) rx="2" {}
                (whisker_across(&scale, whisker, middle))
                text.value x=(n(scale.at(whisker.high.max(whisker.value)) + 6.0)) y=(n(middle + 4.0)) {
                    (number(whisker.value))
                }
            }
            line.axis x1=(n(LEFT)) x2=(n(LEFT)) y1=(n(top)) y2=(n(bottom)) {}
            text.title x=(n((LEFT + RIGHT) / 2.0)) y=(n(height - 6.0)) text-anchor="middle" { (axis) }
        }
    }
}

fn whisker_across(scale: &Scale, whisker: &Whisker, y: f64) -> Markup {
    let (low, high) = (scale.at(whisker.low), scale.at(whisker.high));
    html! {
        g.whisker {
            line x1=(n(low)) x2=(n(high)) y1=(n(y)) y2=(n(y)) {}
            line x1=(n(low)) x2=(n(low)) y1=(n(y - 4.0)) y2=(n(y + 4.0)) {}
            line x1=(n(high)) x2=(n(high)) y1=(n(y - 4.0)) y2=(n(y + 4.0)) {}
        }
    }
}

/// One line of a line chart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    /// Its name in the legend.
    pub(crate) name: String,
    /// Its points: the place on the horizontal axis (an index into its labels) and the value.
    pub(crate) points: Vec<(usize, Whisker)>,
}

/// Lines over a few evenly spaced places such as depths, with whiskers and a legend below.
pub(crate) fn lines(x_axis: &str, x_labels: &[String], y_axis: &str, lines: &[Line]) -> Markup {
    let (left, right, top, bottom) = (70.0, WIDTH - 16.0, 30.0, 270.0);
    let highest = lines.iter().flat_map(|line| line.points.iter().map(|(_, whisker)| whisker.high));
    // The vertical axis grows upwards.
    let scale = Scale::new(highest, bottom, top);
    let step = (right - left) / x_labels.len().max(1) as f64;
    let at = |index: usize| left + step * (index as f64 + 0.5);
    let legend_top = bottom + 62.0;
    let height = legend_top + 20.0 * lines.len().div_ceil(2) as f64;
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(format!("{y_axis} over {x_axis}")) {
            @for tick in &scale.ticks {
                line.grid x1=(n(left)) x2=(n(right)) y1=(n(scale.at(*tick))) y2=(n(scale.at(*tick))) {}
                text.tick x=(n(left - 6.0)) y=(n(scale.at(*tick) + 4.0)) text-anchor="end" { (number(*tick)) }
            }
            @for (index, label) in x_labels.iter().enumerate() {
                text.tick x=(n(at(index))) y=(n(bottom + 16.0)) text-anchor="middle" { (label) }
            }
            line.axis x1=(n(left)) x2=(n(right)) y1=(n(bottom)) y2=(n(bottom)) {}
            text.title x=(n(left - 60.0)) y="16" { (y_axis) }
            text.title x=(n((left + right) / 2.0)) y=(n(bottom + 36.0)) text-anchor="middle" { (x_axis) }
            @for (index, line) in lines.iter().enumerate() {
                @let class = format!("s{}", index % 8);
                // Beside each other, so that no whisker hides another one.
                @let at = |place: usize| at(place) + 5.0 * (index as f64 - (lines.len() - 1) as f64 / 2.0);
                @let path: Vec<String> = line.points.iter()
                    .map(|(x, whisker)| format!("{},{}", n(at(*x)), n(scale.at(whisker.value)))).collect();
                polyline class=(format!("curve {class}")) points=(path.join(" ")) {}
                @for (x, whisker) in &line.points {
                    g class=(format!("spread {class}")) {
                        line x1=(n(at(*x))) x2=(n(at(*x))) y1=(n(scale.at(whisker.low))) y2=(n(scale.at(whisker.high))) {}
                    }
                    circle class=(format!("series {class}")) cx=(n(at(*x))) cy=(n(scale.at(whisker.value))) r="3.5" {
                        title { (line.name) ", " (x_axis) " " (x_labels.get(*x).map_or("", String::as_str)) ": " (number(whisker.value)) }
                    }
                }
                @let (legend_x, legend_y) = (left + 260.0 * (index % 2) as f64, legend_top + 20.0 * (index / 2) as f64);
                rect class=(format!("series {class}")) x=(n(legend_x)) y=(n(legend_y - 9.0)) width="14" height="10" {}
                text.label x=(n(legend_x + 20.0)) y=(n(legend_y)) { (line.name) }
            }
        }
    }
}

/// A linear axis from 0 with round ticks.
#[derive(Debug)]
struct Scale {
    top: f64,
    start: f64,
    end: f64,
    ticks: Vec<f64>,
}

impl Scale {
    fn new(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let highest = values.fold(0.0, f64::max);
        let step = round_step(highest);
        let count = (highest / step).ceil().max(1.0);
        Self {
            top: step * count,
            start,
            end,
            ticks: (0..=count as u32).map(|index| step * f64::from(index)).collect(),
        }
    }

    fn at(&self, value: f64) -> f64 {
        self.start + (self.end - self.start) * (value / self.top).clamp(0.0, 1.0)
    }
}

/// 1, 2 or 5 times a power of ten, so that at most five steps reach `highest`.
fn round_step(highest: f64) -> f64 {
    if highest <= 0.0 || !highest.is_finite() {
        return 1.0;
    }
    let rough = highest / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let factor =
        [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= rough * 0.999_999).unwrap_or(10.0);
    factor * power
}

/// A coordinate with one decimal: enough for a screen, short in the file.
fn n(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whisker(value: f64) -> Whisker {
        Whisker { value, low: value * 0.9, high: value * 1.1 }
    }

    #[test]
    fn ticks_are_round_and_reach_the_highest_value() {
        assert_eq!(round_step(10.0), 2.0);
        assert_eq!(round_step(2_700.0), 1000.0);
        assert_eq!(round_step(0.0), 1.0);
        let scale = Scale::new([2_700.0].into_iter(), 0.0, 100.0);
        assert_eq!(scale.ticks, [0.0, 1000.0, 2000.0, 3000.0]);
        assert_eq!(scale.at(3000.0), 100.0);
    }

    #[test]
    fn bars_scale_with_the_page_and_name_their_unit() {
        let chart =
            bars("MB/s", &[("buffered".to_owned(), whisker(1000.0)), ("direct".to_owned(), whisker(2400.0))]);
        let chart = chart.into_string();
        assert!(chart.contains("viewBox=\"0 0 600 "));
        assert!(!chart.contains("<svg width"));
        assert!(chart.contains(">MB/s</text>"));
        assert_eq!(chart.matches("<rect").count(), 2);
    }

    #[test]
    fn nothing_is_drawn_outside_of_the_chart() {
        let rows = [("a".to_owned(), whisker(0.0)), ("b".to_owned(), whisker(123_456.0))];
        let chart = bars("IOPS", &rows).into_string();
        for part in chart.split("x2=\"").skip(1) {
            let end = part.find('"').expect("attributes are closed");
            let x: f64 = part[..end].parse().expect("a coordinate");
            assert!((0.0..=WIDTH).contains(&x), "{x}");
        }
    }

    #[test]
    fn names_are_escaped() {
        let chart = bars("MB/s", &[("<b>".to_owned(), whisker(1.0))]).into_string();
        assert!(chart.contains("&lt;b&gt;"));
    }

    #[test]
    fn lines_have_a_legend_and_a_point_for_each_value() {
        let line = Line { name: "direct".to_owned(), points: vec![(0, whisker(10.0)), (1, whisker(20.0))] };
        let chart = lines("in flight", &["1".to_owned(), "8".to_owned()], "IOPS", &[line]).into_string();
        assert_eq!(chart.matches("<circle").count(), 2);
        assert_eq!(chart.matches("<polyline").count(), 1);
        assert!(chart.contains(">direct</text>"));
    }
}
